"""The amounts that a tenant has in the service at a time, and when they exceed its quotas. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from nightshift.jobs import Job, JobKind
from nightshift.tenants.quotas import Quotas

QUEUED: Final = ("queued_rows", "queued_tokens")
STORED: Final = ("stored_files", "stored_bytes")


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Amounts; or changes of them, which may be negative."""

    stored_files: int = 0  # files on record, expired ones too until their bytes are deleted
    stored_bytes: int = 0  # size of these, of parts of uploads, and of jobs' requests, answers and segments
    online_requests: int = 0  # unanswered
    bulk_jobs: int = 0  # unfinished
    bulk_rows: int = 0  # rows of these without a result, as far as known or estimated
    queued_tokens: int = 0  # tokens of unfinished jobs and unanswered requests, as estimated

    @property
    def queued_rows(self) -> int:
        return self.online_requests + self.bulk_rows

    def __add__(self, other: "Holding") -> "Holding":
        return Holding(**{name: getattr(self, name) + getattr(other, name) for name in HOLDING_NAMES})

    def __neg__(self) -> "Holding":
        return Holding(**{name: -getattr(self, name) for name in HOLDING_NAMES})

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in HOLDING_NAMES)


HOLDING_NAMES: Final = tuple(field.name for field in fields(Holding))


@dataclass(frozen=True)
class Excess:
    """A quota that is exceeded."""

    name: str
    limit: int
    amount: int


def held_by(job: Job) -> Holding:
    """The amounts that an unfinished job counts for, without what stays stored after its end."""
    if job.kind is JobKind.ONLINE:
        return Holding(online_requests=1, queued_tokens=job.tokens_queued)
    known = job.counts.total if job.counts.total is not None else job.rows_estimated or 0
    rows = known - job.counts.succeeded - job.counts.failed
    return Holding(bulk_jobs=1, bulk_rows=rows, queued_tokens=job.tokens_queued)


def excess(held: Holding, quotas: Quotas, names: Sequence[str]) -> Excess | None:
    """The first of these quotas that a holding exceeds."""
    limits = quotas.to_json()
    for name in names:
        amount = getattr(held, name)
        if name in limits and amount > limits[name]:
            return Excess(name, limits[name], amount)
    return None
