"""Synthetic examples: a small world in which the difficulty of every target token is known.

No real corpus says how hard a token *should* be. Here people live somewhere, work, travel and own things; a
text states it, and the answer, the summary or the translation consists of words whose origin is known
(`words.DIFFICULTIES`). The split of an example is a hash of its source, so that no source is in two splits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from ...common.errors import check_choice
from .french import sentence_pair
from .stories import question, report
from .words import Span, write


class SyntheticExample(NamedTuple):
    """One example in the columns of a hub corpus of its task, with the difficulty of each target word."""

    columns: dict
    source: str
    target: str
    spans: tuple[Span, ...]


def _translation(random: Random) -> SyntheticExample:
    english, french = sentence_pair(random)
    target, spans = write(french)
    return SyntheticExample({"translation": {"en": english, "fr": target}}, english, target, spans)


def _question_answering(random: Random) -> SyntheticExample:
    context, asked, answer = question(random)
    target, spans = write(answer)
    start = -1 if spans[0].difficulty == "counted" else context.find(target)
    answers = {"text": [target], "answer_start": [start]}
    columns = {"title": "", "context": context, "question": asked, "answers": answers}
    return SyntheticExample(columns, f"{context} {asked}", target, spans)


def _report(random: Random, column: str, events: int) -> SyntheticExample:
    sentences, summary = report(random, events)
    document, (target, spans) = " ".join(sentences), write(summary)
    return SyntheticExample({column: document, "summary": target}, document, target, spans)


GENERATORS: dict[str, Callable[[Random], SyntheticExample]] = {
    "question_answering": _question_answering,
    "summarization": lambda random: _report(random, "dialogue", 1),
    "translation": _translation,
    "long_document_summarization": lambda random: _report(random, "document", random.randint(8, 12)),
}


def split_of(example: SyntheticExample) -> str:
    """The split an example belongs to, by its source: 2 % validation, 2 % test, the rest train."""
    bucket = int.from_bytes(hashlib.blake2b(example.source.encode(), digest_size=4).digest(), "big") % 50
    return {0: "validation", 1: "test"}.get(bucket, "train")


def examples(task: str, split: str, seed: int = 0) -> Iterator[SyntheticExample]:
    """Yields examples of a split without end, all with distinct sources; the seed decides their order."""
    draw = GENERATORS[check_choice("synthetic task", task, GENERATORS)]
    random, seen = Random(f"{task}/{seed}"), set()
    while True:
        example = draw(random)
        if example.source not in seen and split_of(example) == split:
            seen.add(example.source)
            yield example
