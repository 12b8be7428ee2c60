"""Running a notebook: parameters, trials, results in their place, edits that are kept, processes that end."""

import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pandas as pd
import pytest

from mee_utils import MeeError
from mee_utils.companion import result_tables, statements
from mee_utils.companion.cli import main
from mee_utils.companion.results import DIGEST, STAGED, Run, noted_digests, staged
from mee_utils.companion.running import locks as folders
from mee_utils.companion.running import notebook_files, parameters, pipeline
from mee_utils.companion.running import notebooks as notebook

ROOT = Path(__file__).parent.parent
NAME = "90_trial"
SOURCE = """# %% [markdown]
# # A notebook

# %% needs=["traces", "claims"] tags=["parameters"]
profile = "small"  # which
data = ""  # where
limit = 3  # how many
seed = 0  # of what
share = 0.5  # how much
decay = 4.0  # how fast
names = ["a"]  # which ones

# %%
print(limit * 2, share)
{body}
"""
SAVES = """import pandas as pd
from mee_utils.companion.results import Run
run = Run("90_trial", profile, {})
run.save_table(pd.DataFrame({"x": [limit]}), "t")
run.finish()"""


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """A folder of sources and one of results; writes a notebook whose last cell ends with some code."""
    monkeypatch.setattr(notebook_files, "SOURCES", tmp_path)
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path / "out"))

    def write(body=""):
        (tmp_path / f"{NAME}.py").write_text(SOURCE.replace("{body}", body))
        return tmp_path / "out"

    return write


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"limt": 3}, 'Parameters: Unknown key "limt": did you mean "limit"'),
        ({"limit": "three"}, "limit: Input should be a valid integer .it is 'three'"),
        ({"limit": True}, "limit: Input should be a valid integer .it is True"),
        ({"limit": 2.5}, "limit: Input should be a valid integer .it is 2.5"),
        ({"names": "b"}, "names: Input should be a valid list"),
        ({"limit": 0}, "limit: Input should be greater than or equal to 3 .it is 0"),
        ({"seed": -1}, "seed: Input should be greater than or equal to 0 .it is -1"),
        ({"seed": 2**63}, f"seed: Input should be less than or equal to {2**63 - 1} .it is {2**63}"),
        ({"share": 1.5}, "share: Input should be less than or equal to 1 .it is 1.5"),
        ({"share": True}, "share: Input should be a valid number .it is True"),
        ({"decay": float("nan")}, "decay: Input should be .* .it is nan"),
        ({"decay": -1}, "decay: Input should be greater than or equal to 0 .it is -1"),
    ],
)
def test_a_wrong_parameter_is_refused_before_anything_runs(sources, given, message):
    folder = sources()
    with pytest.raises(MeeError, match=message):
        notebook.run_notebook(NAME, parameters=given)
    assert not folder.exists()


def test_a_run_with_the_profiles_parameters_puts_results_in_place_and_a_trial_does_not(sources):
    folder = sources(SAVES)
    path = notebook.run_notebook(NAME, parameters={"limit": 3})  # the profile's own
    assert path == folder / f"small/{NAME}.ipynb" and (folder / "small" / NAME / "t.csv").exists()
    before = {file: file.read_bytes() for file in (folder / "small").rglob("*.*")}
    trial = notebook.run_notebook(NAME, parameters={"limit": 4, "share": 1})
    assert trial.parent == folder / "build/trials/small" / NAME
    assert (trial.with_suffix("") / "t.csv").read_text() == "x\n4\n"
    assert nbformat.read(trial, as_version=4).cells[-1].outputs[0].text.startswith("8 1.0\n")
    assert before == {file: file.read_bytes() for file in (folder / "small").rglob("*.*")}
    assert STAGED not in os.environ and os.environ["MEE_OUTPUT"] == str(folder)


def test_papermill_and_jupyterlab_do_not_touch_committed_results(sources):
    """Plain papermill, as users run notebooks in batches: before, it overwrote what is committed."""
    import papermill

    folder = sources(SAVES)
    path = notebook.run_notebook(NAME)
    committed = (folder / "small" / NAME / "t.csv").read_bytes()
    for limit in (3, 8):
        papermill.execute_notebook(path, folder / "p.ipynb", {"limit": limit}, progress_bar=False)
        assert (folder / "small" / NAME / "t.csv").read_bytes() == committed
    trials = (folder / "build/trials/small" / NAME).glob("*/t.csv")  # a sweep keeps all
    assert sorted(trial.read_text() for trial in trials) == ["x\n3\n", "x\n8\n"]
    executed = [nbformat.read(p, as_version=4).cells[-1] for p in (path, folder / "p.ipynb")]
    noted = [noted_digests(cell.outputs).splitlines()[-1] for cell in executed]
    assert noted[0] == noted[1]  # a strict comparison sees no difference


def test_every_trial_has_a_folder_of_its_own(sources):
    """Before, all trials of a notebook shared one folder, so that a sweep kept its last result only."""
    folder = sources(SAVES)
    trials = [notebook.run_notebook(NAME, parameters={"limit": limit}) for limit in (4, 5, 4)]
    assert trials[0] == trials[2] != trials[1]
    tables = [(trial.with_suffix("") / "t.csv").read_text() for trial in trials]
    assert tables == ["x\n4\n", "x\n5\n", "x\n4\n"]
    assert not (folder / "small").exists()


CHECKS = """from pathlib import Path
from mee_utils.companion.running import notebook_files, parameters
notebook_files.SOURCES = Path("FOLDER")
parameters.check_injected("90_trial")"""


def test_a_notebook_that_papermill_runs_checks_its_parameters_itself(sources):
    """Before, an unknown `-p` ran through with the default, and text for a number failed in pandas."""
    import papermill

    folder = sources()
    source = notebook_files.read_source(NAME)
    source.cells[-1].source = CHECKS.replace("FOLDER", str(folder.parent))
    nbformat.write(source, folder.parent / "p.ipynb")
    with pytest.raises(papermill.PapermillExecutionError) as error:
        papermill.execute_notebook(folder.parent / "p.ipynb", None, {"limt": 3}, progress_bar=False)
    assert error.value.ename == "MeeError" and UNKNOWN in error.value.evalue
    papermill.execute_notebook(folder.parent / "p.ipynb", None, {"limit": 4, "share": 1}, progress_bar=False)


UNKNOWN = 'Parameters: Unknown key "limt": did you mean "limit"'


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"limt": 3}, UNKNOWN),
        ({"share": "0.95"}, "Parameters: share: Input should be a valid number .it is '0.95'"),
        ({"limit": "3"}, "Parameters: limit: Input should be a valid integer .it is '3'"),
        ({"limit": 0}, "Parameters: limit: Input should be greater than or equal to 3"),
        ({"limit": 4, "share": 1}, None),
    ],
)
def test_what_papermill_injects_is_checked(sources, monkeypatch, given, message):
    """The cell is the one that papermill writes; the shell of its kernel is made up."""
    import IPython
    from papermill.parameterize import parameterize_notebook

    sources()
    monkeypatch.setattr(parameters, "notebook_names", lambda: [NAME])
    source = notebook_files.read_source(NAME)
    source.metadata["papermill"] = {}  # as papermill reads a notebook
    for cell in source.cells:
        cell.metadata.setdefault("tags", [])
    cells = [cell.source for cell in parameterize_notebook(source, given).cells if cell.cell_type == "code"]
    shell = SimpleNamespace(user_ns={"In": ["", *cells]})
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    assert parameters.injected_parameters() == given
    if message is None:
        parameters.check_injected(NAME)
    else:
        with pytest.raises(MeeError, match=message):
            parameters.check_injected(NAME)


@pytest.mark.parametrize(
    "name", [name for name in notebook_files.notebook_names() if name[:2] not in ("08", "90")]
)
def test_too_few_examples_are_refused_before_anything_runs(name):
    """Before, `limit=1` was a KeyError in 02, a ValueError in 03 and 04, "no inputs" in 07."""
    declared = notebook_files.declared_parameters(notebook_files.read_source(name))
    for limit in (1, 4):
        with pytest.raises(MeeError, match="limit: Input should be greater than or equal to 5"):
            parameters.check_parameters({"limit": limit}, declared)
    assert parameters.check_parameters({"limit": 5}, declared) == {"limit": 5}


def test_every_notebook_checks_what_papermill_injects():
    """Each begins with an `Experiment`, which does it."""
    for name in notebook_files.notebook_names():
        code = [cell.source for cell in notebook_files.read_source(name).cells if cell.cell_type == "code"]
        assert any("Experiment.of_notebook(" in source for source in code[1:3]), name


def test_a_long_folder_for_temporary_files_works(sources, monkeypatch, tmp_path_factory):
    """As on clusters; before, `ZMQError: ipc path ... is longer than 107 characters`."""
    for length in (85, 100, 107, 200):
        folder = tmp_path_factory.mktemp("long") / "x"
        folder = folder.with_name("x" * max(1, length - len(str(folder))))
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        with notebook._socket_folder(folder) as sockets:
            assert len(f"{sockets}/kernel-12345") < 103
    sources()
    notebook.run_notebook(NAME)
    assert not list(folder.iterdir())


def test_a_kernel_of_another_environment_is_not_used(sources, monkeypatch, tmp_path):
    """A specification that is called python3 too, as a user's `ipykernel install` writes it."""
    foreign = tmp_path / "jupyter/kernels/python3"
    foreign.mkdir(parents=True)
    specification = {"argv": ["false", "{connection_file}"], "display_name": "x", "language": "python"}
    (foreign / "kernel.json").write_text(json.dumps(specification))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    sources("import sys\nprint(sys.executable)")
    executed = nbformat.read(notebook.run_notebook(NAME), as_version=4)
    assert executed.cells[-1].outputs[0].text.splitlines()[-1] == sys.executable


DRAWS = """import mee_utils
import pandas as pd
from matplotlib import pyplot
from mee_utils.companion import figures
from mee_utils.companion.results import Run
print(mee_utils.__file__)
run = Run("90_trial", profile, {})
figures.use_style()
table = pd.DataFrame({"x": [1, 2], "y": [0.123456, 0.5]})
figure, ((axis, rows),) = figures.panels(table.assign(task="a"))
figures.lines(axis, rows, "x", "y", "task")
run.save_figure(figure, "f", table)
run.finish()
table"""


def test_what_a_user_has_set_up_changes_no_stored_byte(sources, tmp_path, monkeypatch):
    """Before, MPLBACKEND=agg gave a notebook without pictures, and the kernel ran the code of another clone.

    A profile of IPython rounded tables and drew SVG, a matplotlibrc made figures green; nothing was said.
    """
    folder = sources(DRAWS)

    def stored():
        notebook.run_notebook(NAME)
        paths = sorted((folder / "small").rglob("*.*"))
        return {path.name: path.read_bytes() for path in paths if path.name != "manifest.json"}

    plain = stored()
    shown = [output.data for output in nbformat.read(folder / f"small/{NAME}.ipynb", 4).cells[-1].outputs[1:]]
    assert [kind for kinds in shown for kind in kinds if kind.startswith(("image", "text/h"))] == [
        "text/html",
        "image/png",
    ]
    profile = tmp_path / "home/.ipython/profile_default"
    (profile / "startup").mkdir(parents=True)
    startup = "import pandas\npandas.set_option('display.precision', 1)\nprint('hello')\n"
    (profile / "startup/a.py").write_text(startup)
    (profile / "ipython_kernel_config.py").write_text('c.InlineBackend.figure_formats = {"svg"}\n')
    (tmp_path / "startup.py").write_text(startup)
    look = "savefig.facecolor: green\nlines.linewidth: 9\nfigure.dpi: 30\nno.such.key: 1\nbackend: svg\n"
    (tmp_path / "home/.config/matplotlib").mkdir(parents=True)
    for place in ("home/.config/matplotlib/matplotlibrc", "home/matplotlibrc"):
        (tmp_path / place).write_text(look)
    (notebook_files.SOURCES / "matplotlibrc").write_text("lines.linewidth: 9\n")
    (tmp_path / "clone/mee_utils").mkdir(parents=True)
    (tmp_path / "clone/mee_utils/__init__.py").write_text("raise ImportError('the code of another clone')\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "startup.py"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "clone"))
    for backend, settings, profiles in (
        ("agg", "", ""),
        ("nonsense", str(tmp_path / "home/matplotlibrc"), str(profile.parent)),
    ):
        monkeypatch.setenv("MPLBACKEND", backend)
        monkeypatch.setenv("MATPLOTLIBRC", settings)
        monkeypatch.setenv("IPYTHONDIR", profiles)
        assert stored() == plain


CONFLICT = "<<<<<<< HEAD\n{}\n=======\n[]\n>>>>>>> theirs\n"


def test_a_notebook_that_is_none_is_one_line(sources):
    folder = sources()
    path = notebook.run_notebook(NAME)
    for content in (CONFLICT, "", "[]", "{}", '{"cells": 3', '{"nbformat": 4}'):
        path.write_text(content)
        with pytest.raises(
            MeeError, match=r"cannot be read as a notebook .*: restore it with git checkout"
        ) as error:
            notebook.run_notebook(NAME)
        assert "\n" not in str(error.value) and path.read_text() == content
    assert folder.exists()


def test_a_failed_notebook_is_kept_aside_and_the_last_good_one_stays(sources):
    folder = sources(SAVES)
    notebook.run_notebook(NAME)
    good = {file: file.read_bytes() for file in (folder / "small").rglob("*.*")}
    sources(SAVES.replace("[limit]", "[0]") + "\nraise ValueError('the reason')")
    failed = rf"{NAME} failed in cell \d.*ValueError: the reason.*build/failed/{NAME}.ipynb"
    with pytest.raises(MeeError, match=failed):
        notebook.run_notebook(NAME)
    assert good == {file: file.read_bytes() for file in (folder / "small").rglob("*.*")}
    assert "the reason" in (folder / f"build/failed/{NAME}.ipynb").read_text()
    sources(SAVES + "\nimport os\nos.kill(os.getpid(), 9)")
    with pytest.raises(MeeError, match=r"its kernel was killed, .* Finished results are untouched"):
        notebook.run_notebook(NAME)
    assert good == {file: file.read_bytes() for file in (folder / "small").rglob("*.*")}
    sources(SAVES.replace("run.finish()", ""))
    with pytest.raises(MeeError, match="never called finish"):
        notebook.run_notebook(NAME)
    assert good == {file: file.read_bytes() for file in (folder / "small").rglob("*.*")}


def test_two_runs_store_the_same_bytes(sources):
    sources()
    stored = [notebook.run_notebook(NAME).read_bytes() for _ in range(2)]
    assert stored[0] == stored[1] and b"papermill" not in stored[0]


def test_edits_made_in_jupyterlab_are_not_lost(sources):
    folder = sources()
    path = notebook.run_notebook(NAME)
    edited = nbformat.read(path, as_version=4)
    edited.cells[-1].source = "print('edited')"
    nbformat.write(edited, path)
    before = path.read_bytes()
    with pytest.raises(MeeError, match="was edited") as error:
        notebook.run_notebook(NAME)
    assert path.read_bytes() == before
    program, _, *arguments = shlex.split(str(error.value).split("edited: ")[1].split(" saves")[0])
    assert program == sys.executable  # what a user has on the PATH may be another environment's
    carry_over(shlex.join(arguments[1:]))
    source = (notebook_files.SOURCES / f"{NAME}.py").read_text()
    assert "print('edited')" in source and source.startswith("# %% [markdown]\n# # A notebook\n")
    assert notebook_files.declared_needs(notebook_files.read_source(NAME)) == ["traces", "claims"]
    notebook.run_notebook(NAME)  # nothing is lost any more
    sources("print('a later change of the source')")
    notebook.run_notebook(NAME)
    assert folder.exists()


def carry_over(arguments):
    """The command that the runner names."""
    from jupytext.cli import jupytext

    jupytext(["--quiet", *shlex.split(arguments)])


@pytest.mark.parametrize("name", notebook_files.notebook_names())
def test_carrying_over_what_nobody_edited_changes_nothing(name, tmp_path):
    nbformat.write(notebook_files.read_source(name), tmp_path / "a.ipynb")
    carry_over(f"--opt notebook_metadata_filter=-all --to py:percent {tmp_path / 'a.ipynb'}")
    assert (tmp_path / "a.py").read_text() == (notebook_files.SOURCES / f"{name}.py").read_text()


@pytest.mark.parametrize("cell", ["limit = 3 * 2", "import os", "limit += 1"])
def test_parameters_are_flat_literals(sources, cell):
    sources()
    (notebook_files.SOURCES / f"{NAME}.py").write_text(f'# %% tags=["parameters"]\n{cell}\n')
    with pytest.raises(MeeError, match="no assignment of a literal"):
        notebook_files.declared_parameters(notebook_files.read_source(NAME))


def test_a_notebook_says_what_it_needs(sources):
    """Before, its text was searched: a read that moved into a function was lost without a word."""
    sources("# experiment.classifiers( and read_measured( are words here")
    path = notebook_files.SOURCES / f"{NAME}.py"
    assert notebook_files.declared_needs(notebook_files.read_source(NAME)) == ["traces", "claims"]
    before = notebook_files.source_digest(notebook_files.read_source(NAME))
    path.write_text(path.read_text().replace('needs=["traces", "claims"] ', ""))
    source = notebook_files.read_source(NAME)
    assert notebook_files.declared_needs(source) == []
    assert notebook_files.source_digest(source) == before, "so that no stored notebook is stale"
    path.write_text(path.read_text().replace('tags=["parameters"]', 'needs=["trace"] tags=["parameters"]'))
    with pytest.raises(MeeError, match='need of a notebook "trace": did you mean "traces"'):
        notebook_files.declared_needs(notebook_files.read_source(NAME))


def test_unknown_notebooks_and_assignments():
    for wrong in ("01_monotonic", "01", "../notebooks/01_monotonicity", ""):
        with pytest.raises(MeeError, match="Unknown notebook") as error:
            notebook_files.read_source(wrong)
        assert not wrong.startswith("01") or 'did you mean "01_monotonicity"' in str(error.value)
    assert parameters.parse_assignments(["limit=20", "names=['a']", "profile=real"]) == {
        "limit": 20,
        "names": ["a"],
        "profile": "real",
    }
    with pytest.raises(MeeError, match="name=value"):
        parameters.parse_assignments(["limit"])


@pytest.mark.parametrize("value", ["{[1]: 2}", "{{}}", "[" * 300, "-" * 9999 + "1", "9" * 5000, "1 +", "'"])
def test_a_value_that_is_no_literal_is_one_line(sources, value):
    """Before, a TypeError out of `ast.literal_eval`."""
    assert parameters.parse_assignments([f"limit={value}"]) == {"limit": value}
    assert main(["notebook", "01_monotonicity", "-p", f"limit={value}"]) == 2


def test_what_a_kernel_cut_in_pieces_is_stored_as_one_and_a_folded_cell_stays_folded():
    def stream(name, text):
        return nbformat.v4.new_output("stream", name=name, text=text)

    figure = nbformat.v4.new_output("display_data", data={"text/plain": "f"})
    pieces = [("stdout", "a\n"), ("stdout", "b\n"), None, ("stdout", "c\n"), ("stderr", "d\n")]
    outputs = [stream(*piece) if piece else figure for piece in pieces]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(1)", outputs=outputs)])
    book.cells[0].metadata["tags"] = ["hide-input"]
    notebook._normalize(book, None)
    assert book.cells[0].metadata == {"tags": ["hide-input"], "jupyter": {"source_hidden": True}}
    assert [output.get("text") for output in book.cells[0].outputs] == ["a\nb\n", None, "c\n", "d\n"]


def save(folder, value):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    run = Run(NAME, "small", {"limit": 3}, folder)
    drawn = pd.DataFrame({"x": [1, 2], "y": [0.123456, value]})
    figure, axis = pyplot.subplots()
    axis.plot(drawn.x, drawn.y)
    run.save_figure(figure, "f", drawn)
    run.save_table(drawn, "t")
    run.finish()
    pyplot.close(figure)
    return folder


def test_figures_and_tables_are_the_same_bytes_on_every_run(tmp_path, monkeypatch):
    first = save(tmp_path / "a", 0.5)
    monkeypatch.setenv("MEE_PDF", "1")
    second = save(tmp_path / "b", 0.5)
    for name in ("f.png", "f.csv", "t.csv"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    assert (second / "f.pdf").exists() and not (first / "f.pdf").exists()
    assert (first / "t.csv").read_text() == "x,y\n1,0.1235\n2,0.5000\n"
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (first, second)]
    assert manifests[0]["files"] == manifests[1]["files"] and set(manifests[0]["files"]) == {
        "f.png",
        "f.csv",
        "t.csv",
    }
    assert manifests[0]["parameters"] == {"limit": 3} and 50 < manifests[0]["peak_memory_megabytes"] < 50_000


def test_memory_is_in_megabytes_on_a_mac_too(monkeypatch):
    from mee_utils.companion import results

    here = results.peak_megabytes()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert results.peak_megabytes() == here // 1024


def test_the_digest_line_changes_with_the_data(tmp_path, capsys):
    save(tmp_path / "a", 0.5)
    save(tmp_path / "b", 0.6)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("f:")]
    assert lines[0] != lines[1] and lines[0].startswith("f: 2 rows x 2 columns, 0.1235 to 0.5000, sha256 ")


def test_in_a_notebook_the_digest_is_an_output_that_pages_do_not_show(tmp_path, monkeypatch, capsys):
    shown = []

    def display(data, raw):
        shown.append({"data": data})

    shell = SimpleNamespace(user_ns={})
    kernel = SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    save(tmp_path, 0.5)
    lines = noted_digests(shown).splitlines()
    assert lines[0].startswith("f: 2 rows x 2 columns") and lines[-1].startswith("written to ")
    assert all(list(output["data"]) == [DIGEST] for output in shown) and not capsys.readouterr().out


def test_a_figure_cell_after_the_last_one_works(tmp_path, monkeypatch):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    run = Run(NAME, "small", {})
    run.save_table(pd.DataFrame({"x": [1.0]}), "t")
    run.finish()
    run.save_table(pd.DataFrame({"x": [2.0]}), "t")
    run.finish()
    (table,) = (tmp_path / f"build/trials/small/{NAME}").glob("*/t.csv")
    assert table.read_text() == "x\n2.0000\n"


@pytest.mark.parametrize("name", ["../../x", "", "a/b", ".hidden", "/tmp/x"])
def test_names_that_leave_the_folder_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    with pytest.raises(MeeError, match="is no name for a result"):
        Run(NAME, "small", {}).save_table(pd.DataFrame({"x": [1.0]}), name)
    with pytest.raises(MeeError, match="is no name for a result"):
        Run(name, "small", {})
    assert not list(tmp_path.rglob("*.csv"))


def test_results_are_replaced_at_once_or_not_at_all(tmp_path):
    folder = tmp_path / "small" / NAME
    with staged(folder) as new:
        save(new, 0.5)
    before = (folder / "t.csv").read_text()
    with pytest.raises(KeyboardInterrupt), staged(folder) as new:
        save(new, 0.6)
        raise KeyboardInterrupt
    assert (folder / "t.csv").read_text() == before
    with staged(folder) as first, staged(folder) as second:  # two runs at once
        save(first, 0.7)
        save(second, 0.8)
    assert "0.7" in (folder / "t.csv").read_text() and [p.name for p in folder.parent.iterdir()] == [NAME]


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, monkeypatch, capsys):
    blocked = tmp_path / "figures"
    blocked.write_text("a file where a folder should be")
    monkeypatch.setenv("MEE_OUTPUT", str(blocked))
    with pytest.raises(NotADirectoryError, match=str(blocked)):
        Run(NAME, "small", {})
    assert main(["notebook", "08_results"]) == 2
    said = capsys.readouterr().err
    assert str(blocked) in said and said.endswith("set MEE_OUTPUT.\n") and said.count("\n") == 1


def test_claims_that_are_missing_name_their_notebook(tmp_path, monkeypatch):
    """Before, 08 judged fewer statements where the tables of a notebook were missing, without a word."""
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    with pytest.raises(MeeError, match="No notebook has judged claims: run make reproduce PROFILE=made_up"):
        result_tables.claims_of("made_up")
    names = [name for name in notebook_files.notebook_names() if name in statements.NOTEBOOKS]
    names.remove("08_results")

    def store(name, *claims):
        (tmp_path / "made_up" / name).mkdir(parents=True)
        table = pd.DataFrame({"claim": claims, "task": "x"})
        table.to_csv(tmp_path / "made_up" / name / "claims.csv", index=False)

    for name in names:
        if name not in ("05_mee_classifiers", "10_confidence"):
            store(name, name, "has moved") if name == "06_survey_rules" else store(name, name)
    stored, missing = result_tables.claims_of("made_up")
    assert missing == ["05_mee_classifiers", "10_confidence"]
    assert set(stored.notebook) == set(names) - set(missing)
    assert stored.set_index("claim").notebook["has moved"] == "06_survey_rules"
    store("05_mee_classifiers", "05_mee_classifiers")
    store("10_confidence", "10_confidence", "has moved")
    stored, missing = result_tables.claims_of("made_up")
    assert not missing and list(dict.fromkeys(stored.notebook)) == names
    assert stored.set_index("claim").notebook["has moved"] == "10_confidence", "and it counts once"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "figures").glob("*/*/manifest.json")), ids=lambda p: str(p.parent)
)
def test_committed_results_are_those_of_their_manifest(path):
    files = json.loads(path.read_text())["files"]
    for name, digest in files.items():
        assert sha256((path.parent / name).read_bytes()).hexdigest() == digest, name
    assert {found.name for found in path.parent.iterdir() if found.suffix != ".pdf"} == {
        "manifest.json",
        *(name for name in files if not name.endswith(".pdf")),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "--profile", "smal"], 'error: Unknown profile "smal"'),
        (["status", "--profile", "missing.yaml"], "missing.yaml does not exist: give the file of a profile"),
        (["pin", "--profile", "missing.yaml"], "missing.yaml does not exist: give the file of a profile"),
        (["reproduce", "--profile", "real"], "give their folder, as in DATA="),
        (["reproduce", "--cores", "0"], "--cores 0: give 1 or more"),
        (["reproduce", "--cores", "-3"], "--cores -3: give 1 or more"),
        (["reproduce", "--cores", "two"], "invalid int value: 'two'"),
        (["reproduc"], "invalid choice: 'reproduc'"),
        (["notebook", "01"], 'did you mean "01_monotonicity"'),
        (["notebook", "01_monotonicity", "-p", "limt=3"], 'error: Parameters: Unknown key "limt"'),
        (
            ["notebook", "01_monotonicity", "-p", "limit=0"],
            "Parameters: limit: Input should be greater than or equal to 5",
        ),
        (
            ["notebook", "01_monotonicity", "-p", "max_new_tokens=1"],
            "Parameters: max_new_tokens: Input should be greater than or equal to 8",
        ),
        (["train", "--model", "clam"], 'error: Unknown model "clam": did you mean "calm"'),
        (["job", "trace", "--model", "clam"], 'error: Unknown model "clam": did you mean "calm"'),
        (["job", "tables"], "error: job tables: give --name measured or --name retrained"),
        (
            ["job", "settings", "--model", "calm", "--task", "translating"],
            "Profile small has no job settings of model calm, task translating, seed 0: its models are",
        ),
        (["job", "classifiers", "--model", "clam"], "Profile small has no job classifiers of model clam"),
        (
            ["job", "seeds", "--model", "calm", "--seed", str(2**70)],
            f"Profile small has no job seeds of model calm, task all, seed {2**70}: its models are",
        ),
    ],
)
def test_the_command_line_says_it_in_one_line(capsys, arguments, message):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1


def test_an_installation_without_a_checkout_says_so(capsys, monkeypatch, tmp_path):
    from mee_utils.companion import cli as commands

    monkeypatch.setattr(commands, "ROOT", tmp_path)
    assert main(["status"]) == 2
    assert "is no checkout: clone the repository" in capsys.readouterr().err


STUB = """
rule all:
    input: "second"

rule first:
    output: "first"
    shell: "{sys.executable} -c '{config[job]}' && touch first"

rule second:
    input: "first"
    output: "second"
    shell: "touch second"
"""
JOB = "import time; from mee_utils.companion.running import pipeline; "
JOB += "pipeline.end_with_pipeline(); open({!r}, 'w'); time.sleep({})"
MAKE = """
import os, sys, pathlib
from mee_utils.companion.cli import main
from mee_utils.companion.running import pipeline
pipeline.SNAKEFILE = pathlib.Path(sys.argv[1])
pipeline._check = lambda profile, cores: None
pipeline.measure = lambda *_: pipeline.make("all", "small", None, 1, sys.argv[2])
sys.exit(main(["measure"]))
"""


@pytest.fixture
def stub(tmp_path):
    """Starts `make` on a Snakefile of two short rules; the first sleeps for some seconds."""
    (tmp_path / "Snakefile").write_text("import sys\n" + STUB)
    begun = tmp_path / "begun"

    def start(seconds, **options):
        job = JOB.format(str(begun), seconds).replace("'", '"')
        command = [sys.executable, "-c", MAKE, str(tmp_path / "Snakefile"), f"job={job}"]
        known = os.environ | {"MEE_OUTPUT": str(tmp_path)}
        return subprocess.Popen(command, cwd=ROOT, env=known, stderr=subprocess.PIPE, text=True, **options)

    start.begun = begun
    start.build = tmp_path / "build"
    return start


def wait_until(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def test_a_second_pipeline_in_the_same_folder_is_refused_however_close_they_start(stub):
    """Before, two that started within seconds both ran, and the loser deleted the winner's mark."""
    both = [stub(4), stub(4)]
    said = sorted(process.communicate()[1] for process in both)
    assert sorted(process.returncode for process in both) == [0, 2], said
    assert "error: Another make reproduce is running here: wait for it.\n" in said
    third = stub(0)
    assert third.wait() == 0, third.stderr.read()
    third.stderr.close()


@pytest.mark.parametrize(
    ("snakefile", "reason"),
    [
        ('raise ValueError("no such profile")\n', "ValueError in file .*no such profile"),
        ('rule all:\n    input: "lost"\n', "MissingInputException in rule all .*lost"),
    ],
)
def test_what_ends_snakemake_itself_is_said(snakefile, reason, tmp_path, monkeypatch):
    """Before, the error spoke of lines above it, and there were none."""
    with pytest.raises(MeeError, match=f"^Snakemake could not go on: {reason}.*run the same command"):
        make_all(snakefile, tmp_path, monkeypatch)


def test_a_job_that_fails_says_so_itself(tmp_path, monkeypatch, capfd):
    snakefile = 'rule all:\n    output: "lost"\n    shell: "echo error: no corpus; exit 2"\n'
    with pytest.raises(MeeError, match=r"^A part failed; the lines above name it\. What had finished"):
        make_all(snakefile, tmp_path, monkeypatch)
    assert capfd.readouterr() == ("error: no corpus\n", "")


def make_all(snakefile, folder, monkeypatch):
    """Makes the rule `all` of a Snakefile."""
    monkeypatch.setenv("MEE_OUTPUT", str(folder))
    monkeypatch.setattr(pipeline, "SNAKEFILE", folder / "Snakefile")
    monkeypatch.setattr(pipeline, "_check", lambda profile, cores: None)
    pipeline.SNAKEFILE.write_text(snakefile)
    pipeline.make("all", "small", None, 1)


def test_snakemake_that_runs_by_hand_is_not_disturbed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    locks = tmp_path / "build/.snakemake/locks"
    locks.mkdir(parents=True)
    (locks / "0.input.lock").touch()
    assert main(["measure"]) == 2
    said = capsys.readouterr().err
    assert said == f"error: Snakemake is running here: wait for it (if it is not, delete {locks}).\n"
    assert list(locks.iterdir())


def test_what_a_killed_pipeline_left_behind_is_cleared(tmp_path, monkeypatch):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    build = tmp_path / "build"
    gone = tmp_path / f"small/.{NAME}.abcd.partial/{NAME}"
    for path in (gone, build / ".snakemake/locks/0.input.lock"):
        path.mkdir(parents=True)
    (build / "pipeline.lock").write_text(platform.node())
    with pipeline._the_only_pipeline(build), staged(tmp_path / "small" / NAME):
        assert not any(path.exists() for path in (gone, build / ".snakemake/locks"))
        with pytest.raises(MeeError, match="Another make reproduce"), pipeline._the_only_pipeline(build):
            pass
        folders.clear(tmp_path)
    assert (build / "pipeline.lock").read_text() == "" and (tmp_path / "small" / NAME).exists()


def children(group):
    """Processes of a session, by /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[3] == str(group) and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are counted in /proc")
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_interrupted_pipeline_leaves_no_process_and_says_one_line(stub, sign):
    """Afterwards the same command goes on, also after a kill that cannot be answered.

    Before, jobs went on for minutes after a kill that nobody had asked for, since a zombie counts as alive.
    """

    def listening():
        return signal.signal(sign, signal.SIG_DFL) if sign != signal.SIGKILL else None

    process = stub(100, preexec_fn=listening)  # in the background SIGINT is off
    wait_until(stub.begun.exists)
    (session,) = map(int, _sessions_of(process.pid))
    process.send_signal(sign)
    if sign != signal.SIGKILL:
        process.wait()
        error = process.stderr.read()
        assert error.count("\n") == 1 and error.startswith("interrupted.") and process.returncode == 130
    wait_until(lambda: children(session) == [], 30)
    process.wait()
    process.stderr.close()
    again = stub(0)
    assert again.wait() == 0, again.stderr.read()
    again.stderr.close()
    assert (stub.build / "second").exists() and (stub.build / "pipeline.lock").read_text() == ""


def test_after_a_restart_of_the_machine_the_same_command_goes_on(stub):
    """Every process of the pipeline is killed at once."""
    process = stub(100)
    wait_until(stub.begun.exists)
    (session,) = map(int, _sessions_of(process.pid))
    process.kill()
    os.killpg(session, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    assert list((stub.build / ".snakemake/locks").iterdir())
    again = stub(0)
    assert again.wait() == 0, again.stderr.read()
    again.stderr.close()


def _sessions_of(parent):
    """The children of a process, each the leader of a session."""
    return Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
