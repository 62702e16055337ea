"""Each part of an ended job stays for its own time; a tenant's turn is short; nothing is read whole."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from nightshift.broker.token_streams import StreamDeleter
from nightshift.fleet.workers import ExitCause
from nightshift.jobs import Job, JobKind
from nightshift.jobs.files import Deletion, JobPart
from nightshift.lifecycle.controls import delete_job
from nightshift.outbound.webhooks import DeliveryState
from nightshift.process.settings import RetentionSettings
from nightshift.store import Store, Transaction
from nightshift.store.jobs.ageing import EndedJob
from scheduler.duties.ageing import Aged, Ageing, AgeingConfig
from scheduler.duties.deletion import Deleting
from tests.helpers.fakes import (
    STARTS_AT,
    FakeClock,
    InMemoryStreams,
    a_dead_letter,
    a_delivery,
    a_worker,
    an_attempt,
    submit_online,
)
from tests.integration.scheduler.assembly.conftest import a_native_job, assembled
from tests.integration.scheduler.scheduling import Place, answered
from tests.integration.store.databases.test_query_plans import recorded

pytestmark = pytest.mark.databases("postgresql")

# Everything has a time of its own.
STAYS = RetentionSettings(
    online_body_retention_s=100,
    event_retention_s=200,
    online_job_retention_s=300,
    delivery_retention_s=400,
    result_retention_s=500,
    bulk_job_retention_s=600,
    worker_retention_s=700,
)


def ended_bulk(place: Place) -> Job:
    job = a_native_job(place, ["a", "b", "c"])
    place.work_off()
    return assembled(place, job)


def age(store: Store, clock: FakeClock, streams: StreamDeleter | None = None, **config: Any) -> Aged:
    """One whole round, and the counts of its passes together."""
    duty = Ageing(
        store, streams or InMemoryStreams(), AgeingConfig(STAYS, **config), pause=lambda seconds: None
    )
    passes = [duty.run_once(clock.now)]
    while passes[-1].has_more:
        passes.append(duty.run_once(clock.now))
    return Aged(**{name: sum(one.counts[name] for one in passes) for name in passes[0].counts})


def sees(store: Store, job: Job) -> tuple[bool, bool, int]:
    """Whether its tenant finds the job, whether it has results, and how many events."""
    with store.snapshot() as tx:
        kept = tx.jobs.get(job.tenant_id, job.id)
        return (
            kept is not None,
            kept is not None and kept.results_deleted_at is None,
            len(tx.events.after(job.tenant_id, job.id, 0, 100)),
        )


def test_what_an_online_job_has_goes_in_its_own_time(store: Store, clock: FakeClock) -> None:
    submitted, unfinished = answered(store), submit_online(store).job
    job = submitted.job
    events = sees(store, job)[2]
    assert events > 1

    clock.advance(seconds=99)
    assert age(store, clock) == Aged()
    clock.advance(seconds=1)
    assert age(store, clock) == Aged(bodies=1)
    assert sees(store, job) == (True, False, events)
    with store.snapshot() as tx:
        assert tx.shards.online_result("default", job.id) is None
        assert tx.shards.request_body("default", submitted.shard_id or "") is None
    clock.advance(seconds=100)
    assert age(store, clock) == Aged(events=1)
    assert sees(store, job) == (True, False, 1)
    clock.advance(seconds=100)
    assert age(store, clock) == Aged(online_jobs=1)
    assert sees(store, job) == (False, False, 0)
    clock.advance(days=300)
    assert age(store, clock) == Aged()
    assert sees(store, unfinished)[0], "a job that has not ended has no age"


def test_what_a_bulk_job_has_goes_in_its_own_time(place: Place, clock: FakeClock) -> None:
    store = place.store
    job = ended_bulk(place)
    delivery = a_delivery(job)
    with store.transaction() as tx:
        tx.deliveries.insert(delivery)
        assert tx.deliveries.record(delivery, an_attempt(delivery), DeliveryState.DELIVERED, STARTS_AT)
    deleting = Deleting(store, place.objects, InMemoryStreams(), pause=lambda seconds: None)

    def after(seconds: float) -> Aged:
        done = age(store, clock, round_interval_s=0) if not seconds else aged(store, clock, seconds)
        while deleting.run_once(clock.now).has_more:
            continue
        return done

    assert after(200) == Aged(events=1)
    assert sees(store, job) == (True, True, 1)
    assert after(200) == Aged(deliveries=1)
    with store.snapshot() as tx:
        assert tx.deliveries.list("default", limit=9) == []
    segments = [info.key for info in place.objects.list("segments/")]
    assert segments
    assert after(100) == Aged(results=1)
    assert list(place.objects.list("segments/")) == []
    assert sees(store, job) == (True, False, 1)
    assert after(100) == Aged(bulk_jobs=1)
    assert sees(store, job) == (False, False, 0)
    assert (place.bucket / "out" / "_SUCCESS").exists(), "what a job wrote to its own place is its owner's"


def aged(store: Store, clock: FakeClock, seconds: float) -> Aged:
    clock.advance(seconds=seconds)
    return age(store, clock)


def test_a_job_stays_while_its_event_is_owed_and_for_its_time_after_it_came(
    store: Store, clock: FakeClock
) -> None:
    job = answered(store).job
    delivery = a_delivery(job)
    with store.transaction() as tx:
        tx.deliveries.insert(delivery)
    clock.advance(seconds=350)
    assert age(store, clock) == Aged(bodies=1, events=1), "its parts go in their time"
    assert sees(store, job) == (True, False, 1)
    came = an_attempt(delivery, started_at=clock.now)
    with store.transaction() as tx:
        assert tx.deliveries.record(delivery, came, DeliveryState.DELIVERED, clock.now)

    assert aged(store, clock, 99) == Aged(deliveries=1)
    assert sees(store, job)[0]


@pytest.mark.parametrize("kind", JobKind)
def test_a_part_that_stays_as_long_as_its_job_goes_in_time_where_the_job_stays_longer(
    place: Place, clock: FakeClock, kind: JobKind
) -> None:
    store = place.store
    job = answered(store).job if kind is JobKind.ONLINE else ended_bulk(place)
    with store.transaction() as tx:
        tx.deliveries.insert(a_delivery(job))
    names = [name for name in type(STAYS).model_fields if name.endswith("_retention_s")]
    equal = AgeingConfig(RetentionSettings(**dict.fromkeys(names, 100)))
    clock.advance(seconds=100)

    done = Ageing(store, InMemoryStreams(), equal, pause=lambda seconds: None).run_once(clock.now)

    gone = "bodies" if kind is JobKind.ONLINE else "results"
    assert (done.counts[gone], done.counts["events"]) == (1, 1)
    assert sees(store, job)[:2] == (True, False)


def test_a_request_that_is_a_dead_letter_stays_until_it_is_decided_about(
    store: Store, clock: FakeClock
) -> None:
    decided, undecided = (dead(store, answered(store).job) for _ in range(2))
    with store.transaction() as tx:
        assert tx.dead_letters.discard("default", decided, tx.now())

    assert aged(store, clock, 599).online_jobs == 1
    with store.snapshot() as tx:
        assert [letter.id for letter in tx.dead_letters.list("default", limit=9)] == [undecided]
    assert aged(store, clock, 1).online_jobs == 1


def dead(store: Store, job: Job) -> str:
    with store.transaction() as tx:
        [shard] = tx.shards.of_job(job.id, limit=1)
        letter = a_dead_letter(job, shard.id)
        tx.dead_letters.insert(letter)
    return letter.id


def test_that_a_receiver_is_gone_is_known_as_long_as_any_job_that_it_concerns(
    store: Store, clock: FakeClock
) -> None:
    job = answered(store).job
    delivery = a_delivery(job)
    with store.transaction() as tx:
        tx.deliveries.insert(delivery)
        tx.deliveries.disable_endpoint(delivery, clock.now)
        assert tx.deliveries.record(
            delivery, an_attempt(delivery, status_code=410), DeliveryState.DEAD, STARTS_AT
        )
    clock.advance(seconds=200)
    later = answered(store).job

    assert aged(store, clock, 99).receivers == 0
    assert aged(store, clock, 1) == Aged(online_jobs=1, bodies=1, receivers=1)
    assert sees(store, later)[0]


def test_workers_that_stopped_are_forgotten_in_their_time(store: Store, clock: FakeClock) -> None:
    at_work, stopped = a_worker(), a_worker()
    with store.transaction() as tx:
        for worker in (at_work, stopped):
            tx.workers.register(worker)
        tx.workers.ended(stopped.id, ExitCause.KILLED, clock.now)

    assert aged(store, clock, 699) == Aged()
    assert aged(store, clock, 1) == Aged(workers=1)
    with store.snapshot() as tx:
        assert [worker.id for worker in tx.workers.list()] == [at_work.id]


def test_a_job_that_its_owner_deletes_at_the_same_time_is_recorded_once(
    place: Place, clock: FakeClock
) -> None:
    job = ended_bulk(place)
    with place.store.transaction() as tx:
        assert delete_job(tx, job, tx.now())

    assert aged(place.store, clock, 600) == Aged()
    with place.store.snapshot() as tx:
        assert [one.part for one in tx.deletions.waiting("default", 9)] == [JobPart.JOB]


def test_a_tenant_with_much_to_delete_keeps_no_other_waiting(store: Store, clock: FakeClock) -> None:
    for _ in range(9):
        answered(store, tenant_id="busy")
    quiet = answered(store, tenant_id="quiet").job
    clock.advance(seconds=300)
    duty = Ageing(
        store,
        InMemoryStreams(),
        AgeingConfig(STAYS, jobs_per_step_max=2, steps_per_pass_max=2),
        pause=lambda seconds: None,
    )

    done = duty.run_once(clock.now)

    assert (done.online_jobs, done.has_more) == (3, True)
    assert not sees(store, quiet)[0]


def test_a_round_that_fails_is_begun_again_at_once(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = answered(store).job
    clock.advance(seconds=300)
    duty = Ageing(store, InMemoryStreams(), AgeingConfig(STAYS), pause=lambda seconds: None)
    with monkeypatch.context() as patched:
        patched.setattr("nightshift.store.jobs.deletions.Deletions.delete_online", _fail)
        with pytest.raises(RuntimeError):
            duty.run_once(clock.now)
    assert sees(store, job)[0]

    assert duty.run_once(clock.now).online_jobs == 1
    answered(store)
    clock.advance(seconds=299)
    assert duty.run_once(clock.now) == Aged(), "the next round is not due"


def _fail(*arguments: object) -> None:
    raise RuntimeError


# -- no statement reads a table whole --------------------------------------------------------------------

OF = Deletion(1, "default", "job_1", JobPart.JOB)
IDS = ["job_1", "job_2"]
CALLS: dict[str, Callable[[Transaction], object]] = {
    "tenants": lambda tx: tx.ageing.tenants(),
    **{
        f"ended {part}": lambda tx, part=part: tx.ageing.ended(
            "default", JobKind.ONLINE, part, STARTS_AT, limit=9, after=EndedJob("job_1", STARTS_AT)
        )
        for part in JobPart
    },
    "awaited": lambda tx: tx.ageing.awaited(IDS, STARTS_AT),
    "undecided": lambda tx: tx.ageing.undecided(IDS),
    "lock_ended": lambda tx: tx.deletions.lock_ended(IDS),
    "mark_deleted": lambda tx: tx.deletions.mark_deleted("default", "job_1", STARTS_AT),
    "mark": lambda tx: tx.deletions.mark(IDS, JobPart.RESULTS, STARTS_AT),
    "to delete": lambda tx: (tx.deletions.tenants(), tx.deletions.waiting("default", 9, 1)),
    "finish": lambda tx: tx.deletions.finish(OF),
    "segments": lambda tx: tx.deletions.delete_segments(OF, 9),
    "events": lambda tx: tx.deletions.delete_events(OF, 9),
    "streamed": lambda tx: tx.deletions.streamed(IDS),
    "shards": lambda tx: tx.deletions.delete_shards(OF, 9),
    "deliveries": lambda tx: tx.deletions.delete_deliveries(IDS, 9),
    "ended deliveries": lambda tx: tx.deletions.delete_ended_deliveries("default", STARTS_AT, 9),
    "gone receivers": lambda tx: tx.deletions.delete_gone_receivers("default", 9),
    "of owner": lambda tx: (tx.deletions.delete_key("job_1"), tx.deletions.delete_dead_letters("job_1")),
    "online": lambda tx: tx.deletions.delete_online(IDS),
    "bodies": lambda tx: tx.deletions.delete_bodies(IDS),
    "events but last": lambda tx: tx.deletions.delete_events_but_last(IDS),
    "expired files": lambda tx: tx.files.expired(STARTS_AT, 9),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_nothing_that_is_deleted_is_looked_for_in_a_whole_table(
    store: Store, call: Callable[[Transaction], object]
) -> None:
    plan = plan_of(store, call)

    assert not [step for step in plan if re.search(r"SCAN (?!found|CONSTANT)|Seq Scan", step)], plan


def plan_of(store: Store, call: Callable[[Transaction], object]) -> Sequence[str]:
    """How the database finds the rows of every statement in a call, in tables too large to read whole."""
    is_sqlite = store.database.is_sqlite
    with recorded(store.database) as statements, store.transaction() as tx:
        call(tx)
    made = [statement for statement in statements if re.match("SELECT|UPDATE|DELETE|WITH", statement[0])]
    assert made, "the call makes no statement"
    lines: list[str] = []
    with store.database.write() as connection:
        if not is_sqlite:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        explain = "EXPLAIN QUERY PLAN" if is_sqlite else "EXPLAIN"
        for statement, parameters in made:
            rows = connection.exec_driver_sql(f"{explain} {statement}", parameters).all()
            lines += [str(row[-1]) for row in rows]
    return lines
