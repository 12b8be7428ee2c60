"""`ExitPolicy`: a confidence measure, a threshold schedule, and the layers at which a token may exit."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from math import isfinite
from numbers import Integral, Real
from typing import ClassVar

import numpy as np

from ..common.errors import MeeError, check_choice
from ..common.html import table
from ..models.costs import DecoderSizes, generation_flops
from .contrast import ALPHA, check_alpha
from .measures import Measure, find_measure
from .readout import Readout
from .thresholds import AdaptiveThreshold, BanditThreshold, Threshold

MAX_DRAFT = 8  # the longest that is planned
ONLINE = {"adaptive": AdaptiveThreshold, "bandit": BanditThreshold}
CHOICES = {"propagation": ("copy", "parallel", "verify")}
CHOICES |= {"pruning": ("fixed", "decaying", "adaptive"), "pruning_form": ("recursion", "closed")}
CHOICES["contrast"] = ("weighted", "jsd")
SIZES = {"top_k": ("fixed", "decaying"), "least_k": ("decaying",)}  # the prunings that need them


@dataclass(frozen=True, repr=False)
class ExitPolicy:
    """When a token exits, and what happens to the layers it skips.

    Attributes:
        measure: its name (see `mee_utils.exits.measures`), or a `Measure` of your own.
        threshold: the token exits at the first allowed layer whose confidence exceeds it (default 0.9;
            nothing exceeds a constant 1); of "patience" and "vote" a number of exits (default 6); "adaptive"
            for FREE's, "bandit" for UCBEE's and CeeBERT's, or a `Threshold` of your own.
        decay: temperature `tau` of a threshold that falls with the position (CALM: 4); None: it is constant.
        decay_form: "scaled" (all public code) or "calm" (CALM, Eq. 5).
        min_layer: first layer at which a token may exit, from 1 on; by default the model's `min_exit_layer`.
        exit_layers: the only layers at which a token may exit (FREE: one), in place of `min_layer`.
        propagation: where keys and values of skipped layers come from, "copy" (CALM, MEE: the exit state),
            "parallel" (FREE: waiting tokens run through a layer together once a later one needs it) or
            "verify" (exits are drafts that the last layer judges: the output is that of full depth).
        max_draft: how many tokens may wait for the last layer ("verify"); by default "auto": planned, with
            the first layer and a threshold that is not given (see `mee_utils.decoding.planning`).
        pruning: "fixed", "decaying" or "adaptive" vocabulary pruning; see `mee_utils.exits.readout`.
        top_k, least_k: ids that are kept at first (fixed, decaying) and at least (decaying).
        pruning_form: of decaying pruning, "recursion" (the paper) or "closed" (its code).
        contrast: "weighted" or "jsd": confidence comes from a contrast; see `mee_utils.exits.contrast`.
        contrast_alpha, contrast_token: the alpha, and whether the token comes from the contrast too.

    Raises `MeeError` for unknown names, values out of range and options that contradict each other.
    """

    reads: ClassVar[type[Readout]] = Readout

    measure: str | Measure = "softmax_margin"
    threshold: float | str | Threshold | None = None
    decay: float | None = None
    decay_form: str = "scaled"
    min_layer: int | None = None
    exit_layers: Sequence[int] | None = None
    propagation: str = "copy"
    max_draft: int | str = "auto"
    pruning: str | None = None
    top_k: int | None = None
    least_k: int | None = None
    pruning_form: str = "recursion"
    contrast: str | None = None
    contrast_alpha: float = ALPHA
    contrast_token: bool = False
    schedule: Threshold = field(init=False, compare=False)  # made from what is compared

    def __post_init__(self):
        object.__setattr__(self, "measure", find_measure(self.measure))
        for name, choices in CHOICES.items():
            if getattr(self, name) != getattr(type(self), name):
                check_choice(name, getattr(self, name), choices)
        check_alpha(self.contrast_alpha)
        object.__setattr__(self, "schedule", self._schedule())
        for mistake in chain(self._wrong_readout(), self._contradictions(), self._wrong_layers()):
            raise MeeError(mistake)
        if self.exit_layers is not None:
            object.__setattr__(self, "exit_layers", tuple(map(int, self.exit_layers)))

    def __hash__(self) -> int:
        # measures and thresholds of one's own may be unhashable: a name and a level stand for them
        level = self.schedule.level
        return hash((self.measure.name, level, self.min_layer, self.exit_layers, self.propagation))

    def _schedule(self) -> Threshold:
        given = self.threshold
        if isinstance(given, Threshold):
            if type(given) is Threshold:
                self._check_level(given.level)
            return copy.deepcopy(given)
        if isinstance(given, str) and given in ONLINE:
            return ONLINE[given]()
        if isinstance(given, type) and issubclass(given, Threshold):
            raise MeeError(f"threshold={given.__name__} is a class: give an instance, {given.__name__}(...).")
        level = self.measure.default_threshold if given is None else given
        self._check_level(level)
        return Threshold(float(level) if self.measure.has_threshold else 0.5, self.decay, self.decay_form)

    def _check_level(self, level: object) -> None:
        """Refuses a level that no confidence of the measure can be compared with."""
        low, high = self.measure.range
        name = self.measure.name
        if not _is(level, Real) or not low <= level <= high:
            allowed = f"give a number from {low:g} to {high:g} (constant {high:g}: no exit)."
            raise MeeError(f"threshold={level!r} for {name}: {allowed}")
        if self.measure.whole and isfinite(level) and level % 1 > 0:
            raise MeeError(f"threshold={level!r} for {name}: give a whole number.")

    def _wrong_layers(self) -> Iterator[str]:
        first, given, measure = self.min_layer, self.exit_layers, self.measure
        if first is not None and (not _is(first, Integral) or first < 1):
            yield f"min_layer={first!r}: layers are counted from 1; give a whole number."
        if given is None:
            if first is None and measure.name == "static":
                yield '"static" needs min_layer=..., the layer at which every token exits.'
            return
        if not isinstance(given, Sequence | np.ndarray) or not all(_is(layer, Integral) for layer in given):
            yield f"exit_layers={given!r}: give a list of layers, as in exit_layers=[4]."
        if not len(given) or sorted(set(given)) != list(given) or given[0] < 1:
            yield f"exit_layers={list(given)}: give layers from 1 on, ascending, at least one."
        if first is not None:
            yield "exit_layers and min_layer contradict each other: give one of them."
        if given[0] <= measure.lookback:
            yield f'"{measure.name}" looks {measure.lookback} layers back, too far for layer {given[0]}.'

    def _wrong_readout(self) -> Iterator[str]:
        for name, kinds in SIZES.items():
            size, needed = getattr(self, name), " or ".join(map(repr, kinds))
            if self.pruning in kinds and (not _is(size, Integral) or size < 1):
                yield f'{name}={size!r}: pruning="{self.pruning}" needs a whole number of ids from 1 on.'
            if self.pruning not in kinds and size is not None:
                yield f"{name}={size!r} means nothing without pruning={needed}: leave it out."
        if self.pruning == "decaying" and self.least_k > self.top_k:
            yield f"least_k={self.least_k} is more than top_k={self.top_k}: ids can only become fewer."
        if self.pruning != "decaying" and self.pruning_form != "recursion":
            yield f'pruning_form="{self.pruning_form}" belongs to pruning="decaying": leave it out.'
        if self.contrast is None and (self.contrast_token or self.contrast_alpha != ALPHA):
            yield 'contrast_token and contrast_alpha need contrast="weighted" or "jsd".'

    def _contradictions(self) -> Iterator[str]:
        measure, learns, layers, most = self.measure, self.schedule.learns, self.exit_layers, self.max_draft
        reduced = f'pruning="{self.pruning}"' if self.pruning else f'contrast="{self.contrast}"'
        given = f'threshold="{self.threshold}"' if isinstance(self.threshold, str) else "this threshold"
        probability = measure.readout and not measure.looks_ahead
        if not measure.has_threshold and (self.threshold is not None or self.decay is not None):
            yield f'"{measure.name}" has no threshold: leave out threshold and decay.'
        if self.decay is None and self.decay_form != "scaled":
            yield f'decay_form="{self.decay_form}" needs decay=..., the temperature (CALM: 4).'
        if not self.plain and not probability:
            needs = "needs a measure that looks at probabilities before it exits"
            yield f'{reduced} {needs}, not "{measure.name}".'
        if not self.plain and learns:
            yield f'{reduced} and threshold="adaptive" contradict each other: give a number.'
        if self.contrast and (measure.lookback or measure.lens or measure.ensemble):
            does = "looks back" if measure.lookback else "reads layers in its own way"
            looks = f'contrast="{self.contrast}" and "{measure.name}", which {does},'
            yield f"{looks} contradict each other: use another measure."
        if (self.schedule.online or isinstance(self.threshold, Threshold)) and self.decay is not None:
            yield f"{given} and decay contradict each other: leave out decay."
        if learns and (self.propagation != "parallel" or layers is None or np.size(layers) != 1):
            yield 'threshold="adaptive" (FREE) needs propagation="parallel" and one layer in exit_layers.'
        if learns and (not probability or measure.lookback or measure.counts_exits):
            yield 'threshold="adaptive" needs a probability: "max_probability" or "softmax_margin".'
        probabilities = (self.schedule.online, given), (self.schedule.decay, "decay")
        for wanted, option in (*probabilities, (self.pruning == "adaptive", reduced)):
            if wanted and measure.range[1] > 1:
                yield f'{option} needs a confidence of at most 1, not that of "{measure.name}": leave it out.'
        if most != "auto" and (not _is(most, Integral) or most < 1):
            yield f'max_draft={most!r}: give a whole number of tokens from 1 on, or "auto".'
        if most != "auto" and self.propagation != "verify":
            yield f'max_draft={most} means nothing without propagation="verify": leave it out.'
        if self.propagation == "verify" and measure.looks_ahead:
            ahead = f'"{measure.name}" runs all layers to decide and cannot draft'
            yield f'{ahead}: leave out propagation="verify" (replay_drafts foretells its drafts).'

    @property
    def plain(self) -> bool:
        """Whether all ids are read out and nothing is contrasted."""
        return self.pruning is None and self.contrast is None

    def bind(self, layers: int, vocabulary: int, min_exit_layer: int | None = None) -> BoundPolicy:
        """Fits the policy, which knows no model, to a decoder of L layers and V rows of its LM head.

        `min_exit_layer`, the model's, is for policies that name no layer. Raises `MeeError` for a layer
        that the decoder does not have, if none is named at all, or if nothing is left to decide.
        """
        return BoundPolicy(self, layers, vocabulary, min_exit_layer)

    def at_threshold(self, level: float) -> ExitPolicy:
        """This policy at another level of its threshold; the rest stays, the decay of a `Threshold` too."""
        if self.schedule.online or not self.measure.has_threshold:
            none = f'"{self.measure.name}" with threshold={self.threshold!r} has no threshold to choose'
            raise MeeError(f"{none}: give a measure with one.")
        if not isinstance(self.threshold, Threshold):
            return replace(self, threshold=level)
        return replace(self, threshold=self.threshold.with_level(level))

    def __repr__(self) -> str:
        options = [option.name for option in fields(self)[1:] if option.init]
        given = [name for name in options if getattr(self, name) != getattr(type(self), name)]
        shown = [f'"{self.measure.name}"', *(f"{name}={getattr(self, name)!r}" for name in given)]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _repr_html_(self) -> str:
        first = f"layer {self.min_layer}" if self.min_layer else "the model's first safe layer"
        where = f"at the layers {list(self.exit_layers)}" if self.exit_layers else f"from {first} on"
        rows = [("exits", where), ("skipped layers", self.propagation)]
        if self.measure.has_threshold:
            rows += [("confidence", (self.measure.__doc__ or self.measure.name).splitlines()[0])]
            rows += [("must exceed", self.threshold if self.schedule.online else self.schedule.level)]
        return table(rows, caption=repr(self))


class BoundPolicy:
    """A policy bound to a decoder: what depends on its depth and vocabulary. From `ExitPolicy.bind`."""

    def __init__(self, policy: ExitPolicy, layers: int, vocabulary: int, min_exit_layer: int | None = None):
        self.policy, self.measure, self.layers = policy, policy.measure, layers
        self.schedule = copy.deepcopy(policy.schedule)  # one that learns begins anew
        self.max_draft = MAX_DRAFT if policy.max_draft == "auto" else policy.max_draft
        given, first = policy.exit_layers, policy.min_layer or self.measure.min_layer or min_exit_layer
        if given is None and first is None:
            raise MeeError(f"{policy!r} names no layer and no model is known: give min_layer=...")
        if (last := given[-1] if given else first) > layers:
            named = f"The policy names layer {last}, but the decoder has {layers}"
            raise MeeError(f"{named}: lower min_layer or exit_layers.")
        if given == (layers,):
            raise MeeError(f"exit_layers={list(given)} leaves nothing to decide in {layers} layers.")
        before = max(self.measure.lookback, policy.contrast is not None)  # layers that it has to look at
        decisions = tuple(layer for layer in given or range(first, layers) if before < layer < layers)
        self.decision_layers = decisions  # at layer L all tokens exit
        self.readout = policy.reads(policy, decisions, layers, vocabulary)
        self.first_layer = layers + 1  # the first that the measure looks at; L + 1 if nothing is decided
        # `[layer]`, 0 to L: how often the measure is computed until an exit there (oracle: 0)
        reached = np.arange(layers + 1)
        self.decisions = np.searchsorted(decisions, reached, side="right")
        if decisions:
            amateurs = self.readout.amateurs.get(decisions[0], ())
            self.first_layer = min([decisions[0] - self.measure.lookback, *amateurs])
        if decisions and self.measure.from_first:
            self.first_layer, self.decisions = 1, np.minimum(reached, decisions[-1])
        if self.measure.looks_ahead:
            self.decisions = np.zeros_like(reached)

    def exceeded(self, confidence: np.ndarray, state, length: int) -> np.ndarray:
        """Which rows of a state exit, `[rows]`; `length` is that of the longest output."""
        depth = state.layer / self.layers
        return self.schedule.exceeded(confidence, state.position, length, state.sequence, depth)

    def flops(self, sizes: DecoderSizes, exit_layers, readout_rows, source, positions=None) -> dict:
        """FLOPs by part, each `[output]`; see `mee_utils.models.costs`.

        Takes layers and rows of `W`, `[token]` for each output, and the number of tokens of each input; where
        exits are verified, those of all tokens that were run, and their positions (see `Output.work`).
        """
        options = self.measure.flops(sizes.d_model), self.policy.propagation == "parallel"
        given = zip(exit_layers, readout_rows, source, positions or [None] * len(exit_layers), strict=True)
        rows = [
            generation_flops(sizes, exits, length, read, self.decisions[exits], *options, places)
            for exits, read, length, places in given
        ]
        return {part: np.array([row[part] for row in rows], dtype=np.int64) for part in rows[0]}


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
