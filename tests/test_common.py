"""Files that appear only when they are complete."""

import errno

import pytest

from mee_utils import MeeError
from mee_utils.common.files import complete_file


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
