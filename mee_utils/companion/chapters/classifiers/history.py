"""The rule over the history of predictions, and what classifiers learn from."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ....analysis.statistics import percentiles
from ... import figures
from ...learned_from import ALL, HISTORY, OUTPUTS, REFERENCES, UNSEEN
from ...prose import listed, on_tasks, span, task_span
from ..wording import without_source
from .compared import FEW, LEAST_CHANGE, on_calm, ranks_clearly_better

BETTER = 0.02  # of an area: what an answer to "do they learn from the right examples?" takes notice of

LEARNED = {  # examples that classifiers learn from, in words
    OUTPUTS: "the model's own outputs on those examples",
    UNSEEN: "its outputs on unseen examples",
}


def beside_margin_and_oracle(
    overall: pd.DataFrame, at_share: pd.DataFrame, oracle: Mapping[str, float]
) -> pd.DataFrame:
    """The rule over predictions beside the margin over as many entries, whose last layer is whole too.

    Args:
        overall: from `decisions.overall_ranking`, a row a task, model, rule, target and seed.
        at_share: mean exit layers and FLOPs at an equal share of predictions kept, by task and rule.
        oracle: its mean exit layer on each task.

    Returns:
        One row a task: mean exit layers of the margin over `few` entries, `history` and the `oracle`; the
        share `of_the_way` from that margin to the oracle (NaN where the margin, at less than all predictions
        kept, exits no later than the oracle); `few_flops` and `history_flops` (1: full depth); and the gain
        in the area under the ROC curve with the bounds of its 95 % interval over outputs.
    """
    areas = on_calm(overall).query("seed == 0")
    settings = on_calm(at_share).set_index(["task", "rule"])
    rows = []
    for task, of_task in areas.groupby("task", sort=False):
        by_rule = of_task.set_index("rule")
        low, high = percentiles(by_rule.roc_area_draws[HISTORY] - by_rule.roc_area_draws[FEW])
        margin = settings.loc[(task, FEW)]
        ours = settings.loc[(task, HISTORY)]
        to_oracle = margin.mean_exit_layer - oracle[task]
        nearer = margin.mean_exit_layer - ours.mean_exit_layer
        rows.append(
            {
                "task": task,
                "few": margin.mean_exit_layer,
                "history": ours.mean_exit_layer,
                "oracle": oracle[task],
                "of_the_way": nearer / to_oracle if to_oracle > 0 else np.nan,
                "few_flops": margin.flops_share,
                "history_flops": ours.flops_share,
                "area_gain": by_rule.roc_area[HISTORY] - by_rule.roc_area[FEW],
                "area_gain_low": low,
                "area_gain_high": high,
            }
        )
    return pd.DataFrame(rows)


def gains_shown(gains: pd.DataFrame) -> pd.DataFrame:
    """What `beside_margin_and_oracle` returns, with columns for readers."""
    columns = {
        "few": "mean exit layer, margin over few",
        "history": "mean exit layer, history",
        "oracle": "mean exit layer, oracle",
        "of_the_way": "share of the gap closed",
        "few_flops": "FLOPs, margin over few",
        "history_flops": "FLOPs, history",
        "area_gain": "gain in area",
        "area_gain_low": "lower bound",
        "area_gain_high": "upper bound",
    }
    table = gains.set_index("task").rename(index=figures.label).rename(columns=columns)
    return table.map("{:.3f}".format).replace("nan", "")


def gains_conclusion(gains: pd.DataFrame, share: float) -> str:
    """Where it ranks clearly better, how far it goes towards the oracle, and what it spends."""
    better = list(gains.task[gains.area_gain_low > 0])
    layers = gains.set_index("task")
    rule = "the rule over the history of predictions"
    ranks = ranks_clearly_better(rule, "the margin over few entries", better, list(gains.task))
    where = f"Where {share:.0%} of the predictions stay,"
    if (layers.few - layers[["history", "oracle"]].min(axis=1)).max() < LEAST_CHANGE:
        return (
            f"{ranks} {where} this rule exits no earlier than that margin, and neither does the oracle, "
            "which keeps all of them: there is nothing to gain."
        )
    spent = f"{task_span(layers.history_flops)} of the FLOPs, the margin {task_span(layers.few_flops)}"
    return (
        f"{ranks} {where} and compared with that margin, this rule exits "
        f"{_compared(layers.few - layers.history)}. The oracle, which keeps all of them, exits "
        f"{_compared(layers.few - layers.oracle)}.{_of_the_way(layers.of_the_way)} The rule takes {spent}."
    )


def _compared(earlier: pd.Series) -> str:
    """By how many layers, and on which tasks: "0.20 layers earlier on translation", "as early"."""
    parts = []
    for word, layers in (("earlier", earlier), ("later", -earlier)):
        changed = layers[layers >= LEAST_CHANGE]
        if len(changed):
            where = on_tasks(changed.index, earlier.index)
            parts.append(f"{span(changed)} layers {word} {where}")
    return ", and ".join(parts) or "as early"


def _of_the_way(shares: pd.Series) -> str:
    """The share of the gap between margin and oracle that is closed, where some of it is."""
    closed = shares[shares > 0]
    if closed.empty:
        return ""
    where = on_tasks(closed.index, shares.index)
    return f" The rule closes {span(closed, '{:.0%}')} of the gap between margin and oracle {where}."


def areas_by_source(by_source: pd.DataFrame) -> pd.DataFrame:
    """The area under the ROC curve by rule and kind of examples, a column a task."""
    rows = by_source[by_source.features.isin([ALL, "states", ""])]
    table = rows.pivot(index=["rule", "learned_from"], columns="task", values="roc_area")
    return table.rename(figures.label, level="rule")


def areas_by_features(by_source: pd.DataFrame) -> pd.DataFrame:
    """The area under the ROC curve of the rule over predictions by its features, a column a task."""
    of_history = by_source[by_source.rule == HISTORY]
    has_choices = of_history[of_history.features != ALL].learned_from.iloc[0]  # one kind has every choice
    rows = of_history[of_history.learned_from == has_choices]
    return rows.pivot(index="features", columns="task", values="roc_area")


def sources_conclusion(by_source: pd.DataFrame) -> str:
    """By how much the kind of examples changes the area, over rules and tasks."""
    rows = by_source[by_source.features.isin([ALL, "states"])]
    areas = rows.pivot(index=["rule", "task"], columns="learned_from", values="roc_area")
    changes = pd.DataFrame({kind: areas[kind] - areas[REFERENCES] for kind in LEARNED if kind in areas})
    texts = [f"by {span(changes[kind], '{:+z.3f}')} with {LEARNED[kind]}" for kind in changes]
    most = changes.max(axis=1)
    better = (most > BETTER).mean()
    answer = "No" if better > 0.5 else "Mostly yes" if better else "Yes"
    rule, task = most.idxmax()
    largest = f" The {without_source(rule)} gains most, on {figures.label(task)}." if better else ""
    return (
        f"{answer}. Compared with learning from references of training examples, the area changes "
        f"{listed(texts)}.{largest}"
    )


def features_conclusion(by_source: pd.DataFrame) -> str:
    """What the best group of features is worth alone, and which is missed most."""
    means = areas_by_features(by_source).mean(axis=1)
    alone = means[means.index.str.startswith("only ")]
    left_out = means[means.index.str.startswith("without ")]
    if alone.empty or left_out.empty:
        return ""
    against = "no worse than" if alone.max() >= means[ALL] else "against"
    alone_best = alone.idxmax().removeprefix("only ")
    total = f"all together ({means[ALL]:.3f})" if alone.max() >= means[ALL] else f"{means[ALL]:.3f} with all"
    return (
        f'The best single group of features is "{alone_best}": a mean area of {alone.max():.3f}, {against} '
        f"{total}. Without any one of the groups the mean area is still at least {left_out.min():.3f}."
    )
