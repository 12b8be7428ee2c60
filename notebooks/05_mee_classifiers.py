# %% [markdown]
# # 05 · MEE classifiers: who should decide?
#
# **Question.** An exit rule may look at the current block only, or at several blocks in a row. Do several blocks decide *better*? And is any rule
# that looks at several of them *faster* than no exit at all, at (nearly) full quality?
#
# **What the paper says** (MEE, sections 5 to 7, and the closing questions of its blog). Three measures over several blocks, an MLP on three
# states, an LSTM over all of them and a rule on three rising probabilities, keep far more quality than CALM's three at the same threshold, and are
# slower than no exit. Its decoder cut itself short in the baseline runs (METHODS: whenever a whole batch exits, all later tokens stay that
# shallow), so the comparison has to be made again. Can both be had?
#
# **What we do.** Train every classifier on the same frozen model, five seeds each; ask first how well each one *ranks* tokens, then what
# it costs, then decode for real. Rules are compared at equal quality or at equal cost, never at equal threshold, since a threshold of 0.9
# means something else for each of them.
#
# **Expectation** (the papers' hypothesis): the more blocks a rule sees, the better it decides and the more it costs.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 100  # held-out examples of each task
max_new_tokens = 48  # longest output, in tokens
batch_size = 100  # rows decoded at a time
threshold = 0.9  # as published (report)
other_threshold = 0.7  # as published (the jobs that were run)
decay = 4.0  # temperature of the published, decaying threshold
min_layer = 4  # first block at which a token may exit (MEE: 4)
quality = 0.99  # share of the full score that must be kept

# %%
import pandas as pd

from mee_utils import Companion, ExitPolicy, claims, figures, trace
from mee_utils.bench import SHAPES
from mee_utils.evaluation import comparison, decisions, verdicts
from mee_utils.evaluation.replay import confidences
from mee_utils.exits.classifiers import new_classifier
from mee_utils.exits.measures import find_measure
from mee_utils.stored import decodings, inputs_of
from mee_utils.train_exits import VARIANTS

settings = dict(limit=limit, max_new_tokens=max_new_tokens, batch_size=batch_size, threshold=threshold,
                other_threshold=other_threshold, decay=decay, min_layer=min_layer, quality=quality)  # fmt: skip
companion = Companion("05_mee_classifiers", profile, data, **settings)
tasks, models = companion.tasks(limit), companion.models(["calm", "vanilla"])
classifiers = companion.classifiers(models)
print(f"{sum(map(len, classifiers.values()))} classifiers: {len(classifiers)} kinds, {len(next(iter(classifiers.values())))} seeds each")

# %% [markdown]
# ## How each classifier is built
#
# $n(h^l)$ is the normalised state after block $l$, $d$ wide. All give one number, the log-odds $z$ of "exit here"; the confidence is $\sigma(z)$.
# One classifier serves all blocks and all tasks, as the model does.
#
# | rule | $z$ | source |
# |---|---|---|
# | linear | $w \cdot n(h^l) + b$ | CALM's own |
# | hidden | $u \cdot \mathrm{ReLU}(A\,n(h^l) + a)$, $A$ is $d \times d$ | CALM's baseline in MEE |
# | hidden, $k$ blocks | $u \cdot \mathrm{ReLU}(A\,[n(h^{l-k+1}); \dots; n(h^l)] + a)$, $A$ is $d \times kd$ | MEE for $k = 3$ |
# | three times as wide | one block, but as many parameters as three: $A$ is $3d \times d$ | a control: are more blocks better, or more parameters? |
# | low rank | hidden, with $A$ of $d/8$ rows; one block, or three | ours: cheap enough for every block |
# | LSTM | $(c, s)^l = \mathrm{LSTM}(n(h^l), (c, s)^{l-1})$, $z = u \cdot s^l$, over blocks, anew for each token | MEE: two layers (here $d/2$ units); its code: one layer ($d/4$) |
#
# Target: is this block's top-1 the last block's ("consistency", the default), or the reference's token ("correctness")? Both classes count
# alike in every block; five epochs on teacher-forced training examples; the model is frozen.

# %%
curves = pd.concat(
    [
        pd.DataFrame(classifier.about["curve"]).assign(rule=variant, seed=seed)
        for (model, variant, target), trained in classifiers.items() if model == "calm" and target == "consistency"
        for seed, classifier in enumerate(trained)
    ],
    ignore_index=True,
)
learning = comparison.seed_interval(curves, ["rule", "epoch"], ["loss", "held_out_loss"])
figure, axes = figures.panels(len(VARIANTS), columns=5, width=2.5, height=2.2, profile=profile, sharex=True, sharey=True)
for axis, (rule, rows) in zip(axes, learning.groupby("rule", sort=False)):
    figures.training_and_held_out(axis, rows)
    axis.set_title(figures.label(rule), fontsize=8)
figures.only_outer_labels(axes, 5)
figures.shared_legend(figure, axes[0])
companion.save_figure(figure, "learning_curves", learning)

# %%
last = learning[learning.epoch == learning.epoch.max()].set_index("rule")
for rule, row in last.iterrows():
    print(f"{figures.label(rule)}: loss {row['loss']:.3f}, held out {row.held_out_loss:.3f} ({row.held_out_loss_low:.3f} to {row.held_out_loss_high:.3f})")

# %% [markdown]
# ## Who knows?
#
# The area under the ROC curve: of two tokens at the same block, one of which may exit (its prediction is the last block's) and one may not,
# how often is the first scored higher? One half is guessing. No threshold is involved, so measures of all kinds can be compared.
# Bands are 95 % intervals over seeds.

# %%
traces = {
    (name, task): trace(model, tasks[task].inputs, max_new_tokens=max_new_tokens, states=companion.scratch(f"{name}-{task}.npy"))
    for name, model in models.items() for task in tasks
}
layers = traces["calm", next(iter(tasks))].layers
untrained = ["softmax_margin", "hidden_similarity", "rising_top1"]
asked = {("calm", rule, "consistency"): [rule] for rule in untrained} | classifiers
policies = {
    (task, *key, seed): ExitPolicy(measure, min_layer=min_layer)
    for key, measures in asked.items() for seed, measure in enumerate(measures) for task in tasks
}

# %%
said = {key: confidences(traces[key[1], key[0]], policy, models[key[1]]) for key, policy in policies.items()}
labels = ["task", "model", "rule", "target", "seed"]
ranks = pd.concat(
    [
        decisions.ranking(traces[key[1], key[0]], policy, labels=dict(zip(labels, key, strict=True)), asked=said[key])
        for key, policy in policies.items()
    ],
    ignore_index=True,
)

# %%
by_block = comparison.seed_interval(ranks.dropna(), ["task", "model", "target", "rule", "layer"], ["roc_area"])
drawn = by_block[(by_block.model == "calm") & (by_block.target == "consistency") & ~by_block.rule.isin(["wide_hidden", "two_hidden", "four_hidden"])]
figure, axes = figures.panels(len(tasks), width=4.2, height=3.4, profile=profile, sharey=True)
for axis, (task, rows) in zip(axes, drawn.groupby("task", sort=False)):
    figures.rule_curves(axis, rows, "layer", "roc_area", ("roc_area_low", "roc_area_high"))
    figures.block_axis(axis, layers)
    axis.axhline(0.5, color="#666666", linewidth=0.8, linestyle=":")
    axis.set(title=figures.label(task))
axes[0].set_ylabel("area under the ROC curve")
figures.all_in_legend(figure, axes)
companion.save_figure(figure, "who_knows", drawn)
by_block = companion.save_table(by_block, "ranking")

# %%
mean_rank = comparison.seed_interval(
    ranks.groupby(["task", "model", "target", "rule", "seed"], sort=False, as_index=False).roc_area.mean(),
    ["task", "model", "target", "rule"], ["roc_area"],
)  # fmt: skip
companion.save_table(mean_rank, "mean_ranking")
shown = mean_rank[(mean_rank.model == "calm") & (mean_rank.target == "consistency")]
for task, rows in shown.groupby("task", sort=False):
    print(f"{figures.label(task)}: " + ", ".join(f"{figures.label(r.rule)} {r.roc_area:.3f}" for r in rows.itertuples()))

# %% [markdown]
# ## What they do at a threshold of 0.9
#
# Precision: of the tokens above the threshold at a block, how many have the last block's prediction. Recall: of the tokens that the oracle would
# have let go by then, how many are above it. First seed; bands are 95 % intervals over sequences.

# %%
first = {rule: measures[0] for (model, rule, target), measures in asked.items() if (model, target) == ("calm", "consistency")}
main = ["softmax_margin", "hidden_similarity", "rising_top1", "linear", "hidden", "three_hidden", "low_rank_three", "lstm"]
quality_of = pd.concat(
    [
        decisions.precision_and_recall(traces["calm", task], ExitPolicy(first[rule], threshold=threshold, min_layer=min_layer),
                                       models["calm"], dict(task=task, rule=rule))
        for task in tasks for rule in main
    ],
    ignore_index=True,
)  # fmt: skip
figure, axes = figures.panels(2 * len(tasks), columns=len(tasks), width=4.0, height=2.6, profile=profile, sharex=True, sharey="row")
for number, axis in enumerate(axes):
    column, task = ("precision", "recall")[number // len(tasks)], list(tasks)[number % len(tasks)]
    rows = quality_of[quality_of.task == task].dropna(subset=[column])
    figures.rule_curves(axis, rows, "layer", column, (f"{column}_low", f"{column}_high"))
    figures.block_axis(axis, layers)
    axis.set(title=figures.label(task), ylabel=column)

# %%
figures.only_outer_labels(axes, len(tasks))
figures.all_in_legend(figure, axes)
companion.save_figure(figure, "precision_and_recall", quality_of)

# %% [markdown]
# ## Do they mean what they say?
#
# Confidence against how often an exit would have been right, all deciding blocks together. A rule below the diagonal promises too much.
# Classifiers are trained with both classes counted alike, so that where most tokens may exit they promise too *little*: 0.9 is not
# "right nine times in ten", for any of them.

# %%
reliability = pd.concat(
    [
        decisions.calibration(traces["calm", task], ExitPolicy(first[rule], min_layer=min_layer), models["calm"], dict(task=task, rule=rule))
        for task in tasks for rule in ["softmax_margin", "hidden", "three_hidden", "low_rank_three", "lstm"]
    ],
    ignore_index=True,
)
figure, axes = figures.panels(len(tasks), width=3.6, height=3.2, profile=profile, sharey=True)
for axis, (task, rows) in zip(axes, reliability.groupby("task", sort=False)):
    axis.plot([0, 1], [0, 1], color="#999999", linewidth=1, dashes=(1, 1), label="means what it says")
    figures.rule_curves(axis, rows, "confidence", "accuracy")
    axis.set(title=figures.label(task), xlabel="confidence", xlim=(0, 1), ylim=(0, 1.02))
axes[0].set_ylabel("share whose prediction\nis the last block's")
figures.all_in_legend(figure, axes)
companion.save_figure(figure, "calibration", reliability)
errors = reliability.drop_duplicates(["task", "rule"])
print("expected calibration error: " + ", ".join(f"{figures.label(r.task)}, {figures.label(r.rule)} {r.error:.3f}" for r in errors.itertuples()))

# %% [markdown]
# ## What deciding costs
#
# One decision as a share of one block, in counted operations, for the model of this notebook's profile `small` and for the shapes of
# T5-base and T5-large. Rules on probabilities multiply by the whole vocabulary; classifiers do not. Below: the *break-even* depth, the
# mean exit block below which a rule that decides at every block from block 4 on costs less than no exit at all.

# %%
build = {rule: (lambda width, rule=rule: find_measure(rule)) for rule in untrained} | {
    rule: (lambda width, v=variant: new_classifier(v.kind, width, **v.options(width))) for rule, variant in VARIANTS.items()
}
costs = comparison.deciding_costs(build, {name: shape.sizes for name, shape in SHAPES.items()}, min_layer)
figure, axes = figures.panels(2 * len(SHAPES), columns=len(SHAPES), width=3.9, height=3.4, profile="", sharey=True, sharex="row")
for number, axis in enumerate(axes):
    shape, column = list(SHAPES)[number % len(SHAPES)], ("of_a_block", "break_even")[number // len(SHAPES)]
    figures.rule_bars(axis, costs[costs["shape"] == shape], column)
    axis.set(title=shape, xlabel={"of_a_block": "one decision, in blocks", "break_even": "break-even exit, share of depth"}[column])
    axis.set_xscale("symlog" if column == "of_a_block" else "linear", **({"linthresh": 0.01} if column == "of_a_block" else {}))
companion.save_figure(figure, "cost_of_deciding", costs)

# %%
large = costs[costs["shape"] == "t5-large"].set_index("rule")
for rule, row in large.iterrows():
    print(f"t5-large, {figures.label(rule)}: {row.of_a_block:.3f} of a block a decision; cheaper than no exit below {row.break_even:.0%} of the depth")

# %% [markdown]
# ## At equal quality
#
# For each rule the lowest threshold at which 90, 95, 98 and 99 % of the predictions at the exits are still the last block's, replayed on the trace
# (no decoding yet): how deep do tokens go on average, and what is spent, deciding included? Constant thresholds, since the published
# decaying one falls below 0.9 whatever it starts from. Bands are 95 % intervals over seeds.

# %%
shares = [0.90, 0.95, 0.98, 0.99]
sources = {task: [len(ids) for ids in companion.tokenizer()(tasks[task].inputs).input_ids] for task in tasks}
equal = pd.concat(
    [
        comparison.at_equal_quality(traces[key[1], key[0]], policy, shares, models[key[1]], sources[key[0]],
                                    dict(zip(labels, key, strict=True)), said[key])
        for key, policy in policies.items()
    ],
    ignore_index=True,
)  # fmt: skip
columns = ["mean_exit_layer", "flops_share", "threshold"]
at_equal = comparison.seed_interval(equal, ["task", "model", "target", "rule", "wanted"], columns)
at_equal = companion.save_table(at_equal, "at_equal_quality")

# %%
drawn = at_equal[(at_equal.model == "calm") & (at_equal.target == "consistency") & ~at_equal.rule.isin(["wide_hidden", "two_hidden", "four_hidden"])]
figure, axes = figures.panels(2 * len(tasks), columns=len(tasks), width=4.0, height=2.7, profile=profile, sharex=True, sharey="row")
for number, axis in enumerate(axes):
    column, task = columns[number // len(tasks)], list(tasks)[number % len(tasks)]
    figures.rule_curves(axis, drawn[drawn.task == task], "wanted", column, (f"{column}_low", f"{column}_high"))
    axis.set(title=figures.label(task), xlabel="share of predictions that stay", xticks=shares)
    axis.set_ylabel({"mean_exit_layer": "mean exit block", "flops_share": "operations, of no exit"}[column])
    axis.axhline({"mean_exit_layer": layers, "flops_share": 1.0}[column], color="#666666", linewidth=0.8, linestyle=":")
figures.only_outer_labels(axes, len(tasks))
figures.all_in_legend(figure, axes)
companion.save_figure(figure, "equal_quality", drawn)

# %% [markdown]
# ## Ablations
#
# At 98 % of predictions kept: how many blocks are seen (with the control for the number of parameters, and the LSTM, which sees all); what it is trained
# to foretell; which model it is trained on; and from which block on it may exit.

# %%
several = ["hidden", "wide_hidden", "two_hidden", "three_hidden", "four_hidden", "lstm"]
middle = at_equal[at_equal.wanted == 0.98]
blocks_seen = middle[(middle.model == "calm") & (middle.target == "consistency") & middle.rule.isin(several)]
blocks_seen = blocks_seen.set_index("rule").loc[several].reset_index()
figure, axes = figures.panels(2 * len(tasks), columns=len(tasks), width=3.6, height=2.1, profile=profile, sharey=True, sharex="row")
for number, axis in enumerate(axes):
    column, task = columns[number // len(tasks)], list(tasks)[number % len(tasks)]
    figures.rule_bars(axis, blocks_seen[blocks_seen.task == task], column, (f"{column}_low", f"{column}_high"))
    axis.set(title=figures.label(task), xlabel={"mean_exit_layer": "mean exit block", "flops_share": "operations, of no exit"}[column])
companion.save_figure(figure, "blocks_seen", blocks_seen)

# %%
for task, rows in blocks_seen.groupby("task", sort=False):
    depth, rank = rows.set_index("rule").mean_exit_layer, shown[shown.task == task].set_index("rule").roc_area
    print(f"{figures.label(task)}: " + ", ".join(f"{figures.label(rule)}: block {depth[rule]:.2f}, area {rank[rule]:.3f}" for rule in several))

# %%
other = middle[middle.rule.isin(["hidden", "three_hidden", "narrow_lstm"])]
companion.save_table(other[["task", "model", "target", "rule", "mean_exit_layer", "mean_exit_layer_low", "mean_exit_layer_high"]], "target_and_backbone")
other.pivot(index=["task", "rule"], columns=["model", "target"], values="mean_exit_layer").round(2)

# %%
from_block = pd.concat(
    [
        comparison.at_equal_quality(traces["calm", task], ExitPolicy(first[rule], min_layer=start), [0.98], models["calm"], sources[task],
                                    dict(task=task, rule=rule, min_layer=start))
        for task in tasks for rule in ("softmax_margin", "hidden", "low_rank", "low_rank_three") for start in (1, 2, 4, 6)
    ],
    ignore_index=True,
)  # fmt: skip
companion.save_table(from_block, "minimum_block")
from_block.pivot(index=["task", "rule"], columns="min_layer", values=["mean_exit_layer", "flops_share"]).round(2)

# %% [markdown]
# ## Decoded for real: the published thresholds
#
# Threshold 0.9 and 0.7, decaying with temperature 4, from block 4 on, on the three tasks. "Retained" is the score as a share of that with all
# blocks (mean over examples, paired 95 % interval).

# %%
rules = ["softmax_margin", "hidden_similarity", "rising_top1", "linear", "hidden", "three_hidden", "low_rank_three", "narrow_lstm", "lstm"]
decoding = dict(max_new_tokens=max_new_tokens, batch_size=batch_size)
published = []
for task in tasks.values():
    as_published = {
        (rule, level): comparison.rule_policy(rule, level, settings, first, decaying=True) for rule in rules for level in (threshold, other_threshold)
    }
    published.append(comparison.comparison(models["calm"], task, as_published, ("rule", "threshold"), **decoding)[0])
published = companion.save_table(pd.concat(published, ignore_index=True), "published_thresholds")
published[published.rule.isin(["none", *rules])].pivot_table(
    index="rule", columns=["task", "threshold"], values=["score", "mean_exit_layer"], sort=False
).round(2)

# %% [markdown]
# ## Decoded for real: the whole curve
#
# Every rule from careful to careless at constant thresholds read off training examples, first seed; static exits at fixed blocks; the oracle. Replay foretold
# the predictions at single tokens; here exits change what follows, and the score says what of it mattered. These are the stored decodings that 06
# is drawn from too (`python -m mee_utils decode`, a part of `make reproduce`).

# %%
stored = decodings(companion.profile.name)
companion.run.uses("results decoded", inputs_of(companion.profile.name)["results decoded"])
curve_points = stored.rows(model="calm")
curve_points = curve_points[curve_points.rule.isin(["none", *rules, "static", "oracle"]) & curve_points.task.isin(list(tasks))]
figure, axes = figures.panels(2 * len(tasks), columns=len(tasks), width=4.2, height=3.0, profile=profile, sharey="col", sharex="row")
for number, axis in enumerate(axes):
    column, task = ("mean_exit_layer", "flops_share")[number // len(tasks)], list(tasks)[number % len(tasks)]
    figures.rule_curves(axis, curve_points[curve_points.task == task], column, "score")
    axis.set(title=figures.label(task), ylabel=figures.label(comparison.PRIMARY[task]))
    axis.set_xlabel({"mean_exit_layer": "mean exit block", "flops_share": "decoder operations, of no exit"}[column])
figures.all_in_legend(figure, axes)
companion.save_figure(figure, "score_against_cost", curve_points)

# %% [markdown]
# ## What is left at 99 % of the full score
#
# For each rule the cheapest of its settings that keeps 99 % of the full score on every other example, checked on the examples between them: what it
# keeps there, and whether the interval of that reaches 99 %. A rule without a line has no such setting among those decoded. Operations are not
# seconds: 06 has the same settings by the clock.

# %%
kept = verdicts.keeping(stored, quality)
kept = companion.save_table(kept[(kept.model == "calm") & kept.rule.isin([*rules, "static", "oracle"])], "at_99_percent")
for task, rows in kept.sort_values("flops_share", kind="stable").groupby("task", sort=False):
    lines = [
        f"{figures.label(r.rule)} {r.flops_share:.0%} (block {r.mean_exit_layer:.1f}, keeps {r.checked:.1%}{'' if r.not_refuted else ', refuted'})"
        for r in rows.itertuples()
    ]
    print(f"{figures.label(task)}, operations of no exit: " + "; ".join(lines))

# %% [markdown]
# ## Each published statement beside our number

# %%
tables = {
    task: {
        "ranking": mean_rank[mean_rank.task == task], "equal": at_equal[at_equal.task == task],
        "published": published[published.task == task].assign(model="calm"), "decisions": quality_of[quality_of.task == task].assign(model="calm"),
        "kept": kept[kept.task == task],
    }
    for task in tasks
}  # fmt: skip
verdicts = claims.judge(claims.classifier_claims(), tables)
companion.save_table(verdicts, "claims")[["claim", "published", "task", "ours", "verdict"]]

# %% [markdown]
# ## What this shows, and what it does not
#
# *Do several blocks decide better?* Where the ranking above gives three blocks a lead over one that exceeds both the seeds and the control with as
# many parameters (translation of profile `small`), yes; elsewhere the lead is that of the parameters, or none. On real text the held-out loss
# *rises* with the number of blocks while the training loss falls: more inputs, more to overfit. And no classifier on states, of any number
# of blocks, ranks tokens as well as the plain softmax margin. Whether a prediction will stay is best read off the prediction.
# Hidden similarity ranks like a coin, or worse; 02 says why.
#
# *Is a rule over several blocks faster than no exit at 99 % of the score?* What MEE left as an engineering problem is one, and can be
# solved: a classifier of low rank on three blocks costs a few hundredths of a block, at the shape of T5-large too, and takes fewer
# operations than no exit wherever it may exit at all. But cost is not what holds these rules back. To be safe they must exit late (their recall at
# 0.9 is low), a *static* exit is often as good, and the better decision, the margin's, costs more than a whole block. With the
# vocabulary of profile `real` it costs more than it saves. The price of the read-out, not the number of blocks, is the thing to mend (03).
#
# *What remains of the published contrast at a threshold of 0.9?* The collapse of CALM's rules does not come back in a decoder that does not cut itself
# short: the margin keeps nearly all of the score, only similarity loses it. The rest is that 0.9 means something else for each rule.
#
# A setting that keeps 99 % on one half of the examples need not keep it on the other half (the lines above say which does): a threshold chosen by
# looking carries no guarantee; 06 calibrates it. Everything here is about mini models; questions of `small` are answered with
# guesses of the right kind (00), so that exits there even raise the score.
#
# **Files.** Every figure as PNG and PDF beside the CSV of what was drawn, and a manifest, in `figures/<profile>/05_mee_classifiers`.
# **Next:** what all rules cost at the same guaranteed quality, and by the clock (06).

# %%
companion.finish()
