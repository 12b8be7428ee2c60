"""Full quality and faster by the clock? The fastest setting of each of four ways to exit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from ... import figures
from ...prose import listed, on_tasks, task_span
from ...verdicts import FIXED_LAYER, KIND_OF, OTHER_RULES, SEVERAL

ONE = "rules over one layer"
VERIFIED = "verified by the last layer"
WAYS = {  # ways to exit -> how they are drawn
    FIXED_LAYER: figures.Style("a fixed layer (mean score only)", "black", "s"),
    ONE: figures.Style("best rule over one layer", figures.STYLES["one layer"].colour, "o"),
    SEVERAL: figures.Style("best rule over several layers", figures.STYLES["several layers"].colour, "^"),
    VERIFIED: figures.Style(
        "exits verified by the last layer (same output)", figures.STYLES["verified"].colour, "D"
    ),
}
NAMES = {  # of the ways in a sentence
    VERIFIED: "verified exits",
    FIXED_LAYER: "a fixed layer",
    ONE: "a rule over one layer",
    SEVERAL: "a rule over several layers",
}
CHOSEN = NAMES | {  # where each stands for its kind: of several rules, the fastest in other timing runs
    ONE: "the fastest rule over one layer",
    SEVERAL: "the fastest rule over several layers",
}
SPEEDS = ["speed", "lowest", "highest"]


def in_one_batch(times: pd.DataFrame) -> pd.DataFrame:
    """The timings of one output at a time and of the largest batch, drafts or none."""
    return times[times.batch.isin([1, times.batch.max()])]


def four_ways(
    answer: pd.DataFrame, fixed: pd.DataFrame, verified: pd.DataFrame, quality: float
) -> pd.DataFrame:
    """The fastest setting of each of `WAYS` that was timed: one row a task, batch size and way.

    Args:
        answer: timed settings of rules that reliably keep the quality, from `verdicts.fastest`.
        fixed: timed settings of fixed layers, with `retained`, a mean over outputs.
        verified: timed drafts that the last layer verifies: `task`, `batch` and the speeds.
        quality: the share of the score that a fixed layer keeps on average.

    Half of the timing runs choose the fastest (`ranked`), the speeds are those of the other half.
    """
    kinds = answer.rule.map(KIND_OF).fillna(OTHER_RULES)
    of_ways = [
        fixed[fixed.retained >= quality].assign(way=FIXED_LAYER),
        answer[kinds == OTHER_RULES].assign(way=ONE),
        answer[kinds == SEVERAL].assign(way=SEVERAL),
        verified.assign(way=VERIFIED, retained=1.0),
    ]
    columns = ["task", "batch", "way", "rule", "threshold", "retained", *SPEEDS, "ranked"]
    timed = [settings.reindex(columns=columns) for settings in of_ways if len(settings)]
    if not timed:
        return pd.DataFrame(columns=columns[:-1])
    ordered = pd.concat(timed, ignore_index=True).sort_values("ranked", ascending=False, kind="stable")
    fastest = ordered.drop_duplicates(["task", "batch", "way"])
    from_the_top = fastest.assign(height=fastest.way.map(list(WAYS).index))
    from_the_top = from_the_top.sort_values(["task", "batch", "height"])
    return from_the_top.drop(columns=["height", "ranked"]).reset_index(drop=True)


def absent_ways(
    ways: pd.DataFrame, certain: pd.DataFrame, tasks: Sequence[str]
) -> dict[tuple[str, str], str]:
    """(task, way) that was not timed one output at a time -> the text in its place.

    "none": no rule of that kind keeps the quality reliably; `certain` has those that keep it.
    """
    single = ways[ways.batch == 1]
    drawn = set(zip(single.task, single.way, strict=True))
    kinds = certain.rule.map(KIND_OF).fillna(OTHER_RULES).replace({OTHER_RULES: ONE})
    safe = set(zip(certain.task, kinds, strict=True))
    absent = {}
    for task in tasks:
        for way in WAYS:
            if (task, way) not in drawn:
                keeps_nothing = way in (ONE, SEVERAL) and (task, way) not in safe
                absent[task, way] = "none" if keeps_nothing else "not timed"
    return absent


def answer_figure(
    ways: pd.DataFrame,
    tasks: Sequence[str],
    quality: float,
    note: str = "",
    absent: Mapping[tuple[str, str], str] | None = None,
):
    """Tokens a second of the best setting of each way: one output at a time, and in batches (hollow).

    `absent`: (task, way) -> what is written in place of a speed, from `absent_ways`.
    """
    batches = "filled: one output at a time, hollow: in batches; whiskers: range over timing runs"
    return figures.facets(
        ways,
        _draw_ways,
        values=tasks,
        absent=absent or {},
        width=3.9,
        height=3.0,
        xlabel="tokens a second (1 = full depth)",
        message=answer_message(ways, quality),
        note=figures.small_print(note, batches),
        empty="nothing timed",
    )


def _draw_ways(axis, rows: pd.DataFrame, absent: Mapping[tuple[str, str], str]) -> None:
    for (task, way), text in absent.items():
        if task == rows.task.iloc[0]:
            axis.text(1.01, list(WAYS).index(way), text, fontsize=9, color=figures.GREY, va="center")
    for row in rows.itertuples():
        if row.batch == 1:
            _draw_speed(axis, row, list(WAYS).index(row.way), markersize=7)
            _write_speed(axis, row.speed, list(WAYS).index(row.way))
        else:
            below = list(WAYS).index(row.way) + 0.3
            _draw_speed(axis, row, below, markersize=5, markerfacecolor="white")
    axis.axvline(1.0, color=figures.GREY, linewidth=1)
    axis.margins(x=0.12)
    axis.set_yticks(range(len(WAYS)), [style.label for style in WAYS.values()], fontsize=9)
    axis.set_ylim(len(WAYS) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)


def _draw_speed(axis, row, height: float, **look) -> None:
    """A marker with the range over timing runs."""
    style = WAYS[row.way]
    whiskers = [[max(row.speed - row.lowest, 0)], [max(row.highest - row.speed, 0)]]
    axis.errorbar(
        [row.speed], [height], xerr=whiskers, fmt=style.marker, color=style.colour, elinewidth=1, **look
    )


def _write_speed(axis, speed: float, height: float) -> None:
    """The speed as a number above its marker."""
    behind = {"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 0.5}
    place = {"xytext": (0, 6), "textcoords": "offset points", "ha": "center"}
    axis.annotate(f"{speed:.2f}", (speed, height), fontsize=9, bbox=behind, **place)


def answer_message(ways: pd.DataFrame, quality: float) -> str:
    """On how many tasks each way is faster than full depth in every timing run, one output at a time."""
    single = ways[ways.batch == 1]
    by_way = single.groupby("way")
    faster = {way: (rows.lowest > 1).sum() for way, rows in by_way}
    timed = {way: rows.task.nunique() for way, rows in by_way}
    tasks = single.task.nunique()
    texts = []
    for way, name in CHOSEN.items():
        if way in timed:
            of_timed = f" ({_tasks(timed[way])} timed)" if timed[way] < tasks else ""
            of_all = f" of {tasks} tasks" if not texts and timed[way] == tasks else ""
            texts.append(f"{name} on {faster[way] or 'none'}{of_timed}{of_all}")
    if not texts:
        return "Nothing was timed one output at a time"
    return f"Faster than full depth in every timing run at {quality:.0%} of the score: {listed(texts)}"


def _tasks(number: int) -> str:
    """ "1 task", "2 tasks"."""
    return f"{number} task" if number == 1 else f"{number} tasks"


def answer_conclusion(ways: pd.DataFrame, quality: float) -> str:
    """The fastest way of every task, one output at a time and in batches."""
    texts = []
    single = ways.batch == 1
    for where, rows in (("One output at a time", ways[single]), ("In batches", ways[~single])):
        if rows.empty:
            continue
        best = rows.loc[rows.groupby("task", sort=False).speed.idxmax()]
        by_way = best.groupby("way", sort=False).task
        names = [f"{NAMES[way]} {on_tasks(tasks, list(best.task))}" for way, tasks in by_way]
        speeds = task_span(best.set_index("task").speed, ".2f")
        texts.append(f"{where}, the fastest are {', and '.join(names)}: {speeds} times full depth's speed.")
    return (
        f"{' '.join(texts)} A fixed layer keeps {quality:.0%} of the score on average, a rule with the lower "
        "end of its 95 % interval, and verified exits return the very output of full depth."
    )
