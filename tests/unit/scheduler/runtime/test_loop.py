"""The loop survives whatever a duty raises, and ends when it is told to."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

import pytest

from nightshift.errors import DatabaseUnavailable
from nightshift.store import PendingWork, Store
from scheduler.duties.assembly import Assembled
from scheduler.duties.planning import Planned
from scheduler.duties.running_output import Cut
from scheduler.runtime import loop
from scheduler.runtime.duty import Every, Interrupted, PassResult
from scheduler.runtime.loop import LoopConfig, Pause, Ticker
from scheduler.runtime.work_watch import WorkWatch
from tests.helpers.fakes import STARTS_AT

CONFIG = LoopConfig(longest_s=60.0, standby_s=0.5, retry_first_s=1.0, retry_max_s=8.0, stop_s=30.0)


@dataclass(frozen=True, kw_only=True)
class Swept(PassResult):
    swept: int = 0


@dataclass
class FakeStore:
    """Knows what time it is, or that the database is away."""

    is_away: bool = False

    def now(self) -> datetime:
        if self.is_away:
            raise DatabaseUnavailable
        return STARTS_AT


class FakeChanges:
    def seen(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class FakeDuty:
    """Does what it is told, and records when."""

    does: Callable[[], PassResult] = Swept
    name: str = "sweeping"
    interval_s: float = 3.0
    passes: list[datetime] = field(default_factory=list)

    def run_once(self, now: datetime) -> PassResult:
        self.passes.append(now)
        return self.does()


class WaitingDuty(FakeDuty):
    """Passes when there is something to do."""

    def due_at(self, work: PendingWork) -> datetime | None:
        return None


def ticker(duty: FakeDuty, store: FakeStore | None = None, *, leads: bool = True) -> Ticker:
    return Ticker(duty, cast(Store, store or FakeStore()), lambda: leads, CONFIG)


def watch(*duties: FakeDuty) -> WorkWatch:
    """The watch of a process that does not lead: it needs no database, and calls no duty due."""
    return WorkWatch(lambda: PendingWork(at=STARTS_AT), FakeChanges(), duties, lambda: False)


def raises(error: Exception) -> Callable[[], PassResult]:
    def does() -> PassResult:
        raise error

    return does


def test_a_pass_is_given_the_databases_time_and_followed_by_the_dutys_pause() -> None:
    duty = FakeDuty()
    assert ticker(duty).tick() == Pause(duty.interval_s, duty.interval_s)
    assert duty.passes == [STARTS_AT]


def test_a_duty_that_is_not_due_passes_after_the_longest_pause_all_the_same() -> None:
    duty = WaitingDuty()
    assert ticker(duty).tick() == Pause(duty.interval_s, CONFIG.longest_s)


def test_a_pass_that_stopped_at_a_limit_is_followed_by_another_at_once() -> None:
    assert ticker(FakeDuty(lambda: Swept(swept=500, has_more=True))).tick() == Pause(0)


def test_a_scheduler_that_does_not_lead_runs_no_duty() -> None:
    duty = FakeDuty()
    assert ticker(duty, leads=False).tick() == Pause(0.0, CONFIG.longest_s)
    assert duty.passes == []


def test_a_pass_that_fails_is_tried_again_after_growing_pauses() -> None:
    ticking = ticker(FakeDuty(raises(RuntimeError("of all things"))))
    assert [ticking.tick() for _ in range(6)] == [Pause(s) for s in (1, 2, 4, 8, 8, 8)]


def test_after_a_long_outage_of_the_database_the_next_try_is_soon() -> None:
    """All duties failed alike, and catch up as soon as it is back."""
    store = FakeStore(is_away=True)
    ticking = ticker(FakeDuty(), store)
    assert [ticking.tick() for _ in range(6)] == [Pause(s) for s in (1, 2, 4, 5, 5, 5)]
    store.is_away = False
    assert ticking.tick().least_s == 3.0
    store.is_away = True
    assert ticking.tick() == Pause(CONFIG.retry_first_s), "a good pass forgets the failures before it"


def test_an_interrupted_pass_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    assert ticker(FakeDuty(raises(Interrupted()))).tick() == Pause(CONFIG.standby_s)
    assert caplog.records == []


def test_a_stop_ends_the_pause_of_every_duty() -> None:
    ticked = threading.Barrier(3)
    duties = [FakeDuty(lambda: met(ticked), name=name, interval_s=3600) for name in ("one", "other")]
    stop = threading.Event()
    running = threading.Thread(
        target=loop.run, args=([ticker(duty) for duty in duties], watch(*duties), stop, CONFIG)
    )
    running.start()
    ticked.wait(30)  # both have ticked, and pause for an hour
    stop.set()
    running.join(30)
    assert not running.is_alive()
    assert [len(duty.passes) for duty in duties] == [1, 1]


def met(barrier: threading.Barrier) -> PassResult:
    barrier.wait(30)
    return Swept()


def test_a_pass_that_hangs_is_abandoned(caplog: pytest.LogCaptureFixture) -> None:
    hanging, released = threading.Event(), threading.Event()

    def hangs() -> PassResult:
        hanging.set()
        released.wait(30)
        return Swept()

    stop = threading.Event()
    config = LoopConfig(stop_s=0.01)
    duty = FakeDuty(hangs)
    running = threading.Thread(target=loop.run, args=([ticker(duty)], watch(duty), stop, config))
    running.start()
    hanging.wait(30)
    stop.set()
    running.join(30)
    released.set()
    assert not running.is_alive()
    assert "sweeping abandoned" in caplog.text


def test_every_is_due_the_first_time_and_after_each_interval_also_of_a_clock_that_was_set_back() -> None:
    rarely = Every(60)
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert [rarely.is_due(at.replace(second=second)) for second in (0, 30, 59)] == [True, False, False]
    assert rarely.is_due(at.replace(minute=1))
    assert rarely.is_due(at.replace(hour=10))
    assert [rarely.is_due(at.replace(hour=10, minute=minute)) for minute in (0, 1)] == [False, True]


def test_a_duty_whose_pass_does_not_end_is_named_once_it_has_lasted_too_long() -> None:
    clock_s = 0.0
    named: list[str | None] = []

    def look() -> PassResult:
        nonlocal clock_s
        for passed_s in (10.0, 1.0):
            clock_s += passed_s
            named.append(loop.stalled(tickers, after_s=10.0))
        return Swept()

    tickers = [
        Ticker(duty, cast(Store, FakeStore()), lambda: True, CONFIG, clock=lambda: clock_s)
        for duty in (FakeDuty(name="resting"), FakeDuty(look))
    ]
    for ticker in tickers:
        ticker.tick()

    assert named == [None, "sweeping"]
    assert loop.stalled(tickers, after_s=10.0) is None


def test_a_duty_all_of_whose_threads_are_held_is_named_though_its_passes_end() -> None:
    @dataclass
    class Filled(FakeDuty):
        blocked_s: float = 11.0

    tickers = [ticker(Filled())]
    assert loop.stalled(tickers, after_s=12.0) is None
    assert loop.stalled(tickers, after_s=10.0) == "sweeping"


@dataclass(frozen=True, kw_only=True)
class Looked(PassResult):
    states = frozenset({"waiting"})

    waiting: int = 0
    ended: int = 0


def test_what_only_waits_from_pass_to_pass_makes_no_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    ticking = ticker(FakeDuty(lambda: Looked(waiting=2)))
    for _ in range(3):
        ticking.tick()
        ticker(FakeDuty()).tick()
    assert caplog.records == []
    ticker(FakeDuty(lambda: Looked(waiting=2, ended=1))).tick()
    [line] = caplog.records
    assert (vars(line)["waiting"], vars(line)["ended"]) == (2, 1)


def test_every_count_that_is_a_state_is_one_of_its_result() -> None:
    for result in (Assembled, Planned, Cut):
        assert result.states <= result().counts.keys()
