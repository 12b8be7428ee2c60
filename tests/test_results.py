"""What follows from stored measurements: calibration, the guarantee, fronts; and 08 without a model."""

import json
from contextlib import suppress
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from mee_utils import ExitPolicy, MeeError
from mee_utils.analysis import beside_full, calibration, statistics
from mee_utils.companion import claims, figures, results, verdicts
from mee_utils.companion import result_tables as stored
from mee_utils.companion.catalogue import RULES
from mee_utils.companion.inputs import weights_digest
from mee_utils.companion.profiles import load_profile
from mee_utils.companion.running import digests, freshness, status
from mee_utils.companion.running.notebook_files import declared_parameters, read_source
from mee_utils.companion.statement import NoRows, Rows, Untestable
from mee_utils.companion.statements import statements_of

ROOT = Path(__file__).parent.parent


def examples_of(loss, share, scores=None):
    """Examples of a made-up setting: consistency losses, scores, FLOPs as a share of full depth."""
    tokens = np.full(len(loss), 10)
    score = 100 * (1 - loss / 2) if scores is None else scores
    flops, layers = (1000 * share * tokens).astype(int), (12 * share * tokens).astype(int)
    return pd.DataFrame({"loss": loss, "score": score, "flops": flops, "tokens": tokens, "layers": layers})


SETTINGS = [
    ("full_depth", np.nan, 0.0, 1.0),
    ("fixed", 0.9, 0.0, 0.9),
    ("fixed", 0.7, 0.05, 0.7),
    ("fixed", 0.5, 0.4, 0.5),
    ("static", 8.0, 0.02, 0.8),
    ("static", 4.0, 0.6, 0.3),
    ("oracle", np.nan, 0.0, 0.2),
]


def measured(settings=SETTINGS, change=lambda part, rule, threshold, examples: examples):
    """Made-up measurements of one model and task; n = 400."""
    rows, kept = [], []
    for part in ("validation", "test"):
        for rule, threshold, mean, share in settings:
            loss = np.array([mean * (0.5 if i % 4 < 2 else 1.5) for i in range(400)])
            kept.append(change(part, rule, threshold, examples_of(loss, share)))
            rows.append([part, "translation", "calm", rule, threshold])
    settings = pd.DataFrame(rows, columns=["part", *stored.KEYS])
    return stored.Measured(settings, kept, 0.05, (0.1,), (0.05,))


def test_a_setting_is_set_beside_full_depth():
    found = measured().rows(rule="fixed").set_index("threshold").loc[0.5]
    assert found.retained == pytest.approx(0.8) and found.consistency_loss == pytest.approx(0.4)
    assert found.risk_loss == pytest.approx(0.2) and found.flops_share == pytest.approx(0.5)
    assert found.mean_exit_layer == pytest.approx(6) and found.length_share == 1
    assert found.low < 0.8 < found.high and found.flops_low == found.flops_high  # all examples cost alike


def test_intervals_and_draws_are_computed_when_they_are_asked_for(monkeypatch):
    """Thousands of settings are stored: reading them resamples none."""
    resampled = []
    of_settings = beside_full.beside_full

    def counted(settings, full):
        resampled.append(len(settings))
        return of_settings(settings, full)

    for module in (beside_full, stored):
        monkeypatch.setattr(module, "beside_full", counted)
    results = measured()
    assert len(results.select("validation")) == 7 and results.tested == "400" and not resampled
    rows = results.rows(rule="fixed")
    pd.testing.assert_frame_equal(
        results.rows(rule="fixed").drop(columns="retained_draws"), rows.drop(columns="retained_draws")
    )
    assert resampled == [3], "each setting once"
    low, high = statistics.percentiles(np.asarray(rows.retained_draws.iloc[1]))
    assert (low, high) == pytest.approx((rows.low.iloc[1], rows.high.iloc[1])) and resampled == [3, 1]
    at_once = results.beside_full(results.select(rule="fixed"))["flops_share"]
    assert at_once.low == pytest.approx(rows.flops_low) and at_once.high == pytest.approx(rows.flops_high)


def test_a_line_through_settings_is_crossed_where_it_first_loses_more():
    loss, flops = np.array([0.02, 0.01, 0.06]), np.array([0.8, 0.9, 0.4])
    for wanted in (0.02, 0.03, 0.06):
        one = verdicts.crossing(loss, flops, wanted)
        highest = np.maximum.accumulate(loss)
        assert one == pytest.approx(np.interp(wanted, highest[1:], flops[1:]))
    assert np.isnan(verdicts.crossing(loss, flops, 0.019)), "nothing was measured there"
    assert verdicts.crossing(loss, flops, 0.07) == 0.4, "the cheapest where none loses as much"
    several = np.stack([loss, loss / 2, loss * 2]), np.stack([flops] * 3)
    each = [verdicts.crossing(*point, 0.03) for point in zip(*several, strict=True)]
    np.testing.assert_allclose(verdicts.crossing(*several, 0.03), each)
    assert np.isnan(each[2])


def test_each_rule_gets_the_last_threshold_that_passed_and_is_reported_on_other_examples():
    demands = {"consistency": (0.001, 0.1), "risk": (0.1,)}

    def lucky(part, rule, threshold, examples):
        loss = np.where(np.arange(400) % 2, 0.3, 0.0)
        return examples.assign(loss=loss) if threshold == 0.7 else examples

    keys = ["rule", "kind", "delta", "bound"]
    found = verdicts.calibrated(measured(), "calm", demands).set_index(keys)
    at = found.loc[("fixed", "consistency", 0.1, "hoeffding_bentkus")]
    assert at.threshold == 0.7 and at.flops_share == 0.7 and at.found and at.mean_loss == pytest.approx(0.05)
    assert found.loc[("static", "consistency", 0.1, "betting")].threshold == 8
    nothing = found.loc[("static", "consistency", 0.001, "hoeffding_bentkus")]
    assert not nothing.found and np.isnan(nothing.threshold) and nothing.flops_share == 1
    assert found.loc[("fixed", "risk", 0.1, "hoeffding_bentkus")].mean_loss == pytest.approx(0.025)
    changed = verdicts.calibrated(measured(change=lucky), "calm", demands).set_index(keys)
    at = changed.loc[("fixed", "consistency", 0.1, "hoeffding_bentkus")]
    assert at.threshold == 0.7 and at.mean_loss == pytest.approx(0.3)  # the lucky half has calibrated


def test_promises_are_broken_as_often_as_they_may_and_without_a_test_more_often():
    random, means = np.random.default_rng(0), (0.0, 0.04, 0.11, 0.5)
    losses = np.stack([random.random(50_000) < mean for mean in means]).astype(float)
    losses[0, 0] = 1.0  # so small a mean that no guarantee is asked for just below it
    found = calibration.broken_guarantees(losses, [0.9, 0.8, 0.7, 0.6], (0.1,), 0.05, 200)
    assert len(found) == 3 * 200 and not found[found.threshold == 0.8].violated.any()
    assert found[found.threshold == 0.7].violated.all()  # the third is just not good enough
    parts = [
        pd.DataFrame({"threshold": level, "loss": row}) for level, row in zip("abcd", losses, strict=True)
    ]
    fresh = pd.concat(parts).assign(rule="fixed", threshold=lambda rows: rows.threshold.map(ord) * -1.0)
    rates = verdicts.fresh_rates(fresh, (0.1,), 0.05, 200)
    just_below = pytest.approx([0.99 * 0.04, 0.1, 0.99 * 0.11, 0.99 * 0.5], rel=0.05)
    assert sorted(rates.delta.unique()) == just_below
    untested, tested = rates[rates.bound == "no_test"], rates[rates.bound != "no_test"]
    assert untested.violated.max() > 0.2 and untested.p_value.min() < 1e-6
    assert (tested.violated <= tested.limit).all() and (tested.p_value > 0.05).all()
    assert (rates.sets == 200).all() and (tested[tested.delta == 0.1].passed > 0.9).all()
    with pytest.raises(MeeError, match="fewer sets"):
        calibration.broken_guarantees(losses[:, :7], [0.9, 0.8, 0.7, 0.6], (0.5,), 0.05, 8)


def test_costs_at_equal_loss_lie_between_the_settings():
    found = verdicts.at_equal_loss(measured(), "calm", (0.025, 0.225, 0.5)).set_index(["rule", "wanted"])
    assert found.flops_share["fixed", 0.025] == pytest.approx(0.8)
    assert found.flops_share["fixed", 0.225] == pytest.approx(0.6)
    assert found.flops_low["fixed", 0.225] < 0.6 < found.flops_high["fixed", 0.225]
    assert found.flops_share["static", 0.5] < 0.5
    assert found.flops_share["fixed", 0.5] == pytest.approx(0.5), "the cheapest where none loses as much"
    assert found.reading["fixed", 0.5] == "none loses so much"
    assert set(found.reading.drop(("fixed", 0.5))) == {"between settings"}


def test_nothing_is_read_off_outside_what_was_measured():
    """Static's strictest setting loses 2 %, and a rule that exits nowhere at 0.9 loses 5 % at its next."""

    def nobody_exits(part, rule, threshold, examples):
        stays = rule == "fixed" and threshold == 0.9
        return examples.assign(layers=12 * examples.tokens) if stays else examples

    found = verdicts.at_equal_loss(measured(change=nobody_exits), "calm", (0.01, 0.03, 0.06))
    found = found.set_index(["rule", "wanted"])
    assert found.reading["static", 0.01] == found.reading["fixed", 0.01] == "all lose more"
    assert found.reading["fixed", 0.03] == "all lose more", "the line does not begin at full depth"
    missing = found[found.reading == "all lose more"]
    assert missing[["flops_share", "flops_low", "flops_high"]].isna().all(axis=None)
    assert np.isnan(np.stack(missing.flops_share_draws)).all()
    assert found.flops_share.loc["fixed", 0.06] == pytest.approx(0.7, abs=0.01)
    assert found.flops_share["static", 0.03] < 0.8
    losing = [("full_depth", np.nan, 0.0, 1.0), ("static", 8.0, 0.2, 0.8)]
    only = verdicts.at_equal_loss(measured(losing), "calm", (0.1, 0.3)).set_index("wanted")
    assert only.reading.to_dict() == {0.1: "all lose more", 0.3: "none loses so much"}


def test_the_setting_within_a_loss_is_chosen_on_validation_examples():
    def chosen(demand, results):
        return verdicts.within_loss(results, "calm", demand).set_index("rule")

    def unlucky(part, rule, threshold, examples):
        return examples.assign(loss=examples.loss + 0.5 * (part == "test" and threshold == 0.7))

    kept = chosen(0.06, measured())
    assert kept.threshold.drop(["oracle", "full_depth"]).to_dict() == {"fixed": 0.7, "static": 8.0}
    assert set(kept.part) == {"test"} and np.isnan(kept.threshold["oracle"]) and len(kept) == 4
    assert chosen(0.01, measured()).threshold["static"] == 8.0, "the strictest, where even that loses more"
    worse = chosen(0.06, measured(change=unlucky))
    assert worse.threshold["fixed"] == 0.7 and worse.consistency_loss["fixed"] == pytest.approx(0.55)
    found = measured()
    tried = found.settings[(found.settings.part != "test") | (found.settings.threshold != 0.7)]
    fewer = stored.Measured(tried, found.examples, 0.05, (0.1,), (0.05,))
    assert chosen(0.06, fewer).threshold["fixed"] == 0.9, "the next stricter that was decoded"


def test_the_front_by_hand():
    assert list(verdicts.on_front([1, 2, 3, 2], [10, 20, 15, 20])) == [True, True, False, True]
    assert list(verdicts.on_front([1, 1, 2], [10, 11, 11])) == [False, True, False]
    front = verdicts.fronts(measured()).query("front")
    assert list(front.rule) == ["fixed", "fixed", "fixed", "static", "static"]
    assert set(front.part) == {"test"}  # the oracle, cheapest and best, does not count


def test_what_keeps_the_score_is_the_cheapest_that_passes_in_a_sequence_of_tests():
    kept = verdicts.keeping(measured(), "calm", 0.965).set_index("rule")
    assert kept.threshold.to_dict() == {"fixed": 0.7, "static": 8.0} and set(kept.verdict) == {"keeps it"}
    assert set(kept.part) == {"test"} and kept.flops_share["fixed"] == pytest.approx(0.7)
    barely = verdicts.keeping(measured(), "calm", measured().rows(threshold=0.7).low.item() - 1e-9)
    barely = barely.set_index("rule")
    assert barely.threshold["fixed"] == 0.7

    def worse(*levels):
        def change(part, rule, threshold, examples):
            return examples.assign(score=examples.score - 10 * (part == "test" and threshold in levels))

        return verdicts.keeping(measured(change=change), "calm", 0.965).set_index("rule")

    assert worse(0.7).threshold["fixed"] == 0.9 and worse(0.7).verdict["fixed"] == "keeps it"
    assert worse(0.9).threshold["fixed"] == 0.9  # nothing behind it is tested
    assert worse(0.9).verdict["fixed"] == "does not keep it"
    assert verdicts.keeping(measured(), "calm", 0.999).set_index("rule").threshold["fixed"] == 0.9


def test_settings_are_tested_in_the_order_in_which_validation_ranks_them():
    """An unlucky first step does not end a rule: 0.9 is worse than 0.7 on validation and test examples."""

    def unlucky(part, rule, threshold, examples):
        return examples.assign(score=examples.score - 10 * (threshold == 0.9))

    found = measured(change=unlucky)
    kept = verdicts.keeping(found, "calm", 0.965).set_index("rule")
    assert kept.threshold["fixed"] == 0.7 and kept.verdict["fixed"] == "keeps it"
    settings = verdicts.strictest_first(found.select(rule="fixed"))
    order = verdicts.ranked(found, settings, found.select("validation", rule="fixed"), 0.965)
    assert list(settings.threshold[order.index]) == [0.7, 0.9, 0.5]
    order = verdicts.ranked(found, settings, found.select("validation", rule="fixed"), 0.7)
    assert list(settings.threshold[order.index]) == [0.9, 0.7, 0.5], (
        "of those that keep it the strictest first"
    )

    def only_on_test(part, rule, threshold, examples):
        return examples.assign(score=examples.score - 10 * (part == "test" and threshold == 0.9))

    kept = verdicts.keeping(measured(change=only_on_test), "calm", 0.965).set_index("rule")
    assert kept.verdict["fixed"] == "does not keep it", "test examples have no say in the order"


def test_the_cheapest_of_those_that_pass_is_chosen_by_validation_flops():
    def cheaper_by_luck(part, rule, threshold, examples):
        lucky = part == "test" and threshold == 0.9
        return examples.assign(flops=examples.flops // 2) if lucky else examples

    kept = verdicts.keeping(measured(change=cheaper_by_luck), "calm", 0.965).set_index("rule")
    assert kept.threshold["fixed"] == 0.7 and set(kept.part) == {"test"}


def test_of_rules_that_keep_less_no_more_than_one_in_forty_is_said_to_keep_the_score():
    """Simulated: two settings that keep more than 99 % of the score, and eight that keep just less.

    However many are tested, one that keeps less passes in at most 2.5 % of the runs (and noise); each tested
    by itself, they pass far more often.
    """
    random = np.random.default_rng(0)
    truly = np.array([0.995, 0.993, *[0.9899] * 7, 0.97])  # share kept by each setting
    examples = 200
    weights = statistics.resampled(examples, 500)
    runs = 400

    def means():
        """The share kept on new examples, `[setting]`."""
        return (truly + random.normal(0, 0.02, (examples, len(truly)))).mean(axis=0)

    def lower_bounds():
        """Of the share kept on new examples, `[setting]`."""
        kept = truly + random.normal(0, 0.02, (examples, len(truly)))
        return statistics.percentiles((weights @ kept) / weights.sum(axis=1, keepdims=True))[0]

    wrong = each_by_itself = 0
    for _ in range(runs):
        validation = means()
        order = np.r_[np.flatnonzero(validation >= 0.99), np.flatnonzero(validation < 0.99)]
        low = lower_bounds()  # on test examples
        passed = order[: verdicts.passing(low[order], 0.99)]
        wrong += (truly[passed] < 0.99).any()
        each_by_itself += (truly[low >= 0.99] < 0.99).any()
    chance = runs * 0.025 + 3 * (runs * 0.025 * 0.975) ** 0.5
    assert wrong <= chance < each_by_itself


def test_where_it_is_not_certain_the_verdict_is_undecided():
    noise = np.random.default_rng(0).normal(0, 20, 400)

    def noisy(part, rule, threshold, examples):
        noisy_score = examples.score + noise * (part == "test")
        return examples.assign(score=noisy_score) if threshold == 0.9 else examples

    found = measured(change=noisy)
    share = found.rows(threshold=0.9).retained.item()
    assert verdicts.keeping(found, "calm", share).set_index("rule").verdict["fixed"] == "undecided"


def test_the_quality_that_05_asks_for_is_the_profiles_in_its_table_and_its_text(capsys):
    source = read_source("05_mee_classifiers")
    assert declared_parameters(source)["quality"] is None
    cells = [cell.source for cell in source.cells if cell.cell_type == "code"]
    first = next(number for number, cell in enumerate(cells) if "keeping(stored" in cell)
    names = {
        **{"profile": "small", "tasks": ["translation"], "listed": ["fixed"], "MAIN_MODEL": "calm"},
        **{"read_measured": lambda *_: measured(), "keeping": verdicts.keeping, "KEEPS_IT": stored.KEEPS_IT},
        "experiment": SimpleNamespace(save_table=lambda table, name: table),
        **{"figures": figures, "display": lambda shown: None},
    }
    for quality, flops in {0.99: 0.9, 0.95: 0.7, 0.7: 0.5}.items():
        names["quality"] = quality
        exec("\n".join(cells[first : first + 2]), names)
        assert names["flops"].loc["fixed", "translation"] == pytest.approx(flops, abs=1e-4)
        assert capsys.readouterr().out.startswith(f"keep {quality:.0%} of the score")


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


def test_no_single_example_turns_a_verdict(monkeypatch):
    """Each example left out in turn, in place of resamples: what holds still holds, and so for what fails."""
    monkeypatch.setattr(statistics, "resampled", lambda units, *_: 1.0 - np.eye(units))
    measured, weighed = stored.read_measured("small"), 0
    equal = verdicts.at_equal_loss(measured, "calm", (0.05,))
    ledger = pd.read_csv(ROOT / "figures/small/08_results/claims.csv").set_index(["claim", "task"]).alone
    for each, task in product(statements_of("08_results"), measured.settings.task.unique()):
        settings, of_task = Rows("settings", measured.rows(task=task)), equal[equal.task == task]
        results = SimpleNamespace(settings=settings, equal=Rows("equal", of_task))
        if ledger.get((each.claim, task)) not in (claims.HOLDS, claims.FAILS):
            continue
        with suppress(
            AttributeError, NoRows, Untestable
        ):  # it reads other tables, or there is nothing to compare
            for margin, _ in each.compare(results)[1].margins:
                assert (np.sign(margin.draws) == np.sign(margin.value)).all(), (each.claim, task)
                weighed += 1
    assert weighed >= 6


def test_status_says_what_has_changed_since(tmp_path, monkeypatch):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    profile, folder = load_profile("small"), tmp_path / "small" / "measured"
    assert freshness.stored_result_changes(profile, "measured") is None
    run = results.Run("measured", "small", {}, folder)
    run.inputs["model calm"] = weights_digest(profile, "calm")
    run.save_table(pd.DataFrame({"a": [1.0]}), "table")
    run.finish()
    assert (
        freshness.stored_result_changes(profile, "measured") == []
        and dict(status.states(profile))["measured"] == "fresh"
    )
    made = json.loads((folder / "manifest.json").read_text())
    assert "companion/rules.yaml" in made["code"] and "companion/results.py" in made["code"]
    made["code"]["companion/results.py"] = made["inputs"]["model calm"] = "another"
    (folder / "manifest.json").write_text(json.dumps(made))
    (folder / "table.csv").write_text("a\n2.0\n")
    found = ["table.csv", "mee_utils/companion/results.py", "model calm"]
    assert freshness.stored_result_changes(profile, "measured") == found
    assert dict(status.states(profile))["measured"] == f"stale, changed since: {', '.join(found)}"


def test_words_about_code_are_not_code(tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "PACKAGE", tmp_path)
    module = tmp_path / "module.py"
    stored = []
    for text in ("x = 1\n", '"""Says more."""\n\nx = 1  # so\n', "x = 2\n"):
        module.write_text(text)
        stored.append(digests.code_digests([module])["module.py"])
    assert stored[0] == stored[1] != stored[2]


def test_a_stored_table_says_where_it_comes_from():
    lines = list(status.origin(str(ROOT / "figures/small/03_pruning/complete_table.csv")))
    cells = read_source("03_pruning").cells
    (place,) = [n for n, cell in enumerate(cells) if '"complete_table")' in cell.source]
    assert lines[0] == f"saved by notebooks/03_pruning.ipynb, cell {place}"
    said = dict(line.split(": ", 1) for line in lines[1:])
    assert {"profile", "parameters", "inputs"} <= set(said) and said["profile"] == "small"
    measured = list(status.origin(str(ROOT / "figures/small/measured/learning.csv")))
    assert measured[0] == "saved by make measure"
    for file in ("figures/small/03_pruning/none.csv", "README.md"):
        with pytest.raises(MeeError, match="no stored result"):
            list(status.origin(str(ROOT / file)))
