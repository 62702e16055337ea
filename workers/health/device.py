"""The device that a worker's models run on: its memory, and how busy it is."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nightshift.fleet.figures import DeviceFigures
from workers.health.nvml import Gpu

KIB: Final = 1024
_MEMINFO: Final = Path("/proc/meminfo")


def device_reader(name: str) -> Callable[[], DeviceFigures | None]:
    """`name`: as the setting DEVICE has it. Call it once models are loaded: nothing else needs torch."""
    if "torch" not in sys.modules:
        return _unknown
    import torch

    from nightshift_engine.loading.weights import resolve_device

    device = resolve_device(name)
    if device.type != "cuda":
        return lambda: _host(device.type)
    about = torch.cuda.get_device_properties(device)
    gpu = Gpu.find(f"GPU-{about.uuid}")

    def read() -> DeviceFigures:
        free, total = torch.cuda.mem_get_info(device)
        return DeviceFigures(
            kind=device.type,
            name=about.name,
            memory_used_bytes=total - free,
            memory_bytes=total,
            utilisation=None if gpu is None else gpu.utilisation,
        )

    return read


def _unknown() -> None:
    """Whatever runs the models, it is none of our engines."""


def _host(kind: str) -> DeviceFigures:
    known = _meminfo()
    total, available = known.get("MemTotal"), known.get("MemAvailable")
    used = None if total is None or available is None else total - available
    return DeviceFigures(kind=kind, memory_used_bytes=used, memory_bytes=total)


def _meminfo() -> dict[str, int]:
    """In bytes, by the kernel's names. Empty where the system has none."""
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return {}
    words = (line.replace(":", "").split() for line in lines)
    return {found[0]: int(found[1]) * KIB for found in words if len(found) == 3 and found[2] == "kB"}
