"""What the text of notebook 07 rests on."""

from ...result_tables import outputs_to_repay


def sentences(real):
    """Each sentence with whether it is true of the stored tables."""
    yield from _drafts(real)
    yield from _speed(real)
    decoded = real("07_lossless/decoded").set_index(["model", "rule"])
    yield "No output differs.", decoded.other_outputs.sum() == 0
    kept = decoded.kept_unverified
    yield (
        "keep anything from a third of CALM's score to all of it",
        abs(kept["calm"].min() - 1 / 3) < 0.02 and kept["calm"].max() >= 1,
    )
    yield (
        "with vanilla's margin or similarity nothing at all",
        kept["vanilla"][["fixed", "hidden_similarity"]].max() == 0,
    )
    flops = decoded.flops_share
    yield (
        "which for vanilla adds up to eight times the FLOPs of full depth",
        round(flops.max()) == round(flops["vanilla"].max()) == 8,
    )


def _drafts(real):
    rounds = real("07_lossless/rounds").set_index(["model", "task", "rule"])
    accepted = rounds.acceptance.unstack("rule")
    by_layer = real("07_lossless/acceptance_by_layer")
    weighted = by_layer.assign(layer=by_layer.drafted * by_layer.layer).groupby(["model", "task", "rule"])
    layer = (weighted.layer.sum() / weighted.drafted.sum()).unstack("rule")
    calm, vanilla = accepted.loc["calm"], accepted.loc["vanilla"]
    yield (
        "With CALM every rule drafts in the first half of the decoder.",
        (layer.loc["calm"] <= 6).all(axis=None),
    )
    yield (
        "of the classifiers more than 90 % are accepted, of the margin's 80 % or more",
        (calm[["rising_top1", "linear", "three_hidden", "lstm"]] > 0.9).all(axis=None)
        and (calm.fixed >= 0.8).all(),
    )
    yield (
        "similarity, which drafts nearly every token at layer 2, does worst",
        (calm.idxmin(axis=1) == "hidden_similarity").all()
        and layer.hidden_similarity["calm"].between(2, 2.1).all(),
    )
    early = ["fixed", "hidden_similarity"]
    yield (
        "draft just as early, and at most 13 % of these drafts are right",
        (layer.loc["vanilla", early] <= layer.loc["calm", early] + 0.1).all(axis=None)
        and f"{vanilla[early].max(axis=None):.0%}" == "13%",
    )
    late = ["rising_top1", "three_hidden"]
    yield (
        "are right most of the time, in the middle of the decoder or later",
        (vanilla[late] > 0.8).all(axis=None) and (layer.loc["vanilla", late] > 5).all(axis=None),
    )


def _speed(real):
    speeds = real("07_lossless/speed").set_index(["batch", "model", "task"])
    one = speeds.loc[1]
    calm, free = one.loc["calm"], one.loc["free"]
    yield (
        "CALM's verified exits are 1.1 to 1.25 times as fast as full depth in the median run",
        round(calm.speed.min(), 1) == 1.1 and round(calm.speed.max(), 2) == 1.25,
    )
    yield ("the short answers of question answering gain most", calm.speed.idxmax() == "question_answering")
    tasks = ["question_answering", "summarization", "translation"]
    yield (
        "FREE's are faster than CALM's on all three tasks (1.28, 1.16 and 1.34 times full depth).",
        (free.speed > calm.speed).all() and free.speed[tasks].round(2).tolist() == [1.28, 1.16, 1.34],
    )
    yield "the ranges of runs overlap on each task", (free.lowest < calm.highest).all()
    yield "the planner had expected more of CALM on two of them", (calm.expected > free.expected).sum() == 2
    yield "For vanilla nothing is drafted.", one.loc["vanilla"].rule.isna().all()
    yield (
        "of all models and tasks at batch 8 and 32, drafts are planned for one",
        speeds.loc[[8, 32]].rule.notna().sum() == 1,
    )
    yield "Planning takes up to 44 seconds", round(speeds.planning_seconds.max()) == 44
    repaid = outputs_to_repay(calm)
    yield (
        "made up for after about 1,000 to 2,600 outputs",
        (round(repaid.min(), -2), round(repaid.max(), -2)) == (1000, 2600),
    )
