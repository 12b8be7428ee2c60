"""The cheapest rules: at a mean score, where quality is kept reliably, at one loss, and by seed."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ... import figures, open_question
from ...catalogue import MAIN_MODEL, RULES
from ...prose import listed, on_tasks, span, task_span
from ...verdicts import ALL_LOSE_MORE, BETWEEN, KIND_OF, SEVERAL, on_front
from ..wording import capitalized, winners, worst_tasks

CHEAPEST = {  # kind of rule -> how its cheapest setting is drawn
    kind: figures.Style(f"cheapest rule over {kind}", figures.STYLES[kind].colour, marker)
    for kind, marker in ((open_question.SEVERAL, "^"), (open_question.ONE, "o"))
}
SIGNS = {"^": "▲", "o": "●"}  # the markers of `CHEAPEST` in a text
FLOPS_DRAWN = (0.3, 1.35)
SCORES_DRAWN = (0.75, 1.06)


def kept_conclusion(sure: pd.DataFrame, tasks: Sequence[str], quality: float) -> str:
    """How many rules keep the quality, and what the cheapest of all and of several layers takes, by task."""
    counted = _number_of_rules(sure, tasks, quality)
    if sure.empty:
        return counted
    ordered = sure.sort_values("flops_share", kind="stable")
    cheapest = ordered.drop_duplicates("task")
    flops = task_span(cheapest.set_index("task").flops_share)
    several = ordered[ordered.rule.map(KIND_OF) == SEVERAL].groupby("task").flops_share.min()
    beside = f" Over several layers, the cheapest takes {task_span(several)}." if len(several) else ""
    return f"{counted} The cheapest takes {flops} of the FLOPs ({winners(cheapest)}).{beside}"


def _number_of_rules(sure: pd.DataFrame, tasks: Sequence[str], quality: float) -> str:
    """A sentence on how many rules keep the quality, by task, and how many of these save FLOPs."""
    numbers = sure.groupby("task").size().reindex(tasks, fill_value=0)
    where = ", depending on the task" if numbers.nunique() > 1 else " on every task"
    keep = "rule keeps" if numbers.max() == 1 else "rules keep"
    saving = sure[sure.flops_share < 1].groupby("task").size().reindex(tasks, fill_value=0)
    save = "saves" if saving.max() == 1 else "save"
    some_save = ""
    if saving.tolist() != numbers.tolist():
        some_save = f"; {span(saving, '{:d}')} of them {save} FLOPs"
    return f"{span(numbers, '{:d}')} {keep} {quality:.0%} reliably{where}{some_save}."


def flops_figure(points: pd.DataFrame, tasks: Sequence[str], quality: float, note: str = ""):
    """Score kept against FLOPs of every setting: the front of all rules, a fixed layer, the oracle.

    Args:
        points: all settings of one model, with `front`, from `verdicts.fronts`.
        tasks: in the order of the panels.
        quality: the cheapest setting on the front that keeps it on average is named.
        note: below the figure.
    """
    return figures.facets(
        points,
        _draw_front,
        values=tasks,
        quality=quality,
        width=3.9,
        height=3.3,
        xlabel="FLOPs (1 = full depth)",
        ylabel="score kept (1 = full depth)",
        message=flops_message(points, quality),
        note=figures.small_print(note, "settings beyond the axes are not shown"),
    )


def cheapest_on_front(points: pd.DataFrame, quality: float) -> pd.DataFrame:
    """Of every task the cheapest setting of a rule that keeps a share of the score on average."""
    rules = points[~points.rule.map(_is_reference) & (points.retained >= quality)]
    return rules.sort_values(["task", "flops_share"], kind="stable").drop_duplicates("task")


def _is_reference(rule: str) -> bool:
    """Whether rules are set beside it: a fixed layer, the oracle, full depth."""
    return RULES[rule].family == "reference"


def _fixed_layers(points: pd.DataFrame, quality: float) -> pd.Series:
    """Task -> FLOPs of the earliest fixed layer that keeps a share of the score on average."""
    keeping = points[(points.rule == "static") & (points.retained >= quality)]
    return keeping.groupby("task").flops_share.min()


def _draw_front(axis, rows: pd.DataFrame, quality: float) -> None:
    """One panel: settings of rules and their front, what they are set beside, the cheapest of each kind."""
    rules = rows[~rows.rule.map(_is_reference)]
    small = {"color": "#bbbbbb", "s": 5, "linewidth": 0}
    axis.scatter(rules.flops_share, rules.retained, label="settings of rules", **small)
    best = rules[on_front(rules.flops_share, rules.retained)].sort_values("flops_share", kind="stable")
    axis.plot(best.flops_share, best.retained, color=figures.BLUE, linewidth=1.8, label="front of all rules")
    static = rows[rows.rule == "static"].sort_values("flops_share", kind="stable")
    axis.plot(static.flops_share, static.retained, ".:", color="black", label="a fixed layer")
    for rule, marker in (("oracle", "*"), ("full_depth", "+")):
        point = rows[rows.rule == rule]
        look = {"color": "black", "markersize": 9, "label": figures.label(rule)}
        axis.plot(point.flops_share, point.retained, marker, **look)
    axis.axhline(quality, color=figures.GREY, linewidth=0.8, linestyle=":")
    axis.set(xlim=FLOPS_DRAWN, ylim=SCORES_DRAWN)
    _mark_the_cheapest(axis, rows[rows.retained >= quality], quality)


def _mark_the_cheapest(axis, rows: pd.DataFrame, quality: float) -> None:
    """A marker on the cheapest rule of each kind, and its name and FLOPs in the lower right corner."""
    cheapest = open_question.cheapest(open_question.of_rules(rows))
    for number, row in enumerate(cheapest.itertuples()):
        style = CHEAPEST[row.kind]
        look = {"color": style.colour, "markersize": 7, "markeredgecolor": "white", "linestyle": "none"}
        axis.plot(row.flops_share, row.retained, style.marker, label=f"{style.label}, {quality:.0%}", **look)
        name = f"{SIGNS[style.marker]} {figures.label(row.rule)}: {row.flops_share:.0%}"
        behind = {"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1}
        place = {"transform": axis.transAxes, "ha": "right", "fontsize": 9, "bbox": behind}
        axis.text(0.98, 0.05 + 0.09 * number, name, color=style.colour, **place)


def flops_message(points: pd.DataFrame, quality: float) -> str:
    """The cheapest rule at this mean score beside the cheapest fixed layer."""
    cheapest = cheapest_on_front(points, quality).set_index("task").flops_share
    fixed = _fixed_layers(points, quality).reindex(cheapest.index)
    ahead = cheapest.index[fixed.isna() | (cheapest < fixed)]
    where = capitalized(on_tasks(ahead, cheapest.index))
    who = f"{where} some rule keeps" if len(ahead) else f"{where} does a rule keep"
    return f"{who} a mean of {quality:.0%} of the score for fewer FLOPs than a fixed layer"


def flops_conclusion(points: pd.DataFrame, quality: float) -> str:
    """FLOPs at a mean score: the best rule and a fixed layer."""
    cheapest = cheapest_on_front(points, quality)
    if cheapest.empty:
        return f"No rule keeps a mean of {quality:.0%} of the score."
    fixed = _fixed_layers(points, quality)
    beside = f"the earliest fixed layer {task_span(fixed)}" if len(fixed) else "no fixed layer keeps it"
    flops = task_span(cheapest.set_index("task").flops_share)
    return (
        f"To keep a mean of {quality:.0%} of the score, the cheapest rule takes {flops} of the FLOPs, "
        f"{beside}. These settings are chosen on the examples that they are shown on, so the front is "
        "optimistic; the section above says what is reliable."
    )


def equal_loss_conclusion(equal: pd.DataFrame, wanted: float) -> str:
    """What the cheapest rules take at one consistency loss, and how many rules have no number."""
    rows = equal[equal.wanted == wanted]
    if rows.empty:
        return ""
    least = rows[rows.reading == BETWEEN].groupby("task").flops_share.min()
    missing = (rows.reading == ALL_LOSE_MORE).groupby(rows.task, sort=False).sum()
    strict = "Every rule has a setting that strict."
    if missing.max():
        have = "rules have" if missing.max() > 1 else "rules has"
        where = capitalized(worst_tasks(missing))
        strict = f"{where}, {missing.max()} of {rows.rule.nunique()} {have} no setting that strict."
    return (
        f"At a mean consistency loss of {wanted:.0%}, the cheapest rule takes {task_span(least)} of the "
        f"FLOPs. {strict}"
    )


def seeds_conclusion(spread: pd.DataFrame) -> str:
    """FLOPs of one rule by training objective, over seeds of the training."""
    by_model = spread.groupby("model", sort=False)
    least = by_model.low.min()
    most = by_model.high.max()
    parts = [
        f"from {least[name]:.0%} to {most[name]:.0%} under {figures.label(name)}"
        for name in (MAIN_MODEL, "vanilla")
        if name in least.index
    ]
    return (
        "On models retrained with other seeds, the share of full depth's FLOPs that the margin with fixed "
        f"pruning takes at 0.9 ranges, over tasks and seeds, {listed(parts)}. (Seeds can be compared here, "
        "models cannot: an equal threshold is not equal quality.)"
    )
