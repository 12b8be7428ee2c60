"""What outputs keep and cost beside those of full depth: the columns that every table of results has.

Notebooks decode a few settings (`comparison.result_row`); some thousand are stored with their examples
(`companion.result_tables.Measured`). Both are set beside full depth here, on the same resampled examples.
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
    "whole_share": "whole_",
    "mean_exit_layer": "layer_",
}


def beside_full(settings: Sequence[pd.DataFrame], full: pd.DataFrame) -> dict[str, Estimate]:
    """Settings beside full depth on the same examples: an estimate `[setting]` of each of `QUANTITIES`.

    `retained` is the share of the full score, a mean over outputs, and NaN where that is 0; losses are means
    over outputs; `mean_exit_layer` and the decoder's FLOPs in `flops_share` are means over tokens.
    `whole_share` is end to end: of an output with all its tokens, the encoder included; NaN where `full` does
    not say what the encoder takes.

    Args:
        settings: the examples of each setting, with the columns `VALUES`.
        full: the examples of full depth, perhaps with the FLOPs of their `encoder`.
    """
    examples = len(full)
    at_full = full[VALUES].to_numpy(np.float64)  # [example, value]
    values = np.stack([each[VALUES].to_numpy(np.float64) for each in settings], axis=1)
    scores = values[..., VALUES.index("score")]  # [example, setting]
    full_scores = at_full[:, [VALUES.index("score")]]  # [example, 1]
    risks = np.clip(full_scores - scores, 0, None) / 100  # [example, setting]
    value_count = len(settings) * len(VALUES)
    encoder = full.get("encoder", pd.Series(np.nan, full.index)).to_numpy(np.float64)  # [example]
    columns = np.concatenate([values.reshape(examples, value_count), risks, encoder[:, None]], axis=1)

    def quantities(weights: np.ndarray) -> np.ndarray:
        """`[resample, quantity, setting]`, from sums over the resampled examples."""
        sums = weights @ columns  # one product: it is what bootstraps cost
        value_sums = sums[:, :value_count].reshape(len(weights), len(settings), len(VALUES))
        risk, of_encoder = sums[:, value_count:-1], sums[:, -1:]  # [resample, setting], [resample, 1]
        full_sums = weights @ at_full  # [resample, value]
        drawn = weights.sum(axis=1, keepdims=True)  # [resample, 1], examples
        # [resample, setting] and [resample, 1] each
        of_settings = dict(zip(VALUES, np.moveaxis(value_sums, -1, 0), strict=True))
        of_full = dict(zip(VALUES, full_sums.T[..., None], strict=True))
        # without a score there is none to keep
        full_score = np.where(of_full["score"] > 0, of_full["score"], np.nan)
        flops_per_token = of_settings["flops"] / of_settings["tokens"]
        by_name = {
            "retained": of_settings["score"] / full_score,
            "consistency_loss": of_settings["loss"] / drawn,
            "risk_loss": risk / drawn,
            "flops_share": flops_per_token / (of_full["flops"] / of_full["tokens"]),
            "whole_share": (of_encoder + of_settings["flops"]) / (of_encoder + of_full["flops"]),
            "mean_exit_layer": of_settings["layers"] / of_settings["tokens"],
        }
        return np.stack([by_name[name] for name in QUANTITIES], axis=1)

    together = interval(quantities, examples)
    return {
        name: Estimate(together.value[number], together.draws[:, number])
        for number, name in enumerate(QUANTITIES)
    }


def mean_exit_layer(examples: pd.DataFrame) -> float:
    """The mean exit layer over the tokens of examples with the columns `VALUES`."""
    return examples.layers.sum() / examples.tokens.sum()


def result_rows(settings: Sequence[pd.DataFrame], full: pd.DataFrame) -> list[dict[str, float]]:
    """`beside_full`, one row per setting, with the mean `score` and `length_share`, of tokens emitted."""
    beside = beside_full(settings, full)
    rows = []
    for number, examples in enumerate(settings):
        row = {"score": examples.score.to_numpy(np.float64).sum() / len(full)}
        for name, prefix in QUANTITIES.items():
            row.update(beside[name].item(number).columns(name, prefix))
        row["length_share"] = examples.tokens.sum() / full.tokens.sum()
        rows.append(row)
    return rows
