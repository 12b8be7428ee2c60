"""`LayerwiseDecoder`: the decoder of a T5-family model, one layer at a time, for rows that go their own ways.

Weights, settings and the encoder are `transformers`' own. What is made here is the way through the decoder:
projections with the same input are one matrix, the position bias is a table, and keys and values of layers
that a token skipped are computed only when a later token needs them.

A token that exits at layer l has state `h^l`. Layer j > l sees it through its keys and values alone:

- "copy" (CALM, MEE): `K_j n_j(h^l)`, `V_j n_j(h^l)`, computed when a later token of the row reaches layer j,
  together with that token's own, so that the matrices are read from memory once.
- "parallel" (FREE): when a later token of the row reaches layer j, all waiting tokens run through it in one
  causal pass.

For each layer and row the positions with keys and values are a prefix (`Cache.filled`), because a token that
reaches a layer brings all earlier positions up to it.
"""

from __future__ import annotations

import math
import weakref

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..common.errors import CompanionError
from ..models.states import output_scale
from .linear import Linear

# `LayerwiseDecoder.compact_below` of wide and narrow models; measured at the mini shape and t5-base
COMPACT_WIDE, COMPACT_NARROW, NARROW = 0.9, 0.0, 256
GATHER_BELOW = (
    0.25  # with a smaller share of rows active, their keys and values are gathered instead of masked
)
PIECE = 128  # positions that a cache has room for at first; it doubles when they are full


class Rows:
    """Some rows of a batch: their slots in the cache, on the host and, when needed, on the device."""

    def __init__(self, slots: np.ndarray, batch: int, device: torch.device):
        self.slots, self.batch, self.device = slots, batch, device
        self.all = len(slots) == batch
        self._index: Tensor | None = None

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def index(self) -> Tensor:
        """The slots on the device, `[rows]`."""
        if self._index is None:
            self._index = torch.from_numpy(self.slots).to(self.device, non_blocking=True)
        return self._index

    def keep(self, which: np.ndarray) -> Rows:
        """The rows for which `which` is true."""
        return Rows(self.slots[which], self.batch, self.device)


class LayerWeights:
    """The weights of one decoder layer, projections with the same input joined."""

    def __init__(self, block: nn.Module, pack: bool | None):
        attention, cross = block.layer[0].SelfAttention, block.layer[1].EncDecAttention
        feed = block.layer[-1].DenseReluDense
        self.norms = [Norm(layer.layer_norm) for layer in block.layer]
        joined = torch.cat([attention.q.weight, attention.k.weight, attention.v.weight]).detach()
        inner = attention.q.weight.shape[0]
        self.query, self.key_value = Linear(joined[:inner], pack), Linear(joined[inner:], pack)
        self.joined = None if self.key_value.packed else Linear(joined, pack)
        self.out = Linear(attention.o.weight, pack)
        self.cross_query, self.cross_out = Linear(cross.q.weight, pack), Linear(cross.o.weight, pack)
        self.cross_key_value = Linear(torch.cat([cross.k.weight, cross.v.weight]), pack)
        self.gated = hasattr(feed, "wi_0")
        wide = torch.cat([feed.wi_0.weight, feed.wi_1.weight]) if self.gated else feed.wi.weight
        self.wide = Linear(wide, pack)
        self.narrow, self.activation = Linear(feed.wo.weight, pack), feed.act

    def queries_keys_values(self, normed: Tensor) -> Tensor:
        """`[rows, d]` to `[rows, 3 * inner]`."""
        if self.joined is not None:
            return self.joined(normed)
        return torch.cat([self.query(normed), self.key_value(normed)], dim=-1)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The last sublayer with its residual, `[rows, d]`."""
        wide = self.wide(self.norms[-1](x))
        if self.gated:
            gate, linear = wide.chunk(2, dim=-1)
            wide = self.activation(gate) * linear
        else:
            wide = self.activation(wide)
        return self.narrow.add_to(x, wide)


class Norm:
    """T5's layer norm, `w x / sqrt(mean(x^2) + eps)`, in four small operations.

    `sqrt(mean(x^2) + eps) = hypot(|x|, sqrt(d eps)) / sqrt(d)`. Half precision is left to torch, which
    computes it in single precision as `transformers` does.
    """

    def __init__(self, module: nn.Module):
        self.weight, self.eps = module.weight.detach(), module.variance_epsilon
        self.half = self.weight.dtype in (torch.bfloat16, torch.float16)
        size = self.weight.shape[0]
        self.scaled = self.weight * math.sqrt(size)
        self.smallest = torch.tensor(
            [math.sqrt(size * self.eps)], dtype=self.weight.dtype, device=self.weight.device
        )

    def __call__(self, x: Tensor) -> Tensor:
        """`[..., d]` to `[..., d]`."""
        if self.half:
            return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        length = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self.smallest)
        return (x / length).mul_(self.scaled)


class Cache:
    """Keys, values and waiting states of one batch. Made by `LayerwiseDecoder.begin`.

    Attributes:
        position: of the token being decoded, from 0.
        filled: `[layer, row]`, how many positions have keys and values at that layer.
        states: `[row, position, d_model]`, each token's exit state ("parallel": brought up later).
    """

    def __init__(self, encoded: Tensor, mask: Tensor | None, layers: int, length: int, parallel: bool):
        batch, _, size = encoded.shape
        self.encoded, self.mask, self.length, self.parallel = encoded, mask, length, parallel
        self.position, self.capacity = 0, min(length, PIECE)
        self.own: list[Tensor | None] = [None] * layers
        self.cross: list[Tensor | None] = [None] * layers
        self.filled = np.zeros((layers, batch), dtype=np.int64)
        self.states = encoded.new_zeros(batch, self.capacity, size)

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self.encoded.shape[0]

    def rows(self, slots: np.ndarray | None = None) -> Rows:
        """All rows, or those in some slots."""
        return Rows(np.arange(self.batch) if slots is None else slots, self.batch, self.encoded.device)

    def waiting(self, layer: int, rows: Rows) -> np.ndarray | None:
        """`[row]`, the first position without keys and values at this layer; None if no earlier one waits."""
        first = self.filled[layer - 1] if rows.all else self.filled[layer - 1][rows.slots]
        return None if first.min() == self.position else first

    def keep(self, slots: np.ndarray) -> None:
        """Drops all other rows, and their memory."""
        index = torch.from_numpy(slots).to(self.encoded.device)
        self.encoded, self.states = self.encoded[index], self.states[index]
        self.mask = None if self.mask is None else self.mask[index]
        self.own = [None if found is None else found[:, index] for found in self.own]
        self.cross = [None if found is None else found[:, index] for found in self.cross]
        self.filled = self.filled[:, slots]

    def grow(self) -> None:
        """Makes room for twice as many positions, at most `length`."""
        more = min(2 * self.capacity, self.length) - self.capacity
        self.capacity += more
        self.states = functional.pad(self.states, (0, 0, 0, more))
        self.own = [None if found is None else functional.pad(found, (0, 0, 0, more)) for found in self.own]


class LayerwiseDecoder:
    """Runs the decoder of a T5, T5 v1.1, Flan-T5, mT5 or LongT5 model layer by layer.

    The weights are copied into layouts made for decoding (as much memory again as the decoder has); after
    further training, make a new one. `decoder_of` keeps one per model.

    Args:
        network: the `transformers` model, in evaluation mode.
        pack: whether to pack large weights for the CPU; by default where it is faster.

    Attributes:
        compact_below: exited rows stay in the batch until no more than this share of it is active. Taking
            rows out costs time; in a narrow model more than running them for nothing.

    Raises:
        CompanionError: the model is in float16, whose range T5's states exceed.
    """

    def __init__(self, network: nn.Module, pack: bool | None = None):
        decoder, config = network.get_decoder(), network.config
        if decoder.embed_tokens.weight.dtype == torch.float16:
            raise CompanionError(
                "T5's states exceed the range of float16: load the model with dtype bfloat16 or float32."
            )
        self.config, self.encoder = config, network.get_encoder()
        self.embedding = decoder.embed_tokens.weight.detach()
        self.heads, self.d_kv = config.num_heads, config.d_kv
        self.weights = [LayerWeights(block, pack) for block in decoder.block]
        self.norm, self.scale = Norm(decoder.final_layer_norm), output_scale(network)
        self.compact_below = COMPACT_NARROW if config.d_model < NARROW else COMPACT_WIDE
        self.head, self._head_weight = Linear(network.lm_head.weight, pack), network.lm_head.weight.detach()
        self._bias_module = decoder.block[0].layer[0].SelfAttention
        self._relative_bias = self._make_relative_bias(PIECE)

    @property
    def layers(self) -> int:
        """Depth L."""
        return len(self.weights)

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The encoder's states of a batch `[batch, source]`, `[batch, source, d_model]`."""
        return self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]

    def begin(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        length: int,
        parallel: bool = False,
        encoded: Tensor | None = None,
    ) -> Cache:
        """Encodes a batch `[batch, source]`, unless that is done, for outputs of at most `length` tokens."""
        encoded = self.encode(input_ids, attention_mask) if encoded is None else encoded
        mask = None
        if not bool(attention_mask.all()):
            mask = torch.zeros(attention_mask.shape, dtype=encoded.dtype, device=encoded.device)
            mask = mask.masked_fill_(attention_mask == 0, -torch.inf)[:, None, None, :]
        return Cache(encoded, mask, self.layers, length, parallel)

    def move_to(self, position: int, cache: Cache) -> None:
        """Goes on to the token at `position`, and makes room for it."""
        cache.position = position
        if position == cache.capacity:
            cache.grow()
        if position > self._relative_bias.shape[-1] // 2:
            self._relative_bias = self._make_relative_bias(2 * position)

    def embed(self, ids: Tensor) -> Tensor:
        """Token ids `[rows]` to the input of layer 1, `[rows, d_model]`."""
        return functional.embedding(ids, self.embedding)

    def normalize(self, states: Tensor) -> Tensor:
        """The final norm `n`, `[..., d_model]`."""
        return self.norm(states)

    def readout(self, normed: Tensor) -> Tensor:
        """Logits `[rows, vocabulary]` of normalised states `[rows, d_model]`."""
        return self.head(normed if self.scale == 1.0 else normed * self.scale)

    def head_rows(self, ids: Tensor) -> Tensor:
        """The rows of `W` of ids `[rows, k]`, with the scale of the readout: `[rows, k, d_model]`."""
        rows = functional.embedding(ids, self._head_weight)
        return rows if self.scale == 1.0 else rows.mul_(self.scale)

    def run_layer(self, layer: int, x: Tensor, cache: Cache, rows: Rows) -> Tensor:
        """Runs layer `layer` (1 to L) for the present token of some rows, and for what waits before it.

        Args:
            layer: the layer.
            x: the states before it, `[rows, d_model]`.
            cache: the batch; the present token is at `cache.position`.
            rows: which rows of the batch `x` belongs to.

        Returns:
            The states after it, `[rows, d_model]`.
        """
        weights, first = self.weights[layer - 1], cache.waiting(layer, rows)
        if cache.own[layer - 1] is None:
            self._reserve(layer, cache)
        if first is not None and cache.parallel:
            x = self._run_with_waiting(layer, x, cache, rows, first)
        else:
            query = self._own_keys_values(weights, layer, x, cache, rows, first)
            keys_values = cache.own[layer - 1][:, :, :, : cache.position + 1]
            x = weights.out.add_to(
                x, self._attend(query, keys_values, self._bias(cache.position), None, rows)
            )
            query = weights.cross_query(weights.norms[1](x)).view(-1, self.heads, 1, self.d_kv)
            mixed = self._attend(query, cache.cross[layer - 1], None, cache.mask, rows)
            x = weights.feed_forward(weights.cross_out.add_to(x, mixed))
        cache.filled[layer - 1, rows.slots] = cache.position + 1
        return x

    def store_exit_state(self, x: Tensor, cache: Cache, rows: Rows) -> None:
        """Stores the states `[rows, d_model]` with which the present token of some rows exits."""
        cache.states[rows.index, cache.position] = x

    def truncate_cache(self, layers: np.ndarray, cache: Cache, rows: Rows) -> None:
        """Forgets the present token's keys and values above its exit layer `[rows]`, known only now."""
        deeper = np.arange(1, self.layers + 1)[:, None] > layers[None, :]
        cache.filled[:, rows.slots] -= deeper

    def _reserve(self, layer: int, cache: Cache) -> None:
        size = (2, cache.batch, self.heads, cache.capacity, self.d_kv)
        cache.own[layer - 1] = torch.zeros(size, dtype=cache.encoded.dtype, device=cache.encoded.device)
        made = self.weights[layer - 1].cross_key_value(cache.encoded)
        shaped = made.view(*made.shape[:2], 2, self.heads, self.d_kv).permute(2, 0, 3, 1, 4)
        cache.cross[layer - 1] = shaped.contiguous()

    def _make_relative_bias(self, length: int) -> Tensor:
        """Position bias `[head, 2 * length - 1]`; entry `length - 1 + k - q` is for query q, key k <= q."""
        module, device = self._bias_module, self.embedding.device
        relative = torch.arange(-(length - 1), 1, device=device)
        buckets = module._relative_position_bucket(
            relative,
            bidirectional=False,
            num_buckets=module.relative_attention_num_buckets,
            max_distance=module.relative_attention_max_distance,
        )
        bias = module.relative_attention_bias(buckets).detach().t()
        return functional.pad(bias, (0, length - 1), value=-torch.inf).contiguous()

    def _bias(self, position: int) -> Tensor:
        """The bias of the query at `position` on keys 0 to `position`, `[1, head, 1, key]`; a view."""
        middle = self._relative_bias.shape[-1] // 2
        return self._relative_bias[None, :, None, middle - position : middle + 1]

    def _split(self, joined: Tensor, parts: int) -> Tensor:
        """`[rows, parts * inner]` to `[parts, rows, head, d_kv]`."""
        return joined.view(-1, parts, self.heads, self.d_kv).transpose(0, 1)

    def _own_keys_values(
        self, weights: LayerWeights, layer: int, x: Tensor, cache: Cache, rows: Rows, first: np.ndarray | None
    ) -> Tensor:
        """Stores keys and values of the present token and of those that waited; returns the query."""
        own, position = cache.own[layer - 1], cache.position
        if first is None:
            query, *_ = made = self._split(weights.queries_keys_values(weights.norms[0](x)), 3)
            if rows.all:
                own[:, :, :, position] = made[1:]
            else:
                own[:, rows.index, :, position] = made[1:]
            return query[:, :, None]
        begin = int(first[0])
        if (
            rows.all and (first == begin).all()
        ):  # every row catches up from the same place, as one row always does
            normed = weights.norms[0](torch.cat([cache.states[:, begin:position], x[:, None]], dim=1))
            made = self._split(weights.key_value(normed).flatten(0, 1), 2).unflatten(1, normed.shape[:2])
            own[:, :, :, begin : position + 1] = made.transpose(2, 3)
            return weights.query(normed[:, -1]).view(-1, self.heads, 1, self.d_kv)
        slots, positions = _to_device(waiting_places(first, position, rows.slots), x.device)
        normed = weights.norms[0](torch.cat([x, cache.states[slots, positions]]))
        present = torch.full((len(x),), position, device=x.device)
        made = self._split(weights.key_value(normed), 2)
        own[:, torch.cat([rows.index, slots]), :, torch.cat([present, positions])] = made.transpose(0, 1)
        return weights.query(normed[: len(x)]).view(-1, self.heads, 1, self.d_kv)

    def _attend(
        self, query: Tensor, keys_values: Tensor, bias: Tensor | None, mask: Tensor | None, rows: Rows
    ) -> Tensor:
        """Attention of queries `[rows, head, 1, d_kv]` to the rows' own keys; `[rows, inner]`."""
        if rows.all:
            return attention(query, keys_values, bias if mask is None else mask).flatten(1)
        if len(rows) < GATHER_BELOW * rows.batch:
            keys_values = keys_values.index_select(1, rows.index)
            mask = None if mask is None else mask[rows.index]
            return attention(query, keys_values, bias if mask is None else mask).flatten(1)
        spread = query.new_zeros(rows.batch, *query.shape[1:])
        spread[rows.index] = query
        return attention(spread, keys_values, bias if mask is None else mask)[rows.index].flatten(1)

    def _run_with_waiting(self, layer: int, x: Tensor, cache: Cache, rows: Rows, first: np.ndarray) -> Tensor:
        """One causal pass of waiting tokens and the present one, right-aligned `[rows, places, d_model]`."""
        weights, position = self.weights[layer - 1], cache.position
        places = position + 1 - int(first.min())
        queries = torch.arange(position + 1 - places, position + 1, device=x.device)
        cache.states[rows.index, position] = x
        states = cache.states[rows.index, position + 1 - places : position + 1]
        flat = states.reshape(-1, states.shape[-1])
        made = self._split(weights.queries_keys_values(weights.norms[0](flat)), 3)
        made = made.unflatten(1, (len(rows), places))
        slots, positions = _to_device(waiting_places(first, position + 1, rows.slots), x.device)
        local = np.repeat(np.arange(len(rows)), position + 1 - first)
        local = torch.from_numpy(local).to(x.device, non_blocking=True)
        offset = positions - (position + 1 - places)
        cache.own[layer - 1][:, slots, :, positions] = made[1:, local, offset].transpose(0, 1)
        keys = torch.arange(position + 1, device=x.device)
        middle = self._relative_bias.shape[-1] // 2
        bias = self._relative_bias[:, middle - queries[:, None] + keys[None, :]][None]
        own, cross = cache.own[layer - 1][:, :, :, : position + 1], cache.cross[layer - 1]
        mask = cache.mask
        if not rows.all:
            own, cross = own.index_select(1, rows.index), cross.index_select(1, rows.index)
            mask = None if mask is None else mask[rows.index]
        mixed = attention(made[0].transpose(1, 2), own, bias).transpose(1, 2).reshape(flat.shape[0], -1)
        flat = weights.out.add_to(flat, mixed)
        query = weights.cross_query(weights.norms[1](flat)).view(len(rows), places, self.heads, self.d_kv)
        mixed = attention(query.transpose(1, 2), cross, mask).transpose(1, 2).reshape(flat.shape[0], -1)
        flat = weights.feed_forward(weights.cross_out.add_to(flat, mixed))
        done = flat.view(len(rows), places, -1)
        cache.states[slots, positions] = done[local, offset]
        return done[:, -1]


def attention(query: Tensor, keys_values: Tensor, bias: Tensor | None) -> Tensor:
    """T5's attention (no scale) of `[rows, head, query, d_kv]` to `[2, rows, head, key, d_kv]`."""
    return functional.scaled_dot_product_attention(query, *keys_values, attn_mask=bias, scale=1.0)


def waiting_places(first: np.ndarray, end: int, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slots and positions of everything from `first` (one a row) to before `end`, flat.

    >>> waiting_places(np.array([1, 3, 0]), 3, np.array([4, 5, 6]))
    (array([4, 4, 6, 6, 6]), array([1, 2, 0, 1, 2]))
    """
    counts = end - first
    positions = np.arange(counts.sum()) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    return np.repeat(slots, counts), positions


def _to_device(arrays: tuple[np.ndarray, np.ndarray], device: torch.device) -> tuple[Tensor, Tensor]:
    both = torch.from_numpy(np.stack(arrays)).to(device, non_blocking=True)
    return both[0], both[1]


_KEPT: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def decoder_of(network: nn.Module) -> LayerwiseDecoder:
    """The decoder of a network, made on first use, and anew after a weight was changed in place or replaced.

    What is written through `weight.data` goes unnoticed, as it does in torch itself.
    """
    weights = [*network.get_decoder().parameters(), network.lm_head.weight]
    state = tuple((weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights)
    if network not in _KEPT or _KEPT[network][0] != state:
        _KEPT[network] = (state, LayerwiseDecoder(network))
    return _KEPT[network][1]
