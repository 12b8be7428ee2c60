"""The ways of pruning and the models of chapter 03: which are shown, and how they are named."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pandas as pd

from ... import figures
from ...catalogue import PRUNED, RULES
from ...prose import listed
from ..wording import some

PUBLISHED = tuple(way for way in PRUNED if RULES[way].prune_last_layer)  # the last layer is pruned too
WHOLE_LAST = "few"  # fixed pruning before the last layer, which scores all entries
SHOWN_MODELS = ("calm", "vanilla")  # tables have the pre-trained model too
LITTLE = 0.02  # of a score or of the FLOPs: no difference worth a sentence


def of_shown_models(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the models that are shown; all rows where it has none of these."""
    shown = table[table.model.isin(SHOWN_MODELS)]
    return shown if len(shown) else table


def shown_among(models: Iterable[str]) -> list[str]:
    """Those of some models that are shown, CALM first; all of them where none is."""
    names = list(models)
    return [name for name in SHOWN_MODELS if name in names] or names


def of_calm(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of CALM's model."""
    return table[table.model == "calm"]


def way_label(rule: str) -> str:
    """A way of pruning the margin, without saying that it is the margin: "fixed pruning"."""
    return re.sub(r"^margin(,| with) ", "", figures.label(rule))


def by_way(table: pd.DataFrame, rows: list[str], columns: str | list[str], values: list[str]) -> pd.DataFrame:
    """A wide table in the order of the long one: ways of pruning below each other, so that they compare."""
    beside = [columns] if isinstance(columns, str) else columns
    wide = table.set_index([*rows, *beside])[values].unstack(beside, sort=False)
    wide = wide.rename(index=figures.label, columns=figures.label)
    return wide.rename_axis(index=dict.fromkeys(rows), columns=dict.fromkeys(beside))


def changed(shares: pd.Series, what: str = "tokens", form: str = ".1%") -> str:
    """The largest share that changes in each model: "none of CALM's and up to 2.5% of vanilla's tokens"."""
    parts = []
    for name, share in shares.items():
        amount = some(share, form)
        most = f"up to {amount}" if amount[0].isdigit() else amount
        parts.append(f"{most} of {figures.label(name)}'s")
    return f"{listed(parts)} {what}"
