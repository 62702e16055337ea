"""Decides which rows of a shard the engine may have now, where a row may have crashed workers before.

A `Watch` is asked by the runner of one shard, on its thread. `Isolation` is the worker's: while it is held,
one suspected row has the worker to itself.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

from nightshift.endpoints.answers import error_body
from nightshift.endpoints.results import Result
from nightshift.errors import DatabaseUnavailable
from nightshift.jobs import BulkClaim, Usage
from nightshift.jobs.dead_letters import ERROR_CODE
from nightshift.store import Store
from nightshift.tenants.turns import TurnThreads
from workers.leases.heartbeat import LeaseLost

log = logging.getLogger(__name__)


class Isolation:
    """Counts what is in this worker's engines, by holder, and grants one holder to be alone. Thread-safe."""

    def __init__(self, on_free: Callable[[], None] = lambda: None) -> None:
        """`on_free` is called, from any thread, when the isolation is released."""
        self._on_free = on_free
        self._changed = threading.Condition()
        self._holder: object | None = None
        self._inside: Counter[object] = Counter()

    @property
    def is_held(self) -> bool:
        return self._holder is not None

    def enter(self, holder: object) -> bool:
        """Lets one row or request in. False: another holder is alone, or waits to be."""
        with self._changed:
            if self._holder not in (None, holder):
                return False
            self._inside[holder] += 1
            return True

    def enter_alone(self, holder: object) -> bool:
        """Lets one in where nothing else is inside. False: not yet; unless another holds the isolation, it is
        this holder's now, and nothing else enters.
        """
        with self._changed:
            if self._holder not in (None, holder):
                return False
            self._holder = holder
            if self._inside:
                return False
            self._inside[holder] = 1
            return True

    def wait_to_enter_alone(self, holder: object, gives_up: Callable[[], bool]) -> bool:
        """`enter_alone`, as soon as it succeeds. False: `gives_up` came true first (then call `recheck`)."""
        with self._changed:
            self._changed.wait_for(lambda: gives_up() or self.enter_alone(holder))
            return self._inside[holder] > 0

    def recheck(self) -> None:
        """Has waiting threads ask their `gives_up` again."""
        with self._changed:
            self._changed.notify_all()

    def leave(self, holder: object) -> None:
        with self._changed:
            self._inside[holder] -= 1
            if self._inside[holder] <= 0:
                del self._inside[holder]
            self._changed.notify_all()

    def release(self, holder: object) -> None:
        """Lets others in again. Another holder's isolation stays."""
        with self._changed:
            was_held = self._holder is holder
            if was_held:
                self._holder = None
            self._changed.notify_all()
        if was_held:
            self._on_free()


Request = TypeVar("Request", bound=Hashable)


class SuspectQueue(Generic[Request]):
    """Requests that wait for the worker to be empty, with a thread that begins them. Thread-safe."""

    def __init__(
        self,
        isolation: Isolation,
        begin: Callable[[Request], bool],
        is_wanted: Callable[[Request], bool],
    ) -> None:
        """`begin` gets a request that is alone inside, and from then on must let it leave; False: it was not
        begun and is not wanted any more. `is_wanted` is asked while one waits: call `Isolation.recheck` or
        release the isolation when its answer has changed.
        """
        self._isolation = isolation
        self._begin = begin
        self._is_wanted = is_wanted
        self._thread = TurnThreads("suspects", 1)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive

    def stop(self) -> None:
        """Begins no more; those queued must not be wanted any more. Returns at once; a begun one goes on."""
        self._thread.stop()
        self._isolation.recheck()

    def put(self, request: Request, tenant_id: str) -> None:
        self._thread.run(tenant_id, partial(self._run, request))

    def _run(self, request: Request) -> None:
        is_alone = self._isolation.wait_to_enter_alone(request, partial(self._is_unwanted, request))
        if is_alone and self._begin(request):
            return
        if is_alone:
            self._isolation.leave(request)
        self._isolation.release(request)

    def _is_unwanted(self, request: Request) -> bool:
        return not self._is_wanted(request)


class Watch:
    """Asked before, and told after, each row of a shard.

    This one is of a shard that lost no worker since it was last cleared: its rows wait only for another's
    isolation.
    """

    def __init__(self, isolation: Isolation) -> None:
        self._isolation = isolation
        self._in_flight: set[int] = set()

    def is_dead(self, row: int) -> bool:
        """Whether a row is not to be run any more: workers that ran it died."""
        return False

    def name_dead(self, row: int, custom_id: str) -> None:
        """Records the id of a dead row."""

    def admit(self, row: int) -> bool:
        """The row is about to be given to the engine. False: not now, since a row runs alone in this worker,
        or this one is to and the worker is not empty yet.

        Raises LeaseLost and DatabaseUnavailable; the row must not run then either.
        """
        if not self._isolation.enter(self):
            return False
        self._in_flight.add(row)
        return True

    def withdraw(self, row: int) -> None:
        """The engine did not take an admitted row."""
        self._leave(row)

    def finished(self, row: int) -> None:
        """A row has left the engine, and the worker lives. An unknown row is ignored."""
        self._leave(row)

    def on_admission_blocked(self) -> None:
        """The shard can begin no row for now: without one in the engine it does not keep others out."""

    def close(self) -> None:
        """The lease has ended: releases what this shard held of the worker."""
        for row in list(self._in_flight):
            self._leave(row)

    def _leave(self, row: int) -> bool:
        if row not in self._in_flight:
            return False
        self._in_flight.discard(row)
        self._isolation.leave(self)
        return True


class CrashWatch(Watch):
    """A shard that lost workers: rows are journalled before they begin, and suspects run one by one.

    Rows begin in order, so those in flight at a loss are among the first of this lease. Once these have all
    left the engine, the shard is cleared and nothing is journalled any more.
    """

    def __init__(self, claim: BulkClaim, store: Store, isolation: Isolation, rows_at_risk: int) -> None:
        """`rows_at_risk`: how many rows a worker may have begun that are in no listed segment."""
        super().__init__(isolation)
        self._rows_at_risk = rows_at_risk
        self._first: set[int] = set()  # rows that this lease has begun, as many
        self._first_in_flight: set[int] = set()
        self._furthest = -1  # row begun
        self._is_cleared = False
        self._lease = claim.lease
        self._store = store
        self._suspects = set(claim.crash_history.suspects)
        self._dead = claim.crash_history.dead

    def is_dead(self, row: int) -> bool:
        return row in self._dead

    def name_dead(self, row: int, custom_id: str) -> None:
        try:
            with self._store.transaction() as tx:
                tx.dead_letters.set_custom_id(self._lease.shard_id, row, custom_id)
        except Exception:  # the name is for the operator: a fault in storing it must not stop the shard
            log.info("dead row not named", exc_info=True, extra={"action": "dead_row_not_named", "row": row})

    def admit(self, row: int) -> bool:
        if row in self._suspects:
            entered = self._isolation.enter_alone(self)
        else:
            if not self._in_flight:
                self._isolation.release(self)  # the suspects before it have finished
            entered = self._suspects.isdisjoint(self._in_flight) and self._isolation.enter(self)
        if not entered:
            return False
        self._in_flight.add(row)
        try:
            self._journal()
        except BaseException:
            self._leave(row)
            raise
        self._furthest = max(self._furthest, row)
        if row in self._first or len(self._first) < self._rows_at_risk:  # it may begin again
            self._first.add(row)
            self._first_in_flight.add(row)
        return True

    def withdraw(self, row: int) -> None:
        super().withdraw(row)
        if row in self._first_in_flight:
            self._first_in_flight.discard(row)
            self._first.discard(row)

    def finished(self, row: int) -> None:
        if not self._leave(row):
            return
        self._first_in_flight.discard(row)
        try:
            if self._can_be_cleared:
                self._clear_shard()
            elif row in self._suspects:
                self._clear_suspect(row)
            elif not self._in_flight:
                self._journal()
        except DatabaseUnavailable as error:
            log.info("row not cleared", extra={"action": "row_not_cleared", "reason": error.message})

    def on_admission_blocked(self) -> None:
        if not self._in_flight:
            self._isolation.release(self)

    def close(self) -> None:
        super().close()
        self._isolation.release(self)

    @property
    def _can_be_cleared(self) -> bool:
        """Whether every row that can have been in flight at a loss has finished. A suspect up to the furthest
        row has, in this lease or before; one further on has not run.
        """
        if self._is_cleared or self._dead or self._first_in_flight or len(self._first) < self._rows_at_risk:
            return False
        return all(suspect <= self._furthest for suspect in self._suspects)

    def _clear_shard(self) -> None:
        with self._store.transaction() as tx:
            self._is_cleared = tx.dead_letters.clear_shard(self._lease)
        if self._is_cleared:
            self._suspects.clear()
            self._isolation.release(self)

    def _clear_suspect(self, row: int) -> None:
        with self._store.transaction() as tx:
            tx.dead_letters.clear_suspect(self._lease, row)  # a lost lease shows at the next row
        self._suspects.discard(row)
        if not self._suspects:
            self._isolation.release(self)

    def _journal(self) -> None:
        if self._is_cleared:
            return
        with self._store.transaction() as tx:
            if not tx.dead_letters.journal(self._lease, sorted(self._in_flight)):
                raise LeaseLost


def dead_row_result() -> Result:
    message = "This request is not run any more: the workers that ran it died."
    return Result(500, Usage(), body=error_body(message, "server_error", code=ERROR_CODE))


def watch(claim: BulkClaim, store: Store, isolation: Isolation, rows_at_risk: int) -> Watch:
    """The watch of the rows of this lease."""
    if claim.crash_history.is_watched:
        return CrashWatch(claim, store, isolation, rows_at_risk)
    return Watch(isolation)
