"""The headline: how fast are exits that keep 99 % of the score, by the kind of exit?

Four kinds a task: the fastest fixed exit layer, the fastest rule that looks at one layer, the fastest that
looks at several, and exits that the last layer verifies. Speeds are tokens a second of the main model at
batch size 1, full depth being 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..analysis.statistics import without_draws
from . import figures
from .catalogue import MAIN_MODEL, SEVERAL_LAYERS
from .open_question import of_rules
from .result_tables import KEEPS_IT, read_measured, read_timings, untimed_and_faster

QUALITY = 0.99  # of the model's own score at full depth
FIXED_LAYERS = "static"  # the rule under which fixed layers are measured; its threshold is the layer
FIXED = "fixed layer"
ONE = "rule on one layer"
SEVERAL = "rule on several layers"
VERIFIED = "verified by the last layer"
KINDS = (FIXED, ONE, SEVERAL, VERIFIED)
COLUMNS = [
    "task",
    "kind",
    "rule",
    "threshold",
    "retained",
    "low",
    "speed",
    "lowest",
    "highest",
    "untimed",
    "faster",
    "part",
    "processor",
]
COLOURS = {
    FIXED: figures.GREY,
    ONE: figures.STYLES["one layer"].colour,
    SEVERAL: figures.STYLES["several layers"].colour,
    VERIFIED: figures.STYLES["verified"].colour,
}
NOTE = (
    "bars: median speed, of the setting that is fastest in other timing runs; black lines: from the slowest "
    "run to the fastest, each on inputs of its own"
)
ROOM_FOR_VALUES = 0.35  # at the right of a panel, in its units
SETTING = ["task", "model", "rule", "threshold", "retained", "low", "flops_share"]


def headline_figure(profile: str, kept: pd.DataFrame | None = None, static: pd.DataFrame | None = None):
    """The headline of a profile, one panel a task; arguments as in `headline_table`."""
    return draw_headline(headline_table(profile, kept, static))


def headline_table(
    profile: str, kept: pd.DataFrame | None = None, static: pd.DataFrame | None = None
) -> pd.DataFrame:
    """The best exits of each kind that keep 99 % of the score: a row a task and kind that has one.

    A rule keeps it if the lower end of a 95 % interval does; a fixed layer, if its mean does. Of rules and of
    fixed layers the fastest in one half of the timing runs wins, and its `speed` is that of the other half.
    Where none was timed, the row has none (NaN). `untimed` says how many were not, and `faster` how many of
    the kind are faster than full depth in every timing run.

    Args:
        profile: whose timings are read.
        kept: the cheapest safe setting of each rule, as `verdicts.keeping` returns them.
        static: all fixed layers of the main model on test examples. Without these two, both are computed
            from the stored measurements.
    """
    if kept is None or static is None:
        from .verdicts import keeping  # loads torch

        stored = read_measured(profile, MAIN_MODEL)
        kept = keeping(stored, MAIN_MODEL, QUALITY)
        static = stored.rows(model=MAIN_MODEL, rule="static")
    alone = settings_that_decide_alone(kept, static)
    parts = [*_fastest_of_kinds(profile, alone), _verified(profile, kept.task.unique())]
    table = pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)
    table = table.reindex(columns=COLUMNS)
    return table.assign(faster=table.faster.mask(table.kind == VERIFIED, (table.lowest > 1).astype(float)))


def settings_that_decide_alone(kept: pd.DataFrame, static: pd.DataFrame) -> pd.DataFrame:
    """The settings that the headline compares and `make bench` times: exits that no later layer verifies.

    A row for each rule that keeps 99 % of the score reliably, whether or not it saves FLOPs, and for each
    fixed layer that keeps it on average. Arguments as in `headline_table`.
    """
    reliable = of_rules(kept[kept.verdict == KEEPS_IT])
    fixed = static[static.retained >= QUALITY]
    return pd.concat([without_draws(reliable), without_draws(fixed)], ignore_index=True)[SETTING]


def _fastest_of_kinds(profile: str, settings: pd.DataFrame) -> list[pd.DataFrame]:
    """Of each task the fastest fixed layer, the fastest rule on one layer, and the fastest on several."""
    rows = _single("kept", settings, profile).sort_values("ranked", ascending=False, kind="stable")
    several = rows.rule.isin(SEVERAL_LAYERS)
    fixed = rows.rule == FIXED_LAYERS
    kinds = {FIXED: rows[fixed], ONE: rows[~several & ~fixed], SEVERAL: rows[several]}
    return [_best_of_tasks(of_kind).assign(kind=kind) for kind, of_kind in kinds.items()]


def _best_of_tasks(rows: pd.DataFrame) -> pd.DataFrame:
    """The first row of each task, how many of its settings have no timing, and how many beat full depth.

    `rows` are the timed settings, fastest first, and behind them all settings once more, without a timing.
    """
    is_timed = rows.ranked.notna()
    counts = untimed_and_faster(rows[~is_timed], rows[is_timed], ["task"])
    best = rows.drop_duplicates("task")
    return best.assign(untimed=best.task.map(counts.untimed), faster=best.task.map(counts.faster))


def _verified(profile: str, tasks: Sequence[str]) -> pd.DataFrame:
    """Exits as drafts; their output is that of full depth."""
    wanted = pd.DataFrame({"task": tasks, "model": MAIN_MODEL})
    timed = _single("lossless", wanted, profile).drop_duplicates("task")
    return timed.assign(kind=VERIFIED, retained=1.0, low=1.0)


def _single(part: str, settings: pd.DataFrame, profile: str) -> pd.DataFrame:
    """The settings that a part of the benchmark timed one output at a time; behind them, all untimed."""
    timed = read_timings(part, settings, profile)
    single = timed[timed.batch == 1].assign(part=part, processor=timed.attrs["processor"])
    return pd.concat([single, settings]) if len(single) else settings.assign(ranked=np.nan, lowest=np.nan)


def draw_headline(
    table: pd.DataFrame, behind: pd.DataFrame | None = None, behind_name: str = "", message: str = ""
):
    """Draws rows of `headline_table`, one panel a task: bars from full depth, with the range over runs.

    Args:
        behind: the rows of another profile, drawn as open circles.
        behind_name: what the legend calls them.
        message: above the figure, if not `headline_message`.
    """
    speeds = [table.lowest, table.highest] + ([] if behind is None else [behind.speed])
    drawn = pd.concat(speeds).fillna(1.0)
    return figures.facets(
        table,
        _draw,
        values=sorted(table.task.unique()),
        behind=behind,
        behind_name=behind_name,
        limits=(min(drawn.min(), 1) - 0.06, drawn.max() + ROOM_FOR_VALUES),
        xlabel="tokens a second (full depth = 1)",
        sharey=True,
        width=3.9,
        height=2.5,
        message=message or headline_message(table),
        note=NOTE,
    )


def headline_message(table: pd.DataFrame, subject: str = "Exits") -> str:
    """What the headline shows, in a sentence that begins with its subject."""
    faster = faster_tasks(table)
    tasks = table.task.nunique()
    rules = len(faster[ONE] | faster[SEVERAL])
    open_tasks = undecided_tasks(table)
    untimed = f" ({len(open_tasks)} not fully timed)" if open_tasks else ""
    return (
        f"{subject} that keep 99 % of the score beat full depth at batch size 1 in every timing run on "
        f"{len(faster[VERIFIED])} of {tasks} tasks if verified, with some rule that decides alone on "
        f"{rules} of {tasks}{untimed}"
    )


def faster_tasks(table: pd.DataFrame) -> dict[str, set[str]]:
    """Kind -> the tasks on which it, or some rule of it, is faster than full depth in every timing run."""
    faster = table[table.faster > 0]
    return {kind: set(faster.task[faster.kind == kind]) for kind in KINDS}


def undecided_tasks(table: pd.DataFrame) -> set[str]:
    """The tasks on which no rule that decides alone is faster yet, and some such rule was not timed."""
    faster = faster_tasks(table)
    untimed = table[table.kind.isin([ONE, SEVERAL]) & (table.untimed > 0)]
    return set(untimed.task) - faster[ONE] - faster[SEVERAL]


def speed_texts(table: pd.DataFrame) -> pd.Series:
    """ "1.03×", "≥ 1.03×" where a rule that was not timed may be faster still, or "not timed"."""
    at_least = (table.untimed > 0).map({True: "≥ ", False: ""})
    speeds = at_least + table.speed.map("{:.2f}×".format)
    return speeds.where(table.speed.notna(), "not timed")


def _draw(axis, rows: pd.DataFrame, behind: pd.DataFrame | None, behind_name: str, limits: tuple) -> None:
    """One panel: a bar from 1 to its speed for each kind of exit, and its value at the right."""
    heights = {kind: len(KINDS) - 1 - number for number, kind in enumerate(KINDS)}
    by_kind = rows.assign(text=speed_texts(rows)).set_index("kind")
    axis.set_xlim(*limits)
    for kind, height in heights.items():
        colour = COLOURS[kind]
        if kind not in by_kind.index:
            _write_value(axis, "none", height, figures.GREY)
        elif np.isnan(by_kind.speed[kind]):
            _write_beside_the_line(axis, by_kind.text[kind], height)
        else:
            _draw_bar(axis, by_kind.loc[kind], height, colour)
    if behind is not None:
        others = behind[behind.task == rows.task.iloc[0]]
        look = {"facecolors": "white", "edgecolors": figures.DARK, "s": 24, "zorder": 2.5, "linewidths": 0.9}
        axis.scatter(others.speed, others.kind.map(heights), label=behind_name, **look)
    axis.axvline(1, color="black", linewidth=1)
    axis.set_yticks(list(heights.values()), list(heights))
    axis.set_ylim(-0.6, len(KINDS) - 0.4)
    axis.grid(False, axis="y")


def _write_beside_the_line(axis, text: str, height: int) -> None:
    """Writes what stands in for a bar where a bar would begin, away from the values of other data."""
    axis.text(1.02, height, text, fontsize=10, color=figures.GREY, va="center")


def _draw_bar(axis, row: pd.Series, height: int, colour: str) -> None:
    axis.barh(height, row.speed - 1, left=1, height=0.5, color=colour, alpha=0.85, zorder=2)
    axis.plot([row.lowest, row.highest], [height, height], color="black", linewidth=0.8, zorder=3)
    _write_value(axis, row.text, height, colour)


def _write_value(axis, text: str, height: int, colour: str) -> None:
    """A text at the right end of a line of the panel."""
    place = {"transform": axis.get_yaxis_transform(), "ha": "right", "va": "center"}
    axis.text(0.98, height, text, fontsize=10, color=colour, **place)
