"""Chapter 09: who sets the threshold, and does it hold elsewhere? Bandits, intervals, other domains."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ...analysis.statistics import Estimate, estimates
from .. import figures
from ..catalogue import RULES
from ..prose import listed, on_tasks, task_span
from .wording import CLEARLY, capitalized, percent_span, with_article, with_interval

STREAM = "bandit, one stream"
EACH = "bandit, each output"
CALIBRATED = "calibrated"
STRATEGIES = {  # who sets the threshold -> its name and colour
    "best fixed arm": figures.Style("best\nfixed arm", "#999999"),
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
LEAST_SAVED = 0.005  # of full depth's FLOPs: smaller differences do not count
LEAST_LOSS = 1e-4  # smaller losses are drawn there, on a logarithmic axis
FEWER_LATER = "Errors are clearly fewer in the last third of an output than in the first"
HARDLY = 0.05  # layers before the last: with a later mean exit layer hardly any token exits
SPACED = {"flops_share": "FLOPs (1 = full depth)", "mean_exit_layer": "mean exit layer", "loss": "mean loss"}
KEPT = {
    "regret": "regret per token",
    "loss": "mean loss",
    "mean_exit_layer": "mean exit layer",
    "broken": "share of draws above target",
}


def hardly_exits(mean_exit_layer, layers: int):
    """Whether a mean exit layer (a number, or one for each setting) says that hardly any token exits.

    Nothing can then be said of how exits are chosen. What is lost is lost by the few exits, or by a
    last layer that scores few entries only.
    """
    return mean_exit_layer > layers - HARDLY


def strategies(draws: pd.DataFrame) -> pd.DataFrame:
    """The draws of both bandits and of calibration, and of the fixed arm that earns most."""
    rows = draws[draws.who.isin(STRATEGIES)]
    arms = draws[draws.who.str.startswith("always")]
    best = arms.loc[arms.groupby("task", sort=False).regret.idxmin()].assign(who="best fixed arm")
    return pd.concat([best, rows], ignore_index=True)


def bandit_figure(draws: pd.DataFrame, delta: float, note: str = ""):
    """The mean loss of all outputs, a box over random orders or halves for each strategy, a panel a task."""
    drawn = strategies(draws)
    return figures.facets(
        drawn,
        _draw_boxes,
        delta=delta,
        most=max(drawn.loss.max(), delta),
        width=3.8,
        height=3.0,
        ylabel="mean consistency loss (%)",
        message=bandit_message(draws, delta),
        note=note,
    )


def _draw_boxes(axis, rows: pd.DataFrame, delta: float, most: float) -> None:
    import seaborn

    names = [name for name in STRATEGIES if (rows.who == name).any()]
    seaborn.boxplot(
        rows.assign(percent=100 * rows.loss),
        x="who",
        y="percent",
        order=names,
        hue="who",
        palette={name: STRATEGIES[name].colour for name in names},
        width=0.55,
        linecolor="black",
        boxprops={"alpha": 0.5},
        legend=False,
        ax=axis,
    )
    axis.axhline(100 * delta, color="#d55e00", linewidth=1.2, label=f"target: {delta:.0%}")
    axis.set_xticks(range(len(names)), [STRATEGIES[name].label for name in names], fontsize=8)
    axis.set(xlabel="", ylim=(0, 105 * most))
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
    """What bandits earn and lose, and what a calibrated threshold costs; `delta` is the target loss."""
    of = {who: rows.set_index("task") for who, rows in keepers.groupby("who", sort=False)}
    stream = of[STREAM]
    above = stream.index[stream.loss > delta]
    where = on_tasks(above, stream.index)
    lost = f"exceeds the target of {delta:.0%} {where}"
    if above.empty:
        lost = f"happens to stay below the target of {delta:.0%}"
    return (
        "A bandit maximises its reward, confidence minus depth, and nothing bounds its loss: over one stream "
        f"it {lost}. {_calibrated(of[CALIBRATED], stream, delta)}{_fixed_arm(of, delta)}"
    )


def _calibrated(calibrated: pd.DataFrame, stream: pd.DataFrame, delta: float) -> str:
    """Whether the calibrated threshold keeps to the target on average, and what that costs in depth."""
    kept = calibrated.index[calibrated.loss <= delta]
    later = _layers_later(calibrated, stream)
    where = on_tasks(kept, calibrated.index)
    return f"A calibrated threshold stays below it {where} and exits {later}."


def _layers_later(first: pd.DataFrame, second: pd.DataFrame) -> str:
    """How much later `first` exits than the bandit `second`, by task: "1.2 layers later than the bandit"."""
    later = first.mean_exit_layer - second.mean_exit_layer
    if later.min() >= 0:
        return f"{task_span(later, '.1f')} layers later than the bandit"
    if later.max() <= 0:
        return f"{task_span(-later, '.1f')} layers earlier than the bandit"
    earlier = on_tasks(later.index[later < 0], later.index)
    return (
        f"up to {later.max():.1f} layers later than the bandit ({earlier} up to {-later.min():.1f} earlier)"
    )


def _fixed_arm(of: dict[str, pd.DataFrame], delta: float) -> str:
    """The lowest fixed arm that stays below the target on every task, beside the calibrated threshold."""
    arms = {who: rows for who, rows in of.items() if who.startswith("always") and rows.loss.max() <= delta}
    if not arms:
        return f" No fixed threshold stays below {delta:.0%} on every task."
    lowest = min(arms, key=lambda who: float(who.removeprefix("always ")))
    value = lowest.removeprefix("always ")
    return (
        f" A fixed threshold of {value} stays below it on every task, too, but this is known only afterwards."
    )


def bandit_shown(keepers: pd.DataFrame) -> pd.DataFrame:
    """What each strategy earns, loses and costs, by task, with readable names."""
    table = keepers.assign(task=keepers.task.map(figures.label)).rename(columns={"who": "strategy"} | KEPT)
    return table.set_index(["task", "strategy"])[list(KEPT.values())].round(3)


def intervals_conclusion(spaced: pd.DataFrame, demand: float, layers: int) -> str:
    """FLOPs with an exit at every layer and at every third, on the tasks on which tokens exit at all.

    Args:
        spaced: a row for each task and distance between exits (`every`).
        demand: the mean loss for which thresholds were chosen.
        layers: depth of the decoder.
    """
    shares = _shares(spaced)
    idle = _without_exits(spaced, layers)
    exiting = shares.drop(index=idle)
    parts = []
    if len(exiting):
        saved = _what_fewer_save("Fewer exits", spaced[~spaced.task.isin(idle)], shares.index)
        parts.append(
            f"{saved}: for a mean loss of {demand:.0%}, exits at every layer take {task_span(exiting[1])} of "
            f"the FLOPs, exits at every third {task_span(exiting[3])}."
        )
    if len(idle):
        added = shares.loc[idle] - 1
        where = capitalized(on_tasks(idle, shares.index))
        parts.append(
            f"{where}, hardly any token exits at a target of {demand:.0%}, so the spacing of exits cannot "
            f"be judged: deciding at every layer adds {task_span(added[1], '.1%')} to full depth, at every "
            f"third {task_span(added[3], '.1%')}."
        )
    return " ".join(parts)


def intervals_message(spaced: pd.DataFrame, layers: int) -> str:
    """Where exits at every third layer are cheaper than at every layer, and where that cannot be judged."""
    shares = _shares(spaced)
    idle = _without_exits(spaced, layers)
    if len(idle) == len(shares):
        return "The spacing of exits cannot be judged: hardly any token exits at this target."
    saved = _what_fewer_save("Exits at every third layer", spaced[~spaced.task.isin(idle)], shares.index)
    message = f"{saved} at equal loss"
    return (
        f"{message}; hardly any token exits {on_tasks(idle, shares.index)}." if len(idle) else f"{message}."
    )


def spaced_shown(spaced: pd.DataFrame) -> pd.DataFrame:
    """What exits at every layer, at every second, third and fourth cost, and how late they come, by task."""
    table = spaced.rename(columns=SPACED | {"every": "exits at every n-th layer"})
    table = table.assign(task=table.task.map(figures.label)).round(3)
    return table.pivot(index="exits at every n-th layer", columns="task", values=list(SPACED.values()))


def _shares(spaced: pd.DataFrame) -> pd.DataFrame:
    """The share of the FLOPs `[task, every]`."""
    return spaced.pivot(index="task", columns="every", values="flops_share")


def _without_exits(spaced: pd.DataFrame, layers: int) -> pd.Index:
    """The tasks on which hardly any token exits, neither at every layer nor at every third."""
    exits = spaced.pivot(index="task", columns="every", values="mean_exit_layer")[[1, 3]]
    return exits.index[hardly_exits(exits, layers).all(axis=1)]


def _what_fewer_save(exits: str, spaced: pd.DataFrame, tasks: Sequence[str]) -> str:
    """On which of all `tasks` fewer exits save FLOPs, and on which they cost more.

    The 95 % interval of the paired difference has to exclude differences of less than `LEAST_SAVED`.
    """
    cheaper = []
    dearer = []
    for task, rows in spaced.groupby("task"):
        flops = estimates(rows.set_index("every").loc[[1, 3]], "flops_share")
        saved = flops.item(0) - flops.item(1)
        if saved.low > LEAST_SAVED:
            cheaper.append(task)
        if saved.high < -LEAST_SAVED:
            dearer.append(task)
    parts = []
    if len(cheaper):
        parts.append(f"save FLOPs {on_tasks(cheaper, tasks)}")
    if len(dearer):
        parts.append(f"cost more FLOPs {on_tasks(dearer, tasks)}")
    return f"{exits} {' and '.join(parts)}" if parts else f"{exits} neither clearly save nor cost FLOPs"


def worst_by_place(travelled: pd.DataFrame) -> pd.DataFrame:
    """The worst loss of each rule by where its threshold is used: in-domain, on another task or corpus.

    With the mean exit layer of that row, if it is known: where hardly any token exits, the loss may be
    that of the last layer.
    """
    kind = travelled.place.map({"at home": "home", "away": "task"}).fillna("corpus")
    rows = travelled.assign(place=kind).sort_values("loss", ascending=False, kind="stable")
    worst = rows.drop_duplicates(["rule", "place"]).sort_index(kind="stable")
    return worst.reindex(columns=["rule", "place", "loss", "mean_exit_layer"]).reset_index(drop=True)


def away_figure(travelled: pd.DataFrame, demand: float, layers: int, note: str = ""):
    """The worst loss of every rule in-domain and away, rules sorted by what they lose away.

    Args:
        travelled: a row for each rule, task and place where a threshold is used.
        demand: the mean loss for which thresholds were chosen.
        layers: depth of the decoder.
        note: in small print above.
    """
    worst = worst_by_place(travelled)
    order = worst.groupby("rule").loss.max().sort_values(kind="stable").index
    return figures.facets(
        worst.assign(panel="", idle=hardly_exits(worst.mean_exit_layer, layers)),
        _draw_places,
        "panel",
        order=list(order),
        demand=demand,
        width=7.2,
        height=0.32 * len(order) + 0.9,
        xlabel="largest mean consistency loss of any task (log)",
        message=away_message(travelled, demand),
        note=note,
    )


def _draw_places(axis, rows: pd.DataFrame, order: Sequence[str], demand: float) -> None:
    shift = rows.place.map(list(PLACES).index) - 1  # points of a rule stand below each other
    heights = rows.rule.map(order.index)
    rows = rows.assign(
        line=heights, height=heights - 0.24 * shift, loss=100 * rows.loss.clip(lower=LEAST_LOSS)
    )
    for height, part in rows.groupby("line"):
        axis.plot([part.loss.min(), part.loss.max()], [height, height], color="#cccccc", zorder=0)
    in_order = rows.sort_values("place", key=lambda places: places.map(list(PLACES).index), kind="stable")
    figures.dots(axis, in_order[~in_order.idle], "loss", "height", "place", styles=PLACES)
    idle = rows[rows.idle]
    figures.dots(axis, idle, "loss", "height", "place", styles=PLACES, markerfacecolor="white", label=None)
    target = f"target: {demand:.0%}"
    axis.axvline(100 * demand, color=figures.GREY, linewidth=1, linestyle="--", label=target)
    if len(idle):
        look = {"color": figures.GREY, "linestyle": "none", "markerfacecolor": "white"}
        axis.plot([], [], marker="o", label="hollow: hardly any token exits", **look)
    axis.set_yticks(range(len(order)), [figures.label(rule) for rule in order], fontsize=8)
    axis.set_ylim(-0.7, len(order) - 0.3)
    axis.grid(axis="y", visible=False)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(_percent_of_loss)


def _percent_of_loss(value: float, _=None) -> str:
    """The tick of a loss in percent; at the smallest that is drawn stand those that are 0, too.

    >>> _percent_of_loss(1.0), _percent_of_loss(0.01)
    ('1%', '≤0.01%')
    """
    return f"≤{value:g}%" if round(value, 6) == 100 * LEAST_LOSS else f"{value:g}%"


def away_message(travelled: pd.DataFrame, demand: float) -> str:
    """How many rules exceed twice their target in-domain and elsewhere."""
    broken = _broken(travelled, demand)
    number = travelled.rule.nunique()
    first, *others = [place for place in ("task", "corpus", "home") if place in broken]
    counted = f"{broken[first] or 'none'} of {number} rules"
    if broken[first] == number:
        counted = f"all {number} rules"
    lose = "lose" if broken[first] > 1 else "loses"
    beside = "".join(f", {AWAY[place]} {_count(broken[place], number)}" for place in others)
    return f"{capitalized(AWAY[first])} {counted} {lose} more than twice the target of {demand:.0%}{beside}"


def _broken(travelled: pd.DataFrame, demand: float) -> pd.Series:
    """By place: how many rules lose more than twice the target there."""
    worst = worst_by_place(travelled)
    return (worst.loss > 2 * demand).groupby(worst.place, sort=False).sum()


def _count(number: int, of: int) -> str:
    if number == of:
        return "all"
    return f"only {number}" if 0 < number < of / 2 else f"{number or 'none'}"


def away_conclusion(travelled: pd.DataFrame, demand: float, layers: int) -> str:
    """Whether thresholds hold in-domain and elsewhere, and the rule that loses most away.

    Args:
        travelled: a row for each rule, task and place where a threshold is used.
        demand: the mean loss for which thresholds were chosen.
        layers: depth of the decoder.
    """
    worst = worst_by_place(travelled)
    medians = (
        worst.groupby("place").loss.median().reindex([place for place in AWAY if place in set(worst.place)])
    )
    texts = [f"{loss:.1%} {AWAY[place]}" for place, loss in medians.items()]
    median = f"The median rule loses {listed(texts)} (worst task)"
    away = worst[worst.place != "home"]
    if away.empty:
        return f"{median}. {NOWHERE_ELSE}"
    row = away.loc[away.loss.idxmax()]
    most = f"{with_article(row.rule)} loses most, {row.loss:.1%} {AWAY[row.place]}"
    return f"{_do_they_hold(travelled, demand)} {median}; {most}.{_not_by_exits(worst, demand, layers)}"


def _do_they_hold(travelled: pd.DataFrame, demand: float) -> str:
    """Whether thresholds keep to twice their target in-domain, and whether more of them do than elsewhere."""
    broken = _broken(travelled, demand)
    number = travelled.rule.nunique()
    home = broken.get("home", 0)
    elsewhere = broken.drop("home", errors="ignore").max()
    if home > number / 2:
        return (
            f"Even in-domain, thresholds do not carry over from the examples on which they were chosen: "
            f"{home} of {number} rules lose more than twice the target."
        )
    lose = "loses" if home == 1 else "lose"
    if elsewhere > home:
        return (
            "Thresholds hold better for inputs like those on which they were chosen: "
            f"{home or 'none'} of {number} rules {lose} more than twice the target in-domain, and up to "
            f"{elsewhere} elsewhere."
        )
    return "Thresholds hold elsewhere as well as in-domain."


def _not_by_exits(worst: pd.DataFrame, demand: float, layers: int) -> str:
    """How many rules lose more than twice the target where hardly any of their tokens exits, and why."""
    idle = worst[hardly_exits(worst.mean_exit_layer, layers) & (worst.loss > 2 * demand)]
    rules = list(idle.rule.unique())
    if not rules:
        return ""
    lose = "rules lose" if len(rules) > 1 else "rule loses"
    text = f" {len(rules)} {lose} more than twice the target where hardly any token exits"
    pruned = [rule for rule in rules if prunes_last_layer(rule)]
    if len(pruned) == len(rules):
        return f"{text}: there the loss comes from what the last layer scores, not from the threshold."
    few = "these few exits are enough for that loss"
    return f"{text}: {few}, except where the last layer is pruned." if pruned else f"{text}: {few}."


def prunes_last_layer(rule: str) -> bool:
    """Whether a rule scores only some entries at the last layer, too, so that it loses without exits."""
    return RULES[rule].pruning is not None and RULES[rule].prune_last_layer


def confidence_conclusion(moved: pd.DataFrame) -> str:
    """How confident the first exit is in-domain and elsewhere, and how often it is contradicted."""
    home = moved[moved.place == "at home"].set_index("task")
    away = moved[moved.place != "at home"]
    if away.empty:
        return NOWHERE_ELSE
    worst = away.loc[away.wrong.idxmax()]
    most = with_interval(worst, "wrong", ".1%", "low", "high")
    fewer = int((away.sure < away.task.map(home.sure)).sum())
    more_wrong = int((away.wrong > away.task.map(home.wrong)).sum())
    return (
        f"In-domain, the first exit is confident of {task_span(home.sure)} of the tokens, and the last layer "
        f"contradicts {percent_span(home.wrong, '{:.1%}')} of these. It is confident of fewer tokens on "
        f"{_of_corpora(fewer, len(away))}, and contradicted more often on "
        f"{_of_corpora(more_wrong, len(away))}. The largest share contradicted is {most}, on "
        f"{figures.label(worst.place)} ({figures.label(worst.task)})."
    )


def moved_shown(moved: pd.DataFrame) -> pd.DataFrame:
    """By task and corpus: of how many tokens the first exit is confident, and how many are contradicted."""
    rows = moved.assign(
        task=moved.task.map(figures.label),
        corpus=moved.place.replace({"at home": "in-domain"}).map(figures.label),
        confident=moved.sure.map("{:.0%}".format),
        contradicted=[with_interval(row, "wrong", ".1%", "low", "high") for _, row in moved.iterrows()],
    )
    rows = rows.sort_values("task", kind="stable").set_index(["task", "corpus"])
    names = {"confident": "confident of", "contradicted": "of these contradicted by the last layer"}
    return rows[list(names)].rename(columns=names)


def _of_corpora(number: int, of: int) -> str:
    """ "every other corpus", "3 of 5 other corpora", "none of 5 other corpora"."""
    if number == of:
        return "every other corpus"
    return f"{number or 'none'} of {of} other corpora"


def later_conclusion(thirds: pd.DataFrame) -> str:
    """By task and on average: whether the last third of the outputs has fewer errors than the first."""
    errors = _errors_by_third(thirds)
    means = {what: by_part.mean() for what, by_part in errors.items()}
    averages = [f"{what} {mean[3]:.2%} against {mean[1]:.2%}" for what, mean in means.items()]
    return f"{later_message(thirds)} Means over tasks, last third against first: {', '.join(averages)}."


def later_message(thirds: pd.DataFrame) -> str:
    """On which tasks errors are clearly fewer in the last third of the outputs than in the first."""
    parts = []
    for what, rows in thirds.groupby("what", sort=False):
        tasks = list(rows.task.unique())
        fewer = [task for task in tasks if _saved_later(rows[rows.task == task]).low > 0]
        parts.append(f"for {what} {on_tasks(fewer, tasks)}")
    return f"{FEWER_LATER}: {', '.join(parts)} (that is, {CLEARLY})."


def _saved_later(rows: pd.DataFrame) -> Estimate:
    """By how much the share of wrong predictions falls from the first third to the last; rows of a task."""
    wrong = estimates(rows.set_index("part").loc[[1, 3]], "wrong")
    return wrong.item(0) - wrong.item(1)


def thirds_shown(thirds: pd.DataFrame) -> pd.DataFrame:
    """The share of wrong predictions with its interval, by who predicts, task and third."""
    rows = thirds.assign(
        task=thirds.task.map(figures.label),
        third=thirds.part.map({1: "first third", 2: "second third", 3: "last third"}),
        wrong=[with_interval(row, "wrong", ".1%", "low", "high") for _, row in thirds.iterrows()],
    )
    table = rows.pivot(index=["what", "task"], columns="third", values="wrong")
    return table[[name for name in ("first third", "second third", "last third") if name in table]]


def _errors_by_third(thirds: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Who predicts, such as "full depth" -> the share of the predictions that is wrong, `[task, part]`."""
    return {
        what: rows.pivot(index="task", columns="part", values="wrong")
        for what, rows in thirds.groupby("what", sort=False)
    }
