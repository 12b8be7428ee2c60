"""Known faults of published code, each switched on outside the decoder, so that its effect stands beside the number it may explain.

A fault is a wrapped measure, a reader, or a threshold that does what the published code does; everything else is the decoder's own. The
correct version of every pair is plain `generate` with the plain policy.

| fault | what is switched | sound counterpart |
|---|---|---|
| depth collapse | `CollapsingDepth` around a measure | the measure |
| logits for probabilities | `RisingLogit` | `RisingTop1` |
| positions for ids | `PositionReader` | `Reader`, fixed pruning |
| list sorted by id | `SortedReader` | `Reader`, decaying pruning |
| head without its mass | `BareHeadReader` | `Reader`, a contrast |
| mixture without weights | `UnweightedThreshold` | `AdaptiveThreshold` |

Sources: the public code of "Monotonic Early Exiting" (MEE), "Not all FLOPs are created equally" and FREE (Bae et al. 2023); what it does was read and run,
none of it is used here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, log

import numpy as np
import pandas as pd

from ..errors import CompanionError, check_choice
from ..exits.measures import Measure, RisingTop1
from ..exits.policy import ExitPolicy
from ..exits.read_outs import Reader, Reading
from ..exits.thresholds import AdaptiveThreshold, Threshold
from .comparison import Decoded, decode, retained

THRESHOLD, DECAY = 0.9, 4.0  # as published
COLLAPSE_BATCHES = (1, 32)  # alone, and the batch of MEE's final run
COLLAPSE_FROM = 2  # a mean exit block of exactly 2.00 (MEE, saturation on CNN/DM) says that exits began at block 2, not at 4 as the text has it
TOP_K, FIRST_K, LEAST_K = 64, 256, 16  # the settings of notebook 03
CALM_FROM = 4  # first block at which CALM's tokens may exit, as in notebooks 03 and 04
VANILLA_FROM = 14 / 24  # the same for vanilla, as a share of all blocks: the published runs leave at blocks 14 and 15 of 24; before, vanilla is too sure
COLUMNS = (
    "fault", "model", "task", "rule", "batch", "version", "threshold", "score", "full_score", "retained", "retained_low", "retained_high",
    "mean_exit_layer", "flops_share", "same_output", "length_share",
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One fault of published code.

    Attributes:
        name: short, as in the table of `measure_faults`.
        source: whose code.
        what: what it does, in one sentence.
        published: the published numbers beside which ours stand, as text.
        explains: which published conclusion it may explain.
    """

    name: str
    source: str
    what: str
    published: str
    explains: str


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            "depth collapse", "MEE, code",
            "Once a whole batch has exited, the blocks above have no keys and values, and the model stays cut off there for the rest of the outputs.",
            "CNN/DM: saturation 2.00 of 24 blocks, ROUGE-1 3.32; softmax margin 2.66 blocks, 12.88; no exit 43.75. SQuAD F1: 75.95 and 78.46 of 88.84.",
            "MEE's measures score far above CALM's: those two leave earliest, so that the fault cuts them off lowest.",
        ),
        Fault(
            "logits for probabilities", "MEE, code",
            "The rising top-1 rule takes logits for probabilities: they are known up to a constant only, so that a threshold of 0.9 means nothing.",
            "Rising top-1: CNN/DM 22.58 of 24 blocks, ROUGE-1 43.44 of 43.75; SQuAD F1 88.56 of 88.84.",
            "Rising top-1 keeps nearly all of the score and hardly exits: what that says depends on the level of the model's logits.",
        ),
        Fault(
            "positions for ids", "Not all FLOPs, code of its table of softmax results",
            "With fixed pruning the best position in the kept list is emitted as if it were a token id.",
            "Fixed pruning: 0 on SQuAD, SAMSum, IWSLT and CNN/DM, but 80 of 100 with t5-squad; LongT5 13.0 of 16.0 (Multi-News), 10.2 of 22.7 (BigPatent).",
            "Pruning the vocabulary costs score for time.",
        ),
        Fault(
            "list sorted by id", "Not all FLOPs, code of its table of softmax results",
            "With decaying pruning the kept ids are put in order of id after a cut, so that the next cut keeps the lowest ids, not the best.",
            "Decaying pruning: SQuAD 0 (t5-large) and 80 of 100 (t5-squad); SAMSum 2.5 of 36.0 and 5.4 of 18.3; CNN/DM 0.87 of 23.1 and 2.05 of 25.0.",
            "Pruning the vocabulary costs score for time, and more so the more it prunes.",
        ),
        Fault(
            "head without its mass", "Not all FLOPs, code",
            "The contrast gives its head all of the probability, so that a head of one member has confidence 1 whatever the block thinks of it.",
            "Final run: softmax SQuAD F1 92.45, SAMSum ROUGE-L 23.77; JSD 91.47 and 23.65; JSD with adaptive pruning 91.34 and 23.21.",
            "Contrast is a Pareto improvement: at an equal threshold it exits earlier and looks fast.",
        ),
        Fault(
            "mixture without weights", "FREE, code",
            "The posterior of \"shallow agrees with deep\" leaves out how often the two agree, as if agreement and disagreement were equally frequent.",
            "No number of its own: all results of FREE with the adaptive threshold.",
            "The adaptive threshold finds the exits that agree: without the weights it does not follow their share.",
        ),
    )
}  # fmt: skip
MODELS = {
    "depth collapse": ("calm",), "logits for probabilities": ("calm",), "positions for ids": ("vanilla", "calm"),
    "list sorted by id": ("vanilla", "calm"), "head without its mass": ("calm",), "mixture without weights": ("free",),
}  # fmt: skip


class CollapsingDepth(Measure):
    """A measure under depth collapse (MEE): where a whole batch has left at block l, block l is the last one from the next token on.

    "A whole batch" is every row that is still being decoded (the published code goes on with rows that have ended, so that it collapses somewhat
    later). Depth only falls, and is whole again at the first token of the next batch. The decoder still fills the keys and values above, which nothing reads:
    outputs are those of a model that is cut off, operations are counted a little too high.

    Args:
        measure: what decides.
        schedule: the threshold that it has to exceed; constant or decaying.
        length: the most tokens of an output, as given to `generate`.
    """

    def __init__(self, measure: Measure, schedule: Threshold, length: int):
        if not measure.has_threshold or measure.looks_ahead or schedule.learns:
            raise CompanionError(f'"{measure.name}" cannot be asked for a collapse: give a measure with a constant or decaying threshold.')
        self.measure, self.schedule, self.length = measure, schedule, length
        self.name, self.range, self.read_out = measure.name, measure.range, measure.read_out
        self.lookback, self.from_first = measure.lookback, measure.from_first
        self.depth: int | None = None
        self._layer, self._going = np.inf, set()

    def confidence(self, now):
        """The measure's own below the block that is the last one left; there, more than any threshold."""
        from ..decoding.generation import on_host

        if now.layer <= self._layer:  # the first question about a token
            self._going = set(now.sequence.tolist())
            if now.position == 0:
                self.depth = None
        self._layer, found = now.layer, on_host(self.measure.confidence(now))
        if now.layer == self.depth:
            return np.full(len(found), inf)
        self._going -= set(now.sequence[self.schedule.exceeded(found, now.position, self.length)].tolist())
        if not self._going:
            self.depth = now.layer
        return found

    def flops(self, d_model: int) -> int:
        """As the measure."""
        return self.measure.flops(d_model)

    def key(self) -> str:
        """As the measure, and marked."""
        return f"collapsing {self.length} {self.measure.key()} {vars(self.schedule)}"


def collapsing(policy: ExitPolicy, max_new_tokens: int) -> ExitPolicy:
    """The same policy under depth collapse.

    Args:
        policy: with a constant or decaying threshold.
        max_new_tokens: as given to `generate`.

    Raises:
        CompanionError: a policy without such a threshold, or one whose skipped blocks wait (`propagation="parallel"`).
    """
    if policy.propagation != "copy":
        raise CompanionError('propagation="parallel" fills the keys and values later: depth collapse means something with "copy" only.')
    return replace(policy, measure=CollapsingDepth(policy.rule, policy.schedule, max_new_tokens))


class RisingLogit(RisingTop1):
    """The rising top-1 rule on logits in place of probabilities (MEE, code).

    A constant added to all logits of a model changes no probability, but it changes whether this rule exits: it can be early or late.
    """

    def confidence(self, now):
        """The top-1 logit if it rose twice, else 0."""
        third, second, first = (block.logits.amax(-1) for block in (now, now.earlier(1), now.earlier(2)))
        return third * ((third > second) & (second > first))


class _Position(Reading):
    """A reading whose tokens are places in the list of kept ids."""

    def tokens(self, contrast: bool):
        """The place of the best; the id only where all ids are read out."""
        return (self.scores if contrast else self.logits).argmax(dim=-1)


class PositionReader(Reader):
    """Emits the place in the kept list as the token ("Not all FLOPs", fixed pruning); confidence is what it should be."""

    def read(self, now) -> Reading:
        """As the reader it comes from, with the wrong tokens."""
        return _Position(**vars(super().read(now)))


class SortedReader(Reader):
    """Keeps the list in order of id, so that each later cut keeps the lowest ids ("Not all FLOPs", decaying pruning)."""

    def _keep(self, now):
        size, before = self.sizes[now.layer + 1], self.sizes[now.layer]
        if size == before and now.layer > self.first:
            return now.earlier(1).recall("kept", self._keep)
        reading = now.reading
        if reading.ids is None:  # the first cut: the best, then sorted
            ids = reading.logits.topk(min(size, reading.logits.shape[-1]), dim=-1).indices.sort(dim=-1).values
        else:
            ids = reading.ids[:, :size]
        return self._kept(now, ids, np.full(len(ids), size))


class BareHeadReader(Reader):
    """A contrast whose head has all of the probability ("Not all FLOPs"; the sound form scales it to the mass that the expert has there)."""

    def _contrast(self, now, reading: Reading, kept) -> None:
        import torch

        super()._contrast(now, reading, kept)
        late = torch.log_softmax(reading.logits, dim=-1)
        head = late >= late.amax(dim=-1, keepdim=True) + log(self.read_out.alpha)
        reading.scores = torch.log_softmax(reading.scores.masked_fill(~head, -torch.inf), dim=-1)


class _SwitchedPolicy(ExitPolicy):
    """A policy whose read-outs another reader makes."""

    reads = Reader

    def reader(self, layers: int, vocabulary: int) -> Reader | None:
        """As the policy it comes from, by the other reader."""
        found = super().reader(layers, vocabulary)
        return None if found is None else self.reads(self.read_out, self.decision_layers(layers), found.first, layers, vocabulary)


class PositionPolicy(_SwitchedPolicy):
    """`ExitPolicy` with a `PositionReader`."""

    reads = PositionReader


class SortedPolicy(_SwitchedPolicy):
    """`ExitPolicy` with a `SortedReader`.

    Raises:
        CompanionError: another pruning than "decaying".
    """

    reads = SortedReader

    def __post_init__(self):
        super().__post_init__()
        if self.pruning != "decaying":
            raise CompanionError(f'pruning={self.pruning!r}: only a list that is cut again can be cut wrongly; give pruning="decaying".')


class BareHeadPolicy(_SwitchedPolicy):
    """`ExitPolicy` with a `BareHeadReader`."""

    reads = BareHeadReader


class UnweightedThreshold(AdaptiveThreshold):
    """FREE's adaptive threshold without the mixing weights: agreement counts as one half, however frequent it is (FREE, code)."""

    def posterior(self, confidence: np.ndarray) -> np.ndarray:
        """As if there were as many labels of either kind; needs a fit."""
        equal = copy.copy(self)
        equal.labels = {True: [0.5], False: [0.5]}
        return AdaptiveThreshold.posterior(equal, confidence)


@dataclass(frozen=True)
class _Pair:
    """A rule as it is and as published code has it; `batch` None: whatever the caller's is."""

    rule: str
    threshold: float
    correct: ExitPolicy
    faulty: ExitPolicy
    batch: int | None = None


def pairs(fault: str, layers: int, max_new_tokens: int, model: str = "calm", collapse_from: int = COLLAPSE_FROM) -> Iterator[_Pair]:
    """The policies that a fault is shown with: each has `rule`, `threshold`, `batch`, and the policies `correct` and `faulty`.

    Args:
        fault: a name in `FAULTS`.
        layers: blocks of the decoder (FREE's exit point is a third of them).
        max_new_tokens: as given to `generate`.
        model: "vanilla" has a later minimum block than the others.
        collapse_from: first block at which a token may exit under depth collapse.

    Raises:
        CompanionError: an unknown fault.
    """
    check_choice("fault", fault, FAULTS)
    if fault == "depth collapse":
        for rule in ("softmax_margin", "hidden_similarity"):
            plain = ExitPolicy(rule, threshold=THRESHOLD, decay=DECAY, min_layer=collapse_from)
            for batch in COLLAPSE_BATCHES:
                yield _Pair(rule, THRESHOLD, plain, collapsing(plain, max_new_tokens), batch)
    elif fault == "logits for probabilities":  # the class that was used applies no minimum block
        yield _Pair("rising_top1", THRESHOLD, ExitPolicy("rising_top1", threshold=THRESHOLD), ExitPolicy(RisingLogit(), threshold=THRESHOLD))
    elif fault == "mixture without weights":
        settings = dict(measure="max_probability", propagation="parallel", exit_layers=[max(1, layers // 3)])
        plain, faulty = (ExitPolicy(threshold=threshold(), **settings) for threshold in (AdaptiveThreshold, UnweightedThreshold))
        yield _Pair("max_probability", plain.schedule.zeta, plain, faulty)
    else:
        common = dict(threshold=THRESHOLD, min_layer=round(VANILLA_FROM * layers) if model == "vanilla" else CALM_FROM)
        kind, rules = {
            "positions for ids": (PositionPolicy, {"fixed": dict(pruning="fixed", top_k=TOP_K)}),
            "list sorted by id": (SortedPolicy, {"decaying": dict(pruning="decaying", top_k=FIRST_K, least_k=LEAST_K)}),
            "head without its mass": (BareHeadPolicy, {contrast: dict(contrast=contrast) for contrast in ("weighted", "jsd")}),
        }[fault]
        for rule, options in rules.items():
            yield _Pair(rule, THRESHOLD, ExitPolicy(**common, **options), kind(**common, **options))


def measure_faults(
    models: dict, tasks: dict, max_new_tokens: int = 48, batch_size: int = 100, faults: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = print, collapse_from: int = COLLAPSE_FROM,
) -> pd.DataFrame:  # fmt: skip
    """Decodes every task with each fault and without it.

    Rows of a batch do not depend on each other in the decoder, so that no exit, and the correct version of a rule that is shown at several batch sizes,
    are decoded once and stand beside each of them.

    Args:
        models: name -> model; of "calm", "vanilla" and "free" those that are there are used, each for the faults that concern it.
        tasks: name -> task.
        max_new_tokens: the longest output.
        batch_size: rows at a time; depth collapse has its own, 1 and 32.
        faults: names in `FAULTS`; all by default.
        progress: is told each model and task; None: silent.
        collapse_from: first block at which a token may exit under depth collapse.

    Returns:
        One row a fault, model, task, rule, batch size and version ("faulty", "correct"): `threshold`, `score`, `full_score` (no exit), `retained` with
        `retained_low` and `retained_high` (share of the full score, see `retained`), `mean_exit_layer`, `flops_share` (of no exit, a token),
        `same_output` (share of outputs that are those of no exit), `length_share` (tokens emitted, of no exit's).

    Raises:
        CompanionError: an unknown fault, a task on which the full model scores 0.
    """
    chosen = [check_choice("fault", name, FAULTS) for name in (FAULTS if faults is None else faults)]
    rows = []
    for name, model in models.items():
        for task_name, task in tasks.items() if any(name in MODELS[fault] for fault in chosen) else ():
            settings, seen = dict(max_new_tokens=max_new_tokens, encodings={}), {}
            full, texts = decode(model, task, None, batch_size=batch_size, **settings)
            for fault in (fault for fault in chosen if name in MODELS[fault]):
                if progress:
                    progress(f"{fault}: {name}, {task_name}")
                for pair in pairs(fault, model.layers, max_new_tokens, name, collapse_from):
                    batch = pair.batch or batch_size
                    labels = dict(fault=fault, model=name, task=task_name, rule=pair.rule, batch=batch, threshold=pair.threshold)
                    if (fault, pair.rule) not in seen:
                        seen[fault, pair.rule] = decode(model, task, pair.correct, texts, batch_size=batch_size, **settings)[0]
                    faulty = decode(model, task, pair.faulty, texts, batch_size=batch, **settings)[0]
                    rows += [_row(faulty, full, version="faulty", **labels), _row(seen[fault, pair.rule], full, version="correct", **labels)]
    order = {fault: place for place, fault in enumerate(chosen)}
    return pd.DataFrame(sorted(rows, key=lambda row: order[row["fault"]]), columns=COLUMNS)


def _row(found: Decoded, full: Decoded, **labels) -> dict:
    """One row of the table."""
    share, low, high = retained(found, full)
    return {
        **labels, "score": found.score, "full_score": full.score, "retained": share, "retained_low": low, "retained_high": high,
        "mean_exit_layer": found.mean_exit_layer, "flops_share": found.flops / full.flops, "same_output": found.same_output,
        "length_share": found.tokens / full.tokens,
    }  # fmt: skip
