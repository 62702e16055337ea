"""Claims work for this worker: messages wake it, the database decides, free places limit it.

    Celery ──► MessageHeap (online before bulk, better class first) ──► claim ──► runner, acknowledge

Which bulk shards it may claim, `nightshift/jobs/priorities.py` says. While it leaves some to other workers it
gets no rings for bulk, and looks every second for those it may.

A message is acknowledged once its claim has committed: from then on the lease keeps the work. The database is
polled too, since Redis may lose any message.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from nightshift.errors import DatabaseUnavailable
from nightshift.fleet.workers import Machine
from nightshift.jobs import BulkClaim, OnlineClaim
from nightshift.jobs.priorities import OnlineRoom, Room
from nightshift.lifecycle import transitions
from nightshift.process import failpoints
from nightshift.process.tracing.spans import is_on
from nightshift.store import Store
from workers.intake.messages import (
    BULK_RANK,
    ONLINE_RANK,
    BulkSubscription,
    Message,
    MessageHeap,
    Receipt,
    Subscription,
)
from workers.leases.heartbeat import Heartbeat
from workers.traces import record_claim

log = logging.getLogger(__name__)

CLAIM_MAX: Final = 64  # online requests claimed in one transaction
DROPPED_COUNTER: Final = "messages_dropped"


class Places(Protocol):
    def online_room(self) -> OnlineRoom: ...

    def bulk_room(self, models: Sequence[str]) -> Room | None:
        """Bulk shards that may be claimed for these models. None: there are none."""

    def run_online(self, claim: OnlineClaim, claimed_at_s: float) -> None: ...

    def run_bulk(self, claim: BulkClaim, claimed_at_s: float) -> None: ...


class Models(Protocol):
    @property
    def warm(self) -> tuple[str, ...]:
        """Models for which work may be claimed."""

    def claiming(self) -> AbstractContextManager[tuple[str, ...]]:
        """Keeps models warm until what is claimed meanwhile has been handed to them."""


@dataclass(frozen=True)
class IntakeTimes:
    poll_s: float = 5.0  # between polls: what a lost ring costs at most
    look_s: float = 1.0  # between looks for bulk without rings: what a small job waits beside large ones
    next_kept_s: float = 0.25  # how long the database's answer is used
    retry_s: float = 1.0  # after a fault of the database


class Intake:
    """Turns rings into claims, on its own thread."""

    def __init__(
        self,
        store: Store,
        worker_id: str,
        models: Models,
        lease_ttl_s: float,
        places: Places,
        heartbeat: Heartbeat,
        machine: Machine = Machine(),
        on_left: Callable[[], None] = lambda: None,
        times: IntakeTimes = IntakeTimes(),
    ) -> None:
        """`on_left` is called when work may wait that no warm model is for."""
        self._on_left = on_left
        self._times = times
        self._machine = machine
        self._store = store
        self._worker_id = worker_id
        self._models = models
        self._lease_ttl_s = lease_ttl_s
        self._places = places
        self._heartbeat = heartbeat
        self._heap = MessageHeap()
        self._bulk_subscription = BulkSubscription()
        self._changed = threading.Condition()
        self.messages_received = 0
        self.online_without_message = 0  # requests found without one
        self._next: deque[str] = deque()  # online requests that are next, by the database …
        self._next_until_s = 0.0  # … until this time
        self._online_may_wait = False  # online work whose ring may have gone to another request
        self._left_out: frozenset[str] = frozenset()  # tenants that the last claim of online work left out
        self._empty_room: Room | None = (
            None  # in which the last claim of bulk found nothing; None: look again
        )
        self._poll_at_s = time.monotonic() + self._times.poll_s
        self._look_at_s = float("inf")  # for bulk; of a worker without rings
        self._dropped = 0  # unreadable messages, not counted yet
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Messages not claimed stay unacknowledged and go back to the queue."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def attach(self, subscription: Subscription) -> None:
        """Tells that the consumer has (re)connected to Redis."""
        self._bulk_subscription.attach(subscription)

    def online_rang(
        self, shard_id: str, priority: int, receipt: Receipt, traceparent: str | None = None
    ) -> None:
        """`traceparent`: of the span that the message says has sent it."""
        self._put(ONLINE_RANK, priority, shard_id, receipt, traceparent)

    def bulk_rang(self, priority: int, receipt: Receipt) -> None:
        self._put(BULK_RANK, priority, None, receipt)

    def message_dropped(self) -> None:
        """Counts an unreadable message; the next poll adds it to the database's count."""
        with self._changed:
            self.messages_received += 1
            self._dropped += 1

    def online_place_freed(self) -> None:
        with self._changed:
            self._changed.notify()

    def models_changed(self) -> None:
        """Looks for work, since a model has become warm."""
        with self._changed:
            self._next_until_s = 0.0
            self._online_may_wait = True
            self._empty_room = None
            self._changed.notify()

    def bulk_place_freed(self) -> None:
        """Claims without waiting for a ring."""
        with self._changed:
            self._empty_room = None
            self._changed.notify()

    def bulk_room_changed(self) -> None:
        """Claims bulk, unless it has looked in vain in the same room."""
        with self._changed:
            self._changed.notify()

    def _put(
        self,
        rank: int,
        priority: int,
        shard_id: str | None,
        receipt: Receipt,
        traceparent: str | None = None,
    ) -> None:
        with self._changed:
            self.messages_received += 1
            self._heap.push(rank, priority, shard_id, receipt, traceparent)
            self._changed.notify()

    # -- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                left_s = min(self._poll_at_s, self._look_at_s) - time.monotonic()
                self._changed.wait_for(self._has_something_to_do, timeout=max(0.0, left_s))
                if self._is_stopping:
                    return
            now_s = time.monotonic()
            poll, look = now_s >= self._poll_at_s, now_s >= self._look_at_s
            if poll:
                self._poll_at_s = now_s + self._times.poll_s
            if look:
                self._look_at_s = now_s + self._times.look_s
            try:
                self._take_online(poll=poll)
                self._take_bulk(look=look or poll)
                if poll:
                    self._count_dropped()
            except DatabaseUnavailable as error:
                log.warning("claim failed", extra={"action": "claim_failed", "reason": error.message})
                self._pause(self._times.retry_s)
            except Exception:
                log.exception("claim failed", extra={"action": "claim_failed"})
                self._pause(self._times.retry_s)

    def _has_something_to_do(self) -> bool:
        if self._is_stopping:
            return True
        room = self._places.online_room()
        if room.at_once > 0 and (self._may_wait(room) or self._heap.has(ONLINE_RANK)):
            return True
        return self._heap.has(BULK_RANK) or self._may_claim_bulk

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping, timeout=seconds)

    def _take_online(self, *, poll: bool) -> None:
        """Claims the requests that have rung. With fewer places, one tenant may have filled the queue: then
        claim those that are next by the database.
        """
        room = self._places.online_room()
        count = min(CLAIM_MAX, room.at_once)
        messages = self._heap.pop(ONLINE_RANK, count)
        asks = count > 0 and (poll or self._may_wait(room) or self._heap.has(ONLINE_RANK))
        if not messages and not asks:
            return
        claimed_at_s = self._heartbeat.clock_s()
        with self._models.claiming() as warm:
            try:
                wanted = self._next_online(count, room, poll=poll) if asks else _named(messages)
                claims = self._claim_online(wanted, warm, room)
            except DatabaseUnavailable:
                self._heap.put_back(messages)
                raise
            ended_s = self._heartbeat.clock_s()
            if claims:
                failpoints.hit("worker.claimed")
            for claim in claims:
                self._places.run_online(claim, claimed_at_s)
        # Another worker that claimed a request named here may hold another's message.
        self._online_may_wait = bool(wanted) if asks else len(claims) < len(messages)
        self._left_out = room.full_tenants
        rang = {message.shard_id for message in messages}
        self.online_without_message += sum(claim.lease.shard_id not in rang for claim in claims)
        for message in messages:
            message.receipt.acknowledge()
        if is_on():
            senders = {message.shard_id: message.traceparent for message in messages}
            for claim in claims:
                sender = senders.get(claim.lease.shard_id)
                record_claim(claim, claimed_at_s, ended_s, sender)
        if rang - {claim.lease.shard_id for claim in claims}:
            self._on_left()

    def _may_wait(self, room: OnlineRoom) -> bool:
        """Whether online work may wait that has no message here; a tenant that was full may have some."""
        return self._online_may_wait or bool(self._left_out - room.full_tenants)

    def _next_online(self, count: int, room: OnlineRoom, *, poll: bool) -> Sequence[str]:
        """Ids of online requests, the best first, as of a moment ago."""
        if poll or not self._next or time.monotonic() >= self._next_until_s:
            with self._store.snapshot() as tx:
                self._next = deque(
                    tx.claims.next_online(
                        self._models.warm, tx.now(), CLAIM_MAX, self._machine, room.full_tenants
                    )
                )
            self._next_until_s = time.monotonic() + self._times.next_kept_s
        return [self._next.popleft() for _ in range(min(count, len(self._next)))]

    def _claim_online(
        self, shard_ids: Sequence[str], models: Sequence[str], room: OnlineRoom
    ) -> Sequence[OnlineClaim]:
        """Claims online requests. Not durable: a power failure takes this worker with its database, and the
        requests are queued again (`docs/leases.md`).
        """
        if not shard_ids:
            return []
        return self._store.run(
            lambda tx: tx.claims.online(
                shard_ids,
                self._worker_id,
                models,
                tx.now(),
                self._lease_ttl_s,
                machine=self._machine,
                full_tenants=room.full_tenants,
            ),
            durable=False,
        )

    def _take_bulk(self, *, look: bool) -> None:
        """Claims what there is room for. Tokens that may be for other workers are given back once the
        subscription is paused.
        """
        tokens = self._heap.pop(BULK_RANK)
        claims = 0
        try:
            if tokens or look:
                self._empty_room = None
            while self._may_claim_bulk and self._claim_bulk():
                claims += 1
                if self._heap.has(ONLINE_RANK):
                    break  # it goes first, and then more of these
        except Exception:  # no token can be the reason
            self._heap.put_back(tokens)
            raise
        room = self._places.bulk_room(self._models.warm)
        is_for_all = room is not None and room.is_for_all
        self._listen_for_bulk(is_for_all, may_look=room is not None)
        for number, token in enumerate(tokens):
            if is_for_all or number < claims:
                token.receipt.acknowledge()
            else:
                token.receipt.give_back()

    def _listen_for_bulk(self, is_for_all: bool, *, may_look: bool) -> None:
        self._bulk_subscription.want(is_for_all)
        if is_for_all or not may_look:
            self._look_at_s = float("inf")
        else:
            self._look_at_s = min(self._look_at_s, time.monotonic() + self._times.look_s)

    @property
    def _may_claim_bulk(self) -> bool:
        room = self._places.bulk_room(self._models.warm)
        return room is not None and room != self._empty_room

    def _claim_bulk(self) -> bool:
        claimed_at_s = self._heartbeat.clock_s()
        with self._models.claiming() as warm:
            room = self._places.bulk_room(warm)
            claim = None if room is None else self._claim_within(room, warm)
            if claim is None:
                self._empty_room = room
                self._on_left()
                return False
            failpoints.hit("worker.claimed")
            if is_on():
                record_claim(claim, claimed_at_s, self._heartbeat.clock_s())
            self._places.run_bulk(claim, claimed_at_s)
        return True

    def _claim_within(self, room: Room, models: Sequence[str]) -> BulkClaim | None:
        return self._store.run(
            lambda tx: transitions.claim_bulk(
                tx,
                self._worker_id,
                models,
                tx.now(),
                self._lease_ttl_s,
                machine=self._machine,
                room=room,
            )
        )

    def _count_dropped(self) -> None:
        with self._changed:
            dropped = self._dropped
        if not dropped:
            return
        self._store.run(lambda tx: tx.counters.add(DROPPED_COUNTER, dropped))
        with self._changed:
            self._dropped -= dropped


def _named(messages: Sequence[Message]) -> Sequence[str]:
    return list(dict.fromkeys(message.shard_id for message in messages if message.shard_id is not None))
