"""Exits behind `transformers`' own `model.generate`, for code that has tensors and a network of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.generation import EosTokenCriteria, MaxLengthCriteria
from transformers.utils import ModelOutput

from ..common.errors import MeeError, shown
from ..exits.policy import ExitPolicy
from ..models.checkpoints import recorded_exit_layer
from ..models.families import FAMILIES, NAMED, is_causal
from ..models.loading import Model
from .generation import bind_policy
from .inputs import OTHER_SEARCHES, decode_batch
from .layerwise import check_id, decoder_of, end_ids

STOPPED_BY = (MaxLengthCriteria, EosTokenCriteria)  # what `model.generate` always adds
NOT_RETURNED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


@dataclass
class ExitOutput(ModelOutput):
    """What `model.generate` returns with `return_dict_in_generate=True`."""

    # `[row, given + token]`, the start id or the prompt first, padded behind the end token
    sequences: Tensor | None = None
    exit_layers: Tensor | None = None  # `[row, token]`, 0 behind the end token


def decode_with_exits(
    model: nn.Module,
    input_ids: Tensor,
    logits_processor: Sequence,
    stopping_criteria: Sequence,
    generation_config: GenerationConfig,
    inputs_tensor: Tensor,
    exit_policy: ExitPolicy | None = None,
    **prepared,
) -> Tensor | ExitOutput:
    """Greedy search with early exits, as a way of decoding for `model.generate`::

        model.generate(**batch, custom_generate=decode_with_exits, exit_policy=policy, max_new_tokens=64)

    All arguments but the policy are what `transformers` prepares for any way of decoding; it hands a function
    neither `streamer` nor `assistant_model`, so leave them out. Without a policy the ids are those of
    `model.generate(**batch)`. A policy that names no layer may exit from where the checkpoint's manifest
    says, else from half the depth on, as with `load_model`.

    Args:
        model: a network in evaluation mode, of a family in `mee_utils.models.families`.
        input_ids: the start ids `[row, 1]`, or the prompts `[row, source]` of a causal model.
        logits_processor: must be empty: exits take the largest logit of a layer as it is.
        stopping_criteria: lengths and end tokens; those of the call go before those of the settings.
        generation_config: the settings of this call.
        inputs_tensor: the encoder's input ids `[row, source]`, or the prompts.
        exit_policy: when to exit; a policy that verifies names its `max_draft`, since drafts are planned on
            texts (`plan_drafts`).
        prepared: with the encoder's states as `encoder_outputs`, and the `attention_mask`.

    Returns:
        the ids `[row, given + token]`, or with `return_dict_in_generate=True` an `ExitOutput`.

    Raises `MeeError` for another family, a model in training mode, and settings that exits do not follow.
    """
    _check_model_and_policy(model, exit_policy)
    _check_settings(generation_config, logits_processor, stopping_criteria)
    _check_inputs(inputs_tensor, prepared)
    decoder = decoder_of(model)
    start = None
    if not is_causal(model.config):
        _check_start(input_ids, prepared)
        start = int(input_ids[0, 0])
        check_id("decoder_start_token_id", start, start, decoder.config.vocab_size)
    # criteria of the call have already taken the place of those that `transformers` makes of the settings;
    # there is always one of length, start id included: without one it takes 20
    longest = min(each.max_length for each in stopping_criteria if isinstance(each, MaxLengthCriteria))
    of_end = [each.eos_token_id for each in stopping_criteria if isinstance(each, EosTokenCriteria)]
    ends = [token for ids in of_end for token in ids.flatten().tolist()]
    folder = Path(model.name_or_path) if model.name_or_path else None  # a network may come from no folder
    wrapped = Model(model, None, model.name_or_path, recorded_exit_layer(folder))
    bound = bind_policy(exit_policy, decoder, wrapped.min_exit_layer)
    bound.measure.check_model(wrapped)
    mask = prepared.get("attention_mask")
    if mask is None:
        mask = torch.ones_like(inputs_tensor)
    if mask.shape != inputs_tensor.shape:
        shapes = f"attention_mask is {list(mask.shape)}, and the inputs are {list(inputs_tensor.shape)}"
        raise MeeError(f"{shapes}: give a mask of the same shape.")
    if not mask.bool().any(dim=-1).all():
        raise MeeError("attention_mask hides all tokens of an input: leave that input out.")
    if start is None and not mask[:, -1].all():
        raise MeeError("Prompts are padded on the right: set tokenizer.padding_side to 'left'.")
    outputs = decode_batch(
        decoder,
        {"input_ids": inputs_tensor.to(wrapped.device), "attention_mask": mask.to(wrapped.device)},
        bound,
        max_new_tokens=longest - input_ids.shape[1],
        sequence=np.arange(len(inputs_tensor)),
        encoded=None if start is None else prepared["encoder_outputs"][0],
        start_and_ends=(start, end_ids(ends or None, decoder.config.vocab_size)),
    )
    # as `transformers` has prepared it for this call: the end id where a model has no id for padding
    prepared_id = getattr(generation_config, "_pad_token_tensor", None)
    padding = 0 if prepared_id is None else int(prepared_id)
    tokens = _padded([output.token_ids for output in outputs], padding).to(input_ids.device)
    sequences = torch.cat([input_ids, tokens], dim=1)
    if not generation_config.return_dict_in_generate:
        return sequences
    exit_layers = _padded([output.exit_layers.tolist() for output in outputs], 0)
    return ExitOutput(sequences=sequences, exit_layers=exit_layers.to(input_ids.device))


def _padded(rows: list[list[int]], filler: int) -> Tensor:
    """Rows of whole numbers as one tensor `[row, longest]`."""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=filler)


def _check_model_and_policy(model: nn.Module, policy: object) -> None:
    family = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if family not in FAMILIES:
        raise MeeError(f'The model is a "{family}": exits decode {NAMED}.')
    if model.training:
        raise MeeError("The model is in training mode, in which dropout is on: call model.eval() first.")
    if policy is not None and not isinstance(policy, ExitPolicy):
        raise MeeError(f"exit_policy={shown(policy)}: give ExitPolicy(...), or None to run all layers.")
    if policy is not None and policy.propagation == "verify" and policy.max_draft == "auto":
        raise MeeError(
            "exit_policy verifies and names no max_draft: give one, such as max_draft=8, or "
            "plan_drafts(load_model(...), texts, policy).policy."
        )


def _check_settings(settings: GenerationConfig, processors: Sequence, criteria: Sequence) -> None:
    """Refuses what is not greedy search, and what greedy search with exits does not have."""
    refused = []
    if settings.num_beams != 1:
        refused.append(f"num_beams={settings.num_beams}")
    if settings.do_sample:
        refused.append("do_sample=True")
    if settings.num_return_sequences != 1:
        refused.append(f"num_return_sequences={settings.num_return_sequences}")
    for name in OTHER_SEARCHES:
        if value := getattr(settings, name, None):
            refused.append(f"{name}={shown(value, 30)}")
    refused += [f"{name}=True" for name in NOT_RETURNED if getattr(settings, name)]
    refused += [type(processor).__name__ for processor in processors]
    refused += [type(criterion).__name__ for criterion in criteria if not isinstance(criterion, STOPPED_BY)]
    if refused:
        raise MeeError(f"Exits decode greedily and follow no {', '.join(refused)}: leave it out of generate.")


def _check_inputs(inputs_tensor: Tensor, prepared: dict) -> None:
    """Refuses embeddings as inputs, and a cache that holds tokens."""
    if inputs_tensor.ndim != 2 or inputs_tensor.is_floating_point():
        raise MeeError("Exits decode input_ids: inputs_embeds are not supported.")
    cache = prepared.get("past_key_values")
    parts = [getattr(cache, part, cache) for part in ("self_attention_cache", "cross_attention_cache")]
    if cache is not None and any(part.get_seq_length() for part in parts):
        raise MeeError("Exits decode outputs from their start: leave past_key_values out, which hold tokens.")


def _check_start(input_ids: Tensor, prepared: dict) -> None:
    """Refuses outputs of an encoder-decoder that have begun."""
    if input_ids.shape[1] != 1 or len(set(input_ids[:, 0].tolist())) != 1:
        raise MeeError("Exits decode outputs from their start: leave decoder_input_ids out.")
    if prepared.get("decoder_attention_mask") is not None:
        raise MeeError("Exits decode outputs from their start: leave decoder_attention_mask out.")
