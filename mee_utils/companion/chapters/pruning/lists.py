"""Lists of vocabulary entries: what they hold, how long they are, what they lack, how short they may be."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from ... import figures
from ...prose import listed
from ..wording import capitalized, percent_span, some, with_interval
from .ways import PUBLISHED, WHOLE_LAST, by_way, changed, shown_among, way_label

RECALL_LAYERS = (1, 2, 3, 4, 6, 8)
NEARLY_ALL = 0.005  # of the predictions: a list that keeps fewer than the longest by this much is long enough


def recall_figure(kept_at: pd.DataFrame, top_k: int, note: str = ""):
    """The share of CALM's final tokens among the k best entries of a layer."""
    drawn = recall_drawn(kept_at)
    figure = figures.facets(
        drawn,
        figures.lines,
        x="k",
        y="recall",
        by="layer",
        band=figures.BAND,
        styles=figures.layer_styles(int(kept_at.layer.max())),
        xlabel="entries kept, k",
        ylabel="share of final tokens kept",
        message=recall_message(drawn, top_k),
        note=note,
    )
    _log_axis(figure)
    return figure


def _log_axis(figure) -> None:
    """A horizontal axis of entries, each tick twice the one before or more."""
    figure.axes[0].set_xscale("log", base=2)
    figure.axes[0].xaxis.set_major_formatter("{x:g}")


def recall_drawn(kept_at: pd.DataFrame) -> pd.DataFrame:
    """The rows of `recall_figure`."""
    return kept_at[(kept_at.model == kept_at.model.iloc[-1]) & kept_at.layer.isin(RECALL_LAYERS)]


def recall_message(drawn: pd.DataFrame, top_k: int) -> str:
    """What the first drawn layer and the fourth keep."""
    rows = drawn[(drawn.k == top_k) & drawn.layer.isin((1, 4))]
    tokens = f" of {figures.label(drawn.model.iloc[0])}'s final tokens"
    shares = []
    for layer, part in rows.groupby("layer"):
        named = "" if shares else tokens
        shares.append(f"{percent_span(part.recall, '{:.1%}')}{named} at layer {layer}")
    return f"The best {top_k} entries hold {listed(shares)}" if shares else ""


def recall_conclusion(drawn: pd.DataFrame, least: float = 0.99) -> str:
    """How many entries of the first and of the last drawn layer hold nearly all final tokens."""
    enough = drawn.groupby(["layer", "k"]).recall.min().reset_index()
    enough = enough[enough.recall >= least].groupby("layer").k.min()
    if enough.empty:
        return f"No list of these lengths holds {least:.0%} of the final tokens on every task."
    ends = enough.iloc[[0, -1]]
    parts = [f"{k} entries at layer {layer}" for layer, k in ends.items()]
    shorter = "Lists made at later layers can be shorter: " if ends.iloc[-1] < ends.iloc[0] else ""
    takes = f"holding {least:.0%} of the final tokens on every task takes {listed(parts)}."
    too_early = [layer for layer in drawn.layer.unique() if layer < ends.index[0]]
    longest = f" At layer {max(too_early)}, {drawn.k.max()} entries hold fewer." if too_early else ""
    return capitalized(f"{shorter}{takes}{longest}")


def kept_figure(by_layer: pd.DataFrame, note: str = ""):
    """How many entries each way of pruning scores at a layer of CALM if no token exits, mean over tasks."""
    means = _last_model(by_layer).groupby(["rule", "layer"], sort=False, as_index=False).ids.mean()
    figure = figures.facets(
        means.assign(panel=""),
        figures.lines,
        "panel",
        x="layer",
        y="ids",
        ylabel="mean number of\nentries scored",
        width=6.5,
        height=3.4,
        message=kept_message(means),
        note=note,
    )
    figure.axes[0].set_yscale("log")
    return figure


def _last_model(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the model that is listed last: the main one."""
    return table[table.model == table.model.iloc[-1]]


def kept_message(means: pd.DataFrame) -> str:
    """At which layers all entries are scored."""
    first = means.layer.min()
    text = f"Every way of pruning scores all entries at layer {first}"
    if WHOLE_LAST in set(means.rule):
        return f"{text}; only the {way_label(WHOLE_LAST)} does so again, at layer {means.layer.max()}"
    return f"{text}, and a list from {first + 1} on"


def kept_conclusion(by_layer: pd.DataFrame) -> str:
    """How many entries the published ways of pruning still score at the last layer of CALM."""
    rows = _last_model(by_layer)
    last = rows[(rows.layer == rows.layer.max()) & rows.rule.isin(PUBLISHED)]
    entries = last.groupby("rule", sort=False).ids.mean()
    shortest, longest = entries.idxmin(), entries.idxmax()
    return (
        f"At the last layer, {way_label(longest)} still scores {entries[longest]:,.0f} of "
        f"{rows.ids.max():,.0f} entries, and {way_label(shortest)} {entries[shortest]:.0f}."
    )


def unreachable(by_layer: pd.DataFrame) -> pd.DataFrame:
    """The final tokens that the last layer cannot choose, since its list lacks them.

    One row a model, task and rule: `share` of the tokens, with `low` and `high`. If no token exits, these are
    the tokens that pruning changes.
    """
    last = by_layer[by_layer.layer == by_layer.layer.max()]
    lost = last[["model", "task", "rule"]].assign(share=1 - last.recall, low=1 - last.high, high=1 - last.low)
    return lost.reset_index(drop=True)


def unreachable_shown(lost: pd.DataFrame) -> pd.DataFrame:
    """`unreachable` as a table: a row a model and way of pruning, a column a task."""
    cells = [with_interval(row, "share", ".1%", "low", "high") for _, row in lost.iterrows()]
    return by_way(lost.assign(cell=cells), ["model", "rule"], "task", ["cell"])["cell"]


def unreachable_conclusion(lost: pd.DataFrame) -> str:
    """What the published last layer changes although no token exits, and what a whole one changes."""
    most = lost.groupby(["rule", "model"], sort=False).share.max().unstack("model", sort=False)
    most = most[shown_among(most.columns)]
    if "fixed" not in most.index:
        return ""
    fixed = most.loc["fixed"]
    even = "Even if no token exits" if fixed.max() > 0 else "If no token exits"
    text = f"{even}, fixed pruning of the last layer, as published, changes {changed(fixed)}."
    if WHOLE_LAST not in most.index:
        return text
    whole = most.loc[WHOLE_LAST].max()
    return f"{text} A whole last layer changes {some(whole, '.1%')}."


def sweep_figure(swept: pd.DataFrame, used: Mapping[str, int], note: str = ""):
    """Predictions that are full depth's, by the length of the list; `used` has the length in other tables."""
    lowest = min(0.95, swept.same_token_low.min())
    figure = figures.facets(
        swept,
        _draw_sweep,
        "rule",
        used=used,
        xlabel="entries kept: k, or k* (decaying)",
        ylabel="share of predictions\nthat are full depth's",
        width=3.6,
        message=sweep_message(swept, used["fixed"]),
        note=note,
    )
    _log_axis(figure)
    figure.axes[0].set_ylim(lowest - 0.005, 1.002)
    return figure


def _draw_sweep(axis, rows: pd.DataFrame, used: Mapping[str, int]) -> None:
    figures.lines(axis, rows, "k", "same_token", "task", ("same_token_low", "same_token_high"))
    length = used[rows.rule.iloc[0]]
    axis.axvline(length, color=figures.BLUE, linestyle=":", linewidth=1.2, label="as in the tables above")


def sweep_message(swept: pd.DataFrame, top_k: int) -> str:
    """What a fixed list of a few entries keeps, and one of `top_k`."""
    least = swept[swept.rule == "fixed"].groupby("k").same_token.min()
    shares = {k: f"{least[k]:.1%}" for k in (8, top_k) if k in least.index}
    if not shares:
        return ""
    if len(set(shares.values())) < len(shares):
        kept = shares[top_k]
        return f"Fixed pruning keeps as many predictions with 8 entries as with {top_k} (at least {kept})"
    parts = []
    for k, share in shares.items():
        of_what = "" if parts else " of the predictions"
        parts.append(f"{share}{of_what} with {k} entries")
    return f"Fixed pruning keeps at least {listed(parts)}"


def sweep_conclusion(swept: pd.DataFrame) -> str:
    """From which length of a list on longer ones change little."""
    enough = long_enough(swept)
    most = max(enough.values())
    fixed = enough.get("fixed", most)
    shorter = [f"{_shortened_by(rule)} ({k})" for rule, k in enough.items() if k < fixed]
    also = f" Fewer are enough with {listed(shorter)}." if shorter else ""
    return (
        f"Lists of {most} entries are long enough for every way of pruning: lists of {swept.k.max()} keep at "
        f"most {100 * NEARLY_ALL:g} percentage points more of the predictions on any task.{also}"
    )


def _shortened_by(rule: str) -> str:
    """What lets a list of the sweep be shorter than a fixed one."""
    if rule == WHOLE_LAST:
        return "a whole last layer"
    return f"{way_label(rule)}, whose list begins longer"


def long_enough(swept: pd.DataFrame) -> dict[str, int]:
    """By way of pruning: the shortest list that keeps nearly as many predictions as the longest."""
    enough = {}
    for rule, rows in swept.groupby("rule", sort=False):
        kept = rows.pivot(index="k", columns="task", values="same_token")
        lost = (kept.iloc[-1] - kept).max(axis=1)  # [k], on the worst task
        enough[rule] = int(lost[lost <= NEARLY_ALL].index.min())
    return enough
