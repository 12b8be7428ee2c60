"""Estimates with their uncertainty.

Tokens of one sequence are not independent, so every interval resamples *sequences* (a cluster bootstrap).
With `s_i` the sum of the values of sequence i and `c_i` its number of tokens, a resample that draws it
`w_i` times has the mean `sum_i w_i s_i / sum_i w_i c_i`. These means are the *draws* of an `Estimate`, and
its interval goes between percentiles of them. The `w_i` are Poisson draws that depend on i alone (Hanley and
MacGibbon 2006), so that whatever is measured on the same examples is resampled alike: differences between any
two such draws are paired.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partialmethod
from warnings import catch_warnings

import numpy as np
import pandas as pd
from scipy.special import ndtr  # the normal distribution; scipy.stats takes half a second to import

from ..common.errors import MeeError, check_seed

RESAMPLES = 2000
DRAWS = "_draws"  # ending of the columns of a table that hold the draws of another column


@dataclass(frozen=True)
class Comparison:
    """One or several comparisons of estimates, with a one-sided p-value for either answer."""

    margins: tuple[tuple["Estimate", bool], ...]  # what must be positive, and whether 0 is enough, as for >=

    @property
    def p_holds(self) -> float:
        """Small if all comparisons hold: the largest p-value against "this margin is not above 0"."""
        return max(margin.p_values(or_equal)[0] for margin, or_equal in self.margins)

    @property
    def p_fails(self) -> float:
        """Small if at least one comparison fails: the smallest p-value, corrected for their number."""
        smallest = min(margin.p_values(or_equal)[1] for margin, or_equal in self.margins)
        return min(1.0, len(self.margins) * smallest)

    def __and__(self, other: "Comparison") -> "Comparison":
        return Comparison(self.margins + other.margins)

    def __bool__(self) -> bool:
        raise TypeError("A comparison of estimates is uncertain: read p_holds, and join with & (no chains).")


class Estimate:
    """A value with the bootstrap draws that say how uncertain it is.

    Arithmetic and comparisons treat the draws as they treat the value. Everything that is measured on the
    same examples is resampled alike, so that the difference of two estimates is a paired one:

    >>> calm = Estimate(0.9, np.array([0.88, 0.90, 0.92]))
    >>> vanilla = Estimate(0.5, np.array([0.49, 0.50, 0.51]))
    >>> gain = calm - vanilla
    >>> f"{gain:.2f}, p = {(gain > 0.3).p_holds:.4f}"
    '0.40 (0.39 to 0.41), p = 0.0000'

    Args:
        value: a number, or an array `[item]`.
        draws: `[resample]`, or `[resample, item]`; None for a fact, such as the number of a layer.
    """

    __array_ufunc__ = None  # numpy's numbers leave arithmetic with estimates to this class

    def __init__(self, value, draws: np.ndarray | None = None):
        self.value = value
        self.draws = draws

    @cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The 95 % percentile interval; a fact is its own."""
        return (self.value, self.value) if self.draws is None else percentiles(self.draws)

    @property
    def low(self) -> np.ndarray:
        """The lower bound of the interval."""
        return self.bounds[0]

    @property
    def high(self) -> np.ndarray:
        """The upper bound of the interval."""
        return self.bounds[1]

    def columns(self, name: str = "mean", prefix: str = "") -> dict[str, np.ndarray]:
        """The columns of a table that hold this estimate; `estimates` reads them back.

        The value stands under its `name`, the bounds as `low` and `high` behind a `prefix`, and the draws
        under the name with the ending `DRAWS`, an array in every row.
        """
        draws = self.draws if self.draws.ndim == 1 else list(self.draws.T)
        low, high = self.bounds
        return {name: self.value, f"{prefix}low": low, f"{prefix}high": high, name + DRAWS: draws}

    def item(self, number: int) -> "Estimate":
        """One of several items `[item]`."""
        draws = None if self.draws is None else self.draws[:, number]
        return Estimate(self.value[number], draws)

    def over_items(self, statistic: Callable) -> "Estimate":
        """One value of several: a `statistic` that takes an array and the `axis` that it reduces."""
        with catch_warnings(action="ignore", category=RuntimeWarning):  # of nothing but NaN it is NaN
            value = statistic(self.value, axis=-1)
            draws = None if self.draws is None else statistic(self.draws, axis=-1)
        return Estimate(value, draws)

    # one value of several items; NaN does not count
    max = partialmethod(over_items, np.nanmax)
    min = partialmethod(over_items, np.nanmin)
    mean = partialmethod(over_items, np.nanmean)
    median = partialmethod(over_items, np.nanmedian)
    sum = partialmethod(over_items, np.nansum)

    def __add__(self, other) -> "Estimate":
        return _combine(operator.add, self, other)

    def __radd__(self, other) -> "Estimate":
        return _combine(operator.add, other, self)

    def __sub__(self, other) -> "Estimate":
        return _combine(operator.sub, self, other)

    def __rsub__(self, other) -> "Estimate":
        return _combine(operator.sub, other, self)

    def __mul__(self, other) -> "Estimate":
        return _combine(operator.mul, self, other)

    def __rmul__(self, other) -> "Estimate":
        return _combine(operator.mul, other, self)

    def __truediv__(self, other) -> "Estimate":
        return _combine(operator.truediv, self, other)

    def __rtruediv__(self, other) -> "Estimate":
        return _combine(operator.truediv, other, self)

    def __gt__(self, other) -> Comparison:
        return Comparison(((self - other, False),))

    def __ge__(self, other) -> Comparison:
        return Comparison(((self - other, True),))

    def __lt__(self, other) -> Comparison:
        return Comparison(((other - self, False),))

    def __le__(self, other) -> Comparison:
        return Comparison(((other - self, True),))

    def p_values(self, or_equal: bool = False) -> tuple[float, float]:
        """The one-sided p-values of this estimate as a margin: against "not above 0" and "not below 0".

        The margin is taken as normal, with the standard deviation of its draws. Without draws (a layer's
        number, say) it is a fact, with p-values of 0 and 1. Both are 1, so that nothing is decided, if more
        than a twentieth of the draws is missing, or if all draws are exactly 0 and 0 is not enough.
        """
        draws = np.asarray(self.value if self.draws is None else self.draws, dtype=np.float64)
        if np.isnan(self.value) or np.isnan(draws).mean() > 0.05:
            return 1.0, 1.0
        spread = np.nanstd(draws)
        if spread >= 1e-12:
            distance = self.value / spread
            return float(ndtr(-distance)), float(ndtr(distance))
        tied = self.value == 0 and not or_equal
        if tied and self.draws is not None:
            return 1.0, 1.0
        above = self.value > 0 or (self.value == 0 and or_equal)
        return (0.0, 1.0) if above else (1.0, 0.0)

    def __format__(self, spec: str) -> str:
        """The value with its interval, in a format that numbers know: "85.0% (82.1% to 87.9%)".

        A fact has no interval, several values are listed, and a missing one is "none".
        """
        values = np.atleast_1d(self.value).tolist()
        texts = ["none" if value != value else format(value, spec) for value in values]
        if self.draws is not None:
            bounds = [np.atleast_1d(bound).tolist() for bound in self.bounds]
            texts = [
                text if text == "none" else f"{text} ({low:{spec}} to {high:{spec}})"
                for text, low, high in zip(texts, *bounds, strict=True)
            ]
        return ", ".join(texts)

    def __repr__(self) -> str:
        return f"Estimate({self.value})"


def _combine(operate: Callable, first, second) -> Estimate:
    """An operation on two estimates or numbers, value by value and draw by draw."""
    first = first if isinstance(first, Estimate) else Estimate(first)
    second = second if isinstance(second, Estimate) else Estimate(second)
    value = operate(first.value, second.value)
    if first.draws is None and second.draws is None:
        return Estimate(value)
    return Estimate(value, operate(_draws_of(first, np.ndim(value)), _draws_of(second, np.ndim(value))))


def _draws_of(estimate: Estimate, dimensions: int) -> np.ndarray:
    """Draws with axes for items that the other side may have; a fact is its value in every resample.

    Beside an estimate of several items (1 dimension) the draws `[resample]` of a number become
    `[resample, 1]`.
    """
    if estimate.draws is None:
        return estimate.value
    missing_axes = [1] * (dimensions - np.ndim(estimate.value))
    return estimate.draws.reshape(*estimate.draws.shape, *missing_axes)


NOTHING = Estimate(np.nan, np.full(RESAMPLES, np.nan))  # of an empty selection


def columns_of(by_name: Mapping[str, Estimate]) -> dict[str, np.ndarray]:
    """The columns of several estimates in one row; the bounds of each are `<name>_low` and `<name>_high`."""
    columns = {}
    for name, estimate in by_name.items():
        columns.update(estimate.columns(name, f"{name}_"))
    return columns


def estimates(table: pd.DataFrame, column: str) -> Estimate:
    """A column of a table, `[row]`, with its draws where the table has them (`Estimate.columns`)."""
    values = table[column].to_numpy()
    if column + DRAWS not in table:
        return Estimate(values)
    return Estimate(values, np.stack([np.asarray(draws) for draws in table[column + DRAWS]], axis=1))


def renamed(table: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Some columns of a table under new names (old -> new); where a column has draws, they go with it."""
    draws = {old + DRAWS: new + DRAWS for old, new in names.items() if old + DRAWS in table}
    return table.rename(columns=names | draws)[[*names.values(), *draws.values()]]


def without_draws(table: pd.DataFrame) -> pd.DataFrame:
    """A table without the columns of draws: what is written and shown."""
    return table.drop(columns=[name for name in table if str(name).endswith(DRAWS)])


def percentiles(draws, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """The bounds that hold a share `level` of a statistic's draws `[resample, ...]`; NaN does not count."""
    tail = 50 * (1 - level)
    percentile = np.nanpercentile if np.isnan(draws).any() else np.percentile  # the same, but slower
    with catch_warnings(action="ignore", category=RuntimeWarning):  # where all are NaN so are the bounds
        low, high = percentile(draws, [tail, 100 - tail], axis=0)
    return low, high


@lru_cache(maxsize=8)
def resampled(units: int, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """How often each unit (sequence or example) is drawn, `[resample, unit]`; unit i always alike."""
    return np.random.default_rng(check_seed(seed)).poisson(1.0, (units, resamples)).T.astype(np.float64)


def interval(statistic: Callable, units: int, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """The estimate of a `statistic` of weights `[resample, unit]`; its draws resample the units."""
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = statistic(resampled(units, resamples, seed))
        value = statistic(np.ones((1, units)))[0]
    return Estimate(value, draws)


def by_sequence(values: np.ndarray, sequence: np.ndarray, units: int | None = None) -> np.ndarray:
    """Sums of `values` `[token, ...]` over each sequence, of which there are `units`."""
    sums = np.zeros((units or int(sequence.max()) + 1, *values.shape[1:]))
    np.add.at(sums, sequence, values)
    return sums


def mean_interval(values: np.ndarray, sequence: np.ndarray, **options) -> Estimate:
    """The mean over tokens of `values` `[token]` or `[token, layer]`; resamples draw `sequence`s.

    `options` are those of `interval`. `MeeError` if there are no tokens.
    """
    values = np.asarray(values, dtype=np.float64)
    sequence = np.asarray(sequence)
    if len(values) == 0:
        raise MeeError("There are no tokens to average over: the selection is empty.")
    sums = by_sequence(values, sequence)  # [sequence] or [sequence, layer]
    counts = by_sequence(np.ones(len(values)), sequence)

    def means(weights: np.ndarray) -> np.ndarray:
        tokens = (weights @ counts).reshape(-1, *[1] * (values.ndim - 1))
        return np.tensordot(weights, sums, 1) / tokens

    return Estimate(values.mean(axis=0), interval(means, len(counts), **options).draws)


def mean_of_chosen(values: np.ndarray, chosen: np.ndarray, sequence: np.ndarray) -> Estimate:
    """`mean_interval` of the tokens that are `chosen` `[token]`; `NOTHING` where none are."""
    return mean_interval(values[chosen], sequence[chosen]) if chosen.any() else NOTHING


def by_layer(values: np.ndarray, sequence: np.ndarray, name: str, **labels) -> pd.DataFrame:
    """Mean of `values` `[token, layer]` per layer, in the column `name`, with its interval."""
    layer = np.arange(1, values.shape[1] + 1)
    return pd.DataFrame({**labels, "layer": layer, **mean_interval(values, sequence).columns(name)})


def difference_interval(first, second, **options) -> Estimate:
    """The difference of two means, each of `(values [token], sequence [token])`; draws are paired."""
    units = int(max(first[1].max(), second[1].max())) + 1
    sums = []  # of the values and of ones, over each sequence: `[sequence, 2]`
    for values, sequence in (first, second):
        values = np.asarray(values, dtype=np.float64)
        sums.append(by_sequence(np.stack([values, np.ones(len(values))], axis=1), sequence, units))

    def difference(weights: np.ndarray) -> np.ndarray:
        of_first, of_second = (weights @ each for each in sums)
        return of_first[..., 0] / of_first[..., 1] - of_second[..., 0] / of_second[..., 1]

    return interval(difference, units, **options)


def resampled_tokens(sequence: np.ndarray, resamples: int) -> Iterator[np.ndarray]:
    """Token rows of bootstrap samples of whole sequences, for statistics that are no ratio of sums."""
    for weights in resampled(int(np.max(sequence)) + 1)[:resamples].astype(int):
        yield np.repeat(np.arange(len(sequence)), weights[sequence])
