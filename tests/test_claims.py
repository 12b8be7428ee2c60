"""Statements of the papers on tables in which they are true, false, or cannot be tested."""

import ast
import inspect
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from mee_utils import MeeError, load_model, load_task, trace
from mee_utils.analysis.statistics import DRAWS, Estimate, estimates
from mee_utils.companion import claims
from mee_utils.companion.experiment import Experiment
from mee_utils.companion.statement import QUANTITIES, Rows, Timing, largest_drop, statement
from mee_utils.companion.statements import NOTEBOOKS, statements_of
from mee_utils.companion.statements.monotonicity import first_layer_above, last_layer

ROOT = Path(__file__).parent.parent


def table(column, **curves):
    rows = [
        {"model": m, "layer": i + 1, column: v} for m, values in curves.items() for i, v in enumerate(values)
    ]
    return pd.DataFrame(rows)


RISING = [i / 12 for i in range(1, 13)]
FALLING = [0.3, 0.2] + [0.1] * 8 + [0.9] * 2
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
        vanilla=[0.102] + [0.1] * 7 + [0.6, 0.7, 0.8, 0.9],  # it falls, but by less than counts as falling
        calm=RISING,
        free=[0.1, 0.3, 0.5, 0.7, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9],
    ),
}


def monotonic(**shares):
    """Shares of monotonic tokens by model, alike for both kinds, from layer 1 on and after a third of 12."""
    rows = [
        {"model": model, "kind": kind, "after_layer": after, "share": share}
        for model, share in shares.items()
        for kind in ("never falling", "strictly rising")
        for after in (0, 4)
    ]
    return pd.DataFrame(rows)


GOOD["monotonic"] = monotonic(calm=0.9, vanilla=0.8, free=0.2, late_weighted=0.95)


def verdicts(judged):
    """Of tables without draws, where every number is a fact."""
    known = {(0.0, 1.0): "holds", (1.0, 0.0): "does not hold"}
    return {known[row.p_holds, row.p_fails] for row in judged.itertuples()}


def test_claims_hold_and_fail_as_their_tables_say():
    flat = {
        "stable": table(
            "share", **dict.fromkeys(("vanilla", "calm", "free"), RISING), late_weighted=[0] * 12
        ),
        "confidence": table(
            "confidence",
            vanilla=FALLING,
            calm=[0.3] + [0.1] * 9 + [0.9] * 2,
            free=[0.1] * 4 + [0.2] * 7 + [0.1],
        ),
        "monotonic": monotonic(calm=0.7, vanilla=0.8, free=0.2),
    }
    judged = claims.judge("01_monotonicity", {"good": GOOD, "flat": flat}, exit_layer=4, third=4)
    assert verdicts(judged[judged.task == "good"]) == {"holds"}
    assert verdicts(judged[judged.task == "flat"]) == {"does not hold"}
    ours = judged[judged.task == "good"].set_index("claim").ours
    assert ours["CALM settled after layer 2"] == "85.0%"
    assert ours["vanilla gains confidence later"] == "layer 9 against 6"
    assert ours["FREE falls after its exit"] == "0.700 at the exit, 0.400 at its lowest after it"
    assert ours["FREE rises again to the end"] == "0.400 at its lowest after the exit, 0.900 at the end"
    shown = claims.judged_shown(judged.replace({"task": {"good": "question_answering"}}))
    assert set(shown.task) == {"question answering", "flat"}
    assert "alone" not in shown, "verdicts stand in the ledger alone"


def test_most_monotonic_is_who_has_the_largest_share_of_tokens_with_every_start_beside_it():
    """On real text the vanilla model's confidence never falls for more tokens than CALM's."""
    claim_of = claim("01_monotonicity", "confidence never falls, most often for CALM")

    def judge(**shares):
        tables = {"monotonic": monotonic(**shares), "confidence": GOOD["confidence"]}
        return claims.judge_one(claim_of, tables, {"third": 4})

    ours, *p = judge(calm=0.84, vanilla=0.91, free=0.26)
    assert tuple(p) == NO
    assert ours == (
        "CALM 84.0%, from 0.08 at layer 1; vanilla 91.0%, from 0.10 at layer 1; "
        "FREE 26.0%, from 0.10 at layer 1"
    )
    assert judge(calm=0.84, free=0.26)[1:] == YES
    assert judge(calm=0.84)[0] == "no other model" and np.isnan(judge(calm=0.84)[1])


def test_free_is_judged_at_the_layer_it_was_trained_to_exit_at():
    """Not at a third of the depth: a dip after layer 6 is none after layer 8."""
    dips_after_6 = [0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.65, 0.6, 0.75, 0.8, 0.85, 0.9]
    tables = {"task": {"confidence": table("confidence", free=dips_after_6)}}
    for layer, verdict in ((6, "holds"), (8, "does not hold")):
        judged = claims.judge("01_monotonicity", tables, exit_layer=layer, third=4)
        assert verdicts(judged[judged.claim == "FREE falls after its exit"]) == {verdict}


def test_a_claim_about_an_absent_model_cannot_be_tested_and_a_missing_row_is_one_line():
    only = {"task": {name: rows[rows.model == "late_weighted"] for name, rows in GOOD.items()}}
    judged = claims.judge("01_monotonicity", only, exit_layer=4, third=4)
    assert judged[["p_holds", "p_fails"]].isna().all(axis=None) and "" not in set(judged.ours)
    assert set(judged.alone) == {"cannot be tested here"}
    short = {"task": GOOD | {"stable": GOOD["stable"][GOOD["stable"].layer != 2]}}
    with pytest.raises(MeeError, match=r'"CALM settled after layer 2" finds 0 rows .*layer.*"stable"'):
        claims.judge("01_monotonicity", short, exit_layer=4, third=4)
    twice = {"task": {name: pd.concat([rows, rows]) for name, rows in GOOD.items()}}
    with pytest.raises(MeeError, match="finds 2 rows"):
        claims.judge("01_monotonicity", twice, exit_layer=4, third=4)


YES, NO = (0.0, 1.0), (1.0, 0.0)  # p-values of facts


def claim(notebook, name):
    return next(each for each in statements_of(notebook) if each.claim == name)


def test_the_guarantee_can_hold_and_can_fail():
    rates = pd.DataFrame(
        {"model": "calm", "bound": "betting", "violated": [0.07, 0.2], "p_value": [0.1, 1e-5]}
    )
    guarantee = claim("08_results", "the guarantee holds")

    def judge(rows):
        return claims.judge_one(guarantee, {"rates": rows}, {})

    assert judge(rates[:1]) == ("at worst 7.0% of the sets (p = 0.1, of 1 tests the smallest)", *YES)
    assert judge(rates) == ("at worst 20.0% of the sets (p = 1e-05, of 2 tests the smallest)", *NO)
    assert np.isnan(judge(rates[:0])[1])  # finite corpora


def test_full_depth_is_always_there():
    rows = pd.DataFrame({"model": "calm", "rule": ["linear", "softmax_margin", "hidden_similarity"]})
    rows = rows.assign(wanted=0.05, flops_share=[1.2, 0.7, 1.1])
    cheapest = claim("08_results", "softmax costs least at equal loss")
    assert claims.judge_one(cheapest, {"equal": rows}, {}) == ("FLOPs 70.0% against 100.0%", *YES)
    assert np.isnan(claims.judge_one(cheapest, {"equal": rows[:1]}, {})[1])


AT_EQUAL_LOSS = [each for each in statements_of("08_results") if "equal loss" in each.claim]


@pytest.mark.parametrize("each", AT_EQUAL_LOSS, ids=lambda each: each.claim)
def test_no_verdict_rests_on_a_rule_that_was_not_measured_at_that_loss(each):
    """Whichever of the rules compared has no setting that strict: the task is untested, and says why."""
    rules = ["softmax_margin", "hidden_similarity", "hidden", "linear", "fixed", "decaying"]
    rules += ["weighted_fixed", "jsd_fixed", "three_hidden", "lstm", "rising_top1"]
    rows = pd.DataFrame({"model": "calm", "rule": rules, "wanted": 0.05, "flops_share": 0.7})
    assert not np.isnan(claims.judge_one(each, {"equal": rows}, {})[1])
    looked_up = 0
    for rule in rules:
        unmeasured = rows.assign(flops_share=rows.flops_share.mask(rows.rule == rule))
        ours, p_holds, _ = claims.judge_one(each, {"equal": unmeasured}, {})
        looked_up += np.isnan(p_holds)
        assert np.isnan(p_holds) == ours.startswith("none measured"), rule
    assert looked_up >= 2


def test_a_rule_of_the_survey_without_a_setting_that_strict_cannot_be_tested():
    cheaper = claim("06_survey_rules", "similarity saves the decision")
    bench = pd.DataFrame({"model": "calm", "rule": ["mue", "surest"], "equal_flops": [np.nan, 0.8]})
    ours, p_holds, p_fails = claims.judge_one(cheaper, {"bench": bench}, {})
    assert ours == "none measured: falling similarity (MuE)" and np.isnan(p_holds) and np.isnan(p_fails)


def test_rows_are_chosen_by_value_by_list_and_by_test():
    table = pd.DataFrame({"rule": ["a", "b", "c"], "layer": [3, 1, 2], "share": [0.1, 0.2, 0.3]})
    rows = Rows("table", table)
    assert f"{rows.value('share', rule='b'):.1f}" == "0.2"
    assert f"{rows.values('share', rule=['c', 'a']):.1f}" == "0.3, 0.1", "in the order of the list"
    assert f"{rows.curve('share'):.1f}" == "0.2, 0.3, 0.1", "in the order of layers"
    assert rows.count(layer=lambda layer: layer > 1) == 2
    assert f"{rows.value('layer', rule='a')}" == "3" and f"{Estimate(np.nan):.1%}" == "none"


def test_where_no_rule_keeps_the_score_the_claim_says_so():
    several = claim("05_mee_classifiers", "several layers can be cheap and keep quality")
    kept = pd.DataFrame({"model": "calm", "rule": ["linear", "three_hidden"], "flops_share": [0.5, 0.9]})
    assert claims.judge_one(several, {"kept": kept}, {}) == ("FLOPs 90.0%", *YES)
    assert claims.judge_one(several, {"kept": kept[:1]}, {}) == ("none keeps it for certain", *NO)


def test_a_threshold_that_travels_is_weighed_against_home():
    moves = claim("09_thresholds", "confidence moves with the domain")
    home = pd.DataFrame({"model": "calm", "rule": "surest", "place": ["at home"], "loss": 0.01})
    home = home.assign(mean_exit_layer=6.0)

    def judge(*rows):
        return claims.judge_one(moves, {"travelled": pd.concat(rows)}, {"demand": 0.02, "layers": 12})

    assert judge(home)[0] == "no other domain here" and np.isnan(judge(home)[1:]).all()
    assert judge(home, home.assign(place="away", loss=0.05)) == ("loss 5.0% against 1.0% in-domain", *YES)
    assert judge(home, home.assign(place="away", loss=0.025))[1:] == NO, "more than the demand, but not by it"
    corpora = home.assign(place="tatoeba", loss=0.02), home.assign(place="flickr", loss=0.04)
    assert judge(home, *corpora) == ("loss 2.0%, 4.0% against 1.0% in-domain", *YES)
    assert judge(home.assign(loss=0.03), *corpora)[1:] == NO, "what is lost at home is not the domain's"
    idle = [rows.assign(mean_exit_layer=11.99) for rows in (home, *corpora)]
    assert judge(*idle)[0] == "hardly any token exits at this target" and np.isnan(judge(*idle)[1:]).all()


def test_the_spacing_of_exits_is_judged_only_where_tokens_exit():
    """FLOPs at a mean exit layer of the depth differ by the decisions alone."""
    suffice = claim("09_thresholds", "exits at intervals suffice")
    spaced = pd.DataFrame({"model": "calm", "every": [1, 3], "flops_share": [0.6, 0.5]})

    def judge(*layers):
        table = spaced.assign(mean_exit_layer=layers)
        return claims.judge_one(suffice, {"spaced": table}, {"layers": 12})

    assert judge(6.0, 6.5) == judge(12.0, 6.5) == ("FLOPs 50.0% against 60.0%", *YES)
    assert judge(12.0, 12.0)[0] == "hardly any token exits at this target"
    assert np.isnan(judge(12.0, 12.0)[1:]).all()


def test_confidence_elsewhere_needs_another_corpus():
    moved = claim("09_thresholds", "confidence is less right in another domain")
    home = pd.DataFrame({"model": "calm", "place": ["at home"], "wrong": 0.01})

    def judge(*rows):
        return claims.judge_one(moved, {"moved": pd.concat(rows)}, {})

    assert judge(home)[0] == "no other corpus of the task here" and np.isnan(judge(home)[1:]).all()
    assert judge(home, home.assign(place="tatoeba", wrong=0.04)) == ("4.0%, 1.0% in-domain", *YES)
    assert judge(home, home.assign(place="tatoeba", wrong=0.005)) == ("0.5%, 1.0% in-domain", *NO)


def test_what_was_not_measured_cannot_be_tested():
    faster = claim("08_results", "several layers that keep quality are faster")
    settings = pd.DataFrame({"model": ["calm"]})
    ours, *p_values = claims.judge_one(faster, {"settings": settings, "answer": None}, {})
    assert ours == "not timed" and np.isnan(p_values).all()


def timed(**columns):
    """Timings of MEE's measures at the published settings."""
    rules = ["three_hidden", "lstm", "rising_top1"]
    rows = pd.DataFrame({"model": "calm", "rule": rules, "threshold": 0.9, "batch": 32})
    elsewhere = rows.assign(min_layer=4, speed=2.0)
    return pd.concat([rows.assign(min_layer=2, **columns), elsewhere])


def test_mostly_slower_is_judged_by_the_clock():
    """And where nobody timed it, nothing is said, whatever the FLOPs are."""
    slower = claim("08_results", "MEE is slower than full depth, from a sixth of the depth")
    intervals = {"low": [0.7, 0.8, 1.2], "high": [0.9, 0.95, 1.4]}

    def judge(times):
        return claims.judge_one(slower, {"published_times": times, "answer": timed()}, {"sixth": 2})

    ours, p_holds, p_fails = judge(timed(speed=[0.8, 0.9, 1.3], samples_speed=[0.8, 0.9, 1.0], **intervals))
    assert p_holds < 0.01 and p_fails > 0.99, "two of three"
    assert ours == (
        "batch 32, of full depth: 0.80 (0.70 to 0.90), 0.90 (0.80 to 0.95), 1.30 (1.20 to 1.40) tokens a "
        "second, 0.80, 0.90, 1.00 samples a second"
    )
    as_fast = judge(timed(speed=1.0, samples_speed=1.0, low=0.9, high=1.1))
    assert as_fast[1:] == (0.5, 0.5)
    assert judge(timed(speed=1.2, samples_speed=1.0, low=1.1, high=1.3))[1] > 0.99
    ours, *p = judge(None)
    assert ours == "not timed" and np.isnan(p).all()


def test_a_gain_is_judged_by_its_interval():
    sure = Timing(*map(np.array, ([1.2], [1.1], [1.3], [1.2])))
    other = Timing(*map(np.array, ([1.15], [1.05], [1.25], [1.2])))
    assert (sure.gain() > 0).p_holds < 0.001 and (sure.gain() < 0).p_fails < 0.001
    assert 0.2 < (sure.gain(other) > 0).p_holds < 0.3, "0.05 with a standard deviation of 0.07"
    assert (sure.gain().value, sure.gain(other).value) == pytest.approx((0.2, 0.05))


class Everything(Rows):
    """A table that has whatever is looked up: three rows of 0.5 with draws."""

    def __init__(self, name):
        super().__init__(name, None)

    def value(self, column, **values):
        return self.values(column, **values).item(0)

    def values(self, column, **values):
        self.looked_up.add(column)
        if column == "property":
            return Estimate(np.array(["rises_after_0", "rises_after_2", "rises_after_4"]))
        draws = np.random.default_rng(0).normal(0.5, 0.1, (50, 3))
        return Estimate(np.full(3, 0.5), draws)

    curve = values

    def has(self, **values):
        return True

    def count(self, **values):
        return 3


class Tables(dict):
    """Every table by its name, made when it is first looked up; some names are those of numbers."""

    def __getattr__(self, name):
        numbers = {"demand": 0.1, "delta": 0.1, "layers": 12}
        return numbers[name] if name in numbers else self.setdefault(name, Everything(name))


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_a_statement_is_judged_by_what_it_says_and_by_time_only_with_the_clock(notebook):
    """What a comparison looks up is recorded: the quantity is among it, and times nowhere else."""
    words = re.compile(r"\b(slower|faster|slow|fast|time|times|seconds?|speed)\b")
    for each in statements_of(notebook):
        tables = Tables()
        each.compare(tables)
        looked_up = set().union(*(table.looked_up for table in tables.values()))
        claims.check_quantity(each, looked_up)
        unknown = looked_up - {"property", "score", "violated", "worse", "above"}.union(*QUANTITIES.values())
        assert not unknown, f"{each.claim}: name in QUANTITIES what {unknown} measure"
        if words.search(each.quote.replace("their speed is judged in 08", "").replace("three times", "")):
            assert each.judged_by == "time" or "ten times" in each.quote, each.claim


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_its_notebook_gives_what_a_statement_looks_at(notebook):
    """A wrong name of a table showed only when the notebook ran."""
    cells = (ROOT / "notebooks" / f"{notebook}.py").read_text(encoding="utf-8")
    for module in {each.compare.__module__ for each in statements_of(notebook)}:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
        of_results = [
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "results"
        ]
        assert of_results
        for name in of_results:
            assert re.search(rf'"{name}"|\b{name}=', cells), f"{module}: {notebook} gives no {name}"


def test_a_statement_on_flops_that_reads_the_clock_is_refused_and_so_is_the_reverse():
    def judged(by, column):
        @statement("mixed", source="here", quote="It is.", published="none", judged_by=by)
        def mixed(results):
            share = results.table.value(column)
            return f"{share}", share < 1

        rows = pd.DataFrame({"model": ["calm"], "flops_share": 0.5, "speed": 0.5})
        return claims.judge_one(mixed, {"table": rows}, {})

    assert judged("FLOPs", "flops_share")[1:] == judged("time", "speed")[1:] == YES
    for by, column in (("FLOPs", "speed"), ("time", "flops_share"), ("score", "flops_share")):
        with pytest.raises(MeeError, match=f'"mixed" is judged by {by}'):
            judged(by, column)
    with pytest.raises(MeeError, match="judged_by"):
        statement("x", source="s", quote="q.", published="p", judged_by="feeling")


@pytest.mark.parametrize(
    "compare, message",
    [
        (lambda r: r.stabel.value("share"), r'results\.stabel, .*"stable"\? Valid: stable, third\.'),
        (lambda r: r.stable.value("shares"), r'"stable" has no column "shares": did you mean "share"\?'),
        (lambda r: r.stable.value("share", depth=2), r'no column "depth": valid are layer, model, share\.'),
        (lambda r: r.stable.has(task="x"), 'no column "task"'),
        (lambda r: ("1", r.stable.value("share").value > 0), r'"toy" returned \(\'1\', .*True.*: return a'),
        (lambda r: r.stable.value("share") > 0, '"toy" returned Comparison'),
        (lambda r: ("none", Estimate(1.0) > 0), 'looks up no column: look up one of share, same_token'),
    ],
)  # fmt: skip
def test_a_mistake_in_a_new_statement_is_one_line_that_says_what_is_there(compare, message):
    table = pd.DataFrame({"model": ["calm"], "layer": 2, "share": 0.5, "share_draws": [np.ones(3)]})
    say = statement("toy", source="here", quote="It is.", published="none", judged_by="predictions")
    with pytest.raises(MeeError, match=message) as caught:
        claims.judge_one(say(compare), {"stable": table}, {"third": 4})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_a_claim_that_joins_two_things_is_two_claims(notebook):
    """One comparison each: with two, a reader cannot see which of them failed."""
    for each in statements_of(notebook):
        _, comparison = each.compare(Tables())
        assert len(comparison.margins) == 1, each.claim


def test_the_pretrained_model_speaks_only_where_it_can_do_the_task():
    """420 steps of pre-training (153 on real text) score 0 on questions: that says nothing of T5-large."""
    about = ["more so after fine-tuning", "fine-tuned models may exit earlier", "ranks fall smoothly"]
    models = ["pretrained", "vanilla"]
    recall = pd.concat([table("recall", pretrained=RISING, vanilla=RISING).assign(k=8)])
    minimum = pd.DataFrame({"model": models, "minimum_layer": [9, 4]})
    for score, is_tested in ((0.0, False), (40.0, False), (60.0, True)):
        complete = pd.DataFrame({"model": models, "reduction": "full_depth", "score": [score, 90.0]})
        tables = {"recall": recall, "minimum": minimum, "complete": complete}
        for name in about:
            ours, p_holds, _ = claims.judge_one(claim("03_pruning", name), tables, {})
            assert np.isnan(p_holds) != is_tested, (name, score)
            assert is_tested or ours.startswith(f"the pre-trained model cannot do the task (score {score}")


def test_published_settings_are_judged_from_a_sixth_of_the_depth_and_from_layer_4():
    """At layer 4 of 12 similarity stands, at layer 2, a sixth as published, it does not: two verdicts."""
    rows = pd.DataFrame({"model": "calm", "rule": "hidden_similarity", "threshold": 0.9, "min_layer": [2, 4]})
    rows = rows.assign(retained=[0.3, 0.8], mean_exit_layer=[2.0, 4.0])
    parameters = {"sixth": 2, "min_layer": 4}
    at = {
        place: claims.judge_one(
            claim("05_mee_classifiers", f"saturation ruins the output at 0.9, from {place}"),
            {"published": rows},
            parameters,
        )
        for place in ("a sixth of the depth", "layer 4")
    }
    assert at["a sixth of the depth"] == ("from layer 2: keeps 30.0%, exits at layer 2.00", *YES)
    assert at["layer 4"] == ("from layer 4: keeps 80.0%, exits at layer 4.00", *NO)
    of_before = {"published": rows[rows.min_layer == 4]}
    ruins = claim("05_mee_classifiers", "saturation ruins the output at 0.9, from a sixth of the depth")
    assert np.isnan(claims.judge_one(ruins, of_before, parameters)[1])


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_statements_name_their_source(notebook):
    several = statements_of(notebook)
    assert several
    assert all(each.source and each.published and each.quote.endswith(".") for each in several)


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_statements_of_our_own_are_marked_as_their_source_says(notebook):
    for each in statements_of(notebook):
        says_so = each.source.startswith("not asked by") or "not in the papers" in each.source
        assert each.of_our_own == says_so, each.claim


def test_no_two_statements_have_the_same_name():
    """The ledger groups by name: a second one of a name, in any notebook, would join the first."""
    names = [each.claim for notebook in NOTEBOOKS for each in statements_of(notebook)]
    assert len(set(names)) == len(names)


def test_the_example_of_the_architecture_page_judges_a_statement(monkeypatch, capsys):
    page = (ROOT / "mee_utils" / "README.md").read_text(encoding="utf-8")
    (code,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.S) if "Experiment(None" in code]

    def short_trace(experiment, model, task):
        loaded = load_model(ROOT / "mee_utils" / "checkpoints" / experiment.profile.name / model)
        return trace(loaded, load_task(task, limit=4).inputs, max_new_tokens=48)

    monkeypatch.setattr(Experiment, "trace", short_trace)
    exec(compile(code, "mee_utils/README.md", "exec"), {})
    with_interval = r"\('\d+\.\d% \(\d+\.\d% to \d+\.\d%\)', [\d.e-]+, [\d.e-]+\)"
    assert re.match(with_interval, capsys.readouterr().out)


def test_a_notebook_without_statements_is_refused_by_name():
    with pytest.raises(MeeError, match=r'notebook.*"00_models".*01_monotonicity'):
        statements_of("00_models")


def sampled(column, means, spread, seed=0):
    """A table with one row a layer whose means have independent draws."""
    draws = np.random.default_rng(seed).normal(means, spread, (2000, len(means))).T
    rows = {"model": "calm", "layer": range(1, len(means) + 1), column: means}
    return pd.DataFrame(rows | {column + DRAWS: list(draws)})


def test_a_margin_is_weighed_against_its_spread():
    settled = claim("01_monotonicity", "CALM settled after layer 2")  # 75 % or more
    for mean, spread, p in ((0.8, 0.02, norm.sf(2.5)), (0.76, 0.02, norm.sf(0.5)), (0.7, 0.01, norm.sf(-5))):
        judged = claims.judge_one(settled, {"stable": sampled("share", [0.5, mean], spread)}, {})
        assert re.fullmatch(rf"{mean:.1%} \(\d\d\.\d% to \d\d\.\d%\)", judged[0]), "with its interval"
        assert judged[1:] == pytest.approx((p, 1 - p), abs=0.02)


def test_what_is_measured_on_the_same_examples_is_compared_in_pairs():
    rng, common = np.random.default_rng(1), np.random.default_rng(2).normal(0, 0.1, 2000)
    first = Estimate(0.5, 0.5 + common + rng.normal(0, 0.003, 2000))
    second = Estimate(0.52, 0.52 + common + rng.normal(0, 0.003, 2000))
    assert (second > first).p_holds < 1e-4
    assert (Estimate(0.52, rng.permutation(second.draws)) > first).p_holds > 0.2


def test_of_several_comparisons_all_must_hold_and_one_that_fails_is_enough():
    first, second = (estimates(sampled("share", [0.6, 0.55], 0.02), "share").item(i) for i in (0, 1))
    joined = (first > 0.5) & (second > 0.5)
    assert joined.p_holds == (second > 0.5).p_holds > (first > 0.5).p_holds
    assert joined.p_fails == min(1.0, 2 * (second > 0.5).p_fails)
    ordered = (second > 0.5) & (second < first)
    assert ordered.p_holds == pytest.approx(norm.sf(0.05 / 0.02 / 2**0.5), abs=0.01)
    with pytest.raises(TypeError, match="join with &"):
        0.5 < second < first  # noqa: B015  (Python would drop the first comparison)


def test_arithmetic_treats_draws_as_values():
    draws = np.random.default_rng(0).normal(0.4, 0.1, (7, 3))
    several = Estimate(np.array([0.2, 0.4, 0.6]), draws)
    one = several.item(1)
    combined = (1 - 2 * one) / (one + 3.0) - one * several
    assert combined.value == pytest.approx((1 - 0.8) / 3.4 - 0.4 * several.value)
    assert np.allclose(
        combined.draws, ((1 - 2 * draws[:, 1]) / (draws[:, 1] + 3))[:, None] - draws[:, [1]] * draws
    )
    fact = Estimate(3) - 1
    assert fact.draws is None and fact.low == fact.high == 2 and (fact >= 2).p_holds == 0.0
    assert (np.float64(0.5) > one).p_holds == (one < 0.5).p_holds, "numpy's numbers give way"


def test_nothing_is_said_of_a_tie_or_of_missing_draws():
    tied = Estimate(0.0, np.zeros(50))
    assert (tied > 0).p_holds == (tied > 0).p_fails == 1.0
    assert (tied >= 0).p_holds == 0.0, "where equality is enough a tie is a fact"
    missing = Estimate(0.5, np.where(np.arange(50) < 5, np.nan, 0.5))
    assert (missing > 0).p_holds == (missing > 0).p_fails == 1.0
    assert (Estimate(np.nan) > 0).p_holds == 1.0


@pytest.mark.parametrize(
    "reduce",
    [
        Estimate.mean,
        Estimate.max,
        Estimate.min,
        Estimate.median,
        Estimate.sum,
        largest_drop,
        last_layer,
        lambda curve: first_layer_above(curve, 0.5),
    ],
)
def test_draws_are_reduced_as_values_are(reduce):
    curve = estimates(sampled("share", [0.2, 0.6, 0.55, 0.9], 0.01), "share")
    reduced = reduce(curve)
    assert [reduce(Estimate(draw)).value for draw in curve.draws[:5]] == pytest.approx(reduced.draws[:5])


def test_drops_and_first_layers_of_a_curve_by_hand():
    curve = Estimate(np.array([0.2, 0.6, 0.55, 0.9]))
    assert largest_drop(curve).value == pytest.approx(0.05)
    level = largest_drop(Estimate(np.array([0.2, 0.2, 0.6])))
    assert f"{level:.2%}" == "0.00%", "before: -0.00%"
    assert first_layer_above(curve, 0.5).value == 2 and first_layer_above(curve, 0.95).value == 5


def test_a_statement_is_a_function_of_tables_and_parameters():
    @statement(
        "exits early",
        source="here",
        quote="Tokens exit early.",
        published="none",
        judged_by="exit layer",
        models=["calm"],
    )
    def exits_early(results):
        layer = results.exits.value("mean_exit_layer", model="calm")
        return f"layer {layer:.1f}", layer < results.latest

    draws = {"mean_exit_layer" + DRAWS: [np.linspace(2.9, 3.1, 99)]}
    exits = pd.DataFrame({"model": ["calm"], "mean_exit_layer": [3.0], **draws})
    ours, p_holds, p_fails = claims.judge_one(exits_early, {"exits": exits}, {"latest": 3.5})
    assert ours == "layer 3.0 (2.9 to 3.1)" and p_holds < 1e-9 and p_fails > 1 - 1e-9


def test_the_ledger_counts_tasks_and_corrects_for_all_of_them():
    lines = [
        ("a", "x", 0.0, 1.0),
        ("a", "y", 0.0001, 0.9999),
        ("b", "x", 0.0, 1.0),
        ("b", "y", 1.0, 0.0),
        ("c", "x", np.nan, np.nan),
        ("e", "x", 0.01, 0.99),  # alone this would be enough
        ("e", "y", 0.4, 0.6),
        *[("f", task, 0.6, 0.4) for task in "xyz"],
        ("g", "x", 0.0, 1.0),
        ("g", "y", 0.4, 0.6),
        ("h", "x", 1.0, 0.0),  # as "g", the other way
        ("h", "y", 0.6, 0.4),
    ]
    table = pd.DataFrame(lines, columns=["claim", "task", "p_holds", "p_fails"]).assign(
        source="s", statement="t", published="p", judged_by="score", ours="1"
    )
    other = table[table.claim == "a"].assign(claim="d", p_holds=1.0, p_fails=0.0)
    found = claims.ledger(table.assign(notebook="01_monotonicity"), other).set_index("claim")
    wanted = [
        "holds",
        "holds on some tasks, fails on others",
        "cannot be tested here",
        "undecided",
        "undecided",
        "holds on some tasks",
        "does not hold on some tasks",
        "does not hold",
    ]
    assert list(found.verdict) == wanted and found.notebook["d"] == "08_results"
    assert list(found.held) == [2, 1, 0, 0, 0, 1, 0, 0]
    assert list(found.failed) == [0, 1, 0, 0, 0, 0, 1, 2]
    assert list(found.undecided) == [0, 0, 0, 2, 3, 1, 1, 0]
    assert list(found.tasks) == [2, 2, 0, 2, 3, 2, 2, 2]
    assert found.ours["c"] == "" and found.ours["a"] == "x: 1; y: 1"
    assert found.reason["c"] == "1" and found.reason["a"] == "", "why it cannot be tested"
    alone = table[table.claim == "e"].assign(notebook="01_monotonicity")
    assert claims.ledger(alone, other[:0]).held.tolist() == [1]


def test_holm_is_the_textbook_one():
    p = pd.Series([0.01, 0.04, np.nan, 0.03, 0.005])
    assert claims.holm(p).tolist() == pytest.approx([0.03, 0.06, np.nan, 0.06, 0.02], nan_ok=True)


def test_at_least_24_statements_are_in_the_ledger():
    stored = list(ROOT.glob("figures/*/08_results/ledger.csv"))
    assert ROOT / "figures/small/08_results/ledger.csv" in stored
    for path in stored:
        found = pd.read_csv(path)
        assert len(found) >= 24 and found.claim.is_unique and found.statement.str.len().min() > 20
        assert {verdict.removesuffix(" here") for verdict in found.verdict} <= {
            verdict.removesuffix(" here") for verdict in claims.VERDICTS
        }
        chapters = {name[:2] for name in found.notebook}
        assert chapters - {"09", "10"} == {"01", "02", "03", "04", "05", "06", "08"}
    assert re.search(r"\d", " ".join(found.ours.dropna()))
