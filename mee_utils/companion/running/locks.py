"""What processes are working on, and what those that were killed have left behind.

A temporary folder is locked for as long as its process lives, and the operating system unlocks it however
that ends. A file that is being written (`common.files.complete_file`) has machine and process in its name.
So whoever works in the same place next can delete what is nobody's, and nothing else.
"""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from ...common.files import machine

PARTIAL = ".partial"  # the ending of a temporary folder


@contextmanager
def own_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A temporary folder of this process; first deletes those of the same prefix that are nobody's."""
    for left in parent.glob(f"{prefix}*{PARTIAL}"):
        _delete_unless_locked(left)
    new = Path(tempfile.mkdtemp(".new", prefix, parent))
    with locked(new):  # before it has the name of one that may be deleted
        folder = new.rename(new.with_suffix(PARTIAL))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[None]:
    """Holds the lock of a folder, where folders have one; without `wait` an `OSError` if it cannot be had."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if wait:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _delete_unless_locked(folder: Path) -> None:
    with suppress(OSError), locked(folder, wait=False):
        shutil.rmtree(folder)


def clear(root: Path) -> None:
    """Deletes below a folder what no process of this machine is writing any more."""
    ours = re.compile(rf"\.{machine()}\.(\d+)\.partial")
    for folder, folders, files in os.walk(root):
        for name in folders:
            if name.startswith(".") and name.endswith(PARTIAL):
                _delete_unless_locked(Path(folder, name))
        for name in files:
            writer = ours.search(name)
            if writer and not is_alive(int(writer[1])):
                Path(folder, name).unlink(missing_ok=True)


def is_alive(process: int | psutil.Process) -> bool:
    """Whether a process is there, and not a zombie: one that has ended, and that nobody has asked for."""
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return found.is_running() and found.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
