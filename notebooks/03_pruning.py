# %% [markdown]
# # 03 · Pruning: must a decision score the whole vocabulary?
#
# [‹ 02 saturation](02_saturation.ipynb) · [all notebooks](../README.md#the-notebooks) · [04 contrastive decoding ›](04_contrastive_decoding.ipynb)
#
# **Question.** A rule on probabilities multiplies the state by the whole LM head at every layer, which can cost more
# than the exit saves. How many vocabulary entries does it have to score, what is lost by leaving out the rest, and does
# the rule become cheaper than full depth?
#
# **What the paper says** (*Not all FLOPs are created equally*). The final token already ranks high after the first
# layers, more so in fine-tuned models. So the first layer at which a token may exit scores all entries, and later
# layers, the last one included, score only the $k$ best of them: a list of *fixed* length, or *decaying* from layer to
# layer; its code has an *adaptive* form too. Its results are preliminary: several pruned runs score 0, probably because
# a position in the list was taken for a token id.
#
# **What we do.** We look at ranks, choose the minimum exit layer by a rule, and measure what lists of $k$ entries hold.
# We complete the paper's table and count the tokens that pruning changes. We add a rule that prunes every layer but the
# last. Costs are compared in time and in FLOPs.
#
# **Expectation.** The paper's: pruning trades score for time. Ours: almost nothing is lost with a few dozen entries,
# since positions in the list are mapped back to token ids here.

# %% needs=["traces"] tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 100  # held-out examples of each task
max_new_tokens = 48  # longest output, in tokens
batch_size = 100  # rows decoded at a time
threshold = 0.9  # of the softmax margin, constant
min_layer = 4  # first layer at which a token may exit
top_k = 64  # entries kept by fixed pruning
first_k = 256  # entries that decaying pruning begins with
least_k = 16  # entries that decaying pruning ends with (k*)
precision = 0.95  # share of exits that must be right at a safe minimum layer

# %% tags=["hide-input"]
import pandas as pd

from mee_utils.analysis import comparison, pruning
from mee_utils.analysis.monotonicity import layer_reliability
from mee_utils.companion import Experiment, claims
from mee_utils.companion.catalogue import PRUNED, RULES, rule_policies
from mee_utils.companion.chapters.pruning import closing, complete_table, decision_costs, lists, ranks
from mee_utils.companion.prose import conclude
from mee_utils.companion.published_numbers import published_reductions
from mee_utils.companion.result_tables import read_timings
from mee_utils.companion.results import round_table
from mee_utils.models.costs import SHAPES
from mee_utils.traces.replay import replay_policies, replay_policy

# %% tags=["hide-input"]
experiment = Experiment.of_notebook("03_pruning", globals())
settings = experiment.parameters
note = experiment.note(limit, "bands: 95 % intervals over sequences")
pre_trained = experiment.profile.training.models[0]
names = [name for name in (pre_trained, "vanilla", "calm") if name in experiment.model_names]
tasks = experiment.tasks(limit)
pairs = [(name, task) for name in names for task in tasks]
models = {(name, task): experiment.model(name, task) for name, task in pairs}
main = experiment.main
vocabulary = models[pairs[-1]].network.config.vocab_size
traces = {(name, task): experiment.trace(name, task, limit, max_new_tokens) for name, task in pairs}
labels = ("model", "task")  # of a trace

# %% [markdown]
# ## Where does the final token rank?
#
# The *final token* is the one that the last layer chooses; the figure shows its rank at each layer (1 is the top).
# Boxes span the first to the third quartile, with the median in black; whiskers span the 5th to the 95th percentile. The
# stored table also has the model that is only pre-trained (on span corruption) and has seen no task.

# %% tags=["hide-input"]
boxes = experiment.table(pruning.rank_boxes, traces, labels)
sizes = [k for k in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if k < vocabulary]
kept_at = experiment.table(pruning.recall, traces, labels, sizes=sizes)

# %%
figure = ranks.rank_figure(boxes, min_layer, experiment.note(limit))
experiment.save_figure(figure, "rank_boxes", boxes)
conclude(ranks.rank_conclusion(boxes, kept_at, min_layer, top_k))

# %% [markdown]
# ## Confidence against agreement, and the minimum exit layer that follows
#
# Mean top-1 probability (black) against *agreement*, the share of predictions that are already the last layer's (grey).
# The paper reads a minimum exit layer off such a plot (19 of 24 in its last runs). Our rule needs a threshold, here
# that of the tables below, on the margin between the two most probable tokens: a prediction above it is *confident*.
# The minimum exit layer is the earliest layer from which on nearly all confident predictions are the last layer's (the
# share is in the title). The stored table also has a variant without a threshold: the first layer from which on mean
# confidence exceeds agreement by at most five points.


# %% tags=["hide-input"]
def agreement(t, **labels):
    return layer_reliability(t, t.top1_id == t.final_id[:, None], **labels)


honesty = experiment.table(agreement, traces, labels)
margin = RULES["unpruned"].policy(threshold, settings | {"min_layer": 1})
margins_of = {pair: replay_policy(t, margin) for pair, t in traces.items()}
minimum = experiment.table(pruning.minimum_layer, margins_of, labels, precision=precision)
minimum = experiment.save_table(minimum, "minimum_exit_layer")
safe_from = minimum.set_index(["model", "task"]).minimum_layer

# %% tags=["hide-input"]
margins = rule_policies(("unpruned", *PRUNED), threshold, settings)
decoding = {"max_new_tokens": max_new_tokens, "batch_size": batch_size}
tried = {(form,): policy for form, policy in margins.items() if form != "decaying_closed"}
complete = []
aside = []
for name, task in pairs:
    safe = RULES["unpruned"].policy(threshold, settings | {"min_layer": int(safe_from[name, task])})
    policies = {**tried, ("at its minimum",): safe, ("from the first",): margin}
    table, decoded = comparison.comparison(
        models[name, task], tasks[task], policies, ("reduction",), **decoding
    )
    plain = decoded["unpruned",].token_ids
    differ = [{"reduction": form, **pruning.exactness(decoded[form,].token_ids, plain)} for (form,) in tried]
    rows = table.assign(model=name).merge(pd.DataFrame(differ), on="reduction", how="left")
    complete.append(rows[: 1 + len(tried)])
    aside.append(rows[1 + len(tried) :])
complete = experiment.save_table(round_table(pd.concat(complete, ignore_index=True)), "complete_table")
aside = pd.concat(aside, ignore_index=True)

# %% tags=["hide-input"]
keys = ["model", "task"]
at_safe = aside[aside.reduction == "at its minimum"]
first = aside[aside.reduction == "from the first"]
by_rule = safe_from.rename("min_layer").reset_index()
by_rule = by_rule.merge(
    at_safe[[*keys, "retained", "low", "high", "mean_exit_layer", "flops_share"]], on=keys
)
beside = {"retained_at_min_layer": complete[complete.reduction == "unpruned"], "retained_from_first": first}
for column, rows in beside.items():
    by_rule = by_rule.merge(rows.rename(columns={"retained": column})[[*keys, column]], on=keys)
by_rule = experiment.save_table(by_rule, "minimum_layer_decoded")

# %%
figure = ranks.confidence_figure(honesty, minimum, precision, note)
experiment.save_figure(figure, "confidence_and_accuracy", honesty)
conclude(ranks.minimum_conclusion(honesty, by_rule))

# %% [markdown]
# ## Recall: is the final token among the best k?
#
# The share of CALM's final tokens that are among the $k$ best entries of a layer: what a list made there holds.

# %%
figure = lists.recall_figure(kept_at, top_k, note)
experiment.save_figure(figure, "recall_by_k", lists.recall_drawn(kept_at))
conclude(lists.recall_conclusion(lists.recall_drawn(kept_at)))

# %% [markdown]
# ## How long are the lists?
#
# The figure shows how many rows of the LM head each way of pruning scores at each layer of CALM if no token exits.
# Decaying pruning keeps $k$ entries at the first pruned layer and shrinks the list from there on, down to $k^*$:
#
# $$k_l = \max\left(k^*, \left\lfloor \frac{k_{l-1}}{1 + \frac{k_{l-1} - k^*}{k^*} \cdot \frac{l-1}{L}} \right\rfloor\right)$$
#
# The paper's code computes it in closed form (*closed-form decay*): the same with $k$ and $l$ in place of $k_{l-1}$ and
# $l - 1$, from the first pruned layer on. Adaptive pruning keeps $\lfloor V(1 - 0.9\,c)\rfloor$ entries at a
# confidence of $c$: at least a tenth of the vocabulary, even at a confidence of 1. Where more than half of the entries
# are kept, all are scored. The *margin over few entries* is ours: a fixed list before the last layer, and all entries
# at it.

# %% tags=["hide-input"]
pruned = rule_policies(PRUNED, threshold, settings)
of_main = {**margins, **rule_policies(("rising_top1", "rising_fixed"), threshold, settings)}
replays = {}
for name, task in pairs:
    if name in experiment.backbones:
        policies = of_main if name == main else pruned
        by_key = {(name, task, rule): policy for rule, policy in policies.items()}
        replays.update(replay_policies(traces[name, task], by_key, models[name, task]))
replays_of_pruned = {key: replay for key, replay in replays.items() if key[-1] in PRUNED}
by_layer = experiment.table(pruning.kept_by_layer, replays_of_pruned, labels=("model", "task", "rule"))

# %%
figure = lists.kept_figure(by_layer, experiment.note(limit))
experiment.save_figure(figure, "kept_by_layer", by_layer)
conclude(lists.kept_conclusion(by_layer))

# %% [markdown]
# ## What happens to a token that does not exit?
#
# A token that exits at no layer gets its prediction from the last one. As published, the last layer scores the list
# only. It then chooses the best entry *of the list*: a final token that was dropped earlier cannot come back, and the
# prediction is no longer full depth's, although nothing exited. If the last layer scores all entries (a *whole* last
# layer), such a token gets full depth's prediction at the same cost: one use of the whole LM head. In this study the
# published rules (*fixed*, *decaying*, *adaptive*, and contrast with pruning in 04) prune the last layer; all other
# rules that score few entries keep it whole.
#
# The table gives the share of final tokens that are not on the list of the last layer (a replay in which no token
# exits; 95 % intervals over outputs).

# %% tags=["hide-input"]
lost = experiment.save_table(lists.unreachable(by_layer), "lost_at_the_last_layer")

# %%
conclude(lists.unreachable_conclusion(lost))
lists.unreachable_shown(lost)

# %% [markdown]
# ## The paper's table, complete
#
# The fine-tuned models, decoded with the softmax margin over all entries (the *unpruned* run; in tables, *over the full
# vocabulary*) and with each way of pruning, at one constant threshold; scores and FLOPs are shares of full depth's.
# *Tokens changed* compares a run with the *unpruned run at the same threshold*: of the tokens up to the first that
# differs, the share that differs. A token can differ because its entry was dropped, or because it exits elsewhere:
# probabilities over fewer entries are larger. The stored table also has the pre-trained model, which fails at most of
# these tasks; where it scores 0, no share can be retained.

# %%
setting = f"threshold {threshold}, exits from layer {min_layer} on"
conclude(f"*{experiment.note(limit, '95 % intervals over examples')}; {setting}.*")
conclude(complete_table.table_conclusion(complete))
complete_table.table_shown(complete)

# %% [markdown]
# ## Time
#
# Tokens per second of the same models, full depth being 1, timed by `make bench` in single precision, contenders taking
# turns. Seconds, samples per second and ranges over timing runs are in `times.csv`.

# %% tags=["hide-input"]
compared = complete[(complete.reduction != "full_depth") & complete.model.isin(experiment.backbones)]
compared = compared[["task", "model", "reduction"]]
times = complete_table.comparable_times(read_timings("reductions", compared, profile), compared)
if len(times):
    times = experiment.save_table(times, "times")

# %%
conclude(
    complete_table.times_conclusion(times, compared) or "These settings are not timed yet: run make bench."
)
complete_table.times_shown(times)

# %% [markdown]
# ## Each published row beside ours
#
# Each published row is matched to ours: a pre-trained model to our pre-trained one, a fine-tuned model to vanilla, and
# "full depth", which exits as well, to our margin over all entries (pruning: *none*). In both, pruning includes the
# last layer. Scores (in percent) cannot be compared across models and corpora; the effect of pruning can. Seconds are
# for ten examples, as many as a published row seems to rest on. Ours are decoded one at a time by `make bench`;
# machines differ, so compare rows of one model.

# %% tags=["hide-input"]
as_published = {"model": {pre_trained: "pretrained"}}
decided = complete[complete.reduction != "full_depth"][["task", "model", "reduction"]]
all_times = read_timings("reductions", decided, profile).replace(as_published)
beside = published_reductions(complete.replace(as_published), all_times, experiment.layers)
beside = experiment.save_table(beside, "published_rows")

# %%
conclude(complete_table.published_conclusion(beside), complete_table.left_out(beside))
complete_table.published_shown(beside)

# %% [markdown]
# ## How small may k be?
#
# The margin at the threshold of the tables above, with lists of another length: the $k$ best entries of the minimum
# layer up to the last layer (fixed), the same before a whole last layer, or a list that decays to $k^*$. The figure shows
# the share of predictions that are full depth's, in a replay of CALM.

# %% tags=["hide-input"]
of_size = {}
for k in (2, 4, 8, 16, 32, 64, 128, 256, 512):
    sized = settings | {"top_k": k, "least_k": min(k, first_k)}
    for form, policy in rule_policies(("fixed", "few", "decaying"), threshold, sized).items():
        of_size[form, k] = policy
swept = []
for task in tasks:
    for (form, k), replayed in replay_policies(traces[main, task], of_size, models[main, task]).items():
        swept.append({"task": task, "rule": form, "k": k, **comparison.replayed_row(replayed)})
swept = pd.DataFrame(swept)

# %%
used = {"fixed": top_k, "few": top_k, "decaying": least_k}
figure = lists.sweep_figure(swept, used, note)
experiment.save_figure(figure, "sweep_of_k", swept)
conclude(lists.sweep_conclusion(swept))

# %% [markdown]
# ## What a decision costs
#
# Left: the FLOPs of one decision in units of one decoder layer, at the sizes of the synthetic profile's models, T5-base
# and T5-large. Curves end at the whole vocabulary. Right: the break-even depth, a share of all layers. The rule is cheaper
# than full depth if the mean exit layer is below it (a token's first decision scores all entries).

# %% tags=["hide-input"]
costs = []
for shape, sizes in SHAPES.items():
    for k in (32, 64, 256, 1024, 4096, sizes.vocabulary):
        if k <= sizes.vocabulary:
            cost = comparison.decision_cost(sizes, margin.measure, min_layer, k)
            costs.append({"shape": shape, "ids": k, **cost})
costs = pd.DataFrame(costs)

# %%
figure = decision_costs.cost_figure(costs)
experiment.save_figure(figure, "cost_of_a_readout", costs)
conclude(decision_costs.cost_conclusion(costs, first_k))

# %% [markdown]
# ## At equal quality
#
# For every rule we take the lowest threshold at which a given share of the predictions at the exits is full depth's (a
# token that pruning lost counts as wrong). Thresholds are chosen on one half of the outputs. The FLOPs of the other half,
# decisions included, are shares of full depth's. This is a replay of CALM; what keeps the score of whole outputs is in
# 08. The rising top-1 rule, MEE's, exits when the top-1 probability has risen over three layers; over few entries, it
# keeps the last layer whole.

# %% tags=["hide-input"]
replayed = {}
for task in tasks:
    for rule in of_main:
        if rule != "decaying_closed":
            replayed[task, rule] = replays[main, task, rule]
shares = [0.95, 0.98, 0.99, 0.995]
equal = experiment.table(comparison.at_equal_quality, replayed, labels=("task", "rule"), shares=shares)
equal = experiment.save_table(equal, "at_equal_quality")

# %%
conclude(
    decision_costs.equal_conclusion(equal, experiment.layers),
    decision_costs.reached_conclusion(equal, experiment.layers),
)
decision_costs.equal_shown(equal, experiment.layers)

# %% [markdown]
# ## Each published statement beside our number
#
# *Published* is the number, or how the paper makes the statement. A verdict here is that of one task alone, before 08
# corrects for the number of tests.

# %% tags=["hide-input"]
measured = {
    "boxes": boxes,
    "recall": kept_at,
    "complete": complete,
    "minimum": minimum,
    "honesty": honesty,
    "equal": equal.assign(model=main),
    "first": first,
    "times": times,
}
measured = {name: table.replace({"model": {pre_trained: "pretrained"}}) for name, table in measured.items()}
tables = {task: {name: table[table.task == task] for name, table in measured.items()} for task in tasks}

# %%
judged = claims.judge("03_pruning", tables)
claims.show_judged(experiment.save_table(judged, "claims"))

# %% [markdown]
# ## What this shows

# %% tags=["hide-input"]
conclude(closing.summary(complete, swept, costs, lost, vocabulary))

# %% [markdown]
# **Next:** [04](04_contrastive_decoding.ipynb): does contrast between layers improve the confidence itself?

# %% tags=["hide-input"]
experiment.finish()
