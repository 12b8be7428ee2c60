"""A training pass of a plain T5 in fewer and larger operations, for training narrow networks on a CPU.

The pass is that of `T5ForConditionalGeneration` (Raffel et al. 2020), with the network's own parameters. At a
width of 96 the operations between the matrix products, and dropout most of all, take as long as the products.
Here queries, keys and values of an attention are one product, and the norms' weights are multiplied into the
matrices that follow. States are `[position, batch, d_model]`; q, k, v stand side by side for each head, so
that attention reads them without copies. The random numbers of dropout are 16-bit integers.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .states import output_scale

MASKED = -1e9


def is_plain(network: nn.Module) -> bool:
    """Whether a network is a T5 v1.0: feed-forward layers with ReLU, readout tied to the embedding."""
    t5 = network.config.model_type == "t5" and network.config.feed_forward_proj == "relu"
    return t5 and output_scale(network) != 1.0 and network.lm_head.weight is network.shared.weight


def forward(network: nn.Module, batch: dict[str, Tensor]) -> tuple[list[Tensor], Tensor]:
    """One teacher-forced pass of a network of which `is_plain` holds; dropout only in training.

    The batch holds `input_ids` and `attention_mask` `[batch, source]`, `labels` `[batch, position]` (-100 at
    padding). Returns the raw states `h^1 .. h^L` of the decoder, each `[batch, position, d_model]`, and the
    logits `[batch, position, vocabulary]` of the last.
    """
    encoder, decoder, embedding = network.encoder, network.decoder, network.shared.weight
    dropout = Dropout(network.config.dropout_rate if network.training else 0.0)
    target = network.prepare_decoder_input_ids_from_labels(batch["labels"]).T
    rows, length = batch["labels"].shape
    padding = (MASKED * (batch["attention_mask"] == 0)).to(embedding.dtype)[:, None, None]
    causal = torch.full((rows, 1, length, length), MASKED, dtype=embedding.dtype).triu(1)

    x, bias = dropout(functional.embedding(batch["input_ids"].T, embedding)), _position_bias(encoder, padding)
    for block in encoder.block:
        x = _self_attention(block.layer[0], x, bias, dropout)
        x = _feed_forward(block.layer[1], x, dropout)
    memory = dropout(_norm(encoder.final_layer_norm, x) * encoder.final_layer_norm.weight)

    x, bias = dropout(functional.embedding(target, embedding)), _position_bias(decoder, causal)
    padding = padding.expand(-1, network.config.num_heads, length, -1).flatten(0, 1)
    states = []
    for block in decoder.block:
        x = _self_attention(block.layer[0], x, bias, dropout)
        x = _cross_attention(block.layer[1], x, memory, padding, dropout)
        x = _feed_forward(block.layer[2], x, dropout)
        states.append(x.transpose(0, 1))
        x = states[-1].transpose(0, 1)  # so that gradients of later layers reach the state that is returned
    last = _norm(decoder.final_layer_norm, states[-1]) * decoder.final_layer_norm.weight
    return states, functional.linear(dropout(last) * output_scale(network), embedding)


def _position_bias(stack: nn.Module, mask: Tensor) -> Tensor:
    """Relative position bias plus a mask `[batch, 1, query or 1, key]`, as `[batch x head, query, key]`."""
    length = mask.shape[-1]
    return (stack.block[0].layer[0].SelfAttention.compute_bias(length, length) + mask).flatten(0, 1)


def _self_attention(layer: nn.Module, x: Tensor, bias: Tensor, dropout: "Dropout") -> Tensor:
    own = layer.SelfAttention
    weight = _by_head(own, own.q, own.k, own.v) * layer.layer_norm.weight
    q, k, v = _heads(own, functional.linear(_norm(layer.layer_norm, x), weight), 3)
    return dropout.add(x, _attend(own, q, k, v, bias, dropout))


def _cross_attention(layer: nn.Module, x: Tensor, memory: Tensor, bias: Tensor, dropout: "Dropout") -> Tensor:
    own = layer.EncDecAttention
    weight = own.q.weight * layer.layer_norm.weight
    (q,) = _heads(own, functional.linear(_norm(layer.layer_norm, x), weight), 1)
    k, v = _heads(own, functional.linear(memory, _by_head(own, own.k, own.v)), 2)
    return dropout.add(x, _attend(own, q, k, v, bias, dropout))


def _by_head(attention: nn.Module, *projections: nn.Module) -> Tensor:
    """The rows of several projections, ordered by head: `[head x projection x d_kv, d_model]`."""
    split = [projection.weight.unflatten(0, (attention.n_heads, -1)) for projection in projections]
    return torch.cat(split, dim=1).flatten(0, 1)


def _heads(attention: nn.Module, x: Tensor, parts: int) -> tuple[Tensor, ...]:
    """Splits `[position, batch, head x part x d_kv]` into its parts `[batch x head, position, d_kv]`."""
    split = x.view(len(x), -1, parts, attention.key_value_proj_dim)
    return tuple(part.transpose(0, 1) for part in split.unbind(2))


def _attend(attention, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, dropout: "Dropout") -> Tensor:
    """Attention of all heads `[batch x head, position, d_kv]`, projected to `[position, batch, d_model]`."""
    shares = dropout(torch.baddbmm(bias, q, k.mT).softmax(-1))
    return attention.o(torch.bmm(shares, v).transpose(0, 1).reshape(q.shape[1], -1, attention.inner_dim))


def _feed_forward(layer: nn.Module, x: Tensor, dropout: "Dropout") -> Tensor:
    dense = layer.DenseReluDense
    inner = functional.linear(_norm(layer.layer_norm, x), dense.wi.weight * layer.layer_norm.weight)
    return dropout.add(x, dense.wo(dropout(inner.relu_())))


def _norm(norm: nn.Module, x: Tensor) -> Tensor:
    """T5's norm without its weight."""
    return functional.rms_norm(x, x.shape[-1:], eps=norm.variance_epsilon)


class Dropout:
    """Dropout of one pass; its random numbers follow from torch's seed.

    The rate is rounded to a multiple of 2^-16, and what is kept is divided by the share that is kept.
    """

    def __init__(self, rate: float):
        self.dropped = round(rate * 2**16)
        self.random = np.random.default_rng(int(torch.randint(2**62, ()))) if rate else None

    def mask(self, x: Tensor) -> Tensor:
        """0 where `x` is dropped, and the inverse of the share that is kept elsewhere."""
        numbers = self.random.integers(2**64, size=-(-x.numel() // 4), dtype=np.uint64).view(np.uint16)
        kept = torch.from_numpy(numbers[: x.numel()] >= self.dropped).view(x.shape)
        return kept.to(x.dtype).mul_(2**16 / (2**16 - self.dropped))

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.mask(x) if self.dropped else x

    def add(self, x: Tensor, change: Tensor) -> Tensor:
        """`x` plus what dropout leaves of a change."""
        return torch.addcmul(x, change, self.mask(change)) if self.dropped else x + change
