# %% [markdown]
# # 01 · Monotonicity: does a prediction, once made, stay?
#
# [‹ 00 models](00_models.ipynb) · [all notebooks](../README.md#the-notebooks) · [02 saturation ›](02_saturation.ipynb)
#
# **Question.** Early exiting stops at a layer in the hope that later ones would not have changed the
# prediction. When is that justified, and does it depend on how the model was trained?
#
# **What the paper says** (MEE, section 3, on BigPatent, twelve layers). Under CALM's weighted loss 75 % of
# the tokens keep their top-1 prediction after layer 2 and 90 % after layer 4; the vanilla and the FREE
# model change their minds far later. CALM's mean confidence in the final prediction grows with every layer,
# vanilla's rises only in late layers, and FREE's rises up to its exit, dips, and rises again.
#
# **What we do.** Each model greedily writes its own output at full depth. That output is fed back once, and
# logits are computed from the state after *every* layer. With $h_t^l$ the state of token $t$ after
# decoder layer $l$ of $L$, $n$ the final layer norm and $W$ the LM head,
#
# $$p_t^l = \mathrm{softmax}\bigl(W\,n(h_t^l)\bigr), \qquad \hat y_t^{\,l} = \arg\max_v\, p_t^l(v).$$
#
# No token exits yet (see *From curves to decoding* for that): these are the curves that exit rules have to work with.
#
# **Expectation, before running:** in the early layers, the share of final predictions is largest under CALM, then
# under late-weighted, FREE and vanilla, because the objectives supervise these layers in that order. (This reason was
# wrong: late-weighted training does not supervise the early layers at all, and FREE supervises only one of them.)

# %% needs=["traces"] tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 50  # examples of each task to trace
max_new_tokens = 48  # longest output, end token included
seed = 0  # which tokens Figure 3 shows

# %% tags=["hide-input"]
import numpy as np
import pandas as pd
from IPython.display import display

from mee_utils import ExitPolicy, trace
from mee_utils.analysis import monotonicity
from mee_utils.analysis.comparison import replay_against_decoding
from mee_utils.analysis.model_quality import seed_spread
from mee_utils.analysis.statistics import difference_interval, mean_interval
from mee_utils.companion import Experiment, claims, figures
from mee_utils.companion.result_tables import read_retrained

experiment = Experiment.of_notebook("01_monotonicity", globals())
layers = experiment.layers
third = layers // 3
bands = experiment.note(limit, "bands: 95 % intervals over sequences")
whiskers = experiment.note(limit, "whiskers: 95 % intervals over sequences")

# %%
tasks = experiment.tasks(limit)
models = experiment.backbones
traces = {
    (task, name): experiment.trace(name, task, limit, max_new_tokens) for task in tasks for name in models
}

# %% [markdown]
# ## Figure 1: how many predictions are final after each layer?
#
# A token *settles* at the first layer after which its top-1 prediction never changes again:
#
# $$s_t = \min\,\{\,l : \hat y_t^{\,l} = \hat y_t^{\,l+1} = \dots = \hat y_t^{\,L}\,\}.$$
#
# This is what the whole chapter is about, so here it is in numpy. The library's function gives the same layers.


# %%
def settled_from(t):
    """The layer $s_t$ of every token of a trace, `[token]`."""
    agrees = t.top1_id == t.top1_id[:, -1:]  # [token, layer], does the layer predict what the last one does?
    to_the_end = np.logical_and.accumulate(agrees[:, ::-1], axis=1)  # from the last layer downwards
    return t.layers + 1 - to_the_end.sum(axis=1)


settled = {key: settled_from(t) for key, t in traces.items()}
for key, t in traces.items():
    np.testing.assert_array_equal(settled[key], monotonicity.settled_from(t))

# %% [markdown]
# The curves show the share of tokens with $s_t \le l$. Tokens of one sequence are not independent, so the bootstrap
# resamples sequences. Our *oracle*, which knows the last layer's prediction, exits at $s_t$. An exit before $s_t$ is
# harmless only if its layer happens to predict the final token, which a later layer drops and the last one takes up
# again.

# %%
stable = experiment.table(monotonicity.settled_by_layer, traces)
figure, panels = figures.panels(
    stable, title="Tokens whose prediction is final", note=f"{bands}; crosses: MEE on BigPatent"
)
for axis, rows in panels:
    figures.lines(axis, rows, "layer", "share", "model", figures.BAND)
    if "summarization" in rows.task.iloc[0]:  # the task of BigPatent
        look = {"color": figures.STYLES["calm"].colour, "markeredgecolor": "black", "markersize": 9}
        axis.plot([layers / 6, layers / 3], [0.75, 0.90], "X", label="CALM in MEE (12 layers)", **look)
    axis.set(ylabel="share of tokens", ylim=(-0.03, 1.03))
experiment.save_figure(figure, "figure_1_settled", stable)

early = stable[stable.layer == third].pivot(index="model", columns="task", values="share")
for name, shares in early.loc[models].iterrows():
    print(f"final after layer {third}, {name}:", *(f"{task} {share:.0%}," for task, share in shares.items()))

# %% [markdown]
# A third of the way up, 70 to 93 % of CALM's predictions are final, and 21 to 30 % of vanilla's; FREE and
# late-weighted training are in between. MEE reports 75 % for CALM after layer 2 and 90 % after layer 4. Here the
# shares are 52 to 70 % and 70 to 93 %. So the direction is reproduced, the published level is reached only after
# layer 4, and only on question answering.
#
# Up to layer 3 the order is CALM, FREE, late-weighted, vanilla on every task, which is not the one expected. FREE has
# a loss at layer 4, which the layers below have to serve; late-weighted training has none there. Even so, by layer 6
# it is within three points of CALM.
#
# How many layers earlier do predictions become final than in vanilla? The mean of $s_t$, the difference from
# vanilla's (paired, over the same inputs), and, for the models that were trained with more than one seed, the range
# over seeds.

# %%
depths = []
gains = []
for (task, name), s in settled.items():
    key = {"task": task, "model": name}
    sequence = traces[task, name].sequence
    depths.append(key | {"tokens": len(s)} | mean_interval(s, sequence).columns("mean_layer"))
    if name != "vanilla" and "vanilla" in models:
        of_vanilla = (settled[task, "vanilla"], traces[task, "vanilla"].sequence)
        gains.append(key | difference_interval(of_vanilla, (s, sequence)).columns("layers_earlier"))
depths = experiment.save_table(pd.DataFrame(depths), "settling_depth")
shown = {"mean layer": depths.set_index(["model", "task"]).mean_layer}
if gains:
    gains = experiment.save_table(pd.DataFrame(gains), "settling_gain")
    shown["earlier than vanilla"] = gains.set_index(["model", "task"]).layers_earlier
seeds = read_retrained(profile, "seeds")
if len(seeds):
    by_seed = experiment.save_table(seed_spread(seeds, "settled_from"), "settling_by_seed")
    by_seed = by_seed.set_index(["model", "task"])
    shown["range over seeds"] = by_seed.high - by_seed.low
display(pd.DataFrame(shown).reindex(shown["mean layer"].index).unstack("task").round(2))

# %% [markdown]
# CALM's predictions are final 3 to 5 layers earlier than vanilla's, on average over tokens. A second training seed
# moves the mean by less than 0.2 layers (vanilla and CALM; the others have one seed). So the gap between these two
# comes from the training objective, not from the seed.
#
# ## Figure 2: confidence in the final prediction
#
# The probability $p_t^l(\hat y_t^{\,L})$ that each layer gives to the token that the *last* layer will choose, as a mean
# over tokens. (The paper's band, one standard deviation over tokens, is in the table.)

# %%
confidence = experiment.table(monotonicity.confidence_by_layer, traces)
training = experiment.profile.training
exit_layer = training.exit_layer("free", layers) if "free" in training.backbones else 0

figure, panels = figures.panels(confidence, title="Probability of the final prediction", note=bands)
for axis, rows in panels:
    figures.lines(axis, rows, "layer", "confidence", "model", figures.BAND)
    if exit_layer:
        axis.axvline(exit_layer, color=figures.GREY, linestyle=":", linewidth=1, label="FREE's exit")
    axis.set(ylabel="mean over tokens", ylim=(-0.03, 1.03))
experiment.save_figure(figure, "figure_2_confidence", confidence)

means = confidence.pivot(index=["model", "task"], columns="layer", values="confidence")
falls = (means.cummax(axis=1) - means).max(axis=1)  # from any layer to a later one
halves = (means > 0.5).idxmax(axis=1)  # the first layer above one half
for name in models:
    print(f"{name}: above one half from layer", *halves[name], "on, largest fall", *falls[name].round(3))

# %% [markdown]
# As published, CALM's mean confidence grows from layer to layer (it never falls by as much as 0.005), and vanilla's
# rises late: it passes one half at layer 8, CALM's at layer 3 or 4. FREE's dips after its exit on question answering
# and translation, by up to 0.16, and not on summarization.
#
# The spread over tokens is wide: half-way up, the standard deviation is 0.2 to 0.4. A mean says little about a single
# token, so we look at some.
#
# ## Figure 3: individual tokens
#
# What each layer of the paper's three models predicts, and with what probability. All models must predict the same
# token, so the decoder is fed the reference here (teacher forcing). We order the tokens of one task by the layer at
# which they settle in vanilla and show those at the 10th, 50th and 90th percentile. Red: $s_t$. (An underscore begins
# a word. The paper shows three tokens a layer; these are in the table. Of a deep model every second layer is shown.)

# %%
shown_task = "translation" if "translation" in tasks else next(iter(tasks))
shown_models = [name for name in ("vanilla", "calm", "free") if name in models] or models
along = {
    name: trace(
        experiment.model(name, shown_task),
        tasks[shown_task].inputs,
        tasks[shown_task].targets,
        max_new_tokens=max_new_tokens,
    )
    for name in shown_models
}
text = monotonicity.token_text(experiment.tokenizer())
chosen = monotonicity.percentile_tokens(along[shown_models[0]], (0.1, 0.5, 0.9), seed)  # percentile -> token
predicted = pd.concat(
    experiment.table(monotonicity.predictions, along, ["model"], token=token, decode=text, percentile=percent)
    for percent, token in chosen.items()
)

# %%
note = experiment.note(
    intervals=f"{figures.label(shown_task)}; shades: probabilities; red: where the prediction becomes final"
)
figure, panels = figures.panels(
    predicted,
    "percentile",
    title="The top-1 prediction of every layer",
    note=note,
    width=10.5,
    height=1.7,
    per_line=1,
)
step = -(-layers // 15)  # of a deep model every second layer is shown
for axis, rows in panels:
    figures.predictions(axis, rows[(rows["rank"] == 1) & (rows.layer % step == 0)])
    axis.set_yticklabels([figures.label(name) for name in shown_models])
    for line, t in enumerate(along.values()):
        start = (settled_from(t)[chosen[rows.percentile.iloc[0]]] - 1) // step  # the left edge of its cell
        axis.plot([start, start], [line + 0.05, line + 0.95], color="red", linewidth=4, clip_on=False)
panels[-1][0].set(xlabel="layer")
experiment.save_figure(figure, "figure_3_tokens", predicted, with_legend=False)

# %% [markdown]
# Vanilla's first layer is nearly certain of another word than the final one, all three times. CALM's first layer
# predicts the final word of the two easier ones. For the hardest word its early layers predict something else, but
# with low confidence: their probabilities stay below 0.2 until the prediction settles. Chapter
# [10](10_confidence.ipynb) shows that this holds in general: layers that were not trained to predict are
# overconfident.
#
# ## Token by token: is CALM the most monotonic?
#
# MEE concludes that "the monotonicity assumption holds best for the CALM method", from the *mean* of figure 2. For
# how many individual tokens does the confidence rise at every layer, that is, $p_t^{l}(\hat y_t^{\,L}) <
# p_t^{l+1}(\hat y_t^{\,L})$ for all $l$? A probability near one cannot keep rising, so we also report the share that
# never *falls* by more than one percentage point. (The stored table also has both shares counted from a third of the
# depth on.)

# %%
strict = experiment.table(monotonicity.monotonic_shares, traces)
whole = strict[strict.after_layer == 0]
for (task, name), t in traces.items():
    steps = np.diff(t.final_probability.astype(float), axis=1)  # [token, from a layer to the next]
    shares = [(steps > 0).all(axis=1).mean(), (steps >= -0.01).all(axis=1).mean()]
    np.testing.assert_allclose(whole[(whole.task == task) & (whole.model == name)].share, shares)
strict = experiment.save_table(strict, "strictly_monotonic")

# %%
whole = strict[strict.after_layer == 0]
figure, panels = figures.panels(whole, title="Tokens whose confidence is monotonic", note=whiskers)
for axis, rows in panels:
    kinds = {"strictly rising": "rises at every layer", "never falling": "never falls"}
    figures.grouped_bars(axis, rows.replace({"kind": kinds}), "kind", "share")
    axis.set(ylabel="share of tokens", ylim=(0, 1))
experiment.save_figure(figure, "strictly_monotonic", strict)

never = whole[whole.kind == "never falling"].pivot(index="model", columns="task", values=["share", "start"])
display(never.loc[models].rename(columns={"share": "never falls", "start": "mean at layer 1"}).round(2))

# %% [markdown]
# Token by token the published conclusion fails. The confidence never falls for 38 to 84 % of CALM's tokens, and for 46
# to 91 % of vanilla's: vanilla has the largest share of all models on every task, FREE the smallest. Vanilla has more room
# to rise: its mean confidence is 0.05 or less at layer 1, CALM's is 0.15 to 0.32. Settling early and being monotonic are
# different things, and an exit rule needs the first: a confidence that is high early, not one that rises to the end.
#
# ## From curves to decoding: what a replay predicts, and what happens
#
# A *trace* stores what all layers compute at full depth. A *replay* of it tells what any exit rule *would* have done
# at each layer, for thousands of thresholds in seconds. The decoder does it for real: the layers that a token skips
# get their keys and values from its exit state, and a wrong token is fed back. Here are the rules that need no
# training, with MEE's published threshold and decay (0.9 and 4; no exit before a third of the depth), a fixed exit
# layer there, and the oracle. Later notebooks trust a replay only as far as the two agree. `same_exit` counts tokens
# up to the first one that differs from the full-depth output. `flops_share` is of the decoder and includes decisions,
# so it can exceed 1; the oracle's decisions are free.

# %%
published = {"threshold": 0.9, "decay": 4.0, "min_layer": third}
policies = {
    "softmax_margin": ExitPolicy("softmax_margin", **published),
    "hidden_similarity": ExitPolicy("hidden_similarity", **published),
    "rising_top1": ExitPolicy("rising_top1", **published),
    "oracle": ExitPolicy("oracle"),
    "static": ExitPolicy("static", min_layer=third),
}
exits = [
    replay_against_decoding(
        experiment.model(experiment.main, task),
        tasks[task],
        traces[task, experiment.main],
        policies,
        max_new_tokens,
    )
    for task in tasks
]
exits = experiment.save_table(pd.concat(exits, ignore_index=True), "replay_against_decoding")

replayed = exits[exits.policy == "oracle"].mean_exit_layer_replay
np.testing.assert_allclose(replayed, [settled[task, experiment.main].mean() for task in tasks], atol=1e-4)
columns = [
    "same_exit",
    "mean_exit_layer_replay",
    "mean_exit_layer_decoded",
    "score",
    "full_score",
    "flops_share",
]
display(exits.set_index([exits.task.map(figures.label), exits.policy.map(figures.label)])[columns].round(2))

# %% [markdown]
# Up to the first token that differs, at least 97 % of the tokens exit where the replay says; of the oracle's tokens,
# which exit at the first possible layer, 84 % or more. What a replay cannot know is what exits do to later tokens.
#
# The oracle stops after 2.5 to 4 layers and keeps 98 to 103 % of the score, though most of its summaries differ from
# full depth's: keys and values copied from early states are good enough. That is what a rule could gain, and the
# published settings do not gain it. Hidden-state similarity exceeds its threshold at once and exits every token at
# layer 4, as a fixed exit does, and loses 14 to 41 % of the score. The margin keeps 99 % of the score or more, but
# costs more FLOPs than full depth on two of three tasks, since each of its decisions scores the whole vocabulary.
#
# ## What this shows, and what it does not
#
# Training decides how early a prediction is final: with CALM's loss, an exit at a third of the depth would be
# harmless for most tokens, without it for few. This much of MEE's section 3 is reproduced, with somewhat lower
# shares. It is not reproduced that CALM is the most monotonic model: its mean confidence never falls, but that of
# many of its tokens does. The models are small (twelve layers, four million parameters), with two seeds of vanilla
# and CALM and one of the others, and all but the last table is measured at full depth. Chapters 05 and 08 show what
# exits cost.
#
# ## Statements, published and ours
#
# The column *published* has MEE's number on BigPatent or, where it gives none, how it makes the statement. Whether a
# statement holds here, corrected for the number of tests, is in the [ledger](../figures/results/ledger.md).

# %%
tables = {
    task: {
        "stable": stable[stable.task == task],
        "confidence": confidence[confidence.task == task],
        "monotonic": strict[strict.task == task],
    }
    for task in tasks
}
verdicts = claims.judge("01_monotonicity", tables, exit_layer=exit_layer, third=third)
claims.show_judged(experiment.save_table(verdicts, "claims"))

# %% tags=["hide-input"]
experiment.finish()
