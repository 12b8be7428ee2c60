"""Means with intervals, and reliability diagrams.

Tokens of one sequence are not independent, so every interval resamples *sequences* (a cluster bootstrap).
With `s_i` the sum of the values of sequence i and `c_i` its number of tokens, a resample that draws it
`w_i` times has the mean `sum_i w_i s_i / sum_i w_i c_i`; the interval goes between percentiles of these
means. The `w_i` are Poisson draws that depend on i alone (Hanley and MacGibbon 2006), so that whatever is
measured on the same examples is resampled alike: differences between any two such draws are paired.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from types import SimpleNamespace
from typing import NamedTuple
from warnings import catch_warnings

import numpy as np
import pandas as pd

from ..common.errors import MeeError

RESAMPLES = 2000
DRAWS = "_draws"  # ending of the columns that hold them


class Interval(NamedTuple):
    """A mean with its bootstrap interval, of the shape of one value (a scalar or `[layer]`)."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    draws: np.ndarray  # `[resample, ...]`, the means that the interval comes from

    def columns(self, name: str = "mean", prefix: str = "") -> dict[str, np.ndarray]:
        """For a table: the mean under its `name`, the bounds as `low` and `high` behind a `prefix`, draws."""
        draws = self.draws if self.draws.ndim == 1 else list(self.draws.T)
        return {name: self.mean, f"{prefix}low": self.low, f"{prefix}high": self.high, name + DRAWS: draws}


NOTHING = Interval(np.nan, np.nan, np.nan, np.full(RESAMPLES, np.nan))


def percentiles(drawn, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bound of a statistic `[resample, ...]`; resamples that are NaN do not count."""
    tail = 50 * (1 - level)
    with catch_warnings(action="ignore", category=RuntimeWarning):  # where all are NaN so are the bounds
        low, high = np.nanpercentile(drawn, [tail, 100 - tail], axis=0)
    return low, high


@lru_cache(maxsize=4)
def resampled(units: int, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """How often each unit (sequence or example) is drawn, `[resample, unit]`; unit i always alike."""
    return np.random.default_rng(seed).poisson(1.0, (units, resamples)).T.astype(np.float64)


def interval(statistic: Callable, units: int, level=0.95, resamples=RESAMPLES, seed=0) -> Interval:
    """A `statistic` of `weights [resample, unit]`, with its percentile interval; units are resampled."""
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = statistic(resampled(units, resamples, seed))
        return Interval(statistic(np.ones((1, units)))[0], *percentiles(drawn, level), drawn)


def by_sequence(values: np.ndarray, sequence: np.ndarray, units: int | None = None) -> np.ndarray:
    """Sums of `values` `[token, ...]` over each sequence, of which there are `units`."""
    sums = np.zeros((units or int(sequence.max()) + 1, *values.shape[1:]))
    np.add.at(sums, sequence, values)
    return sums


def mean_interval(values: np.ndarray, sequence: np.ndarray, **options) -> Interval:
    """Mean over tokens of `values` `[token]` or `[token, layer]`, with its interval over the `sequence`s."""
    values, sequence = np.asarray(values, dtype=np.float64), np.asarray(sequence)
    if len(values) == 0:
        raise MeeError("There are no tokens to average over: the selection is empty.")
    sums, counts = by_sequence(values, sequence), by_sequence(np.ones(len(values)), sequence)
    shape = (-1, *[1] * (values.ndim - 1))
    means = lambda weights: np.tensordot(weights, sums, 1) / (weights @ counts).reshape(shape)
    return interval(means, len(counts), **options)._replace(mean=values.mean(axis=0))


def by_layer(values: np.ndarray, sequence: np.ndarray, name: str, **labels) -> pd.DataFrame:
    """Mean of `values` `[token, layer]` per layer, in the column `name`, with its interval."""
    layer = np.arange(1, values.shape[1] + 1)
    return pd.DataFrame({**labels, "layer": layer, **mean_interval(values, sequence).columns(name)})


def difference_interval(first, second, **options) -> Interval:
    """Difference of two means, each of `(values [token], sequence [token])`, with a paired interval."""
    units = int(max(first[1].max(), second[1].max())) + 1
    counted = lambda values: np.stack([np.asarray(values, dtype=np.float64), np.ones(len(values))], 1)
    a, b = (by_sequence(counted(values), sequence, units) for values, sequence in (first, second))
    share = lambda weights, part: np.divide(*np.moveaxis(weights @ part, -1, 0))
    return interval(lambda weights: share(weights, a) - share(weights, b), units, **options)


def resampled_tokens(sequence: np.ndarray, resamples: int) -> Iterator[np.ndarray]:
    """Token rows of bootstrap samples of whole sequences, for statistics that are no ratio of sums."""
    for weights in resampled(int(np.max(sequence)) + 1)[:resamples].astype(int):
        yield np.repeat(np.arange(len(sequence)), weights[sequence])


def reliability(confidence: np.ndarray, correct: np.ndarray, bins: int = 10) -> SimpleNamespace:
    """Confidence against accuracy `[token]` in equal bins; `error` as in Guo et al. 2017, eq. 3.

    Also `edges`; `confidence`, `accuracy` (NaN: an empty bin) and `count`; `index`, the bin of each token.
    """
    edges = np.linspace(0, 1, bins + 1)
    index = np.clip(np.digitize(confidence, edges[1:-1], right=True), 0, bins - 1)
    count = np.bincount(index, minlength=bins)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(index, weights=confidence, minlength=bins) / count
        accuracy = np.bincount(index, weights=np.asarray(correct, dtype=np.float64), minlength=bins) / count
    error = float((np.nan_to_num(np.abs(mean - accuracy)) * count).sum() / max(1, count.sum()))
    binned = dict(confidence=mean, accuracy=accuracy, count=count)
    return SimpleNamespace(edges=edges, error=error, index=index, **binned)
