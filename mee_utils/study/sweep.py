"""The threshold sweep: every rule decoded for real, threshold by threshold (`python -m mee_utils sweep`).

One job a model and task, and two more on the main model: independent samples for the guarantee ("fresh") and
bugs of published code switched on ("published_bugs"). Snakemake says which have to run; each leaves a file
below `build/sweep`, and `store` makes tables of them that notebooks 05 and 08 are drawn from.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pandas as pd

from ..common.errors import CompanionError
from ..common.files import complete_file
from ..tasks import load_task
from .catalogue import ABLATED, MAIN_MODEL, MAIN_SWEEP, OTHER_SWEEP, RULES
from .inputs import load_tasks, weights_digest
from .profiles import Profile
from .result_tables import SWEEP
from .results import Run, build_root, output_root, staged

FRESH_SEED = 101
FRESH_SHARES = (1.0, 0.99, 0.95)


@dataclass(frozen=True)
class Job:
    """A model on a task; `what`: "settings", "fresh" or "published_bugs" (several models, on all tasks)."""

    model: str
    task: str
    what: str = "settings"

    def path(self, profile: Profile) -> Path:
        """Where its result is kept."""
        return build_root() / "sweep" / profile.name / f"{self.what}-{self.model}-{self.task}.json"


def jobs(profile: Profile) -> list[Job]:
    """Every job of a profile, in the order of the tables."""
    backbones = profile.training.backbones
    synthetic = [task for task, corpus in profile.corpora.items() if corpus.source == "synthetic"]
    fresh = [Job(MAIN_MODEL, task, "fresh") for task in synthetic[-1:] if MAIN_MODEL in backbones]
    settings = [Job(model, task) for task in profile.corpora for model in backbones]
    return [*settings, *fresh, Job(MAIN_MODEL, "all", "published_bugs")]


def run(profile: Profile, job: Job, measure_bugs: Callable) -> Path:
    """Runs one job and keeps its result; `measure_bugs` belongs to a higher floor."""
    from .experiment import Experiment

    if job not in jobs(profile):
        raise CompanionError(f"Profile {profile.name} has no sweep of {job.what}, {job.model}, {job.task}.")
    kinds = {"settings": _settings, "fresh": _fresh, "published_bugs": partial(_bugs, measure=measure_bugs)}
    found = kinds[job.what](Experiment(None, profile), job)
    with complete_file(job.path(profile)) as path:
        path.write_text(json.dumps(found), encoding="utf-8")
    return job.path(profile)


def _settings(experiment, job: Job) -> dict:
    """One model and task, every rule: tables as lists, ready for JSON."""
    from ..analysis.comparison import SHARES, decode_curves

    profile, settings, main = experiment.profile, experiment.profile.results, job.model == MAIN_MODEL
    model = experiment.models([job.model])[job.model]
    rules = _rules(experiment, model, job, SHARES if main else SHARES[1::2])
    step, options = max(1, model.layers // 6), settings.model_dump()
    fixed = [model.layers - 1] if main else []
    fixed += range(model.layers - step, settings.min_layer - 1, -step)
    thresholds = {"static": [float(layer) for layer in fixed], "oracle": [np.nan]}
    if job.model == "free":
        thresholds["free_adaptive"] = [np.nan]
        options["exit_layer"] = profile.training.exit_layer("free", model.layers)
    for name, values in thresholds.items():
        rules[name] = (partial(RULES[name].policy, settings=options), values)
    limit = settings.examples if main else settings.other_examples
    (task,) = load_tasks(profile, limit=limit, only=job.task)
    decoding = dict(max_new_tokens=settings.max_new_tokens, batch_size=settings.batch_size)
    return decode_curves(model, task, rules, {"task": job.task, "model": job.model}, **decoding)


def _rules(experiment, model, job: Job, shares) -> dict:
    """Rule -> (threshold -> policy, thresholds that leave these shares of training predictions alone)."""
    from ..analysis.comparison import threshold_grid
    from ..traces.trace import trace

    profile, settings = experiment.profile, experiment.profile.results
    trained = experiment.classifiers({job.model: model}, seeds=[0])
    classifiers = {rule: one for (_, rule, target), (one,) in trained.items() if target == "consistency"}
    names = MAIN_SWEEP if job.model == MAIN_MODEL else (*OTHER_SWEEP, *ABLATED[:2])
    limit, states = settings.training_examples, experiment.scratch("states.npy")
    (training,) = load_tasks(profile, "train", limit, job.task)
    seen = trace(model, training.inputs, max_new_tokens=settings.max_new_tokens, states=states)
    rules = {}
    for name in names:
        if RULES[name].classifier is None or name in classifiers:
            policy = partial(RULES[name].policy, settings=settings.model_dump(), classifiers=classifiers)
            rules[name] = (policy, threshold_grid(seen, policy(threshold=0.9), shares, model))
    return rules


def _fresh(experiment, job: Job) -> dict:
    """The guarantee on samples of synthetic data that nothing else has seen."""
    from ..analysis.calibration import fresh_samples
    from ..traces.trace import trace

    settings, model = experiment.profile.results, experiment.models([job.model])[job.model]
    rules = _rules(experiment, model, job, FRESH_SHARES)
    pools, longest = settings.fresh_pools, settings.max_new_tokens
    task = load_task(job.task, "synthetic", "test", pools * settings.fresh_size, FRESH_SEED)
    seen = trace(model, task.inputs, max_new_tokens=longest, states=experiment.scratch("fresh.npy"))
    found = fresh_samples(seen, model, task, rules, settings.deltas, settings.eps, pools, longest)
    found = found.assign(task=job.task, model=job.model, examples=settings.fresh_size)
    return {"rows": found.to_dict("records")}


def _bugs(experiment, job: Job, measure: Callable) -> dict:
    """Bugs of published code, switched on."""
    settings, training = experiment.profile.results, experiment.profile.training
    models = experiment.models([n for n in (job.model, "vanilla", "free") if n in training.backbones])
    exit_layer = training.exit_layer("free", models["free"].layers) if "free" in models else None
    tasks = experiment.tasks(settings.bug_examples)
    found = measure(models, tasks, exit_layer, settings.max_new_tokens, settings.batch_size)
    return {"rows": found.to_dict("records")}


def store(profile: Profile) -> Path:
    """Writes the tables of all jobs, with a manifest, all at once; returns their folder.

    `settings`, `losses` and `examples` have one row a setting, the last two one column an example.
    """
    found = {job: json.loads(job.path(profile).read_text(encoding="utf-8")) for job in jobs(profile)}
    swept = [result for job, result in found.items() if job.what == "settings"]
    if not swept:
        raise CompanionError(f'Profile "{profile.name}" has no model to decode with: name its backbones.')
    folder = output_root() / profile.name / SWEEP
    parameters = profile.results.model_dump() | {"device": profile.device}
    with staged(folder) as results:
        collected = Run(SWEEP, profile.name, parameters, results)
        collected.inputs = {name: weights_digest(profile, name) for name in profile.training.backbones}
        rows = [row for result in swept for row in result["rows"]]
        settings = collected.save_table(pd.DataFrame(rows), "settings")
        for name in ("losses", "examples"):
            columns = zip_longest(*(row for result in swept for row in result[name]), fillvalue=np.nan)
            wide = pd.DataFrame(dict(enumerate(columns))).astype("float64")
            keys = settings[["task", "model", "rule", "threshold"]]
            collected.save_table(pd.concat([keys, wide], axis=1), name)
        for job, result in found.items():
            if job.what != "settings":
                collected.save_table(pd.DataFrame(result["rows"]), job.what)
        collected.finish()
    shutil.copy(folder / "manifest.json", build_root() / "sweep" / profile.name)
    return folder
