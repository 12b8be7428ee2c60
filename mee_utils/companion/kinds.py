"""Kinds of exits, and the cheapest of each that keeps the quality.

Tokens exit at a fixed layer; or a rule decides, which looks at one layer or at several of them; or exits are
drafts that the last layer verifies, so that the output is full depth's. The first three decide alone: a rule
has to keep its quality reliably (the lower end of a 95 % interval), a fixed layer, which nobody calibrates,
on average.
"""

from collections.abc import Callable, Sequence

import pandas as pd

from ..analysis.statistics import without_draws
from .catalogue import MAIN_MODEL, RULES, SEVERAL_LAYERS
from .result_tables import KEEPS_IT, PARTS, Measured, read_timings

QUALITY = 0.99  # of the model's own score at full depth
FIXED = "fixed layer"
ONE = "one layer"
SEVERAL = "several layers"
VERIFIED = "verified"  # drafts of exits
COPIES = "copies"  # drafts that are copied from the input
PLANNED = "planned"  # copies, exits or both, whichever a plan takes to be fastest
LOSSLESS = (COPIES, VERIFIED, PLANNED)


def kind_of(rule: str) -> str | None:
    """The kind of a rule that decides alone; None: full depth and the oracle are none."""
    if rule == "static":
        return FIXED
    if RULES[rule].family == "reference":
        return None
    return SEVERAL if rule in SEVERAL_LAYERS else ONE


def family_of(rule: str) -> str:
    """The family of a rule, a finer kind; fixed layers, full depth and the oracle are of one."""
    return RULES[rule].family


def best_of_kind(
    settings: pd.DataFrame,
    number: str,
    by: Sequence[str] = ("task",),
    kind: Callable = kind_of,
    ascending: bool = True,
) -> pd.DataFrame:
    """Of each kind of `rule` the setting with the least `number`, for every value of the columns `by`.

    Args:
        settings: a row a setting; of equal ones the first counts, and NaN comes last.
        number: a column, such as `flops_share`.
        by: the other columns of which each value has its best.
        kind: rule -> the kind that the column `kind` names; settings of no kind (None) are left out.
        ascending: False: the largest number is the best.
    """
    named = settings.assign(kind=[kind(rule) for rule in settings.rule]).dropna(subset="kind")
    ordered = named.sort_values(number, ascending=ascending, kind="stable")
    return ordered.drop_duplicates([*by, "kind"]).reset_index(drop=True)


def settings_to_time(stored: Measured, kept: pd.DataFrame, quality: float = QUALITY) -> pd.DataFrame:
    """One setting a family and task that decides alone: what `make bench` times and figures compare.

    It is fixed before anything is timed, by the FLOPs on validation examples: of the rules of a family that
    keep the quality reliably the cheapest, and the cheapest fixed layer that keeps it there on average.

    Args:
        stored: every setting of the profile.
        kept: the cheapest safe setting of each rule of the main model, from `verdicts.keeping`.
        quality: the share of the score that has to be kept.

    Returns:
        Rows of test examples, a fixed layer first, with `kind`: `FIXED`, or the family.
    """
    reliable = kept[(kept.verdict == KEEPS_IT) & (kept.rule != "static")]
    rules = best_of_kind(reliable, "validation_flops", kind=family_of)
    layers = []
    for task, tried in stored.rows("validation", model=MAIN_MODEL, rule="static").groupby("task", sort=False):
        safe = tried[tried.retained >= quality]
        for layer in safe.sort_values("flops_share").threshold.head(1):
            layers.append(stored.rows(task=task, model=MAIN_MODEL, rule="static", threshold=layer))
    settings = pd.concat([*(layer.assign(kind=FIXED) for layer in layers), rules], ignore_index=True)
    families = [FIXED, *dict.fromkeys(rule.family for rule in RULES.values())]
    order = {"task": list(kept.task.unique()), "kind": families}
    return without_draws(settings).sort_values(
        ["task", "kind"], key=lambda names: names.map(order[names.name].index), ignore_index=True
    )


def with_timings(profile: str, settings: pd.DataFrame) -> pd.DataFrame:
    """`settings_to_time`, and behind them all that is `LOSSLESS`, with their speeds one output at a time.

    `speed` is in tokens a second, full depth being 1, from `speed_low` to `speed_high`; `again` is that of
    full depth against itself. NaN: not timed for this profile.
    """
    lossless = settings[["task", "model"]].drop_duplicates().assign(retained=1.0)
    lossless = lossless.merge(pd.DataFrame({"kind": LOSSLESS}), how="cross")
    tables = []
    for part, rows in (("exits", settings), ("verified", lossless)):
        keys = PARTS[part][1]
        timed = read_timings(part, rows[keys], profile).query("batch == 1")
        timed = timed.rename(columns={"low": "speed_low", "high": "speed_high"})
        tables.append(rows.merge(timed, on=keys, how="left"))
    return pd.concat(tables, ignore_index=True)
