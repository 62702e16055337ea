"""How long it takes until what a killed process held is free, and until it is leased again.

a worker      free when nothing is leased to it any more; over when all that was is leased anew, or done
a scheduler   over when another one leads, if it led
the API       over when it answers

And what the death cost: `lost` says by which fault each lease ended, so that a row that was finished twice
can be attributed to a fault.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import httpx
from sqlalchemy import select

from nightshift.errors import DatabaseUnavailable
from nightshift.jobs import ShardState
from nightshift.store import tables
from tests.faults.chaos.schedule import Kind
from tests.faults.kit.service import Service

LOOK_S: Final = 0.1  # between two looks: how exact the times are

shard = tables.shard


@dataclass(frozen=True)
class Missed:
    """A repair that is waited for, and leases lost meanwhile: (job, number, term) of shards."""

    is_over: Callable[[], bool]
    is_free: Callable[[], bool] | None = None
    leases: Sequence[tuple[str, int, int]] = ()


@dataclass(frozen=True, eq=False)
class _Watched:
    kind: Kind
    died_at_s: float
    is_true: Callable[[], bool]
    seconds: dict[str, list[float]]  # where to note it


@dataclass(eq=False)
class Recoveries:
    """Watches from a thread of its own, within `with`."""

    service: Service
    over_s: dict[str, list[float]] = field(default_factory=dict)  # by fault
    free_s: dict[str, list[float]] = field(default_factory=dict)
    lost: dict[tuple[str, int, int], Kind] = field(default_factory=dict)
    _watched: list[_Watched] = field(default_factory=list)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Recoveries":
        self._thread = threading.Thread(target=self._run, name="recoveries", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *about: object) -> None:
        self._is_over.set()
        self._thread.join()

    def before(self, role: str, pid: int) -> Missed | None:
        """Asks before the death of the process that does the work. None: no work depends on it."""
        kind = role.partition("-")[0]
        try:
            if kind in ("worker", "machine"):
                return self._leases_of(pid)
            return self._lead_of(pid) if kind == "scheduler" else Missed(self._api_answers)
        except DatabaseUnavailable:
            return None

    def died(self, kind: Kind, missed: Missed | None) -> None:
        if missed is not None:
            self.lost |= dict.fromkeys(missed.leases, kind)
            died_at_s = time.monotonic()
            self._watched.append(_Watched(kind, died_at_s, missed.is_over, self.over_s))
            if missed.is_free is not None:
                self._watched.append(_Watched(kind, died_at_s, missed.is_free, self.free_s))

    def _run(self) -> None:
        while not self._is_over.wait(LOOK_S):
            for watched in list(self._watched):
                try:
                    is_true = watched.is_true()
                except DatabaseUnavailable:
                    continue
                if is_true:
                    self._watched.remove(watched)
                    took_s = time.monotonic() - watched.died_at_s
                    watched.seconds.setdefault(watched.kind, []).append(round(took_s, 2))

    def _leases_of(self, pid: int) -> Missed | None:
        ids = select(tables.worker.c.id).where(tables.worker.c.pid == pid)
        held_by_it = (shard.c.worker_id.in_(ids), shard.c.state == ShardState.LEASED)
        with self.service.database.read() as connection:
            held = connection.execute(
                select(shard.c.id, shard.c.job_id, shard.c.shard_no, shard.c.term).where(*held_by_it)
            ).all()
        if not held:
            return None
        terms = {row.id: row.term for row in held}

        def is_free() -> bool:
            with self.service.database.read() as connection:
                return connection.execute(select(shard.c.id).where(*held_by_it)).first() is None

        def is_over() -> bool:
            with self.service.database.read() as connection:
                waiting = connection.execute(
                    select(shard.c.id, shard.c.term, shard.c.state).where(
                        shard.c.id.in_(terms), shard.c.state.in_((ShardState.QUEUED, ShardState.LEASED))
                    )
                ).all()
            return all(row.state == ShardState.LEASED and row.term > terms[row.id] for row in waiting)

        return Missed(is_over, is_free, [(row.job_id, row.shard_no, row.term) for row in held])

    def _lead_of(self, pid: int) -> Missed | None:
        leader = self._leader()
        if leader is None or f"-{pid}-" not in leader:
            return None
        return Missed(lambda: self._leader() != leader)

    def _leader(self) -> str | None:
        with self.service.database.read() as connection:
            return connection.execute(select(tables.leadership.c.leader_id)).scalar()

    def _api_answers(self) -> bool:
        try:
            return httpx.get(f"{self.service.base_url}/healthz", trust_env=False, timeout=1.0).is_success
        except httpx.TransportError:
            return False
