"""The bulk shards of a worker: each has a place and a thread, and none has the one without the other."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from nightshift.jobs import ShardState, StopReason
from nightshift.jobs.priorities import ROOM_FOR_ALL, Room
from tests.unit.workers.scripted import TENANT, claim_bulk
from tests.unit.workers.shard.helpers import CONFIG, Ground, finished, wait_until
from workers.shard.checkpoints import Checkpoint
from workers.shard.ledger import Ledger
from workers.shard.row_queue import RowQueue
from workers.shard.runner import ShardRunner
from workers.shard.shards import Shards

ROWS = CONFIG.rows_in_flight_max


@dataclass
class Worker:
    ground: Ground
    shards: Shards
    places_freed: threading.Semaphore
    room_changed: threading.Semaphore

    def start(self, rows: int = 1) -> ShardRunner:
        self.ground.plan(rows)
        return self.shards.run(claim_bulk(self.ground.store), self.ground.clock())

    @property
    def is_loaded(self) -> bool:
        """Whether only small jobs may be claimed beside those that run."""
        room = self.shards.room(["demo"])
        assert room in (ROOM_FOR_ALL, Room(loaded_pairs=frozenset({(TENANT, "demo")})))
        return room != ROOM_FOR_ALL


@pytest.fixture
def worker(ground: Ground) -> Iterator[Worker]:
    freed, changed = threading.Semaphore(0), threading.Semaphore(0)
    shards = Shards(ground.dependencies, CONFIG, freed.release, on_room_changed=changed.release)
    yield Worker(ground, shards, freed, changed)
    shards.drain(until_s=0.0)


def no_thread_for(name: str) -> Callable[[threading.Thread], None]:
    """Starts threads in a process that may have no more of such a name."""
    start = threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(name):
            raise RuntimeError("can't start new thread")
        start(thread)

    return start_or_refuse


def test_a_shard_has_its_place_until_it_ends_and_is_charged_with_its_time(worker: Worker) -> None:
    ground, shards = worker.ground, worker.shards
    started = worker.start()
    [inference] = ground.begun(1)
    assert (len(shards), shards.rows_finished()) == (1, {"demo": 0})
    assert shards.starvation.seconds()["demo"] > 0, "the scripted model makes no steps"

    ground.answer(inference)
    finished(started)
    assert worker.places_freed.acquire(timeout=10)
    assert (len(shards), shards.rows_finished()) == (0, {"demo": 1})
    assert ground.state is ShardState.DONE
    charged = ground.recorded.worker_time
    assert 0 < charged.on_demand_s <= shards.held_time.total.on_demand_s + 0.001
    assert charged.spot_s == 0


def test_the_time_of_an_attempt_that_was_handed_back_is_charged_too(worker: Worker) -> None:
    started = worker.start()
    worker.ground.begun(1)
    started.drain()
    assert worker.places_freed.acquire(timeout=10)

    assert worker.ground.recorded.worker_time.on_demand_s > 0


def test_a_shard_counts_as_the_rows_that_it_still_has(worker: Worker) -> None:
    ground = worker.ground
    first = worker.start(ROWS + 1)
    assert worker.is_loaded, "how many rows it has is not known yet"
    inferences = ground.begun(ROWS)
    ground.answer(inferences[0])
    ground.begun(ROWS)  # the last one has begun
    assert worker.is_loaded

    ground.answer(inferences[1])
    assert worker.room_changed.acquire(timeout=10)
    assert (first.held.load, worker.is_loaded) == (7 / 8, False)

    second = worker.start(ROWS + 1)
    assert worker.is_loaded
    ground.answer(*ground.begun(2 * ROWS - 1))
    ground.answer(*ground.begun(1))  # the second's last
    finished(first)
    finished(second)
    assert not worker.is_loaded


def test_a_shard_with_few_long_rows_keeps_no_place(worker: Worker) -> None:
    runner = worker.start()
    worker.ground.begun(1)

    wait_until(lambda: runner.held.load == 1 / 8)
    assert not worker.is_loaded


def test_a_shard_that_begins_no_more_rows_counts_as_those_in_the_engine(worker: Worker) -> None:
    runner = worker.start(10 * ROWS)
    inferences = worker.ground.begun(ROWS)
    assert worker.is_loaded

    runner.stop_requested(StopReason.CANCELLED)
    worker.ground.answer(*inferences[:4])
    wait_until(lambda: runner.held.load == 1 / 2)
    assert not worker.is_loaded


@pytest.mark.parametrize("thread", ["shard-", "reader-", "uploads-"])
def test_a_shard_without_a_thread_is_handed_back_at_once_and_keeps_no_place(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, thread: str
) -> None:
    ground, shards = worker.ground, worker.shards
    ground.plan(1)
    claim = claim_bulk(ground.store)
    monkeypatch.setattr(threading.Thread, "start", no_thread_for(thread))
    with pytest.raises(RuntimeError, match="new thread"):
        shards.run(claim, ground.clock())

    assert len(shards) == 0
    assert not ground.heartbeat.trusts(claim.lease)
    wait_until(lambda: not any(claim.job.id in thread.name for thread in threading.enumerate()))
    assert (ground.state, ground.shard.attempts) == (ShardState.QUEUED, 0)

    monkeypatch.undo()
    ground.model.echo = True
    finished(shards.run(claim_bulk(ground.store), ground.clock()))
    assert ground.state is ShardState.DONE


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_shard_whose_thread_has_ended_and_kept_its_place_is_noticed(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(rows: RowQueue) -> None:
        raise RuntimeError("unforeseen")

    started = worker.start()
    [inference] = worker.ground.begun(1)
    assert worker.shards.are_alive

    monkeypatch.setattr(RowQueue, "close", broken)
    worker.ground.answer(inference)
    finished(started)

    assert len(worker.shards) == 1
    assert not worker.shards.are_alive


def test_a_shard_that_has_ended_is_freed_with_its_results_at_once(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's garbage collector looks at what has grown old so seldom that dozens of them would add up."""
    taken: list[weakref.ref[Checkpoint]] = []
    take_checkpoint = Ledger.take_checkpoint

    def noted(ledger: Ledger, rows_total: int | None, *, of_everything: bool = False) -> Checkpoint | None:
        checkpoint = take_checkpoint(ledger, rows_total, of_everything=of_everything)
        if checkpoint is not None:
            taken.append(weakref.ref(checkpoint))
        return checkpoint

    monkeypatch.setattr(Ledger, "take_checkpoint", noted)
    gc.disable()
    try:
        started = worker.start()
        worker.ground.answer(*worker.ground.begun(1))
        assert worker.places_freed.acquire(timeout=10)
        finished(started)
        ended = weakref.ref(started)
        del started
        assert ended() is None
        assert [checkpoint() for checkpoint in taken] == [None]
    finally:
        gc.enable()
