"""Reliability diagrams: how far confidence is from accuracy."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Reliability:
    """Confidence against accuracy in equal bins of confidence (Guo et al. 2017)."""

    edges: np.ndarray  # `[bin + 1]`
    confidence: np.ndarray  # `[bin]`, the mean; NaN where the bin is empty, as is `accuracy`
    accuracy: np.ndarray  # `[bin]`
    count: np.ndarray  # `[bin]`, tokens
    index: np.ndarray  # `[token]`, the bin of each
    error: float  # the expected calibration error, eq. 3


def reliability(confidence: np.ndarray, correct: np.ndarray, bins: int = 10) -> Reliability:
    """How far `confidence` `[token]` in 0..1 is from how often it is `correct` `[token]`."""
    edges = np.linspace(0, 1, bins + 1)
    index = np.clip(np.digitize(confidence, edges[1:-1], right=True), 0, bins - 1)
    count = np.bincount(index, minlength=bins)
    with np.errstate(invalid="ignore"):  # empty bins
        mean = np.bincount(index, weights=confidence, minlength=bins) / count
        accuracy = np.bincount(index, weights=np.asarray(correct, dtype=np.float64), minlength=bins) / count
    gaps = np.nan_to_num(np.abs(mean - accuracy))
    error = float((gaps * count).sum() / max(1, count.sum()))
    return Reliability(edges, mean, accuracy, count, index, error)
