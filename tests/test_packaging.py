"""What is installed: the library alone is light, and every version stands in one file."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
WANTED = "jupyterlab papermill torch transformers datasets seaborn pandas nbval jupytext"  # by the user
LOCK = dict(re.findall(r"^([\w.-]+)==([\w.]+)$", (ROOT / "requirements.lock").read_text(), re.M))


def load_lock_script():
    spec = importlib.util.spec_from_file_location("lock", ROOT / ".ci" / "lock.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


lock = load_lock_script()


def everything():
    """The direct requirements of the extra "all"."""
    extras = [EXTRAS[name] for name in ("adapters", "notebooks", "site", "smollm2", "test")]
    return PROJECT["dependencies"] + [text for extra in extras for text in extra]


def closure(requirements):
    versions = {}
    for text in requirements:
        lock.closure(Requirement(text), versions)
    return versions


def test_the_lock_has_every_package_of_the_environment():
    assert EXTRAS["all"] == ["mee-utils[adapters,notebooks,site,smollm2,test]"]
    assert set(closure(everything())) <= set(LOCK), "make lock"
    assert set(WANTED.split()) <= set(LOCK)


@pytest.mark.parametrize("name", LOCK)
def test_installed_versions_are_the_locked_ones(name):
    try:
        assert version(name).split("+")[0] == LOCK[name], "make lock, or make setup"
    except PackageNotFoundError:
        assert name not in closure(everything()), "needed here, so it must be installed"


def test_versions_stand_in_one_place():
    assert not [text for text in everything() if "==" in text]
    for file in ("environment.yml", "Makefile", "binder/requirements.txt"):
        text = (ROOT / file).read_text()
        assert not re.search(r"==\d", text), file
        assert "requirements.lock" in text and ".[" in text, file
    assert PROJECT["requires-python"] == ">=3.11"


def test_every_direct_requirement_is_used():
    """By an import, or by a package that needs it without saying so; each of these has its reason."""
    without_import = {
        "tabulate": "pandas writes Markdown with it",
        "protobuf": "transformers reads T5's tokenizers with it",
        "sentencepiece": "transformers reads T5's tokenizers with it",
        "jupyterlab": "make lab",
        "snakemake": "make reproduce",
        "nbval": "a plugin of pytest",
        "pytest-xdist": "a plugin of pytest",
        "ruff": "a command",
        "myst-nb": "named in conf.py",
        "sphinx": "a command",
        "sphinx-book-theme": "named in conf.py",
        "ziamath": "its font",
    }
    renamed = {
        "pyyaml": "yaml",
        "pillow": "PIL",
        "beautifulsoup4": "bs4",
        "scikit-learn": "sklearn",
        "websocket-client": "websocket",
        "vl-convert-python": "vl_convert",
        "ruamel-yaml": "ruamel",
    }
    sources = [path for part in ("mee_utils", "tests", "notebooks") for path in (ROOT / part).rglob("*.py")]
    imported = set()
    for path in sources:
        imported |= set(re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.M))
    for text in everything():
        name = canonicalize_name(Requirement(text).name)
        module = renamed.get(name, name.replace("-", "_"))
        lower = {each.lower() for each in imported}
        assert name in without_import or module.lower() in lower, f"{name} is used by nothing"


LIBRARY_AT_WORK = """
import mee_utils.companion
from mee_utils import ExitPolicy, MeeError, calibrate, generate, load_model, load_task
from mee_utils import replay, trace, train_classifier
model = load_model("mee_utils/checkpoints/small/calm")
task = load_task("translation", limit=6)
policy = ExitPolicy("softmax_margin", threshold=0.9)
out = generate(model, task.inputs, policy, max_new_tokens=12)
drafts = ExitPolicy("softmax_margin", threshold=0.9, propagation="verify")
lossless = generate(model, task.inputs, drafts, max_new_tokens=12)
full = generate(model, task.inputs, max_new_tokens=12)
assert lossless.texts == full.texts and task.score(out.texts)
traced = trace(model, task.inputs, max_new_tokens=12, states="{states}")
assert replay(traced, policy).shape
train_classifier("hidden_classifier", traced, model, epochs=1)
calibrate(model, task, policy, delta=0.9, eps=0.5, thresholds=[0.9], max_new_tokens=12)
out._repr_html_
for use in (lambda: mee_utils.companion.draw_settled, lambda: load_task("translation", source="{parquet}")):
    try:
        use()
    except MeeError as error:
        assert 'pip install "mee-utils[notebooks]"' in str(error), error
    else:
        raise AssertionError("this needs an extra")
"""


def site_of(requirements, folder):
    """A folder that has these packages and what they need, and nothing else that is installed."""
    for name in closure(requirements):
        package = distribution(name)
        for part in {Path(str(file)).parts[0] for file in package.files or []} - {".."}:
            target = Path(str(package.locate_file(part)))
            if target.exists() and not (folder / part).exists():
                (folder / part).symlink_to(target)
    return folder


MISSING = """
import sys
sys.modules["torch"] = None
import mee_utils
mee_utils.Model
"""


def test_a_package_of_the_core_that_is_missing_is_not_one_of_an_extra():
    """Before, each was said to come with the extra "notebooks"."""
    done = subprocess.run(
        [sys.executable, "-c", MISSING], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "ModuleNotFoundError: import of torch halted" in done.stderr and "mee-utils[" not in done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The library as a wheel, built from a copy of what it is built from."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("mee_utils", "LICENSES"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        ".",
        ".",
    ]
    subprocess.run(command, cwd=folder, check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_a_sentence_is_explored_without_a_clone(wheel, tmp_path):
    """`try.py` needs what its header names, and nothing else."""
    script = ROOT / "notebooks" / "try.py"
    header = "".join(re.findall(r"^# (?!///)(.*\n)", script.read_text().split("# ///\n")[0], re.M))
    needs = tomllib.loads(header)
    assert needs["requires-python"] == PROJECT["requires-python"]
    ours, *others = needs["dependencies"]
    assert Requirement(ours).name == PROJECT["name"]
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    site_of([*PROJECT["dependencies"], *others], site)
    environment = os.environ | {"PYTHONPATH": str(site), "BROWSER": "true", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-S", "-W", "ignore", str(script), "A dog runs across the street."]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    page = Path(done.stdout.strip()).read_text(encoding="utf-8")
    assert "A dog runs across the street." in page and "chien" in page


def test_the_library_works_without_any_extra(tmp_path):
    """What README shows of decoding needs neither Jupyter nor Sphinx, matplotlib, Arrow or scikit-learn."""
    site = tmp_path / "site"
    site.mkdir()
    site_of(PROJECT["dependencies"], site)
    present = {path.name for path in site.iterdir()}
    assert "torch" in present and not present & {"matplotlib", "jupyterlab", "sphinx", "pyarrow", "sklearn"}
    parquet = tmp_path / "validation.parquet"
    parquet.write_bytes(b"PAR1")
    script = LIBRARY_AT_WORK.format(states=tmp_path / "states.npy", parquet=parquet)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{site}"}
    command = [sys.executable, "-S", "-W", "ignore", "-c", script]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
