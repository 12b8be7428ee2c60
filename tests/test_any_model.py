"""Traces of models of other families: tiny, with random weights."""

import numpy as np
import pytest
import torch
import transformers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5GemmaConfig,
    T5GemmaForConditionalGeneration,
)

from mee_utils import (
    AnyModel,
    ExitPolicy,
    MeeError,
    generate,
    load_any_model,
    load_task,
    load_trace,
    replay,
    trace,
)
from mee_utils.analysis.comparison import replayed_row
from mee_utils.analysis.survey import output_losses
from mee_utils.decoding.layerwise import start_and_end_ids
from mee_utils.traces.replay import replay_policy

LAYERS = 3
WIDTH = 32
INPUTS = ["question: what is red? context: a house", "translate", "question: who? context: the man and a dog"]
SIZES = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "intermediate_size": 48}


def gemma_sizes(vocabulary):
    return SIZES | {"vocab_size": vocabulary, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 64}


def t5gemma(vocabulary, ids):
    sizes = gemma_sizes(vocabulary)
    return T5GemmaConfig(encoder=sizes, decoder=sizes, **ids)


FAMILIES = {
    "gpt2": (
        GPT2LMHeadModel,
        lambda v, ids: GPT2Config(vocab_size=v, n_embd=WIDTH, n_layer=LAYERS, n_head=4, **ids),
    ),
    "llama": (
        LlamaForCausalLM,
        lambda v, ids: LlamaConfig(vocab_size=v, num_key_value_heads=2, **SIZES, **ids),
    ),
    "qwen2": (
        Qwen2ForCausalLM,
        lambda v, ids: Qwen2Config(vocab_size=v, num_key_value_heads=2, **SIZES, **ids),
    ),
    "pythia": (GPTNeoXForCausalLM, lambda v, ids: GPTNeoXConfig(vocab_size=v, **SIZES, **ids)),
    "opt": (
        OPTForCausalLM,
        lambda v, ids: OPTConfig(
            vocab_size=v,
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            ffn_dim=48,
            word_embed_proj_dim=WIDTH,
            **ids,
        ),
    ),
    "bart": (
        BartForConditionalGeneration,
        lambda v, ids: BartConfig(
            vocab_size=v,
            d_model=WIDTH,
            encoder_layers=2,
            decoder_layers=LAYERS,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            forced_eos_token_id=None,
            **ids,
        ),
    ),
    "t5gemma": (T5GemmaForConditionalGeneration, t5gemma),
}


@pytest.fixture(scope="module", params=list(FAMILIES))
def model(request, t5):
    family, config = FAMILIES[request.param]
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0}
    torch.manual_seed(1)
    network = family(config(len(t5.tokenizer), ids))
    for name, weight in network.named_parameters():
        if weight.dim() > 1:  # so that layers disagree
            torch.nn.init.normal_(weight, std=0.3)
        elif "norm" in name or "ln_f" in name:  # and a norm that is applied twice shows
            torch.nn.init.normal_(weight, 1.0 if name.endswith("weight") else 0.0, 0.5)
    return AnyModel(network, t5.tokenizer, request.param)


@pytest.fixture(scope="module")
def traced(model, tmp_path_factory):
    states = tmp_path_factory.mktemp("any") / "states.npy"
    return trace(model, INPUTS, max_new_tokens=6, batch_size=2, states=states)


def own_logits(model, number, ids):
    """Logits `[token, vocabulary]` of one input alone, as the network itself gives them."""
    prompt = model.tokenizer(INPUTS[number]).input_ids
    ids = ids.tolist()
    with torch.inference_mode():
        if model.causal:
            logits = model.network(torch.tensor([[*prompt, *ids[:-1]]])).logits
            return logits[0, len(prompt) - 1 :]
        return model.network(torch.tensor([prompt]), decoder_input_ids=torch.tensor([[0, *ids[:-1]]])).logits[
            0
        ]


def test_the_last_layer_predicts_the_models_own_greedy_output(model, traced):
    assert np.array_equal(traced.final_id, traced.token_id) and traced.layers == LAYERS
    for number, ids in enumerate(traced.by_output(traced.token_id)):
        prompt = model.tokenizer([INPUTS[number]], return_tensors="pt")
        with torch.inference_mode():
            alone = model.network.generate(
                input_ids=prompt.input_ids,
                attention_mask=prompt.attention_mask,
                max_new_tokens=6,
                do_sample=False,
                num_beams=1,
            )
        own = alone[0, prompt.input_ids.shape[1] if model.causal else 1 :].tolist()
        assert own == ids.tolist()


def test_the_state_after_the_last_layer_is_normed_once(model, traced):
    probability = traced.by_output(traced.token_probability[:, -1])
    for number, ids in enumerate(traced.by_output(traced.token_id)):
        logits = own_logits(model, number, ids)
        expected = torch.softmax(logits, -1).gather(1, torch.as_tensor(ids, dtype=torch.long)[:, None])[:, 0]
        assert np.allclose(probability[number], expected, atol=1e-5)
    assert np.allclose(traced.final_similarity[:, -1], 1)
    assert (traced.top1_id != traced.final_id[:, None]).any(), "layers that all agree would hide a mistake"


def test_states_are_raw_and_kept(model, traced):
    assert traced.states.shape == (len(traced), LAYERS, WIDTH)
    last = torch.from_numpy(np.array(traced.states[:, -1]))
    with torch.inference_mode():
        predicted = model.logits(model.norm(last)).argmax(-1)
    assert np.array_equal(predicted, traced.token_id)


def test_rules_on_probabilities_and_similarities_replay_on_it(model, traced, tmp_path):
    stored = load_trace(traced.save(tmp_path / "trace.safetensors"))
    for name in ("softmax_margin", "hidden_similarity", "rising_top1"):
        policy = ExitPolicy(name, threshold=0.0 if name == "rising_top1" else 0.5, min_layer=1)
        layers = replay(stored, policy)
        assert ((layers >= 1) & (layers <= LAYERS)).all()
        assert 0 < replayed_row(replay_policy(stored, policy))["flops_share"] < 3  # logits cost much here
    assert np.array_equal(
        replay(stored, ExitPolicy("softmax_margin", threshold=1.0, min_layer=1)), [LAYERS] * len(stored)
    )


def test_consistency_losses_of_whole_outputs_replay_on_it(model, traced, monkeypatch):
    """They asked for the id that a T5's outputs begin after, which a causal model need not have."""
    task = load_task("translation", limit=len(INPUTS))
    for settings in (model.network.generation_config, model.network.config):
        for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
            monkeypatch.setattr(settings, name, None, raising=False)
    with pytest.raises(MeeError, match="no decoder_start_token_id"):
        start_and_end_ids(model.network)
    losses = output_losses(traced, model, task)
    assert losses(traced.final_id).tolist() == [0.0] * len(INPUTS)
    first_layer = losses(traced.top1_id[:, 0])
    assert ((first_layer >= 0) & (first_layer <= 1)).all() and first_layer.max() > 0


def test_along_references_and_in_any_batch_it_is_the_same(model):
    along = {size: trace(model, INPUTS, ["a red house", "no", "a dog"], batch_size=size) for size in (1, 3)}
    assert along[1].along == "reference"
    assert np.array_equal(along[1].token_id, along[3].token_id)
    for name in ("token_probability", "similarity", "entropy", "final_similarity"):
        assert np.allclose(getattr(along[1], name), getattr(along[3], name), atol=1e-4)


def test_decoding_with_exits_stays_t5s_and_says_so(model):
    with pytest.raises(MeeError, match=r"give what load_model returns; of other families .* replay\(trace"):
        generate(model, INPUTS)


def test_a_t5_traced_as_any_model_gives_the_same_trace(t5):
    ours = trace(t5, INPUTS, max_new_tokens=6)
    any_model = AnyModel(t5.network, t5.tokenizer, t5.name)
    theirs = trace(any_model, INPUTS, max_new_tokens=6)
    assert np.array_equal(ours.token_id, theirs.token_id) and ours.fingerprint == theirs.fingerprint
    assert np.array_equal(ours.top1_id, theirs.top1_id) and ours.source_tokens == theirs.source_tokens
    for name in ("top_probabilities", "similarity", "entropy", "final_similarity", "token_probability"):
        assert np.allclose(getattr(ours, name), getattr(theirs, name), atol=1e-5), name
    assert ours.sizes == theirs.sizes


def test_what_writes_no_text_is_refused(t5):
    config = FAMILIES["bart"][1](64, {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0})
    with pytest.raises(MeeError, match="BartModel predicts no tokens: give one with an LM head"):
        AnyModel(BartModel(config), t5.tokenizer, "bart")
    with pytest.raises(MeeError, match=r"network=str: give a model of transformers"):
        AnyModel("gpt2", t5.tokenizer, "gpt2")
    with pytest.raises(MeeError, match=r"model=str: give what load_model returns, or an AnyModel"):
        trace("gpt2", INPUTS)


@pytest.mark.parametrize("family", ["Bert", "Roberta", "Electra"])
def test_an_encoder_with_an_lm_head_is_refused_for_what_it_is(family, t5, tmp_path):
    """Before, its logits were said not to be its LM head after its final norm."""
    config = getattr(transformers, f"{family}Config")(vocab_size=len(t5.tokenizer), **SIZES)
    writes_no_text = (
        f'"{family.lower()}" model that reads later tokens too, so that it writes no text: give a'
    )
    network = getattr(transformers, f"{family}ForMaskedLM")(config)
    with pytest.raises(MeeError, match=writes_no_text):
        AnyModel(network, t5.tokenizer, "encoder")
    network.save_pretrained(tmp_path)
    t5.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(MeeError, match=writes_no_text):
        load_any_model(tmp_path)


def test_a_checkpoint_of_no_language_model_is_refused_by_its_kind(tmp_path, t5):
    """Before, its weights could not be read, and were to be copied again."""
    for family in ("DistilBert", "ViT"):
        getattr(transformers, f"{family}Config")().save_pretrained(tmp_path)
        t5.tokenizer.save_pretrained(tmp_path)
        with pytest.raises(MeeError, match="checkpoint, and no such model writes text: give an encoder-dec"):
            load_any_model(tmp_path)


def test_logits_that_are_more_than_head_and_norm_are_an_error(t5):
    class Odd(GPT2LMHeadModel):
        def forward(self, *given, **named):
            output = super().forward(*given, **named)
            output.logits = output.logits * 2
            return output

    network = Odd(FAMILIES["gpt2"][1](len(t5.tokenizer), {"eos_token_id": 1}))
    with pytest.raises(MeeError, match="The logits of Odd are not its LM head after its final norm"):
        trace(AnyModel(network, t5.tokenizer, "odd"), INPUTS, ["a", "b", "c"])


def test_a_state_that_is_projected_before_the_head_is_one_line(t5):
    """OPT-350m: before, `torch.stack` failed on states of two widths."""
    sizes = {"hidden_size": 32, "word_embed_proj_dim": 16, "num_attention_heads": 4, "ffn_dim": 48}
    config = transformers.OPTConfig(
        vocab_size=len(t5.tokenizer), num_hidden_layers=2, do_layer_norm_before=False, **sizes
    )
    model = AnyModel(transformers.OPTForCausalLM(config), t5.tokenizer, "opt")
    with pytest.raises(MeeError, match="projects its last state from 32 to 16 numbers"):
        trace(model, INPUTS, ["a", "b", "c"])


def test_stored_settings_that_change_greedy_search_do_not_reach_a_trace(t5):
    """BART stores forced ids and no_repeat_ngram_size: the output had tokens that no layer predicted."""
    config = FAMILIES["gpt2"][1](len(t5.tokenizer), {})
    model = AnyModel(GPT2LMHeadModel(config), t5.tokenizer, "gpt2")
    plain = trace(model, INPUTS, max_new_tokens=6)
    stored = model.network.generation_config
    stored.repetition_penalty = 5.0
    stored.no_repeat_ngram_size = 1
    stored.forced_eos_token_id = 1
    traced = trace(model, INPUTS, max_new_tokens=6)
    assert np.array_equal(traced.token_id, plain.token_id)
    assert (traced.token_id == traced.final_id).all()
    assert model.network.generation_config is stored and stored.repetition_penalty == 5.0
