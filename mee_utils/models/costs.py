"""FLOPs of the decoder and of its encoder, counted from their sizes.

A multiply-add is two FLOPs. Products of matrices are counted, and nothing that is linear in a vector (norms,
activations, residuals, the softmax). For one token at position t (from 0), with an input of S tokens:

| part | FLOPs |
|---|---|
| a layer's projections q, k, v, o, and q, o to the source | `2 d i 6` (`i` = heads times d_kv) |
| its feed-forward | `2 d f 2`, gated `2 d f 3` |
| its attention | `4 i (t + 1) + 4 i S` |
| keys and values of a layer the token skipped, once a later token needs them | `4 d i` (*) |
| keys and values of the source for a layer, once per row, if any token reaches it | `4 d i S` |
| logits of V' ids | `2 d V'` |

(*) Where heads of queries share keys and values, with the size of these in place of `i`, as in k and v above.

The encoder runs once at full depth under every policy. It is counted apart (`encoder_flops`), and so is no
part of "decoder FLOPs"; *end to end* is both. A layer of it takes `2 d i 4` for its projections, its
feed-forward, and `4 i S` for its attention, for each of the S tokens. A causal model reads all of its prompt
but the last token at full depth, and has no projections to a source. No padding is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .families import is_causal


@dataclass(frozen=True)
class DecoderSizes:
    """The sizes that the count needs."""

    d_model: int
    inner: int  # heads times d_kv
    d_ff: int
    gated: bool
    layers: int
    vocabulary: int
    cross_attention: bool = True  # False: a causal model, whose layers have read the input before
    key_inner: int | None = None  # heads of keys times their size, if fewer than those of queries

    @classmethod
    def of(cls, config) -> DecoderSizes:
        """The sizes in a configuration of `mee_utils.models.families`."""
        if is_causal(config):
            return cls(
                d_model=config.hidden_size,
                inner=config.num_attention_heads * head_size(config),
                d_ff=config.intermediate_size,
                gated=True,
                layers=config.num_hidden_layers,
                vocabulary=config.vocab_size,
                cross_attention=False,
                key_inner=config.num_key_value_heads * head_size(config),
            )
        return cls(
            d_model=config.d_model,
            inner=config.num_heads * config.d_kv,
            d_ff=config.d_ff,
            gated=config.is_gated_act,
            layers=config.num_decoder_layers or config.num_layers,
            vocabulary=config.vocab_size,
        )

    @property
    def projections(self) -> int:
        """A layer without its attention, one token."""
        of_queries = 8 if self.cross_attention else 4
        feed_forward = 2 * self.d_ff * (3 if self.gated else 2)
        return self.d_model * (of_queries * self.inner + feed_forward) + self.key_value

    @property
    def key_value(self) -> int:
        """Keys and values of one token (or source token) for one layer."""
        return 4 * self.d_model * (self.key_inner or self.inner)

    @property
    def readout(self) -> int:
        """Logits of the whole vocabulary, one token."""
        return 2 * self.d_model * self.vocabulary


def head_size(config) -> int:
    """The size of a head of a causal model."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def reading_flops(config, source: np.ndarray) -> np.ndarray:
    """FLOPs of reading inputs before the output, `[input]`: of the encoder, or of a prompt at full depth.

    Args:
        config: of a network in `mee_utils.models.families`.
        source: number of tokens of each input, `[input]`.
    """
    sizes = DecoderSizes.of(config)
    if sizes.cross_attention:
        return encoder_flops(sizes, config.num_layers, source)
    read = np.asarray(source, dtype=np.int64) - 1
    attention = 4 * sizes.inner * read * (read + 1) // 2  # each token to those before it and to itself
    return sizes.layers * (read * sizes.projections + attention)


def encoder_flops(sizes: DecoderSizes, layers: int, source: np.ndarray) -> np.ndarray:
    """FLOPs of an encoder that reads inputs, `[input]`.

    Args:
        sizes: of the decoder, whose width, heads and feed-forward a T5's encoder has.
        layers: of the encoder.
        source: number of tokens of each input, `[input]`.
    """
    source = np.asarray(source, dtype=np.int64)
    of_token = replace(sizes, cross_attention=False).projections + 4 * sizes.inner * source
    return layers * source * of_token


def generation_flops(
    sizes: DecoderSizes,
    exit_layers: np.ndarray,
    source: int,
    readout_rows: np.ndarray,
    decisions: np.ndarray | int = 0,
    per_decision: int = 0,
    parallel: bool = False,
    positions: np.ndarray | None = None,
) -> dict[str, int]:
    """FLOPs of one generated sequence by part; "skipped" is done later for layers that tokens skipped.

    Args:
        sizes: of the decoder.
        exit_layers: `[token]`.
        source: number of tokens of the input.
        readout_rows: rows of the LM head that each token multiplied, `[token]`.
        decisions: how often the measure was computed for each token, `[token]`.
        per_decision: FLOPs of the measure itself.
        parallel: skipped layers are run in full for waiting tokens (FREE); else they get keys and values.
        positions: where exits were verified, the positions of all tokens that were run, `[token]` (those that
            were thrown away among them): all of them run through all layers.
    """
    exits = np.asarray(exit_layers, dtype=np.int64)
    verified = positions is not None
    position = positions if verified else np.arange(len(exits))
    before = source if sizes.cross_attention else source - 1  # a prompt's last token is the first position
    attention = 4 * sizes.inner * (position + 1 + before)  # [token], of one layer
    deepest = sizes.layers if verified else int(exits.max(initial=0))
    if verified:
        skipped = int(((sizes.layers - exits) * (sizes.projections + attention)).sum())
    else:
        skipped = _skipped_flops(sizes, exits, attention, parallel)
    return {
        "layers": int((exits * (sizes.projections + attention)).sum()),
        "skipped": skipped,
        "source": deepest * sizes.key_value * source if sizes.cross_attention else 0,
        "readout": round(2 * sizes.d_model * float(np.sum(readout_rows))),
        "measure": int(np.sum(decisions)) * per_decision,
    }


def _skipped_flops(sizes: DecoderSizes, exits: np.ndarray, attention: np.ndarray, parallel: bool) -> int:
    """What is done for skipped layers once a later token reaches them.

    Three tokens that exit at layers 2, 4 and 3: layer 3 is reached last by the third token and layer 4 by the
    second. Before them the first token has skipped both layers, so that it gets keys and values of two; the
    third skips layer 4, which no token reaches after it.
    """
    if not len(exits):
        return 0
    reached = exits[:, None] >= np.arange(1, exits.max() + 1)  # [token, layer]
    last = len(exits) - 1 - reached[::-1].argmax(axis=0)  # [layer], the last token that reaches it
    caught_up = last + 1 - reached.sum(axis=0)  # [layer], tokens before it that skipped the layer
    if not parallel:
        return int(caught_up.sum()) * sizes.key_value
    # their attention too: of all tokens up to the last, minus of those that reached the layer themselves
    extra_attention = np.cumsum(attention)[last] - (attention[:, None] * reached).sum(axis=0)
    return int(caught_up.sum()) * sizes.projections + int(extra_attention.sum())


# the mini models of profile `small`, and the papers' sizes
SHAPES = {
    "mini": DecoderSizes(d_model=96, inner=96, d_ff=128, gated=False, layers=12, vocabulary=1600),
    "t5-base": DecoderSizes(d_model=768, inner=768, d_ff=3072, gated=False, layers=12, vocabulary=32128),
    "t5-large": DecoderSizes(d_model=1024, inner=1024, d_ff=4096, gated=False, layers=24, vocabulary=32128),
}
