"""What follows from stored measurements: chosen on validation examples, reported on test examples."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd
from scipy.stats import binom

from ..analysis.calibration import broken_promises, learn_then_test
from ..analysis.statistics import DRAWS, RESAMPLES, Interval, percentiles
from .catalogue import RULES, SEVERAL_LAYERS
from .result_tables import KEPT, KEYS, Measured, best_of_families, described

BOUNDS = ("hoeffding_bentkus", "betting")
WITHOUT_THRESHOLD = [name for name, rule in RULES.items() if not rule.thresholded]
FULL_DEPTH = {"retained": 1.0, "mean_exit_layer": np.nan, "flops_share": 1.0}
FULL_DEPTH |= {name + DRAWS: np.full(RESAMPLES, value) for name, value in FULL_DEPTH.items()}
FULL_DEPTH = {"found": False, "threshold": np.nan, "mean_loss": 0.0} | FULL_DEPTH

KINDS = ("several layers", "other rules", "a fixed layer")
KIND_OF = {"static": KINDS[2]} | dict.fromkeys(SEVERAL_LAYERS, KINDS[0])  # a rule's, if not the second

Demands = Mapping[str, Sequence[float]]  # kind of loss ("consistency", "risk") -> largest mean losses


def searched(stored: Measured, part: str, model: str | None = None) -> Iterator[tuple[tuple, pd.DataFrame]]:
    """Every (task, model, rule) with thresholds (static: layers) and its settings, strictest first."""
    rows = stored.rows(part) if model is None else stored.rows(part, model=model)
    for key, found in rows[~rows.rule.isin(WITHOUT_THRESHOLD)].groupby(KEYS[:3], sort=False):
        yield key, found.sort_values("threshold", ascending=False, kind="stable")


def keeping(stored: Measured, model: str, quality: float) -> pd.DataFrame:
    """For each rule the last setting that keeps a share `quality` of the score; a row a task and rule.

    Thresholds come from validation examples. On the test examples they are tested from the strictest down,
    until the lower bound (97.5 %) of what is kept, `low`, falls below `quality`; in a fixed sequence so many
    tests cost no certainty. A rule that fails at once has its strictest setting, with the `verdict` on that.
    """
    rows = []
    for _, found in searched(stored, "test", model):
        passed = int(np.logical_and.accumulate(found.low >= quality).sum())
        rows.append(found.iloc[[max(passed - 1, 0)]])
    kept = pd.concat(rows, ignore_index=True) if rows else stored.rows(model=model)[:0]
    enough = [kept.low >= quality, kept.high < quality]
    return kept.assign(verdict=np.select(enough, KEPT[:2], KEPT[2]))


def within_loss(stored: Measured, model: str, demand: float) -> pd.DataFrame:
    """For each rule the last setting up to which none loses more than `demand` on the validation examples, or
    its strictest, as it does on the test examples; a row a task and rule.
    """
    rows, strictest_first = [], dict(by="threshold", ascending=False, kind="stable")
    test = dict(list(stored.rows(model=model).groupby(KEYS[:3], sort=False)))
    for key, tried in stored.rows("validation", model=model).groupby(KEYS[:3], sort=False):
        tried, own = tried.sort_values(**strictest_first), test[key].sort_values(**strictest_first)
        kept = int(np.logical_and.accumulate(tried.consistency_loss <= demand).sum())
        as_strict = ~(own.threshold < tried.threshold.iloc[max(kept - 1, 0)])  # NaN: there is one setting
        rows.append(own.iloc[[max(int(as_strict.sum()) - 1, 0)]])
    return pd.concat(rows, ignore_index=True)


def at_equal_loss(stored: Measured, model: str, losses: Sequence[float], within=False) -> pd.DataFrame:
    """What each rule spends at these mean consistency losses: one row a task, rule and `wanted`.

    `flops_share` is read off the line through the rule's test settings and full depth (a loss of 0), with an
    interval. Where no setting loses as much there is no row, or (`within`) the cheapest of all.
    """
    rows = []
    for (task, _, rule), found in searched(stored, "test", model):
        loss, flops = (_with_draws(found, name) for name in ("consistency_loss", "flops_share"))
        loss, flops = np.insert(loss, 0, 0.0, axis=1), np.insert(flops, 0, 1.0, axis=1)
        for wanted in losses:
            drawn = np.array([_crossing(*line, wanted, within) for line in zip(loss, flops, strict=True)])
            if np.isfinite(drawn[0]):
                row = {"task": task, "model": model, "rule": rule, "wanted": wanted}
                spent = Interval(drawn[0], *percentiles(drawn[1:]), drawn[1:])
                rows.append(row | spent.columns("flops_share", "flops_"))
    return pd.DataFrame(rows)


def _with_draws(rows: pd.DataFrame, name: str) -> np.ndarray:
    """A column and its draws, `[1 + resample, setting]`."""
    return np.vstack([rows[name], np.transpose(rows[f"{name}{DRAWS}"].to_list())])


def _crossing(loss: np.ndarray, flops: np.ndarray, wanted: float, within: bool) -> float:
    """The FLOPs at which a line through points in the order of thresholds first exceeds a loss."""
    loss = np.maximum.accumulate(loss)
    if loss[-1] < wanted:
        return float(flops.min()) if within else np.nan
    return float(np.interp(wanted, loss, flops))


def calibrated(stored: Measured, model: str, demands: Demands, bounds=BOUNDS) -> pd.DataFrame:
    """The threshold of each rule for each demand by learn-then-test: one row a task, rule and demand.

    Thresholds come from validation examples; every other test example calibrates, and the rest reports. Where
    no threshold passed (`found`) nobody exits.
    """
    rows = []
    for (task, _, rule), settings in searched(stored, "test", model):
        thresholds, full = settings.threshold.tolist(), stored.full("test", task, model)
        reported = described([stored.examples[place][1::2] for place in settings.index], full[1::2])
        for kind, bound in product(demands, bounds):
            losses = stored.losses(settings, kind)
            for delta in demands[kind]:
                row = {"task": task, "rule": rule, "kind": kind, "delta": delta, "bound": bound, **FULL_DEPTH}
                chosen = learn_then_test(losses[:, ::2], thresholds, delta, stored.eps, bound).threshold
                if chosen is not None:
                    place = thresholds.index(chosen)
                    row |= reported[place]
                    row |= {"found": True, "threshold": chosen, "mean_loss": losses[place, 1::2].mean()}
                rows.append(row)
    return pd.DataFrame(rows)


def fresh_rates(fresh: pd.DataFrame, deltas: Sequence[float], eps: float, sets: int) -> pd.DataFrame:
    """How often promises were broken on fresh sets: a row a `rule`, `bound` and `delta`.

    `fresh` has a row a rule, threshold and example. To `deltas` are added the hardest demands: a hundredth
    below the mean loss of each threshold, which must then just not pass. `violated` and `passed` are shares
    of the sets, `limit` is what chance allows, `p_value` that of so many violations if the promise is kept.
    """
    tables = []
    for rule, found in fresh.groupby("rule", sort=False):
        losses = {threshold: rows.loss for threshold, rows in found.groupby("threshold", sort=False)}
        stacked = np.stack(list(losses.values()))
        hardest = 0.99 * stacked.mean(axis=1, dtype=np.float64)
        demands = sorted({*deltas, *hardest[hardest > 0].round(4)})
        table = broken_promises(stacked, list(losses), demands, eps, sets)
        tables.append(table.assign(rule=rule, passed=table.threshold.notna()))
    groups = pd.concat(tables).groupby(["rule", "bound", "delta"], sort=False)
    rates = groups.agg(violated=("violated", "mean"), passed=("passed", "mean"), sets=("passed", "size"))
    by_chance = binom.sf(np.round(rates.violated * rates.sets) - 1, rates.sets, eps)
    return rates.assign(limit=binom.ppf(0.95, rates.sets, eps) / rates.sets, p_value=by_chance).reset_index()


def on_front(cost: Sequence[float], value: Sequence[float]) -> np.ndarray:
    """`[point]`: whether no other point is cheaper and as good, or as cheap and better."""
    cost, value = np.asarray(cost, dtype=np.float64), np.asarray(value, dtype=np.float64)
    no_dearer, no_worse = cost <= cost[:, None], value >= value[:, None]
    return ~(no_dearer & no_worse & ((cost < cost[:, None]) | (value > value[:, None]))).any(axis=1)


def fronts(stored: Measured) -> pd.DataFrame:
    """All test settings; `front`: on the front of score against FLOPs of task and model (oracle apart)."""
    settings = stored.rows()
    front = pd.Series(False, index=settings.index)
    for _, rows in settings[settings.rule != "oracle"].groupby(["task", "model"], sort=False):
        front[rows.index] = on_front(rows.flops_share, rows.score)
    return settings.assign(front=front)


def fastest(times: pd.DataFrame) -> pd.DataFrame:
    """Of timed settings the fastest of each task, rule and batch size, the fastest rule first (`ranked`)."""
    ordered = times.sort_values("ranked", ascending=False, kind="stable")
    return ordered.drop_duplicates(["task", "rule", "batch"]).reset_index(drop=True)


def timed(stored: Measured, model: str) -> pd.DataFrame:
    """The settings that `make bench` times besides those of `keeping`: `task`, `model`, `rule`, `threshold`.

    On the main model the cheapest of each family of what was calibrated (consistency, Hoeffding-Bentkus), if
    it saves FLOPs, and static exits; on the other models the middle setting of each rule.
    """
    chosen = calibrated(stored, model, {"consistency": stored.deltas}, BOUNDS[:1]).assign(model=model)
    chosen = best_of_families(chosen[chosen.flops_share < 1], ["task", "delta"], "flops_share")
    static = stored.rows(model=model, rule="static")
    others = [rows.iloc[[len(rows) // 2]] for (_, name, _), rows in searched(stored, "test") if name != model]
    several = (chosen, static, *others)
    return pd.concat([rows[KEYS] for rows in several]).drop_duplicates().reset_index(drop=True)


def answer_lines(kept, answer, tasks: Sequence[str], quality: float, label: Callable) -> Iterator[str]:
    """MEE's question answered in words, from `keeping` and `fastest`; `label` says a name in words."""
    first = lambda rows, text, nothing: next((text.format(r=r) for r in rows.itertuples()), nothing)
    kind_of = lambda rule: KIND_OF.get(rule, KINDS[1])
    named = lambda rows: rows.assign(label=rows.rule.map(label), kind=rows.rule.map(kind_of))
    kept = named(kept[kept.verdict == KEPT[0]].sort_values("flops_share", kind="stable"))
    answer = named(answer)
    for task in tasks:
        safe = kept[kept.task == task]
        if safe.empty:
            yield f"{label(task)}: of no rule it is certain that it keeps {quality:.0%}."
            continue
        several, cheapest = safe[safe.kind == KINDS[0]], "{r.label} with {r.flops_share:.0%} of the FLOPs"
        kinds = (
            f"{len(safe)} rules keep {quality:.0%}, {(safe.flops_share < 1).sum()} of them for fewer FLOPs"
        )
        costs = f"{first(several, cheapest, 'none')}; of all: {first(safe, cheapest, 'none')}"
        yield f"{label(task)}: {kinds}; {len(several)} see several layers; the cheapest of those: {costs}."
        speed = "{r.kind} {r.speed:.2f} ({r.lowest:.2f} to {r.highest:.2f}, {r.label})"
        for batch, rows in answer[answer.task == task].groupby("batch"):
            parts = [first(rows[rows.kind == kind], speed, f"{kind}: none timed") for kind in KINDS]
            yield f"   tokens a second at batch {batch}, of full depth: " + "; ".join(parts)
