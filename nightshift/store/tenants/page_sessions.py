"""Statements about who is signed in to the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, delete, insert, or_, select, update

from nightshift.store import tables

page_session = tables.page_session


@dataclass(frozen=True)
class PageSession:
    """`token_sha256`: of the cookie, which is stored nowhere."""

    token_sha256: str
    key_id: str
    created_at: datetime
    used_at: datetime


class PageSessions:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def insert(self, new: PageSession) -> None:
        self._connection.execute(
            insert(page_session).values(
                token_sha256=new.token_sha256,
                key_id=new.key_id,
                created_at=new.created_at,
                used_at=new.used_at,
            )
        )

    def find(self, token_sha256: str) -> PageSession | None:
        found = self._connection.execute(
            select(page_session).where(page_session.c.token_sha256 == token_sha256)
        ).one_or_none()
        return None if found is None else PageSession(**found._mapping)

    def of_key(self, key_id: str) -> Sequence[PageSession]:
        """A key's sessions, newest first."""
        rows = self._connection.execute(
            select(page_session)
            .where(page_session.c.key_id == key_id)
            .order_by(page_session.c.created_at.desc(), page_session.c.token_sha256)
        )
        return [PageSession(**row._mapping) for row in rows]

    def mark_used(self, token_sha256: str, now: datetime) -> None:
        self._connection.execute(
            update(page_session).where(page_session.c.token_sha256 == token_sha256).values(used_at=now)
        )

    def delete(self, token_sha256: str) -> None:
        self._connection.execute(delete(page_session).where(page_session.c.token_sha256 == token_sha256))

    def delete_ended(self, used_before: datetime, created_before: datetime, limit: int) -> None:
        """Delete sessions that were last used before the one, or begun before the other."""
        ended = (
            select(page_session.c.token_sha256)
            .where(or_(page_session.c.used_at < used_before, page_session.c.created_at < created_before))
            .limit(limit)
        )
        self._connection.execute(delete(page_session).where(page_session.c.token_sha256.in_(ended)))
