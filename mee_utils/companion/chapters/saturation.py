"""Chapter 02: which tokens are easy, by similarity, by loss, and by how they were generated."""

from __future__ import annotations

import pandas as pd

from ...analysis.saturation import LEAST_PREFIXES
from ...tasks.synthetic.words import DIFFICULTIES
from .. import figures
from ..prose import listed, on_tasks, span, task_span
from .wording import capitalized, percent_span

TRUE_DIFFICULTY = (
    "In synthetic data, what it takes to produce a token is known by construction. Above: the layer from "
    "which the prediction is final; below: the first layer whose state is similar to the last layer's. "
    "Difficulties are ordered from easy to hard, as the generator defines them; those with fewer than "
    f"{LEAST_PREFIXES} tokens are left out."
)
SHOWN_MODELS = ("calm", "vanilla")  # the two that differ most; tables have all
LONGER = 1.5  # from this multiple on a prefix is called longer, as in the chapter's statements
MORE_OFTEN = 0.1  # difference of two shares that counts
WEAK = 0.4  # a rank correlation below this predicts little
SELECTIONS = {"mean_similarity": "by similarity", "loss": "by loss"}


def table_shown(table_1: pd.DataFrame) -> pd.DataFrame:
    """Easy against difficult prefixes of CALM, with readable names."""
    rows = table_1[table_1.model == "calm"]
    return (
        rows.pivot(index="property", columns=["task", "group"], values="mean")
        .rename(index=_property)
        .round(2)
    )


PROPERTIES = {  # rows of table 1, in words
    "prefix_tokens": "prefix length",
    "similar_states": "layers with a similar state",
    "rises_after_0": "similarity rises strictly from the first layer on",
}


def _property(name: str) -> str:
    later = name.removeprefix("rises_after_")
    rises = f"similarity rises strictly after layer {later}"
    return PROPERTIES.get(name, rises if later != name else figures.label(name))


def beside_shown(beside: pd.DataFrame) -> pd.DataFrame:
    """The published table and ours in the same units, mean and standard deviation in one cell."""
    spread = [f" (sd {value:.0f})" if value == value else "" for value in beside.standard_deviation]
    cells = [f"{mean:.0f}{text}" for mean, text in zip(beside["mean"], spread, strict=True)]
    named = beside.assign(cell=cells, property=beside.property.map(_property) + ", " + beside.unit)
    table = named.pivot(index="property", columns=["task", "group"], values="cell")
    return table.reindex(columns=list(dict.fromkeys(zip(named.task, named.group, strict=True)))).rename(
        columns=figures.label
    )


def table_conclusion(table_1: pd.DataFrame, layers: int) -> str:
    """What of the published contrast between easy and difficult prefixes CALM shows: depth, length, rise."""
    means = {
        name: table_1[(table_1.model == "calm") & (table_1.property == name)].pivot(
            index="task", columns="group", values="mean"
        )
        for name in ("first_similar", "prefix_tokens", "rises_after_0")
    }
    share = means["first_similar"] / layers
    if share.empty:
        return ""
    apart = share.difficult - share.easy
    smaller = (
        "In depth, the contrast has the published direction but is smaller: d"
        if apart.between(0, 0.41).all()
        else "D"
    )
    return (
        f"{smaller}ifficult prefixes have their first similar state after {percent_span(share.difficult)} of "
        f"the depth (published: 81%), easy ones after {percent_span(share.easy)} (published: 40%)."
        f"{_length_and_rise(means['prefix_tokens'], means['rises_after_0'])} Models and corpora differ, and "
        "prefixes here are far shorter."
    )


def _length_and_rise(tokens: pd.DataFrame, rising: pd.DataFrame) -> str:
    """On which tasks easy prefixes are longer, and rise strictly more often, as published; else nothing.

    Args:
        tokens: mean length, a row a task, a column a group.
        rising: the share whose similarity rises strictly from the first layer on, in the same form.
    """
    if tokens.empty or rising.empty:
        return ""
    longer = tokens.index[tokens.easy >= LONGER * tokens.difficult]
    more = rising.index[rising.easy - rising.difficult >= MORE_OFTEN]
    opening = "" if len(longer) or len(more) else " Length and strict rise are not reproduced."
    return (
        f"{opening} Easy prefixes are clearly longer than difficult ones (by half or more; published: 58 "
        f"against 11 tokens) {on_tasks(longer, tokens.index)}. Similarity rises strictly from "
        f"the first layer for {percent_span(rising.easy)} of the easy and {percent_span(rising.difficult)} "
        "of the difficult prefixes (published: 24% against 3%); the share of easy ones is clearly larger "
        f"{on_tasks(more, rising.index)}."
    )


def reached_figure(by_layer: pd.DataFrame, note: str = ""):
    """Per layer: the share of prefixes with a similar state, and of those with their final prediction."""
    models = [name for name in SHOWN_MODELS if name in set(by_layer.model)] or list(by_layer.model.unique())[
        :2
    ]
    return figures.facets(
        by_layer[by_layer.model.isin(models)],
        _draw_reached,
        row="model",
        ylabel="share of prefixes",
        height=2.3,
        message=reached_message(by_layer),
        note=note,
    )


def _draw_reached(axis, rows: pd.DataFrame) -> None:
    colour = figures.STYLES[rows.model.iloc[0]].colour
    figures.lines(axis, rows, "layer", "share", "depth", figures.BAND, colour=colour)


def reached_message(by_layer: pd.DataFrame) -> str:
    """How many predictions of CALM are final when how few states are similar."""
    final, similar = _at_a_third(by_layer)
    if final.empty:
        return ""
    layer = by_layer.layer.max() // 3
    return (
        f"After layer {layer}, at least {final.min():.0%} of CALM's predictions are final, but "
        f"{_few(similar)} of its states are similar to the last layer's"
    )


def _few(shares: pd.Series) -> str:
    """The largest of some shares: "at most 12%", "almost none", "none"."""
    if shares.max() == 0:
        return "none"
    return f"at most {shares.max():.0%}" if shares.max() >= 0.005 else "almost none"


def _at_a_third(by_layer: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """By task, of CALM after a third of the depth: the shares of final predictions and of similar states."""
    rows = by_layer[(by_layer.layer == by_layer.layer.max() // 3) & (by_layer.model == "calm")]
    shares = rows.pivot(index="task", columns="depth", values="share").reindex(by_layer.task.unique())
    shares = shares.reindex(columns=["settled_from", "first_similar"]).dropna()
    return shares.settled_from, shares.first_similar


def reached_conclusion(by_layer: pd.DataFrame) -> str:
    """An exit need not wait for a similar state."""
    final, similar = _at_a_third(by_layer)
    if final.empty:
        return ""
    return (
        "An exit need not wait for a similar state: a state can be far from the last layer's and already "
        f"predict the same token. After layer {by_layer.layer.max() // 3}, {task_span(final)} of CALM's "
        f"predictions are final, and {_few(similar)} of its states are similar to the last layer's."
    )


def prefixes_figure(drawn: pd.DataFrame, threshold: float, note: str = ""):
    """The similarity of individual easy and difficult prefixes of CALM by layer, each named by its token."""
    return figures.facets(
        drawn,
        _draw_prefixes,
        threshold=threshold,
        ylabel="cosine with the\nlast layer's state",
        message=prefixes_message(drawn, threshold),
        note=note,
    )


def _draw_prefixes(axis, rows: pd.DataFrame, threshold: float) -> None:
    curves = []
    for group, members in rows.groupby("group", sort=False):
        style = figures.STYLES[group]
        for marker, (_, part) in zip("o^s", members.groupby("example", sort=False), strict=False):
            look = {"color": style.colour, "dashes": style.dashes, "marker": marker, "linewidth": 1.2}
            curves += axis.plot(part.layer, part.similarity, **look)
    tokens = [f'"{token}"' for token in rows.drop_duplicates(["group", "example"]).token]
    axis.axhline(threshold, color=figures.GREY, linewidth=0.8, linestyle=":", label=f"threshold {threshold}")
    axis.legend(curves, tokens, ncols=2, loc="lower right", fontsize=8, title="easy            difficult")
    axis.get_legend().get_title().set_fontsize(8)
    figures.layer_axis(axis, rows.layer.max())


def prefixes_message(drawn: pd.DataFrame, threshold: float) -> str:
    """From which layer on the shown prefixes are similar."""
    reached = drawn[drawn.similarity >= threshold].groupby(["group", "task", "example"]).layer.min()
    layers = reached.groupby("group").agg(["min", "max"])
    spans = layers.apply(lambda row: span(row, "{:.0f}"), axis=1)
    parts = [
        f"{group} {noun} at layers {spans[group]}"
        for group, noun in (("easy", "ones become similar"), ("difficult", "ones"))
        if group in spans.index
    ]
    return f"Of these prefixes of CALM, {', '.join(parts)}"


def prefixes_conclusion(drawn: pd.DataFrame) -> str:
    """How similar the shown prefixes are after the first layer."""
    first = drawn[drawn.layer == drawn.layer.min()].groupby("group").similarity.agg(["min", "max"])
    parts = [
        f"{first['min'][group]:.2f} to {first['max'][group]:.2f} for the {group} prefixes"
        for group in ("easy", "difficult")
        if group in first.index
    ]
    return (
        f"The two kinds differ from the first layer on, where the cosine is {listed(parts)}: they were "
        "selected by this very similarity."
    )


def circularity_figure(curves: pd.DataFrame, note: str = ""):
    """Similarity by layer of easy and difficult prefixes, selected by similarity and by loss."""
    shown = curves[curves.selected_by.isin(SELECTIONS)]
    return figures.facets(
        shown.assign(selected="selected " + shown.selected_by.map(SELECTIONS)),
        figures.lines,
        row="selected",
        x="layer",
        y="similarity",
        by="group",
        band=figures.BAND,
        ylabel="cosine with the\nlast layer's state",
        height=2.3,
        message=circularity_message(shown),
        note=note,
    )


def circularity_message(curves: pd.DataFrame) -> str:
    """How much of the contrast in similarity is left if prefixes are selected by loss."""
    keys = ["selected_by", "task", "layer"]
    means = curves.pivot(index=keys, columns="group", values="similarity")
    apart = (means.easy - means.difficult).groupby("selected_by").mean()
    if not set(SELECTIONS) <= set(apart.index):
        return "Selecting by similarity builds the contrast in"
    left = max(apart.loss / apart.mean_similarity, 0)
    return (
        f"Selecting by similarity builds the contrast in; selecting by loss leaves {left:.0%} of the mean "
        "gap in cosine"
    )


def gaps(compared: pd.DataFrame, model: str = "calm") -> pd.DataFrame:
    """How many layers later difficult prefixes become similar and settle, by task and selection."""
    rows = compared[(compared.model == model) & compared.property.isin(["first_similar", "settled_from"])]
    if rows.empty:
        return pd.DataFrame()
    means = rows.pivot(index=["task", "selected_by", "property"], columns="group", values="mean")
    later = (means.difficult - means.easy).unstack("property")
    return later.reindex(list(dict.fromkeys(zip(rows.task, rows.selected_by, strict=True))))


def gaps_shown(compared: pd.DataFrame) -> pd.DataFrame:
    """`gaps` with readable names."""
    names = {
        "first_similar": "becomes similar, layers later",
        "settled_from": "prediction is final, layers later",
    }
    return gaps(compared).rename(index=figures.label, columns=names).rename_axis(columns=None).round(2)


def circularity_conclusion(compared: pd.DataFrame) -> str:
    """What is left of the contrast once prefixes are selected by loss."""
    later = gaps(compared)
    if later.empty:
        return ""
    by_similarity = later.xs("mean_similarity", level="selected_by").settled_from
    later = later.xs("loss", level="selected_by")
    differ = later.abs().mean()
    opening = ""
    if differ.settled_from > differ.first_similar:
        opening = (
            "When tokens are selected by loss, they differ more in when their prediction becomes final than "
            "in when their state saturates. "
        )
    return (
        f"{opening}CALM's tokens of high loss reach their final prediction {_later(later.settled_from)} than "
        f"those of low loss, and their first similar state {_later(later.first_similar)}. "
        f"{_ease(by_similarity, later.settled_from)}"
    )


def _ease(by_similarity: pd.Series, by_loss: pd.Series) -> str:
    """What similarity says about ease: how far selected prefixes are apart in their final predictions.

    Args:
        by_similarity: how many layers later difficult prefixes reach their final prediction, by task.
        by_loss: the same of prefixes selected by loss.
    """
    less = by_similarity.index[by_similarity < by_loss]
    if not len(less):
        return f"With a selection by similarity they differ no less: {_later(by_similarity)}."
    return (
        "Similarity reflects ease only in part: difficult prefixes selected by it reach their final "
        f"prediction {_later(by_similarity)}. This is less than with a selection by loss "
        f"{on_tasks(less, by_similarity.index)}."
    )


def _later(layers: pd.Series) -> str:
    """ "0.5 (translation) to 1.2 layers later", "earlier", or with signs where tasks differ in direction."""
    if layers.min() >= 0:
        return f"{task_span(layers, '.1f')} layers later"
    if layers.max() <= 0:
        return f"{task_span(-layers, '.1f')} layers earlier"
    return f"{task_span(layers, '+z.1f')} layers later (negative: earlier)"


def depth_conclusion(depth: pd.DataFrame) -> str:
    """What predicts the layer from which CALM's predictions are final, and its first similar state."""
    similar = depth[(depth.model == "calm") & (depth.depth == "first_similar")]
    if similar.empty:
        return best_predictor(depth)
    most = similar.spearman.abs().max()
    best = similar.loc[similar.spearman.abs().idxmax()]
    said = (
        " No property predicts the first similar state well: rank correlations are at most "
        f"{most:.2f} in magnitude."
    )
    if most >= WEAK:
        said = (
            f" The first similar state is best predicted by {_property_of_token(best.measure)} on "
            f"{figures.label(best.task)} ({best.spearman:+z.2f})."
        )
    return f"{best_predictor(depth)}{said}"


def best_predictor(depth: pd.DataFrame) -> str:
    """What predicts best from which layer on CALM's predictions are final, task by task, in a sentence."""
    rows = depth[(depth.model == "calm") & (depth.depth == "settled_from")]
    if rows.empty:
        return ""
    table = rows.pivot(index="task", columns="measure", values="spearman").reindex(rows.task.unique())
    strongest = table.abs().idxmax(axis=1)
    first, *others = strongest.value_counts().index
    on_first = table.index[strongest == first]
    text = (
        f"{capitalized(_property_of_token(first))} best predicts when a prediction becomes final "
        f"{on_tasks(on_first, table.index)} (rank correlation {span(table[first][on_first], '{:+z.2f}')})"
    )
    for other in others:
        tasks = table.index[strongest == other]
        text += (
            f"; {on_tasks(tasks, table.index)}, {_property_of_token(other)} does "
            f"({span(table[other][tasks], '{:+z.2f}')} against {span(table[first][tasks], '{:+z.2f}')})"
        )
    return f"{text}."


def _property_of_token(measure: str) -> str:
    return _NAMES.get(measure, figures.label(measure))


_NAMES = {
    "loss": "the model's own loss",
    "log_frequency": "the frequency of the token",
    "prefix_tokens": "the position of the token",
}


def difficulty_figure(by_difficulty: pd.DataFrame, note: str = ""):
    """How deep each kind of token goes until its prediction is final, and until its state is similar."""
    names = {"settled_from": "prediction is final", "first_similar": "state is similar"}
    shown = by_difficulty[by_difficulty.model.isin(SHOWN_MODELS)]
    return figures.facets(
        shown.assign(until=shown.depth.map(names)),
        figures.grouped_bars,
        row="until",
        x="difficulty",
        y="mean_layer",
        rotation=30,
        ylabel="mean layer",
        sharex="col",
        width=4.0,
        height=2.5,
        message=difficulty_message(by_difficulty),
        note=note,
    )


def difficulty_message(by_difficulty: pd.DataFrame) -> str:
    """The kinds of tokens whose predictions take CALM most and least layers."""
    rows = by_difficulty[(by_difficulty.model == "calm") & (by_difficulty.depth == "settled_from")]
    if rows.empty:
        return ""
    ordered = rows.groupby("difficulty").mean_layer.mean().sort_values()
    least, most = (figures.label(name) for name in (ordered.index[0], ordered.index[-1]))
    return (
        f"In CALM, {least} tokens are final first (layer {ordered.iloc[0]:.1f}), "
        f"{most} ones last (layer {ordered.iloc[-1]:.1f})"
    )


def difficulty_conclusion(by_difficulty: pd.DataFrame) -> str:
    """How far the kinds of tokens are apart in CALM, in layers, by each of the two depths."""
    rows = by_difficulty[by_difficulty.model == "calm"]
    if rows.empty:
        return ""
    means = rows.groupby(["depth", "difficulty"], observed=True).mean_layer.mean().unstack("depth")
    apart = means.max() - means.min()
    order = pd.Series(range(len(DIFFICULTIES)), index=list(DIFFICULTIES), dtype=float)
    follows = {depth: layers.corr(order, method="spearman") for depth, layers in means.items()}
    texts = [
        f"{name} (up to {apart[depth]:.1f} layers between kinds; rank correlation {follows[depth]:+z.2f})"
        for depth, name in (
            ("settled_from", "the layer of CALM's final prediction"),
            ("first_similar", "that of its first similar state"),
        )
    ]
    strong = [follow > 0.5 for follow in follows.values()]
    if all(strong) or not any(strong):
        verb = "follow" if all(strong) else "do not follow"
        return f"{capitalized(texts[0])} and {texts[1]} {verb} the order of difficulty."
    does = ["follows", "does not"] if follows["settled_from"] > 0.5 else ["does not follow", "does"]
    return f"{capitalized(texts[0])} {does[0]} the order of difficulty; {texts[1]} {does[1]}."


def difficulty_beside_loss(depth: pd.DataFrame) -> str:
    """Whether the layer of CALM's final prediction follows true difficulty less closely than loss.

    Args:
        depth: from `saturation.associations`, of the measures "true_difficulty" and "loss".
    """
    rows = depth[(depth.model == "calm") & (depth.depth == "settled_from")]
    if rows.empty:
        return ""
    table = rows.pivot(index="task", columns="measure", values="spearman").reindex(rows.task.unique())
    less = table.index[table.true_difficulty < table.loss]
    return (
        "Token by token, the layer of CALM's final prediction follows true difficulty less closely than loss "
        f"{on_tasks(less, table.index)} (rank correlation {task_span(table.true_difficulty, '+z.2f')}, "
        f"against {task_span(table.loss, '+z.2f')})."
    )


def confident_conclusion(confident: pd.DataFrame, thirds: pd.DataFrame, by_layer: pd.DataFrame) -> str:
    """Whether confident tokens have similar states, and whether tokens get easier along an output."""
    calm = confident[confident.model == "calm"].set_index("task")
    if calm.empty:
        return ""
    layer = by_layer.layer.max() // 3
    _, similar = _at_a_third(by_layer)
    sure = f"{task_span(calm.sure)} of CALM's tokens are already confident"
    said = f"At layer {layer} no state is similar yet, but {sure}."
    if similar.max() > 0:
        said = (
            f"At layer {layer}, {sure}; of these, {percent_span(calm.unsaturated)} have no similar state "
            f"yet, of all tokens {percent_span(1 - similar)}."
        )
    return f"Confidence does not require saturation. {said} {_entropy_along(thirds)}"


def _entropy_along(thirds: pd.DataFrame) -> str:
    """How the entropy of CALM's last layer goes from the first to the last third of an output."""
    entropy = thirds[thirds.model == "calm"].pivot(index="task", columns="part", values="entropy")
    entropy = entropy.reindex(thirds.task.unique())
    first = entropy.iloc[:, 0]
    last = entropy.iloc[:, -1]
    parts = [
        f"from {first[task]:.3f} to {last[task]:.3f} nats on {figures.label(task)}" for task in entropy.index
    ]
    falling = entropy.index[last < first]
    only = " only" if 0 < len(falling) < len(entropy) else ""
    return (
        f"From the first to the last third of an output, the last layer's mean entropy goes {listed(parts)}: "
        f"it becomes more certain {on_tasks(falling, entropy.index)}{only}."
    )


def summary(by_layer: pd.DataFrame, compared: pd.DataFrame, depth: pd.DataFrame) -> str:
    """The chapter in a few sentences."""
    sentences = [
        f"{reached_message(by_layer)}." if reached_message(by_layer) else "",
        circularity_conclusion(compared),
        best_predictor(depth),
        "All of this is measured at full depth on reference outputs.",
    ]
    return " ".join(sentence for sentence in sentences if sentence)
