"""The Triton kernels become machine code for the architectures we name, and fit them; no device is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.unit.engine.tiny.cases import mostly_exhaustive

pytest.importorskip("triton")

ROOT = Path(__file__).parents[5]
SCRIPT = Path(__file__).with_name("compile_kernels.py")
SHARED_BYTES_MAX = {80: 99 * 1024, 90: 227 * 1024}
"""Shared memory a program may take; the first is that of 8.6 and 8.9, the smallest of the generation."""


CASES = ("0.6B-shaped", "float32, dim 256, everything", "int8", "fp8")


@pytest.mark.parametrize(
    ("architecture", "case"),
    mostly_exhaustive(
        (pair for pair in product(SHARED_BYTES_MAX, CASES) if pair != (80, "fp8")),  # 8.0 has no such type
        default=[(90, "float32, dim 256, everything")],
    ),
)
def test_every_kernel_compiles_and_fits_the_shared_memory(architecture: int, case: str) -> None:
    """Triton keeps what it compiled in the user's cache, under a digest of the kernel and of itself."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, str(SCRIPT), str(architecture), case]

    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)

    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert {kernel for kernel, _ in lines} == {
        "_attend_chunk",
        "_attend_splits",
        "_merge_splits",
        "_write_rows",
        "_norm_row",
        "_rotate",
        "_activate",
        "_multiply",
        "_sum_chunks",
        "_find_cut",
        "_draw_row",
        "_shrink",
        "_expand",
    }
    for kernel, num_bytes in lines:
        assert int(num_bytes) <= SHARED_BYTES_MAX[architecture], f"{kernel} takes {num_bytes} bytes"
