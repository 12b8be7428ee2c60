"""The rule over the history of predictions sees the same numbers wherever it decides or learns."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import INPUTS, LENGTH, confidences
from test_verify import agreeing

from mee_utils import ExitPolicy, MeeError, generate, replay, trace, train_classifier
from mee_utils.analysis.comparison import decision_cost
from mee_utils.analysis.decisions import roc_area
from mee_utils.companion import inputs
from mee_utils.companion.catalogue import RULES
from mee_utils.companion.learned_from import ALL, choices_of_features
from mee_utils.companion.profiles import Corpus, load_profile
from mee_utils.companion.running import jobs
from mee_utils.decoding.full_depth import encode_batches, full_depth_states, replay_states
from mee_utils.decoding.inputs import input_ids
from mee_utils.decoding.token import LayerState, on_host, states_by_layer
from mee_utils.exits.classifiers import load_classifier, new_classifier, save_classifier
from mee_utils.exits.history_classifier import FEATURES
from mee_utils.models.costs import SHAPES
from mee_utils.traces.classifier_training import histories
from mee_utils.traces.replay import StoredStates, replay_policy

LAYERS = 6
PRUNED = {"pruning": "fixed", "top_k": 12}


@pytest.fixture(scope="module")
def traced(tokenizer, tmp_path_factory):
    model = agreeing("t5", tokenizer, layers=LAYERS)
    states = tmp_path_factory.mktemp("history") / "states.npy"
    return model, trace(model, INPUTS, max_new_tokens=LENGTH, states=states)


def untrained(seed=0):
    return new_classifier("history_classifier", 32, seed).double()


class SeenLayer(LayerState):
    """A layer whose predictions are given by hand: `values` by layer."""

    step_rows = (0,)
    layers = 12
    decision_layers = (4, 5, 6, 8)
    position = 3
    source_tokens = 20

    def __init__(self, layer, previous, values):
        self.layer = layer
        self.previous = previous
        vars(self).update({name: torch.tensor([value]) for name, value in values[layer].items()})


def seen_layers(**columns):
    """The states of layers 1 to 8; the lists give the values at the layers 4, 5, 6 and 8."""
    values = {layer: {} for layer in range(1, 9)}
    for name, given in columns.items():
        for layer, value in zip(SeenLayer.decision_layers, given, strict=True):
            values[layer][name] = value
    return list(states_by_layer(lambda layer, previous: SeenLayer(layer, previous, values), 8))


def test_the_example_of_the_docstring():
    states = seen_layers(
        top1_id=[7, 9, 9, 9],
        margin=[0.2, 0.5, 0.9, 0.9],
        top1_probability=[0.4, 0.6, 0.92, 0.95],
        entropy=[2.0, 1.0, 0.5, 0.1],
        similarity=[0.7, 0.8, 0.9, 0.95],
        in_source=[False, True, True, True],
    )

    def features_at(layer):
        (row,) = untrained().features(states[layer - 1])
        return dict(zip(FEATURES, np.round(row.numpy(), 1).tolist(), strict=True))

    sixth = features_at(6)
    margins = [sixth[name] for name in ("margin", "margin before", "margin two before")]
    assert margins == [2.2, 0.0, -1.4]
    assert sixth["same as before"] == 1 and sixth["same as two before"] == 0
    assert sixth["unchanged"] == 2 and sixth["depth"] == 0.5 and sixth["decided before"] == 2
    assert sixth["in source"] == 1 and sixth["source"] == 3.0  # log 20
    eighth = features_at(8)  # no decision at layer 7: the one before is that of layer 6
    assert eighth["entropy before"] == 0.5 and eighth["unchanged"] == 3 and eighth["same as two before"] == 1
    first = features_at(4)
    assert first["margin"] == first["margin before"] == first["margin two before"] == -1.4
    assert first["unchanged"] == 1 and first["decided before"] == 0


def recorded(model, policy, **options):
    """What a policy's measure computes while decoding, by (input, position, layer)."""
    measure = policy.measure
    seen = {}
    confidence = measure.confidence

    def recording(state):
        values = on_host(confidence(state))
        positions = np.broadcast_to(state.position, len(values))
        for sequence, position, value in zip(state.sequence, positions, values, strict=True):
            seen[int(sequence), int(position), state.layer] = value
        return values

    measure.confidence = recording
    try:
        generate(model, INPUTS, policy, max_new_tokens=LENGTH, **options)
    finally:
        del measure.confidence
    return seen


@pytest.mark.parametrize("options", [PRUNED, PRUNED | {"exit_layers": [2, 3, 5]}, {}])
@pytest.mark.parametrize("batch_size", [1, len(INPUTS)])
def test_decoding_replay_and_training_see_the_same_numbers(traced, options, batch_size):
    model, full_trace = traced
    # nothing exits; and the last layer, which verifies, looks at all ids, so that the output is the trace's
    policy = ExitPolicy(untrained(), threshold=1.0, propagation="verify", max_draft=2, **options)
    replayed = replay_policy(full_trace, policy, model)
    learned = histories(policy.measure, StoredStates(full_trace, model), "consistency", policy)
    from_training = torch.sigmoid(policy.measure.log_odds(learned.features)).numpy()
    exact = 1e-6 if options else 1e-4  # without pruning a replay looks at the trace's single precision
    assert np.allclose(from_training, replayed.confidences, atol=exact)
    assert np.array_equal(learned.labels.numpy().astype(bool), replayed.same_token[:, :-1])
    seen = recorded(model, policy, batch_size=batch_size)
    assert len(seen) == replayed.confidences.size
    for (sequence, position, layer), value in seen.items():
        chosen = (full_trace.sequence == sequence) & (full_trace.position == position)
        decision = replayed.decision_layers.index(layer)
        # a trace keeps the similarity of layer 1 with the embedding, in single precision
        assert from_training[chosen, decision] == pytest.approx(value, abs=1e-5)


def test_a_plan_of_drafts_sees_the_same_numbers(traced):
    """Of inputs in another order, in batches of different lengths."""
    model, full_trace = traced
    policy = ExitPolicy(untrained(), **PRUNED)
    batches = encode_batches(
        model, input_ids(model.tokenizer, INPUTS), np.arange(len(INPUTS))[::-1], batch_size=2
    )
    planned = replay_states(model, full_depth_states(model, batches, LENGTH), policy)
    replayed = replay_policy(full_trace, policy, model)
    assert np.allclose(planned.confidences, replayed.confidences, atol=1e-5)


def test_what_stands_in_the_input(traced):
    model, full_trace = traced
    ids = model.tokenizer(INPUTS).input_ids
    stored = StoredStates(full_trace, model)
    (second,) = np.flatnonzero((full_trace.sequence == 1) & (full_trace.position == 2))
    state = stored.exit_states(slice(second, second + 1))[2]
    assert state.source_tokens.tolist() == [len(ids[1])]
    assert state.in_source.tolist() == [int(state.top1_id) in ids[1]]
    part = full_trace.part(1, 3)
    assert part.source_tokens == [len(each) for each in ids[1:3]]
    (row,) = part.source_of([int(np.flatnonzero(part.sequence == 1)[0])])
    assert row.tolist() == ids[2]
    both = part.source_of(slice(None))  # padding is no token
    assert ((both >= 0).sum(axis=1) == np.take(part.source_tokens, part.sequence)).all()


@pytest.mark.parametrize("propagation", ["copy", "parallel", "verify"])
def test_rows_that_exit_do_not_change_what_the_others_see(traced, propagation):
    """In a batch, with drafts, with states copied: every row gets what it gets alone."""
    model, full_trace = traced
    undecided = ExitPolicy(untrained(seed=1), **PRUNED)
    middle = float(np.quantile(confidences(full_trace, undecided, model), 0.6))
    drafts = {"max_draft": 3} if propagation == "verify" else {}
    policy = replace(undecided, threshold=middle, propagation=propagation, **drafts)
    rows = generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=len(INPUTS))
    for index, text in enumerate(INPUTS):
        alone = generate(model, [text], policy, max_new_tokens=LENGTH)
        assert rows.token_ids[index] == alone.token_ids[0]
        assert rows.exit_layers[index].tolist() == alone.exit_layers[0].tolist()
    if propagation == "verify":
        assert rows.token_ids == generate(model, INPUTS, max_new_tokens=LENGTH).token_ids
        assert sum(drafts.verified for drafts in rows.drafts) > 0
    else:
        assert len(set(np.concatenate(rows.exit_layers))) > 1


def test_it_learns_which_predictions_stay(traced):
    """On tokens that it learned from; of each layer, as the others are judged."""
    model, full_trace = traced
    policy = ExitPolicy("softmax_margin", **PRUNED)
    learned, curve = train_classifier(
        "history_classifier", full_trace, model, policy=policy, epochs=60, learning_rate=2e-2
    )
    assert curve[-1]["loss"] < 0.9 * curve[0]["loss"]
    of_rule = replay_policy(full_trace, replace(policy, measure=learned), model)
    of_margin = replay_policy(full_trace, policy, model)

    def area(replayed):
        return roc_area(replayed.confidences.ravel(), replayed.same_token[:, :-1].ravel())

    assert area(of_rule) > area(of_margin)


def test_confidences_are_probabilities(traced):
    """Learned with classes as frequent as they are, on average it is as sure as it is right."""
    model, full_trace = traced
    learned, _ = train_classifier("history_classifier", full_trace, model, epochs=60, learning_rate=2e-2)
    policy = ExitPolicy(learned, pruning="fixed", top_k=64)
    replayed = replay_policy(full_trace, policy, model)
    assert replayed.confidences.mean() == pytest.approx(replayed.same_token[:, :-1].mean(), abs=0.05)


def test_what_it_was_standardised_with_is_stored_and_is_part_of_its_key(traced, tmp_path):
    model, full_trace = traced
    learned, _ = train_classifier("history_classifier", full_trace, model, epochs=2)
    again = load_classifier(save_classifier(learned, tmp_path / "h.safetensors", model.fingerprint), model)
    policies = [ExitPolicy(each, **PRUNED) for each in (learned, again)]
    first, second = (confidences(full_trace, policy, model) for policy in policies)
    assert np.array_equal(first, second) and again.key() == learned.key()
    assert learned.mean.abs().sum() > 0
    again.deviation = again.deviation * 2
    assert again.key() != learned.key()


def test_a_decision_costs_less_than_a_hundredth_of_a_layer_of_t5_large():
    classifier = new_classifier("history_classifier", SHAPES["t5-large"].d_model)
    cost = decision_cost(SHAPES["t5-large"], classifier, min_layer=4, ids=64)
    pruned_margin = decision_cost(SHAPES["t5-large"], ExitPolicy().measure, min_layer=4, ids=64)
    assert pruned_margin["share_of_layer"] < cost["share_of_layer"] < 0.01


def test_mistakes_are_one_clear_line(traced):
    model, full_trace = traced

    def train(kind="history_classifier", **options):
        return lambda: train_classifier(kind, full_trace, model, **options)

    margin = ExitPolicy("softmax_margin", **PRUNED)
    for call, message in (
        (train(policy="softmax_margin"), "policy='softmax_margin': give an ExitPolicy"),
        (train("linear_classifier", policy=margin), '"linear_classifier" looks at states; leave the policy'),
        (train(target="distilled"), "nothing can be distilled"),
        (train(policy=ExitPolicy(pruning="adaptive")), "has yet to be learned"),
        (train(policy=ExitPolicy(min_layer=LAYERS)), "decides at no layer"),
        (train(policy=ExitPolicy(min_layer=LAYERS + 1)), "the decoder has 6"),
        (train(hidden=0), "hidden=0: give a whole number from 1 on"),
        (train(layers=2), "Unknown option of history_classifier"),
        (lambda: ExitPolicy("history_classifier"), "needs a trained classifier"),
        (lambda: replay(full_trace, ExitPolicy(untrained(), **PRUNED)), "give the model of the trace"),
    ):
        with pytest.raises(MeeError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


# ---- what it learns from


def parts_of(profile, sizes):
    """The inputs of every part of the first corpus, as measurements and trainings take them."""
    taken = {}
    for part, limit in sizes.items():
        (task,) = inputs.load_tasks(profile, part, limit, only="translation")
        taken[part] = set(task.inputs)
    return taken


@pytest.mark.parametrize("held_out_split", ["test", "validation"])
@pytest.mark.parametrize("choices", [4, 9, 15])
def test_it_learns_from_no_example_that_anything_else_sees(tmp_path, held_out_split, choices):
    """Apart from training, thresholds and tests; and from choices, where scores are the test split's."""
    for split in ("train", "validation", "test"):
        rows = [{"translation": {"en": f"{split} {n}", "fr": "x"}} for n in range(40)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    profile = load_profile("small")
    corpus = Corpus(source=str(tmp_path), choices=choices, held_out_split=held_out_split)
    results = profile.results.model_copy(update={"validation": 8})
    profile = profile.model_copy(update={"corpora": {"translation": corpus}, "results": results})
    sizes = {"train": None, "validation": 8, "test": None, "unseen": 100}
    if held_out_split == "test":
        sizes["choices"] = None
    taken = parts_of(profile, sizes)
    for first, second in itertools.combinations(taken.values(), 2):
        assert not first & second
    remaining = 40 - choices - 8 if held_out_split == "test" else max(0, choices - 8)
    assert len(taken["unseen"]) == remaining


def test_every_backbone_gets_one_and_it_is_measured_on_each():
    profile = load_profile("real", "data")
    trained = {spec.model for spec in jobs.classifier_specs(profile) if spec.variant == "history"}
    assert trained == set(profile.training.backbones)
    assert RULES["history"].pruning == "fixed" and RULES["history"].family == "several layers"


def test_each_group_of_features_stands_alone_and_is_left_out_once():
    choices = dict(choices_of_features())
    assert choices[ALL] == []
    alone = {name: without for name, without in choices.items() if name.startswith("only")}
    left_out = {name: without for name, without in choices.items() if name.startswith("without")}
    assert len(alone) == len(left_out) == (len(choices) - 1) / 2
    assert sorted(itertools.chain(*left_out.values())) == sorted(FEATURES)
    for name, without in left_out.items():
        assert not set(without) & set(alone[name.replace("without", "only")])
