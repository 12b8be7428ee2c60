"""Exit heads, trained on a frozen model by the references: the survey's "separate training"."""

import numpy as np
import pytest
import torch
from conftest import INPUTS, LENGTH, build_lively, confidences
from torch.nn import functional

from mee_utils import ExitPolicy, generate, load_classifier, replay, save_classifier, trace, train_classifier
from mee_utils.companion.catalogue import HEADS, RULES, target_of
from mee_utils.exits.classifiers import new_classifier
from mee_utils.traces.classifier_training import _Loss, exit_labels
from mee_utils.traces.replay import StoredStates, replay_policy

LAYERS = 4
REFERENCES = ["Rome", "La maison rouge", "A meeting.", "quatre", "Bob.", "Bob", "la rivière"]
FEW = {"pruning": "fixed", "top_k": 12}


@pytest.fixture(scope="module")
def model(tokenizer):
    return build_lively("t5", tokenizer)


@pytest.fixture(scope="module")
def forced(model, tmp_path_factory):
    """A trace along references, which heads learn from."""
    return trace(model, INPUTS, REFERENCES, states=tmp_path_factory.mktemp("heads") / "s.npy")


@pytest.fixture(scope="module")
def heads(model, forced):
    """Heads that were trained until they know the references."""
    before = model.fingerprint
    trained, curve = train_classifier(
        "exit_heads", forced, model, target="correctness", epochs=200, learning_rate=2e-2
    )
    assert curve[-1]["loss"] < curve[0]["loss"] / 2
    assert model.fingerprint == before, "the model is frozen"
    return trained


def test_untrained_heads_are_the_softmax_margin(model, forced):
    untrained = new_classifier("exit_heads", 32, decoder_layers=LAYERS).double()
    margin = replay_policy(forced, ExitPolicy("softmax_margin"), model)
    replayed = replay_policy(forced, ExitPolicy(untrained), model)
    assert np.allclose(replayed.confidences, margin.confidences, atol=1e-6)
    assert (replayed.token_ids == margin.token_ids).all()


def test_the_loss_is_the_cross_entropy_of_the_references_at_every_layer_before_the_last(model, forced, heads):
    states = StoredStates(forced, model)
    loss = _Loss(heads, torch.from_numpy(exit_labels(forced, "correctness")), "correctness")(
        states, slice(None)
    )
    normalized = states.normalized(slice(None))
    references = torch.from_numpy(forced.token_id.astype(np.int64))
    head = model.network.lm_head.weight.double() * model.network.config.d_model**-0.5
    expected = []
    for layer in range(LAYERS - 1):
        predicted = normalized[:, layer].double() @ heads.maps[layer].T + heads.shifts[layer]
        expected.append(functional.cross_entropy(predicted @ head.T, references))
    assert loss.item() == pytest.approx(float(torch.stack(expected).mean().detach()), rel=1e-5)


def test_heads_learn_the_references_and_not_what_the_last_layer_says(model, forced, heads):
    replayed = replay_policy(forced, ExitPolicy(heads), model)
    right = (replayed.token_ids[:, :-1] == forced.token_id[:, None]).mean(axis=0)
    by_layer = (forced.top1_id[:, :-1] == forced.token_id[:, None]).mean(axis=0)
    assert (right > by_layer + 0.3).all() and (right > 0.9).all()
    assert (replayed.token_ids[:, -1] == forced.top1_id[:, -1]).all(), "the last layer stays as it is"


@pytest.mark.parametrize("options", [{}, FEW])
def test_rows_of_a_batch_exit_as_alone_and_as_the_replay_says(model, heads, options, tmp_path):
    own = trace(model, INPUTS, max_new_tokens=LENGTH, states=tmp_path / "own.npy")
    policy = ExitPolicy(heads, propagation="parallel", **options)
    seen = np.unique(confidences(own, policy, model))
    middle = len(seen) // 2
    policy = policy.at_threshold(float(seen[middle : middle + 2].mean()))
    exits = replay(own, policy, LENGTH, model)
    batch = generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=len(INPUTS))
    first_exits = exits[own.position == 0]
    for index, text in enumerate(INPUTS):
        alone = generate(model, [text], policy, max_new_tokens=LENGTH)
        assert batch.token_ids[index] == alone.token_ids[0]
        assert batch.exit_layers[index].tolist() == alone.exit_layers[0].tolist()
        assert batch.exit_layers[index][0] == first_exits[index]
    assert len(set(np.concatenate(batch.exit_layers))) > 1


def test_the_token_of_an_exit_is_that_of_the_head(model, heads):
    """Computed from the state that the model itself has after layer 2, at the first token."""
    policy = ExitPolicy(heads, threshold=0.0, exit_layers=[2])
    generation = generate(model, INPUTS[:1], policy, max_new_tokens=1)
    assert generation.exit_layers[0].tolist() == [2]
    encoded = model.tokenizer(INPUTS[:1], return_tensors="pt")
    start = torch.tensor([[model.network.config.decoder_start_token_id]])
    with torch.no_grad():
        output = model.network(**encoded, decoder_input_ids=start, output_hidden_states=True)
        state = model.network.decoder.final_layer_norm(output.decoder_hidden_states[2])[0, 0]
        predicted = heads.maps[1] @ state + heads.shifts[1]
        logits = model.network.lm_head.weight @ predicted * model.network.config.d_model**-0.5
    assert generation.token_ids[0] == [int(logits.argmax())]


def test_verified_heads_write_the_output_of_full_depth(model, heads):
    full = generate(model, INPUTS, max_new_tokens=LENGTH)
    drafted = ExitPolicy(heads, threshold=0.1, propagation="verify", max_draft=3, **FEW)
    assert generate(model, INPUTS, drafted, max_new_tokens=LENGTH).token_ids == full.token_ids


def test_stored_heads_are_those_that_were_trained(model, heads, forced, tmp_path):
    path = save_classifier(heads, tmp_path / "heads.safetensors", model.fingerprint)
    loaded = load_classifier(path, model)
    assert loaded.key() == heads.key()
    policies = [ExitPolicy(each) for each in (heads, loaded)]
    first, second = (confidences(forced, policy, model) for policy in policies)
    assert np.allclose(first, second, atol=1e-6)


def test_the_rule_of_the_study_learns_from_references_and_prunes_as_the_others_do(heads):
    assert HEADS == ("exit_heads",)
    assert {rule for rule in RULES if target_of(rule) == "correctness"} == set(HEADS)
    policy = RULES["exit_heads"].policy(0.9, {"min_layer": 2, "top_k": 12}, {"exit_heads": heads})
    assert policy.measure is heads and (policy.pruning, policy.top_k) == ("fixed", 12)
    assert heads.flops(32) == 2 * 32**2
