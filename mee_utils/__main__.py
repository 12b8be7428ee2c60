"""The command line behind the Makefile: `python -m mee_utils reproduce --profile small`."""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from .common.errors import MeeError, one_line
from .common.files import ROOT
from .study import pipeline
from .study.profiles import load_profile


def reproduce(options) -> str:
    """Runs everything stale of a profile: models, traces, classifiers, notebooks."""
    folder = pipeline.reproduce(options.profile, options.data, options.cores, options.force)
    return f"profile {options.profile} is up to date; figures and tables: {folder}"


def train(options) -> str:
    """Makes the missing models and exit classifiers of a profile."""
    from .study import artifacts
    from .training import build

    profile = load_profile(options.profile, options.data)
    if not options.model:
        build.check(profile, profile.training.models)
        pipeline.make("classifiers", options.profile, options.data, options.cores)
        for job in artifacts.classifier_jobs(profile):
            artifacts.copy_file(job.path(profile), job.shipped(profile))
    folders = build.train(profile, options.model)
    return f"trained: {', '.join(map(str, folders))} (scores in manifest.json)"


def trace(options) -> str:
    """Traces models of a profile on its tasks, for all notebooks."""
    from .study.artifacts import stored_trace

    profile = load_profile(options.profile, options.data)
    for name in options.model:
        for task in profile.corpora:
            stored_trace(profile, name, task)
    return f"traced {' and '.join(options.model)}"


def classifiers(options) -> str:
    """Trains exit classifiers of a profile."""
    from .study.artifacts import train_classifiers

    found = train_classifiers(load_profile(options.profile, options.data), options.model, options.seed)
    return f"trained {len(found)} exit classifiers of {' and '.join(options.model)}"


def measure(options) -> str:
    """Decodes every rule at thresholds that are searched for; stores what 05 and 08 are drawn from."""
    from .paper.published_bugs import measure_bugs
    from .study import measure as measuring

    profile = load_profile(options.profile, options.data)
    if options.part == TABLES:
        return f"tables: {measuring.store(profile)}"
    if not options.model:
        return f"measured: {pipeline.measure(options.profile, options.data, options.cores, options.force)}"
    job = measuring.Job(options.model[0], options.task, *options.part[:1])
    return f"measured: {measuring.run(profile, job, measure_bugs, options.force)}"


def retrain(options) -> str:
    """Trains further seeds and ablations of a profile, for tables."""
    from .training import retraining

    profile = load_profile(options.profile, options.data)
    if options.part == TABLES:
        return f"tables: {retraining.store(profile)}"
    if not options.model:
        pipeline.make("retrained", options.profile, options.data, options.cores)
        return "seeds and ablations are up to date"
    (name,) = options.model
    kind = "ablations" if name in profile.ablation_runs else "seeds"
    return f"rows: {retraining.run(profile, retraining.Retraining(kind, name, *options.seed))}"


def notebook(options) -> str:
    """Executes one notebook strictly."""
    from .study.notebooks import run_notebook
    from .study.parameters import parse_assignments

    path = run_notebook(options.name, options.profile, options.data, parse_assignments(options.parameter))
    trial = " (other parameters than the profile's: kept apart)" if "trials" in path.parts else ""
    return f"executed {options.name}: {path}{trial}"


def explorer(options) -> str:
    """Writes the explorer: one page on which thresholds move, exits follow and outputs change."""
    from .study.explorer_page import write

    return f"explorer: {write(options.profile, options.data)}"


def results(options) -> None:
    """Writes RESULTS.md, and the generated lines of README.md, from the stored tables."""
    from .paper.results_page import update

    update()


def status(options) -> None:
    """Which models of a profile are there, and whether its results are fresh, stale or missing."""
    from .study.inputs import is_trained
    from .study.status import states

    profile = load_profile(options.profile)
    for name in profile.training.models:
        print(f"model {name}: {'there' if is_trained(profile, name) else 'missing'}")
    for name, state in states(profile):
        print(f"results {name}: {state}")


def origin(options) -> None:
    """Says where a stored table or figure comes from: cell, parameters, inputs, machine, commit."""
    from .study.status import origin as lines

    print(*lines(options.file), sep="\n")


def _full(path: str) -> str:
    return str(Path(path).expanduser().resolve()) if path else path


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise MeeError(f"{message}; --help lists what there is.")


TABLES = ["tables"]  # the part that puts what all jobs have made in its place
LIST = dict(action="append", default=[])
OPTIONS = {
    "name": dict(help="of the notebook"),
    "file": dict(help="below figures"),
    "--profile": dict(default="small", help="a profile's name, or its file")
    | {"type": lambda name: _full(name) if name.endswith((".yaml", ".yml")) else name},
    "--data": dict(type=_full, help="folder that holds the corpora of the profile"),
    "--cores": dict(type=int, default=min(4, os.cpu_count() or 1), help="jobs at a time"),
    "--force": dict(action="store_true", help="run everything again"),
    "--model": LIST | {"help": "only this model (may be given again)"},
    "--task": dict(help="only this task"),
    "--seed": LIST | {"type": int},
    "--part": LIST | {"help": "only this part"},
    "-p --parameter": LIST | {"metavar": "NAME=VALUE", "help": "of the notebook"},
}
COMMANDS = {
    reproduce: ["--profile", "--data", "--cores", "--force"],
    train: ["--profile", "--data", "--cores", "--model"],
    trace: ["--profile", "--data", "--model"],
    classifiers: ["--profile", "--data", "--model", "--seed"],
    measure: ["--profile", "--data", "--cores", "--force", "--model", "--task", "--part"],
    retrain: ["--profile", "--data", "--cores", "--model", "--seed", "--part"],
    notebook: ["name", "--profile", "--data", "-p --parameter"],
    status: ["--profile", "--data"],
    origin: ["file"],
    explorer: ["--profile", "--data"],
    results: [],
}


def parser(known: Mapping[Callable, list[str]] = COMMANDS) -> argparse.ArgumentParser:
    """The `known` commands with their options."""
    top = _Parser(prog="mee_utils", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    for function, names in known.items():
        command = commands.add_parser(function.__name__, help=function.__doc__)
        command.set_defaults(run=function)
        for name in names:
            command.add_argument(*name.split(), **OPTIONS[name])
    return top


def run(arguments: list[str] | None, known: Mapping = COMMANDS) -> None:
    """Runs one command, and prints its answer if it has one."""
    if os.name != "posix":
        raise MeeError("Linux or macOS is needed; on Windows use WSL.")
    if not (ROOT / "notebooks" / "Snakefile").exists():
        raise MeeError(f"{ROOT} is no checkout: clone the repository and pip install -e . there.")
    started, options = time.monotonic(), parser(known).parse_args(arguments)
    if os.environ.get("MEE_OUTPUT"):
        os.environ["MEE_OUTPUT"] = _full(os.environ["MEE_OUTPUT"])
    pipeline.end_with_pipeline()
    with pipeline.announced(arguments or sys.argv[1:]):
        answer = options.run(options)
    if answer:
        print(f"{answer} ({time.monotonic() - started:.0f} seconds)", flush=True)


def main(arguments: list[str] | None = None, known: Mapping = COMMANDS) -> int:
    """Runs one command; a mistake in its input is one line on standard error and exit status 2."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(arguments, known)
        return 0
    except MeeError as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        what = f"{error.filename or 'a file'}: {error.strerror or one_line(error)}"
        print(f"error: {what}; free it, or set MEE_OUTPUT.", file=sys.stderr)
    except KeyboardInterrupt:
        if pipeline.STARTED_BY not in os.environ:  # a job leaves it to the command that was interrupted
            print(f"interrupted. {pipeline.KEPT}", file=sys.stderr)
        return 130
    return 2


if __name__ == "__main__":
    sys.exit(main())
