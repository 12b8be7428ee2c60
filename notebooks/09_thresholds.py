# %% [markdown]
# # 09 · Thresholds: who sets them, and do they hold elsewhere?
#
# [‹ 08 results](08_results.ipynb) · [all notebooks](../README.md#the-notebooks) · [10 confidence ›](10_confidence.ipynb)
#
# **Question.** Can a bandit find the threshold while it runs, or does it take a calibration set? Is it enough to let
# tokens exit at a few layers? Does a threshold chosen in-domain hold in another domain, and later in the
# sentence?
#
# **What the survey says** (Bajpai and Hanawal 2025). Bandits find the threshold while running (UCBEE, CeeBERT);
# exits at intervals suffice; confidences move with the domain; the decoder makes fewer mistakes as the output gets
# longer, so that a threshold may fall (MuE).
#
# **What we do.** Everything is replayed on one frozen model: the threshold is chosen on some outputs, and its loss is
# reported on others. Rules that read probabilities score few entries before the last layer and all at it, as in
# [06](06_survey_rules.ipynb).
#
# **Expectation.** A bandit maximises its reward, which is not quality; and a threshold is valid only for inputs
# like those on which it was chosen.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 150  # held-out examples of each task on which results are reported
choosing = 150  # further ones on which thresholds are chosen
max_new_tokens = 48  # longest output, in tokens
min_layer = 4  # first layer at which a token may exit
top_k = 64  # vocabulary entries that rules on probabilities score before the last layer
demand = 0.01  # mean consistency loss for which thresholds are chosen
sure = 0.9  # a probability above which a layer counts as confident
splits = 50  # random halves, or orders, that test a guarantee

# %% tags=["hide-input"]
from dataclasses import replace
from itertools import product

import pandas as pd

from mee_utils import trace
from mee_utils.analysis import comparison, survey, threshold_choice
from mee_utils.companion import Experiment, claims, verdicts
from mee_utils.companion.catalogue import IDEAS, MAIN_MODEL, RULES
from mee_utils.companion.chapters import thresholds as chapter
from mee_utils.companion.prose import conclude
from mee_utils.companion.result_tables import inputs_of, read_measured
from mee_utils.traces.replay import replay_policies, replay_policy

# %% tags=["hide-input"]
experiment = Experiment.of_notebook("09_thresholds", globals())
settings = experiment.parameters
examples = limit + choosing
tasks = experiment.tasks(examples)
calm = experiment.models(["calm"])["calm"]
trained = experiment.classifiers({"calm": calm}, seeds=[0], survey=True)
classifiers = {rule: one for (_, rule, target), (one,) in trained.items() if target == "consistency"}
traces = {task: experiment.trace("calm", task, examples, max_new_tokens) for task in tasks}
# outputs of each task on which losses are reported; the rest is for choosing
held = {name: min(limit, len(task) // 2) for name, task in tasks.items()}


def policy_of(rule):
    """A rule at no threshold in particular; if it reads probabilities, over few entries and a whole last layer."""
    return RULES[rule].policy(1.0, settings, classifiers)


# %% [markdown]
# ## A bandit, or a calibrated threshold?
#
# UCBEE and CeeBERT choose the threshold of the largest probability while they run. An arm is a threshold; it
# earns $c_{\text{exit}} - c_{\text{first}} - l / L$: the gain in confidence over the first exit, minus the exit layer $l$
# as a share of the depth $L$. The *regret* of a token is what the best fixed arm earns on average, minus what the
# bandit earned. Here the bandit restarts for each output (so that batching changes nothing); the papers play one long
# stream, so that is replayed too, in random orders. The calibrated threshold is that of Learn then Test (08), on random
# halves of the outputs. Here every layer scores all entries. Boxes are over orders and halves (a fixed arm, and a bandit
# for each output, have one value); each order or half is a *draw*, circles are outlying ones, and the line is the
# target loss of the calibration. In the table, *always* means a fixed arm.

# %% tags=["hide-input"]
delta = experiment.profile.results.deltas[0]
arms = policy_of("bandit").schedule.arms
draws = []
for task, t in traces.items():
    replayed = replay_policy(t, policy_of("surest").over_all_entries(), calm)
    losses = survey.output_losses(t, calm, tasks[task])
    tried = threshold_choice.candidates(replayed, 25, max_new_tokens)
    table = survey.bandit_or_calibrated(replayed, losses, arms, tried, delta, splits)
    draws.append(table.assign(task=task, model="calm"))
draws = pd.concat(draws, ignore_index=True)
of_all = ["regret", "loss", "mean_exit_layer", "broken"]
keepers = comparison.seed_interval(draws, ["task", "model", "who"], of_all)

# %%
figure = chapter.bandit_figure(draws, delta, experiment.note(examples))
experiment.save_figure(figure, "bandit", draws)
conclude(chapter.bandit_conclusion(keepers, delta))

# %% tags=["hide-input"]
chapter.bandit_shown(experiment.save_table(keepers, "bandit_or_calibrated"))

# %% [markdown]
# ## Exits at intervals
#
# With the margin over few entries, tokens may exit at every layer from `min_layer` on, or at every second, third or
# fourth of them. The threshold is chosen again for each on some outputs, and its loss is reported on others.

# %% tags=["hide-input"]
replays = {}
for task, t in traces.items():
    replays.update(replay_policies(t, {(task, rule): policy_of(rule) for rule in IDEAS}, calm))
losses = {}
losses_chosen = {}
for name, task in tasks.items():
    reported = replays[name, "few"].part(0, held[name]).trace
    rest = replays[name, "few"].part(held[name], examples).trace
    losses[name] = survey.output_losses(reported, calm, task[: held[name]])
    losses_chosen[name] = survey.output_losses(rest, calm, task[held[name] :])


# %% tags=["hide-input"]
def at_interval(task, every):
    layers = list(range(min_layer, calm.layers, every))
    policy = replace(policy_of("few"), min_layer=None, exit_layers=layers)
    replayed = replay_policy(traces[task], policy, calm)
    choosing = replayed.part(held[task], examples)
    tried = threshold_choice.candidates(choosing, 25, max_new_tokens)
    level = survey.lowest_level(choosing, losses_chosen[task], tried, demand, max_new_tokens)
    reported = replayed.part(0, held[task]).at_threshold(level)
    row = survey.at_loss(reported, losses[task], max_new_tokens)
    return {"task": task, "model": "calm", "every": every, "exits": len(layers), **row}


# %%
spaced = pd.DataFrame([at_interval(task, every) for task in tasks for every in (1, 2, 3, 4)])
spaced = experiment.save_table(spaced, "at_intervals")
conclude(chapter.intervals_conclusion(spaced, demand, calm.layers))
chapter.spaced_shown(spaced)

# %% [markdown]
# ## In another domain
#
# A threshold chosen in-domain, for the mean consistency loss that the dashed line marks, is used on another task (a
# larger shift than the survey's, from film to product reviews) and, where the profile names some, on other corpora of
# the same task.

# %% tags=["hide-input"]
stored = read_measured(profile, MAIN_MODEL)
experiment.run.inputs["results measured"] = inputs_of(experiment.profile.name)["results measured"]
levels = verdicts.within_loss(stored, MAIN_MODEL, demand).set_index(["task", "rule"]).threshold
rows = []
for rule, home, away in product(IDEAS, tasks, tasks):
    replayed = replays[away, rule].part(0, held[away]).at_threshold(levels[home, rule])
    row = survey.at_loss(replayed, losses[away], max_new_tokens)
    where = "at home" if home == away else "away"
    rows.append({"task": away, "model": "calm", "rule": rule, "home": home, "place": where, **row})
moved = []
for task, t in traces.items():
    labels = {"task": task, "model": "calm", "place": "at home"}
    moved.append(survey.fake_confidence(t.first(held[task]), sure, **labels))

# %% tags=["hide-input"]
for corpus, task in experiment.away(limit).items():
    states = experiment.scratch(f"{corpus}.npy")
    t = trace(calm, task.inputs, max_new_tokens=max_new_tokens, states=states)
    labels = {"task": task.name, "model": "calm", "place": corpus}
    moved.append(survey.fake_confidence(t, sure, **labels))
    losses_there = survey.output_losses(t, calm, task)
    for rule in IDEAS:
        replayed = replay_policy(t, policy_of(rule).at_threshold(levels[task.name, rule]), calm)
        row = survey.at_loss(replayed, losses_there, max_new_tokens)
        rows.append({**labels, "rule": rule, "home": task.name, **row})
travelled = pd.DataFrame(rows)

# %%
figure = chapter.away_figure(travelled, demand, calm.layers, experiment.note(limit))
experiment.save_figure(figure, "another_domain", travelled)
conclude(chapter.away_conclusion(travelled, demand, calm.layers))

# %% [markdown]
# The confidence itself: of how many tokens is the first exit confident (a largest probability above `sure`), and how many
# of these does the last layer contradict?

# %% tags=["hide-input"]
moved = pd.concat(moved, ignore_index=True)
moved = experiment.save_table(moved[moved.layer == min_layer], "confidence_elsewhere")
conclude(chapter.confidence_conclusion(moved))
chapter.moved_shown(moved)

# %% [markdown]
# ## Later in the sentence
#
# MuE lets its threshold fall, on the grounds that the decoder makes fewer mistakes as the output gets longer. Errors in
# each third of the outputs: of full depth against the reference, and of the first exit against full depth.

# %% tags=["hide-input"]
thirds = []
for task, t in traces.items():
    labels = {"task": task, "model": "calm"}
    reference = trace(calm, tasks[task].inputs, tasks[task].targets, max_new_tokens=max_new_tokens)
    wrong = reference.top1_id[:, -1] != reference.token_id
    thirds.append(survey.by_part(wrong, reference, **labels, what="full depth"))
    differs = t.top1_id[:, min_layer - 1] != t.final_id
    thirds.append(survey.by_part(differs, t, **labels, what="the first exit"))
thirds = pd.concat(thirds, ignore_index=True).rename(columns={"mean": "wrong", "mean_draws": "wrong_draws"})
thirds = experiment.save_table(thirds, "errors_by_place")
conclude(chapter.later_conclusion(thirds))
chapter.thirds_shown(thirds)

# %% [markdown]
# ## What this shows, and what it does not

# %% tags=["hide-input"]
conclude(
    f"{chapter.bandit_message(draws, delta)}.",
    chapter.intervals_message(spaced, calm.layers),
    f"{chapter.away_message(travelled, demand)}.",
    chapter.later_message(thirds),
)

# %% [markdown]
# A replay does not see what exits change in later tokens. A guarantee (08) is about inputs like the calibration inputs:
# it says nothing of another domain.
#
# ## Published claims and our measurements
#
# *Published* is the number, or how the survey makes the statement. A verdict here is that of one task alone, before 08
# corrects for the number of tests.

# %% tags=["hide-input"]
measured = {"thirds": thirds, "spaced": spaced, "travelled": travelled, "moved": moved, "keepers": keepers}
tables = {task: {name: table[table.task == task] for name, table in measured.items()} for task in tasks}
judged = claims.judge("09_thresholds", tables, demand=demand, delta=delta, layers=calm.layers)
claims.show_judged(experiment.save_table(judged, "claims"))

# %% [markdown]
# **Next:** [10](10_confidence.ipynb), layers that are confidently wrong.

# %% tags=["hide-input"]
experiment.finish()
