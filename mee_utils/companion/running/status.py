"""What `make status` and `make origin` say of stored results."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ...common.errors import MeeError
from ...common.files import ROOT, read_json
from ..inputs import is_trained
from ..profiles import Profile
from ..result_tables import MACHINES, MEASURED, RETRAINED
from ..results import manifest_of, noted_digests, output_root
from . import freshness
from .notebook_files import SOURCES, notebook_names, read_executed

CODE = "mee_utils/"  # begins the names of changed modules
KEPT_WHATEVER_THE_CODE = {  # results that take hours -> how to make them again
    MEASURED: "make measure decodes new rules, FORCE=1 all again",
    RETRAINED: "make clean retrain TRAINING=1 trains again",
}
NAMED = 5  # changes that a line names


def states(profile: Profile) -> Iterator[tuple[str, str]]:
    """What is stored of a profile, by name, and its state: `make status` prints "results NAME: STATE"."""
    retrained = [RETRAINED] if (output_root() / profile.name / RETRAINED).exists() else []
    for name in [MEASURED, *retrained, *notebook_names()]:
        try:
            left_out = profile.left_out.get(name)
            yield name, f"left out: {left_out}" if left_out else _state(profile, name)
        except MeeError as error:
            yield name, f"unreadable: {error}"


def _state(profile: Profile, name: str) -> str:
    """ "missing", "fresh", or what has changed since a notebook was run or measurements were stored."""
    changes = freshness.stored_result_changes(profile, name)
    if changes is None:
        return "missing"
    if changes:
        if name in KEPT_WHATEVER_THE_CODE and all(change.startswith(CODE) for change in changes):
            return f"code has changed since (kept; {KEPT_WHATEVER_THE_CODE[name]})"
        others = f" and {len(changes) - NAMED} more" if len(changes) > NAMED else ""
        return f"stale, changed since: {', '.join(changes[:NAMED])}{others}"
    if name in KEPT_WHATEVER_THE_CODE or freshness.record_path(profile, "notebook", name).exists():
        return "fresh"
    return "fresh by its manifest (no record in build: make reproduce runs it)"


def lines(profile: Profile) -> Iterator[str]:
    """A line for each model and for each of the results of a profile.

    Raises:
        MeeError: the DATA folder is given and lacks a corpus.
    """
    for task in profile.corpora:
        if profile.has_data(task):
            profile.source(task)
    for name in profile.training.models:
        yield f"model {name}: {'there' if is_trained(profile, name) else 'missing'}"
    for name, state in states(profile):
        yield f"results {name}: {state}"


def origin(file: str) -> Iterator[str]:
    """Where a stored table or figure comes from, in lines: cell, parameters, inputs, machine, commit."""
    path = Path(file).resolve()
    record = _record_of(path)
    if record is None:
        raise MeeError(f"{file} is no stored result: give a file that a manifest below figures lists.")
    notebook = record.get("notebook")
    if notebook in notebook_names():
        yield f"saved by {_cell_that_saved(path, record)}"
    else:
        command = {None: "bench", MEASURED: "measure"}.get(notebook, "retrain")
        yield f"saved by make {command}"
    for key, value in record.items():
        if key not in ("notebook", "files", "code"):
            yield f"{key}: {value if isinstance(value, str | int | float) else json.dumps(value, indent=1)}"
    command = ["git", "log", "-1", "--format=%h of %as, %s", "--", str(path)]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    yield f"commit: {commit.stdout.strip()}"


def _record_of(path: Path) -> dict | None:
    """The manifest that lists a result, or what `make bench` says of a table; None if there is none."""
    manifest = path.with_name("manifest.json")
    machines = path.with_name(MACHINES)
    if path.exists() and manifest.exists():
        content = manifest_of(manifest)
        return content if path.name in content["files"] else None
    if path.exists() and machines.exists() and path.suffix == ".csv":
        record = read_json(machines).get(path.stem)
        return record if isinstance(record, dict) else None
    return None


def _cell_that_saved(path: Path, manifest: dict) -> str:
    """The notebook and the cell that noted the digest of a table, or of a figure's table."""
    beside = path.parent.with_suffix(".ipynb")
    book = beside if beside.exists() else SOURCES / f"{manifest['notebook']}.ipynb"
    table = manifest["files"].get(f"{path.stem}.csv", "no table")
    line = re.compile(rf"^{re.escape(path.stem)}: .*sha256 {table[:8]}$", re.MULTILINE)
    numbers = []
    for number, cell in enumerate(read_executed(book).cells):
        if line.search(noted_digests(cell.get("outputs", []))):
            numbers.append(str(number))
    return f"{str(book).removeprefix(f'{ROOT}/')}, cell {', '.join(numbers) or 'unknown'}"
