"""What this worker takes on: messages wake it, the database decides, free places limit it.

A message is acknowledged once its claim has committed, whether or not there was anything to claim: from then
on the lease keeps the work, not Redis. What was claimed goes to its engine first, since somebody waits.
When the bulk places are full the worker stops listening for bulk tokens and gives back those it had fetched
ahead, so that they wake somebody else. Every few seconds the database is asked directly, whatever has rung:
Redis may have lost any message, or all of one kind.

An online ring names its request, which is claimed if there are places for all that have rung. If there are
not, who is next is not the order of the queue, which one tenant alone may have filled: the database says who,
a number at a time, for where thousands wait the question costs more than a claim.

    Celery ──► heap (online before bulk, better class first) ──► claim ──► runner, acknowledge
"""

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from nightshift.errors import DatabaseUnavailable
from nightshift.fleet.workers import Capacity
from nightshift.jobs import BulkClaim, OnlineClaim
from nightshift.processes import failpoints
from nightshift.store import Store
from workers.health.heartbeat import Heartbeat

log = logging.getLogger(__name__)

CLAIM_MAX: Final = 64  # online requests claimed in one transaction
NEXT_KEPT_S: Final = 0.25  # who is next is asked no more often than this, unless all of them are claimed
POLL_S: Final = 5.0  # between two looks into the database: what a lost ring costs at most
DATABASE_RETRY_S: Final = 1.0

DROPPED_COUNTER: Final = "messages_dropped"

ONLINE_RANK: Final = 0
BULK_RANK: Final = 1


@dataclass(order=True, frozen=True)
class Message:
    """One ring. Sorts by kind, then by class, then by arrival."""

    kind_rank: int
    priority: int
    arrival: int
    shard_id: str | None = field(compare=False)  # of an online ring
    receipt: "Receipt" = field(compare=False)


class Receipt(Protocol):
    """What becomes of a message in Redis. Both calls come from the intake's thread and return at once."""

    def acknowledge(self) -> None: ...

    def give_back(self) -> None:
        """Put it into the queue again, for somebody else."""


class Gate(Protocol):
    """The consumer of bulk tokens, which can be told to listen or not. Both calls return at once."""

    def open(self) -> None: ...

    def close(self) -> None: ...


class Places(Protocol):
    """Who runs what is claimed."""

    def online_free(self) -> int: ...

    def bulk_free(self) -> int: ...

    def run_online(self, claim: OnlineClaim, claimed_at_s: float) -> None: ...

    def run_bulk(self, claim: BulkClaim, claimed_at_s: float) -> None: ...


class Intake:
    """Turns rings into claims, on a thread of its own."""

    def __init__(
        self,
        store: Store,
        worker_id: str,
        models: tuple[str, ...],
        lease_ttl_s: float,
        places: Places,
        heartbeat: Heartbeat,
        capacity: Capacity = Capacity.ON_DEMAND,
    ) -> None:
        self._capacity = capacity
        self._store = store
        self._worker_id = worker_id
        self._models = models
        self._lease_ttl_s = lease_ttl_s
        self._places = places
        self._heartbeat = heartbeat
        self._gate: Gate | None = None
        self._gate_is_open = True
        self._changed = threading.Condition()
        self._heap: list[Message] = []
        self.messages_heard = 0
        self.online_unheard = 0  # requests found by asking the database: nobody rang for them here
        self._arrivals = itertools.count()
        self._next: deque[str] = deque()  # online requests that the database has called next …
        self._next_until_s = 0.0  # … and until when that is good enough
        self._online_may_wait = False  # likewise online: taken by a ring that named another one
        self._dropped = 0  # messages that made no sense, not counted in the database yet
        self._bulk_may_wait = True  # there may be bulk work in the database that nobody rings for
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Claim nothing more. Messages not yet claimed stay unacknowledged and go back to the queue."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs that claims."""
        return self._thread.is_alive()

    def attach(self, gate: Gate) -> None:
        """The consumer has (re)started; from now on this is how it is told to listen."""
        with self._changed:
            self._gate = gate
            if not self._gate_is_open:
                gate.close()

    def online_rang(self, shard_id: str, priority: int, receipt: Receipt) -> None:
        self._put(ONLINE_RANK, priority, shard_id, receipt)

    def bulk_rang(self, priority: int, receipt: Receipt) -> None:
        self._put(BULK_RANK, priority, None, receipt)

    def message_dropped(self) -> None:
        """A message made no sense and was acknowledged unread. It is counted with the next look."""
        with self._changed:
            self.messages_heard += 1
            self._dropped += 1

    def online_place_freed(self) -> None:
        """An online request has ended; one that has rung may be waiting for its place."""
        with self._changed:
            self._changed.notify()

    def bulk_place_freed(self) -> None:
        """A shard has ended; look for another without waiting for a ring."""
        with self._changed:
            self._bulk_may_wait = True
            self._changed.notify()

    def _put(self, rank: int, priority: int, shard_id: str | None, receipt: Receipt) -> None:
        with self._changed:
            self.messages_heard += 1
            heapq.heappush(self._heap, Message(rank, priority, next(self._arrivals), shard_id, receipt))
            self._changed.notify()

    # -- the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        looked_at_s = time.monotonic()
        while True:
            with self._changed:
                left_s = looked_at_s + POLL_S - time.monotonic()
                self._changed.wait_for(self._has_something_to_do, timeout=max(0.0, left_s))
                if self._is_stopping:
                    return
            poll = time.monotonic() >= looked_at_s + POLL_S
            if poll:
                looked_at_s = time.monotonic()
            try:
                self._take_online(poll=poll)
                self._take_bulk(poll=poll)
                if poll:
                    self._count_dropped()
            except DatabaseUnavailable as error:
                log.warning("claim failed", extra={"action": "claim_failed", "reason": error.message})
                self._pause(DATABASE_RETRY_S)
            except Exception:
                log.exception("claim failed", extra={"action": "claim_failed"})
                self._pause(DATABASE_RETRY_S)

    def _has_something_to_do(self) -> bool:
        if self._is_stopping:
            return True
        kinds = {message.kind_rank for message in self._heap}
        if (ONLINE_RANK in kinds or self._online_may_wait) and self._places.online_free() > 0:
            return True
        if BULK_RANK in kinds:
            return True
        return self._bulk_may_wait and self._places.bulk_free() > 0

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping, timeout=seconds)

    def _take_online(self, *, poll: bool) -> None:
        """Claim the online requests that have rung; those that are next, if there are not places for all."""
        count = min(CLAIM_MAX, self._places.online_free())
        messages = self._pop(ONLINE_RANK, count)
        look = count > 0 and (poll or self._online_may_wait or self._has_rung(ONLINE_RANK))
        if not messages and not look:
            return
        claimed_at_s = self._heartbeat.clock_s()
        try:
            wanted = self._next_online(count, poll=poll) if look else _named(messages)
            claims = self._claim_online(wanted)
        except DatabaseUnavailable:
            self._put_back(messages)
            raise
        # A ring that found its request taken may have been meant, by whoever took it, for another one.
        self._online_may_wait = bool(wanted) if look else len(claims) < len(messages)
        if claims:
            failpoints.hit("worker.claimed")
        rang = {message.shard_id for message in messages}
        self.online_unheard += sum(claim.lease.shard_id not in rang for claim in claims)
        for claim in claims:
            self._places.run_online(claim, claimed_at_s)
        for message in messages:
            message.receipt.acknowledge()

    def _next_online(self, count: int, *, poll: bool) -> Sequence[str]:
        """At most so many online requests, the best first; what they are may be a moment old."""
        if poll or not self._next or time.monotonic() >= self._next_until_s:
            with self._store.snapshot() as tx:
                self._next = deque(tx.claims.next_online(self._models, tx.now(), CLAIM_MAX, self._capacity))
            self._next_until_s = time.monotonic() + NEXT_KEPT_S
        return [self._next.popleft() for _ in range(min(count, len(self._next)))]

    def _claim_online(self, shard_ids: Sequence[str]) -> Sequence[OnlineClaim]:
        """Nobody waits for the disk: if the power goes with this worker and its database, the requests wait
        again, and there is nothing that knows their terms (`docs/leases.md`).
        """
        if not shard_ids:
            return []
        return self._store.run(
            lambda tx: tx.claims.online(
                shard_ids,
                self._worker_id,
                self._models,
                tx.now(),
                self._lease_ttl_s,
                capacity=self._capacity,
            ),
            durable=False,
        )

    def _take_bulk(self, *, poll: bool) -> None:
        """Claim one bulk shard per free place, as long as there are any. Tokens that no place is left for go
        back once we have stopped listening; all others have been obeyed, even if there was nothing to claim.
        """
        tokens = self._pop(BULK_RANK, len(self._heap))
        claims = 0
        try:
            while self._places.bulk_free() > 0 and (tokens or poll or self._bulk_may_wait):
                if not self._claim_bulk():
                    self._bulk_may_wait = False
                    break
                claims += 1
        except Exception:  # whatever it was: a token names nothing that could be the reason
            self._put_back(tokens)
            raise
        has_room = self._places.bulk_free() > 0
        self._set_gate(has_room)
        for number, token in enumerate(tokens):
            if has_room or number < claims:
                token.receipt.acknowledge()
            else:
                token.receipt.give_back()

    def _claim_bulk(self) -> bool:
        claimed_at_s = self._heartbeat.clock_s()
        claim = self._store.run(
            lambda tx: tx.claims.bulk(
                self._worker_id, self._models, tx.now(), self._lease_ttl_s, capacity=self._capacity
            )
        )
        if claim is None:
            return False
        failpoints.hit("worker.claimed")
        self._bulk_may_wait = True
        self._places.run_bulk(claim, claimed_at_s)
        return True

    def _count_dropped(self) -> None:
        with self._changed:
            dropped = self._dropped
        if not dropped:
            return
        self._store.run(lambda tx: tx.counters.add(DROPPED_COUNTER, dropped))
        with self._changed:
            self._dropped -= dropped

    def _pop(self, kind_rank: int, count: int) -> list[Message]:
        """Take the best messages of one kind from the heap."""
        with self._changed:
            wanted = sorted(message for message in self._heap if message.kind_rank == kind_rank)[:count]
            taken = {message.arrival for message in wanted}
            self._heap = [message for message in self._heap if message.arrival not in taken]
            heapq.heapify(self._heap)
        return wanted

    def _has_rung(self, kind_rank: int) -> bool:
        with self._changed:
            return any(message.kind_rank == kind_rank for message in self._heap)

    def _put_back(self, messages: list[Message]) -> None:
        with self._changed:
            for message in messages:
                heapq.heappush(self._heap, message)

    def _set_gate(self, is_open: bool) -> None:
        with self._changed:
            if self._gate is None or is_open == self._gate_is_open:
                return
            self._gate_is_open = is_open
            self._gate.open() if is_open else self._gate.close()


def _named(messages: Sequence[Message]) -> Sequence[str]:
    """The requests that have rung, each once."""
    return list(dict.fromkeys(message.shard_id for message in messages if message.shard_id is not None))
