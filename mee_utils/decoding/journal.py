"""The journal of a long run: every finished batch, one line each, so that an interruption loses at most the batch in progress."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import CompanionError

FORMAT = "mee_utils.generation.1"


def run_key(model, texts: Sequence[str], policy, max_new_tokens: int, batch_size: int) -> str:
    """What a journal belongs to: weights, inputs, policy and lengths."""
    weights, settings = [model.fingerprint, str(next(model.network.parameters()).dtype)], None
    if policy is not None:
        schedule = [type(policy.schedule).__name__, repr(sorted(vars(policy.schedule).items()))]
        settings = [policy.rule.key(), schedule, policy.min_layer, policy.exit_layers, policy.propagation, repr(policy.read_out)]
    parts = json.dumps([FORMAT, weights, list(texts), settings, max_new_tokens, batch_size])
    return hashlib.sha256(parts.encode()).hexdigest()


class Journal:
    """Finished batches of one run, in a file of JSON lines.

    Args:
        path: the file; it is made if it is not there.
        key: what it must belong to, from `run_key`.

    Raises:
        CompanionError: the file belongs to another run, or cannot be written.
    """

    def __init__(self, path: str | Path, key: str):
        self.path = Path(path)
        self.batches: dict[tuple[int, ...], tuple[list, float]] = {}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
            if not text:
                self.path.write_text(json.dumps({"format": FORMAT, "key": key}) + "\n", encoding="utf-8")
                return
        except (OSError, UnicodeDecodeError) as error:
            raise CompanionError(f"The journal {path} cannot be used ({error}): choose another file.") from error
        self._read(text.split("\n"), key)

    def _read(self, lines: list[str], key: str) -> None:
        try:
            header = json.loads(lines[0])
            found = header["key"] if header["format"] == FORMAT else None
        except (json.JSONDecodeError, KeyError, TypeError):
            found = None
        if found != key:
            raise CompanionError(f"The journal {self.path} belongs to another run: delete it, or choose another file.")
        whole = [line for line in lines[1:-1] if line]  # what follows the last line break is a batch that was being written
        for number, line in enumerate(whole, start=2):
            try:
                entry = json.loads(line)
                rows = [
                    (ids, np.array(layers, np.int32), np.array([np.nan if c is None else c for c in sure], np.float32), np.array(products, np.int64))
                    for ids, layers, sure, products in entry["rows"]
                ]
                self.batches[tuple(entry["inputs"])] = (rows, entry["seconds"])
            except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
                raise CompanionError(f"Line {number} of the journal {self.path} is damaged: delete that line, or the file.") from error
        if lines[-1]:
            partial = self.path.with_name(f".{self.path.name}.partial")
            partial.write_text("\n".join([lines[0], *whole]) + "\n", encoding="utf-8")
            os.replace(partial, self.path)

    def find(self, inputs: Sequence[int]) -> tuple[list, float] | None:
        """Rows and seconds of a batch that is finished already."""
        return self.batches.get(tuple(inputs))

    def write(self, inputs: Sequence[int], rows: Sequence[tuple], seconds: float) -> None:
        """Adds a finished batch."""
        stored = [
            (ids, layers.tolist(), [None if np.isnan(c) else float(c) for c in sure], products.tolist())
            for ids, layers, sure, products in rows
        ]
        line = json.dumps({"inputs": list(inputs), "rows": stored, "seconds": seconds})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
