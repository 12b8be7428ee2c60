"""What the findings of README rest on."""


def sentences(real):
    """Each sentence with whether it is true of the stored tables."""
    settled = real("01_monotonicity/figure_1_settled").query("layer == 4")
    settled = settled.pivot(index="task", columns="model", values="share")
    more = (settled.calm > 2 * settled.vanilla).all()
    yield "Training, not the rule, decides when predictions settle.", more

    smaller = real("retrained/rivals").query("decoder_layers == 6 and model != 'vanilla'")
    timed = real("../bench/rivals").query("profile == 'real' and decoder_layers == 6 and batch == 1")
    yield (
        "A smaller decoder collects the gain without any rule.",
        ((smaller.kept > 0.99).all() and (timed.speed > 1.5).all()),
    )

    saving = real("08_results/at_99_percent").query("verdict == 'keeps it' and flops_share < 1")
    several = saving[saving.rule.isin(["elbert", "three_hidden", "pcee", "patience", "history", "q_exit"])]
    yield "Rules over several layers save work, MEE's own hardly.", several.task.nunique() == 3

    drafts = real("../bench/lossless").query("profile == 'real' and model == 'calm' and batch == 1")
    yield "where a run varies by more than a tenth", (drafts.highest / drafts.lowest > 1.1).all()
