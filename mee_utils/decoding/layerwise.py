"""`LayerwiseDecoder`: the decoder of a T5-family model, one layer at a time, for rows that go their own ways.

The encoder is `transformers`' own, and so are the weights, in other layouts (`weights`).

A token that exits at layer l has state `h^l`. Layer j > l sees it through its keys and values alone:

- "copy" (CALM, MEE): `K_j n_j(h^l)`, `V_j n_j(h^l)`, computed when a later token of the row reaches layer j,
  together with that token's own, so that the matrices are read from memory once.
- "parallel" (FREE): when a later token of the row reaches layer j, all waiting tokens run through it in one
  causal pass.
- "verify": the same, and the rows stand at positions of their own; see `mee_utils.decoding.verify`.
"""

from __future__ import annotations

import weakref

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..common.errors import MeeError
from ..models.states import output_scale
from .cache import FIRST_CAPACITY, Cache, Rows, Span, source_ids_of, waiting_positions
from .start_and_end import start_and_end_ids
from .weights import LayerWeights, Linear, Norm

# `LayerwiseDecoder.compact_below` of wide and narrow models; measured at the mini shape and t5-base
COMPACT_WIDE = 0.9
COMPACT_NARROW = 0.0
NARROW = 256  # d_model; below, a model is narrow


class LayerwiseDecoder:
    """Runs the decoder of a T5, T5 v1.1, Flan-T5, mT5 or LongT5 model layer by layer.

    The weights of `network`, the `transformers` model in evaluation mode, are copied into layouts made for
    decoding; after further training, make a new one. Raises `MeeError` for one in float16.
    """

    def __init__(self, network: nn.Module):
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
        self.head = Linear(network.lm_head.weight)
        self._head_weight = network.lm_head.weight.detach()
        self._bias_module = decoder.block[0].layer[0].SelfAttention
        self._relative_bias = self._make_relative_bias(FIRST_CAPACITY)

    def encode(self, batch: dict[str, Tensor]) -> Tensor:
        """The encoder's states `[batch, source, d_model]` of `input_ids` and `attention_mask`."""
        return self.encoder(**batch)[0]

    def begin(
        self, batch: dict, max_new_tokens: int, parallel: bool = False, encoded: Tensor | None = None
    ) -> Cache:
        """Makes the cache of a batch; encodes it first, unless the encoder's states are given."""
        if encoded is None:
            encoded = self.encode(batch)
        mask = None
        is_token = batch["attention_mask"]  # [row, source]
        if not bool(is_token.all()):
            mask = encoded.new_zeros(is_token.shape).masked_fill_(is_token == 0, -torch.inf)
            mask = mask[:, None, None, :]
        return Cache(encoded, mask, source_ids_of(batch), self.layers, max_new_tokens, parallel)

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
        """Runs layer `layer` (1 to L) for the current token of the given rows; `x` is `[rows, d_model]`."""
        cache = rows.cache
        first = rows.first_waiting(layer)
        if first is not None and cache.parallel:  # one causal pass of waiting tokens and the present one
            rows.store_exit_state(x)
            span = Span(cache, rows.slots, np.full(len(rows), rows.key_count), layer)
            x = self.run_span(layer, span.load(), span)
            span.store(x)
            x = span.last(x)
        else:
            query = self._store_keys_values(layer, x, rows, first)
            x = self._attend_and_feed(layer, x, query, rows)
        cache.filled[layer - 1, rows.slots] = rows.key_count
        return x

    def run_span(self, layer: int, x: Tensor, span: Span) -> Tensor:
        """Runs layer `layer` (1 to L) for the tokens of a span, `[token, d_model]` before and after it."""
        weights = self.weights[layer - 1]
        keys_values = self._reserve(layer, span.cache)  # [2, row, head, position, d_kv]
        projected = self._split(weights.queries_keys_values(weights.norms[0](x)), 3)
        rows, positions = span.cache_index
        if span.aligned:
            keys_values[:, :, :, positions] = projected[1:].unflatten(1, (-1, span.width)).transpose(2, 3)
        else:
            keys_values[:, rows, :, positions] = projected[1:].transpose(0, 1)
        return self._attend_and_feed(layer, x, projected[0], span)

    def _reserve(self, layer: int, cache: Cache) -> Tensor:
        """The layer's keys and values; at first makes room for them, and makes those of the source."""
        if cache.self_keys_values[layer - 1] is None:
            size = (2, cache.batch, self.heads, cache.capacity, self.d_kv)
            cache.self_keys_values[layer - 1] = cache.encoded.new_zeros(size)
            joined = self.weights[layer - 1].cross_key_value(cache.encoded)  # [row, source, 2 * inner]
            shaped = joined.view(*joined.shape[:2], 2, self.heads, self.d_kv)
            cache.cross_keys_values[layer - 1] = shaped.permute(2, 0, 3, 1, 4).contiguous()
        return cache.self_keys_values[layer - 1]

    def _store_keys_values(self, layer: int, x: Tensor, rows: Rows, first: np.ndarray | None) -> Tensor:
        """Stores keys and values of the present token and of those that waited.

        `first` is what `Rows.first_waiting` returns. Returns the query, `[rows, head, d_kv]`.
        """
        if first is None:
            return self._store_present(layer, x, rows)
        begin = int(first[0])
        if rows.is_whole_batch and (first == begin).all():  # as one row alone always does
            return self._store_block(layer, x, rows, begin)
        return self._store_scattered(layer, x, rows, first)

    def _store_present(self, layer: int, x: Tensor, rows: Rows) -> Tensor:
        """No token waits: keys and values of the present one alone."""
        weights = self.weights[layer - 1]
        keys_values = self._reserve(layer, rows.cache)  # [2, row, head, position, d_kv]
        projected = self._split(weights.queries_keys_values(weights.norms[0](x)), 3)  # query, key, value
        slots = slice(None) if rows.is_whole_batch else rows.index
        keys_values[:, slots, :, rows.cache.position] = projected[1:]
        return projected[0]

    def _store_block(self, layer: int, x: Tensor, rows: Rows, begin: int) -> Tensor:
        """In all rows the same tokens wait, those from position `begin` on: keys and values are a block."""
        weights = self.weights[layer - 1]
        keys_values = self._reserve(layer, rows.cache)  # [2, row, head, position, d_kv]
        position = rows.cache.position
        waiting = rows.cache.states[:, begin:position]  # [row, position, d_model]
        normed = weights.norms[0](torch.cat([waiting, x[:, None]], dim=1))  # the present token last
        pairs = self._split(weights.key_value(normed).flatten(0, 1), 2)  # [2, row * position, head, d_kv]
        pairs = pairs.unflatten(1, normed.shape[:2])  # [2, row, position, head, d_kv]
        keys_values[:, :, :, begin : position + 1] = pairs.transpose(2, 3)
        return weights.query(normed[:, -1]).view(-1, self.heads, self.d_kv)

    def _store_scattered(self, layer: int, x: Tensor, rows: Rows, first: np.ndarray) -> Tensor:
        """In each row other tokens wait, those from position `first` `[row]` on: all in one flat list."""
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
        if rows.key_count > self._relative_bias.shape[-1] // 2 + 1:
            self._relative_bias = self._make_relative_bias(2 * (rows.key_count - 1))
        table = self._relative_bias
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
        bias = self._bias_module.compute_bias(1, length, self.embedding.device, length - 1)[0, :, 0].detach()
        return functional.pad(bias, (0, length - 1), value=-torch.inf).contiguous()


_DECODERS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def decoder_of(network: nn.Module) -> LayerwiseDecoder:
    """The decoder of a network, made on first use, and anew after a weight was changed in place or replaced.

    The encoder's weights count too, so that states which it made before belong to another decoder. What is
    written through `weight.data` goes unnoticed, as it does in torch itself.
    """
    weights = network.parameters()
    state = tuple((weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights)
    if network not in _DECODERS or _DECODERS[network][0] != state:
        _DECODERS[network] = (state, LayerwiseDecoder(network))
    decoder = _DECODERS[network][1]
    decoder.start, decoder.ends = start_and_end_ids(network)  # settings may have changed since
    return decoder
