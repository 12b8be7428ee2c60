"""Stored decodings and what follows from them: grids, curves, calibration, the guarantee, fronts, the ledger; and 06 without a model."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import INPUTS, LENGTH, build_lively

from mee_utils import CompanionError, ExitPolicy, claims, decoded, generate, replay, stored, trace
from mee_utils.bench import stored_results
from mee_utils.evaluation import curves, verdicts
from mee_utils.notebook import read_source
from mee_utils.profiles import load_profile
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
        lively_t5, task, {"margin": (margin, [1.0, 0.2, 0.0, 0.0])}, {"task": "translation", "model": "t5"}, max_new_tokens=LENGTH
    )  # fmt: skip
    rows = pd.DataFrame(found.rows)
    assert list(rows.rule)[:2] == ["none", "margin"] and rows.loss[0] == 0 and rows.retained[0] == rows.flops_share[0] == 1
    assert rows.loss[1] == 0 and rows.mean_exit_layer[1] == 4  # a threshold of 1 is never exceeded
    assert (rows.loss[:-1] <= curves.ENOUGH).all() and rows.loss.iloc[-1] > curves.ENOUGH and len(rows) < 5
    for row, losses, examples in zip(found.rows[1:], found.losses[1:], found.examples[1:], strict=True):
        out = generate(lively_t5, INPUTS, margin(row["threshold"]), max_new_tokens=LENGTH)
        assert examples == pytest.approx(task.score_examples(out.texts)[task.metric])
        assert row["mean_exit_layer"] == out.mean_exit_layer and losses.mean() == row["loss"]


def made_decodings():
    """Two tasks' worth of a rule whose losses are known; n = 400, so that the mean alone decides."""
    rows, losses, examples = [], [], []
    settings = [("none", np.nan, 0.0, 1.0), ("margin", 0.9, 0.01, 0.9), ("margin", 0.7, 0.05, 0.7), ("margin", 0.5, 0.4, 0.5), ("static", 8.0, 0.02, 0.8),
                ("static", 4.0, 0.6, 0.3), ("oracle", np.nan, 0.0, 0.2)]  # fmt: skip
    for rule, threshold, mean, share in settings:
        loss = np.array([mean * (0.5 if i % 2 else 1.5) for i in range(400)])
        rows.append({"task": "translation", "model": "calm", "rule": rule, "threshold": threshold, "score": 100 * (1 - mean), "retained": 1 - mean, "low": 0.0, "high": 1.0,
                     "mean_exit_layer": 12 * share, "flops_share": share, "same_output": 1.0})  # fmt: skip
        losses.append(loss)
        examples.append(100 * (1 - loss / 2))
    return stored.Decodings(pd.DataFrame(rows), losses, examples, 0.05, (0.1,), (0.05,))


def test_each_rule_gets_the_last_threshold_that_passed():
    found = verdicts.calibrated(made_decodings(), "calm", {"textual": (0.001, 0.1), "risk": (0.1,)}).set_index(["rule", "kind", "delta", "bound"])
    at = found.loc[("margin", "textual", 0.1, "hoeffding_bentkus")]
    assert at.threshold == 0.7 and at.flops_share == 0.7 and at.found and at.mean_loss == pytest.approx(0.05)
    assert found.loc[("static", "textual", 0.1, "betting")].threshold == 8
    nothing = found.loc[("margin", "textual", 0.001, "hoeffding_bentkus")]
    assert not nothing.found and np.isnan(nothing.threshold) and nothing.flops_share == 1 and nothing.mean_loss == 0
    assert found.loc[("margin", "risk", 0.1, "hoeffding_bentkus")].mean_loss == pytest.approx(0.025)  # half of the textual loss, by construction


def test_the_guarantee_holds_where_taking_the_mean_at_its_word_does_not():
    pool = [(np.arange(200) < bad).astype(float) for bad in (0, 4, 21, 100)]
    rows = pd.DataFrame({"task": "translation", "model": "calm", "rule": ["none", *["margin"] * 3], "threshold": [np.nan, 0.9, 0.8, 0.7]})
    found = verdicts.guarantee(stored.Decodings(rows, pool, pool, 0.05, (0.1,), ()), "calm", {"textual": (0.1,)}, splits=200).set_index("bound")
    assert pool[2].mean() > 0.1  # the second threshold is just not good enough
    assert found.violated["no_test"] > 0.2 and found.violated["hoeffding_bentkus"] <= 0.05 and found.violated["betting"] <= 0.05
    assert found.passed["hoeffding_bentkus"] > 0.8


def test_a_binomial_limit_by_simulation():
    draws = np.random.default_rng(0).binomial(30, 0.05, 20000) / 30
    limit = verdicts.binomial_limit(30, 0.05)
    assert (draws <= limit).mean() >= 0.95 and (draws < limit).mean() < 0.95


def test_fresh_samples_are_disjoint_sets_judged_by_the_population(lively_t5, task):
    seen = trace(lively_t5, INPUTS, max_new_tokens=LENGTH)
    found = curves.fresh_samples(seen, lively_t5, task, {"margin": (margin, [1.0, 0.0])}, (0.5,), 0.05, 7, LENGTH)
    assert len(found) == 3 * 7 and set(found.bound) == {"hoeffding_bentkus", "betting", "no_test"}
    population = curves.replayed_losses(seen, lively_t5, task, margin(1.0), [1.0, 0.0], max_new_tokens=LENGTH)
    careless = found[(found.bound == "no_test") & (found.threshold == 0.0)]
    assert len(careless) == (population[1] <= 0.5).sum() and (careless.violated == (population[1].mean() > 0.5)).all()
    assert found[found.bound == "hoeffding_bentkus"].threshold.isna().all()  # one example proves nothing
    rates = verdicts.fresh_rates(found, 0.05)
    assert list(rates.sets) == [7, 7, 7] and rates.limit[0] == verdicts.binomial_limit(7, 0.05)
    with pytest.raises(CompanionError, match="fewer sets"):
        curves.fresh_samples(seen, lively_t5, task, {}, (0.5,), 0.05, 8, LENGTH)


def test_the_front_by_hand():
    assert list(verdicts.on_front([1, 2, 3, 2], [10, 20, 15, 20])) == [True, True, False, True]
    assert list(verdicts.on_front([1, 1, 2], [10, 11, 11])) == [False, True, False]
    found = verdicts.fronts(made_decodings())
    assert list(found[found.front].rule) == ["none", "margin", "margin", "margin", "static", "static"]  # the oracle, cheapest and best, does not count


def test_what_keeps_the_score_is_the_cheapest_and_is_checked():
    found = verdicts.keeping(made_decodings(), 0.97).set_index("rule")
    assert found.threshold["margin"] == 0.9 and found.threshold["static"] == 8 and "oracle" in found.index
    timed = verdicts.timed(made_decodings(), "calm", 0.97)
    assert set(map(tuple, timed[["rule", "threshold"]].to_numpy())) == {("margin", 0.9), ("margin", 0.7), ("static", 8.0), ("static", 4.0)}


def test_what_keeps_the_score_on_both_halves():
    found = made_decodings()
    found.examples[1][1::2] *= 0.95  # the careful margin: good on the first half alone
    kept = verdicts.keeping_on_both(found, "calm", 0.961).set_index(["rule", "threshold"])
    assert ("margin", 0.9) not in kept.index and ("margin", 0.7) in kept.index and ("static", 8.0) in kept.index
    assert (kept[["first_half", "second_half"]] >= 0.961).all(axis=None) and kept.cheapest.all()
    assert verdicts.keeping_on_both(found, "calm", 1.1).empty


def test_the_answer_names_the_fastest_of_each_kind():
    kept = pd.DataFrame({"task": "translation", "rule": ["three_hidden", "three_hidden", "softmax_margin"], "threshold": [0.9, 0.5, 0.8],
                         "flops_share": [0.8, 0.9, 0.7]})  # fmt: skip
    times = kept.assign(batch=1, speed=[1.2, 1.4, 1.1], lowest=[1.1, 1.3, 1.0], highest=[1.3, 1.5, 1.2])
    answer = verdicts.fastest(times)
    assert list(answer.threshold) == [0.5, 0.8]
    text = "\n".join(verdicts.answer_lines(kept, answer, ["translation", "summarization"], 0.99, str))
    assert "several blocks 1.40 (1.30 to 1.50, three_hidden); other rules 1.10 (1.00 to 1.20, softmax_margin); a fixed block: none timed" in text
    assert "softmax_margin with 70%" in text and "summarization: no rule keeps 99%" in text


def test_times_are_found_by_setting(tmp_path):
    lines = {"profile": "small", "task": "translation", "model": "calm", "batch": [1, 100], "rule": "margin", "threshold": 0.12344, "speed": [1.5, 1.2],
             "lowest": 1.0, "highest": 2.0, "samples_speed": 1.4}  # fmt: skip
    pd.DataFrame(lines).to_csv(tmp_path / "results.csv", index=False)
    wanted = pd.DataFrame({"task": "translation", "model": "calm", "rule": ["margin", "margin", "oracle"], "threshold": [0.1234, 0.5, np.nan], "score": 3.0})
    found = stored_results("small", wanted, tmp_path / "results.csv")
    assert list(found.speed) == [1.5, 1.2] and list(found.score) == [3, 3]
    assert stored_results("small", wanted, tmp_path / "none.csv").empty and stored_results("real", wanted, tmp_path / "results.csv").empty


def write(folder, settings, losses, examples):
    folder.mkdir(parents=True)
    for name, table in (("settings", settings), ("losses", losses), ("examples", examples)):
        table.to_csv(folder / f"{name}.csv", index=False)
    (folder / "manifest.json").write_text(json.dumps({"parameters": {"eps": 0.05, "deltas": [0.1], "risk_deltas": [0.05]}, "files": {}}))


def test_decodings_are_read_back_and_must_belong_together(tmp_path, monkeypatch):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    keys = pd.DataFrame({"task": "translation", "model": "calm", "rule": ["none", "margin"], "threshold": [np.nan, 0.5]})
    wide = pd.concat([keys, pd.DataFrame([[0.0, 0.0, np.nan], [0.1, 0.2, 0.3]])], axis=1)
    write(tmp_path / "small" / "decoded", keys.assign(score=1.0), wide, wide.assign(**{"0": 100.0}))
    found = stored.decodings("small")
    assert [list(row) for row in found.losses] == [[0, 0], [0.1, 0.2, 0.3]] and found.deltas == (0.1,)
    wide.iloc[::-1].to_csv(tmp_path / "small" / "decoded" / "losses.csv", index=False)
    with pytest.raises(CompanionError, match="does not belong to settings.csv"):
        stored.decodings("small")
    with pytest.raises(CompanionError, match="make reproduce PROFILE=small"):
        stored.read_table("small", "01_monotonicity", "nothing_like_it")
    with pytest.raises(CompanionError, match='no profile "smal"'):
        stored.decodings("smal")


def stub(profile, data, job, files):
    stub.calls.append(job)
    row = {"task": job.task, "model": job.model, "rule": "none", "threshold": float("nan"), "score": 1.0}
    arrays = {"losses": [[0.0, 0.0]], "examples": [[100.0, 50.0]]}
    return {"rows": [row if job.what == "curves" else {"what": job.what, "value": 1.0}], "seconds": 0.0, **(arrays if job.what == "curves" else {})}


@pytest.fixture
def stubbed(monkeypatch, tmp_path):
    """The whole of `decode` with jobs that cost nothing."""
    stub.calls = []
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path / "figures"))
    monkeypatch.setattr(decoded, "run_job", stub)
    monkeypatch.setattr(decoded, "train_classifiers", lambda profile, data: {})
    monkeypatch.setattr(decoded.os, "cpu_count", lambda: 1)
    monkeypatch.setattr(decoded.Job, "path", lambda job, profile: tmp_path / "build" / f"{job.what}-{job.model}-{job.task}.json")
    return load_profile("small")


def test_a_decoded_job_is_kept_and_a_broken_one_is_made_anew(stubbed, tmp_path):
    lines = []
    folder = decoded.decode(stubbed, progress=lines.append)
    assert len(stub.calls) == len(decoded.jobs(stubbed)) == 2 + 3 * len(stubbed.training.backbones) == len(lines)
    first = {path.name: path.read_bytes() for path in folder.glob("*.csv")}
    assert set(first) == {"settings.csv", "losses.csv", "examples.csv", "fresh.csv", "faults.csv"}
    assert list(pd.read_csv(folder / "settings.csv").task.unique()) == list(stubbed.corpora)
    stub.calls.clear()
    decoded.decode(stubbed, progress=lines.append)
    assert stub.calls == []  # all there
    broken = tmp_path / "build" / "curves-calm-translation.json"
    broken.write_text(broken.read_text()[:40])
    decoded.decode(stubbed, progress=lines.append)
    assert [job.task for job in stub.calls] == ["translation"]
    stub.calls.clear()
    decoded.decode(stubbed, force=True, progress=lines.append)
    assert len(stub.calls) == len(decoded.jobs(stubbed))
    assert first == {path.name: path.read_bytes() for path in folder.glob("*.csv")}


def test_other_settings_weights_or_code_are_another_job(monkeypatch, tmp_path):
    profile = load_profile("small")
    job, weights = decoded.Job("calm", "translation"), {"calm": "a"}
    keys = [decoded.job_key(profile, None, job, weights), decoded.job_key(profile, None, job, {"calm": "b"}),
            decoded.job_key(profile.model_copy(update={"results": profile.results.model_copy(update={"examples": 7})}), None, job, weights)]  # fmt: skip
    (tmp_path / "decoding").mkdir()
    (tmp_path / "decoding" / "one.py").write_text("x = 1\n")
    monkeypatch.setattr(decoded, "PACKAGE", tmp_path)
    monkeypatch.setattr(decoded, "CODE", ("decoding",))
    before = decoded.job_key(profile, None, job, weights)
    (tmp_path / "decoding" / "one.py").write_text("x = 2\n")
    assert len({*keys, before, decoded.job_key(profile, None, job, weights)}) == 5


@pytest.mark.parametrize(
    ("rule", "threshold", "expected"),
    [
        ("static", 6.0, ExitPolicy("static", min_layer=6)),
        ("oracle", float("nan"), ExitPolicy("oracle", min_layer=4)),
        ("fixed", 0.8, ExitPolicy("softmax_margin", threshold=0.8, min_layer=4, pruning="fixed", top_k=64)),
        ("decaying", 0.8, ExitPolicy("softmax_margin", threshold=0.8, min_layer=4, pruning="decaying", top_k=256, least_k=16)),
        ("jsd_fixed", 0.8, ExitPolicy("softmax_margin", threshold=0.8, min_layer=4, pruning="fixed", top_k=64, contrast="jsd")),
        ("hidden_similarity", 0.8, ExitPolicy("hidden_similarity", threshold=0.8, min_layer=4)),
        ("free_adaptive", float("nan"), ExitPolicy("max_probability", threshold="adaptive", propagation="parallel", exit_layers=[4])),
    ],
)  # fmt: skip
def test_rules_are_what_their_names_say(rule, threshold, expected):
    found = decoded.rule_policy(rule, threshold, load_profile("small").results, {})
    assert repr(found) == repr(expected)


def test_the_ledger_counts_tasks():
    lines = [("a", "x", "holds"), ("a", "y", "holds"), ("b", "x", "holds"), ("b", "y", "does not hold"), ("c", "x", "cannot be tested")]
    table = pd.DataFrame(lines, columns=["claim", "task", "verdict"]).assign(source="s", statement="t", published="p", ours="1")
    found = claims.ledger(table.assign(notebook="01_monotonicity"), table[table.claim == "a"].assign(claim="d", verdict="does not hold")).set_index("claim")
    assert list(found.verdict) == ["holds", "holds on some tasks", "cannot be tested", "does not hold"]
    assert list(found.held) == [2, 1, 0, 0] and found.notebook["d"] == "06_results" and found.ours["a"] == "1; 1"


def test_claims_of_results_can_hold_and_can_fail():
    row = {"task": "translation", "model": "calm"}
    rates = pd.DataFrame([{**row, "bound": "betting", "violated": v} for v in (0.0, 0.2)])
    judged = claims.results_claims(0.05)[0]
    assert not judged.holds({"rates": rates}) and judged.holds({"rates": rates[:1]}) and "20%" in judged.measure({"rates": rates})


def test_notebook_06_is_drawn_without_a_model(monkeypatch, tmp_path):
    """Its code run in this process where no model can be loaded: every file comes out as it is stored."""
    import matplotlib

    from mee_utils import companion, results

    matplotlib.use("Agg")
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    monkeypatch.chdir(ROOT / "notebooks")

    def refuse(*arguments, **options):
        raise AssertionError("06 must not load a model")

    for name in ("models", "classifiers", "tasks", "training_tasks"):
        monkeypatch.setattr(companion.Companion, name, refuse)
    names = {}
    for cell in read_source("06_results").cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, "06_results", "exec"), names)
    assert results.output_root() == tmp_path
    committed, again = ROOT / "figures/small/06_results", tmp_path / "small/06_results"
    files = {path.name for path in committed.glob("*.*") if path.suffix != ".json"}
    assert files == {path.name for path in again.glob("*.*") if path.suffix != ".json"} and len(files) > 20
    assert [name for name in sorted(files) if (committed / name).read_bytes() != (again / name).read_bytes()] == []


def test_at_least_24_statements_are_in_the_ledger():
    for profile in ("small", "real"):
        found = pd.read_csv(ROOT / "figures" / profile / "06_results" / "ledger.csv")
        assert len(found) >= 24 and found.claim.is_unique and found.statement.str.len().min() > 20
        assert set(found.verdict) <= {"holds", "does not hold", "holds on some tasks", "cannot be tested"}
        assert {name[:2] for name in found.notebook} == {"01", "02", "03", "04", "05", "06"}
    assert re.search(r"\d", " ".join(found.ours.dropna()))
