"""What every duty of the scheduler looks like: a name, an interval, and one pass over what there is to do.

    class Recovery:                          the class holds what it works with
        name = "recovery"
        def run_once(self, now) -> Recovered one pass; tests call exactly this

`now` is the database's time at the beginning of the pass. A pass may be repeated, interrupted anywhere, or
run by two schedulers at once with the same outcome: the store's WHERE clauses guard what it changes.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one pass did, in counts: every integer field of a subclass goes into the log line."""

    has_more: bool = False  # the pass stopped at a limit: the next one should follow at once

    @property
    def counts(self) -> dict[str, int]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if type(value) is int}


class Duty(Protocol):
    """Something the leading scheduler does over and over."""

    @property
    def name(self) -> str:
        """One word, for logs and metrics."""

    @property
    def interval_s(self) -> float:
        """The pause after a pass that found nothing more to do, while the service has work."""

    def run_once(self, now: datetime) -> Result:
        """One pass. May raise anything: the loop logs it and tries again later."""


@runtime_checkable
class RunsInBackground(Protocol):
    """A duty whose passes only start work, in threads that go on after the pass."""

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait for the work under way. False: some still is."""


class Every:
    """Something a duty does in some of its passes only."""

    def __init__(self, interval_s: float) -> None:
        self._interval = timedelta(seconds=interval_s)
        self._done_at: datetime | None = None

    def is_due(self, now: datetime) -> bool:
        """Whether this pass is one of them. The first is, and one before the last: the database's clock was
        set back by an unknown time.
        """
        if self._done_at is not None and self._done_at <= now < self._done_at + self._interval:
            return False
        self._done_at = now
        return True


class Interrupted(Exception):
    """The scheduler is stopping, or leads no longer: the next leader begins this piece of work again."""


MayContinue = Callable[[], bool]  # asked by long passes between two steps


def check(may_continue: MayContinue) -> None:
    """Raises Interrupted when a long pass should end here."""
    if not may_continue():
        raise Interrupted


def interruptible(items: Iterable[T], may_continue: MayContinue) -> Iterator[T]:
    """The items, for as long as the work may go on. Raises Interrupted."""
    for item in items:
        check(may_continue)
        yield item
