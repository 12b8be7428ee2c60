"""The cache of one batch, and which of its tokens go through a layer together.

A `Cache` has keys and values for each layer, row and position, and the states of tokens that wait. `Rows` are
some rows with their present token. A `Span` is the same with several tokens a row: those that waited below a
layer, and the present one. Both say where in the cache their keys and values are, and attend to them.

For each layer and row the positions with keys and values are a prefix (`Cache.filled`), because a token that
reaches a layer brings all earlier positions up to it.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from torch import Tensor
from torch.nn import functional

from .transfers import on_device

GATHER_BELOW = 0.25  # with a smaller share of rows active, keys and values are gathered instead of masked
FIRST_CAPACITY = 128  # positions that there is room for at first; it doubles when they are full


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
        parallel: bool,
    ):
        self.batch, _, size = encoded.shape  # number of rows
        self.encoded = encoded  # [row, source, d_model]
        self.source_ids = source_ids  # [row, source], -1 at padding
        self.mask = mask  # [row, 1, 1, source], minus infinity at padding; None: there is none
        self.max_new_tokens = max_new_tokens  # of the longest output
        self.parallel = parallel  # whether waiting tokens run through a layer together ("parallel")
        self.position = 0  # of the present token
        self.capacity = min(max_new_tokens, FIRST_CAPACITY)  # how many positions there is room for
        # of self-attention and of cross-attention, for each layer: [2, row, head, position, d_kv]
        self.self_keys_values: list[Tensor | None] = [None] * layers
        self.cross_keys_values: list[Tensor | None] = [None] * layers
        self.filled = np.zeros((layers, self.batch), dtype=np.int64)
        # each token's exit state, [row, position, d_model] ("parallel": brought up by later tokens)
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
        if position == self.capacity:
            added = min(self.capacity, self.max_new_tokens - self.capacity)
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


def next_merge_layer(filled: np.ndarray, layer: int) -> int:
    """The layer at which further tokens join those that have not seen `layer`; L + 1 if none do.

    Two rows, L = 4: row 0 has keys and values of 3 positions at layers 1 and 2, of 1 at layers 3 and 4; row 1
    of 2 positions at layer 1, of none above. New tokens begin at layer 1, row 1's two join them at layer 2,
    and positions 1 and 2 of row 0 join at layer 3. Then all have joined.

    >>> filled = np.array([[3, 2], [3, 0], [1, 0], [1, 0]])
    >>> [next_merge_layer(filled, layer) for layer in (1, 2, 3, 4)]
    [2, 3, 5, 5]

    Args:
        filled: `[layer, row]`, positions with keys and values; higher layers never have more.
        layer: the layer that the tokens go through next, from 1 on.
    """
    fewer = (filled[layer - 1 :] < filled[layer - 1]).any(axis=1)  # [layer], from `layer` on
    return layer + int(fewer.argmax()) if fewer.any() else len(filled) + 1


class Span(Rows):
    """The tokens that go through a layer together: of each row, all those that have not seen it yet.

    A row may have several tokens here, and rows stand at positions of their own ("verify"). States are flat,
    row by row, `[token, d_model]`; attention takes them as `[row, width]`, the last token of each row at the
    right:

        row 0, positions 3 to 5   3 4 5        flat: 3 4 5 | 5
        row 1, position 5         . . 5        flat_index: 0 1 2 5

    `ends`, `[row]`, is one beyond the position of each row's last token; rows without any token are left out.
    Where all rows of the cache stand at the same positions, as one row alone always does, the span is
    `aligned`: the tokens fill the rectangle, and slices address them in the cache.
    """

    def __init__(self, cache: Cache, slots: np.ndarray, ends: np.ndarray, layer: int):
        # with the rows that have no token here: at a later layer some of theirs may join
        self.requested_slots = slots
        self.requested_ends = ends
        filled = cache.filled[:, slots]  # [layer, row]
        first = filled[layer - 1]  # [row], the first position that has not seen the layer
        self.next_merge_layer = next_merge_layer(filled, layer)
        waiting = first < ends
        if not waiting.all():
            slots = slots[waiting]
            first = first[waiting]
            ends = ends[waiting]
        super().__init__(cache, slots)
        self.gathered = not self.is_whole_batch
        self.ends = ends
        self.counts = ends - first  # [row], tokens
        self.width = int(self.counts.max())
        self.key_count = int(ends.max())
        begin = self.key_count - self.width
        self.aligned = self.is_whole_batch and bool((first == begin).all() and (ends == self.key_count).all())
        self.flat_index = None  # where the tokens stand in `[row * width]`, unless they fill it
        if self.aligned:
            self._align(begin)
        else:
            self._spread(first)

    def _align(self, begin: int) -> None:
        """All rows hold positions `begin` to `key_count - 1`."""
        self.cache_index = (slice(None), slice(begin, self.key_count))
        if self.width > 1:  # one row stands for all
            self.query_positions = np.arange(begin, self.key_count)[None]

    def _spread(self, first: np.ndarray) -> None:
        """Each row holds positions `first` to `ends - 1`, `[row]`."""
        row, positions = waiting_positions(first, self.ends, np.arange(len(self)))
        self.cache_index = tuple(self.on_device(np.stack([self.slots[row], positions])))
        left_edge = self.ends - self.width  # [row], may lie before the output; nothing there is used
        self.query_positions = (left_edge[:, None] + np.arange(self.width)).clip(0)
        if len(row) < len(self) * self.width:
            self.flat_index = self.on_device(row * self.width + positions - left_edge[row])

    def joined(self, layer: int, x: Tensor) -> tuple[Span, Tensor]:
        """What goes through a later layer: these tokens, and those that join there."""
        if layer != self.next_merge_layer:
            return self, x
        self.store(x)
        span = Span(self.cache, self.requested_slots, self.requested_ends, layer)
        return span, span.load()

    def load(self) -> Tensor:
        """The states with which the tokens wait, `[token, d_model]`."""
        return self.cache.states[self.cache_index].flatten(0, -2)

    def store(self, x: Tensor) -> None:
        """Leaves the tokens waiting with these states."""
        self.cache.states[self.cache_index] = x.view(len(self), -1, x.shape[-1]) if self.aligned else x

    def last(self, x: Tensor) -> Tensor:
        """Of each row its last token, `[row, d_model]`."""
        if self.width == 1:
            return x
        if self.aligned:
            return x[self.width - 1 :: self.width]
        return x[self.on_device(self.counts.cumsum() - 1)]

    def attend(self, query: Tensor, keys_values: Tensor, bias: Tensor | None) -> Tensor:
        """From queries `[token, head, d_kv]` to the keys of their own rows; `[token, inner]`."""
        if self.width == 1:
            return super().attend(query, keys_values, bias)
        if self.flat_index is not None:
            spread = query.new_zeros(len(self) * self.width, *query.shape[1:])
            spread[self.flat_index] = query
            query = spread
        query = query.unflatten(0, (-1, self.width)).transpose(1, 2)  # [row, head, width, d_kv]
        of_rows = keys_values if self.is_whole_batch else keys_values.index_select(1, self.index)
        mixed = attention(query, of_rows, bias).transpose(1, 2).flatten(2).flatten(0, 1)
        return mixed if self.flat_index is None else mixed[self.flat_index]


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
