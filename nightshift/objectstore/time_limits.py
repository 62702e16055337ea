"""A limit on an operation as a whole, its tries and their pauses included.

The timeouts of a socket begin again with every byte and with every try: a server that takes a kilobyte a
second keeps all of them from firing. So every operation says how long it may take in all, and every request
of it looks at the clock before it begins and while its body is sent. Only what is under way when time is up
may last for one more timeout of its socket.
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
    """What this thread asks of a store in this block has so long, all in all. None: as long as the blocks
    around it say.
    """
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
    """Raises OutOfTime if the block this is called in has had its time."""
    ends_at_s = _ends_at_s.get()
    if ends_at_s is not None and time.monotonic() >= ends_at_s:
        raise OutOfTime


class TimedBody(io.BytesIO):
    """A request's body that is not sent any further once time is up. Reading it raises OutOfTime then."""

    def read(self, size: int | None = -1, /) -> bytes:
        check_time()
        return super().read(size)


def watch(client: "S3Client") -> None:
    """Let no request of this client begin once time is up."""
    client.meta.events.register("before-send.s3", _before_send)


def _before_send(request: Any, **others: Any) -> None:
    check_time()
    # For every body that can be read, botocore would first ask leave to send it. Servers that do not answer
    # that cost a second each time.
    request.headers.pop("Expect", None)
