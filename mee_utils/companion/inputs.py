"""Where a profile's models and corpora are, and how they are loaded: hub ids at their pinned commits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.chats import in_template
from ..common.errors import MeeError
from ..common.files import PACKAGE, read_json
from ..tasks.loading import Task, load_task, shortened
from ..tasks.sources import local_files
from .profiles import Checkpoint, Extra, HubSource, Profile
from .running.pins import hub_commit

if TYPE_CHECKING:
    from ..models.loading import Model

# d_model below which a model runs on one thread: the fastest, with the same sums on every machine
ONE_THREAD_BELOW = 256


def checkpoint_folder(profile: Profile, name: str) -> Path:
    """Where a model of a profile is, or will be; of a ready checkpoint only its manifest."""
    return PACKAGE / "checkpoints" / profile.name / name


def is_trained(profile: Profile, name: str) -> bool:
    """Whether a model of a profile is there."""
    return (checkpoint_folder(profile, name) / "manifest.json").exists()


def manifest(profile: Profile, name: str) -> dict:
    """How a model was made and how well it does, as `make train` recorded it; an error if it is not there."""
    if is_trained(profile, name):
        return read_json(checkpoint_folder(profile, name) / "manifest.json", "shape")
    ready = profile.training.checkpoints(name)
    base = profile.training.base
    if ready:
        sources = ", ".join(checkpoint.checkpoint for checkpoint in ready.values())
        lacking = f'record of the ready model "{name}" ({sources}), which is measured once before use'
    else:
        source = f" (from {base.checkpoint})" if isinstance(base, Checkpoint) else ""
        lacking = f'trained model "{name}"{source}'
    command = f"make train PROFILE={profile.file or profile.name}"
    raise MeeError(f'Profile "{profile.name}" has no {lacking}: run "{command}", if need be with DATA=...')


def model_shape(profile: Profile) -> dict[str, int]:
    """Sizes of a profile's models, named as in `T5Config`: those of its first backbone."""
    return manifest(profile, next(iter(profile.training.backbones)))["shape"]


def weights_digest(profile: Profile, name: str) -> str:
    """What identifies a model's weights: their sha256; of a ready checkpoint what `make train` recorded."""
    if profile.training.checkpoints(name):
        return manifest(profile, name)["weights"]
    path = checkpoint_folder(profile, name) / "model.safetensors"
    if not path.is_file():
        restore = (
            f"restore it with git checkout, or delete {path.parent} and make the model again (make train)"
        )
        raise MeeError(f'The weights of "{name}" are missing: there is no file {path}; {restore}.')
    return _sha256(path, path.stat().st_mtime_ns)


@lru_cache
def _sha256(path: Path, modified: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def ready_digest(profile: Profile, name: str) -> str:
    """What identifies a ready model, of one checkpoint or of one for each task."""
    checkpoints = profile.training.checkpoints(name)
    digests = {task: _checkpoint_digest(checkpoint) for task, checkpoint in checkpoints.items()}
    if None in digests:
        return digests[None]
    return hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()


def _checkpoint_digest(checkpoint: Checkpoint) -> str:
    """What identifies a ready checkpoint: of a hub id its commit, of a folder its weights."""
    folder = Path(checkpoint.source)
    digest = hashlib.sha256()
    if folder.is_dir():
        folders = [folder, checkpoint.adapter_folder] if checkpoint.adapter else [folder]
        for weights in folders:
            for path in sorted([*weights.glob("*.safetensors"), *weights.glob("*.bin")]):
                digest.update(path.read_bytes())
    else:
        digest.update(f"{checkpoint.source}@{_commit(checkpoint)}".encode())
    return digest.hexdigest()


def _commit(source: HubSource) -> str | None:
    return hub_commit("model", source.source, source.revision)


def extra_corpora(profile: Profile, name: str) -> list[str]:
    """The further corpora that a model is pre-trained on."""
    stages = getattr(profile.training.recipe(name), "stages", [])
    return [corpus for corpus in profile.extra if any(corpus in stage.examples for stage in stages)]


def check_recipe(profile: Profile, name: str) -> None:
    """Refuses a trained model that is not what the profile and the data now ask for."""
    settings = profile.training
    recorded = manifest(profile, name)
    recorded["recipe"] = _comparable(recorded.get("recipe", {}))
    wanted = {"recipe": _comparable(settings.recipe(name).model_dump()), "seed": settings.seed}
    if settings.shape:
        wanted["shape"] = settings.shape.model_dump()
    start = settings.start(name)
    if settings.checkpoints(name):
        wanted["weights"] = ready_digest(profile, name)
    elif start and is_trained(profile, start):
        ready = settings.checkpoints(start)
        wanted["base"] = ready_digest(profile, start) if ready else weights_digest(profile, start)
    changed = [key for key, value in wanted.items() if recorded.get(key) != value]
    if not settings.checkpoints(name):
        for task in [*profile.corpora, *extra_corpora(profile, name)]:
            if not _is_training_data(profile, task, recorded["data"].get(task)):
                changed.append(f"training data of {task}")
    if changed:
        folder = checkpoint_folder(profile, name)
        differing = " and ".join(changed)
        raise MeeError(f"{folder} was trained with another {differing}: delete it, or rename the profile.")


def _comparable(recipe):
    """A recipe without revisions, since weights tell commits apart, and without what is not set."""
    if not isinstance(recipe, dict):
        return recipe
    return {
        key: _comparable(value) for key, value in recipe.items() if key != "revision" and value is not None
    }


def _is_training_data(profile: Profile, name: str, recorded: dict | None) -> bool:
    """Whether a corpus is what a manifest says a model was trained on; of other than local ones its name."""
    if recorded is None:
        return False
    source = Path(profile.source(name))
    if str(source) == "synthetic" or not source.exists():
        return True
    return local_files(source, "train", profile.corpus(name).folder)[1] == recorded["sha256"]


def ready_checkpoint(profile: Profile, name: str, task: str | None = None) -> Checkpoint | None:
    """The checkpoint of a ready model, for a task where it has one for each; None of a trained model."""
    checkpoints = profile.training.checkpoints(name)
    if not checkpoints or None in checkpoints:
        return checkpoints.get(None)
    if task not in checkpoints:
        tasks = ", ".join(checkpoints)
        raise MeeError(
            f'Model "{name}" of profile "{profile.name}" has one checkpoint per task: name one of {tasks}.'
        )
    return checkpoints[task]


def from_source(profile: Profile, name: str, load: Callable, task: str | None = None):
    """Calls `load(folder or hub id, commit)` for a model of a profile, trained here or ready."""
    checkpoint = ready_checkpoint(profile, name, task)
    if checkpoint is None:
        return load(str(checkpoint_folder(profile, name)), None)
    return load(checkpoint.source, _commit(checkpoint))


def load_profile_model(
    profile: Profile, name: str, dtype: str | None = None, task: str | None = None
) -> Model:
    """Loads a model on the profile's device, in `dtype` or the profile's precision.

    `task` chooses among the checkpoints of a model that has one for each.
    """
    import torch

    from ..models.loading import load_model

    measured = manifest(profile, name) if is_trained(profile, name) else {}
    if measured and measured["shape"]["d_model"] < ONE_THREAD_BELOW:
        torch.set_num_threads(1)

    checkpoint = ready_checkpoint(profile, name, task)
    named = checkpoint is not None and checkpoint.tokenizer is not None

    def load(source: str, commit: str | None) -> Model:
        return load_model(
            source,
            commit,
            dtype=dtype or profile.dtype,
            device=profile.device,
            name=name,
            tokenizer=load_profile_tokenizer(profile, name, task) if named else None,
            adapter=checkpoint.adapter_folder if checkpoint else None,
        )

    model = from_source(profile, name, load, task)
    # a tokenizer may know a shorter limit than the model that it is used for, as T5's does for LongT5
    limit = max(model.tokenizer.model_max_length, profile.training.max_source)
    model.tokenizer.model_max_length = limit
    return replace(model, min_exit_layer=measured.get("min_exit_layer", model.min_exit_layer))


def load_profile_tokenizer(profile: Profile, name: str, task: str | None = None):
    """The tokenizer of a model of a profile, which is the same for all tasks."""
    from ..models.checkpoints import load_tokenizer

    task = task or next(iter(profile.training.checkpoints(name)), None)
    checkpoint = ready_checkpoint(profile, name, task)
    if checkpoint and checkpoint.tokenizer:
        return load_tokenizer(checkpoint.tokenizer.source, _commit(checkpoint.tokenizer))
    return from_source(profile, name, load_tokenizer, task)


def load_tasks(
    profile: Profile, part: str = "held_out", limit: int | None = None, only: Collection[str] | str = ()
) -> list[Task]:
    """Every corpus of a profile (or `only` some): at most `limit` examples of one part of it.

    Parts are "train", "held_out" (what is scored), "choices" (see `profiles.Corpus`), and for measurements
    "test" (as held out, but as many as asked for), "validation" (apart from choices where there are more) and
    "unseen" (beyond those of validation that thresholds are chosen on; empty where there are no more).
    Models that start from a ready checkpoint get inputs cut to `max_source` tokens, as they were trained.
    """
    chosen = [only] if isinstance(only, str) else only or profile.corpora
    tasks = [_load_part(profile, name, part, limit) for name in profile.corpora if name in chosen]
    return _fitting(profile, tasks)


def load_away(profile: Profile, limit: int) -> dict[str, Task]:
    """At most `limit` validation examples of every corpus of another domain, by its name."""
    tasks = [load_corpus(profile, name, "validation", limit) for name in profile.away]
    return dict(zip(profile.away, _fitting(profile, tasks), strict=True))


def _fitting(profile: Profile, tasks: list[Task]) -> list[Task]:
    """The tasks as the profile's models take them: of a ready checkpoint, with inputs cut to `max_source`."""
    if not tasks or not isinstance(profile.training.base, Checkpoint):
        return tasks
    tokenizer = load_profile_tokenizer(profile, "base")
    cut = [shortened(task, tokenizer, profile.training.max_source) for task in tasks]
    if not profile.chat:
        return cut
    return [replace(task, inputs=in_template(tokenizer, task.inputs)) for task in cut]


def _load_part(profile: Profile, name: str, part: str, limit: int | None) -> Task:
    corpus = profile.corpora[name]
    own_split = corpus.held_out_split == "test"  # the validation split is free for choices
    aside = 0 if own_split else corpus.choices  # else the first examples for training are kept for them
    thresholds = profile.results.validation
    split, size, skipped = {
        "train": ("train", corpus.train, aside),
        "choices": ("validation" if own_split else "train", corpus.choices, 0),
        "held_out": (corpus.held_out_split, corpus.held_out, 0),
        "test": (corpus.held_out_split, None, 0),
        "validation": ("validation", None, corpus.choices) if own_split else ("train", corpus.choices, 0),
        "unseen": (
            ("validation", None, corpus.choices + thresholds)
            if own_split
            else ("train", max(0, corpus.choices - thresholds), thresholds)
        ),
    }[part]
    if limit is not None:
        size = limit if size is None else min(limit, size)
    task = load_corpus(profile, name, split, None if size is None else size + skipped)
    return task[skipped:]


def load_corpus(profile: Profile, name: str, split: str, limit: int | None = None) -> Task:
    """A split of any corpus of a profile, by the name of its task or its own; of the hub at its revision."""
    corpus = profile.corpus(name)
    source = profile.source(name)
    return load_task(
        corpus.task if isinstance(corpus, Extra) else name,
        source,
        split,
        limit=limit,
        seed=profile.training.seed,
        revision=hub_commit("dataset", source, corpus.revision),
        languages=tuple(corpus.languages),
        folder=corpus.folder,
        skip_unanswerable=corpus.skip_unanswerable,
    )
