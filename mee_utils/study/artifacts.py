"""What is made once and read by all notebooks: traces and exit classifiers, stored below `build`.

They are made again when what is behind them changes: `freshness` says so of a trace. Classifiers are
shipped beside the models (`make train`), so each has in its file the key of what it belongs to: weights,
data and settings.
"""

import json
import shutil
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ..common.files import complete_file
from . import freshness
from .catalogue import RULES
from .digests import digest_of
from .inputs import load_profile_model, load_profile_tokenizer, load_tasks, weights_digest
from .jobs import ClassifierJob, Job, classifier_jobs, head_jobs
from .profiles import Profile


def stored_trace(
    profile: Profile, model: str, task: str, limit: int | None = None, max_new_tokens: int | None = None
):
    """The `Trace` of a model's own output on a task; made and stored where it is missing or stale.

    Args:
        profile: whose model and corpus.
        model: the name of a model of the profile.
        task: the name of a task of the profile.
        limit: how many examples are needed; at least as many as the profile says are traced.
        max_new_tokens: the longest output; by default what the profile says.
    """
    from ..traces.trace import load_trace, states_path, trace

    settings = profile.results
    examples = max(limit or 0, settings.examples)
    longest = max_new_tokens or settings.max_new_tokens
    job = Job("trace", model, task)
    path = job.path(profile)
    record = freshness.job_record_path(profile, job)
    if (examples, longest) != (settings.examples, settings.max_new_tokens):
        path = path.with_stem(f"{path.stem}-{examples}-{longest}")
        record = record.with_stem(f"{record.stem}-{examples}-{longest}")
    digests = freshness.trace_digests(profile, model, task, examples, longest)
    if not path.exists() or freshness.changes_since_record(record, digests) != []:
        with freshness.recorded(record, digests):
            (chosen,) = load_tasks(profile, limit=examples, only=task)
            loaded = load_profile_model(profile, model)
            traced = trace(loaded, chosen.inputs, max_new_tokens=longest, states=states_path(path))
            traced.save(path)
    return load_trace(path)


def train_classifiers(
    profile: Profile,
    models: Collection[str] = (),
    seeds: Collection[int] = (),
    variants: Collection[str] = (),
    targets: Collection[str] = (),
) -> dict[ClassifierJob, Path]:
    """Takes or trains what is missing of the classifiers: of all or some models, seeds, variants, targets.

    Exit heads are wanted only if `variants` names them.
    """
    every = [*classifier_jobs(profile), *head_jobs(profile)] if variants else classifier_jobs(profile)
    wanted = [
        job
        for job in every
        if (not models or job.model in models)
        and (not seeds or job.seed in seeds)
        and (not variants or job.variant in variants)
        and (not targets or job.target in targets)
    ]
    if not wanted:
        return {}
    tasks = _first_tokens(profile, "train")
    keys = classifier_keys(profile, wanted, tasks)
    missing = []
    for job in wanted:
        if stored_key(job.path(profile)) == keys[job]:
            continue
        if stored_key(job.shipped(profile)) == keys[job]:
            copy_file(job.shipped(profile), job.path(profile))
        else:
            missing.append(job)
    if missing:
        held_out = _first_tokens(profile, "held_out")
        for name in dict.fromkeys(job.model for job in missing):
            chosen = {job: keys[job] for job in missing if job.model == name}
            _train_all(profile, name, chosen, tasks, held_out)
    return {job: job.path(profile) for job in wanted}


def ship_classifiers(profile: Profile) -> None:
    """Puts the classifiers beside the models, with which they come."""
    for job in classifier_jobs(profile):
        copy_file(job.path(profile), job.shipped(profile))


def classifier_keys(profile: Profile, jobs: Sequence[ClassifierJob], tasks: Sequence) -> dict:
    """What each of some classifiers belongs to: weights, settings, and the `tasks` that it is trained on."""
    data = digest_of([[(task.inputs, task.targets) for task in tasks]])
    settings = [profile.classifiers.model_dump(exclude={"seeds"}), profile.dtype, profile.training.max_target]
    keys = {}
    for job in jobs:
        common = digest_of([weights_digest(profile, job.model), data, settings])
        keys[job] = f"{common} {asdict(job)} {asdict(RULES[job.variant].classifier)}"
    return keys


def copy_file(source: Path, target: Path) -> None:
    """Copies a file, which appears only when it is complete."""
    with complete_file(target) as partial:
        shutil.copyfile(source, partial)


def stored_key(path: Path) -> str | None:
    """What a stored classifier belongs to, or None where there is none that can be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return json.loads((file.metadata() or {}).get("about", "{}")).get("key")
    except (SafetensorError, OSError):
        return None


def _first_tokens(profile: Profile, part: str) -> list:
    """The first examples of each corpus with about `classifiers.tokens` target tokens (held out: half)."""
    wanted = profile.classifiers.tokens // (2 if part == "held_out" else 1)
    tokenizer = load_profile_tokenizer(profile, next(iter(profile.training.backbones)))
    chosen = []
    for name in profile.corpora:
        for limit in (wanted // 16 + 1, wanted // 4 + 1, wanted):  # few tokens an example, or one
            (task,) = load_tasks(profile, part, limit, name)
            counts = [min(len(ids), profile.training.max_target) for ids in tokenizer(task.targets).input_ids]
            if sum(counts) >= wanted or len(task) < limit:
                break
        enough = int(np.searchsorted(np.cumsum(counts), wanted)) + 1
        chosen.append(task[:enough])
    return chosen


def _train_all(profile: Profile, name: str, keys: dict[ClassifierJob, str], train, held_out) -> None:
    """Trains classifiers of one model on its states along the references of two splits."""
    from .. import save_classifier, train_classifier

    model = load_profile_model(profile, name)
    learning = profile.classifiers.model_dump(include={"epochs", "batch_size", "learning_rate"})
    with tempfile.TemporaryDirectory(prefix="mee-") as folder:
        training_trace = _reference_trace(profile, model, train, Path(folder) / "train.npy")
        held_out_trace = _reference_trace(profile, model, held_out, Path(folder) / "held_out.npy")
        for job, key in keys.items():
            variant = RULES[job.variant].classifier
            classifier, curve = train_classifier(
                variant.kind,
                training_trace,
                model,
                held_out=held_out_trace,
                target=job.target,
                seed=job.seed,
                **learning,
                **variant.options(model.network.config.d_model),
            )
            save_classifier(
                classifier,
                job.path(profile),
                model.fingerprint,
                key=key,
                curve=curve,
                tokens=len(training_trace),
                **asdict(job),
            )


def _reference_trace(profile: Profile, model, tasks: Sequence, states: Path):
    from .. import trace

    inputs = [text for task in tasks for text in task.inputs]
    targets = [text for task in tasks for text in task.targets]
    return trace(model, inputs, targets, states=states, max_new_tokens=profile.training.max_target)
