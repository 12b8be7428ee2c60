"""Causal models decode with exits as exactly as encoder-decoders do."""

import numpy as np
import pytest
import torch
import transformers
from causal_models import CAUSAL_FAMILIES, SIZES, build_causal, greedy, prompts, uncached
from conftest import INPUTS, LENGTH
from reference import counted_and_profiled
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mee_utils import (
    AnyModel,
    Copies,
    ExitPolicy,
    ForcedExits,
    MeeError,
    generate,
    load_any_model,
    load_model,
    plan_drafts,
    replay,
    trace,
)
from mee_utils.decoding.from_transformers import decode_with_exits
from mee_utils.decoding.inputs import EncoderCache
from mee_utils.decoding.layerwise import LayerwiseDecoder
from mee_utils.models.costs import DecoderSizes, reading_flops

POLICIES = {
    "margin": ExitPolicy(threshold=0.4),
    "pruned": ExitPolicy(threshold=0.4, pruning="fixed", top_k=16, min_layer=1),
    "similarity": ExitPolicy("hidden_similarity", threshold=0.7),
    "patience": ExitPolicy("patience", threshold=1, min_layer=1),
    "contrast": ExitPolicy(threshold=0.3, contrast="weighted", min_layer=2),
    "parallel": ExitPolicy(threshold=0.4, exit_layers=(2,), propagation="parallel"),
    "oracle": ExitPolicy("oracle"),
}


@pytest.fixture(scope="module", params=list(CAUSAL_FAMILIES))
def model(request, tokenizer):
    return build_causal(request.param, tokenizer)


@pytest.fixture(scope="module")
def llama(tokenizer):
    return build_causal("llama", tokenizer)


def random_exits(seed, layers=4):
    return np.random.default_rng(seed).integers(1, layers + 1, size=(len(INPUTS), LENGTH))


@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_without_exits_it_is_generate_token_for_token(model, batch_size):
    expected = greedy(model, INPUTS)
    assert len(set(map(len, expected))) > 1, "rows must end at different places"
    found = generate(model, INPUTS, max_new_tokens=LENGTH, batch_size=batch_size)
    assert found.token_ids == expected
    assert all((layers == model.layers).all() for layers in found.exit_layers)


@pytest.mark.parametrize("propagation", ["copy", "parallel"])
@pytest.mark.parametrize("batch_size", [1, 7])
def test_forced_exits_are_those_of_passes_without_a_cache(model, batch_size, propagation):
    exits = random_exits(batch_size)
    policy = ExitPolicy(ForcedExits(exits), propagation=propagation)
    found = generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=batch_size)
    for index, text in enumerate(INPUTS):
        assert found.token_ids[index] == uncached(model, text, exits[index], propagation == "parallel")


@pytest.mark.parametrize("name", POLICIES)
def test_a_row_of_a_batch_gets_what_it_gets_alone(model, name):
    alone = generate(model, INPUTS, POLICIES[name], max_new_tokens=LENGTH, batch_size=1)
    together = generate(model, INPUTS, POLICIES[name], max_new_tokens=LENGTH, batch_size=7)
    assert together.token_ids == alone.token_ids
    for ours, theirs in zip(together.exit_layers, alone.exit_layers, strict=True):
        assert np.array_equal(ours, theirs)
    assert together.flops.tolist() == alone.flops.tolist()


@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_verified_exits_and_copies_change_no_token(model, batch_size):
    full = generate(model, INPUTS, max_new_tokens=LENGTH)
    verified = {"propagation": "verify", "max_draft": 4}
    drafted = 0
    for policy in (
        ExitPolicy(threshold=0.2, **verified),
        ExitPolicy(threshold=0.3, copies=Copies(), **verified),
        ExitPolicy(ForcedExits(random_exits(5)), **verified),
        ExitPolicy("hidden_similarity", threshold=0.6, min_layer=2, **verified),
        Copies(longest=2, max_draft=3),
    ):
        found = generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=batch_size)
        assert found.token_ids == full.token_ids
        drafted += sum(each.accepted for each in found.drafts)
    assert drafted > 0


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_drafts_of_a_layer_are_what_transformers_would_draft_there(model, layer):
    """`assistant_early_exit` accepts the same drafts: those that the layer predicts as the last one does."""
    found = trace(model, INPUTS, max_new_tokens=LENGTH)
    policy = ExitPolicy("static", min_layer=layer, propagation="verify", max_draft=1)
    out = generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=1)
    right = (found.top1_id[:, layer - 1] == found.final_id)[np.concatenate(out.exit_layers) == layer]
    assert right.all()


@pytest.mark.parametrize("propagation", ["copy", "parallel", "verify"])
def test_flops_are_those_that_torch_counts(model, propagation):
    decided = {"parallel": {"exit_layers": (2,)}, "verify": {"max_draft": 4, "min_layer": 1}}
    policy = ExitPolicy(threshold=0.3, propagation=propagation, **decided.get(propagation, {"min_layer": 1}))
    _, counted, profiled = counted_and_profiled(model, INPUTS[5], policy, LENGTH)
    assert sum(counted.values()) == profiled


def test_flops_of_reading_a_prompt_are_those_that_torch_counts(model):
    batch = prompts(model, INPUTS[5:6])
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.inference_mode():
        LayerwiseDecoder(model.network).encode(batch)
    length = batch["input_ids"].shape[1]
    counted = reading_flops(model.network.config, [length])[0]
    # torch counts attention to later tokens too, and what makes the rotations
    masked = 4 * DecoderSizes.of(model.network.config).inner * (length - 1) * (length - 2) // 2
    assert 0 <= counter.get_total_flops() - counted - model.layers * masked < 0.01 * counted


def test_a_replay_foretells_what_is_decoded(model, tmp_path):
    found = trace(model, INPUTS, states=tmp_path / "states.npy", max_new_tokens=LENGTH)
    assert found.token_id.tolist() == np.concatenate(greedy(model, INPUTS)).tolist()
    for name in ("margin", "pruned", "similarity", "oracle"):
        policy = POLICIES[name]
        first = [layers[0] for layers in generate(model, INPUTS, policy, max_new_tokens=LENGTH).exit_layers]
        foretold = replay(found, policy, model=model)[found.position == 0]
        assert first == foretold.tolist(), name  # later tokens depend on exits before them


def test_encodings_keep_what_was_read_of_prompts(llama):
    encodings = EncoderCache()
    options = {"max_new_tokens": LENGTH, "batch_size": 3}
    first = generate(llama, INPUTS, encodings=encodings, **options)
    llama.network.model.layers[0].register_forward_hook(lambda *_: pytest.fail("a prompt was read again"))
    try:
        with pytest.raises(MeeError, match="has a hook"):
            generate(llama, INPUTS, encodings=encodings, **options)
    finally:
        llama.network.model.layers[0]._forward_hooks.clear()
    assert generate(llama, INPUTS, encodings=encodings, **options).token_ids == first.token_ids


def test_a_prompt_may_be_one_token(llama):
    one = llama.tokenizer.decode([30])
    ids = [[30], llama.tokenizer(INPUTS[0]).input_ids]
    real = llama.tokenizer

    class Fixed:
        """The tokenizer with ids that no text has."""

        def __getattr__(self, name):
            return getattr(real, name)

        def __call__(self, texts, **_):
            from types import SimpleNamespace

            return SimpleNamespace(input_ids=ids[: len(texts)])

    llama.tokenizer = Fixed()
    try:
        together = generate(llama, [one, INPUTS[0]], max_new_tokens=LENGTH, batch_size=2).token_ids
        alone = generate(llama, [one], max_new_tokens=LENGTH, batch_size=1).token_ids
    finally:
        llama.tokenizer = real
    new = llama.network.generate(torch.tensor([[30]]), max_new_tokens=LENGTH, do_sample=False, pad_token_id=0)
    assert together[0] == alone[0] == new[0, 1 : 1 + len(alone[0])].tolist()
    assert together[1] == greedy(llama, INPUTS[:1])[0]


def test_outputs_longer_than_the_first_room(llama):
    model = llama
    end = model.network.generation_config.eos_token_id
    model.network.config.eos_token_id = model.network.generation_config.eos_token_id = None
    try:
        expected = model.network.generate(
            **prompts(model, INPUTS[:2]), max_new_tokens=150, do_sample=False, pad_token_id=0
        )
        policy = ExitPolicy(threshold=0.3, propagation="verify", max_draft=4)
        for each in (None, policy):
            found = generate(model, INPUTS[:2], each, max_new_tokens=150)
            assert found.token_ids == expected[:, -150:].tolist()
    finally:
        model.network.config.eos_token_id = model.network.generation_config.eos_token_id = end


@pytest.mark.parametrize("policy", [None, *POLICIES.values()], ids=["full depth", *POLICIES])
def test_generate_of_transformers_takes_exits(model, policy):
    ours = generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=7)
    batch = prompts(model, INPUTS)
    found = model.network.generate(
        **batch, custom_generate=decode_with_exits, exit_policy=policy, max_new_tokens=LENGTH, pad_token_id=0
    )
    given = batch["input_ids"].shape[1]
    assert torch.equal(found[:, :given], batch["input_ids"])
    new = [row[given : given + len(ids)].tolist() for row, ids in zip(found, ours.token_ids, strict=True)]
    assert new == ours.token_ids


def test_generate_of_transformers_refuses_padding_on_the_right(llama):
    batch = llama.tokenizer(INPUTS, padding=True, return_tensors="pt")
    with pytest.raises(MeeError, match="padding_side to 'left'"):
        llama.network.generate(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            custom_generate=decode_with_exits,
            max_new_tokens=3,
        )


def test_drafts_are_planned(llama):
    plan = plan_drafts(llama, INPUTS, max_new_tokens=LENGTH)
    assert plan.settings > 0
    planned = ExitPolicy(propagation="verify")
    full = generate(llama, INPUTS, max_new_tokens=LENGTH)
    assert generate(llama, INPUTS, planned, max_new_tokens=LENGTH).token_ids == full.token_ids


@pytest.mark.parametrize("loader", [load_model, load_any_model])
def test_a_checkpoint_is_loaded_with_its_tokenizer(llama, tmp_path, loader):
    llama.network.save_pretrained(tmp_path)
    llama.tokenizer.save_pretrained(tmp_path)
    loaded = loader(tmp_path, dtype="float64")
    assert loaded.causal and loaded.layers == 4 and "num key value heads" in loaded._repr_html_()
    expected = generate(llama, INPUTS, max_new_tokens=LENGTH).token_ids
    assert generate(loaded, INPUTS, max_new_tokens=LENGTH).token_ids == expected


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "sliding_attention"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}},
            'rotary positions of type "dynamic"',
        ),
    ],
)
def test_what_is_not_decoded_is_refused(tokenizer, changed, message):
    with pytest.raises(MeeError, match=message) as caught:
        build_causal("qwen2", tokenizer, **changed)
    assert "AnyModel takes it" in str(caught.value)


def test_what_is_not_decoded_is_still_traced(tokenizer, tmp_path):
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    config = transformers.Qwen2Config(vocab_size=len(tokenizer), **SIZES | windows)
    transformers.Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_any_model(tmp_path)
    assert isinstance(loaded, AnyModel) and len(trace(loaded, INPUTS, max_new_tokens=3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_types_of_numbers_decode_as_transformers_does(tokenizer, dtype):
    model = build_causal("qwen3", tokenizer, dtype=dtype)
    ours, theirs = generate(model, INPUTS, max_new_tokens=LENGTH).token_ids, greedy(model, INPUTS)
    same = np.mean([a[0] == b[0] for a, b in zip(ours, theirs, strict=True)])
    assert ours == theirs if dtype == torch.float32 else same > 0.8
