"""Compares another clock with this machine's."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from nightshift.cli.doctor.examination import Finding, error, ok, warning

NOTICED: Final = timedelta(seconds=2)  # logs of two machines no longer read in order
HARMFUL: Final = timedelta(minutes=5)  # receivers refuse webhooks signed at such a time; S3 refuses at 15 min

_ADVICE: Final = "synchronise the clocks of both machines (chrony, systemd-timesyncd)"


def _now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)


def compare(
    clock: str, ask: Callable[[], datetime], resolution: timedelta, now: Callable[[], datetime] = _now
) -> Finding:
    """Judges by the part of the difference that is certain.

    Asks the other clock, which shows steps of `resolution`, between two looks at ours. `clock` names it as in
    a sentence.
    """
    before, other, after = now(), ask(), now()
    half = (after - before) / 2
    ahead = other + resolution / 2 - (before + half)
    within = half + resolution / 2
    ahead_s, within_s = ahead.total_seconds(), within.total_seconds()
    figures = {"ahead_s": round(ahead_s, 3), "within_s": round(within_s, 3)}
    side = "ahead of" if ahead_s >= 0 else "behind"
    detail = (
        f"{clock} is {abs(ahead_s):.2f} s {side} this machine's clock (within {max(0.01, within_s):.2f} s)"
    )
    certain = abs(ahead) - within
    if certain >= HARMFUL:
        harm = "S3 refuses requests and receivers refuse webhooks that are dated so far off"
        return error(detail, f"{_ADVICE}: {harm}", **figures)
    if certain >= NOTICED:
        return warning(detail, f"{_ADVICE}: times in logs and answers do not agree", **figures)
    return ok(detail, **figures)
