"""Chapter 05: confidence measures over one layer and over several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from ...analysis.decisions import LEAST_TO_RANK
from ...analysis.statistics import percentiles
from .. import figures
from ..catalogue import CALM_RULES, MEE_RULES, RULES, VARIANTS
from ..learned_from import HISTORY
from ..prose import listed, on_tasks, span, task_span
from ..result_tables import KEEPS_IT
from .wording import capitalized, last_ranked_layer, percent_span, winners, without_source

MARGIN = "softmax_margin"
FEW = "few"  # the margin over as many vocabulary entries as HISTORY reads, with a whole last layer too
ON_STATES = tuple(rule for rule in VARIANTS if rule != HISTORY)
LEAST_KEPT = 0.6  # of the score: settings that keep less are not drawn
PUBLISHED = (*CALM_RULES, *MEE_RULES)  # the six measures of MEE
CONTROLS = ("wide_hidden", "two_hidden", "four_hidden")  # drawn among the ablations alone
BESIDE_ONE_LAYER = ("wide_hidden", "two_hidden", "three_hidden", "four_hidden", "lstm")
DECIDING = ("softmax_margin", "hidden_similarity", "linear", "hidden", "three_hidden", "lstm")
EQUAL_AREA = 0.002  # areas under the ROC curve that are this close are called equal
LEAST_RISE = 0.01  # of an area with more training tokens
LEAST_CHANGE = 0.01  # of a layer: what two digits show
AT_ONCE = 0.5  # layers after the first: a rule with an earlier mean exit layer hardly waits


def on_calm(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of CALM's model and of classifiers that learned the last layer's predictions."""
    return rows[(rows.model == "calm") & (rows.target == "consistency")]


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
    areas = on_calm(mean_rank).pivot(index="rule", columns="task", values="roc_area")
    ahead = clear_gains(on_calm(mean_rank), "roc_area", "three_hidden", "hidden")
    three = ranks_clearly_better(
        "a classifier on three states", "one on a single state", ahead, list(areas.columns)
    )
    means = areas.mean(axis=1).drop(index=list(CONTROLS), errors="ignore")
    if means.isna().all():
        return f"No layer has enough tokens of either kind to rank them. {three}"
    ordered = means.sort_values(ascending=False, kind="stable")
    best = list(ordered[ordered >= ordered.max() - EQUAL_AREA].index)
    sentences = [_ranked_best(best, areas)]
    _, one, several, similarity, _ = best_of_kinds(mean_rank)
    names = {
        "The softmax margin": MARGIN,
        f"The best classifier over one layer ({without_source(one)})": one,
        f"The best classifier over several layers ({without_source(several)})": several,
    }
    for name, rule in names.items():
        if rule not in best:
            sentences.append(f"{name} has {_areas(areas, [rule])}.")
    guess = ", at times worse than guessing" if areas.loc[similarity].min() < 0.5 else ""
    sentences.append(f"Hidden similarity has {_areas(areas, [similarity])}{guess}.")
    too_few = f"Layers with fewer than {LEAST_TO_RANK} tokens of either kind are left out."
    return " ".join([*sentences, _states_beside_the_margin(mean_rank), three, too_few])


def _areas(areas: pd.DataFrame, rules: Sequence[str]) -> str:
    """Between which areas some rules lie on all tasks, from rows of rules and columns of tasks."""
    return percent_span(areas.loc[rules].to_numpy().ravel(), "{:.2f}")


def _states_beside_the_margin(mean_rank: pd.DataFrame) -> str:
    """On which tasks any classifier on states ranks tokens clearly better than the margin, as a sentence."""
    rows = on_calm(mean_rank)
    on_states = [rule for rule in ON_STATES if rule in set(rows.rule)]
    ahead = {task for rule in on_states for task in clear_gains(rows, "roc_area", rule, MARGIN)}
    tasks = list(rows.task.unique())
    if not ahead:
        return "On no task does a classifier on states rank tokens clearly better than the softmax margin."
    where = on_tasks([task for task in tasks if task in ahead], tasks)
    return f"Some classifier on states ranks tokens clearly better than the softmax margin {where}."


def _ranked_best(best: Sequence[str], areas: pd.DataFrame) -> str:
    """Names the rules with the largest mean area, and those of them that need no training."""
    named = capitalized(listed(f"the {without_source(rule)}" for rule in best))
    untrained = [f"the {without_source(rule)}" for rule in best if rule not in VARIANTS]
    text = (
        f"{named} {'has' if len(best) == 1 else 'have'} the largest mean area ({_areas(areas, best)} by task)"
    )
    needs = "needs" if len(untrained) == 1 else "need"
    if len(untrained) == len(best):
        return f"{text} and {needs} no training."
    return f"{text}; {listed(untrained)} {needs} no training." if untrained else f"{text}."


def ranks_clearly_better(better: str, worse: str, ahead: Sequence[str], tasks: Sequence[str]) -> str:
    """On which tasks one rule ranks tokens clearly better than another, as a sentence."""
    clearly = "that is, with a 95 % interval of the difference above zero"
    if not ahead:
        return f"On no task does {better} rank tokens clearly better than {worse} ({clearly})."
    return capitalized(
        f"{better} ranks tokens clearly better than {worse} {on_tasks(ahead, tasks)} ({clearly})."
    )


def clear_gains(rows: pd.DataFrame, column: str, better: str, worse: str) -> list[str]:
    """The tasks on which one rule has more than another, with a 95 % interval above zero."""
    tasks = []
    for task, part in rows.groupby("task", sort=False):
        draws = part.set_index("rule")[f"{column}_draws"]
        low, _ = percentiles(draws[better] - draws[worse])
        if low > 0:
            tasks.append(task)
    return tasks


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
    ahead = {
        other: clear_gains(most, "roc_area", "three_hidden", other) for other in ("hidden", "wide_hidden")
    }
    tokens = f"{round(learned.tokens.max(), -3):,} training tokens"
    if not any(ahead.values()):
        return (
            f"Even with {tokens}, a classifier on three states does not rank tokens clearly better than one "
            "on a single state"
        )
    return (
        f"With {tokens}, a classifier on three states ranks tokens clearly better than one on a single state "
        f"{on_tasks(ahead['hidden'], tasks)}, and than one with as many parameters "
        f"{on_tasks(ahead['wide_hidden'], tasks)}"
    )


def tokens_conclusion(learned: pd.DataFrame) -> str:
    """How many tokens are enough, and what three states gain with the most of them."""
    gains = gains_of_three(learned)
    ahead = int((gains.low > 0).sum())
    behind = int((gains.high < 0).sum())
    opening = "" if ahead else "More training tokens give a classifier on three states no advantage: "
    compared = (
        f"with the most tokens, {'it' if opening else 'a classifier on three states'} is clearly ahead of "
        f"another classifier in {ahead or 'none'} of {len(gains)} comparisons and clearly behind in "
        f"{behind or 'none'} (95 % interval on one side of zero); the area differs by "
        f"{span(gains.gain, '{:+z.3f}')}."
    )
    return f"{_tokens_needed(learned)}{opening}{compared if opening else capitalized(compared)}"


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


def decisions_figure(quality_of: pd.DataFrame, threshold: float, note: str = ""):
    """Precision and recall of six rules at a threshold, by layer."""
    return figures.facets(
        _deciding(quality_of),
        _draw_decisions,
        quantities={"precision": "precision", "recall": "recall"},
        sharey="row",
        height=2.5,
        message=decisions_message(quality_of, threshold),
        note=note,
    )


def _deciding(quality_of: pd.DataFrame) -> pd.DataFrame:
    """The rows that `decisions_figure` draws, and its sentences speak of."""
    return quality_of[quality_of.rule.isin(DECIDING)]


def _draw_decisions(axis, rows: pd.DataFrame, y: str) -> None:
    figures.lines(axis, rows.dropna(subset=[y]), "layer", y, band=(f"{y}_low", f"{y}_high"))


def decisions_message(quality_of: pd.DataFrame, threshold: float) -> str:
    """What one threshold means for different rules."""
    recall = _deciding(quality_of).groupby("rule").recall.mean()
    return (
        f"At a threshold of {threshold:g}, {recall.min():.0%} to {recall.max():.0%} of the tokens whose "
        "prediction is final may exit, depending on the measure (means over layers and tasks)"
    )


def decisions_conclusion(quality_of: pd.DataFrame) -> str:
    """The precision of all measures, and between which recalls they lie."""
    means = _deciding(quality_of).groupby("rule")[["precision", "recall"]].mean().dropna()
    if means.empty:
        return "No measure exits at this threshold, or no prediction is final early."
    quality = " and different quality" if means.precision.max() - means.precision.min() > 0.05 else ""
    return (
        f"Means over layers and tasks: precision lies between {_ends(means.precision, '.1%')}, recall "
        f"between {_ends(means.recall, '.0%')}. An equal threshold gives different numbers of "
        f"exits{quality}: from here on, rules are compared at equal quality."
    )


def _ends(by_rule: pd.Series, form: str) -> str:
    """The least and the largest value with their rules: "14% (linear classifier) and 97% (margin)"."""
    ends = [by_rule.idxmin(), by_rule.idxmax()]
    return listed(f"{by_rule[rule]:{form}} ({without_source(rule)})" for rule in ends)


def calibration_figure(reliability: pd.DataFrame, note: str = ""):
    """Confidence against the share of exits that would have been right."""
    return figures.facets(
        reliability,
        _draw_calibration,
        xlabel="confidence",
        ylabel="share whose prediction\nis the last layer's",
        height=3.0,
        message=calibration_message(reliability),
        note=note,
    )


def _draw_calibration(axis, rows: pd.DataFrame) -> None:
    figures.perfect_calibration(axis)
    figures.lines(axis, rows, "confidence", "accuracy")


def calibration_errors(reliability: pd.DataFrame) -> pd.Series:
    """The expected calibration error of each rule, a mean over tasks, the smallest first."""
    errors = reliability.drop_duplicates(["task", "rule"])
    return errors.groupby("rule", sort=False).error.mean().sort_values()


def underconfident(reliability: pd.DataFrame) -> list[str]:
    """The rules whose predictions are, on every task, the last layer's more often than they are confident."""
    gap = (reliability.accuracy - reliability.confidence) * reliability["count"]
    gaps = gap.groupby([reliability.rule, reliability.task], sort=False).sum()
    least = gaps.groupby(level="rule", sort=False).min()
    return list(least.index[least > 0])


def calibration_message(reliability: pd.DataFrame) -> str:
    """Whether all rules are underconfident, or between which calibration errors they lie."""
    errors = calibration_errors(reliability)
    if len(underconfident(reliability)) == len(errors):
        return (
            "Every measure drawn is underconfident: predictions are final more often than it says "
            f"(calibration error {errors.min():.2f} to {errors.max():.2f})"
        )
    return (
        "What a confidence of 0.9 means depends on the measure: calibration errors of "
        f"{errors.min():.2f} to {errors.max():.2f}"
    )


def calibration_conclusion(reliability: pd.DataFrame) -> str:
    """The rules with the smallest and the largest calibration error."""
    errors = calibration_errors(reliability)
    said = f"The expected calibration error, a mean over the tasks, lies between {_ends(errors, '.3f')}."
    modest = underconfident(reliability)
    if any(rule in modest for rule in VARIANTS):
        said += (
            " Classifiers are trained with both classes weighted equally, which makes them underconfident "
            "where most predictions are final."
        )
    if MARGIN in modest:
        said += " The softmax margin is underconfident too, without any training."
    return said


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


SHAPE_STYLES = {
    "mini": figures.Style("mini T5 (1,600 entries)", "#b5b5b5", "o"),
    "t5-base": figures.Style("T5-base", figures.BLUE, "s"),
    "t5-large": figures.Style("T5-large", figures.DARK, "D"),
}
FREE = 1e-5  # where a decision that costs nothing is drawn on the logarithmic axis


def _draw_costs(axis, rows: pd.DataFrame) -> None:
    rules = list(dict.fromkeys(rows.rule))
    shown = rows.assign(height=rows.rule.map(rules.index), value=rows.value.clip(lower=FREE))
    figures.dots(axis, shown, "value", "height", "shape", styles=SHAPE_STYLES, markersize=5)
    axis.set_yticks(range(len(rules)), [figures.label(rule) for rule in rules], fontsize=8)
    if (rows.quantity == "share_of_layer").all():
        for height, rule in enumerate(rules):
            if rows[rows.rule == rule].value.max() == 0:
                axis.annotate(
                    "free", (FREE, height), xytext=(8, 0), textcoords="offset points", va="center", fontsize=8
                )


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
    of_family = rows.assign(family=rows.rule.map(lambda rule: RULES[rule].family))
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
        return (
            f"{where}, {early} of {len(layers)} rules exit at or near layer {first}; only their cost differs"
        )
    best = rows.loc[rows.groupby("task", sort=False).flops_share.idxmin()]
    return f"{where}, the cheapest rule is {winners(best)}"


def equal_quality_conclusion(at_share: pd.DataFrame, first_layer: int, share: float) -> str:
    """How deep tokens go on average, and what classifiers do on the vanilla model."""
    layers = _drawn_at_equal_quality(at_share).groupby("rule").mean_exit_layer.mean()
    early = layers[layers < first_layer + AT_ONCE]
    vanilla = at_share[(at_share.model == "vanilla") & (at_share.target == "consistency")]
    on_vanilla = vanilla.groupby("rule").mean_exit_layer.mean()
    same = layers[on_vanilla.index]
    trained = abs(on_vanilla.mean() - same.mean())
    more = trained > same.max() - same.min()
    return (
        f"With {share:.0%} of the predictions kept, and averaged over the tasks, {len(early) or 'none'} of "
        f"{len(layers)} rules {'exits' if len(early) < 2 else 'exit'} within {AT_ONCE:g} layers of layer "
        f"{first_layer}, the earliest allowed. Classifiers of the same kinds, trained on each model, exit at "
        f"layer {same.mean():.1f} in CALM and at layer {on_vanilla.mean():.1f} in vanilla"
        + (": the training of the model matters more than the rule." if more else ".")
    )


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
    several = later[later.rule.map(_sees_several_layers)]
    changes = span(several.later, "{:+z.2f}")
    if not moves_exits(later):
        changes = f"less than {LEAST_CHANGE:g}"
    return (
        f"Seeing more than one state changes the mean exit layer by {changes} ({share:.0%} of predictions "
        "kept; negative: earlier)"
    )


def _sees_several_layers(rule: str) -> bool:
    return RULES[rule].family == "several layers"


def layers_seen_conclusion(later: pd.DataFrame, at_share: pd.DataFrame, first_layer: int) -> str:
    """What three states gain, and what as many parameters on one state gain; or why they gain nothing."""
    if not moves_exits(later):
        rows = on_calm(at_share)
        layers = rows[rows.rule.isin(["hidden", *BESIDE_ONE_LAYER])].mean_exit_layer
        at_first = (layers < first_layer + LEAST_CHANGE).all()
        why = f"all classifiers exit at layer {first_layer}, the earliest allowed; " if at_first else ""
        return (
            f"Seeing more than one layer changes nothing here: {why}mean exit layers differ by less than "
            f"{LEAST_CHANGE:g} on every task, so nothing is drawn. (The stored table has the differences.)"
        )
    means = later.groupby("rule").later.mean()
    clear = int(((later.later_low > 0) | (later.later_high < 0)).sum())
    return (
        "Compared with a classifier on one state, and averaged over the tasks, three states move the mean "
        f"exit by {means['three_hidden']:+z.2f} layers, and one state with as many parameters by "
        f"{means['wide_hidden']:+z.2f} (negative: earlier). {clear or 'None'} of {len(later)} intervals over "
        "seeds "
        f"{'excludes' if clear < 2 else 'exclude'} zero."
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
    text = (
        "The target makes no difference"
        if change < LEAST_CHANGE
        else (f"The target moves mean exit layers by at most {change:.1f}")
    )
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
    cheapest = flops.idxmin()
    parts = [
        f"{layer} for {listed(f'the {without_source(rule)}' for rule in rules.index)}"
        for layer, rules in cheapest.groupby(cheapest)
    ]
    first = flops.index.min()
    thresholds = started.pivot_table(index="min_layer", columns="rule", values="threshold", sort=False)
    at_cheapest = pd.Series({rule: thresholds.loc[layer, rule] for rule, layer in cheapest.items()})
    stricter = cheapest.min() > first and (thresholds.loc[first] > at_cheapest).all()
    why = f" Exits from layer {first} on need stricter thresholds." if stricter else ""
    return f"On average over the tasks, the cheapest minimum exit layer is {', and '.join(parts)}.{why}"


def published_shown(published: pd.DataFrame) -> pd.DataFrame:
    """The share of the full score that is kept by rule, a column a task, first layer and threshold."""
    settings = published[published.rule != "full_depth"]
    columns = ["task", "min_layer", "threshold"]
    table = settings.pivot_table(index="rule", columns=columns, values="retained", sort=False)
    table = table.sort_index(axis=1, level=["task", "min_layer"], kind="stable", sort_remaining=False)
    table = table.rename(index=figures.label).rename(columns=figures.label, level="task")
    table = table.rename_axis(columns=["task", "minimum exit layer", "threshold"])
    return table.map("{:.2f}".format).replace("nan", "")


def published_conclusion(published: pd.DataFrame, sixth: int, first_layer: int, threshold: float) -> str:
    """What the measures of both papers keep at the published threshold, from two first layers."""
    texts = []
    for layer in (sixth, first_layer):
        rows = published[(published.min_layer == layer) & (published.threshold == threshold)]
        texts.append(
            f"With exits from layer {layer} on, MEE's measures {_kept_and_spent(rows, MEE_RULES)}, "
            f"and CALM's {_kept_and_spent(rows, CALM_RULES)}."
        )
    return (
        f"Means over the tasks at the decaying threshold of {threshold:g}. {' '.join(texts)} An equal "
        "threshold is not an equal cost."
    )


def _kept_and_spent(rows: pd.DataFrame, rules: Sequence[str]) -> str:
    """What the rules of a paper keep and spend, means over tasks: "keep 90% of the score for 60% ..."."""
    means = rows[rows.rule.isin(rules)].groupby("rule")[["retained", "flops_share"]].mean()
    return (
        f"keep {percent_span(means.retained)} of the score for {percent_span(means.flops_share)} of the FLOPs"
    )


def curves_figure(points: pd.DataFrame, tasks: Sequence[str], note: str = ""):
    """Score kept against FLOPs of the six published measures, a fixed layer and the oracle."""
    shown = points[points.rule.isin([*PUBLISHED, "static", "oracle", "full_depth"])]
    shown = shown[shown.retained >= LEAST_KEPT]
    return figures.facets(
        shown,
        _draw_curves,
        values=tasks,
        xlabel="FLOPs (1 = full depth)",
        ylabel="score kept (1 = full depth)",
        width=3.8,
        height=3.3,
        message=curves_message(points),
        note=figures.small_print(note, figures.GOES_ON),
    )


def _draw_curves(axis, rows: pd.DataFrame) -> None:
    """Published measures as lines; grey for a fixed layer, a star for the oracle, a cross for full depth."""
    static = rows[rows.rule == "static"].sort_values("flops_share", kind="stable")
    axis.plot(
        static.flops_share, static.retained, color="#999999", linewidth=4, alpha=0.5, label="a fixed layer"
    )
    figures.lines(axis, rows[rows.rule.isin(PUBLISHED)], "flops_share", "retained")
    for rule, marker in (("oracle", "*"), ("full_depth", "+")):
        point = rows[rows.rule == rule]
        look = {"color": "black", "marker": marker, "markersize": 9, "linestyle": "none", "zorder": 5}
        axis.plot(point.flops_share, point.retained, label=figures.label(rule), **look)
    axis.set_xlim(0.25, 1.5)


def curves_message(points: pd.DataFrame) -> str:
    """Which of the six published measures is cheapest at 99 % of the score, on average."""
    good = points[points.rule.isin(PUBLISHED) & (points.retained >= 0.99)]
    best = good.sort_values(["task", "flops_share"], kind="stable").drop_duplicates("task")
    if best.empty:
        return "No published measure keeps 99% of the score on average"
    named = _winners_among(best, points.task.unique())
    return f"The cheapest published measure that keeps 99% of the score on average is {named}"


def cheapest_message(points: pd.DataFrame) -> str:
    """Which of all rules of the chapter is cheapest at a mean of 99 % of the score, by task."""
    rules = points[~points.rule.isin(["static", "oracle", "full_depth"])]
    good = rules[(rules.retained >= 0.99) & (rules.flops_share < 1)]
    best = good.sort_values(["task", "flops_share"], kind="stable").drop_duplicates("task")
    if best.empty:
        return "No rule of this chapter keeps a mean of 99% of the score for fewer FLOPs than full depth"
    tasks = list(points.task.unique())
    left = [task for task in tasks if task not in set(best.task)]
    none = f"; {on_tasks(left, tasks)} none saves FLOPs" if left else ""
    named = _winners_among(best, tasks)
    return f"At a mean of 99% of the score, the cheapest rule of this chapter is {named}{none}"


def _winners_among(best: pd.DataFrame, tasks: Sequence[str]) -> str:
    """`winners`, where some of the tasks may have no row: a single winner then has its tasks named."""
    if best.rule.nunique() > 1 or len(best) == len(tasks):
        return winners(best)
    return winners(best).replace("on every task", on_tasks(best.task, tasks))


def curves_conclusion(points: pd.DataFrame) -> str:
    """What 99 % of the score costs with the rules drawn and with those over few entries; and the oracle."""
    good = points[points.retained >= 0.99]
    compared = {"the cheapest published measure": PUBLISHED, "the earliest fixed layer": ["static"]}
    over_few = {"the history of predictions": [HISTORY], "the margin": [FEW]}
    text = "Neither a published measure nor a fixed layer keeps 99% of the score on average."
    costs = _costs(good, compared, list(points.task.unique()))
    if costs:
        text = f"Keeping 99% of the score on average takes {costs}."
    costs = _costs(good, over_few, list(points.task.unique()))
    if costs:
        text = f"{text} Over few entries it takes {costs}."
    oracle = points[points.rule == "oracle"].set_index("task")
    if oracle.empty:
        return text
    return (
        f"{text} The oracle, which knows the last layer's prediction, keeps {task_span(oracle.retained)} of "
        f"the score for {percent_span(oracle.flops_share)} of the FLOPs."
    )


def _costs(good: pd.DataFrame, kinds: Mapping[str, Sequence[str]], tasks: Sequence[str]) -> str:
    """The FLOPs of the cheapest settings by kind, a name -> its rules; "" where there are none."""
    costs = []
    for name, rules in kinds.items():
        shares = good[good.rule.isin(rules)].groupby("task", sort=False).flops_share.min()
        if shares.empty:
            continue
        unit = "" if costs else " of the FLOPs"
        where = "" if len(shares) == len(tasks) else f" ({on_tasks(shares.index, tasks)} only)"
        costs.append(f"{task_span(shares)}{unit} with {name}{where}")
    return ", and ".join(costs)


def kept_shown(kept: pd.DataFrame) -> pd.DataFrame:
    """The setting of each rule in `kept_conclusion`, by task: what it keeps and spends."""
    columns = {
        "threshold": "threshold (or layer)",
        "retained": "score kept",
        "low": "lower bound",
        "high": "upper bound",
        "verdict": "verdict",
        "mean_exit_layer": "mean exit layer",
        "flops_share": "FLOPs (1 = full depth)",
    }
    table = kept.set_index(["task", "rule"])[list(columns)].round(3)
    return table.rename(index=figures.label).rename(columns=columns)


def kept_conclusion(kept: pd.DataFrame, quality: float) -> str:
    """How many rules keep the quality with confidence, how many of them save nothing, and the cheapest."""
    sure = kept[kept.verdict == KEEPS_IT].sort_values("flops_share", kind="stable")
    tasks = kept.task.unique()
    numbers = sure.groupby("task").size().reindex(tasks, fill_value=0)
    rules = int(kept.groupby("task").size().max())
    depending = ", depending on the task" if numbers.min() < numbers.max() else " on every task"
    counted = (
        f"The lower bound reaches {quality:.0%} of the score for {span(numbers, '{:d}')} of {rules} rules"
        f"{depending}."
    )
    if sure.empty:
        return counted
    dear = sure[sure.flops_share >= 1].groupby("task").size().reindex(tasks, fill_value=0)
    saves_nothing = (
        f" Of these, {task_span(dear, '.0f')} cost as much as full depth or more." if dear.max() else ""
    )
    saving = sure[sure.flops_share < 1]
    left = [task for task in tasks if task not in set(saving.task)]
    nothing = f" {capitalized(on_tasks(left, tasks))}, none of them saves FLOPs." if left else ""
    if saving.empty:
        return f"{counted}{saves_nothing}{nothing}"
    cheapest = saving.drop_duplicates("task")
    ends = cheapest.iloc[[0, -1]].drop_duplicates("task")
    parts = [
        f"{row.flops_share:.0%} ({without_source(row.rule)}, {figures.label(row.task)})"
        for row in ends.itertuples()
    ]
    return f"{counted}{saves_nothing}{nothing} The cheapest takes {' to '.join(parts)} of the FLOPs."


def answer_message(kept: pd.DataFrame, quality: float) -> str:
    """Whether rules over several layers keep the quality for fewer FLOPs than full depth, and than others."""
    sure = kept[(kept.verdict == KEEPS_IT) & (kept.flops_share < 1)]
    families = sure.rule.map(lambda rule: RULES[rule].family)
    several = sure[families == "several layers"].groupby("task", sort=False).flops_share.min()
    one = sure[~families.isin(["several layers", "reference"])].groupby("task", sort=False).flops_share.min()
    tasks = list(kept.task.unique())
    ahead = [task for task in several.index if several[task] < one.get(task, 1.0)]
    faster = on_tasks(several.index, tasks)
    text = (
        f"In this chapter, rules over several layers reliably keep {quality:.0%} of the score for fewer "
        f"FLOPs than full depth {faster}"
    )
    if several.empty:
        return text
    if not ahead:
        return f"{text}, but on no task for fewer than the cheapest rule over one layer"
    return f"{text}, and for fewer than any rule over one layer {on_tasks(ahead, tasks)}"
