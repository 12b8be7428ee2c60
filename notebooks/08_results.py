# %% [markdown]
# # 08 · Results: what is guaranteed, and what is faster
#
# [‹ 07 lossless](07_lossless.ipynb) · [all notebooks](../README.md#the-notebooks)
#
# **Question.** A threshold of 0.9 means something else for every rule. What does each rule cost at the same
# *guaranteed* quality? Which is faster than full depth, and can a rule over several layers keep its quality
# *and* be faster, which MEE left open? And which published statements hold?
#
# **What the papers say.** CALM chooses thresholds with *learn then test* so that outputs are at most `delta`
# worse than those of full depth, with a certainty of `1 - eps`; its code for that was never published. MEE
# and *Not all FLOPs* set 0.9 for every rule and compare scores and speeds there.
#
# **What we do.** Nothing is run here. `make measure` has decoded every rule on every model and task at
# thresholds that it searched for, and stored every example; times are those of `make bench`; the rest comes
# from the tables of 00 to 07. Thresholds are chosen on *validation* examples, and everything below is about
# *test* examples, which had no say in the choice.
#
# **Expectation.** Rules that look at probabilities rank best (03 to 05) and will be cheapest in FLOPs once
# their readout is pruned. Rules over several layers keep their promises like any other rule when they are
# calibrated, but are no cheaper than rules over one.

# %% tags=["parameters"]
profile = "small"  # whose stored results: small, real
data = ""  # not read here: everything is stored
main = "calm"  # the model that every rule was decoded with
quality = 0.99  # share of the full score that must be kept
delta = 0.1  # mean consistency loss of the ranking

# %%
import pandas as pd
import seaborn
from IPython.display import display
from matplotlib.patches import Patch

from mee_utils import Experiment
from mee_utils.analysis.model_quality import seed_spread
from mee_utils.paper import claims
from mee_utils.paper.numbers import save_numbers
from mee_utils.paper.published_numbers import beside_main_figure, published_main_figure
from mee_utils.paper.statements import BUGS
from mee_utils.study import figures, limits, main_figure, result_tables, rivals, verdicts
from mee_utils.study.catalogue import FAMILY_COLOURS, RULES
from mee_utils.study.published_setting import EXACT, first_exit_layers, wanted_timings
from mee_utils.tasks import TASKS

# %%
experiment = Experiment.of_notebook("08_results", globals())
name = experiment.profile.name
experiment.run.inputs |= result_tables.inputs_of(name)
stored = result_tables.read_measured(name)
note = f"profile {name}, n = {stored.tested} test examples a task"
tasks = list(stored.settings.task.unique())
demands = {"consistency": stored.deltas, "risk": stored.risk_deltas}
families = {
    family: figures.Style(family, colour, marker)
    for (family, colour), marker in zip(FAMILY_COLOURS.items(), "Pos^<DX", strict=True)
}
families["reference"] = families["reference"]._replace(label="full depth or a fixed layer")
decoded = stored.settings.part.value_counts().to_dict()
print(decoded, f"settings decoded, {stored.tested} test examples a task")


def family_of(rule):
    return RULES[rule].family


# %% [markdown]
# ## MEE's question: full quality, and faster than full depth?
#
# The settings of a rule are tested on the test examples one after the other, in an order that validation examples fix
# (first those that keep 99 % there, from the strictest on, then the others), as long as 99 % of the full score (the
# mean over outputs) is kept for certain (the lower end of a paired 95 % interval), so that one that keeps less passes
# with a probability of at most 2.5 %, however many are tested. Of those that pass the one with the fewest FLOPs on validation examples stands for
# the rule; one that fails at once, or saves no FLOPs, is not in the figure. Bars are tokens a second as a multiple of full
# depth, with the range over rounds; the line at 1 is full depth. All test inputs are timed, a tenth of them a
# round, rule after rule; bars are ordered by one half of the rounds and drawn from the other, so that the
# fastest is not timed on the inputs that made it fastest. Upper row: one output at a time; lower row: in
# batches. Colours are families of rules. The ten fastest of each panel are drawn; the table beside the figure has all.

# %%
kept = experiment.save_table(verdicts.keeping(stored, main, quality), "at_99_percent")
sure = kept[kept.verdict == result_tables.KEEPS_IT]
answer = verdicts.fastest(result_tables.read_timings("kept", sure, name))


def draw(axis, rows):
    figures.bars(axis, rows, "speed", band=("lowest", "highest"))
    axis.axvline(1.0, color=figures.GREY, linewidth=0.8)


# %%
if len(answer):
    panels = {"row": "batch", "values": tasks, "empty": f"no timed setting\nkeeps {quality:.0%}"}
    look = {"xlabel": "tokens a second (1 = full depth)", "sharey": False, "width": 3.8, "height": 3.6}
    fastest = answer.groupby(["task", "batch"], sort=False).head(10)
    figure = figures.facets(fastest, draw, **panels, **look, note=note)
    drawn = {family_of(rule) for rule in fastest.rule}
    patches = [Patch(color=s.colour, label=s.label) for family, s in families.items() if family in drawn]
    figure.legend(handles=patches, loc="outside lower center", ncols=4)
    experiment.save_figure(figure, "answer", answer)
else:
    print("not timed for these settings: run make bench")

# %%
for line in verdicts.answer_lines(kept, answer, tasks, quality, figures.label):
    print(line)

# %% [markdown]
# ## MEE's main figure, by the clock
#
# Six measures at a threshold of 0.9 that falls with the position (temperature 4), on CALM's model: score against
# samples a second, as published and ours. MEE lets tokens exit from layer 4 of 24 on; ours from the same share of
# the depth. Hollow points are decoded as MEE's code does it: once a whole batch has exited at a layer, no later
# token runs deeper. Scores are those of the timed outputs, all test examples, with 95 % intervals over them;
# times are ranges over rounds. F1 and ROUGE-1 are means over outputs, as BLEU is here (`corpus_score` in the
# table is BLEU as papers report it). Compare shares of full depth, not the numbers: models, corpora and
# machines differ.

# %%
wanted = wanted_timings(experiment.layers, tasks)
at_published = result_tables.read_timings("published", wanted, name)
command = f"run make bench PART=published PROFILE={name}" + (" DATA=folder" if name != "small" else "")
if len(at_published):
    clock = f"{note}; {at_published.attrs['processor']}"
    figure = main_figure.published_and_ours(at_published, published_main_figure(), tasks, clock)
    experiment.save_figure(figure, "main_figure", at_published)
else:
    print(f"not timed: {command}")

# %% [markdown]
# Longer outputs take longer, so samples a second also depend on how much a rule writes; tokens a second do not.
# The same settings at both batch sizes, without the cut; hollow points exit from layer 4 on.

# %%
if len(at_published):
    figure = main_figure.by_batch(at_published, tasks, clock)
    experiment.save_figure(figure, "main_figure_by_batch", at_published[at_published.decoder == EXACT])
    for line in main_figure.setting_lines(at_published):
        print(line)

# %%
if len(at_published):
    beside = experiment.save_table(beside_main_figure(at_published, experiment.layers), "beside_published")
    display(beside.replace({"task": figures.LABELS}).round(2))

# %% [markdown]
# ## What limits exits: decisions or states?
#
# The oracle exits at the first layer from which on the prediction is the last layer's, so that it makes no wrong
# decision. It is decoded three ways. With *copied states* (CALM, MEE) a skipped layer takes its keys and values
# from the exit state: what the oracle loses is lost to states that were never computed. With *exact states*
# (FREE's parallel pass) a later token that goes deeper takes the waiting ones along; *verified*, exits are drafts
# that the last layer checks: the output is that of full depth, and every layer is run. The margin is the best of
# its settings over all vocabulary entries or a few; bands and whiskers are 95 % intervals over outputs.

# %%
oracle_tables = result_tables.read_oracle(name, tasks)
if oracle_tables:
    oracle = limits.decoded_oracle(oracle_tables)
    curves = limits.limit_curves(stored, main, oracle)
    equal_flops = limits.limits_at_equal_flops(stored, main, oracle)
    headline = limits.message(equal_flops)
    figure = limits.limits_figure(curves, list(oracle_tables), headline, note)
    experiment.save_figure(figure, "limits", curves)
    experiment.save_table(equal_flops, "limits_at_equal_flops")
    for line in limits.limit_lines(equal_flops, figures.label):
        print(line)
else:
    print(f"the oracle was not decoded with exact states: run make measure PROFILE={name}")

# %% [markdown]
# What the margin changes, split: decoded with exact states only wrong decisions change an output; copied states
# add the rest. (Parts of the mean consistency loss; those of the score are in the table.)

# %%
if oracle_tables:
    losses = experiment.save_table(limits.split_losses(oracle), "margin_losses")
    for line in limits.split_lines(losses, 0.9, figures.label):
        print(line)
    display(losses.replace({"task": figures.LABELS}).round(3))

# %% [markdown]
# ## Score against FLOPs: every rule, task and model
#
# A dot is one setting of one rule, decoded for real; a line joins the best settings of a family, and the grey
# band those of all rules but the oracle (star), which nobody has. Dotted: full depth. A point or two up or
# down is noise: the table beside the figure has the interval of what each setting keeps. (Classifiers were
# trained for CALM and, as an ablation, vanilla; FREE's own rule runs on FREE.)

# %%
points = verdicts.fronts(stored)
dotted = {"color": figures.GREY, "linewidth": 0.8, "linestyle": ":"}


def metric_of(rows):
    return figures.label(TASKS[rows.task.iloc[0]].metric)


def draw_families(axis, rows):
    for family, part in rows.groupby(rows.rule.map(family_of), sort=False):
        part = part[part.rule != "oracle"]
        colour = families[family].colour
        axis.scatter(part.flops_share, part.score, color=colour, s=9, alpha=0.45, linewidth=0)
        best = part[verdicts.on_front(part.flops_share, part.score)].assign(family=family)
        figures.lines(axis, best, "flops_share", "score", by="family", styles=families)


# %%
def draw(axis, rows):
    best = rows[rows.front].sort_values("flops_share", kind="stable")
    grey = {"color": "#bbbbbb", "linewidth": 5, "alpha": 0.6, "zorder": 0}
    axis.plot(best.flops_share, best.score, label="front (oracle left out)", **grey)
    full = rows[rows.rule == "full_depth"].score.iloc[0]
    axis.axhline(full, **dotted)
    axis.axvline(1.0, **dotted)
    draw_families(axis, rows)
    figures.lines(axis, rows[rows.rule == "oracle"], "flops_share", "score")
    axis.set_ylabel(metric_of(rows))
    axis.set_ylim(max(0.8 * full, 0.99 * rows[rows.front].score.min()), 1.01 * rows.score.max())


# %%
look = {"xlabel": "FLOPs (1 = full depth)", "sharey": False, "width": 3.8, "height": 2.6, "note": note}
figure = figures.facets(points, draw, row="model", values=tasks, **look)
experiment.save_figure(figure, "score_against_flops", points)

# %%
front = points[points.front & (points.model == main) & (points.rule != "full_depth")]
for task, rows in front.groupby("task", sort=False):
    shares = rows.rule.map(family_of).value_counts(normalize=True)
    print(f"{figures.label(task)}, on the front: {', '.join(f'{f} {s:.0%}' for f, s in shares.items())}")
front.groupby("task", sort=False).rule.value_counts().unstack(0).fillna(0).astype(int).rename(figures.label)

# %% [markdown]
# Between objectives the luck of a training counts too. One rule, the margin over pruned ids at 0.9, on models
# trained again with other seeds (00):

# %%
seeds = result_tables.read_retrained(name, "seeds")
if len(seeds):
    spread = experiment.save_table(seed_spread(seeds, "flops_share"), "flops_by_seed")
    for row in spread.itertuples():
        means = f"{row.mean:.2f} ({row.low:.2f} to {row.high:.2f})"
        print(
            f"{figures.label(row.task)}, {figures.label(row.model)}: {means} of the FLOPs, {row.seeds} seeds"
        )

# %% [markdown]
# ## Rivals that need no exit rule
#
# A decoder of fewer layers saves for every token what exits save for some. Decoders of 3 to 8 layers under the
# same encoder were trained like `vanilla`, on as many examples (`make retrain`). *Exit heads* are trained on a
# frozen model; CALM's objective trains the model itself. Everything is set beside the **full depth of
# vanilla**, so that what training for exits costs before any token exits (00) counts too.
#
# **How to read it:** a line joins the settings of one kind that no other of that kind beats; bands are paired
# 95 % intervals over examples. Exit settings are selected on the examples that they are shown on. The shallow
# decoders are not selected, so this comparison favours exits.

# %%
shallow = result_tables.read_retrained(name, "rivals")
beside_vanilla = rivals.beside_exits(stored, shallow, main)
kinds = {
    rivals.SHALLOW: figures.Style(rivals.SHALLOW, "#d55e00", "s"),
    rivals.EXITS: figures.Style(f"{rivals.EXITS}, {figures.label(main)}", "#0173b2", "o"),
    rivals.FIXED: figures.Style(f"{rivals.FIXED}, {figures.label(main)}", "#333333", ".", (1, 1.5)),
    rivals.SEPARATE: figures.Style("exit heads, vanilla frozen", "#029e73", "^", (4, 1.5)),
    rivals.JOINT: figures.Style(f"exit heads, {figures.label(main)} frozen", "#949494", "v", (4, 1.5)),
}


def draw_rivals(axis, rows):
    axis.axhline(1.0, **dotted)
    axis.axhline(quality, **dotted)
    axis.plot(1, 1, "*", color=figures.DARK, markersize=11, label="full depth, vanilla", linestyle="none")
    within = rows[rows.relative_flops <= 1.02]
    figures.lines(axis, within, "relative_flops", "kept", "kind", figures.BAND, kinds)
    axis.set(xlim=(0.2, 1.03), ylim=(max(0.6, within.low.min()), max(1.03, within.high.max())))


# %%
equal_cost = rivals.at_equal_cost(beside_vanilla)
look = {"xlabel": "FLOPs a token (1 = vanilla's full depth)", "ylabel": "score kept (1 = vanilla's)"}
look |= {"message": rivals.headline(equal_cost), "note": note, "width": 3.9, "height": 3.3}
figure = figures.facets(beside_vanilla, draw_rivals, values=tasks, **look)
experiment.save_figure(figure, "rivals", beside_vanilla)
if shallow.empty:
    print(f"no decoders were trained shallow: run make retrain PROFILE={name}")

# %%
if len(equal_cost):
    experiment.save_table(equal_cost, "rivals_at_equal_cost")
for row in equal_cost.itertuples():
    best = {"exit rules": row.exits_kept, "a fixed layer": row.fixed_kept}
    exits = [f"{way} {share:.1%}" if share == share else f"{way} cost more" for way, share in best.items()]
    layers = f"{figures.label(row.task)}, {row.setting} ({row.relative_flops:.0%} of the FLOPs)"
    print(f"{layers}: {row.kept:.1%} of vanilla's score is kept; for no more FLOPs: {', '.join(exits)}")
cheapest = rivals.at_equal_score(beside_vanilla, quality)
for task in tasks:
    rows = cheapest[(cheapest.task == task) & (cheapest.relative_flops < 1)]
    listed = [f"{row.kind} ({row.setting}) {row.relative_flops:.0%}" for row in rows.itertuples()]
    cheaper = "; ".join(listed) or "nothing saves any"
    print(f"{figures.label(task)}, FLOPs where {quality:.0%} of vanilla's score is kept: {cheaper}")

# %% [markdown]
# The rules that keep 99 % of their *own* full depth (first figure), beside vanilla's full depth:

# %%
beside_both = rivals.kept_of_baseline(stored, sure)
columns = ["task", "rule", "threshold", "flops_share", "retained", "low", "of_vanilla", "of_vanilla_low"]
experiment.save_table(beside_both[columns], "kept_of_vanilla")
for task, rows in beside_both.groupby("task", sort=False):
    certain = (rows.of_vanilla_low >= quality).sum()
    own = rows.retained.mean()
    shares = f"on average {own:.1%} of their own and {rows.of_vanilla.mean():.1%} of vanilla's"
    print(f"{figures.label(task)}: {len(rows)} rules keep {quality:.0%} of their own full depth, {shares};")
    print(f"   of {certain} it is certain that they keep {quality:.0%} of vanilla's")

# %% [markdown]
# ## Score against speed
#
# The settings that were timed: what keeps 99 % (as above), the cheapest of each family of what is calibrated
# below, static exits; on the other models the middle setting of each rule (a few inputs, the same in every round). In tokens a
# second no rule gains by writing less, but one may by writing more. Each panel has a scale of its own. The machine is
# named in `figures/bench`.

# %%
settings_timed = points[points.rule != "full_depth"]
times = pd.concat(result_tables.read_timings(part, settings_timed, name) for part in ("kept", "results"))
times = times.drop_duplicates([*result_tables.KEYS, "batch"], ignore_index=True)
single = times[times.batch == 1]
single = single.assign(family=[family_of(rule) for rule in single.rule])


def draw(axis, rows):
    figures.dots(axis, rows, "speed", "score", "family", xband=("lowest", "highest"), styles=families)
    full = points[(points.task == rows.task.iloc[0]) & (points.model == rows.model.iloc[0])]
    full = full[full.rule == "full_depth"].score.iloc[0]
    axis.axhline(full, **dotted, label="score at full depth")
    axis.set_ylabel(metric_of(rows))


# %%
if len(times):
    look = {"xlabel": "tokens a second (1 = full depth); batch 1", "width": 3.8, "height": 2.6}
    look |= {"sharey": False, "note": f"profile {name}"}
    figure = figures.facets(single, draw, row="model", values=tasks, **look)
    experiment.save_figure(figure, "score_against_speed", times)
else:
    print("not timed for these settings: run make bench")

# %% [markdown]
# ### Run-to-run spread, and what length does
#
# Samples a second, the number that the papers give, against tokens a second, with its range over the rounds
# of one run. Where exits make outputs longer or shorter a setting leaves the diagonal: samples a second
# flatter or punish a rule for the length of what it writes.


# %%
def draw(axis, rows):
    figures.dots(axis, rows, "speed", "samples_speed", "family", xband=("lowest", "highest"), styles=families)
    axis.axline((1, 1), slope=1, **dotted, label="same length")


if len(times):
    chosen = single[single.model == main].sort_values(["task", "speed"], kind="stable")
    labels = {"xlabel": "tokens a second (1 = full depth)", "ylabel": "samples a second (1 = full depth)"}
    figure = figures.facets(chosen, draw, **labels, height=3.4, note=f"profile {name}")
    experiment.save_figure(figure, "spread_and_length", chosen.drop(columns="family"))
    spread = ((times.highest - times.lowest) / times.speed).median()
    longer = (times.samples_speed / times.speed - 1).abs().groupby(times.model == main).max()
    print(f"the range over rounds is {spread:.0%} of the speed (median of {len(times)} timings)")
    for is_main, most in longer[::-1].items():
        models = figures.label(main) if is_main else "the others"
        print(f"length moves samples a second by up to {most:.0%} on {models}")

# %% [markdown]
# ## At equal loss
#
# What each rule spends where its outputs differ as much from those of full depth: read off the line through
# its measured settings, where the mean consistency loss (one minus the score of the output with that of full
# depth as its reference) reaches the value below. Bands are 95 % intervals; for each family its cheapest rule.
# Nothing is read off outside what was measured. A family is missing where even its earliest exits lose less, and
# where even the strictest exits of all of its rules lose more ("none measured" below).

# %%
equal = verdicts.at_equal_loss(stored, main, (0.01, 0.02, 0.05, 0.1, 0.25))
equal = equal.assign(family=equal.rule.map(family_of))
there = equal[equal.reading == verdicts.BETWEEN]
cheapest = there.loc[there.groupby(["task", "wanted", "family"], sort=False).flops_share.idxmin()]


def draw(axis, rows):
    band = ("flops_low", "flops_high")
    figures.lines(axis, rows, "wanted", "flops_share", by="family", band=band, styles=families)
    axis.axhline(1.0, **dotted)
    axis.set_xscale("log")
    axis.set_xticks(equal.wanted.unique(), equal.wanted.unique())
    axis.minorticks_off()


# %%
look = {"xlabel": "mean consistency loss", "ylabel": "FLOPs (1 = full depth)", "width": 3.8, "note": note}
figure = figures.facets(cheapest, draw, values=tasks, **look)
experiment.save_figure(figure, "at_equal_loss", equal.drop(columns="family"))
for row in cheapest[cheapest.wanted == 0.05].sort_values(["task", "flops_share"]).itertuples():
    spent = f"{row.flops_share:.1%} ({row.flops_low:.1%} to {row.flops_high:.1%}) of the FLOPs"
    print(f"{figures.label(row.task)}, a loss of {row.wanted:g}: {spent}, {figures.label(row.rule)}")
for (task, wanted), rows in equal.groupby(["task", "wanted"], sort=False):
    missing = (rows.reading == verdicts.NONE_MEASURED).sum()
    if missing:
        print(
            f"{figures.label(task)}, a loss of {wanted:g}: none measured for {missing} of {len(rows)} rules"
        )

# %% [markdown]
# ## At the same guaranteed quality
#
# For each rule the last threshold $\lambda$ that passes when thresholds are tested from the safest down, one
# p-value each (*learn then test*), so that
#
# $$P\left(\mathbb{E}[\ell(\hat\lambda)] \le \delta\right) \ge 1 - \varepsilon .$$
#
# The thresholds and their order come from the validation examples, every other test example calibrates, and
# costs are those of the rest. The loss $\ell$ is the consistency loss or the risk (by how much the score
# falls); $\varepsilon$ is `eps` of the profile. A dot is what a rule costs at a demand, a line joins the
# cheapest of a family; where there is no point no threshold passed, and nobody exits.

# %%
chosen = verdicts.calibrated(stored, main, demands)
calibrated = experiment.save_table(chosen, "calibrated")
shown = calibrated[(calibrated.bound == "hoeffding_bentkus") & calibrated.found]


def draw(axis, rows):
    for family, part in rows.groupby(rows.rule.map(family_of), sort=False):
        colour = families[family].colour
        axis.scatter(part.delta, part.flops_share, color=colour, s=12, alpha=0.45, linewidth=0)
        best = part.groupby("delta", as_index=False).flops_share.min().assign(family=family)
        figures.lines(axis, best, "delta", "flops_share", by="family", styles=families)
    axis.axhline(1.0, **dotted)
    axis.set_xticks(demands[rows.kind.iloc[0]])


# %%
panels = {"row": "kind", "values": tasks, "sharex": "row", "sharey": "col", "width": 3.8}
labels = {"xlabel": "delta, the largest mean loss", "ylabel": "FLOPs (1 = full depth)"}
figure = figures.facets(shown, draw, **panels, **labels, note=f"{note}, half report costs")
experiment.save_figure(figure, "guaranteed_cost", shown)

# %%
at_delta = (shown.kind == "consistency") & (shown.delta == delta)
ranking = shown[at_delta].sort_values(["task", "flops_share"], kind="stable")
for task, rows in ranking.groupby("task", sort=False):
    best = rows.iloc[0]
    print(
        f"{figures.label(task)}, consistency loss of at most {delta:g}: {len(rows)} rules have a threshold; "
        f"the cheapest is {figures.label(best.rule)} with {best.flops_share:.0%} of the FLOPs"
    )

# %%
tighter = calibrated.groupby(["kind", "bound"], sort=False, as_index=False)[["found", "flops_share"]].mean()
for row in tighter.itertuples():
    print(
        f"{row.kind}, {row.bound.replace('_', '-')}: a threshold for {row.found:.0%} of the demands; "
        f"FLOPs {row.flops_share:.1%} of full depth on average"
    )

# %% [markdown]
# ## The guarantee put to the test
#
# Synthetic data never end, so the promise can be tested as it is worded: independent calibration sets, all
# decoded, and the mean loss of the population, which all sets together stand for. Besides the demands above
# we test the hardest: one per cent below the mean loss of a threshold, which must then just not pass. A promise may be broken by a share `eps` of the sets (solid line); the dashed line is what chance
# makes of that, with 95 % certainty.
# *No test* is what one does without a guarantee: the threshold whose mean loss on the calibration examples is
# within `delta` is taken at its word.

# %%
drawn_anew = "fresh.parquet" in result_tables.read_manifest(name, "measured")["files"]
bounds = {"no_test": "no test", "hoeffding_bentkus": "Hoeffding-Bentkus", "betting": "betting (WSR)"}


def draw(axis, rows):
    figures.dots(axis, rows, "delta", "violated", by="rule")
    axis.axhline(stored.eps, color="#d55e00", linewidth=1.2, label="eps, what may fail")
    axis.axhline(rows.limit.iloc[0], color="#d55e00", linewidth=1, linestyle="--", label="by chance, at most")
    axis.set_xscale("log")


# %%
if drawn_anew:
    fresh = result_tables.read_measurements(name, "fresh")
    sets = experiment.profile.results.fresh_sets
    rates = verdicts.fresh_rates(fresh, stored.deltas, stored.eps, sets)
    look = {"xlabel": "delta, the largest mean loss", "ylabel": "share of sets that\nbreak the promise"}
    figure = figures.facets(rates.replace({"bound": bounds}), draw, "bound", **look, note=f"profile {name}")
    experiment.save_figure(figure, "fresh_sets", rates)
else:
    rates = pd.DataFrame(columns=["bound", "violated", "p_value"])
    print("no fresh examples were measured: this profile's corpora are finite, or make measure has not run")

# %%
for bound, rows in rates.groupby("bound", sort=False):
    broken = f"promises broken by {rows.violated.mean():.1%} of {sets} sets"
    print(f"{bounds[bound]}: {broken}; a threshold found by {rows.passed.mean():.0%}")

# %% [markdown]
# ## Bugs of published code, switched on
#
# Each bug is a small switch around our decoder (`mee_utils/paper/published_bugs.py`), everything else being
# equal: grey circles without, orange diamonds with it. The table below says which published number it may
# explain.

# %%
bugs = result_tables.read_measurements(name, "published_bugs")
several = bugs.groupby(["bug", "rule"]).batch.transform("nunique") > 1
batches = bugs.batch.map(", batch {}".format).where(several, "")
measured = bugs.bug + ": " + bugs.rule.map(figures.label) + ", " + bugs.model.map(figures.label) + batches
drawn = bugs.assign(several=several, name=measured)
styles = {
    "correct": figures.Style("correct", figures.GREY, "o"),
    "published": figures.Style("published", "#d55e00", "D"),
}


# %%
def draw(axis, rows, x):
    pairs = {"x": x, "y": "name", "units": "name", "estimator": None, "orient": "y"}
    seaborn.lineplot(rows, **pairs, color="#999999", linewidth=1.2, ax=axis)
    figures.dots(axis, rows, x, "name", by="version", styles=styles)
    axis.tick_params(axis="y", labelsize=9)
    axis.set_ylabel("")


quantities = {"retained": "score kept (1 = full depth)", "mean_exit_layer": "mean exit layer"}
few = f"profile {name}, n = {experiment.profile.results.bug_examples} examples a task"
panels = {"quantities": quantities, "named": "x", "values": tasks, "sharex": "row"}
figure = figures.facets(drawn, draw, **panels, width=3.6, height=3.9, note=few)
experiment.save_figure(figure, "published_bugs_switched_on", drawn)

# %%
pd.set_option("display.max_colwidth", None, "display.max_rows", None)
worst = bugs[bugs.version == "published"].sort_values("retained", kind="stable").drop_duplicates("bug")
for row in worst.itertuples():
    where = f"{figures.label(row.task)}, {figures.label(row.model)}, batch {row.batch}"
    print(f"{row.bug}: {row.retained:.0%} of the full score is left at worst ({where})")
pd.DataFrame.from_dict(BUGS, orient="index")[["source", "what", "published", "explains"]]

# %% [markdown]
# ## The papers' figures and tables, from the stored tables
#
# MEE's figures 1 and 2 as tables (drawn in 01): the share of predictions that are final after each layer, and
# the mean confidence in the final prediction.

# %%
by_layer = {"index": ["task", "model"], "columns": "layer"}
settled = result_tables.read_table(name, "01_monotonicity", "figure_1_settled")
display(settled.pivot(**by_layer, values="share").loc[tasks].round(2))
confidence = result_tables.read_table(name, "01_monotonicity", "figure_2_confidence")
confidence.pivot(**by_layer, values="confidence").loc[tasks].round(2)

# %% [markdown]
# MEE's figure 3, the most probable token of each layer for one token in the middle of an output (01 has the
# ranks below).

# %%
tokens = result_tables.read_table(name, "01_monotonicity", "figure_3_token_50")
tokens[tokens["rank"] == 1].pivot(index="model", columns="layer", values="token")

# %% [markdown]
# The tables of *Not all FLOPs*: pruning (03) and contrast (04).

# %%
pruning = result_tables.read_table(name, "03_pruning", "complete_table")
values = ["score", "flops_share"]
pruning.pivot_table(index=["task", "model"], columns="reduction", values=values, sort=False).round(2)

# %%
contrast = result_tables.read_table(name, "04_contrastive_decoding", "pareto_verdict")
contrast[["task", "rule", "score", "flops_share", "improves", "worse"]].round(2)

# %% [markdown]
# ## The ledger: every published statement that these models can test
#
# First the statements about calibration, speed and published bugs, judged on the tables above; then all of
# them. A statement that does not hold on models of this size is not thereby refuted at the papers' scale;
# those of profile `real` stand in `RESULTS.md`.

# %%
published_times = at_published[at_published.decoder == EXACT]


def of_task(times, task):
    return times[times.task == task] if len(times) else None


# %%
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
judged = claims.judge("08_results", tables, sixth=first_exit_layers(experiment.layers)[0])
judged = experiment.save_table(judged, "claims")
judged[["claim", "published", "task", "ours", "alone"]]

# %%
ledger = experiment.save_table(claims.ledger(result_tables.claims_of(name), judged), "ledger")
counts = ledger.verdict.value_counts()
print(f"{len(ledger)} statements: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
ledger[["source", "statement", "published", "judged_by", "ours", "verdict", "reason"]]

# %% [markdown]
# ## What this shows, and what it does not
#
# About profile `small`; what is different on real text stands at the end.
#
# *Can a rule over several layers keep its quality and be faster than full depth?* On summaries, yes: the weighted
# vote is about twice as fast one output at a time, and faster by two fifths in batches (first figure). But it is
# not faster *because* it sees several layers: rules that look at one distribution are as fast, and so is, nearly,
# a fixed exit layer in batches. On translations, yes, one output at a time: patient entropy gains two fifths. The
# largest probability alone gains more, and in batches nothing but a fixed layer gains. On questions the rules that
# count exits need the fewest FLOPs, well ahead of all that look at one layer. At this size no rule is faster all the
# same, since their decisions take longer than the layers that they save; at the sizes of T5 they gain a little, and
# the table of tokens next to nothing (07). Even the oracle's exits cost score there: each word that leaves early was
# right, but it leaves other keys and values behind, and an answer counts only as a whole. If the last layer checks
# what exits say, exits are faster on all three tasks and lose nothing at all, but the rule that does it looks at one
# layer (07).
#
# *FLOPs are not seconds.* What decides in FLOPs is the price of a decision and how early it may be taken safely;
# readouts over a few ids take most of that price away. On models this narrow the clock sees little of it, because
# a layer costs hardly more than the bookkeeping of a decision: of the classifiers that save FLOPs on translations
# none clearly gains time there, and most lose some. (03 has the costs at the shapes of T5-base and T5-large.)
#
# *At the same guaranteed quality* the order of rules is not the published order at 0.9. On summaries the cheapest
# rule of every family leaves at the first layer it may; contrast still pays for its amateur. On questions patient entropy, which wants two exits in a row to be
# sure, is far cheaper than any rule on one layer. On translations rules on probabilities lead, closely followed.
#
# *No bound broke its promise* on fresh sets more often than chance allows. Betting comes close to what it may
# spend, Hoeffding-Bentkus never broke a promise and finds a threshold less often. Without a test about half of the
# sets break a demand that is hard. Guarantees are about the *mean* loss against the model's own full output, one
# rule at a time, over inputs like those that calibrated, and say nothing of single outputs.
#
# *Which published conclusions survive?* Those about training (which layers settle), and that a few ids are
# enough for a model trained to exit. The contrast between MEE's rules and CALM's at 0.9 does not: the depth
# collapse can ruin a rule that exits early (the margin, one row at a time; in batches it is rarer), and
# similarity leaves at the first layer it may with or without it. Logits in place of probabilities act the other
# way here: these models' logits are far above 0.9, so the published rule exits *earlier*, and loses by it; what
# it does depends on the level of a model's logits, which means nothing. Positions taken for ids leave nothing of
# the vanilla model's score and a part of CALM's. A right list costs the vanilla model much too, so the ledger
# leaves open whether they explain scores of zero. A list sorted by id explains
# losses of decaying pruning. The plausible set without its mass exits earlier at the same threshold. Leaving the
# weights out of FREE's mixture changes nothing here, since shallow and deep layers nearly always agree.
#
# *On real text* (profile `real`) little is left to gain. At 99 % for certain, questions are cheapest with the margin
# over an adaptive list, which saves a sixth of the FLOPs; classifiers on one layer save a twentieth on translations; on
# summaries no rule saves more than a hundredth. Rules over several layers save next to nothing anywhere.
# Who accepts that a score may fall by a hundredth or two, on average and not for certain, saves two fifths on questions,
# nearly a fifth on translations (probabilities over 64 ids), a seventh on summaries (a fixed layer, which no rule
# beats) (`score_against_flops`).
#
# Three things are different from made-up sentences. Words are less certain and settle later (01), so exits come later. A readout over 4,000 ids costs more than three layers of this width, and a short
# list misses words, so that rules with one are not certain to keep 99 % even where they never exit (03). And scores
# of real outputs vary more: on no task are even the oracle's exits certain to keep 99 %, though on summaries they lose
# nothing on average. Exits as drafts, which the last layer checks, trade nothing away (07).
#
# By the clock, too, and one output at a time: of the rules that keep 99 % for certain the largest probability is a
# little faster than full depth on questions; on summaries none is, and on translations all are clearly slower, since
# deciding costs more than the few layers that are saved. In batches none gains anything. Drafts, which lose nothing,
# gain a fifth to a quarter on questions and translations, one output at a time, and a tenth on summaries (07).
#
# Most published bugs weigh more there. Emitting positions for ids leaves nothing of the vanilla model's scores, and
# of CALM's an eighth on questions and next to nothing elsewhere, as in the published tables; a right list costs the vanilla
# model about a tenth, where it may leave only late. A list sorted by id leaves CALM half of the answers and less of the
# rest, and the vanilla model less than a tenth of anything. Logits in place of probabilities cost score on every task, an
# entropy that is never asked clearly on translations only. The depth collapse, one row at a time, takes more than
# half of CALM's summaries and translations and about a sixth of its answers; in batches it takes hardly anything. Without
# its weights FREE's rule leaves later on summaries and translations, and keeps more of the latter.
#
# Mini models, synthetic examples, two cores: orders may change at T5's size, which profile `paper` is
# there to find out.
#
# **Files.** Every figure as PNG (with `MEE_PDF=1` also as PDF) beside the CSV of what was drawn, and a manifest, in
# `figures/<profile>/08_results`.

# %%
save_numbers(experiment.run)
experiment.finish()
