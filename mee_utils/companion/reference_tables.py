"""The tables of the pages in `figures/results`, a function each; where one stands is in the page's template.

A function gets a `StoredTables`, reads what it needs through it, and returns what is shown: a row per
profile, task and whatever else, in the order of the page.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pandas as pd

from ..tasks.kinds import TASKS
from . import answers, gpu_tables, published_numbers, result_tables
from .catalogue import MAIN_MODEL, MAIN_SWEEP, RULES, SURVEY, Rule
from .figures import label
from .headline import QUALITY
from .prose import listed, span
from .published_numbers import published_saturation
from .published_setting import BATCHES
from .result_tables import KEEPS_IT, UNDECIDED, best_of_families, outputs_to_repay
from .stored_tables import DATA, PROFILES, TASK, StoredTables, in_order, wide, with_range

IN_PLAIN_WORDS = {  # name of a line of `decoder.csv`, or of its unit -> as readers see it
    r"^times faster$": "times as fast",
    r"^all tokens leave at": "all tokens exit at",
    r"^leave at (\d+), each fourth at (\d+)$": r"exit at layer \1, every fourth token at \2",
    r"if made at once$": "if computed at once",
    r"^weights a token$": "weights read per token",
    r"^this machine reads$": "memory bandwidth of this machine",
}
NO_RULE = ("full_depth", "oracle")  # among the settings that 08 draws
SCORED = (  # vocabulary entries, by a rule
    "scores all entries, or none",
    "scores few, all at the last layer",
    "scores few at the last layer too",
)
RANKED = {  # family of rules -> what ranks, in the plural
    "several layers": "rules on several layers",
    "one layer": "rules on one layer's state",
    "history of predictions": "classifiers on the history of predictions",
    "pruned": "pruned probabilities",
}
PEERS = {  # part of a peer's name in `decoder.csv` -> how `transformers` runs
    "transformers generate": "with the attention that it chooses",
    "static cache": "with a static cache, compiled",
    "assistant": "with its first layers as an assistant that is always right",
}
PROPERTIES = {  # rows of MEE's Table 1 -> their names in 02
    "prefix_tokens": "prefix length",
    "similar_states": "layers with a similar state",
    "rises_after_0": "similarity rises strictly from the first layer on",
}
PUBLISHED_SETTLED = {2: 0.75, 4: 0.9}  # MEE, section 3: layer of 12 -> share of final tokens, CALM


def at_full_quality(stored: StoredTables) -> pd.DataFrame:
    """FLOPs and speed of every rule where it keeps 99 % of the score; rules that save most come first."""
    rules = stored.table("08_results", "at_99_percent")
    timed = stored.timings(rules, "kept").query("batch == 1")
    keys = [*TASK, "rule"]
    rules = rules.merge(timed[[*keys, "speed"]], on=keys, how="left")
    speeds = rules.speed.map(", {:.2f}×".format, na_action="ignore").fillna("")
    shares = rules.flops_share.map("{:.0%}".format)
    return _by_rule(rules.assign(cell=quality_cells(rules, shares + speeds, "no saving" + speeds)), stored)


def at_a_mean(stored: StoredTables) -> pd.DataFrame:
    """FLOPs of every rule at a mean of 99 % of the score, the cheapest of its settings."""
    points = stored.table("08_results", "score_against_flops")
    points = points[(points.model == MAIN_MODEL) & ~points.rule.isin(NO_RULE)]
    good = points[points.retained >= QUALITY]
    least = good.groupby([*TASK, "rule"]).flops_share.min()
    rows = points[[*TASK, "rule"]].drop_duplicates()
    spent = least.reindex(pd.MultiIndex.from_frame(rows)).to_numpy()
    texts = pd.Series(spent, index=rows.index).map("{:.0%}".format)
    cells = np.select([np.isnan(spent), spent >= 1], ["loses more", "no saving"], texts)
    return _by_rule(rows.assign(cell=cells), stored)


def families(stored: StoredTables) -> pd.DataFrame:
    """The measured rules by family, and by how many vocabulary entries they score."""
    rules = [RULES[name] for name in RULES if name in {*MAIN_SWEEP, *SURVEY}]
    rows = [{"family": rule.family, "scored": _scored(rule), "rule": rule.label} for rule in rules]
    table = pd.DataFrame(rows).groupby(["family", "scored"], sort=False).rule.agg("; ".join)
    columns = [column for column in SCORED if column in table.index.unique("scored")]
    in_sight = table.unstack("scored")[columns].reindex(dict.fromkeys(rule.family for rule in rules))
    return in_sight.fillna("").reset_index()


def _scored(rule: Rule) -> str:
    """How many vocabulary entries a rule scores: one of `SCORED`."""
    everywhere, whole, published = SCORED
    if rule.pruning is None:
        return everywhere
    return published if rule.prune_last_layer else whole


def quality_cells(
    rules: pd.DataFrame, saving: Sequence[str], not_saving: Sequence[str] | str = "no saving"
) -> np.ndarray:
    """What is said of rules that should keep 99 % of the score; `saving` of those that save FLOPs."""
    choices = [rules.verdict == UNDECIDED, rules.verdict != KEEPS_IT, rules.flops_share >= 1]
    return np.select(choices, ["not certain", "loses more", not_saving], saving)


def at_equal_loss(stored: StoredTables, loss: float) -> pd.DataFrame:
    """FLOPs of every rule where the mean consistency loss is this large, or in words why there are none."""
    from .verdicts import ALL_LOSE_MORE, BETWEEN, NONE_LOSES_SO_MUCH  # loads torch

    rows = stored.table("08_results", "at_equal_loss")
    rows = rows[rows.wanted == loss].reset_index(drop=True)
    if "reading" not in rows:  # of an older run, which read off every line
        rows["reading"] = np.nan
    shares = rows.flops_share.map("{:.0%}".format)
    readings = {BETWEEN: shares, NONE_LOSES_SO_MUCH: NONE_LOSES_SO_MUCH}
    cells = np.select([rows.reading == reading for reading in readings], readings.values(), ALL_LOSE_MORE)
    cells = pd.Series(cells, index=rows.index).mask(rows.reading.isna(), "not measured")
    return _by_rule(rows.assign(cell=cells), stored)


def at_guaranteed_loss(stored: StoredTables, delta: float) -> pd.DataFrame:
    """FLOPs of every rule whose mean consistency loss is at most delta with 95 % certainty."""
    rows = stored.table("08_results", "calibrated")
    rows = rows[(rows.kind == "consistency") & (rows.bound == "hoeffding_bentkus") & (rows.delta == delta)]
    cells = rows.flops_share.map("{:.0%}".format).where(rows.found.astype(bool), "no threshold passes")
    return _by_rule(rows.assign(cell=cells), stored)


def _by_rule(rows: pd.DataFrame, stored: StoredTables) -> pd.DataFrame:
    """Cells of rules by task: a row per rule, a column per task, real text first."""
    ordered = in_order(rows)
    columns = ordered.task.map(label) + ordered.profile.map({"real": "", "small": ", synthetic"})
    table = ordered.assign(column=columns).pivot(index="rule", columns="column", values="cell")
    table = table[columns.unique()].fillna("not measured")
    order = [rule for rule in rules_in_order(stored) if rule in table.index]
    return table.loc[order].reset_index()


def rules_in_order(stored: StoredTables) -> list[str]:
    """The rules by the FLOPs that they need to keep 99 % of the score, mean over the tasks of real text."""
    rules = stored.table("08_results", "at_99_percent")
    saves = (rules.verdict == KEEPS_IT) & (rules.flops_share < 1)
    spent = rules.assign(spent=rules.flops_share.where(saves, 1.0))
    means = spent.groupby(["rule", "profile"]).spent.mean().unstack("profile").reindex(columns=PROFILES)
    return list(means.sort_values(list(PROFILES), kind="stable").index)


def looked_at(stored: StoredTables) -> pd.DataFrame:
    """What every rule of the survey goes by, and what one decision uses."""
    rules = stored.table("06_survey_rules", "rules").drop_duplicates("rule")
    rules = rules.replace({"trained": {True: "yes", False: "no"}})
    areas = stored.table("06_survey_rules", "rules")[["profile", "rule", "roc_area"]]
    by_data = areas.pivot(index="rule", columns="profile", values="roc_area").reindex(columns=PROFILES)
    described = rules[["rule", "source", "readouts", "layers", "trained"]].set_index("rule")
    for profile, name in DATA.items():
        described[f"ROC area, {name}"] = by_data[profile].map("{:.3f}".format, na_action="ignore")
    order = [rule for rule in rules_in_order(stored) if rule in described.index]
    return described.loc[order].reset_index()


def fastest_at_full_quality(stored: StoredTables) -> pd.DataFrame:
    """Of each family of rules the fastest that keeps 99 % of the score for certain, by batch size."""
    rules = stored.table("08_results", "at_99_percent")
    timed = stored.timings(rules[rules.verdict == KEEPS_IT], "kept")
    best = in_order(best_of_families(timed, [*TASK, "batch"], "ranked", ascending=False), "batch")
    described = ["batch", "family", "rule", "mean_exit_layer", "flops_share", "retained"]
    return best[[*TASK, *described, "tokens_per_second", "samples_speed"]]


def models(stored: StoredTables) -> pd.DataFrame:
    """Scores of full depth beside the best baseline, and how early predictions are final."""
    scores = stored.table("00_models", "scores")
    scores = scores[scores.metric == scores.task.map(lambda task: TASKS[task].metric)]
    baseline = scores[scores.kind == "baseline"].groupby(TASK).corpus_score.max().rename("best_baseline")
    scores = scores.rename(columns={"system": "model", "corpus_score": "score"})
    settled = stored.table("01_monotonicity", "figure_1_settled").query("layer == 4")
    settled = settled.rename(columns={"share": "final_after_layer_4"})
    depth = stored.table("01_monotonicity", "settling_depth")
    depth["final_from_layer"] = with_range(depth, "mean_layer", "low", "high")
    rows = depth.merge(scores, on=[*TASK, "model"]).merge(settled, on=[*TASK, "model"])
    rows = rows.merge(baseline.reset_index(), on=TASK)
    columns = ["metric", "score", "best_baseline", "final_after_layer_4", "final_from_layer"]
    return rows[[*TASK, "model", *columns]]


def difficulty(stored: StoredTables) -> pd.DataFrame:
    """How many layers later difficult tokens are similar to the last state, and settled, than easy ones."""
    rows = stored.table("02_saturation", "three_selections").query("model == 'calm'")
    means = rows.pivot(index=[*TASK, "selected_by", "property"], columns="group", values="mean")
    later = (means.difficult - means.easy).unstack("property")[["first_similar", "settled_from"]]
    return in_order(later.reset_index())


def settled_as_published(stored: StoredTables) -> pd.DataFrame:
    """MEE's Figure 1 at the two layers of twelve that its text names, beside ours."""
    rows = stored.table("01_monotonicity", "figure_1_settled")
    rows = rows[(rows.model == MAIN_MODEL) & rows.layer.isin(PUBLISHED_SETTLED)]
    ours = rows.assign(measured=with_range(rows, "share", "low", "high", ".1%"))
    ours = ours.assign(task=ours.task.map(label) + ", " + ours.profile.map(DATA))
    published = pd.DataFrame(
        [
            {"task": "published", "layer": layer, "measured": f"{share:.0%}"}
            for layer, share in PUBLISHED_SETTLED.items()
        ]
    )
    table = pd.concat([published, ours]).rename(columns={"layer": "final after layer (of 12)"})
    return wide(table, ["final after layer (of 12)"], "task", "measured")


def saturation(stored: StoredTables) -> pd.DataFrame:
    """MEE's Table 1 beside ours: easy and difficult prefixes, selected as published."""
    rows = stored.table("02_saturation", "table_1").query("model == 'calm'")
    depths = stored.table("01_monotonicity", "figure_1_settled").groupby("profile").layer.max()
    tables = [
        published_saturation(of_profile, depths[profile]).assign(profile=profile)
        for profile, of_profile in rows.groupby("profile", sort=False)
    ]
    table = pd.concat(tables, ignore_index=True)
    published = table.task == "published"
    table["task"] = table.task.where(published, table.task.map(label) + ", " + table.profile.map(DATA))
    names = table.property.replace(PROPERTIES)
    names = names.str.replace("rises_after_", "similarity rises strictly after layer ")
    table["property"] = names.map(label) + ", " + table.group + ", " + table.unit
    spread = table.standard_deviation.map(" (sd {:.0f})".format)
    table["mean"] = table["mean"].map("{:.0f}".format) + spread.where(table.standard_deviation.notna(), "")
    return wide(table.drop_duplicates(["property", "task"]), ["property"], "task", "mean")


def pruning(stored: StoredTables) -> pd.DataFrame:
    """The softmax margin with every way of pruning, decoded and timed."""
    table = stored.table("03_pruning", "complete_table").query("model == 'calm'")
    settings = table[table.reduction != "full_depth"][[*TASK, "model", "reduction"]]
    single = stored.timings(settings, "reductions").query("batch == 1")
    single = single[[*TASK, "reduction", "tokens_per_second", "samples_speed"]]
    columns = ["reduction", "score", "retained", "other_token", "mean_exit_layer", "flops_share"]
    return table[[*TASK, *columns]].merge(single, on=[*TASK, "reduction"], how="left")


def contrast(stored: StoredTables) -> pd.DataFrame:
    """Contrast with an earlier layer as confidence, and as decoder."""
    ranks = stored.table("04_contrastive_decoding", "ranking").query("model == 'calm'")
    ranks = ranks.groupby([*TASK, "rule"], sort=False, as_index=False).roc_area.mean()
    equal = stored.table("04_contrastive_decoding", "equal_quality").query("wanted == 0.98")
    decoded = stored.table("04_contrastive_decoding", "as_decoder").query("model == 'calm'")
    decoded = decoded.assign(as_decoder_keeps=with_range(decoded, "retained", "low", "high", ".0%"))
    rows = ranks.merge(equal[[*TASK, "rule", "mean_exit_layer", "flops_share"]], on=[*TASK, "rule"])
    return rows.merge(decoded[[*TASK, "rule", "alpha", "as_decoder_keeps"]], on=[*TASK, "rule"], how="left")


def published_pruning(stored: StoredTables) -> pd.DataFrame:
    """The softmax results of "Not all FLOPs", row by row, beside ours on real text."""
    rows = stored.table("03_pruning", "published_rows")
    rows = rows[rows.profile == PROFILES[0]]
    kept = rows.score / rows.score_at_full_depth
    ours = rows.our_score / rows.our_score_unpruned
    # "full_depth" is the paper's name for an unpruned margin: its tokens exit
    rows = rows.replace({"reduction": {"full_depth": "margin, no pruning"}})
    table = rows[["model", "dataset", "reduction", "our_model", "our_task"]].assign(
        published_score=rows.score.map("{:.1f}".format),
        published_kept=kept.map("{:.0%}".format, na_action="ignore"),
        published_depth=rows.depth.map("{:.0%}".format, na_action="ignore"),
        kept_here=ours.map("{:.0%}".format, na_action="ignore"),
        depth_here=rows.our_depth.map("{:.0%}".format, na_action="ignore"),
        why_they_differ=rows.why_they_differ,
    )
    return table


def published_main_figure(stored: StoredTables) -> pd.DataFrame:
    """MEE's main figure as numbers, beside ours where they were timed; shares of full depth."""
    rows = stored.table("08_results", "beside_published")
    if rows.empty:
        published = published_numbers.published_main_figure()
        columns = ["task", "dataset", "rule", "metric", "score", "samples_per_second"]
        rows = published[columns]
    else:
        rows = rows[rows.batch == BATCHES[0]].drop(columns="batch")
    numbers = rows.select_dtypes("float").columns
    texts = {column: rows[column].map("{:.2f}".format, na_action="ignore") for column in numbers}
    return rows.assign(**texts)


def scores_of_others(stored: StoredTables) -> pd.DataFrame:
    """Published scores of models of about this size beside ours."""
    rows = stored.table("00_models", "published_scores")
    numbers = [column for column in ("score", "ours", "ours_as_published") if column in rows]
    texts = {column: rows[column].map("{:.1f}".format, na_action="ignore") for column in numbers}
    return rows.assign(**texts)


def bug_table(stored: StoredTables, bug: str) -> pd.DataFrame:
    """The score that each task keeps with a published bug, and without; 95 % intervals over examples."""
    rows = stored.table("measured", "published_bugs")
    rows = rows[rows.bug == bug]
    cells = with_range(rows, "retained", "low", "high", ".0%")
    versions = rows.version.replace({"published": "with the bug", "correct": "without"})
    keys = ["profile", "model", "rule", "batch", "version"]
    return wide(rows.assign(cell=cells, version=versions), keys, "task", "cell")


def bug_effect(stored: StoredTables, bug: str) -> str:
    """In how many settings a bug takes score, and where it adds some.

    Settings count whose interval with the bug does not overlap that without.
    """
    rows = stored.table("measured", "published_bugs")
    rows = rows[rows.bug == bug]
    if rows.empty:
        return "not measured yet."
    setting = [*TASK, "model", "rule", "batch"]
    with_bug = rows[rows.version == "published"].set_index(setting)
    without = rows[rows.version == "correct"].set_index(setting).reindex(with_bug.index)
    loses = with_bug.high < without.low
    gains = with_bug.low > without.high
    kept = pd.DataFrame({"with_bug": with_bug.retained, "without": without.retained})[gains].reset_index()
    gained = [
        f"{DATA[row.profile]} {label(row.task)} {row.with_bug:.0%} instead of {row.without:.0%}"
        for row in kept.itertuples()
    ]
    more = "none keeps more"
    if gained:
        more = f"{len(gained)} {'keeps' if len(gained) == 1 else 'keep'} more ({listed(gained)})"
    return (
        f"with the bug, {loses.sum() or 'none'} of {len(loses)} settings keep less of the score, and {more}; "
        "in the others the intervals overlap."
    )


def bug_examples(stored: StoredTables) -> str:
    """On how many examples of a task published bugs are measured: "50 (real) and 30 (synthetic)"."""
    counts = []
    for profile, data in DATA.items():
        parameters = result_tables.read_manifest(profile, result_tables.MEASURED)["parameters"]
        counts.append(f"{parameters['bug_examples']} ({data})")
    return " and ".join(counts)


def full_depth(stored: StoredTables) -> pd.DataFrame:
    """Our decoder at full depth beside its peers, on every machine."""
    rows = stored.decoder_bench("full depth", every_machine=True).query("what == 'ours'")
    rows = rows.replace({"against": {"": "ms per step"}})
    return wide(rows, ["shape", "dtype", "batch", "processor"], "against", "measured")


def exits(stored: StoredTables) -> pd.DataFrame:
    """Exits at given layers: speed, and cost beside the ideal."""
    rows = pd.concat([stored.decoder_bench("exit cost"), stored.decoder_bench("spread exits")])
    return _in_plain_words(rows[["shape", "batch", "what", "measured", "unit", "against"]])


def one_decision(stored: StoredTables) -> pd.DataFrame:
    """The time of one decision, in layers."""
    return wide(stored.decoder_bench("one decision"), ["what"], "shape", "measured")


def bandwidth(stored: StoredTables) -> pd.DataFrame:
    """Bytes per token, beside the bandwidth of the memory."""
    return _in_plain_words(stored.decoder_bench("bandwidth")[["shape", "what", "measured", "unit"]])


def lossless(stored: StoredTables) -> pd.DataFrame:
    """The speed of verified exits, by batch size."""
    rows = stored.lossless_bench()
    rows["measured"] += rows.rule.isna().map({True: ", no drafts", False: ""})
    return wide(rows, [*TASK, "model"], "batch", "measured")


def planning(stored: StoredTables) -> str:
    """How long it takes to plan drafts, and after how many outputs drafting has made up for it."""
    rows = planned(stored)
    if rows.empty:
        return "Planning has not been timed yet: run `make bench`."
    seconds = span(rows.planning_seconds, "{:.0f}")
    outputs = span(outputs_to_repay(rows), "{:,.0f}")
    return (
        f"Planning takes {seconds} seconds, once per line and batch size, and is not part of these times: "
        f"drafts that are faster have made up for it after {outputs} outputs. To plan once and decode often, "
        "keep the policy of `plan_drafts`."
    )


def planned(stored: StoredTables) -> pd.DataFrame:
    """The rows of verified exits of which planning was timed; older ones may lack the column."""
    rows = stored.lossless_bench()
    rows = rows.reindex(columns=rows.columns.union(["planning_seconds"]))
    return rows.dropna(subset="planning_seconds")


def shapes(stored: StoredTables) -> pd.DataFrame:
    """The simulated speed of exits in decoders of other sizes; real text first."""
    rows = stored.shapes_bench()
    table = wide(rows, [*TASK, "batch", "kind"], "shape", "measured")
    return table.rename(columns={shape: f"{shape}, simulated" for shape in rows["shape"].unique()})


def missed_targets(stored: StoredTables) -> pd.DataFrame:
    """Lines of the benchmark that miss their target."""
    columns = ["shape", "group", "what", "batch", "measured", "unit", "target"]
    return _in_plain_words(stored.missed_targets()[columns])


def _in_plain_words(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of `decoder.csv` for readers."""
    return rows.replace({column: IN_PLAIN_WORDS for column in ("what", "unit") if column in rows}, regex=True)


def lost_to_int8(stored: StoredTables) -> str:
    """What our decoder, which has no int8, loses to one that has it, one output at a time."""
    rows = stored.decoder_bench("full depth").query("what == 'ours' and batch == 1 and dtype == 'float32'")
    rows = rows[rows.against.str.contains("CTranslate2, int8")]
    if rows.empty:
        return "CTranslate2 in int8 has not been timed yet: run `make bench`."
    times = [
        f"{1 / median:.1f} times ({shape})" for shape, median in rows.set_index("shape")["median"].items()
    ]
    faster = "Our decoder has no int8: with it CTranslate2 is so much faster than ours, one output at a time"
    return f"{faster}: {', '.join(times)}."


def peers(stored: StoredTables) -> str:
    """How `transformers` was run beside our decoder at full depth, of what was timed."""
    against = set(stored.decoder_bench("full depth", every_machine=True).against)
    ways = [way for name, way in PEERS.items() if any(name in peer for peer in against)]
    return f"`transformers` {listed(ways)}"


def not_simulated(stored: StoredTables) -> str:
    """Of which profiles nothing was played at other sizes yet, and the command that does it."""
    missing = [profile for profile in PROFILES if profile not in set(stored.shapes_bench().profile)]
    commands = [f"`{result_tables.bench_command(profile)}`" for profile in missing]
    if not missing:
        return ""
    return f"Not simulated yet: {', '.join(missing)} (run {' and '.join(commands)})."


def ranking(stored: StoredTables) -> str:
    """Which family of rules ranks best on real text, beside the next; in the picture of the same section."""
    areas = answers.ranking(stored)
    if len(areas) < 2:
        return "How well rules tell final predictions from others has not been measured yet on real text."
    best, second = (RANKED.get(family, family) for family in areas.index[:2])
    hardly = ", but hardly better than " + second if areas.iloc[0] - areas.iloc[1] < 0.005 else ""
    numbers = f"{areas.iloc[0]:.3f}, {second} {areas.iloc[1]:.3f}"
    rank = "tell final predictions from others best on real text, on average"
    return f"{best[0].upper()}{best[1:]} {rank}{hardly} (ROC area {numbers})."


SENTENCES: dict[str, Callable[[StoredTables], str]] = {  # field of a page -> a sentence with its numbers
    "bug_examples": bug_examples,
    "lost_to_int8": lost_to_int8,
    "not_simulated": not_simulated,
    "on_gpu": gpu_tables.sentence,
    "peers": peers,
    "planning": planning,
    "ranking": ranking,
}

TABLES: dict[str, Callable[[StoredTables], pd.DataFrame]] = {  # field of a page -> its table
    "families": families,
    "at_a_mean": at_a_mean,
    "at_full_quality": at_full_quality,
    "at_loss_1": partial(at_equal_loss, loss=0.01),
    "at_loss_5": partial(at_equal_loss, loss=0.05),
    "at_delta_10": partial(at_guaranteed_loss, delta=0.1),
    "at_delta_25": partial(at_guaranteed_loss, delta=0.25),
    "looked_at": looked_at,
    "pruning": pruning,
    "contrast": contrast,
    "models": models,
    "settled_as_published": settled_as_published,
    "saturation": saturation,
    "difficulty": difficulty,
    "published_main_figure": published_main_figure,
    "published_pruning": published_pruning,
    "scores_of_others": scores_of_others,
    "fastest": fastest_at_full_quality,
    "full_depth": full_depth,
    "exits": exits,
    "one_decision": one_decision,
    "bandwidth": bandwidth,
    "lossless": lossless,
    "shapes": shapes,
    "missed": missed_targets,
    "on_gpu": gpu_tables.on_gpu,
}
