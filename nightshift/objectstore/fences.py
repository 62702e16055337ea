"""A fence around changes: whoever may no longer make them does not, however late that turns out.

A process can stand still between any two of its steps. So the question is asked at the last moment there is:
when all bytes are there and the object is about to appear or disappear, and again before every further try.
What was sent before the answer changed is under way and is not called back.
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
    """What this thread changes in a store in this block, it changes only while `check` does not raise.

    That is asked at once, too: there is no use in preparing what may not be done. Raises what it raises.
    """
    check()
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def check_fence() -> None:
    """Raises what the block this is called in is to end with, if it may change nothing any more."""
    check = _check.get()
    if check is not None:
        check()


def guard(client: "S3Client") -> None:
    """Let this client send no change that a fence is in the way of."""
    for operation in _CHANGES:
        client.meta.events.register(f"before-send.s3.{operation}", _before_send)


def _before_send(**request: Any) -> None:
    check_fence()
