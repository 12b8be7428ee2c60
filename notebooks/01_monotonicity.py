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
# No token exits until *From curves to decoding*: these are the curves that exit rules have to work with.
#
# **Expectation, before running:** in the early layers, the share of final predictions is largest under CALM, then under
# late-weighted, FREE and vanilla, because the objectives supervise these layers in that order. (The reason was a
# mistake: late-weighted training does not supervise the early layers at all, and FREE supervises only one of them.)

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 150  # examples of each task to trace
max_new_tokens = 48  # longest output, end token included
bins = 10  # confidence bins of the reliability diagrams
seed = 0  # which tokens Figure 3 shows

# %% tags=["hide-input"]
import pandas as pd

from mee_utils import ExitPolicy, trace
from mee_utils.analysis import monotonicity
from mee_utils.analysis.comparison import replay_against_decoding
from mee_utils.analysis.model_quality import seed_spread
from mee_utils.analysis.statistics import difference_interval, mean_interval
from mee_utils.companion import Experiment, claims, drawing
from mee_utils.companion.chapters.monotonicity import closing, overconfidence, settling, tokens
from mee_utils.companion.numbers import save_numbers
from mee_utils.companion.prose import conclude
from mee_utils.companion.result_tables import read_retrained

experiment = Experiment.of_notebook("01_monotonicity", globals())
tasks = experiment.tasks(limit)
layers = experiment.layers

# %% tags=["hide-input"]
bands = experiment.note(limit, "bands: 95 % intervals over sequences")
whiskers = experiment.note(limit, "whiskers: 95 % intervals over sequences")
models = experiment.backbones
traces = {
    (task, name): experiment.trace(name, task, limit, max_new_tokens) for task in tasks for name in models
}

# %% [markdown]
# ## Figure 1: how many predictions are final after each layer?
#
# A token is *settled* from the first layer after which its top-1 prediction never changes again:
#
# $$s_t = \min\,\{\,l : \hat y_t^{\,l} = \hat y_t^{\,l+1} = \dots = \hat y_t^{\,L}\,\}.$$
#
# The curves show the share of tokens with $s_t \le l$. The unit of the bootstrap is a sequence, because the tokens of
# one sequence are not independent. Our *oracle*, which knows the last layer's prediction, exits at $s_t$. An exit before
# $s_t$ is harmless only if the layer already predicts the final token, which later layers abandon and then return to.

# %% tags=["hide-input"]
stable = experiment.table(drawing.settled_table, traces)
settled = {key: (monotonicity.settled_from(t), t.sequence) for key, t in traces.items()}
depths = [
    {"task": task, "model": name, "tokens": len(layer_of_token)}
    | mean_interval(layer_of_token, sequence).columns("mean_layer")
    for (task, name), (layer_of_token, sequence) in settled.items()
]
depths = experiment.save_table(pd.DataFrame(depths), "settling_depth")
gain = []
for task, name in settled:
    if name != "vanilla" and "vanilla" in models:
        earlier = difference_interval(settled[task, "vanilla"], settled[task, name])
        gain.append({"task": task, "model": name} | earlier.columns("layers_earlier"))
gain = pd.DataFrame(gain)

# %% tags=["hide-input"]
if len(gain):
    gain = experiment.save_table(gain, "settling_gain")
seeds = read_retrained(profile, "seeds")
spread = pd.DataFrame()
if len(seeds):
    spread = experiment.save_table(seed_spread(seeds, "settled_from"), "settling_by_seed")

# %%
figure = settling.settled_figure(stable, bands)
experiment.save_figure(figure, "figure_1_settled", stable)
conclude(settling.settled_conclusion(stable, gain, spread))

# %% [markdown]
# ## Figure 2: confidence in the final prediction
#
# The probability $p_t^l(\hat y_t^{\,L})$ that each layer gives to the token that the *last* layer will choose. Top: its
# mean over tokens. Bottom: the standard deviation, which the paper draws as a band; it shows how much tokens differ,
# not how uncertain the mean is.

# %% tags=["hide-input"]
confidence = experiment.table(drawing.confidence_table, traces)

# %%
figure = settling.confidence_figure(confidence, experiment.note(limit))
experiment.save_figure(figure, "figure_2_confidence", confidence)
conclude(settling.confidence_conclusion(confidence))

# %% [markdown]
# ## Figure 3: individual tokens
#
# The three most probable tokens of every layer, for one token of one sequence, in the three models of the paper. All
# models must predict the same token, so the reference is fed in here. The tokens of one task are ordered by the layer
# at which they settle in vanilla, and we take those at the 10th, 50th and 90th percentile. (An underscore marks the
# beginning of a word.)

# %% tags=["hide-input"]
along = {
    (task, name): trace(
        experiment.model(name, task), tasks[task].inputs, tasks[task].targets, max_new_tokens=max_new_tokens
    )
    for task in tasks
    for name in models
}
shown_task = "translation" if "translation" in tasks else next(iter(tasks))
ordered = along[shown_task, "vanilla" if "vanilla" in models else next(iter(models))]
shown = monotonicity.percentile_tokens(ordered, (0.1, 0.5, 0.9), seed)
decode = monotonicity.token_text(experiment.tokenizer())
shown_models = [name for name in models if name in tokens.PAPER_MODELS] or list(models)
trio = {name: along[shown_task, name] for name in shown_models}


# %% tags=["hide-input"]
def in_its_sentence(token):
    """A token in brackets behind the words before it, of synthetic data alone."""
    if not tasks[shown_task].spans:
        return ""
    ids = experiment.tokenizer()(tasks[shown_task].targets[ordered.sequence[token]]).input_ids
    before = experiment.tokenizer().decode(ids[: ordered.position[token]])
    return f"{before} [{decode(ids[ordered.position[token]])}]"


# %%
for percentile, token in shown.items():
    predicted = experiment.table(monotonicity.predictions, trio, labels=["model"], token=token, decode=decode)
    place = f"the token at the {percentile}th percentile"
    small_print = experiment.note(intervals=f"{place}; numbers and shades: probabilities")
    figure = tokens.token_figure(predicted, shown_task, in_its_sentence(token), small_print)
    experiment.save_figure(figure, f"figure_3_token_{percentile}", predicted)
conclude(tokens.tokens_conclusion(predicted))

# %% [markdown]
# ## Token by token: is CALM the most monotonic?
#
# MEE concludes that "the monotonicity assumption holds best for the CALM method", from the *mean* of figure 2. For how
# many individual tokens does the confidence rise at every layer, that is, $p_t^{l}(\hat y_t^{\,L}) < p_t^{l+1}(\hat
# y_t^{\,L})$ for all $l$? A probability near one cannot keep rising, so we also report the share that never *falls* by
# more than one percentage point. (The stored table also counts both from a third of the depth on.)

# %% tags=["hide-input"]
strict = experiment.table(monotonicity.monotonic_shares, traces)
strict = experiment.save_table(strict, "strictly_monotonic")

# %%
figure = tokens.monotonic_figure(strict, whiskers)
experiment.save_figure(figure, "monotonic_tokens", strict)
conclude(tokens.monotonic_conclusion(strict))

# %% [markdown]
# ## Going further: are the early layers overconfident?
#
# An exit rule compares the *current* layer's own top-1 probability with a threshold. That is sensible only
# insofar as 0.9 means "right nine times out of ten". Here a prediction is right if it equals the reference,
# which is fed in (*accuracy*). Above zero a layer is overconfident.


# %% tags=["hide-input"]
def reliability_by_layer(t, **labels):
    correct = t.top1_id == t.token_id[:, None]
    return monotonicity.layer_reliability(t, correct, bins, **labels)


per_layer = experiment.table(reliability_by_layer, along)
thirds = (layers // 3, 2 * layers // 3, layers)
kept = ["task", "model", "layer", *[c for c in per_layer if c.startswith("expected")]]
errors = experiment.save_table(per_layer[per_layer.layer.isin(thirds)][kept], "expected_calibration_error")

# %%
figure = overconfidence.overconfidence_figure(per_layer, experiment.note(limit))
experiment.save_figure(figure, "confidence_against_accuracy", per_layer)
conclude(overconfidence.overconfidence_conclusion(per_layer, thirds[0]))

# %% [markdown]
# The same, bin by bin, at a third and two thirds of the depth. On the diagonal, confidence equals accuracy; below it
# the layer is overconfident. Bins with few tokens are left out of the drawing, not of the table. The
# expected calibration error sums the gaps over bins $b$ of $n_b$ among $n$ tokens (Guo et al. 2017):
#
# $$\mathrm{ECE} = \sum_b \frac{n_b}{n}\,\bigl|\,\mathrm{accuracy}_b - \mathrm{confidence}_b\,\bigr|.$$


# %% tags=["hide-input"]
def reliability_in_bins(t, **labels):
    correct = t.top1_id == t.token_id[:, None]
    return monotonicity.reliability_bins(t, correct, thirds, bins, **labels)


reliability = experiment.table(reliability_in_bins, along)

# %%
figure = overconfidence.reliability_figure(reliability, thirds[:2], whiskers)
experiment.save_figure(figure, "reliability", overconfidence.reliability_drawn(reliability))
conclude(overconfidence.reliability_conclusion(reliability, thirds[0]))

# %% [markdown]
# ## From curves to decoding: what a replay predicts, and what happens
#
# A trace, the stored outputs of all layers at full depth, tells what any exit rule *would* have done at each layer, for
# thousands of thresholds in seconds. The decoder does it for real: a token that exits early hands its state on as keys
# and values for the layers that it skipped, and a wrong token is fed back. Here are the rules that need no training,
# with MEE's published threshold and decay (0.9 and 4; no exit before a third of the depth), a fixed exit layer there,
# and the oracle. Later notebooks trust a replay only as far as the two agree. `same_exit` counts tokens up to the first
# one that differs from the full-depth output; `flops_share` includes the decisions, so it can exceed 1.

# %% tags=["hide-input"]
first = layers // 3
policies = {
    "softmax_margin": ExitPolicy("softmax_margin", threshold=0.9, decay=4.0, min_layer=first),
    "hidden_similarity": ExitPolicy("hidden_similarity", threshold=0.9, decay=4.0, min_layer=first),
    "rising_top1": ExitPolicy("rising_top1", threshold=0.9, decay=4.0, min_layer=first),
    "oracle": ExitPolicy("oracle"),
    "static": ExitPolicy("static", min_layer=first),
}


def exits_of(t, task):
    model = experiment.model(experiment.main, task)
    return replay_against_decoding(model, tasks[task], t, policies, max_new_tokens)


of_main = {task: t for (task, name), t in traces.items() if name == experiment.main}

# %%
exits = experiment.table(exits_of, of_main, labels=["task"])
exits = experiment.save_table(exits, "replay_against_decoding")
conclude(closing.decoding_conclusion(exits))
closing.exits_shown(exits)

# %% [markdown]
# ## Each published statement beside our number
#
# Each statement of MEE's third section, tested on the tables above. The verdict is that before correction for multiple
# testing (08). Where a verdict says "does not hold", that is what these models do on these corpora; it does
# not refute a claim about BigPatent at T5-base's size.

# %% tags=["hide-input"]
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

# %%
verdicts = claims.judge("01_monotonicity", tables, exit_layer=exit_layer, third=layers // 3)
claims.show_judged(experiment.save_table(verdicts, "claims"))

# %% [markdown]
# ## What this shows

# %% tags=["hide-input"]
conclude(closing.summary(stable, strict, per_layer))

# %% [markdown]
# **Next:** [02, saturation](02_saturation.ipynb): which tokens are easy?

# %% tags=["hide-input"]
save_numbers(experiment.run)
experiment.finish()
