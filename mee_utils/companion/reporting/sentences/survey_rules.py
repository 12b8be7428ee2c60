"""What the text of notebook 06 rests on."""

from ...catalogue import IDEAS

ONE_LAYER = "one layer's probabilities"
SEVERAL = "several exits"


def sentences(real):
    """Each sentence with whether it is true of the stored tables."""
    yield from _same_rule(real)
    yield from _ranking(real)
    yield from _alike(real)
    yield from _equal_loss(real)
    bench = real("06_survey_rules/bench").set_index(["task", "rule"])
    speeds = bench.verified_speed.unstack("rule")
    yield (
        "under most rules so few tokens are drafted that verified exits are slower than full depth",
        (speeds.mean() < 1).mean() > 0.5,
    )
    bandit = bench.xs("bandit", level="rule")
    yield (
        "whose consistency loss is above 10 % if its exits are not verified, is the fastest at drafting on "
        "every task",
        (bandit.loss > 0.1).all() and (speeds.idxmax(axis=1) == "bandit").all(),
    )
    yield "about three tokens a verification", round(bandit.tokens_a_round.mean()) == 3


def _same_rule(real):
    same = real("06_survey_rules/same_rule").pivot(index="task", columns="pair", values="same_exit")
    one_rule = same[["PCEE-BERT's code, patience", "ELBERT, entropy or rising top-1"]]
    yield "Two pairs are one rule, for every token of every task", (one_rule == 1).all(axis=None)
    yield "under which most tokens exit elsewhere", (same["PCEE-BERT as written, patience"] < 0.5).all()
    elsewhere = 1 - same["ELBERT, entropy alone"]
    yield ("with entropy alone, up to 40 % of the tokens exit elsewhere", f"{elsewhere.max():.0%}" == "40%")
    yield "at least 95 % of the tokens exit at the same layer", (same["vote, patience"] >= 0.95).all()


def _ranking(real):
    area = real("06_survey_rules/ranking").pivot(index="task", columns="rule", values="roc_area")
    yield (
        "No rule of the survey ranks tokens better than the softmax margin, on any task.",
        (area.idxmax(axis=1) == "few").all(),
    )
    behind = area[["surest", "ztw"]].rsub(area.few, axis=0)
    yield "The largest probability and the ensemble come within 0.03 of it.", (behind < 0.03).all(axis=None)
    yield "patience has a mean AUROC of 0.64", round(area.patience.mean(), 2) == 0.64
    by_idea = area.T.groupby(IDEAS)
    yield (
        "States tell less than probabilities, even with a trained classifier",
        (by_idea.max().loc["states"] < by_idea.min().loc[ONE_LAYER]).all(),
    )
    yield "is guessing on question answering", abs(area.token_hash["question_answering"] - 0.5) < 0.03


def _alike(real):
    alike = real("06_survey_rules/alike").pivot(index="first", columns="second", values="correlation")
    probabilities = ["few", "surest", "entropy"]
    yield (
        "order tokens alike, with correlations of at least 0.96",
        (alike.loc[probabilities, probabilities].round(2) >= 0.96).all(axis=None),
    )
    close = alike.loc[["ztw", "pcee"], probabilities]
    yield "come close to them (0.92 or more)", (close > 0.915).all(axis=None)
    yield "Patience and vote order tokens alike at this layer.", alike.loc["patience", "vote"] > 0.995
    states = alike.loc[["linear", "hidden_similarity"], probabilities]
    yield (
        "Rules on states agree less with these, and little with each other.",
        (states < 0.7).all(axis=None) and alike.loc["linear", "hidden_similarity"] < 0.5,
    )


def _equal_loss(real):
    equal = real("08_results/at_equal_loss").query("model == 'calm'")  # 06 has the same of these rules
    equal = equal[equal.rule.isin([*IDEAS, "static"])].set_index(["wanted", "task", "rule"]).flops_share
    strict, loose = equal[0.01].unstack("task"), equal[0.1].unstack("task")
    answers, others = strict.question_answering, strict.drop(columns="question_answering").stack()
    best = answers[["few", "surest", "entropy", "past_future"]]
    yield (
        "need about three quarters of the FLOPs, and every rule on several exits or on states needs more",
        best.between(0.73, 0.77).all()
        and answers[answers.index.map(IDEAS).isin([SEVERAL, "states"])].min() > best.max(),
    )
    below = others[others < 1]
    readouts = real("06_survey_rules/what_they_cost").set_index("rule").readouts
    yield (
        "only rules without a readout end below it, by at most 3 %",
        (readouts[below.index.get_level_values("rule")] == 0).all() and below.min() > 0.97,
    )
    yield (
        "the margin needs half the FLOPs on question answering and about five sixths on translation",
        round(loose.question_answering.few, 1) == 0.5 and abs(loose.translation.few - 5 / 6) < 0.02,
    )
    yield (
        "on summarization no rule saves more than 5 % even then",
        round(loose.summarization.min(), 2) == 0.95,
    )
    yield "A fixed layer loses more than 1 % on every task.", strict.loc["static"].isna().all()
    over_tasks = loose.loc["few"].max() - loose.loc["few"].min()
    over_rules = loose.max() - loose.min()
    yield (
        "What is saved at a given loss depends on the task more than on the rule.",
        (over_tasks > over_rules).all(),
    )
