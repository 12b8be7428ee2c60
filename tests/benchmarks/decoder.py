"""`make bench`, first part: how fast the decoder is, beside the strongest peers and this machine's own limit.

Weights are random, since cost does not depend on them, and exits are forced at given layers.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from mee_utils.common.files import read_yaml
from mee_utils.companion.catalogue import RULES, SURVEY, SURVEY_VARIANTS, VARIANTS
from mee_utils.decoding.cache import on_host
from mee_utils.decoding.step_costs import measured_steps
from mee_utils.exits.classifier_kinds import ExitClassifier
from mee_utils.exits.classifiers import SIZED, new_classifier
from mee_utils.exits.policy import ExitPolicy

from . import peers
from .clock import summary
from .workloads import PAUSE, SEED, Bench, Workload, bench_of

LAYER = "of a layer"  # unit: the time of one decoder layer
FASTER = "times faster"
DECIDED = 8  # tokens in a round of what one decision costs
TABLES = read_yaml(Path(__file__).with_name("decoder.yaml"))
KEYS = ("shape", "group")


class Timing(NamedTuple):
    """One line of the table: `values` holds one number a round."""

    what: str
    batch: int
    values: Sequence[float] | pd.Series
    unit: str
    against: str = ""


def full_depth(bench: Bench) -> Iterator[Timing]:
    """No exits: milliseconds a step (of the whole batch), and how many times faster than each peer."""
    single = bench.workload.dtype == "float32"
    translators = {}
    if single and bench.on_gpu:
        print("CTranslate2 is timed on CPUs: left out.", flush=True)
    elif single:
        translators = peers.ctranslate2_forms(bench)
    for batch in (1, 8, 32) if single or bench.on_gpu else (1, 8):
        runs = {"ours": bench.ours(batch)}
        runs[peers.with_attention(bench, peers.GREEDY)] = peers.greedy(bench, batch)
        if single and batch == 1:
            if bench.workload.compiling:
                static = peers.with_attention(bench, "transformers, static cache, compiled")
                runs[static] = peers.compiled(bench, batch)
            assistant = peers.with_attention(bench, "transformers, assistant")
            runs[assistant] = peers.assisted(bench, max(1, bench.layers // 3))
        runs |= {name: translate(batch) for name, translate in translators.items()}
        seconds = bench.times(runs, pause=PAUSE)
        for name in runs:
            yield Timing(name, batch, seconds[name] / bench.workload.tokens * 1e3, "ms a step")
        for name in list(runs)[1:]:
            yield Timing("ours", batch, seconds[name] / seconds["ours"], FASTER, name)


def exit_cost(bench: Bench) -> Iterator[Timing]:
    """Exits forced at layer l, against l/L of the layers' time, the readout, and the K/V of skipped layers.

    Two patterns: every token exits at l (nobody ever needs the skipped layers), and every fourth token goes
    through all of them and takes the K/V of the three before it along, which adds what four rows cost more.
    """
    layers = bench.layers
    tokens = bench.workload.tokens
    readout, one, four = bench.parts()
    for layer in sorted({max(1, layers // 4), layers // 2, 3 * layers // 4}):
        every = np.full((1, tokens), layer)
        patterns = {
            f"all tokens leave at layer {layer}": every,
            f"leave at {layer}, each fourth at {layers}": np.where(np.arange(tokens) % 4 == 3, layers, every),
        }
        runs = {what: bench.forced(exits) for what, exits in patterns.items()}
        seconds = bench.times({"full": bench.ours(1), "encoder": bench.encode(1)} | runs)
        stack = (seconds["full"] - seconds["encoder"]) / tokens - readout  # all layers of one token
        for what, exits in patterns.items():
            late = (four - one) * (exits == layers).mean() * (layers - layer)
            ideal = seconds["encoder"] + tokens * (stack * exits.mean() / layers + readout + late)
            yield Timing(what, 1, seconds[what] / ideal, "of the ideal", "share of full depth")
            yield Timing(what, 1, seconds["full"] / seconds[what], FASTER, "ours, full depth")
    yield Timing("K/V of one skipped layer, if made at once", 1, [one * layers / stack.median()], LAYER)


MEASURES = ("softmax_margin", "max_probability", "hidden_similarity", "rising_top1")


def undecided(measure="softmax_margin", **options) -> ExitPolicy:
    """A policy that decides at every layer and never exits."""
    return ExitPolicy(measure, threshold=1.0, min_layer=1, **options)


def decision_cost(bench: Bench) -> Iterator[Timing]:
    """One decision timed by itself, in layers: over all ids, over few, without a readout, by a classifier.

    The survey's rules are timed as they are measured (few ids); MuE's decision is that of hidden similarity.
    """
    full = bench.times({"full_depth": bench.ours(1)})["full_depth"]
    readout, *_ = bench.parts()
    layer = ((full / bench.workload.tokens - readout) / bench.layers).median()
    untrained = untrained_classifiers(bench)
    policies = {name: undecided(name) for name in MEASURES}
    policies |= {name: undecided(untrained[name]) for name in VARIANTS}
    for name in SURVEY:
        rule = RULES[name]
        if rule.thresholded and rule.decay is None:
            policy = rule.policy(1.0, {"min_layer": 1, "top_k": 64}, untrained)
            policies[name] = policy.at_threshold(policy.measure.range[1])  # nothing exceeds it
    policies |= {name: undecided(**options) for name, options in TABLES["readouts"].items()}
    for name, policy in policies.items():
        if policy.measure.lookback < bench.layers - 3:  # else it looks back farther than this decoder is deep
            yield Timing(name, 1, _decision_seconds(bench, policy) / layer, LAYER)


def untrained_classifiers(bench: Bench) -> dict[str, ExitClassifier]:
    """A classifier of every variant for the benchmark's model, by rule: cost does not depend on weights."""
    model_sizes = {"decoder_layers": bench.layers, "vocabulary": bench.workload.sizes.vocabulary}
    width = bench.workload.sizes.d_model
    classifiers = {}
    for name, variant in (VARIANTS | SURVEY_VARIANTS).items():
        sizes = {size: model_sizes[size] for size in SIZED.get(variant.kind, ())}
        classifier = new_classifier(variant.kind, width, **variant.options(width), **sizes)
        classifiers[name] = classifier.to(bench.device, bench.network.dtype)
    return classifiers


def _decision_seconds(bench: Bench, policy: ExitPolicy) -> np.ndarray:
    """Seconds inside one decision, a median a round, from a token's third decision on: ids are kept by then.

    Differences of whole runs hold all the noise of the layers, and what these lose to caches; this does not.
    """
    took = []
    medians = []

    def timed(decide, state):
        bench.wait()  # else the decision is charged for the layer before it
        started = time.perf_counter()
        value = on_host(decide(state))
        took.append((state.layer, time.perf_counter() - started))
        return value

    run = bench.ours(1, around(policy, timed), DECIDED)
    first = 2 + policy.measure.lookback
    for _ in range(bench.rounds + 1):
        took.clear()
        run()
        medians.append(np.median([seconds for layer, seconds in took if layer > first]))
    return np.array(medians[1:])


def around(policy: ExitPolicy, confidence: Callable, **changed) -> ExitPolicy:
    """A policy whose measure answers `confidence(decide, state)`, `decide` being its own method."""
    measure = copy.copy(policy.measure)
    measure.confidence = partial(confidence, measure.confidence)
    return replace(policy, measure=measure, **changed)


# what of a round costs time beside its passes through layers and its logits (`StepCosts`)
BESIDE = {
    "token": "a token at full depth, beside layers and logits",
    "draft": "a drafted token, beside layers and logits",
    "round": "a verification, beside layers and logits",
    "wider": "a further token of a verification, in each layer",
}


def verified_round(bench: Bench) -> Iterator[Timing]:
    """What drafting and verifying cost beside passes and logits, in layers: Python, the cache, width."""
    for batch in (1, 8):
        inputs = bench.batch(batch)
        measured = [measured_steps(bench.decoder, inputs) for _ in range(bench.rounds + 1)][1:]
        yield Timing("logits of a token", batch, [steps.readout / steps.layer for steps in measured], LAYER)
        for name, what in BESIDE.items():
            yield Timing(what, batch, [getattr(steps, name) / steps.layer for steps in measured], LAYER)


def spread_exits(bench: Bench, batch: int = 32) -> Iterator[Timing]:
    """A batch whose rows exit at all layers, L/2 on average, against `generate` and our own full depth."""
    layers = bench.layers
    size = (batch, bench.workload.tokens)
    exits = np.random.default_rng(SEED).integers(1, layers, size=size, endpoint=True)
    exits = np.clip(np.round(exits - exits.mean() + layers / 2), 1, layers).astype(int)
    what = f"exits spread, mean layer {exits.mean():.1f} of {layers}"
    others = {peers.with_attention(bench, peers.GREEDY): peers.greedy(bench, batch)}
    others["ours, full depth"] = bench.ours(batch)
    seconds = bench.times(others | {"spread": bench.forced(exits)})
    for name in others:
        yield Timing(what, batch, seconds[name] / seconds["spread"], FASTER, name)


def bandwidth(bench: Bench) -> Iterator[Timing]:
    """Bytes of weights that a token needs, against what this machine reads from memory: the limit."""
    import torch

    blocks = bench.network.get_decoder().block
    # keys and values of the source are computed once an input
    source = sum(block.layer[1].EncDecAttention.k.weight.numel() * 2 for block in blocks)
    layers = sum(weight.numel() for weight in blocks.parameters()) - source
    size = (layers + bench.network.lm_head.weight.numel()) * bench.network.dtype.itemsize
    # more than a cache holds; a GPU needs more, as it reads so fast that starting to takes a part of the time
    megabytes = 4096 if bench.on_gpu else 256
    memory = torch.ones(megabytes * 1024 * 1024 // 4, device=bench.device)
    runs = {"ours": bench.ours(1), peers.with_attention(bench, peers.GREEDY): peers.greedy(bench, 1)}
    seconds = bench.times(runs | {"encoder": bench.encode(1), "read": memory.sum})
    limit = memory.numel() * 4 / seconds["read"]  # bytes a second
    yield Timing("weights a token", 1, [size / 1e6], "MB")
    yield Timing("this machine reads", 1, limit / 1e9, "GB/s")
    for name in runs:
        step = (seconds[name] - seconds["encoder"]) / bench.workload.tokens
        yield Timing(name, 1, size / step / limit, "of the limit")


PARTS: dict[str, Callable[[Bench], Iterator[Timing]]] = {
    "full depth": full_depth,
    "exit cost": exit_cost,
    "one decision": decision_cost,
    "verified round": verified_round,
    "bandwidth": bandwidth,
    "spread exits": spread_exits,
}


def run(part: str, workload: Workload, rounds: int) -> pd.DataFrame:
    """The table of one of `PARTS`: median, lowest and highest of the rounds.

    In bfloat16 too at full depth, where the layers agree, so that drafts of an assistant are right.
    """
    workloads = [workload]
    if part == "full depth":
        workloads = [replace(workload, dtype=dtype, agreeing=True) for dtype in ("float32", "bfloat16")]
    tables = []
    for each in workloads:
        rows = summary(PARTS[part](bench_of(each, rounds)), "median")
        tables.append(rows.assign(group=part, shape=each.shape, dtype=each.dtype, target=""))
    table = pd.concat(tables, ignore_index=True)
    for wanted, target in TABLES["targets"]:
        table.loc[_matches(table, wanted), "target"] = target
    columns = ["group", "shape", "dtype", "batch", "what", "against", "median", "lowest", "highest"]
    return table[[*columns, "unit", "target"]]


def _matches(table: pd.DataFrame, wanted: dict) -> np.ndarray:
    """The rows with these values; a text stands for all that begin with it."""
    matches = [
        table[name].str.startswith(value) if isinstance(value, str) else table[name] == value
        for name, value in wanted.items()
    ]
    return np.logical_and.reduce(matches)
