"""Statements on pruned readouts, compared with what 03 measures.

Tables: `recall` (by k and layer), `honesty` (confidence and accuracy), `minimum` (exit layer), `complete` and
`equal` (cost at equal quality), `first` (no minimum layer) and `times` (make bench).
"""

from ...analysis.statistics import Comparison
from ..statement import Timing, Untestable, largest_drop, statement

IN_THE_TABLE = ["fixed", "decaying"]  # of the paper: the last layer is pruned too
FORMS = [*IN_THE_TABLE, "adaptive"]
SPEAKS_FROM = 0.5  # of the fine-tuned model's score: with less, a pre-trained model cannot do the task


def check_pretrained_can_speak(results) -> None:
    """Raises `Untestable` where the pre-trained model cannot do the task: its ranks then say nothing."""
    base = results.complete.values("score", model="pretrained", reduction="full_depth").value[0]
    tuned = results.complete.values("score", model="vanilla", reduction="full_depth").value[0]
    if base < SPEAKS_FROM * tuned:
        short = f"{base:.1f} of the fine-tuned model's {tuned:.1f}"
        raise Untestable(f"the pre-trained model cannot do the task (score {short})")


@statement(
    "the final token ranks high early",
    source="Not all FLOPs, section 4",
    quote=(
        "The final token is often highly ranked after the first few layers (here: half of them are among "
        "the best 8 after layer 2)."
    ),
    published="figure",
    judged_by="predictions",
    models=["vanilla"],
)
def the_final_token_ranks_high_early(results):
    recall = results.recall.value("recall", model="vanilla", layer=2, k=8)
    return f"{recall:.1%} among the best 8 after layer 2", recall >= 0.5


@statement(
    "more so after fine-tuning",
    source="Not all FLOPs, section 4",
    quote="The final token ranks higher in fine-tuned than in pre-trained models.",
    published="figure",
    judged_by="predictions",
    models=["pretrained", "vanilla"],
)
def more_so_after_fine_tuning(results):
    check_pretrained_can_speak(results)
    tuned = results.recall.value("recall", model="vanilla", layer=4, k=8)
    base = results.recall.value("recall", model="pretrained", layer=4, k=8)
    return f"{tuned:.1%} against {base:.1%} among the best 8 after layer 4", tuned > base + 0.02


@statement(
    "early layers are too sure",
    source="Not all FLOPs, section 4",
    quote="The first layers are confident where they are wrong.",
    published="figure",
    judged_by="confidence",
    models=["vanilla"],
)
def early_layers_are_too_sure(results):
    confidence = results.honesty.value("confidence", model="vanilla", layer=1)
    accuracy = results.honesty.value("accuracy", model="vanilla", layer=1)
    return f"after layer 1: confidence {confidence:.1%}, right {accuracy:.1%}", confidence > accuracy


@statement(
    "fine-tuned models may exit earlier",
    source="Not all FLOPs, section 4",
    quote="The minimum exit layer of a fine-tuned model is smaller.",
    published="expected",
    judged_by="exit layer",
    models=["pretrained", "vanilla"],
)
def fine_tuned_models_may_exit_earlier(results):
    check_pretrained_can_speak(results)
    tuned = results.minimum.value("minimum_layer", model="vanilla")
    base = results.minimum.value("minimum_layer", model="pretrained")
    return f"layer {tuned:.0f} against {base:.0f}", tuned < base


def pruning_lowers_the_score(results, model: str) -> tuple[str, Comparison]:
    """Whether each way of pruning in the paper's table costs 2 % of the unpruned run's score, or more."""
    unpruned = results.complete.value("retained", model=model, reduction="unpruned")
    if not unpruned.value.any():
        raise Untestable("the unpruned run keeps nothing of the score")
    pruned = results.complete.values("retained", model=model, reduction=IN_THE_TABLE)
    ours = f"kept: {unpruned:.1%} unpruned, {pruned:.1%} fixed, decaying"
    return ours, pruned.max() < 0.98 * unpruned


@statement(
    "pruning costs score",
    source="Not all FLOPs, softmax results",
    quote="Both ways of pruning lower the score (here: of CALM's model, which the paper did not run).",
    published="SAMSum ROUGE-L 36.0 to 2.5 and 0",
    judged_by="score",
)
def pruning_costs_score(results):
    return pruning_lowers_the_score(results, "calm")


@statement(
    "pruning costs score of vanilla",
    source="Not all FLOPs, softmax results",
    quote="Both ways of pruning lower the score of an ordinary fine-tuned model.",
    published="SAMSum ROUGE-L 36.0 to 2.5 and 0",
    judged_by="score",
    models=["vanilla"],
)
def pruning_costs_score_of_vanilla(results):
    return pruning_lowers_the_score(results, "vanilla")


@statement(
    "pruning saves work",
    source="Not all FLOPs, softmax results",
    quote="Pruned runs take fewer FLOPs than unpruned ones at the same threshold.",
    published="not counted",
    judged_by="FLOPs",
)
def pruning_saves_work(results):
    shares = results.complete.values("flops_share", model="calm", reduction=["unpruned", *FORMS])
    unpruned = results.complete.value("flops_share", model="calm", reduction="unpruned")
    dearest = results.complete.values("flops_share", model="calm", reduction=FORMS).max()
    return f"FLOPs {shares:.1%} of full depth", dearest < unpruned


@statement(
    "pruning saves time",
    source="Not all FLOPs, softmax results",
    quote="Pruned runs take less time than unpruned ones (one output at a time, fixed and decaying).",
    published="36.0 to 7.6 s (CNN/DM, decaying)",
    judged_by="time",
    untested="not timed",
)
def pruning_saves_time(results):
    one_output = {"model": "calm", "batch": 1}
    pruned = Timing.of(results.times, **one_output, reduction=["fixed", "decaying"])
    unpruned = Timing.of(results.times, **one_output, reduction="unpruned")
    ours = f"fixed, decaying: {pruned}; unpruned: {unpruned}"
    return ours, pruned.slowest.gain(unpruned) > 0


@statement(
    "decaying is cheaper than fixed",
    source="Not all FLOPs, section 4",
    quote=(
        "A list that shrinks from layer to layer costs less than one of a fixed size (here, of a quarter "
        "of the size)."
    ),
    published="expected",
    judged_by="FLOPs",
)
def decaying_is_cheaper_than_fixed(results):
    decaying = results.complete.value("flops_share", model="calm", reduction="decaying")
    fixed = results.complete.value("flops_share", model="calm", reduction="fixed")
    return f"FLOPs {decaying:.1%} against {fixed:.1%}", decaying < fixed


@statement(
    "pruning pays only where most layers decide",
    source="Not all FLOPs, softmax results",
    quote="Where tokens exit after few decisions (CALM), reducing the vocabulary saves nothing (FLOPs).",
    published="argued of the runtime",
    judged_by="FLOPs",
)
def pruning_pays_only_where_most_layers_decide(results):
    fixed = results.complete.value("flops_share", model="calm", reduction="fixed")
    unpruned = results.complete.value("flops_share", model="calm", reduction="unpruned")
    layer = results.complete.value("mean_exit_layer", model="calm", reduction="unpruned")
    return f"FLOPs {fixed:.1%} against {unpruned:.1%}, exits at layer {layer:.1f}", fixed >= unpruned


@statement(
    "pruning saves no time where few layers decide",
    source="Not all FLOPs, softmax results",
    quote=(
        "Where tokens exit after few decisions (CALM), reducing the vocabulary saves no time (one output at "
        "a time, fixed)."
    ),
    published="argued",
    judged_by="time",
    untested="not timed",
)
def pruning_saves_no_time_where_few_layers_decide(results):
    one_output = {"model": "calm", "batch": 1}
    pruned = Timing.of(results.times, **one_output, reduction="fixed")
    unpruned = Timing.of(results.times, **one_output, reduction="unpruned")
    ours = f"fixed: {pruned}; unpruned: {unpruned}"
    return ours, unpruned.gain(pruned) > 0


@statement(
    "exits need a minimum layer",
    source="Not all FLOPs, section 4",
    quote=(
        "Without a minimum exit layer, exits by softmax perform poorly (here, they lose half of the score)."
    ),
    published="figure",
    judged_by="score",
    models=["vanilla"],
)
def exits_need_a_minimum_layer(results):
    kept = results.first.value("retained", model="vanilla")
    later = results.complete.value("retained", model="vanilla", reduction="unpruned")
    return f"keeps {kept:.1%}, from layer 4 on {later:.1%}", kept < 0.5


@statement(
    "ranks fall smoothly",
    source="Not all FLOPs, section 4",
    quote=(
        "The rank of the final token falls smoothly from layer to layer (here, the share of final tokens "
        "among the best 8 never drops by more than 1 point)."
    ),
    published="figure",
    judged_by="predictions",
    models=["pretrained", "vanilla"],
)
def ranks_fall_smoothly(results):
    check_pretrained_can_speak(results)
    drop = largest_drop(results.recall.curve("recall", model="pretrained", k=8))
    return f"largest drop {drop:.2%}", drop < 0.01


@statement(
    "only irrelevant tokens are discarded",
    source="Not all FLOPs, section 4",
    quote="What pruning discards is irrelevant: the output stays what it was.",
    published="argued",
    judged_by="predictions",
)
def only_irrelevant_tokens_are_discarded(results):
    other = results.complete.values("other_token", model="calm", reduction=FORMS)
    most = other.max()
    return f"changed tokens {other:.2%}", most < 0.01


@statement(
    "pruned confidence is cheaper than full depth",
    source="Not all FLOPs, title",
    quote="With pruning, deciding on probabilities saves FLOPs at 98 % of predictions kept.",
    published="open",
    judged_by="FLOPs",
)
def pruned_confidence_is_cheaper_than_full_depth(results):
    unpruned = results.equal.value("flops_share", rule="unpruned", wanted=0.98)
    fixed = results.equal.value("flops_share", rule="fixed", wanted=0.98)
    return f"FLOPs {unpruned:.0%} unpruned, {fixed:.0%} fixed, of full depth", fixed < 1
