"""What a decision costs, and the FLOPs of each way of pruning at equal quality."""

from __future__ import annotations

import pandas as pd

from ... import figures
from ...catalogue import PRUNED
from ...prose import listed, on_tasks, task_span
from ..wording import winners, with_interval
from .ways import LITTLE, PUBLISHED, WHOLE_LAST, by_way, way_label

SHADES = {"mini": "#a5a5a5", "t5-base": "#6f6f6f", "t5-large": "#222222"}  # of shapes of models
MARKERS = "os^Dv"  # of those, one after the other
LEAST_SAVED = 0.0005  # of the FLOPs: what one digit of a percentage shows


def cost_figure(costs: pd.DataFrame, note: str = ""):
    """The cost of one decision in layers, and the exit depth below which it pays, by entries scored."""
    quantities = {
        "share_of_layer": "FLOPs of one decision, in layers",
        "break_even": "break-even exit, share of depth",
    }
    panels = [costs.assign(panel=name, value=costs[column]) for column, name in quantities.items()]
    figure = figures.facets(
        pd.concat(panels, ignore_index=True),
        _draw_cost,
        "panel",
        sharey=False,
        xlabel="entries scored",
        width=4.4,
        message=cost_message(costs),
        note=note,
    )
    figure.axes[0].set(xscale="log", yscale="log")
    return figure


def _draw_cost(axis, rows: pd.DataFrame) -> None:
    styles = {}
    for name, marker in zip(rows["shape"].unique(), MARKERS, strict=False):
        colour = SHADES.get(name, figures.BLUE)
        styles[name] = figures.Style(figures.SIZES.get(name, name), colour, marker)
    figures.lines(axis, rows, "ids", "value", "shape", styles=styles)


def cost_message(costs: pd.DataFrame) -> str:
    """What a decision over the whole vocabulary of T5-large costs, and up to which depth it pays."""
    large = costs[costs["shape"] == "t5-large"].sort_values("ids").iloc[-1]
    return (
        f"At T5-large's size, a decision over all {large.ids:,} entries costs the FLOPs of "
        f"{large.share_of_layer:.1f} layers and pays off only if tokens exit before {large.break_even:.0%} "
        "of the depth"
    )


def cost_conclusion(costs: pd.DataFrame, entries: int = 256) -> str:
    """What pruning does to that cost."""
    large = costs[(costs["shape"] == "t5-large") & (costs.ids == entries)]
    if large.empty:
        return ""
    row = large.iloc[0]
    return (
        f"Over {entries} entries, a decision at T5-large's size costs the FLOPs of {row.share_of_layer:.2f} "
        f"layers and pays off if tokens exit before {row.break_even:.0%} of the depth. These are counts; 04 "
        "measures how long one decision takes at this size."
    )


def equal_shown(equal: pd.DataFrame, layers: int, shares=(0.99, 0.995)) -> pd.DataFrame:
    """FLOPs as a share of full depth's with 95 % intervals: a row a rule, columns by share and task.

    A cell says "not reached" where no threshold keeps the wanted share of the predictions.
    """
    shown = equal[equal.wanted.isin(shares)].sort_values("wanted", kind="stable")
    costs = [with_interval(row, "flops_share") for _, row in shown.iterrows()]
    cells = pd.Series(costs, index=shown.index).mask(_not_reached(shown, layers), "not reached")
    wanted = shown.wanted.map("{:.1%} of predictions".format)
    table = shown.assign(cell=cells, wanted=wanted)
    return by_way(table, ["rule"], ["wanted", "task"], ["cell"])["cell"]


def _not_reached(equal: pd.DataFrame, layers: int) -> pd.Series:
    """Whether a row falls short of the wanted share although hardly any token exits."""
    return (equal.same_token < equal.wanted) & (equal.mean_exit_layer > layers - 0.05)


def equal_conclusion(equal: pd.DataFrame, layers: int, wanted: float = 0.99) -> str:
    """The cheapest way of pruning at equal quality, by task."""
    rows = equal[(equal.wanted == wanted) & equal.flops_share.notna() & ~_not_reached(equal, layers)]
    rows = rows[rows.rule.isin(["unpruned", *PRUNED])]
    if rows.empty:
        return ""
    best = rows.loc[rows.groupby("task", sort=False).flops_share.idxmin()].set_index("task")
    plain = rows[rows.rule == "unpruned"].set_index("task").flops_share
    saved = (plain - best.flops_share).max()
    barely = f" (cheaper by at most {100 * saved:.1f} points)" if LEAST_SAVED <= saved < LITTLE else ""
    against = f", against {task_span(plain)} for the margin over all entries" if saved >= LEAST_SAVED else ""
    return (
        f"Where {wanted:.0%} of the predictions at the exits are those of full depth, the cheapest rule is "
        f"{winners(best.reset_index())}{barely}: {task_span(best.flops_share)} of the FLOPs of full depth"
        f"{against}."
    )


def reached_conclusion(equal: pd.DataFrame, layers: int) -> str:
    """Where a pruned last layer keeps a rule from a share of predictions that a whole one reaches."""
    short = equal[_not_reached(equal, layers) & equal.rule.isin(PUBLISHED)]
    if short.empty:
        return ""
    wanted = short.wanted.min()
    places = short[short.wanted == wanted]
    ways = listed(way_label(name) for name in places.rule.unique())
    where = on_tasks(places.task.unique(), equal.task.unique())
    whole = equal[(equal.rule == WHOLE_LAST) & (equal.wanted == wanted)]
    reached = whole[~_not_reached(whole, layers)]
    does = set(places.task) <= set(reached.task)
    text = f"With a pruned last layer ({ways}), no threshold keeps {wanted:.1%} of the predictions {where}"
    return f"{text}; with a whole one, some threshold does." if does else f"{text}."
