# %% [markdown]
# # 10 · Confidence: overthinking, and layers that are confidently wrong
#
# [‹ 09 thresholds](09_thresholds.ipynb) · [all notebooks](../README.md#the-notebooks) · [90 training ›](90_training.ipynb)
#
# **Question.** How often does the last layer get wrong what an earlier one had right? How often is an early layer confidently
# wrong? And what does it take to train a rule that decides well?
#
# **What the survey says** (Bajpai and Hanawal 2025). Deep layers overthink (Kaya et al. 2019); early exits can be
# confidently wrong (fake confidence); a network that learns when to exit beats a confidence threshold.
#
# **What we do.** The first two questions need the truth: the references are fed to the decoder, and a token is right
# if it is the reference's. The third compares losses of rules on one frozen model, by replay.
#
# **Expectation.** Confidence is fake where layers were never trained to predict tokens, and honest where they were.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 300  # held-out examples of each task
max_new_tokens = 48  # longest output, in tokens
min_layer = 4  # first layer at which a token may exit
top_k = 64  # vocabulary entries that rules score before the last layer; here all are scored
sure = 0.9  # a probability above which a layer counts as confident

# %% tags=["hide-input"]
from IPython.display import display

from mee_utils import ExitPolicy, trace
from mee_utils.analysis import decisions, statistics, survey
from mee_utils.companion import Experiment, claims, figures
from mee_utils.companion.catalogue import RULES
from mee_utils.companion.chapters import confidence as chapter
from mee_utils.companion.prose import conclude
from mee_utils.traces.replay import replay_policies

# %% tags=["hide-input"]
experiment = Experiment.of_notebook("10_confidence", globals())
settings = experiment.parameters
bands = experiment.note(limit, "bands (lower row): 95 % intervals over sequences")
whiskers = experiment.note(limit, "whiskers: 95 % intervals over sequences")
tasks = experiment.tasks(limit)
models = experiment.models(["calm", "vanilla"])
calm = models["calm"]
along = {
    (name, task_name): trace(model, task.inputs, task.targets, max_new_tokens=max_new_tokens)
    for name, model in models.items()
    for task_name, task in tasks.items()
}

# %% [markdown]
# ## Overthinking
#
# A token is overthought if some layer has it right and the last has it wrong.

# %% tags=["hide-input"]
thinking = experiment.table(survey.overthinking, along, labels=("model", "task"))

# %%
figure = chapter.overthinking_figure(thinking, whiskers)
experiment.save_figure(figure, "overthinking", thinking)
conclude(chapter.overthinking_conclusion(thinking))

# %% [markdown]
# ## Fake confidence
#
# A layer is confident of a token if its largest probability is above a bound, which stands beside the upper row of the
# figure. How many tokens is it confident of, and how many of these does it get wrong?

# %% tags=["hide-input"]
fake = experiment.table(survey.fake_confidence, along, labels=("model", "task"), sure=sure)

# %%
figure = chapter.fake_figure(fake, sure, min_layer, bands)
experiment.save_figure(figure, "fake_confidence", fake)
conclude(chapter.fake_conclusion(fake, min_layer))

# %% [markdown]
# ## How a rule is trained
#
# Two comparisons, over all layers at which a rule decides; every layer scores all vocabulary entries. BERxiT's learning
# to exit and CALM's linear classifier are the same linear unit trained with different losses: squared error, or
# cross-entropy that weighs both classes equally. `roc_area` is the area under the ROC curve (06). The predicted state
# and the ensemble emit tokens of their own: `agrees` is how often that token is the last layer's; rules that emit the
# layer's own token are listed for comparison. `trained_how.csv` has 95 % intervals. *Distilled*: the map of a layer
# learns all of the last layer's distribution, as FastBERT's exits do (Liu et al. 2020), in place of the last state. How
# the *model* is trained is another question: 00 and 01 have BERxiT's alternating training beside CALM's.

# %% tags=["hide-input"]
losses_of = {
    "linear": "balanced cross-entropy",
    "learning_to_exit": "squared error",
    "surest": "untrained",
    "past_future": "squared error of the state",
    "ztw": "cross-entropy of the token",
}
trained = experiment.classifiers({"calm": calm}, seeds=[0], survey=True)
classifiers = {rule: one for (_, rule, target), (one,) in trained.items() if target == "consistency"}
(distilled,) = trained["calm", "past_future", "distilled"]


def policy_of(rule):
    """A rule over all vocabulary entries, at no threshold in particular."""
    return RULES[rule].policy(1.0, settings, classifiers).over_all_entries()


# %% tags=["hide-input"]
trained_by = {}
for task in tasks:
    t = experiment.trace("calm", task, limit, max_new_tokens)
    by_key = {(task, rule, loss): policy_of(rule) for rule, loss in losses_of.items()}
    by_key[task, "past_future", "distilled"] = ExitPolicy(distilled, threshold=1.0, min_layer=min_layer)
    trained_by.update(replay_policies(t, by_key, calm))


# %% tags=["hide-input"]
def how_good(replayed, **labels):
    right = replayed.same_token[:, :-1]  # [token, decision layer]
    area = decisions.area_interval(replayed.confidences, right, replayed.trace.sequence)
    agreement = statistics.mean_interval(right.mean(axis=1), replayed.trace.sequence)
    return {**labels, **area.columns("roc_area", "roc_area_"), **agreement.columns("right", "right_")}


ways = experiment.table(how_good, trained_by, labels=("task", "rule", "trained by"))
ways = experiment.save_table(ways, "trained_how")
shown = ways.assign(rule=ways.rule.map(figures.label)).rename(columns={"right": "agrees"})
display(shown.pivot(index=["rule", "trained by"], columns="task", values=["roc_area", "agrees"]).round(3))
conclude(chapter.training_conclusion(ways))

# %% [markdown]
# ## What this shows, and what it does not

# %% tags=["hide-input"]
conclude(
    f"{chapter.overthinking_message(thinking)}.",
    f"{chapter.fake_message(fake, min_layer)}.",
    chapter.training_message(ways),
)

# %% [markdown]
# One seed of each trained rule, with the training that all classifiers get: longer training may help BERxiT's unit. The
# map of a predicted state has more to do on a model that was not trained for exits.
#
# ## Published claims, and one of ours
#
# *Published* is the number, or how the survey makes the statement. A verdict here is that of one task alone, before 08
# corrects for the number of tests.

# %% tags=["hide-input"]
tables = {
    task: {"thinking": thinking[thinking.task == task], "fake": fake[fake.task == task]} for task in tasks
}
judged = claims.judge("10_confidence", tables, last=calm.layers, first=min_layer)
claims.show_judged(experiment.save_table(judged, "claims"))

# %% tags=["hide-input"]
experiment.finish()
