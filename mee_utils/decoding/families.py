"""What differs between the families that are decoded here, beside their layers (`weights`).

| | `T5Family` | `CausalFamily` |
|---|---|---|
| reads an input with | the encoder | the same layers, which keep its keys and values |
| an output begins after | the model's start id | the last token of the prompt |
| a token sees the input | by cross-attention | as earlier positions of self-attention |
| positions are | a bias on attention | rotations of queries and keys |

A further family is a class with what these two have, and one of its layers in `weights`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..models.families import is_causal
from ..models.states import output_scale
from .cache import FIRST_CAPACITY, Cache, Rows, on_host
from .weights import CausalLayer, Norm, Rotation, T5Layer


class T5Family:
    """T5, T5 v1.1, Flan-T5, mT5 and LongT5."""

    rotates = False

    def __init__(self, network: nn.Module):
        decoder = network.get_decoder()
        self.encoder = network.get_encoder()
        self.layers = [T5Layer(layer) for layer in decoder.block]
        self.norm = Norm(decoder.final_layer_norm)
        self.embedding = decoder.embed_tokens.weight.detach()
        self.attention_scale = 1.0
        self.output_scale = output_scale(network)
        self._bias_module = decoder.block[0].layer[0].SelfAttention
        self._relative_bias = self._make_relative_bias(FIRST_CAPACITY)

    def read(self, batch: dict[str, Tensor]) -> Tensor:
        """The encoder's states `[row, source, d_model]` of `input_ids` and `attention_mask`."""
        return self.encoder(**batch)[0]

    def starts(self, source_ids: Tensor, start: int) -> np.ndarray:
        """`[row]`, the token that the output of each input `[row, source]` begins after: `start`."""
        return np.full(len(source_ids), start)

    def begin(self, cache: Cache, read: Tensor) -> None:
        """Puts what was read into a new cache."""
        cache.encoded = read

    def open_layer(self, cache: Cache, layer: int) -> None:
        """Makes room for a layer's keys and values, and makes those of the source."""
        weights = self.layers[layer - 1]
        size = (2, cache.batch, weights.heads, cache.capacity, weights.d_kv)
        cache.self_keys_values[layer - 1] = cache.states.new_zeros(size)
        joined = weights.cross_key_value(cache.encoded)  # [row, source, 2 * inner]
        shaped = joined.view(*joined.shape[:2], 2, weights.heads, weights.d_kv)
        cache.cross_keys_values[layer - 1] = shaped.permute(2, 0, 3, 1, 4).contiguous()

    def bias(self, rows: Rows) -> Tensor:
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
        bias = self.embedding.new_zeros(self.layers[0].heads, length)
        if self._bias_module.has_relative_attention_bias:  # a decoder without its first layer has none
            positions = (1, length, self.embedding.device, length - 1)
            bias = self._bias_module.compute_bias(*positions)[0, :, 0].detach()
        return functional.pad(bias, (0, length - 1), value=-torch.inf).contiguous()


class CausalFamily:
    """Llama, Qwen2, Qwen3 and SmolLM3; prompts of a batch are padded on the left.

    All of a prompt but its last token is read by `transformers`' own forward pass, at full depth; the last
    one is the first that is fed to the layers here. Output positions follow the prompt's in the cache.
    """

    rotates = True

    def __init__(self, network: nn.Module):
        decoder = network.get_decoder()
        self.reader = decoder
        self.layers = [CausalLayer(layer) for layer in decoder.layers]
        self.norm = Norm(decoder.norm)
        self.embedding = decoder.embed_tokens.weight.detach()
        self.attention_scale = decoder.layers[0].self_attn.scaling
        self.output_scale = 1.0
        self._angles = decoder.rotary_emb
        self._rotations = self._make_rotations(FIRST_CAPACITY)

    def read(self, batch: dict[str, Tensor]) -> Tensor:
        """Keys and values of prompts without their last tokens, `[layer, 2, row, head, position, d_kv]`."""
        ids = batch["input_ids"][:, :-1]
        if not ids.shape[1]:
            first = self.layers[0]
            size = (len(self.layers), 2, len(ids), first.heads, 0, first.d_kv)
            return self.embedding.new_zeros(size)
        mask = batch["attention_mask"][:, :-1]
        positions = (mask.cumsum(dim=-1) - 1).clamp(min=0)
        read = self.reader(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True)
        return torch.stack([torch.stack([each.keys, each.values]) for each in read.past_key_values.layers])

    def starts(self, source_ids: Tensor, start: int | None) -> np.ndarray:
        """`[row]`, the token that the output of each prompt `[row, source]` begins after: its last one."""
        return on_host(source_ids[:, -1])

    def begin(self, cache: Cache, read: Tensor) -> None:
        """Puts the prompts' keys and values before those of the outputs."""
        lengths = (cache.source_ids >= 0).sum(dim=-1)
        cache.first_place = lengths - 1  # [row], of the prompt's last token
        cache.read_positions = read.shape[-2]
        if cache.mask is not None:
            cache.mask = cache.mask[..., :-1]
        room = (0, 0, 0, cache.capacity)
        cache.self_keys_values = [functional.pad(of_layer, room) for of_layer in read]

    def rotation(self, cache: Cache, slots, positions) -> Rotation:
        """Of tokens in these slots of the cache, at these positions of the outputs, `[token]`."""
        places = cache.first_place[slots] + positions
        longest = int(cache.source_ids.shape[1]) + cache.capacity
        if longest > len(self._rotations[0]):
            self._rotations = self._make_rotations(2 * longest)
        return Rotation(*(table[places] for table in self._rotations))

    def _make_rotations(self, length: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the first places of a text, `[place, d_kv]` each."""
        places = torch.arange(length, device=self.embedding.device)[None]
        cos, sin = self._angles(self.embedding, places)
        return cos[0], sin[0]

    def bias(self, rows: Rows) -> Tensor | None:
        """What hides padding and later tokens from queries, `[row, 1, width * group, key]`; None: nothing."""
        hidden = rows.mask  # [row, 1, 1, position of the prompt], or None
        if rows.query_positions is None:  # one token a row, behind all others
            return None if hidden is None else functional.pad(hidden, (0, rows.key_count))
        queries = torch.from_numpy(rows.query_positions)[..., None]  # [row, width, 1]
        later = queries < torch.arange(rows.key_count)  # [row, width, key]
        later = later.to(self.embedding.device).repeat_interleave(self.layers[0].group, dim=1)[:, None]
        bias = self.embedding.new_zeros(later.shape).masked_fill_(later, -torch.inf)
        read = rows.cache.read_positions
        if hidden is None:
            return functional.pad(bias, (read, 0))
        count = max(len(hidden), len(bias))  # one row of the bias may stand for all
        size = (count, 1, bias.shape[2])
        return torch.cat([hidden.expand(*size, -1), bias.expand(*size, -1)], dim=-1)


def family_of(network: nn.Module) -> T5Family | CausalFamily:
    """The family of a network, with its weights in layouts for decoding."""
    return CausalFamily(network) if is_causal(network.config) else T5Family(network)
