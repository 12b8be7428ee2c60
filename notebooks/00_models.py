# %% [markdown]
# # 00 · The data, the objectives and the models
#
# **Question.** What are all later figures made on, and have these models learned anything worth exiting early from?
#
# Both papers study one T5 backbone trained in different ways. *Vanilla* training asks only the last decoder block for the next
# token. *CALM* asks every block, later ones more. *FREE* asks one early and the last block, and pulls the early states towards
# the late ones. *Late-weighted* asks the last 70 % of the blocks: the MEE blog's closing hypothesis, which its authors left
# untested. This notebook shows what each objective weighs, how each model learned, and how far each stands above what can be
# reached with no model at all.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 200  # examples of each task to score
seed = 0  # of the bootstrap

# %%
import seaborn

from mee_utils import Companion, Objective, block_weights, figures, generate
from mee_utils.evaluation import quality

companion = Companion("00_models", profile, data, limit=limit, seed=seed)
tasks = companion.tasks(limit)
made = {name: task for name, task in tasks.items() if task.spans}
for name, task in tasks.items():
    print(f"{figures.label(name)}: {len(task)} held-out examples, scored by {figures.label(task.metric)}")

# %% [markdown]
# ## The data
#
# The small profile runs on **made data**: people who live, work, travel and own things, told in sentences of a seeded grammar. It has
# what no real corpus has: for every target token we know *what producing it takes*. A real profile reads real corpora, of which
# no text is shown here.

# %%
for name, task in made.items():
    print(figures.label(name))
    for prompt, target in zip(task.inputs[:3], task.targets[:3]):
        print(f"  {prompt}\n    -> {target}")

# %% [markdown]
# Difficulty is assigned by the generator, word by word. "Copied" goes on with a span of the source, "one fact" has to find a sentence
# first, "two facts" joins two, "counted" and "compared" compute; in French, "agreement" looks at a neighbour and "distant
# agreement" across at least two words. The first answer, summary and translation above, word by word:

# %%
for name, task in made.items():
    parts = [f"{task.targets[0][span.start:span.end]} ({span.difficulty})" for span in task.spans[0]]
    print(f"{figures.label(name)}: {' '.join(parts)}")

# %% [markdown]
# How much of each there is, as a share of the target tokens of a task:

# %%
shares = quality.difficulty_shares(made, companion.tokenizer())
companion.save_table(shares, "difficulty_shares") if made else "no made data in this profile"

# %% [markdown]
# ## The objectives
#
# With `CE_i` the cross-entropy of the shared read-out at block *i*, an objective is a set of weights (METHODS: CALM's equation is
# `a_i = i / sum_j j`), and for FREE a distillation term besides. **Expectation:** vanilla is the only one that tells the blocks
# below the last nothing at all.

# %%
backbones = companion.profile.training.backbones
layers = companion.profile.training.shape.num_decoder_layers
weights = quality.weight_table({name: block_weights(Objective(b.objective, b.exit_layer), layers) for name, b in backbones.items()})
figure, axes = figures.panels(len(backbones), width=2.7, height=2.2, profile=profile, sharey=True)
for axis, (name, rows) in zip(axes, weights.groupby("model", sort=False)):
    axis.bar(rows.layer, rows.weight, color=figures.COLOURS.get(name, "#555555"))
    axis.set(title=figures.label(name), xlabel="decoder block", xticks=range(2, layers + 1, 2))
axes[0].set_ylabel("weight of the block's\ncross-entropy")
companion.save_figure(figure, "objectives", weights)

# %%
calm = weights[weights.model == "calm"].weight
print(f"CALM gives the first block {calm.iloc[0]:.1%} of the loss and the last {calm.iloc[-1]:.1%}.")

# %% [markdown]
# ## Learning curves
#
# `base` is pre-trained by span corruption with a share of the tasks; every other model starts from its weights and sees the same
# examples. Each line is the cross-entropy of one block on held-out targets. **Expectation:** under CALM the blocks fan out in
# order of depth and all go down; under vanilla only the last blocks do.

# %%
names = companion.model_names
manifests = companion.manifests(names)
curves = quality.learning_curves(manifests)
figure, axes = figures.panels(len(names), width=2.7, height=2.6, profile=profile, sharey=True)
for axis, (name, rows) in zip(axes, curves.groupby("model", sort=False)):
    seaborn.lineplot(rows, x="step", y="cross_entropy", hue="layer", palette="viridis", legend=False, ax=axis, linewidth=1.1)
    axis.set(title=figures.label(name), xlabel="training step", ylabel="cross-entropy (nats a token)")
figures.depth_colours(figure, axes, layers)
companion.save_figure(figure, "learning_curves", curves)

# %%
last = curves[curves.step == curves.groupby("model").step.transform("max")]
for name, rows in last.groupby("model", sort=False):
    first, middle, top = (rows[rows.layer == layer].cross_entropy.item() for layer in (1, layers // 2, layers))
    print(f"{figures.label(name)}: {first:.2f} nats at block 1, {middle:.2f} at block {layers // 2}, {top:.2f} at block {layers}")

# %% [markdown]
# ## Scores against floors
#
# A curve means little if a constant sentence does as well. Beside each model stand **floors**, outputs that need no model: the
# source copied, the nearest training sentence's translation, the first sentence, one constant summary, the context sentence that shares
# most words with the question. Bars are means over examples with 95 % bootstrap intervals (for BLEU: mean sentence BLEU); the
# table has corpus scores.

# %%
models = companion.models(names)
texts = {
    name: {model: generate(m, task.inputs, max_new_tokens=companion.profile.training.max_target, batch_size=100).texts for model, m in models.items()}
    for name, task in tasks.items()
}
floors = quality.floor_outputs(tasks, companion.training_tasks(limit=30_000))
scores = quality.score_table(tasks, texts, floors, seed)
companion.save_table(scores, "scores")

# %%
metrics = {name: task.metric for name, task in tasks.items()}
figure, axes = figures.panels(len(tasks), width=4.2, height=3.2, profile=profile)
for axis, (name, metric) in zip(axes, metrics.items()):
    figures.score_bars(axis, scores[(scores.task == name) & (scores.metric == metric)])
    axis.set(title=figures.label(name), xlabel=f"mean {figures.label(metric)} of {len(tasks[name])} examples (%)")
companion.save_figure(figure, "scores_against_floors", scores[scores.metric == scores.task.map(metrics)])

# %%
for line in quality.score_sentences(scores, metrics):
    print(line)

# %% [markdown]
# ## What was learned, by difficulty
#
# On made data the question can be put more sharply: at full depth, which *kinds* of token does each model get right? References are
# fed in, so that a token is judged with the right words before it. **Expectation:** grammatical and copied tokens are nearly
# perfect, counting and comparing last.

# %%
accuracy = quality.difficulty_accuracy(made, models, companion.profile.training.max_target)
if made:
    figure, axes = figures.panels(1, width=9.5, height=3.2, profile=profile)
    figures.grouped_bars(axes[0], accuracy, "difficulty", "accuracy")
    axes[0].set(xlabel="difficulty of the token, by construction", ylabel="accuracy at full depth", ylim=(0, 1))
    figures.shared_legend(figure, axes[0])
    companion.save_figure(figure, "accuracy_by_difficulty", accuracy)

# %%
hardest = accuracy[accuracy.model == "vanilla"].sort_values("accuracy")
for row in hardest.head(3).itertuples():
    print(f"vanilla, {row.difficulty}: {row.accuracy:.1%} of {row.tokens} tokens right")

# %% [markdown]
# ## What this shows, and what it does not
#
# The models are small: two million parameters, twelve and twelve blocks as in the papers' figures. They are real, trained models of the
# same architecture and objectives, and every number above was computed by this run, from the weights that ship with the package.
# What they cannot show is scale; no number of this profile is the papers' number. The recipe that made them, and how long it took,
# is in each model's `manifest.json`; `make train` makes them again.
#
# **Next:** [01, monotonicity](01_monotonicity.ipynb): does a prediction, once made, stay?

# %%
companion.finish()
