"""Traces of models of other families: tiny, with random weights."""

import copy

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
from mee_utils.models.families import CAUSAL
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
    if model.config.model_type in CAUSAL:
        assert start_and_end_ids(model.network)[0] is None
    else:
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
            output.logits = output.logits.tanh()
            return output

        def generate(self, *given, **named):
            raise AssertionError("hours of decoding come before the error")

    network = Odd(FAMILIES["gpt2"][1](len(t5.tokenizer), {"eos_token_id": 1}))
    for references in (["a", "b", "c"], None):
        with pytest.raises(MeeError, match="The logits of Odd are not its LM head after its final norm"):
            trace(AnyModel(network, t5.tokenizer, "odd"), INPUTS, references)


def test_a_state_that_is_projected_before_the_head_is_one_line(t5):
    """OPT-350m: before, `torch.stack` failed on states of two widths."""
    sizes = {"hidden_size": 32, "word_embed_proj_dim": 16, "num_attention_heads": 4, "ffn_dim": 48}
    config = transformers.OPTConfig(
        vocab_size=len(t5.tokenizer), num_hidden_layers=2, do_layer_norm_before=False, **sizes
    )
    with pytest.raises(MeeError, match=r"or projects its last state \(from 32 to 16\)"):
        AnyModel(transformers.OPTForCausalLM(config), t5.tokenizer, "opt")


def test_stored_settings_that_change_greedy_search_do_not_reach_a_trace(t5):
    """BART stores forced ids and no_repeat_ngram_size: the output had tokens that no layer predicted."""
    config = FAMILIES["gpt2"][1](len(t5.tokenizer), {})
    model = AnyModel(GPT2LMHeadModel(config), t5.tokenizer, "gpt2")
    plain = trace(model, INPUTS, max_new_tokens=6)
    stored = model.network.generation_config
    stored.repetition_penalty = 5.0
    stored.no_repeat_ngram_size = 1
    stored.forced_eos_token_id = 1
    with pytest.warns(
        UserWarning, match=r"gpt2 is traced along plain .*: forced_eos_token_id=1, no_repeat"
    ) as said:
        traced = trace(model, INPUTS, max_new_tokens=6)
    assert said[0].filename == __file__, "the warning points at the call"
    assert np.array_equal(traced.token_id, plain.token_id)
    assert (traced.token_id == traced.final_id).all()
    assert model.network.generation_config is stored and stored.repetition_penalty == 5.0


def causal(t5):
    network, config = FAMILIES["gpt2"]
    torch.manual_seed(1)
    return AnyModel(network(config(len(t5.tokenizer), {"eos_token_id": 1})), t5.tokenizer, "gpt2")


SEARCHES = {
    "return_dict_in_generate": True,
    "num_return_sequences": 2,
    "penalty_alpha": 0.6,
    "dola_layers": "low",
    "prompt_lookup_num_tokens": 3,
    "assistant_early_exit": 1,
    "is_assistant": True,
    "num_beams": 3,
    "do_sample": True,
}


@pytest.mark.parametrize("name", SEARCHES)
def test_other_searches_stored_with_a_model_do_not_reach_a_trace(name, t5):
    """Before, each was a traceback of transformers, or another output."""
    model = causal(t5)
    plain = trace(model, INPUTS, max_new_tokens=6)
    setattr(model.network.generation_config, name, SEARCHES[name])
    assert np.array_equal(trace(model, INPUTS, max_new_tokens=6).token_id, plain.token_id)
    assert getattr(model.network.generation_config, name) == SEARCHES[name]


def test_a_model_that_reads_padding_is_refused_in_batches(t5):
    """Before, it wrote one thing in a batch and the trace was of another; one input at a time is right."""

    class Unmasked(GPT2LMHeadModel):
        def forward(self, input_ids=None, attention_mask=None, position_ids=None, **named):
            return super().forward(input_ids, **named)

    torch.manual_seed(1)
    network = Unmasked(FAMILIES["gpt2"][1](len(t5.tokenizer), {"eos_token_id": None}))
    for weight in network.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    model = AnyModel(network, t5.tokenizer, "unmasked")
    with pytest.raises(MeeError, match=r"^For \d+% of the tokens that unmasked wrote.*use batch_size=1\.$"):
        trace(model, INPUTS, max_new_tokens=8)
    alone = trace(model, INPUTS, max_new_tokens=8, batch_size=1)
    assert (alone.final_id == alone.token_id).all()


SCALED = {
    "cohere": ("Cohere", {"logit_scale": 0.25, "num_key_value_heads": 4}),
    "granite": ("Granite", {"logits_scaling": 8.0, "num_key_value_heads": 4}),
}


@pytest.mark.parametrize("name", SCALED)
def test_a_constant_factor_of_the_logits_is_found(name, t5):
    """Before, such models could not be traced."""
    family, options = SCALED[name]
    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(vocab_size=len(t5.tokenizer), **SIZES, **options)
    network = getattr(transformers, f"{family}ForCausalLM")(config)
    model = AnyModel(network, t5.tokenizer, name)
    found = trace(model, INPUTS, max_new_tokens=6)
    assert (found.final_id == found.token_id).all()
    first = torch.tensor([t5.tokenizer(INPUTS[0]).input_ids])
    with torch.inference_mode():
        own = torch.softmax(network(first).logits[0, -1], -1)
    assert found.top_probabilities[0, -1, 0] == pytest.approx(own.max().item(), rel=1e-4)


WIDE = 56  # of a feed-forward layer, which no default is
FEED_FORWARD = {
    "Bart": {"decoder_ffn_dim": WIDE, "encoder_ffn_dim": 40, "d_model": WIDTH},
    "Marian": {"decoder_ffn_dim": WIDE, "encoder_ffn_dim": 40, "d_model": WIDTH},
    "Pegasus": {"decoder_ffn_dim": WIDE, "encoder_ffn_dim": 40, "d_model": WIDTH},
    "OPT": {"ffn_dim": WIDE, "hidden_size": WIDTH, "word_embed_proj_dim": WIDTH},
    "GPT2": {"n_inner": WIDE, "n_embd": WIDTH},
    "CTRL": {"dff": WIDE, "n_embd": WIDTH},
    "Falcon": {"ffn_hidden_size": WIDE, "hidden_size": WIDTH},
    "Llama": {"intermediate_size": WIDE, "hidden_size": WIDTH},
    "Phi": {"intermediate_size": WIDE, "hidden_size": WIDTH},
    "Gemma": {"intermediate_size": WIDE, "hidden_size": WIDTH, "head_dim": 8},
}
GATED = ("Llama", "Gemma")
DEPTHS = {"GPT2": "n_layer", "CTRL": "n_layer", "Bart": "decoder_layers", "Marian": "decoder_layers"}
DEPTHS |= {"Pegasus": "decoder_layers"}
HEADS = {"GPT2": "n_head", "CTRL": "n_head"}


@pytest.mark.parametrize("family", FEED_FORWARD)
def test_flops_are_counted_from_the_size_that_the_weights_have(family, t5):
    """Before, BART and its kin were counted with their class's default, 4096, whatever their size."""
    settings = dict(FEED_FORWARD[family])
    settings |= {DEPTHS.get(family, "num_hidden_layers"): 2, HEADS.get(family, "num_attention_heads"): 4}
    if family in ("Bart", "Marian", "Pegasus"):
        settings |= {"encoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
        settings.pop("num_attention_heads")
    if family in ("Llama", "Phi", "Gemma"):
        settings["num_key_value_heads"] = 4
    ids = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1}
    config = getattr(transformers, f"{family}Config")(vocab_size=len(t5.tokenizer), **settings, **ids)
    kind = "MTModel" if family == "Marian" else "ForConditionalGeneration"
    heads = {"GPT2": "LMHeadModel", "CTRL": "LMHeadModel"}
    if family not in ("Bart", "Marian", "Pegasus"):
        kind = heads.get(family, "ForCausalLM")
    network = getattr(transformers, f"{family}{kind}")(config)
    sizes = AnyModel(network, t5.tokenizer, family).sizes
    assert any(WIDE in weight.shape for weight in network.parameters() if weight.dim() == 2)
    assert (sizes.d_ff, sizes.gated) == (WIDE, family in GATED)


def test_of_a_mixture_of_experts_those_are_counted_that_a_token_uses(t5):
    config = transformers.MixtralConfig(
        vocab_size=len(t5.tokenizer),
        num_local_experts=4,
        num_experts_per_tok=2,
        num_key_value_heads=4,
        **SIZES,
    )
    sizes = AnyModel(transformers.MixtralForCausalLM(config), t5.tokenizer, "mixtral").sizes
    assert (sizes.d_ff, sizes.gated) == (2 * SIZES["intermediate_size"], True)


def test_a_pad_token_that_only_the_tokenizer_has_is_never_read(t5):
    """Before, a batch with padding was an IndexError, though padding is masked."""
    model = causal(t5)
    plain = trace(model, INPUTS, max_new_tokens=6)
    tokenizer = copy.deepcopy(t5.tokenizer)
    tokenizer.add_special_tokens({"pad_token": "[PADDING]"})
    assert tokenizer.pad_token_id >= model.vocabulary
    padded = trace(AnyModel(model.network, tokenizer, "gpt2"), INPUTS, max_new_tokens=6)
    assert np.array_equal(padded.token_id, plain.token_id)


def test_a_tokenizer_that_does_not_fit_is_one_clear_line(t5):
    model = causal(t5)
    tokenizer = copy.deepcopy(t5.tokenizer)
    tokenizer.add_tokens(["entirely"])
    with pytest.raises(
        MeeError, match=r"^The tokenizer gives an id of \d+, and gpt2 has \d+: it belongs to anot"
    ):
        trace(AnyModel(model.network, tokenizer, "gpt2"), [f"{INPUTS[0]} entirely"])
    for given in (None, "gpt2"):
        with pytest.raises(MeeError, match=r"^tokenizer=.*: give the one that belongs to gpt2\.$"):
            AnyModel(model.network, given, "gpt2")


def test_inputs_and_outputs_may_have_limits_of_their_own(t5):
    """LED: before, an output beyond the decoder's positions was an IndexError."""
    config = transformers.LEDConfig(
        vocab_size=len(t5.tokenizer),
        d_model=WIDTH,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=16,
        attention_window=8,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
    )
    model = AnyModel(transformers.LEDForConditionalGeneration(config), t5.tokenizer, "led")
    assert (model.positions, model.source_positions) == (16, 64)
    with pytest.raises(MeeError, match="led takes 16 tokens"):
        trace(model, INPUTS, max_new_tokens=40)
    with pytest.raises(MeeError, match="led takes 64 tokens"):
        trace(model, [INPUTS[0] * 20], max_new_tokens=4)
    assert len(trace(model, INPUTS, max_new_tokens=6)) > 0


def test_a_checkpoint_without_a_tokenizer_takes_one_by_name(t5, tmp_path):
    causal(t5).network.save_pretrained(tmp_path / "model")
    t5.tokenizer.save_pretrained(tmp_path / "tokenizer")
    with pytest.raises(MeeError, match=r"tokenizer= of load_model or load_any_model"):
        load_any_model(tmp_path / "model")
    model = load_any_model(tmp_path / "model", tokenizer=tmp_path / "tokenizer")
    assert len(trace(model, INPUTS, max_new_tokens=3)) > 0


def seq2seq(family, t5, **options):
    torch.manual_seed(1)
    sizes = {"d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
    sizes |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    ids = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": None}
    config = getattr(transformers, f"{family}Config")(
        **{"vocab_size": len(t5.tokenizer), **sizes, **ids, **options}
    )
    return getattr(transformers, f"{family}ForConditionalGeneration")(config)


@pytest.mark.parametrize("set_in", ["generation_config", "config", None])
def test_without_a_start_id_outputs_begin_as_those_of_a_t5(t5, set_in):
    """After the padding; before, `transformers` raised a ValueError in the search."""
    network = seq2seq("Bart", t5)
    for settings in (network.config, network.generation_config):
        settings.bos_token_id = settings.decoder_start_token_id = settings.pad_token_id = None
    plain = trace(AnyModel(network, t5.tokenizer, "bart"), INPUTS, max_new_tokens=6)
    if set_in:
        getattr(network, set_in).pad_token_id = 7
    found = trace(AnyModel(network, t5.tokenizer, "bart"), INPUTS, max_new_tokens=6)
    assert (found.final_id == found.token_id).all()
    assert np.array_equal(found.top_probabilities, plain.top_probabilities) == (set_in is None)


def rembert(vocabulary):
    sizes = SIZES | {"input_embedding_size": 16, "output_embedding_size": 24}
    config = transformers.RemBertConfig(vocab_size=vocabulary, is_decoder=True, **sizes)
    return transformers.RemBertForCausalLM(config)


def fsmt(vocabulary):
    sizes = {"d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
    sizes |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    config = transformers.FSMTConfig(src_vocab_size=vocabulary, tgt_vocab_size=vocabulary, **sizes)
    return transformers.FSMTForConditionalGeneration(config)


def xmod(vocabulary):
    return transformers.XmodForCausalLM(
        transformers.XmodConfig(vocab_size=vocabulary, is_decoder=True, **SIZES)
    )


def deepseek_v4(vocabulary):
    """Four residual streams."""
    sizes = SIZES | {
        "head_dim": 8,
        "num_key_value_heads": 1,
        "moe_intermediate_size": 24,
        "n_routed_experts": 4,
    }
    sizes |= {"num_experts_per_tok": 2, "q_lora_rank": 16, "qk_rope_head_dim": 4}
    return transformers.DeepseekV4ForCausalLM(transformers.DeepseekV4Config(vocab_size=vocabulary, **sizes))


REFUSED = {
    "rembert": (rembert, "^The logits of RemBertForCausalLM are not its LM head after its final norm"),
    "fsmt": (fsmt, "^The logits of FSMTForConditionalGeneration are not its LM head after its final norm"),
    "xmod": (xmod, r"^XmodForCausalLM does not run on token ids alone \(Input language unknown.*: no trace"),
    "deepseek_v4": (
        deepseek_v4,
        r"has several residual streams, or projects .* \(from 4x32 to 32\): no trace",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_traced_says_why_at_once(name, t5):
    """Before, a RuntimeError or ValueError of torch and transformers, or a projection "from 32 to 32"."""
    build, message = REFUSED[name]
    with pytest.raises(MeeError, match=message) as caught:
        AnyModel(build(len(t5.tokenizer)), t5.tokenizer, name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", ["UMT5", "SwitchTransformers"])
def test_half_precision_is_no_other_head(family, t5):
    """Before, rounding in bfloat16 was taken for logits that are not those of the head."""
    torch.manual_seed(1)
    sizes = {"d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "num_experts": 2}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(t5.tokenizer), num_decoder_layers=2, decoder_start_token_id=0, **sizes
    )
    network = getattr(transformers, f"{family}ForConditionalGeneration")(config).to(torch.bfloat16)
    assert len(trace(AnyModel(network, t5.tokenizer, family), INPUTS, ["a", "b", "c"])) > 0


def test_weights_that_are_no_numbers_are_reported_as_such(t5):
    """Before, the logits were said not to be those of the head."""
    model = causal(t5)
    with torch.no_grad():
        model.network.transformer.h[1].mlp.c_fc.weight[0, 0] = torch.nan
    for references in (None, ["a", "b", "c"]):
        with pytest.raises(MeeError, match=r"^The states of gpt2 are not finite from layer 2 on"):
            trace(AnyModel(model.network, t5.tokenizer, "gpt2"), INPUTS, references, max_new_tokens=3)


def test_states_that_end_before_the_final_norm_are_taken_as_they_are(t5):
    """Before, the logits were said not to be the head after the norm, which they are."""
    network, config = FAMILIES["llama"]
    torch.manual_seed(1)
    model = AnyModel(network(config(len(t5.tokenizer), {"eos_token_id": 1})), t5.tokenizer, "llama")
    expected = trace(model, INPUTS, max_new_tokens=6)
    model.network.config.tie_last_hidden_states = False
    found = trace(AnyModel(model.network, t5.tokenizer, "llama"), INPUTS, max_new_tokens=6)
    for name in ("token_id", "top_probabilities", "similarity", "final_similarity"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name


@pytest.mark.parametrize("cache", ["quantized", "static", "offloaded"])
def test_a_cache_that_is_stored_with_a_model_does_not_reach_a_trace(cache, t5):
    """Before, a quantized one was an ImportError of its package."""
    model = causal(t5)
    plain = trace(model, INPUTS, max_new_tokens=6)
    model.network.generation_config.cache_implementation = cache
    assert np.array_equal(trace(model, INPUTS, max_new_tokens=6).token_id, plain.token_id)
    assert model.network.generation_config.cache_implementation == cache
