# %% [markdown]
# # 02 · Saturation: which tokens are easy?
#
# [‹ 01 monotonicity](01_monotonicity.ipynb) · [all notebooks](../README.md#the-notebooks) · [03 pruning ›](03_pruning.ipynb)
#
# **Question.** A state that has stopped changing gains nothing from further layers. For which tokens does
# that happen early, and are those the *easy* ones in any sense that does not already contain the answer?
#
# **What the paper says** (MEE, section 4; T5-large, CNN/DailyMail, 24 layers). The prefixes whose states
# are most similar to the last one become similar at layer 8.65 on average, the least similar ones at 18.46;
# the easy ones are longer (58 against 11 tokens) and rise strictly from the first layer more often (24 %
# against 3 %), while the difficult ones rise strictly later on (97 %).
#
# **What we do.** Every prefix of every reference is one token $t$ to predict. Its similarity at layer $l$,
# and the first layer that is similar to the last one, are
#
# $$c_t^l = \cos\bigl(n(h_t^l),\,n(h_t^L)\bigr),
# \qquad f_t = \min\,\{\,l : c_t^l \ge \theta\,\}, \quad \theta = 0.9.$$
#
# We repeat the published selection, show how much of the table follows from the selection alone, and set
# measures of difficulty beside it that do not look at states: the model's loss, the frequency of a token,
# its position, and, on synthetic data, what it *takes* to produce it.
#
# **Expectation, before running:** the published contrast in depth will reappear, because it is built in,
# and shrink once tokens are selected by something else; depth will follow true difficulty, but less closely
# than it follows loss. (On CALM in `small` the contrast mostly turned round. Loss and true difficulty came
# out much alike.)

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 200  # examples of each task
max_new_tokens = 48  # longest reference, in tokens
threshold = 0.9  # cosine from which a state counts as similar to the last one (MEE: 0.9)
share = 0.4  # share of the prefixes that is called easy, and difficult (MEE: 1,000 of 2,500)
frequency_limit = 5000  # training targets in which token frequencies are counted

# %%
from collections import Counter
from itertools import chain

import numpy as np
import pandas as pd

from mee_utils import Experiment, trace
from mee_utils.analysis import saturation
from mee_utils.analysis.model_quality import token_difficulty
from mee_utils.analysis.monotonicity import token_text
from mee_utils.analysis.statistics import NOTHING, mean_interval
from mee_utils.analysis.survey import by_part
from mee_utils.paper import claims
from mee_utils.paper.numbers import save_numbers
from mee_utils.paper.published_numbers import published_saturation
from mee_utils.study import figures
from mee_utils.study.figures import label
from mee_utils.tasks.synthetic.words import DIFFICULTIES

# %%
experiment = Experiment.of_notebook("02_saturation", globals())
note = f"profile {profile}, n = {limit} examples a task"
tasks = experiment.tasks(limit)
training = experiment.tasks(frequency_limit, "train")
models = experiment.models(experiment.backbones)
layers = experiment.layers
tokenizer = experiment.tokenizer()

# %%
along = {
    (task, name): trace(model, tasks[task].inputs, tasks[task].targets, max_new_tokens=max_new_tokens)
    for task in tasks
    for name, model in models.items()
}
prefixes = {key: saturation.describe(t, threshold) for key, t in along.items()}

# %%
for (task, name), table in prefixes.items():
    frequency = Counter(chain(*tokenizer(training[task].targets).input_ids))
    table["log_frequency"] = np.log1p([frequency[int(token)] for token in along[task, name].token_id])
    if tasks[task].spans is not None:
        table["difficulty"] = token_difficulty(tasks[task], tokenizer, max_new_tokens)
synthetic = {key: table for key, table in prefixes.items() if "difficulty" in table}
calm = {key: table for key, table in prefixes.items() if key[1] == "calm"}
print(", ".join(f"{label(task)}: {len(table)} prefixes" for (task, _), table in calm.items()))

# %% [markdown]
# ## Table 1: easy against difficult, selected as published
#
# Prefixes are ranked by their mean similarity over layers 1 to L - 1; the top and the bottom end are
# compared. Length is in *tokens* before the prediction (the published code counted characters of a decoded
# string). The table shown is that of CALM, the model the paper used; the stored one has all models.


# %%
def easy_and_difficult(table, selected_by, **labels):
    groups = saturation.select(table, selected_by, share)
    return saturation.compare(table, groups, **labels, selected_by=selected_by)


table_1 = experiment.table(easy_and_difficult, prefixes, selected_by="mean_similarity")
table_1 = experiment.save_table(table_1, "table_1")
ours = table_1[table_1.model == "calm"].pivot(index="property", columns=["task", "group"], values="mean")
ours.rename(index=label).round(2)

# %% [markdown]
# Beside the published table: layers as a share of the depth, since 12 layers are not 24, and the standard deviation
# over prefixes behind each mean. The published layers are counted from 0; one is added. (The share of prefixes
# that rise strictly is published without one.)

# %%
of_calm = table_1[table_1.model == "calm"]
beside = published_saturation(of_calm, layers) if len(of_calm) else pd.DataFrame()
if len(beside):
    experiment.save_table(beside, "table_1_beside_published")
for (name, unit), rows in beside.groupby(["property", "unit"], sort=False) if len(beside) else ():
    print(f"{label(name)}, {unit}:")
    for task, groups in rows.set_index("group").groupby("task", sort=False):
        texts = [f"{group} {groups['mean'][group]:.0f}" for group in saturation.GROUPS]
        spread = groups.standard_deviation
        if spread.notna().all():
            texts = [f"{text} (sd {spread[g]:.0f})" for text, g in zip(texts, saturation.GROUPS, strict=True)]
        print(f"   {label(task)}: {', '.join(texts)}")

# %% [markdown]
# ## All tokens, not only the two ends
#
# The share of prefixes that have a similar state by each layer (solid), beside the share whose *prediction*
# is final by then (dotted): a state can be far from the last one and predict the same token. Bands are 95 %
# intervals over sequences.


# %%
def reached(table, **labels):
    columns = ("first_similar", "settled_from")
    tables = [saturation.reached(table, column, layers, **labels, depth=column) for column in columns]
    return pd.concat(tables)


def draw(axis, rows):
    colour = figures.STYLES[rows.model.iloc[0]].colour
    figures.lines(axis, rows, "layer", "share", "depth", figures.BAND, colour=colour)


by_layer = experiment.table(reached, prefixes)
size = {"width": 2.8, "height": 2.3}
figure = figures.facets(by_layer, draw, "model", row="task", ylabel="share of prefixes", **size, note=note)
experiment.save_figure(figure, "reached_by_layer", by_layer)

# %%
at_third = by_layer[by_layer.layer == layers // 3].set_index(["task", "model", "depth"]).share
for task, _ in calm:
    similar = at_third[task, "calm", "first_similar"]
    final = at_third[task, "calm", "settled_from"]
    shown = f"{similar:.1%} have a similar state, {final:.1%} their final prediction"
    print(f"CALM, {label(task)}, after layer {layers // 3}: {shown}")

# %% [markdown]
# ## Appendix A: single prefixes
#
# Three easy and three difficult prefixes of CALM, at the first, middle and last rank of the two outer
# fifths. The tokens that they predict stand in the lower right corner.


# %%
def draw(axis, rows):
    for _, part in rows.groupby("example"):
        figures.lines(axis, part, "layer", "similarity", "group")
    axis.axhline(threshold, color=figures.GREY, linewidth=0.8, linestyle=":", label=f"threshold {threshold}")
    words = rows.drop_duplicates(["group", "example"]).groupby("group", sort=False).token.agg(", ".join)
    said = "\n".join(f"{group}: {tokens}" for group, tokens in words.items())
    axis.text(0.97, 0.04, said, transform=axis.transAxes, ha="right", fontsize=8)


# %%
if calm:
    singles = [
        saturation.examples(along[task, name], table, token_text(tokenizer), task=task)
        for (task, name), table in calm.items()
    ]
    drawn = pd.concat(singles, ignore_index=True)
    figure = figures.facets(drawn, draw, ylabel="cosine with the\nlast layer's state", note=note)
    experiment.save_figure(figure, "single_prefixes", drawn)

# %% [markdown]
# ## What is circular in this
#
# To select by similarity and then report similarity must show a contrast, even in noise (a test of this
# package does it with random states). So here are the same rows with prefixes selected by something else:
# by the model's loss on the token, and by known difficulty (grammatical and copied tokens against all
# others). What remains of the contrast is what the finding is worth.

# %%
selections = ("mean_similarity", "loss", "difficulty")
selected_from = {
    (*key, selected_by): table
    for key, table in prefixes.items()
    for selected_by in selections
    if selected_by in table
}
labels = ("task", "model", "selected_by")
compared = experiment.table(easy_and_difficult, selected_from, labels)
experiment.save_table(compared, "three_selections")
wanted = ["first_similar", "settled_from", "prefix_tokens"]
gaps = compared[(compared.model == "calm") & compared.property.isin(wanted)]
gaps = gaps.pivot(index=["task", "selected_by"], columns=["property", "group"], values="mean")
gaps.rename(index=label, columns=label).round(2)


# %%
def similarity(table, task, model, selected_by):
    groups = saturation.select(table, selected_by, share)
    named = {"task": task, "model": model, "selected_by": selected_by}
    return saturation.similarity_curves(along[task, model], groups, **named)


curves = {key: table for key, table in selected_from.items() if key[1] == "calm"}
curves = experiment.table(similarity, curves, labels)
shown = curves.assign(selected_by="CALM, selected by " + curves.selected_by.map(label))
drawing = {"x": "layer", "y": "similarity", "by": "group", "band": figures.BAND}
look = {"ylabel": "cosine with the\nlast layer's state", "height": 2.3, "note": note}
figure = figures.facets(shown, figures.lines, "selected_by", row="task", **drawing, **look)
experiment.save_figure(figure, "circularity", curves)

# %%
for (task, by), row in gaps.iterrows():
    later = row["first_similar", "difficult"] - row["first_similar", "easy"]
    settled = row["settled_from", "difficult"] - row["settled_from", "easy"]
    print(
        f"{label(task)}, by {label(by)}: difficult tokens become similar {later:+.2f} layers later, "
        f"settle {settled:+.2f} layers later"
    )

# %% [markdown]
# ## What predicts depth?
#
# Spearman's rank correlation over all prefixes between what could be known of a token and how deep it has
# to go: its first similar layer, and the layer from which its prediction is final. Intervals are over
# sequences.

# %%
measures = ["loss", "log_frequency", "prefix_tokens"]
outcomes = ["first_similar", "settled_from"]
depth = experiment.table(saturation.associations, prefixes, measures=measures, outcomes=outcomes)
experiment.save_table(depth, "what_foretells_depth")
for row in depth[(depth.model == "calm") & (depth.depth == "settled_from")].itertuples():
    correlation = f"{row.spearman:+.2f} ({row.low:+.2f} to {row.high:+.2f})"
    print(f"CALM, {label(row.task)}, {label(row.measure)}: {correlation}")

# %% [markdown]
# ## Depth against true difficulty
#
# This figure is not possible on a real corpus: what it takes to produce a token is known by construction,
# and here is how deep each kind goes in each model. Above: the layer from which the prediction is final;
# below: the first layer whose state is similar to the last one. Difficulties go from easy to hard as the
# generator means them; those with fewer than twenty tokens are left out.

# %%
if synthetic:
    by_difficulty = experiment.table(saturation.depth_by_difficulty, synthetic, order=DIFFICULTIES)
    by_difficulty = by_difficulty.sort_values("depth", ascending=False, kind="stable")
    bars = {"x": "difficulty", "y": "mean_layer", "rotation": 30}
    look = {"ylabel": "mean layer", "sharex": "col", "width": 4.0, "note": note}
    figure = figures.facets(by_difficulty, figures.grouped_bars, row="depth", **bars, **look)
    experiment.save_figure(figure, "depth_by_difficulty", by_difficulty)
else:
    print("true difficulty is known for synthetic data only")

# %%
if synthetic:
    settled = by_difficulty[by_difficulty.depth == "settled_from"]
    settled = settled[settled.model.isin(["vanilla", "calm"])].sort_values("mean_layer", kind="stable")
    for (task, name), rows in settled.groupby(["task", "model"], sort=False):
        layers_of = ", ".join(f"{label(r.difficulty)} {r.mean_layer:.1f}" for r in rows.itertuples())
        print(f"{label(name)}, {label(task)}, final from layer: {layers_of}")

# %% [markdown]
# ## Confident, and not saturated
#
# A state can be far from the last one and be sure of the token all the same: of the tokens whose top-1
# probability exceeds the threshold after a third of the layers, the share that has no similar state by then.
# And does it get easier along the output? The entropy of the last layer, by thirds of the outputs.

# %%
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
confident.pivot(index="task", columns="model", values="unsaturated").round(3)

# %% [markdown]
# ## Each published statement beside our number

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
experiment.save_table(verdicts, "claims")[["claim", "published", "task", "ours", "alone"]]

# %% [markdown]
# ## What this shows, and what it does not
#
# Similarity ranks tokens by how early their states stop moving, and that is not the same as easy. Select by
# something else (`circularity`), by loss or by known difficulty, and most of MEE's contrast is gone: difficult
# tokens have their final prediction later, but in CALM their states become similar hardly later, in profile
# `small` even a little earlier (in vanilla mostly later). Perhaps later layers go on
# sharpening a token that is already certain, which moves its state. So nearness to the last state does not mark
# the easy tokens (what rules on similarity make of that is in 05). Nor does an exit have to wait for a similar state: in `reached_by_layer` most
# predictions of CALM are final before any state is similar to the last. What does predict depth is the model's
# own loss, and how rare a token is (`what_foretells_depth`), and, on synthetic data, partly the true
# difficulty (`depth_by_difficulty`): what finds, counts or compares goes deeper than grammar, but so do most copies. The models of profile
# `small` answer nearly all of it (00), so depth there is that of success. Everything here is at full depth along
# references; no token exits.
#
# *Of the published table*, as a share of the depth, the difficult end comes out nearly as published (the first similar
# state; the table beside the published one has both), and the easy end does not: it comes much later. Models and corpora
# are others, and prefixes far shorter.
#
# *On real text* (profile `real`) the two come apart even more: in summaries and translations tokens of high loss have
# their final prediction layers later than those of low loss, and their first similar state at about the same layer.
#
# **Files.** Every figure as PNG (with `MEE_PDF=1` also as PDF) beside the CSV of what was drawn, and a manifest, in
# `figures/<profile>/02_saturation`. **Next:** [03, pruning](03_pruning.ipynb).

# %%
save_numbers(experiment.run)
experiment.finish()
