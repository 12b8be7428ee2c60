"""The papers' statements (`statements/<notebook>.py`), judged on the tables of a notebook; the ledger of all.

Each statement has two p-values on each task: `p_holds` is small where the data contradict "it does not hold",
`p_fails` where they contradict "it holds". Values without bootstrap draws (a column `share` without a column
`share_draws`) are taken as facts, without uncertainty.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from ..analysis.statistics import Comparison
from ..common.errors import MeeError, shown
from .figures import label
from .statement import QUANTITIES, NoRows, Results, Rows, Statement, Untestable
from .statements import statements_of

HOLDS = "holds"
FAILS = "does not hold"
UNDECIDED = "undecided"
UNTESTABLE = "cannot be tested here"
HOLDS_ON_SOME = "holds on some tasks"  # undecided on the others
DIFFERS = "holds on some tasks, fails on others"
FAILS_ON_SOME = "does not hold on some tasks"  # undecided on the others
VERDICTS = (HOLDS, HOLDS_ON_SOME, DIFFERS, FAILS_ON_SOME, FAILS, UNDECIDED, UNTESTABLE)
TEXTS = ("claim", "source", "statement", "published", "judged_by")
LEVEL = 0.05  # of all verdicts of the ledger together
LAST_NOTEBOOK = "08_results"  # it writes the ledger


def judge(notebook: str, tables: Mapping[str, Mapping], **parameters: float) -> pd.DataFrame:
    """Judges every statement of a notebook on every task; one row a claim and task.

    Args:
        notebook: its name, "01_monotonicity".
        tables: task -> name of a table -> its rows of this task, with a column `model`; None: not measured.
        parameters: values that statements need beside the tables, such as `exit_layer`; attributes of
            `results` as the tables are.

    Returns:
        The `TEXTS` of the statement, `task`, `ours` (our value in words, with its interval; the reason where
        it cannot be tested), `p_holds` (small where the statement holds), `p_fails` (small where it does not;
        both NaN where it cannot be tested) and `alone`, the verdict on the row by itself. What counts is the
        verdict of the `ledger`.

    Raises:
        MeeError: a table without the one row that a statement needs.
    """
    rows = []
    for each in statements_of(notebook):
        for task, of_task in tables.items():
            ours, p_holds, p_fails = judge_one(each, of_task, parameters)
            texts = [each.claim, each.source, each.quote, each.published, each.judged_by]
            rows.append([*texts, task, ours, p_holds, p_fails])
    judged = pd.DataFrame(rows, columns=[*TEXTS, "task", "ours", "p_holds", "p_fails"])
    return judged.assign(alone=decided(judged))


def judged_shown(judged: pd.DataFrame) -> pd.DataFrame:
    """What `judge` returned, for readers of a notebook: our values; verdicts stand in the ledger alone."""
    return judged.assign(task=judged.task.map(label))[["claim", "published", "task", "ours"]]


def show_judged(judged: pd.DataFrame) -> None:
    """Shows `judged_shown` in a notebook, with no cell cut off."""
    from IPython.display import display

    with pd.option_context("display.max_colwidth", None, "display.max_rows", None):
        display(judged_shown(judged))


def judge_one(each: Statement, tables: Mapping, parameters: Mapping) -> tuple[str, float, float]:
    """Our value of one statement on the tables of one task, and its p-values against failing and holding.

    Where it cannot be tested: the reason, and NaN twice.
    """
    models = set().union(*(table["model"] for table in tables.values() if table is not None))
    missing = [label(model) for model in each.models if model not in models]
    if missing:
        return f"no {', no '.join(missing)} model", np.nan, np.nan
    rows = {name: Rows(name, table) for name, table in tables.items()}
    try:
        returned = each.compare(Results(rows, parameters))
    except Untestable as reason:
        return str(reason), np.nan, np.nan
    except NoRows as error:
        if each.untested is not None:
            return each.untested, np.nan, np.nan
        if each.without_rows is not None:
            return each.without_rows, 1.0, 0.0
        raise MeeError(f'The claim "{each.claim}" {error}: check the table and the statement.') from error
    is_pair = isinstance(returned, tuple) and len(returned) == 2
    if not is_pair or not isinstance(returned[1], Comparison):
        wanted = "a text and a comparison of estimates, as in `settled >= 0.75` (not `settled.value >= 0.75`)"
        raise MeeError(f'The claim "{each.claim}" returned {shown(returned)}: return {wanted}.')
    ours, comparison = returned
    check_quantity(each, set().union(*(table.looked_up for table in rows.values())))
    return ours, comparison.p_holds, comparison.p_fails


def check_quantity(each: Statement, looked_up: set[str]) -> None:
    """An error if a statement looks up no column of the quantity that it is judged by, or time beside it."""
    if not looked_up.intersection(QUANTITIES[each.judged_by]):
        columns = f"looks up {', '.join(sorted(looked_up)) or 'no column'}"
        needed = f"look up one of {', '.join(QUANTITIES[each.judged_by])}, or change judged_by"
        raise MeeError(f'The claim "{each.claim}" is judged by {each.judged_by}, but {columns}: {needed}.')
    times = looked_up.intersection(QUANTITIES["time"])
    if times and each.judged_by != "time":
        columns = ", ".join(sorted(times))
        raise MeeError(
            f'The claim "{each.claim}" is judged by {each.judged_by}, but looks up {columns}, a time: '
            'leave it out, or make it a statement with judged_by="time".'
        )


def decided(rows: pd.DataFrame, adjust: Callable | None = None) -> np.ndarray:
    """The verdict on each row, two-sided at `LEVEL`; `adjust` corrects the p-values for their number."""
    two_sided = 2 * rows[["p_holds", "p_fails"]].min(axis=1)
    adjusted = two_sided if adjust is None else adjust(two_sided)
    choices = {
        UNTESTABLE: two_sided.isna(),
        UNDECIDED: ~(adjusted <= LEVEL),
        HOLDS: rows.p_holds < rows.p_fails,
    }
    return np.select(list(choices.values()), list(choices), FAILS)


def ledger(stored: pd.DataFrame, latest: pd.DataFrame) -> pd.DataFrame:
    """One row per statement of all notebooks, with its verdict over all tasks.

    A statement is decided on a task where Holm's correction over all statements and tasks leaves it below
    `LEVEL`. `tasks` counts those on which it can be tested; on these it `held`, `failed` or is `undecided`,
    and `ours` is our value there; `reason` says why it cannot be tested on the others.

    Args:
        stored: what `judge` returned for each notebook, with a column `notebook`.
        latest: what it returned in 08, in place of what is stored of that.
    """
    others = stored[stored.notebook != LAST_NOTEBOOK]
    rows = pd.concat([others, latest.assign(notebook=LAST_NOTEBOOK)], ignore_index=True)
    verdicts = decided(rows, holm)
    tested = rows.p_holds.notna()
    texts = rows.task.map(label) + ": " + rows.ours.fillna("").astype(str)
    rows = rows.assign(
        ours=texts.where(tested),
        reason=rows.ours.where(~tested),
        tasks=tested,
        held=verdicts == HOLDS,
        failed=verdicts == FAILS,
        undecided=verdicts == UNDECIDED,
    )
    counts = ["tasks", "held", "failed", "undecided"]
    firsts = dict.fromkeys(["notebook", *TEXTS[1:]], "first")
    sums = dict.fromkeys(counts, "sum")
    summary = rows.groupby("claim", sort=False).agg(
        {**firsts, "ours": _together, "reason": _together, **sums}
    )
    choices = {
        UNTESTABLE: summary.tasks == 0,
        HOLDS: summary.held == summary.tasks,
        FAILS: summary.failed == summary.tasks,
        DIFFERS: (summary.held > 0) & (summary.failed > 0),
        HOLDS_ON_SOME: summary.held > 0,
        FAILS_ON_SOME: summary.failed > 0,
    }
    summary["verdict"] = np.select(list(choices.values()), list(choices), UNDECIDED)
    return summary.reset_index()[["notebook", *TEXTS, "ours", "reason", *counts, "verdict"]]


def _together(texts: pd.Series) -> str:
    """Different texts, in their order."""
    return "; ".join(dict.fromkeys(texts.dropna().astype(str)))


def holm(p_values: pd.Series) -> pd.Series:
    """p-values corrected for their number, step by step from the smallest (Holm 1979); NaN stays."""
    ordered = p_values.dropna().sort_values(kind="stable")
    remaining = np.arange(len(ordered), 0, -1)
    adjusted = (ordered * remaining).cummax().clip(upper=1.0)
    return adjusted.reindex(p_values.index)
