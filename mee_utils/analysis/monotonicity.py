"""Does a prediction, once it is right, stay? Does confidence in it grow with every layer? (MEE, section 3)"""

from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd

from ..common.errors import MeeError, check_seed
from .reliability import reliability
from .statistics import by_layer, mean_interval, mean_of_chosen, percentiles, resampled_tokens

RELIABILITY_RESAMPLES = 100


def settled_from(trace) -> np.ndarray:
    """`[token]`, the first layer from which on the top-1 is the last layer's: the oracle's exit.

    If the last of four layers predicts 9 and the layers predict 9, 7, 9, 9, a token settles at layer 3.
    """
    differs = trace.top1_id != trace.final_id[:, None]  # [token, layer]
    layers_after_last_change = np.argmax(differs[:, ::-1], axis=1)
    return np.where(differs.any(axis=1), trace.layers - layers_after_last_change, 0) + 1


def stable(trace) -> np.ndarray:
    """`[token, layer]`, whether the top-1 never changes after that layer (MEE, Figure 1)."""
    return settled_from(trace)[:, None] <= np.arange(1, trace.layers + 1)


def strictly_monotonic(values: np.ndarray, after: int = 0) -> np.ndarray:
    """`[token]`, whether `values` `[token, layer]` rise strictly from layer `after + 1` on (MEE, Table 1)."""
    return (np.diff(values[:, after:], axis=1) > 0).all(axis=1)


def never_falling(values: np.ndarray, after: int = 0, tolerance: float = 0.01) -> np.ndarray:
    """`[token]`, whether `values` never fall by more than `tolerance`: near 1, strict rises mean nothing."""
    return (np.diff(values[:, after:].astype(np.float64), axis=1) >= -tolerance).all(axis=1)


def curve(values: np.ndarray, trace, name: str, **labels) -> pd.DataFrame:
    """`by_layer` of `values` `[token, layer]`, and their standard deviation over tokens."""
    spread = np.asarray(values, dtype=np.float64).std(axis=0)
    return by_layer(values, trace.sequence, name, **labels).assign(standard_deviation=spread)


def settled_by_layer(trace, **labels) -> pd.DataFrame:
    """Per layer: the share of tokens whose top-1 prediction is final, with an interval over sequences."""
    return curve(stable(trace), trace, "share", **labels)


def confidence_by_layer(trace, **labels) -> pd.DataFrame:
    """Per layer: the mean probability of the final prediction, and one standard deviation around it."""
    table = curve(trace.final_probability, trace, "confidence", **labels)
    return table.assign(
        one_below=table.confidence - table.standard_deviation,
        one_above=table.confidence + table.standard_deviation,
    )


def monotonic_shares(trace, **labels) -> pd.DataFrame:
    """Share of tokens whose confidence in the final prediction grows, from layer 1 on and after a third of L.

    `start` is the mean confidence at the first of these layers: one that starts near 0 has more room to rise.
    """
    rows = []
    for kind, test in (("strictly rising", strictly_monotonic), ("never falling", never_falling)):
        for after in (0, trace.layers // 3):
            share = mean_interval(test(trace.final_probability, after), trace.sequence)
            start = float(trace.final_probability[:, after].mean(dtype=np.float64))
            row = {**labels, "kind": kind, "after_layer": after, "start": start}
            rows.append(row | share.columns("share"))
    return pd.DataFrame(rows)


def reliability_bins(trace, correct, layers: Iterable[int], bins: int = 10, **labels) -> pd.DataFrame:
    """A reliability diagram for each of some layers: accuracy by top-1 probability.

    Args:
        trace: of some outputs.
        correct: `[token, layer]`, whether the layer's top-1 is right, by whatever truth is meant.
        layers: of the diagrams, from 1.
        bins: of equal width.
        labels: columns that are the same in all rows.

    Returns:
        One row a layer and bin: mean `confidence`, `accuracy` with its interval, number of `tokens`, and the
        layer's `expected_calibration_error`.
    """
    tables = []
    for layer in layers:
        right = correct[:, layer - 1]
        binned = reliability(trace.top1_probability[:, layer - 1], right, bins)
        accuracies = [mean_of_chosen(right, binned.index == number, trace.sequence) for number in range(bins)]
        columns = {
            **labels,
            "layer": layer,
            "bin_low": binned.edges[:-1],
            "bin_high": binned.edges[1:],
            "confidence": binned.confidence,
            "accuracy": binned.accuracy,
            "tokens": binned.count,
            "expected_calibration_error": binned.error,
            "low": [accuracy.low for accuracy in accuracies],
            "high": [accuracy.high for accuracy in accuracies],
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def layer_reliability(trace, correct: np.ndarray, bins: int = 10, **labels) -> pd.DataFrame:
    """Per layer: mean top-1 probability, mean of `correct` and expected calibration error, with intervals."""
    confidence = trace.top1_probability.astype(np.float64)

    def errors(rows) -> list[float]:
        """Of every layer, over some tokens."""
        return [
            reliability(confidence[rows, layer], correct[rows, layer], bins).error
            for layer in range(trace.layers)
        ]

    draws = [errors(rows) for rows in resampled_tokens(trace.sequence, RELIABILITY_RESAMPLES)]
    low, high = percentiles(draws)
    return pd.DataFrame(
        {
            **labels,
            "layer": np.arange(1, trace.layers + 1),
            **mean_interval(confidence, trace.sequence).columns("confidence", "confidence_"),
            **mean_interval(correct, trace.sequence).columns("accuracy", "accuracy_"),
            "expected_calibration_error": errors(slice(None)),
            "expected_calibration_error_low": low,
            "expected_calibration_error_high": high,
        }
    )


def predictions(trace, token: int, decode: Callable[[int], str], top: int = 3, **labels) -> pd.DataFrame:
    """The `top` tokens of every layer with their probabilities, for one row of the trace (MEE, Figure 3)."""
    ids = trace.top_ids[token, :, :top]  # [layer, rank]
    probabilities = trace.top_probabilities[token, :, :top]
    layer, rank = np.indices(ids.shape).reshape(2, -1) + 1
    return pd.DataFrame(
        {
            **labels,
            "layer": layer,
            "rank": rank,
            "token": [decode(int(token_id)) for token_id in ids.ravel()],
            "probability": probabilities.ravel().astype(np.float64),
        }
    )


def percentile_tokens(trace, shares: tuple[float, ...], seed: int = 0) -> dict[int, int]:
    """Tokens at percentiles of the settling layer: percent -> row. Ties by seed, without last tokens."""
    is_last = np.append(trace.sequence[1:] != trace.sequence[:-1], True)
    if is_last.all():
        raise MeeError("All outputs have one token, and last tokens are not shown: trace longer outputs.")
    rows = np.random.default_rng(check_seed(seed)).permutation(np.flatnonzero(~is_last))
    ordered = rows[np.argsort(settled_from(trace)[rows], kind="stable")]
    ranks = {round(100 * share): int(share * (len(ordered) - 1)) for share in shares}
    return {percent: int(ordered[rank]) for percent, rank in ranks.items()}


def token_text(tokenizer) -> Callable[[int], str]:
    """`id -> text` for figures: a word boundary is a low line; ids beyond the vocabulary are numbers."""

    def text(token_id: int) -> str:
        token = tokenizer.convert_ids_to_tokens(token_id)
        if token is None:
            return f"<id {token_id}>"
        if "▁" not in token:  # byte-level tokenizers write bytes as letters
            token = tokenizer.convert_tokens_to_string([token])
        return token.replace("▁", "_").replace(" ", "_").replace("\n", "\\n")

    return text
