"""Runs `notebooks/Snakefile`, which says what depends on what; no job outlives the process that asked."""

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from ..common.errors import MeeError
from ..common.files import ROOT, complete_file
from .inputs import check_recipe, is_trained
from .notebook_files import notebook_names
from .notebooks import STARTED_BY
from .profiles import load_profile
from .result_tables import MEASURED
from .results import build_root, output_root

KEPT = "What had finished is kept: run the same command again."
SILENCE = 15  # seconds after which it is said how far a pipeline is


def make(target: str, profile: str, data: str | None, cores: int, *config: str) -> None:
    """Makes a rule of the Snakefile up to date, with at most `cores` jobs at a time (one on a GPU)."""
    if cores < 1:
        raise MeeError(f"--cores {cores}: give 1 or more.")
    settings, build = load_profile(profile, data), build_root()
    for task in settings.corpora:
        settings.source(task)  # says what is missing
    for name in [name for name in settings.training.backbones if is_trained(settings, name)]:
        check_recipe(settings, name)
    places = ["--snakefile", str(ROOT / "notebooks" / "Snakefile"), "--directory", str(build)]
    command = [sys.executable, "-m", "snakemake", target, *places, "--cores", str(cores)]
    command += ["--rerun-incomplete", "--scheduler", "greedy"]
    if settings.device != "cpu" and Path("/dev/nvidiactl").exists():
        command += ["--resources", "gpu=1"]
    options = ["--config", f"profile={profile}", f"data={data or ''}", *config]
    own, locks = build / "pipeline.pid", build / ".snakemake" / "locks"
    _clear(build, own, locks)
    known, ended = os.environ | {STARTED_BY: str(os.getpid())}, threading.Event()
    dry = subprocess.run([*command, "--dry-run", *options], capture_output=True, text=True, check=False)
    with complete_file(own) as partial:
        partial.write_text(f"{platform.node()} {os.getpid()}", encoding="utf-8")
    process = subprocess.Popen([*command, "--quiet", "all", *options], env=known, start_new_session=True)
    told = (settings.name, dry.stdout + dry.stderr, cores, ended)
    threading.Thread(target=_tell, args=told, daemon=True).start()
    try:
        status = process.wait()
    finally:
        ended.set()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            shutil.rmtree(locks, ignore_errors=True)
        own.unlink(missing_ok=True)
    if status:
        raise MeeError(f"A part failed; the lines above name it. {KEPT}")


def _clear(build: Path, own: Path, locks: Path) -> None:
    """Refuses where another pipeline runs; clears what one that was killed has left behind."""
    host, pid = own.read_text(encoding="utf-8").split() if own.exists() else ("", "-1")
    here = host == platform.node()  # on another machine its number says nothing, nor after a restart
    lives = psutil.pid_exists(int(pid)) and own.stat().st_mtime > psutil.boot_time()
    if lives if here else any(locks.glob("*")):
        raise MeeError(f"Another make reproduce is running here: wait (if none is, delete {locks}).")
    for path in [path for root in (build, output_root()) for path in root.rglob(".*.partial*") if here]:
        writer = re.search(r"\.(\d+)\.partial", path.name)
        if writer and not psutil.pid_exists(int(writer[1])):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for left in (locks, build / "running"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def announced(arguments: list[str]) -> Iterator[None]:
    """In a job: a file's name says for as long as it runs what runs ("1234 notebook 06_survey_rules")."""
    told = re.sub(r"--profile.*|--\w+ ", "", " ".join(arguments)).strip()[:99]
    path = build_root() / "running" / f"{os.getpid()} {told}"
    if STARTED_BY in os.environ:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def notebook_seconds(profile: str) -> dict[str, float]:
    """How long the notebooks took whose results are stored."""
    paths = (output_root() / profile).glob("[0-9]*/manifest.json")
    return {path.parent.name: json.loads(path.read_text(encoding="utf-8"))["seconds"] for path in paths}


def _tell(name: str, planned: str, cores: int, ended: threading.Event) -> None:
    """Says how far a pipeline is: what is done of what is planned, what runs, how long the notebooks take."""
    jobs, folder = set(re.findall(r"^rule (\w+):", planned, re.M)), build_root() / "running"
    seconds = {f"notebook {n}": took for n, took in notebook_seconds(name).items() if f"notebook_{n}" in jobs}
    begun, said = {}, time.monotonic()
    while not ended.wait(1):
        now, running = time.monotonic(), {path.name.partition(" ")[2] for path in folder.glob("*")}
        begun |= dict.fromkeys(running - begun.keys(), now)
        if now - said >= SILENCE and running:
            left = (seconds.keys() - begun.keys()) | running
            left = sum(max(0, seconds.get(job, 0) - (now - begun.get(job, now))) for job in left) / cores
            runs = ", ".join(f"{job} ({now - begun[job]:.0f} s)" for job in sorted(running))
            about = f"; about {max(1, round(left / 60))} min left" if left else ""
            print(f"{len(begun) - len(running)} of {len(jobs)} done; now {runs}{about}", flush=True)
            said = now


def reproduce(profile: str, data: str | None, cores: int, force: bool) -> Path:
    """Makes everything stale of a profile, or with `force` everything; returns the folder of the results."""
    from .status import changes

    settings, build = load_profile(profile), build_root()
    for name in notebook_names():
        if changes(settings, name) != []:  # what is gone, or was changed by hand, is made again
            (build / "notebooks" / settings.name / f"{name}.ipynb").unlink(missing_ok=True)
    for part in ("traces", "classifiers", "notebooks") if force else ():
        shutil.rmtree(build / part / settings.name, ignore_errors=True)
    make("all", profile, data, cores)
    return output_root() / settings.name


def measure(profile: str, data: str | None, cores: int, force: bool) -> Path:
    """Measures what is not stored of a profile, or with `force` everything; returns the tables' folder."""
    name = load_profile(profile).name
    if force:
        shutil.rmtree(build_root() / MEASURED / name, ignore_errors=True)
    make("measured", profile, data, cores, "force=1" if force else "force=")
    return output_root() / name / MEASURED


def end_with_pipeline() -> None:
    """In a job: ends its process group when the process that started the pipeline is gone, killed perhaps."""

    def watch() -> None:
        while psutil.pid_exists(int(os.environ[STARTED_BY])):
            time.sleep(1)
        os.killpg(0, signal.SIGTERM)

    if STARTED_BY in os.environ:
        threading.Thread(target=watch, daemon=True).start()
