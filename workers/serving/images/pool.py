"""How many threads read and decode images beside the thread that computes. All in flight is bounded."""

import os
from typing import Final

THREADS: Final = 16  # of one tenant; they wait for stores and the network, each holds one image's file
DECODES_MAX: Final = 4  # threads that decode; the others have read ahead and wait for them
PIXELS_DECODED_MAX: Final = 80_000_000  # at a time, in all threads: about 8 bytes each while one is decoded


def decodes_at_once() -> int:
    """As many as there are cores: more would take them from the thread that computes."""
    return min(DECODES_MAX, len(os.sched_getaffinity(0)))
