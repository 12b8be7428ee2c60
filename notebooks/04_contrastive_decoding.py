# %% [markdown]
# # 04 · Contrastive decoding: does a block decide better by what an earlier block did not know?
#
# **Question.** Contrast takes the distribution of a late block (the expert) and favours what it says more strongly than an early one (the amateur). Is that a
# better confidence, a better token, or neither; and is it a *Pareto improvement*, better at equal cost or cheaper at equal quality?
#
# **What the paper says** (*Not all FLOPs are created equally*). Two contrasts between blocks of one model, *weighted* (after Gera et al. 2023: the amateur is block
# $\lfloor i/2 \rfloor$) and *JSD* (after Chuang et al. 2024: the earlier block that differs most), attain "a pareto improvement over runtime and performance". Its
# last run gives F1 92.45 on SQuAD for the softmax and 91.47 for JSD.
#
# **What we do.** One token as a picture; the degenerate case, a head with one candidate; then contrast as confidence at equal quality, as decoder, and with
# pruning; the verdict by score against operations. Last, long inputs.
#
# **Expectation** (ours, before running): where the head has one candidate the public form is sure of it whatever it is, so that it exits earlier at the same threshold
# and looks fast; at equal quality nothing of that is left.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 60  # held-out examples of each task
max_new_tokens = 48  # longest output, in tokens
batch_size = 100  # rows decoded at a time
threshold = 0.9  # of the margins, constant
min_layer = 4  # first block at which a token may exit
alpha = 0.1  # a token is in the head from this share of the largest probability on
top_k = 64  # ids kept by fixed pruning
expert_layer = 6  # the block of the picture
long_corpus = "made"  # long documents: made, or a folder inside DATA
long_limit = 3  # how many long documents are decoded

# %%
import pandas as pd

from mee_utils import Companion, ExitPolicy, claims, figures, trace
from mee_utils.bench import SHAPES, stored_decisions
from mee_utils.evaluation import comparison, contrasting, decisions, long_documents
from mee_utils.evaluation.monotonicity import token_text
from mee_utils.evaluation.readings import readings
from mee_utils.evaluation.replay import confidences, sweep

settings = dict(limit=limit, max_new_tokens=max_new_tokens, batch_size=batch_size, threshold=threshold, min_layer=min_layer, alpha=alpha, top_k=top_k,
                expert_layer=expert_layer, long_corpus=long_corpus, long_limit=long_limit)  # fmt: skip
companion = Companion("04_contrastive_decoding", profile, data, **settings)

# %%
tasks, models = companion.tasks(limit), companion.models(["calm", "vanilla"])
of_both = {
    (name, task): trace(each, tasks[task].inputs, max_new_tokens=max_new_tokens, states=companion.scratch(f"{name}-{task}.npy"))
    for name, each in models.items() for task in tasks
}
model, traces = models["calm"], {task: t for (name, task), t in of_both.items() if name == "calm"}
layers, words = model.layers, token_text(companion.tokenizer())

# %% [markdown]
# ## One token
#
# At one block, the eight ids that expert or contrast favour most; ids in brackets lie outside the *head* (less than a tenth of the expert's best) and keep the
# expert's probability. Chosen is a token whose prediction the weighted contrast changes, the one of which the expert was surest. Both results sum to one.

# %%
places = {task: contrasting.telling_token(t, expert_layer, model, alpha) for task, t in traces.items()}
single = pd.concat(
    [contrasting.one_token(t, places[task], expert_layer, model, words, alpha=alpha, task=task) for task, t in traces.items()], ignore_index=True
)
figure, axes = figures.panels(2 * len(tasks), columns=len(tasks), width=4.3, height=2.5, profile=profile, sharey=True)
for number, axis in enumerate(axes):
    kind, task = ("weighted", "jsd")[number // len(tasks)], list(tasks)[number % len(tasks)]
    rows = single[(single.task == task) & (single.kind == kind)]
    figures.three_distributions(axis, rows)
    axis.set_title(f"{figures.label(task)}, {figures.label(kind)}: block {expert_layer} against {rows.amateur_layer.iloc[0]}", fontsize=9)
figures.only_outer_labels(axes, len(tasks))
figures.shared_legend(figure, axes[0])
companion.save_figure(figure, "one_token", single)

# %% [markdown]
# ## Who is the amateur under JSD?
#
# For every expert block (across) the share of tokens whose most different earlier block is each of those before it (upwards).

# %%
amateurs = pd.concat([contrasting.chosen_amateurs(t, model, task=task) for task, t in traces.items()], ignore_index=True)
figure, axes = figures.panels(len(tasks), width=3.9, height=3.0, profile=profile)
for axis, (task, rows) in zip(axes, amateurs.groupby("task", sort=False)):
    image = figures.amateur_grid(axis, rows, layers)
    axis.set_title(figures.label(task))
figures.only_outer_labels(axes, len(tasks))
figure.colorbar(image, ax=axes, label="share of tokens", pad=0.01)
companion.save_figure(figure, "chosen_amateur", amateurs)
for task, rows in amateurs.groupby("task", sort=False):
    print(f"{figures.label(task)}: the amateur is block 1 for {rows[rows.amateur_layer == 1].groupby('layer').share.sum().mean():.1%} of tokens, mean of blocks")

# %% [markdown]
# ## The degenerate case: a head with one candidate
#
# Where the expert gives nobody else a tenth of its best probability, there is nothing to contrast. A distribution leaves the expert as it is. The public
# code leaves out the mass of the head, so that the only candidate gets all: a confidence of 1, right or wrong. Solid: share of tokens with one candidate;
# the others: mean margin plain, contrasted, and without the mass.

# %%
head = pd.concat([contrasting.heads(t, model, alpha, task=task) for task, t in traces.items()], ignore_index=True)
figure, axes = figures.panels(len(tasks), width=4.0, height=2.9, profile=profile, sharey=True)
styles = {"single": ("#333333", (), "one candidate (share of tokens)"), "plain": ("#0173b2", (4, 1.5), "margin, plain"),
          "contrast": ("#d55e00", (1, 1), "margin, weighted contrast"), "without_mass": ("#cc78bc", (3, 1, 1, 1), "the same without the mass (public code)")}  # fmt: skip
for axis, (task, rows) in zip(axes, head.groupby("task", sort=False)):
    for column, (colour, dashes, name) in styles.items():
        axis.plot(rows.layer, rows[column], color=colour, dashes=dashes, label=name, linewidth=1.6)
    figures.block_axis(axis, layers)
    axis.set(title=figures.label(task), ylabel="share, or mean margin", ylim=(0, 1.02))
figures.only_outer_labels(axes, len(tasks))
figures.shared_legend(figure, axes[0], columns=2)
companion.save_figure(figure, "one_candidate", head)

# %%
at_level = []
for task, t in traces.items():
    for rule, options in {"unpruned": {}, "weighted": dict(contrast="weighted", contrast_alpha=alpha), "jsd": dict(contrast="jsd", contrast_alpha=alpha)}.items():
        policy = ExitPolicy("softmax_margin", min_layer=min_layer, **options)
        asked = confidences(t, policy, model)
        at_level.append({"task": task, "rule": rule, **sweep(t, policy, [threshold], asked=asked).iloc[0]})
    plain = ExitPolicy("softmax_margin", min_layer=min_layer)
    bare = contrasting.without_mass(t, plain, model, alpha)
    at_level.append({"task": task, "rule": "weighted, without the mass", **sweep(t, plain, [threshold], asked=bare).iloc[0]})
at_level = companion.save_table(pd.DataFrame(at_level), "at_equal_threshold")
for row in at_level.itertuples():
    print(f"{figures.label(row.task)}, {figures.label(row.rule)} above {threshold}: mean exit block {row.mean_exit_layer:.2f}, {row.same_token:.1%} of predictions stay")

# %% [markdown]
# ## Contrast as confidence: does it rank tokens better?
#
# As in 05: the area under the ROC curve (of two tokens at a block, one of which may exit, how often is that one scored higher?). No threshold is involved.
# The token is the expert's own; contrast gives the confidence only. Above CALM, whose early blocks were trained too; below vanilla, whose early blocks were not, so
# that they are amateurs indeed.

# %%
every_rule = contrasting.contrast_options(top_k, alpha)
rules = {rule: options for rule, options in every_rule.items() if not rule.endswith("_token")}
policies = {rule: ExitPolicy("softmax_margin", min_layer=min_layer, **options) for rule, options in rules.items()}
said = {
    (task, rule): confidences(t, policy) if policy.read_out.plain else readings(t, policy, model)
    for task, t in traces.items() for rule, policy in policies.items()
}
ranks = pd.concat(
    [
        decisions.ranking(t, policies[rule], labels=dict(model=name, task=task, rule=rule),
                          asked=getattr(said[task, rule], "confidences", said[task, rule]) if name == "calm" else confidences(t, policies[rule], models[name]))
        for (name, task), t in of_both.items() for rule in policies if not rule.endswith("fixed")
    ],
    ignore_index=True,
)  # fmt: skip

# %%
figure, axes = figures.panels(2 * len(tasks), columns=len(tasks), width=4.0, height=2.5, profile=profile, sharex=True, sharey=True)
for axis, ((name, task), rows) in zip(axes, ranks.groupby(["model", "task"], sort=False)):
    figures.rule_curves(axis, rows.dropna(), "layer", "roc_area")
    figures.block_axis(axis, layers)
    axis.set(title=f"{figures.label(name)}, {figures.label(task)}", ylabel="area under the ROC curve")
figures.only_outer_labels(axes, len(tasks))
figures.all_in_legend(figure, axes)
companion.save_figure(figure, "ranking", ranks)
for (name, task), rows in ranks.groupby(["model", "task"], sort=False):
    areas = [f"{figures.label(rule)} {part.roc_area.mean():.3f}" for rule, part in rows.groupby("rule", sort=False)]
    print(f"{figures.label(name)}, {figures.label(task)}: " + ", ".join(areas))

# %% [markdown]
# ## At equal quality
#
# The lowest threshold at which 95, 98 and 99 % of the predictions at the exits are the full-depth ones; mean exit block, and operations, amateurs included. JSD
# reads out every earlier block, weighted contrast one of them.

# %%
sources = {task: [len(ids) for ids in companion.tokenizer()(tasks[task].inputs).input_ids] for task in tasks}
equal = pd.concat(
    [
        comparison.at_equal_quality(traces[task], policies[rule], [0.95, 0.98, 0.99], model, sources[task], {"task": task, "rule": rule}, read)
        for (task, rule), read in said.items()
    ],
    ignore_index=True,
)
figure, axes = figures.panels(2 * len(tasks), columns=len(tasks), width=4.0, height=2.6, profile=profile, sharex=True, sharey="row")
for number, axis in enumerate(axes):
    column, task = ("mean_exit_layer", "flops_share")[number // len(tasks)], list(tasks)[number % len(tasks)]
    figures.rule_curves(axis, equal[equal.task == task], "wanted", column)
    axis.set(title=figures.label(task), xlabel="share of predictions that stay", xticks=[0.95, 0.98, 0.99])
    axis.set_ylabel({"mean_exit_layer": "mean exit block", "flops_share": "operations, of no exit"}[column])
figures.only_outer_labels(axes, len(tasks))
figures.all_in_legend(figure, axes)
companion.save_figure(figure, "equal_quality", equal)

# %%
starts = pd.concat(
    [
        comparison.at_equal_quality(t, ExitPolicy("softmax_margin", min_layer=start, **rules[rule]), [0.98], model, sources[task],
                                    {"task": task, "rule": rule, "min_layer": start})
        for task, t in traces.items() for rule in ("fixed", "weighted_fixed", "jsd_fixed") for start in (2, 4, 6, 8)
    ],
    ignore_index=True,
)  # fmt: skip
companion.save_table(starts, "minimum_block")
starts.pivot(index=["task", "rule"], columns="min_layer", values=["mean_exit_layer", "flops_share"]).round(2)

# %% [markdown]
# ## Contrast as decoder, without exits
#
# All blocks are run, and the token is the contrast's choice in place of the last block's: CALM, and vanilla. Score beside that of plain greedy search, paired 95 % interval.

# %%
decoding, tokens_too = dict(max_new_tokens=max_new_tokens, batch_size=batch_size), []
for name, task in [(name, task) for name in models for task in tasks.values()]:
    contrasted = {
        (kind, level): ExitPolicy("softmax_margin", threshold=1.0, min_layer=layers - 1, contrast=kind, contrast_token=True, contrast_alpha=level)
        for kind in ("weighted", "jsd") for level in (alpha, 0.5)
    }
    tokens_too.append(comparison.comparison(models[name], task, contrasted, ("rule", "alpha"), **decoding)[0].assign(model=name))
tokens_too = companion.save_table(pd.concat(tokens_too, ignore_index=True), "as_decoder")
for row in tokens_too[tokens_too.rule != "none"].itertuples():
    print(f"{figures.label(row.model)}, {figures.label(row.task)}, {figures.label(row.rule)}, alpha {row.alpha}: keeps {row.retained:.1%} ({row.low:.1%} to {row.high:.1%}), same output {row.same_output:.1%}")

# %% [markdown]
# ## The verdict: a Pareto improvement?
#
# Decoded with exits at the thresholds above (95 and 99 %): plain margins, contrast as confidence, and contrast for the token too. A contrast setting is an improvement if
# its score lies above that of *every* plain setting (no exit among them) that costs no more operations, with an interval above zero (95 % for all settings of a task together).
# "Cheaper at equal quality" is the figure before. A pruned contrast scores its amateurs anew at every block; looking up what was scored before would save some of that.

# %%
points, verdicts = [], []
for name, task in tasks.items():
    chosen = equal[(equal.task == name) & (equal.wanted != 0.98)]
    tried = {(r.rule, r.threshold): ExitPolicy(threshold=float(r.threshold), min_layer=min_layer, **rules[r.rule]) for r in chosen.itertuples()}
    for rule, options in every_rule.items():
        if rule.endswith("_token"):
            level = float(chosen[(chosen.rule == rule.replace("token", "fixed")) & (chosen.wanted == 0.99)].threshold.iloc[0])
            tried[rule, level] = ExitPolicy(threshold=level, min_layer=min_layer, **options)
    table, decoded = comparison.comparison(model, task, tried, ("rule", "threshold"), **decoding)
    points.append(table)
    tested = [rule for rule in every_rule if rule not in ("unpruned", "fixed")]
    verdicts.append(contrasting.pareto_verdict(decoded, ("unpruned", "fixed"), tuple(tested)).assign(task=name))
points, verdicts = pd.concat(points, ignore_index=True), companion.save_table(pd.concat(verdicts, ignore_index=True), "pareto_verdict")

# %%
figure, axes = figures.panels(len(tasks), width=4.4, height=3.4, profile=profile)
for axis, (task, rows) in zip(axes, points.groupby("task", sort=False)):
    figures.rule_curves(axis, rows, "flops_share", "score")
    axis.set(title=figures.label(task), xlabel="decoder operations, of no exit", ylabel=figures.label(comparison.PRIMARY[task]))
figures.all_in_legend(figure, axes)
companion.save_figure(figure, "score_against_operations", points)
for task, rows in verdicts.groupby("task", sort=False):
    print(f"{figures.label(task)}: of {len(rows)} contrast settings {rows.improves.sum()} improve on plain margins and no exit, {rows.worse.sum()} are worse, "
          f"{rows.cheapest.sum()} cost less than any plain setting, the rest cannot be told apart")

# %% [markdown]
# ## By the clock
#
# What a decision costs where nobody exits, in blocks, measured by `make bench` at the shapes of T5-base and T5-large (random weights; cost does not depend on them).

# %%
measured = stored_decisions(["softmax_margin", "margin, 256 ids kept", "weighted contrast", "weighted contrast, 256 ids kept", "JSD contrast, 256 ids kept"])
if len(measured):
    companion.save_table(measured, "measured_cost")
    for row in measured.itertuples():
        print(f"{row.shape}, {row.what.replace('_', ' ')}: {row.median:.2f} of a block ({row.lowest:.2f} to {row.highest:.2f})")
else:
    print("not measured: run make bench")

# %% [markdown]
# ## Long inputs
#
# The paper's two long-document rows run LongT5 on Multi-News and BigPatent. The same code on long documents in both layouts, with a mini LongT5 of **random weights**: these are
# costs, not scores. With a long source the cross-attention and the keys and values of the source outweigh the read-out, and what there is to save by pruning shrinks.

# %%
documents = companion.long_documents(long_corpus, long_limit)
long_model = long_documents.random_long_t5(companion.tokenizer(), companion.scratch("random_long_t5"))
asked = {"none": None} | {rule: ExitPolicy("softmax_margin", threshold=1.0, min_layer=min_layer, **options) for rule, options in rules.items()}
asked |= {"static": ExitPolicy("static", min_layer=min_layer)}
long_costs = pd.concat(
    [long_documents.costs_by_part(long_model, task, asked, 12, layout=layout) for layout, task in documents.items()], ignore_index=True
)
companion.save_table(long_costs, "long_documents")
for row in long_costs.itertuples():
    print(f"{row.layout} layout, {row.source_tokens:.0f} source tokens, {figures.label(row.rule)}: {row.flops_share:.1%} of no exit, read-outs {row.read_out_share:.1%}")

# %%
grown = pd.concat(
    [
        long_documents.counted_by_length(shape.sizes, (64, 256, 1024, 4096, 16384), min_layer, 256).assign(shape=name)
        for name, shape in SHAPES.items()
    ],
    ignore_index=True,
)
figure, axes = figures.panels(len(SHAPES), width=3.9, height=2.7, sharey=True)
for axis, (shape, rows) in zip(axes, grown.groupby("shape", sort=False)):
    figures.rule_curves(axis, rows, "source_tokens", "flops_share")
    axis.set(title=shape, xlabel="source, tokens", ylabel="operations if all blocks decide,\nof no exit")
    axis.set_xscale("log", base=2)
figures.only_outer_labels(axes, len(SHAPES))
figures.all_in_legend(figure, axes)
companion.save_figure(figure, "long_inputs", grown)

# %% [markdown]
# ## Each published statement beside our number

# %%
tables = {
    task: {
        name: table[table.task == task].assign(**{} if "model" in table else {"model": "calm"})
        for name, table in {"ranking": ranks, "equal": equal, "threshold": at_level, "verdict": verdicts, "decoder": tokens_too, "head": head}.items()
    }
    for task in tasks
}
verdict_table = claims.judge(claims.contrast_claims(), tables)
companion.save_table(verdict_table, "claims")[["claim", "published", "task", "ours", "verdict"]]

# %% [markdown]
# ## What this shows, and what it does not
#
# *As confidence*, contrast ranks tokens worse than the plain margin on every task here, whichever the amateur; at equal quality tokens exit later, and
# each decision costs at least one read-out more. In an exit-trained model the earlier block already knows most of what the later one knows; subtracting it
# takes signal away, not noise.
#
# *As decoder*, it changes many outputs. With the paper's head (a tenth of the best) scores of CALM fall on summarization and translation, those of vanilla on translation; with a
# narrower head the loss shrinks because less is contrasted. Question answering of `small` moves within its wide interval: answers there are guesses of the right kind (00).
#
# *Without the mass of the head* contrast is a looser threshold: at the same 0.9 it exits earlier and keeps fewer predictions; with the mass restored most of the difference is gone. Most
# heads have one candidate, of which the public form is sure by construction. These are seldom wrong here (`wrong_single` in the table of the figure), so that they make it
# early; what makes it wrong is more often a head of several, scaled up to one. Whether the published speed of contrast comes from this cannot be told from its tables.
#
# *Verdict on the Pareto improvement*: the lines above count, for every task, the settings that beat plain margins at no more cost. Pruning makes contrast cheaper, but makes the plain
# margin cheaper still. JSD nearly always picks block 1, so that it is a contrast with the first block under another name, at the price of reading out all of them.
#
# *Long inputs*: as the source grows, attention to it outweighs the read-outs, and both pruning and the cost of deciding fade.
#
# Not shown: large models, which Gera et al. and Chuang et al. contrast; open-ended text, for which contrast was made; quality on long documents, for which no trained model is at hand.
#
# **Files.** Every figure as PNG and PDF beside the CSV of what was drawn, and a manifest, in `figures/<profile>/04_contrastive_decoding`.
# **Next:** 05 asks whether several blocks decide better than one.

# %%
companion.finish()
