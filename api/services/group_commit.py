"""Group commit: online requests that arrive while a transaction is under way share the next one.

A statement, a wait for the disk, and the sending of rings take little longer for many requests than for one.
A request that arrives alone is committed at once. One thread at a time commits what waits, its own request
first, leaves the others to the first of them, and sends the rings.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.trace import Span

from nightshift.errors import DatabaseUnavailable, InvalidRequest, QuotaExceeded, TooManyRequests
from nightshift.jobs import JsonObject, NewJob
from nightshift.jobs.shard import Ring
from nightshift.lifecycle import transitions
from nightshift.lifecycle.submission import Submitter
from nightshift.lifecycle.transitions import Submitted
from nightshift.process import failpoints
from nightshift.process.tracing.spans import ACCEPT_SPAN, NO_SPAN, child, end, lasting
from nightshift.store import Store, Transaction

log = logging.getLogger(__name__)

GROUP_MAX: Final = 32  # requests in a transaction
BYTES_MAX: Final = 64 * 1024  # of a request's body; larger ones do not keep others waiting


@dataclass(frozen=True)
class Accepted:
    submitted: Submitted
    position: int  # in the queue


@dataclass(eq=False)
class _Entry:
    """A request and its waiting thread."""

    new: NewJob
    body: JsonObject
    outcome: Accepted | Exception | None = None
    span: Span = NO_SPAN  # from its submit to its commit
    is_alone: bool = False  # its group failed: it has a transaction of its own
    wakes: threading.Event = field(default_factory=threading.Event)  # with an outcome, or to lead


class GroupCommit:
    """Accepts online requests and sends their rings with `ring`. Thread-safe."""

    def __init__(self, store: Store, submitter: Submitter, ring: Callable[[Sequence[Ring]], object]) -> None:
        self._store = store
        self._submitter = submitter
        self._send_rings = ring
        self._lock = threading.Lock()
        self._waiting: list[_Entry] = []
        self._is_led = False

    def submit(self, new: NewJob, body: JsonObject) -> Accepted:
        """Accepts a checked request and rings for it. Once this returns, the request runs even if Redis
        fails.

        Raises UnknownModel, InvalidRequest, TooManyRequests, DatabaseUnavailable.
        """
        entry = _Entry(new, body, is_alone=new.stored_bytes > BYTES_MAX, span=child(ACCEPT_SPAN))
        if not entry.is_alone:
            self._wait_or_lead(entry)
        if entry.is_alone:
            with lasting(entry.span):
                [entry.outcome] = self._commit([entry])
            self._ring([entry])
        if isinstance(entry.outcome, Exception):
            raise entry.outcome
        assert entry.outcome is not None, "every entry of a group gets its outcome"
        return entry.outcome

    def _wait_or_lead(self, entry: _Entry) -> None:
        with self._lock:
            self._waiting.append(entry)
            if not self._is_led:
                self._is_led = True
                entry.wakes.set()
        entry.wakes.wait()
        if entry.outcome is None:
            self._lead()

    def _lead(self) -> None:
        """Commits those that wait, and lets the first that has come meanwhile lead."""
        with self._lock:
            group, self._waiting = self._waiting[:GROUP_MAX], self._waiting[GROUP_MAX:]
        try:
            for entry, outcome in zip(group, self._commit(group), strict=True):
                entry.outcome = outcome
        except DatabaseUnavailable as error:  # perhaps committed: not to be tried again
            for entry in group:
                entry.outcome = error
        except QuotaExceeded as error:  # of a tenant at the end of the transaction
            _leave_alone(group, error)
        except Exception as error:
            log.exception("requests accepted together failed", extra={"action": "group_failed"})
            _leave_alone(group, error)
        finally:
            for entry in group:
                if not entry.is_alone:
                    end(entry.span, error=_error_type(entry.outcome))
            with self._lock:
                self._is_led = bool(self._waiting)
                awake = [*group, *self._waiting[:1]]
            for entry in awake:
                entry.wakes.set()
        self._ring(group)

    def _ring(self, group: Sequence[_Entry]) -> None:
        accepted = [entry.outcome for entry in group if isinstance(entry.outcome, Accepted)]
        self._send_rings([ring for outcome in accepted for ring in outcome.submitted.rings])

    def _commit(self, group: Sequence[_Entry]) -> Sequence[Accepted | Exception]:
        """The outcome of each entry, in one transaction. Raises DatabaseUnavailable, QuotaExceeded."""
        outcomes = self._store.run(lambda tx: self._accept(tx, group))
        for outcome in outcomes:
            if isinstance(outcome, Accepted):
                failpoints.hit("api.committed")
        return outcomes

    def _accept(self, tx: Transaction, group: Sequence[_Entry]) -> Sequence[Accepted | Exception]:
        now = tx.now()
        refused: dict[_Entry, Exception] = {}
        admitted: list[tuple[NewJob, JsonObject]] = []
        for entry in group:
            try:
                admitted.append((self._submitter.admit_online(tx, entry.new, entry.body, now), entry.body))
            except (InvalidRequest, TooManyRequests) as error:
                refused[entry] = error
        submitted = transitions.insert_online(tx, admitted, now)
        positions = tx.positions.places([new.job for new in submitted])
        for _ in submitted:
            failpoints.hit("api.before_commit")
        accepted = iter(Accepted(new, positions[new.job.id]) for new in submitted)
        return [refused[entry] if entry in refused else next(accepted) for entry in group]


def _error_type(outcome: Accepted | Exception | None) -> str | None:
    """The type of an error of ours, if the outcome is one: a refused request is none."""
    is_error = isinstance(outcome, Exception) and not isinstance(outcome, InvalidRequest | TooManyRequests)
    return type(outcome).__name__ if is_error else None


def _leave_alone(group: Sequence[_Entry], error: Exception) -> None:
    """Tries each request in a transaction of its own, so that only one that cannot be accepted is refused."""
    for entry in group:
        entry.is_alone, entry.outcome = len(group) > 1, error
