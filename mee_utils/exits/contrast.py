"""Contrastive distributions: what a late layer (the expert) knows beyond an early one (the amateur).

| kind | amateur of layer i | source |
|---|---|---|
| weighted | layer `floor(i / 2)` | auto-contrastive decoding |
| jsd | the earlier layer of largest Jensen-Shannon divergence from `p_e` | after DoLa |

On the plausible set `{v: p_e(v) >= alpha max p_e}` the distribution is the softmax of `log p_e - log p_a`,
scaled to the mass that `p_e` has there; elsewhere it is `p_e`. It sums to 1, and is `p_e` for a set of one.
(Published code leaves the scale out: a set of one then gets all the mass and exits at any threshold.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..common.errors import MeeError, check_choice, is_number, shown

ALPHA = 0.1
CONTRASTS = ("weighted", "jsd")


@dataclass(frozen=True)
class Contrast:
    """How a layer is contrasted with an earlier one.

    Attributes:
        kind: "weighted" or "jsd", see the table of this module.
        alpha: an id is plausible if its probability is at least `alpha` times the expert's largest.
        token: whether the token comes from the contrast too, not the confidence alone.
    """

    kind: str
    alpha: float = ALPHA
    token: bool = False

    def amateur_layers(self, layer: int) -> list[int]:
        """The earlier layers that a layer may be contrasted with, from 1."""
        return [layer // 2] if self.kind == "weighted" else list(range(1, layer))


def contrast_of(kind: str | None, alpha: object, token: bool) -> Contrast | None:
    """What these options of `ExitPolicy` describe; None without a contrast.

    Raises `MeeError` for an unknown kind, an alpha out of range, or options that mean nothing.
    """
    if not is_number(alpha) or not 0 < alpha <= 1:
        raise MeeError(f"contrast_alpha={shown(alpha)}: give a number above 0 and up to 1 (as in {ALPHA}).")
    if not isinstance(token, bool | np.bool_):
        raise MeeError(f"contrast_token={shown(token)}: give True or False.")
    if kind is None:
        if token or alpha != ALPHA:
            raise MeeError('contrast_token and contrast_alpha need contrast="weighted" or "jsd".')
        return None
    return Contrast(check_choice("contrast", kind, CONTRASTS), float(alpha), bool(token))


def weighted_contrast(expert: Tensor, amateur: Tensor, alpha: float = ALPHA) -> Tensor:
    """Log-probabilities of the contrast of two layers, from logits over the same ids; all `[..., ids]`."""
    late = torch.log_softmax(expert, dim=-1)
    early = torch.log_softmax(amateur, dim=-1)
    plausible = plausible_ids(late, alpha)
    mass = torch.where(plausible, late.exp(), 0.0).sum(dim=-1, keepdim=True).log()
    inside = torch.log_softmax((late - early).masked_fill(~plausible, -torch.inf), dim=-1) + mass
    return torch.where(plausible, inside, late)


def plausible_ids(late: Tensor, alpha: float) -> Tensor:
    """Which ids are plausible, from log-probabilities of the expert, both `[..., ids]`.

    Their probability is at least `alpha` times the expert's largest.
    """
    return late >= late.amax(dim=-1, keepdim=True) + log(alpha)


def entropy(probabilities: Tensor) -> Tensor:
    """`H` in nats, `[..., ids]` to `[...]`; on CPUs twice as fast as `torch.special.entr`."""
    logs = probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log_()  # 0 log 0 is 0
    return logs.mul_(probabilities).sum(dim=-1).neg_()


class Distribution(NamedTuple):
    """What a layer predicts, with the entropy that every divergence from it needs."""

    probabilities: Tensor  # `[..., ids]`
    entropy: Tensor  # `[...]`, nats

    @classmethod
    def of(cls, probabilities: Tensor) -> "Distribution":
        return cls(probabilities, entropy(probabilities))

    @classmethod
    def from_logits(cls, logits: Tensor) -> "Distribution":
        return cls.of(logits.softmax(dim=-1))


def jensen_shannon(p: Distribution, q: Distribution) -> Tensor:
    """`JSD = H((p + q) / 2) - (H(p) + H(q)) / 2` in nats, from 0 to log 2: `[...]`."""
    middle = entropy((p.probabilities + q.probabilities).div_(2))
    return (middle - (p.entropy + q.entropy) / 2).clamp_(min=0)


def farthest(expert: Distribution, amateurs: Sequence[Distribution]) -> Tensor:
    """Index of the amateur of largest divergence from the expert, `[rows]`; ties go to the first.

    Each distribution is `[rows, ids]`. Over the L layers of a token there are L (L - 1) / 2 pairs, but only L
    distributions: keep them from layer to layer, and each pair costs one entropy.
    """
    return torch.stack([jensen_shannon(expert, amateur) for amateur in amateurs]).argmax(dim=0)


def contrast_with(expert: Tensor, amateurs: Tensor, chosen: Tensor, alpha: float = ALPHA) -> Tensor:
    """The contrast of each row's logits with those of its chosen amateur: log-probabilities `[rows, ids]`.

    Args:
        expert: logits `[rows, ids]`.
        amateurs: logits `[layers, rows, ids]`.
        chosen: `[rows]`, which of the layers.
        alpha: of the plausible set.
    """
    rows = torch.arange(len(chosen), device=chosen.device)
    return weighted_contrast(expert, amateurs[chosen, rows], alpha)


def jsd_contrast(expert: Tensor, amateurs: Tensor, alpha: float = ALPHA) -> tuple[Tensor, Tensor]:
    """The contrast with the amateur of largest Jensen-Shannon divergence (after DoLa, with a true JSD).

    Args:
        expert: logits `[rows, ids]`.
        amateurs: logits `[layers, rows, ids]`.
        alpha: of the plausible set.

    Returns:
        Log-probabilities `[rows, ids]`, and the index of the chosen amateur, `[rows]` (ties go to the first).
    """
    chosen = farthest(Distribution.from_logits(expert), [Distribution.from_logits(each) for each in amateurs])
    return contrast_with(expert, amateurs, chosen, alpha), chosen
