# %% [markdown]
# # 07 · Lossless exits: can an exit keep all of the quality and still be faster?
#
# [‹ 06 survey rules](06_survey_rules.ipynb) · [all notebooks](../README.md#the-notebooks) · [08 results ›](08_results.ipynb)
#
# **Question.** MEE asks whether rules over several layers can keep their quality *and* be faster than no exit
# at all. An unverified exit is a trade: some quality for some speed (08). What if every exit were
# verified?
#
# **The idea.** An early exit is a prediction of what the last layer would say. Here it is a *draft*: the token
# waits at its exit layer, and the next token is drafted from it. After a few drafts, or once the rule is not
# confident, all waiting tokens run through the layers that they have not seen, *together*, and the last layer
# verifies them. Drafts are accepted up to the first that the last layer would not have predicted. That one is replaced,
# and what came after it is dropped. So the output is that of full depth, token for token, whatever the rule:
# the rule affects only the speed.
#
# For decoder-only models this exists at batch size 1 (Draft & Verify, Zhang et al. 2024; LayerSkip, Elhoushi et al.
# 2024). FREE's parallel pass does the same computation but does not verify the drafts.
#
# **Where the gain comes from.** A layer that runs on eight waiting tokens at once takes little longer than on
# one, since most of the time goes into reading its weights. Drafting costs the first layers and the
# decisions; a wrong draft costs what was run after it.
#
# **Expectation.** Where training makes early layers agree with the last one (CALM), most drafts are accepted and
# rounds are long; with the vanilla model many drafts are wrong. Answers of one or two tokens should gain little.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 60  # held-out examples of each task
max_new_tokens = 48  # longest output, in tokens
batch_size = 60  # rows decoded at a time
threshold = 0.9  # of every rule
min_layer = 1  # first layer at which a token may be drafted
max_draft = 8  # tokens that wait at most
top_k = 64  # vocabulary entries that a pruned rule scores
shown = 1  # the output that is drawn

# %% tags=["hide-input"]
from dataclasses import replace

import pandas as pd

from mee_utils import generate
from mee_utils.analysis import lossless
from mee_utils.companion import Experiment, drawings, result_tables
from mee_utils.companion.catalogue import RULES
from mee_utils.companion.chapters import lossless as chapter
from mee_utils.companion.prose import conclude
from mee_utils.traces.replay import replay_policy

# %% tags=["hide-input"]
experiment = Experiment.of_notebook("07_lossless", globals())
settings = experiment.parameters
note = experiment.note(limit)
tasks = experiment.tasks(limit)
layers = experiment.layers
names = [name for name in ("calm", "vanilla") if name in experiment.backbones]
models = {(name, task): experiment.model(name, task) for name in names for task in tasks}
trained = experiment.classifiers({name: models[name, next(iter(tasks))] for name in names}, seeds=[0])
rules = ["fixed", "hidden_similarity", "rising_top1", "linear", "three_hidden", "lstm"]


# %% tags=["hide-input"]
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
# ## A round
#
# Three tokens, four layers, a rule that decides at layers 1 and 2. The rule is confident of the second token only after
# layer 2, which is therefore run for the first token too. Layers that were run before are not run again.

# %%
experiment.save_drawing(drawings.round_drawing(), "a_round")

# %% [markdown]
# ## Is it faster?
#
# `max_draft="auto"` (the default) chooses rule, decision layers, threshold and draft length by replay. The most
# promising settings are then timed on a few inputs, and the fastest once more on others; where it does not win there,
# all layers are run. A trial can still mislead, which shows as a speed below 1. Points are the speeds that `make
# bench` measured, whiskers their range over timing runs. FREE and late-weighted, where drawn, are other models trained
# for exits (00).

# %% tags=["hide-input"]
wanted = pd.DataFrame([{"task": task, "model": name} for name in experiment.backbones for task in tasks])
timed = result_tables.read_timings("lossless", wanted, experiment.profile.name)
range_of_runs = experiment.note(intervals="whiskers: range over timing runs")

# %%
if len(timed):
    figure = chapter.speed_figure(timed, range_of_runs)
    experiment.save_figure(figure, "speed", timed)
conclude(
    chapter.speed_conclusion(timed) or f"Not timed yet: run {result_tables.bench_command(profile)}.",
    chapter.planning_conclusion(timed),
)

# %% tags=["hide-input"]
simulated = result_tables.fastest_by_shape().rename(columns={"speed": "simulated_speed"})
simulated = simulated[(simulated.batch == 1) & (simulated.profile == experiment.profile.name)]
conclude(chapter.SIMULATION if len(simulated) else "")

# %%
if len(simulated):
    figure = chapter.shape_figure(simulated, list(tasks), range_of_runs)
    experiment.save_figure(figure, "speed_by_shape", simulated)
conclude(chapter.shape_conclusion(simulated))

# %% [markdown]
# ## Is it lossless?
#
# Every task is decoded in batches with every rule and verification, and the outputs are compared with those of full
# depth, token by token. The table also shows the same rule at the same threshold unverified: the score it keeps and its
# FLOPs. Scores and FLOPs are shares of full depth's.

# %% tags=["hide-input"]
compared = []
for (name, task), model in models.items():
    decoding = {"max_new_tokens": max_new_tokens, "batch_size": batch_size}
    table = lossless.verified_and_not(model, tasks[task], policies_of(name), max_draft, **decoding)
    compared.append(table.assign(model=name, task=task))
keys = ["model", "task", "rule"]
decoded = pd.concat(compared).set_index(keys).reset_index()
decoded = experiment.save_table(decoded, "decoded")

# %%
conclude(chapter.decoded_conclusion(decoded, limit))
chapter.decoded_shown(decoded)

# %% [markdown]
# ## Which drafts are accepted?
#
# From the traces (a replay of verified exits is exact): the layer at which a rule drafts, on average, and the share of
# its drafts that the last layer accepts. The best place is the upper left corner: early and right. Not every classifier
# was trained on the vanilla model.


# %% tags=["hide-input"]
def drafts_of(replayed, **labels):
    return {**labels, **lossless.draft_summary(replayed, max_draft, max_new_tokens)}


replays = {
    (name, task, rule): replay_policy(experiment.trace(name, task, limit, max_new_tokens), policy, model)
    for (name, task), model in models.items()
    for rule, policy in policies_of(name).items()
}
by_layer = experiment.table(lossless.acceptance, replays, keys, max_new_tokens=max_new_tokens)
by_round = experiment.save_table(experiment.table(drafts_of, replays, keys), "rounds")
drafts = chapter.drafts_of_rules(by_layer, by_round)

# %%
figure = chapter.drafts_figure(drafts, note)
experiment.save_figure(figure, "acceptance_by_layer", by_layer)
conclude(chapter.drafts_conclusion(drafts))

# %% [markdown]
# ## One sentence, as it is decoded
#
# Each line is a round, each box a token that was run in it; after a round the last layer verifies what waits. A box
# shows the word that the output has at that position in the end, not the draft, so a word that is dropped in one round
# reappears in the next; "-" lies beyond the end of the output. The rule is the margin with fixed pruning (03).

# %% tags=["hide-input"]
last_task = list(tasks)[-1]
sentence = tasks[last_task].inputs[shown : shown + 1]
if not tasks[last_task].spans:  # no text of a real corpus is shown
    sentence = ["translate English to French: A little girl in a red dress is playing on the beach."]
runs = []
for name in names:
    model = models[name, last_task]
    output = generate(model, sentence, policies_of(name)["fixed"], max_new_tokens=max_new_tokens)
    runs.append(lossless.one_output(output, 0, layers, model.tokenizer.decode).assign(model=name))
runs = pd.concat(runs, ignore_index=True)

# %%
figure = chapter.sentence_figure(runs, experiment.note())
experiment.save_figure(figure, "one_sentence", runs)
conclude(chapter.sentence_conclusion(runs))

# %% [markdown]
# ## What this shows

# %% tags=["hide-input"]
conclude(chapter.summary(timed, drafts))

# %% [markdown]
# **Next:** [08](08_results.ipynb): the answer.

# %% tags=["hide-input"]
experiment.finish()
