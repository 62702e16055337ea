"""Which rows of a shard may be given to the engine now, where a row may be what killed the workers before.

A `Watch` is asked by the runner of one shard, on its thread. `Isolation` is the worker's: while it is held,
one suspected row has the worker to itself.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from nightshift.endpoints.answers import error_body
from nightshift.errors import DatabaseUnavailable
from nightshift.jobs import Answer, BulkClaim, Usage
from nightshift.jobs.dead_letters import ERROR_CODE
from nightshift.store import Store
from workers.shard.segments import LeaseLost

log = logging.getLogger(__name__)


class Watch(Protocol):
    """What a shard's runner asks before, and tells after, each row."""

    def refuses(self, row: int, custom_id: str) -> Answer | None:
        """The error answer of a row that is run no more; None: it may be run."""

    def admit(self, row: int) -> bool:
        """The row is about to be given to the engine. False: not now, some row has the worker to itself, or
        this one waits until it can have that.

        Raises LeaseLost and DatabaseUnavailable; then it may not be either.
        """

    def withdraw(self, row: int) -> None:
        """The engine did not take a row that was admitted."""

    def finished(self, row: int) -> None:
        """A row has left the engine, alive. An unknown one is ignored."""

    def on_admission_blocked(self) -> None:
        """No row can be begun for now. Whoever has none in the engine does not keep others out meanwhile."""

    def close(self) -> None:
        """The lease has ended, however it did: what this shard held of the worker is given up."""


class Isolation:
    """Who has rows or requests in this worker's engines, and the right to be alone there. For any thread."""

    def __init__(self, on_free: Callable[[], None] = lambda: None) -> None:
        """`on_free` is called, from any thread, whenever nobody has that right any more."""
        self._on_free = on_free
        self._changed = threading.Condition()
        self._holder: object | None = None
        self._inside: Counter[object] = Counter()

    @property
    def is_held(self) -> bool:
        return self._holder is not None

    def enter(self, holder: object) -> bool:
        """One more of this holder's goes in. False: somebody else is alone there, or waits to be."""
        with self._changed:
            if self._holder not in (None, holder):
                return False
            self._inside[holder] += 1
            return True

    def enter_alone(self, holder: object) -> bool:
        """One goes in, and nothing else is there. False: not yet; no other holder's goes in meanwhile, unless
        somebody else has the right to be alone.
        """
        with self._changed:
            return self._enter_alone(holder)

    def wait_to_enter_alone(self, holder: object, gives_up: Callable[[], bool]) -> bool:
        """`enter_alone`, when that is possible. False: `gives_up` came true first (then call `notice`)."""
        with self._changed:
            self._changed.wait_for(lambda: gives_up() or self._enter_alone(holder))
            return self._inside[holder] > 0

    def notice(self) -> None:
        """Whoever waits looks again whether it has to."""
        with self._changed:
            self._changed.notify_all()

    def leave(self, holder: object, count: int = 1) -> None:
        with self._changed:
            self._inside[holder] -= count
            if self._inside[holder] <= 0:
                del self._inside[holder]
            self._changed.notify_all()

    def give_up(self, holder: object) -> None:
        """Not to be alone any more. Nothing happens to somebody else's right."""
        with self._changed:
            was_held = self._holder is holder
            if was_held:
                self._holder = None
            self._changed.notify_all()
        if was_held:
            self._on_free()

    def _enter_alone(self, holder: object) -> bool:
        if self._holder not in (None, holder):
            return False
        self._holder = holder
        if self._inside:
            return False
        self._inside[holder] = 1
        return True


class Unwatched:
    """A shard whose rows are above suspicion. It stands back while a row of another has the worker."""

    def __init__(self, isolation: Isolation) -> None:
        self._isolation = isolation
        self._inside: set[int] = set()

    def refuses(self, row: int, custom_id: str) -> Answer | None:
        return None

    def admit(self, row: int) -> bool:
        if not self._isolation.enter(self):
            return False
        self._inside.add(row)
        return True

    def withdraw(self, row: int) -> None:
        self._leave(row)

    def finished(self, row: int) -> None:
        self._leave(row)

    def on_admission_blocked(self) -> None:
        """It keeps nobody out."""

    def close(self) -> None:
        for row in list(self._inside):
            self._leave(row)

    def _leave(self, row: int) -> bool:
        if row not in self._inside:
            return False
        self._inside.discard(row)
        self._isolation.leave(self)
        return True


class Watched(Unwatched):
    """A shard that lost workers: what is under way is written down first, and suspects run one by one.

    Rows are given out in order, so those that were under way when workers were lost are among the first of
    this lease. Once all of these have left the engine alive, nothing is written down any more.
    """

    def __init__(self, claim: BulkClaim, store: Store, isolation: Isolation, rows_at_risk: int) -> None:
        """`rows_at_risk`: how many rows a worker may have begun that are in no listed segment."""
        super().__init__(isolation)
        self._left = rows_at_risk  # of the first ones, those not begun
        self._first: set[int] = set()  # those begun and not finished
        self._furthest = -1  # row begun
        self._is_acquitted = False
        self._lease = claim.lease
        self._store = store
        self._suspects = set(claim.suspicion.suspects)
        self._dead = claim.suspicion.dead

    def refuses(self, row: int, custom_id: str) -> Answer | None:
        if row not in self._dead:
            return None
        try:
            with self._store.transaction() as tx:
                tx.dead_letters.set_custom_id(self._lease.shard_id, row, custom_id)
        except Exception:  # a name is for people to read: whatever is wrong with it stops no shard
            log.info("dead row not named", exc_info=True, extra={"action": "dead_row_not_named", "row": row})
        return crashes_workers()

    def admit(self, row: int) -> bool:
        if row in self._suspects:
            entered = self._isolation.enter_alone(self)
        else:
            if not self._inside:
                self._isolation.give_up(self)  # the suspects before it have finished
            is_alone = any(other in self._suspects for other in self._inside)
            entered = not is_alone and self._isolation.enter(self)
        if not entered:
            return False
        self._inside.add(row)
        try:
            self._journal()
        except BaseException:
            self._leave(row)
            raise
        self._furthest = max(self._furthest, row)
        if self._left:
            self._left -= 1
            self._first.add(row)
        return True

    def withdraw(self, row: int) -> None:
        super().withdraw(row)
        if row in self._first:
            self._first.discard(row)
            self._left += 1

    def finished(self, row: int) -> None:
        if not self._leave(row):
            return
        self._first.discard(row)
        try:
            if self._is_above_suspicion:
                self._acquit()
                return
            if row in self._suspects:
                with self._store.transaction() as tx:
                    tx.dead_letters.clear_suspect(self._lease, row)  # a lost lease shows at the next row
                self._suspects.discard(row)
                if not self._suspects:
                    self._isolation.give_up(self)
            elif not self._inside:
                self._journal()
        except DatabaseUnavailable as error:
            log.info("row not cleared", extra={"action": "row_not_cleared", "reason": error.message})

    def on_admission_blocked(self) -> None:
        if not self._inside:
            self._isolation.give_up(self)

    def close(self) -> None:
        super().close()
        self._isolation.give_up(self)

    @property
    def _is_above_suspicion(self) -> bool:
        """A suspect further on has not run; one further back has, or its result was there already."""
        if self._is_acquitted or self._dead or self._left or self._first:
            return False
        return all(suspect <= self._furthest for suspect in self._suspects)

    def _acquit(self) -> None:
        with self._store.transaction() as tx:
            self._is_acquitted = tx.dead_letters.clear_suspects(self._lease)
        if self._is_acquitted:
            self._suspects.clear()
            self._isolation.give_up(self)

    def _journal(self) -> None:
        if self._is_acquitted:
            return
        with self._store.transaction() as tx:
            if not tx.dead_letters.journal(self._lease, sorted(self._inside)):
                raise LeaseLost


def crashes_workers() -> Answer:
    """What a dead row, or a dead request, is answered."""
    message = "This request is not run any more: the workers that ran it died."
    return Answer(500, error_body(message, "server_error", code=ERROR_CODE), Usage())


def watch(claim: BulkClaim, store: Store, isolation: Isolation, rows_at_risk: int) -> Watch:
    """How the rows of this lease are looked after."""
    if claim.suspicion.is_watched:
        return Watched(claim, store, isolation, rows_at_risk)
    return Unwatched(isolation)
