"""The cache of a batch, and which of its tokens go through a layer together.

A `Cache` has keys and values for each layer, row and position, and the states of tokens that wait. `Rows` are
some rows with their present token: they store its keys and values in the cache, and attend to those of their
own rows. For each layer and row the positions with keys and values are a prefix (`Cache.filled`), because a
token that reaches a layer brings all earlier positions up to it.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

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
        source_ids: Tensor,
        mask: Tensor | None,
        states: Tensor,
        layers: int,
        max_new_tokens: int,
        starts: np.ndarray,
        ends: frozenset[int] = frozenset(),
    ):
        self.batch = len(source_ids)  # number of rows
        self.source_ids = source_ids  # [row, source], -1 at padding
        # of the source, [row, 1, 1, source], minus infinity at padding; None: there is none
        self.mask = mask
        self.max_new_tokens = max_new_tokens  # of the longest output
        self.starts = starts  # [row], the ids that outputs begin after
        self.ends = ends  # those that end one
        self.position = 0  # of the present token
        self.capacity = states.shape[1]  # how many positions there is room for
        # the states with which tokens wait, [row, position, d_model]: those of their exits ("copy")
        self.states = states
        # of self-attention, for each layer: [2, row, head, read_positions + position, d_kv]
        self.self_keys_values: list[Tensor | None] = [None] * layers
        self.filled = np.zeros((layers, self.batch), dtype=np.int64)
        # of a source that is encoded: its states [row, source, d_model], and keys and values as above
        self.encoded: Tensor | None = None
        self.cross_keys_values: list[Tensor | None] = [None] * layers
        # of a prompt that the layers have read: how many positions it has in the cache, and [row], the place
        # in its whole text at which each output begins
        self.read_positions = 0
        self.first_place: Tensor | None = None

    def keep(self, slots: np.ndarray) -> None:
        """Drops all other rows, and their memory."""
        index = on_device(slots, self.states)
        self.batch = len(slots)
        self.starts = self.starts[slots]
        for name in ("source_ids", "mask", "states", "encoded", "first_place"):
            values = getattr(self, name)
            setattr(self, name, None if values is None else values[index])
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
        self.rotation = None  # of queries and keys, likewise; None: not made, or the family has none

    def __len__(self) -> int:
        return len(self.slots)

    @cached_property
    def index(self) -> Tensor:
        """The slots on the device, `[rows]`."""
        return self.on_device(self.slots)

    @property
    def at(self) -> tuple[Tensor, Tensor | int]:
        """Where each token is: its slot `[token]`, and its position, `[token]` or one for all."""
        return self.index, self.cache.position

    @cached_property
    def mask(self) -> Tensor | None:
        """The source's padding, `[row, 1, 1, source]`, of as many rows as the keys that `attend` takes."""
        mask = self.cache.mask
        return mask[self.index] if self.gathered and mask is not None else mask

    def on_device(self, numbers) -> Tensor:
        """Numbers of the host as a tensor beside the cache."""
        return on_device(numbers, self.cache.states)

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

    def attend(self, query: Tensor, keys_values: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        """From queries `[token, head, group, d_kv]` to the keys of their own rows; `[token, inner]`."""
        if self.is_whole_batch or self.gathered:
            of_rows = keys_values if self.is_whole_batch else keys_values.index_select(1, self.index)
            return attention(query, of_rows, bias, scale).flatten(1)
        spread = query.new_zeros(self.cache.batch, *query.shape[1:])
        spread[self.index] = query
        return attention(spread, keys_values, bias, scale)[self.index].flatten(1)

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


def attention(query: Tensor, keys_values: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Attention of `[rows, head, query, d_kv]` to `[2, rows, head, key, d_kv]`; `bias` is added to scores."""
    keys, values = keys_values.unbind()  # iterating a tensor costs twice as much
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=scale)


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
