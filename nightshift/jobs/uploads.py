"""Uploads of large files in parts, as OpenAI's. The bytes of the parts are in the object store.

pending ──► completed      its parts were put together in one file
   ├──────► cancelled
   └──────► expired        an hour after it was created
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from nightshift.jobs.files import FilePurpose
from nightshift.jobs.ids import derived_id

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
    file_id: str | None = None  # of a completed one

    def status_at(self, now: datetime) -> UploadStatus:
        if self.status is UploadStatus.PENDING and now >= self.expires_at:
            return UploadStatus.EXPIRED
        return self.status

    @property
    def parts_bytes_max(self) -> int:
        """Of all its parts together, so that some may be sent again."""
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
