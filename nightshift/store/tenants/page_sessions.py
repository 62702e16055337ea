"""Statements about who is signed in to the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, insert, or_, select, update

from nightshift.store import tables
from nightshift.store.databases.database import Statements, from_row

page_session = tables.page_session


@dataclass(frozen=True)
class PageSession:
    """`token_sha256`: of the cookie, which is stored nowhere."""

    token_sha256: str
    key_id: str
    created_at: datetime
    used_at: datetime


class PageSessions(Statements):
    def insert(self, new: PageSession) -> None:
        self._execute(insert(page_session).values(vars(new)))

    def find(self, token_sha256: str) -> PageSession | None:
        wanted = select(page_session).where(page_session.c.token_sha256 == token_sha256)
        return self._one(wanted, _to_session)

    def of_key(self, key_id: str) -> Sequence[PageSession]:
        """A key's sessions, newest first."""
        wanted = select(page_session).where(page_session.c.key_id == key_id)
        newest_first = (page_session.c.created_at.desc(), page_session.c.token_sha256)
        return self._all(wanted.order_by(*newest_first), _to_session)

    def mark_used(self, token_sha256: str, now: datetime) -> None:
        self._execute(
            update(page_session).where(page_session.c.token_sha256 == token_sha256).values(used_at=now)
        )

    def delete(self, token_sha256: str) -> None:
        self._execute(delete(page_session).where(page_session.c.token_sha256 == token_sha256))

    def delete_ended(self, used_before: datetime, created_before: datetime, limit: int) -> None:
        """Deletes sessions that were last used before the one time, or begun before the other."""
        ended = (
            select(page_session.c.token_sha256)
            .where(or_(page_session.c.used_at < used_before, page_session.c.created_at < created_before))
            .limit(limit)
        )
        self._execute(delete(page_session).where(page_session.c.token_sha256.in_(ended)))


def _to_session(row: Row[Any]) -> PageSession:
    return from_row(PageSession, row)
