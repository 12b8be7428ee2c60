"""Numbers and names in the sentences of the chapters."""

from collections.abc import Iterable, Sequence

import pandas as pd

from .. import figures


def listed(texts: Iterable[str]) -> str:
    """
    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    *first, last = list(texts) or ["none"]
    return f"{', '.join(first)} and {last}" if first else last


def span(values: Iterable[float], form: str = ".0%") -> str:
    """The smallest and the largest value, or the one value that all of them round to.

    >>> span([0.5, 0.25]), span([0.111, 0.112])
    ('25% to 50%', '11%')
    """
    known = pd.Series(list(values), dtype=float).dropna()
    if known.empty:
        return "unknown"
    low = f"{known.min():{form}}"
    high = f"{known.max():{form}}"
    return low if low == high else f"{low} to {high}"


def with_interval(row, name: str, form: str = ".0%", low: str | None = None, high: str | None = None) -> str:
    """ "90% (88% to 92%)": a value of a row with the bounds that stand beside it."""
    bounds = f"{row[low or name + '_low']:{form}} to {row[high or name + '_high']:{form}}"
    return f"{row[name]:{form}} ({bounds})"


def by_task(values: pd.Series, form: str = ".0%") -> str:
    """ "question answering 90%, translation 75%": a series whose index names tasks, or other things."""
    return ", ".join(f"{figures.label(name)} {value:{form}}" for name, value in values.items())


def on_tasks(tasks: Sequence[str]) -> str:
    """ "on question answering and translation", or "on no task"."""
    return f"on {listed(figures.label(task) for task in tasks)}" if len(tasks) else "on no task"
