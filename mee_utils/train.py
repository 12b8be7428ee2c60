"""`make train`: makes the models of a profile, each with a manifest that says how and how well.

The order is fixed: a tokenizer from the training split, the pre-trained `base`, then every backbone from `base`. A model whose
folder is complete is left alone; one that was interrupted goes on from its last checkpoint. Weights are stored in half
precision (that *is* the model: scores are measured after rounding).

A ready checkpoint (a hub id or a folder) is not trained and not copied: it is downloaded once, measured, and its folder holds the manifest
alone, which names the source and the commit.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random

from .companion import (
    checkpoint_folder,
    from_source,
    load_profile_model,
    load_profile_tokenizer,
    load_tasks,
    manifest,
    weights_digest,
)
from .errors import CompanionError, check_choice
from .lock import locked_commit
from .profiles import PACKAGE, Checkpoint, Profile, ShapeSettings, Training
from .results import processor
from .tasks.sources import local_digest

HELD_OUT_CURVE = 192


def work_folder(profile: Profile, name: str) -> Path:
    """Where an unfinished training run keeps its state."""
    return PACKAGE.parent / "build" / "training" / profile.name / name


def train(profile: Profile, data: str | None = None, only: Sequence[str] = (), progress: bool = True) -> list[Path]:
    """Trains what is missing of a profile's models.

    Args:
        profile: what to train, and on what.
        data: the folder that stands for `{data}` in the profile.
        only: names of models; all of the profile's by default.
        progress: show progress bars on the terminal.

    Returns:
        The folders of the models asked for.
    """
    names = ["base", *profile.training.backbones]
    for name in only:
        check_choice("model", name, names)
    trained = {name for name in names if (checkpoint_folder(profile, name) / "manifest.json").exists()}
    wanted = [name for name in names if not only or name in only]
    missing = [name for name in wanted if name not in trained]
    if missing == ["base"] and not only:
        missing = []  # every backbone is there, and nothing else needs the base
    if missing and "base" not in trained and "base" not in missing:
        raise CompanionError(f'"{missing[0]}" starts from "base", which is not trained yet: train it first.')
    for name in names:
        if isinstance(profile.training.recipe(name), Checkpoint):
            load_profile_tokenizer(profile, name)  # pins it; a wrong id is an error before any corpus is loaded
    for name in trained & set(wanted):
        check_recipe(profile, name, data)
    if missing:
        tasks = load_tasks(profile, data, held_out=False)
        check_splits(tasks, load_tasks(profile, data))
        tokenizer = profile_tokenizer(profile, tasks)
        for name in missing:
            make = register if isinstance(profile.training.recipe(name), Checkpoint) else train_one
            make(profile, name, tasks, load_tasks(profile, data), tokenizer, progress)
    return [checkpoint_folder(profile, name) for name in wanted if name in trained or name in missing]


def check_recipe(profile: Profile, name: str, data: str | None) -> None:
    """Refuses a trained model that is not what the profile and the data now ask for."""
    found, settings = manifest(profile, name), profile.training
    recipe = settings.recipe(name)
    wanted = {"recipe": recipe.model_dump(), "seed": settings.seed}
    if settings.shape:
        wanted["shape"] = settings.shape.model_dump()
    if isinstance(recipe, Checkpoint):
        wanted["weights"] = ready_digest(profile, name)
    elif isinstance(settings.base, Checkpoint):
        wanted["base"] = ready_digest(profile, "base")
    changed = [key for key, value in wanted.items() if found.get(key) != value]
    for task in profile.corpora if not isinstance(recipe, Checkpoint) else []:
        source = profile.source(task, data)
        if source != "made" and Path(source).exists() and local_digest(Path(source), "train") != found["data"][task]["sha256"]:
            changed.append(f"training data of {task}")
    if changed:
        raise CompanionError(
            f"{profile.name}/{name} was {'made' if isinstance(recipe, Checkpoint) else 'trained'} with another {' and '.join(changed)}: delete mee_utils/checkpoints/{profile.name}/{name} "
            "to train it anew, or give the profile another name."
        )


def check_splits(train_tasks: Sequence, held_out: Sequence) -> None:
    """Refuses to measure on what was trained on."""
    for first, second in zip(train_tasks, held_out, strict=True):
        if first.digest == second.digest:
            raise CompanionError(f"{first.source} serves as training and as held-out data: give a folder with one file a split.")


def run_key(profile: Profile, name: str, tasks: Sequence) -> str:
    """What an unfinished run belongs to: recipe, shape, seed and data. A run with another key is not resumed."""
    settings = profile.training
    parts = [settings.recipe(name).model_dump(), settings.model_dump(exclude={"base", "backbones"}), [task.digest for task in tasks]]
    if name != "base":
        parts.append(weights_digest(profile, "base"))
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def prepared_work_folder(profile: Profile, name: str, tasks: Sequence) -> Path:
    """The folder of a run's state, emptied if it belongs to another run; checks that the result can be written."""
    folder, key = work_folder(profile, name), run_key(profile, name, tasks)
    checkpoint_folder(profile, name).parent.mkdir(parents=True, exist_ok=True)
    if not (folder / "key").exists() or (folder / "key").read_text() != key:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "key").write_text(key)
    return folder


def profile_tokenizer(profile: Profile, tasks: Sequence):
    """The tokenizer of the base model if there is one, else one trained on the training split."""
    from transformers import AutoTokenizer

    from .models.mini import train_tokenizer

    base = checkpoint_folder(profile, "base")
    if isinstance(profile.training.base, Checkpoint):
        return load_profile_tokenizer(profile, "base")
    if (base / "tokenizer.json").exists():
        return AutoTokenizer.from_pretrained(base)
    texts = [text for task in tasks for pair in zip(task.inputs, task.targets, strict=True) for text in pair]
    return train_tokenizer(texts, profile.training.shape.vocab_size)


def task_pairs(tokenizer, tasks: Sequence, settings: Training) -> list:
    """Token ids of the input and the target of every example."""
    from .models.batches import tokenize_pairs

    return [
        pair
        for task in tasks
        for pair in tokenize_pairs(tokenizer, task.inputs, task.targets, settings.max_source, settings.max_target)
    ]


def base_pairs(tokenizer, pairs: Sequence, task_share: float, seed: int) -> list:
    """Pre-training pairs: a share of the tasks as they are, and span corruption of source and target together."""
    from .models.batches import corrupt_spans

    random = Random(seed)
    sentinels = tokenizer.convert_tokens_to_ids([f"<extra_id_{i}>" for i in range(32)])
    mixed = []
    for source, target in pairs:
        if random.random() < task_share:
            mixed.append((source, target))
        else:
            tokens = [*source[:-1], *target[:-1]]
            mixed.append(corrupt_spans(tokens, sentinels, tokenizer.eos_token_id, random))
    return mixed


def train_one(profile: Profile, name: str, tasks: Sequence, held_out: Sequence, tokenizer, progress: bool) -> None:
    """Trains one model, stores it and measures it."""
    import torch

    from .models.mini import Shape, new_network

    settings, folder = profile.training, prepared_work_folder(profile, name, tasks)
    torch.manual_seed(settings.seed)
    pairs, curve_pairs = task_pairs(tokenizer, tasks, settings), held_out_pairs(tokenizer, held_out, settings)
    if name == "base":
        network = new_network(Shape(**settings.shape.model_dump()), tokenizer)
        curve = train_base(network, tokenizer, pairs, curve_pairs, settings, folder, progress)
    else:
        recipe, network = settings.backbones[name], load_profile_model(profile, "base", "float32").network
        ready = isinstance(settings.base, Checkpoint)
        changes = dict(embedding_rate=1.0, half=profile.dtype == "bfloat16") if ready else {}
        curve = run_training(network, recipe, pairs, curve_pairs, settings, settings.seed, folder, progress, **changes)
    store(profile, name, network, tokenizer, curve, tasks, held_out)


def held_out_pairs(tokenizer, held_out: Sequence, settings: Training) -> list:
    """The held-out pairs of the learning curves, drawn from all tasks."""
    pairs = task_pairs(tokenizer, held_out, settings)
    return Random(settings.seed).sample(pairs, min(HELD_OUT_CURVE, len(pairs)))


def run_training(network, recipe, pairs: Sequence, curve_pairs: Sequence, settings: Training, seed: int, folder: Path, progress, **changes):
    """Trains for one recipe (a backbone's, or a stage of the base). Returns the learning curves; `changes` are of the `Schedule`."""
    from .models.objectives import Objective
    from .models.training import Schedule, train_backbone

    objective = Objective("vanilla")
    if hasattr(recipe, "objective"):
        objective = Objective(recipe.objective, recipe.exit_layer, recipe.kd_map, recipe.intermediate)
    schedule = Schedule(recipe.passes, recipe.learning_rate, settings.tokens_per_batch, seed=seed, **changes)
    return train_backbone(network, objective, pairs, curve_pairs, schedule, folder, progress)


def train_base(network, tokenizer, pairs: Sequence, curve_pairs: Sequence, settings: Training, folder: Path, progress: bool):
    """Pre-trains stage by stage and joins the learning curves; a finished stage is only loaded when the run is resumed."""
    whole = None
    for number, stage in enumerate(settings.base.stages):
        seed, place = settings.seed + number, folder / f"stage-{number + 1}"
        mixed = base_pairs(tokenizer, pairs, stage.task_share, seed)
        curve = run_training(network, stage, mixed, curve_pairs, settings, seed, place, progress)
        whole = curve if whole is None else joined(whole, curve)
    return whole


def joined(first, second):
    """Two learning curves, one after the other."""
    for rows, more in ((first.loss, second.loss), (first.blocks, second.blocks)):
        rows += [row | {"step": row["step"] + first.steps} for row in more if row["step"] > 0]
    first.steps, first.minutes = first.steps + second.steps, round(first.minutes + second.minutes, 2)
    return first


def ready_digest(profile: Profile, name: str) -> str:
    """What identifies a ready checkpoint: of a hub id its commit, of a folder its weights."""
    recipe = profile.training.recipe(name)
    folder, digest = Path(recipe.source), hashlib.sha256()
    if not folder.is_dir():
        return hashlib.sha256(f"{recipe.source}@{locked_commit(profile, 'models', recipe.source, recipe.revision)}".encode()).hexdigest()
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def register(profile: Profile, name: str, tasks: Sequence, held_out: Sequence, tokenizer, progress: bool) -> None:
    """Measures a ready checkpoint and writes its manifest; its weights stay where they are."""
    from .models.batches import pad_pairs
    from .models.training import Curve, block_losses

    model = load_profile_model(profile, name, measured_in(profile))
    if model.tokenizer.get_vocab() != tokenizer.get_vocab():
        raise CompanionError(
            f'{profile.training.recipe(name).checkpoint} has another tokenizer than the base of profile "{profile.name}": models of one profile '
            "are compared token by token; give it a profile of its own."
        )
    pairs, pad = held_out_pairs(tokenizer, held_out, profile.training), model.network.config.pad_token_id
    losses = block_losses(model.network, [pad_pairs(pairs[i : i + 64], pad) for i in range(0, len(pairs), 64)])
    about = {
        "source": from_source(profile, name, lambda source, commit: {"checkpoint": source, "commit": commit}),
        "weights": ready_digest(profile, name), "scores": measure(model, held_out, profile),
    }  # fmt: skip
    partial = empty_partial(profile, name)
    described = description(profile, name, model.network, Curve(blocks=[{"step": 0, "cross_entropy": losses}]), [])
    put_in_place(profile, name, partial, described | about)


def store(profile: Profile, name: str, network, tokenizer, curve, tasks, held_out) -> None:
    """Writes weights, tokenizer and manifest; the folder appears only when all of it is there."""
    import torch

    from .models.loading import load_model

    partial = empty_partial(profile, name)
    # T5-large exceeds the range of float16; the mini models are stored in it, since it keeps three more bits of each weight
    network.to(torch.bfloat16 if profile.dtype == "bfloat16" else torch.float16).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    scores = measure(load_model(partial, dtype=measured_in(profile), device=profile.device), held_out, profile)
    put_in_place(profile, name, partial, description(profile, name, network, curve, tasks) | {"scores": scores})


def empty_partial(profile: Profile, name: str) -> Path:
    """An empty folder beside the one that a model will have."""
    partial = checkpoint_folder(profile, name).with_name(f".{name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def description(profile: Profile, name: str, network, curve, tasks: Sequence) -> dict:
    """The manifest of a model, but for its scores."""
    settings, config = profile.training, network.config
    sizes = {key: getattr(config, key) for key in ShapeSettings.model_fields}
    base = {"base": ready_digest(profile, "base")} if isinstance(settings.base, Checkpoint) and name != "base" else {}
    return {
        "profile": profile.name,
        "model": name,
        "recipe": settings.recipe(name).model_dump(),
        "shape": settings.shape.model_dump() if settings.shape else sizes,
        "parameters": sum(p.numel() for p in network.parameters()),
        "seed": settings.seed,
        "steps": curve.steps,
        "minutes": curve.minutes,
        "machine": machine(),
        "data": {task.name: {"source": Path(task.source).name, "examples": len(task), "sha256": task.digest} for task in tasks},
        **base,
        "scores": {},
        "loss": curve.loss,
        "block_cross_entropy": curve.blocks,
    }


def put_in_place(profile: Profile, name: str, partial: Path, about: dict) -> None:
    """Writes the manifest and gives the finished folder its name."""
    target = checkpoint_folder(profile, name)
    (partial / "manifest.json").write_text(json.dumps(about, indent=1) + "\n")
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    shutil.rmtree(work_folder(profile, name), ignore_errors=True)


def measured_in(profile: Profile) -> str:
    """The precision that scores are measured in: the profile's, but single where that is double."""
    return "float32" if profile.dtype == "float64" else profile.dtype


def measure(model, held_out: Sequence, profile: Profile) -> dict:
    """Full-depth scores of a model on every held-out split."""
    from .decoding.greedy import detokenize, greedy

    scores = {}
    for task in held_out:
        texts = detokenize(model, greedy(model, task.inputs, profile.training.max_target, batch_size=64))
        scores[task.name] = {
            "split": task.split, "examples": len(task), "sha256": task.digest,
            **{metric: round(value, 2) for metric, value in task.score(texts).items()},
        }  # fmt: skip
    return scores


def machine() -> dict:
    """What the numbers were made on."""
    import torch
    import transformers

    return {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "cores": os.cpu_count(),
    }
