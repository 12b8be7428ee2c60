"""Chapter 00: what the objectives supervise, what the models score, what training for exits costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from .. import figures
from ..prose import listed, on_tasks, span, task_span
from .wording import capitalized, percent_span

NEAR = 3  # points that two scores of much the same model may differ by
STARTS = {  # models that no objective is about -> what they are
    "pretrained": "has learned from corrupted spans alone and has seen no task",
    "base": "is the model from which every objective continues",
}
SYNTHETIC_DATA = (
    "The **synthetic data** describe people who live, work, travel and own things; a seeded grammar "
    "generates the sentences. Answers are sentences: they first restate what is asked, then spell out "
    'each hop. A fifth of the questions ask for the bare value ("In one word: ..."). No question context '
    "appears in more than one split. The data have what no real corpus has: for every target token we "
    'know *what it takes to produce it*. A "copied" word continues a span of the source, "one fact" needs'
    ' a sentence to be found first, "two facts" joins two of them, and "counted" and "compared" words '
    'need a computation. In French, "agreement" depends on a neighbour and "distant agreement" on a word '
    "at least two words away. The table has the share of each difficulty among the target tokens of a "
    "task."
)


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


def starts_conclusion(names: Sequence[str], fine_tuned: bool) -> str:
    """What the models are in the figure of scores that no objective is about.

    Args:
        names: the models of the figure.
        fine_tuned: whether the base was trained on the tasks, with the ordinary loss.
    """
    texts = {name: f"*{capitalized(figures.label(name))}* {STARTS[name]}" for name in names if name in STARTS}
    if fine_tuned and "base" in texts:
        texts["base"] += ": fine-tuned on all tasks, with the loss of the last layer alone"
    return " ".join(f"{text}." for text in texts.values())


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
        f"{figures.label(row.metric)} ({_system(row.model)}) against {row.baseline_score:.1f} "
        f"({figures.label(row.baseline)})."
    )


SEED_MEASURES = {  # what is shown of the seeds -> its name, and the form of its numbers
    "settled_from": ("mean layer from which predictions are final", "{:.2f}"),
    "flops_share": ("FLOPs of the pruned margin at 0.9, % of full depth", "{:.0f}"),
    "score": ("score at full depth", "{:.1f}"),
}


def seeds_shown(spread: pd.DataFrame) -> pd.DataFrame:
    """The mean over seeds with the least and the largest in brackets: a row a measure and model."""
    rows = []
    for measure, (name, form) in SEED_MEASURES.items():
        part = spread[spread.measure == measure]
        scale = 100 if measure == "flops_share" else 1
        for row in part.itertuples():
            bounds = [form.format(scale * value) for value in (row.low, row.high)]
            rows.append(
                {
                    "quantity": name,
                    "model": figures.label(row.model),
                    "task": figures.label(row.task),
                    "cell": f"{form.format(scale * row.mean)} ({' to '.join(bounds)})",
                }
            )
    table = pd.DataFrame(rows)
    shown = table.pivot(index=["quantity", "model"], columns="task", values="cell")
    order = list(dict.fromkeys(zip(table.quantity, table.model, strict=True)))
    return shown.reindex(index=order, columns=list(table.task.unique())).rename_axis(columns=None)


def retrained_models(seeds: pd.DataFrame, scored: Sequence[str]) -> str:
    """Which models were trained with several seeds, which once, and which appear nowhere else.

    Args:
        seeds: as `cost_at_full_depth` takes them.
        scored: the models of the chapter's other tables.
    """
    numbers = seeds.groupby("model", sort=False).seed.nunique()
    sentences = []
    for number, names in numbers.groupby(numbers, sort=False).groups.items():
        models = capitalized(listed(map(figures.label, names)))
        be = "were" if len(names) > 1 else "was"
        each = " each" if len(names) > 1 else ""
        plural = "seed" if number == 1 else "seeds"
        sentences.append(f"{models} {be} trained with {number} {plural}{each}.")
    only_here = [name for name in numbers.index if name not in scored]
    if only_here:
        verb = "appear" if len(only_here) > 1 else "appears"
        models = capitalized(listed(map(figures.label, only_here)))
        sentences.append(f"{models} {verb} only in this chapter; no model of it is kept.")
    once = [name for name in scored if name not in numbers.index and name not in STARTS]
    if once:
        be = "were" if len(once) > 1 else "was"
        sentences.append(f"{capitalized(listed(map(figures.label, once)))} {be} trained once.")
    return " ".join(sentences)


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


def _system(name: str) -> str:
    """A model in a sentence: "CALM", "the base model"."""
    return f"the {figures.label(name)} model" if name in STARTS else figures.label(name)


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
    row = spans.loc["settled_from"]
    sentences = [f"{seeds_message(spread)}."]
    if row.least > row.seeds:
        sentences.append("How early predictions become final depends on the objective, not on the seed.")
    if "flops_share" in spans.index:
        row = 100 * spans.loc["flops_share"]
        same = "The same holds for the savings of a rule: the" if row.least > row.seeds else "The"
        sentences.append(
            f"{same} FLOPs with exits by the pruned margin (03) at 0.9 differ by at most {row.seeds:.0f} "
            f"percentage points between seeds, and by at least {row.least:.0f} between objectives. (At an "
            "equal threshold, fewer FLOPs may mean worse outputs; 08 compares at equal quality.)"
        )
    if "score" in spans.index:
        row = spans.loc["score"]
        sentences.append(
            f"Scores at full depth differ by up to {row.most:.1f} points between objectives and by up to "
            f"{row.seeds:.1f} between seeds."
        )
    return " ".join(sentences)


def costs_figure(costs: pd.DataFrame, note: str = ""):
    """Points that each model loses at full depth against vanilla of the same seed, a dot for each training.

    A panel a task and a row a model; of a single model, one panel with a row a task.
    """
    alone = costs.model.nunique() == 1
    rows = "task" if alone else "model"
    return figures.facets(
        costs,
        _draw_costs,
        "model" if alone else "task",
        by=rows,
        xlabel="points lost at full depth (vanilla = 0)",
        width=6.0 if alone else 3.4,
        height=1.3 + 0.32 * costs[rows].nunique(),
        with_legend=False,
        message=costs_message(costs),
        note=note,
    )


def _draw_costs(axis, rows: pd.DataFrame, by: str) -> None:
    axis.axvline(0, color=figures.GREY, linewidth=0.8)
    names = list(rows[by].unique())
    for number, name in enumerate(names):
        part = rows[rows[by] == name]
        style = figures.STYLES[part.model.iloc[0]]
        heights = number + 0.18 * (np.arange(len(part)) - (len(part) - 1) / 2)
        whiskers = [(part.lost - part.low).fillna(0), (part.high - part.lost).fillna(0)]
        axis.errorbar(part.lost, heights, xerr=whiskers, fmt=style.marker, color=style.colour, elinewidth=1)
        axis.vlines(part.lost.mean(), number - 0.3, number + 0.3, color=figures.DARK, linewidth=1.2)
    _name_rows(axis, names)


def costs_message(costs: pd.DataFrame) -> str:
    """The largest price of an objective at full depth."""
    means = costs.groupby(["task", "model", "metric"], sort=False).lost.mean()
    task, name, metric = means.idxmax()
    dearest = (
        f"{means.max():.1f} points of {figures.label(metric)} ({figures.label(name)}, {figures.label(task)})"
    )
    number = costs.seed.nunique()
    seeds = f"On average over {number} seeds" if number > 1 else "With one seed"
    return f"{seeds}, training for exits costs up to {dearest} at full depth"


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
        f'average over seeds; it is lower with every seed {where}. So "99% of full depth" is not 99% of '
        "vanilla's score; 08 therefore also compares exits with vanilla at full depth."
    )


def published_conclusion(published: pd.DataFrame) -> str:
    """Where our vanilla model is above, near and below the published scores, and what to know of them."""
    beside = published.assign(apart=published.ours_as_published - published.score)
    near = beside[beside.apart.abs() <= NEAR]
    above = beside[beside.apart > NEAR]
    below = beside[beside.apart < -NEAR]
    parts = [
        f"within {NEAR} points of the published {_metrics(near)}" if len(near) else "",
        f"{span(above.apart, '{:.1f}')} points above the published {_metrics(above)}" if len(above) else "",
        f"{span(-below.apart, '{:.1f}')} points below the published {_metrics(below)}" if len(below) else "",
    ]
    weak = "; there it is weak for its size" if len(below) else ""
    return " ".join([f"Our vanilla model is {listed(filter(None, parts))}{weak}.", *_caveats(published)])


def _metrics(rows: pd.DataFrame) -> str:
    """The metrics of some scores with their tasks: "F1 (question answering)"."""
    parts = []
    for task, part in rows.groupby("task", sort=False):
        parts.append(f"{listed(map(figures.label, part.metric))} ({figures.label(task)})")
    return listed(parts)


def _caveats(published: pd.DataFrame) -> list[str]:
    """What tells the published scores that are shown from ours, besides the model."""
    sentences = ["Tokenization differs in detail."]
    if published.corpus.str.contains("DialogSum").any():
        sentences.append(
            "DialogSum's test split is not available here, so we test on its validation split. The published "
            "ROUGE-L is unusually close to ROUGE-1. This is typical of `py-rouge`, which wrongly applies "
            "ROUGE-W's exponent to precision and recall; `ours_as_published` scores our outputs in that way."
        )
    if published.corpus.str.contains("SNIPS").any():
        sentences.append("The published F1 is computed over slots, ours over words.")
    return sentences


def summary(
    shown: pd.DataFrame, spread: pd.DataFrame, costs: pd.DataFrame, layers: int, trained: Sequence[str] = ()
) -> str:
    """The chapter in five sentences at most.

    Args:
        shown: scores, one metric a task.
        spread: over seeds, of what `SEED_MEASURES` names; may be empty.
        costs: as `cost_at_full_depth` returns it; may be empty.
        layers: of the decoder.
        trained: the models that this profile trains from one base, by objective.
    """
    best = beside_baselines(shown)
    alike = f"All models have {layers} decoder layers."
    if len(trained) > 1:
        models = capitalized(listed(map(figures.label, trained)))
        alike = (
            f"{models} share one architecture ({layers} decoder layers) and one starting point, and differ "
            "only in the objective."
        )
    sentences = [
        alike,
        f"The best model scores {percent_span(best.score / 100)}, depending on the task; trivial baselines "
        f"score at most {best.baseline_score.max():.0f}%.",
        f"{seeds_message(spread)}." if len(spread) else "",
        f"{costs_message(costs)}." if len(costs) else "",
        "No score here can be compared with those of the two papers: models and corpora differ.",
    ]
    return " ".join(sentence for sentence in sentences if sentence)
