"""Full depth is `generate`; exits are what an uncached pass gives; rows and padding do not interfere."""

import contextlib
import copy
import json
import logging
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import INPUTS, LENGTH, build_lively, confidences, end_with
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import greedy, uncached
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import mee_utils
from mee_utils import ExitPolicy, ForcedExits, MeeError, generate, load_model, load_task, replay, trace
from mee_utils.decoding import cache, families, generation, layerwise, weights
from mee_utils.decoding import token as token_module
from mee_utils.decoding.generation import bind_policy
from mee_utils.decoding.inputs import EncoderCache, decode_batch
from mee_utils.decoding.layerwise import LayerwiseDecoder, decoder_of, start_and_end_ids
from mee_utils.decoding.token import ExitState, Step, decide
from mee_utils.models.loading import Model
from mee_utils.models.states import layer_states


def random_exits(seed, layers, inputs=None):
    return np.random.default_rng(seed).integers(1, layers + 1, size=(inputs or len(INPUTS), LENGTH))


def forced(exits, **options):
    return ExitPolicy(ForcedExits(exits), **options)


def logits_are_apart(model):
    """Greedy outputs of two implementations can only be compared where no two tokens tie."""
    found = trace(model, INPUTS, max_new_tokens=LENGTH)
    return (found.top_probabilities[:, -1, 0] - found.top_probabilities[:, -1, 1]).min() > 1e-6


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7])
def test_without_exits_it_is_generate_token_for_token(every_family, batch_size):
    assert logits_are_apart(every_family)
    expected = greedy(every_family, INPUTS, max_new_tokens=LENGTH, batch_size=batch_size)
    assert len({len(ids) for ids in expected}) > 1, (
        "rows must finish at different places for this test to mean something"
    )
    for policy in (
        None,
        ExitPolicy(threshold=1.0),
        ExitPolicy("hidden_similarity", threshold=1.0),
        ExitPolicy("static", min_layer=4),
    ):
        found = generate(every_family, INPUTS, policy, max_new_tokens=LENGTH, batch_size=batch_size)
        assert found.token_ids == expected
        assert all((layers == every_family.layers).all() for layers in found.exit_layers)
        assert found.texts == every_family.tokenizer.batch_decode(expected, skip_special_tokens=True)


@settings(max_examples=16, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    batch_size=st.sampled_from([1, 3, 5, 7]),
    parallel=st.booleans(),
    together=st.booleans(),
)
def test_cached_exits_are_what_an_uncached_pass_gives(lively, seed, batch_size, parallel, together):
    exits = random_exits(seed, lively.layers)
    if together:  # all rows leave at the same layers
        exits[:] = exits[0]
    policy = forced(exits, propagation="parallel" if parallel else "copy")
    found = generate(lively, INPUTS, policy, max_new_tokens=LENGTH, batch_size=batch_size)
    for index, text in enumerate(INPUTS):
        assert found.token_ids[index] == uncached(lively, text, exits[index], parallel)
        assert list(found.exit_layers[index]) == list(exits[index][: len(found.token_ids[index])])


POLICIES = {
    "margin": {"measure": "softmax_margin", "min_layer": 2},
    "probability, decaying": {"measure": "max_probability", "decay": 4.0},
    "similarity": {"measure": "hidden_similarity"},
    "similarity, parallel": {"measure": "hidden_similarity", "propagation": "parallel"},
    "rising": {"measure": "rising_top1"},
    "static": {"measure": "static", "min_layer": 2},
    "oracle": {"measure": "oracle"},
    "oracle, parallel": {"measure": "oracle", "propagation": "parallel"},
}


def policy_for(model, name):
    """The policy with a threshold that some of this model's tokens exceed at each layer and others do not."""
    policy = ExitPolicy(**POLICIES[name])
    if not policy.measure.has_threshold:
        return policy
    found = confidences(trace(model, INPUTS, max_new_tokens=LENGTH), policy)[:, 0]
    level = np.quantile(found[found > 0], 0.6)
    return ExitPolicy(**POLICIES[name], threshold=float(np.round(level, 4)))


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("compact_below", [0.0, 0.9])
def test_a_row_gets_in_any_batch_what_it_gets_alone_and_forcing_its_exits_gives_the_same_output(
    lively, name, compact_below, monkeypatch
):
    monkeypatch.setattr(decoder_of(lively.network), "compact_below", compact_below)
    policy = policy_for(lively, name)
    alone = [generate(lively, [text], policy, max_new_tokens=LENGTH, batch_size=1) for text in INPUTS]
    for batch_size, order in (
        (3, [6, 2, 0, 1, 5, 4, 3]),
        (7, [0, 1, 2, 3, 4, 5, 6]),
        (7, [3, 3, 0, 3, 3, 3, 3]),
    ):
        found = generate(
            lively, [INPUTS[i] for i in order], policy, max_new_tokens=LENGTH, batch_size=batch_size
        )
        for place, index in enumerate(order):
            assert found.token_ids[place] == alone[index].token_ids[0]
            assert (found.exit_layers[place] == alone[index].exit_layers[0]).all()
            assert np.allclose(
                found.confidences[place], alone[index].confidences[0], atol=1e-6, equal_nan=True
            )
            assert found.flops[place] == alone[index].flops[0]
    again = generate(
        lively,
        INPUTS,
        forced([o.exit_layers[0] for o in alone], propagation=policy.propagation),
        max_new_tokens=LENGTH,
    )
    assert again.token_ids == [o.token_ids[0] for o in alone]
    assert all((a == b.exit_layers[0]).all() for a, b in zip(again.exit_layers, alone, strict=True))


@pytest.mark.parametrize("name", POLICIES)
def test_rows_of_a_deeper_decoder_exit_at_many_layers_and_independently(tokenizer, name, monkeypatch):
    deep = build_lively("t5", tokenizer, layers=8)
    monkeypatch.setattr(decoder_of(deep.network), "compact_below", 0.9)
    policy = policy_for(deep, name)
    together = generate(deep, INPUTS, policy, max_new_tokens=LENGTH, batch_size=7)
    for index, text in enumerate(INPUTS):
        alone = generate(deep, [text], policy, max_new_tokens=LENGTH)
        assert together.token_ids[index] == alone.token_ids[0]
        assert (together.exit_layers[index] == alone.exit_layers[0]).all()
        assert together.token_ids[index] == uncached(
            deep, text, alone.exit_layers[0], policy.propagation == "parallel"
        )
    assert name == "static" or len(set(np.concatenate(together.exit_layers))) > 1


def test_the_oracle_keeps_to_its_minimum_layer(lively):
    free, bound = (
        generate(
            lively, INPUTS, ExitPolicy("oracle", min_layer=n, propagation="parallel"), max_new_tokens=LENGTH
        )
        for n in (1, 3)
    )
    assert free.token_ids == bound.token_ids == greedy(lively, INPUTS, max_new_tokens=LENGTH)
    for first, second in zip(free.exit_layers, bound.exit_layers, strict=True):
        assert (second == np.maximum(first, 3)).all()


def test_the_policies_of_this_file_do_exit_and_do_not_only_exit(lively):
    for name in POLICIES:
        exits = np.concatenate(
            generate(lively, INPUTS, policy_for(lively, name), max_new_tokens=LENGTH).exit_layers
        )
        assert 1 <= exits.min() <= exits.max() <= lively.layers
        assert name == "static" or len(set(exits)) > 1, name


def test_padding_changes_nothing(every_family):
    decoder, exits = decoder_of(every_family.network), random_exits(1, every_family.layers, 1)
    encoded = every_family.tokenizer(INPUTS[1], return_tensors="pt")
    for extra in (1, 5, 40):
        pad = torch.full((1, extra), every_family.tokenizer.pad_token_id)
        padded = {
            "input_ids": torch.cat([encoded.input_ids, pad], 1),
            "attention_mask": torch.cat([encoded.attention_mask, torch.zeros_like(pad)], 1),
        }
        rows = decode_batch(decoder, padded, bind_policy(forced(exits), decoder), LENGTH, np.array([0]))
        assert rows[0][0] == uncached(every_family, INPUTS[1], exits[0])


@pytest.mark.parametrize("seed", range(4))
def test_parallel_leaves_the_cache_as_full_depth_processing_would(lively, seed, monkeypatch):
    exits, kept = random_exits(seed, lively.layers, 1), {}
    begin = LayerwiseDecoder.begin
    monkeypatch.setattr(LayerwiseDecoder, "begin", lambda *a, **k: kept.setdefault("cache", begin(*a, **k)))
    decoder = LayerwiseDecoder(lively.network)
    encoded = lively.tokenizer(INPUTS[0], return_tensors="pt")
    ids = decode_batch(
        decoder,
        dict(encoded),
        bind_policy(forced(exits, propagation="parallel"), decoder),
        LENGTH,
        np.array([0]),
    )[0][0]
    fed = torch.tensor([[lively.network.config.decoder_start_token_id, *ids[:-1]]])
    with torch.inference_mode(), layer_states(lively.network) as states:
        lively.network(**encoded, decoder_input_ids=fed, use_cache=False)
    embedding = lively.network.get_decoder().embed_tokens(fed)
    reached = 0
    for layer, block in enumerate(lively.network.get_decoder().block):
        filled = kept["cache"].filled[layer, 0]
        before = block.layer[0].layer_norm(embedding if layer == 0 else states[layer - 1])
        for kind, project in enumerate((block.layer[0].SelfAttention.k, block.layer[0].SelfAttention.v)):
            if filled:
                expected = project(before)[0].unflatten(1, (4, -1)).transpose(0, 1)
                found = kept["cache"].self_keys_values[layer][kind, 0, :, :filled]
                # the library takes the mean square in single precision, whatever the model is in
                assert torch.allclose(found, expected[:, :filled], rtol=1e-4, atol=1e-4)
                reached += layer > 0 and filled
    assert reached


@pytest.mark.parametrize("decay", [None, 4.0])
def test_parallel_exits_are_those_of_a_replay_up_to_the_first_other_token(lively, decay):
    full = trace(lively, INPUTS, max_new_tokens=LENGTH)
    level = float(np.quantile(full.similarity[:, :-1], 0.85))
    policy = ExitPolicy("hidden_similarity", threshold=level, decay=decay, propagation="parallel")
    exits, found = replay(full, policy, LENGTH), generate(lively, INPUTS, policy, max_new_tokens=LENGTH)
    compared = 0
    for index in range(len(INPUTS)):
        tokens, foretold = full.token_id[full.sequence == index], exits[full.sequence == index]
        for position, (token, layer) in enumerate(
            zip(found.token_ids[index], found.exit_layers[index], strict=True)
        ):
            assert layer == foretold[position]
            compared += 1
            if token != tokens[position]:
                break
    assert compared > len(INPUTS)


@pytest.mark.parametrize("family", ["t5", "t5-v1.1"])
def test_packed_weights_in_single_precision_give_the_same_tokens(tokenizer, family, monkeypatch):
    model = build_lively(family, tokenizer, dtype=torch.float32)
    plain = LayerwiseDecoder(model.network)  # too small to be packed
    monkeypatch.setattr(weights, "PACKED_FROM", 0)
    packed = LayerwiseDecoder(model.network)
    if not packed.head.packed:
        pytest.fail("this build of torch has no packed product; decoder and benchmark then run unpacked")
    with pytest.raises(ValueError, match="no gradient"):
        packed.head(torch.zeros(2, model.network.config.d_model, requires_grad=True))
    batch = model.tokenizer(INPUTS, padding=True, return_tensors="pt")
    batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
    for policy in (
        None,
        forced(random_exits(3, model.layers)),
        forced(random_exits(4, model.layers), propagation="parallel"),
    ):
        found = [
            [
                row[0]
                for row in decode_batch(
                    decoder, batch, bind_policy(policy, decoder), LENGTH, np.arange(len(INPUTS))
                )
            ]
            for decoder in (plain, packed)
        ]
        assert found[0] == found[1]
    assert found[0] == [
        uncached(model, text, exits, True)
        for text, exits in zip(INPUTS, random_exits(4, model.layers), strict=True)
    ]


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 33])
@pytest.mark.parametrize("row_alone", [False, True])
@pytest.mark.parametrize("packed_from", [0, 10**9])
def test_a_product_is_the_same_for_any_number_of_rows(rows, row_alone, packed_from, monkeypatch):
    monkeypatch.setattr(weights, "PACKED_FROM", packed_from)
    weight = torch.randn(40, 24, generator=torch.Generator().manual_seed(1))
    x = torch.randn(rows, 24, generator=torch.Generator().manual_seed(2))
    linear = weights.Linear(weight, row_alone=row_alone)
    assert linear.packed == (packed_from == 0)
    expected = torch.nn.functional.linear(x.double(), weight.double())
    assert torch.allclose(linear(x).double(), expected, atol=1e-5)
    residual = torch.ones(rows, 40)
    assert torch.allclose(linear.add_to(residual, x).double(), expected + 1, atol=1e-5)


@pytest.mark.parametrize("gather_below", [0, 10**6])
@pytest.mark.parametrize("compact_below", [0.0, 0.6, 0.99])
def test_how_inactive_rows_are_handled_changes_speed_alone(lively, monkeypatch, gather_below, compact_below):
    exits = random_exits(5, lively.layers)
    expected = [uncached(lively, text, row) for text, row in zip(INPUTS, exits, strict=True)]
    monkeypatch.setattr(cache, "GATHER_BELOW", gather_below)
    decoder, batch = (
        LayerwiseDecoder(lively.network),
        lively.tokenizer(INPUTS, padding=True, return_tensors="pt"),
    )
    decoder.compact_below = compact_below
    batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
    rows = decode_batch(decoder, batch, bind_policy(forced(exits), decoder), LENGTH, np.arange(len(INPUTS)))
    assert [row[0] for row in rows] == expected


def test_changed_weights_are_noticed(tokenizer):
    model = build_lively("t5", tokenizer, seed=1)
    before = generate(model, INPUTS, max_new_tokens=LENGTH).token_ids
    with torch.no_grad():
        model.network.get_decoder().block[1].layer[0].SelfAttention.v.weight.neg_()
    assert (
        generate(model, INPUTS, max_new_tokens=LENGTH).token_ids
        == greedy(model, INPUTS, max_new_tokens=LENGTH)
        != before
    )


def test_only_one_function_of_the_loop_fetches_from_the_device():
    folder = Path(layerwise.__file__).parent
    files = ("cache", "generation", "token", "spans", "learning", "outputs", "layerwise", "families")
    for name, count in {**dict.fromkeys(files, 0), "cache": 1}.items():
        text = (folder / f"{name}.py").read_text()
        assert (
            text.count(".cpu()") == count
            and ".item()" not in text
            and "nonzero(" not in text.replace("np.flatnonzero(", "")
        )


def test_nothing_synchronises_by_row_and_each_decision_once(lively, monkeypatch):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Items(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Items.count += "local_scalar_dense" in str(func)
            return func(*args, **(kwargs or {}))

    transfers, on_host = [], token_module.on_host
    monkeypatch.setattr(token_module, "on_host", lambda values: transfers.append(1) or on_host(values))
    found = {}
    for inputs in (INPUTS[:1], INPUTS):
        transfers.clear()
        Items.count = 0
        with Items():
            rows = generate(
                lively,
                inputs,
                ExitPolicy("hidden_similarity", threshold=0.9),
                max_new_tokens=LENGTH,
                batch_size=8,
            )
        steps = max(map(len, rows.token_ids))
        assert Items.count <= 2, "one question to the attention mask a batch, none a row or a token"
        assert len(transfers) <= steps * lively.layers  # L - 1 decisions and the token
        found[len(inputs)] = len(transfers)


@pytest.mark.parametrize("where", ["decoder", "encoder"])
@pytest.mark.parametrize(
    "policy", [None, ExitPolicy(threshold=0.1), ExitPolicy("static", min_layer=1), ExitPolicy("oracle")]
)
def test_states_that_are_not_finite_are_reported(tokenizer, where, policy):
    broken = build_lively("t5", tokenizer)
    network = broken.network
    side = network.get_decoder() if where == "decoder" else network.get_encoder()
    with torch.no_grad():
        side.block[0].layer[-1].DenseReluDense.wo.weight.fill_(
            float("nan") if where == "encoder" else float("inf")
        )
    with pytest.raises(MeeError, match="input 0 are not finite at layer"):
        generate(broken, INPUTS[:1], policy, max_new_tokens=3)


def test_mistakes_are_one_clear_line(lively, tokenizer, tmp_path):
    for arguments, message in (
        ({"inputs": []}, "no inputs"),
        ({"inputs": ["a", " "]}, "Input 1 is ' '"),
        ({"model": "mini"}, r"give what load_model returns, as in load_model\('mini'\)"),
        ({"inputs": load_task("translation", limit=2)}, "inputs is a task .* give its prompts, task.inputs"),
        ({"model": None}, "give what load_model returns"),
        ({"inputs": ["a", "b\ud800"]}, "Input 1 is no valid Unicode at character 1"),
        ({"inputs": ["word " * 100_000]}, "more than 16384: shorten it"),
        ({"encodings": {}}, "give an EncoderCache"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"max_source_tokens": 4}, "more than 4: shorten it, or raise max_source_tokens"),
        ({"max_source_tokens": "5"}, "max_source_tokens='5'"),
        ({"max_source_tokens": 0}, "max_source_tokens=0"),
        ({"inputs": None}, "inputs=None"),
        ({"inputs": 5}, "inputs=5: give a list of texts"),
        ({"inputs": {"a": 1}}, "give a list of texts"),
        ({"inputs": {"a", "b"}}, "give a list of texts"),
        ({"inputs": b"ab"}, "give a list of texts"),
        ({"inputs": np.array("a")}, "give a list of texts"),
        ({"inputs": iter([])}, "no inputs"),
        ({"inputs": [np.zeros((9, 9))]}, "Input 0 is array"),
        ({"model": lively.network}, r"model=\w+: give what load_model returns, or Model\(network, tokenizer"),
        ({"policy": lively.network}, "give ExitPolicy"),
        ({"encodings": lively.network}, "give an EncoderCache"),
        ({"batch_size": lively.network}, "batch_size=.*give a whole number"),
        ({"policy": "softmax_margin"}, "give ExitPolicy"),
        ({"policy": ForcedExits([[1]])}, "give ExitPolicy"),
        ({"policy": ExitPolicy(ForcedExits([[1]]))}, "lists for 1 inputs"),
        ({"policy": ExitPolicy(exit_layers=[4])}, "leaves nothing to decide"),
        ({"policy": ExitPolicy(min_layer=5)}, "names layer 5, but the decoder has 4"),
        ({"policy": ExitPolicy(exit_layers=[2, 9])}, "names layer 9"),
    ):
        with pytest.raises(MeeError, match=message) as caught:
            generate(**{"model": lively, "inputs": INPUTS, "policy": None} | arguments)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


def test_a_tokenizer_that_knows_its_models_length_is_obeyed(tokenizer):
    model = build_lively("t5", tokenizer)
    limited = Model(model.network, copy.deepcopy(tokenizer), "limited")
    limited.tokenizer.model_max_length = 6
    with pytest.raises(MeeError, match=r"Input 0 has .* tokens, more than 6"):
        generate(limited, INPUTS, max_new_tokens=2)
    assert generate(limited, INPUTS, max_new_tokens=2, max_source_tokens=100).tokens


def test_no_warning_of_transformers_is_shown_beside_our_error(tokenizer, caplog):
    """Before, transformers spoke of indexing errors that a T5 does not have."""
    model = build_lively("t5", tokenizer)
    limited = Model(model.network, copy.deepcopy(tokenizer), "limited")
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        for run in (generate, trace):
            limited.tokenizer.model_max_length = 6
            limited.tokenizer.deprecation_warnings = {}  # it warns once
            with contextlib.suppress(MeeError):
                run(limited, INPUTS, max_new_tokens=2)
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.records


def test_float16_is_refused(tokenizer):
    model = build_lively("t5", tokenizer)
    with pytest.raises(MeeError, match="float16"):
        LayerwiseDecoder(model.network.half())


def test_encoder_states_are_kept_for_their_inputs_and_refused_for_another_model(lively, tokenizer):
    cache, options = EncoderCache(), {"max_new_tokens": LENGTH, "batch_size": 3}
    for inputs in (INPUTS, INPUTS[::-1], INPUTS, INPUTS[1:4]):
        found = generate(lively, inputs, encodings=cache, **options)
        assert found.token_ids == generate(lively, inputs, **options).token_ids
    before = len(cache._states)
    generate(lively, INPUTS, ExitPolicy("static", min_layer=2), encodings=cache, **options)
    assert len(cache._states) == before, "the same inputs are encoded once"
    with pytest.raises(MeeError, match="belong to another model"):
        generate(build_lively("t5", tokenizer, seed=3), INPUTS, encodings=cache, **options)
    for side in (lively.network.get_decoder(), lively.network.get_encoder()):
        cache = EncoderCache()
        generate(lively, INPUTS, encodings=cache, **options)
        weight = side.block[0].layer[-1].DenseReluDense.wo.weight
        with torch.no_grad():
            weight.mul_(2)
        with pytest.raises(MeeError, match="other weights"):
            generate(lively, INPUTS, encodings=cache, **options)
        with torch.no_grad():
            weight.div_(2)
    cache = EncoderCache()
    generate(lively, INPUTS, encodings=cache, **options)
    feed_forward = lively.network.get_encoder().block[0].layer[-1].DenseReluDense
    before = feed_forward.wo
    feed_forward.wo = copy.deepcopy(before)
    with pytest.raises(MeeError, match="other weights"):
        generate(lively, INPUTS, encodings=cache, **options)
    feed_forward.wo = before


@pytest.mark.parametrize("parallel", [False, True])
def test_a_cache_that_grows_holds_what_a_large_one_does(lively, monkeypatch, parallel):
    exits = random_exits(2, lively.layers)
    policy = forced(exits, propagation="parallel" if parallel else "copy")
    expected = generate(lively, INPUTS, policy, max_new_tokens=LENGTH)
    for module in (layerwise, families):
        monkeypatch.setattr(module, "FIRST_CAPACITY", 2)
    lively.network.get_decoder().final_layer_norm.weight.data.mul_(1)
    small = LayerwiseDecoder(lively.network)
    monkeypatch.setattr(generation, "decoder_of", lambda network: small)
    grown = generate(lively, INPUTS, policy, max_new_tokens=LENGTH)
    assert grown.token_ids == expected.token_ids and small.family._relative_bias.shape[-1] >= 2 * (LENGTH - 1)


def test_room_is_made_for_tokens_as_they_come(lively, monkeypatch):
    caches, begin = [], LayerwiseDecoder.begin
    monkeypatch.setattr(
        LayerwiseDecoder, "begin", lambda *a, **k: caches.append(begin(*a, **k)) or caches[-1]
    )
    eager = ExitPolicy("static", min_layer=1)
    end = lively.network.config.eos_token_id
    end_with(lively.network, list(range(lively.network.config.vocab_size)))
    try:
        assert generate(lively, INPUTS[:1], eager, max_new_tokens=np.int64(10**6)).tokens == 1
    finally:
        end_with(lively.network, end)
    assert caches[0].capacity == layerwise.FIRST_CAPACITY == caches[0].states.shape[1]


def test_a_policy_that_names_no_layer_begins_where_the_model_is_safe(lively):
    model = Model(lively.network, lively.tokenizer, "halves")
    assert model.min_exit_layer == 2
    for policy in (ExitPolicy(threshold=0.0), ExitPolicy("hidden_similarity", threshold=-1.0)):
        found = generate(model, INPUTS, policy, max_new_tokens=LENGTH)
        assert np.concatenate(found.exit_layers).min() == 2
        assert policy.bind(12, 600, 4).decision_layers[0] == 4
        with pytest.raises(MeeError, match="names no layer and no model is known: give min_layer"):
            policy.bind(12, 600)
    assert ExitPolicy(min_layer=np.int64(3)).bind(12, 600, 4).decision_layers[0] == 3
    assert ExitPolicy("oracle").bind(12, 600, 4).decision_layers[0] == 1
    with pytest.raises(MeeError, match='"static" needs min_layer'):
        ExitPolicy("static")


@pytest.mark.parametrize(
    "options",
    [
        {"measure": "hidden_similarity", "propagation": "parallel"},
        {"pruning": "fixed", "top_k": 20, "threshold": 0.2},
        {"contrast": "weighted", "threshold": 0.2},
        {
            "measure": "max_probability",
            "threshold": "adaptive",
            "propagation": "parallel",
            "exit_layers": [2],
        },
    ],
)
@pytest.mark.parametrize("where", ["shared.weight", "decoder.final_layer_norm.weight"])
def test_damaged_weights_end_in_one_line(tokenizer, options, where):
    model = build_lively("t5", tokenizer)
    with torch.no_grad():
        dict(model.network.named_parameters())[where][5] = float("nan")
    with pytest.raises(MeeError, match="not finite"):
        generate(model, INPUTS, ExitPolicy(**options), max_new_tokens=3)


def test_representations_are_short(lively):
    decoded = generate(lively, INPUTS[:2], max_new_tokens=3)
    shown = (ExitPolicy(ForcedExits([[1] * 9000])), ExitPolicy(threshold=0.5, top_k=None), decoded)
    assert all(len(repr(one)) < 120 for one in shown)
    assert repr(shown[1]) == 'ExitPolicy("softmax_margin", threshold=0.5)'


def test_several_end_tokens_are_all_obeyed(tokenizer):
    model = build_lively("t5", tokenizer)
    long = greedy(model, INPUTS, max_new_tokens=LENGTH)
    ends = [model.network.config.eos_token_id, max(long, key=len)[2]]
    end_with(model.network, ends)
    expected = greedy(model, INPUTS, max_new_tokens=LENGTH)
    assert generate(model, INPUTS, max_new_tokens=LENGTH).token_ids == expected != long


@pytest.fixture(scope="module")
def checkpoint(tokenizer, tmp_path_factory):
    """The folder of a lively model."""
    folder = tmp_path_factory.mktemp("checkpoint")
    build_lively("t5", tokenizer).network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def stored_with(checkpoint, tmp_path, config, generation=None):
    """The model with other ids in `config.json` (None: no such entry), and in `generation_config.json`."""
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    settings = json.loads((folder / "config.json").read_text()) | config
    for name in [name for name, value in config.items() if value is None]:
        del settings[name]
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").unlink()
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return load_model(folder, dtype="float64")


IDS = [
    ({"decoder_start_token_id": 5, "eos_token_id": 7}, None),
    (
        {"decoder_start_token_id": 5},
        {"decoder_start_token_id": 9, "eos_token_id": [1, 30], "pad_token_id": 0},
    ),
    (
        {"decoder_start_token_id": None},
        {"decoder_start_token_id": 5, "eos_token_id": [1], "_from_model_config": True},
    ),
    ({"decoder_start_token_id": None, "bos_token_id": 5}, None),
    ({"pad_token_id": None}, {"decoder_start_token_id": 5, "eos_token_id": 1}),
]


@pytest.mark.parametrize("config, generation", IDS)
def test_outputs_begin_and_end_with_the_ids_that_transformers_takes(checkpoint, tmp_path, config, generation):
    model = stored_with(checkpoint, tmp_path, config, generation)
    drafts = ExitPolicy(threshold=0.02, propagation="verify", max_draft=3)

    def check():
        full = trace(model, INPUTS, max_new_tokens=LENGTH)
        assert (full.final_id == full.token_id).all(), "a trace begins with the same id"
        for policy in (None, drafts):
            decoded = generate(model, INPUTS, policy, max_new_tokens=LENGTH)
            for text, ids in zip(INPUTS, decoded.token_ids, strict=True):
                encoded = model.tokenizer(text, return_tensors="pt")
                source = {"input_ids": encoded.input_ids, "attention_mask": encoded.attention_mask}
                assert model.network.generate(**source, max_new_tokens=LENGTH)[0, 1:].tolist() == ids
        return [len(ids) for ids in decoded.token_ids]

    check()
    end_with(model.network, None)
    assert set(check()) == {LENGTH}
    long = generate(model, INPUTS, max_new_tokens=LENGTH).token_ids
    model.network.generation_config.eos_token_id = [long[0][3], long[1][2]]
    assert min(check()) <= 3


def test_ids_that_no_file_names_come_from_the_other_one_or_from_the_padding(checkpoint, tmp_path):
    model = stored_with(
        checkpoint, tmp_path, {"decoder_start_token_id": None, "eos_token_id": 7}, {"max_length": 9}
    )
    assert start_and_end_ids(model.network) == (model.network.config.pad_token_id, {7})
    model.network.config.eos_token_id = None
    assert start_and_end_ids(model.network) == (0, frozenset())
    assert all(len(ids) == LENGTH for ids in generate(model, INPUTS, max_new_tokens=LENGTH).token_ids)
    model.network.config.pad_token_id = None
    with pytest.raises(MeeError, match="no decoder_start_token_id and no pad_token_id: set model"):
        generate(model, INPUTS)


@pytest.mark.parametrize("value", [-1, 600, True, "1", 1.0, [1, 600], [1, None], [[1]], [], {"id": 1}])
@pytest.mark.parametrize("name", ["decoder_start_token_id", "eos_token_id"])
@pytest.mark.parametrize("propagation", ["copy", "verify"])
def test_ids_that_the_model_does_not_have_are_one_line(t5, name, value, propagation, monkeypatch):
    monkeypatch.setattr(t5.network.generation_config, name, value)
    policy = ExitPolicy(
        threshold=0.5, propagation=propagation, max_draft=2 if propagation == "verify" else "auto"
    )
    for call in (lambda: generate(t5, INPUTS, policy), lambda: trace(t5, INPUTS, ["a"] * len(INPUTS))):
        with pytest.raises(MeeError, match=f"The model says {name}=.* to an id from 0 to") as caught:
            call()
        assert "\n" not in str(caught.value)


SETTINGS = {
    "forced_bos_token_id": 5,
    "forced_eos_token_id": 1,
    "no_repeat_ngram_size": 2,
    "encoder_no_repeat_ngram_size": 1,
    "repetition_penalty": 1.5,
    "encoder_repetition_penalty": 0.5,
    "min_length": 5,
    "min_new_tokens": 3,
    "suppress_tokens": [7],
    "begin_suppress_tokens": [7],
    "bad_words_ids": [[7]],
    "sequence_bias": {(7,): -10.0},
    "exponential_decay_length_penalty": (2, 1.5),
    "guidance_scale": 2.0,
    "max_time": 1.0,
    "stop_strings": ["house"],
}
NEUTRAL = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "max_length": 20,
    "do_sample": True,
    "num_beams": 4,
    "length_penalty": 2.0,
    "early_stopping": True,
    "temperature": 0.5,
    "renormalize_logits": True,
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_change_greedy_search_are_refused_by_name(checkpoint, tmp_path, name):
    model = stored_with(checkpoint, tmp_path, {})
    plain = generate(model, INPUTS, max_new_tokens=LENGTH).token_ids
    settings = model.network.generation_config
    settings.update(**{name: SETTINGS[name]})
    for policy in (None, ExitPolicy(), ExitPolicy(propagation="verify", max_draft=2)):
        with pytest.raises(MeeError, match=f"{name}=.*clear it for plain greedy search") as caught:
            generate(model, INPUTS, policy)
        assert "\n" not in str(caught.value)
    setattr(settings, name, None)
    assert generate(model, INPUTS, max_new_tokens=LENGTH).token_ids == plain


def test_neutral_settings_and_those_of_other_searches_are_passed_over(checkpoint, tmp_path):
    model = stored_with(checkpoint, tmp_path, {})
    plain = greedy(model, INPUTS, max_new_tokens=LENGTH)
    model.network.generation_config.update(**NEUTRAL)
    assert generate(model, INPUTS, max_new_tokens=LENGTH).token_ids == plain
    model.network.generation_config.update(no_repeat_ngram_size=2, min_length=3)
    with pytest.raises(MeeError, match="min_length=3, no_repeat_ngram_size=2"):
        generate(model, INPUTS)


def test_any_iterable_of_texts_will_do(t5):
    plain = generate(t5, INPUTS[:3], max_new_tokens=3).token_ids
    for inputs in (iter(INPUTS[:3]), tuple(INPUTS[:3]), np.array(INPUTS[:3]), (text for text in INPUTS[:3])):
        assert generate(t5, inputs, max_new_tokens=3).token_ids == plain
    assert generate(t5, INPUTS[0], max_new_tokens=3).token_ids == plain[:1]


def test_from_the_call_to_a_decision_few_files_run(tokenizer, monkeypatch):
    """Counted: files of ours whose functions are called until `decide` has returned for the first time.

    The decoder of the model is there (it is made once); one token, the softmax margin.
    """
    model = build_lively("t5", tokenizer)
    generate(model, INPUTS[:1], max_new_tokens=1)
    policy = ExitPolicy(threshold=0.5)
    folder = str(Path(mee_utils.__file__).parent)
    files, decided = set(), []

    def watch(frame, event, _):
        code = frame.f_code
        if code.co_filename.startswith(folder) and not decided:
            files.add(Path(code.co_filename).name)
            if event == "return" and code is decide.__code__:
                decided.append(True)

    sys.setprofile(watch)
    try:
        generate(model, INPUTS[:1], policy, max_new_tokens=1)
    finally:
        sys.setprofile(None)
    assert decided and {"generation.py", "layerwise.py", "token.py", "measures.py"} <= files
    assert len(files) <= 12, sorted(files)


def test_of_equal_logits_a_measure_sees_the_first_as_the_last_layer_does():
    class Tied:
        layers, norm = 4, staticmethod(lambda states: states)

        @staticmethod
        def logits(states):
            return torch.tensor([[1.0, 3.0, 3.0, 3.0], [0.0, 0.0, 1.0, 1.0]])

    state = torch.zeros(2, 4)
    bound = ExitPolicy(min_layer=1).bind(4, 4)
    fed = torch.zeros(2, dtype=torch.int64)
    step = Step(Tied(), bound, np.arange(2), 0, fed, source_ids=fed[:, None], source_rows=np.arange(2))
    now = ExitState(step, 1, state, state, np.arange(2))
    assert now.top1_id.tolist() == [1, 2] and now.margin.tolist() == [0, 0]


def test_of_equally_probable_tokens_the_trace_names_the_first():
    from mee_utils.traces.tracing import first_of_equals

    probabilities = torch.tensor([[0.1, 0.3, 0.3, 0.3], [0.7, 0.1, 0.1, 0.1]])
    for listed in ([2, 1], [3, 2], [1, 2]):
        found = first_of_equals(probabilities, torch.tensor([listed, [0, 3]]))
        assert found[0, 0] == 1 and len(set(found[0].tolist())) == 2 and found[1].tolist() == [0, 3]


def test_the_encoders_flops_are_what_a_profiler_counts(t5, synthetic_tasks):
    texts = synthetic_tasks["translation"].inputs[:2]
    counted = []
    for text in texts:
        encoded = t5.tokenizer(text, return_tensors="pt")
        profiler = FlopCounterMode(display=False)
        with sdpa_kernel(SDPBackend.MATH), torch.inference_mode(), profiler:
            t5.network.get_encoder()(**encoded)
        counted.append(profiler.get_total_flops())
    assert generate(t5, texts, max_new_tokens=1).encoder_flops.tolist() == counted
