"""A section of chapter 05: the rule over the history of predictions, and what classifiers learn from."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ...analysis.statistics import percentiles
from .. import figures
from ..learned_from import ALL, HISTORY, OUTPUTS, REFERENCES, UNSEEN
from ..prose import listed, on_tasks, span, task_span
from .classifiers import LEAST_CHANGE, MARGIN, on_calm

LEARNED = {  # examples that classifiers learn from, in words
    OUTPUTS: "the model's own outputs on those examples",
    UNSEEN: "its outputs on unseen ones",
}


def beside_margin_and_oracle(
    overall: pd.DataFrame, at_share: pd.DataFrame, oracle: Mapping[str, float]
) -> pd.DataFrame:
    """How much better the rule over predictions ranks tokens than the margin, and how much earlier it exits.

    Args:
        overall: from `decisions.overall_ranking`, a row a task, model, rule, target and seed.
        at_share: mean exit layers at an equal share of predictions kept, by task and rule.
        oracle: its mean exit layer on each task.

    Returns:
        One row a task: mean exit layers, the share `of_the_way` from the margin to the oracle (NaN where the
        margin, at less than all predictions kept, exits no later than the oracle), and the gain in the area
        under the ROC curve with the bounds of its 95 % interval over outputs.
    """
    areas = on_calm(overall).query("seed == 0")
    layers = on_calm(at_share).pivot(index="task", columns="rule", values="mean_exit_layer")
    rows = []
    for task, of_task in areas.groupby("task", sort=False):
        by_rule = of_task.set_index("rule")
        low, high = percentiles(by_rule.roc_area_draws[HISTORY] - by_rule.roc_area_draws[MARGIN])
        margin = layers.loc[task, MARGIN]
        ours = layers.loc[task, HISTORY]
        rows.append(
            {
                "task": task,
                "margin": margin,
                "history": ours,
                "oracle": oracle[task],
                "of_the_way": (margin - ours) / (margin - oracle[task]) if margin > oracle[task] else np.nan,
                "area_gain": by_rule.roc_area[HISTORY] - by_rule.roc_area[MARGIN],
                "area_gain_low": low,
                "area_gain_high": high,
            }
        )
    return pd.DataFrame(rows)


def gains_conclusion(gains: pd.DataFrame, share: float) -> str:
    """Where it clearly ranks better, and how far it goes towards the oracle."""
    better = list(gains.task[gains.area_gain_low > 0])
    layers = gains.set_index("task")
    ranks = (
        f"It ranks tokens better than the margin {on_tasks(better, gains.task)} (better: the "
        "95 % interval of the difference lies above zero)."
    )
    if (layers.margin - layers[["history", "oracle"]].min(axis=1)).max() < LEAST_CHANGE:
        return (
            f"{ranks} Where {share:.0%} of the predictions stay, it exits no earlier than the margin, and "
            "neither does the oracle, which keeps all of them: there is nothing to gain."
        )
    return (
        f"{ranks} Where {share:.0%} of the predictions stay, it exits "
        f"{_earlier(layers.margin - layers.history)} the "
        f"margin; the oracle, which keeps all of them, exits {_earlier(layers.margin - layers.oracle)} it."
        f"{_of_the_way(layers.of_the_way)}"
    )


def _earlier(layers: pd.Series) -> str:
    """ "0.20 (summarization) to 1.00 (translation) layers before", "no earlier than"."""
    if layers.max() < LEAST_CHANGE:
        return "no earlier than"
    later = " (negative: after)" if layers.min() <= -LEAST_CHANGE else ""
    return f"{task_span(layers, 'z.2f')} layers before{later}"


def _of_the_way(shares: pd.Series) -> str:
    """The share of the way to the oracle, where the oracle exits before the margin."""
    shares = shares.dropna()
    return f" That closes {task_span(shares)} of the gap." if len(shares) else ""


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
    texts = [
        f"by {span(areas[kind] - areas[REFERENCES], '{:+z.3f}')} from {name}"
        for kind, name in LEARNED.items()
        if kind in areas
    ]
    if not texts:
        return ""
    gains = pd.concat([areas[kind] - areas[REFERENCES] for kind in LEARNED if kind in areas])
    answer = "Mostly yes" if gains.max() < 0.01 else "Not always" if gains.median() < 0.01 else "No"
    rule, task = gains.idxmax()
    largest = f" (largest gain: {figures.label(rule)}, {figures.label(task)})" if gains.max() > 0 else ""
    return (
        f"{answer}. Compared with references of training examples, the area changes, over rules and tasks, "
        f"when classifiers learn from others: {listed(texts)}{largest}."
    )


def features_conclusion(by_source: pd.DataFrame) -> str:
    """What the best group of features is worth alone, and which is missed most."""
    means = areas_by_features(by_source).mean(axis=1)
    alone = means[means.index.str.startswith("only ")]
    left_out = means[means.index.str.startswith("without ")]
    if alone.empty or left_out.empty:
        return ""
    beside = "no worse than" if alone.max() >= means[ALL] else "against"
    return (
        f"The best single group of features is {alone.idxmax().removeprefix('only ')}: a mean area of "
        f"{alone.max():.3f}, {beside} {means[ALL]:.3f} for all together. Leaving out any one group keeps at "
        f"least {left_out.min():.3f}."
    )
