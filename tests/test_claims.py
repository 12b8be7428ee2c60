"""Statements of the papers on tables in which they are true, false, or cannot be tested."""

import re
from pathlib import Path

import pandas as pd
import pytest

from mee_utils import CompanionError
from mee_utils.paper import claims

ROOT = Path(__file__).parent.parent
NUMBERS = {
    "01_monotonicity": 8,
    "02_saturation": 7,
    "03_pruning": 8,
    "04_contrastive_decoding": 9,
    "05_mee_classifiers": 9,
    "06_survey_rules": 15,
    "08_results": 13,
}


def table(column, **curves):
    rows = [
        {"model": m, "layer": i + 1, column: v} for m, values in curves.items() for i, v in enumerate(values)
    ]
    return pd.DataFrame(rows)


RISING = [i / 12 for i in range(1, 13)]
GOOD = {
    "stable": table(
        "share",
        vanilla=RISING,
        calm=[0.8, 0.85, 0.9, 0.95] + [1.0] * 8,
        free=RISING,
        late_weighted=[0.1, 0.2, 0.3, 0.6] + [1.0] * 8,
    ),
    "confidence": table(
        "confidence",
        vanilla=[0.1] * 8 + [0.6, 0.7, 0.8, 0.9],
        calm=RISING,
        free=[0.1, 0.3, 0.5, 0.7, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9],
    ),
}


def test_claims_hold_and_fail_as_their_tables_say():
    flat = {
        "stable": table("share", **dict.fromkeys(("vanilla", "calm", "free", "late_weighted"), RISING)),
        "confidence": table(
            "confidence", vanilla=RISING, calm=[0.3, 0.2] + [0.1] * 8 + [0.9] * 2, free=RISING
        ),
    }
    judged = claims.judge("01_monotonicity", {"good": GOOD, "flat": flat}, exit_layer=4)
    assert set(judged[judged.task == "good"].verdict) == {"holds"}
    assert set(judged[judged.task == "flat"].verdict) == {"does not hold"}
    ours = judged[judged.task == "good"].set_index("claim").ours
    assert ours["CALM settled after layer 2"] == "85.0%"
    assert ours["vanilla gains confidence later"] == "layer 9 against 6"
    assert ours["FREE dips after its exit"] == "0.700, 0.400, 0.900"


def test_free_is_judged_at_the_layer_it_was_trained_to_exit_at():
    """Not at a third of the depth: a dip after layer 6 is none after layer 8."""
    dips_after_6 = [0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.65, 0.6, 0.75, 0.8, 0.85, 0.9]
    tables = {"task": {"confidence": table("confidence", free=dips_after_6)}}
    verdicts = {
        layer: claims.judge("01_monotonicity", tables, exit_layer=layer).set_index("claim").verdict
        for layer in (6, 8)
    }
    assert verdicts[6]["FREE dips after its exit"] == "holds"
    assert verdicts[8]["FREE dips after its exit"] == "does not hold"


def test_a_claim_about_an_absent_model_cannot_be_tested_and_a_missing_row_is_one_line():
    only = {"task": {name: rows[rows.model == "vanilla"] for name, rows in GOOD.items()}}
    judged = claims.judge("01_monotonicity", only, exit_layer=4)
    assert set(judged.verdict) == {"cannot be tested"} and set(judged.ours) == {""}
    short = {"task": {name: rows[rows.layer != 2] for name, rows in GOOD.items()}}
    with pytest.raises(CompanionError, match='"CALM settled after layer 2" finds 0 rows .*layer.*"stable"'):
        claims.judge("01_monotonicity", short, exit_layer=4)
    twice = {"task": {name: pd.concat([rows, rows]) for name, rows in GOOD.items()}}
    with pytest.raises(CompanionError, match="finds 2 rows"):
        claims.judge("01_monotonicity", twice, exit_layer=4)


def claim(notebook, name):
    return next(claim for claim in claims.read_claims(notebook) if claim.claim == name)


def test_the_guarantee_can_hold_and_can_fail():
    rates = pd.DataFrame([{"model": "calm", "bound": "betting", "violated": v} for v in (0.0, 0.2)])
    judge = claims.judge_one
    found = claim("08_results", "the guarantee holds")
    assert judge(found, {"rates": rates[:1]}, {"limit": 0.05}) == ("at worst 0% of the splits", "holds")
    assert judge(found, {"rates": rates}, {"limit": 0.05}) == ("at worst 20% of the splits", "does not hold")


def test_what_is_listed_keeps_its_order_and_what_is_missing_is_none():
    rows = pd.DataFrame({"model": "calm", "rule": ["linear", "softmax_margin", "hidden_similarity"]}).assign(
        kind="consistency", bound="hoeffding_bentkus", delta=0.1, mean_exit_layer=[9.0, 7.0, float("nan")]
    )
    found = claim("08_results", "softmax exits earliest when calibrated")
    assert claims.judge_one(found, {"calibrated": rows}, {}) == ("7.0, 9.0, none", "holds")
    nobody = rows.assign(mean_exit_layer=float("nan"))
    assert claims.judge_one(found, {"calibrated": nobody}, {}) == ("none, none, none", "does not hold")


def test_where_no_rule_keeps_the_score_the_claim_says_so():
    found = claim("05_mee_classifiers", "several layers can be cheap and keep quality")
    kept = pd.DataFrame({"model": "calm", "rule": ["linear", "three_hidden"], "flops_share": [0.5, 0.9]})
    assert claims.judge_one(found, {"kept": kept}, {}) == ("FLOPs 90.0%", "holds")
    assert claims.judge_one(found, {"kept": kept[:1]}, {}) == (
        "none keeps it on both halves",
        "does not hold",
    )


def test_with_one_task_no_threshold_can_come_from_another():
    (claim,) = (c for c in claims.read_claims("06_survey_rules") if "away" in c.values)
    home = pd.DataFrame({"model": "calm", "rule": "max_probability", "place": ["at home"], "loss": 0.01})
    away = home.assign(place="away", loss=0.05)
    judge = lambda rows: claims.judge_one(claim, {"travelled": rows}, {"demand": 0.02})
    assert judge(home) == ("", claims.UNTESTABLE)
    assert judge(pd.concat([home, away])) == ("loss 5.0% for 2%", claims.HOLDS)


@pytest.mark.parametrize(("notebook", "number"), NUMBERS.items())
def test_claims_name_their_source_and_use_what_they_look_up(notebook, number):
    found = claims.read_claims(notebook)
    assert len({claim.claim for claim in found}) == len(found) == number
    assert all(claim.source and claim.published and claim.statement.endswith(".") for claim in found)
    for claim in found:
        used = set(re.findall(r"[a-z]\w*", claim.holds)) | set(re.findall(r"{(\w+)", claim.ours))
        assert set(claim.values) <= used, (
            f"{claim.claim}: {set(claim.values) - used} is looked up for nothing"
        )


def test_the_ledger_counts_tasks():
    lines = [
        ("a", "x", "holds"),
        ("a", "y", "holds"),
        ("b", "x", "holds"),
        ("b", "y", "does not hold"),
        ("c", "x", "cannot be tested"),
    ]
    table = pd.DataFrame(lines, columns=["claim", "task", "verdict"]).assign(
        source="s", statement="t", published="p", ours="1"
    )
    found = claims.ledger(
        table.assign(notebook="01_monotonicity"),
        table[table.claim == "a"].assign(claim="d", verdict="does not hold"),
    ).set_index("claim")
    assert list(found.verdict) == ["holds", "holds on some tasks", "cannot be tested", "does not hold"]
    assert (
        list(found.held) == [2, 1, 0, 0] and found.notebook["d"] == "08_results" and found.ours["a"] == "1; 1"
    )
    assert found.ours["c"] == "" and list(found.tasks) == [2, 2, 0, 2]


def test_at_least_24_statements_are_in_the_ledger():
    stored = list(ROOT.glob("figures/*/08_results/ledger.csv"))
    assert ROOT / "figures/small/08_results/ledger.csv" in stored
    for path in stored:
        found = pd.read_csv(path)
        assert len(found) >= 24 and found.claim.is_unique and found.statement.str.len().min() > 20
        assert set(found.verdict) <= {claims.HOLDS, claims.FAILS, claims.MIXED, claims.UNTESTABLE}
        assert {name[:2] for name in found.notebook} == {"01", "02", "03", "04", "05", "06", "08"}
    assert re.search(r"\d", " ".join(found.ours.dropna()))
