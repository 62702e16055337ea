"""The device that a worker's models run on: its memory, and how busy it is."""

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nightshift.fleet.figures import DeviceFigures

KIB: Final = 1024
_MEMINFO: Final = Path("/proc/meminfo")


def device_reader(name: str) -> Callable[[], DeviceFigures | None]:
    """`name`: as the setting DEVICE has it. Call it once models are loaded: nothing else needs torch."""
    if "torch" not in sys.modules:
        return _unknown
    import torch

    from nightshift_engine.models import resolve_device

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
    """Tells nothing: whatever runs the models, it is none of our engines."""


def _host(kind: str) -> DeviceFigures:
    known = _meminfo()
    total, available = known.get("MemTotal"), known.get("MemAvailable")
    used = None if total is None or available is None else total - available
    return DeviceFigures(kind=kind, memory_used_bytes=used, memory_bytes=total)


def _meminfo() -> dict[str, int]:
    """Sizes in bytes, by the kernel's names. Empty where the system has none."""
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return {}
    words = (line.replace(":", "").split() for line in lines)
    return {row[0]: int(row[1]) * KIB for row in words if len(row) == 3 and row[2] == "kB"}


LIBRARY: Final = "libnvidia-ml.so.1"
_SUCCESS: Final = 0


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t: percent of the driver's last sampling period."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Gpu:
    """One device. Thread-safe, as the library is."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._library = library
        self._handle = handle

    @classmethod
    def find(cls, uuid: str, library: str = LIBRARY) -> "Gpu | None":
        """`uuid`: with its prefix, `GPU-…` or `MIG-…`. None: there is no driver, or it does not know it."""
        try:
            loaded = ctypes.CDLL(library)
            if loaded.nvmlInit_v2() != _SUCCESS:
                return None
            handle = ctypes.c_void_p()
            answer = loaded.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
        except (OSError, AttributeError):
            return None
        return cls(loaded, handle) if answer == _SUCCESS else None

    @property
    def utilisation(self) -> float | None:
        """Share of the last second or less in which a kernel ran, from 0 to 1. None: it does not say, as of a
        part of a device.
        """
        rates = _Utilization()
        answer = self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(rates))
        return rates.gpu / 100 if answer == _SUCCESS else None
