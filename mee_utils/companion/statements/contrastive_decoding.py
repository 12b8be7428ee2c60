"""Statements on contrast, compared with what 04 measures.

Tables: `ranking` (AUROC), `equal` (at equal quality), `threshold` (at an equal threshold), `verdict`
(Pareto) and `decoder` (the contrast picks the token too).
"""

from ..figures import label
from ..statement import Statement, statement


def improves_confidence(rule: str, model: str) -> Statement:
    """A contrast has a larger AUROC than the margin, mean over layers, by more than 0.005."""
    name = "JSD" if rule == "jsd" else "weighted"

    @statement(
        f"{name} contrast improves confidence of {model}",
        source="Not all FLOPs, contrastive decoding",
        quote=f"{name[0].upper()}{name[1:]} contrast improves confidence ({label(model)}).",
        published="speculated",
        judged_by="ranking",
        models=[model],
    )
    def has_a_larger_auroc(results):
        contrast = results.ranking.values("roc_area", rule=rule, model=model).mean()
        margin = results.ranking.values("roc_area", rule="unpruned", model=model).mean()
        return f"AUROC {contrast:.3f} against {margin:.3f}", contrast > margin + 0.005

    return has_a_larger_auroc


CONFIDENCE = tuple(
    improves_confidence(rule, model) for rule in ("weighted", "jsd") for model in ("calm", "vanilla")
)


@statement(
    "weighted contrast exits earlier at equal quality",
    source="Not all FLOPs, contrastive decoding",
    quote="With weighted contrast tokens exit earlier where 98 % of the predictions are kept.",
    published="expected",
    judged_by="exit layer",
)
def weighted_contrast_exits_earlier_at_equal_quality(results):
    contrast = results.equal.value("mean_exit_layer", rule="weighted", wanted=0.98)
    margin = results.equal.value("mean_exit_layer", rule="unpruned", wanted=0.98)
    return f"layer {contrast:.2f} against {margin:.2f}", contrast < margin - 0.05


@statement(
    "contrast is a Pareto improvement",
    source="Not all FLOPs, introduction",
    quote="Contrast improves the score at no more cost.",
    published="claimed",
    judged_by="score and FLOPs",
)
def contrast_is_a_pareto_improvement(results):
    improves = results.verdict.values("improves").sum()
    worse = results.verdict.values("worse").sum()
    settings = results.verdict.count()
    return f"{improves} of {settings} settings, {worse} worse", improves > 0


@statement(
    "a contrasted token is a better token",
    source="Gera et al. 2023, as cited",
    quote="The contrast of two layers picks better tokens than the last layer.",
    published="premise",
    judged_by="score",
    models=["calm", "vanilla"],
)
def a_contrasted_token_is_a_better_token(results):
    kept = results.decoder.values("retained", rule=lambda rule: rule != "full_depth")
    best = kept.max()
    return f"keeps {kept:.1%}", best > 1


@statement(
    "JSD keeps predictions",
    source="Not all FLOPs, final run",
    quote=(
        "With JSD contrast as confidence little is lost at the same threshold (here: at most 1 % of "
        "predictions more)."
    ),
    published="F1 91.47 against 92.45",
    judged_by="predictions",
)
def jsd_keeps_predictions(results):
    contrast = results.threshold.value("same_token", rule="jsd")
    margin = results.threshold.value("same_token", rule="unpruned")
    return f"{contrast:.1%} against {margin:.1%} of predictions stay", contrast > margin - 0.01


@statement(
    "without the mass, contrast exits earlier",
    source="not asked by the papers",
    of_our_own=True,
    quote="Without the mass of its plausible set, contrast exits earlier at the same threshold.",
    published="not tested",
    judged_by="exit layer",
)
def without_the_mass_contrast_exits_earlier(results):
    layer = results.threshold.value("mean_exit_layer", rule="weighted, without the mass")
    margin = results.threshold.value("mean_exit_layer", rule="unpruned")
    return f"layer {layer:.2f} against {margin:.2f}", layer < margin


@statement(
    "without the mass, contrast keeps fewer predictions",
    source="not asked by the papers",
    of_our_own=True,
    quote="Without the mass of its plausible set, contrast keeps fewer predictions at the same threshold.",
    published="not tested",
    judged_by="predictions",
)
def without_the_mass_contrast_keeps_fewer_predictions(results):
    stays = results.threshold.value("same_token", rule="weighted, without the mass")
    margin = results.threshold.value("same_token", rule="unpruned")
    return f"{stays:.1%} against {margin:.1%} stay", stays < margin
