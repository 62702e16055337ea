"""The interface through which duties ring for workers."""

from collections.abc import Sequence
from typing import Protocol

from nightshift.jobs.shard import Ring


class RingSender(Protocol):
    """Both raise QueueUnavailable."""

    def ring(self, rings: Sequence[Ring]) -> None: ...

    def length(self, queue: str) -> int: ...
