"""`make train`: makes the models of a profile, each with a manifest that says how and how well.

The order is fixed: a tokenizer from the training split, the pre-trained `base`, then every backbone from
`base`. A model whose folder is complete is left alone; one that was interrupted goes on from its last
checkpoint. Weights are stored in half precision, and scores are measured after rounding.

A ready checkpoint (a hub id or a folder) is neither trained nor copied: it is measured, and its folder holds
the manifest alone, which names the source and the commit.
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

from ..common.errors import CompanionError, check_choice
from ..common.files import ROOT
from ..tasks.sources import local_files
from .hub_lock import locked_commit
from .inputs import (
    checkpoint_folder,
    from_source,
    is_trained,
    load_profile_model,
    load_profile_tokenizer,
    load_tasks,
    manifest,
    weights_digest,
)
from .profiles import Checkpoint, Profile, ShapeSettings, Training
from .results import processor

HELD_OUT_CURVE = 192
SAFE_MARGIN, SAFE_EXAMPLES = 0.9, 200  # for the first safe layer; examples of each task


def train(
    profile: Profile, data: str | None = None, only: Sequence[str] = (), progress: bool = True
) -> list[Path]:
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
    wanted = [name for name in names if not only or name in only]
    missing = [name for name in wanted if not is_trained(profile, name)]
    if missing == ["base"] and not only:
        missing = []  # every backbone is there, and nothing else needs the base
    if missing and missing[0] != "base" and not is_trained(profile, "base"):
        raise CompanionError(f'"{missing[0]}" starts from "base", which is not trained yet: train it first.')
    for name in names:
        if isinstance(profile.training.recipe(name), Checkpoint):
            load_profile_tokenizer(profile, name)  # a wrong id is an error before any corpus is loaded
    for name in wanted:
        if is_trained(profile, name):
            check_recipe(profile, name, data)
    if missing:
        tasks, held_out = load_tasks(profile, data, held_out=False), load_tasks(profile, data)
        check_splits(tasks, held_out)
        tokenizer = profile_tokenizer(profile, tasks)
        for name in missing:
            ready = isinstance(profile.training.recipe(name), Checkpoint)
            (register if ready else train_one)(profile, name, tasks, held_out, tokenizer, progress)
    return [checkpoint_folder(profile, name) for name in wanted if is_trained(profile, name)]


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
        source, seen = Path(profile.source(task, data)), found["data"].get(task)
        local = str(source) != "synthetic" and source.exists()
        if seen is None or (local and local_files(source, "train")[1] != seen["sha256"]):
            changed.append(f"training data of {task}")
    if changed:
        raise CompanionError(
            f"{profile.name}/{name} was trained with another {' and '.join(changed)}: delete "
            f"mee_utils/checkpoints/{profile.name}/{name} to train it anew, or give the profile another name."
        )


def check_splits(train_tasks: Sequence, held_out: Sequence) -> None:
    """Refuses to measure on what was trained on."""
    for first, second in zip(train_tasks, held_out, strict=True):
        if first.digest == second.digest:
            raise CompanionError(
                f"{first.source} is training and held-out data at once: give a folder with one file a split."
            )


def work_folder(profile: Profile, name: str, tasks: Sequence) -> Path:
    """Where an unfinished run keeps its checkpoints: one folder a recipe, seed, base and training data."""
    settings = profile.training
    parts = [
        settings.recipe(name).model_dump(),
        settings.model_dump(exclude={"base", "backbones"}),
        [task.digest for task in tasks],
        None if name == "base" else weights_digest(profile, "base"),
    ]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    return ROOT / "build" / "training" / profile.name / name / key


def profile_tokenizer(profile: Profile, tasks: Sequence):
    """The tokenizer of the base model if there is one, else one trained on the training split."""
    from ..models.mini import train_tokenizer

    if isinstance(profile.training.base, Checkpoint) or is_trained(profile, "base"):
        return load_profile_tokenizer(profile, "base")
    texts = [text for task in tasks for pair in zip(task.inputs, task.targets, strict=True) for text in pair]
    return train_tokenizer(texts, profile.training.shape.vocab_size)


def task_pairs(tokenizer, tasks: Sequence, settings: Training) -> list:
    """Token ids of the input and the target of every example, cut to the lengths that are trained on."""
    sources, targets = [text for t in tasks for text in t.inputs], [text for t in tasks for text in t.targets]
    longest = {"truncation": True, "max_length": settings.max_source}
    ids = tokenizer(sources, **longest).input_ids
    return list(zip(ids, tokenizer(targets, **longest | {"max_length": settings.max_target}).input_ids))


def held_out_pairs(tokenizer, held_out: Sequence, settings: Training) -> list:
    """The held-out pairs of the learning curves, drawn from all tasks."""
    pairs = task_pairs(tokenizer, held_out, settings)
    return Random(settings.seed).sample(pairs, min(HELD_OUT_CURVE, len(pairs)))


def base_pairs(tokenizer, pairs: Sequence, task_share: float, seed: int) -> list:
    """Pre-training pairs: a share of the tasks as they are; of the others source and target corrupted."""
    from ..models.batches import corrupt_spans

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


def train_one(
    profile: Profile, name: str, tasks: Sequence, held_out: Sequence, tokenizer, progress: bool
) -> None:
    """Trains one model, stores it and measures it."""
    import torch

    from ..models.loading import load_model
    from ..models.mini import new_network
    from ..models.objectives import Objective
    from ..models.training import Schedule, train_backbone

    settings, recipe = profile.training, profile.training.recipe(name)
    folder, partial = work_folder(profile, name, tasks), empty_partial(profile, name)
    torch.manual_seed(settings.seed)
    pairs, curve_pairs = task_pairs(tokenizer, tasks, settings), held_out_pairs(tokenizer, held_out, settings)

    def run(objective, stage, pairs, seed, place, **changes):
        rates = dict(passes=stage.passes, learning_rate=stage.learning_rate, seed=seed, **changes)
        schedule = Schedule(tokens_per_batch=settings.tokens_per_batch, **rates)
        return train_backbone(network, objective, pairs, curve_pairs, schedule, place, progress)

    if name == "base":
        network, curves = new_network(tokenizer, **settings.shape.model_dump()), []
        for number, stage in enumerate(recipe.stages):
            seed, place = settings.seed + number, folder / f"stage-{number + 1}"
            mixed = base_pairs(tokenizer, pairs, stage.task_share, seed)
            curves.append(run(Objective("vanilla"), stage, mixed, seed, place))
    else:
        network, ready = load_profile_model(profile, "base", "float32").network, settings.shape is None
        changes = dict(embedding_rate=1.0, half=profile.dtype == "bfloat16") if ready else {}
        objective = Objective(recipe.objective, recipe.exit_layer, recipe.kd_map, recipe.intermediate)
        curves = [run(objective, recipe, pairs, settings.seed, folder, **changes)]
    # T5-large exceeds the range of float16; the mini models keep three more bits of each weight in it
    network.to(torch.bfloat16 if profile.dtype == "bfloat16" else torch.float16).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    model = load_model(partial, dtype=measured_in(profile), device=profile.device)
    finish(profile, name, partial, model, joined(curves), tasks, held_out)
    shutil.rmtree(folder.parent)


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


def ready_digest(profile: Profile, name: str) -> str:
    """What identifies a ready checkpoint: of a hub id its commit, of a folder its weights."""
    recipe = profile.training.recipe(name)
    folder, digest = Path(recipe.source), hashlib.sha256()
    if folder.is_dir():
        for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
            digest.update(path.read_bytes())
    else:
        commit = locked_commit(profile.lock, "models", recipe.source, recipe.revision)
        digest.update(f"{recipe.source}@{commit}".encode())
    return digest.hexdigest()


def register(
    profile: Profile, name: str, tasks: Sequence, held_out: Sequence, tokenizer, progress: bool
) -> None:
    """Measures a ready checkpoint and writes its manifest; its weights stay where they are."""
    from ..models.batches import pad_pairs
    from ..models.training import layer_losses

    model = load_profile_model(profile, name, measured_in(profile))
    if model.tokenizer.get_vocab() != tokenizer.get_vocab():
        raise CompanionError(
            f"{profile.training.recipe(name).checkpoint} has another tokenizer than the base of profile "
            f'"{profile.name}": models of one profile are compared token by token; give it another profile.'
        )
    pairs, pad = held_out_pairs(tokenizer, held_out, profile.training), model.network.config.pad_token_id
    batches = [pad_pairs(pairs[i : i + 64], pad) for i in range(0, len(pairs), 64)]
    losses = [{"step": 0, "cross_entropy": layer_losses(model.network, batches)}]
    curve = {"steps": 0, "minutes": 0.0, "loss": [], "layer_cross_entropy": losses}
    source = from_source(profile, name, lambda source, commit: {"checkpoint": source, "commit": commit})
    about = {"source": source, "weights": ready_digest(profile, name)}
    finish(profile, name, empty_partial(profile, name), model, curve | about, [], held_out)


def empty_partial(profile: Profile, name: str) -> Path:
    """An empty folder beside the one that a model will have."""
    partial = checkpoint_folder(profile, name).with_name(f".{name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise CompanionError(f"{partial} cannot be written ({error.strerror}): make it writable.") from error
    return partial


def finish(profile: Profile, name: str, partial: Path, model, curve: dict, tasks, held_out) -> None:
    """Measures a model, writes its manifest and gives the finished folder its name."""
    settings, config, target = profile.training, model.network.config, checkpoint_folder(profile, name)
    sizes = {key: getattr(config, key) for key in ShapeSettings.model_fields}
    scores, min_exit_layer = measure(model, held_out, settings.max_target)
    data = {t.name: {"source": Path(t.source).name, "examples": len(t), "sha256": t.digest} for t in tasks}
    about = {
        "profile": profile.name,
        "model": name,
        "recipe": settings.recipe(name).model_dump(),
        "shape": settings.shape.model_dump() if settings.shape else sizes,
        "parameters": sum(p.numel() for p in model.network.parameters()),
        "seed": settings.seed,
        "machine": machine(),
        "data": data,
        "scores": scores,
        "min_exit_layer": min_exit_layer,
        **curve,
    }
    if isinstance(settings.base, Checkpoint) and name != "base":
        about["base"] = ready_digest(profile, "base")
    (partial / "manifest.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def measured_in(profile: Profile) -> str:
    """The precision that scores are measured in: the profile's, but single where that is double."""
    return "float32" if profile.dtype == "float64" else profile.dtype


def measure(model, held_out: Sequence, max_target: int) -> tuple[dict[str, dict], int]:
    """Scores at full depth on every held-out split, and the first layer that is safe to exit at.

    That is the first one from which on, at every layer and on every task, at least 95 % of the tokens with a
    softmax margin above `SAFE_MARGIN` keep the prediction of the last layer; and at least a third of the
    depth.
    """
    from ..analysis.pruning import minimum_layer
    from ..decoding.generation import generate
    from ..decoding.inputs import UNLIMITED
    from ..exits.policy import ExitPolicy
    from ..traces.replay import replay_policy
    from ..traces.trace import trace

    margin = ExitPolicy("softmax_margin", threshold=SAFE_MARGIN, min_layer=1)
    scores, layers = {}, [-(-model.layers // 3)]
    options = dict(max_new_tokens=max_target, batch_size=64)
    for task in held_out:
        found = generate(model, task.inputs, max_source_tokens=UNLIMITED, **options)
        values = {metric: round(value, 2) for metric, value in task.score(found.texts).items()}
        about = {"split": task.split, "examples": len(task), "sha256": task.digest}
        scores[task.name] = about | values
        outputs = found.token_ids[:SAFE_EXAMPLES]
        seen = trace(model, task.inputs[:SAFE_EXAMPLES], outputs=outputs, **options)
        layers.append(minimum_layer(replay_policy(seen, margin))["minimum_layer"])
    return scores, max(layers)


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
