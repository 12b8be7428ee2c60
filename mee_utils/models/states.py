"""The states between the decoder's layers, and the one readout that all of them share.

`h^l` is what layer `l` (1 to L) puts into the residual stream, before the decoder's final norm. The readout
of any layer is `W (s n(h^l))` with the final norm `n`, the LM head `W` and the scale `s` (`d^-0.5` for T5
v1.0, else 1), so that the readout of layer L is the model's own output.

Trap: the last of the L+1 `decoder_hidden_states` of `transformers` is `n(h^L)`, not `h^L`; normalising it
again would shift every curve at the last layer. Forward hooks on the layers collect the states instead.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from .families import layers_of

IGNORED = -100  # the label of padding, as in `transformers`


@contextmanager
def layer_states(network: nn.Module) -> Iterator[list[Tensor]]:
    """Collects `h^1 .. h^L`, each `[batch, position, d_model]`, of one forward pass within the context."""
    states: list[Tensor] = []

    def keep(output) -> None:  # T5's layers return a tuple, those of causal models the state alone
        states.append(output if isinstance(output, Tensor) else output[0])

    with ExitStack() as hooks:
        for layer in layers_of(network):
            hooks.enter_context(layer.register_forward_hook(lambda _, __, output: keep(output)))
        yield states


def output_scale(network: nn.Module) -> float:
    """The factor between the final norm and the LM head: `d_model^-0.5` where T5 v1.0 has it, else 1."""
    scaled = getattr(network.config, "scale_decoder_outputs", False)  # mT5 has no such setting
    return network.config.d_model**-0.5 if scaled else 1.0


def readout(network: nn.Module, normed: Tensor) -> Tensor:
    """Logits `[..., vocabulary]` of normalised states `n(h)`, `[..., d_model]`, of any layer."""
    return network.lm_head(normed * output_scale(network))


def compute_logits(network: nn.Module, states: Tensor) -> Tensor:
    """Logits `[..., vocabulary]` of raw states `[..., d_model]` at any layer (in training with dropout)."""
    decoder = network.get_decoder()
    return readout(network, decoder.dropout(decoder.final_layer_norm(states)))


def teacher_forced(
    network: nn.Module, source: Mapping[str, Tensor], fed: Tensor, encoded: Tensor | None = None
) -> tuple[list[Tensor], Tensor]:
    """One pass over given outputs: at every position the decoder is fed the token before.

    Args:
        network: an encoder-decoder of the T5 family.
        source: `input_ids` and `attention_mask` of the inputs, `[batch, source]` each.
        fed: the outputs moved one position to the right behind the start id, `[batch, position]`.
        encoded: the encoder's states `[batch, source, d_model]`, if they are known.

    Returns:
        The raw states `h^1 .. h^L` of the decoder, and `n(h^L)`, of which `readout` makes the model's own
        logits (in training with dropout); `[batch, position, d_model]` each.
    """
    if encoded is None:
        encoder = network.get_encoder()
        encoded = encoder(input_ids=source["input_ids"], attention_mask=source["attention_mask"])[0]
    with layer_states(network) as states:
        last = network.get_decoder()(
            input_ids=fed,
            encoder_hidden_states=encoded,
            encoder_attention_mask=source["attention_mask"],
            use_cache=False,
        )[0]
    return states, last
