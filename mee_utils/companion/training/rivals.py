"""Rivals of exits that need no exit rule: models with a deep encoder and a decoder trained shallow.

A decoder of fewer layers saves for every token what exits save for some (Kasai et al. 2021, "Deep encoder,
shallow decoder"). Each rival starts from `base`, as `vanilla` does: from its whole encoder, and from some
layers of its decoder. Then it is trained like `vanilla`: the same examples, batches and learning rate. Which
layers it starts with is decided by two short trainings (`mini.kept_layers`): the one with the lower
cross-entropy on the examples for choices wins. The decoder of the right size is trained like `calm` in
place of `vanilla`, so that tokens may exit from it too.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch

from ... import Model, load_model
from .. import inputs
from ..profiles import BackboneSettings, Profile
from ..results import staged
from ..running.jobs import Job, folder_of
from .build import ModelBuilder, new_builder, objective_of
from .loop import LearningCurve
from .mini import STARTS, kept_layers, with_decoder_layers
from .model_manifest import write_manifest

TRIAL = 100  # a short training has one example of so many


def rival_folder(profile: Profile, job: Job) -> Path:
    """Where the weights of a rival are kept, with their recipe in `manifest.json`."""
    return folder_of(profile, "retrained") / f"{job.model}-{job.seed}" / "model"


def kept_rivals(profile: Profile) -> list[Job]:
    """The decoders trained shallow (first seed) whose weights are kept here, those of fewest layers first."""
    jobs = [Job("rivals", name, seed=profile.training.seed) for name in profile.shallow_decoders]
    kept = [job for job in jobs if (rival_folder(profile, job) / "manifest.json").exists()]
    return sorted(kept, key=lambda job: profile.shallow_decoders[job.model])


def load_rival(profile: Profile, job: Job) -> Model:
    """The kept model of a rival; trained first where there is none."""
    folder = rival_folder(profile, job)
    if not (folder / "manifest.json").exists():
        _train(profile, job, folder)
    if profile.training.shape:
        torch.set_num_threads(1)  # the fastest for mini models
    return load_model(folder, dtype=profile.dtype, device=profile.device, name=job.model)


def _train(profile: Profile, job: Job, folder: Path) -> None:
    """Trains a rival and keeps its weights. An interrupted training goes on from its last checkpoint."""
    builder = new_builder(profile)
    layers = _layers(profile, job)
    recipe = profile.training.recipe("calm" if job.model in profile.right_sized else "vanilla")
    trials = {start: _trial(builder, job, start, recipe, folder.parent / start) for start in STARTS}
    start = min(trials, key=trials.get)
    network = _untrained(profile, layers, start)
    training = folder.parent / "training"
    curve = builder.train_stage(job.model, network, recipe, job.seed, training, objective_of(recipe))
    with staged(folder) as partial:
        builder.save_weights(network, partial, profile.dtype)
        content = {
            "recipe": recipe.model_dump(),
            "decoder_layers": layers,
            "start": start,
            "trials": trials,
            "trial_share": 1 / TRIAL,
            "seed": job.seed,
            "base": inputs.weights_digest(profile, "base"),
        }
        write_manifest(partial, content | asdict(curve))


def _trial(builder: ModelBuilder, job: Job, start: str, recipe: BackboneSettings, folder: Path) -> float:
    """The lowest held-out cross-entropy, in nats a token, of a short training from a start."""
    layers = _layers(builder.profile, job)
    network = _untrained(builder.profile, layers, start)
    few = {task: max(1, count // TRIAL) for task, count in recipe.examples.items()}
    short = recipe.model_copy(update={"examples": few})
    name = f"{job.model}, {start}"
    curve = builder.train_stage(name, network, short, job.seed, folder, objective_of(recipe))
    return lowest_cross_entropy(curve)


def lowest_cross_entropy(curve: LearningCurve) -> float:
    """The lowest cross-entropy of the last layer in a training, the state before its first step left out."""
    return min(row["cross_entropy"][-1] for row in curve.layer_cross_entropy if row["step"] > 0)


def _layers(profile: Profile, job: Job) -> int:
    """How many layers the decoder of a rival has."""
    return (profile.shallow_decoders | profile.right_sized)[job.model]


def _untrained(profile: Profile, layers: int, start: str):
    """The base with some of its decoder layers."""
    network = inputs.load_profile_model(profile, "base", "float32").network
    return with_decoder_layers(network, kept_layers(start, layers, len(network.decoder.block)))
