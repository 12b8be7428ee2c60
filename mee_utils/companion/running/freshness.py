"""Would a product come out the same if it were made now? Digests of its sources decide, not file times.

Times of files mean nothing in a fresh clone. A record lists the digests of what a product was made from:

- of a run of a notebook, and of stored tables, the manifest beside the results (`stored_result_changes`);
- of a trace, a set of classifiers or a measurement, a JSON file below `build`, written when it is done;
- of a model its manifest; `inputs.check_recipe` refuses one that no longer fits, and nothing here makes it
  again.

Snakemake runs what has no file in `build/records`: `forget_stale` deletes those of what has changed. Products
themselves are not declared as outputs of Snakemake, since it deletes outputs before it makes them again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from ...common.errors import MeeError
from ...common.files import PACKAGE, complete_file, read_json
from ..catalogue import RULES
from ..inputs import is_trained, weights_digest
from ..profiles import Profile
from ..result_tables import BENCH, MEASURED, RETRAINED, inputs_of
from ..results import executed_path, manifest_of, output_root
from .digests import code_digest, code_digests, code_files, digest_of, file_digest
from .jobs import (
    ALL,
    CLASSIFIERS,
    RETRAININGS,
    Job,
    classifier_sets,
    folder_of,
    measurements,
    retrainings,
    specs_of,
    traces,
)
from .notebook_files import notebook_names, outputs_digest, read_executed, read_source, source_digest

LIBRARY = ("common", "tasks", "models", "exits", "decoding", "traces")  # the code that a trace depends on
# parts of a profile that matter to one notebook, or to none
OF_NOTEBOOKS = {"notebooks", "left_out", "ablations", "rivals"}

SETTINGS_OF = {  # which `results` of a profile a measurement is made with; any other with all of them
    "published_bugs": {"bug_examples", "max_new_tokens", "batch_size", "top_k", "first_k", "least_k"},
    "inputs": {"validation", "test"},
    "learning": {"learning_tokens", "examples"},
    "learned_from": {"examples", "max_new_tokens", "min_layer", "top_k"},
}
MADE_BY = {
    "published_bugs": "companion/published_bugs.py",
    "inputs": None,
    "learning": None,
    "learned_from": None,
}


def differing_keys(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The sources that differ between a record and now."""
    return sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))


def record_path(profile: Profile, kind: str, name: str) -> Path:
    """A record below `build` by its kind ("model", "notebook", "tables" or that of a job) and name."""
    return folder_of(profile, "records") / f"{kind}-{name}.json"


def job_record_path(profile: Profile, job: Job) -> Path:
    """The record of a job."""
    return record_path(profile, job.kind, f"{job.model}-{job.task}-{job.seed}")


def is_recorded(record: Path, digests: Mapping[str, str]) -> bool:
    """Whether a record is there, and has these digests."""
    try:
        return read_json(record) == digests
    except MeeError:  # there is none that can be read
        return False


def write_record(record: Path, digests: Mapping[str, str] | None = None) -> None:
    """Writes what a product was made from; nothing where its manifest says it."""
    with complete_file(record) as file:
        file.write_text(json.dumps(digests or {}, indent=1), encoding="utf-8")


@contextmanager
def recorded(record: Path, digests: Mapping[str, str]) -> Iterator[None]:
    """Writes a record if the block, which makes the product, ends without an error."""
    record.unlink(missing_ok=True)
    yield
    write_record(record, digests)


def job_digests(profile: Profile, job: Job) -> dict[str, str]:
    """The digests of what a job is made from."""
    if job.kind == "trace":
        settings = profile.results
        return trace_digests(profile, job.model, job.task, settings.examples, settings.max_new_tokens)
    if job.kind in RETRAININGS:
        return {}  # hours of training: what is there is kept until it is deleted
    if job.kind in CLASSIFIERS:
        variants = [asdict(rule.classifier) for rule in RULES.values() if rule.classifier]
        settings = [profile.classifiers.model_dump(), profile.dtype, profile.training.max_target, variants]
        sources = _weights(profile, [job.model]) | _corpora(profile, profile.corpora)
        return sources | {"settings": digest_of(settings)}
    return _measurement_digests(profile, job)


def trace_digests(
    profile: Profile, model: str, task: str, examples: int, max_new_tokens: int
) -> dict[str, str]:
    """The digests of what a trace is made from."""
    code = code_digests(code_files(*LIBRARY))
    settings = [examples, max_new_tokens, profile.dtype]
    digests = _weights(profile, [model]) | _corpora(profile, [task])
    return digests | {"settings": digest_of(settings)} | code


def _measurement_digests(profile: Profile, job: Job) -> dict[str, str]:
    """Measurements take hours, so a change of code does not make them stale; `make status` reports it."""
    tasks = profile.corpora if job.task == ALL else [job.task]
    models = profile.training.backbones if job.kind == "published_bugs" else [job.model]
    chosen = profile.results.model_dump(include=SETTINGS_OF.get(job.kind), exclude={"quality", "timed"})
    digests = {
        "classifiers": digest_of(profile.classifiers.model_dump()),
        "settings": digest_of([chosen, profile.dtype]),
    }
    if file := MADE_BY.get(job.kind, "companion/rules.yaml"):
        digests[file] = code_digest(PACKAGE / file)
    return digests | _corpora(profile, tasks) | _weights(profile, models)


def notebook_digests(profile: Profile, name: str) -> dict[str, str]:
    """The digests of what a notebook is run with, for its manifest: the profile, and the corpora as they are.

    Its "inputs" are only what it has read.
    """
    settings = [profile.model_dump(exclude=OF_NOTEBOOKS), profile.notebooks.get(name, {})]
    return _corpora(profile, [*profile.corpora, *profile.away]) | {"profile": digest_of(settings)}


def table_digests(profile: Profile, jobs: Collection[Job]) -> dict[str, str]:
    """The digests of what stored tables are made from: the products of jobs."""
    return {job.name: file_digest(job.path(profile)) for job in jobs}


def _weights(profile: Profile, models: Collection[str]) -> dict[str, str]:
    trained = [name for name in models if is_trained(profile, name)]
    return {f"model {name}": weights_digest(profile, name) for name in trained}


def _corpora(profile: Profile, tasks: Collection[str]) -> dict[str, str]:
    """The digest of each corpus: of its settings, synthetic ones' generators, local ones' files."""
    digests = {}
    for task in tasks:
        corpus = profile.corpus(task)
        settings = [corpus.model_dump(), profile.training.seed, profile.training.max_source]
        files = []
        if corpus.source == "synthetic":
            settings.append(code_digests(code_files("tasks/synthetic")))
        elif profile.has_data(task):
            files = _files(Path(profile.source(task)))
        digests[f"corpus {task}"] = digest_of([settings, files])
    return digests


def _files(source: Path) -> list[tuple[str, str]]:
    """Name and digest of the files of a local corpus; none of any other source."""
    paths = [source] if source.is_file() else sorted(source.rglob("*"))
    files = [path for path in paths if path.is_file()]
    return [(path.name, _large_file_digest(path, path.stat().st_mtime_ns)) for path in files]


@lru_cache
def _large_file_digest(path: Path, modified: int) -> str:
    return file_digest(path)


def stored_result_changes(profile: Profile, name: str) -> list[str] | None:
    """What has changed since results were stored: files, code, inputs, the notebook; None: they are missing.

    Without the DATA folder, a corpus in it is not compared.

    Args:
        profile: whose results.
        name: of a notebook, "measured" or "retrained".
    """
    folder = output_root() / profile.name / name
    manifest = folder / "manifest.json"
    executed = executed_path(profile.name, name) if name in notebook_names() else None
    if not manifest.exists() or (executed and not executed.exists()):
        return None
    recorded = manifest_of(manifest)
    differing = [file for file, digest in recorded["files"].items() if file_digest(folder / file) != digest]
    code = recorded["code"]
    now = code_digests(path for path in map(PACKAGE.joinpath, code) if path.exists())
    differing += [f"mee_utils/{file}" for file in code if now.get(file) != code[file]]
    inputs = _inputs_now(profile)
    for key, digest in recorded["inputs"].items():
        if key.startswith(("model ", "results ")) and inputs.get(key, "") != digest:
            differing.append(key)
    if "sources" in recorded:  # older manifests have none
        local = [task for task in [*profile.corpora, *profile.away] if not profile.has_data(task)]
        changed = differing_keys(recorded["sources"], notebook_digests(profile, name))
        differing += [key for key in changed if key.removeprefix("corpus ") not in local]
    if executed:
        differing += _notebook_changes(executed, name)
    return differing


def _inputs_now(profile: Profile) -> dict[str, str]:
    """What manifests may have as inputs beside corpora: timings, stored results, and models."""
    tables = BENCH.rglob("*.csv")  # of CPUs, and in a folder of their own those of GPUs
    timings = {f"results bench/{path.relative_to(BENCH).as_posix()}": file_digest(path) for path in tables}
    return timings | inputs_of(profile.name) | _weights(profile, profile.training.models)


def _notebook_changes(path: Path, name: str) -> list[str]:
    """Whether an executed notebook is its source, and has the outputs that were stored in it."""
    stored = read_executed(path)
    executed = stored.metadata.get("source_sha256")
    differing = []
    if source_digest(read_source(name)) != executed:
        differing.append(f"notebooks/{name}.py")
    if source_digest(stored) != executed:
        differing.append(path.name)
    if outputs_digest(stored) != stored.metadata.get("outputs_sha256"):
        differing.append(f"outputs of {path.name}")
    return differing


def forget_stale(profile: Profile) -> None:
    """Deletes the records below `build` of what has changed or is gone, and records which models exist."""
    for name in profile.training.models:
        _note_model(profile, name)
    for job in [*traces(profile), *classifier_sets(profile), *measurements(profile), *retrainings(profile)]:
        record = job_record_path(profile, job)
        is_set = job.kind in CLASSIFIERS
        products = [spec.path(profile) for spec in specs_of(profile, job)] if is_set else [job.path(profile)]
        is_made = all(product.exists() for product in products)
        if record.exists() and not (is_made and is_recorded(record, job_digests(profile, job))):
            record.unlink()
    for name, jobs in ((MEASURED, measurements(profile)), (RETRAINED, retrainings(profile))):
        record = record_path(profile, "tables", name)
        # Snakemake does not look behind a record that is there: tables go with any of their jobs
        is_done = all(job_record_path(profile, job).exists() for job in jobs)
        if record.exists() and not (is_done and is_recorded(record, table_digests(profile, jobs))):
            record.unlink()
    for name in notebook_names():
        record = record_path(profile, "notebook", name)
        if record.exists() and stored_result_changes(profile, name) != []:
            record.unlink()


def _note_model(profile: Profile, name: str) -> None:
    """Records that a model need not be trained: it exists, or every model that starts from it does."""
    settings = profile.training
    heirs = [model for model in settings.models if settings.start(model) == name]
    record = record_path(profile, "model", name)
    if is_trained(profile, name) or (heirs and all(is_trained(profile, heir) for heir in heirs)):
        if not record.exists():
            write_record(record)
    else:
        record.unlink(missing_ok=True)
