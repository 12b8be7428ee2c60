"""RESULTS.md and the numbers of README.md, from stored tables; texts are results.md and findings.md here."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd

from ..common.files import ROOT, complete_file, read_yaml
from ..study import result_tables
from ..study.figures import label
from ..study.result_tables import BENCH, KEPT, PARTS, best_of_families, missed, one_machine, read_timings
from ..tasks.kinds import TASKS
from .claims import MIXED, VERDICTS
from .statements import BELIEFS

FIGURES = ROOT / "figures"
BEGIN, END = "<!-- numbers: python -m mee_utils results -->", "<!-- end of numbers -->"
PROFILES = {"small": "", "real": " (real)"}  # name -> how the text marks a task of it
TASK = ["profile", "task"]
FORMATS = read_yaml("study/styles.yaml")["formats"]
SEEN: dict[Path, set[str]] = {}  # tables that have been read for what is being written -> machines shown


def seen(path: Path, machines: Iterable[str] = ()) -> Path:
    """Notes a table that is read, and on which machines what is shown of it was timed."""
    SEEN.setdefault(path, set()).update(machines)
    return path


def read(notebook: str, table: str, **wanted) -> pd.DataFrame:
    """One stored table of all committed profiles that have it, `profile` in front; rows with these values."""
    paths = {name: FIGURES / name / notebook / f"{table}.csv" for name in PROFILES}
    tables = {name: pd.read_csv(seen(path)) for name, path in paths.items() if path.exists()}
    found = pd.concat(tables, names=["profile"]).reset_index("profile").reset_index(drop=True)
    for column, value in wanted.items():
        found = found[found[column] == value]
    return found


def bench(group: str | None = None, file: str = "decoder", machines: bool = False) -> pd.DataFrame:
    """Lines of a table of the benchmark, or of one group; of one machine, or of all `machines`."""
    path = BENCH / f"{file}.csv"
    table = pd.read_csv(path, keep_default_na=file != "decoder")
    table = table[table.group == group] if group else table
    table = table if machines else one_machine(table)
    seen(path, table.processor)
    return table.assign(measured=spread(table, "median" if file == "decoder" else "speed"))


def timed(rows: pd.DataFrame, part: str) -> pd.DataFrame:
    """Settings of several profiles with their timings; `speed` as text is `tokens_per_second`."""
    tables = [read_timings(part, own, profile) for profile, own in rows.groupby("profile", sort=False)]
    seen(BENCH / f"{PARTS[part][0]}.csv", [own.attrs["processor"] for own in tables if len(own)])
    table = pd.concat(tables)
    return table.assign(tokens_per_second=spread(table))


def spread(rows: pd.DataFrame, middle: str = "speed", low="lowest", high="highest", form=".2f") -> list[str]:
    """ "1.26 (1.12 to 1.32)" for every row."""
    return [f"{m:{form}} ({a:{form}} to {b:{form}})" for m, a, b in zip(rows[middle], rows[low], rows[high])]


def wide(rows: pd.DataFrame, keys: list[str], columns: str, values: str) -> pd.DataFrame:
    """A row for each of the `keys` and a column for each of `columns`, both in the order of the rows."""
    table = rows.pivot(index=keys, columns=columns, values=values)[rows[columns].unique()]
    return table.loc[rows.set_index(keys).index.unique()].reset_index()


def markdown(table: pd.DataFrame) -> str:
    """A table as Markdown: numbers by their column's format, names as a reader knows them."""
    shown = table.astype(object).where(table.notna(), "")
    for column in table:
        form = FORMATS.get(column, "")
        shown[column] = [f"{x:{form}}" if form and x != "" else label(str(x)) for x in shown[column]]
    shown.columns = [label(column) for column in table]
    return shown.to_markdown(index=False, disable_numparse=True)


def _best(rows: pd.DataFrame, number: str, ascending: bool, column: str) -> pd.DataFrame:
    """The first row by a number of each family of rules, for every task and value of a column."""
    rows = best_of_families(rows, [*TASK, column], number, ascending)
    return rows.sort_values([*TASK, column], ascending=[False, True, True], kind="stable")


def _answer() -> pd.DataFrame:
    safe = read("08_results", "at_99_percent", verdict=KEPT[0])
    best = _best(timed(safe, "kept"), "ranked", False, "batch")
    columns = ["batch", "family", "rule", "mean_exit_layer", "flops_share", "retained", "tokens_per_second"]
    return best[[*TASK, *columns, "speed", "lowest"]]


def _cheapest() -> pd.DataFrame:
    safe = read("08_results", "at_99_percent", verdict=KEPT[0]).query("flops_share < 1")
    best = best_of_families(safe, TASK, "flops_share")
    best = best.sort_values(TASK, ascending=[False, True], kind="stable")
    best["flops"] = spread(best, "flops_share", "flops_low", "flops_high", ".1%")
    columns = ["family", "rule", "mean_exit_layer", "flops", "retained"]
    return best.assign(rule=best.rule.map(label))[[*TASK, *columns]]


def _guaranteed() -> pd.DataFrame:
    rows = read("08_results", "calibrated", kind="consistency", bound="hoeffding_bentkus", found=True)
    rows = rows[rows.delta.isin([0.1, 0.25]) & (rows.flops_share < 1)].assign(model="calm")
    single = timed(rows, "results").query("batch == 1").sort_values("speed", ascending=False)
    keys = [*TASK, "delta", "rule"]
    rows = single[[*keys, "tokens_per_second"]].merge(rows, on=keys, how="right")  # equals: what was timed
    rows = rows.sort_values("tokens_per_second", ascending=False, kind="stable")
    rows = _best(rows, "flops_share", True, "delta")
    columns = ["delta", "family", "rule", "mean_exit_layer", "flops_share", "tokens_per_second"]
    return rows[[*TASK, *columns]]


def _models() -> pd.DataFrame:
    scores = read("00_models", "scores")
    scores = scores[scores.metric == scores.task.map(lambda task: TASKS[task].metric)]
    baseline = scores[scores.kind == "baseline"].groupby(TASK).corpus_score.max().rename("best_baseline")
    own = scores.rename(columns={"system": "model", "corpus_score": "score"})
    settled = read("01_monotonicity", "figure_1_settled", layer=4)
    settled = settled.rename(columns={"share": "final_after_layer_4"})
    depth = read("01_monotonicity", "settling_depth")
    depth = depth.assign(final_from_layer=spread(depth, "mean_layer", "low", "high"))
    found = depth.merge(own, on=[*TASK, "model"]).merge(settled, on=[*TASK, "model"])
    found = found.merge(baseline.reset_index(), on=TASK)
    columns = ["metric", "score", "best_baseline", "final_after_layer_4", "final_from_layer"]
    return found[[*TASK, "model", *columns]]


def _difficulty() -> pd.DataFrame:
    found = read("02_saturation", "three_selections", model="calm")
    mean = found.pivot(index=[*TASK, "selected_by", "property"], columns="group", values="mean")
    gap = (mean.difficult - mean.easy).unstack("property")[["first_similar", "settled_from"]]
    return gap.sort_index(ascending=[False, True, True]).reset_index()


def _pruning() -> pd.DataFrame:
    table = read("03_pruning", "complete_table", model="calm")
    wanted = table[table.reduction != "full_depth"][[*TASK, "model", "reduction"]]
    single = timed(wanted, "reductions").query("batch == 1")[[*TASK, "reduction", "tokens_per_second"]]
    columns = ["reduction", "score", "retained", "other_token", "mean_exit_layer", "flops_share"]
    return table[[*TASK, *columns]].merge(single, on=[*TASK, "reduction"], how="left")


def _contrast() -> pd.DataFrame:
    ranks = read("04_contrastive_decoding", "ranking", model="calm")
    ranks = ranks.groupby([*TASK, "rule"], sort=False, as_index=False).roc_area.mean()
    equal = read("04_contrastive_decoding", "equal_quality", wanted=0.98)
    token = read("04_contrastive_decoding", "as_decoder", model="calm")
    token = token.assign(as_decoder_keeps=spread(token, "retained", "low", "high", ".0%"))
    found = ranks.merge(equal[[*TASK, "rule", "mean_exit_layer", "flops_share"]], on=[*TASK, "rule"])
    return found.merge(token[[*TASK, "rule", "alpha", "as_decoder_keeps"]], on=[*TASK, "rule"], how="left")


def _survey() -> pd.DataFrame:
    columns = "profile rule source readouts layers trained roc_area equal_flops guaranteed verified_speed"
    return read("06_survey_rules", "rules").replace({"trained": {True: "yes", False: "no"}})[columns.split()]


def _bugs() -> pd.DataFrame:
    found = read("measured", "published_bugs", task="translation")
    keys, values = ["profile", "bug", "model", "rule", "batch"], ["retained", "mean_exit_layer"]
    table = found.pivot(index=keys, columns="version", values=values)
    table.columns = map("_".join, table.columns)
    return table.reset_index().sort_values("profile", ascending=False, kind="stable")


def _equal_loss() -> pd.DataFrame:
    rows = read("08_results", "at_equal_loss").query("wanted in (0.01, 0.05)")
    rows = _best(rows, "flops_share", True, "wanted")
    rows["flops"] = spread(rows, "flops_share", "flops_low", "flops_high", ".1%")
    return rows[[*TASK, "wanted", "family", "rule", "flops"]]


def _ledger() -> pd.DataFrame:
    rows = read("08_results", "ledger")
    some = rows.verdict == MIXED
    rows.loc[some, "verdict"] = "holds on " + rows.held.astype(str) + " of " + rows.tasks.astype(str)
    return wide(rows, ["source", "statement", "published"], "profile", "verdict")


def _beliefs() -> pd.DataFrame:
    ledger, rows = read("08_results", "ledger"), []
    for about in BELIEFS:
        speaks_for, against = (ledger[ledger.claim.isin(about.get(side, []))] for side in ("for", "against"))
        evidence = dict.fromkeys(pd.concat([speaks_for, against]).notebook.str[:2])
        row = {"belief": about["belief"], "evidence": ", ".join(evidence)}
        row["supported"] = speaks_for.held.sum() + against.failed.sum()
        row["contradicted"] = speaks_for.failed.sum() + against.held.sum()
        row["undecided"] = speaks_for.undecided.sum() + against.undecided.sum()
        rows.append(row | {"where it would fail": about["fails"]})
    return pd.DataFrame(rows)


def _full_depth() -> pd.DataFrame:
    found = bench("full depth", machines=True).query("what == 'ours'").replace({"against": {"": "ms a step"}})
    return wide(found, ["shape", "dtype", "batch", "processor"], "against", "measured")


def _lossless() -> pd.DataFrame:
    rows = bench(file="lossless")
    rows["measured"] += rows.rule.isna().map({True: ", no drafts", False: ""})
    return wide(rows, [*TASK, "model"], "batch", "measured")


def _shapes() -> pd.DataFrame:
    best = result_tables.fastest_by_shape()
    seen(BENCH / "shapes.csv", best.processor)
    return wide(best.assign(measured=spread(best)), ["batch", "task", "kind"], "shape", "measured")


EXIT_COLUMNS = ["shape", "batch", "what", "measured", "unit", "against"]
TABLES: dict[str, Callable[[], pd.DataFrame]] = {  # slot of results.md, where its caption is -> table
    "answer": lambda: _answer().drop(columns=["speed", "lowest"]),
    "cheapest": _cheapest,
    "equal_loss": _equal_loss,
    "guaranteed": _guaranteed,
    "models": _models,
    "difficulty": _difficulty,
    "pruning": _pruning,
    "contrast": _contrast,
    "survey": _survey,
    "bugs": _bugs,
    "ledger": _ledger,
    "beliefs": _beliefs,
    "full_depth": _full_depth,
    "exits": lambda: pd.concat([bench("exit cost"), bench("spread exits")])[EXIT_COLUMNS],
    "one_decision": lambda: wide(bench("one decision"), ["what"], "shape", "measured"),
    "bandwidth": lambda: bench("bandwidth")[["shape", "what", "measured", "unit"]],
    "lossless": _lossless,
    "shapes": _shapes,
    "missed": lambda: missed(bench())[["shape", "group", "what", "batch", "measured", "unit", "target"]],
}


def filled(page: str, **slots) -> str:
    """The text of a page of this folder with its slots filled in."""
    return (Path(__file__).parent / f"{page}.md").read_text(encoding="utf-8").format(**slots)


def results() -> str:
    """The text of RESULTS.md: every table with a caption, and the list of figures."""
    figures = []
    for notebook in sorted({path.parent.name for path in FIGURES.glob("*/[0-9]*/*.png")}):
        found = [path for name in PROFILES for path in sorted((FIGURES / name / notebook).glob("*.png"))]
        links = [f"[{p.stem} ({p.parts[-3]})]({p.relative_to(ROOT).as_posix()})" for p in found]
        figures.append(f"- [{notebook}](notebooks/{notebook}.ipynb): " + ", ".join(links))
    tables = {slot: sourced(table) for slot, table in TABLES.items()}
    return filled("results", figures="\n\n".join(figures), **tables)


def sourced(table: Callable[[], pd.DataFrame]) -> str:
    """A table, and links to the stored ones that it comes from, with the machine of what was timed."""
    SEEN.clear()
    text, links = markdown(table()), []
    for path, machines in SEEN.items():
        links.append(f"[{path.relative_to(FIGURES).with_suffix('')}]({path.relative_to(ROOT).as_posix()})")
        if machines:
            known = json.loads((BENCH / result_tables.MACHINES).read_text(encoding="utf-8"))[path.stem]
            told = {name: f"{name}, {a['cores']} cores, torch {a['torch']}" for name, a in known.items()}
            shown = [told[name] for name in known if name in machines]
            links[-1] += f" ({'; '.join(shown)})"
    return f"{text}\n\nFrom {', '.join(links)}."


def each(rows: pd.DataFrame, text: str) -> str:
    """ "translation 0.85; translation (real) 0.76": a text for every row with its task."""
    return "; ".join(f"{label(r.task)}{PROFILES[r.profile]} {text.format(r=r)}" for r in rows.itertuples())


def findings() -> str:
    """The generated part of README.md: one table, and what the tables say in words."""
    best = _answer().query("batch == 1").assign(label=lambda rows: rows.rule.map(label))
    fastest, trained = best.drop_duplicates(TASK), _models().rename(columns={"final_after_layer_4": "at"})
    calm, vanilla = (trained[trained.model == model] for model in ("calm", "vanilla"))
    columns = [*TASK, "metric", "score", "best_baseline", "rule", "mean_exit_layer", "flops_share"]
    real, several = _cheapest().query("profile == 'real'"), best[best.family == "several layers"]
    hard = _difficulty().query("selected_by == 'loss'")
    areas = _contrast().groupby(["profile", "rule"], sort=False).roc_area.mean().unstack()
    areas = areas[["unpruned", "weighted", "jsd"]].itertuples()
    fresh = read("08_results", "fresh_sets")
    rates = fresh.groupby("bound").violated.max()
    wrong = _bugs().query("bug == 'positions for ids' and model == 'calm'").assign(task="translation")
    planned = bench(file="lossless").sort_values("profile", ascending=False, kind="stable")
    verified = result_tables.fastest_by_shape().query("batch == 1 and kind == 'verified'")
    statements = read("08_results", "ledger")
    counts = pd.crosstab(statements.profile, statements.verdict).reindex(columns=VERDICTS, fill_value=0)
    return filled(
        "findings",
        table=markdown(fastest.merge(calm, on=TASK)[[*columns, "tokens_per_second"]]),
        fastest=each(fastest, "{r.speed:.2f} with {r.label}"),
        faster=(fastest.lowest > 1).sum(),
        tasks=len(fastest),
        more=(several.lowest > 1).sum(),
        several=each(several, "{r.speed:.2f} with {r.label}"),
        cheapest=each(real.drop_duplicates(TASK), "{r.flops} with {r.rule}"),
        verified=each(planned.query("model == 'calm' and batch == 1"), "{r.speed:.2f}"),
        large=each(verified.query("shape == 't5-large'"), "{r.speed:.2f}"),
        tested=rates.drop("no_test").max(),
        chance=fresh.limit.max(),
        rates=rates,
        settled=each(calm.merge(vanilla, on=TASK), "{r.at_x:.0%} against {r.at_y:.0%}"),
        later=each(hard, "{r.settled_from:+.1f} and {r.first_similar:+.1f}"),
        one=bench("one decision").query("shape == 't5-large'").set_index("what")["median"],
        changed=each(_pruning().query("reduction == 'fixed'"), "{r.other_token:.2%}"),
        area="; ".join("{} {:.2f}, {:.2f}, {:.2f}".format(*row) for row in areas),
        wrong=each(wrong, "{r.retained_published:.0%} ({r.retained_correct:.0%})"),
        statements=counts.loc["small"].sum(),
        own=statements.query("profile == 'small'").source.str.contains("not asked|not in the papers").sum(),
        **{f"verdicts_{profile}": row for profile, row in counts.iterrows()},
    )


def pages() -> dict[str, str]:
    """The text of RESULTS.md, and of README.md with its generated part renewed."""
    before, rest = (ROOT / "README.md").read_text(encoding="utf-8").split(BEGIN, 1)
    readme = f"{before}{BEGIN}\n{findings()}{END}{rest.split(END, 1)[1]}"
    return {"RESULTS.md": results(), "README.md": readme}


def update() -> None:
    """Writes RESULTS.md and the generated part of README.md."""
    for name, text in pages().items():
        with complete_file(ROOT / name) as path:
            path.write_text(text, encoding="utf-8")
