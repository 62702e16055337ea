"""Work that was not heard of is rung again, however Redis lost it, and not without bound."""

from datetime import timedelta

import pytest

from nightshift.broker.queue import BULK_QUEUE
from nightshift.jobs import JobKind
from nightshift.jobs.priorities import PriorityClass
from nightshift.store import Store
from nightshift.store.jobs.idempotency import KeptAnswer
from nightshift.store.shards.shards import RUNG_SHARDS_MAX
from scheduler.duties.ringing import Ringing, RingingConfig
from tests.helpers.fakes import (
    FakeClock,
    InMemoryQueue,
    claimed,
    claimed_online,
    planned,
    rescue,
    submit_online,
)
from tests.integration.store.watching import hand_back

CONFIG = RingingConfig()


def settled(store: Store) -> None:
    """Sends all rings that were written so far: the outbox is empty."""
    with store.transaction() as tx:
        tx.outbox.delete([ring.id for ring in tx.outbox.waiting(tx.now(), 1000)])


def test_a_ring_its_writer_did_not_send_is_sent_and_forgotten(store: Store, clock: FakeClock) -> None:
    submitted = submit_online(store)
    queue = InMemoryQueue()
    duty = Ringing(store, queue)
    assert duty.run_once(clock.now).owed == 0  # its writer is about to send it

    assert duty.run_once(clock.advance(seconds=CONFIG.outbox_age_s)).owed == 1
    assert [ring.shard_id for ring in queue.take()] == [submitted.shard_id]
    assert duty.run_once(clock.advance(seconds=CONFIG.outbox_age_s)).owed == 0


def test_while_redis_is_away_rings_stay_owed(store: Store, clock: FakeClock) -> None:
    submit_online(store)
    queue = InMemoryQueue()
    queue.is_away = True
    duty = Ringing(store, queue)
    clock.advance(minutes=5)
    assert duty.run_once(clock.now).unavailable == 1

    queue.is_away = False
    assert duty.run_once(clock.now).owed == 1


def test_an_online_request_whose_message_was_lost_is_rung_again(store: Store, clock: FakeClock) -> None:
    lost, answered = submit_online(store), submit_online(store)
    settled(store)
    claimed_online(store, answered.shard_id)
    queue = InMemoryQueue()
    duty = Ringing(store, queue)

    assert duty.run_once(clock.advance(seconds=CONFIG.ring_after_s - 1)).again == 0
    assert duty.run_once(clock.advance(seconds=1)).again == 1
    assert [ring.shard_id for ring in queue.take()] == [lost.shard_id]
    assert duty.run_once(clock.advance(seconds=CONFIG.ring_after_s - 1)).again == 0
    assert duty.run_once(clock.advance(seconds=1)).again == 1


def test_requests_whose_messages_all_wait_in_the_queue_are_not_rung_again(
    store: Store, clock: FakeClock
) -> None:
    submitted = [submit_online(store) for _ in range(3)]
    settled(store)
    queue = InMemoryQueue()
    queue.ring([ring for one in submitted for ring in one.rings])
    assert Ringing(store, queue).run_once(clock.advance(hours=1)).again == 0

    queue.rings.pop()  # one message is lost, it is not known which
    assert Ringing(store, queue).run_once(clock.now).again == 3


def test_bulk_work_is_rung_with_one_message_per_shard(store: Store, clock: FakeClock) -> None:
    planned(store, shards=3, priority=PriorityClass.BACKGROUND)
    settled(store)
    queue = InMemoryQueue()
    assert Ringing(store, queue).run_once(clock.advance(seconds=CONFIG.ring_after_s)).again == 3
    assert {(ring.kind, ring.shard_id, ring.priority_rank) for ring in queue.take()} == {
        (JobKind.BULK, None, PriorityClass.BACKGROUND.rank)
    }


def test_messages_that_no_worker_fetches_do_not_pile_up(store: Store, clock: FakeClock) -> None:
    planned(store, shards=CONFIG.bulk_waiting_max + 10)
    settled(store)
    queue = InMemoryQueue()
    duty = Ringing(store, queue)
    for _ in range(5):
        duty.run_once(clock.advance(minutes=1))
    assert queue.length(BULK_QUEUE) == CONFIG.bulk_waiting_max


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost with its worker", "handed back"])
def test_a_shard_that_comes_back_is_rung_at_the_next_sweep(
    store: Store, clock: FakeClock, is_lost: bool
) -> None:
    planned(store)
    settled(store)
    duty = Ringing(store, InMemoryQueue())
    assert duty.run_once(clock.advance(seconds=CONFIG.ring_after_s)).again == 1
    lease = claimed(store, ttl_s=1).lease
    clock.advance(seconds=1)  # much sooner than it would be rung again
    assert rescue(store) if is_lost else hand_back(store, lease)
    duty = Ringing(store, InMemoryQueue())
    assert duty.run_once(clock.now).again == 1


def test_answers_kept_for_repeated_requests_are_forgotten_in_time(store: Store, clock: FakeClock) -> None:
    job = submit_online(store).job
    with store.transaction() as tx:
        kept = KeptAnswer("f" * 64, job.id, 202, {})
        tx.idempotency.keep(job.tenant_id, "key", kept, clock.now, clock.now + timedelta(hours=24))
    duty = Ringing(store, InMemoryQueue())
    assert duty.run_once(clock.advance(hours=23)).purged == 0
    assert duty.run_once(clock.advance(hours=1)).purged == 1


def test_of_a_job_with_very_many_shards_a_few_are_rung_for_and_others_jobs_too(
    store: Store, clock: FakeClock
) -> None:
    planned(store, shards=3 * RUNG_SHARDS_MAX)
    other = planned(store, shards=1, priority=PriorityClass.BACKGROUND)
    now = clock.advance(seconds=CONFIG.ring_after_s)
    with store.snapshot() as tx:
        unrung = tx.shards.unrung(now, timedelta(seconds=CONFIG.ring_after_s), kind=JobKind.BULK, limit=500)
        (others,) = tx.shards.of_job(other.id, limit=2)
    assert len(unrung) == RUNG_SHARDS_MAX + 1
    assert unrung[-1] == (others.id, PriorityClass.BACKGROUND.rank)
