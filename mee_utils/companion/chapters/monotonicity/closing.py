"""The end of chapter 01: what a replay predicts of decoding, and the chapter in five sentences."""

from __future__ import annotations

import pandas as pd

from ... import figures
from ...prose import listed, task_span
from ..wording import percent_span
from .overconfidence import overconfident
from .settling import final_after_a_third
from .tokens import monotonic_message, most_monotonic


def exits_shown(exits: pd.DataFrame) -> pd.DataFrame:
    """The columns of a replay beside decoding that a page shows."""
    named = exits.assign(task=exits.task.map(figures.label), policy=exits.policy.map(figures.label))
    columns = [
        "same_exit",
        "mean_exit_layer_replay",
        "mean_exit_layer_decoded",
        "score",
        "full_score",
        "flops_share",
    ]
    return named.set_index(["task", "policy"])[columns].round(2)


def decoding_conclusion(exits: pd.DataFrame) -> str:
    """How well a replay predicts decoding, and what copied keys and values cost even the oracle."""
    oracle = exits[exits.policy == "oracle"].set_index("task")
    copied = oracle.score / oracle.full_score
    return (
        f"Up to the first token that differs, {percent_span(exits.same_exit)} of the tokens exit at the "
        "replayed layer. A replay does not model what exits do to later tokens. The oracle exits only once a "
        f"prediction is final, and keeps {task_span(copied, '.1%')} of the score: differences from 100% come "
        "from keys and values copied from early states."
    )


def summary(stable: pd.DataFrame, strict: pd.DataFrame, per_layer: pd.DataFrame) -> str:
    """The chapter in five sentences at most."""
    overconfidence = overconfident(per_layer)
    how_far = f": {overconfidence}" if overconfidence else ""
    calm_is_first = (most_monotonic(strict, "never falling") == "calm").all()
    apart = "" if calm_is_first else ": settling early is not the same as being monotonic"
    sentences = [
        _justified(stable),
        "Training decides how early a prediction is final.",
        f"{monotonic_message(strict)}{apart}.",
        f"A rule sees only a confidence, and how far that can be trusted depends on training{how_far}.",
        "All of this except the comparison of replay and decoding is measured at full depth; 05 and 08 show "
        "what exits cost.",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _justified(stable: pd.DataFrame) -> str:
    """For how many tokens of CALM and of vanilla an exit after a third of the depth is harmless."""
    layer, shares = final_after_a_third(stable)
    parts = []
    for name, share in shares.items():
        of_what = "" if parts else " tokens"
        parts.append(f"{share} of {figures.label(name)}'s{of_what}")
    return f"Stopping after layer {layer} would be justified for {listed(parts)}." if parts else ""
