# %% [markdown]
# # 00 · The data, the objectives and the models
#
# [all notebooks](../README.md#the-notebooks) · [01 monotonicity ›](01_monotonicity.ipynb)
#
# **Question.** On what data and models are all later figures made, and have these models learned anything
# that is worth exiting early from?
#
# Both papers study one T5 backbone that is trained in different ways. *Vanilla* training asks only the last
# decoder layer for the next token. *CALM* asks every layer, and later layers more. *FREE* asks one early
# layer and the last one, and pulls the early states towards the late ones. *Late-weighted* asks the last 70
# % of the layers: a hypothesis from the end of the MEE blog, which its authors left untested. This notebook
# shows what each objective weighs, how each model learned, and how far each one stands above what needs no
# model at all.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 200  # examples of each task to score
seed = 0  # of the bootstrap

# %%
import textwrap

import numpy as np
import pandas as pd
from scipy.stats import binomtest, fisher_exact

from mee_utils import Experiment, Objective, generate, layer_weights
from mee_utils.analysis import model_quality as quality
from mee_utils.paper.numbers import save_numbers
from mee_utils.paper.published_numbers import published_scores
from mee_utils.study import figures
from mee_utils.study.figures import label
from mee_utils.study.result_tables import read_retrained
from mee_utils.tasks.synthetic.words import DIFFICULTIES

# %%
experiment = Experiment.of_notebook("00_models", globals())
note = f"profile {profile}, n = {limit} examples a task"
tasks = experiment.tasks(limit)
training = experiment.profile.training
layers = experiment.layers
synthetic = {name: task for name, task in tasks.items() if task.spans}
for name, task in tasks.items():
    print(f"{label(name)}: {len(task)} held-out examples, scored by {label(task.metric)}")

# %% [markdown]
# ## The data
#
# The small profile runs on **synthetic data**: people who live, work, travel and own things, in sentences
# of a seeded grammar. These data have what no real corpus has: for every target token we know *what it
# takes to produce it*. A real profile reads real corpora, and none of their text is shown here.
#
# A question is answered in a sentence that begins with what it looks up and says each hop aloud. A fifth of
# the questions asks for the bare value ("In one word: ..."), so that what a model does aloud can be compared
# with what it does in silence. No context of a question is in two splits.

# %%
for name, task in synthetic.items():
    print(label(name))
    firsts = {form: number for number, form in reversed(list(enumerate(task.forms or ["", ""])))}
    for form, number in sorted(firsts.items()):
        prompt, target = task.inputs[number], task.targets[number]
        print(f"  {form + ': ' if form else ''}{textwrap.shorten(prompt, 130)}\n    -> {target}")

# %% [markdown]
# The generator gives every word its difficulty. A "copied" word continues a span of the source, "one fact"
# needs a sentence to be found first, "two facts" joins two of them, and "counted" and "compared" words need a
# computation. In French, "agreement" depends on a neighbour and "distant agreement" on a word at least two
# words away. Here is the first answer, summary and translation, word by word:

# %%
for name, task in synthetic.items():
    parts = [f"{task.targets[0][span.start : span.end]} ({span.difficulty})" for span in task.spans[0]]
    print(f"{label(name)}: {' '.join(parts)}")

# %% [markdown]
# The share of each difficulty among the target tokens of a task:

# %%
tokens = {name: quality.token_difficulty(task, experiment.tokenizer()) for name, task in synthetic.items()}
shares = [
    {"task": name, "tokens": len(kinds), **{kind: (kinds == kind).mean() for kind in DIFFICULTIES}}
    for name, kinds in tokens.items()
]
shares = pd.DataFrame(shares)
experiment.save_table(shares, "difficulty_shares") if synthetic else "no synthetic data in this profile"

# %% [markdown]
# ## The objectives
#
# Let $\mathrm{CE}_l$ be the cross-entropy of the shared readout at layer $l$ of $L$. An objective is a
# weighted sum over layers; for FREE there is a distillation term besides:
#
# $$\mathcal{L} = \sum_{l=1}^{L} a_l\,\mathrm{CE}_l, \qquad \text{CALM: } a_l = \frac{l}{\sum_{j=1}^{L} j},
# \qquad \text{vanilla: } a_l = [\,l = L\,].$$
#
# *Alternating* training (BERxiT, Xin et al. 2021) takes turns, so that the last layer has every other step to
# itself (its weights in the figure are the mean of two steps):
#
# $$\mathcal{L} = \mathrm{CE}_L \text{ in odd steps}, \qquad
# \mathcal{L} = \frac{1}{L} \sum_{l=1}^{L} \mathrm{CE}_l \text{ in even ones.}$$
#
# **Expectation:** vanilla is the only objective that asks nothing of the layers below the last one.

# %%
chosen = {name: Objective(b.objective, b.exit_layer) for name, b in training.objectives.items()}
weights = {name: layer_weights(objective, layers) for name, objective in chosen.items()}
weights = pd.DataFrame(weights, index=pd.RangeIndex(1, layers + 1, name="layer")).rename_axis(columns="model")
weights = weights.unstack().rename("weight").reset_index()
if chosen:
    bars = {"x": "layer", "y": "weight"}
    look = {"xlabel": "layer", "ylabel": "weight of the layer's\ncross-entropy", "note": f"profile {profile}"}
    figure = figures.facets(weights, figures.grouped_bars, "model", **bars, **look, width=2.7, height=2.3)
    figure.axes[0].set_xticks(range(1, layers, 2), range(2, layers + 1, 2))
    experiment.save_figure(figure, "objectives", weights)
else:
    print("the models of this profile are ready checkpoints: what they were trained for is not known here")

# %%
if "calm" in chosen:
    calm = weights[weights.model == "calm"].weight
    print(
        f"CALM gives the first layer {calm.iloc[0]:.1%} of the loss and the last layer {calm.iloc[-1]:.1%}."
    )

# %% [markdown]
# ## How the models were made
#
# *Pre-trained only* has seen span corruption and no task. *Base* began in the same way and went on: in
# `small` through lessons, each with several questions about one context and one kind of hop (who lives where,
# facts of one kind and of several, relations, who lives in a city, who owns more), then the tasks. Most of
# this is done with four layers, in a third of the time; then every layer is repeated three times, each copy
# adds a third, and all twelve are trained together. All others start from base and see the same number of
# examples at the same rate; objectives that ask intermediate layers draw one of them a step.
#
# Three more things are meant to make models this small learn quickly. Three of the four heads in the encoder, and two in
# the decoder, begin with a preference for neighbours. The matrices are updated by Muon. And answers say what
# they look up. What each is worth stands below, under *Ablations*.

# %%
names = experiment.model_names
manifests = experiment.manifests(names)
trainings = pd.DataFrame(list(manifests.values()), index=pd.Index(manifests, name="model"))
trainings.reindex(columns=["steps", "minutes", "seed"])

# %% [markdown]
# ## Learning curves
#
# Each line is the cross-entropy of one layer (six of them are drawn) on target tokens of the tasks, on examples that
# are neither trained on nor scored, from dark (first layer) to light (last layer), on a logarithmic axis. Curves begin
# where a model has all its layers. **Expectation:** under CALM the layers fan out in order of depth and all
# of them improve; under vanilla only the last ones do.

# %%
points = [
    {"model": name, **point} for name in names for point in manifests[name].get("layer_cross_entropy", [])
]
curves = pd.DataFrame(points, columns=["model", "step", "cross_entropy"]).explode("cross_entropy")
curves.insert(2, "layer", curves.groupby(["model", "step"]).cumcount() + 1)
curves = curves[curves.groupby(["model", "step"]).layer.transform("max") == layers]  # once it has grown
curves = curves.astype({"cross_entropy": float})


def draw(axis, rows):
    rows = rows[rows.layer.isin(np.linspace(1, layers, 6).round())]
    figures.lines(axis, rows, "step", "cross_entropy", "layer", styles=figures.layer_styles(layers))
    axis.set_yscale("log")


# %%
if len(curves):
    labels = {"xlabel": "training step", "ylabel": "cross-entropy\n(nats a token)"}
    look = {"width": 2.7, "height": 2.6, "note": f"profile {profile}", "sharex": False}
    figure = figures.facets(curves, draw, "model", **labels, **look)
    experiment.save_figure(figure, "learning_curves", curves)

# %%
last = curves[curves.step == curves.groupby("model").step.transform("max")]
last = last.pivot(index="model", columns="layer", values="cross_entropy").reindex(names)
for name, row in last.dropna().iterrows():
    shown = ", ".join(f"layer {layer} {row[layer]:.2f}" for layer in (1, layers // 2, layers))
    print(f"{label(name)}, cross-entropy in nats: {shown}")

# %% [markdown]
# ## Scores against trivial baselines
#
# A learning curve means little if a constant sentence does as well. Beside each model stand **trivial
# baselines**, outputs that need no model: the source itself, the translation of the nearest training
# sentence, the first sentence, one constant summary, the context sentence that shares most words with the
# question (grey). Bars are means over examples with 95 % bootstrap intervals (for BLEU, mean sentence
# BLEU); the table has the corpus scores.

# %%
models = experiment.models(names)
train = experiment.tasks(30_000, "train")
texts = {}
for task_name, task in tasks.items():
    texts[task_name] = {}
    for name, model in models.items():
        outputs = generate(model, task.inputs, max_new_tokens=training.max_target, batch_size=100)
        texts[task_name]["model", name] = outputs.texts
    for name, outputs in task.baseline_texts(train[task_name]).items():
        texts[task_name]["baseline", name] = outputs
scores = quality.score_table(tasks, texts, seed)
experiment.save_table(scores, "scores").set_index(["task", "system", "metric"]).corpus_score.unstack(
    [0, 2]
).round(1)

# %%
metrics = {name: task.metric for name, task in tasks.items()}
shown = scores[scores.metric == scores.task.map(metrics)]
bars = {"x": "mean", "by": "system", "band": figures.BAND, "other": figures.PALE}
look = {"sharex": False, "sharey": False, "width": 3.9, "height": 3.4, "note": note}
figure = figures.facets(shown, figures.bars, **bars, **look)
for axis, (name, metric) in zip(figure.axes, metrics.items(), strict=True):
    axis.set(xlabel=f"mean {label(metric)} of {len(tasks[name])} examples (%)", xlim=(0, 100))
experiment.save_figure(figure, "scores_against_baselines", shown)

# %%
for task, rows in shown.sort_values("corpus_score").groupby("task", sort=False):
    best = rows[rows.kind == "model"].iloc[-1]
    trivial = rows[rows.kind == "baseline"].iloc[-1]
    print(
        f"{label(task)}, {label(metrics[task])}: best model ({label(best.system)}) {best.corpus_score:.1f}, "
        f"best trivial baseline ({label(trivial.system)}) {trivial.corpus_score:.1f}"
    )

# %% [markdown]
# The same corpora, as others score on them with models of about this size that were trained on them alone.
# Tokenization and data differ in detail (DialogSum's test split is not here, its validation split is the
# test), so this says whether a model is in the right range, not which one is better. The published ROUGE-L
# lies nearer to ROUGE-1 than the usual tool would put it. It looks like that of `py-rouge`, which takes precision
# and recall to a power that belongs to ROUGE-W; `ours_as_published` is our output scored in the same way.

# %%
sources = {name: str(experiment.profile.corpora[name].source) for name in tasks}
vanilla = {name: outputs.get(("model", "vanilla")) for name, outputs in texts.items()}
published = published_scores(scores, sources, vanilla, tasks)
experiment.save_table(published, "published_scores") if len(published) else "none for this profile"

# %% [markdown]
# ## What was learned, by difficulty
#
# On synthetic data the question can be put more sharply: at full depth, which *kinds* of token does each
# model get right? References are fed in, so that every token is judged with the right words before it.
# **Expectation:** grammatical and copied tokens are nearly perfect; counting and comparing come last.

# %%
accuracy = quality.difficulty_accuracy(synthetic, models, training.max_target)
if synthetic:
    shown = accuracy.assign(task="all tasks together")
    bars = {"x": "difficulty", "y": "accuracy"}
    labels = {"xlabel": "difficulty of the token, by construction", "ylabel": "accuracy at full depth"}
    figure = figures.facets(shown, figures.grouped_bars, **bars, **labels, width=9.5, height=3.2, note=note)
    experiment.save_figure(figure, "accuracy_by_difficulty", accuracy)

# %%
for row in accuracy[accuracy.model == "vanilla"].sort_values("accuracy").head(3).itertuples():
    print(f"vanilla, {label(row.difficulty)}: {row.accuracy:.1%} of {row.tokens} tokens right")

# %% [markdown]
# ## Aloud and in silence
#
# Exact match on whole answers, by the form of the question, on all held-out questions (as `make train`
# measured it). A spoken answer makes each hop from the token before it. The bare value needs all hops inside
# one token, where only layers can follow one another. **Expectation:** two facts, a count or a comparison are
# harder in silence.

# %%
forms = quality.form_table(manifests)
if len(forms):
    spoken = forms.form.str.endswith(", bare").map({True: "in one word", False: "in a sentence"})
    forms = forms.assign(answer=spoken, kind=forms.form.str.removesuffix(", bare"))
    bars = {"x": "kind", "y": "exact_match"}
    labels = {"xlabel": "form of the question", "ylabel": "exact match (%)", "note": f"profile {profile}"}
    figure = figures.facets(forms, figures.grouped_bars, "answer", **bars, **labels, width=5.4, height=3)
    experiment.save_figure(figure, "exact_match_by_form", forms)

# %%
for row in forms[forms.model == "vanilla"].itertuples() if len(forms) else ():
    print(f"vanilla, {row.kind}, {row.answer}: {row.exact_match:.1f} % exact")

# %% [markdown]
# ## More than one training
#
# How much of a difference between objectives is luck? Objectives were trained again from the same base with
# other seeds: other batches, other intermediate layers. A dot is a seed; each panel has a scale of its own.
# *Settled from* is the mean layer from which a token's top-1 stays; *FLOPs* and *quality kept* are those of
# the margin over pruned ids at 0.9. Alternating training, of which no model is kept, stands only here and in 01: in
# `small` its tokens settle as early as CALM's, or earlier, and yet the margin spends more on them, on every task and
# with every seed.

# %%
seeds = read_retrained(profile, "seeds")
measured = {
    "score": "score at full\ndepth (%)",
    "settled_from": "settled from\nlayer",
    "flops_share": "FLOPs\n(1 = full depth)",
    "retained": "quality kept\n(%)",
}


def draw(axis, rows, y):
    for number, (name, part) in enumerate(rows.groupby("model", sort=False)):
        style = figures.STYLES[name]
        axis.plot([number] * len(part), part[y], style.marker, color=style.colour, label=style.label)
    axis.set(xticks=[], xlim=(-0.6, rows.model.nunique() - 0.4))


# %%
if len(seeds):
    look = {"sharey": False, "width": 3.2, "height": 1.7, "note": f"profile {profile}"}
    figure = figures.facets(seeds, draw, quantities=measured, **look)
    experiment.save_figure(figure, "seeds", seeds)

# %%
if len(seeds):
    spreads = [quality.seed_spread(seeds, column).assign(measure=column) for column in measured]
    spread = experiment.save_table(pd.concat(spreads), "seed_spread")
    widths = spread.assign(width=spread.high - spread.low).groupby("measure", sort=False).width.max()
    means = spread.groupby(["measure", "task"], sort=False)["mean"].agg(["min", "max"])
    apart = (means["max"] - means["min"]).groupby("measure", sort=False)
    for name, width in widths.items():
        by_model = f"models, on one task, by {apart.min()[name]:.2f} to {apart.max()[name]:.2f}"
        quantity = measured[name].replace("\n", " ")
        print(f"{quantity}: seeds differ by at most {width:.2f}, {by_model}")

# %% [markdown]
# ## What an objective costs before any token exits
#
# Training for exits changes full depth too. Every model is set beside the vanilla model with the same seed, on
# the same examples. A dot is one training. A whisker is a paired 95 % interval over examples, drawn where the
# score of each example is stored.
#
# **How to read it:** to the right of 0 a model scores lower than vanilla although no token exits. "99 % of full
# depth" is 99 % of what is left here, so 08 sets exits beside vanilla's full depth as well as their own.

# %%
costs = quality.cost_at_full_depth(seeds)


def draw_costs(axis, rows):
    axis.axvline(0, color=figures.GREY, linewidth=0.8)
    models = list(rows.model.unique())
    for number, name in enumerate(models):
        part = rows[rows.model == name]
        style = figures.STYLES[name]
        heights = number + 0.18 * (np.arange(len(part)) - (len(part) - 1) / 2)
        whiskers = [(part.lost - part.low).fillna(0), (part.high - part.lost).fillna(0)]
        axis.errorbar(part.lost, heights, xerr=whiskers, fmt=style.marker, color=style.colour, elinewidth=1)
    axis.set_yticks(range(len(models)), [label(name) for name in models])
    axis.set_ylim(len(models) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)


# %%
if len(costs):
    mean_costs = costs.groupby(["task", "model", "metric"], sort=False).lost.mean()
    task, name, metric = mean_costs.idxmax()
    dearest = f"{mean_costs.max():.1f} points of {label(metric)} ({label(name)}, {label(task)})"
    look = {"xlabel": "points lost at full depth (vanilla = 0)", "width": 3.4, "height": 2.2}
    look["message"] = f"Training for exits costs up to {dearest} before any token exits"
    figure = figures.facets(costs, draw_costs, **look, note=f"profile {profile}")
    experiment.save_figure(figure, "cost_at_full_depth", costs)
    for (task, name), part in costs.groupby(["task", "model"], sort=False):
        lost = ", ".join(f"{round(value, 1) + 0.0:+.1f}" for value in part.lost)
        metric = label(part.metric.iloc[0])
        print(f"{label(task)}, {label(name)}: {lost} points of {metric} lost, seed by seed")
else:
    print("no seeds are stored: run make retrain")

# %% [markdown]
# ## Ablations
#
# Short trainings with fewer layers, one part of the recipe changed at a time, on about as many tokens. *Flat
# start*: all heads begin as T5 draws them. *Slow table*: position biases learn at a tenth of their rate. *One
# rate*: queries, embedding, position biases and norms learn at the rate of all other matrices. *Adam*: in
# place of Muon, at the best rate we found for it. *One question*: one question a context in the lessons. *No
# curriculum*: questions alone, from the start. *Bare value*: nothing is ever said aloud.
#
# **How to read it:** a bar is the share of questions that a run answers right, a whisker its 95 % interval over
# questions (Wilson). There is one training a bar, and the trainings are far shorter than those of the models: a
# part of the recipe that makes no difference here may still matter there.

# %%
ablations = read_retrained(profile, "ablations")
if len(ablations):
    spoken = ablations.form.str.endswith(", bare").map({True: "in one word", False: "in a sentence"})
    right = (ablations.exact_match / 100 * ablations.questions).round().astype(int)
    runs = ablations.assign(answer=spoken, right=right).groupby(["answer", "run"], sort=False, as_index=False)
    runs = runs[["right", "questions"]].sum()
    tests = [binomtest(row.right, row.questions) for row in runs.itertuples()]
    runs[["low", "high"]] = [test.proportion_ci(method="wilson") for test in tests]
    runs["share"] = runs.right / runs.questions
    bars = {"x": "share", "by": "run", "band": figures.BAND}
    look = {"xlabel": "share of questions answered right", "sharey": False, "width": 4.4}
    figure = figures.facets(runs, figures.bars, "answer", **bars, **look, note=f"profile {profile}")
    experiment.save_figure(figure, "ablations", runs)

# %%
if len(ablations):
    aloud = runs[runs.answer == "in a sentence"].set_index("run")
    counts = {run: [row.right, row.questions - row.right] for run, row in aloud.iterrows()}
    for run, row in aloud.drop(["recipe", "bare_value"]).iterrows():  # which saw no sentences: right panel
        p = fisher_exact([counts["recipe"], counts[run]]).pvalue
        shares = f"{row.share:.1%} right in a sentence, the recipe {aloud.share['recipe']:.1%}"
        print(f"{label(run)}: {shares} (p = {p:.2g}, Fisher's test)")

# %% [markdown]
# ## What this shows, and what it does not
#
# The models of profile `small` have two million parameters, and twelve encoder and twelve decoder layers as
# in the papers' figures. They are real models of the same architecture, trained for the same objectives,
# and all but the one that never saw a task stand well above the trivial baselines (`scores_against_baselines`).
# Aloud they find, join and compare facts almost without error, and count a little less surely. In silence,
# inside one token, they find a single fact; joining, counting or comparing there they get wrong about half of
# the time, or more often (`exact_match_by_form`). In the short runs, one a
# bar, only heads that begin local (in a sentence) and answers that are spoken make a clear difference (`ablations`).
# And small models cannot show scale: no number of this profile is a number of the papers. Each model's `manifest.json`
# holds the recipe that made it and the time it took; `make train` makes the models again.
#
# *On real text* (profile `real`) every model that was trained for the tasks stands far above the trivial baselines, and
# all objectives end within a few points of each other. Beside published numbers (`published_scores`) BLEU, ROUGE-1
# and ROUGE-L are lower than those of models that are larger or saw their corpus more often, ROUGE-L by little when
# it is scored as it seems to have been there; ROUGE-2 is higher. (The published F1 is one of slots, ours one of words.)
#
# **Next:** [01, monotonicity](01_monotonicity.ipynb): does a prediction, once made, stay?

# %%
save_numbers(experiment.run)
experiment.finish()
