"""What the text of notebook 10 rests on."""


def sentences(real):
    """Each sentence with whether it is true of the stored tables."""
    overthought = real("10_confidence/overthinking").pivot(
        index="task", columns="model", values="overthought"
    )
    yield (
        "up to 6 % of CALM's tokens are right at an earlier layer",
        f"{overthought.calm.max():.0%}" == "6%",
    )
    yield "vanilla's share is of the same size", (overthought.vanilla - overthought.calm).abs().max() < 0.02

    confident = real("10_confidence/fake_confidence")
    first = confident[confident.layer == 4].pivot(index="task", columns="model", values="wrong")
    last = confident[confident.layer == 12].pivot(index="task", columns="model", values="wrong")
    yield "most of the tokens that vanilla is confident of are wrong", (first.vanilla > 0.5).all()
    yield "Under CALM few are, and no more than at the last layer", (first.calm < last.calm + 0.005).all()
    very_first = confident[confident.layer == 1]
    yield "The first layer is the exception, in both models.", (very_first.wrong > 0.25).all()

    ways = real("10_confidence/trained_how").set_index(["trained by", "task"])
    area = ways.roc_area.unstack("task")
    balanced, squared = area.loc["balanced cross-entropy"], area.loc["squared error"]
    yield "balanced cross-entropy gives it the larger area on every task", (balanced > squared).all()
    yield "with neither loss does it reach the largest probability", (area.loc["untrained"] > balanced).all()
    ahead = area - area.loc["untrained"]
    yield (
        "only the distilled map is ahead of that, by less than 0.01",
        (
            (ahead.drop(index=["distilled", "untrained"]).min(axis=1) < 0).all()
            and ahead.loc["distilled"].between(0, 0.01).all()
        ),
    )
    right = ways.right.unstack("task")
    yield (
        "the one predicted through a distilled map is the last layer's more often",
        (right.loc["distilled"] > right.loc["untrained"]).all(),
    )
