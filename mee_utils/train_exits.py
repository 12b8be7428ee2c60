"""The exit classifiers of a profile: which there are, and how they are trained (`make train`, and notebook 05 where they are missing).

They belong to shipped models but are not shipped: training all of them takes less time than a notebook. Each is a file under
`build/classifiers/<profile>`, written when it is complete, so that an interrupted run goes on where it stopped; a file that belongs to
other weights, data or settings is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .companion import load_profile_model, load_profile_tokenizer, load_tasks, weights_digest
from .profiles import PACKAGE, Profile

MOST_WORKERS = 8


@dataclass(frozen=True)
class Variant:
    """One kind of classifier; `width` is the number of hidden units as a multiple of d_model.

    MEE's report gives its LSTM two layers and no width; its code one layer of 250 units, a quarter of T5-large's d_model ("narrow_lstm").
    """

    kind: str
    blocks: int | None = None
    depth: int | None = None
    width: float | None = None

    def options(self, d_model: int) -> dict:
        """What `new_classifier` is to be told besides the kind."""
        given = {"blocks": self.blocks, "depth": self.depth, "hidden": max(1, round(self.width * d_model)) if self.width else None}
        return {name: value for name, value in given.items() if value is not None}


VARIANTS = {
    "linear": Variant("linear_classifier"),
    "low_rank": Variant("low_rank_classifier"),
    "low_rank_three": Variant("low_rank_classifier", blocks=3),
    "hidden": Variant("hidden_classifier"),
    "wide_hidden": Variant("hidden_classifier", width=3.0),
    "two_hidden": Variant("hidden_classifier", blocks=2),
    "three_hidden": Variant("three_hidden_classifier"),
    "four_hidden": Variant("hidden_classifier", blocks=4),
    "narrow_lstm": Variant("lstm_classifier", depth=1, width=0.25),
    "lstm": Variant("lstm_classifier", width=0.5),
}
ABLATED = ("hidden", "three_hidden", "narrow_lstm")  # CALM's own and MEE's two, as their code has them
MAIN = "calm"


@dataclass(frozen=True)
class Job:
    """One classifier to train: a variant for a backbone, with a target and a seed."""

    model: str
    variant: str
    target: str
    seed: int

    def path(self, folder: Path) -> Path:
        """Its file."""
        return folder / f"{self.model}-{self.variant}-{self.target}-{self.seed}.safetensors"


def jobs(profile: Profile) -> list[Job]:
    """Every classifier of a profile: all variants on CALM; three also for the other target, and on vanilla."""
    groups = [(MAIN, "consistency", tuple(VARIANTS)), (MAIN, "correctness", ABLATED), ("vanilla", "consistency", ABLATED)]
    return [
        Job(model, variant, target, seed)
        for model, target, names in groups if model in profile.training.backbones
        for variant in names for seed in range(profile.classifiers.seeds)
    ]  # fmt: skip


def classifier_folder(profile: Profile) -> Path:
    """Where a profile's classifiers are."""
    return PACKAGE.parent / "build" / "classifiers" / profile.name


def job_key(profile: Profile, job: Job, tasks: Sequence) -> str:
    """What a classifier belongs to: model, variant, target, seed, settings and data."""
    parts = [
        asdict(job), asdict(VARIANTS[job.variant]), profile.classifiers.model_dump(exclude={"seeds"}), profile.dtype, profile.training.max_target,
        weights_digest(profile, job.model), [task.digest for task in tasks],
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def stored_key(path: Path) -> str | None:
    """The key of a stored classifier, or None where there is none that can be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return json.loads((file.metadata() or {}).get("about", "{}")).get("key")
    except (SafetensorError, OSError):
        return None


def train_classifiers(profile: Profile, data: str | None = None, only: Sequence[str] = (), progress: bool = False) -> dict[Job, Path]:
    """Trains what is missing of a profile's classifiers.

    Args:
        profile: whose models and corpora.
        data: the folder that stands for `{data}` in the profile.
        only: names of backbones; all by default.
        progress: show a progress bar on the terminal.

    Returns:
        The file of every job asked for.
    """
    from tqdm import tqdm

    from .decoding.tracing import states_path

    folder = classifier_folder(profile)
    tasks = _first_tokens(profile, data, held_out=False)
    wanted = [job for job in jobs(profile) if not only or job.model in only]
    keys = {job: job_key(profile, job, tasks) for job in wanted}
    missing = {job: key for job, key in keys.items() if stored_key(job.path(folder)) != key}
    held_out = _first_tokens(profile, data, held_out=True) if missing else []
    bar = tqdm(total=len(missing), desc="exit classifiers", disable=not progress or not missing)
    traces = {name: _write_traces(profile, name, tasks, held_out, folder) for name in dict.fromkeys(job.model for job in missing)}
    for _ in _train_all(profile, missing, traces, folder):
        bar.update()
    for path in [path for pair in traces.values() for path in pair]:
        path.unlink()
        states_path(path).unlink()
    bar.close()
    return {job: job.path(folder) for job in wanted}


def _first_tokens(profile: Profile, data: str | None, held_out: bool) -> list:
    """The first examples of every corpus that have about `profile.classifiers.tokens` target tokens (half as many held out)."""
    wanted = profile.classifiers.tokens // (2 if held_out else 1)
    tokenizer, found = load_profile_tokenizer(profile, next(iter(profile.training.backbones))), []
    for task in load_tasks(profile, data, held_out=held_out, limit=wanted):
        counts = [min(len(ids), profile.training.max_target) for ids in tokenizer(task.targets).input_ids]
        enough, total = 0, 0
        while enough < len(counts) and total < wanted:
            total += counts[enough]
            enough += 1
        found.append(next(iter(load_tasks(profile, data, held_out=held_out, limit=enough, only=task.name))))
    return found


def _write_traces(profile: Profile, name: str, tasks: Sequence, held_out: Sequence, folder: Path) -> tuple[Path, Path]:
    """Traces a model along the references of all tasks, for training and for the held-out loss."""
    from .decoding.tracing import trace

    model = load_profile_model(profile, name)
    paths = []
    for split, chosen in (("train", tasks), ("held-out", held_out)):
        path = folder / f"{name}-{split}.trace.parquet"
        inputs, targets = ([text for task in chosen for text in getattr(task, part)] for part in ("inputs", "targets"))
        path.parent.mkdir(parents=True, exist_ok=True)
        states = folder / f"{name}-{split}.trace.raw.npy"
        trace(model, inputs, targets, states=states, max_new_tokens=profile.training.max_target).save(path)
        states.unlink()
        paths.append(path)
    return tuple(paths)


def _train_all(profile: Profile, missing: dict[Job, str], traces: dict[str, tuple[Path, Path]], folder: Path):
    """Trains classifiers, on a CPU one process a core; yields as each is done."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    import torch

    order = sorted(missing, key=lambda job: (job.model, "lstm" not in job.variant))  # the longest first
    calls = [(profile, job, missing[job], traces[job.model], job.path(folder)) for job in order]
    workers = min(MOST_WORKERS, os.cpu_count() or 1, len(calls))
    if workers <= 1 or (profile.device != "cpu" and torch.cuda.is_available()):
        yield from (_train_one(*call) for call in calls)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield from pool.map(_train_one, *zip(*calls, strict=True))


_READ: dict = {}  # what this process has read for the backbone at hand


def _train_one(profile: Profile, job: Job, key: str, traces: tuple[Path, Path], path: Path) -> None:
    from .decoding.tracing import load_trace
    from .exits.classifiers import save_classifier
    from .exits.training import train_classifier

    if _READ.get("key") != (job.model, traces[0].stat().st_mtime_ns):
        model = load_profile_model(profile, job.model)
        _READ.update(key=(job.model, traces[0].stat().st_mtime_ns), model=model, traces=[load_trace(path) for path in traces],
                     fingerprint=model.fingerprint)  # fmt: skip
    model, (train, held_out), variant, settings = _READ["model"], _READ["traces"], VARIANTS[job.variant], profile.classifiers
    classifier, curve = train_classifier(
        variant.kind, train, model, target=job.target, seed=job.seed, epochs=settings.epochs, batch_size=settings.batch_size,
        learning_rate=settings.learning_rate, held_out=held_out, **variant.options(model.network.config.d_model),
    )  # fmt: skip
    save_classifier(classifier, path, _READ["fingerprint"], key=key, curve=curve, tokens=len(train), **asdict(job))
