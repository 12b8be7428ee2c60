"""`make retrain`: further seeds are other trainings of the same recipe, ablations change one part of it."""

import json

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from test_making_models import tiny

from mee_utils import MeeError
from mee_utils.study import inputs, result_tables, results
from mee_utils.training import build, loop, retraining
from mee_utils.training.retraining import Retraining

STAGES = [
    {"examples": {"pairs": 40}, "learning_rate": 0.02},
    {"examples": {"owners": 30}, "learning_rate": 0.01},
]
RUNS = {"recipe": {"stages": STAGES}, "adam": {"stages": STAGES, "muon": False, "rates": {"table": 9.0}}}


def change(content):
    content["results"] = {"min_layer": 1, "top_k": 16, "batch_size": 20}
    content["ablations"] = {"layers": 1, "runs": RUNS}
    content["training"]["base"]["stages"] = [{"examples": {"translation": 40}, "learning_rate": 0.02}]
    content["training"].pop("pretrained")
    calm = content["training"]["backbones"]["calm"]
    content["training"]["compared"] = {"alternating": calm | {"objective": "alternating"}}
    calm["seeds"] = 2


PROFILE = tiny(change)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Every retraining of the profile; its rows, and the schedules of all trainings behind them."""
    root, schedules, original = tmp_path_factory.mktemp("retraining"), {}, loop.train_backbone

    def recorded(network, objective, pairs, held_out, schedule, place, **options):
        schedules[place.parts[-4:]] = (len(network.decoder.block), objective.name, schedule)
        return original(network, objective, pairs, held_out, schedule, place, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEE_OUTPUT", str(root))
        patch.setattr(inputs, "PACKAGE", root)
        build.train(PROFILE)
        patch.setattr(loop, "train_backbone", recorded)
        jobs = retraining.retrainings(PROFILE)
        rows = {job: json.loads(retraining.run(PROFILE, job).read_text()) for job in jobs}
        yield root, rows, schedules


def test_every_seed_of_a_backbone_and_every_ablation_is_one_job(done):
    seeds = [Retraining("seeds", "calm", seed) for seed in (3, 4)]
    seeds += [Retraining("seeds", "alternating", 3)]  # it is not kept as a model
    assert not inputs.is_trained(PROFILE, "alternating") and "alternating" not in PROFILE.training.models
    assert list(done[1]) == seeds + [Retraining("ablations", name, 3) for name in RUNS]
    with pytest.raises(MeeError, match='Profile tiny retrains no seeds "vanilla", seed 4'):
        retraining.run(PROFILE, Retraining("seeds", "vanilla", 4))


def test_the_first_seed_is_the_shipped_model_and_others_are_new_trainings_of_its_recipe(done):
    root, rows, schedules = done
    first, second = (rows[Retraining("seeds", "calm", seed)] for seed in (3, 4))
    assert [row["task"] for row in first] == [row["task"] for row in second] == [*PROFILE.corpora]
    scores = inputs.manifest(PROFILE, "calm")["scores"]
    for row in first:
        assert row["score"] == pytest.approx(scores[row["task"]][row["metric"]], abs=0.01)
        assert 1 <= row["settled_from"] <= 3 and row["examples"] == scores[row["task"]]["examples"]
    (folder,) = (root / "build" / "training" / "tiny" / "calm").iterdir()
    (trained,) = [about for place, about in schedules.items() if place[1] == "calm"]
    assert trained[:2] == (3, "calm") and trained[2].seed == 4
    stored = load_file(root / "checkpoints" / "tiny" / "calm" / "model.safetensors")
    other = load_file(folder / "model" / "model.safetensors")
    assert stored.keys() == other.keys() and not all(
        torch.equal(stored[name], other[name]) for name in stored
    )


def test_an_ablation_changes_what_it_says_and_nothing_else(done):
    _, rows, schedules = done
    for name in RUNS:
        runs = [about for place, about in schedules.items() if place[1] == name]
        assert [depth for depth, _, _ in runs] == [1, 1]
        assert [schedule.seed for *_, schedule in runs] == [3, 4]
        assert [schedule.learning_rate for *_, schedule in runs] == [0.02, 0.01]
        rates = {schedule.rates["table"] for *_, schedule in runs}
        assert (rates, {schedule.muon for *_, schedule in runs}) == (
            ({9.0}, {False}) if name == "adam" else ({1.0}, {True})
        )
    choices = {task.name: task for task in inputs.load_tasks(PROFILE, "choices")}["question_answering"]
    for name in RUNS:
        found = rows[Retraining("ablations", name, 3)]
        assert {row["form"] for row in found} == set(choices.forms) and sum(
            row["questions"] for row in found
        ) == 11
        assert all(0 <= row["exact_match"] <= 100 and row["run"] == name for row in found)
        assert len({(row["tokens"], row["steps"]) for row in found}) == 1


def test_tables_carry_the_recipes(done):
    root, rows, _ = done
    folder = retraining.store(PROFILE)
    assert folder == root / "tiny" / "retrained"
    made = json.loads((folder / "manifest.json").read_text())
    assert set(made["inputs"]) == {f"model {name}" for name in PROFILE.training.models}
    about = made["parameters"]["recipes"]
    assert set(about) == {"calm", "alternating", *RUNS} and about["adam"]["rates"] == {"table": 9.0}
    assert about["calm"] == PROFILE.training.recipe("calm").model_dump()
    for kind in ("seeds", "ablations"):
        table = result_tables.read_retrained("tiny", kind)
        expected = pd.DataFrame([row for job, found in rows.items() if job.kind == kind for row in found])
        pd.testing.assert_frame_equal(table, results.round_table(expected), check_dtype=False)
    assert result_tables.read_retrained("nobody", "seeds").empty
