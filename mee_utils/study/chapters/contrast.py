"""Chapter 04: contrast between an early and a late layer, as a confidence measure and as a decoder."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import pandas as pd

from ...analysis.decisions import LEAST_TO_RANK
from .. import figures
from ..prose import listed, on_tasks, task_span
from .wording import last_ranked_layer, percent_span, with_interval

MARGIN = "unpruned"  # the rule that contrast is compared with: the softmax margin over all entries
CONTRASTS = ("weighted", "jsd")
PRUNED_FORMS = {"unpruned": "fixed", "weighted": "weighted_fixed", "jsd": "jsd_fixed"}  # all entries -> a few
RULE_NAMES = ("plain margin", "weighted contrast", "JSD contrast")  # of `PRUNED_FORMS`
DOT = {"fmt": "o", "markersize": 4.5}
RING = {"fmt": "o", "markersize": 8.5, "markerfacecolor": "white"}
DISTRIBUTIONS = ("expert", "amateur", "contrast")
MARGINS = {
    "plain": figures.Style("plain margin", figures.STYLES["unpruned"].colour),
    "contrast": figures.Style("weighted contrast", figures.STYLES["weighted"].colour, dashes=(3, 1.5)),
    "without_mass": figures.Style(
        "weighted contrast without the mass (public code)", figures.DARK, dashes=(1, 1)
    ),
}
FORMS = {  # of contrast, from the top of the figure -> its name there
    "weighted": "weighted, all entries",
    "weighted_fixed": "weighted, a few entries",
    "weighted_token": "weighted, picks the token too",
    "jsd": "JSD, all entries",
    "jsd_fixed": "JSD, a few entries",
    "jsd_token": "JSD, picks the token too",
}
LEVELS = {95: RING | {"markersize": 5.5}, 99: DOT}  # percent of the predictions kept -> marker


def telling_example(single: pd.DataFrame, kind: str = "weighted") -> pd.DataFrame:
    """The rows of the task on which the contrast of this kind takes most from the expert's first choice."""
    rows = single[single.kind == kind]
    taken = {task: _taken(part) for task, part in rows.groupby("task", sort=False)}
    return rows[rows.task == max(taken, key=taken.get)]


def _taken(rows: pd.DataFrame) -> float:
    """By how much the contrast lowers the probability of the expert's best entry, if another one wins."""
    best = rows.expert.idxmax()
    if rows[rows.plausible].contrast.idxmax() == best:
        return -1.0
    return rows.expert[best] - rows.contrast[best]


def one_token_figure(example: pd.DataFrame, model: str, note: str = ""):
    """Expert, amateur and contrast of one token as a table: a row each, a column a vocabulary entry."""
    layer = example.layer.iloc[0]
    amateur = example.amateur_layer.iloc[0]
    names = {
        "expert": f"expert\n(layer {layer})",
        "amateur": f"amateur\n(layer {amateur})",
        "contrast": "contrast",
    }
    example = example.assign(token=example.token.str.replace("$", r"\$"))  # else it begins a formula
    ordered = example.sort_values("expert", ascending=False, kind="stable").reset_index(drop=True)
    return figures.facets(
        ordered,
        _draw_token,
        "task",
        names=names,
        width=9.5,
        height=2.3,
        message=one_token_message(example, model),
        note=note,
    )


def one_token_message(example: pd.DataFrame, model: str) -> str:
    """What the contrast does to this token, in a sentence."""
    before = example.token[example.expert.idxmax()].removeprefix("_")
    after = example.token[example[example.plausible].contrast.idxmax()].removeprefix("_")
    if before == after:
        return f'In {figures.label(model)}, contrast keeps the expert\'s choice, "{before}"'
    return (
        f'In {figures.label(model)}, contrast replaces "{before}", the expert\'s choice, with "{after}", '
        "which the amateur finds less likely"
    )


def one_token_conclusion(example: pd.DataFrame) -> str:
    """What becomes of the expert's choice, and why."""
    best = example.expert.idxmax()
    return (
        f"The expert gives its choice a probability of {example.expert[best]:.2f}, and the amateur gives it "
        f"{example.amateur[best]:.2f}. Contrast divides one by the other for every plausible entry, which "
        f"leaves this one with {example.contrast[best]:.2f}."
    )


def _draw_token(axis, rows: pd.DataFrame, names: dict[str, str]) -> None:
    values = rows[list(DISTRIBUTIONS)].T  # [distribution, entry]
    figures.heat(axis, values, values.map(_probability_text), fontsize=9)
    entries = [
        token if plausible else f"({token})"
        for token, plausible in zip(rows.token, rows.plausible, strict=True)
    ]
    axis.set_xticklabels([textwrap.shorten(entry, 14) for entry in entries], fontsize=9)
    axis.set_yticklabels([names[each] for each in DISTRIBUTIONS])


def _probability_text(value: float) -> str:
    """ "0.52", "< 0.01"."""
    return f"{value:.2f}" if value >= 0.005 else "< 0.01"


def amateur_figure(amateurs: pd.DataFrame, note: str = ""):
    """The share of tokens whose most different earlier layer is layer 1, by expert layer, a line a task."""
    first = amateurs[(amateurs.amateur_layer == 1) & (amateurs.layer > 2)].assign(panel="")
    return figures.facets(
        first,
        _draw_first_layer,
        "panel",
        width=5.6,
        height=3.0,
        ylabel="share of tokens whose\namateur is layer 1",
        xlabel="expert layer",
        message=amateur_message(amateurs),
        note=note,
    )


def _draw_first_layer(axis, rows: pd.DataFrame) -> None:
    figures.lines(axis, rows, "layer", "share", "task")
    axis.set_ylim(0, 1.03)


def amateur_message(amateurs: pd.DataFrame) -> str:
    """For how many tokens JSD chooses layer 1."""
    shares = percent_span(first_layer_shares(amateurs))
    return f"JSD contrasts with layer 1 for {shares} of the tokens (mean over expert layers)"


def first_layer_shares(amateurs: pd.DataFrame) -> pd.Series:
    """By task: the share of tokens whose amateur is layer 1, a mean over the expert layers from 3 on."""
    first = amateurs[(amateurs.amateur_layer == 1) & (amateurs.layer > 2)]
    return first.groupby("task", sort=False).share.mean()


def amateur_conclusion(amateurs: pd.DataFrame) -> str:
    """How often JSD chooses layer 1."""
    shares = first_layer_shares(amateurs)
    nearly = (
        "JSD is in effect contrast with the first layer"
        if shares.min() > 0.75
        else "JSD often contrasts with the first layer"
    )
    return (
        f"{nearly}: the amateur is layer 1 for {task_span(shares)} of the tokens (mean over the expert "
        "layers from 3 on). To find that out, it computes logits at every earlier layer."
    )


def plausible_figure(plausible: pd.DataFrame, note: str = ""):
    """How many tokens have one plausible entry, and what that does to the margin."""
    quantities = {"single": "share of tokens with\none plausible entry", "plain": "mean margin"}
    last = plausible[plausible.layer == plausible.layer.max()]
    shares = percent_span(last.single)
    message = f"At the last layer {shares} of the tokens have one plausible entry: nothing to contrast"
    return figures.facets(
        plausible, _draw_plausible, quantities=quantities, height=2.5, message=message, note=note
    )


def _draw_plausible(axis, rows: pd.DataFrame, y: str) -> None:
    if y == "single":
        axis.plot(rows.layer, rows.single, color=figures.GREY)  # its axis names it, the legend need not
    else:
        figures.column_lines(axis, rows, "layer", list(MARGINS), MARGINS)
    axis.set_ylim(0, 1.03)


def plausible_conclusion(
    plausible: pd.DataFrame, at_level: pd.DataFrame, first_layer: int, threshold: float
) -> str:
    """What the missing mass does to exits at a threshold."""
    at = plausible[plausible.layer == first_layer].set_index("task")
    layers = at_level.pivot(index="rule", columns="task", values="mean_exit_layer").mean(axis=1)
    bare = layers["weighted, without the mass"]
    looser = ": what looks fast is a looser threshold." if bare < layers["weighted"] else "."
    return (
        f"At layer {first_layer}, {task_span(at.single)} of the tokens have one plausible entry, and "
        f"{percent_span(at.wrong_single, '{:.1%}')} of these tokens are predicted wrongly. Without the mass "
        "of the plausible set their confidence is 1 by construction. At a threshold of "
        f"{threshold:g}, tokens exit at layer {bare:.2f} on average with the public code, and at layer "
        f"{layers['weighted']:.2f} with the mass{looser}"
    )


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
    contrast = areas[list(CONTRASTS)].max(axis=1)
    ahead = areas.index[contrast > areas[MARGIN]]
    answer = "Yes" if len(ahead) == len(areas) else f"Only with {listed(map(figures.label, ahead))}"
    of_plain = " for the plain margin"
    of_better = " for the better contrast"
    texts = []
    for model in areas.index:
        plain = f"{areas[MARGIN][model]:.3f}{'' if texts else of_plain}"
        texts.append(
            f"{plain} and {contrast[model]:.3f}{'' if texts else of_better} with {figures.label(model)}"
        )
    return (
        f"{answer if len(ahead) else 'No'}: the mean area over layers and tasks is {', '.join(texts)}."
        f"{_left_out(ranks)}"
    )


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
    rows = equal[(equal.wanted == share) & equal.rule.isin([*PRUNED_FORMS, *PRUNED_FORMS.values()])]
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
    weighted, jsd = (mean[rule] for rule in CONTRASTS)
    return (
        f"With {share:.0%} of the predictions kept, the plain margin takes {mean[MARGIN]:.0%} of the FLOPs, "
        f"weighted contrast {weighted:.0%} and JSD contrast {jsd:.0%} (means over tasks, all entries scored)"
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


def pareto_figure(verdicts: pd.DataFrame, note: str = ""):
    """By how much each contrast setting scores more than the best plain margin that costs no more.

    A row is a form of contrast; a marker is a setting with the interval of the verdict (95 %, simultaneous
    over all settings of a task): a ring at the threshold that keeps 95 % of the predictions, a dot at 99 %.
    """
    tested = verdicts.assign(level=_levels(verdicts))
    tested = tested[tested.gain.notna()]
    forms = [rule for rule in FORMS if rule in set(tested.rule)]
    return figures.facets(
        tested.assign(height=tested.rule.map(forms.index)),
        _draw_gains,
        values=list(verdicts.task.unique()),
        names=[FORMS[rule] for rule in forms],
        width=3.3,
        height=3.0,
        xlabel="points gained over the margin",
        message=pareto_message(verdicts),
        note=note,
    )


def _levels(verdicts: pd.DataFrame) -> pd.Series:
    """The percent of predictions that each setting keeps: a rule's last threshold on a task is for the most.

    Where one threshold serves for both levels, and where a rule is tried at one alone, it is the higher one.
    """
    last = verdicts.groupby(["task", "rule"]).threshold.transform("max")
    low, high = LEVELS
    return (verdicts.threshold == last).map({True: high, False: low})


def _draw_gains(axis, rows: pd.DataFrame, names: Sequence[str]) -> None:
    axis.axvline(0, color=figures.GREY, linewidth=1)
    for shift, (level, look) in zip((-0.17, 0.17), LEVELS.items(), strict=True):
        part = rows[rows.level == level]
        whiskers = [(part.gain - part.low).clip(lower=0), (part.high - part.gain).clip(lower=0)]
        name = f"threshold that keeps {level}% of the predictions"
        colour = figures.STYLES["weighted"].colour
        looks = look | {"color": colour, "elinewidth": 1, "label": name}
        axis.errorbar(part.gain, part.height + shift, xerr=whiskers, **looks)
    axis.set_yticks(range(len(names)), names, fontsize=9)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)


def pareto_message(verdicts: pd.DataFrame) -> str:
    """How many settings with contrast are better, and how many worse, than the plain margin at equal cost."""
    improves = int(verdicts.improves.sum())
    worse = int(verdicts.worse.sum())
    return (
        f"Of {len(verdicts)} settings with contrast, {_number(improves, 'is', 'are')} clearly better than "
        f"the plain margin at equal cost and {_number(worse, 'is', 'are')} clearly worse"
    )


def _number(number: int, one: str, several: str) -> str:
    """ "none beats", "1 beats", "3 beat": a number and its verb."""
    return f"{number or 'none'} {one if number < 2 else several}"


def pareto_conclusion(verdicts: pd.DataFrame) -> str:
    """The verdict on the Pareto improvement, by task."""
    counts = verdicts.groupby("task", sort=False)[["improves", "worse"]].sum()
    middle = verdicts.groupby("task", sort=False).gain.median()
    improved = counts.index[counts.improves > 0]
    return (
        f"Contrast is a clear Pareto improvement {on_tasks(improved, counts.index)}. Its median setting "
        f"changes the score by {task_span(middle, '+z.1f')} points against the best plain margin that costs "
        'no more. ("Clearly": the simultaneous interval excludes 0.)'
    )


def _scored(decoded: pd.DataFrame) -> pd.DataFrame:
    """The cases of contrast as a decoder in which full depth scores anything."""
    return decoded[(decoded.rule != "full_depth") & decoded.retained.notna()]


def decoder_message(decoded: pd.DataFrame) -> str:
    """In how many cases contrast as a decoder clearly raises or lowers the score; nothing without a score."""
    rows = _scored(decoded)
    if rows.empty:
        return ""
    lowered = []
    for alpha, part in rows.groupby("alpha"):
        lowered.append(f"in {(part.high < 1).sum() or 'none'} of {len(part)} at alpha = {alpha}")
    return (
        f"As a decoder, contrast clearly raises the score in {(rows.low > 1).sum() or 'none'} of "
        f"{len(rows)} combinations of model, task, contrast and alpha, and clearly lowers it "
        f"{listed(lowered)}"
    )


def decoder_conclusion(decoded: pd.DataFrame) -> str:
    """What contrast as a decoder keeps, and how many outputs it changes."""
    rows = _scored(decoded)
    if rows.empty:
        return "Full depth scores nothing here, so there is no score to keep."
    best = rows.loc[rows.retained.idxmax()]
    return (
        f"{decoder_message(decoded)} (95 % intervals). It changes {percent_span(1 - rows.same_output)} of "
        f"the outputs. The best case is {figures.label(best.rule)} with {figures.label(best.model)} on "
        f"{figures.label(best.task)}, which keeps {with_interval(best, 'retained', '.1%', 'low', 'high')} of "
        "the score."
    )


def clock_conclusion(measured: pd.DataFrame) -> str:
    """What pruning and contrast change in the time of a decision at T5-large's size, in layers."""
    layers = measured[measured["shape"] == "t5-large"].set_index("what")["median"]
    return (
        "At T5-large's size, a margin over all entries takes as long as "
        f"{layers['softmax_margin']:.2f} layers and one over 256 entries "
        f"{layers['margin, 256 ids kept']:.2f}; over 256 entries, weighted contrast takes "
        f"{layers['weighted contrast, 256 ids kept']:.2f} and JSD contrast "
        f"{layers['JSD contrast, 256 ids kept']:.2f}."
    )


def long_conclusion(long_costs: pd.DataFrame) -> str:
    """What deciding at every layer adds to full depth on long documents, over all entries and over a few."""
    flops = long_costs.groupby("rule").flops_share.mean() - 1
    added = {whole: f"{flops[whole]:.1%} ({flops[pruned]:.1%})" for whole, pruned in PRUNED_FORMS.items()}
    return (
        f"Sources have {long_costs.source_tokens.mean():,.0f} tokens on average. Where every layer decides, "
        f"the plain margin adds {added[MARGIN]} to the FLOPs of full depth, weighted contrast "
        f"{added['weighted']} and JSD contrast {added['jsd']}; in brackets, over a few entries."
    )


def lengths_figure(grown: pd.DataFrame):
    """FLOPs if all layers decide, by the length of the source: a panel a shape of model."""
    large = (
        grown[(grown["shape"] == "t5-large") & (grown.rule == MARGIN)].set_index("source_tokens").flops_share
    )
    figure = figures.facets(
        grown.replace({"shape": figures.SIZES}),
        figures.lines,
        "shape",
        x="source_tokens",
        y="flops_share",
        xlabel="tokens of the source",
        ylabel="FLOPs if all layers decide\n(1 = full depth)",
        message=(
            f"Deciding over all entries at every layer adds {large.iloc[0] - 1:.0%} to T5-large's FLOPs with "
            f"{large.index[0]:,} source tokens, and {large.iloc[-1] - 1:.0%} with {large.index[-1]:,}"
        ),
    )
    figure.axes[0].set_xscale("log", base=2)
    return figure
