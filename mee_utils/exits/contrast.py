"""Contrastive distributions: what a late block (the expert) knows beyond an early one (the amateur). Pure functions of logits.

| kind | amateur of block i | distribution | source |
|---|---|---|---|
| weighted | block `floor(i / 2)` | inside the head the softmax of `log p_e - log p_a`, scaled to the mass that `p_e` has there; outside `p_e` | auto-contrastive decoding |
| jsd | the earlier block whose distribution is farthest from `p_e` in Jensen-Shannon divergence | the same | after DoLa |

The head is `{v: p_e(v) >= alpha max p_e}`. Either way the result is a distribution: it sums to 1. Where the head has one member, it is `p_e` itself.
(Published code leaves the scale out, so that such a head gets all the mass and a confidence of 1: it then exits whatever the threshold.)
"""

from __future__ import annotations

from math import log

import torch
from torch import Tensor

from ..errors import CompanionError

CONTRASTS = ("weighted", "jsd")
ALPHA = 0.1


def check_alpha(alpha: float) -> float:
    """Refuses an alpha outside 0 to 1."""
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha <= 1:
        raise CompanionError(f"contrast_alpha={alpha!r}: give a number above 0 and up to 1 (the papers: {ALPHA}).")
    return float(alpha)


def weighted_contrast(expert: Tensor, amateur: Tensor, alpha: float = ALPHA) -> Tensor:
    """The contrastive distribution of two blocks ("Not all FLOPs", auto-contrastive decoding).

    Args:
        expert: logits of the late block, `[..., ids]`.
        amateur: logits of the early block, over the same ids.
        alpha: a token is in the head if its probability is at least `alpha` times the largest.

    Returns:
        Log-probabilities, `[..., ids]`.
    """
    late, early = torch.log_softmax(expert, dim=-1), torch.log_softmax(amateur, dim=-1)
    head = late >= late.amax(dim=-1, keepdim=True) + log(check_alpha(alpha))
    mass = torch.where(head, late.exp(), 0.0).sum(dim=-1, keepdim=True).log()
    inside = torch.log_softmax((late - early).masked_fill(~head, -torch.inf), dim=-1) + mass
    return torch.where(head, inside, late)


def jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    """Jensen-Shannon divergence of two distributions given by logits, `[..., ids]` to `[...]`, in nats: symmetric, 0 to log 2."""
    return divergence(torch.softmax(first, dim=-1), torch.softmax(second, dim=-1))


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """The same of two distributions given by probabilities: the entropy of their mean beyond the mean of their entropies."""
    entropies = [torch.special.entr(each).sum(dim=-1) for each in (p, q)]
    return (torch.special.entr((p + q) / 2).sum(dim=-1) - (entropies[0] + entropies[1]) / 2).clamp_(min=0)


def jsd_contrast(expert: Tensor, amateurs: Tensor, alpha: float = ALPHA) -> tuple[Tensor, Tensor]:
    """The contrast with the amateur that differs most from the expert (after DoLa, with a true Jensen-Shannon divergence).

    Args:
        expert: logits, `[rows, ids]`.
        amateurs: logits of earlier blocks, `[blocks, rows, ids]`.
        alpha: as in `weighted_contrast`.

    Returns:
        Log-probabilities `[rows, ids]`, and for each row the index of the amateur that was chosen (of equals the first).
    """
    chosen = jensen_shannon(expert[None], amateurs).argmax(dim=0)
    amateur = amateurs[chosen, torch.arange(len(chosen), device=chosen.device)]
    return weighted_contrast(expert, amateur, alpha), chosen
