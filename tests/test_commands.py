"""Commands in odd surroundings: output that is closed or cannot encode, a backend that nobody knows."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mee_utils.companion import cli

ROOT = Path(__file__).parent.parent
SAID = "1.25× – “σ” é \udcff"


@pytest.fixture
def status(monkeypatch):
    """A command that is quick, and has something to say."""

    def status(options):
        return SAID

    monkeypatch.setattr(cli, "status", status)


@pytest.mark.parametrize(
    ("encoding", "wanted"),
    [
        ("ascii", '1.25x - "?" e ?'),
        ("iso8859-15", '1.25× - "?" é ?'),
        ("cp437", '1.25x - "σ" é ?'),
        ("utf-8", "1.25× – “σ” é ?"),
    ],
)
def test_what_an_output_cannot_encode_is_said_in_plain_characters(status, monkeypatch, encoding, wanted):
    """Before, `suitability` and `row` ended in a UnicodeEncodeError, after the whole trace."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding))
    assert cli.main(["status"]) == 0
    assert written.getvalue().decode(encoding).startswith(f"{wanted} (")


@pytest.mark.parametrize("names", [["stdout"], ["stderr"], ["stdin", "stdout", "stderr"]])
def test_a_closed_output_is_no_failure(status, monkeypatch, names):
    """Before, AttributeError and exit status 1, also at the end of hours of `measure`."""
    for name in names:
        monkeypatch.setattr(sys, name, None)
    assert cli.main(["status"]) == 0 and cli.main(["statu"]) == 2


def test_a_command_in_the_worst_surroundings():
    """Closed descriptors, and a backend that is none, of which matplotlib is imported with a traceback."""
    command = '"$0" -m mee_utils pin <&- >&- 2>&-'
    known = os.environ | {"MPLBACKEND": "nonsense"}
    done = subprocess.run(["sh", "-c", command, sys.executable], cwd=ROOT, env=known, check=False)
    assert done.returncode == 0
