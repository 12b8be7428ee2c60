"""`make train`: makes the models of a profile, each with a manifest that says how and how well.

A tokenizer from the training split, the pre-trained `base`, then every backbone from `base`; one that was
interrupted goes on from its last checkpoint. Weights are stored in half precision, and scores measured after
rounding. A ready checkpoint is only measured: its folder holds the manifest alone.
"""

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from random import Random

from .. import CompanionError, ExitPolicy, Objective, Task, generate, load_model, trace
from ..analysis.pruning import minimum_layer
from ..common.errors import check_choice
from ..common.files import ROOT
from ..decoding.inputs import UNLIMITED
from ..models.batches import corrupt_spans, pad_pairs
from ..models.mini import new_network, train_tokenizer
from ..traces.replay import replay_policy
from . import inputs
from .inputs import checkpoint_folder, is_trained, load_profile_tokenizer, ready_digest, weights_digest
from .profiles import Checkpoint, Profile, ShapeSettings
from .results import processor, staged

HELD_OUT_CURVE = 192
SAFE_MARGIN, SAFE_EXAMPLES = 0.9, 200  # for the first safe layer; examples of each task


def train(profile: Profile, only: Sequence[str] = ()) -> list[Path]:
    """Trains what is missing of a profile's models, or of `only` some; returns the folders of these."""
    names, settings = ["base", *profile.training.backbones], profile.training
    for name in only:
        check_choice("model", name, names)
    wanted = [name for name in names if not only or name in only]
    missing = [name for name in wanted if not is_trained(profile, name)]
    if missing == ["base"] and not only:
        missing = []  # every backbone is there, and nothing else needs the base
    if missing and missing[0] != "base" and not is_trained(profile, "base"):
        raise CompanionError(f'"{missing[0]}" starts from "base", which is not trained yet: train it first.')
    ready = [name for name in names if isinstance(settings.recipe(name), Checkpoint)]
    for name in ready:
        load_profile_tokenizer(profile, name)  # a wrong id is an error before any corpus is loaded
    for name in wanted:
        if is_trained(profile, name):
            inputs.check_recipe(profile, name)
    if missing:
        tasks, held_out = inputs.load_tasks(profile, held_out=False), inputs.load_tasks(profile)
        check_splits(tasks, held_out)
        maker = Maker(profile, tasks, held_out, profile_tokenizer(profile, tasks))
        for name in missing:
            maker.register(name) if name in ready else maker.train(name)
    return [checkpoint_folder(profile, name) for name in wanted if is_trained(profile, name)]


def check_splits(train_tasks: Sequence[Task], held_out: Sequence[Task]) -> None:
    """Refuses to measure on what was trained on."""
    for first, second in zip(train_tasks, held_out, strict=True):
        if first.digest == second.digest:
            advice = "give a folder with one file a split"
            raise CompanionError(f"{first.source} is training and held-out data at once: {advice}.")


def work_folder(profile: Profile, name: str, tasks: Sequence[Task]) -> Path:
    """Where an unfinished run keeps its checkpoints: one folder a recipe, seed, base and training data."""
    settings = profile.training
    parts = [settings.recipe(name).model_dump(), settings.model_dump(exclude={"base", "backbones"})]
    parts += [[task.digest for task in tasks], None if name == "base" else weights_digest(profile, "base")]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    return ROOT / "build" / "training" / profile.name / name / key


def profile_tokenizer(profile: Profile, tasks: Sequence[Task]):
    """The tokenizer of the base model if there is one, else one trained on the training split."""
    if isinstance(profile.training.base, Checkpoint) or is_trained(profile, "base"):
        return load_profile_tokenizer(profile, "base")
    texts = [text for task in tasks for pair in zip(task.inputs, task.targets, strict=True) for text in pair]
    return train_tokenizer(texts, profile.training.shape.vocab_size)


@dataclass(frozen=True)
class Maker:
    """Makes the models of one profile from its training split; learning curves and scores are held out."""

    profile: Profile
    tasks: Sequence[Task]
    held_out: Sequence[Task]
    tokenizer: object

    def train(self, name: str) -> None:
        """Trains one model, stores it and measures it."""
        import torch

        from ..models.training import Schedule, train_backbone

        profile, settings, recipe = self.profile, self.profile.training, self.profile.training.recipe(name)
        folder, half = work_folder(profile, name, self.tasks), profile.dtype == "bfloat16"
        torch.manual_seed(settings.seed)
        pairs, curve_pairs = self.pairs(self.tasks), self.curve_pairs()

        def run(objective, stage, pairs, seed, place, **changes):
            rates = dict(passes=stage.passes, learning_rate=stage.learning_rate, seed=seed, **changes)
            schedule = Schedule(tokens_per_batch=settings.tokens_per_batch, **rates)
            return train_backbone(network, objective, pairs, curve_pairs, schedule, place, progress=True)

        if name == "base":
            network, curves = new_network(self.tokenizer, **settings.shape.model_dump()), []
            for number, stage in enumerate(recipe.stages):
                seed, place = settings.seed + number, folder / f"stage-{number + 1}"
                mixed = base_pairs(self.tokenizer, pairs, stage.task_share, seed)
                curves.append(run(Objective("vanilla"), stage, mixed, seed, place))
        else:
            network = inputs.load_profile_model(profile, "base", "float32").network
            changes = {} if settings.shape else dict(embedding_rate=1.0, half=half)
            objective = Objective(recipe.objective, recipe.exit_layer, recipe.kd_map, recipe.intermediate)
            curves = [run(objective, recipe, pairs, settings.seed, folder, **changes)]
        with staged(checkpoint_folder(profile, name)) as partial:
            # T5-large exceeds the range of float16; the mini models keep three more bits of each weight in it
            network.to(torch.bfloat16 if half else torch.float16).save_pretrained(partial)
            self.tokenizer.save_pretrained(partial)
            model = load_model(partial, dtype=measured_in(profile), device=profile.device)
            self.write_manifest(name, partial, model, joined(curves), self.tasks)
        shutil.rmtree(folder.parent)

    def register(self, name: str) -> None:
        """Measures a ready checkpoint and writes its manifest; its weights stay where they are."""
        from ..models.training import layer_losses

        profile = self.profile
        model = inputs.load_profile_model(profile, name, measured_in(profile))
        if model.tokenizer.get_vocab() != self.tokenizer.get_vocab():
            other = f'another tokenizer than the base of profile "{profile.name}"'
            raise CompanionError(
                f"{profile.training.recipe(name).checkpoint} has {other}: models of one profile are compared "
                "token by token; give it another profile."
            )
        pairs, pad = self.curve_pairs(), model.network.config.pad_token_id
        batches = [pad_pairs(pairs[i : i + 64], pad) for i in range(0, len(pairs), 64)]
        losses = [{"step": 0, "cross_entropy": layer_losses(model.network, batches)}]
        curve = {"steps": 0, "minutes": 0.0, "loss": [], "layer_cross_entropy": losses}
        place = lambda source, commit: {"checkpoint": source, "commit": commit}
        curve |= {"source": inputs.from_source(profile, name, place), "weights": ready_digest(profile, name)}
        with staged(checkpoint_folder(profile, name)) as partial:
            self.write_manifest(name, partial, model, curve, [])

    def pairs(self, tasks: Sequence[Task]) -> list:
        """Token ids of the input and the target of every example, cut to the lengths that are trained on."""
        settings, ids = self.profile.training, []
        for column, longest in (("inputs", settings.max_source), ("targets", settings.max_target)):
            texts = [text for task in tasks for text in getattr(task, column)]
            ids.append(self.tokenizer(texts, truncation=True, max_length=longest).input_ids)
        return list(zip(*ids, strict=True))

    def curve_pairs(self) -> list:
        """The held-out pairs of the learning curves, drawn from all tasks."""
        pairs = self.pairs(self.held_out)
        return Random(self.profile.training.seed).sample(pairs, min(HELD_OUT_CURVE, len(pairs)))

    def write_manifest(self, name: str, folder: Path, model, curve: dict, tasks: Sequence[Task]) -> None:
        """Measures a model and writes what is known of it: recipe, data, scores, learning curve."""
        settings = self.profile.training
        scores, min_exit_layer = measure(model, self.held_out, settings.max_target)
        sizes = settings.shape or model.network.config
        source = lambda task: {"source": Path(task.source).name, "examples": len(task), "sha256": task.digest}
        about = {
            "profile": self.profile.name,
            "model": name,
            "recipe": settings.recipe(name).model_dump(),
            "shape": {key: getattr(sizes, key) for key in ShapeSettings.model_fields},
            "parameters": sum(p.numel() for p in model.network.parameters()),
            "seed": settings.seed,
            "machine": machine(),
            "data": {task.name: source(task) for task in tasks},
            "scores": scores,
            "min_exit_layer": min_exit_layer,
            **curve,
        }
        if isinstance(settings.base, Checkpoint) and name != "base":
            about["base"] = ready_digest(self.profile, "base")
        (folder / "manifest.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def base_pairs(tokenizer, pairs: Sequence, task_share: float, seed: int) -> list:
    """Pre-training pairs: a share of the tasks as they are; of the others source and target corrupted."""
    random = Random(seed)
    sentinels = tokenizer.convert_tokens_to_ids([f"<extra_id_{i}>" for i in range(32)])
    corrupted = lambda tokens: corrupt_spans(tokens, sentinels, tokenizer.eos_token_id, random)
    return [
        (source, target) if random.random() < task_share else corrupted([*source[:-1], *target[:-1]])
        for source, target in pairs
    ]


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
    scores, layers = {}, [-(-model.layers // 3)]
    options = dict(max_new_tokens=max_target, batch_size=64)
    for task in held_out:
        found = generate(model, task.inputs, max_source_tokens=UNLIMITED, **options)
        values = {metric: round(value, 2) for metric, value in task.score(found.texts).items()}
        scores[task.name] = {"split": task.split, "examples": len(task), "sha256": task.digest, **values}
        outputs = found.token_ids[:SAFE_EXAMPLES]
        seen = trace(model, task.inputs[:SAFE_EXAMPLES], outputs=outputs, **options)
        layers.append(minimum_layer(replay_policy(seen, margin))["minimum_layer"])
    return scores, max(layers)


def machine() -> dict:
    """What the numbers were made on."""
    import torch

    return {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        **{name: version(name).split("+")[0] for name in ("torch", "transformers")},
        "cores": os.cpu_count(),
    }
