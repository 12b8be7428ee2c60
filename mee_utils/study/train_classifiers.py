"""The exit classifiers of a profile, and how they are trained (`python -m mee_utils classifiers`).

They are not shipped: training all of them takes less time than a notebook. Each is a file below
`build/classifiers` that names what it belongs to; one of other weights, data, settings or code is made anew.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from .catalogue import ABLATED, MAIN_MODEL, VARIANTS
from .inputs import load_profile_model, load_profile_tokenizer, load_tasks, weights_digest
from .profiles import Profile
from .results import build_root, make_folder
from .stored_traces import digest_of


@dataclass(frozen=True)
class Job:
    """One classifier to train: a variant for a backbone, with a target and a seed."""

    model: str
    variant: str
    target: str
    seed: int

    def path(self, profile: Profile) -> Path:
        """Its file."""
        name = f"{self.model}-{self.variant}-{self.target}-{self.seed}.safetensors"
        return build_root() / "classifiers" / profile.name / name


def jobs(profile: Profile) -> list[Job]:
    """All variants on the main model; those that are ablated also for the other target, and on vanilla."""
    groups = [(MAIN_MODEL, "consistency", VARIANTS), (MAIN_MODEL, "correctness", ABLATED)]
    return [
        Job(model, variant, target, seed)
        for model, target, variants in [*groups, ("vanilla", "consistency", ABLATED)]
        if model in profile.training.backbones
        for variant in variants
        for seed in range(profile.classifiers.seeds)
    ]


def train_classifiers(
    profile: Profile, models: Collection[str] = (), seeds: Collection[int] = ()
) -> dict[Job, Path]:
    """Trains what is missing of a profile's classifiers; returns the file of each that was asked for.

    All `models` (names of backbones) and `seeds` are asked for by default.
    """
    asked = lambda job: (not models or job.model in models) and (not seeds or job.seed in seeds)
    wanted = list(filter(asked, jobs(profile)))
    tasks = _first_tokens(profile, held_out=False)
    digests = [task.digest for task in tasks]
    settings = [profile.classifiers.model_dump(exclude={"seeds"}), profile.dtype, profile.training.max_target]
    weights = {name: weights_digest(profile, name) for name in dict.fromkeys(job.model for job in wanted)}
    common = {name: digest_of(digest, digests, settings) for name, digest in weights.items()}
    keys = {job: f"{common[job.model]} {asdict(job)} {asdict(VARIANTS[job.variant])}" for job in wanted}
    missing = [job for job, key in keys.items() if stored_key(job.path(profile)) != key]
    held_out = _first_tokens(profile, held_out=True) if missing else []
    for name in dict.fromkeys(job.model for job in missing):
        _train_all(profile, name, {job: keys[job] for job in missing if job.model == name}, tasks, held_out)
    return {job: job.path(profile) for job in wanted}


def stored_key(path: Path) -> str | None:
    """What a stored classifier belongs to, or None where there is none that can be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return json.loads((file.metadata() or {}).get("about", "{}")).get("key")
    except (SafetensorError, OSError):
        return None


def _first_tokens(profile: Profile, held_out: bool) -> list:
    """The first examples of each corpus with about `classifiers.tokens` target tokens (held out: half)."""
    wanted = profile.classifiers.tokens // (2 if held_out else 1)
    tokenizer, found = load_profile_tokenizer(profile, next(iter(profile.training.backbones))), []
    for task in load_tasks(profile, held_out=held_out, limit=wanted):
        counts = [min(len(ids), profile.training.max_target) for ids in tokenizer(task.targets).input_ids]
        enough = int(np.searchsorted(np.cumsum(counts), wanted)) + 1
        found.append(replace(task, inputs=task.inputs[:enough], references=task.references[:enough]))
    return found


def _train_all(profile: Profile, name: str, keys: dict[Job, str], *splits: Sequence) -> None:
    """Trains classifiers of one model on its states along the references."""
    from ..exits.classifiers import save_classifier
    from ..traces.classifier_training import train_classifier
    from ..traces.trace import trace

    model, traces, longest = load_profile_model(profile, name), [], profile.training.max_target
    fingerprint, width = model.fingerprint, model.network.config.d_model
    learning = profile.classifiers.model_dump(include={"epochs", "batch_size", "learning_rate"})
    with tempfile.TemporaryDirectory(prefix="mee-") as folder:
        for tasks in splits:
            inputs = [text for task in tasks for text in task.inputs]
            targets = [text for task in tasks for text in task.targets]
            states = Path(folder) / f"{len(traces)}.npy"
            traces.append(trace(model, inputs, targets, states=states, max_new_tokens=longest))
        seen, held_out = traces
        for job, key in keys.items():
            variant = VARIANTS[job.variant]
            options = variant.options(width) | learning | {"target": job.target, "seed": job.seed}
            classifier, curve = train_classifier(variant.kind, seen, model, held_out=held_out, **options)
            make_folder(job.path(profile).parent)
            about = dict(key=key, curve=curve, tokens=len(seen), **asdict(job))
            save_classifier(classifier, job.path(profile), fingerprint, **about)
