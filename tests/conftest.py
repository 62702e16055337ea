"""Before anything imports Triton: without a CUDA device its kernels run in its interpreter, on the CPU."""

from __future__ import annotations

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
