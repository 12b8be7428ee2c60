"""What notebooks 06, 09 and 10 compute, on small models and on tables whose answer is known."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import INPUTS, LENGTH
from test_verify import agreeing

from mee_utils import ExitPolicy, MeeError, Task, generate, replay_drafts, trace
from mee_utils.analysis import bandits, calibration, comparison, lossless, survey
from mee_utils.analysis.threshold_choice import candidates
from mee_utils.companion.catalogue import BESIDE_SURVEY, IDEAS, RULES, SURVEY
from mee_utils.companion.statements import BUGS
from mee_utils.decoding.inputs import cut_at_end, detokenize
from mee_utils.decoding.layerwise import start_and_end_ids
from mee_utils.exits.classifiers import new_classifier
from mee_utils.exits.measures import find_measure
from mee_utils.exits.thresholds import BanditThreshold
from mee_utils.models.costs import SHAPES
from mee_utils.traces.replay import replay_policy

LAYERS = 6
FIRST = 4  # outputs of the first part


@pytest.fixture(scope="module")
def traced(tokenizer):
    """A model whose layers often agree, the trace of its output, and a task whose references are others."""
    model = agreeing("t5", tokenizer, layers=LAYERS)
    full = generate(model, INPUTS, max_new_tokens=LENGTH)
    found = trace(model, INPUTS, outputs=full.token_ids)
    task = Task("translation", "s", "t", INPUTS, [["the red house"]] * len(INPUTS), "d")
    return model, found, full, task


def margin(found, model, **options):
    return replay_policy(found, ExitPolicy("softmax_margin", threshold=0.5, min_layer=1, **options), model)


def losses_one_by_one(replayed, model, task, levels):
    """Losses `[threshold, example]` of the outputs that a replay predicts, as calibration scores them."""

    def texts(ids):
        _, ends = start_and_end_ids(model.network)
        outputs = [cut_at_end(output.tolist(), ends) for output in replayed.trace.by_output(ids)]
        return detokenize(model, outputs)

    full, rows = texts(replayed.trace.final_id), []
    for level in levels:
        exits = replayed.at_threshold(level).exits(LENGTH)
        emitted = replayed.token_ids[np.arange(len(exits)), exits]
        rows.append(calibration.consistency_losses(task, texts(emitted), full))
    return np.stack(rows)


def test_losses_are_those_of_calibration_and_each_output_is_scored_once(traced, monkeypatch):
    model, found, _, task = traced
    replayed, levels = margin(found, model), [1.0, 0.5, 0.2, 0.1, 0.05, 0.0]
    expected = losses_one_by_one(replayed, model, task, levels)
    losses, scored = survey.output_losses(found, model, task), []
    true = survey.consistency_losses
    monkeypatch.setattr(survey, "consistency_losses", lambda *given: scored.extend(given[1]) or true(*given))
    for _ in range(2):
        for level, row in zip(levels, expected, strict=True):
            here = replayed.at_threshold(level)
            assert np.allclose(losses(survey.emitted(here, here.exits(LENGTH))), row)
    assert (expected[-1] > 0).any() and not expected[0].any()
    assert len(scored) <= len(set(scored)) * len(INPUTS) and len(scored) <= expected.size // 2
    with pytest.raises(MeeError, match="on the inputs that were decoded"):
        survey.output_losses(found, model, task[:2])


def test_a_part_of_a_replay_is_the_replay_of_a_part(traced):
    model, found, full, _ = traced
    some = trace(model, INPUTS[FIRST:], outputs=full.token_ids[FIRST:])
    ours = margin(found, model).part(FIRST, len(INPUTS))
    theirs = margin(some, model)
    assert (ours.trace.token_id == some.token_id).all() and (ours.trace.sequence == some.sequence).all()
    assert np.allclose(ours.confidences, theirs.confidences) and (ours.token_ids == theirs.token_ids).all()
    assert ours.trace.source_tokens == some.source_tokens
    both = [margin(found, model).part(*ends) for ends in ((0, FIRST), (FIRST, len(INPUTS)))]
    weights = [len(each.trace) for each in both]
    means = [comparison.replayed_row(each, LENGTH)["mean_exit_layer"] for each in both]
    whole = comparison.replayed_row(margin(found, model), LENGTH)["mean_exit_layer"]
    assert np.average(means, weights=weights) == pytest.approx(whole)


@pytest.mark.parametrize("rule", ["softmax_margin", "patience", "weighted_vote", "hidden_similarity", "mue"])
def test_every_rule_goes_from_careful_to_careless(traced, rule):
    model, found, _, task = traced
    policy = RULES[rule].policy(1.0, {"min_layer": 1, "top_k": 8}).over_all_entries()
    replayed = replay_policy(found, policy, model)
    losses, levels = survey.output_losses(found, model, task), candidates(replayed, 25, LENGTH)
    assert levels == sorted(set(levels), reverse=True)
    curve = pd.DataFrame([survey.at_loss(replayed.at_threshold(level), losses, LENGTH) for level in levels])
    assert curve.mean_exit_layer.is_monotonic_decreasing and curve.loss[0] <= curve.loss.max()
    assert curve.mean_exit_layer.iloc[-1] < LAYERS
    level = survey.lowest_level(replayed, losses, levels, 0.3, LENGTH)
    place = levels.index(level)
    assert (curve.loss[: place + 1] <= 0.3).all() or level == levels[0]
    assert place == len(levels) - 1 or curve.loss[place + 1] > 0.3
    assert survey.lowest_level(replayed, lambda ids: np.ones(2), levels, 0.3, LENGTH) == levels[0]


def test_drafts_of_a_threshold_are_those_of_verified_decoding(traced):
    model, found, full, _ = traced
    columns = lossless.draft_summary(margin(found, model).at_threshold(0.05), 3, LENGTH)
    verified = ExitPolicy("softmax_margin", threshold=0.05, min_layer=1, propagation="verify", max_draft=3)
    drafts = replay_drafts(found, verified, 3, LENGTH)
    assert columns["acceptance"] == drafts.acceptance and 0 < drafts.acceptance <= 1
    assert columns["tokens_a_round"] == sum(map(len, full.token_ids)) / drafts.rounds.sum() > 1


def test_what_a_rule_looks_at_and_costs():
    sizes = {"t5-base": SHAPES["t5-base"]}

    def describe(measure, ids=None):
        return survey.what_it_costs(measure, sizes, ids)

    margin, patience = describe(find_measure("softmax_margin")), describe(find_measure("patience"))
    assert (margin["layers"], patience["layers"]) == ("1", "all so far") and not margin["trained"]
    assert margin["t5-base"] == patience["t5-base"] == sizes["t5-base"].readout / sizes["t5-base"].projections
    few = describe(find_measure("softmax_margin"), 64)
    assert few["t5-base"] == pytest.approx(margin["t5-base"] * 64 / sizes["t5-base"].vocabulary)
    width = SHAPES["t5-base"].d_model
    future = describe(new_classifier("past_future", width, decoder_layers=3))
    assert future["t5-base"] > margin["t5-base"] and future["parameters"] == 2 * (width**2 + width)
    table = describe(new_classifier("token_hash", width, decoder_layers=3, vocabulary=10))
    assert (table["readouts"], table["layers"], table["t5-base"], table["parameters"]) == (0, "0", 0, 22)
    unit = describe(new_classifier("learning_to_exit", width))
    assert (unit["layers"], unit["parameters"], unit["trained"]) == ("1", width + 1, True)
    seen = {name: describe(find_measure(RULES[name].measure))["layers"] for name in ("pcee", "elbert", "mue")}
    assert seen == {"pcee": "2", "elbert": "3", "mue": "2"}


def test_rules_that_order_tokens_alike_correlate_and_ties_share_a_rank():
    def make(values):
        return SimpleNamespace(confidences=np.array([values]).T, decision_layers=(4,))

    rules = {"a": make([1.0, 2, 3, 4]), "b": make([1.0, 4, 9, 16]), "c": make([4.0, 3, 2, 1])}
    rules |= {"d": make([1.0, 1, 2, 2]), "same": make([1.0, 1, 1, 1])}
    found = survey.rank_correlations(rules, 4)
    assert found.loc["a", "b"] == pytest.approx(1) and found.loc["a", "c"] == pytest.approx(-1)
    assert found.loc["a", "d"] == pytest.approx(2 / 5**0.5) and np.isnan(found.loc["a", "same"])
    with pytest.raises(MeeError, match='"a" does not decide at layer 5'):
        survey.rank_correlations(rules, 5)


def hand_made():
    """Six tokens of two outputs, three layers; the truth is 1 everywhere."""
    top = np.array([[1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [1, 1, 1]])
    sure = np.array([[0.95, 0.95, 0.95]] * 3 + [[0.95, 0.5, 0.95]] * 3)
    arrays = {"top1_id": top, "top1_probability": sure, "token_id": np.ones(6, int), "layers": 3}
    return SimpleNamespace(sequence=np.repeat([0, 1], 3), position=np.tile([0, 1, 2], 2), **arrays)


def test_overthinking_fake_confidence_and_errors_by_place_are_counted():
    found = hand_made()
    row = survey.overthinking(found, task="x")
    assert (row["overthought"], row["right"], row["right_somewhere"]) == (2 / 6, 3 / 6, 5 / 6)
    assert row["overthought_low"] == 0 and row["overthought_high"] == 2 / 3 and row["task"] == "x"
    fake = survey.fake_confidence(found, 0.9).set_index("layer")
    assert fake.sure.tolist() == [1, 0.5, 1] and fake.wrong.tolist() == [3 / 6, 1 / 3, 3 / 6]
    assert survey.fake_confidence(found, 0.99).wrong.isna().all()
    wrong = found.top1_id[:, -1] != 1
    assert survey.by_part(wrong, found)["mean"].tolist() == [0, 1, 0.5]
    assert survey.by_part(wrong, found, parts=4)["mean"].isna().all(), "all outputs are shorter"


def test_the_bandit_that_is_played_is_the_bandit_that_decodes(traced):
    model, found, _, _ = traced
    arms, options = (0.02, 0.1, 0.3), {"exploration": 0.05, "cost": 0.1}
    replayed = replay_policy(found, ExitPolicy("max_probability", threshold=0.5, min_layer=1), model)
    bandit = ExitPolicy("max_probability", threshold=BanditThreshold(arms, **options), min_layer=1)
    rewards, places = bandits.arm_rewards(replayed, arms, cost=0.1)
    outputs = found.by_output(np.arange(len(found)))
    chosen = np.concatenate(bandits.play(rewards, outputs, exploration=0.05))
    exits = replay_policy(found, bandit, model).exits(LENGTH)
    assert (places[np.arange(len(found)), chosen] == exits).all() and len(set(chosen)) > 1
    never = bandits.arm_rewards(replayed, [2.0], cost=0.1)
    assert (replayed.layers[never[1]] == LAYERS).all()
    last = replayed.confidences[:, -1] - replayed.confidences[:, 0] - 0.1
    assert np.allclose(never[0][:, 0], last)


def test_a_bandit_has_regret_and_a_calibrated_threshold_seldom_breaks_its_promise(traced):
    model, found, _, task = traced
    replayed = replay_policy(found, ExitPolicy("max_probability", threshold=0.5, min_layer=1), model)
    losses, levels = survey.output_losses(found, model, task), candidates(replayed, 25, LENGTH)
    arms = (0.01, 0.02, 0.5)
    table = survey.bandit_or_calibrated(replayed, losses, arms, levels, 0.3, 5)
    count = table.who.value_counts()
    assert count["bandit, one stream"] == count["calibrated"] == 5 and count["bandit, each output"] == 1
    always = table[table.who.str.startswith("always")]
    assert len(always) == 3 and always.regret.min() == pytest.approx(0) and (always.regret > -1e-9).all()
    assert (table.broken == (table.loss > 0.3)).all()
    calibrated = table[table.who == "calibrated"]
    assert (calibrated.mean_exit_layer == LAYERS).all(), "seven outputs prove nothing: nobody exits"
    assert (table[table.who.str.startswith("bandit")].regret > 0).all()


def test_every_rule_of_the_survey_is_on_the_bench():
    """With an idea, who proposed it, and the bug of its public code; a bandit goes by a threshold alone."""
    assert set(IDEAS) | {"bandit"} == {*SURVEY, *BESIDE_SURVEY} and "bandit" not in IDEAS
    assert all(RULES[name].source for name in (*IDEAS, "bandit"))
    bugs = {name: rule.bug for name, rule in RULES.items() if rule.bug}
    assert bugs and set(bugs) <= set(IDEAS) and set(bugs.values()) <= set(BUGS)


def test_outputs_that_become_texts_are_lists_of_ids(t5):
    assert len(detokenize(t5, [[5, 6, 1], (7, 1), [8]])) == 3
    for outputs, message in (
        (5, "outputs=5: give a list of lists of token ids"),
        ([5, 6], "Output 0 is 5: give a list of token ids for each output"),
        (["ab"], "Output 0 is 'ab': give"),
        ([[5], None], "Output 1 is None: give"),
        ([np.ones((2, 2), int)], "Output 0 is .*: give"),
    ):
        with pytest.raises(MeeError, match=message) as caught:
            detokenize(t5, outputs)
        assert "\n" not in str(caught.value)
    with pytest.raises(MeeError, match="model=None: give what load_model returns"):
        detokenize(None, [[5]])
