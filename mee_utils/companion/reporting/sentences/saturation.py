"""What the text of notebook 02 rests on."""

TASKS = ["question_answering", "summarization", "translation"]


def sentences(real):
    """Each sentence with whether it is true of the stored tables."""
    yield from _published_selection(real)
    yield from _other_selection(real)
    yield from _by_layer(real)
    yield from _predictors(real)


def _published_selection(real):
    table = real("02_saturation/table_1_beside_published").set_index(["group", "property", "task"])
    easy, difficult = (table["mean"][group].unstack("property").loc[TASKS] for group in ("easy", "difficult"))
    yield (
        "after 59 to 62 % of the depth, difficult ones after 65 to 73 %",
        _whole(easy.first_similar) == (59, 62) and _whole(difficult.first_similar) == (65, 73),
    )
    yield (
        "longer on question answering (4.4 against 3.3 tokens), equally long on summarization (19) and "
        "*shorter* on translation (10 against 13)",
        easy.prefix_tokens.round(1).iloc[0] == 4.4
        and difficult.prefix_tokens.round(1).iloc[0] == 3.3
        and list(easy.prefix_tokens.round().iloc[1:]) == [19, 10]
        and list(difficult.prefix_tokens.round().iloc[1:]) == [19, 13],
    )
    yield (
        "from the first layer for 96 to 100 % of the prefixes of either kind",
        _whole(easy.rises_after_0) == _whole(difficult.rises_after_0) == (96, 100),
    )


def _other_selection(real):
    rows = real("02_saturation/three_selections").query("model == 'calm'")
    means = rows.pivot(index=["property", "selected_by", "task"], columns="group", values="mean")
    later = (means.difficult - means.easy).unstack("task")
    similar, settled = later.loc["first_similar"], later.loc["settled_from"]
    yield (
        "difficult prefixes have their first similar state 0.8 to 1.3 layers after easy ones",
        _tenths(similar.loc["mean_similarity"]) == (0.8, 1.3),
    )
    curves = real("02_saturation/circularity")
    curves = curves.pivot(index=["selected_by", "task", "layer"], columns="group", values="similarity")
    apart = (curves.easy - curves.difficult).groupby("selected_by").mean()
    yield (
        "the difference is at most 0.2 layers, and about a quarter of the gap in cosine is left",
        similar.loc["loss"].abs().max() < 0.2 and abs(apart.loss / apart.mean_similarity - 0.25) < 0.03,
    )
    yield (
        "tokens of high loss reach their final prediction 1.4 to 3.9 layers after those of low loss",
        _tenths(settled.loc["loss"]) == (1.4, 3.9),
    )
    yield (
        "Prefixes of low similarity are later, too, by 1.2 to 2.5 layers",
        _tenths(settled.loc["mean_similarity"]) == (1.2, 2.5),
    )
    low_loss = means.easy.loc["settled_from", "loss"]
    yield "CALM's tokens of low loss are final from layer 2 on average", (low_loss.round() == 2).all()


def _by_layer(real):
    shares = real("02_saturation/reached_by_layer").query("model == 'calm' and layer == 4")
    shares = shares.pivot(index="task", columns="depth", values="share")
    yield (
        "70 to 92 % of CALM's predictions are final, and no state is similar to the last layer's",
        _whole(100 * shares.settled_from) == (70, 92) and shares.first_similar.max() == 0,
    )
    confident = real("02_saturation/confident_unsaturated").query("model == 'calm'")
    yield (
        "CALM is confident of 28 to 62 % of the tokens, and not one of these has a similar state",
        _whole(100 * confident.sure) == (28, 62) and (confident.unsaturated == 1).all(),
    )
    places = real("02_saturation/entropy_by_place").query("model == 'calm'")
    places = places.pivot(index="part", columns="task", values="entropy")
    yield (
        "entropy halves on question answering (0.13 to 0.07 nats)",
        places.question_answering[[1, 3]].round(2).tolist() == [0.13, 0.07],
    )
    yield (
        "stays as it is on translation (0.6) and grows on summarization (1.6 to 2.4)",
        places[["translation", "summarization"]].loc[[1, 3]].round(1).to_numpy().tolist()
        == [[0.6, 1.6], [0.6, 2.4]],
    )


def _predictors(real):
    rows = real("02_saturation/what_foretells_depth").query("model == 'calm'")
    correlations = rows.pivot(index=["depth", "measure"], columns="task", values="spearman")
    settled, similar = correlations.loc["settled_from"], correlations.loc["first_similar"]
    yield (
        "by the model's own loss on summarization and translation (0.58 and 0.62), and by the frequency of "
        "the token on question answering (-0.52)",
        list(settled.abs().idxmax()[TASKS]) == ["log_frequency", "loss", "loss"]
        and settled.loc["loss"].round(2)[TASKS].iloc[1:].tolist() == [0.58, 0.62]
        and round(settled.loc["log_frequency", "question_answering"], 2) == -0.52,
    )
    yield "Frequent tokens settle early everywhere.", (settled.loc["log_frequency"] < -0.4).all()
    position = settled.loc["prefix_tokens"]
    yield (
        "which holds on question answering alone and weakly",
        list(position.index[position < 0]) == ["question_answering"] and position.abs().max() < 0.2,
    )
    yield "no correlation exceeds 0.31", similar.abs().max(axis=None) < 0.315

    kinds = real("../small/02_saturation/depth_by_difficulty").query("model == 'calm'")
    kinds = kinds.pivot(index=["depth", "difficulty"], columns="task", values="mean_layer")
    final = kinds.loc["settled_from"].mean(axis=1)
    yield (
        "CALM's grammatical tokens are final first and its counted ones last",
        final.grammatical - final.min() < 0.01 and final.idxmax() == "counted",
    )
    states = kinds.loc["first_similar"]
    yield (
        "grammatical tokens, the easiest, become similar later than copied ones on every task",
        (states.loc["grammatical"] > states.loc["copied"]).all(),
    )


def _whole(values):
    """The least and the largest, rounded."""
    return round(values.min()), round(values.max())


def _tenths(values):
    """The least and the largest, rounded to tenths."""
    return round(values.min(), 1), round(values.max(), 1)
