"""Strictness: profiles, parameters, results. A mistake is one line; nothing half-written; no finished result lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import yaml

from mee_utils import CompanionError, notebook
from mee_utils.__main__ import main
from mee_utils.profiles import load_profile, profile_names
from mee_utils.results import Run

pytestmark = pytest.mark.xdist_group("notebooks")
ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_loads(name):
    assert load_profile(name).name == name


def edited(tmp_path, change):
    content = yaml.safe_load((ROOT / "notebooks/profiles/small.yaml").read_text())
    change(content)
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(devise="cpu"), 'unknown key "devise": did you mean "device"'),
        (lambda c: c["training"].update(sed=1), 'unknown key "training.sed": did you mean "seed"'),
        (lambda c: c["training"]["shape"].update(d_modle=9), 'did you mean "d_model"'),
        (lambda c: c["corpora"]["translation"].update(sorce="x"), 'did you mean "source"'),
        (lambda c: c["training"]["backbones"]["calm"].update(objective="clam"), "should be 'vanilla', 'calm'"),
        (lambda c: c["training"]["backbones"]["calm"].update(passes=-1), "greater than 0"),
        (lambda c: c["training"].update(seed="zero"), "valid integer"),
        (lambda c: c.pop("corpora"), 'the key "corpora" is missing'),
        (lambda c: c["corpora"].update(translating={"source": "made"}), "translating"),
    ],
)
def test_a_profile_with_a_mistake_names_it(tmp_path, change, message):
    with pytest.raises(CompanionError, match=message) as error:
        load_profile(edited(tmp_path, change))
    assert "\n" not in str(error.value)


def test_a_misspelt_profile_names_the_nearest():
    with pytest.raises(CompanionError, match='no profile "smal": did you mean "small"'):
        load_profile("smal")


def test_a_profile_of_local_corpora_asks_for_their_folder(tmp_path):
    with pytest.raises(CompanionError, match="DATA=path/to/corpora"):
        load_profile("real").source("translation", None)
    with pytest.raises(CompanionError, match="is no folder"):
        load_profile("real").source("translation", str(tmp_path / "no"))
    with pytest.raises(CompanionError, match="must hold a folder multi30k_en_fr"):
        load_profile("real").source("translation", str(tmp_path))
    corpus = tmp_path / "multi30k_en_fr"
    corpus.mkdir()
    assert load_profile("real").source("translation", str(tmp_path)) == str(corpus)
    assert load_profile("real").source("translation", str(corpus)) == str(corpus)


SOURCE = """# %% [markdown]
# # A notebook

# %% tags=["parameters"]
profile = "small"  # which
data = ""  # where
limit = 3  # how many
share = 0.5  # how much
names = ["a"]  # which ones

# %%
print(limit * 2, share)
{body}
"""


@pytest.fixture
def sources(tmp_path, monkeypatch):
    monkeypatch.setattr(notebook, "SOURCES", tmp_path)
    monkeypatch.setattr(notebook, "FAILED", tmp_path / "failed")
    monkeypatch.setattr(notebook, "TRIALS", tmp_path / "trials")
    monkeypatch.setenv("MEE_OUTPUT", "")

    def write(body=""):
        (tmp_path / "90_trial.py").write_text(SOURCE.format(body=body))
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"limt": 3}, 'Unknown parameter "limt": did you mean "limit"'),
        ({"limit": "three"}, "limit='three' is a str; a int like 3 is expected"),
        ({"limit": True}, "limit=True is a bool"),
        ({"limit": 2.5}, "is a float"),
        ({"names": "b"}, "is a str; a list"),
    ],
)
def test_a_wrong_parameter_is_refused_before_anything_runs(sources, given, message):
    folder = sources()
    with pytest.raises(CompanionError, match=message):
        notebook.run_notebook("90_trial", parameters=given)
    assert not (folder / "90_trial.ipynb").exists()


def test_parameters_are_injected_and_whole_numbers_serve_as_floats(sources):
    folder = sources()
    notebook.run_notebook("90_trial", parameters={"limit": 4, "share": 1})
    assert not (folder / "90_trial.ipynb").exists()  # a trial does not overwrite the product
    stored = nbformat.read(folder / "trials/small/90_trial.ipynb", as_version=4)
    assert stored.cells[-1].outputs[0].text == "8 1.0\n"


def test_a_failed_notebook_is_kept_aside_and_the_last_good_one_stays(sources):
    folder = sources()
    notebook.run_notebook("90_trial")
    good = (folder / "90_trial.ipynb").read_bytes()
    sources("raise ValueError('the reason')")
    with pytest.raises(CompanionError, match=r"90_trial failed in cell \d.*ValueError: the reason.*build/failed/90_trial.ipynb"):
        notebook.run_notebook("90_trial")
    assert (folder / "90_trial.ipynb").read_bytes() == good
    assert "the reason" in (folder / "failed" / "90_trial.ipynb").read_text()


def test_two_runs_store_the_same_bytes(sources):
    folder = sources()
    stored = [notebook.run_notebook("90_trial") and (folder / "90_trial.ipynb").read_bytes() for _ in range(2)]
    assert stored[0] == stored[1] and b"papermill" not in stored[0]


@pytest.mark.parametrize("cell", ["limit = 3 * 2", "import os", "limit += 1"])
def test_parameters_are_flat_literals(sources, cell):
    folder = sources()
    (folder / "90_trial.py").write_text(f'# %% tags=["parameters"]\n{cell}\n')
    with pytest.raises(CompanionError, match="no assignment of a literal"):
        notebook.declared_parameters(notebook.read_source("90_trial"))


def test_unknown_notebooks_and_assignments():
    with pytest.raises(CompanionError, match='did you mean "01_monotonicity"'):
        notebook.read_source("01_monotonic")
    assert notebook.parse_assignments(["limit=20", "names=['a']", "profile=real"]) == {"limit": 20, "names": ["a"], "profile": "real"}
    with pytest.raises(CompanionError, match="name=value"):
        notebook.parse_assignments(["limit"])


def save(root, value):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    run = Run("90_trial", "small", {"limit": 3}, root)
    drawn = pd.DataFrame({"x": [1, 2], "y": [0.123456, value]})
    figure, axis = pyplot.subplots()
    axis.plot(drawn.x, drawn.y)
    run.save_figure(figure, "f", drawn)
    run.save_table(drawn, "t")
    run.finish()
    pyplot.close(figure)
    return root / "small" / "90_trial"


def test_figures_and_tables_are_the_same_bytes_on_every_run(tmp_path):
    first, second = save(tmp_path / "a", 0.5), save(tmp_path / "b", 0.5)
    for name in ("f.png", "f.pdf", "f.csv", "t.csv"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    assert (first / "t.csv").read_text() == "x,y\n1,0.1235\n2,0.5000\n"
    manifest = json.loads((first / "manifest.json").read_text())
    assert manifest["parameters"] == {"limit": 3} and set(manifest["files"]) == {"f.png", "f.pdf", "f.csv", "t.csv"}


def test_the_digest_line_changes_with_the_data(tmp_path, capsys):
    save(tmp_path / "a", 0.5)
    save(tmp_path / "b", 0.6)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("f:")]
    assert lines[0] != lines[1] and lines[0].startswith("f: 2 rows x 2 columns, 0.1235 to 0.5000, sha256 ")


def test_a_run_that_does_not_finish_leaves_the_last_results(tmp_path):
    folder = save(tmp_path, 0.5)
    before = (folder / "t.csv").read_text()
    run = Run("90_trial", "small", {}, tmp_path)
    run.save_table(pd.DataFrame({"x": [1.0]}), "t")
    assert (folder / "t.csv").read_text() == before
    save(tmp_path, 0.7)
    assert (folder / "t.csv").read_text() != before and not list(folder.parent.glob(".*"))


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    blocked = tmp_path / "figures"
    blocked.write_text("a file where a folder should be")
    with pytest.raises(CompanionError, match="cannot be written to.*MEE_OUTPUT"):
        Run("90_trial", "small", {}, blocked)


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/usr/bin/setpriv").exists(), reason="root writes everywhere")
def test_a_read_only_folder_is_named(tmp_path):
    """Run as an ordinary user, since root may write to a read-only folder."""
    code = f"from mee_utils.results import Run; Run('n', 'small', {{}}, {str(tmp_path)!r})"
    command = [sys.executable, "-c", code]
    tmp_path.chmod(0o555)
    if os.geteuid() == 0:
        command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *command]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    tmp_path.chmod(0o755)
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1].startswith("mee_utils.errors.CompanionError") and "cannot be written to" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "--profile", "smal"], 'error: There is no profile "smal"'),
        (["reproduce", "--profile", "real"], "give their folder, as in DATA="),
        (["notebook", "01_monotonicity", "-p", "limt=3"], 'error: Unknown parameter "limt"'),
        (["train", "--model", "clam"], 'error: Unknown model "clam": did you mean "calm"'),
    ],
)
def test_the_command_line_says_it_in_one_line(capsys, arguments, message):
    from mee_utils.__main__ import main

    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1


def test_markers_of_another_situation_or_without_results_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(notebook, "MARKERS", notebook.PACKAGE.parent / "build" / "test_markers")
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    names = ["00_models", "01_monotonicity"]
    try:
        folder = notebook.PACKAGE.parent / notebook.forget_stale("small", ["corpus A"], names)
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).touch()
        (tmp_path / "small/00_models").mkdir(parents=True)
        (tmp_path / "small/00_models/manifest.json").touch()
        notebook.forget_stale("small", ["corpus A"], names)
        assert [name for name in names if (folder / name).exists()] == ["00_models"]
        other = notebook.forget_stale("small", ["corpus B"], names)
        assert not folder.exists() and other != str(folder)
    finally:
        import shutil

        shutil.rmtree(notebook.MARKERS, ignore_errors=True)


def test_a_profile_is_named_after_its_file(monkeypatch, tmp_path):
    from mee_utils import profiles

    path = edited(tmp_path, lambda c: None)
    monkeypatch.setattr(profiles, "FOLDER", tmp_path)
    with pytest.raises(CompanionError, match='calls itself "small": its name must be "p"'):
        load_profile(path)


def trained(monkeypatch, tmp_path, **changes):
    """A profile on a local corpus, and the manifest of a model trained on it."""
    from mee_utils import companion, train
    from mee_utils.profiles import Profile
    from mee_utils.tasks.sources import local_digest

    corpus = tmp_path / "corpus"
    corpus.mkdir(exist_ok=True)
    for split in ("train", "test"):
        (corpus / f"{split}.jsonl").write_text(json.dumps({"translation": {"en": split, "fr": "x"}}) + "\n")
    content = yaml.safe_load((ROOT / "notebooks/profiles/real.yaml").read_text())
    content["corpora"]["translation"]["source"] = str(corpus)
    profile = Profile.model_validate(content)
    about = {
        "recipe": profile.training.backbones["calm"].model_dump(), "shape": profile.training.shape.model_dump(),
        "seed": profile.training.seed, "data": {"translation": {"sha256": local_digest(corpus, "train")}},
    } | changes  # fmt: skip
    monkeypatch.setattr(train, "manifest", lambda profile, name: about)
    monkeypatch.setattr(companion, "PACKAGE", tmp_path)
    return profile, corpus, train


def test_a_model_trained_on_other_data_or_by_another_recipe_is_not_taken_for_this_one(monkeypatch, tmp_path):
    profile, corpus, train = trained(monkeypatch, tmp_path)
    train.check_recipe(profile, "calm", None)
    (corpus / "train.jsonl").write_text(json.dumps({"translation": {"en": "other", "fr": "y"}}) + "\n")
    with pytest.raises(CompanionError, match="trained with another training data of translation: delete"):
        train.check_recipe(profile, "calm", None)
    profile, _, train = trained(monkeypatch, tmp_path, seed=5)
    with pytest.raises(CompanionError, match="another seed"):
        train.check_recipe(profile, "calm", None)


def test_training_and_measuring_on_the_same_file_is_refused(monkeypatch, tmp_path):
    from mee_utils import load_task

    _, corpus, train = trained(monkeypatch, tmp_path)
    task = load_task("translation", corpus / "train.jsonl")
    with pytest.raises(CompanionError, match="one file a split"):
        train.check_splits([task], [task])


def test_a_run_with_another_recipe_does_not_resume_an_old_one(monkeypatch, tmp_path):
    from types import SimpleNamespace

    profile, _, train = trained(monkeypatch, tmp_path)
    monkeypatch.setattr(train, "work_folder", lambda profile, name: tmp_path / "work")
    monkeypatch.setattr(train, "weights_digest", lambda profile, name: "base")
    task = SimpleNamespace(digest="a")
    folder = train.prepared_work_folder(profile, "calm", [task])
    (folder / "checkpoint-1").mkdir()
    assert (train.prepared_work_folder(profile, "calm", [task]) / "checkpoint-1").exists()
    assert not (train.prepared_work_folder(profile, "calm", [SimpleNamespace(digest="b")]) / "checkpoint-1").exists()


def test_a_second_reproduce_in_the_same_folder_is_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(notebook, "LOCK", tmp_path / "reproduce.lock")
    with notebook.alone():
        assert main(["reproduce"]) == 2
    assert "Another make reproduce is running" in capsys.readouterr().err
    with notebook.alone():
        pass  # free again


def test_what_a_kernel_cut_in_pieces_is_stored_as_one():
    stream = lambda name, text: nbformat.v4.new_output("stream", name=name, text=text)
    figure = nbformat.v4.new_output("display_data", data={"text/plain": "f"})
    cell = nbformat.v4.new_code_cell("print(1)", outputs=[stream("stdout", "a\n"), stream("stdout", "b\n"), figure, stream("stdout", "c\n"), stream("stderr", "d\n")])
    book = nbformat.v4.new_notebook(cells=[cell])
    notebook._normalize(book, None)
    assert [output.get("text") for output in book.cells[0].outputs] == ["a\nb\n", None, "c\n", "d\n"]
