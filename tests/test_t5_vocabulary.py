"""At the width of T5's own vocabulary: prompts, extra ids, decoding, pruned lists, JSD, traces."""

import time

import numpy as np
import pytest
import rehearsal
import torch
from reference import greedy
from transformers import T5Config, T5ForConditionalGeneration

from mee_utils import ExitPolicy, Model, generate, load_task, replay, trace
from mee_utils.traces.replay import replay_policy
from mee_utils.traces.trace import load_trace, states_path

LENGTH = 5
TASKS = ("question_answering", "summarization", "translation")


@pytest.fixture(scope="module", params=["T5's own", "made here"])
def tokenizer(request):
    if request.param == "made here":
        return rehearsal.made_tokenizer()
    return rehearsal.t5_tokenizer()  # where its folder is not there, made here as well


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(0)
    config = T5Config(**rehearsal.SMALL, vocab_size=rehearsal.VOCABULARY, decoder_start_token_id=0)
    network = T5ForConditionalGeneration(config).double().eval().requires_grad_(False)
    return Model(network, tokenizer, "random T5")


@pytest.fixture(scope="module")
def inputs():
    return [load_task(task, limit=2).inputs[0] for task in TASKS]


@pytest.fixture(scope="module")
def traced(model, inputs, tmp_path_factory):
    states = tmp_path_factory.mktemp("traces") / "states.safetensors"
    return trace(model, inputs, max_new_tokens=LENGTH, states=states)


def test_the_tokenizer_has_the_ids_of_t5(tokenizer):
    assert len(tokenizer) == rehearsal.PIECES + rehearsal.EXTRA_IDS == 32_100
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    assert tokenizer.convert_tokens_to_ids(["<extra_id_0>", "<extra_id_99>"]) == [32_099, 32_000]


def test_prompts_become_known_pieces_that_end_once(tokenizer, inputs):
    for text, ids in zip(inputs, tokenizer(inputs).input_ids, strict=True):
        assert ids[-1] == 1 and ids.count(1) == 1 and 0 not in ids
        assert max(ids) < rehearsal.PIECES and ids.count(2) <= len(ids) // 10
        assert len(ids) < 2 * len(text.split()) + len(text) // 2


def test_full_depth_is_greedy_search_in_rows_that_have_no_piece_too(model, inputs):
    """28 rows of the LM head have no token: an untrained model may choose one, as `transformers` does."""
    outputs = generate(model, inputs, max_new_tokens=LENGTH, batch_size=2)
    assert outputs.token_ids == greedy(model, inputs, LENGTH)
    assert all(isinstance(text, str) for text in outputs.texts)


@pytest.mark.parametrize("pruning", ["fixed", "decaying"])
def test_pruned_lists_hold_token_ids_of_all_the_vocabulary(model, inputs, traced, pruning):
    """A position in a list of 64 would be an id below 64. The list is made at layer 4, exits are later."""
    sizes = {"fixed": {"top_k": 64}, "decaying": {"top_k": 64, "least_k": 4}}[pruning]
    policy = ExitPolicy("patience", threshold=1, min_layer=4, pruning=pruning, **sizes)
    outputs = generate(model, inputs, policy, max_new_tokens=LENGTH)
    layers = [output[0] for output in outputs.exit_layers]
    assert min(layers) > 4 and any(layer < model.layers for layer in layers)
    first = [ids[0] for ids in outputs.token_ids]
    beginnings = np.flatnonzero(traced.position == 0)
    replayed = replay_policy(traced, policy, model)
    for token, beginning, layer in zip(first, beginnings, layers, strict=True):
        assert token == replayed.token_ids[beginning, layer - 4]
    assert max(first) > 64


def test_jsd_over_all_layers_is_finite_and_replayed_as_decoded(model, inputs, traced):
    policy = ExitPolicy("softmax_margin", threshold=0.5, min_layer=4, contrast="jsd")
    outputs = generate(model, inputs, policy, max_new_tokens=LENGTH)
    replayed = replay_policy(traced, policy, model)
    assert replayed.decision_layers == tuple(range(4, model.layers))
    assert np.isfinite(replayed.confidences).all() and (np.abs(replayed.confidences) <= 1).all()
    beginnings = np.flatnonzero(traced.position == 0)  # later tokens follow other tokens than the trace has
    exits = np.asarray(replay(traced, policy, model=model))[beginnings]
    assert exits.tolist() == [output[0] for output in outputs.exit_layers]


def test_a_trace_grows_with_the_width_of_states_and_not_with_the_vocabulary(model, inputs, traced, tmp_path):
    """All logits of a token would be ten layers of 32,128 numbers: a megabyte in single precision."""
    started = time.process_time()
    path = tmp_path / "trace.safetensors"
    again = trace(model, inputs, max_new_tokens=LENGTH, states=states_path(path))
    again.save(path)
    again = load_trace(path)
    assert time.process_time() - started < 5
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    all_logits = len(traced.token_id) * model.layers * rehearsal.VOCABULARY * 4
    assert size < 0.05 * all_logits
    assert (again.top1_id == traced.top1_id).all()
