"""Statements on monotonicity, compared with what 01 measures.

Tables, with the files that show their columns: `stable` (`figure_1_settled.csv`), `confidence`
(`figure_2_confidence.csv`) and `monotonic` (token by token, `strictly_monotonic.csv`). Parameters:
`exit_layer`, the layer at which the model FREE was trained to exit, and `third`, a third of the depth.
"""

import numpy as np

from ...analysis.statistics import Estimate
from ..figures import label
from ..statement import Statement, Untestable, largest_drop, statement


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
    judged_by="predictions",
)
def calm_settled_after_layer_2(results):
    settled = results.stable.value("share", model="calm", layer=2)
    return f"{settled:.1%}", settled >= 0.75


@statement(
    "CALM settled after layer 4",
    source="MEE report, section 3",
    quote="Under CALM, 90 % of the tokens keep their top-1 after layer 4.",
    published="90 %",
    judged_by="predictions",
)
def calm_settled_after_layer_4(results):
    settled = results.stable.value("share", model="calm", layer=4)
    return f"{settled:.1%}", settled >= 0.9


@statement(
    "vanilla settles later",
    source="MEE report, section 3",
    quote="The vanilla model changes its top-1 far more often after layer 4 than CALM.",
    published="lower curve",
    judged_by="predictions",
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
    judged_by="predictions",
    models=["calm", "free"],
)
def free_settles_later(results):
    free = results.stable.values("share", model="free").mean()
    calm = results.stable.values("share", model="calm").mean()
    return f"{free:.1%} against {calm:.1%} settled, mean over layers", free < calm - 0.01


@statement(
    "CALM grows layer by layer",
    source="MEE blog, section 2",
    quote=(
        "CALM's mean confidence in the final prediction never falls from one layer to the next (by more "
        "than 0.005)."
    ),
    published="monotonic",
    judged_by="confidence",
)
def calm_grows_layer_by_layer(results):
    drop = largest_drop(results.confidence.curve("confidence", model="calm"))
    return f"largest drop {drop:.4f}", drop < 0.005


@statement(
    "vanilla grows layer by layer",
    source="MEE blog, section 2",
    quote=(
        "Monotonicity holds for the default model too; its mean confidence never falls (by more than 0.005)."
    ),
    published="monotonic",
    judged_by="confidence",
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
    judged_by="confidence",
    models=["vanilla", "calm"],
)
def vanilla_gains_confidence_later(results):
    vanilla = first_layer_above(results.confidence.curve("confidence", model="vanilla"), 0.5)
    calm = first_layer_above(results.confidence.curve("confidence", model="calm"), 0.5)
    return f"layer {vanilla:.0f} against {calm:.0f}", vanilla > calm


@statement(
    "mean confidence falls least for CALM",
    source="MEE blog, section 2",
    quote=(
        "Monotonicity holds best for CALM (here, on average: from one layer to the next its mean confidence "
        "falls by less than vanilla's)."
    ),
    published="holds best",
    judged_by="confidence",
    models=["calm", "vanilla"],
)
def mean_confidence_falls_least_for_calm(results):
    calm = largest_drop(results.confidence.curve("confidence", model="calm"))
    vanilla = largest_drop(results.confidence.curve("confidence", model="vanilla"))
    return f"largest drop {calm:.4f} against {vanilla:.4f}", calm < vanilla


def holds_best_for_calm(how: str, kind: str, here: str, after_a_third: bool = False) -> Statement:
    """More of CALM's tokens are monotonic than of any other of the paper's models.

    Our value is each model's share, and from where it starts: the mean confidence at layer 1.
    """

    @statement(
        f"confidence {how}, most often for CALM",
        source="MEE blog, section 2",
        quote=f"Monotonicity holds best for CALM (here, token by token: {here}).",
        published="holds best",
        judged_by="predictions",
    )
    def most_tokens_are_calms(results):
        models = [name for name in ("calm", "vanilla", "free") if results.monotonic.has(model=name)]
        if len(models) < 2:
            raise Untestable("no other model")
        of_kind = {"kind": kind, "after_layer": results.third if after_a_third else 0}
        shares = results.monotonic.values("share", model=models, **of_kind)
        starts = results.confidence.values("confidence", model=models, layer=1)
        texts = [
            f"{label(name)} {shares.item(number):.1%}, from {starts.item(number).value:.2f} at layer 1"
            for number, name in enumerate(models)
        ]
        others = results.monotonic.values("share", model=models[1:], **of_kind).max()
        return "; ".join(texts), shares.item(0) > others

    return most_tokens_are_calms


HOLDS_BEST = (
    holds_best_for_calm(
        "never falls",
        "never falling",
        "it has the largest share of tokens whose confidence in the final prediction never falls by more "
        "than 0.01, from the first layer on",
    ),
    holds_best_for_calm(
        "never falls after a third",
        "never falling",
        "never falling after a third of the layers",
        after_a_third=True,
    ),
    holds_best_for_calm("rises strictly", "strictly rising", "strictly rising from the first layer on"),
    holds_best_for_calm(
        "rises strictly after a third",
        "strictly rising",
        "strictly rising after a third of the layers",
        after_a_third=True,
    ),
)


@statement(
    "FREE falls after its exit",
    source="MEE blog, section 2",
    quote="FREE's mean confidence falls after its exit layer (by more than 0.01).",
    published="rise, dip, rise",
    judged_by="confidence",
    models=["free"],
)
def free_falls_after_its_exit(results):
    at_exit = results.confidence.value("confidence", model="free", layer=results.exit_layer)
    later = results.confidence.values("confidence", model="free", layer=lambda x: x > results.exit_layer)
    dip = later.min()
    return f"{at_exit:.3f} at the exit, {dip:.3f} at its lowest after it", dip < at_exit - 0.01


@statement(
    "FREE rises again to the end",
    source="MEE blog, section 2",
    quote=(
        "After its exit layer FREE's mean confidence rises again from its lowest value to the last layer."
    ),
    published="rise, dip, rise",
    judged_by="confidence",
    models=["free"],
)
def free_rises_again_to_the_end(results):
    later = results.confidence.values("confidence", model="free", layer=lambda x: x > results.exit_layer)
    dip = later.min()
    end = last_layer(results.confidence.curve("confidence", model="free"))
    return f"{dip:.3f} at its lowest after the exit, {end:.3f} at the end", dip < end


@statement(
    "late weighting keeps early layers free",
    source="MEE blog, closing section (a hypothesis)",
    quote=(
        "Supervising only the last 70 % of the layers leaves the early ones free, and half-way as many "
        "predictions are final as under CALM (to within 5 % of the tokens)."
    ),
    published="not tested",
    judged_by="predictions",
    models=["calm", "late_weighted"],
)
def late_weighting_keeps_early_layers_free(results):
    late = results.stable.value("share", model="late_weighted", layer=6)
    calm = results.stable.value("share", model="calm", layer=6)
    return f"layer 6: {late:.1%} against {calm:.1%}", late > calm - 0.05
