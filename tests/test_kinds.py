"""The best exits of each kind, from small tables whose answer is known."""

import pandas as pd
import pytest

from mee_utils.companion import kinds
from mee_utils.companion.catalogue import RULES
from mee_utils.companion.result_tables import KEEPS_IT, UNDECIDED

TASK = "translation"


def settings(rows, **columns):
    """Settings of a task from (rule, threshold, share of the score, FLOPs), with every bound at the share."""
    table = pd.DataFrame(rows, columns=["rule", "threshold", "retained", "flops_share"])
    return table.assign(task=TASK, model="calm", low=table.retained, verdict=KEEPS_IT, **columns)


STATIC = settings([("static", 11, 1.0, 0.93), ("static", 9, 0.96, 0.8), ("static", 5, 0.9, 0.6)])
KEPT = settings(
    [
        ("static", 11, 1.0, 0.93),
        ("softmax_margin", 0.9, 0.995, 1.4),
        ("few", 0.9, 0.995, 0.8),
        ("rising_fixed", 0.8, 0.995, 0.9),
        ("elbert", 0.8, 0.995, 0.7),
    ]
)
SPEEDS = {("static", 11): 1.05, ("static", 9): 1.2, ("softmax_margin", 0.9): 0.8, ("elbert", 0.8): 1.1}


@pytest.fixture
def timed(monkeypatch):
    """A benchmark that has timed `SPEEDS`, and drafts: what ranks a setting is not what it is shown with."""

    def read_timings(part, wanted, profile):
        if part == "lossless":
            times = wanted.assign(batch=1, rule="few", threshold=float("nan"), speed=1.3, lowest=1.2)
        else:
            chosen = wanted[[key in SPEEDS for key in zip(wanted.rule, wanted.threshold, strict=True)]]
            speeds = [SPEEDS[row.rule, row.threshold] for row in chosen.itertuples()]
            alone = chosen.assign(batch=1, ranked=speeds, speed=[speed + 0.01 for speed in speeds])
            times = pd.concat([alone, alone.assign(batch=32, ranked=9.0)])
            times = times.assign(lowest=times.speed - 0.05)
        times = times.assign(highest=times.speed + 0.05)
        times.attrs["processor"] = "a machine"
        return times

    monkeypatch.setattr(kinds, "read_timings", read_timings)


def test_every_rule_has_one_kind_and_references_none():
    found = {rule: kinds.kind_of(rule) for rule in RULES}
    assert found["static"] == kinds.FIXED and found["oracle"] is None and found["full_depth"] is None
    assert found["few"] == kinds.ONE and found["history"] == kinds.SEVERAL
    assert set(found.values()) == {*kinds.KINDS, None} - {kinds.VERIFIED}


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


def test_the_headline_has_the_fastest_of_each_kind_and_counts_the_rest(timed):
    table = kinds.headline_table("small", KEPT, STATIC).set_index("kind")
    assert list(table.index) == list(kinds.KINDS) and [*table.reset_index()][:2] == ["kind", "task"]
    assert table.rule.tolist() == ["static", "softmax_margin", "elbert", "few"]
    assert table.speed.tolist() == pytest.approx([1.06, 0.81, 1.11, 1.3]), "the half that did not rank"
    assert table.untimed.tolist()[:3] == [0, 1, 1], "few and rising_fixed"
    assert table.faster.tolist() == [1, 0, 1, 1]
    assert set(table.part) == {"kept", "lossless"}


def test_rules_count_that_keep_the_quality_reliably_and_layers_that_do_at_the_asked_for_share(timed):
    """The share was 0.99 here, whatever notebook 08 was asked for."""
    unsure = KEPT.assign(verdict=KEPT.verdict.mask(KEPT.rule == "elbert", UNDECIDED))
    chosen = kinds.settings_that_decide_alone(unsure, STATIC)
    assert "elbert" not in set(chosen.rule) and list(chosen.threshold[chosen.rule == "static"]) == [11]
    looser = kinds.settings_that_decide_alone(unsure, STATIC, quality=0.95)
    assert list(looser.threshold[looser.rule == "static"]) == [11, 9]
    table = kinds.headline_table("small", KEPT, STATIC, quality=0.95).set_index("kind")
    assert table.threshold[kinds.FIXED] == 9


def test_what_was_not_timed_has_no_speed(timed, monkeypatch):
    monkeypatch.setattr("test_kinds.SPEEDS", {})
    table = kinds.headline_table("small", KEPT, STATIC).set_index("kind")
    assert table.speed[[kinds.FIXED, kinds.ONE, kinds.SEVERAL]].isna().all()
    assert table.untimed[kinds.ONE] == 2 and table.speed[kinds.VERIFIED] == 1.3
