"""What `make status` sees, which stored tables are read, and where a number comes from."""

import json
import os
import re
import shutil
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from mee_utils import MeeError
from mee_utils.common.files import PACKAGE
from mee_utils.companion import measure, result_tables, results
from mee_utils.companion.profiles import load_profile
from mee_utils.companion.running import digests, freshness, jobs, notebook_files, status
from mee_utils.companion.running import notebooks as notebook
from mee_utils.companion.running.jobs import Job

ROOT = Path(__file__).parent.parent
NAME, PROFILE = "90_trial", load_profile("small")
SOURCE = """# %% tags=["parameters"]
profile = "small"  # which
data = ""  # where

# %%
import pandas as pd
from matplotlib import pyplot
from mee_utils.companion import result_tables
from mee_utils.companion.results import Run
run = Run("90_trial", profile, {})
wanted = pd.DataFrame({"kind": ["verified"], "task": ["translation"], "model": ["calm"]})
print("t", len(result_tables.read_timings("verified", wanted, profile)))

# %%
t = run.save_table(pd.DataFrame({"t": [1.0]}), "t")

# %%
for part in (1, 2):
    figure, axis = pyplot.subplots(figsize=(1, 1))
    run.save_figure(figure, f"part_{part}", pd.DataFrame({"t": [part]}))
    pyplot.close(figure)

# %%
seeds = result_tables.read_retrained(profile, "seeds")
run.finish()
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A folder with the source of a notebook, and in `out` what its run has stored."""
    folder = tmp_path_factory.mktemp("executed")
    (folder / f"{NAME}.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(notebook_files, "SOURCES", folder)
        patch.setenv("MEE_OUTPUT", str(folder / "out"))
        notebook.run_notebook(NAME)
    return folder


@pytest.fixture
def run(executed, tmp_path, monkeypatch):
    """A copy of it, for one test."""
    folder = shutil.copytree(executed, tmp_path / "copy")
    monkeypatch.setattr(notebook_files, "SOURCES", folder)
    monkeypatch.setenv("MEE_OUTPUT", str(folder / "out"))
    assert changes() == []
    return folder / "out" / "small"


def changes(name=NAME):
    return freshness.stored_result_changes(PROFILE, name)


def write_record():
    freshness.write_record(freshness.record_path(PROFILE, "notebook", NAME))


def test_a_deleted_notebook_is_missing(run):
    write_record()
    assert dict(status.states(PROFILE)) == {"measured": "missing", NAME: "fresh"}
    (run / f"{NAME}.ipynb").unlink()
    assert changes() is None and dict(status.states(PROFILE))[NAME] == "missing"


def test_status_calls_stale_what_make_reproduce_runs_again(run):
    """Before, another profile was "fresh" for `make status` while `make reproduce` ran every notebook."""
    assert "no record in build: make reproduce runs it" in dict(status.states(PROFILE))[NAME]
    write_record()
    corpora = {
        name: corpus.model_copy(update={"held_out": 7, "choices": 8})
        for name, corpus in PROFILE.corpora.items()
    }
    for change, named in (
        ({"dtype": "bfloat16"}, ["profile"]),
        ({"corpora": corpora}, ["corpus", "profile"]),
    ):
        state = dict(status.states(PROFILE.model_copy(update=change)))[NAME]
        assert state.startswith("stale, changed since: ") and all(word in state for word in named)
    freshness.forget_stale(PROFILE)
    assert dict(status.states(PROFILE))[NAME] == "fresh"
    record = freshness.record_path(PROFILE, "notebook", NAME)
    freshness.forget_stale(PROFILE.model_copy(update={"dtype": "bfloat16"}))
    assert not record.exists()


def test_a_manifest_from_before_it_had_sources_is_read(run):
    manifest = run / NAME / "manifest.json"
    content = json.loads(manifest.read_text())
    assert set(content.pop("sources")) == {"profile", *(f"corpus {task}" for task in PROFILE.corpora)}
    manifest.write_text(json.dumps(content))
    assert changes() == []


def test_status_reads_the_corpora_in_the_data_folder(run, tmp_path):
    """Before, --data was taken and ignored: a corpus that had changed was not seen."""
    file = tmp_path / "data" / "corpus" / "train.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("{}\n")
    translation = PROFILE.corpora["translation"].model_copy(update={"source": "{data}/corpus"})
    without = PROFILE.model_copy(update={"corpora": {"translation": translation}})
    profile = without.model_copy()
    profile._data = str(tmp_path / "data")
    write_record()
    manifest = run / NAME / "manifest.json"
    sources = freshness.notebook_digests(profile, NAME)
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"sources": sources}))
    assert dict(status.states(profile))[NAME] == dict(status.states(without))[NAME] == "fresh"
    file.write_text("{}\n{}\n")
    assert dict(status.states(profile))[NAME] == "stale, changed since: corpus translation"
    profile._data = str(tmp_path / "nowhere")
    with pytest.raises(MeeError, match="is no folder"):
        list(status.lines(profile))


@pytest.mark.parametrize("name", ["measured", "retrained"])
def test_measurements_are_kept_when_code_changes(tmp_path, monkeypatch, name):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    store = results.Run(name, "small", {}, tmp_path / "small" / name)
    store.save_table(pd.DataFrame({"t": [1.0]}), "t")
    store.finish()
    manifest = tmp_path / "small" / name / "manifest.json"
    written = json.loads(manifest.read_text())
    code = dict.fromkeys(written["code"], "another")
    manifest.write_text(json.dumps(written | {"code": code}))
    assert dict(status.states(PROFILE))[name].startswith("code has changed since (kept; make ")
    (tmp_path / "small" / name / "t.csv").unlink()
    state = dict(status.states(PROFILE))[name]
    assert state.startswith("stale, changed since: t.csv, ") and state.endswith(f" and {len(code) - 4} more")


def edited(cells):
    cells[1].source += "\nt = 2"


def deleted(cells):
    del cells[2]


def swapped(cells):
    cells[2], cells[3] = cells[3], cells[2]


@pytest.mark.parametrize("broken", [edited, deleted, swapped])
def test_an_edited_notebook_is_stale_whatever_it_says_of_itself(run, broken):
    path = run / f"{NAME}.ipynb"
    stored = nbformat.read(path, as_version=4)
    broken(stored.cells)
    nbformat.write(stored, path)
    assert f"{NAME}.ipynb" in changes()
    stored.metadata["source_sha256"] = notebook_files.source_digest(stored)
    stored.metadata["outputs_sha256"] = notebook_files.outputs_digest(stored)
    nbformat.write(stored, path)
    assert changes() == [f"notebooks/{NAME}.py"]


def test_another_output_or_another_source_is_stale(run):
    path, source = run / f"{NAME}.ipynb", run.parent.parent / f"{NAME}.py"
    stored = path.read_text()
    path.write_text(re.sub(r'"t \d', '"t 9', stored))
    assert changes() == [f"outputs of {NAME}.ipynb"]
    path.write_text(stored)
    source.write_text(SOURCE.replace("1.0", "2.0"))
    assert changes() == [f"notebooks/{NAME}.py"]


@pytest.mark.parametrize("file", ["part_1.png", "t.csv"])
def test_a_figure_or_table_that_is_gone_or_another_one_is_stale(run, file):
    (run / NAME / file).write_bytes(b"x\n1\n")
    assert changes() == [file]
    (run / NAME / file).unlink()
    assert changes() == [file]


def test_a_changed_module_is_stale_and_a_comment_is_none(run, tmp_path, monkeypatch):
    package = tmp_path / "mee_utils"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("checkpoints", "__pycache__"))
    for module in (freshness, digests):
        monkeypatch.setattr(module, "PACKAGE", package)
    module = package / "companion" / "results.py"
    module.write_text(module.read_text() + "# a comment\n")
    assert changes() == []
    module.write_text(module.read_text().replace("DECIMALS = 4", "DECIMALS = 5"))
    assert changes() == ["mee_utils/companion/results.py"]
    module.unlink()
    assert changes() == ["mee_utils/companion/results.py"]


def test_a_timing_that_a_notebook_reads_is_an_input(run, tmp_path, monkeypatch):
    made = json.loads((run / NAME / "manifest.json").read_text())["inputs"]
    timed = {"results bench/exits.csv", "results bench/gpu/exits.csv"}  # on a GPU where the CPU has none
    assert set(made) == timed | {"results retrained"}
    bench = shutil.copytree(result_tables.BENCH, tmp_path / "bench")
    monkeypatch.setattr(freshness, "BENCH", bench)
    with (bench / "reductions.csv").open("a") as other:
        other.write("\n")
    assert changes() == []
    with (bench / "exits.csv").open("a") as read:
        read.write("\n")
    assert changes() == ["results bench/exits.csv"]
    (bench / "exits.csv").unlink()
    assert changes() == ["results bench/exits.csv"]


def test_what_was_not_timed_or_retrained_then_is_seen_when_it_comes(tmp_path, monkeypatch):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    run = results.Run("measured", "nobody", {}, tmp_path / "nobody/measured")
    assert result_tables.read_retrained("nobody", "seeds").empty
    nothing = pd.DataFrame(columns=result_tables.KEYS)
    assert result_tables.read_timings("drafts", nothing, "nobody", folder=tmp_path).empty
    run.save_table(pd.DataFrame({"t": [1.0]}), "t")
    run.finish()
    profile = PROFILE.model_copy(update={"name": "nobody"})
    monkeypatch.setattr(freshness, "BENCH", tmp_path)
    assert freshness.stored_result_changes(profile, "measured") == []
    (tmp_path / "drafts.csv").write_text("speed\n1\n")
    other = results.Run("retrained", "nobody", {}, tmp_path / "nobody/retrained")
    other.save_table(pd.DataFrame({"t": [1.0]}), "seeds")
    other.finish()
    assert freshness.stored_result_changes(profile, "measured") == [
        "results bench/drafts.csv",
        "results retrained",
    ]
    assert [name for name, _ in status.states(profile)][:2] == ["measured", "retrained"]


def test_a_changed_model_makes_measurements_stale(tmp_path, monkeypatch):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    monkeypatch.setattr(measure, "measurements", lambda profile: [])
    about = results.manifest_of(measure.store(PROFILE) / "manifest.json")
    assert set(about["inputs"]) == {f"model {name}" for name in PROFILE.training.backbones}
    assert changes("measured") == []
    digest = freshness.weights_digest

    def other(profile, model):
        return "another" if model == "calm" else digest(profile, model)

    monkeypatch.setattr(freshness, "weights_digest", other)
    assert changes("measured") == ["model calm"]
    monkeypatch.setattr(freshness, "is_trained", lambda profile, model: model != "calm")
    assert changes("measured") == ["model calm"]


OTHER_FORMS = [
    "[]",
    "{}",
    '{"parameters": {}, "inputs": {}, "code": {}}',
    '{"parameters": {}, "inputs": null, "code": {}, "files": {}}',
    '{"parameters": {}, "inputs": {}, "code": {}, "files": {"t.csv": 3}}',
    "[" * 9999,
]


@pytest.mark.parametrize("content", OTHER_FORMS, ids=range(len(OTHER_FORMS)))
def test_a_manifest_of_another_form_is_unreadable_and_the_others_are_listed(run, content):
    """Before, a traceback in place of every line of `make status`, and of `make origin`."""
    path = run / NAME / "manifest.json"
    shutil.copytree(run / NAME, run / "measured")
    path.write_text(content)
    for damaged in (path, run / "measured/manifest.json"):
        states = dict(status.states(PROFILE))
        assert states[NAME].startswith(f"unreadable: {path} ") and "\n" not in states[NAME]
        assert states["measured"].startswith("unreadable" if damaged != path else "fresh")
        (run / "measured/manifest.json").write_text(content)
    for read in (
        lambda: list(status.origin(str(run / NAME / "t.csv"))),
        lambda: result_tables.read_table("small", NAME, "t"),
        lambda: result_tables.read_manifest("small", NAME),
    ):
        with pytest.raises(MeeError, match="restore it from version control"):
            read()
    assert results.stored_seconds("small") == {}
    freshness.forget_stale(PROFILE)


@pytest.mark.parametrize("content", ["[]", "3", '{"t": 3}', "{}"])
def test_records_of_another_form_are_none(run, content, monkeypatch):
    job = Job("trace", "vanilla", "translation")
    record = freshness.job_record_path(PROFILE, job)
    freshness.write_record(record, freshness.job_digests(PROFILE, job))
    job.path(PROFILE).parent.mkdir(parents=True)
    job.path(PROFILE).touch()
    freshness.forget_stale(PROFILE)
    assert record.exists()
    record.write_text(content)
    freshness.forget_stale(PROFILE)
    assert not record.exists()
    bench = run.parent / "bench"
    bench.mkdir()
    (bench / "t.csv").write_text("x\n")
    (bench / "machines.json").write_text(content)
    with pytest.raises(MeeError, match=r"restore it|no stored result"):
        list(status.origin(str(bench / "t.csv")))


def test_what_is_not_as_it_was_made_is_made_again(run):
    record = freshness.record_path(PROFILE, "notebook", NAME)
    write_record()
    freshness.forget_stale(PROFILE)
    assert record.exists()
    (run / NAME / "part_1.png").unlink()
    freshness.forget_stale(PROFILE)
    assert not record.exists()


def test_times_of_files_decide_nothing(run, monkeypatch):
    """Before, 03, 05, 06 and 08 ran again after a `touch`, since files above 1 MB went by time."""
    job = Job("trace", "vanilla", "translation")
    record = freshness.job_record_path(PROFILE, job)
    job.path(PROFILE).parent.mkdir(parents=True)
    job.path(PROFILE).touch()
    freshness.write_record(record, freshness.job_digests(PROFILE, job))
    write_record()
    for path in run.parent.rglob("*"):
        os.utime(path, (1, 1))
    freshness.forget_stale(PROFILE)
    assert record.exists() and freshness.record_path(PROFILE, "notebook", NAME).exists()


@pytest.mark.parametrize("kind", ["trace", "classifiers", "settings", "oracle", "fresh", *jobs.OF_ALL_TASKS])
def test_a_record_says_what_has_changed(run, monkeypatch, kind):
    job = Job(kind, "calm", "translation" if kind in ("trace", "settings", "oracle") else jobs.ALL)
    then = freshness.job_digests(PROFILE, job)
    assert freshness.differing_keys(then, freshness.job_digests(load_profile("small"), job)) == []
    digest = freshness.weights_digest
    monkeypatch.setattr(freshness, "weights_digest", lambda profile, name: digest(profile, name)[::-1])
    assert "model calm" in freshness.differing_keys(then, freshness.job_digests(PROFILE, job))
    monkeypatch.setattr(freshness, "weights_digest", digest)
    corpora = {name: corpus.model_copy(update={"choices": 7}) for name, corpus in PROFILE.corpora.items()}
    other = PROFILE.model_copy(update={"corpora": corpora})
    assert "corpus translation" in freshness.differing_keys(then, freshness.job_digests(other, job))
    more_tokens = PROFILE.classifiers.model_copy(update={"tokens": 99})
    other = PROFILE.model_copy(update={"classifiers": more_tokens})
    assert bool(freshness.differing_keys(then, freshness.job_digests(other, job))) == (kind != "trace")


@pytest.mark.parametrize(
    ("file", "changes_measurements"),
    [("tasks/kinds.py", False), ("tasks/synthetic/french.py", True), ("tasks/synthetic/nouns.tsv", True)],
)
def test_measurements_depend_on_generators_and_not_on_all_code_of_tasks(
    tmp_path, monkeypatch, file, changes_measurements
):
    """Before, an entry of `TASKS` made hours of measurements stale."""
    job = Job("settings", "calm", "translation")
    package = tmp_path / "mee_utils"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("checkpoints", "__pycache__"))
    for module in (freshness, digests):
        monkeypatch.setattr(module, "PACKAGE", package)
    then = freshness.job_digests(PROFILE, job)
    assert freshness.differing_keys(then, freshness.job_digests(PROFILE, job)) == []
    with (package / file).open("a", encoding="utf-8") as opened:
        opened.write("\nADDED = 1\n")
    changed = freshness.differing_keys(then, freshness.job_digests(PROFILE, job))
    assert changed == (["corpus translation"] if changes_measurements else [])


def test_a_corpus_on_disk_is_a_source_by_its_content(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "train.jsonl").write_text("{}\n")
    translation = PROFILE.corpora["translation"].model_copy(update={"source": str(corpus)})
    profile = PROFILE.model_copy(update={"corpora": {"translation": translation}})
    then = freshness.notebook_digests(profile, "01_monotonicity")
    os.utime(corpus / "train.jsonl", (1, 1))
    assert freshness.notebook_digests(profile, "01_monotonicity") == then
    (corpus / "test.jsonl").write_text("{}\n")
    assert freshness.differing_keys(then, freshness.notebook_digests(profile, "01_monotonicity")) == [
        "corpus translation"
    ]


def test_another_line_end_is_no_change(tmp_path):
    """A checkout with core.autocrlf, as WSL has beside Git for Windows: everything was stale."""
    for name in ("t.csv", "manifest.json", "README.md", "p.yaml", "n.ipynb", "words.tsv"):
        unix, windows = tmp_path / name, tmp_path / f"windows-{name}"
        unix.write_bytes(b"a,b\n1,2\n")
        windows.write_bytes(b"a,b\r\n1,2\r\n")
        assert digests.file_digest(unix) == digests.file_digest(windows)
    for name in ("figure.png", "t.parquet", "model.safetensors"):
        assert digests.bytes_digest(b"\r\n", name) != digests.bytes_digest(b"\n", name)
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_bytes(b"x = 1\ny = 2\n" if name == "a.py" else b"x = 1\r\ny = 2\r\n")
    assert digests.code_digest(tmp_path / "a.py") == digests.code_digest(tmp_path / "b.py")


@pytest.mark.parametrize("name", ["90_trial.ipynb", "90_trial/manifest.json"])
def test_conflict_marks_are_one_line_of_make_status(run, name):
    """Before, `NotJSONError` and a long report."""
    path = run / name
    path.write_text(f"<<<<<<< HEAD\n{path.read_text()}\n=======\n{{}}\n>>>>>>> theirs\n")
    states = dict(status.states(PROFILE))
    assert states[NAME].startswith(f"unreadable: {path} ") and "\n" not in states[NAME]
    assert states["measured"] == "missing"
    if path.suffix == ".json":
        with pytest.raises(MeeError, match="is no JSON"):
            next(status.origin(str(run / NAME / "t.csv")))


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A copy of the measurements and retrainings."""
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    for name in ("measured", "retrained"):
        shutil.copytree(ROOT / "figures/small" / name, tmp_path / "small" / name)
    return tmp_path / "small"


def one_line(error, says):
    assert "\n" not in str(error.value) and str(error.value).startswith(says)


def test_measurements_that_were_touched_are_not_read(stored):
    path = stored / "measured/calm-translation.parquet"
    table = result_tables.read_measurements("small", path.stem)
    table.assign(score=table.score + 1).to_parquet(path)
    for read in (result_tables.read_measurements, lambda profile, name: result_tables.read_measured(profile)):
        with pytest.raises(MeeError) as error:
            read("small", path.stem)
        one_line(
            error, f"{path} was changed after it was made: restore it, or run make measure PROFILE=small"
        )
    path.unlink()
    with pytest.raises(MeeError) as error:
        result_tables.read_measured("small")
    one_line(error, f"{path} is missing: run make measure PROFILE=small.")


def test_retrainings_that_were_touched_are_not_read(stored):
    path = stored / "retrained/seeds.csv"
    assert len(result_tables.read_retrained("small", "seeds"))
    path.write_text(path.read_text().replace("0.", "1.", 1))
    with pytest.raises(MeeError) as error:
        result_tables.read_retrained("small", "seeds")
    says = f"{path} was changed after it was made: restore it, or run make clean retrain PROFILE=small"
    one_line(error, says)
    path.unlink()
    with pytest.raises(MeeError) as error:
        result_tables.read_retrained("small", "seeds")
    one_line(error, says)


def test_what_this_run_has_not_made_is_read_beside_the_package(tmp_path, monkeypatch):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    assert len(result_tables.read_retrained("small", "seeds"))
    assert len(result_tables.read_measurements("small", "learning"))
    assert result_tables.read_measurements("small", "nothing") is None
    assert "results measured" in result_tables.inputs_of("small")


def test_a_notebook_that_is_run_before_measuring_says_what_to_run():
    """05 ended in a traceback: there was no table of what exit classifiers learn from how many tokens."""
    with pytest.raises(MeeError, match="is missing: run make measure PROFILE=paper") as error:
        result_tables.read_measurements("paper", "learning")
    assert "\n" not in str(error.value)
    assert result_tables.measured_before("paper", "learning") is None


def test_a_number_is_traced_to_the_cell_that_printed_it(run):
    """Also where its name is put together there, or stands in other cells too."""
    source = notebook_files.read_source(NAME).cells
    for file, saves in (("t.csv", '"t")'), ("part_1.csv", "part_{"), ("part_2.png", "part_{")):
        (place,) = [n for n, cell in enumerate(source) if saves in cell.source]
        first, *others = status.origin(str(run / NAME / file))
        assert first == f"saved by {run / NAME}.ipynb, cell {place}"
        assert "profile: small" in others and any(line.startswith("inputs: ") for line in others)


def test_the_page_of_results_says_how_to_trace_a_number():
    page, rules = (
        (ROOT / name).read_text() for name in ("mee_utils/companion/reporting/pages/results.md", "Makefile")
    )
    file = re.search(r"`make origin FILE=(\S+)`", page)[1]
    assert next(status.origin(str(ROOT / file))).startswith(f"saved by {Path(file).parent}.ipynb, cell ")
    assert re.search(r"^origin:.*\n\t@\$\(COMPANION\) origin \"\$\(FILE\)\"$", rules, re.M)
    assert re.search(r"^# make origin ", rules, re.M)
