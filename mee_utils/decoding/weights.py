"""The weights of a decoder layer in the layouts that decoding one token at a time is fastest with."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

PACKED_FROM = 200_000  # elements of a weight; below, packing gains nothing (measured on three shapes)
ROWS_HINT = 16  # oneDNN's layout for this many rows is the fastest at 1 and at 32 too


class Linear:
    """`x W^T` for rows `x`; `W`, `[outputs, inputs]`, is packed if it is large.

    For 2 to 32 rows the general routine lays a large matrix out anew in every call, which costs more than the
    product; oneDNN can keep the layout. For small matrices it has more overhead (`make bench` measures both).
    """

    def __init__(self, weight: Tensor):
        self.weight = weight.detach()
        self.packed = _can_be_packed(weight)
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous(), ROWS_HINT)
        else:
            self.transposed = self.weight.t()

    def __call__(self, rows: Tensor) -> Tensor:
        """`[..., inputs]` to `[..., outputs]`. Raises ValueError where a gradient would be lost (packed)."""
        if self.packed:
            if rows.requires_grad and torch.is_grad_enabled():
                raise ValueError("A packed weight passes on no gradient: use functional.linear.")
            return torch.ops.mkldnn._linear_pointwise(rows, self.weight, None, "none", [], "")
        return functional.linear(rows, self.weight)

    def add_to(self, residual: Tensor, rows: Tensor) -> Tensor:
        """`residual + x W^T`, both `[rows, ...]` of two dimensions."""
        if self.packed:
            return residual + self(rows)
        return torch.addmm(residual, rows, self.transposed)


def _can_be_packed(weight: Tensor) -> bool:
    """Whether a weight is large enough to be packed, and of a kind that this processor can."""
    on_cpu = weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
    if weight.numel() < PACKED_FROM or not on_cpu:
        return False
    if weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32


class Norm:
    """T5's layer norm, `w x / sqrt(mean(x^2) + eps)`, in four small operations.

    `sqrt(mean(x^2) + eps) = hypot(|x|, sqrt(d eps)) / sqrt(d)`. Half precision is left to torch, which
    computes it in single precision as `transformers` does.
    """

    def __init__(self, module: nn.Module):
        self.weight = module.weight.detach()
        self.eps = module.variance_epsilon
        self.half = self.weight.dtype in (torch.bfloat16, torch.float16)
        size = self.weight.shape[0]
        self.scaled_weight = self.weight * math.sqrt(size)  # [d]
        self.least_length = self.weight.new_tensor([math.sqrt(size * self.eps)])

    def __call__(self, x: Tensor) -> Tensor:
        """`[..., d]` to `[..., d]`."""
        if self.half:
            return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        length = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self.least_length)
        return (x / length).mul_(self.scaled_weight)


class LayerWeights:
    """The weights of one decoder layer, projections with the same input joined.

    `inner` is the number of heads times `d_kv`, and `d` is `d_model`.
    """

    def __init__(self, layer: nn.Module):
        attention = layer.layer[0].SelfAttention
        cross = layer.layer[1].EncDecAttention
        feed_forward = layer.layer[-1].DenseReluDense
        self.norms = [Norm(sublayer.layer_norm) for sublayer in layer.layer]
        inner = attention.q.weight.shape[0]
        # [3 * inner, d], and the two parts below are views of it
        joined = torch.cat([attention.q.weight, attention.k.weight, attention.v.weight]).detach()
        self.query = Linear(joined[:inner])
        self.key_value = Linear(joined[inner:])
        # all three in one product; a packed weight is a copy, and is not kept twice
        self.query_key_value = None if self.key_value.packed else Linear(joined)
        self.out = Linear(attention.o.weight)
        self.cross_query = Linear(cross.q.weight)
        self.cross_key_value = Linear(torch.cat([cross.k.weight, cross.v.weight]))
        self.cross_out = Linear(cross.o.weight)
        self.gated = hasattr(feed_forward, "wi_0")
        if self.gated:
            self.expand = Linear(torch.cat([feed_forward.wi_0.weight, feed_forward.wi_1.weight]))
        else:
            self.expand = Linear(feed_forward.wi.weight)
        self.contract = Linear(feed_forward.wo.weight)
        relu = isinstance(feed_forward.act, nn.ReLU)
        self.activation = torch.relu if relu else feed_forward.act.forward

    def queries_keys_values(self, normed: Tensor) -> Tensor:
        """`[rows, d]` to `[rows, 3 * inner]`."""
        if self.query_key_value is not None:
            return self.query_key_value(normed)
        return torch.cat([self.query(normed), self.key_value(normed)], dim=-1)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The last sublayer with its residual, `[rows, d]`."""
        expanded = self.expand(self.norms[-1](x))  # [rows, d_ff], gated [rows, 2 * d_ff]
        if not self.gated:
            return self.contract.add_to(x, self.activation(expanded))
        gate, linear = expanded.chunk(2, dim=-1)
        return self.contract.add_to(x, self.activation(gate) * linear)
