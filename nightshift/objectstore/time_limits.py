"""A limit on an operation as a whole, its tries and their pauses included.

A socket's timeouts begin again with every byte and every try: a server that takes a kilobyte a second never
triggers them. So every operation has a limit in all, which each of its requests checks before it begins and
while its body is sent. What is under way when time is up may last for one more timeout of its socket.
"""

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from nightshift.errors import StorageUnavailable

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_ends_at_s: ContextVar[float | None] = ContextVar("ends_at_s", default=None)  # on the monotonic clock


class OutOfTime(StorageUnavailable):
    """The object store did not get done in the time there was. It is worth trying again."""


@contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """Limit all requests of this thread to a store in this block. None: the surrounding block's limit."""
    before = _ends_at_s.get()
    ends = [
        at_s for at_s in (before, None if seconds is None else time.monotonic() + seconds) if at_s is not None
    ]
    token = _ends_at_s.set(min(ends) if ends else None)
    try:
        yield
    finally:
        _ends_at_s.reset(token)


def check_time() -> None:
    """Raises OutOfTime if the surrounding block's time is up."""
    ends_at_s = _ends_at_s.get()
    if ends_at_s is not None and time.monotonic() >= ends_at_s:
        raise OutOfTime


class TimedBody(io.BytesIO):
    """A request's body that is not sent any further once time is up. Reading it raises OutOfTime then."""

    def read(self, size: int | None = -1, /) -> bytes:
        check_time()
        return super().read(size)


def watch(client: "S3Client") -> None:
    """Check the time before each of this client's requests."""
    client.meta.events.register("before-send.s3", _before_send)


def _before_send(request: Any, **others: Any) -> None:
    check_time()
    # For every readable body, botocore would send `Expect: 100-continue` first. Servers that ignore it cost a
    # second each time.
    request.headers.pop("Expect", None)
