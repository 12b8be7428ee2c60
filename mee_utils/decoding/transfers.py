"""Between the host, where numpy decides which rows go on, and the device, where tensors are."""

import numpy as np
import torch
from torch import Tensor

from .layerwise import on_device


def pick(values: Tensor, which: np.ndarray) -> Tensor:
    """The rows for which `which` is true."""
    if which.all():
        return values
    return values[on_device(np.flatnonzero(which), values)]


def on_host(values) -> np.ndarray:
    """A tensor or array as a numpy array. The only place that waits for the device, once per decision."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    return (values.float() if values.dtype == torch.bfloat16 else values).cpu().numpy()
