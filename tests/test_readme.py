"""README.md and RESULTS.md say what the stored tables say and name what is there; their code runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mee_utils.companion.running.notebook_files import notebook_names
from mee_utils.tasks import TASKS

ROOT = Path(__file__).parent.parent
NAMES = ("README.md", "mee_utils/README.md", "mee_utils/USING.md")
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in NAMES}
README = PAGES["README.md"]
USING = PAGES["mee_utils/USING.md"]
CODE = {
    f"{name} {number}": code
    for name in ("README.md", "mee_utils/USING.md")
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", PAGES[name], re.S))
}


def test_notebooks_are_linked_to_their_neighbours_and_listed():
    names = notebook_names()
    index = json.loads((ROOT / "notebooks" / "index.ipynb").read_text(encoding="utf-8"))
    listed = "".join(index["cells"][0]["source"])
    assert (
        re.findall(r"\((\d\w+)\.ipynb\)", listed)
        == re.findall(r"\(notebooks/(\w+)\.ipynb\) \|", README)
        == names
    )
    for number, name in enumerate(names):
        neighbours = names[max(0, number - 1) : number] + names[number + 1 : number + 2]
        line = (ROOT / "notebooks" / f"{name}.py").read_text(encoding="utf-8").splitlines()[3]
        assert re.findall(r"\((\w+)\.ipynb\)", line) == neighbours and f"({name}.ipynb)" in listed


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page):
    links = re.findall(r"\]\((?!http)([\w./-]+)(?:#[\w-]+)?\)", PAGES[page])
    links += re.findall(r"`(\w+/[\w/]+\.py)`", PAGES[page])
    assert links
    for path in links:
        assert ((ROOT / page).parent / path).exists(), path
    for target in re.findall(r"\bmake ([a-z]+)\b(?= |`|$)", PAGES[page], re.M):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M), target


def test_it_names_every_notebook_and_profile():
    profiles = [path.stem for path in (ROOT / "notebooks" / "profiles").glob("*.yaml")]
    assert all(name in README for name in [*notebook_names(), *(f"`{name}`" for name in profiles)])


@pytest.mark.parametrize("name", TASKS)
def test_the_table_of_tasks_has_their_columns_and_metric(name):
    """Before, README gave the columns of long documents as those of summaries."""
    layouts = []
    for layout in TASKS[name].layouts:
        columns = ", ".join(f"`{column}`" for column in layout.columns)
        layouts.append(f"{columns} ({layout.corpora})")
    row = f"| `{name}` | {' or '.join(layouts)} | `{TASKS[name].metric}` |"
    assert row in PAGES["mee_utils/README.md"].splitlines()


def test_its_python_version_is_the_package_s():
    wanted = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())[1]
    assert f"Python {wanted} or newer" in README


@pytest.mark.parametrize("place", CODE)
def test_its_python_runs(place):
    run = [sys.executable, "-c", CODE[place]]
    done = subprocess.run(run, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-1500:]
    assert "nan" not in done.stdout, "it shows what it is about"


def test_the_short_example_is_short_and_lossless():
    code = CODE["README.md 0"]
    assert len(code.strip().splitlines()) <= 7 and 'propagation="verify"' in code


def test_the_size_of_a_checkout_is_as_stated():
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=True)
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    megabytes = sum(path.stat().st_size for path in files if path.is_file()) / 1e6
    stated = int(re.search(r"the checkout is about (\d+) MB", README)[1])
    assert abs(stated - megabytes) < 0.15 * megabytes
