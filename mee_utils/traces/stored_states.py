"""Stored states of a trace as tensors, a chunk at a time, for trained, pruned and contrasted rules."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ..common.errors import CompanionError
from ..decoding.exit_state import ExitState, Step
from ..decoding.generation import bind_policy
from ..decoding.layerwise import decoder_of
from ..exits.readout import Readout
from ..models.loading import Model
from .trace import Trace

CHUNK = 512  # tokens whose logits are in memory at a time


def chunks(trace: Trace, size: int = CHUNK) -> Iterator[slice]:
    """The tokens of a trace, some at a time."""
    for start in range(0, len(trace), size):
        yield slice(start, min(start + size, len(trace)))


class StoredStates:
    """The states of a trace (from `trace(..., states=file)`) beside the model that was traced.

    `tokens` is a slice of the tokens, or their numbers.

    Raises:
        CompanionError: no states, states of another model or shape, no tokens.
    """

    def __init__(self, trace: Trace, model: Model | None):
        if model is None:
            example = "replay(trace, policy, model=model)"
            raise CompanionError(
                f"This rule looks at states: give the model of the trace too, as in {example}."
            )
        if trace.states is None:
            raise CompanionError("This trace was made without states: make it with trace(..., states=file).")
        if trace.model != model.name:
            name = f'The trace is of "{trace.model}", the model is "{model.name}"'
            raise CompanionError(f"{name}: give the model that was traced.")
        if not len(trace):
            raise CompanionError("The trace holds no tokens: give at least one input.")
        found, wanted = trace.states.shape, (len(trace), model.layers, model.network.config.d_model)
        if found != wanted:
            raise CompanionError(
                f"The states have the shape {found}, trace and model need {wanted}: trace again."
            )
        dtype = model.network.lm_head.weight.dtype
        self.trace, self.model, self.dtype = trace, model, dtype
        self.working_dtype = torch.promote_types(dtype, torch.float32)  # what classifiers compute in

    def raw(self, tokens) -> Tensor:
        """`h^1 .. h^L` of some tokens, `[token, layer, d_model]`, in the precision of the model."""
        return torch.from_numpy(np.array(self.trace.states[tokens])).to(self.model.device, self.dtype)

    @torch.no_grad()
    def normalized(self, tokens) -> Tensor:
        """`n(h)` as `transformers` computes it, `[token, layer, d_model]`, in single precision at least."""
        return self.model.network.get_decoder().final_layer_norm(self.raw(tokens)).to(self.working_dtype)

    @torch.inference_mode()
    def exit_states(self, tokens, readout: Readout | None = None) -> list[ExitState]:
        """Some tokens at every layer, as decoding would see them if nobody exits; nothing is computed yet.

        The `readout` prunes or contrasts; by default all ids are read out.
        """
        decoder, raw, states = decoder_of(self.model.network), self.raw(tokens), []
        sequence, position = self.trace.sequence[tokens], self.trace.position[tokens]
        readout = readout or bind_policy(None, decoder).readout
        step, rows = Step(decoder, readout, sequence, position), np.arange(len(sequence))
        for layer in range(1, self.trace.layers + 1):
            after, before = raw[:, layer - 1], raw[:, max(0, layer - 2)]
            states.append(ExitState(step, layer, after, before, rows, states[-1] if states else None))
        # before layer 1 stands the embedding, which is not stored; its similarity is
        states[0].similarity = torch.from_numpy(self.trace.similarity[tokens, 0]).to(raw.device)
        return states
