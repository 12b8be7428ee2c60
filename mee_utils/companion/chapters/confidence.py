"""Chapter 10: overthinking, fake confidence, and how a rule is trained."""

from __future__ import annotations

import pandas as pd

from ...analysis.statistics import estimates
from .. import figures
from ..prose import listed, on_tasks, span, task_span
from .wording import CLEARLY, percent_span, some, without_source

# a rule, and how it was trained
UNTRAINED = ("surest", "untrained")  # the largest probability, which needs no training
BALANCED = ("linear", "balanced cross-entropy")  # BERxiT's unit, with the loss of CALM's classifier
SQUARED = ("learning_to_exit", "squared error")  # BERxiT's unit
STATE = ("past_future", "squared error of the state")
DISTILLED = ("past_future", "distilled")


def overthinking_figure(thinking: pd.DataFrame, note: str = ""):
    """The share of tokens that some layer has right and the last has wrong, by task and model."""
    tasks = list(thinking.task.unique())
    return figures.facets(
        thinking.assign(panel=""),
        _draw_overthinking,
        "panel",
        tasks=tasks,
        width=6.4,
        height=2.5,
        xlabel="tokens that an earlier layer has right\nand the last layer has wrong (%)",
        message=overthinking_message(thinking),
        note=note,
    )


def _draw_overthinking(axis, rows: pd.DataFrame, tasks: list[str]) -> None:
    models = list(rows.model.unique())
    shift = rows.model.map(models.index) - (len(models) - 1) / 2
    band = ["overthought_low", "overthought_high"]
    rows = rows.assign(height=rows.task.map(tasks.index) + 0.25 * shift)
    rows[["overthought", *band]] *= 100
    figures.dots(axis, rows, "overthought", "height", "model", xband=band)
    axis.set_yticks(range(len(tasks)), [figures.label(task) for task in tasks])
    axis.set_ylim(len(tasks) - 0.5, -0.5)
    axis.set_xlim(left=-0.02 * rows.overthought_high.max())


def overthinking_message(thinking: pd.DataFrame) -> str:
    """Between which shares overthinking lies in the model that is trained for exits."""
    shares = percent_span(thinking[thinking.model == "calm"].overthought, "{:.1%}")
    return f"By task, {shares} of CALM's tokens are right at an earlier layer and wrong at the last"


def overthinking_conclusion(thinking: pd.DataFrame) -> str:
    """How much a rule that knew the truth could gain."""
    calm = thinking[thinking.model == "calm"].set_index("task")
    return (
        f"A rule that knew the truth could correct {task_span(calm.overthought, '.1%')} of CALM's tokens, in "
        f"addition to the {percent_span(calm.right, '{:.1%}')} that are right anyway. This is an "
        "upper bound: a token has as many chances as there are layers, and a rule does not see which of "
        "them is right."
    )


def fake_figure(fake: pd.DataFrame, sure: float, first_layer: int, note: str = ""):
    """Of how many tokens a layer is confident, and how many of these are wrong: two rows, a column a task."""
    quantities = {
        "sure": f"share of tokens with a\nprobability above {sure:g}",
        "wrong": "share of these\nthat is wrong",
    }
    return figures.facets(
        fake,
        _draw_fake,
        quantities=quantities,
        sharey="row",
        height=2.4,
        message=fake_message(fake, first_layer),
        note=note,
    )


def _draw_fake(axis, rows: pd.DataFrame, y: str) -> None:
    band = figures.BAND if y == "wrong" else None
    figures.lines(axis, rows, "layer", y, "model", band, clip=(0, 1))


def wrong_at(fake: pd.DataFrame, layer: int) -> pd.DataFrame:
    """Of the tokens that a layer is confident of, the share that is wrong: a row a task, a column a model."""
    return fake[fake.layer == layer].pivot(index="task", columns="model", values="wrong")


def fake_message(fake: pd.DataFrame, first_layer: int) -> str:
    """Whether a model that is trained for exits is right where it is confident."""
    wrong = wrong_at(fake, first_layer)
    means = wrong.mean()
    return (
        f"At layer {first_layer}, {some(means['vanilla'])} of the tokens that vanilla is confident of are "
        f"wrong, and {some(means['calm'])} of CALM's (mean over tasks)"
    )


def fake_conclusion(fake: pd.DataFrame, first_layer: int) -> str:
    """By task, at the first exit and at the last layer."""
    wrong = wrong_at(fake, first_layer)
    last = wrong_at(fake, int(fake.layer.max()))
    fewer = wrong.index[wrong.calm < wrong.vanilla]
    return (
        f"At layer {first_layer}, the first exit, training for exits makes confidence more honest "
        f"{on_tasks(fewer, wrong.index)}. Of the tokens that CALM is confident of, {_few(wrong.calm)} are "
        f"wrong there, and {_few(last.calm)} at the last layer."
    )


def _few(shares: pd.Series) -> str:
    """Shares by task; where all are tiny, the largest.

    >>> _few(pd.Series([0.001, 0.0])), _few(pd.Series([0.0004])), _few(pd.Series([0.0]))
    ('at most 0.1%', 'fewer than 0.05%', 'none')
    """
    if shares.max() >= 0.005:
        return task_span(shares, ".1%")
    if 0 < shares.max() < 0.0005:
        return "fewer than 0.05%"
    return f"at most {shares.max():.1%}" if shares.max() > 0 else "none"


def training_conclusion(ways: pd.DataFrame) -> str:
    """What a rule is taught: the loss of BERxiT's unit, and distillation of the predicted state."""
    of = _by_training(ways)
    linear = of[BALANCED]
    berxit = of[SQUARED]
    untrained = of[UNTRAINED]
    state = of[STATE]
    distilled = of[DISTILLED]
    better = clearly_above(distilled, untrained, "right")
    return (
        f"The linear unit has an area of {task_span(linear.roc_area, '.2f')} with balanced cross-entropy, "
        f"and of {task_span(berxit.roc_area, '.2f')} with squared error. The token of a predicted state is "
        f"the last layer's in {percent_span(state.right, '{:.1%}')} of the cases, that of a distilled one in "
        f"{percent_span(distilled.right, '{:.1%}')}, and the layer's own in "
        f"{percent_span(untrained.right, '{:.1%}')}. The distilled one is clearly ahead of the layer's own "
        f"{on_tasks(better, untrained.index)} (that is, {CLEARLY})."
    )


def training_message(ways: pd.DataFrame) -> str:
    """Which loss gives the linear unit the larger area, and whether training beats no training."""
    of = _by_training(ways)
    better = clearly_above(of[BALANCED], of[SQUARED])
    return (
        "A linear unit ranks tokens clearly better with balanced cross-entropy than with squared error "
        f"{on_tasks(better, of[BALANCED].index)}. {_beside_untrained(of)}"
    )


def clearly_above(first: pd.DataFrame, second: pd.DataFrame, column: str = "roc_area") -> pd.Index:
    """The tasks on which the paired difference of a column has an interval above zero.

    Args:
        first: the rows of one way of training by task, with draws (`statistics.estimates`).
        second: those of another.
        column: what is compared.
    """
    beside = second.loc[first.index]
    difference = estimates(first, column) - estimates(beside, column)  # [task]
    return first.index[difference.low > 0]


def _beside_untrained(of: dict[tuple[str, str], pd.DataFrame]) -> str:
    """Whether the units and other trained rules rank tokens better than the untrained max probability."""
    untrained = of[UNTRAINED]
    tasks = list(untrained.index)
    ahead = {*clearly_above(of[BALANCED], untrained), *clearly_above(of[SQUARED], untrained)}
    area = span(untrained.roc_area)
    better_than = f"clearly better than the untrained max probability (area {area})"
    text = f"With neither loss does it rank them {better_than}"
    if ahead:
        where = on_tasks([task for task in tasks if task in ahead], tasks)
        text = f"With one of the losses it ranks them {better_than} {where}"
    better = [
        f"the {without_source(rule)}, {trained_by} (by {span(rows.roc_area - untrained.roc_area, '{:.3f}')})"
        for (rule, trained_by), rows in of.items()
        if len(clearly_above(rows, untrained)) == len(tasks)
    ]
    if not better:
        return f"{text}; no trained rule does so on every task."
    only = "only " if len(better) == 1 else ""
    does = "does" if only else "do"
    return f"{text}; {only}{listed(better)}, {does} so on every task."


def _by_training(ways: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """(rule, how it was trained) -> its rows by task."""
    return {key: rows.set_index("task") for key, rows in ways.groupby(["rule", "trained by"], sort=False)}
