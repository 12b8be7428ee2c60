# %% [markdown]
# # 06 · Results: what is guaranteed, and what is faster
#
# **Question.** A threshold of 0.9 means something else for every rule. What does each rule cost at the same *guaranteed* quality? Which is faster than
# no exit, and can a rule over several blocks keep its quality *and* be faster, which MEE left open? And which published statements hold?
#
# **What the papers say.** CALM chooses thresholds with *learn then test* so that outputs are at most `delta` worse than those of all blocks, with a
# certainty of `1 - eps`; its code for that was never published. MEE and *Not all FLOPs* set 0.9 for every rule and compare scores and speeds there.
#
# **What we do.** Nothing is run here. `python -m mee_utils decode` (a part of `make reproduce`) has decoded every rule at descending thresholds on
# every model and task and stored the loss of every example; times are those of `make bench`; the rest comes from the tables of 00 to 05. Everything
# below is drawn from these files.
#
# **Expectation.** Rules that look at probabilities rank best (03 to 05) and will be cheapest in operations once their read-out is pruned. Rules over
# several blocks keep their promises like any other rule when they are calibrated, but are no cheaper than rules over one.

# %% tags=["parameters"]
profile = "small"  # whose stored results: small, real
data = ""  # not read here: everything is stored
main = "calm"  # the model that every rule was decoded with
quality = 0.99  # share of the full score that must be kept
delta = 0.1  # mean textual loss of the ranking
splits = 50  # random calibration splits that test the guarantee

# %%
import pandas as pd

from mee_utils import Companion, claims, figures
from mee_utils.bench import stored_results
from mee_utils.evaluation import verdicts
from mee_utils.stored import claims_of, decodings, has_table, inputs_of, read_table

companion = Companion("06_results", profile, data, main=main, quality=quality, delta=delta, splits=splits)
for name, digest in inputs_of(companion.profile.name).items():
    companion.run.uses(name, digest)
stored = decodings(companion.profile.name)
tasks, models = list(stored.settings.task.unique()), list(stored.settings.model.unique())
demands = {"textual": stored.deltas, "risk": stored.risk_deltas}
print(f"{len(stored.settings)} decoded settings: {len(models)} models, {len(tasks)} tasks, up to {max(map(len, stored.losses))} examples each")

# %% [markdown]
# ## MEE's question: full quality, and faster than no exit?
#
# For each rule the fastest timed setting that keeps 99 % of the full score (mean score of single outputs) on both halves of the examples. Bars are
# tokens a second as a multiple of no exit, with the range over rounds; the line at 1 is no exit. Rules without a bar keep 99 % on both halves with no setting
# that was timed. Upper row: one output at a time; lower row: in batches. Colours are families: blue probabilities, orange pruned, pink contrast,
# light blue one block's state, green several blocks, black a fixed block.

# %%
kept = companion.save_table(verdicts.keeping_on_both(stored, main, quality), "at_99_percent")
answer = verdicts.fastest(stored_results(companion.profile.name, kept))
batches = sorted(answer.batch.unique())
if len(answer):
    figure, axes = figures.panels(len(batches) * len(tasks), columns=len(tasks), width=4.4, height=3.3, profile=profile, sharex="col")
    for axis, (batch, task) in zip(axes, [(batch, task) for batch in batches for task in tasks]):
        rows = answer[(answer.batch == batch) & (answer.task == task)]
        axis.set(title=f"{figures.label(task)}, batch {batch}", xlabel="tokens a second, of no exit")
        if rows.empty:
            figures.nothing_to_draw(axis, f"{figures.label(task)}:\nno timed setting keeps {quality:.0%}")
            continue
        figures.rule_bars(axis, rows, "speed", ("lowest", "highest"), styles=figures.FAMILIES, whiskers="#888888")
        axis.axvline(1.0, color="#333333", linewidth=1)
    figures.only_outer_labels(axes, len(tasks))
    companion.save_figure(figure, "answer", answer)
else:
    print("not timed for these settings: run make bench")

# %%
for line in verdicts.answer_lines(kept, answer, tasks, quality, figures.label):
    print(line)

# %% [markdown]
# ## Score against operations: every rule, task and model
#
# Each curve is one rule from careful to careless; the grey band is the front of everything but the oracle, which nobody has. Dotted: no exit.
# Colours are families of rules: blue probabilities, orange pruned, pink contrast, light blue one block's state, green several blocks. All settings were decoded for real. (Classifiers were trained for CALM and, as an ablation, vanilla; FREE's own rule runs on FREE.)

# %%
points = verdicts.fronts(stored)
figure, axes = figures.panels(len(models) * len(tasks), columns=len(tasks), width=4.3, height=2.9, profile=profile)
for axis, (model, task) in zip(axes, [(model, task) for model in models for task in tasks]):
    rows = points[(points.model == model) & (points.task == task)]
    figures.score_points(axis, rows, "flops_share")
    metric = figures.label(claims.PRIMARY[task])
    axis.set(title=f"{figures.label(model)}, {figures.label(task)}", xlabel="decoder operations, of no exit", ylabel=metric)
figures.all_in_legend(figure, axes)
companion.save_figure(figure, "score_against_operations", points)

# %%
front = points[points.front & (points.model == main)].sort_values(["task", "flops_share"], kind="stable")
for task, rows in front.groupby("task", sort=False):
    counts = rows[rows.rule != "none"].rule.value_counts()
    print(f"{figures.label(task)}, on the front: " + ", ".join(f"{figures.label(rule)} {count}" for rule, count in counts.items()))

# %% [markdown]
# ## Score against speed
#
# The settings that were timed: what is calibrated below, what keeps 99 %, static exits; on the other models the middle setting of each rule. Tokens
# a second are corrected for length: a rule does not gain by writing less. The machine is named in `figures/bench`.

# %%
times = stored_results(companion.profile.name, points[points.rule != "none"])
if len(times):
    shown = times[times.batch == 1]
    figure, axes = figures.panels(len(models) * len(tasks), columns=len(tasks), width=4.3, height=2.8, profile=profile)
    for axis, (model, task) in zip(axes, [(model, task) for model in models for task in tasks]):
        figures.speed_points(axis, shown[(shown.model == model) & (shown.task == task)])
        full = stored.rows(model=model, task=task, rule="none").score.iloc[0]
        axis.axhline(full, color="#666666", linewidth=0.8, linestyle=":")
        axis.set(title=f"{figures.label(model)}, {figures.label(task)}", xlabel="tokens a second, of no exit; batch 1")
        axis.set_ylabel(figures.label(claims.PRIMARY[task]))
    figures.all_in_legend(figure, axes)
    companion.save_figure(figure, "score_against_speed", times)
else:
    print("not timed for these settings: run make bench")

# %% [markdown]
# ### Run-to-run spread, and what length does
#
# Blue: tokens a second with its range over rounds of one run. Orange: samples a second, the number that the papers give. Where exits make outputs
# longer or shorter the two differ, and the second one flatters or punishes for it. Beside each rule stands its threshold; for static exits the block.

# %%
if len(times):
    chosen = times[(times.model == main) & (times.batch == 1)].sort_values(["task", "speed"], kind="stable")
    chosen = chosen.assign(name=[f"{figures.label(r.rule)}, {r.threshold:g}" for r in chosen.itertuples()])
    figure, axes = figures.panels(len(tasks), width=5.4, height=6.4, profile=profile)
    for axis, (task, rows) in zip(axes, chosen.groupby("task", sort=False)):
        figures.two_speeds(axis, rows)
        axis.set(title=figures.label(task), xlabel="speed, of no exit; batch 1")
    figures.shared_legend(figure, axes[0])
    companion.save_figure(figure, "spread_and_length", chosen)
    spread = ((times.highest - times.lowest) / times.speed).median()
    print(f"the range over rounds is {spread:.0%} of the speed (median of {len(times)} timings); "
          f"length moves samples a second by up to {(times.samples_speed / times.speed - 1).abs().max():.0%}")  # fmt: skip

# %% [markdown]
# ## Calibrated thresholds
#
# For each rule the last threshold that passes when thresholds are tested from the safest down, one p-value each, on all examples: mean textual loss
# (one minus the score of the output with that of all blocks as its reference) or risk (by how much the score falls) at most `delta`, with 95 % certainty.
# The line shows what a rule costs at each demand; where it has no point no threshold passed, and nobody exits.

# %%
chosen = companion.save_table(verdicts.calibrated(stored, main, demands), "calibrated")
shown = chosen[(chosen.bound == "hoeffding_bentkus") & chosen.found]
figure, axes = figures.panels(len(demands) * len(tasks), columns=len(tasks), width=4.2, height=2.9, profile=profile, sharey="col")
for axis, (kind, task) in zip(axes, [(kind, task) for kind in demands for task in tasks]):
    figures.rule_curves(axis, shown[(shown.kind == kind) & (shown.task == task)], "delta", "flops_share", styles=figures.FAMILIES)
    axis.axhline(1.0, color="#666666", linewidth=0.8, linestyle=":")
    axis.set(title=f"{figures.label(task)}, {kind}", xlabel="delta, the largest mean loss", xticks=demands[kind], ylabel="operations, of no exit")
figures.all_in_legend(figure, axes)
companion.save_figure(figure, "guaranteed_cost", shown)

# %%
ranking = verdicts.ranking_at(chosen, stored_results(companion.profile.name, shown[(shown.kind == "textual") & (shown.delta == delta)].assign(model=main)), delta)
ranking = companion.save_table(ranking, "ranking_at_guarantee")
for task, rows in ranking.groupby("task", sort=False):
    print(f"{figures.label(task)}, textual loss of at most {delta:g}: " + "; ".join(
        f"{figures.label(r.rule)} " + (f"{r.flops_share:.0%} of the operations" + (f", {r.speed:.2f}x tokens/s" if r.speed == r.speed else "") if r.found else "none")
        for r in rows.itertuples()))  # fmt: skip

# %%
tighter = verdicts.bounds_compared(chosen)
for row in tighter.itertuples():
    print(f"{row.kind}, {row.bound.replace('_', '-')}: a threshold is found for {row.found:.0%} of the demands; operations {row.flops_share:.1%} of no exit on average")

# %% [markdown]
# ## The guarantee put to the test
#
# Calibrate on a random half of the examples, 50 times, and look whether the chosen threshold's mean loss over *all* of them exceeds `delta`: it may, in
# a share `eps` of the cases. (The pool holds the half that calibrates, so this test is lenient; the next one is not.) Where no threshold passes nobody exits, and no promise
# is broken: the lines below say how often one is found. One dot is a rule on one task. *No test* is what one does without a guarantee: the threshold whose mean loss on the
# calibration examples is within `delta` is taken at its word.

# %%
rates = verdicts.guarantee(stored, main, demands, splits)
bounds = {"no_test": "no test", "hoeffding_bentkus": "Hoeffding-Bentkus", "betting": "betting (WSR)"}
figure, axes = figures.panels(len(demands) * len(bounds), columns=len(bounds), width=4.2, height=2.7, profile=profile, sharey=True)
for axis, (kind, bound) in zip(axes, [(kind, bound) for kind in demands for bound in bounds]):
    figures.violation_dots(axis, rates[(rates.kind == kind) & (rates.bound == bound)], stored.eps)
    axis.set(title=f"{bounds[bound]}, {kind}", ylabel="share of splits\nthat break the promise")
figures.only_outer_labels(axes, len(bounds))
figures.all_in_legend(figure, axes)
companion.save_figure(figure, "violation_rates", rates)

# %%
for bound, rows in rates.groupby("bound", sort=False):
    worst = rows.loc[rows.violated.idxmax()]
    print(f"{bounds[bound]}: promises broken in {rows.violated.mean():.1%} of all splits, at worst {worst.violated:.0%} "
          f"({figures.label(worst.rule)}, {figures.label(worst.task)}, {worst.kind}, delta {worst.delta:g}); eps is {stored.eps:.0%}; "
          f"a threshold is found in {rows.passed.mean():.0%} of the splits")  # fmt: skip

# %% [markdown]
# ### On samples that are truly independent
#
# Splits share one pool. Made data never end, so the promise can be tested as it is worded: independent calibration sets, and the mean loss of the population.
# (Losses here are replayed, not decoded; learn-then-test promises the same of any loss.) The dashed line is the share of sets that may fail by chance, with 95 %
# certainty, if the true rate is `eps`.

# %%
if has_table(companion.profile.name, "decoded", "fresh"):
    fresh = verdicts.fresh_rates(read_table(companion.profile.name, "decoded", "fresh"), stored.eps)
    figure, axes = figures.panels(len(bounds), width=4.2, height=2.8, profile=profile, sharey=True)
    for axis, bound in zip(axes, bounds):
        figures.violation_dots(axis, fresh[fresh.bound == bound], stored.eps)
        axis.axhline(fresh.limit.iloc[0], color="#d55e00", linewidth=1, linestyle="--", label="by chance, at most")
        axis.set(title=bounds[bound], ylabel="share of sets that\nbreak the promise")
    figures.only_outer_labels(axes, len(bounds))
    figures.all_in_legend(figure, axes)
    companion.save_figure(figure, "fresh_samples", fresh)
    for bound, rows in fresh.groupby("bound", sort=False):
        print(f"{bounds[bound]}: promises broken by {rows.violated.mean():.1%} of the sets; a threshold is found by {rows.passed.mean():.0%}")
else:
    print("this profile's corpora are finite: no fresh samples can be drawn")

# %% [markdown]
# ## Faults of published code, switched on
#
# Each fault is a small switch around our decoder (`mee_utils/evaluation/faults.py`), everything else being equal: open circles without, filled ones with
# it. Which published number it may explain stands in the table.

# %%
faults = companion.save_table(read_table(companion.profile.name, "decoded", "faults"), "faults")
alone = faults.assign(several=faults.groupby(["fault", "rule"]).batch.transform("nunique") > 1)
drawn = alone.assign(name=[f"{r.fault}: {figures.label(r.rule)}, {figures.label(r.model)}" + (f", batch {r.batch}" if r.several else "") for r in alone.itertuples()])
figure, axes = figures.panels(2 * len(tasks), columns=len(tasks), width=5.2, height=3.9, profile=profile, sharey=True, sharex="row")
for number, axis in enumerate(axes):
    column, task = ("retained", "mean_exit_layer")[number // len(tasks)], tasks[number % len(tasks)]
    figures.before_and_after(axis, drawn[drawn.task == task], column)
    axis.set(title=figures.label(task), xlabel={"retained": "score, share of no exit", "mean_exit_layer": "mean exit block"}[column])
figures.shared_legend(figure, axes[0])
companion.save_figure(figure, "faults_switched_on", drawn)

# %%
from mee_utils.evaluation.faults import FAULTS

for fault in FAULTS.values():
    print(f"{fault.name} ({fault.source}). {fault.what}\n   published: {fault.published}\n   may explain: {fault.explains}")

# %% [markdown]
# ## The papers' figures and tables, from the stored tables
#
# MEE's three figures (01 explains them), and the tables of *Not all FLOPs* for pruning (03) and contrast (04).

# %%
settled, confidence = (read_table(companion.profile.name, "01_monotonicity", name) for name in ("figure_1_settled", "figure_2_confidence"))
figure, axes = figures.panels(2 * len(tasks), columns=len(tasks), width=4.2, height=2.7, profile=profile, sharex=True, sharey="row")
for number, axis in enumerate(axes):
    task, (table, column) = tasks[number % len(tasks)], ((settled, "share"), (confidence, "confidence"))[number // len(tasks)]
    for model, rows in table[table.task == task].groupby("model", sort=False):
        figures.draw_curve(axis, rows, column, model)
    figures.block_axis(axis, int(table.layer.max()))
    axis.set(title=figures.label(task), ylabel={"share": "share of predictions\nthat are final", "confidence": "mean confidence in\nthe final prediction"}[column])
figures.only_outer_labels(axes, len(tasks))
figures.shared_legend(figure, axes[0])
companion.save_figure(figure, "mee_figures_1_and_2", pd.concat([settled.assign(figure=1), confidence.assign(figure=2)], ignore_index=True))

# %%
tokens = read_table(companion.profile.name, "01_monotonicity", "figure_3_token_50")
names = list(tokens.model.unique())
figure, axes = figures.panels(len(names), columns=1, width=11.0, height=1.7, profile=profile)
for axis, name in zip(axes, names):
    rows = tokens[tokens.model == name]
    figures.prediction_grid(axis, rows, int(rows.layer.max()))
    axis.set(title=figures.label(name), xlabel="decoder block")
figures.only_outer_labels(axes, 1)
companion.save_figure(figure, "mee_figure_3", tokens)

# %%
pruning = read_table(companion.profile.name, "03_pruning", "complete_table")
companion.save_table(pruning, "pruning_table").pivot_table(index=["task", "model"], columns="reduction", values=["score", "flops_share"], sort=False).round(2)

# %%
contrast = read_table(companion.profile.name, "04_contrastive_decoding", "pareto_verdict")
companion.save_table(contrast, "contrast_table")[[c for c in ("task", "rule", "score", "flops_share", "improves", "worse") if c in contrast]].round(2)

# %% [markdown]
# ## The ledger: every published statement that these models can test
#
# First the statements about calibration, speed and faults, which need the tables above; then all of them. A statement that does not hold on
# models of this size is not thereby refuted at the papers' scale; those of profile `real` and of both papers stand in README.

# %%
about = {
    task: {
        "kept": kept[kept.task == task], "settings": stored.rows(task=task), "calibrated": chosen[chosen.task == task].assign(model=main),
        "answer": answer[answer.task == task], "rates": rates[rates.task == task].assign(model=main), "faults": faults[faults.task == task],
    }
    for task in tasks
}  # fmt: skip
verdicts_here = claims.judge(claims.results_claims(verdicts.binomial_limit(splits, stored.eps)), about)
companion.save_table(verdicts_here, "claims")[["claim", "published", "task", "ours", "verdict"]]

# %%
ledger = companion.save_table(claims.ledger(claims_of(companion.profile.name), verdicts_here), "ledger")
counts = ledger.verdict.value_counts()
print(f"{len(ledger)} statements: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
pd.set_option("display.max_colwidth", None, "display.max_rows", None)
ledger[["source", "statement", "published", "ours", "verdict"]]

# %% [markdown]
# ## What this shows, and what it does not
#
# *Can a rule over several blocks keep its quality and be faster than no exit?* The first figure says for which tasks. Where one is, it is not *because* it sees several
# blocks: other rules, and a fixed exit block where the last blocks add little, are as fast within the spread of timings.
#
# *At the same guaranteed quality* the order of rules is not the published order at 0.9. What decides is the price of a decision and how early it
# may be taken safely. Pruned read-outs take most of the price away in operations; on models this narrow the clock sees little of it, because a block
# costs less than the bookkeeping of a decision (03 has the costs at the shapes of T5-base and T5-large). (Grids of thresholds begin where all predictions of the training
# examples stay; a pruned rule, of which some change even without exits, begins at its highest threshold.)
#
# *No calibrated threshold broke its promise* more often than it may, with either bound; often none was found, since small demands need more examples than these. Choosing without a test
# breaks promises again and again on made data. Guarantees are about the *mean* loss against the model's own full output, one rule at a time,
# over inputs like those that calibrated, and say nothing of single outputs.
#
# *Which published conclusions survive?* Those about training (which blocks settle), and that a few ids are enough for a model trained to exit. The contrast between MEE's rules and
# CALM's at 0.9 does not: the depth collapse can ruin a rule that exits early (the margin, one row at a time, on translation; in batches it is rarer), and similarity
# leaves at the first block it may with or without it. Logits in place of probabilities act the other way here: these models' logits are far above 0.9, so the faulty rule exits
# *earlier*; what it does depends on the level of a model's logits, which means nothing. Positions taken for ids are enough to explain scores of zero, and a list sorted by id
# explains losses of decaying pruning. The head without its mass exits earlier at the same threshold. Leaving the weights out of FREE's mixture makes its rule more careful
# here, since most tokens agree: the sound posterior does what its threshold of agreement says, and that is lax.
#
# Mini models, a few hundred examples, two cores: orders may change at T5's size, which profile `paper` is there to find out.
#
# **Files.** Every figure as PNG and PDF beside the CSV of what was drawn, and a manifest, in `figures/<profile>/06_results`.

# %%
companion.finish()
