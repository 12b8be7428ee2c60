"""The command line behind the Makefile: `python -m mee_utils reproduce --profile small`."""

import argparse
import codecs
import errno
import os
import signal
import sys
import tempfile
import threading
import time
import unicodedata
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ..common.errors import MeeError, check_choice, one_line
from ..common.files import ROOT
from .profiles import Profile, is_file_name, load_profile
from .results import build_root, output_root
from .running import jobs, pipeline
from .running.locks import own_folder
from .running.pins import how_to_pin

PLAIN = str.maketrans("×–—−…‘’“”", "x---.''\"\"")  # where an output cannot encode them
NOT_WRITABLE = (
    errno.EACCES,
    errno.EDQUOT,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EROFS,
)


def reproduce(options) -> str:
    """Runs everything stale of a profile: models, traces, classifiers, notebooks."""
    folder = pipeline.reproduce(options.profile, options.data, options.cores, options.force)
    for name, reason in load_profile(options.profile).left_out.items():
        print(f"left out: {name} ({reason})")
    return f"profile {options.profile} is up to date; figures and tables: {folder}"


def measure(options) -> str:
    """Decodes every rule at searched thresholds; stores what 05, 06, 08 and 09 are drawn from."""
    return f"measured: {pipeline.measure(options.profile, options.data, options.cores, options.force)}"


def train(options) -> str:
    """Makes the missing models and exit classifiers of a profile."""
    from .artifacts import ship_classifiers
    from .training import build

    profile = load_profile(options.profile, options.data)
    if not options.model:
        build.check(profile, profile.training.models)
        pipeline.make("classifiers", options.profile, options.data, options.cores)
        ship_classifiers(profile)
    folders = build.train(profile, options.model)
    moving = how_to_pin(profile, options.profile)
    return f"trained: {', '.join(map(str, folders))} (scores in manifest.json){moving}"


def retrain(options) -> str:
    """Trains further seeds, rivals and ablations of a profile, for tables."""
    pipeline.make("retrained", options.profile, options.data, options.cores)
    return "seeds, rivals and ablations are up to date"


def notebook(options) -> str:
    """Executes one notebook strictly."""
    from .running import freshness
    from .running.notebooks import run_notebook
    from .running.parameters import parse_assignments

    given = parse_assignments(options.parameter)
    profile = load_profile(options.profile, options.data)
    path = run_notebook(options.name, options.profile, options.data, given)
    if "trials" in path.parts:
        return f"executed {options.name}: {path} (other parameters than the profile's: kept apart)"
    freshness.write_record(freshness.record_path(profile, "notebook", options.name))
    return f"executed {options.name}: {path}"


def data(options) -> str:
    """Fetches the corpora that a profile reads from files, each from its publisher."""
    from .running.corpora import fetch_corpora

    return fetch_corpora(load_profile(options.profile, options.data), options.data)


def explorer(options) -> str:
    """Writes the explorer: one page on which thresholds move, exits follow and outputs change."""
    from .explorer_page import write

    return f"explorer: {write()}"


def suitability(options) -> str | None:
    """Says on one page whether early exits are worth it for a model, from one trace."""
    from .suitability_page import write

    return write(
        options.model,
        options.task,
        source=options.source,
        split=options.split,
        limit=options.limit,
        max_new_tokens=options.max_new_tokens,
        batch_size=options.batch_size,
        max_source_tokens=options.max_source_tokens,
        output=options.output,
    )


def train_exits(options) -> str:
    """Trains a checkpoint for exits (LoRA, CALM's loss) on a file of inputs and targets."""
    from .exit_adapters import write

    recipe = {
        "exit_layers": options.layers,
        "tokens": options.tokens,
        "rank": options.rank,
        "max_source": options.max_source_tokens,
        "max_target": options.max_new_tokens,
        "seed": options.seed,
    }
    given = {name: value for name, value in recipe.items() if value is not None}
    return f"adapter: {write(options.model, options.data, options.output, given)}"


def row(options) -> None:
    """Measures a rule of your own as the study's are, and prints its row, rank and machine."""
    from .rule_row import row as measured_row

    text = measured_row(
        options.rule,
        options.profile,
        options.data,
        tasks=options.task,
        limit=options.limit,
        pruning=options.pruning,
        name=options.name,
    )
    print(text)


def results(options) -> None:
    """Writes RESULTS.md, the generated lines of README.md, DATA.md and the model cards."""
    from .reporting import report

    report.update()


def check(options) -> str:
    """Names every sentence of notebooks, README.md and RESULTS.md that the stored tables of `real` belie."""
    from .reporting import sentences

    sentences.check()
    return "every sentence that is watched holds"


def pin(options) -> str:
    """Writes the current commit of every hub id into a profile's file."""
    from .running import pins

    commits = pins.pin(options.profile)
    pinned = ", ".join(f"{source} at {commit}" for source, commit in commits.items())
    return f"pinned {pinned}" if pinned else f"profile {options.profile}: every hub id has its commit"


def status(options) -> None:
    """Which models of a profile are there, and whether its results are fresh, stale or missing."""
    from .running.status import lines

    print(*lines(load_profile(options.profile, options.data)), sep="\n")


def origin(options) -> None:
    """Says where a stored table or figure comes from: cell, parameters, inputs, machine, commit."""
    from .running.status import origin as lines

    print(*lines(options.file), sep="\n")


def job(options) -> str:
    """One part of the pipeline, as the Snakefile runs it (kinds: `running.jobs`; "model" and "tables")."""
    from . import artifacts
    from .running import freshness
    from .training import build

    profile = load_profile(options.profile, options.data)
    work = jobs.Job(options.kind, options.model, options.task, options.seed)
    if work.kind == "tables":
        return _store_tables(profile, options.name)
    if work.kind == "model":
        (folder,) = build.train(profile, [work.model])
        freshness.write_record(freshness.record_path(profile, "model", work.model))
        return f"trained: {folder}"
    if work.kind == "trace":
        check_choice("model", work.model, profile.training.models)
        for task in profile.corpora:
            artifacts.stored_trace(profile, work.model, task)  # writes its record
        return f"traced {work.model}"
    if work not in (*jobs.classifier_sets(profile), *jobs.measurements(profile), *jobs.retrainings(profile)):
        given = f"{work.kind} of model {work.model}, task {work.task}, seed {work.seed}"
        models = ", ".join(profile.training.models)
        tasks = ", ".join([*profile.corpora, jobs.ALL])
        raise MeeError(
            f"Profile {profile.name} has no job {given}: its models are {models}, its tasks {tasks}."
        )
    with freshness.recorded(freshness.job_record_path(profile, work), freshness.job_digests(profile, work)):
        return _make(profile, work, options.force)


def _make(profile: Profile, work: jobs.Job, force: bool) -> str:
    """Classifiers, a measurement or a retraining."""
    from . import artifacts, measure
    from .training import retraining

    if work.kind in jobs.CLASSIFIERS:
        seeds = {spec.seed for spec in jobs.specs_of(profile, work)}
        classifiers = artifacts.train_classifiers(profile, [work.model], seeds)
        return f"trained {len(classifiers)} exit classifiers of {work.model}"
    if work.kind in jobs.RETRAININGS:
        return f"rows: {retraining.run(profile, work)}"
    return f"measured: {measure.run(profile, work, force)}"


def _store_tables(profile: Profile, name: str | None) -> str:
    """The tables of all measurements, or of all retrainings."""
    from . import measure
    from .running import freshness
    from .training import retraining

    if not name:
        raise MeeError("job tables: give --name measured or --name retrained.")
    is_measured = name == "measured"
    work = jobs.measurements(profile) if is_measured else jobs.retrainings(profile)
    store = measure.store if is_measured else retraining.store
    record = freshness.record_path(profile, "tables", name)
    with freshness.recorded(record, freshness.table_digests(profile, work)):
        return f"tables: {store(profile)}"


class Parser(argparse.ArgumentParser):
    """Its errors are one line."""

    def error(self, message: str):
        """As `argparse` calls it when it cannot understand a command line."""
        raise MeeError(f"{message}; --help lists what there is.")


def profile_options() -> Parser:
    """The options of every command that works on a profile."""

    def named(profile: str) -> str:
        return _full(profile) if is_file_name(profile) else profile

    options = Parser(add_help=False)
    options.add_argument("--profile", type=named, default="small", help="a profile's name, or its file")
    options.add_argument("--data", type=_full, help="folder of the profile's corpora, by default data")
    return options


def new_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(prog="mee_utils", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    profile = profile_options()
    running = Parser(add_help=False, parents=[profile])
    running.add_argument("--cores", type=int, help="jobs at a time, also on a GPU")

    def add(function, parent: Parser | None = None) -> argparse.ArgumentParser:
        parents = [parent] if parent else []
        command = commands.add_parser(
            function.__name__.replace("_", "-"), help=function.__doc__, parents=parents
        )
        command.set_defaults(run=function)
        return command

    for function in (reproduce, measure):
        add(function, running).add_argument("--force", action="store_true", help="run everything again")
    command = add(train, running)
    command.add_argument("--model", action="append", default=[], help="only this one (may be given again)")
    add(retrain, running)
    command = add(notebook, profile)
    command.add_argument("name", help="of the notebook")
    command.add_argument("-p", "--parameter", metavar="NAME=VALUE", action="append", default=[])
    add(data, profile)
    add(explorer)
    _add_suitability_options(add(suitability))
    _add_training_options(add(train_exits))
    _add_row_options(add(row, profile))
    add(results)
    add(check)
    add(pin, profile)
    add(status, profile)
    add(origin).add_argument("file", help="below figures")
    _add_job_options(add(job, profile))
    return parser


def _add_suitability_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", help="a folder or a hub id: T5, or any model with an LM head")
    command.add_argument("--task", required=True, help="a task's name, or a jsonl file with a column input")
    command.add_argument("--source", default="synthetic", help="of a task: file, folder or hub id")
    command.add_argument("--split", default="validation")
    command.add_argument("--limit", type=int, default=200, help="examples (default: 200)")
    command.add_argument("--max-new-tokens", type=int, default=64, help="longest output (default: 64)")
    command.add_argument("--batch-size", type=int, default=8)
    longest = "inputs are cut to so many tokens (default: what the model takes)"
    command.add_argument("--max-source-tokens", type=int, help=longest)
    command.add_argument("--output", type=_full, help="page.md, pictures beside it; else standard output")


def _add_training_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", help="a folder or a hub id: T5 or a model like Llama")
    command.add_argument("--data", required=True, help="a file with columns input and target")
    command.add_argument("--output", type=_full, required=True, help="folder of the adapter")
    below = "layers below the last that are trained, such as 8 16 24 (default: three; none: the last alone)"
    command.add_argument("--layers", type=int, nargs="*", help=below)
    command.add_argument("--tokens", type=int, help="that are read in all (default: 400,000)")
    command.add_argument("--rank", type=int, help="of the adapter (default: 16)")
    command.add_argument("--max-source-tokens", type=int, help="longer inputs are left out (default: 320)")
    command.add_argument("--max-new-tokens", type=int, help="longer outputs are cut (default: 64)")
    command.add_argument("--seed", type=int)


def _add_row_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("rule", help="my_module:MyMeasure, or the checkpoint of an exit classifier")
    command.add_argument("--task", action="append", default=[], help="only this one (may be given again)")
    command.add_argument("--limit", type=int, help="examples, for a quick look")
    command.add_argument("--pruning", choices=["fixed", "decaying", "adaptive"], help="of the vocabulary")
    command.add_argument("--name", help="of the row (default: the measure's)")


def _add_job_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("kind", choices=jobs.KINDS)
    command.add_argument("--model", default=jobs.ALL)
    command.add_argument("--task", default=jobs.ALL)
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--name", choices=["measured", "retrained"], help="of the tables")
    command.add_argument("--force", action="store_true")


def _full(path: str) -> str:
    return str(Path(path).expanduser().resolve()) if path else path


def run(arguments: list[str] | None, parser: argparse.ArgumentParser) -> None:
    """Runs one command, and prints its answer if it has one."""
    if os.name != "posix":
        raise MeeError("Linux or macOS is needed; on Windows use WSL.")
    if not (ROOT / "notebooks" / "Snakefile").exists():
        raise MeeError(f"{ROOT} is no checkout: clone the repository and pip install -e . there.")
    started = time.monotonic()
    options = parser.parse_args(arguments)
    if os.environ.get("MEE_OUTPUT"):
        os.environ["MEE_OUTPUT"] = _full(os.environ["MEE_OUTPUT"])
    pipeline.end_with_pipeline()
    with _temporary_files():
        answer = options.run(options)
    if answer:
        print(f"{answer} ({time.monotonic() - started:.0f} seconds)")
    sys.stdout.flush()


@contextmanager
def _temporary_files() -> Iterator[None]:
    """Puts temporary files into a folder, which the next command deletes if this one is killed."""
    usual = tempfile.tempdir
    with ExitStack() as stack:
        with suppress(OSError):  # a command that needs none may do without
            folder = stack.enter_context(own_folder(Path(tempfile.gettempdir()), "mee-"))
            tempfile.tempdir = str(folder)
        try:
            yield
        finally:
            tempfile.tempdir = usual


def main(arguments: list[str] | None = None, parser: argparse.ArgumentParser | None = None) -> int:
    """Runs one command; a mistake in its input is one line on standard error and exit status 2."""
    _mend_streams()
    _heed_signals()
    try:
        run(arguments, parser or new_parser())
        return 0
    except MeeError as error:
        print(f"error: {error}", file=sys.stderr)
    except BrokenPipeError:  # what reads our output has seen enough, as in `make origin FILE=... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
    except KeyboardInterrupt:
        if pipeline.STARTED_BY not in os.environ:  # a job leaves it to the command that was interrupted
            with suppress(OSError):  # the terminal may be gone
                print(f"interrupted. {pipeline.GO_ON}", file=sys.stderr)
        return 130
    return 2


def _mend_streams() -> None:
    """Lets every command print, whatever its output is: closed, or of an encoding that lacks a character."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `>&-`
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w"))

    def in_plain_characters(error: UnicodeError) -> tuple[str, int]:  # "x" for "×"
        text = unicodedata.normalize("NFKD", error.object[error.start : error.end].translate(PLAIN))
        letters = "".join(letter for letter in text if not unicodedata.combining(letter))
        return letters.encode("ascii", "replace").decode(), error.end

    codecs.register_error("plain", in_plain_characters)
    if getattr(sys.stdout, "errors", None) == "strict":
        sys.stdout.reconfigure(errors="plain")


def _heed_signals() -> None:
    """A command that is killed, or whose terminal is closed, ends as one that is interrupted."""
    if os.name == "posix" and threading.current_thread() is threading.main_thread():
        for sign in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(sign) != signal.SIG_IGN:  # as nohup sets it
                signal.signal(sign, signal.default_int_handler)


def _one_line(error: OSError) -> str:
    """What the operating system refused; with advice if it was to write results."""
    path = error.filename if isinstance(error.filename, str | os.PathLike) else None
    refused = f"{path or 'a file'}: {error.strerror or one_line(error)}"
    if error.errno not in NOT_WRITABLE:
        return f"{refused}."
    roots = (output_root(), build_root())  # a path is of the results if it is in one of these, or above it
    if path is None or any(
        Path(path) in (root, *root.parents) or root in Path(path).parents for root in roots
    ):
        return f"{refused}; free it, or set MEE_OUTPUT."
    return f"{refused}."
