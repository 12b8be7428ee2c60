"""What the findings of README rest on."""

from ...catalogue import MEE_RULES


def sentences(real):
    """Each sentence with whether it is true of the stored tables."""
    settled = real("01_monotonicity/figure_1_settled").query("layer == 4")
    settled = settled.pivot(index="task", columns="model", values="share")
    more = (settled.calm > 2 * settled.vanilla).all()
    yield "Training, not the rule, decides when predictions settle.", more

    smaller = real("retrained/rivals").query("decoder_layers == 6 and model != 'vanilla'")
    smaller = smaller.groupby("task").kept.mean()  # over seeds
    timed = real("../bench/rivals").query("profile == 'real' and decoder_layers == 6 and batch == 1")
    yield (
        "A smaller decoder is the better trade, without any rule.",
        ((smaller > 0.99).all() and (timed.speed > 1.4).all()),
    )

    saving = real("08_results/at_99_percent").query("verdict == 'keeps it' and flops_share < 1")
    mee = saving[saving.rule.isin(MEE_RULES)]
    points = real("08_results/score_against_flops").query("model == 'calm' and retained >= 0.99")
    rules = points[~points.rule.isin(["full_depth", "oracle", "static"])]
    yield (
        "Exit rules save little at equal quality, MEE's own hardly any.",
        rules.groupby("task").whole_share.min().mean() > 0.85 and len(mee) <= 1,
    )
    limits = real("08_results/limits_at_equal_flops")
    yield (
        "rules lose because they choose the wrong layer, not because they have to look",
        (limits.charged_flops - limits.flops_share < 0.01).all() and limits.rule_kept.max() < 0.99,
    )
    speed = real("../bench/exits").query("profile == 'real' and batch == 1 and model == 'calm'")
    speed = speed.pivot(index="task", columns="kind", values="speed")
    translation = speed.loc["translation"]
    repeating = speed.drop("translation")
    yield (
        "Where the output repeats its input, copies of it (prompt look-up) are the better drafts, and exits "
        "add nothing to copies; on translations copies add nothing to exits.",
        (repeating.planned < 1.02 * repeating.copies).all()
        and (repeating.verified < repeating.copies).all()
        and translation.planned < 1.02 * translation.verified,
    )
    large = real("../bench/shapes").query("profile == 'real' and batch == 1 and shape == 't5-large'")
    large = large.set_index(["kind", "task"])
    several = large.loc["several layers"]
    yield (
        "on two of three tasks: those that reliably keep 99 % of the score would be",
        (several.low.drop("summarization") > 1.1).all() and several.low.summarization < 1,
    )
    here = real("../bench/exits").query("profile == 'real' and batch == 1 and kind == 'several layers'")
    yield "In our models of 4 million parameters, not reliably", (here.low < 1).all()
    yield "verifies (self-speculative decoding) lose nothing", (large.low.planned > 1.1).all()
    smollm2 = real("../bench/causal").query("model == 'calm' and dtype == 'float32' and decoder == 'ours'")
    smollm2 = smollm2.set_index("way")
    drafts = smollm2.loc["exits at a layer, verified"]
    yield "exits gain nothing yet", (drafts.high < smollm2.loc["full depth"].low).all()
