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

from ..common.errors import MeeError
from ..common.extras import needs_extra
from ..traces.replay import PolicyReplay, values_at_exits
from .monotonicity import settled_from
from .reliability import reliability
from .statistics import NOTHING, Estimate, by_sequence, interval, mean_of_chosen

COMPARED_AT_ONCE = 2**22  # tokens that may not exit times sequences: 32 MiB
LEAST_TO_RANK = 20  # tokens of either kind at a layer, those that may exit there and those that may not


def roc_area(score: np.ndarray, label: np.ndarray) -> float:
    """Area under the ROC curve: how often a token that may exit is scored above one that may not.

    Ties count half. If all labels are alike there is nothing to rank, and the area is NaN.

    >>> roc_area(np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True]))
    0.875
    """
    with needs_extra("notebooks"):
        from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(label, score)) if 0 < np.sum(label) < len(label) else float("nan")


def area_interval(scores: np.ndarray, labels: np.ndarray, sequence: np.ndarray) -> Estimate:
    """`roc_area` of tokens, resampled by `sequence` `[token]`; `scores` and `labels` are `[token, layer]`.

    Tokens are compared within a layer, and layers count by their pairs. With `M_ij` how many tokens of
    sequence i that may exit are scored above how many of j that may not (ties: half), and `A_ij` the number
    of such pairs, resamples that draw sequence i `w_i` times have the area `w M w / w A w`.
    """
    labels = np.asarray(labels, dtype=bool)
    units = int(sequence.max()) + 1
    may = by_sequence(labels, sequence, units)  # [sequence, layer]: how many tokens may exit
    may_not = by_sequence(~labels, sequence, units)
    some = may_not.any(axis=1)  # sequences with tokens that may not exit
    wins = np.zeros((units, units))
    for score, may_exit in zip(scores.T, labels.T, strict=True):
        _add_wins(wins, score, may_exit, sequence)

    def area(weights: np.ndarray) -> np.ndarray:
        """`[resample]`, from `weights` `[resample, sequence]`."""
        won = ((weights @ wins[:, some]) * weights[:, some]).sum(axis=1)
        compared = ((weights @ may) * (weights @ may_not)).sum(axis=1)
        return won / compared

    return interval(area, units)


def _add_wins(wins: np.ndarray, score: np.ndarray, may_exit: np.ndarray, sequence: np.ndarray) -> None:
    """Adds to `wins` `[i, j]` how often a token of i that may exit is scored above one of j that may not.

    Of three tokens with scores 0.1, 0.4 and 0.4, where only the last may exit, that one wins once against the
    first and half against the second. Tokens that may not exit are taken some at a time, for the sake of
    memory.
    """
    units = len(wins)
    losers = np.flatnonzero(~may_exit)
    losers = losers[np.argsort(score[losers], kind="stable")]
    at_once = max(1, COMPARED_AT_ONCE // units)
    for start in range(0, len(losers), at_once):
        rivals = losers[start : start + at_once]
        won = _wins_against(score[rivals], score[may_exit], sequence[may_exit], units)
        in_sequence = csr_array((np.ones(len(rivals)), (np.arange(len(rivals)), sequence[rivals])))
        wins[:, : in_sequence.shape[1]] += won @ in_sequence


def _wins_against(rivals: np.ndarray, score: np.ndarray, sequence: np.ndarray, units: int) -> np.ndarray:
    """`[i, rival]`: how many tokens of sequence i are scored above each rival (ties: half); rivals ascend.

    A token that stands behind k of the rivals has won against the first k. Ties stand before and behind.
    """
    counts = len(rivals) + 1
    tokens = np.zeros(units * counts)  # [i, k]: tokens of i behind k rivals, each before and behind its ties
    for side in ("left", "right"):
        beaten = np.searchsorted(rivals, score, side)
        tokens += np.bincount(sequence * counts + beaten, minlength=units * counts)
    behind = tokens.reshape(units, counts)[:, ::-1].cumsum(axis=1)[:, ::-1]  # [i, k]: behind k or more
    return behind[:, 1:] / 2


def ranking(replayed: PolicyReplay, **labels) -> pd.DataFrame:
    """How well a measure ranks tokens, at each layer at which it decides: `layer`, `roc_area`.

    `not_final` is how many tokens may not exit there. Of fewer than `LEAST_TO_RANK`, or of as few that may,
    nothing can be said, and the area is NaN: one or two tokens would make it anything from 0 to 1.
    """
    rows = []
    sequence = replayed.trace.sequence
    for number, layer in enumerate(replayed.decision_layers):
        may_exit = replayed.same_token[:, [number]]
        not_final = int((~may_exit).sum())
        area = NOTHING
        if LEAST_TO_RANK <= not_final <= len(may_exit) - LEAST_TO_RANK:
            area = area_interval(replayed.confidences[:, [number]], may_exit, sequence)
        row = {**labels, "layer": layer, "not_final": not_final}
        rows.append(row | area.columns("roc_area", "roc_area_"))
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
    sequence = replayed.trace.sequence
    above = replayed.exceeded(max_new_tokens)  # [token, decision]
    settled = settled_from(replayed.trace)  # [token], the oracle's exit layer
    rows = []
    for number, layer in enumerate(replayed.decision_layers):
        exits = above[:, number]
        oracle = settled <= layer
        precision = mean_of_chosen(replayed.same_token[:, number], exits, sequence)
        recall = mean_of_chosen(exits, oracle, sequence)
        rows.append(
            {
                **labels,
                "layer": layer,
                "above": float(exits.mean()),
                **precision.columns("precision", "precision_"),
                **recall.columns("recall", "recall_"),
            }
        )
    return pd.DataFrame(rows)


def reliability_diagram(replayed: PolicyReplay, bins: int = 10, **labels) -> pd.DataFrame:
    """Confidence against how often the token may exit, one row per nonempty bin, all layers together."""
    may_exit = replayed.same_token[:, : len(replayed.decision_layers)]
    diagram = reliability(replayed.confidences.ravel(), may_exit.ravel(), bins)
    columns = {name: getattr(diagram, name) for name in ("error", "confidence", "accuracy", "count")}
    return pd.DataFrame({**labels, **columns}).query("count > 0").reset_index(drop=True)


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
    shares = np.concatenate([np.linspace(0, 1, 400), _tail(replayed.confidences.size)])
    table = sweep(replayed, _levels(replayed, shares)[::-1], max_new_tokens)
    one_token = min(1e-3, 1 / len(replayed.trace))
    errors = np.log(one_token + 1 - np.minimum.accumulate(table.same_token))
    saved = -np.minimum.accumulate(table.mean_exit_layer)
    change = _share_of_change(errors) + _share_of_change(saved)
    rows = np.searchsorted(change, np.linspace(0, change.iloc[-1], count))
    return table.threshold.iloc[np.unique(rows)].tolist()


def _tail(values: int, per_decade: int = 20) -> np.ndarray:
    """Quantiles between the last of 400 and 1, closer and closer, up to the one before the largest value."""
    first = 1 / 400
    last = 1 / max(values, 400)
    steps = 1 + round(per_decade * np.log10(first / last))
    return 1 - np.geomspace(first, last, steps)


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
