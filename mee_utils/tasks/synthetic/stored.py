"""Synthetic splits kept on disk: of fifty drawn examples one is for validation and one for test.

A split is kept in the build folder as JSON lines, below a digest of the code and the word lists it was drawn
with, so that no change of them meets old examples. Whatever cannot be read there is drawn again, and whatever
cannot be written is drawn each time.
"""

import hashlib
import json
import sys
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path

from ...common.errors import MeeError
from ...common.files import build_root, complete_file
from . import generator
from .words import Span, SyntheticExample

MOST = 50_000  # examples; the splits of long trainings are drawn once


@lru_cache(maxsize=16)
def first_examples(task: str, split: str, seed: int, limit: int) -> list[SyntheticExample]:
    """The first `limit` examples of a split, as `generator.examples` yields them; read from disk if there."""
    path = build_root() / "synthetic" / code_digest() / f"{task}-{split}-{seed}.jsonl"
    examples = _read(path, limit)
    if examples is None:
        examples = list(islice(generator.examples(task, split, seed), limit))
        if limit <= MOST:
            _write(path, examples)
    return examples


@lru_cache(maxsize=1)
def code_digest() -> str:
    """What synthetic examples depend on: this package's code and word lists, and Python's random numbers."""
    digest = hashlib.sha256(f"{sys.version_info.major}.{sys.version_info.minor}".encode())
    folder = Path(__file__).parent
    for path in sorted([*folder.glob("*.py"), *folder.glob("*.tsv")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _read(path: Path, limit: int) -> list[SyntheticExample] | None:
    """The first examples in a file; None if it is missing, broken or shorter."""
    try:
        with path.open(encoding="utf-8") as file:
            examples = [_example(json.loads(line)) for line in islice(file, limit)]
    except (OSError, ValueError, TypeError):
        return None
    return examples if len(examples) == limit else None


def _example(fields: list) -> SyntheticExample:
    columns, source, target, spans, form = fields
    return SyntheticExample(columns, source, target, tuple(Span(*span) for span in spans), form)


def _write(path: Path, examples: list[SyntheticExample]) -> None:
    with (
        suppress(MeeError, OSError),
        complete_file(path) as partial,
        partial.open("w", encoding="utf-8") as file,
    ):
        for example in examples:
            file.write(json.dumps(example, ensure_ascii=False) + "\n")
