"""How good the outputs are that the benchmark timed."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from mee_utils.analysis.comparison import result_row, scored
from mee_utils.analysis.statistics import interval, without_draws
from mee_utils.decoding.generation import Generation
from mee_utils.tasks.loading import Task


def scores(task: Task, metric: str, generations: Sequence[Sequence[Generation]]) -> pd.DataFrame:
    """Scores the outputs of every contender but full depth, with which they are compared.

    Args:
        task: whose inputs were decoded, batch after batch.
        metric: one that the task has.
        generations: `[batch][contender]`, full depth twice in front.

    Returns:
        One row a contender. `score` is the mean over outputs with an interval over them, `corpus_score` as
        papers report it (BLEU is no mean over outputs), `retained` the share of the mean at full depth with a
        paired interval; the rest as in `result_row`.
    """
    by_contender = []
    for number in range(len(generations[0])):
        generation = joined([batch[number] for batch in generations])
        full = by_contender[0] if by_contender else None
        by_contender.append(scored(generation, task, full, metric))
    full = by_contender[0]
    return without_draws(pd.DataFrame([_row(decoding, full, metric) for decoding in by_contender[2:]]))


def _row(decoding, full, metric: str) -> dict:
    """The row of one contender."""
    beside_full = result_row(decoding, full)
    mean = interval(
        lambda weights: (weights @ decoding.examples) / weights.sum(axis=1), len(decoding.examples)
    )
    return {
        "metric": metric,
        **mean.columns("score", "score_"),
        "corpus_score": beside_full["score"],
        "retained": beside_full["retained"],
        "retained_low": beside_full["low"],
        "retained_high": beside_full["high"],
        "mean_exit_layer": beside_full["mean_exit_layer"],
        "flops_share": beside_full["flops_share"],
        "length_share": beside_full["length_share"],
    }


def joined(batches: Sequence[Generation]) -> Generation:
    """The outputs of consecutive batches as one."""
    lists = ("texts", "token_ids", "exit_layers", "confidences", "readout_rows")
    return replace(
        batches[0],
        **{name: [output for batch in batches for output in getattr(batch, name)] for name in lists},
        flops=np.concatenate([batch.flops for batch in batches]),
        encoder_flops=np.concatenate([batch.encoder_flops for batch in batches]),
        flops_by_part={
            part: np.concatenate([batch.flops_by_part[part] for batch in batches])
            for part in batches[0].flops_by_part
        },
        seconds=sum(batch.seconds for batch in batches),
    )
