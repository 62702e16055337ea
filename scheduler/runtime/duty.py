"""A duty: a name, an interval, and `run_once(now)`, where `now` is the database's time as the pass begins.

A pass may be repeated, interrupted anywhere, or run by two schedulers at once: the store's WHERE clauses
guard what it changes.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

from opentelemetry.trace import Span

from nightshift.jobs.shard import Ring
from nightshift.process.tracing.attributes import OUTCOME
from nightshift.process.tracing.spans import end, under
from nightshift.store import PendingWork

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class PassResult:
    """Every integer field is a count for the log line."""

    states: ClassVar[frozenset[str]] = frozenset()
    """Counts that stay from pass to pass, or lead to others: they make no log line by themselves."""

    has_more: bool = False  # the next pass follows at once

    @property
    def counts(self) -> dict[str, int]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if type(value) is int}

    @property
    def has_news(self) -> bool:
        """Whether something was done that a log line says."""
        return any(count for name, count in self.counts.items() if name not in self.states)


class Duty(Protocol):
    @property
    def name(self) -> str:
        """The name in logs and metrics."""

    @property
    def interval_s(self) -> float:
        """The least seconds between passes."""

    def run_once(self, now: datetime) -> PassResult:
        """May raise anything: the loop logs it and tries again."""


@runtime_checkable
class WaitsForWork(Protocol):
    """A duty that passes when it is due, and once in `LoopConfig.longest_s`. Other duties pass at their
    interval.
    """

    @property
    def name(self) -> str:
        """The duty's."""

    def due_at(self, work: PendingWork) -> datetime | None:
        """The time from which there is something to do, by the database's clock; None: nothing. Passes
        follow at its interval for as long as this is past. For any thread; a pass may be under way.
        """


@runtime_checkable
class RunsInBackground(Protocol):
    """A duty whose passes start work in threads that outlive them."""

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Waits until no work is under way. False: some still is."""


@runtime_checkable
class FillsThreads(Protocol):
    """A duty that works on jobs in a limited number of threads."""

    @property
    def blocked_s(self) -> float:
        """Seconds for which every thread has been busy without one becoming free; 0: one is free."""


class Every:
    """Limits something to one pass per interval."""

    def __init__(self, interval_s: float) -> None:
        self._interval = timedelta(seconds=interval_s)
        self._done_at: datetime | None = None

    @property
    def due_at(self) -> datetime | None:
        """The time when the duty is due; None: at once."""
        return None if self._done_at is None else self._done_at + self._interval

    def is_due(self, now: datetime) -> bool:
        """Whether the duty is due; it also is after the database's clock was set back."""
        if self._done_at is not None and self._done_at <= now < self._done_at + self._interval:
            return False
        self._done_at = now
        return True


class Interrupted(Exception):
    """The scheduler stops or leads no longer; the next leader begins this work again."""


def earliest(*times: datetime | None) -> datetime | None:
    """Returns the earliest of the times that are known."""
    return min((at for at in times if at is not None), default=None)


MayContinue = Callable[[], bool]  # asked by long passes between two steps


def check(may_continue: MayContinue) -> None:
    """Raises Interrupted."""
    if not may_continue():
        raise Interrupted


def interruptible(items: Iterable[T], may_continue: MayContinue) -> Iterator[T]:
    """Raises Interrupted."""
    for item in items:
        check(may_continue)
        yield item


def take_turns(
    waiting: deque[Iterator[T]], may_continue: MayContinue, pause: Callable[[float], None]
) -> Iterator[T]:
    """A step of each in turn, until all have ended; `pause` gets how long the last step took, in seconds, and
    lets others have as long. Raises Interrupted.
    """
    while waiting:
        check(may_continue)
        began_s = time.monotonic()
        steps = waiting.popleft()
        step = next(steps, None)
        if step is None:
            continue
        waiting.append(steps)
        yield step
        pause(time.monotonic() - began_s)


class RingSender(Protocol):
    """A sender of rings. Both methods raise QueueUnavailable."""

    def ring(self, rings: Sequence[Ring]) -> None: ...

    def length(self, queue: str) -> int: ...


@contextmanager
def working_under(span: Span) -> Iterator[None]:
    """Makes it the current one. It ends with an error if the block raises, except to stop this scheduler."""
    with under(span):
        try:
            yield
        except Interrupted:
            end(span, {OUTCOME: "interrupted"})
            raise
        except BaseException as error:
            end(span, error=type(error).__name__)
            raise
