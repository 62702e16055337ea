"""Waiting for what no signal tells of: another process can only be asked again."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

TICK_S: Final = 0.05  # between two looks
STANDSTILL_S: Final = 6.0  # between two looks; longer means that the machine was stopped
WAIT_MAX_S: Final = 60.0  # for what must happen soon, on a machine that is busy with other things

Seen = TypeVar("Seen")


def wait_for(
    what: str,
    is_true: Callable[[], Seen],
    timeout_s: float = WAIT_MAX_S,
    *,
    said: Callable[[], str] = str,
) -> Seen:
    """The last answer of `is_true`.

    Raises TimeoutError naming `what`, with what `said` tells of it. Time in which this process itself stood
    still is not counted.
    """
    waited_s, asked_at_s = 0.0, time.monotonic()
    while not (seen := is_true()):
        if waited_s >= timeout_s:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {what}\n{said()}".rstrip())
        time.sleep(TICK_S)
        now_s = time.monotonic()
        waited_s += min(now_s - asked_at_s, STANDSTILL_S)
        asked_at_s = now_s
    return seen
