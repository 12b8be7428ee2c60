"""What papers published: bugs of their code, switched on, and the ledger of their statements."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ... import figures
from ...prose import listed

IN_PLURAL = {  # verdicts of the ledger, said of several statements
    "holds": "hold",
    "holds on some tasks": "hold on some tasks",
    "holds on some tasks, fails on others": "hold on some tasks and fail on others",
    "does not hold on some tasks": "do not hold on some tasks",
    "does not hold": "do not hold",
    "undecided": "are undecided",
}
VERSIONS = {
    "correct": figures.Style("correct", figures.GREY, "o"),
    "published": figures.Style("with the published bug", "#d55e00", "D"),
}


def named_bugs(bugs: pd.DataFrame) -> pd.DataFrame:
    """Every measured case with a `name`: bug, rule, model and, where there are several, the batch."""
    several_batches = bugs.groupby(["bug", "rule"]).batch.transform("nunique") > 1
    batches = bugs.batch.map(", batch {}".format).where(several_batches, "")
    rules = bugs.rule.map(figures.label)
    models = bugs.model.map(figures.label)
    return bugs.assign(several=several_batches, name=bugs.bug + ": " + rules + ", " + models + batches)


def bugs_figure(bugs: pd.DataFrame, tasks: Sequence[str], note: str = ""):
    """Score kept with each published bug and without, the bug that costs most on top: two points a case."""
    kept = bugs.pivot_table(index="name", columns="version", values="retained", sort=False)
    order = list((kept.correct - kept.published).sort_values(kind="stable").index)
    return figures.facets(
        bugs.assign(height=bugs.name.map(order.index)),
        _draw_bugs,
        values=tasks,
        names=order,
        xlabel="score kept\n(1 = full depth)",
        width=3.4,
        height=4.8,
        message=bugs_message(bugs),
        note=note,
    )


def _draw_bugs(axis, rows: pd.DataFrame, names: Sequence[str]) -> None:
    apart = rows.version.map({"correct": 0.17, "published": -0.17})
    band = figures.BAND if "low" in rows else None
    moved = rows.assign(height=rows.height + apart)
    figures.dots(axis, moved, "retained", "height", by="version", xband=band, styles=VERSIONS, markersize=5)
    axis.set_yticks(range(len(names)), [_bug_in_words(name) for name in names], fontsize=9)


def _bug_in_words(name: str) -> str:
    """A case of `named_bugs`, its bug as readers know it."""
    bug, case = name.split(": ", 1)
    return f"{figures.label(bug)}: {case}"


def _losses(bugs: pd.DataFrame) -> pd.Series:
    """By bug: the largest share of the full score that switching it on costs in any case."""
    keys = ["bug", "task", "model", "rule", "batch"]
    kept = bugs.pivot_table(index=keys, columns="version", values="retained", sort=False)
    return (kept.correct - kept.published).groupby("bug", sort=False).max()


def bugs_message(bugs: pd.DataFrame) -> str:
    """How many bugs cost a tenth of the score or more in some case."""
    losses = _losses(bugs)
    serious = int((losses >= 0.1).sum())
    return (
        f"{serious} of {len(losses)} published bugs cost at least 10% of the score in some case, everything "
        "else being equal"
    )


def bugs_conclusion(bugs: pd.DataFrame) -> str:
    """What the worst bugs cost at most."""
    losses = _losses(bugs).sort_values(ascending=False, kind="stable")
    texts = [f"{min(loss, 1):.0%} ({figures.label(bug)})" for bug, loss in losses.head(2).items()]
    return (
        f"The worst bugs cost up to {listed(texts)} of the full score. The table says which published number "
        "each may explain."
    )


def ledger_message(ledger: pd.DataFrame) -> str:
    """How many statements have each verdict."""
    parts = []
    for verdict, count in ledger.verdict.value_counts().items():
        said = IN_PLURAL.get(verdict, verdict) if count > 1 else verdict
        parts.append(f"{count} {said}")
    return f"Of {len(ledger)} statements, {listed(parts)}"


def ledger_conclusion(ledger: pd.DataFrame) -> str:
    """How many statements have each verdict, and how far that carries."""
    return (
        f"{ledger_message(ledger)}. What fails on models of this size may still hold at "
        "the scale of the papers."
    )
