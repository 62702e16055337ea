"""How busy a GPU is, as NVIDIA's driver says: its library libnvidia-ml, which comes with the driver.

https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
"""

import ctypes
from typing import Final

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
            found = loaded.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
        except (OSError, AttributeError):
            return None
        return cls(loaded, handle) if found == _SUCCESS else None

    @property
    def utilisation(self) -> float | None:
        """Share of the last second or less in which a kernel ran, from 0 to 1. None: it does not say, as of a
        part of a device.
        """
        found = _Utilization()
        answer = self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(found))
        return found.gpu / 100 if answer == _SUCCESS else None
