"""What the text of notebook 00 rests on."""

from ....common.files import ROOT, read_json


def sentences(real):
    """Each sentence with whether it is true of the stored tables."""
    yield from of_objectives(real)
    yield from of_scores(real)
    yield from of_seeds(real)


def of_objectives(real):
    """What CALM weighs, and how often it draws a layer."""
    calm = real("00_models/objectives").query("model == 'calm'").set_index("layer").weight
    yield (
        "CALM gives the first layer 1 % of the loss and the last layer 15 %.",
        f"{calm[1]:.0%} {calm[12]:.0%}" == "1% 15%",
    )
    steps = read_json(ROOT / "mee_utils/checkpoints/real/calm/manifest.json")["steps"]
    yield (
        "in 1,000 steps CALM's first layer is drawn only about 15 times",
        steps == 1000 and round(steps * calm[1] / calm.loc[:11].sum()) == 15,
    )


def of_scores(real):
    """Models beside baselines, each other and published scores."""
    scores = real("00_models/scores")
    trained = scores[(scores.kind == "model") & (scores.system != "pretrained")]
    corpus = trained.pivot(index=["task", "metric"], columns="system", values="corpus_score")
    yield (
        "the largest difference between their corpus scores is 2.4 points",
        f"{(corpus.max(axis=1) - corpus.min(axis=1)).max():.1f}" == "2.4",
    )
    baselines = scores[scores.kind == "baseline"].pivot(
        index=["task", "metric"], columns="system", values="corpus_score"
    )
    rouge = ("summarization", "rougeL")
    lead = corpus.loc[rouge].max() - baselines.loc[rouge].max()
    yield (
        "they lead the first sentence of the dialogue by 9 points of ROUGE-L",
        round(lead) == 9 and baselines.loc[rouge].idxmax() == "first sentence",
    )
    main = corpus.loc[[("question_answering", "exact_match"), rouge, ("translation", "bleu")]]
    others = main[["free", "late_weighted"]].sub(main.vanilla, axis=0)
    yield "scores within 1 point of vanilla's", others.abs().max(axis=None) < 1.05

    published = real("00_models/published_scores").set_index("metric")
    apart = published.ours - published.score
    yield "is 9 BLEU below a small Transformer and weak for its size", round(apart.bleu) == -9
    yield (
        "3 points of ROUGE-1 below a Transformer trained from scratch and 1 point of ROUGE-2 above it",
        (round(apart.rouge1), round(apart.rouge2)) == (-3, 1),
    )
    weighted = published.ours_as_published - published.score
    yield "(`ours_as_published`) our outputs are within 1 point", abs(weighted.rougeL) < 1


def of_seeds(real):
    """Objectives beside seeds, and what they cost at full depth."""
    spread = real("00_models/seed_spread").set_index(["measure", "task", "model"])
    mean = spread["mean"].unstack("model")
    apart = (mean.vanilla - mean.calm).abs()
    seeds = (spread.high - spread.low).groupby("measure").max()
    yield (
        "vanilla and CALM are 3 to 5 layers apart, seeds 0.2 at most",
        round(apart["settled_from"].min()) == 3
        and round(apart["settled_from"].max()) == 5
        and f"{seeds.settled_from:.1f}" == "0.2",
    )
    yield (
        "differ by 25 percentage points or more between objectives and by 3 at most between seeds",
        apart["flops_share"].min() > 0.25 and f"{seeds.flops_share:.0%}" == "3%",
    )
    retained = mean.loc["retained"]
    yield "vanilla exits earlier and loses most of its score", retained.vanilla.max() < 50
    yield (
        "CALM keeps 98 to 101 % of it",
        (round(retained.calm.min()), round(retained.calm.max())) == (98, 101),
    )
    yield (
        "objectives differ by up to 2 points, seeds by up to 1.",
        (round(apart["score"].max()), round(seeds.score)) == (2, 1),
    )

    published = mean[["calm_all_layers", "calm"]].rename(columns={"calm_all_layers": "published"})
    earlier = published.calm["settled_from"] - published.published["settled_from"]
    score = (published.calm["score"] - published.published["score"]).abs().max()
    yield (
        "scores at full depth are within half a point of our CALM's, and predictions are final 0.2 layers "
        "earlier.",
        score < 0.5 and (round(earlier.min(), 1), round(earlier.max(), 1)) == (0.2, 0.2),
    )
    costs = real("00_models/cost_at_full_depth").query("model == 'calm'")
    lost = costs.pivot(index="task", columns="seed", values="lost")
    yield (
        "CALM is below vanilla in question answering (2.1 points on average)",
        f"{lost.loc['question_answering'].mean():.1f}" == "2.1"
        and (lost.loc[["question_answering", "translation"]] > 0).all(axis=None),
    )
    yield "in translation (1.7 BLEU)", f"{lost.loc['translation'].mean():.1f}" == "1.7"
    yield "in summarization it is not", lost.loc["summarization"].min() < 0
    half = (lost.max(axis=1) - lost.min(axis=1)).max() / 2
    yield "the size of the cost is uncertain by about half a point", 0.4 < half < 0.6
