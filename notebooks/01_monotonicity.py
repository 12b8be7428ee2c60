# %% [markdown]
# # 01 · Monotonicity: does a prediction, once made, stay?
#
# [‹ 00 models](00_models.ipynb) · [all notebooks](../README.md#the-notebooks) · [02 saturation ›](02_saturation.ipynb)
#
# **Question.** Early exiting stops at a layer and hopes that the later ones would not have changed the
# answer. When is that hope justified, and does it depend on how the model was trained?
#
# **What the paper says** (MEE, section 3, on BigPatent, twelve layers). Under CALM's weighted loss 75 % of
# the tokens keep their top-1 prediction after layer 2 and 90 % after layer 4; the vanilla and the FREE
# model change their minds far later. CALM's mean confidence in the final prediction grows with every layer,
# vanilla's comes late, and FREE's rises up to its exit, dips, and rises again.
#
# **What we do.** Each model greedily writes its own output at full depth. That output is fed back once, and
# the shared readout is applied to the state after *every* layer. With $h_t^l$ the state of token $t$ after
# decoder layer $l$ of $L$, $n$ the final layer norm and $W$ the LM head,
#
# $$p_t^l = \mathrm{softmax}\bigl(W\,n(h_t^l)\bigr), \qquad \hat y_t^{\,l} = \arg\max_v\, p_t^l(v).$$
#
# Nothing exits until the last section: these are the curves on which exit rules will have to work.
#
# **Expectation, before running:** in the early layers the order is CALM, late-weighted, FREE, vanilla,
# because that is the order in which the objectives ask anything of these layers.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 150  # examples of each task to trace
max_new_tokens = 48  # longest output, end token included
bins = 10  # confidence bins of the reliability diagrams
seed = 0  # which tokens Figure 3 shows

# %%
import pandas as pd

from mee_utils import ExitPolicy, Experiment, trace
from mee_utils.analysis import monotonicity
from mee_utils.analysis.comparison import replay_against_decoding
from mee_utils.analysis.model_quality import seed_spread
from mee_utils.analysis.statistics import difference_interval, mean_interval
from mee_utils.paper import claims
from mee_utils.paper.numbers import save_numbers
from mee_utils.study import figures
from mee_utils.study.figures import label
from mee_utils.study.result_tables import read_retrained

settings = dict(limit=limit, max_new_tokens=max_new_tokens, bins=bins, seed=seed)
experiment = Experiment("01_monotonicity", profile, data, **settings)
note = f"profile {profile}, n = {limit} examples a task"
tasks, layers = experiment.tasks(limit), experiment.layers
models = experiment.models(experiment.backbones)

# %%
own = {(task, name): experiment.trace(name, task, limit, max_new_tokens) for task in tasks for name in models}
table = lambda function, traces: pd.concat(
    [function(t, *key) for key, t in traces.items()], ignore_index=True
)
for task in tasks:
    print(f"{label(task)}: " + ", ".join(f"{label(name)} {len(own[task, name])} tokens" for name in models))

# %% [markdown]
# ## Figure 1: how many predictions are final after each layer?
#
# A token is *settled* from the first layer after which its top-1 prediction never changes again:
#
# $$s_t = \min\,\{\,l : \hat y_t^{\,l} = \hat y_t^{\,l+1} = \dots = \hat y_t^{\,L}\,\}.$$
#
# The curves show the share of tokens with $s_t \le l$. Bands are 95 % bootstrap intervals over sequences,
# because the tokens of one sequence are not independent.

# %%
shares = lambda t, task, name: monotonicity.curve(monotonicity.stable(t), t, "share", task=task, model=name)
stable = table(shares, own)
draw = lambda axis, rows: figures.lines(axis, rows, "layer", "share", "model", figures.BAND)
ylabel = "share of tokens whose\ntop-1 is final"
figure = figures.facets(stable, draw, ylabel=ylabel, note=note)
experiment.save_figure(figure, "figure_1_settled", stable)

# %%
after = stable[stable.layer == 4].set_index(["task", "model"]).share
for task in tasks:
    print(
        f"{label(task)}, settled after layer 4: "
        + ", ".join(f"{label(n)} {after[task, n]:.1%}" for n in models)
    )

# %% [markdown]
# The layer $s_t$ is also where our *oracle*, which knows the end, exits. A rule can exit before it unharmed only
# where the prediction, right already, changes and comes back.

# %%
settled = {key: (monotonicity.settled_from(t), t.sequence) for key, t in own.items()}
depths = [
    {"task": task, "model": name, "tokens": len(own[task, name])}
    | mean_interval(*tokens).columns("mean_layer")
    for (task, name), tokens in settled.items()
]
experiment.save_table(pd.DataFrame(depths), "settling_depth").drop(columns="mean_layer_draws")

# %%
against = lambda task, name: difference_interval(settled[task, "vanilla"], settled[task, name])
gain = pd.DataFrame(
    [
        {"task": task, "model": name} | against(task, name).columns("layers_earlier")
        for task, name in settled
        if name != "vanilla" and "vanilla" in models
    ]
)
gain = experiment.save_table(gain, "settling_gain") if len(gain) else gain
for row in gain.itertuples():
    print(
        f"{label(row.task)}: {label(row.model)} settles {row.layers_earlier:.2f} layers earlier than vanilla "
        f"({row.low:.2f} to {row.high:.2f})"
    )

# %% [markdown]
# Intervals over sequences say nothing about the luck of one training run. Trained again with other seeds, from the
# same base (00), the models settle here:

# %%
seeds = read_retrained(profile, "seeds")
if len(seeds):
    spread = experiment.save_table(seed_spread(seeds, "settled_from"), "settling_by_seed")
    for row in spread.itertuples():
        means = f"{row.mean:.2f} ({row.low:.2f} to {row.high:.2f})"
        print(f"{label(row.task)}, {label(row.model)}: layer {means} over {row.seeds} seeds")

# %% [markdown]
# ## Figure 2: confidence in the final prediction
#
# The probability $p_t^l(\hat y_t^{\,L})$ that each layer gives to the token that the *last* layer will
# choose: the mean and, as in the paper, the standard deviation over tokens (the band; it describes the
# spread of the tokens, not the uncertainty of the mean). One column is a model, one row a task.

# %%
means = lambda t, task, name: monotonicity.curve(t.final_probability, t, "confidence", task=task, model=name)
confidence = table(means, own)
spread = confidence.assign(
    one_below=confidence.confidence - confidence.standard_deviation,
    one_above=confidence.confidence + confidence.standard_deviation,
)
draw = lambda axis, rows: figures.lines(
    axis, rows, "layer", "confidence", "model", ("one_below", "one_above"), clip=(0, 1)
)
options = dict(ylabel="probability of the\nfinal prediction", width=2.7, height=2.3, note=note)
figure = figures.facets(spread, draw, "model", row="task", **options)
experiment.save_figure(figure, "figure_2_confidence", spread)

# %%
half = confidence[confidence.confidence > 0.5].groupby(["task", "model"]).layer.min()
for task in tasks:
    passed = ", ".join(f"{label(name)} {half.get((task, name), 'never')}" for name in models)
    print(f"{label(task)}, layer at which the mean confidence passes one half: {passed}")

# %% [markdown]
# ## Figure 3: single tokens
#
# The three most probable tokens of every layer, for one token of one sequence, in the three models of the
# paper. All models must be asked about the same token, so the reference is fed in here. The tokens of one
# task are ordered by the layer from which vanilla is settled, and we take those at the 10th, 50th and 90th
# percentile. On synthetic data the lines below show each token, in brackets, behind the words before it.

# %%
along = {
    (task, name): trace(model, tasks[task].inputs, tasks[task].targets, max_new_tokens=max_new_tokens)
    for task in tasks
    for name, model in models.items()
}
shown_task = "translation" if "translation" in tasks else next(iter(tasks))
ordered = along[shown_task, "vanilla" if "vanilla" in models else next(iter(models))]
shown = monotonicity.percentile_tokens(ordered, (0.1, 0.5, 0.9), seed)
decode = monotonicity.token_text(experiment.tokenizer())

# %%
for percentile, token in shown.items() if tasks[shown_task].spans else ():
    number, position = ordered.sequence[token], ordered.position[token]
    ids = experiment.tokenizer()(tasks[shown_task].targets[number]).input_ids
    before, token_there = experiment.tokenizer().decode(ids[:position]), decode(ids[position])
    print(f"{tasks[shown_task].inputs[number]}\n   percentile {percentile}: {before} [{token_there}]")

# %%
trio = {key: t for key, t in along.items() if key[0] == shown_task and key[1] in ("vanilla", "calm", "free")}
for percentile, token in shown.items():
    grid = lambda t, _, name: monotonicity.predictions(t, token, decode, model=name)
    predicted = table(grid, trio)
    options = dict(xlabel=f"layer ({label(shown_task)}, percentile {percentile})", columns=1, note=note)
    figure = figures.facets(predicted, figures.predictions, "model", **options, width=10.5, height=1.75)
    experiment.save_figure(figure, f"figure_3_token_{percentile}", predicted)

# %% [markdown]
# ## Going further: *strictly* monotonic tokens
#
# The assumption is named after monotonic growth, and the papers show that the *mean* grows. For how many
# single tokens does the confidence rise at every layer, that is, $p_t^{l}(\hat y_t^{\,L}) < p_t^{l+1}(\hat
# y_t^{\,L})$ for all $l$? A probability near one cannot keep rising, so beside the strict share stands the
# share that never *falls* by more than one percentage point.

# %%
rising = lambda t, task, name: monotonicity.monotonic_shares(t, task=task, model=name)
strict = table(rising, own)
experiment.save_table(strict, "strictly_monotonic").drop(columns="share_draws")

# %%
span = strict.kind.str.replace(" ", "\n") + "\n(layer " + (strict.after_layer + 1).astype(str) + "+)"
draw = lambda axis, rows: figures.grouped_bars(axis, rows, "span", "share")
figure = figures.facets(strict.assign(span=span), draw, ylabel="share of tokens", note=note)
experiment.save_figure(figure, "monotonic_tokens", strict)

# %%
for row in strict[(strict.after_layer == 0) & (strict.model == "calm")].itertuples():
    share = f"{row.share:.1%} ({row.low:.1%} to {row.high:.1%})"
    print(f"CALM, {label(row.task)}, {row.kind} from layer 1 on: {share}")

# %% [markdown]
# ## Going further: are the early layers overconfident?
#
# An exit rule compares the *current* layer's own top-1 probability with a threshold. That is sensible only
# as far as 0.9 means "right nine times out of ten". A prediction counts as right here if it equals the
# reference, which is fed in. Solid: mean confidence; dashed: accuracy; the gap between them is over- or
# underconfidence. Bands are 95 % intervals over sequences.

# %%
correct = {key: t.top1_id == t.token_id[:, None] for key, t in along.items()}
by_layer = lambda t, *key: monotonicity.layer_reliability(t, correct[key], bins, task=key[0], model=key[1])
per_layer = table(by_layer, along)
draw = lambda axis, rows: figures.column_lines(axis, rows, "layer", ["confidence", "accuracy"])
options = dict(ylabel="mean over tokens", width=2.7, height=2.3, note=note)
figure = figures.facets(per_layer, draw, "model", row="task", **options)
experiment.save_figure(figure, "confidence_against_accuracy", per_layer)
for name, rows in per_layer.groupby("model", sort=False):
    worst = rows.loc[(rows.confidence - rows.accuracy).idxmax()]
    found = f"by {worst.confidence - worst.accuracy:.3f} ({label(worst.task)})"
    print(f"{label(name)} is most overconfident at layer {worst.layer}: {found}")

# %% [markdown]
# The same, bin by bin: reliability at a third, two thirds and the whole of the depth. On the diagonal a
# confidence is what it says; below it the layer is overconfident. Whiskers are 95 % intervals over
# sequences. Bins with fewer than twenty tokens are left out of the drawing, not of the table. The expected
# calibration error sums the gaps over bins $b$ of $n_b$ among $n$ tokens (Guo et al. 2017):
#
# $$\mathrm{ECE} = \sum_b \frac{n_b}{n}\,\bigl|\,\mathrm{accuracy}_b - \mathrm{confidence}_b\,\bigr|.$$

# %%
third = (layers // 3, 2 * layers // 3, layers)
binned = lambda t, *key: monotonicity.reliability_bins(
    t, correct[key], third, bins, task=key[0], model=key[1]
)
reliability = table(binned, along)


def draw(axis, rows):
    axis.plot([0, 1], [0, 1], color=figures.GREY, linewidth=1, dashes=(1, 1), label="perfectly calibrated")
    figures.lines(axis, rows, "confidence", "accuracy", "model")
    figures.dots(axis, rows, "confidence", "accuracy", "model", yband=figures.BAND, label=None)


labels = dict(xlabel="confidence (top-1 probability)", ylabel="accuracy")
figure = figures.facets(reliability[reliability.tokens >= 20], draw, "layer", row="task", **labels, note=note)
experiment.save_figure(figure, "reliability", reliability)

# %%
kept = ["task", "model", "layer", *[c for c in per_layer if c.startswith("expected")]]
errors = experiment.save_table(per_layer[per_layer.layer.isin(third)][kept], "expected_calibration_error")
early = errors[errors.layer == third[0]].groupby("model", sort=False).expected_calibration_error.mean()
told = ", ".join(f"{label(name)} {error:.3f}" for name, error in early.items())
print(f"Expected calibration error at layer {third[0]}, mean over tasks: {told}")
errors.pivot(index=["task", "model"], columns="layer", values="expected_calibration_error").round(3)

# %% [markdown]
# ## From curves to decoding: what replay promises, and what happens
#
# A trace tells what any exit rule *would* have done at each layer, for thousands of thresholds in seconds.
# The decoder does it for real: a token that exits early hands its state on as keys and values for the
# layers that it skipped, and a wrong token is fed back. Here are the rules that need no training, with
# MEE's published settings (threshold 0.9, decay 4, no exit before a third of the depth), a static exit
# there, and the oracle. Later notebooks trust a replay only as far as the two agree. `same_exit` counts
# tokens up to the first one that differs from the full-depth output.

# %%
options = dict(threshold=0.9, decay=4.0, min_layer=layers // 3)
rules = ("softmax_margin", "hidden_similarity", "rising_top1")
policies = {name: ExitPolicy(name, **options) for name in rules}
policies |= {"oracle": ExitPolicy("oracle"), "static": ExitPolicy("static", min_layer=layers // 3)}
calm = {key: t for key, t in own.items() if key[1] == "calm"}
replayed = lambda t, task, name: replay_against_decoding(
    models[name], tasks[task], t, policies, max_new_tokens
)
exits = table(replayed, calm)
experiment.save_table(exits, "replay_against_decoding")

# %%
for row in exits.itertuples():
    print(
        f"{label(row.task)}, {label(row.policy)}: layer {row.mean_exit_layer_replay:.2f} replayed, "
        f"{row.mean_exit_layer_decoded:.2f} decoded; "
        f"{label(row.metric)} {row.score:.1f} of {row.full_score:.1f}, {row.flops_share:.0%} of the FLOPs"
    )

# %% [markdown]
# ## Each published statement beside our number
#
# The statements of MEE's third section as predicates on the tables above; `alone` is the verdict before the
# correction for many statements (08). Where a verdict says "does not
# hold", that is what these models do on these corpora; it does not refute a claim about BigPatent at
# T5-base's size.

# %%
of_task = lambda rows, task: rows[rows.task == task]
tables = {task: {"stable": of_task(stable, task), "confidence": of_task(confidence, task)} for task in tasks}
training = experiment.profile.training
exit_layer = training.exit_layer("free", layers) if "free" in training.backbones else 0
verdicts = claims.judge("01_monotonicity", tables, exit_layer=exit_layer)
experiment.save_table(verdicts, "claims")[["claim", "published", "task", "ours", "alone"]]

# %%
for claim, rows in verdicts.groupby("claim", sort=False):
    print(f"{claim}: holds on {(rows.alone == 'holds').sum()} of {len(rows)} tasks, uncorrected")

# %% [markdown]
# ## What this shows, and what it does not
#
# How early a token settles depends on the *objective*, and `figure_1_settled` and `settling_gain` show how
# much each objective buys. We expected late-weighted before FREE. In profile `small` it is the other way round,
# on every task and with every seed: FREE is the one that asks an earlier layer. The figures do not show that
# exiting early is safe: a rule does not know the last layer's answer, it sees a confidence, and
# `confidence_against_accuracy` and `reliability` show how far that can be trusted, layer by layer. Nor do they show speed: everything but `replay_against_decoding` is
# full depth. That table shows what else an exit does: it leaves other keys and values behind, and a wrong
# token is fed back. How thresholds trade quality for speed is the subject of [05](05_mee_classifiers.ipynb)
# and [08](08_results.ipynb).
#
# *On real text* (profile `real`) predictions are final later, with CALM and FREE latest in summaries, and CALM is
# layers ahead of the vanilla model there too. FREE comes before late-weighted on questions and translations; on summaries that is open.
# FREE's confidence dips after its exit on questions and translations, as published.
#
# **Files.** Every figure as PNG (with `MEE_PDF=1` also as PDF) beside the CSV of what was drawn, and a manifest, in
# `figures/<profile>/01_monotonicity`. **Next:** [02, saturation](02_saturation.ipynb).

# %%
save_numbers(experiment.run)
experiment.finish()
