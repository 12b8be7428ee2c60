"""`LayerwiseDecoder`: the decoder of a T5-family model, one layer at a time, for rows that go their own ways.

Weights and encoder are `transformers`'. Projections with the same input are one matrix, biases a table.

A token that exits at layer l has state `h^l`. Layer j > l sees it through its keys and values alone:

- "copy" (CALM, MEE): `K_j n_j(h^l)`, `V_j n_j(h^l)`, computed when a later token of the row reaches layer j,
  together with that token's own, so that the matrices are read from memory once.
- "parallel" (FREE): when a later token of the row reaches layer j, all waiting tokens run through it in one
  causal pass.
- "verify": the same, and the rows stand at positions of their own; see `mee_utils.decoding.verify`.

For each layer and row the positions with keys and values are a prefix (`Cache.filled`), because a token that
reaches a layer brings all earlier positions up to it.
"""

from __future__ import annotations

import weakref
from functools import cached_property
from numbers import Integral

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..common.errors import MeeError
from ..models.states import output_scale
from .linear import Linear, Norm

# `LayerwiseDecoder.compact_below` of wide and narrow models; measured at the mini shape and t5-base
COMPACT_WIDE, COMPACT_NARROW, NARROW = 0.9, 0.0, 256
GATHER_BELOW = 0.25  # with a smaller share of rows active, keys and values are gathered instead of masked
PIECE = 128  # positions that a cache has room for at first; it doubles when they are full


class LayerWeights:
    """The weights of one decoder layer, projections with the same input joined."""

    def __init__(self, layer: nn.Module):
        own, cross = layer.layer[0].SelfAttention, layer.layer[1].EncDecAttention
        feed, inner = layer.layer[-1].DenseReluDense, own.q.weight.shape[0]
        self.norms = [Norm(sublayer.layer_norm) for sublayer in layer.layer]
        joined = torch.cat([own.q.weight, own.k.weight, own.v.weight]).detach()
        self.query, self.key_value = Linear(joined[:inner]), Linear(joined[inner:])
        self.joined = None if self.key_value.packed else Linear(joined)
        self.out = Linear(own.o.weight)
        self.cross_query, self.cross_out = Linear(cross.q.weight), Linear(cross.o.weight)
        self.cross_key_value = Linear(torch.cat([cross.k.weight, cross.v.weight]))
        self.gated = hasattr(feed, "wi_0")
        wide = torch.cat([feed.wi_0.weight, feed.wi_1.weight]) if self.gated else feed.wi.weight
        self.wide, self.narrow = Linear(wide), Linear(feed.wo.weight)
        self.activation = torch.relu if isinstance(feed.act, nn.ReLU) else feed.act.forward

    def queries_keys_values(self, normed: Tensor) -> Tensor:
        """`[rows, d]` to `[rows, 3 * inner]`."""
        if self.joined is not None:
            return self.joined(normed)
        return torch.cat([self.query(normed), self.key_value(normed)], dim=-1)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The last sublayer with its residual, `[rows, d]`."""
        gate, *linear = self.wide(self.norms[-1](x)).chunk(1 + self.gated, dim=-1)
        inner = self.activation(gate)
        return self.narrow.add_to(x, inner * linear[0] if linear else inner)


class Cache:
    """Keys, values and waiting states of one batch. Made by `LayerwiseDecoder.begin`."""

    def __init__(self, encoded: Tensor, mask: Tensor | None, layers: int, length: int, parallel: bool):
        self.batch, _, size = encoded.shape  # number of rows
        self.encoded, self.mask, self.length, self.parallel = encoded, mask, length, parallel
        self.position, self.capacity = 0, min(length, PIECE)  # of the present token, and room for how many
        # keys and values of tokens and of the source for each layer, `[2, row, head, position, d_kv]`
        self.own: list[Tensor | None] = [None] * layers
        self.cross: list[Tensor | None] = [None] * layers
        # how many positions have them, and each token's exit state ("parallel": brought up later)
        self.filled = np.zeros((layers, self.batch), dtype=np.int64)
        self.states = encoded.new_zeros(self.batch, self.capacity, size)

    def keep(self, slots: np.ndarray) -> None:
        """Drops all other rows, and their memory."""
        index, self.batch = torch.from_numpy(slots).to(self.encoded.device), len(slots)
        self.encoded, self.states = self.encoded[index], self.states[index]
        self.mask = None if self.mask is None else self.mask[index]
        self.own = [None if made is None else made[:, index] for made in self.own]
        self.cross = [None if made is None else made[:, index] for made in self.cross]
        self.filled = self.filled[:, slots]

    def move_to(self, position: int) -> None:
        """Goes on to the token at `position`; a full cache doubles its room, up to `length`."""
        self.position = position
        if position == self.capacity:
            room = (0, 0, 0, min(self.capacity, self.length - self.capacity))
            self.capacity += room[-1]
            self.states = functional.pad(self.states, room)
            self.own = [None if made is None else functional.pad(made, room) for made in self.own]


class Rows:
    """Some rows of a batch, all at its present token: their slots in the cache."""

    def __init__(self, cache: Cache, slots: np.ndarray):
        self.cache, self.slots, self.keys = cache, slots, cache.position + 1
        self.all = len(slots) == cache.batch
        self.gathered = not self.all and len(slots) < GATHER_BELOW * cache.batch
        self.queries: np.ndarray | None = None  # positions `[row, places]`; None: one, at the last key
        self.bias: Tensor | None = None  # made by the first layer

    def __len__(self) -> int:
        return len(self.slots)

    @cached_property
    def index(self) -> Tensor:
        """The slots on the device, `[rows]`."""
        return self.on_device(self.slots)

    @cached_property
    def mask(self) -> Tensor | None:
        """The source's padding, as `attend` wants it."""
        mask = self.cache.mask
        return mask[self.index] if self.gathered and mask is not None else mask

    def on_device(self, numbers) -> Tensor:
        return torch.from_numpy(np.asarray(numbers)).to(self.cache.encoded.device, non_blocking=True)

    def keep(self, which: np.ndarray) -> Rows:
        """The rows for which `which` is true."""
        return Rows(self.cache, self.slots[which])

    def waiting(self, layer: int) -> np.ndarray | None:
        """`[row]`, the first position without keys and values at this layer; None if no earlier one waits."""
        filled = self.cache.filled[layer - 1]
        first = filled if self.all else filled[self.slots]
        return None if first.min() == self.cache.position else first

    def attend(self, query: Tensor, keys_values: Tensor, bias: Tensor | None) -> Tensor:
        """From queries `[token, head, d_kv]` to the keys of their own rows; `[token, inner]`."""
        query = query.unsqueeze(2)
        if self.all or self.gathered:
            own = keys_values if self.all else keys_values.index_select(1, self.index)
            return attention(query, own, bias).flatten(1)
        spread = query.new_zeros(self.cache.batch, *query.shape[1:])
        spread[self.index] = query
        return attention(spread, keys_values, bias)[self.index].flatten(1)

    def store_exit_state(self, x: Tensor) -> None:
        """Stores the states `[rows, d_model]` with which the present token exits."""
        self.cache.states[self.index, self.cache.position] = x

    def truncate_cache(self, layers: np.ndarray) -> None:
        """Forgets the present token's keys and values above its exit layer `[rows]`, known only now."""
        self.cache.filled[:, self.slots] -= np.arange(1, len(self.cache.filled) + 1)[:, None] > layers


class Span(Rows):
    """The tokens that go through a layer together: of each row, all those that have not seen it yet.

    Rows stand at positions of their own ("verify"). States are flat, row by row, `[token, d_model]`;
    attention takes them as `[row, places]`, each row's last token at the right. `ends`, `[row]`, is one
    beyond the position of each row's last token; rows without any token are left out.
    """

    def __init__(self, cache: Cache, slots: np.ndarray, ends: np.ndarray, layer: int):
        self.given, filled = (slots, ends), cache.filled[:, slots]
        first = filled[layer - 1]
        # the next layer at which more tokens join; L + 1 if there is none
        self.until = len(filled) + 1 - int((filled == first).all(axis=1)[::-1].argmax())
        waits = first < ends
        if not waits.all():
            slots, first, ends = slots[waits], first[waits], ends[waits]
        super().__init__(cache, slots)
        self.gathered, self.ends, self.counts = not self.all, ends, ends - first
        self.places, self.keys = int(self.counts.max()), int(ends.max())
        begin = self.keys - self.places
        # all rows of the cache, at the same positions, as one row alone always is: slices do
        self.together = self.all and bool((first == begin).all() and (ends == self.keys).all())
        if self.places > 1 or not self.together:  # as few as tell; left of a row's first token none is in use
            asked = ends[:1] if self.together else ends
            self.queries = (asked[:, None] + np.arange(-self.places, 0)).clip(0)
        self.place = None  # where the tokens stand among `[row * places]`, unless they fill it
        if self.together:
            self.where = (slice(None), slice(begin, self.keys))
            return
        row, positions = waiting_places(first, ends, np.arange(len(slots)))
        self.where = tuple(self.on_device(np.stack([slots[row], positions])))
        if len(row) < len(slots) * self.places:
            self.place = self.on_device(row * self.places + positions - (ends - self.places)[row])

    def joined(self, layer: int, x: Tensor) -> tuple[Span, Tensor]:
        """What goes through a later layer: these tokens, and those that join there."""
        if layer != self.until:
            return self, x
        self.store(x)
        span = Span(self.cache, *self.given, layer)
        return span, span.load()

    def load(self) -> Tensor:
        """The states with which the tokens wait, `[token, d_model]`."""
        return self.cache.states[self.where].flatten(0, -2)

    def store(self, x: Tensor) -> None:
        """Leaves the tokens waiting with these states."""
        self.cache.states[self.where] = x.view(*self.counts.shape, -1, x.shape[-1]) if self.together else x

    def last(self, x: Tensor) -> Tensor:
        """Of each row its last token, `[row, d_model]`."""
        if self.places == 1:
            return x
        if self.together:
            return x[self.places - 1 :: self.places]
        return x[self.on_device(self.counts.cumsum() - 1)]

    def attend(self, query: Tensor, keys_values: Tensor, bias: Tensor | None) -> Tensor:
        if self.places == 1:
            return super().attend(query, keys_values, bias)
        if self.place is not None:
            spread = query.new_zeros(len(self) * self.places, *query.shape[1:])
            spread[self.place] = query
            query = spread
        query = query.unflatten(0, (-1, self.places)).transpose(1, 2)
        own = keys_values if self.all else keys_values.index_select(1, self.index)
        mixed = attention(query, own, bias).transpose(1, 2).flatten(2).flatten(0, 1)
        return mixed if self.place is None else mixed[self.place]


class LayerwiseDecoder:
    """Runs the decoder of a T5, T5 v1.1, Flan-T5, mT5 or LongT5 model layer by layer.

    The weights of `network`, the `transformers` model in evaluation mode, are copied into layouts made for
    decoding; after further training, make a new one. Raises `MeeError` for one in float16.
    """

    def __init__(self, network: nn.Module):
        decoder, config, head = network.get_decoder(), network.config, network.lm_head.weight
        self.embedding = decoder.embed_tokens.weight.detach()
        if self.embedding.dtype == torch.float16:
            raise MeeError("T5's states exceed the range of float16: load it in bfloat16 or float32.")
        self.config, self.encoder = config, network.get_encoder()
        self.heads, self.d_kv = config.num_heads, config.d_kv
        self.start, self.ends = start_and_end_ids(network)
        self.weights = [LayerWeights(layer) for layer in decoder.block]
        self.layers = len(self.weights)
        self.norm, self.scale = Norm(decoder.final_layer_norm), output_scale(network)
        # exited rows stay in the batch until no more than this share of it is active: taking rows out costs
        # time, in a narrow model more than running them for nothing
        self.compact_below = COMPACT_NARROW if config.d_model < NARROW else COMPACT_WIDE
        self.head, self._head_weight = Linear(head), head.detach()
        self._bias_module = decoder.block[0].layer[0].SelfAttention
        self._relative_bias = self._make_relative_bias(PIECE)

    def encode(self, batch: dict[str, Tensor]) -> Tensor:
        """The encoder's states `[batch, source, d_model]` of `input_ids` and `attention_mask`."""
        return self.encoder(**batch)[0]

    def begin(self, batch: dict, length: int, parallel: bool = False, encoded: Tensor | None = None) -> Cache:
        """Encodes a batch, unless that is done, for outputs of at most `length` tokens."""
        encoded, there = self.encode(batch) if encoded is None else encoded, batch["attention_mask"]
        mask = None
        if not bool(there.all()):
            mask = encoded.new_zeros(there.shape).masked_fill_(there == 0, -torch.inf)[:, None, None, :]
        return Cache(encoded, mask, self.layers, length, parallel)

    def embed(self, ids: Tensor) -> Tensor:
        """Token ids `[rows]` to the input of layer 1, `[rows, d_model]`."""
        return functional.embedding(ids, self.embedding)

    def readout(self, normed: Tensor) -> Tensor:
        """Logits `[rows, vocabulary]` of normalised states `[rows, d_model]`."""
        return self.head(normed if self.scale == 1.0 else normed * self.scale)

    def head_rows(self, ids: Tensor) -> Tensor:
        """The rows of `W` of ids `[rows, k]`, with the scale of the readout: `[rows, k, d_model]`."""
        rows = functional.embedding(ids, self._head_weight)
        return rows if self.scale == 1.0 else rows.mul_(self.scale)

    def run_layer(self, layer: int, x: Tensor, rows: Rows) -> Tensor:
        """Runs layer `layer` (1 to L) for the present token of some rows, `[rows, d_model]` to the same."""
        cache, first = rows.cache, rows.waiting(layer)
        if first is not None and cache.parallel:  # one causal pass of waiting tokens and the present one
            rows.store_exit_state(x)
            span = Span(cache, rows.slots, np.full(len(rows), rows.keys), layer)
            x = self.run_span(layer, span.load(), span)
            span.store(x)
            x = span.last(x)
        else:
            x = self._attend_and_feed(layer, x, self._store_keys_values(layer, x, rows, first), rows)
        cache.filled[layer - 1, rows.slots] = rows.keys
        return x

    def run_span(self, layer: int, x: Tensor, span: Span) -> Tensor:
        """Runs layer `layer` (1 to L) for the tokens of a span, `[token, d_model]` before and after it."""
        weights, own = self.weights[layer - 1], self._reserve(layer, span.cache)
        made = self._split(weights.queries_keys_values(weights.norms[0](x)), 3)
        if span.together:
            own[:, :, :, span.where[1]] = made[1:].unflatten(1, (-1, span.places)).transpose(2, 3)
        else:
            own[:, span.where[0], :, span.where[1]] = made[1:].transpose(0, 1)
        return self._attend_and_feed(layer, x, made[0], span)

    def _reserve(self, layer: int, cache: Cache) -> Tensor:
        """The layer's keys and values; at first makes room for them, and makes those of the source."""
        if cache.own[layer - 1] is None:
            size = (2, cache.batch, self.heads, cache.capacity, self.d_kv)
            cache.own[layer - 1] = cache.encoded.new_zeros(size)
            made = self.weights[layer - 1].cross_key_value(cache.encoded)
            shaped = made.view(*made.shape[:2], 2, self.heads, self.d_kv).permute(2, 0, 3, 1, 4)
            cache.cross[layer - 1] = shaped.contiguous()
        return cache.own[layer - 1]

    def _store_keys_values(self, layer: int, x: Tensor, rows: Rows, first: np.ndarray | None) -> Tensor:
        """Stores keys and values of the present token and of those that waited; returns the query."""
        weights, cache, position = self.weights[layer - 1], rows.cache, rows.cache.position
        own, norm = self._reserve(layer, cache), weights.norms[0]
        if first is None:
            made = self._split(weights.queries_keys_values(norm(x)), 3)
            own[:, slice(None) if rows.all else rows.index, :, position] = made[1:]
            return made[0]
        begin = int(first[0])
        if rows.all and (first == begin).all():  # all catch up from the same place, as one row always does
            normed = norm(torch.cat([cache.states[:, begin:position], x[:, None]], dim=1))
            made = self._split(weights.key_value(normed).flatten(0, 1), 2).unflatten(1, normed.shape[:2])
            own[:, :, :, begin : position + 1] = made.transpose(2, 3)
            return weights.query(normed[:, -1]).view(-1, self.heads, self.d_kv)
        slots, positions = rows.on_device(waiting_places(first, position, rows.slots))
        normed = norm(torch.cat([x, cache.states[slots, positions]]))
        present = torch.full((len(x),), position, device=x.device)
        made = self._split(weights.key_value(normed), 2)
        own[:, torch.cat([rows.index, slots]), :, torch.cat([present, positions])] = made.transpose(0, 1)
        return weights.query(normed[: len(x)]).view(-1, self.heads, self.d_kv)

    def _attend_and_feed(self, layer: int, x: Tensor, query: Tensor, rows: Rows) -> Tensor:
        """The layer from its queries `[token, head, d_kv]` on; `x` is `[token, d_model]`."""
        weights, cache = self.weights[layer - 1], rows.cache
        if rows.bias is None:
            rows.bias = self._bias(rows)
        x = weights.out.add_to(x, rows.attend(query, cache.own[layer - 1][:, :, :, : rows.keys], rows.bias))
        query = weights.cross_query(weights.norms[1](x)).view(-1, self.heads, self.d_kv)
        mixed = rows.attend(query, cache.cross[layer - 1], rows.mask)
        return weights.feed_forward(weights.cross_out.add_to(x, mixed))

    def _split(self, joined: Tensor, parts: int) -> Tensor:
        """`[rows, parts * inner]` to `[parts, rows, head, d_kv]`."""
        return joined.view(-1, parts, self.heads, self.d_kv).transpose(0, 1)

    def _bias(self, rows: Rows) -> Tensor:
        """The bias of queries on keys, `[row, head, places, key]`; one row may stand for all."""
        if rows.keys > self._relative_bias.shape[-1] // 2 + 1:
            self._relative_bias = self._make_relative_bias(2 * (rows.keys - 1))
        middle, table = self._relative_bias.shape[-1] // 2, self._relative_bias
        if rows.queries is None:  # a view
            return table[None, :, None, middle + 1 - rows.keys : middle + 1]
        index = torch.from_numpy(middle - rows.queries[..., None] + np.arange(rows.keys))
        return table[:, index.to(table.device, non_blocking=True)].transpose(0, 1)

    def _make_relative_bias(self, length: int) -> Tensor:
        """Position bias `[head, 2 * length - 1]`; entry `length - 1 + k - q` is for query q, key k <= q."""
        bias = self._bias_module.compute_bias(1, length, self.embedding.device, length - 1)[0, :, 0].detach()
        return functional.pad(bias, (0, length - 1), value=-torch.inf).contiguous()


def attention(query: Tensor, keys_values: Tensor, bias: Tensor | None) -> Tensor:
    """T5's attention (no scale) of `[rows, head, query, d_kv]` to `[2, rows, head, key, d_kv]`."""
    keys, values = keys_values.unbind()  # iterating a tensor costs twice as much
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=1.0)


def waiting_places(first: np.ndarray, end, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slots and positions of everything from `first` (one a row) to before `end` (a number or `[row]`), flat.

    >>> waiting_places(np.array([1, 3, 0]), 3, np.array([4, 5, 6]))
    (array([4, 4, 6, 6, 6]), array([1, 2, 0, 1, 2]))
    """
    counts = end - first
    positions = np.arange(counts.sum()) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    return np.repeat(slots, counts), positions


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
    _check_id(name, start, start, vocabulary)
    end = _setting(network, "eos_token_id")
    if end is None:
        return int(start), frozenset()
    ends = list(end) if isinstance(end, list | tuple) else [end]
    for token in ends or [end]:
        _check_id("eos_token_id", end, token, vocabulary)
    return int(start), frozenset(map(int, ends))


def _setting(network: nn.Module, name: str):
    """What a model says of itself: its `generation_config`, else its `config`; None if neither does."""
    value = getattr(network.generation_config, name, None)
    return getattr(network.config, name, None) if value is None else value


def _check_id(name: str, setting: object, token: object, vocabulary: int) -> None:
    """Raises `MeeError` unless a token of a setting is an id of the model."""
    whole = isinstance(token, Integral) and not isinstance(token, bool)
    if not whole or not 0 <= token < vocabulary:
        advice = f"set model.network.generation_config.{name} to an id from 0 to {vocabulary - 1}"
        raise MeeError(f"The model says {name}={setting!r}: {advice}.")


_KEPT: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def decoder_of(network: nn.Module) -> LayerwiseDecoder:
    """The decoder of a network, made on first use, and anew after a weight was changed in place or replaced.

    The encoder's weights count too, so that states which it made before belong to another decoder. What is
    written through `weight.data` goes unnoticed, as it does in torch itself.
    """
    weights = network.parameters()
    state = tuple((weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights)
    if network not in _KEPT or _KEPT[network][0] != state:
        _KEPT[network] = (state, LayerwiseDecoder(network))
    decoder = _KEPT[network][1]
    decoder.start, decoder.ends = start_and_end_ids(network)  # settings may have changed since
    return decoder
