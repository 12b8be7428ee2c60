"""Which rules chapter 05 compares, on which rows, and when one of them is called better."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ....analysis.statistics import percentiles
from ...prose import on_tasks
from ..wording import capitalized

MARGIN = "softmax_margin"
FEW = "few"  # the margin over as many vocabulary entries as HISTORY reads, with a whole last layer too
CONTROLS = ("wide_hidden", "two_hidden", "four_hidden")  # drawn among the ablations alone
LEAST_CHANGE = 0.01  # of a layer: what two digits show


def on_calm(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of CALM's model and of classifiers that learned the last layer's predictions."""
    return rows[(rows.model == "calm") & (rows.target == "consistency")]


def clear_gains(rows: pd.DataFrame, column: str, better: str, worse: str) -> list[str]:
    """The tasks on which one rule has more than another, with a 95 % interval above zero."""
    tasks = []
    for task, part in rows.groupby("task", sort=False):
        draws = part.set_index("rule")[f"{column}_draws"]
        low, _ = percentiles(draws[better] - draws[worse])
        if low > 0:
            tasks.append(task)
    return tasks


def ranks_clearly_better(better: str, worse: str, ahead: Sequence[str], tasks: Sequence[str]) -> str:
    """On which tasks one rule ranks tokens clearly better than another, as a sentence."""
    clearly = "that is, with a 95 % interval of the difference above zero"
    if not ahead:
        return f"On no task does {better} rank tokens clearly better than {worse} ({clearly})."
    return capitalized(
        f"{better} ranks tokens clearly better than {worse} {on_tasks(ahead, tasks)} ({clearly})."
    )
