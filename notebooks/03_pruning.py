# %% [markdown]
# # 03 · Pruning: must a layer look at the whole vocabulary to be sure?
#
# [‹ 02 saturation](02_saturation.ipynb) · [all notebooks](../README.md#the-notebooks) · [04 contrastive decoding ›](04_contrastive_decoding.ipynb)
#
# **Question.** A rule on probabilities multiplies the state by the whole vocabulary at every layer, which can
# cost more than the exit saves. How many token ids does it have to look at, what is lost with the others, and
# does the rule become cheaper than full depth?
#
# **What the paper says** (*Not all FLOPs are created equally*). The final token already ranks high after the
# first layers, more so in fine-tuned models. After a minimum exit layer only the best $k$ ids are kept:
# *fixed*, or *decaying* from layer to layer; its code has an *adaptive* form too. Its table is preliminary:
# pruned runs that score 0, because a position in the kept list was taken for a token id.
#
# **What we do.** Ranks and recall first, then the minimum exit layer as a rule in place of a guess, then the
# paper's table, complete, with its exactness: how often does a pruned run emit another token than the same
# run unpruned? Last, cost, counted and by the clock.
#
# **Expectation** (the paper's): pruning trades score for time. Ours, since kept ids are mapped back to tokens
# here: almost nothing is lost with a few dozen ids.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 100  # held-out examples of each task
max_new_tokens = 48  # longest output, in tokens
batch_size = 100  # rows decoded at a time
threshold = 0.9  # of the softmax margin, constant
min_layer = 4  # first layer at which a token may exit
top_k = 64  # ids kept by fixed pruning
first_k = 256  # ids that decaying pruning begins with
least_k = 16  # ids that decaying pruning ends with (k*)
precision = 0.95  # share of exits that must be right at a safe minimum layer
quality = 0.99  # share of the full score that must be kept

# %%
import pandas as pd

from mee_utils import Experiment
from mee_utils.analysis import comparison, pruning
from mee_utils.analysis.monotonicity import layer_reliability
from mee_utils.models.costs import SHAPES
from mee_utils.paper import claims
from mee_utils.paper.numbers import save_numbers
from mee_utils.paper.published_numbers import published_reductions
from mee_utils.study import figures
from mee_utils.study.catalogue import PRUNED, RULES, rule_policies
from mee_utils.study.result_tables import KEEPS_IT, inputs_of, read_measured, read_timings
from mee_utils.study.results import round_table
from mee_utils.study.verdicts import keeping
from mee_utils.traces.replay import replay_policies, replay_policy

# %%
experiment = Experiment.of_notebook("03_pruning", globals())
settings = experiment.parameters
note = f"profile {profile}, n = {limit} examples a task"

# %%
pre_trained = experiment.profile.training.models[0]
names = [name for name in (pre_trained, "vanilla", "calm") if name in experiment.model_names]
tasks = experiment.tasks(limit)
models = experiment.models(names)
calm = models["calm"]
vocabulary = calm.network.config.vocab_size
pairs = [(name, task) for name in models for task in tasks]
traces = {(name, task): experiment.trace(name, task, limit, max_new_tokens) for name, task in pairs}
labels = ("model", "task")  # of a trace

# %% [markdown]
# ## Where does the final token rank?
#
# The rank that each layer gives to the token that the *last* layer will choose (1 is the top): boxes from the
# first to the third quartile, the median in black, whiskers from the 5th to the 95th percentile. The first
# model is pre-trained only (by span corruption, it has seen no task); the others were trained on the tasks.

# %%
boxes = experiment.table(pruning.rank_boxes, traces, labels)
ends = {"median": "med", "low": "q1", "high": "q3", "whisker_low": "whislo", "whisker_high": "whishi"}


def draw(axis, rows):
    drawn = rows.rename(columns=ends)[list(ends.values())]
    colour = figures.STYLES[rows.model.iloc[0]].colour
    look = {
        "boxprops": {"facecolor": colour, "alpha": 0.45, "edgecolor": colour},
        "medianprops": {"color": "black", "linewidth": 1.6},
        "capprops": {"color": colour},
        "whiskerprops": {"color": colour},
    }
    options = {"widths": 0.65, "manage_ticks": False, "showfliers": False, "patch_artist": True}
    axis.bxp(drawn.to_dict("records"), list(rows["layer"]), **look, **options)
    axis.set_yscale("log")
    figures.layer_axis(axis, calm.layers)


# %%
figure = figures.facets(boxes, draw, row="model", ylabel="rank of the final token", note=note)
experiment.save_figure(figure, "rank_boxes", boxes)
on_top = boxes[boxes.layer == min_layer].groupby("model", sort=False).on_top
spans = [f"{figures.label(name)} {rows.min():.0%} to {rows.max():.0%}" for name, rows in on_top]
print(f"Layer {min_layer} ranks the final token first, from task to task:", "; ".join(spans))

# %% [markdown]
# ## Confidence against accuracy, and the minimum exit layer that follows
#
# Mean top-1 probability (black) against the share of predictions that are already the last layer's. Where
# black is above colour, a layer promises too much. The paper guesses a minimum exit layer from such a plot
# (19 of 24 in its last runs). The rule here: the first layer from which on, at every layer, of the tokens
# that exceed the threshold at least 95 % keep their prediction. Beside it one without a threshold: from which
# layer on is the mean confidence at most five points above the accuracy?


# %%
def agreement(t, **labels):
    return layer_reliability(t, t.top1_id == t.final_id[:, None], **labels)


honesty = experiment.table(agreement, traces, labels)
agrees = figures.STYLES["accuracy"]._replace(label="predictions that are the last layer's")
curves = {
    "x": "layer",
    "columns": ["confidence", "accuracy"],
    "styles": figures.STYLES | {"accuracy": agrees},
}
look = {"ylabel": "mean over tokens", "note": note}
figure = figures.facets(honesty, figures.column_lines, row="model", **curves, **look)
experiment.save_figure(figure, "confidence_and_accuracy", honesty)
worst = honesty.loc[(honesty.confidence - honesty.accuracy).idxmax()]
where = f"{figures.label(worst.model)}, {figures.label(worst.task)}, layer {worst.layer}"
print(f"Most overconfident: {where}, with {worst.confidence:.2f} for {worst.accuracy:.2f}")

# %%
margin = RULES["unpruned"].policy(threshold, settings | {"min_layer": 1})
margins_of = {pair: replay_policy(t, margin) for pair, t in traces.items()}
minimum = experiment.table(pruning.minimum_layer, margins_of, labels, precision=precision)
minimum = experiment.save_table(minimum, "minimum_exit_layer")
minimum.pivot(index="model", columns="task", values=["minimum_layer", "calibrated"])

# %% [markdown]
# ## Recall: is the final token among the best k?
#
# What pruning at a layer keeps: the share of tokens whose final id is among the $k$ best of that layer, CALM.

# %%
sizes = [k for k in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if k < vocabulary]
kept_at = experiment.table(pruning.recall, traces, labels, sizes=sizes)
drawn = kept_at[(kept_at.model == "calm") & kept_at.layer.isin([1, 2, 3, 4, 6, 8])]
curves = {"x": "k", "y": "recall", "by": "layer", "band": figures.BAND}
curves["styles"] = figures.layer_styles(calm.layers)
look = {"xlabel": "ids kept, k", "ylabel": "share of final tokens kept", "note": note}
figure = figures.facets(drawn, figures.lines, **curves, **look)
figure.axes[0].set_xscale("log", base=2)
experiment.save_figure(figure, "recall_by_k", drawn)
at_first = kept_at[(kept_at.layer == min_layer) & (kept_at.k == top_k)].groupby("model", sort=False).recall
least = [f"{figures.label(name)} {share:.2%}" for name, share in at_first.min().items()]
print(f"The best {top_k} ids of layer {min_layer} hold at least:", ", ".join(least), "of the final tokens")

# %% [markdown]
# From layer to layer: how many rows of the vocabulary matrix each way of pruning multiplies if nobody exits,
# and, in the line below, how many final tokens it still holds at the end. Decaying pruning keeps $k$ ids at
# the first pruned layer and shrinks the list from there on, down to $k^*$:
#
# $$k_l = \max\left(k^*, \left\lfloor \frac{k_{l-1}}{1 + \frac{k_{l-1} - k^*}{k^*} \cdot \frac{l-1}{L}} \right\rfloor\right)$$
#
# Adaptive pruning keeps $\lfloor V(1 - 0.9\,c)\rfloor$ ids at a confidence of $c$: a tenth of the vocabulary
# even where it is certain. A readout of more than half of the ids is done in full.

# %%
margins = rule_policies(("unpruned", *PRUNED), threshold, settings)
policies = margins | rule_policies(("rising_top1", "rising_fixed"), threshold, settings)
replays = {}
for task in tasks:
    by_key = {(task, rule): policy for rule, policy in policies.items()}
    replays |= replay_policies(traces["calm", task], by_key, calm)
replays_of_pruned = {(task, form): replays[task, form] for task in tasks for form in PRUNED}
by_layer = experiment.table(pruning.kept_by_layer, replays_of_pruned, labels=("task", "rule"))

# %%
figure = figures.facets(by_layer, figures.lines, x="layer", y="ids", ylabel="ids read out", note=note)
figure.axes[0].set_yscale("log")
experiment.save_figure(figure, "kept_by_layer", by_layer)
last = by_layer[by_layer.layer == calm.layers].groupby("rule", sort=False)
kept = [
    f"{figures.label(form)} {rows.recall.min():.2%} ({rows.ids.max():.0f} ids at most)" for form, rows in last
]
print("Final tokens still kept at the last layer, at least:", ", ".join(kept))

# %% [markdown]
# ## The paper's table, complete
#
# Every model and task, decoded at full depth, with the softmax margin over all ids, and with each way of
# pruning; threshold 0.9, constant, from layer 4 on. Other tokens are the exactness report: of the tokens up
# to the first that differs from the *unpruned run at the same threshold*, the share that does (a lost id, or
# another exit, since probabilities over fewer ids are larger). The figure shows CALM, with 95 % intervals.

# %%
decoding = {"max_new_tokens": max_new_tokens, "batch_size": batch_size}
tried = {(form,): policy for form, policy in margins.items() if form != "decaying_closed"}
safe_from = minimum.set_index(["model", "task"]).minimum_layer
complete = []
aside = []
for name, task in pairs:
    safe = RULES["unpruned"].policy(threshold, settings | {"min_layer": int(safe_from[name, task])})
    policies = tried | {("at its minimum",): safe, ("from the first",): margin}
    table, decoded = comparison.comparison(models[name], tasks[task], policies, ("reduction",), **decoding)
    plain = decoded["unpruned",].token_ids
    differ = [{"reduction": form, **pruning.exactness(decoded[form,].token_ids, plain)} for (form,) in tried]
    rows = table.assign(model=name).merge(pd.DataFrame(differ), on="reduction", how="left")
    complete.append(rows[: 1 + len(tried)])
    aside.append(rows[1 + len(tried) :])
complete = round_table(pd.concat(complete, ignore_index=True))
aside = pd.concat(aside, ignore_index=True)


# %%
def draw(axis, rows):
    figures.dots(axis, rows, "flops_share", "retained", "reduction", yband=figures.BAND)
    axis.axvline(1.0, color=figures.GREY, linewidth=0.8)
    axis.axhline(1.0, color=figures.GREY, linewidth=0.8)


shown = complete[(complete.model == "calm") & (complete.reduction != "full_depth")]
look = {"xlabel": "FLOPs (1 = full depth)", "ylabel": "score kept (1 = full depth)", "note": note}
figure = figures.facets(shown, draw, **look)
experiment.save_figure(figure, "complete_table", complete)
others = complete[complete.reduction.isin(PRUNED)].groupby("model", sort=False).other_token.max()
most = [f"{figures.label(name)} {share:.2%}" for name, share in others.items()]
print("Tokens that pruning changes, at most:", ", ".join(most))

# %%
values = ["score", "mean_exit_layer", "other_token"]
complete.pivot_table(index=["task", "model"], columns="reduction", values=values, sort=False).round(3)

# %% [markdown]
# And the minimum exit layer of the rule above, in place of layer 4: the margin over all ids, at the layer
# that the rule gave each model and task; beside it the margin that may exit at every layer.

# %%
keys = ["model", "task"]
at_safe = aside[aside.reduction == "at its minimum"]
first = aside[aside.reduction == "from the first"]
by_rule = safe_from.rename("min_layer").reset_index()
by_rule = by_rule.merge(at_safe[[*keys, "retained", "mean_exit_layer", "flops_share"]], on=keys)
beside = {"retained_at_min_layer": complete[complete.reduction == "unpruned"], "retained_from_first": first}
for column, rows in beside.items():
    by_rule = by_rule.merge(rows.rename(columns={"retained": column})[[*keys, column]], on=keys)
by_rule = experiment.save_table(by_rule, "minimum_layer_decoded")
by_rule.set_index(keys).round(3)

# %% [markdown]
# ## By the clock
#
# Tokens a second of the fine-tuned models above (`speed`), and samples a second (`samples speed`: outputs may be longer
# or shorter), full depth being 1, timed by `make bench` in single precision, contenders taking turns. Seconds are in
# `times.csv`.

# %%
compared = complete[(complete.reduction != "full_depth") & complete.model.isin(experiment.backbones)]
compared = compared[["task", "model", "reduction"]]
times = read_timings("reductions", compared, profile, complete=True)
if len(times):
    experiment.save_table(times, "times")
else:
    print("not measured for these settings: run make bench")
by_batch = times.set_index(["model", "task", "batch", "reduction"])
by_batch[["speed", "samples_speed"]].astype(float).unstack(sort=False).round(2)

# %% [markdown]
# ## Each published row beside ours
#
# The paper's rows, its mean exit layer as a share of the depth, beside ours: pre-trained beside `pretrained`,
# fine-tuned beside `vanilla`, and its "full depth", which exits too, beside our margin over all ids. Scores are
# not comparable across models and corpora; what pruning does to them is. `seconds` are for ten examples, as its
# rows seem to be, ours one at a time (`make bench`; machines differ, so compare rows of one model).

# %%
as_published = {"model": {pre_trained: "pretrained"}}
decided = complete[complete.reduction != "full_depth"][["task", "model", "reduction"]]
all_times = read_timings("reductions", decided, profile).replace(as_published)
beside = published_reductions(complete.replace(as_published), all_times, calm.layers)
experiment.save_table(beside, "published_rows")
theirs = ["score", "score_at_full_depth"]
ours = ["our_task", "our_score", "our_score_unpruned"]
speeds = ["seconds", "our_seconds", "samples_per_second", "our_samples_per_second"]
beside[["model", "dataset", "reduction", *theirs, *ours, *speeds, "why_they_differ"]].round(1)

# %% [markdown]
# ## How small may k be?
#
# The margin at a threshold of 0.9 with the $k$ best ids of layer 4 (fixed), and decaying from there to $k^*$:
# predictions that stay, and FLOPs; a replay, CALM.

# %%
of_size = {}
for k in (2, 4, 8, 16, 32, 64, 128, 256, 512):
    sized = settings | {"top_k": k, "least_k": min(k, first_k)}
    for form, policy in rule_policies(("fixed", "decaying"), threshold, sized).items():
        of_size[form, k] = policy
swept = []
for task in tasks:
    for (form, k), replayed in replay_policies(traces["calm", task], of_size, calm).items():
        swept.append({"task": task, "rule": form, "k": k, **comparison.replayed_row(replayed)})
swept = pd.DataFrame(swept)

# %%
quantities = {"same_token": "predictions that stay", "flops_share": "FLOPs (1 = full depth)"}
look = {"xlabel": "ids kept: k (fixed), k* (decaying)", "sharey": "row", "note": note}
figure = figures.facets(swept, figures.lines, x="k", quantities=quantities, **look)
figure.axes[0].set_xscale("log", base=2)
experiment.save_figure(figure, "sweep_of_k", swept)
least = swept[swept.rule == "fixed"].groupby("k").same_token.min()
print(f"Predictions that stay on every task, fixed: {least[8]:.1%} with 8 ids, {least[512]:.1%} with 512")

# %% [markdown]
# ## What a decision costs
#
# One decision after the first in layers, counted, at the shapes of the mini models, T5-base and T5-large
# (whose vocabulary has 32,128 ids), and the break-even depth: the mean exit layer, as a share of the depth,
# below which the rule is cheaper than full depth.

# %%
costs = []
for shape, sizes in SHAPES.items():
    for k in (32, 64, 256, 1024, 4096, sizes.vocabulary):
        if k <= sizes.vocabulary:
            cost = comparison.decision_cost(sizes, margin.measure, min_layer, k)
            costs.append({"shape": shape, "ids": k, **cost})
costs = pd.DataFrame(costs)


def draw(axis, rows, y):
    axis.plot(rows.ids, rows[y], "o-", color=figures.BLUE)


# %%
quantities = {"share_of_layer": "one decision, in layers", "break_even": "break-even exit / depth"}
figure = figures.facets(costs, draw, "shape", quantities=quantities, xlabel="ids read out", sharey="row")
figure.axes[0].set(xscale="log", yscale="log")
experiment.save_figure(figure, "cost_of_a_readout", costs)
large = costs[(costs["shape"] == "t5-large") & costs.ids.isin([256, SHAPES["t5-large"].vocabulary])]
for row in large.itertuples():
    cost = f"a decision over {row.ids} ids takes {row.share_of_layer:.2f} layers"
    print(f"t5-large: {cost} and pays for exits below {row.break_even:.0%} of the depth")

# %% [markdown]
# ## At equal quality
#
# For every rule the lowest threshold at which 95, 98, 99 and 99.5 % of the predictions at the exits are the
# full-depth ones (a token lost by pruning counts as another one): what is spent then, deciding included. A
# replay, CALM.

# %%
compared = {(task, rule): r for (task, rule), r in replays.items() if rule != "decaying_closed"}
shares = [0.95, 0.98, 0.99, 0.995]
equal = experiment.table(comparison.at_equal_quality, compared, labels=("task", "rule"), shares=shares)
equal = experiment.save_table(equal, "at_equal_quality")
equal.pivot(index=["task", "rule"], columns="wanted", values=["mean_exit_layer", "flops_share"]).round(2)

# %% [markdown]
# ## What keeps 99 % of the full score
#
# From the stored measurements (`make measure`). The settings of a rule are tested on the test examples in an order
# that validation examples fix (08), as long as 99 % of the score is kept for certain (the lower end of a paired 95 %
# interval). Bars are what the cheapest of those that pass costs; the line is full depth. A rule without a bar fails
# at the first.

# %%
stored = read_measured(profile)
tested = f"profile {profile}, n = {stored.tested} test examples a task"
experiment.run.inputs["results measured"] = inputs_of(experiment.profile.name)["results measured"]
wanted = ["softmax_margin", "fixed", "decaying", "adaptive", "rising_top1", "rising_fixed", "static"]
kept = [keeping(stored, name, quality) for name in ("calm", "vanilla") if name in set(stored.settings.model)]
kept = pd.concat(kept, ignore_index=True)
kept = kept[kept.rule.isin(wanted) & kept.task.isin(list(tasks))]


# %%
def draw(axis, rows):
    figures.bars(axis, rows, "flops_share", band=("flops_low", "flops_high"))
    axis.axvline(1.0, color=figures.GREY, linewidth=0.8)


drawn = kept[kept.verdict == KEEPS_IT].sort_values("flops_share")
panels = {"row": "model", "values": list(tasks), "empty": f"no rule keeps {quality:.0%}\nfor certain"}
look = {"xlabel": "FLOPs (1 = full depth)", "sharey": False, "width": 4.4, "note": tested}
figure = figures.facets(drawn, draw, **panels, **look)
experiment.save_figure(figure, "at_99_percent", kept)
for row in drawn.drop_duplicates(["task", "model"]).itertuples():
    spent = f"{row.flops_share:.0%} ({row.flops_low:.0%} to {row.flops_high:.0%}) of the FLOPs"
    print(f"{figures.label(row.task)}, {figures.label(row.model)}: {figures.label(row.rule)}, {spent}")

# %% [markdown]
# ## Each published statement beside our number

# %%
measured = {
    "boxes": boxes,
    "recall": kept_at,
    "complete": complete,
    "minimum": minimum,
    "honesty": honesty,
    "equal": equal.assign(model="calm"),
    "first": first,
    "times": times,
}
measured = {name: table.replace({"model": {pre_trained: "pretrained"}}) for name, table in measured.items()}
tables = {task: {name: table[table.task == task] for name, table in measured.items()} for task in tasks}
verdicts = claims.judge("03_pruning", tables)
experiment.save_table(verdicts, "claims")[["claim", "published", "task", "ours", "alone"]]

# %% [markdown]
# ## What this shows, and what it does not
#
# About profile `small`; what is different on real text stands at the end.
#
# *How many ids?* A few dozen. After layer 4 of an exit-trained model the best 64 ids hold all but a handful
# of the final tokens, and the pruned run emits another token than the unpruned one almost never. A model
# trained at its last layer only ranks worse early on: there fixed and decaying lists change a large part of the
# tokens and most of the score, adaptive ones hardly any (`vanilla` in the exactness report). Scores of exactly 0,
# as in the published table, come from positions taken for ids (08), and its rows rest on ten examples each
# (seconds times samples a second; see the column `samples`), not a hundred.
#
# *Is deciding then cheaper than not exiting?* Yes, where tokens may leave early. Readouts over a few dozen ids cost a small share of a layer;
# at the vocabulary of T5-large the margin over all ids pays only for exits in the first half of the depth, the
# pruned one at nearly any depth. At one threshold adaptive pruning saves least: it keeps a tenth of the vocabulary where it is
# certain and all of it where it is not, and must sort the whole vocabulary once. By the clock little or
# nothing is gained here: at the width of the mini models a layer takes so little that choosing ids and gathering
# their rows eats what 1,600 ids cost (the table above). No large model was decoded; one decision at the shape of
# T5-large, timed, is in 04 (`measured_cost`).
#
# *A minimum exit layer.* The rule gives layer 1 for the model trained to exit, and a late one for vanilla, where
# it decides between a broken output and a better one. It is a rule on single tokens: 95 % right at each exit is
# not enough for a whole output, since errors add up. From layer 1 on CALM's translations lose what they keep
# from layer 4 on. What an output keeps has to be calibrated on outputs (08).
#
# *At 99 % of the score for certain.* On summaries and translations of the CALM model margins are the cheapest
# rules of this notebook, well below a fixed exit layer; fixed and decaying lists cost a little less than all ids. On the vanilla
# model a fixed layer near the top is all there is, and on question answering not even that: the margin that keeps
# the score there leaves so late that deciding costs more than it saves, and pruned margins do not keep it.
#
# *Pruning does not make a rule safer.* Whether a setting of CALM keeps 99 % of the score is a matter of the exits,
# not of the readout. On question answering the only settings that do never exit, so that pruning just makes the
# wasted decisions cheap: an answer is right only if each of its tokens is, and the states that exits leave
# behind are not those that the later words were trained on (08: even the oracle's exits lose there).
#
# *What the pre-trained model cannot say.* It saw few examples and cannot do most of these tasks (its full depth is in the
# table above), so where a statement compares it with the fine-tuned one the verdict is "cannot be tested here".
#
# All of this is about mini models with a vocabulary of 1,600 ids; that ranks are as good in
# T5-large is what the paper's box plots say and was not run here.
#
# *On real text* (profile `real`, 4,000 ids) the best 64 ids of layer 4 miss a few final tokens in a thousand, and rules with a
# fixed list are no longer certain to keep 99 % of the score, however late they exit. The adaptive list misses hardly
# anything, but it stays long, and a readout over all ids costs several layers of this width: it pays on questions
# only, and on summaries and translations no rule of this notebook saves anything for certain. Without training to exit, the margin at 0.9 leaves nothing of the summaries and about half of the rest.
#
# **Files.** Every figure as PNG (with `MEE_PDF=1` also as PDF) beside the CSV of what was drawn, and a manifest, in
# `figures/<profile>/03_pruning`.
# **Next:** [04](04_contrastive_decoding.ipynb) asks whether contrast between layers improves the confidence itself.

# %%
save_numbers(experiment.run)
experiment.finish()
