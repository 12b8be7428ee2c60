"""The states between the decoder's layers, and the one readout that all of them share.

`h^l` is what layer `l` (1 to L) puts into the residual stream, before the decoder's final norm. The readout
of any layer is `W (s n(h^l))` with the final norm `n`, the LM head `W` and the scale `s` (`d^-0.5` for T5
v1.0, else 1), so that the readout of layer L is the model's own output.

Trap: `decoder_hidden_states` of `transformers` has L+1 entries of which the last is `n(h^L)`, not `h^L`.
Normalising it again shifts every curve at the last layer. Forward hooks on the layers therefore collect the
states.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LayerStates:
    """Context manager that collects `h^1 .. h^L` of one forward pass of a T5-family decoder.

    Example:
        with LayerStates(network) as states:
            network(input_ids=..., decoder_input_ids=..., use_cache=False)
        states[-1]   # h^L, [batch, position, d_model], before the final norm
    """

    def __init__(self, network: nn.Module):
        self.layers = network.get_decoder().block

    def __enter__(self) -> list[Tensor]:
        states: list[Tensor] = []
        self.handles = [
            layer.register_forward_hook(lambda module, args, output: states.append(output[0]))
            for layer in self.layers
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
    """Applies the decoder's final norm (and its dropout in training) to raw layer states `[..., d_model]`."""
    decoder = network.get_decoder()
    return decoder.dropout(decoder.final_layer_norm(states))


def compute_logits(network: nn.Module, states: Tensor) -> Tensor:
    """Returns the logits `[..., vocabulary]` of raw layer states `[..., d_model]`, at any layer."""
    return network.lm_head(normalize(network, states) * output_scale(network))


def decoder_inputs(network: nn.Module, labels: Tensor) -> Tensor:
    """Shifts targets `[batch, position]` (-100 at padding) to the right, as T5 is fed in training."""
    config = network.config
    start = (
        config.decoder_start_token_id if config.decoder_start_token_id is not None else config.pad_token_id
    )
    shifted = torch.full_like(labels, start)
    shifted[:, 1:] = labels[:, :-1]
    return shifted.masked_fill(shifted == -100, config.pad_token_id)
