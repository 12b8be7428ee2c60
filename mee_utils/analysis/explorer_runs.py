"""The runs of the explorer: the levels of its slider, and what stays the same from one to the next."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite

import numpy as np

from ..exits.measures import check_not_infinite
from ..exits.policy import ExitPolicy

TAKEN = "taken"  # ways to exit: decoded, with exits as they are or verified, or replayed
VERIFIED = "verified"
WITH_COPIES = "verified, copies first"  # of the input (prompt look-up)
REPLAYED = "replayed"

# the fates of a token
AGREES = "the last layer agrees"
DIFFERS = "the last layer differs"
ALL = "no exit"


def fate(layer: int, depth: int, same: bool) -> str:
    """What became of a token that exited at a layer; `same`: its prediction is the last layer's."""
    if layer == depth:
        return ALL
    return AGREES if same else DIFFERS


def threshold_levels(policy: ExitPolicy, confidences: Iterable[float], levels: int) -> list[float]:
    """Thresholds of the slider: quantiles of `confidences` at full depth, equal ones once.

    At the last nothing exits. Raises `MeeError` if a confidence is infinite.
    """
    low, high = policy.measure.range
    different = np.unique(list(confidences) or [low])
    check_not_infinite(policy.measure, different)
    quantiles = np.quantile(different, np.linspace(0, 1, levels), method="lower").clip(low, high)
    last = high if isfinite(high) else float(quantiles[-1])
    return [*quantiles[:-1].round(4).tolist(), last]


def merged_runs(
    labels: Sequence[Mapping],
    thresholds: Sequence[float],
    described: Callable[[float], Mapping[str, Sequence[Mapping]]],
) -> list[dict]:
    """The runs of one rule at all levels of the slider; neighbours that are alike are one run.

    At four levels with the thresholds 0.2, 0.5, 0.5 and 0.9, one sentence and one way to exit: if 0.2 and 0.5
    do the same, there are two runs, with `levels` [0, 1, 2] and [3].

    Args:
        labels: what the runs of each sentence have in common, `[sentence]`.
        thresholds: that of each level.
        described: what exits do at a threshold: way to exit -> what the run of each sentence shows,
            `[sentence]`.
    """
    runs = []
    latest: dict[tuple[str, int], dict] = {}  # (way to exit, number of the sentence) -> its run before
    for threshold in sorted(set(thresholds)):
        levels_here = [level for level, other in enumerate(thresholds) if other == threshold]
        for exits, shown in described(threshold).items():
            for number, (sentence, each) in enumerate(zip(labels, shown, strict=True)):
                described_run = {**sentence, "exits": exits, **each}
                run = latest.get((exits, number), {})
                if any(run.get(name) != value for name, value in described_run.items()):
                    run = {**described_run, "levels": [], "thresholds": []}
                    latest[exits, number] = run
                    runs.append(run)
                run["levels"] += levels_here
                run["thresholds"] += [threshold] * len(levels_here)
    return runs
