# %% [markdown]
# # 04 · Contrast: does a layer decide better by what an earlier layer did not know?
#
# [‹ 03 pruning](03_pruning.ipynb) · [all notebooks](../README.md#the-notebooks) · [05 MEE classifiers ›](05_mee_classifiers.ipynb)
#
# **Question.** Contrast takes the distribution of a late layer (the expert) and favours what it says more
# strongly than an early one (the amateur). Is that a better confidence, a better token, or neither; and is it
# a *Pareto improvement*, better at equal cost or cheaper at equal quality?
#
# **What the paper says** (*Not all FLOPs are created equally*). Two contrasts between layers of one model,
# *weighted* (after Gera et al. 2023: the amateur is layer $\lfloor i/2 \rfloor$) and *JSD* (after Chuang et
# al. 2024: the earlier layer that differs most), attain "a pareto improvement over runtime and performance".
# Its last run gives F1 92.45 on SQuAD for the softmax and 91.47 for JSD.
#
# **What we do.** One token as a picture; the degenerate case, a plausible set with one member; then contrast as
# confidence at equal quality, as decoder, and with pruning; the verdict by score against FLOPs. Last, long
# inputs.
#
# **Contrast, exactly.** $p_e$ is the expert's distribution, $p_a$ the amateur's. Only tokens that the expert finds
# plausible are contrasted, $\mathcal{V} = \{v : p_e(v) \ge \alpha \max_w p_e(w)\}$ where $\alpha$ is a tenth:
#
# $$p(v) = P_e(\mathcal{V}) \cdot \frac{p_e(v) / p_a(v)}{\sum_{w \in \mathcal{V}} p_e(w) / p_a(w)} \quad\text{for } v \in \mathcal{V}, \qquad p(v) = p_e(v) \quad\text{else.}$$
#
# $P_e(\mathcal{V})$ is the mass that the expert gives to the plausible set, so that $p$ sums to one.
#
# **Expectation** (ours, before running): where the plausible set has one member the public form is sure of it
# whatever it is, so that it exits earlier at the same threshold and looks fast; at equal quality nothing of
# that is left.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 60  # held-out examples of each task
max_new_tokens = 48  # longest output, in tokens
batch_size = 100  # rows decoded at a time
threshold = 0.9  # of the margins, constant
min_layer = 4  # first layer at which a token may exit
alpha = 0.1  # a token is plausible from this share of the largest probability on
top_k = 64  # ids kept by fixed pruning
expert_layer = 6  # the expert of the picture
long_corpus = "synthetic"  # long documents: synthetic, or a folder inside DATA
long_limit = 3  # how many long documents are decoded

# %%
from dataclasses import replace

import pandas as pd
import seaborn
from matplotlib.colors import PowerNorm

from mee_utils import Experiment
from mee_utils.analysis import comparison, decisions, long_documents
from mee_utils.analysis import contrast as contrasting
from mee_utils.analysis.monotonicity import token_text
from mee_utils.models.costs import SHAPES
from mee_utils.paper import claims
from mee_utils.paper.numbers import save_numbers
from mee_utils.study import figures
from mee_utils.study.catalogue import CONTRASTED, RULES, rule_policies
from mee_utils.study.result_tables import read_timings
from mee_utils.traces.replay import replay_policies

# %%
experiment = Experiment.of_notebook("04_contrastive_decoding", globals())
settings = experiment.parameters
note = f"profile {profile}, n = {limit} examples a task"
tasks = experiment.tasks(limit)
models = experiment.models(["calm", "vanilla"])
pairs = [(name, task) for name in models for task in tasks]
of_both = {(name, task): experiment.trace(name, task, limit, max_new_tokens) for name, task in pairs}
model = models["calm"]
layers = model.layers
traces = {task: of_both["calm", task] for task in tasks}

# %% [markdown]
# ## One token
#
# At one layer, the eight ids that expert or contrast favour most; ids in brackets lie outside the *plausible
# set* (less than a tenth of the expert's best) and keep the expert's probability. Chosen is a token whose
# prediction the weighted contrast changes, the one of which the expert was surest. Both results sum to one.


# %%
def one_token(t, task):
    token = contrasting.telling_token(t, expert_layer, model, alpha)
    words = token_text(experiment.tokenizer())
    return contrasting.one_token(t, token, expert_layer, model, words, alpha=alpha, task=task)


single = experiment.table(one_token, traces, labels=["task"])

# %%
styles = {
    "expert": figures.Style("expert", figures.BLUE, "o"),
    "amateur": figures.Style("amateur", "#999999", "s"),
    "contrast": figures.Style("contrast", "#d55e00", "D"),
}
marked = single.assign(id=single.token.where(single.plausible, "(" + single.token + ")"))
long = marked.melt(["task", "kind", "id"], list(styles), "distribution", "probability")


def draw(axis, rows):
    figures.dots(axis, rows, "id", "probability", by="distribution", styles=styles)
    axis.tick_params(axis="x", rotation=60)


# %%
figure = figures.facets(long, draw, row="kind", ylabel="probability", sharex=False, note=note)
figure.axes[0].set(yscale="log", ylim=(1e-6, 2.0))
experiment.save_figure(figure, "one_token", single)
changed = single[single.plausible].groupby(["task", "kind"]).contrast.idxmax()
picks = [f"{figures.label(task)}, {kind}: {single.token[row]}" for (task, kind), row in changed.items()]
print("The contrast's choice:", "; ".join(picks))

# %% [markdown]
# ## Who is the amateur under JSD?
#
# For every expert layer (across) the share of tokens whose most different earlier layer is each of those
# before it (upwards).

# %%
amateurs = experiment.table(contrasting.chosen_amateurs, traces, labels=["task"], model=model)
few_and_many = PowerNorm(0.4, 0, 1)  # so that rare choices can be seen beside the usual one
colour_bar = {"label": "share of tokens"}


def draw(axis, rows):
    grid = rows.pivot(index="amateur_layer", columns="layer", values="share").iloc[::-1]
    seaborn.heatmap(grid, norm=few_and_many, cmap="viridis", ax=axis, cbar_kws=colour_bar)


figure = figures.facets(amateurs, draw, xlabel="expert layer", ylabel="amateur layer", note=note)
experiment.save_figure(figure, "chosen_amateur", amateurs)
first = amateurs[amateurs.amateur_layer == 1].groupby("task", sort=False).share.mean()
shares = [f"{figures.label(task)} {share:.1%}" for task, share in first.items()]
print("The amateur is layer 1 for, mean of the expert layers:", ", ".join(shares), "of tokens")

# %% [markdown]
# ## The degenerate case: a plausible set with one member
#
# Where the expert gives nobody else a tenth of its best probability, there is nothing to contrast, and
# the result is the expert's own distribution. The public code leaves out the mass of the plausible set, so
# that its only member gets all: a confidence of 1, right or wrong. Above: the share of tokens with one
# plausible id; below: the mean margin, plain, contrasted, and contrasted without the mass.

# %%
plausible = experiment.table(contrasting.plausible_sets, traces, labels=["task"], model=model, alpha=alpha)
styles = {
    "single": figures.Style("one plausible token", figures.DARK),
    "plain": figures.Style("margin, plain", figures.BLUE, dashes=(4, 1.5)),
    "contrast": figures.Style("margin, weighted contrast", "#d55e00", dashes=(1, 1)),
    "without_mass": figures.Style("without the mass (public code)", "#cc78bc", dashes=(3, 1, 1, 1)),
}


def draw(axis, rows, y):
    columns = ["single"] if y == "single" else ["plain", "contrast", "without_mass"]
    figures.column_lines(axis, rows, "layer", columns, styles)


# %%
quantities = {"single": "share of tokens", "plain": "mean margin"}
figure = figures.facets(plausible, draw, quantities=quantities, note=note)
experiment.save_figure(figure, "one_candidate", plausible)
at = plausible[plausible.layer == min_layer].set_index("task").single
shares = [f"{figures.label(task)} {share:.1%}" for task, share in at.items()]
print(f"Tokens with one plausible id at layer {min_layer}:", ", ".join(shares))

# %%
every_rule = ("unpruned", "fixed", *CONTRASTED)
rules = [rule for rule in every_rule if not rule.endswith("_token")]
policies = rule_policies(rules, threshold, settings)
replays = {}
for task, t in traces.items():
    replays |= replay_policies(t, {(task, rule): policy for rule, policy in policies.items()}, model)
at_level = []
for task in tasks:
    bare = contrasting.without_mass(replays[task, "unpruned"], model, alpha)
    compared = {rule: replays[task, rule] for rule in ("unpruned", "weighted", "jsd")}
    for rule, replayed in (compared | {"weighted, without the mass": bare}).items():
        at_level.append(
            {"task": task, "rule": rule, "threshold": threshold, **comparison.replayed_row(replayed)}
        )
at_level = experiment.save_table(pd.DataFrame(at_level), "at_equal_threshold")
at_level.pivot(index="task", columns="rule", values=["mean_exit_layer", "same_token"]).round(3)

# %% [markdown]
# ## Contrast as confidence: does it rank tokens better?
#
# As in 05: the area under the ROC curve (of two tokens at a layer, one of which may exit, how often is that
# one scored higher?). No threshold is involved. The token is the expert's own; contrast gives the confidence
# only. Above CALM, whose early layers were trained too; below vanilla, whose early layers were not, so that
# they are amateurs indeed. Bands are 95 % intervals over sequences. A layer at which fewer than 20 tokens are not
# final is left out, of the figure and of the means: there one or two tokens would decide.

# %%
over_all_ids = {rule: policy for rule, policy in policies.items() if not rule.endswith("fixed")}
ranked = {("calm", task, rule): replays[task, rule] for task in tasks for rule in over_all_ids}
for task in tasks:
    by_key = {("vanilla", task, rule): policy for rule, policy in over_all_ids.items()}
    ranked |= replay_policies(of_both["vanilla", task], by_key, models["vanilla"])
ranks = experiment.table(decisions.ranking, ranked, labels=("model", "task", "rule"))


# %%
def draw(axis, rows):
    figures.lines(axis, rows, "layer", "roc_area", band=("roc_area_low", "roc_area_high"), clip=(0, 1))


look = {"row": "model", "ylabel": "area under the ROC curve", "note": note}
figure = figures.facets(ranks, draw, **look)
experiment.save_figure(figure, "ranking", ranks)
unranked = ranks[ranks.roc_area.isna() & (ranks.rule == "unpruned")]
for (name, task), rows in unranked.groupby(["model", "task"], sort=False):
    few = ", ".join(map(str, rows.layer))
    print(f"{figures.label(name)}, {figures.label(task)}: fewer than 20 tokens are not final at layers {few}")
areas = ranks.groupby(["model", "rule"], sort=False).roc_area.mean()
means = [f"{figures.label(name)}, {figures.label(rule)} {area:.3f}" for (name, rule), area in areas.items()]
print("Mean area over layers and tasks:", "; ".join(means))

# %% [markdown]
# ## At equal quality
#
# The lowest threshold at which 95, 98 and 99 % of the predictions at the exits are the full-depth ones; mean
# exit layer, and FLOPs, amateurs included. JSD reads out every earlier layer, weighted contrast one of them.

# %%
shares = [0.95, 0.98, 0.99]
equal = experiment.table(comparison.at_equal_quality, replays, labels=("task", "rule"), shares=shares)

# %%
quantities = {"mean_exit_layer": "mean exit layer", "flops_share": "FLOPs (1 = full depth)"}
look = {"xlabel": "share of predictions that stay", "sharey": "row", "note": note}
figure = figures.facets(equal, figures.lines, x="wanted", quantities=quantities, **look)
figure.axes[0].set_xticks(shares)
experiment.save_figure(figure, "equal_quality", equal)
depths = equal[equal.wanted == 0.98].groupby("rule", sort=False).flops_share.mean()
means = [f"{figures.label(rule)} {share:.0%}" for rule, share in depths.items()]
print("FLOPs where 98 % of predictions stay, mean of tasks:", "; ".join(means))

# %%
later = {
    (rule, start): RULES[rule].policy(threshold, settings | {"min_layer": start})
    for rule in ("fixed", "weighted_fixed", "jsd_fixed")
    for start in (2, 4, 6, 8)
}
starts = []
for task, t in traces.items():
    for (rule, start), replayed in replay_policies(t, later, model).items():
        labels = {"task": task, "rule": rule, "min_layer": start}
        starts.append(comparison.at_equal_quality(replayed, [0.98], **labels))
starts = experiment.save_table(pd.concat(starts, ignore_index=True), "minimum_layer")
starts.pivot(index=["task", "rule"], columns="min_layer", values=["mean_exit_layer", "flops_share"]).round(2)

# %% [markdown]
# ## Contrast as decoder, at full depth
#
# All layers are run, and the token is the contrast's choice in place of the last layer's: CALM, and vanilla.
# Score beside that of plain greedy search, paired 95 % interval.

# %%
decoding = {"max_new_tokens": max_new_tokens, "batch_size": batch_size}
last = settings | {"min_layer": layers - 1}
contrasted = {
    (kind, level): replace(RULES[kind], contrast_token=True).policy(1.0, last | {"alpha": level})
    for kind in ("weighted", "jsd")
    for level in (alpha, 0.5)
}
tokens_too = []
for name, task in pairs:
    table, _ = comparison.comparison(models[name], tasks[task], contrasted, ("rule", "alpha"), **decoding)
    tokens_too.append(table.assign(model=name))
tokens_too = experiment.save_table(pd.concat(tokens_too, ignore_index=True), "as_decoder")
shown = tokens_too[tokens_too.rule != "full_depth"].set_index(["model", "task", "rule", "alpha"])
shown[["retained", "low", "high", "same_output"]].round(3)

# %% [markdown]
# ## The verdict: a Pareto improvement?
#
# Decoded with exits at the thresholds above (95 and 99 %, two points a rule): plain margins, contrast as confidence, and
# contrast for the token too. A contrast setting is an improvement if its score lies above that of *every*
# plain setting (full depth among them) that costs no more FLOPs, with an interval above zero (95 % for all
# settings of a task together). "Cheaper at equal quality" is the figure before. A pruned contrast scores its
# amateurs anew at every layer; looking up what was scored before would save some of that.

# %%
tested = tuple(rule for rule in every_rule if rule not in ("unpruned", "fixed"))
points = []
verdicts = []
for name, task in tasks.items():
    chosen = equal[(equal.task == name) & (equal.wanted != 0.98)]
    highest = chosen[chosen.wanted == 0.99].set_index("rule").threshold
    levels = list(zip(chosen.rule, chosen.threshold, strict=True))
    levels += [(f"{kind}_token", highest[f"{kind}_fixed"]) for kind in ("weighted", "jsd")]
    tried = {(rule, float(level)): RULES[rule].policy(level, settings) for rule, level in levels}
    table, decoded = comparison.comparison(model, task, tried, ("rule", "threshold"), **decoding)
    points.append(table)
    verdict = contrasting.pareto_verdict(decoded, ("unpruned", "fixed"), tested)
    verdicts.append(verdict.assign(task=name))
points = pd.concat(points, ignore_index=True)
verdicts = experiment.save_table(pd.concat(verdicts, ignore_index=True), "pareto_verdict")

# %%
labels = {"xlabel": "FLOPs (1 = full depth)", "ylabel": "score kept (1 = full depth)"}
look = {"sharex": False, "sharey": False, "height": 3.4, "width": 4.4, "note": note}
dots = {"x": "flops_share", "y": "retained", "yband": figures.BAND}
figure = figures.facets(points, figures.dots, **dots, **labels, **look)
experiment.save_figure(figure, "score_against_flops", points)
counts = verdicts.groupby("task", sort=False)[["improves", "worse", "cheapest"]].sum()
better = f"{counts.improves.sum()} improve on the plain margin for certain"
print(f"Of {len(verdicts)} settings with contrast {better}, {counts.worse.sum()} are worse")
counts.assign(settings=verdicts.task.value_counts())

# %% [markdown]
# ## By the clock
#
# What one decision costs by itself, in layers, measured by `make bench` at the shapes of T5-base and
# T5-large (random weights; cost does not depend on them).

# %%
decided = [
    "softmax_margin",
    "margin, 256 ids kept",
    "weighted contrast",
    "weighted contrast, 256 ids kept",
    "JSD contrast, 256 ids kept",
]
wanted = pd.MultiIndex.from_product([["t5-base", "t5-large"], decided], names=["shape", "what"])
measured = read_timings("one decision", wanted.to_frame(index=False), complete=True)
if len(measured):
    experiment.save_table(measured, "measured_cost")
else:
    print("not measured: run make bench")
measured.pivot(index="what", columns="shape", values="median").round(2)

# %% [markdown]
# ## Long inputs
#
# The paper's two long-document rows run LongT5 on Multi-News and BigPatent. The same code on long documents
# in both layouts, with a mini LongT5 of **random weights**: these are costs, not scores. With a long source
# the cross-attention and the keys and values of the source outweigh the readout, and what there is to save by
# pruning shrinks.

# %%
documents = experiment.long_documents(long_corpus, long_limit)
long_model = long_documents.random_long_t5(experiment.tokenizer())
tried = {"full_depth": None} | rule_policies(rules, 1.0, settings)
tried["static"] = RULES["static"].policy(min_layer, settings)
long_costs = [
    long_documents.costs_by_part(long_model, task, tried, 12, layout=layout)
    for layout, task in documents.items()
]
long_costs = experiment.save_table(pd.concat(long_costs, ignore_index=True), "long_documents")
shown = long_costs.set_index(["layout", "source_tokens", "rule"])
shown[["flops_share", "readout_share", "source_share"]].round(3)

# %%
lengths = (64, 256, 1024, 4096, 16384)
grown = [
    long_documents.counted_by_length(sizes, lengths, min_layer, 256).assign(shape=name)
    for name, sizes in SHAPES.items()
]
grown = pd.concat(grown, ignore_index=True)
curves = {"x": "source_tokens", "y": "flops_share"}
labels = {"xlabel": "tokens of the source", "ylabel": "FLOPs if all layers decide\n(1 = full depth)"}
figure = figures.facets(grown, figures.lines, "shape", **curves, **labels)
figure.axes[0].set_xscale("log", base=2)
experiment.save_figure(figure, "long_inputs", grown)
large = grown[(grown["shape"] == "t5-large") & (grown.rule == "unpruned")]
large = large.set_index("source_tokens").flops_share
print(f"t5-large, all ids: {large[64]:.0%} with 64 source tokens, {large[16384]:.0%} with 16,384")

# %% [markdown]
# ## Each published statement beside our number

# %%
measured = {
    "ranking": ranks,
    "equal": equal.assign(model="calm"),
    "threshold": at_level.assign(model="calm"),
    "verdict": verdicts.assign(model="calm"),
    "decoder": tokens_too,
    "head": plausible.assign(model="calm"),
}
tables = {task: {name: table[table.task == task] for name, table in measured.items()} for task in tasks}
verdict_table = claims.judge("04_contrastive_decoding", tables)
experiment.save_table(verdict_table, "claims")[["claim", "published", "task", "ours", "alone"]]

# %% [markdown]
# ## What this shows, and what it does not
#
# *As confidence*, contrast has a smaller area than the plain margin on every task here, whichever the amateur
# (not every difference is certain once all statements are counted, see the ledger in RESULTS.md); at equal
# quality tokens do not exit earlier for certain, and the amateurs' readouts come on top. In an
# exit-trained model the earlier layer already knows most of what the later one knows; subtracting it takes
# signal away, not noise.
#
# *As decoder*, in profile `small`, it changes at most a fifth of the outputs, and improves none of the scores clearly. With the
# paper's plausible set (a tenth of the best) the weighted contrast costs CALM score on question answering and
# summarization; with a narrower set next to nothing is contrasted.
#
# *Without the mass of the plausible set* contrast is a looser threshold: at the same 0.9 it exits earlier, and
# perhaps keeps fewer predictions; with the mass restored most of the difference is gone. In `small` most sets have
# one member, of which the public form is sure by construction. These are seldom wrong (`wrong_single` in the
# table of the figure), so they only make it exit early. Whether the published speed of contrast comes from this
# cannot be told from its tables.
#
# *Verdict on the Pareto improvement*: `pareto_verdict` counts, for every task, the settings that surely beat plain
# margins as cheap. On no task is there one. Pruning makes contrast cheaper, but makes the plain margin
# cheaper still. JSD mostly picks layer 1, so that it is a contrast with the first layer under another name, at
# the price of reading out all of them.
#
# *Long inputs*: as the source grows, attention to it outweighs the readouts, and both pruning and the cost of
# deciding fade.
#
# *On real text* (profile `real`) contrast ranks tokens worse than the plain margin on every task, on questions mostly
# not for certain; weighted, it exits later at equal quality; as decoder it costs summaries and translations score.
#
# Not shown: large models, which Gera et al. and Chuang et al. contrast; open-ended text, for which contrast
# was made; quality on long documents, for which no trained model is at hand.
#
# **Files.** Every figure as PNG (with `MEE_PDF=1` also as PDF) beside the CSV of what was drawn, and a manifest, in
# `figures/<profile>/04_contrastive_decoding`.
# **Next:** [05](05_mee_classifiers.ipynb) asks whether several layers decide better than one.

# %%
save_numbers(experiment.run)
experiment.finish()
