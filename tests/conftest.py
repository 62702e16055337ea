"""What holds for every test, before anything is imported that would decide otherwise."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hypothesis import settings

# A busy machine may hold up any example for seconds; how long one takes says nothing of what is tested.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Without a CUDA device Triton's kernels run in its interpreter, on the CPU.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A shell that runs us in the background has us ignore SIGINT, and whatever we start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
