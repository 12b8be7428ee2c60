"""README.md says what the stored tables say, names only what is there, and its code runs."""

import re
import subprocess
import sys
from pathlib import Path

from mee_utils import readme
from mee_utils.notebook import notebook_names

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_numbers_are_those_of_the_stored_tables():
    for begin, end, block in ((readme.BEGIN, readme.END, readme.block()), (readme.BENCH_BEGIN, readme.BENCH_END, readme.bench_block())):
        assert TEXT.split(begin)[1].split(end)[0].strip() == block.strip()


def test_what_it_names_is_there():
    for path in re.findall(r"\]\(([\w./-]+)\)", TEXT):
        assert (ROOT / path).exists(), path
    for target in re.findall(r"\bmake ([a-z]+)", TEXT):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M), target
    assert all(name in TEXT for name in notebook_names())


def test_every_committed_figure_is_on_its_map():
    for profile in ("small", "real"):
        for figure in (ROOT / "figures" / profile).rglob("*.png"):
            assert re.search(rf"`{re.escape(re.sub('_token_.*', '', figure.stem))}", TEXT), figure.stem


def test_its_python_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    assert blocks
    for code in blocks:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stderr[-1500:]
