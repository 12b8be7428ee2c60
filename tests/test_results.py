"""Stored decodings and what follows from them: grids, curves, calibration, the guarantee, fronts, the
ledger; and 08 without a model.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import INPUTS, LENGTH, build_lively

from mee_utils import CompanionError, ExitPolicy, generate, replay, trace
from mee_utils.analysis import calibration
from mee_utils.analysis import comparison as curves
from mee_utils.study import result_tables as stored
from mee_utils.study import sweep as sweeps
from mee_utils.study import verdicts
from mee_utils.study.catalogue import RULES
from mee_utils.study.notebooks import read_source
from mee_utils.study.profiles import load_profile
from mee_utils.tasks.loading import Task

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def lively_t5(tokenizer):
    return build_lively("t5", tokenizer)


@pytest.fixture(scope="module")
def task(lively_t5):
    full = generate(lively_t5, INPUTS, max_new_tokens=LENGTH).texts
    return Task("translation", "test", "test", INPUTS, [[text or "nothing"] for text in full], "digest")


def margin(threshold):
    return ExitPolicy("softmax_margin", threshold=threshold)


def test_a_grid_descends_and_keeps_the_shares_asked_for(lively_t5):
    seen = trace(lively_t5, INPUTS, max_new_tokens=LENGTH)
    grid = curves.threshold_grid(seen, margin(0.9), (1.0, 0.9, 0.5), lively_t5)
    assert grid == sorted(set(grid), reverse=True) and len(grid) >= 2
    exits = replay(seen, margin(grid[0]), LENGTH)
    assert (seen.top1_id[np.arange(len(seen)), exits - 1] == seen.final_id).all()
    assert replay(seen, margin(grid[-1]), LENGTH).mean() < exits.mean()


def test_a_curve_is_what_generate_gives_and_ends_when_little_is_left(lively_t5, task):
    found = curves.decode_curves(
        lively_t5,
        task,
        {"margin": (margin, [1.0, 0.2, 0.0, 0.0])},
        {"task": "translation", "model": "t5"},
        max_new_tokens=LENGTH,
    )
    rows = pd.DataFrame(found["rows"])
    assert (
        list(rows.rule)[:2] == ["full_depth", "margin"]
        and rows.consistency_loss[0] == 0
        and rows.retained[0] == rows.flops_share[0] == 1
    )
    assert (
        rows.consistency_loss[1] == 0 and rows.mean_exit_layer[1] == 4
    )  # a threshold of 1 is never exceeded
    assert (
        (rows.consistency_loss[:-1] <= curves.ENOUGH).all()
        and rows.consistency_loss.iloc[-1] > curves.ENOUGH
        and len(rows) < 5
    )
    settings = list(zip(found["rows"], found["losses"], found["examples"], strict=True))
    for row, losses, examples in settings[1:]:
        out = generate(lively_t5, INPUTS, margin(row["threshold"]), max_new_tokens=LENGTH)
        assert examples == pytest.approx(task.score_examples(out.texts)[task.metric])
        assert row["mean_exit_layer"] == out.mean_exit_layer and np.mean(losses) == row["consistency_loss"]


def made_decodings():
    """Two tasks' worth of a rule whose losses are known; n = 400, so that the mean alone decides."""
    rows, losses, examples = [], [], []
    settings = [
        ("full_depth", np.nan, 0.0, 1.0),
        ("margin", 0.9, 0.01, 0.9),
        ("margin", 0.7, 0.05, 0.7),
        ("margin", 0.5, 0.4, 0.5),
        ("static", 8.0, 0.02, 0.8),
        ("static", 4.0, 0.6, 0.3),
        ("oracle", np.nan, 0.0, 0.2),
    ]
    for rule, threshold, mean, share in settings:
        loss = np.array([mean * (0.5 if i % 2 else 1.5) for i in range(400)])
        rows.append(
            {
                "task": "translation",
                "model": "calm",
                "rule": rule,
                "threshold": threshold,
                "score": 100 * (1 - mean),
                "retained": 1 - mean,
                "low": 0.0,
                "high": 1.0,
                "mean_exit_layer": 12 * share,
                "flops_share": share,
                "same_output": 1.0,
            }
        )
        losses.append(loss)
        examples.append(100 * (1 - loss / 2))
    return stored.SweepResults(pd.DataFrame(rows), losses, examples, 0.05, (0.1,), (0.05,))


def test_each_rule_gets_the_last_threshold_that_passed():
    found = verdicts.calibrated(
        made_decodings(), "calm", {"consistency": (0.001, 0.1), "risk": (0.1,)}
    ).set_index(["rule", "kind", "delta", "bound"])
    at = found.loc[("margin", "consistency", 0.1, "hoeffding_bentkus")]
    assert at.threshold == 0.7 and at.flops_share == 0.7 and at.found and at.mean_loss == pytest.approx(0.05)
    assert found.loc[("static", "consistency", 0.1, "betting")].threshold == 8
    nothing = found.loc[("margin", "consistency", 0.001, "hoeffding_bentkus")]
    assert (
        not nothing.found
        and np.isnan(nothing.threshold)
        and nothing.flops_share == 1
        and nothing.mean_loss == 0
    )
    assert found.loc[("margin", "risk", 0.1, "hoeffding_bentkus")].mean_loss == pytest.approx(
        0.025
    )  # half of the textual loss, by construction


def test_the_guarantee_holds_where_taking_the_mean_at_its_word_does_not():
    pool = [(np.arange(200) < bad).astype(float) for bad in (0, 4, 21, 100)]
    rows = pd.DataFrame(
        {
            "task": "translation",
            "model": "calm",
            "rule": ["full_depth", *["margin"] * 3],
            "threshold": [np.nan, 0.9, 0.8, 0.7],
        }
    )
    found = verdicts.guarantee(
        stored.SweepResults(rows, pool, pool, 0.05, (0.1,), ()), "calm", {"consistency": (0.1,)}, splits=200
    ).set_index("bound")
    assert pool[2].mean() > 0.1  # the second threshold is just not good enough
    assert (
        found.violated["no_test"] > 0.2
        and found.violated["hoeffding_bentkus"] <= 0.05
        and found.violated["betting"] <= 0.05
    )
    assert found.passed["hoeffding_bentkus"] > 0.8


def test_a_binomial_limit_by_simulation():
    draws = np.random.default_rng(0).binomial(30, 0.05, 20000) / 30
    limit = verdicts.binomial_limit(30, 0.05)
    assert (draws <= limit).mean() >= 0.95 and (draws < limit).mean() < 0.95


def test_fresh_samples_are_disjoint_sets_judged_by_the_population(lively_t5, task):
    seen = trace(lively_t5, INPUTS, max_new_tokens=LENGTH)
    found = calibration.fresh_samples(
        seen, lively_t5, task, {"margin": (margin, [1.0, 0.0])}, (0.5,), 0.05, 7, LENGTH
    )
    assert len(found) == 3 * 7 and set(found.bound) == {"hoeffding_bentkus", "betting", "no_test"}
    population = calibration.replayed_losses(
        calibration.replay_policy(seen, margin(1.0)), lively_t5, task, [1.0, 0.0], max_new_tokens=LENGTH
    )
    careless = found[(found.bound == "no_test") & (found.threshold == 0.0)]
    assert (
        len(careless) == (population[1] <= 0.5).sum()
        and (careless.violated == (population[1].mean() > 0.5)).all()
    )
    assert found[found.bound == "hoeffding_bentkus"].threshold.isna().all()  # one example proves nothing
    rates = verdicts.fresh_rates(found, 0.05)
    assert list(rates.sets) == [7, 7, 7] and rates.limit[0] == verdicts.binomial_limit(7, 0.05)
    with pytest.raises(CompanionError, match="fewer sets"):
        calibration.fresh_samples(seen, lively_t5, task, {}, (0.5,), 0.05, 8, LENGTH)


def test_the_front_by_hand():
    assert list(verdicts.on_front([1, 2, 3, 2], [10, 20, 15, 20])) == [True, True, False, True]
    assert list(verdicts.on_front([1, 1, 2], [10, 11, 11])) == [False, True, False]
    found = verdicts.fronts(made_decodings())
    assert list(found[found.front].rule) == [
        "full_depth",
        "margin",
        "margin",
        "margin",
        "static",
        "static",
    ]  # the oracle, cheapest and best, does not count


def test_what_is_timed_keeps_the_score_or_was_calibrated():
    timed = verdicts.timed(made_decodings(), "calm", 0.97)
    assert set(map(tuple, timed[["rule", "threshold"]].to_numpy())) == {
        ("margin", 0.9),
        ("margin", 0.7),
        ("static", 8.0),
        ("static", 4.0),
    }


def test_what_keeps_the_score_on_both_halves():
    found = made_decodings()
    found.examples[1][1::2] *= 0.95  # the careful margin: good on the first half alone
    kept = verdicts.keeping(found, "calm", 0.961).set_index(["rule", "threshold"])
    assert (
        ("margin", 0.9) not in kept.index and ("margin", 0.7) in kept.index and ("static", 8.0) in kept.index
    )
    assert (kept[["first_half", "second_half"]] >= 0.961).all(axis=None) and kept.cheapest.all()
    assert verdicts.keeping(found, "calm", 1.1).empty


def test_a_half_on_which_full_depth_scores_nothing_keeps_nothing():
    found = made_decodings()
    for scores in found.examples:
        scores[1::2] = 0.0
    assert verdicts.keeping(found, "calm", 0.5).empty  # 0 of 0 is not 99 %
    found.examples[1][1::2] = 1.0  # and more than 0 is not infinitely good
    assert verdicts.keeping(found, "calm", 0.5).empty


def test_the_answer_names_the_fastest_of_each_kind():
    kept = pd.DataFrame(
        {
            "task": "translation",
            "rule": ["three_hidden", "three_hidden", "softmax_margin"],
            "threshold": [0.9, 0.5, 0.8],
            "flops_share": [0.8, 0.9, 0.7],
        }
    )
    times = kept.assign(batch=1, speed=[1.2, 1.4, 1.1], lowest=[1.1, 1.3, 1.0], highest=[1.3, 1.5, 1.2])
    answer = verdicts.fastest(times)
    assert list(answer.threshold) == [0.5, 0.8]
    text = "\n".join(verdicts.answer_lines(kept, answer, ["translation", "summarization"], 0.99, str))
    assert (
        "several layers 1.40 (1.30 to 1.50, three_hidden); other rules 1.10 (1.00 to 1.20, softmax_margin); "
        "a fixed layer: none timed" in text
    )
    assert "softmax_margin with 70%" in text and "summarization: no rule keeps 99%" in text


def write(folder, settings, losses, examples):
    folder.mkdir(parents=True)
    for name, table in (("settings", settings), ("losses", losses), ("examples", examples)):
        table.to_csv(folder / f"{name}.csv", index=False)
    (folder / "manifest.json").write_text(
        json.dumps({"parameters": {"eps": 0.05, "deltas": [0.1], "risk_deltas": [0.05]}, "files": {}})
    )


def test_decodings_are_read_back_and_must_belong_together(tmp_path, monkeypatch):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    keys = pd.DataFrame(
        {"task": "translation", "model": "calm", "rule": ["full_depth", "margin"], "threshold": [np.nan, 0.5]}
    )
    wide = pd.concat([keys, pd.DataFrame([[0.0, 0.0, np.nan], [0.1, 0.2, 0.3]])], axis=1)
    write(tmp_path / "small" / "sweep", keys.assign(score=1.0), wide, wide.assign(**{"0": 100.0}))
    found = stored.read_sweep("small")
    assert [list(row) for row in found.losses] == [[0, 0], [0.1, 0.2, 0.3]] and found.deltas == (0.1,)
    wide.iloc[::-1].to_csv(tmp_path / "small" / "sweep" / "losses.csv", index=False)
    with pytest.raises(CompanionError, match="losses.csv and settings.csv in .* differ"):
        stored.read_sweep("small")
    with pytest.raises(CompanionError, match="make reproduce PROFILE=small"):
        stored.read_table("small", "01_monotonicity", "nothing_like_it")
    with pytest.raises(CompanionError, match='no profile "smal"'):
        stored.read_sweep("smal")


def kept(profile, job):
    """What a job of the sweep leaves behind, made up."""
    rows = [{"task": job.task, "model": job.model, "rule": "full_depth", "threshold": None, "score": 1 / 3}]
    examples = len(job.task)  # tasks have different numbers of examples
    found = {"rows": rows, "losses": [[0.0] * examples], "examples": [[50.0] * examples]}
    path = job.path(profile)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found if job.what == "settings" else {"rows": rows}))


def test_the_tables_of_the_sweep_hold_every_job_in_order(monkeypatch, tmp_path):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    profile = load_profile("small")
    found = sweeps.jobs(profile)
    assert len(found) == len(set(found)) == 2 + 3 * len(profile.training.backbones)
    for job in found[:-1]:
        kept(profile, job)
    with pytest.raises(FileNotFoundError):
        sweeps.store(profile)
    assert not (tmp_path / "small/sweep").exists()
    kept(profile, found[-1])
    folder = sweeps.store(profile)
    names = {"settings.csv", "losses.csv", "examples.csv", "fresh.csv", "published_bugs.csv"}
    assert {path.name for path in folder.glob("*.csv")} == names
    table = pd.read_csv(folder / "settings.csv")
    assert list(table.task.unique()) == list(profile.corpora) and table.score[0] == 0.3333
    assert list(table.model[:4]) == list(profile.training.backbones)
    monkeypatch.setattr(stored, "stored_root", lambda profile: tmp_path / profile)
    swept = stored.read_sweep("small")
    assert [len(losses) for losses in swept.losses] == [len(task) for task in table.task]
    with pytest.raises(CompanionError, match="has no sweep of settings, calm, all"):
        sweeps.run(profile, sweeps.Job("calm", "all"), None)


@pytest.mark.parametrize(
    ("rule", "threshold", "expected"),
    [
        ("static", 6.0, ExitPolicy("static", min_layer=6)),
        ("oracle", float("nan"), ExitPolicy("oracle", min_layer=4)),
        ("fixed", 0.8, ExitPolicy("softmax_margin", threshold=0.8, min_layer=4, pruning="fixed", top_k=64)),
        (
            "decaying",
            0.8,
            ExitPolicy(
                "softmax_margin", threshold=0.8, min_layer=4, pruning="decaying", top_k=256, least_k=16
            ),
        ),
        (
            "jsd_fixed",
            0.8,
            ExitPolicy(
                "softmax_margin", threshold=0.8, min_layer=4, pruning="fixed", top_k=64, contrast="jsd"
            ),
        ),
        ("hidden_similarity", 0.8, ExitPolicy("hidden_similarity", threshold=0.8, min_layer=4)),
        (
            "free_adaptive",
            float("nan"),
            ExitPolicy("max_probability", threshold="adaptive", propagation="parallel", exit_layers=[4]),
        ),
    ],
)
def test_rules_are_what_their_names_say(rule, threshold, expected):
    options = load_profile("small").results.model_dump() | {"exit_layer": 4}
    found = RULES[rule].policy(threshold, options)
    assert repr(found) == repr(expected)


def test_notebook_06_is_drawn_without_a_model(monkeypatch, tmp_path):
    """Its code run in this process where no model can be loaded: every file comes out as it is stored."""
    import matplotlib

    from mee_utils.study import experiment as companion
    from mee_utils.study import results

    matplotlib.use("Agg")
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    monkeypatch.chdir(ROOT / "notebooks")

    def refuse(*arguments, **options):
        raise AssertionError("08 must not load a model")

    for name in ("models", "classifiers", "tasks"):
        monkeypatch.setattr(companion.Experiment, name, refuse)
    names = {}
    for cell in read_source("08_results").cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, "08_results", "exec"), names)
    assert results.output_root() == tmp_path
    committed, again = ROOT / "figures/small/08_results", tmp_path / "build/trials/small/08_results"
    files = {path.name for path in committed.glob("*.*") if path.suffix != ".json"}
    assert files == {path.name for path in again.glob("*.*") if path.suffix != ".json"} and len(files) > 20
    assert [
        name for name in sorted(files) if (committed / name).read_bytes() != (again / name).read_bytes()
    ] == []
