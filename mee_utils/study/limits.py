"""What limits exits: wrong decisions, or the states that exits leave behind?

The oracle makes no wrong decision. With copied states ("copy": CALM, MEE) what it loses is lost to states
that were never computed; with exact ones ("parallel": FREE; "verify": drafts) it loses nothing. A rule that
loses more at equal FLOPs loses it by its decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pandas as pd

from . import figures
from .catalogue import RULES
from .result_tables import Measured, described
from .verdicts import on_front

COPIED = "oracle_copy"
EXACT = "oracle_parallel"
VERIFIED = "oracle_verify"
MARGINS = "margins"
MARGIN_RULES = ("softmax_margin", "fixed", "decaying", "adaptive")  # the margin over all entries, or few
NAMES = {  # of what is drawn
    COPIED: "oracle, copied states",
    EXACT: "oracle, exact states",
    VERIFIED: "oracle, verified",
    MARGINS: "softmax margin",
    "static": "a fixed layer",
    "full_depth": "full depth",
}
LOWEST_DRAWN = 0.5  # of the score: what keeps less is cut off
NOT_A_RULE = tuple(name for name, rule in RULES.items() if rule.family == "reference")
SHOWN = [
    "task",
    "series",
    "rule",
    "threshold",
    "retained",
    "low",
    "high",
    "flops_share",
    "flops_low",
    "flops_high",
]


def decoded_oracle(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """One row per task, rule, threshold and `propagation` of what `measure.OracleDecoder` decoded.

    Args:
        tables: task -> its examples, from `result_tables.read_oracle`.
    """
    rows = []
    for task, table in tables.items():
        full = table[table.rule == "full_depth"]
        others = table[table.rule != "full_depth"]
        groups = others.groupby(["rule", "threshold", "propagation"], sort=False, dropna=False)
        labels = pd.DataFrame([key for key, _ in groups], columns=["rule", "threshold", "propagation"])
        beside_full = pd.DataFrame(described([examples for _, examples in groups], full))
        rows.append(pd.concat([labels.assign(task=task), beside_full], axis=1))
    return pd.concat(rows, ignore_index=True)


def limit_curves(stored: Measured, model: str, oracle: pd.DataFrame) -> pd.DataFrame:
    """What the figure draws: a `series` for each kind of the oracle, the margins, fixed layers, full depth.

    Args:
        stored: every setting of the profile; the margins are the best of `MARGIN_RULES` at any cost.
        model: of which.
        oracle: from `decoded_oracle`.
    """
    rows = stored.rows(model=model)
    rows = rows[rows.task.isin(oracle.task.unique())]
    parts = [oracle[oracle.rule == "oracle"].assign(series="oracle_" + oracle.propagation)]
    for _, of_task in rows.groupby("task", sort=False):
        margins = of_task[of_task.rule.isin(MARGIN_RULES)]
        best = margins[on_front(margins.flops_share, margins.retained)]
        parts.append(best.assign(series=MARGINS))
        for rule in ("static", "full_depth"):
            parts.append(of_task[of_task.rule == rule].assign(series=rule))
    return pd.concat(parts, ignore_index=True)[SHOWN]


def best_rule_at(stored: Measured, model: str, task: str, flops_share: float) -> pd.DataFrame:
    """The setting of a rule that keeps most for at most these FLOPs: one row, or none.

    It is chosen on the validation examples, by its score and its FLOPs there, and reported on test examples.
    """
    settings = stored.select("validation", task=task, model=model)
    full = stored.full("validation", task, model)
    rules = settings[~settings.rule.isin(NOT_A_RULE)]
    spent = np.array([_flops_per_token(stored.examples[index]) for index in rules.index])
    kept = np.array([stored.examples[index].score.to_numpy(np.float64).mean() for index in rules.index])
    affordable = rules.assign(kept=kept)[spent <= flops_share * _flops_per_token(full)]
    tested = stored.select(task=task, model=model)
    pairs = tested.reset_index().merge(affordable[["rule", "threshold", "kept"]], on=["rule", "threshold"])
    best = pairs.sort_values("kept", ascending=False, kind="stable").head(1)
    return stored.rows(task=task, model=model).loc[best["index"]]


def _flops_per_token(examples: pd.DataFrame) -> float:
    return examples.flops.sum() / examples.tokens.sum()


def split_losses(oracle: pd.DataFrame) -> pd.DataFrame:
    """What the margin loses at a threshold, in shares of the full score, by its decisions and by its states.

    With exact states only wrong decisions lose (`by_decisions`); copied states add `by_states`. One row per
    task and threshold.
    """
    margin = oracle[oracle.rule == "softmax_margin"]
    kept = margin.pivot(index=["task", "threshold"], columns="propagation", values="retained")
    layer = margin[margin.propagation == "copy"].set_index(["task", "threshold"]).mean_exit_layer
    losses = {"by_decisions": 1 - kept["parallel"], "by_states": kept["parallel"] - kept["copy"]}
    return pd.DataFrame({"mean_exit_layer": layer, **losses}).reset_index()


def limits_at_equal_flops(stored: Measured, model: str, oracle: pd.DataFrame) -> pd.DataFrame:
    """The oracle with copied states beside the best rule and the best fixed layer for at most its FLOPs.

    One row a task: `flops_share`, and what is kept by the `oracle`, by exact states (`exact`) for
    `exact_flops`, by the best `rule` and by the deepest `fixed_layer`, each with `_low` and `_high`.
    """
    rows = []
    for task, of_task in oracle[oracle.rule == "oracle"].groupby("task", sort=False):
        by_states = of_task.set_index("propagation")
        copied = by_states.loc["copy"]
        row = {
            "task": task,
            "flops_share": copied.flops_share,
            "exact_flops": by_states.flops_share["parallel"],
        }
        row |= _kept(copied, "oracle") | _kept(by_states.loc["parallel"], "exact")
        for best in best_rule_at(stored, model, task, copied.flops_share).itertuples():
            row |= {"rule": best.rule, "rule_flops": best.flops_share} | _kept(best, "rule_kept")
        static = stored.rows(task=task, model=model, rule="static")
        for fixed in static[static.flops_share <= copied.flops_share].nlargest(1, "threshold").itertuples():
            row |= {"fixed_layer": fixed.threshold} | _kept(fixed, "fixed_kept")
        rows.append(row)
    return pd.DataFrame(rows)


def _kept(row, name: str) -> dict[str, float]:
    return {name: row.retained, f"{name}_low": row.low, f"{name}_high": row.high}


def limit_lines(limits: pd.DataFrame, label: Callable) -> Iterator[str]:
    """`limits_at_equal_flops` in words; `label` says a name in words."""
    for row in limits.to_dict("records"):
        oracle = f"an oracle keeps {_interval(row, 'oracle')} for {row['flops_share']:.0%} of the FLOPs"
        exact = f"with exact states {row['exact']:.1%} for {row['exact_flops']:.0%}"
        yield f"{label(row['task'])}: {oracle}, {exact}; {_best_rule(row, label)}; {_fixed_layer(row)}"


def _best_rule(row: Mapping, label: Callable) -> str:
    if not isinstance(row.get("rule"), str):
        return "no rule that was measured spends as little"
    return f"for no more the best rule keeps {_interval(row, 'rule_kept')} ({label(row['rule'])})"


def _fixed_layer(row: Mapping) -> str:
    if not row.get("fixed_layer", 0) > 0:
        return "no fixed layer spends as little"
    return f"layer {row['fixed_layer']:.0f} for every token {_interval(row, 'fixed_kept')}"


def _interval(row: Mapping, name: str) -> str:
    return f"{row[name]:.1%} ({row[f'{name}_low']:.1%} to {row[f'{name}_high']:.1%})"


def split_lines(losses: pd.DataFrame, threshold: float, label: Callable) -> Iterator[str]:
    """`split_losses` at one threshold in words."""
    for row in losses[losses.threshold == threshold].itertuples():
        yield (
            f"{label(row.task)}, the margin at {threshold:g} (mean exit layer {row.mean_exit_layer:.1f}): "
            f"wrong decisions cost {row.by_decisions:.1%} of the full score, "
            f"copied states {row.by_states:.1%} more"
        )


def message(limits: pd.DataFrame) -> str:
    """What the figure shows, in a sentence, from `limits_at_equal_flops`."""
    oracle = f"{limits.oracle.min():.0%} to {limits.oracle.max():.0%} of the score"
    spent = f"{limits.flops_share.min():.0%} to {limits.flops_share.max():.0%} of the FLOPs"
    rules = "no rule spends as little"
    if "rule_kept" in limits and limits.rule_kept.notna().any():
        rules = f"the best rule at that cost {limits.rule_kept.min():.0%} to {limits.rule_kept.max():.0%}"
    return f"Perfect decisions keep {oracle} for {spent}; {rules}"


def limits_figure(curves: pd.DataFrame, tasks: list[str], headline: str, note: str = ""):
    """The share of the score that is kept, against FLOPs, a panel a task of `limit_curves`."""
    return figures.facets(
        curves,
        _draw,
        values=tasks,
        xlabel="FLOPs (1 = full depth)",
        ylabel="score kept (1 = full depth)",
        width=4.2,
        height=3.6,
        message=headline,
        note=note,
    )


def _draw(axis, rows) -> None:
    colours = figures.FAMILIES
    curves = {MARGINS: colours["softmax_margin"].colour, "static": figures.GREY}
    for series, colour in curves.items():
        part = rows[rows.series == series].sort_values("flops_share", kind="stable")
        axis.plot(part.flops_share, part.retained, color=colour, linewidth=1.4, marker=".")
        axis.fill_between(part.flops_share, part.low, part.high, color=colour, alpha=0.15, linewidth=0)
    points = rows[~rows.series.isin(curves)]
    for row in points.itertuples():
        is_oracle = row.series != "full_depth"
        axis.errorbar(
            [row.flops_share],
            [row.retained],
            yerr=[[max(row.retained - row.low, 0)], [max(row.high - row.retained, 0)]],
            color="#d55e00" if is_oracle else "black",
            fmt="*" if is_oracle else "+",
            markersize=10,
            elinewidth=0.8,
        )
    axis.axhline(1.0, color=figures.GREY, linewidth=0.8, linestyle=":")
    axis.set_ylim(max(LOWEST_DRAWN, rows.low.min() - 0.02), None)
    axis.margins(x=0.05)
    names = [(row.flops_share, row.retained, NAMES[row.series]) for row in points.itertuples()]
    figures.name_above(axis, names)
    for series, colour in curves.items():
        _name_curve(axis, rows[rows.series == series], NAMES[series], colour)


def _name_curve(axis, part: pd.DataFrame, name: str, colour: str) -> None:
    """Writes the name of a curve below its lowest point that is drawn."""
    drawn = part[part.retained >= axis.get_ylim()[0]]
    if drawn.empty:
        return
    lowest = drawn.loc[drawn.retained.idxmin()]
    axis.annotate(
        name,
        (lowest.flops_share, lowest.retained),
        xytext=(6, -2),
        textcoords="offset points",
        fontsize=8,
        color=colour,
        va="top",
    )
