"""`LayerwiseDecoder`: a decoder, one layer at a time, for rows that go their own ways.

What is before the output (a source, a prompt) is read by `transformers`' own modules, and the weights are
`transformers`' too, in other layouts (`weights`). What differs between families is in `families`, and what is
kept of a batch in its `cache`.

A token that exits at layer l has state `h^l`. Layer j > l sees it through its keys and values alone:

- "copy" (CALM, MEE): `K_j n_j(h^l)`, `V_j n_j(h^l)`, computed when a later token of the row reaches layer j,
  together with that token's own, so that the matrices are read from memory once (of a row that has exited and
  stays in a batch of a narrow model, masked: at once, when the others run the layer).
- "parallel" (FREE) and "verify": when a later token of the row reaches layer j, all waiting tokens go through
  it in one causal pass; see `mee_utils.decoding.spans`.
"""

from __future__ import annotations

import weakref
from numbers import Integral

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..common.errors import MeeError
from ..models.families import is_causal
from ..models.plain import METHODS, check_plain, hooks_of
from .cache import FIRST_CAPACITY, Cache, Rows, source_ids_of, waiting_positions
from .families import family_of
from .weights import Linear, Rotation

# `LayerwiseDecoder.compact_below` of wide and narrow models; measured at the mini shape and t5-base
COMPACT_WIDE = 0.9
COMPACT_NARROW = 0.0
NARROW = 256  # d_model; below, a model is narrow


class LayerwiseDecoder:
    """Runs the layers that write the output one by one, of a model in `mee_utils.models.families`.

    The weights of `network`, the `transformers` model in evaluation mode, are copied into layouts made for
    decoding; after further training, make a new one. Raises `MeeError` for a T5 in float16 or one of mixed
    types, and for one that does anything beside its weights (`check_plain`).
    """

    def __init__(self, network: nn.Module):
        check_plain(network)
        config = network.config
        if network.lm_head.weight.dtype == torch.float16 and not is_causal(config):
            raise MeeError("T5's states exceed the range of float16: load it in bfloat16 or float32.")
        self.config = config
        self.family = family_of(network)
        self.start, self.ends = start_and_end_ids(network)
        self.weights = self.family.layers
        self.layers = len(self.weights)
        self.norm = self.family.norm
        self.embedding = self.family.embedding
        self.scale = self.family.output_scale
        # exited rows stay in the batch until no more than this share of it is active: taking rows out costs
        # time, in a narrow model more than running them for nothing
        self.compact_below = COMPACT_NARROW if config.hidden_size < NARROW else COMPACT_WIDE
        self._head_weight = network.lm_head.weight.detach()
        self.head = Linear(self._head_weight, row_alone=True)

    def encode(self, batch: dict[str, Tensor]) -> Tensor:
        """What is read of `input_ids` and `attention_mask` before the output, as the family has it."""
        return self.family.read(batch)

    def starts(self, source_ids: Tensor) -> np.ndarray:
        """`[row]`, the token that the output of each input `[row, source]` begins after."""
        return self.family.starts(source_ids, self.start)

    def begin(
        self,
        batch: dict,
        max_new_tokens: int,
        encoded: Tensor | None = None,
        start_and_ends: tuple[int | None, frozenset[int]] | None = None,
    ) -> Cache:
        """Makes the cache of a batch; reads the inputs first, unless what is read of them is given.

        Outputs begin and end with the ids of the model, unless others are given. Raises `MeeError` within
        `torch.autocast`, which would change the types of some of the steps here, and not of others.
        """
        if torch.is_autocast_enabled(self.embedding.device.type):
            advice = "leave it, and load the model in the type to compute in, as in dtype='bfloat16'"
            raise MeeError(f"torch.autocast is on, and exits decode in the type of the weights: {advice}.")
        if encoded is None:
            encoded = self.encode(batch)
        source_ids = source_ids_of(batch)
        mask = None
        is_token = batch["attention_mask"]  # [row, source]
        if not bool(is_token.all()):
            mask = self.embedding.new_zeros(is_token.shape).masked_fill_(is_token == 0, -torch.inf)
            mask = mask[:, None, None, :]
        start, ends = start_and_ends or (self.start, self.ends)
        starts = self.family.starts(source_ids, start)
        size = (len(source_ids), min(max_new_tokens, FIRST_CAPACITY), self.config.hidden_size)
        states = self.embedding.new_zeros(size)
        cache = Cache(source_ids, mask, states, self.layers, max_new_tokens, starts, ends)
        self.family.begin(cache, encoded)
        return cache

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
        query, made = weights.queries_keys_values(weights.norm(x), self._rotation(tokens))
        tokens.store_keys_values(keys_values, made)
        return self._attend_and_feed(layer, x, query, tokens)

    def _reserve(self, layer: int, cache: Cache) -> Tensor:
        """A layer's keys and values of outputs, `[2, row, head, position, d_kv]`; at first makes room."""
        if cache.self_keys_values[layer - 1] is None:
            self.family.open_layer(cache, layer)
        keys_values = cache.self_keys_values[layer - 1]
        return keys_values[:, :, :, cache.read_positions :] if cache.read_positions else keys_values

    def _rotation(self, tokens: Rows) -> Rotation | None:
        """How queries and keys of the tokens are rotated; None in a family without rotary positions."""
        if self.family.rotates and tokens.rotation is None:
            tokens.rotation = self.family.rotation(tokens.cache, *tokens.at)
        return tokens.rotation

    def _copy_block(self, layer: int, x: Tensor, rows: Rows, first: np.ndarray) -> Tensor:
        """Stores keys and values of the present token and of those that wait, from `first` `[row]` on.

        In all rows the same tokens wait: keys and values are a block. Returns the query of the present token,
        `[rows, head, group, d_kv]`.
        """
        begin = int(first[0])
        weights = self.weights[layer - 1]
        cache = rows.cache
        keys_values = self._reserve(layer, cache)  # [2, row, head, position, d_kv]
        waiting = cache.states[:, begin : cache.position]  # [row, position, d_model]
        normed = weights.norm(torch.cat([waiting, x[:, None]], dim=1))  # the present token last
        rotation = None
        if self.family.rotates:
            slots, positions = waiting_positions(first, rows.key_count, rows.slots)
            rotation = self.family.rotation(cache, *rows.on_device(np.stack([slots, positions])))
        pairs = weights.keys_values(normed.flatten(0, 1), rotation)  # [2, row * position, head, d_kv]
        pairs = pairs.unflatten(1, normed.shape[:2])  # [2, row, position, head, d_kv]
        keys_values[:, :, :, begin : rows.key_count] = pairs.transpose(2, 3)
        return weights.queries(normed[:, -1], self._rotation(rows))

    def _copy_scattered(self, layer: int, x: Tensor, rows: Rows, first: np.ndarray) -> Tensor:
        """The same where in each row other tokens wait: all in one flat list."""
        weights = self.weights[layer - 1]
        keys_values = self._reserve(layer, rows.cache)  # [2, row, head, position, d_kv]
        position = rows.cache.position
        slots, positions = rows.on_device(np.stack(waiting_positions(first, position, rows.slots)))
        waiting = rows.cache.states[slots, positions]  # [waiting token, d_model]
        normed = weights.norm(torch.cat([x, waiting]))  # the present tokens first
        present = torch.full((len(x),), position, device=x.device)
        all_slots = torch.cat([rows.index, slots])
        all_positions = torch.cat([present, positions])
        rotation = None
        if self.family.rotates:
            rotation = self.family.rotation(rows.cache, all_slots, all_positions)
        pairs = weights.keys_values(normed, rotation)  # [2, token, head, d_kv]
        keys_values[:, all_slots, :, all_positions] = pairs.transpose(0, 1)
        return weights.queries(normed[: len(x)], self._rotation(rows))

    def _attend_and_feed(self, layer: int, x: Tensor, query: Tensor, rows: Rows) -> Tensor:
        """The layer from its queries `[token, head, group, d_kv]` on; `x` is `[token, d_model]`."""
        weights = self.weights[layer - 1]
        cache = rows.cache
        scale = self.family.attention_scale
        if rows.bias is None:
            rows.bias = self.family.bias(rows)
        keys_values = cache.self_keys_values[layer - 1][:, :, :, : cache.read_positions + rows.key_count]
        x = weights.out.add_to(x, rows.attend(query, keys_values, rows.bias, scale))
        if weights.cross_out is not None:
            query = weights.cross_queries(x)
            mixed = rows.attend(query, cache.cross_keys_values[layer - 1], rows.mask, scale)
            x = weights.cross_out.add_to(x, mixed)
        return weights.feed_forward(x)


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


def start_and_end_ids(network: nn.Module) -> tuple[int | None, frozenset[int]]:
    """The id that outputs begin after (None in a causal model), and the ids that end an output.

    Each is what `generation_config` says, as in `transformers`, else what `config` says. An output begins
    after `decoder_start_token_id`, else `bos_token_id`, else `pad_token_id`; without an `eos_token_id` all
    outputs have `max_new_tokens` tokens. Raises `MeeError` for no start id, or what is no id of the model.
    """
    vocabulary = network.config.vocab_size
    ends = end_ids(_setting(network, "eos_token_id"), vocabulary)
    if is_causal(network.config):
        return None, ends
    for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
        start = _setting(network, name)
        if start is not None:
            break
    else:
        where = "model.network.generation_config.decoder_start_token_id"
        raise MeeError(f"The model has no decoder_start_token_id and no pad_token_id: set {where}.")
    check_id(name, start, start, vocabulary)
    return int(start), ends


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
