"""Which threshold? A policy is replayed at many: where do its tokens exit, and with full depth's predictions?

A replay has the confidences of all decisions, so that trying a threshold costs next to nothing.
`thresholds_for` finds those that keep a share of the predictions, `candidates` a few that cover everything
from no exit to the most exits. `max_new_tokens` is the `N` of a decaying threshold.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..common.errors import MeeError
from ..exits.measures import check_not_infinite
from ..traces.replay import PolicyReplay, values_at_exits


def at_exits(replayed: PolicyReplay, max_new_tokens: int = 64) -> dict[str, float]:
    """`mean_exit_layer`, and `same_token`, the share of predictions at the exits that are full depth's."""
    return {name: values.mean() for name, values in exit_values(replayed, max_new_tokens).items()}


def exit_values(replayed: PolicyReplay, max_new_tokens: int = 64) -> dict[str, np.ndarray]:
    """`[token]` each: the layer of the exit, and whether its prediction is that of full depth."""
    exits = replayed.exits(max_new_tokens)
    same = values_at_exits(replayed.same_token, exits)
    return {"mean_exit_layer": replayed.layers[exits], "same_token": same}


def sweep(replayed: PolicyReplay, thresholds: Sequence[float], max_new_tokens: int = 64) -> pd.DataFrame:
    """Replays a policy at other thresholds: one row each, `threshold` and what `at_exits` returns."""
    rows = []
    for threshold in map(float, thresholds):
        rows.append({"threshold": threshold, **at_exits(replayed.at_threshold(threshold), max_new_tokens)})
    return pd.DataFrame(rows)


def thresholds_for(replayed: PolicyReplay, shares: Sequence[float], steps: int = 200) -> pd.DataFrame:
    """For each share the lowest threshold from which on so many predictions stay those of full depth.

    Thresholds at `steps` quantiles of the confidences are tried, rounded so that tables hold them exactly.
    One row a share, as `sweep` gives it; with the highest threshold if no lower one will do.

    Raises `MeeError` for a share outside 0..1.
    """
    for share in shares:
        if not 0 <= share <= 1:
            raise MeeError(f"same_token={share}: give a share from 0 to 1.")
    table = sweep(replayed, _levels(replayed, np.linspace(0, 1, steps)))
    same = table["same_token"].to_numpy()
    worst_from = np.minimum.accumulate(same[::-1])[::-1]  # [threshold]: there, and at all higher ones
    rows = []
    for share in shares:
        enough = np.flatnonzero(worst_from >= share)
        rows.append(enough[0] if len(enough) else len(table) - 1)
    return table.iloc[rows].reset_index(drop=True)


def candidates(replayed: PolicyReplay, count: int, max_new_tokens: int = 64) -> list[float]:
    """At most `count` thresholds, strictest first, evenly spaced by what a replay predicts for them.

    From one to the next the mean exit layer changes as much, and the logarithm of the share of predictions
    that are not those of full depth; each counts as a share of its whole change. The share is resolved down
    to a single token, so that the first thresholds after that of no exit lose next to nothing.
    """
    # closer and closer between the last of 400 quantiles and 1, up to the one before the largest value
    first = 1 / 400
    last = 1 / max(replayed.confidences.size, 400)
    tail = 1 - np.geomspace(first, last, 1 + round(20 * np.log10(first / last)))
    shares = np.concatenate([np.linspace(0, 1, 400), tail])
    table = sweep(replayed, _levels(replayed, shares)[::-1], max_new_tokens)
    one_token = min(1e-3, 1 / len(replayed.trace))
    errors = np.log(one_token + 1 - np.minimum.accumulate(table.same_token))
    saved = -np.minimum.accumulate(table.mean_exit_layer)
    change = _share_of_change(errors) + _share_of_change(saved)
    rows = np.searchsorted(change, np.linspace(0, change.iloc[-1], count))
    return table.threshold.iloc[np.unique(rows)].tolist()


def _share_of_change(values: pd.Series) -> pd.Series:
    """How much of the way from the first to the last value lies behind each."""
    whole = max(values.iloc[-1] - values.iloc[0], 1e-9)
    return (values - values.iloc[0]) / whole


def _levels(replayed: PolicyReplay, shares: np.ndarray) -> np.ndarray:
    """Thresholds at the quantiles `shares` of the confidences, lowest first; at the last nothing exits.

    They have four decimals, or more: two digits of what is missing to the next whole number (0.999983). Of a
    model that is this sure, what exits lose is decided between 0.9999 and 1.
    """
    known = replayed.confidences[~np.isnan(replayed.confidences)]  # a confidence that is NaN never exceeds
    if not known.size:
        name = replayed.bound.measure.name
        reason = "its confidences are all NaN" if replayed.confidences.size else "it decides at no layer"
        raise MeeError(f'"{name}" has no threshold to choose on {replayed.trace.model}: {reason}.')
    check_not_infinite(replayed.bound.measure, known)
    quantiles = np.quantile(known, shares, method="lower")
    missing = np.clip(np.ceil(quantiles) - quantiles, 1e-9, None)
    decimals = np.clip(np.ceil(-np.log10(missing)) + 1, 4, None).astype(int)
    rounded = [
        round(level, digits) for level, digits in zip(quantiles.tolist(), decimals.tolist(), strict=True)
    ]
    low, high = replayed.bound.measure.range
    if high == np.inf:  # of rules that count layers L is the highest; other confidences may be larger
        high = max(replayed.trace.layers, known.max())
    return np.unique(np.clip([*rounded, high], low, high))
