"""Synthetic examples: a small world in which the difficulty of every target token is known.

Here people live somewhere, work, travel and own things; a text states it, and the answer, the summary or the
translation consists of words whose origin is known (`words.DIFFICULTIES`). The split of an example is a hash
of its source (of a question: its context), so that no source is in two splits.
"""

import hashlib
from collections.abc import Callable, Iterator
from random import Random

from ...common.errors import check_choice
from .french import translation
from .questions import LESSONS, question
from .stories import report
from .words import SyntheticExample

GENERATORS: dict[str, Callable[[Random], SyntheticExample]] = {
    "question_answering": question,
    "summarization": lambda random: report(random, "dialogue", 1),
    "translation": translation,
    "long_document_summarization": lambda random: report(random, "document", random.randint(8, 12)),
}


def split_of(example: SyntheticExample) -> str:
    """The split an example belongs to, by its source: 2 % validation, 2 % test, the rest train."""
    bucket = int.from_bytes(hashlib.blake2b(example.source.encode(), digest_size=4).digest(), "big") % 50
    return {0: "validation", 1: "test"}.get(bucket, "train")


def examples(task: str, split: str, seed: int = 0) -> Iterator[SyntheticExample]:
    """Yields examples of a split without end, all with distinct sources; the seed decides their order."""
    known = GENERATORS | LESSONS
    draw = known[check_choice("synthetic task", task, known)]
    random = Random(f"{task}/{seed}")
    seen = set()
    while True:
        example = draw(random)
        if example.source not in seen and split_of(example) == split:
            seen.add(example.source)
            yield example
