"""Statements on monotonicity, compared with what 01 measures.

Tables: `stable` (figure 1) and `confidence` (figure 2). Parameter: `exit_layer`, the layer at which the model
FREE was trained to exit.
"""

import numpy as np

from ...analysis.statistics import Estimate
from ..statement import largest_drop, statement


def first_layer_above(curve: Estimate, level: float) -> Estimate:
    """The first layer at which a curve `[layer]` reaches a level; one past the last if none does."""

    def first(values: np.ndarray, axis: int) -> np.ndarray:
        beyond = np.ones_like(values[..., :1], dtype=bool)
        return np.append(values >= level, beyond, axis=axis).argmax(axis=axis) + 1

    return curve.over_items(first)


def last_layer(curve: Estimate) -> Estimate:
    """The last value of a curve `[layer]`."""
    return curve.over_items(lambda values, axis: np.take(values, -1, axis=axis))


@statement(
    "CALM settled after layer 2",
    source="MEE report, section 3",
    quote="Under CALM, 75 % of the tokens keep their top-1 after layer 2.",
    published="75 %",
)
def calm_settled_after_layer_2(results):
    settled = results.stable.value("share", model="calm", layer=2)
    return f"{settled:.1%}", settled >= 0.75


@statement(
    "CALM settled after layer 4",
    source="MEE report, section 3",
    quote="Under CALM, 90 % of the tokens keep their top-1 after layer 4.",
    published="90 %",
)
def calm_settled_after_layer_4(results):
    settled = results.stable.value("share", model="calm", layer=4)
    return f"{settled:.1%}", settled >= 0.9


@statement(
    "vanilla settles later",
    source="MEE report, section 3",
    quote="The vanilla model changes its top-1 far more often after layer 4 than CALM.",
    published="lower curve",
    models=["vanilla", "calm"],
)
def vanilla_settles_later(results):
    vanilla = results.stable.value("share", model="vanilla", layer=4)
    calm = results.stable.value("share", model="calm", layer=4)
    return f"{vanilla:.1%} against {calm:.1%}", vanilla < calm - 0.05


@statement(
    "FREE settles later",
    source="MEE report, section 3",
    quote="FREE too changes its top-1 more often than CALM (here, mean over all layers).",
    published="lower curve",
    models=["calm", "free"],
)
def free_settles_later(results):
    free = results.stable.values("share", model="free").mean()
    calm = results.stable.values("share", model="calm").mean()
    return f"{free:.1%} against {calm:.1%} settled, mean of layers", free < calm - 0.01


@statement(
    "CALM grows layer by layer",
    source="MEE blog, section 2",
    quote=(
        "CALM's mean confidence in the final prediction never falls from one layer to the next (by over "
        "0.005)."
    ),
    published="monotonic",
)
def calm_grows_layer_by_layer(results):
    drop = largest_drop(results.confidence.curve("confidence", model="calm"))
    return f"largest drop {drop:.4f}", drop < 0.005


@statement(
    "vanilla grows layer by layer",
    source="MEE blog, section 2",
    quote="Monotonicity holds for the default model too; its mean confidence never falls (by over 0.005).",
    published="monotonic",
    models=["vanilla"],
)
def vanilla_grows_layer_by_layer(results):
    drop = largest_drop(results.confidence.curve("confidence", model="vanilla"))
    return f"largest drop {drop:.4f}", drop < 0.005


@statement(
    "vanilla gains confidence later",
    source="MEE blog, section 2",
    quote="Vanilla's mean confidence passes one half at a later layer than CALM's.",
    published="much later",
    models=["vanilla", "calm"],
)
def vanilla_gains_confidence_later(results):
    vanilla = first_layer_above(results.confidence.curve("confidence", model="vanilla"), 0.5)
    calm = first_layer_above(results.confidence.curve("confidence", model="calm"), 0.5)
    return f"layer {vanilla} against {calm}", vanilla > calm


@statement(
    "FREE dips after its exit",
    source="MEE blog, section 2",
    quote="FREE's mean confidence rises to its exit layer, falls after it, and rises again to the end.",
    published="rise, dip, rise",
    models=["free"],
)
def free_dips_after_its_exit(results):
    at_exit = results.confidence.value("confidence", model="free", layer=results.exit_layer)
    later = results.confidence.values("confidence", model="free", layer=lambda x: x > results.exit_layer)
    dip = later.min()
    end = last_layer(results.confidence.curve("confidence", model="free"))
    return f"{at_exit:.3f}, {dip:.3f}, {end:.3f}", (dip < at_exit - 0.01) & (dip < end)


@statement(
    "late weighting keeps early layers free",
    source="MEE blog, closing section (a hypothesis)",
    quote=(
        "Weighting only the last 70 % of the layers settles as early as CALM after the first half of the "
        "layers (to a twentieth of the tokens); before, nothing is asked of it."
    ),
    published="not tested",
    models=["calm", "late_weighted"],
)
def late_weighting_keeps_early_layers_free(results):
    late = results.stable.value("share", model="late_weighted", layer=6)
    calm = results.stable.value("share", model="calm", layer=6)
    return f"layer 6: {late:.1%} against {calm:.1%}", late > calm - 0.05
