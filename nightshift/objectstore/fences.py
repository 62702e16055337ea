"""Fences: a process that has lost its right to change objects does not change them.

A process can be paused between any two steps, so the right is checked last, when the object is about to
appear or disappear, and before every retry. A request already sent is not recalled.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

Check = Callable[[], None]  # raises when no change is allowed

_CHANGES: Final = ("PutObject", "CompleteMultipartUpload", "DeleteObject")  # the requests that take effect

_check: ContextVar[Check | None] = ContextVar("check", default=None)


@contextmanager
def fenced(check: Check) -> Iterator[None]:
    """Lets this thread change a store within the block only while `check` does not raise.

    Checks once on entry. Raises what `check` raises.
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
    """Checks the fence before each of this client's changing requests."""
    for operation in _CHANGES:
        client.meta.events.register(f"before-send.s3.{operation}", _before_send)


def _before_send(**request: Any) -> None:
    check_fence()
