"""A profile's exit classifiers: all are trained once, an interrupted run goes on, and what belongs to
something else is made anew.
"""

import pytest
import torch
from safetensors.torch import load_file

from mee_utils.companion import artifacts as train_exits
from mee_utils.companion.artifacts import ClassifierSpec
from mee_utils.companion.catalogue import ABLATED, SURVEY_VARIANTS, VARIANTS
from mee_utils.companion.experiment import Experiment
from mee_utils.companion.inputs import checkpoint_folder
from mee_utils.companion.profiles import load_profile
from mee_utils.exits.classifiers import load_classifier
from mee_utils.models.loading import load_model
from mee_utils.traces import tracing


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Profile `small` with three quick specs, and a folder of its own."""
    profile = load_profile("small")
    quick = profile.classifiers.model_copy(update={"tokens": 40, "epochs": 1, "seeds": 2})
    chosen = [
        ClassifierSpec("calm", "linear", "consistency", 0),
        ClassifierSpec("calm", "linear", "consistency", 1),
        ClassifierSpec("calm", "low_rank_three", "correctness", 0),
    ]
    monkeypatch.setattr(train_exits, "classifier_specs", lambda profile: chosen)
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    return profile.model_copy(update={"classifiers": quick})


@pytest.fixture(scope="module")
def calm():
    return load_model(checkpoint_folder(load_profile("small"), "calm"), dtype="float64", name="calm")


def learned(paths, model):
    """Weights, settings and learning curves (the files themselves order their metadata at random)."""
    loaded = {spec: load_classifier(path, model) for spec, path in paths.items()}
    return {spec: (one.key(), one.metadata) for spec, one in loaded.items()}


def test_every_job_of_a_profile_is_named_once():
    profile = load_profile("small")
    specs = train_exits.classifier_specs(profile)
    swept, survey = len(VARIANTS) + 2 * len(ABLATED), len(SURVEY_VARIANTS)
    *several, distilled, heads = specs
    others = len(profile.training.backbones) - 1  # they get the rule over predictions
    assert len(specs) == len(set(specs)) == profile.classifiers.seeds * swept + others + survey + 2
    assert distilled == ClassifierSpec("calm", "past_future", "distilled", 0) and survey == 5
    assert heads == ClassifierSpec("vanilla", "exit_heads", "correctness", 0)
    last = several[-survey:]
    assert {(spec.model, spec.target, spec.seed) for spec in last} == {("calm", "consistency", 0)}
    assert {spec.variant for spec in last} == set(SURVEY_VARIANTS)
    assert len({spec.path(profile) for spec in specs}) == len(specs)
    options = [VARIANTS[name].options(96) for name in ("wide_hidden", "lstm")]
    assert options == [{"hidden": 288}, {"hidden": 48}]


@pytest.mark.parametrize("name", ["question_answering", "summarization", "translation"])
def test_as_few_examples_as_have_so_many_tokens_are_taken_and_few_more_are_drawn(monkeypatch, name):
    """Before, up to four times as many were drawn: of synthetic validation examples, fifty for each."""
    profile = load_profile("small")
    limits = []
    load_tasks = train_exits.load_tasks

    def counted(profile, part, limit, name):
        limits.append(limit)
        return load_tasks(profile, part, limit, name)

    monkeypatch.setattr(train_exits, "load_tasks", counted)
    for wanted in (1, 17, 900):
        task = train_exits.with_tokens(profile, "train", name, wanted)
        *before, _ = lengths = train_exits._target_lengths(profile, task)
        assert sum(before) < wanted <= sum(lengths)
        assert max(limits) <= max(1.3 * len(task), wanted // 16) + 2
        limits.clear()


def test_what_is_there_is_kept_and_what_is_missing_or_foreign_is_made(small, calm):
    paths = train_exits.train_classifiers(small)
    first, times = learned(paths, calm), {path: path.stat().st_mtime_ns for path in paths.values()}
    folder = next(iter(times)).parent
    assert set(folder.iterdir()) == set(times), "traces are gone"
    train_exits.train_classifiers(small)
    assert times == {path: path.stat().st_mtime_ns for path in folder.iterdir()}, "nothing was made again"
    gone, broken, kept = paths.values()
    gone.unlink()
    broken.write_bytes(b"half")
    assert learned(train_exits.train_classifiers(small), calm) == first, "the same seeds learn the same"
    assert kept.stat().st_mtime_ns == times[kept] and broken.stat().st_mtime_ns != times[broken]
    longer = small.model_copy(update={"classifiers": small.classifiers.model_copy(update={"epochs": 2})})
    again = learned(train_exits.train_classifiers(longer), calm)
    assert not {one[0] for one in again.values()} & {one[0] for one in first.values()}


def test_shipped_ones_are_taken_unless_they_belong_to_something_else(small, calm, monkeypatch, tmp_path):
    monkeypatch.setattr(ClassifierSpec, "shipped", lambda spec, profile: tmp_path / "shipped" / spec.file)
    paths = train_exits.train_classifiers(small)
    first = learned(paths, calm)
    for spec in train_exits.classifier_specs(small):
        train_exits.copy_file(spec.path(small), spec.shipped(small))
    for path in paths.values():
        path.unlink()
    monkeypatch.setattr(train_exits, "_train_all", lambda *_: pytest.fail("trained in spite of all"))
    assert learned(train_exits.train_classifiers(small), calm) == first
    longer = small.model_copy(update={"classifiers": small.classifiers.model_copy(update={"epochs": 2})})
    with pytest.raises(pytest.fail.Exception, match="in spite of all"):
        train_exits.train_classifiers(longer)


@pytest.mark.xdist_group("classifiers")  # takes long: it begins early
def test_the_package_ships_every_classifier_of_small_as_training_makes_it(monkeypatch, tmp_path):
    small = load_profile("small")
    specs = train_exits.classifier_specs(small)
    tasks = train_exits.training_tasks(small, specs)
    keys = train_exits.classifier_keys(small, specs, tasks)
    assert {spec: train_exits.stored_key(spec.shipped(small)) for spec in specs} == keys
    folder = specs[0].shipped(small).parent
    assert {path.name for path in folder.iterdir()} == {spec.file for spec in specs}
    one = ClassifierSpec("calm", "linear", "consistency", 0)
    shipped = load_file(one.shipped(small))
    monkeypatch.setattr(train_exits, "classifier_specs", lambda profile: [one])
    monkeypatch.setattr(ClassifierSpec, "shipped", lambda spec, profile: tmp_path / "nowhere" / spec.file)
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    first_tokens = train_exits.first_tokens

    def few_held_out(profile, part):
        """Those for training as ever; what is held out gives the learning curve, and no weight."""
        return first_tokens(profile, part) if part == "train" else [task[:5] for task in tasks["references"]]

    def predictions(passes, raw, embedding, token_ids, top_k):
        """What this classifier learns; all else in a trace takes a third of the time."""
        best = passes.logits(passes.norm(raw)).argmax(dim=-1, keepdim=True)  # [token, layer, 1]
        return {"top_ids": best.expand(-1, -1, top_k)}

    monkeypatch.setattr(train_exits, "first_tokens", few_held_out)
    monkeypatch.setattr(tracing, "_describe", predictions)
    again = load_file(train_exits.train_classifiers(small)[one])
    for name, weight in shipped.items():
        assert torch.allclose(weight, again[name], rtol=1e-4, atol=1e-5), name


def test_jobs_of_one_seed_or_model_are_trained_alone(small):
    assert {spec.seed for spec in train_exits.train_classifiers(small, seeds=[1])} == {1}
    assert train_exits.train_classifiers(small, models=["vanilla"]) == {}


def test_an_interruption_keeps_what_was_finished(small, monkeypatch):
    from mee_utils.traces import classifier_training as training

    true, calls = training.train_classifier, []

    def failing(*given, **options):
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return true(*given, **options)

    monkeypatch.setattr(training, "train_classifier", failing)
    with pytest.raises(KeyboardInterrupt):
        train_exits.train_classifiers(small)
    paths = train_exits.train_classifiers(small)
    assert len(calls) == 2 + 2 and all(path.exists() for path in paths.values())


def test_a_notebook_gets_them_by_name(small, calm, monkeypatch):
    experiment = Experiment(None, "small")
    experiment.profile = small
    models = {"calm": calm}
    classifiers = experiment.classifiers(models)
    assert {key: len(trained) for key, trained in classifiers.items()} == {
        ("calm", "linear", "consistency"): 2,
        ("calm", "low_rank_three", "correctness"): 1,
    }
    one = classifiers["calm", "low_rank_three", "correctness"][0]
    assert (
        one.metadata["target"] == "correctness"
        and one.lookback == 2
        and [point["epoch"] for point in one.metadata["curve"]] == [1]
    )
    assert {"loss", "held_out_loss"} < set(one.metadata["curve"][0])
    table = ClassifierSpec("calm", "token_hash", "consistency", 0)
    monkeypatch.setattr(train_exits, "classifier_specs", lambda profile: [table])
    assert not experiment.classifiers(models), "the survey's are only there for who asks for them"
    assert list(experiment.classifiers(models, survey=True)) == [("calm", "token_hash", "consistency")]
    path = ClassifierSpec("calm", "linear", "consistency", 0).path(small)
    assert (
        load_classifier(path, models["calm"]).key() == classifiers["calm", "linear", "consistency"][0].key()
    )
