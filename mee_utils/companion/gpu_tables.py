"""What `make bench` timed on a GPU, beside the same on the CPU of the other tables: a section of `speed.md`.

GPUs have tables of their own (`figures/bench/gpu`). Where there are none, the section is left out.
"""

from pathlib import Path

import pandas as pd

from ..models.costs import SHAPES
from . import result_tables
from .prose import listed, span
from .result_tables import BENCH, GPU
from .stored_tables import StoredTables, with_range

SHAPE = "t5-large"
PROFILE = "small"  # whose exits are played there
LINE = ["what", "dtype", "batch"]  # what identifies a line of the section
PEER = "transformers generate"
HALF = f"all tokens leave at layer {SHAPES[SHAPE].layers // 2}"
DECISIONS = {  # name in `decoder.csv` -> what readers are told
    "softmax_margin": "one decision: the margin over all entries",
    "margin, 256 ids kept": "one decision: the margin over 256 entries",
    "hidden_similarity": "one decision: the similarity of states",
}
KINDS = {True: "verified exits, simulated", False: "the fastest unverified exits, simulated"}
IN_LAYERS = "times one layer"
AGAINST_FULL = "times full depth"
LAUNCH_BOUND = 0.2  # of the memory bandwidth: a decoder that uses less waits for the host


def on_gpu(stored: StoredTables) -> pd.DataFrame:
    """At most twelve lines of T5-large's shape, on the GPU and on the CPU; no rows: no GPU was timed."""
    here = pd.concat([_decoder_lines(stored.gpu_bench()), _simulated(BENCH / GPU)])
    if here.empty:
        return pd.DataFrame()
    stored.note_gpu()
    beside = pd.concat([_decoder_lines(stored.decoder_lines()), _simulated(BENCH)])
    beside = beside.set_index(LINE).cell.rename("CPU")
    table = here.rename(columns={"cell": "GPU"}).join(beside, on=LINE)
    return table[["what", "dtype", "batch", "unit", "GPU", "CPU"]].reset_index(drop=True)


def _decoder_lines(rows: pd.DataFrame) -> pd.DataFrame:
    """The lines of one machine in `decoder.csv` that are shown, with their `cell`."""
    rows = rows[rows["shape"] == SHAPE]
    ours = (rows.group == "full depth") & (rows.what == "ours") & rows.against.str.startswith(PEER)
    half = (rows.what == HALF) & (rows.against == "ours, full depth")
    decision = (rows.group == "one decision") & rows.what.isin(DECISIONS)
    shown = [
        rows[ours].assign(what="full depth", unit=f"times {PEER}"),
        rows[half].assign(what="exits at half depth", unit=AGAINST_FULL),
        rows[decision].replace({"what": DECISIONS}).assign(unit=IN_LAYERS),
    ]
    table = pd.concat(shown)
    table["cell"] = with_range(table, "median", "lowest", "highest")
    return table[[*LINE, "unit", "cell", "median"]]


def _simulations(folder: Path) -> pd.DataFrame:
    """The fastest exits of the small models in a decoder of this shape, by task, kind and batch."""
    fastest = result_tables.fastest_by_shape(folder)
    return fastest[(fastest["shape"] == SHAPE) & (fastest.profile == PROFILE)]


def _simulated(folder: Path) -> pd.DataFrame:
    """Exits of the small models in a decoder of this shape, one output at a time: the range over tasks."""
    rows = _simulations(folder)
    rows = rows[rows.batch == 1].sort_values("speed", ascending=False, kind="stable")
    lines = []
    for verified, what in KINDS.items():
        of_kind = rows[(rows.kind == "verified") == verified].drop_duplicates("task")
        if len(of_kind):
            lines.append({"what": what, "cell": span(of_kind.speed, "{:.2f}")})
    table = pd.DataFrame(lines, columns=["what", "cell"])
    return table.assign(dtype="float32", batch=1, unit=AGAINST_FULL)


def sentence(stored: StoredTables) -> str:
    """What the section says, a sentence for each part that was timed; "" where no GPU was."""
    rows = stored.gpu_bench()
    lines = _decoder_lines(rows)
    full = lines[lines.what == "full depth"]
    if full.empty:
        return ""
    sentences = [
        f"On an {rows.processor.iloc[0]}, at T5-large's shape, our decoder at full depth is "
        f"{span(full['median'], '{:.1f}')} times as fast as `generate` of `transformers`{_gained(lines)}.",
        _limited_by(rows),
    ]
    decisions = lines[lines.unit == IN_LAYERS]["median"]
    if len(decisions):
        sentences.append(f"A decision waits for the GPU, and costs {span(decisions, '{:.2f}')} layers.")
    sentences.append(_of_verified(verified_on_gpu()))
    return " ".join(filter(None, sentences))


def verified_on_gpu() -> dict:
    """How fast verified exits of the small models would be on the GPU in a decoder of this shape.

    The `least` and `most` of tasks one output at a time, and in how many of the `cases` in `batches` they are
    `faster_in_batches` in every timing run. {}: not timed.
    """
    rows = _simulations(BENCH / GPU)
    rows = rows[rows.kind == "verified"]
    if rows.empty:
        return {}
    alone = rows[rows.batch == 1]
    in_batches = rows[rows.batch > 1]
    return {
        "least": alone.speed.min(),
        "most": alone.speed.max(),
        "batches": sorted(in_batches.batch.unique()),
        "cases": len(in_batches),
        "faster_in_batches": int((in_batches.low > 1).sum()),
    }


def _of_verified(simulated: dict) -> str:
    """What the simulation says of verified exits there, in words; "" if it was not run."""
    if not simulated:
        return ""
    speeds = span([simulated["least"], simulated["most"]], "{:.2f}")
    batches = listed(map(str, simulated["batches"]))
    return (
        f"Simulated with the exits of the models for synthetic data, verified exits are {speeds} times as "
        f"fast as full depth, one output at a time; in batches of {batches} they win in "
        f"{simulated['faster_in_batches'] or 'none'} of {simulated['cases']} cases."
    )


def _gained(lines: pd.DataFrame) -> str:
    """How much faster exits at half depth are, with the range over timing runs; "" if they were not timed."""
    half = lines[lines.what == "exits at half depth"]
    if half.empty:
        return ""
    return f", and {half.cell.iloc[0]} times as fast again if all tokens exit at half depth"


def _limited_by(rows: pd.DataFrame) -> str:
    """The share of the memory bandwidth that one output at a time uses; "" if it was not timed."""
    of_limit = (rows["shape"] == SHAPE) & (rows.unit == "of the limit") & (rows.what == "ours")
    if not of_limit.any():
        return ""
    share = rows[of_limit]["median"].iloc[0]
    bound = ": launching kernels is the limit, not reading weights" if share < LAUNCH_BOUND else ""
    return f"One output at a time, it uses {share:.0%} of the GPU's memory bandwidth{bound}."
