"""Made data: a small world whose every target token has a known difficulty.

No real corpus says how hard a token *should* be. This one does: people live somewhere, work, travel and own things; a text
states it, and the answer, the summary or the translation is assembled from words whose origin the generator knows:

| difficulty | what producing the token takes |
|---|---|
| grammatical | a function word or mark that the kind of sentence calls for; the end token too |
| copied | going on with a name or a span of the source |
| translated | one source word looked up in the other language |
| agreement | the form of a French word that its neighbour decides |
| distant_agreement | the same across at least two other words |
| one_fact | one sentence of the source found and read |
| two_facts | two sentences joined |
| counted | sentences counted, or numbers added |
| compared | two numbers compared |

Examples come from a seeded generator without end. Which split an example belongs to is a property of its source (a hash of
it), so no source stands in two splits, whatever the seed or the size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from . import made_french, made_stories
from .made_french import Word

DIFFICULTIES = (
    "grammatical", "copied", "translated", "agreement", "distant_agreement", "one_fact", "two_facts", "counted", "compared",
)  # fmt: skip
SPLITS = ("train", "validation", "test")
NO_SPACE_BEFORE = (".", ",")


@dataclass(frozen=True)
class Span:
    """Characters `start` to `end` of the target, and the difficulty of producing them."""

    start: int
    end: int
    difficulty: str


@dataclass(frozen=True)
class MadeExample:
    """One made example, in the columns of the hub corpus of its task, with the difficulty of each target word."""

    columns: dict
    source: str
    target: str
    spans: tuple[Span, ...]


def write(words: list[Word]) -> tuple[str, tuple[Span, ...]]:
    """Joins words to a sentence; returns it with the span of each word.

    >>> write([Word("l'"), Word("école"), Word("."), ])[0]
    "l'école."
    """
    text, spans = "", []
    for word in words:
        if text and not text.endswith("'") and word.text not in NO_SPACE_BEFORE:
            text += " "
        spans.append(Span(len(text), len(text) + len(word.text), word.difficulty))
        text += word.text
    return text, tuple(spans)


def _sentence(words: list[Word]) -> list[Word]:
    """Capital at the beginning, a point at the end unless a question mark stands there."""
    first = words[0]
    words = [Word(first.text[0].upper() + first.text[1:], first.difficulty), *words[1:]]
    return words if words[-1].text == "?" else [*words, Word(".")]


def _translation(random: Random) -> MadeExample:
    english, french = (_sentence(words) for words in made_french.sentence_pair(random))
    target, spans = write(french)
    source = write(english)[0].replace(" ?", "?")
    return MadeExample({"translation": {"en": source, "fr": target}}, source, target, spans)


def _question_answering(random: Random) -> MadeExample:
    context, question, answer = made_stories.question(random)
    target, spans = write(answer)
    counted = any(span.difficulty == "counted" for span in spans)
    start = -1 if counted else context.find(target)
    columns = {"context": context, "question": question, "answers": {"text": [target], "answer_start": [start]}}
    return MadeExample({"title": "", **columns}, f"{context} {question}", target, spans)


def _summarization(random: Random, events: int = 1) -> tuple[str, str, tuple[Span, ...]]:
    sentences, summary = made_stories.report(random, events)
    target, spans = write(summary)
    return " ".join(sentences), target, spans


def _dialogue(random: Random) -> MadeExample:
    document, target, spans = _summarization(random)
    return MadeExample({"dialogue": document, "summary": target}, document, target, spans)


def _long_document(random: Random) -> MadeExample:
    document, target, spans = _summarization(random, events=random.randint(8, 12))
    return MadeExample({"document": document, "summary": target}, document, target, spans)


GENERATORS: dict[str, Callable[[Random], MadeExample]] = {
    "question_answering": _question_answering,
    "summarization": _dialogue,
    "translation": _translation,
    "long_document_summarization": _long_document,
}


def split_of(example: MadeExample) -> str:
    """The split an example belongs to: 2 % validation, 2 % test, the rest train, decided by its own source."""
    bucket = int.from_bytes(hashlib.blake2b(example.source.encode(), digest_size=4).digest(), "big") % 50
    return {0: "validation", 1: "test"}.get(bucket, "train")


def examples(task: str, split: str, seed: int = 0) -> Iterator[MadeExample]:
    """Yields examples of a split without end, all with distinct sources, in an order that the seed decides."""
    random, seen = Random(f"{task}/{seed}"), set()
    while True:
        example = GENERATORS[task](random)
        if example.source not in seen and split_of(example) == split:
            seen.add(example.source)
            yield example
