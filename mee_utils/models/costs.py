"""Floating-point operations of the decoder, counted from its sizes.

A multiply-add is two operations; products of matrices are counted, and nothing that is linear in a vector (norms, activations,
residuals, the softmax). For one token at position t (from 0), with an input of S tokens:

| part | operations |
|---|---|
| a block's projections q, k, v, o, and q, o to the source | `2 d i 6` (`i` = heads times d_kv) |
| its feed-forward | `2 d f 2`, gated `2 d f 3` |
| its attention | `4 i (t + 1) + 4 i S` |
| keys and values of a block the token skipped, once a later token needs them | `4 d i` |
| keys and values of the source for a block, once a row, if any token reaches it | `4 d i S` |
| a read-out over V' ids | `2 d V'` |

The encoder runs once at full depth under every policy and is left out. No padding is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class DecoderSizes:
    """The sizes that the count needs."""

    d_model: int
    inner: int
    d_ff: int
    gated: bool
    layers: int
    vocabulary: int

    @classmethod
    def of(cls, config) -> DecoderSizes:
        """Reads them off a T5-family configuration."""
        layers = config.num_decoder_layers or config.num_layers
        return cls(config.d_model, config.num_heads * config.d_kv, config.d_ff, config.is_gated_act, layers, config.vocab_size)

    @property
    def projections(self) -> int:
        """A block without its attention, one token."""
        return 12 * self.d_model * self.inner + 2 * self.d_model * self.d_ff * (3 if self.gated else 2)

    @property
    def key_value(self) -> int:
        """Keys and values of one token (or source token) for one block."""
        return 4 * self.d_model * self.inner

    @property
    def read_out(self) -> int:
        """One read-out over the whole vocabulary."""
        return 2 * self.d_model * self.vocabulary


def generation_flops(
    sizes: DecoderSizes, exit_layers: np.ndarray, source: int, read_outs: np.ndarray, parallel: bool = False, per_decision: int = 0,
    decisions: np.ndarray | None = None,
) -> dict[str, int]:  # fmt: skip
    """Operations of one generated sequence.

    Args:
        sizes: of the decoder.
        exit_layers: `[token]`, the block each token left at.
        source: tokens of the input.
        read_outs: `[token]`, how many read-outs each token took; one over a part of the vocabulary counts as that part.
        parallel: whether skipped blocks are run in full for waiting tokens (FREE) or only get keys and values.
        per_decision: operations of the measure itself in each decision.
        decisions: `[token]`, how many decisions each token took.

    Returns:
        Operations by part: "blocks", "skipped" (what is done later for blocks that tokens skipped), "source", "read_out", "measure".
    """
    exits, positions = np.asarray(exit_layers, dtype=np.int64), np.arange(len(exit_layers))
    attention = 4 * sizes.inner * (positions + 1 + source)
    blocks, skipped = int((exits * (sizes.projections + attention)).sum()), 0
    if len(exits):
        reached = exits[:, None] >= np.arange(1, exits.max() + 1)
        last = len(exits) - 1 - reached[::-1].argmax(axis=0)  # the last token that reaches each block takes those before it along
        late = last + 1 - reached.sum(axis=0)
        skipped = int(late.sum()) * sizes.key_value
        if parallel:
            waited = np.cumsum(attention)[last] - (attention[:, None] * reached).sum(axis=0)
            skipped = int(late.sum()) * sizes.projections + int(waited.sum())
    return {
        "blocks": blocks,
        "skipped": skipped,
        "source": int(exits.max(initial=0)) * sizes.key_value * source,
        "read_out": round(float(np.sum(read_outs)) * sizes.read_out),
        "measure": 0 if decisions is None else int(np.sum(decisions)) * per_decision,
    }
