"""Results that are stored already, and what `make bench` measured, read back. No model is run."""

import hashlib
import json
import operator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ..common.errors import CompanionError
from ..common.files import ROOT
from .catalogue import SEVERAL_LAYERS
from .notebooks import SOURCES, notebook_names
from .profiles import check_profile_name
from .results import output_root

SWEEP, RETRAINED = "sweep", "retrained"  # folders of tables, beside those of the notebooks
BENCH = ROOT / "figures" / "bench"
KEYS, RANGE = ["task", "model", "rule", "threshold"], ["lowest", "highest"]
SPEEDS = ["batch", "seconds", "samples_per_second", "tokens_per_second", "speed", *RANGE]
PARTS = {  # part of the benchmark -> file, what identifies a row, what was measured
    "reductions": ("reductions", ["task", "model", "reduction"], SPEEDS),
    "results": ("results", KEYS, ["batch", "speed", *RANGE, "samples_speed"]),
    "lossless": ("lossless", ["task", "model"], ["batch", "rule", "max_draft", "expected", "speed", *RANGE]),
    "one decision": ("decoder", ["shape", "what"], ["median", *RANGE]),
}


def stored_root(profile: str) -> Path:
    """The folder of a profile's results: where this run writes if they are there, else beside the package."""
    check_profile_name(profile)
    places = [output_root() / profile, ROOT / "figures" / profile]
    return next((place for place in places if (place / SWEEP / "manifest.json").exists()), places[0])


def read_table(profile: str, notebook: str, name: str) -> pd.DataFrame:
    """A stored table of a notebook, or of the "sweep"; `name` without ending. An error if it is missing."""
    path = stored_root(profile) / notebook / f"{name}.csv"
    if not path.exists():
        part = SWEEP if notebook == SWEEP else f"notebook {notebook}"
        command = f"python -m mee_utils {part} --profile {profile}"
        raise CompanionError(f"{path} is missing: run make reproduce PROFILE={profile} (or only {command}).")
    return pd.read_csv(path)


def read_retrained(profile: str, kind: str) -> pd.DataFrame:
    """The "seeds" or "ablations" of a profile (`make retrain`); no rows where it has none."""
    places = [root / profile / RETRAINED / f"{kind}.csv" for root in (output_root(), ROOT / "figures")]
    return next((pd.read_csv(path) for path in places if path.exists()), pd.DataFrame())


def read_manifest(profile: str, notebook: str) -> dict:
    """The manifest of the stored tables of a notebook, or of the "sweep"."""
    return json.loads((stored_root(profile) / notebook / "manifest.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class SweepResults:
    """Every setting that was decoded for a profile.

    `settings` has one row a setting: `task`, `model`, `rule`, `threshold` (NaN where the rule has none),
    `score`, `retained` with `low` and `high`, `consistency_loss` and `risk_loss` (means), `mean_exit_layer`,
    `flops_share`, `readout_share`, `same_output`, `length_share`.
    """

    settings: pd.DataFrame
    losses: list[np.ndarray]  # consistency losses, `[example]` for each row of `settings`
    examples: list[np.ndarray]  # scores of single examples in percent, likewise
    eps: float  # the profile's probability of failing, and its largest mean losses
    deltas: tuple[float, ...]
    risk_deltas: tuple[float, ...]

    def rows(self, **wanted) -> pd.DataFrame:
        """The settings with these values."""
        chosen = [self.settings[column] == value for column, value in wanted.items()]
        return self.settings[np.all(chosen, axis=0)] if chosen else self.settings

    def array(self, rows: pd.DataFrame, kind: str = "consistency") -> np.ndarray:
        """Losses `[setting, example]` ("consistency" or "risk") of rows of `settings`, one task and model."""
        if kind == "consistency":
            return np.stack([self.losses[place] for place in rows.index])
        first = rows.iloc[0]
        full = self.examples[self.rows(task=first.task, model=first.model, rule="full_depth").index[0]]
        return np.stack([np.clip(full - self.examples[place], 0, None) / 100 for place in rows.index])


def read_sweep(profile: str) -> SweepResults:
    """Reads what `python -m mee_utils sweep` stored for a profile."""
    settings = read_table(profile, SWEEP, "settings")
    arrays = []
    for name in ("losses", "examples"):
        table = read_table(profile, SWEEP, name)
        if not table[KEYS].equals(settings[KEYS]):
            raise CompanionError(f"{name}.csv and settings.csv in {profile}/{SWEEP} differ: sweep again.")
        arrays.append([row[~np.isnan(row)] for row in table.drop(columns=KEYS).to_numpy(dtype=np.float64)])
    given = read_manifest(profile, SWEEP)["parameters"]
    return SweepResults(settings, *arrays, given["eps"], tuple(given["deltas"]), tuple(given["risk_deltas"]))


def claims_of(profile: str) -> pd.DataFrame:
    """The claims of all notebooks before 08, a row a claim and task, in their order; `notebook` in front."""
    stores_claims = lambda name: '"claims")' in (SOURCES / f"{name}.py").read_text(encoding="utf-8")
    names = [name for name in notebook_names() if not name.startswith("08") and stores_claims(name)]
    tables = [read_table(profile, name, "claims") for name in names]
    for name, table in zip(names, tables, strict=True):
        table.insert(0, "notebook", name)
    return pd.concat(tables, ignore_index=True)


def inputs_of(profile: str) -> dict[str, str]:
    """The stored results that 08 is drawn from: name -> sha256 over the hashes of their files."""
    names = sorted(path.parent.name for path in stored_root(profile).glob("*/manifest.json"))
    files = {name: json.dumps(read_manifest(profile, name)["files"], sort_keys=True) for name in names}
    digest = lambda text: hashlib.sha256(text.encode()).hexdigest()
    return {f"results {name}": digest(files[name]) for name in names if name != "08_results"}


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


def fastest_by_shape(folder: Path = BENCH) -> pd.DataFrame:
    """What exits cost in decoders of other sizes: the fastest `kind` for each profile, task, shape and batch.

    A kind is "verified", or unverified exits whose rule sees several layers, or one. No rows: not timed.
    """
    path, by = folder / "shapes.csv", ["profile", "task", "shape", "batch", "kind"]
    if not path.exists():
        return pd.DataFrame(columns=[*by, "speed"])
    own = pd.read_csv(path).dropna(subset="task")
    several = own.rule.isin(SEVERAL_LAYERS).map({True: "several layers", False: "one layer"})
    own = own.assign(kind=("unverified, " + several).where(own.part == "lossy shapes", "verified"))
    chosen = own.groupby(by, sort=False).speed.idxmax()
    return own.loc[chosen.sort_values()].assign(low=own.lowest, high=own.highest).reset_index(drop=True)


def missed(table: pd.DataFrame) -> pd.DataFrame:
    """The lines whose median misses the target that stands beside it."""
    signs = {"<=": operator.le, ">=": operator.ge}
    met = [not t or signs[t[:2]](m, float(t[2:])) for m, t in zip(table["median"], table.target)]
    return table[~np.array(met, dtype=bool)]
