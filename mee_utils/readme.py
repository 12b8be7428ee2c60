"""The numbers in README.md, written by `make readme` from the stored tables and checked by a test: none is typed by hand."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pandas as pd

from .bench import missed, stored_reductions, stored_results
from .evaluation.faults import FAULTS
from .evaluation.verdicts import SEVERAL, fastest
from .figures import label
from .profiles import PACKAGE
from .tasks.scores import PRIMARY

BEGIN, END = "<!-- numbers: make readme -->", "<!-- end of numbers -->"
BENCH_BEGIN, BENCH_END = "<!-- bench: make readme -->", "<!-- end of bench -->"
FIGURES = PACKAGE.parent / "figures"
PROFILES = ("small", "real")


def _read(profile: str, notebook: str, table: str) -> pd.DataFrame:
    return pd.read_csv(FIGURES / profile / notebook / f"{table}.csv")


def results_table(profile: str) -> list[str]:
    """One line a task and model: score, highest floor, share settled after block 4, mean settling block."""
    scores, settled, depth = (
        _read(profile, "00_models", "scores"), _read(profile, "01_monotonicity", "figure_1_settled"),
        _read(profile, "01_monotonicity", "settling_depth"),
    )  # fmt: skip
    lines = [
        "| task | model | score | highest floor | final after block 4 | mean block from which it is final |",
        "|---|---|---|---|---|---|",
    ]
    for row in depth.itertuples():
        metric = PRIMARY[row.task]
        chosen = scores[(scores.task == row.task) & (scores.metric == metric)]
        score = chosen[chosen.system == row.model].corpus_score.iloc[0]
        floor = chosen[chosen.kind == "floor"].corpus_score.max()
        exact = scores[(scores.task == row.task) & (scores.metric == "exact_match") & (scores.system == row.model)].corpus_score
        shown = f"{label(metric)} {score:.1f}" + (f", exact match {exact.iloc[0]:.1f}" if len(exact) else "")
        share = settled[(settled.task == row.task) & (settled.model == row.model) & (settled.layer == 4)].share.iloc[0]
        lines.append(
            f"| {label(row.task)} | {label(row.model)} | {shown} | {floor:.1f} | {share:.1%} "
            f"| {row.mean_block:.2f} ({row.low:.2f} to {row.high:.2f}) |"
        )
    return lines


def claims_table() -> list[str]:
    """One line a claim: on how many tasks of each profile it holds."""
    tables = {}
    for profile in PROFILES:
        found = sorted((FIGURES / profile).glob("[0-9]*/claims.csv"))
        if found:
            tables[profile] = pd.concat([pd.read_csv(path) for path in found], ignore_index=True)
    lines = ["| statement | published | " + " | ".join(tables) + " |", "|---|---|" + "---|" * len(tables)]
    for name, rows in tables[PROFILES[0]].groupby("claim", sort=False):
        verdicts = []
        for table in tables.values():
            found = table[(table.claim == name) & (table.verdict != "cannot be tested")]
            verdicts.append(f"holds on {(found.verdict == 'holds').sum()} of {len(found)} tasks" if len(found) else "cannot be tested")
        lines.append(f"| {rows.statement.iloc[0]} ({rows.source.iloc[0]}) | {rows.published.iloc[0]} | " + " | ".join(verdicts) + " |")
    return lines


def difficulty_lines() -> list[str]:
    """Notebook 02 in a table: how much later difficult tokens become similar and settle, by how they are selected (CALM)."""
    lines = [
        "| task | easy and difficult selected by | difficult become similar | difficult have their final prediction |", "|---|---|---|---|"
    ]
    for profile in PROFILES:
        path = FIGURES / profile / "02_saturation" / "three_selections.csv"
        if path.exists():
            found = pd.read_csv(path)
            found = found[found.model == "calm"].pivot(index=["task", "selected_by"], columns=["property", "group"], values="mean")
            for (task, by), row in found.iterrows():
                gaps = [row[name, "difficult"] - row[name, "easy"] for name in ("first_similar", "settled_from")]
                lines.append(f"| {label(task)} (`{profile}`) | {by.replace('_', ' ')} | " + " | ".join(f"{g:+.2f} blocks" for g in gaps) + " |")
    return lines


RULE_KINDS = {
    "several blocks (MEE's, ours)": SEVERAL,
    "classifier on one block": ("linear", "hidden"),
    "probabilities, all ids": ("softmax_margin", "max_probability"),
    "probabilities, pruned": ("fixed", "decaying"),
    "contrast, pruned": ("weighted_fixed", "jsd_fixed"),
    "hidden similarity": ("hidden_similarity",),
    "a fixed exit block": ("static",),
    "oracle (nobody has it)": ("oracle",),
}


def answer_lines() -> list[str]:
    """Notebook 06's answer in a table: of each kind of rule the fastest timed setting that keeps 99 % of the score on both halves of the examples."""
    lines = ["| task | kind of rule | fastest of its kind | mean exit block | operations | tokens a second, batch 1 | keeps (of all examples) "
             "| in batches: fastest of its kind | tokens a second |", "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for profile in _with_results():
        kept = _read(profile, "06_results", "at_99_percent")
        times = fastest(stored_results(profile, kept))
        tasks = _read(profile, "06_results", "calibrated").task.unique()
        for task, (kind, rules) in product(tasks, RULE_KINDS.items()):
            where = f"| {label(task)} (`{profile}`) | {kind} |"
            found = kept[(kept.task == task) & kept.rule.isin(rules)].sort_values("flops_share", kind="stable")
            single, batched = (times[(times.task == task) & times.rule.isin(rules) & chosen] for chosen in (times.batch == 1, times.batch > 1))
            if found.empty:
                lines.append(f"{where} none keeps it | | | | | | |")
                continue
            row = (single if len(single) else found).iloc[0]
            together = f"{label(batched.iloc[0].rule)} | {_range(batched.iloc[0])}" if len(batched) else "not timed | "
            lines.append(f"{where} {label(row.rule)} | {row.mean_exit_layer:.1f} | {row.flops_share:.0%} | {_range(row) if len(single) else 'not timed'} "
                         f"| {row.retained:.0%} ({row.low:.0%} to {row.high:.0%}) | {together} |")  # fmt: skip
    return lines


def _range(row) -> str:
    return f"{row.speed:.2f} ({row.lowest:.2f} to {row.highest:.2f})"


DEMANDS = (0.1, 0.25)


def guaranteed_lines() -> list[str]:
    """Notebook 06's calibrated thresholds in a table: of each kind of rule the cheapest at the same guaranteed quality, for two demands."""
    head = " | ".join(f"mean loss of at most {delta:g}: cheapest of its kind | operations | tokens a second" for delta in DEMANDS)
    lines = [f"| task | kind of rule | {head} |", "|---|---|" + "---|" * (3 * len(DEMANDS))]
    for profile in _with_results():
        found = _read(profile, "06_results", "calibrated")
        found = found[(found.kind == "textual") & (found.bound == "hoeffding_bentkus") & found.found]
        times = stored_results(profile, found.assign(model="calm"))
        for task, (kind, rules) in product(_read(profile, "06_results", "calibrated").task.unique(), list(RULE_KINDS.items())[:-1]):
            cells = []
            for delta in DEMANDS:
                rows = found[(found.task == task) & found.rule.isin(rules) & (found.delta == delta)].sort_values("flops_share", kind="stable")
                if rows.empty or rows.iloc[0].flops_share >= 1:
                    cells.append(("no threshold passes" if rows.empty else "none that saves operations") + " | | ")
                    continue
                row = rows.iloc[0]
                cells.append(f"{label(row.rule)}, block {row.mean_exit_layer:.1f} | {row.flops_share:.0%} | "
                             + _speed(times, task=task, rule=row.rule, delta=delta, batch=1))  # fmt: skip
            lines.append(f"| {label(task)} (`{profile}`) | {kind} | " + " | ".join(cells) + " |")
    return lines


def fault_lines() -> list[str]:
    """The faults of published code in a table: what each does to the score and to the exit block on translation, beside the published number."""
    profiles = [profile for profile in _with_results() if (FIGURES / profile / "06_results" / "faults.csv").exists()]
    lines = ["| fault | published | " + " | ".join(f"score kept, and mean exit block, with it (without), translation `{p}`" for p in profiles) + " |",
             "|---|---|" + "---|" * len(profiles)]  # fmt: skip
    tables = {profile: _read(profile, "06_results", "faults").query("task == 'translation'") for profile in profiles}
    for fault in FAULTS.values():
        cells = []
        for table in tables.values():
            pairs = []
            for (model, rule, batch), part in table[table.fault == fault.name].groupby(["model", "rule", "batch"], sort=False):
                at = part.set_index("version")
                where = f"{label(rule)}, {label(model)}" + (f", batch {batch}" if fault.name == "depth collapse" else "")
                pairs.append(f"{where}: {at.retained['faulty']:.0%} at {at.mean_exit_layer['faulty']:.1f} ({at.retained['correct']:.0%} at {at.mean_exit_layer['correct']:.1f})")
            cells.append("<br>".join(pairs))
        lines.append(f"| **{fault.name}** ({fault.source}). {fault.what} | {fault.published} | " + " | ".join(cells) + " |")
    return lines


def _with_results() -> list[str]:
    return [profile for profile in PROFILES if (FIGURES / profile / "06_results" / "at_99_percent.csv").exists()]


FORMS = ("unpruned", "fixed", "decaying", "adaptive")


def _speed(times: pd.DataFrame, **wanted) -> str:
    found = times
    for column, value in wanted.items():
        found = found[found[column] == value] if len(found) else found
    return _range(found.iloc[0]) if len(found) else "not timed"


def pruning_lines() -> list[str]:
    """Notebook 03 in a table: the softmax margin by how its read-out is pruned; CALM."""
    lines = ["| task | margin over | ids, last block | score | other tokens than unpruned | operations, of no exit | tokens a second, of no exit "
             "| operations at 98 % of predictions kept |", "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for profile in PROFILES:
        if not (FIGURES / profile / "03_pruning" / "complete_table.csv").exists():
            continue
        complete, equal, kept = (_read(profile, "03_pruning", name) for name in ("complete_table", "at_equal_quality", "kept_by_block"))
        times = stored_reductions(profile, complete)
        last = kept[kept.layer == kept.layer.max()].set_index(["task", "rule"]).ids
        for task, rows in complete[complete.model == "calm"].groupby("task", sort=False):
            full = rows[rows.reduction == "none"].iloc[0]
            for form in FORMS:
                row = rows[rows.reduction == form].iloc[0]
                share = equal[(equal.task == task) & (equal.rule == form) & (equal.wanted == 0.98)].flops_share.iloc[0]
                ids = "all" if form == "unpruned" else f"{last[task, form]:.0f}"
                lines.append(
                    f"| {label(task)} (`{profile}`) | {label(form).removeprefix('margin, ')} | {ids} | {row.score:.1f} (no exit {full.score:.1f}) "
                    f"| {row.other_token:.2%} | {row.flops_share:.0%} | {_speed(times, task=task, model='calm', reduction=form, batch=1)} | {share:.0%} |"
                )
    return lines


def contrast_lines() -> list[str]:
    """Notebook 04 in a table: contrast against the plain margin as confidence, as decoder, and by score against operations; CALM."""
    lines = ["| task | confidence | area under the ROC curve | mean exit block at 98 % | operations at 98 %, of no exit | as decoder keeps "
             "| settings that improve on plain margins, of which worse |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    for profile in PROFILES:
        if not (FIGURES / profile / "04_contrastive_decoding" / "pareto_verdict.csv").exists():
            continue
        ranks, equal, decoder, verdict = (
            _read(profile, "04_contrastive_decoding", name) for name in ("ranking", "equal_quality", "as_decoder", "pareto_verdict")
        )
        for task, rows in ranks[ranks.model == "calm"].groupby("task", sort=False):
            for rule, part in rows.groupby("rule", sort=False):
                at = equal[(equal.task == task) & (equal.rule == rule) & (equal.wanted == 0.98)].iloc[0]
                token = decoder[(decoder.task == task) & (decoder.model == "calm") & (decoder.rule == rule)]
                judged = verdict[(verdict.task == task) & verdict.rule.str.startswith(rule)]
                kept = f"{token.retained.iloc[0]:.1%} ({token.low.iloc[0]:.1%} to {token.high.iloc[0]:.1%})" if len(token) else ""
                counts = f"{judged.improves.sum()} of {len(judged)}, {judged.worse.sum()} worse" if len(judged) else ""
                lines.append(
                    f"| {label(task)} (`{profile}`) | {label(rule)} | {part.roc_area.mean():.3f} | {at.mean_exit_layer:.2f} | {at.flops_share:.0%} "
                    f"| {kept} | {counts} |"
                )
    return lines


def block() -> str:
    """The generated part of README.md."""
    parts = ["**Full quality, and faster than no exit?** (CALM; of each kind of rule the fastest timed setting that keeps 99 % of the full score, the mean score of "
             "single outputs, on both halves of the examples; operations and tokens a second as shares of no exit, medians of three rounds with their range)", "", *answer_lines(), ""]  # fmt: skip
    parts += ["**At the same guaranteed quality** (CALM; the loss is one minus the score of the output with that of all blocks as its reference; 95 % certainty, "
              "each rule by itself; operations and tokens a second as shares of no exit, batch 1)", "", *guaranteed_lines(), ""]
    for profile in PROFILES:
        if all((FIGURES / profile / notebook).exists() for notebook in ("00_models", "01_monotonicity")):
            parts += [f"**Profile `{profile}`**", "", *results_table(profile), ""]
    parts += ["**Is a state that settles early an easy token?** (CALM; + is later, - is earlier)", "", *difficulty_lines(), ""]
    parts += ["**How many ids must a rule on probabilities look at?** (CALM; threshold 0.9 from block 4 on)", "", *pruning_lines(), ""]
    parts += ["**Does contrast with an earlier block help?** (CALM)", "", *contrast_lines(), ""]
    parts += ["**Faults of published code, switched on**", "", *fault_lines(), ""]
    return "\n".join([*parts, "**The ledger: what the papers say, and what these models do**", "", *claims_table()])


def _spread(row, digits: int = 2) -> str:
    return f"{row['median']:.{digits}f} ({row.lowest:.{digits}f} to {row.highest:.{digits}f})"


def full_depth_table(table: pd.DataFrame) -> list[str]:
    """One line a shape, precision and batch: milliseconds a step, and how many times faster than each peer."""
    found = table[table.group == "full depth"]
    peers = list(dict.fromkeys(found[found.against != ""].against))
    lines = ["| shape | precision | batch | ms a step | " + " | ".join(f"times {p}" for p in peers) + " |", "|---|---|---|---|" + "---|" * len(peers)]
    for (shape, dtype, batch), rows in found.groupby(["shape", "dtype", "batch"], sort=False):
        step = rows[(rows.what == "ours") & (rows.against == "")].iloc[0]
        ratios = [rows[rows.against == peer] for peer in peers]
        cells = [_spread(r.iloc[0]) if len(r) else "" for r in ratios]
        lines.append(f"| {shape} | {dtype} | {batch} | {step['median']:.2f} | " + " | ".join(cells) + " |")
    return lines


def exits_table(table: pd.DataFrame) -> list[str]:
    """One line a pattern of forced exits: how many times faster, and the cost as a share of the ideal."""
    lines = ["| shape | batch | forced exits | times faster than | | cost, as a share of the ideal |", "|---|---|---|---|---|---|"]
    for (shape, batch, what), rows in table[table.group.isin(["exit cost", "spread exits"])].groupby(["shape", "batch", "what"], sort=False):
        ideal = rows[rows.unit == "of the ideal"]
        for row in rows[rows.unit == "times faster"].itertuples():
            share = _spread(ideal.iloc[0]) if len(ideal) else ""
            lines.append(f"| {shape} | {batch} | {what} | {row.against} | {_spread(pd.Series(row._asdict()))} | {share} |")
    return lines


def measures_table(table: pd.DataFrame, group: str = "measure cost", head: str = "asked at every block") -> list[str]:
    """One line a measure: what asking it costs, as a share of a block, for each shape."""
    found = table[table.group == group]
    shapes = list(dict.fromkeys(found["shape"]))
    lines = [f"| {head} | " + " | ".join(shapes) + " |", "|---|" + "---|" * len(shapes)]
    for what, rows in found.groupby("what", sort=False):
        cells = [_spread(rows[rows["shape"] == shape].iloc[0]) for shape in shapes]
        lines.append(f"| {what.replace('_', ' ')} | " + " | ".join(cells) + " |")
    return lines


def bandwidth_lines(table: pd.DataFrame) -> list[str]:
    """One sentence a shape: bytes of weights a token, and how near to this machine's memory the decoder comes."""
    lines = []
    for shape, rows in table[table.group == "bandwidth"].groupby("shape", sort=False):
        value = rows.set_index("what")["median"]
        lines.append(
            f"- {shape}: a token needs {value['weights a token']:.0f} MB of weights; the machine reads {value['this machine reads']:.1f} GB/s; "
            f"ours runs at {value['ours']:.0%} of that limit, `generate` at {value['transformers generate']:.0%}."
        )
    return lines


def missed_lines(table: pd.DataFrame) -> list[str]:
    """The lines that miss the target they were given."""
    rows = missed(table)
    if rows.empty:
        return ["Every target was met."]
    return ["Targets missed:", ""] + [
        f"- {r.shape}, {r.dtype}, batch {r.batch}, {r.what.replace('_', ' ')}: {r.median:.2f} {r.unit}{' ' + r.against if r.against else ''} (target {r.target})"
        for r in rows.itertuples()
    ]


def bench_block() -> str:
    """The generated part of README.md about speed, from the table that `make bench` stored."""
    table = pd.read_csv(FIGURES / "bench" / "decoder.csv", keep_default_na=False)
    about = json.loads((FIGURES / "bench" / "machine.json").read_text(encoding="utf-8"))
    machine = f"{about['processor']}, {about['cores']} cores, torch {about['torch']}, transformers {about['transformers']}"
    parts = [
        [f"`make bench` on {machine}; random weights, since cost does not depend on them; medians of ratios within a round, with the "
         "smallest and largest. More than 1 means that ours is faster. The mini shape runs on one thread, which is the fastest for everyone."],
        full_depth_table(table), exits_table(table),
        ["What deciding costs where nobody exits, as a share of a block, one row at a time:"], measures_table(table),
        ["One decision by itself, from the third of a token on (ids are kept by then), as a share of a block:"],
        measures_table(table, "one decision", "one decision"),
        bandwidth_lines(table), missed_lines(table),
    ]  # fmt: skip
    return "\n\n".join("\n".join(part) for part in parts)


def replaced(text: str, begin: str, end: str, block: str) -> str:
    """A text with what stands between two marks replaced."""
    before, rest = text.split(begin, 1)
    return f"{before}{begin}\n{block}\n{end}{rest.split(end, 1)[1]}"


def update(path: Path) -> None:
    """Replaces the generated parts of a README."""
    text = replaced(path.read_text(encoding="utf-8"), BEGIN, END, block())
    path.write_text(replaced(text, BENCH_BEGIN, BENCH_END, bench_block()), encoding="utf-8")
