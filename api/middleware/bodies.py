"""How much of large request bodies one process holds at a time, and whose they are.

A body is in memory before anybody can say whether its request is admitted, and stays there until it is
answered. A tenant gets no further room when it has as much as is free: so what one sends, however slowly,
leaves room for others (the rule of `scheduler/runtime/in_flight.py`).
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from nightshift.errors import TooManyRequests

SMALL_BYTES: Final = 64 * 1024  # not counted: connections are limited, and so are these
RETRY_AFTER_S: Final = 5


class Bodies:
    """Room for the bodies of requests under way. For one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._of_tenant: Counter[str] = Counter()

    @contextmanager
    def held(self, tenant_id: str, size_bytes: int) -> Iterator[None]:
        """Within the block there is room for it. Raises TooManyRequests if there is none, for anybody or for
        this tenant.
        """
        counted = size_bytes if size_bytes > SMALL_BYTES else 0
        free = self._bytes_max - self._of_tenant.total()
        if counted and self._of_tenant[tenant_id] + counted > free:
            raise TooManyRequests(
                "Too many large requests are under way. Wait for some to be answered, or send a batch.",
                retry_after_s=RETRY_AFTER_S,
            )
        self._of_tenant[tenant_id] += counted
        try:
            yield
        finally:
            self._of_tenant[tenant_id] -= counted
            self._of_tenant += Counter()  # drops the zeros
