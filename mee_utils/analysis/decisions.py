"""How good are exit decisions? Read off a replay, layer by layer, whatever the measure (MEE, section 5).

Two questions are kept apart: does the measure *rank* tokens by whether they may exit (area under the ROC
curve, which needs no threshold), and what happens at one threshold (precision and recall). A token *may*
exit at a layer if its prediction there is that of full depth. `labels` are constant columns put in front;
`max_new_tokens` is the `N` of a decaying threshold. `mee_utils.analysis.threshold_choice` finds thresholds.
"""

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from ..common.extras import needs_extra
from ..traces.replay import PolicyReplay
from .monotonicity import settled_from
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
    memory, in the order of their scores: a token that stands behind k of them has won against the first k.
    """
    units = len(wins)
    losers = np.flatnonzero(~may_exit)
    losers = losers[np.argsort(score[losers], kind="stable")]
    at_once = max(1, COMPARED_AT_ONCE // units)
    for start in range(0, len(losers), at_once):
        rivals = losers[start : start + at_once]
        counts = len(rivals) + 1
        tokens = np.zeros(units * counts)  # [i, k]: tokens of i behind k rivals, before and behind their ties
        for side in ("left", "right"):
            beaten = np.searchsorted(score[rivals], score[may_exit], side)
            tokens += np.bincount(sequence[may_exit] * counts + beaten, minlength=units * counts)
        behind = tokens.reshape(units, counts)[:, ::-1].cumsum(axis=1)[:, ::-1]  # [i, k]: behind k or more
        in_sequence = csr_array((np.ones(len(rivals)), (np.arange(len(rivals)), sequence[rivals])))
        wins[:, : in_sequence.shape[1]] += (behind[:, 1:] / 2) @ in_sequence


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
