# %% [markdown]
# # 05 · MEE classifiers: who should decide?
#
# [‹ 04 contrastive decoding](04_contrastive_decoding.ipynb) · [all notebooks](../README.md#the-notebooks) · [06 survey rules ›](06_survey_rules.ipynb)
#
# **Question.** Who should decide whether a token exits: one layer, several layers, or probabilities? And does any rule
# over several layers save compute at (nearly) full quality?
#
# **What the paper says** (MEE, sections 5 to 7). At a threshold of 0.9, three measures over several layers keep far
# more of the score than CALM's three, but are slower than full depth. A bug in MEE's decoder affects the baselines,
# though (chapter 08).
#
# **What we do.** All classifiers are trained on the same frozen model, with several seeds. How well does each rule
# discriminate, what does it cost at equal quality, and how much of the score does it keep when it decodes? A
# threshold of 0.9 means something different to each rule, so rules share a threshold only where we repeat the paper's
# comparison.
#
# **Expectation** (MEE's). The more layers a rule sees, the better it decides and the more it costs.

# %% needs=["traces", "classifiers", "measured"] tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 100  # held-out examples of each task that are traced and replayed
decoded = 40  # of these, how many are decoded
max_new_tokens = 48  # longest output, in tokens
batch_size = 100  # rows decoded at a time
threshold = 0.9  # as published
decay = 4.0  # temperature of the published, decaying threshold
min_layer = None  # first layer at which a token may exit; None: that of the profile's measurements
top_k = None  # vocabulary tokens of pruned rules; None: that of the profile's measurements
quality = None  # share of the full score that must be kept; None: that of the profile's measurements
share = 0.98  # share of the predictions that stay, where rules are compared at equal quality

# %% tags=["hide-input"]
import numpy as np
import pandas as pd
from IPython.display import display
from scipy.stats import rankdata

from mee_utils.analysis import comparison, decisions, statistics
from mee_utils.companion import Experiment, claims, figures
from mee_utils.companion.catalogue import CALM_RULES, MAIN_MODEL, MEE_RULES, RULES, SEVERAL_LAYERS, VARIANTS
from mee_utils.companion.learned_from import OUTPUTS, REFERENCES
from mee_utils.companion.published_setting import first_exit_layers
from mee_utils.companion.result_tables import KEEPS_IT, read_measured, read_measurements
from mee_utils.companion.verdicts import keeping
from mee_utils.exits.classifiers import new_classifier
from mee_utils.exits.measures import find_measure
from mee_utils.models.costs import SHAPES
from mee_utils.traces.replay import replay_policy

experiment = Experiment.of_notebook("05_mee_classifiers", globals())
settings = experiment.settings
min_layer, top_k = settings["min_layer"], settings["top_k"]
quality = settings["quality"]

# %%
tasks = experiment.tasks(limit)
models = experiment.models(["calm", "vanilla"])
traces = {
    (name, task): experiment.trace(name, task, limit, max_new_tokens) for name in models for task in tasks
}
classifiers = experiment.classifiers(models)  # (model, rule, target) -> one a seed

# %% [markdown]
# ## What each measure looks at

# %%
figures.picture("six_measures")

# %% [markdown]
# CALM's measures look at one layer: the *softmax margin* (largest probability minus second largest), the *hidden
# similarity* to the previous layer's state, and a classifier on *one state*. MEE's look at several: a classifier on
# *three states*, an *LSTM* over all states so far, and *rising top-1*, which exits where the largest probability rose
# twice in a row.
#
# A classifier gives the log-odds $z$ of "exit here", at every layer and for all tasks. $n(h^l)$ is the normalised state
# after layer $l$, of width $d$.
#
# | rule | $z$ | source |
# |---|---|---|
# | linear | $w \cdot n(h^l) + b$ | CALM |
# | on $k$ states | $u \cdot \mathrm{ReLU}(A\,[n(h^{l-k+1}); \dots; n(h^l)] + a)$ with $d$ hidden units | CALM in MEE ($k = 1$), MEE ($k = 3$) |
# | wide, low rank | the same with $3d$ units on one state, or $d/8$ | controls |
# | LSTM | $u \cdot s^l$ with $(c, s)^l = \mathrm{LSTM}(n(h^l), (c, s)^{l-1})$ | MEE: two layers, here of $d/2$ units; its code: one |
# | history | 32 hidden units on the *predictions* of the last three layers: margins, probabilities, entropies, how long each has lasted, whether it is in the input | ours |
#
# The history of predictions and the *margin over few tokens* score `top_k` vocabulary tokens before the last layer
# (fixed pruning, chapter 03) and the whole vocabulary at the last. `FEATURES` in `mee_utils.exits.history_classifier`
# lists what the history sees. Classifiers learn whether a layer's prediction is final, on teacher-forced references
# as in the papers; the history classifier learns from the model's own outputs.

# %%
untrained = ["softmax_margin", "max_probability", "hidden_similarity", "rising_top1", "few"]
compared = {("calm", rule, "consistency"): [None] for rule in untrained} | classifiers
replays = {}  # (task, model, rule, target, seed) -> the confidences of a rule at every layer
for (model, rule, target), by_seed in compared.items():
    for seed, classifier in enumerate(by_seed):
        policy = RULES[rule].policy(threshold, settings, {rule: classifier})
        for task in tasks:
            replayed = replay_policy(traces[model, task], policy, models[model])
            replays[task, model, rule, target, seed] = replayed

# %% [markdown]
# ## Who discriminates best?
#
# AUROC: of two tokens at a layer, one whose prediction is final (the last layer's) and one whose is not, how often does the
# final one have the higher confidence? One half is guessing; no threshold is involved. The mean
# over layers is weighted by how many such pairs a layer has.


# %%
def auroc(confidence, final):
    """The mean over layers, from `[token, layer]`: won pairs of a final and another token, ties half."""
    won = pairs = 0
    for score, is_final in zip(confidence.T, final.T, strict=True):
        count = is_final.sum()
        won += rankdata(score)[is_final].sum() - count * (count + 1) / 2
        pairs += count * (~is_final).sum()
    return won / pairs if pairs else np.nan


keys = ["task", "model", "rule", "target", "seed"]
overall = experiment.table(decisions.overall_ranking, replays, keys)
for key, replayed in replays.items():
    (area,) = overall.loc[(overall[keys] == list(key)).all(axis=1), "roc_area"]
    np.testing.assert_allclose(area, auroc(replayed.confidences, replayed.same_token[:, :-1]))

# %%
kinds = ["task", "model", "target", "rule"]
by_layer = experiment.table(decisions.ranking, replays, keys)
experiment.save_table(comparison.seed_interval(by_layer, [*kinds, "layer"], ["roc_area"]), "ranking")
mean_rank = comparison.seed_interval(overall, kinds, ["roc_area"])
experiment.save_table(mean_rank, "mean_ranking")
on_calm = mean_rank[(mean_rank.model == "calm") & (mean_rank.target == "consistency")]

# %%
ranked = ["history", "few", "max_probability", "rising_top1", "hidden_similarity"]
ranked += ["linear", "hidden", "low_rank_three", "three_hidden", "lstm"]


def auroc_of(table, rule, task):
    """An `Estimate`; the difference of two is paired."""
    rows = table[(table.rule == rule) & (table.task == task)]
    return statistics.estimates(rows, "roc_area").item(0)


rows = []
for task in tasks:
    margin = auroc_of(on_calm, "softmax_margin", task)
    for rule in ranked:
        area = auroc_of(on_calm, rule, task)
        gain = (area - margin).columns("gain", "gain_")
        rows.append({"task": task, "rule": rule, "roc_area": area.value, **gain})
gains = pd.DataFrame(rows)

# %%
on_probabilities = ["softmax_margin", "history", "few", "max_probability", "rising_top1"]
looks = {
    "probabilities of one layer": figures.Style("probabilities of one layer", "#332288", "o"),
    "probabilities of several layers": figures.Style("probabilities of several layers", "#332288", "D"),
    "states of one layer": figures.Style("states of one layer", "#cc6677", "o"),
    "states of several layers": figures.Style("states of several layers", "#cc6677", "D"),
}


def in_order(table, column, ascending=True):
    """The rows with what their rule looks at, and its `height` in a figure, by the mean of a column."""
    height = (
        table.groupby("rule")[column].mean().rank(method="first", ascending=ascending, na_option="bottom")
    )
    what = table.rule.isin(on_probabilities).map({True: "probabilities", False: "states"})
    where = table.rule.isin(SEVERAL_LAYERS).map({True: "several layers", False: "one layer"})
    return table.assign(height=table.rule.map(height), looks_at=what + " of " + where)


def draw_rules(axis, rows, x, band):
    """A line a rule."""
    figures.dots(axis, rows, x, "height", "looks_at", band, styles=looks, markersize=5)
    axis.set_yticks(rows.height, rows.rule.map(figures.label))


drawn = in_order(gains, "gain")
figure, panels = figures.panels(
    drawn,
    title="AUROC of each rule minus that of the softmax margin",
    note=experiment.note(limit, "whiskers: paired 95 % intervals, over sequences and seeds"),
    height=3.4,
)
for axis, rows in panels:
    draw_rules(axis, rows, "gain", ("gain_low", "gain_high"))
    axis.axvline(0, color=figures.GREY, linewidth=0.8)
    axis.set_xlabel("difference in AUROC")
    for row in rows.itertuples():
        at_the_side = {"transform": axis.get_yaxis_transform(), "va": "center", "fontsize": 9.5}
        axis.text(1.02, row.height, f"{row.gain:+z.3f}", **at_the_side)
experiment.save_figure(figure, "auroc", drawn)

for task in tasks:
    margin, history = (auroc_of(on_calm, rule, task) for rule in ("softmax_margin", "history"))
    beside = f"history {history.value:.3f}, margin {margin.value:.3f}, difference {history - margin:+z.3f}"
    print(f"AUROC, {figures.label(task)}: {beside}")

# %% [markdown]
# Probabilities discriminate far better than states. No classifier on states comes within 0.04 of the softmax margin,
# and seeing several layers does not help: on three states, or with an LSTM over all of them, its AUROC is within 0.01
# of that on one state.
#
# Several layers of *predictions* do help, a little. The history has an AUROC of 0.906 against the margin's 0.892 on
# summarization, and is ahead by less than 0.01 on the other two tasks. MEE's own rule on predictions, rising top-1,
# is at least 0.1 behind the margin. (Chapter 06 finds no rule better than the margin; it compares the survey's rules,
# and the history is ours.)
#
# ## What would help a classifier on states?
#
# Changes in AUROC, with paired 95 % intervals. More training tokens, and outputs of the model to learn from in place
# of references, were measured by `make measure`, on test examples.

# %%
by_tokens = read_measurements(experiment.profile.name, "learning")
by_tokens = comparison.seed_interval(by_tokens, ["task", "rule", "tokens"], ["roc_area"])
experiment.save_table(by_tokens, "tokens_needed")
by_source = read_measurements(experiment.profile.name, "learned_from")
by_source = comparison.seed_interval(by_source, ["task", "rule", "learned_from", "features"], ["roc_area"])
experiment.save_table(by_source, "learned_from")

most = by_tokens[by_tokens.tokens == by_tokens.tokens.max()]
correct = mean_rank[(mean_rank.model == "calm") & (mean_rank.target == "correctness")]
references = by_source[by_source.learned_from == REFERENCES]
outputs = by_source[by_source.learned_from == OUTPUTS]
changes = {  # before and after, each a table and a rule in it
    "three states, not one": [(on_calm, "hidden"), (on_calm, "three_hidden")],
    "three states, not one with as many weights": [(on_calm, "wide_hidden"), (on_calm, "three_hidden")],
    f"the same, {most.tokens.max():,} training tokens": [(most, "wide_hidden"), (most, "three_hidden")],
    "four states, not three": [(on_calm, "three_hidden"), (on_calm, "four_hidden")],
    "LSTM, not three states": [(on_calm, "three_hidden"), (on_calm, "lstm")],
    "three states that learn what is right": [(on_calm, "three_hidden"), (correct, "three_hidden")],
    "three states that learn from outputs": [(references, "three_hidden"), (outputs, "three_hidden")],
}
texts = [
    [f"{auroc_of(*after, task) - auroc_of(*before, task):+z.3f}" for task in tasks]
    for before, after in changes.values()
]
display(pd.DataFrame(texts, changes, [figures.label(task) for task in tasks]))

# %% [markdown]
# Nothing here helps by more than 0.01, and the gap to the margin is 0.05 to 0.15. A classifier on one state with as
# many weights does as well as one on three states, and still does with three times the training tokens. None of these
# changes closes the gap. We conclude that classifiers on states are behind because of what they see, not because of
# how they learn.
#
# ## What do they cost at equal quality?
#
# The FLOPs of one decision, as a share of one decoder layer:

# %%
listed = ["softmax_margin", "history", "few", "max_probability", "rising_top1", "hidden_similarity"]
listed += ["linear", "hidden", "low_rank_three", "three_hidden", "lstm"]
costs = []
for shape, sizes in SHAPES.items():
    measures = {rule: find_measure(RULES[rule].measure) for rule in untrained}
    for rule, variant in VARIANTS.items():
        measures[rule] = new_classifier(variant.kind, sizes.d_model, **variant.options(sizes.d_model))
    for rule, measure in measures.items():
        cost = comparison.decision_cost(sizes, measure, min_layer, top_k if RULES[rule].pruning else None)
        costs.append({"shape": shape, "rule": rule, **cost})
costs = experiment.save_table(pd.DataFrame(costs), "cost_of_deciding")
shown = costs[costs.rule.isin(listed)]
shown = shown.pivot(index="rule", columns="shape", values="share_of_layer").sort_values("t5-large").round(3)
display(shown.rename(index=figures.label, columns=figures.label))

# %% [markdown]
# At equal quality: for each rule the lowest threshold at which a share `share` of the predictions at the exits is final,
# chosen on one half of the outputs, and its decoder FLOPs on the other half, decisions included. This is a replay.

# %%
shares = [0.90, 0.95, 0.98, 0.99]
equal = experiment.table(comparison.at_equal_quality, replays, keys, shares=shares)
columns = ["mean_exit_layer", "flops_share", "threshold"]
at_equal = comparison.seed_interval(equal, [*kinds, "wanted"], columns)
at_share = at_equal[at_equal.wanted == share]
at_share_on_calm = at_share[(at_share.model == "calm") & (at_share.target == "consistency")]

# %%
rules = ["softmax_margin", "history", "few", "max_probability", "rising_top1", "hidden_similarity"]
rules += ["linear", "hidden", "low_rank_three", "three_hidden", "lstm"]
drawn = at_share_on_calm[at_share_on_calm.rule.isin(rules)]
drawn = in_order(drawn, "flops_share", ascending=False)
figure, panels = figures.panels(
    drawn,
    title=f"Decoder FLOPs of each rule where {share:.0%} of the predictions stay",
    note=experiment.note(limit, "whiskers: 95 % intervals over seeds, where a rule is trained"),
    height=3.4,
)
for axis, rows in panels:
    draw_rules(axis, rows, "flops_share", ("flops_share_low", "flops_share_high"))
    axis.axvline(1, color=figures.GREY, linewidth=0.8)
    axis.set_xlabel("decoder FLOPs (1 = full depth)")
experiment.save_figure(figure, "at_equal_quality", at_equal)

layers = at_share[at_share.target == "consistency"].pivot(
    index="rule", columns=["model", "task"], values="mean_exit_layer"
)
for name in models:
    exits = layers.loc["three_hidden", name]
    print(
        f"mean exit layer, three states, {figures.label(name)}:",
        ", ".join(f"{figures.label(task)} {layer:.1f}" for task, layer in exits.items()),
    )

# %% [markdown]
# A softmax margin over the whole vocabulary costs 2.2 layers of T5-large, a classifier on three states a fifth of a
# layer, a margin over 64 tokens next to nothing. So where 98 % of the predictions at the exits are final, the margin
# over the whole vocabulary takes more FLOPs than full depth on two tasks. The history is the cheapest rule on these
# two (71 and 86 %); on question answering it is the margin, over the whole vocabulary or over few tokens (46 %). None
# of MEE's three measures takes less than the classifier on one state, on any task. How the *model* is trained moves
# exits more than whether one state, three states or all of them decide: a classifier on three states exits at layer 6
# to 9 on average in CALM, and at 9 to 10 in vanilla.
#
# ## At the published threshold
#
# The six measures decode at a threshold of 0.9 that falls with the position (CALM's decay), and each runs twice: with
# exits from `min_layer` on, and with exits from a sixth of the depth on, as in MEE. They have one seed; chapter 08
# shows their speed.

# %%
sixth = first_exit_layers(experiment.layers)[0]
first = {
    rule: by_seed[0]
    for (name, rule, target), by_seed in classifiers.items()
    if (name, target) == ("calm", "consistency")
}
six = [*CALM_RULES, *MEE_RULES]
as_published = {
    (rule, threshold, start): RULES[rule].policy(threshold, settings | {"min_layer": start}, first, decay)
    for start in (min_layer, sixth)
    for rule in six
}
published = pd.concat(
    [
        comparison.comparison(
            models["calm"],
            task[:decoded],
            as_published,
            ("rule", "threshold", "min_layer"),
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
        )[0]
        for task in tasks.values()
    ],
    ignore_index=True,
)
published = experiment.save_table(published, "published_thresholds")

# %%
values = ["retained", "flops_share"]
shown = published[published.min_layer == min_layer].pivot(index="rule", columns="task", values=values)
shown = shown.loc[six, [(value, task) for value in values for task in tasks]]
display(shown.rename(index=figures.label, columns=figures.label).map("{:.0%}".format))
at_sixth = published[published.min_layer == sixth].groupby("rule").retained.mean()[six]
print(
    f"score kept with exits from layer {sixth} on, mean over tasks:",
    ", ".join(f"{figures.label(rule)} {kept:.0%}" for rule, kept in at_sixth.items()),
)

# %% [markdown]
# We do not find the gap that MEE reports: the softmax margin keeps 99 % of the score or more on every task, and
# neither of MEE's classifiers keeps more. Only hidden similarity ruins the output: it keeps 66 to 86 % from layer 4
# on, and about a third from layer 2 on. It also takes the fewest FLOPs, and rising top-1 the most: an equal threshold
# is not an equal cost.
#
# ## Which rules reliably keep the score?
#
# Here everything is decoded, nothing replayed (`make measure`). The settings of a rule are tested on test examples,
# one after the other, in an order that was chosen on validation examples (08). A setting passes if the lower end of
# the paired 95 % interval of the score kept is at least `quality`; the first that fails ends the tests. The table has
# the decoder FLOPs (1 = full depth) of the cheapest setting that passes.

# %%
stored = read_measured(profile, MAIN_MODEL)
kept = keeping(stored, "calm", quality)
kept = kept[kept.rule.isin(["static", "rising_fixed", *listed]) & kept.task.isin(list(tasks))]
kept = experiment.save_table(kept, "at_99_percent")

# %%
flops = kept[kept.verdict == KEEPS_IT].pivot(index="rule", columns="task", values="flops_share")
flops = flops.reindex(index=kept.rule.unique(), columns=list(tasks))
display(
    flops.rename(index=figures.label, columns=figures.label)
    .map("{:.2f}".format, na_action="ignore")
    .fillna("–")
)
saving = (flops < 1).sum(axis=1)
print(
    f"keep {quality:.0%} of the score and save FLOPs, of {len(tasks)} tasks:",
    ", ".join(f"{figures.label(rule)} {count}" for rule, count in saving.items()),
)

# %% [markdown]
# **Who should decide? The probabilities of one layer, over few vocabulary tokens.** Of the rules in this table, this
# margin is the cheapest that reliably keeps 99 % of the score on question answering (73 % of the decoder FLOPs) and
# translation (94 %). On summarization no rule in the table that keeps it saves anything: intervals are so wide there
# that only rules that hardly exit pass. (Over all rules, chapter 08 finds 70 % on question answering, 89 % on
# translation and 98 % on summarization.) The history discriminates slightly better, but that does not pay at this
# quality: it takes more FLOPs than the margin over few tokens on every task.
#
# MEE asks whether rules over several layers can keep their quality and be faster than no exit. For its own three
# measures the answer is no. Of nine cases (three measures, three tasks) one, three states on question answering,
# reliably keeps 99 % of the score and saves FLOPs: 2 %. The expectation was half right: seeing more states costs
# more, but decides no better. All of this is about models of 4 million parameters, and classifiers trained on 20,000
# tokens.
#
# ## Statements, published and ours
#
# *Published* is the number, or how the paper makes the statement. Whether a statement holds, corrected for the number
# of tests, is in the [ledger](../figures/results/ledger.md).

# %% tags=["hide-input"]
at_threshold = {
    (task, "calm", rule): replays[task, "calm", rule, "consistency", 0]
    for task in tasks
    for rule in ("rising_top1", "max_probability")
}
precision = experiment.table(decisions.precision_and_recall, at_threshold, ("task", "model", "rule"))

by_name = {
    "ranking": mean_rank,
    "learned": most.assign(model="calm"),
    "published": published.assign(model="calm"),
    "equal": at_share,
    "decisions": precision,
    "kept": kept[kept.verdict == KEEPS_IT],
}
tables = {task: {name: table[table.task == task] for name, table in by_name.items()} for task in tasks}
judged = claims.judge("05_mee_classifiers", tables, sixth=sixth, min_layer=min_layer)
claims.show_judged(experiment.save_table(judged, "claims"))

# %% [markdown]
# **Next:** [06](06_survey_rules.ipynb) puts the rules of other papers beside these.

# %% tags=["hide-input"]
experiment.finish()
