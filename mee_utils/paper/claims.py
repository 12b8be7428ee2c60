"""The papers' statements (`statements/<notebook>.py`), judged on the tables of a notebook; the ledger of all.

Each statement has two p-values on each task: `p_holds` is small where the data contradict "it does not hold",
`p_fails` where they contradict "it holds". Values without bootstrap draws (a column `share` without a column
`share_draws`) are taken as facts, without uncertainty.
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace

import numpy as np
import pandas as pd

from ..common.errors import MeeError
from .statement import NoRows, NotMeasured, Rows, Statement
from .statements import statements_of

HOLDS = "holds"
FAILS = "does not hold"
UNDECIDED = "undecided"
UNTESTABLE = "cannot be tested"
MIXED = "holds on some tasks"
VERDICTS = (HOLDS, MIXED, FAILS, UNDECIDED, UNTESTABLE)
TEXTS = ("claim", "source", "statement", "published")
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
        The `TEXTS` of the statement, `task`, `ours` (our value in words), `p_holds` (small where the
        statement holds), `p_fails` (small where it does not; both NaN where it cannot be tested) and `alone`,
        the verdict on the row by itself. What counts is the verdict of the `ledger`.

    Raises:
        MeeError: a table without the one row that a statement needs.
    """
    rows = []
    for each in statements_of(notebook):
        for task, of_task in tables.items():
            ours, p_holds, p_fails = judge_one(each, of_task, parameters)
            rows.append([each.claim, each.source, each.quote, each.published, task, ours, p_holds, p_fails])
    judged = pd.DataFrame(rows, columns=[*TEXTS, "task", "ours", "p_holds", "p_fails"])
    return judged.assign(alone=decided(judged))


def judge_one(each: Statement, tables: Mapping, parameters: Mapping) -> tuple[str, float, float]:
    """Our value of one statement on the tables of one task, and its p-values against failing and holding."""
    models = set().union(*(table["model"] for table in tables.values() if table is not None))
    if not models.issuperset(each.models):
        return "", np.nan, np.nan
    results = SimpleNamespace(**{name: Rows(name, table) for name, table in tables.items()}, **parameters)
    try:
        ours, comparison = each.compare(results)
    except NotMeasured:
        return "", np.nan, np.nan
    except NoRows as error:
        if each.without_rows is None:
            raise MeeError(f'The claim "{each.claim}" {error}: check the table and the statement.') from error
        return (each.without_rows, 1.0, 0.0) if each.without_rows else ("", np.nan, np.nan)
    return ours, comparison.p_holds, comparison.p_fails


def decided(rows: pd.DataFrame, adjust: Callable | None = None) -> np.ndarray:
    """The verdict on each row, two-sided at `LEVEL`; `adjust` corrects the p-values for their number."""
    smaller = rows[["p_holds", "p_fails"]].min(axis=1)
    two_sided = 2 * smaller
    adjusted = two_sided if adjust is None else adjust(two_sided)
    choices = {
        UNTESTABLE: smaller.isna(),
        UNDECIDED: ~(adjusted <= LEVEL),
        HOLDS: rows.p_holds < rows.p_fails,
    }
    return np.select(list(choices.values()), list(choices), FAILS)


def ledger(stored: pd.DataFrame, latest: pd.DataFrame) -> pd.DataFrame:
    """One row a statement of all notebooks, with its verdict over all tasks.

    A statement is decided on a task where Holm's correction over all statements and tasks leaves it below
    `LEVEL`. `tasks` counts those on which it can be tested; on these it `held`, `failed` or is `undecided`.

    Args:
        stored: what `judge` returned for each notebook, with a column `notebook`.
        latest: what it returned in 08, in place of what is stored of that.
    """
    others = stored[stored.notebook != LAST_NOTEBOOK]
    rows = pd.concat([others, latest.assign(notebook=LAST_NOTEBOOK)], ignore_index=True)
    verdicts = decided(rows, holm)
    tested = rows.p_holds.notna()
    rows = rows.assign(
        ours=rows.ours.where(tested),
        tasks=tested,
        held=verdicts == HOLDS,
        failed=verdicts == FAILS,
        undecided=verdicts == UNDECIDED,
    )
    counts = ["tasks", "held", "failed", "undecided"]
    texts = dict.fromkeys(["notebook", *TEXTS[1:]], "first")
    summary = rows.groupby("claim", sort=False).agg(
        {**texts, "ours": _together, **dict.fromkeys(counts, "sum")}
    )
    summary["verdict"] = _over_tasks(summary)
    return summary.reset_index()[["notebook", *TEXTS, "ours", *counts, "verdict"]]


def _together(texts: pd.Series) -> str:
    return "; ".join(texts.dropna().astype(str))


def _over_tasks(summary: pd.DataFrame) -> np.ndarray:
    """The verdict on each statement, from the numbers of tasks on which it held and failed."""
    choices = {
        UNTESTABLE: summary.tasks == 0,
        HOLDS: summary.held == summary.tasks,
        FAILS: summary.failed == summary.tasks,
        MIXED: summary.held > 0,
        UNDECIDED: summary.undecided > 0,
    }
    return np.select(list(choices.values()), list(choices), FAILS)


def holm(p_values: pd.Series) -> pd.Series:
    """p-values corrected for their number, step by step from the smallest (Holm 1979); NaN stays."""
    ordered = p_values.dropna().sort_values(kind="stable")
    remaining = np.arange(len(ordered), 0, -1)
    adjusted = (ordered * remaining).cummax().clip(upper=1.0)
    return adjusted.reindex(p_values.index)
