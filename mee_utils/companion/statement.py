"""One statement of a paper, and the tables that it is compared with.

A statement is a function, decorated with what the paper says. It is given the `results` of a notebook on one
task, looks up estimates, and returns our value in words and a comparison. `results` has the tables and
parameters that the notebook gives to `claims.judge` in one of its last cells, under the names given there:

    @statement(
        "CALM settled after layer 2",
        source="MEE report, section 3",
        quote="Under CALM, 75 % of the tokens keep their top-1 after layer 2.",
        published="75 %",
        judged_by="predictions",
    )
    def calm_settled_after_layer_2(results):
        settled = results.stable.value("share", model="calm", layer=2)
        return f"{settled:.1%}", settled >= 0.75

`settled` is an `Estimate`: its comparison weighs the margin against the bootstrap draws. Comparisons are
joined with `&`, but a statement that joins two things is two statements. Each is judged by one quantity, of
which it reads at least one column (`QUANTITIES`): what is said of time is judged by the clock and by nothing
else. A statement that does not hold here is a result, not a refutation at the papers' scale.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
import pandas as pd

from ..analysis.statistics import Comparison, Estimate, estimates, without_draws
from ..common.errors import MeeError, check_choice, nearest
from .figures import label

NORMAL_BOUND = 1.96  # standard deviations from the mean to the end of a 95 % interval
QUANTITIES = {  # what a statement may be judged by -> the columns that measure it
    "time": ("speed", "samples_speed", "low", "high"),
    "FLOPs": ("flops_share", "equal_flops"),
    "score": ("retained",),
    "score and FLOPs": ("improves",),
    "exit layer": ("mean_exit_layer", "minimum_layer", "same_exit"),
    "predictions": (
        *("share", "same_token", "other_token", "precision", "recall"),
        *("wrong", "overthought", "accuracy"),
    ),
    "confidence": ("confidence", "entropy", "unsaturated"),
    "states and tokens": ("mean", "spearman"),
    "ranking": ("roc_area",),
    "loss": ("loss", "regret", "p_value"),
}
TIMED = ("times", "answer", "published_times")  # the tables of the clock: make bench


class Untestable(Exception):
    """Why a statement cannot be tested here: nothing was measured, or the model cannot speak to it."""


class NoRows(Exception):
    """A table lacks the rows that a statement looks up."""


@dataclass(frozen=True)
class Statement:
    """One testable statement of a paper; `claims.judge` judges it."""

    claim: str  # a short name, for tables
    source: str  # paper and place
    quote: str  # the statement, in the paper's words or close to them; in brackets, how it is tested here
    published: str  # the published number
    judged_by: str  # one of `QUANTITIES`
    compare: Callable[[Any], tuple[str, Comparison]]
    models: tuple[str, ...]  # that it speaks of; without one of them it cannot be tested
    without_rows: str | None = None  # our value where a table lacks the rows: it then does not hold
    untested: str | None = None  # why it cannot be tested where a table lacks the rows; both None: an error
    of_our_own: bool = False  # whether we added it: no paper states it


def statement(claim: str, *, judged_by: str, models: Sequence[str] = ("calm",), **fields: Any) -> Callable:
    """Makes a `Statement` of the function that compares our results with it; the fields are the class's."""
    check_choice("judged_by", judged_by, QUANTITIES)
    if fields.keys() >= {"without_rows", "untested"}:
        raise MeeError(f'The claim "{claim}" has without_rows and untested: it fails, or it is not tested.')

    def complete(compare: Callable[[Any], tuple[str, Comparison]]) -> Statement:
        return Statement(claim, judged_by=judged_by, models=tuple(models), compare=compare, **fields)

    return complete


STARTS = {  # where exits begin, in a claim -> the parameter that is this layer, and why there
    "from a sixth of the depth": ("sixth", "as published"),
    "from layer 4": ("min_layer", "as in MEE's text"),
}


def statement_from_each_start(
    claim: str, *, quote: str, **fields: Any
) -> Callable[[Callable], tuple[Statement, ...]]:
    """Makes a `Statement` for each of `STARTS` of a function `compare(results, layer)`.

    MEE's text lets tokens exit from layer 4 on, of 24, which is a sixth of the depth: in a decoder of another
    depth these are two layers, and what holds from one on may fail from the other on.

    Args:
        claim: its short name; where exits begin is added.
        quote: the statement; "{start}" stands for where exits begin.
        fields: the others of `statement`.
    """

    def complete(compare: Callable[[Any, int], tuple[str, Comparison]]) -> tuple[Statement, ...]:
        statements = []
        for start, (parameter, reason) in STARTS.items():

            @statement(f"{claim}, {start}", quote=quote.format(start=f"{start} on, {reason}"), **fields)
            @wraps(compare)
            def compare_there(results, parameter=parameter):
                return compare(results, getattr(results, parameter))

            statements.append(compare_there)
        return tuple(statements)

    return complete


class Results:
    """What a statement is given: the tables of a notebook on one task, and parameters, as attributes."""

    def __init__(self, tables: "Mapping[str, Rows]", parameters: Mapping[str, float]):
        vars(self).update(tables)
        vars(self).update(parameters)

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)  # Python asks objects for such names
        raise MeeError(
            f"A statement looks at results.{name}, which is not there: {nearest(name, vars(self))}"
        )


class Rows:
    """The rows of one table of a notebook, for one task (`table` None: it was not measured).

    Rows are chosen by `values`: column=value, column=[several values] (the rows come in this order), or
    column=test, a function of a value. `NoRows` where there are none, `Untestable` without a table.
    `looked_up` remembers the columns.
    """

    def __init__(self, name: str, table: pd.DataFrame | None):
        self.name = name
        self.table = table
        self.looked_up: set[str] = set()

    def value(self, column: str, **values) -> Estimate:
        """The estimate in a column of the one row with these values.

        Its uncertainty comes from the bootstrap draws in `<column>_draws`, not from columns `low` and `high`:
        without draws the value is taken as exact. A table that was read back from its CSV file has none.
        A value that is missing (NaN) was not measured, and what rests on it is `Untestable`.
        """
        rows = self._select(values)
        if len(rows) != 1:
            raise NoRows(f'finds {len(rows)} rows with {values} in table "{self.name}" and needs one')
        value = self._estimates(rows, column).item(0)
        if np.isnan(value.value):
            raise Untestable(f"none measured: {', '.join(map(label, values.values()))}")
        return value

    def values(self, column: str, **values) -> Estimate:
        """The estimates `[row]` in a column of all rows with these values."""
        return self._estimates(self._some(values), column)

    def curve(self, column: str, **values) -> Estimate:
        """`values` in the order of layers, `[layer]`."""
        return self._estimates(self._some(values).sort_values("layer", kind="stable"), column)

    def has(self, **values) -> bool:
        """Whether any row has these values."""
        return not self._select(values).empty

    def count(self, **values) -> int:
        """The number of rows with these values."""
        return len(self._some(values))

    def _estimates(self, rows: pd.DataFrame, column: str) -> Estimate:
        self._check_column(column)
        self.looked_up.add(column)
        return estimates(rows, column)

    def _some(self, values: dict) -> pd.DataFrame:
        rows = self._select(values)
        if rows.empty:
            raise NoRows(f'finds 0 rows with {values} in table "{self.name}" and needs some')
        return rows

    def _select(self, values: dict) -> pd.DataFrame:
        """The rows whose columns have a wanted value, one of a list of values, or one that passes a test."""
        if self.table is None:
            raise Untestable("not timed" if self.name in TIMED else "not measured")
        rows = self.table
        for column, wanted in values.items():
            self._check_column(column)
            if callable(wanted):
                rows = rows[rows[column].map(wanted).astype(bool)]
            elif isinstance(wanted, list):
                order = rows[column].map({value: number for number, value in enumerate(wanted)})
                order = order.reset_index(
                    drop=True
                ).dropna()  # positions: labels of a joined table may repeat
                rows = rows.iloc[order.sort_values(kind="stable").index]
            else:
                rows = rows[rows[column] == wanted]
        return rows

    def _check_column(self, column: str) -> None:
        """Refuses a column that the table does not have."""
        if column not in self.table:
            columns = without_draws(self.table).columns
            raise MeeError(f'The table "{self.name}" has no column "{column}": {nearest(column, columns)}')


@dataclass(frozen=True)
class Timing:
    """Timed settings `[setting]`, full depth being 1, with 95 % intervals over batches of tokens a second."""

    tokens: np.ndarray  # a second
    low: np.ndarray
    high: np.ndarray
    samples: np.ndarray  # a second: the same, but for longer or shorter outputs

    @classmethod
    def of(cls, table: Rows, **values) -> "Timing":
        """The timings in the rows of a table with these values."""
        columns = ("speed", "low", "high", "samples_speed")
        return cls(*[table.values(column, **values).value for column in columns])

    def at(self, number: int) -> "Timing":
        """One of the settings."""
        one = slice(number, number + 1)
        return Timing(self.tokens[one], self.low[one], self.high[one], self.samples[one])

    @property
    def slowest(self) -> "Timing":
        """The setting with the fewest tokens a second."""
        return self.at(self.tokens.argmin())

    @property
    def middle(self) -> "Timing":
        """The setting with the median of tokens a second."""
        return self.at(np.argsort(self.tokens)[len(self.tokens) // 2])

    def gain(self, over: "Timing | None" = None) -> Estimate:
        """By how much the first setting is faster than another, or (None) than full depth.

        Intervals are taken as normal ones, and those of two settings as independent, though both have decoded
        the same batches.
        """
        spreads = [(each.high[0] - each.low[0]) / (2 * NORMAL_BOUND) for each in (self, over) if each]
        gain = self.tokens[0] - (over.tokens[0] if over else 1.0)
        return Estimate(gain, gain + np.hypot.reduce(spreads) * np.array([-1.0, 1.0]))

    def __str__(self) -> str:
        tokens = zip(self.tokens, self.low, self.high, strict=True)
        shown = ", ".join(f"{middle:.2f} ({low:.2f} to {high:.2f})" for middle, low, high in tokens)
        return f"{shown} tokens a second, {', '.join(f'{x:.2f}' for x in self.samples)} samples a second"


def largest_drop(curve: Estimate) -> Estimate:
    """By how much a curve `[layer]` falls at most from one layer to the next; 0 if it never falls."""

    def drop(values: np.ndarray, axis: int) -> np.ndarray:
        return np.maximum(0, -np.diff(values, axis=axis).min(axis=axis)) + 0.0  # never -0.0

    return curve.over_items(drop)
