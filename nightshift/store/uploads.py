"""Statements about uploads in parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from nightshift.jobs.files import FilePurpose, Upload, UploadPart, UploadStatus
from nightshift.store import tables
from nightshift.store.databases.database import Statements, from_row
from nightshift.store.tenants.holdings import Holdings
from nightshift.tenants.holdings import Holding

upload = tables.upload
part = tables.upload_part


@dataclass(frozen=True)
class Held:
    """The parts of an upload, used or not."""

    parts: int
    size_bytes: int


class Uploads(Statements):
    def __init__(self, connection: Connection, holdings: Holdings) -> None:
        super().__init__(connection)
        self._holdings = holdings

    def insert(self, new: Upload) -> None:
        self._execute(insert(upload).values(vars(new)))

    def get(self, tenant_id: str, upload_id: str, *, to_change: bool = False) -> Upload | None:
        """`to_change`: it changes in no other transaction until this one ends."""
        wanted = select(upload).where(upload.c.id == upload_id, upload.c.tenant_id == tenant_id)
        return self._one(wanted.with_for_update() if to_change else wanted, _to_upload)

    def count_pending(self, tenant_id: str, now: datetime) -> int:
        """The tenant's uploads that may still be completed."""
        counted = select(func.count()).where(
            upload.c.tenant_id == tenant_id,
            upload.c.status == UploadStatus.PENDING,
            upload.c.expires_at > now,
        )
        return self._execute(counted).scalar_one()

    def insert_part(self, new: UploadPart) -> None:
        """Records a part whose bytes are stored."""
        self._holdings.add(new.tenant_id, Holding(stored_bytes=new.size_bytes))
        self._execute(insert(part).values(vars(new)))

    def held(self, upload_id: str) -> Held:
        """Number and size of an upload's parts, used or not."""
        sums = select(func.count(), func.coalesce(func.sum(part.c.size_bytes), 0))
        count, size_bytes = self._execute(sums.where(part.c.upload_id == upload_id)).one()
        return Held(count, int(size_bytes))

    def parts(self, tenant_id: str, upload_id: str) -> Mapping[str, UploadPart]:
        """The parts of an upload, by id."""
        wanted = select(part).where(part.c.upload_id == upload_id, part.c.tenant_id == tenant_id)
        return {row.id: from_row(UploadPart, row) for row in self._execute(wanted)}

    def end(
        self, tenant_id: str, upload_id: str, status: UploadStatus, file_id: str | None = None
    ) -> Sequence[UploadPart] | None:
        """Ends a pending upload and forgets its parts, whose bytes the caller deletes afterwards.

        None: it is not pending.
        """
        if not self._changes_one(
            update(upload)
            .where(
                upload.c.id == upload_id,
                upload.c.tenant_id == tenant_id,
                upload.c.status == UploadStatus.PENDING,
            )
            .values(status=status, file_id=file_id)
        ):
            return None
        parts = list(self.parts(tenant_id, upload_id).values())
        self._execute(delete(part).where(part.c.upload_id == upload_id))
        self._holdings.add(tenant_id, Holding(stored_bytes=-sum(ended.size_bytes for ended in parts)))
        return parts

    # -- the service's own duties, over all tenants ----------------------------------------------------

    def overdue(self, before: datetime, limit: int) -> Sequence[Upload]:
        """Pending uploads that expired before this time."""
        wanted = select(upload).where(upload.c.status == UploadStatus.PENDING, upload.c.expires_at <= before)
        return self._all(wanted.limit(limit), _to_upload)

    def forget_ended(self, before: datetime) -> int:
        """Deletes the records of ended uploads that would have expired before this time."""
        return self._execute(
            delete(upload).where(upload.c.status != UploadStatus.PENDING, upload.c.expires_at <= before)
        ).rowcount


def _to_upload(row: Row[Any]) -> Upload:
    return from_row(Upload, row, purpose=FilePurpose(row.purpose), status=UploadStatus(row.status))
