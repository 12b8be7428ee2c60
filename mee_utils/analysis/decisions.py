"""How good are exit decisions? Read off a replay, layer by layer, whatever the measure (MEE, section 5).

Two questions are kept apart: does the measure *rank* tokens by whether they may exit (area under the ROC
curve, which needs no threshold), and what happens at one threshold (precision and recall, share of
predictions that stay). A token *may* exit at a layer if its prediction there is that of full depth. `labels`
are constant columns put in front; `max_new_tokens` is the `N` of a decaying threshold.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from sklearn.metrics import roc_auc_score

from ..common.errors import MeeError
from ..traces.replay import PolicyReplay
from .monotonicity import settled_from
from .statistics import NOTHING, Interval, interval, mean_interval, reliability


def roc_area(score: np.ndarray, label: np.ndarray) -> float:
    """Area under the ROC curve: how often a token that may exit is scored above one that may not.

    Ties count half. If all labels are alike there is nothing to rank, and the area is NaN.

    >>> roc_area(np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True]))
    0.875
    """
    return float(roc_auc_score(label, score)) if 0 < np.sum(label) < len(label) else float("nan")


def area_interval(scores: np.ndarray, labels: np.ndarray, sequence: np.ndarray) -> Interval:
    """`roc_area` of tokens with its interval over sequences; `scores` and `labels` are `[token, layer]`.

    Tokens are compared within a layer, and layers count by their pairs. With `M_ij` how many tokens of
    sequence i that may exit are scored above how many of j that may not (ties: half), and `A_ij` the number
    of such pairs, resamples that draw sequence i `w_i` times have the area `w M w / w A w`.
    """
    units = int(sequence.max()) + 1
    wins, pairs = np.zeros((2, units, units))
    for score, label in zip(scores.T, np.asarray(labels, dtype=bool).T, strict=True):
        order = np.argsort(score, kind="stable")
        _, first, count = np.unique(score[order], return_index=True, return_counts=True)
        places = (sequence[order], np.arange(len(order)))
        may, may_not = (csr_array((of[order].astype(float), places)) for of in (label, ~label))
        begun = np.vstack([np.zeros(units), np.cumsum(may_not.T.toarray(), axis=0)])  # below a place
        wins += may @ np.repeat((begun[first] + begun[first + count]) / 2, count, axis=0)
        pairs += np.outer(may.sum(axis=1), may_not.sum(axis=1))
    some = pairs.any(axis=0)  # sequences with tokens that may not exit
    form = lambda weights, matrix: ((weights @ matrix[:, some]) * weights[:, some]).sum(axis=1)
    return interval(lambda weights: form(weights, wins) / form(weights, pairs), units)


def ranking(replayed: PolicyReplay, **labels) -> pd.DataFrame:
    """How well a measure ranks tokens, at each layer at which it decides: `layer`, `roc_area`."""
    rows, sequence = [], replayed.trace.sequence
    for place, layer in enumerate(replayed.decision_layers):
        one = slice(place, place + 1)
        area = area_interval(replayed.confidences[:, one], replayed.same_token[:, one], sequence)
        rows.append({**labels, "layer": layer, **area.columns("roc_area", "roc_area_")})
    return pd.DataFrame(rows)


def overall_ranking(replayed: PolicyReplay, **labels) -> pd.DataFrame:
    """How well a measure ranks tokens of a layer, over all layers at which it decides: one row."""
    area = area_interval(replayed.confidences, replayed.same_token[:, :-1], replayed.trace.sequence)
    return pd.DataFrame([{**labels, **area.columns("roc_area", "roc_area_")}])


def precision_and_recall(replayed: PolicyReplay, max_new_tokens: int = 64, **labels) -> pd.DataFrame:
    """What happens at the policy's threshold, layer by layer.

    `precision`: of the tokens above the threshold at a layer, the share that may exit; `recall`: of those at
    which the oracle has exited by then, the share above the threshold; `above`: the share of all tokens.
    """
    above, sequence = replayed.exceeded(max_new_tokens), replayed.trace.sequence
    settled, rows = settled_from(replayed.trace), []
    for place, layer in enumerate(replayed.decision_layers):
        exits, same, oracle = above[:, place], replayed.same_token[:, place], settled <= layer
        row = {**labels, "layer": layer, "above": float(exits.mean())}
        for name, values, chosen in (("precision", same, exits), ("recall", exits, oracle)):
            interval = mean_interval(values[chosen], sequence[chosen]) if chosen.any() else NOTHING
            row |= interval.columns(name, f"{name}_")
        rows.append(row)
    return pd.DataFrame(rows)


def reliability_diagram(replayed: PolicyReplay, bins: int = 10, **labels) -> pd.DataFrame:
    """Confidence against how often the token may exit, a row a bin that is not empty, all layers together."""
    right = replayed.same_token[:, : len(replayed.decision_layers)]
    found = vars(reliability(replayed.confidences.ravel(), right.ravel(), bins))
    columns = {name: found[name] for name in ("error", "confidence", "accuracy", "count")}
    return pd.DataFrame({**labels, **columns}).query("count > 0").reset_index(drop=True)


def at_exits(replayed: PolicyReplay, max_new_tokens: int = 64) -> dict[str, float]:
    """`mean_exit_layer`, and `same_token`, the share of predictions at the exits that are full depth's."""
    return {name: values.mean() for name, values in exit_values(replayed, max_new_tokens).items()}


def exit_values(replayed: PolicyReplay, max_new_tokens: int = 64) -> dict[str, np.ndarray]:
    """`[token]` each: the layer of the exit, and whether its prediction is that of full depth."""
    exits = replayed.exits(max_new_tokens)
    same = replayed.same_token[np.arange(len(exits)), exits]
    return {"mean_exit_layer": replayed.layers[exits], "same_token": same}


def sweep(replayed: PolicyReplay, thresholds: Sequence[float], max_new_tokens: int = 64) -> pd.DataFrame:
    """Replays a policy at other thresholds: one row each, `threshold` and what `at_exits` returns."""
    row = lambda level: {"threshold": level, **at_exits(replayed.at_threshold(level), max_new_tokens)}
    return pd.DataFrame([row(float(level)) for level in thresholds])


def thresholds_for(replayed: PolicyReplay, shares: Sequence[float], steps: int = 200) -> pd.DataFrame:
    """For each share the lowest threshold from which on so many predictions stay those of full depth.

    Thresholds at `steps` quantiles of the confidences are tried, rounded so that tables hold them exactly.
    One row a share, as `sweep` gives it; with the highest threshold if no lower one will do.
    """
    for share in shares:
        if not 0 <= share <= 1:
            raise MeeError(f"same_token={share}: give a share from 0 to 1.")
    table = sweep(replayed, _levels(replayed, steps))
    worst_from = np.minimum.accumulate(table["same_token"].to_numpy()[::-1])[::-1]
    places = [int(np.argmax([*(worst_from >= share), True])) for share in shares]
    return table.iloc[np.minimum(places, len(table) - 1)].reset_index(drop=True)


def candidates(replayed: PolicyReplay, count: int, max_new_tokens: int = 64) -> list[float]:
    """At most `count` thresholds, strictest first, from one to the next of which a replay foretells as much
    change: in the mean exit layer, and in the logarithm of the share of predictions that are others.
    """
    table = sweep(replayed, _levels(replayed, 400)[::-1], max_new_tokens)
    changes = np.log(1e-3 + 1 - np.minimum.accumulate(table.same_token))
    depth = -np.minimum.accumulate(table.mean_exit_layer)
    share = lambda values: (values - values.iloc[0]) / max(values.iloc[-1] - values.iloc[0], 1e-9)
    way = share(changes) + share(depth)
    places = np.searchsorted(way, np.linspace(0, way.iloc[-1], count))
    return table.threshold.iloc[np.unique(places)].tolist()


def _levels(replayed: PolicyReplay, steps: int) -> np.ndarray:
    """Thresholds at quantiles of the confidences, lowest first; at last the highest.

    They have four decimals, or more: two digits of what is missing to the next whole number (0.999983). Of a
    model that is this sure, what exits lose is decided between 0.9999 and 1.
    """
    quantiles = np.quantile(replayed.confidences, np.linspace(0, 1, steps), method="lower")
    missing = np.clip(np.ceil(quantiles) - quantiles, 1e-9, None)
    decimals = np.clip(np.ceil(-np.log10(missing)) + 1, 4, None).astype(int)
    rounded = map(round, quantiles.tolist(), decimals.tolist())
    low, high = replayed.bound.measure.range
    high = min(high, replayed.trace.layers)
    return np.unique(np.clip([*rounded, high], low, high))
