"""From which layer on predictions are final, and how mean confidence gets there (figures 1 and 2)."""

from __future__ import annotations

import pandas as pd

from ... import figures
from ...prose import listed, on_tasks, span, task_span
from ..wording import percent_span

# MEE, CALM on BigPatent: share of the depth -> share of the tokens whose prediction is final
PUBLISHED = {2 / 12: 0.75, 4 / 12: 0.90}
EXPECTED = ("calm", "late_weighted", "free", "vanilla")  # order in which predictions become final


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
    layer, shares = final_after_a_third(stable)
    parts = [f"{numbers} of {figures.label(name)}'s" for name, numbers in shares.items()]
    return f"After layer {layer}, {listed(parts)} predictions are final" if parts else ""


def final_after_a_third(stable: pd.DataFrame) -> tuple[int, dict[str, str]]:
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
    sentences = [
        _earlier_than_vanilla(gain),
        _over_seeds(spread),
        _early_order(stable),
        _beside_the_published_share(stable),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _earlier_than_vanilla(gain: pd.DataFrame) -> str:
    """Under which objective predictions become final earliest, and by how many layers."""
    first = gain.groupby("model", sort=False).layers_earlier.mean().idxmax()
    layers_earlier = gain[gain.model == first].layers_earlier
    return (
        "Where earlier layers are supervised, predictions become final earlier than under vanilla, most of "
        f"all under {figures.label(first)}: by {span(layers_earlier, '{:.1f}')} layers."
    )


def _over_seeds(spread: pd.DataFrame) -> str:
    """How far the mean layer moves between seeds; nothing where there is one seed."""
    if spread.empty:
        return ""
    widest = (spread.high - spread.low).max()
    return f"Another seed moves the mean layer by at most {widest:.2f} layers."


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
        f"Up to layer {last}, the share of final predictions is largest under {most}, then under "
        f"{listed(others)}: {said}."
    )


def _beside_the_published_share(stable: pd.DataFrame) -> str:
    """How many of CALM's predictions are final after a sixth of the depth, beside the published share."""
    layers = stable.layer.max()
    early = round(layers / 6)  # as layer 2 of 12, published
    ours = stable[(stable.model == "calm") & (stable.layer == early)].set_index("task").share
    if ours.empty:
        return ""
    return (
        f"After layer {early} of {layers}, {task_span(ours)} of CALM's predictions are final; MEE "
        f"reports {PUBLISHED[2 / 12]:.0%} on BigPatent."
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
