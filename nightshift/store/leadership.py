"""Statements about leadership: one active scheduler, whose row must be renewed.

Guarded by the term: a scheduler that slept past its time cannot renew what another has taken.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, insert, select, update

from nightshift.jobs.leases import FIRST_TERM, Term
from nightshift.store import tables
from nightshift.store.databases.database import Statements, from_row

leadership = tables.leadership


@dataclass(frozen=True)
class Leader:
    """The process that was last elected for a duty."""

    leader_id: str
    term: Term
    expires_at: datetime
    stalled: str | None  # a part of its work that stands still, as it last said


class Leadership(Statements):
    def acquire(self, duty: str, leader_id: str, now: datetime, expires_at: datetime) -> Term | None:
        """Takes a duty that is free or expired. None: it is held."""
        taken = self._execute(
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
        """Extends the lead, and says what stands still. False: it was lost."""
        return self._update_held(duty, leader_id, term, expires_at=expires_at, stalled=stalled)

    def resign(self, duty: str, leader_id: str, term: Term, now: datetime) -> bool:
        """Gives up a duty at once."""
        return self._update_held(duty, leader_id, term, expires_at=now)

    def leader(self, duty: str) -> Leader | None:
        """The last elected leader. None: there was none yet."""
        return self._one(select(leadership).where(leadership.c.duty == duty), _to_leader)

    def _insert_first(self, duty: str, leader_id: str, expires_at: datetime) -> Term | None:
        """The first leader of a duty creates its row."""
        known = select(leadership.c.term).where(leadership.c.duty == duty)
        if self._execute(known).one_or_none() is not None:
            return None
        first = {"duty": duty, "leader_id": leader_id, "term": FIRST_TERM, "expires_at": expires_at}
        return FIRST_TERM if self._inserts(insert(leadership).values(first)) else None

    def _update_held(self, duty: str, leader_id: str, term: Term, **values: Any) -> bool:
        return self._changes_one(
            update(leadership)
            .where(
                leadership.c.duty == duty,
                leadership.c.leader_id == leader_id,
                leadership.c.term == term,
            )
            .values(**values)
        )


def _to_leader(row: Row[Any]) -> Leader:
    return from_row(Leader, row, term=Term(row.term))
