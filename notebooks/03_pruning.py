# %% [markdown]
# # 03 · Pruning: must a decision score the whole vocabulary?
#
# [‹ 02 saturation](02_saturation.ipynb) · [all notebooks](../README.md#the-notebooks) · [04 contrastive decoding ›](04_contrastive_decoding.ipynb)
#
# **Question.** An exit rule that looks at probabilities multiplies the state by the whole LM head at every layer,
# which can cost more than the exit saves. How many vocabulary tokens must it score, what is lost by leaving out the
# rest, and does decoding with the rule then cost less than full depth?
#
# **What the paper says** (*Not all FLOPs are created equally*). The final token ranks high after a few layers, more so in
# fine-tuned models. So the first layer at which a token may exit scores the whole vocabulary, and later layers, the last
# one included, score only the $k$ tokens that were best there: a list of *fixed* length, or *decaying* from layer to layer;
# its code has an *adaptive* form too. Its results are preliminary: several pruned runs score 0, probably because a position
# in the list was taken for a token id.
#
# **What we do.** We look at ranks, choose the minimum exit layer by a rule, and measure what lists of $k$ tokens hold. We
# decode at the paper's threshold, with and without pruning, and set its table beside ours. We add a rule that prunes every
# layer but the last.
#
# **Expectation.** The paper's: pruning trades score for time. Ours: almost nothing is lost with a few dozen tokens, since
# positions in the list are mapped back to token ids here.

# %% needs=["traces"] tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 35  # held-out examples of each task
max_new_tokens = 48  # longest output, in tokens
batch_size = 100  # rows decoded at a time
threshold = 0.9  # of the softmax margin, constant
min_layer = None  # first layer at which a token may exit; None: that of the profile's measurements
top_k = None  # vocabulary tokens kept by fixed pruning; None: that of the profile's measurements
first_k = None  # with how many decaying pruning begins; None: that of the profile's measurements
least_k = None  # with how many it ends (k*); None: that of the profile's measurements
precision = 0.95  # share of exits that must be right at a safe minimum layer

# %% tags=["hide-input"]
import numpy as np
import pandas as pd
from IPython.display import display

from mee_utils.analysis import comparison, pruning, statistics
from mee_utils.analysis.monotonicity import layer_reliability
from mee_utils.companion import Experiment, claims, figures
from mee_utils.companion.catalogue import PRUNED, RULES, rule_policies
from mee_utils.companion.published_bugs import VANILLA_FROM
from mee_utils.companion.published_numbers import published_reductions
from mee_utils.companion.result_tables import read_timings
from mee_utils.companion.results import round_table
from mee_utils.exits.pruning import Pruning
from mee_utils.models.costs import SHAPES
from mee_utils.traces.replay import StoredStates, replay_policies, replay_policy

experiment = Experiment.of_notebook("03_pruning", globals())
settings = experiment.settings
min_layer, top_k = settings["min_layer"], settings["top_k"]
first_k, least_k = settings["first_k"], settings["least_k"]
note = experiment.note(limit, "bands: 95 % intervals over sequences")

# %%
main = experiment.main
pre_trained = experiment.profile.training.models[0]
names = [name for name in (pre_trained, "vanilla", "calm") if name in experiment.model_names]
tasks = experiment.tasks(limit)
pairs = [(name, task) for name in names for task in tasks]
models = {(name, task): experiment.model(name, task) for name, task in pairs}
traces = {(name, task): experiment.trace(name, task, limit, max_new_tokens) for name, task in pairs}
labels = ["model", "task"]  # of a trace

# %% [markdown]
# ## Where does the final token rank?
#
# The *final token* $y$ is the one that the last layer chooses. Its rank among the logits $z^l$ of layer $l$ is
# $1 + |\{v : z^l_v > z^l_y\}|$. A list of the best $k$ tokens of a layer holds the final token if that rank is at most $k$;
# how often it does is the *recall* of the list.


# %%
def rank_of(final, logits):
    """`[token]`: the rank of each token in `final` `[token]` among `logits` `[token, vocabulary]`."""
    own = np.take_along_axis(logits, final[:, None], axis=1)
    return 1 + (logits > own).sum(axis=1)


sizes = [k for k in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if k < traces[pairs[-1]].sizes.vocabulary]
recall = experiment.table(pruning.recall, traces, labels, sizes=sizes)

few = slice(0, 500)  # tokens, enough to compare
for pair, t in traces.items():
    state = StoredStates(t, models[pair]).exit_states(few)[min_layer - 1]
    ranks = rank_of(t.final_id[few], state.full_logits.double().cpu().numpy())
    for k in sizes:
        np.testing.assert_allclose(
            np.mean(ranks <= k), np.mean(t.final_rank[few, min_layer - 1] <= k), atol=0.01
        )

# %%
ends = {"median": "med", "low": "q1", "high": "q3", "whisker_low": "whislo", "whisker_high": "whishi"}
boxes = experiment.table(pruning.rank_boxes, traces, labels)
figure, panels = figures.panels(
    boxes,
    down=len(names),
    title="Rank of the final token among the logits of each layer (1 is the top)",
    note=experiment.note(limit, "boxes: quartiles, whiskers: 5th and 95th percentile"),
    height=2.2,
)
for axes, of_task in panels:
    for axis, name in zip(np.ravel(axes), names, strict=True):
        rows = of_task[of_task.model == name]
        colour = figures.STYLES[name].colour
        axis.bxp(
            rows.rename(columns=ends)[list(ends.values())].to_dict("records"),
            positions=rows["layer"],
            widths=0.65,
            manage_ticks=False,
            showfliers=False,
            patch_artist=True,
            boxprops={"facecolor": colour, "alpha": 0.45, "edgecolor": colour},
            medianprops={"color": "black", "linewidth": 1.6},
            capprops={"color": colour},
            whiskerprops={"color": colour},
        )
        axis.set(yscale="log", ylabel=f"{figures.label(name)}\nrank")
        figures.layer_axis(axis, experiment.layers)
experiment.save_figure(figure, "rank_boxes", boxes)

for name in names:
    first = boxes[(boxes.model == name) & (boxes.layer == min_layer)]
    print(f"{figures.label(name)}, ranked first at layer {min_layer}:", *first.on_top.map("{:.0%}".format))

# %% [markdown]
# Training for exits brings the final token up early. At layer 4, CALM ranks it first for 74 to 93 % of the tokens, vanilla
# for 22 to 31 %. In vanilla the ranks fall steadily, but late: after layer 2, less than half of the final tokens are among
# the best 8.
#
# The paper compares a fine-tuned model with one that was only pre-trained, and finds the final token ranked higher after
# fine-tuning. Here it is the other way round in the first layers, but this says little: our pre-trained model scores
# 0 on two of the tasks, and less than a third of vanilla's score on summarization.
#
# ## How long must a list be?
#
# The recall of a list that is made at a layer of CALM, by its length.

# %%
kept_at = recall[(recall.model == main) & recall.layer.isin([1, 2, 3, 4, 6, 8])]
figure, panels = figures.panels(kept_at, title="Final tokens among the best k of a layer", note=note)
for axis, rows in panels:
    styles = figures.layer_styles(experiment.layers)
    figures.lines(axis, rows, "k", "recall", "layer", figures.BAND, styles)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set(xlabel="vocabulary tokens kept, k", ylabel="share of final tokens", ylim=(0, 1.02))
experiment.save_figure(figure, "recall_by_k", kept_at)

at_first = kept_at[kept_at.layer == min_layer].groupby("k").recall.min()
print(
    f"recall at layer {min_layer}, least of all tasks:",
    ", ".join(f"k={k} {r:.1%}" for k, r in at_first.items()),
)

# %% [markdown]
# Lists that are made later can be shorter. At layer 4 of CALM, 64 tokens hold at least 99 % of the final tokens on every task,
# and 8 tokens about 95 %; at layer 1 or 2 even 256 tokens hold fewer than 99 % on some task.
#
# ## Three kinds of lists
#
# All are made at the first layer that may exit, `min_layer`. *Fixed* pruning keeps $k$ = `top_k` tokens; *decaying*
# pruning begins with `first_k` and shrinks the list from layer to layer, down to $k^*$ = `least_k`:
#
# $$k_l = \max\left(k^*, \left\lfloor \frac{k_{l-1}}{1 + \frac{k_{l-1} - k^*}{k^*} \cdot \frac{l-1}{L}} \right\rfloor\right)$$
#
# The paper's code computes it in closed form (*closed-form decay*): the same with $k$ and $l$ in place of $k_{l-1}$ and
# $l - 1$, from the first pruned layer on. *Adaptive* pruning keeps $\lfloor V(1 - 0.9\,c)\rfloor$ tokens at a confidence
# of $c$, at least a tenth of the vocabulary; where that is more than half of it, everything is scored.


# %%
def decaying_sizes(first, layers, vocabulary, k, least):
    """Vocabulary tokens that are scored at the layers `first` to `layers`."""
    scored = [vocabulary, k]
    for layer in range(first + 2, layers + 1):
        before = scored[-1]
        shrunk = before / (1 + (before - least) / least * (layer - 1) / layers)
        scored.append(max(least, int(shrunk)))
    return scored


shape = [min_layer, experiment.layers, traces[pairs[-1]].sizes.vocabulary]
scored = decaying_sizes(*shape, first_k, least_k)
assert scored == list(Pruning("decaying", first_k, least_k).sizes(*shape).values())
print(f"scored from layer {min_layer} on, decaying:", scored)

# %% [markdown]
# ## What happens to a token that does not exit?
#
# It gets its prediction from the last layer. As published, the last layer scores the list only. It then chooses the best
# token *of the list*: a final token that was dropped cannot come back, and the output is no longer full depth's, although
# nothing exited. If the last layer scores the whole vocabulary, such a token gets full depth's prediction at the same
# cost: one use of the whole LM head. In this study the published rules (*fixed*, *decaying*, *adaptive*, and contrast with
# pruning in 04) prune the last layer; all other rules that score few tokens keep it whole.
#
# The share of final tokens that are not on the last layer's list. For fixed pruning, these are the tokens that rank below
# $k$ at `min_layer`.

# %%
tuned = [name for name in names if name in experiment.backbones]
pruned = rule_policies(PRUNED, threshold, settings)
replays = {}
lost = []
for name, task in pairs:
    if name in tuned:
        replayed = replay_policies(traces[name, task], pruned, models[name, task])
        replays |= {(name, task, rule): replayed[rule] for rule in pruned}
        for rule in pruned:
            missing = ~replayed[rule].kept[:, -1]  # [token], at the last layer
            share = statistics.mean_interval(missing, traces[name, task].sequence)
            lost.append({"model": name, "task": task, "rule": rule} | share.columns("share"))
        below = traces[name, task].final_rank[:, min_layer - 1] > top_k
        np.testing.assert_allclose(np.mean(~replayed["fixed"].kept[:, -1]), below.mean(), atol=0.01)
lost = experiment.save_table(pd.DataFrame(lost), "lost_at_the_last_layer")

# %%
shown = lost.assign(cell=[f"{row.share:.1%} ({row.low:.1%} to {row.high:.1%})" for row in lost.itertuples()])
shown = shown.pivot(index=["model", "rule"], columns="task", values="cell")
display(shown.rename(index=figures.label, columns=figures.label))

# %% [markdown]
# Fixed pruning of the last layer, as published, changes less than 1 % of CALM's tokens, but 13 to 30 % of vanilla's, before
# a single token has exited. A last layer that scores the whole vocabulary changes none.
#
# ## Confidence against agreement, and the minimum exit layer that follows
#
# Mean top-1 probability (black) against *agreement*, the share of predictions that are already the last layer's
# (grey). The paper reads a minimum exit layer off such a plot (19 of 24 in its last runs). Our rule calls a
# prediction *confident* if the margin between the two most probable tokens exceeds a threshold, here that of the
# tables below. The minimum exit layer (dotted) is the earliest layer from which nearly all confident predictions (a
# share of `precision`) are the last layer's. The stored table also has a variant without a threshold: the first layer
# from which on mean confidence exceeds agreement by at most five points.


# %%
def agreement(t, **labels):
    return layer_reliability(t, t.top1_id == t.final_id[:, None], **labels)


honesty = experiment.table(agreement, traces, labels)
margin = RULES["unpruned"].policy(threshold, settings | {"min_layer": 1})
margins_of = {pair: replay_policy(t, margin) for pair, t in traces.items()}
minimum = experiment.table(pruning.minimum_layer, margins_of, labels, precision=precision)
minimum = experiment.save_table(minimum, "minimum_exit_layer")
safe_from = minimum.set_index(labels).minimum_layer

# %%
grey = figures.STYLES["accuracy"]._replace(label="predictions that are the last layer's")
figure, panels = figures.panels(
    honesty, down=len(tuned), title="Mean confidence and agreement with the last layer", note=note, height=2.3
)
for axes, of_task in panels:
    for axis, name in zip(np.ravel(axes), tuned, strict=True):
        rows = of_task[of_task.model == name]
        styles = figures.STYLES | {"accuracy": grey}
        figures.column_lines(axis, rows, "layer", ["confidence", "accuracy"], styles)
        layer = safe_from[name, rows.task.iloc[0]]
        axis.axvline(layer, color=figures.BLUE, linestyle=":", label="minimum exit layer")
        axis.set(ylabel=f"{figures.label(name)}\nmean over tokens", ylim=(0, 1.03))
experiment.save_figure(figure, "confidence_and_accuracy", honesty)

for name in tuned:
    print(f"{figures.label(name)}, minimum exit layer:", *safe_from[name])

# %% [markdown]
# Vanilla's first layer is certain of tokens that are almost never final; its layers can be trusted from 7 to 9 of 12 on,
# nearly as deep as the paper's choice. CALM's can be trusted from layer 2 on, for single tokens. What that means for
# whole outputs is in the next section.
#
# ## What a threshold of 0.9 does to scores and outputs
#
# The models decode with the softmax margin over the whole vocabulary and with each way of pruning, at one constant
# threshold, from `min_layer` on; *whole last layer* is ours, a fixed list before the last layer and all tokens at it. Two
# further runs score the whole vocabulary: from the minimum layer of the rule above on, and from layer 1 on.

# %%
ways = {
    "unpruned": "whole vocabulary",
    "adaptive": "adaptive list",
    "decaying": "decaying list",
    "fixed": "fixed list",
    "few": "fixed list, whole last layer",
}
decoding = {"max_new_tokens": max_new_tokens, "batch_size": batch_size}
policies = rule_policies(["unpruned", *(way for way in PRUNED if way in ways)], threshold, settings)
decoded = []
differing = []
for name, task in pairs:
    safe = RULES["unpruned"].policy(threshold, settings | {"min_layer": int(safe_from[name, task])})
    tried = {(way,): policy for way, policy in policies.items()}
    tried |= {("at its minimum",): safe, ("from the first",): margin}
    table, outputs = comparison.comparison(models[name, task], tasks[task], tried, ["reduction"], **decoding)
    decoded.append(table.assign(model=name))
    plain = outputs["unpruned",].token_ids
    for way in policies:
        changed = pruning.exactness(outputs[way,].token_ids, plain)
        differing.append({"model": name, "task": task, "reduction": way, **changed})
decoded = pd.concat(decoded).merge(pd.DataFrame(differing), "left", ["model", "task", "reduction"])
complete = round_table(decoded[decoded.reduction.isin(["full_depth", *policies])])
complete = experiment.save_table(complete, "complete_table")

# %%
order = list(ways)
drawn = complete[complete.reduction.isin(ways) & complete.model.isin(tuned)].dropna(subset="retained")
drawn = drawn.assign(height=drawn.reduction.map(order.index) + 0.12 * (drawn.model == tuned[0]))
figure, panels = figures.panels(
    drawn,
    title=f"Score kept with exits at a margin of {threshold:g}",
    note=experiment.note(limit, f"exits from layer {min_layer} on; whiskers: 95 % intervals over examples"),
)
for axis, rows in panels:
    figures.dots(axis, rows, "retained", "height", "model", xband=figures.BAND)
    axis.axvline(1, color=figures.GREY, linewidth=0.8)
    axis.set_yticks(range(len(order)), ways.values())
    axis.set(xlabel="share of the score at full depth", ylim=(len(order) - 0.5, -0.5))
experiment.save_figure(figure, "score_kept", drawn[[*labels, "reduction", "retained", *figures.BAND]])

for name in tuned:
    rows = drawn[drawn.model == name].set_index(["task", "reduction"])
    for task in rows.index.unique("task"):  # of a score of 0 nothing can be kept
        whole, fixed = rows.loc[(task, "unpruned")], rows.loc[(task, "fixed")]
        print(
            f"{figures.label(name)}, {figures.label(task)}, whole vocabulary -> fixed list:",
            f"score kept {whole.retained:.0%} -> {fixed.retained:.0%},",
            f"decoder FLOPs {whole.flops_share:.0%} -> {fixed.flops_share:.0%},",
            f"length {whole.length_share:.1f} -> {fixed.length_share:.1f} times full depth's,",
            f"outputs changed {fixed.other_output:.0%} (tokens {fixed.other_token:.1%})",
        )

# %%
by_rule = safe_from.rename("min_layer").reset_index()
runs = dict(list(decoded.groupby("reduction")))
at_safe = runs["at its minimum"][[*labels, "retained", "low", "high", "mean_exit_layer", "flops_share"]]
by_rule = by_rule.merge(at_safe, on=labels)
for column, run in {"retained_at_min_layer": "unpruned", "retained_from_first": "from the first"}.items():
    by_rule = by_rule.merge(runs[run].rename(columns={"retained": column})[[*labels, column]], on=labels)
by_rule = experiment.save_table(by_rule, "minimum_layer_decoded")
display(by_rule[by_rule.model.isin(tuned)].replace({name: figures.label(name) for name in [*tuned, *tasks]}))

# %% [markdown]
# In the model that is trained for exits, pruning is harmless to the score: CALM keeps 97 % or more of it, whichever way the
# vocabulary is pruned. Its outputs do change. A fixed list changes less than 1 % of the tokens up to the first that
# differs, but one changed token makes another output: up to 24 % of the outputs differ from those of the unpruned run.
#
# Vanilla is another matter. At a threshold of 0.9 its exits destroy the output before pruning does anything: with the
# whole vocabulary it keeps 47 % of its score on question answering, 55 % on translation and nothing on summarization,
# where all tokens exit at the first layer that may; its answers become seven times too long. Pruning the last layer
# lowers the score further, to 8 % on question answering and 33 % on translation, and up to 65 % of the outputs
# change. A whole last layer mends most of that (43 and 55 %).
#
# Does the minimum layer help? If exits begin at the layer that the rule proposes, both models keep at least 97 % of
# their score, though vanilla then takes more FLOPs than full depth. If they begin at layer 1, vanilla keeps nothing
# and CALM 48 to 83 %.
#
# ## The paper's table beside ours
#
# The paper's models exit from about layer 14 of 24 (`VANILLA_FROM`): its pruned T5-large exits at 59 to 63 % of the
# depth. So vanilla, the ordinary fine-tuned model, is decoded with exits from the same share of its depth. A
# published row is matched to ours if its model is fine-tuned and we have its task. The published "full depth" exits,
# too, and is matched to our margin over the whole vocabulary. In both, pruning includes the last layer. Scores cannot
# be compared across models and corpora; the effect of pruning can. Published rows rest on about ten examples.

# %%
published_from = round(VANILLA_FROM * experiment.layers)
as_published = rule_policies(
    ["unpruned", "fixed", "decaying"], threshold, settings | {"min_layer": published_from}
)
at_depth = []
for name, task in pairs:
    if name == "vanilla":
        tried = {(way,): policy for way, policy in as_published.items()}
        table, _ = comparison.comparison(models[name, task], tasks[task], tried, ["reduction"], **decoding)
        at_depth.append(table.assign(model=name))
beside = published_reductions(round_table(pd.concat(at_depth)), experiment.layers)
beside = experiment.save_table(beside, "published_rows")

# %%
shown = beside[beside.our_score.notna()].assign(
    kept=lambda rows: rows.score / rows.score_at_full_depth,
    our_kept=lambda rows: rows.our_score / rows.our_score_unpruned,
    reduction=lambda rows: rows.reduction.replace("full_depth", "none"),
)
shown = shown[["model", "dataset", "reduction", "depth", "kept", "our_task", "our_depth", "our_kept"]]
display(shown.round(2).reset_index(drop=True).replace({"our_task": figures.LABELS}))

# %% [markdown]
# On question answering we find what the paper reports: pruning leaves 80 % of the unpruned score with a fixed list and 84 %
# with a decaying one, the published run 80 %. On summarization about 90 % are left, and next to nothing in the published
# runs. Final tokens that are missing from a list cannot explain scores of 0; list positions that are taken for token ids
# can (08). At the same threshold our tokens exit later, at 78 to 84 % of the depth.
#
# ## What a decision costs
#
# In FLOPs: one decision in units of one decoder layer, at the sizes of the synthetic profile's models, T5-base and T5-large.
# *Break-even*: the rule is cheaper than full depth if tokens exit, on average, before this share of the depth (a token's
# first decision scores the whole vocabulary).

# %%
costs = []
for shape, sizes in SHAPES.items():
    for k in (32, 64, 256, 1024, 4096, sizes.vocabulary):
        if k <= sizes.vocabulary:
            cost = comparison.decision_cost(sizes, margin.measure, min_layer, k)
            costs.append({"shape": shape, "ids": k, **cost})
costs = experiment.save_table(pd.DataFrame(costs), "cost_of_a_readout")
shown = costs.pivot(index="ids", columns="shape", values=["share_of_layer", "break_even"])
names_of_costs = {"share_of_layer": "layers per decision", "break_even": "break-even depth"}
shown = shown.map("{:.2f}".format, na_action="ignore").fillna("").rename_axis(index="tokens scored")
display(shown.rename(columns=names_of_costs | figures.SIZES))

# %% [markdown]
# In time: tokens per second as a multiple of full depth's, timed by `make bench` in single precision, each way beside full
# depth on the same inputs, in random order. Intervals are in `times.csv`.

# %%
wanted = complete[(complete.reduction != "full_depth") & complete.model.isin(tuned)]
times = read_timings("reductions", wanted[["task", "model", "reduction"]], profile)
if len(times):
    times = experiment.save_table(times, "times")
    shown = times.assign(way=times.reduction.map(ways), batch=times.batch.map("batch size {}".format))
    shown = shown.pivot(index=["model", "way"], columns=["batch", "task"], values="speed").round(2)
    display(shown.rename(index=figures.label, columns=figures.label))

# %% [markdown]
# A margin over the whole vocabulary costs the FLOPs of 2.2 layers of T5-large, and pays only if tokens exit before 42
# % of the depth; over 256 tokens it costs a fiftieth of a layer and pays at almost any depth. In wall-clock time 04
# measures 2.4 layers for the same decision. With our small models, one output at a time, a fixed list makes CALM at
# most 3 % faster than the whole vocabulary; in batches of 32 it makes translation 16 % faster and hardly helps the
# other tasks. At this threshold, exits over a fixed list are 1.4 times as fast as full depth on question answering,
# one output at a time, and about as fast on the other tasks; in batches of 32 they are slower.
#
# ## At equal quality
#
# For every rule we take the lowest threshold at which 99 % of the predictions at the exits are full depth's (a token that
# pruning lost counts as wrong). Thresholds are chosen on one half of the outputs; the decoder FLOPs of the other half,
# decisions included, are drawn. This is a replay of CALM; what keeps the score of whole outputs is in 08. The rising
# top-1 rule, MEE's, exits when the top-1 probability has risen over three layers; over few tokens, it keeps the last
# layer whole. The stored table has other shares.

# %%
ruled = rule_policies(["unpruned", *PRUNED, "rising_top1", "rising_fixed"], threshold, settings)
replayed = {}
for task in tasks:
    of_task = replay_policies(traces[main, task], ruled, models[main, task])
    replayed |= {(task, rule): of_task[rule] for rule in ruled if rule != "decaying_closed"}
shares = [0.95, 0.98, 0.99, 0.995]
equal = experiment.table(comparison.at_equal_quality, replayed, ["task", "rule"], shares=shares)

# %%
exits = equal.mean_exit_layer < experiment.layers - 0.05  # else no threshold reaches the share
drawn = equal[(equal.wanted == 0.99) & exits]
order = [rule for rule in ruled if rule in set(drawn.rule)]
figure, panels = figures.panels(
    drawn.assign(height=drawn.rule.map(order.index)),
    title="Decoder FLOPs where 99 % of the predictions stay",
    note=experiment.note(limit, "whiskers: 95 % intervals over sequences"),
)
for axis, rows in panels:
    figures.dots(axis, rows, "flops_share", "height", xband=("flops_share_low", "flops_share_high"))
    axis.axvline(1, color=figures.GREY, linewidth=0.8)
    axis.set_yticks(range(len(order)), [figures.label(rule) for rule in order])
    axis.set(xlabel="decoder FLOPs (1 = full depth)", ylim=(len(order) - 0.5, -0.5))
experiment.save_figure(figure, "at_equal_quality", equal, with_legend=False)

for rule in order:
    of_rule = drawn[drawn.rule == rule]
    print(f"{figures.label(rule)}:", *of_rule.flops_share.map("{:.0%}".format))

# %% [markdown]
# Fixed and decaying lists take 51 to 55 % of full depth's FLOPs on question answering, 76 to 78 % on translation and
# 91 to 93 % on summarization; the whole vocabulary takes 55, 120 and 127 %. Adaptive pruning saves next to nothing of
# that: it keeps at least a tenth of the vocabulary. Over the same tokens, the rising top-1 rule costs more than the
# margin on every task, with pruning and without. A pruned last layer limits the agreement that can be reached: with a
# fixed list, no threshold keeps 99.5 % of the predictions on summarization. With a whole last layer one does, at 95 %
# of full depth's FLOPs.
#
# ## What this shows
#
# A decision need not score the whole vocabulary. In a model that is trained for exits, 64 of 4,000 tokens are enough:
# decoding takes 62 to 94 % of full depth's decoder FLOPs at a threshold of 0.9, in place of 78 to 155 %, and keeps 97 %
# or more of the score. In an ordinary model the final token is often missing from the list, and a pruned last layer cannot bring it back;
# a whole last layer can, for one use of the LM head. Pruning makes decisions cheaper, not safer: what 0.9 does to vanilla
# it does with the whole vocabulary too. Which exits keep the score is in 08.
#
# ## Statements, published and ours
#
# *Published* is the number, or how the paper makes the statement. Whether a statement holds, corrected for the number of
# tests, is in the [ledger](../figures/results/ledger.md).

# %%
measured = {
    "recall": recall,
    "complete": complete,
    "minimum": minimum,
    "honesty": honesty,
    "equal": equal.assign(model=main),
    "first": runs["from the first"],
    "times": times,
}
measured = {name: table.replace({"model": {pre_trained: "pretrained"}}) for name, table in measured.items()}
tables = {task: {name: table[table.task == task] for name, table in measured.items()} for task in tasks}
judged = claims.judge("03_pruning", tables)
claims.show_judged(experiment.save_table(judged, "claims"))

# %% [markdown]
# **Next:** [04](04_contrastive_decoding.ipynb): does contrast between layers improve the confidence itself?

# %% tags=["hide-input"]
experiment.finish()
