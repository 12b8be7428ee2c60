"""Where final tokens rank at each layer, and the minimum exit layer that follows from confidence."""

from __future__ import annotations

import pandas as pd

from ... import figures
from ...prose import listed, span
from ..wording import capitalized, percent_span, with_interval
from .ways import LITTLE, of_calm, of_shown_models, shown_among

BOX = {"median": "med", "low": "q1", "high": "q3", "whisker_low": "whislo", "whisker_high": "whishi"}
AGREES = figures.STYLES["accuracy"]._replace(label="predictions that are the last layer's")


def rank_figure(boxes: pd.DataFrame, layer: int, note: str = ""):
    """Box plots of the rank that each layer gives to the final token (`pruning.rank_boxes`)."""
    return figures.facets(
        of_shown_models(boxes),
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
    """The share of final tokens that a layer ranks first, of each model: "70% to 93% of CALM's"."""
    rows = boxes[boxes.layer == layer]
    return [
        f"{percent_span(part.on_top)} of {figures.label(name)}'s"
        for name, part in rows.groupby("model", sort=False)
    ]


def rank_message(boxes: pd.DataFrame, layer: int) -> str:
    """How often a layer ranks the final token first, in CALM and in vanilla."""
    return f"Layer {layer} ranks {listed(_on_top(of_shown_models(boxes), layer))} final tokens first"


def rank_conclusion(boxes: pd.DataFrame, kept_at: pd.DataFrame, layer: int, top_k: int) -> str:
    """The share of final tokens among the best entries of a layer, by model."""
    rows = kept_at[(kept_at.layer == layer) & (kept_at.k == top_k)]
    if rows.empty:
        return f"Layer {layer} ranks {listed(_on_top(boxes, layer))} final tokens first."
    least = rows.groupby("model", sort=False).recall.min()
    shown = least[shown_among(least.index)]
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
        of_shown_models(honesty),
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
    """The minimum exit layers of each model: "in CALM from layers 4 to 6 on"."""
    parts = []
    for name, rows in minimum.groupby("model", sort=False):
        layers = span(rows.minimum_layer, "{:.0f}")
        plural = "s" if rows.minimum_layer.nunique() > 1 else ""
        parts.append(f"in {figures.label(name)} from layer{plural} {layers} on")
    return parts


def minimum_message(minimum: pd.DataFrame, precision: float) -> str:
    """The minimum exit layer that the rule gives CALM and vanilla."""
    layers = listed(_minimum_by_model(of_shown_models(minimum)))
    return f"At least {precision:.0%} of confident predictions are the last layer's: {layers}"


def minimum_conclusion(honesty: pd.DataFrame, by_rule: pd.DataFrame) -> str:
    """How overconfident layers are, and what exits from the minimum layer on keep of an output."""
    shown = of_shown_models(honesty)
    worst = shown.loc[(shown.confidence - shown.accuracy).idxmax()]
    text = (
        f"A layer is overconfident where black lies above grey, most of all layer {worst.layer} of "
        f"{figures.label(worst.model)} on {figures.label(worst.task)} (confidence {worst.confidence:.2f}, "
        f"agreement {worst.accuracy:.2f})."
    )
    calm = of_calm(by_rule).dropna(subset="retained")  # NaN: it scores 0 at full depth
    if calm.empty:
        return text
    least = calm.loc[calm.retained.idxmin()]
    kept = with_interval(least, "retained", low="low", high="high")
    keeps = (
        f"with exits from the minimum layer on, CALM keeps {kept} of its score on "
        f"{figures.label(least.task)}, the least of all tasks."
    )
    if least.retained < 1 - LITTLE:
        return (
            f"{text} Errors of single tokens add up: {keeps} Thresholds are therefore calibrated on whole "
            "outputs (08)."
        )
    return f"{text} {capitalized(keeps)}"
