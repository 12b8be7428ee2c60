"""`make train`: makes the mini models of a profile, each with a manifest that says how and how well.

The order is fixed: a tokenizer from the training split, the pre-trained `base`, then every backbone from `base`. A model whose
folder is complete is left alone; one that was interrupted goes on from its last checkpoint. Weights are stored in half
precision (that *is* the model: scores are measured after rounding).
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

from .companion import checkpoint_folder, fingerprint, load_tasks, manifest
from .errors import CompanionError, check_choice
from .profiles import PACKAGE, Profile, Training
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
    for name in trained & set(wanted):
        check_recipe(profile, name, data)
    if missing:
        tasks = load_tasks(profile, data, held_out=False)
        check_splits(tasks, load_tasks(profile, data))
        tokenizer = profile_tokenizer(profile, tasks)
        for name in missing:
            train_one(profile, name, tasks, load_tasks(profile, data), tokenizer, progress)
    return [checkpoint_folder(profile, name) for name in wanted if name in trained or name in missing]


def check_recipe(profile: Profile, name: str, data: str | None) -> None:
    """Refuses a trained model that is not what the profile and the data now ask for."""
    found, settings = manifest(profile, name), profile.training
    recipe = settings.base if name == "base" else settings.backbones[name]
    wanted = {"recipe": recipe.model_dump(), "shape": settings.shape.model_dump(), "seed": settings.seed}
    changed = [key for key, value in wanted.items() if found[key] != value]
    for task in profile.corpora:
        source = profile.source(task, data)
        if source != "made" and Path(source).exists() and local_digest(Path(source), "train") != found["data"][task]["sha256"]:
            changed.append(f"training data of {task}")
    if changed:
        raise CompanionError(
            f"{profile.name}/{name} was trained with another {' and '.join(changed)}: delete mee_utils/checkpoints/{profile.name}/{name} "
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
    recipe = settings.base if name == "base" else settings.backbones[name]
    parts = [recipe.model_dump(), settings.model_dump(exclude={"base", "backbones"}), [task.digest for task in tasks]]
    if name != "base":
        parts.append(fingerprint(checkpoint_folder(profile, "base")))
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

    from .models.loading import load_model
    from .models.mini import Shape, new_network

    settings, folder = profile.training, prepared_work_folder(profile, name, tasks)
    torch.manual_seed(settings.seed)
    pairs, curve_pairs = task_pairs(tokenizer, tasks, settings), task_pairs(tokenizer, held_out, settings)
    curve_pairs = Random(settings.seed).sample(curve_pairs, min(HELD_OUT_CURVE, len(curve_pairs)))
    if name == "base":
        recipe, network = settings.base, new_network(Shape(**settings.shape.model_dump()), tokenizer)
        curve = train_base(network, tokenizer, pairs, curve_pairs, settings, folder, progress)
    else:
        recipe = settings.backbones[name]
        network = load_model(checkpoint_folder(profile, "base"), device=profile.device).network
        curve = run_training(network, recipe, pairs, curve_pairs, settings, settings.seed, folder, progress)
    store(profile, name, network, tokenizer, curve, tasks, held_out, recipe)


def run_training(network, recipe, pairs: Sequence, curve_pairs: Sequence, settings: Training, seed: int, folder: Path, progress):
    """Trains for one recipe (a backbone's, or a stage of the base). Returns the learning curves."""
    from .models.objectives import Objective
    from .models.training import Schedule, train_backbone

    objective = Objective("vanilla")
    if hasattr(recipe, "objective"):
        objective = Objective(recipe.objective, recipe.exit_layer, recipe.kd_map, recipe.intermediate)
    schedule = Schedule(recipe.passes, recipe.learning_rate, settings.tokens_per_batch, seed=seed)
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


def store(profile: Profile, name: str, network, tokenizer, curve, tasks, held_out, recipe) -> None:
    """Writes weights, tokenizer and manifest; the folder appears only when all of it is there."""
    import torch

    target = checkpoint_folder(profile, name)
    partial = target.with_name(f".{name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    network.to(torch.float16).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    about = {
        "profile": profile.name,
        "model": name,
        "recipe": recipe.model_dump(),
        "shape": profile.training.shape.model_dump(),
        "parameters": sum(p.numel() for p in network.parameters()),
        "seed": profile.training.seed,
        "steps": curve.steps,
        "minutes": curve.minutes,
        "machine": machine(),
        "data": {task.name: {"source": Path(task.source).name, "examples": len(task), "sha256": task.digest} for task in tasks},
        "scores": measure(partial, held_out, profile),
        "loss": curve.loss,
        "block_cross_entropy": curve.blocks,
    }
    (partial / "manifest.json").write_text(json.dumps(about, indent=1) + "\n")
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    shutil.rmtree(work_folder(profile, name), ignore_errors=True)


def measure(folder: Path, held_out: Sequence, profile: Profile) -> dict:
    """Full-depth scores of a stored model on every held-out split."""
    from .decoding.greedy import detokenize, greedy
    from .models.loading import load_model

    model = load_model(folder, device=profile.device)
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
