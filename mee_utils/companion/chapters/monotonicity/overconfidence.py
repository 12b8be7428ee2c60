"""How far the confidence of a layer can be trusted: layer by layer, and bin by bin."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ... import figures
from ...prose import listed, on_tasks
from ..wording import capitalized, percent_span

LEAST_EXCESS = 0.005  # of confidence over accuracy: what two digits show
CLEAR_EXCESS = 0.05  # what the eye sees in the figure
LEAST_IN_A_BIN = 20  # tokens, or it is not drawn
CONFIDENT = 0.9  # from here on a prediction counts as confident


def overconfidence_figure(per_layer: pd.DataFrame, note: str = ""):
    """Mean confidence minus accuracy of every layer: above 0 a layer is overconfident."""
    return figures.facets(
        _with_excess(per_layer),
        _draw_excess,
        ylabel="mean confidence\nminus accuracy",
        message=overconfidence_message(per_layer),
        note=note,
    )


def _draw_excess(axis, rows: pd.DataFrame) -> None:
    axis.axhline(0, color=figures.GREY, linewidth=0.8)
    figures.lines(axis, rows, "layer", "excess", "model")


def _with_excess(per_layer: pd.DataFrame) -> pd.DataFrame:
    """The rows with `excess`: confidence minus accuracy."""
    return per_layer.assign(excess=per_layer.confidence - per_layer.accuracy)


def worst_excess(per_layer: pd.DataFrame) -> pd.DataFrame:
    """By model: the row in which its confidence exceeds its accuracy most, with that `excess`."""
    rows = _with_excess(per_layer)
    return rows.loc[rows.groupby("model", sort=False).excess.idxmax()].set_index("model")


def overconfidence_message(per_layer: pd.DataFrame) -> str:
    """By how much the layers of vanilla and of CALM are overconfident at most."""
    return capitalized(overconfident(per_layer))


def overconfident(per_layer: pd.DataFrame) -> str:
    """That message without its capital letter, for the end of a sentence."""
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


def _excess_by_layer(per_layer: pd.DataFrame) -> pd.DataFrame:
    """Confidence minus accuracy: a row a model and task, in their order, and a column a layer."""
    rows = _with_excess(per_layer)
    table = rows.pivot(index=["model", "task"], columns="layer", values="excess")
    in_order = dict.fromkeys(zip(rows.model, rows.task, strict=True))
    return table.reindex(list(in_order))


def _first_layer(per_layer: pd.DataFrame) -> str:
    """In which models layer 1 is overconfident on every task."""
    least = _excess_by_layer(per_layer)[1].groupby("model", sort=False).min()
    above = least.index[least >= LEAST_EXCESS]
    if len(above) == len(least):
        return "In every model layer 1 is overconfident on every task."
    if not len(above):
        return "In no model is layer 1 overconfident on every task."
    some = listed(map(figures.label, above))
    others = listed(map(figures.label, least.index[least < LEAST_EXCESS]))
    return f"Layer 1 is overconfident on every task in {some}, but not in {others}."


def _overconfident_until(per_layer: pd.DataFrame, model: str = "vanilla") -> str:
    """Up to which layer a model is clearly overconfident on every task."""
    excess = _excess_by_layer(per_layer)
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
    for model, excess in _excess_by_layer(per_layer).groupby("model", sort=False):
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
    rows = drawn[(drawn.layer == drawn.layer.min()) & (drawn.confidence > CONFIDENT)]
    parts = [
        f"{percent_span(part.accuracy)} of {figures.label(name)}'s"
        for name, part in rows.groupby("model", sort=False)
        if name in ("vanilla", "calm")
    ]
    if not parts:
        return ""
    layer = drawn.layer.min()
    return (
        f"Of layer {layer}'s predictions with a confidence of {CONFIDENT} or more, {listed(parts)} are right"
    )


def reliability_conclusion(reliability: pd.DataFrame, layer: int) -> str:
    """How often confident predictions of a layer are right."""
    of_layer = reliability[(reliability.layer == layer) & (reliability.tokens > 0)]
    rows = of_layer[of_layer.bin_low >= CONFIDENT]
    right = rows.groupby("model", sort=False).accuracy.min().sort_values()
    if right.empty:
        return ""
    worst, best = right.index[[0, -1]]
    return (
        f"Of the predictions of layer {layer} with a confidence of {CONFIDENT} or more, {right[best]:.0%} of "
        f"{figures.label(best)}'s are right on its worst task, and {right[worst]:.0%} of "
        f"{figures.label(worst)}'s. Where that is far below {CONFIDENT}, a threshold of {CONFIDENT} lets "
        "wrong predictions exit."
    )
