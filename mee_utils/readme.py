"""The numbers in README.md, written by `make readme` from the stored tables and checked by a test: none is typed by hand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from .figures import label
from .profiles import PACKAGE
from .tasks.scores import PRIMARY

BEGIN, END = "<!-- numbers: make readme -->", "<!-- end of numbers -->"
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
    tables = {p: _read(p, "01_monotonicity", "claims") for p in PROFILES if (FIGURES / p / "01_monotonicity").exists()}
    lines = ["| statement | published | " + " | ".join(tables) + " |", "|---|---|" + "---|" * len(tables)]
    first = next(iter(tables.values()))
    for name, rows in first.groupby("claim", sort=False):
        verdicts = []
        for table in tables.values():
            found = table[table.claim == name]
            verdicts.append(f"holds on {(found.verdict == 'holds').sum()} of {len(found)} tasks")
        lines.append(f"| {rows.statement.iloc[0]} ({rows.source.iloc[0]}) | {rows.published.iloc[0]} | " + " | ".join(verdicts) + " |")
    return lines


def block() -> str:
    """The generated part of README.md."""
    parts = []
    for profile in PROFILES:
        if all((FIGURES / profile / notebook).exists() for notebook in ("00_models", "01_monotonicity")):
            parts += [f"**Profile `{profile}`**", "", *results_table(profile), ""]
    return "\n".join([*parts, "**What the papers say, and what these models do**", "", *claims_table()])


def update(path: Path) -> None:
    """Replaces the generated part of a README."""
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    path.write_text(f"{before}{BEGIN}\n{block()}\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")
