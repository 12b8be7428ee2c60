"""Runs `notebooks/Snakefile`, which says what depends on what; no job outlives the process that asked."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from ..common.errors import CompanionError
from ..common.files import ROOT
from .inputs import check_recipe, is_trained
from .notebooks import notebook_names
from .profiles import load_profile
from .result_tables import MEASURED
from .results import build_root, output_root

STARTED_BY = "MEE_PIPELINE"  # tells a job the process that started the pipeline
KEPT = "What had finished is kept: run the same command again."


def make(target: str, profile: str, data: str | None, cores: int, *config: str) -> None:
    """Makes a rule of the Snakefile up to date, with at most `cores` jobs at a time (one on a GPU)."""
    if cores < 1:
        raise CompanionError(f"--cores {cores}: give 1 or more.")
    settings, build = load_profile(profile, data), build_root()
    for task in settings.corpora:
        settings.source(task)  # says what is missing
    for name in settings.training.backbones:
        if is_trained(settings, name):
            check_recipe(settings, name)
    locks = build / ".snakemake" / "locks"
    if any(locks.glob("*")):
        raise CompanionError(f"Another make reproduce is running here: wait (if none is, delete {locks}).")
    places = ["--snakefile", str(ROOT / "notebooks" / "Snakefile"), "--directory", str(build)]
    command = [sys.executable, "-m", "snakemake", target, *places, "--cores", str(cores), "--quiet", "all"]
    command += ["--rerun-incomplete", "--scheduler", "greedy"]
    command += ["--config", f"profile={profile}", f"data={data or ''}", *config]
    if settings.device != "cpu" and Path("/dev/nvidiactl").exists():
        command += ["--resources", "gpu=1"]
    build.mkdir(parents=True, exist_ok=True)
    known = os.environ | {STARTED_BY: str(os.getpid())}
    process = subprocess.Popen(command, env=known, start_new_session=True)
    try:
        status = process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            shutil.rmtree(locks, ignore_errors=True)
    if status:
        raise CompanionError(f"A part failed; the lines above name it. {KEPT}")


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
