"""The bulk shards of a worker: each has a place and a thread, and none has the one without the other."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from nightshift.jobs import ShardState
from nightshift.jobs.files import file_key
from nightshift.objectstore import ObjectStore
from nightshift.store import Store
from tests.unit.workers.scripted import TENANT, ManualClock, ScriptedServer, claim_bulk, plan_bulk
from tests.unit.workers.shard.helpers import CONFIG, INPUT, batch_line, finished, shard_of, wait_until
from workers.health.heartbeat import Heartbeat
from workers.shard import runner
from workers.shard.config import ShardDependencies
from workers.shard.ledger import Ledger
from workers.shard.rows.shard_rows import ShardRows
from workers.shard.running import Shards
from workers.shard.segments import Checkpoint


@pytest.fixture
def places_freed() -> threading.Semaphore:
    return threading.Semaphore(0)


@pytest.fixture
def shards(
    dependencies: ShardDependencies, objects: ObjectStore, places_freed: threading.Semaphore
) -> Iterator[Shards]:
    objects.put(file_key(TENANT, INPUT), (batch_line(0) + "\n").encode())
    shards = Shards(dependencies, CONFIG, on_place_freed=places_freed.release)
    yield shards
    shards.drain(until_s=0.0)


def no_thread_for(name: str) -> Callable[[threading.Thread], None]:
    """What starts a thread, in a process that may have no more of such a name."""
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


def test_a_shard_that_soon_ends_leaves_its_place_to_the_next(
    store: Store,
    objects: ObjectStore,
    shards: Shards,
    model: ScriptedServer,
    clock: ManualClock,
    places_freed: threading.Semaphore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "ENDING_S", 1000.0)
    objects.put(file_key(TENANT, INPUT), "".join(batch_line(row) + "\n" for row in range(3)).encode())
    for _ in range(3):
        plan_bulk(store, INPUT)

    first = shards.run(claim_bulk(store), clock())
    ids = [inference.id for inference in model.wait_for(3)]
    assert shards.places_free == 0, "how long its rows take is not known yet"

    model.answer(ids[0])
    assert places_freed.acquire(timeout=10)
    assert (len(shards), shards.places_free) == (1, 1)

    second = shards.run(claim_bulk(store), clock())
    model.answer(next(inference.id for inference in model.wait_for(5) if inference.id not in ids))
    assert places_freed.acquire(timeout=10)
    assert (len(shards), shards.places_free) == (2, 0), "no more may end at once than there are places"

    for inference in model.wait_for(4):
        model.answer(inference.id)
    finished(first)
    finished(second)
    assert shards.places_free == 1


def test_a_shard_with_rows_yet_to_begin_keeps_its_place(
    store: Store,
    objects: ObjectStore,
    shards: Shards,
    model: ScriptedServer,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "ENDING_S", 1000.0)
    lines = (batch_line(row) + "\n" for row in range(CONFIG.rows_in_flight_max + 2))
    objects.put(file_key(TENANT, INPUT), "".join(lines).encode())
    plan_bulk(store, INPUT)

    shards.run(claim_bulk(store), clock())
    inferences = model.wait_for(CONFIG.rows_in_flight_max)
    model.answer(inferences[0].id)
    model.wait_for(CONFIG.rows_in_flight_max)  # the last but one has begun

    assert shards.places_free == 0


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
    def broken(rows: ShardRows) -> None:
        raise RuntimeError("unforeseen")

    plan_bulk(store, INPUT)
    started = shards.run(claim_bulk(store), clock())
    [inference] = model.wait_for(1)
    assert shards.are_alive

    monkeypatch.setattr(ShardRows, "close", broken)
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
