"""What follows from stored decodings: calibrated thresholds, the guarantee put to the test, fronts, and what keeps the score. No model is run.

`stored` is a `mee_utils.stored.Decodings`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd

from .calibration import learn_then_test, violations
from .comparison import Decoded, cheapest_keeping
from .curves import TESTS

WITHOUT_THRESHOLD = ("none", "oracle", "free_adaptive")
GROUP = ["task", "model", "rule"]


def sweepable(stored, model: str | None = None) -> list[tuple[tuple[str, str, str], pd.DataFrame]]:
    """Every task, model and rule with thresholds, and its settings, the safest first; static exits count as a rule whose threshold is the block."""
    found = stored.settings if model is None else stored.rows(model=model)
    groups = found[~found.rule.isin(WITHOUT_THRESHOLD)].groupby(GROUP, sort=False)
    return [(key, rows.sort_values("threshold", ascending=False, kind="stable")) for key, rows in groups]


def calibrated(stored, model: str, kinds: dict[str, Sequence[float]], bounds: Sequence[str] = ("hoeffding_bentkus", "betting")) -> pd.DataFrame:
    """The threshold that each rule gets for each demand, calibrated on all examples, and what it costs there.

    Args:
        stored: the decodings.
        model: which model.
        kinds: kind of loss ("textual", "risk") -> largest mean losses.
        bounds: how p-values are taken.

    Returns:
        One row a task, rule, kind, delta and bound: `threshold`, `mean_loss`, `retained`, `mean_exit_layer`, `flops_share`, and `found`: whether any
        threshold passed (else the costs are those of no exit).
    """
    rows = []
    for (task, _, rule), settings in sweepable(stored, model):
        thresholds = settings.threshold.tolist()
        for kind, bound in product(kinds, bounds):
            losses = stored.array(settings, kind)
            for delta in kinds[kind]:
                found = learn_then_test(losses, thresholds, delta, stored.eps, bound)
                row = {"task": task, "rule": rule, "kind": kind, "delta": delta, "bound": bound, "found": found.threshold is not None}
                if found.threshold is None:
                    rows.append(row | {"threshold": np.nan, "mean_loss": 0.0, "retained": 1.0, "mean_exit_layer": np.nan, "flops_share": 1.0})
                    continue
                place = thresholds.index(found.threshold)
                at = settings.iloc[place]
                rows.append(row | {"threshold": found.threshold, "mean_loss": float(losses[place].mean()), "retained": at.retained,
                                   "mean_exit_layer": at.mean_exit_layer, "flops_share": at.flops_share})  # fmt: skip
    return pd.DataFrame(rows)


def guarantee(stored, model: str, kinds: dict[str, Sequence[float]], splits: int = 50, share: float = 0.5) -> pd.DataFrame:
    """Violation rates over random calibration splits, with both bounds and without any test, for every rule.

    Args:
        stored: the decodings.
        model: which model.
        kinds: as in `calibrated`.
        splits: how many.
        share: of the examples that calibrate.

    Returns:
        One row a task, rule, kind, delta and bound ("no_test": the mean is taken at its word): `violated`, the share of splits whose threshold breaks
        its promise to the pool of all examples; `passed`, the share of splits in which any threshold passed; `mean_loss`, over splits.
    """
    rows = []
    for (task, _, rule), settings in sweepable(stored, model):
        for kind in kinds:
            losses = stored.array(settings, kind)
            for delta, (bound, test) in product(kinds[kind], TESTS.items()):
                found = violations(losses, settings.threshold.tolist(), delta, stored.eps, test, splits, share)
                rows.append({"task": task, "rule": rule, "kind": kind, "delta": delta, "bound": bound, "violated": found.violated.mean(),
                             "passed": found.threshold.notna().mean(), "mean_loss": found.mean_loss.mean()})  # fmt: skip
    return pd.DataFrame(rows)


def binomial_limit(draws: int, eps: float, level: float = 0.95) -> float:
    """The share of independent draws that may fail, with this certainty, if each fails with probability `eps`."""
    from scipy.stats import binom

    return float(binom.ppf(level, draws, eps) / draws)


def fresh_rates(fresh: pd.DataFrame, eps: float) -> pd.DataFrame:
    """Violation rates over independent calibration sets: `rule`, `bound`, `delta`, `violated`, `passed`, `sets`, and the binomial `limit` of the rate."""
    rows = []
    for (rule, bound, delta), part in fresh.groupby(["rule", "bound", "delta"], sort=False):
        rows.append({"rule": rule, "bound": bound, "delta": delta, "violated": part.violated.mean(), "passed": part.threshold.notna().mean(),
                     "sets": len(part), "limit": binomial_limit(len(part), eps)})  # fmt: skip
    return pd.DataFrame(rows)


def on_front(cost: Sequence[float], value: Sequence[float]) -> np.ndarray:
    """Which points no other beats: none is as cheap (or cheaper) and better, or cheaper and as good. Arrays `[point]`."""
    cost, value = np.asarray(cost, dtype=np.float64), np.asarray(value, dtype=np.float64)
    worse = [(((cost <= c) & (value > v)) | ((cost < c) & (value >= v))).any() for c, v in zip(cost, value, strict=True)]
    return ~np.array(worse)


def fronts(stored) -> pd.DataFrame:
    """All settings with `front`: whether it is on the front of score against operations of its task and model (the oracle, which nobody has, left out)."""
    parts = []
    for _, rows in stored.settings.groupby(["task", "model"], sort=False):
        real = rows.rule != "oracle"
        front = pd.Series(False, index=rows.index)
        front[real] = on_front(rows.flops_share[real], rows.score[real])
        parts.append(rows.assign(front=front))
    return pd.concat(parts).sort_index()


def keeping(stored, quality: float) -> pd.DataFrame:
    """For each task, model and rule the cheapest setting that keeps a share of the full score on every other example, checked on those between.

    Returns:
        `task`, `model`, `rule`, `threshold`, `checked` with `checked_low` and `checked_high` (what it keeps on the checking half), `not_refuted`,
        `mean_exit_layer`, `flops_share`; no row where no setting keeps it on the choosing half.
    """
    rows = []
    for (task, model), settings in stored.settings.groupby(["task", "model"], sort=False):
        decoded = {
            None if row.rule == "none" else (row.rule, place): Decoded(row.score, stored.examples[place], row.mean_exit_layer, row.flops_share, row.same_output, 1)
            for place, row in zip(settings.index, settings.itertuples(), strict=True)
        }  # fmt: skip
        for rule, (labels, share, low, high) in cheapest_keeping(decoded, quality).items():
            if labels:
                at = settings.loc[labels[1]]
                rows.append({"task": task, "model": model, "rule": rule, "threshold": at.threshold, "checked": share, "checked_low": low,
                             "checked_high": high, "not_refuted": high >= quality, "mean_exit_layer": at.mean_exit_layer,
                             "flops_share": at.flops_share})  # fmt: skip
    return pd.DataFrame(rows)


def keeping_on_both(stored, model: str, quality: float) -> pd.DataFrame:
    """Every setting that keeps a share of the full score on both halves of the examples: on examples 0, 2, 4 ... and on those between.

    Scores are means over single outputs. A setting that happens to keep it on both is still a lucky one among many; `low` and `high` are of all examples.

    Returns:
        `task`, `model`, `rule`, `threshold`, `retained` with `low` and `high` (all examples), `first_half`, `second_half`, `mean_exit_layer`, `flops_share`, and
        `cheapest`: whether it takes the fewest operations of those of its rule.
    """
    rows = []
    for task, settings in stored.rows(model=model).groupby("task", sort=False):
        full = stored.examples[settings.index[settings.rule == "none"][0]]
        for place, row in zip(settings.index, settings.itertuples(), strict=True):
            halves = [float(stored.examples[place][start::2].sum() / full[start::2].sum()) for start in (0, 1)]
            if row.rule != "none" and min(halves) >= quality:
                rows.append({"task": task, "model": model, "rule": row.rule, "threshold": row.threshold, "retained": row.retained, "low": row.low,
                             "high": row.high, "first_half": halves[0], "second_half": halves[1], "mean_exit_layer": row.mean_exit_layer,
                             "flops_share": row.flops_share})  # fmt: skip
    columns = ["task", "model", "rule", "threshold", "retained", "low", "high", "first_half", "second_half", "mean_exit_layer", "flops_share"]
    found = pd.DataFrame(rows, columns=columns)
    first = ~found.sort_values("flops_share", kind="stable").duplicated(["task", "rule"])
    return found.assign(cheapest=first.reindex(found.index).astype(bool))


def fastest(times: pd.DataFrame) -> pd.DataFrame:
    """Of timed settings the fastest of each task, rule and batch size, the fastest rule first."""
    ordered = times.sort_values("speed", ascending=False, kind="stable")
    return ordered.drop_duplicates(["task", "rule", "batch"]).reset_index(drop=True)


def timed(stored, model: str, quality: float) -> pd.DataFrame:
    """The settings that `make bench` times: what keeps the score (of each rule the cheapest on one half, and on both) and what was calibrated (textual,
    Hoeffding-Bentkus) on the main model, static exits, and on other models the middle one of each rule. One row each: `task`, `model`, `rule`, `threshold`."""
    keys = ["task", "model", "rule", "threshold"]
    found = calibrated(stored, model, {"textual": stored.deltas}, ["hoeffding_bentkus"])
    both = keeping_on_both(stored, model, quality)
    main = [keeping(stored, quality).query("model == @model and rule != 'oracle'")[keys], both[both.cheapest & (both.rule != "oracle")][keys], found[found.found].assign(model=model)[keys],
            stored.rows(model=model, rule="static")[keys]]  # fmt: skip
    others = [rows.iloc[[len(rows) // 2]][keys] for (_, name, _), rows in sweepable(stored) if name != model]
    return pd.concat([*main, *others]).drop_duplicates().reset_index(drop=True)


SEVERAL = ("rising_top1", "low_rank_three", "three_hidden", "lstm")  # rules that look at more than one block


def answer_lines(kept: pd.DataFrame, answer: pd.DataFrame, tasks: Sequence[str], quality: float, label) -> list[str]:
    """MEE's question in words, one line a task and batch size, from `keeping_on_both` and the `fastest` of its timed settings."""
    lines = []
    for task in tasks:
        safe = kept[(kept.task == task) & (kept.rule != "oracle")]
        several = safe[safe.rule.isin(SEVERAL)]
        if safe.empty:
            lines.append(f"{label(task)}: no rule keeps {quality:.0%} on both halves of the examples.")
            continue
        least = [f"{label(rows.loc[rows.flops_share.idxmin()].rule)} with {rows.flops_share.min():.0%} of the operations" if len(rows) else "none"
                 for rows in (several, safe)]  # fmt: skip
        lines.append(f"{label(task)}: of {safe.rule.nunique()} rules that keep {quality:.0%} on both halves {several.rule.nunique()} see several blocks; "
                     f"the cheapest of those: {least[0]}; of all: {least[1]}.")  # fmt: skip
        for batch, rows in answer[answer.task == task].groupby("batch"):
            kinds = {"several blocks": rows[rows.rule.isin(SEVERAL)], "other rules": rows[~rows.rule.isin((*SEVERAL, "static"))],
                     "a fixed block": rows[rows.rule == "static"]}  # fmt: skip
            best = {name: part.loc[part.speed.idxmax()] if len(part) else None for name, part in kinds.items()}
            lines.append(f"   tokens a second at batch {batch}, of no exit: " + "; ".join(
                f"{name} {row.speed:.2f} ({row.lowest:.2f} to {row.highest:.2f}, {label(row.rule)})" if row is not None else f"{name}: none timed"
                for name, row in best.items()))  # fmt: skip
    return lines


def ranking_at(chosen: pd.DataFrame, times: pd.DataFrame, delta: float) -> pd.DataFrame:
    """Rules at the same guaranteed quality, the cheapest first: textual loss, Hoeffding-Bentkus, one `delta`.

    Args:
        chosen: from `calibrated`.
        times: of its settings, from `mee_utils.bench.stored_results`.
        delta: one of those calibrated for.

    Returns:
        `task`, `rule`, `found`, `threshold`, `mean_exit_layer`, `flops_share`, `retained`, and the `speed` of batch 1 with its range (not a number
        where it was not timed).
    """
    rows = chosen[(chosen.kind == "textual") & (chosen.bound == "hoeffding_bentkus") & (chosen.delta == delta)]
    single = times[times.batch == 1].drop_duplicates(["task", "rule", "threshold"])[["task", "rule", "threshold", "speed", "lowest", "highest"]]
    merged = rows.assign(threshold=rows.threshold.round(4)).merge(single, on=["task", "rule", "threshold"], how="left")
    order = {task: place for place, task in enumerate(dict.fromkeys(chosen.task))}
    merged = merged.sort_values(["task", "flops_share"], key=lambda c: c.map(order) if c.name == "task" else c, kind="stable")
    return merged[["task", "rule", "found", "threshold", "mean_exit_layer", "flops_share", "retained", "speed", "lowest", "highest"]].reset_index(drop=True)


def bounds_compared(chosen: pd.DataFrame) -> pd.DataFrame:
    """How often each bound finds a threshold, and what is spent there on average: `kind`, `bound`, `found`, `flops_share`."""
    return chosen.groupby(["kind", "bound"], sort=False, as_index=False)[["found", "flops_share"]].mean()
