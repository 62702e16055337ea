"""Fences: a process that has lost its right to change objects does not change them.

A process can be paused between any two of its steps. So the right is checked at the last possible moment:
when all bytes are written and the object is about to appear or disappear, and again before every retry. A
request that was sent before the right was lost is not recalled.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

Check = Callable[[], None]  # raises when nothing may be changed any more

_CHANGES: Final = ("PutObject", "CompleteMultipartUpload", "DeleteObject")  # requests that take effect

_check: ContextVar[Check | None] = ContextVar("check", default=None)


@contextmanager
def fenced(check: Check) -> Iterator[None]:
    """In this block, this thread changes a store only while `check` does not raise.

    It is checked at once too, before anything is prepared. Raises what `check` raises.
    """
    check()
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def check_fence() -> None:
    """Raises what the surrounding block's `check` raises."""
    check = _check.get()
    if check is not None:
        check()


def guard(client: "S3Client") -> None:
    """Check the fence before each of this client's requests that changes something."""
    for operation in _CHANGES:
        client.meta.events.register(f"before-send.s3.{operation}", _before_send)


def _before_send(**request: Any) -> None:
    check_fence()
