"""The trace: last block = the model's own logits; padding, batches and storage change nothing; memory is bounded."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from mee_utils import CompanionError, greedy, load_trace, trace
from mee_utils.models.states import decoder_inputs

INPUTS = [
    "translate English to French: The red house is near the river.",
    "question: Where does Ann live? context: Ann lives in Rome. Bob is a baker.",
    "summarize: On Friday there was a meeting.",
]
REFERENCES = ["La maison rouge est près de la rivière.", "Rome", "A meeting was held on Friday in Rome by Ann."]
ARRAYS = (
    "top_probabilities", "entropy", "final_probability", "token_probability", "similarity", "final_similarity"
)  # fmt: skip


def logits_of(model, text, ids):
    encoded = model.tokenizer(text, return_tensors="pt")
    labels = torch.tensor([ids])
    with torch.inference_mode():
        return model.network(**{k: encoded[k] for k in ("input_ids", "attention_mask")},
                             decoder_input_ids=decoder_inputs(model.network, labels)).logits[0]  # fmt: skip


def test_the_last_block_is_the_models_own_output(model):
    found = trace(model, INPUTS, REFERENCES, top_k=4)
    start = 0
    for text, reference in zip(INPUTS, REFERENCES, strict=True):
        ids = model.tokenizer(reference).input_ids
        expected = logits_of(model, text, ids).softmax(-1)
        top = expected.topk(4)
        rows = slice(start, start + len(ids))
        assert np.allclose(found.top_probabilities[rows, -1], top.values.numpy(), atol=1e-6)
        assert (found.top_ids[rows, -1, 0] == top.indices[:, 0].numpy()).all()
        assert np.allclose(found.token_probability[rows, -1], expected.gather(-1, torch.tensor(ids)[:, None])[:, 0], atol=1e-6)
        assert (found.token_id[rows] == ids).all()
        start += len(ids)
    assert start == len(found)


def test_along_its_own_output_the_last_block_predicts_what_was_emitted(model):
    found = trace(model, INPUTS, max_new_tokens=12)
    assert (found.final_id == found.token_id).all()
    outputs = greedy(model, INPUTS, max_new_tokens=12)
    assert [list(found.token_id[found.sequence == i]) for i in range(3)] == outputs
    assert (found.final_rank[:, -1] == 1).all() and np.allclose(found.final_similarity[:, -1], 1)


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_padding_and_batch_size_change_no_number_beyond_rounding(model, batch_size):
    alone = [trace(model, [text], [reference]) for text, reference in zip(INPUTS, REFERENCES, strict=True)]
    together = trace(model, INPUTS, REFERENCES, batch_size=batch_size)
    for name in ARRAYS:
        assert np.allclose(getattr(together, name), np.concatenate([getattr(t, name) for t in alone]), atol=1e-6), name
    assert (together.top1_id == np.concatenate([t.top1_id for t in alone])).all()
    assert list(together.position) == [p for t in alone for p in t.position]


def test_what_is_derived_follows_its_definition(t5, tmp_path):
    found = trace(t5, INPUTS, REFERENCES, top_k=len(t5.tokenizer), states=tmp_path / "s.npy")
    p, ids = found.top_probabilities.astype(np.float64), found.top_ids
    assert np.allclose(p.sum(-1), 1, atol=1e-5)
    assert np.allclose(found.margin, p[..., 0] - p[..., 1])
    assert np.allclose(found.entropy, -(p * np.log(p)).sum(-1), atol=1e-4)
    rank = (ids == found.final_id[:, None, None]).argmax(-1) + 1
    assert (found.final_rank == rank).all()
    norm = t5.network.get_decoder().final_layer_norm
    states = norm(torch.tensor(np.array(found.states)).double()).detach().numpy()

    def cosine(a, b):
        return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)

    assert np.allclose(found.similarity[:, 1:], cosine(states[:, 1:], states[:, :-1]), atol=1e-5)
    assert np.allclose(found.final_similarity, cosine(states, states[:, -1:]), atol=1e-5)


def test_a_saved_trace_is_the_same_trace(t5, tmp_path):
    found = trace(t5, INPUTS, states=tmp_path / "raw.npy", max_new_tokens=6)
    again = load_trace(found.save(tmp_path / "t.parquet"))
    for name in (*ARRAYS, "sequence", "position", "token_id", "top_ids", "final_rank", "states"):
        assert np.array_equal(getattr(again, name), getattr(found, name)), name
    assert (again.along, again.model, again.layers) == (found.along, found.model, found.layers)
    assert not list(tmp_path.glob(".*"))


def test_a_trace_without_states_does_not_find_those_of_an_older_one(t5, tmp_path):
    trace(t5, INPUTS, states=tmp_path / "raw.npy", max_new_tokens=6).save(tmp_path / "t.parquet")
    trace(t5, INPUTS, max_new_tokens=6).save(tmp_path / "t.parquet")
    assert load_trace(tmp_path / "t.parquet").states is None


def test_greedy_is_greedy_whatever_the_checkpoint_asks_for(t5):
    plain = greedy(t5, INPUTS, max_new_tokens=10)
    settings = t5.network.generation_config
    t5.network.generation_config.repetition_penalty = 5.0
    try:
        assert greedy(t5, INPUTS, max_new_tokens=10) == plain
        assert (trace(t5, INPUTS, max_new_tokens=10).final_id == trace(t5, INPUTS, max_new_tokens=10).token_id).all()
    finally:
        settings.repetition_penalty = 1.0


def test_inputs_are_checked(t5, tmp_path):
    for inputs, message in (([], "no inputs"), (["a", ""], "Input 1 is ''"), ([" \n"], "Input 0"), ([None], "Input 0 is None")):
        with pytest.raises(CompanionError, match=message):
            trace(t5, inputs)
    with pytest.raises(CompanionError, match="1 references for 3 inputs"):
        trace(t5, INPUTS, ["a"])
    with pytest.raises(CompanionError, match="Reference 1 is ''"):
        trace(t5, INPUTS, ["a", "", "b"])
    with pytest.raises(CompanionError, match="1 outputs for 3 inputs"):
        trace(t5, INPUTS, outputs=[[5, 1]])
    with pytest.raises(CompanionError, match="top_k=1"):
        trace(t5, INPUTS, top_k=1)
    with pytest.raises(CompanionError, match="does not exist"):
        load_trace(tmp_path / "nothing.parquet")
    (tmp_path / "other.parquet").write_bytes(b"PAR1 no trace")
    with pytest.raises(CompanionError, match="is no trace"):
        load_trace(tmp_path / "other.parquet")


def test_states_that_are_not_finite_are_reported(tokenizer):
    from conftest import build_network

    from mee_utils.models.loading import Model

    broken = Model(build_network("t5", len(tokenizer)), tokenizer, "broken")
    with torch.no_grad():
        broken.network.get_decoder().block[2].layer[2].DenseReluDense.wo.weight.fill_(float("inf"))
    with pytest.raises(CompanionError, match="not finite from block 3 on"):
        trace(broken, INPUTS, REFERENCES)


MEMORY = """
import resource, sys
import numpy as np
sys.path.insert(0, "tests")
from conftest import build_network
from mee_utils.models.loading import Model
from mee_utils.models.mini import train_tokenizer
from mee_utils import trace
tokenizer = train_tokenizer(["the red house is near the river"] * 50, 200)
model = Model(build_network("t5", 32128), tokenizer, "wide")
ids = list(np.random.default_rng(0).integers(3, 32000, 100))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = trace(model, ["the red house"] * 500, outputs=[ids] * 500, states=sys.argv[1])
assert len(found) == 50_000
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_fifty_thousand_tokens_at_the_full_vocabulary_need_less_than_two_gigabytes(tmp_path):
    done = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path / "s.npy")], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2000


def test_the_short_way_to_full_depth_accuracy_is_the_trace(lively):
    from mee_utils.decoding.tracing import right_at_full_depth

    references = [text[::-1] for text in INPUTS]
    right, sequence = right_at_full_depth(lively, INPUTS, references, 12, batch_size=3)
    found = trace(lively, INPUTS, references, max_new_tokens=12)
    assert (right == (found.final_id == found.token_id)).all() and (sequence == found.sequence).all()
    outputs = trace(lively, INPUTS, max_new_tokens=12)
    texts = [lively.tokenizer.decode(ids) for ids in np.split(outputs.token_id, np.flatnonzero(np.diff(outputs.sequence)) + 1)]
    assert right_at_full_depth(lively, INPUTS, texts, 12)[0].mean() >= right.mean()
