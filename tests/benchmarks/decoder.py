"""`make bench`: how fast the decoder is, beside the strongest peers and this machine's own limit.

Weights are random, since cost does not depend on them, and exits are forced at given layers.
"""

import copy
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pandas as pd

from mee_utils.common.errors import MeeError, check_whole
from mee_utils.common.files import read_yaml
from mee_utils.decoding.generation import bind_policy, decode_batch
from mee_utils.decoding.layerwise import LayerwiseDecoder
from mee_utils.decoding.token import on_host
from mee_utils.exits.classifiers import SIZED, ExitClassifier, new_classifier
from mee_utils.exits.measures import ForcedExits
from mee_utils.exits.policy import ExitPolicy
from mee_utils.models.costs import SHAPES, DecoderSizes
from mee_utils.study.catalogue import RULES, SURVEY, SURVEY_VARIANTS, VARIANTS
from mee_utils.training.mini import train_tokenizer

from .clock import seconds_in_turns, summary

SEED = 0
PAUSE = 0.3  # seconds between contenders whose threads go on spinning for a while
LAYER = "of a layer"  # unit: the time of one decoder layer
FASTER = "times faster"
TABLES = read_yaml(Path(__file__).with_name("decoder.yaml"))
Run = Callable[[], object]


@dataclass(frozen=True)
class Workload:
    """A random model and what it decodes; `threads` is None for one a core."""

    shape: str
    sizes: DecoderSizes
    d_kv: int = 64
    source: int = 32
    tokens: int = 32
    dtype: str = "float32"
    threads: int | None = None


WORKLOADS = {  # mini: one thread is the fastest for every contender
    "mini": Workload("mini", SHAPES["mini"], d_kv=24, threads=1),
    "t5-base": Workload("t5-base", SHAPES["t5-base"]),
    "t5-large": Workload("t5-large", SHAPES["t5-large"], tokens=16),
}


class Timing(NamedTuple):
    """One line of the table: `values` holds one number a round."""

    what: str
    batch: int
    values: Sequence[float] | pd.Series
    unit: str
    against: str = ""


class Bench:
    """A random model of one workload, and its clock, which runs each contender `rounds` times."""

    def __init__(self, workload: Workload, rounds: int):
        import torch

        self.workload = workload
        self.rounds = check_whole("rounds", rounds)
        self.layers = workload.sizes.layers
        self.take_threads()
        self.network = random_network(workload).to(getattr(torch, workload.dtype))
        self.network.config.eos_token_id = None  # every output has full length
        self.network.generation_config.eos_token_id = None
        self.decoder = LayerwiseDecoder(self.network)

    def take_threads(self) -> None:
        """Computes with the workload's threads; after a narrow model is loaded there is but one."""
        import torch

        torch.set_num_threads(self.workload.threads or os.cpu_count() or 1)

    def inputs(self, batch: int) -> dict:
        """Random inputs `[batch, source]` without padding."""
        import torch

        generator = torch.Generator().manual_seed(SEED)
        size = (batch, self.workload.source)
        ids = torch.randint(2, self.workload.sizes.vocabulary, size, generator=generator)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def ours(self, batch: int, policy: ExitPolicy | None = None) -> Callable[[], list]:
        """Our decoder; a call gives ids, exit layers and confidences of each row."""
        bound = bind_policy(policy, self.decoder)
        inputs = self.inputs(batch)
        return partial(decode_batch, self.decoder, inputs, bound, self.workload.tokens, np.arange(batch))

    def forced(self, exits: np.ndarray) -> Callable[[], list]:
        """Our decoder with given exit layers `[batch, token]`."""
        return self.ours(len(exits), ExitPolicy(ForcedExits(exits), min_layer=1))

    def encode(self, batch: int) -> Run:
        """What every decoding begins with: the encoder, and the cache."""
        import torch

        begin = torch.inference_mode()(self.decoder.begin)
        return partial(begin, self.inputs(batch), self.workload.tokens)

    def generate(self, batch: int, **options) -> Callable:
        """`transformers`' greedy search on the same inputs; a call gives ids `[batch, 1 + token]`."""
        from transformers import GenerationConfig

        inputs = self.inputs(batch)
        settings = GenerationConfig(
            max_new_tokens=self.workload.tokens,
            num_beams=1,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            decoder_start_token_id=0,
            **options,
        )

        def run():
            self.network.generation_config = settings  # given to `generate`, its gaps are filled in from here
            return self.network.generate(**inputs)

        return run

    def times(self, contenders: dict[str, Run], pause: float = 0.0) -> pd.DataFrame:
        """Seconds `[round, contender]`, contenders taking turns."""
        return seconds_in_turns(contenders, self.rounds, pause)

    def parts(self) -> tuple[float, float, float]:
        """Seconds of a readout with its norm, and of a layer's K/V for one and for four tokens."""
        import torch

        decoder = self.decoder

        def key_values(rows):
            return [layer.key_value(layer.norms[0](rows)) for layer in decoder.weights]

        def readout(rows):
            return decoder.readout(decoder.norm(rows)).max(dim=-1)

        with torch.inference_mode():
            state = decoder.embed(torch.tensor([2]))
            one = median_seconds(key_values, state) / self.layers
            four = median_seconds(key_values, state.repeat(4, 1)) / self.layers
            return median_seconds(readout, state), one, four

    def table(self, part: str) -> pd.DataFrame:
        """Lines of one of `PARTS`: median, lowest and highest of the rounds."""
        rows = summary(PARTS[part](self), "median")
        rows = rows.assign(group=part, shape=self.workload.shape, dtype=self.workload.dtype)
        columns = ["group", "shape", "dtype", "batch", "what", "against", "median", "lowest", "highest"]
        return rows[[*columns, "unit"]]


def random_network(workload: Workload):
    """A T5 of the workload's sizes with random weights."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = workload.sizes
    config = T5Config(
        vocab_size=sizes.vocabulary,
        d_model=sizes.d_model,
        d_kv=workload.d_kv,
        num_heads=sizes.inner // workload.d_kv,
        d_ff=sizes.d_ff,
        num_layers=sizes.layers,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(SEED)
    return T5ForConditionalGeneration(config).eval()


def median_seconds(function: Callable, argument) -> float:
    """Seconds of a call that takes too little time to be clocked once."""
    import torch
    from torch.utils.benchmark import Timer

    variables = {"function": function, "argument": argument}
    timer = Timer("function(argument)", globals=variables, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=0.1).median


def full_depth(bench: Bench) -> Iterator[Timing]:
    """No exits: milliseconds a step (of the whole batch), and how many times faster than each peer."""
    single = bench.workload.dtype == "float32"
    for batch in (1, 8, 32) if single else (1, 8):
        runs = {"ours": bench.ours(batch), "transformers generate": bench.generate(batch)}
        if single and batch == 1:
            runs["transformers, static cache, compiled"] = compiled_peer(bench, batch)
        if single:
            runs["CTranslate2"] = ctranslate2_peer(bench, batch)
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
    for name, policy in _timed_policies(bench).items():
        if policy.measure.lookback < bench.layers - 3:  # else it looks back farther than this decoder is deep
            yield Timing(name, 1, _decision_seconds(bench, policy) / layer, LAYER)


def _timed_policies(bench: Bench) -> dict[str, ExitPolicy]:
    """Policies that decide at every layer and never exit, by what the table calls them."""
    untrained = untrained_classifiers(bench)
    policies = {name: undecided(name) for name in MEASURES}
    for name in VARIANTS:
        policies[name] = undecided(untrained[name])
    for name in SURVEY:
        rule = RULES[name]
        if rule.thresholded and rule.decay is None:
            policy = rule.policy(1.0, {"min_layer": 1, "top_k": 64}, untrained)
            never = float(min(policy.measure.range[1], bench.layers))
            policies[name] = policy.at_threshold(never)
    for name, options in TABLES["readouts"].items():
        policies[name] = undecided(**options)
    return policies


def untrained_classifiers(bench: Bench) -> dict[str, ExitClassifier]:
    """A classifier of every variant for the benchmark's model, by rule: cost does not depend on weights."""
    model_sizes = {"decoder_layers": bench.layers, "vocabulary": bench.workload.sizes.vocabulary}
    width = bench.workload.sizes.d_model
    classifiers = {}
    for name, variant in (VARIANTS | SURVEY_VARIANTS).items():
        sizes = {size: model_sizes[size] for size in SIZED.get(variant.kind, ())}
        classifier = new_classifier(variant.kind, width, **variant.options(width), **sizes)
        classifiers[name] = classifier.to(bench.network.dtype)
    return classifiers


def _decision_seconds(bench: Bench, policy: ExitPolicy) -> np.ndarray:
    """Seconds inside one decision, a median a round, from a token's third decision on: ids are kept by then.

    Differences of whole runs hold all the noise of the layers, and what these lose to caches; this does not.
    """
    took = []
    medians = []

    def timed(decide, state):
        started = time.perf_counter()
        value = on_host(decide(state))
        took.append((state.layer, time.perf_counter() - started))
        return value

    run = bench.ours(1, around(policy, timed))
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


def spread_exits(bench: Bench, batch: int = 32) -> Iterator[Timing]:
    """A batch whose rows exit at all layers, L/2 on average, against `generate` and our own full depth."""
    layers = bench.layers
    size = (batch, bench.workload.tokens)
    exits = np.random.default_rng(SEED).integers(1, layers, size=size, endpoint=True)
    exits = np.clip(np.round(exits - exits.mean() + layers / 2), 1, layers).astype(int)
    what = f"exits spread, mean layer {exits.mean():.1f} of {layers}"
    others = {"transformers generate": bench.generate(batch), "ours, full depth": bench.ours(batch)}
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
    memory = torch.ones(256 * 1024 * 1024 // 4)
    runs = {"ours": bench.ours(1), "transformers generate": bench.generate(1)}
    seconds = bench.times(runs | {"encoder": bench.encode(1), "read": memory.sum})
    limit = memory.numel() * 4 / seconds["read"]  # bytes a second
    yield Timing("weights a token", 1, [size / 1e6], "MB")
    yield Timing("this machine reads", 1, limit / 1e9, "GB/s")
    for name in runs:
        step = (seconds[name] - seconds["encoder"]) / bench.workload.tokens
        yield Timing(name, 1, size / step / limit, "of the limit")


def compiled_peer(bench: Bench, batch: int) -> Run:
    """`generate` with a static cache and a compiled forward pass; the first call compiles."""
    import torch

    peer = copy.copy(bench)
    peer.network = copy.copy(bench.network)
    peer.network.forward = torch.compile(peer.network.forward)
    return peer.generate(batch, cache_implementation="static", disable_compile=True)


def ctranslate2_peer(bench: Bench, batch: int) -> Run:
    """CTranslate2 with the same weights, greedy, at the same length."""
    try:
        import ctranslate2
        from ctranslate2.converters import TransformersConverter
    except ImportError as error:
        message = 'The peer CTranslate2 is not installed: run "make bench", which installs it.'
        raise MeeError(message) from error
    import torch

    with TemporaryDirectory() as source, TemporaryDirectory() as target:
        bench.network.config.eos_token_id = 1
        bench.network.save_pretrained(source)
        train_tokenizer(["the red house is near the river"] * 50, 200).save_pretrained(source)
        bench.network.config.eos_token_id = None
        TransformersConverter(source).convert(target, force=True)
        translator = ctranslate2.Translator(
            target, compute_type="float32", intra_threads=torch.get_num_threads(), inter_threads=1
        )
    length = bench.workload.tokens
    inputs = [["▁the"] * bench.workload.source] * batch
    return partial(
        translator.translate_batch,
        inputs,
        beam_size=1,
        max_decoding_length=length,
        min_decoding_length=length,
    )


PARTS: dict[str, Callable[[Bench], Iterator[Timing]]] = {
    "full depth": full_depth,
    "exit cost": exit_cost,
    "one decision": decision_cost,
    "bandwidth": bandwidth,
    "spread exits": spread_exits,
}


def run(part: str, shapes: Sequence[str], rounds: int, progress: Callable[[str], None]) -> pd.DataFrame:
    """The table of one of `PARTS` for `shapes` of `WORKLOADS`, of none given all.

    In bfloat16 only full depth is timed; the mini shape, whose times are short, takes thrice the rounds.
    """
    tables = []
    for name, dtype in product(shapes or WORKLOADS, ("float32", "bfloat16")):
        if part == "full depth" or dtype == "float32":
            progress(f"{name}, {dtype}: {part}")
            bench = Bench(replace(WORKLOADS[name], dtype=dtype), 3 * rounds if name == "mini" else rounds)
            tables.append(bench.table(part))
    table = pd.concat(tables, ignore_index=True).assign(target="")
    for wanted, target in TABLES["targets"]:
        table.loc[(table[list(wanted)] == pd.Series(wanted)).all(axis=1), "target"] = target
    return table
