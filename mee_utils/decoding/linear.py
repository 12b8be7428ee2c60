"""A matrix product with a weight that is laid out for it once.

For 2 to 32 rows the general routine lays a large matrix out anew in every call, which costs more than the
product; oneDNN can keep the layout. Small matrices stay in the processor's cache, where the general routine
has less overhead. `make bench` measures both.
"""

import torch
from torch import Tensor
from torch.nn import functional

PACKED_FROM = 200_000  # elements of a weight; below, packing gains nothing (measured on three shapes)
ROWS_HINT = 16  # oneDNN's layout for this many rows is the fastest at 1 and at 32 too


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN's packed product exists here for this weight."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32


class Linear:
    """`x W^T` for rows `x`; `W`, `[outputs, inputs]`, is packed if `pack` says so, by default if large."""

    def __init__(self, weight: Tensor, pack: bool | None = None):
        self.weight = weight.detach()
        worth = weight.numel() >= PACKED_FROM if pack is None else pack
        self.packed = worth and can_pack(weight)
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous(), ROWS_HINT)

    def __call__(self, rows: Tensor) -> Tensor:
        """`[..., inputs]` to `[..., outputs]`."""
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(rows, self.weight, None, "none", [], "")
        return functional.linear(rows, self.weight)

    def add_to(self, residual: Tensor, rows: Tensor) -> Tensor:
        """`residual + x W^T`, both `[rows, ...]` of two dimensions."""
        return residual + self(rows) if self.packed else torch.addmm(residual, rows, self.weight.t())
