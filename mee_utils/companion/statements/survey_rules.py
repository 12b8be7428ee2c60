"""Statements of the survey about its rules, compared with what 06 measures.

Tables: `bench` (a row per rule) and `same` (pairs of rules). Parameter: `layers` (depth of the decoder).
"""

from ..statement import statement
from .thresholds import check_exits


@statement(
    "exits improve the score",
    source="Survey, section 2, advantage 7",
    quote="Exits mitigate overthinking, so that the score rises (here, by patience, whose paper says so).",
    published="named, no number",
    judged_by="score",
)
def exits_improve_the_score(results):
    check_exits(results.bench.values("mean_exit_layer", model="calm", rule="patience"), results.layers)
    kept = results.bench.value("retained", model="calm", rule="patience")
    return f"{kept:.1%} of the full score", kept > 1


@statement(
    "patience is more reliable than one confidence",
    source="Survey, section 3.3 (PABEE)",
    quote="At equal loss, equal predictions in a row cost less than the confidence of one exit.",
    published="named, no number",
    judged_by="FLOPs",
)
def patience_is_more_reliable_than_one_confidence(results):
    patience = results.bench.value("equal_flops", rule="patience")
    single = results.bench.value("equal_flops", rule="surest")
    return f"FLOPs {patience:.1%} against {single:.1%}", patience < single


@statement(
    "an ensemble is more trustworthy",
    source="Survey, section 3.3 (ZTW)",
    quote="A weighted ensemble of the exits ranks tokens better than the confidence of one exit.",
    published="named, no number",
    judged_by="ranking",
)
def an_ensemble_is_more_trustworthy(results):
    ensemble = results.bench.value("roc_area", rule="ztw")
    single = results.bench.value("roc_area", rule="surest")
    return f"AUROC {ensemble:.3f} against {single:.3f}", ensemble > single + 0.005


@statement(
    "ELBERT is MEE's rule with another half",
    source="not asked by the survey",
    of_our_own=True,
    quote="ELBERT's window exits where a low entropy or MEE's rising top-1 does, token by token.",
    published="two rules of two papers",
    judged_by="exit layer",
)
def elbert_is_mees_rule_with_another_half(results):
    share = results.same.value("same_exit", pair="ELBERT, entropy or rising top-1")
    return f"{share:.1%} of the tokens exit at the same layer", share > 0.999


@statement(
    "learning to exit beats a confidence",
    source="Survey, section 4.1 (BERxiT)",
    quote="A learned unit decides better than the model's own confidence.",
    published="named, no number",
    judged_by="ranking",
)
def learning_to_exit_beats_a_confidence(results):
    learned = results.bench.value("roc_area", rule="learning_to_exit")
    single = results.bench.value("roc_area", rule="surest")
    return f"AUROC {learned:.3f} against {single:.3f}", learned > single + 0.005


@statement(
    "similarity saves the decision",
    source="Survey, section 3.3 (MuE)",
    quote=(
        "At equal loss, the similarity of consecutive layers costs less than probabilities, since it needs "
        "no "
        "logits."
    ),
    published="named, no number",
    judged_by="FLOPs",
)
def similarity_saves_the_decision(results):
    similarity = results.bench.value("equal_flops", rule="mue")
    single = results.bench.value("equal_flops", rule="surest")
    return f"FLOPs {similarity:.1%} against {single:.1%}", similarity < single


@statement(
    "a table of tokens suffices",
    source="Survey, sections 3.3 and 4.2 (HashEE)",
    quote="At equal loss, a layer looked up by token costs less than a confidence at every layer.",
    published="named, no number",
    judged_by="FLOPs",
)
def a_table_of_tokens_suffices(results):
    table = results.bench.value("equal_flops", rule="token_hash")
    single = results.bench.value("equal_flops", rule="surest")
    return f"FLOPs {table:.1%} against {single:.1%}", table < single
