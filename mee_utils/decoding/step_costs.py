"""What the steps of decoding cost: in FLOPs, or in seconds, measured on the machine that decodes.

A small decoder waits for Python, a large one for its weights, and a wide batch for the processor. What a
draft costs beside what it saves is therefore measured, in a fraction of a second, and not taken from FLOPs.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import torch

from ..exits.policy import BoundPolicy, ExitPolicy
from ..models.costs import DecoderSizes
from .cache import Cache, Rows, on_device, on_host
from .drafts import ExitDrafter
from .full_depth import Batch
from .layerwise import LayerwiseDecoder
from .token import TokenDecoder, predicted_ids
from .verify import DraftDecoder

REPEATS = 3  # of rounds that are measured; the median counts
WIDE = 8  # tokens of a round that is measured


class StepCosts(NamedTuple):
    """What the steps of one policy cost in a decoder, in any one unit.

    A token at full depth costs `layers * layer + readout + token`. The others are those of a round.
    """

    layers: int  # of the decoder
    layer: float  # a pass of a token through a layer
    readout: float  # the logits of a token over all ids
    decision: float  # a decision beside its logits
    token: float = 0.0  # a token at full depth beside its passes and readout
    draft: float = 0.0  # likewise a token that exits may draft, drafted or not
    round: float = 0.0  # likewise a verification
    wider: float = 0.0  # each further token of a verification, for each of its layers

    @classmethod
    def flops(cls, sizes: DecoderSizes, bound: BoundPolicy) -> StepCosts:
        """The costs in FLOPs. A pass of several tokens counts as one: they read the weights together.

        `sizes` may be those of another decoder than the policy's, with more layers or fewer: a pass through
        one layer of the policy's decoder then stands for its share of them.
        """
        layer = sizes.projections * sizes.layers / bound.layers
        return cls(bound.layers, layer, sizes.readout, bound.measure.flops(sizes.d_model))

    @property
    def full_depth(self) -> float:
        """Of a token."""
        return self.layers * self.layer + self.readout + self.token


@torch.inference_mode()
def measured_steps(decoder: LayerwiseDecoder, batch: Batch) -> StepCosts:
    """The costs in seconds for the rows of a batch together, but for those of a decision, which are 0."""
    layers = decoder.layers
    layer, readout = _layer_and_readout(decoder, batch)
    draft, wide = _draft_and_verification(decoder, batch, WIDE)
    _, narrow = _draft_and_verification(decoder, batch, 1)
    return StepCosts(
        layers=layers,
        layer=layer,
        readout=readout,
        decision=0.0,
        token=_token(decoder, batch) - layers * layer - readout,
        draft=draft - layer - readout,
        round=narrow - (layers - 1) * layer - readout,
        wider=max(0.0, wide - narrow) / ((WIDE - 1) * max(1, layers - 1)),
    )


def _begin(decoder: LayerwiseDecoder, batch: Batch, tokens: int) -> Cache:
    """A cache for outputs that no token ends."""
    return decoder.begin(batch.tokens, tokens, batch.encoded, (decoder.start, frozenset()))


def _layer_and_readout(decoder: LayerwiseDecoder, batch: Batch) -> tuple[float, float]:
    """Seconds of one token of each row: in a layer, and of its logits and the choice among them."""
    cache = _begin(decoder, batch, WIDE)
    fed = on_device(cache.starts, cache.states)
    seconds = []
    for position in range(WIDE):
        cache.move_to(position)
        rows = Rows(cache, np.arange(cache.batch))
        x = decoder.embed(fed)
        started = time.perf_counter()
        for layer in range(1, decoder.layers + 1):
            x = decoder.run_layer(layer, x, rows)
        on_host(x)
        after_layers = time.perf_counter()
        on_host(predicted_ids(decoder.logits(decoder.norm(x))))
        seconds.append((after_layers - started, time.perf_counter() - after_layers))
    through_layers, readout = np.median(seconds[1:], axis=0)  # the first makes room, and the source's keys
    return through_layers / decoder.layers, float(readout)


def _token(decoder: LayerwiseDecoder, batch: Batch) -> float:
    """Seconds of one token of each row at full depth."""
    bound = ExitPolicy("static", min_layer=decoder.layers).bind(decoder.layers, decoder.config.vocab_size)
    cache = _begin(decoder, batch, WIDE)
    token_decoder = TokenDecoder(decoder, cache, bound)
    ids = on_device(cache.starts, cache.states)
    seconds = []
    for position in range(WIDE):
        cache.move_to(position)
        started = time.perf_counter()
        ids = token_decoder.decode(Rows(cache, np.arange(cache.batch)), ids, batch.indices).device_ids
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds[1:]))


def _draft_and_verification(decoder: LayerwiseDecoder, batch: Batch, tokens: int) -> tuple[float, float]:
    """Seconds of drafting a token of each row at layer 1, and of verifying so many tokens of each row."""
    policy = ExitPolicy("static", min_layer=1, propagation="verify", max_draft=tokens)
    cache = _begin(decoder, batch, (REPEATS + 1) * tokens)
    drafter = ExitDrafter(decoder, cache, policy.bind(decoder.layers, decoder.config.vocab_size))
    verifier = DraftDecoder(decoder, cache, [drafter], batch.indices)
    rounds = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        for _ in range(tokens):
            for row in verifier.rows:
                row.last = int(cache.starts[row.slot])  # a decoder of one layer drafts nothing
            drafter.draft(verifier.rows)
        drafted = time.perf_counter()
        verifier.verify(verifier.rows)
        rounds.append(((drafted - started) / tokens, time.perf_counter() - drafted))
    draft, verification = np.median(rounds[1:], axis=0)
    return float(draft), float(verification)
