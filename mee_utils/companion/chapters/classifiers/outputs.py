"""Rules decoded: the published thresholds, score against cost, and which keep the quality reliably."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from ... import figures
from ...catalogue import CALM_RULES, MEE_RULES, RULES
from ...learned_from import HISTORY
from ...prose import on_tasks, span, task_span
from ...result_tables import KEEPS_IT
from ..wording import capitalized, percent_span, winners, without_source
from .compared import FEW

PUBLISHED = (*CALM_RULES, *MEE_RULES)  # the six measures of MEE
YARDSTICKS = ("static", "oracle", "full_depth")  # that rules are drawn beside
LEAST_KEPT = 0.6  # of the score: settings that keep less are not drawn


def published_shown(published: pd.DataFrame) -> pd.DataFrame:
    """The share of the full score that is kept by rule, a column a task, first layer and threshold."""
    settings = published[published.rule != "full_depth"]
    columns = ["task", "min_layer", "threshold"]
    table = settings.pivot_table(index="rule", columns=columns, values="retained", sort=False)
    table = table.sort_index(axis=1, level=["task", "min_layer"], kind="stable", sort_remaining=False)
    table = table.rename(index=figures.label).rename(columns=figures.label, level="task")
    table = table.rename_axis(columns=["task", "minimum exit layer", "threshold"])
    return table.map("{:.2f}".format).replace("nan", "")


def published_conclusion(published: pd.DataFrame, sixth: int, first_layer: int, threshold: float) -> str:
    """What the measures of both papers keep at the published threshold, from two first layers."""
    texts = []
    for layer in (sixth, first_layer):
        rows = published[(published.min_layer == layer) & (published.threshold == threshold)]
        texts.append(
            f"With exits from layer {layer} on, MEE's measures {_kept_and_spent(rows, MEE_RULES)}, "
            f"and CALM's {_kept_and_spent(rows, CALM_RULES)}."
        )
    return (
        f"Means over the tasks at the decaying threshold of {threshold:g}. {' '.join(texts)} An equal "
        "threshold is not an equal cost."
    )


def _kept_and_spent(rows: pd.DataFrame, rules: Sequence[str]) -> str:
    """What the rules of a paper keep and spend, means over tasks: "keep 90% of the score for 60% ..."."""
    means = rows[rows.rule.isin(rules)].groupby("rule")[["retained", "flops_share"]].mean()
    return (
        f"keep {percent_span(means.retained)} of the score for {percent_span(means.flops_share)} of the FLOPs"
    )


def curves_figure(points: pd.DataFrame, tasks: Sequence[str], note: str = ""):
    """Score kept against FLOPs of the six published measures, a fixed layer and the oracle."""
    shown = points[points.rule.isin([*PUBLISHED, *YARDSTICKS])]
    shown = shown[shown.retained >= LEAST_KEPT]
    return figures.facets(
        shown,
        _draw_curves,
        values=tasks,
        xlabel="FLOPs (1 = full depth)",
        ylabel="score kept (1 = full depth)",
        width=3.8,
        height=3.3,
        message=curves_message(points),
        note=figures.small_print(note, figures.GOES_ON),
    )


def _draw_curves(axis, rows: pd.DataFrame) -> None:
    """Published measures as lines; grey for a fixed layer, a star for the oracle, a cross for full depth."""
    static = rows[rows.rule == "static"].sort_values("flops_share", kind="stable")
    pale = {"color": "#999999", "linewidth": 4, "alpha": 0.5}
    axis.plot(static.flops_share, static.retained, label="a fixed layer", **pale)
    figures.lines(axis, rows[rows.rule.isin(PUBLISHED)], "flops_share", "retained")
    for rule, marker in (("oracle", "*"), ("full_depth", "+")):
        point = rows[rows.rule == rule]
        look = {"color": "black", "marker": marker, "markersize": 9, "linestyle": "none", "zorder": 5}
        axis.plot(point.flops_share, point.retained, label=figures.label(rule), **look)
    axis.set_xlim(0.25, 1.5)


def curves_message(points: pd.DataFrame) -> str:
    """Which of the six published measures is cheapest at 99 % of the score, on average."""
    good = points[points.rule.isin(PUBLISHED) & (points.retained >= 0.99)]
    best = good.sort_values(["task", "flops_share"], kind="stable").drop_duplicates("task")
    if best.empty:
        return "No published measure keeps 99% of the score on average"
    named = _winners_among(best, points.task.unique())
    return f"The cheapest published measure that keeps 99% of the score on average is {named}"


def cheapest_message(points: pd.DataFrame) -> str:
    """Which of all rules of the chapter is cheapest at a mean of 99 % of the score, by task."""
    rules = points[~points.rule.isin(YARDSTICKS)]
    good = rules[(rules.retained >= 0.99) & (rules.flops_share < 1)]
    best = good.sort_values(["task", "flops_share"], kind="stable").drop_duplicates("task")
    if best.empty:
        return "No rule of this chapter keeps a mean of 99% of the score for fewer FLOPs than full depth"
    tasks = list(points.task.unique())
    left = [task for task in tasks if task not in set(best.task)]
    none = f"; {on_tasks(left, tasks)} none saves FLOPs" if left else ""
    named = _winners_among(best, tasks)
    return f"At a mean of 99% of the score, the cheapest rule of this chapter is {named}{none}"


def _winners_among(best: pd.DataFrame, tasks: Sequence[str]) -> str:
    """`winners`, where some of the tasks may have no row: a single winner then has its tasks named."""
    if best.rule.nunique() > 1 or len(best) == len(tasks):
        return winners(best)
    return winners(best).replace("on every task", on_tasks(best.task, tasks))


def curves_conclusion(points: pd.DataFrame) -> str:
    """What 99 % of the score costs with the rules drawn and with those over few entries; and the oracle."""
    good = points[points.retained >= 0.99]
    tasks = list(points.task.unique())
    published_and_fixed = {
        "the cheapest published measure": PUBLISHED,
        "the earliest fixed layer": ["static"],
    }
    over_few = {"the history of predictions": [HISTORY], "the margin": [FEW]}
    text = "Neither a published measure nor a fixed layer keeps 99% of the score on average."
    costs = _costs(good, published_and_fixed, tasks)
    if costs:
        text = f"Keeping 99% of the score on average takes {costs}."
    costs_over_few = _costs(good, over_few, tasks)
    if costs_over_few:
        text = f"{text} Over few entries it takes {costs_over_few}."
    oracle = points[points.rule == "oracle"].set_index("task")
    if oracle.empty:
        return text
    return (
        f"{text} The oracle, which knows the last layer's prediction, keeps {task_span(oracle.retained)} of "
        f"the score for {percent_span(oracle.flops_share)} of the FLOPs."
    )


def _costs(good: pd.DataFrame, kinds: Mapping[str, Sequence[str]], tasks: Sequence[str]) -> str:
    """The FLOPs of the cheapest settings by kind, a name -> its rules; "" where there are none."""
    costs = []
    for name, rules in kinds.items():
        shares = good[good.rule.isin(rules)].groupby("task", sort=False).flops_share.min()
        if shares.empty:
            continue
        unit = "" if costs else " of the FLOPs"
        where = "" if len(shares) == len(tasks) else f" ({on_tasks(shares.index, tasks)} only)"
        costs.append(f"{task_span(shares)}{unit} with {name}{where}")
    return ", and ".join(costs)


def kept_shown(kept: pd.DataFrame) -> pd.DataFrame:
    """The setting of each rule in `kept_conclusion`, by task: what it keeps and spends."""
    columns = {
        "threshold": "threshold (or layer)",
        "retained": "score kept",
        "low": "lower bound",
        "high": "upper bound",
        "verdict": "verdict",
        "mean_exit_layer": "mean exit layer",
        "flops_share": "FLOPs (1 = full depth)",
    }
    table = kept.set_index(["task", "rule"])[list(columns)].round(3)
    return table.rename(index=figures.label).rename(columns=columns)


def kept_conclusion(kept: pd.DataFrame, quality: float) -> str:
    """How many rules keep the quality with confidence, how many of them save nothing, and the cheapest."""
    sure = kept[kept.verdict == KEEPS_IT].sort_values("flops_share", kind="stable")
    tasks = list(kept.task.unique())
    numbers = sure.groupby("task").size().reindex(tasks, fill_value=0)
    rules = int(kept.groupby("task").size().max())
    depending = ", depending on the task" if numbers.min() < numbers.max() else " on every task"
    counted = (
        f"The lower bound reaches {quality:.0%} of the score for {span(numbers, '{:d}')} of {rules} rules"
        f"{depending}."
    )
    if sure.empty:
        return counted
    sentences = [counted, *_that_save_nothing(sure, tasks), _cheapest_that_saves(sure)]
    return " ".join(sentence for sentence in sentences if sentence)


def _that_save_nothing(sure: pd.DataFrame, tasks: Sequence[str]) -> list[str]:
    """Sentences: how many of the rules that keep the quality save nothing, and where none of them does."""
    dear = sure[sure.flops_share >= 1].groupby("task").size().reindex(tasks, fill_value=0)
    saving = set(sure.task[sure.flops_share < 1])
    left = [task for task in tasks if task not in saving]
    sentences = []
    if dear.max():
        sentences.append(f"Of these, {task_span(dear, '.0f')} cost as much as full depth or more.")
    if left:
        sentences.append(f"{capitalized(on_tasks(left, tasks))}, none of them saves FLOPs.")
    return sentences


def _cheapest_that_saves(sure: pd.DataFrame) -> str:
    """On the tasks where the cheapest rule takes least and most FLOPs, how many; "" where none saves any.

    `sure` has the rules that keep the quality, the cheapest first.
    """
    cheapest = sure[sure.flops_share < 1].drop_duplicates("task")
    if cheapest.empty:
        return ""
    ends = cheapest.iloc[[0, -1]].drop_duplicates("task")
    parts = [
        f"{row.flops_share:.0%} ({without_source(row.rule)}, {figures.label(row.task)})"
        for row in ends.itertuples()
    ]
    return f"The cheapest takes {' to '.join(parts)} of the FLOPs."


def answer_message(kept: pd.DataFrame, quality: float) -> str:
    """Whether rules over several layers keep the quality for fewer FLOPs than full depth, and than others."""
    sure = kept[(kept.verdict == KEEPS_IT) & (kept.flops_share < 1)]
    families = pd.Series([RULES[rule].family for rule in sure.rule], index=sure.index, dtype=object)
    over_several = families == "several layers"
    over_one = ~over_several & (families != "reference")
    several = sure[over_several].groupby("task", sort=False).flops_share.min()
    one = sure[over_one].groupby("task", sort=False).flops_share.min()
    tasks = list(kept.task.unique())
    ahead = [task for task in several.index if several[task] < one.get(task, 1.0)]
    text = (
        f"In this chapter, rules over several layers reliably keep {quality:.0%} of the score for fewer "
        f"FLOPs than full depth {on_tasks(several.index, tasks)}"
    )
    if several.empty:
        return text
    if not ahead:
        return f"{text}, but on no task for fewer than the cheapest rule over one layer"
    return f"{text}, and for fewer than any rule over one layer {on_tasks(ahead, tasks)}"
