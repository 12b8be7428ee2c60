"""What pruning the read-out keeps and what it costs ("Not all FLOPs", sections 4 and 5). `labels` are constant columns put in front."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..errors import CompanionError
from ..exits.policy import ExitPolicy
from .readings import readings
from .statistics import mean_interval

QUANTILES = {"whisker_low": 0.05, "low": 0.25, "median": 0.5, "high": 0.75, "whisker_high": 0.95}


def reduced_read_outs(settings: dict) -> dict[str, dict]:
    """Options of `ExitPolicy` of every way of pruning in notebook 03; `settings`: `top_k`, `first_k`, `least_k`."""
    shrinking = dict(pruning="decaying", top_k=settings["first_k"], least_k=settings["least_k"])
    return {
        "fixed": dict(pruning="fixed", top_k=settings["top_k"]), "decaying": shrinking,
        "decaying_closed": {**shrinking, "pruning_form": "closed"}, "adaptive": dict(pruning="adaptive"),
    }  # fmt: skip


def margins(settings: dict) -> dict[str, ExitPolicy]:
    """The softmax margin over all ids and over each reduced read-out; `settings` besides: `threshold`, `min_layer`."""
    common = dict(threshold=settings["threshold"], min_layer=settings["min_layer"])
    return {form: ExitPolicy("softmax_margin", **common, **options) for form, options in {"unpruned": {}, **reduced_read_outs(settings)}.items()}


def rank_boxes(trace, **labels) -> pd.DataFrame:
    """The rank of the full-depth prediction at every block: quartiles, 5th and 95th percentile, and the share at rank 1 (1 is the top)."""
    rows = []
    for layer in range(1, trace.layers + 1):
        ranks = trace.final_rank[:, layer - 1]
        found = {name: float(np.quantile(ranks, share)) for name, share in QUANTILES.items()}
        rows.append({**labels, "layer": layer, **found, "on_top": float(np.mean(ranks == 1))})
    return pd.DataFrame(rows)


def recall(trace, sizes: Sequence[int], **labels) -> pd.DataFrame:
    """How often the full-depth prediction is among the top `k` of a block: `layer`, `k`, `recall`, with a 95 % interval over sequences."""
    rows = []
    for k in sizes:
        found = mean_interval(trace.final_rank <= k, trace.sequence)
        rows += [
            {**labels, "layer": layer, "k": k, "recall": found.mean[layer - 1], "low": found.low[layer - 1], "high": found.high[layer - 1]}
            for layer in range(1, trace.layers + 1)
        ]
    return pd.DataFrame(rows)


def kept_by_block(trace, policy: ExitPolicy, model, **labels) -> pd.DataFrame:
    """At every block from the first one read out: the share of tokens whose full-depth prediction is still kept, and ids read out there.

    Returns:
        `layer`, `recall` with `low` and `high`, and `ids` (mean over tokens; rows of `W` multiplied there, if nobody exits).
    """
    read, decisions = readings(trace, policy, model), policy.decision_layers(trace.layers)
    found, blocks = mean_interval(read.kept, trace.sequence), [*decisions, trace.layers]
    ids = np.diff(read.products, axis=1, prepend=0).mean(axis=0)
    rows = [
        {**labels, "layer": layer, "recall": found.mean[layer - 1], "low": found.low[layer - 1], "high": found.high[layer - 1], "ids": ids[place]}
        for place, layer in enumerate(blocks)
    ]
    return pd.DataFrame(rows)


def minimum_block(trace, policy: ExitPolicy, precision: float = 0.95, **labels) -> dict:
    """The minimum exit block that a model and task call for, in place of a guess.

    The rule: the first block from which on, at every block, at least a share `precision` of the tokens that the policy would let go there keep
    their prediction, or nobody would be let go. `calibrated` is a second one, without a threshold: the first block from which on the mean
    top-1 probability does not exceed the share of right predictions by more than 0.05 ("right": the last block's); it may fall short of it.
    """
    from .decisions import precision_and_recall

    if not 0 < precision <= 1:
        raise CompanionError(f"precision={precision}: give a share above 0 and up to 1.")
    found = precision_and_recall(trace, policy)
    safe = (found.precision.isna() | (found.precision >= precision)).to_numpy()
    right = (trace.top1_id == trace.final_id[:, None]).mean(axis=0)
    honest = trace.top1_probability.mean(axis=0) - right <= 0.05
    layers = [*found.layer, trace.layers]
    return {**labels, "minimum_block": _from_where_on(safe, layers), "calibrated": _from_where_on(honest, list(range(1, trace.layers + 1)))}


def _from_where_on(right: np.ndarray, layers: Sequence[int]) -> int:
    """The first block from which on all are right; the last block if none is."""
    wrong = np.flatnonzero(~np.asarray(right))
    return layers[min(int(wrong[-1]) + 1, len(layers) - 1)] if len(wrong) else layers[0]


def exactness(pruned: Sequence[Sequence[int]], plain: Sequence[Sequence[int]]) -> dict[str, float]:
    """How often a pruned run emits something else than the same run unpruned.

    Args:
        pruned: ids of every output.
        plain: ids of the same outputs, all ids read out.

    Returns:
        `other_output`, the share of outputs that differ; `other_token`, of the tokens up to the first that differs, the share that does
        (what follows a different token differs for that reason alone).
    """
    differ, compared = 0, 0
    for ours, theirs in zip(pruned, plain, strict=True):
        length = min(len(ours), len(theirs))
        first = next((i for i in range(length) if ours[i] != theirs[i]), None)
        different = first is not None or len(ours) != len(theirs)
        differ, compared = differ + different, compared + (length if first is None else first + 1)
    return {"other_output": differ / len(plain), "other_token": differ / max(1, compared)}


def read_out_costs(shapes: dict, sizes: Sequence[int], min_layer: int) -> pd.DataFrame:
    """What one decision of a rule on probabilities costs over `k` ids, by count of operations.

    Args:
        shapes: name -> `DecoderSizes`.
        sizes: numbers of ids; the whole vocabulary is added.
        min_layer: first block at which a token may exit; it reads out all ids, later blocks (the last one too) read out `k`.

    Returns:
        `shape`, `ids`, `of_a_block` (attention and the keys and values of skipped blocks, which depend on the length and on what follows, left
        out), and `break_even`: the mean exit block, as a share of the
        depth, below which the rule costs less than no exit.
    """
    rows = []
    for shape, of in shapes.items():
        full = of.read_out / of.projections
        for k in [*(k for k in sizes if k < of.vocabulary), of.vocabulary]:
            cost = full * k / of.vocabulary
            # blocks + first read-out + (exit - min_layer) pruned ones = all blocks + one read-out; the last block's own one is pruned too
            even = (of.layers + min_layer * cost) / (1 + cost) / of.layers
            rows.append({"shape": shape, "ids": k, "of_a_block": cost, "break_even": min(1.0, even)})
    return pd.DataFrame(rows)
