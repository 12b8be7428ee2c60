"""Trivial baselines: what can be reached without any model. A trained model must be far above them.

Each takes prompts and the training split, and returns one text for each prompt; tables call it by its name.
"""

import re
from collections import Counter
from collections.abc import Sequence
from random import Random

import numpy as np

from ..common.extras import needs_extra

WORD = re.compile(r"\w+")


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?])\s+", text.strip()) if part]


def _question_and_context(prompt: str) -> tuple[str, str]:
    question, _, context = prompt.removeprefix("question: ").partition(" context: ")
    return question, context


def best_overlapping_sentence(inputs: Sequence[str], train) -> list[str]:
    """The sentence of the context that shares most words with the question."""
    texts = []
    for prompt in inputs:
        question, context = _question_and_context(prompt)
        words = set(_words(question))
        overlaps = {sentence: len(words & set(_words(sentence))) for sentence in _sentences(context)}
        texts.append(max(overlaps, key=overlaps.get, default=""))
    return texts


def three_random_words(inputs: Sequence[str], train) -> list[str]:
    """Three words of the context, drawn with a fixed seed."""
    random = Random(0)
    contexts = [_words(_question_and_context(prompt)[1]) for prompt in inputs]
    return [" ".join(random.sample(context, min(3, len(context)))) for context in contexts]


def first_sentence(inputs: Sequence[str], train) -> list[str]:
    """The first sentence of the document; nothing where the document is empty."""
    sentences = [_sentences(document) for document in source_copied(inputs, train)]
    return [document[0] if document else "" for document in sentences]


def one_constant_summary(inputs: Sequence[str], train) -> list[str]:
    """The training summary with the most common words, for every input."""
    targets = train.targets[:2000]
    occurrences = Counter(word for target in targets for word in set(_words(target)))

    def commonness(target: str) -> float:
        words = _words(target)
        return sum(occurrences[word] for word in set(words)) / max(1, len(words))

    return [max(targets, key=commonness)] * len(inputs)


def source_copied(inputs: Sequence[str], train) -> list[str]:
    """The source itself: the prompt after its prefix. A translation is then the sentence, untranslated."""
    return [prompt.partition(": ")[2] for prompt in inputs]


def nearest_training_sentence(inputs: Sequence[str], train) -> list[str]:
    """The translation of the training sentence with the largest tf-idf cosine (binary, idf = ln(n / df))."""
    with needs_extra("notebooks"):
        from sklearn.feature_extraction.text import CountVectorizer

    sources = source_copied(train.inputs, None)
    if not any(_words(source) for source in sources):
        return [train.targets[0]] * len(inputs)
    vectorizer = CountVectorizer(binary=True, token_pattern=WORD.pattern)
    documents = vectorizer.fit_transform(sources).astype(float)  # [training sentence, word]
    idf_squared = np.log(documents.shape[0] / documents.sum(axis=0).A1) ** 2
    norms = np.sqrt(documents @ idf_squared) + 1e-9
    queries = vectorizer.transform(source_copied(inputs, None)).astype(float)
    texts = []
    for query in queries:
        weights = query.toarray()[0] * idf_squared  # [word]
        cosines = (documents @ weights) / norms  # [training sentence], up to a factor of the query
        texts.append(train.targets[int(np.argmax(cosines))])
    return texts
