"""One rule from careful to careless: decoded for real at descending thresholds, with the loss of every example."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pandas as pd

from ..errors import CompanionError
from ..exits.policy import ExitPolicy
from .calibration import BOUNDS, consistency_losses, learn_then_test, replayed_losses
from .comparison import Decoded, decode, retained
from .decisions import thresholds_for
from .readings import readings
from .replay import confidences

SHARES = (1.0, 0.995, 0.985, 0.96, 0.9)
ENOUGH = 0.3  # a curve ends where the mean textual loss exceeds this: nobody asks for less


def no_test(losses: np.ndarray, delta: float, eps: float) -> float:
    """What one does without a guarantee: take the mean of the calibration examples at its word."""
    return 0.0 if float(np.mean(losses)) <= delta else 1.0


TESTS = {**{name: name for name in BOUNDS}, "no_test": no_test}  # ways to choose a threshold, two with a guarantee


def threshold_grid(trace, policy: ExitPolicy, shares: Sequence[float], model) -> list[float]:
    """Thresholds to try, highest first: those that leave these shares of the predictions of a trace as they are.

    The trace is of training examples, so that thresholds do not depend on the examples that calibrate, as learn-then-test demands.

    Args:
        trace: from `mee_utils.trace`, with states where the policy looks at them.
        policy: its threshold is replaced.
        shares: descending.
        model: of the trace.
    """
    asked = confidences(trace, policy, model) if policy.read_out.plain else readings(trace, policy, model)
    return sorted(set(thresholds_for(trace, policy, shares, asked=asked).threshold.tolist()), reverse=True)


@dataclass
class Curves:
    """Decoded settings of one task and model.

    Attributes:
        rows: one a setting, the first without exits.
        losses: their textual losses, `[example]` each.
        examples: their scores of single examples, `[example]` each, percent.
    """

    rows: list[dict] = field(default_factory=list)
    losses: list[np.ndarray] = field(default_factory=list)
    examples: list[np.ndarray] = field(default_factory=list)

    def add(self, labels: dict, found: Decoded, full: Decoded, losses: np.ndarray) -> None:
        """One more setting."""
        share, low, high = retained(found, full)
        self.rows.append({
            **labels, "score": found.score, "retained": share, "low": low, "high": high, "loss": float(losses.mean()),
            "fall": float(np.clip(full.examples - found.examples, 0, None).mean() / 100), "mean_exit_layer": found.mean_exit_layer,
            "flops_share": found.flops / full.flops, "read_out_share": found.read_out, "same_output": found.same_output,
            "length_share": found.tokens / full.tokens,
        })  # fmt: skip
        self.losses.append(losses)
        self.examples.append(found.examples)


def decode_curves(model, task, rules: dict[str, tuple[Callable[[float], ExitPolicy], Iterable[float]]], labels: dict, progress=None, **settings) -> Curves:
    """Decodes a task with every rule, threshold by threshold, until the outputs have little to do with those of all blocks.

    Args:
        model: from `load_model`.
        task: inputs, and how outputs are scored.
        rules: name -> (threshold -> policy, thresholds from the safest down); a threshold that is not a number belongs to a rule without one.
        labels: constant columns to put in front.
        progress: called with the name of each rule.
        settings: of `generate`.
    """
    settings, curves = {"encodings": {}, **settings}, Curves()
    full, texts = decode(model, task, None, **settings)
    curves.add({**labels, "rule": "none", "threshold": float("nan")}, full, full, np.zeros(len(task)))
    for rule, (policy, thresholds) in rules.items():
        if progress:
            progress(rule)
        for threshold in thresholds:
            found, said = decode(model, task, policy(threshold), texts, **settings)
            losses = consistency_losses(task, said, texts)
            curves.add({**labels, "rule": rule, "threshold": float(threshold)}, found, full, losses)
            if losses.mean() > ENOUGH:
                break
    return curves


def fresh_samples(
    trace, model, task, rules: dict[str, tuple[Callable[[float], ExitPolicy], Sequence[float]]], deltas: Sequence[float], eps: float, pools: int,
    max_new_tokens: int,
) -> pd.DataFrame:  # fmt: skip
    """The guarantee on independent calibration sets: does the threshold that each of them returns keep its promise to the population?

    The examples of the task are dealt out to `pools` disjoint sets. Losses come from a replay (they are the losses of another decoder, one that does not
    see its own exits); all that is claimed of learn-then-test holds of them too.

    Args:
        trace: of the model's own output on the inputs of the task.
        model: of the trace.
        task: examples drawn for this purpose alone.
        rules: as in `decode_curves`.
        deltas: largest mean losses.
        eps: probability of failing.
        pools: how many sets.
        max_new_tokens: as in `replay`.

    Returns:
        One row a rule, delta, bound and set: `threshold` (not a number where none passed), `loss` of the population there, `violated`.
    """
    size = len(task) // pools
    if not size:
        raise CompanionError(f"{len(task)} examples cannot be dealt out to {pools} sets: give more examples, or fewer sets.")
    rows = []
    for rule, (policy, thresholds) in rules.items():
        losses = replayed_losses(trace, model, task, policy(thresholds[0]), thresholds, max_new_tokens=max_new_tokens)
        for (bound, test), delta, pool in product(TESTS.items(), deltas, range(pools)):
            found = learn_then_test(losses[:, pool * size : (pool + 1) * size], thresholds, delta, eps, test, source="replay")
            loss = 0.0 if found.threshold is None else float(losses[list(thresholds).index(found.threshold)].mean())
            rows.append({"rule": rule, "bound": bound, "delta": delta, "pool": pool,
                         "threshold": np.nan if found.threshold is None else found.threshold, "loss": loss, "violated": loss > delta})  # fmt: skip
    return pd.DataFrame(rows)
