"""The device of a thread, copies that do not wait for it, and the memory that engines may take of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGN_BYTES = 16
"""Alignment of each part of a buffer; vector loads on a device want it."""

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


CPU_MEMORY_FRACTION = 0.25
"""Share of the memory free at load. A worker shares its machine with the service and other workers."""


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Makes a CUDA device the thread's own inside the block: Triton, graphs and events use that one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of a device that engines may still take, whose weights are there already."""

    for_kv: int
    """Bytes for KV memory, at the most."""
    in_all: int
    """Bytes for KV memory and for steps."""

    @classmethod
    def measure(cls, device: torch.device, gpu_memory_utilization: float) -> DeviceMemory:
        """Measures what is there now, after all weights are loaded, by vLLM's `gpu_memory_utilization`."""
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what loading has left over counts as used
            free, total = torch.cuda.mem_get_info(device)
            left = int(total * gpu_memory_utilization) - torch.cuda.memory_reserved(device)
            return cls(max(0, min(free, left)), max(0, min(free, left)))
        available = _available_cpu_bytes()
        return cls(int(available * CPU_MEMORY_FRACTION), available)

    def shared_by(self, num_engines: int) -> DeviceMemory:
        """The part of one of `num_engines`: all have the same."""
        return DeviceMemory(self.for_kv // num_engines, self.in_all // num_engines)

    def at_most(self, other: DeviceMemory | None) -> DeviceMemory:
        """The lesser of the two in each respect. None limits nothing."""
        if other is None:
            return self
        return DeviceMemory(min(self.for_kv, other.for_kv), min(self.in_all, other.in_all))

    def without(self, taken_bytes: int) -> DeviceMemory:
        """The memory that is left once so much of it is taken."""
        left = max(0, self.in_all - taken_bytes)
        return DeviceMemory(self.for_kv * left // max(1, self.in_all), left)

    def kv_bytes(self, step_bytes: int) -> int:
        """Bytes that KV may take beside steps that need `step_bytes`."""
        return max(0, min(self.for_kv, self.in_all - step_bytes))


def _available_cpu_bytes() -> int:
    """Bytes that the kernel calls available, or fewer where a container is limited to fewer."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo, limit, used = (
        Path("/proc/meminfo"),
        Path("/sys/fs/cgroup/memory.max"),
        Path("/sys/fs/cgroup/memory.current"),
    )
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    if limit.exists() and used.exists() and (limit_text := limit.read_text().strip()) != "max":
        available = min(available, max(0, int(limit_text) - int(used.read_text())))
    return available
