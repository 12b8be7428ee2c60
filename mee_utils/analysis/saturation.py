"""When do hidden states stop changing, for which tokens, and is that the same as easy? (MEE, section 4)

A *prefix* is one token of a trace along references: the source and everything before the token are given, and
we watch the state that predicts it. Its similarity at layer l is the cosine of `n(h^l)` with `n(h^L)`. The
published table counts layers from 0 (its first similar state and number of similar ones add up to L - 1).
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd

from ..common.errors import MeeError
from .monotonicity import settled_from, strictly_monotonic
from .statistics import by_layer, by_sequence, interval, mean_interval

EASY = ("grammatical", "copied")  # what needs no search and no computation
GROUPS = ("easy", "difficult")


def describe(trace, threshold: float = 0.9) -> pd.DataFrame:
    """One row a prefix; a state counts as similar to the last one from the cosine `threshold` on.

    `prefix_tokens`: tokens before and with the start token; `mean_similarity` over layers 1 to L - 1;
    `first_similar`: the first similar layer (L if none before); `similar_states`: how many of the L - 1 are
    similar; `rises_after_a`: whether similarity rises strictly from layer a + 1 on, for a = 0, L / 6 and
    L / 3; `settled_from`: the oracle's exit; `loss` on the token in nats.
    """
    if not 0 < threshold < 1:
        raise MeeError(f"threshold={threshold}: give a cosine between 0 and 1 (MEE: 0.9).")
    if trace.along != "reference":
        raise MeeError("Saturation is described on references: trace(model, inputs, references).")
    similarity = trace.final_similarity[:, :-1].astype(np.float64)
    similar = similarity >= threshold
    first = np.where(similar.any(axis=1), similar.argmax(axis=1) + 1, trace.layers)
    columns = {"sequence": trace.sequence, "prefix_tokens": trace.position + 1}
    columns |= {"mean_similarity": similarity.mean(axis=1), "first_similar": first}
    columns |= {"similar_states": similar.sum(axis=1)}
    for after in starts(trace.layers):
        columns[f"rises_after_{after}"] = strictly_monotonic(trace.final_similarity, after)
    probability = trace.token_probability[:, -1].astype(np.float64)
    loss = -np.log(np.maximum(probability, 1e-12))
    return pd.DataFrame(columns | {"settled_from": settled_from(trace), "loss": loss})


def starts(layers: int) -> tuple[int, int, int]:
    """Layers after which similarity should rise: 0, 4 and 8 of 24 (MEE), in proportion for other depths."""
    return 0, round(layers / 6), round(layers / 3)


def select(prefixes: pd.DataFrame, by: str = "mean_similarity", share: float = 0.4) -> pd.Series:
    """For each prefix "easy", "difficult" or "": the two ends of a ranking, a `share` of the prefixes each.

    `by` is "mean_similarity" (high is easy; MEE, with 1,000 of 2,500 at each end), "loss" (low is easy), or
    "difficulty" (known by construction; all prefixes are used).
    """
    if by == "difficulty":
        return pd.Series(np.where(prefixes["difficulty"].isin(EASY), *GROUPS), index=prefixes.index)
    if not 0 < share <= 0.5:
        raise MeeError(f"share={share}: give a share for each end, at most 0.5 (MEE: 0.4).")
    count = max(1, round(share * len(prefixes)))
    order = prefixes[by].sort_values(ascending=by == "loss", kind="stable").index
    groups = pd.Series("", index=prefixes.index)
    groups[order[-count:]] = "difficult"
    groups[order[:count]] = "easy"
    return groups


def compare(prefixes: pd.DataFrame, groups: pd.Series, **labels) -> pd.DataFrame:
    """MEE's Table 1: mean, interval and spread of each property of easy and difficult prefixes."""
    rows = []
    for group in GROUPS:
        found = prefixes[groups == group]
        for name in found.columns.difference(["sequence", "difficulty"], sort=False):
            values = found[name].to_numpy(dtype=np.float64)
            row = {**labels, "group": group, "property": name}
            row |= mean_interval(values, found["sequence"].to_numpy()).columns()
            rows.append(row | {"standard_deviation": values.std(), "prefixes": len(found)})
    return pd.DataFrame(rows)


def similarity_curves(trace, groups: pd.Series, **labels) -> pd.DataFrame:
    """Mean similarity with the last state at each layer: `group`, `layer`, `similarity`, `low`, `high`."""
    part = lambda rows: (trace.final_similarity[rows], trace.sequence[rows], "similarity")
    tables = [by_layer(*part((groups == group).to_numpy()), **labels, group=group) for group in GROUPS]
    return pd.concat(tables, ignore_index=True)


def reached(prefixes: pd.DataFrame, column: str, layers: int, **labels) -> pd.DataFrame:
    """Share of prefixes whose `column` (a layer) is at most l, for every layer l."""
    by_then = prefixes[column].to_numpy()[:, None] <= np.arange(1, layers + 1)
    return by_layer(by_then, prefixes["sequence"].to_numpy(), "share", **labels)


def associations(prefixes, measures: Sequence[str], outcomes: Sequence[str], **labels) -> pd.DataFrame:
    """Spearman's correlation of measures of difficulty ("loss", ..) with depths ("settled_from", ..).

    Resamples draw sequences, and keep the ranks that tokens have among all.
    """
    ranks, sequence, rows = prefixes[[*measures, *outcomes]].rank(), prefixes["sequence"].to_numpy(), []
    for measure, depth in product(measures, outcomes):
        x, y = ranks[measure].to_numpy(), ranks[depth].to_numpy()
        moments = by_sequence(np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1), sequence)
        found = interval(lambda weights, moments=moments: _correlation(weights @ moments), len(moments))
        rows.append({**labels, "measure": measure, "depth": depth, **found.columns("spearman")})
    return pd.DataFrame(rows)


def _correlation(moments: np.ndarray) -> np.ndarray:
    """Pearson's, from sums `[..., (1, x, y, xx, yy, xy)]`."""
    count, x, y, xx, yy, xy = np.moveaxis(moments, -1, 0)
    return (count * xy - x * y) / np.sqrt((count * xx - x * x) * (count * yy - y * y))


def depth_by_difficulty(prefixes, order: Sequence[str], least: int = 20, **labels) -> pd.DataFrame:
    """Mean exit of the oracle and first similar layer by known difficulty, of those with `least` prefixes."""
    rows = []
    for difficulty in order:
        found = prefixes[prefixes["difficulty"] == difficulty]
        for depth in ("settled_from", "first_similar") if len(found) >= least else ():
            mean = mean_interval(found[depth].to_numpy(), found["sequence"].to_numpy()).columns("mean_layer")
            row = {"difficulty": difficulty, "depth": depth, **mean}
            rows.append({**labels, **row, "prefixes": len(found), "loss": found["loss"].mean()})
    return pd.DataFrame(rows)


def examples(trace, prefixes: pd.DataFrame, decode, count: int = 3, **labels) -> pd.DataFrame:
    """Similarity curves of prefixes evenly spaced in the easy and the difficult fifth (MEE, Appendix A)."""
    order = prefixes["mean_similarity"].sort_values(ascending=False, kind="stable").index.to_numpy()
    fifth, tables = max(count, len(order) // 5), []
    for group, ranked in zip(GROUPS, (order[:fifth], order[::-1][:fifth]), strict=True):
        for number, token in enumerate(ranked[np.linspace(0, fifth - 1, count).round().astype(int)], start=1):
            which = {"group": group, "example": number, "token": decode(int(trace.token_id[token]))}
            values = trace.final_similarity[token].astype(np.float64)
            columns = {"layer": np.arange(1, trace.layers + 1), "similarity": values}
            tables.append(pd.DataFrame({**labels, **which, **columns}))
    return pd.concat(tables, ignore_index=True)
