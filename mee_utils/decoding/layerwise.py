"""`LayerwiseDecoder`: the decoder of a T5-family model, one layer at a time, for rows that go their own ways.

The encoder is `transformers`' own, and so are the weights, in other layouts (`Linear`, `LayerWeights`).

A token that exits at layer l has state `h^l`. Layer j > l sees it through its keys and values alone:

- "copy" (CALM, MEE): `K_j n_j(h^l)`, `V_j n_j(h^l)`, computed when a later token of the row reaches layer j,
  together with that token's own, so that the matrices are read from memory once (of a row that has exited and
  stays in a batch of a narrow model, masked: at once, when the others run the layer).
- "parallel" (FREE) and "verify": when a later token of the row reaches layer j, all waiting tokens go through
  it in one causal pass; see `mee_utils.decoding.spans`.

A `Cache` has keys and values for each layer, row and position, and the states of tokens that wait. `Rows` are
some rows with their present token: they store its keys and values in the cache, and attend to those of their
own rows. For each layer and row the positions with keys and values are a prefix (`Cache.filled`), because a
token that reaches a layer brings all earlier positions up to it.
"""

from __future__ import annotations

import math
import weakref
from functools import cached_property
from numbers import Integral

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..common.errors import MeeError
from ..models.plain import METHODS, check_plain, hooks_of
from ..models.states import output_scale

# `LayerwiseDecoder.compact_below` of wide and narrow models; measured at the mini shape and t5-base
COMPACT_WIDE = 0.9
COMPACT_NARROW = 0.0
NARROW = 256  # d_model; below, a model is narrow
GATHER_BELOW = 0.25  # with a smaller share of rows active, keys and values are gathered instead of masked
FIRST_CAPACITY = 128  # positions that there is room for at first; it doubles when they are full
PACKED_FROM = 200_000  # elements of a weight; below, packing gains nothing (measured on three shapes)
PACKABLE = (torch.float32, torch.bfloat16)
LEAST_ROWS = 4  # that a packed weight is multiplied with
ROWS_HINT = 16  # oneDNN's layout for this many rows is the fastest at 1 and at 32 too


# ---- the weights of a layer, in the layouts that decoding one token at a time is fastest with


class Linear:
    """`x W^T` for rows `x`; `W`, `[outputs, inputs]`, is packed if it is large.

    For 2 to 32 rows the general routine lays a large matrix out anew in every call, which costs more than the
    product; oneDNN can keep the layout. It takes longer for one to three rows than for four, so that these
    are padded. Small matrices are kept transposed (`make bench` measures all of this).

    Args:
        weight: `W`.
        row_alone: keep a large matrix transposed too, with which one row is multiplied fastest.
    """

    def __init__(self, weight: Tensor, row_alone: bool = False):
        self.weight = weight.detach()
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
            return rows @ self.transposed
        if rows.requires_grad and torch.is_grad_enabled():
            raise ValueError("A packed weight passes on no gradient: use functional.linear.")
        count = len(rows)
        if count < LEAST_ROWS and rows.dim() == 2:
            rows = functional.pad(rows, (0, 0, 0, LEAST_ROWS - count))
        return torch.ops.mkldnn._linear_pointwise(rows, self.weight, None, "none", [], "")[:count]

    def add_to(self, residual: Tensor, rows: Tensor) -> Tensor:
        """`residual + x W^T`, both `[rows, ...]` of two dimensions."""
        if self.packed:
            return residual + self(rows)
        return torch.addmm(residual, rows, self.transposed)


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
        query = attention.q.weight
        inner = query.shape[0]
        # [3 * inner, d], and the two parts below are views of it
        joined = torch.cat([query, attention.k.weight, attention.v.weight]).detach()
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
        relu = type(feed_forward.act) is nn.ReLU
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


# ---- the cache, and which of its tokens go through a layer together


class Cache:
    """Keys, values and waiting states of one batch. Made by `LayerwiseDecoder.begin`.

    `filled[layer - 1, row]` is the number of positions with keys and values at a layer. A worked example: one
    row in a decoder of four layers ("copy"), of whose tokens the first exits at layer 2, the second runs all
    layers, and the third exits at layer 1:

    | token | exits at | what runs | `filled`, layers 1 to 4 |
    |---|---|---|---|
    | 0 | 2 | layers 1 and 2 on token 0; its state waits in `states[row, 0]` | 1 1 0 0 |
    | 1 | 4 | all layers on token 1; layers 3 and 4 first make keys and values of token 0's state | 2 2 2 2 |
    | 2 | 1 | layer 1 on token 2 | 3 2 2 2 |
    """

    def __init__(
        self,
        encoded: Tensor,
        mask: Tensor | None,
        source_ids: Tensor,
        layers: int,
        max_new_tokens: int,
        start: int = 0,
        ends: frozenset[int] = frozenset(),
    ):
        self.batch, _, size = encoded.shape  # number of rows
        self.encoded = encoded  # [row, source, d_model]
        self.source_ids = source_ids  # [row, source], -1 at padding
        self.mask = mask  # [row, 1, 1, source], minus infinity at padding; None: there is none
        self.max_new_tokens = max_new_tokens  # of the longest output
        self.start = start  # the id that outputs begin after
        self.ends = ends  # those that end one
        self.position = 0  # of the present token
        self.capacity = min(max_new_tokens, FIRST_CAPACITY)  # how many positions there is room for
        # of self-attention and of cross-attention, for each layer: [2, row, head, position, d_kv]
        self.self_keys_values: list[Tensor | None] = [None] * layers
        self.cross_keys_values: list[Tensor | None] = [None] * layers
        self.filled = np.zeros((layers, self.batch), dtype=np.int64)
        # the states with which tokens wait, [row, position, d_model]: those of their exits ("copy")
        self.states = encoded.new_zeros(self.batch, self.capacity, size)

    def keep(self, slots: np.ndarray) -> None:
        """Drops all other rows, and their memory."""
        index = on_device(slots, self.encoded)
        self.batch = len(slots)
        self.encoded = self.encoded[index]
        self.source_ids = self.source_ids[index]
        self.states = self.states[index]
        self.mask = None if self.mask is None else self.mask[index]
        self.self_keys_values = [None if pair is None else pair[:, index] for pair in self.self_keys_values]
        self.cross_keys_values = [None if pair is None else pair[:, index] for pair in self.cross_keys_values]
        self.filled = self.filled[:, slots]

    def move_to(self, position: int) -> None:
        """Goes on to the token at `position`; a full cache doubles its room, up to `max_new_tokens`."""
        self.position = position
        if position >= self.capacity:
            added = min(max(self.capacity, position + 1 - self.capacity), self.max_new_tokens - self.capacity)
            self.capacity += added
            room = (0, 0, 0, added)  # behind the last position
            self.states = functional.pad(self.states, room)
            self.self_keys_values = [
                None if pair is None else functional.pad(pair, room) for pair in self.self_keys_values
            ]


class Rows:
    """Some rows of a batch, all at its present token, which goes through the layers next.

    A row of the batch has a *slot* in the cache, its index there. Attention needs the keys of these rows
    alone, and has three ways to them: if they are the whole batch, the keys as they are; if they are few, a
    copy of their keys (`gathered`); else the keys of all rows, with queries of zeros for the others.
    """

    width = 1  # tokens a row

    def __init__(self, cache: Cache, slots: np.ndarray):
        self.cache = cache
        self.slots = slots  # [row]
        self.key_count = cache.position + 1  # how many positions are attended to
        self.is_whole_batch = len(slots) == cache.batch
        self.gathered = not self.is_whole_batch and len(slots) < GATHER_BELOW * cache.batch
        self.query_positions: np.ndarray | None = None  # [row, width]; None: one, at the last key
        self.bias: Tensor | None = None  # of queries on keys, made by the first layer

    def __len__(self) -> int:
        return len(self.slots)

    @cached_property
    def index(self) -> Tensor:
        """The slots on the device, `[rows]`."""
        return self.on_device(self.slots)

    @cached_property
    def mask(self) -> Tensor | None:
        """The source's padding, `[row, 1, 1, source]`, of as many rows as the keys that `attend` takes."""
        mask = self.cache.mask
        return mask[self.index] if self.gathered and mask is not None else mask

    def on_device(self, numbers) -> Tensor:
        """Numbers of the host as a tensor beside the cache."""
        return on_device(numbers, self.cache.encoded)

    def keep(self, which: np.ndarray) -> Rows:
        """The rows for which `which` is true."""
        return Rows(self.cache, self.slots[which])

    def first_waiting(self, layer: int) -> np.ndarray | None:
        """`[row]`, the first position without keys and values at this layer; None if no earlier one waits."""
        filled = self.cache.filled[layer - 1]
        first = filled if self.is_whole_batch else filled[self.slots]
        return None if first.min() == self.cache.position else first

    def store_keys_values(self, keys_values: Tensor, made: Tensor) -> None:
        """Stores what a layer made of the tokens, `[2, token, head, d_kv]`, among its keys and values."""
        slots = slice(None) if self.is_whole_batch else self.index
        keys_values[:, slots, :, self.cache.position] = made

    def attend(self, query: Tensor, keys_values: Tensor, bias: Tensor | None) -> Tensor:
        """From queries `[token, head, d_kv]` to the keys of their own rows; `[token, inner]`."""
        query = query.unsqueeze(2)
        if self.is_whole_batch or self.gathered:
            of_rows = keys_values if self.is_whole_batch else keys_values.index_select(1, self.index)
            return attention(query, of_rows, bias).flatten(1)
        spread = query.new_zeros(self.cache.batch, *query.shape[1:])
        spread[self.index] = query
        return attention(spread, keys_values, bias)[self.index].flatten(1)

    def store_exit_state(self, x: Tensor) -> None:
        """Stores the states `[rows, d_model]` with which the present token exits."""
        self.cache.states[self.index, self.cache.position] = x

    def truncate_cache(self, layers: np.ndarray) -> None:
        """Forgets the present token's keys and values above its exit layer `[rows]`, known only now."""
        layer = np.arange(1, len(self.cache.filled) + 1)[:, None]  # [layer, 1]
        self.cache.filled[:, self.slots] -= layer > layers


def source_ids_of(batch: dict[str, Tensor]) -> Tensor:
    """The inputs of a tokenized batch, `[row, source]`, -1 at padding."""
    return batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -1)


def attention(query: Tensor, keys_values: Tensor, bias: Tensor | None) -> Tensor:
    """T5's attention (no scale) of `[rows, head, query, d_kv]` to `[2, rows, head, key, d_kv]`."""
    keys, values = keys_values.unbind()  # iterating a tensor costs twice as much
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=1.0)


def waiting_positions(first: np.ndarray, end, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slots and positions of everything from `first` (one a row) to before `end` (a number or `[row]`), flat.

    >>> waiting_positions(np.array([1, 3, 0]), 3, np.array([4, 5, 6]))
    (array([4, 4, 6, 6, 6]), array([1, 2, 0, 1, 2]))
    """
    counts = end - first  # [row]
    before = np.cumsum(counts) - counts  # [row], how many come from the rows before
    positions = np.arange(counts.sum()) + np.repeat(first - before, counts)
    return np.repeat(slots, counts), positions


def on_device(numbers, like: Tensor) -> Tensor:
    """Numbers of the host as a tensor beside `like`, without waiting for the device."""
    return torch.from_numpy(np.asarray(numbers)).to(like.device, non_blocking=True)


def on_host(values) -> np.ndarray:
    """A tensor or array as a numpy array. The only place that waits for the device, once per decision."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    return (values.float() if values.dtype == torch.bfloat16 else values).cpu().numpy()


# ---- the decoder


class LayerwiseDecoder:
    """Runs the decoder of a T5, T5 v1.1, Flan-T5, mT5 or LongT5 model layer by layer.

    The weights of `network`, the `transformers` model in evaluation mode, are copied into layouts made for
    decoding; after further training, make a new one. Raises `MeeError` for one in float16 or of mixed types,
    and for one that does anything beside its weights (`check_plain`).
    """

    def __init__(self, network: nn.Module):
        check_plain(network)
        decoder = network.get_decoder()
        config = network.config
        self.embedding = decoder.embed_tokens.weight.detach()
        if self.embedding.dtype == torch.float16:
            raise MeeError("T5's states exceed the range of float16: load it in bfloat16 or float32.")
        self.config = config
        self.encoder = network.get_encoder()
        self.heads = config.num_heads
        self.d_kv = config.d_kv
        self.start, self.ends = start_and_end_ids(network)
        self.weights = [LayerWeights(layer) for layer in decoder.block]
        self.layers = len(self.weights)
        self.norm = Norm(decoder.final_layer_norm)
        self.scale = output_scale(network)
        # exited rows stay in the batch until no more than this share of it is active: taking rows out costs
        # time, in a narrow model more than running them for nothing
        self.compact_below = COMPACT_NARROW if config.d_model < NARROW else COMPACT_WIDE
        self._head_weight = network.lm_head.weight.detach()
        self.head = Linear(self._head_weight, row_alone=True)
        self._bias_module = decoder.block[0].layer[0].SelfAttention
        self._relative_bias = self._make_relative_bias(FIRST_CAPACITY)

    def encode(self, batch: dict[str, Tensor]) -> Tensor:
        """The encoder's states `[batch, source, d_model]` of `input_ids` and `attention_mask`."""
        return self.encoder(**batch)[0]

    def begin(
        self,
        batch: dict,
        max_new_tokens: int,
        encoded: Tensor | None = None,
        start_and_ends: tuple[int, frozenset[int]] | None = None,
    ) -> Cache:
        """Makes the cache of a batch; encodes it first, unless the encoder's states are given.

        Outputs begin and end with the ids of the model, unless others are given. Raises `MeeError` within
        `torch.autocast`, which would change the types of some of the steps here, and not of others.
        """
        if torch.is_autocast_enabled(self.embedding.device.type):
            advice = "leave it, and load the model in the type to compute in, as in dtype='bfloat16'"
            raise MeeError(f"torch.autocast is on, and exits decode in the type of the weights: {advice}.")
        if encoded is None:
            encoded = self.encode(batch)
        mask = None
        is_token = batch["attention_mask"]  # [row, source]
        if not bool(is_token.all()):
            mask = encoded.new_zeros(is_token.shape).masked_fill_(is_token == 0, -torch.inf)
            mask = mask[:, None, None, :]
        start, ends = start_and_ends or (self.start, self.ends)
        return Cache(encoded, mask, source_ids_of(batch), self.layers, max_new_tokens, start, ends)

    def embed(self, ids: Tensor) -> Tensor:
        """Token ids `[rows]` to the input of layer 1, `[rows, d_model]`."""
        return functional.embedding(ids, self.embedding)

    def logits(self, normed: Tensor) -> Tensor:
        """Logits `[rows, vocabulary]` of normalised states `[rows, d_model]`."""
        return self.head(normed if self.scale == 1.0 else normed * self.scale)

    def head_rows(self, ids: Tensor) -> Tensor:
        """The rows of the LM head of ids `[rows, k]`, with the readout's scale: `[rows, k, d_model]`."""
        rows = functional.embedding(ids, self._head_weight)
        return rows if self.scale == 1.0 else rows.mul_(self.scale)

    def run_layer(self, layer: int, x: Tensor, rows: Rows) -> Tensor:
        """Runs layer `layer` (1 to L) for the present token of the given rows; `x` is `[rows, d_model]`.

        Tokens that wait below the layer get keys and values of their exit states ("copy").
        """
        first = rows.first_waiting(layer)  # [row], or None
        if first is None:
            x = self.run_pass(layer, x, rows)
        else:
            # as one row alone always does
            same = rows.is_whole_batch and (first == first[0]).all()
            copy = self._copy_block if same else self._copy_scattered
            x = self._attend_and_feed(layer, x, copy(layer, x, rows, first), rows)
        rows.cache.filled[layer - 1, rows.slots] = rows.key_count
        return x

    def run_pass(self, layer: int, x: Tensor, tokens: Rows) -> Tensor:
        """Runs layer `layer` (1 to L) for some tokens, `[token, d_model]` before and after it.

        They are one token a row, or several (`mee_utils.decoding.spans`): all that have not seen the layer.
        """
        weights = self.weights[layer - 1]
        keys_values = self._reserve(layer, tokens.cache)  # [2, row, head, position, d_kv]
        projected = self._split(weights.queries_keys_values(weights.norms[0](x)), 3)  # query, key, value
        tokens.store_keys_values(keys_values, projected[1:])
        return self._attend_and_feed(layer, x, projected[0], tokens)

    def _reserve(self, layer: int, cache: Cache) -> Tensor:
        """The layer's keys and values; at first makes room for them, and makes those of the source."""
        if cache.self_keys_values[layer - 1] is None:
            size = (2, cache.batch, self.heads, cache.capacity, self.d_kv)
            cache.self_keys_values[layer - 1] = cache.encoded.new_zeros(size)
            joined = self.weights[layer - 1].cross_key_value(cache.encoded)  # [row, source, 2 * inner]
            shaped = joined.view(*joined.shape[:2], 2, self.heads, self.d_kv)
            cache.cross_keys_values[layer - 1] = shaped.permute(2, 0, 3, 1, 4).contiguous()
        return cache.self_keys_values[layer - 1]

    def _copy_block(self, layer: int, x: Tensor, rows: Rows, first: np.ndarray) -> Tensor:
        """Stores keys and values of the present token and of those that wait, from `first` `[row]` on.

        In all rows the same tokens wait: keys and values are a block. Returns the query of the present token,
        `[rows, head, d_kv]`.
        """
        begin = int(first[0])
        weights = self.weights[layer - 1]
        keys_values = self._reserve(layer, rows.cache)  # [2, row, head, position, d_kv]
        position = rows.cache.position
        waiting = rows.cache.states[:, begin:position]  # [row, position, d_model]
        normed = weights.norms[0](torch.cat([waiting, x[:, None]], dim=1))  # the present token last
        pairs = self._split(weights.key_value(normed).flatten(0, 1), 2)  # [2, row * position, head, d_kv]
        pairs = pairs.unflatten(1, normed.shape[:2])  # [2, row, position, head, d_kv]
        keys_values[:, :, :, begin : position + 1] = pairs.transpose(2, 3)
        return weights.query(normed[:, -1]).view(-1, self.heads, self.d_kv)

    def _copy_scattered(self, layer: int, x: Tensor, rows: Rows, first: np.ndarray) -> Tensor:
        """The same where in each row other tokens wait: all in one flat list."""
        weights = self.weights[layer - 1]
        keys_values = self._reserve(layer, rows.cache)  # [2, row, head, position, d_kv]
        position = rows.cache.position
        slots, positions = rows.on_device(waiting_positions(first, position, rows.slots))
        waiting = rows.cache.states[slots, positions]  # [waiting token, d_model]
        normed = weights.norms[0](torch.cat([x, waiting]))  # the present tokens first
        present = torch.full((len(x),), position, device=x.device)
        all_slots = torch.cat([rows.index, slots])
        all_positions = torch.cat([present, positions])
        pairs = self._split(weights.key_value(normed), 2)  # [2, token, head, d_kv]
        keys_values[:, all_slots, :, all_positions] = pairs.transpose(0, 1)
        return weights.query(normed[: len(x)]).view(-1, self.heads, self.d_kv)

    def _attend_and_feed(self, layer: int, x: Tensor, query: Tensor, rows: Rows) -> Tensor:
        """The layer from its queries `[token, head, d_kv]` on; `x` is `[token, d_model]`."""
        weights = self.weights[layer - 1]
        cache = rows.cache
        if rows.bias is None:
            rows.bias = self._bias(rows)
        keys_values = cache.self_keys_values[layer - 1][:, :, :, : rows.key_count]
        x = weights.out.add_to(x, rows.attend(query, keys_values, rows.bias))
        query = weights.cross_query(weights.norms[1](x)).view(-1, self.heads, self.d_kv)
        mixed = rows.attend(query, cache.cross_keys_values[layer - 1], rows.mask)
        return weights.feed_forward(weights.cross_out.add_to(x, mixed))

    def _split(self, joined: Tensor, parts: int) -> Tensor:
        """`[rows, parts * inner]` to `[parts, rows, head, d_kv]`."""
        return joined.view(-1, parts, self.heads, self.d_kv).transpose(0, 1)

    def _bias(self, rows: Rows) -> Tensor:
        """The bias of queries on keys, `[row, head, width, key]`; one row may stand for all.

        The table (`_make_relative_bias`) grows with the positions.
        """
        table = self._relative_bias
        if rows.key_count > table.shape[-1] // 2 + 1:
            self._relative_bias = table = self._make_relative_bias(2 * (rows.key_count - 1))
        middle = table.shape[-1] // 2
        if rows.query_positions is None:  # a view
            return table[None, :, None, middle + 1 - rows.key_count : middle + 1]
        index = torch.from_numpy(middle - rows.query_positions[..., None] + np.arange(rows.key_count))
        return table[:, index.to(table.device, non_blocking=True)].transpose(0, 1)

    def _make_relative_bias(self, length: int) -> Tensor:
        """Position bias `[head, 2 * length - 1]`; entry `length - 1 + k - q` is for query q and key k.

        With a length of 3 the entries are for the distances k - q of -2, -1, 0, 1 and 2, the last two minus
        infinity, since no query sees a later key. A query at position 1 takes the entries 1, 2 and 3 for the
        keys 0, 1 and 2.
        """
        bias = self.embedding.new_zeros(self.heads, length)
        if self._bias_module.has_relative_attention_bias:  # a decoder without its first layer has none
            positions = (1, length, self.embedding.device, length - 1)
            bias = self._bias_module.compute_bias(*positions)[0, :, 0].detach()
        return functional.pad(bias, (0, length - 1), value=-torch.inf).contiguous()


_DECODERS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def decoder_of(network: nn.Module) -> LayerwiseDecoder:
    """The decoder of a network, made on first use, and anew after anything that it was made from has changed.

    The encoder counts too, so that states which it made before belong to another decoder. What is written
    through `weight.data` goes unnoticed, as it does in torch itself.
    """
    state = _made_of(network)
    if network not in _DECODERS or _DECODERS[network][0] != state:
        # what it was made from stays in memory, so that nothing else takes its place there and seems the same
        kept = [tensor.detach() for tensor in (*network.parameters(), *network.buffers())]
        _DECODERS[network] = (state, LayerwiseDecoder(network), kept)
    decoder = _DECODERS[network][1]
    decoder.start, decoder.ends = start_and_end_ids(network)  # settings may have changed since
    return decoder


def _made_of(network: nn.Module) -> list:
    """All that a network computes with, for a comparison: modules, hooks, weights, buffers, as they are."""
    state: list = [getattr(network.config, "scale_decoder_outputs", False)]
    for module in network.modules():
        own = vars(module)
        state.append((id(module), *(id(own[method]) for method in METHODS if method in own)))
        if own["_forward_hooks"] or own["_forward_pre_hooks"]:
            state += hooks_of(module)
        for tensor in (*own["_parameters"].values(), *own["_buffers"].values()):
            if tensor is not None:
                state.append((tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version))
    return state


# ---- where outputs begin and end


def start_and_end_ids(network: nn.Module) -> tuple[int, frozenset[int]]:
    """The id that outputs begin after, and the ids that end an output.

    Each is what `generation_config` says, as in `transformers`, else what `config` says. An output begins
    after `decoder_start_token_id`, else `bos_token_id`, else `pad_token_id`; without an `eos_token_id` all
    outputs have `max_new_tokens` tokens. Raises `MeeError` for no start id, or what is no id of the model.
    """
    vocabulary = network.config.vocab_size
    for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
        start = _setting(network, name)
        if start is not None:
            break
    else:
        where = "model.network.generation_config.decoder_start_token_id"
        raise MeeError(f"The model has no decoder_start_token_id and no pad_token_id: set {where}.")
    check_id(name, start, start, vocabulary)
    return int(start), end_ids(_setting(network, "eos_token_id"), vocabulary)


def end_ids(setting: object, vocabulary: int) -> frozenset[int]:
    """The ids that end an output, from an `eos_token_id`: one id, a list of them, or None for none.

    Raises `MeeError` for what is no id of a model with so many ids.
    """
    if setting is None:
        return frozenset()
    ids = list(setting) if isinstance(setting, list | tuple) else [setting]
    for token in ids or [setting]:
        check_id("eos_token_id", setting, token, vocabulary)
    return frozenset(map(int, ids))


def _setting(network: nn.Module, name: str):
    """What a model says of itself: its `generation_config`, else its `config`; None if neither does."""
    value = getattr(network.generation_config, name, None)
    return getattr(network.config, name, None) if value is None else value


def check_id(name: str, setting: object, token: object, vocabulary: int) -> None:
    """Raises `MeeError` unless a token of a setting is an id of the model."""
    whole = isinstance(token, Integral) and not isinstance(token, bool)
    if not whole or not 0 <= token < vocabulary:
        advice = f"set model.network.generation_config.{name} to an id from 0 to {vocabulary - 1}"
        raise MeeError(f"The model says {name}={setting!r}: {advice}.")
