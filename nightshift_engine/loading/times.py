"""Times the parts of a load, so that a slow start says where its time went."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class LoadTimes:
    """Seconds of each part by its name, in the order in which the parts began."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.weight_bytes = 0
        """Bytes of the weights that were loaded."""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Adds what its block took to a part, once the device has done what the block left it to do.

        A block that raises is not counted.
        """
        began_s = time.perf_counter()
        yield
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began_s

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.seconds.items())
        return f"{sum(self.seconds.values()):.2f} s, {self.weight_bytes / 1e9:.2f} GB of weights: {parts}"
