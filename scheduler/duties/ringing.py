"""Rings for work that no worker may know of: rings owed and not sent, and rings that Redis lost.

A ring too many finds nothing to claim, so at least once is enough.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from nightshift.broker.queue import BULK_QUEUE, ONLINE_QUEUE
from nightshift.errors import QueueUnavailable
from nightshift.jobs import JobKind
from nightshift.jobs.shard import Ring
from nightshift.store import PendingWork, Store
from scheduler.runtime.duty import Every, PassResult, RingSender, earliest

log = logging.getLogger(__name__)

UNWRITTEN: Final = 0  # the id of a ring that is in no outbox


@dataclass(frozen=True)
class RingingConfig:
    interval_s: float = 1.0  # between sweeps
    outbox_age_s: float = 1.0  # the process that writes a ring sends it; after this long, this duty does
    ring_after_s: float = 10.0  # then queued work is rung for again
    rings_per_sweep_max: int = 500  # rings of each sort: a sweep stays short after an outage of Redis
    bulk_waiting_max: int = 64  # bulk messages in the queue: enough to wake a fleet, which keeps claiming
    purge_interval_s: float = 60.0  # between purges of expired idempotency keys


@dataclass(frozen=True, kw_only=True)
class Rung(PassResult):
    owed: int = 0  # rings sent from the outbox
    again: int = 0  # rings sent for work that has waited
    purged: int = 0  # expired idempotency keys
    unavailable: int = 0  # 1: Redis was away


class Ringing:
    name = "ringing"

    def __init__(self, store: Store, sender: RingSender, config: RingingConfig = RingingConfig()) -> None:
        self._store = store
        self._sender = sender
        self._config = config
        self.interval_s = config.interval_s
        self._outbox_age = timedelta(seconds=config.outbox_age_s)
        self._ring_after = timedelta(seconds=config.ring_after_s)
        self._purging = Every(config.purge_interval_s)

    def due_at(self, work: PendingWork) -> datetime | None:
        """Whether one of many online requests has waited is for the pass to find out."""
        owed = None if work.ring_owed_since is None else work.ring_owed_since + self._outbox_age
        again = None if work.bulk_told_at is None else work.bulk_told_at + self._ring_after
        online = work.at if work.is_online_queued else None
        return earliest(owed, again, work.bulk_delayed_until, online)

    def run_once(self, now: datetime) -> Rung:
        """One sweep: the outbox, online requests that wait, bulk shards that wait, old keys."""
        purged = self._purge(now)
        try:
            owed = self._ring_owed(now)
            again = self._ring_online(now) + self._ring_bulk(now)
        except QueueUnavailable as error:
            log.warning("no rings: %s", error, extra={"action": "queue_unavailable"})
            return Rung(purged=purged, unavailable=1)
        return Rung(owed=owed, again=again, purged=purged, has_more=owed >= self._config.rings_per_sweep_max)

    def _ring_owed(self, now: datetime) -> int:
        with self._store.snapshot() as tx:
            rings = tx.outbox.waiting(now - self._outbox_age, self._config.rings_per_sweep_max)
        self._send(rings, [ring.shard_id for ring in rings if ring.shard_id], now)
        return len(rings)

    def _ring_online(self, now: datetime) -> int:
        """One message per request that waits, unless every queued request has its message waiting."""
        waiting = self._unrung(JobKind.ONLINE, now)
        if not waiting:
            return 0
        with self._store.snapshot() as tx:
            queued = tx.shards.queued(JobKind.ONLINE).get(JobKind.ONLINE, 0)
        if self._sender.length(ONLINE_QUEUE) >= queued:
            return 0
        rings = [Ring(UNWRITTEN, JobKind.ONLINE, shard_id, rank) for shard_id, rank in waiting]
        self._send(rings, [shard_id for shard_id, _ in waiting], now)
        return len(rings)

    def _ring_bulk(self, now: datetime) -> int:
        """One message per shard that waits, up to `bulk_waiting_max` in the queue."""
        waiting = self._unrung(JobKind.BULK, now)
        room = self._config.bulk_waiting_max - self._sender.length(BULK_QUEUE) if waiting else 0
        if room <= 0:
            return 0
        rings = [Ring(UNWRITTEN, JobKind.BULK, None, rank) for _, rank in waiting[:room]]
        self._send(rings, [shard_id for shard_id, _ in waiting], now)
        return len(rings)

    def _unrung(self, kind: JobKind, now: datetime) -> Sequence[tuple[str, int]]:
        with self._store.snapshot() as tx:
            return tx.shards.unrung(now, self._ring_after, kind=kind, limit=self._config.rings_per_sweep_max)

    def _send(self, rings: Sequence[Ring], shard_ids: Sequence[str], now: datetime) -> None:
        """Ring, then record it: a crash in between rings twice."""
        if not rings:
            return
        self._sender.ring(rings)
        with self._store.transaction() as tx:
            tx.outbox.delete([ring.id for ring in rings if ring.id != UNWRITTEN])
            tx.shards.mark_signalled(shard_ids, now)

    def _purge(self, now: datetime) -> int:
        if not self._purging.is_due(now):
            return 0
        with self._store.transaction() as tx:
            return tx.idempotency.purge(now)
