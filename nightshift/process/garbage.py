"""Python's cyclic garbage collector, for processes that make many objects for each row.

By default it looks at the young objects after every 700, and at all of them again and again: with a model
loaded that took a sixth of the CPU of a row of embeddings.
"""

import gc
from typing import Final

YOUNG_OBJECTS: Final = 20_000  # about a millisecond to look at
GENERATIONS: Final = 20  # young ones before the next older


def tune() -> None:
    """Leave what exists now alone, and look at new objects less often. Once, when a process is ready."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, GENERATIONS, GENERATIONS)
