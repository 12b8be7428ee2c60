"""Numbers in the sentences of the chapters; `companion.prose` has what joins them."""

from collections.abc import Iterable

import pandas as pd

from ..prose import span


def percent_span(values: Iterable[float], form: str = "{:.0%}") -> str:
    """The least and the largest of some shares; those that are NaN do not count.

    >>> percent_span([0.5, 0.25, float("nan")]), percent_span([])
    ('25% to 50%', 'unknown')
    """
    numbers = pd.Series(list(values), dtype=float).dropna()
    return span(numbers, form) if len(numbers) else "unknown"


def last_ranked_layer(ranks: pd.DataFrame) -> int:
    """The last layer at which some tokens are ranked (`roc_area`); of all layers, where none are."""
    ranked = ranks.layer[ranks.roc_area.notna()]
    return int(ranked.max() if len(ranked) else ranks.layer.max())


def with_interval(row, name: str, form: str = ".0%", low: str | None = None, high: str | None = None) -> str:
    """ "90% (88% to 92%)": a value of a row with the bounds that stand beside it."""
    bounds = f"{row[low or name + '_low']:{form}} to {row[high or name + '_high']:{form}}"
    return f"{row[name]:{form}} ({bounds})"
