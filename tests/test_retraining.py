"""`make retrain`: further seeds are other trainings of the same recipe, ablations change one part of it."""

import json
from typing import NamedTuple

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from test_making_models import tiny

from mee_utils import MeeError
from mee_utils.study import inputs, result_tables, results
from mee_utils.study.jobs import Job, retrainings
from mee_utils.training import build, loop, retraining

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


class StageTraining(NamedTuple):
    """How one stage of a retraining was trained."""

    name: str
    layers: int
    objective: str
    schedule: loop.Schedule


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Every retraining of the profile; its rows, and the trainings behind them."""
    root = tmp_path_factory.mktemp("retraining")
    trainings = []
    original = loop.train_backbone

    def recorded(network, objective, pairs, held_out, schedule, folder, name):
        trainings.append(StageTraining(name, len(network.decoder.block), objective.name, schedule))
        return original(network, objective, pairs, held_out, schedule, folder, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEE_OUTPUT", str(root))
        patch.setattr(inputs, "PACKAGE", root)
        build.train(PROFILE)
        patch.setattr(loop, "train_backbone", recorded)
        jobs = retrainings(PROFILE)
        rows = {job: json.loads(retraining.run(PROFILE, job).read_text()) for job in jobs}
        yield root, rows, trainings


def test_every_seed_of_a_backbone_and_every_ablation_is_one_job(done):
    seeds = [Job("seeds", "calm", seed=seed) for seed in (3, 4)]
    seeds += [Job("seeds", "alternating", seed=3)]  # it is not kept as a model
    assert not inputs.is_trained(PROFILE, "alternating") and "alternating" not in PROFILE.training.models
    assert list(done[1]) == seeds + [Job("ablations", name, seed=3) for name in RUNS]
    with pytest.raises(MeeError, match='Profile tiny retrains no seeds "vanilla", seed 4'):
        retraining.run(PROFILE, Job("seeds", "vanilla", seed=4))


def test_the_first_seed_is_the_shipped_model_and_others_are_new_trainings_of_its_recipe(done):
    root, rows, trainings = done
    first, second = (rows[Job("seeds", "calm", seed=seed)] for seed in (3, 4))
    assert [row["task"] for row in first] == [row["task"] for row in second] == [*PROFILE.corpora]
    scores = inputs.manifest(PROFILE, "calm")["scores"]
    for row in first:
        assert row["score"] == pytest.approx(scores[row["task"]][row["metric"]], abs=0.01)
        assert 1 <= row["settled_from"] <= 3 and row["examples"] == scores[row["task"]]["examples"]
    (folder,) = (root / "build" / "training" / "tiny" / "calm").iterdir()
    (calm,) = [training for training in trainings if training.name == "calm"]
    assert calm.layers == 3 and calm.objective == "calm" and calm.schedule.seed == 4
    stored = load_file(root / "checkpoints" / "tiny" / "calm" / "model.safetensors")
    other = load_file(folder / "model" / "model.safetensors")
    assert stored.keys() == other.keys() and not all(
        torch.equal(stored[name], other[name]) for name in stored
    )


def test_an_ablation_changes_what_it_says_and_nothing_else(done):
    _, rows, trainings = done
    for name in RUNS:
        runs = [training for training in trainings if training.name == name]
        assert [training.layers for training in runs] == [1, 1]
        schedules = [training.schedule for training in runs]
        assert [schedule.seed for schedule in schedules] == [3, 4]
        assert [schedule.learning_rate for schedule in schedules] == [0.02, 0.01]
        changed = name == "adam"
        assert {schedule.rates["table"] for schedule in schedules} == {9.0 if changed else 1.0}
        assert {schedule.muon for schedule in schedules} == {not changed}
    choices = {task.name: task for task in inputs.load_tasks(PROFILE, "choices")}["question_answering"]
    for name in RUNS:
        run_rows = rows[Job("ablations", name, seed=3)]
        assert {row["form"] for row in run_rows} == set(choices.forms)
        assert sum(row["questions"] for row in run_rows) == 11
        assert all(0 <= row["exact_match"] <= 100 and row["run"] == name for row in run_rows)
        assert len({(row["tokens"], row["steps"]) for row in run_rows}) == 1


def test_tables_carry_the_recipes(done):
    root, rows, _ = done
    folder = retraining.store(PROFILE)
    assert folder == root / "tiny" / "retrained"
    stored = json.loads((folder / "manifest.json").read_text())
    assert set(stored["inputs"]) == {f"model {name}" for name in PROFILE.training.models}
    recipes = stored["parameters"]["recipes"]
    assert set(recipes) == {"calm", "alternating", *RUNS} and recipes["adam"]["rates"] == {"table": 9.0}
    assert recipes["calm"] == PROFILE.training.recipe("calm").model_dump()
    for kind in ("seeds", "ablations"):
        table = result_tables.read_retrained("tiny", kind)
        expected = pd.DataFrame(
            [row for job, job_rows in rows.items() if job.kind == kind for row in job_rows]
        )
        pd.testing.assert_frame_equal(table, results.round_table(expected), check_dtype=False)
    assert result_tables.read_retrained("nobody", "seeds").empty
