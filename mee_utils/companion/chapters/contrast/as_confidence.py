"""Contrast as a confidence measure: how well it ranks tokens, and what it costs at equal quality."""

from __future__ import annotations

import pandas as pd

from ....analysis.decisions import LEAST_TO_RANK
from ... import figures
from ...prose import listed, on_tasks, task_span
from ..wording import last_ranked_layer, percent_span

MARGIN = "unpruned"  # the rule that contrast is compared with: the softmax margin over all entries
CONTRASTS = ("weighted", "jsd")
PRUNED_FORMS = {"unpruned": "fixed", "weighted": "weighted_fixed", "jsd": "jsd_fixed"}  # all entries -> a few
RULE_NAMES = ("plain margin", "weighted contrast", "JSD contrast")  # of `PRUNED_FORMS`
DOT = {"fmt": "o", "markersize": 4.5}
RING = {"fmt": "o", "markersize": 8.5, "markerfacecolor": "white"}


def ranking_figure(ranks: pd.DataFrame, note: str = ""):
    """The area under the ROC curve by layer: CALM above, vanilla below."""
    last = last_ranked_layer(ranks)
    return figures.facets(
        ranks[ranks.layer <= last],
        _draw_ranking,
        row="model",
        last=last,
        ylabel="area under\nthe ROC curve",
        height=2.6,
        message=ranking_message(ranks),
        note=note,
    )


def _draw_ranking(axis, rows: pd.DataFrame, last: int) -> None:
    figures.lines(axis, rows, "layer", "roc_area", band=("roc_area_low", "roc_area_high"), clip=(0, 1))
    figures.say_why_lines_end(axis, last_ranked_layer(rows), last, figures.TOO_FEW)


def mean_areas(ranks: pd.DataFrame) -> pd.DataFrame:
    """A row a model and task, a column a rule: the mean area over the layers at which all rules have one."""
    areas = ranks.pivot(index=["model", "task", "layer"], columns="rule", values="roc_area").dropna()
    return areas.groupby(["model", "task"], sort=False).mean()


def ranking_message(ranks: pd.DataFrame) -> str:
    """On how many models and tasks the plain margin ranks tokens better than both contrasts."""
    areas = mean_areas(ranks)
    if areas.empty:
        return "No layer has enough tokens of either kind to rank them"
    ahead = (areas[MARGIN] >= areas[list(CONTRASTS)].max(axis=1)).sum()
    where = f"for {ahead} of {len(areas)} pairs of a model and a task"
    if ahead == len(areas):
        where = "for every model on every task"
    return f"The plain margin ranks tokens at least as well as both contrasts {where} (mean over layers)"


def ranking_conclusion(ranks: pd.DataFrame) -> str:
    """Whether contrast ranks tokens better, by mean areas, and the layers that are left out."""
    areas = mean_areas(ranks).groupby("model", sort=False).mean()
    if areas.empty:
        return f"{ranking_message(ranks)} (at least {LEAST_TO_RANK} that are final and as many that are not)."
    better = areas[list(CONTRASTS)].max(axis=1)
    ahead = areas.index[better > areas[MARGIN]]
    answer = "No"
    if len(ahead):
        answer = "Yes" if len(ahead) == len(areas) else f"Only with {listed(map(figures.label, ahead))}"
    texts = []
    for model in areas.index:
        of_plain = "" if texts else " for the plain margin"
        of_better = "" if texts else " for the better contrast"
        both = f"{areas[MARGIN][model]:.3f}{of_plain} and {better[model]:.3f}{of_better}"
        texts.append(f"{both} with {figures.label(model)}")
    means = f"the mean area over layers and tasks is {', '.join(texts)}"
    return f"{answer}: {means}.{_left_out(ranks)}"


def _left_out(ranks: pd.DataFrame) -> str:
    """A sentence on how many layers the means rest on, by model; nothing if they rest on all of them."""
    margin = ranks[ranks.rule == MARGIN]
    ranked = margin.roc_area.notna().groupby([margin.model, margin.task], sort=False).sum()
    layers = margin.layer.nunique()
    parts = []
    for model, numbers in ranked.groupby("model", sort=False):
        if numbers.min() < layers:
            of_all = "" if parts else f" of {layers} layers"
            ranked_layers = task_span(numbers.droplevel("model"), ".0f")
            parts.append(f"{ranked_layers}{of_all} with {figures.label(model)}")
    if not parts:
        return ""
    return (
        f" The mean is over {listed(parts)}: the others have fewer than {LEAST_TO_RANK} tokens that are "
        f"final, or fewer than {LEAST_TO_RANK} that are not."
    )


def equal_quality_figure(equal: pd.DataFrame, share: float = 0.98, note: str = ""):
    """FLOPs of the margin and of both contrasts at one share of predictions kept, all entries or a few."""
    drawn_rules = [*PRUNED_FORMS, *PRUNED_FORMS.values()]
    rows = equal[(equal.wanted == share) & equal.rule.isin(drawn_rules)]
    return figures.facets(
        rows,
        _draw_equal_quality,
        xlabel="FLOPs (1 = full depth)",
        width=3.6,
        height=2.3,
        message=equal_quality_message(equal, share),
        note=note,
    )


def _draw_equal_quality(axis, rows: pd.DataFrame) -> None:
    """A line a confidence: a filled marker for all entries, a ring for a few, joined."""
    by_rule = rows.set_index("rule")
    for height, (whole, pruned) in enumerate(PRUNED_FORMS.items()):
        colour = figures.STYLES[whole].colour
        ends = by_rule.flops_share[[whole, pruned]]
        axis.plot(ends, [height, height], color="#cccccc", linewidth=1.2, zorder=0)
        for rule, look in ((pruned, RING), (whole, DOT)):
            row = by_rule.loc[rule]
            whiskers = [[row.flops_share - row.flops_share_low], [row.flops_share_high - row.flops_share]]
            axis.errorbar([row.flops_share], [height], xerr=whiskers, color=colour, elinewidth=0.8, **look)
    for name, look in (("all entries", DOT), ("a few entries (pruned)", RING)):
        axis.errorbar([], [], color=figures.DARK, label=name, **look)
    axis.axvline(1.0, color=figures.GREY, linewidth=0.8, linestyle=":")
    axis.set_yticks(range(len(PRUNED_FORMS)), RULE_NAMES)
    axis.set_ylim(len(PRUNED_FORMS) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)


def equal_quality_message(equal: pd.DataFrame, share: float = 0.98) -> str:
    """What the margin and both contrasts cost at one share of predictions kept."""
    mean = equal[equal.wanted == share].groupby("rule").flops_share.mean()
    return (
        f"With {share:.0%} of the predictions kept, the plain margin takes {mean[MARGIN]:.0%} of the FLOPs, "
        f"weighted contrast {mean['weighted']:.0%} and JSD contrast {mean['jsd']:.0%} (means over tasks, all "
        "entries scored)"
    )


def equal_quality_conclusion(equal: pd.DataFrame, share: float = 0.98) -> str:
    """Who exits earlier, and what pruning does for either."""
    at = equal[equal.wanted == share]
    layers = at.pivot(index="task", columns="rule", values="mean_exit_layer")
    flops = at.groupby("rule").flops_share.mean()
    earlier = layers.index[layers.weighted < layers[MARGIN]]
    exits = f"Weighted contrast exits earlier than the plain margin {on_tasks(earlier, layers.index)}."
    shares = {rule: f"{flops[rule]:.0%}" for rule in flops.index}
    if all(shares[whole] == shares[pruned] for whole, pruned in PRUNED_FORMS.items()):
        return f"{exits} Pruning to a few entries changes none of these costs here."
    return (
        f"{exits} Pruned to a few entries, the plain margin takes {shares['fixed']} of the FLOPs, weighted "
        f"contrast {shares['weighted_fixed']} and JSD contrast {shares['jsd_fixed']}."
    )


def starts_shown(starts: pd.DataFrame) -> pd.DataFrame:
    """The FLOPs (1 = full depth) at equal quality, by task and rule, a column a minimum exit layer."""
    table = starts.pivot(index=["task", "rule"], columns="min_layer", values="flops_share")
    table = table.reindex(PRUNED_FORMS.values(), level="rule").round(2)
    return table.rename(figures.label).rename_axis(columns="FLOPs from layer")


def starts_conclusion(starts: pd.DataFrame) -> str:
    """From which minimum exit layers the plain margin is cheapest, and what the rules cost there."""
    flops = starts.pivot_table(index="min_layer", columns="rule", values="flops_share")
    plain = PRUNED_FORMS[MARGIN]
    cheapest = list(flops.index[flops.idxmin(axis=1) == plain])
    if len(cheapest) == len(flops):
        where = "whatever the minimum exit layer"
    else:
        where = f"from layer {listed(map(str, cheapest))}" if cheapest else "from no minimum exit layer"
    spans = flops.apply(percent_span)
    return (
        f"The plain margin is cheapest {where}: with exits from layers {flops.index.min()} to "
        f"{flops.index.max()}, it takes {spans[plain]} of the FLOPs, weighted contrast "
        f"{spans['weighted_fixed']} and JSD contrast {spans['jsd_fixed']} (means over tasks)."
    )
