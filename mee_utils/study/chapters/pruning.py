"""Chapter 03: how many vocabulary entries a decision must score, what the others hold, what it costs."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pandas as pd

from .. import figures
from ..catalogue import PRUNED, RULES
from ..prose import listed, on_tasks, span, task_span
from .wording import capitalized, in_a_sentence, percent_span, some, winners, with_interval

PUBLISHED = tuple(way for way in PRUNED if RULES[way].prune_last_layer)  # the last layer is pruned too
WHOLE_LAST = "few"  # fixed pruning before the last layer, which scores all entries
SHOWN_MODELS = ("calm", "vanilla")  # tables have the pre-trained model too
RECALL_LAYERS = (1, 2, 3, 4, 6, 8)
LITTLE = 0.02  # of a score or of the FLOPs: no difference worth a sentence
NEARLY_ALL = 0.005  # of the predictions: a list that keeps fewer than the longest by this much is long enough
BOX = {"median": "med", "low": "q1", "high": "q3", "whisker_low": "whislo", "whisker_high": "whishi"}
AGREES = figures.STYLES["accuracy"]._replace(label="predictions that are the last layer's")


def _of_shown_models(table: pd.DataFrame) -> pd.DataFrame:
    shown = table[table.model.isin(SHOWN_MODELS)]
    return shown if len(shown) else table


def _calm(table: pd.DataFrame) -> pd.DataFrame:
    return table[table.model == "calm"]


def rank_figure(boxes: pd.DataFrame, layer: int, note: str = ""):
    """Box plots of the rank that each layer gives to the final token (`pruning.rank_boxes`)."""
    return figures.facets(
        _of_shown_models(boxes),
        _draw_boxes,
        row="model",
        ylabel="rank of the\nfinal token",
        height=2.4,
        message=rank_message(boxes, layer),
        note=note,
    )


def _draw_boxes(axis, rows: pd.DataFrame) -> None:
    drawn = rows.rename(columns=BOX)[list(BOX.values())]
    colour = figures.STYLES[rows.model.iloc[0]].colour
    axis.bxp(
        drawn.to_dict("records"),
        list(rows["layer"]),
        widths=0.65,
        manage_ticks=False,
        showfliers=False,
        patch_artist=True,
        boxprops={"facecolor": colour, "alpha": 0.45, "edgecolor": colour},
        medianprops={"color": "black", "linewidth": 1.6},
        capprops={"color": colour},
        whiskerprops={"color": colour},
    )
    axis.set_yscale("log")
    figures.layer_axis(axis, rows["layer"].max())


def _on_top(boxes: pd.DataFrame, layer: int) -> list[str]:
    rows = boxes[boxes.layer == layer]
    return [
        f"{percent_span(part.on_top)} of {figures.label(name)}'s"
        for name, part in rows.groupby("model", sort=False)
    ]


def rank_message(boxes: pd.DataFrame, layer: int) -> str:
    """How often a layer ranks the final token first, in CALM and in vanilla."""
    return f"Layer {layer} ranks {listed(_on_top(_of_shown_models(boxes), layer))} final tokens first"


def rank_conclusion(boxes: pd.DataFrame, kept_at: pd.DataFrame, layer: int, top_k: int) -> str:
    """The share of final tokens among the best entries of a layer, by model."""
    rows = kept_at[(kept_at.layer == layer) & (kept_at.k == top_k)]
    if rows.empty:
        return f"Layer {layer} ranks {listed(_on_top(boxes, layer))} final tokens first."
    least = rows.groupby("model", sort=False).recall.min()
    shown = least[[name for name in SHOWN_MODELS if name in least] or least.index]
    parts = [f"{share:.1%} of {figures.label(name)}'s" for name, share in shown.items()]
    trained = len(shown) > 1 and shown.idxmax() == "calm"
    opening = "Lists can be shorter in a model trained for exits: the" if trained else "The"
    return (
        f"A pruned layer cannot predict a token that is not on its list. {opening} best {top_k} entries of "
        f"layer {layer} hold at least {listed(parts)} final tokens."
    )


def confidence_figure(honesty: pd.DataFrame, minimum: pd.DataFrame, precision: float, note: str = ""):
    """Mean confidence and agreement with the last layer; a line marks the minimum exit layer."""
    layers = minimum.set_index(["model", "task"]).minimum_layer
    return figures.facets(
        _of_shown_models(honesty),
        _draw_confidence,
        row="model",
        minimum=layers,
        ylabel="mean over tokens",
        height=2.4,
        message=minimum_message(minimum, precision),
        note=note,
    )


def _draw_confidence(axis, rows: pd.DataFrame, minimum: pd.Series) -> None:
    styles = {**figures.STYLES, "accuracy": AGREES}
    figures.column_lines(axis, rows, "layer", ["confidence", "accuracy"], styles=styles)
    layer = minimum.get((rows.model.iloc[0], rows.task.iloc[0]))
    if layer is not None:
        axis.axvline(layer, color=figures.BLUE, linestyle=":", linewidth=1.2, label="minimum exit layer")


def _minimum_by_model(minimum: pd.DataFrame) -> list[str]:
    parts = []
    for name, rows in minimum.groupby("model", sort=False):
        layers = span(rows.minimum_layer, "{:.0f}")
        plural = "s" if rows.minimum_layer.nunique() > 1 else ""
        parts.append(f"in {figures.label(name)} from layer{plural} {layers} on")
    return parts


def minimum_message(minimum: pd.DataFrame, precision: float) -> str:
    """The minimum exit layer that the rule gives CALM and vanilla."""
    layers = listed(_minimum_by_model(_of_shown_models(minimum)))
    return f"At least {precision:.0%} of confident predictions are the last layer's: {layers}"


def minimum_conclusion(honesty: pd.DataFrame, by_rule: pd.DataFrame) -> str:
    """How overconfident layers are, and what exits from the minimum layer on keep of an output."""
    shown = _of_shown_models(honesty)
    worst = shown.loc[(shown.confidence - shown.accuracy).idxmax()]
    text = (
        f"A layer is overconfident where black lies above grey, most of all layer {worst.layer} of "
        f"{figures.label(worst.model)} on {figures.label(worst.task)} (confidence {worst.confidence:.2f}, "
        f"agreement {worst.accuracy:.2f})."
    )
    calm = _calm(by_rule)
    if calm.empty:
        return text
    least = calm.loc[calm.retained.idxmin()]
    kept = with_interval(least, "retained", low="low", high="high")
    lost = "errors of single tokens add up: " if least.retained < 1 - LITTLE else ""
    calibrated = " Thresholds are therefore calibrated on whole outputs (08)." if lost else ""
    exits = capitalized(f"{lost}with exits from the minimum layer on, CALM")
    task = f"{figures.label(least.task)}, the least of all tasks"
    return f"{text} {exits} keeps {kept} of its score on {task}.{calibrated}"


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
    first, last = means.layer.min(), means.layer.max()
    whole = WHOLE_LAST in set(means.rule)
    again = (
        f"; only the {_way(WHOLE_LAST)} does so again, at layer {last}"
        if whole
        else f", and a list from {first + 1} on"
    )
    return f"Every way of pruning scores all entries at layer {first}{again}"


def _way(rule: str) -> str:
    """A way of pruning the margin, without saying that it is the margin: "fixed pruning"."""
    return re.sub(r"^margin(,| with) ", "", figures.label(rule))


def kept_conclusion(by_layer: pd.DataFrame) -> str:
    """How many entries the published ways of pruning still score at the last layer of CALM."""
    rows = _last_model(by_layer)
    last = rows[(rows.layer == rows.layer.max()) & rows.rule.isin(PUBLISHED)]
    entries = last.groupby("rule", sort=False).ids.mean()
    shortest, longest = entries.idxmin(), entries.idxmax()
    return (
        f"At the last layer, {_way(longest)} still scores {entries[longest]:,.0f} of {rows.ids.max():,.0f} "
        f"entries, and {_way(shortest)} {entries[shortest]:.0f}."
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
    return _by_way(lost.assign(cell=cells), ["model", "rule"], "task", ["cell"])["cell"]


def _by_way(
    table: pd.DataFrame, rows: list[str], columns: str | list[str], values: list[str]
) -> pd.DataFrame:
    """A wide table in the order of the long one: ways of pruning below each other, so that they compare."""
    beside = [columns] if isinstance(columns, str) else columns
    wide = table.set_index([*rows, *beside])[values].unstack(beside, sort=False)
    wide = wide.rename(index=figures.label, columns=figures.label)
    return wide.rename_axis(index=dict.fromkeys(rows), columns=dict.fromkeys(beside))


def unreachable_conclusion(lost: pd.DataFrame) -> str:
    """What the published last layer changes although no token exits, and what a whole one changes."""
    most = lost.groupby(["rule", "model"], sort=False).share.max().unstack("model", sort=False)
    most = most[[name for name in SHOWN_MODELS if name in most] or list(most)]
    if "fixed" not in most.index:
        return ""
    fixed = most.loc["fixed"]
    even = "Even if no token exits" if fixed.max() > 0 else "If no token exits"
    text = f"{even}, fixed pruning of the last layer, as published, changes {_changed(fixed)}."
    if WHOLE_LAST not in most.index:
        return text
    whole = most.loc[WHOLE_LAST].max()
    return f"{text} A whole last layer changes {some(whole, '.1%')}."


def table_shown(complete: pd.DataFrame) -> pd.DataFrame:
    """The paper's table, complete, of the fine-tuned models: a row a model and way of pruning.

    The score and the FLOPs are shares of full depth's, tokens changed a share of the tokens.
    """
    shown = _of_shown_models(complete[complete.reduction != "full_depth"])
    scores = [with_interval(row, "retained", low="low", high="high") for _, row in shown.iterrows()]
    cells = {
        "score retained": scores,
        "FLOPs": shown.flops_share.map("{:.0%}".format),
        "tokens changed": shown.other_token.map("{:.1%}".format),
    }
    return _by_way(shown.assign(**cells), ["model", "reduction"], "task", list(cells))


def table_conclusion(complete: pd.DataFrame) -> str:
    """How many tokens pruning changes in each model, what that does to the score, and what mends it."""
    shown = _of_shown_models(complete)
    pruned = shown[shown.reduction.isin(PUBLISHED)]
    most = pruned.groupby("model", sort=False)[["other_token", "other_output"]].max()
    most = most.loc[[name for name in SHOWN_MODELS if name in most.index] or list(most.index)]
    outputs = (
        f"One token is enough to change an output: {_changed(most.other_output, 'outputs', '.0%')} differ."
    )
    sentences = [
        "Against the unpruned run at the same threshold, the published ways of pruning change "
        f"{_changed(most.other_token)}.",
        outputs if most.other_output.max() > 0 else "",
        _lower_scores(shown),
        _nothing_left(shown),
        _whole_last_layer(shown),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _lower_scores(complete: pd.DataFrame) -> str:
    """Where a published way of pruning surely costs score, in each model the largest fall; or nothing.

    A fall is sure where the interval of the pruned run lies below what the unpruned run retains.
    """
    falls = []
    for name, rows in complete.groupby("model", sort=False):
        plain = rows[rows.reduction == "unpruned"].set_index("task").retained.clip(upper=1)
        pruned = rows[rows.reduction.isin(PUBLISHED)]
        before = pruned.task.map(plain)
        fall = (before - pruned.retained)[(pruned.high < before) & (before - pruned.retained > LITTLE)]
        if len(fall):
            worst = pruned.loc[fall.idxmax()]
            falls.append(
                f"{figures.label(name)}'s from {plain[worst.task]:.0%} to {worst.retained:.0%} of full "
                f"depth's on {figures.label(worst.task)} ({_way(worst.reduction)})"
            )
    return f"Where lists miss final tokens, the score falls: {listed(falls)}." if falls else ""


def _nothing_left(complete: pd.DataFrame) -> str:
    """Where the margin over all entries retains nothing, so that pruning has nothing to lose."""
    rows = complete[(complete.reduction == "unpruned") & (complete.retained < LITTLE)]
    places = [
        f"{figures.label(row.model)} retains next to nothing on {figures.label(row.task)}, where tokens exit "
        f"at layer {row.mean_exit_layer:.1f} on average"
        for row in rows.itertuples()
    ]
    return f"Even unpruned, {'; and '.join(places)}." if places else ""


def _whole_last_layer(complete: pd.DataFrame) -> str:
    """What a whole last layer keeps of the score, and costs, beside the published fixed pruning.

    Named is the largest change in each model that is sure: outside the interval of fixed pruning.
    """
    if not {"fixed", WHOLE_LAST} <= set(complete.reduction):
        return ""
    kept = complete.pivot(index=["model", "task"], columns="reduction", values=["retained", "low", "high"])
    share = kept["retained"]
    change = (share[WHOLE_LAST] - share.fixed).abs()
    sure = (kept["high"].fixed < share[WHOLE_LAST]) | (kept["low"].fixed > share[WHOLE_LAST])
    parts = []
    for name, changes in change[sure & (change > LITTLE)].groupby("model", sort=False):
        place = changes.idxmax()
        row = share.loc[place]
        parts.append(
            f"{row[WHOLE_LAST]:.0%} of {figures.label(name)}'s score on {figures.label(place[1])}, where "
            f"fixed pruning keeps {row.fixed:.0%} and the full vocabulary {row.unpruned:.0%}"
        )
    cost = _dearer(_calm(complete))
    if not parts:
        return (
            f"With a whole last layer no score surely changes by more than {100 * LITTLE:.0f} points.{cost}"
        )
    return f"With few entries before a whole last layer, the margin keeps {'; and '.join(parts)}.{cost}"


def _dearer(complete: pd.DataFrame) -> str:
    """What a whole last layer costs CALM beside the published fixed pruning."""
    if complete.empty:
        return ""
    spent = complete.pivot(index="task", columns="reduction", values="flops_share")
    points = 100 * (spent[WHOLE_LAST] - spent.fixed).max()
    if points < 0.05:
        return " On CALM it costs no more FLOPs than fixed pruning."
    return f" On CALM it adds at most {points:.1f}% of full depth's FLOPs to what fixed pruning costs."


def _changed(shares: pd.Series, what: str = "tokens", form: str = ".1%") -> str:
    """The largest share that changes in each model: "none of CALM's and up to 2.5% of vanilla's tokens"."""
    parts = []
    for name, share in shares.items():
        amount = some(share, form)
        most = f"up to {amount}" if amount[0].isdigit() else amount
        parts.append(f"{most} of {figures.label(name)}'s")
    return f"{listed(parts)} {what}"


def comparable_times(times: pd.DataFrame, compared: pd.DataFrame) -> pd.DataFrame:
    """The timings of the settings in `compared`; no rows unless all of the published ones were timed."""
    keys = ["task", "model", "reduction"]
    needed = compared[compared.reduction.isin(["unpruned", *PUBLISHED])]
    timed = needed.merge(times[keys].drop_duplicates(), on=keys)
    return times if len(timed) == len(needed) else times.iloc[:0]


def times_shown(times: pd.DataFrame) -> pd.DataFrame | None:
    """Tokens a second, full depth being 1: a row a model and way of pruning, columns by batch and task.

    None where nothing was timed.
    """
    if times.empty:
        return None
    speeds = times.sort_values("batch", kind="stable")
    speeds["speed"] = speeds.speed.astype(float).map("{:.2f}".format)
    speeds["batch"] = speeds.batch.map("batch size {}".format)
    return _by_way(speeds, ["model", "reduction"], ["batch", "task"], ["speed"])["speed"]


def times_conclusion(times: pd.DataFrame, compared: pd.DataFrame) -> str:
    """Whether pruning is faster than the margin over all entries by the clock, and what is not timed."""
    one = _calm(times[times.batch == times.batch.min()]) if len(times) else times
    if one.empty:
        return ""
    speed = one.astype({"speed": float}).pivot(index="task", columns="reduction", values="speed")
    gain = speed.div(speed["unpruned"], axis=0).drop(columns="unpruned").unstack()
    gain = gain.dropna()  # of a way and a task
    text = (
        f"CALM with a pruned margin emits {span(gain, '{:.2f}')} times as many tokens a second as with the "
        f"margin over all entries (batch size {one.batch.iloc[0]})"
    )
    way, task = gain.idxmax()
    if gain.max() < 1.02:
        text += (
            ": no time is saved. At the width of these models, choosing entries and gathering their rows "
            "probably takes as long as scoring all."
        )
    else:
        text += f", the most with {_way(way)} on {figures.label(task)}."
    untimed = [name for name in compared.reduction.unique() if name not in set(times.reduction)]
    missing = f" Not timed yet: {listed(map(in_a_sentence, untimed))}." if untimed else ""
    return f"{text}{missing}"


def published_conclusion(beside: pd.DataFrame) -> str:
    """How often pruning takes more than half of the score, in the published rows and in ours."""
    rows = beside[beside.reduction.isin(PUBLISHED)]
    theirs = rows[rows.score_at_full_depth > 0]
    low = theirs.score < theirs.score_at_full_depth / 2
    ours = rows[rows.our_score_unpruned > 0].drop_duplicates(["our_model", "our_task", "reduction"])
    below = ours[ours.our_score < ours.our_score_unpruned / 2]
    whose = (
        f" (all on {listed(figures.label(name) for name in below.our_model.unique())})" if len(below) else ""
    )
    return (
        f"Pruning takes more than half of the score in {low.sum()} of {len(low)} published settings "
        f"({(theirs.score == 0).sum()} with a score of 0)"
        f"{f' and in {len(below)} of our {len(ours)}{whose}' if len(ours) else ''}. The published zeros are "
        "probably list positions mistaken for token ids (08)."
    )


def published_shown(beside: pd.DataFrame) -> pd.DataFrame:
    """The paper's rows for which we have a task, beside ours: scores in percent, seconds for `samples`."""
    shown = beside[beside.our_score.notna()].copy()
    shown["reduction"] = shown.reduction.replace("full_depth", "none")
    shown["our_model"] = shown.our_model.map(figures.label)
    shown["our_task"] = shown.our_task.map(figures.label)
    timed = shown.our_seconds.notna()
    shown["our_seconds"] = shown.our_seconds.map("{:.1f}".format).where(timed, "not timed")
    columns = {
        "model": "model",
        "dataset": "dataset",
        "reduction": "pruning",
        "score": "score",
        "seconds": "seconds",
        "our_model": "our model",
        "our_task": "our task",
        "our_score": "our score",
        "our_seconds": "our seconds",
        "why_they_differ": "why they differ",
    }
    return shown[list(columns)].rename(columns=columns).round(1).reset_index(drop=True)


def left_out(beside: pd.DataFrame) -> str:
    """Which datasets of the paper have no row of ours."""
    shown = beside.dataset[beside.our_score.notna()].unique()
    datasets = [name for name in beside.dataset.unique() if name not in shown]
    if not datasets:
        return ""
    names = listed(f"`{name}`" for name in datasets)
    return f"The rows on {names}, for which no task of ours was run, are in `published_rows.csv` alone."


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
    parts = [f"{share} with {k} entries" for k, share in shares.items()]
    parts[0] = parts[0].replace(" with", " of the predictions with")
    return f"Fixed pruning keeps at least {listed(parts)}"


def sweep_conclusion(swept: pd.DataFrame) -> str:
    """From which length of a list on longer ones change little."""
    near = long_enough(swept)
    fixed = near.get("fixed", max(near.values()))
    shorter = {name: k for name, k in near.items() if k < fixed}
    also = f" Fewer are enough with {listed(f'{_enough(name)} ({k})' for name, k in shorter.items())}."
    return (
        f"Lists of {max(near.values())} entries are long enough for every way of pruning: lists of "
        f"{swept.k.max()} keep at most {100 * NEARLY_ALL:g} percentage points more of the predictions on any "
        f"task.{also if shorter else ''}"
    )


def _enough(rule: str) -> str:
    """What lets a list of the sweep be shorter than a fixed one."""
    if rule == WHOLE_LAST:
        return "a whole last layer"
    return f"{_way(rule)}, whose list begins longer"


def long_enough(swept: pd.DataFrame) -> dict[str, int]:
    """By way of pruning: the shortest list that keeps nearly as many predictions as the longest."""
    near = {}
    for rule, rows in swept.groupby("rule", sort=False):
        kept = rows.pivot(index="k", columns="task", values="same_token")
        lost = (kept.iloc[-1] - kept).max(axis=1)  # [k], on the worst task
        near[rule] = int(lost[lost <= NEARLY_ALL].index.min())
    return near


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


SHADES = {"mini": "#a5a5a5", "t5-base": "#6f6f6f", "t5-large": "#222222"}


def _draw_cost(axis, rows: pd.DataFrame) -> None:
    styles = {
        name: figures.Style(figures.SIZES.get(name, name), SHADES.get(name, figures.BLUE), marker)
        for name, marker in zip(rows["shape"].unique(), "os^Dv", strict=False)
    }
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
    return _by_way(table, ["rule"], ["wanted", "task"], ["cell"])["cell"]


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
    barely = f" (cheaper by at most {100 * saved:.1f} points)" if 0.0005 <= saved < LITTLE else ""
    against = f", against {task_span(plain)} for the margin over all entries" if saved >= 0.0005 else ""
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
    ways = listed(_way(name) for name in places.rule.unique())
    where = on_tasks(places.task.unique(), equal.task.unique())
    whole = equal[(equal.rule == WHOLE_LAST) & (equal.wanted == wanted)]
    reached = whole[~_not_reached(whole, layers)]
    does = set(places.task) <= set(reached.task)
    text = f"With a pruned last layer ({ways}), no threshold keeps {wanted:.1%} of the predictions {where}"
    return f"{text}; with a whole one, some threshold does." if does else f"{text}."


def summary(
    complete: pd.DataFrame, swept: pd.DataFrame, costs: pd.DataFrame, lost: pd.DataFrame, entries: int
) -> str:
    """The chapter in eight sentences at most: how many entries, what is lost, whether a rule gets cheaper."""
    near = long_enough(swept)
    most = max(near.values())
    whole = near.get(WHOLE_LAST, most)
    sentences = [
        f"{'No: of' if most < entries else 'Of'} the {entries:,} entries here, a decision of CALM has to "
        f"score {most} at each layer after the first that decides. Longer lists keep at most "
        f"{100 * NEARLY_ALL:g} percentage points more of the predictions.",
        f"Before a whole last layer, {whole} are enough." if whole < most else "",
        unreachable_conclusion(lost),
        _cheaper(_calm(complete)),
        f"{cost_message(costs)}.",
        "Pruning makes decisions cheaper, not safer; 08 shows which exits keep the quality.",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _cheaper(complete: pd.DataFrame) -> str:
    """The FLOPs of the margin with and without short lists, and where these cost less than full depth."""
    flops = complete.pivot_table(index="task", columns="reduction", values="flops_share", sort=False)
    way = WHOLE_LAST if WHOLE_LAST in flops else "fixed"
    if not {way, "unpruned"} <= set(flops):
        return ""
    below = on_tasks(flops.index[flops[way] < 1], flops.index)
    return (
        f"With the {in_a_sentence(way)}, CALM's outputs cost less than full depth {below}: "
        f"{task_span(flops[way])} of the FLOPs, against {task_span(flops.unpruned)} for the margin over all "
        "entries."
    )
