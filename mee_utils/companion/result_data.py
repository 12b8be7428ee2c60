"""RESULTS.json: what RESULTS.md and the ledger say, as data, with the digests of the tables behind it."""

import json
from typing import Any

import numpy as np
import pandas as pd

from . import answers, facts, ledger_page
from .catalogue import MAIN_MODEL
from .digests import file_digest
from .result_tables import BENCH, MACHINES
from .stored_tables import DATA, FIGURES, PROFILES, StoredTables

FRONT = ["task", "rule", "threshold", "retained", "low", "high", "flops_share", "mean_exit_layer"]


def result_data() -> dict[str, Any]:
    """The ledger, the answers of RESULTS.md (tables and facts), and the fronts of score and FLOPs."""
    stored = StoredTables()
    tables = {name: table(stored).to_dict("records") for name, table in answers.TABLES.items()}
    headline = {DATA[name]: table.to_dict("records") for name, table in answers.headlines().items()}
    return plain(
        {
            "about": "The numbers of RESULTS.md and the ledger. Shares are of the model's own full depth.",
            "facts": facts.facts(stored),
            "headline": headline,
            "tables": tables,
            "ledger": ledger_page.ledger(stored).to_dict("records"),
            "fronts": {DATA[profile]: _front(stored, profile) for profile in PROFILES},
            "machines": json.loads((BENCH / MACHINES).read_text(encoding="utf-8")),
            "digests": _digests(),
        }
    )


def _front(stored: StoredTables, profile: str) -> list[dict]:
    """The settings of the main model that no other beats in score and in FLOPs."""
    points = stored.table("08_results", "score_against_flops")
    if points.empty:
        return []
    best = points[(points.profile == profile) & (points.model == MAIN_MODEL) & points.front.astype(bool)]
    return best[FRONT].to_dict("records")


def _digests() -> dict[str, str]:
    """Stored table -> its digest."""
    paths = [path for path in sorted(FIGURES.rglob("*.csv")) if path.parent.name != "results"]
    return {path.relative_to(FIGURES).as_posix(): file_digest(path) for path in paths}


def plain(value: Any) -> Any:
    """A value as JSON has it: numbers to four decimals, nothing (null) where one is missing."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return None if pd.isna(value) else round(value, 4)
    return value
