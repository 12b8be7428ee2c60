"""`make retrain`: trainings beside the shipped models: further seeds of backbones, ablations of the recipe.

An ablation is a short run of a smaller model with one part of the recipe changed. The weights are not
shipped; what is committed are the rows of two tables and the recipe behind each.
"""

import json
from pathlib import Path

import pandas as pd

from .. import MeeError
from ..common.files import complete_file
from ..study import inputs
from ..study.catalogue import RULES
from ..study.jobs import Job, retrainings
from ..study.profiles import Profile
from ..study.result_tables import RETRAINED
from ..study.results import Run, build_root, output_root, staged

# What seeds are compared at, and on how many examples.
RULE = "fixed"
THRESHOLD = 0.9
EXAMPLES = 200


def run(profile: Profile, job: Job) -> Path:
    """Trains and measures one; keeps its rows."""
    if job not in retrainings(profile):
        raise MeeError(f'Profile {profile.name} retrains no {job.kind} "{job.model}", seed {job.seed}.')
    rows = _seed_rows(profile, job) if job.kind == "seeds" else _ablation_rows(profile, job)
    with complete_file(job.path(profile)) as path:
        path.write_text(json.dumps(rows), encoding="utf-8")
    return job.path(profile)


def store(profile: Profile) -> Path:
    """Makes the tables of all retrainings, with a manifest of their recipes; returns their folder."""
    folder = output_root() / profile.name / RETRAINED
    settings = profile.training
    jobs = retrainings(profile)
    recipes = {job.model: _recipe(profile, job) for job in jobs}
    with staged(folder) as results:
        tables = Run(RETRAINED, profile.name, {"recipes": recipes}, results)
        tables.inputs = {f"model {name}": inputs.weights_digest(profile, name) for name in settings.models}
        for kind in ("seeds", "ablations"):
            rows = []
            for job in jobs:
                if job.kind == kind:
                    rows += json.loads(job.path(profile).read_text(encoding="utf-8"))
            if rows:
                tables.save_table(pd.DataFrame(rows), kind)
        tables.finish()
    return folder


def _recipe(profile: Profile, job: Job) -> dict:
    if job.kind == "ablations":
        return profile.ablation_runs[job.model].model_dump()
    return profile.training.recipe(job.model).model_dump()


def _seed_rows(profile: Profile, job: Job) -> list[dict]:
    """One row a task: score at full depth, where tokens settle, and what one exit rule makes of it."""
    model = _seed_model(profile, job)
    return [_seed_row(profile, job, model, task) for task in inputs.load_tasks(profile)]


def _seed_model(profile: Profile, job: Job):
    """The shipped model where it has this seed, else a new training."""
    from .build import new_builder, work_folder

    if job.seed == profile.training.seed and job.model in profile.training.backbones:
        return inputs.load_profile_model(profile, job.model)
    builder = new_builder(profile)
    folder = work_folder(profile, job.model, job.seed, builder.tasks)
    network, _ = builder.train_model(job.model, job.seed, folder)
    return builder.save_weights(network, folder / "model", profile.dtype)


def _seed_row(profile: Profile, job: Job, model, task) -> dict:
    from .. import generate, trace
    from ..analysis.comparison import decode
    from ..analysis.monotonicity import settled_from
    from ..decoding.inputs import UNLIMITED

    settings = profile.results
    options = {"max_new_tokens": profile.training.max_target, "batch_size": settings.batch_size}
    texts = generate(model, task.inputs, max_source_tokens=UNLIMITED, **options).texts
    sample = task[:EXAMPLES]
    full = decode(model, sample, None, **options)
    policy = RULES[RULE].policy(THRESHOLD, settings.model_dump())
    early = decode(model, sample, policy, full, **options)
    return {
        "task": task.name,
        "model": job.model,
        "seed": job.seed,
        "metric": task.metric,
        "examples": len(task),
        "score": task.score(texts)[task.metric],
        "settled_from": float(settled_from(trace(model, sample.inputs, **options)).mean()),
        "rule": RULE,
        "threshold": THRESHOLD,
        "retained": 100 * early.score / full.score if full.score else float("nan"),
        "flops_share": early.flops / full.flops,
        "mean_exit_layer": early.mean_exit_layer,
    }


def _ablation_rows(profile: Profile, job: Job) -> list[dict]:
    """One row a form of question: exact match after the run."""
    from .. import generate
    from .build import DEPTH, new_builder
    from .model_manifest import by_form
    from .muon import RATES_FROM_SCRATCH

    ablation = profile.ablation_runs[job.model]
    builder = new_builder(profile)
    folder = build_root() / RETRAINED / profile.name / job.model
    shape = profile.training.shape.model_dump() | dict.fromkeys(DEPTH, profile.ablations.layers)
    network, curve = builder.train_from_scratch(
        job.model,
        ablation.stages,
        job.seed,
        folder / "training",
        shape,
        local=ablation.local,
        rates=RATES_FROM_SCRATCH | ablation.rates,
        muon=ablation.muon,
    )
    model = builder.save_weights(network, folder / "model", profile.dtype)
    tokens = 0
    for number, stage in enumerate(ablation.stages):
        pairs = builder.stage_pairs(stage, job.seed + number)
        tokens += sum(len(source) + len(target) for source, target in pairs)

    rows = []
    for task in builder.choices:
        if not task.forms:
            continue
        generation = generate(model, task.inputs, max_new_tokens=profile.training.max_target, batch_size=64)
        for form, score in by_form(task, generation.texts).items():
            rows.append(
                {
                    "run": job.model,
                    "form": form,
                    "exact_match": score,
                    "questions": task.forms.count(form),
                    "steps": curve.steps,
                    "tokens": tokens,
                }
            )
    return rows
