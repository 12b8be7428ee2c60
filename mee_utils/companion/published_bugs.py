"""Bugs of published code, switched on around the decoder: their effect beside the number it may explain.

A bug is a wrapped measure, a readout or a threshold; all else, and the correct version of every pair, is
plain `generate`. The public code of "Monotonic Early Exiting" (MEE), "Not all FLOPs are created equally",
FREE (Bae et al. 2023) and PCEE-BERT (Zhang et al. 2022) was read; none is used here.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf, log

import numpy as np
import pandas as pd

from .. import EncoderCache, ExitPolicy, MeeError
from ..analysis.comparison import DecodingResult, check_score, decode, result_row
from ..decoding.token import on_host
from ..exits.measures import RisingTop1
from ..exits.readout import Readout, ReadoutLogits
from ..exits.thresholds import AdaptiveThreshold
from .catalogue import PRUNED_SIZES
from .statements import BUGS

THRESHOLD = 0.9  # as published, and the decay
DECAY = 4.0
COLLAPSE_BATCHES = (1, 32)  # alone, and the batch of MEE's final run
COLLAPSE_FROM = 2  # a mean exit layer of exactly 2.00 (CNN/DM) says so; the text of MEE has 4
CALM_FROM = 4  # first exit layer of CALM, as in notebooks 03 and 04
VANILLA_FROM = 14 / 24  # of vanilla, a share of the depth: the published runs exit at layers 14 and 15 of 24


def collapsing(policy: ExitPolicy, max_new_tokens: int) -> ExitPolicy:
    """The policy under depth collapse (MEE): once a whole batch has exited at layer l, l is the last layer.

    "A whole batch" is every row that is still being decoded (the published code collapses somewhat later).
    Depth only falls, and is whole again at the first token of the next batch. The decoder still fills the
    keys and values above, which nothing reads: FLOPs are a little too high.
    """
    measure = policy.measure
    if policy.propagation != "copy":
        raise MeeError(f'Depth collapse needs propagation="copy", not "{policy.propagation}".')
    if not measure.has_threshold or measure.needs_all_layers or policy.schedule.online:
        raise MeeError(f'"{measure.name}" cannot collapse: give a constant or decaying threshold.')

    collapsed = copy.copy(measure)
    collapsed.confidence = _Collapse(policy, max_new_tokens).confidence
    return replace(policy, measure=collapsed)


class _Collapse:
    """The depth that is left while a batch is decoded; it stands in for the measure's own `confidence`."""

    def __init__(self, policy: ExitPolicy, max_new_tokens: int):
        self.policy = policy
        self.max_new_tokens = max_new_tokens
        self.depth: int | None = None  # the last layer that is left; None: all are
        self.layer_before = inf  # of the decision before
        self.deep: set[int] = set()  # rows whose token has not exited yet

    def confidence(self, state) -> np.ndarray:
        """The measure's own below the last layer that is left; there, infinite."""
        if state.layer <= self.layer_before:  # the first decision about a token
            self.deep = set(state.sequence.tolist())
            if state.position == 0:
                self.depth = None
        self.layer_before = state.layer
        confidences = on_host(self.policy.measure.confidence(state))
        if state.layer == self.depth:
            return np.full(len(confidences), inf)
        exits = self.policy.schedule.exceeded(confidences, state.position, self.max_new_tokens)
        self.deep -= set(state.sequence[exits])
        if not self.deep:
            self.depth = state.layer
        return confidences


class RisingLogit(RisingTop1):
    """The rising top-1 rule on logits, known up to a constant, not on probabilities (MEE, code)."""

    def confidence(self, state):
        """The top-1 logit if it rose twice, else 0."""
        third = state.logits.amax(-1)
        second = state.earlier(1).logits.amax(-1)
        first = state.earlier(2).logits.amax(-1)
        return third * ((third > second) & (second > first))


class _PositionLogits(ReadoutLogits):
    def tokens(self, from_scores: bool):  # the position in the list; the id only where all ids are scored
        return (self.scores if from_scores else self.logits).argmax(dim=-1)


class PositionReadout(Readout):
    """Emits the position in the kept list as the token ("Not all FLOPs", fixed); the confidence is right."""

    def read(self, state) -> ReadoutLogits:
        return _PositionLogits(**vars(super().read(state)))


class SortedReadout(Readout):
    """Keeps the list sorted by id: later cuts keep the lowest ids ("Not all FLOPs", decaying pruning)."""

    def _best(self, state, size: int):
        read = state.readout_logits
        if read.ids is None:  # the first cut: the best, then sorted
            return read.logits.topk(size, dim=-1).indices.sort(dim=-1).values
        return read.ids[:, :size]


class MasslessReadout(Readout):
    """A contrast whose plausible set has all of the probability ("Not all FLOPs"), not the expert's mass."""

    def _contrast(self, state, read: ReadoutLogits, kept) -> None:
        super()._contrast(state, read, kept)
        late = read.logits.log_softmax(dim=-1)
        plausible = late >= late.amax(dim=-1, keepdim=True) + log(self.policy.contrast_alpha)
        read.scores = read.scores.masked_fill(~plausible, -inf).log_softmax(dim=-1)


class UnweightedThreshold(AdaptiveThreshold):
    """FREE's adaptive threshold without the mixing weights (FREE, code): agreement counts as one half."""

    def posterior(self, confidence: np.ndarray) -> np.ndarray:
        equal = copy.copy(self)
        equal.labels = {True: [0.5], False: [0.5]}
        return AdaptiveThreshold.posterior(equal, confidence)


@dataclass(frozen=True)
class Pair:
    """A rule as it is and as published code has it; `batch` None: the caller's."""

    rule: str
    correct: ExitPolicy
    published: ExitPolicy
    batch: int | None = None

    @property
    def threshold(self) -> float:
        """What confidence, or the posterior of an adaptive threshold, has to exceed."""
        return getattr(self.correct.schedule, "zeta", self.correct.schedule.level)


SWAPPED = {  # bug -> what has it, and rule -> its options; the sizes of kept lists are the profile's
    "positions for ids": (PositionReadout, {"fixed": {"pruning": "fixed"}}),
    "list sorted by id": (SortedReadout, {"decaying": {"pruning": "decaying"}}),
    "plausible set without its mass": (MasslessReadout, {c: {"contrast": c} for c in ("weighted", "jsd")}),
}


def pairs(
    bug: str, model: str, layers: int, exit_layer: int | None, settings: Mapping[str, int]
) -> Iterator[Pair]:
    """The pairs of policies that show one of `BUGS` on a model; "vanilla" exits later than the others."""
    match bug:
        case "depth collapse":
            for rule in ("softmax_margin", "hidden_similarity"):
                plain = ExitPolicy(rule, threshold=THRESHOLD, decay=DECAY, min_layer=COLLAPSE_FROM)
                for batch in COLLAPSE_BATCHES:
                    yield Pair(rule, plain, collapsing(plain, settings["max_new_tokens"]), batch)
        case "logits for probabilities":  # the class that was used has no minimum layer
            plain = ExitPolicy("rising_top1", threshold=THRESHOLD, min_layer=1)
            yield Pair("rising_top1", plain, replace(plain, measure=RisingLogit()))
        case "mixture without weights":
            options = {"propagation": "parallel", "exit_layers": [exit_layer]}
            plain = ExitPolicy("max_probability", threshold=AdaptiveThreshold(), **options)
            yield Pair("max_probability", plain, replace(plain, threshold=UnweightedThreshold()))
        case "entropy never asked":
            plain = ExitPolicy("pcee", threshold=THRESHOLD, min_layer=CALM_FROM)
            yield Pair("pcee", plain, replace(plain, measure="patience", threshold=plain.measure.patience))
        case _:
            first = round(VANILLA_FROM * layers) if model == "vanilla" else CALM_FROM
            wrong, rules = SWAPPED[bug]
            for rule, options in rules.items():
                sizes = {option: settings[name] for option, name in PRUNED_SIZES.get(rule, {}).items()}
                options = {"threshold": THRESHOLD, "min_layer": first, **options, **sizes}
                yield Pair(rule, ExitPolicy(**options), ExitPolicy(readout_class=wrong, **options))


def measure_bugs(
    models: Mapping, tasks: Mapping, exit_layer: int | None, settings: Mapping[str, int]
) -> pd.DataFrame:
    """Decodes every task with each of `BUGS`, and without it, on the models that it concerns.

    `exit_layer` is where FREE was trained to exit. `settings` are a profile's: `max_new_tokens`, `batch_size`
    (depth collapse has its own), and the sizes of kept lists `top_k`, `first_k` and `least_k`. The correct
    version of a rule is decoded once: in our decoder a row does not depend on the others of its batch. One
    row a bug, model, task, rule, batch and `version` ("published", "correct"), as `result_row`.
    """
    rows = []
    for name, model in models.items():
        bugs = [bug for bug in BUGS if name in BUGS[bug]["models"]]
        for task_name, task in tasks.items() if bugs else ():
            batch_size = settings["batch_size"]
            run = partial(
                decode, model, task, max_new_tokens=settings["max_new_tokens"], encodings=EncoderCache()
            )
            full = check_score(run(None, batch_size=batch_size))
            for bug in bugs:
                labels = {"bug": bug, "model": name, "task": task_name}
                of_bug = pairs(bug, name, model.layers, exit_layer, settings)
                rows += [labels | row for row in _measure_pairs(of_bug, run, full, batch_size)]
    rows.sort(key=lambda row: list(BUGS).index(row["bug"]))
    return pd.DataFrame(rows)


def _measure_pairs(
    of_bug: Iterator[Pair], run: Callable[..., DecodingResult], full: DecodingResult, batch_size: int
) -> Iterator[dict]:
    """Two rows a pair, published and correct, beside full depth; `run` decodes with a policy."""
    correct: dict[str, DecodingResult] = {}
    for pair in of_bug:
        batch = pair.batch or batch_size
        if pair.rule not in correct:
            correct[pair.rule] = run(pair.correct, full, batch_size=batch_size)
        published = run(pair.published, full, batch_size=batch)
        for version, decoding in {"published": published, "correct": correct[pair.rule]}.items():
            row = {"rule": pair.rule, "batch": batch, "version": version, "threshold": pair.threshold}
            yield row | {"full_score": full.score, **result_row(decoding, full)}
