# %% [markdown]
# # 02 · Saturation: which tokens are easy?
#
# **Question.** A state that has stopped changing has nothing more to gain from further blocks. For which tokens does that happen early, and
# are those the *easy* ones in any sense that does not already contain the answer?
#
# **What the paper says** (MEE, section 4; T5-large, CNN/DailyMail, 24 blocks). The prefixes whose states are most similar to the
# last one become similar at block 8.65 on average, the least similar ones at 18.46; the easy ones are longer (58 against 11
# tokens) and rise strictly from the first block more often (24 % against 3 %), while the difficult ones rise strictly later on (97 %).
#
# **What we do.** Every prefix of every reference is one token to predict. We repeat the published selection, then show what of the table
# follows from the selection alone, and put measures of difficulty beside it that do not look at states: the model's loss, how
# frequent a token is, its position, and, on made data, what producing it *takes*.
#
# **Expectation, before running:** the published contrast in depth will reappear, because it is built in, and shrink once tokens are
# selected by something else; depth will follow true difficulty, but less closely than it follows loss. (The second half held. The first
# was wrong in an instructive way; see below.)

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 200  # examples of each task
max_new_tokens = 48  # longest reference, in tokens
threshold = 0.9  # cosine from which a state counts as similar to the last one (MEE: 0.9)
share = 0.4  # share of the prefixes that is called easy, and difficult (MEE: 1,000 of 2,500)
frequency_limit = 5000  # training targets in which token frequencies are counted

# %%
import pandas as pd

from mee_utils import Companion, claims, figures, trace
from mee_utils.evaluation import saturation
from mee_utils.evaluation.difficulty import token_difficulty
from mee_utils.tasks.made import DIFFICULTIES

companion = Companion(
    "02_saturation", profile, data, limit=limit, max_new_tokens=max_new_tokens, threshold=threshold, share=share,
    frequency_limit=frequency_limit,
)  # fmt: skip
tasks, training = companion.tasks(limit), companion.training_tasks(frequency_limit)
models = companion.models([name for name in companion.model_names if name != "base"])

# %%
along = {
    (task, name): trace(model, tasks[task].inputs, tasks[task].targets, max_new_tokens=max_new_tokens)
    for task in tasks for name, model in models.items()
}
layers, tokenizer = next(iter(models.values())).layers, companion.tokenizer()
prefixes = {key: saturation.describe(t, threshold) for key, t in along.items()}
for (task, name), found in prefixes.items():
    found["log_frequency"] = saturation.log_frequency(along[task, name].token_id, tokenizer(training[task].targets).input_ids)
    if tasks[task].spans is not None:
        found["difficulty"] = token_difficulty(tasks[task], tokenizer, max_new_tokens)
known = [key for key, found in prefixes.items() if "difficulty" in found]
print(", ".join(f"{figures.label(task)}: {len(prefixes[task, name])} prefixes" for task, name in prefixes if name == "calm"))

# %% [markdown]
# ## Table 1: easy against difficult, selected as published
#
# Prefixes are ranked by the mean similarity of blocks 1 to L - 1 with block L; the top and the bottom end are compared. Length is in
# *tokens* before the prediction (the published code counted characters of a decoded string). The table below is CALM's, the model the paper
# used; the stored one has all models.

# %%
selected = {key: saturation.select(found, "mean_similarity", share) for key, found in prefixes.items()}
table_1 = pd.concat(
    [
        saturation.compare(prefixes[task, name], selected[task, name], task=task, model=name, selected_by="mean_similarity")
        for task, name in prefixes
    ],
    ignore_index=True,
)
companion.save_table(table_1, "table_1")
table_1[table_1.model == "calm"].pivot(index="property", columns=["task", "group"], values="mean").round(2)

# %%
published = {"first_similar": (9.65, 19.46), "similar_states": (14.35, 4.54), "prefix_tokens": (58.16, 11.48)}
for name, (easy, difficult) in published.items():
    for task in tasks:
        ours = table_1[(table_1.model == "calm") & (table_1.task == task) & (table_1.property == name)].set_index("group")["mean"]
        print(
            f"{name.replace('_', ' ')}, {figures.label(task)}: easy {ours['easy']:.2f}, difficult {ours['difficult']:.2f} "
            f"(published, {layers} blocks here against 24 there, counted from 1: {easy} and {difficult})"
        )

# %% [markdown]
# ## All tokens, not only the two ends
#
# The share of prefixes that have a similar state by each block (solid), beside the share whose *prediction* is final by then (dotted): a state
# can be far from the last one and predict the same token. Bands are 95 % intervals over sequences.

# %%
by_block = pd.concat(
    [
        saturation.reached(found, column, layers, task=task, model=name, depth=column)
        for (task, name), found in prefixes.items() for column in ("first_similar", "settled_from")
    ],
    ignore_index=True,
)

# %%
figure, axes = figures.panels(
    len(prefixes), columns=len(models), width=3.0, height=2.3, profile=profile, sharex=True, sharey=True
)
for axis, ((task, name), rows) in zip(axes, by_block.groupby(["task", "model"], sort=False)):
    figures.two_depths(axis, rows, "share", name)
    figures.block_axis(axis, layers)
    axis.set(title=f"{figures.label(name)}, {figures.label(task)}", ylim=(0, 1.02))
for axis in axes[:: len(models)]:
    axis.set_ylabel("share of prefixes")
figures.only_outer_labels(axes, len(models))
figures.shared_legend(figure, axes[0])
companion.save_figure(figure, "reached_by_block", by_block)

# %%
for task in tasks:
    rows = by_block[(by_block.task == task) & (by_block.model == "calm") & (by_block.layer == layers // 3)].set_index("depth")["share"]
    print(
        f"CALM, {figures.label(task)}, after block {layers // 3}: {rows['first_similar']:.1%} have a similar state, "
        f"{rows['settled_from']:.1%} their final prediction"
    )

# %% [markdown]
# ## Appendix A: single prefixes
#
# Three easy and three difficult prefixes of CALM, at the first, middle and last rank of the two outer fifths.

# %%
single = pd.concat(
    [saturation.examples(along[task, "calm"], prefixes[task, "calm"], task=task) for task in tasks if "calm" in models],
    ignore_index=True,
)
figure, axes = figures.panels(len(tasks), width=3.6, height=2.7, profile=profile, sharey=True)
for axis, (task, rows) in zip(axes, single.groupby("task", sort=False)):
    figures.example_curves(axis, rows, threshold)
    figures.block_axis(axis, layers)
    axis.set(title=figures.label(task))
axes[0].set_ylabel("cosine with the\nlast block's state")
figures.shared_legend(figure, axes[0])
companion.save_figure(figure, "single_prefixes", single)

# %% [markdown]
# ## What is circular in this
#
# Selecting by similarity and then reporting similarity must show a contrast, even in noise (a test of this package does it with random
# states). So here are the same rows with prefixes selected by something else: by the model's loss on the token, and by known
# difficulty (grammatical and copied tokens against all others). What remains of the contrast is what the finding is worth.

# %%
choices = [(key, by) for key in prefixes for by in ("mean_similarity", "loss", "difficulty") if by != "difficulty" or key in known]
groups = {(key, by): saturation.select(prefixes[key], by, share) for key, by in choices}
compared = pd.concat(
    [saturation.compare(prefixes[key], groups[key, by], task=key[0], model=key[1], selected_by=by) for key, by in choices],
    ignore_index=True,
)
companion.save_table(compared, "three_selections")
gaps = compared[(compared.model == "calm") & compared.property.isin(["first_similar", "settled_from", "prefix_tokens"])]
gaps = gaps.pivot(index=["task", "selected_by"], columns=["property", "group"], values="mean")
gaps.round(2)

# %%
curves = pd.concat(
    [
        saturation.similarity_curves(along[key], groups[key, by], task=key[0], model=key[1], selected_by=by)
        for key, by in choices if key[1] == "calm"
    ],
    ignore_index=True,
)
kinds = list(dict.fromkeys(curves.selected_by))

# %%
figure, axes = figures.panels(
    len(tasks) * len(kinds), columns=len(kinds), width=3.2, height=2.3, profile=profile, sharex=True, sharey=True
)
for axis, ((task, by), rows) in zip(axes, curves.groupby(["task", "selected_by"], sort=False)):
    figures.easy_and_difficult(axis, rows)
    figures.block_axis(axis, layers)
    axis.set(title=f"{figures.label(task)}, by {by.replace('_', ' ')}")
for axis in axes[:: len(kinds)]:
    axis.set_ylabel("cosine with the\nlast block's state")
figures.only_outer_labels(axes, len(kinds))
figures.shared_legend(figure, axes[0])
companion.save_figure(figure, "circularity", curves)

# %%
for task in tasks:
    for by in kinds:
        row = gaps.loc[(task, by)] if (task, by) in gaps.index else None
        if row is not None:
            late = row["first_similar", "difficult"] - row["first_similar", "easy"]
            settled = row["settled_from", "difficult"] - row["settled_from", "easy"]
            print(
                f"{figures.label(task)}, selected by {by.replace('_', ' ')}: difficult tokens become similar {late:+.2f} blocks later, "
                f"settle {settled:+.2f} blocks later"
            )

# %% [markdown]
# ## What foretells depth?
#
# Spearman's rank correlation over all prefixes between what could be known of a token and how deep it has to go: its first similar block,
# and the block from which its prediction is final. Intervals are over sequences.

# %%
measures = ["loss", "log_frequency", "prefix_tokens"]
depth = pd.concat(
    [
        saturation.associations(found, measures, ["first_similar", "settled_from"], task=task, model=name)
        for (task, name), found in prefixes.items()
    ],
    ignore_index=True,
)
companion.save_table(depth, "what_foretells_depth")
for row in depth[(depth.model == "calm") & (depth.depth == "settled_from")].itertuples():
    print(f"CALM, {figures.label(row.task)}, {row.measure.replace('_', ' ')}: {row.spearman:+.2f} ({row.low:+.2f} to {row.high:+.2f})")

# %% [markdown]
# ## Depth against true difficulty
#
# The figure that no real corpus can give: what producing a token takes is known by construction, and here is how deep each kind goes, in
# each model. Above: the block from which the prediction is final; below: the first block whose state is similar to the last one.
# Difficulties from easy to hard as the generator means them; those with fewer than twenty tokens are left out.

# %%
by_difficulty = [
    saturation.depth_by_difficulty(prefixes[task, name], DIFFICULTIES, task=task, model=name) for task, name in known
]
if known:
    by_difficulty = pd.concat(by_difficulty, ignore_index=True).sort_values("depth", ascending=False, kind="stable")
    figure, axes = figures.panels(2 * len(tasks), columns=len(tasks), width=4.4, height=2.7, profile=profile, sharey=True)
    for axis, ((depth_kind, task), rows) in zip(axes, by_difficulty.groupby(["depth", "task"], sort=False)):
        figures.grouped_bars(axis, rows, "difficulty", "block", rotation=25)
        axis.set(title=f"{figures.label(task)}: {'final prediction' if depth_kind == 'settled_from' else 'first similar state'}")
    for axis in axes[:: len(tasks)]:
        axis.set_ylabel("mean block")
    figures.shared_legend(figure, axes[0])
    companion.save_figure(figure, "depth_by_difficulty", by_difficulty)
else:
    print("true difficulty is known for made data only")

# %%
for (task, name), rows in by_difficulty[by_difficulty.depth == "settled_from"].groupby(["task", "model"], sort=False) if known else []:
    if name in ("vanilla", "calm"):
        order = rows.sort_values("block", kind="stable")
        shown = ", ".join(f"{r.difficulty.replace('_', ' ')} {r.block:.1f}" for r in order.itertuples())
        print(f"{figures.label(name)}, {figures.label(task)}: {shown}")

# %% [markdown]
# ## Each published statement beside our number

# %%
tables = {
    task: {
        "table_1": table_1[table_1.task == task], "selections": compared[compared.task == task], "depth": depth[depth.task == task],
        "reached": by_block[by_block.task == task],
    }
    for task in tasks
}  # fmt: skip
verdicts = claims.judge(claims.saturation_claims(), tables)
companion.save_table(verdicts, "claims")[["claim", "published", "task", "ours", "verdict"]]

# %% [markdown]
# ## What this shows, and what it does not
#
# Similarity ranks tokens by how early their states stop moving, and that is not the same as easy. Where the lines above give the two
# contrasts with opposite signs (question answering and summarization of profile `small`), it is the reverse of easy: a token that is certain has its
# prediction settled in the first blocks, and the later ones go on sharpening it, which moves the state; a token that the model cannot decide
# comes to rest early, undecided. MEE's "easy sequences" are then the hard ones, and a rule that exits on similarity exits on the
# wrong tokens first. A similar state is not a safe exit either: the shares of similar states and of final predictions are different curves.
# What does foretell depth is the model's own loss, and on made data the true difficulty: whatever joins, counts or compares goes deep.
# These models have not *learned* to join, count and compare well (00), so that depth there is the depth of giving up, not of success.
# Everything here is at full depth along references; no token exits.
#
# **Files.** Every figure as PNG and PDF beside the CSV of what was drawn, and a manifest, in `figures/<profile>/02_saturation`.
# **Next:** classifiers that decide from states (05), once they are there.

# %%
companion.finish()
