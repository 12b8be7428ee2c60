"""What the text of notebook 05 rests on."""

from ...catalogue import MEE_RULES
from ...learned_from import OUTPUTS, REFERENCES
from ...result_tables import KEEPS_IT
from . import percent

ON_STATES = ["linear", "low_rank", "low_rank_three", "hidden", "wide_hidden", "two_hidden", "three_hidden"]
ON_STATES += ["four_hidden", "narrow_lstm", "lstm"]


def sentences(real):
    """Each sentence with whether it is true of the stored tables."""
    area = real("05_mee_classifiers/mean_ranking").query("model == 'calm'")
    area = area.set_index(["target", "rule", "task"]).roc_area.unstack("task")
    yield from _discrimination(area.loc["consistency"])
    yield from _changes(real, area)
    yield from _equal_quality(real)
    yield from _published(real)
    yield from _reliable(real)


def _discrimination(area):
    margin, one = area.loc["softmax_margin"], area.loc["hidden"]
    yield (
        "No classifier on states comes within 0.04 of the softmax margin",
        (area.loc[ON_STATES].max() < margin - 0.04).all(),
    )
    yield (
        "its AUROC is within 0.01 of that on one state",
        (area.loc[["three_hidden", "lstm"]] - one).abs().lt(0.01).all(axis=None),
    )
    history, ahead = area.loc["history"], area.loc["history"] - margin
    yield (
        "The history has an AUROC of 0.906 against the margin's 0.892 on summarization",
        (f"{history.summarization:.3f}", f"{margin.summarization:.3f}") == ("0.906", "0.892"),
    )
    yield (
        "ahead by less than 0.01 on the other two tasks",
        ((ahead > 0).all() and ahead.drop("summarization").max() < 0.01),
    )
    yield "top-1, is at least 0.1 behind the margin", (area.loc["rising_top1"] < margin - 0.1).all()


def _changes(real, area):
    final = area.loc["consistency"]
    tokens = real("05_mee_classifiers/tokens_needed").set_index(["tokens", "rule", "task"]).roc_area
    most = tokens.loc[tokens.index.levels[0].max()].unstack("task")
    source = real("05_mee_classifiers/learned_from").query("rule == 'three_hidden'")
    source = source.set_index(["learned_from", "task"]).roc_area.unstack("task")
    three = final.loc["three_hidden"]
    changes = [three - final.loc["hidden"], final.loc["four_hidden"] - three, final.loc["lstm"] - three]
    changes += [area.loc["correctness", "three_hidden"] - three, source.loc[OUTPUTS] - source.loc[REFERENCES]]
    of_size = [three - final.loc["wide_hidden"], most.loc["three_hidden"] - most.loc["wide_hidden"]]
    yield "Nothing here helps by more than 0.01", max(one.max() for one in changes + of_size) <= 0.01
    gap = final.loc["softmax_margin"] - three
    yield "the gap to the margin is 0.05 to 0.15", (round(gap.min(), 2), round(gap.max(), 2)) == (0.05, 0.15)
    yield (
        "A classifier on one state with as many weights does as well as one on three states",
        all((one <= 0).all() for one in of_size),
    )


def _equal_quality(real):
    costs = real("05_mee_classifiers/cost_of_deciding").query("shape == 't5-large'")
    costs = costs.set_index("rule").share_of_layer
    yield (
        "costs 2.2 layers of T5-large, a classifier on three states a fifth of a layer",
        round(costs.softmax_margin, 1) == 2.2 and round(costs.three_hidden, 1) == 0.2,
    )
    equal = real("05_mee_classifiers/at_equal_quality").query("wanted == 0.98 and target == 'consistency'")
    equal = equal.set_index(["model", "rule", "task"])
    flops = equal.flops_share["calm"].unstack("task")
    yield (
        "the margin over the whole vocabulary takes more FLOPs than full depth on two tasks",
        list(flops.columns[flops.loc["softmax_margin"] > 1]) == ["summarization", "translation"],
    )
    best = flops.idxmin()
    yield (
        "The history is the cheapest rule on these two (71 and 86 %)",
        best.summarization == best.translation == "history"
        and f"{flops.translation.history:.0%} {flops.summarization.history:.0%}" == "71% 86%",
    )
    answers = flops.question_answering
    yield (
        "on question answering it is the margin, over the whole vocabulary or over few tokens (46 %)",
        best.question_answering == "softmax_margin"
        and f"{answers.softmax_margin:.0%} {answers.few:.0%}" == "46% 46%",
    )
    mee = flops.loc[list(MEE_RULES)].min()
    yield (
        "None of MEE's three measures takes less than the classifier on one state",
        ((mee >= flops.loc["hidden"]).all()),
    )
    layers = equal.mean_exit_layer.unstack("task")
    rules = layers.loc["calm"].loc[["hidden", "three_hidden", "lstm"]]
    calm, vanilla = layers.loc["calm", "three_hidden"], layers.loc["vanilla", "three_hidden"]
    yield (
        "How the *model* is trained moves exits more than whether one state, three states or all of them "
        "decide",
        (vanilla - calm > rules.max() - rules.min()).all(),
    )
    yield (
        "at layer 6 to 9 on average in CALM, and at 9 to 10 in vanilla",
        [round(value) for model in (calm, vanilla) for value in (model.min(), model.max())] == [6, 9, 9, 10],
    )


def _published(real):
    published = real("05_mee_classifiers/published_thresholds").query("threshold == '0.9'")
    published = published.set_index(["min_layer", "rule", "task"])
    kept = published.retained.unstack("task")
    fourth, second = kept.loc["4"], kept.loc["2"]
    margin = fourth.loc["softmax_margin"]
    yield (
        "score or more on every task, and neither of MEE's classifiers keeps more",
        (margin > 0.99).all() and (fourth.loc[["three_hidden", "lstm"]].max() <= margin).all(),
    )
    similarity = fourth.loc["hidden_similarity"]
    others = fourth.drop("hidden_similarity")
    yield (
        "Only hidden similarity ruins the output: it keeps 66 to 86 % from layer 4 on",
        f"{similarity.min():.0%} {similarity.max():.0%}" == "66% 86%" and others.min(axis=None) > 0.9,
    )
    yield "about a third from layer 2 on", round(second.loc["hidden_similarity"].mean(), 2) == 0.34
    flops = published.flops_share.unstack("task").loc["4"]
    yield (
        "It also takes the fewest FLOPs, and rising top-1 the most",
        (flops.idxmin() == "hidden_similarity").all() and (flops.idxmax() == "rising_top1").all(),
    )


def _reliable(real):
    kept = real("05_mee_classifiers/at_99_percent")
    flops = kept[kept.verdict == KEEPS_IT].pivot(index="rule", columns="task", values="flops_share")
    few = flops.loc["few"]
    cheapest = flops.min() == few
    yield (
        "on question answering (73 % of the decoder FLOPs) and translation (94 %)",
        f"{few.question_answering:.0%} {few.translation:.0%}" == "73% 94%"
        and cheapest.question_answering
        and cheapest.translation,
    )
    yield "On summarization no rule in the table that keeps it saves anything", flops.summarization.min() >= 1
    yield (
        "it takes more FLOPs than the margin over few tokens on every task",
        (flops.loc["history"] > few).all(),
    )
    passing = real("08_results/at_99_percent").query("verdict == 'keeps it' and rule != 'static'")
    least = passing.groupby("task").flops_share.min()
    yield (
        "70 % on question answering, 89 % on translation and 98 % on summarization",
        percent(least.question_answering, least.translation, least.summarization) == [70, 89, 98],
    )
    mee = flops.loc[list(MEE_RULES)]
    yield (
        "one, three states on question answering, reliably keeps 99 % of the score",
        mee.size == 9 and (mee < 1).sum(axis=None) == 1 and mee.question_answering.three_hidden < 1,
    )
    yield "and saves FLOPs: 2 %.", f"{1 - mee.question_answering.three_hidden:.0%}" == "2%"
