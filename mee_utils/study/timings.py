"""What `make bench` measured, read back beside the settings that a notebook asks about."""

from __future__ import annotations

import operator
from pathlib import Path

import numpy as np
import pandas as pd

from ..common.files import ROOT

BENCH = ROOT / "figures" / "bench"
RANGE = ["lowest", "highest"]
SPEEDS = ["batch", "seconds", "samples_per_second", "tokens_per_second", "speed", *RANGE]
PARTS = {  # part -> file, what identifies a row, what was measured
    "reductions": ("reductions", ["task", "model", "reduction"], SPEEDS),
    "results": (
        "results",
        ["task", "model", "rule", "threshold"],
        ["batch", "speed", *RANGE, "samples_speed"],
    ),
    "one decision": ("decoder", ["shape", "what"], ["median", *RANGE]),
}


def read_timings(
    part: str, wanted: pd.DataFrame, profile: str | None = None, complete: bool = False, folder: Path = BENCH
) -> pd.DataFrame:
    """The settings in `wanted` that were timed (thresholds rounded to four decimals); one row a batch size.

    `speed` is tokens a second, full depth being 1; `samples_speed` samples a second; `median` is in layers.
    The part "one decision" is timed on random weights and belongs to no profile. With `complete`, nothing is
    returned unless every setting was timed.
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
