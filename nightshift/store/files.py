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
from nightshift.store.databases.database import Statements, from_row, position
from nightshift.store.jobs.jobs import ACTIVE_STATES
from nightshift.store.tenants.holdings import Holdings
from nightshift.tenants.holdings import Holding

file = tables.file


class Files(Statements):
    def __init__(self, connection: Connection, holdings: Holdings) -> None:
        super().__init__(connection)
        self._holdings = holdings

    def insert(self, new: File) -> None:
        """Records a file whose bytes are stored."""
        self._holdings.add(new.tenant_id, Holding(stored_files=1, stored_bytes=new.size_bytes))
        self._execute(insert(file).values(vars(new)))

    def get(self, tenant_id: str, file_id: str, now: datetime) -> File | None:
        return self._one(_named(tenant_id, file_id).where(_is_alive(now)), _to_file)

    def get_to_read(self, tenant_id: str, file_id: str, now: datetime) -> File | None:
        """A file as `get` returns it, which cannot be deleted until this transaction ends."""
        alive = _named(tenant_id, file_id).where(_is_alive(now))
        return self._one(alive.with_for_update(read=True, key_share=True), _to_file)

    def get_to_delete(self, tenant_id: str, file_id: str, now: datetime) -> File | None:
        """A file as `get` returns it; no job over it is submitted until this transaction ends."""
        return self._one(_named(tenant_id, file_id).where(_is_alive(now)).with_for_update(), _to_file)

    def input(self, tenant_id: str, file_id: str) -> File | None:
        """The file of a submitted job, also if it has expired since."""
        return self._one(_named(tenant_id, file_id), _to_file)

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
        """The tenant's files in order of creation. `after`: the last file of the previous page."""
        wanted = select(file).where(file.c.tenant_id == tenant_id, _is_alive(now))
        if purpose is not None:
            wanted = wanted.where(file.c.purpose == purpose)
        columns = (file.c.created_at, file.c.id)
        if after is not None:
            place, last = tuple_(*columns), position(columns, (after.created_at, after.id))
            wanted = wanted.where(place < last if newest_first else place > last)
        order = [column.desc() if newest_first else column.asc() for column in columns]
        return self._all(wanted.order_by(*order).limit(limit), _to_file)

    def delete(self, tenant_id: str, file_id: str) -> bool:
        """Deletes the record; the caller deletes the bytes afterwards. False: no such file."""
        deleted: int | None = self._execute(
            delete(file)
            .where(file.c.id == file_id, file.c.tenant_id == tenant_id)
            .returning(file.c.size_bytes)
        ).scalar_one_or_none()
        if deleted is None:
            return False
        self._holdings.add(tenant_id, Holding(stored_files=-1, stored_bytes=-deleted))
        return True

    def expire(self, tenant_id: str, file_id: str, now: datetime) -> bool:
        """Lets the file be found no more, although an unfinished job still reads it. False: no such file."""
        return self._changes_one(
            update(file).where(file.c.id == file_id, file.c.tenant_id == tenant_id).values(expires_at=now)
        )

    def expire_all(self, tenant_id: str, now: datetime) -> None:
        """Expires all files of a tenant."""
        self._execute(
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
        return self._all(wanted.order_by(file.c.expires_at, file.c.id).limit(limit), _to_file)


def _named(tenant_id: str, file_id: str) -> Select[Any]:
    return select(file).where(file.c.id == file_id, file.c.tenant_id == tenant_id)


def _is_alive(now: datetime) -> ColumnElement[bool]:
    return or_(file.c.expires_at.is_(None), file.c.expires_at > now)


def _to_file(row: Row[Any]) -> File:
    return from_row(File, row, purpose=FilePurpose(row.purpose))
