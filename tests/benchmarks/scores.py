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
    """Scores the outputs of every contender but the first, full depth, with which they are compared.

    Args:
        task: whose inputs were decoded, every one in one round: input i in round i modulo their number.
        metric: one that the task has.
        generations: `[round][contender]`.

    Returns:
        One row a contender. `score` is the mean over outputs with an interval over them, `corpus_score` as
        papers report it (BLEU is no mean over outputs), `retained` the share of the mean at full depth with a
        paired interval; the rest as in `result_row`.
    """
    by_contender = []
    for number in range(len(generations[0])):
        generation = joined([turns[number] for turns in generations])
        full = by_contender[0] if by_contender else None
        by_contender.append(scored(generation, task, full, metric))
    full = by_contender[0]
    return without_draws(pd.DataFrame([_row(decoding, full, metric) for decoding in by_contender[1:]]))


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


def joined(rounds: Sequence[Generation]) -> Generation:
    """The outputs of all rounds as one, in the order of the task's inputs: input i is in round i modulo n."""
    total = sum(len(generation.texts) for generation in rounds)
    numbers = np.concatenate([np.arange(total)[number :: len(rounds)] for number in range(len(rounds))])
    order = np.argsort(numbers)

    def in_order(name: str) -> list:
        outputs = [output for generation in rounds for output in getattr(generation, name)]
        return [outputs[index] for index in order]

    flops_by_part = {
        part: np.concatenate([generation.flops_by_part[part] for generation in rounds])[order]
        for part in rounds[0].flops_by_part
    }
    return replace(
        rounds[0],
        texts=in_order("texts"),
        token_ids=in_order("token_ids"),
        exit_layers=in_order("exit_layers"),
        confidences=in_order("confidences"),
        readout_rows=in_order("readout_rows"),
        flops=np.array(in_order("flops")),
        flops_by_part=flops_by_part,
        seconds=sum(generation.seconds for generation in rounds),
    )
