"""MEE's main figure, drawn: score against speed, a point a measure, with and without the published cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import matplotlib.colors
import pandas as pd

from . import figures
from .catalogue import CALM_RULES, MEE_RULES
from .headline import QUALITY
from .prose import listed, span
from .published_setting import BATCHES, CUT, EXACT

SHORT_NAMES = {
    "full_depth": "full depth",
    "softmax_margin": "softmax margin",
    "hidden_similarity": "saturation",
    "hidden": "one state",
    "rising_top1": "rising top-1",
    "three_hidden": "three states",
    "lstm": "LSTM",
}
MARKERS = {  # that can be hollow
    "full_depth": "+",
    "softmax_margin": "o",
    "hidden_similarity": "s",
    "hidden": "D",
    "rising_top1": "^",
    "three_hidden": "v",
    "lstm": "P",
}
PAPERS = {"CALM's": CALM_RULES, "MEE's": MEE_RULES}
NEAR = 0.8  # of the full score: a single measure below is written in its panel, not drawn
ROOM_BELOW = 0.12  # of the height of a panel, for that line
NOT_PUBLISHED = "the published run scores\nBLEU 0.001 at full depth too:\nanother model's tokenizer"
SMALL_PRINT = (
    "whiskers: range over timing runs (speed), 95 % intervals (score); "
    "thin lines join the two points of a measure"
)
BY_BATCH = (  # above the second figure
    "Longer outputs take longer, so samples a second also depend on how much a rule writes; tokens a second "
    "do not. The same settings at both batch sizes, without the cut; hollow points exit later (see legend)."
)


def at_all_batches(times: pd.DataFrame) -> pd.DataFrame:
    """The timings at the batch sizes that are drawn; none, unless there are some at each of them."""
    drawn = times[times.batch.isin(BATCHES)]
    return drawn if set(drawn.batch) == set(BATCHES) else drawn[:0]


def published_and_ours(times: pd.DataFrame, published: pd.DataFrame, tasks: Sequence[str], note: str = ""):
    """Score against samples a second: the published numbers above ours, with and without the cut.

    Args:
        times: ours, as `result_tables.read_timings` returns part "published".
        published: as `companion.published_numbers.published_main_figure` returns it.
        tasks: in the order of the panels.
        note: as in `figures.facets`.
    """
    batch, *_ = BATCHES
    ours = with_rate(times[_at_published_share(times) & (times.batch == batch)], "samples")
    theirs = published.assign(rate=published.samples_per_second, hollow=False)
    upper = {task: _published_title(task, published) for task in tasks}
    lower = {task: f"{figures.label(task)}, ours" for task in tasks}
    panels = [
        theirs.assign(panel=theirs.task.map(upper)),
        ours.assign(panel=ours.task.map(lower), hollow=ours.decoder == CUT),
    ]
    return _figure(
        pd.concat(panels, ignore_index=True),
        [*upper.values(), *lower.values()],
        per_line=len(tasks),
        hollow="ours, with the published cut",
        xlabel=f"samples a second (batch {batch})",
        note=note,
        message=cut_message(times, batch),
    )


def by_batch(times: pd.DataFrame, tasks: Sequence[str], note: str = ""):
    """Score against tokens a second at each batch size, from both first layers; arguments as above."""
    exact = with_rate(times[times.decoder == EXACT], "tokens")
    names = {(task, batch): f"{figures.label(task)}, batch {batch}" for batch in BATCHES for task in tasks}
    panel = [names[key] for key in zip(exact.task, exact.batch, strict=True)]
    later = exact.min_layer[~_at_published_share(exact)].max()
    return _figure(
        exact.assign(panel=panel, hollow=~_at_published_share(exact)),
        list(names.values()),
        per_line=len(tasks),
        hollow=f"exits from layer {later:g} on, not from {exact.min_layer.min():g}",
        xlabel="tokens a second",
        note=note,
        message=speed_message(times),
    )


def _at_published_share(times: pd.DataFrame) -> pd.Series:
    """Which rows exit from the published share of the depth on; full depth is among them."""
    return (times.min_layer == times.min_layer.min()) | (times.rule == "full_depth")


def _published_title(task: str, published: pd.DataFrame) -> str:
    """The title of a panel of published numbers: the corpus and the model."""
    datasets = published.dataset[published.task == task]
    return f"{datasets.iloc[0] if len(datasets) else figures.label(task)}, T5-large, as published"


def with_rate(times: pd.DataFrame, unit: str) -> pd.DataFrame:
    """Rows with `rate`, "samples" or "tokens" a second, and its range over timing runs.

    The range is that of the ratio to full depth, which is taken within a run.
    """
    ratio = {"samples": ("samples_speed", "samples_"), "tokens": ("speed", "")}
    speed, prefix = ratio[unit]
    rate = times[f"{unit}_per_second"]
    return times.assign(
        rate=rate,
        rate_low=rate * times[f"{prefix}lowest"] / times[speed],
        rate_high=rate * times[f"{prefix}highest"] / times[speed],
    )


def _figure(table: pd.DataFrame, values: Sequence[str], note: str = "", **options):
    return figures.facets(
        table,
        _draw,
        "panel",
        values=values,
        empty=NOT_PUBLISHED,
        sharex=False,
        sharey=False,
        width=4.0,
        height=3.0,
        note=figures.small_print(note, SMALL_PRINT),
        **options,
    )


def _draw(axis, rows, hollow: str) -> None:
    """One panel: filled points with their names, hollow ones joined to the point of the same rule.

    A single measure far below all others would press them into one line: it is written at the lower edge.
    """
    far = rows[rows.rule.isin(_far_below(rows))]
    rows = rows.drop(far.index)
    filled = rows[~rows.hollow.astype(bool)]
    others = rows[rows.hollow.astype(bool)]
    _draw_points(axis, filled, filled=True)
    _draw_points(axis, others, filled=False)
    pairs = filled.merge(others, on="rule", suffixes=("", "_hollow"))
    for row in pairs.itertuples():
        style = figures.STYLES[row.rule]
        look = {"color": style.colour, "linewidth": 0.8, "alpha": 0.6, "zorder": 1}
        axis.plot([row.rate, row.rate_hollow], [row.score, row.score_hollow], **look)
    if len(others):
        axis.plot([], [], "o", color=figures.GREY, markerfacecolor="white", label=hollow)
    axis.set_ylabel(figures.label(rows.metric.iloc[0]))
    axis.margins(0.08)
    if len(far):
        _write_below(axis, far)
    points = [(row.rate, row.score, SHORT_NAMES[row.rule]) for row in filled.itertuples()]
    figures.name_at_the_side(axis, points)


def _far_below(rows: pd.DataFrame) -> list[str]:
    """The measure whose filled point alone scores less than `NEAR` of full depth; none if others do too."""
    full = rows.score[rows.rule == "full_depth"].max()
    far = rows.rule[(rows.score < NEAR * full) & ~rows.hollow.astype(bool)].unique()
    return list(far) if len(far) == 1 else []


def _write_below(axis, far: pd.DataFrame) -> None:
    """Writes a measure below the points of a panel: "saturation ↓ 31.3 at 216"."""
    low, high = axis.get_ylim()
    axis.set_ylim(low - ROOM_BELOW * (high - low), high)
    filled = far[~far.hollow.astype(bool)].iloc[0]
    text = f"{SHORT_NAMES[filled.rule]} ↓ {filled.score:.1f} at {filled.rate:,.0f}"
    look = {"color": figures.STYLES[filled.rule].colour, "fontsize": 9, "ha": "right"}
    axis.text(0.98, 0.03, text, transform=axis.transAxes, **look)


def _draw_points(axis, rows, filled: bool) -> None:
    for row in rows.itertuples():
        colour = figures.STYLES[row.rule].colour
        look = {"fmt": MARKERS[row.rule], "color": colour, "markersize": 5.5}
        look |= {"ecolor": matplotlib.colors.to_rgba(colour, 0.5), "elinewidth": 0.7}
        if not filled:
            look["markerfacecolor"] = "white"
        axis.errorbar(
            [row.rate],
            [row.score],
            xerr=_whiskers(row.rate, getattr(row, "rate_low", None), getattr(row, "rate_high", None)),
            yerr=_whiskers(row.score, getattr(row, "score_low", None), getattr(row, "score_high", None)),
            **look,
        )


def _whiskers(value: float, low: float | None, high: float | None) -> list | None:
    """The lengths of whiskers, none where no range is known."""
    if low is None or low != low:
        return None
    return [[max(value - low, 0)], [max(high - value, 0)]]


def cut_message(times: pd.DataFrame, batch: int) -> str:
    """What the published cut does to the measures of both papers, in a sentence."""
    kept = mean_retained(times[_at_published_share(times) & (times.batch == batch)])
    parts = [
        f"{paper} measures keep {kept[paper, CUT]:.0%} instead of {kept[paper, EXACT]:.0%}"
        for paper in PAPERS
    ]
    return f"With the published decoder's cut, {' and '.join(parts)} of the score (mean, batch {batch})"


def mean_retained(times: pd.DataFrame) -> dict[tuple[str, str], float]:
    """(paper, decoder) -> the mean share of the full score that its measures keep."""
    return {
        (paper, decoder): times[times.rule.isin(rules) & (times.decoder == decoder)].retained.mean()
        for paper, rules in PAPERS.items()
        for decoder in (EXACT, CUT)
    }


def speed_message(times: pd.DataFrame) -> str:
    """How many of the measures are faster than full depth, and how many of these keep the score."""
    first, *later = faster_cases(times).items()
    _, at_first = first  # batch size -> cases
    parts = []
    for batch in reversed(BATCHES):
        counts = f"{_in_short(at_first[batch])} at batch {batch}"
        others = [f"from layer {layer} on: {_in_short(at_layer[batch])}" for layer, at_layer in later]
        parts.append(f"{counts} ({listed(others)})" if others else counts)
    cases = at_first[batch].cases
    return (
        f"Of {cases} cases, how many beat full depth in every run, and keep {QUALITY:.0%} of the score: "
        f"{', '.join(parts)}"
    )


def _in_short(case: Cases) -> str:
    """ "7 and 1": how many are faster, and how many of these keep the score."""
    return f"{case.faster} and {case.keeping or 'none'}"


class Cases(NamedTuple):
    """Measures on tasks: all, those faster than full depth in every run, and those that keep 99 % too."""

    cases: int
    faster: int
    keeping: int


def faster_cases(times: pd.DataFrame) -> dict[int, dict[int, Cases]]:
    """First exit layer -> batch size -> how many of the measures beat full depth, without the cut.

    The first layers come in their order: that at the published share of the depth, and the published one.
    """
    measured = times[(times.decoder == EXACT) & (times.rule != "full_depth")]
    return {
        int(layer): {batch: _counted(rows[rows.batch == batch]) for batch in BATCHES}
        for layer, rows in measured.groupby("min_layer")
    }


def keeping_cases(times: pd.DataFrame, layer: int, batch: int) -> pd.DataFrame:
    """The measures, without the cut, that beat full depth in every run and keep 99 % of the mean score."""
    measured = times[(times.decoder == EXACT) & (times.rule != "full_depth")]
    return _keeping(measured[(measured.min_layer == layer) & (measured.batch == batch)])


def _counted(rows: pd.DataFrame) -> Cases:
    """Rows of measures, counted."""
    return Cases(len(rows), int((rows.lowest > 1).sum()), len(_keeping(rows)))


def _keeping(rows: pd.DataFrame) -> pd.DataFrame:
    """Those of some measures that are faster in every run and keep enough."""
    return rows[(rows.lowest > 1) & (rows.retained >= QUALITY)]


def measures_as_published(times: pd.DataFrame) -> pd.DataFrame:
    """The rows of the six measures at the published share of the depth, without the cut."""
    measured = (times.decoder == EXACT) & (times.rule != "full_depth")
    return times[measured & _at_published_share(times)]


def main_conclusion(times: pd.DataFrame) -> str:
    """What the measures of either paper keep at the published batch size, and how fast they are."""
    batch, *_ = BATCHES
    rows = measures_as_published(times)
    rows = rows[rows.batch == batch]
    parts = [_in_words(paper, rows[rows.rule.isin(rules)]) for paper, rules in PAPERS.items()]
    return f"At batch {batch}, {'; '.join(parts)}. {speed_message(times)}."


def _in_words(paper: str, rows: pd.DataFrame) -> str:
    kept = span(rows.retained, "{:.0%}")
    tokens = span(rows.speed)
    return f"{paper} measures keep {kept} of the score, at {tokens} times the tokens a second of full depth"
