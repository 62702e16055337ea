"""Files, uploads in parts, and the objects that are deleted with a job. The bytes are in the object store.

upload   pending ──► completed      its parts were put together in one file
            ├──────► cancelled
            └──────► expired        an hour after it was created
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Literal

from nightshift.jobs.ids import SUFFIX_LENGTH, derived_id

UNRECORDED_S: Final = 86_400.0  # an unrecorded object is collected this long after its upload began
RECORDED_WITHIN_S: Final = UNRECORDED_S / 2  # a later record may name an object that is being collected


class FilePurpose(StrEnum):
    BATCH = "batch"  # an upload to run
    BATCH_OUTPUT = "batch_output"  # results, and error lines
    USER_DATA = "user_data"  # stored as it is, like those below
    ASSISTANTS = "assistants"
    FINE_TUNE = "fine-tune"
    VISION = "vision"
    EVALS = "evals"


@dataclass(frozen=True, kw_only=True)
class File:
    """A stored file. `filename` is the client's name for it and never used as a path."""

    id: str
    tenant_id: str
    purpose: FilePurpose
    filename: str
    size_bytes: int
    sha256: str
    created_at: datetime
    expires_at: datetime | None  # afterwards the file is not found

    @property
    def key(self) -> str:
        return file_key(self.tenant_id, self.id)


def file_key(tenant_id: str, file_id: str) -> str:
    return f"files/{tenant_id}/{file_id}"


def output_file_id(job_id: str, kind: Literal["output", "error"]) -> str:
    """The id of a batch's output or error file, the same at every attempt to write it."""
    return derived_id("file-", f"{job_id}/{kind}")


_PARTIAL_OUTPUT: Final = "file-partial"  # and 24 letters and digits: no other id is so long


def partial_output_file_id(job_id: str) -> str:
    """The id under which a batch's results can be read as they come."""
    return _PARTIAL_OUTPUT + job_id.removeprefix("job_")


def job_id_of_partial_output(file_id: str) -> str | None:
    """The job of such an id. None: it is another file's."""
    suffix = file_id.removeprefix(_PARTIAL_OUTPUT)
    return f"job_{suffix}" if file_id.startswith(_PARTIAL_OUTPUT) and len(suffix) == SUFFIX_LENGTH else None


def retry_input_id(job_id: str) -> str:
    """The id of the file with the rows that this retry runs, the same at every attempt to write it."""
    return derived_id("file-", f"{job_id}/input")


LIFETIME: Final = timedelta(hours=1)
COMPOSING_MAX: Final = timedelta(hours=1)  # for a completion that began before the upload expired
KEPT_FOR: Final = timedelta(days=1)  # after it expired: a repeated completion is answered until then
PART_UNRECORDED_S: Final = 3 * 3600.0  # an object that is older belongs to no upload that takes parts

PART_BYTES_MAX: Final = 64 * 1024 * 1024
PARTS_MAX: Final = 10_000


class UploadStatus(StrEnum):
    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(frozen=True, kw_only=True)
class Upload:
    """A file that arrives in parts. `filename` is the client's name for it and never used as a path."""

    id: str
    tenant_id: str
    purpose: FilePurpose
    filename: str
    size_bytes: int  # as announced
    created_at: datetime
    expires_at: datetime
    file_expires_after_s: int | None  # from the file's creation
    status: UploadStatus  # as recorded: one that is pending may have expired
    file_id: str | None = None  # file of a completed upload

    def status_at(self, now: datetime) -> UploadStatus:
        if self.status is UploadStatus.PENDING and now >= self.expires_at:
            return UploadStatus.EXPIRED
        return self.status

    @property
    def parts_bytes_max(self) -> int:
        """The limit of all parts together, so that some may be sent again."""
        return self.size_bytes + max(self.size_bytes, PART_BYTES_MAX)


@dataclass(frozen=True, kw_only=True)
class UploadPart:
    id: str
    upload_id: str
    tenant_id: str
    size_bytes: int
    sha256: str
    created_at: datetime

    @property
    def key(self) -> str:
        return f"uploads/{self.tenant_id}/{self.upload_id}/{self.id}"


def composed_file_id(upload_id: str, part_ids: Sequence[str]) -> str:
    """The id of the file made of these parts in this order, the same at every attempt."""
    return derived_id("file-", "/".join((upload_id, *part_ids)))


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
    """Prefixes of the objects that go with this part. Input and output files are no part of a job."""
    kinds: tuple[str, ...] = ()
    if deletion.part is JobPart.RESULTS:
        kinds = ("segments", "results", "digests")
    elif deletion.part is JobPart.JOB:
        kinds = ("segments", "results", "digests", "assembly")
    return tuple(f"{kind}/{deletion.tenant_id}/{deletion.job_id}/" for kind in kinds)
