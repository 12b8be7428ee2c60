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
# **What we do.** All rules decide on the same frozen model, and are compared at the same loss, never at the same
# threshold. Losses and costs come from real decoding (`make measure`): thresholds are chosen on validation examples,
# results are those of test examples. How well a rule ranks tokens, and which rules are the same, is computed from traces.
#
# **Expectation.** Rules on several exits gain nothing where training makes early layers agree with the last
# one. What a decision costs matters more than how it is made.

# %% needs=["traces", "classifiers", "measured"] tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 100  # held-out examples of each task that are traced
max_new_tokens = 48  # longest output, in tokens
min_layer = None  # first layer at which a token may exit; None: that of the profile's measurements
top_k = (
    None  # vocabulary tokens that rules score before the last layer; None: that of the profile's measurements
)
demand = 0.01  # mean consistency loss at which rules are compared
guaranteed = 0.05  # mean consistency loss that is guaranteed
max_draft = 8  # tokens that wait at most, where exits are drafts
sure = 0.9  # a threshold for rules that are compared token by token
layer = 6  # where the rules' confidences are compared

# %% tags=["hide-input"]
import numpy as np
import pandas as pd
from IPython.display import display
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from mee_utils.analysis import decisions, lossless, statistics, survey
from mee_utils.companion import Experiment, claims, figures, verdicts
from mee_utils.companion.catalogue import IDEAS, MAIN_MODEL, RULES
from mee_utils.companion.result_tables import read_measured, read_timings
from mee_utils.models.costs import SHAPES
from mee_utils.traces.replay import replay_policies

experiment = Experiment.of_notebook("06_survey_rules", globals())
settings = experiment.settings
min_layer, top_k = settings["min_layer"], settings["top_k"]
traced = experiment.note(limit)
rules = [*IDEAS, "bandit"]
keys = ["task", "rule"]

# %%
tasks = experiment.tasks(limit)
calm = experiment.models(["calm"])["calm"]
trained = experiment.classifiers({"calm": calm}, seeds=[0], survey=True)
classifiers = {rule: one for (_, rule, target), (one,) in trained.items() if target == "consistency"}
traces = {task: experiment.trace("calm", task, limit, max_new_tokens) for task in tasks}
policies = {rule: RULES[rule].policy(1.0, settings, classifiers) for rule in rules}

# %% [markdown]
# ## The rules
#
# $p_l$ is the distribution that the shared LM head predicts at layer $l$, $H$ its entropy, $y_l$ its best token
# and $h_l$ the state. In this chapter an *exit* is a layer at which a token may exit. It does so at the first exit at
# which ...
#
# | idea | rule | ... this exceeds the threshold |
# |---|---|---|
# | one layer's probabilities | softmax margin (CALM) | $p_l(y_l)$ minus the second largest probability |
# | | max probability (CeeBERT) | $p_l(y_l)$ |
# | | entropy (DeeBERT) | $e^{-H(p_l)}$ |
# | several exits | rising top-1 (MEE) | $p_l(y_l)$, or 0 unless it rose over three layers |
# | | patience (PABEE) | how many exits in a row predicted $y_l$ |
# | | vote, weighted vote (Sun et al.) | how many exits predicted $y_l$, in a row or not; the sum of their probabilities |
# | | patient entropy (PCEE-BERT) | the smaller $e^{-H}$ of the last two exits |
# | | window (ELBERT) | $e^{-H(p_l)}$, or 1 where $p_l(y_l)$ rose over three exits to above 0.9 |
# | states | similarity (CALM) | $\cos(h_l, h_{l-1})$ |
# | | falling similarity (MuE) | the same, against a threshold that falls with the position |
# | | linear classifier (CALM) | $\sigma(w \cdot h_l + b)$, trained by cross-entropy on "this token is final" |
# | | learning to exit (BERxiT) | the same, trained by squared error |
# | | low rank on three layers (ours) | the same, of $h_l$, $h_{l-1}$ and $h_{l-2}$ |
# | | Q-exit (PALBERT) | $1 - \prod_{i \le l} (1 - \lambda_i)$, where $\lambda_i = \sigma(w \cdot h_i + b)$ |
# | a trained prediction, or a table | ensemble (ZTW) | $\max q_l$ with $\log q_l = \sum_{i \le l} w_i \log p_i + b$ |
# | | predicted state (PF-BERxiT) | $\max p$ of $A_l h_l + b_l$, which predicts the last state |
# | | token lookup table (HashEE) | of the training tokens that follow the *last* token, the share that was final by layer $l$ |
# | threshold | bandit (UCBEE, CeeBERT) | $p_l(y_l)$, the threshold being the arm that has paid best so far |
#
# Those that need no training are a few lines of numpy. The code checks that each gives the same confidences as the
# library's rule for every token of the traces.

# %%
plain = {}  # what each rule says of each token; rules on probabilities score the whole vocabulary
for task, t in traces.items():
    by_key = {(task, rule): policies[rule].over_all_entries() for rule in IDEAS}
    plain.update(replay_policies(t, by_key, calm))


def confidences(t):
    """Rule -> confidence `[token, exit]`; the exits are the layers from `min_layer` to the last but one."""
    exits = slice(min_layer - 1, t.layers - 1)
    p, y = t.top1_probability[:, exits], t.top1_id[:, exits]
    certain = np.exp(-t.entropy[:, exits])
    in_a_row = [(y[:, n::-1] == y[:, [n]]).cumprod(axis=1).sum(axis=1) for n in range(y.shape[1])]
    votes = [(y[:, : n + 1] == y[:, [n]]).sum(axis=1) for n in range(y.shape[1])]
    rose = np.zeros(p.shape, dtype=bool)
    rose[:, 2:] = (p[:, 2:] > p[:, 1:-1]) & (p[:, 1:-1] > p[:, :-2])
    before = np.hstack([np.zeros((len(t), 1)), certain[:, :-1]])  # there is no exit before the first
    return {
        "surest": p,
        "entropy": certain,
        "rising top-1": p * rose,
        "patience": np.stack(in_a_row, axis=1),
        "vote": np.stack(votes, axis=1),
        "pcee": np.minimum(certain, before),
        "elbert": np.where(rose & (p > 0.9), 1.0, certain),
    }


by_hand = {task: confidences(t) for task, t in traces.items()}
for task in tasks:
    for rule in by_hand[task].keys() & IDEAS.keys():
        np.testing.assert_allclose(by_hand[task][rule], plain[task, rule].confidences, rtol=1e-5)
    rising = plain[task, "rising_fixed"].confidences  # MEE's rule looks at layers before the first exit, too
    np.testing.assert_allclose(by_hand[task]["rising top-1"][:, 2:], rising[:, 2:], rtol=1e-5)

# %% [markdown]
# What a decision looks at and costs: `layers` it sees, `readouts` of the LM head, and its FLOPs as a share of one layer,
# with `top_k` vocabulary tokens scored. `bug` is a mistake in public code. MEE's code compares *logits* with the
# threshold of 0.9; as these are defined up to a constant, that means nothing (08 shows what it does). The mistake in
# PCEE-BERT's is the subject of the next section.
#
# Where costs are compared, all rules that read probabilities score the same vocabulary tokens; otherwise the cost of
# the LM head would decide the comparison. They score the whole vocabulary at the first exit and its `top_k` best
# tokens at later exits (*fixed pruning*, chapter 03). The last layer scores the whole vocabulary again, so that a
# token that never exits is that of full depth. Their public code was written for classifiers with a few labels, which
# have nothing to prune.

# %%
sizes = {f"profile {profile}": traces[next(iter(tasks))].sizes}
sizes |= {shape: size for shape, size in SHAPES.items() if shape != "mini"}
described = pd.DataFrame(
    {"rule": rule, "source": RULES[rule].source, "bug": RULES[rule].bug}
    | survey.what_it_costs(policies[rule].measure, sizes, top_k)
    for rule in rules
)
described = experiment.save_table(described, "what_they_cost")
columns = ["rule", "layers", "readouts", "parameters", *sizes, "bug"]
display(described[columns].assign(rule=described.rule.map(figures.label)).set_index("rule").round(3))

# %% [markdown]
# ## One rule under two names
#
# PCEE-BERT's paper asks for low entropy at several exits in a row. Its public code computes the entropy of every exit
# and never uses it. The loop, as we read it:


# %%
def pcee_as_published(t, patience):
    """The exit layer of each token: equal predictions in a row are counted, and nothing else."""
    count = np.zeros(len(t))
    exits = np.full(len(t), t.layers)
    for layer in range(min_layer + 1, t.layers):
        same = t.top1_id[:, layer - 1] == t.top1_id[:, layer - 2]
        count = np.where(same, count + 1, 0)
        exits = np.where((count >= patience) & (exits == t.layers), layer, exits)
    return exits


# %% [markdown]
# Count equal predictions in a row, exit when there are enough: that is PABEE, published two years before.
#
# ELBERT exits where the entropy is low *or* the probability rose over three exits to above 0.9. The second half is MEE's
# rising top-1, published three years later. So ELBERT should exit at whichever of the two rules comes first. And vote
# should differ from patience only where a token was predicted, dropped and predicted again.


# %%
def exits_at(confidence, threshold):
    """The first exit `[token]` whose confidence exceeds the threshold, as a layer; else the last layer."""
    exceeded = confidence > threshold
    return np.where(exceeded.any(axis=1), min_layer + exceeded.argmax(axis=1), calm.layers)


enough = policies["pcee"].measure.patience  # exits in a row
rows = []
for task, t in traces.items():
    of = by_hand[task]
    either = np.minimum(exits_at(of["entropy"], sure), exits_at(of["rising top-1"], 0.9))
    pairs = {
        "PCEE-BERT's code, patience": (pcee_as_published(t, enough), exits_at(of["patience"], enough)),
        "PCEE-BERT as written, patience": (exits_at(of["pcee"], sure), exits_at(of["patience"], enough - 1)),
        "ELBERT, entropy or rising top-1": (exits_at(of["elbert"], sure), either),
        "ELBERT, entropy alone": (exits_at(of["elbert"], sure), exits_at(of["entropy"], sure)),
        "vote, patience": (exits_at(of["vote"], enough), exits_at(of["patience"], enough)),
    }
    for pair, (first, second) in pairs.items():
        share = statistics.mean_interval(first == second, t.sequence)
        rows.append({"task": task, "model": "calm", "pair": pair} | share.columns("same_exit"))
same = experiment.save_table(pd.DataFrame(rows), "same_rule")
by_pair = same.pivot(index="pair", columns="task", values="same_exit").loc[list(pairs)]
display(by_pair.rename(columns=figures.label).map("{:.1%}".format))

# %% [markdown]
# The share of tokens that exit at the same layer under both. Two pairs are one rule, for every token of every task:
# **PCEE-BERT's code is PABEE**, and **ELBERT is entropy or MEE's rising top-1, whichever comes first**. What PCEE-BERT's
# paper describes is another rule, under which most tokens exit elsewhere, so numbers made with its code are
# PABEE's. MEE's half of ELBERT matters: with entropy alone, up to 40 % of the tokens exit elsewhere. Vote and
# patience are not the same, but nearly: at least 95 % of the tokens exit at the same layer.
#
# ## Which rules rank tokens best?
#
# AUROC, the area under the ROC curve: take two tokens at a layer, one whose prediction is already the last layer's
# and one whose prediction is not. How often does the first have the higher confidence? An area of one half is
# guessing; no threshold is involved. In this section every rule scores the whole vocabulary at every exit. The mean
# over layers weights each layer by its number of token pairs.

# %%
experiment.save_table(experiment.table(decisions.ranking, plain, keys), "ranking_by_layer")
mean_rank = experiment.table(decisions.overall_ranking, plain, keys)

# %%
# these are another rule where the whole vocabulary is scored
unpruned = {"few": "softmax_margin", "rising_fixed": "rising_top1"}
areas = mean_rank.pivot(index="rule", columns="task", values="roc_area")[list(tasks)].rename(index=unpruned)
areas = areas.loc[areas.mean(axis=1).sort_values(ascending=False, kind="stable").index]
figure, ((axis, _),) = figures.panels(
    mean_rank.assign(of="AUROC, mean over layers"),
    "of",
    title="How well rules rank tokens",
    note=traced,
    width=6.4,
    height=0.3 * len(areas) + 0.6,
)
named = areas.rename(index=figures.label, columns=figures.label)
figures.heat(axis, named, named.map("{:.2f}".format), limits=(0.3, 1.0))
experiment.save_figure(figure, "ranking", mean_rank)

margin = statistics.estimates(mean_rank[mean_rank.rule == "few"], "roc_area")  # [task]
for rule in ("ztw", "surest", "past_future"):
    beyond = (statistics.estimates(mean_rank[mean_rank.rule == rule], "roc_area") - margin).mean()
    print(f"AUROC of {figures.label(rule)} less the margin's, mean over tasks: {beyond:+.3f}")

# %% [markdown]
# No rule of the survey ranks tokens better than the softmax margin, on any task. (05 asks whether one that learns from
# the history of predictions does.) The largest probability and the ensemble come within 0.03 of it. Counting equal
# predictions is far worse: patience has a mean AUROC of 0.64, as a count has only a handful of values to order tokens by.
# States tell less than probabilities, even with a trained classifier, and the table that sees only the last token is
# guessing on question answering.
#
# How alike are the rules? Rank correlations of their confidences at one layer, averaged over tasks; ten rules, in
# the order of a hierarchical clustering. The stored table has all.

# %%
by_rule = [{rule: plain[task, rule] for rule in IDEAS} for task in tasks]
alike = sum(survey.rank_correlations(replays, layer) for replays in by_rule) / len(tasks)
cells = alike.rename_axis("first").reset_index().melt("first", var_name="second", value_name="correlation")

# %%
ten = ["few", "surest", "entropy", "pcee", "patience", "vote", "elbert", "ztw", "linear", "hidden_similarity"]
distance = 1 - alike.loc[ten, ten].fillna(0).to_numpy()
np.fill_diagonal(distance, 0)
tree = linkage(squareform(distance, checks=False), "average")
order = [ten[number] for number in leaves_list(tree)]
shown = alike.loc[order, order].rename(index=unpruned, columns=unpruned)
lower = shown.where(np.tri(len(ten), k=-1, dtype=bool)).iloc[1:, :-1]  # each pair once
lower = lower.rename(index=figures.label, columns=figures.label)
figure, ((axis, _),) = figures.panels(
    cells.assign(of=f"rank correlation at layer {layer}"),
    "of",
    title="How alike rules order tokens",
    note=traced,
    width=7.4,
    height=4.4,
)
figures.heat(axis, lower, lower.map("{:.2f}".format))
axis.set_xticks(axis.get_xticks(), list(lower.columns), rotation=30, ha="right")
experiment.save_figure(figure, "alike", cells)

# %% [markdown]
# Margin, largest probability and entropy order tokens alike, with correlations of at least 0.96; the ensemble and
# patient entropy come close to them (0.92 or more). If two rules have a correlation of 1 and matched thresholds, the
# same tokens exit at this layer. These come close to that: whatever separates them in the literature, here it is not
# which tokens they pick. Patience and vote order tokens alike at this layer. Rules on states agree less with these,
# and little with each other.
#
# ## At equal loss
#
# The *consistency loss* of an output is one minus its score with the output of full depth as the reference. Every
# rule was decoded at thresholds from strict to loose. The decoder FLOPs at a given loss are interpolated linearly
# between two settings, and never extrapolated. Settings at which no token exits are left out, since there every rule
# loses nothing. *A fixed layer* lets every token exit there.

# %%
stored = read_measured(experiment.profile.name, MAIN_MODEL)
equal = verdicts.at_equal_loss(stored, MAIN_MODEL, [demand, 10 * demand])
equal = equal[equal.rule.isin([*IDEAS, "static"]) & equal.task.isin(list(tasks))]

# %%
ideas = pd.Series(IDEAS | {"static": "a fixed layer"})
number = pd.Series(pd.factorize(ideas)[0], ideas.index).sort_values(kind="stable")  # of a rule's idea
height = number + np.arange(len(number))  # of a rule in the figure, with a gap between ideas
looks = {
    demand: figures.Style(f"at a loss of {demand:.0%}", figures.DARK, "o"),
    10 * demand: figures.Style(f"at a loss of {10 * demand:.0%}", figures.BLUE, "D"),
}
figure, panels = figures.panels(
    equal.assign(height=equal.rule.map(height)),
    title="Decoder FLOPs of each rule at the same loss",
    note=f"{experiment.note()}; {stored.tested} test examples per task; whiskers: 95 % intervals; "
    "no mark: even the strictest exits lose more",
    width=3.2,
    height=5.6,
)
for axis, rows in panels:
    rows = rows.sort_values("wanted", ascending=False)  # the stricter on top
    figures.dots(axis, rows, "flops_share", "height", "wanted", ("flops_low", "flops_high"), styles=looks)
    axis.axvline(1, color=figures.GREY, linewidth=0.8)
    axis.set(xlabel="decoder FLOPs (1 = full depth)", ylim=(height.max() + 0.8, -0.8))
    axis.set_yticks(height, [figures.label(rule) for rule in height.index])
experiment.save_figure(figure, "at_equal_loss", equal)

cheapest = equal[(equal.wanted == demand) & (equal.rule != "static")].dropna(subset="flops_share")
for row in cheapest.loc[cheapest.groupby("task", sort=False).flops_share.idxmin()].itertuples():
    interval = f"{row.flops_share:.0%} ({row.flops_low:.0%} to {row.flops_high:.0%}) of the FLOPs"
    print(f"cheapest at {demand:.0%}, {figures.label(row.task)}: {figures.label(row.rule)}, {interval}")

# %% [markdown]
# At a loss of 1 %, rules save on question answering only: margin, largest probability, entropy and predicted state need
# about three quarters of the FLOPs, and every rule on several exits or on states needs more. On the other two tasks there
# is next to nothing to save. Rules on probabilities pay for a readout at each exit and end above full depth, or have no
# setting that strict; only rules without a readout end below it, by at most 3 %. At a loss of 10 % the margin needs half the
# FLOPs on question answering and about five sixths on translation; on summarization no rule saves more than 5 % even
# then. A fixed layer loses more than 1 % on every task.
#
# So several exits are not more reliable than one. The expectation was half right: where little can be saved, what a
# decision costs matters most; where much can be saved, what it looks at.
#
# ## As drafts
#
# The same exits may be *drafts* that the last layer verifies, so that the output is that of full depth (07). Each
# rule has its loosest threshold that loses no more than `demand` on *validation* examples. The bandit sets its own
# threshold, so it has only one setting, whatever that loses.

# %%
replays = dict(plain)
for task, t in traces.items():
    over_few = {(task, rule): policies[rule] for rule in rules if RULES[rule].pruning}
    replays.update(replay_policies(t, over_few, calm))
chosen = verdicts.within_loss(stored, MAIN_MODEL, demand)
chosen = chosen[chosen.rule.isin(rules) & chosen.task.isin(list(tasks))]
drafted = []
for row in chosen.itertuples():
    replayed = replays[row.task, row.rule]
    if row.rule != "bandit":  # which sets its threshold itself
        replayed = replayed.at_threshold(row.threshold)
    drafts = lossless.draft_summary(replayed, max_draft, max_new_tokens)
    drafted.append({"task": row.task, "rule": row.rule, **drafts})

# %% tags=["hide-input"]
losses = {"consistency_loss": "loss", "consistency_low": "loss_low", "consistency_high": "loss_high"}
at_setting = [*keys, "model", "threshold", *losses.values(), "flops_share", "mean_exit_layer"]
at_setting += ["retained", "low", "high", "retained_draws"]
flops = {"flops_share": "equal_flops", "flops_low": "equal_low", "flops_high": "equal_high"}
at_demand = equal[equal.wanted == demand]
bounds = verdicts.calibrated(stored, MAIN_MODEL, {"consistency": [guaranteed]}, ("hoeffding_bentkus",))
timed = read_timings("drafts", chosen, experiment.profile.name)
bench = chosen.rename(columns=losses)[at_setting]
for part in (
    at_demand[keys].join(statistics.renamed(at_demand, flops)),
    mean_rank,
    bounds.rename(columns={"flops_share": "guaranteed"})[[*keys, "guaranteed"]],
    timed.rename(columns={"speed": "verified_speed"})[[*keys, "verified_speed"]],
    pd.DataFrame(drafted),
):
    bench = bench.merge(part, on=keys, how="left")
bench = experiment.save_table(bench.merge(described, on="rule", how="left"), "bench")

# %%
columns = ["roc_area", "equal_flops", "guaranteed", "verified_speed", "acceptance", "tokens_a_round"]
columns += ["loss", "flops_share", "mean_exit_layer", "retained"]
means = bench.groupby("rule", sort=False)[columns].agg(lambda values: values.mean(skipna=False))
whole = experiment.save_table(described.merge(means.reset_index(), on="rule"), "rules")
shown = whole.sort_values("roc_area", ascending=False, kind="stable").set_index("rule")
shown = shown[["roc_area", "guaranteed", "flops_share", "retained", "tokens_a_round", "verified_speed"]]
shown = shown.rename(index=figures.label).map("{:.2f}".format, na_action="ignore")
display(shown.astype(object).fillna("–"))

# %% [markdown]
# Means over tasks; `bench.csv` has them task by task, with intervals. `guaranteed`: decoder FLOPs (1 = full depth) at
# a threshold for which Learn then Test guarantees a mean loss no larger than the parameter of that name (chapter 08;
# 1 where no threshold passes). `flops_share` to `retained`, the share of the score that is kept, are measured at that
# setting of the rule. `tokens_a_round`: how many tokens one verification yields. `verified_speed`: tokens a second
# with the exits as drafts, one output at a time (1 = full depth).
#
# Thresholds strict enough to be safe without verification are too strict for drafting: under most rules so few tokens
# are drafted that verified exits are slower than full depth. The bandit, whose consistency loss is above 10 % if its
# exits are not verified, is the fastest at drafting on every task, with about three tokens a verification. Once exits
# are verified, the threshold is a matter of speed alone, and 07 chooses it as such.
#
# ## What this shows, and what it does not
#
# In generation one of the simplest rules ranks tokens best: the margin of one layer's probabilities. Some rules are
# others under a new name, and what is new in the rest, counting agreement or reading states, tells less about whether
# a token is final. What is saved at a given loss depends on the task more than on the rule.
#
# One backbone, trained jointly; one seed of each trained rule; patience, window and `top_k` at one setting.
# Not here: JEI-DNN, patience with similarity (Gao et al. 2023), LeeBERT's training, DynExit's weights, ETFEE, exits
# learned by reinforcement learning (ConsistentEE) or split between machines (SplitEE), routing learned in training
# (Mixture-of-Depths, Mixture-of-Recursions), rebatching (DREX), shared keys and values (River-LLM), and robustness.
# In today's large language models, exits have less to save than in the models here (*The diminishing returns of
# early-exit decoding in modern LLMs*, arXiv, 2026).
#
# ## Statements, published and ours
#
# The column *published* has the survey's number or, where it gives none, how it makes the statement. The
# [ledger](../figures/results/ledger.md) says whether each statement holds, corrected for the number of tests.

# %%
tables = {task: {"bench": bench[bench.task == task], "same": same[same.task == task]} for task in tasks}
judged = claims.judge("06_survey_rules", tables, layers=calm.layers)
claims.show_judged(experiment.save_table(judged, "claims"))

# %% [markdown]
# **Next:** [07](07_lossless.ipynb), exits that keep all of the quality; [09](09_thresholds.ipynb) and
# [10](10_confidence.ipynb), what else the survey says.

# %% tags=["hide-input"]
experiment.finish()
