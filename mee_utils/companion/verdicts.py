"""What follows from stored measurements: chosen on validation examples, reported on test examples."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd

from ..analysis.beside_full import mean_exit_layer, result_rows
from ..analysis.calibration import BOUNDS, broken_guarantees, learn_then_test
from ..analysis.statistics import DRAWS, NOTHING, RESAMPLES, Estimate
from .catalogue import RULES
from .result_tables import KEEPS_IT, KEYS, LOSES_IT, UNDECIDED, Measured

WITHOUT_THRESHOLD = [name for name, rule in RULES.items() if not rule.thresholded]
# where no threshold passed
AT_FULL_DEPTH = {"retained": 1.0, "mean_exit_layer": np.nan, "flops_share": 1.0, "whole_share": 1.0}

BETWEEN = "between settings"  # where a number at equal loss was read off
NONE_LOSES_SO_MUCH = "none loses so much"
ALL_LOSE_MORE = "all lose more"

Demands = Mapping[str, Sequence[float]]  # kind of loss ("consistency", "risk") -> largest mean losses


def strictest_first(settings: pd.DataFrame) -> pd.DataFrame:
    """Settings of a rule in the order in which they are tested."""
    return settings.sort_values("threshold", ascending=False, kind="stable")


def searched(stored: Measured, part: str, model: str | None = None) -> Iterator[tuple[tuple, pd.DataFrame]]:
    """Every (task, model, rule) with thresholds (static: layers) and its settings, strictest first."""
    settings = stored.select(part) if model is None else stored.select(part, model=model)
    with_threshold = settings[~settings.rule.isin(WITHOUT_THRESHOLD)]
    for key, of_rule in with_threshold.groupby(KEYS[:3], sort=False):
        yield key, strictest_first(of_rule)


def keeping(stored: Measured, model: str, quality: float) -> pd.DataFrame:
    """For each rule the cheapest setting that keeps a share `quality` of the score; a row per task and rule.

    Settings are tested on the test examples in the order in which validation examples put them (`ranked`), as
    long as the lower bound (97.5 %) of what is kept, `low`, reaches `quality`. The order is fixed before a
    test example is looked at, so that the first setting that truly keeps less passes with a probability of at
    most 2.5 %, and only then can a later one: of all that pass none is wrong more often than that. Of these
    the one stands for the rule that took the fewest FLOPs on validation examples. A rule that fails at once
    has its first setting, with the `verdict` on that.
    """
    rows = [stored.rows(model=model)[:0]]
    tried = dict(list(stored.select("validation", model=model).groupby(KEYS[:3], sort=False)))
    for key, settings in searched(stored, "test", model):
        order = ranked(stored, settings, tried[key], quality)
        tested = stored.with_intervals(settings.loc[order.index])
        passed = passing(tested.low.to_numpy(), quality)
        cheapest = order.flops_share.iloc[:passed].argmin() if passed else 0
        rows.append(tested.iloc[[cheapest]].assign(validation_flops=order.flops_share.iloc[cheapest]))
    kept = pd.concat(rows[1:] or rows, ignore_index=True)
    sure = [kept.low >= quality, kept.high < quality]
    return kept.assign(verdict=np.select(sure, [KEEPS_IT, LOSES_IT], UNDECIDED))


def ranked(stored: Measured, settings: pd.DataFrame, tried: pd.DataFrame, quality: float) -> pd.DataFrame:
    """The order in which the test `settings` of a rule, strictest first, are tested.

    Those that keep a share `quality` of the score on the validation examples (`tried`) come first, the
    strictest before all, then the others: one that validation warns of does not end the rule. (Ordered by
    what is kept there, in place of strictness, the luck of validation puts loose settings before strict ones,
    and fewer pass.) One row a setting, with the index of `settings`: `kept` and `flops_share` on validation.
    """
    index_of = pd.Series(tried.index, index=tried.threshold)
    beside = stored.beside_full(tried.loc[index_of[settings.threshold]])
    order = pd.DataFrame({"kept": beside["retained"].value, "flops_share": beside["flops_share"].value})
    order.index = settings.index
    return pd.concat([order[order.kept >= quality], order[~(order.kept >= quality)]])


def passing(low: np.ndarray, quality: float) -> int:
    """How many of a sequence of settings pass, from their lower bounds `[setting]` in the order of testing.

    >>> passing(np.array([0.995, 0.992, 0.985, 0.999]), 0.99)
    2
    """
    return int(np.logical_and.accumulate(low >= quality).sum())


def within_loss(stored: Measured, model: str, demand: float) -> pd.DataFrame:
    """For each rule the loosest setting such that it and all stricter ones lose at most `demand`.

    That is found on the validation examples, and reported on the test examples; one row per task and rule.
    Where even the strictest setting loses more, it is that one.
    """
    rows = []
    tests = dict(list(stored.select(model=model).groupby(KEYS[:3], sort=False)))
    for key, settings in stored.select("validation", model=model).groupby(KEYS[:3], sort=False):
        tried = strictest_first(settings)
        tested = strictest_first(tests[key])
        mean_loss = stored.losses(tried).mean(axis=1, dtype=np.float64)
        passed = int(np.logical_and.accumulate(mean_loss <= demand).sum())
        loosest = tried.threshold.iloc[max(passed - 1, 0)]
        as_strict = ~(tested.threshold < loosest)  # NaN: the rule has one setting
        rows.append(tested.iloc[[max(int(as_strict.sum()) - 1, 0)]])
    return stored.with_intervals(pd.concat(rows)).reset_index(drop=True)


def at_equal_loss(stored: Measured, model: str, losses: Sequence[float]) -> pd.DataFrame:
    """What each rule spends at mean consistency losses of at most these: a row a task, rule and `wanted`.

    `flops_share` is read off the line through the rule's test settings, from the strictest at which a token
    exits to the loosest, never outside it; `reading` says where: `BETWEEN` settings, at the cheapest
    (`NONE_LOSES_SO_MUCH`), or not at all (`ALL_LOSE_MORE`, NaN), where even the strictest loses more.
    """
    rows = []
    for (task, _, rule), settings in searched(stored, "test", model):
        last_layer = mean_exit_layer(stored.full("test", task, model))
        exiting = [index for index in settings.index if mean_exit_layer(stored.examples[index]) < last_layer]
        beside = stored.beside_full(settings.loc[exiting or settings.index])
        loss = beside["consistency_loss"]
        for wanted in losses:
            if not exiting or loss.value[0] > wanted:
                reading = ALL_LOSE_MORE
                spent = NOTHING
            else:
                reading = BETWEEN if loss.value.max() >= wanted else NONE_LOSES_SO_MUCH
                spent = _spent_at(wanted, loss, beside["flops_share"])
            labels = {"task": task, "model": model, "rule": rule, "wanted": wanted, "reading": reading}
            rows.append(labels | spent.columns("flops_share", "flops_"))
    return pd.DataFrame(rows)


def _spent_at(wanted: float, loss: Estimate, flops: Estimate) -> Estimate:
    """The FLOPs at which a rule loses `wanted`, from those of its settings `[setting]`, strictest first.

    The value lies between settings. A resample in which the strictest loses more than `wanted` takes the line
    on to full depth (a loss of 0): its draw is then dearer, so that the interval is rather too wide.
    """
    start = np.zeros_like(loss.draws[:, :1])
    draws = crossing(np.hstack([start, loss.draws]), np.hstack([start + 1, flops.draws]), wanted)
    return Estimate(crossing(loss.value, flops.value, wanted).item(), draws)


def crossing(loss: np.ndarray, flops: np.ndarray, wanted: float) -> np.ndarray:
    """The FLOPs `[...]` at which a line through points `[..., point]`, in their order, first exceeds a loss.

    NaN where the first point loses more already, and the cheapest point where none loses as much.

    >>> crossing(np.array([0.02, 0.06]), np.array([0.8, 0.4]), 0.04).round(3)
    np.float64(0.6)
    """
    loss = np.maximum.accumulate(loss, axis=-1)
    last = loss.shape[-1] - 1
    within = (loss <= wanted).sum(axis=-1, keepdims=True)  # [..., 1], how many points lose no more
    before = np.maximum(within - 1, 0)  # the last of them
    after = np.minimum(before + 1, last)
    loss_before = np.take_along_axis(loss, before, axis=-1)
    loss_after = np.take_along_axis(loss, after, axis=-1)
    flops_before = np.take_along_axis(flops, before, axis=-1)
    flops_after = np.take_along_axis(flops, after, axis=-1)
    step = np.where(loss_after > loss_before, loss_after - loss_before, 1.0)
    spent = (flops_after - flops_before) / step * (wanted - loss_before) + flops_before
    exact = (loss_before == wanted) | (before == last)
    spent = np.where(exact, flops_before, spent)
    spent = np.where(loss[..., -1:] >= wanted, spent, flops.min(axis=-1, keepdims=True))
    return np.where(within > 0, spent, np.nan)[..., 0]


def calibrated(
    stored: Measured, model: str, demands: Demands, bounds: Sequence[str] = tuple(BOUNDS)
) -> pd.DataFrame:
    """The threshold of each rule for each demand by Learn then Test: one row per task, rule and demand.

    Thresholds come from validation examples; every other test example calibrates, and the rest reports. Where
    no threshold passed (`found`) no token exits.
    """
    no_token_exits = {"found": False, "threshold": np.nan, "mean_loss": 0.0, **AT_FULL_DEPTH}
    no_token_exits |= {name + DRAWS: np.full(RESAMPLES, value) for name, value in AT_FULL_DEPTH.items()}
    rows = []
    for (task, _, rule), settings in searched(stored, "test", model):
        passed = _passed(stored, settings, demands, bounds)
        numbers = sorted({number for *_, number in passed if number is not None})
        reporting = [stored.examples[settings.index[number]][1::2] for number in numbers]
        full = stored.full("test", task, model)[1::2]
        beside = dict(zip(numbers, result_rows(reporting, full) if numbers else [], strict=True))
        mean_losses = {kind: stored.losses(settings, kind)[:, 1::2].mean(axis=1) for kind in demands}
        for kind, bound, delta, number in passed:
            row = {"task": task, "rule": rule, "kind": kind, "delta": delta, "bound": bound}
            if number is None:
                row |= no_token_exits
            else:
                chosen = {
                    "threshold": settings.threshold.iloc[number],
                    "mean_loss": mean_losses[kind][number],
                }
                # what full depth has too comes first: columns do not depend on which threshold passed
                row |= {"found": True, **chosen} | AT_FULL_DEPTH | beside[number]
            rows.append(row)
    return pd.DataFrame(rows)


def _passed(
    stored: Measured, settings: pd.DataFrame, demands: Demands, bounds: Sequence[str]
) -> list[tuple[str, str, float, int | None]]:
    """Kind of loss, bound, delta, and the number of the setting that passed last for them; None: none did."""
    # in place of thresholds, which are NaN for a rule without one: from the safest setting on, as these
    descending = [-number for number in range(len(settings))]
    passed = []
    for kind, bound in product(demands, bounds):
        losses = stored.losses(settings, kind)[:, ::2]
        for delta in demands[kind]:
            last = learn_then_test(losses, descending, delta, stored.eps, bound).threshold
            number = None if last is None else -int(last)
            passed.append((kind, bound, delta, number))
    return passed


def fresh_rates(fresh: pd.DataFrame, deltas: Sequence[float], eps: float, sets: int) -> pd.DataFrame:
    """How often guarantees were broken on fresh sets: one row per `rule`, `bound` and `delta`.

    `fresh` has one row per rule, threshold and example. To `deltas` are added the hardest demands: a
    hundredth below the mean loss of each threshold, which must then just not pass. `violated` and `passed`
    are shares of the sets, `limit` is what chance allows, `p_value` that of so many violations if the
    guarantee holds.
    """
    from scipy.stats import binom  # takes half a second to import

    tables = []
    for rule, of_rule in fresh.groupby("rule", sort=False):
        losses = {threshold: rows.loss for threshold, rows in of_rule.groupby("threshold", sort=False)}
        stacked = np.stack(list(losses.values()))
        hardest = (0.99 * stacked.mean(axis=1, dtype=np.float64)).round(4)
        demands = sorted({*deltas, *hardest[hardest > 0]})
        table = broken_guarantees(stacked, list(losses), demands, eps, sets)
        tables.append(table.assign(rule=rule, passed=table.threshold.notna()))
    groups = pd.concat(tables).groupby(["rule", "bound", "delta"], sort=False)
    rates = groups.agg(violated=("violated", "mean"), passed=("passed", "mean"), sets=("passed", "size"))
    by_chance = binom.sf(np.round(rates.violated * rates.sets) - 1, rates.sets, eps)
    return rates.assign(limit=binom.ppf(0.95, rates.sets, eps) / rates.sets, p_value=by_chance).reset_index()


def on_front(cost: Sequence[float], value: Sequence[float]) -> np.ndarray:
    """`[point]`: whether no other point is cheaper and as good, or as cheap and better."""
    cost = np.asarray(cost, dtype=np.float64)
    value = np.asarray(value, dtype=np.float64)
    no_dearer = cost <= cost[:, None]  # [point, other point]
    no_worse = value >= value[:, None]
    differs = (cost < cost[:, None]) | (value > value[:, None])
    return ~(no_dearer & no_worse & differs).any(axis=1)


def fronts(stored: Measured) -> pd.DataFrame:
    """All test settings; `front`: on the front of score against FLOPs of task and model (oracle apart)."""
    settings = stored.rows()
    front = pd.Series(False, index=settings.index)
    for _, rows in settings[settings.rule != "oracle"].groupby(["task", "model"], sort=False):
        front[rows.index] = on_front(rows.flops_share, rows.score)
    return settings.assign(front=front)
