"""Profiles: what to run, as data, in a YAML file of `notebooks/profiles`. Nothing here needs torch.

An unknown key, a wrong type or an impossible value is an error in one line that names the nearest valid key.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import pydantic
import yaml
from pydantic import BaseModel, Discriminator, Field, PositiveInt, Tag, model_validator

from ..common.errors import LARGEST_SEED, MeeError, check_choice, nearest, one_line, shown
from ..common.files import ROOT
from ..tasks import TASKS
from ..tasks.loading import checked_languages
from ..tasks.synthetic.questions import LESSONS
from .running.notebook_files import notebook_names

FOLDER = ROOT / "notebooks" / "profiles"
# where `make data` puts corpora, and where they are read if DATA is not given
FETCHED = Path(os.environ.get("MEE_DATA") or ROOT / "data")
MADE = "build/"  # the beginning of the name of a checkpoint that `make data` makes (`published_model`)
IN_DATA = "{data}"  # in a source: the DATA folder
ENDINGS = (".yaml", ".yml")
RESERVED = ("bench", "build")  # folders of results that belong to no profile
LAYER_PARAMETERS = ("layer", "expert_layer")  # parameters of notebooks that name a layer to look at


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9]\w*$")]  # becomes a folder
Share = Annotated[float, Field(gt=0, lt=1)]
PositiveFinite = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Reason = Annotated[str, Field(min_length=1)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
# "auto" is a GPU if there is one; whether a device is there is seen when a model is loaded
Device = Annotated[str, Field(pattern="^(auto|cpu|(cuda|mps|xpu)(:[0-9]+)?)$")]


class Strict(BaseModel, extra="forbid", frozen=True, strict=True):
    """A part of a profile: no key that it does not know, no type that it does not have."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, given):
        for key in given if isinstance(given, dict) else ():
            check_choice("key", key, cls.model_fields)
        return given


class Source(Strict):
    """Where examples come from, as in `load_task`; `{data}` is the DATA folder of the command line."""

    source: Annotated[str, Field(min_length=1)]
    revision: str | None = None  # of a hub data set: its commit, as `python -m mee_utils pin` writes it
    folder: str | None = None  # it holds one file or folder a split
    languages: Annotated[list[str], Field(min_length=2, max_length=2)] = ["en", "fr"]
    skip_unanswerable: bool = False  # leave out questions without an answer (SQuAD 2)

    @model_validator(mode="after")
    def _two_languages(self) -> Source:
        checked_languages(tuple(self.languages))
        return self


class Corpus(Source):
    """The corpus of one task, and how many of its examples are used.

    Learning curves and the best checkpoint are judged on `choices` examples, which are neither trained on nor
    scored: of the validation split where scores come from the test split, else the first ones for training.
    """

    train: PositiveInt | None = None
    held_out: PositiveInt | None = None
    choices: PositiveInt = 100
    held_out_split: Literal["validation", "test"] = "validation"


class Extra(Source):
    """Another corpus of a task, not scored: to pre-train on, or to try thresholds on."""

    task: Literal[*TASKS]


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
    """One stage of training: how many examples of what, and how the rate goes (`training.loop.Schedule`).

    `examples` are counted for each task of the profile; while pre-training also for each of its `extra`
    corpora, each lesson of synthetic questions (`LESSONS`), and "spans": texts of the tasks, spans corrupted.
    """

    examples: Annotated[dict[str, PositiveInt], Field(min_length=1)]
    learning_rate: PositiveFinite
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


class HubSource(Strict):
    """Where a checkpoint or a tokenizer comes from: a hub id, or a folder (relative to the repository)."""

    checkpoint: Annotated[str, Field(min_length=1)]
    revision: str | None = None

    @property
    def source(self) -> str:
        """The folder, where there is one of this name; else the hub id."""
        inside = ROOT / self.checkpoint
        if self.checkpoint.startswith(MADE) and not inside.is_dir():
            raise MeeError(f"{self.checkpoint} is not there yet: make data, with this PROFILE, makes it.")
        return str(inside) if inside.is_dir() else str(Path(self.checkpoint).expanduser())


class Checkpoint(HubSource):
    """A ready model in place of one to train. `tokenizer` is for a checkpoint that comes without one.

    `adapter` is a folder with a LoRA adapter (`train_exits`), relative to the repository.
    """

    tokenizer: HubSource | None = None
    adapter: str | None = None

    @property
    def adapter_folder(self) -> Path | None:
        """Where the adapter is."""
        return ROOT / self.adapter if self.adapter else None


class TaskCheckpoints(Strict):
    """A ready model that is another checkpoint for each task, as most fine-tuned models on the hub are."""

    tasks: dict[Literal[*TASKS], Checkpoint]


Ready = Checkpoint | TaskCheckpoints


def _kind_of_model(value) -> str:
    """Which kind of settings a model has: the key "checkpoint", or "tasks", makes it a ready one.

    `first_mistake` takes these tags of pydantic out of messages.
    """
    keys = value if isinstance(value, dict) else getattr(type(value), "model_fields", ())
    for key in ("checkpoint", "tasks"):
        if difflib.get_close_matches(key, map(str, keys), 1, 0.8):
            return f"[{key}]"
    return "[trained]"


def _kind_of_base(value) -> str:
    """As `_kind_of_model`, but all start from the same base, whatever the task."""
    return "[trained]" if _kind_of_model(value) == "[trained]" else "[checkpoint]"


ReadyModel = Annotated[Checkpoint, Tag("[checkpoint]")]
Base = Annotated[Annotated[BaseSettings, Tag("[trained]")] | ReadyModel, Discriminator(_kind_of_base)]
Backbone = Annotated[
    Annotated[BackboneSettings, Tag("[trained]")] | ReadyModel | Annotated[TaskCheckpoints, Tag("[tasks]")],
    Discriminator(_kind_of_model),
]


class Training(Strict):
    """How the models are made: from scratch (`shape` and stages of `base`), or from a ready checkpoint."""

    shape: ShapeSettings | None = None
    seed: Seed
    max_source: PositiveInt
    max_target: PositiveInt
    tokens_per_batch: PositiveInt = 2500
    pretrained: BaseSettings | None = None  # a model by span corruption alone, to compare with
    base: Base
    backbones: Annotated[dict[Name, Backbone], Field(min_length=1)]
    compared: dict[Name, BackboneSettings] = {}  # trained and measured by `make retrain`, and not kept

    @model_validator(mode="after")
    def _one_origin(self) -> Training:
        if self.shape is None and isinstance(self.base, BaseSettings):
            raise ValueError(
                "a base trained from scratch needs a shape; add it, or name a checkpoint as base"
            )
        if self.shape is not None and isinstance(self.base, Checkpoint):
            raise ValueError("shape contradicts the checkpoint of base; leave one of them out")
        for name in {"pretrained", "base"} & {*self.backbones, *self.compared}:
            raise ValueError(f'"{name}" is the name of the pre-trained model; give the backbone another one')
        for name in sorted(self.compared.keys() & self.backbones):
            raise ValueError(f'compared: "{name}" is one of the backbones; give it another name')
        return self

    @model_validator(mode="after")
    def _layers_only_grow(self) -> Training:
        """A network grows by repeating its layers (`training.mini.grow`)."""
        for name, stages in self.pre_training.items() if self.shape else ():
            for full in (self.shape.num_layers, self.shape.num_decoder_layers):
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

    def recipe(self, name: str) -> BaseSettings | BackboneSettings | Ready:
        """The settings of `pretrained`, `base` or a backbone."""
        return (self.backbones | self.compared).get(name) or getattr(self, name)

    def checkpoints(self, name: str) -> dict[str | None, Checkpoint]:
        """The ready checkpoints of a model by task, or of all tasks under None; of a trained model none."""
        recipe = self.recipe(name)
        if isinstance(recipe, TaskCheckpoints):
            return dict(recipe.tasks)
        return {None: recipe} if isinstance(recipe, Checkpoint) else {}

    @property
    def is_all_ready(self) -> bool:
        """Whether no model is trained here."""
        return all(self.checkpoints(name) for name in self.models)

    @property
    def objectives(self) -> dict[str, BackboneSettings]:
        """The backbones that are trained here; of a ready checkpoint nobody knows the objective."""
        backbones = self.backbones | self.compared
        return {name: recipe for name, recipe in backbones.items() if isinstance(recipe, BackboneSettings)}

    def exit_layer(self, name: str, layers: int) -> int:
        """The layer that a FREE backbone was trained to exit at: the recipe's, else a third of the depth."""
        return getattr(self.recipe(name), "exit_layer", None) or max(1, layers // 3)


class Ablation(Strict):
    """A short training from random weights; `rates` and `muon` as in `training.loop.Schedule`."""

    stages: Annotated[list[Stage], Field(min_length=1)]
    local: bool = True  # heads that begin local
    rates: dict[Literal["query", "embedding", "table", "norm"], PositiveFinite] = {}
    muon: bool = True


class AblationSettings(Strict):
    """Short trainings of a model with fewer layers, judged on the questions for choices."""

    layers: PositiveInt
    runs: Annotated[dict[Name, Ablation], Field(min_length=1)]


class RivalSettings(Strict):
    """Decoders of fewer layers, trained as `vanilla` on the same examples: what exits compete with.

    One of these sizes may be trained as `calm` too, and decoded with exits (`right_sized`).
    """

    decoder_layers: Annotated[list[PositiveInt], Field(min_length=1)]
    seeds: PositiveInt = 1
    right_sized: PositiveInt | None = None
    right_sized_seeds: PositiveInt = 3


class ClassifierSettings(Strict):
    """How exit classifiers are trained; `tokens` is how many of each task, `epochs` as in MEE."""

    tokens: PositiveInt = 2000
    seeds: Annotated[int, Field(ge=0, le=10)] = 5  # 0: none is trained
    epochs: PositiveInt = 5
    batch_size: PositiveInt = 128
    learning_rate: PositiveFinite = 0.002


TaskName = Literal[*TASKS]  # a new task is one entry there


class ResultSettings(Strict):
    """What is measured: every rule on the main model, fewer on the others."""

    validation: PositiveInt = 500  # examples on which thresholds are searched for, and chosen
    test: PositiveInt = 1000  # examples on which what was chosen is reported
    candidates: PositiveInt = 64  # thresholds of a rule among which decoding searches; on the other models
    other_candidates: PositiveInt = 24
    most_candidates: dict[TaskName, PositiveInt] = {}  # on a task whose outputs are long; not all are decoded
    models: list[Name] = []  # measured beside the main model; none named: all backbones
    examples: PositiveInt = 150  # that notebooks trace
    timed: PositiveInt = 200  # that make bench decodes, and half as many where outputs are long
    bug_examples: PositiveInt = 30
    max_new_tokens: PositiveInt = 48
    batch_size: PositiveInt = 100
    min_layer: PositiveInt = 4  # this and the next four hold for notebooks too, whose parameter is None
    top_k: PositiveInt = 64
    first_k: PositiveInt = 256
    least_k: PositiveInt = 16
    quality: Share = 0.99  # of the full score that counts as kept, in 05 and 08; not measured with
    fresh_sets: PositiveInt = 200  # on synthetic data: independent calibration sets, and examples in each
    fresh_size: PositiveInt = 500
    learning_tokens: list[PositiveInt] = [2000, 6000, 20000, 60000, 200000]  # of all tasks, for classifiers
    fresh_rules: list[Name] = ["softmax_margin", "low_rank_three"]
    deltas: Annotated[list[Share], Field(min_length=1)] = [0.05, 0.1, 0.25]
    risk_deltas: Annotated[list[Share], Field(min_length=1)] = [0.02, 0.05, 0.1]
    eps: Share = 0.05

    @model_validator(mode="after")
    def _only_fewer_entries(self) -> ResultSettings:
        """Decaying pruning begins with `first_k` entries and ends with `least_k`."""
        if self.least_k > self.first_k:
            sizes = f"least_k={self.least_k} is more than first_k={self.first_k}"
            raise ValueError(f"{sizes}: entries can only become fewer")
        return self


class Profile(Strict):
    """A whole profile. `notebooks` gives parameters that differ from a notebook's own defaults."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w-]*$")]
    device: Device
    dtype: Literal["float64", "float32", "bfloat16"]
    corpora: Annotated[dict[TaskName, Corpus], Field(min_length=1)]
    extra: dict[Name, Extra] = {}  # for pre-training
    away: dict[Name, Extra] = {}  # other domains, on whose validation examples thresholds from home are tried
    training: Training
    ablations: AblationSettings | None = None
    rivals: RivalSettings | None = None
    classifiers: ClassifierSettings = ClassifierSettings()
    results: ResultSettings = ResultSettings()
    notebooks: dict[str, dict[str, int | float | str | bool]] = {}
    chat: bool = False  # prompts are a user's messages, in the chat template of the models' tokenizer
    left_out: dict[str, Reason] = {}  # notebook -> why this profile cannot run it
    _data: str | None = None  # the DATA folder of the command line, or that of `make data`
    _file: str | None = None  # where it was read from, if not from `notebooks/profiles`

    @model_validator(mode="after")
    def _known_examples(self) -> Profile:
        """Every stage of training asks for examples that there are."""
        of_tasks = list(self.corpora)
        of_pre_training = [*of_tasks, "spans", *self.extra, *LESSONS]
        asking = []
        for name, recipe in self.training.objectives.items():
            asking.append((f"training.backbones.{name}", [recipe], of_tasks))
        for name, stages in self.training.pre_training.items():
            asking.append((f"training.{name}.stages", stages, of_pre_training))
        for name, ablation in self.ablation_runs.items():
            asking.append((f"ablations.runs.{name}.stages", ablation.stages, of_pre_training))
        for key, stages, valid in asking:
            for stage in stages:
                for name in stage.examples:
                    if name not in valid:
                        raise ValueError(f'{key}: there are no examples of "{name}": {nearest(name, valid)}')
        return self

    @model_validator(mode="after")
    def _known_models_and_notebooks(self) -> Profile:
        named = {
            "results.models": (self.results.models, self.training.backbones),
            "notebooks": (self.notebooks, notebook_names()),
            "left_out": (self.left_out, notebook_names()),
        }
        for key, (names, valid) in named.items():
            for name in names:
                if name not in valid:
                    raise ValueError(f'{key}: no "{name}": {nearest(name, valid)}')
        for name in sorted(self.left_out.keys() & self.notebooks):
            raise ValueError(f'left_out: "{name}" has parameters in notebooks; leave one of them out')
        if self.rivals and "vanilla" not in self.training.objectives:
            raise ValueError('rivals: they are trained as the backbone "vanilla", and none is trained here')
        return self

    @model_validator(mode="after")
    def _layers_of_the_shape(self) -> Profile:
        """Where the depth is known, no setting names a layer that is not there, or leaves none to exit at."""
        if self.training.shape is None:
            if self.ablations:
                raise ValueError(
                    "ablations: they begin with random weights, and there is no shape; leave them out"
                )
            return self
        depth = self.training.shape.num_decoder_layers
        for layers in self.rivals.decoder_layers if self.rivals else ():
            if layers >= depth:
                raise ValueError(f"rivals.decoder_layers: {layers} is not below the {depth} of the shape")
        for key, layer, deepest in self._named_layers(depth):
            if isinstance(layer, int) and layer > deepest:  # what is no number is refused elsewhere
                deep = f"{layer} is too deep for the {depth} layers of the shape; at most {deepest}"
                raise ValueError(f"{key}: {deep}")
        return self

    def _named_layers(self, depth: int) -> Iterator[tuple[str, object, int]]:
        """Key, layer and the deepest that will do: at the last one nothing exits, but it can be looked at."""
        for part in ("backbones", "compared"):
            for name, recipe in getattr(self.training, part).items():
                yield f"training.{part}.{name}.exit_layer", getattr(recipe, "exit_layer", None), depth - 1
        if "min_layer" in self.results.model_fields_set:  # a model that is only trained needs none that fits
            yield "results.min_layer", self.results.min_layer, depth - 1
        if self.ablations:
            yield "ablations.layers", self.ablations.layers, depth
        for notebook, parameters in self.notebooks.items():
            for name in ("min_layer", *LAYER_PARAMETERS):
                deepest = depth - (name == "min_layer")
                yield f"notebooks.{notebook}.{name}", parameters.get(name), deepest

    @model_validator(mode="after")
    def _a_checkpoint_for_every_corpus(self) -> Profile:
        for name, recipe in self.training.backbones.items():
            if not isinstance(recipe, TaskCheckpoints):
                continue
            where = f"training.backbones.{name}.tasks"
            for task in sorted(self.corpora.keys() - recipe.tasks):
                raise ValueError(f"{where}: no checkpoint for {task}, of which there is a corpus")
            for task in sorted(recipe.tasks.keys() - self.corpora):
                raise ValueError(f"{where}: there is no corpus of {task}")
        return self

    @model_validator(mode="after")
    def _one_corpus_a_name(self) -> Profile:
        """A name means the same corpus in all three parts of a profile."""
        for part in ("extra", "away"):
            for name, corpus in getattr(self, part).items():
                if name in TASKS:
                    raise ValueError(f'{part}: "{name}" is the name of a task; give the corpus another one')
                if self.corpus(name) != corpus:
                    raise ValueError(f'{part}: "{name}" is another corpus in away; rename one of them')
        return self

    @property
    def run_notebooks(self) -> list[str]:
        """The notebooks that this profile runs, in order."""
        return [name for name in notebook_names() if name not in self.left_out]

    @property
    def ablation_runs(self) -> dict[str, Ablation]:
        """The ablations of the recipe, by name."""
        return self.ablations.runs if self.ablations else {}

    def corpus(self, name: str) -> Source:
        """The corpus of a task, or a further one by its own name."""
        return (self.corpora | self.extra | self.away)[name]

    @property
    def shallow_decoders(self) -> dict[str, int]:
        """The rivals without exits: name -> decoder layers."""
        sizes = self.rivals.decoder_layers if self.rivals else []
        return {f"shallow_{layers}": layers for layers in sizes}

    @property
    def right_sized(self) -> dict[str, int]:
        """The decoder of fewer layers that is trained for exits, if there is one: name -> decoder layers."""
        layers = self.rivals and self.rivals.right_sized
        return {f"shallow_{layers}_calm": layers} if layers else {}

    @property
    def data(self) -> str | None:
        """The folder that stands for `{data}`, if there is one."""
        return self._data

    @property
    def file(self) -> str | None:
        """The file to give as PROFILE; None where its name will do."""
        return self._file

    def has_data(self, task: str) -> bool:
        """Whether the DATA folder is given, where a task's corpus is in it."""
        return bool(self._data) or IN_DATA not in self.corpus(task).source

    def source(self, task: str) -> str:
        """The source of a task's corpus, with DATA filled in."""
        source = self.corpus(task).source
        if IN_DATA not in source:
            return source
        if not self._data:
            raise MeeError(
                f'Profile "{self.name}" reads local corpora: give their folder, as in DATA=path/to/corpora, '
                f"or fetch them: make data PROFILE={self.name}."
            )
        folder = Path(self._data).expanduser()
        if not folder.is_dir():
            raise MeeError(f"DATA={self._data} is no folder: give the folder that holds the corpora.")
        corpus = Path(source.replace(IN_DATA, str(folder)))
        if not corpus.exists():
            raise MeeError(f"{corpus} does not exist: DATA must hold a folder {corpus.name} ({task}).")
        return str(corpus)


def profile_names() -> list[str]:
    """The profiles that come with the repository."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def is_file_name(profile: str | Path) -> bool:
    """Whether a profile is given as a YAML file, and not by its name."""
    return str(profile).lower().endswith(ENDINGS)


def profile_name(profile: str | Path) -> str:
    """The name of a profile that is given by name or as a file: results and models are kept below it."""
    return load_profile(profile).name if is_file_name(profile) else str(profile)


def profile_path(name: str | Path) -> Path:
    """The file of a profile that is given by name or as a file."""
    path = Path(str(name))
    if is_file_name(name):
        if not path.is_file():
            found = "is a folder" if path.is_dir() else "does not exist"
            named = f"or one of the profiles {', '.join(profile_names())}"
            raise MeeError(f"{path} {found}: give the file of a profile, {named}.")
        return path
    if str(name) not in profile_names() and path.is_file():
        raise MeeError(f"{name} is no YAML file: the file of a profile ends in {' or '.join(ENDINGS)}.")
    return FOLDER / f"{check_choice('profile', name, profile_names())}.yaml"


def load_profile(name: str | Path, data: str | None = None) -> Profile:
    """Reads a profile.

    Args:
        name: of a profile in `notebooks/profiles`, or the path of another YAML file.
        data: the folder that stands for `{data}` in sources of corpora; by default what `make data` fetched.

    Raises:
        MeeError: no such profile, or a mistake in it; the message names the key.
    """
    path = profile_path(name)
    try:
        profile = Profile.model_validate(_read_mapping(path))
    except pydantic.ValidationError as error:
        raise MeeError(f"{path}: {first_mistake(error)}") from error
    _check_name(profile.name, path)
    profile._data = data or fetched_folder()
    profile._file = None if path.resolve().parent == FOLDER.resolve() else str(path)
    return profile


def fetched_folder() -> str | None:
    """The folder that `make data` made, if it is there."""
    return str(FETCHED) if FETCHED.is_dir() else None


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice, of which YAML would keep the last; names a value that is none."""

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)  # as it is written, before mappings are merged
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                line = node.start_mark.line + 1
                raise MeeError(f'the key "{key}" is there twice, line {line} on.')
        return node

    def construct_object(self, node, deep=False):
        try:
            return super().construct_object(node, deep)
        except Exception as error:  # what int, float and date raise, and KeyError for a bool
            if not isinstance(node, yaml.ScalarNode):
                raise
            said = f"{shown(node.value)} is no {node.tag.rpartition(':')[2]} that YAML can read"
            line = node.start_mark.line + 1
            raise MeeError(f"line {line}: {said}; put a text in quotes.") from error


def _read_mapping(path: Path) -> dict:
    """What a file holds, as `yaml.safe_load` reads it; a mistake is one line with the file and the place."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8-sig"), _Loader)
    except RecursionError as error:
        raise MeeError(f"{path} has lists or mappings nested too deeply to be a profile.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise MeeError(f"{path} is no YAML in UTF-8: {one_line(error)}") from error
    except MeeError as error:
        raise MeeError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        holds = "is empty" if content is None else f"holds a {type(content).__name__}"
        raise MeeError(f"{path} {holds}: a profile has keys, such as name, corpora and training.")
    return content


def _check_name(name: str, path: Path) -> None:
    """Models and results are kept below a profile's name, so no file may take the name of another."""
    if path.parent.resolve() == FOLDER.resolve() and name != path.stem:
        raise MeeError(f'{path} calls itself "{name}": its name must be "{path.stem}".')
    # compared without case, as file systems of macOS do
    files = {taken.casefold(): FOLDER / f"{taken}.yaml" for taken in profile_names()}
    owner = files.get(name.casefold(), path)
    if name.casefold() in RESERVED or owner.resolve() != path.resolve():
        raise MeeError(f'{path} calls itself "{name}", as other results are called: give it another name.')


def first_mistake(error: pydantic.ValidationError) -> str:
    """The place of the first mistake, and what pydantic says of it."""
    first = error.errors()[0]
    where = ".".join(part for part in map(str, first["loc"]) if not part.startswith("["))
    said = first["msg"].removeprefix("Value error, ").removesuffix(".")
    if first["type"] not in ("missing", "value_error"):
        said += f" (it is {one_line(repr(first['input']), 60)})"
    return f"{where}: {said}." if where else f"{said}."
