"""FLOPs of the decoder, counted from its sizes.

A multiply-add is two FLOPs. Products of matrices are counted, and nothing that is linear in a vector (norms,
activations, residuals, the softmax). For one token at position t (from 0), with an input of S tokens:

| part | FLOPs |
|---|---|
| a layer's projections q, k, v, o, and q, o to the source | `2 d i 6` (`i` = heads times d_kv) |
| its feed-forward | `2 d f 2`, gated `2 d f 3` |
| its attention | `4 i (t + 1) + 4 i S` |
| keys and values of a layer the token skipped, once a later token needs them | `4 d i` |
| keys and values of the source for a layer, once a row, if any token reaches it | `4 d i S` |
| a readout over V' ids | `2 d V'` |

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
        inner, layers = config.num_heads * config.d_kv, config.num_decoder_layers or config.num_layers
        return cls(config.d_model, inner, config.d_ff, config.is_gated_act, layers, config.vocab_size)

    @property
    def projections(self) -> int:
        """A layer without its attention, one token."""
        return 12 * self.d_model * self.inner + 2 * self.d_model * self.d_ff * (3 if self.gated else 2)

    @property
    def key_value(self) -> int:
        """Keys and values of one token (or source token) for one layer."""
        return 4 * self.d_model * self.inner

    @property
    def readout(self) -> int:
        """One readout over the whole vocabulary."""
        return 2 * self.d_model * self.vocabulary


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

    `exit_layers`, `readout_rows` (of `W`) and `decisions` are `[token]`, `source` is the length of the input,
    `per_decision` what the measure itself takes. `parallel`: skipped layers are run in full for waiting
    tokens (FREE); else they get keys and values. `positions` `[token]`: where tokens stood that were verified
    (those that were thrown away among them): all of them run through all layers.
    """
    exits, verified = np.asarray(exit_layers, dtype=np.int64), positions is not None
    attention = 4 * sizes.inner * ((positions if verified else np.arange(len(exits))) + 1 + source)
    layers, skipped = int((exits * (sizes.projections + attention)).sum()), 0
    if verified:
        skipped = int(((sizes.layers - exits) * (sizes.projections + attention)).sum())
    elif len(exits):
        reached = exits[:, None] >= np.arange(1, exits.max() + 1)
        # the last token that reaches each layer takes those before it along
        last = len(exits) - 1 - reached[::-1].argmax(axis=0)
        late = last + 1 - reached.sum(axis=0)
        skipped = int(late.sum()) * (sizes.projections if parallel else sizes.key_value)
        if parallel:
            skipped += int((np.cumsum(attention)[last] - (attention[:, None] * reached).sum(axis=0)).sum())
    return {
        "layers": layers,
        "skipped": skipped,
        "source": (sizes.layers if verified else int(exits.max(initial=0))) * sizes.key_value * source,
        "readout": round(2 * sizes.d_model * float(np.sum(readout_rows))),
        "measure": int(np.sum(decisions)) * per_decision,
    }


SHAPES = {  # the mini models of profile `small`, and the papers' sizes
    "mini": DecoderSizes(96, 96, 128, False, 12, 1500),
    "t5-base": DecoderSizes(768, 768, 3072, False, 12, 32128),
    "t5-large": DecoderSizes(1024, 1024, 4096, False, 24, 32128),
}
