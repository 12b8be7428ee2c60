"""The trace ends in the model's own logits; padding, batches and storage change nothing; memory is
bounded.
"""

import errno
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import build_lively
from reference import greedy

from mee_utils import (
    ExitPolicy,
    MeeError,
    generate,
    load_model,
    load_trace,
    replay,
    replay_drafts,
    trace,
    train_classifier,
)
from mee_utils.models.loading import Model
from mee_utils.traces import tracing
from mee_utils.traces.replay import StoredStates, replay_policy
from mee_utils.traces.t5_passes import T5Passes
from mee_utils.traces.trace import states_path

INPUTS = [
    "translate English to French: The red house is near the river.",
    "question: Where does Ann live? context: Ann lives in Rome. Bob is a baker.",
    "summarize: On Friday there was a meeting.",
]
REFERENCES = [
    "La maison rouge est près de la rivière.",
    "Rome",
    "A meeting was held on Friday in Rome by Ann.",
]
ARRAYS = (
    "top_probabilities",
    "entropy",
    "final_probability",
    "token_probability",
    "similarity",
    "final_similarity",
)


def logits_of(model, text, ids):
    encoded = model.tokenizer(text, return_tensors="pt")
    labels = torch.tensor([ids])
    with torch.inference_mode():
        return model.network(
            **{k: encoded[k] for k in ("input_ids", "attention_mask")},
            decoder_input_ids=model.network.prepare_decoder_input_ids_from_labels(labels),
        ).logits[0]


def test_the_last_layer_is_the_models_own_output(model):
    traced = trace(model, INPUTS, REFERENCES, top_k=4)
    start = 0
    for text, reference in zip(INPUTS, REFERENCES, strict=True):
        ids = model.tokenizer(reference).input_ids
        expected = logits_of(model, text, ids).softmax(-1)
        top = expected.topk(4)
        rows = slice(start, start + len(ids))
        assert np.allclose(traced.top_probabilities[rows, -1], top.values.numpy(), atol=1e-6)
        assert (traced.top_ids[rows, -1, 0] == top.indices[:, 0].numpy()).all()
        assert np.allclose(
            traced.token_probability[rows, -1],
            expected.gather(-1, torch.tensor(ids)[:, None])[:, 0],
            atol=1e-6,
        )
        assert (traced.token_id[rows] == ids).all()
        start += len(ids)
    assert start == len(traced)


def test_along_its_own_output_the_last_layer_predicts_what_was_emitted(model):
    traced = trace(model, INPUTS, max_new_tokens=12)
    assert (traced.final_id == traced.token_id).all()
    outputs = greedy(model, INPUTS, max_new_tokens=12)
    assert [list(traced.token_id[traced.sequence == i]) for i in range(3)] == outputs
    assert (traced.final_rank[:, -1] == 1).all() and np.allclose(traced.final_similarity[:, -1], 1)


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_padding_and_batch_size_change_no_number_beyond_rounding(model, batch_size):
    alone = [trace(model, [text], [reference]) for text, reference in zip(INPUTS, REFERENCES, strict=True)]
    together = trace(model, INPUTS, REFERENCES, batch_size=batch_size)
    for name in ARRAYS:
        assert np.allclose(
            getattr(together, name), np.concatenate([getattr(t, name) for t in alone]), atol=1e-6
        ), name
    assert (together.top1_id == np.concatenate([t.top1_id for t in alone])).all()
    assert list(together.position) == [p for t in alone for p in t.position]


@pytest.mark.parametrize("references", [None, REFERENCES])
def test_an_input_is_encoded_once(t5, monkeypatch, references):
    """The encoder is most of the work where inputs are long and outputs short; its states are not kept."""
    rows = []
    passes = T5Passes(t5)

    def count(network, given, output):
        rows.append(len(output[0]))

    monkeypatch.setattr(tracing, "_passes_of", lambda model: passes)
    with t5.network.get_encoder().register_forward_hook(count):
        trace(t5, INPUTS, references, max_new_tokens=5, batch_size=2)
    assert sum(rows) == len(INPUTS)
    assert not vars(passes.encodings)["_states"]


def test_what_is_derived_follows_its_definition(t5, tmp_path):
    traced = trace(t5, INPUTS, REFERENCES, top_k=len(t5.tokenizer), states=tmp_path / "s.npy")
    p, ids = traced.top_probabilities.astype(np.float64), traced.top_ids
    assert np.allclose(p.sum(-1), 1, atol=1e-5)
    assert np.allclose(traced.margin, p[..., 0] - p[..., 1])
    assert np.allclose(traced.entropy, -(p * np.log(p)).sum(-1), atol=1e-4)
    rank = (ids == traced.final_id[:, None, None]).argmax(-1) + 1
    assert (traced.final_rank == rank).all()
    norm = t5.network.get_decoder().final_layer_norm
    states = norm(torch.tensor(np.array(traced.states)).double()).detach().numpy()

    def cosine(a, b):
        return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)

    assert np.allclose(traced.similarity[:, 1:], cosine(states[:, 1:], states[:, :-1]), atol=1e-5)
    assert np.allclose(traced.final_similarity, cosine(states, states[:, -1:]), atol=1e-5)


def test_a_saved_trace_is_the_same_trace(t5, tmp_path):
    traced = trace(t5, INPUTS, states=tmp_path / "raw.npy", max_new_tokens=6)
    again = load_trace(traced.save(tmp_path / "t.safetensors"))
    for name in (*ARRAYS, "sequence", "position", "token_id", "top_ids", "final_rank", "states"):
        assert np.array_equal(getattr(again, name), getattr(traced, name)), name
    assert (again.along, again.model, again.layers) == (traced.along, traced.model, traced.layers)
    assert not list(tmp_path.glob(".*"))


def test_a_trace_without_states_does_not_find_those_of_an_older_one(t5, tmp_path):
    trace(t5, INPUTS, states=tmp_path / "raw.npy", max_new_tokens=6).save(tmp_path / "t.safetensors")
    trace(t5, INPUTS, max_new_tokens=6).save(tmp_path / "t.safetensors")
    assert load_trace(tmp_path / "t.safetensors").states is None


def test_a_network_in_training_mode_is_refused(t5):
    """Before, dropout drew another output at each call, without a word."""
    t5.network.train()
    try:
        for call in (generate, trace):
            with pytest.raises(MeeError, match=r"training mode, with dropout: call model\.network\.eval"):
                call(t5, INPUTS[:1], max_new_tokens=2)
    finally:
        t5.network.eval()


def test_settings_that_change_greedy_search_are_refused_and_references_do_not_need_it(t5):
    settings = t5.network.generation_config
    settings.repetition_penalty = 5.0
    try:
        with pytest.raises(MeeError, match=r"changes greedy search .repetition_penalty=5.0.*clear it"):
            trace(t5, INPUTS, max_new_tokens=10)
        assert len(trace(t5, INPUTS[:1], ["Rome"]))
    finally:
        settings.repetition_penalty = 1.0
    traced = trace(t5, INPUTS, max_new_tokens=10)
    assert (traced.final_id == traced.token_id).all()


def test_inputs_are_checked(t5, tmp_path):
    for inputs, message in (
        ([], "no inputs"),
        (["a", ""], "Input 1 is ''"),
        ([" \n"], "Input 0"),
        ([None], "Input 0 is None"),
    ):
        with pytest.raises(MeeError, match=message):
            trace(t5, inputs)
    with pytest.raises(MeeError, match="1 references for 3 inputs"):
        trace(t5, INPUTS, ["a"])
    with pytest.raises(MeeError, match="Reference 1 is ''"):
        trace(t5, INPUTS, ["a", "", "b"])
    with pytest.raises(MeeError, match="1 outputs for 3 inputs"):
        trace(t5, INPUTS, outputs=[[5, 1]])
    for wrong, message in (
        ({"top_k": 1}, "top_k=1: keep at least 2"),
        ({"top_k": "5"}, "top_k='5': give a whole number"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"outputs": [[5, 1], [10**6], [1]]}, "Output 1 must be a list of token ids from 0 to"),
        ({"outputs": [[5, 1], [-2], [1]]}, "Output 1 must be"),
        ({"outputs": [["5"], [2], [1]]}, "Output 0 must be"),
        ({"outputs": [[5, 1], [], [1]]}, "Output 1 must be"),
        ({"outputs": [[5, 1], [[5, 1], [2]], [1]]}, "Output 1 must be"),
        ({"outputs": [[5, 1], 7, [1]]}, "Output 1 must be"),
        ({"outputs": 5}, "outputs=5: give a list, one for each input"),
        ({"references": 5}, "references=5: give a list"),
        ({"references": []}, "0 references for 3 inputs"),
        ({"references": REFERENCES, "outputs": [[1]] * 3}, "references and outputs contradict"),
        ({"states": "/proc/nothing/s.npy", "max_new_tokens": 2}, "cannot be written"),
        ({"states": True}, "states=True: give the path of a file, such as states.npy"),
        ({"states": False}, "states=False: give the path"),
        ({"states": 5}, "states=5: give the path"),
        ({"states": ""}, "states='': give the path"),
        ({"states": tmp_path}, "is a folder: give a file in it"),
    ):
        with pytest.raises(MeeError, match=message) as caught:
            trace(t5, INPUTS, **wrong)
        assert "\n" not in str(caught.value)
    with pytest.raises(MeeError, match="model=T5ForConditionalGeneration: give what load_model returns"):
        trace(t5.network, INPUTS)
    with pytest.raises(MeeError, match="does not exist"):
        load_trace(tmp_path / "nothing.safetensors")
    with pytest.raises(MeeError, match="path=None: give the path of a file"):
        load_trace(None)
    (tmp_path / "other.safetensors").write_bytes(b"PAR1 no trace")
    with pytest.raises(MeeError, match="is no trace"):
        load_trace(tmp_path / "other.safetensors")


def test_states_that_are_not_finite_are_reported(tokenizer):
    from conftest import build_network

    broken = Model(build_network("t5", len(tokenizer)), tokenizer, "broken")
    with torch.no_grad():
        broken.network.get_decoder().block[2].layer[2].DenseReluDense.wo.weight.fill_(float("inf"))
    with pytest.raises(MeeError, match="not finite from layer 3 on"):
        trace(broken, INPUTS, REFERENCES)


def test_weights_that_are_no_numbers_are_reported(tokenizer):
    from conftest import build_network

    broken = Model(build_network("t5", len(tokenizer)), tokenizer, "broken")
    with torch.no_grad():
        broken.network.get_decoder().block[0].layer[2].DenseReluDense.wo.weight[0, 0] = float("nan")
    with pytest.raises(MeeError, match=r"not finite from layer 1 on.*damaged weights"):
        trace(broken, INPUTS, REFERENCES)


@pytest.fixture(scope="module")
def stored(t5, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    return trace(t5, INPUTS, states=folder / "t.states.npy", max_new_tokens=6), folder / "t.safetensors"


def test_the_first_inputs_of_a_trace_are_a_trace(stored):
    traced, _ = stored
    first = traced.first(2)
    assert set(first.sequence) == {0, 1} and first.source_tokens == traced.source_tokens[:2]
    assert np.array_equal(first.states, traced.states[: len(first)]) and np.array_equal(
        first.margin, traced.margin[: len(first)]
    )
    assert len(traced.first(10)) == len(traced)
    assert (
        repr(first) == f'Trace("t5", along="greedy": {len(first)} tokens of 2 inputs, 4 layers, with states)'
    )
    with pytest.raises(MeeError, match="limit=0"):
        traced.first(0)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ((-1, 2), "first=-1: give a whole number from 0 on"),
        ((5, 2), "last=2: give a whole number from 6 on"),
        ((1, 1), "last=1: give a whole number from 2 on"),
        ((0, -1), "last=-1: give a whole number from 1 on"),
        ((3, 4), "first=3 of 3 inputs: give a number from 0 to 2"),
        ((2**70, 2**71), "of 3 inputs: give a number from 0 to 2"),
        ((0.0, 2), "first=0.0: give a whole number"),
        ((False, 2), "first=False: give a whole number"),
        ((0, None), "last=None: give a whole number"),
    ],
)
def test_a_part_without_inputs_is_refused(stored, ends, message):
    """Before, a negative end gave a trace whose arrays and inputs did not belong together."""
    traced, _ = stored
    replayed = replay_policy(traced, ExitPolicy(min_layer=1))
    for whole in (traced, replayed):
        with pytest.raises(MeeError, match=message) as caught:
            whole.part(*ends)
        assert "\n" not in str(caught.value)


def test_a_part_may_reach_beyond_the_end_and_be_given_in_any_whole_numbers(stored):
    traced, _ = stored
    replayed = replay_policy(traced, ExitPolicy(min_layer=1))
    for last in (3, 10, 2**70, np.int8(3)):
        part = traced.part(np.int64(1), last)
        assert part.source_ids == traced.source_ids[1:]
        assert part.token_id.tolist() == traced.token_id[traced.sequence >= 1].tolist()
        exits = replayed.part(1, last).exit_layers()
        assert exits.tolist() == replayed.exit_layers()[traced.sequence >= 1].tolist()


def test_values_by_output_are_one_for_each_token(stored):
    traced, _ = stored
    with pytest.raises(MeeError, match=f"2 values for {len(traced)} tokens: give one for each"):
        traced.by_output(np.zeros(2))


def test_a_part_of_a_stored_trace_is_saved_with_its_own_states(t5, tmp_path):
    """Before, the states of the whole trace were left beside it, and it could not be read again."""
    path = tmp_path / "t.safetensors"
    traced = trace(t5, INPUTS, states=states_path(path), max_new_tokens=6)
    traced.save(path)
    whole = np.array(traced.states)
    part = load_trace(path).part(1, 3)
    part.save(path)
    again = load_trace(path)
    assert np.array_equal(again.states, part.states) and len(again) == len(part) < len(traced)
    assert np.array_equal(traced.states, whole), "what was mapped before stays as it was"
    traced.save(path)
    assert np.array_equal(load_trace(path).states, whole)


def test_states_that_were_replaced_since_are_written_again(t5, tmp_path):
    """Before, a trace was saved beside the states of another one of the same size."""
    path = tmp_path / "t.safetensors"
    first = trace(t5, INPUTS[:1], outputs=[[5, 6, 1]], states=states_path(path))
    second = trace(t5, INPUTS[1:2], outputs=[[7, 8, 1]], states=states_path(path))
    assert first.states.shape == second.states.shape and not np.array_equal(first.states, second.states)
    assert np.array_equal(load_trace(first.save(path)).states, first.states)
    states_path(path).unlink()
    assert np.array_equal(load_trace(second.save(path)).states, second.states)
    states_path(path).write_bytes(b"cut short")
    assert np.array_equal(load_trace(second.save(path)).states, second.states)


def test_a_trace_does_not_overwrite_its_own_states(t5, tmp_path, monkeypatch):
    raw = tmp_path / "raw.npy"
    traced = trace(t5, INPUTS[:1], states=raw, max_new_tokens=2)
    written = raw.read_bytes()
    (tmp_path / "linked.npy").symlink_to(raw)
    monkeypatch.chdir(tmp_path)
    for path in (raw, "raw.npy", tmp_path / "linked.npy"):
        with pytest.raises(MeeError, match=r"\.npy holds the states of this trace: give another"):
            traced.save(path)
    assert raw.read_bytes() == written and len(list(tmp_path.iterdir())) == 2


def test_states_that_lie_in_their_place_are_not_written_again(stored):
    traced, path = stored
    written = states_path(path).stat()
    traced.save(path)
    assert states_path(path).stat().st_mtime_ns == written.st_mtime_ns and len(
        load_trace(path).states
    ) == len(traced)


def test_damaged_files_and_folders_are_one_clear_line(stored, tmp_path):
    traced, path = stored
    traced.save(path)
    copy = tmp_path / "t.safetensors"
    for cut, message in ((1000, "cut short or damaged"), (64, "cut short or damaged")):
        shutil.copy(path, copy)
        states_path(copy).write_bytes(states_path(path).read_bytes()[:-cut] if cut > 64 else b"1" * cut)
        with pytest.raises(MeeError, match=message):
            load_trace(copy)
    np.save(states_path(copy), np.zeros((3, 4, 32), np.float32))
    with pytest.raises(MeeError, match="holds 3 tokens, its trace"):
        load_trace(copy)
    states_path(copy).unlink()
    with pytest.raises(MeeError, match="is missing"):
        load_trace(copy)
    copy.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(MeeError, match="no trace, or damaged"):
        load_trace(copy)
    with pytest.raises(MeeError, match="is a folder: give a file"):
        traced.save(tmp_path)
    assert not states_path(tmp_path).exists()


def test_a_full_disk_is_one_clear_line_and_leaves_nothing(t5, tmp_path, monkeypatch):
    def full(self, rows, raw):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tracing._StatesFile, "write", full)
    with pytest.raises(MeeError, match=r"s.npy cannot be written \(No space left on device\)"):
        trace(t5, INPUTS, max_new_tokens=2, states=tmp_path / "s.npy")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_states_are_written_so_that_a_full_disk_is_an_error(t5):
    """A memory map of a full disk ends the process with a bus error."""
    with pytest.raises(OSError), open("/dev/full", "wb") as file:
        store = tracing._StatesFile(file, (2, 4, 32))
        store.write([np.arange(2)], torch.zeros(2, 4, 32))


def test_what_cannot_be_replayed_is_one_clear_line(stored, t5):
    traced, _ = stored
    pruned = ExitPolicy("softmax_margin", pruning="fixed", top_k=9)
    for call, message in (
        (lambda: replay(traced, "softmax_margin"), "policy='softmax_margin': give an ExitPolicy"),
        (lambda: replay("t.safetensors", pruned), "trace='t.safetensors': give a Trace"),
        (lambda: replay(traced, ExitPolicy(), max_new_tokens=0), "max_new_tokens=0"),
        (lambda: replay(traced, pruned), "give the model of the trace too"),
        (
            lambda: replay(replace(traced, states=traced.states[:, :, :5]), pruned, model=t5),
            "trace and model need",
        ),
        (
            lambda: replay(replace(traced, states=traced.states[:-1]), pruned, model=t5),
            "trace and model need",
        ),
        (lambda: train_classifier("linear_classifier", traced, t5, epochs=0), "epochs=0"),
        (lambda: train_classifier("linear_classifier", traced, t5, seed="a"), "seed='a'"),
        (
            lambda: train_classifier("linear_classifier", traced, t5, seed=2**70),
            f"seed={2**70}: give a whole",
        ),
        (lambda: train_classifier("linear_classifier", traced, t5, seed=-1), "seed=-1: give a whole number"),
        (
            lambda: train_classifier("linear_classifier", replace(traced, states=traced.states[:, :2]), t5),
            "trace and model need",
        ),
    ):
        with pytest.raises(MeeError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "kind, options, message",
    [
        ("linear_classifier", {"learning_rate": -1}, "learning_rate=-1: give a number above 0"),
        ("linear_classifier", {"learning_rate": 0}, "learning_rate=0: give"),
        ("linear_classifier", {"learning_rate": float("nan")}, "learning_rate=nan: give"),
        ("linear_classifier", {"learning_rate": float("inf")}, "learning_rate=inf: give"),
        ("linear_classifier", {"learning_rate": "0.1"}, "learning_rate='0.1': give"),
        ("linear_classifier", {"learning_rate": 10**400}, "learning_rate=10*...: give"),
        ("linear_classifier", {"layers": 0}, "layers=0: give a whole number from 1"),
        ("three_hidden_classifier", {"layers": -1}, "layers=-1: give"),
        ("linear_classifier", {"layers": "2"}, "layers='2': give"),
        ("linear_classifier", {"layers": 4}, "t5 decides at 3 layers.*give at most 3"),
        ("three_hidden_classifier", {"layers": 13}, "t5 decides at 3 layers.*give at most 3"),
        ("hidden_classifier", {"hidden": -1}, "hidden=-1: give a whole number from 0"),
        ("hidden_classifier", {"hidden": 2.5}, "hidden=2.5: give"),
        ("lstm_classifier", {"hidden": 0}, "hidden=0: give a whole number from 1"),
        ("lstm_classifier", {"depth": 0}, "depth=0: give"),
        ("past_future", {"decoder_layers": 7}, "is for decoder_layers=7, t5 has 4"),
        ("token_hash", {"vocabulary": 3}, "is for vocabulary=3, t5 has"),
        ("token_hash", {"target": "distilled"}, "nothing can be distilled"),
        ("linear_classifier", {"target": "correctness"}, "trace made with trace.model, inputs, references."),
        ("linear_classifier", {"trace": None}, "trace=None: give a Trace"),
        ("linear_classifier", {"held_out": 5}, "held_out=5: give a Trace"),
    ],
)
def test_a_classifier_that_cannot_be_trained_is_one_clear_line(stored, t5, kind, options, message):
    with pytest.raises(MeeError, match=message) as caught:
        train_classifier(kind, **{"trace": stored[0], "model": t5} | options)
    assert "\n" not in str(caught.value)


def test_the_most_layers_that_a_classifier_can_see_are_learned_from(stored, t5):
    learned, curve = train_classifier("linear_classifier", stored[0], t5, layers=3, epochs=1)
    assert learned.lookback == 2 and np.isfinite(curve[0]["loss"])


def test_a_decoder_of_one_layer_has_no_classifier(tokenizer, tmp_path):
    from conftest import build_network

    flat = Model(build_network("t5-deep-decoder", len(tokenizer), layers=1), tokenizer, "flat")
    traced = trace(flat, INPUTS, states=tmp_path / "s.npy", max_new_tokens=2)
    assert traced.layers == 1
    for kind in ("linear_classifier", "token_hash", "past_future", "lstm_classifier"):
        with pytest.raises(MeeError, match="flat has one layer"):
            train_classifier(kind, traced, flat)


def change_in_place(model, folder):
    with torch.no_grad():
        model.network.lm_head.weight.mul_(1.5)
    return model


def change_one_decoder_weight(model, folder):
    with torch.no_grad():
        model.network.get_decoder().block[1].layer[0].SelfAttention.q.weight[0, 0] += 1
    return model


def change_the_encoder(model, folder):
    with torch.no_grad():
        model.network.get_encoder().block[0].layer[0].SelfAttention.q.weight.mul_(2)
    return model


def replace_a_weight(model, folder):
    norm = model.network.get_decoder().final_layer_norm
    norm.weight = torch.nn.Parameter(norm.weight * 2)
    return model


def save_other_weights_to_the_same_folder(model, folder):
    other = build_lively("t5", model.tokenizer, seed=1, dtype=torch.float32)
    other.network.config.eos_token_id = model.network.config.eos_token_id
    other.network.save_pretrained(folder)
    return load_model(folder, dtype="float64", name=model.name)


CHANGES = [
    change_in_place,
    change_one_decoder_weight,
    change_the_encoder,
    replace_a_weight,
    save_other_weights_to_the_same_folder,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_trace_of_other_weights_is_refused(tokenizer, tmp_path, change):
    """In one line, by all that takes a trace with its model; the states would be those of before."""
    build_lively("t5", tokenizer, dtype=torch.float32).network.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    model = load_model(tmp_path / "model", dtype="float64", name="mine")
    states = tmp_path / "t.states.npy"
    path = trace(model, INPUTS, states=states, max_new_tokens=4).save(tmp_path / "t.safetensors")
    traced = load_trace(path)
    pruned = ExitPolicy("softmax_margin", min_layer=1, pruning="fixed", top_k=9)
    train_classifier("linear_classifier", traced, model, epochs=1)
    before = replay(traced, pruned, model=model)
    again = load_model(tmp_path / "model", dtype="float64", name="mine")
    assert (replay(traced, pruned, model=again) == before).all(), "the same weights loaded anew"
    changed = change(model, tmp_path / "model")
    for call in (
        lambda: train_classifier("linear_classifier", traced, changed),
        lambda: replay(traced, pruned, model=changed),
        lambda: replay(traced, ExitPolicy(min_layer=1), model=changed),
        lambda: replay_drafts(traced, ExitPolicy(min_layer=1), model=changed),
        lambda: StoredStates(traced.first(2), changed),
    ):
        with pytest.raises(MeeError, match='of other weights than "mine" has now: trace again') as caught:
            call()
        assert "\n" not in str(caught.value)
    fresh = trace(changed, INPUTS, states=states, max_new_tokens=4)
    assert len(replay(fresh, pruned, model=changed)) == len(fresh)


def test_a_trace_is_of_the_model_that_is_named(stored, t5):
    with pytest.raises(MeeError, match='The trace is of "t5": give this model, not "other"'):
        replay(stored[0], ExitPolicy(min_layer=1), model=replace(t5, name="other"))
    with pytest.raises(MeeError, match="model=T5ForConditionalGeneration: give what load_model returns"):
        replay(stored[0], ExitPolicy(min_layer=1), model=t5.network)


def test_precision_does_not_make_a_trace_stale(tokenizer, tmp_path):
    """Weights are compared in single precision, as those of classifiers are."""
    model = build_lively("t5", tokenizer, dtype=torch.float32)
    traced = trace(model, INPUTS, states=tmp_path / "s.npy", max_new_tokens=4)
    model.network.double()
    assert len(replay(traced, ExitPolicy(min_layer=1), model=model)) == len(traced)


def test_one_token_of_one_input_is_a_trace(t5, tmp_path):
    traced = trace(t5, INPUTS[:1], max_new_tokens=1, states=tmp_path / "s.npy")
    again = load_trace(traced.save(tmp_path / "t.safetensors"))
    assert len(again) == 1 and again.token_before.tolist() == [-1]
    assert [len(part) for part in again.by_output(again.position)] == [1]
    assert len(trace(t5, iter(INPUTS), iter(REFERENCES)).source_tokens) == 3


MEMORY = """
import resource, sys
import numpy as np
sys.path.insert(0, "tests")
from conftest import build_network
from mee_utils.models.loading import Model
from mee_utils.companion.training.mini import train_tokenizer
from mee_utils import trace
tokenizer = train_tokenizer(["the red house is near the river"] * 50, 200)
model = Model(build_network("t5", 32128), tokenizer, "wide")
ids = list(np.random.default_rng(0).integers(3, 32000, 100))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
traced = trace(model, ["the red house"] * 40, outputs=[ids] * 40, states=sys.argv[1])
assert len(traced) == 4_000
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_trace_holds_no_logits(tmp_path):
    """4,000 tokens, four layers, 32,128 ids: their logits alone would take two gigabytes."""
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "s.npy")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 400
