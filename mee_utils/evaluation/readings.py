"""What a pruned or contrasted read-out would say of the tokens of a trace: replayed on stored states, no decoding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import CompanionError
from ..exits.policy import ExitPolicy

CHUNK = 512  # tokens whose scores over the vocabulary are in memory at a time


@dataclass(frozen=True)
class Readings:
    """What a policy reads at each block, if nobody exits. `decision` counts the blocks at which the policy is asked.

    Attributes:
        confidences: `[token, decision]`.
        token_ids: `[token, decision + 1]`, the prediction at each of them and at the last block.
        products: `[token, decision + 1]`, rows of `W` multiplied up to and with that block, as in `Generation`.
        kept: `[token, block]`, whether the full-depth prediction is among the ids that are read out, from the first block read out on (True before).
    """

    confidences: np.ndarray
    token_ids: np.ndarray
    products: np.ndarray
    kept: np.ndarray

    def products_at(self, policy: ExitPolicy, exits: np.ndarray, layers: int) -> np.ndarray:
        """`[token]`, rows of `W` multiplied by tokens that exit at these blocks."""
        places = np.searchsorted(np.array([*policy.decision_layers(layers), layers]), exits)
        return self.products[np.arange(len(exits)), places]


def readings(trace, policy: ExitPolicy, model) -> Readings:
    """Reads the states of a trace as a policy would.

    Args:
        trace: from `mee_utils.trace`, with states.
        policy: one that prunes or contrasts; its threshold means nothing here.
        model: the model of the trace.

    Raises:
        CompanionError: a trace without states or of another model, a policy that reads out plainly (a trace knows what that says).
    """
    from ..exits.training import check_trace

    if model is None:
        raise CompanionError("Pruned and contrasted read-outs look at states: give the model of the trace too, as in replay(trace, policy, model=model).")
    check_trace(trace, model)
    if policy.reader(trace.layers, model.network.config.vocab_size) is None:
        raise CompanionError("This policy prunes and contrasts nothing: replay(trace, policy) needs no states.")
    parts = [_read(trace, slice(start, start + CHUNK), policy, model) for start in range(0, len(trace), CHUNK)]
    return Readings(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _read(trace, tokens: slice, policy: ExitPolicy, model) -> tuple[np.ndarray, ...]:
    """The four arrays of some tokens."""
    import torch

    from ..decoding.generation import on_host
    from ..decoding.layerwise import decoder_of
    from ..decoding.observation import Observation

    decoder, sequence, final = decoder_of(model.network), trace.sequence[tokens], trace.final_id[tokens]
    raw = torch.from_numpy(np.array(trace.states[tokens])).to(decoder.head_rows.device, decoder.head_rows.dtype)
    reader, asked_at = policy.reader(trace.layers, decoder.config.vocab_size), policy.decision_layers(trace.layers)
    confidences, ids, products, kept, now = [], [], [], np.ones((len(sequence), trace.layers), dtype=bool), None
    wanted = torch.from_numpy(final.astype(np.int64)).to(raw.device)[:, None]
    with torch.inference_mode():
        for layer in range(policy.watched_from(trace.layers), trace.layers + 1):
            after, before = raw[:, layer - 1], raw[:, max(0, layer - 2)]  # similarity, which looks at the block before, reads nothing out
            now = Observation(decoder, layer, after, before, np.arange(len(sequence)), sequence, trace.position[tokens], now, reader)
            if layer not in asked_at and layer != trace.layers:
                continue
            if layer in asked_at:
                now.asked = on_host(policy.rule.confidence(now))
                confidences.append(now.asked)
            ids.append(on_host(now.top1_id))
            products.append(now.spent)
            seen = now
            while seen is not None and "reading" in vars(seen):
                if seen.reading.ids is not None:
                    alive = (seen.reading.ids == wanted) & torch.isfinite(seen.reading.logits)
                    kept[:, seen.layer - 1] = on_host(alive.any(-1))
                seen = seen.previous
    return np.stack(confidences, 1), np.stack(ids, 1), np.stack(products, 1), kept
