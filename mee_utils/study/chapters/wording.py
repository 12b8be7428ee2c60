"""Numbers in the sentences of the chapters; `study.prose` has what joins them."""

from collections.abc import Iterable

import pandas as pd

from .. import figures
from ..prose import listed, on_tasks, span


def percent_span(values: Iterable[float], form: str = "{:.0%}") -> str:
    """The least and the largest of some shares; those that are NaN do not count.

    >>> percent_span([0.5, 0.25, float("nan")]), percent_span([])
    ('25% to 50%', 'unknown')
    """
    numbers = pd.Series(list(values), dtype=float).dropna()
    return span(numbers, form) if len(numbers) else "unknown"


def with_interval(row, name: str, form: str = ".0%", low: str | None = None, high: str | None = None) -> str:
    """ "90% (88% to 92%)": a value of a row with the bounds that stand beside it."""
    bounds = f"{row[low or name + '_low']:{form}} to {row[high or name + '_high']:{form}}"
    return f"{row[name]:{form}} ({bounds})"


def winners(best: pd.DataFrame) -> str:
    """Rows with a task and its rule in words: "margin on summarization and vote on translation".

    Semicolons part three or more, since names of rules have commas.
    """
    parts = []
    for rule, rows in best.groupby("rule", sort=False):
        name = "a fixed layer" if rule == "static" else figures.label(rule)
        parts.append(f"{name} {on_tasks(rows.task, list(best.task))}")
    return "; ".join(parts) if len(parts) > 2 else listed(parts)
