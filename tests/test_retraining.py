"""`make retrain`: further seeds are other trainings of the same recipe, ablations change one part of it.

Rivals are trained as `vanilla` is, with fewer decoder layers.
"""

import json
import shutil
from typing import NamedTuple

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from test_making_models import tiny

from mee_utils import MeeError
from mee_utils.companion import inputs, result_tables, results
from mee_utils.companion.running.jobs import Job, retrainings
from mee_utils.companion.training import build, loop, retraining, right_sized, rivals
from mee_utils.companion.training.right_sized import SHARES
from mee_utils.companion.training.rivals import load_rival

STAGES = [
    {"examples": {"pairs": 40}, "learning_rate": 0.02},
    {"examples": {"owners": 30}, "learning_rate": 0.01},
]
RUNS = {"recipe": {"stages": STAGES}, "adam": {"stages": STAGES, "muon": False, "rates": {"table": 9.0}}}


def change(content):
    content["results"] = {"min_layer": 1, "top_k": 16, "batch_size": 20}
    content["ablations"] = {"layers": 1, "runs": RUNS}
    content["rivals"] = {"decoder_layers": [2], "right_sized": 3, "right_sized_seeds": 1}
    content["training"]["base"]["stages"] = [{"examples": {"translation": 40}, "learning_rate": 0.02}]
    content["training"].pop("pretrained")
    calm = content["training"]["backbones"]["calm"]
    content["training"]["compared"] = {"alternating": calm | {"objective": "alternating"}}
    calm["seeds"] = 2


PROFILE = tiny(change)
DECODED = ("softmax_margin", "few", "hidden_similarity")
RIVAL = Job("rivals", "shallow_2", seed=3)


class StageTraining(NamedTuple):
    """How one stage of a retraining was trained."""

    name: str
    layers: int
    encoder_layers: int
    objective: str
    pairs: list
    schedule: loop.Schedule


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Every retraining of the profile; its rows, and the trainings behind them."""
    root = tmp_path_factory.mktemp("retraining")
    trainings = []
    original = loop.train_backbone

    def recorded(network, objective, pairs, held_out, schedule, folder, name):
        depths = (len(network.decoder.block), len(network.encoder.block))
        trainings.append(StageTraining(name, *depths, objective.name, pairs, schedule))
        return original(network, objective, pairs, held_out, schedule, folder, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEE_OUTPUT", str(root))
        patch.setattr(inputs, "PACKAGE", root)
        build.train(PROFILE)
        patch.setattr(loop, "train_backbone", recorded)
        patch.setattr(rivals, "TRIAL", 10)
        patch.setattr(right_sized, "RULES_DECODED", DECODED)  # three layers are too few for the others
        jobs = retrainings(PROFILE)
        rows = {job: json.loads(retraining.run(PROFILE, job).read_text()) for job in jobs}
        yield root, rows, trainings


def test_every_seed_of_a_backbone_and_every_ablation_is_one_job(done):
    seeds = [Job("seeds", "vanilla", seed=3), *(Job("seeds", "calm", seed=seed) for seed in (3, 4))]
    seeds += [Job("seeds", "alternating", seed=3)]  # it is not kept as a model
    assert not inputs.is_trained(PROFILE, "alternating") and "alternating" not in PROFILE.training.models
    rivals = [Job("rivals", name, seed=3) for name in ("vanilla", "shallow_2")]
    rivals += [Job("right_sized", "shallow_3_calm", seed=3)]
    assert list(done[1]) == seeds + rivals + [Job("ablations", name, seed=3) for name in RUNS]
    for kind, model, seed in (("seeds", "vanilla", 4), ("rivals", "shallow_3", 3), ("rivals", "calm", 3)):
        with pytest.raises(MeeError, match=f'Profile tiny retrains no {kind} "{model}", seed {seed}'):
            retraining.run(PROFILE, Job(kind, model, seed=seed))


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


def test_a_decoder_of_the_right_size_is_trained_for_exits_and_decoded_with_them(done):
    _, rows, trainings = done
    (training,) = [each for each in trainings if each.name == "shallow_3_calm"]
    assert (training.layers, training.encoder_layers, training.objective) == (3, 2, "calm")
    table = pd.DataFrame(rows[Job("right_sized", "shallow_3_calm", seed=3)])
    of_task = table[table.task == "translation"]
    assert len(of_task) == 1 + len(DECODED) * len(SHARES)
    full = of_task[of_task.rule == "full_depth"].iloc[0]
    assert full.mean_exit_layer == 3 and full.relative_whole > 0
    exits = of_task[of_task.rule != "full_depth"]
    assert (exits.mean_exit_layer <= 3).all() and (exits.mean_exit_layer < 3).any()
    for _, of_rule in exits.groupby("rule"):
        assert (of_rule.threshold.diff().dropna() <= 0).all(), "the fewer predictions are kept, the looser"


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


def test_a_rival_is_trained_as_vanilla_is_with_fewer_decoder_layers(done):
    _, rows, trainings = done
    recipe = PROFILE.training.recipe("vanilla")
    (training,) = [training for training in trainings if training.name == "shallow_2"]
    trials = [training for training in trainings if training.name.startswith("shallow_2, ")]
    assert [trial.name for trial in trials] == ["shallow_2, spaced", "shallow_2, first"]
    for each in (training, *trials):
        assert (each.layers, each.encoder_layers, each.objective) == (2, 2, "vanilla")
        assert each.schedule.learning_rate == recipe.learning_rate and each.schedule.seed == 3
        assert each.schedule.decay == recipe.decay
    assert training.pairs == build.new_builder(PROFILE).stage_pairs(recipe, 3)
    for trial in trials:
        assert len(trial.pairs) == sum(count // rivals.TRIAL for count in recipe.examples.values())
    model = load_rival(PROFILE, RIVAL)
    assert model.layers == 2 and model.name == "shallow_2"
    for row in rows[RIVAL]:
        assert row["decoder_layers"] == 2 and row["start"] in ("spaced", "first")
        assert row["parameters"] == sum(weight.numel() for weight in model.network.parameters())


def test_a_rival_starts_with_the_layers_that_did_better_in_a_short_training(done):
    kept = json.loads((rivals.rival_folder(PROFILE, RIVAL) / "manifest.json").read_text())
    assert kept["start"] == min(kept["trials"], key=kept["trials"].get)
    assert set(kept["trials"]) == {"spaced", "first"} and kept["seed"] == 3
    assert kept["base"] == inputs.weights_digest(PROFILE, "base")
    rows = [{"step": step, "cross_entropy": [9.0, last]} for step, last in ((0, 1.0), (5, 4.0), (10, 5.0))]
    curve = loop.LearningCurve(layer_cross_entropy=rows)
    assert rivals.lowest_cross_entropy(curve) == 4.0, "what it began with is no merit of the training"


def test_the_kept_weights_of_a_rival_are_not_trained_again(done):
    before = len(done[2])
    assert load_rival(PROFILE, RIVAL).fingerprint == load_rival(PROFILE, RIVAL).fingerprint
    assert len(done[2]) == before


def test_vanilla_stands_among_the_rivals_at_its_full_depth(done):
    retraining.store(PROFILE)
    table = result_tables.read_retrained("tiny", "rivals").set_index(["model", "task"])
    examples = result_tables.read_full_depth("tiny")
    assert set(table.index.unique("model")) == {"vanilla", "shallow_2"}
    vanilla = table.loc["vanilla"]
    assert (vanilla.decoder_layers == 3).all() and vanilla.start.isna().all()
    for column, value in {"lost": 0, "kept": 1, "relative_flops": 1}.items():
        bounds = vanilla[[column, f"{column}_low", f"{column}_high"]]
        assert (bounds.isna() | (bounds == value)).all(axis=None)
    assert (table.loc["shallow_2"].relative_flops_high < 1).all()
    examples = examples[examples.kind == "rivals"].set_index(["model", "task"]).sort_index()
    for key, row in table.iterrows():
        own = examples.loc[[key]]
        assert row.mean_score == pytest.approx(own.score.mean(), abs=1e-3) and row.low <= row.high
        assert row.flops == pytest.approx(own.flops.sum() / own.tokens.sum(), rel=1e-6)
        assert row.tokens == pytest.approx(own.tokens.mean(), abs=1e-3) and row.examples == len(own)


def test_what_an_earlier_session_stored_is_kept_where_build_has_no_rows(done):
    root, _, _ = done
    folder = retraining.store(PROFILE)
    names = ("seeds.csv", "rivals.csv", "ablations.csv", "full_depth.parquet")
    before = {name: (folder / name).read_bytes() for name in names}
    built = root / "build" / "retrained" / "tiny"
    moved = built.rename(root / "elsewhere")
    retraining.store(PROFILE)
    assert {name: (folder / name).read_bytes() for name in names} == before
    shutil.rmtree(built)
    moved.rename(built)


def test_tables_carry_the_recipes(done):
    root, rows, _ = done
    folder = retraining.store(PROFILE)
    assert folder == root / "tiny" / "retrained"
    stored = json.loads((folder / "manifest.json").read_text())
    assert set(stored["inputs"]) == {f"model {name}" for name in PROFILE.training.models}
    recipes = stored["parameters"]["recipes"]
    models = {"vanilla", "shallow_2", "shallow_3_calm", "calm", "alternating"}
    assert set(recipes) == models | set(RUNS) and recipes["adam"]["rates"] == {"table": 9.0}
    assert recipes["shallow_2"] == recipes["vanilla"] | {"decoder_layers": 2}
    assert recipes["calm"] == PROFILE.training.recipe("calm").model_dump()
    for kind in ("seeds", "ablations"):
        table = result_tables.read_retrained("tiny", kind)
        expected = pd.DataFrame(
            [row for job, job_rows in rows.items() if job.kind == kind for row in job_rows]
        )
        rows_alone = table[expected.columns]
        pd.testing.assert_frame_equal(rows_alone, results.round_table(expected), check_dtype=False)
    assert result_tables.read_retrained("nobody", "seeds").empty
