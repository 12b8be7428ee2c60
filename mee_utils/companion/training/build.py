"""`make train`: makes the models of a profile, each with a manifest that says how and how well.

A tokenizer from the training split; `pretrained`, by span corruption alone; `base`, from random weights; then
every backbone from `base`. A training that was interrupted goes on from its last checkpoint. Weights are
stored in half precision, and scores measured after rounding. A ready checkpoint is only measured.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from random import Random

import torch

from ... import MeeError, Model, Objective, Task, load_model
from ...common.errors import check_choice
from ...common.files import ROOT
from ...tasks.loading import load_lesson
from .. import inputs
from ..inputs import checkpoint_folder, is_trained, load_profile_tokenizer, ready_digest, weights_digest
from ..profiles import BackboneSettings, BaseSettings, Checkpoint, Profile, Stage
from ..results import build_root, staged
from ..running.digests import digest_of
from . import loop
from .batches import Pair, corrupt_spans, padded, repeated
from .loop import LearningCurve, Schedule
from .mini import grow, new_network, sentinel_tokens, set_dropout, train_tokenizer
from .model_manifest import describe_model, write_manifest
from .muon import RATES_FROM_SCRATCH

SPANS = "spans"  # in the examples of a stage: texts of the tasks, spans corrupted
CURVE_PAIRS = 192  # on which the learning curves are measured
DEPTH = ("num_layers", "num_decoder_layers")
VANILLA = Objective("vanilla")


def train(profile: Profile, only: Sequence[str] = ()) -> list[Path]:
    """Trains what is missing of a profile's models, or of `only` some; returns the folders of these."""
    settings = profile.training
    for name in only:
        check_choice("model", name, settings.models)
    wanted = [name for name in settings.models if not only or name in only]
    missing = [name for name in wanted if not is_trained(profile, name)]
    if not only and not {*settings.backbones} & {*missing}:
        missing = []  # nothing else needs the models that they start from
    for name in missing:
        start = settings.start(name)
        if start and start not in missing and not is_trained(profile, start):
            raise MeeError(f'"{name}" starts from "{start}", which is not trained yet: train it first.')
    check(profile, wanted)
    if missing:
        builder = new_builder(profile)
        for name in missing:
            builder.build(name)
    return [checkpoint_folder(profile, name) for name in wanted if is_trained(profile, name)]


def check(profile: Profile, wanted: Sequence[str]) -> None:
    """Refuses ready checkpoints that cannot be loaded, and `wanted` models of another recipe or data."""
    for name in profile.training.models:
        for task in profile.training.checkpoints(name):
            load_profile_tokenizer(profile, name, task)
    for name in wanted:
        if is_trained(profile, name):
            inputs.check_recipe(profile, name)


def new_builder(profile: Profile) -> ModelBuilder:
    """Loads a profile's corpora, and its tokenizer or makes it; an error if nothing is left to train on."""
    training = inputs.load_tasks(profile, "train")
    choices = inputs.load_tasks(profile, "choices")
    held_out = inputs.load_tasks(profile, "held_out")
    for task, scored in zip(training, held_out, strict=True):
        if task.digest == scored.digest:
            twice = f"{task.source} is training and held-out data at once"
            raise MeeError(f"{twice}: give a folder with one file a split, each with rows of its own.")
        if not task.inputs:
            aside = f"{profile.corpora[task.name].choices} examples, all kept for choices"
            raise MeeError(f"{task.source} has no more than {aside}: give more, or lower choices.")
    return ModelBuilder(profile, training, choices, held_out, profile_tokenizer(profile, training))


def profile_tokenizer(profile: Profile, tasks: Sequence[Task]):
    """The tokenizer of a model that is there, else one trained on the training split."""
    first = profile.training.models[0]
    if isinstance(profile.training.base, Checkpoint) or is_trained(profile, first):
        return load_profile_tokenizer(profile, first)
    texts = []
    for task in tasks:
        for source, target in zip(task.inputs, task.targets, strict=True):
            texts += [source, target]
    return train_tokenizer(texts, profile.training.shape.vocab_size)


def work_folder(profile: Profile, name: str, seed: int, tasks: Sequence[Task]) -> Path:
    """Where an unfinished run keeps its checkpoints: one folder a recipe, seed, start and training data."""
    settings = profile.training
    start = settings.start(name)
    digest = digest_of(
        [
            settings.recipe(name).model_dump(),
            settings.model_dump(exclude={"pretrained", "base", "backbones", "compared"}),
            seed,
            [task.digest for task in tasks],
            weights_digest(profile, start) if start else None,
        ]
    )
    return build_root() / "training" / profile.name / name / digest[:16]


def measured_in(profile: Profile) -> str:
    """The precision that scores are measured in: the profile's, but single where that is double."""
    return "float32" if profile.dtype == "float64" else profile.dtype


def objective_of(recipe: BackboneSettings) -> Objective:
    """The training objective that a recipe names."""
    return Objective(recipe.objective, recipe.exit_layer, recipe.kd_map, recipe.intermediate)


@dataclass(frozen=True)
class ModelBuilder:
    """Makes the models of one profile.

    Attributes:
        profile: Says which models there are, and how each is trained.
        tasks: What is trained on.
        choices: What learning curves are measured on, and the best checkpoint chosen by.
        held_out: What is scored.
        tokenizer: That of all models of the profile.
    """

    profile: Profile
    tasks: Sequence[Task]
    choices: Sequence[Task]
    held_out: Sequence[Task]
    tokenizer: object

    def build(self, name: str) -> None:
        """Trains one model, stores it and measures it; a ready checkpoint is only measured."""
        profile = self.profile
        if profile.training.checkpoints(name):
            self._register(name)
            return
        folder = work_folder(profile, name, profile.training.seed, self.tasks)
        network, curve = self.train_model(name, profile.training.seed, folder)
        corpora = {task.name: task for task in self.tasks}
        for extra in inputs.extra_corpora(profile, name):
            corpora[extra] = self.extra[extra]
        with staged(checkpoint_folder(profile, name)) as partial:
            model = self.save_weights(network, partial, measured_in(profile))
            content = describe_model(profile, name, model, self.held_out, corpora) | asdict(curve)
            start = profile.training.start(name)
            if start:
                content["base"] = weights_digest(profile, start)
            write_manifest(partial, content)
        shutil.rmtree(folder.parent)

    def _register(self, name: str) -> None:
        """Measures a ready model and writes its manifest; its weights stay where they are."""
        profile = self.profile
        by_task = {task: self._describe_ready(name, task) for task in profile.training.checkpoints(name)}
        content = by_task[None] if None in by_task else _joined(name, by_task)
        content["weights"] = ready_digest(profile, name)
        start = profile.training.start(name)
        if start:
            content["base"] = weights_digest(profile, start)
        with staged(checkpoint_folder(profile, name)) as partial:
            write_manifest(partial, content)

    def _describe_ready(self, name: str, task: str | None) -> dict:
        """The manifest of a ready checkpoint: of that of one task, or (None) of all."""
        profile = self.profile
        model = inputs.load_profile_model(profile, name, measured_in(profile), task)
        checkpoint = inputs.ready_checkpoint(profile, name, task).checkpoint
        if model.tokenizer.get_vocab() != self.tokenizer.get_vocab():
            other = f"{checkpoint} has another tokenizer than the base"
            raise MeeError(f"{other}, and cannot be compared token by token: give it another profile.")

        def origin(source: str, commit: str | None) -> dict:
            here = Path(source).is_relative_to(ROOT)
            return {"checkpoint": str(Path(source).relative_to(ROOT)) if here else source, "commit": commit}

        start = profile.training.start(name)
        base = inputs.manifest(profile, start)["shape"] if start else {"num_decoder_layers": model.layers}
        if model.layers != base["num_decoder_layers"]:
            depths = f"{model.layers} decoder layers, and the base {base['num_decoder_layers']}"
            raise MeeError(f"{checkpoint} has {depths}: give it a profile of its own.")
        held_out = [each for each in self.held_out if task in (None, each.name)]
        curve = LearningCurve()
        if not model.causal:
            batches = padded(self.curve_pairs(task), model.network.config.pad_token_id)
            losses = loop.layer_losses(model.network, batches)
            curve.layer_cross_entropy.append({"step": 0, "cross_entropy": losses})
        content = describe_model(profile, name, model, held_out, corpora={}) | asdict(curve)
        content["source"] = inputs.from_source(profile, name, origin, task)
        return content

    def train_model(self, name: str, seed: int, folder: Path) -> tuple[torch.nn.Module, LearningCurve]:
        """Trains a model of the profile with a seed; checkpoints are kept in `folder`."""
        settings = self.profile.training
        recipe = settings.recipe(name)
        if isinstance(recipe, BaseSettings):
            return self.train_from_scratch(name, recipe.stages, seed, folder, settings.shape.model_dump())
        network = inputs.load_profile_model(self.profile, settings.start(name), "float32").network
        stage = self.train_stage(name, network, recipe, seed, folder / "stage-1", objective_of(recipe))
        return network, stage

    def train_from_scratch(
        self,
        name: str,
        stages: Sequence[Stage],
        seed: int,
        folder: Path,
        shape: Mapping[str, int],
        local: bool = True,
        rates: Mapping[str, float] = RATES_FROM_SCRATCH,
        muon: bool = True,
    ) -> tuple[torch.nn.Module, LearningCurve]:
        """Trains random weights stage by stage, stage k with seed + k.

        Args:
            name: What the evaluations are printed with.
            stages: The stages; one may have fewer layers than the `shape`.
            seed: Decides the random weights, and what the stages draw.
            folder: Where checkpoints are kept.
            shape: Sizes of the finished network, as in `T5Config`.
            local: Whether some heads begin as views of their neighbours; see `mini.begin_local`.
            rates: As in `Schedule`.
            muon: As in `Schedule`.
        """
        torch.manual_seed(seed)
        network = None
        curve = LearningCurve()
        for number, stage in enumerate(stages):
            layers = getattr(stage, "layers", None)
            sizes = {**shape, **dict.fromkeys(DEPTH, layers)} if layers else dict(shape)
            if network is None:
                network = new_network(self.tokenizer, local=local, **sizes)
            network = grow(network, *(sizes[key] for key in DEPTH))
            stage_folder = folder / f"stage-{number + 1}"
            later = self.train_stage(
                name, network, stage, seed + number, stage_folder, rates=rates, muon=muon
            )
            curve = curve.followed_by(later) if number else later
        return network, curve

    def train_stage(
        self,
        name: str,
        network: torch.nn.Module,
        stage: Stage,
        seed: int,
        folder: Path,
        objective: Objective = VANILLA,
        rates: Mapping[str, float] = RATES_FROM_SCRATCH,
        muon: bool = True,
    ) -> LearningCurve:
        """Trains a network in place for a stage; one that was trained before is taken from its folder."""
        settings = self.profile.training
        if settings.shape:
            dropout = getattr(stage, "dropout_rate", None)
            set_dropout(network, settings.shape.dropout_rate if dropout is None else dropout)
            torch.set_num_threads(1)  # the fastest for mini models: train another one on the next core
        schedule = Schedule(
            learning_rate=stage.learning_rate,
            decay=stage.decay,
            tokens_per_batch=settings.tokens_per_batch,
            seed=seed,
            rates=rates if settings.shape else {},
            muon=muon and settings.shape is not None,
            half=self.profile.dtype == "bfloat16",
        )
        return loop.train_backbone(
            network, objective, self.stage_pairs(stage, seed), self.curve_pairs(), schedule, folder, name=name
        )

    def save_weights(self, network: torch.nn.Module, folder: Path, dtype: str) -> Model:
        """Stores a network in half precision, and loads it again in another."""
        # T5-large exceeds the range of float16; the mini models keep three more bits of each weight in it
        half = torch.bfloat16 if self.profile.dtype == "bfloat16" else torch.float16
        network.to(half).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        return load_model(folder, dtype=dtype, device=self.profile.device)

    def pairs(self, tasks: Sequence[Task]) -> list[Pair]:
        """Token ids of the input and the target of every example, cut to the lengths that are trained on."""
        settings = self.profile.training
        sources = [text for task in tasks for text in task.inputs]
        targets = [text for task in tasks for text in task.targets]
        source_ids = self.tokenizer(sources, truncation=True, max_length=settings.max_source).input_ids
        target_ids = self.tokenizer(targets, truncation=True, max_length=settings.max_target).input_ids
        return list(zip(source_ids, target_ids, strict=True))

    @cached_property
    def extra(self) -> dict[str, Task]:
        """The further corpora of pre-training."""
        return {name: inputs.load_corpus(self.profile, name, "train") for name in self.profile.extra}

    def stage_pairs(self, stage: Stage, seed: int) -> list[Pair]:
        """The examples that a stage asks for; tasks that are smaller than that are repeated."""
        random = Random(seed)
        tasks = {task.name: task for task in self.tasks}
        pairs = []
        for name, count in stage.examples.items():
            if name == SPANS:
                pairs += self._span_pairs(count, random)
            elif name in tasks:
                pairs += repeated(self.pairs([tasks[name]]), count, random)
            elif name in self.profile.extra:
                pairs += repeated(self.pairs([self.extra[name]]), count, random)
            else:
                pairs += self.pairs([load_lesson(name, "train", count, seed)])
        return pairs

    def _span_pairs(self, count: int, random: Random) -> list[Pair]:
        """Examples of all tasks, source and target as one text, with corrupted spans."""
        sentinels = self.tokenizer.convert_tokens_to_ids(sentinel_tokens())
        end = self.tokenizer.eos_token_id
        corrupted = []
        for source, target in repeated(self.pairs(self.tasks), count, random):
            text = [*source[:-1], *target[:-1]]
            corrupted.append(corrupt_spans(text, sentinels, end, random))
        return corrupted

    def curve_pairs(self, task: str | None = None) -> list[Pair]:
        """The pairs of the learning curves, drawn from the choices of all tasks, or of one."""
        pairs = self.pairs([each for each in self.choices if task in (None, each.name)])
        count = min(CURVE_PAIRS, len(pairs))
        return Random(self.profile.training.seed).sample(pairs, count)


def _joined(name: str, by_task: Mapping[str, dict]) -> dict:
    """One manifest of a model that has a checkpoint a task; its learning curve is the mean over tasks."""
    contents = list(by_task.values())
    first = contents[0]
    for task, content in by_task.items():
        if content["shape"] != first["shape"]:
            shapes = f"{content['source']['checkpoint']} ({task}) and {first['source']['checkpoint']}"
            raise MeeError(f'"{name}": {shapes} have other sizes: give each a profile.')
    losses = [content["layer_cross_entropy"][0]["cross_entropy"] for content in contents]  # [task][layer]
    means = [sum(of_layer) / len(losses) for of_layer in zip(*losses, strict=True)]
    return first | {
        "scores": {task: content["scores"][task] for task, content in by_task.items()},
        "min_exit_layer": max(content["min_exit_layer"] for content in contents),
        "layer_cross_entropy": [{"step": 0, "cross_entropy": means}],
        "source": {task: content["source"] for task, content in by_task.items()},
    }
