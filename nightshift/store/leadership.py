"""Statements about leadership: one active scheduler, whose row must be renewed.

Guarded by the term: a scheduler that slept past its time cannot renew what another has taken.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from nightshift.jobs.leases import FIRST_TERM, Term
from nightshift.store import tables

leadership = tables.leadership


@dataclass(frozen=True)
class Leader:
    """Who was last elected for a duty."""

    leader_id: str
    term: Term
    expires_at: datetime
    stalled: str | None  # a part of its work that stands still, as it last said


class Leadership:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def acquire(self, duty: str, leader_id: str, now: datetime, expires_at: datetime) -> Term | None:
        """Take a duty that is free or expired. None: it is held."""
        taken = self._connection.execute(
            update(leadership)
            .where(leadership.c.duty == duty, leadership.c.expires_at <= now)
            .values(leader_id=leader_id, term=leadership.c.term + 1, expires_at=expires_at, stalled=None)
            .returning(leadership.c.term)
        ).scalar_one_or_none()
        if taken is not None:
            return Term(taken)
        return self._insert_first(duty, leader_id, expires_at)

    def renew(
        self, duty: str, leader_id: str, term: Term, expires_at: datetime, stalled: str | None = None
    ) -> bool:
        """Extend the lead, and say what stands still. False: it was lost."""
        return self._update_held(duty, leader_id, term, expires_at=expires_at, stalled=stalled)

    def resign(self, duty: str, leader_id: str, term: Term, now: datetime) -> bool:
        """Give up a duty at once."""
        return self._update_held(duty, leader_id, term, expires_at=now)

    def of(self, duty: str) -> Leader | None:
        """Who was last elected; None: no one yet."""
        row = self._connection.execute(select(leadership).where(leadership.c.duty == duty)).one_or_none()
        if row is None:
            return None
        return Leader(row.leader_id, Term(row.term), row.expires_at, row.stalled)

    def _insert_first(self, duty: str, leader_id: str, expires_at: datetime) -> Term | None:
        """The first leader of a duty creates its row."""
        known = select(leadership.c.term).where(leadership.c.duty == duty)
        if self._connection.execute(known).one_or_none() is not None:
            return None
        try:
            with self._connection.begin_nested():
                self._connection.execute(
                    insert(leadership).values(
                        duty=duty, leader_id=leader_id, term=FIRST_TERM, expires_at=expires_at
                    )
                )
        except IntegrityError:
            return None
        return FIRST_TERM

    def _update_held(self, duty: str, leader_id: str, term: Term, **values: Any) -> bool:
        return (
            self._connection.execute(
                update(leadership)
                .where(
                    leadership.c.duty == duty,
                    leadership.c.leader_id == leader_id,
                    leadership.c.term == term,
                )
                .values(**values)
            ).rowcount
            == 1
        )
