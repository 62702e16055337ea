"""Statements about rows that crash workers: which are suspected, and which are dead letters."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, insert, select, tuple_, update

from nightshift.fleet.workers import ExitCause
from nightshift.jobs import CrashHistory, ShardState
from nightshift.jobs.dead_letters import DeadLetter, DeadLetterState
from nightshift.jobs.leases import Lease
from nightshift.store import tables
from nightshift.store.databases.database import Statements, from_row

shard = tables.shard
row_crash = tables.row_crash
dead_row = tables.dead_row


class DeadLetters(Statements):
    def crash_history(self, shard_id: str, crashes: int) -> CrashHistory:
        """The history of a shard that lost so many workers. One that lost none costs no statement."""
        if crashes == 0:
            return CrashHistory()
        return CrashHistory(crashes, tuple(self.suspects(shard_id)), self._dead(shard_id))

    def suspects(self, shard_id: str) -> Mapping[int, int]:
        """Rows that were in flight at a loss and have neither finished nor died: how often, by row."""
        dead = self._dead(shard_id)
        rows = self._execute(
            select(row_crash).where(row_crash.c.shard_id == shard_id).order_by(row_crash.c.row)
        )
        return {row.row: row.crashes for row in rows if row.row not in dead}

    # -- under a lease ---------------------------------------------------------------------------------

    def journal(self, lease: Lease, rows: Sequence[int]) -> bool:
        """Records which rows are in flight. False: the lease is gone."""
        return self._update_held(lease, suspects=sorted(rows))

    def clear_suspect(self, lease: Lease, row: int) -> bool:
        """A suspect has finished; the last one clears the shard. False: the lease is gone."""
        if not self._update_held(lease, suspects=[]):
            return False
        suspected = (row_crash.c.shard_id == lease.shard_id) & (row_crash.c.row == row)
        self._execute(delete(row_crash).where(suspected))
        if not self.suspects(lease.shard_id):
            # With a dead row the shard stays watched: whichever worker claims it next must know of the row.
            cleared = {} if self._dead(lease.shard_id) else {"crash_count": 0}
            self._update_held(lease, is_isolating=False, **cleared)
        return True

    def clear_shard(self, lease: Lease) -> bool:
        """Every row that can have been in flight at a loss has finished since. False: the lease is gone. Not
        for a shard with a dead row.
        """
        if not self._update_held(lease, suspects=None, is_isolating=False, crash_count=0):
            return False
        self._execute(delete(row_crash).where(row_crash.c.shard_id == lease.shard_id))
        return True

    def set_custom_id(self, shard_id: str, row: int, custom_id: str) -> None:
        """A worker has read the name of a dead row."""
        self._execute(
            update(dead_row)
            .where(dead_row.c.shard_id == shard_id, dead_row.c.row == row, dead_row.c.custom_id.is_(None))
            .values(custom_id=custom_id)
        )

    # -- a tenant's ------------------------------------------------------------------------------------

    def list(
        self,
        tenant_id: str,
        *,
        limit: int,
        after: DeadLetter | None = None,
        state: DeadLetterState | None = None,
        job_id: str | None = None,
    ) -> Sequence[DeadLetter]:
        """A tenant's dead rows, the latest first."""
        wanted = [dead_row.c.tenant_id == tenant_id]
        if state is not None:
            wanted.append(dead_row.c.state == state)
        if job_id is not None:
            wanted.append(dead_row.c.job_id == job_id)
        if after is not None:
            place = tuple_(dead_row.c.died_at, dead_row.c.id)
            wanted.append(place < tuple_(tables.to_ms(after.died_at), after.id))
        return self._all(
            select(dead_row)
            .where(*wanted)
            .order_by(dead_row.c.died_at.desc(), dead_row.c.id.desc())
            .limit(limit),
            _to_dead_letter,
        )

    def get(self, tenant_id: str, id: str) -> DeadLetter | None:
        return self._one(
            select(dead_row).where(dead_row.c.tenant_id == tenant_id, dead_row.c.id == id), _to_dead_letter
        )

    def replay(self, tenant_id: str, id: str, job_id: str, now: datetime) -> bool:
        """Notes that a row was submitted again, as this job. False: it was replayed or discarded already."""
        return self._decide(tenant_id, id, now, state=DeadLetterState.REPLAYED, replay_job_id=job_id)

    def discard(self, tenant_id: str, id: str, now: datetime) -> bool:
        """The operator dismisses it. False: it was replayed or discarded already."""
        return self._decide(tenant_id, id, now, state=DeadLetterState.DISCARDED)

    # -- the service's own duties, over all tenants ----------------------------------------------------

    def record_crash(
        self, shard_id: str, rows: Sequence[int], cause: ExitCause, *, crashes_before: int = 1
    ) -> None:
        """Charge a lost worker to rows that were in flight. `crashes_before`: of the shard.

        The first rows of a shard to be charged are taken to have been in flight at the loss before as well,
        after which they were journalled, if there was one since the shard was last cleared.
        """
        first = 2 if crashes_before and not self._has_suspects(shard_id) else 1
        explained = int(cause.is_explained)
        for row in rows:
            this = (row_crash.c.shard_id == shard_id) & (row_crash.c.row == row)
            more = {"crashes": row_crash.c.crashes + 1, "explained": row_crash.c.explained + explained}
            if not self._execute(update(row_crash).where(this).values(**more, last_cause=cause)).rowcount:
                self._execute(
                    insert(row_crash).values(
                        shard_id=shard_id,
                        row=row,
                        crashes=first,
                        explained=first * explained,
                        last_cause=cause,
                    )
                )

    def insert(self, new: DeadLetter) -> None:
        """This row is not run again."""
        self._execute(insert(dead_row).values(vars(new)))

    def _decide(self, tenant_id: str, id: str, now: datetime, **values: Any) -> bool:
        return self._changes_one(
            update(dead_row)
            .where(
                dead_row.c.tenant_id == tenant_id,
                dead_row.c.id == id,
                dead_row.c.state == DeadLetterState.DEAD,
            )
            .values(decided_at=now, **values)
        )

    def _has_suspects(self, shard_id: str) -> bool:
        wanted = select(row_crash.c.row).where(row_crash.c.shard_id == shard_id).limit(1)
        return self._execute(wanted).one_or_none() is not None

    def _dead(self, shard_id: str) -> frozenset[int]:
        rows = self._execute(select(dead_row.c.row).where(dead_row.c.shard_id == shard_id))
        return frozenset(rows.scalars())

    def _update_held(self, lease: Lease, **values: Any) -> bool:
        held = (shard.c.id == lease.shard_id) & (shard.c.term == lease.term)
        changed = update(shard).where(held, shard.c.state == ShardState.LEASED).values(**values)
        return self._changes_one(changed)


def _to_dead_letter(row: Row[Any]) -> DeadLetter:
    return from_row(DeadLetter, row, cause=ExitCause(row.cause), state=DeadLetterState(row.state))
