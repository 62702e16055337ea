"""A time limit on a whole operation, with its retries and pauses.

A socket's timeout restarts with every byte and retry, so a slow trickle never triggers it. Each request
checks the operation's limit before it begins and while its body is sent. A request in progress at the limit
may last one more socket timeout.
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

_ends_at_s: ContextVar[float | None] = ContextVar("ends_at_s", default=None)  # monotonic


class OutOfTime(StorageUnavailable):
    """The object store did not get done in the time there was. It is worth trying again."""


@contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """Limits this thread's requests in the block. None: the surrounding block's limit."""
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
    """Raises OutOfTime past the surrounding block's limit."""
    ends_at_s = _ends_at_s.get()
    if ends_at_s is not None and time.monotonic() >= ends_at_s:
        raise OutOfTime


class TimedBody(io.BytesIO):
    """A request body that raises OutOfTime when it is read past the time limit."""

    def read(self, size: int | None = -1, /) -> bytes:
        check_time()
        return super().read(size)


def watch(client: "S3Client") -> None:
    """Checks the time limit before each of this client's requests."""
    client.meta.events.register("before-send.s3", _before_send)


def _before_send(request: Any, **others: Any) -> None:
    check_time()
    # botocore adds `Expect: 100-continue` to readable bodies; a server that ignores it costs a second per
    # request.
    request.headers.pop("Expect", None)
