"""The best exits of each kind, from small tables whose answer is known."""

from functools import partial

import pandas as pd
import pytest

from mee_utils.companion import kinds
from mee_utils.companion.catalogue import RULES
from mee_utils.companion.result_tables import KEEPS_IT, UNDECIDED, Measured, read_timings

TASK = "translation"


def settings(rows, **columns):
    """Settings of a task from (rule, threshold, share of the score, FLOPs), with every bound at the share."""
    table = pd.DataFrame(rows, columns=["rule", "threshold", "retained", "flops_share"])
    return table.assign(task=TASK, model="calm", low=table.retained, verdict=KEEPS_IT, **columns)


KEPT = settings(
    [
        ("static", 11, 1.0, 0.93),
        ("softmax_margin", 0.9, 0.995, 1.4),
        ("few", 0.9, 0.995, 0.8),
        ("rising_fixed", 0.8, 0.995, 0.9),
        ("elbert", 0.8, 0.995, 0.7),
    ],
    validation_flops=[0.93, 1.4, 0.8, 0.6, 0.65],
)


def examples(score, flops):
    return pd.DataFrame({"loss": 0.0, "score": [score] * 20, "flops": flops, "tokens": 10, "layers": 60})


@pytest.fixture
def stored():
    """Fixed layers alone: layer 9 keeps the score on validation examples, and not on test examples."""
    rows, tables = [], []
    for part, of_nine in (("validation", 99.5), ("test", 96.0)):
        for rule, threshold, score, flops in [
            ("full_depth", float("nan"), 100.0, 1000),
            ("static", 11.0, 100.0, 930),
            ("static", 9.0, of_nine, 800),
            ("static", 5.0, 90.0, 600),
        ]:
            rows.append((part, TASK, "calm", rule, threshold))
            tables.append(examples(score, flops))
    columns = ["part", "task", "model", "rule", "threshold"]
    return Measured(pd.DataFrame(rows, columns=columns), tables, 0.05, (0.1,), (0.1,))


def test_every_rule_has_one_kind_and_references_none():
    found = {rule: kinds.kind_of(rule) for rule in RULES}
    assert found["static"] == kinds.FIXED and found["oracle"] is None and found["full_depth"] is None
    assert found["few"] == kinds.ONE and found["history"] == kinds.SEVERAL
    assert set(found.values()) == {kinds.FIXED, kinds.ONE, kinds.SEVERAL, None}


def test_of_each_kind_the_best_setting_counts_and_of_equal_ones_the_first():
    table = pd.concat([KEPT, settings([("oracle", 0.0, 1.0, 0.3), ("entropy", 0.1, 1.0, 0.8)])])
    cheapest = kinds.best_of_kind(table, "flops_share").set_index("kind")
    assert cheapest.rule.to_dict() == {kinds.SEVERAL: "elbert", kinds.ONE: "few", kinds.FIXED: "static"}
    dearest = kinds.best_of_kind(table, "flops_share", ascending=False).set_index("kind")
    assert dearest.rule[kinds.ONE] == "softmax_margin"
    by_family = kinds.best_of_kind(table, "flops_share", kind=kinds.family_of).set_index("kind")
    assert by_family.rule["pruned"] == "few" and by_family.rule["probabilities"] == "entropy"
    two = pd.concat([table, table.assign(task="summarization")])
    assert len(kinds.best_of_kind(two, "flops_share")) == 2 * len(cheapest)


def test_one_setting_a_family_is_timed_and_validation_examples_choose_it(stored):
    table = kinds.settings_to_time(stored, KEPT).set_index("kind")
    assert list(table.index) == [kinds.FIXED, "probabilities", "pruned", "several layers"]
    assert table.rule["several layers"] == "rising_fixed", "the cheapest there, though not on test examples"
    assert (table.threshold[kinds.FIXED], table.retained[kinds.FIXED]) == (9, 0.96)
    unsure = KEPT.assign(verdict=KEPT.verdict.mask(KEPT.rule == "rising_fixed", UNDECIDED))
    assert kinds.settings_to_time(stored, unsure).set_index("kind").rule["several layers"] == "elbert"
    looser = kinds.settings_to_time(stored, KEPT, quality=0.85).set_index("kind")
    assert looser.threshold[kinds.FIXED] == 5


def test_timings_stand_beside_what_is_kept_and_lossless_drafts_behind(stored, tmp_path, monkeypatch):
    chosen = kinds.settings_to_time(stored, KEPT)
    columns = {"processor": "A", "profile": "small", "again": 1.0, "again_low": 0.9, "again_high": 1.1}
    timed = chosen[["kind", "task", "model", "rule", "threshold"]].iloc[:3].assign(batch=1, **columns)
    timed = timed.assign(speed=[1.1, 0.8, 1.2], low=[1.0, 0.7, 1.1], high=[1.2, 0.9, 1.3])
    drafts = timed.iloc[:1].assign(kind=kinds.VERIFIED, rule="few", threshold=0.2, speed=1.3)
    stored_timings = pd.concat([timed, drafts, timed.assign(batch=32, speed=9.0)])
    monkeypatch.setattr("mee_utils.companion.result_tables.BENCH", tmp_path)
    stored_timings.to_csv(tmp_path / "exits.csv", index=False)
    monkeypatch.setattr(kinds, "read_timings", partial(read_timings, folder=tmp_path))
    table = kinds.with_timings("small", chosen).set_index("kind")
    assert [*table.index] == [*chosen.kind, *kinds.LOSSLESS]
    assert table.speed.tolist()[:3] == [1.1, 0.8, 1.2] and table.speed.isna()["several layers"]
    assert table.speed[kinds.VERIFIED] == 1.3 and (table.retained[[*kinds.LOSSLESS]] == 1).all()
    assert table.speed[[kinds.COPIES, kinds.PLANNED]].isna().all()
    assert table.speed_low["pruned"] == 1.1 and table.low["pruned"] == 0.995 and table.again["pruned"] == 1
