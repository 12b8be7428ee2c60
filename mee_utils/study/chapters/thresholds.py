"""Chapter 09: who sets the threshold, and does it hold elsewhere? Bandits, intervals, other domains."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from .. import figures
from ..prose import listed, on_tasks, task_span
from .wording import percent_span, with_interval

STREAM = "bandit, one stream"
EACH = "bandit, each output"
CALIBRATED = "calibrated"
STRATEGIES = {  # who sets the threshold -> its name and colour
    "best fixed arm": figures.Style("best fixed arm", "#999999"),
    EACH: figures.Style("bandit,\neach output", figures.STYLES["bandit"].colour),
    STREAM: figures.Style("bandit,\none stream", figures.STYLES["bandit"].colour),
    CALIBRATED: figures.Style("calibrated\n(learn then test)", figures.DARK),
}
PLACES = {
    "home": figures.Style("at home", figures.DARK, "o"),
    "task": figures.Style("another task", "#999999", "s"),
    "corpus": figures.Style("another corpus of the task", "#d55e00", "D"),
}
AWAY = {"home": "at home", "task": "on another task", "corpus": "on another corpus"}
NOWHERE_ELSE = "This profile names no other corpus of a task."
LEAST_LOSS = 1e-4  # smaller losses are drawn there, on a logarithmic axis


def strategies(draws: pd.DataFrame) -> pd.DataFrame:
    """The draws of both bandits and of calibration, and of the fixed arm that earns most."""
    rows = draws[draws.who.isin(STRATEGIES)]
    arms = draws[draws.who.str.startswith("always")]
    best = arms.loc[arms.groupby("task", sort=False).regret.idxmin()].assign(who="best fixed arm")
    return pd.concat([best, rows], ignore_index=True)


def bandit_figure(draws: pd.DataFrame, delta: float, note: str = ""):
    """The mean loss of all outputs, a box over random orders or halves for each strategy, a panel a task."""
    return figures.facets(
        strategies(draws),
        _draw_boxes,
        delta=delta,
        sharey=False,
        width=3.8,
        height=3.0,
        ylabel="mean consistency loss (%)",
        message=bandit_message(draws),
        note=note,
    )


def _draw_boxes(axis, rows: pd.DataFrame, delta: float) -> None:
    names = [name for name in STRATEGIES if (rows.who == name).any()]
    losses = [100 * rows[rows.who == name].loss for name in names]
    boxes = axis.boxplot(losses, widths=0.55, patch_artist=True, medianprops={"color": "black"})
    for box, name in zip(boxes["boxes"], names, strict=True):
        box.set(facecolor=STRATEGIES[name].colour, alpha=0.5)
    axis.axhline(100 * delta, color="#d55e00", linewidth=1.2, label=f"demand: {delta:.0%}")
    axis.set_xticks(range(1, len(names) + 1), [STRATEGIES[name].label for name in names], fontsize=8)
    axis.set_ylim(bottom=0)
    axis.grid(axis="x", visible=False)


def bandit_message(draws: pd.DataFrame) -> str:
    """In how many draws the demand is exceeded."""
    broken = draws.groupby("who").broken.mean()
    return (
        f"A bandit over one stream exceeds the calibrated demand in {broken[STREAM]:.0%} of the draws, a "
        f"calibrated threshold in {broken[CALIBRATED]:.0%}"
    )


def bandit_conclusion(keepers: pd.DataFrame) -> str:
    """What bandits earn, and what they lose."""
    of = {who: rows.set_index("task") for who, rows in keepers.groupby("who", sort=False)}
    return (
        "A bandit does its job and does not keep quality, since its reward is confidence minus depth. Over "
        f"one stream it earns nearly what the best fixed arm does (regret {of[STREAM].regret.max():.3f} a "
        f"token at most), with a mean loss of {task_span(of[STREAM].loss, '.1%')}; a calibrated threshold "
        f"loses {task_span(of[CALIBRATED].loss, '.1%')}."
    )


def intervals_conclusion(spaced: pd.DataFrame) -> str:
    """FLOPs with an exit at every layer and at every third."""
    shares = spaced.pivot(index="task", columns="every", values="flops_share")
    cheaper = shares.index[shares[3] < shares[1] - 0.005]
    return (
        f"Fewer exits are cheaper {on_tasks(cheaper, shares.index)}. At equal loss, exits at every layer "
        f"take {task_span(shares[1])} of the FLOPs, and at every third {task_span(shares[3])}."
    )


def worst_by_place(travelled: pd.DataFrame) -> pd.DataFrame:
    """The worst loss of each rule by where its threshold is used: at home, on another task or corpus."""
    kind = travelled.place.map({"at home": "home", "away": "task"}).fillna("corpus")
    worst = travelled.assign(place=kind).groupby(["rule", "place"], sort=False).loss.max()
    return worst.reset_index()


def away_figure(travelled: pd.DataFrame, demand: float, note: str = ""):
    """The worst loss of every rule at home and away, rules sorted by what they lose away."""
    worst = worst_by_place(travelled)
    order = worst.groupby("rule").loss.max().sort_values(kind="stable").index
    return figures.facets(
        worst.assign(panel=""),
        _draw_places,
        "panel",
        order=list(order),
        demand=demand,
        width=7.2,
        height=0.25 * len(order) + 0.9,
        xlabel="largest mean consistency loss of any task (log)",
        message=away_message(travelled, demand),
        note=note,
    )


def _draw_places(axis, rows: pd.DataFrame, order: Sequence[str], demand: float) -> None:
    rows = rows.assign(height=rows.rule.map(order.index), loss=rows.loss.clip(lower=LEAST_LOSS))
    for height, part in rows.groupby("height"):
        axis.plot([part.loss.min(), part.loss.max()], [height, height], color="#cccccc", zorder=0)
    figures.dots(axis, rows, "loss", "height", "place", styles=PLACES)
    axis.axvline(demand, color=figures.GREY, linewidth=1, linestyle="--", label=f"demand: {demand:.0%}")
    axis.set_yticks(range(len(order)), [figures.label(rule) for rule in order], fontsize=8)
    axis.set_xscale("log")


def away_message(travelled: pd.DataFrame, demand: float) -> str:
    """How many rules exceed twice the demand at home and elsewhere."""
    worst = worst_by_place(travelled).pivot(index="rule", columns="place", values="loss")
    broken = (worst > 2 * demand).sum()
    texts = [f"{broken[place] or 'none'} {AWAY[place]}" for place in AWAY if place in broken]
    wanted = f"a loss of {demand:.0%}"
    return (
        f"Of {len(worst)} rules with thresholds set for {wanted}, {listed(texts)} lose more than twice that"
    )


def away_conclusion(travelled: pd.DataFrame) -> str:
    """The median rule at home, on another task and on another corpus, and the worst one away."""
    worst = worst_by_place(travelled)
    medians = worst.groupby("place", sort=False).loss.median()
    texts = [f"{loss:.1%} {AWAY[place]}" for place, loss in medians.items()]
    away = worst[worst.place != "home"]
    if away.empty:
        return f"The median rule loses {listed(texts)}. {NOWHERE_ELSE}"
    row = away.loc[away.loss.idxmax()]
    return (
        "A threshold is a statement about the inputs on which it was chosen. The median rule loses "
        f"{listed(texts)} (worst task); {figures.label(row.rule)} loses most, {row.loss:.1%} "
        f"{AWAY[row.place]}."
    )


def confidence_conclusion(moved: pd.DataFrame) -> str:
    """How sure the first exit is at home and elsewhere, and how often the last layer contradicts it."""
    home = moved[moved.place == "at home"].set_index("task")
    away = moved[moved.place != "at home"]
    if away.empty:
        return NOWHERE_ELSE
    texts = [
        f"{row.place} ({figures.label(row.task)}) {row.sure:.0%}, of which "
        f"{with_interval(row._asdict(), 'wrong', '.1%', 'low', 'high')}"
        for row in away.itertuples()
    ]
    return (
        f"At home the first exit is sure of {task_span(home.sure)} of the tokens, and the last layer "
        f"contradicts {percent_span(home.wrong, '{:.1%}')} of these. Elsewhere: {'; '.join(texts)}."
    )


def later_conclusion(thirds: pd.DataFrame) -> str:
    """Errors in the first and in the last third of the outputs."""
    texts = []
    for what, rows in thirds.groupby("what", sort=False):
        by_part = rows.pivot(index="task", columns="part", values="wrong")
        fewer = by_part.index[by_part[3] < by_part[1]]
        means = by_part.mean()
        texts.append(
            f"{what} makes fewer errors than in the first {on_tasks(fewer, by_part.index)} (mean over tasks: "
            f"{means[1]:.2%} in the first, {means[3]:.2%} in the last)"
        )
    return f"In the last third of the outputs, {', and '.join(texts)}."
