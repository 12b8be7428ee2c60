"""`make train`: makes the models of a profile, each with a manifest that says how and how well.

A tokenizer from the training split; `pretrained`, by span corruption alone; `base`, from it; then every
backbone from `base`. One that was interrupted goes on from its last checkpoint. Weights are stored in half
precision, and scores measured after rounding. A ready checkpoint is only measured.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from random import Random

import numpy as np

from .. import ExitPolicy, MeeError, Model, Objective, Task, generate, load_model, trace
from ..analysis.pruning import minimum_layer
from ..common.errors import check_choice
from ..common.files import complete_file
from ..decoding.inputs import UNLIMITED
from ..models.batches import corrupt_spans, padded, repeated
from ..models.mini import SENTINELS, grow, new_network, set_dropout, train_tokenizer
from ..tasks.loading import load_lesson, load_task
from ..traces.replay import replay_policy
from . import inputs
from .digests import digest_of
from .inputs import checkpoint_folder, is_trained, load_profile_tokenizer, ready_digest, weights_digest
from .profiles import BaseSettings, Checkpoint, Profile, ShapeSettings, Stage
from .results import build_root, processor, staged

SAFE_MARGIN, SAFE_EXAMPLES = 0.9, 200  # for the first safe layer; examples of each task
SPANS, CURVE = "spans", 192
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
        if (start := settings.start(name)) and start not in missing and not is_trained(profile, start):
            raise MeeError(f'"{name}" starts from "{start}", which is not trained yet: train it first.')
    check(profile, wanted)
    if missing:
        maker = new_maker(profile)
        for name in missing:
            (maker.register if isinstance(settings.recipe(name), Checkpoint) else maker.train)(name)
    return [checkpoint_folder(profile, name) for name in wanted if is_trained(profile, name)]


def check(profile: Profile, wanted: Sequence[str]) -> None:
    """Refuses ready checkpoints that cannot be loaded, and `wanted` models of another recipe or data."""
    for name in profile.training.models:
        if isinstance(profile.training.recipe(name), Checkpoint):
            load_profile_tokenizer(profile, name)
    for name in wanted:
        if is_trained(profile, name):
            inputs.check_recipe(profile, name)


def new_maker(profile: Profile) -> Maker:
    """Loads a profile's corpora, and its tokenizer or makes it; an error if nothing is left to train on."""
    parts = {part: inputs.load_tasks(profile, part) for part in ("train", "choices", "held_out")}
    for first, second in zip(parts["train"], parts["held_out"], strict=True):
        if first.digest == second.digest:
            twice = f"{first.source} is training and held-out data at once"
            raise MeeError(f"{twice}: give a folder with one file a split.")
        if not first.inputs:
            aside = f"{profile.corpora[first.name].choices} examples, all kept for choices"
            raise MeeError(f"{first.source} has no more than {aside}: give more, or lower choices.")
    return Maker(profile, *parts.values(), profile_tokenizer(profile, parts["train"]))


def work_folder(profile: Profile, name: str, seed: int, tasks: Sequence[Task]) -> Path:
    """Where an unfinished run keeps its checkpoints: one folder a recipe, seed, start and training data."""
    settings, start = profile.training, profile.training.start(name)
    others = settings.model_dump(exclude={"pretrained", "base", "backbones", "compared"})
    parts = [settings.recipe(name).model_dump(), others, seed, [task.digest for task in tasks]]
    parts += [start and weights_digest(profile, start)]
    return build_root() / "training" / profile.name / name / digest_of(parts)[:16]


def profile_tokenizer(profile: Profile, tasks: Sequence[Task]):
    """The tokenizer of a model that is there, else one trained on the training split."""
    first = profile.training.models[0]
    if isinstance(profile.training.base, Checkpoint) or is_trained(profile, first):
        return load_profile_tokenizer(profile, first)
    texts = [text for task in tasks for pair in zip(task.inputs, task.targets, strict=True) for text in pair]
    return train_tokenizer(texts, profile.training.shape.vocab_size)


@dataclass(frozen=True)
class Maker:
    """Makes the models of one profile: `tasks` to train on, `choices` for the curves, `held_out` to score."""

    profile: Profile
    tasks: Sequence[Task]
    choices: Sequence[Task]
    held_out: Sequence[Task]
    tokenizer: object

    def train(self, name: str) -> None:
        """Trains one model, stores it and measures it."""
        seed = self.profile.training.seed
        folder = work_folder(self.profile, name, seed, self.tasks)
        network, curve = self.trained(name, seed, folder)
        with staged(checkpoint_folder(self.profile, name)) as partial:
            model = self.save_weights(network, partial, measured_in(self.profile))
            seen = {task.name: task for task in self.tasks}
            seen |= {extra: self.extra[extra] for extra in inputs.extra_corpora(self.profile, name)}
            self.write_manifest(name, partial, model, curve, seen)
        shutil.rmtree(folder.parent)

    def trained(self, name: str, seed: int, folder: Path) -> tuple:
        """Trains a model with a seed, checkpoints in `folder`; returns the network and its learning curve."""
        settings, recipe = self.profile.training, self.profile.training.recipe(name)
        if not isinstance(recipe, BaseSettings):
            network = inputs.load_profile_model(self.profile, settings.start(name), "float32").network
            objective = Objective(recipe.objective, recipe.exit_layer, recipe.kd_map, recipe.intermediate)
            return network, self.run(network, recipe, seed, folder / "stage-1", objective)
        return self.from_scratch(recipe.stages, seed, folder, settings.shape.model_dump())

    def from_scratch(self, stages, seed: int, folder: Path, shape: dict, local=True, **how) -> tuple:
        """Trains random weights stage by stage, stage k with seed + k; returns network and learning curve.

        A stage may have fewer layers than the `shape`; `local` as in `new_network`, `how` as in `Schedule`.
        """
        import torch

        torch.manual_seed(seed)
        network, curves = None, []
        for number, stage in enumerate(stages):
            layers = getattr(stage, "layers", None)
            sizes = shape | (dict.fromkeys(DEPTH, layers) if layers else {})
            network = network or new_network(self.tokenizer, local=local, **sizes)
            network = grow(network, *(sizes[key] for key in DEPTH))
            curves.append(self.run(network, stage, seed + number, folder / f"stage-{number + 1}", **how))
        return network, joined(curves)

    def run(self, network, stage: Stage, seed: int, folder: Path, objective=VANILLA, **how) -> dict:
        """Trains a network in place for a stage, once; returns its learning curve. `how` as in `Schedule`."""
        import torch

        from ..models.training import Schedule, train_backbone

        settings, dropout = self.profile.training, getattr(stage, "dropout_rate", None)
        if settings.shape:
            set_dropout(network, settings.shape.dropout_rate if dropout is None else dropout)
            torch.set_num_threads(1)  # the fastest for mini models: train another one on the next core
        how |= dict(learning_rate=stage.learning_rate, decay=stage.decay, seed=seed)
        half = settings.shape is not None or self.profile.dtype == "bfloat16"
        how |= dict(tokens_per_batch=settings.tokens_per_batch, half=half)
        how |= {} if settings.shape else dict(rates={}, muon=False)
        finished = folder.with_suffix(".pt")
        if finished.exists():
            stored = torch.load(finished, weights_only=True)
            network.load_state_dict(stored["weights"])
            return stored["curve"]
        about = (objective, self.stage_pairs(stage, seed), self.curve_pairs(), Schedule(**how), folder)
        curve = train_backbone(network, *about, name=folder.parents[1].name)
        with complete_file(finished) as partial:
            torch.save(dict(weights=network.state_dict(), curve=curve), partial)
        return curve

    def save_weights(self, network, folder: Path, dtype: str) -> Model:
        """Stores a network in half precision, and loads it again in another."""
        import torch

        # T5-large exceeds the range of float16; the mini models keep three more bits of each weight in it
        half = torch.bfloat16 if self.profile.dtype == "bfloat16" else torch.float16
        network.to(half).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        return load_model(folder, dtype=dtype, device=self.profile.device)

    def register(self, name: str) -> None:
        """Measures a ready checkpoint and writes its manifest; its weights stay where they are."""
        from ..models.training import layer_losses

        profile = self.profile
        model = inputs.load_profile_model(profile, name, measured_in(profile))
        if model.tokenizer.get_vocab() != self.tokenizer.get_vocab():
            other = f"{profile.training.recipe(name).checkpoint} has another tokenizer than the base"
            raise MeeError(f"{other}, and cannot be compared token by token: give it another profile.")
        pairs, pad = self.curve_pairs(), model.network.config.pad_token_id
        losses = [{"step": 0, "cross_entropy": layer_losses(model.network, padded(pairs, pad))}]
        curve = {"steps": 0, "minutes": 0.0, "loss": [], "layer_cross_entropy": losses}
        place = lambda source, commit: {"checkpoint": source, "commit": commit}
        curve |= {"source": inputs.from_source(profile, name, place), "weights": ready_digest(profile, name)}
        with staged(checkpoint_folder(profile, name)) as partial:
            self.write_manifest(name, partial, model, curve, {})

    def pairs(self, tasks: Sequence[Task]) -> list:
        """Token ids of the input and the target of every example, cut to the lengths that are trained on."""
        encode = lambda texts, longest: self.tokenizer(texts, truncation=True, max_length=longest).input_ids
        sources = encode([text for task in tasks for text in task.inputs], self.profile.training.max_source)
        targets = encode([text for task in tasks for text in task.targets], self.profile.training.max_target)
        return list(zip(sources, targets, strict=True))

    @cached_property
    def extra(self) -> dict[str, Task]:
        """The further corpora of pre-training."""
        load = lambda name, corpus: load_task(corpus.task, self.profile.source(name), "train")
        return {name: load(name, corpus) for name, corpus in self.profile.extra.items()}

    def stage_pairs(self, stage: Stage, seed: int) -> list:
        """The examples that a stage asks for; tasks that are smaller than that are repeated."""
        random, found = Random(seed), []
        tasks, tokenizer = {task.name: task for task in self.tasks}, self.tokenizer
        for name, count in stage.examples.items():
            if name == SPANS:  # of source and target as one text
                sentinels = tokenizer.convert_tokens_to_ids([f"<extra_id_{i}>" for i in range(SENTINELS)])
                for source, target in repeated(self.pairs(self.tasks), count, random):
                    text = [*source[:-1], *target[:-1]]
                    found.append(corrupt_spans(text, sentinels, tokenizer.eos_token_id, random))
            elif name in tasks or name in self.profile.extra:
                task = tasks[name] if name in tasks else self.extra[name]
                found += repeated(self.pairs([task]), count, random)
            else:
                found += self.pairs([load_lesson(name, "train", count, seed)])
        return found

    def curve_pairs(self) -> list:
        """The pairs of the learning curves, drawn from the choices of all tasks."""
        pairs = self.pairs(self.choices)
        return Random(self.profile.training.seed).sample(pairs, min(CURVE, len(pairs)))

    def write_manifest(self, name: str, folder: Path, model, curve: dict, seen: dict[str, Task]) -> None:
        """Measures a model and writes what is known of it: recipe, data, scores, learning curve."""
        settings = self.profile.training
        sizes = settings.shape or model.network.config
        source = lambda task: {"source": Path(task.source).name, "examples": len(task), "sha256": task.digest}
        about = {"profile": self.profile.name, "model": name, "recipe": settings.recipe(name).model_dump()}
        about["shape"] = {key: getattr(sizes, key) for key in ShapeSettings.model_fields}
        about["parameters"] = sum(p.numel() for p in model.network.parameters())
        about |= {"seed": settings.seed, "machine": machine()}
        about["data"] = {corpus: source(task) for corpus, task in seen.items()}
        about["scores"], about["min_exit_layer"] = measure(model, self.held_out, settings.max_target)
        about |= curve
        if start := settings.start(name):
            about["base"] = weights_digest(self.profile, start)
        (folder / "manifest.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def joined(curves: Sequence[dict]) -> dict:
    """The learning curves of several stages, one after the other."""
    whole, *others = curves
    for more in others:
        for part in ("loss", "layer_cross_entropy"):
            rows = [row for row in more[part] if row["step"] > 0]
            whole[part] += [row | {"step": row["step"] + whole["steps"]} for row in rows]
        whole["steps"] += more["steps"]
        whole["minutes"] = round(whole["minutes"] + more["minutes"], 2)
    return whole


def measured_in(profile: Profile) -> str:
    """The precision that scores are measured in: the profile's, but single where that is double."""
    return "float32" if profile.dtype == "float64" else profile.dtype


def measure(model, held_out: Sequence[Task], max_target: int) -> tuple[dict[str, dict], int]:
    """Scores at full depth on every held-out split, and the first layer that is safe to exit at.

    That is the first one from which on, at every layer and on every task, at least 95 % of the tokens with a
    softmax margin above `SAFE_MARGIN` keep the last layer's prediction; and at least a third of the depth.
    """
    margin = ExitPolicy("softmax_margin", threshold=SAFE_MARGIN, min_layer=1)
    scores, layers, options = {}, [-(-model.layers // 3)], dict(max_new_tokens=max_target, batch_size=64)
    for task in held_out:
        found = generate(model, task.inputs, max_source_tokens=UNLIMITED, **options)
        values = {metric: round(value, 2) for metric, value in task.score(found.texts).items()}
        scores[task.name] = {"split": task.split, "examples": len(task), "sha256": task.digest, **values}
        if task.forms:
            scores[task.name]["exact_match_by_form"] = by_form(task, found.texts)
        few = slice(SAFE_EXAMPLES)
        seen = trace(model, task.inputs[few], outputs=found.token_ids[few], **options)
        layers.append(minimum_layer(replay_policy(seen, margin))["minimum_layer"])
    return scores, max(layers)


def by_form(task: Task, texts: Sequence[str]) -> dict[str, float]:
    """Exact match in percent for each form of question."""
    right, forms = task.score_examples(texts)["exact_match"], np.array(task.forms)
    return {form: round(float(right[forms == form].mean()), 2) for form in sorted(set(task.forms))}


def machine() -> dict:
    """What the numbers were made on."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    about = {"processor": processor(), "threads": torch.get_num_threads(), "gpu": gpu}
    about |= {"python": platform.python_version(), "torch": version("torch").split("+")[0]}
    return about | {"transformers": version("transformers").split("+")[0], "cores": os.cpu_count()}
