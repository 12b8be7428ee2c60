"""Greedy decoding at full depth by `transformers` itself: the reference that everything else is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from tqdm import tqdm

from ..errors import CompanionError
from ..models.loading import Model


def check_inputs(inputs: Sequence[str], what: str = "Input") -> list[str]:
    """A list of non-empty texts, or an error that says which one is none."""
    if inputs is None:
        raise CompanionError("inputs=None: give a list of texts.")
    texts = list(inputs) if not isinstance(inputs, str) else [inputs]
    if not texts:
        raise CompanionError("There are no inputs: give at least one text.")
    for number, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise CompanionError(f"{what} {number} is {text!r}: every one must be a text that is not empty.")
    return texts


def batches_by_length(model: Model, inputs: Sequence[str], batch_size: int) -> Iterator[tuple[list[int], dict]]:
    """Yields (indices, encoded batch), long inputs first, so that a batch hardly holds padding."""
    ids = model.tokenizer(list(inputs)).input_ids
    order = sorted(range(len(inputs)), key=lambda i: (-len(ids[i]), i))
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        encoded = model.tokenizer.pad({"input_ids": [ids[i] for i in chosen]}, return_tensors="pt").to(model.device)
        yield chosen, {"input_ids": encoded.input_ids, "attention_mask": encoded.attention_mask}


@torch.inference_mode()
def greedy(
    model: Model, inputs: Sequence[str], max_new_tokens: int = 64, batch_size: int = 32, progress: bool = False
) -> list[list[int]]:
    """Decodes greedily at full depth with `transformers`' own `generate`.

    Args:
        model: from `load_model`.
        inputs: prompts.
        max_new_tokens: the most tokens to generate for each, end token included.
        batch_size: rows at a time.
        progress: show a progress bar on the terminal.

    Returns:
        For each input its output ids, without the start token, up to and with the end token.
    """
    texts = check_inputs(inputs)
    from transformers import GenerationConfig

    config = model.network.config
    deeper = (config.num_decoder_layers or config.num_layers) > config.num_layers
    outputs: list[list[int]] = [[] for _ in texts]
    # Settings of our own, because a checkpoint's may hide a repetition penalty or a length; and the cache of `generate` is sized by
    # the encoder's depth, so that it fails where the decoder is deeper.
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens, do_sample=False, num_beams=1, use_cache=not deeper, pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id, decoder_start_token_id=config.decoder_start_token_id or config.pad_token_id,
    )  # fmt: skip
    bar = tqdm(total=len(texts), desc="greedy decoding", disable=not progress)
    for chosen, batch in batches_by_length(model, texts, batch_size):
        ids = _generate(model.network, batch, settings)
        for index, row in zip(chosen, ids[:, 1:].tolist(), strict=True):
            outputs[index] = cut_at_end(row, config.eos_token_id)
        bar.update(len(chosen))
    bar.close()
    return outputs


def _generate(network, batch: dict, settings):
    """`generate` with these settings alone: what they leave open it would fill in from the checkpoint's own."""
    own, network.generation_config = network.generation_config, settings
    try:
        return network.generate(**batch)
    finally:
        network.generation_config = own


def cut_at_end(ids: list[int], end: int | list[int]) -> list[int]:
    """The ids up to and with the first end token (some checkpoints have several)."""
    ends = {end} if isinstance(end, int) else set(end)
    first = next((place for place, token in enumerate(ids) if token in ends), len(ids))
    return ids[: first + 1]


def detokenize(model: Model, outputs: Sequence[Sequence[int]]) -> list[str]:
    """Texts of output ids, without special tokens."""
    return model.tokenizer.batch_decode([list(ids) for ids in outputs], skip_special_tokens=True)
