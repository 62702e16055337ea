"""Times in answers: epoch seconds, windows such as `8h`, and estimates of completion."""

from datetime import UTC, datetime
from typing import Final, overload

from nightshift.jobs import Job, JobState

EPOCH_MAX_S: Final = 253_402_300_799  # the last second of the year 9999
ETA_ROWS_MIN: Final = 8  # fewer rows give no useful rate


@overload
def seconds(at: datetime) -> int: ...
@overload
def seconds(at: datetime | None) -> int | None: ...
def seconds(at: datetime | None) -> int | None:
    """Whole seconds since the epoch."""
    return None if at is None else int(at.timestamp())


def from_seconds(since_epoch: int) -> datetime:
    """The moment at so many seconds, at most `EPOCH_MAX_S`, since the epoch."""
    return datetime.fromtimestamp(since_epoch, UTC)


def window_text(window_s: int) -> str:
    """A window in hours where that is exact, as OpenAI writes it: a day is `24h`."""
    if window_s % 3600 == 0:
        return f"{window_s // 3600}h"
    return f"{window_s // 60}m" if window_s % 60 == 0 else f"{window_s}s"


def _began_on_an_earlier_night(job: Job) -> bool:
    """Whether the rate since its start has days in it on which nothing ran."""
    hours, closes_at = job.spec.hours, job.window_turns_at
    if hours is None or closes_at is None or job.started_at is None:
        return False
    return (closes_at - job.started_at).total_seconds() > hours.length_s + 2 * 3600  # as clocks are changed


def eta_at(job: Job, now: datetime) -> datetime | None:
    """The estimated end at the present rate, if known."""
    total = job.rows_expected
    done = job.counts.succeeded + job.counts.failed
    if job.state is not JobState.RUNNING or job.started_at is None or job.paused_at is not None:
        return None
    if total is None or done < ETA_ROWS_MIN or _began_on_an_earlier_night(job):
        return None
    return now + (now - job.started_at) * (max(0, total - done) / done)
