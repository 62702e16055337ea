"""A duty of the running loop sleeps until a process commits what concerns it."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy import event

from nightshift.jobs.shard import Ring
from nightshift.store import PendingWork, Store
from scheduler.runtime.duty import Duty, PassResult
from scheduler.runtime.loop import LoopConfig, Ticker
from scheduler.runtime.work_watch import WatchConfig, WorkWatch
from tests.helpers.fakes import InMemoryQueue, submit
from tests.integration.scheduler.scheduling import Place, a_line, jsonl

END_S = 30.0
PATIENT = LoopConfig(longest_s=3600.0)
EAGER = WatchConfig(asking_pause_max_s=0.0)  # a look may follow the one before at once


@dataclass
class Counted:
    """Passes while a job is to be planned, and says after each pass that it has made one."""

    name: str = "counting"
    interval_s: float = 0.0
    passes: int = 0
    passed: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def due_at(self, work: PendingWork) -> datetime | None:
        return work.at if work.is_unplanned else None

    def run_once(self, now: datetime) -> PassResult:
        self.passes += 1
        self.passed.release()
        return PassResult()


class SignallingQueue(InMemoryQueue):
    def __init__(self) -> None:
        super().__init__()
        self.has_rung = threading.Event()

    def ring(self, rings: Sequence[Ring]) -> None:
        super().ring(rings)
        self.has_rung.set()


@pytest.fixture
def ticking(store: Store) -> Iterator[Callable[..., WorkWatch]]:
    """Has a duty tick in a thread until the test ends, which takes the looks. The first one was."""
    stop = threading.Event()
    ends: list[Callable[[], None]] = []

    def begin(duty: Duty, config: LoopConfig = PATIENT) -> WorkWatch:
        changes = store.changes()
        watch = WorkWatch(store.pending, changes, [duty], lambda: True, EAGER)
        watch.look()
        ticker = Ticker(duty, store, lambda: True, config)
        thread = threading.Thread(target=ticker.run, args=(stop, watch))
        thread.start()

        def end() -> None:
            watch.close()
            thread.join(END_S)
            changes.close()
            assert not thread.is_alive()

        ends.append(end)
        return watch

    yield begin
    stop.set()
    for end in ends:
        end()


def test_without_commits_the_tables_are_not_read(store: Store, ticking: Callable[..., WorkWatch]) -> None:
    duty = Counted()
    watch = ticking(duty)
    assert duty.passed.acquire(timeout=END_S), "a leader begins with a pass of each duty"
    watch.look()
    statements: list[str] = []
    event.listen(store.database._engine, "before_cursor_execute", lambda *call: statements.append(call[2]))

    for _ in range(20):
        watch.look()
    assert statements == []


def test_a_duty_sleeps_until_a_commit_concerns_it(store: Store, ticking: Callable[..., WorkWatch]) -> None:
    duty = Counted()
    watch = ticking(duty)
    assert duty.passed.acquire(timeout=END_S)
    with store.transaction() as tx:
        tx.counters.add("heartbeats", 1)
    watch.look()
    assert duty.passes == 1

    submit(store)
    watch.look()
    assert duty.passed.acquire(timeout=END_S)


def test_a_job_is_planned_as_soon_as_it_is_announced(
    store: Store, ticking: Callable[..., WorkWatch], tmp_path: Path
) -> None:
    place = Place.at(store, tmp_path)
    place.serve_model()
    place.queue = queue = SignallingQueue()
    watch = ticking(place.planning())

    place.batch(jsonl([a_line("1")]))
    watch.look()

    assert queue.has_rung.wait(END_S)


def test_without_any_look_a_duty_passes_after_the_longest_pause(ticking: Callable[..., WorkWatch]) -> None:
    duty = Counted()
    ticking(duty, LoopConfig(longest_s=0.01))
    for _ in range(5):
        assert duty.passed.acquire(timeout=END_S)
