"""Chapter 09: who sets the threshold, and does it hold elsewhere? Bandits, intervals, other domains."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from .. import figures
from ..prose import listed, on_tasks, task_span
from .wording import capitalized, percent_span, with_interval

STREAM = "bandit, one stream"
EACH = "bandit, each output"
CALIBRATED = "calibrated"
STRATEGIES = {  # who sets the threshold -> its name and colour
    "best fixed arm": figures.Style("best fixed arm", "#999999"),
    EACH: figures.Style("bandit,\neach output", figures.STYLES["bandit"].colour),
    STREAM: figures.Style("bandit,\none stream", figures.STYLES["bandit"].colour),
    CALIBRATED: figures.Style("calibrated\n(Learn\nthen Test)", figures.DARK),
}
PLACES = {
    "home": figures.Style("in-domain", figures.DARK, "o"),
    "task": figures.Style("another task", "#999999", "s"),
    "corpus": figures.Style("another corpus of the task", "#d55e00", "D"),
}
AWAY = {"home": "in-domain", "task": "on another task", "corpus": "on another corpus"}
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
        message=bandit_message(draws, delta),
        note=note,
    )


def _draw_boxes(axis, rows: pd.DataFrame, delta: float) -> None:
    names = [name for name in STRATEGIES if (rows.who == name).any()]
    losses = [100 * rows[rows.who == name].loss for name in names]
    boxes = axis.boxplot(losses, widths=0.55, patch_artist=True, medianprops={"color": "black"})
    for box, name in zip(boxes["boxes"], names, strict=True):
        box.set(facecolor=STRATEGIES[name].colour, alpha=0.5)
    axis.axhline(100 * delta, color="#d55e00", linewidth=1.2, label=f"target: {delta:.0%}")
    axis.set_xticks(range(1, len(names) + 1), [STRATEGIES[name].label for name in names], fontsize=8)
    axis.set_ylim(bottom=0)
    axis.grid(axis="x", visible=False)


def bandit_message(draws: pd.DataFrame, delta: float) -> str:
    """On how many tasks the target loss is exceeded, and in how many draws."""
    broken = draws.groupby(["who", "task"]).broken.mean()
    return (
        f"A bandit over one stream exceeds the target loss of {delta:.0%} {_how_often(broken[STREAM])}, a "
        f"calibrated threshold {_how_often(broken[CALIBRATED])}"
    )


def _how_often(broken: pd.Series) -> str:
    """How often something happens, from shares of the draws by task: "in every draw on 1 of 3 tasks"."""
    some = broken[broken > 0]
    if some.empty:
        return "never"
    draws = "every draw" if some.min() == 1 else f"{percent_span(some)} of the draws"
    return f"in {draws} on {len(some)} of {len(broken)} tasks" if len(broken) > 1 else f"in {draws}"


def bandit_conclusion(keepers: pd.DataFrame, delta: float) -> str:
    """What bandits earn, and what they lose; `delta` is the target loss."""
    of = {who: rows.set_index("task") for who, rows in keepers.groupby("who", sort=False)}
    stream = of[STREAM]
    above = stream.index[stream.loss > delta]
    below = "" if len(above) == len(stream) else " and stays below it on the others"
    lost = f"it exceeds the target {on_tasks(above, stream.index)}{below}"
    if above.empty:
        lost = f"here it stays below the target {on_tasks(stream.index, stream.index)}"
    return (
        f"A bandit maximises its reward, confidence minus depth, and nothing bounds its loss: {lost}. Over "
        f"one stream it earns nearly what the best fixed arm does (regret of {stream.regret.max():.3f} per "
        f"token at most), with a mean loss of {task_span(stream.loss, '.1%')}; a calibrated threshold "
        f"loses {task_span(of[CALIBRATED].loss, '.1%')}."
    )


def intervals_conclusion(spaced: pd.DataFrame) -> str:
    """FLOPs with an exit at every layer and at every third."""
    shares = spaced.pivot(index="task", columns="every", values="flops_share")
    return (
        f"{_what_fewer_save('Fewer exits', shares)}: at equal loss, exits at every layer take "
        f"{task_span(shares[1])} of the FLOPs, exits at every third {task_span(shares[3])}."
    )


def intervals_message(spaced: pd.DataFrame) -> str:
    """Where exits at every third layer are cheaper than at every layer."""
    shares = spaced.pivot(index="task", columns="every", values="flops_share")
    return f"{_what_fewer_save('Exits at every third layer', shares)} at equal loss."


def _what_fewer_save(exits: str, shares: pd.DataFrame) -> str:
    cheaper = shares.index[shares[3] < shares[1] - 0.005]
    return (
        f"{exits} save FLOPs {on_tasks(cheaper, shares.index)}" if len(cheaper) else f"{exits} save nothing"
    )


def worst_by_place(travelled: pd.DataFrame) -> pd.DataFrame:
    """The worst loss of each rule by where its threshold is used: in-domain, on another task or corpus."""
    kind = travelled.place.map({"at home": "home", "away": "task"}).fillna("corpus")
    worst = travelled.assign(place=kind).groupby(["rule", "place"], sort=False).loss.max()
    return worst.reset_index()


def away_figure(travelled: pd.DataFrame, demand: float, note: str = ""):
    """The worst loss of every rule in-domain and away, rules sorted by what they lose away."""
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
    axis.axvline(demand, color=figures.GREY, linewidth=1, linestyle="--", label=f"target: {demand:.0%}")
    axis.set_yticks(range(len(order)), [figures.label(rule) for rule in order], fontsize=8)
    axis.set_xscale("log")


def away_message(travelled: pd.DataFrame, demand: float) -> str:
    """How many rules exceed twice their target in-domain and elsewhere."""
    worst = worst_by_place(travelled).pivot(index="rule", columns="place", values="loss")
    broken = (worst > 2 * demand).sum()
    first, *others = [place for place in ("task", "corpus", "home") if place in broken]
    counted = f"{broken[first] or 'none'} of {len(worst)} rules"
    if broken[first] == len(worst):
        counted = f"all {len(worst)} rules"
    lose = "lose" if broken[first] > 1 else "loses"
    beside = "".join(f", {AWAY[place]} {_count(broken[place], len(worst))}" for place in others)
    return f"{capitalized(AWAY[first])} {counted} {lose} more than twice the target of {demand:.0%}{beside}"


def _count(number: int, of: int) -> str:
    if number == of:
        return "all"
    return f"only {number}" if 0 < number < of / 2 else f"{number or 'none'}"


def away_conclusion(travelled: pd.DataFrame) -> str:
    """The median rule in-domain, on another task and on another corpus, and the worst one away."""
    worst = worst_by_place(travelled)
    medians = worst.groupby("place", sort=False).loss.median()
    texts = [f"{loss:.1%} {AWAY[place]}" for place, loss in medians.items()]
    away = worst[worst.place != "home"]
    if away.empty:
        return f"The median rule loses {listed(texts)}. {NOWHERE_ELSE}"
    row = away.loc[away.loss.idxmax()]
    return (
        "A threshold is valid only for inputs like those on which it was chosen. The median rule loses "
        f"{listed(texts)} (worst task); the {figures.label(row.rule)} loses most, {row.loss:.1%} "
        f"{AWAY[row.place]}."
    )


def confidence_conclusion(moved: pd.DataFrame) -> str:
    """How sure the first exit is in-domain and elsewhere, and how often the last layer contradicts it."""
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
        f"In-domain, the first exit is sure of {task_span(home.sure)} of the tokens, and the last layer "
        f"contradicts {percent_span(home.wrong, '{:.1%}')} of these. Elsewhere: {'; '.join(texts)}."
    )


def later_conclusion(thirds: pd.DataFrame) -> str:
    """Errors in the first and in the last third of the outputs, and tasks on which they change otherwise."""
    texts = []
    for what, rows in thirds.groupby("what", sort=False):
        by_part = rows.pivot(index="task", columns="part", values="wrong")
        means = by_part.mean()
        change = by_part[3] - by_part[1]
        more = bool(means[3] > means[1])
        other = change.index[change < 0] if more else change.index[change > 0]
        but = f", though {'fewer' if more else 'more'} {on_tasks(other, change.index)}" if len(other) else ""
        errors = "more" if more else "fewer" if means[3] < means[1] else "as many"
        texts.append(f"{what} makes {errors} ({means[3]:.2%} for {means[1]:.2%}, mean over tasks){but}")
    return f"Errors in the last third of the outputs, compared with the first: {'; '.join(texts)}."


def later_message(thirds: pd.DataFrame) -> str:
    """On which tasks errors are fewer in the last third of the outputs than in the first."""
    texts = []
    for what, rows in thirds.groupby("what", sort=False):
        by_part = rows.pivot(index="task", columns="part", values="wrong")
        fewer = by_part.index[by_part[3] < by_part[1]]
        texts.append(f"{what} {on_tasks(fewer, by_part.index)}")
    return f"Fewer errors are made in the last third of an output than in the first by {listed(texts)}."
