"""Statements on MEE's classifiers, compared with what 05 measures; all about CALM.

Tables: `ranking` (ROC area, mean over seeds), `learned` (the same with the most training tokens), `published`
(at the published thresholds), `decisions` (precision by layer) and `kept` (what keeps 99 % of the score).
"""

from ...analysis.statistics import Estimate
from ...study.catalogue import CALM_RULES, MEE_RULES
from ..statement import Rows, statement

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
)
def three_layers_decide_better_than_one(results):
    three = results.ranking.value("roc_area", **ON_CALM, rule="three_hidden")
    one = results.ranking.value("roc_area", **ON_CALM, rule="hidden")
    return f"area {three:.3f} against {one:.3f}", three > one


@statement(
    "it is the layers, not the parameters",
    source="not asked by the papers",
    of_our_own=True,
    quote="Three states decide better than one state with as many parameters.",
    published="not tested",
)
def it_is_the_layers_not_the_parameters(results):
    three = results.ranking.value("roc_area", **ON_CALM, rule="three_hidden")
    wide = results.ranking.value("roc_area", **ON_CALM, rule="wide_hidden")
    return f"area {three:.3f} against {wide:.3f}", three > wide


@statement(
    "many tokens bring out the layers",
    source="not asked by the papers",
    of_our_own=True,
    quote=(
        "Trained on ten times as many tokens, three states decide better than one state with as many "
        "parameters."
    ),
    published="not tested",
)
def many_tokens_bring_out_the_layers(results):
    three = results.learned.value("roc_area", model="calm", rule="three_hidden")
    wide = results.learned.value("roc_area", model="calm", rule="wide_hidden")
    return f"area {three:.3f} against {wide:.3f}", three > wide


@statement(
    "an LSTM decides better than one layer",
    source="MEE report, section 5",
    quote="An LSTM over all states decides better than a classifier on the current state.",
    published="hypothesis",
)
def an_lstm_decides_better_than_one_layer(results):
    lstm = results.ranking.value("roc_area", **ON_CALM, rule="lstm")
    one = results.ranking.value("roc_area", **ON_CALM, rule="hidden")
    return f"area {lstm:.3f} against {one:.3f}", lstm > one


@statement(
    "states say more than probabilities",
    source="MEE report, section 5",
    quote="A trained classifier on states can tell more than the softmax scores do.",
    published="motivation",
)
def states_say_more_than_probabilities(results):
    three = results.ranking.value("roc_area", **ON_CALM, rule="three_hidden")
    margin = results.ranking.value("roc_area", **ON_CALM, rule="softmax_margin")
    return f"area {three:.3f} against {margin:.3f}", three > margin


@statement(
    "three rising scores above 0.9 are final",
    source="MEE report, section 5",
    quote="Three rising top-1 scores, the last above 0.9, almost never change later.",
    published="almost never",
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
        "Of scores above 0.9, those that rose three times stay more often than all of them (by a thousandth)."
    ),
    published="not tested",
    without_rows="no score is above 0.9",
)
def rising_scores_are_surer_than_one(results):
    rising = precision_of_exits(results.decisions, rule="rising_top1")
    single = precision_of_exits(results.decisions, rule="max_probability")
    return f"{rising:.2%} against {single:.2%}", rising > single + 0.001


@statement(
    "MEE keeps more quality at 0.9",
    source="MEE blog, section 3",
    quote="At a threshold of 0.9 each of MEE's three measures scores far above each of CALM's three.",
    published="SQuAD F1 86.1 to 88.6 against 76.0 to 86.9",
)
def mee_keeps_more_quality_at_0_9(results):
    mee = results.published.values("retained", rule=list(MEE_RULES), threshold=0.9)
    calm = results.published.values("retained", rule=list(CALM_RULES), threshold=0.9)
    worst = mee.min()
    best = calm.max()
    return f"keep {mee:.1%} against {calm:.1%}", worst > best + 0.02


@statement(
    "softmax and saturation ruin the output at 0.9",
    source="MEE blog, section 3",
    quote="At 0.9 the softmax margin and saturation lose most of the score.",
    published="CNN/DM ROUGE-1 12.9 and 3.3 of 43.8",
)
def softmax_and_saturation_ruin_the_output_at_0_9(results):
    kept = results.published.values("retained", rule=["softmax_margin", "hidden_similarity"], threshold=0.9)
    most = kept.max()
    return f"keep {kept:.1%}", most < 0.5


@statement(
    "MEE is slower than full depth",
    source="MEE's published code, its runs (a table, not a sentence)",
    quote="MEE's measures are mostly slower than full depth (here: take more FLOPs, at 0.9).",
    published="8.4 to 11.3 against 11.0 samples a second (SQuAD)",
)
def mee_is_slower_than_full_depth(results):
    shares = results.published.values("flops_share", rule=list(MEE_RULES), threshold=0.9)
    middle = shares.median()
    return f"FLOPs {shares:.1%} of full depth", middle > 1


@statement(
    "several layers can be cheap and keep quality",
    source="MEE blog, open question 1",
    quote="A classifier on several layers keeps 99 % of the score for fewer FLOPs than full depth.",
    published="open",
    without_rows="none keeps it for certain",
)
def several_layers_can_be_cheap_and_keep_quality(results):
    shares = results.kept.values("flops_share", rule=SEVERAL)
    cheapest = shares.min()
    return f"FLOPs {shares:.1%}", cheapest < 1
