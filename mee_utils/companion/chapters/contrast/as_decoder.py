"""Contrast in decoding: its token in place of the last layer's, and the verdict at equal cost."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ... import figures
from ...prose import listed, on_tasks, task_span
from ..wording import percent_span, with_interval
from .as_confidence import DOT, RING

FORMS = {  # of contrast, from the top of the figure -> its name there
    "weighted": "weighted, all entries",
    "weighted_fixed": "weighted, a few entries",
    "weighted_token": "weighted, picks the token too",
    "jsd": "JSD, all entries",
    "jsd_fixed": "JSD, a few entries",
    "jsd_token": "JSD, picks the token too",
}
LEVELS = {95: RING | {"markersize": 5.5}, 99: DOT}  # percent of the predictions kept -> marker


def _scored(decoded: pd.DataFrame) -> pd.DataFrame:
    """The cases of contrast as a decoder in which full depth scores anything."""
    return decoded[(decoded.rule != "full_depth") & decoded.retained.notna()]


def decoder_message(decoded: pd.DataFrame) -> str:
    """In how many cases contrast as a decoder clearly raises or lowers the score; nothing without a score."""
    rows = _scored(decoded)
    if rows.empty:
        return ""
    raised = (rows.low > 1).sum()
    lowered = []
    for alpha, part in rows.groupby("alpha"):
        number = (part.high < 1).sum()
        lowered.append(f"in {number or 'none'} of {len(part)} at alpha = {alpha}")
    return (
        f"As a decoder, contrast clearly raises the score in {raised or 'none'} of {len(rows)} combinations "
        f"of model, task, contrast and alpha, and clearly lowers it {listed(lowered)}"
    )


def decoder_conclusion(decoded: pd.DataFrame) -> str:
    """What contrast as a decoder keeps, and how many outputs it changes."""
    rows = _scored(decoded)
    if rows.empty:
        return "Full depth scores nothing here, so there is no score to keep."
    best = rows.loc[rows.retained.idxmax()]
    return (
        f"{decoder_message(decoded)} (95 % intervals). It changes {percent_span(1 - rows.same_output)} of "
        f"the outputs. The best case is {figures.label(best.rule)} with {figures.label(best.model)} on "
        f"{figures.label(best.task)}, which keeps {with_interval(best, 'retained', '.1%', 'low', 'high')} of "
        "the score."
    )


def pareto_figure(verdicts: pd.DataFrame, note: str = ""):
    """By how much each contrast setting scores more than the best plain margin that costs no more.

    A row is a form of contrast; a marker is a setting with the interval of the verdict (95 %, simultaneous
    over all settings of a task): a ring at the threshold that keeps 95 % of the predictions, a dot at 99 %.
    """
    tested = verdicts.assign(level=_levels(verdicts))
    tested = tested[tested.gain.notna()]
    forms = [rule for rule in FORMS if rule in set(tested.rule)]
    return figures.facets(
        tested.assign(height=tested.rule.map(forms.index)),
        _draw_gains,
        values=list(verdicts.task.unique()),
        names=[FORMS[rule] for rule in forms],
        width=3.3,
        height=3.0,
        xlabel="points gained over the margin",
        message=pareto_message(verdicts),
        note=note,
    )


def _levels(verdicts: pd.DataFrame) -> pd.Series:
    """The percent of predictions that each setting keeps: a rule's last threshold on a task is for the most.

    Where one threshold serves for both levels, and where a rule is tried at one alone, it is the higher one.
    """
    last = verdicts.groupby(["task", "rule"]).threshold.transform("max")
    low, high = LEVELS
    for_the_most = verdicts.threshold == last
    return for_the_most.map({True: high, False: low})


def _draw_gains(axis, rows: pd.DataFrame, names: Sequence[str]) -> None:
    axis.axvline(0, color=figures.GREY, linewidth=1)
    for shift, (level, look) in zip((-0.17, 0.17), LEVELS.items(), strict=True):
        part = rows[rows.level == level]
        whiskers = [(part.gain - part.low).clip(lower=0), (part.high - part.gain).clip(lower=0)]
        name = f"threshold that keeps {level} % of the predictions"
        colour = figures.STYLES["weighted"].colour
        of_level = look | {"color": colour, "elinewidth": 1, "label": name}
        axis.errorbar(part.gain, part.height + shift, xerr=whiskers, **of_level)
    axis.set_yticks(range(len(names)), names, fontsize=9)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)


def pareto_message(verdicts: pd.DataFrame) -> str:
    """How many settings with contrast are better, and how many worse, than the plain margin at equal cost."""
    improves = int(verdicts.improves.sum())
    worse = int(verdicts.worse.sum())
    return (
        f"Of {len(verdicts)} settings with contrast, {_number(improves, 'is', 'are')} clearly better than "
        f"the plain margin at equal cost and {_number(worse, 'is', 'are')} clearly worse"
    )


def _number(number: int, one: str, several: str) -> str:
    """ "none beats", "1 beats", "3 beat": a number and its verb."""
    return f"{number or 'none'} {one if number < 2 else several}"


def pareto_conclusion(verdicts: pd.DataFrame) -> str:
    """The verdict on the Pareto improvement, by task."""
    counts = verdicts.groupby("task", sort=False)[["improves", "worse"]].sum()
    middle = verdicts.groupby("task", sort=False).gain.median()
    improved = counts.index[counts.improves > 0]
    return (
        f"Contrast is a clear Pareto improvement {on_tasks(improved, counts.index)}. Its median setting "
        f"changes the score by {task_span(middle, '+z.1f')} points against the best plain margin that costs "
        'no more. ("Clearly": the simultaneous interval excludes 0.)'
    )
