"""Runs notebooks strictly: what papermill only warns of is an error here.

Sources are py:percent files; the executed notebook is a product. A run checks its parameters against the source's own
`parameters` cell (a flat literal a line, a comment each), executes with papermill aside, and puts the notebook in its place only if
every cell succeeded. A failed one is kept under `build/failed`, and the error names the cell.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import socket
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from .errors import CompanionError, nearest
from .profiles import PACKAGE, load_profile

SOURCES = PACKAGE.parent / "notebooks"
FAILED = PACKAGE.parent / "build" / "failed"
MARKERS = PACKAGE.parent / "build" / "done"
TRIALS = PACKAGE.parent / "build" / "trials"
LOCK = PACKAGE.parent / "build" / "reproduce.lock"


def notebook_names() -> list[str]:
    """The notebooks that are there, in order."""
    return sorted(path.stem for path in SOURCES.glob("[0-9][0-9]_*.py"))


def read_source(name: str):
    """Reads a notebook's source as a notebook with stable cell ids."""
    import jupytext

    path = SOURCES / f"{name}.py"
    if not path.exists():
        raise CompanionError(f'There is no notebook "{name}": {nearest(name, notebook_names())}')
    notebook = jupytext.read(path, fmt="py:percent")
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:02d}"
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def declared_parameters(notebook) -> dict:
    """Names and defaults in the cell tagged `parameters`: flat literals, nothing derived."""
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if len(cells) != 1:
        raise CompanionError(f"A notebook needs one cell tagged parameters; this one has {len(cells)}.")
    declared = {}
    for statement in ast.parse(cells[0].source).body:
        try:
            (target,) = statement.targets
            declared[target.id] = ast.literal_eval(statement.value)
        except (AttributeError, ValueError) as error:
            raise CompanionError(f"Line {statement.lineno} of the parameters cell is no assignment of a literal.") from error
    return declared


def check_parameters(given: dict, declared: dict) -> dict:
    """Refuses unknown, misspelt and ill-typed parameters; whole numbers are welcome where a float is declared."""
    checked = {}
    for name, value in given.items():
        if name not in declared:
            raise CompanionError(f'Unknown parameter "{name}": {nearest(name, declared)}')
        default = declared[name]
        if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if default is not None and type(value) is not type(default):
            raise CompanionError(
                f"Parameter {name}={value!r} is a {type(value).__name__}; a {type(default).__name__} like {default!r} is expected."
            )
        checked[name] = value
    return checked


def parse_assignments(assignments: list[str]) -> dict:
    """["limit=20", "models=['calm']"] -> values; what is no Python literal is taken as text."""
    values = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.isidentifier():
            raise CompanionError(f'"{assignment}" is no parameter: write name=value, as in limit=20.')
        try:
            values[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            values[name] = text
    return values


@contextmanager
def alone():
    """Only one `make reproduce` at a time in a folder: a second one would take the first one's unfinished results for its own."""
    import fcntl

    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CompanionError("Another make reproduce is running in this folder: wait for it, or stop it.") from error
        yield


def forget_stale(profile: str, situation: list[str], names: list[str]) -> str:
    """Returns the folder of the markers for one situation (sources and output folder), as a path from the root.

    Markers whose results or models are gone are removed, so that they are made again.
    """
    from .results import output_root

    key = hashlib.sha256(json.dumps(situation).encode()).hexdigest()[:12]
    folder = MARKERS / profile / key
    for other in (MARKERS / profile).glob("*"):
        if other != folder:
            shutil.rmtree(other)  # results of another DATA were overwritten or are about to be
    for name in (*names, "decoded"):
        if not (output_root() / profile / name / "manifest.json").exists():
            (folder / name).unlink(missing_ok=True)
    backbones = load_profile(profile).training.backbones
    if not all((PACKAGE / "checkpoints" / profile / name / "manifest.json").exists() for name in backbones):
        (folder / "models").unlink(missing_ok=True)
    return str(folder.relative_to(PACKAGE.parent))


def destination(name: str, profile: str, trial: bool) -> Path:
    """Where the executed notebook belongs: beside its source for `small`, with its figures for any other profile.

    A trial (parameters that are not the profile's) stays under `build/trials`.
    """
    from .results import output_root

    if trial:
        return TRIALS / profile / f"{name}.ipynb"
    if profile == "small" and not os.environ.get("MEE_OUTPUT"):
        return SOURCES / f"{name}.ipynb"
    return output_root() / profile / f"{name}.ipynb"


def run_notebook(name: str, profile: str = "small", data: str | None = None, parameters: dict | None = None) -> Path:
    """Executes a notebook and stores it, with its outputs.

    Args:
        name: such as "01_monotonicity".
        profile: the profile's name.
        data: the folder that stands for `{data}` in the profile.
        parameters: values for names of the notebook's parameters cell.

    Returns:
        The path of the executed notebook.

    Raises:
        CompanionError: unknown notebook, profile or parameter, models that are not there, or a cell that failed (named, with its error).
    """
    from .companion import with_shape

    notebook = read_source(name)
    declared = declared_parameters(notebook)
    given = check_parameters(parameters or {}, declared)
    settings = check_parameters(load_profile(profile).notebooks.get(name, {}), declared)
    chosen = {"profile": load_profile(profile).name, **({"data": data} if data else {}), **settings, **given}
    chosen = {key: value for key, value in chosen.items() if value != declared.get(key)}
    with_shape(load_profile(profile))  # where its models are not there yet, that is said before a kernel is started
    target = destination(name, profile, trial=bool(given))
    executed = _execute(notebook, name, chosen, trial=bool(given))
    _normalize(executed, data)
    _write(executed, target)
    return target


def _execute(notebook, name: str, parameters: dict, trial: bool):
    """Runs with papermill in the folder of the sources, and names the cell if one fails."""
    import nbformat
    import papermill

    if trial:
        os.environ.setdefault("MEE_OUTPUT", str(TRIALS))
    working = PACKAGE.parent / "build" / "running"
    working.mkdir(parents=True, exist_ok=True)
    start, end = working / f"{name}.source.ipynb", working / f"{name}.ipynb"
    nbformat.write(notebook, start)
    try:
        with tempfile.TemporaryDirectory(prefix="mee-kernel-") as folder:
            papermill.execute_notebook(
                start, end, parameters=parameters, kernel_name="python3", cwd=str(SOURCES),
                progress_bar=sys.stderr.isatty(), log_output=False, **_transport(folder),
            )  # fmt: skip
    except papermill.PapermillExecutionError as error:
        FAILED.mkdir(parents=True, exist_ok=True)
        end.replace(FAILED / f"{name}.ipynb")
        raise CompanionError(
            f"{name} failed in cell {error.cell_index} (In [{error.exec_count}]): {error.ename}: {error.evalue}. "
            f"The notebook is kept in build/failed/{name}.ipynb; finished results were not touched."
        ) from None
    return nbformat.read(end, as_version=4)


def _transport(folder: str) -> dict:
    """Where there are Unix sockets, a kernel talks through its own, in `folder`: two kernels that start at once cannot take each other's port."""
    if not hasattr(socket, "AF_UNIX"):
        return {}
    from jupyter_client.manager import AsyncKernelManager

    class SocketKernels(AsyncKernelManager):
        def __init__(self, **options):
            super().__init__(**{**options, "transport": "ipc", "ip": str(Path(folder) / "kernel")})

    return {"kernel_manager_class": SocketKernels}


def _normalize(notebook, data: str | None) -> None:
    """Takes out what differs from run to run: times, paths of this machine, random ids."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:02d}"
        tags = cell.metadata.get("tags", [])
        cell["metadata"] = {"tags": tags} if tags else {}
        if cell.cell_type == "code":
            cell["outputs"] = _joined(cell["outputs"])
        if data and "injected-parameters" in tags:
            cell["source"] = cell["source"].replace(json.dumps(data), json.dumps("path/to/corpora"))


def _joined(outputs: list) -> list:
    """Outputs with neighbouring pieces of one stream put together: where a kernel cuts what is printed depends on how busy the machine is."""
    joined: list = []
    for output in outputs:
        before = joined[-1] if joined else {}
        if output["output_type"] == before.get("output_type") == "stream" and output["name"] == before["name"]:
            before["text"] += output["text"]
        else:
            joined.append(output)
    return joined


def _write(notebook, target: Path) -> None:
    import nbformat

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.partial")
        nbformat.write(notebook, partial)
        os.replace(partial, target)
    except OSError as error:
        raise CompanionError(f"{target} cannot be written ({error.strerror}): choose another folder with MEE_OUTPUT.") from error
