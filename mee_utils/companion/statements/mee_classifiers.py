"""Statements on MEE's classifiers, compared with what 05 measures; all about CALM.

Tables: `ranking` (AUROC, mean over seeds), `learned` (the same with the most training tokens),
`published` (at the published thresholds), `decisions` (precision by layer), `equal` (where 98 % of the
predictions stay) and `kept` (what keeps 99 % of the score). Parameters: `sixth`, the layer at a sixth of the
depth, as published, and `min_layer`, the first exit layer of all else.
"""

from collections.abc import Sequence

from ...analysis.statistics import Comparison, Estimate
from ..catalogue import CALM_RULES, MEE_RULES
from ..statement import Rows, Untestable, statement, statement_from_each_start

ON_CALM = {"model": "calm", "target": "consistency"}
SEVERAL = ["low_rank_three", "three_hidden", "narrow_lstm", "lstm"]  # classifiers over several layers


def precision_of_exits(decisions: Rows, rule: str) -> Estimate:
    """The precision of a rule over all layers, each weighted by the tokens above the threshold there."""
    exits = {"rule": rule, "above": lambda share: share > 0}
    weights = decisions.values("above", **exits).value
    precision = decisions.values("precision", **exits)
    return precision.over_items(lambda values, axis: values @ (weights / weights.sum()))


@statement(
    "three layers decide better than one",
    source="MEE report, section 5",
    quote="A classifier on three states decides better than one on the current state.",
    published="hypothesis",
    judged_by="ranking",
)
def three_layers_decide_better_than_one(results):
    three = results.ranking.value("roc_area", **ON_CALM, rule="three_hidden")
    one = results.ranking.value("roc_area", **ON_CALM, rule="hidden")
    return f"AUROC {three:.3f} against {one:.3f}", three > one


@statement(
    "it is the layers, not the parameters",
    source="not asked by the papers",
    of_our_own=True,
    quote="Three states decide better than one state with as many parameters.",
    published="not tested",
    judged_by="ranking",
)
def it_is_the_layers_not_the_parameters(results):
    three = results.ranking.value("roc_area", **ON_CALM, rule="three_hidden")
    wide = results.ranking.value("roc_area", **ON_CALM, rule="wide_hidden")
    return f"AUROC {three:.3f} against {wide:.3f}", three > wide


@statement(
    "many tokens bring out the layers",
    source="not asked by the papers",
    of_our_own=True,
    quote=(
        "Trained on ten times as many tokens, three states decide better than one state with as many "
        "parameters."
    ),
    published="not tested",
    judged_by="ranking",
)
def many_tokens_bring_out_the_layers(results):
    three = results.learned.value("roc_area", model="calm", rule="three_hidden")
    wide = results.learned.value("roc_area", model="calm", rule="wide_hidden")
    return f"AUROC {three:.3f} against {wide:.3f}", three > wide


@statement(
    "an LSTM decides better than one layer",
    source="MEE report, section 5",
    quote="An LSTM over all states decides better than a classifier on the current state.",
    published="hypothesis",
    judged_by="ranking",
)
def an_lstm_decides_better_than_one_layer(results):
    lstm = results.ranking.value("roc_area", **ON_CALM, rule="lstm")
    one = results.ranking.value("roc_area", **ON_CALM, rule="hidden")
    return f"AUROC {lstm:.3f} against {one:.3f}", lstm > one


@statement(
    "states say more than probabilities",
    source="MEE report, section 5",
    quote="A trained classifier on states can tell more than the softmax scores do.",
    published="motivation",
    judged_by="ranking",
)
def states_say_more_than_probabilities(results):
    three = results.ranking.value("roc_area", **ON_CALM, rule="three_hidden")
    margin = results.ranking.value("roc_area", **ON_CALM, rule="softmax_margin")
    return f"AUROC {three:.3f} against {margin:.3f}", three > margin


@statement(
    "three rising scores above 0.9 are final",
    source="MEE report, section 5",
    quote="Three rising top-1 scores, the last above 0.9, almost never change later.",
    published="almost never",
    judged_by="predictions",
    without_rows="no score is above 0.9",
)
def three_rising_scores_above_0_9_are_final(results):
    precision = precision_of_exits(results.decisions, rule="rising_top1")
    return f"{precision:.1%} stay", precision > 0.99


@statement(
    "rising scores are surer than one",
    source="not asked by the papers",
    of_our_own=True,
    quote=(
        "Predictions whose score rose three times to above 0.9 change less often than all predictions above "
        "0.9 (by 0.1 points)."
    ),
    published="not tested",
    judged_by="predictions",
    without_rows="no score is above 0.9",
)
def rising_scores_are_surer_than_one(results):
    rising = precision_of_exits(results.decisions, rule="rising_top1")
    single = precision_of_exits(results.decisions, rule="max_probability")
    return f"{rising:.2%} against {single:.2%}", rising > single + 0.001


def at_published_settings(results, column: str, rules: Sequence[str], layer: int) -> Estimate:
    """A column `[rule]` of the published settings (0.9, decaying) with exits from a layer on."""
    if not results.published.has(rule=list(rules), threshold=0.9, min_layer=layer):
        raise Untestable(f"exits from layer {layer} on were not decoded")
    return results.published.values(column, rule=list(rules), threshold=0.9, min_layer=layer)


@statement_from_each_start(
    "MEE keeps more quality at 0.9",
    source="MEE blog, section 3",
    quote=(
        "At a threshold of 0.9 each of MEE's three measures scores far above each of CALM's three (here, "
        "{start})."
    ),
    published="SQuAD F1 86.1 to 88.6 against 76.0 to 86.9",
    judged_by="score",
)
def mee_keeps_more_quality_at_0_9(results, layer):
    mee = at_published_settings(results, "retained", MEE_RULES, layer)
    calm = at_published_settings(results, "retained", CALM_RULES, layer)
    return f"from layer {layer}: keep {mee:.1%}; CALM's {calm:.1%}", mee.min() > calm.max() + 0.02


@statement_from_each_start(
    "measures keep the same at 0.9",
    source="MEE blog, section 3 (it compares measures at one threshold)",
    quote=(
        "At a threshold of 0.9 all six measures keep the same share of the score (here, within 2 points, "
        "{start})."
    ),
    published="presumed; SQuAD F1 76.0 to 88.6",
    judged_by="score",
)
def measures_keep_the_same_at_0_9(results, layer):
    kept = at_published_settings(results, "retained", [*CALM_RULES, *MEE_RULES], layer)
    return f"from layer {layer}: keep {kept:.1%}", kept.max() < kept.min() + 0.02


def loses_most(results, rule: str, layer: int) -> tuple[str, Comparison]:
    """Whether a rule keeps less than half of the score at the published settings."""
    kept = at_published_settings(results, "retained", [rule], layer).item(0)
    exits = at_published_settings(results, "mean_exit_layer", [rule], layer).item(0)
    return f"from layer {layer}: keeps {kept:.1%}, exits at layer {exits.value:.2f}", kept < 0.5


@statement_from_each_start(
    "the softmax margin ruins the output at 0.9",
    source="MEE blog, section 3",
    quote="At 0.9 the softmax margin loses most of the score (here, {start}).",
    published="CNN/DM ROUGE-1 12.9 of 43.8",
    judged_by="score",
)
def softmax_margin_ruins_the_output_at_0_9(results, layer):
    return loses_most(results, "softmax_margin", layer)


@statement_from_each_start(
    "saturation ruins the output at 0.9",
    source="MEE blog, section 3",
    quote="At 0.9 saturation loses most of the score (here, {start}).",
    published="CNN/DM ROUGE-1 3.3 of 43.8",
    judged_by="score",
)
def saturation_ruins_the_output_at_0_9(results, layer):
    return loses_most(results, "hidden_similarity", layer)


@statement_from_each_start(
    "MEE takes more FLOPs than full depth",
    source="not in the papers, which count none",
    of_our_own=True,
    quote=(
        "At 0.9 most of MEE's measures take more FLOPs than full depth ({start}; their speed is judged in "
        "08)."
    ),
    published="none counted",
    judged_by="FLOPs",
)
def mee_takes_more_flops(results, layer):
    shares = at_published_settings(results, "flops_share", MEE_RULES, layer)
    return f"from layer {layer}: FLOPs {shares:.1%} of full depth", shares.median() > 1


@statement(
    "several layers can be cheap and keep quality",
    source="MEE blog, open question 1",
    quote=(
        "The cheapest classifier on several layers that keeps 99 % of the score takes fewer FLOPs than full "
        "depth."
    ),
    published="open",
    judged_by="FLOPs",
    without_rows="none keeps it for certain",
)
def several_layers_can_be_cheap_and_keep_quality(results):
    shares = results.kept.values("flops_share", rule=SEVERAL)
    cheapest = shares.min()
    return f"FLOPs {shares:.1%}", cheapest < 1


@statement(
    "the objective matters more than the rule",
    source="not asked by the papers",
    of_our_own=True,
    quote=(
        "At 98 % of predictions kept, the training of the model moves mean exits more than the rule does "
        "(here, two classifiers on vanilla and on CALM, against these and the margin on CALM)."
    ),
    published="not tested",
    judged_by="exit layer",
    models=["calm", "vanilla"],
)
def the_objective_matters_more_than_the_rule(results):
    classifiers = ["hidden", "three_hidden"]
    exits = {"target": "consistency", "rule": classifiers}
    on_vanilla = results.equal.values("mean_exit_layer", model="vanilla", **exits).mean()
    on_calm = results.equal.values("mean_exit_layer", model="calm", **exits).mean()
    rules = results.equal.values("mean_exit_layer", **ON_CALM, rule=["softmax_margin", *classifiers])
    between_rules = rules.max() - rules.min()
    ours = f"objectives {on_vanilla - on_calm:.2f} layers apart, rules {between_rules:.2f}"
    return ours, on_vanilla - on_calm > between_rules
