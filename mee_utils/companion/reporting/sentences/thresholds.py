"""What the text of notebook 09 rests on."""


def sentences(real):
    """Each sentence with whether it is true of the stored tables."""
    yield from _bandit(real)
    yield from _intervals(real)
    yield from _elsewhere(real)
    yield from _later(real)


def _bandit(real):
    keepers = real("09_thresholds/bandit_or_calibrated").set_index(["who", "task"])
    stream, calibrated = keepers.loc["bandit, one stream"], keepers.loc["calibrated"]
    yield "it earns nearly as much as the best fixed arm", stream.regret.max() < 0.03
    yield (
        "every order of the outputs ends above the target, with losses of 7 to 17 %",
        (stream.broken == 1).all()
        and (f"{stream.loss.min():.0%}", f"{stream.loss.max():.0%}") == ("7%", "17%"),
    )
    later = (calibrated.mean_exit_layer - stream.mean_exit_layer).round()
    yield (
        "A calibrated threshold never does, and exits 1 to 2 layers later",
        (calibrated.broken == 0).all() and (later.min(), later.max()) == (1, 2),
    )
    yield "at a loss of about 1 %", calibrated.loss.between(0.008, 0.016).all()


def _intervals(real):
    spaced = real("09_thresholds/at_intervals").pivot(index="task", columns="every", values="flops_share")
    every, third = spaced[1], spaced[3]
    task = "question_answering"
    yield (
        "77 % of full depth's FLOPs in place of 71 %",
        (f"{third[task]:.0%}", f"{every[task]:.0%}") == ("77%", "71%"),
    )
    apart = (third - every).drop(task)
    yield (
        "about as much on the other two, where most of the depth is spent anyway",
        apart.abs().max() < 0.01 and every.drop(task).min() > 0.85,
    )
    yield (
        "Exits at every layer cost no more than at some.",
        (every < spaced[[2, 3, 4]].min(axis=1) + 0.005).all(),
    )


def _elsewhere(real):
    table = real("09_thresholds/another_domain")
    kinds = table.place.where(table.place.isin(["at home", "away"]), "corpus")
    worst = table.groupby([kinds, "rule"]).loss.max().unstack("place")
    counts = (worst > 0.02).sum()
    at_home = worst.index[worst["at home"] > 0.02]
    yield (
        "In-domain, one rule of 18 loses more than twice its target on some task (MuE's falling similarity",
        list(at_home) == ["mue"] and len(worst) == 18,
    )
    yield "on another task 6 rules do, on another corpus 12", (counts.away, counts.corpus) == (6, 12)
    by_corpus = table[kinds == "corpus"].groupby(["place", "rule"]).loss.max().unstack("place")
    exceed = (by_corpus > 0.02).sum()
    yield (
        "11 rules exceed it on SQuAD, one or two on other corpora of translations",
        exceed.squad == 11 and exceed[["news", "tatoeba", "made_up_translation"]].between(1, 2).all(),
    )

    moved = real("09_thresholds/confidence_elsewhere")
    home = moved[moved.place == "at home"].set_index("task")
    other = moved[moved.place != "at home"]
    yield (
        "On every other corpus the first exit is confident of fewer tokens, and contradicted more often",
        (other.sure < other.task.map(home.sure)).all() and (other.wrong > other.task.map(home.wrong)).all(),
    )
    yield "up to 3 % of the tokens it is sure of", f"{other.wrong.max():.0%}" == "3%"
    yield "where it is less than 1 % in-domain", home.wrong.max() < 0.01


def _later(real):
    thirds = real("09_thresholds/errors_by_place").set_index(["what", "task", "part"])
    first, last = thirds.xs(1, level="part"), thirds.xs(3, level="part")
    fewer = (last.high < first.low).loc["the first exit"]
    yield (
        "The first exit makes fewer mistakes in the last third than in the first on question answering alone",
        list(fewer.index[fewer]) == ["question_answering"],
    )
    more = (last.wrong > first.wrong).xs("summarization", level="task")
    yield "on summarization both full depth and the first exit make more", more.all()
