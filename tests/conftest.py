"""What holds for every test, before anything is imported that would decide otherwise."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import settings

# A busy machine may hold up any example for seconds; how long one takes says nothing of what is tested.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Without a CUDA device Triton's kernels run in its interpreter, on the CPU.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
