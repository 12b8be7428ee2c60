"""`make retrain`: trainings beside the shipped models: further seeds, rivals, ablations of the recipe.

Rivals are decoders trained shallow (`training.rivals`). An ablation is a short run of a smaller model with
one part of the recipe changed. The weights are not shipped. What is committed is a table of each kind, the
score of every example at full depth, and the recipe behind each training.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from ... import MeeError, Model, Task, generate, trace
from ...analysis.comparison import DecodingResult, decode
from ...analysis.model_quality import beside_baseline
from ...analysis.monotonicity import settled_from
from ...common.files import complete_file, read_json
from ...decoding.inputs import UNLIMITED
from .. import inputs
from ..catalogue import RULES
from ..profiles import Profile
from ..result_tables import FULL_DEPTH, RETRAINED, read_full_depth, read_retrained
from ..results import Run, build_root, output_root, staged
from ..running.jobs import RETRAININGS, Job, folder_of, retrainings
from .build import DEPTH, new_builder, work_folder
from .model_manifest import by_form
from .muon import RATES_FROM_SCRATCH
from .right_sized import exits_of_right_sized
from .rivals import load_rival, rival_folder

# What seeds are compared at, and on how many examples.
RULE = "fixed"
THRESHOLD = 0.9
EXAMPLES = 200
WITHOUT_EXAMPLES = ("right_sized", "ablations")  # kinds whose examples are not stored
OF_TRAINING = ["task", "model", "seed"]  # what identifies a row of the seeds and of the rivals


def run(profile: Profile, job: Job) -> Path:
    """Trains and measures one; keeps its rows, and its examples at full depth beside them."""
    if job not in retrainings(profile):
        raise MeeError(f'Profile {profile.name} retrains no {job.kind} "{job.model}", seed {job.seed}.')
    if job.kind in WITHOUT_EXAMPLES:
        rows = {"ablations": _ablation_rows, "right_sized": exits_of_right_sized}[job.kind](profile, job)
    else:
        rows, examples = _rows_and_examples(profile, job)
        with complete_file(_examples_path(profile, job)) as path:
            examples.to_parquet(path, compression="zstd", index=False)
    with complete_file(job.path(profile)) as path:
        path.write_text(json.dumps(rows), encoding="utf-8")
    return job.path(profile)


def _examples_path(profile: Profile, job: Job) -> Path:
    """Where the score, FLOPs and length of each example at full depth are kept."""
    return job.path(profile).with_suffix(".parquet")


def store(profile: Profile) -> Path:
    """Makes the tables of all retrainings, with a manifest of their recipes; returns their folder.

    A training without rows in `build`, of an earlier session, keeps those that are stored.
    """
    jobs = retrainings(profile)
    recipes = {job.model: _recipe(profile, job) for job in jobs}
    tables = {kind: _table(profile, jobs, kind) for kind in RETRAININGS}
    examples = _all_examples(profile, jobs)
    folder = output_root() / profile.name / RETRAINED
    with staged(folder) as results:
        stored = Run(RETRAINED, profile.name, {"recipes": recipes}, results)
        models = profile.training.models
        stored.inputs = {f"model {name}": inputs.weights_digest(profile, name) for name in models}
        for kind, table in tables.items():
            if len(table):
                stored.save_table(_beside_vanilla(table, examples[examples.kind == kind]), kind)
        if len(examples):
            path = folder_of(profile, RETRAINED) / f"{FULL_DEPTH}.parquet"
            with complete_file(path) as partial:
                examples.to_parquet(partial, compression="zstd", index=False)
            stored.save_file(path)
        stored.finish()
    return folder


def _recipe(profile: Profile, job: Job) -> dict:
    if job.kind == "ablations":
        return profile.ablation_runs[job.model].model_dump()
    if job.model in profile.shallow_decoders:
        layers = {"decoder_layers": profile.shallow_decoders[job.model]}
        return profile.training.recipe("vanilla").model_dump() | layers
    if job.model in profile.right_sized:
        layers = {"decoder_layers": profile.right_sized[job.model]}
        return profile.training.recipe("calm").model_dump() | layers
    return profile.training.recipe(job.model).model_dump()


def _table(profile: Profile, jobs: list[Job], kind: str) -> pd.DataFrame:
    """The rows of all jobs of a kind; of one without rows in `build` those that are stored."""
    stored = read_retrained(profile.name, kind)
    tables = []
    for job in jobs:
        if job.kind != kind:
            continue
        if job.path(profile).exists():
            tables.append(pd.DataFrame(json.loads(job.path(profile).read_text(encoding="utf-8"))))
        else:
            tables.append(_of_job(stored, job))
    return _joined(tables)


def _beside_vanilla(table: pd.DataFrame, examples: pd.DataFrame) -> pd.DataFrame:
    """A table with what `beside_baseline` says of its rows; nothing of those without examples."""
    beside = beside_baseline(examples, "vanilla")
    if beside.empty:
        return table
    of_before = beside.columns.difference(OF_TRAINING)
    return table.drop(columns=of_before, errors="ignore").merge(beside, how="left", on=OF_TRAINING)


def _all_examples(profile: Profile, jobs: list[Job]) -> pd.DataFrame:
    """The examples of all jobs at full depth, with their kind; of one that has none in `build` the stored."""
    stored = read_full_depth(profile.name)
    tables = []
    for job in jobs:
        if job.kind in WITHOUT_EXAMPLES:
            continue
        path = _examples_path(profile, job)
        table = pd.read_parquet(path) if path.exists() else _of_job(stored[stored.kind == job.kind], job)
        tables.append(table.assign(kind=job.kind))
    return _joined(tables) if any(map(len, tables)) else stored


def _joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Tables below each other; those without rows would change the types of columns."""
    tables = [table for table in tables if len(table)]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _of_job(stored: pd.DataFrame, job: Job) -> pd.DataFrame:
    """The rows of a stored table that belong to a job; an ablation has one seed, and is called a run."""
    if stored.empty:
        return stored
    if job.kind == "ablations":
        return stored[stored.run == job.model]
    return stored[(stored.model == job.model) & (stored.seed == job.seed)]


def _rows_and_examples(profile: Profile, job: Job) -> tuple[list[dict], pd.DataFrame]:
    """One row a task, and one row an example of every task."""
    if job.kind == "seeds":
        model = _seed_model(profile, job)
        tasks = inputs.load_tasks(profile)
        measure = _seed_row
    else:  # beside decoders trained shallow, `vanilla`, which they are compared with
        model = _seed_model(profile, job) if job.model == "vanilla" else load_rival(profile, job)
        tasks = inputs.load_tasks(profile, "test", profile.results.test)
        measure = _rival_row
    rows = []
    examples = []
    for task in tasks:
        row, of_task = measure(profile, job, model, task)
        rows.append(row)
        examples.append(of_task.assign(task=task.name, model=job.model, seed=job.seed))
    return rows, pd.concat(examples, ignore_index=True)


def _seed_model(profile: Profile, job: Job) -> Model:
    """The shipped model where it has this seed, else a new training."""
    if job.seed == profile.training.seed and job.model in profile.training.backbones:
        return inputs.load_profile_model(profile, job.model)
    builder = new_builder(profile)
    folder = work_folder(profile, job.model, job.seed, builder.tasks)
    network, _ = builder.train_model(job.model, job.seed, folder)
    return builder.save_weights(network, folder / "model", profile.dtype)


def _seed_row(profile: Profile, job: Job, model: Model, task: Task) -> tuple[dict, pd.DataFrame]:
    """Score at full depth, where tokens settle, and what one exit rule makes of it; with all examples."""
    settings = profile.results
    options = {"max_new_tokens": profile.training.max_target, "batch_size": settings.batch_size}
    whole = decode(model, task, None, max_source_tokens=UNLIMITED, **options)
    sample = task[:EXAMPLES]
    full = decode(model, sample, None, **options)
    policy = RULES[RULE].policy(THRESHOLD, settings.model_dump())
    early = decode(model, sample, policy, full, **options)
    row = {
        "task": task.name,
        "model": job.model,
        "seed": job.seed,
        "metric": task.metric,
        "examples": len(task),
        "score": whole.score,
        "settled_from": float(settled_from(trace(model, sample.inputs, **options)).mean()),
        "rule": RULE,
        "threshold": THRESHOLD,
        "retained": 100 * early.score / full.score if full.score else float("nan"),
        "flops_share": early.flops / full.flops,
        "mean_exit_layer": early.mean_exit_layer,
    }
    return row, _examples(whole)


def _rival_row(profile: Profile, job: Job, model: Model, task: Task) -> tuple[dict, pd.DataFrame]:
    """What a rival scores and costs on the test examples of `make measure`, decoded as there."""
    settings = profile.results
    options = {"max_new_tokens": settings.max_new_tokens, "batch_size": settings.batch_size}
    decoding = decode(model, task, None, **options)
    start = ""
    if job.model != "vanilla":
        start = read_json(rival_folder(profile, job) / "manifest.json")["start"]
    row = {
        "task": task.name,
        "model": job.model,
        "seed": job.seed,
        "decoder_layers": model.layers,
        "start": start,
        "parameters": sum(weight.numel() for weight in model.network.parameters()),
        "metric": task.metric,
        "examples": len(task),
        "score": decoding.score,
        "tokens": decoding.tokens / len(task),
        "flops": decoding.flops,
    }
    return row, _examples(decoding)


def _examples(decoding: DecodingResult) -> pd.DataFrame:
    """One row an example: its score, the FLOPs of its output, and how many tokens that has."""
    return pd.DataFrame(
        {
            "example": np.arange(len(decoding.examples), dtype=np.int32),
            "score": decoding.examples.astype(np.float32),
            "flops": decoding.output_flops.astype(np.int64),
            "tokens": np.array([len(ids) for ids in decoding.token_ids], dtype=np.int16),
        }
    )


def _ablation_rows(profile: Profile, job: Job) -> list[dict]:
    """One row a form of question: exact match after the run."""
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
