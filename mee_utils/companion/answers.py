"""The tables of RESULTS.md, at most eight rows for each question, and that of README; real text first."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pandas as pd

from . import open_question
from .catalogue import MAIN_MODEL, RULES
from .figures import label
from .headline import FIXED, ONE, QUALITY, SEVERAL, VERIFIED, headline_table, speed_texts
from .numbers import stored_numbers
from .published_numbers import published_saturation
from .result_tables import BENCH, KEEPS_IT
from .statements import BELIEFS
from .stored_tables import FIGURES, PROFILES, TASK, StoredTables, in_order

REAL, SYNTHETIC = PROFILES
VANILLA = "vanilla"
HISTORY = "history"
LIMITS = {  # column of what limits exits -> its name in the table
    "oracle": "oracle keeps",
    "exact": "oracle keeps, exact states (FLOPs)",
    "rule_kept": "best rule at no more FLOPs keeps",
}
KIND = "tokens a second (score kept)"
SPEED = "speed"
WINNERS = {  # kind of exit -> its row in README's table
    ONE: "one-layer rule",
    SEVERAL: "several-layer rule",
    FIXED: "fixed layer",
    VERIFIED: "**verified exits** (same output)",
}


def settling(stored: StoredTables) -> pd.DataFrame:
    """How early predictions are final, and how often confidence never falls."""
    final = stored.table("01_monotonicity", "figure_1_settled").query("layer == 4")
    never = stored.table("01_monotonicity", "strictly_monotonic")
    never = never[(never.kind == "never falling") & (never.after_layer == 0)]
    table = _by_model(final, "share", "{:.0%}", "final after layer 4")
    return table.join(_by_model(never, "share", "{:.0%}", "confidence never falls")).reset_index()


def _by_model(rows: pd.DataFrame, column: str, form: str, name: str) -> pd.DataFrame:
    """A row per task, a column for the vanilla model and one for the main model."""
    by_model = in_order(rows).pivot(index=TASK, columns="model", values=column)[[VANILLA, MAIN_MODEL]]
    texts = by_model.loc[_tasks(rows)].map(form.format)
    return texts.rename(columns=lambda model: f"{name}, {label(model)}")


def _tasks(rows: pd.DataFrame) -> pd.Index:
    """(profile, task) of the rows, real text first."""
    ordered = rows.sort_values(TASK, key=lambda values: values.map(_order), kind="stable")
    return pd.MultiIndex.from_frame(ordered[TASK].drop_duplicates())


def _order(value: str) -> str:
    return str(PROFILES.index(value)) if value in PROFILES else value


def price(stored: StoredTables) -> pd.DataFrame:
    """What training for exits costs at full depth, beside a decoder trained shallow."""
    lost = lost_points(stored)
    table = pd.DataFrame(
        {
            "metric": lost.metric,
            "score, vanilla": lost.score_vanilla.map("{:.1f}".format),
            "score, CALM": lost.score_calm.map("{:.1f}".format),
            "points lost": lost.lost.map("{:+z.1f}".format),
        }
    )
    for row in shallow_decoders(stored).itertuples():
        cell = f"{row.decoder_layers} layers: {row.kept:.0%}, {row.relative_flops:.0%}"
        table.loc[
            (row.profile, row.task), "shallow decoder: share of vanilla's score (first seed), FLOPs"
        ] = cell
    return table.reset_index().fillna("not trained")


def lost_points(stored: StoredTables) -> pd.DataFrame:
    """Full-depth scores of both models, means over seeds, and the points that the main model loses."""
    seeds = stored.table("retrained", "seeds")
    seeds = seeds[seeds.model.isin([VANILLA, MAIN_MODEL])]
    means = seeds.groupby([*TASK, "metric", "model"]).score.mean().unstack("model").reset_index("metric")
    means = means.loc[_tasks(seeds)].rename(columns={VANILLA: "score_vanilla", MAIN_MODEL: "score_calm"})
    return means.assign(lost=means.score_vanilla - means.score_calm)


def shallow_decoders(stored: StoredTables) -> pd.DataFrame:
    """Decoders trained shallow: a profile's smallest that keeps 99 % on every task, else its largest."""
    rivals = stored.table("retrained", "rivals")
    if rivals.empty:
        return pd.DataFrame(columns=[*TASK, "decoder_layers", "kept", "relative_flops"])
    shallow = rivals[rivals.model != VANILLA]
    least_kept = shallow.groupby(["profile", "decoder_layers"]).kept.min()
    layers = {}
    for profile, of_profile in least_kept.groupby("profile"):
        kept = of_profile.droplevel("profile")  # decoder layers -> the least that is kept on a task
        good = kept.index[kept >= QUALITY]
        layers[profile] = good.min() if len(good) else kept.index.max()
    return shallow[shallow.decoder_layers == shallow.profile.map(layers)]


def easy_tokens(stored: StoredTables) -> pd.DataFrame:
    """Where easy and difficult prefixes saturate, and how much later tokens of high loss settle."""
    shares = _first_similar(stored)
    numbers = numbers_of_tasks()
    later = {key: groups["high_loss_later"] for key, groups in numbers.items() if "high_loss_later" in groups}
    table = pd.DataFrame(
        {
            "first similar state, easy prefixes (% of the depth)": shares.easy.map("{:.0f}".format),
            "first similar state, difficult prefixes (% of the depth)": shares.difficult.map("{:.0f}".format),
        }
    )
    names = {"first_similar": "first similar state", "settled_from": "final prediction"}
    for quantity, name in names.items():
        column = {key: f"{layers[quantity]:+z.1f}" for key, layers in later.items()}
        table[f"tokens of high loss: {name}, layers later"] = pd.Series(column)
    return table.rename_axis(TASK).reset_index().fillna("")


def _first_similar(stored: StoredTables) -> pd.DataFrame:
    """The first state that is similar to the last, in percent of the depth, in MEE's Table 1 and here."""
    rows = stored.table("02_saturation", "table_1")
    rows = rows[(rows.model == MAIN_MODEL) & (rows.selected_by == "mean_similarity")]
    depths = stored.table("01_monotonicity", "figure_1_settled").groupby("profile").layer.max()
    tables = []
    for profile, of_profile in rows.groupby("profile", sort=False):
        table = published_saturation(of_profile, depths[profile]).query("property == 'first_similar'")
        is_published = table.task == "published"  # of summaries
        table["profile"] = np.where(is_published, "published", profile)
        table["task"] = table.task.mask(is_published, "summarization")
        tables.append(table)
    means = pd.concat(tables).drop_duplicates([*TASK, "group"])
    wide = means.pivot(index=TASK, columns="group", values="mean")
    return wide.loc[[("published", "summarization"), *_tasks(rows)]]


def cheap_decisions(stored: StoredTables) -> pd.DataFrame:
    """The margin over all vocabulary entries and over 64, and contrast as a confidence."""
    rows = stored.table("03_pruning", "complete_table")
    rows = rows[(rows.model == MAIN_MODEL) & rows.reduction.isin(["unpruned", "fixed"])]
    spent = rows.pivot(index=TASK, columns="reduction", values="flops_share").loc[_tasks(rows)]
    changed = rows[rows.reduction == "fixed"].set_index(TASK).other_token
    ranks = stored.table("04_contrastive_decoding", "ranking")
    ranks = ranks[ranks.model == MAIN_MODEL].groupby([*TASK, "rule"]).roc_area.mean().unstack("rule")
    table = pd.DataFrame(
        {
            "FLOPs, all entries": spent.unpruned.map("{:.0%}".format),
            "FLOPs, 64 entries": spent.fixed.map("{:.0%}".format),
            "tokens changed by pruning": changed.map("{:.2%}".format),
            "ROC area, plain margin": ranks.unpruned.map("{:.3f}".format, na_action="ignore"),
            "ROC area, weighted contrast": ranks.weighted.map("{:.3f}".format, na_action="ignore"),
            "ROC area, JSD contrast": ranks.jsd.map("{:.3f}".format, na_action="ignore"),
        }
    )
    return table.loc[_tasks(rows)].reset_index().fillna("too few tokens")


def who_decides(stored: StoredTables) -> pd.DataFrame:
    """Of each family of rules the fewest FLOPs with which one keeps 99 % of the score."""
    rules = stored.table("08_results", "at_99_percent")
    rules = rules.assign(family=rules.rule.map(_family))
    safe = rules[(rules.verdict == KEEPS_IT) & (rules.flops_share < 1)]
    least = safe.groupby([*TASK, "family"]).flops_share.min().unstack("family")
    shown = [family for family in _families(rules) if family in set(rules.family)]
    table = (
        least.reindex(index=_tasks(rules), columns=shown)
        .map("{:.0%}".format, na_action="ignore")
        .astype(object)
    )
    measured = rules.groupby([*TASK, "family"]).size().unstack("family").reindex_like(table).notna()
    return table.fillna("none").where(measured, "not measured").reset_index()


def _family(rule: str) -> str:
    """The family of a rule, as readers know it."""
    if rule == HISTORY:
        return "history of predictions"
    family = RULES[rule].family
    return FIXED if family == "reference" else family


def ranking(stored: StoredTables) -> pd.Series:
    """Family -> the largest ROC area of its rules on real text, mean over layers and tasks; largest first."""
    layers = stored.table("05_mee_classifiers", "ranking")
    if layers.empty:
        return pd.Series(dtype=float)
    of_real = (layers.profile == REAL) & (layers.model == MAIN_MODEL) & (layers.target == "consistency")
    areas = layers[of_real].groupby(["rule", "task"]).roc_area.mean().groupby("rule").mean()
    return areas.groupby(_family).max().sort_values(ascending=False, kind="stable")


def _families(rules: pd.DataFrame) -> list[str]:
    """The families in the order in which they first occur; what needs no rule comes last."""
    return [family for family in dict.fromkeys(rules.family) if family != FIXED] + [FIXED]


def limits(stored: StoredTables) -> pd.DataFrame:
    """What perfect decisions keep and cost, and the best rule for as few FLOPs."""
    rows = oracle_rows(stored)
    table = rows.assign(FLOPs=rows.flops_share.map("{:.0%}".format))
    for column, name in LIMITS.items():
        if rows[column].notna().any():
            shares = rows[column].map("{:.1%}".format, na_action="ignore").astype(object)
            missing = rows.complete.map({True: "none spends as little", False: "not measured"})
            table[name] = shares.where(rows[column].notna(), missing)
    if LIMITS["exact"] in table:
        spent = rows.exact_flops.map(" ({:.0%})".format, na_action="ignore").astype(object)
        table[LIMITS["exact"]] += spent.where(rows.exact_flops.notna(), "")
    named = [name for name in LIMITS.values() if name in table]
    return in_order(table)[[*TASK, "FLOPs", *named]]


def oracle_rows(stored: StoredTables) -> pd.DataFrame:
    """A row per task: what the oracle keeps for which FLOPs, and (`complete`) what else 08 sets beside it.

    Of profiles whose oracle was not decoded with exact states, only what it keeps with copied ones is known.
    """
    columns = [*TASK, "flops_share", "exact_flops", "complete", *LIMITS]
    whole = stored.table("08_results", "limits_at_equal_flops").assign(complete=True)
    points = stored.table("08_results", "score_against_flops")
    parts = [whole.reindex(columns=columns)]
    if len(points):
        alone = points[(points.rule == "oracle") & (points.model == MAIN_MODEL)]
        alone = alone[~alone.profile.isin(whole.profile.unique())]
        parts.append(alone.assign(oracle=alone.retained, complete=False).reindex(columns=columns))
    filled = [part for part in parts if len(part)]
    return pd.concat(filled, ignore_index=True) if filled else parts[0]


@cache
def headlines() -> dict[str, pd.DataFrame]:
    """Profile -> its headline (`companion.headline`), from the tables of 08."""
    stored = StoredTables()
    kept = stored.table("08_results", "at_99_percent")
    points = stored.table("08_results", "score_against_flops")
    static = points[(points.rule == "static") & (points.model == MAIN_MODEL)]
    return {
        profile: headline_table(profile, kept[kept.profile == profile], static[static.profile == profile])
        for profile in PROFILES
    }


def speeds(stored: StoredTables) -> pd.DataFrame:
    """The headline as a table, real text first: a row per kind of exit, a column per task."""
    tables = []
    for profile in PROFILES:
        table = _headline_cells(profile, stored)
        table.insert(0, "profile", profile)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _headline_cells(profile: str, stored: StoredTables) -> pd.DataFrame:
    """ "1.03× (99.7%)": speed and share of the score, a row per kind of exit; verified ones keep all."""
    rows = headlines()[profile]
    stored.note_timings(rows)
    kept = rows.retained.map(" ({:.1%})".format).mask(rows.kind == VERIFIED, "")
    return _cells_by_kind(rows, speed_texts(rows) + kept).rename_axis(KIND).reset_index()


def _cells_by_kind(rows: pd.DataFrame, cells: pd.Series) -> pd.DataFrame:
    """Texts beside the rows of a headline: a row per kind of exit, a column per task."""
    wide = rows.assign(cell=cells).pivot(index="kind", columns="task", values="cell")
    wide = wide.reindex(list(WINNERS)).fillna("none")
    wide.index = [WINNERS[kind] for kind in wide.index]
    return wide.rename(columns=label)


def winners(stored: StoredTables) -> pd.DataFrame:
    """README's table: real text alone, with what else keeps the score there, and FLOPs at a mean score."""
    headline = headlines()[REAL]
    table = _cells_by_kind(headline, speed_texts(headline)).rename_axis(SPEED).reset_index()
    shallow = _shallow_row(stored)
    rows = [table.iloc[:-1], pd.DataFrame([shallow] if shallow else []), table.iloc[-1:]]
    rows.append(pd.DataFrame([_flops_row(stored)]))
    return pd.concat(rows).fillna("none")


def _flops_row(stored: StoredTables) -> dict[str, str]:
    """FLOPs at a mean of 99 % of the score: the cheapest rule over one layer, and over several."""
    mean = open_asked(stored, REAL).mean
    kinds = [open_question.flops(mean, kind) for kind in (open_question.ONE, open_question.SEVERAL)]
    shares = pd.concat(kinds, axis=1).map("{:.0%}".format, na_action="ignore").fillna("none")
    cells = {label(task): " / ".join(texts) for task, *texts in shares.itertuples()}
    return {SPEED: f"FLOPs at a mean score of {QUALITY:.0%}, one-layer / several-layer"} | cells


def open_asked(stored: StoredTables, profile: str) -> open_question.Answers:
    """What answers MEE's open question on the data of a profile."""
    points = stored.table("08_results", "score_against_flops")
    points = points[(points.model == MAIN_MODEL) & (points.profile == profile)]
    kept = stored.table("08_results", "at_99_percent")
    kept = kept[kept.profile == profile]
    return open_question.answers(points, kept, stored.timings(kept, "kept"), QUALITY)


def _shallow_row(stored: StoredTables) -> dict[str, str]:
    """A decoder trained shallow, beside the vanilla model: its speed, or its FLOPs until it is timed."""
    rows = shallow_decoders(stored)
    rows = rows[rows.profile == REAL]
    if rows.empty:
        return {}
    speeds = shallow_speeds(stored, rows)
    cells = {}
    for row in rows.itertuples():
        spent = f"{speeds[row.task]:.2f}×" if row.task in speeds else f"{row.relative_flops:.0%} FLOPs"
        cells[label(row.task)] = spent
    note = "vanilla = 1×" if len(speeds) else "not timed"
    return {SPEED: f"{rows.decoder_layers.iloc[0]:.0f}-layer decoder ({note})"} | cells


def shallow_speeds(stored: StoredTables, rows: pd.DataFrame) -> pd.Series:
    """Task -> the speed of its decoder trained shallow, as a multiple of vanilla; empty until it is timed."""
    if not (BENCH / "rivals.csv").exists():
        return pd.Series(dtype=float)
    wanted = rows[[*TASK, "decoder_layers"]].assign(model=VANILLA)
    timed = stored.timings(wanted, "rivals").query("batch == 1")
    return timed.set_index("task").speed


@cache
def numbers_of_tasks() -> dict[tuple[str, str], dict]:
    """(profile, task) -> the groups of numbers that the notebooks state about it."""
    stated = {profile: stored_numbers(FIGURES / profile)["tasks"] for profile in PROFILES}
    return {(profile, task): groups for profile, tasks in stated.items() for task, groups in tasks.items()}


def beliefs(stored: StoredTables) -> dict[str, list[dict]]:
    """Question -> our beliefs about it, each with the number of verdicts for and against it."""
    statements = stored.table("08_results", "ledger")
    by_question: dict[str, list[dict]] = {}
    for belief in BELIEFS:
        speaks_for = statements[statements.claim.isin(belief.get("for", []))]
        against = statements[statements.claim.isin(belief.get("against", []))]
        weighed = {
            "text": belief["belief"],
            "fails": belief["fails"],
            "supported": int(speaks_for.held.sum() + against.failed.sum()),
            "contradicted": int(speaks_for.failed.sum() + against.held.sum()),
            "undecided": int(speaks_for.undecided.sum() + against.undecided.sum()),
        }
        by_question.setdefault(belief["question"], []).append(weighed)
    return by_question


TABLES: dict[str, Callable[[StoredTables], pd.DataFrame]] = {  # field of results.md -> its table
    "settling": settling,
    "price": price,
    "easy": easy_tokens,
    "cheap": cheap_decisions,
    "who": who_decides,
    "limits": limits,
    "speeds": speeds,
}
