"""Published exits of a T5-large, in a pickle of arrays that a reader has put somewhere."""

import pickle

import numpy as np
import pytest

from mee_utils import MeeError
from mee_utils.companion.rc_eenn import read_exits

ARRAYS = np.array([1.0, 0.5]), np.array([14.0, 8.0]), np.array([[0.3, 0.2, 0.4], [0.2, 0.2, 0.3]])


@pytest.fixture
def written(tmp_path):
    def write(content):
        path = tmp_path / "calm_cnndm.p"
        path.write_bytes(pickle.dumps(content))
        return path

    return write


def test_the_arrays_are_read_as_they_were_written(written):
    found = read_exits(written(ARRAYS))
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(found, ARRAYS, strict=True))


class Harmful:
    def __reduce__(self):
        return pytest.fail, ("the file's code was run",)


@pytest.mark.parametrize(
    "content", [Harmful(), 3, ARRAYS[:2], (ARRAYS[0][::-1], *ARRAYS[1:]), (ARRAYS[0][:1], *ARRAYS[1:]), "abc"]
)
def test_anything_else_is_refused_in_one_line_and_no_code_is_run(written, content):
    with pytest.raises(MeeError, match=r"calm_cnndm.p cannot be read as published exits: .*Get it again"):
        read_exits(written(content))


def test_a_file_that_is_cut_off_or_missing_is_refused(written, tmp_path):
    path = written(ARRAYS)
    path.write_bytes(path.read_bytes()[:-20])
    for broken in (path, tmp_path / "none.p"):
        with pytest.raises(MeeError, match="cannot be read as published exits"):
            read_exits(broken)
