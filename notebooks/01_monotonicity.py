# %% [markdown]
# # 01 · Monotonicity: does a prediction, once made, stay?
#
# **Question.** Early exiting stops at a block and hopes that the later ones would not have changed the answer. When is that hope
# justified, and does the way a model was trained decide it?
#
# **What the paper says** (MEE, section 3, on BigPatent, twelve blocks). Under CALM's weighted loss 75 % of the tokens keep their
# top-1 prediction after block 2 and 90 % after block 4; the vanilla and the FREE model change their minds far later. CALM's mean
# confidence in the final prediction grows with every block, vanilla's comes late, FREE's rises to its exit, dips, and rises again.
#
# **What we do.** Each model greedily writes its own output at full depth. That output is fed back once, and the shared read-out is
# applied to the state after *every* block. Nothing exits until the last section: this is the landscape that exit rules walk on.
#
# **Expectation, before running:** the order CALM, late-weighted, FREE, vanilla at the early blocks, since that is the order in which
# the objectives ask anything of them.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 150  # examples of each task to trace
max_new_tokens = 48  # longest output, end token included
bins = 10  # confidence bins of the reliability diagrams
seed = 0  # which tokens Figure 3 shows

# %%
import pandas as pd

from mee_utils import Companion, ExitPolicy, claims, figures, trace
from mee_utils.evaluation import monotonicity
from mee_utils.evaluation.replay import replay_against_decoding

companion = Companion("01_monotonicity", profile, data, limit=limit, max_new_tokens=max_new_tokens, bins=bins, seed=seed)
tasks = companion.tasks(limit)
models = companion.models([name for name in companion.model_names if name != "base"])
own = {
    (task, name): trace(model, tasks[task].inputs, max_new_tokens=max_new_tokens) for task in tasks for name, model in models.items()
}
layers = next(iter(models.values())).layers
for task in tasks:
    print(f"{figures.label(task)}: " + ", ".join(f"{figures.label(n)} {len(own[task, n])} tokens" for n in models))

# %% [markdown]
# ## Figure 1: how many predictions are final after each block?
#
# A token is *settled* after block *l* if its top-1 prediction at blocks *l*, *l*+1, ..., L is one and the same. Bands are 95 % bootstrap
# intervals over sequences, because the tokens of one sequence are not independent.

# %%
stable = pd.concat(
    [monotonicity.curve(monotonicity.stable(t), t, "share", task=task, model=name) for (task, name), t in own.items()],
    ignore_index=True,
)
figure, axes = figures.panels(len(tasks), width=3.9, height=3.0, profile=profile, sharey=True)
for axis, (task, rows) in zip(axes, stable.groupby("task", sort=False)):
    for name, part in rows.groupby("model", sort=False):
        figures.draw_curve(axis, part, "share", name)
    figures.block_axis(axis, layers)
    axis.set(title=figures.label(task), ylim=(0, 1.02))
axes[0].set_ylabel("share of tokens whose top-1\nnever changes afterwards")
figures.shared_legend(figure, axes[0])
companion.save_figure(figure, "figure_1_settled", stable)

# %%
for task, rows in stable.groupby("task", sort=False):
    after = {name: claims.value(rows, "share", name, 4) for name in models}
    print(f"{figures.label(task)}, settled after block 4: " + ", ".join(f"{figures.label(n)} {v:.1%}" for n, v in after.items()))

# %% [markdown]
# Put differently: the block from which a token is settled is the exit of an *oracle* that knows the end. Its mean is the depth
# that no exit rule without loss can beat on these tokens.

# %%
depth = pd.concat(
    [monotonicity.settling_depth(t, task=task, model=name) for (task, name), t in own.items()], ignore_index=True
)
companion.save_table(depth, "settling_depth")

# %%
gain = pd.concat(
    [
        monotonicity.settling_gain(own[task, "vanilla"], own[task, name], task=task, model=name)
        for task in tasks for name in models if name != "vanilla" and "vanilla" in models
    ],
    ignore_index=True,
)
companion.save_table(gain, "settling_gain")
for row in gain.itertuples():
    print(
        f"{figures.label(row.task)}: {figures.label(row.model)} settles {row.blocks_earlier:.2f} blocks earlier than vanilla "
        f"({row.low:.2f} to {row.high:.2f})"
    )

# %% [markdown]
# ## Figure 2: confidence in the final prediction
#
# The probability that each block gives to the token that the *last* block will choose; mean and, as in the paper, standard deviation
# over tokens (the band; it describes the spread, not the uncertainty of the mean). One panel a model, one row a task.

# %%
confidence = pd.concat(
    [
        monotonicity.curve(t.final_probability, t, "confidence", task=task, model=name) for (task, name), t in own.items()
    ],
    ignore_index=True,
)
spread = confidence.assign(
    one_below=confidence.confidence - confidence.standard_deviation, one_above=confidence.confidence + confidence.standard_deviation
)

# %%
figure, axes = figures.panels(
    len(own), columns=len(models), width=2.7, height=2.3, profile=profile, sharex=True, sharey=True
)
for axis, ((task, name), rows) in zip(axes, spread.groupby(["task", "model"], sort=False)):
    figures.draw_curve(axis, rows, "confidence", name, ("one_below", "one_above"), clip=(0, 1))
    figures.block_axis(axis, layers)
    axis.set(title=f"{figures.label(name)}, {figures.label(task)}", ylim=(0, 1.02))
for axis in axes[:: len(models)]:
    axis.set_ylabel("probability of the\nfinal prediction")
figures.only_outer_labels(axes, len(models))
companion.save_figure(figure, "figure_2_confidence", spread)

# %%
for task, rows in confidence.groupby("task", sort=False):
    half = {name: claims.first_above(claims.curve_of(rows, "confidence", name), 0.5) for name in models}
    print(f"{figures.label(task)}, mean confidence passes one half at block: " + ", ".join(f"{n} {b}" for n, b in half.items()))

# %% [markdown]
# ## Figure 3: single tokens
#
# The three most probable tokens of every block, for one token of one sequence, the three models of the paper side by side. So that
# the models predict *the same* token, the reference is fed in. Which tokens are shown is a rule, not a choice: sorted by the block
# from which vanilla is settled, the one at the 10th, 50th and 90th percentile.

# %%
along = {
    (task, name): trace(model, tasks[task].inputs, tasks[task].targets, max_new_tokens=max_new_tokens)
    for task in tasks
    for name, model in models.items()
}
shown_task = "translation" if "translation" in tasks else next(iter(tasks))
shown = monotonicity.percentile_tokens(along[shown_task, "vanilla"], (0.1, 0.5, 0.9), seed)

# %%
decode = {name: monotonicity.token_text(model.tokenizer) for name, model in models.items()}
for percentile, token in shown.items():
    tables = [
        monotonicity.predictions(along[shown_task, name], token, decode[name], model=name)
        for name in ("vanilla", "calm", "free") if name in models
    ]
    figure, axes = figures.panels(len(tables), columns=1, width=10.5, height=1.55, profile=profile, sharex=True)
    for axis, rows in zip(axes, tables):
        figures.prediction_grid(axis, rows, layers)
        axis.set_title(figures.label(rows.model.iloc[0]), loc="left")
    axes[-1].set_xlabel(f"decoder block ({figures.label(shown_task)}; percentile {percentile} of vanilla's settling blocks)")
    companion.save_figure(figure, f"figure_3_token_{percentile}", pd.concat(tables, ignore_index=True))

# %% [markdown]
# ## Going further: *strictly* monotonic tokens
#
# The assumption is named after monotonic growth, and the papers show that the *mean* grows. For how many single tokens does
# confidence in the final prediction rise at every block? A saturated probability cannot rise for ever, so beside the strict share stands
# the share that never *falls* by more than one percentage point.

# %%
strict = pd.concat(
    [monotonicity.monotonic_shares(t, task=task, model=name) for (task, name), t in own.items()], ignore_index=True
)
companion.save_table(strict, "strictly_monotonic")

# %%
figure, axes = figures.panels(len(tasks), width=3.9, height=3.0, profile=profile, sharey=True)
for axis, (task, rows) in zip(axes, strict.groupby("task", sort=False)):
    rows = rows.assign(span=rows.kind + "\nfrom block " + (rows.after_layer + 1).astype(str))
    figures.grouped_bars(axis, rows, "span", "share")
    axis.set(title=figures.label(task), ylim=(0, 1.02))
axes[0].set_ylabel("share of tokens")
figures.shared_legend(figure, axes[0])
companion.save_figure(figure, "monotonic_tokens", strict)

# %%
for row in strict[(strict.after_layer == 0) & (strict.model == "calm")].itertuples():
    print(f"CALM, {figures.label(row.task)}, {row.kind} from block 1 on: {row.share:.1%} ({row.low:.1%} to {row.high:.1%})")

# %% [markdown]
# ## Going further: are the early blocks overconfident?
#
# An exit rule compares the *current* block's own top-1 probability with a threshold. That is sensible only as far as 0.9 means "right nine
# times out of ten". Right is judged against the reference, which is fed in. Solid: mean confidence; dashed: accuracy; the gap between
# them is over- or underconfidence; the bands are 95 % intervals over sequences.

# %%
correct = {key: t.top1_id == t.token_id[:, None] for key, t in along.items()}
calibration = pd.concat(
    [monotonicity.calibration(t, correct[task, name], bins, task=task, model=name) for (task, name), t in along.items()],
    ignore_index=True,
)
per_block = pd.concat(
    [monotonicity.block_calibration(t, correct[task, name], bins, task=task, model=name) for (task, name), t in along.items()],
    ignore_index=True,
)

# %%
figure, axes = figures.panels(
    len(along), columns=len(models), width=2.7, height=2.3, profile=profile, sharex=True, sharey=True
)
for axis, ((task, name), rows) in zip(axes, per_block.groupby(["task", "model"], sort=False)):
    figures.confidence_and_accuracy(axis, rows, name)
    figures.block_axis(axis, layers)
    axis.set(title=f"{figures.label(name)}, {figures.label(task)}", ylim=(0, 1.02))
for axis in axes[:: len(models)]:
    axis.set_ylabel("mean over tokens")
figures.only_outer_labels(axes, len(models))
figures.shared_legend(figure, axes[0])
companion.save_figure(figure, "confidence_against_accuracy", per_block)

# %% [markdown]
# The same, bin by bin: reliability at a third, two thirds and the whole of the depth. On the diagonal a confidence is what it
# says; below it the block is overconfident. Bins with fewer than twenty tokens are left out of the drawing, not of the table.

# %%
blocks = (layers // 3, 2 * layers // 3, layers)
reliability = calibration[calibration.layer.isin(blocks)]
figure, axes = figures.panels(
    len(tasks) * len(blocks), columns=len(blocks), width=3.1, height=2.7, profile=profile, sharex=True, sharey=True
)
for axis, ((task, layer), rows) in zip(axes, reliability.groupby(["task", "layer"], sort=False)):
    figures.reliability_lines(axis, rows[rows.tokens >= 20])
    axis.set(title=f"{figures.label(task)}, block {layer}", xlabel="confidence (top-1 probability)", ylabel="accuracy")
figures.only_outer_labels(axes, len(blocks))
figures.shared_legend(figure, axes[0])
companion.save_figure(figure, "reliability", reliability)

# %%
kept = ["task", "model", "layer", *[c for c in per_block if c.startswith("expected")]]
companion.save_table(per_block[per_block.layer.isin(blocks)][kept], "expected_calibration_error")

# %% [markdown]
# ## From landscape to decoding: what replay promises, and what happens
#
# A trace can be asked what any exit rule *would* have done at each block; thousands of thresholds take seconds that way. The decoder does
# it for real: a token that leaves early hands its state on as keys and values for the blocks it skipped, and a wrong token is fed back.
# Here are the rules that need no training with MEE's published settings (threshold 0.9, decay 4, no exit before a third of the depth),
# and the oracle. Replay is trusted later only as far as the two agree: `same_exit` counts tokens up to the first that differs from the
# full-depth output.

# %%
first = layers // 3
policies = {
    name: ExitPolicy(name, threshold=0.9, decay=4.0, min_layer=first)
    for name in ("softmax_margin", "hidden_similarity", "rising_top1")
} | {"oracle": ExitPolicy("oracle"), "static": ExitPolicy("static", min_layer=first)}
exits = pd.concat(
    [
        replay_against_decoding(models["calm"], tasks[task], own[task, "calm"], policies, max_new_tokens)
        for task in tasks if "calm" in models
    ],
    ignore_index=True,
)
companion.save_table(exits, "replay_against_decoding")

# %%
for row in exits.itertuples():
    print(
        f"{figures.label(row.task)}, {row.policy}: replay foretells block {row.mean_exit_layer_replay:.2f}, decoding leaves at "
        f"{row.mean_exit_layer_decoded:.2f}; {figures.label(row.metric)} {row.score:.1f} of {row.full_score:.1f}, {row.flops_share:.0%} of the operations"
    )

# %% [markdown]
# ## Each published statement beside our number
#
# The statements of MEE's third section as predicates on the tables above. Where a verdict says "does not hold", that is what these models do
# on these corpora; a claim about BigPatent at T5-base's size is not thereby refuted.

# %%
tables = {
    task: {"stable": stable[stable.task == task], "confidence": confidence[confidence.task == task]} for task in tasks
}
verdicts = claims.judge(claims.monotonicity_claims(), tables)
companion.save_table(verdicts, "claims")[["claim", "published", "task", "ours", "verdict"]]

# %%
for claim, rows in verdicts.groupby("claim", sort=False):
    print(f"{claim}: holds on {(rows.verdict == 'holds').sum()} of {len(rows)} tasks")

# %% [markdown]
# ## What this shows, and what it does not
#
# Settling early is a property of the *objective*, and these curves show how much of it each objective buys. They do not show that
# exiting early is safe: a rule does not know the last block's answer, it sees confidence, and the calibration figures show how far that
# can be trusted block by block. Nor do they show speed: everything but the last table is full depth. That table shows what else an exit
# does: it leaves other keys and values behind, and a wrong token is fed back. How thresholds trade quality for speed is the matter of
# the notebooks on classifiers and results.
#
# **Files.** Every figure as PNG and PDF beside the CSV of what was drawn, and a manifest, in `figures/<profile>/01_monotonicity`.

# %%
companion.finish()
