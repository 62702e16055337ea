"""Times in answers: epoch seconds, windows such as `8h`, and estimates of completion."""

from datetime import UTC, datetime, timedelta
from typing import Final, overload

from nightshift.jobs import Job, JobState

EPOCH_MAX_S: Final = 253_402_300_799  # the last second of the year 9999
ETA_ROWS_MIN: Final = 8  # fewer rows give no useful rate
ETA_MAX_S: Final = 10 * 365 * 86_400


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


def eta_at(job: Job, now: datetime) -> datetime | None:
    """The estimated end at the rate so far, if known. Of a job with a window, only its hours count."""
    total, hours = job.rows_expected, job.spec.hours
    done = job.counts.succeeded + job.counts.failed
    waits_for_a_person = job.paused_at is not None and job.resumes_at is None
    if job.state is not JobState.RUNNING or job.started_at is None or waits_for_a_person:
        return None
    if total is None or done < ETA_ROWS_MIN:
        return None
    took = now - job.started_at if hours is None else hours.open_time(job.started_at, now)
    left_s = took.total_seconds() * max(0, total - done) / done
    if left_s > ETA_MAX_S:
        return None
    left = timedelta(seconds=left_s)
    return now + left if hours is None else hours.end_of(left, now)
