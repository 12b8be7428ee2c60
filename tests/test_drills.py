"""The checks bite: something is broken, and the test that guards it fails."""

import json
import pickle
import re
import shutil
from base64 import b64decode, b64encode
from io import BytesIO
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import test_bench
import test_measure
import test_notebook_runner
import test_notebooks

from mee_utils import MeeError, load_model
from mee_utils.analysis import beside_full, statistics
from mee_utils.companion import Experiment, measure, result_tables
from mee_utils.companion.profiles import load_profile
from mee_utils.companion.running.jobs import Job

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).parent.parent
NAME = "08_results"
STORED = [ROOT / "notebooks" / f"{NAME}.ipynb", ROOT / "figures/real" / f"{NAME}.ipynb"]


def one_digit_more(text, before=""):
    """A text whose first digit behind a pattern is the next one."""
    found = re.search(rf"{before}(\d)", text)
    return text[: found.start(1)] + str((int(found[1]) + 1) % 10) + text[found.end(1) :]


def one_other_pixel(png):
    """A picture (PNG) with one pixel changed."""
    from PIL import Image

    with Image.open(BytesIO(png)) as opened:
        image, changed = opened.convert("RGB"), BytesIO()
    image.putpixel((9, 9), (9, 9, 9))
    image.save(changed, "PNG")
    return changed.getvalue()


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


def outputs(cells):
    return [output for cell in cells for output in cell.get("outputs", [])]


def pixel_of_an_output(cells):
    data = next(output.data for output in outputs(cells) if "image/png" in output.get("data", {}))
    data["image/png"] = b64encode(one_other_pixel(b64decode(data["image/png"]))).decode()


def digit_of_an_output(cells):
    for output in outputs(cells):  # what is printed, or a conclusion
        for holder, key in ((output, "text"), (output.get("data", {}), "text/markdown")):
            if re.search(r"\d", holder.get(key, "")):
                holder[key] = one_digit_more(holder[key])
                return
    pytest.fail("no output has a digit")


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.parent.name)
@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (deleted, test_notebooks.test_a_stored_notebook_has_the_source_that_was_run),
        (swapped, test_notebooks.test_a_stored_notebook_has_the_source_that_was_run),
        (unexecuted, test_notebooks.test_every_cell_was_executed_in_order_and_without_a_word_on_stderr),
        (failed, test_notebooks.test_every_cell_was_executed_in_order_and_without_a_word_on_stderr),
        (pixel_of_an_output, test_notebooks.test_outputs_are_those_that_were_stored_with_them),
        (digit_of_an_output, test_notebooks.test_outputs_are_those_that_were_stored_with_them),
    ],
)
def test_a_notebook_whose_cells_were_touched_is_found(monkeypatch, path, broken, check):
    check(path)
    product = test_notebooks.stored(path)
    broken(product.cells)
    monkeypatch.setattr(test_notebooks, "stored", lambda path: product)
    with pytest.raises(AssertionError):
        check(path)


@pytest.mark.parametrize("broken", [deleted, swapped])
def test_a_notebook_that_is_not_its_source_is_found(monkeypatch, broken):
    def check(path):
        return test_notebooks.test_the_stored_notebook_is_its_source(path.stem)

    test_a_notebook_whose_cells_were_touched_is_found(monkeypatch, STORED[0], broken, check)


def test_a_digit_of_an_output_is_found_when_the_notebook_is_run_again(tmp_path):
    cell = nbformat.v4.new_code_cell("print(6 * 7)", execution_count=1)
    for name, stored in (("right", "42\n"), ("wrong", "43\n")):
        cell.outputs = [nbformat.v4.new_output("stream", text=stored)]
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / f"{name}.ipynb")
    done = test_notebooks.nbval(tmp_path, "right.ipynb", "wrong.ipynb", cwd=tmp_path)
    assert done.stdout.startswith(".F ") and "'43\\n' == '42\\n'" in done.stdout, done.stdout


def digit_of_a_table(folder):
    path = folder / "ledger.csv"
    path.write_text(one_digit_more(path.read_text()))


def pixel_of_a_figure(folder):
    path = folder / "one_of_each_family.png"
    path.write_bytes(one_other_pixel(path.read_bytes()))


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


def test_a_digit_of_a_timing_is_found(tmp_path):
    folder = shutil.copytree(ROOT / "figures/bench", tmp_path / "bench")
    test_bench.test_committed_timings_are_those_that_were_written(folder)
    path = folder / "drafts.csv"
    path.write_text(one_digit_more(path.read_text()))
    with pytest.raises(AssertionError):
        test_bench.test_committed_timings_are_those_that_were_written(folder)


def test_another_level_of_the_bootstrap_is_found(monkeypatch):
    """Stored intervals come out again from the stored examples, and with a level of 90 % they do not."""
    rows = pd.read_csv(ROOT / "figures/small/08_results/score_against_flops.csv")
    wanted = rows.query("task == 'translation' and model == 'calm' and rule == 'fixed'")
    examples = result_tables.read_measurements("small", "calm-translation").query("part == 'test'")
    parts = dict(list(examples.groupby(["rule", "threshold"], dropna=False, sort=False)))
    (_, full), *_ = parts.items()
    bounds = ["low", "high", "flops_low", "flops_high"]

    def again():
        settings = [part for (rule, _), part in parts.items() if rule == "fixed"]
        return pd.DataFrame(beside_full.result_rows(settings, full))[bounds].round(4)

    stored = wanted[bounds].reset_index(drop=True)
    pd.testing.assert_frame_equal(again(), stored)
    monkeypatch.setattr(statistics.percentiles, "__defaults__", (0.90,))
    with pytest.raises(AssertionError):
        pd.testing.assert_frame_equal(again(), stored)


def test_a_line_of_the_package_that_shifts_a_result_is_found(monkeypatch):
    """The decoder counts an operation too many: stored measurements are not what is decoded again."""
    job = Job("settings", "free", "question_answering")
    generate = measure.generate

    def shifted(*given, **options):
        found = generate(*given, **options)
        found.flops += 1
        return found

    def decoder_of(job):
        return measure.RuleDecoder(Experiment(None, load_profile("small")), job)

    monkeypatch.setattr(measure, "generate", shifted)
    with pytest.raises(AssertionError, match="flops"):
        test_measure.test_a_sample_of_what_is_stored_is_decoded_again(job, decoder_of)


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
    with pytest.raises(MeeError, match=r"The weights of .* cannot be read"):
        load_model(folder)
    assert not trace.exists()


def test_an_upstream_table_that_was_touched_is_not_read(monkeypatch, tmp_path):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    for name in ("measured", "03_pruning"):
        shutil.copytree(ROOT / "figures/small" / name, tmp_path / "small" / name)
    assert len(result_tables.read_table("small", "03_pruning", "complete_table"))
    table = tmp_path / "small/03_pruning/complete_table.csv"
    table.write_text(table.read_text().replace("0.", "1.", 1))
    with pytest.raises(MeeError, match="was changed after it was made: restore it, or run make reproduce"):
        result_tables.read_table("small", "03_pruning", "complete_table")
