# %% [markdown]
# # 02 · Saturation: which tokens are easy?
#
# [‹ 01 monotonicity](01_monotonicity.ipynb) · [all notebooks](../README.md#the-notebooks) · [03 pruning ›](03_pruning.ipynb)
#
# **Question.** A state that has stopped changing gains nothing from further layers. For which tokens does
# that happen early, and are those the *easy* ones by any definition that is not circular?
#
# **What the paper says** (MEE, section 4; T5-large, CNN/DailyMail, 24 layers). The prefixes whose states are most
# similar to the last layer's state become similar at layer 8.65 on average, the least similar ones at 18.46; the easy
# ones are longer (58 against 11 tokens). Counted from the first layer, similarity rises strictly for more easy than
# difficult prefixes (24 % against 3 %); counted from a later layer, it does so for nearly all difficult ones (97 %).
#
# **What we do.** A token is called easy if its state comes close to the last layer's after only a few layers, that is,
# if the angle between the two is small. Every prefix of every reference gives one token $t$ to predict; its similarity
# at layer $l$, and the first layer whose state is similar to the last layer's, are
#
# $$c_t^l = \cos\bigl(n(h_t^l),\,n(h_t^L)\bigr),
# \qquad f_t = \min\,\{\,l : c_t^l \ge \theta\,\}, \quad \theta = 0.9,$$
#
# where $n$ is the final layer norm and $L$ the last layer.
#
# We repeat the published selection, show how much of the table follows from the selection alone, and compare it with
# measures of difficulty that do not look at states: the model's loss, the frequency of a token, its position, and, on
# synthetic data, what it *takes* to produce it.
#
# **Expectation, before running:** the published contrast in depth will reappear, because it is built in,
# and shrink once tokens are selected by something else; the layer of the final prediction will follow true
# difficulty, but less closely than it follows loss.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 200  # examples of each task
max_new_tokens = 48  # longest reference, in tokens
threshold = 0.9  # cosine from which a state counts as similar to the last layer's (MEE: 0.9)
share = 0.4  # share of the prefixes that is called easy, and difficult (MEE: 1,000 of 2,500)
frequency_limit = 5000  # training targets in which token frequencies are counted

# %% tags=["hide-input"]
from collections import Counter
from itertools import chain

import numpy as np
import pandas as pd

from mee_utils import trace
from mee_utils.analysis import saturation
from mee_utils.analysis.model_quality import token_difficulty
from mee_utils.analysis.monotonicity import token_text
from mee_utils.analysis.statistics import NOTHING, mean_interval
from mee_utils.analysis.survey import by_part
from mee_utils.companion import Experiment, claims
from mee_utils.companion.chapters import saturation as chapter
from mee_utils.companion.numbers import save_numbers
from mee_utils.companion.prose import conclude
from mee_utils.companion.published_numbers import published_saturation
from mee_utils.tasks.synthetic.words import DIFFICULTIES

# %% tags=["hide-input"]
experiment = Experiment.of_notebook("02_saturation", globals())
bands = experiment.note(limit, "bands: 95 % intervals over sequences")
whiskers = experiment.note(limit, "whiskers: 95 % intervals over sequences")
tasks = experiment.tasks(limit)
training = experiment.tasks(frequency_limit, "train")
layers = experiment.layers
tokenizer = experiment.tokenizer()

# %% tags=["hide-input"]
along = {
    (task, name): trace(
        experiment.model(name, task), tasks[task].inputs, tasks[task].targets, max_new_tokens=max_new_tokens
    )
    for task in tasks
    for name in experiment.backbones
}
prefixes = {key: saturation.describe(t, threshold) for key, t in along.items()}
for (task, name), table in prefixes.items():
    frequency = Counter(chain(*tokenizer(training[task].targets).input_ids))
    table["log_frequency"] = np.log1p([frequency[int(token)] for token in along[task, name].token_id])
    if tasks[task].spans is not None:
        table["difficulty"] = token_difficulty(tasks[task], tokenizer, max_new_tokens)
synthetic = {key: table for key, table in prefixes.items() if "difficulty" in table}
calm = {key: table for key, table in prefixes.items() if key[1] == "calm"}

# %% [markdown]
# ## Table 1: easy against difficult, selected as published
#
# Prefixes are ranked by their mean similarity over layers 1 to L - 1; the top and the bottom 40 % are compared, as
# published. Length is the number of *tokens* before the prediction (the published code counted characters of a decoded
# string). The table sets CALM, the model the paper used, against the published numbers. Layers are given as a share of
# the depth (24 layers there), with the standard deviation over prefixes. (The published layers count from 0, so we add
# one. The share of prefixes that rise strictly is published without a deviation.)


# %% tags=["hide-input"]
def easy_and_difficult(table, selected_by, **labels):
    groups = saturation.select(table, selected_by, share)
    return saturation.compare(table, groups, **labels, selected_by=selected_by)


table_1 = experiment.table(easy_and_difficult, prefixes, selected_by="mean_similarity")
table_1 = experiment.save_table(table_1, "table_1")
of_calm = table_1[table_1.model == "calm"]
beside = published_saturation(of_calm, layers) if len(of_calm) else pd.DataFrame()

# %%
if len(beside):
    experiment.save_table(beside, "table_1_beside_published")
conclude(chapter.table_conclusion(table_1, layers))
chapter.beside_shown(beside) if len(beside) else chapter.table_shown(table_1)

# %% [markdown]
# ## All tokens, not only the two ends
#
# The share of prefixes that have a similar state by each layer (solid), beside the share whose *prediction*
# is final by then (dotted). The stored table has all models.


# %% tags=["hide-input"]
def reached(table, **labels):
    columns = ("first_similar", "settled_from")
    tables = [saturation.reached(table, column, layers, **labels, depth=column) for column in columns]
    return pd.concat(tables)


by_layer = experiment.table(reached, prefixes)

# %%
figure = chapter.reached_figure(by_layer, bands)
experiment.save_figure(figure, "reached_by_layer", by_layer)
conclude(chapter.reached_conclusion(by_layer))

# %% [markdown]
# ## Individual prefixes (as in the paper's appendix A)
#
# Three easy and three difficult prefixes of CALM: the first, middle and last of the easiest and of the hardest fifth.
# The legend names each by the token that it predicts.

# %% tags=["hide-input"]
singles = [
    saturation.examples(along[task, name], table, token_text(tokenizer), task=task)
    for (task, name), table in calm.items()
]

# %%
if singles:
    figure = chapter.prefixes_figure(pd.concat(singles, ignore_index=True), threshold, experiment.note())
    experiment.save_figure(figure, "single_prefixes", pd.concat(singles, ignore_index=True))
    conclude(chapter.prefixes_conclusion(pd.concat(singles)))

# %% [markdown]
# ## What is circular in this
#
# Selecting by similarity and then reporting similarity must show a contrast, even in noise (a test of this package
# shows it for random states). The figure therefore compares two selections: by similarity, and by the model's loss on
# the token. (On synthetic data the table also selects by known difficulty: grammatical and copied tokens against all
# others.) Whatever contrast survives a different selection criterion is the actual finding.

# %% tags=["hide-input"]
selected_from = {
    (*key, selected_by): table
    for key, table in prefixes.items()
    for selected_by in ("mean_similarity", "loss", "difficulty")
    if selected_by in table
}
labels = ("task", "model", "selected_by")
compared = experiment.table(easy_and_difficult, selected_from, labels)
compared = experiment.save_table(compared, "three_selections")


# %% tags=["hide-input"]
def similarity(table, task, model, selected_by):
    groups = saturation.select(table, selected_by, share)
    named = {"task": task, "model": model, "selected_by": selected_by}
    return saturation.similarity_curves(along[task, model], groups, **named)


curves = {key: table for key, table in selected_from.items() if key[1] == "calm"}
curves = experiment.table(similarity, curves, labels)

# %%
if len(curves):
    figure = chapter.circularity_figure(curves, bands)
    experiment.save_figure(figure, "circularity", curves)
conclude(chapter.circularity_conclusion(compared))
chapter.gaps_shown(compared)

# %% [markdown]
# ## What predicts depth?
#
# Spearman's rank correlation over all prefixes between properties of a token and how deep it has to go: its first
# similar layer, and the layer from which its prediction is final. Intervals (in the stored table) are over sequences.

# %%
measures = ["loss", "log_frequency", "prefix_tokens"]
outcomes = ["first_similar", "settled_from"]
depth = experiment.table(saturation.associations, prefixes, measures=measures, outcomes=outcomes)
depth = experiment.save_table(depth, "what_foretells_depth")
conclude(chapter.depth_conclusion(depth))

# %%
if synthetic:
    conclude(chapter.TRUE_DIFFICULTY)
    by_difficulty = experiment.table(saturation.depth_by_difficulty, synthetic, order=DIFFICULTIES)
    by_difficulty = by_difficulty.sort_values("depth", ascending=False, kind="stable")
    experiment.save_figure(
        chapter.difficulty_figure(by_difficulty, whiskers), "depth_by_difficulty", by_difficulty
    )
    conclude(chapter.difficulty_conclusion(by_difficulty))
else:
    conclude(
        "Difficulty is known only for synthetic data; this chapter's page on them shows depth against it."
    )

# %% tags=["hide-input"]
if synthetic:
    ranked = {
        key: table.assign(true_difficulty=table.difficulty.map(DIFFICULTIES.index))
        for key, table in synthetic.items()
    }
    both = ["true_difficulty", "loss"]
    beside_loss = experiment.table(saturation.associations, ranked, measures=both, outcomes=["settled_from"])
    experiment.save_table(beside_loss, "difficulty_and_loss")
    conclude(chapter.difficulty_beside_loss(beside_loss))

# %% [markdown]
# ## Confident, and not saturated
#
# A layer can be confident of the token while its state is still far from the last layer's. For how many tokens does the
# top-1 probability exceed $\theta$ too after a third of the layers, and how many have a similar state by then? And do
# tokens get easier along an output? We look at the entropy of the last layer in each third of the outputs.

# %% tags=["hide-input"]
third = layers // 3


def confident_and_apart(t, task, model):
    sure = t.top1_probability[:, third - 1] > threshold
    apart = prefixes[task, model].first_similar.to_numpy()[sure] > third
    share_apart = mean_interval(apart, t.sequence[sure]) if sure.any() else NOTHING
    return {"task": task, "model": model, "sure": sure.mean(), **share_apart.columns("unsaturated")}


def last_entropy(t, **labels):
    thirds = by_part(t.entropy[:, -1], t, **labels)
    return thirds.rename(columns={"mean": "entropy", "mean_draws": "entropy_draws"})


# %%
confident = experiment.save_table(experiment.table(confident_and_apart, along), "confident_unsaturated")
thirds = experiment.save_table(experiment.table(last_entropy, along), "entropy_by_place")
conclude(chapter.confident_conclusion(confident, thirds, by_layer))

# %% [markdown]
# ## Each published statement beside our number
#
# Prefixes are selected by loss here, and "longer" means at least half as long again.

# %% tags=["hide-input"]
tables = {
    task: {
        "selections": compared[compared.task == task],
        "depth": depth[depth.task == task],
        "reached": by_layer[by_layer.task == task],
        "confident": confident[confident.task == task],
        "thirds": thirds[thirds.task == task],
    }
    for task in tasks
}

# %%
verdicts = claims.judge("02_saturation", tables, layers=layers)
claims.show_judged(experiment.save_table(verdicts, "claims"))

# %% [markdown]
# ## What this shows

# %% tags=["hide-input"]
conclude(chapter.summary(by_layer, compared, depth))

# %% [markdown]
# **Next:** [03](03_pruning.ipynb): must a decision score the whole vocabulary?

# %% tags=["hide-input"]
save_numbers(experiment.run)
experiment.finish()
