"""What counts at equal quality: the layers seen, the training target, the minimum exit layer."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ... import figures
from ...catalogue import RULES
from ...prose import listed, span
from ..wording import without_source
from .compared import LEAST_CHANGE, on_calm

BESIDE_ONE_LAYER = ("wide_hidden", "two_hidden", "three_hidden", "four_hidden", "lstm")


def beside_one_layer(equal: pd.DataFrame, share: float) -> pd.DataFrame:
    """How much later classifiers of more layers exit than that of one, at equal quality: means over seeds.

    Args:
        equal: from `comparison.at_equal_quality`, a row a task, model, rule, target, seed and share.
        share: of the predictions that stay.
    """
    rows = on_calm(equal)
    rows = rows[(rows.wanted == share)]
    layers = rows.pivot_table(index=["task", "seed"], columns="rule", values="mean_exit_layer", sort=False)
    tables = []
    for rule in BESIDE_ONE_LAYER:
        later = (layers[rule] - layers["hidden"]).rename("later").reset_index()
        tables.append(later.assign(rule=rule))
    return pd.concat(tables, ignore_index=True).dropna()


def moves_exits(later: pd.DataFrame) -> bool:
    """Whether any classifier exits elsewhere than that of one layer, so that there is something to draw."""
    return bool(later.later.abs().max() >= LEAST_CHANGE)


def layers_seen_figure(later: pd.DataFrame, tasks: Sequence[str], share: float, note: str = ""):
    """Mean exit layer minus that of the classifier on one state, with 95 % intervals over seeds."""
    return figures.facets(
        later,
        _draw_later,
        values=tasks,
        xlabel="mean exit layer, minus that of one state",
        height=2.4,
        width=3.8,
        message=layers_seen_message(later, share),
        note=note,
    )


def _draw_later(axis, rows: pd.DataFrame) -> None:
    axis.axvline(0, color=figures.GREY, linewidth=1)
    names = [figures.label(rule) for rule in BESIDE_ONE_LAYER]
    for row in rows.itertuples():
        height = len(names) - 1 - BESIDE_ONE_LAYER.index(row.rule)
        whiskers = [[row.later - row.later_low], [row.later_high - row.later]]
        colour = figures.STYLES[row.rule].colour
        axis.errorbar([row.later], [height], xerr=whiskers, fmt="o", color=colour, elinewidth=1)
    axis.set_yticks(range(len(names)), names[::-1], fontsize=8)
    axis.set_ylim(-0.5, len(names) - 0.5)


def layers_seen_message(later: pd.DataFrame, share: float) -> str:
    """By how much seeing more changes the mean exit layer, over tasks and classifiers."""
    of_several = [RULES[rule].family == "several layers" for rule in later.rule]
    changes = span(later.later[of_several], "{:+z.2f}")
    if not moves_exits(later):
        changes = f"less than {LEAST_CHANGE:g}"
    return (
        f"Seeing more than one state changes the mean exit layer by {changes} ({share:.0%} of predictions "
        "kept; negative: earlier)"
    )


def layers_seen_conclusion(later: pd.DataFrame, at_share: pd.DataFrame, first_layer: int) -> str:
    """What three states gain, and what as many parameters on one state gain; or why they gain nothing."""
    if not moves_exits(later):
        return _why_nothing_moves(at_share, first_layer)
    means = later.groupby("rule").later.mean()
    clear = int(((later.later_low > 0) | (later.later_high < 0)).sum())
    exclude = "excludes" if clear < 2 else "exclude"
    return (
        "Compared with a classifier on one state, and averaged over the tasks, three states move the mean "
        f"exit by {means['three_hidden']:+z.2f} layers, and one state with as many parameters by "
        f"{means['wide_hidden']:+z.2f} (negative: earlier). {clear or 'None'} of {len(later)} intervals over "
        f"seeds {exclude} zero."
    )


def _why_nothing_moves(at_share: pd.DataFrame, first_layer: int) -> str:
    """That seeing more layers changes nothing; because all exit at once, where they do."""
    rows = on_calm(at_share)
    layers = rows[rows.rule.isin(["hidden", *BESIDE_ONE_LAYER])].mean_exit_layer
    at_first = (layers < first_layer + LEAST_CHANGE).all()
    why = f"all classifiers exit at layer {first_layer}, the earliest allowed; " if at_first else ""
    return (
        f"Seeing more than one layer changes nothing here: {why}mean exit layers differ by less than "
        f"{LEAST_CHANGE:g} on every task, so nothing is drawn. (The stored table has the differences.)"
    )


def target_shown(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean exit layers by task and rule, a column a model and what its classifiers learn to predict."""
    table = rows.pivot(index=["task", "rule"], columns=["model", "target"], values="mean_exit_layer")
    return table.rename(index=figures.label, columns=figures.label).round(2)


def target_conclusion(rows: pd.DataFrame) -> str:
    """What the target and the model change in the mean exit layer, from rows of `target_shown`."""
    layers = rows.pivot(index=["task", "rule"], columns=["model", "target"], values="mean_exit_layer")
    calm = layers["calm", "consistency"]
    change = (layers["calm", "correctness"] - calm).abs().max()
    text = f"The target moves mean exit layers by at most {change:.1f}"
    if change < LEAST_CHANGE:
        text = "The target makes no difference"
    if ("vanilla", "consistency") not in layers:
        return f"{text}."
    vanilla = layers["vanilla", "consistency"]
    matters = "; the model matters more" if (vanilla - calm).abs().mean() > change else "; by model"
    return (
        f"{text}{matters}: mean exit layers are {span(calm, '{:.1f}')} in CALM and "
        f"{span(vanilla, '{:.1f}')} in vanilla."
    )


def starts_shown(started: pd.DataFrame) -> pd.DataFrame:
    """Mean exit layers and FLOPs at equal quality, by task and rule, a column a minimum exit layer."""
    values = ["mean_exit_layer", "flops_share"]
    table = started.pivot(index=["task", "rule"], columns="min_layer", values=values)
    table = table.rename(index=figures.label).rename(columns=figures.label, level=0)
    return table.rename_axis(columns=[None, "minimum exit layer"]).round(2)


def starts_conclusion(started: pd.DataFrame) -> str:
    """The minimum exit layer with which each rule is cheapest, a mean over tasks."""
    flops = started.pivot_table(index="min_layer", columns="rule", values="flops_share", sort=False)
    cheapest = flops.idxmin()  # rule -> layer
    parts = []
    for layer, of_layer in cheapest.groupby(cheapest):
        rules = [f"the {without_source(rule)}" for rule in of_layer.index]
        parts.append(f"{layer} for {listed(rules)}")
    first = flops.index.min()
    thresholds = started.pivot_table(index="min_layer", columns="rule", values="threshold", sort=False)
    at_cheapest = pd.Series({rule: thresholds.loc[layer, rule] for rule, layer in cheapest.items()})
    stricter = cheapest.min() > first and (thresholds.loc[first] > at_cheapest).all()
    why = f" Exits from layer {first} on need stricter thresholds." if stricter else ""
    return f"On average over the tasks, the cheapest minimum exit layer is {', and '.join(parts)}.{why}"
