"""The states between the decoder's blocks, and the one read-out that all of them share.

`h^l` is what block `l` (1 to L) puts into the residual stream, before the decoder's final norm. The read-out of any block is
`W (s n(h^l))` with the final norm `n`, the LM head `W` and the scale `s` (`d^-0.5` for T5 v1.0, else 1), so that the
read-out of block L is the model's own output.

Trap: `decoder_hidden_states` of `transformers` has L+1 entries of which the last is `n(h^L)`, not `h^L`. Normalising it again
shifts every curve at the last block. The states are therefore taken from the blocks themselves, by forward hooks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BlockStates:
    """Context manager that collects `h^1 .. h^L` of one forward pass of a T5-family decoder.

    Example:
        with BlockStates(network) as states:
            network(input_ids=..., decoder_input_ids=..., use_cache=False)
        states[-1]   # h^L, [batch, position, d_model], before the final norm
    """

    def __init__(self, network: nn.Module):
        self.blocks = network.get_decoder().block

    def __enter__(self) -> list[Tensor]:
        states: list[Tensor] = []
        self.handles = [
            block.register_forward_hook(lambda module, args, output: states.append(output[0])) for block in self.blocks
        ]
        return states

    def __exit__(self, *exception) -> None:
        for handle in self.handles:
            handle.remove()


def output_scale(network: nn.Module) -> float:
    """The factor between the final norm and the LM head: `d_model^-0.5` where T5 v1.0 has it, else 1."""
    config = network.config
    scaled = getattr(config, "scale_decoder_outputs", None)
    if scaled is None:  # releases of transformers before 5.20, and mT5, have no such setting
        scaled = config.model_type in ("t5", "longt5") and config.tie_word_embeddings
    return config.d_model**-0.5 if scaled else 1.0


def normalize(network: nn.Module, states: Tensor) -> Tensor:
    """Applies the decoder's final norm (and its dropout in training) to raw block states `[..., d_model]`."""
    decoder = network.get_decoder()
    return decoder.dropout(decoder.final_layer_norm(states))


def read_out(network: nn.Module, states: Tensor) -> Tensor:
    """Returns the logits `[..., vocabulary]` of raw block states `[..., d_model]`, at any block."""
    return network.lm_head(normalize(network, states) * output_scale(network))


def decoder_inputs(network: nn.Module, labels: Tensor) -> Tensor:
    """Shifts targets `[batch, position]` (-100 at padding) to the right, as T5 is fed in training and in forced decoding."""
    config = network.config
    start = config.decoder_start_token_id if config.decoder_start_token_id is not None else config.pad_token_id
    shifted = torch.full_like(labels, start)
    shifted[:, 1:] = labels[:, :-1]
    return shifted.masked_fill(shifted == -100, config.pad_token_id)
