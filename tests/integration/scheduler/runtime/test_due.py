"""Each duty is woken by what concerns it, and by nothing else; what it has done wakes it no more."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast

import pytest

from nightshift.jobs import InputError, Job, JobState, StopReason
from nightshift.jobs.part import CutLimits, PartProblem
from nightshift.lifecycle.controls import delete_job
from nightshift.lifecycle.cutting import cut
from nightshift.lifecycle.transitions import finish
from nightshift.outbound.webhook_events import PROGRESS
from nightshift.store import Store
from nightshift.tenants.vault import Vault
from scheduler.duties.ageing import Ageing, AgeingConfig
from scheduler.duties.deletion import Deleting
from scheduler.duties.recovery import Recovery, RecoveryConfig
from scheduler.duties.ringing import Ringing, RingingConfig
from scheduler.duties.stopping import Deadlines, Stopping
from scheduler.duties.webhook_delivery import WebhookDelivery, WebhookDeliveryConfig
from scheduler.runtime.duty import Duty, RunsInBackground
from scheduler.runtime.work_watch import WorkWatch
from scheduler.webhooks.attempts import Poster
from tests.helpers.fakes import (
    MODEL,
    TTL_S,
    FakeClock,
    InMemoryStreams,
    a_delivery,
    a_spec,
    claimed,
    commit_rows,
    completed,
    planned,
    submit,
    submit_online,
)
from tests.integration.scheduler.scheduling import IDLE_S, TEMPLATE, Place, jsonl
from tests.integration.store.watching import hand_back, request_stop

pytestmark = pytest.mark.databases("postgresql")

ROUNDS_MAX: Final = 10
NEVER_S: Final = 1e7  # of what a duty does from time to time
RING_AFTER_S: Final = RingingConfig.ring_after_s
PROBLEM: Final = PartProblem(error=InputError("output_denied", "no"), is_permanent=False)
CUT_AT_ONCE: Final = CutLimits(part_bytes=1, part_rows=1)


@dataclass
class Duties:
    """All that wait for work, without threads of their own; a test's clock is the database's and theirs."""

    place: Place
    clock: FakeClock

    def __post_init__(self) -> None:
        store = self.place.store
        no_vault, no_poster = cast(Vault, None), cast(Poster, None)  # no attempt is begun here
        self.all: dict[str, Duty] = {
            duty.name: duty
            for duty in (
                self.place.planning(),
                Ringing(store, self.place.queue),
                Recovery(store, RecoveryConfig(lease_ttl_s=NEVER_S, workers_interval_s=NEVER_S)),
                Deadlines(store),
                Stopping(store),
                self.place.output_parts(),
                self.place.assembly(),
                Ageing(store, InMemoryStreams(), AgeingConfig(round_interval_s=NEVER_S)),
                Deleting(store, self.place.objects, InMemoryStreams()),
                WebhookDelivery(store, no_vault, no_poster),
                WebhookDelivery(store, no_vault, no_poster, WebhookDeliveryConfig.for_progress()),
            )
        }
        self.changes = store.changes()
        self.watch = WorkWatch(
            store.pending,
            self.changes,
            list(self.all.values()),
            lambda: True,
            clock=lambda: self.clock().timestamp(),
        )

    def due(self) -> set[str]:
        """After a look."""
        self.watch.look()
        return {name for name in self.all if self.watch.is_due(name)}

    def run(self, name: str) -> None:
        """A pass of one, and what it started is over."""
        duty = self.all[name]
        self.watch.begin_pass(name)
        duty.run_once(self.clock())
        if isinstance(duty, RunsInBackground):
            assert duty.wait_until_idle(IDLE_S)

    def settle(self) -> None:
        """Every duty that is due passes, until none is."""
        for _ in range(ROUNDS_MAX):
            due = self.due()
            if not due:
                return
            for name in due:
                self.run(name)
        raise AssertionError(f"still due after {ROUNDS_MAX} passes: {due}")


@pytest.fixture
def duties(place: Place, clock: FakeClock) -> Iterator[Duties]:
    all_duties = Duties(place, clock)
    all_duties.settle()
    yield all_duties
    all_duties.changes.close()


def native(place: Place) -> Job:
    (place.bucket / "in.jsonl").write_bytes(jsonl({"text": "x" * 90} for _ in range(4)))
    return place.native(template=TEMPLATE, model=MODEL)


def ended(store: Store, **overrides: Any) -> Job:
    """A job that was cancelled at once, and its rings sent."""
    job = submit(store, **overrides)
    with store.transaction() as tx:
        tx.jobs.stop(job.id, StopReason.CANCELLED, tx.now())
        assert finish(tx, job, JobState.CANCELLED, tx.now())
        tx.outbox.delete([ring.id for ring in tx.outbox.waiting(tx.now(), limit=100)])
    return job


def run_one_shard(store: Store) -> None:
    claim = claimed(store)
    assert commit_rows(store, claim.lease)
    assert completed(store, claim.lease, rows_total=4)


def running(store: Store, duties: Duties, *, shards: int = 1, **wishes: Any) -> Job:
    """A job of which a worker has the first shard."""
    job = planned(store, shards=shards, spec=a_spec(**wishes))
    claimed(store)
    duties.clock.advance(seconds=1)  # so that its rings are sent
    duties.settle()
    return job


def test_where_there_is_nothing_no_duty_is_due(duties: Duties, clock: FakeClock) -> None:
    for _ in range(100):
        clock.advance(seconds=60)
        assert duties.due() == set()


def test_no_gap_between_passes_of_recovery_looks_like_an_outage(store: Store, clock: FakeClock) -> None:
    config = RecoveryConfig(lease_ttl_s=TTL_S, workers_interval_s=NEVER_S)
    recovery = Recovery(store, config)
    recovery.run_once(clock())
    due_at = recovery.due_at(store.pending())
    assert due_at is not None
    assert due_at - clock() < timedelta(seconds=TTL_S / 2)


def test_heartbeats_and_checkpoints_wake_none(store: Store, duties: Duties, clock: FakeClock) -> None:
    planned(store)
    lease = claimed(store).lease
    clock.advance(seconds=1)
    duties.settle()
    for seq in range(5):
        clock.advance(seconds=5)
        with store.transaction() as tx:
            assert tx.leases.renew([lease], tx.now(), TTL_S)
        assert commit_rows(store, lease, seq)
        assert duties.due() == set()


def test_a_job_goes_through_its_life(store: Store, duties: Duties, place: Place) -> None:
    job = native(place)
    assert duties.due() == {"planning"}
    duties.settle()
    place.work_off(shards=1)
    assert duties.due() == {"output_parts"}
    duties.settle()
    place.work_off()
    assert duties.due() == {"output_parts", "assembly"}
    duties.settle()
    assert place.job(job).state is JobState.SUCCEEDED
    assert duties.due() == set()


def test_a_ring_owed_is_due_once_its_sender_had_the_time(
    store: Store, duties: Duties, clock: FakeClock
) -> None:
    planned(store)
    assert duties.due() == set()
    clock.advance(seconds=RingingConfig.outbox_age_s)
    assert duties.due() == {"ringing"}
    duties.settle()


def test_a_shard_in_the_queue_is_rung_for_again(store: Store, duties: Duties, clock: FakeClock) -> None:
    planned(store)
    clock.advance(seconds=1)
    duties.settle()  # which sends the ring that was owed
    clock.advance(seconds=RING_AFTER_S - 1)
    for _ in range(3):
        duties.place.queue.take()
        assert duties.due() == {"ringing"}
        duties.settle()
        assert duties.place.queue.take()
        clock.advance(seconds=RING_AFTER_S - 1)
        assert duties.due() == set()
        clock.advance(seconds=1)


def test_a_shard_handed_back_is_rung_for(store: Store, duties: Duties, clock: FakeClock) -> None:
    planned(store, shards=3)
    lease = claimed(store).lease
    clock.advance(seconds=RING_AFTER_S + 1)
    duties.settle()
    assert hand_back(store, lease)
    assert duties.due() == {"ringing"}
    duties.settle()


def test_a_delayed_shard_is_rung_for_when_it_may_be_claimed(
    store: Store, duties: Duties, clock: FakeClock
) -> None:
    planned(store)
    lease = claimed(store).lease
    clock.advance(seconds=RING_AFTER_S + 1)
    duties.settle()
    with store.transaction() as tx:
        assert tx.leases.delay(lease, clock() + timedelta(seconds=20))
    assert duties.due() == set()
    clock.advance(seconds=20)
    assert duties.due() == {"ringing"}
    duties.settle()


def test_online_requests_in_the_queue_are_looked_after(store: Store, duties: Duties) -> None:
    submit_online(store)
    assert duties.due() == {"ringing"}


def test_a_lease_that_has_run_out(store: Store, duties: Duties, clock: FakeClock) -> None:
    running(store, duties)
    clock.advance(seconds=TTL_S - 2)
    assert duties.due() == set()
    clock.advance(seconds=1)
    assert duties.due() == {"recovery"}
    duties.settle()


def test_a_window_that_is_over(store: Store, duties: Duties, clock: FakeClock) -> None:
    planned(store, spec=a_spec(completion_window_s=60))
    clock.advance(seconds=59)
    duties.settle()
    clock.advance(seconds=1)
    assert duties.due() == {"deadlines"}
    duties.run("deadlines")
    assert duties.due() == {"stopping", "assembly"}
    duties.settle()


def test_a_run_time_that_is_over(store: Store, duties: Duties, clock: FakeClock) -> None:
    running(store, duties, max_runtime_s=20)
    clock.advance(seconds=18)
    assert duties.due() == set()
    clock.advance(seconds=1)
    assert duties.due() == {"deadlines"}


def test_a_limit_that_was_passed(store: Store, duties: Duties) -> None:
    planned(store, spec=a_spec(max_failed_rows=0))
    lease = claimed(store).lease
    duties.settle()
    assert commit_rows(store, lease, rows=4, failed=1)
    assert duties.due() == {"deadlines"}


def test_a_cancelled_job_until_it_has_ended(store: Store, duties: Duties) -> None:
    job = running(store, duties, shards=2)
    assert request_stop(store, job, StopReason.CANCELLED)
    assert duties.due() == {"stopping", "output_parts"}
    for name in duties.due():
        duties.run(name)
    assert "stopping" in duties.due(), "a worker still has a shard"


def test_deliveries_of_events_and_of_progress(store: Store, duties: Duties, clock: FakeClock) -> None:
    job = ended(store)
    duties.settle()
    soon, later = clock() + timedelta(seconds=10), clock() + timedelta(seconds=20)
    with store.transaction() as tx:
        tx.deliveries.insert(a_delivery(job, next_at=later))
        tx.deliveries.insert(a_delivery(job, next_at=soon, event_type=PROGRESS))
    assert duties.due() == set()
    clock.advance(seconds=10)
    assert duties.due() == {"progress_delivery"}
    clock.advance(seconds=10)
    assert duties.due() == {"progress_delivery", "webhook_delivery"}


def test_what_was_deleted(store: Store, duties: Duties) -> None:
    job = ended(store)
    duties.settle()
    with store.transaction() as tx:
        assert delete_job(tx, job, tx.now())
    assert duties.due() == {"deletion"}
    duties.settle()


def test_a_part_is_due_until_it_is_written_whatever_becomes_of_its_writers(
    store: Store, duties: Duties, clock: FakeClock
) -> None:
    job = planned(store, shards=2)
    run_one_shard(store)
    clock.advance(seconds=1)
    duties.settle()
    with store.transaction() as tx:
        cut(tx, tx.jobs.fetch(job.id), CUT_AT_ONCE, tx.now(), is_complete=False)
    assert duties.due() == {"output_parts"}
    with store.transaction() as tx:
        claim = tx.parts.claim("worker_1", tx.now(), ttl_s=5)
    assert claim is not None
    assert duties.due() == set(), "a worker writes it"
    clock.advance(seconds=5)
    assert duties.due() == {"output_parts"}, "and has stopped renewing"


def test_a_part_that_cannot_be_written_is_looked_after(
    store: Store, duties: Duties, clock: FakeClock
) -> None:
    job = planned(store, shards=2)
    run_one_shard(store)
    clock.advance(seconds=1)
    duties.settle()
    with store.transaction() as tx:
        cut(tx, tx.jobs.fetch(job.id), CUT_AT_ONCE, tx.now(), is_complete=False)
        claim = tx.parts.claim("worker_1", tx.now(), ttl_s=5)
        assert claim is not None
        assert tx.parts.hand_back(claim.lease, clock() + timedelta(hours=1), PROBLEM, is_charged=True)
    assert duties.due() == {"output_parts"}


def test_a_round_of_ageing(duties: Duties, clock: FakeClock) -> None:
    clock.advance(seconds=NEVER_S)
    assert "ageing" in duties.due()
    duties.settle()
