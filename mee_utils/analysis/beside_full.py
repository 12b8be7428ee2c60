"""What outputs keep and cost beside those of full depth: the columns that every table of results has.

Notebooks decode a few settings (`comparison.result_row`); some thousand are stored with their examples
(`study.result_tables.Measured`). Both are set beside full depth here, on the same resampled examples.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from .statistics import Estimate, interval

VALUES = ["loss", "score", "flops", "tokens", "layers"]  # of an example
QUANTITIES = {  # of a setting beside full depth: name -> what its bounds are called, before low and high
    "retained": "",
    "consistency_loss": "consistency_",
    "risk_loss": "risk_",
    "flops_share": "flops_",
    "mean_exit_layer": "layer_",
}


def beside_full(settings: Sequence[pd.DataFrame], full: pd.DataFrame) -> dict[str, Estimate]:
    """Settings beside full depth on the same examples: an estimate `[setting]` of each of `QUANTITIES`.

    `retained` is the share of the full score, a mean over outputs, and NaN where that is 0; losses are means
    over outputs; `mean_exit_layer` and the FLOPs in `flops_share` are means over tokens.

    Args:
        settings: the examples of each setting, with the columns `VALUES`.
        full: the examples of full depth.
    """
    examples = len(full)
    values = np.stack([each[VALUES].to_numpy(np.float64) for each in settings], axis=1)
    at_full = full[VALUES].to_numpy(np.float64)  # [example, value]; values: [example, setting, value]
    score = VALUES.index("score")
    risk = np.clip(at_full[:, None, score] - values[..., score], 0, None) / 100  # [example, setting]
    columns = np.concatenate([values.reshape(examples, -1), risk], axis=1)

    def quantities(weights: np.ndarray) -> np.ndarray:
        """`[resample, quantity, setting]`, from sums over the resampled examples."""
        sums = weights @ columns  # one product: it is what bootstraps cost
        of_settings = sums[:, : values[0].size].reshape(len(weights), len(settings), len(VALUES))
        loss, score, flops, tokens, layers = np.moveaxis(of_settings, -1, 0)
        _, full_score, full_flops, full_tokens, _ = (weights @ at_full).T[..., None]
        full_score = np.where(full_score > 0, full_score, np.nan)  # without a score there is none to keep
        drawn = weights.sum(axis=1, keepdims=True)
        shares = [
            score / full_score,
            loss / drawn,
            sums[:, values[0].size :] / drawn,
            (flops / tokens) / (full_flops / full_tokens),
            layers / tokens,
        ]
        return np.stack(shares, axis=1)

    together = interval(quantities, examples)
    return {
        name: Estimate(together.value[number], together.draws[:, number])
        for number, name in enumerate(QUANTITIES)
    }


def result_rows(settings: Sequence[pd.DataFrame], full: pd.DataFrame) -> list[dict[str, float]]:
    """`beside_full`, one row per setting, with the mean `score` and `length_share`, of tokens emitted."""
    beside = beside_full(settings, full)
    rows = []
    for number, examples in enumerate(settings):
        row = {"score": examples.score.to_numpy(np.float64).sum() / len(full)}
        for name, prefix in QUANTITIES.items():
            row |= beside[name].item(number).columns(name, prefix)
        rows.append(row | {"length_share": examples.tokens.sum() / full.tokens.sum()})
    return rows
