"""Statements of the survey, compared with what 06 measures.

Tables: `bench` (a row a rule), `thinking` (overthinking), `fake` (confidence by layer), `thirds` (errors by
third of the output), `spaced` (exits at intervals), `travelled` and `moved` (thresholds and confidence in
other domains), `keepers` (bandit or calibrated), `same` (pairs of rules). Parameters: `demand` and `delta`
(mean losses), `first` and `last` (layers).
"""

from ..statement import statement


@statement(
    "deep layers overthink",
    source="Survey, section 1 (Kaya et al. 2019)",
    quote="Some tokens that an earlier layer has right are wrong at the last layer (here, at least 1 %).",
    published="named, no number",
    judged_by="predictions",
)
def deep_layers_overthink(results):
    share = results.thinking.value("overthought", model="calm")
    return f"{share:.1%} of the tokens", share > 0.01


@statement(
    "exits improve the score",
    source="Survey, section 2, advantage 7",
    quote="Exits mitigate overthinking, so that the score rises (here, by patience, whose paper says so).",
    published="named, no number",
    judged_by="score",
)
def exits_improve_the_score(results):
    kept = results.bench.value("retained", model="calm", rule="patience")
    return f"{kept:.1%} of the full score", kept > 1


@statement(
    "confidence is fake at early layers",
    source="Survey, sections 2 and 7.3",
    quote=(
        "Tokens of which an early exit is sure are wrong more often than those of which the last layer is."
    ),
    published="a figure on SST-2",
    judged_by="predictions",
)
def confidence_is_fake_at_early_layers(results):
    early = results.fake.value("wrong", model="calm", layer=results.first)
    late = results.fake.value("wrong", model="calm", layer=results.last)
    return f"{early:.1%} against {late:.1%}", early > late


@statement(
    "training for exits cures fake confidence",
    source="not asked by the survey",
    of_our_own=True,
    quote="Of the tokens of which the first exit is sure, fewer are wrong under CALM than under vanilla.",
    published="not tested",
    judged_by="predictions",
    models=["calm", "vanilla"],
)
def training_for_exits_cures_fake_confidence(results):
    calm = results.fake.value("wrong", model="calm", layer=results.first)
    vanilla = results.fake.value("wrong", model="vanilla", layer=results.first)
    return f"{calm:.1%} against {vanilla:.1%}", calm < vanilla


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
    return f"area {ensemble:.3f} against {single:.3f}", ensemble > single + 0.005


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
    return f"area {learned:.3f} against {single:.3f}", learned > single + 0.005


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


@statement(
    "exits at intervals suffice",
    source="Survey, section 7.1",
    quote="At equal loss, exits at every third layer cost no more than exits at every layer.",
    published="advice, no number",
    judged_by="FLOPs",
)
def exits_at_intervals_suffice(results):
    some = results.spaced.value("flops_share", every=3)
    every = results.spaced.value("flops_share", every=1)
    return f"FLOPs {some:.1%} against {every:.1%}", some <= every + 0.005


@statement(
    "fewer mistakes later in a sentence",
    source="Survey, section 3.4 (MuE)",
    quote="The decoder makes fewer mistakes in the last third of an output than in the first.",
    published="motivation",
    judged_by="predictions",
)
def fewer_mistakes_later_in_a_sentence(results):
    begin = results.thirds.value("wrong", what="full depth", part=1)
    end = results.thirds.value("wrong", what="full depth", part=3)
    return f"{begin:.1%} wrong in the first third, {end:.1%} in the last", end < begin


@statement(
    "confidence moves with the domain",
    source="Survey, section 5",
    quote=(
        "A threshold chosen at home loses more in another domain (here, another task or corpus), by more "
        "than the demand."
    ),
    published="named, no number",
    judged_by="loss",
    untested="no other domain here",
)
def confidence_moves_with_the_domain(results):
    home = results.travelled.value("loss", rule="surest", place="at home")
    away = results.travelled.values("loss", rule="surest", place=lambda place: place != "at home")
    worst = away.max()
    return f"loss {away:.1%} for {home:.1%} at home", worst > home + results.demand


@statement(
    "confidence is less right in another domain",
    source="Survey, section 5",
    quote=(
        "Of the tokens of which the first exit is sure, the last layer contradicts more on another corpus "
        "of the task."
    ),
    published="named, no number",
    judged_by="predictions",
    untested="no other corpus of the task here",
)
def confidence_is_less_right_in_another_domain(results):
    home = results.moved.value("wrong", place="at home")
    away = results.moved.values("wrong", place=lambda place: place != "at home")
    worst = away.max()
    return f"{away:.1%}, {home:.1%} at home", worst > home


@statement(
    "a bandit finds the threshold",
    source="Survey, section 3.4 (UCBEE, CeeBERT)",
    quote="Over one stream a bandit earns what the best fixed threshold does, to a hundredth of the depth.",
    published="named, no number",
    judged_by="loss",
)
def a_bandit_finds_the_threshold(results):
    regret = results.keepers.value("regret", who="bandit, one stream")
    return f"regret {regret:.3f} a token", regret < 0.01


@statement(
    "a bandit keeps the quality",
    source="Survey, section 5 (CeeBERT)",
    quote="What the bandit's thresholds lose is at most what a calibrated threshold may lose.",
    published="named, no number",
    judged_by="loss",
)
def a_bandit_keeps_the_quality(results):
    loss = results.keepers.value("loss", who="bandit, one stream")
    calibrated = results.keepers.value("loss", who="calibrated")
    return f"loss {loss:.1%}, calibrated {calibrated:.1%}", loss <= results.delta
