"""An idle scheduler runs no duty until something is due or was committed."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import event

from nightshift.errors import DatabaseUnavailable
from nightshift.jobs import Job, JobState, StopReason, Webhook
from nightshift.lifecycle.transitions import finish
from nightshift.store import Store
from nightshift.store.databases.changes import Changes
from nightshift.store.shards.outbox import Ring
from nightshift.testing import FakeClock, InMemoryQueue, a_spec, submit
from scheduler.runtime.duty import Duty, Result
from scheduler.runtime.loop import LoopConfig, Ticker
from scheduler.runtime.work_watch import WatchConfig, WorkWatch
from tests.integration.scheduler.scheduling import Place, a_line, jsonl

END_S = 30.0
CONFIG = WatchConfig()
PAUSE = timedelta(minutes=5)
PATIENT = LoopConfig(idle_s=3600.0)


@dataclass
class Counted:
    """A duty that says after each pass that it has made one."""

    name: str = "counting"
    interval_s: float = 0.0
    passes: int = 0
    passed: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def run_once(self, now: datetime) -> Result:
        self.passes += 1
        self.passed.release()
        return Result()


class SignallingQueue(InMemoryQueue):
    def __init__(self) -> None:
        super().__init__()
        self.has_rung = threading.Event()

    def ring(self, rings: Sequence[Ring]) -> None:
        super().ring(rings)
        self.has_rung.set()


@dataclass
class Watched:
    """A watch whose looks a test takes, by the test's clock, and whether its process leads."""

    store: Store
    clock: FakeClock
    leads: bool = True

    def __post_init__(self) -> None:
        self.changes = self.store.changes()
        self.watch = WorkWatch(
            self.store, self.changes, lambda: self.leads, CONFIG, lambda: self.clock().timestamp()
        )

    def is_idle_after_a_look(self) -> bool:
        self.watch.look()
        return self.watch.idle_period is not None


@pytest.fixture
def watched(store: Store, clock: FakeClock) -> Iterator[Watched]:
    found = Watched(store, clock)
    yield found
    found.changes.close()


@pytest.fixture
def ticking(watched: Watched) -> Iterator[Callable[[Duty, LoopConfig], None]]:
    """Has a duty tick in a thread until the test ends."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def begin(duty: Duty, config: LoopConfig = PATIENT) -> None:
        ticker = Ticker(duty, watched.store, lambda: True, config)
        threads.append(threading.Thread(target=ticker.run, args=(stop, watched.watch)))
        threads[-1].start()

    yield begin
    stop.set()
    watched.watch.close()
    for thread in threads:
        thread.join(END_S)
        assert not thread.is_alive()


def ended(store: Store, job: Job) -> None:
    """The job ends, and its rings have been sent."""
    with store.transaction() as tx:
        tx.jobs.stop(job.id, StopReason.CANCELLED, tx.now())
        assert finish(tx, job, JobState.CANCELLED, tx.now())
        tx.outbox.delete([ring.id for ring in tx.outbox.waiting(tx.now(), limit=100)])


def test_while_idle_the_tables_are_not_read(watched: Watched) -> None:
    assert watched.is_idle_after_a_look()
    statements: list[str] = []
    engine = watched.store.database._engine
    event.listen(engine, "before_cursor_execute", lambda *call: statements.append(call[2]))

    assert all(watched.is_idle_after_a_look() for _ in range(100))
    assert watched.watch.look() == CONFIG.look_s
    assert statements == []


def test_a_duty_pauses_until_a_commit_brings_work(watched: Watched, ticking: Callable[..., None]) -> None:
    assert watched.is_idle_after_a_look()
    duty = Counted()
    ticking(duty)
    assert duty.passed.acquire(timeout=END_S), "each idle period begins with a pass"
    with watched.store.transaction() as tx:
        tx.counters.add("heartbeats", 1)
    assert watched.is_idle_after_a_look(), "a commit that is no work"
    assert duty.passes == 1

    submit(watched.store)
    assert not watched.is_idle_after_a_look()
    assert duty.passed.acquire(timeout=END_S)


def test_a_job_is_planned_as_soon_as_it_is_announced(
    watched: Watched, ticking: Callable[..., None], tmp_path: Path
) -> None:
    place = Place.at(watched.store, tmp_path)
    place.serve_model()
    assert watched.is_idle_after_a_look()
    place.queue = queue = SignallingQueue()
    ticking(place.planning())

    place.batch(jsonl([a_line("1")]))
    assert not watched.is_idle_after_a_look()

    assert queue.has_rung.wait(END_S)


def test_without_any_announcement_a_duty_passes_after_the_idle_pause(
    watched: Watched, ticking: Callable[..., None]
) -> None:
    assert watched.is_idle_after_a_look()
    duty = Counted()
    ticking(duty, LoopConfig(idle_s=0.01))
    for _ in range(5):  # and no look is taken meanwhile
        assert duty.passed.acquire(timeout=END_S)


def test_there_is_work_until_a_job_and_its_rings_are_done_with(watched: Watched) -> None:
    job = submit(watched.store)
    assert not watched.is_idle_after_a_look()
    assert watched.watch.look() == CONFIG.busy_look_s
    ended(watched.store, job)
    assert watched.is_idle_after_a_look()


def test_a_delivery_is_work_from_the_moment_its_next_attempt_is_due(
    watched: Watched, clock: FakeClock
) -> None:
    hook = Webhook(url="https://receiver.example/hook", events=())
    job = submit(watched.store, spec=a_spec(webhook=hook))
    ended(watched.store, job)
    assert not watched.is_idle_after_a_look()
    with watched.store.transaction() as tx:
        [delivery] = tx.deliveries.due(clock(), limit=10)
        assert tx.deliveries.reserve(delivery, clock() + PAUSE)

    assert watched.is_idle_after_a_look()
    clock.advance(seconds=PAUSE.total_seconds() - 1)
    assert watched.is_idle_after_a_look()
    clock.advance(seconds=1)
    assert not watched.is_idle_after_a_look()


def test_a_standby_is_never_idle_so_it_begins_at_once_when_it_leads(watched: Watched) -> None:
    watched.leads = False
    assert not watched.is_idle_after_a_look()
    watched.leads = True
    assert watched.is_idle_after_a_look()


def test_with_the_database_away_the_duties_tick_and_say_so(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watched.is_idle_after_a_look()

    def away(changes: Changes) -> bool:
        raise DatabaseUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(Changes, "seen", away)
        assert not watched.is_idle_after_a_look()
    assert watched.is_idle_after_a_look()


def test_a_look_that_breaks_leaves_the_duties_ticking(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(changes: Changes) -> bool:
        raise RuntimeError("of all things")

    monkeypatch.setattr(Changes, "seen", breaks)
    assert not watched.is_idle_after_a_look()
    assert "of all things" in caplog.text
