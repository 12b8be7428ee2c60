"""Four kinds of exits, and the best of each: the cheapest, or the fastest, of those that keep the quality.

Tokens exit at a fixed layer; or a rule decides, which looks at one layer or at several of them; or exits are
drafts that the last layer verifies, so that the output is full depth's. The first three decide alone: a rule
has to keep its quality reliably (the lower end of a 95 % interval), a fixed layer, which nobody calibrates,
on average.
"""

from collections.abc import Callable, Sequence

import pandas as pd

from ..analysis.statistics import without_draws
from .catalogue import MAIN_MODEL, RULES, SEVERAL_LAYERS
from .result_tables import KEEPS_IT, read_timings

QUALITY = 0.99  # of the model's own score at full depth
FIXED = "fixed layer"
ONE = "one layer"
SEVERAL = "several layers"
VERIFIED = "verified"
KINDS = (FIXED, ONE, SEVERAL, VERIFIED)
HEADLINE = [
    *("task", "kind", "rule", "threshold", "retained", "low"),
    *("speed", "lowest", "highest", "untimed", "faster", "part", "processor"),
]


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


def settings_that_decide_alone(
    kept: pd.DataFrame, static: pd.DataFrame, quality: float = QUALITY
) -> pd.DataFrame:
    """What `make bench` times: rules that keep the quality reliably, and fixed layers that do on average.

    Args:
        kept: the cheapest safe setting of each rule, as `verdicts.keeping` returns them, whether or not it
            saves FLOPs: FLOPs are not seconds.
        static: all fixed layers of the main model on test examples.
        quality: the share of the score that has to be kept.
    """
    rules = kept[(kept.verdict == KEEPS_IT) & (kept.rule != "static")]
    layers = static[static.retained >= quality]
    columns = ["task", "model", "rule", "threshold", "retained", "low", "flops_share"]
    return pd.concat([without_draws(rules), without_draws(layers)], ignore_index=True)[columns]


def headline_table(
    profile: str, kept: pd.DataFrame, static: pd.DataFrame, quality: float = QUALITY
) -> pd.DataFrame:
    """The fastest exits of each kind that keep the quality, one output at a time: a row a task and kind.

    Half of the timing runs rank the settings of a kind, and `speed` (tokens a second, full depth being 1) is
    that of the other half, with its range `lowest` to `highest`; NaN: none was timed. `untimed` is how many
    settings were not, and `faster` how many are faster than full depth in every timing run.

    Arguments as in `settings_that_decide_alone`; `profile` is the one whose timings are read.
    """
    settings = settings_that_decide_alone(kept, static, quality)
    timed = _one_at_a_time("kept", settings, profile)
    best = best_of_kind(pd.concat([timed, settings]), "ranked", ascending=False)
    counted = [table.assign(kind=table.rule.map(kind_of)) for table in (settings, timed)]
    number, of_timed = (table.groupby(["task", "kind"]).size() for table in counted)
    of_faster = counted[1][timed.lowest > 1].groupby(["task", "kind"]).size()
    counts = pd.DataFrame(
        {
            "untimed": number - of_timed.reindex(number.index, fill_value=0),
            "faster": of_faster.reindex(number.index, fill_value=0),
        }
    )
    alone = best.join(counts, on=["task", "kind"])

    wanted = pd.DataFrame({"task": kept.task.unique(), "model": MAIN_MODEL})
    drafts = _one_at_a_time("lossless", wanted, profile).drop_duplicates("task")
    drafts = drafts.assign(kind=VERIFIED, retained=1.0, low=1.0, faster=(drafts.lowest > 1).astype(int))
    table = pd.concat([alone, drafts] if len(drafts) else [alone])[HEADLINE]
    order = {"task": list(kept.task.unique()), "kind": list(KINDS)}
    return table.sort_values(
        ["task", "kind"], key=lambda names: names.map(order[names.name].index), ignore_index=True
    )


def _one_at_a_time(part: str, settings: pd.DataFrame, profile: str) -> pd.DataFrame:
    """The settings that a part of the benchmark timed at batch size 1."""
    timed = read_timings(part, settings, profile)
    return timed[timed.batch == 1].assign(part=part, processor=timed.attrs["processor"])
