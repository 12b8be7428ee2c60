"""The clock of all benchmarks: contenders take turns, so that a busy moment of the machine hits all alike.

Decoding is timed batch by batch: all contenders decode one batch, in random order, before any decodes the
next. What is too short for that is timed round by round.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from timeit import timeit
from typing import TypeVar

import numpy as np
import pandas as pd

from mee_utils.analysis.statistics import Estimate, interval

Result = TypeVar("Result")


def wait_for(device: str) -> None:
    """Waits until a device has done all that it was given; a GPU works while the host goes on."""
    if device != "cpu":
        import torch

        torch.cuda.synchronize(device)


def take_turns(
    contenders: Mapping[str, Callable[[int], Result]], rounds: int, pause: float = 0.0
) -> list[dict[str, Result]]:
    """What the contenders return, by name, in each round.

    Args:
        contenders: functions of the number of the round, from 0.
        rounds: how many; one more comes first, to warm up, with the number -1, and is dropped.
        pause: seconds between contenders, for those whose threads go on spinning for a while.
    """
    results = []
    for number in range(-1, rounds):
        results.append({})
        for name, run in contenders.items():
            time.sleep(pause)
            results[-1][name] = run(number)
    return results[1:]


def in_random_order(
    contenders: Mapping[str, Callable[[int], Result]], batches: int, seed: int = 0
) -> list[dict[str, Result]]:
    """What the contenders return, by name, of each batch: all of one before any of the next, in random order.

    Args:
        contenders: functions of the number of the batch, from 0; called once before with -1, to warm up.
        batches: how many.
        seed: of the order.
    """
    for run in contenders.values():
        run(-1)
    order = np.random.default_rng(seed)
    names = list(contenders)
    results = []
    for number in range(batches):
        results.append({})
        for index in order.permutation(len(names)):
            results[-1][names[index]] = contenders[names[index]](number)
    return results


def beside_first(amounts: np.ndarray, seconds: np.ndarray) -> Estimate:
    """Rates beside that of the first contender, with intervals that resample batches.

    Args:
        amounts: what was made, `[batch, contender]`, such as tokens.
        seconds: in which time, likewise.

    Returns:
        `[contender]`: amounts a second, those of the first being 1.
    """

    def ratios(weights: np.ndarray) -> np.ndarray:
        rates = (weights @ amounts) / (weights @ seconds)
        return rates / rates[:, :1]

    return interval(ratios, len(seconds))


def seconds_in_turns(
    contenders: Mapping[str, Callable[[], object]], rounds: int, pause: float = 0.0, device: str = "cpu"
) -> pd.DataFrame:
    """Seconds `[round, contender]`, until the device is done."""

    def timed(run: Callable[[], object]) -> Callable[[int], float]:
        return lambda number: seconds_of(run, device)

    return pd.DataFrame(take_turns({name: timed(run) for name, run in contenders.items()}, rounds, pause))


def seconds_of(run: Callable[[], object], device: str = "cpu") -> float:
    """Seconds of one call, until the device is done."""

    wait_for(device)
    return timeit(lambda: (run(), wait_for(device)), number=1)


def summary(rows: Iterable, middle: str) -> pd.DataFrame:
    """Rows with their `values`, a number a round, as `lowest`, `highest` and a median, named `middle`."""
    table = pd.DataFrame(rows)
    if table.empty:
        return table
    return table.drop(columns="values").assign(
        **{middle: table["values"].map(np.median)},
        lowest=table["values"].map(np.min),
        highest=table["values"].map(np.max),
    )
