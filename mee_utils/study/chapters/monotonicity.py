"""Chapter 01: from which layer on predictions are final, and how confidence gets there."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from .. import figures
from ..drawing import predictions_figure
from ..prose import listed, on_tasks, span, task_span
from .wording import capitalized, percent_span

PUBLISHED = {
    2 / 12: 0.75,
    4 / 12: 0.90,
}  # MEE, CALM on BigPatent: share of the depth -> share of final tokens
PAPER_MODELS = ("vanilla", "calm", "free")
LEAST_EXCESS = 0.005  # of confidence over accuracy: what two digits show
CLEAR_EXCESS = 0.05  # what the eye sees in the figure
LEAST_IN_A_BIN = 20  # tokens, or it is not drawn
EXPECTED = ("calm", "late_weighted", "free", "vanilla")  # order in which predictions become final
KINDS = {"strictly rising": "rises at\nevery layer", "never falling": "never falls"}


def settled_figure(stable: pd.DataFrame, note: str = ""):
    """MEE's Figure 1 with the published points: the share of predictions that are final after each layer."""
    return figures.facets(
        stable,
        _draw_settled,
        ylabel="share of tokens whose\nprediction is final",
        message=settled_message(stable),
        note=figures.small_print(note, "crosses: MEE on BigPatent"),
    )


def _draw_settled(axis, rows: pd.DataFrame) -> None:
    figures.lines(axis, rows, "layer", "share", "model", figures.BAND)
    layers = rows.layer.max()
    points = [share * layers for share in PUBLISHED]
    look = {"color": figures.STYLES["calm"].colour, "markeredgecolor": "black", "markeredgewidth": 0.6}
    axis.plot(
        points, list(PUBLISHED.values()), "X", markersize=9, **look, label="CALM as published", zorder=3
    )


def settled_message(stable: pd.DataFrame) -> str:
    """How many predictions of CALM and of vanilla are final after a third of the depth."""
    layer, shares = _final_after_a_third(stable)
    parts = [f"{numbers} of {figures.label(name)}'s" for name, numbers in shares.items()]
    return f"After layer {layer}, {listed(parts)} predictions are final" if parts else ""


def _final_after_a_third(stable: pd.DataFrame) -> tuple[int, dict[str, str]]:
    """A third of the depth, and the shares of final predictions there of CALM and of vanilla, in words."""
    layer = stable.layer.max() // 3
    after = {name: rows.share for name, rows in stable[stable.layer == layer].groupby("model")}
    return layer, {name: percent_span(after[name]) for name in ("calm", "vanilla") if name in after}


def settled_conclusion(stable: pd.DataFrame, gain: pd.DataFrame, spread: pd.DataFrame) -> str:
    """By how many layers the objectives settle earlier than vanilla, and what another training changes.

    Args:
        stable: as `drawing.settled_table` returns it.
        gain: layers earlier than vanilla, by task and model.
        spread: mean settling layer over seeds, with the least and the largest.
    """
    if gain.empty:
        return ""
    first = gain.groupby("model", sort=False).layers_earlier.mean().idxmax()
    layers_earlier = gain[gain.model == first].layers_earlier
    text = (
        "Where earlier layers are supervised, predictions become final earlier than under vanilla, most of "
        f"all under {figures.label(first)}: by {span(layers_earlier, '{:.1f}')} layers."
    )
    if len(spread):
        widest = (spread.high - spread.low).max()
        text += f" Another seed moves the mean layer by at most {widest:.2f} layers."
    text += _early_order(stable)
    layers = stable.layer.max()
    early = round(layers / 6)  # as layer 2 of 12, published
    ours = stable[(stable.model == "calm") & (stable.layer == early)].set_index("task").share
    if len(ours):
        text += (
            f" After layer {early} of {layers}, {task_span(ours)} of CALM's predictions are final; MEE "
            f"reports {PUBLISHED[2 / 12]:.0%} on BigPatent."
        )
    return text


def _early_order(stable: pd.DataFrame) -> str:
    """In which order the objectives have their predictions final in the first quarter of the layers."""
    last = stable.layer.max() // 4
    means = stable[stable.layer <= last].groupby("model").share.mean()
    if not set(EXPECTED) <= set(means.index):
        return ""
    order = list(means[list(EXPECTED)].sort_values(ascending=False, kind="stable").index)
    most, *others = map(figures.label, order)
    said = "as expected" if order == list(EXPECTED) else "not the expected order"
    return (
        f" Up to layer {last}, the share of final predictions is largest under {most}, then under "
        f"{listed(others)}: {said}."
    )


def confidence_figure(confidence: pd.DataFrame, note: str = ""):
    """MEE's Figure 2: mean and spread over tokens of the probability of the final prediction."""
    quantities = {
        "confidence": "mean probability of\nthe final prediction",
        "standard_deviation": "standard deviation\nover tokens",
    }
    return figures.facets(
        confidence,
        figures.lines,
        x="layer",
        by="model",
        quantities=quantities,
        sharey="row",
        height=2.3,
        message=confidence_message(confidence),
        note=note,
    )


def dips(confidence: pd.DataFrame, model: str = "free") -> pd.Series:
    """By task: how far the mean confidence of a model falls from one of its layers to a later one."""
    rows = confidence[confidence.model == model].sort_values("layer")
    fallen = {}
    for task, part in rows.groupby("task", sort=False):
        fallen[task] = (part.confidence.cummax() - part.confidence).max()
    return pd.Series(fallen, dtype=float)


def confidence_message(confidence: pd.DataFrame) -> str:
    """Where the mean confidence of CALM and of vanilla passes one half."""
    sure = confidence[confidence.confidence > 0.5]
    parts = []
    for name in ("calm", "vanilla"):
        first = sure[sure.model == name].groupby("task").layer.min()
        if len(first):
            between = f"layers {first.min()} to {first.max()}"
            if first.min() == first.max():
                between = f"layer {first.min()}"
            parts.append(f"at {between} under {figures.label(name)}")
    return f"The mean confidence passes one half {listed(parts)}" if parts else ""


def confidence_conclusion(confidence: pd.DataFrame) -> str:
    """Whether FREE's confidence dips after its exit, as published."""
    fallen = dips(confidence)
    if fallen.empty:
        return ""
    where = on_tasks(fallen[fallen > 0.01].index, list(confidence.task.unique()))
    calm = dips(confidence, "calm")
    beside = ""
    if len(calm):
        beside = "; CALM's never falls" if calm.max() < 0.005 else f"; CALM's by up to {calm.max():.2f}"
    return (
        f"MEE reports that FREE's mean confidence dips after its exit. Here it does so {where}, by up to "
        f"{fallen.max():.2f}{beside}. The standard deviation is large: a mean says little about an "
        "individual token."
    )


def token_figure(predicted: pd.DataFrame, task: str, sentence: str = "", note: str = ""):
    """MEE's Figure 3: the three most probable tokens of every layer of each model, for one token.

    Args:
        predicted: as `monotonicity.predictions` returns it, of several models.
        task: that the token is from.
        sentence: the token in its sentence, where it may be shown.
        note: as in `figures.facets`.
    """
    return predictions_figure(
        predicted, per_line=1, message=token_message(predicted, task, sentence), note=note
    )


def token_message(predicted: pd.DataFrame, task: str, sentence: str = "") -> str:
    """From which layer on each model predicts the token that it ends with."""
    top = predicted[(predicted["rank"] == 1) & (predicted.layer == predicted.layer.max())]
    ends = pd.DataFrame({"layer": final_layers(predicted), "token": top.set_index("model").token})
    parts = []
    said = ""
    for (layer, token), rows in ends.groupby(["layer", "token"], sort=False):
        verb = "" if parts else " is final"
        subject = "" if token == said else f'"{token.removeprefix("_")}"{verb} '
        parts.append(f"{subject}from layer {layer} on in {listed(map(figures.label, rows.index))}")
        said = token
    *others, last = parts
    text = f"{', '.join(others)}, and {last}" if others else last
    where = (
        f'{capitalized(figures.label(task))}, "{sentence}"' if sentence else capitalized(figures.label(task))
    )
    return f"{where}: {text}".replace("$", r"\$")  # else it begins a formula


def final_layers(predicted: pd.DataFrame) -> pd.Series:
    """By model: the layer from which on its first choice is the last layer's."""
    layers = {}
    for name, rows in predicted[predicted["rank"] == 1].groupby("model", sort=False):
        ordered = rows.sort_values("layer")
        other = ordered[ordered.token != ordered.token.iloc[-1]]
        layers[name] = 1 if other.empty else other.layer.max() + 1
    return pd.Series(layers, dtype=int)


def tokens_conclusion(predicted: pd.DataFrame) -> str:
    """Which models keep what their first layer predicts of a token, and which abandon it."""
    top = predicted[predicted["rank"] == 1]
    first = top[top.layer == 1].set_index("model")
    final = top[top.layer == top.layer.max()].set_index("model").token
    same = first.token == final[first.index]
    throughout = final_layers(predicted)[first.index] == 1
    abandoned = first.probability[~same]
    doings = [
        ("keep {} throughout", first.index[throughout]),
        ("abandon {} and return to it", first.index[same & ~throughout]),
        (f"permanently abandon {{}}{_whatever(abandoned)}", abandoned.index),
    ]
    parts = []
    for doing, models in doings:
        if len(models):
            choice = "it" if parts else "layer 1's first choice"
            parts.append(_do(models, doing.format(choice), len(first)))
    return f"In the last figure, {'; '.join(parts)}."


def _do(models: Sequence[str], doing: str, number: int) -> str:
    """What some of a number of models do: "CALM and FREE keep it", "CALM abandons it and returns to it"."""
    if len(models) == 1:
        doing = re.sub(r"\b(keep|abandon|return)\b", r"\1s", doing)
    names = "all models" if len(models) == number > 1 else listed(map(figures.label, models))
    return f"{names} {doing}"


def _whatever(probability: pd.Series) -> str:
    """How probable the choices are that are abandoned."""
    if probability.empty:
        return ""
    if probability.max() > 0.5 > probability.min():
        return f", whatever its probability there ({span(probability)})"
    return f" (probability {span(probability)} there)"


def monotonic_figure(strict: pd.DataFrame, note: str = ""):
    """The share of tokens whose confidence rises at every layer, and of those of which it never falls."""
    shown = strict[strict.after_layer == 0]
    return figures.facets(
        shown.assign(span=shown.kind.map(KINDS)),
        figures.grouped_bars,
        x="span",
        y="share",
        ylabel="share of tokens",
        message=monotonic_message(strict),
        note=note,
    )


def most_monotonic(strict: pd.DataFrame, kind: str) -> pd.Series:
    """By task: the model with the largest share of tokens of a kind, from layer 1 on."""
    rows = strict[(strict.after_layer == 0) & (strict.kind == kind)]
    largest = rows.loc[rows.groupby("task", sort=False).share.idxmax()]
    return largest.set_index("task").model


def monotonic_message(strict: pd.DataFrame) -> str:
    """Which model has the most tokens whose confidence never falls, by task."""
    first = most_monotonic(strict, "never falling")
    tasks = list(strict.task.unique())
    parts = []
    for name, rows in first.groupby(first, sort=False):
        has = "" if parts else " has the most tokens whose confidence never falls"
        comma = "" if parts else ","
        parts.append(f"{on_tasks(rows.index, tasks)}{comma} {figures.label(name)}{has}")
    return capitalized("; ".join(parts))


def monotonic_conclusion(strict: pd.DataFrame) -> str:
    """Whether monotonicity "holds best for CALM", token by token."""
    if not {"calm", "vanilla"} <= set(strict.model):
        return ""
    rows = strict[(strict.after_layer == 0) & (strict.kind == "never falling")]
    share = rows.pivot(index="task", columns="model", values="share")
    start = {name: percent_span(part.start) for name, part in rows.groupby("model")}
    tasks = list(strict.task.unique())
    first = most_monotonic(strict, "never falling")
    best = on_tasks(first[first == "calm"].index, tasks)
    won = share.index[share.calm > share.vanilla]
    return (
        "MEE concludes from mean confidence that monotonicity holds best for CALM. Token by token, "
        f"confidence never falls for {percent_span(share.calm)} of CALM's tokens and "
        f"{percent_span(share.vanilla)} of vanilla's: CALM has the largest share of all models {best}, and a "
        f"larger one than vanilla {on_tasks(won, tasks)}. Vanilla's confidence has more room to rise: its "
        f"mean at layer 1 is {start['vanilla']}, CALM's {start['calm']}."
    )


def overconfidence_figure(per_layer: pd.DataFrame, note: str = ""):
    """Mean confidence minus accuracy of every layer: above 0 a layer is overconfident."""
    return figures.facets(
        per_layer.assign(excess=per_layer.confidence - per_layer.accuracy),
        _draw_excess,
        ylabel="mean confidence\nminus accuracy",
        message=overconfidence_message(per_layer),
        note=note,
    )


def _draw_excess(axis, rows: pd.DataFrame) -> None:
    axis.axhline(0, color=figures.GREY, linewidth=0.8)
    figures.lines(axis, rows, "layer", "excess", "model")


def worst_excess(per_layer: pd.DataFrame) -> pd.DataFrame:
    """By model: the row in which its confidence exceeds its accuracy most, with that `excess`."""
    rows = per_layer.assign(excess=per_layer.confidence - per_layer.accuracy)
    return rows.loc[rows.groupby("model", sort=False).excess.idxmax()].set_index("model")


def overconfidence_message(per_layer: pd.DataFrame) -> str:
    """By how much the layers of vanilla and of CALM are overconfident at most."""
    return capitalized(_overconfident(per_layer))


def _overconfident(per_layer: pd.DataFrame) -> str:
    worst = worst_excess(per_layer)
    excess = worst.excess[[name for name in ("vanilla", "calm") if name in worst.index]]
    parts = []
    for name, most in excess.items():
        verb = "" if parts else " is overconfident"
        much = f"by up to {most:.2f}" if most >= LEAST_EXCESS else "at no layer"
        parts.append(f"{figures.label(name)}{verb} {much}")
    return ", ".join(parts)


def overconfidence_conclusion(per_layer: pd.DataFrame, layer: int) -> str:
    """How far the confidences of a layer can be taken at their word."""
    early = per_layer[per_layer.layer == layer]
    errors = early.groupby("model", sort=False).expected_calibration_error.mean().sort_values()
    best, worst = errors.index[[0, -1]]
    sentences = [
        _first_layer(per_layer),
        _overconfident_until(per_layer),
        _underconfident(per_layer),
        "A threshold means different things at different layers and in different models: at layer "
        f"{layer} the expected calibration error (mean over tasks) is smallest for {figures.label(best)} "
        f"({errors[best]:.3f}) and largest for {figures.label(worst)} ({errors[worst]:.3f}).",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _excess(per_layer: pd.DataFrame) -> pd.DataFrame:
    """Confidence minus accuracy: a row a model and task, a column a layer."""
    rows = per_layer.assign(excess=per_layer.confidence - per_layer.accuracy)
    table = rows.pivot(index=["model", "task"], columns="layer", values="excess")
    return table.reindex(list(dict.fromkeys(zip(rows.model, rows.task, strict=True))))


def _first_layer(per_layer: pd.DataFrame) -> str:
    """In which models layer 1 is overconfident on every task."""
    least = _excess(per_layer)[1].groupby("model", sort=False).min()
    above = least.index[least >= LEAST_EXCESS]
    if len(above) == len(least):
        return "In every model layer 1 is overconfident on every task."
    if not len(above):
        return "In no model is layer 1 overconfident on every task."
    others = listed(map(figures.label, least.index[least < LEAST_EXCESS]))
    return (
        f"Layer 1 is overconfident on every task in {listed(map(figures.label, above))}, but not in {others}."
    )


def _overconfident_until(per_layer: pd.DataFrame, model: str = "vanilla") -> str:
    """Up to which layer a model is clearly overconfident on every task."""
    excess = _excess(per_layer)
    if model not in excess.index:
        return ""
    clear = (excess.loc[model].min() >= CLEAR_EXCESS).cummin()
    if not clear.iloc[0]:
        return ""
    name = capitalized(figures.label(model))
    last = clear[clear].index.max()
    return f"{name} stays overconfident by {CLEAR_EXCESS} or more on every task up to layer {last}."


def _underconfident(per_layer: pd.DataFrame) -> str:
    """Which layers of which models are clearly underconfident, and on which tasks."""
    tasks = list(per_layer.task.unique())
    layers_on: dict[str, list[str]] = {}  # tasks in words -> layers of models
    for model, excess in _excess(per_layer).groupby("model", sort=False):
        below = (excess <= -CLEAR_EXCESS).droplevel("model")
        if below.any(axis=None):
            where = on_tasks(below.index[below.any(axis=1)], tasks)
            layers = list(below.columns[below.any()])
            layers_on.setdefault(where, []).append(f"{_span_of(layers)} of {figures.label(model)}")
    if not layers_on:
        return f"No layer is underconfident by {CLEAR_EXCESS} or more."
    parts = [f"{where}, {listed(layers)}" for where, layers in layers_on.items()]
    return f"Layers that are underconfident by {CLEAR_EXCESS} or more: {'; '.join(parts)}."


def _span_of(layers: Sequence[int]) -> str:
    """ "layer 4", "layers 2 to 4", "some of layers 2 to 6"."""
    first, last = layers[0], layers[-1]
    if first == last:
        return f"layer {first}"
    some = "" if len(layers) == last - first + 1 else "some of "
    return f"{some}layers {first} to {last}"


def reliability_drawn(reliability: pd.DataFrame) -> pd.DataFrame:
    """The bins that `reliability_figure` may draw: those with enough tokens."""
    return reliability[reliability.tokens >= LEAST_IN_A_BIN]


def reliability_figure(reliability: pd.DataFrame, layers: Sequence[int], note: str = ""):
    """Accuracy by confidence at some layers; bins with fewer than `LEAST_IN_A_BIN` tokens are not drawn."""
    drawn = reliability_drawn(reliability)
    drawn = drawn[drawn.layer.isin(layers)]
    enough = f"bins of at least {LEAST_IN_A_BIN} tokens"
    drawn = drawn.assign(at=[f"layer {layer}" for layer in drawn.layer])
    return figures.facets(
        drawn,
        _draw_reliability,
        row="at",
        values=list(reliability.task.unique()),
        empty=f"no bin has {LEAST_IN_A_BIN} tokens",
        xlabel="confidence (top-1 probability)",
        ylabel="accuracy",
        height=2.6,
        message=reliability_message(drawn),
        note=figures.small_print(note, enough),
    )


def _draw_reliability(axis, rows: pd.DataFrame) -> None:
    figures.perfect_calibration(axis)
    figures.lines(axis, rows, "confidence", "accuracy", "model")
    figures.dots(axis, rows, "confidence", "accuracy", "model", yband=figures.BAND, label=None)


def reliability_message(drawn: pd.DataFrame) -> str:
    """How often predictions of high confidence are right at the first layer that is drawn."""
    rows = drawn[(drawn.layer == drawn.layer.min()) & (drawn.confidence > 0.9)]
    parts = [
        f"{percent_span(part.accuracy)} of {figures.label(name)}'s"
        for name, part in rows.groupby("model", sort=False)
        if name in ("vanilla", "calm")
    ]
    if not parts:
        return ""
    layer = drawn.layer.min()
    return f"Of layer {layer}'s predictions with a confidence of 0.9 or more, {listed(parts)} are right"


def reliability_conclusion(reliability: pd.DataFrame, layer: int) -> str:
    """How often confident predictions of a layer are right."""
    rows = reliability[(reliability.layer == layer) & (reliability.bin_low >= 0.9) & (reliability.tokens > 0)]
    right = rows.groupby("model", sort=False).accuracy.min().sort_values()
    if right.empty:
        return ""
    worst, best = right.index[[0, -1]]
    return (
        f"Of the predictions of layer {layer} with a confidence of 0.9 or more, {right[best]:.0%} of "
        f"{figures.label(best)}'s are right on its worst task, and {right[worst]:.0%} of "
        f"{figures.label(worst)}'s. Where that is far below 0.9, a threshold of 0.9 lets wrong predictions "
        "exit."
    )


def exits_shown(exits: pd.DataFrame) -> pd.DataFrame:
    """The columns of a replay beside decoding that a page shows."""
    named = exits.assign(task=exits.task.map(figures.label), policy=exits.policy.map(figures.label))
    columns = [
        "same_exit",
        "mean_exit_layer_replay",
        "mean_exit_layer_decoded",
        "score",
        "full_score",
        "flops_share",
    ]
    return named.set_index(["task", "policy"])[columns].round(2)


def decoding_conclusion(exits: pd.DataFrame) -> str:
    """How well a replay predicts decoding, and what copied keys and values cost even the oracle."""
    oracle = exits[exits.policy == "oracle"].set_index("task")
    copied = oracle.score / oracle.full_score
    return (
        f"Up to the first token that differs, {percent_span(exits.same_exit)} of the tokens exit at the "
        "replayed layer. A replay does not model what exits do to later tokens. The oracle exits only once a "
        f"prediction is final, and keeps {task_span(copied, '.1%')} of the score: differences from 100% come "
        "from keys and values copied from early states."
    )


def summary(stable: pd.DataFrame, strict: pd.DataFrame, per_layer: pd.DataFrame) -> str:
    """The chapter in five sentences at most."""
    trusted = _overconfident(per_layer)
    calm_is_first = (most_monotonic(strict, "never falling") == "calm").all()
    apart = "" if calm_is_first else ": settling early is not the same as being monotonic"
    sentences = [
        _justified(stable),
        "Training decides how early a prediction is final.",
        f"{monotonic_message(strict)}{apart}.",
        "A rule sees only a confidence, and how far that can be trusted depends on training"
        f"{f': {trusted}' if trusted else ''}.",
        "All of this except the comparison of replay and decoding is measured at full depth; 05 and 08 show "
        "what exits cost.",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _justified(stable: pd.DataFrame) -> str:
    """For how many tokens of CALM and of vanilla an exit after a third of the depth is harmless."""
    layer, shares = _final_after_a_third(stable)
    parts = [
        f"{numbers} of {figures.label(name)}'s{'' if number else ' tokens'}"
        for number, (name, numbers) in enumerate(shares.items())
    ]
    return f"Stopping after layer {layer} would be justified for {listed(parts)}." if parts else ""
