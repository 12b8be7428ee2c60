"""Means with intervals, and reliability diagrams.

Tokens of one sequence are not independent, so every interval resamples *sequences* (a cluster bootstrap).
With `s_i` the sum of the values of sequence i and `c_i` its number of tokens, a resample that draws it `w_i`
times has the mean `sum_i w_i s_i / sum_i w_i c_i`; the interval goes between percentiles of these means.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..common.errors import CompanionError

RESAMPLES = 1000


class Interval(NamedTuple):
    """A mean with its bootstrap interval; all three have the shape of one value (a scalar or `[layer]`)."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def columns(self, name: str = "mean", prefix: str = "") -> dict[str, np.ndarray]:
        """For a table: the mean under its `name`, the bounds as `low` and `high` behind a `prefix`."""
        return {name: self.mean, f"{prefix}low": self.low, f"{prefix}high": self.high}


NOTHING = Interval(np.nan, np.nan, np.nan)


def percentiles(drawn, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bound of a statistic `[resample, ...]`; resamples that are NaN do not count."""
    tail = 50 * (1 - level)
    low, high = np.nanpercentile(drawn, [tail, 100 - tail], axis=0)
    return low, high


def bootstrap(
    statistic: Callable, units: int, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile interval of a statistic over resampled units (sequences or examples).

    `statistic` maps `weights [resample, unit]`, how often each unit was drawn, to values `[resample, ...]`.
    The same seed and number of units give the same weights, which makes comparisons paired.
    """
    weights = np.random.default_rng(seed).multinomial(units, np.full(units, 1 / units), resamples)
    with np.errstate(divide="ignore", invalid="ignore"):
        return percentiles(statistic(weights), level)


def mean_interval(values: np.ndarray, sequence: np.ndarray, **options) -> Interval:
    """Mean over tokens of `values` `[token]` or `[token, layer]`, with its interval over the `sequence`s."""
    values = np.asarray(values, dtype=np.float64)
    if len(values) == 0:
        raise CompanionError("There are no tokens to average over: the selection is empty.")
    _, index = np.unique(sequence, return_inverse=True)
    counts = np.bincount(index).astype(np.float64)
    sums = np.zeros((len(counts), *values.shape[1:]))
    np.add.at(sums, index, values)
    shape = (-1, *[1] * (values.ndim - 1))
    means = lambda weights: np.tensordot(weights, sums, 1) / (weights @ counts).reshape(shape)
    return Interval(values.mean(axis=0), *bootstrap(means, len(counts), **options))


def by_layer(values: np.ndarray, sequence: np.ndarray, name: str, **labels) -> pd.DataFrame:
    """Mean of `values` `[token, layer]` per layer, in the column `name`, with its interval."""
    layer = np.arange(1, values.shape[1] + 1)
    return pd.DataFrame({**labels, "layer": layer, **mean_interval(values, sequence).columns(name)})


def difference_interval(first, second, **options) -> Interval:
    """Difference of two means, each of `(values [token], sequence [token])`, with a paired interval."""
    number = int(max(first[1].max(), second[1].max())) + 1
    sums = [np.bincount(sequence, weights=values, minlength=number) for values, sequence in (first, second)]
    counts = [np.bincount(sequence, minlength=number) for _, sequence in (first, second)]

    def difference(weights: np.ndarray) -> np.ndarray:
        a, b = ((weights @ s) / (weights @ c) for s, c in zip(sums, counts, strict=True))
        return a - b

    return Interval(difference(np.ones(number)), *bootstrap(difference, number, **options))


def resampled_tokens(sequence: np.ndarray, resamples: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Token rows of bootstrap samples of whole sequences, for statistics that are no ratio of sums."""
    _, index = np.unique(sequence, return_inverse=True)
    rows = np.split(np.argsort(index, kind="stable"), np.cumsum(np.bincount(index))[:-1])
    random = np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.concatenate([rows[i] for i in random.integers(0, len(rows), len(rows))])


class Reliability(NamedTuple):
    """Confidence and accuracy `[bin]`, NaN where a bin is empty; `index` is the bin of each token."""

    edges: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    count: np.ndarray
    error: float
    index: np.ndarray


def reliability(confidence: np.ndarray, correct: np.ndarray, bins: int = 10) -> Reliability:
    """Confidence against accuracy `[token]` in equal bins; `error` as in Guo et al. 2017, eq. 3."""
    edges = np.linspace(0, 1, bins + 1)
    index = np.clip(np.digitize(confidence, edges[1:-1], right=True), 0, bins - 1)
    count = np.bincount(index, minlength=bins)
    with np.errstate(invalid="ignore"):
        mean_confidence = np.bincount(index, weights=confidence, minlength=bins) / count
        accuracy = np.bincount(index, weights=np.asarray(correct, dtype=np.float64), minlength=bins) / count
    gaps = np.nan_to_num(np.abs(mean_confidence - accuracy)) * count
    error = float(gaps.sum() / max(1, count.sum()))
    return Reliability(edges, mean_confidence, accuracy, count, error, index)
