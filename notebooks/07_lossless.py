# %% [markdown]
# # 07 · Lossless exits: can an exit keep all of the quality and still be faster?
#
# [‹ 06 survey rules](06_survey_rules.ipynb) · [all notebooks](../README.md#the-notebooks) · [08 results ›](08_results.ipynb)
#
# **Question.** MEE asks whether rules over several layers can keep their quality *and* be faster than no exit
# at all. An exit that nobody checks is a trade: some quality for some speed (08). What if every exit were
# checked?
#
# **The idea.** An early exit is a guess at what the last layer would say. Here it is a *draft*: the token
# waits at its exit layer, and the next token is drafted from it. After a few drafts, or once the rule is not
# sure, all waiting tokens run through the layers that they have not seen, *together*, and the last layer
# judges them. Drafts are kept up to the first that the last layer would not have said. That one is replaced,
# and what came after it is dropped. So the output is that of full depth, token for token, whatever the rule.
# The rule decides the speed alone.
#
# Decoder-only models have this at batch 1 (Draft & Verify, Zhang et al. 2024; LayerSkip, Elhoushi et al.
# 2024). FREE's parallel pass is the same work without the judgement.
#
# **Where the gain comes from.** A layer that runs on eight waiting tokens at once takes little longer than on
# one, since most of the time goes into reading its weights. Drafting costs the first layers and the
# decisions; a wrong draft costs what was run after it.
#
# **Expectation.** Where training makes early layers agree with the last one (CALM), most drafts are kept and
# rounds are long; with the vanilla model many drafts are wrong. Answers of one or two tokens cannot gain.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 60  # held-out examples of each task
max_new_tokens = 48  # longest output, in tokens
batch_size = 60  # rows decoded at a time
threshold = 0.9  # of every rule
min_layer = 1  # first layer at which a token may be drafted
max_draft = 8  # tokens that wait at most
top_k = 64  # ids that a pruned rule reads out
shown = 1  # the output that is drawn

# %%
from dataclasses import replace

import pandas as pd

from mee_utils import Experiment, generate
from mee_utils.analysis import lossless
from mee_utils.paper.numbers import save_numbers
from mee_utils.study import figures, result_tables
from mee_utils.study.catalogue import RULES
from mee_utils.traces.replay import replay_policy

# %%
experiment = Experiment.of_notebook("07_lossless", globals())
settings = experiment.parameters
note = f"profile {profile}, n = {limit} examples a task"
tasks = experiment.tasks(limit)
layers = experiment.layers
models = experiment.models([name for name in ("calm", "vanilla") if name in experiment.backbones])
trained = experiment.classifiers(models, seeds=[0])
main = next(iter(models))
rules = ["fixed", "hidden_similarity", "rising_top1", "linear", "three_hidden", "lstm"]


# %%
def policies_of(model):
    """The rules that there are for a model, at the threshold of this notebook, their exits verified."""
    classifiers = {
        rule: classifier
        for (trained_for, rule, target), (classifier,) in trained.items()
        if (trained_for, target) == (model, "consistency")
    }
    policies = {}
    for name in rules:
        rule = RULES[name]
        if name in classifiers or not rule.classifier:
            policy = rule.policy(threshold, settings, classifiers)
            policies[name] = replace(policy, propagation="verify", max_draft=max_draft)
    return policies


# %% [markdown]
# ## One sentence, as it is decoded
#
# Every bar is a token that was run, in order; its height is the layer at which it was drafted. Gaps separate
# rounds: after each the last layer judges what waits. The label is the token that stands there in the end, so
# that a token that was dropped stands there again in the next round; where more than forty were run, what was
# dropped has no label. **How to read it:** green is what verification keeps. A bar of full height is a token of which the rule
# (here CALM's hidden similarity) was not sure.

# %%
last_task = list(tasks)[-1]
sentence = tasks[last_task].inputs[shown : shown + 1]
runs = []
for name, model in models.items():
    policy = policies_of(name)["hidden_similarity"]
    output = generate(model, sentence, policy, max_new_tokens=max_new_tokens)
    run = lossless.one_output(output, 0, layers, model.tokenizer.decode).assign(model=name)
    runs.append(run.assign(place=run.index + 0.7 * run["round"]))
    counts = ", ".join(f"{count} {fate}" for fate, count in run.fate.value_counts().items())
    rounds = f"{len(output.token_ids[0])} tokens in {run['round'].max()} rounds"
    print(f"{name}: {rounds}; of {len(run)} that were run, {counts}")
runs = pd.concat(runs, ignore_index=True)


# %%
def draw(axis, rows):
    for fate, colour in figures.FATES.items():
        part = rows[rows.fate == fate]
        axis.bar(part.place, part.layer, color=colour, label=fate if len(part) else None)
    named = rows if len(rows) <= 40 else rows[rows.fate != "dropped"]
    axis.set_xticks(named.place, named.token, rotation=60, ha="right", fontsize=9)
    axis.set_yticks(range(0, layers + 1, layers // 3))
    axis.grid(axis="x", visible=False)


look = {"ylabel": "layer of the draft", "width": 9.5, "height": 2.6, "note": f"profile {profile}"}
figure = figures.facets(runs, draw, "model", per_line=1, sharex=False, **look)
experiment.save_figure(figure, "one_sentence", runs)

# %% [markdown]
# ## Lossless: is it so?
#
# Every rule decodes every task with verification, in batches, and its outputs are compared with those of full
# depth, token by token. `acceptance` is the share of judged drafts that the last layer kept. Beside it stands
# the same rule at the same threshold unverified: what it keeps of the score, and its FLOPs.

# %%
compared = []
for name, model in models.items():
    for task_name, task in tasks.items():
        decoding = {"max_new_tokens": max_new_tokens, "batch_size": batch_size}
        table = lossless.verified_and_not(model, task, policies_of(name), max_draft, **decoding)
        compared.append(table.assign(model=name, task=task_name))
keys = ["model", "task", "rule"]
decoded = pd.concat(compared).set_index(keys).reset_index()
decoded = experiment.save_table(decoded, "decoded")
differing = f"{decoded.other_outputs.sum()} of {len(decoded) * limit} outputs differ from full depth"
kept = f"{decoded.kept_unverified.min():.0%} and {decoded.kept_unverified.max():.0%} of the score"
print(f"{differing}; unverified, rules keep between {kept}")
decoded.assign(rule=decoded.rule.map(figures.label)).set_index(keys).round(3)

# %% [markdown]
# ## Which drafts are kept?
#
# From the traces (replay of verified exits is exact): where drafts are made, and the share of them that the
# last layer confirms, where at least a fiftieth of the tokens is drafted; bands are 95 % intervals over
# sequences. **How to read it:** a rule whose line is
# high on the left above, and near one below, drafts early and rightly.

# %%
replays = {
    (name, task, rule): replay_policy(experiment.trace(name, task, limit, max_new_tokens), policy, model)
    for name, model in models.items()
    for task in tasks
    for rule, policy in policies_of(name).items()
}
by_layer = experiment.table(lossless.acceptance, replays, keys, max_new_tokens=max_new_tokens)


def draw(axis, rows, y):
    if y == "kept":
        enough = rows[rows.drafted >= 0.02]  # a handful of drafts shows nothing
        figures.lines(axis, enough, "layer", y, band=figures.BAND)
    else:
        figures.lines(axis, rows, "layer", y)


# %%
quantities = {"drafted": "share of tokens\ndrafted here", "kept": "share of these\nthat is kept"}
shown_rows = by_layer[by_layer.model == main]
figure = figures.facets(shown_rows, draw, quantities=quantities, sharey="row", note=note)
experiment.save_figure(figure, "acceptance_by_layer", by_layer)


# %%
def drafts_of(replayed, **labels):
    return {**labels, **lossless.draft_summary(replayed, max_draft, max_new_tokens)}


by_round = experiment.save_table(experiment.table(drafts_of, replays, keys), "rounds")
for (name, task), part in by_round.groupby(["model", "task"], sort=False):
    best = part.loc[part.tokens_a_round.idxmax()]
    print(
        f"{name}, {figures.label(task)}: longest rounds with {figures.label(best.rule)}, "
        f"{best.tokens_a_round:.1f} tokens, {best.acceptance:.0%} of drafts kept"
    )
shown_rules = by_round.assign(rule=by_round.rule.map(figures.label))
shown_rules.pivot(index=["model", "rule"], columns="task", values=["drafted", "acceptance"]).round(2)

# %% [markdown]
# ## Is it faster?
#
# `max_draft="auto"` (the default) chooses rule, decision layers, threshold and draft length by replay. The most
# promising settings are then timed on a few inputs, and the fastest once more on others; where it does not win
# there, all layers are run. Bars are the speeds that `make bench` measured, whiskers its range over rounds.
# Where nothing is drafted (the list below says where) the speed is that of full depth.

# %%
wanted = pd.DataFrame([{"task": task, "model": name} for name in experiment.backbones for task in tasks])
timed = result_tables.read_timings("lossless", wanted, experiment.profile.name)
timed = timed.assign(low=timed.lowest, high=timed.highest, rows="batch " + timed.batch.astype(str))


def draw(axis, rows):
    figures.grouped_bars(axis, rows, "model", "speed", by="rows")
    axis.axhline(1.0, color=figures.GREY, linewidth=0.8)


if len(timed):
    figure = figures.facets(timed, draw, ylabel="tokens a second (1 = full depth)", note=f"profile {profile}")
    experiment.save_figure(figure, "speed", timed.drop(columns=["low", "high", "rows"]))
else:
    print(f"not timed yet: run {result_tables.bench_command(profile)}")

# %%
for (name, batch), part in timed.groupby(["model", "batch"], sort=False):
    speeds = ", ".join(
        f"{figures.label(row.task)} {row.speed:.2f}" + ("" if isinstance(row.rule, str) else " (no drafts)")
        for row in part.itertuples()
    )
    print(f"{figures.label(name)}, batch {batch}: {speeds}")

# %% [markdown]
# ## What would it be at the size of T5-base and T5-large? A simulation
#
# At this size a good part of a decision is Python. `make bench` lets decoders of T5's sizes with random
# weights play what the CALM model did here: tokens exit at the same relative depth, the same drafts are
# right and wrong, every decision is computed. *Verified* is planned for each size anew. *Unverified*: of the
# rules that keep 99 % of the score (08), the cheapest of each family, and of these the fastest that looks at
# several layers, and at one. *mini* has the sizes of the profile's own models. The encoder, which no exit makes
# faster, counts for less here than in short answers to long questions. Acceptance at T5's sizes may differ: this
# says what such exits would cost there, not that models of that size have them. The figure is of this profile;
# the list has real text first.

# %%
simulated = result_tables.fastest_by_shape().rename(columns={"speed": "simulated_speed"})
simulated = simulated[simulated.batch == 1]
of_profile = simulated[simulated.profile == experiment.profile.name]


def draw(axis, rows):
    figures.grouped_bars(axis, rows, "shape", "simulated_speed", by="kind")
    axis.axhline(1.0, color=figures.GREY, linewidth=0.8)


# %%
if len(of_profile):
    look = {"ylabel": "simulated tokens a second,\nbatch 1 (1 = full depth)", "note": f"profile {profile}"}
    figure = figures.facets(of_profile, draw, values=list(tasks), width=3.8, **look)
    experiment.save_figure(figure, "speed_by_shape", of_profile)
for name in dict.fromkeys(["real", "small", experiment.profile.name]):
    by_shape = simulated[simulated.profile == name].groupby("shape", sort=False)
    for shape, rows in by_shape:
        best = rows.loc[rows.groupby("kind", sort=False).simulated_speed.idxmax()].itertuples()
        speeds = [f"{row.kind} {row.simulated_speed:.2f} ({figures.label(row.task)})" for row in best]
        print(f"profile {name}, {shape}, simulated, fastest of all tasks: {'; '.join(speeds)}")
    if not len(by_shape):
        print(f"profile {name}: not simulated yet, run {result_tables.bench_command(name)}")

# %% [markdown]
# ## What this shows, and what it does not
#
# Verified, an exit costs no quality, for any rule and any threshold. What is left of the question is speed,
# and it depends on the model: where the early layers already say what the last one will (CALM), most drafts
# are kept. There a rule over several layers has little advantage: what counts is how early it is sure, and how
# much that costs. On the vanilla model nearly all drafts of a classifier on three layers are kept, and of the pruned
# margin's far fewer (table above; on real text hardly any). Outputs of one or two tokens cannot gain, since nothing waits; and where the last layer
# disagrees often, drafts are thrown away. Operations are not saved, they grow (every token still goes through
# every layer, and drafts come on top): the gain is that layers run on several tokens at once, so it exists where weights are read from
# memory token by token, in small batches most of all.
#
# *On real text* (profile `real`) words settle later, and a readout takes as long as several of these narrow layers. One
# output at a time CALM's drafts gain a fifth to a quarter on questions and translations, and a tenth on summaries. In
# batches the plan mostly leaves them out, and so loses nothing.

# %%
save_numbers(experiment.run)
experiment.finish()
