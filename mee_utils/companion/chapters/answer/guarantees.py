"""What can be guaranteed, for how many FLOPs, and whether fresh examples keep to it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ... import figures
from ...prose import listed, on_tasks, task_span
from ...result_tables import best_of_families
from ..wording import winners

BOUNDS = {"no_test": "no test", "hoeffding_bentkus": "Hoeffding-Bentkus", "betting": "betting (WSR)"}


def guarantee_figure(calibrated: pd.DataFrame, tasks: Sequence[str], note: str = ""):
    """FLOPs of the cheapest rule of each family at each guaranteed consistency loss."""
    best = best_of_families(_passed(calibrated), ["task", "delta"], "flops_share")
    order = best.groupby("family").flops_share.mean().sort_values(ascending=False, kind="stable").index
    return figures.facets(
        best,
        _draw_guarantees,
        values=tasks,
        families=list(order),
        deltas=sorted(best.delta.unique()),
        empty="no threshold passed",
        width=3.9,
        height=4.4,
        xlabel="FLOPs (1 = full depth)",
        message=guarantee_message(best),
        note=figures.small_print(note, "whiskers: 95 % intervals over examples"),
    )


def _draw_guarantees(axis, rows: pd.DataFrame, families: Sequence[str], deltas: Sequence[float]) -> None:
    """One panel: on the line of each family a marker for each guaranteed loss, one above the other."""
    apart = {delta: 0.8 * ((number + 0.5) / len(deltas) - 0.5) for number, delta in enumerate(deltas)}
    heights = rows.family.map(families.index) + rows.delta.map(apart)
    drawn = rows.assign(height=heights)[rows.flops_share < 1]
    band = ("flops_low", "flops_high") if "flops_low" in drawn else None
    look = {"styles": _styles_of(deltas), "markersize": 5}
    figures.dots(axis, drawn, "flops_share", "height", "delta", xband=band, **look)
    spent = rows.set_index(["family", "delta"]).flops_share
    for number, family in enumerate(families):
        for delta in deltas:
            text = _in_place_of_a_marker(spent.get((family, delta)))
            height = number + apart[delta]
            axis.text(1.02, height, text, fontsize=8, color=figures.DARK, va="center")
    axis.axvline(1.0, color=figures.GREY, linewidth=0.8, linestyle=":")
    axis.set_xlim(min(0.35, drawn.flops_share.min()) if len(drawn) else 0.35, 1.2)
    names = ["a fixed layer" if family == "reference" else family for family in families]
    axis.set_yticks(range(len(families)), names, fontsize=9)
    axis.set_ylim(-0.6, len(families) - 0.4)
    axis.grid(axis="y", visible=False)


def _styles_of(deltas: Sequence[float]) -> dict[float, figures.Style]:
    """A marker for each guaranteed loss, the darker the larger the loss."""
    styles = {}
    for number, (delta, marker) in enumerate(zip(deltas, "oD^sv", strict=False)):
        shade = str(0.65 - 0.6 * number / max(1, len(deltas) - 1))  # of grey
        styles[delta] = figures.Style(f"loss of at most {delta:g}", shade, marker)
    return styles


def _in_place_of_a_marker(share: float | None) -> str:
    """What is written where no threshold passed (None), and where a rule spends as much as full depth."""
    if share is None:
        return "none"
    return "no saving" if share >= 1 else ""


def guarantee_message(best: pd.DataFrame) -> str:
    """What the cheapest rule of all takes at the middle target."""
    deltas = sorted(best.delta.unique())
    if not deltas:
        return "No rule has a threshold whose loss is guaranteed"
    middle = deltas[len(deltas) // 2]
    shares = best[best.delta == middle].groupby("task").flops_share.min()
    return (
        f"To guarantee a mean loss of at most {middle:g}, the cheapest rule takes {task_span(shares)} of "
        "full depth's FLOPs"
    )


def guaranteed_cost(calibrated: pd.DataFrame, delta: float) -> str:
    """What the cheapest rule takes with a guaranteed loss, by task."""
    best = _cheapest_guaranteed(calibrated, delta)
    if best.empty:
        return f"No rule has a threshold with which a mean loss of at most {delta:g} is guaranteed."
    shares = task_span(best.set_index("task").flops_share)
    where = on_tasks(best.task, list(calibrated.task.unique()))
    return f"A mean loss of at most {delta:g} can be guaranteed {where}, for {shares} of the FLOPs."


def _cheapest_guaranteed(calibrated: pd.DataFrame, delta: float) -> pd.DataFrame:
    """For each task the cheapest rule whose threshold passed at this bound on the consistency loss."""
    passed = _passed(calibrated)
    chosen = passed[passed.delta == delta].sort_values(["task", "flops_share"], kind="stable")
    return chosen.drop_duplicates("task")


def _passed(calibrated: pd.DataFrame) -> pd.DataFrame:
    """The thresholds that guarantee a consistency loss, by the bound that is drawn."""
    is_drawn = (calibrated.kind == "consistency") & (calibrated.bound == "hoeffding_bentkus")
    return calibrated[calibrated.found & is_drawn]


def guarantee_conclusion(calibrated: pd.DataFrame, delta: float) -> str:
    """The cheapest rule at one target, by task, and how often each bound finds a threshold."""
    best = _cheapest_guaranteed(calibrated, delta)
    shares = calibrated.groupby("bound", sort=False).found.mean()
    bounds = [f"in {share:.0%} with {BOUNDS.get(bound, bound)}" for bound, share in shares.items()]
    cheapest = (
        f"With the loss guaranteed to be at most {delta:g}, the cheapest rule is {winners(best)}. "
        if len(best)
        else ""
    )
    return f"{cheapest}Of all rules, tasks and targets, a threshold passes {listed(bounds)}."


def fresh_figure(rates: pd.DataFrame, eps: float, note: str = ""):
    """How many calibration sets break the guarantee, by target: a panel a bound."""
    return figures.facets(
        rates.replace({"bound": BOUNDS}),
        _draw_rates,
        "bound",
        eps=eps,
        xlabel="delta, the largest mean loss",
        ylabel="share of sets that\nbreak the guarantee",
        message=fresh_message(rates, eps),
        note=note,
    )


def _draw_rates(axis, rows: pd.DataFrame, eps: float) -> None:
    figures.dots(axis, rows, "delta", "violated", by="rule")
    axis.axhline(eps, color="#d55e00", linewidth=1.2, label="eps, the share that may fail")
    axis.axhline(rows.limit.iloc[0], color="#d55e00", linewidth=1, linestyle="--", label="by chance, at most")
    axis.set_xscale("log")


def fresh_message(rates: pd.DataFrame, eps: float) -> str:
    """The worst rate with and without a test."""
    untested = rates.bound == "no_test"
    allowed = f"(allowed: {eps:.0%}, by chance up to {rates.limit.max():.1%})"
    return (
        f"Calibrated thresholds break the guarantee in at most {rates[~untested].violated.max():.1%} of "
        f"the sets {allowed}, untested ones in up to {rates[untested].violated.max():.0%}"
    )


def fresh_conclusion(rates: pd.DataFrame) -> str:
    """Mean rates of violation and of thresholds found, by bound."""
    means = rates.groupby("bound", sort=False)[["violated", "passed"]].mean()
    tested = [
        f"{BOUNDS[bound]} breaks the guarantee on {row.violated:.1%} of the sets and finds a threshold for "
        f"{row.passed:.0%}"
        for bound, row in means.drop(index="no_test", errors="ignore").iterrows()
    ]
    untested = (
        f" Without a test {means.violated['no_test']:.0%} break it." if "no_test" in means.index else ""
    )
    return (
        f"Means over rules and targets: {'; '.join(tested)}. Up to {rates.limit.max():.1%} of the sets may "
        f"break it by chance.{untested}"
    )
