"""The bulk shards of a worker: each has a place and a thread, and none has the one without the other."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from nightshift.jobs import ShardState, StopReason
from nightshift.jobs.files import file_key
from nightshift.jobs.priorities import ROOM_FOR_ALL, Room
from nightshift.objectstore import ObjectStore
from nightshift.store import Store
from tests.unit.workers.scripted import TENANT, ManualClock, ScriptedServer, claim_bulk, plan_bulk
from tests.unit.workers.shard.helpers import CONFIG, INPUT, batch_line, finished, shard_of, wait_until
from workers.leases.heartbeat import Heartbeat
from workers.shard.checkpoints import Checkpoint
from workers.shard.config import ShardDependencies
from workers.shard.ledger import Ledger
from workers.shard.row_queue import RowQueue
from workers.shard.shards import Shards


@pytest.fixture
def places_freed() -> threading.Semaphore:
    return threading.Semaphore(0)


@pytest.fixture
def room_changed() -> threading.Semaphore:
    return threading.Semaphore(0)


@pytest.fixture
def shards(
    dependencies: ShardDependencies,
    objects: ObjectStore,
    places_freed: threading.Semaphore,
    room_changed: threading.Semaphore,
) -> Iterator[Shards]:
    objects.put(file_key(TENANT, INPUT), (batch_line(0) + "\n").encode())
    shards = Shards(
        dependencies, CONFIG, on_place_freed=places_freed.release, on_room_changed=room_changed.release
    )
    yield shards
    shards.drain(until_s=0.0)


def is_loaded(shards: Shards) -> bool:
    """Whether only small jobs may be claimed beside those that run."""
    room = shards.room(["demo"])
    assert room is not None
    return room == Room(loaded_pairs=frozenset({(TENANT, "demo")}))


def no_thread_for(name: str) -> Callable[[threading.Thread], None]:
    """Starts threads in a process that may have no more of such a name."""
    start = threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(name):
            raise RuntimeError("can't start new thread")
        start(thread)

    return start_or_refuse


def test_a_shard_has_its_place_until_it_ends(
    store: Store,
    shards: Shards,
    model: ScriptedServer,
    clock: ManualClock,
    places_freed: threading.Semaphore,
) -> None:
    job = plan_bulk(store, INPUT)
    started = shards.run(claim_bulk(store), clock())
    [inference] = model.wait_for(1)
    assert len(shards) == 1

    assert shards.rows_finished() == {"demo": 0}
    assert shards.starvation.seconds()["demo"] > 0, "the scripted model makes no steps"

    model.answer(inference.id)
    finished(started)
    assert places_freed.acquire(timeout=10)
    assert shards.rows_finished() == {"demo": 1}

    assert len(shards) == 0
    assert shard_of(store, job).state is ShardState.DONE


def test_a_shard_counts_as_the_rows_that_it_still_has(
    store: Store,
    objects: ObjectStore,
    shards: Shards,
    model: ScriptedServer,
    clock: ManualClock,
    room_changed: threading.Semaphore,
) -> None:
    rows = CONFIG.rows_in_flight_max + 1
    objects.put(file_key(TENANT, INPUT), "".join(batch_line(row) + "\n" for row in range(rows)).encode())
    plan_bulk(store, INPUT)
    plan_bulk(store, INPUT)

    first = shards.run(claim_bulk(store), clock())
    assert is_loaded(shards), "how many rows it has is not known yet"
    ids = [inference.id for inference in model.wait_for(CONFIG.rows_in_flight_max)]
    model.answer(ids[0])
    model.wait_for(CONFIG.rows_in_flight_max)  # the last one has begun
    assert is_loaded(shards)

    model.answer(ids[1])
    assert room_changed.acquire(timeout=10)
    assert (first.held.load, is_loaded(shards)) == (7 / 8, False)

    second = shards.run(claim_bulk(store), clock())
    assert is_loaded(shards)
    model.echo = True
    for inference_id in ids[2:]:
        model.answer(inference_id)
    for inference in model.wait_for(1):
        model.answer(inference.id)
    finished(first)
    finished(second)
    assert shards.room(["demo"]) == ROOM_FOR_ALL


def test_a_shard_with_few_long_rows_keeps_no_place(
    store: Store,
    shards: Shards,
    model: ScriptedServer,
    clock: ManualClock,
) -> None:
    plan_bulk(store, INPUT)
    runner = shards.run(claim_bulk(store), clock())
    model.wait_for(1)

    wait_until(lambda: runner.held.load == 1 / 8)
    assert shards.room(["demo"]) == ROOM_FOR_ALL


def test_a_shard_that_begins_no_more_rows_counts_as_those_in_the_engine(
    store: Store,
    objects: ObjectStore,
    shards: Shards,
    model: ScriptedServer,
    clock: ManualClock,
) -> None:
    rows = 10 * CONFIG.rows_in_flight_max
    objects.put(file_key(TENANT, INPUT), "".join(batch_line(row) + "\n" for row in range(rows)).encode())
    plan_bulk(store, INPUT)
    runner = shards.run(claim_bulk(store), clock())
    ids = [inference.id for inference in model.wait_for(CONFIG.rows_in_flight_max)]
    assert is_loaded(shards)

    runner.stop_requested(StopReason.CANCELLED)
    for inference_id in ids[:4]:
        model.answer(inference_id)
    wait_until(lambda: runner.held.load == 1 / 2)
    assert shards.room(["demo"]) == ROOM_FOR_ALL


@pytest.mark.parametrize("thread", ["shard-", "reader-", "uploads-"])
def test_a_shard_without_a_thread_is_handed_back_at_once_and_keeps_no_place(
    store: Store,
    shards: Shards,
    model: ScriptedServer,
    heartbeat: Heartbeat,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    thread: str,
) -> None:
    job = plan_bulk(store, INPUT)
    claim = claim_bulk(store)
    monkeypatch.setattr(threading.Thread, "start", no_thread_for(thread))
    with pytest.raises(RuntimeError, match="new thread"):
        shards.run(claim, clock())

    assert len(shards) == 0
    assert not heartbeat.trusts(claim.lease)
    wait_until(lambda: not any(claim.job.id in thread.name for thread in threading.enumerate()))
    shard = shard_of(store, job)
    assert (shard.state, shard.attempts) == (ShardState.QUEUED, 0)

    monkeypatch.undo()
    model.echo = True
    finished(shards.run(claim_bulk(store), clock()))
    assert shard_of(store, job).state is ShardState.DONE


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_shard_whose_thread_has_ended_and_kept_its_place_is_noticed(
    store: Store,
    shards: Shards,
    model: ScriptedServer,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(rows: RowQueue) -> None:
        raise RuntimeError("unforeseen")

    plan_bulk(store, INPUT)
    started = shards.run(claim_bulk(store), clock())
    [inference] = model.wait_for(1)
    assert shards.are_alive

    monkeypatch.setattr(RowQueue, "close", broken)
    model.answer(inference.id)
    finished(started)

    assert len(shards) == 1
    assert not shards.are_alive


def test_a_job_is_charged_with_the_time_of_the_worker_that_ran_its_shards(
    store: Store,
    shards: Shards,
    model: ScriptedServer,
    clock: ManualClock,
    places_freed: threading.Semaphore,
) -> None:
    job = plan_bulk(store, INPUT)
    started = shards.run(claim_bulk(store), clock())
    [inference] = model.wait_for(1)
    model.answer(inference.id)
    finished(started)

    with store.snapshot() as tx:
        charged = tx.jobs.fetch(job.id).worker_time
    assert 0 < charged.on_demand_s <= shards.held_time.total.on_demand_s + 0.001
    assert charged.spot_s == 0


def test_the_time_of_an_attempt_that_was_handed_back_is_charged_too(
    store: Store,
    shards: Shards,
    model: ScriptedServer,
    clock: ManualClock,
    places_freed: threading.Semaphore,
) -> None:
    job = plan_bulk(store, INPUT)
    started = shards.run(claim_bulk(store), clock())
    model.wait_for(1)
    started.drain()
    assert places_freed.acquire(timeout=10)

    with store.snapshot() as tx:
        assert tx.jobs.fetch(job.id).worker_time.on_demand_s > 0


def test_a_shard_that_has_ended_is_freed_with_its_results_at_once(
    store: Store,
    shards: Shards,
    model: ScriptedServer,
    clock: ManualClock,
    places_freed: threading.Semaphore,
    monkeypatch: pytest.MonkeyPatch,
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
    plan_bulk(store, INPUT)
    gc.disable()
    try:
        started = shards.run(claim_bulk(store), clock())
        [inference] = model.wait_for(1)
        model.answer(inference.id, "done")
        assert places_freed.acquire(timeout=10)
        finished(started)
        ended = weakref.ref(started)
        del started
        assert ended() is None
        assert len(taken) == 1
        assert taken[0]() is None
    finally:
        gc.enable()
