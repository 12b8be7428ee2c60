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
from .statistics import Estimate, by_layer, by_sequence, interval, mean_interval

EASY = ("grammatical", "copied")  # difficulties that need no search and no computation
GROUPS = ("easy", "difficult")
LEAST_PREFIXES = 20  # of a difficulty, for a mean over them


def describe(trace, threshold: float = 0.9) -> pd.DataFrame:
    """One row a prefix of a `trace` along references.

    A state counts as similar to the last one from the cosine `threshold` on (MEE: 0.9). Columns:

    - `sequence`, the index of the input; `prefix_tokens`, tokens before and with the start token;
    - `mean_similarity` over layers 1 to L - 1;
    - `first_similar`, the first similar layer (L if none before);
    - `similar_states`, how many of the L - 1 are similar;
    - `rises_after_a`, whether similarity rises strictly from layer a + 1 on, for a = 0, L / 6 and L / 3;
    - `settled_from`, the oracle's exit layer; `loss` on the token, in nats.

    Raises `MeeError` for a threshold outside 0..1, or a trace of the model's own output.
    """
    if not 0 < threshold < 1:
        raise MeeError(f"threshold={threshold}: give a cosine between 0 and 1 (MEE: 0.9).")
    if trace.along != "reference":
        raise MeeError("Saturation is described on references: trace(model, inputs, references).")
    similarity = trace.final_similarity[:, :-1].astype(np.float64)  # [token, layer - 1]
    similar = similarity >= threshold
    first_similar = np.where(similar.any(axis=1), similar.argmax(axis=1) + 1, trace.layers)
    probability = trace.token_probability[:, -1].astype(np.float64)
    columns = {
        "sequence": trace.sequence,
        "prefix_tokens": trace.position + 1,
        "mean_similarity": similarity.mean(axis=1),
        "first_similar": first_similar,
        "similar_states": similar.sum(axis=1),
    }
    for after in starts(trace.layers):
        columns[f"rises_after_{after}"] = strictly_monotonic(trace.final_similarity, after)
    columns["settled_from"] = settled_from(trace)
    columns["loss"] = -np.log(np.maximum(probability, 1e-12))
    return pd.DataFrame(columns)


def starts(layers: int) -> tuple[int, int, int]:
    """Layers after which similarity should rise: 0, 4 and 8 of 24 (MEE), in proportion for other depths."""
    return 0, round(layers / 6), round(layers / 3)


def select(prefixes: pd.DataFrame, by: str = "mean_similarity", share: float = 0.4) -> pd.Series:
    """For each prefix "easy", "difficult" or "": the two ends of a ranking, a `share` of the prefixes each.

    Args:
        prefixes: what `describe` returns; for "difficulty" with such a column.
        by: "mean_similarity" (high is easy; MEE, with 1,000 of 2,500 at each end), "loss" (low is easy), or
            "difficulty" (of the synthetic data, by construction; all prefixes are used).
        share: of the prefixes at each end, above 0 and at most 0.5; else a `MeeError`.
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
        members = prefixes[groups == group]
        for name in members.columns.difference(["sequence", "difficulty"], sort=False):
            values = members[name].to_numpy(dtype=np.float64)
            row = {
                **labels,
                "group": group,
                "property": name,
                **mean_interval(values, members["sequence"].to_numpy()).columns(),
                "standard_deviation": values.std(),
                "prefixes": len(members),
            }
            rows.append(row)
    return pd.DataFrame(rows)


def similarity_curves(trace, groups: pd.Series, **labels) -> pd.DataFrame:
    """Mean similarity with the last state at each layer: `group`, `layer`, `similarity`, `low`, `high`."""
    tables = []
    for group in GROUPS:
        rows = (groups == group).to_numpy()
        similarity = trace.final_similarity[rows]  # [token, layer]
        tables.append(by_layer(similarity, trace.sequence[rows], "similarity", **labels, group=group))
    return pd.concat(tables, ignore_index=True)


def reached(prefixes: pd.DataFrame, column: str, layers: int, **labels) -> pd.DataFrame:
    """Share of prefixes whose `column` (a layer) is at most l, for every layer l."""
    by_then = prefixes[column].to_numpy()[:, None] <= np.arange(1, layers + 1)
    return by_layer(by_then, prefixes["sequence"].to_numpy(), "share", **labels)


def associations(prefixes, measures: Sequence[str], outcomes: Sequence[str], **labels) -> pd.DataFrame:
    """Spearman's correlation of measures of difficulty ("loss", ..) with depths ("settled_from", ..).

    Resamples draw sequences, and keep the ranks that tokens have among all.
    """
    ranks = prefixes[[*measures, *outcomes]].rank()
    sequence = prefixes["sequence"].to_numpy()
    rows = []
    for measure, depth in product(measures, outcomes):
        correlation = _correlation(ranks[measure].to_numpy(), ranks[depth].to_numpy(), sequence)
        rows.append({**labels, "measure": measure, "depth": depth, **correlation.columns("spearman")})
    return pd.DataFrame(rows)


def _correlation(x: np.ndarray, y: np.ndarray, sequence: np.ndarray) -> Estimate:
    """Pearson's correlation of `[token]` values; resamples draw sequences."""
    moments = by_sequence(np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1), sequence)

    def correlation(weights: np.ndarray) -> np.ndarray:
        count, sum_x, sum_y, xx, yy, xy = (weights @ moments).T
        variances = (count * xx - sum_x * sum_x) * (count * yy - sum_y * sum_y)
        return (count * xy - sum_x * sum_y) / np.sqrt(variances)

    return interval(correlation, units=len(moments))


def depth_by_difficulty(
    prefixes, order: Sequence[str], least: int = LEAST_PREFIXES, **labels
) -> pd.DataFrame:
    """Mean exit of the oracle and first similar layer by difficulty, for those with `least` prefixes.

    One row a difficulty (of the synthetic data) and `depth` ("settled_from" or "first_similar").
    """
    rows = []
    for difficulty in order:
        members = prefixes[prefixes["difficulty"] == difficulty]
        if len(members) < least:
            continue
        for depth in ("settled_from", "first_similar"):
            mean = mean_interval(members[depth].to_numpy(), members["sequence"].to_numpy())
            rows.append(
                {
                    **labels,
                    "difficulty": difficulty,
                    "depth": depth,
                    **mean.columns("mean_layer"),
                    "prefixes": len(members),
                    "loss": members["loss"].mean(),
                }
            )
    return pd.DataFrame(rows)


def examples(trace, prefixes: pd.DataFrame, decode, count: int = 3, **labels) -> pd.DataFrame:
    """Similarity curves of prefixes evenly spaced in the easy and the difficult fifth (MEE, Appendix A)."""
    ranked = prefixes["mean_similarity"].sort_values(ascending=False, kind="stable").index.to_numpy()
    fifth = max(count, len(ranked) // 5)
    chosen = np.linspace(0, fifth - 1, count).round().astype(int)
    ends = {"easy": ranked[:fifth], "difficult": ranked[::-1][:fifth]}
    tables = []
    for group, prefixes_of_group in ends.items():
        for number, token in enumerate(prefixes_of_group[chosen], start=1):
            columns = {
                **labels,
                "group": group,
                "example": number,
                "token": decode(int(trace.token_id[token])),
                "layer": np.arange(1, trace.layers + 1),
                "similarity": trace.final_similarity[token].astype(np.float64),
            }
            tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)
