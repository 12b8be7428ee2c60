"""Contrastive distributions: what a late layer (the expert) knows beyond an early one (the amateur).

| kind | amateur of layer i | source |
|---|---|---|
| weighted | layer `floor(i / 2)` | auto-contrastive decoding |
| jsd | the earlier layer of largest Jensen-Shannon divergence from `p_e` | after DoLa |

On the plausible set `{v: p_e(v) >= alpha max p_e}` the distribution is the softmax of `log p_e - log p_a`,
scaled to the mass that `p_e` has there; elsewhere it is `p_e`. It sums to 1, and is `p_e` for a set of one.
(Published code leaves the scale out: a set of one then gets all the mass and exits at any threshold.)
"""

from math import log
from numbers import Real

import torch
from torch import Tensor

from ..common.errors import MeeError

ALPHA = 0.1


def check_alpha(alpha: object) -> None:
    """Refuses an alpha outside 0 to 1."""
    if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0 < alpha <= 1:
        raise MeeError(f"contrast_alpha={alpha!r}: give a number above 0 and up to 1 (as in {ALPHA}).")


def weighted_contrast(expert: Tensor, amateur: Tensor, alpha: float = ALPHA) -> Tensor:
    """Log-probabilities of the contrast of two layers, given by logits over the same ids; all `[..., ids]`.

    A token is plausible if its probability is at least `alpha` times the expert's largest.
    """
    late, early = torch.log_softmax(expert, dim=-1), torch.log_softmax(amateur, dim=-1)
    plausible = late >= late.amax(dim=-1, keepdim=True) + log(alpha)
    mass = torch.where(plausible, late.exp(), 0.0).sum(dim=-1, keepdim=True).log()
    inside = torch.log_softmax((late - early).masked_fill(~plausible, -torch.inf), dim=-1) + mass
    return torch.where(plausible, inside, late)


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """`JSD = H((p + q) / 2) - (H(p) + H(q)) / 2` of distributions `[..., ids]`, in nats (0 to log 2)."""
    entropies = [torch.special.entr(each).sum(dim=-1) for each in (p, q)]
    return (torch.special.entr((p + q) / 2).sum(dim=-1) - (entropies[0] + entropies[1]) / 2).clamp_(min=0)


def jsd_contrast(expert: Tensor, amateurs: Tensor, alpha: float = ALPHA) -> tuple[Tensor, Tensor]:
    """The contrast with the amateur of largest Jensen-Shannon divergence (after DoLa, with a true JSD).

    Takes logits `[rows, ids]` and `[layers, rows, ids]`; returns log-probabilities `[rows, ids]` and the
    index of the chosen amateur, `[rows]` (of equals the first).
    """
    chosen = jensen_shannon(expert.softmax(dim=-1)[None], amateurs.softmax(dim=-1)).argmax(dim=0)
    amateur = amateurs[chosen, torch.arange(len(chosen), device=chosen.device)]
    return weighted_contrast(expert, amateur, alpha), chosen
