"""One batch of inputs, decoded with a policy: exits as they are, or verified."""

import numpy as np
import torch
from torch import Tensor

from ..exits.policy import BoundPolicy, ExitPolicy
from .layerwise import LayerwiseDecoder
from .outputs import Output
from .token import decode_tokens
from .verify import DraftDecoder


def bind_policy(policy: ExitPolicy | None, decoder: LayerwiseDecoder, min_exit_layer=None) -> BoundPolicy:
    """The policy bound to a decoder; without one, no token exits before the last layer."""
    policy = policy or ExitPolicy("static", min_layer=decoder.layers)
    return policy.bind(decoder.layers, decoder.config.vocab_size, min_exit_layer)


@torch.inference_mode()
def decode_batch(
    decoder: LayerwiseDecoder,
    batch: dict[str, Tensor],
    bound: BoundPolicy,
    max_new_tokens: int,
    sequence: np.ndarray,
    encoded: Tensor | None = None,
) -> list[Output]:
    """Decodes one batch, with exits as the policy says: copied, in parallel, or verified.

    Args:
        decoder: of the model.
        batch: `input_ids` and `attention_mask`, `[row, source]` each.
        bound: the policy; one that verifies has a fixed `max_draft`.
        max_new_tokens: the longest output.
        sequence: `[row]`, indices of the inputs among all.
        encoded: the encoder's states `[row, source, d_model]`, if they are known.

    Returns:
        One output a row.
    """
    parallel = bound.policy.propagation == "parallel"
    cache = decoder.begin(batch, max_new_tokens, parallel, encoded)
    if bound.policy.propagation == "verify":
        return DraftDecoder(decoder, cache, bound, sequence).decode()
    return decode_tokens(decoder, cache, bound, sequence)
