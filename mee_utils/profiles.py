"""Profiles: what to run, as data. One code path serves all of them (floor 5; nothing here knows torch).

A profile is a YAML file in `notebooks/profiles`. Unknown keys, wrong types and impossible values are errors in one line that
names the nearest valid key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import CompanionError, nearest

PACKAGE = Path(__file__).parent
FOLDER = PACKAGE.parent / "notebooks" / "profiles"
Positive = Annotated[int, Field(ge=1)]


class Strict(BaseModel):
    """A part of a profile: no key that it does not know, no type that it does not have."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Corpus(Strict):
    """Where one task's examples come from; `{data}` stands for the DATA folder of the command line."""

    source: str
    train: Positive | None = None
    held_out: Positive | None = None
    held_out_split: Literal["validation", "test"] = "validation"
    languages: Annotated[list[str], Field(min_length=2, max_length=2)] = ["en", "fr"]
    revision: str | None = None
    config: str | None = None


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


class Training(Strict):
    """How the mini models of a profile are made."""

    shape: ShapeSettings
    seed: int
    max_source: Positive
    max_target: Positive
    tokens_per_batch: Positive = 2500
    base: BaseSettings
    backbones: dict[str, BackboneSettings]


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
    fault_examples: Positive = 40
    max_new_tokens: Positive = 48
    batch_size: Positive = 100
    min_layer: Positive = 4
    top_k: Positive = 64  # as in notebook 03
    first_k: Positive = 256
    least_k: Positive = 16
    fresh_pools: Positive = 20  # on made data: independent calibration sets, and examples in each
    fresh_size: Positive = 50
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
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "[key]")
    if first["type"] == "extra_forbidden":
        return f'unknown key "{where}": {nearest(str(first["loc"][-1]), _keys(model, first["loc"][:-1]))}'
    if first["type"] == "missing":
        return f'the key "{where}" is missing: add it.'
    return f'"{where}" is {first["input"]!r}: {first["msg"].lower()}.'


def _keys(model: type[BaseModel], path: tuple) -> list[str]:
    """The valid keys at a place in the profile."""
    for part in path:
        if isinstance(model, type) and issubclass(model, BaseModel) and part in model.model_fields:
            annotation = model.model_fields[part].annotation
            arguments = [a for a in getattr(annotation, "__args__", ()) if isinstance(a, type) and issubclass(a, BaseModel)]
            model = arguments[0] if arguments else annotation
    return list(model.model_fields)
