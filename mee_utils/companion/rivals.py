"""Exits beside what needs no exit rule: decoders trained shallow, and exit heads on a frozen model.

Everything is set beside the full depth of one baseline, `vanilla`, on the same test examples. So what exits
cost before any token exits (a model trained for exits scores lower at full depth) is counted too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from . import figures
from .catalogue import HEADS
from .prose import listed, on_tasks, span, task_span
from .result_tables import EXITS, Measured
from .verdicts import on_front

BASELINE = "vanilla"
SHALLOW = "decoder trained shallow"
FIXED = "fixed exit layer"
SEPARATE = "exit heads on a frozen model"
NO_RULE = ("static", "oracle", "full_depth", *HEADS)
NAMES = {SHALLOW: "shallow decoder"}  # of kinds, in a figure or a sentence, if another
FLOPS_DRAWN = 1.02  # of vanilla's; what costs more is not drawn
COLUMNS = ["task", "kind", "model", "setting", "kept", "low", "high", "relative_flops"]


def beside_exits(stored: Measured, shallow: pd.DataFrame) -> pd.DataFrame:
    """What each way to a cheaper decoder keeps of the baseline's score, and costs.

    Args:
        stored: the measured exits of a profile, on all of its models.
        shallow: the `rivals` of a profile (`result_tables.read_retrained`); it may have no rows.

    Returns:
        One row a task, model and setting: its `kind`, the share of the baseline's score that is `kept` with
        paired bounds `low` and `high`, and `relative_flops`, FLOPs a token as a share of the baseline's. Of
        exits only the settings on the front of their kind and model remain: none of these is cheaper and as
        good. They are chosen on the examples that they are reported on, which favours them over the shallow
        decoders.
    """
    tables = [_shallow_rows(shallow)]
    settings = stored.select()
    for kind, chosen in (
        (EXITS, ~settings.rule.isin(NO_RULE)),
        (FIXED, settings.rule == "static"),
        (SEPARATE, settings.rule.isin(HEADS)),
    ):
        for _, rows in settings[chosen].groupby(["model", "task"], sort=False):
            tables.append(_front_of(stored, rows, kind))
    tables = [table for table in tables if len(table)]
    return pd.concat(tables, ignore_index=True)[COLUMNS] if tables else pd.DataFrame(columns=COLUMNS)


def _shallow_rows(shallow: pd.DataFrame) -> pd.DataFrame:
    if "kept" not in shallow:
        return pd.DataFrame(columns=COLUMNS)
    layers = shallow.decoder_layers.astype(str) + " layers"
    bounds = {"low": shallow.kept_low, "high": shallow.kept_high}
    return shallow.assign(kind=SHALLOW, setting=layers, **bounds)[COLUMNS]


def _front_of(stored: Measured, settings: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The settings of one task and model on their front, the cheapest first, beside the baseline."""
    beside = stored.beside_full(settings, BASELINE)
    kept = beside["retained"]
    table = pd.DataFrame(
        {
            "task": settings.task,
            "kind": kind,
            "model": settings.model,
            "setting": [setting_name(*row) for row in zip(settings.rule, settings.threshold, strict=True)],
            "kept": kept.value,
            "low": kept.low,
            "high": kept.high,
            "relative_flops": beside["flops_share"].value,
        }
    )
    return _on_front(table).drop_duplicates(["kept", "relative_flops"])


def _on_front(table: pd.DataFrame) -> pd.DataFrame:
    """The rows that none of the others undercuts and equals, the cheapest first."""
    front = table[on_front(table.relative_flops, table.kept)]
    return front.sort_values("relative_flops", kind="stable")


def setting_name(rule: str, threshold: float) -> str:
    """A setting in words: a static exit has its layer in place of a threshold, and some rules have none."""
    if rule == "static":
        return f"layer {threshold:.0f}"
    return rule if math.isnan(threshold) else f"{rule}, {threshold:.4g}"


def kept_of_baseline(stored: Measured, rows: pd.DataFrame, baseline: str = BASELINE) -> pd.DataFrame:
    """Settings of one model on test examples, with the share of the baseline's full score that they keep.

    Args:
        stored: the measured exits of a profile.
        rows: with the columns `task`, `model`, `rule` and `threshold`, of settings in `stored`.
        baseline: the model whose full depth counts as 1.

    Returns:
        The same rows with the columns `of_<baseline>`, `of_<baseline>_low` and `of_<baseline>_high`.
    """
    name = f"of_{baseline}"
    columns: dict[str, list[float]] = {name: [], f"{name}_low": [], f"{name}_high": []}
    for row in rows.itertuples():
        same = stored.select(task=row.task, model=row.model, rule=row.rule)
        has_threshold = same.threshold.notna().any()
        setting = same[same.threshold == row.threshold] if has_threshold else same
        kept = stored.beside_full(setting.iloc[:1], baseline)["retained"].item(0)
        for column, value in zip(columns, (kept.value, kept.low, kept.high), strict=True):
            columns[column].append(float(value))
    return rows.assign(**columns)


def at_equal_score(table: pd.DataFrame, quality: float) -> pd.DataFrame:
    """Of each task and kind in `beside_exits` the cheapest setting that keeps a share of the score.

    By the values, not by their bounds: the question is what is cheaper on average. Exits are those of any
    model. No row: none keeps it.
    """
    good = table[table.kept >= quality].sort_values("relative_flops", kind="stable")
    return good.drop_duplicates(["task", "kind"]).sort_index().reset_index(drop=True)


def at_equal_cost(table: pd.DataFrame) -> pd.DataFrame:
    """Each shallow decoder of `beside_exits` beside the best exits that cost no more.

    Returns:
        One row a task and shallow decoder, the baseline itself left out, the cheapest first: its `setting`,
        `kept` and `relative_flops`, and for exit rules (`exits_`) and fixed exit layers (`fixed_`) the share
        of the score that the best such setting keeps. NaN: all of them cost more.
    """
    rows = []
    for task, of_task in table.groupby("task", sort=False):
        shallow = of_task[(of_task.kind == SHALLOW) & (of_task.relative_flops < 1)]
        for row in shallow.sort_values("relative_flops").itertuples():
            affordable = of_task[of_task.relative_flops <= row.relative_flops]
            best = affordable.groupby("kind").kept.max()
            rows.append(
                {
                    "task": task,
                    "setting": row.setting,
                    "relative_flops": row.relative_flops,
                    "kept": row.kept,
                    "low": row.low,
                    "high": row.high,
                    "exits_kept": best.get(EXITS, math.nan),
                    "fixed_kept": best.get(FIXED, math.nan),
                }
            )
    return pd.DataFrame(rows)


def rivals_figure(
    table: pd.DataFrame, equal_cost: pd.DataFrame, tasks: Sequence[str], quality: float, note: str = ""
):
    """Score kept against FLOPs of every kind of `beside_exits`, of the best models for each amount of FLOPs.

    Dotted lines stand at 1 and at `quality`.
    """
    by_kind = [
        _on_front(rows) for _, rows in table[table.kind != SHALLOW].groupby(["task", "kind"], sort=False)
    ]
    drawn = pd.concat([table[table.kind == SHALLOW], *by_kind], ignore_index=True)
    return figures.facets(
        drawn,
        _draw,
        values=tasks,
        quality=quality,
        limits=_drawn_range(drawn),
        xlabel="FLOPs per token (1 = vanilla's full depth)",
        ylabel="score kept (1 = vanilla's)",
        width=3.9,
        height=3.3,
        message=headline(equal_cost),
        note=figures.small_print(note, figures.GOES_ON),
    )


STYLES = {
    SHALLOW: figures.Style(NAMES[SHALLOW], figures.STYLES["vanilla"].colour, "s"),
    EXITS: figures.Style(f"{EXITS}, any model", figures.STYLES["calm"].colour, "o"),
    FIXED: figures.Style(f"{FIXED}, any model", "black", ".", (1, 1.5)),
    SEPARATE: figures.Style("exit heads on the frozen vanilla model", "#777777", "^", (4, 1.5)),
}


def _drawn_range(table: pd.DataFrame) -> tuple[float, float]:
    """What the vertical axis of all panels spans: down to 0.6, and up to what is kept of any task."""
    within = table[table.relative_flops <= FLOPS_DRAWN]
    return max(0.6, within.low.min()), max(1.03, within.kept.max() + 0.01)


def _draw(axis, rows: pd.DataFrame, quality: float, limits: tuple[float, float]) -> None:
    for level in (1.0, quality):
        axis.axhline(level, color=figures.GREY, linewidth=0.8, linestyle=":")
    axis.plot(1, 1, "*", color=figures.DARK, markersize=11, label="full depth, vanilla", linestyle="none")
    within = rows[rows.relative_flops <= FLOPS_DRAWN]
    figures.lines(axis, within, "relative_flops", "kept", "kind", figures.BAND, STYLES)
    axis.set(xlim=(0.2, 1.03), ylim=limits)


def rivals_conclusion(table: pd.DataFrame, equal_cost: pd.DataFrame, quality: float) -> Iterator[str]:
    """Shallow decoders beside exits at equal FLOPs, and the cheapest of every kind at equal score."""
    tasks = list(table.task.unique())
    if len(equal_cost):
        yield (
            f"Shallow decoders keep {span(equal_cost.kept, '{:.0%}')} of vanilla's score. "
            f"{_exits_at_equal_cost(equal_cost)}."
        )
    cheapest = at_equal_score(table, quality)
    saving = cheapest[cheapest.relative_flops < 1]
    kinds = [
        f"{span(rows.relative_flops, '{:.0%}')} {on_tasks(rows.task, tasks)} ({NAMES.get(kind, kind)})"
        for kind, rows in saving.groupby("kind", sort=False)
    ]
    if kinds:
        shares = "; ".join(kinds)
        every = (saving.groupby("kind").task.nunique() == len(tasks)).all()
        unnamed = " On a task that is not named, no setting of the kind keeps it for fewer FLOPs."
        others = "" if every else unnamed
        yield f"FLOPs needed to keep a mean of {quality:.0%}, as a share of vanilla's: {shares}.{others}"
        yield _models_of_exits(saving[saving.kind == EXITS], tasks)
    else:
        yield f"Nothing keeps a mean of {quality:.0%} of it for fewer FLOPs than vanilla's."
    heads = table[(table.kind == SEPARATE) & (table.relative_flops < 1)]
    if len(heads):
        most = heads.groupby("task").kept.max()
        enough = ", so training heads alone is not enough" if most.max() < quality else ""
        yield (
            "Exit heads on the frozen vanilla model score few vocabulary entries, the last layer all: "
            "pruning changes no token that does not exit. For fewer FLOPs than vanilla they keep at most "
            f"{task_span(most, '.1%')} of its score{enough}."
        )


def _models_of_exits(saving: pd.DataFrame, tasks: Sequence[str]) -> str:
    """Whose exits are the cheapest that keep enough, by task."""
    if saving.empty:
        return ""
    parts = [
        f"{figures.label(model)} {on_tasks(rows.task, tasks)}"
        for model, rows in saving.groupby("model", sort=False)
    ]
    return f"These exit rules are those of {listed(parts)}."


def _exits_at_equal_cost(equal_cost: pd.DataFrame) -> str:
    """What exits keep at no more FLOPs than shallow decoders, and where all of them cost more."""
    kept = equal_cost[["exits_kept", "fixed_kept"]].max(axis=1)
    affordable = kept.notna()
    if not affordable.any():
        return "All exits cost more"
    shares = span(kept.dropna(), "{:.0%}")
    if affordable.all():
        return f"Exits at no more FLOPs keep {shares}"
    where = f"for {affordable.sum()} of {len(kept)} pairs of a task and a shallow decoder"
    if equal_cost.task.is_unique:
        where = on_tasks(equal_cost.task[affordable], list(equal_cost.task))
    return f"Exits that cost no more exist {where}, and keep {shares}"


def baseline_conclusion(beside_both: pd.DataFrame, quality: float) -> str:
    """How much rules that keep their own full depth keep of vanilla's, from `kept_of_baseline`."""
    means = beside_both.groupby("task", sort=False).of_vanilla.mean()
    certain = int((beside_both.of_vanilla_low >= quality).sum()) or "none"
    return (
        f"Rules that reliably keep {quality:.0%} of their own model's full-depth score keep "
        f"{task_span(means, '.1%')} of vanilla's on average; {certain} of these {len(beside_both)} pairs of "
        f"a rule and a task reliably keep {quality:.0%} of vanilla's."
    )


def headline(equal_cost: pd.DataFrame) -> str:
    """What `at_equal_cost` shows, in a sentence."""
    if equal_cost.empty:
        return "What exits keep of the score that vanilla has at full depth"
    best_exits = equal_cost[["exits_kept", "fixed_kept"]].max(axis=1).fillna(0)
    better = int((equal_cost.kept > best_exits).sum())
    kept = "keep as much of the score as a shallow decoder for as few FLOPs"
    if not better:
        return f"Some exits {kept}"
    return (
        f"No exits {kept}"
        if better == len(equal_cost)
        else f"In {better} of {len(equal_cost)} cases no exits {kept}"
    )
