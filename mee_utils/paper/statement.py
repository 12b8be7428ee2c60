"""One statement of a paper, and the tables that it is compared with.

A statement is a function, decorated with what the paper says. It is given the `results` of a notebook on one
task (tables and parameters by name), looks up estimates, and returns our value in words and a comparison:

    @statement(
        "CALM settled after layer 2",
        source="MEE report, section 3",
        quote="Under CALM, 75 % of the tokens keep their top-1 after layer 2.",
        published="75 %",
    )
    def calm_settled_after_layer_2(results):
        settled = results.stable.value("share", model="calm", layer=2)
        return f"{settled:.1%}", settled >= 0.75

`settled` is an `Estimate`: its comparison weighs the margin against the bootstrap draws. Comparisons are
joined with `&`. A statement that does not hold here is a result, not a refutation at the papers' scale.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..analysis.statistics import Comparison, Estimate, estimates


class NotMeasured(Exception):
    """A table that a statement needs was not measured: the statement cannot be tested."""


class NoRows(Exception):
    """A table lacks the rows that a statement looks up."""


@dataclass(frozen=True)
class Statement:
    """One testable statement of a paper; `claims.judge` judges it."""

    claim: str  # a short name, for tables
    source: str  # paper and place
    quote: str  # the statement, in the paper's words or close to them; in brackets, how it is tested here
    published: str  # the published number
    models: tuple[str, ...]  # that it speaks of; without one of them it cannot be tested
    # where a table lacks the rows: None is an error, "" means that the statement cannot be tested, and
    # another text is our value of a statement that does not hold
    without_rows: str | None
    of_our_own: bool  # whether we added it: no paper states it
    compare: Callable[[Any], tuple[str, Comparison]]


def statement(
    claim: str,
    *,
    source: str,
    quote: str,
    published: str,
    models: Sequence[str] = ("calm",),
    without_rows: str | None = None,
    of_our_own: bool = False,
) -> Callable[[Callable], Statement]:
    """Makes a `Statement` of the function that compares our results with it; the fields are the class's."""

    def complete(compare: Callable[[Any], tuple[str, Comparison]]) -> Statement:
        return Statement(
            claim=claim,
            source=source,
            quote=quote,
            published=published,
            models=tuple(models),
            without_rows=without_rows,
            of_our_own=of_our_own,
            compare=compare,
        )

    return complete


class Rows:
    """The rows of one table of a notebook, for one task (`table` None: it was not measured).

    Rows are chosen by `values`: column=value, column=[several values] (the rows come in this order), or
    column=test, a function of a value. `NoRows` where there are none, `NotMeasured` without a table.
    """

    def __init__(self, name: str, table: pd.DataFrame | None):
        self.name = name
        self.table = table

    def value(self, column: str, **values) -> Estimate:
        """The estimate in a column of the one row with these values.

        Its uncertainty comes from the bootstrap draws in `<column>_draws`, not from columns `low` and `high`:
        without draws the value is taken as exact. A table that was read back from its CSV file has none.
        """
        rows = self._select(values)
        if len(rows) != 1:
            raise NoRows(f'finds {len(rows)} rows with {values} in table "{self.name}" and needs one')
        return estimates(rows, column).item(0)

    def values(self, column: str, **values) -> Estimate:
        """The estimates `[row]` in a column of all rows with these values."""
        return estimates(self._some(values), column)

    def curve(self, column: str, **values) -> Estimate:
        """`values` in the order of layers, `[layer]`."""
        return estimates(self._some(values).sort_values("layer", kind="stable"), column)

    def count(self, **values) -> int:
        """The number of rows with these values."""
        return len(self._some(values))

    def _some(self, values: dict) -> pd.DataFrame:
        rows = self._select(values)
        if rows.empty:
            raise NoRows(f'finds 0 rows with {values} in table "{self.name}" and needs some')
        return rows

    def _select(self, values: dict) -> pd.DataFrame:
        if self.table is None:
            raise NotMeasured(self.name)
        rows = self.table
        for column, wanted in values.items():
            rows = _with_value(rows, column, wanted)
        return rows


def _with_value(rows: pd.DataFrame, column: str, wanted) -> pd.DataFrame:
    """The rows whose column has a wanted value, one of a list of values, or one that passes a test."""
    if callable(wanted):
        return rows[rows[column].map(wanted).astype(bool)]
    if isinstance(wanted, list):
        order = rows[column].map({value: number for number, value in enumerate(wanted)})
        return rows.loc[order.dropna().sort_values(kind="stable").index]
    return rows[rows[column] == wanted]


def largest_drop(curve: Estimate) -> Estimate:
    """By how much a curve `[layer]` falls at most from one layer to the next; 0 if it never falls."""

    def drop(values: np.ndarray, axis: int) -> np.ndarray:
        return np.maximum(0, -np.diff(values, axis=axis).min(axis=axis))

    return curve.over_items(drop)
