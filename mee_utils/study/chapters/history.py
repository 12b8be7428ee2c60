"""A section of chapter 05: the rule over the history of predictions, and what classifiers learn from."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ...analysis.statistics import percentiles
from .. import figures
from ..learned_from import ALL, HISTORY, OUTPUTS, REFERENCES, UNSEEN
from ..prose import listed, span, task_span
from .classifiers import LEAST_CHANGE, MARGIN, on_calm, ranks_clearly_better
from .wording import without_source

BETTER = 0.02  # of an area: what an answer to "do they learn from the right examples?" takes notice of

LEARNED = {  # examples that classifiers learn from, in words
    OUTPUTS: "the model's own outputs on those examples",
    UNSEEN: "its outputs on unseen examples",
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
    """Where it ranks better for certain, and how far it goes towards the oracle."""
    better = list(gains.task[gains.area_gain_low > 0])
    layers = gains.set_index("task")
    rule = "the rule over the history of predictions"
    ranks = ranks_clearly_better(rule, "the margin", better, list(gains.task))
    if (layers.margin - layers[["history", "oracle"]].min(axis=1)).max() < LEAST_CHANGE:
        return (
            f"{ranks} Where {share:.0%} of the predictions stay, this rule exits no earlier than the margin, "
            "and neither does the oracle, which keeps all of them: there is nothing to gain."
        )
    return (
        f"{ranks} Where {share:.0%} of the predictions stay, this rule exits "
        f"{_earlier(layers.margin - layers.history)} the "
        f"margin; the oracle, which keeps all of them, exits {_earlier(layers.margin - layers.oracle)} the "
        "margin."
        f"{_of_the_way(layers.of_the_way)}"
    )


def _earlier(layers: pd.Series) -> str:
    """ "0.20 (summarization) to 1.00 (translation) layers before", "no earlier than"."""
    if layers.max() < LEAST_CHANGE:
        return "no earlier than"
    later = " (negative: after)" if layers.min() <= -LEAST_CHANGE else ""
    return f"{task_span(layers, 'z.2f')} layers before{later}"


def _of_the_way(shares: pd.Series) -> str:
    """The share of the gap between margin and oracle that is closed, where the oracle exits first."""
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
        f"{total}. Leaving out any one group keeps at least {left_out.min():.3f}."
    )
