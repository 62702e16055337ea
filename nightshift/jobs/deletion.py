"""What is deleted of jobs that have ended, and where their bytes are."""

from dataclasses import dataclass
from enum import StrEnum


class JobPart(StrEnum):
    RESULTS = "results"  # the segments of a bulk job
    EVENTS = "events"  # all but the last
    JOB = "job"  # all that belongs to it, and then the job itself


@dataclass(frozen=True)
class Deletion:
    """A part of an ended job that no tenant finds any more, and that may still be there."""

    id: int
    tenant_id: str
    job_id: str
    part: JobPart


def object_prefixes(deletion: Deletion) -> tuple[str, ...]:
    """Of the objects that go with this part. Input and output files are no part of a job."""
    kinds: tuple[str, ...] = ()
    if deletion.part is JobPart.RESULTS:
        kinds = ("segments", "results", "digests")
    elif deletion.part is JobPart.JOB:
        kinds = ("segments", "results", "digests", "assembly")
    return tuple(f"{kind}/{deletion.tenant_id}/{deletion.job_id}/" for kind in kinds)
