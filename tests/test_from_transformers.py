"""`model.generate` with exits: the same ids as `generate`, and whatever exits do not follow is refused."""

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch
from conftest import EXIT_FAMILIES, FAMILIES, INPUTS, LENGTH, build_lively, build_network
from transformers import DynamicCache, EncoderDecoderCache, StoppingCriteriaList
from transformers.generation import EosTokenCriteria, MaxLengthCriteria

import mee_utils
from mee_utils import ExitPolicy, MeeError, decode_with_exits, generate
from mee_utils.decoding.inputs import EncoderCache
from mee_utils.models.loading import Model

FOLDER = str(Path(mee_utils.__file__).parent / "decoding")
MARGIN = ExitPolicy("softmax_margin", threshold=0.02, min_layer=1)
POLICIES = {
    "full depth": None,
    "margin": MARGIN,
    "decaying": ExitPolicy("softmax_margin", threshold=0.02, min_layer=1, decay=4),
    "parallel": ExitPolicy("softmax_margin", threshold=0.02, min_layer=1, propagation="parallel"),
    "verified": ExitPolicy("softmax_margin", threshold=0.02, min_layer=1, propagation="verify", max_draft=4),
}


@pytest.fixture(scope="module")
def lively(tokenizer):
    return build_lively("t5-deep-decoder", tokenizer)


def encode(model):
    return model.tokenizer(INPUTS, padding=True, return_tensors="pt")


def run(model, policy, **options):
    options = {"custom_generate": decode_with_exits, "max_new_tokens": LENGTH} | options
    return model.network.generate(**encode(model), exit_policy=policy, **options)


def unpadded(model, sequences, lengths):
    return [row[1 : 1 + length].tolist() for row, length in zip(sequences, lengths, strict=True)]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("kind", EXIT_FAMILIES)
def test_ids_and_exit_layers_are_those_of_our_own_generate(tokenizer, kind, policy):
    model = build_lively(kind, tokenizer)
    ours = generate(model, INPUTS, policy, max_new_tokens=LENGTH)
    theirs = run(model, policy, return_dict_in_generate=True)
    lengths = [len(ids) for ids in ours.token_ids]
    assert unpadded(model, theirs.sequences, lengths) == ours.token_ids
    for row, layers, length in zip(theirs.exit_layers, ours.exit_layers, lengths, strict=True):
        assert np.array_equal(row[:length], layers)
        assert not row[length:].any()
    assert theirs.sequences.shape[1] == 1 + max(lengths)
    if policy is not None and policy.propagation != "verify":  # whose random drafts may all be wrong
        assert any((layers < model.layers).any() for layers in ours.exit_layers)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_policy_the_tensor_is_that_of_transformers(family, tokenizer):
    network = build_network(family, len(tokenizer)).eval()
    batch = tokenizer(INPUTS, padding=True, return_tensors="pt")
    settings = {"max_new_tokens": LENGTH, "do_sample": False, "num_beams": 1, "use_cache": False}
    expected = network.generate(**batch, **settings)
    assert torch.equal(network.generate(**batch, **settings, custom_generate=decode_with_exits), expected)


def test_the_folder_is_what_transformers_loads(lively, monkeypatch, tmp_path):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    trusted = {"custom_generate": FOLDER, "trust_remote_code": True}
    assert torch.equal(run(lively, MARGIN, **trusted), run(lively, MARGIN))
    with pytest.raises(MeeError, match="without a streamer"):
        run(lively, MARGIN, **trusted, streamer=object())


def test_start_and_end_ids_are_those_of_the_call(lively):
    full = run(lively, None)
    settings = {"max_new_tokens": LENGTH, "eos_token_id": int(full[0, 3])}
    expected = lively.network.generate(**encode(lively), **settings, use_cache=False)
    assert not torch.equal(expected, full)
    assert torch.equal(run(lively, None, **settings), expected)
    start = run(lively, MARGIN, decoder_start_token_id=7)
    assert (start[:, 0] == 7).all()
    assert torch.equal(run(lively, None), full)  # and the next call has its own again


def test_criteria_of_the_call_stop_an_output(lively):
    """Before, a length or end ids that a call gave as criteria changed nothing, without a word."""
    full = run(lively, None)
    for criterion in (
        MaxLengthCriteria(3),
        EosTokenCriteria(eos_token_id=int(full[0, 2])),
        EosTokenCriteria(eos_token_id=[int(full[0, 2]), int(full[1, 1])]),
    ):
        stops = {"max_new_tokens": LENGTH, "stopping_criteria": StoppingCriteriaList([criterion])}
        expected = lively.network.generate(**encode(lively), **stops, use_cache=False)
        assert not torch.equal(expected, full)
        assert torch.equal(run(lively, None, **stops), expected)


@pytest.mark.parametrize("value", [600, -1, [1, 600]])
def test_end_ids_of_a_call_that_the_model_does_not_have_are_one_line(lively, value):
    """Before, such an id ended no output, without a word."""
    with pytest.raises(MeeError, match=r"The model says eos_token_id=.* to an id from 0 to") as caught:
        run(lively, MARGIN, eos_token_id=value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "follow no num_beams=2"),
        ({"do_sample": True}, "follow no do_sample=True"),
        ({"do_sample": True, "num_return_sequences": 2}, "num_return_sequences=2"),
        ({"repetition_penalty": 1.5}, "RepetitionPenaltyLogitsProcessor"),
        ({"min_new_tokens": 3}, "MinNewTokensLengthLogitsProcessor"),
        ({"max_time": 3.0}, "MaxTimeCriteria"),
        ({"penalty_alpha": 0.6, "top_k": 4}, r"penalty_alpha=0\.6"),
        ({"force_words_ids": [[5]]}, r"force_words_ids=\[\[5\]\]"),
        ({"dola_layers": "high"}, "dola_layers='high'"),
        ({"prompt_lookup_num_tokens": 2}, "prompt_lookup_num_tokens=2"),
        ({"decoder_start_token_id": 9999}, "decoder_start_token_id=9999"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores=True"),
        ({"decoder_input_ids": torch.zeros(len(INPUTS), 2, dtype=torch.long)}, "decoder_input_ids"),
    ],
)
def test_what_exits_do_not_follow_is_refused_by_name(lively, options, message):
    with pytest.raises(MeeError, match=message):
        run(lively, MARGIN, **options)


def test_a_policy_that_fits_nothing_is_refused(lively, tokenizer):
    with pytest.raises(MeeError, match="names no max_draft: give one"):
        run(lively, ExitPolicy("softmax_margin", threshold=0.5, propagation="verify"))
    with pytest.raises(MeeError, match=r"exit_policy=0\.9: give ExitPolicy"):
        run(lively, 0.9)
    network = build_network("t5", len(tokenizer)).train()
    with pytest.raises(MeeError, match="training mode"):
        run(Model(network, tokenizer, "training"), MARGIN)


def test_another_family_is_refused_in_one_line(tokenizer):
    from transformers import GPT2Config, GPT2LMHeadModel

    network = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=20)).eval()
    ids = torch.tensor([[3, 4]])
    with pytest.raises(MeeError, match='is a "gpt2"'):
        network.generate(ids, custom_generate=decode_with_exits, exit_policy=MARGIN, max_new_tokens=2)


def test_a_model_without_an_id_for_padding_pads_as_transformers_does(lively):
    """With the end id; before, with 0."""
    network = copy.deepcopy(lively.network)
    network.generation_config.pad_token_id = network.config.pad_token_id = None
    full = run(lively, None)
    row = int((full[:, -1] != 0).nonzero()[0])  # an output of full length
    end = int(full[row, -3])
    settings = {"max_new_tokens": LENGTH, "pad_token_id": None, "eos_token_id": end, "use_cache": False}
    expected = network.generate(**encode(lively), **settings)
    found = network.generate(**encode(lively), **settings, custom_generate=decode_with_exits)
    assert torch.equal(found, expected)
    assert end != 0 and (expected[row, -2:] == end).all(), "the padding shows"


def test_encoder_states_may_be_a_tuple(lively):
    batch = encode(lively)
    with torch.inference_mode():
        encoded = lively.network.get_encoder()(**batch)[0]
    given = {"encoder_outputs": (encoded,), "max_new_tokens": LENGTH}
    found = lively.network.generate(**batch, **given, custom_generate=decode_with_exits)
    assert torch.equal(found, run(lively, None))


def test_a_mask_that_fits_no_input_is_one_line(lively):
    batch = encode(lively)
    settings = {"max_new_tokens": 3, "custom_generate": decode_with_exits}
    with torch.inference_mode():
        encoded = lively.network.get_encoder()(**batch)
    narrow = batch["attention_mask"][:, :-1]
    with pytest.raises(MeeError, match=r"^attention_mask is \[\d+, \d+\], and the inputs are"):
        lively.network.generate(
            input_ids=batch["input_ids"], attention_mask=narrow, encoder_outputs=encoded, **settings
        )
    batch["attention_mask"][1] = 0
    with pytest.raises(MeeError, match=r"^attention_mask hides all tokens of an input: leave that input out"):
        lively.network.generate(**batch, **settings)


def test_a_network_from_no_folder_reads_no_manifest(lively, tmp_path, monkeypatch):
    """Before, that of the folder in which the program ran said where exits begin."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "manifest.json").write_text('{"min_exit_layer": 40}')
    monkeypatch.setattr(lively.network, "name_or_path", "")
    policy = ExitPolicy("softmax_margin", threshold=0.02)
    assert torch.equal(run(lively, policy), run(lively, replace(policy, min_layer=lively.layers // 2)))


class WithAdapter(torch.nn.Module):
    """As peft puts it in place of a linear layer: `weight` is that of the layer below."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = torch.nn.Linear(base_layer.in_features, 2, bias=False)
        self.lora_B = torch.nn.Linear(2, base_layer.out_features, bias=False)

    @property
    def weight(self):
        return self.base_layer.weight

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


@pytest.mark.parametrize("place", ["q", "wo", "lm_head"])
def test_an_adapter_beside_its_weights_is_refused(lively, place):
    """Before, the model was decoded without its adapter, and nobody said so."""
    network = copy.deepcopy(lively.network)
    layer = network.get_decoder().block[1].layer
    parent = {"q": layer[0].SelfAttention, "wo": layer[-1].DenseReluDense, "lm_head": network}[place]
    setattr(parent, place, WithAdapter(getattr(parent, place)).to(network.dtype))
    with pytest.raises(
        MeeError, match=r"WithAdapter stands where the model has a plain Linear: merge the adapter"
    ):
        generate(Model(network, lively.tokenizer, "adapted"), INPUTS)


def test_weights_that_were_quantized_in_memory_are_refused(lively):
    """Before: AttributeError: 'function' object has no attribute 'shape'."""
    network = copy.deepcopy(lively.network).float()
    quantized = torch.ao.quantization.quantize_dynamic(network, {torch.nn.Linear})
    with pytest.raises(MeeError, match=r"stands where the model has a plain Linear: .* without quantization"):
        generate(Model(quantized, lively.tokenizer, "quantized"), INPUTS)


def own(model, **options):
    """What `transformers` writes, without exits."""
    return model.network.generate(**encode(model), max_new_tokens=LENGTH, use_cache=False, **options)


def plainly(network, tokenizer):
    return generate(Model(network, tokenizer, "changed"), INPUTS, max_new_tokens=3)


def with_bias(parent, name):
    plain = getattr(parent, name)
    biased = torch.nn.Linear(plain.in_features, plain.out_features, bias=True, dtype=plain.weight.dtype)
    biased.weight = plain.weight
    setattr(parent, name, biased)


def feed_forward(network):
    return network.get_decoder().block[1].layer[-1]


def watched(module, *call):
    return None


class Louder(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


BEYOND = {
    "bias of the head": (lambda n: with_bias(n, "lm_head"), r"lm_head\.bias is \[\d+\], and by the settings"),
    "bias of a projection": (
        lambda n: with_bias(feed_forward(n).DenseReluDense, "wo"),
        r"decoder\.block\.1\.layer\.2\.DenseReluDense\.wo\.bias is \[32\].* None",
    ),
    "hook on a layer": (
        lambda n: n.get_decoder().block[2].register_forward_hook(watched),
        r"decoder\.block\.2 has a hook \(<function watched.*handle\.remove\(\)",
    ),
    "hook before the head": (lambda n: n.lm_head.register_forward_pre_hook(watched), "lm_head has a hook"),
    "hook on the network": (lambda n: n.register_forward_hook(watched), "The network has a hook"),
    "hook with keywords": (
        lambda n: n.get_decoder().register_forward_pre_hook(lambda *call: None, with_kwargs=True),
        "decoder has a hook",
    ),
    "another norm": (
        lambda n: setattr(feed_forward(n), "layer_norm", torch.nn.LayerNorm(32).double()),
        "A torch.nn.modules.normalization.LayerNorm stands where the model has a plain T5LayerNorm",
    ),
    "in place of dropout": (
        lambda n: setattr(feed_forward(n), "dropout", torch.nn.Linear(32, 32).double()),
        "Linear stands where the model has a plain Dropout",
    ),
    "another feed-forward": (
        lambda n: setattr(feed_forward(n), "DenseReluDense", torch.nn.Identity()),
        "Identity stands where the model has a plain T5DenseActDense: .* or put the plain one back",
    ),
    "a linear layer of one's own": (
        lambda n: setattr(n, "lm_head", Louder(32, 600, bias=False)),
        "Louder stands where the model has a plain Linear",
    ),
    "forward replaced": (
        lambda n: setattr(n.lm_head, "forward", lambda x: 0 * x),
        "forward of lm_head was replaced",
    ),
    "steps replaced": (
        lambda n: setattr(n, "prepare_inputs_for_generation", lambda *call, **named: {}),
        "prepare_inputs_for_generation of the network was replaced",
    ),
    "fewer heads": (
        lambda n: setattr(
            n.get_decoder().block[0].layer[0].SelfAttention, "q", torch.nn.Linear(32, 16, False).double()
        ),
        r"SelfAttention\.q\.weight is \[16, 32\], and by the settings of the model \[32, 32\]",
    ),
    "mixed types": (
        lambda n: feed_forward(n.to(torch.bfloat16)).DenseReluDense.wo.float(),
        r"of several types \(torch.bfloat16, torch.float32\): .* as in model\.network\.float\(\)",
    ),
}


@pytest.mark.parametrize("after_a_decode", [False, True])
@pytest.mark.parametrize("what", BEYOND)
def test_what_a_module_does_beyond_its_weight_is_refused(lively, what, after_a_decode):
    """Before, most of these were left out without a word, the more so once a decoder was stored."""
    change, message = BEYOND[what]
    network = copy.deepcopy(lively.network)
    if after_a_decode:
        plainly(network, lively.tokenizer)
    change(network)
    with pytest.raises(MeeError, match=message) as caught:
        plainly(network, lively.tokenizer)
    assert "\n" not in str(caught.value)


def test_what_a_module_does_to_its_own_weight_is_followed(lively):
    """Before, a second pruning after a decode changed nothing: masks are buffers, and no parameters."""
    from torch.nn.utils import parametrizations, prune

    model = copy.copy(lively)
    model.network = copy.deepcopy(lively.network)
    wo = feed_forward(model.network).DenseReluDense.wo
    found = [run(model, None)]

    def changed():
        found.append(run(model, None))
        assert torch.equal(found[-1], own(model)) and not torch.equal(found[-1], found[-2])

    for amount in (0.5, 0.9):
        prune.ln_structured(wo, "weight", amount, n=2, dim=0)
        changed()
    with torch.no_grad():
        wo.weight_orig.neg_()  # its hook makes `weight` anew
    changed()
    parametrizations.weight_norm(model.network.lm_head)
    with torch.no_grad():
        model.network.lm_head.parametrizations.weight.original1[7:].neg_()
    changed()


def test_what_runs_as_it_is_may_be_anything(lively):
    """The encoder, activations and what does nothing: hooks of `output_hidden_states` stay on each layer."""
    model = copy.copy(lively)
    model.network = copy.deepcopy(lively.network)
    cache = EncoderCache()
    generate(model, INPUTS, max_new_tokens=3, encodings=cache)
    with torch.inference_mode():
        model.network(
            **encode(model), decoder_input_ids=encode(model)["input_ids"], output_hidden_states=True
        )
    generate(model, INPUTS, max_new_tokens=3, encodings=cache)
    model.network.encoder.block[0].register_forward_hook(lambda module, given, made: (2 * made[0], *made[1:]))
    with pytest.raises(MeeError, match="other weights"):
        generate(model, INPUTS, max_new_tokens=3, encodings=cache)
    feed_forward(model.network).dropout = torch.nn.Identity()
    feed_forward(model.network).DenseReluDense.act = torch.nn.Tanh()
    model.network.get_decoder().probe = torch.nn.Linear(3, 3)
    assert torch.equal(run(model, None), own(model)) and not torch.equal(own(model), own(lively))


def test_a_decoder_without_its_first_layer_has_no_position_bias(lively):
    """Before, an AttributeError."""
    model = copy.copy(lively)
    model.network = copy.deepcopy(lively.network)
    model.network.decoder.block = model.network.decoder.block[1:]
    assert torch.equal(run(model, None), own(model))


def test_a_network_that_is_not_needed_any_longer_is_forgotten(lively):
    network = copy.deepcopy(lively.network)
    plainly(network, lively.tokenizer)
    gone = weakref.ref(network)
    del network
    gc.collect()
    assert gone() is None


def test_a_prefix_is_refused(lively):
    """Before, it was left out without a word, where `transformers` goes on from it."""
    with torch.inference_mode():
        begun = lively.network(
            **encode(lively), decoder_input_ids=torch.zeros(len(INPUTS), 1, dtype=torch.long)
        ).past_key_values
    with pytest.raises(MeeError, match="their start: leave past_key_values out, which hold tokens"):
        run(lively, MARGIN, past_key_values=begun)
    empty = EncoderDecoderCache(DynamicCache(), DynamicCache())
    assert torch.equal(run(lively, None, past_key_values=empty), run(lively, None))
    with pytest.raises(MeeError, match="their start: leave decoder_attention_mask out"):
        run(lively, MARGIN, decoder_attention_mask=torch.ones(len(INPUTS), 1))


def test_autocast_is_refused(lively):
    """Before, whatever exits ended in a RuntimeError."""
    model = copy.copy(lively)
    model.network = copy.deepcopy(lively.network).float()
    for policy in (None, MARGIN):
        with (
            torch.autocast("cpu", torch.bfloat16),
            pytest.raises(MeeError, match=r"^torch\.autocast is on, and"),
        ):
            run(model, policy)


def test_two_calls_at_a_time_keep_their_own_start_and_end_ids(lively):
    """Before, both wrote them into the one decoder of the network, and either could end at the other's."""
    full = run(lively, None)
    settings = [{"eos_token_id": int(full[0, 3])}, {"decoder_start_token_id": 7, "eos_token_id": []}]
    expected = [run(lively, MARGIN, **each) for each in settings]
    begun = Barrier(2)

    class Together(type(MARGIN.measure)):
        def check_model(self, model):  # the last thing before decoding
            begun.wait(timeout=60)

    policy = replace(MARGIN, measure=Together())
    with ThreadPoolExecutor() as threads:
        found = [threads.submit(run, lively, policy, **each) for each in settings]
    assert all(torch.equal(each.result(), wanted) for each, wanted in zip(found, expected, strict=True))
