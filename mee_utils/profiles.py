"""Profiles: what to run, as data. One code path serves all of them (floor 5; nothing here knows torch).

A profile is a YAML file in `notebooks/profiles`. Unknown keys, wrong types and impossible values are errors in one line that
names the nearest valid key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from .errors import CompanionError, nearest

PACKAGE = Path(__file__).parent
FOLDER = PACKAGE.parent / "notebooks" / "profiles"
Positive = Annotated[int, Field(ge=1)]


class Strict(BaseModel):
    """A part of a profile: no key that it does not know, no type that it does not have."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Corpus(Strict):
    """Where one task's examples come from; `{data}` stands for the DATA folder of the command line.

    Of a hub data set, `config` names a configuration; `folder`, in its place, a folder of the repository with one file or folder a split (the
    branch refs/convert/parquet, on which the hub keeps a copy of data sets that have only a loading script, has one a configuration).
    """

    source: str
    train: Positive | None = None
    held_out: Positive | None = None
    held_out_split: Literal["validation", "test"] = "validation"
    languages: Annotated[list[str], Field(min_length=2, max_length=2)] = ["en", "fr"]
    revision: str | None = None
    config: str | None = None
    folder: str | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Corpus:
        if self.config and self.folder:
            raise ValueError("config and folder contradict each other; leave one of them out")
        return self


class ShapeSettings(Strict):
    """Sizes of the mini model; see `mee_utils.models.mini.Shape`."""

    vocab_size: Positive
    d_model: Positive
    d_kv: Positive
    num_heads: Positive
    d_ff: Positive
    num_layers: Positive
    num_decoder_layers: Positive
    dropout_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0


class Stage(Strict):
    """One stage of pre-training: span corruption with a share of the tasks (a mixture, as T5's own pre-training)."""

    passes: Annotated[float, Field(gt=0)]
    learning_rate: Annotated[float, Field(gt=0)]
    task_share: Annotated[float, Field(ge=0, le=1)]


class BaseSettings(Strict):
    """Pre-training, stage by stage; stage k draws with seed + k."""

    stages: Annotated[list[Stage], Field(min_length=1)]


class BackboneSettings(Strict):
    """One training objective; see `mee_utils.models.objectives.Objective`."""

    objective: Literal["vanilla", "calm", "free", "late_weighted"]
    passes: Annotated[float, Field(gt=0)]
    learning_rate: Annotated[float, Field(gt=0)]
    exit_layer: Positive | None = None
    kd_map: Literal["last", "uniform", "dynamic"] = "dynamic"
    intermediate: Literal["all", "one"] = "all"


class Checkpoint(Strict):
    """A ready model in place of one to train: a hub id, or a folder written by `save_pretrained` (relative to the repository)."""

    checkpoint: Annotated[str, Field(min_length=1)]
    revision: str | None = None

    @property
    def source(self) -> str:
        """The folder, where there is one of this name; else the hub id."""
        inside = PACKAGE.parent / self.checkpoint
        return str(inside) if inside.is_dir() else str(Path(self.checkpoint).expanduser())


READY, MADE = "[ready]", "[made]"  # which of two kinds of settings an error speaks of; never shown


def _kind(value) -> str:
    return READY if isinstance(value, Checkpoint) or (isinstance(value, dict) and "checkpoint" in value) else MADE


def _either(made: type[Strict]):
    """Settings of a model to make, or a ready checkpoint: whichever keys are there."""
    return Annotated[Annotated[made, Tag(MADE)] | Annotated[Checkpoint, Tag(READY)], Discriminator(_kind)]


class Training(Strict):
    """How the models of a profile are made: from scratch (`shape` and stages of `base`), or from a ready checkpoint."""

    shape: ShapeSettings | None = None
    seed: int
    max_source: Positive
    max_target: Positive
    tokens_per_batch: Positive = 2500
    base: _either(BaseSettings)
    backbones: dict[str, _either(BackboneSettings)]

    @model_validator(mode="after")
    def _one_origin(self) -> Training:
        if self.shape is None and isinstance(self.base, BaseSettings):
            raise ValueError("a base that is made from scratch needs a shape; add it, or name a checkpoint as base")
        if self.shape is not None and isinstance(self.base, Checkpoint):
            raise ValueError("shape contradicts the checkpoint of base, which has sizes of its own; leave one of them out")
        return self

    def recipe(self, name: str) -> BaseSettings | BackboneSettings | Checkpoint:
        """The settings of `base` or of a backbone."""
        return self.base if name == "base" else self.backbones[name]


class ClassifierSettings(Strict):
    """How the exit classifiers of a profile are trained; `tokens` is how many of each task, `epochs` as in MEE."""

    tokens: Positive = 2000
    seeds: Annotated[int, Field(ge=1, le=10)] = 5
    epochs: Positive = 5
    batch_size: Positive = 128
    learning_rate: Annotated[float, Field(gt=0)] = 0.002


class ResultSettings(Strict):
    """What `python -m mee_utils decode` decodes for notebook 06: every rule on the main model, fewer on the others."""

    examples: Positive = 150
    other_examples: Positive = 50
    training_examples: Positive = 60  # thresholds to try are read off these
    fault_examples: Positive = 30
    max_new_tokens: Positive = 48
    batch_size: Positive = 100
    min_layer: Positive = 4
    top_k: Positive = 64  # as in notebook 03
    first_k: Positive = 256
    least_k: Positive = 16
    fresh_pools: Positive = 20  # on made data: independent calibration sets, and examples in each
    fresh_size: Positive = 40
    deltas: Annotated[list[float], Field(min_length=1)] = [0.05, 0.1, 0.25]
    risk_deltas: Annotated[list[float], Field(min_length=1)] = [0.02, 0.05, 0.1]
    eps: Annotated[float, Field(gt=0, lt=1)] = 0.05


class Profile(Strict):
    """A whole profile. `notebooks` gives parameters that differ from a notebook's own defaults."""

    name: str
    device: str
    dtype: Literal["float64", "float32", "bfloat16"]
    corpora: dict[
        Literal["question_answering", "summarization", "translation", "long_document_summarization"], Corpus
    ]
    training: Training
    classifiers: ClassifierSettings = ClassifierSettings()
    results: ResultSettings = ResultSettings()
    notebooks: dict[str, dict[str, int | float | str | bool]] = {}

    def source(self, task: str, data: str | None) -> str:
        """The source of a task's corpus, with DATA filled in."""
        source = self.corpora[task].source
        if "{data}" not in source:
            return source
        if not data:
            raise CompanionError(f'Profile "{self.name}" reads local corpora: give their folder, as in DATA=path/to/corpora.')
        folder = Path(data).expanduser()
        if not folder.is_dir():
            raise CompanionError(f"DATA={data} is no folder: give the folder that holds the corpora.")
        found = Path(source.replace("{data}", str(folder)))
        if not found.exists() and folder.name == found.name:
            return str(folder)  # DATA is the corpus itself
        if not found.exists():
            raise CompanionError(f"{found} does not exist: DATA must hold a folder {found.name} (profile {self.name}, {task}).")
        return str(found)


def profile_names() -> list[str]:
    """The profiles that are there."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def check_profile_name(name: str) -> str:
    """Refuses a profile that is not there."""
    if name not in profile_names():
        raise CompanionError(f'There is no profile "{name}": {nearest(name, profile_names())}')
    return name


def load_profile(name: str | Path) -> Profile:
    """Reads a profile by name, or from a YAML file."""
    path = Path(name) if str(name).endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if not path.exists():
        raise CompanionError(f'There is no profile "{name}": {nearest(str(name), profile_names())}')
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise CompanionError(f"{path} is not YAML: {' '.join(str(error).split())[:160]}") from error
    try:
        profile = Profile.model_validate(content)
    except ValidationError as error:
        raise CompanionError(f"{path}: {explain(error, content, Profile)}") from error
    if path.parent == FOLDER and profile.name != path.stem:
        raise CompanionError(f'{path} calls itself "{profile.name}": its name must be "{path.stem}", after the file.')
    return profile


def explain(error: ValidationError, content, model: type[BaseModel]) -> str:
    """The first thing wrong with a profile, in one line, with the nearest valid key where a key is unknown."""
    found = error.errors()
    first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    where = ".".join(str(part) for part in first["loc"] if part not in ("[key]", READY, MADE))
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        if READY in first["loc"] and key in {*BaseSettings.model_fields, *BackboneSettings.model_fields}:
            return f'"{where}" contradicts "checkpoint" beside it: a ready checkpoint is not trained; leave one of them out.'
        return f'unknown key "{where}": {nearest(key, _keys(model, first["loc"][:-1]))}'
    if first["type"] == "missing":
        ready = ' (or name a "checkpoint" in place of all of them)' if MADE in first["loc"] else ""
        return f'the key "{where}" is missing: add it{ready}.'
    if first["type"] == "value_error":
        return f"{where}: {first['ctx']['error']}."
    return f'"{where}" is {first["input"]!r}: {first["msg"].lower()}.'


def _keys(model: type[BaseModel], path: tuple) -> list[str]:
    """The valid keys at a place in the profile."""
    if READY in path or MADE in path:
        made = BaseSettings if "base" in path else BackboneSettings
        if path[-1] in (READY, MADE):
            return [*Checkpoint.model_fields, *(made.model_fields if path[-1] == MADE else [])]
        model, path = made, path[path.index(MADE) + 1 :]
    for part in path:
        if isinstance(model, type) and issubclass(model, BaseModel) and part in model.model_fields:
            annotation = model.model_fields[part].annotation
            arguments = [a for a in getattr(annotation, "__args__", ()) if isinstance(a, type) and issubclass(a, BaseModel)]
            model = arguments[0] if arguments else annotation
    return list(model.model_fields)
