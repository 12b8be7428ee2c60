"""What README and RESULTS.md state comes from stored tables and from the numbers that notebooks save."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mee_utils import MeeError
from mee_utils.paper import numbers, results_page, results_tables
from mee_utils.paper.results_tables import StoredTables
from mee_utils.study.results import Run

FIGURES = Path(__file__).parent.parent / "figures"
PROFILES = [name for name in ("small", "real") if (FIGURES / name).exists()]


def test_tables_of_results_name_the_stored_ones_behind_them_once():
    stored = StoredTables()
    stored.table("measured", "learning")
    scores = stored.table("00_models", "scores")
    stored.table("measured", "learning")
    assert list(scores.profile.unique()) == ["small", "real"]
    links = stored.sources()
    assert links.startswith("[small/measured/learning](figures/small/measured/learning.csv), [")
    assert links.count("small/measured/learning.csv") == 1


def test_what_was_timed_is_shown_with_its_machine():
    stored = StoredTables()
    stored.decoder_bench("bandwidth")
    assert (
        "decoder](figures/bench/decoder.csv) (" in stored.sources() and " cores, torch " in stored.sources()
    )


def test_numbers_and_names_in_a_table_are_shown_as_a_reader_knows_them():
    table = pd.DataFrame({"task": ["question_answering", "translation"], "flops_share": [0.876, None]})
    rows = [line.split("|")[1:-1] for line in results_page.markdown(table).splitlines()[2:]]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert cells == [["question answering", "88%"], ["translation", ""]]


@pytest.mark.parametrize("profile", PROFILES)
def test_saved_numbers_are_those_of_the_tables_beside_them(profile):
    for file in FIGURES.glob(f"{profile}/*/numbers.json"):
        stated = numbers.stated_in(file.parent.name, file.parent)
        assert json.loads(file.read_text(encoding="utf-8")) == stated, file


@pytest.fixture
def run(tmp_path):
    return Run("08_results", "small", {}, tmp_path / "small" / "08_results")


def save_results_tables(run, kept=("keeps it", 0.8), rule="low_rank_three"):
    """The tables that 08 always saves, for one task."""
    verdict, flops_share = kept
    row = {"task": "translation", "rule": rule, "verdict": verdict, "flops_share": flops_share}
    run.save_table(pd.DataFrame([row | {"flops_low": 0.7, "flops_high": 0.9}]), "at_99_percent")
    bug = {"task": "translation", "model": "calm", "bug": "positions for ids"}
    bugs = [
        bug | {"version": "published", "retained": 0.25},
        bug | {"version": "correct", "retained": 0.75},
        bug | {"version": "correct", "retained": 0.1, "model": "vanilla"},
    ]
    run.save_table(pd.DataFrame(bugs), "published_bugs_switched_on")
    ours = "it is the layers, not the parameters"
    claims = ["CALM settled after layer 2", ours, "a claim of an older version"]
    verdicts = ["holds", "holds", "undecided"]
    run.save_table(pd.DataFrame({"claim": claims, "verdict": verdicts}), "ledger")


def answer(rule, ranked, speed):
    """One timed setting."""
    timed = {"task": "translation", "rule": rule, "batch": 1, "ranked": ranked, "speed": speed}
    timed |= {"lowest": speed, "highest": speed, "samples_speed": 0.9 * speed}
    return timed | {"mean_exit_layer": 6.0, "flops_share": 0.5}


def test_a_notebook_saves_the_numbers_that_it_states(run):
    save_results_tables(run)
    timed = [
        answer("softmax_margin", ranked=1.2, speed=1.1),
        answer("low_rank_three", ranked=1.1, speed=1.5),
        answer("hidden", ranked=1.9, speed=1.4) | {"batch": 100},
    ]
    run.save_table(pd.DataFrame(timed), "answer")
    rates = {"bound": ["no_test", "betting"], "violated": [0.5, 0.04], "limit": [0.07, 0.07]}
    run.save_table(pd.DataFrame(rates), "fresh_sets")
    numbers.save_numbers(run)
    run.finish()
    manifest = json.loads((run.folder / "manifest.json").read_text(encoding="utf-8"))
    assert "numbers.json" in manifest["files"]
    stated = json.loads((run.folder / "numbers.json").read_text(encoding="utf-8"))
    task = stated["tasks"]["translation"]
    assert task["fastest"]["rule"] == "softmax margin (CALM)", "half of the rounds order the rules"
    assert task["fastest"]["speed"] == 1.1, "the other half are stated"
    assert task["fastest"]["samples_speed"] == 0.99, "beside tokens: outputs may be longer"
    assert task["fastest_of_several_layers"]["speed"] == 1.5
    assert task["cheapest"]["flops_share"] == 0.8
    assert task["positions_for_ids"] == {"published": 0.25, "correct": 0.75}
    assert stated["ledger"] == {"statements": 3, "of_our_own": 1}
    assert stated["verdicts"]["holds"] == 2 and stated["verdicts"]["does not hold"] == 0
    assert stated["guarantee"] == {"broken": 0.04, "broken_without_a_test": 0.5, "by_chance": 0.07}


@pytest.mark.parametrize("kept", [("undecided", 0.8), ("keeps it", 1.2)])
def test_what_was_not_measured_or_saves_nothing_is_left_out(run, kept):
    save_results_tables(run, kept)
    stated = numbers.stated_in("08_results", run.folder)
    assert set(stated["tasks"]["translation"]) == {"positions_for_ids"} and "guarantee" not in stated


def test_numbers_of_all_notebooks_stand_together_saved_or_not(tmp_path, monkeypatch):
    monkeypatch.setattr(numbers, "STATED", {"03_pruning": numbers.pruned, "07_lossless": numbers.verified})
    saved = {"tasks": {"translation": {"verified": {"speed": 1.5}}}, "together": {"n": 1}}
    (tmp_path / "07_lossless").mkdir()
    (tmp_path / "07_lossless" / "numbers.json").write_text(json.dumps(saved))
    (tmp_path / "03_pruning").mkdir()
    row = {"task": "translation", "model": "calm", "reduction": "fixed", "other_token": 0.01}
    pd.DataFrame([row]).to_csv(tmp_path / "03_pruning" / "complete_table.csv", index=False)
    stated = numbers.stored_numbers(tmp_path)
    groups = {"fixed_list": {"other_token": 0.01}, "verified": {"speed": 1.5}}
    assert stated == {"tasks": {"translation": groups}, "together": {"n": 1}}
    with pytest.raises(MeeError, match="06_survey_rules"):
        numbers.stated_in("06_survey_rules", tmp_path)


def test_01_states_how_many_tokens_are_monotonic_by_model(run):
    settled = {"task": "translation", "layer": 4, "model": ["calm", "vanilla"], "share": [0.9, 0.3]}
    run.save_table(pd.DataFrame(settled), "figure_1_settled")
    before = numbers.stated_in("01_monotonicity", run.folder)["tasks"]["translation"]
    assert before == {"settled": {"calm": 0.9, "vanilla": 0.3}}
    kinds = {"kind": ["never falling"] * 2 + ["strictly rising"] * 2, "after_layer": 0}
    shares = {"task": "translation", "model": ["calm", "vanilla"] * 2, "share": [0.5, 0.7, 0.1, 0.4]}
    run.save_table(pd.DataFrame(kinds | shares), "strictly_monotonic")
    stated = numbers.stated_in("01_monotonicity", run.folder)["tasks"]["translation"]
    assert stated == before | {"never_falling": {"calm": 0.5, "vanilla": 0.7}}


class Given(StoredTables):
    """Tables by name, of one profile, in place of stored ones."""

    def __init__(self, **tables):
        super().__init__()
        self.given = tables

    def table(self, notebook, name):
        table = self.given[name].copy()
        table.insert(0, "profile", "small")
        return table


def test_where_nothing_was_measured_a_table_says_so():
    rule = {"task": "translation", "wanted": 0.01, "flops_low": np.nan, "flops_high": np.nan}
    rows = [
        rule | {"rule": "static", "flops_share": np.nan, "reading": "none measured"},
        rule | {"rule": "hidden", "flops_share": 0.9, "flops_low": 0.8, "flops_high": 1.0},
        rule | {"rule": "linear", "flops_share": np.nan, "reading": "none measured"},
        rule | {"rule": "fixed", "flops_share": 0.3, "reading": "none loses so much"},
    ]
    equal = pd.DataFrame(rows).fillna({"reading": "between settings"})
    found = results_tables.at_equal_loss(Given(at_equal_loss=equal)).set_index("family")
    assert found.flops.to_dict() == {
        "one layer": "90.0% (80.0% to 100.0%)",
        "reference": "none measured",
        "pruned": "none loses so much",
    }
    assert found.rule.to_dict() == {"one layer": "hidden", "reference": "", "pruned": ""}
    described = {"source": "s", "readouts": "", "layers": "", "trained": False, "roc_area": 0.9}
    beside = described | {"guaranteed": 0.9, "verified_speed": 1.1}
    names = ["mue", "surest", "bandit"]
    rules = pd.DataFrame([{"rule": name, "equal_flops": np.nan, **beside} for name in names])
    rules.loc[1, "equal_flops"] = 0.876
    table = results_tables.survey(Given(rules=rules))
    lines = results_page.markdown(table).splitlines()[2:]
    shown = [line.split("|")[8].strip() for line in lines]
    assert shown == ["none measured", "87.6%", ""], "the bandit has no threshold to vary"


def test_each_verdict_of_the_ledger_stands_with_our_number():
    row = {
        "source": "MEE",
        "statement": "It is.",
        "published": "75 %",
        "judged_by": "time",
        "tasks": 2,
        "held": 1,
    }
    rows = [row | {"verdict": "holds on some tasks", "ours": "x: 0.8 (0.7 to 0.9)", "reason": "not timed"}]
    (found,) = results_tables.ledger(Given(ledger=pd.DataFrame(rows))).to_dict("records")
    assert found["small"] == "holds on 1 of 2" and found["judged_by"] == "time"
    assert found["small: ours"] == "x: 0.8 (0.7 to 0.9); not timed"
    of_before = pd.DataFrame(rows).drop(columns=["judged_by", "reason"])
    (found,) = results_tables.ledger(Given(ledger=of_before)).to_dict("records")
    assert found["small: ours"] == "x: 0.8 (0.7 to 0.9)"
