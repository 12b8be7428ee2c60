"""When do hidden states stop changing, for which tokens, and is that the same as easy? (MEE, section 4)

A *prefix* is one token of a trace along references: the source and everything before the token is given, the state that predicts it
is watched. Its similarity at block l is the cosine of `n(h^l)` with `n(h^L)`. Blocks are counted from 1; the published table counts them
from 0 (its first similar state and number of similar states add up to L - 1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..errors import CompanionError
from .monotonicity import settled_from, strictly_monotonic
from .statistics import mean_interval, resampled_tokens

RESAMPLES = 200
EASY = ("grammatical", "copied")  # what needs no search and no computation


def describe(trace, threshold: float = 0.9) -> pd.DataFrame:
    """One row a prefix.

    Args:
        trace: along references.
        threshold: the cosine from which a state counts as similar to the last one.

    Returns:
        `sequence`; `prefix_tokens`, tokens before and with the start token; `mean_similarity` over blocks 1 to L - 1; `first_similar`, the
        first similar block (L if none before); `similar_states`, how many of the L - 1 are similar; `rises_after_a`, whether
        similarity rises strictly from block a + 1 on, for a = 0, L / 6 and L / 3; `settled_from`, the oracle's exit; `loss`, the
        model's own loss on the token in nats.
    """
    if not 0 < threshold < 1:
        raise CompanionError(f"threshold={threshold}: give a cosine between 0 and 1 (MEE: 0.9).")
    if trace.along != "reference":
        raise CompanionError("Saturation is described on references: make the trace with trace(model, inputs, references).")
    similarity = trace.final_similarity[:, :-1].astype(np.float64)
    similar = similarity >= threshold
    return pd.DataFrame(
        {
            "sequence": trace.sequence,
            "prefix_tokens": trace.position + 1,
            "mean_similarity": similarity.mean(axis=1),
            "first_similar": np.where(similar.any(axis=1), similar.argmax(axis=1) + 1, trace.layers),
            "similar_states": similar.sum(axis=1),
            **{f"rises_after_{after}": strictly_monotonic(trace.final_similarity, after) for after in starts(trace.layers)},
            "settled_from": settled_from(trace),
            "loss": -np.log(np.maximum(trace.token_probability[:, -1].astype(np.float64), 1e-12)),
        }
    )


def starts(layers: int) -> tuple[int, int, int]:
    """After which blocks rising is asked for: 0, 4 and 8 of 24 (MEE), in proportion for other depths."""
    return 0, round(layers / 6), round(layers / 3)


def select(prefixes: pd.DataFrame, by: str = "mean_similarity", share: float = 0.4) -> pd.Series:
    """ "easy", "difficult" or "" for each prefix: the two ends of a ranking.

    Args:
        prefixes: from `describe`, with a column `difficulty` for `by="difficulty"`.
        by: "mean_similarity" (high is easy; MEE), "loss" (low is easy), or "difficulty" (known by construction; all prefixes are used).
        share: of the prefixes at each end (MEE: 1,000 of 2,500).
    """
    if by == "difficulty":
        return pd.Series(np.where(prefixes["difficulty"].isin(EASY), "easy", "difficult"), index=prefixes.index)
    if not 0 < share <= 0.5:
        raise CompanionError(f"share={share}: give a share of the prefixes for each end, at most 0.5 (MEE: 0.4).")
    count = max(1, round(share * len(prefixes)))
    order = prefixes[by].sort_values(ascending=by == "loss", kind="stable").index
    groups = pd.Series("", index=prefixes.index)
    groups[order[-count:]] = "difficult"
    groups[order[:count]] = "easy"
    return groups


def compare(prefixes: pd.DataFrame, groups: pd.Series, **labels) -> pd.DataFrame:
    """MEE's Table 1: mean, 95 % interval over sequences and standard deviation of each property, for easy and difficult prefixes."""
    rows = []
    for group in ("easy", "difficult"):
        found = prefixes[groups == group]
        for name in [c for c in prefixes if c not in ("sequence", "difficulty")]:
            values = found[name].to_numpy(dtype=np.float64)
            interval = mean_interval(values, found["sequence"].to_numpy())
            rows.append(
                {**labels, "group": group, "property": name, "mean": interval.mean, "low": interval.low, "high": interval.high,
                 "standard_deviation": values.std(), "prefixes": len(found)}
            )  # fmt: skip
    return pd.DataFrame(rows)


def similarity_curves(trace, groups: pd.Series, **labels) -> pd.DataFrame:
    """Mean similarity with the last state at each block, for easy and difficult prefixes: `group`, `layer`, `similarity`, `low`, `high`."""
    tables = []
    for group in ("easy", "difficult"):
        chosen = (groups == group).to_numpy()
        interval = mean_interval(trace.final_similarity[chosen], trace.sequence[chosen])
        layer = np.arange(1, trace.layers + 1)
        tables.append(
            pd.DataFrame({**labels, "group": group, "layer": layer, "similarity": interval.mean, "low": interval.low, "high": interval.high})
        )
    return pd.concat(tables, ignore_index=True)


def reached(prefixes: pd.DataFrame, column: str, layers: int, **labels) -> pd.DataFrame:
    """Share of prefixes whose `column` (a block) is at most l, for every l, with 95 % intervals over sequences."""
    values = prefixes[column].to_numpy()[:, None] <= np.arange(1, layers + 1)
    interval = mean_interval(values, prefixes["sequence"].to_numpy())
    return pd.DataFrame(
        {**labels, "layer": np.arange(1, layers + 1), "share": interval.mean, "low": interval.low, "high": interval.high}
    )


def log_frequency(token_ids: np.ndarray, training_ids: Sequence[Sequence[int]]) -> np.ndarray:
    """`[token]`, logarithm of one more than how often each token stands in the training targets."""
    counts = Counter(token for ids in training_ids for token in ids)
    return np.log1p([counts[int(token)] for token in token_ids])


def associations(prefixes: pd.DataFrame, measures: Sequence[str], outcomes: Sequence[str], **labels) -> pd.DataFrame:
    """Spearman's rank correlation of measures of difficulty with outcomes, with 95 % intervals over sequences.

    Args:
        prefixes: from `describe`, with the columns named.
        measures: columns that might foretell depth, such as "loss", "prefix_tokens", "log_frequency".
        outcomes: columns that are a depth, such as "first_similar" and "settled_from".
        labels: constant columns.
    """
    rows = []
    for measure in measures:
        for outcome in outcomes:
            pair = prefixes[[measure, outcome]]
            drawn = [
                _spearman(pair.iloc[chosen]) for chosen in resampled_tokens(prefixes["sequence"].to_numpy(), RESAMPLES)
            ]
            low, high = np.nanpercentile(drawn, [2.5, 97.5])
            rows.append({**labels, "measure": measure, "depth": outcome, "spearman": _spearman(pair), "low": low, "high": high})
    return pd.DataFrame(rows)


def _spearman(pair: pd.DataFrame) -> float:
    ranks = pair.rank()
    return float(ranks.iloc[:, 0].corr(ranks.iloc[:, 1]))


def depth_by_difficulty(prefixes: pd.DataFrame, order: Sequence[str], least: int = 20, **labels) -> pd.DataFrame:
    """Mean exit of the oracle and mean first similar block for each known difficulty, with 95 % intervals over sequences.

    Args:
        prefixes: from `describe`, with a column `difficulty`.
        order: the difficulties in order.
        least: difficulties with fewer prefixes are left out.
        labels: constant columns.
    """
    rows = []
    for difficulty in order:
        found = prefixes[prefixes["difficulty"] == difficulty]
        if len(found) < least:
            continue
        for depth in ("settled_from", "first_similar"):
            interval = mean_interval(found[depth].to_numpy(), found["sequence"].to_numpy())
            rows.append(
                {**labels, "difficulty": difficulty, "depth": depth, "block": interval.mean, "low": interval.low, "high": interval.high,
                 "prefixes": len(found), "loss": found["loss"].mean()}
            )  # fmt: skip
    return pd.DataFrame(rows)


def examples(trace, prefixes: pd.DataFrame, count: int = 3, **labels) -> pd.DataFrame:
    """Similarity curves of single prefixes (MEE, Appendix A): those at evenly spaced ranks of the easy and the difficult fifth."""
    order = prefixes["mean_similarity"].sort_values(ascending=False, kind="stable").index.to_numpy()
    fifth, tables = max(count, len(order) // 5), []
    for group, ranked in (("easy", order[:fifth]), ("difficult", order[::-1][:fifth])):
        for number, token in enumerate(ranked[np.linspace(0, fifth - 1, count).round().astype(int)], start=1):
            curve = {"layer": np.arange(1, trace.layers + 1), "similarity": trace.final_similarity[token].astype(np.float64)}
            tables.append(pd.DataFrame({**labels, "group": group, "example": number, **curve}))
    return pd.concat(tables, ignore_index=True)
