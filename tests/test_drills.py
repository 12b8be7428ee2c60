"""The checks bite: something is broken, and the test that guards it fails."""

import json
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import test_measure
import test_notebook_runner
import test_notebooks
import test_readme

from mee_utils import CompanionError, load_model
from mee_utils.study import measure, result_tables

ROOT = Path(__file__).parent.parent
NAME = "08_results"


def deleted(cells):
    del cells[5]


def swapped(cells):
    cells[3], cells[5] = cells[5], cells[3]


def unexecuted(cells):
    last = [cell for cell in cells if cell.cell_type == "code"][-1]
    last.update(execution_count=None, outputs=[])


def failed(cells):
    code = [cell for cell in cells if cell.cell_type == "code"]
    code[2].outputs = [nbformat.v4.new_output("stream", name="stderr", text="a warning")]


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (deleted, test_notebooks.test_the_stored_notebook_is_its_source),
        (swapped, test_notebooks.test_the_stored_notebook_is_its_source),
        (unexecuted, test_notebooks.test_every_cell_was_executed_in_order_and_without_a_word_on_stderr),
        (failed, test_notebooks.test_every_cell_was_executed_in_order_and_without_a_word_on_stderr),
    ],
)
def test_a_notebook_whose_cells_were_touched_is_found(monkeypatch, broken, check):
    check(NAME)
    product = test_notebooks.stored(NAME)
    broken(product.cells)
    monkeypatch.setattr(test_notebooks, "stored", lambda name: product)
    with pytest.raises(AssertionError):
        check(NAME)


def test_a_digit_of_an_output_is_found_when_the_notebook_is_run_again(tmp_path):
    cell = nbformat.v4.new_code_cell("print(6 * 7)", execution_count=1)
    for stored, code in (("42\n", 0), ("43\n", 1)):
        cell.outputs = [nbformat.v4.new_output("stream", text=stored)]
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "short.ipynb")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:xdist",
            "-c",
            str(ROOT / "pyproject.toml"),
            "--nbval",
        ]
        done = subprocess.run(
            [*command, "short.ipynb"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout


def digit_of_a_table(folder):
    path = folder / "ledger.csv"
    text = path.read_text()
    place = next(n for n, letter in enumerate(text) if letter.isdigit())
    path.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])


def pixel_of_a_figure(folder):
    from PIL import Image

    path = folder / "answer.png"
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    image.putpixel((9, 9), (9, 9, 9))
    image.save(path)


def file_that_nothing_made(folder):
    (folder / "more.csv").write_text("a\n1\n")


@pytest.mark.parametrize("broken", [digit_of_a_table, pixel_of_a_figure, file_that_nothing_made])
def test_results_that_were_touched_are_found(tmp_path, broken):
    folder = shutil.copytree(ROOT / "figures/small" / NAME, tmp_path / NAME)
    check = test_notebook_runner.test_committed_results_are_those_of_their_manifest
    check(folder / "manifest.json")
    broken(folder)
    with pytest.raises(AssertionError):
        check(folder / "manifest.json")


def test_a_digit_of_the_readme_is_found(monkeypatch):
    found = test_readme.results_page.pages()
    one_more = lambda digit: digit[1] + str((int(digit[2]) + 1) % 10)
    changed = found | {"README.md": re.sub(r"(\| \d\.\d)(\d)", one_more, found["README.md"], count=1)}
    assert changed != found
    monkeypatch.setattr(test_readme.results_page, "pages", lambda: changed)
    with pytest.raises(AssertionError):
        test_readme.test_numbers_are_those_of_the_stored_tables("README.md")


def test_a_line_of_the_package_that_shifts_a_result_is_found(monkeypatch):
    """The decoder counts an operation too many: stored measurements are not what is decoded again."""
    job = measure.Job("free", "question_answering")
    generate = measure.generate

    def shifted(*given, **options):
        found = generate(*given, **options)
        found.flops += 1
        return found

    monkeypatch.setattr(measure, "generate", shifted)
    with pytest.raises(AssertionError, match="flops"):
        test_measure.test_a_sample_of_what_is_stored_is_decoded_again(job)


def test_a_manifest_that_was_made_up_is_found(tmp_path):
    folder = shutil.copytree(ROOT / "figures/small/00_models", tmp_path / "00_models")
    made = json.loads((folder / "manifest.json").read_text())
    made["files"].popitem()
    (folder / "manifest.json").write_text(json.dumps(made))
    with pytest.raises(AssertionError):
        test_notebook_runner.test_committed_results_are_those_of_their_manifest(folder / "manifest.json")


class Harmful:
    """A pickle that runs code when it is read."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_pickled_code_in_a_checkpoint_is_refused_and_never_run(tmp_path):
    source, trace = ROOT / "mee_utils/checkpoints/small/vanilla", tmp_path / "it ran"
    folder = shutil.copytree(source, tmp_path / "pickled", ignore=shutil.ignore_patterns("*.safetensors"))
    with (folder / "pytorch_model.bin").open("wb") as file:
        pickle.dump({"shared.weight": Harmful(trace)}, file)
    with pytest.raises(CompanionError, match="The weights of .* cannot be read"):
        load_model(folder)
    assert not trace.exists()


def test_an_upstream_table_that_was_touched_is_not_read(monkeypatch, tmp_path):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    for name in ("measured", "03_pruning"):
        shutil.copytree(ROOT / "figures/small" / name, tmp_path / "small" / name)
    assert len(result_tables.read_table("small", "03_pruning", "complete_table"))
    table = tmp_path / "small/03_pruning/complete_table.csv"
    table.write_text(table.read_text().replace("0.", "1.", 1))
    with pytest.raises(
        CompanionError, match="was changed after it was made: restore it, or run make reproduce"
    ):
        result_tables.read_table("small", "03_pruning", "complete_table")
