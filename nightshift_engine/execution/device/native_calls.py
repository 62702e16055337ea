"""Calls of native kernels: made as they come, or written down once and made again in one go.

A kernel takes a pointer to a structure and a member of a team (`kernels/native/team.h`; null: it makes a
team), and returns 0, or something else where it had no memory. What is written down is a copy of the
structure, so the memory it points to must stay where it is: buffers are kept.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ...kernels.native.build import load_kernels

FIXED_ORDER = "-fno-associative-math"
"""Flag for kernels whose sums must be made in the order written."""


class _WrittenCall(ctypes.Structure):
    """`WrittenCall` of decoder.cpp."""

    _fields_ = (("kernel", ctypes.c_void_p), ("call", ctypes.c_void_p))


_writing = threading.local()


def invoke(kernel: Any, call: ctypes.Structure) -> None:
    """Calls `kernel` with `call`, or writes the call down where a `WrittenCalls.writing()` is open.

    Raises MemoryError if the kernel had no memory for it.
    """
    written: WrittenCalls | None = getattr(_writing, "to", None)
    if written is not None:
        written.append(kernel, call)
    else:
        _check(kernel(ctypes.byref(call), None))


def scratch(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Memory from one call to the next; the calls written down keep theirs, and use it again."""
    written: WrittenCalls | None = getattr(_writing, "to", None)
    if written is None:
        return torch.empty(rows, columns, dtype=dtype)
    return written.scratch.setdefault((rows, columns, dtype), torch.empty(rows, columns, dtype=dtype))


class WrittenCalls:
    """Kernel calls in their order; `run` makes them without a word of Python between."""

    def __init__(self) -> None:
        self.scratch: dict[tuple[int, int, torch.dtype], Tensor] = {}
        self._calls: list[ctypes.Structure] = []
        self._written: list[_WrittenCall] = []
        self._array: Any = None
        self._run: Any = load_kernels("decoder", FIXED_ORDER).run_calls  # type: ignore[union-attr]
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_int64]

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Calls of this thread are written down here instead of being made."""
        _writing.to = self
        try:
            yield
        finally:
            _writing.to = None

    def append(self, kernel: Any, call: ctypes.Structure) -> None:
        """Writes down `kernel(copy of call)`."""
        copy = type(call).from_buffer_copy(call)
        self._calls.append(copy)
        pointer = ctypes.cast(kernel, ctypes.c_void_p).value
        self._written.append(_WrittenCall(pointer, ctypes.addressof(copy)))
        self._array = None

    def run(self) -> None:
        """Makes all calls. Raises MemoryError if one of them had no memory."""
        if self._array is None:
            self._array = (_WrittenCall * len(self._written))(*self._written)
        _check(self._run(self._array, len(self._array)))


def _check(status: int) -> None:
    if status != 0:
        raise MemoryError("no memory for a kernel's workspace")
