"""The command line behind the Makefile: `python -m mee_utils reproduce --profile small`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from .errors import CompanionError, check_choice
from .profiles import PACKAGE, load_profile

ROOT = PACKAGE.parent


def reproduce(options) -> int:
    """Runs every stale notebook of a profile through Snakemake, as many at a time as there are cores (four at most)."""
    from .notebook import alone

    profile = load_profile(options.profile)
    sources = [profile.source(task, options.data) for task in profile.corpora]
    with alone():
        return _reproduce(options, profile, sources)


def _reproduce(options, profile, sources: list[str]) -> int:
    from .notebook import forget_stale, notebook_names
    from .results import output_root

    started = time.monotonic()
    markers = forget_stale(profile.name, [*sources, str(output_root())], notebook_names())
    command = [
        sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "notebooks" / "Snakefile"), "--directory", str(ROOT),
        "--cores", str(options.cores), "--quiet", "rules", "--rerun-triggers", "mtime", "input",
        "--config", f"profile={options.profile}", f"markers={markers}", *([f"data={options.data}"] if options.data else []),
        *(["force=yes"] if options.force else []),
    ]  # fmt: skip
    if options.force:
        command += ["--forcerun", "notebook", "decoded"]
    if any((ROOT / ".snakemake" / "locks").glob("*")):  # an interrupted run leaves them behind
        subprocess.run([*command, "--unlock"], check=False, capture_output=True)
    status = subprocess.run(command, check=False).returncode
    if status:
        kept = "What had finished is kept: run the same command again."
        print(f"error: a notebook failed; the lines above name it. {kept}", file=sys.stderr)
        return 1
    minutes = (time.monotonic() - started) / 60
    print(f"{len(notebook_names())} notebooks of profile {profile.name} are up to date ({minutes:.1f} minutes).")
    print(f"Figures and tables: {output_root() / profile.name}")
    return 0


def train(options) -> int:
    """Makes the missing models and exit classifiers of a profile."""
    from .companion import manifest
    from .train import train as train_models

    profile = load_profile(options.profile)
    for folder in train_models(profile, options.data, options.model):
        scores = manifest(profile, folder.name)["scores"]
        shown = ", ".join(f"{task} {metric} {value}" for task, found in scores.items() for metric, value in found.items()
                          if metric not in ("split", "examples", "sha256"))  # fmt: skip
        print(f"{profile.name}/{folder.name}: {shown}")
    if not options.model:
        from .train_exits import classifier_folder, train_classifiers

        found = train_classifiers(profile, options.data, progress=True)
        print(f"{len(found)} exit classifiers of profile {profile.name}: {_short(classifier_folder(profile))}")
    return 0


def decode(options) -> int:
    """Decodes every rule, threshold by threshold, and stores what notebook 06 is drawn from."""
    from .decoded import decode as decode_profile

    folder = decode_profile(load_profile(options.profile), options.data, options.force, progress=lambda line: print(line, flush=True))
    print(f"tables: {_short(folder)}")
    return 0


def notebook(options) -> int:
    """Executes one notebook strictly."""
    from .notebook import parse_assignments, run_notebook

    path = run_notebook(options.name, options.profile, options.data, parse_assignments(options.parameter))
    print(f"executed {options.name}: {_short(path)}")
    if options.parameter:
        print("Trial parameters: the notebook and its figures are kept apart from the committed results.")
    return 0


def test(options) -> int:
    """Every stored notebook executed again and compared, and the unit tests beside them."""
    workers = ["-n", str(min(4, os.cpu_count() or 1)), "--dist", "loadgroup"]
    return subprocess.run([sys.executable, "-m", "pytest", "tests", "mee_utils", *workers, *options.rest], cwd=ROOT, check=False).returncode


def bench(options) -> int:
    """Times the decoder against its peers, and a profile's exit rules against no exit; writes the tables beside the machine's description."""
    from . import bench as timing
    from . import speed

    for name in options.shape:
        check_choice("shape", name, timing.SHAPES)
    for name in options.part:
        check_choice("part", name, timing.PARTS)
    progress = lambda line: print(line, flush=True)
    keys = ("profile", "task", "model", "batch")
    of_profile = {"reductions": speed.reductions, "results": speed.results}
    if set(options.part or timing.PARTS) - of_profile.keys():
        table = timing.run(options.shape or None, options.rounds, progress=progress, parts=options.part or None)
        print(f"table: {_short(timing.save(table))}")
        for row in timing.missed(table).itertuples():
            print(f"missed: {row.shape}, {row.group}, {row.what}: {row.median:.2f} {row.unit} {row.against} (target {row.target})")
    for name, part in of_profile.items():
        if name in (options.part or timing.PARTS) and not options.shape:
            found = part(options.profile, options.data, options.rounds, progress)
            print(f"table: {_short(timing.save(found, name=name, keys=keys))}")
    return 0


def readme(options) -> int:
    """Writes the numbers of the stored tables into README.md."""
    from .readme import update

    update(ROOT / "README.md")
    return 0


def status(options) -> int:
    """Which models and notebooks of a profile are there."""
    from .companion import checkpoint_folder
    from .notebook import MARKERS, notebook_names
    from .results import output_root

    profile = load_profile(options.profile)
    for name in ["base", *profile.training.backbones]:
        there = (checkpoint_folder(profile, name) / "manifest.json").exists()
        print(f"model     {profile.name}/{name}: {'trained' if there else 'missing (make train)'}")
    for name in notebook_names():
        results = "results present" if (output_root() / profile.name / name / "manifest.json").exists() else "no results"
        run = "run here" if list((MARKERS / profile.name).glob(f"*/{name}")) else "not run in this clone"
        print(f"notebook  {name}: {results}, {run}")
    return 0


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    top = argparse.ArgumentParser(prog="mee_utils", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    for function in (reproduce, train, decode, notebook, status, test, bench, readme):
        command = commands.add_parser(function.__name__, help=(function.__doc__ or "").splitlines()[0])
        command.set_defaults(run=function)
        if function is test:
            command.add_argument("rest", nargs="*", help="options for pytest")
        if function is bench:
            command.add_argument("--shape", action="append", default=[], help="only this shape (may be given again); the lines of the others are kept")
            command.add_argument("--part", action="append", default=[], help="only this part (may be given again); the lines of the others are kept")
            command.add_argument("--rounds", type=int, default=3)
        if function in (test, readme):
            continue
        command.add_argument("--profile", default="small")
        command.add_argument("--data", default=None, help="folder that holds the corpora of the profile")
        if function is notebook:
            command.add_argument("name")
            command.add_argument("-p", "--parameter", action="append", default=[], metavar="NAME=VALUE")
        if function is train:
            command.add_argument("--model", action="append", default=[], help="only this model (may be given again)")
        if function is reproduce:
            command.add_argument("--cores", type=int, default=min(4, os.cpu_count() or 1), help="notebooks at a time")
            command.add_argument("--force", action="store_true", help="run everything again")
        if function is decode:
            command.add_argument("--force", action="store_true", help="decode everything again")
    return top


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; a mistake in its input is one line on standard error and exit status 2."""
    options = parser().parse_args(arguments)
    if getattr(options, "data", None):
        options.data = str(Path(options.data).expanduser().resolve())
    try:
        return options.run(options)
    except CompanionError as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        print(f"error: {error.filename or 'a file'}: {error.strerror}; free it, or set MEE_OUTPUT.", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
