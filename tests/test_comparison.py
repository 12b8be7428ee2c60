"""Exit rules by hand: ranking, precision, thresholds for a quality, what is kept, what deciding costs."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from conftest import INPUTS, LENGTH, build_lively
from hypothesis import given, settings
from hypothesis import strategies as st

from mee_utils import ExitPolicy, MeeError, generate, trace
from mee_utils.analysis import comparison, decisions, threshold_choice
from mee_utils.analysis.comparison import DecodingResult
from mee_utils.exits.classifiers import new_classifier
from mee_utils.exits.measures import find_measure
from mee_utils.exits.thresholds import Threshold
from mee_utils.models.costs import DecoderSizes
from mee_utils.traces.replay import replay_policy
from mee_utils.traces.trace import Trace


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
@settings(deadline=None, max_examples=80)
def test_roc_area_is_the_share_of_pairs_in_the_right_order(rows):
    scores, labels = np.array([s for s, _ in rows]), np.array([b for _, b in rows])
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[labels] for b in scores[~labels]]
    found = decisions.roc_area(scores, labels)
    assert found == pytest.approx(np.mean(pairs)) if pairs else np.isnan(found)


def by_hand(policy):
    """Six tokens at four layers with margins that are set; token 5 returns to its final prediction."""
    top1 = np.array([[7, 7, 7, 7], [1, 7, 7, 7], [1, 2, 7, 7], [1, 2, 3, 7], [7, 7, 7, 7], [7, 2, 7, 7]])
    margin = np.array(
        [
            [0.9, 0.9, 0.9, 0.9],
            [0.8, 0.7, 0.9, 0.9],
            [0.1, 0.6, 0.8, 0.9],
            [0.2, 0.3, 0.4, 0.9],
            [0.5, 0.95, 0.9, 0.9],
            [0.6, 0.2, 0.9, 0.9],
        ]
    )
    other, nothing = np.zeros((6, 4)), np.zeros((6, 4))
    found = Trace(
        sequence=np.array([0, 0, 0, 1, 1, 1]),
        position=np.array([0, 1, 2, 0, 1, 2]),
        token_id=top1[:, -1],
        top_ids=np.stack([top1, other], axis=-1),
        top_probabilities=np.stack([margin, other], axis=-1),
        **dict.fromkeys(("entropy", "final_probability", "final_rank", "token_probability"), nothing),
        **dict.fromkeys(("similarity", "final_similarity"), nothing),
        along="greedy",
        model="by hand",
        min_exit_layer=1,
        sizes=DecoderSizes(8, 8, 16, False, 4, 10),
        source_ids=[[5, 6, 1], [5, 7, 1]],
    )
    return replay_policy(found, policy)


def test_precision_and_recall_by_hand():
    found = decisions.precision_and_recall(
        by_hand(ExitPolicy("softmax_margin", threshold=0.55)), rule="margin"
    ).set_index("layer")
    assert list(found.above) == pytest.approx([3 / 6, 4 / 6, 5 / 6])
    assert list(found.precision) == pytest.approx([2 / 3, 3 / 4, 1.0])
    # the oracle: tokens 0 and 4 from layer 1, token 1 from layer 2, tokens 2 and 5 from layer 3
    assert list(found.recall) == pytest.approx([1 / 2, 3 / 3, 5 / 5])
    assert (found.rule == "margin").all() and (found.precision_low <= found.precision).all()
    none = decisions.precision_and_recall(by_hand(ExitPolicy("softmax_margin", threshold=0.99)))
    assert none.precision.isna().all() and (none.recall == 0).all()


def test_a_layer_with_a_handful_of_tokens_of_one_kind_is_not_ranked(monkeypatch):
    """At layer 2 three tokens are not final, at layer 3 one: its area would be 1 or 0 by its score alone."""
    replayed = by_hand(ExitPolicy("softmax_margin", min_layer=2))
    for least, ranked in ((1, [True, True]), (2, [True, False]), (4, [False, False])):
        monkeypatch.setattr(decisions, "LEAST_TO_RANK", least)
        ranks = decisions.ranking(replayed)
        assert list(ranks.roc_area.notna()) == ranked and list(ranks.not_final) == [3, 1]
        assert (ranks.roc_area_low.notna() == ranks.roc_area.notna()).all() and list(ranks.layer) == [2, 3]
        assert (ranks.roc_area.dropna() == 1).all()
    monkeypatch.setattr(decisions, "LEAST_TO_RANK", 4)
    few_may_exit = decisions.ranking(by_hand(ExitPolicy("softmax_margin", min_layer=1)))
    assert few_may_exit.not_final[0] == 3 and np.isnan(few_may_exit.roc_area[0])


def test_the_threshold_for_a_quality_is_the_lowest_from_which_on_it_is_kept():
    replayed = by_hand(ExitPolicy("softmax_margin", min_layer=1))
    for share in (0.5, 0.8, 1.0):
        found = threshold_choice.thresholds_for(replayed, [share]).iloc[0]
        assert found.same_token >= share
        exits = by_hand(ExitPolicy("softmax_margin", threshold=float(found.threshold))).exit_layers()
        assert exits.mean() == pytest.approx(found.mean_exit_layer)
        higher = [min(1.0, t) for t in np.arange(0, 1.001, 0.05) if t >= found.threshold]
        assert (threshold_choice.sweep(replayed, higher).same_token >= share).all()
    assert threshold_choice.thresholds_for(replayed, [1.0]).threshold[0] >= 0.8
    with pytest.raises(MeeError, match="a share from 0 to 1"):
        threshold_choice.thresholds_for(replayed, [98])


def test_a_threshold_above_which_quality_falls_again_is_not_chosen(monkeypatch):
    table = pd.DataFrame({"threshold": [0.0, 0.3, 0.6, 1.0], "same_token": [0.5, 0.95, 0.9, 1.0]})
    monkeypatch.setattr(threshold_choice, "sweep", lambda *_: table)
    chosen = threshold_choice.thresholds_for(by_hand(ExitPolicy("softmax_margin")), [0.92, 0.9, 0.5])
    assert chosen.threshold.tolist() == [1.0, 0.3, 0.0]


def ranked(tokens, outputs, layers=2):
    """Confidences and labels `[token, layer]` of made-up tokens, and their sequences."""
    rng = np.random.default_rng(0)
    sequence = np.sort(np.append(rng.integers(outputs, size=tokens - 1), outputs - 1))
    scores = rng.random((tokens, layers)).round(2)  # with ties
    return scores, rng.random((tokens, layers)) < scores, sequence


def test_the_area_does_not_depend_on_how_many_sequences_are_compared_at_once(monkeypatch):
    sample = ranked(300, 20)
    whole = decisions.area_interval(*sample)
    for width in (1, 7, 20):
        monkeypatch.setattr(decisions, "COMPARED_AT_ONCE", 300 * width)
        blocks = decisions.area_interval(*sample)
        assert blocks.value == whole.value and np.array_equal(blocks.draws, whole.draws)
    scores, labels, _ = sample
    pairs = [labels[:, layer].sum() * (~labels[:, layer]).sum() for layer in (0, 1)]
    areas = [decisions.roc_area(scores[:, layer], labels[:, layer]) for layer in (0, 1)]
    assert whole.value == pytest.approx(np.average(areas, weights=pairs))


def test_the_area_needs_no_memory_for_tokens_times_sequences(monkeypatch):
    monkeypatch.setattr(decisions, "COMPARED_AT_ONCE", 2**16)
    sample = ranked(8_000, 400, layers=1)
    decisions.area_interval(*ranked(400, 400, layers=1))  # the resamples stay in memory
    tracemalloc.start()
    decisions.area_interval(*sample)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3e7, "tokens x sequences alone are 26 MB, and were held three times"


def made_decoded(examples, flops=1.0):
    """Every output is one token, from layer 4."""
    outputs = len(examples)
    return DecodingResult(
        float(np.mean(examples)),
        np.array(examples, float),
        4.0,
        flops,
        0.5,
        outputs,
        token_ids=[[7]] * outputs,
        output_flops=np.full(outputs, flops),
        exit_layers=[np.array([4])] * outputs,
    )


def test_what_is_kept_is_a_ratio_with_a_paired_interval():
    full = made_decoded([50.0] * 40)
    all_kept = comparison.retained(full, full)
    assert all_kept.value == all_kept.low == all_kept.high == 1.0
    share = comparison.retained(made_decoded([50.0] * 30 + [0.0] * 10), full)
    assert share.value == pytest.approx(0.75) and 0.5 < share.low < 0.75 < share.high < 0.95
    none = made_decoded([0.0] * 40)
    assert np.isnan(comparison.retained(full, none).value) and comparison.check_score(full) is full
    with pytest.raises(MeeError, match="scores 0"):
        comparison.check_score(none)


def test_resamples_without_a_score_do_not_count():
    """Their share would be infinite, and more than any quality."""
    rare, lucky = made_decoded([10.0] + [0.0] * 3), made_decoded([10.0] + [5.0] * 3)
    share = comparison.retained(lucky, rare)
    assert share.value == 2.5 and np.isfinite(share.high)


def test_a_threshold_of_ones_own_keeps_its_decay_in_every_function():
    own = ExitPolicy("softmax_margin", threshold=Threshold(0.9, decay=4.0, form="calm"))
    as_options = ExitPolicy("softmax_margin", threshold=0.9, decay=4.0, decay_form="calm")
    for function in (
        lambda policy: threshold_choice.sweep(by_hand(policy), [0.95, 0.6, 0.3], 3).to_numpy(),
        lambda policy: threshold_choice.thresholds_for(by_hand(policy), [0.5, 0.9]).to_numpy(),
        lambda policy: comparison.at_equal_quality(by_hand(policy), [0.5]).filter(regex="[^s]$").to_numpy(),
        lambda policy: policy.at_threshold(0.6).schedule.at(np.arange(5), 5),
    ):
        assert (function(own) == function(as_options)).all()
    assert own.schedule.level == 0.9
    with pytest.raises(MeeError, match='"static" with threshold=None has no threshold to choose'):
        ExitPolicy("static", min_layer=2).at_threshold(0.5)


@pytest.fixture(scope="module")
def traced(tokenizer, tmp_path_factory):
    model = build_lively("t5", tokenizer)
    return model, trace(
        model, INPUTS, max_new_tokens=LENGTH, states=tmp_path_factory.mktemp("states") / "s.npy"
    )


@pytest.mark.parametrize("rule", ["softmax_margin", "rising_top1", "low_rank_classifier", "lstm_classifier"])
def test_operations_of_a_replay_are_those_of_decoding(traced, rule):
    """A replay that foretells the exits right counts what decoding counts."""
    model, found = traced
    measure = new_classifier(rule, 32) if rule.endswith("classifier") else rule
    full = generate(model, INPUTS, max_new_tokens=LENGTH)
    policy = ExitPolicy(measure, threshold=1.0)
    decoded = generate(model, INPUTS, policy, max_new_tokens=LENGTH)
    replayed = replay_policy(found, policy, model)
    assert (replayed.exit_layers() == found.layers).all()
    assert comparison.replayed_row(replayed)["flops_share"] == pytest.approx(
        decoded.flops.sum() / full.flops.sum()
    )
    assert decoded.flops.sum() > full.flops.sum()


def test_equal_quality_is_chosen_on_one_half_of_the_outputs_and_reported_on_the_other(traced):
    replayed = replay_policy(traced[1], ExitPolicy("max_probability"))
    half, outputs = len(INPUTS) // 2, len(INPUTS)
    table = comparison.at_equal_quality(replayed, [0.3, 1.0], rule="p")
    for row in table.itertuples():
        chosen, told = (
            replayed.part(*ends).at_threshold(row.threshold) for ends in ((half, outputs), (0, half))
        )
        assert threshold_choice.at_exits(chosen)["same_token"] >= row.wanted
        assert told.exit_layers().mean() == pytest.approx(row.mean_exit_layer)
        assert threshold_choice.at_exits(told)["same_token"] == pytest.approx(row.same_token)


def test_a_comparison_begins_with_all_layers(traced, synthetic_tasks):
    model, _ = traced
    task = synthetic_tasks["translation"]
    task = replace(task, inputs=task.inputs[:4], references=[[INPUTS[4]]] * 4, spans=None)
    full = generate(model, task.inputs, max_new_tokens=4)
    task = replace(task, references=[[text] for text in full.texts])
    table, decoded = comparison.comparison(
        model,
        task,
        {("static", 1.0): ExitPolicy("static", min_layer=1), ("margin", 1.0): ExitPolicy(threshold=1.0)},
        ("rule", "threshold"),
        max_new_tokens=4,
    )
    assert list(table.rule) == ["full_depth", "static", "margin"] and list(table.mean_exit_layer) == [4, 1, 4]
    assert table.retained.iloc[0] == table.retained.iloc[2] == 1.0 and table.flops_share.iloc[0] == 1.0
    assert (
        table.flops_share.iloc[1] < 0.6
        and table.flops_share.iloc[2] > 1.0
        and set(decoded) == {None, ("static", 1.0), ("margin", 1.0)}
    )


def test_deciding_costs_and_break_even_by_hand():
    sizes = DecoderSizes(d_model=10, inner=10, d_ff=40, gated=False, layers=12, vocabulary=280)
    assert sizes.projections == 2800 and sizes.readout == 5600
    rules = ("softmax_margin", "hidden_similarity", "rising_top1")
    measures = {name: find_measure(name) for name in rules}
    measures["linear"] = new_classifier("linear_classifier", 10)
    costs = {name: comparison.decision_cost(sizes, measure, 4) for name, measure in measures.items()}
    found = pd.DataFrame(costs).T
    assert list(found.share_of_layer) == pytest.approx([2.0, 0.0, 2.0, 20 / 2800])
    assert found.break_even["hidden_similarity"] == 1.0
    # at the break-even layer e, layers and readouts (from layer 4 or 2 on) cost twelve layers and one readout
    for rule, first in (("softmax_margin", 4), ("rising_top1", 2)):
        e = 12 * found.break_even[rule]
        assert e + 2.0 * (e - first + 1) == pytest.approx(12 + 2.0)


def test_seed_intervals_are_those_of_students_t():
    table = pd.DataFrame({"rule": ["a"] * 5 + ["b"], "value": [1.0, 2, 3, 4, 5, 7]})
    found = comparison.seed_interval(table, ["rule"], ["value"]).set_index("rule")
    half = 2.776 * np.sqrt(2.5) / np.sqrt(5)
    assert found.value_low["a"] == pytest.approx(3 - half) and found.value_high["a"] == pytest.approx(
        3 + half
    )
    assert found.value_low["b"] == found.value_high["b"] == 7 and list(found.seeds) == [5, 1]
