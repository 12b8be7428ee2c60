# %% [markdown]
# # 04 · Contrast: does an earlier layer improve exit decisions?
#
# [‹ 03 pruning](03_pruning.ipynb) · [all notebooks](../README.md#the-notebooks) · [05 MEE classifiers ›](05_mee_classifiers.ipynb)
#
# **Question.** Contrast takes the distribution of a late layer (the expert) and favours the tokens to which it gives
# more probability than an early layer (the amateur) does. Is that a better confidence, a better token, or neither? And
# is it a *Pareto improvement*: better at equal cost, or cheaper at equal quality?
#
# **What the paper says** (*Not all FLOPs are created equally*). Two contrasts between layers of one model,
# *weighted* (after Gera et al. 2023) and *JSD* (after Chuang et al. 2024), attain "a pareto improvement over
# runtime and performance". Its last run gives F1 92.45 on SQuAD for the softmax and 91.47 for JSD.
#
# **What we do.** The formula, and three tokens whose prediction it changes. Then contrast as a confidence: without a
# threshold, at equal quality, and when it decodes. Last, contrast as a decoder.
#
# **Expectation** (ours, before running). Where only one vocabulary token is plausible, the public code assigns it a
# confidence of 1 by construction. The rule then exits earlier at the same threshold and looks fast; at equal
# quality none of that gain remains.

# %% needs=["traces"] tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 70  # held-out examples of each task that are traced and replayed
decoded = 20  # of these, how many are decoded
max_new_tokens = 48  # longest output, in tokens
batch_size = 100  # rows decoded at a time
threshold = 0.9  # of the margins, constant
min_layer = None  # first layer at which a token may exit; None: that of the profile's measurements
alpha = 0.1  # a token is plausible from this share of the largest probability on
top_k = None  # vocabulary tokens of pruned rules; None: that of the profile's measurements
expert_layer = 6  # the expert of the examples
long_corpus = "synthetic"  # long documents: synthetic, or a folder inside DATA
long_limit = 1  # how many long documents are decoded

# %% tags=["hide-input"]
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from IPython.display import display
from scipy.special import rel_entr, softmax

from mee_utils.analysis import comparison, decisions, long_documents
from mee_utils.analysis import contrast as contrasting
from mee_utils.analysis.monotonicity import token_text
from mee_utils.companion import Experiment, claims, figures
from mee_utils.companion.catalogue import RULES, rule_policies
from mee_utils.companion.result_tables import read_timings
from mee_utils.exits import contrast as library
from mee_utils.models.costs import SHAPES
from mee_utils.traces.replay import StoredStates, replay_policies

experiment = Experiment.of_notebook("04_contrastive_decoding", globals())
settings = experiment.settings
min_layer, top_k = settings["min_layer"], settings["top_k"]
main = experiment.main

# %%
tasks = experiment.tasks(limit)
first_examples = {name: task[:decoded] for name, task in tasks.items()}
names = [name for name in ("calm", "vanilla") if name in experiment.backbones]
pairs = [(name, task) for name in names for task in tasks]
models = {(name, task): experiment.model(name, task) for name, task in pairs}
of_both = {(name, task): experiment.trace(name, task, limit, max_new_tokens) for name, task in pairs}
traces = {task: of_both[main, task] for task in tasks}

# %% [markdown]
# ## Contrast, exactly
#
# $p_e$ is the distribution of the expert layer $i$, $p_a$ that of the amateur. Only tokens that the expert
# finds plausible are contrasted, $\mathcal{V} = \{v : p_e(v) \ge \alpha \max_w p_e(w)\}$ with $\alpha = 1/10$:
#
# $$p(v) = P_e(\mathcal{V}) \cdot \frac{p_e(v) / p_a(v)}{\sum_{w \in \mathcal{V}} p_e(w) / p_a(w)} \quad\text{for } v \in \mathcal{V}, \qquad p(v) = p_e(v) \quad\text{else.}$$
#
# $P_e(\mathcal{V})$ is the mass that the expert gives to the plausible set, so that $p$ sums to one. The
# *weighted* contrast takes layer $\lfloor i/2 \rfloor$ as its amateur. The *JSD* contrast takes the earlier layer
# whose distribution $p_j$ differs most from the expert's $p_i$, by the Jensen-Shannon divergence:
#
# $$a(i) = \arg\max_{j < i} \tfrac{1}{2} \mathrm{KL}(p_i \,\|\, m_j) + \tfrac{1}{2} \mathrm{KL}(p_j \,\|\, m_j), \qquad m_j = \tfrac{1}{2}(p_i + p_j).$$


# %%
def contrast(expert, amateur, alpha):
    """Probabilities `[id]` of the contrast, from two rows of logits."""
    p_e = softmax(expert)
    p_a = softmax(amateur)
    plausible = p_e >= alpha * p_e.max()
    ratio = np.where(plausible, p_e / p_a, 0)
    return np.where(plausible, p_e[plausible].sum() * ratio / ratio.sum(), p_e)


def jsd_amateur(expert, earlier):
    """The earlier layer, from 1, that differs most; from logits `[id]` and `[layer, id]`."""
    p_i = softmax(expert)
    p_j = softmax(earlier, axis=-1)
    middle = (p_i + p_j) / 2
    divergence = (rel_entr(p_i, middle) + rel_entr(p_j, middle)).sum(axis=-1) / 2
    return 1 + divergence.argmax()


# %% [markdown]
# The library is checked against these formulas on one token of each task, at every layer. Among the tokens whose
# prediction weighted contrast changes, it is the one of which the expert, layer `expert_layer`, is most certain.

# %%
text = token_text(experiment.tokenizer())
changed = []
for task, t in traces.items():
    token = contrasting.telling_token(t, expert_layer, models[main, task], alpha)
    states = StoredStates(t, models[main, task]).exit_states([token])
    rows = torch.cat([state.full_logits for state in states]).cpu()  # [layer, id]
    logits = rows.double().numpy()
    for i in range(2, t.layers + 1):
        weighted = contrast(logits[i - 1], logits[i // 2 - 1], alpha)
        expected = library.weighted_contrast(rows[i - 1], rows[i // 2 - 1], alpha).exp()
        np.testing.assert_allclose(weighted, expected, atol=1e-5)

        j = jsd_amateur(logits[i - 1], logits[: i - 1])
        expected, chosen = library.jsd_contrast(rows[[i - 1]], rows[: i - 1, None], alpha)
        assert j == chosen.item() + 1
        np.testing.assert_allclose(
            contrast(logits[i - 1], logits[j - 1], alpha), expected[0].exp(), atol=1e-5
        )

    late, early = logits[expert_layer - 1], logits[expert_layer // 2 - 1]
    columns = {"expert": softmax(late), "amateur": softmax(early), "contrast": contrast(late, early, alpha)}
    plausible = pd.DataFrame(columns).query(f"expert >= {alpha} * expert.max()")
    plausible = plausible.sort_values("expert", ascending=False)
    changed.append(plausible.assign(task=task, token=plausible.index.map(text)))
changed = pd.concat(changed, ignore_index=True)[["task", "token", *columns]]
changed = experiment.save_table(changed, "changed_tokens")
display(changed.set_index([changed.task.map(figures.label), "token"])[list(columns)].round(2))

# %% [markdown]
# In each case two tokens are plausible. The expert gives the better one about nine tenths. But its amateur is nearly
# as certain of it, and contrast keeps only the ratio of the two: the second token gains on all three, and wins. So
# where two layers agree, contrast counts it against the token that they agree on.

# %%
amateurs = experiment.table(
    lambda t, task: contrasting.chosen_amateurs(t, task=task, model=models[main, task]), traces, ["task"]
)
experiment.save_table(amateurs, "chosen_amateur")
first = amateurs[(amateurs.amateur_layer == 1) & (amateurs.layer > 2)].groupby("task", sort=False).share
for task, shares in first:
    print(f"{figures.label(task)}: JSD's amateur is layer 1 for {shares.min():.0%} to {shares.max():.0%}")

# %% [markdown]
# It is nearly always the first layer: for 90 to 100 % of the tokens, at every layer from the third on. The search over
# all earlier layers, which computes logits at each of them, finds what a constant would have given.
#
# ## A plausible set with one member
#
# Where the expert gives no other token a tenth of its best probability, there is nothing to contrast, and the
# result is the expert's own distribution. The public code leaves out $P_e(\mathcal{V})$, so that the only member
# gets everything: a confidence of one, right or wrong. How often does that happen, and what does it do to exits at a
# threshold of 0.9?

# %%
single = []
for task, t in traces.items():
    alone = t.top_probabilities[:, :, 1] < alpha * t.top1_probability  # [token, layer]
    wrong = t.top1_id != t.final_id[:, None]
    shares = {"single": alone.mean(axis=0), "wrong_single": pd.DataFrame(wrong * 1.0).where(alone).mean()}
    single.append(pd.DataFrame(shares).assign(task=task, layer=range(1, t.layers + 1)))
single = pd.concat(single, ignore_index=True)[["task", "layer", "single", "wrong_single"]]
single = experiment.save_table(single, "single_plausible")

# %%
all_tokens = ["unpruned", "weighted", "jsd"]
few_tokens = ["fixed", "weighted_fixed", "jsd_fixed"]
rules = ["unpruned", "fixed", "weighted", "jsd", "weighted_fixed", "jsd_fixed"]
policies = rule_policies(rules, threshold, settings)
replays = {}  # (task, rule) -> the confidences of a rule at every layer
for task, t in traces.items():
    by_key = {(task, rule): policy for rule, policy in policies.items()}
    replays |= replay_policies(t, by_key, models[main, task])

compared = {}
for task in tasks:
    compared |= {(task, rule): replays[task, rule] for rule in all_tokens}
    bare = contrasting.without_mass(replays[task, "unpruned"], models[main, task], alpha)
    compared[task, "weighted, without the mass"] = bare
at_level = [
    {"task": task, "rule": rule, "threshold": threshold, **comparison.replayed_row(replayed)}
    for (task, rule), replayed in compared.items()
]
at_level = experiment.save_table(pd.DataFrame(at_level), "at_equal_threshold")

# %%
for row in single[single.layer == min_layer].itertuples():
    print(
        f"{figures.label(row.task)}, layer {min_layer}: one plausible token for {row.single:.0%} of the tokens,",
        f"of these {row.wrong_single:.1%} are not final",
    )
shown = at_level.assign(rule=at_level.rule.map(figures.label))
display(shown.pivot(index="rule", columns="task", values=["mean_exit_layer", "same_token"]).round(3))

# %% [markdown]
# Often: at layer 4 the plausible set has one member for 43 to 83 % of the tokens. These predictions are mostly right,
# but 0.6 to 3.5 % of them are not final. With a confidence of one, all of them exit. Tokens then leave 0.7 to 1.5 layers
# earlier than under the plain margin, and 1 to 3 % of the predictions change, where the plain margin and contrast with
# the mass change 0.6 % at most. With the mass, weighted contrast exits where the plain margin does.
#
# ## As a confidence: does contrast discriminate better?
#
# AUROC: of two tokens at a layer, one whose prediction is final (the last layer's) and one whose is not, how often does
# the final one have the higher confidence? No threshold is involved. The token is the expert's own; contrast gives the
# confidence only. The *plain margin* is the softmax margin without contrast, over the whole vocabulary. CALM's early
# layers were trained to predict tokens; vanilla's were not, so they are genuine amateurs.

# %%
ranked = {(main, task, rule): replays[task, rule] for task in tasks for rule in all_tokens}
for name, task in pairs:
    if name != main:
        by_key = {(name, task, rule): policies[rule] for rule in all_tokens}
        ranked |= replay_policies(of_both[name, task], by_key, models[name, task])
ranks = experiment.table(decisions.ranking, ranked, labels=("model", "task", "rule"))

# %%
looks = {
    "unpruned": figures.Style("plain margin", "#332288", "o"),
    "weighted": figures.Style("weighted contrast", "#999933", "v", (4, 1.5)),
    "jsd": figures.Style("JSD contrast", "#cc6677", "D", (1, 1)),
}
drawn = ranks.assign(panel=ranks.model.map(figures.label) + ", " + ranks.task.map(figures.label))
figure, panels = figures.panels(
    drawn,
    "panel",
    title="AUROC of the margin, with and without contrast",
    note=experiment.note(limit, "bands: 95 % intervals over sequences"),
    per_line=len(tasks),
    height=2.5,
)
for axis, rows in panels:
    band = ("roc_area_low", "roc_area_high")
    figures.lines(axis, rows, "layer", "roc_area", "rule", band, styles=looks)
    axis.set(ylabel="AUROC")
    if rows.roc_area.isna().any():
        reason = f"no marker: fewer than\n{decisions.LEAST_TO_RANK} tokens not final"
        axis.text(0.97, 0.04, reason, transform=axis.transAxes, ha="right", fontsize=9.5, color=figures.GREY)
experiment.save_figure(figure, "ranking", ranks)

areas = ranks.pivot(index=["model", "task", "layer"], columns="rule", values="roc_area").dropna()
for name, rows in areas.groupby("model", sort=False):
    means = rows.groupby("task").mean().mean()  # over layers, then over tasks
    ahead = (rows.unpruned > rows[["weighted", "jsd"]].max(axis=1)).sum()
    print(
        f"{figures.label(name)}: plain margin {means.unpruned:.2f}, weighted {means.weighted:.2f},",
        f"JSD {means.jsd:.2f}; the margin is ahead of both at {ahead} of {len(rows)} layers",
    )

# %% [markdown]
# It does not. For CALM the plain margin reaches an AUROC of 0.93 and both contrasts 0.87; for vanilla, the margin
# reaches 0.81 and both contrasts 0.77. The plain margin is ahead of both contrasts at all 17 of CALM's layers that
# can be ranked, and at 19 of vanilla's 23. The gap grows with depth, where both layers agree on most tokens:
# agreement is a sign that a prediction is final, and contrast counts it against the token.
#
# ## Is it cheaper at equal quality?
#
# For each rule the lowest threshold at which 98 % of the predictions at the exits are final, chosen on one half of the
# outputs, and its decoder FLOPs on the other half. FLOPs include the amateurs: JSD computes logits at every earlier
# layer, weighted contrast at one. Pruned, a decision scores `top_k` vocabulary tokens (03).

# %%
shares = [0.95, 0.98, 0.99]
equal = experiment.table(comparison.at_equal_quality, replays, labels=("task", "rule"), shares=shares)

# %%
share = 0.98
at_share = equal[equal.wanted == share]
pruned = at_share.rule.isin(few_tokens)
height = {rule: 2 - n for group in (all_tokens, few_tokens) for n, rule in enumerate(group)}
scored = {
    "all": figures.Style("all vocabulary tokens scored", "#332288", "o"),
    "few": figures.Style(f"{top_k} vocabulary tokens scored", "#44aacc", "s"),
}
figure, panels = figures.panels(
    at_share.assign(height=at_share.rule.map(height), scored=pruned.map({False: "all", True: "few"})),
    title=f"Decoder FLOPs of each rule where {share:.0%} of the predictions stay",
    note=experiment.note(limit, "whiskers: 95 % intervals over sequences"),
    height=2.2,
)
for axis, rows in panels:
    band = ("flops_share_low", "flops_share_high")
    figures.dots(axis, rows, "flops_share", "height", "scored", band, styles=scored, markersize=5)
    axis.axvline(1, color=figures.GREY, linewidth=0.8)
    axis.set(xlabel="decoder FLOPs (1 = full depth)", ylim=(-0.5, 2.5))
    axis.set_yticks([2, 1, 0], [looks[rule].label for rule in all_tokens])
experiment.save_figure(figure, "equal_quality", equal)

means = at_share.groupby("rule")[["flops_share", "mean_exit_layer"]].mean()
for rule, row in means.loc[rules].iterrows():
    print(f"{figures.label(rule)}: exit layer {row.mean_exit_layer:.1f}, FLOPs {row.flops_share:.0%} (means)")

# %% [markdown]
# No. Contrast needs later exits for the same share of predictions, and its decisions cost more. With all tokens scored
# it takes 119 % (weighted) and 141 % (JSD) of full depth's FLOPs, where the plain margin takes 92 %. Pruning makes all
# three cheaper and keeps their order: 69, 85 and 113 %. On every task the pruned plain margin is the cheapest.
#
# And without the mass? At equal quality its early exits are gone. The layers at which tokens exit, 98 % kept:

# %%
bare = {key: replayed for key, replayed in compared.items() if key[1].endswith("the mass")}
without = experiment.table(comparison.at_equal_quality, bare, ["task", "rule"], shares=[share])
without = without[
    ["task", "rule", "wanted", "threshold", "mean_exit_layer", "same_token"]
]  # no amateurs' FLOPs
experiment.save_table(without, "without_the_mass")
shown = pd.concat([at_share[at_share.rule.isin(all_tokens)], without])
shown = shown.assign(rule=shown.rule.map(figures.label))
display(shown.pivot(index="rule", columns="task", values="mean_exit_layer").round(2))

# %% [markdown]
# Without the mass, tokens exit at most 0.1 layers earlier than with it, and on every task later than under the
# plain margin. The gain at a threshold of 0.9 was one of calibration: without the mass, a confidence of one means
# less.
#
# Other minimum exit layers, 98 % of the predictions kept, `top_k` tokens scored; FLOPs, means over tasks:

# %%
starting = {
    (rule, start): RULES[rule].policy(threshold, settings | {"min_layer": start})
    for rule in few_tokens
    for start in (2, 4, 6, 8)
}
starts = []
for task, t in traces.items():
    for (rule, start), replayed in replay_policies(t, starting, models[main, task]).items():
        labels = {"task": task, "rule": rule, "min_layer": start}
        starts.append(comparison.at_equal_quality(replayed, [share], **labels))
starts = experiment.save_table(pd.concat(starts, ignore_index=True), "minimum_layer")
shown = starts.pivot_table(index="rule", columns="min_layer", values="flops_share").loc[few_tokens]
display(shown.rename(figures.label).round(2))

# %% [markdown]
# At every minimum exit layer the plain margin is the cheapest of the three.
#
# ## As a decoder: is the contrast's token better?
#
# All layers are run, and the token is the contrast's choice in place of the last layer's. We try the $\alpha$ of
# the public code and a larger one, with which fewer tokens are plausible and less is contrasted. The table has the
# share of full depth's score that is kept, with a paired 95 % interval over examples.

# %%
decoding = {"max_new_tokens": max_new_tokens, "batch_size": batch_size}
last = settings | {"min_layer": experiment.layers - 1}
contrasted = {
    (kind, level): replace(RULES[kind], contrast_token=True).policy(1.0, last | {"alpha": level})
    for kind in ("weighted", "jsd")
    for level in (alpha, 0.5)
}
tokens_too = []
for name, task in pairs:
    examples = first_examples[task]
    table, _ = comparison.comparison(models[name, task], examples, contrasted, ("rule", "alpha"), **decoding)
    tokens_too.append(table.assign(model=name))
tokens_too = experiment.save_table(pd.concat(tokens_too, ignore_index=True), "as_decoder")

# %%
kept = tokens_too[tokens_too.rule != "full_depth"]
kept = kept.assign(
    kept=[f"{row.retained:.0%} ({row.low:.0%} to {row.high:.0%})" for row in kept.itertuples()]
)
shown = kept.pivot(index=["model", "alpha", "rule"], columns="task", values="kept")
display(shown.rename(index=figures.label, columns=figures.label))
for level, rows in kept.groupby("alpha"):
    counts = f"raised in {(rows.low > 1).sum()}, lowered in {(rows.high < 1).sum()} of {len(rows)} cases"
    print(f"alpha = {level}: score clearly {counts}; {1 - rows.same_output.mean():.0%} of the outputs change")

# %% [markdown]
# No. With the public code's $\alpha = 0.1$ the score falls clearly in 8 of 12 cases, by as much as 21 %. With $\alpha
# = 0.5$ it is clearly lowered in none, and clearly raised in none. Yet contrast often changes the output: 62 and 51 %
# of the outputs differ. For these models, the token that gains most probability from a shallow to a deep layer is not
# the better one.
#
# ## Is it a Pareto improvement?
#
# We decode with exits, at the thresholds that keep 95 and 99 % of the predictions: with plain margins, with contrast as
# the confidence, and with contrast for the token too (at the higher threshold alone). A setting with contrast improves
# on the plain margin if its score is above that of *every* plain setting, full depth among them, that costs no more
# FLOPs. Whiskers are simultaneous 95 % intervals over all settings of a task.


# %%
def tried_on(task):
    """The settings that are decoded on a task: (rule, threshold) -> policy."""
    chosen = equal[(equal.task == task) & (equal.wanted != 0.98)]
    highest = chosen[chosen.wanted == 0.99].set_index("rule").threshold
    levels = list(zip(chosen.rule, chosen.threshold, strict=True))
    levels += [(f"{kind}_token", highest[f"{kind}_fixed"]) for kind in ("weighted", "jsd")]
    return {(rule, float(level)): RULES[rule].policy(level, settings) for rule, level in levels}


forms = {  # with contrast, from the top of the figure
    "weighted": "weighted",
    "weighted_fixed": "weighted, pruned",
    "weighted_token": "weighted, token too",
    "jsd": "JSD",
    "jsd_fixed": "JSD, pruned",
    "jsd_token": "JSD, token too",
}
points = []
verdicts = []
for name, examples in first_examples.items():
    labels = ("rule", "threshold")
    table, results = comparison.comparison(models[main, name], examples, tried_on(name), labels, **decoding)
    points.append(table)
    verdict = contrasting.pareto_verdict(results, ("unpruned", "fixed"), tuple(forms))
    verdicts.append(verdict.assign(task=name))
points = experiment.save_table(pd.concat(points, ignore_index=True), "score_against_flops")
verdicts = pd.concat(verdicts, ignore_index=True)

# %%
highest = verdicts.threshold == verdicts.groupby(["task", "rule"]).threshold.transform("max")
height = verdicts.rule.map({rule: len(forms) - n for n, rule in enumerate(forms)})
drawn = verdicts.assign(height=height + 0.17 - 0.34 * highest, level=highest.map({False: 95, True: 99}))
levels = {
    95: figures.Style("threshold that keeps 95 % of the predictions", "#999999", "s"),
    99: figures.Style("threshold that keeps 99 %", "#332288", "o"),
}
figure, panels = figures.panels(
    drawn[drawn.gain.notna()],
    title="Score of contrast minus the best score of a plain margin that costs no more",
    note=experiment.note(decoded, "whiskers: simultaneous 95 % intervals over examples"),
    sharex=False,
)
for axis, rows in panels:
    figures.dots(axis, rows, "gain", "height", "level", xband=figures.BAND, styles=levels, markersize=5)
    axis.axvline(0, color=figures.GREY, linewidth=0.8)
    axis.set_yticks(range(len(forms), 0, -1), forms.values())
    axis.set(xlabel="points gained", ylim=(0.5, len(forms) + 0.5))
experiment.save_figure(figure, "pareto_verdict", verdicts)

for task, rows in verdicts.groupby("task", sort=False):
    counts = f"{rows.improves.sum()} better, {rows.worse.sum()} worse of {len(rows)} settings"
    print(f"{figures.label(task)}: {counts}, median {rows.gain.median():+.1f} points")

# %% [markdown]
# No setting of 30 is better than all plain margins that cost no more, 12 are clearly worse. The median loss is 0.6 to
# 2.9 points. Where contrast picks the token too, every setting loses.
#
# ## Wall-clock time of one decision
#
# In units of one decoder layer, after the list of tokens has been chosen: measured by `make bench` at the sizes of
# T5-base and T5-large, with random weights (which do not change the time).

# %%
kinds = ["softmax_margin", "margin, 256 ids kept", "weighted contrast"]
kinds += ["weighted contrast, 256 ids kept", "JSD contrast, 256 ids kept"]
wanted = pd.MultiIndex.from_product([["t5-base", "t5-large"], kinds], names=["shape", "what"])
measured = read_timings("one decision", wanted.to_frame(index=False), complete=True)
if len(measured):
    experiment.save_table(measured, "measured_cost")
    named = measured.replace({"softmax_margin": "margin", " ids kept": " tokens"}, regex=True)
    display(named.pivot(index="what", columns="shape", values="median").round(2))

# %% [markdown]
# With 256 tokens scored, a weighted decision takes about twice as long as a plain margin (0.22 of a layer beside 0.11 at
# T5-base's sizes), JSD four to eight times. A decision over the whole vocabulary takes longer than a layer, with contrast
# or without.
#
# ## Long inputs
#
# The paper's two long-document rows run LongT5 on Multi-News and BigPatent. We run the same code on other long
# documents, with a mini LongT5 of **random weights**: these are costs, not scores. FLOPs as shares of full depth's,
# and the parts that go to *logits* and to the keys and values of the *source*. Under the confidence rules every layer
# decides and no token exits; only the static rule exits, at a fixed layer.

# %%
documents = experiment.long_documents(long_corpus, long_limit)["Multi-News"]
long_model = long_documents.random_long_t5(experiment.tokenizer())
tried = {"full_depth": None} | rule_policies(rules, 1.0, settings)
tried["static"] = RULES["static"].policy(min_layer, settings)
long_costs = long_documents.costs_by_part(long_model, documents, tried, 12)
experiment.save_table(long_costs, "long_documents")
parts = {"flops_share": "FLOPs", "readout_share": "logits", "source_share": "source"}
display(long_costs.set_index("rule").rename(figures.label)[list(parts)].rename(columns=parts).round(3))
print(f"{long_costs.source_tokens.mean():,.0f} source tokens a document")

# %% [markdown]
# And counted, by the length of the source, if all layers from `min_layer` on decide and none exits:

# %%
lengths = (64, 256, 1024, 4096, 16384)
grown = [
    long_documents.counted_by_length(sizes, lengths, min_layer, 256).assign(shape=name)
    for name, sizes in SHAPES.items()
]
grown = experiment.save_table(pd.concat(grown, ignore_index=True), "long_inputs")
shown = grown.pivot(index=["shape", "rule"], columns="source_tokens", values="flops_share")
display(
    shown.rename(figures.SIZES | {"unpruned": "all tokens scored", "fixed": "256 tokens scored"}).round(2)
)

# %% [markdown]
# With a long source, cross-attention and the keys and values of the source outweigh the logits: at 5,519 source
# tokens they are 88 % of full depth's FLOPs, logits 0.3 %. At the sizes of T5-large, decisions over the whole
# vocabulary add 149 % to full depth's FLOPs with 64 source tokens, and 5 % with 16,384. Deciding is expensive where
# inputs are short; there pruning pays.
#
# ## What this shows, and what it does not
#
# - As a confidence, contrast ranks predictions worse than the plain margin does, for CALM and for vanilla.
# - At equal quality it exits later and costs more. JSD's search finds the first layer.
# - What looked like a gain is the public code's missing mass: a confidence of one where one token is plausible.
# - As a decoding method it gains nothing, and with the $\alpha$ of the public code it loses.
#
# Not shown: large models, as in Gera et al. and Chuang et al.; open-ended text, for which contrast was designed; and
# quality on long documents, for which no trained model is available here.
#
# ## Statements, published and ours
#
# *Published* is the number, or how the paper makes the statement. Whether a statement holds, corrected for the number
# of tests, is in the [ledger](../figures/results/ledger.md).

# %%
by_name = {
    "ranking": ranks,
    "equal": equal.assign(model=main),
    "threshold": at_level.assign(model=main),
    "verdict": verdicts.assign(model=main),
    "decoder": tokens_too,
}
tables = {task: {name: table[table.task == task] for name, table in by_name.items()} for task in tasks}
judged = claims.judge("04_contrastive_decoding", tables)
claims.show_judged(experiment.save_table(judged, "claims"))

# %% tags=["hide-input"]
experiment.finish()
