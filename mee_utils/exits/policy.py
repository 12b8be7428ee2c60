"""`ExitPolicy`: a confidence measure, a threshold schedule, and the layers at which a token may exit.

A policy knows no model. `bind` fits it to a decoder's depth and vocabulary, once, and checks that it fits.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import ClassVar

import numpy as np

from ..common.errors import CompanionError, check_choice
from ..models.costs import DecoderSizes, generation_flops
from .contrast import ALPHA
from .measures import Measure, find_measure
from .readout import Readout, ReadoutOptions
from .thresholds import FORMS, AdaptiveThreshold, Threshold

DEFAULT_THRESHOLD = 0.9
PROPAGATIONS = ("copy", "parallel")


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


@dataclass(frozen=True, repr=False)
class ExitPolicy:
    """When a token exits, and what happens to the layers it skips.

    Attributes:
        measure: its name (see `mee_utils.exits.measures`), or a `Measure` of your own.
        threshold: the token exits at the first allowed layer whose confidence exceeds it (default 0.9;
            nothing exceeds a constant 1); "adaptive" for FREE's, or a `Threshold` of your own.
        decay: temperature `tau` of a threshold that falls with the position (CALM: 4); None: it is constant.
        decay_form: "scaled" (all public code) or "calm" (CALM, Eq. 5).
        min_layer: first layer at which a token may exit, 1 to L; None: the model's `min_exit_layer` (for the
            oracle and given exits: 1).
        exit_layers: the only layers at which a token may exit (FREE: one), in place of `min_layer`.
        propagation: where keys and values of skipped layers come from, "copy" (CALM, MEE: the exit state) or
            "parallel" (FREE: waiting tokens run through a layer together once a later one needs it).
        pruning: "fixed", "decaying" or "adaptive" vocabulary pruning; see `mee_utils.exits.readout`.
        top_k, least_k, pruning_form: of the pruning.
        contrast: "weighted" or "jsd": confidence comes from a contrast; see `mee_utils.exits.contrast`.
        contrast_alpha: of the contrast.
        contrast_token: whether the token comes from the contrast too.

    Raises:
        CompanionError: unknown names, values out of range, options that contradict each other.
    """

    reads: ClassVar[type[Readout]] = Readout

    measure: str | Measure = "softmax_margin"
    threshold: float | str | Threshold | None = None
    decay: float | None = None
    decay_form: str = "scaled"
    min_layer: int | None = None
    exit_layers: Sequence[int] | None = None
    propagation: str = "copy"
    pruning: str | None = None
    top_k: int | None = None
    least_k: int | None = None
    pruning_form: str = "recursion"
    contrast: str | None = None
    contrast_alpha: float = ALPHA
    contrast_token: bool = False
    schedule: Threshold = field(init=False)
    readout: ReadoutOptions = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "measure", find_measure(self.measure))
        pruning = (self.pruning, self.top_k, self.least_k, self.pruning_form)
        contrast = (self.contrast, self.contrast_alpha, self.contrast_token)
        object.__setattr__(self, "readout", ReadoutOptions(*pruning, *contrast))
        check_choice("propagation", self.propagation, PROPAGATIONS)
        check_choice("decay_form", self.decay_form, FORMS)
        self._check_contradictions()
        self._check_layers()
        object.__setattr__(self, "schedule", self._schedule())

    def _check_layers(self) -> None:
        if self.min_layer is not None and (not _is(self.min_layer, Integral) or self.min_layer < 1):
            raise CompanionError(
                f"min_layer={self.min_layer!r}: layers are counted from 1; give a whole number."
            )
        if self.exit_layers is None:
            if self.min_layer is None and self.measure.name == "static":
                raise CompanionError('"static" needs min_layer=..., the layer at which every token exits.')
            return
        given = self.exit_layers
        if not isinstance(given, Sequence | np.ndarray) or not all(_is(layer, Integral) for layer in given):
            raise CompanionError(f"exit_layers={given!r}: give a list of layers, as in exit_layers=[4].")
        layers = tuple(int(layer) for layer in given)
        if not layers or sorted(set(layers)) != list(layers) or layers[0] < 1:
            raise CompanionError(
                f"exit_layers={list(layers)}: give layers from 1 on, ascending, at least one."
            )
        if self.min_layer is not None:
            raise CompanionError("exit_layers and min_layer contradict each other: give one of them.")
        if layers[0] <= self.measure.lookback:
            back = f'"{self.measure.name}" looks {self.measure.lookback} layers back'
            raise CompanionError(f"{back} and cannot decide at layer {layers[0]}.")
        object.__setattr__(self, "exit_layers", layers)

    def _check_contradictions(self) -> None:
        measure, adaptive, layers = self.measure, self._adaptive, self.exit_layers
        name, reduced = measure.name, f'contrast="{self.contrast}"'
        reduced = f'pruning="{self.pruning}"' if self.pruning else reduced
        probabilities, adapts = measure.readout and not measure.looks_ahead, 'threshold="adaptive"'
        if not measure.has_threshold and (self.threshold is not None or self.decay is not None):
            wrong = f'"{name}" has no threshold: leave out threshold and decay.'
        elif self.decay is None and self.decay_form != "scaled":
            wrong = f'decay_form="{self.decay_form}" needs decay=..., the temperature (CALM: 4).'
        elif not self.readout.plain and not probabilities:
            wrong = f'{reduced} needs a measure that looks at probabilities before it exits, not "{name}".'
        elif not self.readout.plain and adaptive:
            wrong = f"{reduced} and {adapts} contradict each other: give a number."
        elif self.contrast and measure.lookback:
            wrong = f'{reduced} and "{name}", which looks back, contradict each other: use another measure.'
        elif adaptive and self.decay is not None:
            wrong = f"{adapts} and decay contradict each other: leave out decay."
        elif adaptive and (self.propagation != "parallel" or layers is None or np.size(layers) != 1):
            wrong = f'{adapts} (FREE) needs propagation="parallel" and one layer in exit_layers.'
        elif adaptive and (not probabilities or measure.lookback):
            wrong = f'{adapts} needs a probability: "max_probability" or "softmax_margin".'
        else:
            return
        raise CompanionError(wrong)

    @property
    def _adaptive(self) -> bool:
        if isinstance(self.threshold, Threshold):
            return self.threshold.learns
        return isinstance(self.threshold, str) and self.threshold == "adaptive"

    def _schedule(self) -> Threshold:
        if isinstance(self.threshold, Threshold):
            return copy.deepcopy(self.threshold)
        if self._adaptive:
            return AdaptiveThreshold()
        level = DEFAULT_THRESHOLD if self.threshold is None else self.threshold
        low, high = self.measure.range
        if not _is(level, Real) or not low <= level <= high:
            allowed = f"give a number from {low:g} to {high:g} (constant {high:g}: no exit)."
            raise CompanionError(f"threshold={self.threshold!r} for {self.measure.name}: {allowed}")
        if self.decay is not None and not (_is(self.decay, Real) and 0 < self.decay < float("inf")):
            allowed = "give a temperature above 0 (CALM: 4), or None for a constant threshold."
            raise CompanionError(f"decay={self.decay!r}: {allowed}")
        if not self.measure.has_threshold:
            return Threshold(0.5)
        return Threshold(float(level), self.decay, self.decay_form)

    def bind(self, layers: int, vocabulary: int, min_exit_layer: int | None = None) -> BoundPolicy:
        """Fits the policy to a decoder.

        Args:
            layers: depth L of the decoder.
            vocabulary: V, rows of its LM head.
            min_exit_layer: of the model; for policies that name no layer.

        Raises:
            CompanionError: a layer that the decoder does not have, none named at all, or nothing to decide.
        """
        return BoundPolicy(self, layers, vocabulary, min_exit_layer)

    def at_threshold(self, level: float) -> ExitPolicy:
        """This policy at another level of its threshold; the rest stays, the decay of a `Threshold` too."""
        if self.schedule.learns or not self.measure.has_threshold:
            raise CompanionError(
                f'"{self.measure.name}" with threshold={self.threshold!r} has no threshold to choose: '
                "give a measure with one."
            )
        if not isinstance(self.threshold, Threshold):
            return replace(self, threshold=level)
        schedule = copy.deepcopy(self.threshold)
        schedule.level = float(level)
        return replace(self, threshold=schedule)

    def __repr__(self) -> str:
        given = [f'"{self.measure.name}"']
        for option in fields(self)[1:]:
            value = getattr(self, option.name) if option.init else None
            if option.init and value != option.default:
                given.append(f"{option.name}={value!r}")
        return f"{type(self).__name__}({', '.join(given)})"


class BoundPolicy:
    """A policy bound to a decoder: what depends on its depth and vocabulary. From `ExitPolicy.bind`.

    Attributes:
        policy, measure: what was bound.
        schedule: the threshold, a copy, so that one that learns begins anew.
        layers: depth L.
        decision_layers: the layers at which the measure decides; at layer L every token exits.
        first_layer: the first layer that the measure looks at; L + 1 if nothing is decided.
        readout: how layers are read out.
        decisions: `[layer]`, 0 to L, how often the measure is computed until an exit there (oracle: 0).
    """

    def __init__(self, policy: ExitPolicy, layers: int, vocabulary: int, min_exit_layer: int | None = None):
        self.policy, self.measure, self.layers = policy, policy.measure, layers
        self.schedule = copy.deepcopy(policy.schedule)
        self.decision_layers = decisions = self._decision_layers(min_exit_layer)
        self.readout = policy.reads(policy.readout, decisions, layers, vocabulary)
        self.first_layer = layers + 1
        if decisions:
            first = decisions[0] - self.measure.lookback
            self.first_layer = 1 if self.measure.from_first else policy.readout.looks_back_to(first)
        reached = np.arange(layers + 1)
        self.decisions = np.searchsorted(decisions, reached, side="right")
        if self.measure.from_first and decisions:
            self.decisions = np.minimum(reached, decisions[-1])
        if self.measure.looks_ahead:
            self.decisions = np.zeros_like(reached)

    def _decision_layers(self, min_exit_layer: int | None) -> tuple[int, ...]:
        given, layers = self.policy.exit_layers, self.layers
        first = self.policy.min_layer or self.measure.min_layer or min_exit_layer
        if given is None and first is None:
            raise CompanionError(f"{self.policy!r} names no layer and no model is known: give min_layer=...")
        last = given[-1] if given else first
        if last > layers:
            named = f"The policy names layer {last}, but the decoder has {layers}"
            raise CompanionError(f"{named}: lower min_layer or exit_layers.")
        if given == (layers,):
            raise CompanionError(
                f"exit_layers={list(given)} leaves nothing to decide: the decoder has {layers} layers."
            )
        contrasted = 1 if self.policy.contrast else 0  # it needs an earlier layer
        before = max(self.measure.lookback, contrasted)
        allowed = given or range(first, layers)
        return tuple(layer for layer in allowed if before < layer < layers)

    def flops(
        self,
        sizes: DecoderSizes,
        exit_layers: Sequence[np.ndarray],
        readout_rows: Sequence[np.ndarray],
        source: Sequence[int],
    ) -> dict[str, np.ndarray]:
        """FLOPs of outputs by part, each `[output]`; see `mee_utils.models.costs`.

        Args:
            sizes: of the decoder.
            exit_layers: for each output `[token]`.
            readout_rows: for each output `[token]`, rows of `W` that were multiplied.
            source: tokens of each input.
        """
        parallel, per_decision = self.policy.propagation == "parallel", self.measure.flops(sizes.d_model)
        rows = [
            generation_flops(sizes, exits, length, read, self.decisions[exits], per_decision, parallel)
            for exits, read, length in zip(exit_layers, readout_rows, source, strict=True)
        ]
        return {part: np.array([row[part] for row in rows], dtype=np.int64) for part in rows[0]}
