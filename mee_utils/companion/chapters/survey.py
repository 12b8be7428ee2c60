"""Chapter 06: the exit rules of other papers on one frozen model, at the same loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ...analysis.statistics import Estimate, estimates
from .. import figures
from ..catalogue import IDEAS
from ..prose import listed, on_tasks, span, task_span
from .wording import CLEARLY, capitalized, percent_span, winners, without_source, worst_tasks

MARGIN = "few"  # the softmax margin over few entries, with which other rules are compared
# a rule over few entries -> its name where all entries are scored
OVER_ALL_ENTRIES = {"few": "softmax_margin", "rising_fixed": "rising_top1"}
ONE_LAYER = "one layer's probabilities"
SEVERAL_EXITS = "several exits"
COMPARED = (  # ten rules that between them have every idea; the table stored with the figure has all
    "few",
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
SAME_RULE = 0.999  # of the tokens: from here on two rules that exit alike count as one
LEAST_LOSS = 0.1  # per cent: smaller losses are drawn there, on a logarithmic axis
MOST_LOSS = 50  # per cent: where that axis ends
LEAST_FLOPS = 0.3  # where the axis of FLOPs begins
ONLY_A_THRESHOLD = {"hidden_similarity", "mue"}  # the same confidence, with another threshold


def ranking_figure(mean_rank: pd.DataFrame, tasks: Sequence[str], note: str = ""):
    """The mean area under the ROC curve as a table, a row a rule (the best on top), a column a task."""
    areas = mean_rank.pivot(index="rule", columns="task", values="roc_area")[list(tasks)]
    order = areas.mean(axis=1).sort_values(ascending=False, kind="stable").index
    return figures.facets(
        mean_rank.assign(panel="area under the ROC curve"),
        _draw_areas,
        "panel",
        areas=areas.loc[order].rename(index=OVER_ALL_ENTRIES),
        width=6.4,
        height=0.3 * len(order) + 0.6,
        message=ranking_message(mean_rank),
        note=note,
    )


def _draw_areas(axis, rows: pd.DataFrame, areas: pd.DataFrame) -> None:
    named = areas.rename(index=figures.label, columns=figures.label)  # [rule, task]
    figures.heat(axis, named, named.map("{:.2f}".format), limits=(0.3, 1.0), fontsize=9)
    axis.tick_params(axis="y", labelsize=9)


def ranking_message(mean_rank: pd.DataFrame) -> str:
    """How many rules rank tokens clearly better than the margin, on average over the tasks."""
    others = [rule for rule in mean_rank.rule.unique() if rule != MARGIN]
    gains = [_mean_gain(mean_rank, rule) for rule in others]
    ahead = sum(bool(gain.low > 0) for gain in gains)
    if not ahead:
        return "No rule ranks tokens clearly better than the softmax margin"
    ranks = "rank" if ahead > 1 else "ranks"
    return f"{ahead} of {len(others)} rules {ranks} tokens clearly better than the softmax margin"


def _mean_gain(mean_rank: pd.DataFrame, rule: str) -> Estimate:
    """By how much the area of a rule exceeds the margin's, a mean over the tasks."""
    areas = estimates(mean_rank[mean_rank.rule == rule], "roc_area")  # [task]
    margins = estimates(mean_rank[mean_rank.rule == MARGIN], "roc_area")
    return (areas - margins).mean()


def ranking_conclusion(mean_rank: pd.DataFrame) -> str:
    """The best rule of every task, and the ideas that rank best and worst."""
    ranked = mean_rank.dropna(subset=["roc_area"])
    if ranked.empty:
        return "No layer has enough tokens of either kind to rank rules."
    best = ranked.loc[ranked.groupby("task", sort=False).roc_area.idxmax()]
    by_idea = _areas_of_ideas(ranked)
    ideas = list(by_idea)
    first = ideas[0]
    last = ideas[-1]
    single = winners(best.replace({"rule": OVER_ALL_ENTRIES}))
    return (
        f"By idea, the mean area over rules and tasks is largest for {first}, {by_idea[first]:.2f}, and "
        f"smallest for {last}, {by_idea[last]:.2f}. The single rule with the largest area is {single}. "
        f"(A rule is clearly better than the margin if {CLEARLY}; the mean is taken over tasks.)"
    )


def _areas_of_ideas(ranked: pd.DataFrame) -> dict[str, Estimate]:
    """By idea: the mean area of its rules over tasks, the largest first."""
    by_idea = ranked.groupby(ranked.rule.map(IDEAS), sort=False)
    areas = {idea: estimates(rows, "roc_area").mean() for idea, rows in by_idea}
    order = pd.Series({idea: float(area.value) for idea, area in areas.items()}, dtype=float)
    return {idea: areas[idea] for idea in order.sort_values(ascending=False, kind="stable").index}


def ideas_conclusion(mean_rank: pd.DataFrame) -> str:
    """Which idea ranks tokens best, and which clearly worse; nothing where no tokens can be ranked."""
    areas = _areas_of_ideas(mean_rank.dropna(subset=["roc_area"]))
    if not areas:
        return ""
    best, *others = areas
    clearly = [idea for idea in others if (areas[best] - areas[idea]).low > 0]
    level = [idea for idea in others if idea not in clearly]
    sentences = [f"In generation, rules on {best} have the largest mean area, {areas[best]:.2f}."]
    if clearly:
        named = "; ".join(f"{idea}, {areas[idea]:.2f}" for idea in clearly)
        sentences.append(f"It is clearly smaller for rules on {named} (that is, {CLEARLY}).")
    if level:
        sentences.append(f"It is not clearly smaller for rules on {listed(level)}.")
    return " ".join(sentences)


def same_rule_conclusion(same: pd.DataFrame) -> str:
    """Which pairs are one rule, and which are not."""
    shares = same.groupby("pair", sort=False).same_exit.min()
    shares = shares.rename(index=lambda pair: pair.replace(", ", " and ", 1))
    equal = shares[shares > SAME_RULE]
    others = [f"{pair} ({share:.0%})" for pair, share in shares[shares <= SAME_RULE].items()]
    every = "Every token exits" if (equal == 1).all() else f"More than {SAME_RULE:.1%} of the tokens exit"
    return (
        f"{every} at the same layer, on every task, under both rules of these pairs: "
        f"{'; '.join(equal.index) or 'none'}. Other pairs differ (in brackets, the share of tokens that exit "
        f"at the same layer, on the worst task): {'; '.join(others) or 'none'}."
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
    is_below = np.tri(len(alike), k=-1, dtype=bool)  # each pair once
    lower = alike.where(is_below).iloc[1:, :-1]
    named = lower.rename(index=_name_over_all, columns=_name_over_all)
    figures.heat(axis, named, named.map("{:.2f}".format))
    axis.set_xticks(axis.get_xticks(), list(named.columns), rotation=30, ha="right")
    axis.tick_params(labelsize=8)


def _name_over_all(rule: str) -> str:
    """A rule's name; a pruned one's that of the rule over all entries, which is compared."""
    return figures.label(OVER_ALL_ENTRIES.get(rule, rule))


def pairs_alike(cells: pd.DataFrame) -> pd.DataFrame:
    """Every pair of rules once, the most alike first; without the one that differs by its threshold alone."""
    pairs = cells[cells["first"] < cells.second].dropna()
    other_threshold = pairs["first"].isin(ONLY_A_THRESHOLD) & pairs.second.isin(ONLY_A_THRESHOLD)
    return pairs[~other_threshold].sort_values("correlation", ascending=False, kind="stable")


def alike_message(cells: pd.DataFrame) -> str:
    """How many of the pairs in the figure order tokens almost alike."""
    shown = cells[cells["first"].isin(COMPARED) & cells.second.isin(COMPARED)]
    alike = _alike_of(pairs_alike(shown), "the {} pairs shown")
    return f"{alike} order tokens almost alike (rank correlation of {ALIKE:g} or more)"


def alike_among_all(cells: pd.DataFrame) -> str:
    """How many pairs of all rules order tokens almost alike."""
    alike = _alike_of(pairs_alike(cells), "{} pairs of rules")
    return f"{capitalized(alike)} order tokens almost alike (rank correlation of {ALIKE:g} or more)."


def _alike_of(pairs: pd.DataFrame, counted: str) -> str:
    """How many of some pairs are alike: "15 of 152 pairs of rules"."""
    number = int((pairs.correlation >= ALIKE).sum())
    return f"{number or 'none'} of {counted.format(len(pairs))}"


def alike_conclusion(cells: pd.DataFrame) -> str:
    """The pairs that are most alike, and how many of all pairs are."""
    pairs = pairs_alike(cells).head(3)
    texts = [f"{_over_all(row.first)} and {_over_all(row.second)}" for row in pairs.itertuples()]
    size = span(pairs.correlation) if len(pairs) else "unknown"
    correlations = "correlations that round to 1.00" if size == "1.00" else f"correlations of {size}"
    return (
        f"The pairs most alike, with {correlations}, are {'; '.join(texts)}. At a correlation of 1, two "
        "rules let the same tokens exit at this layer, once their thresholds are matched. "
        f"{alike_among_all(cells)} (Similarity and MuE are not counted as a pair: MuE changes only the "
        "threshold.)"
    )


def _over_all(rule: str) -> str:
    """The name of a rule where it scores all entries, without its source."""
    return without_source(OVER_ALL_ENTRIES.get(rule, rule))


def highlighted(bench: pd.DataFrame) -> list[str]:
    """The cheapest rule of every task, which the title names, and the cheapest of every other idea.

    That one has the fewest FLOPs at equal loss, averaged over tasks; NaN counts as 1.
    """
    winning = set(_cheapest(bench).rule)
    ideas_that_win = {IDEAS.get(rule) for rule in winning}
    measured = bench[bench.rule.isin(IDEAS)]
    means = measured.equal_flops.fillna(1.0).groupby(measured.rule, sort=False).mean()
    ideas = means.index.map(IDEAS)
    others = {means[ideas == idea].idxmin() for idea in set(ideas) - ideas_that_win}
    return [rule for rule in bench.rule.unique() if rule in winning | others]


def equal_loss_figure(
    curves: pd.DataFrame, bench: pd.DataFrame, tasks: Sequence[str], demand: float, note: str = ""
):
    """FLOPs against the consistency loss: the best rules by task and idea, a fixed layer; others in grey."""
    shown = highlighted(bench)
    named = curves[curves.rule.isin(shown) & (curves.loss <= MOST_LOSS)]
    return figures.facets(
        curves,
        _draw_losses,
        values=tasks,
        shown=shown,
        demand=demand,
        most_flops=max(1.1, 1.03 * named.flops_share.max()),
        width=4.2,
        height=3.6,
        xlabel="mean consistency loss (%, log)",
        ylabel="FLOPs (1 = full depth)",
        message=equal_loss_message(bench, demand),
        note=figures.small_print(note, figures.GOES_ON),
    )


def _draw_losses(axis, rows: pd.DataFrame, shown: Sequence[str], demand: float, most_flops: float) -> None:
    rows = rows.assign(loss=rows.loss.clip(lower=LEAST_LOSS))
    for _, part in rows[~rows.rule.isin([*shown, "static"])].groupby("rule", sort=False):
        part = part.sort_values("loss", kind="stable")
        axis.plot(part.loss, part.flops_share, color="#cccccc", linewidth=0.8, label="other rules")
    fixed = rows[rows.rule == "static"].sort_values("loss", kind="stable")
    axis.plot(fixed.loss, fixed.flops_share, ".:", color="black", label="a fixed layer")
    figures.lines(axis, rows[rows.rule.isin(shown)], "loss", "flops_share")
    axis.axvline(100 * demand, color=figures.GREY, linewidth=0.8)
    axis.axhline(1.0, color=figures.GREY, linewidth=0.8, linestyle=":")
    axis.set(xscale="log", xlim=(0.9 * LEAST_LOSS, MOST_LOSS), ylim=(LEAST_FLOPS, most_flops))
    axis.set_xticks([0.1, 1, 10], ["≤ 0.1", "1", "10"])


def equal_loss_message(bench: pd.DataFrame, demand: float) -> str:
    """The cheapest rule at the target loss, by task, and what it spends."""
    best = _cheapest(bench)
    if best.empty:
        return f"No rule was measured at a loss of {demand:.0%}"
    spent = percent_span(best.equal_flops)
    return f"At a loss of {demand:.0%} the cheapest rule ({spent} of the FLOPs) is {winners(best)}"


def _cheapest(rows: pd.DataFrame) -> pd.DataFrame:
    """By task, the row with the fewest FLOPs at equal loss; no row for a task without a number."""
    measured = rows.dropna(subset=["equal_flops"])
    return measured.loc[measured.groupby("task", sort=False).equal_flops.idxmin()]


def _clearly_cheaper(first: pd.DataFrame, second: pd.DataFrame) -> list[str]:
    """The tasks on which a row of `first` takes clearly fewer FLOPs than that of `second`; a row a task."""
    tasks = [task for task in first.task if task in set(second.task)]
    if not tasks:
        return []
    flops = estimates(first.set_index("task").loc[tasks], "equal_flops")  # [task]
    more = estimates(second.set_index("task").loc[tasks], "equal_flops")
    saved = more - flops
    return [task for task, low in zip(tasks, saved.low, strict=True) if low > 0]


def equal_loss_conclusion(bench: pd.DataFrame, fixed: pd.Series, demand: float) -> str:
    """The cheapest rule beside the next one and a fixed layer, and how many rules have no number.

    Args:
        bench: from `survey_bench`.
        fixed: by task, the FLOPs of a fixed layer at this loss; NaN: none was measured there.
        demand: the mean consistency loss.
    """
    best = _cheapest(bench)
    takes = f"No rule has a setting with exits that loses at most {demand:.0%}."
    if len(best):
        takes = (
            f"At a loss of {demand:.0%} the cheapest rule takes {_ends(best)} of the FLOPs; "
            f"{_beside(fixed, bench)}. {_lead(bench, best)}"
        )
    return f"{takes} {_without_number(bench)}"


def _ends(best: pd.DataFrame) -> str:
    """The least and the most FLOPs at equal loss: "42% (40% to 45%; summarization) to 84% (...)"."""
    ends = best.sort_values("equal_flops", kind="stable").iloc[[0, -1]].drop_duplicates("task")
    texts = [
        f"{row.equal_flops:.0%} ({row.equal_low:.0%} to {row.equal_high:.0%}; {figures.label(row.task)})"
        for row in ends.itertuples()
    ]
    return " to ".join(texts)


def _beside(fixed: pd.Series, bench: pd.DataFrame) -> str:
    """The FLOPs of a fixed layer at the same loss, and the tasks on which none loses so little."""
    tasks = list(bench.task.unique())
    fixed = fixed.reindex(tasks)
    if fixed.isna().all():
        return "no fixed layer loses so little"
    text = f"a fixed layer takes {task_span(fixed)}"
    if fixed.isna().any():
        text += f", and none loses so little {on_tasks(fixed.index[fixed.isna()], tasks)}"
    return text


def _lead(bench: pd.DataFrame, best: pd.DataFrame) -> str:
    """On which tasks the cheapest rule is clearly cheaper than the next one."""
    others = bench.drop(index=best.index)
    ahead = _clearly_cheaper(best, _cheapest(others))
    where = on_tasks(ahead, list(bench.task.unique()))
    return f"It is clearly cheaper than the next rule {where} (clearly: {CLEARLY})."


def _without_number(bench: pd.DataFrame) -> str:
    """How many rules with a threshold lose more even at the strictest setting at which a token exits."""
    thresholded = bench[bench.rule != "bandit"]
    missing = thresholded.equal_flops.isna().groupby(thresholded.task, sort=False).sum()
    if not missing.max():
        return "Every rule has a setting with exits that loses so little."
    rules = len(thresholded) // len(missing)
    lose = "lose" if missing.max() > 1 else "loses"
    return (
        f"{capitalized(worst_tasks(missing))}, {missing.max()} of {rules} rules {lose} more even at the "
        "strictest setting at which a token exits."
    )


def several_exits_conclusion(bench: pd.DataFrame) -> str:
    """Whether rules on several exits are cheaper at equal loss than those on one layer's probabilities."""
    ideas = bench.rule.map(IDEAS)
    several = bench[ideas == SEVERAL_EXITS]
    single = bench[ideas == ONE_LAYER]
    first = _cheapest(several)
    second = _cheapest(single)
    both = [task for task in first.task if task in set(second.task)]
    alone = [task for task in first.task if task not in both]
    sentences = []
    if both:
        rivals = (
            f"the cheapest of {several.rule.nunique()} rules on {SEVERAL_EXITS} takes fewer FLOPs than the "
            f"cheapest of {single.rule.nunique()} on {ONE_LAYER}"
        )
        sentences.append(f"At this loss, {rivals} {_where_cheaper(first, second, both)}.")
    if alone:
        where = capitalized(on_tasks(alone, list(bench.task.unique())))
        sentences.append(f"{where}, only rules on {SEVERAL_EXITS} have a setting that loses so little.")
    return " ".join(sentences)


def _where_cheaper(first: pd.DataFrame, second: pd.DataFrame, tasks: Sequence[str]) -> str:
    """On which of the tasks `first` takes fewer FLOPs than `second`, and on which clearly; a row a task."""
    flops = first.set_index("task").equal_flops
    more = second.set_index("task").equal_flops
    fewer = [task for task in tasks if flops[task] < more[task]]
    clearly = _clearly_cheaper(first, second)
    text = on_tasks(fewer, tasks)
    if not fewer:
        return text
    if set(clearly) == set(fewer):
        return f"{text}, and clearly so"
    return f"{text}, and clearly so {on_tasks(clearly, tasks)}"


def drafts_conclusion(bench: pd.DataFrame) -> str:
    """How many drafts the last layer accepts, and how fast verified exits are."""
    accepted = bench.groupby("rule").acceptance.mean()
    return (
        f"The last layer accepts {percent_span(accepted)} of these drafts, depending on the rule. "
        f"{_speed_of_drafts(bench)} 07 plans thresholds for drafts."
    )


def _speed_of_drafts(bench: pd.DataFrame) -> str:
    """The fastest rule with verified exits, of those whose present settings are timed."""
    speeds = bench.dropna(subset=["verified_speed"])
    if speeds.empty:
        return "Verified exits at these settings are not timed: run make bench."
    best = speeds.loc[speeds.groupby("task", sort=False).verified_speed.idxmax()]
    speed = task_span(best.set_index("task").verified_speed, ".2f")
    timed = ""
    among = "the fastest rule"
    if len(speeds) < len(bench):
        timed = f"Of {len(bench)} settings, {len(speeds)} are timed. "
        among = "the fastest of them"
    return (
        f"{timed}One output at a time, {among} generates {speed} times as many tokens a second as full "
        f"depth: {winners(best)}."
    )


def means_over_tasks(bench: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """`columns` of the bench as means over tasks, a row a rule; NaN where a task has no number."""
    return bench.groupby("rule", sort=False)[list(columns)].agg(_mean_of_all)


def _mean_of_all(values: pd.Series) -> float:
    return values.mean(skipna=False)


def rules_shown(rules: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """`columns` of the rules, the best by ranking first; a dash where there is no number."""
    named = rules.assign(rule=rules.rule.map(figures.label)).set_index("rule")
    ordered = named.sort_values("roc_area", ascending=False, kind="stable")[list(columns)]
    return ordered.map("{:.3f}".format, na_action="ignore").fillna("–")
