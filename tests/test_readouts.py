"""Pruned and contrasted readouts, against arithmetic by hand and a plain recomputation from the states."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import INPUTS, LENGTH, build_lively
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import counted_and_profiled

from mee_utils import ExitPolicy, MeeError, generate, replay, trace
from mee_utils.decoding.token import on_host
from mee_utils.exits.contrast import Distribution, jensen_shannon, jsd_contrast, weighted_contrast
from mee_utils.exits.measures import MaxProbability, Oracle, SoftmaxMargin
from mee_utils.models.states import output_scale
from mee_utils.traces.replay import replay_policy

vectors = st.lists(st.floats(-8, 8), min_size=5, max_size=5)


def logs(*probabilities):
    return torch.log(torch.tensor(probabilities, dtype=torch.float64))


def test_the_weighted_contrast_by_hand():
    expert, amateur = logs(0.5, 0.3, 0.15, 0.04, 0.01), logs(0.6, 0.1, 0.1, 0.1, 0.1)
    found = weighted_contrast(expert, amateur, alpha=0.2).exp()
    # the head holds what has at least 0.1; its ratios are 5/6, 3 and 1.5, and it keeps its mass of 0.95
    ratios = np.array([0.5 / 0.6, 3.0, 1.5])
    assert np.allclose(found, [*(0.95 * ratios / ratios.sum()), 0.04, 0.01])


@given(vectors, vectors, st.floats(0.01, 1.0))
@settings(deadline=None, max_examples=100)
def test_a_contrast_is_a_distribution_and_divergence_is_symmetric(first, second, alpha):
    a, b = torch.tensor(first, dtype=torch.float64), torch.tensor(second, dtype=torch.float64)
    assert weighted_contrast(a, b, alpha).exp().sum().item() == pytest.approx(1, abs=1e-6)
    scores, _ = jsd_contrast(a[None], b[None, None], alpha)
    assert scores.exp().sum().item() == pytest.approx(1, abs=1e-6)
    p, q = Distribution.from_logits(a), Distribution.from_logits(b)
    forth, back = jensen_shannon(p, q).item(), jensen_shannon(q, p).item()
    assert forth == pytest.approx(back, abs=1e-12) and 0 <= forth <= math.log(2) + 1e-12
    assert jensen_shannon(p, p).item() == pytest.approx(0, abs=1e-12)


def test_divergence_by_hand_and_the_amateur_that_is_farthest():
    p, q = Distribution.of(logs(0.5, 0.5).exp()), Distribution.of(logs(0.25, 0.75).exp())
    assert jensen_shannon(p, q).item() == pytest.approx(
        0.5 * (0.5 * math.log(0.5 / 0.375) + 0.5 * math.log(0.5 / 0.625))
        + 0.5 * (0.25 * math.log(0.25 / 0.375) + 0.75 * math.log(0.75 / 0.625))
    )
    expert = torch.stack([logs(0.7, 0.2, 0.1), logs(0.1, 0.1, 0.8)])
    near, far = logs(0.6, 0.3, 0.1), logs(0.1, 0.2, 0.7)
    scores, chosen = jsd_contrast(expert, torch.stack([torch.stack([near, near]), torch.stack([far, far])]))
    assert chosen.tolist() == [1, 0]
    assert torch.allclose(scores[0], weighted_contrast(expert[0], far)) and torch.allclose(
        scores[1], weighted_contrast(expert[1], near)
    )


@given(vectors, vectors)
@settings(deadline=None, max_examples=60)
def test_a_head_of_one_leaves_the_expert_as_it_is(first, second):
    expert, amateur = (
        torch.tensor(sorted(first), dtype=torch.float64) + torch.arange(5),
        torch.tensor(second, dtype=torch.float64),
    )
    found = weighted_contrast(expert, amateur, alpha=0.999)
    assert torch.allclose(found, torch.log_softmax(expert, -1)) and found.argmax() == expert.argmax()


def kept_ids(first, layers, **options):
    return ExitPolicy(min_layer=first, **options).bind(layers, 1000).readout.sizes


def test_sizes_shrink_as_the_paper_says():
    decaying = {"pruning": "decaying", "top_k": 400, "least_k": 50}
    fixed = kept_ids(4, 12, pruning="fixed", top_k=50)
    assert fixed == {4: 1000} | dict.fromkeys(range(5, 13), 50)
    found, k = kept_ids(4, 12, **decaying), 400
    assert found[5] == k  # the paper prunes for layer l + 1 with l / L, so that layer 5 reads all k ids
    for layer in range(6, 13):
        k = min(k, max(50, int(k / (1 + (k - 50) / 50 * (layer - 1) / 12))))
        assert found[layer] == k
    sizes = kept_ids(4, 12, pruning="decaying", top_k=256, least_k=16)
    assert (sizes[5], sizes[6]) == (256, 35)
    closed = kept_ids(4, 12, **decaying, pruning_form="closed")
    assert closed[5] == int(400 / (1 + 7 * 5 / 12)) and closed[12] == max(50, int(400 / 8))
    assert kept_ids(1, 3, pruning="fixed", top_k=5000) == {1: 1000, 2: 1000, 3: 1000}


class Watching(MaxProbability):
    """Notes states so far, confidence and prediction of every row at every deciding layer."""

    recurrent = True

    def __init__(self):
        self.seen = {}

    def confidence(self, now):
        states = {now.layer - back: (now.earlier(back) if back else now).state for back in range(now.layer)}
        for row, sequence in enumerate(now.sequence):
            entry = self.seen.setdefault((int(sequence), now.position), {"states": {}})
            entry[now.layer] = (float(now.top1_probability[row]), int(now.top1_id[row]))
            entry["states"] |= {layer: state[row].numpy() for layer, state in states.items()}
        return now.top1_probability


def softmax(logits):
    shifted = np.exp(logits - logits.max())
    return shifted / shifted.sum()


def recomputed(states, policy, head, layers, first):
    """Layer -> (p, id) from the states alone: one row, all of the head, plain numpy."""
    vocabulary, confidence = len(head), None
    sizes = policy.bind(layers, vocabulary).readout.sizes
    full = {layer: head @ state for layer, state in states.items()}
    kept = np.arange(vocabulary)
    ordered = np.argsort(-full[first], kind="stable")
    found = {}
    for layer in range(first, max(states) + 1):
        if layer > first and policy.pruning == "adaptive":
            kept = ordered[: max(1, int(vocabulary * (1 - 0.9 * confidence)))]
        elif layer > first and policy.pruning:
            before = np.argsort(-full[layer - 1][kept], kind="stable")
            kept = kept[before][: sizes[layer]]
        scores = full[layer][kept]
        p = softmax(scores)
        if policy.contrast:
            amateurs = [layer // 2] if policy.contrast == "weighted" else list(range(1, layer))
            others = [softmax(full[layer][kept]) for layer in amateurs]
            middle = [(p + q) / 2 for q in others]
            divergence = [
                np.sum(p * np.log(p / m)) + np.sum(q * np.log(q / m))
                for q, m in zip(others, middle, strict=True)
            ]
            q = others[int(np.argmax(divergence))]
            inside = p >= policy.contrast_alpha * p.max()
            contrasted = p.copy()
            contrasted[inside] = (p / q)[inside] / (p / q)[inside].sum() * p[inside].sum()
            confidence, best = contrasted.max(), (contrasted if policy.contrast_token else p).argmax()
        else:
            confidence, best = p.max(), p.argmax()
        found[layer] = (confidence, int(kept[best]))
    return found


OPTIONS = [
    {"pruning": "fixed", "top_k": 20},
    {"pruning": "decaying", "top_k": 60, "least_k": 8},
    {"pruning": "fixed", "top_k": 500},
    {"pruning": "decaying", "top_k": 60, "least_k": 8, "pruning_form": "closed"},
    {"pruning": "adaptive"},
    {"pruning": "fixed", "top_k": 20, "prune_last_layer": False},
    {"pruning": "adaptive", "prune_last_layer": False},
    {"contrast": "weighted"},
    {"contrast": "jsd"},
    {"contrast": "weighted", "contrast_token": True, "contrast_alpha": 0.3},
    {"pruning": "fixed", "top_k": 20, "contrast": "jsd", "contrast_token": True},
    {"pruning": "adaptive", "contrast": "weighted"},
    {"pruning": "decaying", "top_k": 60, "least_k": 8, "contrast": "weighted"},
]


def named(options):
    return "-".join(str(value) for value in options.values())


@pytest.fixture(scope="module", params=["t5", "t5-v1.1"])
def eight(request, tokenizer):
    return build_lively(request.param, tokenizer, layers=8)


def level(model, rule, options, share):
    """A threshold that this share of the confidences do not exceed, half-way between two of them."""
    confidence = rule.confidence
    seen = []

    def noted(state):
        values = confidence(state)
        seen.append(on_host(values))
        return values

    rule.confidence = noted
    generate(
        model,
        INPUTS,
        ExitPolicy(rule, threshold=1.0, min_layer=3, **options),
        max_new_tokens=LENGTH,
        batch_size=len(INPUTS),
    )
    values = np.unique(np.concatenate(seen))
    index = int(share * len(values))
    return float(values[index : index + 2].mean())


@pytest.mark.parametrize("options", OPTIONS, ids=named)
def test_what_a_batch_reads_out_is_what_plain_arithmetic_says(eight, options):
    """Rows exit at different layers; all is recomputed from the states of the row alone."""
    rule, head = Watching(), eight.network.lm_head.weight.detach().numpy() * output_scale(eight.network)
    policy = ExitPolicy(rule, threshold=level(eight, Watching(), options, 0.75), min_layer=3, **options)
    out = generate(eight, INPUTS, policy, max_new_tokens=LENGTH, batch_size=len(INPUTS))
    checked, exits = 0, np.concatenate(out.exit_layers)
    assert len(set(exits.tolist())) > 2
    for (sequence, position), entry in rule.seen.items():
        left = out.exit_layers[sequence][position]
        expected = recomputed({k: v for k, v in entry["states"].items() if k <= left}, policy, head, 8, 3)
        for layer in [layer for layer in entry if isinstance(layer, int) and layer <= left]:
            assert entry[layer][0] == pytest.approx(expected[layer][0], abs=1e-9)
            assert entry[layer][1] == expected[layer][1]
            checked += 1
        if left < 8:
            assert out.token_ids[sequence][position] == expected[left][1]
    assert checked > len(exits)


@pytest.mark.parametrize("measure", ["softmax_margin", "rising_top1"])
def test_a_last_layer_that_is_not_pruned_gives_full_depths_token(eight, measure):
    """Where nothing exits, nothing is lost; with a pruned last layer, tokens outside the list are."""
    never = {"measure": measure, "threshold": 1.0, "min_layer": 3, "pruning": "fixed", "top_k": 2}
    options = {"max_new_tokens": LENGTH, "batch_size": 4}
    full = generate(eight, INPUTS, **options)
    as_published = generate(eight, INPUTS, ExitPolicy(**never), **options)
    not_pruned = generate(eight, INPUTS, ExitPolicy(**never, prune_last_layer=False), **options)
    assert not_pruned.token_ids == full.token_ids != as_published.token_ids
    vocabulary = eight.network.config.vocab_size
    for pruned, rows in zip(as_published.readout_rows, not_pruned.readout_rows, strict=True):
        assert (rows == pruned[0] - 2 + vocabulary).all()


@pytest.mark.parametrize("options", OPTIONS, ids=named)
def test_a_row_gets_what_it_gets_alone(eight, options):
    policy = ExitPolicy(
        "softmax_margin", threshold=level(eight, SoftmaxMargin(), options, 0.75), min_layer=3, **options
    )
    together = generate(eight, INPUTS, policy, max_new_tokens=LENGTH, batch_size=len(INPUTS))
    assert len(set(np.concatenate(together.exit_layers).tolist())) > 2
    for index, text in enumerate(INPUTS):
        alone = generate(eight, [text], policy, max_new_tokens=LENGTH)
        assert (
            together.token_ids[index] == alone.token_ids[0]
            and (together.exit_layers[index] == alone.exit_layers[0]).all()
        )
        assert (together.readout_rows[index] == alone.readout_rows[0]).all()
        assert np.allclose(together.confidences[index], alone.confidences[0], equal_nan=True)


@pytest.mark.parametrize(
    "options",
    [{"pruning": "fixed", "top_k": 10**6}, {"pruning": "decaying", "top_k": 10**6, "least_k": 10**6}],
    ids=named,
)
@pytest.mark.parametrize("measure", ["softmax_margin", "rising_top1"])
def test_keeping_every_id_changes_nothing_bit_for_bit(eight, measure, options):
    plain, pruned = (
        generate(
            eight,
            INPUTS,
            ExitPolicy(measure, threshold=0.3, min_layer=3, **given),
            max_new_tokens=LENGTH,
            batch_size=4,
        )
        for given in ({}, options)
    )
    assert plain.token_ids == pruned.token_ids and (plain.flops == pruned.flops).all()
    for ours, theirs in zip(plain.confidences, pruned.confidences, strict=True):
        assert np.array_equal(ours, theirs, equal_nan=True)
    assert all((a == b).all() for a, b in zip(plain.readout_rows, pruned.readout_rows, strict=True))


@pytest.mark.parametrize("options", OPTIONS, ids=named)
def test_operations_are_counted_as_a_profiler_counts_them(tokenizer, options):
    model = build_lively("t5", tokenizer, dtype=torch.float32, layers=6)
    policy = ExitPolicy("max_probability", threshold=0.4, min_layer=2, **options)
    _, counted, profiled = counted_and_profiled(model, INPUTS[0], policy, LENGTH)
    assert sum(counted.values()) == profiled


def test_a_pruned_readout_costs_in_proportion_to_what_it_keeps(eight):
    vocabulary = eight.network.config.vocab_size
    unpruned = ExitPolicy("max_probability", threshold=1.0, min_layer=1)
    for later in (vocabulary, vocabulary // 2, vocabulary // 20):
        pruned = replace(unpruned, pruning="fixed", top_k=later)
        policy = unpruned if later == vocabulary else pruned
        out = generate(eight, INPUTS, policy, max_new_tokens=4)
        assert all((row == vocabulary + 7 * later).all() for row in out.readout_rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pruning": "fxed", "top_k": 5}, 'did you mean "fixed"'),
        ({"pruning": "fixed"}, "needs a whole number of ids"),
        ({"pruning": "fixed", "top_k": 0}, "needs a whole number of ids"),
        ({"top_k": 5}, "means nothing without pruning"),
        ({"pruning": "adaptive", "least_k": 5}, "means nothing without pruning"),
        ({"pruning": "decaying", "top_k": 5, "least_k": 9}, "ids can only become fewer"),
        ({"pruning": "fixed", "top_k": 5, "pruning_form": "closed"}, 'belongs to pruning="decaying"'),
        ({"prune_last_layer": False}, "prune_last_layer=False means nothing without pruning"),
        ({"pruning": "adaptive", "prune_last_layer": 0}, "prune_last_layer=0: give True"),
        (
            {"pruning": "adaptive", "prune_last_layer": False, "contrast": "jsd", "contrast_token": True},
            "contradict each other",
        ),
        ({"contrast": "jds"}, 'did you mean "jsd"'),
        ({"contrast": "jsd", "contrast_alpha": 0.0}, "above 0 and up to 1"),
        ({"contrast_token": True}, "need contrast="),
        (
            {"measure": "hidden_similarity", "pruning": "adaptive"},
            "needs a measure that looks at probabilities",
        ),
        ({"measure": "static", "contrast": "weighted"}, "needs a measure that looks at probabilities"),
        ({"measure": "oracle", "contrast": "weighted"}, "needs a measure that looks at probabilities"),
        ({"measure": "rising_top1", "contrast": "weighted"}, "contradict each other"),
        (
            {
                "threshold": "adaptive",
                "measure": "max_probability",
                "exit_layers": [2],
                "propagation": "parallel",
                "pruning": "adaptive",
            },
            "contradict each other",
        ),
    ],
)
def test_contradictions_are_one_clear_line(options, message):
    with pytest.raises(MeeError, match=message) as caught:
        ExitPolicy(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", OPTIONS, ids=named)
def test_replay_reads_states_as_decoding_does(eight, options, tmp_path):
    """Up to the first exit of a sequence its states are those of full depth: replay is decoding."""
    policy = ExitPolicy(
        "softmax_margin", threshold=level(eight, SoftmaxMargin(), options, 0.9), min_layer=3, **options
    )
    found = trace(eight, INPUTS, max_new_tokens=LENGTH, states=tmp_path / "states.npy")
    out = generate(eight, INPUTS, policy, max_new_tokens=LENGTH)
    replayed = replay_policy(found, policy, eight)
    exits, checked = replayed.exit_layers(), 0
    readout_rows = replayed.readout_rows[np.arange(len(found)), replayed.exits()]
    for sequence, layers in enumerate(out.exit_layers):
        for position, layer in enumerate(layers):
            row = np.flatnonzero((found.sequence == sequence) & (found.position == position))[0]
            assert exits[row] == layer and readout_rows[row] == out.readout_rows[sequence][position]
            place = list(replayed.layers).index(layer)
            if policy.contrast_token or layer < 8 or policy.pruning:
                assert replayed.token_ids[row, place] == out.token_ids[sequence][position]
            if layer < 8:
                assert replayed.confidences[row, place] == pytest.approx(
                    out.confidences[sequence][position], abs=1e-5
                )
            checked += 1
            if layer < 8 or out.token_ids[sequence][position] != found.token_id[row]:
                break
    assert checked >= len(INPUTS)
    assert (replay(found, policy, model=eight) == exits).all()


class Alternating(MaxProbability):
    """A user-defined measure that looks at the token before: sure after some tokens alone."""

    name = "alternating"

    def confidence(self, state):
        return ((state.token_before % 3 == 0) | (state.token_before < 0)) * 1.0


@pytest.mark.parametrize(
    "options",
    [{}, *OPTIONS, {"propagation": "parallel"}, {"propagation": "verify", "max_draft": 3}],
    ids=named,
)
def test_a_measure_may_look_at_the_token_before_wherever_it_decides(eight, options, tmp_path):
    policy = ExitPolicy(Alternating(), threshold=0.5, min_layer=3, **options)
    full = trace(eight, INPUTS, max_new_tokens=LENGTH, states=tmp_path / "states.npy")
    predicted = replay(full, policy, model=eight)
    sure = (full.token_before % 3 == 0) | (full.position == 0)
    assert (predicted == np.where(sure, 3, 8)).all() and 0 < sure.mean() < 1
    out = generate(eight, INPUTS, policy, max_new_tokens=LENGTH)
    if policy.propagation == "verify":
        assert out.token_ids == generate(eight, INPUTS, max_new_tokens=LENGTH).token_ids
        return
    for ids, layers in zip(out.token_ids, out.exit_layers, strict=True):
        before = np.array([0, *ids[:-1]])
        assert layers.tolist() == np.where(before % 3 == 0, 3, 8).tolist()


def test_a_measure_that_needs_all_layers_may_look_at_the_token_before(eight):
    class Hindsight(Oracle):
        def confidence(self, state):
            return on_host(state.token_before >= 0) * state.settled

    oracle, hindsight = (
        generate(eight, INPUTS, ExitPolicy(measure, propagation="parallel"), max_new_tokens=LENGTH)
        for measure in ("oracle", Hindsight())
    )
    for expected, layers in zip(oracle.exit_layers, hindsight.exit_layers, strict=True):
        assert layers.tolist() == [8, *expected[1:]]


def test_what_is_kept_is_what_ranks_high_enough(eight, tmp_path):
    found = trace(eight, INPUTS, max_new_tokens=LENGTH, states=tmp_path / "states.npy")
    replayed = replay_policy(
        found, ExitPolicy("softmax_margin", min_layer=3, pruning="fixed", top_k=5), eight
    )
    assert replayed.kept[:, :3].all() and 0.02 < replayed.kept[:, 3].mean() < 1
    for layer in range(4, 9):
        assert (replayed.kept[:, layer - 1] == (found.final_rank[:, 2] <= 5)).all()
    many, shrinking = (
        replay_policy(found, ExitPolicy("softmax_margin", min_layer=3, top_k=500, **given), eight).kept[:, 3:]
        for given in ({"pruning": "fixed"}, {"pruning": "decaying", "least_k": 2})
    )
    assert (np.diff(shrinking.astype(int), axis=1) <= 0).all() and not (shrinking & ~many).any()
    assert shrinking.sum() < many.sum()
    with pytest.raises(MeeError, match="give the model of the trace"):
        replay(found, ExitPolicy("softmax_margin", pruning="adaptive"))
