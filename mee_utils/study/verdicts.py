"""What follows from a stored threshold sweep: calibration, the guarantee, fronts, what keeps the score."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd

from ..analysis.calibration import TESTS, learn_then_test, violations
from .catalogue import RULES, SEVERAL_LAYERS
from .result_tables import KEYS, SweepResults

BOUNDS = ("hoeffding_bentkus", "betting")
WITHOUT_THRESHOLD = [name for name, rule in RULES.items() if not rule.thresholded]
FULL_DEPTH = {"found": False, "threshold": np.nan, "mean_loss": 0.0, "retained": 1.0}
FULL_DEPTH |= {"mean_exit_layer": np.nan, "flops_share": 1.0}

Demands = Mapping[str, Sequence[float]]  # kind of loss ("consistency", "risk") -> largest mean losses


def sweepable(stored: SweepResults, model: str | None = None) -> list[tuple[tuple, pd.DataFrame]]:
    """Every (task, model, rule) with a threshold (static: a layer) and its settings, strictest first."""
    rows = stored.settings if model is None else stored.rows(model=model)
    groups = rows[~rows.rule.isin(WITHOUT_THRESHOLD)].groupby(KEYS[:3], sort=False)
    return [(key, part.sort_values("threshold", ascending=False, kind="stable")) for key, part in groups]


def _losses(stored: SweepResults, model: str, kinds: Iterable[str]) -> Iterator[tuple]:
    """Of every task, rule and kind of loss: these labels, the settings, losses `[setting, example]`."""
    for (task, _, rule), settings in sweepable(stored, model):
        for kind in kinds:
            yield {"task": task, "rule": rule, "kind": kind}, settings, stored.array(settings, kind)


def calibrated(stored: SweepResults, model: str, demands: Demands, bounds=BOUNDS) -> pd.DataFrame:
    """The threshold of each rule for each demand, calibrated on all examples by learn-then-test.

    Returns one row a task, rule, `kind`, `delta` and `bound`: `found` (whether a threshold passed; else the
    rest is that of full depth), `threshold`, `mean_loss`, `retained`, `mean_exit_layer`, `flops_share`.
    """
    rows = []
    for labels, settings, losses in _losses(stored, model, demands):
        thresholds = settings.threshold.tolist()
        for bound, delta in product(bounds, demands[labels["kind"]]):
            row = {**labels, "delta": delta, "bound": bound, **FULL_DEPTH}
            chosen = learn_then_test(losses, thresholds, delta, stored.eps, bound).threshold
            if chosen is not None:
                place = thresholds.index(chosen)
                row |= {"found": True, "threshold": chosen, "mean_loss": float(losses[place].mean())}
                row |= settings.iloc[place][["retained", "mean_exit_layer", "flops_share"]].to_dict()
            rows.append(row)
    return pd.DataFrame(rows)


def guarantee(stored: SweepResults, model: str, demands: Demands, splits: int = 50) -> pd.DataFrame:
    """How often thresholds calibrated on half of the examples break their promise, over random splits.

    Returns one row a task, rule, `kind`, `delta` and `bound` ("no_test": the mean is taken at its word):
    `violated`, the share of splits whose threshold exceeds delta on all examples; `passed`, the share of
    splits with a threshold; `mean_loss`, over splits.
    """
    rows = []
    for labels, settings, losses in _losses(stored, model, demands):
        for delta, (bound, test) in product(demands[labels["kind"]], TESTS.items()):
            found = violations(losses, settings.threshold.tolist(), delta, stored.eps, test, splits)
            found = found.assign(passed=found.threshold.notna())[["violated", "passed", "mean_loss"]]
            rows.append({**labels, "delta": delta, "bound": bound, **found.mean()})
    return pd.DataFrame(rows)


def binomial_limit(draws: int, eps: float, level: float = 0.95) -> float:
    """The share of independent draws that may fail, at this level, if each fails with probability `eps`."""
    from scipy.stats import binom

    return float(binom.ppf(level, draws, eps) / draws)


def fresh_rates(fresh: pd.DataFrame, eps: float) -> pd.DataFrame:
    """Violation rates of `fresh_samples`: a row a `rule`, `bound` and `delta`, with the binomial `limit`."""
    groups = fresh.assign(passed=fresh.threshold.notna()).groupby(["rule", "bound", "delta"], sort=False)
    rates = groups.agg(violated=("violated", "mean"), passed=("passed", "mean"), sets=("passed", "size"))
    return rates.assign(limit=[binomial_limit(sets, eps) for sets in rates.sets]).reset_index()


def on_front(cost: Sequence[float], value: Sequence[float]) -> np.ndarray:
    """`[point]`: whether no other point is cheaper and as good, or as cheap and better."""
    cost, value = np.asarray(cost, dtype=np.float64), np.asarray(value, dtype=np.float64)
    no_dearer, no_worse = cost <= cost[:, None], value >= value[:, None]
    return ~(no_dearer & no_worse & ((cost < cost[:, None]) | (value > value[:, None]))).any(axis=1)


def fronts(stored: SweepResults) -> pd.DataFrame:
    """All settings; `front`: on the front of score against FLOPs of its task and model (oracle apart)."""
    front = pd.Series(False, index=stored.settings.index)
    real = stored.settings[stored.settings.rule != "oracle"]
    for _, rows in real.groupby(["task", "model"], sort=False):
        front[rows.index] = on_front(rows.flops_share, rows.score)
    return stored.settings.assign(front=front)


def keeping(stored: SweepResults, model: str, quality: float) -> pd.DataFrame:
    """Settings that keep a share (`quality`) of the full score on both halves of the examples, even and odd.

    Scores are means over single outputs; where full depth scores 0 on a half, nothing can be kept. Such a
    setting is still a lucky one among many: `low` and `high` are of all examples. Returned are also
    `first_half`, `second_half`, and `cheapest`: whether the setting takes the fewest FLOPs of its rule.
    """
    rows = stored.rows(model=model)
    full = {row.task: stored.examples[row.Index] for row in rows[rows.rule == "full_depth"].itertuples()}
    rows = rows[rows.rule != "full_depth"]

    def kept(start: int) -> list[float]:
        totals = [full[task][start::2].sum() for task in rows.task]
        scores = [stored.examples[place][start::2].sum() for place in rows.index]
        return [score / total if total else np.nan for score, total in zip(scores, totals, strict=True)]

    rows = rows.assign(first_half=kept(0), second_half=kept(1))
    rows = rows[(rows[["first_half", "second_half"]] >= quality).all(axis=1)]
    first = ~rows.sort_values("flops_share", kind="stable").duplicated(["task", "rule"])
    columns = [*KEYS, "retained", "low", "high", "first_half", "second_half", "mean_exit_layer"]
    return rows.assign(cheapest=first)[[*columns, "flops_share", "cheapest"]].reset_index(drop=True)


def fastest(times: pd.DataFrame) -> pd.DataFrame:
    """Of timed settings the fastest of each task, rule and batch size, the fastest rule first."""
    ordered = times.sort_values("speed", ascending=False, kind="stable")
    return ordered.drop_duplicates(["task", "rule", "batch"]).reset_index(drop=True)


def timed(stored: SweepResults, model: str, quality: float) -> pd.DataFrame:
    """The settings that `make bench` times: `task`, `model`, `rule`, `threshold`.

    On the main model the cheapest of each rule that keeps the score, what was calibrated (consistency,
    Hoeffding-Bentkus) and static exits; on the other models the middle setting of each rule.
    """
    chosen = calibrated(stored, model, {"consistency": stored.deltas}, BOUNDS[:1]).assign(model=model)
    kept = keeping(stored, model, quality)
    kept = kept[kept.cheapest & (kept.rule != "oracle")]
    static = stored.rows(model=model, rule="static")
    others = [rows.iloc[[len(rows) // 2]] for (_, name, _), rows in sweepable(stored) if name != model]
    found = pd.concat([rows[KEYS] for rows in (kept, chosen[chosen.found], static, *others)])
    return found.drop_duplicates().reset_index(drop=True)


def answer_lines(
    kept: pd.DataFrame, answer: pd.DataFrame, tasks: Sequence[str], quality: float, label: Callable
) -> Iterator[str]:
    """MEE's question answered in words: a line a task and a line a batch size.

    `kept` is from `keeping`, `answer` the `fastest` of its timed settings; `label` says a name in words.
    """
    first = lambda rows, text, nothing: next((text.format(r=r) for r in rows.itertuples()), nothing)
    named = lambda rows: rows.assign(label=rows.rule.map(label), kind=rows.rule.map(_kind))
    kept, answer = named(kept[kept.rule != "oracle"].sort_values("flops_share", kind="stable")), named(answer)
    for task in tasks:
        safe = kept[kept.task == task]
        if safe.empty:
            yield f"{label(task)}: no rule keeps {quality:.0%} on both halves of the examples."
            continue
        several, cheapest = safe[safe.kind == KINDS[0]], "{r.label} with {r.flops_share:.0%} of the FLOPs"
        yield (
            f"{label(task)}: of {safe.rule.nunique()} rules that keep {quality:.0%} on both halves "
            f"{several.rule.nunique()} see several layers; the cheapest of those: "
            f"{first(several, cheapest, 'none')}; of all: {first(safe, cheapest, 'none')}."
        )
        speed = "{r.kind} {r.speed:.2f} ({r.lowest:.2f} to {r.highest:.2f}, {r.label})"
        for batch, rows in answer[answer.task == task].groupby("batch"):
            parts = [first(rows[rows.kind == kind], speed, f"{kind}: none timed") for kind in KINDS]
            yield f"   tokens a second at batch {batch}, of full depth: " + "; ".join(parts)


KINDS = ("several layers", "other rules", "a fixed layer")


def _kind(rule: str) -> str:
    return KINDS[0] if rule in SEVERAL_LAYERS else KINDS[2] if rule == "static" else KINDS[1]
