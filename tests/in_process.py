"""`python in_process.py PROFILE DATA NAME...`: measurements ("measure") and notebooks of a profile.

All run in this process. Notebooks of `small` are run in kernels; the cells of these take less time than a
kernel takes to start.
"""

import os
import sys

from IPython.core.interactiveshell import InteractiveShell
from matplotlib import pyplot

from mee_utils import MeeError
from mee_utils.companion.cli import main
from mee_utils.companion.profiles import load_profile
from mee_utils.companion.running import jobs, notebook_files, notebooks, parameters


def execute(notebook, name, changed, results):
    """In place of `notebooks._execute`: papermill's cell of parameters comes behind that of the defaults."""
    os.environ[notebooks.STAGED] = f"{name}={results}"
    os.chdir(notebook_files.SOURCES)
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.display_formatter.active_types = shell.display_formatter.format_types  # as a browser asks for
    for cell in notebook.cells:
        if cell.cell_type == "code":
            run(shell, cell.source)
        if "parameters" in cell.metadata.get("tags", []):
            assignments = [f"{key} = {value!r}" for key, value in changed.items()]
            run(shell, "\n".join([parameters.PAPERMILL, *assignments]))
        pyplot.close("all")
    return notebook


def run(shell, source):
    """One cell. After an error, of which IPython has printed the traceback, the next notebook goes on."""
    if not shell.run_cell(source, store_history=True).success:
        raise MeeError("A cell failed.")


def measure(profile, where):
    """Every measurement of the profile, and their tables; the exit status of the last that failed, or 0."""
    status = 0
    for job in jobs.measurements(load_profile(profile)):
        status = main(["job", job.kind, "--model", job.model, "--task", job.task, *where]) or status
    return main(["job", "tables", "--name", "measured", *where]) or status


def run_all(profile, data, names):
    """Runs what is named; the exit status of the last one that failed, or 0."""
    notebooks._execute = execute
    where = ["--profile", profile, *(["--data", data] if data else [])]
    status = 0
    for name in names:
        done = measure(profile, where) if name == "measure" else main(["notebook", name, *where])
        status = done or status
    return status


if __name__ == "__main__":
    profile, data, *names = sys.argv[1:]
    run_all(profile, data, names)
