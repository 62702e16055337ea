"""Checks of the scheduler's retention duty: its rounds, and the uploads that were left behind."""

from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from nightshift.cli.doctor.checks.storage import some_key
from nightshift.cli.doctor.examination import Finding, NotApplicable, ok, skipped, warning
from nightshift.cli.doctor.site import Site
from nightshift.jobs.files import UNRECORDED_S
from nightshift.objectstore import ObjectStore

UPLOADS_MAX: Final = 10_000  # counted
INTERVALS_LATE: Final = 3
LATE_MIN: Final = timedelta(minutes=15)
# As in scheduler/duties/retention.py: what it looks through, and the object written as a round begins.
COLLECTED_FOLDERS: Final = ("segments/", "results/", "digests/", "assembly/", "files/", "uploads/")
CLOCK_KEY: Final = "retention/clock"

_LOOK: Final = "look for 'retention' in the scheduler's log (of `nightshift up`: logs/scheduler.log)"


def look_at_retention(site: Site) -> Finding:
    """The duty marks the beginning of each round while there are old objects."""
    with site.objects() as store:
        marked = store.head(CLOCK_KEY)
        now = _time_of(store)
        late = max(timedelta(seconds=site.scheduler.retention_interval_s) * INTERVALS_LATE, LATE_MIN)
        if marked is not None and marked.modified_at >= now - late:
            return ok(f"began its last round {_age(now - marked.modified_at)} ago")
        if not _has_older(store, now - late):
            return skipped("there is no object that is old enough to look at")
    last = "has never made a round"
    if marked is not None:
        last = f"began its last round {_age(now - marked.modified_at)} ago"
    return warning(f"the duty {last}", f"objects that nothing refers to stay and take room: {_LOOK}")


def look_at_uploads(site: Site) -> Finding:
    """Uploads in parts that were neither completed nor aborted take room that no listing shows."""
    kept = _still_to_publish(site)
    with site.objects() as store:
        uploads = [upload for upload in islice(store.staged(), UPLOADS_MAX) if upload.upload_id not in kept]
        now = _time_of(store)
    ages = sorted(
        max(timedelta(), now - upload.begun_at)  # S3 tells the time in whole seconds
        for upload in uploads
        if upload.begun_at is not None
    )
    if not ages:
        return ok("none", uploads=0)
    count = f"{len(uploads)}{' or more' if len(uploads) == UPLOADS_MAX else ''}"
    detail = f"{count} unfinished uploads, the oldest {_age(ages[-1])} old"
    figures = {"uploads": len(uploads), "oldest_s": round(ages[-1].total_seconds())}
    limit = timedelta(seconds=max(site.scheduler.orphan_age_s, UNRECORDED_S))
    if ages[-1] > limit + timedelta(seconds=site.scheduler.retention_interval_s) * INTERVALS_LATE:
        return warning(
            detail,
            f"the scheduler should have aborted those older than {_age(limit)}: {_LOOK}, and see that it may "
            "(of AWS: s3:AbortMultipartUpload, s3:ListBucketMultipartUploads)",
            **figures,
        )
    return ok(f"{detail}; the scheduler aborts them once they are {_age(limit)} old", **figures)


def _still_to_publish(site: Site) -> set[str]:
    try:
        with site.snapshot() as tx:
            return tx.parts.open_uploads()
    except NotApplicable:
        return set()


def _time_of(store: ObjectStore) -> datetime:
    with some_key(store) as key:
        return store.put(key, b"").modified_at


def _has_older(store: ObjectStore, than: datetime) -> bool:
    """Looks at the first objects of each folder: enough to tell whether there is anything to collect."""
    return any(
        info.modified_at < than for folder in COLLECTED_FOLDERS for info in islice(store.list(folder), 100)
    )


def _age(age: timedelta) -> str:
    minutes = int(age.total_seconds() // 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 2880 else f"{minutes // 1440} days"
