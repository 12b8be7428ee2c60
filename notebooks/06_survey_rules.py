# %% [markdown]
# # 06 · Survey rules: which ideas survive in generation?
#
# [‹ 05 MEE classifiers](05_mee_classifiers.ipynb) · [all notebooks](../README.md#the-notebooks) · [07 lossless ›](07_lossless.ipynb)
#
# **Question.** The survey of Bajpai and Hanawal (2025) lists a dozen exit rules. Most were made for
# classifiers of a few classes, and each was tested on its own model. Which of them are good for *generation*,
# where a decision is made for every token and the vocabulary is large? Which are the same rule under two
# names?
#
# **What the survey says.** Deep layers overthink; early ones can be sure and wrong (fake confidence); several
# exits together are more reliable than one; exits at intervals suffice; a network that learns when to exit
# beats a confidence; bandits find the threshold while running; confidences move with the domain.
#
# **What we do.** All rules stand on one frozen model. They are compared at the same loss, never at the same
# threshold. Losses and costs come from real decoding: thresholds are chosen on validation examples, and test
# examples report (`make measure`). How well a rule ranks tokens, which rules are the same, and what a bandit earns
# are read off traces, without decoding.
#
# **Expectation.** Rules that count exits gain nothing where training makes early layers agree with the last
# one. What a decision costs decides more than how clever it is.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 150  # held-out examples of each task that replays report
choosing = 150  # further ones that choose their thresholds
max_new_tokens = 48  # longest output, in tokens
min_layer = 4  # first layer at which a token may exit
top_k = 64  # ids that rules on probabilities read out
demand = 0.01  # mean consistency loss at which rules are compared
promise = 0.05  # mean consistency loss that is promised
max_draft = 8  # tokens that wait at most, where exits are drafts
sure = 0.9  # a probability above which a layer counts as sure
layer = 6  # where the rules' confidences are compared
splits = 50  # random halves, or orders, that test a promise

# %%
from dataclasses import replace
from itertools import product
from textwrap import fill

import numpy as np
import pandas as pd

from mee_utils import ExitPolicy, Experiment, trace
from mee_utils.analysis import comparison, decisions, lossless, survey
from mee_utils.analysis.statistics import mean_interval
from mee_utils.models.costs import SHAPES
from mee_utils.paper import claims
from mee_utils.paper.statements import BUGS
from mee_utils.study import figures, verdicts
from mee_utils.study.catalogue import IDEAS, MAIN_MODEL, RULES
from mee_utils.study.result_tables import inputs_of, read_measured
from mee_utils.study.survey_bench import survey_bench
from mee_utils.traces.replay import replay_policies, replay_policy

# %%
experiment = Experiment.of_notebook("06_survey_rules", globals())
settings = experiment.parameters
examples = limit + choosing
traced = f"profile {profile}, n = {examples} examples a task"
tasks = experiment.tasks(examples)
models = experiment.models(["calm", "vanilla"])
calm = models["calm"]
trained = experiment.classifiers({"calm": calm}, seeds=[0], survey=True)
classifiers = {rule: one for (_, rule, target), (one,) in trained.items() if target == "consistency"}
traces = {task: experiment.trace("calm", task, examples, max_new_tokens) for task in tasks}
held = {name: min(limit, len(task) // 2) for name, task in tasks.items()}  # reported; the rest chooses
print({task: f"{len(t)} tokens of {len(tasks[task])} outputs" for task, t in traces.items()})

# %% [markdown]
# ## The rules
#
# $p_l$ is the distribution that the shared head reads out at layer $l$, $H$ its entropy, $y_l$ its best token
# and $h_l$ the state. A token leaves at the first layer at which ...
#
# | idea | rule | ... this exceeds the threshold |
# |---|---|---|
# | one layer's probabilities | max probability (CeeBERT) | $\max p_l$ |
# | | entropy (DeeBERT) | $e^{-H(p_l)}$ |
# | exits so far | patience (PABEE) | how many exits in a row said $y_l$ |
# | | vote, weighted vote (Sun et al.) | how many exits said $y_l$, in a row or not; how surely |
# | | patient entropy (PCEE-BERT) | the least $e^{-H}$ of the last two exits |
# | | window (ELBERT) | $e^{-H(p_l)}$, or 1 where $\max p$ rose three times to above 0.9 |
# | states | falling similarity (MuE) | $\cos(h_l, h_{l-1})$, against a threshold that falls with the position |
# | | learning to exit (BERxiT) | $\sigma(w \cdot h_l + b)$, squared error to "this token is right" |
# | | Q-exit (PALBERT) | $1 - \prod_{i \le l} (1 - \lambda_i)$ |
# | another token, or none | ensemble (ZTW) | $\max q_l$ with $\log q_l = \sum_{i \le l} w_i \log p_i + b$ |
# | | foretold state (PF-BERxiT) | $\max p$ of $A_l h_l + b_l$, which foretells the last state |
# | | table of tokens (HashEE) | the share of training tokens after *this* one that had settled by layer $l$ |
# | threshold | bandit (UCBEE, CeeBERT) | $\max p_l$, the threshold being the arm that has paid best so far |
#
# Beside them stand rules of the other papers: softmax margin and similarity (CALM), rising top-1 (MEE), a
# linear classifier (CALM) and one of low rank on three layers (ours). Rules that read probabilities are made
# cheap in the same way, since otherwise the head alone decides: they read out the first exit in full, and
# its 64 best ids at later ones (*fixed pruning*, 03).

# %%
ideas = list(dict.fromkeys(IDEAS.values()))
group_of = {rule: fill(idea, 18) for idea in ideas for rule in IDEAS if IDEAS[rule] == idea}


def policy_of(rule, pruned=True):
    """A rule at no threshold in particular; if it reads probabilities, over a few ids or over all."""
    policy = RULES[rule].policy(1.0, settings, classifiers)
    return policy if pruned else replace(policy, pruning=None, top_k=None)


# %% [markdown]
# ## What each rule looks at, and what a decision costs
#
# `readouts` and `layers`: products with the head, and layers looked at, for one decision. The last columns
# are the counted FLOPs of a decision as a share of one layer, with 64 ids read out, for this model and for
# the shapes of T5-base and T5-large. (The first exit of a token reads out all ids; that comes on top.) `bug`
# names what public code of the rule does instead (08 switches it on; one public code also keeps the threshold of
# the entropy in a variable called patience, which changes nothing).

# %%
sizes = {f"profile {profile}": traces[next(iter(tasks))].sizes}
sizes |= {shape: size for shape, size in SHAPES.items() if shape != "mini"}
described = [
    {"rule": rule, "source": RULES[rule].source, "bug": RULES[rule].bug}
    | survey.what_it_costs(policy_of(rule).measure, sizes, top_k)
    for rule in [*group_of, "bandit"]
]
described = experiment.save_table(pd.DataFrame(described), "what_they_cost")
for rule, bug in described.set_index("rule").bug[lambda bugs: bugs != ""].items():
    print(f"{figures.label(rule)}: {BUGS[bug]['what']}")
described.assign(rule=described.rule.map(figures.label)).set_index("rule").round(4)

# %% [markdown]
# ## Who knows?
#
# The area under the ROC curve: of two tokens at one layer, one whose prediction is the last layer's and one
# whose is not, how often is the first scored higher? One half is guessing; no threshold is involved. **How to
# read it:** a row of panels is an idea, a line a rule, a band its 95 % interval over sequences; layers at which fewer
# than 20 tokens are not final are left out. All ids are read out here, by the pruned rules too.

# %%
plain = {}
for task, t in traces.items():
    plain |= replay_policies(t, {(task, rule): policy_of(rule, pruned=False) for rule in group_of}, calm)
labels = ("task", "rule")
ranks = experiment.table(decisions.ranking, plain, labels)
ranks["group"] = ranks.rule.map(group_of)


# %%
def draw(axis, rows):
    band = ("roc_area_low", "roc_area_high")
    figures.lines(axis, rows, "layer", "roc_area", band=band, clip=(0, 1))
    axis.axhline(0.5, color=figures.GREY, linewidth=0.8, linestyle=":")


look = {"ylabel": "area under\nthe ROC curve", "height": 2.2, "note": traced}
figure = figures.facets(ranks, draw, row="group", values=list(tasks), **look)
experiment.save_figure(figure, "ranking", ranks)
mean_rank = experiment.table(decisions.overall_ranking, plain, labels)
for task, rows in mean_rank.groupby("task", sort=False):
    best = rows.loc[rows.roc_area.idxmax()]
    worst = rows.loc[rows.roc_area.idxmin()]
    ends = [f"{figures.label(row.rule)} ({row.roc_area:.2f})" for row in (best, worst)]
    print(f"{figures.label(task)}: best {ends[0]}, worst {ends[1]}")

# %% [markdown]
# ## One rule under two names
#
# Some pairs can be checked token by token, over all ids. PCEE-BERT's public code computes the entropy and
# never asks for it; its loop, as we read it, is written out below. ELBERT leaves where the entropy is low *or*
# the probability rose over three exits to above 0.9: the second half is MEE's rising top-1, years before. Vote
# and patience differ only where a token was predicted, dropped and predicted again.


# %%
def as_published(t, patience):
    """PCEE-BERT's loop as its code has it: equal predictions in a row are counted, and nothing else."""
    count = np.zeros(len(t))
    exits = np.full(len(t), t.layers)
    for layer in range(min_layer + 1, t.layers):
        same = t.top1_id[:, layer - 1] == t.top1_id[:, layer - 2]
        count = np.where(same, count + 1, 0)
        exits = np.where((count >= patience) & (exits == t.layers), layer, exits)
    return exits


def exits_of(task, rule, level, **options):
    policy = replace(policy_of(rule, pruned=False).at_threshold(level), **options)
    return replay_policy(traces[task], policy, calm).exit_layers(max_new_tokens)


# %%
two = RULES["pcee"].policy(sure, settings).measure.patience


def exits_under_two_names(task):
    patient = exits_of(task, "patience", two)
    elbert = exits_of(task, "elbert", sure)
    entropy = exits_of(task, "entropy", sure)
    rising = exits_of(task, "rising_fixed", 0.9, min_layer=min_layer + 2)  # it looks at three exits
    as_many_agree = exits_of(task, "patience", two - 1)
    return {
        "PCEE-BERT's code, patience": (as_published(traces[task], two), patient),
        "PCEE-BERT as written, patience": (exits_of(task, "pcee", sure), as_many_agree),
        "ELBERT, entropy or rising top-1": (elbert, np.minimum(entropy, rising)),
        "ELBERT, entropy alone": (elbert, entropy),
        "vote, patience": (exits_of(task, "vote", two), patient),
    }


# %%
same = []
for task, t in traces.items():
    for pair, (first, second) in exits_under_two_names(task).items():
        shares = mean_interval(first == second, t.sequence).columns("same_exit")
        same.append({"task": task, "model": "calm", "pair": pair, **shares})
same = experiment.save_table(pd.DataFrame(same), "same_rule")
same.pivot(index="pair", columns="task", values="same_exit").map("{:.1%}".format)

# %% [markdown]
# And how alike are all of them? Rank correlations of the confidences at one layer, mean over tasks. Two rules
# at 1 order all tokens alike: for any threshold of one there is a threshold of the other that lets the same
# tokens go. (Of similarity and MuE that is no finding: MuE changes the threshold only.) A cell would be white
# where a rule says the same of every token.

# %%
deep = {
    task: survey.rank_correlations({rule: plain[task, rule] for rule in group_of}, layer) for task in tasks
}
alike = sum(deep.values()) / len(deep)
cells = alike.rename_axis("first").reset_index().melt("first", var_name="second", value_name="correlation")


def draw(axis, rows):
    shown = axis.imshow(alike, cmap="viridis", vmin=0, vmax=1)
    names = [figures.label(rule) for rule in alike]
    axis.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.grid(visible=False)
    axis.figure.colorbar(shown, ax=axis, label="rank correlation", shrink=0.7)


# %%
title = f"rank correlation of confidences at layer {layer}"
figure = figures.facets(cells.assign(what=title), draw, "what", width=7.4, height=6.6, note=traced)
experiment.save_figure(figure, "alike", cells)
beside = cells[cells["first"] < cells.second].dropna().sort_values("correlation", kind="stable")
for row in beside.tail(4)[::-1].itertuples():
    print(f"{figures.label(row.first)} and {figures.label(row.second)}: {row.correlation:.2f}")

# %% [markdown]
# ## At equal loss
#
# The *consistency loss* of an output is one minus its score with the output of full depth as the reference.
# Every rule was decoded from careful to careless on validation examples, and the settings that a search found
# there (`make measure`) on the test examples: a line goes through those. Grey: leaving at a fixed layer,
# whatever the token, which needs no decision. A line that begins right of the star and no lower loses outputs even
# without exits (a short list of ids misses words).

# %%
stored = read_measured(profile, MAIN_MODEL)
tested = f"profile {profile}, n = {stored.tested} test examples a task"
experiment.run.inputs["results measured"] = inputs_of(experiment.profile.name)["results measured"]
curves = stored.rows(model="calm")
curves = curves[curves.rule.isin([*group_of, "static"]) & curves.task.isin(list(tasks))]
curves = curves.assign(loss=100 * curves.consistency_loss, group=curves.rule.map(group_of))
static = curves[curves.rule == "static"]


def draw(axis, rows):
    fixed = static[static.task == rows.task.iloc[0]].sort_values("threshold")
    axis.plot(fixed.loss, fixed.flops_share, ".:", color=figures.GREY, label="a fixed layer")
    figures.lines(axis, rows, "loss", "flops_share")
    axis.axvline(100 * demand, color=figures.GREY, linewidth=0.8)
    axis.plot(0, 1, "k*", label="full depth")
    right = min(1.1 * fixed.loss.max(), max(12, 1.3 * fixed.loss.min()))
    axis.set(xlim=(-0.03 * right, right), ylim=(0.3, 1.4))


# %%
look = {"xlabel": "consistency loss (%)", "ylabel": "FLOPs\n(1 = full depth)", "note": tested}
panels = {"row": "group", "values": list(tasks), "sharex": "col"}
figure = figures.facets(curves[curves.rule != "static"], draw, **panels, **look, height=2.3)
experiment.save_figure(figure, "equal_loss", curves)

# %% [markdown]
# The table has a row a task and rule. `equal flops` is where the rule's line crosses a loss of one in a hundred
# (the grey line), with a paired 95 % interval; a rule whose last setting loses less has the FLOPs of its cheapest.
# Nothing is read off outside what was measured: where even the strictest exits of a rule lose more there is no number
# (none measured), nor a mean over tasks. From `threshold` to `retained`
# stands one setting: the last, from careful to careless, that loses no more than that on *validation* examples
# (where none does, the strictest), measured on test examples.
# `guaranteed`: what the rule spends where learn-then-test promises a mean loss of at most `promise` (08; 1 where
# no threshold passes). `verified speed` takes the same exits as drafts that the last layer judges, so that the
# output stays what it is (07): tokens a second, one output at a time, full depth being 1. The share of tokens
# that is `drafted`, `acceptance` and `tokens a round` are replayed.

# %%
rules = [*group_of, "bandit"]
bench = survey_bench(stored, experiment.profile.name, rules, list(tasks), mean_rank, demand, promise)

# %%
replays = dict(plain)
for task, t in traces.items():
    pruned = {(task, rule): policy_of(rule) for rule in rules if RULES[rule].pruning}
    replays |= replay_policies(t, pruned, calm)
drafted = []
for row in bench.itertuples():
    replayed = replays[row.task, row.rule]
    if row.rule != "bandit":  # which finds its threshold itself
        replayed = replayed.at_threshold(row.threshold)
    drafts = lossless.draft_summary(replayed, max_draft, max_new_tokens)
    drafted.append({"task": row.task, "rule": row.rule, **drafts})

# %%
keys = ["task", "rule"]
bench = bench.merge(pd.DataFrame(drafted), on=keys, how="left").merge(described, on="rule", how="left")
bench = experiment.save_table(bench, "bench")
fixed = verdicts.at_equal_loss(stored, "calm", [demand]).query("rule == 'static'").set_index("task")
for task, rows in bench.groupby("task", sort=False):
    cheapest = [
        f"{figures.label(row.rule)} {row.equal_flops:.0%} ({row.equal_low:.0%} to {row.equal_high:.0%})"
        for row in rows.dropna(subset="equal_flops").nsmallest(1, "equal_flops").itertuples()
    ]
    layer = fixed.flops_share[task]
    spent = f"{(cheapest or ['no rule measured'])[0]} of the FLOPs, a fixed layer "
    spent += "none measured" if pd.isna(layer) else f"{layer:.0%}"
    print(f"{figures.label(task)}, at a loss of {demand:.0%}: {spent}")
if bench.verified_speed.isna().all():
    print("verified speed was not measured for these settings: run make bench")

# %%
at_all_thresholds = [
    "roc_area",
    "equal_flops",
    "guaranteed",
    "verified_speed",
    "acceptance",
    "tokens_a_round",
]
at_one_threshold = ["loss", "flops_share", "mean_exit_layer", "retained"]
columns = [*at_all_thresholds, *at_one_threshold]
of_rules = bench.groupby("rule", sort=False)
over_tasks = of_rules[columns].mean()
over_tasks["equal_flops"] = of_rules.equal_flops.agg(lambda shares: shares.mean(skipna=False))
over_tasks = over_tasks.reset_index()
whole = experiment.save_table(described.merge(over_tasks, on="rule"), "rules")
whole.assign(rule=whole.rule.map(figures.label)).set_index(["rule", "source"]).round(3)

# %%
shown = bench.assign(task=bench.task.map(figures.label), rule=bench.rule.map(figures.label))
columns = [*at_all_thresholds, "threshold", *at_one_threshold]
shown.set_index(keys)[[*columns, "equal_low", "equal_high", "loss_low", "loss_high"]].round(3)

# %% [markdown]
# ## A bandit, or a calibrated threshold?
#
# UCBEE and CeeBERT choose the threshold of the largest probability while they run. An arm is a threshold; it
# earns $c_{\text{exit}} - c_{\text{first}} - \ell / L$, the gain in confidence minus the share of the depth.
# The *regret* of a token is what the best fixed arm earns on average, minus what the bandit earned. Here each
# output plays by itself (a batch gives each row what it gets alone); the papers play one long stream, so that
# is replayed too, in random orders. The calibrated threshold is learn-then-test's (08), on random halves.
# `broken`: in how many of these draws the mean loss of *all* outputs exceeds the demand that was calibrated
# for. All by replay, over all ids. The grey line in the figure is the demand.

# %%
delta = experiment.profile.results.deltas[0]
arms = policy_of("bandit").schedule.arms
draws = []
for task in tasks:
    replayed = plain[task, "surest"]
    losses = survey.output_losses(replayed.trace, calm, tasks[task])
    tried = decisions.candidates(replayed, 25, max_new_tokens)
    table = survey.bandit_or_calibrated(replayed, losses, arms, tried, delta, splits)
    draws.append(table.assign(task=task, model="calm"))
draws = pd.concat(draws, ignore_index=True)
of_all = ["regret", "loss", "mean_exit_layer", "broken"]
keepers = comparison.seed_interval(draws, ["task", "model", "who"], of_all)
experiment.save_table(keepers, "bandit_or_calibrated")[["task", "who", *of_all]]

# %%
looks = {
    "bandit, each output": {"marker": "^", "color": "#de8f05"},
    "bandit, one stream": {"marker": "v", "color": "#d55e00"},
    "calibrated": {"marker": "s", "color": "#0173b2"},
}


def draw(axis, rows):
    always = rows[rows.who.str.startswith("always")]
    axis.plot(always.mean_exit_layer, 100 * always.loss, ".:", color=figures.GREY, label="a fixed arm")
    for who, look in looks.items():
        part = rows[rows.who == who]
        axis.plot(part.mean_exit_layer, 100 * part.loss, linestyle="none", label=who, alpha=0.6, **look)
    axis.axhline(100 * delta, color=figures.GREY, linewidth=0.8)


# %%
look = {"xlabel": "mean exit layer", "ylabel": "consistency loss (%)", "note": traced}
figure = figures.facets(draws, draw, **look, sharex=False, sharey=False)
experiment.save_figure(figure, "bandit", draws)
for who, rows in keepers[keepers.who.isin(looks)].groupby("who", sort=False):
    broken = f"the promise is broken in {rows.broken.mean():.0%} of the draws"
    print(f"{who}: regret {rows.regret.mean():.3f} a token, mean loss {rows.loss.mean():.1%}, {broken}")

# %% [markdown]
# ## How a rule is trained
#
# Two comparisons, means over the layers at which a rule decides. BERxiT's unit and CALM's linear classifier
# are the same unit with another loss: squared error, or cross-entropy in which both classes count alike. The
# foretold state and the ensemble emit tokens of their own. `right` is how often that token is the last
# layer's; beside them stands the layer's own token, which needs no training. *Distilled*: the map of a layer
# learns what the last layer says, all of its distribution, as FastBERT's exits do (Liu et al. 2020), in place of
# the last state. How the *model* is trained is another question: 00 and 01 have BERxiT's alternating training
# beside CALM's.

# %%
losses_of = {
    "linear": "balanced cross-entropy",
    "learning_to_exit": "squared error",
    "surest": "untrained",
    "past_future": "squared error of the state",
    "ztw": "cross-entropy of the token",
}
trained_by = {(task, rule, loss): plain[task, rule] for task in tasks for rule, loss in losses_of.items()}
(distilled,) = trained["calm", "past_future", "distilled"]
for task, t in traces.items():
    policy = ExitPolicy(distilled, threshold=1.0, min_layer=min_layer)
    trained_by[task, "past_future", "distilled"] = replay_policy(t, policy, calm)


# %%
def how_good(replayed, **labels):
    area = decisions.ranking(replayed).roc_area.mean()
    return {**labels, "roc_area": area, "right": replayed.same_token[:, :-1].mean()}


ways = experiment.table(how_good, trained_by, labels=("task", "rule", "trained by"))
ways = experiment.save_table(ways, "trained_how")
ways.assign(rule=ways.rule.map(figures.label)).pivot(
    index=["rule", "trained by"], columns="task", values=["roc_area", "right"]
).round(3)

# %% [markdown]
# ## Overthinking, and fake confidence
#
# Both need the truth: here the references are fed to the decoder, and a token is right if it is the
# reference's. *Overthinking*: right at some layer, wrong at the last. (With twelve layers that is partly luck:
# a token has twelve chances. What counts is what a rule that cannot see the truth gets out of it.) *Fake
# confidence*: sure (a probability above 0.9), and wrong. Bands are 95 % intervals over sequences.

# %%
along = {
    (name, task_name): trace(model, task.inputs, task.targets, max_new_tokens=max_new_tokens)
    for name, model in models.items()
    for task_name, task in tasks.items()
}
thinking = experiment.table(survey.overthinking, along, labels=("model", "task"))
experiment.save_table(thinking, "overthinking")
for row in thinking[thinking.model == "calm"].itertuples():
    span = f"{row.overthought:.1%} ({row.overthought_low:.1%} to {row.overthought_high:.1%})"
    print(f"{figures.label(row.task)}: {span} of the tokens are overthought; {row.right:.1%} end right")

# %%
fake = experiment.table(survey.fake_confidence, along, labels=("model", "task"), sure=sure)


def draw(axis, rows, y):
    band = ("low", "high") if y == "wrong" else None
    figures.lines(axis, rows, "layer", y, "model", band, clip=(0, 1))


# %%
quantities = {"sure": f"share of tokens\nabove {sure:g}", "wrong": "share of these\nthat is wrong"}
figure = figures.facets(fake, draw, quantities=quantities, sharey="row", height=2.4, note=traced)
experiment.save_figure(figure, "fake_confidence", fake)
for row in fake[fake.layer == min_layer].itertuples():
    span = f"{row.wrong:.1%} ({row.low:.1%} to {row.high:.1%}) of them wrong"
    print(
        f"{figures.label(row.model)}, {figures.label(row.task)}, layer {min_layer}: {row.sure:.0%} sure, {span}"
    )

# %% [markdown]
# ## Later in the sentence, at intervals, and in another domain
#
# *Later*: MuE lets its threshold fall, since the decoder makes fewer mistakes as the output gets longer. Errors
# in each third of the outputs: of full depth against the reference, and of the first exit against full depth.

# %%
thirds = []
for task, t in traces.items():
    labels = {"task": task, "model": "calm"}
    reference = along["calm", task]
    wrong = reference.top1_id[:, -1] != reference.token_id
    thirds.append(survey.by_part(wrong, reference, **labels, what="full depth"))
    differs = ~plain[task, "fixed"].same_token[:, 0]
    thirds.append(survey.by_part(differs, t, **labels, what="the first exit"))
thirds = pd.concat(thirds, ignore_index=True).rename(columns={"mean": "wrong", "mean_draws": "wrong_draws"})
thirds = experiment.save_table(thirds, "errors_by_place")
thirds.pivot(index=["what", "task"], columns="part", values="wrong").map("{:.1%}".format)

# %% [markdown]
# *At intervals*: the margin may exit at every layer from the fourth on, or at every second, third or fourth of
# them. The threshold is chosen anew for each, on some outputs, and reported on others. FLOPs and loss by replay.

# %%
losses = {}
losses_chosen = {}
for name, task in tasks.items():
    first = traces[name].first(held[name])
    rest = replays[name, "fixed"].part(held[name], examples).trace
    losses[name] = survey.output_losses(first, calm, task[: held[name]])
    losses_chosen[name] = survey.output_losses(rest, calm, task[held[name] :])


# %%
def at_interval(task, every):
    layers = list(range(min_layer, calm.layers, every))
    policy = replace(policy_of("fixed"), min_layer=None, exit_layers=layers)
    replayed = replay_policy(traces[task], policy, calm)
    choosing = replayed.part(held[task], examples)
    tried = decisions.candidates(choosing, 25, max_new_tokens)
    level = survey.lowest_level(choosing, losses_chosen[task], tried, demand, max_new_tokens)
    reported = replayed.part(0, held[task]).at_threshold(level)
    row = survey.at_loss(reported, losses[task], max_new_tokens)
    return {"task": task, "model": "calm", "every": every, "exits": len(layers), **row}


# %%
spaced = pd.DataFrame([at_interval(task, every) for task in tasks for every in (1, 2, 3, 4)])
spaced = experiment.save_table(spaced, "at_intervals")
spaced.pivot(index="every", columns="task", values=["flops_share", "loss"]).round(3)

# %% [markdown]
# *In another domain*: a threshold that was chosen at home, used on another task, which is a larger shift than the
# survey's (reviews of films, then of other goods), and on other corpora of the same task, where the profile names
# some. The demand was a loss of one in a hundred at home. For the corpora also the confidence itself: of how many
# tokens the first exit is sure, and how many of these the last layer contradicts.

# %%
levels = bench.set_index(keys).threshold
rows = []
for rule, home, away in product(group_of, tasks, tasks):
    replayed = replays[away, rule].part(0, held[away]).at_threshold(levels[home, rule])
    row = survey.at_loss(replayed, losses[away], max_new_tokens)
    where = "at home" if home == away else "away"
    rows.append({"task": away, "model": "calm", "rule": rule, "home": home, "place": where, **row})
moved = []
for task, t in traces.items():
    labels = {"task": task, "model": "calm", "place": "at home"}
    moved.append(survey.fake_confidence(t.first(held[task]), sure, **labels))

# %%
for corpus, task in experiment.away(limit).items():
    states = experiment.scratch(f"{corpus}.npy")
    t = trace(calm, task.inputs, max_new_tokens=max_new_tokens, states=states)
    labels = {"task": task.name, "model": "calm", "place": corpus}
    moved.append(survey.fake_confidence(t, sure, **labels))
    losses_there = survey.output_losses(t, calm, task)
    for rule in group_of:
        replayed = replay_policy(t, policy_of(rule).at_threshold(levels[task.name, rule]), calm)
        row = survey.at_loss(replayed, losses_there, max_new_tokens)
        rows.append({**labels, "rule": rule, "home": task.name, **row})
travelled = experiment.save_table(pd.DataFrame(rows), "another_domain")
worst = travelled.pivot_table(index="rule", columns="place", values="loss", aggfunc="max", sort=False)
for where, column in worst.items():
    print(f"{where}: a loss of up to {column.max():.1%} ({figures.label(column.idxmax())})")
worst.rename(figures.label).map("{:.1%}".format)

# %%
moved = pd.concat(moved, ignore_index=True)
moved = experiment.save_table(moved[moved.layer == min_layer], "confidence_elsewhere")
moved.set_index(["task", "place"])[["sure", "wrong", "low", "high"]].map("{:.1%}".format)

# %% [markdown]
# ## Each statement of the survey beside our number

# %%
measured = {
    "bench": bench,
    "thinking": thinking,
    "fake": fake,
    "thirds": thirds,
    "spaced": spaced,
    "travelled": travelled,
    "moved": moved,
    "keepers": keepers,
    "same": same,
}
tables = {task: {name: table[table.task == task] for name, table in measured.items()} for task in tasks}
judged = claims.judge(
    "06_survey_rules", tables, demand=demand, delta=delta, last=calm.layers, first=min_layer
)
experiment.save_table(judged, "claims")[["claim", "published", "task", "ours", "alone"]]

# %% [markdown]
# ## What this shows, and what it does not
#
# About profile `small`; what is different on real text stands at the end.
#
# *Which ideas survive?* The oldest one, and one of the voters. Margin, largest probability and entropy put tokens
# in the same order, and no published rule ranks them clearly better: not several exits, not a trained unit, not a foretold
# state. The survey's first family is one rule. Read out over a few ids it is also among the cheapest at equal loss
# on summarization and translation. On question answering, where one wrong word spoils an answer, rules that count
# exits are cheaper.
#
# *Several exits.* Vote is patience here: a prediction that was dropped hardly ever comes back. PCEE-BERT's
# code is patience too, token by token; as written it is another rule. ELBERT's window is the entropy rule plus
# MEE's rising top-1. ZTW's ensemble orders tokens almost as one probability does. Where early layers already agree
# with the last one there is nothing to average away, and waiting for one more exit means running one more layer.
# Waiting pays where an early exit is right and harms all the same: it leaves other keys and values behind, which
# later tokens read. No threshold on one probability sees that, however near to one: the surest tokens of question
# answering are right at the first exit, and letting them go there costs answers. The weighted vote sends them
# deeper: it is the cheapest on questions, among the cheapest on summaries, and in the middle on translations.
#
# *Rules on states* cost next to nothing and decide worse. On translation a fixed layer is as good as any of
# them. MuE's threshold falls to nine tenths of a number that is at most one, and consecutive layers are often
# more alike than that, whether the token is right or not: on two of three tasks it cannot be made careful. BERxiT's
# unit has as many weights as CALM's linear classifier, but with its loss, in which classes count by their
# frequency, and with the training that all classifiers get, it hardly ranks the tokens of a layer. Few tokens are
# wrong here; where more are, it may learn more, and a longer training of its own may help it.
#
# *Another token.* The tokens of the foretold state are as often right as the layer's own on translation, where the
# rule is cheap, and less often elsewhere; each layer costs one more matrix product. What it is taught matters more than
# its size: distilled, the same map is right more often than the layer's own token on every task, and ranks tokens
# better than the layer's own probability on summarization and translation (`trained_how`; by replay, one seed, not
# swept). Nothing else here ranks better than the oldest idea. This model was trained so that
# each layer *is* read out; on a model that was not, the map has more to do. A table of tokens decides for nothing,
# and is not far behind on summarization, where leaving at a fixed layer nearly does as well.
#
# *As drafts* that the last layer judges, nearly all exits of nearly all rules are kept. What counts then is how early
# and how cheaply a rule is sure; a threshold that is careful enough to stand alone is too careful for drafts, most
# of all on question answering, and the careless bandit gains most there. 07 plans thresholds for drafts.
#
# *Bandit or calibration?* The bandit does what it was made for: over one stream it earns nearly what the best
# arm does. But its reward is confidence minus depth, and neither is quality. It breaks the calibrated demand on
# the task that needs most care, and is too careful on the one that needs least.
#
# *The survey's statements.* Overthinking is rare in these models, and no rule turns it into a better score.
# Confidence is fake where layers were never trained to be read out (vanilla), and hardly where they were.
# Exits at intervals save nothing once decisions are cheap. At full depth there are too
# few errors to see them fall; the first exit disagrees with it less often at the end of an output than at its
# beginning, on two of three tasks. A threshold from another task often breaks its demand on questions and on
# translations, and never on summaries; at home MuE alone breaks it badly.
#
# *On real text* (profile `real`) the margin still ranks best, and all rules on the probabilities of one layer rank
# well; rules on states and the table of tokens fall further behind. The gains are gone. A list of 64 vocabulary
# entries misses words here, so that rules on pruned probabilities lose more than one in a hundred before they exit at
# all: at that loss they have no number, and no verdict of the ledger rests on one. Of the rules that were measured
# there (printed above) the cheapest takes nearly all of the FLOPs.
# What is taught still matters: distilled, the foretold state is right more often than the layer's own token on every
# task, and ranks tokens a little better than the layer's own probability.
#
# Overthinking is no rarity on summaries and translations, where the model is far from perfect: about one token in
# twenty was right earlier (on questions fewer than one in a hundred). The bandit breaks the promise on every task, the
# calibrated threshold on none. As drafts nearly all exits but MuE's are kept; at thresholds this careful hardly any rule exits
# on summaries, and many do not on translations.
#
# On other corpora (`another_domain`) thresholds from
# home break the demand by far for every rule that keeps a list of ids: it misses a little at home already, and much
# more away. So do similarity on questions, BERxiT's unit on made-up ones and MuE everywhere. The other
# classifiers on states, which hardly exit there, break it by little or not at all. The confidence itself moves less (`confidence_elsewhere`): away from home the
# first exit is sure of about half as many tokens, and the last layer contradicts a few more of them.
#
# **Limits.** Mini models that solve their synthetic tasks almost perfectly; one backbone, trained jointly
# (BERxiT's alternating training is beside it in 00 and 01); one seed of each trained rule, with the training that all
# classifiers get; patience, window and number of ids at one setting. Not built: exits learned by reinforcement
# (ConsistentEE), between machines (SplitEE), by routing inside training (Mixture-of-Depths, Mixture-of-Recursions), by
# rebatching a server's requests (DREX) or sharing keys and values of skipped layers (River-LLM). Large language
# models of today leave less to exits than these (*The diminishing returns of early-exit decoding in modern LLMs*,
# arXiv, 2026).
#
# **Files.** Every figure as PNG (with `MEE_PDF=1` also as PDF) beside the CSV of what was drawn, and a manifest, in
# `figures/<profile>/06_survey_rules`.
# **Next:** [07](07_lossless.ipynb), exits that keep all of the quality.

# %%
experiment.finish()
