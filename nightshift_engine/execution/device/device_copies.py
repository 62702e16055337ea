"""Copies between host and device that do not wait: one buffer each way, pinned for CUDA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGN_BYTES = 16
"""Of each part of a buffer; vector loads on a device want it."""

_TORCH_DTYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


def to_device(parts: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, Tensor]:
    """All of `parts` through one buffer; each tensor has its part's shape and dtype.

    torch keeps a pinned buffer until its copy is done.
    """
    if not parts:
        return {}
    starts, size = {}, 0
    for name, part in parts.items():
        starts[name] = size
        size += -(-part.nbytes // ALIGN_BYTES) * ALIGN_BYTES
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    raw = host.numpy()
    for name, part in parts.items():
        raw[starts[name] : starts[name] + part.nbytes] = part.reshape(-1).view(np.uint8)
    buffer = host.to(device, non_blocking=True)
    by_dtype = {dtype: buffer.view(_TORCH_DTYPES[dtype]) for dtype in {part.dtype for part in parts.values()}}
    tensors = {}
    for name, part in parts.items():
        start = starts[name] // part.itemsize
        tensor = by_dtype[part.dtype][start : start + part.size]
        tensors[name] = tensor if part.ndim == 1 else tensor.view(part.shape)
    return tensors


def to_host(tensor: Tensor) -> Tensor:
    """A copy on the host; of a CUDA tensor it holds the values once the work queued so far is done."""
    if not tensor.is_cuda:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
