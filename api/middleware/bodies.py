"""How many bytes of large request bodies one process holds at a time, and how many of one tenant.

A body is in memory before its request can be admitted, and stays there until it is answered. What one tenant
sends, however slowly, leaves memory for the others (`tenants/fairness.py`).
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from nightshift.errors import TooManyRequests
from nightshift.tenants.fairness import may_take

SMALL_BYTES: Final = 64 * 1024  # not counted: connections are limited, and so are these
RETRY_AFTER_S: Final = 5


class BodyMemory:
    """Bytes of request bodies under way, by tenant. For one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._of_tenant: Counter[str] = Counter()

    @contextmanager
    def reserved(self, tenant_id: str, size_bytes: int) -> Iterator[None]:
        """Count a body while the block runs. Raises TooManyRequests if it is too much for all or for this
        tenant.
        """
        counted = size_bytes if size_bytes > SMALL_BYTES else 0
        free = self._bytes_max - self._of_tenant.total()
        if counted and not may_take(counted, held=self._of_tenant[tenant_id], free=free):
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
