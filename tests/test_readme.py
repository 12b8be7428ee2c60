"""README.md and RESULTS.md say what the stored tables say and name what is there; their code runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mee_utils.paper import results_page
from mee_utils.study.notebook_files import notebook_names
from mee_utils.tasks import TASKS

ROOT = Path(__file__).parent.parent
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "mee_utils/README.md")}
README = PAGES["README.md"]


@pytest.mark.parametrize("name", ["README.md", "RESULTS.md"])
def test_numbers_are_those_of_the_stored_tables(name):
    written = (ROOT / name).read_text(encoding="utf-8")
    assert written == results_page.PAGES[name](), "run python -m mee_utils results"


def test_it_is_short():
    assert len(README.splitlines()) <= 200


def test_notebooks_are_linked_to_their_neighbours_and_listed():
    names = notebook_names()
    index = json.loads((ROOT / "notebooks" / "index.ipynb").read_text(encoding="utf-8"))
    listed = "".join(index["cells"][0]["source"])
    assert re.findall(r"\((\d\w+)\.ipynb\)", listed) == re.findall(r"\(notebooks/(\w+)\.ipynb\) \|", README)
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


@pytest.mark.parametrize("number", range(README.count("```python")))
def test_its_python_runs(number):
    code = re.findall(r"```python\n(.*?)```", README, re.S)[number]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-1500:]
