"""Gives back the memory of weights that are mapped from their file and have been packed elsewhere."""

import ctypes
import gc
import mmap
from pathlib import Path

from torch import Tensor

MAPS = Path("/proc/self/maps")


class MappedFiles:
    """The mappings of weight files at one moment."""

    def __init__(self, suffix: str = ".safetensors") -> None:
        lines = MAPS.read_text().splitlines() if MAPS.exists() else []
        spans = [line.split(maxsplit=1)[0].split("-") for line in lines if line.endswith(suffix)]
        self._spans = [(int(start, 16), int(end, 16)) for start, end in spans]
        self._libc = ctypes.CDLL(None)
        self._libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def release(self, tensor: Tensor) -> None:
        """Gives up the whole pages under `tensor`, if they are a mapped file's; else does nothing."""
        start, page = tensor.data_ptr(), mmap.PAGESIZE
        end = start + tensor.numel() * tensor.element_size()
        if any(first <= start and end <= last for first, last in self._spans):
            first_page, last_page = -(-start // page) * page, end // page * page
            if first_page < last_page:
                self._libc.madvise(first_page, last_page - first_page, mmap.MADV_DONTNEED)


def return_free_memory() -> None:
    """Collects what loading left behind and hands it to the system, where the C library can (glibc)."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
