# %% [markdown]
# # 04 · Does contrasting with an earlier layer improve exit decisions?
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
# **What we do.** One token as an example; the degenerate case in which there is nothing to contrast; contrast as a
# confidence measure, without a threshold and at equal quality; contrast as a decoder; the verdict at equal cost.
#
# **Expectation** (ours, before running). Where only one vocabulary entry is plausible, the public code assigns it a
# confidence of 1 by construction. The rule then exits earlier at the same threshold and looks fast; at equal
# quality none of that gain remains.

# %% needs=["traces"] tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 200  # held-out examples of each task that are traced and replayed
decoded = 60  # of these, how many are decoded
max_new_tokens = 48  # longest output, in tokens
batch_size = 100  # rows decoded at a time
threshold = 0.9  # of the margins, constant
min_layer = 4  # first layer at which a token may exit
alpha = 0.1  # a token is plausible from this share of the largest probability on
top_k = 64  # vocabulary entries kept by fixed pruning
expert_layer = 6  # the expert of the example
long_corpus = "synthetic"  # long documents: synthetic, or a folder inside DATA
long_limit = 3  # how many long documents are decoded

# %% tags=["hide-input"]
from dataclasses import replace

import pandas as pd

from mee_utils.analysis import comparison, decisions, long_documents
from mee_utils.analysis import contrast as contrasting
from mee_utils.analysis.monotonicity import token_text
from mee_utils.companion import Experiment, claims, figures
from mee_utils.companion.catalogue import CONTRASTED, RULES, rule_policies
from mee_utils.companion.chapters.contrast import as_confidence, as_decoder, costs, mechanism
from mee_utils.companion.prose import conclude
from mee_utils.companion.result_tables import read_timings
from mee_utils.models.costs import SHAPES
from mee_utils.traces.replay import replay_policies

# %% tags=["hide-input"]
experiment = Experiment.of_notebook("04_contrastive_decoding", globals())
settings = experiment.parameters
over_sequences = "bands: 95 % intervals over sequences"
tasks = experiment.tasks(limit)
main = experiment.main
names = [name for name in ("calm", "vanilla") if name in experiment.backbones]
pairs = [(name, task) for name in names for task in tasks]
models = {(name, task): experiment.model(name, task) for name, task in pairs}
of_both = {(name, task): experiment.trace(name, task, limit, max_new_tokens) for name, task in pairs}
traces = {task: of_both[main, task] for task in tasks}
first_examples = {name: task[:decoded] for name, task in tasks.items()}

# %% [markdown]
# ## Contrast, exactly
#
# $p_e$ is the distribution of the expert layer $i$, $p_a$ that of the amateur. Only entries that the expert
# finds plausible are contrasted, $\mathcal{V} = \{v : p_e(v) \ge \alpha \max_w p_e(w)\}$ with $\alpha = 1/10$:
#
# $$p(v) = P_e(\mathcal{V}) \cdot \frac{p_e(v) / p_a(v)}{\sum_{w \in \mathcal{V}} p_e(w) / p_a(w)} \quad\text{for } v \in \mathcal{V}, \qquad p(v) = p_e(v) \quad\text{else.}$$
#
# $P_e(\mathcal{V})$ is the mass that the expert gives to the plausible set, so that $p$ sums to one. The
# *weighted* contrast takes layer $\lfloor i/2 \rfloor$ as its amateur. The *JSD* contrast takes the earlier layer
# whose distribution $p_j$ differs most from the expert's $p_i$, by the Jensen-Shannon divergence:
#
# $$a(i) = \arg\max_{j < i} \tfrac{1}{2} \mathrm{KL}(p_i \,\|\, m_j) + \tfrac{1}{2} \mathrm{KL}(p_j \,\|\, m_j), \qquad m_j = \tfrac{1}{2}(p_i + p_j).$$
#
# ## One token
#
# Of all tokens whose prediction weighted contrast changes, we show the one the expert was most certain of. Columns are
# the vocabulary entries that expert or contrast favour most; those in brackets are not plausible and keep the expert's
# probability.


# %% tags=["hide-input"]
def one_token(t, task):
    model = models[main, task]
    token = contrasting.telling_token(t, expert_layer, model, alpha)
    words = token_text(experiment.tokenizer())
    return contrasting.one_token(t, token, expert_layer, model, words, alpha=alpha, task=task)


single = experiment.table(one_token, traces, labels=["task"])

# %%
example = mechanism.telling_example(single)
figure = mechanism.one_token_figure(
    example, main, experiment.note(intervals="numbers and shades: probabilities")
)
experiment.save_figure(figure, "one_token", single)
conclude(mechanism.one_token_conclusion(example))

# %% [markdown]
# ## Which layer is the amateur under JSD?


# %% tags=["hide-input"]
def amateurs_of(t, task):
    return contrasting.chosen_amateurs(t, task=task, model=models[main, task])


amateurs = experiment.table(amateurs_of, traces, labels=["task"])

# %%
figure = mechanism.amateur_figure(amateurs, experiment.note(limit))
experiment.save_figure(figure, "chosen_amateur", amateurs)
conclude(mechanism.amateur_conclusion(amateurs))

# %% [markdown]
# ## The degenerate case: a plausible set with one member
#
# Where the expert gives no other entry a tenth of its best probability, there is nothing to contrast, and the
# result is the expert's own distribution. The public code leaves out the mass of the plausible set, so that its
# only member gets everything: a confidence of one, right or wrong.


# %% tags=["hide-input"]
def plausible_of(t, task):
    return contrasting.plausible_sets(t, task=task, model=models[main, task], alpha=alpha)


plausible = experiment.table(plausible_of, traces, labels=["task"])
every_rule = ("unpruned", "fixed", *CONTRASTED)
rules = [rule for rule in every_rule if not rule.endswith("_token")]
policies = rule_policies(rules, threshold, settings)
replays = {}
for task, t in traces.items():
    by_key = {(task, rule): policy for rule, policy in policies.items()}
    replays.update(replay_policies(t, by_key, models[main, task]))

# %% tags=["hide-input"]
at_level = []
for task in tasks:
    compared = {rule: replays[task, rule] for rule in ("unpruned", "weighted", "jsd")}
    without = contrasting.without_mass(replays[task, "unpruned"], models[main, task], alpha)
    compared["weighted, without the mass"] = without
    for rule, replayed in compared.items():
        labels = {"task": task, "rule": rule, "threshold": threshold}
        at_level.append({**labels, **comparison.replayed_row(replayed)})
at_level = experiment.save_table(pd.DataFrame(at_level), "at_equal_threshold")

# %%
figure = mechanism.plausible_figure(plausible, experiment.note(limit))
experiment.save_figure(figure, "one_candidate", plausible)
conclude(mechanism.plausible_conclusion(plausible, at_level, min_layer, threshold))

# %% [markdown]
# ## As a confidence measure: does contrast rank tokens better?
#
# The area under the ROC curve: of two tokens at a layer, one whose prediction is already final and one whose prediction
# is not, how often is the first scored higher? No threshold is involved. The token is the expert's own; contrast gives the
# confidence only. The *plain margin* is the softmax margin without contrast (in legends and tables: over the full
# vocabulary). CALM's early layers were trained to predict tokens; vanilla's were not, so they are genuine amateurs. A
# layer with too few tokens of either kind is left out: there, one or two tokens would decide the result.

# %% tags=["hide-input"]
over_all_entries = {rule: policy for rule, policy in policies.items() if not rule.endswith("fixed")}
ranked = {(main, task, rule): replays[task, rule] for task in tasks for rule in over_all_entries}
for name, task in pairs:
    if name != main:
        by_key = {(name, task, rule): policy for rule, policy in over_all_entries.items()}
        ranked.update(replay_policies(of_both[name, task], by_key, models[name, task]))
ranks = experiment.table(decisions.ranking, ranked, labels=("model", "task", "rule"))

# %%
figure = as_confidence.ranking_figure(ranks, experiment.note(limit, over_sequences))
experiment.save_figure(figure, "ranking", ranks)
conclude(as_confidence.ranking_conclusion(ranks))

# %% [markdown]
# ## As a confidence measure: is it cheaper at equal quality?
#
# For each rule we take the lowest threshold at which a given share of the predictions at the exits still agrees with
# full depth; FLOPs include the amateurs. JSD computes logits at every earlier layer, weighted contrast at one.

# %% tags=["hide-input"]
shares = [0.95, 0.98, 0.99]
equal = experiment.table(comparison.at_equal_quality, replays, labels=("task", "rule"), shares=shares)

# %%
whiskers = experiment.note(limit, "whiskers: 95 % intervals over sequences")
figure = as_confidence.equal_quality_figure(equal, note=whiskers)
experiment.save_figure(figure, "equal_quality", equal)
conclude(as_confidence.equal_quality_conclusion(equal))

# %% [markdown]
# The FLOPs with other minimum exit layers (98 % of the predictions kept, a few entries scored):

# %% tags=["hide-input"]
starting = {
    (rule, start): RULES[rule].policy(threshold, settings | {"min_layer": start})
    for rule in ("fixed", "weighted_fixed", "jsd_fixed")
    for start in (2, 4, 6, 8)
}
starts = []
for task, t in traces.items():
    for (rule, start), replayed in replay_policies(t, starting, models[main, task]).items():
        labels = {"task": task, "rule": rule, "min_layer": start}
        starts.append(comparison.at_equal_quality(replayed, [0.98], **labels))
starts = experiment.save_table(pd.concat(starts, ignore_index=True), "minimum_layer")
conclude(as_confidence.starts_conclusion(starts))
as_confidence.starts_shown(starts)

# %% [markdown]
# ## As a decoder: is the contrast's token better?
#
# All layers are run, and the token is the contrast's choice in place of the last layer's. We try the $\alpha$ of
# the public code and a larger one, with which fewer entries are plausible and less is contrasted. The table has the
# share of the score of greedy search that is kept, with a paired 95 % interval over examples.

# %% tags=["hide-input"]
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
conclude(as_decoder.decoder_conclusion(tokens_too))
shown = tokens_too[tokens_too.rule != "full_depth"].set_index(["model", "task", "rule", "alpha"])
shown = shown[["retained", "low", "high", "same_output"]].round(3)
shown.rename(figures.label).rename(columns={"retained": "score kept", "same_output": "outputs unchanged"})

# %% [markdown]
# ## The verdict: a Pareto improvement?
#
# We decode with exits, at the thresholds that keep 95 and 99 % of the predictions: with plain margins, with contrast as
# the confidence, and with contrast for the token too. A setting with contrast improves on the plain margin if its
# score is above that of *every* plain setting (full depth among them) that costs no more FLOPs. Whiskers are
# simultaneous 95 % intervals over all settings of a task. (Where one threshold keeps both shares, it is drawn as that
# for 99 %; contrast that picks the token too was tried at the 99 % threshold alone.)

# %% tags=["hide-input"]
tested = tuple(rule for rule in every_rule if rule not in ("unpruned", "fixed"))


def tried_on(task):
    """The settings that are decoded on a task: (rule, threshold) -> policy."""
    chosen = equal[(equal.task == task) & (equal.wanted != 0.98)]
    highest = chosen[chosen.wanted == 0.99].set_index("rule").threshold
    levels = list(zip(chosen.rule, chosen.threshold, strict=True))
    levels += [(f"{kind}_token", highest[f"{kind}_fixed"]) for kind in ("weighted", "jsd")]
    return {(rule, float(level)): RULES[rule].policy(level, settings) for rule, level in levels}


# %% tags=["hide-input"]
points = []
verdicts = []
for name, examples in first_examples.items():
    labels = ("rule", "threshold")
    table, results = comparison.comparison(models[main, name], examples, tried_on(name), labels, **decoding)
    points.append(table)
    verdict = contrasting.pareto_verdict(results, ("unpruned", "fixed"), tested)
    verdicts.append(verdict.assign(task=name))
points = experiment.save_table(pd.concat(points, ignore_index=True), "score_against_flops")
verdicts = pd.concat(verdicts, ignore_index=True)

# %%
figure = as_decoder.pareto_figure(
    verdicts, experiment.note(decoded, "whiskers: simultaneous 95 % intervals over examples")
)
experiment.save_figure(figure, "pareto_verdict", verdicts)
conclude(as_decoder.pareto_conclusion(verdicts))

# %% [markdown]
# ## By the clock
#
# The time of one exit decision in units of one decoder layer, after the candidate list has been chosen: measured by
# `make bench` at the sizes of T5-base and T5-large, with random weights (which do not change the time).

# %% tags=["hide-input"]
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
conclude(costs.clock_conclusion(measured) if len(measured) else "Not measured: run `make bench`.")
named = measured.replace({"softmax_margin": "margin", " ids kept": " entries"}, regex=True)
named.pivot(index="what", columns="shape", values="median").round(2)

# %% [markdown]
# ## Long inputs
#
# The paper's two long-document rows run LongT5 on Multi-News and BigPatent. We run the same code on other long
# documents, with a mini LongT5 of **random weights**: these are costs, not scores. The documents are stored in the
# format of Multi-News; in that of BigPatent, the code reads the same. The table has the FLOPs of each rule and the
# parts of them that go to *logits* and to the keys and values of the *source*, all as shares of full depth's FLOPs. The
# figure counts FLOPs at the sizes of the synthetic profile's models (*mini T5*), T5-base and T5-large.

# %% tags=["hide-input"]
documents = experiment.long_documents(long_corpus, long_limit)["Multi-News"]
long_model = long_documents.random_long_t5(experiment.tokenizer())
tried = {"full_depth": None} | rule_policies(rules, 1.0, settings)
tried["static"] = RULES["static"].policy(min_layer, settings)
long_costs = long_documents.costs_by_part(long_model, documents, tried, 12)
experiment.save_table(long_costs, "long_documents")
conclude(costs.long_conclusion(long_costs))
shown = long_costs.set_index("rule").rename(figures.label)
shown = shown[["flops_share", "readout_share", "source_share"]].round(3)
shown.rename(columns={"flops_share": "FLOPs", "readout_share": "logits", "source_share": "source"})

# %% tags=["hide-input"]
lengths = (64, 256, 1024, 4096, 16384)
grown = [
    long_documents.counted_by_length(sizes, lengths, min_layer, 256).assign(shape=name)
    for name, sizes in SHAPES.items()
]
grown = pd.concat(grown, ignore_index=True)

# %%
figure = costs.lengths_figure(grown)
experiment.save_figure(figure, "long_inputs", grown)
conclude(
    "With a long source, cross-attention and the keys and values of the source outweigh the logits: the "
    "relative cost of deciding shrinks, and with it what pruning can save."
)

# %% [markdown]
# ## What this shows, and what it does not

# %% tags=["hide-input"]
conclude(
    f"{as_confidence.ranking_message(ranks)}.",
    f"{as_confidence.equal_quality_message(equal)}.",
    f"{as_decoder.decoder_message(tokens_too) or 'Full depth scores nothing here'}.",
    f"{as_decoder.pareto_message(verdicts)}.",
    f"{mechanism.amateur_message(amateurs)}.",
)

# %% [markdown]
# Not shown: large models, as in Gera et al. and Chuang et al.; open-ended text, for which contrast was designed; and
# quality on long documents, for which no trained model is available here.
#
# ## Each published statement beside our number
#
# *Published* is the number, or how the paper makes the statement. A verdict here is that of one task alone, before 08
# corrects for the number of tests.

# %% tags=["hide-input"]
measured = {
    "ranking": ranks,
    "equal": equal.assign(model=main),
    "threshold": at_level.assign(model=main),
    "verdict": verdicts.assign(model=main),
    "decoder": tokens_too,
    "head": plausible.assign(model=main),
}
tables = {task: {name: table[table.task == task] for name, table in measured.items()} for task in tasks}
judged = claims.judge("04_contrastive_decoding", tables)
claims.show_judged(experiment.save_table(judged, "claims"))

# %% [markdown]
# **Next:** [05](05_mee_classifiers.ipynb) asks whether several layers decide better than one.

# %% tags=["hide-input"]
experiment.finish()
