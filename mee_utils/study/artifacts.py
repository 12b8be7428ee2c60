"""What is made once and read by all notebooks: traces and exit classifiers, stored below `build`.

They have a key of what is behind them (weights, data, settings; of a trace also code), and are made again
when that changes. Classifiers are shipped beside the models (`make train`).
"""

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ..common.files import complete_file
from .catalogue import ABLATED, DISTILLED, MAIN_MODEL, RULES, SURVEY_VARIANTS, VARIANTS
from .digests import code_files, digest_of
from .inputs import checkpoint_folder, load_profile_model, load_profile_tokenizer, load_tasks, weights_digest
from .profiles import Profile
from .results import build_root

CODE = ("common", "tasks", "models", "exits", "decoding", "traces")


def trace_path(profile: Profile, model: str, task: str) -> Path:
    """Where a trace is kept."""
    return build_root() / "traces" / profile.name / f"{model}-{task}.safetensors"


def stored_trace(
    profile: Profile, model: str, task: str, limit: int | None = None, longest: int | None = None
):
    """The `Trace` of a model's own output on a task; made and stored where it is missing.

    At least `limit` examples are traced, and as many as the profile says, `longest` tokens at most.
    """
    from ..traces.trace import load_trace, states_path, trace

    path, usual = trace_path(profile, model, task), (profile.results.examples, profile.results.max_new_tokens)
    needed = (max(limit or 0, usual[0]), longest or usual[1])
    if needed != usual:
        path = path.with_stem(f"{path.stem}-{needed[0]}-{needed[1]}")
    (chosen,) = load_tasks(profile, limit=needed[0], only=task)
    code = [file.read_text(encoding="utf-8") for file in code_files(*CODE)]
    data, about = (chosen.digest, chosen.inputs), path.with_suffix(".key")
    key = digest_of([code, weights_digest(profile, model), *data, needed, profile.dtype])
    if not about.exists() or about.read_text() != key:
        loaded = load_profile_model(profile, model)
        trace(loaded, chosen.inputs, max_new_tokens=needed[1], states=states_path(path)).save(path)
        with complete_file(about) as partial:
            partial.write_text(key)
    return load_trace(path)


@dataclass(frozen=True)
class ClassifierJob:
    """One classifier to train: a variant for a backbone, with a target and a seed."""

    model: str
    variant: str
    target: str
    seed: int

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.model}-{self.variant}-{self.target}-{self.seed}.safetensors"

    def path(self, profile: Profile) -> Path:
        """Where it is made."""
        return build_root() / "classifiers" / profile.name / self.file

    def shipped(self, profile: Profile) -> Path:
        """Where it comes with the package, if it does."""
        return checkpoint_folder(profile, "classifiers") / self.file


def classifier_jobs(profile: Profile) -> list[ClassifierJob]:
    """All on the main model (the survey's once); the ablated also for the other target and on vanilla."""
    seeds = profile.classifiers.seeds
    groups = [(MAIN_MODEL, "consistency", VARIANTS, seeds), (MAIN_MODEL, "correctness", ABLATED, seeds)]
    groups += [("vanilla", "consistency", ABLATED, seeds), (MAIN_MODEL, "consistency", SURVEY_VARIANTS, 1)]
    groups += [(MAIN_MODEL, "distilled", DISTILLED, 1)]
    return [
        ClassifierJob(model, variant, target, seed)
        for model, target, variants, seeds in groups
        if model in profile.training.backbones
        for variant in variants
        for seed in range(seeds)
    ]


def train_classifiers(profile: Profile, models=(), seeds=()) -> dict[ClassifierJob, Path]:
    """Takes or trains what is missing of a profile's classifiers, of all or some `models` and `seeds`."""
    asked = lambda job: (not models or job.model in models) and (not seeds or job.seed in seeds)
    wanted = list(filter(asked, classifier_jobs(profile)))
    tasks = _first_tokens(profile, "train") if wanted else []
    keys = classifier_keys(profile, wanted, tasks)
    missing = [job for job in wanted if stored_key(job.path(profile)) != keys[job]]
    for job in [job for job in missing if stored_key(job.shipped(profile)) == keys[job]]:
        copy_file(job.shipped(profile), job.path(profile))
        missing.remove(job)
    held_out = _first_tokens(profile, "held_out") if missing else []
    for name in dict.fromkeys(job.model for job in missing):
        _train_all(profile, name, {job: keys[job] for job in missing if job.model == name}, tasks, held_out)
    return {job: job.path(profile) for job in wanted}


def classifier_keys(profile: Profile, jobs: Sequence[ClassifierJob], tasks: Sequence) -> dict:
    """What each of some classifiers belongs to: weights, settings, and the `tasks` that it is trained on."""
    settings = [profile.classifiers.model_dump(exclude={"seeds"}), profile.dtype, profile.training.max_target]
    about = [digest_of([[(task.inputs, task.targets) for task in tasks]]), settings]
    names = {job.model for job in jobs}
    common = {name: digest_of([weights_digest(profile, name), *about]) for name in names}
    return {job: f"{common[job.model]} {asdict(job)} {asdict(RULES[job.variant].classifier)}" for job in jobs}


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
    tokenizer, found = load_profile_tokenizer(profile, next(iter(profile.training.backbones))), []
    for name in profile.corpora:
        for limit in (wanted // 16 + 1, wanted // 4 + 1, wanted):  # few tokens an example, or one
            (task,) = load_tasks(profile, part, limit, name)
            counts = [min(len(ids), profile.training.max_target) for ids in tokenizer(task.targets).input_ids]
            if sum(counts) >= wanted or len(task) < limit:
                break
        found.append(task[: int(np.searchsorted(np.cumsum(counts), wanted)) + 1])
    return found


def _train_all(profile: Profile, name: str, keys: dict[ClassifierJob, str], *splits: Sequence) -> None:
    """Trains classifiers of one model on its states along the references."""
    from .. import save_classifier, trace, train_classifier

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
            variant = RULES[job.variant].classifier
            options = variant.options(width) | learning | {"target": job.target, "seed": job.seed}
            classifier, curve = train_classifier(variant.kind, seen, model, held_out=held_out, **options)
            about = dict(key=key, curve=curve, tokens=len(seen), **asdict(job))
            save_classifier(classifier, job.path(profile), fingerprint, **about)
