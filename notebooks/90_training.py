# %% [markdown]
# # 90 · Appendix: how the models learned
#
# [‹ 10 confidence](10_confidence.ipynb) · [all notebooks](../README.md#the-notebooks)
#
# **Question.** How were the mini models made, and what did each layer learn? Nothing here is about exits; it shows what
# the other chapters rest on.
#
# **What we do.** *Pre-trained only* has seen span corruption and no task. *Base* began the same way and then learned the
# tasks. Most of this is done with four layers, which takes a third of the time. Then each layer is replaced by three copies
# whose residual updates are scaled by a third, and all twelve are trained together. All other models start from base and
# see the same number of examples at the same learning rate; where an objective supervises intermediate layers, each step
# samples one of them.
#
# Two more things are meant to make models this small learn quickly. Three of the four heads in the encoder, and two in
# the decoder, are initialised to attend to neighbouring tokens. And the weight matrices are trained with the optimizer
# Muon. On synthetic data, base also went through *lessons* before the tasks: several questions about one context, all with
# one kind of hop from fact to fact, whose answers spell out the intermediate steps.
#
# **Expectation.** Under CALM the layers converge, in order of depth; under vanilla only the last ones improve.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones

# %% tags=["hide-input"]
import numpy as np
import pandas as pd
from IPython.display import display
from matplotlib.ticker import LogLocator, NullFormatter
from scipy.stats import binomtest

from mee_utils.companion import Experiment, figures
from mee_utils.companion.result_tables import read_retrained

experiment = Experiment.of_notebook("90_training", globals())
layers = experiment.layers
manifests = experiment.manifests(experiment.model_names)

# %% [markdown]
# ## Learning curves
#
# Each line is the cross-entropy of one layer on target tokens of the tasks, on examples used neither for training nor
# for evaluation. Curves begin where a model has all its layers.

# %%
trainings = pd.DataFrame(list(manifests.values()), index=pd.Index(manifests, name="model"))
display(trainings.reindex(columns=["steps", "minutes", "seed"]))

points = [
    {"model": name, "step": point["step"], "layer": layer, "cross_entropy": value}
    for name, manifest in manifests.items()
    for point in manifest.get("layer_cross_entropy", [])
    for layer, value in enumerate(point["cross_entropy"], 1)
    if len(point["cross_entropy"]) == layers
]
curves = pd.DataFrame(points, columns=["model", "step", "layer", "cross_entropy"])

# %%
if len(curves):  # else the models of the profile are ready checkpoints
    drawn = curves[curves.layer.isin(np.linspace(1, layers, 6).round())]
    figure, panels = figures.panels(
        drawn,
        "model",
        title="Held-out cross-entropy of six layers",
        note=experiment.note(),
        width=3.2,
        height=2.4,
        per_line=3,
        sharex=False,
    )
    for axis, rows in panels:
        figures.lines(axis, rows, "step", "cross_entropy", "layer", styles=figures.layer_styles(layers))
        axis.set(yscale="log", xlabel="training step", ylabel="cross-entropy\n(nats per token)")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.locator_params(axis="x", nbins=5)
    experiment.save_figure(figure, "learning_curves", curves)

    last = curves[curves.step == curves.groupby("model").step.transform("max")]
    display(last.pivot(index="model", columns="layer", values="cross_entropy").round(2))

# %% [markdown]
# As expected under CALM: the layers end in order of depth, and layer 1 goes from 15 to 5 nats, where the last layer has 2.
# Most of that happens in the first 300 steps, in which layer 1 was drawn about five times. Layer 1 of FREE falls to
# 6 nats with no loss of its own: a layer also learns from the losses of layers above it.
#
# Under vanilla little changes: layers 4 to 12 fall by 3 to 5 %, not the last ones alone, and the early ones never come to
# predict tokens. Layer 1 ends at 15 nats, far worse than a uniform guess among the 4,000 tokens of the vocabulary
# (8 nats): there the LM head is confidently wrong. That is what an exit rule meets in a model trained for full depth alone.
#
# FREE's layers 5 to 8, which have no loss of their own, end with a higher cross-entropy than its exit, layer 4. In
# late-weighted training the first four layers, which have none either, end with a higher one than all other layers.
# At the last layer, vanilla ends at 1.92 nats and CALM at 2.02: the price of exits, which 00 shows in points.
#
# ## With and without intermediate steps
#
# On synthetic data only (profile `small`): exact match by the form of the question, on all held-out questions, as `make
# train` measured it. In a sentence, each hop can build on tokens already written. For the bare value all hops must
# happen within one token, layer by layer. **Expectation:** two facts, a count or a comparison are harder without
# intermediate steps.

# %%
forms = pd.DataFrame(
    [
        {"model": name, "form": form, "exact_match": share}
        for name, manifest in manifests.items()
        for scores in manifest["scores"].values()
        for form, share in scores.get("exact_match_by_form", {}).items()
    ],
    columns=["model", "form", "exact_match"],
)
in_one_word = {False: "in a sentence", True: "in one word"}
forms["answer"] = forms.form.str.endswith(", bare").map(in_one_word)
forms["kind"] = forms.form.str.removesuffix(", bare")

# %%
if len(forms):
    shown = forms[~forms.model.isin(["pretrained", "base"])]
    figure, panels = figures.panels(
        shown, "answer", title="Exact match by form of the question", note=experiment.note(), width=5.2
    )
    for axis, rows in panels:
        figures.grouped_bars(axis, rows, "kind", "exact_match")
        axis.set(xlabel="form of the question", ylabel="exact match (%)")
    experiment.save_figure(figure, "exact_match_by_form", forms)

# %% [markdown]
# As expected. In a sentence, the models of all objectives get more than nine of ten questions of each form right. In
# one word that holds only for questions about one fact; for two facts, counts and comparisons it is 30 to 63 %.
#
# ## Ablations
#
# What is each part of the recipe worth? On synthetic data only: short training runs with four layers, each changing one
# part of the recipe, all on about the same number of tokens. *Flat start*: all heads begin as T5 draws them. *Slow
# table*: position biases learn at a tenth of their rate. *One rate*: queries, embedding, position biases and norms learn
# at the rate of all other matrices. *Adam*: in place of Muon, at the best rate we found for it. *One question*: one
# question per context in the lessons. *No curriculum*: questions alone, from the start. *Bare value*: no intermediate
# step is ever written out.

# %%
ablations = read_retrained(profile, "ablations")
if len(ablations):
    right = (ablations.exact_match / 100 * ablations.questions).round().astype(int)
    answer = ablations.form.str.endswith(", bare").map(in_one_word)
    runs = ablations.assign(answer=answer, right=right)
    runs = runs.groupby(["answer", "run"], sort=False, as_index=False)[["right", "questions"]].sum()
    tests = [binomtest(row.right, row.questions) for row in runs.itertuples()]
    runs[["low", "high"]] = [test.proportion_ci(method="wilson") for test in tests]
    runs["share"] = runs.right / runs.questions
    note = experiment.note(intervals="whiskers: 95 % intervals (Wilson)")
    figure, panels = figures.panels(
        runs, "answer", title="Questions answered right", note=note, width=4.4, sharey=False
    )
    for axis, rows in panels:
        figures.bars(axis, rows, "share", "run", figures.BAND)
        axis.set(xlabel="share of questions")
    experiment.save_figure(figure, "ablations", runs, with_legend=False)

# %% [markdown]
# Two parts matter. Without heads that attend to neighbours (flat start), about half as many questions are answered
# right in a sentence. And a model that never sees an intermediate step (bare value) learns nothing: it answers no
# question, not even in one word, the only form it is trained on. The intervals of all other changes overlap the
# recipe's. Each bar is a single run, far shorter than the training of the models: a part that makes no difference
# here may still matter there.

# %% tags=["hide-input"]
experiment.finish()
