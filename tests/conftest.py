"""What holds for every test, before anything is imported that would decide otherwise."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from hypothesis import settings

# A busy machine may hold up any example for seconds; how long one takes says nothing of what is tested.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Without a CUDA device Triton's kernels run in its interpreter, on the CPU.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Where Python may not keep bytecode, each process of the tests compiles what it imports: for the API 5 s of
# CPU instead of 1.8.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that runs a command in the background has it ignore SIGINT, and child processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
