"""Statements about files. An expired or deleted file is not found.

Submitting a job over a file and deleting the file lock the file's row, so the later one sees the earlier.
SQLite's writers take turns anyway, without locks.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    bindparam,
    delete,
    insert,
    or_,
    select,
    tuple_,
    update,
)

from nightshift.jobs import JobKind
from nightshift.jobs.files import File, FilePurpose
from nightshift.store import tables
from nightshift.store.jobs.jobs import ACTIVE_STATES
from nightshift.store.tenants.holdings import Holdings
from nightshift.tenants.holdings import Holding

file = tables.file


class Files:
    def __init__(self, connection: Connection, holdings: Holdings) -> None:
        self._connection = connection
        self._holdings = holdings

    def insert(self, new: File) -> None:
        """Record a file whose bytes are stored."""
        self._holdings.add(new.tenant_id, Holding(stored_files=1, stored_bytes=new.size_bytes))
        self._connection.execute(
            insert(file).values(
                id=new.id,
                tenant_id=new.tenant_id,
                purpose=new.purpose,
                filename=new.filename,
                size_bytes=new.size_bytes,
                sha256=new.sha256,
                created_at=new.created_at,
                expires_at=new.expires_at,
            )
        )

    def get(self, tenant_id: str, file_id: str, now: datetime) -> File | None:
        return self._one(_of(tenant_id, file_id).where(_is_alive(now)))

    def get_to_read(self, tenant_id: str, file_id: str, now: datetime) -> File | None:
        """As `get`, and the file cannot be deleted until this transaction ends."""
        alive = _of(tenant_id, file_id).where(_is_alive(now))
        return self._one(alive.with_for_update(read=True, key_share=True))

    def get_to_delete(self, tenant_id: str, file_id: str, now: datetime) -> File | None:
        """As `get`, and no job over the file is submitted until this transaction ends."""
        return self._one(_of(tenant_id, file_id).where(_is_alive(now)).with_for_update())

    def input(self, tenant_id: str, file_id: str) -> File | None:
        """The file of a submitted job, also if it has expired since."""
        return self._one(_of(tenant_id, file_id))

    def list(
        self,
        tenant_id: str,
        now: datetime,
        *,
        limit: int,
        after: File | None = None,
        purpose: FilePurpose | None = None,
        newest_first: bool = True,
    ) -> Sequence[File]:
        """In order of creation. `after`: the last file of the previous page."""
        wanted = select(file).where(file.c.tenant_id == tenant_id, _is_alive(now))
        if purpose is not None:
            wanted = wanted.where(file.c.purpose == purpose)
        place = tuple_(file.c.created_at, file.c.id)
        if after is not None:
            last = tuple_(
                bindparam(None, after.created_at, type_=file.c.created_at.type),
                bindparam(None, after.id, type_=file.c.id.type),
            )
            wanted = wanted.where(place < last if newest_first else place > last)
        columns = (file.c.created_at, file.c.id)
        order = [column.desc() if newest_first else column.asc() for column in columns]
        return [_to_file(row) for row in self._connection.execute(wanted.order_by(*order).limit(limit))]

    def delete(self, tenant_id: str, file_id: str) -> bool:
        """Delete the record; the caller deletes the bytes afterwards. False: no such file."""
        deleted: int | None = self._connection.execute(
            delete(file)
            .where(file.c.id == file_id, file.c.tenant_id == tenant_id)
            .returning(file.c.size_bytes)
        ).scalar_one_or_none()
        if deleted is None:
            return False
        self._holdings.add(tenant_id, Holding(stored_files=-1, stored_bytes=-deleted))
        return True

    def expire(self, tenant_id: str, file_id: str, now: datetime) -> bool:
        """Let the file be found no more, although an unfinished job still reads it. False: no such file."""
        found = self._connection.execute(
            update(file).where(file.c.id == file_id, file.c.tenant_id == tenant_id).values(expires_at=now)
        )
        return found.rowcount == 1

    def expire_all(self, tenant_id: str, now: datetime) -> None:
        """As `expire`, for all files of a tenant."""
        self._connection.execute(
            update(file).where(file.c.tenant_id == tenant_id, _is_alive(now)).values(expires_at=now)
        )

    def expired(self, now: datetime, limit: int) -> Sequence[File]:
        """Expired files of all tenants that no unfinished job reads, the first to expire first. None can any
        more.
        """
        name = tables.job.c.spec["input"].as_string()
        is_unfinished = (tables.job.c.kind == JobKind.BULK, tables.job.c.state.in_(ACTIVE_STATES))
        read = select(name).where(*is_unfinished, name.is_not(None))
        wanted = select(file).where(file.c.expires_at <= now, file.c.id.not_in(read))
        rows = self._connection.execute(wanted.order_by(file.c.expires_at, file.c.id).limit(limit))
        return [_to_file(row) for row in rows]

    def _one(self, wanted: Select[Any]) -> File | None:
        row = self._connection.execute(wanted).one_or_none()
        return _to_file(row) if row else None


def _of(tenant_id: str, file_id: str) -> Select[Any]:
    return select(file).where(file.c.id == file_id, file.c.tenant_id == tenant_id)


def _is_alive(now: datetime) -> ColumnElement[bool]:
    return or_(file.c.expires_at.is_(None), file.c.expires_at > now)


def _to_file(row: Row[Any]) -> File:
    return File(
        id=row.id,
        tenant_id=row.tenant_id,
        purpose=FilePurpose(row.purpose),
        filename=row.filename,
        size_bytes=row.size_bytes,
        sha256=row.sha256,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )
