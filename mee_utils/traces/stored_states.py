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
    """The states of a trace beside the model that they belong to.

    Args:
        trace: with states, from `trace(..., states=file)`.
        model: the model that was traced.

    Raises:
        CompanionError: no states, states of another model or shape, no tokens.
    """

    def __init__(self, trace: Trace, model: Model | None):
        if model is None:
            raise CompanionError(
                "This rule looks at states: give the model of the trace too, as in "
                "replay(trace, policy, model=model)."
            )
        if trace.states is None:
            raise CompanionError("This trace was made without states: make it with trace(..., states=file).")
        if trace.model != model.name:
            name = f'The trace is of "{trace.model}", the model is "{model.name}"'
            raise CompanionError(f"{name}: give the model that was traced.")
        if not len(trace):
            raise CompanionError("The trace holds no tokens: give at least one input.")
        wanted = (len(trace), model.layers, model.network.config.d_model)
        if trace.states.shape != wanted:
            raise CompanionError(
                f"The states have the shape {trace.states.shape}, trace and model need {wanted}: trace again."
            )
        self.trace, self.model = trace, model

    def raw(self, tokens) -> Tensor:
        """`h^1 .. h^L` of some tokens, `[token, layer, d_model]`, in the precision of the model."""
        states = torch.from_numpy(np.array(self.trace.states[tokens]))
        return states.to(self.model.device, self.model.network.lm_head.weight.dtype)

    @torch.no_grad()
    def normalized(self, tokens) -> Tensor:
        """`n(h)` as `transformers` computes it, `[token, layer, d_model]`, in single precision at least."""
        states = self.model.network.get_decoder().final_layer_norm(self.raw(tokens))
        return states.to(self.working_dtype)

    @property
    def working_dtype(self) -> torch.dtype:
        """What classifiers compute in: the precision of the model, single at least."""
        return torch.promote_types(self.model.network.lm_head.weight.dtype, torch.float32)

    @torch.inference_mode()
    def exit_states(self, tokens, readout: Readout | None = None) -> list[ExitState]:
        """Some tokens at every layer, as decoding would see them if nobody exits; nothing is computed yet.

        Args:
            tokens: a slice of the tokens, or their numbers.
            readout: what prunes or contrasts; by default all ids are read out.
        """
        decoder, raw, states = decoder_of(self.model.network), self.raw(tokens), []
        sequence, position = self.trace.sequence[tokens], self.trace.position[tokens]
        readout = readout or bind_policy(None, decoder).readout
        step, rows = Step(decoder, readout, sequence, position), np.arange(len(sequence))
        for layer in range(1, self.trace.layers + 1):
            after, before = raw[:, layer - 1], raw[:, max(0, layer - 2)]
            previous = states[-1] if states else None
            states.append(ExitState(step, layer, after, before, rows, previous))
        # before layer 1 stands the embedding, which is not stored; its similarity is
        states[0].similarity = torch.from_numpy(self.trace.similarity[tokens, 0]).to(raw.device)
        return states
