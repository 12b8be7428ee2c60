"""How good are exit decisions? Read off a trace, block by block, whatever the measure (MEE, section 5).

Two questions are kept apart: does the measure *rank* tokens by whether they may exit (area under the ROC curve, which needs no
threshold), and what happens at one threshold (precision and recall). A token *may* exit at a block if its prediction there is the
last block's. `labels` are constant columns that every table gets in front.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..errors import CompanionError
from ..exits.policy import ExitPolicy
from .monotonicity import settled_from
from .readings import Readings, readings
from .replay import confidences, sweep
from .statistics import mean_interval, reliability


def roc_area(score: np.ndarray, label: np.ndarray) -> float:
    """Area under the ROC curve: how often a token that may exit is scored above one that may not; ties count half.

    Args:
        score: `[token]`.
        label: `[token]`, truth values; where all are alike there is nothing to rank, and the area is not a number.

    >>> roc_area(np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True]))
    0.875
    """
    positive = int(np.sum(label))
    negative = len(label) - positive
    if not positive or not negative:
        return float("nan")
    ranks = pd.Series(np.asarray(score, dtype=np.float64)).rank().to_numpy()
    return float((ranks[np.asarray(label)].sum() - positive * (positive + 1) / 2) / (positive * negative))


def may_exit(trace, layers: Sequence[int]) -> np.ndarray:
    """`[token, layer]`, whether the prediction at these blocks is the last block's."""
    return trace.top1_id[:, np.asarray(layers) - 1] == trace.final_id[:, None]


def ranking(trace, policy: ExitPolicy, model=None, labels: dict | None = None, asked: np.ndarray | None = None) -> pd.DataFrame:
    """How well a measure ranks tokens, at each block it is asked at: `layer`, `roc_area`; `asked` as in `sweep`."""
    layers, found = policy.decision_layers(trace.layers), confidences(trace, policy, model) if asked is None else asked
    right = may_exit(trace, layers)
    rows = [{**(labels or {}), "layer": layer, "roc_area": roc_area(found[:, i], right[:, i])} for i, layer in enumerate(layers)]
    return pd.DataFrame(rows)


def precision_and_recall(trace, policy: ExitPolicy, model=None, labels: dict | None = None, max_new_tokens: int = 64) -> pd.DataFrame:
    """What happens at the policy's threshold, block by block; `max_new_tokens` is the `N` of a decaying one.

    Returns:
        `layer`; `precision`, of the tokens above the threshold there, the share whose prediction is the last block's; `recall`, of the
        tokens at which the oracle has exited by then, the share above the threshold; `above`, the share of all tokens; each of the
        first two with a 95 % interval over sequences (not a number where there is no such token).
    """
    layers, found = policy.decision_layers(trace.layers), confidences(trace, policy, model)
    above = policy.schedule.exceeded(found, np.asarray(trace.position)[:, None], max_new_tokens)
    right, settled, rows = may_exit(trace, layers), settled_from(trace), []
    for i, layer in enumerate(layers):
        row = {**(labels or {}), "layer": layer, "above": float(above[:, i].mean())}
        for name, values, chosen in (("precision", right[:, i], above[:, i]), ("recall", above[:, i], settled <= layer)):
            interval = mean_interval(values[chosen], trace.sequence[chosen]) if chosen.any() else None
            for part, suffix in (("mean", ""), ("low", "_low"), ("high", "_high")):
                row[name + suffix] = float(getattr(interval, part)) if interval else float("nan")
        rows.append(row)
    return pd.DataFrame(rows)


def calibration(trace, policy: ExitPolicy, model=None, labels: dict | None = None, bins: int = 10) -> pd.DataFrame:
    """Confidence against how often the prediction is the last block's, all deciding blocks together.

    Returns:
        One row a bin that is not empty: `confidence`, `accuracy`, `count`, and the expected calibration `error` of all bins.
    """
    layers = policy.decision_layers(trace.layers)
    found = reliability(confidences(trace, policy, model).ravel(), may_exit(trace, layers).ravel(), bins)
    table = pd.DataFrame({"confidence": found.confidence, "accuracy": found.accuracy, "count": found.count})
    table = table[table["count"] > 0].reset_index(drop=True)
    return pd.concat([pd.DataFrame([{**(labels or {}), "error": found.error}] * len(table)), table], axis=1)


def threshold_for(
    trace, policy: ExitPolicy, same_token: float, model=None, steps: int = 200, asked: np.ndarray | Readings | None = None
) -> pd.Series:
    """The lowest threshold from which on at least this share of the predictions at the exits is the last block's; see `thresholds_for`."""
    return thresholds_for(trace, policy, [same_token], model, steps, asked).iloc[0]


def thresholds_for(
    trace, policy: ExitPolicy, shares: Sequence[float], model=None, steps: int = 200, asked: np.ndarray | Readings | None = None
) -> pd.DataFrame:
    """For each share the lowest threshold from which on at least so many of the predictions at the exits are the last block's.

    Args:
        trace: from `mee_utils.trace`.
        policy: measure and blocks; its threshold is replaced.
        shares: those wanted, 0 to 1.
        model: as in `replay`.
        steps: how many thresholds are tried, at quantiles of the confidences, with four decimals (so that tables hold them exactly).
        asked: as in `sweep`.

    Returns:
        One row a share: `threshold`, `mean_exit_layer`, `same_token`; with the highest threshold there is if no lower one will do.
    """
    for share in shares:
        if not 0 <= share <= 1:
            raise CompanionError(f"same_token={share}: give a share from 0 to 1.")
    if asked is None:
        asked = confidences(trace, policy, model) if policy.read_out.plain else readings(trace, policy, model)
    values = asked.confidences if isinstance(asked, Readings) else asked
    tried = np.unique(np.round(np.quantile(values, np.linspace(0, 1, steps), method="lower"), 4))
    low, high = policy.rule.range
    table, places = sweep(trace, policy, np.clip([*tried, high], low, high), model=model, asked=asked), []
    for share in shares:
        enough = np.logical_and.accumulate((table["same_token"] >= share).to_numpy()[::-1])[::-1]
        places.append(int(np.argmax(enough)) if enough.any() else len(table) - 1)
    return table.iloc[places].reset_index(drop=True)
