"""The published checkpoints, in small: one a task, without tokenizers, from a stand-in for the hub."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import papers
import pytest
import rehearsal
from hub import serving

from mee_utils.companion.profiles import load_profile
from mee_utils.companion.running import jobs

pytestmark = [pytest.mark.thorough, pytest.mark.xdist_group("rehearsal")]
NAME = "paper_published"
PROFILES = papers.ROOT / "notebooks" / "profiles"
TASKS = ("question_answering", "translation")  # two tell whether each has its own checkpoint
LENGTHS = {"examples": 5, "tokens": 8, "source_tokens": 32}


@pytest.fixture(scope="module")
def registered(tmp_path_factory):
    """A clone in which the models were fetched and measured, and what the command said."""
    folder = tmp_path_factory.mktemp("rehearsal")
    profile = load_profile(NAME)
    tokenizer = rehearsal.t5_tokenizer()
    rehearsal.write_hub(folder / "hub", profile, "small", tokenizer, LENGTHS["tokens"])
    other = folder / "hub/models/jvelja/t5-IWSLT" / rehearsal.COMMIT
    shutil.rmtree(other)
    rehearsal.write_checkpoint(other, "jvelja/t5-IWSLT", "small", tokenizer, seed=1)
    clone = papers.Clone(folder)

    def change(content):
        rehearsal.few(content, **LENGTHS, layers=rehearsal.SMALL["num_decoder_layers"])
        content["dtype"] = "float32"
        content["corpora"].pop("summarization")
        content["training"]["backbones"]["vanilla"]["tasks"].pop("summarization")

    clone.edit(change, NAME)
    with serving(folder, rehearsal.COMMITS) as (asked, environment):
        command = ["train", "--profile", NAME, "--model", "base", "--model", "vanilla"]
        clone.done = clone.run(*command, **environment | {"HF_HUB_OFFLINE": "0"})
        clone.asked = list(asked)
    return clone


@pytest.fixture(scope="module")
def executed(registered):
    """What was said while a notebook ran without the hub; `test_paper_profile` runs them all."""
    done = registered.python(str(papers.ROOT / "tests/in_process.py"), NAME, "", "03_pruning")
    return done.stdout + done.stderr


def test_a_checkpoint_a_task_is_fetched_and_measured(registered):
    assert registered.done.returncode == 0, registered.done.stderr[-3000:]
    folder = registered.root / "mee_utils/checkpoints" / NAME
    assert {path.name for path in folder.iterdir()} == {"base", "vanilla"}
    about = json.loads((folder / "vanilla/manifest.json").read_text())
    sources = {task: source["checkpoint"] for task, source in about["source"].items()}
    assert sources == {"question_answering": "jvelja/t5-squad", "translation": "jvelja/t5-IWSLT"}
    assert set(about["scores"]) == set(TASKS) and about["steps"] == 0
    assert len(about["layer_cross_entropy"][0]["cross_entropy"]) == rehearsal.SMALL["num_decoder_layers"]
    assert not [path for path in registered.asked if "cnndm" in path]


PROBE = f"""
from mee_utils import MeeError
from mee_utils.companion import inputs
from mee_utils.companion.experiment import Experiment
from mee_utils.companion.profiles import load_profile
experiment = Experiment(None, "{NAME}")
squad, iwslt = (experiment.model("vanilla", task) for task in {TASKS})
print(bool((squad.network.shared.weight == iwslt.network.shared.weight).all()), len(squad.tokenizer))
print(experiment.model("base", "translation") is experiment.model("base", "question_answering"))
content = load_profile("{NAME}").model_dump()
content["training"]["backbones"]["vanilla"]["tasks"]["translation"]["checkpoint"] = "jvelja/nothing"
try:
    inputs.load_profile_model(type(experiment.profile).model_validate(content), "vanilla", task="translation")
except MeeError as error:
    print(error)
"""


def test_a_task_is_decoded_by_its_own_checkpoint(registered, executed):
    """The two have other weights; of the base, which is one for all tasks, one copy is loaded."""
    path = Path(registered.environment["MEE_OUTPUT"]) / NAME / "03_pruning/complete_table.csv"
    assert path.exists(), executed[-3000:]
    table = pd.read_csv(path)
    assert set(table.model) == {"base", "vanilla"} and set(table.task) == set(TASKS)
    done = registered.python("-c", PROBE)
    weights, base, *missing = done.stdout.splitlines()
    assert (weights, base) == ("False 32100", "True"), done.stderr[-2000:]
    (line,) = missing
    assert 'The hub could not be reached for "jvelja/nothing"' in line


def test_the_estimate_grows_with_examples_and_lengths():
    profile = load_profile(NAME)
    assert rehearsal.decoder_sizes("true", long=False).layers == 24
    whole = {"examples": 300, "tokens": 128, "source_tokens": 512}
    assert rehearsal.growth(profile, "01_monotonicity", "true", **whole) == pytest.approx(1)
    few = whole | {"examples": 30}
    assert rehearsal.growth(profile, "01_monotonicity", "true", **few) == pytest.approx(10)
    step = rehearsal.Step("01_monotonicity", 0, 10.0, 20.0, 3 * 10**9, 5e12, "")
    page = rehearsal.report(profile, "true", [step], **few)
    assert "| 01_monotonicity | 20 | 3.0 | 5.00 | 0.05 |" in page and "Estimate of the whole run" in page
    small = rehearsal.growth(profile, "01_monotonicity", "small", **whole)
    works = [rehearsal.work_of_example(profile, shape, 512, 128) for shape in ("true", "small")]
    assert small == pytest.approx(works[0] / works[1]), "the whole run has the true shape"


def test_the_estimate_of_training_is_of_the_examples_that_are_learned_from():
    """Measurements have none: how many thresholds a search decodes depends on the model."""
    profile = load_profile("paper")
    lengths = {"tokens": 512, "source_tokens": 512}
    assert rehearsal.growth(profile, "models", "true", examples=5, **lengths) == pytest.approx(100_000 / 5)
    published = load_profile(NAME)
    assert published.training.objectives == {}
    held_out = max(corpus.held_out for corpus in published.corpora.values())
    own = {"tokens": published.training.max_target, "source_tokens": published.training.max_source}
    assert rehearsal.growth(published, "models", "true", examples=5, **own) == pytest.approx(held_out / 5)
    assert rehearsal.steps_after_models(profile)[0] == "measure"
    assert rehearsal.steps_after_models(published) == published.run_notebooks
    steps = [rehearsal.Step(name, 0, 10.0, 20.0, 10**9, 1e12, "") for name in ("models", "measure")]
    page = rehearsal.report(profile, "true", steps, examples=5, **lengths)
    assert "| measure | 20 | 1.0 | 1.00 |  |" in page
    assert "the true shape, without the measurements: 20 PFLOP" in page


def random_t5(**sizes):
    """A T5 of random weights that ends no output, and the tokenizer of the shipped ones."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    network = T5ForConditionalGeneration(T5Config(**sizes, vocab_size=8000, decoder_start_token_id=0)).eval()
    network.config.eos_token_id = network.generation_config.eos_token_id = None
    return network


@pytest.mark.parametrize("d_model", [32, 128])
def test_counted_operations_are_those_of_our_own_formula(d_model):
    """In the wide model large weights are packed for the CPU: PyTorch alone counts nothing of these, and of
    attention nothing in either. An estimate of hours stood on that.
    """
    import torch

    from mee_utils.decoding.generation import bind_policy
    from mee_utils.decoding.inputs import decode_batch
    from mee_utils.decoding.layerwise import LayerwiseDecoder
    from mee_utils.models.costs import DecoderSizes

    heads = {
        "d_kv": d_model // 4,
        "num_heads": 4,
        "d_ff": 2 * d_model,
        "num_layers": 2,
        "num_decoder_layers": 6,
    }
    network = random_t5(d_model=d_model, **heads)
    decoder = LayerwiseDecoder(network)
    assert decoder.head.packed == (8000 * d_model >= 200_000 and torch.backends.mkldnn.is_available())
    ids = torch.randint(3, 8000, (1, 24))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    bound = bind_policy(None, decoder)
    with rehearsal.counting() as counter:
        (row,) = decode_batch(decoder, inputs, bound, 16, np.arange(1))
    assert len(row.token_ids) == 16
    expected = rehearsal.example_flops(DecoderSizes.of(network.config), 2, 24, 16)
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.02)


def test_the_true_shapes_have_the_parameters_of_the_published_models():
    """T5-large has 737,668,096 with norms and relative biases, LongT5 base 248 million."""
    of_norms_and_biases = (2 * 24 + 3 * 24 + 2) * 1024 + 2 * 32 * 16
    assert rehearsal.parameters(load_profile(NAME)) == 737_668_096 - of_norms_and_biases
    assert 247e6 < rehearsal.parameters(load_profile("paper_published_multi_news")) < 249e6


def test_the_page_on_profiles_states_what_the_sizes_give():
    names = sorted(path.stem for path in PROFILES.glob("paper_published*.yaml"))
    table = rehearsal.needs(names)
    assert table in (PROFILES / "README.md").read_text(encoding="utf-8"), f"put this there:\n{table}"
    assert all(f"`{name}`" in table for name in names)


@pytest.mark.parametrize("too_few", [["--examples", "3"], ["--tokens", "6"]])
def test_less_than_notebooks_take_is_refused_at_once(too_few, capsys):
    assert rehearsal.main(too_few) == 2
    assert capsys.readouterr().err == "error: notebooks need --examples 5 and --tokens 8, or more.\n"


def test_a_profile_without_the_hub_has_nothing_to_rehearse(capsys):
    assert rehearsal.main(["--profile", "small"]) == 2
    assert capsys.readouterr().err == "error: profile small reads nothing from the hub.\n"


def test_models_that_were_made_one_after_the_other_are_one_step():
    first = rehearsal.Step("models", 0, 10.0, 20.0, 3 * 10**9, 5e12, "first ", 7)
    second = rehearsal.Step("models", -9, 5.0, 6.0, 4 * 10**9, 1e12, "second", 2)
    expected = rehearsal.Step("models", -9, 15.0, 26.0, 4 * 10**9, 6e12, "first second", 7)
    assert rehearsal.joined([first, second]) == expected


def test_every_model_and_every_measurement_has_a_process_of_its_own():
    profile = load_profile("paper")
    trained = rehearsal.commands_of(rehearsal.MODELS, profile)
    assert [command[2] for command in trained] == list(profile.training.models)
    measured = rehearsal.commands_of(rehearsal.MEASURE, profile)
    assert len(measured) == len(jobs.measurements(profile)) + 1 and measured[-1][1] == "tables"
    assert len({" ".join(command) for command in measured}) == len(measured)
    assert rehearsal.commands_of("00_models", profile) == [["in process", "paper", "00_models"]]


def test_what_ended_well_in_an_interrupted_rehearsal_is_not_run_again(tmp_path, monkeypatch):
    statuses = iter([1, 0])

    def run(clone, environment, name, command):
        return rehearsal.Step(name, next(statuses), 1.5, 2.5, 3, 4.0, "said", 5)

    monkeypatch.setattr(rehearsal, "_run_and_measured", run)
    clone = SimpleNamespace(root=tmp_path / "clone")
    steps = [rehearsal.measured_step(clone, {}, "measure", ["job", "oracle"]) for _ in range(3)]
    assert [step.status for step in steps] == [1, 0, 0], "the first failed, so it was run once more"
    assert steps[1] == steps[2]
    with pytest.raises(StopIteration):
        rehearsal.measured_step(clone, {}, "measure", ["job", "survey"])


def test_a_folder_with_another_rehearsal_or_something_else_is_refused(tmp_path, capsys):
    command = ["--profile", NAME, "--shape", "small", "--folder", str(tmp_path)]
    begun = {"profile": NAME, "shape": "true", "examples": 5, "tokens": 8, "source_tokens": 64}
    (tmp_path / "options.json").write_text(json.dumps(begun))
    assert rehearsal.main(command) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path} has a rehearsal with") and said.count("\n") == 1
    (tmp_path / "options.json").rename(tmp_path / "notes.json")
    assert rehearsal.main(command) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path} is not empty, and no rehearsal was begun there")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.json"], "nothing was written"


def test_without_counted_operations_nothing_is_estimated():
    """Before, the page said that the whole run takes 0 PFLOP, and 0.0 hours."""
    profile = load_profile("paper")
    steps = [rehearsal.Step("00_models", 0, 10.0, 20.0, 3 * 10**9, 0.0, "")]
    page = rehearsal.report(profile, "true", steps, **LENGTHS)
    assert "| 00_models | 20 | 3.0 |" in page and "FLOP" not in page and "hours" not in page
    assert page.endswith("nothing is estimated.")
