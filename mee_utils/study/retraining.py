"""Trainings beside the shipped models: backbones with further seeds, and short runs with one part changed.

Their weights are not shipped; what is committed are rows of two tables and the recipe behind each.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from .. import MeeError, generate, trace
from ..analysis.comparison import decode
from ..analysis.monotonicity import settled_from
from ..common.files import complete_file
from ..decoding.inputs import UNLIMITED
from . import inputs
from .catalogue import RULES
from .profiles import Profile
from .result_tables import RETRAINED
from .results import Run, build_root, output_root, staged
from .train_models import DEPTH, by_form, new_maker, work_folder

RULE, THRESHOLD, EXAMPLES = "fixed", 0.9, 200  # what seeds are compared at, and on how many examples


@dataclass(frozen=True)
class Retraining:
    """A backbone with a seed, or (`kind` "ablations") a run of `profiles.AblationSettings`."""

    kind: str
    name: str
    seed: int

    def path(self, profile: Profile) -> Path:
        """Where its rows are kept."""
        return build_root() / RETRAINED / profile.name / f"{self.kind}-{self.name}-{self.seed}.json"


def retrainings(profile: Profile) -> list[Retraining]:
    """Every seed of every backbone, the shipped ones too, and every ablation; in the order of the tables."""
    seed = profile.training.seed
    objectives, kept = profile.training.objectives, profile.training.backbones
    trained = {name: b.seeds for name, b in objectives.items() if b.seeds > 1 or name not in kept}
    seeds = [Retraining("seeds", name, seed + k) for name, count in trained.items() for k in range(count)]
    return seeds + [Retraining("ablations", name, seed) for name in profile.ablation_runs]


def run(profile: Profile, job: Retraining) -> Path:
    """Trains and measures one; keeps its rows."""
    if job not in retrainings(profile):
        raise MeeError(f'Profile {profile.name} retrains no {job.kind} "{job.name}", seed {job.seed}.')
    rows = _seed(profile, job) if job.kind == "seeds" else _ablation(profile, job)
    with complete_file(job.path(profile)) as path:
        path.write_text(json.dumps(rows), encoding="utf-8")
    return job.path(profile)


def store(profile: Profile) -> Path:
    """Makes the tables of all retrainings, with a manifest of their recipes; returns their folder."""
    folder, jobs, settings = output_root() / profile.name / RETRAINED, retrainings(profile), profile.training
    recipes = {name: settings.recipe(name).model_dump() for name in settings.objectives}
    recipes |= {name: about.model_dump() for name, about in profile.ablation_runs.items()}
    with staged(folder) as results:
        parameters = {"recipes": {job.name: recipes[job.name] for job in jobs}}
        made = Run(RETRAINED, profile.name, parameters, results)
        made.inputs = {f"model {name}": inputs.weights_digest(profile, name) for name in settings.models}
        for kind in ("seeds", "ablations"):
            files = [job.path(profile) for job in jobs if job.kind == kind]
            if rows := [row for path in files for row in json.loads(path.read_text(encoding="utf-8"))]:
                made.save_table(pd.DataFrame(rows), kind)
        made.finish()
    return folder


def _seed(profile: Profile, job: Retraining) -> list[dict]:
    """One row a task: score at full depth, where tokens settle, and what one exit rule makes of it."""
    if job.seed == profile.training.seed and job.name in profile.training.backbones:
        model = inputs.load_profile_model(profile, job.name)
    else:
        maker = new_maker(profile)
        folder = work_folder(profile, job.name, job.seed, maker.tasks)
        network, _ = maker.trained(job.name, job.seed, folder)
        model = maker.save_weights(network, folder / "model", profile.dtype)
    settings, rows = profile.results, []
    policy = RULES[RULE].policy(THRESHOLD, settings.model_dump())
    options = dict(max_new_tokens=profile.training.max_target, batch_size=settings.batch_size)
    for task in inputs.load_tasks(profile):
        texts = generate(model, task.inputs, max_source_tokens=UNLIMITED, **options).texts
        few = task[:EXAMPLES]
        full = decode(model, few, None, **options)
        early = decode(model, few, policy, full, **options)
        settled = float(settled_from(trace(model, few.inputs, **options)).mean())
        row = {"task": task.name, "model": job.name, "seed": job.seed, "metric": task.metric}
        row |= {"examples": len(task), "score": task.score(texts)[task.metric], "settled_from": settled}
        row |= {"rule": RULE, "threshold": THRESHOLD}
        row |= {"retained": 100 * early.score / full.score if full.score else float("nan")}
        rows.append(row | {"flops_share": early.flops / full.flops, "mean_exit_layer": early.mean_exit_layer})
    return rows


def _ablation(profile: Profile, job: Retraining) -> list[dict]:
    """One row a form of question: exact match after the run."""
    from ..models.muon import FROM_SCRATCH

    about, maker, rows = profile.ablation_runs[job.name], new_maker(profile), []
    shape = profile.training.shape.model_dump() | dict.fromkeys(DEPTH, profile.ablations.layers)
    folder = build_root() / RETRAINED / profile.name / job.name
    how = dict(local=about.local, rates=FROM_SCRATCH | about.rates, muon=about.muon)
    network, curve = maker.from_scratch(about.stages, job.seed, folder / "training", shape, **how)
    pairs = [maker.stage_pairs(stage, job.seed + number) for number, stage in enumerate(about.stages)]
    tokens = sum(len(source) + len(target) for stage in pairs for source, target in stage)
    model = maker.save_weights(network, folder / "model", profile.dtype)
    for task in [task for task in maker.choices if task.forms]:
        found = generate(model, task.inputs, max_new_tokens=profile.training.max_target, batch_size=64)
        for form, score in by_form(task, found.texts).items():
            row = {"run": job.name, "form": form, "exact_match": score, "questions": task.forms.count(form)}
            rows.append(row | {"steps": curve["steps"], "tokens": tokens})
    return rows
