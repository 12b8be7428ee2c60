"""Exit decisions and rules, by hand: ranking, precision, thresholds for a quality, what is kept, and what deciding costs."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import INPUTS, LENGTH, build_lively
from hypothesis import given, settings
from hypothesis import strategies as st

from mee_utils import CompanionError, ExitPolicy, generate, replay, trace
from mee_utils.evaluation import comparison, decisions
from mee_utils.evaluation.comparison import Decoded
from mee_utils.exits.classifiers import new_classifier
from mee_utils.exits.measures import find_measure
from mee_utils.models.costs import DecoderSizes


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
@settings(deadline=None, max_examples=80)
def test_roc_area_is_the_share_of_pairs_in_the_right_order(rows):
    scores, labels = np.array([s for s, _ in rows]), np.array([b for _, b in rows])
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[labels] for b in scores[~labels]]
    found = decisions.roc_area(scores, labels)
    assert found == pytest.approx(np.mean(pairs)) if pairs else np.isnan(found)


def made_trace():
    """Six tokens, four blocks; the margin is what the tests threshold; token 5 returns to its final prediction after leaving it."""
    top1 = np.array([[7, 7, 7, 7], [1, 7, 7, 7], [1, 2, 7, 7], [1, 2, 3, 7], [7, 7, 7, 7], [7, 2, 7, 7]])
    margin = np.array([[.9, .9, .9, .9], [.8, .7, .9, .9], [.1, .6, .8, .9], [.2, .3, .4, .9], [.5, .95, .9, .9], [.6, .2, .9, .9]])  # fmt: skip
    return SimpleNamespace(
        top1_id=top1, final_id=top1[:, -1], margin=margin, layers=4, sequence=np.array([0, 0, 0, 1, 1, 1]),
        position=np.array([0, 1, 2, 0, 1, 2]), along="greedy",
    )  # fmt: skip


class Made:
    def __init__(self):
        self.__dict__.update(vars(made_trace()))

    def __len__(self):
        return 6


def test_precision_and_recall_by_hand():
    found = decisions.precision_and_recall(Made(), ExitPolicy("softmax_margin", threshold=0.55), labels={"rule": "margin"}).set_index("layer")
    assert list(found.above) == pytest.approx([3 / 6, 4 / 6, 5 / 6])
    assert list(found.precision) == pytest.approx([2 / 3, 3 / 4, 1.0])
    # the oracle: tokens 0 and 4 from block 1, token 1 from block 2, tokens 2 and 5 from block 3
    assert list(found.recall) == pytest.approx([1 / 2, 3 / 3, 5 / 5])
    assert (found.rule == "margin").all() and (found.precision_low <= found.precision).all()
    none = decisions.precision_and_recall(Made(), ExitPolicy("softmax_margin", threshold=0.99))
    assert none.precision.isna().all() and (none.recall == 0).all()


def test_ranking_and_calibration_ask_each_deciding_block():
    ranks = decisions.ranking(Made(), ExitPolicy("softmax_margin", min_layer=2))
    assert list(ranks.layer) == [2, 3] and ranks.roc_area.iloc[1] == 1.0 and ranks.roc_area.iloc[0] == pytest.approx(1.0)
    table = decisions.calibration(Made(), ExitPolicy("softmax_margin"), bins=2, labels={"rule": "margin"})
    assert table["count"].sum() == 18 and list(table["count"]) == [6, 12]
    assert table.accuracy.iloc[1] == pytest.approx(10 / 12) and table.accuracy.iloc[0] == pytest.approx(1 / 6)


def test_the_threshold_for_a_quality_is_the_lowest_from_which_on_it_is_kept():
    policy = ExitPolicy("softmax_margin", min_layer=1)
    for share in (0.5, 0.8, 1.0):
        found = decisions.threshold_for(Made(), policy, share)
        assert found.same_token >= share
        exits = replay(Made(), ExitPolicy("softmax_margin", threshold=float(found.threshold)))
        assert exits.mean() == pytest.approx(found.mean_exit_layer)
        higher = [t for t in np.arange(0, 1.001, 0.05) if t >= found.threshold]
        assert all(decisions.sweep(Made(), policy, [min(1.0, t)]).same_token.iloc[0] >= share for t in higher)
    assert decisions.threshold_for(Made(), policy, 1.0).threshold >= 0.8
    with pytest.raises(CompanionError, match="a share from 0 to 1"):
        decisions.threshold_for(Made(), policy, 98)


def made_decoded(examples, flops=1.0):
    return Decoded(float(np.mean(examples)), np.array(examples, float), 4.0, flops, 0.5, 10)


def test_what_is_kept_is_a_ratio_with_a_paired_interval():
    full = made_decoded([50.0] * 40)
    assert comparison.retained(full, full) == (1.0, 1.0, 1.0)
    share, low, high = comparison.retained(made_decoded([50.0] * 30 + [0.0] * 10), full)
    assert share == pytest.approx(0.75) and 0.5 < low < 0.75 < high < 0.95
    with pytest.raises(CompanionError, match="scores 0"):
        comparison.retained(full, made_decoded([0.0] * 40))


def test_settings_are_chosen_on_one_half_and_checked_on_the_other():
    full = made_decoded([10.0] * 8)
    lucky = made_decoded([10.0, 5.0] * 4, flops=0.2)  # keeps all on the choosing half, half on the other
    good, dear, bad = made_decoded([10.0] * 8, flops=0.5), made_decoded([10.0] * 8, flops=0.9), made_decoded([1.0] * 8, flops=0.1)
    found = comparison.cheapest_keeping(
        {None: full, ("a", 0.1): bad, ("a", 0.5): lucky, ("a", 0.9): dear, ("b", 0.9): dear, ("b", 0.8): good, ("c", 0.3): bad}, 0.99
    )
    assert found["a"][0] == ("a", 0.5) and found["a"][1] == pytest.approx(0.5)
    assert found["b"][:2] == (("b", 0.8), 1.0)
    assert found["c"][0] is None


@pytest.fixture(scope="module")
def traced(tokenizer, tmp_path_factory):
    model = build_lively("t5", tokenizer)
    return model, trace(model, INPUTS, max_new_tokens=LENGTH, states=tmp_path_factory.mktemp("states") / "s.npy")


@pytest.mark.parametrize("rule", ["softmax_margin", "rising_top1", "low_rank_classifier", "lstm_classifier"])
def test_operations_of_a_replay_are_those_of_decoding(traced, rule):
    """A replay that foretells the exits right counts what decoding counts: with no exit, and with exits at a fixed block."""
    model, found = traced
    sources = [len(ids) for ids in model.tokenizer(INPUTS).input_ids]
    measure = new_classifier(rule, 32) if rule.endswith("classifier") else rule
    full = generate(model, INPUTS, max_new_tokens=LENGTH)
    policy = ExitPolicy(measure, threshold=1.0)
    decoded = generate(model, INPUTS, policy, max_new_tokens=LENGTH)
    exits = replay(found, policy, model=model)
    assert (exits == found.layers).all()
    assert comparison.replayed_flops(found, exits, policy, model, sources) == pytest.approx(decoded.flops.sum() / full.flops.sum())
    assert decoded.flops.sum() > full.flops.sum()


def test_equal_quality_says_what_its_threshold_does(traced):
    model, found = traced
    sources = [len(ids) for ids in model.tokenizer(INPUTS).input_ids]
    table = comparison.at_equal_quality(found, ExitPolicy("max_probability"), [0.3, 1.0], model, sources, {"rule": "p"})
    assert list(table.wanted) == [0.3, 1.0] and (table.same_token >= table.wanted).all()
    for row in table.itertuples():
        exits = replay(found, ExitPolicy("max_probability", threshold=row.threshold))
        assert exits.mean() == pytest.approx(row.mean_exit_layer)


def test_a_comparison_begins_with_all_blocks(traced, made_tasks):
    from dataclasses import replace

    model, _ = traced
    task = made_tasks["translation"]
    task = replace(task, inputs=task.inputs[:4], references=[[INPUTS[4]]] * 4, spans=None)
    full = generate(model, task.inputs, max_new_tokens=4)
    task = replace(task, references=[[text] for text in full.texts])
    table, decoded = comparison.comparison(
        model, task, {("static", 1.0): ExitPolicy("static", min_layer=1), ("margin", 1.0): ExitPolicy(threshold=1.0)}, ("rule", "threshold"),
        max_new_tokens=4,
    )  # fmt: skip
    assert list(table.rule) == ["none", "static", "margin"] and list(table.mean_exit_layer) == [4, 1, 4]
    assert table.retained.iloc[0] == table.retained.iloc[2] == 1.0 and table.flops_share.iloc[0] == 1.0
    assert table.flops_share.iloc[1] < 0.6 and table.flops_share.iloc[2] > 1.0 and set(decoded) == {None, ("static", 1.0), ("margin", 1.0)}


def test_deciding_costs_and_break_even_by_hand():
    sizes = DecoderSizes(d_model=10, inner=10, d_ff=40, gated=False, layers=12, vocabulary=280)
    assert sizes.projections == 2800 and sizes.read_out == 5600
    rules = {name: (lambda d, name=name: find_measure(name)) for name in ("softmax_margin", "hidden_similarity", "rising_top1")}
    rules["linear"] = lambda d: new_classifier("linear_classifier", d)
    found = comparison.deciding_costs(rules, {"s": sizes}, min_layer=4).set_index("rule")
    assert list(found.of_a_block) == pytest.approx([2.0, 0.0, 2.0, 20 / 2800])
    assert found.break_even["hidden_similarity"] == 1.0
    # at the break-even block e, blocks and read-outs (from block 4 on, or from 2 on) are worth twelve blocks and one read-out
    for rule, first in (("softmax_margin", 4), ("rising_top1", 2)):
        e = 12 * found.break_even[rule]
        assert e + 2.0 * (e - first + 1) == pytest.approx(12 + 2.0)


def test_seed_intervals_are_those_of_students_t():
    table = pd.DataFrame({"rule": ["a"] * 5 + ["b"], "value": [1.0, 2, 3, 4, 5, 7]})
    found = comparison.seed_interval(table, ["rule"], ["value"]).set_index("rule")
    half = 2.776 * np.sqrt(2.5) / np.sqrt(5)
    assert found.value_low["a"] == pytest.approx(3 - half) and found.value_high["a"] == pytest.approx(3 + half)
    assert found.value_low["b"] == found.value_high["b"] == 7 and list(found.seeds) == [5, 1]


def test_rules_become_policies():
    linear = new_classifier("linear_classifier", 8)
    settings_of = {"min_layer": 4, "decay": 4.0}
    assert comparison.rule_policy("static", 6.0, settings_of, {}).decision_layers(12)[0] == 6
    assert comparison.rule_policy("linear", 0.5, settings_of, {"linear": linear}).rule is linear
    decaying = comparison.rule_policy("softmax_margin", 0.9, settings_of, {}, decaying=True)
    assert decaying.schedule.at(0, 10) == pytest.approx(0.9) and decaying.schedule.at(10, 10) < 0.82
    assert comparison.rule_policy("softmax_margin", 0.9, settings_of, {}).schedule.at(10, 10) == 0.9
