"""Spans: tokens that wait go through a layer together with those behind them, in one causal pass.

A *span* is what goes through a layer then: of each row all tokens that have not seen it, up to a last one.

- "parallel" (FREE): the last one is the present token, which takes along what waits (`run_with_waiting`).
- "verify": the last one is a draft, or the token that is drafted; rows stand at positions of their own, and
  at higher layers further tokens may join (`Span.joined`). See `mee_utils.decoding.verify`.

The states of a span are flat, row by row, `[token, d_model]`; attention takes a rectangle, `[row, width]`.
How the two are related, and where in the cache the tokens are, depends on how the rows stand:

| | `AlignedSpan` | `RaggedSpan` |
|---|---|---|
| positions of two rows | 3 4 5 and 3 4 5 | 3 4 5 and 5 |
| flat | 3 4 5 3 4 5, the rectangle | 3 4 5 5 |
| rectangle | 3 4 5 above 3 4 5 | 3 4 5 above . . 5: the last token of each row at the right |
| where in the cache | a slice of positions, in all rows | a slot and a position for each token |
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from torch import Tensor

from .cache import Cache, Rows, attention, waiting_positions
from .layerwise import LayerwiseDecoder


def run_with_waiting(decoder: LayerwiseDecoder, layer: int, x: Tensor, rows: Rows) -> Tensor:
    """As `LayerwiseDecoder.run_layer`; tokens that wait below the layer go through it too ("parallel")."""
    cache = rows.cache
    if rows.first_waiting(layer) is None:
        x = decoder.run_pass(layer, x, rows)
    else:
        rows.store_exit_state(x)
        span = span_at(layer, cache, rows.slots, np.full(len(rows), rows.key_count))
        x = decoder.run_pass(layer, span.load(), span)
        span.store(x)
        x = span.last(x)
    cache.filled[layer - 1, rows.slots] = rows.key_count
    return x


class Request(NamedTuple):
    """What a span was asked for: all tokens of some rows. Those that have seen its layer may join later."""

    layer: int
    slots: np.ndarray  # [row]
    ends: np.ndarray  # [row], one beyond the position of each row's last token


def span_at(layer: int, cache: Cache, slots: np.ndarray, ends: np.ndarray) -> Span:
    """The span of a layer: of the rows at `slots` all tokens before `ends`, `[row]`, that have not seen it.

    Rows without such a token are left out.
    """
    request = Request(layer, slots, ends)
    first = cache.filled[layer - 1, slots]  # [row], the first position that has not seen the layer
    waits = first < ends
    if not waits.all():
        slots = slots[waits]
        first = first[waits]
        ends = ends[waits]
    whole_batch = len(slots) == cache.batch
    aligned = whole_batch and bool((first == first[0]).all() and (ends == ends[0]).all())
    kind = AlignedSpan if aligned else RaggedSpan
    return kind(cache, slots, first, ends, request)


class Span(Rows):
    """Of some rows the tokens from position `first` to before `ends`, `[row]`; made by `span_at`.

    A subclass says where in the cache they are, in these methods:

    - `load()`: the states with which the tokens wait, `[token, d_model]`;
    - `store(x)` leaves them waiting with these states, `[token, d_model]`;
    - `store_keys_values(keys_values, made)`, as `Rows` has it;
    - `last(x)`: of each row its last token, `[token, d_model]` to `[row, d_model]`.

    Attributes:
        ends: as given.
        counts: `[row]`, how many tokens each row has here, at least one.
        width: the most tokens of a row.
    """

    def __init__(
        self, cache: Cache, slots: np.ndarray, first: np.ndarray, ends: np.ndarray, request: Request
    ):
        super().__init__(cache, slots)
        self.gathered = not self.is_whole_batch
        self.ends = ends
        self.counts = ends - first
        self.width = int(self.counts.max())
        self.key_count = int(ends.max())
        self._request = request

    def attend(self, query: Tensor, keys_values: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        """From queries `[row * width, head, group, d_kv]` to the keys of their own rows; likewise."""
        if self.width == 1:
            return super().attend(query, keys_values, bias, scale)
        rows = len(self)
        _, heads, group, size = query.shape
        query = query.view(rows, self.width, heads, group, size).transpose(1, 2).flatten(2, 3)
        of_rows = keys_values if self.is_whole_batch else keys_values.index_select(1, self.index)
        mixed = attention(query, of_rows, bias, scale).transpose(1, 2)  # [row, width * group, head, d_kv]
        if group > 1:
            mixed = mixed.unflatten(1, (self.width, group)).transpose(2, 3)
        return mixed.reshape(rows * self.width, -1)

    def joined(self, layer: int, x: Tensor) -> tuple[Span, Tensor]:
        """What goes through a later layer: these tokens, and those that join there."""
        if layer != self.next_merge_layer:
            return self, x
        self.store(x)
        span = span_at(layer, self.cache, self._request.slots, self._request.ends)
        return span, span.load()

    @cached_property
    def next_merge_layer(self) -> int:
        """The layer at which further tokens join; L + 1 if none do."""
        return next_merge_layer(self.cache.filled[:, self._request.slots], self._request.layer)


class AlignedSpan(Span):
    """The whole batch, all rows at the same positions, as one row alone always is."""

    def __init__(self, cache, slots, first, ends, request):
        super().__init__(cache, slots, first, ends, request)
        begin = int(first[0])
        self.positions = slice(begin, self.key_count)
        if self.width > 1:
            self.query_positions = np.arange(begin, self.key_count)[None]  # one row stands for all

    @property
    def at(self) -> tuple[Tensor, Tensor]:
        slots, positions = waiting_positions(self.ends - self.counts, self.key_count, self.slots)
        return tuple(self.on_device(np.stack([slots, positions])))

    def load(self) -> Tensor:
        return self.cache.states[:, self.positions].flatten(0, 1)

    def store(self, x: Tensor) -> None:
        self.cache.states[:, self.positions] = x.view(len(self), -1, x.shape[-1])

    def store_keys_values(self, keys_values: Tensor, made: Tensor) -> None:
        by_row = made.view(2, len(self), self.width, *made.shape[2:])
        keys_values[:, :, :, self.positions] = by_row.transpose(2, 3)

    def last(self, x: Tensor) -> Tensor:
        return x if self.width == 1 else x[self.width - 1 :: self.width]


class RaggedSpan(Span):
    """Some rows, or rows at different positions, each with tokens from `first` to before `ends`, `[row]`.

    In the example of the module the rectangle of width 3 has the places 0 to 5, and the four tokens stand at
    `places` 0, 1, 2 and 5.
    """

    def __init__(self, cache, slots, first, ends, request):
        super().__init__(cache, slots, first, ends, request)
        row, positions = waiting_positions(first, ends, np.arange(len(slots)))  # [token]
        self.token_slots, self.token_positions = self.on_device(np.stack([slots[row], positions]))
        left_edge = ends - self.width  # [row], may lie before the output; nothing there is used
        self.query_positions = (left_edge[:, None] + np.arange(self.width)).clip(0)  # [row, width]
        self.places: Tensor | None = None  # [token], where they stand in `[row * width]`; None: they fill it
        if len(row) < len(slots) * self.width:
            self.places = self.on_device(row * self.width + positions - left_edge[row])

    @property
    def at(self) -> tuple[Tensor, Tensor]:
        return self.token_slots, self.token_positions

    def load(self) -> Tensor:
        return self.cache.states[self.token_slots, self.token_positions]

    def store(self, x: Tensor) -> None:
        self.cache.states[self.token_slots, self.token_positions] = x

    def store_keys_values(self, keys_values: Tensor, made: Tensor) -> None:
        keys_values[:, self.token_slots, :, self.token_positions] = made.transpose(0, 1)

    def last(self, x: Tensor) -> Tensor:
        return x if self.width == 1 else x[self.on_device(self.counts.cumsum() - 1)]

    def attend(self, query: Tensor, keys_values: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        """From queries `[token, head, group, d_kv]`, in a rectangle with zeros where there is no token."""
        if self.places is None:
            return super().attend(query, keys_values, bias, scale)
        rectangle = query.new_zeros(len(self) * self.width, *query.shape[1:])
        rectangle[self.places] = query
        return super().attend(rectangle, keys_values, bias, scale)[self.places]


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
