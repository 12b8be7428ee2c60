"""A profile's exit classifiers: all are trained once, an interrupted run goes on, and what belongs to something else is made anew."""

import os

import pytest

from mee_utils import train_exits
from mee_utils.companion import Companion, checkpoint_folder
from mee_utils.exits.classifiers import load_classifier
from mee_utils.models import load_model
from mee_utils.profiles import load_profile
from mee_utils.train_exits import Job


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Profile `small` with three quick jobs, and a folder of its own."""
    profile = load_profile("small")
    quick = profile.model_copy(update={"classifiers": profile.classifiers.model_copy(update={"tokens": 40, "epochs": 1, "seeds": 2})})
    chosen = [Job("calm", "linear", "consistency", 0), Job("calm", "linear", "consistency", 1), Job("calm", "low_rank_three", "correctness", 0)]
    monkeypatch.setattr(train_exits, "jobs", lambda profile: chosen)
    monkeypatch.setattr(train_exits, "classifier_folder", lambda profile: tmp_path / "classifiers")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    return quick


@pytest.fixture(scope="module")
def calm():
    return load_model(checkpoint_folder(load_profile("small"), "calm"), dtype="float64", name="calm")


def learned(found, model):
    """Weights, settings and learning curves (the files themselves order their metadata at random)."""
    loaded = {job: load_classifier(path, model) for job, path in found.items()}
    return {job: (one.key(), one.about) for job, one in loaded.items()}


def test_every_job_of_a_profile_is_named_once():
    profile = load_profile("small")
    found = train_exits.jobs(profile)
    assert len(found) == len(set(found)) == profile.classifiers.seeds * (len(train_exits.VARIANTS) + 2 * len(train_exits.ABLATED))
    assert len({job.path(train_exits.classifier_folder(profile)) for job in found}) == len(found)
    assert train_exits.VARIANTS["wide_hidden"].options(96) == {"hidden": 288} and train_exits.VARIANTS["lstm"].options(96) == {"hidden": 48}


def test_what_is_there_is_kept_and_what_is_missing_or_foreign_is_made(small, calm):
    first = learned(train_exits.train_classifiers(small), calm)
    folder = train_exits.classifier_folder(small)
    assert sorted(path.name for path in folder.iterdir()) == sorted(job.path(folder).name for job in first), "traces are gone"
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    train_exits.train_classifiers(small)
    assert times == {path: path.stat().st_mtime_ns for path in folder.iterdir()}, "nothing was made again"
    gone, broken, kept = (job.path(folder) for job in first)
    gone.unlink()
    broken.write_bytes(b"half")
    again = train_exits.train_classifiers(small)
    assert learned(again, calm) == first, "the same seeds learn the same"
    assert kept.stat().st_mtime_ns == times[kept] and broken.stat().st_mtime_ns != times[broken]
    longer = small.model_copy(update={"classifiers": small.classifiers.model_copy(update={"epochs": 2})})
    assert not {one[0] for one in learned(train_exits.train_classifiers(longer), calm).values()} & {one[0] for one in first.values()}


def test_an_interruption_keeps_what_was_finished(small, monkeypatch):
    from mee_utils.exits import training

    true, calls = training.train_classifier, []

    def failing(*given, **options):
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return true(*given, **options)

    monkeypatch.setattr(training, "train_classifier", failing)
    with pytest.raises(KeyboardInterrupt):
        train_exits.train_classifiers(small)
    found = train_exits.train_classifiers(small)
    assert len(calls) == 2 + 2 and all(path.exists() for path in found.values())


def test_several_processes_give_the_same_classifiers(small, calm, monkeypatch, tmp_path):
    alone = learned(train_exits.train_classifiers(small), calm)
    monkeypatch.setattr(train_exits, "classifier_folder", lambda profile: tmp_path / "together")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    together = learned(train_exits.train_classifiers(small), calm)
    assert list(alone.values()) == list(together.values())


def test_a_notebook_gets_them_by_name(small, calm):
    companion = Companion.reader("small")
    companion.profile = small
    models = {"calm": calm}
    found = companion.classifiers(models)
    assert {key: len(trained) for key, trained in found.items()} == {
        ("calm", "linear", "consistency"): 2, ("calm", "low_rank_three", "correctness"): 1,
    }  # fmt: skip
    one = found["calm", "low_rank_three", "correctness"][0]
    assert one.about["target"] == "correctness" and one.blocks == 3 and [point["epoch"] for point in one.about["curve"]] == [1]
    assert {"loss", "held_out_loss"} < set(one.about["curve"][0])
    path = Job("calm", "linear", "consistency", 0).path(train_exits.classifier_folder(small))
    assert load_classifier(path, models["calm"]).key() == found["calm", "linear", "consistency"][0].key()
