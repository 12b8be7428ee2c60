"""Calibrated exits: the lowest threshold that keeps quality, guaranteed, not hoped for (CALM, sections 3 and 4; Angelopoulos et al. 2021).

Wanted is a threshold with `P(E[loss] <= delta) >= 1 - eps`, over the draw of the calibration examples. *Learn then test*: thresholds are tried
from the safest down, one p-value each for "the mean loss at this threshold exceeds delta"; testing stops at the first that is above `eps`, and the
threshold *before* it is returned. Everything rests on one array, losses `[threshold, example]` in 0..1, wherever it comes from: real decoding
(the guarantee), or a replay (quick, and an estimate, since a replay does not see how an exit changes later tokens).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pandas as pd

from ..errors import CompanionError, check_choice
from ..exits.policy import ExitPolicy
from ..tasks.scores import PRIMARY, per_example

CONSISTENCIES = ("textual", "risk")


def hoeffding_bentkus(losses: np.ndarray, delta: float) -> float:
    """p-value of "the mean loss exceeds delta" for losses in 0..1 that are independent draws.

    The smaller of Hoeffding's bound, `exp(-n h(min(m, delta), delta))` with the relative entropy `h` and the observed mean `m`, and
    Bentkus's, `e P(Binomial(n, delta) <= ceil(n m))` (Bates et al. 2021, Prop. 4; CALM uses it).

    Args:
        losses: `[example]`.
        delta: the largest mean loss that is tolerated, above 0 and below 1.
    """
    from scipy.stats import binom

    count, mean = len(losses), min(float(np.mean(losses)), delta)
    entropy = (1 - mean) * np.log((1 - mean) / (1 - delta)) + (mean * np.log(mean / delta) if mean > 0 else 0.0)
    bentkus = np.e * binom.cdf(np.ceil(count * float(np.mean(losses)) - 1e-9), count, delta)
    return float(min(1.0, np.exp(-count * entropy), bentkus))


def betting(losses: np.ndarray, delta: float, eps: float = 0.05) -> float:
    """The same by betting against it (Waudby-Smith and Ramdas 2024): tighter where losses vary little.

    A gambler who is right that the mean loss is below delta gets rich: stake `v_i = min(1, sqrt(2 log(1/eps) / (n s_(i-1))))` on example `i`, with the
    variance `s` of the losses before it; capital `prod(1 - v_i (loss_i - delta))`. One over the largest capital is a p-value.

    Args:
        losses: `[example]`, in an order that does not depend on them.
        delta: as in `hoeffding_bentkus`.
        eps: the level that the stake aims at; any value in 0..1 is valid.
    """
    losses = np.asarray(losses, dtype=np.float64)
    number = np.arange(1, len(losses) + 1)
    means = (0.5 + np.cumsum(losses)) / (1 + number)
    variances = (0.25 + np.cumsum((losses - means) ** 2)) / (1 + number)
    before = np.concatenate([[0.25], variances[:-1]])
    stakes = np.minimum(1.0, np.sqrt(2 * np.log(1 / eps) / (len(losses) * before)))
    capital = np.cumsum(np.log1p(-stakes * (losses - delta)))
    return float(min(1.0, np.exp(-capital.max())))


BOUNDS = {"hoeffding_bentkus": lambda losses, delta, eps: hoeffding_bentkus(losses, delta), "betting": betting}


@dataclass(frozen=True)
class Calibration:
    """What learn-then-test found.

    Attributes:
        threshold: the lowest threshold that passed with all above it; None where not even the highest did.
        tested: the thresholds that were tested, highest first; the last one failed unless all passed.
        p_values: one for each of them.
        mean_losses: on the calibration examples, one for each of them.
        delta, eps, examples: what was asked, and of how many examples.
        source: "decoding" (guaranteed) or "replay" (an estimate).
        policy: ready for `generate`; None where there is no threshold.
    """

    threshold: float | None
    tested: tuple[float, ...]
    p_values: tuple[float, ...]
    mean_losses: tuple[float, ...]
    delta: float
    eps: float
    examples: int
    source: str = "decoding"
    policy: ExitPolicy | None = None

    def __str__(self) -> str:
        demand = f"a mean loss of at most {self.delta:g} with {1 - self.eps:.0%} certainty on {self.examples} examples"
        kind = "guaranteed by decoding" if self.source == "decoding" else "an estimate by replay, no guarantee"
        if self.threshold is None:
            return f"No threshold satisfies {demand} (the highest, {self.tested[0]:g}, has p = {self.p_values[0]:.3g}): use more examples, or a larger delta."
        return f"Threshold {self.threshold:g} for {demand}: {kind}."


def check_demand(delta: float, eps: float) -> None:
    """Refuses a demand that cannot be met or means nothing."""
    if isinstance(delta, bool) or not isinstance(delta, int | float) or not 0 < delta < 1:
        raise CompanionError(f"delta={delta!r}: a mean loss of 0 or less cannot be guaranteed from examples, and 1 always is; give a value between 0 and 1.")
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 < eps < 1:
        raise CompanionError(f"eps={eps!r}: give the probability of failing, between 0 and 1 (the papers: 0.05).")


def learn_then_test(
    losses, thresholds: Sequence[float], delta: float, eps: float = 0.05, bound: str | Callable = "hoeffding_bentkus", source: str = "decoding"
) -> Calibration:
    """The last threshold that passes, testing from the highest down and stopping at the first that fails.

    Args:
        losses: `[threshold, example]` in 0..1, or an iterable of its rows, which are only taken while tests pass.
        thresholds: strictly descending: the safest first.
        delta: the largest mean loss that is tolerated.
        eps: probability that the guarantee fails.
        bound: "hoeffding_bentkus", "betting", or a p-value of your own: `(losses, delta, eps) -> number`.
        source: where the losses come from, "decoding" or "replay"; what is said of the result depends on it.

    Raises:
        CompanionError: no calibration examples, losses outside 0..1, thresholds that do not descend, an impossible demand.
    """
    check_demand(delta, eps)
    p_value = bound if callable(bound) else BOUNDS[check_choice("bound", bound, BOUNDS)]
    thresholds = [float(threshold) for threshold in thresholds]
    if not thresholds or any(low >= high for high, low in pairwise(thresholds)):
        raise CompanionError("Thresholds must descend strictly from the safest on, and there must be at least one.")
    found, tested, p_values, means, count = None, [], [], [], 0
    for threshold, row in zip(thresholds, losses, strict=False):
        row = np.asarray(row, dtype=np.float64)
        count = len(row)
        if row.ndim != 1 or not count:
            raise CompanionError("There are no calibration examples: give at least one (and some hundred for a small delta).")
        if not (np.isfinite(row).all() and row.min() >= 0 and row.max() <= 1):
            raise CompanionError("Losses must lie between 0 and 1: divide percentages by 100.")
        tested.append(threshold)
        means.append(float(row.mean()))
        p_values.append(p_value(row, delta, eps))
        if p_values[-1] > eps:
            break
        found = threshold
    if not tested:
        raise CompanionError("There are no losses: give one row of losses for each threshold.")
    return Calibration(found, tuple(tested), tuple(p_values), tuple(means), delta, eps, count, check_choice("source", source, ("decoding", "replay")))


def consistency_losses(task, texts: Sequence[str], full_texts: Sequence[str], kind: str = "textual") -> np.ndarray:
    """Losses of exits against all blocks, `[example]` in 0..1 (CALM, section 3).

    Args:
        task: names the metric D, and holds the references.
        texts: outputs with exits.
        full_texts: outputs with all blocks.
        kind: "textual", one minus the score of the output with that of all blocks as its reference; or "risk", by how much the score falls.
    """
    check_choice("kind", kind, CONSISTENCIES)
    metric = PRIMARY[task.name]
    if kind == "textual":
        same = np.array([text == full for text, full in zip(texts, full_texts, strict=True)])  # an output without a word scores 0 against itself
        return np.where(same, 0.0, 1 - per_example(task.name, texts, [[text] for text in full_texts])[metric] / 100)
    ours, full = (task.score_examples(list(each))[metric] for each in (texts, full_texts))
    return np.clip((full - ours) / 100, 0, 1)


def calibrate(
    model,
    task,
    policy: ExitPolicy,
    delta: float,
    eps: float = 0.05,
    *,
    thresholds: Sequence[float] = tuple(np.round(np.arange(1.0, 0.0, -0.05), 2)),
    kind: str = "textual",
    bound: str = "hoeffding_bentkus",
    **settings,
) -> Calibration:
    """The lowest threshold at which a policy keeps its demand, by real decoding of the calibration examples.

    Args:
        model: from `load_model`.
        task: the calibration examples; they must not be those that results are reported on.
        policy: any policy with a threshold, pruned and contrasted ones too.
        delta: the largest mean loss that is tolerated.
        eps: probability that the guarantee fails.
        thresholds: descending; decoding stops at the first that fails.
        kind: of the loss, see `consistency_losses`.
        bound: see `learn_then_test`.
        settings: of `generate`.

    Returns:
        A `Calibration` whose `policy` is ready for `generate`, or which says that no threshold satisfies the demand.
    """
    from ..decoding.generation import generate

    check_sweepable(policy)
    settings = {"encodings": {}, **settings}
    full = generate(model, task.inputs, None, **settings).texts

    def rows():
        for threshold in thresholds:
            found = generate(model, task.inputs, replace(policy, threshold=float(threshold)), **settings)
            yield consistency_losses(task, found.texts, full, kind)

    found = learn_then_test(rows(), thresholds, delta, eps, bound)
    return found if found.threshold is None else replace(found, policy=replace(policy, threshold=found.threshold))


def replayed_losses(trace, model, task, policy: ExitPolicy, thresholds: Sequence[float], kind: str = "textual", max_new_tokens: int = 64) -> np.ndarray:
    """Losses `[threshold, example]` of the outputs that a replay foretells: quick, for many thresholds, and no more than an estimate.

    Args:
        trace: of the model's own full-depth output on the inputs of the task, with states where the policy looks at them.
        model: of the trace.
        task: as in `calibrate`.
        policy: its threshold is replaced.
        thresholds: descending.
        kind: see `consistency_losses`.
        max_new_tokens: as in `replay`.
    """
    from ..decoding.greedy import detokenize
    from .readings import Readings, readings
    from .replay import confidences, replay

    check_sweepable(policy)
    if trace.along != "greedy" or len(set(trace.sequence)) != len(task):
        raise CompanionError("Give the trace of the model's own output, trace(model, task.inputs), on the calibration examples.")
    asked = confidences(trace, policy, model) if policy.read_out.plain else readings(trace, policy, model)
    blocks, starts = np.array([*policy.decision_layers(trace.layers), trace.layers]), np.flatnonzero(np.diff(trace.sequence, prepend=-1))
    said = asked.token_ids if isinstance(asked, Readings) else trace.top1_id[:, blocks - 1]
    end = model.network.config.eos_token_id

    def texts(tokens: np.ndarray) -> list[str]:
        rows = [ids.tolist() for ids in np.split(tokens, starts[1:])]
        return detokenize(model, [ids[: ids.index(end) + 1] if end in ids else ids for ids in rows])

    full, rows = texts(trace.final_id), []
    for threshold in thresholds:
        exits = replay(trace, replace(policy, threshold=float(threshold)), max_new_tokens, model, asked)
        chosen = said[np.arange(len(trace)), np.searchsorted(blocks, exits)]
        rows.append(consistency_losses(task, texts(chosen), full, kind))
    return np.stack(rows)


def check_sweepable(policy: ExitPolicy) -> None:
    """Refuses a policy without a threshold to choose."""
    if policy.schedule.learns or not policy.rule.has_threshold:
        raise CompanionError(f'"{policy.rule.name}" with threshold={policy.threshold!r} has no threshold to calibrate: give a measure with one.')


def violations(
    losses: np.ndarray, thresholds: Sequence[float], delta: float, eps: float = 0.05, bound: str | Callable = "hoeffding_bentkus", splits: int = 50,
    share: float = 0.5, seed: int = 0,
) -> pd.DataFrame:  # fmt: skip
    """The guarantee put to the test: calibrate on a random part of the examples, many times, and look at the chosen threshold's mean loss on all of them.

    The pool of examples stands for the population, so that "violated" is about what is guaranteed, the mean loss of the population, not about a test
    half with noise of its own. Splits share the pool and are not independent: their rate is no binomial draw; for that, draw new pools.

    Args:
        losses: `[threshold, example]`.
        thresholds: descending.
        delta: as in `learn_then_test`.
        eps: as in `learn_then_test`.
        bound: as in `learn_then_test`.
        splits: how many.
        share: of the examples that calibrate.
        seed: of the splits.

    Returns:
        One row a split: `threshold` (not a number where none passed), `mean_loss` of all examples there and `test_loss` of those that did not
        calibrate (both 0 where none passed: nobody exits), and `violated`, whether `mean_loss` exceeds delta.
    """
    losses, random, rows = np.asarray(losses, dtype=np.float64), np.random.default_rng(seed), []
    calibrating = round(share * losses.shape[1])
    if not 0 < calibrating < losses.shape[1]:
        raise CompanionError(f"share={share} of {losses.shape[1]} examples leaves none to calibrate on, or none to test on.")
    for _ in range(splits):
        order = random.permutation(losses.shape[1])
        found = learn_then_test(losses[:, order[:calibrating]], thresholds, delta, eps, bound)
        chosen = None if found.threshold is None else list(map(float, thresholds)).index(found.threshold)
        mean, test = (0.0, 0.0) if chosen is None else (float(losses[chosen].mean()), float(losses[chosen, order[calibrating:]].mean()))
        rows.append({"threshold": np.nan if chosen is None else found.threshold, "mean_loss": mean, "test_loss": test, "violated": mean > delta})
    return pd.DataFrame(rows)
