"""The direction of the arrows, the shape of the code, and what the repository may say."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mee_utils
from mee_utils import companion

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mee_utils"
FLOORS = (  # from the ground up; a folder imports itself and what is below it
    "common",
    "tasks",
    "models",
    "exits",
    "decoding",
    "traces",
    "analysis",
    "companion",
    "__main__",
)
FUNCTION_LINES = 75

FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in FILES
}


FACADES = {"": mee_utils._HOME, "companion": companion._HOME}  # packages that load names from their modules


def imports(path, nodes=None):
    """Modules of the package that a file imports, by name; of all its nodes, those inside functions too."""
    for node in nodes if nodes is not None else ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (
                alias.name.removeprefix("mee_utils").strip(".")
                for alias in node.names
                if alias.name.split(".")[0] == "mee_utils"
            )
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("mee_utils")):
            parts = path.relative_to(PACKAGE).parent.parts
            base = parts[: len(parts) - node.level + 1] if node.level else ()
            module = (node.module or "").removeprefix("mee_utils").strip(".")
            target = ".".join([*base, *(module.split(".") if module else [])])
            for alias in node.names:
                home = FACADES.get(target, {}).get(alias.name, alias.name)
                name = f"{target}.{home}".strip(".")
                yield name if name in MODULES else target


def test_imports_through_a_facade_are_those_of_the_module_behind_it():
    """Before, `from .. import Experiment` in the lowest module was no import at all."""
    code = """
from .. import Model, trace as t
from mee_utils import ExitPolicy
from mee_utils.companion import Experiment, profiles
import mee_utils.companion.cli, mee_utils, os
def later():
    from ..companion import draw_front
    from . import files
    from .errors import MeeError
"""
    found = list(imports(PACKAGE / "common" / "new.py", list(ast.walk(ast.parse(code)))))
    assert set(found) == {
        *("models.loading", "traces.tracing", "exits.policy", "companion.experiment", "companion.profiles"),
        *("companion.cli", "", "companion.drawing", "common.files", "common.errors"),
    }


def circles(graph):
    """Sets of modules that reach each other (strongly connected components of more than one)."""

    def reached(start):
        found, left = set(), [start]
        while left:
            new = graph.get(left.pop(), set()) - found
            found |= new
            left += new
        return found

    reach = {name: reached(name) for name in graph}
    return {
        frozenset(m for m in reach[name] if name in reach.get(m, ())) for name in graph if name in reach[name]
    }


def test_circles_are_seen():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == {frozenset("bc")}
    assert not circles({"a": {"b", "c"}, "b": {"c"}, "c": set()})


def test_no_module_reaches_itself():
    graph = {name: {n for n in imports(path) if n in MODULES} for name, path in MODULES.items()}
    assert sum(map(len, graph.values())) > 100 and "models.costs" in graph["analysis.comparison"]
    assert not circles(graph)


def floor(path):
    """The number of a module's floor; the two modules beside the folders may import from all."""
    return len(FLOORS) if path.parent == PACKAGE else FLOORS.index(path.relative_to(PACKAGE).parts[0])


def test_imports_point_downwards():
    upwards = [
        f"{path.name} imports {name}"
        for path in FILES
        for name in imports(path)
        if name and FLOORS.index(name.split(".")[0]) > floor(path)
    ]
    assert upwards == []


def test_every_module_lives_in_a_folder():
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders - {"checkpoints"} == set(FLOORS[:-1])


@pytest.mark.parametrize(
    "command", ["companion.cli", "companion.running.status", "companion.running.freshness", "tasks"]
)
def test_what_only_reads_does_not_load_torch_through_any_module(command):
    """Before, direct imports alone were looked at, of folders in which most modules do load it."""
    reached = reached_at_once(command)
    assert len(reached) > 5 and not {name for name in reached if loads_torch(name)}
    assert any(loads_torch(name) for name in reached_at_once("analysis.comparison")), "through others"


def reached_at_once(module):
    """The modules that are imported with one, by imports outside of functions; packages above them too."""
    found, left = set(), {module}
    while left:
        name = left.pop()
        found.add(name)
        imported = set(imports(MODULES[name], ast.parse(MODULES[name].read_text()).body))
        above = {each.rsplit(".", depth)[0] for each in imported for depth in range(each.count(".") + 1)}
        left |= (above & MODULES.keys()) - found
    return found


def loads_torch(module):
    top = ast.parse(MODULES[module].read_text()).body
    names = [alias.name for node in top if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in top if isinstance(node, ast.ImportFrom) and not node.level]
    return bool({name.split(".")[0] for name in names} & {"torch", "transformers"})


@pytest.mark.parametrize(
    "names",
    [["companion.profiles", "companion.figures", "companion.catalogue"], ["companion.reporting.report"]],
)
def test_importing_the_package_does_not_load_torch(names):
    modules = ", ".join(f"mee_utils.{name}" for name in names)
    code = f"import sys, mee_utils, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_every_public_name_is_there_and_documented():
    import mee_utils

    for name in mee_utils.__all__:
        assert getattr(mee_utils, name).__doc__, name


def test_public_functions_have_docstrings_and_no_function_is_long():
    for path in FILES:
        tree = ast.parse(path.read_text())
        assert len(ast.get_docstring(tree) or "") > 10, f"{path.name}: a module says what it is"
        for node in ast.walk(tree):
            where = f"{path.name}: {getattr(node, 'name', '')}"
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node in tree.body and node.name[0] != "_":
                assert ast.get_docstring(node) or is_statement(node), f"{where} has no docstring"
            if isinstance(node, ast.FunctionDef):
                assert length_of_body(node) < FUNCTION_LINES, f"{where} is too long"


def is_statement(node):
    """Whether it is a statement of a paper: what it says stands in its decorator."""
    calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
    return any(ast.unparse(call.func) in ("statement", "statement_from_each_start") for call in calls)


def length_of_body(function):
    """Lines of a function without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return body[-1].end_lineno - body[0].lineno if body else 0


@pytest.mark.parametrize("arguments", [["check"], ["format", "--check"]], ids=" ".join)
def test_lines_are_formatted_and_short(arguments):
    """110 columns at most, docstrings too: E501 is among the rules of `ruff check`."""
    command = [sys.executable, "-m", "ruff", *arguments, "--no-cache", "--quiet", "mee_utils", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_nobody_steps_around_the_formatter():
    settings = (ROOT / "pyproject.toml").read_text()
    assert "line-length = 110" in settings and "E501" not in settings
    for path in FILES:
        assert not re.search(r"fmt: *skip", path.read_text()), path.name


def test_every_folder_of_the_top_level_has_its_reason():
    """README, environment.yml and four folders are the companion; tools and conventions look for the rest."""
    companion = {"README.md", "environment.yml", "notebooks", "mee_utils", "figures", "tests"}
    results_and_commands = {"RESULTS.md", "DATA.md", "Makefile", "pyproject.toml", "requirements.lock"}
    licences = {"LICENSE", "LICENSES", "REUSE.toml"}
    readers = {"CITATION.cff", ".zenodo.json", "CHANGELOG.md", "CONTRIBUTING.md"}
    hosts = {".ci", ".github", ".devcontainer", "binder", ".gitignore", ".gitattributes"}
    archives = {"Dockerfile", ".dockerignore", "reproduce.sh"}
    assert top_level() == companion | results_and_commands | licences | readers | hosts | archives


def top_level():
    """What git keeps in the root."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {path.split("/")[0] for path in listed.splitlines()}


def test_shipped_weights_stay_below_105_megabytes():
    sizes = [path.stat().st_size for path in (PACKAGE / "checkpoints").rglob("*.safetensors")]
    assert sizes and sum(sizes) <= 105_000_000


def packed(tree):
    """Assignments that put more than two values into names at once; to unpack what one call gives is fine."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call | ast.Await):
            many = any(isinstance(target, ast.Tuple) and len(target.elts) > 2 for target in node.targets)
            if many and not isinstance(node.value, ast.Name | ast.Attribute | ast.Subscript):
                yield node.lineno


@pytest.mark.parametrize(
    "line, refused",
    [
        ("a, b, c = 1, 2, 3", True),
        ("a, b, c = (f(x) for x in y)", True),
        ("a, b = 1, 2", False),
        ("a, b, c = f(x)", False),
        ("rows, columns, layers = states.shape", False),
    ],
)
def test_packed_assignments_are_seen(line, refused):
    assert bool(list(packed(ast.parse(line)))) == refused


def test_one_thought_a_line():
    """Statements were once packed to meet a limit on lines, until they were riddles."""
    files = [*FILES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "notebooks").glob("*.py")]
    dense = [f"{path.name}:{line}" for path in files for line in packed(ast.parse(path.read_text()))]
    assert dense == []
