"""Allocation of memory in a process: memory that is free is to be used again, or given back.

Arrow's own allocator and glibc's arenas keep what each thread has freed apart from the others.
"""

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

ARROW_ALLOCATOR: Final = "ARROW_DEFAULT_MEMORY_POOL"
ARENAS_MAX: Final = 1  # by default eight for each core, whose free memory the others cannot use
LARGE_BYTES: Final = 1024 * 1024
YOUNG_OBJECTS: Final = 20_000  # about a millisecond to look at
GENERATIONS: Final = 20  # young ones before the next older

ENVIRONMENT: Final = {"MALLOC_ARENA_MAX": str(ARENAS_MAX), ARROW_ALLOCATOR: "system"}
"""Variables for child processes: what a process sets itself comes after its first threads, and Arrow reads
its allocator from the environment alone.
"""

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def share_free_memory() -> None:
    """Shares free memory between threads, and with Arrow unless the environment names an allocator."""
    if ARROW_ALLOCATOR not in os.environ:
        import pyarrow as pa  # half a second, which a supervisor need not spend

        pa.set_memory_pool(pa.system_memory_pool())
    _set(_M_ARENA_MAX, ARENAS_MAX)


def give_back_large_blocks() -> None:
    """Gives large blocks back once they are freed. Not for tensors: touching new memory takes too long."""
    _set(_M_MMAP_THRESHOLD, LARGE_BYTES)


def give_back_free_memory() -> None:
    """Gives back the whole pages that lie free between blocks in use. Takes some milliseconds."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def collect_and_give_back() -> None:
    """Gives back free memory after garbage was collected, as after a model was unloaded."""
    gc.collect()
    give_back_free_memory()


def _set(option: int, value: int) -> None:
    """Sets an option of the C library, if it is glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(option, value)


@contextmanager
def frozen_imports() -> Iterator[None]:
    """Collects nothing while its block imports, and leaves alone what it made: it stays to the end."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def collect_less_often() -> None:
    """Leaves alone what exists now, and looks at new objects less often. Once, when a process is ready."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, GENERATIONS, GENERATIONS)
