"""Notebooks as files: sources (py:percent) with their parameters, and executed ones with their digests."""

import ast
import shlex
import sys
from pathlib import Path

from ...common.errors import MeeError, check_choice
from ...common.files import ROOT
from .digests import digest_of

# jsonschema, which nbformat imports, compiles a grammar of IRIs where it finds this module: that takes every
# kernel and every job more than a second, and no notebook has an IRI to be checked
sys.modules.setdefault("rfc3987_syntax", None)

SOURCES = ROOT / "notebooks"
METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
NEEDS = ("traces", "classifiers", "measured", "claims")  # claims: those that all other notebooks judge
INJECTED = "injected-parameters"  # papermill's tag of the cell that it adds


def notebook_names() -> list[str]:
    """The notebooks that are there, in order."""
    return sorted(path.stem for path in SOURCES.glob("[0-9][0-9]_*.py"))


def read_source(name: str):
    """Reads a notebook's source as a notebook."""
    import jupytext

    check_choice("notebook", name, notebook_names())
    notebook = jupytext.read(SOURCES / f"{name}.py", fmt="py:percent")
    notebook.metadata = dict(METADATA)
    notebook.nbformat = 4
    notebook.nbformat_minor = 5
    return notebook


def read_executed(path: Path):
    """Reads an executed notebook.

    Raises:
        MeeError: it is no notebook, as after a merge that left conflict marks in it.
    """
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, AttributeError, ValueError) as error:
        restore = f"git checkout HEAD -- {shlex.quote(str(path))}"
        raise MeeError(
            f"{path} cannot be read as a notebook (are there conflict marks in it?): restore it with "
            f"{restore}, or delete it and run make reproduce."
        ) from error


def declared_parameters(notebook) -> dict:
    """Names and defaults in the cell tagged `parameters`: flat literals, nothing derived."""
    return assigned_literals(_parameters_cell(notebook).source)


def declared_needs(notebook) -> list[str]:
    """What of `NEEDS` is made before a notebook runs, as the line above its parameters says.

    # %% needs=["traces", "measured"] tags=["parameters"]
    """
    needs = _parameters_cell(notebook).metadata.get("needs", [])
    for need in needs:
        check_choice("need of a notebook", need, NEEDS)
    return needs


def _parameters_cell(notebook):
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if len(cells) != 1:
        raise MeeError(f"A notebook needs one cell tagged parameters; this one has {len(cells)}.")
    return cells[0]


def assigned_literals(cell: str) -> dict:
    """Names and values of a cell of assignments such as `limit = 3`."""
    values = {}
    for statement in ast.parse(cell).body:
        try:
            (target,) = statement.targets
            values[target.id] = ast.literal_eval(statement.value)
        except (AttributeError, ValueError) as error:
            line = f"Line {statement.lineno} of the parameters cell"
            raise MeeError(f"{line} is no assignment of a literal.") from error
    return values


def is_injected(cell) -> bool:
    """Whether papermill has put a cell in, with the parameters that it was given."""
    return INJECTED in cell.metadata.get("tags", [])


def source_digest(notebook) -> str:
    """sha256 over kinds and sources of the cells that somebody wrote, without what papermill puts in."""
    written = [cell for cell in notebook.cells if not is_injected(cell)]
    return digest_of([(cell.cell_type, cell.source) for cell in written])


def outputs_digest(notebook) -> str:
    """sha256 over the outputs of all cells, pictures too, which nbval does not compare."""
    return digest_of([cell.get("outputs") for cell in notebook.cells])


def check_unedited(path: Path, source) -> None:
    """Refuses to overwrite a notebook that was edited after it was executed: it knows its source's digest."""
    if not path.exists():
        return
    stored = read_executed(path)
    executed = stored.metadata.get("source_sha256")
    if executed and source_digest(stored) not in (executed, source_digest(source)):
        command = [sys.executable, "-m", "jupytext", "--opt", "notebook_metadata_filter=-all"]
        command += ["--to", "py:percent", "-o", str(SOURCES / f"{path.stem}.py"), str(path)]
        raise MeeError(
            f"{path} was edited: {shlex.join(command)} saves the edits; deleting the file gives them up."
        )
