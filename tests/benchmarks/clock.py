"""The clock of all benchmarks: contenders take turns, round by round.

Every ratio is taken within a round, so that a busy moment of the machine hits all contenders alike.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from timeit import timeit
from typing import TypeVar

import numpy as np
import pandas as pd

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
