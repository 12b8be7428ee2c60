"""Profiles: what to run, as data, in a YAML file of `notebooks/profiles`. Nothing here needs torch.

An unknown key, a wrong type or an impossible value is an error in one line that names the nearest valid key.
"""

from __future__ import annotations

import difflib
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, Literal

import pydantic
import yaml
from pydantic import BaseModel, Discriminator, Field, PositiveFloat, PositiveInt, Tag, model_validator

from ..common.errors import MeeError, check_choice, nearest, one_line
from ..common.files import ROOT
from ..tasks import TASKS
from ..tasks.synthetic.questions import LESSONS

FOLDER = ROOT / "notebooks" / "profiles"
READY, TRAINED = "[ready]", "[trained]"  # mark two kinds of settings inside an error; never shown
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9]\w*$")]  # becomes a folder


class Strict(BaseModel, extra="forbid", frozen=True, strict=True):
    """A part of a profile: no key that it does not know, no type that it does not have."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, given):
        for key in given if isinstance(given, dict) else ():
            check_choice("key", key, cls.model_fields)
        return given


class Corpus(Strict):
    """Where one task's examples come from; `{data}` stands for the DATA folder of the command line.

    Learning curves and the best checkpoint are judged on `choices` examples, which are neither trained on nor
    scored: of the validation split where scores come from the test split, else the first ones for training.
    """

    source: str
    train: PositiveInt | None = None
    held_out: PositiveInt | None = None
    choices: PositiveInt = 100
    held_out_split: Literal["validation", "test"] = "validation"
    languages: Annotated[list[str], Field(min_length=2, max_length=2)] = ["en", "fr"]
    revision: str | None = None
    folder: str | None = None  # of a hub data set; it holds one file or folder a split


class Extra(Strict):
    """Another corpus of a task, not scored: to pre-train on, or to try thresholds on; see `Corpus.source`."""

    task: Literal[*TASKS]
    source: str


class ShapeSettings(Strict):
    """Sizes of a mini model, as in `T5Config`."""

    vocab_size: PositiveInt
    d_model: PositiveInt
    d_kv: PositiveInt
    num_heads: PositiveInt
    d_ff: PositiveInt
    num_layers: PositiveInt
    num_decoder_layers: PositiveInt
    dropout_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0


class Stage(Strict):
    """One stage of training: how many examples of what, and how the rate goes (`models.training.Schedule`).

    `examples` are counted for each task of the profile; while pre-training also for each of its `extra`
    corpora, each lesson of synthetic questions (`LESSONS`), and "spans": texts of the tasks, spans corrupted.
    """

    examples: Annotated[dict[str, PositiveInt], Field(min_length=1)]
    learning_rate: PositiveFloat
    decay: Annotated[float, Field(ge=0, le=1)] = 0.0


class BaseStage(Stage):
    """A stage of pre-training with so many `layers`; `dropout_rate` is by default that of the shape."""

    layers: PositiveInt | None = None
    dropout_rate: Annotated[float, Field(ge=0, lt=1)] | None = None


class BaseSettings(Strict):
    """Pre-training from random weights, stage by stage; stage k draws with seed + k."""

    stages: Annotated[list[BaseStage], Field(min_length=1)]


class BackboneSettings(Stage):
    """One training objective; see `mee_utils.models.objectives.Objective`. `seeds`: how many trainings."""

    objective: Literal["vanilla", "calm", "free", "late_weighted", "alternating"]
    exit_layer: PositiveInt | None = None
    kd_map: Literal["last", "uniform", "dynamic"] = "dynamic"
    intermediate: Literal["all", "one"] = "all"
    seeds: PositiveInt = 1


class Checkpoint(Strict):
    """A ready model in place of one to train: a hub id, or a folder (relative to the repository)."""

    checkpoint: Annotated[str, Field(min_length=1)]
    revision: str | None = None

    @property
    def source(self) -> str:
        """The folder, where there is one of this name; else the hub id."""
        inside = ROOT / self.checkpoint
        return str(inside) if inside.is_dir() else str(Path(self.checkpoint).expanduser())


def _or_checkpoint(trained: type[Strict]):
    """Settings of a model to train, or a ready checkpoint: whichever keys are there."""

    def kind(value) -> str:
        named = isinstance(value, dict) and difflib.get_close_matches("checkpoint", map(str, value), 1, 0.8)
        return READY if named or isinstance(value, Checkpoint) else TRAINED

    ready = Annotated[Checkpoint, Tag(READY)]
    return Annotated[Annotated[trained, Tag(TRAINED)] | ready, Discriminator(kind)]


class Training(Strict):
    """How the models are made: from scratch (`shape` and stages of `base`), or from a ready checkpoint."""

    shape: ShapeSettings | None = None
    seed: int
    max_source: PositiveInt
    max_target: PositiveInt
    tokens_per_batch: PositiveInt = 2500
    pretrained: BaseSettings | None = None  # a model by span corruption alone, to compare with
    base: _or_checkpoint(BaseSettings)
    backbones: Annotated[dict[Name, _or_checkpoint(BackboneSettings)], Field(min_length=1)]
    compared: dict[Name, BackboneSettings] = {}  # trained and measured by `make retrain`, and not kept

    @model_validator(mode="after")
    def _one_origin(self) -> Training:
        if self.shape is None and isinstance(self.base, BaseSettings):
            missing = "a base trained from scratch needs a shape"
            raise ValueError(f"{missing}; add it, or name a checkpoint as base")
        if self.shape is not None and isinstance(self.base, Checkpoint):
            raise ValueError("shape contradicts the checkpoint of base; leave one of them out")
        for name in {"pretrained", "base"} & {*self.backbones, *self.compared}:
            raise ValueError(f'"{name}" is the name of the pre-trained model; give the backbone another one')
        sizes = ("num_layers", "num_decoder_layers")
        for (name, stages), size in product(self.pre_training.items(), sizes if self.shape else ()):
            full = getattr(self.shape, size)
            depths = [stage.layers or full for stage in stages] or [full]
            if depths[-1] != full or any(later % earlier for earlier, later in pairwise(depths)):
                rule = "each must be a multiple of the one before, and the last stage has all"
                raise ValueError(f"the stages of {name} have {depths} layers: {rule} ({full})")
        return self

    @property
    def pre_training(self) -> dict[str, list[BaseStage]]:
        """The stages of `pretrained` and `base`; none of what is ready or not asked for."""
        return {name: getattr(getattr(self, name), "stages", []) for name in ("pretrained", "base")}

    @property
    def models(self) -> list[str]:
        """Every model, each after the one it starts from."""
        return [*(["pretrained"] if self.pretrained else []), "base", *self.backbones]

    def start(self, name: str) -> str | None:
        """The model that a model starts from; None where that has random weights or is ready."""
        return "base" if name in self.backbones | self.compared else None

    def recipe(self, name: str) -> BaseSettings | BackboneSettings | Checkpoint:
        """The settings of `pretrained`, `base` or a backbone."""
        return (self.backbones | self.compared).get(name) or getattr(self, name)

    @property
    def objectives(self) -> dict[str, BackboneSettings]:
        """The backbones that are trained here; of a ready checkpoint nobody knows the objective."""
        backbones = (self.backbones | self.compared).items()
        return {name: recipe for name, recipe in backbones if isinstance(recipe, BackboneSettings)}

    def exit_layer(self, name: str, layers: int) -> int:
        """The layer that a FREE backbone was trained to exit at: the recipe's, else a third of the depth."""
        return getattr(self.recipe(name), "exit_layer", None) or max(1, layers // 3)


class Ablation(Strict):
    """A short training from random weights; `rates` and `muon` as in `models.training.Schedule`."""

    stages: Annotated[list[Stage], Field(min_length=1)]
    local: bool = True  # heads that begin local
    rates: dict[Literal["query", "embedding", "table", "norm"], PositiveFloat] = {}
    muon: bool = True


class AblationSettings(Strict):
    """Short trainings of a model with fewer layers, judged on the questions for choices."""

    layers: PositiveInt
    runs: Annotated[dict[Name, Ablation], Field(min_length=1)]


class ClassifierSettings(Strict):
    """How exit classifiers are trained; `tokens` is how many of each task, `epochs` as in MEE."""

    tokens: PositiveInt = 2000
    seeds: Annotated[int, Field(ge=1, le=10)] = 5
    epochs: PositiveInt = 5
    batch_size: PositiveInt = 128
    learning_rate: PositiveFloat = 0.002


TaskName = Literal[*TASKS]  # a new task is one entry there


class ResultSettings(Strict):
    """What is measured: every rule on the main model, fewer on the others."""

    validation: PositiveInt = 500  # examples on which thresholds are searched for, and chosen
    test: PositiveInt = 1000  # examples on which what was chosen is reported
    candidates: PositiveInt = 64  # thresholds of a rule among which decoding searches; on the other models
    other_candidates: PositiveInt = 24
    most_candidates: dict[TaskName, PositiveInt] = {}  # on a task whose outputs are long
    models: list[Name] = []  # measured beside the main model; none named: all backbones
    examples: PositiveInt = 150  # that notebooks trace, and make bench times
    bug_examples: PositiveInt = 30
    max_new_tokens: PositiveInt = 48
    batch_size: PositiveInt = 100
    min_layer: PositiveInt = 4
    top_k: PositiveInt = 64  # as in notebook 03
    first_k: PositiveInt = 256
    least_k: PositiveInt = 16
    fresh_sets: PositiveInt = 200  # on synthetic data: independent calibration sets, and examples in each
    fresh_size: PositiveInt = 500
    learning_tokens: list[PositiveInt] = [2000, 6000, 20000, 60000, 200000]  # of all tasks, for classifiers
    fresh_rules: list[Name] = ["softmax_margin", "low_rank_three"]
    deltas: Annotated[list[float], Field(min_length=1)] = [0.05, 0.1, 0.25]
    risk_deltas: Annotated[list[float], Field(min_length=1)] = [0.02, 0.05, 0.1]
    eps: Annotated[float, Field(gt=0, lt=1)] = 0.05


class Profile(Strict):
    """A whole profile. `notebooks` gives parameters that differ from a notebook's own defaults."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w-]*$")]
    device: str
    dtype: Literal["float64", "float32", "bfloat16"]
    corpora: Annotated[dict[TaskName, Corpus], Field(min_length=1)]
    extra: dict[Name, Extra] = {}  # for pre-training
    away: dict[Name, Extra] = {}  # other domains, on whose validation examples thresholds from home are tried
    training: Training
    ablations: AblationSettings | None = None
    classifiers: ClassifierSettings = ClassifierSettings()
    results: ResultSettings = ResultSettings()
    notebooks: dict[str, dict[str, int | float | str | bool]] = {}
    _data: str | None = None  # the DATA folder of the command line

    @model_validator(mode="after")
    def _known_names(self) -> Profile:
        recipes = {f"training.backbones.{name}": [b] for name, b in self.training.objectives.items()}
        recipes |= {f"training.{name}.stages": s for name, s in self.training.pre_training.items()}
        recipes |= {f"ablations.runs.{name}.stages": run.stages for name, run in self.ablation_runs.items()}
        for place, stages in recipes.items():
            known = [*self.corpora] + ([] if "backbones" in place else ["spans", *self.extra, *LESSONS])
            for name in {name for stage in stages for name in stage.examples} - set(known):
                raise ValueError(f'{place}: there are no examples of "{name}": {nearest(name, known)}')
        for name in {*self.results.models} - {*self.training.backbones}:
            raise ValueError(f'results.models: no "{name}": {nearest(name, self.training.backbones)}')
        return self

    @property
    def ablation_runs(self) -> dict[str, Ablation]:
        """The ablations of the recipe, by name."""
        return self.ablations.runs if self.ablations else {}

    @property
    def lock(self) -> Path:
        """The file that pins hub ids to commits (`hub_lock`)."""
        return FOLDER / f"{self.name}.lock.json"

    def source(self, task: str) -> str:
        """The source of a task's corpus, with DATA filled in."""
        source, data = (self.corpora | self.extra | self.away)[task].source, self._data
        if "{data}" not in source:
            return source
        if not data:
            local = f'Profile "{self.name}" reads local corpora'
            raise MeeError(f"{local}: give their folder, as in DATA=path/to/corpora.")
        folder = Path(data).expanduser()
        if not folder.is_dir():
            raise MeeError(f"DATA={data} is no folder: give the folder that holds the corpora.")
        found = Path(source.replace("{data}", str(folder)))
        if not found.exists():
            raise MeeError(f"{found} does not exist: DATA must hold a folder {found.name} ({task}).")
        return str(found)


def profile_names() -> list[str]:
    """The profiles that are there."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_profile(name: str | Path, data: str | None = None) -> Profile:
    """Reads a profile by name, or from a YAML file; `data` is the folder that stands for `{data}`."""
    own_file = str(name).endswith((".yaml", ".yml")) and Path(name).is_file()
    path = Path(name) if own_file else FOLDER / f"{check_choice('profile', name, profile_names())}.yaml"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise MeeError(f"{path} is no YAML in UTF-8: {one_line(error)}") from error
    if not isinstance(content, dict):
        holds = "is empty" if content is None else f"holds a {type(content).__name__}"
        raise MeeError(f"{path} {holds}: a profile has keys, such as name, corpora and training.")
    try:
        profile = Profile.model_validate(content)
    except pydantic.ValidationError as error:
        raise MeeError(f"{path}: {first_mistake(error)}") from error
    if path.parent == FOLDER and profile.name != path.stem:
        raise MeeError(f'{path} calls itself "{profile.name}": its name must be "{path.stem}".')
    profile._data = data or None
    return profile


def first_mistake(error: pydantic.ValidationError) -> str:
    """The place of the first mistake, and what pydantic says of it."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("[key]", READY, TRAINED))
    said = first["msg"].removeprefix("Value error, ").removesuffix(".")
    if first["type"] not in ("missing", "value_error"):
        said += f" (it is {one_line(repr(first['input']), 60)})"
    return f"{where}: {said}." if where else f"{said}."
