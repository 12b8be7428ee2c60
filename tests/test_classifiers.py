"""Trained classifiers decide while decoding as offline, learn what can be learned, belong to one model."""

import numpy as np
import pytest
import torch
from conftest import INPUTS, LENGTH, build_lively, confidences
from reference import counted_and_profiled

from mee_utils import ExitPolicy, MeeError, generate, replay, trace
from mee_utils.decoding.token import on_host
from mee_utils.exits.classifiers import SIZED, load_classifier, new_classifier, save_classifier
from mee_utils.exits.measures import TRAINED
from mee_utils.traces.classifier_training import _Loss, exit_labels, train_classifier
from mee_utils.traces.replay import StoredStates

# those that give the log-odds of "exit" from states alone
KINDS = [kind for kind in TRAINED if kind not in SIZED and kind != "history_classifier"]
REFERENCES = ["Rome", "La maison rouge", "A meeting.", "quatre", "Bob.", "Bob", "la rivière"]


@pytest.fixture(scope="module")
def traced(lively, tmp_path_factory):
    states = tmp_path_factory.mktemp("states") / "s.npy"
    return lively, trace(lively, INPUTS, max_new_tokens=LENGTH, states=states)


def untrained(kind, seed=0):
    """With weights large enough for confidences to differ from token to token."""
    classifier = new_classifier(kind, 32, seed)
    with torch.no_grad():
        for weight in classifier.parameters():
            weight.mul_(3)
    return classifier


@pytest.mark.parametrize("kind", KINDS)
def test_confidences_while_decoding_are_those_computed_offline_from_the_trace(traced, kind):
    model, found = traced
    classifier, seen = untrained(kind), {}
    confidence = classifier.confidence

    def recorded(state):
        return seen.setdefault((state.layer, state.position), on_host(confidence(state))) * 0

    classifier.confidence = recorded
    generate(model, INPUTS, ExitPolicy(classifier), max_new_tokens=LENGTH, batch_size=len(INPUTS))
    del classifier.confidence
    offline = confidences(found, ExitPolicy(classifier), model)
    by_model = classifier.log_odds(StoredStates(found, model).normalized(slice(None))).sigmoid()[:, :-1]
    assert np.allclose(offline, by_model, atol=1e-5), "layer by layer, and all layers at once"
    first, order = (
        1 + classifier.lookback,
        sorted(range(len(INPUTS)), key=lambda i: -len(model.tokenizer(INPUTS[i]).input_ids)),
    )
    compared = 0
    for (layer, position), values in seen.items():
        going = [i for i in order if (found.sequence == i).sum() > position]
        tokens = [int(np.flatnonzero((found.sequence == i) & (found.position == position))[0]) for i in going]
        assert np.allclose(values, offline[tokens, layer - first], atol=1e-5)
        compared += len(values)
    assert compared == offline.size


@pytest.mark.parametrize("kind", KINDS)
def test_exits_of_a_batch_are_those_of_its_rows_and_of_the_replay(traced, kind):
    model, found = traced
    values = np.unique(confidences(found, ExitPolicy(untrained(kind)), model))
    place = int(0.7 * len(values))
    level = float(values[place : place + 2].mean())  # between two of them, not on one
    policy = ExitPolicy(untrained(kind), threshold=level, propagation="parallel")
    exits, rows = (
        replay(found, policy, LENGTH, model),
        generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=len(INPUTS)),
    )
    for index, text in enumerate(INPUTS):
        alone = generate(model, [text], policy, max_new_tokens=LENGTH)
        assert (
            rows.token_ids[index] == alone.token_ids[0]
            and (rows.exit_layers[index] == alone.exit_layers[0]).all()
        )
        tokens, foretold = found.token_id[found.sequence == index], exits[found.sequence == index]
        same = np.cumprod([a == b for a, b in zip(rows.token_ids[index], tokens, strict=False)]).sum()
        assert (rows.exit_layers[index][: same + 1] == foretold[: same + 1]).all()
    assert len(set(np.concatenate(rows.exit_layers))) > 1


def test_the_lstm_begins_anew_with_each_token_and_goes_layer_by_layer(traced):
    model, found = traced
    classifier, states = untrained("lstm_classifier"), StoredStates(found, model).normalized(slice(None))
    for token in (0, len(found) - 1):
        memory = None
        for layer in range(found.layers):
            output, memory = classifier.network(states[token : token + 1, layer : layer + 1].float(), memory)
            odds = classifier._log_odds_of(classifier.head(output[:, -1]))
            assert torch.allclose(odds, classifier.log_odds(states)[token, layer], atol=1e-5)


@pytest.fixture(scope="module")
def learnable(tokenizer, tmp_path_factory):
    """A trace whose agreement can be read off the states, of one layer or only between layers."""
    model = build_lively("t5", tokenizer)
    found = trace(model, INPUTS * 1, max_new_tokens=LENGTH, states=tmp_path_factory.mktemp("learn") / "s.npy")
    random, tokens = np.random.default_rng(0), 4000
    states = random.normal(size=(tokens, 4, 32)).astype(np.float32)
    for name in ("sequence", "position", "token_id"):
        setattr(found, name, np.zeros(tokens, np.int32))
    found.states, found.token_id = states, np.ones(tokens, np.int32)
    return model, found


def teach(found, labels):
    """Sets the predictions so that layer l agrees with the last exactly where `labels` says so."""
    found.top_ids = np.ones((len(labels), 4, 2), np.int32)
    found.top_ids[:, :-1, 0] += ~labels
    return found


def balanced_accuracy(classifier, found, model, labels):
    said = (classifier.log_odds(StoredStates(found, model).normalized(slice(None)))[:, :-1] > 0).numpy()
    labels = labels[:, classifier.lookback :]
    return (said[labels].mean() + (~said)[~labels].mean()) / 2


def test_both_classes_count_alike_in_every_layer():
    labels = torch.tensor([[True, False], [True, False], [True, True], [False, False]])
    loss = _Loss(new_classifier("linear_classifier", 8, seed=0).double(), labels, "consistency")
    expected = [[0.5 / 0.25, 0.5 / 0.75], [0.5 / 0.75, 0.5 / 0.25]]  # [class, layer]
    assert loss.class_weights.tolist() == pytest.approx(np.array(expected))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.endswith("classifier")])
def test_what_one_layer_shows_is_learned_though_classes_are_unbalanced(learnable, kind):
    model, found = learnable
    labels = found.states[:, :-1, 0] > 1.2  # an eighth
    classifier, curve = train_classifier(kind, teach(found, labels), model, epochs=25)
    assert balanced_accuracy(classifier, found, model, labels) > 0.85
    assert curve[-1]["loss"] < curve[0]["loss"] and [row["epoch"] for row in curve] == list(range(1, 26))
    assert not any(weight.requires_grad for weight in classifier.parameters())


def test_only_measures_that_see_several_layers_learn_what_lies_between_them(learnable):
    model, found = learnable
    labels = np.ones((4000, 3), bool)
    labels[:, 1:] = found.states[:, 1:3, 0] > found.states[:, 0:2, 0] + 0.3
    teach(found, labels)
    scores = {
        kind: balanced_accuracy(train_classifier(kind, found, model, epochs=10)[0], found, model, labels)
        for kind in ("linear_classifier", "three_hidden_classifier", "lstm_classifier")
    }
    assert scores["three_hidden_classifier"] > scores["linear_classifier"] + 0.05
    assert scores["lstm_classifier"] > scores["linear_classifier"] + 0.05


def test_the_same_seed_trains_the_same_classifier(learnable):
    model, found = learnable
    teach(found, found.states[:, :-1, 0] > 0)

    def trained(seed):
        classifier, _ = train_classifier("hidden_classifier", found, model, seed=seed, epochs=1)
        return classifier.key()

    first = trained(seed=0)
    again = trained(seed=0)
    other = trained(seed=1)
    assert first == again != other


def test_targets_compare_with_the_last_layer_or_with_the_reference(tokenizer, tmp_path):
    model = build_lively("t5", tokenizer)
    forced = trace(model, INPUTS, REFERENCES, states=tmp_path / "s.npy")
    assert (exit_labels(forced) == (forced.top1_id[:, :-1] == forced.top1_id[:, -1:])).all()
    assert (exit_labels(forced, "correctness") == (forced.top1_id[:, :-1] == forced.token_id[:, None])).all()
    with pytest.raises(MeeError, match="made with trace"):
        exit_labels(trace(model, INPUTS, max_new_tokens=3), "correctness")
    with pytest.raises(MeeError, match='did you mean "correctness"'):
        exit_labels(forced, "corectness")


def test_a_stored_classifier_is_the_same_and_is_refused_for_other_weights(traced, tokenizer, tmp_path):
    model, _ = traced
    for kind in KINDS:
        classifier = untrained(kind)
        path = save_classifier(
            classifier, tmp_path / f"{kind}.safetensors", model.fingerprint, target="consistency"
        )
        again = load_classifier(path, model)
        assert again.key() == classifier.key() and again.settings == classifier.settings
    other = build_lively("t5", tokenizer, seed=9)
    with pytest.raises(MeeError, match="trained on the states of other weights"):
        load_classifier(path, other)
    with pytest.raises(MeeError, match="does not exist"):
        load_classifier(tmp_path / "none.safetensors", model)
    (tmp_path / "text.safetensors").write_text("text")
    with pytest.raises(MeeError, match="is no exit classifier"):
        load_classifier(tmp_path / "text.safetensors", model)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"classifier": None}, "classifier=None: give the first of the two that train_classifier returns"),
        ({"classifier": ("classifier", [])}, "give the first of the two that train_classifier returns"),
        ({"path": None}, "path=None: give the path of a file, such as classifier.safetensors"),
        ({"path": "."}, "is a folder: give a file in it"),
        ({"fingerprint": None}, "fingerprint=None: give model.fingerprint"),
        ({"curve": {1, 2}}, "metadata: .*set.*; give what JSON holds"),
    ],
    ids=repr,
)
def test_what_cannot_be_stored_is_one_clear_line(tmp_path, wrong, message):
    right = {"classifier": untrained("linear_classifier"), "path": tmp_path / "c", "fingerprint": "0"}
    with pytest.raises(MeeError, match=message) as caught:
        save_classifier(**right | wrong)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_a_classifier_is_read_from_a_file_for_a_model(traced, tmp_path):
    """Before, the name of a model, its network or no path at all ended in a traceback."""
    model, _ = traced
    path = save_classifier(untrained("linear_classifier"), tmp_path / "c.safetensors", model.fingerprint)
    for given in ("t5", None, model.network):
        with pytest.raises(MeeError, match=r"model=.*: give what load_model returns") as caught:
            load_classifier(path, given)
        assert "\n" not in str(caught.value)
    with pytest.raises(MeeError, match="path=None: give the path of a file"):
        load_classifier(None, model)
    with pytest.raises(MeeError, match="is a folder: give a file in it"):
        load_classifier(tmp_path, model)


def test_a_classifier_in_memory_is_refused_on_another_model(traced, learnable, tokenizer):
    model, found = traced[0], learnable[1]
    trained, _ = train_classifier(
        "linear_classifier", teach(found, found.states[:, :-1, 0] > 0), learnable[0], epochs=1
    )
    loaded = new_classifier("linear_classifier", 16)
    other = build_lively("t5", tokenizer, seed=9)
    for classifier, where, message in (
        (trained, other, "trained on the states of other weights"),
        (loaded, model, "is for d_model=16, .* has 32"),
    ):
        with pytest.raises(MeeError, match=message) as caught:
            generate(where, INPUTS[:1], ExitPolicy(classifier), max_new_tokens=2)
        assert "\n" not in str(caught.value)
    assert generate(learnable[0], INPUTS[:1], ExitPolicy(trained), max_new_tokens=2).tokens


def test_mistakes_are_one_clear_line(traced, tokenizer):
    model, found = traced
    without = trace(model, INPUTS, max_new_tokens=2)
    for call, message in (
        (lambda: train_classifier("hidden_clasifier", found, model), 'did you mean "hidden_classifier"'),
        (lambda: train_classifier("linear_classifier", without, model), "made without states"),
        (lambda: train_classifier("linear_classifier", found, model, layers=2, units=3), "Unknown option"),
        (lambda: new_classifier("lstm_classifier", 32, layers=2), "Unknown option of lstm_classifier"),
    ):
        with pytest.raises(MeeError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "lstm_classifier"])
def test_operations_of_a_classifier_are_counted_as_a_profiler_counts_them(tokenizer, kind):
    model = build_lively("t5", tokenizer, dtype=torch.float32)
    policy = ExitPolicy(untrained(kind), threshold=0.5, min_layer=1)
    _, counted, profiled = counted_and_profiled(model, INPUTS[0], policy, LENGTH)
    assert counted["measure"] > 0 and sum(counted.values()) == profiled


def test_an_lstm_costs_its_gates_at_every_layer():
    classifier = new_classifier("lstm_classifier", 32, hidden=20, depth=2)
    weights = sum(w.numel() for name, w in classifier.named_parameters() if "weight" in name)
    assert classifier.flops(32) == 2 * weights
    bound = ExitPolicy(classifier, min_layer=3).bind(12, 600)
    assert list(bound.decision_counts[[3, 5, 12]]) == [3, 5, 11]
