"""Chapter 00: what the objectives supervise, what the models score, what training for exits costs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from .. import figures
from ..prose import listed, on_tasks, task_span
from .wording import capitalized, percent_span


def objectives_figure(weights: pd.DataFrame, note: str = ""):
    """The weight of each layer's cross-entropy in the loss, a panel an objective."""
    figure = figures.facets(
        weights,
        figures.grouped_bars,
        "model",
        x="layer",
        y="weight",
        xlabel="layer",
        ylabel="weight of the layer's\ncross-entropy",
        width=2.5,
        height=2.3,
        with_legend=False,
        message=objectives_message(weights),
        note=note,
    )
    layers = weights.layer.max()
    figure.axes[0].set_xticks(range(1, layers, 2), range(2, layers + 1, 2))
    return figure


def objectives_message(weights: pd.DataFrame) -> str:
    """Which objectives leave all layers below the last without a loss."""
    below = weights[weights.layer < weights.layer.max()].groupby("model", sort=False).weight.sum()
    alone = [figures.label(name) for name, weight in below.items() if weight == 0]
    if not alone:
        return ""
    others = "; all others supervise earlier layers too" if len(alone) < len(below) else ""
    return f"{capitalized(listed(alone))} training supervises only the last layer{others}"


def objectives_conclusion(weights: pd.DataFrame) -> str:
    """How CALM spreads its loss."""
    calm = weights[weights.model == "calm"].weight
    if calm.empty:
        return ""
    return (
        f"CALM gives the first layer {calm.iloc[0]:.1%} of the loss and the last layer {calm.iloc[-1]:.1%}: "
        "every layer learns to predict, later ones with more weight."
    )


def scores_figure(shown: pd.DataFrame, metrics: dict[str, str], note: str = ""):
    """Mean scores of the models (colours) and of trivial baselines (grey) by task."""
    figure = figures.facets(
        shown,
        figures.bars,
        x="mean",
        by="system",
        band=figures.BAND,
        other=figures.PALE,
        sharex=False,
        sharey=False,
        width=3.9,
        height=3.2,
        message=scores_message(shown),
        note=note,
    )
    for axis, metric in zip(figure.axes, metrics.values(), strict=True):
        axis.set(xlabel=f"mean {figures.label(metric)} (%)", xlim=(0, 100))
    return figure


def beside_baselines(shown: pd.DataFrame) -> pd.DataFrame:
    """By task: the best model and the best trivial baseline with their corpus scores."""
    rows = []
    for task, group in shown.groupby("task", sort=False):
        best = group[group.kind == "model"].nlargest(1, "corpus_score").iloc[0]
        baseline = group[group.kind == "baseline"].nlargest(1, "corpus_score").iloc[0]
        rows.append(
            {
                "task": task,
                "metric": best.metric,
                "model": best.system,
                "score": best.corpus_score,
                "baseline": baseline.system,
                "baseline_score": baseline.corpus_score,
            }
        )
    return pd.DataFrame(rows).set_index("task")


def scores_message(shown: pd.DataFrame) -> str:
    """Whether the models stand above what needs no model."""
    best = beside_baselines(shown)
    lead = (best.score - best.baseline_score).min()
    return f"The best model scores at least {lead:.0f} points above the best trivial baseline on every task"


def scores_conclusion(shown: pd.DataFrame) -> str:
    """The task on which the models are nearest to what needs no model."""
    best = beside_baselines(shown)
    task = (best.score - best.baseline_score).idxmin()
    row = best.loc[task]
    return (
        f"The lead over trivial baselines is smallest on {figures.label(task)}: {row.score:.1f} "
        f"{figures.label(row.metric)} ({figures.label(row.model)}) against {row.baseline_score:.1f} "
        f"({figures.label(row.baseline)})."
    )


def seeds_figure(spread: pd.DataFrame, note: str = ""):
    """The mean layer from which a token's prediction is final, with the range over seeds, a row a model."""
    shown = spread[spread.measure == "settled_from"]
    return figures.facets(
        shown,
        _draw_seeds,
        xlabel="mean layer from which\npredictions are final",
        height=1.4 + 0.27 * shown.model.nunique(),
        with_legend=False,
        message=seeds_message(spread),
        note=note,
    )


def _draw_seeds(axis, rows: pd.DataFrame) -> None:
    for number, row in enumerate(rows.itertuples()):
        style = figures.STYLES[row.model]
        axis.plot([row.low, row.high], [number, number], color=style.colour, linewidth=2)
        axis.plot(row.mean, number, style.marker, color=style.colour, markersize=7)
    _name_rows(axis, rows.model)


def _name_rows(axis, models) -> None:
    axis.set_yticks(range(len(models)), [figures.label(name) for name in models])
    axis.set_ylim(len(models) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)


def spans_of_seeds(spread: pd.DataFrame) -> pd.DataFrame:
    """By measure: the widest range over seeds, and the least and largest differences of models on a task."""
    widths = spread.assign(width=spread.high - spread.low).groupby("measure", sort=False).width.max()
    means = spread.groupby(["measure", "task"], sort=False)["mean"].agg(["min", "max"])
    apart = (means["max"] - means["min"]).groupby("measure", sort=False)
    return pd.DataFrame({"seeds": widths, "least": apart.min(), "most": apart.max()})


def seeds_message(spread: pd.DataFrame) -> str:
    """The noise of seeds beside the difference of objectives, in layers."""
    row = spans_of_seeds(spread).loc["settled_from"]
    return (
        f"Seeds move the layer at which predictions become final by at most {row.seeds:.2f}, objectives by "
        f"{row.least:.1f} to {row.most:.1f}"
    )


def seeds_conclusion(spread: pd.DataFrame) -> str:
    """How much of the difference between objectives is seed noise."""
    spans = spans_of_seeds(spread)
    sentences = ["How early predictions become final depends on the objective, not on the seed."]
    if "flops_share" in spans.index:
        row = 100 * spans.loc["flops_share"]
        sentences.append(
            "The same holds for the savings of a rule: the FLOPs of the pruned margin at 0.9 differ by at "
            f"most {row.seeds:.0f} percentage points between seeds, and by at least {row.least:.0f} between "
            "objectives."
        )
    if "score" in spans.index:
        row = spans.loc["score"]
        sentences.append(
            f"Scores at full depth differ by up to {row.most:.1f} points between objectives and by up to "
            f"{row.seeds:.1f} between seeds."
        )
    return " ".join(sentences)


def costs_figure(costs: pd.DataFrame, note: str = ""):
    """Points that each model loses at full depth against vanilla of the same seed, a dot for each run."""
    return figures.facets(
        costs,
        _draw_costs,
        xlabel="points lost at full depth (vanilla = 0)",
        height=2.2,
        with_legend=False,
        message=costs_message(costs),
        note=note,
    )


def _draw_costs(axis, rows: pd.DataFrame) -> None:
    axis.axvline(0, color=figures.GREY, linewidth=0.8)
    models = list(rows.model.unique())
    for number, name in enumerate(models):
        part = rows[rows.model == name]
        style = figures.STYLES[name]
        heights = number + 0.18 * (np.arange(len(part)) - (len(part) - 1) / 2)
        whiskers = [(part.lost - part.low).fillna(0), (part.high - part.lost).fillna(0)]
        axis.errorbar(part.lost, heights, xerr=whiskers, fmt=style.marker, color=style.colour, elinewidth=1)
    _name_rows(axis, models)


def costs_message(costs: pd.DataFrame) -> str:
    """The largest price of an objective at full depth."""
    means = costs.groupby(["task", "model", "metric"], sort=False).lost.mean()
    task, name, metric = means.idxmax()
    dearest = (
        f"{means.max():.1f} points of {figures.label(metric)} ({figures.label(name)}, {figures.label(task)})"
    )
    return f"On average over seeds, training for exits costs up to {dearest} at full depth"


def costs_conclusion(costs: pd.DataFrame) -> str:
    """What CALM's objective costs, and where all its seeds lose."""
    calm = costs[costs.model == "calm"]
    if calm.empty:
        return ""
    by_task = calm.groupby("task", sort=False).lost
    always = by_task.min()
    where = on_tasks(always[always > 0].index, list(costs.task.unique()))
    return (
        f"Relative to vanilla, CALM's score changes by {task_span(-by_task.mean(), '+z.1f')} points on "
        "average "
        f'over seeds; it is lower with every seed {where}. So "99% of full depth" is 99% of a different '
        "score; 08 therefore also compares exits with vanilla at full depth."
    )


def summary(shown: pd.DataFrame, spread: pd.DataFrame, costs: pd.DataFrame, layers: int) -> str:
    """The chapter in five sentences at most."""
    best = beside_baselines(shown)
    sentences = [
        f"All models have {layers} decoder layers and differ in the objective alone.",
        f"The best model scores {percent_span(best.score / 100)}, depending on the task; trivial baselines "
        f"score at most {best.baseline_score.max():.0f}%.",
        f"{seeds_message(spread)}." if len(spread) else "",
        f"{costs_message(costs)}." if len(costs) else "",
        "No score here can be compared with the papers': models and corpora differ.",
    ]
    return " ".join(sentence for sentence in sentences if sentence)
