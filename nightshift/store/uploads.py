"""Statements about uploads in parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from nightshift.jobs.files import FilePurpose, Upload, UploadPart, UploadStatus
from nightshift.store import tables
from nightshift.store.tenants.holdings import Holdings
from nightshift.tenants.holdings import Holding

upload = tables.upload
part = tables.upload_part


@dataclass(frozen=True)
class Held:
    """The parts of an upload, used or not."""

    parts: int
    size_bytes: int


class Uploads:
    def __init__(self, connection: Connection, holdings: Holdings) -> None:
        self._connection = connection
        self._holdings = holdings

    def insert(self, new: Upload) -> None:
        self._connection.execute(
            insert(upload).values(
                id=new.id,
                tenant_id=new.tenant_id,
                purpose=new.purpose,
                filename=new.filename,
                size_bytes=new.size_bytes,
                created_at=new.created_at,
                expires_at=new.expires_at,
                file_expires_after_s=new.file_expires_after_s,
                status=new.status,
            )
        )

    def get(self, tenant_id: str, upload_id: str, *, to_change: bool = False) -> Upload | None:
        """`to_change`: it changes in no other transaction until this one ends."""
        wanted = select(upload).where(upload.c.id == upload_id, upload.c.tenant_id == tenant_id)
        row = self._connection.execute(wanted.with_for_update() if to_change else wanted).one_or_none()
        return _to_upload(row) if row else None

    def count_pending(self, tenant_id: str, now: datetime) -> int:
        """The tenant's uploads that may still be completed."""
        counted = select(func.count()).where(
            upload.c.tenant_id == tenant_id,
            upload.c.status == UploadStatus.PENDING,
            upload.c.expires_at > now,
        )
        return self._connection.execute(counted).scalar_one()

    def insert_part(self, new: UploadPart) -> None:
        """Record a part whose bytes are stored."""
        self._holdings.add(new.tenant_id, Holding(stored_bytes=new.size_bytes))
        self._connection.execute(
            insert(part).values(
                id=new.id,
                upload_id=new.upload_id,
                tenant_id=new.tenant_id,
                size_bytes=new.size_bytes,
                sha256=new.sha256,
                created_at=new.created_at,
            )
        )

    def held(self, upload_id: str) -> Held:
        """What the parts of an upload amount to."""
        sums = select(func.count(), func.coalesce(func.sum(part.c.size_bytes), 0))
        count, size_bytes = self._connection.execute(sums.where(part.c.upload_id == upload_id)).one()
        return Held(count, int(size_bytes))

    def parts(self, tenant_id: str, upload_id: str) -> Mapping[str, UploadPart]:
        """The parts of an upload, by id."""
        wanted = select(part).where(part.c.upload_id == upload_id, part.c.tenant_id == tenant_id)
        return {row.id: _to_part(row) for row in self._connection.execute(wanted)}

    def end(
        self, tenant_id: str, upload_id: str, status: UploadStatus, file_id: str | None = None
    ) -> Sequence[UploadPart] | None:
        """End a pending upload and forget its parts, whose bytes the caller deletes afterwards.

        None: it is not pending.
        """
        ended = self._connection.execute(
            update(upload)
            .where(
                upload.c.id == upload_id,
                upload.c.tenant_id == tenant_id,
                upload.c.status == UploadStatus.PENDING,
            )
            .values(status=status, file_id=file_id)
        )
        if ended.rowcount == 0:
            return None
        parts = list(self.parts(tenant_id, upload_id).values())
        self._connection.execute(delete(part).where(part.c.upload_id == upload_id))
        self._holdings.add(tenant_id, Holding(stored_bytes=-sum(each.size_bytes for each in parts)))
        return parts

    # -- the service's own duties, over all tenants ----------------------------------------------------

    def overdue(self, before: datetime, limit: int) -> Sequence[Upload]:
        """Pending uploads that expired before this time."""
        wanted = select(upload).where(upload.c.status == UploadStatus.PENDING, upload.c.expires_at <= before)
        return [_to_upload(row) for row in self._connection.execute(wanted.limit(limit))]

    def forget_ended(self, before: datetime) -> int:
        """Delete the records of ended uploads that would have expired before this time."""
        return self._connection.execute(
            delete(upload).where(upload.c.status != UploadStatus.PENDING, upload.c.expires_at <= before)
        ).rowcount


def _to_upload(row: Row[Any]) -> Upload:
    return Upload(
        id=row.id,
        tenant_id=row.tenant_id,
        purpose=FilePurpose(row.purpose),
        filename=row.filename,
        size_bytes=row.size_bytes,
        created_at=row.created_at,
        expires_at=row.expires_at,
        file_expires_after_s=row.file_expires_after_s,
        status=UploadStatus(row.status),
        file_id=row.file_id,
    )


def _to_part(row: Row[Any]) -> UploadPart:
    return UploadPart(
        id=row.id,
        upload_id=row.upload_id,
        tenant_id=row.tenant_id,
        size_bytes=row.size_bytes,
        sha256=row.sha256,
        created_at=row.created_at,
    )
