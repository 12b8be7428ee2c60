"""What limits exits: wrong decisions, or the states that exits leave behind?

The oracle makes no wrong decision. With copied states ("copy": CALM, MEE) what it loses is lost to states
that were never computed; with exact ones ("parallel": FREE; "verify": drafts) it loses nothing. A rule that
loses more at equal FLOPs loses it by its decisions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..analysis.beside_full import result_rows
from . import figures
from .catalogue import RULES
from .prose import on_tasks, task_span
from .result_tables import Measured
from .verdicts import on_front

COPIED = "oracle_copy"
EXACT = "oracle_parallel"
VERIFIED = "oracle_verify"
MARGINS = "margins"
BEST = "best_rule"
MARGIN_RULES = (
    "softmax_margin",
    "fixed",
    "few",
    "decaying",
    "adaptive",
)  # the margin over all entries, or few
NAMES = {  # of what is drawn
    COPIED: "oracle, copied states",
    EXACT: "oracle, exact states",
    VERIFIED: "oracle, verified",
    BEST: "best rule at no more FLOPs (on validation examples)",
    MARGINS: "softmax margin",
    "static": "a fixed layer",
    "full_depth": "full depth",
}
AXES = {  # column that is drawn -> the name of its axis
    "retained": "score kept (1 = full depth)",
    "consistency_loss": "change of the outputs\n(mean consistency loss)",
}
BANDS = {"retained": ("low", "high"), "consistency_loss": ("consistency_low", "consistency_high")}
STYLES = {  # of points
    COPIED: figures.Style(NAMES[COPIED], "#d55e00", "*"),
    EXACT: figures.Style(NAMES[EXACT], "#d55e00", "D"),
    VERIFIED: figures.Style(NAMES[VERIFIED], "#d55e00", "v"),
    BEST: figures.Style(NAMES[BEST], figures.BLUE, "o"),
    "full_depth": figures.Style(NAMES["full_depth"], "black", "+"),
}
LIMITS = {"retained": (0.5, 1.1), "consistency_loss": (-0.02, 0.5)}  # of the axes; the rest is cut off
LEAST_GAP = 0.005  # of the score, between the oracle and a rule
FLOPS_DRAWN = (0.35, 1.25)
NOT_A_RULE = tuple(name for name, rule in RULES.items() if rule.family == "reference")
SHOWN = [
    *("task", "series", "rule", "threshold", "retained", "low", "high"),
    *("consistency_loss", "consistency_low", "consistency_high", "flops_share", "flops_low", "flops_high"),
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
        beside_full = pd.DataFrame(result_rows([examples for _, examples in groups], full))
        rows.append(pd.concat([labels.assign(task=task), beside_full], axis=1))
    return pd.concat(rows, ignore_index=True)


def limit_curves(stored: Measured, model: str, oracle: pd.DataFrame) -> pd.DataFrame:
    """What the figure draws: a `series` for each kind of the oracle, rules, fixed layers, and full depth.

    Args:
        stored: every setting of the profile; the margins are all settings of `MARGIN_RULES`.
        model: of which.
        oracle: from `decoded_oracle`.
    """
    rows = stored.rows(model=model)
    rows = rows[rows.task.isin(oracle.task.unique())]
    parts = [oracle[oracle.rule == "oracle"].assign(series="oracle_" + oracle.propagation)]
    parts.append(rows[rows.rule.isin(MARGIN_RULES)].assign(series=MARGINS))
    parts += [rows[rows.rule == rule].assign(series=rule) for rule in ("static", "full_depth")]
    for row in oracle[(oracle.rule == "oracle") & (oracle.propagation == "copy")].itertuples():
        parts.append(best_rule_at(stored, model, row.task, row.flops_share).assign(series=BEST))
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
    """What the margin loses at a threshold by its decisions, and what copied states add.

    With exact states only wrong decisions lose anything. One row per task and threshold: `loss_by_decisions`
    and `loss_by_states` are parts of the mean consistency loss, `score_by_decisions` and `score_by_states` of
    the share of the score that is lost.
    """
    margin = oracle[oracle.rule == "softmax_margin"]
    keys = ["task", "threshold"]
    copied = margin[margin.propagation == "copy"].set_index(keys)
    exact = margin[margin.propagation == "parallel"].set_index(keys)
    return pd.DataFrame(
        {
            "mean_exit_layer": copied.mean_exit_layer,
            "consistency_loss": copied.consistency_loss,
            "loss_by_decisions": exact.consistency_loss,
            "loss_by_states": copied.consistency_loss - exact.consistency_loss,
            "score_by_decisions": 1 - exact.retained,
            "score_by_states": exact.retained - copied.retained,
        }
    ).reset_index()


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
            **_kept(copied, "oracle"),
            **_kept(by_states.loc["parallel"], "exact"),
        }
        for best in best_rule_at(stored, model, task, copied.flops_share).itertuples():  # one, or none
            row.update(rule=best.rule, rule_flops=best.flops_share, **_kept(best, "rule_kept"))
        static = stored.rows(task=task, model=model, rule="static")
        as_cheap = static[static.flops_share <= copied.flops_share]
        for deepest in as_cheap.nlargest(1, "threshold").itertuples():
            row.update(fixed_layer=deepest.threshold, **_kept(deepest, "fixed_kept"))
        rows.append(row)
    return pd.DataFrame(rows)


def _kept(row, name: str) -> dict[str, float]:
    return {name: row.retained, f"{name}_low": row.low, f"{name}_high": row.high}


def _interval(row: Mapping, name: str) -> str:
    return f"{row[name]:.1%} ({row[f'{name}_low']:.1%} to {row[f'{name}_high']:.1%})"


def limits_conclusion(limits: pd.DataFrame, losses: pd.DataFrame, threshold: float = 0.9) -> str:
    """What perfect decisions and real ones keep at equal FLOPs, and what the margin loses by either.

    Args:
        limits: from `limits_at_equal_flops`.
        losses: from `split_losses`.
        threshold: of the margin.
    """
    by_task = limits.set_index("task")
    rules = by_task.rule_kept.dropna() if "rule_kept" in by_task else by_task.oracle[:0]
    beside = (
        f"the best rule at no more FLOPs keeps {task_span(rules)}"
        if len(rules)
        else "no rule spends as little"
    )
    at = losses[losses.threshold == threshold].set_index("task")
    by_states = on_tasks(at.index[at.loss_by_states > at.loss_by_decisions], list(at.index))
    oracle = f"The oracle keeps {task_span(by_task.oracle, '.1%')}, and {beside}."
    return (
        f"{_what_limits(by_task, rules)}{oracle} At a threshold of {threshold:g}, wrong decisions of the "
        f"margin change {task_span(at.loss_by_decisions, '.1%')} of the output (mean consistency loss), and "
        f"copied states another {task_span(at.loss_by_states, '.1%')}. Copied states change more of the "
        f"output than wrong decisions {by_states}."
    )


def _what_limits(by_task: pd.DataFrame, rules: pd.Series) -> str:
    """On which tasks decisions limit exits, and on which copied states; nothing where neither does."""
    tasks = list(by_task.index)
    worse = rules.reindex(by_task.index).fillna(0) < by_task.oracle - LEAST_GAP
    copied = by_task.oracle < 0.99
    sentences = []
    if worse.any():
        sentences.append(
            f"By the score, decisions limit exits {on_tasks(by_task.index[worse], tasks)}: rules keep less "
            "than the oracle for no more FLOPs. "
        )
    if copied.any():
        sentences.append(
            f"Copied states limit exits {on_tasks(by_task.index[copied], tasks)}: even the oracle loses "
            "more than 1% of the score. "
        )
    return "".join(sentences)


def message(limits: pd.DataFrame) -> str:
    """What the figure shows, in a sentence, from `limits_at_equal_flops`."""
    by_task = limits.set_index("task")
    return f"Perfect decisions keep {task_span(by_task.oracle)} of the score; {_rules_at(by_task)}"


def _rules_at(by_task: pd.DataFrame) -> str:
    """What the best rules keep at no more FLOPs than perfect decisions, and where that is less."""
    if "rule_kept" not in by_task or by_task.rule_kept.isna().all():
        return "no rule is as cheap"
    less = by_task.index[by_task.rule_kept < by_task.oracle - LEAST_GAP]
    beside = f"which is less {on_tasks(less, by_task.index)}" if len(less) else "which is no less"
    return f"the best rules at no more FLOPs keep {_range(by_task.rule_kept)}, {beside}"


def _range(values: pd.Series) -> str:
    """The smallest and the largest value in per cent."""
    low = f"{values.min():.0%}"
    high = f"{values.max():.0%}"
    return low if low == high else f"{low} to {high}"


def limits_figure(curves: pd.DataFrame, tasks: list[str], headline: str, note: str = ""):
    """What is kept, and how much outputs change, against FLOPs, from `limit_curves`: a column a task."""
    return figures.facets(
        curves,
        _draw,
        values=tasks,
        quantities=AXES,
        ranges={quantity: _drawn_range(curves, quantity) for quantity in AXES},
        sharey="row",
        xlabel="FLOPs (1 = full depth)",
        width=4.2,
        height=2.9,
        message=headline,
        note=figures.small_print(note, figures.GOES_ON),
    )


def _drawn_range(curves: pd.DataFrame, y: str) -> tuple[float, float]:
    """What the axis of a quantity spans: what is drawn of it, within `LIMITS`."""
    low, high = LIMITS[y]
    drawn = curves[curves.flops_share.between(*FLOPS_DRAWN) & (curves.series != MARGINS)]
    if y != "retained":
        points = drawn[y][drawn.series != "static"]  # none of them is cut off
        return low, max(min(high, drawn[y].max() + 0.02), points.max() + 0.02)
    least = max(low, drawn[y].min() - 0.03)
    most = drawn[y].max()
    return least, min(high, most + 0.08 * (most - least))


def _draw(axis, rows, y: str, ranges: Mapping[str, tuple[float, float]]) -> None:
    """One panel: the margin's front and fixed layers as curves, full depth and the oracle as points."""
    margins = rows[rows.series == MARGINS]
    quality = margins[y] if y == "retained" else -margins[y]
    curves = {
        MARGINS: margins[on_front(margins.flops_share, quality)],
        "static": rows[rows.series == "static"],
    }
    colours = {MARGINS: figures.STYLES["softmax_margin"].colour, "static": figures.GREY}
    for series, part in curves.items():
        ordered = part.sort_values("flops_share", kind="stable")
        _draw_curve(axis, ordered, y, colours[series], NAMES[series])
    points = rows[~rows.series.isin(curves)]
    figures.dots(axis, points, "flops_share", y, "series", yband=BANDS[y], styles=STYLES, markersize=7)
    axis.set_ylim(*ranges[y])
    axis.set_xlim(*FLOPS_DRAWN)


def _draw_curve(axis, part: pd.DataFrame, y: str, colour: str, name: str) -> None:
    low, high = BANDS[y]
    look = {"color": colour, "linewidth": 1.4, "marker": ".", "markersize": 4, "label": name}
    axis.plot(part.flops_share, part[y], **look)
    axis.fill_between(part.flops_share, part[low], part[high], color=colour, alpha=0.15, linewidth=0)
