"""Chapter 08: full quality and faster? The answer, the guarantee, and bugs of published code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from .. import figures, open_question
from ..catalogue import MAIN_MODEL, RULES
from ..prose import listed, on_tasks, span, task_span
from ..result_tables import Measured, best_of_families
from ..verdicts import ALL_LOSE_MORE, BETWEEN, FIXED_LAYER, KIND_OF, OTHER_RULES, SEVERAL, on_front
from .wording import capitalized, winners, worst_tasks

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
CHEAPEST = {  # kind of rule -> how its cheapest setting is drawn
    kind: figures.Style(f"cheapest rule over {kind}", figures.STYLES[kind].colour, marker)
    for kind, marker in ((open_question.SEVERAL, "^"), (open_question.ONE, "o"))
}
SIGNS = {"^": "▲", "o": "●"}  # the markers of `CHEAPEST` in a text
SPEEDS = ["speed", "lowest", "highest"]
FLOPS_DRAWN = (0.3, 1.35)
IN_PLURAL = {  # verdicts of the ledger, said of several statements
    "holds": "hold",
    "holds on some tasks": "hold on some tasks",
    "holds on some tasks, fails on others": "hold on some tasks and fail on others",
    "does not hold on some tasks": "do not hold on some tasks",
    "does not hold": "do not hold",
    "undecided": "are undecided",
}
BOUNDS = {"no_test": "no test", "hoeffding_bentkus": "Hoeffding-Bentkus", "betting": "betting (WSR)"}
VERSIONS = {
    "correct": figures.Style("correct", figures.GREY, "o"),
    "published": figures.Style("with the published bug", "#d55e00", "D"),
}


def four_ways(
    answer: pd.DataFrame, fixed: pd.DataFrame, verified: pd.DataFrame, quality: float
) -> pd.DataFrame:
    """The fastest setting of each of `WAYS` that was timed: one row a task, batch size and way.

    Args:
        answer: timed settings of rules that reliably keep the quality, from `verdicts.fastest`.
        fixed: timed settings of fixed layers, with `retained`, a mean over outputs.
        verified: timed drafts that the last layer verifies: `task`, `batch` and the speeds.
        quality: the share of the score that a fixed layer keeps on average.

    Half of the timing rounds choose the fastest (`ranked`), the speeds are those of the other half.
    """
    kinds = answer.rule.map(KIND_OF).fillna(OTHER_RULES)
    parts = [
        fixed[fixed.retained >= quality].assign(way=FIXED_LAYER),
        answer[kinds == OTHER_RULES].assign(way=ONE),
        answer[kinds == SEVERAL].assign(way=SEVERAL),
        verified.assign(way=VERIFIED, retained=1.0),
    ]
    columns = ["task", "batch", "way", "rule", "threshold", "retained", *SPEEDS, "ranked"]
    parts = [part.reindex(columns=columns) for part in parts if len(part)]
    if not parts:
        return pd.DataFrame(columns=columns[:-1])
    timed = pd.concat(parts, ignore_index=True)
    ordered = timed.sort_values("ranked", ascending=False, kind="stable")
    fastest = ordered.drop_duplicates(["task", "batch", "way"])
    height = fastest.way.map(list(WAYS).index)
    return (
        fastest.assign(height=height)
        .sort_values(["task", "batch", "height"])
        .drop(columns=["height", "ranked"])
        .reset_index(drop=True)
    )


def absent_ways(
    ways: pd.DataFrame, certain: pd.DataFrame, tasks: Sequence[str]
) -> dict[tuple[str, str], str]:
    """(task, way) that was not timed one output at a time -> the text in its place.

    "none": no rule of that kind keeps the quality reliably and saves FLOPs; `certain` has those that keep it.
    """
    single = ways[ways.batch == 1]
    drawn = set(zip(single.task, single.way, strict=True))
    saving = certain[certain.flops_share < 1]
    kinds = saving.rule.map(KIND_OF).fillna(OTHER_RULES).replace({OTHER_RULES: ONE})
    safe = set(zip(saving.task, kinds, strict=True))
    absent = {}
    for key in [(task, way) for task in tasks for way in WAYS]:
        _, way = key
        is_none = way in (ONE, SEVERAL) and key not in safe
        if key not in drawn:
            absent[key] = "none" if is_none else "not timed"
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
        style = WAYS[row.way]
        height = list(WAYS).index(row.way) + (0 if row.batch == 1 else 0.3)
        whiskers = [[max(row.speed - row.lowest, 0)], [max(row.highest - row.speed, 0)]]
        look = {"fmt": style.marker, "color": style.colour, "elinewidth": 1, "markersize": 7}
        if row.batch != 1:
            look |= {"markerfacecolor": "white", "markersize": 5}
        axis.errorbar([row.speed], [height], xerr=whiskers, **look)
        if row.batch == 1:
            axis.annotate(
                f"{row.speed:.2f}",
                (row.speed, height),
                xytext=(0, 6),
                textcoords="offset points",
                fontsize=9,
                ha="center",
                bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 0.5},
            )
    axis.axvline(1.0, color=figures.GREY, linewidth=1)
    axis.margins(x=0.12)
    axis.set_yticks(range(len(WAYS)), [style.label for style in WAYS.values()], fontsize=9)
    axis.set_ylim(len(WAYS) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)


def answer_message(ways: pd.DataFrame, quality: float) -> str:
    """On how many tasks each way is faster than full depth in every round, one output at a time."""
    single = ways[ways.batch == 1]
    counts = {way: (rows.lowest > 1).sum() for way, rows in single.groupby("way")}
    tasks = single.task.nunique()
    timed = {way: rows.task.nunique() for way, rows in single.groupby("way")}
    of_timed = {way: f" ({_tasks(number)} timed)" if number < tasks else "" for way, number in timed.items()}
    names = [(way, name) for way, name in CHOSEN.items() if way in counts]
    if not names:
        return "Nothing was timed one output at a time"
    texts = [f"{name} on {counts[way] or 'none'}{of_timed[way]}" for way, name in names]
    if timed[names[0][0]] == tasks:
        texts[0] += f" of {tasks} tasks"
    return f"Faster than full depth in every timing run at {quality:.0%} of the score: {listed(texts)}"


def _tasks(number: int) -> str:
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


def open_question_table(asked: open_question.Answers) -> pd.DataFrame:
    """The cheapest and the fastest rules of each kind, one below the other; `by` says how they are judged."""
    tables = {
        "FLOPs at a mean score": asked.mean,
        "FLOPs, reliably": asked.reliable,
        "tokens a second": asked.clock,
    }
    return pd.concat([table.assign(by=name) for name, table in tables.items()], ignore_index=True)


def open_question_shown(table: pd.DataFrame) -> pd.DataFrame:
    """That table with readable names, an empty cell where there is no number."""
    named = table.assign(
        task=table.task.map(figures.label),
        rule=table.rule.map(figures.label, na_action="ignore"),
        untimed=table.untimed.astype("Int64"),
        faster=table.faster.astype("Int64"),
    )
    cells = named.set_index(["by", "task", "kind"]).round(2).astype(object)
    return cells.where(cells.notna(), "")


def open_question_message(asked: open_question.Answers, tasks: Sequence[str]) -> str:
    """MEE's open question and its answer in a word, in FLOPs and by the clock."""
    saving = open_question.saving_tasks(asked.mean) + open_question.saving_tasks(asked.reliable)
    faster = open_question.faster_tasks(asked.clock)
    untimed = open_question.untimed_tasks(asked.clock)
    in_flops = open_question.in_a_word(len(saving), 2 * len(tasks))
    by_clock = open_question.in_a_word(len(faster), len(tasks), len(untimed))
    return (
        f"Can rules over several layers keep the quality and be faster than no exit? In FLOPs {in_flops}, by "
        f"the clock {by_clock}."
    )


def open_question_conclusion(asked: open_question.Answers, tasks: Sequence[str], quality: float) -> str:
    """MEE's open question, answered by FLOPs on average, by FLOPs reliably, and by the clock."""
    ahead = open_question.ahead_tasks(asked.mean)
    faster = open_question.faster_tasks(asked.clock)
    untimed = open_question.untimed_tasks(asked.clock)
    where = capitalized(on_tasks(untimed, tasks))
    not_timed = f" {where}, some of these rules are not timed." if untimed else ""
    some = f"some of them beat full depth in every timing run {on_tasks(faster, tasks)}"
    unexpected = " (expected: on none)" if ahead else ""
    clock = some if faster else "none that is timed beats full depth in every timing run"
    return (
        f"{open_question_message(asked, tasks)} At a mean of {quality:.0%} of the score they save FLOPs "
        f"{_where_and_how_much(asked.mean, tasks)}; the cheapest rule over one layer takes "
        f"{task_span(open_question.flops(asked.mean, open_question.ONE))}. On the examples on which they are "
        f"chosen, several layers are cheaper {on_tasks(ahead, tasks)}{unexpected}. Reliably, they save FLOPs "
        f"{_where_and_how_much(asked.reliable, tasks)}. By the clock, one output at a time, "
        f"{clock}.{not_timed}"
    )


def _where_and_how_much(table: pd.DataFrame, tasks: Sequence[str]) -> str:
    """ "on every task, taking 63% to 80% of full depth's", of rules over several layers."""
    saving = open_question.saving_tasks(table)
    if not saving:
        return on_tasks(saving, tasks)
    spent = task_span(open_question.flops(table, open_question.SEVERAL)[saving])
    return f"{on_tasks(saving, tasks)}, taking {spent} of full depth's"


def kept_conclusion(sure: pd.DataFrame, tasks: Sequence[str], quality: float) -> str:
    """How many rules keep the quality, and what the cheapest of all and of several layers takes, by task."""
    numbers = sure.groupby("task").size().reindex(tasks, fill_value=0)
    where = "depending on the task" if numbers.nunique() > 1 else "on every task"
    comma = "," if numbers.nunique() > 1 else ""
    keep = "rule keeps" if numbers.max() == 1 else "rules keep"
    saving = sure[sure.flops_share < 1].groupby("task").size().reindex(tasks, fill_value=0)
    save = "saves" if saving.max() == 1 else "save"
    dear = "" if saving.tolist() == numbers.tolist() else f"; {span(saving, '{:d}')} of them {save} FLOPs"
    counted = f"{span(numbers, '{:d}')} {keep} {quality:.0%} reliably{comma} {where}{dear}."
    if sure.empty:
        return counted
    ordered = sure.sort_values("flops_share", kind="stable")
    cheapest = ordered.drop_duplicates("task")
    flops = task_span(cheapest.set_index("task").flops_share)
    several = ordered[ordered.rule.map(KIND_OF) == SEVERAL].groupby("task").flops_share.min()
    beside = f" Over several layers, the cheapest takes {task_span(several)}." if len(several) else ""
    return f"{counted} The cheapest takes {flops} of the FLOPs ({winners(cheapest)}).{beside}"


def flops_figure(points: pd.DataFrame, tasks: Sequence[str], quality: float, note: str = ""):
    """Score kept against FLOPs of every setting: the front of all rules, a fixed layer, the oracle.

    Args:
        points: all settings of one model, with `front`, from `verdicts.fronts`.
        tasks: in the order of the panels.
        quality: the cheapest setting on the front that keeps it on average is named.
        note: below the figure.
    """
    return figures.facets(
        points,
        _draw_front,
        values=tasks,
        quality=quality,
        width=3.9,
        height=3.3,
        xlabel="FLOPs (1 = full depth)",
        ylabel="score kept (1 = full depth)",
        message=flops_message(points, quality),
        note=figures.small_print(note, "settings beyond the axes are not shown"),
    )


def cheapest_on_front(points: pd.DataFrame, quality: float) -> pd.DataFrame:
    """Of every task the cheapest setting of a rule that keeps a share of the score on average."""
    rules = points[~points.rule.map(_is_reference) & (points.retained >= quality)]
    return rules.sort_values(["task", "flops_share"], kind="stable").drop_duplicates("task")


def _is_reference(rule: str) -> bool:
    return RULES[rule].family == "reference"


def _draw_front(axis, rows: pd.DataFrame, quality: float) -> None:
    rules = rows[~rows.rule.map(_is_reference)]
    axis.scatter(
        rules.flops_share, rules.retained, color="#bbbbbb", s=5, linewidth=0, label="settings of rules"
    )
    best = rules[on_front(rules.flops_share, rules.retained)].sort_values("flops_share", kind="stable")
    axis.plot(best.flops_share, best.retained, color=figures.BLUE, linewidth=1.8, label="front of all rules")
    static = rows[rows.rule == "static"].sort_values("flops_share", kind="stable")
    axis.plot(static.flops_share, static.retained, ".:", color="black", label="a fixed layer")
    for rule, marker in (("oracle", "*"), ("full_depth", "+")):
        point = rows[rows.rule == rule]
        axis.plot(
            point.flops_share, point.retained, marker, color="black", markersize=9, label=figures.label(rule)
        )
    axis.axhline(quality, color=figures.GREY, linewidth=0.8, linestyle=":")
    axis.set(xlim=FLOPS_DRAWN, ylim=(0.75, 1.06))
    cheapest = open_question.cheapest(open_question.of_rules(rows[rows.retained >= quality]))
    for number, row in enumerate(cheapest.itertuples()):
        style = CHEAPEST[row.kind]
        look = {"color": style.colour, "markersize": 7, "markeredgecolor": "white", "linestyle": "none"}
        axis.plot(row.flops_share, row.retained, style.marker, label=f"{style.label}, {quality:.0%}", **look)
        name = f"{SIGNS[style.marker]} {figures.label(row.rule)}: {row.flops_share:.0%}"
        behind = {"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1}
        place = {"transform": axis.transAxes, "ha": "right", "fontsize": 9, "bbox": behind}
        axis.text(0.98, 0.05 + 0.09 * number, name, color=style.colour, **place)


def flops_message(points: pd.DataFrame, quality: float) -> str:
    """The cheapest rule at this mean score beside the cheapest fixed layer."""
    cheapest = cheapest_on_front(points, quality).set_index("task").flops_share
    static = (
        points[(points.rule == "static") & (points.retained >= quality)].groupby("task").flops_share.min()
    )
    ahead = [task for task in cheapest.index if not static.get(task, 9) <= cheapest[task]]
    where = capitalized(on_tasks(ahead, cheapest.index))
    who = f"{where} some rule keeps" if ahead else f"{where} does a rule keep"
    return f"{who} a mean of {quality:.0%} of the score for fewer FLOPs than a fixed layer"


def flops_conclusion(points: pd.DataFrame, quality: float) -> str:
    """FLOPs at a mean score: the best rule and a fixed layer."""
    cheapest = cheapest_on_front(points, quality)
    if cheapest.empty:
        return f"No rule keeps a mean of {quality:.0%} of the score."
    fixed = points[(points.rule == "static") & (points.retained >= quality)].groupby("task").flops_share.min()
    beside = f"the earliest fixed layer {task_span(fixed)}" if len(fixed) else "no fixed layer keeps it"
    flops = task_span(cheapest.set_index("task").flops_share)
    return (
        f"To keep a mean of {quality:.0%} of the score, the cheapest rule takes {flops} of the FLOPs, "
        f"{beside}. These settings are chosen on the examples that they are shown on, so the front is "
        "optimistic; the section above says what is reliable."
    )


def equal_loss_conclusion(equal: pd.DataFrame, wanted: float) -> str:
    """What the cheapest rules take at one consistency loss, and how many rules have no number."""
    rows = equal[equal.wanted == wanted]
    if rows.empty:
        return ""
    least = rows[rows.reading == BETWEEN].groupby("task").flops_share.min()
    missing = (rows.reading == ALL_LOSE_MORE).groupby(rows.task, sort=False).sum()
    every = "Every rule has a setting that strict."
    have = "rules have" if missing.max() > 1 else "rules has"
    where = capitalized(worst_tasks(missing))
    some = f"{where}, {missing.max()} of {rows.rule.nunique()} {have} no setting that strict."
    return (
        f"At a mean consistency loss of {wanted:.0%}, the cheapest rule takes {task_span(least)} of the "
        f"FLOPs. {some if missing.max() else every}"
    )


def guarantee_figure(calibrated: pd.DataFrame, tasks: Sequence[str], note: str = ""):
    """FLOPs of the cheapest rule of each family at each guaranteed consistency loss."""
    passed = calibrated[
        calibrated.found & (calibrated.kind == "consistency") & (calibrated.bound == "hoeffding_bentkus")
    ]
    best = best_of_families(passed, ["task", "delta"], "flops_share")
    order = best.groupby("family").flops_share.mean().sort_values(ascending=False, kind="stable").index
    return figures.facets(
        best,
        _draw_guarantees,
        values=tasks,
        families=list(order),
        deltas=sorted(best.delta.unique()),
        empty="no threshold passed",
        width=3.9,
        height=4.4,
        xlabel="FLOPs (1 = full depth)",
        message=guarantee_message(best),
        note=figures.small_print(note, "whiskers: 95 % intervals over examples"),
    )


def _draw_guarantees(axis, rows: pd.DataFrame, families: Sequence[str], deltas: Sequence[float]) -> None:
    """One panel: on the line of each family a marker for each guaranteed loss, one above the other."""
    shades = [str(0.65 - 0.6 * number / max(1, len(deltas) - 1)) for number in range(len(deltas))]
    styles = {
        delta: figures.Style(f"loss of at most {delta:g}", shade, marker)
        for delta, shade, marker in zip(deltas, shades, "oD^sv", strict=False)
    }
    apart = {delta: 0.8 * ((number + 0.5) / len(deltas) - 0.5) for number, delta in enumerate(deltas)}
    heights = rows.family.map(families.index) + rows.delta.map(apart)
    saving = rows.flops_share < 1
    drawn = rows.assign(height=heights)[saving]
    band = ("flops_low", "flops_high") if "flops_low" in drawn else None
    figures.dots(axis, drawn, "flops_share", "height", "delta", xband=band, styles=styles, markersize=5)
    spent = rows.set_index(["family", "delta"]).flops_share
    for number, family in enumerate(families):
        for delta in deltas:
            text = _in_place_of_a_marker(spent.get((family, delta)))
            height = number + apart[delta]
            axis.text(1.02, height, text, fontsize=8, color=figures.DARK, va="center")
    axis.axvline(1.0, color=figures.GREY, linewidth=0.8, linestyle=":")
    axis.set_xlim(min(0.35, drawn.flops_share.min()) if len(drawn) else 0.35, 1.2)
    names = ["a fixed layer" if family == "reference" else family for family in families]
    axis.set_yticks(range(len(families)), names, fontsize=9)
    axis.set_ylim(-0.6, len(families) - 0.4)
    axis.grid(axis="y", visible=False)


def _in_place_of_a_marker(share: float | None) -> str:
    """What is written where no threshold passed (None), and where a rule spends as much as full depth."""
    if share is None:
        return "none"
    return "no saving" if share >= 1 else ""


def guarantee_message(best: pd.DataFrame) -> str:
    """What the cheapest rule of all takes at the middle target."""
    deltas = sorted(best.delta.unique())
    if not deltas:
        return "No rule has a threshold whose loss is guaranteed"
    middle = deltas[len(deltas) // 2]
    shares = best[best.delta == middle].groupby("task").flops_share.min()
    return (
        f"To guarantee a mean loss of at most {middle:g}, the cheapest rule takes {task_span(shares)} of "
        "full depth's FLOPs"
    )


def guaranteed_cost(calibrated: pd.DataFrame, delta: float) -> str:
    """What the cheapest rule takes with a guaranteed loss, by task."""
    best = _cheapest_guaranteed(calibrated, delta)
    if best.empty:
        return f"No rule has a threshold with which a mean loss of at most {delta:g} is guaranteed."
    shares = task_span(best.set_index("task").flops_share)
    where = on_tasks(best.task, list(calibrated.task.unique()))
    return f"A mean loss of at most {delta:g} can be guaranteed {where}, for {shares} of the FLOPs."


def _cheapest_guaranteed(calibrated: pd.DataFrame, delta: float) -> pd.DataFrame:
    """For each task the cheapest rule whose threshold passed at this bound on the consistency loss."""
    chosen = calibrated[(calibrated.kind == "consistency") & (calibrated.delta == delta) & calibrated.found]
    chosen = chosen[chosen.bound == "hoeffding_bentkus"].sort_values(["task", "flops_share"], kind="stable")
    return chosen.drop_duplicates("task")


def guarantee_conclusion(calibrated: pd.DataFrame, delta: float) -> str:
    """The cheapest rule at one target, by task, and how often each bound finds a threshold."""
    best = _cheapest_guaranteed(calibrated, delta)
    shares = calibrated.groupby("bound", sort=False).found.mean()
    bounds = [f"in {share:.0%} with {BOUNDS.get(bound, bound)}" for bound, share in shares.items()]
    cheapest = (
        f"With the loss guaranteed to be at most {delta:g}, the cheapest rule is {winners(best)}. "
        if len(best)
        else ""
    )
    return f"{cheapest}Of all rules, tasks and targets, a threshold passes {listed(bounds)}."


def fresh_figure(rates: pd.DataFrame, eps: float, note: str = ""):
    """How many calibration sets break the guarantee, by target: a panel a bound."""
    return figures.facets(
        rates.replace({"bound": BOUNDS}),
        _draw_rates,
        "bound",
        eps=eps,
        xlabel="delta, the largest mean loss",
        ylabel="share of sets that\nbreak the guarantee",
        message=fresh_message(rates, eps),
        note=note,
    )


def _draw_rates(axis, rows: pd.DataFrame, eps: float) -> None:
    figures.dots(axis, rows, "delta", "violated", by="rule")
    axis.axhline(eps, color="#d55e00", linewidth=1.2, label="eps, the share that may fail")
    axis.axhline(rows.limit.iloc[0], color="#d55e00", linewidth=1, linestyle="--", label="by chance, at most")
    axis.set_xscale("log")


def fresh_message(rates: pd.DataFrame, eps: float) -> str:
    """The worst rate with and without a test."""
    untested = rates.bound == "no_test"
    allowed = f"(allowed: {eps:.0%}, by chance up to {rates.limit.max():.1%})"
    return (
        f"Calibrated thresholds break the guarantee in at most {rates[~untested].violated.max():.1%} of "
        f"the sets {allowed}, untested ones in up to {rates[untested].violated.max():.0%}"
    )


def fresh_conclusion(rates: pd.DataFrame) -> str:
    """Mean rates of violation and of thresholds found, by bound."""
    means = rates.groupby("bound", sort=False)[["violated", "passed"]].mean()
    tested = [
        f"{BOUNDS[bound]} breaks the guarantee on {row.violated:.1%} of the sets and finds a threshold for "
        f"{row.passed:.0%}"
        for bound, row in means.drop(index="no_test", errors="ignore").iterrows()
    ]
    untested = (
        f" Without a test {means.violated['no_test']:.0%} break it." if "no_test" in means.index else ""
    )
    return (
        f"Means over rules and targets: {'; '.join(tested)}. Up to {rates.limit.max():.1%} of the sets may "
        f"break it by chance.{untested}"
    )


def named_bugs(bugs: pd.DataFrame) -> pd.DataFrame:
    """Every measured case with a `name`: bug, rule, model and, where there are several, the batch."""
    several = bugs.groupby(["bug", "rule"]).batch.transform("nunique") > 1
    batches = bugs.batch.map(", batch {}".format).where(several, "")
    rules = bugs.rule.map(figures.label)
    models = bugs.model.map(figures.label)
    return bugs.assign(several=several, name=bugs.bug + ": " + rules + ", " + models + batches)


def bugs_figure(bugs: pd.DataFrame, tasks: Sequence[str], note: str = ""):
    """Score kept with each published bug and without, the bug that costs most on top: two points a case."""
    kept = bugs.pivot_table(index="name", columns="version", values="retained", sort=False)
    order = list((kept.correct - kept.published).sort_values(kind="stable").index)
    return figures.facets(
        bugs.assign(height=bugs.name.map(order.index)),
        _draw_bugs,
        values=tasks,
        names=order,
        xlabel="score kept\n(1 = full depth)",
        width=3.4,
        height=4.8,
        message=bugs_message(bugs),
        note=note,
    )


def _draw_bugs(axis, rows: pd.DataFrame, names: Sequence[str]) -> None:
    apart = rows.version.map({"correct": 0.17, "published": -0.17})
    band = figures.BAND if "low" in rows else None
    moved = rows.assign(height=rows.height + apart)
    figures.dots(axis, moved, "retained", "height", by="version", xband=band, styles=VERSIONS, markersize=5)
    axis.set_yticks(range(len(names)), [_bug_in_words(name) for name in names], fontsize=9)


def _bug_in_words(name: str) -> str:
    """A case of `named_bugs`, its bug as readers know it."""
    bug, case = name.split(": ", 1)
    return f"{figures.label(bug)}: {case}"


def _losses(bugs: pd.DataFrame) -> pd.Series:
    """By bug: the largest share of the full score that switching it on costs in any case."""
    keys = ["bug", "task", "model", "rule", "batch"]
    kept = bugs.pivot_table(index=keys, columns="version", values="retained", sort=False)
    return (kept.correct - kept.published).groupby("bug", sort=False).max()


def bugs_message(bugs: pd.DataFrame) -> str:
    """How many bugs cost a tenth of the score or more in some case."""
    losses = _losses(bugs)
    serious = int((losses >= 0.1).sum())
    return (
        f"{serious} of {len(losses)} published bugs cost at least 10% of the score in some case, everything "
        "else being equal"
    )


def bugs_conclusion(bugs: pd.DataFrame) -> str:
    """What the worst bugs cost at most."""
    losses = _losses(bugs).sort_values(ascending=False, kind="stable")
    texts = [f"{min(loss, 1):.0%} ({figures.label(bug)})" for bug, loss in losses.head(2).items()]
    return (
        f"The worst bugs cost up to {listed(texts)} of the full score. The table says which published number "
        "each may explain."
    )


def ledger_message(ledger: pd.DataFrame) -> str:
    """How many statements have each verdict."""
    counts = ledger.verdict.value_counts()
    verdicts = [
        (count, IN_PLURAL.get(verdict, verdict) if count > 1 else verdict)
        for verdict, count in counts.items()
    ]
    return f"Of {len(ledger)} statements, {listed(f'{count} {said}' for count, said in verdicts)}"


def ledger_conclusion(ledger: pd.DataFrame) -> str:
    """How many statements have each verdict, and how far that carries."""
    return (
        f"{ledger_message(ledger)}. What fails on models of this size may still hold at "
        "the scale of the papers."
    )


def seeds_conclusion(spread: pd.DataFrame) -> str:
    """FLOPs of one rule by training objective, over seeds of the training."""
    by_model = spread.groupby("model", sort=False)
    least = by_model.low.min()
    most = by_model.high.max()
    parts = [
        f"from {least[name]:.0%} to {most[name]:.0%} under {figures.label(name)}"
        for name in (MAIN_MODEL, "vanilla")
        if name in least.index
    ]
    return (
        "On models retrained with other seeds, the share of full depth's FLOPs that the margin with fixed "
        f"pruning takes at 0.9 ranges, over tasks and seeds, {listed(parts)}. (Seeds can be compared here, "
        "models cannot: an equal threshold is not equal quality.)"
    )


def timed_layers(stored: Measured, model: str, times: pd.DataFrame) -> pd.DataFrame:
    """Timed settings of fixed layers of a model, with the share of the score that each keeps on average."""
    kept = stored.rows(model=model, rule="static")[["task", "threshold", "retained"]]
    static = times[times.rule == "static"].drop(columns="retained", errors="ignore")
    return static.merge(kept, on=["task", "threshold"])


def in_one_batch(times: pd.DataFrame) -> pd.DataFrame:
    """The timings of one output at a time and of the largest batch, drafts or none."""
    return times[times.batch.isin([1, times.batch.max()])]
