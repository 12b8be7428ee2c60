"""Runs `notebooks/Snakefile`, which says what depends on what; no job outlives who started it."""

import fcntl
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import dropwhile
from pathlib import Path
from typing import IO

import psutil

from ...common.errors import MeeError
from ...common.files import ROOT
from ..catalogue import MAIN_MODEL
from ..inputs import check_recipe, is_trained
from ..profiles import Profile, load_profile
from ..result_tables import MEASURED
from ..results import build_root, output_root
from .jobs import folder_of
from .locks import clear, is_alive
from .notebooks import STARTED_BY, profile_parameters

GO_ON = "What had finished is kept: run the same command again."
SNAKEFILE = ROOT / "notebooks" / "Snakefile"
BY_RECORDS = (
    "--rerun-triggers",
    "params",
)  # times of files decide nothing: `companion.running.freshness` does
QUIET = ("--quiet", "all")  # jobs say what they do, in a line each
MOST_JOBS = 4  # at a time, if nobody says how many
NVIDIA = Path("/dev/nvidiactl")  # is there where a GPU is
TO_END = 10  # seconds that an interrupted pipeline has to end by itself


def make(
    target: str, profile: str, data: str | None, cores: int | None, *config: str, anew: Sequence[Path] = ()
) -> None:
    """Makes a rule of the Snakefile up to date.

    Args:
        target: the rule.
        profile: the name of a profile, or its file.
        data: the folder that stands for `{data}` in the profile.
        cores: how many jobs run at a time, at most; None: as many as processors, up to 4, and one on a GPU.
        config: further settings of the Snakefile, as "force=1".
        anew: folders to delete, once nothing stands in the way of making their contents again.

    Raises:
        MeeError: the profile does not fit what is there, another pipeline runs here, or a job failed.
    """
    settings = load_profile(profile, data)
    _check(settings, cores)
    command = [sys.executable, "-m", "snakemake", target, "--snakefile", str(SNAKEFILE)]
    command += ["--directory", str(build_root()), *_at_a_time(settings, cores), "--scheduler", "greedy"]
    command += ["--rerun-incomplete", *BY_RECORDS]
    command += ["--config", f"profile={profile}", f"data={data or ''}", *config]
    with _the_only_pipeline(build_root()) as lock:
        for folder in anew:
            shutil.rmtree(folder, ignore_errors=True)
        if _run([*command, *QUIET], lock):
            raise MeeError(f"{_what_failed(command)} {GO_ON}")


def _at_a_time(profile: Profile, cores: int | None) -> list[str]:
    """How many jobs run at a time, as options of Snakemake.

    On a GPU, jobs wait for the host most of the time, so that many can share one; but its memory is not
    known here, and each takes some of it: more than one at a time is only run where somebody asks for it.
    """
    options = ["--cores", str(cores or min(MOST_JOBS, os.cpu_count() or 1))]
    if profile.device != "cpu" and NVIDIA.exists():
        options += ["--resources", f"gpu={cores or 1}"]
    return options


def _what_failed(command: list[str]) -> str:
    """A sentence on why a pipeline ended: a job that failed has said it, but Snakemake itself says nothing.

    It could not even plan then, so it is asked to plan once more, and aloud.
    """
    plan = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, check=False)
    if plan.returncode == 0:
        return "A part failed; the lines above name it."
    lines = [line.strip() for line in (plan.stdout + plan.stderr).splitlines() if line.strip()]
    reason = dropwhile(lambda line: not re.search(r"Exception|Error", line), lines)
    return f"Snakemake could not go on: {' '.join(reason)}."


def _check(profile: Profile, cores: int | None) -> None:
    """Says before anything runs what would fail after hours."""
    if cores is not None and cores < 1:
        raise MeeError(f"--cores {cores}: give 1 or more.")
    for task in profile.corpora:
        profile.source(task)  # says what is missing
    for name in profile.training.backbones:
        if is_trained(profile, name):
            check_recipe(profile, name)
    for name in profile.run_notebooks:
        profile_parameters(profile, name)


def _run(command: list[str], lock: IO) -> int:
    """Runs Snakemake in a session of its own, and ends all of it when this process is interrupted."""
    environment = os.environ | {STARTED_BY: str(os.getpid())}
    # the lock stays locked for as long as Snakemake lives, also if this process is killed
    process = subprocess.Popen(command, env=environment, start_new_session=True, pass_fds=[lock.fileno()])
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(TO_END)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _the_only_pipeline(build: Path) -> Iterator[IO]:
    """Holds the lock of a build folder; clears what a pipeline that was killed has left behind.

    The operating system unlocks the file when its holders end, however they end. It names the machine for
    as long as a pipeline runs: if it still does when nobody holds it, that pipeline was killed.
    """
    build.mkdir(parents=True, exist_ok=True)
    locks = build / ".snakemake" / "locks"
    with (build / "pipeline.lock").open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MeeError("Another make reproduce is running here: wait for it.") from None
        lock.seek(0)
        killed_on = lock.read()
        if not killed_on and any(locks.glob("*")):
            raise MeeError(f"Snakemake is running here: wait for it (if it is not, delete {locks}).")
        for root in (build, output_root()):
            clear(root)
        shutil.rmtree(locks, ignore_errors=True)
        _write(lock, platform.node())
        yield lock
        shutil.rmtree(locks, ignore_errors=True)
        _write(lock, "")


def _write(lock: IO, text: str) -> None:
    lock.truncate(0)
    lock.write(text)
    lock.flush()


def reproduce(profile: str, data: str | None, cores: int | None, force: bool) -> Path:
    """Makes everything stale of a profile, or with `force` everything; returns the folder of the results."""
    settings = load_profile(profile)
    parts = ("records", "traces", "classifiers") if force else ()
    make("all", profile, data, cores, anew=[folder_of(settings, part) for part in parts])
    return output_root() / settings.name


def measure(profile: str, data: str | None, cores: int | None, force: bool) -> Path:
    """Measures what is not stored of a profile, or with `force` everything; returns the tables' folder."""
    settings = load_profile(profile)
    if MAIN_MODEL not in settings.training.backbones:
        lacking = f'Profile "{settings.name}" has no model "{MAIN_MODEL}", on which rules are measured'
        raise MeeError(f"{lacking}: nothing is measured.")
    anew = [folder_of(settings, MEASURED)] if force else []
    make("measured", profile, data, cores, *(["force=1"] if force else []), anew=anew)
    return output_root() / settings.name / MEASURED


def end_with_pipeline() -> None:
    """In a job: ends its process group when the process that started the pipeline is gone, killed perhaps."""

    def watch() -> None:
        starter = int(os.environ[STARTED_BY])
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(starter)  # knows when it began: another one may get its number
            while is_alive(process):
                time.sleep(1)
        os.killpg(0, signal.SIGTERM)

    if STARTED_BY in os.environ:
        threading.Thread(target=watch, daemon=True).start()
