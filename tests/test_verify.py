"""Verified exits give full depth's output, token for token; a trace foretells what becomes of every draft."""

import numpy as np
import pytest
import torch
from conftest import EXIT_FAMILIES, FAMILIES, INPUTS, LENGTH, build_lively, confidences, end_with
from reference import counted_and_profiled, greedy

from mee_utils import ExitPolicy, ForcedExits, Measure, MeeError, generate, replay_drafts, trace
from mee_utils.decoding import layerwise, verify
from mee_utils.decoding.cache import Cache
from mee_utils.decoding.layerwise import LayerwiseDecoder
from mee_utils.decoding.spans import AlignedSpan, RaggedSpan, span_at
from mee_utils.exits.classifiers import new_classifier
from mee_utils.models.costs import DecoderSizes
from mee_utils.traces.drafts import drafts_of
from mee_utils.traces.replay import replay_policy


class Entropy(Measure):
    """A measure of one's own."""

    name, readout = "low_entropy", True

    def confidence(self, state):
        return 1 / (1 + state.entropy)


def classifier(kind, seed=0):
    made = new_classifier(kind, 32, seed)
    with torch.no_grad():
        for weight in made.parameters():
            weight.mul_(3)
    return made.double()


POLICIES = {
    "margin": {"measure": "softmax_margin", "max_draft": 3},
    "probability, decaying": {"measure": "max_probability", "decay": 4.0, "max_draft": 1},
    "similarity": {"measure": "hidden_similarity", "max_draft": 4},
    "rising": {"measure": "rising_top1"},
    "own class": {"measure": Entropy(), "exit_layers": [1, 3]},
    "all at layer 1": {"measure": "static", "min_layer": 1},
    "all at layer 3": {"measure": "static", "min_layer": 3, "max_draft": 2},
    "none": {"measure": "static", "min_layer": 4},
    "pruned": {"measure": "max_probability", "pruning": "fixed", "top_k": 20},
    "pruned by confidence": {"measure": "softmax_margin", "pruning": "adaptive", "max_draft": 5},
    "contrasted": {
        "measure": "softmax_margin",
        "contrast": "weighted",
        "contrast_token": True,
        "min_layer": 2,
    },
    "classifier": {"measure": classifier("hidden_classifier"), "max_draft": 6},
    "three layers": {"measure": classifier("three_hidden_classifier")},
    "recurrent": {"measure": classifier("lstm_classifier")},
}


def agreeing(family, tokenizer, layers=4):
    """A model whose first layers decide most, so that many drafts are kept."""
    model = build_lively(family, tokenizer, layers=layers)
    with torch.no_grad():
        for block in model.network.get_decoder().block[1:]:
            for name, weight in block.named_parameters():
                if name.endswith((".o.weight", ".wo.weight")):
                    weight.mul_(0.15)
    model.name = "agreeing"
    return model


@pytest.fixture(scope="module", params=[*EXIT_FAMILIES, "agreeing", "agreeing, deep"])
def traced(request, tokenizer, tmp_path_factory):
    """A model, the trace of its full-depth output, and that output."""
    if request.param.startswith("agreeing"):
        model = agreeing("t5", tokenizer, 8 if "deep" in request.param else 4)
    else:
        model = build_lively(request.param, tokenizer)
    states = tmp_path_factory.mktemp("states") / "s.npy"
    full = generate(model, INPUTS, max_new_tokens=LENGTH)
    found = trace(model, INPUTS, outputs=full.token_ids, states=states, max_new_tokens=LENGTH)
    return model, found, full


def policy_for(name, model, found):
    """The policy at a threshold that about half of what it sees exceeds, none by a rounding error alone."""
    policy = ExitPolicy(**{"max_draft": 8} | POLICIES[name], propagation="verify")
    if not policy.measure.has_threshold:
        return policy
    seen = np.unique(confidences(found, policy, model))
    seen = seen[seen > 0] if (seen > 0).sum() > 10 else seen
    middle = seen[int(0.4 * len(seen)) : int(0.6 * len(seen)) + 1] if len(seen) > 10 else seen
    if len(middle) < 2:
        return policy.at_threshold(0.5)
    widest = np.diff(middle).argmax()
    return policy.at_threshold(float(middle[widest : widest + 2].mean()))


def forced(layers, **options):
    return ExitPolicy(ForcedExits(layers), propagation="verify", **{"max_draft": 8} | options)


def right_layers(found, seed):
    """For each token one of the layers whose prediction is the last one's, drawn; lists by output."""
    draw = np.random.default_rng(seed).random(found.top1_id.shape)
    layers = np.where(found.top1_id == found.final_id[:, None], draw, -1).argmax(axis=1) + 1
    return [part.tolist() for part in found.by_output(layers)]


def check_replay(out, foretold):
    for name in ("rounds", "verified", "accepted"):
        assert [getattr(drafts, name) for drafts in out.drafts] == getattr(foretold, name).tolist(), name
    assert np.concatenate(out.exit_layers).tolist() == foretold.exit_layers.tolist()
    assert out.acceptance == pytest.approx(foretold.acceptance, nan_ok=True)


@pytest.mark.parametrize("name", POLICIES)
def test_the_output_is_that_of_full_depth_and_the_trace_foretells_the_drafts(traced, name):
    model, found, full = traced
    policy = policy_for(name, model, found)
    foretold = replay_drafts(found, policy, max_new_tokens=LENGTH, model=model)
    for batch_size in (1, 7):
        out = generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=batch_size)
        assert out.token_ids == full.token_ids
        check_replay(out, foretold)
        kept = np.concatenate(out.exit_layers) < model.layers
        assert kept.sum() == foretold.accepted.sum()
        assert (np.isnan(np.concatenate(out.confidences)) == ~kept).all()
        assert (out.flops >= full.flops).all() and sum(
            out.flops_by_part.values()
        ).tolist() == out.flops.tolist()
        if batch_size == 1:
            alone = out.flops
        assert out.flops.tolist() == alone.tolist()


@pytest.mark.parametrize("max_draft", [1, 2, 3, 8])
def test_drafts_that_are_right_are_all_kept_however_deep_they_are(traced, max_draft):
    model, found, full = traced
    for seed in range(2):
        policy = forced(right_layers(found, seed), max_draft=max_draft)
        foretold = replay_drafts(found, policy, max_new_tokens=LENGTH)
        for batch_size in (7, 1):
            out = generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=batch_size)
            assert out.token_ids == full.token_ids
            check_replay(out, foretold)
            assert out.acceptance == 1.0 or not foretold.verified.any()
            assert foretold.accepted.sum() > len(found) / 2 or not model.name.startswith("agreeing")
            assert out.flops_by_part["layers"].sum() <= full.flops_by_part["layers"].sum()
            both = out.flops_by_part["layers"] + out.flops_by_part["skipped"]
            assert both.tolist() == full.flops_by_part["layers"].tolist()  # nothing was thrown away


@pytest.mark.parametrize("batch_size", [1, 3, 7])
@pytest.mark.parametrize("seed", range(3))
def test_any_exits_at_all_give_full_depth(traced, batch_size, seed, monkeypatch):
    model, _, full = traced
    monkeypatch.setattr(layerwise, "FIRST_CAPACITY", 2)  # the cache grows
    monkeypatch.setattr(verify, "VERIFY_AT", (0.1, 0.5, 1.0)[seed])  # rows that wait for each other or do not
    layers = np.random.default_rng(seed).integers(1, model.layers + 1, size=(len(INPUTS), LENGTH))
    options = {"max_new_tokens": LENGTH, "batch_size": batch_size}
    assert generate(model, INPUTS, forced(layers, max_draft=4), **options).token_ids == full.token_ids
    one = generate(model, INPUTS, forced(layers), batch_size=batch_size, max_new_tokens=1)
    assert one.token_ids == [ids[:1] for ids in full.token_ids]


def test_an_end_token_may_be_drafted_rightly_or_wrongly(tokenizer):
    model = agreeing("t5", tokenizer)
    policy = ExitPolicy("static", min_layer=1, propagation="verify", max_draft=8)
    end_with(model.network, None)
    found = trace(model, INPUTS, max_new_tokens=LENGTH)
    first, last = found.top1_id[:, 0], found.final_id
    inside = (first == last) & (found.position > 0) & (found.position < LENGTH - 1)
    wrong = [token for token in first[first != last].tolist() if token not in last]
    end_with(model.network, [int(last[inside][0]), wrong[0]])
    expected = greedy(model, INPUTS, max_new_tokens=LENGTH)
    assert any(len(ids) < LENGTH for ids in expected)
    for batch_size in (1, 7):
        out = generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=batch_size)
        assert out.token_ids == expected
        assert any(
            len(i) < LENGTH and e[-1] == 1 for i, e in zip(out.token_ids, out.exit_layers, strict=True)
        )
    full = trace(model, INPUTS, outputs=expected, max_new_tokens=LENGTH)
    assert sum(drafts.verified for drafts in out.drafts) == len(full)


def test_rows_at_the_same_positions_are_a_rectangle_and_others_are_not():
    """The example of `spans`."""
    states = torch.zeros(2, 8, 1)
    cache = Cache(torch.zeros(2, 1), None, states, layers=1, max_new_tokens=8, starts=np.zeros(2))
    cache.states[:] = torch.arange(8.0)[None, :, None]  # [row, position, d_model]: each state is its position
    ends = np.array([6, 6])
    cache.filled[0] = [3, 3]
    aligned = span_at(1, cache, np.arange(2), ends)
    cache.filled[0] = [3, 5]
    ragged = span_at(1, cache, np.arange(2), ends)
    assert isinstance(aligned, AlignedSpan) and isinstance(ragged, RaggedSpan)
    assert aligned.load().flatten().tolist() == [3, 4, 5, 3, 4, 5]
    assert ragged.load().flatten().tolist() == [3, 4, 5, 5] and ragged.places.tolist() == [0, 1, 2, 5]
    for span in (aligned, ragged):
        assert span.width == 3 and span.last(span.load()).flatten().tolist() == [5, 5]


@pytest.mark.parametrize("family", ["t5", "t5-v1.1"])
@pytest.mark.parametrize("measure", ["softmax_margin", "hidden_similarity"])
def test_operations_are_counted_as_a_profiler_counts_them(tokenizer, family, measure, monkeypatch):
    model, masked = build_lively(family, tokenizer, dtype=torch.float32), []
    sizes = DecoderSizes.of(model.network.config)

    def noted(decoder, layer, x, span, run=LayerwiseDecoder.run_pass):
        # a causal pass multiplies queries with later keys too, and throws it away; nobody counts that
        masked.append(4 * sizes.inner * span.width * (span.width - 1) // 2)
        return run(decoder, layer, x, span)

    monkeypatch.setattr(LayerwiseDecoder, "run_pass", noted)
    found = trace(model, INPUTS, max_new_tokens=LENGTH)
    level = float(np.quantile(confidences(found, ExitPolicy(measure, min_layer=1)), 0.6))
    rejected = 0
    for text in INPUTS[:3]:
        masked.clear()
        policy = ExitPolicy(measure, threshold=level, min_layer=1, propagation="verify", max_draft=3)
        row, counted, profiled = counted_and_profiled(model, text, policy, LENGTH)
        assert sum(counted.values()) == profiled - sum(masked)
        rejected += row.drafts.verified - row.drafts.accepted
    assert rejected


RULES = (
    "margin",
    "probability, decaying",
    "similarity",
    "rising",
    "own class",
    "pruned",
    "contrasted",
    "classifier",
)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_token_differs_whatever_the_rule_the_threshold_and_the_batch(family, tokenizer):
    model, draw = build_lively(family, tokenizer, seed=5), np.random.default_rng(FAMILIES.index(family))
    inputs = (INPUTS * 5)[:33]
    full = generate(model, inputs, max_new_tokens=LENGTH, batch_size=32).token_ids
    for name in RULES:
        for batch_size, count in ((1, 3), (4, 9), (32, 33)):
            level, many = float(draw.random() ** 3), int(draw.integers(1, 9))
            policy = ExitPolicy(**POLICIES[name] | {"max_draft": many}, threshold=level, propagation="verify")
            options = {"max_new_tokens": LENGTH, "batch_size": batch_size}
            out = generate(model, inputs[:count], policy, **options)
            assert out.token_ids == full[:count], (policy, batch_size)


def test_thresholds_are_swept_without_reading_the_trace_again(tokenizer):
    model = agreeing("t5", tokenizer)
    found = trace(model, INPUTS, max_new_tokens=LENGTH)
    replayed, kept = replay_policy(found, ExitPolicy("max_probability")), []
    for level in (0.0, 0.02, 0.1, 1.0):
        swept = drafts_of(replayed.at_threshold(level), 4, LENGTH)
        again = replay_drafts(found, ExitPolicy("max_probability", threshold=level), 4, LENGTH)
        assert swept.rounds.tolist() == again.rounds.tolist()
        kept.append(int(swept.accepted.sum()))
    assert kept[0] > kept[-1] == 0


@pytest.mark.parametrize(
    "options, message",
    [
        ({"propagation": "verify", "max_draft": 0}, "max_draft=0: give a whole number of tokens from 1 on"),
        ({"propagation": "verify", "max_draft": 2.5}, "max_draft=2.5: give a whole number"),
        ({"propagation": "verify", "max_draft": True}, "max_draft=True: give a whole number"),
        ({"max_draft": 4}, 'means nothing without propagation="verify"'),
        ({"propagation": "parallel", "max_draft": 4}, 'means nothing without propagation="verify"'),
        ({"measure": "oracle", "propagation": "verify"}, "runs all layers to decide and cannot draft"),
        (
            {"threshold": "adaptive", "propagation": "verify", "exit_layers": [2]},
            'needs propagation="parallel"',
        ),
        ({"propagation": "verified"}, 'did you mean "verify"'),
    ],
)
def test_mistakes_in_a_policy_are_one_line(options, message):
    with pytest.raises(MeeError, match=message) as caught:
        ExitPolicy(**options)
    assert "\n" not in str(caught.value)


def test_mistakes_in_a_replay_are_one_line(t5):
    found, policy = trace(t5, INPUTS[:1], max_new_tokens=3), ExitPolicy(propagation="verify")
    assert policy.bind(4, 600, 1).max_draft == 8 and repr(policy).endswith("propagation='verify')")
    along = trace(t5, INPUTS[:1], ["Rome"])
    for call, message in (
        (lambda: replay_drafts(found, policy, 0), "max_draft=0: give a whole number"),
        (lambda: replay_drafts(along, policy), "trace of the model's own output"),
        (lambda: replay_drafts(found, "verify"), "give an ExitPolicy"),
    ):
        with pytest.raises(MeeError, match=message):
            call()


def test_states_that_are_not_finite_are_reported(tokenizer):
    model = build_lively("t5", tokenizer)
    with torch.no_grad():
        block = model.network.get_decoder().block[2]
        block.layer[-1].DenseReluDense.wo.weight.fill_(float("inf"))
    for policy in (ExitPolicy(threshold=0.0), ExitPolicy("static", min_layer=2)):
        verified = ExitPolicy(
            policy.measure, policy.threshold, min_layer=policy.min_layer, max_draft=8, propagation="verify"
        )
        with pytest.raises(MeeError, match="input 0 are not finite at layer 4"):
            generate(model, INPUTS[:1], verified, max_new_tokens=3)
