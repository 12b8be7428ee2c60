# %% [markdown]
# # 05 · MEE classifiers: who should decide?
#
# [‹ 04 contrastive decoding](04_contrastive_decoding.ipynb) · [all notebooks](../README.md#the-notebooks) · [06 survey rules ›](06_survey_rules.ipynb)
#
# **Question.** An exit rule may look at the current layer only, or at several layers in a row. Do several
# layers decide *better*? And is any rule that looks at several of them *faster* than full depth, at (nearly)
# full quality?
#
# **What the paper says** (MEE, sections 5 to 7, and the closing questions of its blog). Three measures over
# several layers keep far more quality than CALM's three at the same threshold, and are slower than full depth. But
# MEE's decoder has a bug that affects the baseline runs: once a whole batch has exited at a layer, no later token runs
# deeper. So the comparison has to be repeated: can a rule be both better and faster?
#
# **What we do.** Train every classifier on the same frozen model, with several seeds; ask first how well each
# one *ranks* tokens, then what it costs, then decode for real. Rules are compared at equal quality or at
# equal cost, never at an equal threshold, since the same threshold means something different for each of them.
#
# **Expectation** (the papers' hypothesis): the more layers a rule sees, the better it decides and the more it
# costs.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 300  # held-out examples of each task that are traced and replayed
decoded = 100  # of these, how many are decoded
max_new_tokens = 48  # longest output, in tokens
batch_size = 100  # rows decoded at a time
threshold = 0.9  # as published (report)
other_threshold = 0.7  # as published (the jobs that were run)
decay = 4.0  # temperature of the published, decaying threshold
min_layer = 4  # first layer at which a token may exit (MEE: 4)
quality = 0.99  # share of the full score that must be kept
share = 0.98  # share of the predictions that stay, where rules are compared at equal quality

# %% tags=["hide-input"]
import pandas as pd
from IPython.display import display

from mee_utils import ExitPolicy, replay
from mee_utils.analysis import comparison, decisions
from mee_utils.companion import Experiment, claims, drawings, figures
from mee_utils.companion.catalogue import MAIN_MODEL, RULES, VARIANTS
from mee_utils.companion.chapters.classifiers import ablations, at_threshold, flops, history, outputs, ranking
from mee_utils.companion.prose import conclude
from mee_utils.companion.published_setting import first_exit_layers
from mee_utils.companion.result_tables import KEEPS_IT, inputs_of, read_measured, read_measurements
from mee_utils.companion.verdicts import keeping
from mee_utils.exits.classifiers import new_classifier
from mee_utils.exits.measures import find_measure
from mee_utils.models.costs import SHAPES
from mee_utils.traces.replay import replay_policy

# %% tags=["hide-input"]
experiment = Experiment.of_notebook("05_mee_classifiers", globals())
settings = experiment.profile.results.model_dump() | experiment.parameters
bands = experiment.note(limit, "bands: 95 % intervals over seeds")
whiskers = experiment.note(limit, "whiskers: 95 % intervals over seeds, where a rule is trained")
tasks = experiment.tasks(limit)
models = experiment.models(["calm", "vanilla"])
classifiers = experiment.classifiers(models)
first = {  # those of CALM's model that learn the last layer's predictions, the first seed of each
    rule: by_seed[0]
    for (model, rule, target), by_seed in classifiers.items()
    if (model, target) == ("calm", "consistency")
}

# %% [markdown]
# ## What each measure looks at

# %%
experiment.save_drawing(drawings.measures_drawing(), "six_measures")

# %% [markdown]
# CALM's three measures look at one layer: the *softmax margin* (the largest probability minus the second
# largest), the *hidden similarity* of the state to that of the layer before, and a classifier on *one state*.
# MEE's three look at several: a classifier on *three states*, an *LSTM* over the states of all layers so far, and
# *rising top-1*, which exits where the largest probability has risen twice in a row, over three layers.
#
# $n(h^l)$ is the normalised state after layer $l$, of width $d$. Classifiers give one number, the log-odds $z$ of
# "exit here"; the confidence is $\sigma(z)$. One classifier serves all layers and all tasks, as the model does.
#
# | rule | $z$ | source |
# |---|---|---|
# | linear classifier | $w \cdot n(h^l) + b$ | CALM's own |
# | classifier on one state | $u \cdot \mathrm{ReLU}(A\,n(h^l) + a)$, $A$ is $d \times d$ | CALM's baseline in MEE |
# | classifier on $k$ states | $u \cdot \mathrm{ReLU}(A\,[n(h^{l-k+1}); \dots; n(h^l)] + a)$, $A$ is $d \times kd$ | MEE for $k = 3$ |
# | wide classifier on one state | one state, but as many parameters as on three: $A$ is $3d \times d$ | a control: are more layers better, or more parameters? |
# | low-rank classifier | on one state or three, with $A$ of $d/8$ rows | ours: cheap enough for every layer |
# | LSTM | $(c, s)^l = \mathrm{LSTM}(n(h^l), (c, s)^{l-1})$, $z = u \cdot s^l$, over decoder layers, started again for each token | MEE: two LSTM layers (here $d/2$ units); its code: one ($d/4$) |
# | history of predictions | 32 hidden units over numbers of the last three decision layers: margins, largest probabilities, entropies, for how long the prediction has stayed, whether it appears in the input | ours: predictions in place of states |
#
# MEE's rising top-1 has nothing to train; its forerunner is ELBERT's window (Xie et al. 2021), as 06 shows.
#
# Three rules read probabilities over few vocabulary entries, the same fixed list as in 03 (fixed pruning): the rule over
# the history of predictions, *rising top-1 over few entries*, and the *margin over few entries*, which looks at one
# layer only. Unlike the published pruning, they score all entries at the last layer, so that a token that does not exit
# is full depth's token; with a pruned last layer it can change although nothing exits. The three differ from each other
# only in what they make of the probabilities.
#
# Target: is this layer's top-1 the last layer's ("consistency", the default), or the reference's token
# ("correctness")? Both classes are weighted equally in every layer; training runs on teacher-forced training
# examples, and the model is frozen. The rule over the history of predictions learns instead from the model's own
# outputs, where possible on examples the model was not trained on. The table has the losses of the other classifiers
# after the last epoch, and the epoch in which the held-out loss was lowest.

# %% tags=["hide-input"]
curves = pd.concat(
    [
        pd.DataFrame(classifier.metadata["curve"]).assign(rule=rule, seed=seed)
        for rule in first
        if VARIANTS[rule].learns_from == "references"
        for seed, classifier in enumerate(classifiers["calm", rule, "consistency"])
    ],
    ignore_index=True,
)
learning = comparison.seed_interval(curves, ["rule", "epoch"], ["loss", "held_out_loss"])
experiment.save_table(learning, "learning_curves")
ends = ranking.last_epoch(learning)
named = ends.assign(rule=ends.rule.map(figures.label)).set_index("rule").round(3)
display(named.rename(columns=figures.label))
conclude(ranking.learning_conclusion(ends))

# %% [markdown]
# ## Who ranks tokens best?
#
# The area under the ROC curve: of two tokens at the same layer, one whose prediction is already final (the last
# layer's) and one whose is not, how often is the first scored higher? An area of one half is guessing. No threshold is
# involved, so measures of all kinds can be compared. The grey curve is the softmax margin. Layers with too few tokens
# of either kind are left out.

# %% tags=["hide-input"]
traces = {
    (name, task): experiment.trace(name, task, limit, max_new_tokens) for name in models for task in tasks
}
untrained = ["softmax_margin", "max_probability", "hidden_similarity", "rising_top1"]
replayed_rules = {("calm", rule, "consistency"): [None] for rule in [*untrained, "few"]} | classifiers
policies = {
    (task, *key, seed): RULES[key[1]].policy(threshold, settings, {key[1]: classifier})
    for key, by_seed in replayed_rules.items()
    for seed, classifier in enumerate(by_seed)
    for task in tasks
}

# %% tags=["hide-input"]
replays = {}
for key, policy in policies.items():
    task, name, *_ = key
    replays[key] = replay_policy(traces[name, task], policy, models[name])
of_replay = ["task", "model", "rule", "target", "seed"]
ranks = experiment.table(decisions.ranking, replays, of_replay)
kinds = ["task", "model", "target", "rule"]
by_layer = comparison.seed_interval(ranks, [*kinds, "layer"], ["roc_area"])
overall = experiment.table(decisions.overall_ranking, replays, of_replay)
mean_rank = comparison.seed_interval(overall, kinds, ["roc_area"])

# %%
figure = ranking.ranking_figure(by_layer, mean_rank, list(tasks), bands)
experiment.save_figure(figure, "ranking", by_layer)
conclude(ranking.ranking_conclusion(mean_rank))

# %% tags=["hide-input"]
experiment.save_table(mean_rank, "mean_ranking")
ranking.ranking_shown(mean_rank)

# %% [markdown]
# ## How many tokens does a classifier need?
#
# MEE trained each classifier once, on one amount of data; more layers could need more of it. We draw the same area
# for classifiers trained on more and more tokens of all tasks together, each for at least as many steps as those
# above.

# %% tags=["hide-input"]
learned = read_measurements(experiment.profile.name, "learning")
learned = comparison.seed_interval(learned, ["task", "rule", "tokens"], ["roc_area"])
sizes = experiment.profile.results.learning_tokens

# %%
figure = ranking.tokens_figure(
    learned, list(tasks), sizes, experiment.note(intervals="bands: 95 % intervals over seeds")
)
experiment.save_figure(figure, "tokens_needed", learned)
conclude(ranking.tokens_conclusion(learned))

# %% [markdown]
# ## What they do at one threshold
#
# Precision: of the tokens above the threshold at a layer, how many have the last layer's prediction? Recall: of the
# tokens that have the last layer's prediction at a layer, how many are above the threshold? First seed.

# %% tags=["hide-input"]
main = [*untrained, "linear", "hidden", "three_hidden", "low_rank_three", "lstm"]
of_first_seed = {
    (task, rule): replays[task, "calm", rule, "consistency", 0] for task in tasks for rule in main
}
labels = ("task", "rule")
quality_of = experiment.table(decisions.precision_and_recall, of_first_seed, labels)
over_sequences = experiment.note(limit, "bands: 95 % intervals over sequences")

# %%
figure = at_threshold.decisions_figure(quality_of, threshold, over_sequences)
experiment.save_figure(figure, "precision_and_recall", quality_of)
conclude(at_threshold.decisions_conclusion(quality_of))

# %% [markdown]
# Is a confidence a probability? We plot it against the share of predictions that are the last layer's, over all layers
# at which tokens may exit. A rule below the diagonal is overconfident, above it underconfident. The *expected
# calibration error* is the mean distance from the diagonal, weighted by the number of tokens.

# %% tags=["hide-input"]
chosen = ["softmax_margin", "hidden", "three_hidden", "low_rank_three", "lstm"]
of_chosen = {(task, rule): of_first_seed[task, rule] for task in tasks for rule in chosen}
reliability = experiment.table(decisions.reliability_diagram, of_chosen, labels)

# %%
figure = at_threshold.calibration_figure(reliability, experiment.note(limit))
experiment.save_figure(figure, "calibration", reliability)
conclude(at_threshold.calibration_conclusion(reliability))

# %% [markdown]
# ## What deciding costs
#
# FLOPs are counted for a mini T5 with a vocabulary of 1,600 entries and at the sizes of T5-base and T5-large. The
# *break-even depth* is the mean exit layer below which a rule that decides at every layer from the minimum exit layer on
# costs less than full depth. Rules over few entries score all entries at the first layer where they decide; that replaces the
# scoring at the last layer for every token that exits. A token that does not exit pays for both.

# %% tags=["hide-input"]
costs = []
for shape, sizes in SHAPES.items():
    width = sizes.d_model
    measures = {rule: find_measure(RULES[rule].measure) for rule in [*untrained, "few"]}
    for rule, variant in VARIANTS.items():
        measures[rule] = new_classifier(variant.kind, width, **variant.options(width))
    for rule, measure in measures.items():
        entries = settings["top_k"] if RULES[rule].pruning else None
        cost = comparison.decision_cost(sizes, measure, min_layer, entries)
        costs.append({"shape": shape, "rule": rule, **cost})
costs = pd.DataFrame(costs)

# %%
figure = flops.cost_figure(costs)
experiment.save_figure(figure, "cost_of_deciding", costs)
conclude(flops.cost_conclusion(costs))

# %% [markdown]
# ## At equal quality
#
# For each rule we take the lowest threshold at which a given share of the predictions at the exits still agrees with
# full depth, replayed on the trace (no decoding yet), and report the FLOPs, including those of deciding. The threshold
# is found on one half of the outputs, and the FLOPs are those of the other half. Thresholds are constant: the published
# one falls with the position whatever it starts from, so it cannot be strict throughout. Colours and markers say what a
# rule looks at: the probabilities of one layer over all entries or over few (*pruned*), the state of one layer, or several
# layers.

# %% tags=["hide-input"]
shares = [0.90, 0.95, 0.98, 0.99]
equal = experiment.table(comparison.at_equal_quality, replays, of_replay, shares=shares)
columns = ["mean_exit_layer", "flops_share", "threshold"]
at_equal = comparison.seed_interval(equal, [*kinds, "wanted"], columns)
middle = at_equal[at_equal.wanted == share]

# %%
figure = flops.equal_quality_figure(middle, list(tasks), share, whiskers)
experiment.save_figure(figure, "at_equal_quality", at_equal)
conclude(flops.equal_quality_conclusion(middle, min_layer, share))

# %% [markdown]
# ## A rule over the history of predictions
#
# MEE expects that several layers decide better than one. A state says more than a prediction, but a classifier has to
# learn to understand it. Ours looks at *predictions*: what the last three decision layers predict, how confidently, for
# how long the prediction has stayed and whether it appears in the input (`FEATURES` in `mee_utils.exits.classifiers`).
# It reads few entries, so that a decision costs little (see the figure on costs), and scores all of them at the last
# layer. Beside it stands the margin over few entries: the same entries and the same last layer, but one layer's
# probabilities and no training. The *oracle* exits at the first layer from which on the prediction is the last layer's
# (08). Does the history rank tokens better, and how much of the gap between that margin and the oracle does it close?
# First seed.

# %%
oracle = {
    task: replay(traces["calm", task], ExitPolicy("oracle", min_layer=min_layer)).mean() for task in tasks
}
gains = history.beside_margin_and_oracle(overall, middle, oracle)
experiment.save_table(gains, "history_of_predictions")
display(history.gains_shown(gains))
conclude(history.gains_conclusion(gains, share))

# %% [markdown]
# **Do classifiers learn from the right examples?** The classifiers of MEE and CALM learn on teacher-forced references of
# the model's own training examples, but then decide on outputs that the model writes for new examples. The first table
# has the area under the ROC curve on test examples, after learning from equally many examples of three kinds. The
# second has the area of the rule over predictions with some groups of its features. Tokens are ranked within a layer,
# so the depth alone cannot rank them. The *margin with fixed pruning* has the area of the margin over few entries: the
# two differ at the last layer only.

# %%
sources = read_measurements(experiment.profile.name, "learned_from")
if sources is None:
    conclude(f"Not measured yet: run `make measure PROFILE={profile}`.")
else:
    by_source = comparison.seed_interval(sources, ["task", "rule", "learned_from", "features"], ["roc_area"])
    experiment.save_table(by_source, "learned_from")
    display(history.areas_by_source(by_source).round(3))
    display(history.areas_by_features(by_source).round(3))
    conclude(history.sources_conclusion(by_source), history.features_conclusion(by_source))

# %% [markdown]
# ## Ablations
#
# What counts at equal quality? First, how many layers are seen, with the control for the number of parameters, and
# the LSTM, which sees all.

# %% tags=["hide-input"]
later = comparison.seed_interval(ablations.beside_one_layer(equal, share), ["task", "rule"], ["later"])

# %%
if ablations.moves_exits(later):
    figure = ablations.layers_seen_figure(later, list(tasks), share, whiskers)
    experiment.save_figure(figure, "layers_seen", later)
else:
    experiment.save_table(later, "layers_seen")
conclude(ablations.layers_seen_conclusion(later, middle, min_layer))

# %% [markdown]
# Second, what the classifier is trained to predict, and on which model (mean exit layers):

# %% tags=["hide-input"]
other = middle[middle.rule.isin(["hidden", "three_hidden", "narrow_lstm"])]
depth = ["mean_exit_layer", "mean_exit_layer_low", "mean_exit_layer_high"]
experiment.save_table(other[[*kinds, *depth]], "target_and_backbone")
conclude(ablations.target_conclusion(other))
ablations.target_shown(other)

# %% [markdown]
# Third, the minimum exit layer. A layer computes its keys and values of the source when the first token of an output
# reaches it. So a few late exits make an output expensive, however early the mean exit is.


# %% tags=["hide-input"]
def from_layer(task, rule, start):
    """A rule that may exit from this layer on, at the threshold that keeps enough of the predictions."""
    policy = RULES[rule].policy(threshold, settings | {"min_layer": start}, first)
    replayed = replay_policy(traces["calm", task], policy, models["calm"])
    return comparison.at_equal_quality(replayed, [share], task=task, rule=rule, min_layer=start)


# %% tags=["hide-input"]
started = pd.concat(
    [
        from_layer(task, rule, start)
        for task in tasks
        for rule in ("softmax_margin", "hidden", "low_rank", "low_rank_three")
        for start in (1, 2, 4, 6)
    ],
    ignore_index=True,
)
started = experiment.save_table(started, "minimum_layer")
conclude(ablations.starts_conclusion(started))
ablations.starts_shown(started)

# %% [markdown]
# ## Decoded: the published thresholds
#
# Thresholds that fall with the position (CALM's decay): the one that MEE's report names, and the one of the jobs that
# were run. The six published measures are decoded at the first of them also with exits from the same share of the depth
# as MEE's. The table has the share of the full score that is kept; where it is empty, a setting was not decoded. 08 draws
# the speed of these settings.

# %% tags=["hide-input"]
rules = [*main[:-1], "narrow_lstm", "lstm"]
levels = (threshold, other_threshold)
sixth = first_exit_layers(experiment.layers)[0]
as_published = {
    (rule, level, min_layer): RULES[rule].policy(level, settings, first, decay)
    for rule in rules
    for level in levels
}
as_published |= {
    (rule, threshold, sixth): RULES[rule].policy(threshold, settings | {"min_layer": sixth}, first, decay)
    for rule in outputs.PUBLISHED
}

# %% tags=["hide-input"]
decoding = {"max_new_tokens": max_new_tokens, "batch_size": batch_size}
labels = ("rule", "threshold", "min_layer")
published = [
    comparison.comparison(models["calm"], task[:decoded], as_published, labels, **decoding)[0]
    for task in tasks.values()
]
published = experiment.save_table(pd.concat(published, ignore_index=True), "published_thresholds")

# %%
display(outputs.published_shown(published))
conclude(
    f"{decoded} outputs per task, first seed. Thresholds of {threshold:g} and {other_threshold:g} "
    f"(temperature {decay:g}) are tried from layer {min_layer} on, that of {threshold:g} also from layer "
    f"{sixth} on.",
    outputs.published_conclusion(published, sixth, min_layer, threshold),
)

# %% [markdown]
# ## Decoded: the whole curve
#
# The six published measures from strict to loose thresholds, first seed. Replay predicts individual tokens; here exits
# change later tokens, and the score shows how much that matters. These are the stored measurements of `make measure`,
# on which 08 rests too: thresholds found on validation examples, scores of test examples. Which of them is the cheapest
# at 99 % of the score is read off the test examples here; the next section tests it.

# %% tags=["hide-input"]
stored = read_measured(profile, MAIN_MODEL)
experiment.run.inputs["results measured"] = inputs_of(experiment.profile.name)["results measured"]
wanted = ["full_depth", *rules, "few", "rising_fixed", "history", "static", "oracle"]
curve_points = stored.rows(model="calm")
curve_points = curve_points[curve_points.rule.isin(wanted) & curve_points.task.isin(list(tasks))]
tested = f"{experiment.note()}; {stored.tested} test examples per task"

# %%
figure = outputs.curves_figure(curve_points, list(tasks), tested)
experiment.save_figure(figure, "score_against_cost", curve_points)
conclude(outputs.curves_conclusion(curve_points))

# %% [markdown]
# ## Which rules keep 99 % of the score reliably
#
# The settings of a rule are tested on the test examples in an order that validation examples fix (08), as long as
# the lower end of a paired 95 % interval reaches 99 % of the full score. The table shows the cheapest setting that
# passes or, if none does, the first one tested.

# %% tags=["hide-input"]
kept = keeping(stored, "calm", quality)
kept = experiment.save_table(kept[kept.rule.isin(wanted) & kept.task.isin(list(tasks))], "at_99_percent")
display(outputs.kept_shown(kept))
conclude(outputs.kept_conclusion(kept, quality))

# %% [markdown]
# ## What this shows, and what it does not

# %% tags=["hide-input"]
conclude(
    f"{ranking.ranking_message(mean_rank)}.",
    f"{ranking.tokens_message(learned)}.",
    f"{flops.equal_quality_message(middle, share)}.",
    f"{outputs.cheapest_message(curve_points)}.",
    f"{outputs.answer_message(kept, quality)} (their speed is in 08).",
)

# %% [markdown]
# Even if nearly every prediction at an exit is that of full depth, the output can change: an answer is right only if
# each of its words is, and every exit leaves approximate keys and values behind. Exits that the last layer verifies
# (07) do not have this problem. Everything here is about mini models.
#
# ## Each published statement beside our number
#
# *Published* is the number, or how the paper makes the statement. A verdict here is that of one task alone, before 08
# corrects for the number of tests.

# %% tags=["hide-input"]
most = learned[learned.tokens == learned.tokens.max()]
tables = {
    task: {
        "ranking": mean_rank[mean_rank.task == task],
        "learned": most[most.task == task].assign(model="calm"),
        "published": published[published.task == task].assign(model="calm"),
        "equal": middle[middle.task == task],
        "decisions": quality_of[quality_of.task == task].assign(model="calm"),
        "kept": kept[(kept.task == task) & (kept.verdict == KEEPS_IT)],
    }
    for task in tasks
}
judged = claims.judge("05_mee_classifiers", tables, sixth=sixth, min_layer=min_layer)
claims.show_judged(experiment.save_table(judged, "claims"))

# %% [markdown]
# **Next:** [06](06_survey_rules.ipynb) puts the rules of other papers beside these.

# %% tags=["hide-input"]
experiment.finish()
