"""Calibrated exits: the lowest threshold with guaranteed quality (CALM, 3 and 4; Angelopoulos et al. 2021).

Wanted is a threshold with `P(E[loss] <= delta) >= 1 - eps`, over the draw of the calibration examples. *Learn
then test* tries thresholds from the safest down, with a p-value each for "the mean loss there exceeds delta",
and returns the last before the first above `eps`. Losses `[threshold, example]` in 0..1 come from decoding
(the guarantee) or from a replay (an estimate: it does not see how an exit changes later tokens).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np
import pandas as pd
from scipy.special import bdtr  # the binomial distribution; scipy.stats takes half a second to import

from ..common.errors import MeeError, check_choice, is_number, shown
from ..decoding.generation import generate
from ..decoding.inputs import EncoderCache, check_model
from ..exits.policy import ExitPolicy
from ..tasks.loading import Task
from ..traces.replay import check_policy

LOSSES = ("consistency", "risk")
SOURCES = {"decoding": "guaranteed by decoding", "replay": "an estimate by replay, no guarantee"}


def hoeffding_bentkus(losses: np.ndarray, delta: float, eps: float = 0.05) -> float:
    """p-value of "the mean loss exceeds delta" for losses `[example]` in 0..1 that are independent draws.

    The smaller of Hoeffding's bound, `exp(-n h(min(m, delta), delta))` with the relative entropy `h` and the
    observed mean `m`, and Bentkus's, `e P(Binomial(n, delta) <= ceil(n m))` (Bates et al. 2021, Prop. 4; CALM
    uses it). `eps` is not used; p-values share one signature.
    """
    count = len(losses)
    mean = float(np.mean(losses))
    capped = min(mean, delta)
    lost = capped * np.log(capped / delta) if capped > 0 else 0.0
    entropy = (1 - capped) * np.log((1 - capped) / (1 - delta)) + lost  # h(min(m, delta), delta)
    hoeffding = np.exp(-count * entropy)
    bentkus = np.e * bdtr(np.ceil(count * mean - 1e-9), count, delta)
    return float(min(1.0, hoeffding, bentkus))


def betting(losses: np.ndarray, delta: float, eps: float = 0.05) -> float:
    """A betting p-value, tighter if losses vary little (Waudby-Smith and Ramdas 2024).

    One over the largest capital `prod(1 - v_i (loss_i - delta))` (Ville), with stakes `v_i = min(1, sqrt(2
    log(1/eps) / (n s_(i-1))))` and the variance `s` of the losses before. The order of the losses `[example]`
    must not depend on them; the stake aims at the level `eps`, but any is valid.
    """
    losses = np.asarray(losses, dtype=np.float64)
    number = np.arange(1, len(losses) + 1)
    means = (0.5 + np.cumsum(losses)) / (1 + number)
    variances = (0.25 + np.cumsum((losses - means) ** 2)) / (1 + number)
    before = np.concatenate([[0.25], variances[:-1]])
    stakes = np.minimum(1.0, np.sqrt(2 * np.log(1 / eps) / (len(losses) * before)))
    capital = np.cumsum(np.log1p(-stakes * (losses - delta)))
    return float(min(1.0, np.exp(-capital.max())))


def no_test(losses: np.ndarray, delta: float, eps: float) -> float:
    """No test, and no guarantee: accept if the mean of the calibration examples is at most delta."""
    return 0.0 if float(np.mean(losses)) <= delta else 1.0


BOUNDS: dict[str, Callable] = {"hoeffding_bentkus": hoeffding_bentkus, "betting": betting}
TESTS = BOUNDS | {"no_test": no_test}  # ways to choose a threshold, two with a guarantee


@dataclass(frozen=True)
class Calibration:
    """What learn-then-test says of thresholds `tested`, highest first; the last failed unless all passed.

    Attributes:
        threshold: the lowest that passed with all above it; None if not even the highest did.
        source: of the losses, "decoding" (guaranteed) or "replay" (an estimate).
        policy: ready for `generate`; None if there is no threshold.
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
        certainty = f"with {1 - self.eps:.0%} certainty on {self.examples} examples"
        demand = f"a mean loss of at most {self.delta:g} {certainty}"
        if self.threshold is None:
            highest = f"the highest, {self.tested[0]:g}, has p = {self.p_values[0]:.3g}"
            return f"No threshold satisfies {demand} ({highest}): use more examples, or a larger delta."
        return f"Threshold {self.threshold:g} for {demand}: {SOURCES[self.source]}."

    def outcome(self, losses: np.ndarray) -> dict[str, float]:
        """What the threshold does to other `losses` `[threshold, example]`, whose rows are those of `tested`.

        Returns:
            `threshold` (NaN if none passed), `mean_loss` (then 0: no token exits), and `violated`, whether
            that exceeds delta.
        """
        if self.threshold is None:
            return {"threshold": np.nan, "mean_loss": 0.0, "violated": False}
        mean = float(_checked_losses(losses[self.tested.index(self.threshold)]).mean())
        return {"threshold": self.threshold, "mean_loss": mean, "violated": mean > self.delta}


def check_demand(thresholds: Sequence[float], delta: float, eps: float) -> list[float]:
    """The thresholds as a list of numbers.

    Raises:
        MeeError: they are no numbers or do not descend strictly; or `delta` (the largest mean loss) or `eps`
            (the probability that the guarantee fails) is not between 0 and 1.
    """
    unmet = "a mean loss of 0 cannot be guaranteed from examples, and 1 always is; give a"
    wanted = {"delta": (delta, unmet), "eps": (eps, "give the probability of failing (the papers: 0.05), a")}
    for name, (value, what) in wanted.items():
        if not is_number(value) or not 0 < value < 1:
            raise MeeError(f"{name}={shown(value)}: {what} value between 0 and 1.")
    if np.ndim(thresholds) != 1 or not all(map(is_number, thresholds)):
        raise MeeError(f"thresholds={shown(thresholds)}: give a list of numbers, such as [0.9, 0.8, 0.7].")
    levels = [float(level) for level in thresholds]
    if not levels or any(low >= high for high, low in pairwise(levels)):
        raise MeeError("Thresholds must descend strictly from the safest on; give at least one.")
    return levels


def learn_then_test(
    losses: Iterable[np.ndarray],
    thresholds: Sequence[float],
    delta: float,
    eps: float = 0.05,
    bound: str | Callable = "hoeffding_bentkus",
    source: str = "decoding",
) -> Calibration:
    """The last threshold that passes, testing from the highest down and stopping at the first that fails.

    Args:
        losses: `[threshold, example]` in 0..1, or rows that are only taken while tests pass.
        thresholds: one for each row, strictly descending.
        delta: the largest mean loss that is tolerated.
        eps: the probability that the guarantee fails.
        bound: one of `BOUNDS`, or a user-defined p-value, `(losses [example], delta, eps) -> number`.
        source: of the losses, "decoding" or "replay": decides what is said of the result.

    Raises:
        MeeError: no examples, losses outside 0..1, thresholds that do not descend, or delta or eps outside
            (0, 1).
    """
    levels = check_demand(thresholds, delta, eps)
    delta = float(delta)
    eps = float(eps)
    check_choice("source", source, SOURCES)
    p_value = _find_bound(bound)
    threshold = None
    tested = []
    p_values = []
    mean_losses = []
    examples = 0
    for level, row in zip(levels, losses, strict=False):
        row = _checked_losses(row)
        examples = len(row)
        p = p_value(row, delta, eps)
        if not is_number(p) or p < 0:  # NaN, as of a test that has nothing to go by, is none
            named = bound if isinstance(bound, str) else getattr(bound, "__name__", shown(bound))
            raise MeeError(f"bound={named} returned {shown(p)}: a p-value is a number from 0 to 1.")
        tested.append(level)
        p_values.append(float(p))
        mean_losses.append(float(row.mean()))
        if p_values[-1] > eps:
            break
        threshold = level
    if not tested:
        raise MeeError("There are no losses: give one row of losses for each threshold.")
    return Calibration(
        threshold=threshold,
        tested=tuple(tested),
        p_values=tuple(p_values),
        mean_losses=tuple(mean_losses),
        delta=delta,
        eps=eps,
        examples=examples,
        source=source,
    )


def _find_bound(bound: str | Callable) -> Callable:
    """A p-value by its name, or the one that was given."""
    return bound if callable(bound) else BOUNDS[check_choice("bound", bound, BOUNDS)]


def _checked_losses(row) -> np.ndarray:
    """Losses `[example]` as numbers; an error if there are none, or if they are not between 0 and 1."""
    row = np.asarray(row, dtype=np.float64)
    if row.ndim != 1 or not len(row):
        raise MeeError("There are no calibration examples: give some hundred for a small delta.")
    if not (np.isfinite(row).all() and row.min() >= 0 and row.max() <= 1):
        raise MeeError("Losses must lie between 0 and 1: divide percentages by 100.")
    return row


def consistency_losses(
    task: Task, texts: Sequence[str], full_texts: Sequence[str], kind: str = "consistency"
) -> np.ndarray:
    """Losses of exits against full depth, `[example]` in 0..1 (CALM, section 3), by the metric of the task.

    Args:
        task: whose metric scores, and whose references "risk" needs.
        texts: outputs with exits.
        full_texts: outputs at full depth, in the same order.
        kind: "consistency", one minus the score of an output with that of full depth as its reference; or
            "risk", by how much the score against the references falls, at least 0.

    Raises `MeeError` for another kind, or not one text for each example.
    """
    check_choice("kind", kind, LOSSES)
    metric = task.metric
    if kind == "risk":
        ours, full = (task.score_examples(list(each))[metric] for each in (texts, full_texts))
        return np.clip((full - ours) / 100, 0, 1)
    # an output without a word scores 0 against itself
    same = np.array([text == full for text, full in zip(texts, full_texts, strict=True)])
    references = [[text] for text in full_texts]
    scores = task.kind.score_examples(list(texts), references, task.language)[metric]
    return np.where(same, 0.0, np.clip(1 - scores / 100, 0, 1))  # a BLEU can be 100 and a rounding


def calibrate(
    model,
    task: Task,
    policy: ExitPolicy,
    delta: float,
    eps: float = 0.05,
    *,
    thresholds: Sequence[float] | None = None,
    kind: str = "consistency",
    bound: str = "hoeffding_bentkus",
    **settings,
) -> Calibration:
    """The lowest threshold of a policy that meets the bound, found by decoding the calibration examples.

    Args:
        model: from `load_model`.
        task: the calibration examples, from `load_task`; not those that results are reported on.
        policy: any policy with a threshold, pruned and contrasted ones too; its decay stays.
        delta, eps: the largest mean loss that is tolerated, and the probability that the guarantee fails.
        thresholds: descending; decoding stops at the first that fails. By default 1, 0.95, .. 0.05, or for
            rules that count decision layers all numbers from the depth down; a confidence on another scale,
            such as one on logits, needs its own.
        kind, bound, settings: see `consistency_losses`, `learn_then_test` and `generate`.

    Returns:
        The `Calibration`; its `policy` is ready for `generate`, or None if no threshold passed.

    Raises:
        MeeError: something that is no task or policy, a policy without a threshold, and as `learn_then_test`
            and `generate` do.
    """
    check_model(model)
    check_choice("kind", kind, LOSSES)  # before anything is decoded
    _find_bound(bound)
    if not isinstance(task, Task):
        raise MeeError(f"task={task!r:.60}: give a Task, from load_task; its references score outputs.")
    measure = check_policy(policy).measure
    if thresholds is None:
        low, high = measure.range
        thresholds = range(model.layers, -1, -1) if high > 1 else np.round(np.arange(1.0, 0.0, -0.05), 2)
        if not low <= min(thresholds) <= max(thresholds) <= high:
            raise MeeError(
                f'"{measure.name}" has confidences from {low:g} to {high:g}: give thresholds=[...].'
            )
    policies = [policy.at_threshold(level) for level in check_demand(thresholds, delta, eps)]
    settings = {"encodings": EncoderCache(), **settings}
    full = generate(model, task.inputs, None, **settings).texts
    texts = (generate(model, task.inputs, each, **settings).texts for each in policies)  # while tests pass
    losses = (consistency_losses(task, decoded, full, kind) for decoded in texts)
    calibration = learn_then_test(losses, thresholds, delta, eps, bound)
    if calibration.threshold is None:
        return calibration
    return replace(calibration, policy=policy.at_threshold(calibration.threshold))


def violations(
    losses: np.ndarray,
    thresholds: Sequence[float],
    delta: float,
    eps: float = 0.05,
    bound: str | Callable = "hoeffding_bentkus",
    splits: int = 50,
    share: float = 0.5,
) -> pd.DataFrame:
    """The guarantee put to the test: calibrate on a random `share` of the examples, in many `splits`.

    `losses` are `[threshold, example]`; other arguments are those of `learn_then_test`. One row a split, the
    `Calibration.outcome` of all examples: these stand for the population, whose mean loss is what is
    guaranteed. Splits are not independent, and their rate is no binomial draw: see `broken_guarantees`.
    Raises `MeeError` for a share that leaves no example on one side.
    """
    losses = np.asarray(losses, dtype=np.float64)
    random = np.random.default_rng(0)
    examples = losses.shape[1]
    calibrating = round(share * examples)
    if not 0 < calibrating < examples:
        raise MeeError(f"share={share} of {examples} examples leaves none to calibrate or to test on.")
    rows = []
    for _ in range(splits):
        chosen = random.permutation(examples)[:calibrating]
        calibration = learn_then_test(losses[:, chosen], thresholds, delta, eps, bound)
        rows.append(calibration.outcome(losses))
    return pd.DataFrame(rows)


def broken_guarantees(
    losses: np.ndarray, thresholds: Sequence[float], deltas: Iterable[float], eps: float, sets: int
) -> pd.DataFrame:
    """Whether the guarantee holds in the population for thresholds from independent calibration sets.

    The examples of `losses` `[threshold, example]`, decoded for this purpose alone, are dealt out to `sets`
    disjoint sets, and stand together for the population. One row a `bound`, `delta` and `set`: `threshold`
    (NaN if none passed), `mean_loss` of the population, `violated`.
    """
    size = losses.shape[1] // sets
    if size == 0:
        raise MeeError(f"{losses.shape[1]} examples cannot be dealt out to {sets} sets: give fewer sets.")
    rows = []
    for (bound, test), delta, number in product(TESTS.items(), deltas, range(sets)):
        part = losses[:, number * size : (number + 1) * size]
        calibration = learn_then_test(part, thresholds, delta, eps, test)
        rows.append({"bound": bound, "delta": delta, "set": number, **calibration.outcome(losses)})
    return pd.DataFrame(rows)
