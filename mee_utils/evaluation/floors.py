"""What can be reached without any model: the floors that a trained model must be far above.

    question answering  the context sentence that shares most words with the question; three random words of the context
    summarization       the first sentence; one training summary, the same for every input
    translation         the source itself; the translation of the nearest training sentence
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from random import Random

import numpy as np

WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Lower-case words of a text."""
    return WORD.findall(text.lower())


def sentences(text: str) -> list[str]:
    """A text cut after points, question marks and exclamation marks."""
    return [part for part in re.split(r"(?<=[.!?])\s+", text.strip()) if part]


def _context(prompt: str) -> tuple[str, str]:
    question, _, context = prompt.removeprefix("question: ").partition(" context: ")
    return question, context


def best_overlap_sentence(inputs: Sequence[str], train) -> list[str]:
    """The sentence of the context that shares most words with the question."""
    answers = []
    for prompt in inputs:
        question, context = _context(prompt)
        asked = set(words(question))
        answers.append(max(sentences(context), key=lambda sentence: len(asked & set(words(sentence)))))
    return answers


def three_random_words(inputs: Sequence[str], train) -> list[str]:
    """Three words of the context, drawn with a fixed seed."""
    random = Random(0)
    return [" ".join(random.sample(found, min(3, len(found)))) for found in (words(_context(p)[1]) for p in inputs)]


def first_sentence(inputs: Sequence[str], train) -> list[str]:
    """The first sentence of the document."""
    return [sentences(prompt.removeprefix("summarize: "))[0] for prompt in inputs]


def constant_summary(inputs: Sequence[str], train) -> list[str]:
    """The training summary whose words are the most common ones, for every input."""
    targets = train.targets[:2000]
    share = Counter(word for target in targets for word in set(words(target)))
    best = max(targets, key=lambda target: sum(share[word] for word in set(words(target))) / len(words(target)))
    return [best] * len(inputs)


def copied_source(inputs: Sequence[str], train) -> list[str]:
    """The source sentence, untranslated."""
    return [prompt.partition(": ")[2] for prompt in inputs]


def nearest_translation(inputs: Sequence[str], train) -> list[str]:
    """The translation of the training sentence with the largest cosine of tf-idf vectors."""
    documents = [words(prompt.partition(": ")[2]) for prompt in train.inputs]
    postings: dict[str, list[int]] = defaultdict(list)
    for number, document in enumerate(documents):
        for word in set(document):
            postings[word].append(number)
    rarity = {word: np.log(len(documents) / len(found)) for word, found in postings.items()}
    index = {word: np.array(found) for word, found in postings.items()}
    norms = np.array([np.sqrt(sum(rarity[word] ** 2 for word in set(document))) + 1e-9 for document in documents])
    outputs = []
    for prompt in inputs:
        similarity = np.zeros(len(documents))
        for word in set(words(prompt.partition(": ")[2])) & index.keys():
            similarity[index[word]] += rarity[word] ** 2
        outputs.append(train.targets[int(np.argmax(similarity / norms))])
    return outputs


FLOORS: dict[str, dict[str, Callable]] = {
    "question_answering": {"best overlapping sentence": best_overlap_sentence, "three random words": three_random_words},
    "summarization": {"first sentence": first_sentence, "one constant summary": constant_summary},
    "translation": {"source copied": copied_source, "nearest training sentence": nearest_translation},
    "long_document_summarization": {"first sentence": first_sentence, "one constant summary": constant_summary},
}


def floor_texts(task, train) -> dict[str, list[str]]:
    """Outputs of every floor of a task. `train` is the training split, from which some floors take their text."""
    return {name: make(task.inputs, train) for name, make in FLOORS[task.name].items()}
