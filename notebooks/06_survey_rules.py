# %% [markdown]
# # 06 · Survey rules: which ideas survive in generation?
#
# [‹ 05 MEE classifiers](05_mee_classifiers.ipynb) · [all notebooks](../README.md#the-notebooks) · [07 lossless ›](07_lossless.ipynb)
#
# **Question.** The survey of Bajpai and Hanawal (2025) lists a dozen exit rules. Most were made for classifiers with a
# few classes, and each was tested on its own model. Which of them work in *generation*, where a decision is made for
# every token and the vocabulary is large? Which are the same rule under two names?
#
# **What the survey says.** Several exits together are more reliable than one; a network that learns when to exit
# beats a confidence threshold; a table of tokens suffices. For what it says about thresholds see
# [09](09_thresholds.ipynb), about confidence [10](10_confidence.ipynb).
#
# **What we do.** All rules are evaluated on the same frozen model, and compared at the same loss, never at the same
# threshold. Losses and costs come from real decoding: thresholds are chosen on validation examples, and results are
# reported on test examples (`make measure`). How well a rule ranks tokens, and which rules are the same, is computed
# from traces.
#
# **Expectation.** Rules on several exits gain nothing where training makes early layers agree with the last
# one. What a decision costs matters more than how it is made.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 150  # held-out examples of each task on which results are reported
choosing = 150  # further ones that are traced
max_new_tokens = 48  # longest output, in tokens
min_layer = 4  # first layer at which a token may exit
top_k = 64  # vocabulary entries that rules on probabilities score before the last layer
demand = 0.01  # mean consistency loss at which rules are compared
guaranteed = 0.05  # mean consistency loss that is guaranteed
max_draft = 8  # tokens that wait at most, where exits are drafts
sure = 0.9  # a threshold for rules that are compared token by token
layer = 6  # where the rules' confidences are compared

# %% tags=["hide-input"]
from dataclasses import replace

import numpy as np
import pandas as pd
from IPython.display import display

from mee_utils.analysis import decisions, lossless, statistics, survey
from mee_utils.companion import Experiment, claims, figures, verdicts
from mee_utils.companion.catalogue import IDEAS, MAIN_MODEL, RULES
from mee_utils.companion.chapters import survey as chapter
from mee_utils.companion.prose import conclude
from mee_utils.companion.result_tables import inputs_of, read_measured
from mee_utils.companion.statements import BUGS
from mee_utils.companion.survey_bench import survey_bench
from mee_utils.models.costs import SHAPES
from mee_utils.traces.replay import replay_policies, replay_policy

# %% tags=["hide-input"]
experiment = Experiment.of_notebook("06_survey_rules", globals())
settings = experiment.parameters
examples = limit + choosing
traced = experiment.note(examples)
tasks = experiment.tasks(examples)
calm = experiment.models(["calm"])["calm"]
trained = experiment.classifiers({"calm": calm}, seeds=[0], survey=True)
classifiers = {rule: one for (_, rule, target), (one,) in trained.items() if target == "consistency"}
traces = {task: experiment.trace("calm", task, examples, max_new_tokens) for task in tasks}


def policy_of(rule, pruned=True):
    """A rule at no threshold in particular; if it reads probabilities, over few entries or over all."""
    policy = RULES[rule].policy(1.0, settings, classifiers)
    return policy if pruned else policy.over_all_entries()


# %% [markdown]
# ## The rules
#
# $p_l$ is the distribution that the shared LM head predicts at layer $l$, $H$ its entropy, $y_l$ its best token
# and $h_l$ the state. In this chapter an *exit* is a layer at which a token may exit. It does so at the first exit at
# which ...
#
# | idea | rule | ... this exceeds the threshold |
# |---|---|---|
# | one layer's probabilities | max probability (CeeBERT) | $\max p_l$ |
# | | entropy (DeeBERT) | $e^{-H(p_l)}$ |
# | several exits | patience (PABEE) | how many exits in a row predicted $y_l$ |
# | | vote, weighted vote (Sun et al.) | how many exits predicted $y_l$, in a row or not; the sum of their probabilities |
# | | patient entropy (PCEE-BERT) | the smaller $e^{-H}$ of the last two exits |
# | | window (ELBERT) | $e^{-H(p_l)}$, or 1 where $\max p$ rose over three exits to above 0.9 |
# | states | falling similarity (MuE) | $\cos(h_l, h_{l-1})$, against a threshold that falls with the position |
# | | learning to exit (BERxiT) | $\sigma(w \cdot h_l + b)$, squared error to "this token is right" |
# | | Q-exit (PALBERT) | $1 - \prod_{i \le l} (1 - \lambda_i)$, where $\lambda_i = \sigma(w \cdot h_i + b)$ |
# | a trained prediction, or a table | ensemble (ZTW) | $\max q_l$ with $\log q_l = \sum_{i \le l} w_i \log p_i + b$ |
# | | predicted state (PF-BERxiT) | $\max p$ of $A_l h_l + b_l$, which predicts the last state |
# | | token lookup table (HashEE) | of the training tokens that follow the *last* token, the share that had settled by layer $l$ |
# | threshold | bandit (UCBEE, CeeBERT) | $\max p_l$, the threshold being the arm that has paid best so far |
#
# Rules of the other papers are compared too: softmax margin and similarity (CALM), rising top-1 (MEE), a linear
# classifier (CALM) and one of low rank on three layers (ours).
#
# All rules that read probabilities score the same entries, since otherwise the cost of the LM head would decide the
# comparison: all entries at the first exit, only the `top_k` best of these at later exits (*fixed pruning*, 03), and all
# entries again at the last layer. So a token that never exits is the one of full depth. This is the faithful reading of
# these rules: their public code was written for classifiers with a few labels, which have nothing to prune. For the same
# reason the margin here is *over few entries (ours)*; the published one, which prunes the last layer too, is in 03.
#
# The table has what each rule looks at and what a decision costs. `readouts` and `layers`: how often logits are
# computed, and how many layers are looked at, for one decision. The last columns are the counted FLOPs of a decision as
# a share of one layer, with `top_k` entries scored. `bug` names a mistake in the public code of a rule (08 switches it
# on); the sentences below the table say what each is.

# %% tags=["hide-input"]
sizes = {f"profile {profile}": traces[next(iter(tasks))].sizes}
sizes |= {shape: size for shape, size in SHAPES.items() if shape != "mini"}
described = [
    {"rule": rule, "source": RULES[rule].source, "bug": RULES[rule].bug}
    | survey.what_it_costs(policy_of(rule).measure, sizes, top_k)
    for rule in [*IDEAS, "bandit"]
]
described = experiment.save_table(pd.DataFrame(described), "what_they_cost")
with pd.option_context("display.max_colwidth", None):
    display(described.assign(rule=described.rule.map(figures.label)).set_index("rule").round(4))
with_bugs = described[described.bug != ""]
conclude(*(f"**{figures.label(row.rule)}**: {BUGS[row.bug]['what']}" for row in with_bugs.itertuples()))

# %% [markdown]
# ## Which rules rank tokens best?
#
# The area under the ROC curve, over all layers: of two tokens at a layer, one whose prediction is already the last
# layer's and one whose is not, how often does the first score higher? An area of one half is guessing; no threshold is
# involved. Every rule scores all vocabulary entries here. The mean over layers weights each by its pairs of tokens.

# %% tags=["hide-input"]
plain = {}
for task, t in traces.items():
    by_key = {(task, rule): policy_of(rule, pruned=False) for rule in IDEAS}
    plain.update(replay_policies(t, by_key, calm))
labels = ("task", "rule")
experiment.save_table(experiment.table(decisions.ranking, plain, labels), "ranking_by_layer")
mean_rank = experiment.table(decisions.overall_ranking, plain, labels)

# %%
figure = chapter.ranking_figure(mean_rank, list(tasks), traced)
experiment.save_figure(figure, "ranking", mean_rank)
conclude(chapter.ranking_conclusion(mean_rank))

# %% [markdown]
# ## One rule under two names
#
# Some pairs can be checked token by token, over all vocabulary entries. PCEE-BERT's public code computes the entropy
# and never uses it; its loop, as we read it, is written out in the cell below. *As written* is the rule of its paper.
# ELBERT exits where the entropy is low *or* the probability rose over three exits to above 0.9: the second half is MEE's
# rising top-1, which was published later. Vote and patience differ only where a token was predicted, dropped and
# predicted again.


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


# %% tags=["hide-input"]
def exits_of(task, rule, level, **options):
    policy = replace(policy_of(rule, pruned=False).at_threshold(level), **options)
    return replay_policy(traces[task], policy, calm).exit_layers(max_new_tokens)


# %% tags=["hide-input"]
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


# %% tags=["hide-input"]
same = []
for task, t in traces.items():
    for pair, (first, second) in exits_under_two_names(task).items():
        shares = statistics.mean_interval(first == second, t.sequence).columns("same_exit")
        same.append({"task": task, "model": "calm", "pair": pair, **shares})
same = experiment.save_table(pd.DataFrame(same), "same_rule")
by_pair = same.pivot(index="pair", columns="task", values="same_exit").map("{:.1%}".format)
display(by_pair.rename(columns=figures.label))
conclude(chapter.same_rule_conclusion(same))

# %% [markdown]
# How alike are the others? The figure shows rank correlations of confidence at one layer, averaged over tasks, for ten
# rules in the order of a hierarchical clustering; the table stored with the figure has all rules.

# %% tags=["hide-input"]
by_rule = [{rule: plain[task, rule] for rule in IDEAS} for task in tasks]
alike = sum(survey.rank_correlations(replays, layer) for replays in by_rule) / len(tasks)
cells = alike.rename_axis("first").reset_index().melt("first", var_name="second", value_name="correlation")

# %%
figure = chapter.alike_figure(cells, layer, traced)
experiment.save_figure(figure, "alike", cells)
conclude(chapter.alike_conclusion(cells))

# %% [markdown]
# ## At equal loss
#
# The *consistency loss* of an output is one minus its score with the output of full depth as the reference. Outputs
# were decoded with every rule, from strict to loose thresholds, on validation examples; the settings that a search
# found there (`make measure`) were then decoded on test examples and form the lines. The vertical line is the target
# loss. Every rule that is cheapest there on some task is drawn in colour, and so is the rule of every other idea that
# is cheapest there on average over the tasks. (They are picked on the test examples on which they are reported, which
# favours them slightly.) Costs at the target loss are read off the line between two settings. Only settings at which
# tokens exit count, since without exits every rule here loses nothing.

# %% tags=["hide-input"]
stored = read_measured(profile, MAIN_MODEL)
experiment.run.inputs["results measured"] = inputs_of(experiment.profile.name)["results measured"]
rules = [*IDEAS, "bandit"]
bench = survey_bench(stored, experiment.profile.name, rules, list(tasks), mean_rank, demand, guaranteed)
curves = stored.rows(model="calm")
curves = curves[curves.rule.isin([*IDEAS, "static"]) & curves.task.isin(list(tasks))]
curves = curves.assign(loss=100 * curves.consistency_loss)
at_equal_loss = verdicts.at_equal_loss(stored, "calm", [demand])
fixed_layer = at_equal_loss[at_equal_loss.rule == "static"].set_index("task").flops_share
tested = f"{experiment.note()}; {stored.tested} test examples per task"

# %%
figure = chapter.equal_loss_figure(curves, bench, list(tasks), demand, tested)
experiment.save_figure(figure, "equal_loss", curves)
conclude(chapter.equal_loss_conclusion(bench, fixed_layer, demand))

# %% [markdown]
# The same exits may also be *drafts* that the last layer verifies, so that the output is that of full depth (07).

# %% tags=["hide-input"]
replays = dict(plain)
for task, t in traces.items():
    over_few = {(task, rule): policy_of(rule) for rule in rules if RULES[rule].pruning}
    replays.update(replay_policies(t, over_few, calm))
drafted = []
for row in bench.itertuples():
    replayed = replays[row.task, row.rule]
    if row.rule != "bandit":  # which sets its threshold itself
        replayed = replayed.at_threshold(row.threshold)
    drafts = lossless.draft_summary(replayed, max_draft, max_new_tokens)
    drafted.append({"task": row.task, "rule": row.rule, **drafts})

# %% tags=["hide-input"]
keys = ["task", "rule"]
bench = bench.merge(pd.DataFrame(drafted), on=keys, how="left").merge(described, on="rule", how="left")
bench = experiment.save_table(bench, "bench")
conclude(chapter.drafts_conclusion(bench))

# %% [markdown]
# Every rule, means over tasks; `bench.csv` has them task by task, with intervals. `roc_area` ranks tokens, as above.
# `equal_flops` is where the rule's line crosses the target loss. Nothing is read off outside what was measured: a dash
# stands where some task has no number. `guaranteed`: the FLOPs of the rule at a threshold with which Learn then Test
# guarantees a small mean loss (08; 1 where no threshold passes); the parameter `guaranteed` says how small.
# `verified_speed`: tokens a second with the exits as drafts, one output at a time, full depth being 1. `acceptance`:
# the share of drafts that the last layer accepts; `tokens_a_round`: how many tokens one verification yields. The
# columns `loss` to `retained` (the share of the score that is kept) describe one setting: the loosest that loses no
# more than the target on *validation* examples.

# %% tags=["hide-input"]
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
over_tasks = chapter.means_over_tasks(bench, columns).reset_index()
whole = experiment.save_table(described.merge(over_tasks, on="rule"), "rules")
chapter.rules_shown(whole, columns)

# %% [markdown]
# ## What this shows, and what it does not

# %% tags=["hide-input"]
conclude(
    chapter.ideas_conclusion(mean_rank),
    f"{chapter.ranking_message(mean_rank)}.",
    chapter.alike_among_all(cells),
    f"{chapter.equal_loss_message(bench, demand)}.",
    chapter.several_exits_conclusion(bench),
)

# %% [markdown]
# One backbone, trained jointly; one seed of each trained rule; patience, window and number of entries at one setting.
# Not here: JEI-DNN, patience with similarity (Gao et al. 2023), LeeBERT's training, DynExit's weights, ETFEE, exits
# learned by reinforcement learning (ConsistentEE) or split between machines (SplitEE), routing learned in training
# (Mixture-of-Depths, Mixture-of-Recursions), rebatching (DREX), shared keys and values (River-LLM), and robustness.
# In today's large language models, exits have less to save than in the models here (*The diminishing returns of
# early-exit decoding in modern LLMs*, arXiv, 2026).
#
# ## Each statement of the survey beside our number
#
# *Published* is the number, or how the survey makes the statement. A verdict here is that of one task alone, before 08
# corrects for the number of tests.

# %% tags=["hide-input"]
tables = {task: {"bench": bench[bench.task == task], "same": same[same.task == task]} for task in tasks}
judged = claims.judge("06_survey_rules", tables, layers=calm.layers)
claims.show_judged(experiment.save_table(judged, "claims"))

# %% [markdown]
# **Next:** [07](07_lossless.ipynb), exits that keep all of the quality; [09](09_thresholds.ipynb) and
# [10](10_confidence.ipynb), what else the survey says.

# %% tags=["hide-input"]
experiment.finish()
