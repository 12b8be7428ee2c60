"""The states between the decoder's layers, and the one readout that all of them share.

`h^l` is what layer `l` (1 to L) puts into the residual stream, before the decoder's final norm. The readout
of any layer is `W (s n(h^l))` with the final norm `n`, the LM head `W` and the scale `s` (`d^-0.5` for T5
v1.0, else 1), so that the readout of layer L is the model's own output.

Trap: the last of the L+1 `decoder_hidden_states` of `transformers` is `n(h^L)`, not `h^L`; normalising it
again would shift every curve at the last layer. Forward hooks on the layers collect the states instead.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn


@contextmanager
def layer_states(network: nn.Module) -> Iterator[list[Tensor]]:
    """Collects `h^1 .. h^L`, each `[batch, position, d_model]`, of one forward pass within the context."""
    states: list[Tensor] = []
    with ExitStack() as hooks:
        for layer in network.get_decoder().block:
            hooks.enter_context(layer.register_forward_hook(lambda _, __, output: states.append(output[0])))
        yield states


def output_scale(network: nn.Module) -> float:
    """The factor between the final norm and the LM head: `d_model^-0.5` where T5 v1.0 has it, else 1."""
    scaled = getattr(network.config, "scale_decoder_outputs", False)  # mT5 has no such setting
    return network.config.d_model**-0.5 if scaled else 1.0


def compute_logits(network: nn.Module, states: Tensor) -> Tensor:
    """Logits `[..., vocabulary]` of raw states `[..., d_model]` at any layer (in training with dropout)."""
    decoder = network.get_decoder()
    return network.lm_head(decoder.dropout(decoder.final_layer_norm(states)) * output_scale(network))
