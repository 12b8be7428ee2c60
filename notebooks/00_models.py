# %% [markdown]
# # 00 · The data, the objectives and the models
#
# [all notebooks](../README.md#the-notebooks) · [01 monotonicity ›](01_monotonicity.ipynb)
#
# **Question.** Which data and models do all later figures use, and what does training for exits change before any
# token exits?
#
# Both papers study one T5 backbone that is trained in different ways. *Vanilla* training supervises only the last
# decoder layer. *CALM* supervises every layer, later layers more. *FREE* supervises one early layer and the last one,
# and pulls the early states towards the late ones. *Late-weighted* supervises the last 70 % of the layers: a hypothesis
# from the end of the MEE blog, which its authors left untested. All of them continue from one model, the *base*. This
# notebook shows the data, how each objective weights the layers, how far each model stands above trivial baselines, and
# what training for exits costs at *full depth*, with all layers run for every token. How the models learned is in the
# appendix ([90](90_training.ipynb)).

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 200  # examples of each task to score
seed = 0  # of the bootstrap

# %% tags=["hide-input"]
import textwrap

import pandas as pd

from mee_utils import Objective, generate, layer_weights
from mee_utils.analysis import model_quality as quality
from mee_utils.companion import Experiment, drawings, figures
from mee_utils.companion.chapters import models as chapter
from mee_utils.companion.prose import conclude
from mee_utils.companion.published_numbers import published_scores
from mee_utils.companion.result_tables import read_retrained
from mee_utils.tasks.synthetic.words import DIFFICULTIES

# %% tags=["hide-input"]
experiment = Experiment.of_notebook("00_models", globals())
tasks = experiment.tasks(limit)
training = experiment.profile.training
layers = experiment.layers
synthetic = {name: task for name, task in tasks.items() if task.spans}

# %% [markdown]
# ## A decoder with exits
#
# A language model runs every layer for every token, whether it predicts "York" after "New" or the answer to a hard
# question. With exits, a token whose confidence exceeds a threshold after some layer takes that layer's prediction.
# Later tokens still attend to this token at every layer, so the layers it skipped compute their keys and values from
# the state at its exit. (Dotted: the token is fed in at the next position.)

# %%
experiment.save_drawing(drawings.decoder_drawing(), "decoder")

# %% [markdown]
# ## The data
#
# For real corpora, no text is shown here. For synthetic data, an example of each task stands below its name.

# %% tags=["hide-input"]
for name, task in tasks.items():
    print(f"{figures.label(name)}: {len(task)} held-out examples, scored by {figures.label(task.metric)}")
for name, task in synthetic.items():
    print(f"\n{figures.label(name)}\n  {textwrap.shorten(task.inputs[0], 130)}\n    -> {task.targets[0]}")

# %% tags=["hide-input"]
kinds_of = {name: quality.token_difficulty(task, experiment.tokenizer()) for name, task in synthetic.items()}
shares = [
    {"task": name, "tokens": len(kinds), **{kind: (kinds == kind).mean() for kind in DIFFICULTIES}}
    for name, kinds in kinds_of.items()
]
if synthetic:
    shares = experiment.save_table(pd.DataFrame(shares), "difficulty_shares").round(3)
    conclude(chapter.SYNTHETIC_DATA)

# %% tags=["hide-input"]
shares.set_index("task").rename(index=figures.label, columns=figures.label) if synthetic else None

# %% [markdown]
# ## The objectives
#
# Let $\mathrm{CE}_l$ be the cross-entropy of the logits after layer $l$ of $L$; one LM head serves all layers. An
# objective is a weighted sum over layers:
#
# $$\mathcal{L} = \sum_{l=1}^{L} a_l\,\mathrm{CE}_l, \qquad \text{CALM: } a_l = \frac{l}{\sum_{j=1}^{L} j},
# \qquad \text{vanilla: } a_l = [\,l = L\,].$$
#
# FREE adds a distillation term for the layers $i$ up to its exit $S$, where $m(i)$ is the deep layer whose state is
# closest and $\mathrm{sg}$ stops the gradient:
#
# $$\mathcal{L}_{KD} = \frac{1}{S} \sum_{i=1}^{S} \mathrm{MSE}\bigl(H^i, \mathrm{sg}(H^{m(i)})\bigr),
# \qquad m(i) = \arg\min_{j > S} \mathrm{MSE}(H^i, H^j).$$
#
# *Alternating* training (BERxiT, Xin et al. 2021), which only some profiles try, takes turns, so that the last layer
# has every other step to itself (in the figure, its weights are the mean of two steps):
#
# $$\mathcal{L} = \mathrm{CE}_L \text{ in odd steps}, \qquad
# \mathcal{L} = \frac{1}{L} \sum_{l=1}^{L} \mathrm{CE}_l \text{ in even ones.}$$
#
# Objectives that supervise intermediate layers sample one layer per training step.

# %% tags=["hide-input"]
chosen = {name: Objective(b.objective, b.exit_layer) for name, b in training.objectives.items()}
weights = {name: layer_weights(objective, layers) for name, objective in chosen.items()}
weights = pd.DataFrame(weights, index=pd.RangeIndex(1, layers + 1, name="layer")).rename_axis(columns="model")
weights = weights.unstack().rename("weight").reset_index()

# %%
if chosen:
    figure = chapter.objectives_figure(weights, experiment.note())
    experiment.save_figure(figure, "objectives", weights)
    conclude(chapter.objectives_conclusion(weights))
else:
    conclude(
        "The models of this profile are ready checkpoints: what they were trained for is not known here."
    )

# %% [markdown]
# ## Scores against trivial baselines
#
# Each model is compared with **trivial baselines** (pale grey), which need no model: the source itself, the translation
# of the nearest training sentence, the first sentence, one constant summary, the context sentence that shares the most
# words with the question, three random words. Bars are means over examples (for BLEU, mean sentence BLEU); the table
# has the corpus scores.

# %% tags=["hide-input"]
train = experiment.tasks(30_000, "train")
texts = {}
for task_name, task in tasks.items():
    texts[task_name] = {}
    for name in experiment.model_names:
        model = experiment.model(name, task_name)
        outputs = generate(model, task.inputs, max_new_tokens=training.max_target, batch_size=100)
        texts[task_name]["model", name] = outputs.texts
    for name, outputs in task.baseline_texts(train[task_name]).items():
        texts[task_name]["baseline", name] = outputs
scores = experiment.save_table(quality.score_table(tasks, texts, seed), "scores")
metrics = {name: task.metric for name, task in tasks.items()}
by_metric = scores[scores.metric == scores.task.map(metrics)]

# %%
figure = chapter.scores_figure(
    by_metric, metrics, experiment.note(limit, "whiskers: 95 % intervals over examples")
)
experiment.save_figure(figure, "scores_against_baselines", by_metric)
conclude(chapter.scores_conclusion(by_metric))
conclude(chapter.starts_conclusion(experiment.model_names, bool(training.pre_training["base"])))
by_system = scores.set_index(["task", "system", "metric"]).corpus_score.unstack([0, 2]).round(1)
by_system.rename(index=figures.label, columns=figures.label)

# %% [markdown]
# ## Are our scores in the right range?
#
# Published scores on the same corpora, by models of about this size that were trained on them alone.

# %%
sources = {name: str(experiment.profile.corpora[name].source) for name in tasks}
vanilla = {name: outputs.get(("model", "vanilla")) for name, outputs in texts.items()}
published = published_scores(scores, sources, vanilla, tasks)
if len(published):
    published = experiment.save_table(published, "published_scores")
    conclude(chapter.published_conclusion(published))
else:
    conclude("No such scores were published for the corpora of this profile.")
published.round(1) if len(published) else None

# %% [markdown]
# ## How much of the difference between objectives is seed noise?
#
# The same objective was trained from the same base with different seeds, hence different batches and sampled layers.
# The table has the mean over seeds, and in brackets the least and the largest value.

# %% tags=["hide-input"]
seeds = read_retrained(profile, "seeds")
spread = pd.DataFrame()
if len(seeds):
    columns = ("score", "settled_from", "flops_share", "retained")
    spreads = [quality.seed_spread(seeds, column).assign(measure=column) for column in columns]
    spread = experiment.save_table(pd.concat(spreads, ignore_index=True), "seed_spread")

# %%
if len(seeds):
    experiment.save_table(seeds, "seeds")
    conclude(chapter.retrained_models(seeds, experiment.model_names), chapter.seeds_conclusion(spread))
else:
    conclude("No seeds are stored: run make retrain.")
chapter.seeds_shown(spread) if len(seeds) else None

# %% [markdown]
# ## What an objective costs before any token exits
#
# Training for exits changes full depth too. Every retrained model is compared with the vanilla model of the same seed
# on the same examples. To the right of 0 a model scores lower than vanilla although no token exits.

# %%
costs = quality.cost_at_full_depth(seeds)
if len(costs):
    marks = "a mark per training run, line: mean over seeds"
    if costs[["low", "high"]].notna().any(axis=None):
        marks += "; whiskers: paired 95 % intervals over examples, where the score of each example is stored"
    figure = chapter.costs_figure(costs, experiment.note(intervals=marks))
    experiment.save_figure(figure, "cost_at_full_depth", costs)
conclude(chapter.costs_conclusion(costs) if len(costs) else "No seeds are stored: run make retrain.")

# %% [markdown]
# ## What this shows

# %% tags=["hide-input"]
trained = [name for name in experiment.model_names if name in chosen]
conclude(chapter.summary(by_metric, spread, costs, layers, trained))

# %% [markdown]
# **Next:** [01, monotonicity](01_monotonicity.ipynb): does a prediction, once made, stay?

# %% tags=["hide-input"]
experiment.finish()
