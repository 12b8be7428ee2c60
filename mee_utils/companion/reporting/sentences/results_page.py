"""What the text of RESULTS.md rests on; notebooks have their own modules."""

from ...catalogue import RULES
from . import ends, percent


def sentences(real):
    """Each sentence with whether it is true of the stored tables."""
    yield from _settling(real)
    yield from _price(real)
    yield from _easy(real)
    yield from _decisions(real)
    yield from _deciders(real)
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
    shallow = real("retrained/rivals").query("model != 'vanilla'")
    lows = shallow.query("decoder_layers == 6").groupby("seed").kept_low.min()
    yield "none of them reliably 99 % on every task", (lows < 0.99).all()
    least = shallow.groupby(["decoder_layers", "task"]).kept.mean().groupby("decoder_layers").min()
    yield "6 of the 12 decoder layers", (least[least.index < 6] < 0.99).all() and least[6] >= 0.99


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
    yield "Vanilla is not made for exits", whole.mean() < 0.5 and (few <= whole).all()
    scores = real("03_pruning/complete_table").query("model == 'calm'")
    scores = scores.pivot(index="task", columns="reduction", values="score")
    changed = real("03_pruning/complete_table").query("model == 'calm' and reduction == 'fixed'")
    yield "pruning changes fewer than 1 % of CALM's tokens", (changed.other_token < 0.01).all()
    yield "the score moves by less than a point", (scores.unpruned - scores.fixed).abs().max() < 1
    area = real("04_contrastive_decoding/ranking").query("model == 'calm'")
    area = area.groupby(["task", "rule"]).roc_area.mean().unstack("rule")
    yield (
        "On every task this tells final predictions from others less well than the plain margin.",
        (area.unpruned > area[["weighted", "jsd"]].max(axis=1)).all(),
    )


def _deciders(real):
    certain = real("08_results/at_99_percent").query("verdict == 'keeps it' and rule != 'static'")
    least = certain.loc[certain.groupby("task").flops_share.idxmin()].set_index("task")
    families = least.rule.map(lambda rule: RULES[rule].family)
    yield (
        "a probability is the cheapest on questions (70 %) and a rule over several layers on translations "
        "(89 %); on summaries no rule saves 5 %",
        families.question_answering == "probabilities"
        and families.translation == "several layers"
        and least.flops_share.summarization > 0.95,
    )
    wide = real("08_results/at_99_percent").query("task == 'summarization'")
    yield (
        "On summaries the half-width is 0.7 %, so a rule may lose 0.3 % at most",
        round((wide.high - wide.low).median() / 2, 3) == 0.007,
    )


def _limits(real):
    limits = real("08_results/limits_at_equal_flops")
    yield "With exact states the loss is zero", (limits.exact.round(3) == 1).all()
    price = limits.charged_flops - limits.flops_share
    yield (
        "On real text, and counted in FLOPs, these models lose more to wrong decisions than to the price of "
        "decisions over few tokens.",
        price.max() < 0.01 and limits.rule_kept.max() < 0.99,
    )


def _speed(real):
    timed = real("../bench/exits").query("profile == 'real'")
    again = timed[timed.batch == 1].drop_duplicates(["model", "task"])
    yield (
        "Full depth timed against itself is 0.98 to 1.01 times as fast in 11 of 12 cases, and 0.92 (0.81 to "
        "0.99) in one",
        [round(value, 2) for value in again.again.nsmallest(2)] == [0.92, 0.98]
        and round(again.again.max(), 2) == 1.01
        and len(again) == 12
        and again.nsmallest(1, "again")[["again_low", "again_high"]].round(2).to_numpy().tolist()
        == [[0.81, 0.99]],
    )
    drafts = timed[(timed.kind == "verified") & timed.model.isin(["calm", "free"])]
    yield "In batches exits gain next to nothing", (drafts[drafts.batch > 1].low < 1.02).all()
    published = real("08_results/beside_published").query("batch == 1").set_index(["rule", "task"])
    rising = published.loc["rising_top1"]
    yield (
        "is 1.2 times as fast as full depth on questions, one output at a time, and keeps 99 % of the score "
        "on average",
        round(rising.speed_exact.question_answering, 1) == 1.2
        and f"{rising.kept_exact.question_answering:.0%}" == "99%",
    )
    large = real("../bench/shapes").query("shape == 't5-large' and batch == 1 and task == 'summarization'")
    yield (
        "on summaries, where hardly any token exits",
        large[large.kind == "several layers"].depth.min() > 0.9,
    )
    of_mee = published.loc[["rising_top1", "three_hidden", "lstm"]].drop("question_answering", level="task")
    others = timed[(timed.kind == "several layers") & (timed.batch == 1)]
    others = others[others.task != "question_answering"]
    yield (
        "on the other tasks all rules over several layers that are timed are slower",
        (of_mee.speed_exact < 1).all() and (others.speed < 1).all(),
    )
    smaller = real("../bench/rivals").query("profile == 'real' and decoder_layers == 6 and batch == 1")
    exits = timed[(timed.batch == 1) & ~timed.kind.isin(["copies", "planned"])]
    yield "faster than any exit here", smaller.speed.min() > exits.speed.max()
    decoded = real("../bench/causal").query("model == 'calm' and dtype == 'float32' and decoder == 'ours'")
    full = decoded[decoded.way == "full depth"].speed.item()
    late = decoded[(decoded.way == "exits at a layer") & (decoded.exit_layer == 24)]
    early = decoded[decoded.way.isin(["exits at a layer", "softmax margin, few tokens, three layers"])]
    early = early[early.exit_layer != 24]
    yield (
        "at layer 24 they save 16 % of the time and lose 15 % of ROUGE-L; at layers 8 and 16, and with a "
        "margin over few tokens, they lose 38 to 49 %",
        percent(1 - full / late.speed.item(), 1 - late.kept.item()) == [16, 15]
        and ends(1 - early.kept) == [38, 49],
    )
    margin = decoded[decoded.way == "softmax margin, every layer"]
    yield (
        "A margin over all tokens at every layer loses 23 % and is slower than full depth.",
        percent(1 - margin.kept.item()) == [23] and margin.high.item() < full,
    )
