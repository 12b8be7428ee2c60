"""What the text of notebook 01 rests on."""

from . import ends


def sentences(real):
    """Each sentence with whether it is true of the stored tables."""
    yield from _settled(real)
    yield from _confidence(real)
    yield from _tokens(real)
    yield from _decoding(real)


def _settled(real):
    stable = real("01_monotonicity/figure_1_settled").set_index(["model", "task", "layer"]).share.unstack()
    after_2 = stable[2].unstack("task")
    after_4 = stable[4].unstack("task")
    after_6 = stable[6].unstack("task")
    calm, vanilla = after_4.loc["calm"], after_4.loc["vanilla"]
    yield (
        "70 to 93 % of CALM's predictions are final, and 21 to 30 % of vanilla's",
        ends(calm) == [70, 93] and ends(vanilla) == [21, 30],
    )
    between = after_4.loc[["free", "late_weighted"]]
    yield (
        "FREE and late-weighted training are in between",
        ((between < calm) & (between > vanilla)).all(axis=None),
    )
    yield (
        "Here the shares are 52 to 70 % and 70 to 93 %.",
        ends(after_2.loc["calm"]) == [52, 70] and ends(calm) == [70, 93],
    )
    yield (
        "the published level is reached only after layer 4, and only on question answering",
        (after_2.loc["calm"] < 0.75).all() and list(calm[calm >= 0.9].index) == ["question_answering"],
    )
    early = stable[[1, 2, 3]].mean(axis=1).unstack("task").loc[["calm", "free", "late_weighted", "vanilla"]]
    yield (
        "Up to layer 3 the order is CALM, FREE, late-weighted, vanilla on every task",
        (early.diff().iloc[1:] < 0).all(axis=None),
    )
    apart = after_6.loc["calm"] - after_6.loc["late_weighted"]
    yield "Even so, by layer 6 it is within three points of CALM.", (apart < 0.03).all()

    gains = real("01_monotonicity/settling_gain").query("model == 'calm'").layers_earlier
    yield (
        "CALM's predictions are final 3 to 5 layers earlier than vanilla's",
        (round(gains.min()), round(gains.max())) == (3, 5),
    )
    seeds = real("01_monotonicity/settling_by_seed")
    yield "moves the mean by less than 0.2 layers", (seeds.high - seeds.low < 0.2).all()


def _confidence(real):
    table = real("01_monotonicity/figure_2_confidence").set_index(["model", "task", "layer"])
    means = table.confidence.unstack()
    falls = (means.cummax(axis=1) - means).max(axis=1)
    half = (means > 0.5).idxmax(axis=1)
    yield (
        "CALM's mean confidence grows from layer to layer (it never falls by as much as 0.005)",
        (falls["calm"] < 0.005).all(),
    )
    yield (
        "it passes one half at layer 8, CALM's at layer 3 or 4",
        (half["vanilla"] == 8).all() and set(half["calm"]) == {3, 4},
    )
    dips = means.loc["free", 4] - means.loc["free", range(5, 13)].min(axis=1)
    yield (
        "FREE's dips after its exit on question answering and translation, by up to 0.16",
        (dips[["question_answering", "translation"]] > 0.05).all() and round(dips.max(), 2) == 0.16,
    )
    yield "and not on summarization", dips["summarization"] <= 0
    spread = table.standard_deviation.unstack()[6]
    yield (
        "half-way up, the standard deviation is 0.2 to 0.4",
        (round(spread.min(), 1), round(spread.max(), 1)) == (0.2, 0.4),
    )


def _tokens(real):
    predicted = real("01_monotonicity/figure_3_tokens").query("rank == 1")
    tokens = predicted.set_index(["model", "percentile", "layer"])
    words, probability = tokens.token.unstack(), tokens.probability.unstack()
    first_is_final = words[1] == words[12]
    yield (
        "Vanilla's first layer is nearly certain of another word than the final one, all three times.",
        not first_is_final["vanilla"].any() and (probability.loc["vanilla", 1] > 0.99).all(),
    )
    yield (
        "CALM's first layer predicts the final word of the two easier ones.",
        first_is_final["calm"].to_dict() == {10: True, 50: True, 90: False},
    )
    hardest = words.loc["calm", 90]
    settled = hardest.index[hardest != hardest[12]].max() + 1
    yield (
        "their probabilities stay below 0.2 until the prediction settles",
        (probability.loc[("calm", 90), :settled] < 0.2).all(),
    )

    strict = real("01_monotonicity/strictly_monotonic").query("kind == 'never falling' and after_layer == 0")
    never = strict.pivot(index="task", columns="model", values="share")
    start = strict.pivot(index="task", columns="model", values="start")
    yield (
        "The confidence never falls for 38 to 84 % of CALM's tokens, and for 46 to 91 % of vanilla's",
        ends(never.calm) == [38, 84] and ends(never.vanilla) == [46, 91],
    )
    yield (
        "vanilla has the largest share of all models on every task, FREE the smallest",
        (never.idxmax(axis=1) == "vanilla").all() and (never.idxmin(axis=1) == "free").all(),
    )
    yield (
        "its mean confidence is 0.05 or less at layer 1, CALM's is 0.15 to 0.32",
        round(start.vanilla.max(), 2) <= 0.05 and ends(start.calm) == [15, 32],
    )


def _decoding(real):
    exits = real("01_monotonicity/replay_against_decoding").set_index(["policy", "task"])
    rules = exits.drop(index="oracle", level="policy")
    oracle = exits.loc["oracle"]
    yield "at least 97 % of the tokens exit where the replay says", (rules.same_exit >= 0.97).all()
    yield (
        "of the oracle's tokens, which exit at the first possible layer, 84 % or more",
        (oracle.same_exit >= 0.84).all(),
    )
    kept = exits.score / exits.full_score
    depth = oracle.mean_exit_layer_decoded
    yield (
        "The oracle stops after 2.5 to 4 layers and keeps 98 to 103 % of the score",
        depth.between(2.45, 4).all() and ends(kept["oracle"]) == [98, 103],
    )
    yield "most of its summaries differ from full depth's", oracle.same_output["summarization"] < 0.5
    similarity = exits.loc["hidden_similarity"]
    yield (
        "exits every token at layer 4, as a fixed exit does, and loses 14 to 41 % of the score",
        (similarity.mean_exit_layer_decoded == 4).all()
        and (similarity.score == exits.loc["static"].score).all()
        and ends(1 - kept["hidden_similarity"]) == [14, 41],
    )
    yield (
        "The margin keeps 99 % of the score or more, but costs more FLOPs than full depth on two of three",
        (kept["softmax_margin"] > 0.99).all() and (exits.loc["softmax_margin"].flops_share > 1).sum() == 2,
    )
