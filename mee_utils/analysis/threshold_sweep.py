"""Threshold sweeps: each rule decoded for real, strictest threshold first, with the loss of every example."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pandas as pd

from ..common.errors import CompanionError
from ..exits.policy import ExitPolicy
from ..traces.replay import replay_policy
from ..traces.trace import Trace
from .calibration import BOUNDS, consistency_losses, learn_then_test, replayed_losses
from .comparison import DecodingResult, decode, result_row
from .decisions import thresholds_for

SHARES = (1.0, 0.995, 0.985, 0.96, 0.9)
ENOUGH = 0.3  # a curve ends where the mean consistency loss exceeds this: nobody asks for less

# name -> (threshold -> policy, thresholds from the safest down; NaN for a rule without one)
Rules = dict[str, tuple[Callable[[float], ExitPolicy], Sequence[float]]]


def no_test(losses: np.ndarray, delta: float, eps: float) -> float:
    """What one does without a guarantee: take the mean of the calibration examples at its word."""
    return 0.0 if float(np.mean(losses)) <= delta else 1.0


# ways to choose a threshold, two with a guarantee
TESTS = {**{name: name for name in BOUNDS}, "no_test": no_test}


def threshold_grid(trace: Trace, policy: ExitPolicy, shares: Sequence[float], model) -> list[float]:
    """Thresholds to try, highest first: those that leave these shares of predictions as they are.

    The trace must be of training examples, so that thresholds do not depend on the examples that calibrate,
    as learn-then-test demands.
    """
    found = thresholds_for(replay_policy(trace, policy, model), shares)
    return sorted(set(found.threshold.tolist()), reverse=True)


@dataclass
class ThresholdSweep:
    """Decoded settings of one task and model, the first at full depth: `rows` of a table, and for each its
    consistency `losses` and the scores of its `examples` (percent), `[example]`.
    """

    rows: list[dict] = field(default_factory=list)
    losses: list[np.ndarray] = field(default_factory=list)
    examples: list[np.ndarray] = field(default_factory=list)

    def add(self, labels: dict, found: DecodingResult, full: DecodingResult, losses: np.ndarray) -> None:
        """One more setting."""
        risk = np.clip(full.examples - found.examples, 0, None).mean() / 100
        means = {"consistency_loss": float(losses.mean()), "risk_loss": float(risk)}
        row = result_row(found, full)
        scores = {name: row.pop(name) for name in ("score", "retained", "low", "high")}
        self.rows.append({**labels, **scores, **means, **row})
        self.losses.append(losses)
        self.examples.append(found.examples)


def decode_curves(model, task, rules: Rules, labels: dict, **settings) -> ThresholdSweep:
    """Decodes a task with every rule, threshold by threshold, until outputs are nothing like those of full
    depth. `settings` are those of `generate`.
    """
    from ..decoding.inputs import EncoderCache

    settings, swept = {"encodings": EncoderCache(), **settings}, ThresholdSweep()
    full = decode(model, task, None, **settings)
    nothing = {**labels, "rule": "full_depth", "threshold": float("nan")}
    swept.add(nothing, full, full, np.zeros(len(task)))
    for rule, (policy, thresholds) in rules.items():
        for threshold in thresholds:
            found = decode(model, task, policy(threshold), full, **settings)
            losses = consistency_losses(task, found.texts, full.texts)
            swept.add({**labels, "rule": rule, "threshold": float(threshold)}, found, full, losses)
            if losses.mean() > ENOUGH:
                break
    return swept


def fresh_samples(
    trace: Trace,
    model,
    task,
    rules: Rules,
    deltas: Iterable[float],
    eps: float,
    pools: int,
    max_new_tokens: int,
) -> pd.DataFrame:
    """Whether thresholds from independent calibration sets keep their promise to the population.

    The examples of the task, drawn for this purpose alone, are dealt out to `pools` disjoint sets. Losses
    come from a replay (the trace is of the model's own output): they are the losses of another decoder, one
    that does not see its own exits, and what is claimed of learn-then-test holds of them too.

    Returns:
        One row a rule, delta, bound and set: `threshold` (NaN if none passed), `loss` of the population
            there, `violated`.
    """
    size = len(task) // pools
    if not size:
        raise CompanionError(
            f"{len(task)} examples cannot be dealt out to {pools} sets: give more examples, or fewer sets."
        )
    rows = []
    for rule, (policy, thresholds) in rules.items():
        replayed = replay_policy(trace, policy(thresholds[0]), model)
        losses = replayed_losses(replayed, model, task, thresholds, max_new_tokens)
        for (bound, test), delta, pool in product(TESTS.items(), deltas, range(pools)):
            part = losses[:, pool * size : (pool + 1) * size]
            found = learn_then_test(part, thresholds, delta, eps, test, source="replay")
            threshold = np.nan if found.threshold is None else found.threshold
            loss, row = found.mean_at_threshold(losses), {"rule": rule, "bound": bound, "delta": delta}
            rows.append({**row, "pool": pool, "threshold": threshold, "loss": loss, "violated": loss > delta})
    return pd.DataFrame(rows)
