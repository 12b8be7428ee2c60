"""Trivial baselines: what can be reached without any model. A trained model must be far above them.

Each takes prompts and the training split, and returns one text a prompt; tables call it by its name.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random

import numpy as np

WORD = re.compile(r"\w+")


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?])\s+", text.strip()) if part]


def _context(prompt: str) -> tuple[str, str]:
    return prompt.removeprefix("question: ").partition(" context: ")[::2]


def best_overlapping_sentence(inputs: Sequence[str], train) -> list[str]:
    """The sentence of the context that shares most words with the question."""
    shared = lambda question, sentence: len({*_words(question)} & {*_words(sentence)})
    return [max(_sentences(context), key=partial(shared, asked)) for asked, context in map(_context, inputs)]


def three_random_words(inputs: Sequence[str], train) -> list[str]:
    """Three words of the context, drawn with a fixed seed."""
    random, contexts = Random(0), [_words(_context(prompt)[1]) for prompt in inputs]
    return [" ".join(random.sample(context, min(3, len(context)))) for context in contexts]


def first_sentence(inputs: Sequence[str], train) -> list[str]:
    """The first sentence of the document."""
    return [_sentences(prompt.removeprefix("summarize: "))[0] for prompt in inputs]


def one_constant_summary(inputs: Sequence[str], train) -> list[str]:
    """The training summary with the most common words, for every input."""
    targets = train.targets[:2000]
    share = Counter(word for target in targets for word in set(_words(target)))
    common = lambda target: sum(share[word] for word in set(_words(target))) / len(_words(target))
    return [max(targets, key=common)] * len(inputs)


def source_copied(inputs: Sequence[str], train) -> list[str]:
    """The source sentence, untranslated."""
    return [prompt.partition(": ")[2] for prompt in inputs]


def nearest_training_sentence(inputs: Sequence[str], train) -> list[str]:
    """The translation of the training sentence with the largest tf-idf cosine (binary, idf = ln(n / df))."""
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer(binary=True, token_pattern=WORD.pattern)
    documents = vectorizer.fit_transform(source_copied(train.inputs, None)).astype(float)
    rarity = np.log(documents.shape[0] / documents.sum(axis=0).A1) ** 2
    norms = np.sqrt(documents @ rarity) + 1e-9
    queries = vectorizer.transform(source_copied(inputs, None)).astype(float)
    nearest = [int(np.argmax((documents @ (query.toarray()[0] * rarity)) / norms)) for query in queries]
    return [train.targets[number] for number in nearest]
