"""What the text of notebook 03 rests on."""

from ..report_tables import decoder_lines
from . import ends, percent

FIRST = 4  # layer at which a token may exit


def sentences(real):
    """Each sentence with whether it is true of the stored tables."""
    yield from _ranks(real)
    yield from _lists(real)
    yield from _minimum(real)
    yield from _decoded(real)
    yield from _published(real)
    yield from _costs(real)
    yield from _equal(real)


def _ranks(real):
    boxes = real("03_pruning/rank_boxes")
    on_top = boxes[boxes.layer == FIRST].set_index("model").on_top
    yield (
        "At layer 4, CALM ranks it first for 74 to 93 % of the tokens, vanilla for 22 to 31 %.",
        (ends(on_top.calm), ends(on_top.vanilla)) == ([74, 93], [22, 31]),
    )
    medians = boxes.pivot(index="layer", columns=["model", "task"], values="median")
    yield "In vanilla the ranks fall steadily, but late", (medians.vanilla.diff()[1:] <= 0).all(axis=None)
    yield (
        "after layer 2, less than half of the final tokens are among the best 8",
        (medians.vanilla.loc[2] > 8).all(),
    )
    early = medians.loc[:FIRST]
    yield (
        "Here it is the other way round in the first layers",
        (early.pretrained < early.vanilla).all(axis=None),
    )
    scores = real("03_pruning/complete_table").query("reduction == 'full_depth'")
    scores = scores.pivot(index="task", columns="model", values="score")
    share = scores.pretrained / scores.vanilla
    yield (
        "scores 0 on two of the tasks, and less than a third of vanilla's score on summarization",
        share.summarization < 1 / 3 and (share.drop("summarization") < 0.002).all(),
    )


def _lists(real):
    held = real("03_pruning/recall_by_k").groupby(["layer", "k"]).recall.min()
    yield "64 tokens hold at least 99 % of the final tokens on every task", held[FIRST, 64] > 0.99
    yield "and 8 tokens about 95 %", abs(held[FIRST, 8] - 0.95) < 0.01
    yield (
        "at layer 1 or 2 even 256 tokens hold fewer than 99 % on some task",
        held[1, 256] < 0.99 and held[2, 256] < 0.99,
    )
    lost = real("03_pruning/lost_at_the_last_layer").set_index(["rule", "model"]).share.sort_index()
    yield (
        "changes less than 1 % of CALM's tokens, but 13 to 30 % of vanilla's",
        lost["fixed", "calm"].max() < 0.01 and ends(lost["fixed", "vanilla"]) == [13, 30],
    )
    yield "A last layer that scores the whole vocabulary changes none.", (lost["few"] == 0).all()


def _minimum(real):
    trust = real("03_pruning/confidence_and_accuracy").query("model == 'vanilla' and layer == 1")
    yield (
        "Vanilla's first layer is certain of tokens that are almost never final",
        trust.confidence.min() > 0.9 and trust.accuracy.max() < 0.06,
    )
    minimum = real("03_pruning/minimum_exit_layer").set_index("model").minimum_layer
    yield (
        "its layers can be trusted from 7 to 9 of 12 on",
        (minimum.vanilla.min(), minimum.vanilla.max()) == (7, 9),
    )
    yield "CALM's can be trusted from layer 2 on", (minimum.calm == 2).all()

    decoded = real("03_pruning/minimum_layer_decoded").set_index("model")
    yield (
        "both models keep at least 97 % of their score, though vanilla then takes more FLOPs than full depth",
        decoded.loc[["vanilla", "calm"]].retained.min() > 0.9695 and decoded.flops_share.vanilla.min() > 1,
    )
    yield "If they begin at layer 1, vanilla keeps nothing", (decoded.retained_from_first.vanilla == 0).all()
    yield ("and CALM 48 to 83 %", ends(decoded.retained_from_first.calm) == [48, 83])


def _decoded(real):
    rows = real("03_pruning/complete_table").query("reduction != 'full_depth'")
    rows = rows.set_index(["model", "task", "reduction"]).sort_index()
    calm, vanilla = rows.loc["calm"], rows.loc["vanilla"]
    kept = vanilla.retained.unstack("reduction")
    answers, translations = kept.loc["question_answering"], kept.loc["translation"]
    fixed = calm.xs("fixed", level="reduction")
    yield (
        "CALM keeps 97 % or more of it, whichever way the vocabulary is pruned",
        calm.retained.min() > 0.9695,
    )
    yield "changes less than 1 % of the tokens up to the first that differs", fixed.other_token.max() < 0.01
    yield "up to 24 % of the outputs differ", percent(fixed.other_output.max()) == [24]
    yield (
        "it keeps 47 % of its score on question answering, 55 % on translation and nothing on summarization",
        percent(answers.unpruned, translations.unpruned, kept.unpruned.summarization) == [47, 55, 0],
    )
    whole = vanilla.xs("unpruned", level="reduction")
    yield (
        "where all tokens exit at the first layer that may",
        whole.mean_exit_layer.summarization.round(2) == FIRST,
    )
    yield "its answers become seven times too long", round(whole.length_share.question_answering) == 7
    yield (
        "lowers the score further, to 8 % on question answering and 33 % on translation",
        percent(answers.fixed, translations.fixed) == [8, 33],
    )
    yield "up to 65 % of the outputs change", percent(vanilla.other_output.max()) == [65]
    yield (
        "A whole last layer mends most of that (43 and 55 %).",
        percent(answers.few, translations.few) == [43, 55],
    )
    flops = calm.flops_share.unstack("reduction")
    yield (
        "62 to 94 % of full depth's decoder FLOPs at a threshold of 0.9, in place of 78 to 155 %",
        (ends(flops.fixed), ends(flops.unpruned)) == ([62, 94], [78, 155]),
    )


def _published(real):
    rows = real("03_pruning/published_rows")
    pruned = rows[rows.reduction != "full_depth"]
    large = pruned[~pruned.model.str.startswith("long")]
    yield "its pruned T5-large exits at 59 to 63 % of the depth", ends(large.depth) == [59, 63]
    compared = pruned.dropna(subset="our_score")
    kept = (compared.score / compared.score_at_full_depth).set_axis(compared.our_task)
    ours = (compared.our_score / compared.our_score_unpruned).set_axis(
        [compared.our_task, compared.reduction]
    )
    yield (
        "leaves 80 % of the unpruned score with a fixed list and 84 % with a decaying one, the published "
        "run 80 %",
        percent(*ours.question_answering[["fixed", "decaying"]], *kept.question_answering)
        == [80, 84, 80, 80],
    )
    yield (
        "On summarization about 90 % are left, and next to nothing in the published runs.",
        ours.summarization.between(0.89, 0.91).all() and kept.summarization.max() < 0.1,
    )
    yield "later, at 78 to 84 % of the depth", ends(compared.our_depth) == [78, 84]


def _costs(real):
    costs = real("03_pruning/cost_of_a_readout").query("shape == 't5-large'").set_index("ids")
    whole, short = costs.loc[32128], costs.loc[256]
    yield (
        "costs the FLOPs of 2.2 layers of T5-large, and pays only if tokens exit before 42 % of the depth",
        round(whole.share_of_layer, 1) == 2.2 and percent(whole.break_even) == [42],
    )
    yield (
        "over 256 tokens it costs a fiftieth of a layer and pays at almost any depth",
        round(1 / short.share_of_layer, -1) in (50, 60) and short.break_even > 0.98,
    )
    times = real("03_pruning/times").query("model == 'calm'")
    timed = decoder_lines("one decision").query("shape == 't5-large' and what == 'softmax_margin'")
    yield "04 measures 2.4 layers for the same decision", (timed["median"].round(2) == 2.39).all()
    speed = times.pivot(index=["batch", "task"], columns="reduction", values="speed").astype(float)
    gain = speed.fixed / speed.unpruned - 1
    yield (
        "one output at a time, a fixed list makes CALM at most 3 % faster than the whole vocabulary",
        percent(gain[1].max()) == [3],
    )
    others = gain[32].drop("translation")
    yield (
        "in batches of 32 it makes translation 16 % faster and hardly helps the other tasks",
        percent(gain[32, "translation"]) == [16] and others.max() < 0.04,
    )
    alone = speed.fixed[1]
    yield (
        "1.4 times as fast as full depth on question answering, one output at a time, and about as fast on "
        "the other tasks",
        round(alone.question_answering, 1) == 1.4
        and alone.drop("question_answering").between(0.94, 1.06).all(),
    )
    yield "in batches of 32 they are slower", (speed.fixed[32] < 1).all()


def _equal(real):
    equal = real("03_pruning/at_equal_quality")
    spent = equal[equal.wanted == 0.99].pivot(index="task", columns="rule", values="flops_share")
    listed = spent[["fixed", "few", "decaying"]]
    yield (
        "take 51 to 55 % of full depth's FLOPs on question answering, 76 to 78 % on translation and 91 to "
        "93 % on summarization",
        [ends(listed.loc[task]) for task in ("question_answering", "translation", "summarization")]
        == [[51, 55], [76, 78], [91, 93]],
    )
    yield (
        "the whole vocabulary takes 55, 120 and 127 %",
        percent(*spent.unpruned[["question_answering", "translation", "summarization"]]) == [55, 120, 127],
    )
    yield "Adaptive pruning saves next to nothing of that", (spent.unpruned - spent.adaptive).max() < 0.03
    yield (
        "the rising top-1 rule costs more than the margin on every task, with pruning and without",
        (spent.rising_top1 > spent.unpruned).all() and (spent.rising_fixed > spent.few).all(),
    )
    strict = equal[equal.wanted == 0.995].set_index(["rule", "task"])
    yield (
        "with a fixed list, no threshold keeps 99.5 % of the predictions on summarization. With a whole "
        "last layer one does, at 95 % of full depth's FLOPs",
        strict.mean_exit_layer["fixed", "summarization"] == 12
        and percent(strict.flops_share["few", "summarization"]) == [95],
    )
