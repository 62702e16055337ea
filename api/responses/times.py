"""Times on the wire: epoch seconds, windows such as `8h`, and estimates of completion."""

import re
from datetime import UTC, datetime
from typing import Final, overload

from nightshift.errors import InvalidRequest
from nightshift.jobs import Job, JobState

EPOCH_MAX_S: Final = 253_402_300_799  # the last second of the year 9999
ETA_ROWS_MIN: Final = 8  # fewer rows give no useful rate

_DURATION: Final = re.compile(r"([1-9][0-9]{0,8})([smhd])")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@overload
def seconds(at: datetime) -> int: ...
@overload
def seconds(at: datetime | None) -> int | None: ...
def seconds(at: datetime | None) -> int | None:
    """Whole seconds since the epoch."""
    return None if at is None else int(at.timestamp())


def from_seconds(since_epoch: int) -> datetime:
    """At most `EPOCH_MAX_S`."""
    return datetime.fromtimestamp(since_epoch, UTC)


def parse_window(text: str, param: str, max_s: int) -> int:
    """The seconds in `90m`, `8h` or `7d`. Raises InvalidRequest naming `param`."""
    return _parsed(text, "mhd", "90m, 8h or 7d", param, max_s)


def parse_timeout(text: str, param: str, max_s: int) -> int:
    """The seconds in `30s`, `5m` or `1h`. Raises InvalidRequest naming `param`."""
    return _parsed(text, "smh", "30s, 5m or 1h", param, max_s)


def _parsed(text: str, units: str, examples: str, param: str, max_s: int) -> int:
    match = _DURATION.fullmatch(text)
    if match is None or match[2] not in units:
        raise InvalidRequest(
            f"Invalid '{param}': {text!r} is not a duration such as {examples}.", param=param
        )
    window_s = int(match[1]) * _UNIT_S[match[2]]
    if window_s > max_s:
        raise InvalidRequest(
            f"Invalid '{param}': {text!r} is longer than the {window_text(max_s)} this service allows.",
            param=param,
        )
    return window_s


def window_text(window_s: int) -> str:
    """In hours where exact, as OpenAI writes it: a day is `24h`."""
    if window_s % 3600 == 0:
        return f"{window_s // 3600}h"
    return f"{window_s // 60}m" if window_s % 60 == 0 else f"{window_s}s"


def eta_at(job: Job, now: datetime) -> datetime | None:
    """The estimated end at the present rate, if known."""
    total = job.rows_expected
    done = job.counts.succeeded + job.counts.failed
    if job.state is not JobState.RUNNING or job.started_at is None or job.paused_at is not None:
        return None
    if total is None or done < ETA_ROWS_MIN:
        return None
    return now + (now - job.started_at) * (max(0, total - done) / done)
