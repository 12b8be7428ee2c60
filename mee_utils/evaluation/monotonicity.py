"""Does a prediction, once made, stay? Does confidence in it grow with every block? (MEE, section 3)

All functions read a `Trace`. Block numbers are 1-based; the column `l - 1` of an array belongs to block `l`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from .statistics import difference_interval, mean_interval, reliability, resampled_tokens

CALIBRATION_RESAMPLES = 100


def settled_from(trace) -> np.ndarray:
    """`[token]`, the first block from which the top-1 equals the last block's for good: the oracle's exit.

    A token settled from block 3 of 12 has the same top-1 at blocks 3 to 12, and another at block 2.
    """
    changed = trace.top1_id != trace.final_id[:, None]
    return np.where(changed.any(axis=1), trace.layers - np.argmax(changed[:, ::-1], axis=1), 0) + 1


def stable(trace) -> np.ndarray:
    """`[token, layer]`, whether the top-1 never changes after that block (MEE, Figure 1)."""
    return settled_from(trace)[:, None] <= np.arange(1, trace.layers + 1)


def strictly_monotonic(values: np.ndarray, after: int = 0) -> np.ndarray:
    """`[token]`, whether `values` `[token, layer]` rise strictly from block `after + 1` on.

    `after=0` demands it of all blocks, as in MEE's Table 1.
    """
    return (np.diff(values[:, after:], axis=1) > 0).all(axis=1)


def curve(values: np.ndarray, trace, name: str, **labels) -> pd.DataFrame:
    """Mean over tokens per block, with a 95 % interval over sequences and the standard deviation over tokens.

    Args:
        values: `[token, layer]`.
        trace: where the values come from.
        name: the column of the mean.
        labels: constant columns to put in front, such as `model="calm"`.
    """
    interval = mean_interval(values, trace.sequence)
    table = {
        "layer": np.arange(1, trace.layers + 1),
        name: interval.mean,
        "low": interval.low,
        "high": interval.high,
        "standard_deviation": np.asarray(values, dtype=np.float64).std(axis=0),
    }
    return pd.DataFrame({**labels, **table})


def never_falling(values: np.ndarray, after: int = 0, tolerance: float = 0.01) -> np.ndarray:
    """`[token]`, whether `values` never fall by more than `tolerance` from block to block, from block `after + 1` on.

    A saturated probability cannot rise for ever: 0.99999 followed by 0.99998 breaks strict monotonicity and means nothing.
    """
    return (np.diff(values[:, after:].astype(np.float64), axis=1) >= -tolerance).all(axis=1)


def monotonic_shares(trace, **labels) -> pd.DataFrame:
    """Share of tokens whose confidence in the final prediction rises strictly, or never falls by more than 0.01.

    Both from block 1 on and after a third of the blocks; with 95 % intervals over sequences.
    """
    rows = []
    for kind, test in (("strictly rising", strictly_monotonic), ("never falling", never_falling)):
        for after in (0, trace.layers // 3):
            share = mean_interval(test(trace.final_probability, after), trace.sequence)
            row = {"kind": kind, "after_layer": after, "share": share.mean, "low": share.low, "high": share.high}
            rows.append({**labels, **row})
    return pd.DataFrame(rows)


def calibration(trace, correct: np.ndarray, bins: int = 10, **labels) -> pd.DataFrame:
    """Per block and confidence bin: confidence, accuracy, tokens; and the block's expected calibration error.

    Args:
        trace: whose top-1 probabilities are the confidence.
        correct: `[token, layer]`, whether the block's top-1 is right, by whatever truth is meant.
        bins: number of bins of equal width.
        labels: constant columns to put in front.
    """
    tables = []
    for layer in range(1, trace.layers + 1):
        found = reliability(trace.top1_probability[:, layer - 1], correct[:, layer - 1], bins)
        tables.append(
            pd.DataFrame(
                {
                    **labels, "layer": layer, "bin_low": found.edges[:-1], "bin_high": found.edges[1:],
                    "confidence": found.confidence, "accuracy": found.accuracy, "tokens": found.count,
                    "expected_calibration_error": found.error,
                }
            )
        )  # fmt: skip
    return pd.concat(tables, ignore_index=True)


def predictions(trace, token: int, decode, top: int = 3, **labels) -> pd.DataFrame:
    """The top tokens of every block for one token of the trace (MEE, Figure 3).

    Args:
        trace: the trace.
        token: row of the trace.
        decode: `id -> text`.
        top: how many tokens a block.
        labels: constant columns to put in front.
    """
    rows = [
        {**labels, "layer": layer + 1, "rank": rank + 1, "token": decode(int(trace.top_ids[token, layer, rank])),
         "probability": float(trace.top_probabilities[token, layer, rank])}
        for layer in range(trace.layers)
        for rank in range(top)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def settling_depth(trace, **labels) -> pd.DataFrame:
    """Mean block from which tokens are settled (the oracle's exit), with a 95 % interval over sequences: one row."""
    depth = mean_interval(settled_from(trace), trace.sequence)
    row = {**labels, "tokens": len(trace), "mean_block": depth.mean, "low": depth.low, "high": depth.high}
    return pd.DataFrame([row])


def percentile_tokens(trace, shares: tuple[float, ...], seed: int = 0) -> dict[int, int]:
    """Tokens at given percentiles of the settling block. Returns percent -> row of the trace.

    Among tokens that settle at the same block the seed decides; end tokens (the last of each sequence) are left out.
    """
    last = np.append(trace.sequence[1:] != trace.sequence[:-1], True)
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(~last))
    ordered = rows[np.argsort(settled_from(trace)[rows], kind="stable")]
    return {round(100 * share): int(ordered[int(share * (len(ordered) - 1))]) for share in shares}


def token_text(tokenizer):
    """`id -> text` for figures: a word boundary is shown as a low line, control tokens by their name, ids beyond the tokenizer's by number.

    T5's vocabulary matrix has more rows than its tokenizer has tokens.
    """
    return lambda token: (tokenizer.convert_ids_to_tokens(token) or f"<id {token}>").replace("▁", "_")


def block_calibration(trace, correct: np.ndarray, bins: int = 10, **labels) -> pd.DataFrame:
    """Per block: mean confidence, accuracy and expected calibration error, each with a 95 % interval over sequences.

    Args:
        trace: whose top-1 probabilities are the confidence.
        correct: `[token, layer]`, whether the block's top-1 is right.
        bins: number of bins of equal width.
        labels: constant columns to put in front.
    """
    confidence = trace.top1_probability.astype(np.float64)
    samples = list(resampled_tokens(trace.sequence, CALIBRATION_RESAMPLES))
    table = {"layer": np.arange(1, trace.layers + 1)}
    for name, values in (("confidence", confidence), ("accuracy", correct)):
        found = mean_interval(values, trace.sequence)
        table |= {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high}
    errors = np.array([reliability(confidence[:, i], correct[:, i], bins).error for i in range(trace.layers)])
    drawn = [[reliability(confidence[rows, i], correct[rows, i], bins).error for i in range(trace.layers)] for rows in samples]
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    name = "expected_calibration_error"
    return pd.DataFrame({**labels, **table, name: errors, f"{name}_low": low, f"{name}_high": high})


def settling_gain(first, second, **labels) -> pd.DataFrame:
    """How many blocks earlier `second` settles than `first` on the same inputs, with a paired 95 % interval: one row."""
    gain = difference_interval((settled_from(first), first.sequence), (settled_from(second), second.sequence))
    return pd.DataFrame([{**labels, "blocks_earlier": gain.mean, "low": gain.low, "high": gain.high}])
