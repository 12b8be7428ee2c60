# %% [markdown]
# # 03 · Pruning: must a block look at the whole vocabulary to be sure?
#
# **Question.** A rule on probabilities multiplies the state by the whole vocabulary at every block, which can cost more than the exit saves. How many
# token ids does it have to look at, what is lost with the others, and does the rule become cheaper than no exit at all?
#
# **What the paper says** (*Not all FLOPs are created equally*). The final token already ranks high after the first blocks, more so in
# fine-tuned models. After a minimum exit block only the best $k$ ids are kept: *fixed*, or *decaying* from block to block; its code has an *adaptive*
# form too. Its table is preliminary: pruned runs that score 0, because a position in the kept list was taken for a token id.
#
# **What we do.** Ranks and recall first, then the minimum exit block as a rule in place of a guess, then the paper's table, complete, with its exactness:
# how often does a pruned run emit another token than the same run unpruned? Last, cost, counted and by the clock.
#
# **Expectation** (the paper's): pruning trades score for time. Ours, since kept ids are mapped back to tokens here: almost nothing is lost with a few dozen ids.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 100  # held-out examples of each task
max_new_tokens = 48  # longest output, in tokens
batch_size = 100  # rows decoded at a time
threshold = 0.9  # of the softmax margin, constant
min_layer = 4  # first block at which a token may exit
top_k = 64  # ids kept by fixed pruning
first_k = 256  # ids that decaying pruning begins with
least_k = 16  # ids that decaying pruning ends with (k*)
precision = 0.95  # share of exits that must be right at a safe minimum block
quality = 0.99  # share of the full score that must be kept

# %%
import pandas as pd

from mee_utils import Companion, ExitPolicy, claims, figures, trace
from mee_utils.bench import SHAPES, stored_reductions
from mee_utils.evaluation import comparison, pruning
from mee_utils.evaluation.monotonicity import block_calibration
from mee_utils.evaluation.readings import readings
from mee_utils.evaluation.replay import confidences
from mee_utils.published import published_reductions

settings = dict(limit=limit, max_new_tokens=max_new_tokens, batch_size=batch_size, threshold=threshold, min_layer=min_layer, top_k=top_k,
                first_k=first_k, least_k=least_k, precision=precision, quality=quality)  # fmt: skip
companion = Companion("03_pruning", profile, data, **settings)
tasks, models = companion.tasks(limit), companion.models([name for name in ("base", "vanilla", "calm") if name in companion.model_names])

# %%
traces = {
    (name, task): trace(model, tasks[task].inputs, max_new_tokens=max_new_tokens, states=companion.scratch(f"{name}-{task}.npy"))
    for name, model in models.items() for task in tasks
}
layers, vocabulary = models["calm"].layers, models["calm"].network.config.vocab_size

# %% [markdown]
# ## Where does the final token rank?
#
# The rank that each block gives to the token that the *last* block will choose (1 is the top): boxes from the first to the third quartile, the median in
# black, whiskers from the 5th to the 95th percentile. `base` is pre-trained only, the others are fine-tuned from it.

# %%
boxes = pd.concat([pruning.rank_boxes(t, model=name, task=task) for (name, task), t in traces.items()], ignore_index=True)
figure, axes = figures.panels(len(traces), columns=len(tasks), width=3.9, height=2.3, profile=profile, sharex=True, sharey=True)
for axis, ((name, task), rows) in zip(axes, boxes.groupby(["model", "task"], sort=False)):
    figures.rank_box(axis, rows, name)
    figures.block_axis(axis, layers)
    axis.set(title=f"{figures.label(name)}, {figures.label(task)}", ylabel="rank of the final token")
figures.only_outer_labels(axes, len(tasks))
companion.save_figure(figure, "rank_boxes", boxes)
for (name, task), rows in boxes[boxes.layer == min_layer].groupby(["model", "task"], sort=False):
    row = rows.iloc[0]
    print(f"{figures.label(name)}, {figures.label(task)}: after block {min_layer} on top {row.on_top:.1%}, 95th percentile of the rank {row.whisker_high:.0f}")

# %% [markdown]
# ## Confidence against accuracy, and the minimum exit block that follows
#
# Mean top-1 probability (black) against the share of predictions that are already the last block's. Where black is above colour, a block promises too
# much. The paper guesses a minimum exit block from such a plot (19 of 24 in its last runs). The rule here: the first block from which on, at every block,
# of the tokens that exceed the threshold at least 95 % keep their prediction. Beside it one without a threshold: from which block on is the mean
# confidence at most five points above the accuracy?

# %%
honesty = pd.concat(
    [block_calibration(t, t.top1_id == t.final_id[:, None], model=name, task=task) for (name, task), t in traces.items()], ignore_index=True
)
figure, axes = figures.panels(len(traces), columns=len(tasks), width=3.9, height=2.2, profile=profile, sharex=True, sharey=True)
for axis, ((name, task), rows) in zip(axes, honesty.groupby(["model", "task"], sort=False)):
    figures.confidence_and_accuracy(axis, rows, name)
    figures.block_axis(axis, layers)
    axis.set(title=f"{figures.label(name)}, {figures.label(task)}", ylabel="share", ylim=(0, 1.02))
figures.only_outer_labels(axes, len(tasks))
figures.shared_legend(figure, axes[0])
companion.save_figure(figure, "confidence_and_accuracy", honesty)

# %%
margin = ExitPolicy("softmax_margin", threshold=threshold)
minimum = pd.DataFrame([pruning.minimum_block(t, margin, precision, model=name, task=task) for (name, task), t in traces.items()])
minimum = companion.save_table(minimum, "minimum_exit_block")
for row in minimum.itertuples():
    print(f"{figures.label(row.model)}, {figures.label(row.task)}: exits above {threshold} are safe from block {row.minimum_block} on; honest from {row.calibrated}")

# %% [markdown]
# ## Recall: is the final token among the best k?
#
# What pruning at a block keeps: the share of tokens whose final id is among the $k$ best of that block, CALM.

# %%
sizes = [k for k in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if k < vocabulary]
kept_at = pd.concat([pruning.recall(t, sizes, model=name, task=task) for (name, task), t in traces.items()], ignore_index=True)
drawn = kept_at[(kept_at.model == "calm") & kept_at.layer.isin([1, 2, 3, 4, 6, 8])]
figure, axes = figures.panels(len(tasks), width=3.9, height=2.9, profile=profile, sharey=True)
for axis, (task, rows) in zip(axes, drawn.groupby("task", sort=False)):
    for layer, part in rows.groupby("layer"):
        figures.depth_curve(axis, part, "k", "recall", layer, layers)
    axis.set(title=figures.label(task), xlabel="ids kept, k", ylabel="share of final tokens kept")
    axis.set_xscale("log", base=2)
figures.only_outer_labels(axes, len(tasks))
figures.depth_colours(figure, axes, layers)
companion.save_figure(figure, "recall_by_k", drawn)
for (name, task), rows in kept_at[(kept_at.layer == min_layer) & (kept_at.k == top_k)].groupby(["model", "task"], sort=False):
    print(f"{figures.label(name)}, {figures.label(task)}: the best {top_k} of block {min_layer} hold {rows.recall.iloc[0]:.2%} of the final tokens")

# %% [markdown]
# From block to block: what each way of pruning still holds if nobody exits, and how many rows of the vocabulary matrix it multiplies. Adaptive
# pruning keeps $\lfloor V(1 - c \cdot$ 0.9$)\rfloor$ ids at a confidence of $c$: a tenth of the vocabulary even where it is certain, and a read-out of more than half of the
# ids is done in full.

# %%
forms, margins = pruning.reduced_read_outs(settings), pruning.margins(settings)
by_block = pd.concat(
    [pruning.kept_by_block(traces["calm", task], margins[form], models["calm"], task=task, rule=form) for task in tasks for form in forms], ignore_index=True
)
figure, axes = figures.panels(2 * len(tasks), columns=len(tasks), width=3.9, height=2.5, profile=profile, sharex=True, sharey="row")
for number, axis in enumerate(axes):
    column, task = ("recall", "ids")[number // len(tasks)], list(tasks)[number % len(tasks)]
    figures.rule_curves(axis, by_block[by_block.task == task], "layer", column, ("low", "high") if column == "recall" else None)
    figures.block_axis(axis, layers)
    axis.set(title=figures.label(task), ylabel={"recall": "final tokens still kept", "ids": "ids multiplied"}[column], yscale={"recall": "linear", "ids": "log"}[column])
figures.only_outer_labels(axes, len(tasks))
figures.all_in_legend(figure, axes)

# %%
companion.save_figure(figure, "kept_by_block", by_block)
for (task, form), rows in by_block[by_block.layer == layers].groupby(["task", "rule"], sort=False):
    print(f"{figures.label(task)}, {figures.label(form)}: at the last block {rows.recall.iloc[0]:.2%} kept among {rows.ids.iloc[0]:.0f} of {vocabulary} ids")

# %% [markdown]
# ## The paper's table, complete
#
# Every model and task, decoded without exits, with the softmax margin over all ids, and with each way of pruning; threshold 0.9, constant, from block 4 on.
# Other tokens are the exactness report: of the tokens up to the first that differs from the *unpruned run at the same threshold*, the share that does
# (a lost id, or another exit, since probabilities over fewer ids are larger).

# %%
decoding, complete = dict(max_new_tokens=max_new_tokens, batch_size=batch_size), []
for name, model in models.items():
    for task in tasks.values():
        table, decoded = comparison.comparison(model, task, {(form,): policy for form, policy in margins.items() if form != "decaying_closed"}, ("reduction",), **decoding)
        plain = decoded[("unpruned",)].token_ids
        differ = pd.DataFrame([{"reduction": form[0], **pruning.exactness(found.token_ids, plain)} for form, found in decoded.items() if form])
        complete.append(table.assign(model=name).merge(differ, on="reduction", how="left"))
complete = companion.save_table(pd.concat(complete, ignore_index=True), "complete_table")
complete.pivot_table(index=["task", "model"], columns="reduction", values=["score", "mean_exit_layer", "other_token"], sort=False).round(3)

# %%
figure, axes = figures.panels(2 * len(tasks), columns=len(tasks), width=4.0, height=2.2, profile=profile, sharex="row", sharey=True)
for number, axis in enumerate(axes):
    task, column = list(tasks)[number % len(tasks)], ("retained", "flops_share")[number // len(tasks)]
    rows = complete[(complete.task == task) & (complete.model == "calm") & (complete.reduction != "none")].rename(columns={"reduction": "rule"})
    figures.rule_bars(axis, rows, column, ("low", "high") if column == "retained" else None)
    axis.set(title=figures.label(task), xlabel={"retained": "score, of no exit", "flops_share": "decoder operations, of no exit"}[column])
    axis.axvline(1.0, color="#333333", linewidth=1)
companion.save_figure(figure, "score_and_operations", complete)
for (task, name), rows in complete[complete.reduction.isin(forms)].groupby(["task", "model"], sort=False):
    print(f"{figures.label(task)}, {figures.label(name)}, other tokens than unpruned: " + ", ".join(f"{r.reduction} {r.other_token:.2%}" for r in rows.itertuples()))

# %% [markdown]
# And the minimum exit block of the rule above, in place of block 4: the margin over all ids, at the block that the rule gave each model and task.

# %%
by_rule = []
for row in minimum.itertuples():
    policy = ExitPolicy("softmax_margin", threshold=threshold, min_layer=row.minimum_block)
    table, _ = comparison.comparison(models[row.model], tasks[row.task], {("unpruned",): policy}, ("reduction",), **decoding)
    at_four = complete[(complete.model == row.model) & (complete.task == row.task) & (complete.reduction == "unpruned")].iloc[0]
    by_rule.append({"model": row.model, "task": row.task, "min_layer": row.minimum_block, "retained": table.retained.iloc[1], "retained_at_min_layer": at_four.retained,
                    "mean_exit_layer": table.mean_exit_layer.iloc[1], "flops_share": table.flops_share.iloc[1]})  # fmt: skip
by_rule = companion.save_table(pd.DataFrame(by_rule), "minimum_block_decoded")
for row in by_rule.itertuples():
    print(f"{figures.label(row.model)}, {figures.label(row.task)}: keeps {row.retained:.1%} from block {row.min_layer} on, {row.retained_at_min_layer:.1%} from block {min_layer} on")

# %% [markdown]
# ## By the clock
#
# Seconds, samples and tokens a second of the runs above, timed by `make bench` on the same models in single precision, contenders taking turns.

# %%
times = stored_reductions(profile, complete)
if len(times):
    companion.save_table(times, "times")
    for (batch, model, task), rows in times.groupby(["batch", "model", "task"], sort=False):
        lines = [f"{figures.label(r.reduction)} {r.speed:.2f} ({r.samples_per_second:.1f} samples/s)" for r in rows.itertuples()]
        print(f"{figures.label(model)}, {figures.label(task)}, batch {batch}, tokens a second of no exit: " + "; ".join(lines))
else:
    print("not measured for these settings: run make bench")

# %% [markdown]
# ## Each published row beside ours
#
# The paper's rows, its mean exit block as a share of the depth, beside our row of the same kind: the pre-trained model beside `base`, a fine-tuned one beside
# `vanilla`. Scores are not comparable across models and corpora; what pruning does to them is.

# %%
beside = published_reductions(complete, layers)
companion.save_table(beside, "published_rows")
shown = ["model", "dataset", "reduction", "score", "score_of_none", "our_task", "our_score", "our_score_of_none", "why_they_differ"]
beside[shown].round(1)

# %% [markdown]
# ## How small may k be?
#
# The margin at a threshold of 0.9 with the $k$ best ids of block 4 (fixed), and decaying from there to $k^*$: predictions that stay, and operations; a replay, CALM.

# %%
swept = []
for task in tasks:
    t, source = traces["calm", task], [len(ids) for ids in companion.tokenizer()(tasks[task].inputs).input_ids]
    for k in (2, 4, 8, 16, 32, 64, 128, 256, 512):
        for form, options in (("fixed", dict(pruning="fixed", top_k=k)), ("decaying", dict(pruning="decaying", top_k=first_k, least_k=min(k, first_k)))):
            policy = ExitPolicy("softmax_margin", threshold=threshold, min_layer=min_layer, **options)
            swept.append({"task": task, "rule": form, "k": k, **comparison.at_threshold(t, policy, models["calm"], source)})
swept = pd.DataFrame(swept)
figure, axes = figures.panels(2 * len(tasks), columns=len(tasks), width=3.9, height=2.5, profile=profile, sharex=True, sharey="row")
for number, axis in enumerate(axes):
    column, task = ("same_token", "flops_share")[number // len(tasks)], list(tasks)[number % len(tasks)]
    figures.rule_curves(axis, swept[swept.task == task], "k", column)
    axis.set(title=figures.label(task), xlabel="ids kept: k (fixed), k* (decaying)")
    axis.set_ylabel({"same_token": "predictions that stay", "flops_share": "operations, of no exit"}[column])
    axis.set_xscale("log", base=2)

# %%
figures.only_outer_labels(axes, len(tasks))
figures.all_in_legend(figure, axes)
companion.save_figure(figure, "sweep_of_k", swept)

# %% [markdown]
# ## What a decision costs
#
# One decision after the first in blocks, counted, at the shapes of the mini models, T5-base and T5-large (whose vocabulary has 32,128 ids), and the break-even
# depth: the mean exit block, as a share of the depth, below which the rule is cheaper than no exit.

# %%
costs = pruning.read_out_costs({name: shape.sizes for name, shape in SHAPES.items()}, (32, 64, 256, 1024, 4096), min_layer)
figure, axes = figures.panels(2 * len(SHAPES), columns=len(SHAPES), width=3.9, height=2.3)
for number, axis in enumerate(axes):
    shape, column = list(SHAPES)[number % len(SHAPES)], ("of_a_block", "break_even")[number // len(SHAPES)]
    rows = costs[costs["shape"] == shape]
    figures.plain_bars(axis, [*rows["ids"].iloc[:-1], f"all {rows['ids'].iloc[-1]:,}"], rows[column])
    axis.set(title=shape, xlabel={"of_a_block": "one decision, in blocks", "break_even": "break-even exit, share of depth"}[column])
    axis.set_ylabel("ids read out")
companion.save_figure(figure, "cost_of_a_read_out", costs)
for row in costs[costs["shape"] == "t5-large"].itertuples():
    print(f"t5-large, {row.ids} ids: {row.of_a_block:.3f} of a block a decision, cheaper than no exit below {row.break_even:.0%} of the depth")

# %% [markdown]
# ## At equal quality
#
# For every rule the lowest threshold at which 95, 98, 99 and 99.5 % of the predictions at the exits are the full-depth ones (a token lost by pruning counts
# as another one): what is spent then, deciding included. A replay, CALM.

# %%
rules = {**{form: dict(measure="softmax_margin", **options) for form, options in {"unpruned": {}, **forms}.items() if form != "decaying_closed"},
         "rising_top1": dict(measure="rising_top1"), "rising_fixed": dict(measure="rising_top1", pruning="fixed", top_k=top_k)}  # fmt: skip
equal = []
for task in tasks:
    t, source = traces["calm", task], [len(ids) for ids in companion.tokenizer()(tasks[task].inputs).input_ids]
    for rule, options in rules.items():
        policy = ExitPolicy(min_layer=min_layer, **options)
        said = confidences(t, policy) if policy.read_out.plain else readings(t, policy, models["calm"])
        equal.append(comparison.at_equal_quality(t, policy, [0.95, 0.98, 0.99, 0.995], models["calm"], source, {"task": task, "rule": rule}, said))
equal = companion.save_table(pd.concat(equal, ignore_index=True), "at_equal_quality")
equal.pivot(index=["task", "rule"], columns="wanted", values=["mean_exit_layer", "flops_share"]).round(2)

# %% [markdown]
# ## Decoded at 99 % of the full score
#
# The three upper settings above, decoded, with static exits beside them. As in 05: for each rule the cheapest setting that keeps 99 % on every other example, checked on the
# examples between them.

# %%
kept, points = [], []
for name, task in tasks.items():
    chosen = equal[(equal.task == name) & (equal.wanted > 0.95)]
    tried = {
        (r.rule, r.threshold): ExitPolicy(threshold=float(r.threshold), min_layer=min_layer, **rules[r.rule]) for r in chosen.itertuples()
    } | {("static", float(block)): ExitPolicy("static", min_layer=block) for block in (4, 6, 8, 10)}
    table, decoded = comparison.comparison(models["calm"], task, tried, ("rule", "threshold"), **decoding)
    points.append(table)
    kept += comparison.kept_rows(table, decoded, quality)
points = companion.save_table(pd.concat(points, ignore_index=True), "decoded_points")
kept = companion.save_table(pd.DataFrame(kept), "at_99_percent")

# %%
figure, axes = figures.panels(len(tasks), width=4.4, height=3.0, profile=profile, sharex=True)
for axis, task in zip(axes, tasks):
    rows = kept[(kept.task == task) & kept.not_refuted].sort_values("flops_share")
    axis.set(title=figures.label(task), xlabel="decoder operations, of no exit")
    if rows.empty:
        figures.nothing_to_draw(axis, f"{figures.label(task)}:\nno rule keeps {quality:.0%}")
        continue
    figures.rule_bars(axis, rows, "flops_share")
    axis.axvline(1.0, color="#333333", linewidth=1)
companion.save_figure(figure, "operations_at_99_percent", kept)
for row in kept.sort_values(["task", "flops_share"]).itertuples():
    print(f"{figures.label(row.task)}, {figures.label(row.rule)}: {row.flops_share:.0%} of the operations, keeps {row.checked:.1%}{'' if row.not_refuted else ', refuted'}")

# %% [markdown]
# ## Each published statement beside our number

# %%
tables = {
    task: {
        "boxes": boxes[boxes.task == task], "recall": kept_at[kept_at.task == task], "complete": complete[complete.task == task],
        "minimum": minimum[minimum.task == task], "equal": equal[equal.task == task].assign(model="calm"), "honesty": honesty[honesty.task == task],
    }
    for task in tasks
}  # fmt: skip
verdicts = claims.judge(claims.pruning_claims(), tables)
companion.save_table(verdicts, "claims")[["claim", "published", "task", "ours", "verdict"]]

# %% [markdown]
# ## What this shows, and what it does not
#
# *How many ids?* A few dozen. After block 4 of an exit-trained model the best 64 ids hold all but a handful of the final tokens, and the pruned run emits another token
# than the unpruned one almost never. A model trained at its last block only ranks worse early on, and there decaying to a few ids does cost tokens: look at the
# exactness lines of `vanilla`. The scores of 0 in the published table are not what pruning does; they are positions taken for ids, and its rows rest on ten
# examples each (seconds times samples a second; see the column `samples`), not a hundred.
#
# *Is deciding then cheaper than not exiting?* Yes, and this is what changes most. Read-outs over a few dozen ids cost a small share of a block; at the vocabulary of
# T5-large the margin over all ids pays only for exits in the first half of the depth, the pruned one at nearly any depth. On Multi30k, where the margin
# over all ids takes more operations than no exit at equal quality, the pruned margin takes fewer, at nearly the same exits. Adaptive pruning saves least: it keeps a
# tenth of the vocabulary where it is certain and all of it where it is not, and must sort the whole vocabulary once. By the clock it takes a model of size: at the width of
# the mini models a block takes so little that choosing ids and gathering their rows eats what 1,500 ids cost (the lines above); at the shape of T5-large `make bench` times one
# decision over 256 ids at a few hundredths of a block, and over all ids at more than a block.
#
# *A minimum exit block.* The rule gives block 1 or 2 for a model trained to exit, and a later one for others, where it decides between a broken output and a
# good one. It is a rule on single tokens: 95 % right at each exit is not enough for a long output of a model that was never trained to exit, since errors
# add up (vanilla on summarization of `small`). What an output keeps has to be calibrated on outputs (06).
#
# *A fixed exit is the rival.* On summarization of `small` a static exit at block 4 takes fewer operations than any rule that decides, pruned or not, and is not refuted either. Settings
# were proposed on all examples and checked on half of them: no guarantee (06).
#
# *Pruning does not make a rule safer.* What it cannot do is what 05 found missing: decide better. Whether a setting keeps 99 % of the score is a matter of the exits,
# not of the read-out, and on Multi30k, with its long chains of open choices, settings that keep the score on one half lose it on the other.
#
# All of this is about mini models with vocabularies of 1,500 and 4,000 ids; that ranks are as good in T5-large is what the paper's box plots say and was not run here.
#
# **Files.** Every figure as PNG and PDF beside the CSV of what was drawn, and a manifest, in `figures/<profile>/03_pruning`.
# **Next:** 04 asks whether contrast between blocks improves the confidence itself.

# %%
companion.finish()
