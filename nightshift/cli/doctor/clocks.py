"""Compares another clock with this machine's."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from nightshift.cli.doctor.examination import Finding, error, ok, warning

NOTICED: Final = timedelta(seconds=2)  # logs of two machines no longer read in order
HARMFUL: Final = timedelta(minutes=5)  # receivers refuse webhooks signed at such a time; S3 refuses at 15 min

_ADVICE: Final = "synchronise the clocks of both machines (chrony, systemd-timesyncd)"


@dataclass(frozen=True)
class Skew:
    """`ahead`: by how much the other clock is ahead of ours. `within`: how wrong that may be."""

    ahead: timedelta
    within: timedelta

    @property
    def at_least(self) -> timedelta:
        """The part of the difference that is certain."""
        return max(timedelta(), abs(self.ahead) - self.within)


def _now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)


def measure(ask: Callable[[], datetime], resolution: timedelta, now: Callable[[], datetime] = _now) -> Skew:
    """Asks another clock, which shows steps of `resolution`, between two looks at ours."""
    before = now()
    other = ask()
    after = now()
    half = (after - before) / 2
    return Skew(other + resolution / 2 - (before + half), half + resolution / 2)


def judge(clock: str, skew: Skew) -> Finding:
    """Judges a difference. `clock` names the other clock as in a sentence. Pure."""
    ahead_s, within_s = skew.ahead.total_seconds(), skew.within.total_seconds()
    figures = {"ahead_s": round(ahead_s, 3), "within_s": round(within_s, 3)}
    side = "ahead of" if ahead_s >= 0 else "behind"
    detail = (
        f"{clock} is {abs(ahead_s):.2f} s {side} this machine's clock (within {max(0.01, within_s):.2f} s)"
    )
    if skew.at_least >= HARMFUL:
        harm = "S3 refuses requests and receivers refuse webhooks that are dated so far off"
        return error(detail, f"{_ADVICE}: {harm}", **figures)
    if skew.at_least >= NOTICED:
        return warning(detail, f"{_ADVICE}: times in logs and answers do not agree", **figures)
    return ok(detail, **figures)
