"""Intervals and calibration.

Tokens of one sequence are not independent, so every interval here resamples *sequences* (a cluster bootstrap): a mean over
tokens is a ratio of two sums over sequences, and both are resampled together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import CompanionError

RESAMPLES = 1000


@dataclass(frozen=True)
class Interval:
    """A mean with its bootstrap interval; all three have the shape of one value (a scalar or `[layer]`)."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def mean_interval(
    values: np.ndarray, sequence: np.ndarray, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Mean over tokens with a percentile interval over sequences.

    Args:
        values: `[token]` or `[token, layer]`.
        sequence: `[token]`, the sequence each token belongs to.
        level: coverage of the interval, between 0 and 1.
        resamples: bootstrap samples.
        seed: of the resampling.
    """
    values = np.asarray(values, dtype=np.float64)
    if len(values) == 0:
        raise CompanionError("There are no tokens to average over: the selection is empty.")
    _, index = np.unique(sequence, return_inverse=True)
    counts = np.bincount(index).astype(np.float64)
    sums = np.zeros((len(counts), *values.shape[1:]))
    np.add.at(sums, index, values)
    weights = np.random.default_rng(seed).multinomial(len(counts), np.full(len(counts), 1 / len(counts)), resamples)
    means = np.tensordot(weights, sums, 1) / (weights @ counts).reshape(-1, *[1] * (values.ndim - 1))
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(means, [tail, 100 - tail], axis=0)
    return Interval(values.mean(axis=0), low, high)


def resampled_tokens(sequence: np.ndarray, resamples: int, seed: int = 0):
    """Yields `resamples` bootstrap samples as arrays of token rows; whole sequences are drawn with replacement."""
    _, index = np.unique(sequence, return_inverse=True)
    order = np.argsort(index, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(index))])
    random = np.random.default_rng(seed)
    for _ in range(resamples):
        drawn = random.integers(0, len(starts) - 1, len(starts) - 1)
        yield np.concatenate([order[starts[i] : starts[i + 1]] for i in drawn])


def difference_interval(first, second, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Difference of two means over tokens, `first - second`, with a paired interval over sequences.

    Args:
        first: `(values [token], sequence [token])` of one model; both models have outputs for the same sequences.
        second: the same of another model.
        resamples: bootstrap samples.
        seed: of the resampling.
    """
    number = int(max(first[1].max(), second[1].max())) + 1
    sums = [np.bincount(sequence, weights=values, minlength=number) for values, sequence in (first, second)]
    counts = [np.bincount(sequence, minlength=number) for _, sequence in (first, second)]
    weights = np.random.default_rng(seed).multinomial(number, np.full(number, 1 / number), resamples)
    a, b = ((weights @ s) / (weights @ c) for s, c in zip(sums, counts, strict=True))
    low, high = np.percentile(a - b, [2.5, 97.5])
    return Interval(sums[0].sum() / counts[0].sum() - sums[1].sum() / counts[1].sum(), low, high)


@dataclass(frozen=True)
class Reliability:
    """Confidence against accuracy in bins: each array is `[bin]`, empty bins are NaN; `error` is the expected one."""

    edges: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    count: np.ndarray
    error: float


def reliability(confidence: np.ndarray, correct: np.ndarray, bins: int = 10) -> Reliability:
    """Confidence against accuracy, and the expected calibration error (Guo et al. 2017, eq. 3).

    Args:
        confidence: `[token]`, in 0..1.
        correct: `[token]`, whether the prediction was right.
        bins: number of bins of equal width.
    """
    edges = np.linspace(0, 1, bins + 1)
    index = np.clip(np.digitize(confidence, edges[1:-1], right=True), 0, bins - 1)
    count = np.bincount(index, minlength=bins)
    with np.errstate(invalid="ignore"):
        mean_confidence = np.bincount(index, weights=confidence, minlength=bins) / count
        accuracy = np.bincount(index, weights=np.asarray(correct, dtype=np.float64), minlength=bins) / count
    gaps = np.nan_to_num(np.abs(mean_confidence - accuracy)) * count
    return Reliability(edges, mean_confidence, accuracy, count, float(gaps.sum() / max(1, count.sum())))
