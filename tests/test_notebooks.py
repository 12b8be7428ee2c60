"""The committed notebooks: executed, up to date with their sources, and the same when they are run again, without a network."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from mee_utils import notebook
from mee_utils.companion import manifest
from mee_utils.profiles import load_profile

pytestmark = pytest.mark.xdist_group("notebooks")  # kernels of parallel runs can collide: one process runs all of these
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
    """Decimals and percentages in markdown are the papers' or settings; ours are printed by code."""
    for cell in notebook.read_source(name).cells:
        if cell.cell_type == "markdown":
            numbers = set(re.findall(r"\d+(?:\.\d+)? ?%|\d+\.\d+", cell.source))
            assert numbers <= {"75 %", "90 %", "70 %", "95 %", "0.9", "8.65", "18.46", "24 %", "3 %", "97 %", "98 %", "99 %", "99.5 %", "0.7", "92.45", "91.47"}, numbers


BLOCKER = """
import socket
real = socket.socket.connect
def connect(self, address):
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "localhost", "::1"):
        raise OSError(f"the network is off: {address}")
    return real(self, address)
socket.socket.connect = connect
"""


def differing(committed, again):
    """Names of result files that are not the same bytes; manifests hold times and are left out."""
    files = {p.name for p in committed.iterdir() if p.suffix != ".json"}
    assert files == {p.name for p in again.iterdir() if p.suffix != ".json"} and len(files) > 3
    return sorted(f for f in files if (committed / f).read_bytes() != (again / f).read_bytes())


def without_network(folder):
    (folder / "sitecustomize.py").write_text(BLOCKER)
    return os.environ | {
        "MEE_OUTPUT": str(folder / "figures"), "PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "0", "HF_HOME": str(folder / "hub"),
    }  # fmt: skip


def test_the_network_is_off_in_these_tests(tmp_path):
    code = "import urllib.request; urllib.request.urlopen('http://192.0.2.1', timeout=3)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=without_network(tmp_path), check=False)
    assert "the network is off" in done.stderr


def test_the_whole_pipeline_without_a_network_gives_the_same_bytes(tmp_path):
    """`make reproduce` into a scratch folder: Snakemake, papermill, figures, tables and notebooks."""
    command = [sys.executable, "-m", "mee_utils", "reproduce", "--force"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=without_network(tmp_path), check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"{len(NAMES)} notebooks of profile small are up to date" in done.stdout
    for name in NAMES:
        assert differing(ROOT / "figures/small" / name, tmp_path / "figures/small" / name) == []
        assert (ROOT / f"notebooks/{name}.ipynb").read_bytes() == (tmp_path / f"figures/small/{name}.ipynb").read_bytes()


def quickest():
    """The notebook whose stored run took least time."""
    return min(NAMES, key=lambda name: json.loads((ROOT / "figures/small" / name / "manifest.json").read_text())["seconds"])


def test_strict_nbval_finds_the_same_outputs(tmp_path):
    """Every stored output of every cell is compared, as users check notebooks; one is enough here, since the pipeline has run all of them."""
    name = quickest()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--nbval", f"notebooks/{name}.ipynb"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=without_network(tmp_path), check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    committed, again = ROOT / "figures" / "small" / name, tmp_path / "figures" / "small" / name
    assert differing(committed, again) == []


def test_the_shipped_models_are_far_above_the_floors():
    scores = pd.read_csv(ROOT / "figures/small/00_models/scores.csv")
    for (task, metric), rows in scores[scores.metric.isin(["exact_match", "rouge2", "bleu"])].groupby(["task", "metric"]):
        floor = rows[rows.kind == "floor"].corpus_score.max()
        for row in rows[(rows.kind == "model") & (rows.system != "base")].itertuples():
            assert row.corpus_score > floor + 20, (task, metric, row.system)


@pytest.mark.parametrize("name", ["base", *load_profile("small").training.backbones])
def test_manifests_say_how_a_model_was_made(name):
    found = manifest(load_profile("small"), name)
    assert found["seed"] == load_profile("small").training.seed and found["steps"] > 300 and found["minutes"] > 0
    assert all(len(point["cross_entropy"]) == 12 for point in found["block_cross_entropy"])
    assert all(len(data["sha256"]) == 64 for data in found["data"].values())
    assert found["machine"]["processor"] and 2e6 <= found["parameters"] <= 4e6
