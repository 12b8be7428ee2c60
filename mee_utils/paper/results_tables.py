"""The tables of RESULTS.md, a function each; where one stands, and its caption, is in results.md.

A function gets a `StoredTables`, reads what it needs through it, and returns what is shown: a row a profile,
task and whatever else, in the order of the page. `StoredTables` remembers what was read, for the line below
the table that says where its numbers come from.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd

from ..common.files import ROOT
from ..study import result_tables
from ..study.catalogue import RULES
from ..study.figures import label
from ..study.result_tables import BENCH, KEEPS_IT, PARTS, best_of_families, missed, one_machine, read_timings
from ..tasks.kinds import TASKS
from .claims import MIXED
from .published_numbers import published_saturation
from .statements import BELIEFS

FIGURES = ROOT / "figures"
PROFILES = ("small", "real")  # those whose results are committed, in the order of the pages
TASK = ["profile", "task"]


class StoredTables:
    """Reads the committed tables of all profiles, and those of the benchmark."""

    def __init__(self):
        self.machines: dict[Path, set[str]] = {}  # table that was read -> machines on which rows were timed

    def table(self, notebook: str, name: str) -> pd.DataFrame:
        """A table of every profile that has it, with `profile` as the first column."""
        tables = []
        for profile in PROFILES:
            path = FIGURES / profile / notebook / f"{name}.csv"
            if path.exists():
                self._note(path)
                table = pd.read_csv(path)
                table.insert(0, "profile", profile)
                tables.append(table)
        return pd.concat(tables, ignore_index=True)

    def decoder_bench(self, group: str, every_machine: bool = False) -> pd.DataFrame:
        """The rows of one group of `decoder.csv`; `measured` is "1.26 (1.12 to 1.32)"."""
        table = pd.read_csv(BENCH / "decoder.csv", keep_default_na=False)
        table = table[table.group == group]
        return self._timed(BENCH / "decoder.csv", table if every_machine else one_machine(table), "median")

    def missed_targets(self) -> pd.DataFrame:
        """The rows of `decoder.csv` that miss their target."""
        table = one_machine(pd.read_csv(BENCH / "decoder.csv", keep_default_na=False))
        return missed(self._timed(BENCH / "decoder.csv", table, "median"))

    def lossless_bench(self) -> pd.DataFrame:
        """The rows of `lossless.csv`: verified exits."""
        return self._timed(BENCH / "lossless.csv", one_machine(pd.read_csv(BENCH / "lossless.csv")), "speed")

    def shapes_bench(self) -> pd.DataFrame:
        """The fastest exits in decoders of other sizes, from `shapes.csv`."""
        return self._timed(BENCH / "shapes.csv", result_tables.fastest_by_shape(), "speed")

    def timings(self, rows: pd.DataFrame, part: str) -> pd.DataFrame:
        """Settings of several profiles with their timings; `tokens_per_second` is `speed` as text."""
        tables = []
        for profile, settings in rows.groupby("profile", sort=False):
            timed = read_timings(part, settings, profile)
            self._note(BENCH / f"{PARTS[part][0]}.csv", [timed.attrs["processor"]] if len(timed) else [])
            tables.append(timed)
        together = pd.concat(tables)
        return together.assign(tokens_per_second=with_range(together, "speed", "lowest", "highest"))

    def sources(self) -> str:
        """Links to all tables that were read; behind those of the benchmark their machines."""
        links = []
        for path, machines in self.machines.items():
            name = path.relative_to(FIGURES).with_suffix("")
            links.append(f"[{name}]({path.relative_to(ROOT).as_posix()})")
            if machines:
                links[-1] += f" ({_describe_machines(path.stem, machines)})"
        return ", ".join(links)

    def _timed(self, path: Path, rows: pd.DataFrame, middle: str) -> pd.DataFrame:
        self._note(path, rows.processor)
        return rows.assign(measured=with_range(rows, middle, "lowest", "highest"))

    def _note(self, path: Path, machines: Iterable[str] = ()) -> None:
        self.machines.setdefault(path, set()).update(machines)


def _describe_machines(bench: str, shown: set[str]) -> str:
    """ "AMD EPYC, 2 cores, torch 2.13.0; ..." for the machines that timed what is shown."""
    all_machines = json.loads((BENCH / result_tables.MACHINES).read_text(encoding="utf-8"))
    texts = [
        f"{name}, {machine['cores']} cores, torch {machine['torch']}"
        for name, machine in all_machines[bench].items()
        if name in shown
    ]
    return "; ".join(texts)


def with_range(rows: pd.DataFrame, middle: str, low: str, high: str, form: str = ".2f") -> list[str]:
    """ "1.26 (1.12 to 1.32)" for every row."""
    values = zip(rows[middle], rows[low], rows[high], strict=True)
    return [f"{m:{form}} ({a:{form}} to {b:{form}})" for m, a, b in values]


def wide(rows: pd.DataFrame, keys: list[str], columns: str, values: str) -> pd.DataFrame:
    """A row for each of the `keys` and a column for each of `columns`, both in the order of the rows."""
    table = rows.pivot(index=keys, columns=columns, values=values)[rows[columns].unique()]
    return table.loc[rows.set_index(keys).index.unique()].reset_index()


def in_order(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Rows by profile (small before real), task, and further columns."""
    ascending = [False, True, *(True for _ in columns)]
    return rows.sort_values([*TASK, *columns], ascending=ascending, kind="stable")


def fastest_at_full_quality(stored: StoredTables) -> pd.DataFrame:
    """Of each family of rules the fastest that keeps 99 % of the score for certain, by batch size."""
    rules = stored.table("08_results", "at_99_percent")
    timed = stored.timings(rules[rules.verdict == KEEPS_IT], "kept")
    best = in_order(best_of_families(timed, [*TASK, "batch"], "ranked", ascending=False), "batch")
    described = ["batch", "family", "rule", "mean_exit_layer", "flops_share", "retained"]
    return best[[*TASK, *described, "tokens_per_second", "samples_speed"]]


def cheapest_at_full_quality(stored: StoredTables) -> pd.DataFrame:
    """Of each family of rules the one that keeps 99 % of the score for certain with the fewest FLOPs."""
    rules = stored.table("08_results", "at_99_percent")
    safe = rules[(rules.verdict == KEEPS_IT) & (rules.flops_share < 1)]
    best = in_order(best_of_families(safe, TASK, "flops_share"))
    best["flops"] = with_range(best, "flops_share", "flops_low", "flops_high", ".1%")
    best["rule"] = best.rule.map(label)
    return best[[*TASK, "family", "rule", "mean_exit_layer", "flops", "retained"]]


def at_equal_loss(stored: StoredTables) -> pd.DataFrame:
    """Of each family of rules the cheapest at two mean consistency losses; "none measured" where none is."""
    from ..study.verdicts import BETWEEN  # loads torch

    rows = stored.table("08_results", "at_equal_loss").query("wanted in (0.01, 0.05)")
    if "reading" not in rows:  # of an older run, which read off every line
        rows = rows.assign(reading=BETWEEN)
    rows = rows.assign(flops_share=rows.flops_share.where(rows.reading == BETWEEN))
    best = in_order(best_of_families(rows, [*TASK, "wanted"], "flops_share"), "wanted")
    read = best.reading == BETWEEN
    shares = pd.Series(with_range(best, "flops_share", "flops_low", "flops_high", ".1%"), index=best.index)
    best["flops"] = shares.where(read, best.reading)
    best["rule"] = best.rule.where(read, "")
    return best[[*TASK, "wanted", "family", "rule", "flops"]]


def at_guaranteed_loss(stored: StoredTables) -> pd.DataFrame:
    """Of each family of rules the cheapest with a guaranteed mean consistency loss."""
    rows = stored.table("08_results", "calibrated")
    rows = rows.query("kind == 'consistency' and bound == 'hoeffding_bentkus' and found")
    rows = rows.query("delta in (0.1, 0.25) and flops_share < 1").assign(model="calm")
    keys = [*TASK, "delta", "rule"]
    single = stored.timings(rows, "results").query("batch == 1").sort_values("speed", ascending=False)
    rows = single[[*keys, "tokens_per_second", "samples_speed"]].merge(rows, on=keys, how="right")
    rows = rows.sort_values("tokens_per_second", ascending=False, kind="stable")  # of equals: what was timed
    best = in_order(best_of_families(rows, [*TASK, "delta"], "flops_share"), "delta")
    columns = ["delta", "family", "rule", "mean_exit_layer", "flops_share"]
    return best[[*TASK, *columns, "tokens_per_second", "samples_speed"]]


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
    return later.sort_index(ascending=[False, True, True]).reset_index()


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
    table["task"] = table.task.where(published, table.task.map(label) + " (" + table.profile + ")")
    table["property"] = table.property.map(label) + ", " + table.group + ", " + table.unit
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


def survey(stored: StoredTables) -> pd.DataFrame:
    """Every rule of the survey, means over tasks."""
    from ..study.verdicts import NONE_MEASURED  # loads torch

    rules = stored.table("06_survey_rules", "rules").replace({"trained": {True: "yes", False: "no"}})
    has_threshold = rules.rule.map(lambda rule: RULES[rule].thresholded)
    missing = rules.equal_flops.isna() & has_threshold
    rules["equal_flops"] = rules.equal_flops.astype(object).mask(missing, NONE_MEASURED)
    described = ["profile", "rule", "source", "readouts", "layers", "trained"]
    return rules[[*described, "roc_area", "equal_flops", "guaranteed", "verified_speed"]]


def bugs(stored: StoredTables) -> pd.DataFrame:
    """Translation with and without each published bug."""
    rows = stored.table("measured", "published_bugs").query("task == 'translation'")
    keys = ["profile", "bug", "model", "rule", "batch"]
    table = rows.pivot(index=keys, columns="version", values=["retained", "mean_exit_layer"])
    table.columns = [f"{number}_{version}" for number, version in table.columns]
    return table.reset_index().sort_values("profile", ascending=False, kind="stable")


def ledger(stored: StoredTables) -> pd.DataFrame:
    """Every statement with its verdict and our numbers, two columns a profile."""
    rows = stored.table("08_results", "ledger")
    rows = rows.reindex(columns=[*rows.columns, *{"judged_by", "reason"}.difference(rows.columns)])
    mixed = rows.verdict == MIXED
    rows.loc[mixed, "verdict"] = "holds on " + rows.held.astype(str) + " of " + rows.tasks.astype(str)
    parts = rows[["ours", "reason"]].astype(object).fillna("")
    texts = parts.agg(lambda row: "; ".join(filter(None, row)), axis=1)
    rows = rows.assign(ours=texts, judged_by=rows.judged_by.astype(object).fillna(""))
    keys = ["source", "statement", "published", "judged_by"]
    verdicts = wide(rows, keys, "profile", "verdict")
    ours = wide(rows.assign(profile=rows.profile + ": ours"), keys, "profile", "ours")
    together = verdicts.merge(ours, on=keys)
    numbers = [column for profile in rows.profile.unique() for column in (profile, f"{profile}: ours")]
    return together[[*keys, *numbers]]


def beliefs(stored: StoredTables) -> pd.DataFrame:
    """Our beliefs with the number of verdicts for and against each."""
    statements = stored.table("08_results", "ledger")
    rows = []
    for belief in BELIEFS:
        speaks_for = statements[statements.claim.isin(belief.get("for", []))]
        against = statements[statements.claim.isin(belief.get("against", []))]
        notebooks = pd.concat([speaks_for, against]).notebook.str[:2].unique()
        row = {
            "belief": belief["belief"],
            "evidence": ", ".join(notebooks),
            "supported": speaks_for.held.sum() + against.failed.sum(),
            "contradicted": speaks_for.failed.sum() + against.held.sum(),
            "undecided": speaks_for.undecided.sum() + against.undecided.sum(),
            "where it would fail": belief["fails"],
        }
        rows.append(row)
    return pd.DataFrame(rows)


def full_depth(stored: StoredTables) -> pd.DataFrame:
    """Our decoder at full depth beside its peers, on every machine."""
    rows = stored.decoder_bench("full depth", every_machine=True).query("what == 'ours'")
    rows = rows.replace({"against": {"": "ms a step"}})
    return wide(rows, ["shape", "dtype", "batch", "processor"], "against", "measured")


def exits(stored: StoredTables) -> pd.DataFrame:
    """Exits at given layers: speed, and cost beside the ideal."""
    rows = pd.concat([stored.decoder_bench("exit cost"), stored.decoder_bench("spread exits")])
    return rows[["shape", "batch", "what", "measured", "unit", "against"]]


def one_decision(stored: StoredTables) -> pd.DataFrame:
    """The time of one decision, in layers."""
    return wide(stored.decoder_bench("one decision"), ["what"], "shape", "measured")


def bandwidth(stored: StoredTables) -> pd.DataFrame:
    """Bytes a token, beside the bandwidth of the memory."""
    return stored.decoder_bench("bandwidth")[["shape", "what", "measured", "unit"]]


def lossless(stored: StoredTables) -> pd.DataFrame:
    """The speed of verified exits, by batch size."""
    rows = stored.lossless_bench()
    rows["measured"] += rows.rule.isna().map({True: ", no drafts", False: ""})
    return wide(rows, [*TASK, "model"], "batch", "measured")


def shapes(stored: StoredTables) -> pd.DataFrame:
    """The simulated speed of exits in decoders of other sizes; real text first."""
    rows = stored.shapes_bench()
    table = wide(rows, [*TASK, "batch", "kind"], "shape", "measured")
    return table.rename(columns={shape: f"{shape}, simulated" for shape in rows["shape"].unique()})


def missed_targets(stored: StoredTables) -> pd.DataFrame:
    """Lines of the benchmark that miss their target."""
    return stored.missed_targets()[["shape", "group", "what", "batch", "measured", "unit", "target"]]


def lost_to_int8(stored: StoredTables) -> str:
    """What our decoder, which has no int8, loses to one that has it, one output at a time."""
    rows = stored.decoder_bench("full depth").query("what == 'ours' and batch == 1 and dtype == 'float32'")
    rows = rows[rows.against.str.contains("CTranslate2, int8")]
    if rows.empty:
        return "CTranslate2 in int8 was not timed yet: run `make bench`."
    times = [
        f"{1 / median:.1f} times ({shape})" for shape, median in rows.set_index("shape")["median"].items()
    ]
    faster = "Our decoder has no int8: with it CTranslate2 is so much faster than ours, one output at a time"
    return f"{faster}: {', '.join(times)}."


def not_simulated(stored: StoredTables) -> str:
    """Of which profiles nothing was played at other sizes yet, and the command that does it."""
    missing = [profile for profile in PROFILES if profile not in set(stored.shapes_bench().profile)]
    commands = [f"`{result_tables.bench_command(profile)}`" for profile in missing]
    if not missing:
        return ""
    return f"Not simulated yet: {', '.join(missing)} (run {' and '.join(commands)})."


SENTENCES: dict[str, Callable[[StoredTables], str]] = {  # field of results.md -> a sentence with its numbers
    "lost_to_int8": lost_to_int8,
    "not_simulated": not_simulated,
}

TABLES: dict[str, Callable[[StoredTables], pd.DataFrame]] = {  # field of results.md -> its table
    "answer": fastest_at_full_quality,
    "cheapest": cheapest_at_full_quality,
    "equal_loss": at_equal_loss,
    "guaranteed": at_guaranteed_loss,
    "models": models,
    "difficulty": difficulty,
    "saturation": saturation,
    "pruning": pruning,
    "contrast": contrast,
    "survey": survey,
    "bugs": bugs,
    "ledger": ledger,
    "beliefs": beliefs,
    "full_depth": full_depth,
    "exits": exits,
    "one_decision": one_decision,
    "bandwidth": bandwidth,
    "lossless": lossless,
    "shapes": shapes,
    "missed": missed_targets,
}
