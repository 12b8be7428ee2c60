"""`make bench`: how fast the decoder is, as ratios within one run, beside the strongest peers and this machine's own limit.

Weights are random, since cost does not depend on them, and exits are forced at given blocks. Contenders take turns, round by
round, and every ratio is taken within a round, so that a busy moment of the machine hits all of them; the table keeps the median, the
smallest and the largest. The first round warms up and is dropped.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from .errors import CompanionError
from .profiles import PACKAGE
from .results import output_root, processor

SEED = 0
PAUSE = 0.3  # seconds between contenders with threads of their own, which go on waiting for work at full speed for a while


@dataclass(frozen=True)
class Shape:
    """A model to time: its sizes, how much to decode, and with how many threads (None: as many as there are cores).

    At the mini shape one thread is the fastest for every contender: handing so little work over costs more than doing it.
    """

    name: str
    d_model: int
    d_kv: int
    heads: int
    d_ff: int
    layers: int
    vocabulary: int
    source: int = 32
    tokens: int = 16
    dtype: str = "float32"
    threads: int | None = None

    @property
    def sizes(self):
        """Sizes of the decoder, as the count of operations needs them."""
        from .models.costs import DecoderSizes

        return DecoderSizes(self.d_model, self.heads * self.d_kv, self.d_ff, False, self.layers, self.vocabulary)


SHAPES = {
    "mini": Shape("mini", 96, 24, 4, 128, 12, 1500, tokens=32, threads=1),
    "t5-base": Shape("t5-base", 768, 64, 12, 3072, 12, 32128, tokens=32),
    "t5-large": Shape("t5-large", 1024, 64, 16, 4096, 24, 32128),
}


class Bench:
    """A random model of one shape, its contenders and its clock.

    Args:
        shape: what to time.
        rounds: how often each contender runs, the warm-up not counted.

    Raises:
        CompanionError: fewer than one round.
    """

    def __init__(self, shape: Shape, rounds: int):
        import torch
        import transformers

        from .decoding.layerwise import LayerwiseDecoder

        if rounds < 1:
            raise CompanionError(f"rounds={rounds}: at least one is needed.")
        torch.set_num_threads(shape.threads or os.cpu_count())
        torch.manual_seed(SEED)
        config = transformers.T5Config(
            vocab_size=shape.vocabulary, d_model=shape.d_model, d_kv=shape.d_kv, num_heads=shape.heads, d_ff=shape.d_ff,
            num_layers=shape.layers, num_decoder_layers=shape.layers, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0,
        )  # fmt: skip
        self.shape, self.rounds = shape, rounds
        self.network = transformers.T5ForConditionalGeneration(config).eval().to(getattr(torch, shape.dtype))
        self.decoder = LayerwiseDecoder(self.network)
        self.network.config.eos_token_id = -1  # every output has full length

    def batch(self, rows: int) -> dict:
        """Random inputs without padding."""
        import torch

        generator = torch.Generator().manual_seed(SEED)
        ids = torch.randint(2, self.shape.vocabulary, (rows, self.shape.source), generator=generator)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def ours(self, rows: int, policy=None) -> Callable[[], list]:
        """Our decoder on a batch; what is returned gives ids, exit blocks and confidences of each row."""
        from .decoding.generation import decode_batch

        batch, sequence = self.batch(rows), np.arange(rows)
        return lambda: decode_batch(self.decoder, batch, policy, self.shape.tokens, sequence)

    def generate(self, rows: int, **options) -> Callable:
        """`transformers`' greedy search on the same batch; gives ids `[row, 1 + tokens]`."""
        from transformers import GenerationConfig

        from .decoding.greedy import _generate

        settings = GenerationConfig(
            max_new_tokens=self.shape.tokens, do_sample=False, num_beams=1, pad_token_id=0, eos_token_id=None, decoder_start_token_id=0,
            **options,
        )  # fmt: skip
        batch = self.batch(rows)
        return lambda: _generate(self.network, batch, settings)

    def forced(self, exits: np.ndarray):
        """A policy with given exits, `[rows, tokens]`."""
        from .exits.measures import ForcedExits
        from .exits.policy import ExitPolicy

        return ExitPolicy(ForcedExits(exits))

    def times(self, contenders: dict[str, Callable[[], object]], rounds: int | None = None, pause: float = 0.0) -> pd.DataFrame:
        """Seconds of every contender in every round, `[round, contender]`; before each a pause."""
        rows = []
        for _ in range((rounds or self.rounds) + 1):
            row = {}
            for name, run in contenders.items():
                time.sleep(pause)
                started = time.perf_counter()
                run()
                row[name] = time.perf_counter() - started
            rows.append(row)
        return pd.DataFrame(rows[1:])

    def row(self, group: str, what: str, values, unit: str, batch: int, against: str = "", target: str = "") -> dict:
        """One line of the table: median, smallest and largest of some values, one a round."""
        values = np.asarray(values, dtype=np.float64)
        return {
            "group": group, "shape": self.shape.name, "dtype": self.shape.dtype, "batch": batch, "what": what, "against": against,
            "median": float(np.median(values)), "lowest": float(values.min()), "highest": float(values.max()), "unit": unit,
            "target": target,
        }  # fmt: skip


def full_depth(bench: Bench, batch: int, peers: dict[str, Callable[[], object]], target: str = "") -> list[dict]:
    """No exits: milliseconds a token (of the whole batch), and how many times faster than each peer."""
    found = bench.times({"ours": bench.ours(batch), **peers}, pause=PAUSE)
    rows = [
        bench.row("full depth", name, found[name] / bench.shape.tokens * 1e3, "ms a step", batch) for name in found
    ]
    for name in peers:
        wanted = target if name == "transformers generate" else ""
        rows.append(bench.row("full depth", "ours", found[name] / found["ours"], "times faster", batch, name, wanted))
    return rows


def exit_cost(bench: Bench, batch: int = 1) -> list[dict]:
    """Exits forced at block l, against l/L of the blocks' time, the read-out, and K/V for the blocks that are caught up on.

    Two patterns: every token leaves at l (nobody ever needs the skipped blocks), and every fourth token goes through all, which takes
    the K/V of the three before it along: what a product of four rows costs more than one of one row is what they add.
    """
    layers, tokens, rows = bench.shape.layers, bench.shape.tokens, []
    read_out, key_value, key_value_4 = _parts(bench, batch)
    for layer in sorted({max(1, layers // 4), layers // 2, 3 * layers // 4}):
        static = np.full((batch, tokens), layer)
        fourth = static.copy()
        fourth[:, 3::4] = layers
        found = bench.times(
            {
                "full": bench.ours(batch), "static": bench.ours(batch, bench.forced(static)),
                "fourth": bench.ours(batch, bench.forced(fourth)), "nothing": _encoder_only(bench, batch),
            }
        )  # fmt: skip
        blocks = (found["full"] - found["nothing"]) / tokens - read_out
        for name, exits in (("static", static), ("fourth", fourth)):
            mean = exits.mean()
            caught_up = (key_value_4 - key_value) * (exits == layers).mean() * (layers - layer) if name == "fourth" else 0.0
            expected = found["nothing"] + tokens * (blocks * mean / layers + read_out + caught_up)
            pattern = f"all tokens leave at block {layer}" if name == "static" else f"leave at {layer}, each fourth at {layers}"
            rows.append(bench.row("exit cost", pattern, found[name] / expected, "of the ideal", batch, "share of full depth", "<= 1.15"))
            rows.append(bench.row("exit cost", pattern, found["full"] / found[name], "times faster", batch, "ours, full depth"))
    rows.append(bench.row("exit cost", "K/V of one skipped block, if made at once", [key_value * layers / blocks.median()], "of a block", batch))
    return rows


def _encoder_only(bench: Bench, batch: int) -> Callable[[], object]:
    import torch

    encoded = bench.batch(batch)

    def run():
        with torch.inference_mode():
            bench.decoder.begin(encoded["input_ids"], encoded["attention_mask"], bench.shape.tokens)

    return run


def _parts(bench: Bench, batch: int) -> tuple[float, float, float]:
    """Seconds of one read-out (with its norm), and of one block's keys and values for one and for four tokens a row."""
    import torch

    decoder = bench.decoder
    states = decoder.embed(torch.arange(batch) + 2)
    four = states.repeat(4, 1)
    with torch.inference_mode():
        parts = bench.times(
            {
                "read_out": lambda: [decoder.read_out(decoder.normalize(states)).max(dim=-1) for _ in range(4)],
                "one": lambda: [block.key_value(block.norms[0](states)) for block in decoder.blocks],
                "four": lambda: [block.key_value(block.norms[0](four)) for block in decoder.blocks],
            },
            rounds=9,
        )
    return parts["read_out"].median() / 4, *(parts[name].median() / len(decoder.blocks) for name in ("one", "four"))


# the softmax margin over pruned and contrasted read-outs; a random model is never sure, so that adaptive pruning keeps nearly all ids
READ_OUTS = {
    "margin, 64 ids kept": dict(pruning="fixed", top_k=64), "margin, 256 ids kept": dict(pruning="fixed", top_k=256),
    "margin, 1024 ids kept": dict(pruning="fixed", top_k=1024), "margin, decaying from 1024 to 64": dict(pruning="decaying", top_k=1024, least_k=64),
    "margin, adaptive (unsure)": dict(pruning="adaptive"), "weighted contrast": dict(contrast="weighted"),
    "weighted contrast, 256 ids kept": dict(contrast="weighted", pruning="fixed", top_k=256),
    "JSD contrast, 256 ids kept": dict(contrast="jsd", pruning="fixed", top_k=256),
}  # fmt: skip


def measure_cost(bench: Bench, batch: int = 1) -> list[dict]:
    """What deciding costs at every block where nobody exits, as a share of a block; classifiers are untrained."""
    from .exits.classifiers import new_classifier
    from .exits.measures import MEASURES
    from .exits.policy import ExitPolicy
    from .train_exits import VARIANTS

    decisions, width = bench.shape.layers - 1, bench.shape.d_model
    policies = {name: ExitPolicy(name, threshold=1.0) for name, kind in MEASURES.items() if kind.has_threshold}
    for name, variant in VARIANTS.items():
        classifier = new_classifier(variant.kind, width, **variant.options(width)).to(bench.decoder.norm.weight.dtype)
        policies[name] = ExitPolicy(classifier, threshold=1.0)
    policies |= _read_out_policies()
    nobody = bench.forced(np.full((batch, bench.shape.tokens), bench.shape.layers))
    runs = {"none": bench.ours(batch), "asking alone": bench.ours(batch, nobody)}
    runs |= {name: bench.ours(batch, policy) for name, policy in policies.items()}
    found, (read_out, *_) = bench.times(runs), _parts(bench, batch)
    block = (found["none"] / bench.shape.tokens - read_out) / bench.shape.layers
    rows = []
    for name in list(runs)[1:]:
        rule = policies[name].rule if name in policies else None
        asked = decisions - (rule.lookback if rule else 0)
        if asked < 1:
            continue  # it looks back farther than this decoder is deep
        cost = (found[name] - found["none"]) / bench.shape.tokens / asked / block
        target = "<= 0.05" if name == "hidden_similarity" else ""
        rows.append(bench.row("measure cost", name, cost, "of a block", batch, "", target))
    rows.append(bench.row("measure cost", "one read-out", [read_out / block.median()], "of a block", batch))
    return rows


def decision_cost(bench: Bench, batch: int = 1) -> list[dict]:
    """One decision timed by itself, as a share of a block: over all ids, over pruned and contrasted read-outs, and without a read-out."""
    from .exits.policy import ExitPolicy

    (read_out, *_), took = _parts(bench, batch), bench.times({"none": bench.ours(batch)})["none"].median()
    block, rows = (took / bench.shape.tokens - read_out) / bench.shape.layers, []
    policies = {name: ExitPolicy(name, threshold=1.0) for name in ("hidden_similarity", "softmax_margin")} | _read_out_policies()
    for name, policy in policies.items():
        target = "<= 0.05" if (name, bench.shape.name) == ("margin, 256 ids kept", "t5-large") else ""
        rows.append(bench.row("one decision", name, _decision_times(bench, policy, batch) / block, "of a block", batch, "", target))
    return rows


def _read_out_policies() -> dict:
    from .exits.policy import ExitPolicy

    return {name: ExitPolicy("softmax_margin", threshold=1.0, **options) for name, options in READ_OUTS.items()}


def _decision_times(bench: Bench, policy, batch: int) -> np.ndarray:
    """Seconds inside one decision once ids are kept, a median each round: from the third decision of a token on, timed by itself.

    Differences of whole runs hold what the blocks beside it lose to caches too, and all the noise of the blocks; this holds neither.
    """
    import copy

    from .decoding.generation import on_host

    seen, rule = [], copy.copy(policy.rule)
    decide = rule.confidence

    def confidence(now):
        started = time.perf_counter()
        value = on_host(decide(now))
        seen.append((now.layer, time.perf_counter() - started))
        return value

    rule.confidence = confidence
    run, medians = bench.ours(batch, replace(policy, measure=rule)), []
    for _ in range(bench.rounds + 1):
        seen.clear()
        run()
        medians.append(np.median([took for layer, took in seen if layer > 2 + rule.lookback]))
    return np.array(medians[1:])


def spread_exits(bench: Bench, batch: int = 32) -> list[dict]:
    """A batch whose rows leave at all blocks, L/2 on average, against `generate` and our own full depth."""
    layers, tokens = bench.shape.layers, bench.shape.tokens
    exits = np.random.default_rng(SEED).integers(1, layers, size=(batch, tokens), endpoint=True)
    exits = np.clip(np.round(exits - exits.mean() + layers / 2), 1, layers).astype(int)
    found = bench.times(
        {"generate": bench.generate(batch), "full": bench.ours(batch), "spread": bench.ours(batch, bench.forced(exits))}
    )
    what = f"exits spread, mean block {exits.mean():.1f} of {layers}"
    return [
        bench.row("spread exits", what, found["generate"] / found["spread"], "times faster", batch, "transformers generate", ">= 1.5"),
        bench.row("spread exits", what, found["full"] / found["spread"], "times faster", batch, "ours, full depth"),
    ]


def growth(base: Shape, rounds: int) -> list[dict]:
    """Milliseconds a step as batch, length and depth grow."""
    rows, bench = [], Bench(base, rounds)
    for batch in (1, 2, 4, 8, 16, 32):
        found = bench.times({"ours": bench.ours(batch)})
        rows.append(bench.row("growth", f"batch {batch}", found["ours"] / base.tokens * 1e3, "ms a step", batch))
    for tokens in (16, 64, 256):
        bench.shape = replace(base, tokens=tokens)
        found = bench.times({"ours": bench.ours(1)})
        rows.append(bench.row("growth", f"length {tokens}", found["ours"] / tokens * 1e3, "ms a step", 1))
    for layers in (6, 12, 24):
        deeper = Bench(replace(base, layers=layers), rounds)
        found = deeper.times({"ours": deeper.ours(1)})
        rows.append(deeper.row("growth", f"depth {layers}", found["ours"] / base.tokens * 1e3, "ms a step", 1))
    return rows


def bandwidth(bench: Bench) -> list[dict]:
    """Bytes of weights that a token needs, against what this machine reads from memory: the limit for one row."""
    import torch

    width = torch.finfo(getattr(torch, bench.shape.dtype)).bits // 8
    decoder = bench.network.get_decoder()
    cross = sum(b.layer[1].EncDecAttention.k.weight.numel() * 2 for b in decoder.block)
    weights = sum(p.numel() for p in decoder.block.parameters()) - cross + bench.network.lm_head.weight.numel()
    memory = torch.ones(256 * 1024 * 1024 // 4)
    found = bench.times(
        {"ours": bench.ours(1), "encoder": _encoder_only(bench, 1), "generate": bench.generate(1), "read": lambda: memory.sum()}
    )
    step = (found["ours"] - found["encoder"]) / bench.shape.tokens
    theirs = (found["generate"] - found["encoder"]) / bench.shape.tokens
    limit = memory.numel() * 4 / found["read"]
    return [
        bench.row("bandwidth", "weights a token", [weights * width / 1e6], "MB", 1),
        bench.row("bandwidth", "this machine reads", limit / 1e9, "GB/s", 1),
        bench.row("bandwidth", "ours", weights * width / step / limit, "of the limit", 1),
        bench.row("bandwidth", "transformers generate", weights * width / theirs / limit, "of the limit", 1),
    ]


def compiled_peer(bench: Bench, batch: int) -> Callable[[], object]:
    """`generate` with a static cache and a compiled forward pass; the first call compiles."""
    import torch

    plain, compiled = bench.network.forward, torch.compile(bench.network.forward)
    run = bench.generate(batch, cache_implementation="static", disable_compile=True)

    def compiled_run():
        bench.network.forward = compiled
        try:
            run()
        finally:
            bench.network.forward = plain

    return compiled_run


def ctranslate2_peer(bench: Bench, batch: int, folder: Path) -> Callable[[], object]:
    """CTranslate2 with the same weights, greedy, at the same length."""
    try:
        import ctranslate2
        from ctranslate2.converters import TransformersConverter
    except ImportError as error:
        raise CompanionError('The peer CTranslate2 is not installed: run "make bench", which installs it.') from error
    import torch

    from .models.mini import train_tokenizer

    target = folder / f"ct2-{bench.shape.name}"
    if not target.exists():
        tokenizer = train_tokenizer(["the red house is near the river"] * 50, 200)
        source = folder / f"hf-{bench.shape.name}"
        bench.network.config.eos_token_id = 1
        bench.network.save_pretrained(source)
        tokenizer.save_pretrained(source)
        bench.network.config.eos_token_id = -1
        TransformersConverter(str(source)).convert(str(target))
    translator = ctranslate2.Translator(str(target), compute_type="float32", intra_threads=torch.get_num_threads(), inter_threads=1)
    tokens = [["▁the"] * bench.shape.source for _ in range(batch)]
    options = dict(beam_size=1, max_decoding_length=bench.shape.tokens, min_decoding_length=bench.shape.tokens)
    lengths = {len(found.hypotheses[0]) for found in translator.translate_batch(tokens, **options)}
    if lengths != {bench.shape.tokens}:
        raise CompanionError(f"CTranslate2 decoded {lengths} tokens in place of {bench.shape.tokens}: the comparison would be void.")
    return lambda: translator.translate_batch(tokens, **options)


REDUCTION_KEYS = ["task", "model", "reduction"]


def stored_reductions(profile: str, complete: pd.DataFrame, path: Path | None = None) -> pd.DataFrame:
    """What `make bench` measured for the rows of a complete table (notebook 03); empty if it did not measure all of them."""
    path = path or PACKAGE.parent / "figures" / "bench" / "reductions.csv"
    if not path.exists():
        return pd.DataFrame()
    found = pd.read_csv(path)
    found, wanted = found[found.profile == profile].drop(columns=["profile", "weights"]), complete[complete.reduction != "none"][REDUCTION_KEYS]
    merged = wanted.merge(found, on=REDUCTION_KEYS)
    return merged if set(map(tuple, merged[REDUCTION_KEYS].to_numpy())) == set(map(tuple, wanted.to_numpy())) else pd.DataFrame()


RESULT_KEYS = ["task", "model", "rule", "threshold"]


def stored_results(profile: str, wanted: pd.DataFrame, path: Path | None = None) -> pd.DataFrame:
    """What `make bench` measured for some settings of notebook 06; lines of `wanted` that were not timed are missing.

    Args:
        profile: the profile's name.
        wanted: `task`, `model`, `rule`, `threshold`, and whatever else is to stay.
        path: the table of `make bench`; the stored one by default.

    Returns:
        The lines of `wanted`, once a batch size, with `batch`, `speed` (tokens a second, of no exit: median of rounds), `lowest`, `highest`,
        `samples_speed` (samples a second, of no exit).
    """
    path = path or PACKAGE.parent / "figures" / "bench" / "results.csv"
    columns = ["batch", "speed", "lowest", "highest", "samples_speed"]
    if not path.exists():
        return pd.DataFrame(columns=[*wanted, *columns])
    found = pd.read_csv(path)
    found = found[found.profile == profile][[*RESULT_KEYS, *columns]]
    timed, asked = (table[table.threshold.notna()].assign(threshold=lambda t: t.threshold.round(4)) for table in (found, wanted))
    return asked.merge(timed, on=RESULT_KEYS)


def stored_decisions(names: list[str], shapes: tuple[str, ...] = ("t5-base", "t5-large"), path: Path | None = None) -> pd.DataFrame:
    """What `make bench` measured for one decision of some rules: `shape`, `what`, `median`, `lowest`, `highest` (in blocks); empty unless all are there."""
    path = path or PACKAGE.parent / "figures" / "bench" / "decoder.csv"
    if not path.exists():
        return pd.DataFrame()
    found = pd.read_csv(path, keep_default_na=False)
    found = found[(found.group == "one decision") & found.what.isin(names) & found["shape"].isin(shapes)]
    if len(found) < len(names) * len(shapes):
        return pd.DataFrame()
    return found[["shape", "what", "median", "lowest", "highest"]].reset_index(drop=True)


PARTS = ("full depth", "exit cost", "measure cost", "one decision", "bandwidth", "spread exits", "growth", "reductions", "results")


def run(shapes: list[str] | None = None, rounds: int = 3, peers: bool = True, progress=print, parts: list[str] | None = None) -> pd.DataFrame:
    """The whole table of random models.

    Args:
        shapes: names of `SHAPES`; all by default.
        rounds: of each comparison; the mini shape, whose times are short, takes three times as many.
        peers: whether to time CTranslate2 and compiled `transformers` too.
        progress: called with a line before each part.
        parts: names of `PARTS`; all by default.
    """
    rows, parts = [], parts or PARTS
    measured = {
        "exit cost": exit_cost, "measure cost": measure_cost, "one decision": decision_cost, "bandwidth": bandwidth, "spread exits": spread_exits
    }  # fmt: skip
    for name in shapes or SHAPES:
        for dtype in ("float32", "bfloat16"):
            bench = Bench(replace(SHAPES[name], dtype=dtype), 3 * rounds if name == "mini" else rounds)
            if "full depth" in parts:
                with tempfile.TemporaryDirectory() as folder:
                    rows += _full_depths(bench, Path(folder), peers, progress)
            if dtype == "float32":
                for part in measured.keys() & set(parts):
                    progress(f"{name}: {part}")
                rows += [row for part, timed in measured.items() if part in parts for row in timed(bench)]
    if (not shapes or "t5-base" in shapes) and "growth" in parts:
        progress("t5-base: growth")
        rows += growth(SHAPES["t5-base"], rounds)
    return pd.DataFrame(rows)


def _full_depths(bench: Bench, folder: Path, peers: bool, progress) -> list[dict]:
    rows, shape = [], bench.shape
    for batch in (1, 8, 32) if shape.dtype == "float32" else (1, 8):
        progress(f"{shape.name} {shape.dtype}: full depth, batch {batch}")
        others = {"transformers generate": bench.generate(batch)}
        if peers and shape.dtype == "float32":
            if batch == 1:
                others["transformers, static cache, compiled"] = compiled_peer(bench, batch)
            others["CTranslate2"] = ctranslate2_peer(bench, batch, folder)
        target = {"mini": ">= 2.0", "t5-large": ">= 1.15"}.get(shape.name, "") if batch == 1 and shape.dtype == "float32" else ""
        rows += full_depth(bench, batch, others, target)
    return rows


def save(table: pd.DataFrame, folder: Path | None = None, name: str = "decoder", keys: tuple[str, ...] = ("shape", "group")) -> Path:
    """Writes a table and the description of the machine beside it; neither is replaced before both are written.

    Where the stored table is of the same machine and versions, lines of what was not timed now (by `keys`) are kept.
    """
    import torch

    folder = folder or output_root() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "processor": processor(), "cores": os.cpu_count(), "system": platform.system(),
        "python": platform.python_version(), "torch": torch.__version__.split("+")[0], "transformers": _version("transformers"),
        "ctranslate2": _version("ctranslate2"), "mkldnn": torch.backends.mkldnn.is_available(),
    }  # fmt: skip
    path, machine = folder / f"{name}.csv", folder / ("machine.json" if name == "decoder" else f"{name}_machine.json")
    before = json.loads(machine.read_text(encoding="utf-8")) if machine.exists() else {}
    if about["ctranslate2"] is None:  # it was not timed now; its stored lines are still of this machine
        about["ctranslate2"] = before.get("ctranslate2")
    if path.exists() and before == about:
        stored, keys = pd.read_csv(path, keep_default_na=False), list(keys)
        known = set(map(tuple, table[keys].to_numpy()))
        table = pd.concat([table, stored[[tuple(row) not in known for row in stored[keys].to_numpy()]]], ignore_index=True)
        orders = {"shape": list(SHAPES), "group": list(PARTS)}
        table = table.sort_values(keys, key=lambda c: c.map(orders[c.name].index) if c.name in orders else c, kind="stable")
    texts = {path: table.to_csv(index=False, float_format="%.4g", lineterminator="\n"), machine: json.dumps(about, indent=1) + "\n"}
    for target, text in texts.items():
        target.with_name(f".{target.name}.partial").write_text(text, encoding="utf-8")
    for target in texts:
        target.with_name(f".{target.name}.partial").rename(target)
    return path


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def missed(table: pd.DataFrame) -> pd.DataFrame:
    """The lines whose median misses the target that stands beside it."""
    def misses(row) -> bool:
        sign, limit = row.target.split()
        return row.median < float(limit) if sign == ">=" else row.median > float(limit)

    return table[[bool(row.target) and misses(row) for row in table.itertuples()]]
