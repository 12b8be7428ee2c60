"""What pruned readouts keep ("Not all FLOPs", sections 4 and 5)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..common.errors import MeeError
from ..traces.replay import PolicyReplay
from ..traces.trace import Trace
from .comparison import until_different
from .decisions import precision_and_recall
from .statistics import interval, mean_interval

QUANTILES = {"whisker_low": 0.05, "low": 0.25, "median": 0.5, "high": 0.75, "whisker_high": 0.95}
OVERCONFIDENCE = 0.05  # how far the mean top-1 probability of a calibrated layer may exceed its accuracy


def rank_boxes(trace: Trace, **labels) -> pd.DataFrame:
    """Rank of the full-depth prediction at every layer (1 is the top): quantiles, and the share at rank 1."""
    quantiles = np.quantile(trace.final_rank, list(QUANTILES.values()), axis=0)  # [quantile, layer]
    table = pd.DataFrame({**labels, "layer": np.arange(1, trace.layers + 1)})
    for name, ranks in zip(QUANTILES, quantiles, strict=True):
        table[name] = ranks
    return table.assign(on_top=(trace.final_rank == 1).mean(axis=0))


def recall(trace: Trace, sizes: Sequence[int], **labels) -> pd.DataFrame:
    """`recall`: how often the full-depth prediction is among the top `k` of a `layer`, with an interval."""
    layers = np.arange(1, trace.layers + 1)
    tables = []
    for k in sizes:
        columns = mean_interval(trace.final_rank <= k, trace.sequence).columns("recall")
        tables.append(pd.DataFrame({**labels, "layer": layers, "k": k, **columns}))
    return pd.concat(tables, ignore_index=True)


def minimum_layer(replayed: PolicyReplay, precision: float = 0.95, **labels) -> dict:
    """The minimum exit layer that a model and task call for, in place of a guess.

    `minimum_layer`: from there on at least a share `precision` of the tokens that the policy would let exit
    at a layer keep their prediction. `calibrated` needs no threshold: from there on the mean top-1
    probability exceeds the share of predictions that are full depth's by at most 0.05.
    """
    if not 0 < precision <= 1:
        raise MeeError(f"precision={precision}: give a share above 0 and up to 1.")
    trace = replayed.trace
    kept = precision_and_recall(replayed).precision
    precise = kept.isna() | (kept >= precision)
    accuracy = (trace.top1_id == trace.final_id[:, None]).mean(axis=0)
    calibrated = trace.top1_probability.mean(axis=0) - accuracy <= OVERCONFIDENCE
    return {
        **labels,
        "minimum_layer": _from_where_on(precise, replayed.layers.tolist()),
        "calibrated": _from_where_on(calibrated, range(1, trace.layers + 1)),
    }


def _from_where_on(right: np.ndarray, layers: Sequence[int]) -> int:
    """The first layer from which on all are right; the last layer if none is."""
    wrong = np.flatnonzero(~np.asarray(right))
    if not len(wrong):
        return layers[0]
    return layers[min(int(wrong[-1]) + 1, len(layers) - 1)]


def exactness(pruned: Sequence[Sequence[int]], plain: Sequence[Sequence[int]]) -> dict:
    """How often a pruned run emits something else than the same run unpruned; both are ids of every output.

    `other_output` is the share of outputs that differ; `other_token`, of the tokens up to the first that
    differs (what follows differs for that reason alone), the share that does, with an interval over outputs.
    """
    differ = np.zeros(len(plain))
    compared = np.zeros(len(plain))
    for number, (ids, plain_ids) in enumerate(zip(pruned, plain, strict=True)):
        same, tokens = until_different(ids, plain_ids)
        differ[number] = not same
        compared[number] = tokens
    share = interval(lambda weights: (weights @ differ) / (weights @ compared), len(plain))
    return {"other_output": differ.mean(), **share.columns("other_token", "other_token_")}
