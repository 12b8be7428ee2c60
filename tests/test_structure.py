"""The direction of the arrows, and what the repository may say."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mee_utils"
FLOORS = {"errors": 0, "tasks": 1, "models": 1, "exits": 2, "decoding": 3, "evaluation": 4}
MODULES = sorted(PACKAGE.rglob("*.py"))
WITHOUT_TORCH = ("evaluation", "profiles", "notebook", "figures", "results", "claims", "companion", "bench", "speed", "readme")


def floor(path):
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return FLOORS.get(first, 5)


def imported(path):
    """(module file or folder, at the top level?) for every relative import of a module."""
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parent
            for _ in range(node.level - 1):
                base = base.parent
            names = [node.module] if node.module else [alias.name for alias in node.names]
            for name in names:
                target = base.joinpath(*name.split("."))
                yield (target if target.is_dir() else target.with_suffix(".py")), id(node) in top


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_downwards(path):
    for target, _ in imported(path):
        assert floor(target) <= floor(path), f"{path.name} imports {target.name} from a higher floor"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_upper_floors_do_not_load_torch_by_being_imported(path):
    if path.relative_to(PACKAGE).parts[0].removesuffix(".py") not in WITHOUT_TORCH:
        return
    names = {
        alias.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import) for alias in node.names
    } | {node.module for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom) and not node.level}
    assert not {name.split(".")[0] for name in names if name} & {"torch", "transformers"}
    for target, at_top in imported(path):
        assert not (at_top and floor(target) == 1 and "models" in target.parts)


def test_importing_the_package_does_not_load_torch():
    code = "import sys, mee_utils, mee_utils.profiles, mee_utils.claims, mee_utils.figures; sys.exit('torch' in sys.modules)"
    assert subprocess.run([str(Path(__import__("sys").executable)), "-c", code], cwd=ROOT, check=False).returncode == 0


def test_every_public_name_is_there_and_documented():
    import mee_utils

    for name in mee_utils.__all__:
        assert getattr(mee_utils, name).__doc__, name


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_public_functions_have_docstrings_and_stay_short(path):
    tree = ast.parse(path.read_text())
    assert path.name == "__init__.py" or ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node in tree.body and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{path.name}: {node.name} has no docstring"
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            assert body[-1].end_lineno - body[0].lineno < 75, f"{path.name}: {node.name} is too long"


def test_versions_are_pinned_in_one_place():
    pins = re.findall(r'^\s+"([\w-]+)==([\w.]+)",', (ROOT / "pyproject.toml").read_text(), re.M)
    assert {"torch", "transformers", "datasets", "papermill", "jupytext", "nbval", "seaborn", "pandas", "jupyterlab"} <= {p for p, _ in pins}
    for other in ("environment.yml", "Makefile"):
        assert not re.search(r"==\d", (ROOT / other).read_text())
    assert "-e ." in (ROOT / "environment.yml").read_text() and "--editable ." in (ROOT / "Makefile").read_text()


def test_installed_versions_are_the_pinned_ones():
    from importlib.metadata import version

    for name, pin in re.findall(r'^\s+"([\w-]+)==([\w.]+)",', (ROOT / "pyproject.toml").read_text(), re.M):
        assert version(name).split("+")[0] == pin, name


def test_shipped_weights_stay_below_forty_megabytes():
    sizes = [path.stat().st_size for path in (PACKAGE / "checkpoints").rglob("*.safetensors")]
    assert sizes and sum(sizes) <= 40_000_000
