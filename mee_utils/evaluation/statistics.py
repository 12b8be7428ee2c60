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
