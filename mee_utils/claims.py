"""Claims as code: what the papers say, and what our tables say about it.

A claim is a sentence of a paper in our own words with a number or a predicate read off a table. Its verdict is "holds" or
"does not hold" for the data at hand; a claim that does not hold is a result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Claim:
    """One testable statement.

    Attributes:
        name: short, for tables.
        source: paper and place.
        statement: what it says, in our words.
        published: the published value, as text.
        measure: tables of one task -> our value, as text.
        holds: tables of one task -> whether the statement is true of them.
        models: the models it speaks of; without one of them it cannot be tested.
    """

    name: str
    source: str
    statement: str
    published: str
    measure: Callable[[dict[str, pd.DataFrame]], str]
    holds: Callable[[dict[str, pd.DataFrame]], bool]
    models: tuple[str, ...] = ()


def judge(claims: list[Claim], tables: dict[str, dict[str, pd.DataFrame]]) -> pd.DataFrame:
    """Checks every claim on every task. `tables`: task -> name of the table -> table."""
    rows = []
    for claim in claims:
        for task, found in tables.items():
            testable = set(claim.models) <= {model for table in found.values() for model in table["model"]}
            ours = claim.measure(found) if testable else ""
            verdict = "cannot be tested" if not testable else "holds" if claim.holds(found) else "does not hold"
            rows.append(
                {
                    "claim": claim.name, "source": claim.source, "statement": claim.statement, "published": claim.published,
                    "task": task, "ours": ours, "verdict": verdict,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def value(table: pd.DataFrame, column: str, model: str, layer: int) -> float:
    """One number of a table with columns `model` and `layer`."""
    return float(table.loc[(table.model == model) & (table.layer == layer), column].iloc[0])


def curve_of(table: pd.DataFrame, column: str, model: str) -> np.ndarray:
    """A column over the blocks of one model, `[layer]`."""
    return table[table.model == model].sort_values("layer")[column].to_numpy(dtype=np.float64)


def first_above(curve: np.ndarray, level: float) -> int:
    """The first block (1-based) at which a curve reaches a level; one past the last if it never does."""
    above = np.flatnonzero(curve >= level)
    return int(above[0]) + 1 if len(above) else len(curve) + 1


def _stable(tables, model: str, layer: int) -> float:
    return value(tables["stable"], "share", model, layer)


def _confidence(tables, model: str) -> np.ndarray:
    return curve_of(tables["confidence"], "confidence", model)


def _half(tables, model: str) -> int:
    return first_above(_confidence(tables, model), 0.5)


def _shape(tables, model: str) -> tuple[float, float, float]:
    """Mean confidence at FREE's exit point, its lowest value after it, and at the last block."""
    curve = _confidence(tables, model)
    exit_layer = len(curve) // 3
    return curve[exit_layer - 1], curve[exit_layer:].min(), curve[-1]


def monotonicity_claims() -> list[Claim]:
    """The statements of MEE, section 3, on tables `stable` (Figure 1) and `confidence` (Figure 2)."""
    report, blog = "MEE report, section 3", "MEE blog, section 2"
    return [
        Claim(
            "CALM settled after block 2", report, "Under CALM, 75 % of the tokens keep their top-1 after block 2.", "75 %",
            lambda t: f"{_stable(t, 'calm', 2):.1%}", lambda t: _stable(t, "calm", 2) >= 0.75,
            models=("calm",),
        ),
        Claim(
            "CALM settled after block 4", report, "Under CALM, 90 % of the tokens keep their top-1 after block 4.", "90 %",
            lambda t: f"{_stable(t, 'calm', 4):.1%}", lambda t: _stable(t, "calm", 4) >= 0.9,
            models=("calm",),
        ),
        Claim(
            "vanilla settles later", report, "The vanilla model changes its top-1 far more often after block 4 than CALM.",
            "lower curve", lambda t: f"{_stable(t, 'vanilla', 4):.1%} against {_stable(t, 'calm', 4):.1%}",
            lambda t: _stable(t, "vanilla", 4) < _stable(t, "calm", 4) - 0.05,
            models=("vanilla", "calm"),
        ),
        Claim(
            "FREE settles later", report, "FREE too changes its top-1 far more often after block 4 than CALM.",
            "lower curve", lambda t: f"{_stable(t, 'free', 4):.1%} against {_stable(t, 'calm', 4):.1%}",
            lambda t: _stable(t, "free", 4) < _stable(t, "calm", 4) - 0.05,
            models=("calm", "free"),
        ),
        Claim(
            "CALM grows block by block", blog, "CALM's mean confidence in the final prediction never falls from block to block.",
            "monotonic", lambda t: f"largest fall {max(0.0, -np.diff(_confidence(t, 'calm')).min()):.4f}",
            lambda t: bool((np.diff(_confidence(t, "calm")) >= 0).all()),
            models=("calm",),
        ),
        Claim(
            "vanilla gains confidence later", blog, "Vanilla's mean confidence passes one half at a later block than CALM's.",
            "much later", lambda t: f"block {_half(t, 'vanilla')} against {_half(t, 'calm')}",
            lambda t: _half(t, "vanilla") > _half(t, "calm"),
            models=("vanilla", "calm"),
        ),
        Claim(
            "FREE dips after its exit", blog,
            "FREE's mean confidence rises to its exit point, falls after it, and rises again to the end.", "rise, dip, rise",
            lambda t: "{:.3f}, {:.3f}, {:.3f}".format(*_shape(t, "free")),
            lambda t: _shape(t, "free")[1] < min(_shape(t, "free")[0], _shape(t, "free")[2]),
            models=("free",),
        ),
        Claim(
            "late weighting keeps early blocks free", "MEE blog, closing section (a hypothesis)",
            "Weighting only the last 70 % of the blocks leaves the first 30 % unsettled, and settles as early as CALM after them.",
            "not tested",
            lambda t: f"block 3: {_stable(t, 'late_weighted', 3):.1%} against {_stable(t, 'calm', 3):.1%}; "
            f"block 6: {_stable(t, 'late_weighted', 6):.1%} against {_stable(t, 'calm', 6):.1%}",
            lambda t: _stable(t, "late_weighted", 3) < _stable(t, "calm", 3) - 0.05
            and _stable(t, "late_weighted", 6) > _stable(t, "calm", 6) - 0.05,
            models=("calm", "late_weighted"),
        ),
    ]  # fmt: skip
