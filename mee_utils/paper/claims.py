"""The papers' statements, rows of `statements/<notebook>.yaml`, judged on the tables of a notebook.

A row names its `values`: `[table, column, {column: value, ...}, reduction]`, the rows of a table with these
values, reduced to one number ("each": to several, in the order listed). `ours` is a template of the values,
`holds` comparisons of them, joined by "and". Where a table has the bootstrap draws of a column, the margin of
each comparison has a standard error, and the statement two p-values: one against "it does not hold", one
against "it holds". Means over the same examples are resampled alike, so that comparisons are paired. A
statement that does not hold on our data is a result, not a refutation at the papers' scale.
"""

import ast
import string
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from warnings import catch_warnings

import numpy as np
import pandas as pd
from scipy.stats import norm

from ..analysis.statistics import DRAWS
from ..common.errors import MeeError
from ..study import catalogue
from .statements import Claim, read_claims

GROUPS = {name: list(getattr(catalogue, name)) for name in ("CALM_RULES", "MEE_RULES", "SEVERAL_LAYERS")}
HOLDS, FAILS, UNDECIDED, UNTESTABLE = "holds", "does not hold", "undecided", "cannot be tested"
MIXED = "holds on some tasks"
VERDICTS = (HOLDS, MIXED, FAILS, UNDECIDED, UNTESTABLE)
TEXTS = ("claim", "source", "statement", "published")
LEVEL = 0.05  # of all verdicts of the ledger together


def judge(notebook: str, tables: Mapping[str, Mapping], **parameters: float) -> pd.DataFrame:
    """Judges every statement of a notebook on every task; one row a claim and task.

    `tables` are task -> name of a table -> its rows of this task, with a column `model` (None: not measured);
    `parameters` what the statements leave open. `p_holds` is small where the statement holds, `p_fails` where
    it does not; both are NaN where it cannot be tested. `alone` is the verdict on the row by itself; what
    counts is that of the `ledger`. `MeeError` for a table without the one row that a statement needs.
    """
    rows = []
    for claim in read_claims(notebook):
        texts = [getattr(claim, name) for name in TEXTS]
        rows += [[*texts, task, *judge_one(claim, found, parameters)] for task, found in tables.items()]
    found = pd.DataFrame(rows, columns=[*TEXTS, "task", "ours", "p_holds", "p_fails"])
    return found.assign(alone=decided(found))


def decided(rows: pd.DataFrame, adjust: Callable = lambda p_values: p_values) -> np.ndarray:
    """The verdict on each row with `p_holds`, `p_fails`, two-sided at `LEVEL`; `adjust` corrects p-values."""
    smaller = rows[["p_holds", "p_fails"]].min(axis=1)
    sure = adjust(2 * smaller) <= LEVEL
    choices = {UNTESTABLE: smaller.isna(), UNDECIDED: ~sure, HOLDS: rows.p_holds < rows.p_fails}
    return np.select(list(choices.values()), list(choices), FAILS)


def judge_one(claim: Claim, tables: Mapping[str, pd.DataFrame], parameters: Mapping) -> tuple:
    """Our value of one claim on the tables of one task, and its p-values."""
    ours, found = weigh(claim, tables, parameters)
    if not found:
        return (ours, 1.0, 0.0) if ours else (ours, np.nan, np.nan)
    holds, fails = np.transpose([p_values(*comparison) for comparison in found])
    return ours, holds.max(), min(1.0, len(fails) * fails.min())


def weigh(claim: Claim, tables: Mapping[str, pd.DataFrame], parameters: Mapping) -> tuple[str, list]:
    """Our value of one claim, and for each comparison what `p_values` takes; none if there is no row."""
    known = set().union(*(table["model"] for table in tables.values() if table is not None))
    if not set(claim.models) <= known or any(tables[table] is None for table, *_ in claim.values.values()):
        return "", []
    values, draws = dict[str, Any](parameters), dict[str, Any](parameters)
    for name, (table, column, where, *reduction) in claim.values.items():
        rows = select(tables[table], where, parameters)
        if rows.empty and claim.nothing is not None:
            return claim.nothing, []
        if rows.empty or not (reduction or len(rows) == 1):
            found = f'The claim "{claim.claim}" finds {len(rows)} rows with {where} in table "{table}"'
            needed = "some" if reduction else "one"
            raise MeeError(f"{found} and needs {needed}: check the table and statements/*.yaml.")
        values[name] = draws[name] = reduce(rows, rows[column].to_numpy(), *reduction)
        if f"{column}{DRAWS}" in rows:
            draws[name] = reduce(rows, np.stack(rows[f"{column}{DRAWS}"].to_list()), *reduction)
    both = zip(margins(claim.holds, values), margins(claim.holds, draws), strict=True)
    found = [(margin, drawn, or_equal) for (margin, or_equal), (drawn, _) in both]
    return _Template().vformat(claim.ours, (), values), found


def margins(comparisons: str, values: Mapping[str, Any]) -> Iterator[tuple[Any, bool]]:
    """By how much each comparison holds (above 0: it does), and whether it may be 0."""
    tree = ast.parse(comparisons, mode="eval").body
    side = lambda node: pd.eval(ast.unparse(node), local_dict=values, engine="python")
    for each in tree.values if isinstance(tree, ast.BoolOp) else [tree]:
        sides = [side(node) for node in (each.left, *each.comparators)]
        for first, operator, second in zip(sides, each.ops, sides[1:]):
            less = isinstance(operator, ast.Lt | ast.LtE)
            yield (second - first if less else first - second), isinstance(operator, ast.LtE | ast.GtE)


def p_values(margin: float, drawn: Any, or_equal: bool) -> tuple[float, float]:
    """How likely a margin so far above 0 is if it is none, and one so far below, by the draws' spread.

    A margin without draws (a layer, say) is a fact. If over a twentieth is missing, or if all draws are equal
    where one side should be above, nothing can be said.
    """
    drawn = np.asarray(drawn, dtype=np.float64)
    error, tied = np.nanstd(drawn), drawn.ndim and margin == 0 and not or_equal
    if np.isnan(margin) or np.isnan(drawn).mean() > 0.05 or (tied and error < 1e-12):
        return 1.0, 1.0
    if error < 1e-12:
        return (0.0, 1.0) if margin > 0 or (or_equal and margin == 0) else (1.0, 0.0)
    return float(norm.sf(margin / error)), float(norm.cdf(margin / error))


def select(rows: pd.DataFrame, where: Mapping[str, Any], parameters: Mapping[str, float]) -> pd.DataFrame:
    """The rows with these values (of a list any, in its order; `{not: ...}`; `{more than: ...}`)."""
    for column, wanted in where.items():
        known = {**GROUPS, **parameters}
        match known.get(wanted, wanted) if isinstance(wanted, str) else wanted:
            case {"not": other}:
                rows = rows[rows[column] != other]
            case {"more than": bound}:
                rows = rows[rows[column] > known.get(bound, bound)]
            case list(several):
                places = rows[column].map({value: place for place, value in enumerate(several)})
                rows = rows.loc[places.dropna().sort_values(kind="stable").index]
            case value:
                rows = rows[rows[column] == value]
    return rows


def reduce(rows: pd.DataFrame, values: np.ndarray, how: str = "max") -> Any:
    """Values of some rows, `[row]` or `[row, resample]`, as one: a reduction of this module, or of numpy."""
    plain = lambda rows, values: getattr(np, f"nan{how}")(values, axis=0)
    with catch_warnings(action="ignore", category=RuntimeWarning):  # of nothing but NaN it is NaN
        found = REDUCTIONS.get(how, plain)(rows, values)
    return found.item() if isinstance(found, np.generic) else found


def _by_layer(rows: pd.DataFrame, values: np.ndarray) -> np.ndarray:
    return values[np.argsort(rows.layer.to_numpy(), kind="stable")]


def _first_above(curve: np.ndarray, level: float) -> np.ndarray:
    """The first layer (from 1) at which a curve `[layer, ...]` reaches a level; one past the last if none."""
    return np.append(curve >= level, np.ones_like(curve[:1], dtype=bool), axis=0).argmax(axis=0) + 1


def _rises(rows: pd.DataFrame, values: np.ndarray, place: int) -> np.ndarray:
    """Share of prefixes that rise strictly after one of the three layers that 02 looks at."""
    chosen = rows.property.str.startswith("rises_after_").to_numpy()
    order = rows[chosen].property.str.rsplit("_", n=1).str[-1].astype(int).argsort(kind="stable")
    return values[chosen][order.iloc[place]]


def _weighted(rows: pd.DataFrame, values: np.ndarray) -> np.ndarray:
    weights = rows.above.to_numpy()[rows.above > 0]
    return np.tensordot(weights / weights.sum(), values[rows.above > 0], 1)


REDUCTIONS: dict[str, Callable[[pd.DataFrame, np.ndarray], Any]] = {
    "each": lambda rows, values: tuple(values.tolist()),
    "count": lambda rows, values: len(rows),
    "largest drop": lambda rows, values: np.maximum(0, -np.diff(_by_layer(rows, values), axis=0).min(axis=0)),
    "first layer above 0.5": lambda rows, values: _first_above(_by_layer(rows, values), 0.5),
    "last layer": lambda rows, values: _by_layer(rows, values)[-1],
    "rises at once": partial(_rises, place=0),
    "rises after a sixth": partial(_rises, place=1),
    "rises after a third": partial(_rises, place=2),
    "mean weighted by share above": _weighted,
    "cheapest": lambda rows, values: np.minimum(values, 1.0).min(axis=0),  # full depth is always there
}


class _Template(string.Formatter):
    """Templates in which several values are listed and a missing one is "none"."""

    def format_field(self, value: Any, spec: str) -> str:
        if isinstance(value, tuple):
            return ", ".join(self.format_field(each, spec) for each in value)
        return "none" if value != value else super().format_field(value, spec)


def ledger(stored: pd.DataFrame, latest: pd.DataFrame) -> pd.DataFrame:
    """One row a statement of all notebooks: on how many `tasks` it can be tested, on how many it `held`,
    `failed`, or is `undecided`, and the verdict of all.

    `stored` has one row a claim and task; `latest` those of 08, in place of what is stored of it. A statement
    is decided on a task where Holm's correction over all statements and tasks leaves it below `LEVEL`.
    """
    here = "08_results"
    rows = pd.concat([stored[stored.notebook != here], latest.assign(notebook=here)], ignore_index=True)
    verdicts, tested = decided(rows, holm), rows.p_holds.notna()
    counts = {"tasks": tested, "held": verdicts == HOLDS, "failed": verdicts == FAILS}
    counts |= {"undecided": verdicts == UNDECIDED}
    rows = rows.assign(**counts, ours=rows.ours.where(tested))
    first, sums = dict.fromkeys(("notebook", *TEXTS[1:]), "first"), dict.fromkeys(counts, "sum")
    together = lambda texts: "; ".join(texts.dropna().astype(str))
    found = rows.groupby("claim", sort=False).agg({**first, "ours": together, **sums})
    choices = {UNTESTABLE: found.tasks == 0, HOLDS: found.held == found.tasks}
    choices |= {FAILS: found.failed == found.tasks, MIXED: found.held > 0, UNDECIDED: found.undecided > 0}
    found["verdict"] = np.select(list(choices.values()), list(choices), FAILS)
    return found.reset_index()[["notebook", *TEXTS, "ours", *sums, "verdict"]]


def holm(p_values: pd.Series) -> pd.Series:
    """p-values corrected for their number, step by step from the smallest (Holm 1979); NaN stays."""
    ordered = p_values.dropna().sort_values(kind="stable")
    adjusted = (ordered * np.arange(len(ordered), 0, -1)).cummax().clip(upper=1.0)
    return adjusted.reindex(p_values.index)
