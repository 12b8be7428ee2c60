"""Everything that notebook 06 is drawn from: every rule, threshold by threshold, decoded for real once and stored (`python -m mee_utils decode`).

Work is cut into jobs, one a model and task, kept under `build/decoded` when they are done, so that an interrupted run goes on where it stopped. A job
that belongs to other weights, corpora, settings or code is run anew. On a CPU there is one process a core.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from .companion import Companion, load_tasks, weights_digest
from .errors import CompanionError
from .exits.policy import ExitPolicy
from .lock import locked_commit
from .profiles import PACKAGE, Profile, ResultSettings
from .results import Run
from .train_exits import ABLATED, MAIN, train_classifiers

FOLDER = "decoded"  # beside the notebooks' folders of results
USED = ("calibration", "comparison", "curves", "decisions", "faults", "readings", "replay")  # of the evaluation, what decoding rests on
CODE = ("tasks", "models", "exits", "decoding", *(f"evaluation/{name}.py" for name in USED), "decoded.py")
NO_THRESHOLD = float("nan")
FRESH_SEED = 101
FRESH_SHARES = (1.0, 0.99, 0.95)
MARGIN_FORMS = {"softmax_margin": {}, "fixed": {"pruning": "fixed"}, "decaying": {"pruning": "decaying"},
                "weighted_fixed": {"pruning": "fixed", "contrast": "weighted"}, "jsd_fixed": {"pruning": "fixed", "contrast": "jsd"}}  # fmt: skip
MAIN_RULES = (*MARGIN_FORMS, "max_probability", "rising_top1", "hidden_similarity", "linear", "low_rank_three", "hidden", "three_hidden", "lstm")
OTHER_RULES = ("softmax_margin", "fixed", "weighted_fixed", "rising_top1", "hidden_similarity")


def rule_policy(rule: str, threshold: float, settings: ResultSettings, classifiers: dict, exit_layer: int = 4) -> ExitPolicy:
    """The policy of a rule of the results.

    Args:
        rule: "static", "oracle", "free_adaptive", a name of `MARGIN_FORMS`, a measure's name, or a variant of `mee_utils.train_exits`.
        threshold: for "static" the block; without meaning for the oracle and FREE's.
        settings: `min_layer`, `top_k`, `first_k`, `least_k`.
        classifiers: variant -> classifier.
        exit_layer: of FREE.
    """
    if rule == "static":
        return ExitPolicy("static", min_layer=int(threshold))
    if rule == "oracle":
        return ExitPolicy("oracle", min_layer=settings.min_layer)
    if rule == "free_adaptive":
        return ExitPolicy("max_probability", threshold="adaptive", propagation="parallel", exit_layers=[exit_layer])
    options = dict(MARGIN_FORMS.get(rule, {}))
    if options.get("pruning") == "fixed":
        options["top_k"] = settings.top_k
    elif options.get("pruning") == "decaying":
        options |= {"top_k": settings.first_k, "least_k": settings.least_k}
    measure = "softmax_margin" if rule in MARGIN_FORMS else classifiers.get(rule, rule)
    return ExitPolicy(measure, threshold=float(threshold), min_layer=settings.min_layer, **options)


@dataclass(frozen=True)
class Job:
    """One model on one task; `what` is "curves", "fresh" or "faults"."""

    model: str
    task: str
    what: str = "curves"

    @property
    def main(self) -> bool:
        """Whether it is about the model that all rules are decoded with."""
        return self.model == MAIN

    def path(self, profile: Profile) -> Path:
        """Where its result is kept."""
        return PACKAGE.parent / "build" / FOLDER / profile.name / f"{self.what}-{self.model}-{self.task}.json"


def jobs(profile: Profile) -> list[Job]:
    """Every job of a profile, the longest first."""
    models = sorted(profile.training.backbones, key=lambda name: name != MAIN)
    found = [Job(model, task) for model in models for task in reversed(profile.corpora)]
    made = [task for task in profile.corpora if profile.corpora[task].source == "made"]
    return [Job(MAIN, "all", "faults"), *([Job(MAIN, made[-1], "fresh")] if made and MAIN in models else []), *found]


def job_key(profile: Profile, data: str | None, job: Job, weights: dict[str, str]) -> str:
    """What a result belongs to: settings, weights, data and code."""
    code = hashlib.sha256()
    for name in CODE:
        place = PACKAGE / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            if path.stem != "faults" or job.what == "faults":
                code.update(path.read_bytes())
    corpora = {task: [corpus.model_dump(), _digest(profile, data, task)] for task, corpus in profile.corpora.items()}
    parts = [job.model, job.task, job.what, profile.results.model_dump(), profile.dtype, weights, corpora, code.hexdigest()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _digest(profile: Profile, data: str | None, task: str) -> str:
    from .tasks.sources import local_digest

    source, corpus = profile.source(task, data), profile.corpora[task]
    if Path(source).exists():
        return local_digest(Path(source), corpus.held_out_split)
    return f"{source}@{locked_commit(profile, 'datasets', source, corpus.revision)}"


def decode(profile: Profile, data: str | None = None, force: bool = False, progress: Callable[[str], object] = print) -> Path:
    """Decodes what is missing and stores the tables of all jobs.

    Args:
        profile: what to decode.
        data: the folder that stands for `{data}`.
        force: decode everything again.
        progress: called with a line for each job that is done.

    Returns:
        The folder of the tables: `settings`, `losses` and `examples` (one row a setting, one column an example), `fresh`, `faults`.
    """
    files = {(job.model, job.variant): path for job, path in train_classifiers(profile, data).items() if job.target == "consistency" and job.seed == 0}
    models = list(profile.training.backbones)
    weights = {name: weights_digest(profile, name) for name in models}
    weights |= {" ".join(key): hashlib.sha256(path.read_bytes()).hexdigest() for key, path in files.items()}
    wanted = {job: job_key(profile, data, job, weights) for job in jobs(profile)}
    missing = [job for job, key in wanted.items() if force or _stored(job, profile, key) is None]
    for job, found in _run_all(profile, data, missing, files):
        path = job.path(profile)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial_path = path.with_name(f".{path.name}.partial")
        partial_path.write_text(json.dumps({"key": wanted[job], "found": found}), encoding="utf-8")
        partial_path.replace(path)
        progress(f"decoded {job.what}: {job.model}, {job.task} ({found['seconds']:.0f} seconds)")
    return _store(profile, {job: _stored(job, profile, key) for job, key in wanted.items()}, weights)


def _stored(job: Job, profile: Profile, key: str) -> dict | None:
    """A stored result, or None where there is none of this key."""
    path = job.path(profile)
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None  # cut short by a crash: made anew
    return found["found"] if found.get("key") == key else None


def _run_all(profile: Profile, data: str | None, missing: list[Job], files: dict):
    """Runs jobs, on a CPU one process a core; yields each with its result."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    import torch

    workers = min(os.cpu_count() or 1, len(missing), 8)
    if workers <= 1 or (profile.device != "cpu" and torch.cuda.is_available()):
        yield from ((job, run_job(profile, data, job, files)) for job in missing)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        running = {pool.submit(run_job, profile, data, job, files): job for job in missing}
        for done in as_completed(running):
            yield running[done], done.result()


def run_job(profile: Profile, data: str | None, job: Job, files: dict) -> dict:
    """One job, in this process: tables as lists, ready for JSON.

    Args:
        profile: as in `decode`.
        data: as in `decode`.
        job: which.
        files: (model, variant) -> file of a trained classifier.
    """
    from .evaluation import curves

    started, companion, settings = time.monotonic(), Companion.reader(profile.name, data), profile.results
    if job.what == "faults":
        return _faults(companion, settings) | {"seconds": time.monotonic() - started}
    model = companion.models([job.model])[job.model]
    rules = _rules(companion, model, job, files)
    if job.what == "fresh":
        return _fresh(companion, model, job, rules) | {"seconds": time.monotonic() - started}
    limit = settings.examples if job.main else settings.other_examples
    task = next(iter(load_tasks(profile, data, limit=limit, only=job.task)))
    found = curves.decode_curves(model, task, rules, {"task": job.task, "model": job.model}, max_new_tokens=settings.max_new_tokens,
                                 batch_size=settings.batch_size)  # fmt: skip
    arrays = {name: [row.tolist() for row in getattr(found, name)] for name in ("losses", "examples")}
    return {"rows": found.rows, **arrays, "seconds": time.monotonic() - started}


def _rules(companion: Companion, model, job: Job, files: dict) -> dict:
    """Rule -> (threshold -> policy, thresholds): thresholds from training examples, for the main model more of both."""
    from .decoding.tracing import trace
    from .evaluation.curves import SHARES, threshold_grid
    from .exits.classifiers import load_classifier

    profile, settings = companion.profile, companion.profile.results
    training = next(iter(load_tasks(profile, companion.data, held_out=False, limit=settings.training_examples, only=job.task)))
    names = MAIN_RULES if job.main else (*OTHER_RULES, *(ABLATED[:2] if (job.model, ABLATED[0]) in files else ()))
    classifiers = {variant: load_classifier(path, model) for (name, variant), path in files.items() if name == job.model}
    seen = trace(model, training.inputs, max_new_tokens=settings.max_new_tokens, states=companion.scratch(f"{job.what}-{job.model}-{job.task}.npy"))
    shares = FRESH_SHARES if job.what == "fresh" else SHARES if job.main else SHARES[1::2]
    rules = {}
    for rule in names:
        policy = partial(rule_policy, rule, settings=settings, classifiers=classifiers)
        rules[rule] = (policy, threshold_grid(seen, policy(threshold=0.9), shares, model))
    if job.what == "fresh":
        return rules
    layers, step = seen.layers, max(1, seen.layers // 6)
    blocks = [float(block) for block in ((layers - 1,) if job.main else ()) + tuple(range(layers - step, settings.min_layer - 1, -step))]
    rules["static"] = (partial(rule_policy, "static", settings=settings, classifiers={}), blocks)
    rules["oracle"] = (partial(rule_policy, "oracle", settings=settings, classifiers={}), [NO_THRESHOLD])
    if job.model == "free":
        recipe = profile.training.backbones["free"]
        exit_layer = getattr(recipe, "exit_layer", None) or layers // 3
        rules["free_adaptive"] = (partial(rule_policy, "free_adaptive", settings=settings, classifiers={}, exit_layer=exit_layer), [NO_THRESHOLD])
    return rules


def _fresh(companion: Companion, model, job: Job, rules: dict) -> dict:
    """The guarantee on samples of made data that nothing else has seen."""
    from .decoding.tracing import trace
    from .evaluation.curves import fresh_samples
    from .tasks import load_task

    settings = companion.profile.results
    task = load_task(job.task, "made", "test", settings.fresh_pools * settings.fresh_size, FRESH_SEED)
    seen = trace(model, task.inputs, max_new_tokens=settings.max_new_tokens, states=companion.scratch("fresh-samples.npy"))
    found = fresh_samples(seen, model, task, rules, settings.deltas, settings.eps, settings.fresh_pools, settings.max_new_tokens)
    return {"rows": found.assign(task=job.task, model=job.model, examples=settings.fresh_size).to_dict("records")}


def _faults(companion: Companion, settings: ResultSettings) -> dict:
    """Faults of published code, switched on."""
    from .evaluation.faults import measure_faults

    names = [name for name in (MAIN, "vanilla", "free") if name in companion.profile.training.backbones]
    tasks = companion.tasks(settings.fault_examples)
    found = measure_faults(companion.models(names), tasks, settings.max_new_tokens, settings.batch_size, progress=lambda line: None)
    return {"rows": found.to_dict("records")}


def _store(profile: Profile, found: dict[Job, dict], weights: dict[str, str]) -> Path:
    """Writes the tables of all jobs, with a manifest."""
    run = Run(FOLDER, profile.name, {**profile.results.model_dump(), "device": profile.device})
    for name, digest in weights.items():
        run.uses(name, digest)
    curves = {job: result for job, result in sorted(found.items(), key=lambda item: _order(profile, item[0])) if job.what == "curves"}
    if not curves:
        raise CompanionError(f'Profile "{profile.name}" has no model to decode with: name backbones in its training part.')
    settings = pd.DataFrame([row for result in curves.values() for row in result["rows"]])
    run.save_table(settings, "settings")
    keys = settings[["task", "model", "rule", "threshold"]]
    for name in ("losses", "examples"):
        values = [row for result in curves.values() for row in result[name]]
        wide = pd.DataFrame(np.full((len(values), max(map(len, values))), np.nan))
        for place, row in enumerate(values):
            wide.iloc[place, : len(row)] = row
        run.save_table(pd.concat([keys, wide], axis=1), name)
    for job, result in found.items():
        if job.what != "curves":
            run.save_table(pd.DataFrame(result["rows"]), job.what)
    run.finish()
    return run.folder


def _order(profile: Profile, job: Job) -> tuple[int, int]:
    tasks = list(profile.corpora)
    return tasks.index(job.task) if job.task in tasks else len(tasks), list(profile.training.backbones).index(job.model)
