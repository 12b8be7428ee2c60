"""Planned drafts: the replay sees what decoding sees, the work is that of decoding, and `generate` keeps its
word: full depth's output, whatever is planned.
"""

import inspect
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import INPUTS, LENGTH, build_lively, build_network
from test_verify import POLICIES, agreeing, classifier, forced, policy_for, right_layers

import mee_utils
from mee_utils import (
    Copies,
    ExitPolicy,
    ForcedExits,
    Measure,
    MeeError,
    generate,
    plan_drafts,
    replay_drafts,
    trace,
)
from mee_utils.decoding import full_depth, generation, planning, ranking
from mee_utils.decoding.inputs import input_ids
from mee_utils.decoding.layerwise import LayerwiseDecoder, decoder_of
from mee_utils.decoding.rounds import Copied, rounds_of
from mee_utils.decoding.step_costs import StepCosts, measured_steps
from mee_utils.exits.classifiers import SIZED, new_classifier
from mee_utils.exits.measures import MEASURES, TRAINED
from mee_utils.models.loading import Model
from mee_utils.traces.replay import replay_policy


@pytest.fixture(scope="module", params=["t5-deep-decoder", "agreeing"])
def traced(request, tokenizer, tmp_path_factory):
    """A model, the trace of its full-depth output, and that output."""
    if request.param == "agreeing":
        model = agreeing("t5", tokenizer, layers=8)
    else:
        model = build_lively(request.param, tokenizer)
    states = tmp_path_factory.mktemp("states") / "s.npy"
    full = generate(model, INPUTS, max_new_tokens=LENGTH)
    full_trace = trace(model, INPUTS, outputs=full.token_ids, states=states, max_new_tokens=LENGTH)
    return model, full_trace, full


def states_of(model, batch_size=3, inputs=INPUTS):
    ids = input_ids(model.tokenizer, inputs)
    batches = full_depth.encode_batches(model, ids, batch_size=batch_size)
    return full_depth.full_depth_states(model, batches, LENGTH)


def always_faster(monkeypatch, speedup=2.0):
    """The trial finds the first setting faster than full depth; what each trial is given is returned."""
    trials = []

    def found(policies, trial, confirming):
        timed = trial.func.__self__
        trials.append(SimpleNamespace(policies=policies, trial=trial.args[0], **timed._asdict()))
        return 0, speedup

    monkeypatch.setattr(planning, "find_fastest", found)
    monkeypatch.setattr(planning, "MIN_SPEEDUP", 0.0 if speedup > 1.05 else 1.05)
    return trials


# ---- the replay


@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_states_are_those_of_the_full_depth_output(traced, batch_size):
    model, full_trace, _ = traced
    states = states_of(model, batch_size)
    assert states.sequence.tolist() == full_trace.sequence.tolist()
    assert states.position.tolist() == full_trace.position.tolist()
    assert states.final_id.tolist() == full_trace.token_id.tolist()
    fed = torch.where(torch.from_numpy(full_trace.position) == 0, -1, states.fed)
    assert fed.tolist() == full_trace.token_before.tolist()
    for layer in range(1, model.layers):
        assert np.allclose(states.states[layer], full_trace.states[:, layer - 1], atol=1e-5)


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "none"])
def test_a_plan_sees_what_a_trace_shows(traced, name):
    model, full_trace, _ = traced
    policy = policy_for(name, model, full_trace)
    replay = full_depth.replay_states(model, states_of(model), policy)
    expected = replay_policy(full_trace, policy, model)
    assert np.allclose(replay.confidences, expected.confidences, atol=1e-5)
    assert np.array_equal(replay.token_ids, expected.token_ids[:, :-1])
    if policy.measure.readout:
        assert np.array_equal(replay.readout_rows.cumsum(axis=1), expected.readout_rows[:, :-1])
    else:
        assert not replay.readout_rows.any()


@pytest.mark.parametrize("name", ["margin", "similarity", "rising", "own class", "recurrent", "pruned"])
def test_layers_that_are_left_out_of_a_replay_are_as_if_replayed_alone(traced, name):
    model, _, _ = traced
    states = states_of(model)
    policy = ExitPolicy(**{"max_draft": 8} | POLICIES[name], propagation="verify")
    replays = list(ranking._replays_at_layers(model, states, policy))
    assert len(replays) > 1 or name in ("own class", "rising")
    for replay in replays:
        alone = full_depth.replay_states(model, states, replay.bound.policy)
        assert np.allclose(replay.confidences, alone.confidences, atol=1e-12)
        assert np.array_equal(replay.token_ids, alone.token_ids)


@pytest.mark.parametrize("max_draft", [1, 3, 8])
@pytest.mark.parametrize("seed", range(2))
def test_the_work_is_the_passes_that_decoding_makes(traced, max_draft, seed, monkeypatch):
    """Exactly, where all drafts are right: behind a wrong one a plan guesses how far drafts go."""
    model, full_trace, full = traced
    passes = []

    def counted(decoder, layer, x, span, run=LayerwiseDecoder.run_pass):
        passes.append(layer)
        return run(decoder, layer, x, span)

    monkeypatch.setattr(LayerwiseDecoder, "run_pass", counted)
    policy = forced(right_layers(full_trace, seed), max_draft=max_draft)
    out = generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=1)
    decoding_passes = len(passes)
    assert out.token_ids == full.token_ids
    policy = replace(policy, min_layer=None, exit_layers=range(1, model.layers))
    (setting,), compared = ranking.rank_settings(
        model, states_of(model), [policy], LENGTH, lambda _: StepCosts(model.layers, 1, 0, 0)
    )
    assert compared == 1
    assert setting.expected == pytest.approx(full.tokens * model.layers / decoding_passes)


def replay_by_hand(exits, same_token, policy, readout_rows=0):
    """A replay of tokens that exit as given, in a decoder of four layers and ten vocabulary entries."""
    bound = policy.bind(4, 10)
    confidences = np.arange(len(bound.decision_layers)) >= np.array(exits)[:, None]
    states = full_depth.FullDepthStates(
        sequence=np.zeros(len(exits), dtype=int),
        position=np.arange(len(exits)),
        fed=torch.zeros(len(exits)),
        final_id=np.ones(len(exits), dtype=int),
        source_ids=torch.zeros(1, 1, dtype=torch.long),
        source_rows=np.zeros(len(exits), dtype=int),
        states=[],
    )
    rows = np.full(confidences.shape, readout_rows)
    return full_depth.Replay(bound, confidences.astype(float), np.array(same_token) * 1, rows), states


COSTS = StepCosts(layers=4, layer=100, readout=30, decision=0)


def test_the_work_of_rounds_is_what_a_hand_computes():
    exits = [0, 0, 1, 0, 0, 0]
    right = np.ones((6, 2), dtype=bool)
    policy = ExitPolicy(threshold=0.5, exit_layers=[1, 2], propagation="verify", max_draft=4)
    replay, states = replay_by_hand(exits, right, policy, readout_rows=10)
    setting, _ = ranking.best_setting(replay, states, 64, COSTS)
    # drafts: five tokens through layer 1, one through 1 and 2, with a readout each time; two rounds, of four
    # and of two drafts, are verified by three layers and a readout
    work = 5 * (100 + 30) + (200 + 60) + 2 * (300 + 30)
    assert setting.expected == pytest.approx(6 * (400 + 30) / work)
    right[1] = False  # then rounds are of the tokens 0 and 1, with two dropped, then of 2 to 5
    replay, states = replay_by_hand(exits, right, policy, readout_rows=10)
    setting, _ = ranking.best_setting(replay, states, 64, COSTS)
    first = 3 * (100 + 30) + (200 + 60) + 300 + 30
    second = 3 * (100 + 30) + (200 + 60) + 300 + 30
    assert setting.expected == pytest.approx(6 * 430 / (first + second))


def test_the_best_draft_length_is_found():
    policy = ExitPolicy("static", exit_layers=[1], propagation="verify")
    replay, states = replay_by_hand([0] * 6, np.ones((6, 1), dtype=bool), policy)
    setting, compared = ranking.best_setting(replay, states, 64, COSTS)
    assert compared == 8 and setting.policy.max_draft == 6
    lengths = [replace(policy, max_draft=length) for length in range(1, 9)]
    speeds = []
    for candidate in lengths:
        replay = replay._replace(bound=candidate.bind(4, 10))
        speeds.append(ranking.best_setting(replay, states, 64, COSTS)[0].expected)
    assert setting.expected == max(speeds) == speeds[5] and speeds[0] == min(speeds)


def test_the_best_of_all_thresholds_and_draft_lengths_is_found():
    """Each pair of them, planned alone, is no faster, and the one that was chosen is as fast."""
    policy = ExitPolicy(exit_layers=[1, 2], propagation="verify")
    draw = np.random.default_rng(3)
    replay, states = replay_by_hand([0] * 20, draw.random((20, 2)) < 0.8, policy)
    replay = replay._replace(confidences=draw.random((20, 2)))
    setting, compared = ranking.best_setting(replay, states, 64, COSTS)

    def alone(threshold, length):
        only = replace(policy, threshold=threshold, max_draft=length)
        return ranking.best_setting(replay._replace(bound=only.bind(4, 10)), states, 64, COSTS)[0].expected

    levels = np.unique(np.quantile(replay.confidences, np.linspace(0, 1, 24), method="inverted_cdf"))
    speeds = [alone(float(level), length) for level in levels for length in range(1, 9)]
    assert compared == len(speeds) == 24 * 8 and setting.expected == max(speeds) > min(speeds)
    assert alone(setting.policy.threshold, setting.policy.max_draft) == setting.expected


def test_the_rounds_of_three_tokens():
    """The worked example of `rounds`, and its work as `planning` has it."""
    same = np.array([[True, True], [False, True], [False, False]])
    given = {"decision_layers": (1, 2), "sequence": np.zeros(3, dtype=int), "max_draft": np.array([2])}
    rounds = rounds_of(np.array([[0, 1, 2]]), same, **given)
    assert rounds.depth.tolist() == [[1, 2, 2]] and rounds.right.tolist() == [[True, True, False]]
    assert rounds.run_to.tolist() == [[2, 3, 3]] and rounds.next_round.tolist() == [[2, 3, 3]]
    assert rounds.begins.tolist() == [[True, False, True]]
    policy = ExitPolicy(threshold=0.5, exit_layers=[1, 2], propagation="verify", max_draft=2)
    replay, _ = replay_by_hand([0, 1, 2], same, policy, readout_rows=5)  # half of all: a decision costs 1
    costs = StepCosts(layers=4, layer=10, readout=2, decision=0)
    work = ranking.cost_by_token(replay, np.array([[0, 1, 2]]), rounds, costs)
    assert work.tolist() == [[55, 0, 44]]
    same[0] = False
    rounds = rounds_of(np.array([[0, 1, 2]]), same, **given)
    assert rounds.next_round[0, 0] == 1 and rounds.begins.tolist() == [[True, True, False]]


@pytest.mark.parametrize("tokens", [2, 4])
def test_a_further_token_of_a_verification_costs_what_it_costs(tokens):
    """One round that copies all but its last token: four layers, each a further time for each of them."""
    policy = ExitPolicy.copying(Copies(), 4)
    replay, states = replay_by_hand([0] * tokens, np.zeros((tokens, 0)), policy)
    offered = np.array([tokens - 1] + [0] * (tokens - 1))
    costs = COSTS._replace(wider=7, round=11, draft=1000)
    setting, _ = ranking.best_setting(replay, states, 64, costs, Copied(offered, offered))
    round_costs = 4 * (100 + (tokens - 1) * 7) + 30 + 11
    assert setting.expected == pytest.approx(tokens * (400 + 30) / round_costs)


def test_a_batch_gains_what_its_slowest_row_gains():
    """Two outputs of four tokens: one copies all but its last token, the other nothing."""
    policy = ExitPolicy.copying(Copies(), 4)
    replay, states = replay_by_hand([0] * 8, np.zeros((8, 0)), policy)
    states = states._replace(sequence=np.repeat([0, 1], 4), position=np.tile(np.arange(4), 2))
    offered = np.array([3, 0, 0, 0, 0, 0, 0, 0])
    copied = Copied(offered, offered)
    alone, _ = ranking.best_setting(replay, states, 64, COSTS, copied)
    together, _ = ranking.best_setting(replay, states, 64, COSTS, copied, batch_size=2)
    assert alone.expected == pytest.approx(8 / 5) and together.expected == 1.0


def test_steps_are_measured_in_seconds_that_add_up(tokenizer):
    model = build_lively("t5-deep-decoder", tokenizer, layers=6)
    ids = input_ids(model.tokenizer, INPUTS)
    (batch,) = full_depth.encode_batches(model, ids, batch_size=len(ids))
    costs = measured_steps(decoder_of(model.network), batch)
    assert costs.layers == 6 and costs.decision == 0 and costs.wider >= 0
    assert 0 < costs.layer < costs.full_depth / 3 and 0 < costs.readout < costs.full_depth
    one_round = 5 * costs.layer + costs.readout + costs.round  # from layer 2 on
    one_draft = costs.layer + costs.readout + costs.draft
    assert one_round > 0 and one_draft > 0


# ---- the plan


def test_a_plan_compares_rules_layers_thresholds_and_lengths_and_keeps_what_is_given(tokenizer, monkeypatch):
    model = agreeing("t5", tokenizer, layers=8)
    trials = always_faster(monkeypatch)
    plan = plan_drafts(model, INPUTS, max_new_tokens=LENGTH, batch_size=2)
    assert plan.settings > 5_000 and plan.expected > 0 and plan.speedup == 2.0
    assert isinstance(plan.policy.max_draft, int) and plan.policy.propagation == "verify"
    chosen = [(planning.kind_of(one), one.measure.name, one.pruning) for one in trials[0].policies]
    assert len(set(chosen)) == len(chosen) > 2, "neighbouring thresholds are not timed"
    by_kind = Counter(planning.kind_of(one) for one in trials[0].policies)
    assert set(by_kind) == {"copies", "exits", "copies and exits"} and by_kind["copies"] == 1
    assert max(by_kind.values()) <= planning.TIMED_OF_A_KIND
    given = ExitPolicy(threshold=0.02, max_draft=3, min_layer=2, propagation="verify")
    plan = plan_drafts(model, INPUTS, given, max_new_tokens=LENGTH)
    for policy in trials[1].policies:
        assert (policy.threshold, policy.max_draft) == (0.02, 3)
        assert min(policy.exit_layers or [policy.min_layer]) >= 2
    assert plan.settings == 6 + 5 + 5
    plan = plan_drafts(model, INPUTS, replace(given, min_layer=None, exit_layers=[3]), max_new_tokens=LENGTH)
    assert plan.policy.exit_layers == (3,) and plan.settings == 1
    full = generate(model, INPUTS, max_new_tokens=LENGTH).token_ids
    for policy in trials[0].policies:
        for batch_size in (1, 7):
            out = generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=batch_size)
            assert out.token_ids == full


def test_a_plan_takes_a_few_inputs_batches_of_neighbours_in_length(tokenizer, monkeypatch):
    model = agreeing("t5", tokenizer)
    trials = always_faster(monkeypatch)
    texts = [f"{text} {number}" for number in range(8) for text in INPUTS]
    plan_drafts(model, texts, ExitPolicy(propagation="verify"), max_new_tokens=3, batch_size=4)
    batches = trials[0].trial
    assert trials[0].batch_size == 4 and len(batches) == len(texts) / 4 / 2, "the others confirm"
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    ranks = [[order.index(index) for index in batch] for batch in batches]
    assert all(batch == list(range(batch[0], batch[0] + 4)) for batch in ranks)
    starts = [batch[0] for batch in ranks]
    assert starts != sorted(starts), "short and long ones in random order"
    assert max(starts) - min(starts) > len(texts) / 2


@pytest.mark.parametrize("name", ["margin", "own class", "pruned", "all at layer 3", "none", "classifier"])
@pytest.mark.parametrize("speedup", [0.9, 1.04, 1.2])
def test_auto_is_the_default_and_decodes_plainly_if_it_loses(tokenizer, name, speedup, monkeypatch):
    model = agreeing("t5", tokenizer)
    options = {key: value for key, value in POLICIES[name].items() if key != "max_draft"}
    policy = ExitPolicy(**options, propagation="verify")
    full = generate(model, INPUTS, max_new_tokens=LENGTH)
    trials = always_faster(monkeypatch, speedup)
    out = generate(model, INPUTS, policy, max_new_tokens=LENGTH)
    assert policy.max_draft == "auto" and out.token_ids == full.token_ids
    if speedup < 1.05 or name == "none":
        assert out.drafts is None and out.flops.tolist() == full.flops.tolist()
    if speedup > 1.05 and name != "none":
        assert out.drafts and trials[0].tokens <= LENGTH


@pytest.mark.parametrize(
    "kind, speedup, words",
    [
        ("copies", 1.5, "copies: copies would be"),
        ("exits", 1.5, "exits: exits would be"),
        ("copies and exits", 1.5, "copies and exits: copies and exits would be"),
        ("copies", 0.9, "nothing: copies would be"),
    ],
)
def test_an_output_says_what_was_planned_and_why(planned, kind, speedup, words, monkeypatch):
    model, full = planned
    always_faster(monkeypatch, speedup)

    def best_of_kind(ranked):
        return [next(one for one in ranked if planning.kind_of(one.policy) == kind)]

    monkeypatch.setattr(planning, "worth_timing", best_of_kind)
    policy = ExitPolicy(propagation="verify", copies=Copies())
    out = generate(model, INPUTS, policy, max_new_tokens=LENGTH)
    assert out.token_ids == full and out.plan.kind == kind
    assert str(out.plan).startswith(words) and f"timed at {speedup:.2f}" in repr(out)
    if speedup > 1:
        assert out.drafts and bool(out.plan.policy.copies) == ("copies" in kind)
        assert generate(model, INPUTS, out.plan.policy, max_new_tokens=LENGTH).plan is None


def test_hopeless_settings_are_not_timed(tokenizer, monkeypatch):
    """By what their steps cost they are no faster."""
    model = agreeing("t5", tokenizer)
    monkeypatch.setattr(planning.Timed, "seconds", lambda *_, **__: pytest.fail("timed"))
    never = ExitPolicy(threshold=1.0, propagation="verify")
    plan = plan_drafts(model, INPUTS, never, max_new_tokens=LENGTH)
    assert plan.policy is None and plan.speedup == 1.0 and plan.expected < 1.05


class Clock:
    """Seconds of full depth (None) and of policies that are truly `speeds` times as fast."""

    def __init__(self, speeds, noise=0.0, seed=0, scale=1.0):
        self.speeds = {None: 1.0} | dict(enumerate(speeds))
        self.noise = noise
        self.draw = np.random.default_rng(seed)
        self.order = []
        self.turns = []
        self.scale = scale

    def seconds(self, policy, turn):
        self.order.append(policy)
        self.turns.append(turn)
        return self.scale * np.exp(self.noise * self.draw.normal()) / self.speeds[policy]


def test_the_fastest_is_timed_again_and_that_alone_counts():
    trial = Clock([1.5, 1.6, 1.55])
    confirming = Clock([1.1, 1.3, 1.2])
    assert planning.find_fastest(range(3), trial.seconds, confirming.seconds) == (1, pytest.approx(1.3))
    by_turn = [tuple(trial.order[start : start + 4]) for start in range(0, len(trial.order), 4)]
    assert all({*turn} == {None, 0, 1, 2} for turn in by_turn) and len({*by_turn}) > 1
    assert trial.turns == np.repeat(np.arange(len(by_turn)), 4).tolist(), "all before the next turn"
    assert set(confirming.order) == {None, 1}, "the fastest alone"


def test_a_trial_takes_its_seconds_and_a_slow_one_its_least_turns():
    quick = Clock([1.1, 1.2], scale=0.001)
    planning.find_fastest(range(2), quick.seconds, quick.seconds)
    assert quick.turns.count(0) >= 3 and max(quick.turns) == planning.MOST_TURNS - 1
    slow = Clock([0.95, 1.0], scale=100.0)
    planning.find_fastest(range(2), slow.seconds, lambda *_: pytest.fail("timed"))
    assert len(slow.order) == 3 * planning.LEAST_TURNS


def test_a_setting_that_is_far_behind_leaves_the_trial_half_way():
    clock = Clock([1.3, 1.0, 1.25], scale=0.1)
    speedups = planning._speedups(range(3), clock.seconds, budget=4.0)
    assert speedups == pytest.approx([1.3, 1.0, 1.25])
    turns = max(clock.turns) + 1
    assert [clock.order.count(each) for each in (None, 0, 2)] == [turns] * 3
    assert 5 <= clock.order.count(1) <= 6 < turns


def test_where_nothing_wins_the_trial_nothing_is_timed_again():
    trial = Clock([0.8, 1.04])
    found = planning.find_fastest(range(2), trial.seconds, lambda *_: pytest.fail("timed"))
    assert found == (1, pytest.approx(1.04))


def test_a_speedup_is_of_all_turns_together_but_for_the_strangest():
    """A long input counts for more than a short one; a turn in which the machine stood still does not."""
    turns = [(8.0, 2.0), (1.0, 1.0)] * 5  # full depth, then a setting

    def seconds(policy, turn):
        return turns[turn][0 if policy is None else 1]

    budget = np.sum(turns) - 0.5
    assert planning._speedups([0], seconds, budget) == pytest.approx([(4 * 8 + 4) / (4 * 2 + 4)])
    turns[0] = (8.0, 800.0)
    assert planning._speedups([0], seconds, budget + 798) == pytest.approx([(3 * 8 + 5) / (3 * 2 + 5)])


def test_a_setting_that_was_only_lucky_in_the_trial_is_not_used():
    """Five settings truly slower than full depth, timings 5 % off: the trial alone often likes one."""
    liked = used = 0
    for seed in range(1000):
        clock = Clock([0.97] * 5, noise=0.05, seed=seed)
        _, speedup = planning.find_fastest(range(5), clock.seconds, clock.seconds)
        liked += clock.turns.count(0) > 6
        used += speedup >= planning.MIN_SPEEDUP
    assert liked > 100 and used < 20


def test_a_setting_that_is_truly_faster_is_used():
    used = 0
    for seed in range(200):
        clock = Clock([0.9, 1.0, 1.25, 1.1], noise=0.05, seed=seed)
        fastest, speedup = planning.find_fastest(range(4), clock.seconds, clock.seconds)
        used += speedup >= planning.MIN_SPEEDUP and clock.speeds[fastest] > 1.05
    assert used > 195


def test_thresholds_that_fit_the_trials_inputs_alone_are_not_used(planned, monkeypatch):
    """A setting that wins on the inputs it was chosen on, and loses on others."""
    model, full = planned
    texts = INPUTS * 8
    _, trial, confirming = planning._choose_inputs(texts, 1)
    assert not set(np.concatenate(trial)) & set(np.concatenate(confirming))

    def seconds(timed, batches, policy, turn):
        return 1.0 if policy is None else 0.5 if np.array_equal(batches, trial) else 1.1

    monkeypatch.setattr(planning.Timed, "seconds", seconds)
    monkeypatch.setattr(planning, "worth_timing", lambda ranked: ranked)
    policy = ExitPolicy(threshold=0.0, exit_layers=[2], propagation="verify")
    plan = plan_drafts(model, texts, policy, max_new_tokens=LENGTH, batch_size=1)
    assert plan.policy is None and plan.speedup == pytest.approx(1 / 1.1)
    out = generate(model, texts, policy, max_new_tokens=LENGTH, batch_size=1)
    assert out.drafts is None and out.token_ids == full * 8


@pytest.mark.parametrize("texts", [1, 7, 15, 16, 17, 33, 100])
@pytest.mark.parametrize("batch_size", [1, 2, 8, 32])
def test_confirming_inputs_are_others_where_there_are_enough(texts, batch_size):
    inputs = ["a" * (texts - number) for number in range(texts)]
    batch_size = min(batch_size, texts)
    replayed, *of_batches = planning._choose_inputs(inputs, batch_size)
    trial, confirming = ({*np.concatenate(batches)} for batches in of_batches)
    assert trial and confirming and trial | confirming == set(range(texts))
    assert 0 < len(replayed) <= planning.PLANNING_INPUTS and trial >= {*replayed}
    if texts > batch_size:
        assert not trial & confirming


@pytest.fixture(scope="module")
def planned(tokenizer):
    model = agreeing("t5", tokenizer)
    return model, generate(model, INPUTS, max_new_tokens=LENGTH).token_ids


def trained(kind, model):
    sizes = {"decoder_layers": model.layers, "vocabulary": model.network.config.vocab_size}
    sizes = {name: sizes[name] for name in SIZED.get(kind, ())}
    return new_classifier(kind, model.network.config.d_model, **sizes).double()


class LooksAtAll(Measure):
    """A user-defined measure that looks at all that the documentation names."""

    name = "looks at all"
    readout = True
    lookback = 1

    def confidence(self, state):
        before = torch.as_tensor(state.token_before)
        seen = state.margin + state.entropy + state.similarity + state.earlier(1).top1_probability
        return torch.sigmoid(seen + before / 600 + torch.as_tensor(state.position) + state.state.mean(-1))


KINDS = sorted({*MEASURES, *TRAINED} - {"oracle"})


@pytest.mark.parametrize("kind", [*KINDS, "user-defined"])
@pytest.mark.parametrize("options", [{}, {"exit_layers": [3]}])
def test_every_measure_decodes_with_planned_drafts(planned, kind, options, monkeypatch):
    model, full = planned
    measure = trained(kind, model) if kind in TRAINED else LooksAtAll() if kind == "user-defined" else kind
    if kind == "static" and not options:
        options = {"min_layer": 1}
    trials = always_faster(monkeypatch)
    policy = ExitPolicy(measure, propagation="verify", **options)
    out = generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=4)
    assert out.token_ids == full and out.drafts
    assert len(trials) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"decay": 4.0},
        {"decay": 4.0, "decay_form": "calm", "measure": "max_probability"},
        {"threshold": "bandit"},
        {"pruning": "decaying", "top_k": 30, "least_k": 3},
        {"pruning": "adaptive"},
        {"contrast": "jsd"},
        {"contrast": "weighted", "contrast_token": True},
        {"measure": "entropy", "pruning": "fixed", "top_k": 600},
    ],
)
def test_every_schedule_and_readout_decodes_with_planned_drafts(planned, options, monkeypatch):
    model, full = planned
    always_faster(monkeypatch)
    out = generate(model, INPUTS, ExitPolicy(**options, propagation="verify"), max_new_tokens=LENGTH)
    assert out.token_ids == full and out.drafts


def test_forced_exits_are_those_of_their_own_inputs(planned, monkeypatch):
    """A plan decodes a few inputs; they keep their indices."""
    model, full = planned
    trials = always_faster(monkeypatch)
    full_trace = trace(model, INPUTS, max_new_tokens=LENGTH)
    texts = INPUTS * 6
    layers = right_layers(full_trace, 0) * 6
    policy = ExitPolicy(ForcedExits(layers), propagation="verify")
    out = generate(model, texts, policy, max_new_tokens=LENGTH, batch_size=3)
    assert out.token_ids == full * 6 and out.acceptance == 1.0
    assert np.concatenate(trials[0].trial).max() > len(INPUTS)
    predicted = replay_drafts(full_trace, trials[0].policies[0], max_new_tokens=LENGTH)
    assert [drafts.accepted for drafts in out.drafts] == predicted.accepted.tolist() * 6


@pytest.mark.parametrize("layers", [1, 2])
def test_a_decoder_of_one_layer_has_nothing_to_draft_at(tokenizer, layers):
    model = build_lively("t5-deep-decoder", tokenizer, layers=layers)
    full = generate(model, INPUTS, max_new_tokens=LENGTH)
    policy = ExitPolicy(threshold=0.0, propagation="verify")
    out = generate(model, INPUTS, policy, max_new_tokens=LENGTH)
    assert out.token_ids == full.token_ids
    plan = plan_drafts(model, INPUTS, max_new_tokens=LENGTH)
    assert layers > 1 or (plan.settings == len(planning.DEFAULT_COPIES) and plan.policy is None)


def test_more_rows_than_vocabulary_entries(tokenizer, monkeypatch):
    network = build_network("t5", len(tokenizer))
    model = Model(network, tokenizer, "t5", 1)
    always_faster(monkeypatch)
    texts = ["the red house"] * (network.config.vocab_size + 5)
    policy = ExitPolicy(threshold=0.0, exit_layers=[2], propagation="verify")
    out = generate(model, texts, policy, max_new_tokens=2, batch_size=len(texts))
    assert out.token_ids == generate(model, texts, max_new_tokens=2, batch_size=len(texts)).token_ids


# ---- the front door


def test_generate_is_the_decoders_own():
    assert mee_utils.generate is generation.generate
    names = ["model", "inputs", "policy", "max_new_tokens", "batch_size", "max_source_tokens", "encodings"]
    assert list(inspect.signature(generate).parameters) == names


VERIFIED = ExitPolicy(propagation="verify")


def test_long_inputs_that_were_allowed_are_planned_too(planned, monkeypatch):
    model, full = planned
    always_faster(monkeypatch)
    monkeypatch.setattr(model.tokenizer, "model_max_length", 3)
    with pytest.raises(MeeError, match=r"Input 0 has .* tokens, more than 3"):
        generate(model, INPUTS, VERIFIED, max_new_tokens=LENGTH)
    out = generate(model, INPUTS, VERIFIED, max_new_tokens=LENGTH, max_source_tokens=100)
    assert out.token_ids == full and out.drafts
    plan = plan_drafts(model, INPUTS, VERIFIED, max_new_tokens=LENGTH, max_source_tokens=100)
    assert plan.policy is not None


@pytest.mark.parametrize("once", [iter, lambda texts: (text for text in texts), tuple])
def test_inputs_may_be_anything_that_gives_texts_once(planned, once, monkeypatch):
    model, full = planned
    always_faster(monkeypatch)
    assert generate(model, once(INPUTS), VERIFIED, max_new_tokens=LENGTH).token_ids == full
    assert plan_drafts(model, once(INPUTS), iter([VERIFIED]), max_new_tokens=LENGTH).policy is not None


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"max_new_token": 5}, TypeError, "max_new_token"),
        ({"max_new_tokens": 0}, MeeError, "max_new_tokens=0"),
        ({"batch_size": 0}, MeeError, "batch_size=0"),
        ({"batch_size": 2.0}, MeeError, "batch_size=2.0"),
        ({"max_source_tokens": 1}, MeeError, "more than 1"),
        ({"max_source_tokens": "9"}, MeeError, "max_source_tokens='9'"),
        ({"encodings": 5}, MeeError, "encodings=5"),
        ({"policy": replace(VERIFIED, min_layer=9)}, MeeError, "names layer 9"),
        ({"policy": replace(VERIFIED, measure=classifier("linear_classifier").float())}, None, ""),
    ],
)
def test_wrong_options_are_refused_before_anything_is_planned(planned, options, error, message, monkeypatch):
    model, full = planned
    if error is None:
        assert generate(model, INPUTS, **options, max_new_tokens=LENGTH).token_ids == full
        return
    monkeypatch.setattr(generation, "make_plan", lambda *_, **__: pytest.fail("planned"))
    with pytest.raises(error, match=message):
        generate(model, INPUTS, **{"policy": VERIFIED} | options)


def test_wrong_plans_are_one_line(planned):
    model, _ = planned
    for call, message in (
        (lambda: plan_drafts(model, INPUTS, []), "at least one ExitPolicy"),
        (lambda: plan_drafts(model, INPUTS, ["margin"]), "policy='margin': give ExitPolicy"),
        (lambda: plan_drafts(model, INPUTS, "margin"), "give ExitPolicy"),
        (lambda: plan_drafts(model, [], VERIFIED), "no inputs"),
        (lambda: plan_drafts(model, INPUTS, ExitPolicy("oracle")), "cannot draft"),
        (lambda: plan_drafts(model, INPUTS, batch_size=0), "batch_size=0"),
        (lambda: plan_drafts(model, INPUTS, max_new_tokens=0), "max_new_tokens=0"),
        (lambda: plan_drafts(model, INPUTS, ExitPolicy(min_layer=9)), "names layer 9"),
        (lambda: plan_drafts(model.network, INPUTS), "give what load_model returns"),
    ):
        with pytest.raises(MeeError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
