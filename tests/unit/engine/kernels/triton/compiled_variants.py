"""The variants of our Triton kernels that a device would compile, found without one.

Triton compiles a kernel anew for other dtypes and constants, for numbers that are 1 or multiples of 16, and
for addresses that are multiples of 16. `record_variants` takes each kernel's place and notes the very key
that Triton's binder makes of the arguments; nothing is computed.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, create_function_from_signature

from nightshift_engine.kernels import triton as kernels

TARGET = GPUTarget("cuda", 90, 32)
NOT_SPECIALISED = ("do_not_specialize", "do_not_specialize_on_alignment")


class VariantRecorder:
    """Takes a kernel's place and notes the variants that are launched."""

    def __init__(self, kernel: Any, forgetting: str | None, variants: set[tuple[str, str]]) -> None:
        declared = {name: kernel.kwargs[name] or [] for name in NOT_SPECIALISED}
        declared = {name: [one for one in names if one != forgetting] for name, names in declared.items()}
        function: Any = JITFunction(kernel.fn, **kernel.kwargs | declared)
        self._name, self._variants = kernel.fn.__name__, variants
        self._bind = create_function_from_signature(function.signature, function.params, make_backend(TARGET))

    def __getitem__(self, grid: Any) -> Any:
        return self._launch

    def _launch(self, *arguments: Any, **constants: Any) -> None:
        _, specialisation, options = self._bind(*arguments, **constants)
        self._variants.add((self._name, f"{specialisation} {options}"))


def launched_kernels() -> Iterator[tuple[Any, str, Any]]:
    """Modules of kernels, and the kernels in each by name; those that only kernels call are among them."""
    for info in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}."):
        module = importlib.import_module(info.name)
        for name, kernel in vars(module).items():
            if isinstance(kernel, InterpretedFunction):
                yield module, name, kernel


@contextmanager
def record_variants(forgetting: tuple[str, str] | None = None) -> Iterator[set[tuple[str, str]]]:
    """The variants launched inside, each as its kernel's name and Triton's key.

    `forgetting` a kernel and an argument of it: as if that were declared nowhere as not specialised on.
    """
    variants: set[tuple[str, str]] = set()
    with pytest.MonkeyPatch.context() as patch:
        for module, name, kernel in list(launched_kernels()):
            argument = forgetting[1] if forgetting is not None and forgetting[0] == name else None
            patch.setattr(module, name, VariantRecorder(kernel, argument, variants))
        yield variants
