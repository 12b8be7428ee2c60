"""Confidence measures: what is known of a token at a block -> one number a row.

A measure is a class with one method, `confidence(now)`. `now` is the token at one block, for several rows at once; it
offers, each made only when it is asked for:

| attribute | per row |
|---|---|
| `layer`, `layers` | this block and the number of blocks (one number for all rows) |
| `top1_probability`, `top1_id`, `margin`, `entropy` | of the read-out of this block |
| `similarity` | cosine of this block's normalised state with that of the block before (the embedding before block 1) |
| `state` | the normalised state `n(h)`, `[rows, d_model]` |
| `sequence`, `position` | index of the input, and how many tokens it has emitted |
| `earlier(k)` | the same rows k blocks before |
| `recall(key, make)` | what a measure keeps with this block: `make(now)`, a tuple of tensors `[rows, ...]`, made once |

The attributes are tensors while decoding and numpy arrays when a trace is replayed; a measure that keeps to operators works on
both. To add one: write its class here, name it in `MEASURES`, and `ExitPolicy(measure="...")`, `generate`, `replay`, the FLOPs
count and the benchmark know it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from ..errors import CompanionError, check_choice


class Measure:
    """What every measure has; a new one overrides `confidence` and what of the rest differs.

    Attributes:
        name: as in `ExitPolicy(measure=...)`.
        range: the values that thresholds may take.
        read_out: whether it looks at probabilities, that is, multiplies by the vocabulary.
        lookback: how many earlier blocks it looks at.
        from_first: whether it must have seen every block from the first on (recurrent measures).
        looks_ahead: whether it needs the blocks after this one too (the oracle): decoding then runs all of them.
        has_threshold: whether a threshold means anything to it.
    """

    name = ""
    range = (0.0, 1.0)
    read_out = False
    lookback = 0
    from_first = False
    looks_ahead = False
    has_threshold = True

    def confidence(self, now):
        """One number per row, `[rows]`; the token exits if it exceeds the threshold."""
        raise NotImplementedError

    def flops(self, d_model: int) -> int:
        """Floating-point operations of one decision besides the read-out; products of matrices only."""
        return 0

    def key(self) -> str:
        """What tells this measure from another: name and settings."""
        parts = [(name, _bytes(name, value)) for name, value in sorted(vars(self).items())]
        return f"{self.name} {hashlib.sha256(repr(parts).encode()).hexdigest()}"


def _bytes(name: str, value) -> bytes:
    """A setting of a measure as bytes, the same for equal settings."""
    if isinstance(value, str | int | float | bool | type(None) | list | tuple):
        return repr(value).encode()
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        return repr((array.dtype, array.shape)).encode() + array.tobytes()
    raise CompanionError(f"A journal cannot tell whether {name} of this measure has changed: give the measure a method key().")


class SoftmaxMargin(Measure):
    """`p(1) - p(2)`, the two largest probabilities (CALM)."""

    name, read_out = "softmax_margin", True

    def confidence(self, now):
        """The margin."""
        return now.margin


class MaxProbability(Measure):
    """`p(1)`, the largest probability (the default of CALM's code)."""

    name, read_out = "max_probability", True

    def confidence(self, now):
        """The largest probability."""
        return now.top1_probability


class HiddenSimilarity(Measure):
    """`cos(n(h^l), n(h^(l-1)))`: the state has stopped changing (CALM). Needs no read-out."""

    name, range = "hidden_similarity", (-1.0, 1.0)

    def confidence(self, now):
        """The cosine."""
        return now.similarity


class RisingTop1(Measure):
    """The top-1 probability rose strictly over the last three blocks (MEE, section 5); the threshold is set on its last value.

    Confidence is that probability where it rose, else 0, so that a threshold of 0.9 gives the rule as published.
    """

    name, read_out, lookback = "rising_top1", True, 2

    def confidence(self, now):
        """The top-1 probability if it rose twice, else 0."""
        third, second, first = now.top1_probability, now.earlier(1).top1_probability, now.earlier(2).top1_probability
        return third * ((third > second) & (second > first))


class Static(Measure):
    """Exits at one fixed block, the policy's `min_layer`, whatever the token."""

    name, has_threshold = "static", False

    def confidence(self, now):
        """Always sure."""
        return np.ones(len(now.sequence))


class Oracle(Measure):
    """Exits at the first block from which the top-1 prediction equals the last block's for good: the upper bound."""

    name, looks_ahead, has_threshold, read_out = "oracle", True, False, True

    def confidence(self, now):
        """1 where the prediction stays what it is, else 0; `now.settled` knows the blocks to come."""
        return now.settled


class ForcedExits(Measure):
    """Exits that are given beforehand: for tests, for benchmarks, and to decode again as another run did.

    Args:
        layers: for each input, the exit block of each token; a token beyond the end of its list runs all blocks.
    """

    name, has_threshold = "forced", False

    def __init__(self, layers: Sequence[Sequence[int]]):
        try:
            rows = [np.asarray(row) for row in layers]
            right = all(row.ndim == 1 and (not row.size or (row.dtype.kind in "iu" and row.min() >= 1)) for row in rows) and rows
        except (TypeError, ValueError):
            right = False
        if not right:
            raise CompanionError("ForcedExits takes one list of blocks (whole numbers from 1 on) for each input.")
        self.table = np.full((len(rows), 1 + max(map(len, rows), default=0)), np.iinfo(np.int64).max)
        for row, given in zip(self.table, rows, strict=True):
            row[: len(given)] = given

    def confidence(self, now):
        """1 from the block of the list on."""
        if now.sequence.max() >= len(self.table):
            raise CompanionError(f"ForcedExits has lists for {len(self.table)} inputs, but there are more: give one for each.")
        return (self.table[now.sequence, np.minimum(now.position, self.table.shape[1] - 1)] <= now.layer).astype(np.float64)

    def key(self) -> str:
        """The whole list."""
        return f"{self.name} {self.table.tolist()}"


MEASURES: dict[str, type[Measure]] = {
    measure.name: measure for measure in (SoftmaxMargin, MaxProbability, HiddenSimilarity, RisingTop1, Static, Oracle)
}
TRAINED = ("linear_classifier", "hidden_classifier", "low_rank_classifier", "three_hidden_classifier", "lstm_classifier")


def find_measure(measure: str | Measure) -> Measure:
    """A measure by name, or the object given. Raises `CompanionError` for an unknown name, or one that needs training."""
    if isinstance(measure, Measure):
        return measure
    if measure in TRAINED:
        raise CompanionError(f'"{measure}" needs a trained classifier: give the classifier itself as the measure.')
    check_choice("measure", measure, [*MEASURES, *TRAINED])
    return MEASURES[measure]()
