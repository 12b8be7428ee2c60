"""What `make status` and `make origin` say of stored results."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ..common.errors import MeeError
from ..common.files import ROOT, read_json
from .freshness import result_changes
from .inputs import is_trained
from .notebook_files import SOURCES, notebook_names, read_executed
from .profiles import Profile
from .result_tables import MACHINES, MEASURED, RETRAINED
from .results import output_root


def states(profile: Profile) -> Iterator[tuple[str, str]]:
    """ "fresh", "stale (and since what changed)" or "missing" for the measurements and every notebook."""
    retrained = [RETRAINED] if (output_root() / profile.name / RETRAINED).exists() else []
    for name in [MEASURED, *retrained, *notebook_names()]:
        try:
            changes = result_changes(profile, name)
        except MeeError as error:
            yield name, f"unreadable: {error}"
            continue
        if changes is None:
            yield name, "missing"
        else:
            yield name, f"stale, changed since: {', '.join(changes)}" if changes else "fresh"


def lines(profile: Profile) -> Iterator[str]:
    """A line for each model and for each of the results of a profile."""
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
    if not path.exists():
        return None
    if manifest.exists():
        made = read_json(manifest)
        return made if path.name in made["files"] else None
    if machines.exists():
        return read_json(machines).get(path.stem) if path.suffix == ".csv" else None
    return None


def _cell_that_saved(path: Path, manifest: dict) -> str:
    """The notebook and the cell that printed the digest of a table, or of a figure's table."""
    beside = path.parent.with_suffix(".ipynb")
    book = beside if beside.exists() else SOURCES / f"{manifest['notebook']}.ipynb"
    digest = manifest["files"][f"{path.stem}.csv"][:8]
    line = re.compile(rf"^{path.stem}: .*sha256 {digest}$", re.MULTILINE)
    numbers = []
    for number, cell in enumerate(read_executed(book).cells):
        if any(line.search(output.get("text", "")) for output in cell.get("outputs", [])):
            numbers.append(str(number))
    return f"{str(book).removeprefix(f'{ROOT}/')}, cell {', '.join(numbers) or 'unknown'}"
