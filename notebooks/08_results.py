# %% [markdown]
# # 08 · Results: what is guaranteed, and what is faster
#
# [‹ 07 lossless](07_lossless.ipynb) · [all notebooks](../README.md#the-notebooks) · [09 thresholds ›](09_thresholds.ipynb)
#
# **Question.** What limits exits? Which of them are faster than full depth at the same quality, and can a rule over
# several layers keep its quality *and* be faster, which MEE left open? What can be guaranteed? And which published
# statements hold?
#
# **What the papers say.** CALM chooses thresholds with *Learn then Test* so that outputs are at most `delta`
# worse than those of full depth, with a probability of `1 - eps`; its code for that was never published. MEE
# and *Not all FLOPs* set 0.9 for every rule and compare scores and speeds there.
#
# **What we do.** Nothing is run here. `make measure` has decoded every rule on every model and task at
# thresholds that it searched for, and stored every example; times are those of `make bench`; the rest comes
# from the tables of the other notebooks. Thresholds are chosen on *validation* examples, and everything below is
# about *test* examples, which had no say in the choice.
#
# **Expectation.** Rules on probabilities rank best (03 to 05) and will be cheapest in FLOPs once their logits are
# pruned. Rules over several layers keep their guarantees like any other rule when they are calibrated, but are no
# cheaper than rules over one.

# %% tags=["parameters"]
profile = "small"  # whose stored results: small, real
data = ""  # not read here: everything is stored
main = "calm"  # the model that every rule was decoded with
quality = 0.99  # share of the full score that must be kept
delta = 0.1  # mean consistency loss that is guaranteed

# %% tags=["hide-input"]
import pandas as pd
from IPython.display import display

from mee_utils.analysis.model_quality import seed_spread
from mee_utils.companion import (
    Experiment,
    claims,
    figures,
    limits,
    main_figure,
    open_question,
    result_tables,
    rivals,
    verdicts,
)
from mee_utils.companion.chapters.answer import cheapest, guarantees, mees_question, published, speed
from mee_utils.companion.prose import conclude, listed
from mee_utils.companion.published_numbers import beside_main_figure, published_main_figure
from mee_utils.companion.published_setting import EXACT, first_exit_layers, wanted_timings
from mee_utils.companion.statements import BUGS

# %% tags=["hide-input"]
experiment = Experiment.of_notebook("08_results", globals())
name = experiment.profile.name
experiment.run.inputs |= result_tables.inputs_of(name)
stored = result_tables.read_measured(name)
tested = f"{experiment.note()}; {stored.tested} test examples per task"
intervals = "95 % intervals over examples"
tasks = list(stored.settings.task.unique())
demands = {"consistency": stored.deltas, "risk": stored.risk_deltas}
bench = result_tables.bench_command(name)

# %% [markdown]
# ## What limits exits: decisions or states?
#
# The oracle exits at the first layer after which the prediction never changes again, so that it makes no wrong
# decision. It is decoded in three ways. With *copied states* (CALM, MEE) a skipped layer takes its keys and values
# from the exit state: what the oracle loses is lost to states that were never computed. With *exact states*
# (FREE's parallel pass) a later token that goes deeper takes the waiting ones along. *Verified*, exits are drafts
# that the last layer checks: the output is that of full depth, and every layer is run. The best rule is selected on
# validation examples, among all that spend no more there than the oracle. The line of the margin
# joins its best settings, whether they score all vocabulary entries or a few. At one threshold, what decisions and
# states lose does not say which is the limit: a strict margin is seldom wrong, but exits late. Equal FLOPs do.

# %% tags=["hide-input"]
oracle_tables = result_tables.read_oracle(name, tasks)
if oracle_tables:
    oracle = limits.decoded_oracle(oracle_tables)
    curves = limits.limit_curves(stored, main, oracle)
    equal_flops = limits.limits_at_equal_flops(stored, main, oracle)
    losses = experiment.save_table(limits.split_losses(oracle), "margin_losses")
    experiment.save_table(equal_flops, "limits_at_equal_flops")
else:
    conclude(f"The oracle was not decoded with exact states: run `make measure PROFILE={name}`.")

# %%
if oracle_tables:
    figure = limits.limits_figure(
        curves, list(oracle_tables), limits.message(equal_flops), f"{tested}; bands, whiskers: {intervals}"
    )
    experiment.save_figure(figure, "limits", curves)
    conclude(limits.limits_conclusion(equal_flops, losses))

# %% [markdown]
# ## MEE's main figure, by the clock
#
# Six measures at a threshold of 0.9 that falls with the position (temperature 4), on CALM's model: score against
# samples a second, as published and ours. MEE lets tokens exit from layer 4 of 24 on; ours from the same share of the
# depth. Hollow points are decoded as MEE's code does it: once a whole batch has exited at a layer, no later token runs
# deeper. A measure far below all others is written at the lower edge of its panel (score at speed); the table has all
# its points. Scores are those of the timed outputs; times are ranges over timing runs. F1 and ROUGE-1 are means over
# outputs, as BLEU is here (`corpus_score` in the table is BLEU as papers report it). Compare shares of full depth, not
# the numbers: models, corpora and machines differ.

# %% tags=["hide-input"]
wanted = wanted_timings(experiment.layers, tasks)
times = result_tables.read_timings("published", wanted, name)
at_published = main_figure.at_all_batches(times)
data_option = "" if name == "small" else " DATA=folder"
clock = f"{tested}; {times.attrs['processor']}"
if at_published.empty:
    conclude(f"Not timed: run `make bench PART=published PROFILE={name}{data_option}`.")

# %%
if len(at_published):
    figure = main_figure.published_and_ours(at_published, published_main_figure(), tasks, clock)
    experiment.save_figure(figure, "main_figure", at_published)
    conclude(main_figure.main_conclusion(at_published))

# %%
if len(at_published):
    conclude(main_figure.BY_BATCH)
    figure = main_figure.by_batch(at_published, tasks, clock)
    experiment.save_figure(figure, "main_figure_by_batch", at_published[at_published.decoder == EXACT])
    beside = experiment.save_table(beside_main_figure(at_published, experiment.layers), "beside_published")
    display(beside.replace({"task": figures.LABELS}).round(2))

# %% [markdown]
# ## Rivals that need no exit rule
#
# A decoder of fewer layers saves for every token what exits save for some. Shallow decoders under the same encoder were
# trained like `vanilla`, on as many examples (`make retrain`). *Exit heads* are trained on a frozen model; CALM's
# objective trains the model itself. Everything is set beside the **full depth of vanilla**, so that what training for
# exits costs before any token exits (00) counts too. Exits may be those of any model: CALM's, for which all rules were
# measured, or another's. Each line is the Pareto front of one kind; dotted lines mark all of vanilla's score and 99 %
# of it. Exit settings and their models are selected on the examples that they are shown on; the shallow decoders are
# not, so this comparison favours exits.

# %% tags=["hide-input"]
shallow = result_tables.read_retrained(name, "rivals")
beside_vanilla = rivals.beside_exits(stored, shallow)
equal_cost = rivals.at_equal_cost(beside_vanilla)
if shallow.empty:
    conclude(f"No decoders were trained shallow: run `make retrain PROFILE={name}`.")
else:
    experiment.save_table(equal_cost, "rivals_at_equal_cost")

# %%
figure = rivals.rivals_figure(beside_vanilla, equal_cost, tasks, quality, f"{tested}; bands: {intervals}")
experiment.save_figure(figure, "rivals", beside_vanilla)
conclude(*rivals.rivals_conclusion(beside_vanilla, equal_cost, quality))

# %% [markdown]
# ## The answer: full quality, and faster than full depth?
#
# A rule keeps its quality *reliably* if the lower end of a paired 95 % interval reaches 99 % of the full score. Its
# settings are tested on the test examples one after the other, in an order that validation examples fix, as long as
# they pass, so a setting that keeps less passes with a probability of at most 2.5 %, however many are tested. Of those
# that pass, the one with the fewest FLOPs on validation examples is timed; in batches, only if it saves FLOPs. The
# fastest of each kind is drawn with its range over the timing runs: filled, one output at a time; hollow, in batches.
# Half of the runs rank the rules, and the other half is drawn, so that no rule is ranked and drawn by the same
# measurements.

# %% tags=["hide-input"]
kept = experiment.save_table(verdicts.keeping(stored, main, quality), "at_99_percent")
certain = kept[kept.verdict == result_tables.KEEPS_IT]
kept_times = result_tables.read_timings("kept", certain, name)
answer = verdicts.fastest(kept_times)
layers = stored.rows(model=main, rule="static")[["task", "model", "rule", "threshold", "retained"]]
fixed = result_tables.read_timings("kept", layers, name)
wanted = pd.DataFrame({"task": tasks, "model": main})
verified = speed.in_one_batch(result_tables.read_timings("lossless", wanted, name))
ways = speed.four_ways(answer, fixed, verified, quality)
if len(answer):
    experiment.save_table(answer, "answer")
else:
    conclude(f"Not timed for these settings: run `{bench}`.")

# %%
if len(ways):
    absent = speed.absent_ways(ways, certain, tasks)
    figure = speed.answer_figure(ways, tasks, quality, tested, absent)
    experiment.save_figure(figure, "four_ways", ways)
    conclude(speed.answer_conclusion(ways, quality), cheapest.kept_conclusion(certain, tasks, quality))

# %% [markdown]
# FLOPs are not seconds, and keeping 99 % on average may be enough. Score against FLOPs of every setting on CALM's
# model; of rules over one layer and over several, the cheapest that keeps 99 % on average is marked:

# %% tags=["hide-input"]
points = verdicts.fronts(stored)
of_main = points[points.model == main]

# %%
figure = cheapest.flops_figure(of_main, tasks, quality, tested)
experiment.save_figure(figure, "score_against_flops", points)
conclude(cheapest.flops_conclusion(of_main, quality))

# %% [markdown]
# ## MEE's open question: several layers, full quality, and faster?
#
# MEE asks whether a rule over several layers can keep its quality and be faster than no exit. There are three ways to
# judge it, and each counts on its own: FLOPs at a mean of 99 % of the score (as marked above, and as optimistic); FLOPs
# where 99 % is kept reliably; and tokens a second of all reliable rules, one output at a time, whether they save FLOPs
# or not. In the table, `lowest` is the speed in the slowest timing run, `faster` counts the rules that beat full depth
# in every timing run, and `untimed` those that may be faster still.

# %%
asked = open_question.answers(of_main, kept, kept_times, quality)
table = experiment.save_table(mees_question.open_question_table(asked), "open_question")
conclude(mees_question.open_question_conclusion(asked, tasks, quality))
display(mees_question.open_question_shown(table))

# %% [markdown]
# What rules cost when outputs change by the same amount, and how much training varies between seeds:

# %% tags=["hide-input"]
equal = verdicts.at_equal_loss(stored, main, (0.01, 0.02, 0.05, 0.1, 0.25))
equal = experiment.save_table(equal, "at_equal_loss")
conclude(cheapest.equal_loss_conclusion(equal, 0.05))
seeds = result_tables.read_retrained(name, "seeds")
if len(seeds):
    spread = experiment.save_table(seed_spread(seeds, "flops_share"), "flops_by_seed")
    conclude(cheapest.seeds_conclusion(spread))
beside_both = rivals.kept_of_baseline(stored, certain)
columns = ["task", "rule", "threshold", "flops_share", "retained", "low", "of_vanilla", "of_vanilla_low"]
experiment.save_table(beside_both[columns], "kept_of_vanilla")
conclude(rivals.baseline_conclusion(beside_both, quality))

# %% [markdown]
# ## The guarantee
#
# For each rule we take the last threshold $\lambda$ that passes when thresholds are tested from the safest down, one
# p-value each (*Learn then Test*), from the Hoeffding-Bentkus bound or from betting (Waudby-Smith and Ramdas, WSR), so
# that
#
# $$P\left(\mathbb{E}[\ell(\hat\lambda)] \le \delta\right) \ge 1 - \varepsilon .$$
#
# Thresholds and their order come from the validation examples, every other test example is used for calibration, and
# costs are those of the rest. The loss $\ell$ is the consistency loss (the table has the risk too, by how much the
# score falls); $\varepsilon$ is `eps` of the profile. The cheapest rule of each family is drawn, picked on the examples
# that it is reported on, with 95 % intervals. *None*: no threshold passes. *No saving*: it takes full depth's FLOPs
# or more. Families: *pruned* are the margins over few entries (03), *probabilities* other rules on one layer's
# probabilities, *contrast* those of 04, *one layer* and *several layers* all others, by what they look at.

# %% tags=["hide-input"]
chosen = verdicts.calibrated(stored, main, demands)
calibrated = experiment.save_table(chosen, "calibrated")

# %%
figure = guarantees.guarantee_figure(calibrated, tasks, tested)
experiment.save_figure(figure, "guaranteed_cost", calibrated[calibrated.found])
conclude(guarantees.guarantee_conclusion(calibrated, delta))

# %% [markdown]
# Synthetic data can be generated without end, so the guarantee can be tested literally: on independent calibration
# sets, all decoded, with the mean loss over all sets as that of the population. We also test the hardest targets, one
# per cent below a threshold's mean loss, so that this threshold should just fail. *No test* simply takes the
# loosest threshold whose mean loss on the calibration examples is within `delta`.

# %% tags=["hide-input"]
fresh = result_tables.read_measurements(name, "fresh")
rates = pd.DataFrame(columns=["bound", "violated", "p_value"])
if fresh is None:
    conclude("No fresh examples: the corpora of this profile are finite, or `make measure` has not run.")
else:
    rates = verdicts.fresh_rates(fresh, stored.deltas, stored.eps, experiment.profile.results.fresh_sets)

# %%
if len(rates):
    figure = guarantees.fresh_figure(rates, stored.eps, experiment.note())
    experiment.save_figure(figure, "fresh_sets", rates)
    conclude(guarantees.fresh_conclusion(rates))

# %% [markdown]
# ## Bugs of published code, switched on
#
# Each bug is a small switch around our decoder (`mee_utils/companion/published_bugs.py`), everything else being equal.
# Rules that prune do so at the last layer too, with the bug and without, as published. The examples are few, so the
# intervals are wide. A row names the bug, the rule, the model and, where two were tried, the batch size. The table
# below says which published number each bug may explain.

# %% tags=["hide-input"]
bugs = result_tables.read_measurements(name, "published_bugs")
drawn = published.named_bugs(bugs)
few = experiment.note(experiment.profile.results.bug_examples, f"whiskers: {intervals}")

# %%
figure = published.bugs_figure(drawn, tasks, few)
experiment.save_figure(figure, "published_bugs_switched_on", drawn)
conclude(published.bugs_conclusion(bugs))

# %% tags=["hide-input"]
pd.set_option("display.max_colwidth", None, "display.max_rows", None)
published_bugs = pd.DataFrame.from_dict(BUGS, orient="index").rename(index=figures.label)
published_bugs[["source", "what", "published", "explains"]]

# %% [markdown]
# ## The ledger: every statement that these models can test
#
# All statements of all notebooks, published ones and some of our own, with the published number and ours. A statement
# is decided on a task where Holm's correction over all of them leaves it significant.

# %% tags=["hide-input"]
published_times = at_published[at_published.decoder == EXACT]


def of_task(times, task):
    return times[times.task == task] if len(times) else None


# %% tags=["hide-input"]
tables = {
    task: {
        "settings": stored.rows(task=task),
        "calibrated": chosen[chosen.task == task].assign(model=main),
        "equal": equal[equal.task == task],
        "answer": of_task(answer, task),
        "published_times": of_task(published_times, task),
        "bugs": bugs[bugs.task == task],
        "rates": rates[:0].assign(model=main),
    }
    for task in tasks
}
tables[tasks[-1]]["rates"] = rates.assign(model=main)  # the fresh sets are of one task
starts = first_exit_layers(experiment.layers)
judged = claims.judge("08_results", tables, sixth=starts[0], min_layer=starts[-1])
judged = experiment.save_table(judged, "claims")

# %% tags=["hide-input"]
others, missing = result_tables.claims_of(name)
if missing:
    conclude(f"The ledger lacks the statements of {listed(missing)}: run `make reproduce PROFILE={name}`.")
ledger = experiment.save_table(claims.ledger(others, judged), "ledger")
conclude(published.ledger_conclusion(ledger))
columns = ["notebook", "source", "statement", "published", "judged_by", "ours", "verdict", "reason"]
ledger[columns]

# %% [markdown]
# ## What this shows, and what it does not

# %% tags=["hide-input"]
conclude(
    f"{limits.message(equal_flops)}." if oracle_tables else "",
    f"{rivals.headline(equal_cost)}." if len(equal_cost) else "",
    f"{speed.answer_message(ways, quality)}." if len(ways) else "",
    mees_question.open_question_message(asked, tasks),
    guarantees.guaranteed_cost(calibrated, delta),
    f"{published.ledger_message(ledger)}.",
)

# %% [markdown]
# A guarantee is about the *mean* loss against the model's own full output, one rule at a time, over inputs like the
# calibration inputs; it says nothing of single outputs. Results on these mini models need not carry over to T5-large;
# profile `paper` is there to test them.
#
# **Next:** [09](09_thresholds.ipynb) and [10](10_confidence.ipynb), what else the survey says.

# %% tags=["hide-input"]
experiment.finish()
