"""What `make bench` measured, read back beside the settings that a notebook asks about."""

from __future__ import annotations

import operator
from pathlib import Path

import numpy as np
import pandas as pd

from ..common.files import ROOT

SPEEDS = ["batch", "seconds", "samples_per_second", "tokens_per_second", "speed", "lowest", "highest"]
PARTS = {  # part -> file, what identifies a row, what was measured
    "reductions": ("reductions", ["task", "model", "reduction"], SPEEDS),
    "results": (
        "results",
        ["task", "model", "rule", "threshold"],
        ["batch", "speed", "lowest", "highest", "samples_speed"],
    ),
    "one decision": ("decoder", ["shape", "what"], ["median", "lowest", "highest"]),
}


def read_timings(
    part: str,
    wanted: pd.DataFrame,
    profile: str | None = None,
    complete: bool = False,
    folder: Path = ROOT / "figures" / "bench",
) -> pd.DataFrame:
    """The rows of `wanted` that were timed, with their timings; one row a batch size.

    Args:
        part: "reductions" (notebook 03), "results" (notebook 06) or "one decision" (notebook 04).
        wanted: settings; it holds at least the columns that identify a row of this part.
        profile: the profile's name; None for "one decision", which is timed on random weights.
        complete: whether nothing is returned unless every setting was timed.
        folder: of the tables of `make bench`.

    Returns:
        The columns of `wanted` (thresholds rounded to four decimals), and what was measured: `speed` is
        tokens a second, full depth being 1; `samples_speed` samples a second; `median` is in layers.
    """
    file, keys, values = PARTS[part]
    path = folder / f"{file}.csv"
    if not path.exists():
        return pd.DataFrame(columns=[*wanted, *values])
    stored = pd.read_csv(path)
    stored = stored[stored.profile == profile] if profile else stored[stored.group == part]
    if "threshold" in keys:
        rounded = lambda table: table.dropna(subset="threshold").round({"threshold": 4})
        wanted, stored = rounded(wanted), rounded(stored)
    found = wanted.merge(stored[[*keys, *values]], on=keys)
    return found.iloc[:0] if complete and len(found[keys].drop_duplicates()) < len(wanted) else found


def missed(table: pd.DataFrame) -> pd.DataFrame:
    """The lines whose median misses the target that stands beside it."""
    signs = {"<=": operator.le, ">=": operator.ge}
    met = [not t or signs[t[:2]](m, float(t[2:])) for m, t in zip(table["median"], table.target)]
    return table[~np.array(met, dtype=bool)]
