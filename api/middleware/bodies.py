"""Limits the large request bodies that a process holds, in total and per tenant.

A body is in memory before its request is admitted, until the answer. A tenant's slow uploads leave memory for
others (`tenants/fairness.py`).
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from nightshift.errors import TooManyRequests
from nightshift.tenants.quotas import may_take

SMALL_BYTES: Final = 64 * 1024  # not counted; limited by the number of connections
RETRY_AFTER_S: Final = 5


class BodyMemory:
    """Bytes of request bodies in progress, by tenant. For one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._of_tenant: Counter[str] = Counter()

    @contextmanager
    def reserved(self, tenant_id: str, size_bytes: int) -> Iterator[None]:
        """Count a body during the block. Raises TooManyRequests over the limit."""
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
