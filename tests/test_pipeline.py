"""The Snakefile: no model that is there is made again or deleted, and what is planned is what is missing."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import papers
import pytest

from mee_utils import MeeError
from mee_utils.companion.profiles import load_profile
from mee_utils.companion.result_tables import MEASURED
from mee_utils.companion.running import pipeline
from mee_utils.companion.running.jobs import folder_of

ROOT = Path(__file__).parent.parent
MODELS = load_profile("small").training.models
PLAN = ["-m", "snakemake", "--snakefile", "notebooks/Snakefile", "--cores", "1", "--dry-run"]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A checkout with a user's own profile, whose models are those of `small`."""
    clone = papers.Clone(tmp_path_factory.mktemp("pipeline"))
    clone.write("mine", clone.read("small") | {"name": "mine"})
    for name in MODELS:
        source = ROOT / "mee_utils/checkpoints/small" / name
        folder = clone.root / "mee_utils/checkpoints/mine" / name
        folder.mkdir(parents=True)
        for file in ("manifest.json", "model.safetensors"):
            shutil.copy(source / file, folder / file)
    return clone


def planned(clone, target, triggers=pipeline.BY_RECORDS):
    """The models that would be trained, and the files that Snakemake may delete."""
    build = Path(clone.environment["MEE_OUTPUT"]) / "build"
    command = [*PLAN, "--directory", str(build), *triggers, "--config", "profile=mine", "--", target]
    done = clone.python(*command)
    assert done.returncode == 0, done.stderr[-3000:]
    outputs = [path for line in re.findall(r"output: (.*)", done.stdout) for path in line.split(", ")]
    assert all(path.startswith("records/") for path in outputs), outputs
    return sorted(re.findall(r"rule model:.*?wildcards: model=(\w+)", done.stdout, re.DOTALL))


@pytest.mark.parametrize("target", ["classifiers", "all", "measured"])
def test_no_model_that_is_there_is_trained_again(clone, target):
    """Before, `make train` twice began every training from step 0, and deleted the manifests first."""
    assert planned(clone, target) == []
    assert planned(clone, target, triggers=()) == []  # also with Snakemake's own rules for what is stale


def test_one_that_is_missing_is_trained_and_no_other(clone):
    manifest = clone.root / "mee_utils/checkpoints/mine/free/manifest.json"
    content = manifest.read_text()
    manifest.unlink()
    assert planned(clone, "classifiers") == ["free"]
    manifest.write_text(content)
    assert planned(clone, "classifiers") == []


def test_what_the_backbones_started_from_is_not_needed_any_more(clone):
    folder = clone.root / "mee_utils/checkpoints/mine"
    for name in ("pretrained", "base"):
        (folder / name).rename(folder / f"_{name}")
    try:
        assert planned(clone, "all") == []
        (folder / "free").rename(folder / "_free")
        assert planned(clone, "classifiers") == ["base", "free"]
    finally:
        for path in folder.glob("_*"):
            path.rename(path.with_name(path.name[1:]))
    assert json.loads((folder / "base/manifest.json").read_text())["model"] == "base"


def test_jobs_run_the_code_of_their_checkout_wherever_it_writes(clone, tmp_path):
    """Before, they ran the clone that is installed, and braces in a path were wildcards of Snakemake."""
    output = tmp_path / "w {x} {model}/out"
    installed = tmp_path / "installed/mee_utils"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("raise ImportError('the code of another clone')\n")
    command = [*PLAN, "--printshellcmds", "--directory", str(output / "build"), "--config", "profile=mine"]
    command[command.index("notebooks/Snakefile")] = str(clone.root / "notebooks/Snakefile")
    known = clone.environment | {"MEE_OUTPUT": str(output), "PYTHONPATH": str(installed.parent)}
    done = subprocess.run(
        [sys.executable, *command, "--", "all"],
        cwd=tmp_path,
        env=known,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    jobs = re.findall("Shell command: (.*)", done.stdout)
    (begins,) = {job.split(" ")[0] for job in jobs[:-1]}
    for known, path in {"": f"{clone.root}", "x": f"{clone.root}:x"}.items():  # Snakemake's shell: bash -u
        environment = {"PATH": os.environ["PATH"]} | ({"PYTHONPATH": known} if known else {})
        said = subprocess.check_output(["bash", "-euc", f"{begins} printenv PYTHONPATH"], env=environment)
        assert len(jobs) > 10 and said.decode().strip() == path
    assert " records/mine/notebook-" in done.stdout


@pytest.mark.parametrize(("command", "part"), [(pipeline.measure, MEASURED), (pipeline.reproduce, "traces")])
def test_force_deletes_nothing_before_it_can_be_made_again(tmp_path, monkeypatch, command, part):
    """Before, FORCE=1 deleted hours of measurements and then said that corpora are missing."""
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    monkeypatch.setattr(pipeline, "_run", lambda command, lock: 0)
    kept = folder_of(load_profile("real"), part) / "hours.csv"
    kept.parent.mkdir(parents=True)
    kept.touch()
    with pytest.raises(MeeError, match="is no folder"):
        command("real", str(tmp_path / "nowhere"), 1, force=True)
    assert kept.exists()
    with pipeline._the_only_pipeline(tmp_path / "build"), pytest.raises(MeeError, match="Another make"):
        command("small", None, 1, force=True)
    assert kept.exists()
    command("small", None, 1, force=True)
    assert kept.exists()  # of another profile
    of_small = folder_of(load_profile("small"), part)
    of_small.mkdir(parents=True)
    command("small", None, 1, force=True)
    assert not of_small.exists()


def test_a_gpu_gets_one_job_at_a_time_unless_somebody_asks_for_more(tmp_path, monkeypatch):
    paper = load_profile("paper")
    monkeypatch.setattr(pipeline, "NVIDIA", tmp_path / "nvidiactl")
    assert pipeline._at_a_time(paper, 14) == ["--cores", "14"], "there is no GPU"
    pipeline.NVIDIA.touch()
    assert pipeline._at_a_time(paper, None)[2:] == ["--resources", "gpu=1"]
    assert pipeline._at_a_time(paper, 14) == ["--cores", "14", "--resources", "gpu=14"]
    assert pipeline._at_a_time(load_profile("small"), 2) == ["--cores", "2"], "small computes on the CPU"
