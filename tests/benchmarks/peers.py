"""The peers as a user would run them: `transformers`' greedy search in several forms, and CTranslate2."""

import copy
from collections.abc import Callable
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from mee_utils.common.errors import MeeError
from mee_utils.companion.training.mini import train_tokenizer

from .workloads import Bench, Run

GREEDY = "transformers generate"
COMPUTE_TYPES = ("float32", "bfloat16", "int8")  # of CTranslate2, where it has them for this processor


def with_attention(bench: Bench, name: str) -> str:
    """The name of a form of `transformers` with how it computes attention, as in "generate, sdpa"."""
    return f"{name}, {bench.network.config._attn_implementation}"


def greedy(bench: Bench, batch: int, network: Callable | None = None, **options: Any) -> Run:
    """`generate` of the bench's model, or of another, on the same inputs; a call gives `[batch, 1 + token]`.

    `options` are settings of `GenerationConfig`.
    """
    from transformers import GenerationConfig

    network = network or bench.network
    inputs = bench.inputs(batch)
    settings = GenerationConfig(
        max_new_tokens=bench.workload.tokens,
        num_beams=1,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        decoder_start_token_id=0,
        **options,
    )

    def run():
        network.generation_config = settings  # given to `generate`, its gaps are filled in from here
        return network.generate(**inputs)

    return run


def compiled(bench: Bench, batch: int) -> Run:
    """`generate` with a static cache and a compiled forward pass; the first call compiles."""
    import torch

    network = copy.copy(bench.network)
    network.forward = torch.compile(network.forward)
    return greedy(bench, batch, network, cache_implementation="static", disable_compile=True)


def assisted(bench: Bench, layers: int) -> Run:
    """`generate` with its first layers as `assistant_model`, all weights shared.

    In a model whose layers agree every draft is right: the most that drafting gains there.
    """
    network = copy.copy(bench.network)
    decoder = network.decoder
    first = copy.copy(decoder)
    first._modules = {**decoder._modules, "block": decoder.block[:layers]}
    assistant = copy.copy(network)
    assistant._modules = {**assistant._modules, "decoder": first}
    first.config = assistant.config = copy.deepcopy(decoder.config)
    first.config.num_decoder_layers = layers
    assistant.generation_config = copy.deepcopy(assistant.generation_config)
    assistant.generation_config.eos_token_id = None
    network.generate = partial(network.generate, assistant_model=assistant)
    return greedy(bench, 1, network)


def ctranslate2_forms(bench: Bench) -> dict[str, Callable[[int], Run]]:
    """CTranslate2 with the same weights in each compute type, by the type that it really computes in.

    A value is a function of the batch; a call of what it returns decodes greedily at the same length.
    """
    try:
        import ctranslate2
        from ctranslate2.converters import TransformersConverter
    except ImportError as error:
        message = 'The peer CTranslate2 is not installed: run "make bench", which installs it.'
        raise MeeError(message) from error
    import torch

    forms = {}
    with TemporaryDirectory() as source, TemporaryDirectory() as target:
        bench.network.config.eos_token_id = 1
        bench.network.save_pretrained(source)
        train_tokenizer(["the red house is near the river"] * 50, 200).save_pretrained(source)
        bench.network.config.eos_token_id = None
        TransformersConverter(source).convert(target, force=True)
        for compute_type in COMPUTE_TYPES:
            if compute_type in ctranslate2.get_supported_compute_types("cpu"):
                threads = {"intra_threads": torch.get_num_threads(), "inter_threads": 1}
                translator = ctranslate2.Translator(target, compute_type=compute_type, **threads)
                forms[f"CTranslate2, {translator.compute_type}"] = partial(_translation, bench, translator)
    return forms


def _translation(bench: Bench, translator, batch: int) -> Run:
    length = bench.workload.tokens
    return partial(
        translator.translate_batch,
        [["▁the"] * bench.workload.source] * batch,
        beam_size=1,
        max_decoding_length=length,
        min_decoding_length=length,
    )
