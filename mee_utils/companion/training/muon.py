"""Muon for the matrices of a network and AdamW for the rest, as one optimizer.

Muon replaces the momentum of a matrix by the nearest orthogonal matrix, found by Newton-Schulz iterations
(Jordan et al. 2024, https://kellerjordan.github.io/posts/muon). `torch.optim.Muon` takes the matrices one by
one and in bfloat16; here all matrices of one shape are iterated at once, in bfloat16 only where that is fast.
For a mini model on a CPU that is fourteen times faster.
"""

from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import attrgetter

import torch
from torch import Tensor, nn

from ...models.checkpoints import fast_bfloat16

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic, as in torch.optim.Muon
ITERATIONS = 5
MOMENTUM = 0.95
ADAM_BETAS = (0.9, 0.98)

# The kind of a parameter, by a part of its name; all others are matrices.
KINDS = {
    ".q.": "query",
    "shared": "embedding",
    "lm_head": "embedding",
    "relative": "table",
    "layer_norm": "norm",
}
# Learning rates of a network with random weights, as multiples of that of its matrices.
RATES_FROM_SCRATCH = {"query": 0.2, "embedding": 2.0, "table": 1.0, "norm": 0.1}


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
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)  # b G + c G^2
        x = torch.baddbmm(x, polynomial, x, beta=a)  # a X + (b G + c G^2) X
    return x.mT if tall else x


class MuonAdam(torch.optim.AdamW):
    """Updates groups with `muon=True` by Muon, and the others by AdamW.

    Muon has Nesterov momentum 0.95, and a rate multiplied by `sqrt(max(1, rows / columns))`, as in Jordan et
    al.; AdamW has betas 0.9 and 0.98. Weight decay is decoupled in both.
    """

    def __init__(self, groups: Iterable[dict], lr: float = 1e-3, weight_decay: float = 0.0):
        super().__init__(groups, lr=lr, betas=ADAM_BETAS, weight_decay=weight_decay, foreach=True)

    @torch.no_grad()
    def step(self, closure=None):
        """Updates every weight that has a gradient; a closure is not called."""
        for group in self.param_groups:
            if group.get("muon"):
                weights = [weight for weight in group["params"] if weight.grad is not None]
                shape_of = attrgetter("shape")
                for shape, same_shape in groupby(sorted(weights, key=shape_of), key=shape_of):
                    rate = group["lr"] * max(1, shape[0] / shape[1]) ** 0.5
                    self._step_matrices(list(same_shape), rate, group["lr"] * group["weight_decay"])
                for weight in weights:
                    weight.grad = None  # so that AdamW leaves it alone
        super().step()

    def _step_matrices(self, weights: list[Tensor], rate: float, decay: float) -> None:
        """One step of Muon on matrices of one shape."""
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["step"] = torch.tensor(0.0)  # AdamW expects it of every weight
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        gradients = [weight.grad for weight in weights]
        momenta = [self.state[weight]["momentum"] for weight in weights]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        nesterov = torch.stack(torch._foreach_lerp(gradients, momenta, MOMENTUM))  # [matrix, row, column]
        rounded = nesterov.bfloat16() if fast_bfloat16(nesterov.device.type) else nesterov
        updates = orthogonalize(rounded).to(nesterov.dtype)
        torch._foreach_mul_(weights, 1 - decay)
        torch._foreach_add_(weights, updates.unbind(), alpha=-rate)


def parameter_groups(
    network: nn.Module, rates: Mapping[str, float], rate: float, weight_decay: float, muon: bool = True
) -> list[dict]:
    """Groups the parameters of a T5: matrices, queries, embedding, tables of relative positions, norms.

    The matrices of the blocks, queries among them, are updated by Muon (or AdamW) and with `weight_decay`,
    the others by AdamW without. All learn at `rate`, times what `rates` says of their kind (`KINDS`).

    Returns:
        Groups for `MuonAdam`; `peak_lr` is for a schedule that sets `lr` to shares of it.
    """
    weights = {kind: [] for kind in ("matrix", *KINDS.values())}
    for name, weight in network.named_parameters():
        kind = next((kind for part, kind in KINDS.items() if part in name), "matrix")
        weights[kind].append(weight)
    groups = []
    for kind, members in weights.items():
        is_matrix = kind in ("matrix", "query")
        peak = rates.get(kind, 1.0) * rate
        groups.append(
            {
                "params": members,
                "lr": peak,
                "peak_lr": peak,
                "weight_decay": weight_decay if is_matrix else 0.0,
                "muon": muon and is_matrix,
            }
        )
    return groups
