"""The device of a thread, and what engines may take of a device's memory."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

CPU_MEMORY_FRACTION = 0.25
"""Of the memory free at load. A worker shares its machine with the service and with other workers."""


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a CUDA device the thread's own inside the block: Triton, graphs and events use that one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of a device that engines may still take, whose weights are there already."""

    for_kv: int
    """At most, for KV memory."""
    in_all: int
    """For KV memory and for steps."""

    @classmethod
    def measure(cls, device: torch.device, gpu_memory_utilization: float) -> DeviceMemory:
        """What is there now. Load all weights first, then measure once for all engines.

        On CUDA this process takes `gpu_memory_utilization` of the device in all, as in vLLM, or less where
        others have taken more; on a CPU, KV takes a share of what is available.
        """
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

    def without(self, taken_bytes: int) -> DeviceMemory:
        """What is left once so much of it is taken."""
        left = max(0, self.in_all - taken_bytes)
        return DeviceMemory(self.for_kv * left // max(1, self.in_all), left)

    def kv_bytes(self, step_bytes: int) -> int:
        """What KV may take beside steps that need `step_bytes`."""
        return max(0, min(self.for_kv, self.in_all - step_bytes))


def _available_cpu_bytes() -> int:
    """What the kernel says is available, or less where a container is limited to less."""
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
