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
# ones are longer (58 against 11 tokens). From the first layer on, similarity rises strictly for 24 % of the easy
# prefixes and 3 % of the difficult ones; from a later layer on, for nearly all difficult ones (97 %).
#
# **What we do.** As in the paper, a prefix is called easy if its states come close in angle to the last layer's state
# early on, measured by the mean similarity over layers (Table 1). Every prefix of every reference gives one token $t$
# to predict; its similarity at layer $l$, and the first layer whose state is similar to the last layer's, are
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
limit = 70  # examples of each task
max_new_tokens = 48  # longest reference, in tokens
threshold = 0.9  # cosine from which a state counts as similar to the last layer's (MEE: 0.9)
share = 0.4  # share of the prefixes that is called easy, and difficult (MEE: 1,000 of 2,500)
frequency_limit = 5000  # training targets in which token frequencies are counted

# %% tags=["hide-input"]
from collections import Counter
from itertools import chain

import numpy as np
import pandas as pd
from IPython.display import display

from mee_utils import trace
from mee_utils.analysis import saturation
from mee_utils.analysis.model_quality import token_difficulty
from mee_utils.analysis.monotonicity import token_text
from mee_utils.analysis.statistics import NOTHING, mean_interval
from mee_utils.analysis.survey import by_part
from mee_utils.companion import Experiment, claims, figures
from mee_utils.companion.published_numbers import published_saturation
from mee_utils.models.families import final_norm_of
from mee_utils.tasks.synthetic.words import DIFFICULTIES

experiment = Experiment.of_notebook("02_saturation", globals())
bands = experiment.note(limit, "bands: 95 % intervals over sequences")
whiskers = experiment.note(limit, "whiskers: 95 % intervals over sequences")
layers = experiment.layers
third = layers // 3
main = experiment.main
tokenizer = experiment.tokenizer()

# %% [markdown]
# ## Similarity
#
# We run the decoder with teacher forcing on the references and store $c_t^l$ for every token and layer (a *trace*).
# For a few sentences we keep the states, too, and compute $c_t^l$ by hand. The final norm divides a state by its
# length and multiplies it by a weight for each dimension; a cosine does not see the length.

# %%
tasks = experiment.tasks(limit)
along = {
    (task, name): trace(
        experiment.model(name, task), tasks[task].inputs, tasks[task].targets, max_new_tokens=max_new_tokens
    )
    for task in tasks
    for name in experiment.backbones
}

first_task = next(iter(tasks))
model = experiment.model(main, first_task)
few = (tasks[first_task].inputs[:5], tasks[first_task].targets[:5])
t = trace(model, *few, max_new_tokens=max_new_tokens, states=experiment.scratch("states.npy"))
weight = final_norm_of(model.network).weight.detach().float().cpu().numpy()
x = t.states * weight  # [token, layer, dimension]
x = x / np.linalg.norm(x, axis=-1, keepdims=True)
np.testing.assert_allclose((x * x[:, -1:]).sum(axis=-1), t.final_similarity, atol=0.01)

# %% [markdown]
# From this follows all that is said of a prefix: $f_t$, how many layers are similar, the mean similarity, and whether it
# rises strictly. The loss is the model's own, $-\log p_t^L$ of the reference's token.

# %%
training = experiment.tasks(frequency_limit, "train")
prefixes = {key: saturation.describe(t, threshold) for key, t in along.items()}  # a row a prefix
for (task, name), table in prefixes.items():
    t = along[task, name]
    similar = t.final_similarity.astype(float) >= threshold  # [token, layer]
    np.testing.assert_array_equal(table.first_similar, similar.argmax(axis=1) + 1)
    frequency = Counter(chain(*tokenizer(training[task].targets).input_ids))
    table["log_frequency"] = np.log1p([frequency[int(token)] for token in t.token_id])
    if tasks[task].spans is not None:
        table["difficulty"] = token_difficulty(tasks[task], tokenizer, max_new_tokens)

# %% [markdown]
# ## Table 1: easy against difficult, selected as published
#
# Prefixes are ranked by their mean similarity over layers 1 to L - 1; the top and the bottom 40 % are compared, as
# published. Length is the number of *tokens* before the prediction (the published code counted characters of a decoded
# string). The table sets CALM, the model the paper used, against the published numbers: means, with layers as a share of
# the depth (24 layers there, 12 here; the published ones count from 0, so we add one). Standard deviations are in the
# stored table.


# %%
def easy_and_difficult(table, selected_by, **labels):
    groups = saturation.select(table, selected_by, share)
    return saturation.compare(table, groups, **labels, selected_by=selected_by)


table_1 = experiment.table(easy_and_difficult, prefixes, selected_by="mean_similarity")
table_1 = experiment.save_table(table_1, "table_1")
beside = published_saturation(table_1[table_1.model == main], layers)
experiment.save_table(beside, "table_1_beside_published")

names = {
    "first_similar": "first similar state",
    "similar_states": "similar states",
    "prefix_tokens": "length",
    **{f"rises_after_{start}": f"rises strictly after layer {start}" for start in saturation.starts(layers)},
    "rises_after_0": "rises strictly from layer 1",
}
shown = beside.assign(property=beside.property.map(names), task=beside.task.map(figures.label))
display(shown.pivot(index=["property", "unit"], columns=["task", "group"], values="mean").round().astype(int))

# %% [markdown]
# In depth the contrast has the published direction and is smaller. Easy prefixes have their first similar state
# after 59 to 62 % of the depth, difficult ones after 65 to 73 % (published: 40 and 81 %).
#
# **Length and strict rise are not reproduced.** The published easy prefixes are five times as long as the difficult ones.
# Here they are longer on question answering (4.4 against 3.3 tokens), equally long on summarization (19) and *shorter* on
# translation (10 against 13). Similarity rises strictly from the first layer for 96 to 100 % of the prefixes of either
# kind, not for 24 and 3 %. So neither is a property of easy prefixes as such. Both may be properties of a larger model, or
# of the paper's longer outputs.
#
# ### Single prefixes (the paper's appendix A)
#
# Three easy and three difficult prefixes of CALM: the first, middle and last of the easiest and of the hardest fifth,
# each named by the token that it predicts.

# %%
singles = [
    saturation.examples(along[task, main], prefixes[task, main], token_text(tokenizer), task=task)
    for task in tasks
]
singles = pd.concat(singles, ignore_index=True)
figure, panels = figures.panels(
    singles, title="Similarity of single prefixes with the last layer's state", note=experiment.note()
)
for axis, rows in panels:
    axis.axhline(threshold, color=figures.GREY, linewidth=0.8, linestyle=":")
    for (group, number, token), part in rows.groupby(["group", "example", "token"], sort=False):
        style = figures.STYLES[group]
        look = {"color": style.colour, "dashes": style.dashes, "marker": "o^s"[number - 1], "linewidth": 1.2}
        axis.plot(part.layer, part.similarity, **look, label=f'{group}: "{token}"'.replace("$", r"\$"))
    axis.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.3))
    axis.set(ylabel="cosine", ylim=(-0.3, 1.03), yticks=[0, 0.25, 0.5, 0.75, 1])
    figures.layer_axis(axis, layers)
experiment.save_figure(figure, "single_prefixes", singles, with_legend=False)

# %% [markdown]
# ## What is circular in this
#
# If we select by similarity and then report similarity, a contrast is bound to appear. How much of it is due to the
# selection alone? We shuffle the similarities of each layer among all prefixes of CALM. Each layer keeps its
# distribution of similarities, but now no prefix is easier than another.

# %%
random = np.random.default_rng(0)
for task in tasks:
    c = along[task, main].final_similarity.astype(float)  # [prefix, layer]
    number = round(share * len(c))
    apart = []
    for similarity in (c, random.permuted(c, axis=0)):
        first = (similarity >= threshold).argmax(axis=1) + 1
        order = similarity[:, :-1].mean(axis=1).argsort()  # from difficult to easy
        apart.append(first[order[:number]].mean() - first[order[-number:]].mean())
    print(f"{task}: difficult prefixes {apart[0]:.1f} layers later, if shuffled {apart[1]:.1f}")

# %% [markdown]
# Part of the contrast survives the shuffling, so that difficult prefixes become similar later shows nothing by
# itself. Contrary to our expectation, the larger part is not due to the selection alone: prefixes keep their rank
# from layer to layer. But mean similarity and first similar layer are two summaries of the same curve, and cannot say
# whether a token is easy in any other sense.
#
# So we select a second time, by the model's loss on the token. (On synthetic data the table also selects by known
# difficulty: grammatical and copied tokens against all others.) What contrast survives another criterion is
# the finding.

# %%
selected_from = {
    (*key, selected_by): table
    for key, table in prefixes.items()
    for selected_by in ("mean_similarity", "loss", "difficulty")
    if selected_by in table
}
labels = ("task", "model", "selected_by")
compared = experiment.table(easy_and_difficult, selected_from, labels)
compared = experiment.save_table(compared, "three_selections")


def similarity_by_layer(table, task, model, selected_by):
    groups = saturation.select(table, selected_by, share)
    named = {"task": task, "model": model, "selected_by": selected_by}
    return saturation.similarity_curves(along[task, model], groups, **named)


curves = {key: table for key, table in selected_from.items() if key[1] == main}
curves = experiment.table(similarity_by_layer, curves, labels)

# %%
figure, panels = figures.panels(
    curves, down=2, title="Similarity with the last layer's state", note=bands, height=2.3
)
for axes, rows in panels:
    for axis, selected_by in zip(axes, ["mean_similarity", "loss"], strict=True):
        figures.lines(
            axis, rows[rows.selected_by == selected_by], "layer", "similarity", "group", figures.BAND
        )
        axis.set(ylabel=f"cosine, selected\nby {figures.label(selected_by)}")
experiment.save_figure(figure, "circularity", curves)

means = compared[(compared.model == main) & compared.property.isin(["first_similar", "settled_from"])]
means = means.pivot(index=["task", "selected_by"], columns=["property", "group"], values="mean")
later = pd.DataFrame(
    {name: means[name].difficult - means[name].easy for name in ("first_similar", "settled_from")}
)
titles = {
    "first_similar": "first similar state, layers later",
    "settled_from": "final prediction, layers later",
}
display(later.rename(columns=titles, index=figures.label).round(2))

# %% [markdown]
# Selected by similarity, difficult prefixes have their first similar state 0.8 to 1.3 layers after easy ones.
# Selected by loss, the difference is at most 0.2 layers, and about a quarter of the gap in cosine is left. So if
# tokens are selected by loss, the states of easy and of difficult ones saturate at nearly the same layer.
#
# Their predictions do not: tokens of high loss reach their final prediction 1.4 to 3.9 layers after those of low loss.
# Prefixes of low similarity are later, too, by 1.2 to 2.5 layers, so similarity reflects ease in part.
#
# ## All tokens: predictions settle before states do
#
# The share of prefixes that have a similar state by each layer, beside the share whose *prediction* is final by then
# ($s_t$ of chapter 01). The stored table has all models.


# %%
def reached(table, **labels):
    columns = ("first_similar", "settled_from")
    tables = [saturation.reached(table, column, layers, **labels, depth=column) for column in columns]
    return pd.concat(tables)


by_layer = experiment.table(reached, prefixes)
shown = [name for name in ("vanilla", "calm") if name in experiment.backbones] or [main]
figure, panels = figures.panels(
    by_layer, title="Prefixes with a similar state, and with a final prediction", note=bands
)
for axis, rows in panels:
    for name in shown:  # the legend: colours are models, lines are quantities
        axis.plot([], [], color=figures.STYLES[name].colour, label=figures.label(name))
    for name in shown:
        of_model = rows[rows.model == name]
        colour = figures.STYLES[name].colour
        figures.lines(axis, of_model, "layer", "share", "depth", figures.BAND, colour=colour)
    axis.set(ylabel="share of prefixes", ylim=(-0.03, 1.03))
experiment.save_figure(figure, "reached_by_layer", by_layer)

at_third = by_layer[(by_layer.layer == third) & (by_layer.model == main)]
print(f"after layer {third}:", *(f"{row.task} {row.depth} {row.share:.0%}," for row in at_third.itertuples()))
easiest = compared.query(
    "model == @main and selected_by == 'loss' and group == 'easy' and property == 'settled_from'"
)
print("low loss, final from layer:", *(f"{row.task} {row.mean:.1f}," for row in easiest.itertuples()))

# %% [markdown]
# An exit need not wait for a similar state. After a third of the layers 70 to 92 % of CALM's predictions are final, and no
# state is similar to the last layer's. A state can be far away in angle and still predict the same token.
#
# The paper concludes that the first layers are of no use for exits, even for the easiest prefixes, since none of them
# is saturated there. By predictions they are of use: CALM's tokens of low loss are final from layer 2 on average.
#
# ## What predicts depth?
#
# Spearman's rank correlation over all prefixes between properties of a token and how deep it has to go: its first
# similar layer, and the layer from which its prediction is final. The table shows CALM; the stored one has all models and
# intervals over sequences.

# %%
measures = ["loss", "log_frequency", "prefix_tokens", "true_difficulty"]
outcomes = ["first_similar", "settled_from"]


def associations(table, **labels):
    if "difficulty" in table:
        table = table.assign(true_difficulty=table.difficulty.map(DIFFICULTIES.index))
    known = [measure for measure in measures if measure in table]
    return saturation.associations(table, known, outcomes, **labels)


depth = experiment.table(associations, prefixes)
depth = experiment.save_table(depth, "what_foretells_depth")
display(
    depth[depth.model == main].pivot(index=["depth", "measure"], columns="task", values="spearman").round(2)
)

# %% [markdown]
# When a prediction becomes final is best predicted by the model's own loss on summarization and translation (0.58 and 0.62),
# and by the frequency of the token on question answering (-0.52). Frequent tokens settle early everywhere. Position
# hardly matters: the paper suggests that longer prefixes settle earlier, which holds on question answering alone and
# weakly. The first similar state is predicted by nothing well; no correlation exceeds 0.31.
#
# ### True difficulty (synthetic data)
#
# In synthetic data, what it takes to produce a token is known by construction. Kinds of tokens are ordered from easy to
# hard as the generator defines them; those with fewer than 20 tokens are left out. Real text has no such labels.

# %%
synthetic = {key: table for key, table in prefixes.items() if "difficulty" in table}
if synthetic:
    by_difficulty = experiment.table(saturation.depth_by_difficulty, synthetic, order=DIFFICULTIES)
    by_difficulty = by_difficulty.sort_values("depth", ascending=False, kind="stable")
    figure, panels = figures.panels(
        by_difficulty[by_difficulty.model.isin(["calm", "vanilla"])],
        down=2,
        title="How deep tokens go, by what it takes to produce them",
        note=whiskers,
        width=4.0,
        height=2.5,
        sharex="col",
    )
    for axes, rows in panels:
        for axis, outcome in zip(axes, ["settled_from", "first_similar"], strict=True):
            figures.grouped_bars(axis, rows[rows.depth == outcome], "difficulty", "mean_layer", rotation=30)
            axis.set(ylabel="mean layer,\n" + {"settled_from": "final", "first_similar": "similar"}[outcome])
    experiment.save_figure(figure, "depth_by_difficulty", by_difficulty)
else:
    print("No synthetic data in this profile: see profile small.")

# %% [markdown]
# On profile `small`, predictions follow true difficulty: on average over the tasks, CALM's grammatical tokens are final
# first and its counted ones last. States do not: grammatical tokens, the easiest, become similar later than copied ones
# on every task.
#
# ## Confident, and not saturated
#
# A layer can be confident of the token while its state is still far from the last layer's. After a third of the
# layers, for how many tokens does the top-1 probability exceed the same value, $\theta$, and how many of these have
# no similar state by then? And do tokens get easier along an output? We look at the entropy of the last layer in each
# third of the outputs.


# %%
def confident_and_apart(t, task, model):
    sure = t.top1_probability[:, third - 1] > threshold
    apart = prefixes[task, model].first_similar.to_numpy()[sure] > third
    share_apart = mean_interval(apart, t.sequence[sure]) if sure.any() else NOTHING
    return {"task": task, "model": model, "sure": sure.mean(), **share_apart.columns("unsaturated")}


def last_entropy(t, **labels):
    thirds = by_part(t.entropy[:, -1], t, **labels)
    return thirds.rename(columns={"mean": "entropy", "mean_draws": "entropy_draws"})


confident = experiment.save_table(experiment.table(confident_and_apart, along), "confident_unsaturated")
thirds = experiment.save_table(experiment.table(last_entropy, along), "entropy_by_place")
of_main = confident[confident.model == main].set_index("task")
places = thirds[thirds.model == main].pivot(index="task", columns="part", values="entropy")
display(of_main[["sure", "unsaturated"]].join(places.add_prefix("entropy, third ")).round(2))

# %% [markdown]
# Confidence does not require saturation. After layer 4, CALM is confident of 28 to 62 % of the tokens, and not one of these
# has a similar state. Nor do tokens always get easier along an output: from the first to the last third the last layer's
# entropy halves on question answering (0.13 to 0.07 nats), stays as it is on translation (0.6) and grows on
# summarization (1.6 to 2.4).
#
# ## What this shows, and what it does not
#
# The paper's selection finds prefixes whose states saturate early; that their tokens are easy is true in part.
# Selected by loss, easy tokens have their final prediction much earlier than difficult ones, but their states
# saturate at the same layer. For exits the prediction is what counts, and it is final long before the state is. The
# paper's other two contrasts, longer easy prefixes and strictly rising similarity, are not reproduced. All of this is
# measured at full depth, along references, on small models of twelve layers and outputs of a sentence or two.
#
# ## Statements, published and ours
#
# *Published* is the number, or how MEE makes the statement. Prefixes are selected by loss here, and "longer" means at
# least half as long again. Whether a statement holds, corrected for the number of tests, is in the
# [ledger](../figures/results/ledger.md).

# %%
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
verdicts = claims.judge("02_saturation", tables, layers=layers)
claims.show_judged(experiment.save_table(verdicts, "claims"))

# %% tags=["hide-input"]
experiment.finish()
