"""A matrix product with a weight that is laid out for it once.

For 2 to 32 rows the general routine lays a large matrix out anew in every call, which costs more than the
product; oneDNN can keep the layout. Small matrices stay in the processor's cache, where the general routine
has less overhead. `make bench` measures both.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

PACKED_FROM = 200_000  # elements of a weight; below, packing gains nothing (measured on three shapes)
ROWS_HINT = 16  # oneDNN's layout for this many rows is the fastest at 1 and at 32 too
PACKED_TYPES = (torch.float32, torch.bfloat16)


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN's packed product exists here for this weight."""
    operations = torch.ops.mkldnn
    if weight.dtype == torch.bfloat16 and not operations._is_mkldnn_bf16_supported():
        return False
    return (
        weight.device.type == "cpu"
        and weight.dtype in PACKED_TYPES
        and torch.backends.mkldnn.is_available()
        and hasattr(operations, "_reorder_linear_weight")
        and hasattr(operations, "_linear_pointwise")
    )


class Linear:
    """`x W^T` for rows `x`, with `W` `[outputs, inputs]` packed where that is faster.

    Args:
        weight: the matrix; it is copied into the packed layout, or used as it is.
        pack: True, False, or None to decide by size.
    """

    def __init__(self, weight: Tensor, pack: bool | None = None):
        weight = weight.detach()
        self.shape = tuple(weight.shape)
        worth = weight.numel() >= PACKED_FROM if pack is None else pack
        self.packed = worth and can_pack(weight)
        self.weight = (
            torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS_HINT) if self.packed else weight
        )

    def __call__(self, rows: Tensor) -> Tensor:
        """`[..., inputs]` to `[..., outputs]`."""
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(rows, self.weight, None, "none", [], "")
        return functional.linear(rows, self.weight)

    def add_to(self, residual: Tensor, rows: Tensor) -> Tensor:
        """`residual + x W^T`, both `[rows, ...]` of two dimensions."""
        if self.packed:
            return residual + torch.ops.mkldnn._linear_pointwise(rows, self.weight, None, "none", [], "")
        return torch.addmm(residual, rows, self.weight.t())
