"""MEE's open question: can rules over several layers keep their quality and be faster than no exit at all?

It is answered three times, each time beside full depth and beside rules over one layer: in FLOPs at a mean
share of the score, in FLOPs where the lower end of the 95 % interval keeps that share too, and by the clock.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from .catalogue import RULES, SEVERAL_LAYERS
from .result_tables import KEEPS_IT, untimed_and_faster

ONE = "one layer"
SEVERAL = "several layers"
OF_A_KIND = ["task", "kind"]


class Answers(NamedTuple):
    """A table for each way to judge: a row a task and kind of rule that has a setting which counts.

    Attributes:
        mean: `rule`, `flops_share` and `retained` of the cheapest rule at a mean share of the score.
        reliable: the same where the lower end of the interval keeps that share.
        clock: `rule`, `speed` and `lowest` of the fastest; `untimed` says how many rules were not timed, and
            `faster` how many of the timed ones beat full depth in every timing run.
    """

    mean: pd.DataFrame
    reliable: pd.DataFrame
    clock: pd.DataFrame


def answers(points: pd.DataFrame, kept: pd.DataFrame, times: pd.DataFrame, quality: float) -> Answers:
    """The cheapest and the fastest rules of each kind.

    Args:
        points: all test settings of one model, as `verdicts.fronts` returns them.
        kept: the safe settings of its rules, as `verdicts.keeping` returns them.
        times: those of `kept` that were timed, as `result_tables.read_timings` returns part "kept".
        quality: the mean share of the full score that is kept.
    """
    reliable = of_rules(kept[kept.verdict == KEEPS_IT])
    on_average = of_rules(points[points.retained >= quality])
    return Answers(cheapest(on_average), cheapest(reliable), fastest(reliable, times))


def of_rules(settings: pd.DataFrame) -> pd.DataFrame:
    """The settings of exit rules, with their `kind`; the oracle, full depth and fixed layers are none."""
    is_rule = settings.rule.map(lambda rule: RULES[rule].family != "reference").astype(bool)
    rules = settings[is_rule]
    return rules.assign(kind=rules.rule.isin(SEVERAL_LAYERS).map({True: SEVERAL, False: ONE}))


def cheapest(settings: pd.DataFrame) -> pd.DataFrame:
    """Of each task and kind the setting with the fewest FLOPs."""
    ordered = settings.sort_values("flops_share", kind="stable").drop_duplicates(OF_A_KIND)
    return ordered[[*OF_A_KIND, "rule", "flops_share", "retained"]].reset_index(drop=True)


def fastest(reliable: pd.DataFrame, times: pd.DataFrame) -> pd.DataFrame:
    """Of each task and kind the rule that half of the timing runs rank first, one output at a time.

    Its speed is that of the other half; NaN where no rule was timed. Rules that save no FLOPs count too:
    FLOPs are not seconds.
    """
    single = times[times.batch == 1] if len(times) else times
    timed = reliable[["task", "kind", "rule"]].merge(single[["task", "rule", "speed", "lowest", "ranked"]])
    best = timed.sort_values("ranked", ascending=False, kind="stable").drop_duplicates(OF_A_KIND)
    counts = untimed_and_faster(reliable, timed, OF_A_KIND).reset_index()
    columns = [*OF_A_KIND, "rule", "speed", "lowest", "untimed", "faster"]
    return counts.merge(best, on=OF_A_KIND, how="left")[columns]


def flops(table: pd.DataFrame, kind: str) -> pd.Series:
    """Task -> FLOPs of the cheapest rule of a kind (full depth: 1)."""
    return table[table.kind == kind].set_index("task").flops_share


def saving_tasks(table: pd.DataFrame, kind: str = SEVERAL) -> list[str]:
    """The tasks on which a rule of a kind needs fewer FLOPs than full depth."""
    spent = flops(table, kind)
    return list(spent.index[spent < 1])


def ahead_tasks(table: pd.DataFrame) -> list[str]:
    """The tasks on which a rule over several layers is cheaper than any over one, and than full depth."""
    several = flops(table, SEVERAL)
    others = flops(table, ONE).reindex(several.index).fillna(1.0).clip(upper=1.0)
    return list(several.index[several < others])


def faster_tasks(clock: pd.DataFrame, kind: str = SEVERAL) -> list[str]:
    """The tasks on which some rule of a kind is faster than full depth in every timing run."""
    return list(clock.task[(clock.kind == kind) & (clock.faster > 0)])


def untimed_tasks(clock: pd.DataFrame, kind: str = SEVERAL) -> list[str]:
    """The tasks on which no rule of a kind is faster yet, and some of them were not timed."""
    open_yet = (clock.kind == kind) & (clock.untimed > 0) & (clock.faster == 0)
    return list(clock.task[open_yet])


def in_a_word(held: int, tested: int, untimed: int = 0) -> str:
    """ "yes", "in part" or "no": so many of the tests held; "open" where none did and rules are untimed."""
    if held == tested:
        return "yes"
    if held:
        return "in part"
    return "open" if untimed else "no"
