"""Does a prediction, once made, stay? Does confidence in it grow with every layer? (MEE, section 3)"""

from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd

from .statistics import NOTHING, by_layer, mean_interval, percentiles, reliability, resampled_tokens

RELIABILITY_RESAMPLES = 100


def settled_from(trace) -> np.ndarray:
    """`[token]`, the first layer from which the top-1 equals the last layer's for good: the oracle's exit."""
    changed = trace.top1_id != trace.final_id[:, None]
    return np.where(changed.any(axis=1), trace.layers - np.argmax(changed[:, ::-1], axis=1), 0) + 1


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


def monotonic_shares(trace, **labels) -> pd.DataFrame:
    """Share of tokens whose final prediction grows in probability, from layer 1 on and after a third of L."""
    rows = []
    for kind, test in (("strictly rising", strictly_monotonic), ("never falling", never_falling)):
        for after in (0, trace.layers // 3):
            share = mean_interval(test(trace.final_probability, after), trace.sequence)
            rows.append({**labels, "kind": kind, "after_layer": after, **share.columns("share")})
    return pd.DataFrame(rows)


def reliability_bins(trace, correct, layers: Iterable[int], bins: int = 10, **labels) -> pd.DataFrame:
    """A reliability diagram for each of some layers: accuracy by top-1 probability, with an interval for each
    bin. `correct` `[token, layer]` says whether the layer's top-1 is right, by whatever truth is meant.
    """
    tables = []
    for layer in layers:
        right = correct[:, layer - 1]
        found = reliability(trace.top1_probability[:, layer - 1], right, bins)
        chosen = [found.index == number for number in range(bins)]
        intervals = [mean_interval(right[c], trace.sequence[c]) if c.any() else NOTHING for c in chosen]
        columns = {**labels, "layer": layer, "bin_low": found.edges[:-1], "bin_high": found.edges[1:]}
        columns |= {"confidence": found.confidence, "accuracy": found.accuracy, "tokens": found.count}
        columns |= {"expected_calibration_error": found.error}
        columns |= {bound: [getattr(each, bound) for each in intervals] for bound in ("low", "high")}
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def layer_reliability(trace, correct: np.ndarray, bins: int = 10, **labels) -> pd.DataFrame:
    """Per layer: mean top-1 probability, mean of `correct` and expected calibration error, with intervals."""
    confidence, name = trace.top1_probability.astype(np.float64), "expected_calibration_error"
    error = lambda rows, layer: reliability(confidence[rows, layer], correct[rows, layer], bins).error
    errors = lambda rows: [error(rows, layer) for layer in range(trace.layers)]
    table = {**labels, "layer": np.arange(1, trace.layers + 1)}
    for column, values in (("confidence", confidence), ("accuracy", correct)):
        table |= mean_interval(values, trace.sequence).columns(column, f"{column}_")
    drawn = [errors(rows) for rows in resampled_tokens(trace.sequence, RELIABILITY_RESAMPLES)]
    low, high = percentiles(drawn)
    return pd.DataFrame(table | {name: errors(slice(None)), f"{name}_low": low, f"{name}_high": high})


def predictions(trace, token: int, decode: Callable[[int], str], top: int = 3, **labels) -> pd.DataFrame:
    """The `top` tokens of every layer with their probabilities, for one row of the trace (MEE, Figure 3)."""
    ids, probabilities = trace.top_ids[token, :, :top], trace.top_probabilities[token, :, :top]
    layer, rank = np.indices(ids.shape).reshape(2, -1) + 1
    names, values = [decode(int(i)) for i in ids.ravel()], probabilities.ravel().astype(np.float64)
    return pd.DataFrame({**labels, "layer": layer, "rank": rank, "token": names, "probability": values})


def percentile_tokens(trace, shares: tuple[float, ...], seed: int = 0) -> dict[int, int]:
    """Tokens at percentiles of the settling layer: percent -> row. Ties by seed, without last tokens."""
    last = np.append(trace.sequence[1:] != trace.sequence[:-1], True)
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(~last))
    ordered = rows[np.argsort(settled_from(trace)[rows], kind="stable")]
    return {round(100 * share): int(ordered[int(share * (len(ordered) - 1))]) for share in shares}


def token_text(tokenizer) -> Callable[[int], str]:
    """`id -> text` for figures: a word boundary is a low line; ids beyond the vocabulary are numbers."""
    return lambda token: (tokenizer.convert_ids_to_tokens(token) or f"<id {token}>").replace("▁", "_")
