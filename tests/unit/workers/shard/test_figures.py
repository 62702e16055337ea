"""Whose time a worker's is, when its engines starve, and what its shards read and write."""

import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.errors import StorageUnavailable
from nightshift.fleet.costs import WorkerTime
from nightshift.fleet.workers import Capacity
from nightshift.jobs.files import file_key
from nightshift.jobs.leases import Lease, Term
from nightshift.objectstore import ObjectStore
from nightshift.store import Store
from tests.helpers.fakes import STARTS_AT
from tests.unit.workers.scripted import TENANT, ManualClock, ScriptedServer, claim_bulk, plan_bulk
from tests.unit.workers.shard.helpers import CONFIG, INPUT, batch_line
from workers.shard.config import ShardDependencies
from workers.shard.figures import CountedReader, HeldTime, Starvation, StorageCounts
from workers.shard.shards import Shards


def a_lease(name: str, term: int = 1) -> Lease:
    return Lease(
        shard_id=name,
        job_id="job_1",
        tenant_id="default",
        term=Term(term),
        worker_id="worker_1",
        expires_at=STARTS_AT + timedelta(seconds=30),
    )


A, B = a_lease("a"), a_lease("b")


@pytest.fixture
def held(clock: ManualClock) -> HeldTime:
    return HeldTime(Capacity.SPOT, clock)


def charged(held: HeldTime, lease: Lease) -> float:
    with held.charged(lease) as time:
        return time.spot_s


def test_a_shard_alone_has_all_the_time_and_two_have_half_each(held: HeldTime, clock: ManualClock) -> None:
    held.begin(A)
    clock.advance(10)
    held.begin(B)
    clock.advance(6)

    assert (charged(held, A), charged(held, B)) == (13, 3)
    held.end(A)
    clock.advance(5)
    assert (charged(held, A), charged(held, B)) == (0, 5)
    assert held.total == WorkerTime(spot_s=21)


def test_time_is_charged_once_and_to_the_lease_that_held_the_shard(
    held: HeldTime, clock: ManualClock
) -> None:
    clock.advance(100)  # without a shard
    held.begin(A)
    clock.advance(10)
    with pytest.raises(RuntimeError), held.charged(A):
        raise RuntimeError("the database is away")
    clock.advance(2)
    assert [charged(held, A), charged(held, A)] == [12, 0]

    later = a_lease("a", term=2)
    held.begin(later)
    clock.advance(4)
    assert charged(held, later) == 2

    for lease in (A, later):
        held.end(lease)
    clock.advance(100)
    assert held.total == WorkerTime(spot_s=16)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 100)), max_size=40))
def test_together_shards_are_never_charged_more_than_passed(
    happened: Sequence[tuple[str, bool, int]],
) -> None:
    clock = ManualClock()
    held, sum_s = HeldTime(Capacity.SPOT, clock), 0.0
    open_now: set[str] = set()
    for name, is_charged, seconds in happened:
        lease = a_lease(name)
        if name in open_now and is_charged:
            sum_s += charged(held, lease)
            held.end(lease)
            open_now.remove(name)
        elif name not in open_now:
            held.begin(lease)
            open_now.add(name)
        clock.advance(seconds)
    sum_s += sum(charged(held, a_lease(name)) for name in open_now)

    assert sum_s == pytest.approx(held.total.spot_s)
    assert sum_s <= clock() - 1000.0 + 1e-6


@pytest.fixture
def busy() -> dict[str, float]:
    return {}


@pytest.fixture
def starvation(busy: dict[str, float], clock: ManualClock) -> Starvation:
    return Starvation(lambda model_id: busy.get(model_id, 0.0), clock)


def test_an_engine_starves_while_a_shard_is_held_and_no_step_runs(
    starvation: Starvation, busy: dict[str, float], clock: ManualClock
) -> None:
    starvation.begin("demo")
    clock.advance(10)
    busy["demo"] = 4.0
    assert starvation.seconds() == {"demo": 6.0}

    starvation.end("demo")
    clock.advance(100)
    assert starvation.seconds() == {"demo": 6.0}, "without a shard it rests"


def test_models_starve_apart_and_several_shards_of_one_starve_it_once(
    starvation: Starvation, busy: dict[str, float], clock: ManualClock
) -> None:
    busy["other"] = 50.0  # before its shard came
    for model in ("demo", "demo", "other"):
        starvation.begin(model)
    clock.advance(5)
    starvation.end("demo")
    clock.advance(5)
    busy["other"] = 53.0

    assert starvation.seconds() == {"demo": 10.0, "other": 7.0}


class Broken:
    def stream(self, *about: object, **more: object) -> Iterator[bytes]:
        yield b"some"
        raise StorageUnavailable("away")


def test_every_byte_that_is_read_counts_once(objects: ObjectStore) -> None:
    objects.put("a", b"0123456789")
    counts = StorageCounts()
    reader = CountedReader(objects, counts)

    assert reader.read("a") == b"0123456789"
    assert b"".join(reader.stream("a", 2, 8, chunk_bytes=4)) == b"234567"
    assert reader.head("a") == objects.head("a")
    assert [info.key for info in reader.list()] == ["a"]

    assert counts.read.bytes == 16
    assert counts.read.seconds > 0
    assert counts.written.bytes == 0


def test_what_came_before_a_fault_counts_and_the_fault_is_told() -> None:
    counts = StorageCounts()
    pieces = CountedReader(Broken(), counts).stream("a")  # type: ignore[arg-type]

    assert next(pieces) == b"some"
    with pytest.raises(StorageUnavailable):
        next(pieces)
    assert counts.read.bytes == 4


def test_a_shard_counts_its_input_and_its_segments(
    store: Store,
    objects: ObjectStore,
    dependencies: ShardDependencies,
    model: ScriptedServer,
    clock: ManualClock,
) -> None:
    line = (batch_line(0) + "\n").encode()
    objects.put(file_key(TENANT, INPUT), line)
    model.echo = True
    plan_bulk(store, INPUT)
    ended = threading.Event()
    shards = Shards(dependencies, CONFIG, on_place_freed=ended.set)

    runner = shards.run(claim_bulk(store), clock())
    assert ended.wait(10)
    assert runner.join(10)

    segments = sum(info.size_bytes for info in objects.list()) - len(line)
    assert shards.storage_counts.read.bytes == len(line)
    assert shards.storage_counts.written.bytes == segments > 0
