"""Runs notebooks strictly: what papermill only warns of is an error here.

Sources are py:percent files. Parameters are checked against the source's own `parameters` cell; notebook and
results come to their place only if every cell succeeded.
"""

import ast
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, create_model

from ..common.errors import MeeError, check_choice
from ..common.files import ROOT, complete_file
from .profiles import Strict, first_mistake, load_profile
from .results import STAGED, build_root, digest_of, output_root, staged

STARTED_BY = "MEE_PIPELINE"  # tells a job the process that started the pipeline
SOURCES = ROOT / "notebooks"
METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def notebook_names() -> list[str]:
    """The notebooks that are there, in order."""
    return sorted(path.stem for path in SOURCES.glob("[0-9][0-9]_*.py"))


def read_source(name: str):
    """Reads a notebook's source as a notebook."""
    import jupytext

    check_choice("notebook", name, notebook_names())
    notebook = jupytext.read(SOURCES / f"{name}.py", fmt="py:percent")
    notebook.metadata, notebook.nbformat, notebook.nbformat_minor = dict(METADATA), 4, 5
    return notebook


def declared_parameters(notebook) -> dict:
    """Names and defaults in the cell tagged `parameters`: flat literals, nothing derived."""
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if len(cells) != 1:
        raise MeeError(f"A notebook needs one cell tagged parameters; this one has {len(cells)}.")
    declared = {}
    for statement in ast.parse(cells[0].source).body:
        try:
            (target,) = statement.targets
            declared[target.id] = ast.literal_eval(statement.value)
        except (AttributeError, ValueError) as error:
            line = f"Line {statement.lineno} of the parameters cell"
            raise MeeError(f"{line} is no assignment of a literal.") from error
    return declared


def check_parameters(given: dict, declared: dict) -> dict:
    """Refuses unknown, ill-typed and impossible parameters; whole numbers serve where a float is declared.

    What is declared positive stays positive, and what is declared as a share stays between 0 and 1.
    """
    spans = {int: lambda default: dict(ge=min(default, 1))}
    spans[float] = lambda default: dict(ge=0, le=1 if default <= 1 else None, allow_inf_nan=False)
    span = lambda default: Field(**spans.get(type(default), lambda _: {})(default))
    fields = {name: (Annotated[type(value), span(value)], value) for name, value in declared.items()}
    try:
        return create_model("Parameters", __base__=Strict, **fields)(**given).model_dump(include=given.keys())
    except ValidationError as error:
        raise MeeError(f"Parameters: {first_mistake(error)}") from error


def parse_assignments(assignments: list[str]) -> dict:
    """["limit=20", "models=['calm']"] -> values; what is no Python literal is taken as text."""
    values = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.isidentifier():
            raise MeeError(f'"{assignment}" is no parameter: write name=value, as in limit=20.')
        try:
            values[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            values[name] = text
    return values


def run_notebook(name: str, profile="small", data=None, parameters: dict | None = None) -> Path:
    """Executes a notebook and stores it with its results; with other `parameters` of one's own as a trial."""
    from .inputs import model_shape

    settings, notebook = load_profile(profile), read_source(name)
    declared = declared_parameters(notebook)
    own = {"profile": profile, "data": data or ""} | settings.notebooks.get(name, {})
    own = declared | check_parameters(own, declared)
    chosen = own | check_parameters(parameters or {}, declared)
    trial = chosen != own
    model_shape(settings)  # where models are not there yet, that is said before a kernel is started
    folder = (build_root() / "trials" if trial else output_root()) / settings.name
    beside_source = settings.name == "small" and not trial and not os.environ.get("MEE_OUTPUT")
    target = (SOURCES if beside_source else folder) / f"{name}.ipynb"
    check_unedited(target, notebook)
    changed = {key: value for key, value in chosen.items() if value != declared[key]}
    with staged(folder / name) as results:
        executed = _execute(notebook, name, changed, results)
        if any(results.iterdir()) and not (results / "manifest.json").exists():
            raise MeeError(f"{name} saved results but never called finish: add it as the last cell.")
        _normalize(executed, data)
        _write(executed, target)
        if not trial:  # for Snakemake, which must never delete a committed notebook
            _write(executed, build_root() / "notebooks" / settings.name / f"{name}.ipynb")
    return target


def _execute(notebook, name: str, parameters: dict, results: Path):
    """Runs with papermill in the folder of the sources, and names the cell if one fails."""
    import nbformat
    import papermill
    from nbclient.exceptions import DeadKernelError

    alone = sys.stderr.isatty() and STARTED_BY not in os.environ
    with tempfile.TemporaryDirectory(prefix="mee-") as folder:
        start, end = Path(folder) / "source.ipynb", Path(folder) / "executed.ipynb"
        nbformat.write(notebook, start)
        options = dict(cwd=str(SOURCES), progress_bar=alone, log_output=False)
        options |= dict(kernel_name="python3", kernel_manager_class=_kernels(folder, results))
        try:
            papermill.execute_notebook(start, end, parameters, **options)
        except papermill.PapermillExecutionError as error:
            kept = build_root() / "failed" / f"{name}.ipynb"
            _write(nbformat.read(end, as_version=4), kept)
            raise MeeError(
                f"{name} failed in cell {error.cell_index} (In [{error.exec_count}]): {error.ename}: "
                f"{error.evalue.rstrip('.')}. The notebook is kept in {kept}; finished results are untouched."
            ) from None
        except DeadKernelError:
            raise MeeError(
                f"{name}: its kernel was killed, for want of memory perhaps: try a smaller batch_size "
                "or limit. Finished results are untouched."
            ) from None
        return nbformat.read(end, as_version=4)


def _kernels(folder: str, results: Path) -> type:
    """Kernels that know where results go; each has its own socket, since two could take the same port."""
    from jupyter_client.manager import AsyncKernelManager

    socket = {"transport": "ipc", "ip": str(Path(folder) / "kernel")}
    known = {"env": os.environ | {STAGED: str(results.resolve())}}

    class Kernels(AsyncKernelManager):
        def __init__(self, **options):
            super().__init__(**options | socket)

        async def _async_pre_start_kernel(self, **options):
            return await super()._async_pre_start_kernel(**options | known)

        async def _async_interrupt_kernel(self):
            if not self.shutting_down:  # a shutdown begins with it, of which an idle kernel complains
                await super()._async_interrupt_kernel()

    return Kernels


def source_digest(notebook) -> str:
    """sha256 over kinds and sources of the cells that somebody wrote, without what papermill puts in."""
    injected = lambda cell: "injected-parameters" in cell.metadata.get("tags", [])
    return digest_of([(cell.cell_type, cell.source) for cell in notebook.cells if not injected(cell)])


def outputs_digest(notebook) -> str:
    """sha256 over the outputs of all cells, pictures too, which nbval does not compare."""
    return digest_of([cell.get("outputs") for cell in notebook.cells])


def check_unedited(path: Path, source) -> None:
    """Refuses to overwrite a notebook that was edited after it was executed: it knows its source's digest."""
    import nbformat

    if not path.exists():
        return
    stored = nbformat.read(path, as_version=4)
    executed = stored.metadata.get("source_sha256")
    if executed and source_digest(stored) not in (executed, source_digest(source)):
        place = shlex.join(["-o", str(SOURCES / f"{path.stem}.py"), str(path)])
        take = f"jupytext --opt notebook_metadata_filter=-all --to py:percent {place}"
        raise MeeError(f"{path} was edited: {take} saves the edits; deleting the file gives them up.")


def _normalize(notebook, data: str | None) -> None:
    """Takes out what differs from run to run: times, paths of this machine, random ids. Adds digests."""
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:02d}"
        tags = cell.metadata.get("tags", [])
        cell["metadata"] = {"tags": tags} if tags else {}
        if cell.cell_type == "code":
            cell["outputs"] = _joined(cell["outputs"])
        if data and "injected-parameters" in tags:
            cell["source"] = cell["source"].replace(json.dumps(data), json.dumps("path/to/corpora"))
    digests = {"source_sha256": source_digest(notebook), "outputs_sha256": outputs_digest(notebook)}
    notebook.metadata = METADATA | {"language_info": {"name": "python"}} | digests


def _joined(outputs: list) -> list:
    """Neighbouring pieces of one stream put together: where a kernel cuts them depends on the load."""
    joined: list = []
    for output in outputs:
        if "name" in output and joined and joined[-1].get("name") == output["name"]:
            joined[-1]["text"] += output["text"]
        else:
            joined.append(output)
    return joined


def _write(notebook, path: Path) -> None:
    import nbformat

    with complete_file(path) as partial:
        nbformat.write(notebook, partial)
