"""`ExitPolicy`: a confidence measure, a threshold schedule, and the blocks at which a token may exit."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..errors import CompanionError, check_choice
from .contrast import ALPHA
from .measures import Measure, find_measure
from .read_outs import Reader, ReadOut
from .thresholds import AdaptiveThreshold, Threshold

DEFAULT_THRESHOLD = 0.9
FORMS = ("scaled", "calm")
PROPAGATIONS = ("copy", "parallel")


def _is_number(value) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


@dataclass(frozen=True)
class ExitPolicy:
    """When a token exits, and what happens to the blocks it skips.

    Attributes:
        measure: its name (see `mee_utils.exits.measures`), or a `Measure` of your own.
        threshold: the token exits at the first allowed block whose confidence exceeds it (default 0.9; a constant 1 is never
            exceeded); "adaptive" for FREE's, or a `Threshold` of your own.
        decay: temperature `tau` of a threshold that falls with the position (CALM: 4); None for a constant one.
        decay_form: "scaled" (all public code) or "calm" (CALM, Eq. 5).
        min_layer: first block at which a token may exit, 1 to L.
        exit_layers: the only blocks at which a token may exit (FREE: one), in place of `min_layer`.
        propagation: "copy" (CALM, MEE: keys and values of the skipped blocks come from the exit state) or "parallel" (FREE: they are
            made as at full depth, for all waiting tokens at once, when one goes deeper).
        pruning: how the vocabulary is pruned for measures that look at probabilities, "fixed", "decaying" or "adaptive"; None: not at all.
            See `mee_utils.exits.read_outs`.
        top_k, least_k, pruning_form: of the pruning.
        contrast: "weighted" or "jsd": confidence is taken from the contrast with an earlier block; see `mee_utils.exits.contrast`.
        contrast_alpha: of the contrast.
        contrast_token: whether the token is taken from the contrast too.

    Raises:
        CompanionError: unknown names, values out of range, options that contradict each other.
    """

    measure: str | Measure = "softmax_margin"
    threshold: float | str | Threshold | None = None
    decay: float | None = None
    decay_form: str = "scaled"
    min_layer: int = 1
    exit_layers: Sequence[int] | None = None
    propagation: str = "copy"
    pruning: str | None = None
    top_k: int | None = None
    least_k: int | None = None
    pruning_form: str = "recursion"
    contrast: str | None = None
    contrast_alpha: float = ALPHA
    contrast_token: bool = False
    rule: Measure = field(init=False, repr=False)
    schedule: Threshold = field(init=False, repr=False)
    read_out: ReadOut = field(init=False, repr=False)

    def __post_init__(self):
        object.__setattr__(self, "rule", find_measure(self.measure))
        options = (self.pruning, self.top_k, self.least_k, self.pruning_form, self.contrast, self.contrast_alpha, self.contrast_token)
        object.__setattr__(self, "read_out", ReadOut(*options))
        check_choice("propagation", self.propagation, PROPAGATIONS)
        check_choice("decay_form", self.decay_form, FORMS)
        self._check_layers()
        self._check_contradictions()
        object.__setattr__(self, "schedule", self._schedule())

    def _check_layers(self) -> None:
        whole = isinstance(self.min_layer, int) and not isinstance(self.min_layer, bool)
        if not whole or self.min_layer < 1:
            raise CompanionError(f"min_layer={self.min_layer}: blocks are counted from 1; give a whole number.")
        if self.exit_layers is None:
            return
        if not isinstance(self.exit_layers, Sequence | np.ndarray) or not all(isinstance(layer, int | np.integer) for layer in self.exit_layers):
            raise CompanionError(f"exit_layers={self.exit_layers!r}: give a list of blocks, as in exit_layers=[4].")
        given = tuple(int(layer) for layer in self.exit_layers)
        if not given or sorted(set(given)) != list(given) or given[0] < 1:
            raise CompanionError(f"exit_layers={list(given)}: give blocks from 1 on, ascending, at least one.")
        if self.min_layer != 1:
            raise CompanionError("exit_layers and min_layer contradict each other: give one of them.")
        if given[0] <= self.rule.lookback:
            raise CompanionError(f'"{self.rule.name}" looks {self.rule.lookback} blocks back and cannot decide at block {given[0]}.')
        object.__setattr__(self, "exit_layers", given)

    def _check_contradictions(self) -> None:
        if not self.rule.has_threshold and (self.threshold is not None or self.decay is not None):
            raise CompanionError(f'"{self.rule.name}" has no threshold: leave out threshold and decay.')
        if self.decay is None and self.decay_form != "scaled":
            raise CompanionError(f'decay_form="{self.decay_form}" needs decay=..., the temperature (CALM: 4).')
        if not self.read_out.plain:
            option = f'pruning="{self.pruning}"' if self.pruning else f'contrast="{self.contrast}"'
            if not self.rule.read_out or self.rule.looks_ahead:
                raise CompanionError(f'{option} needs a measure that looks at probabilities before it exits; "{self.rule.name}" does not.')
            if self.learns:
                raise CompanionError(f'{option} and threshold="adaptive" contradict each other: give a number.')
            if self.contrast and self.rule.lookback:
                raise CompanionError(f'contrast="{self.contrast}" and "{self.rule.name}", which looks back, contradict each other: use another measure.')
        if self.learns:
            if self.decay is not None:
                raise CompanionError('threshold="adaptive" and decay contradict each other: leave out decay.')
            if self.propagation != "parallel" or self.exit_layers is None or len(self.exit_layers) != 1:
                raise CompanionError('threshold="adaptive" is FREE\'s: it needs propagation="parallel" and one block in exit_layers.')
            if not self.rule.read_out or self.rule.lookback or self.rule.looks_ahead:
                raise CompanionError('threshold="adaptive" needs a probability: use measure="max_probability" or "softmax_margin".')

    @property
    def learns(self) -> bool:
        """Whether the threshold is set while decoding."""
        return self.threshold.learns if isinstance(self.threshold, Threshold) else isinstance(self.threshold, str) and self.threshold == "adaptive"

    def _schedule(self) -> Threshold:
        if isinstance(self.threshold, Threshold):
            return copy.deepcopy(self.threshold)
        if self.learns:
            return AdaptiveThreshold()
        level = DEFAULT_THRESHOLD if self.threshold is None else self.threshold
        low, high = self.rule.range
        if not _is_number(level) or not low <= level <= high:
            raise CompanionError(
                f"threshold={self.threshold!r} for {self.rule.name}: give a number from {low:g} to {high:g} (constant {high:g}: no exit)."
            )
        if self.decay is not None and not (_is_number(self.decay) and 0 < self.decay < float("inf")):
            raise CompanionError(f"decay={self.decay}: give a temperature above 0 (CALM: 4), or None for a constant threshold.")
        return Threshold(float(level), self.decay, self.decay_form) if self.rule.has_threshold else Threshold(0.5)

    def decision_layers(self, layers: int) -> tuple[int, ...]:
        """The blocks before the last at which the measure is asked, for a decoder of `layers` blocks (at the last one all exit)."""
        last = self.exit_layers[-1] if self.exit_layers else self.min_layer
        if last > layers:
            raise CompanionError(f"The policy names block {last}, but the decoder has {layers}: lower min_layer or exit_layers.")
        if self.exit_layers == (layers,):
            raise CompanionError(f"exit_layers={list(self.exit_layers)} leaves nothing to decide: the decoder has {layers} blocks.")
        before = max(self.rule.lookback, 1 if self.contrast else 0)  # a contrast needs an earlier block
        allowed = self.exit_layers or range(max(self.min_layer, 1 + before), layers)
        return tuple(layer for layer in allowed if before < layer < layers)

    def watched_from(self, layers: int) -> int:
        """The first block that the measure looks at; beyond the last if there is no decision at all."""
        decisions = self.decision_layers(layers)
        if not decisions:
            return layers + 1
        return 1 if self.rule.from_first else self.read_out.looks_back_to(decisions[0] - self.rule.lookback)

    def reader(self, layers: int, vocabulary: int) -> Reader | None:
        """What reads out, where that is not simply all ids at every deciding block."""
        decisions = self.decision_layers(layers)
        if self.read_out.plain or not decisions:
            return None
        return Reader(self.read_out, decisions, decisions[0], layers, vocabulary)

    def decisions(self, exit_layers: np.ndarray, layers: int) -> np.ndarray:
        """How many blocks the measure was computed at for tokens that left at `exit_layers`; none for the oracle, as if it knew."""
        if self.rule.looks_ahead:
            return np.zeros(len(exit_layers), dtype=np.int64)
        asked = np.array(self.decision_layers(layers), dtype=np.int64)
        if self.rule.from_first and len(asked):
            return np.minimum(exit_layers, asked[-1])
        return (asked[None, :] <= np.asarray(exit_layers)[:, None]).sum(1)

    def read_outs(self, exit_layers: np.ndarray, layers: int) -> np.ndarray:
        """How many read-outs tokens took: one for the token itself, and those of a measure that looks at probabilities.

        A token that leaves at a decision is the top-1 of that very read-out. An adaptive threshold reads out a waiting token once
        more when it has been through all blocks, to learn whether it was right. Pruned and contrasted read-outs are counted while decoding.
        """
        exits = np.asarray(exit_layers)
        if not self.rule.read_out or self.rule.looks_ahead:
            return np.ones(len(exits), dtype=np.int64)
        looked = {layer - back for layer in self.decision_layers(layers) for back in range(self.rule.lookback + 1)}
        at = np.array(sorted(looked), dtype=np.int64)
        reached = (at[None, :] <= exits[:, None]).sum(1) + (exits == layers)
        if self.schedule.learns:
            reached += (exits < layers) & (np.arange(len(exits)) < np.flatnonzero(exits == layers).max(initial=-1))
        return reached

    def fresh(self) -> ExitPolicy:
        """A policy with the same settings and nothing learned: one for each run."""
        return replace(self)
