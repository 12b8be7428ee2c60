"""Results that are stored already, and what `make bench` measured, read back. No model is run."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from ..analysis.beside_full import QUANTITIES, VALUES, beside_full, result_rows
from ..analysis.statistics import DRAWS, Estimate
from ..common.errors import MeeError
from ..common.files import ROOT
from .catalogue import MAIN_MODEL
from .profiles import profile_name
from .results import READ, manifest_of, output_root
from .running.digests import digest_of, file_digest
from .running.notebook_files import notebook_names
from .statements import NOTEBOOKS

RETRAINED = "retrained"  # folders of tables, beside those of the notebooks
MEASURED = "measured"
ORACLE = "oracle"  # measurements of what limits exits
ORACLE_CHARGED = "copy, charged"  # its `propagation` where states are copied and decisions not free
FULL_DEPTH = "full_depth"  # of the retrained models: a table of examples
BENCH = ROOT / "figures" / "bench"
GPU = "gpu"  # the folder in it with what was timed on GPUs: tables of the same names
MACHINES = "machines.json"
KEEPS_IT = "keeps it"  # verdicts on a share of the score
LOSES_IT = "does not keep it"
UNDECIDED = "undecided"
EXITS = "best exit rules"  # their kind in 08's table `rivals`
KEYS = ["task", "model", "rule", "threshold"]
AGAIN = ["again", "again_low", "again_high"]  # full depth against itself: what the clock can resolve
SPEED = ["batch", "speed", "low", "high", *AGAIN]
SAMPLES = ["samples_speed", "samples_low", "samples_high", "samples_per_second", "tokens_per_second"]
OF_DRAFTS = ["drafts", "rule", "threshold", "max_draft", "expected", "planning_seconds"]
OF_PEERS = ["decoder", "way", "exit_layer", "acceptance", "same_outputs", "flops_share", "score", "kept"]
OF_OUTPUTS = [
    *("metric", "score", "score_low", "score_high", "corpus_score"),
    *("retained", "retained_low", "retained_high", "mean_exit_layer", "flops_share", "length_share"),
]
PARTS = {  # part of the benchmark -> file, what identifies a row, what was measured
    "reductions": ("reductions", ["task", "model", "reduction"], [*SPEED, *SAMPLES]),
    "exits": ("exits", ["kind", *KEYS], [*SPEED, *SAMPLES]),
    "verified": ("exits", ["kind", "task", "model"], [*OF_DRAFTS, *SPEED, *SAMPLES]),
    "published": ("published", [*KEYS, "min_layer", "decoder"], [*SPEED, *SAMPLES, *OF_OUTPUTS]),
    "drafts": ("drafts", KEYS, SPEED),
    "rivals": ("rivals", ["task", "model", "decoder_layers"], [*SPEED, *SAMPLES]),
    "causal": ("causal", ["model", "dtype"], [*OF_PEERS, *SPEED[1:], "prompts"]),
    "one decision": ("decoder", ["shape", "what"], ["median", "lowest", "highest"]),
}


def _stored(profile: str, notebook: str, file: str, needed: bool = True) -> Path | None:
    """A stored file as its manifest knows it, of this run or else beside the package; None: it is missing."""
    profile = profile_name(profile)
    paths = [root / profile / notebook / file for root in (output_root(), ROOT / "figures")]
    path = next((p for p in paths if p.exists() or p.with_name("manifest.json").exists()), paths[0])
    target = {MEASURED: "measure", RETRAINED: "clean retrain"}.get(notebook, "reproduce")
    command = f"run make {target} PROFILE={profile}"
    if needed and not path.exists():
        raise MeeError(f"{path} is missing: {command}.")
    manifest = path.with_name("manifest.json")
    digests = manifest_of(manifest)["files"] if manifest.exists() else {}
    READ[f"results {notebook}"] = digest_of(digests) if digests else ""
    if file in digests and file_digest(path) != digests[file]:
        raise MeeError(f"{path} was changed after it was made: restore it, or {command} FORCE=1.")
    return path if path.exists() else None


def read_table(profile: str, notebook: str, name: str) -> pd.DataFrame:
    """A stored table; `name` without ending."""
    return pd.read_csv(_stored(profile, notebook, f"{name}.csv"))


def read_retrained(profile: str, kind: str) -> pd.DataFrame:
    """The "seeds", "rivals" or "ablations" of a profile (`make retrain`); no rows where it has none."""
    path = _stored(profile, RETRAINED, f"{kind}.csv", needed=False)
    return pd.read_csv(path) if path else pd.DataFrame()


def read_full_depth(profile: str) -> pd.DataFrame:
    """Every example of the retrained models at full depth; no rows where a profile has none.

    The columns are `kind` ("seeds" or "rivals"), `task`, `model`, `seed`, `example`, `score`, `flops` and
    `tokens`. Seeds are scored on the held-out examples, rivals on those that exit rules are tested on.
    """
    path = _stored(profile, RETRAINED, f"{FULL_DEPTH}.parquet", needed=False)
    return pd.read_parquet(path) if path else pd.DataFrame(columns=["kind", "task", "model", "seed"])


def read_measurements(profile: str, name: str) -> pd.DataFrame | None:
    """Stored measurements of a profile, one row per example of a setting; `name` as in `jobs.Job.name`.

    None: the profile has no such measurement, as one of finite corpora has no fresh examples.

    Raises:
        MeeError: nothing was measured for this profile.
    """
    _stored(profile, MEASURED, "manifest.json")
    return measured_before(profile, name)


def measured_before(profile: str, name: str) -> pd.DataFrame | None:
    """The same as `read_measurements`; None also where nothing was measured yet."""
    path = _stored(profile, MEASURED, f"{name}.parquet", needed=False)
    return pd.read_parquet(path) if path else None


def read_manifest(profile: str, notebook: str) -> dict:
    """The manifest of the stored tables of a notebook, or of the measurements."""
    return manifest_of(_stored(profile, notebook, "manifest.json"))


@dataclass(frozen=True)
class Measured:
    """Every setting that was decoded for a profile (`companion.measure`), with all of its examples.

    Bootstraps of some thousand settings take long: a setting has its intervals computed when `rows` first
    returns it, and its draws when they are first looked at.
    """

    settings: pd.DataFrame  # part, task, model, rule and threshold (NaN: it has none)
    examples: list[pd.DataFrame]  # for each row of `settings`: loss, score, flops, tokens, layers
    eps: float  # the profile's probability of failing, and its largest mean losses
    deltas: tuple[float, ...]
    risk_deltas: tuple[float, ...]
    _rows: dict[int, dict] = field(default_factory=dict, repr=False)  # what `rows` adds to settings, by index

    def select(self, part: str = "test", **wanted) -> pd.DataFrame:
        """The rows of `settings` of a part with these values."""
        chosen = [self.settings[column] == value for column, value in {"part": part, **wanted}.items()]
        return self.settings[np.all(chosen, axis=0)]

    def rows(self, part: str = "test", **wanted) -> pd.DataFrame:
        """`select`, with intervals."""
        return self.with_intervals(self.select(part, **wanted))

    def with_intervals(self, settings: pd.DataFrame) -> pd.DataFrame:
        """Rows of `settings` with their `result_rows`."""
        missing = settings[~settings.index.isin(self._rows)]
        for _, block in missing.groupby(["part", "task", "model"], sort=False):
            rows = result_rows([self.examples[index] for index in block.index], self._full_of(block))
            for index, row in zip(block.index, rows, strict=True):
                lazy = {name + DRAWS: _LazyDraws(self, index, name) for name in QUANTITIES}
                self._rows[index] = row | lazy
        added = pd.DataFrame([self._rows[index] for index in settings.index], index=settings.index)
        return pd.concat([settings, added], axis=1)

    def beside_full(self, settings: pd.DataFrame, model: str | None = None) -> dict[str, Estimate]:
        """Estimates `[setting]` of each of `QUANTITIES`, for rows of one part, task and model.

        They are set beside their model's own full depth, or beside that of another `model`.
        """
        examples = [self.examples[index] for index in settings.index]
        return beside_full(examples, self._full_of(settings, model))

    @property
    def tested(self) -> str:
        """How many test examples a task has, in words."""
        sizes = {len(self.examples[index]) for index in self.select().index}
        return " to ".join(f"{size:,}" for size in sorted({min(sizes), max(sizes)}))

    def full(self, part: str, task: str, model: str) -> pd.DataFrame:
        """The examples of a model at full depth."""
        return self.examples[self.select(part, task=task, model=model, rule="full_depth").index[0]]

    def _full_of(self, settings: pd.DataFrame, model: str | None = None) -> pd.DataFrame:
        first = settings.iloc[0]
        return self.full(first.part, first.task, model or first.model)

    def losses(self, rows: pd.DataFrame, kind: str = "consistency") -> np.ndarray:
        """Losses `[setting, example]` ("consistency" or "risk") of rows of `settings`, one task and model."""
        settings = [self.examples[index] for index in rows.index]
        if kind == "consistency":
            return np.stack([examples.loss for examples in settings])
        full_score = self._full_of(rows).score
        return np.stack([(full_score - examples.score).clip(0) / 100 for examples in settings])


@dataclass(frozen=True)
class _LazyDraws:
    """The draws of one quantity of one setting, for a cell of a table."""

    measured: Measured
    index: int
    name: str

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        row = self.measured.settings.loc[[self.index]]
        return self.measured.beside_full(row)[self.name].draws[:, 0]


def read_measured(profile: str, only: str | None = None) -> Measured:
    """Reads what `make measure` stored for a profile, of all models or of one."""
    manifest = read_manifest(profile, MEASURED)
    labels: list[tuple] = []
    examples: list[pd.DataFrame] = []
    for name in [Path(file).stem for file in manifest["files"] if "-" in file]:
        model, task = name.split("-")
        if model == ORACLE:
            continue
        is_survey = model == "survey"
        model = MAIN_MODEL if is_survey else model
        if only not in (None, model):
            continue
        table = pd.read_parquet(_stored(profile, MEASURED, f"{name}.parquet"))
        for part, rule, threshold, rows in settings_of(table):
            if not (is_survey and rule == "full_depth"):  # the model's own table has it already
                labels.append((part, task, model, rule, threshold))
                examples.append(rows)
    settings = pd.DataFrame(labels, columns=["part", *KEYS])
    by_task = read_lengths(profile).groupby(["part", "task"])
    encoder = {key: rows.encoder.to_numpy() for key, rows in by_task}
    for row in settings[settings.rule == "full_depth"].itertuples():
        examples[row.Index] = examples[row.Index].assign(encoder=encoder[row.part, row.task])
    parameters = manifest["parameters"]
    return Measured(
        settings,
        examples,
        eps=parameters["eps"],
        deltas=tuple(parameters["deltas"]),
        risk_deltas=tuple(parameters["risk_deltas"]),
    )


def read_lengths(profile: str) -> pd.DataFrame:
    """The lengths of all inputs that rules were decoded on, and the FLOPs of the encoder (`measure`)."""
    return pd.read_parquet(_stored(profile, MEASURED, "inputs.parquet"))


def read_oracle(profile: str, tasks: Iterable[str]) -> dict[str, pd.DataFrame]:
    """What `measure.OracleDecoder` stored: task -> its table, of the tasks that have one."""
    tables = {task: read_measurements(profile, f"{ORACLE}-{task}") for task in tasks}
    return {task: table for task, table in tables.items() if table is not None}


def settings_of(table: pd.DataFrame) -> Iterator[tuple[str, str, float, pd.DataFrame]]:
    """Part, rule, threshold and examples of every setting of a table of measurements."""
    table.attrs = {}  # pandas would copy them with every slice
    names = ["part", "rule", "threshold"]
    setting = table.groupby(names, sort=False, dropna=False).ngroup()  # of each row
    labels = [table[name].to_numpy() for name in names]
    ends = np.cumsum(np.bincount(setting))
    values = table[VALUES]
    for rows in np.split(np.argsort(setting, kind="stable"), ends[:-1]):
        first = rows[0]
        yield *(label[first] for label in labels), values.take(rows).reset_index(drop=True)


def claims_of(profile: str) -> tuple[pd.DataFrame, list[str]]:
    """The stored claims of all notebooks but 08, and the notebooks that judge claims and have none stored.

    One row per claim and task, in order, with `notebook` in front. Of a claim that has moved from one
    notebook to another, what the later one says.
    """
    tables = {}
    missing = []
    for name in [name for name in NOTEBOOKS if name in notebook_names() and name != "08_results"]:
        if _stored(profile, name, "claims.csv", needed=False):
            tables[name] = read_table(profile, name, "claims")
        else:
            missing.append(name)
    if not tables:
        raise MeeError(f"No notebook has judged claims: run make reproduce PROFILE={profile_name(profile)}.")
    claims = pd.concat(tables, names=["notebook"]).reset_index("notebook")
    return claims.drop_duplicates(["claim", "task"], keep="last", ignore_index=True), missing


def inputs_of(profile: str) -> dict[str, str]:
    """The stored results that 08 is drawn from: name -> sha256 over the hashes of their files."""
    profile = profile_name(profile)
    inputs = {}
    for root in (ROOT / "figures", output_root()):  # where both have results the second counts
        for manifest in (root / profile).glob("*/manifest.json"):
            if manifest.parent.name != "08_results":
                with suppress(MeeError):  # one that cannot be read is as good as none
                    inputs[f"results {manifest.parent.name}"] = digest_of(manifest_of(manifest)["files"])
    return inputs


def _timed(path: Path, columns: list[str]) -> pd.DataFrame:
    """A table of the benchmark; without rows where nothing was timed, and with all these columns.

    A column that an older table does not have is NaN.
    """
    gpu = f"{GPU}/" if path.parent.name == GPU else ""
    READ[f"results bench/{gpu}{path.name}"] = file_digest(path)
    if not path.exists():
        return pd.DataFrame(columns=columns)
    table = pd.read_csv(path)
    return table.reindex(columns=table.columns.union(columns, sort=False))


def read_timings(
    part: str, wanted: pd.DataFrame, profile: str | None = None, complete: bool = False, folder: Path = BENCH
) -> pd.DataFrame:
    """The settings in `wanted` that were timed (thresholds: to eight decimals); one row a batch size.

    `speed` is tokens a second, full depth being 1, with its interval `low` to `high` (those of `wanted` are
    left out); `again` is full depth against itself, `samples_speed` samples a second; `median` is in layers.
    "one decision" is timed on random weights and belongs to no profile. All are of the one machine that timed
    most of them (`attrs["processor"]`); with `complete`, there are none unless it timed every setting. It is
    a CPU unless the part was timed for this profile on GPUs alone.
    """
    file, keys, values = PARTS[part]
    for place in (folder, folder / GPU):
        stored = _timed(place / f"{file}.csv", ["processor", "profile", "group", *keys, *values])
        stored = stored[stored.profile == profile_name(profile)] if profile else stored[stored.group == part]
        if len(stored):
            break
    if "threshold" in keys:
        wanted = _rounded_thresholds(wanted)
        stored = _rounded_thresholds(stored)
    wanted = wanted[[name for name in wanted if name not in values]]
    timings = one_machine(wanted.merge(stored[["processor", *keys, *values]], on=keys))
    timings.attrs["processor"] = "".join(timings.pop("processor").unique())
    is_complete = len(timings[keys].drop_duplicates()) >= len(wanted)
    return timings if is_complete or not complete else timings.iloc[:0]


def _rounded_thresholds(table: pd.DataFrame) -> pd.DataFrame:
    """A table with thresholds to eight decimals; NaN where a rule has none."""
    return table.astype({"threshold": float}).round({"threshold": 8})


def one_machine(times: pd.DataFrame) -> pd.DataFrame:
    """The lines of the machine that timed most of them; ties go to the one that comes first."""
    counts = times.processor.value_counts(sort=False)
    return times[times.processor == counts.idxmax()] if len(times) else times


def outputs_to_repay(timed: pd.DataFrame) -> pd.Series:
    """After how many outputs drafts have saved the time of their planning, for the rows that are faster.

    `timed` has rows of part "verified"; an output is a sample.
    """
    faster = timed[timed.drafts.notna() & (timed.samples_speed > 1)]
    saved = (faster.samples_speed - 1) / faster.samples_per_second  # seconds per output
    return faster.planning_seconds / saved
