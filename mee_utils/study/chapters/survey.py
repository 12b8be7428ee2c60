"""Chapter 06: the exit rules of other papers on one frozen model, at the same loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from .. import figures
from ..catalogue import IDEA_NAMES, IDEAS
from ..prose import listed, on_tasks, span, task_span
from .wording import capitalized, percent_span, winners, without_source, worst_tasks

MARGIN = "fixed"  # the softmax margin over a few entries, with which other rules are compared
COMPARED = (  # ten rules that between them have every idea; the table stored with the figure has all
    "fixed",
    "surest",
    "entropy",
    "pcee",
    "patience",
    "vote",
    "elbert",
    "ztw",
    "linear",
    "hidden_similarity",
)
ALIKE = 0.95  # rank correlations from which two rules order tokens as good as alike
NEAR = 0.05  # in mean area: ideas that are further from the best rank worse
LEAST_LOSS = 0.1  # per cent: smaller losses are drawn there, on a logarithmic axis
FLOPS_DRAWN = (0.3, 1.3)


def ranking_figure(mean_rank: pd.DataFrame, tasks: Sequence[str], note: str = ""):
    """The mean area under the ROC curve as a table, a row a rule (the best on top), a column a task."""
    areas = mean_rank.pivot(index="rule", columns="task", values="roc_area")[list(tasks)]
    order = areas.mean(axis=1).sort_values(ascending=False, kind="stable").index
    return figures.facets(
        mean_rank.assign(panel="area under the ROC curve"),
        _draw_areas,
        "panel",
        areas=areas.loc[order],
        width=6.4,
        height=0.3 * len(order) + 0.6,
        message=ranking_message(mean_rank),
        note=note,
    )


def _draw_areas(axis, rows: pd.DataFrame, areas: pd.DataFrame) -> None:
    values = areas.to_numpy(dtype=float)  # [rule, task]
    axis.imshow(values, cmap="Blues", vmin=0.3, vmax=1.0, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if value > 0.75 else "black"
        axis.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=9)
    axis.set_xticks(range(areas.shape[1]), [figures.label(task) for task in areas])
    axis.set_yticks(range(len(areas)), [figures.label(rule) for rule in areas.index], fontsize=9)
    axis.grid(visible=False)


def ranking_message(mean_rank: pd.DataFrame) -> str:
    """How many rules rank tokens better than the margin, on average over the tasks."""
    areas = mean_rank.groupby("rule").roc_area.mean()
    ahead = int((areas > areas[MARGIN] + 0.005).sum())
    if not ahead:
        return "No rule ranks tokens clearly better than the softmax margin"
    return f"{ahead} of {len(areas) - 1} rules rank tokens clearly better than the softmax margin"


def ranking_conclusion(mean_rank: pd.DataFrame) -> str:
    """The best rule of every task, and the ideas that rank best and worst."""
    ranked = mean_rank.dropna(subset=["roc_area"])
    if ranked.empty:
        return "No layer has enough tokens of either kind to rank rules."
    best = ranked.loc[ranked.groupby("task", sort=False).roc_area.idxmax()]
    by_idea = _areas_of_ideas(ranked)
    first, last = by_idea.idxmax(), by_idea.idxmin()
    return (
        f"Rules on {first} rank tokens best (mean area {by_idea[first]:.2f}), rules on {last} worst "
        f"({by_idea[last]:.2f}). The best single rule is {winners(best)}."
    )


def _areas_of_ideas(ranked: pd.DataFrame) -> pd.Series:
    """By idea: the mean area of its rules over tasks, the largest first."""
    ideas = ranked.rule.map(IDEAS).replace(IDEA_NAMES)
    areas = ranked.assign(idea=ideas).groupby("idea", sort=False).roc_area.mean()
    return areas.sort_values(ascending=False, kind="stable")


def ideas_conclusion(mean_rank: pd.DataFrame) -> str:
    """Which ideas rank tokens well in generation, and which worse; nothing where no tokens can be ranked."""
    areas = _areas_of_ideas(mean_rank.dropna(subset=["roc_area"]))
    if areas.empty:
        return ""
    well = areas.max() - areas <= NEAR
    texts = [f"{idea} ({area:.2f})" for idea, area in areas.items()]
    best = listed(text for text, near in zip(texts, well, strict=True) if near)
    text = f"In generation, rules on {best} rank tokens best (mean area)"
    worse = [text for text, near in zip(texts, well, strict=True) if not near]
    return f"{text}, rules on {listed(worse)} worse." if worse else f"{text}: no idea is clearly worse."


def same_rule_conclusion(same: pd.DataFrame) -> str:
    """Which pairs are one rule, and which are not."""
    shares = same.groupby("pair", sort=False).same_exit.min()
    shares = shares.rename(index=lambda pair: pair.replace(", ", " and ", 1))
    equal = shares.index[shares > 0.999]
    others = [f"{pair} ({share:.0%})" for pair, share in shares[shares <= 0.999].items()]
    return (
        f"These pairs exit every token at the same layer, on every task: {'; '.join(equal) or 'none'}. These "
        "do not (in brackets, the share of tokens that exit alike on the worst task): "
        f"{'; '.join(others) or 'none'}."
    )


def alike_figure(cells: pd.DataFrame, layer: int, note: str = ""):
    """Rank correlations of ten rules' confidences, rules in the order of a hierarchical clustering."""
    alike = cells.pivot(index="first", columns="second", values="correlation").loc[
        list(COMPARED), list(COMPARED)
    ]
    order = clustered(alike)
    return figures.facets(
        cells.assign(panel=f"rank correlation of confidences at layer {layer}"),
        _draw_alike,
        "panel",
        alike=alike.loc[order, order],
        width=7.4,
        height=4.4,
        message=alike_message(cells),
        note=note,
    )


def clustered(alike: pd.DataFrame) -> list[str]:
    """Names in the order in which a hierarchical clustering (average linkage) puts them side by side."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    distance = 1 - alike.fillna(0).to_numpy()
    distance = (distance + distance.T) / 2
    np.fill_diagonal(distance, 0)
    return alike.index[leaves_list(linkage(squareform(distance, checks=False), "average"))].tolist()


def _draw_alike(axis, rows: pd.DataFrame, alike: pd.DataFrame) -> None:
    values = alike.to_numpy(dtype=float)
    lower = np.where(np.tri(len(values), k=-1, dtype=bool), values, np.nan)
    axis.imshow(lower[1:, :-1], cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (row, column), value in np.ndenumerate(lower[1:, :-1]):
        if value == value:
            colour = "white" if value > 0.6 else "black"
            axis.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)
    names = [figures.label(rule) for rule in alike]
    axis.set_xticks(range(len(names) - 1), names[:-1], rotation=30, ha="right", fontsize=8)
    axis.set_yticks(range(len(names) - 1), names[1:], fontsize=8)
    axis.grid(visible=False)


def pairs_alike(cells: pd.DataFrame) -> pd.DataFrame:
    """Every pair of rules once, the most alike first."""
    pairs = cells[cells["first"] < cells.second].dropna()
    return pairs.sort_values("correlation", ascending=False, kind="stable")


def alike_message(cells: pd.DataFrame) -> str:
    """How many pairs of all rules order tokens as good as alike."""
    pairs = pairs_alike(cells)
    number = int((pairs.correlation >= ALIKE).sum())
    return (
        f"{number} of {len(pairs)} pairs of rules order tokens almost alike (rank correlation of {ALIKE:g} "
        "or more)"
    )


def alike_conclusion(cells: pd.DataFrame) -> str:
    """The pairs that are most alike, similarity apart."""
    pairs = pairs_alike(cells)
    pairs = pairs[~((pairs["first"] == "hidden_similarity") & (pairs.second == "mue"))].head(3)
    texts = [f"{without_source(row.first)} and {without_source(row.second)}" for row in pairs.itertuples()]
    size = span(pairs.correlation) if len(pairs) else "unknown"
    correlations = "correlations that round to 1.00" if size == "1.00" else f"correlations of {size}"
    return (
        f"The pairs most alike, with {correlations}, are {'; '.join(texts)}. At a correlation of 1, every "
        "threshold of one rule corresponds to a threshold of the other that gives the same exits. (The pair "
        "of similarity and MuE is not counted: MuE changes only the threshold.)"
    )


def highlighted(bench: pd.DataFrame) -> list[str]:
    """For each idea, the rule with the fewest FLOPs at equal loss, averaged over tasks; NaN counts as 1."""
    measured = bench[bench.rule.isin(IDEAS)]
    means = measured.equal_flops.fillna(1.0).groupby(measured.rule, sort=False).mean()
    ideas = means.index.map(IDEAS)
    return [means[ideas == idea].idxmin() for idea in dict.fromkeys(ideas)]


def equal_loss_figure(
    curves: pd.DataFrame, bench: pd.DataFrame, tasks: Sequence[str], demand: float, note: str = ""
):
    """FLOPs against the consistency loss: the best rule of every idea, a fixed layer; others in grey."""
    return figures.facets(
        curves,
        _draw_losses,
        values=tasks,
        shown=highlighted(bench),
        demand=demand,
        width=4.2,
        height=3.6,
        xlabel="mean consistency loss (%, log)",
        ylabel="FLOPs (1 = full depth)",
        message=equal_loss_message(bench, demand),
        note=note,
    )


def _draw_losses(axis, rows: pd.DataFrame, shown: Sequence[str], demand: float) -> None:
    rows = rows.assign(loss=rows.loss.clip(lower=LEAST_LOSS))
    for _, part in rows[~rows.rule.isin([*shown, "static"])].groupby("rule", sort=False):
        part = part.sort_values("loss", kind="stable")
        axis.plot(part.loss, part.flops_share, color="#cccccc", linewidth=0.8, label="other rules")
    fixed = rows[rows.rule == "static"].sort_values("loss", kind="stable")
    axis.plot(fixed.loss, fixed.flops_share, ".:", color="black", label="a fixed layer")
    figures.lines(axis, rows[rows.rule.isin(shown)], "loss", "flops_share")
    axis.axvline(100 * demand, color=figures.GREY, linewidth=0.8)
    axis.axhline(1.0, color=figures.GREY, linewidth=0.8, linestyle=":")
    axis.set(xscale="log", xlim=(0.9 * LEAST_LOSS, 50), ylim=FLOPS_DRAWN)
    axis.set_xticks([0.1, 1, 10], ["≤ 0.1", "1", "10"])


def equal_loss_message(bench: pd.DataFrame, demand: float) -> str:
    """The cheapest rule at the target loss, by task."""
    measured = bench.dropna(subset=["equal_flops"])
    if measured.empty:
        return f"No rule was measured at a loss of {demand:.0%}"
    best = measured.loc[measured.groupby("task", sort=False).equal_flops.idxmin()]
    return f"At a loss of {demand:.0%} the cheapest rule is {winners(best)}"


def equal_loss_conclusion(bench: pd.DataFrame, fixed: pd.Series, demand: float) -> str:
    """The cheapest rule beside a fixed layer, and how many rules have no number.

    Args:
        bench: from `survey_bench`.
        fixed: by task, the FLOPs of a fixed layer at this loss; NaN: none was measured there.
        demand: the mean consistency loss.
    """
    tasks = list(bench.task.unique())
    cheapest = bench.groupby("task", sort=False).equal_flops.min().dropna()
    fixed = fixed.reindex(tasks)
    beside = "no fixed layer loses so little"
    if fixed.notna().any():
        beside = f"a fixed layer {task_span(fixed)}"
        if fixed.isna().any():
            beside += f"; no fixed layer loses so little {on_tasks(fixed.index[fixed.isna()], tasks)}"
    thresholded = bench[bench.rule != "bandit"]
    missing = thresholded.equal_flops.isna().groupby(thresholded.task, sort=False).sum()
    rules = len(thresholded) // max(1, len(missing))
    without = "Every rule has a setting that loses so little."
    if missing.max():
        lose = "rules lose" if missing.max() > 1 else "rules loses"
        where = capitalized(worst_tasks(missing))
        without = f"{where}, {missing.max()} of {rules} {lose} more even at their strictest setting."
    return (
        f"At a loss of {demand:.0%} the cheapest rule takes {task_span(cheapest)} of the FLOPs, {beside}. "
        f"{without}"
    )


def drafts_conclusion(bench: pd.DataFrame) -> str:
    """How many exits the last layer accepts, and how fast verified exits are."""
    accepted = bench.groupby("rule").acceptance.mean()
    speeds = bench.dropna(subset=["verified_speed"])
    timed = "Verified exits at these settings are not timed: run make bench."
    if len(speeds):
        best = speeds.loc[speeds.groupby("task", sort=False).verified_speed.idxmax()].set_index("task")
        timed = (
            f"The fastest rule is then {task_span(best.verified_speed, '.2f')} times as fast as full depth: "
            f"{winners(best.reset_index())}."
        )
    return (
        f"As drafts, {percent_span(accepted)} of the exits are accepted, depending on the rule. {timed} 07 "
        "plans thresholds for drafts."
    )
