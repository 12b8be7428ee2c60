"""What the findings of README rest on."""

from ...catalogue import MEE_RULES


def sentences(real):
    """Each sentence with whether it is true of the stored tables."""
    settled = real("01_monotonicity/figure_1_settled").query("layer == 4")
    settled = settled.pivot(index="task", columns="model", values="share")
    more = (settled.calm > 2 * settled.vanilla).all()
    yield "Training decides where a token can exit, and it costs quality.", more

    smaller = real("retrained/rivals").query("decoder_layers == 6 and model != 'vanilla'")
    smaller = smaller.groupby("task").kept.mean()  # over seeds
    timed = real("../bench/rivals").query("profile == 'real' and decoder_layers == 6 and batch == 1")
    yield (
        "On our tasks a smaller decoder is the better trade, without any rule.",
        ((smaller > 0.99).all() and (timed.speed > 1.4).all()),
    )

    saving = real("08_results/at_99_percent").query("verdict == 'keeps it' and flops_share < 1")
    mee = saving[saving.rule.isin(MEE_RULES)]
    points = real("08_results/score_against_flops").query("model == 'calm' and retained >= 0.99")
    rules = points[~points.rule.isin(["full_depth", "oracle", "static"])]
    yield (
        "Exit rules save little, MEE's own hardly anything.",
        rules.groupby("task").whole_share.min().mean() > 0.85 and len(mee) <= 1,
    )
    yield ("on summaries none saves 5 %", saving[saving.task == "summarization"].flops_share.min() > 0.95)
    speed = real("../bench/exits").query("profile == 'real' and batch == 1 and model == 'calm'")
    speed = speed.pivot(index="task", columns="kind", values="speed")
    translation = speed.loc["translation"]
    repeating = speed.drop("translation")
    yield (
        "Where the output repeats its input, copies are the better drafts; on translations exits are.",
        (repeating.verified < repeating.copies).all() and translation.copies < translation.verified,
    )
    large = real("../bench/shapes").query("profile == 'real' and batch == 1 and shape == 't5-large'")
    large = large.set_index(["kind", "task"])
    several = large.loc["several layers"]
    yield "none of them is MEE's", not several.rule.isin(MEE_RULES).any()
    yield (
        "If a decoder of T5-large's shape exited where these models do, the cheapest such rules that pass",
        (several.low.drop("summarization") > 1.1).all() and several.low.summarization < 1,
    )
    here = real("../bench/exits").query("profile == 'real' and batch == 1 and kind == 'several layers'")
    yield "In our models of 4 million parameters, not reliably.", (here.low < 1).all()
    yield "the best of both is", (large.low.planned > 1.1).all()
    smollm2 = real("../bench/causal").query("model == 'calm' and dtype == 'float32' and decoder == 'ours'")
    smollm2 = smollm2.set_index("way")
    drafts = smollm2.loc["exits at a layer, verified"]
    yield "verified exits do not pay so far", (drafts.high < smollm2.loc["full depth"].low).all()
