"""The papers' statements, rows of `statements/<notebook>.yaml`, judged on the tables of a notebook.

A row names its `values`: `[table, column, {column: value, ...}, reduction]`, the rows of a table with these
values, reduced to one number ("each": to several, in the order listed). `ours` is a template of the values,
`holds` a comparison of them. A statement that does not hold on our data is a result, not a refutation at the
papers' scale.
"""

import string
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from ..common.errors import CompanionError
from ..study import catalogue
from .statements import Claim, read_claims

GROUPS = {name: list(getattr(catalogue, name)) for name in ("CALM_RULES", "MEE_RULES", "SEVERAL_LAYERS")}
HOLDS, FAILS, UNTESTABLE, MIXED = "holds", "does not hold", "cannot be tested", "holds on some tasks"
TEXTS = ("claim", "source", "statement", "published")


def judge(
    notebook: str, tables: Mapping[str, Mapping[str, pd.DataFrame]], **parameters: float
) -> pd.DataFrame:
    """Judges every statement of a notebook on every task; one row a claim and task.

    `tables` are task -> name of a table -> its rows of this task, with a column `model`; `parameters` what
    the statements leave open. A table without the one row that a statement needs is a `CompanionError`.
    """
    rows = []
    for claim in read_claims(notebook):
        texts = [getattr(claim, name) for name in TEXTS]
        rows += [[*texts, task, *judge_one(claim, found, parameters)] for task, found in tables.items()]
    return pd.DataFrame(rows, columns=[*TEXTS, "task", "ours", "verdict"])


def judge_one(claim: Claim, tables: Mapping[str, pd.DataFrame], parameters: Mapping) -> tuple[str, str]:
    """Our value and the verdict of one claim on the tables of one task."""
    if not set(claim.models) <= set().union(*(table["model"] for table in tables.values())):
        return "", UNTESTABLE
    values: dict[str, Any] = dict(parameters)
    for name, (table, column, where, *reduction) in claim.values.items():
        rows = select(tables[table], where, parameters)
        if rows.empty and claim.nothing is not None:
            return claim.nothing, FAILS if claim.nothing else UNTESTABLE
        if rows.empty or not (reduction or len(rows) == 1):
            found = f'The claim "{claim.claim}" finds {len(rows)} rows with {where} in table "{table}"'
            needed = "some" if reduction else "one"
            raise CompanionError(f"{found} and needs {needed}: check the table and statements/*.yaml.")
        values[name] = reduce(rows, column, *reduction)
    holds = pd.eval(claim.holds, local_dict=values, engine="python")
    return _Template().vformat(claim.ours, (), values), HOLDS if holds else FAILS


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


def reduce(rows: pd.DataFrame, column: str, how: str = "max") -> Any:
    """A column of some rows as one value: a reduction of this module or of pandas, by name."""
    found = REDUCTIONS[how](rows, column) if how in REDUCTIONS else rows[column].agg(how)
    return found.item() if isinstance(found, np.generic) else found


def _by_layer(rows: pd.DataFrame, column: str) -> np.ndarray:
    return rows.sort_values("layer")[column].to_numpy(dtype=np.float64)


def _first_above(curve: np.ndarray, level: float) -> int:
    """The first layer (from 1) at which a curve reaches a level; one past the last if it never does."""
    return int(np.append(curve >= level, True).argmax()) + 1


def _rises(rows: pd.DataFrame, column: str, place: int) -> float:
    """Share of prefixes that rise strictly after one of the three layers that 02 looks at."""
    rows = rows[rows.property.str.startswith("rises_after_")]
    order = rows.property.str.rsplit("_", n=1).str[-1].astype(int)
    return rows.loc[order.sort_values().index[place], column]


REDUCTIONS: dict[str, Callable[[pd.DataFrame, str], Any]] = {
    "each": lambda rows, column: tuple(rows[column]),
    "largest drop": lambda rows, column: max(0.0, -np.diff(_by_layer(rows, column)).min()),
    "first layer above 0.5": lambda rows, column: _first_above(_by_layer(rows, column), 0.5),
    "last layer": lambda rows, column: _by_layer(rows, column)[-1],
    "rises at once": partial(_rises, place=0),
    "rises after a sixth": partial(_rises, place=1),
    "rises after a third": partial(_rises, place=2),
    "mean weighted by share above": lambda rows, column: (rows[column] * rows.above).sum() / rows.above.sum(),
    "earliest exit": lambda rows, column: rows[column].fillna(np.inf).min(),
    "cheapest": lambda rows, column: rows[column].clip(upper=1.0).min(),  # full depth is always there
}


class _Template(string.Formatter):
    """Templates in which several values are listed and a missing one is "none"."""

    def format_field(self, value: Any, spec: str) -> str:
        if isinstance(value, tuple):
            return ", ".join(self.format_field(each, spec) for each in value)
        return "none" if value != value else super().format_field(value, spec)


def ledger(stored: pd.DataFrame, latest: pd.DataFrame) -> pd.DataFrame:
    """One row a statement of all notebooks: on how many `tasks` it can be tested, and on how many it `held`.

    `stored` has one row a claim and task; `latest` those of 08, in place of what is stored of it.
    """
    here = "08_results"
    rows = pd.concat([stored[stored.notebook != here], latest.assign(notebook=here)], ignore_index=True)
    tested = rows.verdict != UNTESTABLE
    rows = rows.assign(tasks=tested, held=rows.verdict == HOLDS, ours=rows.ours.where(tested))
    first = dict.fromkeys(("notebook", *TEXTS[1:]), "first")
    together = lambda texts: "; ".join(texts.dropna().astype(str))
    found = rows.groupby("claim", sort=False).agg({**first, "ours": together, "tasks": "sum", "held": "sum"})
    choices = {UNTESTABLE: found.tasks == 0, HOLDS: found.held == found.tasks, FAILS: found.held == 0}
    found["verdict"] = np.select(list(choices.values()), list(choices), MIXED)
    return found.reset_index()[["notebook", *TEXTS, "ours", "tasks", "held", "verdict"]]
