"""The committed notebooks: executed, up to date with their sources, and the same when they are run again, without a network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from mee_utils import notebook
from mee_utils.companion import manifest
from mee_utils.profiles import load_profile

ROOT = Path(__file__).parent.parent
NAMES = notebook.notebook_names()


def stored(name):
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


@pytest.mark.parametrize("name", NAMES)
def test_the_stored_notebook_is_its_source(name):
    source, product = notebook.read_source(name), stored(name)
    assert [(c.cell_type, c.source) for c in source.cells] == [(c.cell_type, c.source) for c in product.cells]


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_was_executed_in_order_and_without_a_word_on_stderr(name):
    code = [cell for cell in stored(name).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        for output in cell.outputs:
            assert output.output_type != "error" and output.get("name") != "stderr", cell.source[:80]


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_keep_their_rhythm(name):
    source = notebook.read_source(name)
    parameters = notebook.declared_parameters(source)
    assert parameters["profile"] == "small" and parameters["data"] == ""
    assert source.cells[0].cell_type == "markdown" and "Question" in source.cells[0].source
    for cell in source.cells:
        if cell.cell_type == "code":
            assert len(cell.source.splitlines()) <= 18, cell.source[:80]
    tagged = next(c for c in source.cells if "parameters" in c.metadata.get("tags", []))
    assert all("#" in line for line in tagged.source.splitlines())


@pytest.mark.parametrize("name", NAMES)
def test_prose_holds_no_number_of_ours(name):
    """Decimals and percentages in markdown are the papers'; ours are printed by code."""
    for cell in notebook.read_source(name).cells:
        if cell.cell_type == "markdown":
            numbers = set(re.findall(r"\d+(?:\.\d+)? ?%|\d+\.\d+", cell.source))
            assert numbers <= {"75 %", "90 %", "70 %", "95 %", "0.9"}, numbers


BLOCKER = """
import socket
real = socket.socket.connect
def connect(self, address):
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "localhost", "::1"):
        raise OSError(f"the network is off: {address}")
    return real(self, address)
socket.socket.connect = connect
"""


@pytest.mark.parametrize("name", NAMES)
def test_running_it_again_without_a_network_gives_the_same_outputs(name, tmp_path):
    """Strict nbval: every stored output of every cell is compared. Results go to a scratch folder."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    environment = os.environ | {
        "MEE_OUTPUT": str(tmp_path / "figures"), "PYTHONPATH": str(tmp_path), "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hub"),
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", f"notebooks/{name}.ipynb"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    committed, again = ROOT / "figures" / "small" / name, tmp_path / "figures" / "small" / name
    files = sorted(p.name for p in committed.iterdir() if p.suffix != ".json")
    assert files == sorted(p.name for p in again.iterdir() if p.suffix != ".json") and len(files) > 3
    different = [f for f in files if f.endswith(".csv") and (committed / f).read_bytes() != (again / f).read_bytes()]
    assert different == []


def test_the_shipped_models_have_learned():
    profile = load_profile("small")
    scores = {name: manifest(profile, name)["scores"] for name in ["base", *profile.training.backbones]}
    for name in profile.training.backbones:
        for task, found in scores[name].items():
            metric = {"question_answering": "exact_match", "summarization": "rouge2", "translation": "bleu"}[task]
            assert found[metric] > scores["base"][task][metric] - 5, (name, task)
            assert found["examples"] >= 300


@pytest.mark.parametrize("name", ["base", *load_profile("small").training.backbones])
def test_manifests_say_how_a_model_was_made(name):
    found = manifest(load_profile("small"), name)
    assert found["seed"] == load_profile("small").training.seed and found["steps"] > 500 and found["minutes"] > 0
    assert all(len(point["cross_entropy"]) == 12 for point in found["block_cross_entropy"])
    assert all(len(data["sha256"]) == 64 for data in found["data"].values())
    assert found["machine"]["processor"] and 2e6 <= found["parameters"] <= 4e6
