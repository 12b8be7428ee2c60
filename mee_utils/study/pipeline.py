"""Runs `notebooks/Snakefile`, which says what depends on what; no job outlives the process that asked."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from ..common.errors import CompanionError
from ..common.files import ROOT
from .inputs import check_recipe, is_trained
from .notebooks import STARTED_BY, notebook_names
from .profiles import load_profile
from .result_tables import MEASURED
from .results import build_root, output_root

KEPT = "What had finished is kept: run the same command again."
SILENCE = 15  # seconds after which it is said how far a pipeline is


def make(target: str, profile: str, data: str | None, cores: int, *config: str) -> None:
    """Makes a rule of the Snakefile up to date, with at most `cores` jobs at a time (one on a GPU)."""
    if cores < 1:
        raise CompanionError(f"--cores {cores}: give 1 or more.")
    settings, build = load_profile(profile, data), build_root()
    for task in settings.corpora:
        settings.source(task)  # says what is missing
    for name in [name for name in settings.training.backbones if is_trained(settings, name)]:
        check_recipe(settings, name)
    locks = build / ".snakemake" / "locks"
    if any(locks.glob("*")):
        raise CompanionError(f"Another make reproduce is running here: wait (if none is, delete {locks}).")
    places = ["--snakefile", str(ROOT / "notebooks" / "Snakefile"), "--directory", str(build)]
    command = [sys.executable, "-m", "snakemake", target, *places, "--cores", str(cores)]
    command += ["--rerun-incomplete", "--scheduler", "greedy"]
    if settings.device != "cpu" and Path("/dev/nvidiactl").exists():
        command += ["--resources", "gpu=1"]
    options = ["--config", f"profile={profile}", f"data={data or ''}", *config]
    build.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(build / "running", ignore_errors=True)
    known, ended = os.environ | {STARTED_BY: str(os.getpid())}, threading.Event()
    dry = subprocess.run([*command, "--dry-run", *options], capture_output=True, text=True, check=False)
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
    if status:
        raise CompanionError(f"A part failed; the lines above name it. {KEPT}")


@contextmanager
def announced(arguments: list[str]) -> Iterator[None]:
    """In a job: a file says for as long as it runs what runs ("notebook 06_survey_rules")."""
    words = takewhile(lambda word: word != "--profile", arguments)
    path = build_root() / "running" / str(os.getpid())
    if STARTED_BY in os.environ:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join(word for word in words if not word.startswith("--")), encoding="utf-8")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def notebook_seconds(profile: str) -> dict[str, float]:
    """How long the notebooks took whose results are stored."""
    paths = {name: output_root() / profile / name / "manifest.json" for name in notebook_names()}
    read = lambda path: json.loads(path.read_text(encoding="utf-8"))["seconds"]
    return {name: read(path) for name, path in paths.items() if path.exists()}


def _tell(name: str, planned: str, cores: int, ended: threading.Event) -> None:
    """Says how far a pipeline is: what is done of what is planned, what runs, how long the notebooks take."""
    jobs, folder = set(re.findall(r"^rule (\w+):", planned, re.M)), build_root() / "running"
    taken = {f"notebook {notebook}": seconds for notebook, seconds in notebook_seconds(name).items()}
    seconds = {job: took for job, took in taken.items() if job.replace(" ", "_", 1) in jobs}
    begun, said = {}, time.monotonic()
    while not ended.wait(1):
        now, running = time.monotonic(), set()
        for path in folder.glob("*"):
            with suppress(FileNotFoundError):  # it has just ended
                running.add(path.read_text(encoding="utf-8"))
        running.discard("")  # just being written
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
    name = load_profile(profile).name
    folders = {part: build_root() / part / name for part in ("traces", "classifiers", "notebooks")}
    for notebook in notebook_names():
        if not (output_root() / name / notebook / "manifest.json").exists():  # what is gone is made again
            (folders["notebooks"] / f"{notebook}.ipynb").unlink(missing_ok=True)
    for folder in folders.values() if force else ():
        shutil.rmtree(folder, ignore_errors=True)
    make("all", profile, data, cores)
    return output_root() / name


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
        try:
            while True:
                os.kill(int(os.environ[STARTED_BY]), 0)
                time.sleep(1)
        except ProcessLookupError:
            os.killpg(0, signal.SIGTERM)

    if STARTED_BY in os.environ:
        threading.Thread(target=watch, daemon=True).start()
