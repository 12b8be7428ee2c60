"""Results that are stored already, read back: what notebook 06 is drawn from. No model is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from .errors import CompanionError
from .profiles import PACKAGE, check_profile_name
from .results import output_root

DECODED = "decoded"


def stored_root(profile: str) -> Path:
    """The folder of a profile's results: where this run writes if they are there, else beside the package."""
    check_profile_name(profile)
    places = [output_root() / profile, PACKAGE.parent / "figures" / profile]
    return next((place for place in places if (place / DECODED / "manifest.json").exists()), places[0])


def read_table(profile: str, notebook: str, name: str) -> pd.DataFrame:
    """A stored table.

    Args:
        profile: the profile's name.
        notebook: a notebook's name, or "decoded".
        name: of the table, without ending.

    Raises:
        CompanionError: it is not there.
    """
    path = stored_root(profile) / notebook / f"{name}.csv"
    if not path.exists():
        how = f"python -m mee_utils decode --profile {profile}" if notebook == DECODED else f"python -m mee_utils notebook {notebook} --profile {profile}"
        raise CompanionError(f"{path} is not there: run make reproduce PROFILE={profile} (or this part alone: {how}).")
    return pd.read_csv(path)


def has_table(profile: str, notebook: str, name: str) -> bool:
    """Whether a stored table is there."""
    return (stored_root(profile) / notebook / f"{name}.csv").exists()


@dataclass(frozen=True)
class Decodings:
    """Every setting that was decoded for a profile.

    Attributes:
        settings: one row a setting: `task`, `model`, `rule`, `threshold` (not a number where the rule has none), `score`, `retained` with `low` and
            `high`, `loss` (mean textual loss), `fall` (mean risk loss), `mean_exit_layer`, `flops_share`, `read_out_share`, `same_output`, `length_share`.
        losses: textual losses, one array `[example]` a row of `settings`.
        examples: scores of single examples in percent, likewise.
        eps: the profile's probability of failing.
        deltas, risk_deltas: the profile's largest mean losses.
    """

    settings: pd.DataFrame
    losses: list[np.ndarray]
    examples: list[np.ndarray]
    eps: float
    deltas: tuple[float, ...]
    risk_deltas: tuple[float, ...]

    def rows(self, **wanted) -> pd.DataFrame:
        """The settings with these values."""
        found = self.settings
        for column, value in wanted.items():
            found = found[found[column] == value]
        return found

    def array(self, rows: pd.DataFrame, kind: str = "textual") -> np.ndarray:
        """Losses `[setting, example]` of some rows of `settings`: "textual" or "risk"; of one task and model."""
        if kind == "textual":
            return np.stack([self.losses[place] for place in rows.index])
        first = rows.iloc[0]
        full = self.examples[self.rows(task=first.task, model=first.model, rule="none").index[0]]
        return np.stack([np.clip(full - self.examples[place], 0, None) / 100 for place in rows.index])


def decodings(profile: str) -> Decodings:
    """Reads what `python -m mee_utils decode` stored for a profile."""
    import json

    settings = read_table(profile, DECODED, "settings")
    parameters = json.loads((stored_root(profile) / DECODED / "manifest.json").read_text(encoding="utf-8"))["parameters"]
    keys, arrays = ["task", "model", "rule", "threshold"], {}
    for name in ("losses", "examples"):
        table = read_table(profile, DECODED, name)
        if not table[keys].equals(settings[keys]):
            raise CompanionError(f"{name}.csv does not belong to settings.csv in {stored_root(profile) / DECODED}: run python -m mee_utils decode again.")
        arrays[name] = [row[~np.isnan(row)] for row in table.drop(columns=keys).to_numpy(dtype=np.float64)]
    return Decodings(settings, arrays["losses"], arrays["examples"], parameters["eps"], tuple(parameters["deltas"]), tuple(parameters["risk_deltas"]))


def claims_of(profile: str) -> pd.DataFrame:
    """The claims of all notebooks of a profile that are stored, one row a claim and task, in the order of the notebooks; `notebook` in front."""
    found = [(path.parent.name, pd.read_csv(path)) for path in sorted(stored_root(profile).glob("[0-9]*/claims.csv"))]
    if not found:
        raise CompanionError(f"No notebook of profile {profile} has stored its claims: run make reproduce PROFILE={profile}.")
    return pd.concat([table.assign(notebook=name)[["notebook", *table]] for name, table in found], ignore_index=True)


def inputs_of(profile: str) -> dict[str, str]:
    """The manifests of a profile's stored results, name -> sha256 over the hashes of their files: what notebook 06 was drawn from."""
    import hashlib
    import json

    found = {}
    for path in sorted(stored_root(profile).glob("*/manifest.json")):
        if path.parent.name != "06_results":
            files = json.loads(path.read_text(encoding="utf-8"))["files"]
            found[f"results {path.parent.name}"] = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    return found
