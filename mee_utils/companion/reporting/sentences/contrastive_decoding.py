"""What the text of notebook 04 rests on."""

from ....analysis.decisions import LEAST_TO_RANK
from . import ends, percent

FIRST = 4  # layer at which a token may exit
KEPT = 0.98  # share of the predictions


def sentences(real):
    """Each sentence with whether it is true of the stored tables."""
    yield from _mechanism(real)
    yield from _single(real)
    yield from _ranking(real)
    yield from _equal(real)
    yield from _decoder(real)
    yield from _costs(real)


def _mechanism(real):
    changed = real("04_contrastive_decoding/changed_tokens").set_index("task")
    first, second = (changed.groupby("task").nth(place) for place in (0, 1))
    yield (
        "In each case two tokens are plausible. The expert gives the better one about nine tenths.",
        (changed.groupby("task").size() == 2).all() and ((first.expert - 0.9).abs() < 0.05).all(),
    )
    yield "But its amateur is nearly as certain of it", (first.amateur > 0.7).all()
    yield "the second token gains on all three, and wins", (second.contrast > first.contrast).all()

    amateurs = real("04_contrastive_decoding/chosen_amateur").query("layer > 2 and amateur_layer == 1")
    yield "for 90 to 100 % of the tokens, at every layer from the third on", ends(amateurs.share) == [90, 100]


def _single(real):
    single = real("04_contrastive_decoding/single_plausible").query(f"layer == {FIRST}")
    yield (
        "at layer 4 the plausible set has one member for 43 to 83 % of the tokens",
        ends(single.single) == [43, 83],
    )
    wrong = (100 * single.wrong_single).round(1)
    yield "but 0.6 to 3.5 % of them are not final", (wrong.min(), wrong.max()) == (0.6, 3.5)

    at_level = real("04_contrastive_decoding/at_equal_threshold")
    layers = at_level.pivot(index="task", columns="rule", values="mean_exit_layer")
    kept = at_level.pivot(index="task", columns="rule", values="same_token")
    bare = "weighted, without the mass"
    earlier = (layers.unpruned - layers[bare]).round(1)
    yield (
        "Tokens then leave 0.7 to 1.5 layers earlier than under the plain margin",
        (earlier.min(), earlier.max()) == (0.7, 1.5),
    )
    yield "1 to 3 % of the predictions change", ends(1 - kept[bare]) == [1, 3]
    yield (
        "where the plain margin and contrast with the mass change 0.6 % at most",
        (1 - kept.drop(columns=bare)).max(axis=None).round(4) == 0.006,
    )
    yield (
        "With the mass, weighted contrast exits where the plain margin does.",
        (layers.weighted - layers.unpruned).abs().max() < 0.02,
    )


def _ranking(real):
    ranks = real("04_contrastive_decoding/ranking")
    areas = ranks.pivot(index=["model", "task", "layer"], columns="rule", values="roc_area").dropna()
    means = areas.groupby(["model", "task"]).mean().groupby("model").mean().round(2)
    contrasts = means[["weighted", "jsd"]]
    yield (
        "For CALM the plain margin reaches an AUROC of 0.93 and both contrasts 0.87; for vanilla, the "
        "margin reaches 0.81 and both contrasts 0.77",
        means.unpruned.to_dict() == {"calm": 0.93, "vanilla": 0.81}
        and (contrasts.loc["calm"] == 0.87).all()
        and (contrasts.loc["vanilla"] == 0.77).all(),
    )
    ahead = areas.unpruned > areas[["weighted", "jsd"]].max(axis=1)
    counts = ahead.groupby("model").agg(["sum", "size"])
    yield (
        "at all 17 of CALM's layers that can be ranked, and at 19 of vanilla's 23",
        [*counts.loc["calm"], *counts.loc["vanilla"]] == [17, 17, 19, 23]
        and ranks.dropna().not_final.min() >= LEAST_TO_RANK,
    )
    gap = areas.unpruned - areas[["weighted", "jsd"]].max(axis=1)
    deep = gap.groupby(["model", "task"]).last()
    shallow = gap.groupby(["model", "task"]).first()
    yield "The gap grows with depth", (deep >= shallow).all()


def _equal(real):
    rows = real("04_contrastive_decoding/equal_quality").query(f"wanted == {KEPT}")
    flops = rows.pivot(index="task", columns="rule", values="flops_share")
    layers = rows.pivot(index="task", columns="rule", values="mean_exit_layer")
    means = flops.mean()
    yield (
        "it takes 119 % (weighted) and 141 % (JSD) of full depth's FLOPs, where the plain margin takes 92 %",
        percent(means.weighted, means.jsd, means.unpruned) == [119, 141, 92],
    )
    yield (
        "keeps their order: 69, 85 and 113 %",
        percent(means.fixed, means.weighted_fixed, means.jsd_fixed) == [69, 85, 113],
    )
    yield ("On every task the pruned plain margin is the cheapest.", (flops.idxmin(axis=1) == "fixed").all())
    yield (
        "Contrast needs later exits for the same share of predictions",
        (layers[["weighted", "jsd"]].min(axis=1) > layers.unpruned).all()
        and (layers[["weighted_fixed", "jsd_fixed"]].min(axis=1) > layers.fixed).all(),
    )
    bare = real("04_contrastive_decoding/without_the_mass").set_index("task").mean_exit_layer
    yield (
        "Without the mass, tokens exit at most 0.1 layers earlier than with it",
        (layers.weighted - bare).max().round(1) == 0.1 and (bare < layers.weighted).all(),
    )
    yield "and on every task later than under the plain margin", (bare > layers.unpruned).all()

    starts = real("04_contrastive_decoding/minimum_layer")
    starts = starts.pivot_table(index="min_layer", columns="rule", values="flops_share")
    yield (
        "At every minimum exit layer the plain margin is the cheapest of the three.",
        (starts.idxmin(axis=1) == "fixed").all(),
    )


def _decoder(real):
    rows = real("04_contrastive_decoding/as_decoder").query("rule != 'full_depth'")
    rows = rows.assign(alpha=rows.alpha.astype(float))
    published, larger = (rows[rows.alpha == alpha] for alpha in (0.1, 0.5))
    yield (
        "the score falls clearly in 8 of 12 cases, by as much as 21 %",
        ((published.high < 1).sum(), len(published)) == (8, 12)
        and percent(1 - published.retained.min()) == [21],
    )
    yield (
        "it is clearly lowered in none, and clearly raised in none",
        (larger.high >= 1).all() and (rows.low <= 1).all(),
    )
    yield (
        "62 and 51 % of the outputs differ",
        percent(1 - published.same_output.mean(), 1 - larger.same_output.mean()) == [62, 51],
    )
    settings = real("04_contrastive_decoding/pareto_verdict")
    losses = -settings.groupby("task").gain.median().round(1)
    yield (
        "No setting of 30 is better than all plain margins that cost no more, 12 are clearly worse.",
        (len(settings), settings.improves.sum(), settings.worse.sum()) == (30, 0, 12),
    )
    yield "The median loss is 0.6 to 2.9 points.", (losses.min(), losses.max()) == (0.6, 2.9)
    yield (
        "Where contrast picks the token too, every setting loses.",
        (settings[settings.rule.str.endswith("_token")].gain < 0).all(),
    )


def _costs(real):
    times = real("04_contrastive_decoding/measured_cost").pivot(
        index="what", columns="shape", values="median"
    )
    plain = times.loc["margin, 256 ids kept"]
    weighted = times.loc["weighted contrast, 256 ids kept"]
    yield (
        "takes about twice as long as a plain margin (0.22 of a layer beside 0.11 at T5-base's sizes)",
        [weighted["t5-base"].round(2), plain["t5-base"].round(2)] == [0.22, 0.11]
        and ((weighted / plain).round() == 2).all(),
    )
    jsd = times.loc["JSD contrast, 256 ids kept"] / plain
    yield "JSD four to eight times", (round(jsd.min()), round(jsd.max())) == (4, 8)
    whole = times.loc[["softmax_margin", "weighted contrast"]]
    yield "A decision over the whole vocabulary takes longer than a layer", (whole > 1).all(axis=None)

    long = real("04_contrastive_decoding/long_documents").set_index("rule").loc["full_depth"]
    yield (
        "at 5,519 source tokens they are 88 % of full depth's FLOPs, logits 0.3 %",
        round(long.source_tokens) == 5519
        and percent(long.source_share) == [88]
        and round(100 * long.readout_share, 1) == 0.3,
    )
    grown = real("04_contrastive_decoding/long_inputs").query("shape == 't5-large' and rule == 'unpruned'")
    grown = grown.set_index("source_tokens").flops_share - 1
    yield (
        "add 149 % to full depth's FLOPs with 64 source tokens, and 5 % with 16,384",
        percent(grown[64], grown[16384]) == [149, 5],
    )
