"""What the text of notebook 07 rests on."""

import numpy as np

from . import ends, percent


def sentences(real):
    """Each sentence with whether it is true of the stored tables."""
    yield from _drafts(real)
    yield from _copies(real)
    yield from _speed(real)
    yield from _published(real)
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
        "For vanilla the total is as much as eight times the FLOPs of full depth",
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
        "More than 90 % of the drafts of rising top-1 and of the classifiers are accepted, and 80 % or more"
        " of the margin's",
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


def _copies(real):
    by_kind = real("07_lossless/copies").set_index(["model", "drafts", "task"]).sort_index()
    passes, rounds = by_kind.tokens_a_pass, by_kind.tokens_a_round
    copies = passes["calm", "copies"]
    exits = passes["calm", "exits"]
    both = passes["calm", "copies and exits"]
    tasks = ["question_answering", "summarization", "translation"]
    yield (
        "copies yield 2.2 tokens a pass on questions, 2.0 on summaries and 1.1 on translations; exits yield "
        "1.3 to 1.4 on every task",
        [*copies[tasks].round(1)] == [2.2, 2.0, 1.1]
        and (exits.min().round(1), exits.max().round(1)) == (1.3, 1.4),
    )
    of_questions = rounds["calm", :, "question_answering"].round(1)
    yield (
        "make rounds longer (3.0 tokens in place of 2.2 on questions)",
        (of_questions["copies and exits"], of_questions["copies"]) == (3.0, 2.2),
    )
    more = both / copies - 1
    yield (
        "a pass yields no more than with copies alone on questions and 1 % more on summaries; on "
        "translations it yields 3 % more than with exits alone",
        more.question_answering < 0
        and f"{more.summarization:.0%}" == "1%"
        and f"{both.translation / exits.translation - 1:.0%}" == "3%",
    )
    vanilla = passes["vanilla"].unstack("drafts")
    yield (
        "With vanilla, whose early drafts are wrong, only copies help.",
        (vanilla.exits < 1).all() and (vanilla["copies and exits"] < vanilla["copies"]).all(),
    )


def _published(real):
    lines = real("../bench/causal").query("dtype == 'float32'")
    lines = lines.set_index(["model", "decoder", "way"]).sort_index()
    calm, base = lines.loc["calm"], lines.loc["base"]
    ours, theirs = calm.loc["ours"], calm.loc["transformers"]
    verified = "exits at a layer, verified"
    drafts, others = ours.loc[verified].set_index("exit_layer"), theirs.loc[verified].set_index("exit_layer")
    lossless = calm[calm.index.get_level_values("way").isin([verified, "full depth", "copies, verified"])]
    yield "All outputs that are verified are those of `generate`", (lossless.same_outputs == 1).all()
    yield "within two points", ((drafts.acceptance - others.acceptance).abs() < 0.02).all()
    faster = (drafts.speed / others.speed).round(1)
    yield (
        "ours is 2.1 to 2.3 times as fast as `assistant_early_exit`, which is slower than `generate`",
        (faster.min(), faster.max()) == (2.1, 2.3) and (others.high < 1).all(),
    )
    of_base = base.loc["ours"].loc[verified].set_index("exit_layer")
    yield (
        "50, 52 and 77 % of the drafts at layers 8, 16 and 24 are accepted; as published, 5, 11 and 39 %",
        percent(*drafts.acceptance) == [50, 52, 77] and percent(*of_base.acceptance) == [5, 11, 39],
    )
    full = ours.loc["full depth"].speed.item()
    yield (
        "drafting and verifying them is slower than our full depth",
        (drafts.high < full).all() and (of_base.high < base.loc[("ours", "full depth")].speed.item()).all(),
    )
    yield "drafts nothing", np.isnan(ours.loc["exits by a rule, verified"].acceptance.item())
    copies = [each.loc[("ours", "copies, verified")].speed.item() for each in (calm, base)]
    depths = [each.loc[("ours", "full depth")].speed.item() for each in (calm, base)]
    yield (
        "Copies are 1.3 times as fast as full depth with either model, and twice as fast as `generate`",
        [round(a / b, 1) for a, b in zip(copies, depths, strict=True)] == [1.3, 1.3] and min(copies) > 2,
    )
    late = ours.loc["exits at a layer"].set_index("exit_layer").loc[24]
    yield (
        "at layer 24 they are 1.2 times as fast as full depth and keep 85 % of ROUGE-L",
        round(late.speed / full, 1) == 1.2 and percent(late.kept) == [85],
    )
    margin = ours.loc["softmax margin, every layer"]
    yield (
        "takes 2.6 times as long as full depth and keeps 77 %",
        round(full / margin.speed.item(), 1) == 2.6 and percent(margin.kept.item()) == [77],
    )


def _speed(real):
    speeds = real("07_lossless/speed").set_index(["batch", "kind", "model", "task"]).sort_index()
    alone = speeds.loc[1]
    exits = alone.loc["verified"]
    copies = alone.loc["copies"]
    planned = alone.loc["planned"]
    calm = exits.speed["calm"].round(2)
    yield (
        "exits as drafts are 1.17 to 1.24 times as fast as full depth with CALM, on every task, and 1.33 "
        "times with FREE on translation",
        (calm.min(), calm.max()) == (1.17, 1.24) and round(exits.speed["free", "translation"], 2) == 1.33,
    )
    repeating = copies.drop("translation", level="task")
    of_calm = repeating.speed["calm"].round(2)
    yield (
        "1.36 to 1.42 times, and with any model",
        (of_calm.min(), of_calm.max()) == (1.36, 1.42) and (repeating.low > 1.2).all(),
    )
    on_translation = copies.xs("translation", level="task").speed - 1
    yield "on translation they gain 4 or 5 %", ends(on_translation) == [4, 5]
    both = planned.drop("translation", level="task")
    yield "both together are no faster than copies alone", (both.low < repeating.speed).all()
    smaller = real("../bench/rivals").query("decoder_layers == 6 and batch == 1").set_index("task").speed
    yield (
        "On question answering copies are as fast as the smaller decoder",
        copies.xs("question_answering", level="task").high.gt(smaller.question_answering).all(),
    )
    others = alone.speed.drop("question_answering", level="task").groupby("task").max()
    yield "on the other tasks it is faster than any draft", (others < smaller[others.index]).all()
    in_batches = speeds.loc[[8, 32]]
    yield "In batches exits gain next to nothing", (in_batches.xs("verified", level="kind").low < 1.02).all()
    copied = in_batches.xs("copies", level="kind").speed.unstack("task")
    calm = copied.xs("calm", level="model").question_answering.round(1)
    yield (
        "copies gain on question answering alone (1.6 times with CALM at batch 8, 1.2 at 32)",
        [*calm] == [1.6, 1.2] and (copied.drop(columns="question_answering") < 1.05).all(axis=None),
    )
    seconds = speeds.planning_seconds.dropna()
    yield "in one to eleven seconds", (round(seconds.min()), round(seconds.max())) == (1, 11)
    large = real("../bench/shapes").query("profile == 'real' and batch == 1 and shape == 't5-large'")
    large = large[large.kind.isin(["planned", "verified"])]
    large = large.pivot(index="task", columns="kind", values="speed")
    yield (
        "planned drafts are 1.76, 1.48 and 1.43 times as fast (questions, summaries, translations), and "
        "exits alone are 1.4 times as fast on questions and translations",
        [*large.planned.round(2)] == [1.76, 1.48, 1.43]
        and (large.verified.drop("summarization").round(1) == 1.4).all(),
    )
