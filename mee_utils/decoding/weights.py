"""The weights of a layer, in the layouts that decoding one token at a time is fastest with.

`T5Layer` and `CausalLayer` say what the layers of a family do beside what all do (`LayerWeights`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

PACKED_FROM = 200_000  # elements of a weight; below, packing gains nothing (measured on three shapes)
PACKABLE = (torch.float32, torch.bfloat16)
LEAST_ROWS = 4  # that a packed weight is multiplied with
ROWS_HINT = 16  # oneDNN's layout for this many rows is the fastest at 1 and at 32 too


class Linear:
    """`x W^T + b` for rows `x`; `W`, `[outputs, inputs]`, is packed if it is large.

    For 2 to 32 rows the general routine lays a large matrix out anew in every call, which costs more than the
    product; oneDNN can keep the layout. It takes longer for one to three rows than for four, so that these
    are padded. Small matrices are kept transposed (`make bench` measures all of this).

    Args:
        weight: `W`.
        bias: `b`, `[outputs]`; None: there is none, as in all of T5.
        row_alone: keep a large matrix transposed too, with which one row is multiplied fastest.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, row_alone: bool = False):
        self.weight = weight.detach()
        self.bias = None if bias is None else bias.detach()
        on_cpu = weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
        self.packed = on_cpu and weight.numel() >= PACKED_FROM and weight.dtype in PACKABLE
        if self.packed and weight.dtype == torch.bfloat16:  # not every processor can
            self.packed = torch.ops.mkldnn._is_mkldnn_bf16_supported()
        # [inputs, outputs]
        self.transposed = self.weight.t().contiguous() if row_alone or not self.packed else None
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous(), ROWS_HINT)

    def __call__(self, rows: Tensor) -> Tensor:
        """`[..., inputs]` to `[..., outputs]`. Raises ValueError where a gradient would be lost (packed)."""
        if not self.packed or (self.transposed is not None and len(rows) == 1):
            product = rows @ self.transposed
            return product if self.bias is None else product.add_(self.bias)
        if rows.requires_grad and torch.is_grad_enabled():
            raise ValueError("A packed weight passes on no gradient: use functional.linear.")
        count = len(rows)
        if count < LEAST_ROWS and rows.dim() == 2:
            rows = functional.pad(rows, (0, 0, 0, LEAST_ROWS - count))
        return torch.ops.mkldnn._linear_pointwise(rows, self.weight, self.bias, "none", [], "")[:count]

    def add_to(self, residual: Tensor, rows: Tensor) -> Tensor:
        """`residual + x W^T + b`, both `[rows, ...]` of two dimensions."""
        if self.packed or self.bias is not None:
            return residual + self(rows)
        return torch.addmm(residual, rows, self.transposed)


class Norm:
    """The root-mean-square norm of T5 and Llama, `w x / sqrt(mean(x^2) + eps)`, in four small operations.

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
    """One layer: its self-attention, whose projections are joined, and what a family has beside it.

    A family's class adds `norm`, which comes before self-attention, and `feed_forward`. Where it attends to a
    source too, `cross_query` and `cross_out` are there.

    Attributes:
        heads: of keys and values.
        group: how many heads of queries share one of these; 1, where each has its own.
        d_kv: the size of a head.
    """

    norm: Norm
    cross_query: Linear | None = None
    cross_out: Linear | None = None

    def __init__(self, query: nn.Linear, key: nn.Linear, value: nn.Linear, out: nn.Linear, d_kv: int):
        inner = query.weight.shape[0]
        self.d_kv = d_kv
        self.heads = key.weight.shape[0] // d_kv
        self.group = inner // key.weight.shape[0]
        # [inner + 2 * heads * d_kv, d], and the two parts below are views of it
        joined = torch.cat([query.weight, key.weight, value.weight]).detach()
        bias = None if query.bias is None else torch.cat([query.bias, key.bias, value.bias]).detach()
        of_query, of_pair = (None, None) if bias is None else (bias[:inner], bias[inner:])
        self.query = Linear(joined[:inner], of_query)
        self.key_value = Linear(joined[inner:], of_pair)
        # all three in one product; a packed weight is a copy, and is not kept twice
        self.joined = None if self.key_value.packed else Linear(joined, bias)
        self.out = Linear(out.weight, out.bias)
        self.inner = inner

    def queries_keys_values(self, normed: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Of tokens `[token, d]` the queries, and the keys and values, as the two methods below have them."""
        if self.joined is None:
            return self.queries(normed, rotation), self.keys_values(normed, rotation)
        joined = self.joined(normed)
        query, pair = joined[:, : self.inner], joined[:, self.inner :]
        return self._queries(query, rotation), self._keys_values(pair, rotation)

    def queries(self, normed: Tensor, rotation: Rotation | None) -> Tensor:
        """`[token, d]` to `[token, head, group, d_kv]`."""
        return self._queries(self.query(normed), rotation)

    def keys_values(self, normed: Tensor, rotation: Rotation | None) -> Tensor:
        """`[token, d]` to `[2, token, head, d_kv]`."""
        return self._keys_values(self.key_value(normed), rotation)

    def _queries(self, flat: Tensor, rotation: Rotation | None) -> Tensor:
        return flat.view(-1, self.heads, self.group, self.d_kv)

    def _keys_values(self, flat: Tensor, rotation: Rotation | None) -> Tensor:
        return flat.view(-1, 2, self.heads, self.d_kv).transpose(0, 1)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The last sublayer with its residual, `[token, d]`."""
        raise NotImplementedError


class GatedLinear:
    """`act(x G^T) * (x U^T)`, both products in one; without a gate `act(x U^T)`."""

    def __init__(self, up: nn.Linear, gate: nn.Linear | None, activation: nn.Module):
        self.gated = gate is not None
        parts = [gate, up] if self.gated else [up]
        weight = torch.cat([part.weight for part in parts])
        bias = None if up.bias is None else torch.cat([part.bias for part in parts])
        self.expand = Linear(weight, bias)
        self.activation = torch.relu if type(activation) is nn.ReLU else activation.forward

    def __call__(self, x: Tensor) -> Tensor:
        """`[token, d]` to `[token, d_ff]`."""
        expanded = self.expand(x)  # gated: [token, 2 * d_ff]
        if not self.gated:
            return self.activation(expanded)
        gate, linear = expanded.chunk(2, dim=-1)
        return self.activation(gate) * linear


class T5Layer(LayerWeights):
    """A layer of T5's decoder: the source is attended to between self-attention and the feed-forward layer.

    `inner` is the number of heads times `d_kv`, and `d` is `d_model`.
    """

    def __init__(self, layer: nn.Module):
        attention = layer.layer[0].SelfAttention
        cross = layer.layer[1].EncDecAttention
        feed_forward = layer.layer[-1].DenseReluDense
        super().__init__(attention.q, attention.k, attention.v, attention.o, attention.key_value_proj_dim)
        self.norm = Norm(layer.layer[0].layer_norm)
        self.cross_norm = Norm(layer.layer[1].layer_norm)
        self.last_norm = Norm(layer.layer[2].layer_norm)
        self.cross_query = Linear(cross.q.weight)
        self.cross_key_value = Linear(torch.cat([cross.k.weight, cross.v.weight]))
        self.cross_out = Linear(cross.o.weight)
        gated = hasattr(feed_forward, "wi_0")
        up, gate = (feed_forward.wi_1, feed_forward.wi_0) if gated else (feed_forward.wi, None)
        self.expand = GatedLinear(up, gate, feed_forward.act)
        self.contract = Linear(feed_forward.wo.weight)

    def queries_keys_values(self, normed: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        if self.joined is None:
            return super().queries_keys_values(normed, rotation)
        # all three are of one size: the same in fewer operations
        three = self.joined(normed).view(-1, 3, self.heads, self.d_kv).transpose(0, 1)
        return three[0].unsqueeze(2), three[1:]

    def cross_queries(self, x: Tensor) -> Tensor:
        """The queries on the source, `[token, head, 1, d_kv]`."""
        return self.cross_query(self.cross_norm(x)).view(-1, self.heads, 1, self.d_kv)

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.contract.add_to(x, self.expand(self.last_norm(x)))


class Rotation:
    """Rotary positions of some tokens: in each head, pairs of numbers are turned by angles.

    Args:
        cos, sin: of the angles, `[token, d_kv]`; in the second half they are those of the first.
    """

    def __init__(self, cos: Tensor, sin: Tensor):
        half = sin.shape[-1] // 2
        self.cos = cos[:, None]  # [token, 1, d_kv]
        self.signed_sin = torch.cat([-sin[:, :half], sin[:, half:]], dim=-1)[:, None]

    def __call__(self, heads: Tensor) -> Tensor:
        """`[token, head, d_kv]` before and after."""
        other_half = heads.roll(heads.shape[-1] // 2, dims=-1)
        return heads * self.cos + other_half * self.signed_sin


class CausalLayer(LayerWeights):
    """A layer of Llama, Qwen2, Qwen3 or SmolLM3: rotary positions, and queries that share keys and values.

    Qwen3 norms queries and keys before they are rotated; SmolLM3 rotates in some of its layers alone.
    """

    def __init__(self, layer: nn.Module):
        attention = layer.self_attn
        mlp = layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        super().__init__(*projections, attention.head_dim)
        self.rotates = getattr(attention, "use_rope", True)
        self.query_norm = Norm(attention.q_norm) if hasattr(attention, "q_norm") else None
        self.key_norm = Norm(attention.k_norm) if hasattr(attention, "k_norm") else None
        self.norm = Norm(layer.input_layernorm)
        self.last_norm = Norm(layer.post_attention_layernorm)
        self.expand = GatedLinear(mlp.up_proj, mlp.gate_proj, mlp.act_fn)
        self.contract = Linear(mlp.down_proj.weight, mlp.down_proj.bias)

    def _queries(self, flat: Tensor, rotation: Rotation | None) -> Tensor:
        heads = flat.view(-1, self.heads * self.group, self.d_kv)
        return self._placed(heads, self.query_norm, rotation).unflatten(1, (self.heads, self.group))

    def _keys_values(self, flat: Tensor, rotation: Rotation | None) -> Tensor:
        keys, values = super()._keys_values(flat, rotation).unbind()
        return torch.stack([self._placed(keys, self.key_norm, rotation), values])

    def _placed(self, heads: Tensor, norm: Norm | None, rotation: Rotation | None) -> Tensor:
        """Queries or keys `[token, head, d_kv]`, normed and rotated."""
        if norm is not None:
            heads = norm(heads)
        return rotation(heads) if self.rotates else heads

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.contract.add_to(x, self.expand(self.last_norm(x)))
