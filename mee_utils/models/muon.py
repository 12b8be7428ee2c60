"""Muon for the matrices of a network and AdamW for the rest, as one optimizer.

Muon replaces the momentum of a matrix by the nearest orthogonal matrix, found by Newton-Schulz iterations
(Jordan et al. 2024, https://kellerjordan.github.io/posts/muon). `torch.optim.Muon` takes them one by one and
in bfloat16; here all matrices of one shape are iterated at once, in bfloat16 only where that is fast.
"""

from collections.abc import Mapping
from functools import cache
from itertools import groupby

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic, as in torch.optim.Muon
ITERATIONS, MOMENTUM = 5, 0.95
FROM_SCRATCH = dict(query=0.2, embedding=2.0, table=1.0, norm=0.1)  # rates, that of matrices being 1
# kinds of parameters, by a part of their names; all others are matrices
KINDS = {".q.": "query", "shared": "embedding", "lm_head": "embedding"}
KINDS |= {"relative": "table", "layer_norm": "norm"}


@cache
def fast_bfloat16(device: str) -> bool:
    """Whether a device multiplies bfloat16 faster than single precision: GPUs, and CPUs that say so."""
    known = getattr(torch.cpu, "get_capabilities", dict)()
    return device == "cuda" or any(known.get(name) for name in ("avx512_bf16", "amx_bf16"))


def orthogonalize(matrices: Tensor) -> Tensor:
    """Newton-Schulz iterations on a stack of matrices `[matrix, row, column]`, in the precision they have.

    Singular values become about 1 (0.7 to 1.2); singular vectors stay.
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class MuonAdam(torch.optim.AdamW):
    """Updates groups with `muon=True` by Muon, and the others by AdamW.

    Muon has Nesterov momentum 0.95, and a rate multiplied by `sqrt(max(1, rows / columns))`, as in Jordan et
    al.; AdamW has betas 0.9 and 0.98. Weight decay is decoupled in both.
    """

    def __init__(self, groups, lr: float = 1e-3, weight_decay: float = 0.0):
        super().__init__(groups, lr=lr, betas=(0.9, 0.98), weight_decay=weight_decay, foreach=True)

    @torch.no_grad()
    def step(self, closure=None):
        """Updates every weight that has a gradient; a closure is not called."""
        for group in self.param_groups:
            if group.get("muon"):
                weights = [weight for weight in group["params"] if weight.grad is not None]
                self._muon(weights, group["lr"], group["weight_decay"])
                for weight in weights:
                    weight.grad = None  # so that AdamW leaves it alone
        super().step()

    def _muon(self, weights: list[Tensor], rate: float, decay: float) -> None:
        for shape, same in groupby(sorted(weights, key=lambda w: w.shape), key=lambda w: w.shape):
            same = list(same)
            for weight in same:
                if not self.state[weight]:  # AdamW expects a step of every weight
                    self.state[weight] = dict(step=torch.tensor(0.0), momentum=torch.zeros_like(weight))
            grads, momenta = zip(*((weight.grad, self.state[weight]["momentum"]) for weight in same))
            torch._foreach_lerp_(momenta, grads, 1 - MOMENTUM)
            updates = torch.stack(torch._foreach_lerp(grads, momenta, MOMENTUM))  # Nesterov
            rounded = updates.bfloat16() if fast_bfloat16(updates.device.type) else updates
            torch._foreach_mul_(same, 1 - rate * decay)
            adjusted = rate * max(1, shape[0] / shape[1]) ** 0.5
            torch._foreach_add_(same, orthogonalize(rounded).to(updates.dtype).unbind(), alpha=-adjusted)


def parameter_groups(
    network: nn.Module, rates: Mapping[str, float], rate: float, weight_decay: float, muon: bool = True
) -> list[dict]:
    """Groups the parameters of a T5: matrices, queries, embedding, tables of relative positions, norms.

    The matrices of the blocks, queries among them, are updated by Muon (or AdamW) and with `weight_decay`,
    the others by AdamW without. All learn at `rate`, times what `rates` says of their kind (`KINDS`).
    """
    groups = {kind: [] for kind in ("matrix", *KINDS.values())}
    for name, weight in network.named_parameters():
        groups[next((kind for part, kind in KINDS.items() if part in name), "matrix")].append(weight)
    matrices = ("matrix", "query")
    decays = lambda kind: dict(weight_decay=weight_decay * (kind in matrices), muon=muon and kind in matrices)
    return [dict(params=groups[kind], lr=rates.get(kind, 1.0) * rate, **decays(kind)) for kind in groups]
