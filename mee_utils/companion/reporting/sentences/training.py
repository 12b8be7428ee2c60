"""What the text of notebook 90 rests on."""

import math


def sentences(real):
    """Each sentence with whether it is true of the stored tables."""
    curves = real("90_training/learning_curves")
    steps = curves.groupby("model").step
    before = curves[curves.step == steps.transform("min")].pivot(
        index="model", columns="layer", values="cross_entropy"
    )
    after = curves[curves.step == steps.transform("max")].pivot(
        index="model", columns="layer", values="cross_entropy"
    )
    calm = after.loc["calm"]
    vanilla = after.loc["vanilla"]
    free = after.loc["free"]
    late = after.loc["late_weighted"]
    yield "the layers end in order of depth", calm.diff().max() < 0.005
    yield (
        "layer 1 goes from 15 to 5 nats, where the last layer has 2",
        f"{before.loc['calm', 1]:.0f} {calm[1]:.0f} {calm[12]:.0f}" == "15 5 2",
    )
    (at_300,) = curves.query("model == 'calm' and layer == 1 and step == 300").cross_entropy
    share = (before.loc["calm", 1] - at_300) / (before.loc["calm", 1] - calm[1])
    yield "Most of that happens in the first 300 steps", share > 0.8
    weights = real("00_models/objectives").pivot(index="layer", columns="model", values="weight")
    drawn = 300 * weights.calm[1] / weights.calm.loc[:11].sum()
    yield "in which layer 1 was drawn about five times", 4 < drawn < 5.5
    yield (
        "Layer 1 of FREE falls to 6 nats with no loss of its own",
        round(free[1]) == 6 and weights.free[1] == 0,
    )
    fall = 1 - (vanilla / before.loc["vanilla"]).loc[4:]
    yield ("layers 4 to 12 fall by 3 to 5 %", (round(100 * fall.min()), round(100 * fall.max())) == (3, 5))
    yield "Layer 1 ends at 15 nats, far worse than a uniform guess", vanilla[1] > 14.5 > math.log(4000)
    yield (
        "FREE's layers 5 to 8, which have no loss of their own, end with a higher cross-entropy than its "
        "exit, layer 4",
        (free.loc[5:8] > free[4]).all(),
    )
    yield (
        "the first four layers, which have none either, end with a higher one than all other layers",
        late.loc[:4].min() > late.loc[5:].max() and (weights.late_weighted.loc[:4] == 0).all(),
    )
    yield "vanilla ends at 1.92 nats and CALM at 2.02", f"{vanilla[12]:.2f} {calm[12]:.2f}" == "1.92 2.02"

    forms = real("../small/90_training/exact_match_by_form")
    forms = forms[~forms.model.isin(["pretrained", "base"])]
    spoken = forms.answer == "in a sentence"
    yield "more than nine of ten questions of each form", forms[spoken].exact_match.min() > 90
    easy = forms[~spoken & (forms.kind == "one fact")].exact_match
    hard = forms[~spoken & (forms.kind != "one fact")].exact_match
    yield "In one word that holds only for questions about one fact", easy.min() > 90
    yield "it is 30 to 63 %", (math.floor(hard.min()), round(hard.max())) == (30, 63)

    runs = real("../small/90_training/ablations").set_index(["answer", "run"])
    sentence = runs.loc["in a sentence"]
    word = runs.loc["in one word"]
    yield (
        "about half as many questions are answered right in a sentence",
        0.5 < sentence.share.flat_start / sentence.share.recipe < 0.6,
    )
    yield "it answers no question", word.right.bare_value == 0
    apart = {
        run
        for table in (sentence, word)
        for run in table.index
        if table.low[run] > table.high.recipe or table.high[run] < table.low.recipe
    }
    yield "The intervals of all other changes overlap the recipe's.", apart == {"flat_start", "bare_value"}
