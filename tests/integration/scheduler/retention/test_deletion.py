"""Deleted jobs go, rows and bytes, whatever happens meanwhile; and nothing else does."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from sqlalchemy import func, select

from nightshift.broker.token_streams import Delta, End, StreamDeleter, StreamWriter
from nightshift.errors import StorageDenied, StorageUnavailable
from nightshift.fleet.workers import ExitCause
from nightshift.jobs import Job, JobState
from nightshift.jobs.part import CutLimits
from nightshift.lifecycle import cutting, transitions
from nightshift.lifecycle.controls import delete_job
from nightshift.outbound.webhooks import DeliveryState
from nightshift.process.settings import QueueSettings, RetentionSettings
from nightshift.store import Store, tables
from nightshift.store.jobs.idempotency import KeptAnswer
from scheduler.duties.ageing import Ageing, AgeingConfig
from scheduler.duties.deletion import Deleted, Deleting, DeletionConfig
from scheduler.runtime.duty import Interrupted
from tests.helpers.fakes import (
    STARTS_AT,
    FakeClock,
    InMemoryStreams,
    a_dead_letter,
    a_delivery,
    an_answer,
    an_attempt,
    claimed_online,
    submit_online,
)
from tests.integration.scheduler.assembly.conftest import a_batch, assembled
from tests.integration.scheduler.scheduling import FailingStore, Place, answered
from tests.integration.servers import ValkeyServer

pytestmark = pytest.mark.databases("postgresql")

SMALL = DeletionConfig(
    rows_per_step_max=2, shards_per_step_max=1, objects_per_step_max=2, deletions_per_page=1
)
# With a row for each job, or for what belongs to one.
OF_JOBS = {
    table
    for table in tables.metadata.sorted_tables
    if table in (tables.job, tables.deletion) or {"job_id", "shard_id", "delivery_id"} & {*table.c.keys()}
} - {tables.outbox}


def rows(store: Store) -> Mapping[str, int]:
    """How many rows each table has that jobs have rows in."""
    with store.database.read() as connection:
        counts = {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in OF_JOBS
        }
    return {name: count for name, count in counts.items() if count}


def keys(place: Place) -> list[str]:
    return [info.key for info in place.objects.list()]


def duty(place: Place, objects: Any = None, config: DeletionConfig = SMALL, **parts: Any) -> Deleting:
    parts = {"streams": InMemoryStreams(), "config": config, "pause": lambda seconds: None} | parts
    return Deleting(place.store, objects or place.objects, **parts)


def work_off(deleting: Deleting, clock: FakeClock) -> list[Deleted]:
    """One whole round."""
    passes = [deleting.run_once(clock.now)]
    while passes[-1].has_more:
        passes.append(deleting.run_once(clock.now))
    return passes


def deleted(store: Store, job: Job) -> bool:
    with store.transaction() as tx:
        return delete_job(tx, job, tx.now())


def a_job_with_everything(place: Place, **wishes: Any) -> Job:
    """A batch that has ended, of several shards and segments, with a row in every table that has any."""
    texts = [f"text {number}" for number in range(9)]
    job = a_batch(place, texts, **wishes)
    place.work_off()
    job = assembled(place, job)
    shard_id = place.shards(job)[0].id
    delivery = a_delivery(job)
    letter = a_dead_letter(job, shard_id, row=0)
    with place.store.transaction() as tx:
        tx.deliveries.insert(delivery)
        assert tx.deliveries.record(delivery, an_attempt(delivery), DeliveryState.PENDING, STARTS_AT)
        tx.dead_letters.record_crash(shard_id, [0], ExitCause.KILLED)
        tx.dead_letters.insert(letter)
        kept = KeptAnswer("f" * 64, job.id, 200, {})
        assert tx.idempotency.keep(job.tenant_id, f"key-{job.id}", kept, tx.now(), place.store.now())
        assert cutting.cut(tx, job, CutLimits(1, 1), tx.now(), is_complete=True).parts > 1
    place.objects.put(f"assembly/{job.tenant_id}/{job.id}/000000.json", b"[]")
    place.objects.put(f"results/{job.tenant_id}/{job.id}/part-00000.jsonl", b"{}\n")
    return job


def test_a_deleted_job_leaves_no_row_and_no_byte_but_its_files_and_its_usage(
    place: Place, clock: FakeClock
) -> None:
    neighbour = a_job_with_everything(place)
    before, objects = rows(place.store), keys(place)
    job = a_job_with_everything(place)
    files = [key for key in keys(place) if key.startswith("files/") and key not in objects]
    with place.store.snapshot() as tx:
        used = tx.usage.list("default", limit=9, since=STARTS_AT.date(), until=clock.now.date())

    assert deleted(place.store, job)
    passes = work_off(duty(place), clock)

    assert rows(place.store) == before
    assert sorted(keys(place)) == sorted(objects + files)
    assert len(files) == 2, "its input and its output"
    assert sum(one.jobs for one in passes) == 1
    with place.store.snapshot() as tx:
        assert tx.usage.list("default", limit=9, since=STARTS_AT.date(), until=clock.now.date()) == used
        assert tx.jobs.fetch(neighbour.id).state is JobState.SUCCEEDED


def test_the_results_of_jobs_count_for_their_tenant_until_they_are_deleted(
    place: Place, clock: FakeClock
) -> None:
    """Batches whose files are deleted, one after the other, leave segments."""
    for _ in range(3):
        ended_batch(place)
        with place.store.transaction() as tx:
            for file in tx.files.list("default", tx.now(), limit=9):
                tx.files.delete("default", file.id)
        assert stored(place) == segment_bytes(place) > 0

    clock.advance(days=30)
    Ageing(place.store, InMemoryStreams(), pause=lambda seconds: None).run_once(clock.now)
    work_off(duty(place), clock)
    assert stored(place) == segment_bytes(place) == 0


def ended_batch(place: Place) -> Job:
    job = a_batch(place, ["a", "b", "c"])
    place.work_off()
    return assembled(place, job)


def stored(place: Place) -> int:
    """The bytes that count for the tenant, which a recount finds too."""
    with place.store.snapshot() as tx:
        assert tx.holdings.differences() == {}
        return tx.holdings.total("default").stored_bytes


def segment_bytes(place: Place) -> int:
    return sum(info.size_bytes for info in place.objects.list("segments/"))


def test_no_step_deletes_more_than_a_batch(place: Place, clock: FakeClock) -> None:
    assert deleted(place.store, a_job_with_everything(place))
    one_step = DeletionConfig(
        rows_per_step_max=2, shards_per_step_max=1, objects_per_step_max=2, steps_per_pass_max=1
    )

    passes = work_off(duty(place, config=one_step), clock)

    assert max(one.rows for one in passes) == 2
    assert max(one.objects for one in passes) == 2
    assert len(passes) > 10


def test_an_online_job_is_deleted_with_its_request_and_its_answer(place: Place, clock: FakeClock) -> None:
    submitted = answered(place.store, body={"messages": ["a prompt"]})

    assert deleted(place.store, submitted.job)
    work_off(duty(place), clock)

    assert rows(place.store) == {}


@pytest.fixture
def deleter(valkey: ValkeyServer) -> Iterator[StreamDeleter]:
    deleter = StreamDeleter(valkey.settings)
    yield deleter
    deleter.close()


def streamed_online(store: Store, valkey: ValkeyServer) -> tuple[Job, str]:
    """An online job that has ended, and the key of its tokens in Redis."""
    submitted = submit_online(store)
    claim = claimed_online(store, submitted.shard_id)
    writer = StreamWriter(valkey.settings)
    assert writer.write([Delta(claim.lease.shard_id, {"text": "a secret"}), End(claim.lease.shard_id)])
    writer.close()
    with store.transaction() as tx:
        assert transitions.record_answer(tx, claim, an_answer(), tx.now())
    [key] = [key for key in valkey.client.keys("*") if claim.lease.shard_id.encode() in key]
    return submitted.job, key.decode()


def test_the_tokens_of_a_deleted_request_leave_redis_and_no_others(
    place: Place, clock: FakeClock, valkey: ValkeyServer, deleter: StreamDeleter
) -> None:
    _, kept = streamed_online(place.store, valkey)
    job, gone = streamed_online(place.store, valkey)

    assert deleted(place.store, job)
    work_off(duty(place, streams=deleter), clock)

    assert not valkey.client.exists(gone)
    assert valkey.client.exists(kept)


def test_the_tokens_of_a_request_that_has_had_its_time_leave_redis(
    place: Place, clock: FakeClock, valkey: ValkeyServer, deleter: StreamDeleter
) -> None:
    _, bodiless = streamed_online(place.store, valkey)
    clock.advance(seconds=60)
    _, kept = streamed_online(place.store, valkey)
    stays = RetentionSettings(online_job_retention_s=3600, online_body_retention_s=60)
    Ageing(place.store, deleter, AgeingConfig(stays)).run_once(clock.now)

    assert not valkey.client.exists(bodiless), "its answer was deleted"
    assert valkey.client.exists(kept)
    clock.advance(seconds=3600)
    Ageing(place.store, deleter, AgeingConfig(stays)).run_once(clock.now)
    assert not valkey.client.keys("ns:stream:*")


def test_a_deletion_goes_on_while_redis_is_away(place: Place, clock: FakeClock) -> None:
    submitted = answered(place.store)
    assert deleted(place.store, submitted.job)

    nowhere = StreamDeleter(QueueSettings(redis_url="redis://127.0.0.1:1/0"))
    work_off(duty(place, streams=nowhere), clock)
    nowhere.close()

    assert rows(place.store) == {}


def test_a_job_that_has_not_ended_is_not_deleted(place: Place, clock: FakeClock) -> None:
    job = a_batch(place, ["a"])

    assert not deleted(place.store, job)
    work_off(duty(place), clock)

    assert place.job(job).state is JobState.QUEUED


def test_a_pass_that_is_killed_anywhere_is_made_good_by_the_next(place: Place, clock: FakeClock) -> None:
    before = rows(place.store)
    assert deleted(place.store, a_job_with_everything(place))
    deaths = 0
    while rows(place.store) != before and deaths < 100:
        checks = iter([True] * (deaths % 5 + 1))
        with suppress(Interrupted):
            work_off(duty(place, may_continue=partial(next, checks, False)), clock)
        deaths += 1

    assert 3 < deaths < 100
    assert not [key for key in keys(place) if not key.startswith("files/")]


def test_while_the_object_store_is_away_rows_go_and_bytes_go_later(place: Place, clock: FakeClock) -> None:
    job = a_job_with_everything(place)
    assert deleted(place.store, job)
    away = FailingStore(place.objects, "list", StorageUnavailable())
    deleting = duty(place, away)

    assert work_off(deleting, clock)[-1].failed == 1
    assert rows(place.store) == {"deletion": 1, "job": 1}
    with pytest.raises(StorageUnavailable):
        work_off(deleting, clock)
    away.is_broken = False
    work_off(deleting, clock)

    assert rows(place.store) == {}
    assert not [key for key in keys(place) if not key.startswith("files/")]


def test_a_job_whose_bytes_are_refused_keeps_no_other_waiting(place: Place, clock: FakeClock) -> None:
    stuck, other = (a_job_with_everything(place) for _ in range(2))
    assert deleted(place.store, stuck)
    assert deleted(place.store, other)
    refusing = RefusingStore(place, stuck.id)

    passes = work_off(duty(place, refusing), clock)

    assert (sum(one.jobs for one in passes), passes[-1].failed) == (1, 1)
    assert rows(place.store) == {"deletion": 1, "job": 1}


class RefusingStore:
    """An object store that deletes nothing of one job."""

    def __init__(self, place: Place, job_id: str) -> None:
        self._objects = place.objects
        self._job_id = job_id

    def delete(self, key: str) -> None:
        if self._job_id in key:
            raise StorageDenied(key)
        self._objects.delete(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)


def test_a_tenant_that_deletes_much_keeps_no_other_tenant_waiting(
    store: Store, place: Place, clock: FakeClock
) -> None:
    for tenant_id in ("busy",) * 20 + ("quiet",):
        assert deleted(store, answered(store, tenant_id=tenant_id).job)
    deleting = duty(place, config=DeletionConfig(steps_per_pass_max=12))

    deleting.run_once(clock.now)

    with store.snapshot() as tx:
        assert tx.deletions.tenants() == ["busy"]
