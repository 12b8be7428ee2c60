"""What the text of RESULTS.md rests on; notebooks have their own modules."""


def sentences(real):
    """Each sentence with whether it is true of the stored tables."""
    yield from _settling(real)
    yield from _price(real)
    yield from _easy(real)
    yield from _decisions(real)
    yield from _limits(real)
    yield from _speed(real)


def _settling(real):
    confidence = real("01_monotonicity/figure_2_confidence")
    calm = confidence[confidence.model == "calm"].sort_values(["task", "layer"])
    falls = calm.groupby("task").confidence.diff().min() < -0.005
    yield "Its mean confidence indeed never falls.", not falls
    never = real("01_monotonicity/strictly_monotonic").query("kind == 'never falling' and after_layer == 0")
    never = never.pivot(index="task", columns="model", values="share")
    yield (
        "confidence falls for more of CALM's tokens than of vanilla's, on every task",
        (never.calm < never.vanilla).all(),
    )


def _price(real):
    seeds = real("retrained/seeds").query("model in ('vanilla', 'calm')")
    spread = seeds.groupby(["task", "model"]).score.agg(lambda scores: scores.max() - scores.min())
    yield "means over two seeds, which differ by half a point", 0.2 < spread.mean() < 0.8
    least = real("retrained/rivals").query("model != 'vanilla'").groupby("decoder_layers").kept.min()
    yield "A decoder of 6 layers", (least[least.index < 6] < 0.99).all() and least[6] >= 0.99


def _easy(real):
    table = real("02_saturation/table_1").query("model == 'calm' and selected_by == 'mean_similarity'")
    means = table.pivot(index=["property", "task"], columns="group", values="mean")
    length = means.loc["prefix_tokens"]
    longer = length.easy > 1.1 * length.difficult
    yield "easy prefixes are longer than difficult ones on one task only", longer.sum() == 1
    rises = means.loc["rises_after_0"]
    yield "similarity rises strictly in nearly all prefixes", (rises > 0.9).all(axis=None)


def _decisions(real):
    pruned = real("03_pruning/complete_table").set_index(["model", "reduction", "task"]).retained.sort_index()
    whole, few = pruned["vanilla", "unpruned"], pruned["vanilla", "fixed"]
    yield (
        "at 0.9 it loses most of its score with the whole vocabulary, more of it with 64 tokens",
        (whole.mean() < 0.5 and (few <= whole).all()),
    )
    area = real("04_contrastive_decoding/ranking").query("model == 'calm'")
    area = area.groupby(["task", "rule"]).roc_area.mean().unstack("rule")
    yield (
        "discriminates less well than the plain margin on every task",
        (area.unpruned > area[["weighted", "jsd"]].max(axis=1)).all(),
    )


def _limits(real):
    limits = real("08_results/limits_at_equal_flops")
    yield "With exact states the loss is zero.", (limits.exact.round(3) == 1).all()


def _speed(real):
    drafts = real("../bench/lossless").query("profile == 'real' and model in ('calm', 'free')")
    yield "in batches nothing is gained", (drafts[drafts.batch > 1].speed < 1.05).all()
    runs = drafts[drafts.batch == 1]
    yield "medians over timing runs that vary by more than a tenth", (runs.highest / runs.lowest > 1.1).all()
    rules = real("../bench/kept").query("profile == 'real' and batch == 1")
    smaller = real("../bench/rivals").query("profile == 'real' and decoder_layers == 6 and batch == 1")
    fastest = rules.groupby("task").speed.max().max()
    yield "faster than any exit here", smaller.speed.min() > max(fastest, runs.speed.max())
