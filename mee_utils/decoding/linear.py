"""T5's two operations with weights: a matrix product whose weight is laid out for it once, and the norm.

For 2 to 32 rows the general routine lays a large matrix out anew in every call, which costs more than the
product; oneDNN can keep the layout. For small matrices it has more overhead. `make bench` measures both.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

PACKED_FROM = 200_000  # elements of a weight; below, packing gains nothing (measured on three shapes)
ROWS_HINT = 16  # oneDNN's layout for this many rows is the fastest at 1 and at 32 too


class Linear:
    """`x W^T` for rows `x`; `W`, `[outputs, inputs]`, is packed if it is large."""

    def __init__(self, weight: Tensor):
        self.weight, large = weight.detach(), weight.numel() >= PACKED_FROM and weight.device.type == "cpu"
        self.packed = large and torch.backends.mkldnn.is_available() and weight.dtype == torch.float32
        if large and torch.backends.mkldnn.is_available() and weight.dtype == torch.bfloat16:
            self.packed = torch.ops.mkldnn._is_mkldnn_bf16_supported()
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous(), ROWS_HINT)
        else:
            self.transposed = self.weight.t()

    def __call__(self, rows: Tensor) -> Tensor:
        """`[..., inputs]` to `[..., outputs]`. Raises ValueError where a gradient would be lost (packed)."""
        if self.packed:
            if rows.requires_grad and torch.is_grad_enabled():
                raise ValueError("A packed weight passes on no gradient: use functional.linear.")
            return torch.ops.mkldnn._linear_pointwise(rows, self.weight, None, "none", [], "")
        return functional.linear(rows, self.weight)

    def add_to(self, residual: Tensor, rows: Tensor) -> Tensor:
        """`residual + x W^T`, both `[rows, ...]` of two dimensions."""
        return residual + self(rows) if self.packed else torch.addmm(residual, rows, self.transposed)


class Norm:
    """T5's layer norm, `w x / sqrt(mean(x^2) + eps)`, in four small operations.

    `sqrt(mean(x^2) + eps) = hypot(|x|, sqrt(d eps)) / sqrt(d)`. Half precision is left to torch, which
    computes it in single precision as `transformers` does.
    """

    def __init__(self, module: nn.Module):
        self.weight, self.eps = module.weight.detach(), module.variance_epsilon
        self.half, size = self.weight.dtype in (torch.bfloat16, torch.float16), self.weight.shape[0]
        self.scaled = self.weight * math.sqrt(size)
        self.smallest = self.weight.new_tensor([math.sqrt(size * self.eps)])

    def __call__(self, x: Tensor) -> Tensor:
        """`[..., d]` to `[..., d]`."""
        if self.half:
            return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        length = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self.smallest)
        return (x / length).mul_(self.scaled)
