"""`ExitPolicy`: a confidence measure, a threshold schedule, and the layers at which a token may exit."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from numbers import Integral, Real

import numpy as np

from ..common.errors import MeeError, check_choice, is_number, plain_number, shown
from ..common.html import table
from ..models.costs import DecoderSizes, generation_flops
from .contrast import ALPHA, Contrast, contrast_of
from .copies import Copies
from .measures import Measure, find_measure
from .pruning import Pruning, pruning_of
from .readout import Readout
from .thresholds import AdaptiveThreshold, BanditThreshold, Threshold

MAX_DRAFT = 8  # the longest that is planned
ONLINE = {"adaptive": AdaptiveThreshold, "bandit": BanditThreshold}
PROPAGATIONS = ("copy", "parallel", "verify")
NUMBERS = ("threshold", "decay", "min_layer", "max_draft", "top_k", "least_k", "contrast_alpha")  # options


@dataclass(frozen=True, repr=False)
class ExitPolicy:
    """When a token exits, and what happens to the layers it skips.

    Attributes:
        measure: a user-defined `Measure`, or a name: softmax_margin, max_probability, hidden_similarity,
            rising_top1, entropy, patience, vote, weighted_vote, pcee, elbert, static, oracle (their classes
            are in `mee_utils.exits.measures`).
        threshold: the token exits at the first allowed layer whose confidence exceeds it (default 0.9;
            nothing exceeds a constant 1); for "patience" and "vote" a number of decision layers (default 6);
            "adaptive" for FREE's, "bandit" for UCBEE's and CeeBERT's, or a `Threshold`.
        decay: temperature `tau` of a threshold that falls with the position (CALM: 4); None: it is constant.
        decay_form: "scaled" (all public code) or "calm" (CALM, Eq. 5).
        min_layer: first layer at which a token may exit, from 1 on; by default the model's `min_exit_layer`,
            see `mee_utils.models.loading.Model`.
        exit_layers: the only layers at which a token may exit (FREE: one), in place of `min_layer`.
        propagation: where keys and values of skipped layers come from, "copy" (CALM, MEE: the exit state),
            "parallel" (FREE: waiting tokens run through a layer together once a later one needs it) or
            "verify" (exits are drafts that the last layer verifies: the output is that of full depth).
        max_draft: how many tokens may wait for the last layer ("verify"); by default "auto": planned, with
            the first layer and a threshold that is not given (see `mee_utils.decoding.planning`).
        copies: drafts that are copied from the input where it continues as the output does ("verify"); exits
            draft where there is none. `generate(model, inputs, Copies())` copies alone.
        pruning: "fixed", "decaying" or "adaptive" vocabulary pruning; see `mee_utils.exits.pruning`.
        top_k, least_k: vocabulary tokens kept at first (fixed, decaying) and at least (decaying).
        pruning_form: of decaying pruning, "recursion" (the paper) or "closed" (its code).
        prune_last_layer: whether the last layer, too, scores only the ids that are kept (the paper). False:
            it scores all, so that a token that runs through all layers is the one of full depth.
        contrast: "weighted" or "jsd": confidence comes from a contrast; see `mee_utils.exits.contrast`.
        contrast_alpha, contrast_token: the alpha, and whether the token comes from the contrast too.
        readout_class: the class that computes logits; another one is for tests and published bugs.
        schedule: the threshold as an object, made from `threshold`, `decay` and `decay_form`.
        vocabulary_pruning, layer_contrast: the same options as records; None without.

    Policies with equal options are equal, and can be keys of a dict.

    Raises:
        MeeError: unknown names, values out of range and options that contradict each other.
    """

    measure: str | Measure = "softmax_margin"
    threshold: float | str | Threshold | None = None
    decay: float | None = None
    decay_form: str = "scaled"
    min_layer: int | None = None
    exit_layers: Sequence[int] | None = None
    propagation: str = "copy"
    max_draft: int | str = "auto"
    copies: Copies | None = None
    pruning: str | None = None
    top_k: int | None = None
    least_k: int | None = None
    pruning_form: str = "recursion"
    prune_last_layer: bool = True
    contrast: str | None = None
    contrast_alpha: float = ALPHA
    contrast_token: bool = False
    readout_class: type[Readout] = Readout
    schedule: Threshold = field(init=False, compare=False)
    vocabulary_pruning: Pruning | None = field(init=False, compare=False)
    layer_contrast: Contrast | None = field(init=False, compare=False)

    def __post_init__(self):
        check_choice("propagation", self.propagation, PROPAGATIONS)
        if not isinstance(self.readout_class, type) or not issubclass(self.readout_class, Readout):
            raise MeeError(f"readout_class={shown(self.readout_class)}: give a class of Readout.")
        self._set(measure=find_measure(self.measure), exit_layers=_check_layers(self.exit_layers))
        self._set(
            schedule=self._make_schedule(),
            vocabulary_pruning=pruning_of(
                self.pruning, self.top_k, self.least_k, self.pruning_form, self.prune_last_layer
            ),
            layer_contrast=contrast_of(self.contrast, self.contrast_alpha, self.contrast_token),
        )
        for message in chain(
            self._readout_contradictions(),
            self._threshold_contradictions(),
            self._draft_contradictions(),
            self._layer_contradictions(),
        ):
            raise MeeError(message)  # the first of them
        numbers = {name: getattr(self, name) for name in NUMBERS}  # numpy's and fractions are converted
        self._set(**{name: plain_number(n) for name, n in numbers.items() if isinstance(n, Real)})

    def _set(self, **values) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)  # a frozen dataclass is written here, and only when made

    def __hash__(self) -> int:
        # user-defined measures and thresholds may be unhashable: a name and a level stand for them
        level = self.schedule.level
        return hash((self.measure.name, level, self.min_layer, self.exit_layers, self.propagation))

    def _make_schedule(self) -> Threshold:
        """The threshold as an object, whatever it was given as."""
        given = self.threshold
        if isinstance(given, type) and issubclass(given, Threshold):
            raise MeeError(f"threshold={given.__name__} is a class: give an instance, {given.__name__}(...).")
        if isinstance(given, Threshold):
            if type(given) is Threshold:
                self._check_level(given.level)
            return copy.deepcopy(given)  # one that learns is left as it was given
        if isinstance(given, str) and given in ONLINE:
            return ONLINE[given]()
        if given is None:
            level = self.measure.default_threshold
            self._check_level(level, "default_threshold", "in its class set it to")
        else:
            level = given
            self._check_level(level)
        if not self.measure.has_threshold:
            level = 0.5  # between the confidences 0 and 1
        return Threshold(float(level), self.decay, self.decay_form)

    def _check_level(self, level: object, what: str = "threshold", advice: str = "give") -> None:
        """Refuses a level that no confidence of the measure can be compared with."""
        name = self.measure.name
        low, high = self.measure.range
        if not is_number(level) or not low <= level <= high:
            allowed = f"{advice} a number from {low:g} to {high:g} (constant {high:g}: no exit)."
            raise MeeError(f"{what}={shown(level)} for {name}: {allowed}")
        if self.measure.integer_threshold and level < np.inf and level % 1 > 0:
            raise MeeError(f"threshold={level!r} for {name}: give a whole number.")

    @property
    def _gives_probability(self) -> bool:
        """Whether the confidence comes from the probabilities of the layer that decides."""
        return self.measure.readout and not self.measure.needs_all_layers

    def _readout_contradictions(self) -> Iterator[str]:
        """What cannot be said about pruning and contrast."""
        measure = self.measure
        option = f'pruning="{self.pruning}"' if self.pruning else f'contrast="{self.contrast}"'
        if not self.plain and not self._gives_probability:
            yield (
                f"{option} needs a measure that looks at probabilities before it exits, not "
                f'"{measure.name}" (set readout = True in the class if it computes probabilities).'
            )
        if not self.plain and self.schedule.learns:
            yield f'{option} and threshold="adaptive" contradict each other: give a number.'
        if self.contrast is not None and (measure.lookback > 0 or measure.lens or measure.ensemble):
            does = "looks at earlier layers" if measure.lookback else "computes logits in its own way"
            yield (
                f'contrast="{self.contrast}" and "{measure.name}", which {does}, contradict each other: '
                "use another measure."
            )
        if self.pruning == "adaptive" and measure.range[1] > 1:
            yield f'{option} needs a confidence of at most 1, not that of "{measure.name}": leave it out.'
        if self.contrast_token and not self.prune_last_layer:
            yield (
                "prune_last_layer=False and contrast_token=True, which contrasts the last layer over the "
                "kept ids, contradict each other: leave out one of them."
            )

    def _threshold_contradictions(self) -> Iterator[str]:
        """What cannot be said about the threshold and its decay."""
        measure = self.measure
        schedule = self.schedule
        has_decay = self.decay is not None
        if not measure.has_threshold and (self.threshold is not None or has_decay):
            yield f'"{measure.name}" has no threshold: leave out threshold and decay.'
        if self.decay_form != "scaled" and not has_decay:
            yield f'decay_form="{self.decay_form}" needs decay=..., the temperature (CALM: 4).'
        option = f'threshold="{self.threshold}"' if isinstance(self.threshold, str) else "this threshold"
        if has_decay and (schedule.online or isinstance(self.threshold, Threshold)):
            yield f"{option} and decay contradict each other: leave out decay."
        one_layer = self.exit_layers is not None and len(self.exit_layers) == 1
        if schedule.learns and not (one_layer and self.propagation == "parallel"):
            yield 'threshold="adaptive" (FREE) needs propagation="parallel" and one layer in exit_layers.'
        several_layers = measure.lookback > 0 or measure.uses_exit_history
        if schedule.learns and (several_layers or not self._gives_probability):
            yield 'threshold="adaptive" needs a probability: "max_probability" or "softmax_margin".'
        if measure.range[1] > 1 and (schedule.online or schedule.decay is not None):
            what = option if schedule.online else "decay"
            yield f'{what} needs a confidence of at most 1, not that of "{measure.name}": leave it out.'

    def _draft_contradictions(self) -> Iterator[str]:
        """What cannot be said about drafts."""
        fixed = not isinstance(self.max_draft, str) or self.max_draft != "auto"
        if fixed and not _is_whole(self.max_draft):
            yield f'max_draft={shown(self.max_draft)}: give a whole number of tokens from 1 on, or "auto".'
        if self.copies is not None and not isinstance(self.copies, Copies):
            yield f"copies={shown(self.copies)}: give Copies(...), or None to copy nothing."
        if self.copies is not None and self.propagation != "verify":
            yield 'copies=... means nothing without propagation="verify": leave it out.'
        if fixed and self.propagation != "verify":
            yield f'max_draft={self.max_draft} means nothing without propagation="verify": leave it out.'
        if self.propagation == "verify" and self.measure.needs_all_layers:
            yield (
                f'"{self.measure.name}" runs all layers to decide and cannot draft: leave out '
                'propagation="verify" (replay_drafts predicts its drafts).'
            )

    def _layer_contradictions(self) -> Iterator[str]:
        """What cannot be said about the layers."""
        name = self.measure.name
        lookback = self.measure.lookback
        layers = self.exit_layers
        if self.min_layer is not None and not _is_whole(self.min_layer):
            yield f"min_layer={shown(self.min_layer)}: layers are counted from 1; give a whole number."
        if name == "static" and layers is None and self.min_layer is None:
            yield '"static" needs min_layer=..., the layer at which every token exits.'
        if layers is not None and self.min_layer is not None:
            yield "exit_layers and min_layer contradict each other: give one of them."
        if layers is not None and layers[0] <= lookback:
            yield f'"{name}" looks {lookback} layers back, too far for layer {layers[0]}.'

    @property
    def plain(self) -> bool:
        """Whether all ids are scored and nothing is contrasted."""
        return self.pruning is None and self.contrast is None

    @classmethod
    def copying(cls, copies: Copies, layers: int) -> ExitPolicy:
        """No exits from a decoder of so many layers: all drafts are copies."""
        return cls("static", min_layer=layers, propagation="verify", max_draft=1, copies=copies)

    def bind(self, layers: int, vocabulary: int, min_exit_layer: int | None = None) -> BoundPolicy:
        """Fits the policy, which knows no model, to a decoder.

        Args:
            layers: its depth L.
            vocabulary: how many ids its LM head scores, V.
            min_exit_layer: the model's, for policies that name no layer.

        Raises:
            MeeError: a layer that the decoder does not have; no layer is named at all; nothing is left to
                decide.
        """
        return BoundPolicy(self, layers, vocabulary, min_exit_layer)

    def at_threshold(self, level: float) -> ExitPolicy:
        """This policy at another level of its threshold; the rest stays, the decay of a `Threshold` too.

        Raises `MeeError` for a measure without a threshold, a schedule that finds its level while decoding,
        and a level out of range.
        """
        if self.schedule.online or not self.measure.has_threshold:
            no_level = f'"{self.measure.name}" with threshold={self.threshold!r} has no threshold to choose'
            raise MeeError(f"{no_level}: give a measure with one.")
        if isinstance(self.threshold, Threshold):
            return replace(self, threshold=self.threshold.with_level(level))
        return replace(self, threshold=level)

    def over_all_entries(self) -> ExitPolicy:
        """This policy without pruning: every layer that computes logits scores the whole vocabulary."""
        return replace(
            self, pruning=None, top_k=None, least_k=None, pruning_form="recursion", prune_last_layer=True
        )

    def __repr__(self) -> str:
        options = [f'"{self.measure.name}"']
        for option in fields(self)[1:]:
            value = getattr(self, option.name)
            if option.init and option.compare and value != option.default:
                options.append(f"{option.name}={value!r}")
        return f"{type(self).__name__}({', '.join(options)})"

    def _repr_html_(self) -> str:
        first = f"layer {self.min_layer}" if self.min_layer else "the model's min_exit_layer"
        where = f"at the layers {list(self.exit_layers)}" if self.exit_layers else f"from {first} on"
        rows = [("exits", where), ("skipped layers", self.propagation)]
        if self.measure.has_threshold:
            rows.append(("confidence", (self.measure.__doc__ or self.measure.name).splitlines()[0]))
            rows.append(("must exceed", self.threshold if self.schedule.online else self.schedule.level))
        return table(rows, caption=repr(self))


class BoundPolicy:
    """A policy bound to a decoder: what depends on its depth and vocabulary. From `ExitPolicy.bind`.

    Attributes:
        policy, measure: what was bound, and its measure.
        layers: depth L of the decoder.
        schedule: the threshold; one that learns begins anew.
        max_draft: most tokens of a draft.
        decision_layers: where the policy decides; at layer L all tokens exit.
        vocabulary: number of ids.
        readout: computes logits over fewer ids, or of a contrast; None: those of the LM head over all ids.
        decision_counts: `[layer]`, 0 to L, how often the measure is computed until an exit there (oracle: 0).
    """

    def __init__(self, policy: ExitPolicy, layers: int, vocabulary: int, min_exit_layer: int | None = None):
        self.policy = policy
        self.measure = policy.measure
        self.layers = layers
        self.schedule = copy.deepcopy(policy.schedule)
        # "auto" is left only where nothing is decoded: `generate` has replaced it by what was planned
        self.max_draft = MAX_DRAFT if policy.max_draft == "auto" else policy.max_draft
        self.decision_layers = self._decision_layers(min_exit_layer)
        self.vocabulary = vocabulary
        self.readout: Readout | None = None
        changes_readout = not policy.plain or self.measure.lens or self.measure.ensemble
        if self.decision_layers and changes_readout:
            self.readout = policy.readout_class(policy, self.decision_layers, layers, vocabulary)
        reached = np.arange(layers + 1)
        if self.measure.needs_all_layers:
            self.decision_counts = np.zeros_like(reached)
        elif self.measure.recurrent and self.decision_layers:  # at every layer up to the last decision
            self.decision_counts = np.minimum(reached, self.decision_layers[-1])
        else:
            self.decision_counts = np.searchsorted(self.decision_layers, reached, side="right")

    def _decision_layers(self, min_exit_layer: int | None) -> tuple[int, ...]:
        """The layers before the last that the policy names, without those too early for what it looks at."""
        given = self.policy.exit_layers
        first = self.policy.min_layer or self.measure.min_layer or min_exit_layer
        if given is None and first is None:
            raise MeeError(f"{self.policy!r} names no layer and no model is known: give min_layer=...")
        last_named = given[-1] if given else first
        if last_named > self.layers:
            mismatch = f"The policy names layer {last_named}, but the decoder has {self.layers}"
            raise MeeError(f"{mismatch}: lower min_layer or exit_layers.")
        if given == (self.layers,):
            raise MeeError(f"exit_layers={list(given)} leaves nothing to decide in {self.layers} layers.")
        needed_before = max(self.measure.lookback, 0 if self.policy.contrast is None else 1)
        allowed = given or range(first, self.layers)
        return tuple(layer for layer in allowed if needed_before < layer < self.layers)

    def flops(self, sizes: DecoderSizes, exit_layers, readout_rows, source, positions=None) -> dict:
        """FLOPs by part (see `mee_utils.models.costs`).

        Args:
            sizes: of the decoder.
            exit_layers: `[token]` for each output; where exits are verified, of all tokens that were run.
            readout_rows: rows of the LM head that each token multiplied, `[token]` for each output.
            source: number of tokens of each input.
            positions: where exits are verified, the position of each token that was run.

        Returns:
            part -> `[output]`.
        """
        outputs = [
            generation_flops(
                sizes,
                exits,
                source[number],
                readout_rows[number],
                decisions=self.decision_counts[exits],
                per_decision=self.measure.flops(sizes.d_model),
                parallel=self.policy.propagation == "parallel",
                positions=None if positions is None else positions[number],
            )
            for number, exits in enumerate(exit_layers)
        ]
        return {part: np.array([output[part] for output in outputs], dtype=np.int64) for part in outputs[0]}


def _check_layers(layers: object) -> tuple[int, ...] | None:
    """`exit_layers` as a tuple, or a `MeeError`."""
    if layers is None:
        return None
    listed = layers.tolist() if isinstance(layers, np.ndarray) else layers
    if not isinstance(listed, Sequence) or not all(_is_whole(layer, -np.inf) for layer in listed):
        raise MeeError(f"exit_layers={shown(layers)}: give a list of layers, as in exit_layers=[4].")
    checked = tuple(int(layer) for layer in listed)
    if not checked or sorted(set(checked)) != list(checked) or checked[0] < 1:
        raise MeeError(f"exit_layers={list(checked)}: give layers from 1 on, ascending, at least one.")
    return checked


def _is_whole(value: object, least: float = 1) -> bool:
    """Whether a value is a whole number from `least` on."""
    return isinstance(value, Integral) and not isinstance(value, bool) and value >= least
