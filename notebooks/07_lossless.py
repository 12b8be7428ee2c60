# %% [markdown]
# # 07 · Lossless exits: can an exit keep all of the quality and still be faster?
#
# **Question.** MEE asks whether rules over several layers can keep their quality *and* be faster than no exit
# at all. An exit that nobody checks is a trade: some quality for some speed (08). What if every exit were
# checked?
#
# **The idea.** An early exit is a guess at what the last layer would say. Here it is a *draft*: the token
# waits at its exit layer, and the next token is drafted from it. After a few drafts, or once the rule is not
# sure, all waiting tokens run through the layers that they have not seen, *together*, and the last layer
# judges them. Drafts are kept up to the first that the last layer would not have said. That one is replaced,
# and what came after it is dropped. So the output is that of full depth, token for token, whatever the rule.
# The rule decides the speed alone.
#
# Decoder-only models have this at batch 1 (Draft & Verify, Zhang et al. 2024; LayerSkip, Elhoushi et al.
# 2024). FREE's parallel pass is the same work without the judgement.
#
# **Where the gain comes from.** A layer that runs on eight waiting tokens at once takes little longer than on
# one, since most of the time goes into reading its weights. Drafting costs the first layers and the
# decisions; a wrong draft costs what was run after it.
#
# **Expectation.** Where training makes early layers agree with the last one (CALM), most drafts are kept and
# rounds are long; with the vanilla model few tokens leave early. Answers of one or two tokens cannot gain.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 100  # held-out examples of each task
max_new_tokens = 48  # longest output, in tokens
batch_size = 100  # rows decoded at a time
threshold = 0.9  # of every rule
min_layer = 4  # first layer at which a token may be drafted
max_draft = 8  # tokens that wait at most
top_k = 64  # ids that a pruned rule reads out
shown = 1  # the output that is drawn

# %%
from dataclasses import replace

import pandas as pd

from mee_utils import Experiment, generate
from mee_utils.analysis import comparison, lossless
from mee_utils.study import figures, result_tables
from mee_utils.study.catalogue import RULES
from mee_utils.traces.replay import replay_policy

# %%
settings = dict(limit=limit, max_new_tokens=max_new_tokens, threshold=threshold, min_layer=min_layer)
settings |= dict(max_draft=max_draft, top_k=top_k, batch_size=batch_size, shown=shown)
experiment = Experiment("07_lossless", profile, data, **settings)
tasks, layers = experiment.tasks(limit), experiment.layers
models = experiment.models([name for name in ("calm", "vanilla") if name in experiment.backbones])
trained = experiment.classifiers(models, seeds=[0])
rules = ["softmax_margin", "fixed", "hidden_similarity", "rising_top1", "linear", "three_hidden", "lstm"]


def policy_of(model, rule):
    """The rule at the threshold of this notebook, its exits verified."""
    classifiers = {name: one for (of, name, target), (one,) in trained.items() if of == model}
    policy = RULES[rule].policy(threshold, settings, classifiers)
    return replace(policy, propagation="verify", max_draft=max_draft)


# %% [markdown]
# ## One sentence, as it is decoded
#
# Every bar is a token that was run, in order; its height is the layer at which it was drafted. Gaps separate
# rounds: after each the last layer judges what waits. The label is the token that stands there in the end, so
# that a token that was dropped stands there again in the next round. **How to read it:** green is what
# verification keeps; a full bar had to go through all layers anyway.

# %%
last_task, (first_model, model) = list(tasks)[-1], next(iter(models.items()))
sentence = tasks[last_task].inputs[shown : shown + 1]
found = generate(model, sentence, policy_of(first_model, "fixed"), max_new_tokens=max_new_tokens)
decode = lambda token: model.tokenizer.decode([token]) or "end"
run = lossless.one_output(found, 0, max_draft, layers, decode)
run["place"] = range(len(run)) + 0.7 * run["round"]
fates = dict(zip(("kept", "from the last layer", "replaced", "dropped"), figures.FATES))


def draw(axis, rows):
    for fate, colour in fates.items():
        part = rows[rows.fate == fate]
        axis.bar(part.place, part.layer, color=colour, label=fate if len(part) else None)
    axis.set_xticks(rows.place, rows.token, rotation=60, ha="right", fontsize=9)
    axis.grid(axis="x", visible=False)


# %%
labels = dict(ylabel="layer of the draft", width=0.34 * len(run) + 2, height=2.8, profile=profile)
figure = figures.facets(run.assign(task=last_task), draw, **labels)
experiment.save_figure(figure, "one_sentence", run)
counts, rounds = run.fate.value_counts(), run["round"].max()
print(f"{len(found.token_ids[0])} tokens in {rounds} rounds: {counts.to_dict()}")

# %% [markdown]
# ## Lossless: is it so?
#
# Every rule decodes every task with verification, in batches. Outputs are compared with those of full depth,
# token by token; `acceptance` is the share of judged drafts that were kept, and FLOPs (with all that is
# thrown away) stand beside those of the same rule unverified, and what that one keeps of the score.

# %%
keys, rows = ["model", "task", "rule"], []
options = dict(max_new_tokens=max_new_tokens, batch_size=batch_size)
for (name, model), task in [(each, task) for each in models.items() for task in tasks.values()]:
    full = comparison.decode(model, task, None, **options)
    for rule in [
        rule for rule in rules if not RULES[rule].classifier or (name, rule, "consistency") in trained
    ]:
        policy = policy_of(name, rule)
        verified = generate(model, task.inputs, policy, **options)
        plain = comparison.decode(
            model, task, replace(policy, propagation="copy", max_draft=None), full, **options
        )
        row = dict(zip(keys, (name, task.name, rule)), same_output=verified.token_ids == full.token_ids)
        row |= {
            "acceptance": verified.acceptance,
            "flops_share": verified.flops.sum() / full.tokens / full.flops,
        }
        row |= {
            "flops_unverified": plain.flops / full.flops,
            "kept_unverified": comparison.retained(plain, full)[0],
        }
        rows.append(row)
decoded = experiment.save_table(pd.DataFrame(rows), "decoded")
print(f"{decoded.same_output.sum()} of {len(decoded)} runs give the output of full depth, token for token")
decoded.set_index(keys).round(3)

# %% [markdown]
# ## Which drafts are kept?
#
# From the traces (replay of verified exits is exact): the share of drafts that the last layer confirms, by the
# layer at which they were made; bands are 95 % intervals over sequences.

# %%
replays = {
    (name, task, rule): replay_policy(
        experiment.trace(name, task, limit, max_new_tokens), policy_of(name, rule), model
    )
    for name, model in models.items()
    for task in tasks
    for rule in decoded[decoded.model == name].rule.unique()
}
by_layer = pd.concat(
    [
        lossless.acceptance(replayed, max_new_tokens, **dict(zip(keys, key)))
        for key, replayed in replays.items()
    ],
    ignore_index=True,
)


# %%
def draw(axis, rows, quantity):
    band = ("low", "high") if quantity == "kept" else None
    figures.lines(axis, rows.dropna(subset=[quantity]), "layer", quantity, band=band, clip=(0, 1))


quantities = {"drafted": "share of tokens\ndrafted here", "kept": "share of these\nthat is kept"}
figure = figures.facets(
    by_layer[by_layer.model == first_model], draw, quantities=quantities, sharey="row", profile=profile
)
experiment.save_figure(figure, "acceptance_by_layer", by_layer)

# %%
summary = [
    dict(zip(keys, key)) | lossless.summary(replayed, max_draft, max_new_tokens)
    for key, replayed in replays.items()
]
summary = experiment.save_table(pd.DataFrame(summary), "rounds")
for (name, task), part in summary.groupby(["model", "task"], sort=False):
    best = part.loc[part.tokens_a_round.idxmax()]
    print(
        f"{name}, {figures.label(task)}: longest rounds with {figures.label(best.rule)}, "
        f"{best.tokens_a_round:.1f} tokens, {best.acceptance:.0%} of drafts kept"
    )

# %% [markdown]
# ## Planned and measured
#
# `max_draft="auto"` (the default) chooses first layer, threshold and draft length by replay and by the
# measured costs of a layer on one to eight tokens, tries the best setting on a few inputs, and decodes plainly
# where it does not win. Below, its forecast beside what `make bench` measured, each as a multiple of full
# depth, for untrained rules.

# %%
wanted = pd.DataFrame([{"task": task, "model": name} for name in models for task in tasks])
timed = result_tables.read_timings("lossless", wanted, experiment.profile.name)
if len(timed):
    timed["what"] = [f"{row.model}, batch {row.batch}" for row in timed.itertuples()]
    draw = lambda axis, rows: figures.bars(axis, rows, "speed", "what", ("lowest", "highest"))
    labels = dict(xlabel="tokens a second (1 = full depth)", width=3.6, height=2.6, profile=profile)
    figure = figures.facets(timed, draw, **labels)
    for axis in figure.axes:
        axis.axvline(1.0, color=figures.GREY, linewidth=0.8)
    experiment.save_figure(figure, "speed", timed)
else:
    print("not timed yet: run make bench")

# %% [markdown]
# ## What this shows, and what it does not
#
# Verified, an exit costs no quality, for any rule and any threshold. What is left of the question is speed,
# and it depends on the model: where the early layers already say what the last one will (CALM), most drafts
# are kept. A rule over several layers has no advantage here: what counts is how early it is sure, and how
# much that costs. Outputs of one or two tokens cannot gain, since nothing waits; and where the last layer
# disagrees often, drafts are thrown away. Operations are hardly saved (every token still goes through every
# layer): the gain is that layers run on several tokens at once, so it exists where weights are read from
# memory token by token, in small batches most of all.

# %%
experiment.finish()
