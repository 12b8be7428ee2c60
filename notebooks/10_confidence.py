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

# %% needs=["traces", "classifiers"] tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 100  # held-out examples of each task
max_new_tokens = 48  # longest output, in tokens
min_layer = None  # first layer at which a token may exit; None: that of the profile's measurements
sure = 0.9  # a probability above which a layer counts as confident

# %% tags=["hide-input"]
import numpy as np
import pandas as pd
from IPython.display import display

from mee_utils import ExitPolicy, trace
from mee_utils.analysis import decisions, statistics, survey
from mee_utils.companion import Experiment, claims, figures
from mee_utils.companion.catalogue import RULES
from mee_utils.traces.replay import replay_policies

experiment = Experiment.of_notebook("10_confidence", globals())
settings = experiment.settings
min_layer = settings["min_layer"]
note = experiment.note(limit, "whiskers and bands: 95 % intervals over sequences")

# %%
tasks = experiment.tasks(limit)
models = experiment.models(["calm", "vanilla"])
calm = models["calm"]
traces = {  # along the references: what each layer predicts when every earlier token is right
    (name, task_name): trace(model, task.inputs, task.targets, max_new_tokens=max_new_tokens)
    for name, model in models.items()
    for task_name, task in tasks.items()
}

# %% [markdown]
# ## Overthinking
#
# A token is overthought if some layer has it right and the last has it wrong. With $y_t$ the token of the reference,
# that is $\hat y_t^{\,L} \ne y_t$ and $\hat y_t^{\,l} = y_t$ for some $l < L$.

# %%
overthought = experiment.table(survey.overthinking, traces, labels=("model", "task"))

for (name, task), t in traces.items():
    right = t.top1_id == t.token_id[:, None]  # [token, layer]
    share = (right.any(axis=1) & ~right[:, -1]).mean()
    stored = overthought.query("model == @name and task == @task").overthought
    np.testing.assert_allclose(stored, share)

# %%
shares = ["overthought", "overthought_low", "overthought_high"]
percent = overthought.assign(**{column: 100 * overthought[column] for column in shares})
figure, panels = figures.panels(percent, title="Right at some layer, wrong at the last", note=note, width=2.6)
for axis, rows in panels:
    rows = rows.assign(height=range(len(rows)))
    figures.dots(axis, rows, "overthought", "height", "model", xband=shares[1:])
    axis.set(xlabel="tokens (%)", ylim=(-0.7, len(rows) - 0.3), yticks=[], xlim=(0, None))
experiment.save_figure(figure, "overthinking", overthought)

of_calm = overthought[overthought.model == "calm"]
print("CALM, overthought:", *(f"{row.task} {row.overthought:.1%}," for row in of_calm.itertuples()))
print("CALM, right at the last layer:", *(f"{row.task} {row.right:.1%}," for row in of_calm.itertuples()))

# %% [markdown]
# On real text, up to 6 % of CALM's tokens are right at an earlier layer and wrong at the last; vanilla's share is of
# the same size. An oracle that knew the reference could get these tokens right by exiting earlier. No real rule will:
# each layer is another chance to hit the right token, and nothing says which layer has.
#
# ## Fake confidence
#
# A layer is confident of a token if its largest probability exceeds `sure`. How many tokens is it confident of, and how
# many of these does it get wrong?

# %%
confident = experiment.table(survey.fake_confidence, traces, labels=("model", "task"), sure=sure)

# %%
figure, panels = figures.panels(
    confident, down=2, sharey="row", title="Confident layers, right and wrong", note=note
)
for (upper, lower), rows in panels:
    figures.lines(upper, rows, "layer", "sure", "model")
    figures.lines(lower, rows, "layer", "wrong", "model", figures.BAND, clip=(0, 1))
    upper.set(ylabel=f"share of tokens with a\nprobability above {sure:g}")
    lower.set(ylabel="share of these\nthat is wrong")
experiment.save_figure(figure, "fake_confidence", confident)

wrong = confident[confident.layer == min_layer].pivot(index="task", columns="model", values="wrong")
print(
    f"confident and wrong at layer {min_layer} (mean over tasks):",
    *(f"{m} {v:.1%}" for m, v in wrong.mean().items()),
)

# %% [markdown]
# Confidence is fake where a layer was never trained to predict. At the first exit layer, most of the tokens that vanilla
# is confident of are wrong. Under CALM few are, and no more than at the last layer: training for exits makes early
# confidence as honest as late confidence. The first layer is the exception, in both models.
#
# ## How a rule is trained
#
# Two comparisons, over all layers at which a rule decides; every layer scores the whole vocabulary. BERxiT's learning
# to exit and CALM's linear classifier are the same linear unit trained with different losses: squared error, or
# cross-entropy that weighs both classes equally. `roc_area` (AUROC) is how well a rule tells final predictions from
# others. The predicted state and the ensemble emit tokens of their own. In this table `right` is how often that token
# is the last layer's, not the reference's. The predicted state comes from a linear map that is trained at each layer.
# *Distilled*: the map is trained to match all of the last layer's distribution, as FastBERT's exits are (Liu et al.
# 2020), in place of its state. How the *model* is trained is another question, asked in 00 and 01.

# %%
trained_with = {
    "linear": "balanced cross-entropy",
    "learning_to_exit": "squared error",
    "surest": "untrained",
    "past_future": "squared error of the state",
    "ztw": "cross-entropy of the token",
}
trained = experiment.classifiers({"calm": calm}, seeds=[0], survey=True)
classifiers = {rule: one for (_, rule, target), (one,) in trained.items() if target == "consistency"}
(distilled,) = trained["calm", "past_future", "distilled"]

# %%
rows = []
for task in tasks:
    t = experiment.trace("calm", task, limit, max_new_tokens)
    policies = {
        (rule, loss): RULES[rule].policy(1.0, settings, classifiers).over_all_entries()
        for rule, loss in trained_with.items()
    }
    policies["past_future", "distilled"] = ExitPolicy(distilled, threshold=1.0, min_layer=min_layer)
    for (rule, loss), replayed in replay_policies(t, policies, calm).items():
        right = replayed.same_token[:, :-1]  # [token, decision layer]
        area = decisions.area_interval(replayed.confidences, right, t.sequence)
        agreement = statistics.mean_interval(right.mean(axis=1), t.sequence)
        rows.append(
            {"task": task, "rule": rule, "trained by": loss}
            | area.columns("roc_area", "roc_area_")
            | agreement.columns("right", "right_")
        )
ways = experiment.save_table(pd.DataFrame(rows), "trained_how")

# %%
shown = ways.assign(rule=ways.rule.map(figures.label))
display(shown.pivot(index=["rule", "trained by"], columns="task", values=["roc_area", "right"]).round(3))

# %% [markdown]
# The loss of the linear unit matters: balanced cross-entropy gives it the larger area on every task. But with neither
# loss does it reach the largest probability, which needs no training; of the trained rules only the distilled map is
# ahead of that, by less than 0.01. What training a map does improve is the token: the one predicted through a
# distilled map is the last layer's more often than the layer's own.
#
# ## What this shows, and what it does not
#
# Overthinking is real but small, and out of a rule's reach. Except at the first layer, fake confidence is a property
# of models that were not trained for exits. And if the model itself was trained for exits, a trained rule hardly
# beats a threshold on the largest probability. One seed of each trained rule, with the training that all classifiers
# get: longer training may help BERxiT's unit. The map of a predicted state has more to do on a model that was not
# trained for exits.
#
# ## Statements, published and ours
#
# The column *published* has the survey's number or, where it gives none, how it makes the statement. The
# [ledger](../figures/results/ledger.md) says whether each statement holds, corrected for the number of tests.

# %%
tables = {
    task: {"thinking": overthought[overthought.task == task], "fake": confident[confident.task == task]}
    for task in tasks
}
judged = claims.judge("10_confidence", tables, last=calm.layers, first=min_layer)
claims.show_judged(experiment.save_table(judged, "claims"))

# %% tags=["hide-input"]
experiment.finish()
