"""What processes that are gone have left behind is cleared, and nothing that another one works on."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mee_utils.common.files import complete_file
from mee_utils.companion.results import staged
from mee_utils.companion.running.locks import clear, is_alive, own_folder

WORKS = """
import pathlib, sys, time
from mee_utils.common.files import complete_file
from mee_utils.companion.running.locks import own_folder
from mee_utils.companion.results import staged
root = pathlib.Path(sys.argv[1])
with own_folder(root, "mee-") as own, staged(root / "small/90") as new:
    with complete_file(root / "a.npy") as partial:
        for path in (own / "states", new / "t.csv", partial):
            path.touch()
        (root / "ready").touch()
        time.sleep(100)
"""


@pytest.fixture
def working(tmp_path):
    """A process that has made temporary folders and begun a file, until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", WORKS, str(tmp_path)])
    while not (tmp_path / "ready").exists():
        time.sleep(0.05)
    (tmp_path / "ready").unlink()
    yield process
    process.kill()
    process.wait()


def files(root):
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def test_what_a_process_works_on_is_kept_until_it_is_killed(working, tmp_path):
    """Before, a notebook that was killed left its folders for good, one a time."""
    before = files(tmp_path)
    assert len(before) == 3
    clear(tmp_path)
    with own_folder(tmp_path, "mee-"), staged(tmp_path / "small/90"):
        assert files(tmp_path) == before
    working.kill()
    time.sleep(0.2)  # it is a zombie now, and does not count
    with own_folder(tmp_path, "mee-") as own, staged(tmp_path / "small/90"):
        assert len(files(tmp_path)) == 1 and len(list(tmp_path.glob("mee-*"))) == 1
        (own / "states").touch()
        clear(tmp_path)
        assert files(tmp_path) == ["states"], "neither its own, nor a file that is half written"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["90", "small"]


def test_files_of_another_machine_are_not_ours_to_delete(tmp_path, monkeypatch):
    monkeypatch.setattr("platform.node", lambda: "elsewhere.org")
    with complete_file(tmp_path / "a.npy") as partial:
        partial.touch()
        name = partial.name
    foreign = tmp_path / name.replace(str(os.getpid()), "99999999")
    foreign.touch()
    monkeypatch.undo()
    clear(tmp_path)
    assert foreign.exists()


def test_a_zombie_is_not_alive():
    process = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 30
    while is_alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(process.pid) and Path(f"/proc/{process.pid}").exists()
    process.wait()
    assert not is_alive(process.pid) and is_alive(os.getpid())


def test_two_that_store_the_same_result_at_once_leave_one_of_them_whole(tmp_path):
    """Before, "Directory not empty" for one of them."""
    code = """
import pathlib, sys, time
from mee_utils.companion.results import staged
for number in range(150):
    with staged(pathlib.Path(sys.argv[1])) as new:
        (new / "a").write_text(sys.argv[2])
        (new / "b").write_text(sys.argv[2])
"""
    command = [sys.executable, "-c", code, str(tmp_path / "small/90")]
    both = [subprocess.Popen([*command, text]) for text in ("one", "two")]
    assert [process.wait() for process in both] == [0, 0]
    assert (tmp_path / "small/90/a").read_text() == (tmp_path / "small/90/b").read_text()
    assert [path.name for path in (tmp_path / "small").iterdir()] == ["90"]
