"""How good are exit decisions? Read off a replay, layer by layer, whatever the measure (MEE, section 5).

Two questions are kept apart: does the measure *rank* tokens by whether they may exit (area under the ROC
curve, which needs no threshold), and what happens at one threshold (precision and recall, share of
predictions that stay). A token *may* exit at a layer if its prediction there is that of full depth. `labels`
are constant columns put in front.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..common.errors import CompanionError
from ..traces.replay import PolicyReplay
from .monotonicity import settled_from
from .statistics import Interval, mean_interval, reliability


def roc_area(score: np.ndarray, label: np.ndarray) -> float:
    """Area under the ROC curve: how often a token that may exit is scored above one that may not.

    Ties count half. If all labels are alike there is nothing to rank, and the area is not a number.

    Args:
        score: `[token]`.
        label: `[token]`, truth values.

    >>> roc_area(np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True]))
    0.875
    """
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(label, score)) if 0 < np.sum(label) < len(label) else float("nan")


def ranking(replayed: PolicyReplay, **labels) -> pd.DataFrame:
    """How well a measure ranks tokens, at each layer at which it decides: `layer`, `roc_area`."""
    columns = zip(replayed.decision_layers, replayed.confidences.T, replayed.same_token.T, strict=False)
    rows = [
        {**labels, "layer": layer, "roc_area": roc_area(score, may_exit)}
        for layer, score, may_exit in columns
    ]
    return pd.DataFrame(rows)


def precision_and_recall(replayed: PolicyReplay, max_new_tokens: int = 64, **labels) -> pd.DataFrame:
    """What happens at the policy's threshold, layer by layer; `max_new_tokens` is the `N` of a decaying one.

    Returns:
        `layer`; `precision`, of the tokens above the threshold there, the share that may exit; `recall`, of
        the tokens at which the oracle has exited by then, the share above the threshold; `above`, the share
        of all tokens; each of the first two with a 95 % interval over sequences (not a number where there is
        no such token).
    """
    above, sequence = replayed.exceeded(max_new_tokens), replayed.trace.sequence
    settled, rows = settled_from(replayed.trace), []
    for place, layer in enumerate(replayed.decision_layers):
        row = {**labels, "layer": layer, "above": float(above[:, place].mean())}
        for name, values, chosen in (
            ("precision", replayed.same_token[:, place], above[:, place]),
            ("recall", above[:, place], settled <= layer),
        ):
            interval = Interval(np.nan, np.nan, np.nan)
            if chosen.any():
                interval = mean_interval(values[chosen], sequence[chosen])
            row |= interval.columns(name, f"{name}_")
        rows.append(row)
    return pd.DataFrame(rows)


def reliability_diagram(replayed: PolicyReplay, bins: int = 10, **labels) -> pd.DataFrame:
    """Confidence against how often the token may exit, all deciding layers together.

    Returns:
        One row a bin that is not empty: `confidence`, `accuracy`, `count`, and the expected calibration
            `error` of all bins.
    """
    right = replayed.same_token[:, : len(replayed.decision_layers)]
    found = reliability(replayed.confidences.ravel(), right.ravel(), bins)
    columns = {"confidence": found.confidence, "accuracy": found.accuracy, "count": found.count}
    table = pd.DataFrame({**labels, "error": found.error, **columns})
    return table[table["count"] > 0].reset_index(drop=True)


def at_exits(replayed: PolicyReplay, max_new_tokens: int = 64) -> dict[str, float]:
    """`mean_exit_layer`, and `same_token`, the share of predictions at the exits that are those of full
    depth.
    """
    exits = replayed.exits(max_new_tokens)
    same = replayed.same_token[np.arange(len(exits)), exits]
    return {"mean_exit_layer": replayed.layers[exits].mean(), "same_token": same.mean()}


def sweep(replayed: PolicyReplay, thresholds: Sequence[float], max_new_tokens: int = 64) -> pd.DataFrame:
    """Replays a policy at many thresholds.

    Args:
        replayed: from `replay_policy`; the threshold of its policy is replaced.
        thresholds: the values to try.
        max_new_tokens: the `N` of a decaying threshold.

    Returns:
        One row a threshold: `threshold` and what `at_exits` returns.

    Raises:
        CompanionError: a threshold that the measure cannot take, or a policy without one.
    """
    rows = [
        {"threshold": float(level), **at_exits(replayed.at_threshold(float(level)), max_new_tokens)}
        for level in thresholds
    ]
    return pd.DataFrame(rows)


def thresholds_for(replayed: PolicyReplay, shares: Sequence[float], steps: int = 200) -> pd.DataFrame:
    """For each share the lowest threshold from which on at least so many predictions stay those of full
    depth.

    Args:
        replayed: from `replay_policy`.
        shares: those wanted, 0 to 1.
        steps: how many thresholds are tried, at quantiles of the confidences, with four decimals (so that
            tables hold them exactly).

    Returns:
        One row a share, as `sweep` gives it; with the highest threshold there is if no lower one will do.
    """
    for share in shares:
        if not 0 <= share <= 1:
            raise CompanionError(f"same_token={share}: give a share from 0 to 1.")
    levels = np.linspace(0, 1, steps)
    tried = np.unique(np.round(np.quantile(replayed.confidences, levels, method="lower"), 4))
    low, high = replayed.policy.measure.range
    table, places = sweep(replayed, np.clip([*tried, high], low, high)), []
    for share in shares:
        enough = np.logical_and.accumulate((table["same_token"] >= share).to_numpy()[::-1])[::-1]
        places.append(int(np.argmax(enough)) if enough.any() else len(table) - 1)
    return table.iloc[places].reset_index(drop=True)
