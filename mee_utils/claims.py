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


def _property(tables, name: str, group: str, model: str = "calm") -> float:
    found = tables["table_1"]
    return float(found[(found.model == model) & (found.property == name) & (found.group == group)]["mean"].iloc[0])


def _rises(tables, place: int, group: str) -> float:
    """Share of prefixes that rise strictly after the first, second or third of the blocks asked about."""
    names = sorted({p for p in tables["table_1"].property if p.startswith("rises_after_")}, key=lambda name: int(name.split("_")[-1]))
    return _property(tables, names[place], group)


def _both(tables, name: str) -> str:
    return f"{_property(tables, name, 'easy'):.2f} against {_property(tables, name, 'difficult'):.2f}"


def _length_and_depth(tables) -> pd.Series:
    found = tables["depth"]
    return found[(found.model == "calm") & (found.measure == "prefix_tokens") & (found.depth == "settled_from")].iloc[0]


def _first_block(tables) -> float:
    found = tables["reached"]
    return float(found[(found.model == "calm") & (found.depth == "first_similar") & (found.layer == 2)].share.iloc[0])


def saturation_claims() -> list[Claim]:
    """The statements of MEE, section 4, on tables `table_1`, `depth` (what foretells it) and `reached`; all about CALM."""
    report, model = "MEE report, section 4", ("calm",)
    return [
        Claim(
            "easy states saturate earlier", report, "Easy prefixes have their first similar state much earlier than difficult ones.",
            "block 9.65 against 19.46 of 24", lambda t: _both(t, "first_similar"),
            lambda t: _property(t, "first_similar", "easy") < _property(t, "first_similar", "difficult") - 1, model,
        ),
        Claim(
            "easy prefixes are longer", report, "Easy prefixes are considerably longer than difficult ones.", "58.16 against 11.48 tokens",
            lambda t: _both(t, "prefix_tokens"), lambda t: _property(t, "prefix_tokens", "easy") > 1.5 * _property(t, "prefix_tokens", "difficult"),
            model,
        ),
        Claim(
            "easy states rise from the first block", report, "More easy than difficult prefixes rise strictly from the first block on.",
            "24 % against 3 %", lambda t: f"{_rises(t, 0, 'easy'):.1%} against {_rises(t, 0, 'difficult'):.1%}",
            lambda t: _rises(t, 0, "easy") > _rises(t, 0, "difficult") + 0.05, model,
        ),
        Claim(
            "difficult states rise later on", report, "Nearly all difficult prefixes rise strictly after a sixth of the blocks (4 of 24).",
            "97 %", lambda t: f"{_rises(t, 1, 'difficult'):.1%}", lambda t: _rises(t, 1, "difficult") > 0.9, model,
        ),
        Claim(
            "difficult states rise more than easy ones later on", report,
            "After a third of the blocks (8 of 24) more difficult than easy prefixes rise strictly.", "98 % against 85 %",
            lambda t: f"{_rises(t, 2, 'difficult'):.1%} against {_rises(t, 2, 'easy'):.1%}",
            lambda t: _rises(t, 2, "difficult") > _rises(t, 2, "easy"), model,
        ),
        Claim(
            "length foretells depth", report, "An exit rule could benefit from the length: longer prefixes settle earlier.", "suggested",
            lambda t: f"rank correlation {_length_and_depth(t).spearman:+.2f} ({_length_and_depth(t).low:+.2f} to {_length_and_depth(t).high:+.2f})",
            lambda t: bool(_length_and_depth(t).high < 0), model,
        ),
        Claim(
            "the first blocks are of no use", report, "The first few blocks cannot be used for exits, even for the easiest prefixes.",
            "no similar state", lambda t: f"{_first_block(t):.1%} have a similar state by block 2", lambda t: _first_block(t) < 0.05, model,
        ),
    ]  # fmt: skip
