"""The command line behind the Makefile: `python -m mee_utils reproduce --profile small`."""

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path

from .common.errors import CompanionError, check_choice, one_line
from .common.files import ROOT
from .study import pipeline
from .study.profiles import load_profile
from .study.results import output_root


def reproduce(options) -> str:
    """Runs everything stale of a profile: models, traces, classifiers, threshold sweep, notebooks."""
    folder = pipeline.reproduce(options.profile, options.data, options.cores, options.force)
    return f"profile {options.profile} is up to date; figures and tables: {_short(folder)}"


def train(options) -> str:
    """Makes the missing models and exit classifiers of a profile."""
    from .study import artifacts, train_models

    profile = load_profile(options.profile, options.data)
    if not options.model:
        train_models.check(profile, profile.training.models)
        pipeline.make("classifiers", options.profile, options.data, options.cores)
        artifacts.ship_classifiers(profile)
    folders = train_models.train(profile, options.model)
    return f"trained: {', '.join(map(_short, folders))} (scores in manifest.json)"


def trace(options) -> str:
    """Traces models of a profile on its tasks, for all notebooks."""
    from .study.artifacts import stored_trace

    profile = _alone(options)
    for name in options.model:
        for task in profile.corpora:
            stored_trace(profile, name, task)
    return f"traced {' and '.join(options.model)}"


def classifiers(options) -> str:
    """Trains exit classifiers of a profile."""
    from .study.artifacts import train_classifiers

    found = train_classifiers(_alone(options), options.model, options.seed)
    return f"trained {len(found)} exit classifiers of {' and '.join(options.model)}"


def sweep(options) -> str:
    """Decodes every rule, threshold by threshold, and stores what notebooks 05 and 08 are drawn from."""
    from .paper.published_bugs import measure_bugs
    from .study import sweep as sweeps

    if options.part == "tables":
        return f"tables: {_short(sweeps.store(load_profile(options.profile)))}"
    if not options.model:
        pipeline.make("swept", options.profile, options.data, options.cores)
        return "the threshold sweep is up to date"
    job = sweeps.Job(options.model[0], options.task, options.part)
    sweeps.run(_alone(options), job, measure_bugs)
    return f"swept {job.what}: {job.model}, {job.task}"


def retrain(options) -> str:
    """Trains further seeds and ablations of a profile, for tables."""
    from .study import retraining

    if options.part == "tables":
        return f"tables: {_short(retraining.store(load_profile(options.profile)))}"
    if not options.model:
        pipeline.make("retrained", options.profile, options.data, options.cores)
        return "seeds and ablations are up to date"
    profile, (name,) = _alone(options), options.model
    kind = "ablations" if name in profile.ablation_runs else "seeds"
    return f"rows: {_short(retraining.run(profile, retraining.Retraining(kind, name, *options.seed)))}"


def _alone(options):
    """The profile of a job that others run beside, one a core."""
    import torch

    torch.set_num_threads(1)
    return load_profile(options.profile, options.data)


def notebook(options) -> str:
    """Executes one notebook strictly."""
    from .study.notebooks import parse_assignments, run_notebook

    path = run_notebook(options.name, options.profile, options.data, parse_assignments(options.parameter))
    trial = " (other parameters than the profile's: kept apart)" if "trials" in path.parts else ""
    return f"executed {options.name}: {_short(path)}{trial}"


def carry_over(options) -> str:
    """Takes edits made in notebooks/NAME.ipynb over into its source."""
    from .study.notebooks import carry_over as carry

    return f"carried over: {_short(carry(options.name))}"


def bench(options) -> int:
    """Times the decoder against its peers, and a profile's exit rules against full depth."""
    from .benchmarks import decoder, rules, shapes, tables
    from .study.result_tables import missed

    sizes = [check_choice("shape", name, decoder.WORKLOADS) for name in options.shape]
    known = [*decoder.PARTS, *shapes.PARTS, *([] if sizes else rules.PARTS)]
    parts = [check_choice("part", name, known) for name in options.part] or known
    progress = lambda line: print(line, flush=True)
    if of_decoder := [part for part in parts if part in decoder.PARTS]:
        table = decoder.run(sizes, options.rounds, of_decoder, progress)
        print(f"table: {_short(tables.save(table))}")
        for row in missed(table).itertuples():
            measured = f"{row.what}: {row.median:.2f} {row.unit} {row.against} (target {row.target})"
            print(f"missed: {row.shape}, {row.group}, {measured}")
    for part in [part for part in parts if part in shapes.PARTS]:
        table = shapes.run(part, options.profile, options.data, sizes, options.rounds, progress)
        print(f"table: {_short(tables.save(table, 'shapes', keys=('profile', 'part', 'shape')))}")
    for part in [part for part in parts if part in rules.PARTS]:
        table = rules.run(part, options.profile, options.data, options.rounds, progress)
        print(f"table: {_short(tables.save(table, part, keys=('profile', 'task', 'model', 'batch')))}")
    return 0


def explorer(options) -> str:
    """Writes the explorer: one page on which thresholds move, exits follow and outputs change."""
    from .study.explorer_page import write

    return f"explorer: {_short(write(options.profile, options.data))}"


def results(options) -> int:
    """Writes RESULTS.md, and the generated lines of README.md, from the stored tables."""
    from .paper.results_page import update

    update()
    return 0


def status(options) -> int:
    """Which models and results of a profile are there."""
    from .study.inputs import is_trained
    from .study.notebooks import notebook_names

    profile = load_profile(options.profile)
    found = {f"model {name}": is_trained(profile, name) for name in profile.training.models}
    for name in ["sweep", *notebook_names()]:
        found[f"results {name}"] = (output_root() / profile.name / name / "manifest.json").exists()
    for name, there in found.items():
        print(f"{name}: {'there' if there else 'missing'}")
    return 0


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def _full(path: str) -> str:
    return str(Path(path).expanduser().resolve()) if path else path


def _profile(name: str) -> str:
    return _full(name) if name.endswith((".yaml", ".yml")) else name


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise CompanionError(f"{message}; see python -m {self.prog} --help")


LIST = dict(action="append", default=[])
OPTIONS = {
    "name": dict(help="of the notebook"),
    "--profile": dict(default="small", type=_profile, help="a profile's name, or its file"),
    "--data": dict(type=_full, help="folder that holds the corpora of the profile"),
    "--cores": dict(type=int, default=min(4, os.cpu_count() or 1), help="jobs at a time"),
    "--force": dict(action="store_true", help="run everything again"),
    "--model": LIST | {"help": "only this model (may be given again)"},
    "--task": dict(help="only this task"),
    "--seed": LIST | {"type": int},
    "--part": dict(default="settings", choices=("settings", "fresh", "published_bugs", "tables")),
    "--parameter": LIST | {"metavar": "NAME=VALUE", "help": "of the notebook"},
    "--shape": LIST,
    "--rounds": dict(type=int, default=3),
}
COMMON = ("--profile", "--data")
COMMANDS = {
    reproduce: (*COMMON, "--cores", "--force"),
    train: (*COMMON, "--cores", "--model"),
    trace: (*COMMON, "--model"),
    classifiers: (*COMMON, "--model", "--seed"),
    sweep: (*COMMON, "--cores", "--model", "--task", "--part"),
    retrain: (*COMMON, "--cores", "--model", "--seed", "--part"),
    notebook: ("name", *COMMON, "--parameter"),
    carry_over: ("name",),
    status: COMMON,
    bench: (*COMMON, "--shape", "--part", "--rounds"),
    explorer: COMMON,
    results: (),
}


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    top = _Parser(prog="mee_utils", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    for function, names in COMMANDS.items():
        command = commands.add_parser(function.__name__.replace("_", "-"), help=function.__doc__)
        command.set_defaults(run=function)
        for name in names:
            short = ("-p",) if name == "--parameter" else ()
            given = LIST if (function, name) == (bench, "--part") else OPTIONS[name]
            command.add_argument(*short, name, **given)
    return top


def run(arguments: list[str] | None) -> int:
    """Runs one command, whose answer is a line to print or an exit status."""
    if os.name != "posix":
        raise CompanionError("Linux or macOS is needed; on Windows use WSL.")
    if not (ROOT / "notebooks" / "Snakefile").exists():
        raise CompanionError(f"{ROOT} is no checkout: clone the repository and pip install -e . there.")
    started, options = time.monotonic(), parser().parse_args(arguments)
    if os.environ.get("MEE_OUTPUT"):
        os.environ["MEE_OUTPUT"] = str(Path(os.environ["MEE_OUTPUT"]).resolve())
    pipeline.end_with_pipeline()
    answer = options.run(options)
    if isinstance(answer, str):
        print(f"{answer} ({time.monotonic() - started:.0f} seconds)", flush=True)
    return answer if isinstance(answer, int) else 0


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; a mistake in its input is one line on standard error and exit status 2."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(arguments)
    except CompanionError as error:
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
