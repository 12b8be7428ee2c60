"""Files that appear only when they are complete, and checks of numbers that everything shares."""

import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
import torch

from mee_utils import MeeError
from mee_utils.common.errors import (
    LARGEST_SEED,
    check_number,
    check_seed,
    check_whole,
    is_number,
    plain_number,
)
from mee_utils.common.files import check_writable, complete_file


def write(path):
    with complete_file(path) as partial:
        partial.write_text("x")


def test_a_file_appears_only_when_it_is_complete(tmp_path):
    path = tmp_path / "new" / "table.csv"
    with complete_file(path) as partial:
        partial.write_text("a")
        assert not path.exists() and partial.suffix == ".csv"
    assert path.read_text() == "a"
    with pytest.raises(KeyError), complete_file(path) as partial:
        partial.write_text("b")
        raise KeyError("b")
    assert path.read_text() == "a" and list(path.parent.iterdir()) == [path]


def test_two_processes_do_not_share_a_partial_file(tmp_path, monkeypatch):
    with complete_file(tmp_path / "a") as first:
        monkeypatch.setattr("os.getpid", lambda: -1)
        with complete_file(tmp_path / "a") as second:
            assert first != second
            second.write_text("second")
        first.write_text("first")
    assert (tmp_path / "a").read_text() == "first"


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    for path in (tmp_path / "file" / "below.csv", tmp_path / "folder"):
        refused = pytest.raises(MeeError, match=r"cannot be written .*: choose another place")
        with refused, complete_file(path) as partial:
            partial.write_text("x")


def test_two_that_save_one_file_at_the_same_time_leave_one_of_them_whole(tmp_path):
    """Before, two threads wrote into the same partial file."""

    def save(number):
        with complete_file(tmp_path / "a.txt") as partial:
            partial.write_text(str(number) * 9)
            time.sleep(0.01)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(save, range(8)))
    text = (tmp_path / "a.txt").read_text()
    assert len(text) == 9 and len(set(text)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path):
    """Before, a file took the place of the link."""
    (tmp_path / "there").mkdir()
    for name, target in (("a", "there/a.csv"), ("b", "there/none.csv"), ("c", "a"), ("d", "new/none.csv")):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "there/a.csv").write_text("old")
    for name in "abcd":
        with complete_file(tmp_path / name) as partial:
            partial.write_text(name)
        assert (tmp_path / name).is_symlink() and (tmp_path / name).read_text() == name
    written = [tmp_path / "there/a.csv", tmp_path / "there/none.csv", tmp_path / "new/none.csv"]
    assert [path.read_text() for path in written] == ["c", "b", "d"]
    assert len(list((tmp_path / "there").iterdir())) == 2


def test_what_is_no_file_is_not_replaced(tmp_path):
    """Before, /dev/null became a file for root."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "device").symlink_to("/dev/null")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "loop", "device", "folder", "/dev/null"):
        before = os.lstat(tmp_path / name)
        for attempt in (check_writable, write):
            with pytest.raises(MeeError, match=r"cannot be written \(.*: choose another place"):
                attempt(tmp_path / name)
        assert os.lstat(tmp_path / name) == before
    assert len(list(tmp_path.iterdir())) == 4


def test_a_place_is_tried_without_a_trace(tmp_path):
    (tmp_path / "a.csv").write_text("kept")
    for name in ("a.csv", "b.csv", "x" * 250 + ".csv"):
        check_writable(tmp_path / name)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("No space left on device")]
)
def test_a_full_disk_is_one_line(tmp_path, error):
    with pytest.raises(MeeError, match="No space left on device"), complete_file(tmp_path / "a"):
        raise error
    assert not list(tmp_path.iterdir())


def test_an_error_about_another_file_is_not_blamed_on_this_one(tmp_path):
    with pytest.raises(FileNotFoundError), complete_file(tmp_path / "a"):
        (tmp_path / "missing").read_text()


@pytest.mark.parametrize("seed", [0, 7, LARGEST_SEED, np.int32(3), np.uint64(5)])
def test_a_seed_that_is_taken_serves_torch_and_numpy(seed):
    checked = check_seed(seed)
    assert type(checked) is int and checked == seed
    np.random.default_rng(checked)
    torch.Generator().manual_seed(checked)
    assert np.array([checked]).dtype == np.int64, "a column of a table holds it"


@pytest.mark.parametrize("seed", [-1, LARGEST_SEED + 1, 2**70, 1.0, "1", None, True, Fraction(1), [1]])
def test_a_seed_out_of_range_is_one_clear_line(seed):
    with pytest.raises(MeeError, match=r"seed=.*: give a whole number from 0 to 2\*\*63 - 1\.$") as caught:
        check_seed(seed)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [10**400, -(10**400), Fraction(10**400), Fraction(10**400, 3)])
def test_a_number_that_no_float_holds_is_refused(value):
    """Before, the check itself ended in an OverflowError."""
    assert not is_number(value)
    with pytest.raises(MeeError, match=r"delta=.*: give a number from 0 on"):
        check_number("delta", value)


def test_numbers_of_any_kind_become_those_of_python():
    given = (3, 0.5, np.int8(3), np.float32(0.5), Fraction(1, 2))
    found = [plain_number(value) for value in given]
    assert found == [3, 0.5, 3, 0.5, 0.5]
    assert [type(value) for value in found] == [int, float, int, float, float]
    assert (
        type(check_whole("limit", np.int8(3))) is int and type(check_number("cost", Fraction(1, 2))) is float
    )
