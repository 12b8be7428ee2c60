"""README.md and RESULTS.md say what the stored tables say and name what is there; their code runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mee_utils.companion import results_page
from mee_utils.companion.notebook_files import notebook_names
from mee_utils.tasks import TASKS

ROOT = Path(__file__).parent.parent
NAMES = ("README.md", "mee_utils/README.md", "mee_utils/USING.md")
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in NAMES}
README = PAGES["README.md"]
USING = PAGES["mee_utils/USING.md"]
FIRST_SCREEN = README.split("\n## ")[0]
CODE = {
    f"{name} {number}": code
    for name in ("README.md", "mee_utils/USING.md")
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", PAGES[name], re.S))
}


@pytest.mark.parametrize("name", results_page.PAGES)
def test_numbers_are_those_of_the_stored_tables(name):
    written = (ROOT / name).read_text(encoding="utf-8")
    assert written == results_page.PAGES[name](), "run python -m mee_utils results"


def words(markdown):
    """The words that a reader sees: no addresses of links, no comments, no rules of tables."""
    text = re.sub(r"<!--.*?-->|\]\([^)]*\)|^\|[:|-]+$", " ", markdown, flags=re.S | re.M)
    return re.findall(r"[\w×%.,'-]*\w[\w×%.,'-]*", text)


def test_the_first_screen_is_short_and_has_one_figure_and_one_table():
    text = FIRST_SCREEN.replace(f"![{results_page.headline_message()}]", "![")  # what replaces the picture
    assert len(words(text)) < 250
    assert FIRST_SCREEN.count("![") == 1 and FIRST_SCREEN.count("|:---") > 0
    assert len(re.findall(r"^\|[:|-]+$", FIRST_SCREEN, re.M)) == 1


def test_it_is_short():
    assert len(words(README)) < 1200 and len(README.splitlines()) <= 200
    assert len((ROOT / "RESULTS.md").read_bytes()) <= 15 * 1024


def test_no_bullet_of_the_findings_has_more_than_two_numbers():
    findings = re.findall(r"^\d\. (.*)$", FIRST_SCREEN, re.M)
    assert len(findings) == 5
    for finding in findings:
        numbers = re.findall(r"\d[\d.]*", finding.replace("99 % of the score", "the score"))
        assert len(numbers) <= 2, finding


def test_a_table_of_results_has_at_most_eight_rows_and_a_picture_beside_it():
    questions = (ROOT / "RESULTS.md").read_text(encoding="utf-8").split("\n## ")[1:]
    assert 6 <= len(questions) <= 7
    for question in questions:
        assert question.count("![") == 1 and question.count("\n| ") - 1 <= 8, question[:40]


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


@pytest.mark.parametrize("name", ["headline.png", "explorer.png"])
def test_pictures_are_small(name):
    assert (ROOT / "figures" / "results" / name).stat().st_size < 200_000
