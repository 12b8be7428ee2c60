"""How classifiers learn, who ranks tokens best, and how many training tokens that takes."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ....analysis.decisions import LEAST_TO_RANK
from ....analysis.statistics import percentiles
from ... import figures
from ...catalogue import RULES, VARIANTS
from ...learned_from import HISTORY
from ...prose import listed, on_tasks, span, task_span
from ..wording import capitalized, last_ranked_layer, percent_span, without_source
from .compared import CONTROLS, MARGIN, clear_gains, on_calm, ranks_clearly_better

ON_STATES = tuple(rule for rule in VARIANTS if rule != HISTORY)
EQUAL_AREA = 0.002  # areas under the ROC curve that are this close are called equal
LEAST_RISE = 0.01  # of an area with more training tokens


def last_epoch(curves: pd.DataFrame) -> pd.DataFrame:
    """The losses of each classifier in its last epoch and in its best one, by held-out loss."""
    best = curves.loc[curves.groupby("rule", sort=False).held_out_loss.idxmin()]
    last = curves[curves.epoch == curves.epoch.max()]
    ends = last[["rule", "loss", "held_out_loss"]].rename(columns={"loss": "training_loss"})
    return ends.merge(best[["rule", "epoch"]].rename(columns={"epoch": "best_epoch"}), on="rule")


def learning_conclusion(ends: pd.DataFrame) -> str:
    """Which classifiers fit best, and which overfit."""
    best = ends.loc[ends.held_out_loss.idxmin()]
    gap = ends.assign(gap=ends.held_out_loss - ends.training_loss)
    widest = gap.loc[gap.gap.idxmax()]
    return (
        f"The lowest held-out loss is {best.held_out_loss:.3f} nats ({without_source(best.rule)}). The "
        f"{without_source(widest.rule)} overfits most: its held-out loss ends {widest.gap:.3f} nats above "
        f"its training loss, and was lowest in epoch {widest.best_epoch}."
    )


def best_of_kinds(mean_rank: pd.DataFrame) -> list[str]:
    """The rules whose ranking is drawn: the best classifier of either kind, and what needs no training."""
    areas = on_calm(mean_rank).groupby("rule").roc_area.mean().fillna(0)
    classifiers = areas[[rule for rule in VARIANTS if rule in areas and rule not in CONTROLS]]
    several = [rule for rule in classifiers.index if RULES[rule].family == "several layers"]
    one = classifiers.index.difference(several)
    best = [classifiers[one].idxmax(), classifiers[several].idxmax()]
    return [MARGIN, *best, "hidden_similarity", "rising_top1"]


def ranking_figure(by_layer: pd.DataFrame, mean_rank: pd.DataFrame, tasks: Sequence[str], note: str = ""):
    """The area under the ROC curve by layer: the margin, the best classifier of one and of several layers."""
    rules = best_of_kinds(mean_rank)
    drawn = on_calm(by_layer)
    drawn = drawn[drawn.rule.isin(rules)]
    last = last_ranked_layer(drawn)
    drawn = drawn[drawn.layer <= last]
    drawn = drawn.assign(order=drawn.rule.map(rules.index)).sort_values("order", kind="stable")
    return figures.facets(
        drawn,
        _draw_ranking,
        values=tasks,
        last=last,
        lowest=min(0.45, drawn.roc_area.min() - 0.02),
        ylabel="area under the ROC curve",
        height=3.2,
        message=ranking_message(mean_rank),
        note=note,
    )


def _draw_ranking(axis, rows: pd.DataFrame, last: int, lowest: float) -> None:
    margin = rows[rows.rule == MARGIN].sort_values("layer")
    look = {"color": "#999999", "linewidth": 4, "alpha": 0.6, "zorder": 0}
    axis.plot(margin.layer, margin.roc_area, label=figures.label(MARGIN), **look)
    band = ("roc_area_low", "roc_area_high")
    figures.lines(axis, rows[rows.rule != MARGIN], "layer", "roc_area", band=band, clip=(0, 1))
    axis.axhline(0.5, color=figures.GREY, linewidth=0.8, linestyle=":")
    figures.say_why_lines_end(axis, last_ranked_layer(rows), last, figures.TOO_FEW)
    axis.set_ylim(lowest, 1.01)


def ranking_message(mean_rank: pd.DataFrame) -> str:
    """Which classifier, the best of its task, ranks tokens clearly better than the margin, and where."""
    rows = on_calm(mean_rank)
    areas = rows.pivot(index="task", columns="rule", values="roc_area")
    best = areas[[rule for rule in VARIANTS if rule in areas]].fillna(0).idxmax(axis=1)
    ahead: dict[str, list[str]] = {}
    for task, of_task in rows.groupby("task", sort=False):
        if clear_gains(of_task, "roc_area", best[task], MARGIN):
            ahead.setdefault(best[task], []).append(task)
    if not ahead:
        return "No classifier ranks tokens clearly better than the softmax margin"
    parts = []
    for rule, tasks in ahead.items():
        does = "does" if parts else "ranks tokens clearly better than the softmax margin"
        parts.append(f"the {without_source(rule)} {does} {on_tasks(tasks, areas.index)}")
    return capitalized("; ".join(parts))


def ranking_shown(mean_rank: pd.DataFrame) -> pd.DataFrame:
    """The area under the ROC curve by rule, the best on top, a column a task."""
    areas = on_calm(mean_rank).pivot(index="rule", columns="task", values="roc_area")
    order = areas.mean(axis=1).sort_values(ascending=False, kind="stable").index
    return areas.loc[order].rename(figures.label).rename(columns=figures.label).round(3)


def ranking_conclusion(mean_rank: pd.DataFrame) -> str:
    """Which rules rank tokens best, what the best classifiers do, and three states compared with one."""
    rows = on_calm(mean_rank)
    areas = rows.pivot(index="rule", columns="task", values="roc_area")
    ahead = clear_gains(rows, "roc_area", "three_hidden", "hidden")
    three = ranks_clearly_better(
        "a classifier on three states", "one on a single state", ahead, list(areas.columns)
    )
    means = areas.mean(axis=1).drop(index=list(CONTROLS), errors="ignore")
    if means.isna().all():
        return f"No layer has enough tokens of either kind to rank them. {three}"
    ordered = means.sort_values(ascending=False, kind="stable")
    best = list(ordered[ordered >= ordered.max() - EQUAL_AREA].index)
    sentences = [
        _ranked_best(best, areas),
        *_ranked_behind(best_of_kinds(mean_rank), best, areas),
        _states_beside_the_margin(rows),
        three,
        f"Layers with fewer than {LEAST_TO_RANK} tokens of either kind are left out.",
    ]
    return " ".join(sentences)


def _ranked_behind(kinds: Sequence[str], best: Sequence[str], areas: pd.DataFrame) -> list[str]:
    """A sentence on the area of each kind of rule, from `best_of_kinds`, that is not among the best."""
    _, one, several, similarity, _ = kinds
    names = {
        MARGIN: "The softmax margin",
        one: f"The best classifier over one layer ({without_source(one)})",
        several: f"The best classifier over several layers ({without_source(several)})",
    }
    sentences = [f"{name} has {_areas(areas, [rule])}." for rule, name in names.items() if rule not in best]
    guess = ", at times worse than guessing" if areas.loc[similarity].min() < 0.5 else ""
    return [*sentences, f"Hidden similarity has {_areas(areas, [similarity])}{guess}."]


def _areas(areas: pd.DataFrame, rules: Sequence[str]) -> str:
    """Between which areas some rules lie on all tasks, from rows of rules and columns of tasks."""
    return percent_span(areas.loc[rules].to_numpy().ravel(), "{:.2f}")


def _states_beside_the_margin(rows: pd.DataFrame) -> str:
    """On which tasks any classifier on states ranks tokens clearly better than the margin, as a sentence."""
    ahead: set[str] = set()
    for rule in ON_STATES:
        if rule in set(rows.rule):
            ahead.update(clear_gains(rows, "roc_area", rule, MARGIN))
    tasks = list(rows.task.unique())
    if not ahead:
        return "On no task does a classifier on states rank tokens clearly better than the softmax margin."
    where = on_tasks([task for task in tasks if task in ahead], tasks)
    return f"Some classifier on states ranks tokens clearly better than the softmax margin {where}."


def _ranked_best(best: Sequence[str], areas: pd.DataFrame) -> str:
    """Names the rules with the largest mean area, and those of them that need no training."""
    named = capitalized(listed(f"the {without_source(rule)}" for rule in best))
    untrained = [f"the {without_source(rule)}" for rule in best if rule not in VARIANTS]
    has = "has" if len(best) == 1 else "have"
    text = f"{named} {has} the largest mean area ({_areas(areas, best)} by task)"
    needs = "needs" if len(untrained) == 1 else "need"
    if len(untrained) == len(best):
        return f"{text} and {needs} no training."
    if untrained:
        return f"{text}; {listed(untrained)} {needs} no training."
    return f"{text}."


def tokens_figure(learned: pd.DataFrame, tasks: Sequence[str], sizes: Sequence[int], note: str = ""):
    """The area under the ROC curve by the number of training tokens."""
    return figures.facets(
        learned,
        _draw_tokens,
        values=tasks,
        sizes=sizes,
        xlabel="training tokens",
        ylabel="area under\nthe ROC curve",
        message=tokens_message(learned),
        note=note,
    )


def _draw_tokens(axis, rows: pd.DataFrame, sizes: Sequence[int]) -> None:
    figures.lines(axis, rows, "tokens", "roc_area", band=("roc_area_low", "roc_area_high"), clip=(0, 1))
    axis.set(xscale="log")
    axis.set_xticks(sizes, [f"{size / 1000:g}k" for size in sizes])
    axis.minorticks_off()


def tokens_message(learned: pd.DataFrame) -> str:
    """On how many tasks three layers lead with the most tokens."""
    most = learned[learned.tokens == learned.tokens.max()]
    tasks = most.task.unique()
    ahead_of_one = clear_gains(most, "roc_area", "three_hidden", "hidden")
    ahead_of_wide = clear_gains(most, "roc_area", "three_hidden", "wide_hidden")
    tokens = f"{round(learned.tokens.max(), -3):,} training tokens"
    if not ahead_of_one and not ahead_of_wide:
        return (
            f"Even with {tokens}, a classifier on three states does not rank tokens clearly better than one "
            "on a single state"
        )
    return (
        f"With {tokens}, a classifier on three states ranks tokens clearly better than one on a single state "
        f"{on_tasks(ahead_of_one, tasks)}, and than one with as many parameters "
        f"{on_tasks(ahead_of_wide, tasks)}"
    )


def tokens_conclusion(learned: pd.DataFrame) -> str:
    """How many tokens are enough, and what three states gain with the most of them."""
    gains = gains_of_three(learned)
    ahead = int((gains.low > 0).sum())
    behind = int((gains.high < 0).sum())
    opening = "With the most tokens, a classifier on three states"
    if not ahead:
        opening = (
            "More training tokens give a classifier on three states no advantage: with the most tokens, it"
        )
    return (
        f"{_tokens_needed(learned)}{opening} is clearly ahead of another classifier in {ahead or 'none'} of "
        f"{len(gains)} comparisons and clearly behind in {behind or 'none'} (95 % interval on one side of "
        f"zero); the area differs by {span(gains.gain, '{:+z.3f}')}."
    )


def _tokens_needed(learned: pd.DataFrame) -> str:
    """Where the largest number of training tokens still helps; nothing if there is one number."""
    areas = learned.pivot_table(index="tokens", columns="task", values="roc_area", sort=False).sort_index()
    if len(areas) < 2:
        return ""
    fewer = f"{round(areas.index[-2], -3):,}"
    most = f"{round(areas.index[-1], -3):,}"
    rise = areas.iloc[-1] - areas.iloc[-2]
    needed = rise[rise >= LEAST_RISE]
    if needed.empty:
        return (
            f"{fewer} tokens are enough: with {most}, the area (a mean over the classifiers) rises by less "
            f"than {LEAST_RISE:g}. "
        )
    return (
        f"{fewer} tokens are too few {on_tasks(needed.index, areas.columns)}: with {most}, the area (a mean "
        f"over the classifiers) still rises by {task_span(needed, '.3f')}. "
    )


def gains_of_three(learned: pd.DataFrame) -> pd.DataFrame:
    """The area of three layers minus that of others, with the most tokens: a row a task and rule."""
    most = learned[learned.tokens == learned.tokens.max()]
    rows = []
    for task, of_task in most.groupby("task", sort=False):
        area = of_task.set_index("rule")
        for other in ("hidden", "wide_hidden", "lstm"):
            gain = area.roc_area["three_hidden"] - area.roc_area[other]
            low, high = percentiles(area.roc_area_draws["three_hidden"] - area.roc_area_draws[other])
            rows.append({"task": task, "rule": other, "gain": gain, "low": low, "high": high})
    return pd.DataFrame(rows)
