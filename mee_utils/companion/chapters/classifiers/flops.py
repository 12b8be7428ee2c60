"""What deciding costs, and the FLOPs of each rule at equal quality."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ... import figures
from ...catalogue import RULES
from ..wording import winners
from .compared import CONTROLS, FEW, MARGIN, on_calm

SHAPE_STYLES = {
    "mini": figures.Style("mini T5 (1,600 entries)", "#b5b5b5", "o"),
    "t5-base": figures.Style("T5-base", figures.BLUE, "s"),
    "t5-large": figures.Style("T5-large", figures.DARK, "D"),
}
DRAWN_AS_FREE = 1e-5  # where a decision that costs nothing is drawn on the logarithmic axis
AT_ONCE = 0.5  # layers after the first: a rule with an earlier mean exit layer hardly waits


def cost_figure(costs: pd.DataFrame):
    """The cost of one decision and the break-even depth, for three shapes of model."""
    ordered = costs.iloc[::-1].assign(panel="")
    figure = figures.facets(
        ordered.melt(["shape", "rule"], ["share_of_layer", "break_even"], "quantity", "value"),
        _draw_costs,
        "quantity",
        sharex=False,
        width=5.2,
        height=4.2,
        message=cost_message(costs),
    )
    decision, even = figure.axes[:2]
    decision.set(
        xscale="log", xlabel="FLOPs of one decision (1 = one decoder layer)", title="cost of a decision"
    )
    decision.axvline(1.0, color=figures.GREY, linewidth=0.8, linestyle=":")
    even.set(
        xlabel="mean exit layer below which exits save FLOPs\n(share of the depth)", title="break-even depth"
    )
    return figure


def _draw_costs(axis, rows: pd.DataFrame) -> None:
    rules = list(dict.fromkeys(rows.rule))
    shown = rows.assign(height=rows.rule.map(rules.index), value=rows.value.clip(lower=DRAWN_AS_FREE))
    figures.dots(axis, shown, "value", "height", "shape", styles=SHAPE_STYLES, markersize=5)
    axis.set_yticks(range(len(rules)), [figures.label(rule) for rule in rules], fontsize=8)
    if (rows.quantity == "share_of_layer").all():
        place = {"xytext": (8, 0), "textcoords": "offset points", "va": "center"}
        for height, rule in enumerate(rules):
            if rows[rows.rule == rule].value.max() == 0:
                axis.annotate("free", (DRAWN_AS_FREE, height), fontsize=8, **place)


def cost_message(costs: pd.DataFrame) -> str:
    """What the margin, over all entries and over few, and a cheap classifier on states cost at T5-large."""
    large = costs[costs["shape"] == "t5-large"].set_index("rule").share_of_layer
    return (
        f"At T5-large's size, a margin costs {large[MARGIN]:.1f} layers, or {large[FEW]:.3f} over few "
        f"entries, and a low-rank classifier on three states {large['low_rank_three']:.2f}"
    )


def cost_conclusion(costs: pd.DataFrame) -> str:
    """Who has to exit before which depth."""
    large = costs[costs["shape"] == "t5-large"].set_index("rule").break_even
    mini = costs[costs["shape"] == "mini"].set_index("rule").break_even
    return (
        "A rule that decides at every layer saves FLOPs only if tokens exit before its break-even depth. At "
        f"T5-large's size that is {large[MARGIN]:.0%} of the depth for the softmax margin and "
        f"{large['three_hidden']:.0%} for a classifier on three states; at the mini T5's it is "
        f"{mini[MARGIN]:.0%} and {mini['three_hidden']:.0%}. Rules on probabilities pay for the LM head; "
        f"over few entries the margin's break-even depth is {large[FEW]:.0%} and {mini[FEW]:.0%}. Hidden "
        "similarity is counted as free."
    )


def equal_quality_figure(at_share: pd.DataFrame, tasks: Sequence[str], share: float, note: str = ""):
    """FLOPs of every rule at one share of predictions kept, the cheapest on top: a dot a rule."""
    rows = _drawn_at_equal_quality(at_share)
    order = rows.groupby("rule").flops_share.mean().sort_values(ascending=False).index
    return figures.facets(
        rows.assign(height=rows.rule.map(list(order).index)),
        _draw_ranked,
        values=tasks,
        names=[figures.label(rule) for rule in order],
        height=4.0,
        xlabel="FLOPs (1 = full depth)",
        message=equal_quality_message(at_share, share),
        note=note,
    )


def _drawn_at_equal_quality(at_share: pd.DataFrame) -> pd.DataFrame:
    """The rows of `equal_quality_figure`: no controls, which the ablations draw."""
    rows = on_calm(at_share)
    return rows[~rows.rule.isin(CONTROLS)]


def _draw_ranked(axis, rows: pd.DataFrame, names: Sequence[str]) -> None:
    """One panel: a line a rule, with the colour and the marker of its family."""
    of_family = rows.assign(family=[RULES[rule].family for rule in rows.rule])
    band = ("flops_share_low", "flops_share_high")
    figures.dots(axis, of_family, "flops_share", "height", "family", xband=band, markersize=5)
    axis.axvline(1.0, color=figures.GREY, linewidth=0.8, linestyle=":")
    axis.set_yticks(range(len(names)), names, fontsize=8)


def equal_quality_message(at_share: pd.DataFrame, share: float) -> str:
    """The cheapest rule at equal quality, by task; where most rules exit at once, that they do."""
    rows = _drawn_at_equal_quality(at_share)
    layers = rows.groupby("rule").mean_exit_layer.mean()
    first = int(layers.min())
    early = int((layers < first + AT_ONCE).sum())
    where = f"Where {share:.0%} of the predictions stay"
    if early > len(layers) / 2:
        at_once = f"{early} of {len(layers)} rules exit at or near layer {first}"
        return f"{where}, {at_once}; only their cost differs"
    best = rows.loc[rows.groupby("task", sort=False).flops_share.idxmin()]
    return f"{where}, the cheapest rule is {winners(best)}"


def equal_quality_conclusion(at_share: pd.DataFrame, first_layer: int, share: float) -> str:
    """How deep tokens go on average, and what classifiers do on the vanilla model."""
    layers = _drawn_at_equal_quality(at_share).groupby("rule").mean_exit_layer.mean()
    early = int((layers < first_layer + AT_ONCE).sum())
    exit_at_once = "exits" if early < 2 else "exit"
    return (
        f"With {share:.0%} of the predictions kept, and averaged over the tasks, {early or 'none'} of "
        f"{len(layers)} rules {exit_at_once} within {AT_ONCE:g} layers of layer {first_layer}, the earliest "
        f"allowed. {_beside_vanilla(layers, at_share)}"
    )


def _beside_vanilla(layers: pd.Series, at_share: pd.DataFrame) -> str:
    """At which layers classifiers exit in vanilla, and in CALM, whose `layers` are given by rule."""
    vanilla = at_share[(at_share.model == "vanilla") & (at_share.target == "consistency")]
    in_vanilla = vanilla.groupby("rule").mean_exit_layer.mean()
    in_calm = layers[in_vanilla.index]
    between_models = abs(in_vanilla.mean() - in_calm.mean())
    between_rules = in_calm.max() - in_calm.min()
    more = ": the training of the model matters more than the rule" if between_models > between_rules else ""
    return (
        f"Classifiers of the same kinds, trained on each model, exit at layer {in_calm.mean():.1f} in CALM "
        f"and at layer {in_vanilla.mean():.1f} in vanilla{more}."
    )
