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
from mee_utils.study import drawing, figures
from mee_utils.study.figures import label
from mee_utils.study.result_tables import read_retrained

experiment = Experiment.of_notebook("01_monotonicity", globals())
note = f"profile {profile}, n = {limit} examples a task"
tasks = experiment.tasks(limit)
layers = experiment.layers
models = experiment.models(experiment.backbones)

# %%
traces = {
    (task, name): experiment.trace(name, task, limit, max_new_tokens) for task in tasks for name in models
}
for task in tasks:
    counts = [f"{label(name)} {len(traces[task, name])} tokens" for name in models]
    print(f"{label(task)}: " + ", ".join(counts))

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
stable = experiment.table(drawing.settled_table, traces)
figure = drawing.settled_figure(stable, note=note)
experiment.save_figure(figure, "figure_1_settled", stable)

# %%
after = stable[stable.layer == 4].set_index(["task", "model"]).share
for task in tasks:
    shares = [f"{label(name)} {after[task, name]:.1%}" for name in models]
    print(f"{label(task)}, settled after layer 4: " + ", ".join(shares))

# %% [markdown]
# The layer $s_t$ is also where our *oracle*, which knows the end, exits. A rule can exit before it unharmed only
# where the prediction, right already, changes and comes back.

# %%
settled = {key: (monotonicity.settled_from(t), t.sequence) for key, t in traces.items()}
depths = [
    {"task": task, "model": name, "tokens": len(layer_of_token)}
    | mean_interval(layer_of_token, sequence).columns("mean_layer")
    for (task, name), (layer_of_token, sequence) in settled.items()
]
experiment.save_table(pd.DataFrame(depths), "settling_depth").drop(columns="mean_layer_draws")

# %%
gain = []
for task, name in settled:
    if name != "vanilla" and "vanilla" in models:
        earlier = difference_interval(settled[task, "vanilla"], settled[task, name])
        gain.append({"task": task, "model": name} | earlier.columns("layers_earlier"))
gain = pd.DataFrame(gain)
if len(gain):
    gain = experiment.save_table(gain, "settling_gain")
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
confidence = experiment.table(drawing.confidence_table, traces)
figure = drawing.confidence_figure(confidence, row="task", width=2.7, height=2.3, note=note)
experiment.save_figure(figure, "figure_2_confidence", confidence)

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
trio = {name: along[shown_task, name] for name in models if name in ("vanilla", "calm", "free")}
for percentile, token in shown.items():
    predicted = experiment.table(monotonicity.predictions, trio, labels=["model"], token=token, decode=decode)
    xlabel = f"layer ({label(shown_task)}, percentile {percentile})"
    figure = drawing.predictions_figure(predicted, xlabel=xlabel, per_line=1, note=note)
    experiment.save_figure(figure, f"figure_3_token_{percentile}", predicted)

# %% [markdown]
# ## Token by token: is CALM the most monotonic?
#
# MEE concludes that "the monotonicity assumption holds best for the CALM method", from the *mean* of figure 2. For
# how many single tokens does the confidence rise at every layer, that is, $p_t^{l}(\hat y_t^{\,L}) <
# p_t^{l+1}(\hat y_t^{\,L})$ for all $l$? A probability near one cannot keep rising, so beside the strict share
# stands the share that never *falls* by more than one percentage point: each from the first layer on, and after a
# third of them. A model whose confidence starts near 0 has more room to rise; the lower row shows where each starts.

# %%
strict = experiment.table(monotonicity.monotonic_shares, traces)
experiment.save_table(strict, "strictly_monotonic").drop(columns="share_draws")

# %%
span = strict.kind.str.replace(" ", "\n") + "\n(layer " + (strict.after_layer + 1).astype(str) + "+)"


def draw(axis, rows, y):
    whiskers = [] if y == "share" else list(figures.BAND)
    figures.grouped_bars(axis, rows.drop(columns=whiskers), "span", y)


quantities = {"share": "share of tokens", "start": "mean confidence at\nthe first of these layers"}
figure = figures.facets(strict.assign(span=span), draw, quantities=quantities, height=2.5, note=note)
experiment.save_figure(figure, "monotonic_tokens", strict)

# %%
for (task, kind, after), rows in strict.groupby(["task", "kind", "after_layer"], sort=False):
    shares = [
        f"{label(row.model)} {row.share:.0%} ({row.low:.0%} to {row.high:.0%}, starts at {row.start:.2f})"
        for row in rows.sort_values("share", ascending=False, kind="stable").itertuples()
    ]
    print(f"{label(task)}, {kind} from layer {after + 1} on: {', '.join(shares)}")

# %%
for kind, rows in strict[strict.after_layer == 0].groupby("kind", sort=False):
    largest = rows.loc[rows.groupby("task", sort=False).share.idxmax()]
    most = ", ".join(f"{label(row.task)} {label(row.model)}" for row in largest.itertuples())
    print(f"the largest share of tokens {kind} from layer 1 on: {most}")

# %% [markdown]
# ## Going further: are the early layers overconfident?
#
# An exit rule compares the *current* layer's own top-1 probability with a threshold. That is sensible only
# as far as 0.9 means "right nine times out of ten". A prediction counts as right here if it equals the
# reference, which is fed in. Solid: mean confidence; dashed: accuracy; the gap between them is over- or
# underconfidence. Bands are 95 % intervals over sequences.


# %%
def reliability_by_layer(t, **labels):
    correct = t.top1_id == t.token_id[:, None]
    return monotonicity.layer_reliability(t, correct, bins, **labels)


# %%
per_layer = experiment.table(reliability_by_layer, along)
curves = {"x": "layer", "columns": ["confidence", "accuracy"]}
size = {"width": 2.7, "height": 2.3}
figure = figures.facets(
    per_layer,
    figures.column_lines,
    "model",
    row="task",
    **curves,
    **size,
    ylabel="mean over tokens",
    note=note,
)
experiment.save_figure(figure, "confidence_against_accuracy", per_layer)
for name, rows in per_layer.groupby("model", sort=False):
    worst = rows.loc[(rows.confidence - rows.accuracy).idxmax()]
    excess = f"by {worst.confidence - worst.accuracy:.3f} ({label(worst.task)})"
    print(f"{label(name)} is most overconfident at layer {worst.layer}: {excess}")

# %% [markdown]
# The same, bin by bin: reliability at a third, two thirds and the whole of the depth. On the diagonal a
# confidence is what it says; below it the layer is overconfident. Whiskers are 95 % intervals over
# sequences. Bins with fewer than twenty tokens are left out of the drawing, not of the table. The expected
# calibration error sums the gaps over bins $b$ of $n_b$ among $n$ tokens (Guo et al. 2017):
#
# $$\mathrm{ECE} = \sum_b \frac{n_b}{n}\,\bigl|\,\mathrm{accuracy}_b - \mathrm{confidence}_b\,\bigr|.$$

# %%
thirds = (layers // 3, 2 * layers // 3, layers)


def reliability_in_bins(t, **labels):
    correct = t.top1_id == t.token_id[:, None]
    return monotonicity.reliability_bins(t, correct, thirds, bins, **labels)


reliability = experiment.table(reliability_in_bins, along)
figure = drawing.reliability_figure(reliability[reliability.tokens >= 20], row="task", note=note)
experiment.save_figure(figure, "reliability", reliability)

# %%
kept = ["task", "model", "layer", *[c for c in per_layer if c.startswith("expected")]]
errors = experiment.save_table(per_layer[per_layer.layer.isin(thirds)][kept], "expected_calibration_error")
early = errors[errors.layer == thirds[0]].groupby("model", sort=False).expected_calibration_error.mean()
by_model = ", ".join(f"{label(name)} {error:.3f}" for name, error in early.items())
print(f"Expected calibration error at layer {thirds[0]}, mean over tasks: {by_model}")
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
first = layers // 3
policies = {
    "softmax_margin": ExitPolicy("softmax_margin", threshold=0.9, decay=4.0, min_layer=first),
    "hidden_similarity": ExitPolicy("hidden_similarity", threshold=0.9, decay=4.0, min_layer=first),
    "rising_top1": ExitPolicy("rising_top1", threshold=0.9, decay=4.0, min_layer=first),
    "oracle": ExitPolicy("oracle"),
    "static": ExitPolicy("static", min_layer=first),
}


def exits_of(t, task):
    return replay_against_decoding(models["calm"], tasks[task], t, policies, max_new_tokens)


calm = {task: t for (task, name), t in traces.items() if name == "calm"}
exits = experiment.table(exits_of, calm, labels=["task"])
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
tables = {
    task: {
        "stable": stable[stable.task == task],
        "confidence": confidence[confidence.task == task],
        "monotonic": strict[strict.task == task],
    }
    for task in tasks
}
training = experiment.profile.training
exit_layer = training.exit_layer("free", layers) if "free" in training.backbones else 0
verdicts = claims.judge("01_monotonicity", tables, exit_layer=exit_layer, third=layers // 3)
experiment.save_table(verdicts, "claims")[["claim", "published", "task", "ours", "alone"]]

# %%
for claim, rows in verdicts.groupby("claim", sort=False):
    print(f"{claim}: holds on {(rows.alone == 'holds').sum()} of {len(rows)} tasks, uncorrected")

# %% [markdown]
# ## What this shows, and what it does not
#
# How early a token settles depends on the *objective*, and `figure_1_settled` and `settling_gain` show how
# much each objective buys. We expected late-weighted before FREE. In profile `small` it is the other way round,
# on every task and with every seed: FREE is the one that trains an earlier layer.
#
# *CALM settles early. That is not the same as being the most monotonic.* Token by token (`monotonic_tokens`, and the
# lines below it) MEE's "holds best for the CALM method" is not what we find: the vanilla model's confidence rises
# strictly for many more tokens than CALM's, on every task of both profiles. It never falls for more of them on every
# task of real text; in profile `small` the two share that. The vanilla model starts near 0, so that it has more room
# to rise, and no later layer takes back what an early one has never claimed. Late-weighted falls for fewer tokens
# than CALM, FREE for most. What CALM buys is where a prediction is final, not how it gets there.
#
# The figures do not show that
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
