"""Chapter 03: how many vocabulary entries a decision must score, what the others hold, what it costs."""

from __future__ import annotations

import math
import re

import pandas as pd

from .. import figures
from ..catalogue import PRUNED
from ..prose import listed, on_tasks, span, task_span
from .wording import capitalized, percent_span, some, winners

SHOWN_MODELS = ("calm", "vanilla")  # tables have the pre-trained model too
RECALL_LAYERS = (1, 2, 3, 4, 6, 8)
LITTLE = 0.02  # of a score or of the FLOPs: no difference worth a sentence
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
    opening = "Short lists miss fewest tokens in a model trained for exits: after" if trained else "After"
    return (
        f"A pruned rule cannot predict a token that is not on its list. {opening} layer {layer}, the best "
        f"{top_k} entries hold at least {listed(parts)} final tokens."
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
        first, last = rows.minimum_layer.min(), rows.minimum_layer.max()
        layers = f"layer {first}" if first == last else f"layers {first} to {last}"
        parts.append(f"from {layers} on in {figures.label(name)}")
    return parts


def minimum_message(minimum: pd.DataFrame, precision: float) -> str:
    """The minimum exit layer that the rule gives CALM and vanilla."""
    layers = listed(_minimum_by_model(_of_shown_models(minimum)))
    return f"At least {precision:.0%} of confident predictions stay {layers}"


def minimum_conclusion(honesty: pd.DataFrame, by_rule: pd.DataFrame) -> str:
    """How overconfident layers are, and what exits at the minimum layer keep of an output."""
    worst = honesty.loc[(honesty.confidence - honesty.accuracy).idxmax()]
    where = f"layer {worst.layer} of {figures.label(worst.model)} on {figures.label(worst.task)}"
    text = (
        f"A layer is overconfident where black lies above grey, most of all {where}: a confidence of "
        f"{worst.confidence:.2f} for an agreement of {worst.accuracy:.2f}."
    )
    calm = _calm(by_rule).set_index("task")
    if calm.empty:
        return text
    add_up = ", and errors add up" if calm.retained.min() < 1 - LITTLE else ""
    return (
        f"{text} The minimum layer is a rule on single tokens{add_up}: exits from there on keep "
        f"{task_span(calm.retained)} of CALM's score. Thresholds have to be calibrated on whole outputs (08)."
    )


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
    return capitalized(f"{shorter}{takes}")


def kept_figure(by_layer: pd.DataFrame, note: str = ""):
    """How many entries each way of pruning scores at a layer if no token exits, mean over tasks."""
    means = by_layer.groupby(["rule", "layer"], sort=False, as_index=False).ids.mean()
    figure = figures.facets(
        means.assign(panel=""),
        figures.lines,
        "panel",
        x="layer",
        y="ids",
        ylabel="entries scored",
        width=6.5,
        message="All ways of pruning score the whole vocabulary once; adaptive lists stay long",
        note=note,
    )
    figure.axes[0].set_yscale("log")
    return figure


def _way(rule: str) -> str:
    """A way of pruning the margin, without saying that it is the margin: "fixed pruning"."""
    return re.sub(r"^margin(,| with) ", "", figures.label(rule))


def kept_conclusion(by_layer: pd.DataFrame) -> str:
    """How many entries are left at the last layer, and how many final tokens are lost by then."""
    last = by_layer[by_layer.layer == by_layer.layer.max()]
    entries = last.groupby("rule", sort=False).ids.mean()
    shortest, longest = entries.idxmin(), entries.idxmax()
    lost = some(1 - last.recall.min(), ".2%")
    at_most = f"at most {lost}" if lost[0].isdigit() else lost
    return (
        f"At the last layer, {_way(longest)} still scores {entries[longest]:,.0f} entries and "
        f"{_way(shortest)} {entries[shortest]:.0f}. The lists miss {at_most} of CALM's final tokens."
    )


def table_shown(complete: pd.DataFrame) -> pd.DataFrame:
    """The paper's table, complete: what is retained, FLOPs and changed tokens by model and way of pruning."""
    shown = complete[complete.reduction != "full_depth"]
    columns = {"retained": "score retained", "flops_share": "FLOPs", "other_token": "tokens changed"}
    table = shown.rename(columns=columns).pivot_table(
        index=["model", "task"], columns="reduction", values=list(columns.values()), sort=False
    )
    return table.rename(index=figures.label, columns=figures.label).rename_axis(columns=[None, None]).round(3)


def table_conclusion(complete: pd.DataFrame) -> str:
    """How many tokens pruning changes in each model, and what that does to the score."""
    pruned = complete[complete.reduction.isin(PRUNED)]
    most = pruned.groupby("model", sort=False).other_token.max()
    shown = most[[name for name in SHOWN_MODELS if name in most] or most.index]
    lower = _lower_scores(complete[complete.model.isin(shown.index)])
    where = "Where the lists hold the final tokens, pruning" if lower else "Pruning"
    return (
        f"Against the unpruned run at the same threshold, pruning changes {_changed(shown)}. {lower}"
        f"{where} makes decisions cheaper, not safer. The zeros in the published table are probably list "
        "positions mistaken for token ids (08); each published row rests on ten examples."
    )


def _lower_scores(complete: pd.DataFrame) -> str:
    """Where pruning costs most of the score, for each model in which it costs any; or nothing."""
    kept = complete.pivot_table(index=["model", "task"], columns="reduction", values="retained", sort=False)
    ways = [way for way in PRUNED if way in kept]
    falls = []
    for name, rows in kept.groupby("model", sort=False):
        least = rows[ways].min(axis=1)
        lost = rows["unpruned"].clip(upper=1) - least
        if lost.max() > LITTLE:
            worst = lost.idxmax()
            falls.append(
                f"{figures.label(name)}'s from {rows.unpruned[worst]:.0%} to {least[worst]:.0%} of full "
                f"depth's on {figures.label(worst[1])}"
            )
    return f"Where lists miss final tokens, the score falls too: {listed(falls)}. " if falls else ""


def _changed(shares: pd.Series) -> str:
    """The largest share of tokens that changes in each model: "none of CALM's tokens and up to 2% ..."."""
    parts = []
    for name, share in shares.items():
        amount = some(share, ".1%")
        parts.append(f"{f'up to {share:.1%}' if amount[0].isdigit() else amount} of {figures.label(name)}'s")
    return f"{listed(parts)} tokens"


def times_shown(times: pd.DataFrame) -> pd.DataFrame:
    """Tokens a second, full depth being 1, by batch size and way of pruning."""
    table = times.astype({"speed": float}).pivot_table(
        index=["model", "task"], columns=["batch", "reduction"], values="speed", sort=False
    )
    return table.rename(index=figures.label, columns=figures.label).round(2)


def times_conclusion(times: pd.DataFrame) -> str:
    """Whether pruning is faster than the margin over all entries by the clock."""
    one = _calm(times[times.batch == times.batch.min()]) if len(times) else times
    if one.empty:
        return ""
    speed = one.astype({"speed": float}).pivot(index="task", columns="reduction", values="speed")
    gain = speed.div(speed["unpruned"], axis=0).drop(columns="unpruned").stack()
    slow = gain.max() < 1.02
    why = (
        " At the width of these models, choosing entries and gathering their rows takes as long as scoring "
        "all."
    )
    gains = "nothing" if slow else f"at most {gain.max() - 1:.0%}"
    return (
        f"By the clock pruning gains {gains} here: pruned margins run at "
        f"{span(gain, '{:.2f}')} times the speed of the margin over all entries (CALM, batch "
        f"{one.batch.iloc[0]}).{why if slow else ''}"
    )


def published_conclusion(beside: pd.DataFrame) -> str:
    """How often pruning takes more than half of the score, in the published rows and in ours."""
    rows = beside[beside.reduction.isin(PRUNED)]
    theirs = rows[rows.score_at_full_depth > 0]
    low = theirs.score < theirs.score_at_full_depth / 2
    ours = rows[rows.our_score_unpruned > 0].drop_duplicates(["our_model", "our_task", "reduction"])
    below = ours[ours.our_score < ours.our_score_unpruned / 2]
    whose = f" (all of {listed(f'`{name}`' for name in below.our_model.unique())})" if len(below) else ""
    return (
        f"Pruning takes more than half of the score in {low.sum()} of {len(low)} published settings "
        f"({(theirs.score == 0).sum()} with a score of 0)"
        f"{f' and in {len(below)} of our {len(ours)}{whose}' if len(ours) else ''}."
    )


def published_shown(beside: pd.DataFrame) -> pd.DataFrame:
    """The paper's rows beside ours, and why they differ."""
    theirs = ["score", "score_at_full_depth"]
    ours = ["our_task", "our_score", "our_score_unpruned"]
    seconds = ["seconds", "our_seconds", "samples_per_second", "our_samples_per_second"]
    columns = ["model", "dataset", "reduction", *theirs, *ours, *seconds, "why_they_differ"]
    return beside[columns].round(1)


def sweep_figure(swept: pd.DataFrame, top_k: int, note: str = ""):
    """Predictions that stay those of full depth, by the length of the list."""
    lowest = min(0.95, swept.same_token.min())
    figure = figures.facets(
        swept,
        _draw_sweep,
        "rule",
        top_k=top_k,
        xlabel="entries kept: k (fixed), k* (decaying)",
        ylabel="predictions that stay",
        width=4.4,
        message=sweep_message(swept, top_k),
        note=note,
    )
    _log_axis(figure)
    figure.axes[0].set_ylim(lowest - 0.005, 1.002)
    return figure


def _draw_sweep(axis, rows: pd.DataFrame, top_k: int) -> None:
    figures.lines(axis, rows, "k", "same_token", "task", ("same_token_low", "same_token_high"))
    axis.axvline(
        top_k, color=figures.BLUE, linestyle=":", linewidth=1.2, label=f"{top_k} entries, as elsewhere here"
    )


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
    longer = near.get("fixed", 0) > near.get("decaying", math.inf)
    shorter = f" A decaying list may end shorter ({near['decaying']} entries), since it begins longer."
    return (
        f"Lists of {max(near.values())} entries are long enough for both ways of pruning: lists of "
        f"{swept.k.max()} keep at most half a percentage point more of the predictions on any task."
        f"{shorter if longer else ''}"
    )


def long_enough(swept: pd.DataFrame) -> dict[str, int]:
    """By way of pruning: the shortest list that keeps nearly as many predictions as the longest."""
    near = {}
    for rule, rows in swept.groupby("rule", sort=False):
        least = rows.groupby("k").same_token.min()
        near[rule] = int(least[least >= least.iloc[-1] - 0.005].index.min())
    return near


def cost_figure(costs: pd.DataFrame, note: str = ""):
    """The cost of one decision in layers, and the exit depth below which it pays, by entries scored."""
    quantities = {"share_of_layer": "one decision, in layers", "break_even": "break-even exit / depth"}
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
        name: figures.Style(name, SHADES.get(name, figures.BLUE), marker)
        for name, marker in zip(rows["shape"].unique(), "os^Dv", strict=False)
    }
    figures.lines(axis, rows, "ids", "value", "shape", styles=styles)


def cost_message(costs: pd.DataFrame) -> str:
    """What a decision over the whole vocabulary of T5-large costs, and up to which depth it pays."""
    large = costs[costs["shape"] == "t5-large"].sort_values("ids").iloc[-1]
    return (
        f"At T5-large's size, a decision over all {large.ids:,} entries costs {large.share_of_layer:.1f} "
        f"layers and pays off only if tokens exit before {large.break_even:.0%} of the depth"
    )


def cost_conclusion(costs: pd.DataFrame, entries: int = 256) -> str:
    """What pruning does to that cost."""
    large = costs[(costs["shape"] == "t5-large") & (costs.ids == entries)]
    if large.empty:
        return ""
    row = large.iloc[0]
    return (
        f"Over {entries} entries, the same decision costs {row.share_of_layer:.2f} layers and pays off if "
        f"tokens exit before {row.break_even:.0%} of the depth. This counts operations; no large model was "
        "decoded here (04 times one decision at this size)."
    )


def equal_conclusion(equal: pd.DataFrame, wanted: float = 0.99) -> str:
    """The cheapest way of pruning at equal quality, by task."""
    rows = equal[(equal.wanted == wanted) & equal.flops_share.notna()]
    rows = rows[rows.rule.isin(["unpruned", *PRUNED])]
    if rows.empty:
        return ""
    best = rows.loc[rows.groupby("task", sort=False).flops_share.idxmin()].set_index("task")
    plain = rows[rows.rule == "unpruned"].set_index("task").flops_share
    saved = (plain - best.flops_share).max()
    barely = f", but by at most {100 * saved:.1f} points" if 0.0005 <= saved < LITTLE else ""
    against = f", against {task_span(plain)} for the margin over all entries" if saved >= 0.0005 else ""
    return (
        f"Where {wanted:.0%} of the predictions at the exits are those of full depth, the cheapest rule is "
        f"{winners(best.reset_index())}{barely}: {task_span(best.flops_share)} of the FLOPs of full depth"
        f"{against}."
    )


def summary(
    complete: pd.DataFrame, swept: pd.DataFrame, costs: pd.DataFrame, top_k: int, entries: int
) -> str:
    """The chapter in five sentences at most: how many entries, what is lost, whether a rule gets cheaper."""
    most = max(long_enough(swept).values())
    changed = complete[complete.reduction == "fixed"].groupby("model").other_token.max()
    changed = changed[[name for name in SHOWN_MODELS if name in changed]]
    sentences = [
        f"{'No: of' if most < entries else 'Of'} the {entries:,} entries here, a decision has to score "
        f"{most} at the layers after the first: longer lists keep at most half a point more of CALM's "
        "predictions.",
        f"A fixed list of {top_k} changes {_changed(changed)}." if len(changed) else "",
        _cheaper(_calm(complete)),
        f"{cost_message(costs)}.",
        "Pruning makes decisions cheaper, not safer; 08 shows which exits keep the quality.",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _cheaper(complete: pd.DataFrame) -> str:
    """The FLOPs of the margin with and without fixed pruning, and where it costs less than full depth."""
    flops = complete.pivot_table(index="task", columns="reduction", values="flops_share", sort=False)
    if not {"fixed", "unpruned"} <= set(flops):
        return ""
    below = on_tasks(flops.index[flops.fixed < 1], flops.index)
    return (
        f"With it, CALM's outputs cost less than full depth {below}: {task_span(flops.fixed)} of the FLOPs, "
        f"against {task_span(flops.unpruned)} for the margin over all entries."
    )
