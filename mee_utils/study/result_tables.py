"""Results that are stored already, and what `make bench` measured, read back. No model is run."""

import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ..analysis.statistics import Interval, interval
from ..common.errors import MeeError
from ..common.files import ROOT
from .catalogue import MAIN_MODEL, RULES, SEVERAL_LAYERS
from .digests import digest_of, file_digest
from .notebook_files import SOURCES, notebook_names
from .profiles import profile_name
from .results import READ, output_root

RETRAINED, MEASURED = "retrained", "measured"  # folders of tables, beside those of the notebooks
BENCH, MACHINES = ROOT / "figures" / "bench", "machines.json"
KEPT = ("keeps it", "does not keep it", "undecided")  # verdicts on a share of the score
VALUES = ["loss", "score", "flops", "tokens", "layers"]  # of an example
KEYS, RANGE = ["task", "model", "rule", "threshold"], ["lowest", "highest"]
SPEEDS = ["batch", "seconds", "samples_per_second", "tokens_per_second", "speed", *RANGE]
OF_RULES = ["batch", "speed", *RANGE, "ranked", "samples_speed"]
PARTS = {  # part of the benchmark -> file, what identifies a row, what was measured
    "reductions": ("reductions", ["task", "model", "reduction"], SPEEDS),
    "kept": ("kept", KEYS, OF_RULES),
    "results": ("results", KEYS, OF_RULES),
    "lossless": ("lossless", ["task", "model"], ["batch", "rule", "max_draft", "expected", "speed", *RANGE]),
    "drafts": ("drafts", KEYS, ["batch", "speed", *RANGE]),
    "one decision": ("decoder", ["shape", "what"], ["median", *RANGE]),
}


def _stored(profile: str, notebook: str, file: str, needed: bool = True) -> Path | None:
    """A stored file as its manifest knows it, of this run or else beside the package; None: it is missing."""
    profile = profile_name(profile)
    places = [root / profile / notebook / file for root in (output_root(), ROOT / "figures")]
    path = next((p for p in places if p.exists() or p.with_name("manifest.json").exists()), places[0])
    target = {MEASURED: "measure", RETRAINED: "clean retrain"}.get(notebook, "reproduce")
    command, known = f"run make {target} PROFILE={profile}", path.with_name("manifest.json")
    if needed and not path.exists():
        raise MeeError(f"{path} is missing: {command}.")
    made = json.loads(known.read_text(encoding="utf-8"))["files"] if known.exists() else {}
    READ[f"results {notebook}"] = digest_of(made) if made else ""
    if file in made and file_digest(path) != made[file]:
        raise MeeError(f"{path} was changed after it was made: restore it, or {command} FORCE=1.")
    return path if path.exists() else None


def read_table(profile: str, notebook: str, name: str) -> pd.DataFrame:
    """A stored table; `name` without ending."""
    return pd.read_csv(_stored(profile, notebook, f"{name}.csv"))


def read_retrained(profile: str, kind: str) -> pd.DataFrame:
    """The "seeds" or "ablations" of a profile (`make retrain`); no rows where it has none."""
    path = _stored(profile, RETRAINED, f"{kind}.csv", needed=False)
    return pd.read_csv(path) if path else pd.DataFrame()


def read_measurements(profile: str, name: str) -> pd.DataFrame | None:
    """Stored measurements of a profile, a row an example of a setting; `name` as in `measure.Job.name`."""
    path = _stored(profile, MEASURED, f"{name}.parquet", needed=False)
    return pd.read_parquet(path) if path else None


def read_manifest(profile: str, notebook: str) -> dict:
    """The manifest of the stored tables of a notebook, or of the measurements."""
    return json.loads(_stored(profile, notebook, "manifest.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Measured:
    """Every setting that was decoded for a profile (`study.measure`), with all of its examples."""

    settings: pd.DataFrame  # part, task, model, rule, threshold (NaN: it has none), and what is `described`
    examples: list[pd.DataFrame]  # for each row of `settings`: loss, score, flops, tokens, layers
    eps: float  # the profile's probability of failing, and its largest mean losses
    deltas: tuple[float, ...]
    risk_deltas: tuple[float, ...]

    def rows(self, part: str = "test", **wanted) -> pd.DataFrame:
        """The settings of a part with these values."""
        chosen = [self.settings[column] == value for column, value in {"part": part, **wanted}.items()]
        return self.settings[np.all(chosen, axis=0)]

    @property
    def tested(self) -> str:
        """How many test examples a task has, in words."""
        sizes = {len(self.examples[place]) for place in self.rows().index}
        return " to ".join(f"{size:,}" for size in sorted({min(sizes), max(sizes)}))

    def full(self, part: str, task: str, model: str) -> pd.DataFrame:
        """The examples of a model at full depth."""
        return self.examples[self.rows(part, task=task, model=model, rule="full_depth").index[0]]

    def losses(self, rows: pd.DataFrame, kind: str = "consistency") -> np.ndarray:
        """Losses `[setting, example]` ("consistency" or "risk") of rows of `settings`, one task and model."""
        found, first = [self.examples[place] for place in rows.index], rows.iloc[0]
        if kind == "consistency":
            return np.stack([examples.loss for examples in found])
        full = self.full(first.part, first.task, first.model).score
        return np.stack([(full - examples.score).clip(0) / 100 for examples in found])


def described(settings: Sequence[pd.DataFrame], full: pd.DataFrame) -> list[dict[str, float]]:
    """Settings beside full depth on the same examples, with intervals (`statistics.Interval.columns`).

    `retained` is the share of the score, a mean over outputs; `length_share` that of the tokens emitted.
    """
    values = np.stack([examples[VALUES].to_numpy(np.float64) for examples in settings], axis=1)
    whole = full[VALUES].to_numpy(np.float64)  # [example, value]; values: [example, setting, value]
    risk = np.clip(whole[:, None, 1] - values[..., 1], 0, None) / 100

    def shares(weights: np.ndarray) -> np.ndarray:
        loss, score, flops, tokens, layers = np.moveaxis(np.tensordot(weights, values, 1), -1, 0)
        _, score_of_full, flops_of_full, tokens_of_full, _ = (weights @ whole).T[..., None]
        drawn = weights.sum(axis=1, keepdims=True)
        spent = (flops / tokens) / (flops_of_full / tokens_of_full)
        return np.stack([score / score_of_full, loss / drawn, weights @ risk / drawn, spent, layers / tokens])

    found = interval(lambda weights: np.moveaxis(shares(weights), 0, -1), len(whole))
    names, rows = ["retained", "consistency_loss", "risk_loss", "flops_share", "mean_exit_layer"], []
    prefixes = ["", "consistency_", "risk_", "flops_", "layer_"]
    for place, (_, score, _, tokens, _) in enumerate(values.sum(axis=0)):
        row = {"score": score / len(whole)}
        for number, labels in enumerate(zip(names, prefixes, strict=True)):
            row |= Interval(*(part[..., place, number][()] for part in found)).columns(*labels)
        rows.append(row | {"length_share": tokens / whole[:, 3].sum()})
    return rows


def read_measured(profile: str, only: str | None = None) -> Measured:
    """Reads what `make measure` stored for a profile, of all models or of one."""
    given, rows, examples = read_manifest(profile, MEASURED), [], []
    for name in [Path(file).stem for file in given["files"] if "-" in file]:
        model, task = name.split("-")
        more = model == "survey"
        model = MAIN_MODEL if more else model
        if only not in (None, model):
            continue
        table = pd.read_parquet(_stored(profile, MEASURED, f"{name}.parquet"))
        for part, settings in table.groupby("part", sort=False):
            groups = list(settings.groupby(["rule", "threshold"], sort=False, dropna=False))
            found = [rows[VALUES].reset_index(drop=True) for _, rows in groups]
            values = described(found, found[0])  # first full depth, which the model's own table has already
            for (key, _), kept, about in list(zip(groups, found, values, strict=True))[more:]:
                labels = dict(zip(["part", "task", "model", *KEYS[2:]], (part, task, model, *key)))
                rows.append(labels | about)
                examples.append(kept)
    eps, *deltas = (given["parameters"][name] for name in ("eps", "deltas", "risk_deltas"))
    return Measured(pd.DataFrame(rows), examples, eps, *map(tuple, deltas))


def claims_of(profile: str) -> pd.DataFrame:
    """The claims of all notebooks before 08, a row a claim and task, in their order; `notebook` in front."""
    stores_claims = lambda name: '"claims")' in (SOURCES / f"{name}.py").read_text(encoding="utf-8")
    names = [name for name in notebook_names() if not name.startswith("08") and stores_claims(name)]
    tables = {name: read_table(profile, name, "claims") for name in names}
    return pd.concat(tables, names=["notebook"]).reset_index("notebook").reset_index(drop=True)


def inputs_of(profile: str) -> dict[str, str]:
    """The stored results that 08 is drawn from: name -> sha256 over the hashes of their files."""
    profile = profile_name(profile)
    roots = (ROOT / "figures" / profile, output_root() / profile)  # where both have results the second counts
    paths = [path for root in roots for path in root.glob("*/manifest.json")]
    made = {path.parent.name: json.loads(path.read_text(encoding="utf-8"))["files"] for path in paths}
    return {f"results {name}": digest_of(files) for name, files in made.items() if name != "08_results"}


def _timed(path: Path, columns: list[str]) -> pd.DataFrame:
    """A table of the benchmark; without rows, but with these columns, where nothing was timed."""
    READ[f"results bench/{path.name}"] = file_digest(path)
    return pd.read_csv(path) if path.exists() else pd.DataFrame(columns=columns)


def read_timings(
    part: str, wanted: pd.DataFrame, profile: str | None = None, complete: bool = False, folder: Path = BENCH
) -> pd.DataFrame:
    """The settings in `wanted` that were timed (thresholds: to eight decimals); one row a batch size.

    `speed` is tokens a second, full depth being 1; `samples_speed` samples a second; `median` is in layers.
    "one decision" is timed on random weights and belongs to no profile. All are of the one machine that timed
    most of them (`attrs["processor"]`); with `complete`, there are none unless it timed every setting.
    """
    file, keys, values = PARTS[part]
    stored = _timed(folder / f"{file}.csv", ["processor", "profile", "group", *keys, *values])
    stored = stored[stored.profile == profile_name(profile)] if profile else stored[stored.group == part]
    if "threshold" in keys:
        rounded = lambda table: table.astype({"threshold": float}).round({"threshold": 8})  # NaN: it has none
        wanted, stored = rounded(wanted), rounded(stored)
    found = one_machine(wanted.merge(stored[["processor", *keys, *values]], on=keys))
    found.attrs["processor"] = "".join(found.pop("processor").unique())
    return found.iloc[:0] if complete and len(found[keys].drop_duplicates()) < len(wanted) else found


def one_machine(times: pd.DataFrame) -> pd.DataFrame:
    """The lines of the machine that timed most of them; of equals the one that comes first."""
    counts = times.processor.value_counts(sort=False)
    return times[times.processor == counts.idxmax()] if len(times) else times


def best_of_families(rows: pd.DataFrame, by: Sequence[str], number: str, ascending=True) -> pd.DataFrame:
    """Of each family of rules the first row by a number, for every value of the columns `by`."""
    rows = rows.assign(family=[RULES[rule].family for rule in rows.rule])
    return rows.sort_values(number, ascending=ascending, kind="stable").drop_duplicates([*by, "family"])


def fastest_by_shape(folder: Path = BENCH) -> pd.DataFrame:
    """What exits cost in decoders of other sizes: the fastest `kind` for each profile, task, shape and batch.

    A kind is "verified", or unverified exits whose rule sees several layers, or one. No rows: not timed.
    """
    by = ["profile", "task", "shape", "batch", "kind"]
    own = _timed(folder / "shapes.csv", ["processor", "part", "rule", "speed", "lowest", "highest", *by])
    own = one_machine(own.dropna(subset="task"))
    several = own.rule.isin(SEVERAL_LAYERS).map({True: "several layers", False: "one layer"})
    own = own.assign(kind=("unverified, " + several).where(own.part == "lossy shapes", "verified"))
    best = own.sort_values("speed", ascending=False, kind="stable").drop_duplicates(by).sort_values(by)
    return best.assign(low=best.lowest, high=best.highest).reset_index(drop=True)


def missed(table: pd.DataFrame) -> pd.DataFrame:
    """The lines whose median misses the target that stands beside it."""
    signs = {"<=": operator.le, ">=": operator.ge}
    met = [not t or signs[t[:2]](m, float(t[2:])) for m, t in zip(table["median"], table.target)]
    return table[~np.array(met, dtype=bool)]
