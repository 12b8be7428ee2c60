"""Runs notebooks strictly: what papermill only warns of is an error here.

Sources are py:percent files. Parameters are checked against the source's own `parameters` cell; notebook and
results come to their place only if every cell succeeded.
"""

import base64
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...common.errors import MeeError
from ...common.files import ROOT, complete_file, read_json
from ..profiles import Profile, load_profile
from ..results import STAGED, build_root, executed_path, output_root, staged, trial_folder, with_palette
from . import notebook_files
from .locks import own_folder
from .notebook_files import (
    METADATA,
    check_unedited,
    declared_parameters,
    is_injected,
    outputs_digest,
    read_source,
    source_digest,
)
from .parameters import check_parameters

HIDDEN = "hide-input"  # the tag of a cell whose code is folded
STARTED_BY = "MEE_PIPELINE"  # tells a job the process that started the pipeline
PICTURE = "image/png"
SOCKET = "kernel-12345"  # a name like a socket's
LONGEST_SOCKET = 103  # characters of the path of a socket, on macOS; 107 on Linux
SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")


def profile_parameters(profile: Profile, name: str, given: dict | None = None) -> dict:
    """Every parameter of a notebook: its defaults, unless the profile has others, or they are `given`."""
    declared = declared_parameters(read_source(name))
    values = declared | check_parameters(profile.notebooks.get(name, {}), declared)
    return values | check_parameters(given or {}, declared)


def run_notebook(name: str, profile="small", data=None, parameters: dict | None = None) -> Path:
    """Executes a notebook and stores it with its results.

    Args:
        name: of the notebook, as "01_monotonicity".
        profile: the name of a profile, or its file.
        data: the folder that stands for `{data}` in the profile.
        parameters: those that differ from the profile's. Where there are any, the run is a trial, and its
            results are kept apart, in a folder for each choice of parameters.

    Returns:
        The path of the executed notebook.

    Raises:
        MeeError: an unknown name or parameter, a model that is missing, or a cell that failed.
    """
    from ..inputs import model_shape
    from .freshness import notebook_digests

    settings = load_profile(profile, data)
    source = read_source(name)
    if name in settings.left_out:
        raise MeeError(f'Profile "{settings.name}" leaves {name} out: {settings.left_out[name]}.')
    where = {"profile": str(profile), "data": data or ""}
    usual = profile_parameters(settings, name, where)
    chosen = profile_parameters(settings, name, where | (parameters or {}))
    model_shape(settings)  # where models are not there yet, that is said before a kernel is started
    if chosen == usual:
        folder = output_root() / settings.name / name
        target = executed_path(settings.name, name)
    else:
        folder = trial_folder(settings.name, name, chosen)
        target = folder.with_suffix(".ipynb")
    check_unedited(target, source)
    defaults = declared_parameters(source)
    changed = {key: value for key, value in chosen.items() if value != defaults[key]}
    sources = notebook_digests(settings, name)
    with staged(folder) as results:
        executed = _execute(source, name, changed, results)
        manifest = results / "manifest.json"
        if manifest.exists():
            content = read_json(manifest) | {"sources": sources}
            manifest.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        elif any(results.iterdir()):
            raise MeeError(f"{name} saved results but never called finish: add it as the last cell.")
        _normalize(executed, data)
        _write(executed, target)
    return target


def _execute(notebook, name: str, parameters: dict, results: Path):
    """Runs with papermill in the folder of the sources, and names the cell if one fails."""
    import nbformat
    import papermill
    from nbclient.exceptions import DeadKernelError

    alone = sys.stderr.isatty() and STARTED_BY not in os.environ
    with own_folder(Path(tempfile.gettempdir()), "mee-") as folder, _socket_folder(folder) as sockets:
        start = folder / "source.ipynb"
        end = folder / "executed.ipynb"
        nbformat.write(notebook, start)
        try:
            papermill.execute_notebook(
                start,
                end,
                parameters,
                cwd=str(notebook_files.SOURCES),
                progress_bar=alone,
                log_output=False,
                kernel_name=METADATA["kernelspec"]["name"],
                kernel_manager_class=_kernel_manager(
                    sockets, _environment(folder, f"{name}={results.resolve()}")
                ),
            )
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


def _environment(folder: Path, staged_results: str) -> dict[str, str]:
    """What a kernel is started with: the code of this checkout, and nothing that a user has set up.

    Without it, it would run the code of whichever clone is installed, load a user's profile of IPython, and
    draw as a `matplotlibrc` or MPLBACKEND says, with which a notebook may have no pictures at all.
    """
    settings = folder / "matplotlibrc"
    settings.touch()
    known = {name: value for name, value in os.environ.items() if name != "PYTHONSTARTUP"}
    return known | {
        STAGED: staged_results,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "IPYTHONDIR": str(folder / "ipython"),
        "MATPLOTLIBRC": str(settings),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "TMPDIR": str(folder),  # what a kernel that is killed leaves there goes with it
    }


@contextmanager
def _socket_folder(folder: Path) -> Iterator[Path]:
    """A folder for a kernel's sockets, if need be another one than `folder`, whose name may be too long."""
    if len(str(folder / SOCKET)) < LONGEST_SOCKET:
        yield folder
        return
    for parent in filter(os.path.isdir, SHORT_FOLDERS):
        if os.access(parent, os.W_OK):
            with own_folder(Path(parent), "mee-") as shorter:
                yield shorter
            return
    raise MeeError(f"TMPDIR={tempfile.gettempdir()} is too long for sockets: set it to a shorter one.")


def _kernel_manager(sockets: Path, environment: dict[str, str]) -> type:
    """Kernels of this interpreter in an environment of their own.

    Each has its own socket in the folder `sockets`, since two could take the same port. A kernel that is
    installed elsewhere under the name "python3" (JUPYTER_PATH) is not used: it may be of another environment.
    """
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    class Kernels(AsyncKernelManager):
        def __init__(self, **options):
            super().__init__(**options | {"transport": "ipc", "ip": str(sockets / "kernel")})

        @property
        def kernel_spec(self):
            return KernelSpec(**get_kernel_dict())

        async def _async_pre_start_kernel(self, **options):
            return await super()._async_pre_start_kernel(**options | {"env": environment})

        async def _async_interrupt_kernel(self):
            if not self.shutting_down:  # a shutdown begins with it, of which an idle kernel complains
                await super()._async_interrupt_kernel()

    return Kernels


def _normalize(notebook, data: str | None) -> None:
    """Takes out what differs from run to run: times, paths of this machine, random ids. Adds digests.

    Pictures get a palette, as those in the folder of results have: everyone clones them.
    """
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:02d}"
        cell["metadata"] = {key: cell.metadata[key] for key in ("tags", "needs") if cell.metadata.get(key)}
        if HIDDEN in cell["metadata"].get("tags", []):
            cell["metadata"]["jupyter"] = {"source_hidden": True}
        if cell.cell_type == "code":
            cell["outputs"] = _joined(cell["outputs"])
            for output in cell["outputs"]:
                if PICTURE in output.get("data", {}):
                    picture = with_palette(base64.b64decode(output["data"][PICTURE]))
                    output["data"][PICTURE] = base64.b64encode(picture).decode()
        if data and is_injected(cell):
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
