"""On a GPU decoding, traces and training give what they give on a CPU; nothing stays behind on the host.

Models are small and random. Exactness is tested in double and in single precision: kernels round
differently, and where two ids are nearly equal another one may win, which these models do not come near.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from benchmarks import decoder, tables
from conftest import FAMILIES, INPUTS, LENGTH, SAFE, build_lively
from reference import greedy
from test_bench import TINY

from mee_utils import ExitPolicy, Model, generate, load_trace, plan_drafts, replay, trace, train_classifier
from mee_utils.decoding.from_transformers import decode_with_exits
from mee_utils.exits.classifiers import CLASSES, SIZED, new_classifier
from mee_utils.exits.measures import MEASURES

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
MARGIN = {"measure": "softmax_margin", "threshold": 0.02, "min_layer": 1}
READOUTS = {
    "all ids": {},
    "pruned": {"pruning": "fixed", "top_k": 8},
    "adaptive pruning": {"pruning": "adaptive"},
    "weighted contrast": {"contrast": "weighted"},
    "jsd contrast": {"contrast": "jsd", "contrast_token": True},
    "pruned jsd contrast": {"contrast": "jsd", "pruning": "fixed", "top_k": 8},
}


def on_gpu(family, tokenizer, dtype):
    model = build_lively(family, tokenizer)
    model.network.to(DEVICE, dtype)
    return model


@pytest.fixture(scope="module", params=FAMILIES)
def exact(request, tokenizer):
    """Of every family, in double precision."""
    return on_gpu(request.param, tokenizer, torch.float64)


@pytest.fixture(scope="module", params=[torch.float64, torch.float32], ids=["double", "single"])
def lively_on_gpu(request, tokenizer):
    return on_gpu("t5-deep-decoder", tokenizer, request.param)


def policies(model):
    """A policy that decides at all layers, with each measure and each kind of classifier that is there."""
    width = model.network.config.d_model
    sizes = {"decoder_layers": model.layers, "vocabulary": model.network.config.vocab_size}
    dtype = torch.promote_types(model.network.dtype, torch.float32)
    for name, measure in MEASURES.items():
        threshold = {}
        if measure.has_threshold:
            level = 1 if measure.integer_threshold else 0.1
            threshold = {"threshold": float(np.clip(level, *measure.range))}
        yield name, ExitPolicy(name, min_layer=1, **threshold)
    for kind in CLASSES:
        classifier = new_classifier(kind, width, **{size: sizes[size] for size in SIZED.get(kind, ())})
        yield kind, ExitPolicy(classifier.to(DEVICE, dtype), threshold=0.5, min_layer=1)


def test_full_depth_is_greedy_search_of_transformers(exact):
    out = generate(exact, INPUTS, max_new_tokens=LENGTH, batch_size=4)
    assert out.token_ids == greedy(exact, INPUTS, LENGTH)


def test_a_batch_gives_each_row_what_it_gets_alone(lively_on_gpu):
    for name, readout in READOUTS.items():
        policy = ExitPolicy(**MARGIN | readout)
        together = generate(lively_on_gpu, INPUTS, policy, max_new_tokens=LENGTH, batch_size=len(INPUTS))
        alone = generate(lively_on_gpu, INPUTS, policy, max_new_tokens=LENGTH, batch_size=1)
        assert together.token_ids == alone.token_ids, name
        assert all(map(np.array_equal, together.exit_layers, alone.exit_layers)), name


@pytest.mark.parametrize("batch", [1, 4])
def test_verified_exits_give_the_output_of_full_depth(lively_on_gpu, batch):
    full = generate(lively_on_gpu, INPUTS, max_new_tokens=LENGTH).token_ids
    for readout in READOUTS.values():
        policy = ExitPolicy(**MARGIN | readout, propagation="verify", max_draft=3)
        out = generate(lively_on_gpu, INPUTS, policy, max_new_tokens=LENGTH, batch_size=batch)
        assert out.token_ids == full and sum(drafts.verified for drafts in out.drafts)


def test_exits_are_those_of_a_cpu(exact, tokenizer):
    """With every measure, classifier and way of handing states on."""
    beside = build_lively(exact.name, tokenizer)
    for name, policy in policies(exact):
        here = generate(exact, INPUTS, policy, max_new_tokens=LENGTH)
        if policy.measure.name in CLASSES:
            policy.measure.to("cpu")
        there = generate(beside, INPUTS, policy, max_new_tokens=LENGTH)
        assert here.token_ids == there.token_ids, name
        assert all(map(np.array_equal, here.exit_layers, there.exit_layers)), name
    policy = ExitPolicy(**MARGIN, propagation="parallel")
    outputs = [generate(model, INPUTS, policy, max_new_tokens=LENGTH) for model in (exact, beside)]
    assert outputs[0].token_ids == outputs[1].token_ids


def test_in_half_precision_every_rule_decodes(tokenizer):
    """With states of one precision throughout: a matrix of another would not be multiplied."""
    model = on_gpu("t5", tokenizer, torch.bfloat16)
    for name, policy in policies(model):
        out = generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=4)
        assert len(out.texts) == len(INPUTS), name
    for readout in READOUTS.values():
        for propagation in ("copy", "parallel", "verify"):
            draft = {"max_draft": 3} if propagation == "verify" else {}
            policy = ExitPolicy(**MARGIN | readout, propagation=propagation, **draft)
            out = generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=4)
            assert len(out.texts) == len(INPUTS)


@pytest.fixture(scope="module")
def traced(tokenizer, tmp_path_factory):
    """A model on the GPU, and its trace as it is read again from its files."""
    model = on_gpu("t5-deep-decoder", tokenizer, torch.float64)
    path = tmp_path_factory.mktemp("trace") / "trace.safetensors"
    states = path.with_suffix(".states.npy")
    trace(model, INPUTS, states=states, max_new_tokens=LENGTH).save(path)
    return model, load_trace(path)


def test_a_trace_is_that_of_a_cpu(traced, tokenizer):
    model, here = traced
    beside = Model(build_lively("t5-deep-decoder", tokenizer).network, tokenizer, model.name, SAFE)
    there = trace(beside, INPUTS, max_new_tokens=LENGTH)
    assert np.array_equal(here.top_ids, there.top_ids) and here.fingerprint == there.fingerprint
    for name in ("top_probabilities", "entropy", "similarity", "final_similarity"):
        assert np.allclose(getattr(here, name), getattr(there, name), atol=1e-6), name


def test_a_replay_says_where_tokens_exit(traced):
    """The first token of each output, which no exit before it changes; states are in single precision."""
    model, found = traced
    first = found.position == 0
    for name, policy in policies(model):
        layers = replay(found, policy, LENGTH, model)[first]
        decoded = generate(model, INPUTS, policy, max_new_tokens=1)
        assert np.array_equal(layers, np.concatenate(decoded.exit_layers)), name


@pytest.mark.parametrize("kind", ["hidden_classifier", "lstm_classifier", "token_hash", "history_classifier"])
def test_a_classifier_learns_and_decodes(traced, kind):
    model, found = traced
    classifier, _ = train_classifier(kind, found, model, epochs=1)
    assert all(weight.device == model.device for weight in classifier.state_dict().values())
    policy = ExitPolicy(classifier, threshold=0.5, min_layer=1)
    assert generate(model, INPUTS, policy, max_new_tokens=LENGTH).tokens


def test_drafts_are_planned(traced):
    model, _ = traced
    plan = plan_drafts(model, INPUTS, max_new_tokens=LENGTH)
    out = generate(model, INPUTS, plan.policy, max_new_tokens=LENGTH)
    assert out.token_ids == generate(model, INPUTS, max_new_tokens=LENGTH).token_ids


def test_exits_work_behind_generate_of_transformers(traced):
    model, _ = traced
    policy = ExitPolicy(**MARGIN)
    batch = model.tokenizer(INPUTS[:2], return_tensors="pt", padding=True).to(DEVICE)
    options = {"custom_generate": decode_with_exits, "exit_policy": policy, "max_new_tokens": LENGTH}
    ids = model.network.generate(**batch, **options)
    assert ids.device == model.device
    expected = generate(model, INPUTS[:2], policy, max_new_tokens=LENGTH).token_ids
    assert [row[: len(one)] for row, one in zip(ids[:, 1:].tolist(), expected, strict=True)] == expected


def test_the_benchmark_runs_and_names_the_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    workload = replace(TINY, device=DEVICE, compiling=False)
    for part in decoder.PARTS:
        table = decoder.run(part, workload, 1)
        assert np.isfinite(table["median"]).all()
        path = tables.save(table.assign(shape="mini"), "decoder", decoder.KEYS, DEVICE)
    assert path == tmp_path / "bench" / "gpu" / "decoder.csv"
    assert set(pd.read_csv(path).processor) == {torch.cuda.get_device_name()}
