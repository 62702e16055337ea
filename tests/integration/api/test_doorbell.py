"""Rings that were sent leave the outbox together, a moment later, and never before they were sent."""

from collections.abc import Iterator

import pytest

from api.rings import Doorbell
from nightshift.broker.hints import HintPublisher
from nightshift.jobs import JobKind
from nightshift.settings import QueueSettings
from nightshift.store import Store
from nightshift.store.shards.outbox import Ring
from nightshift.testing import InMemoryQueue, asked
from tests.integration.api.waiting import wait_until_nothing_is_owed


@pytest.fixture
def queue() -> InMemoryQueue:
    return InMemoryQueue()


@pytest.fixture
def doorbell(store: Store, queue: InMemoryQueue) -> Iterator[Doorbell]:
    hint_publisher = HintPublisher(QueueSettings())
    doorbell = Doorbell(queue, hint_publisher, store)
    yield doorbell
    doorbell.close()
    hint_publisher.close()


def owed(store: Store) -> int:
    with store.snapshot() as tx:
        return tx.outbox.length()


def a_ring(store: Store) -> Ring:
    (ring,) = asked(store).rings
    return ring


def test_a_ring_is_sent_at_once_and_taken_out_of_the_outbox_a_moment_later(
    store: Store, doorbell: Doorbell, queue: InMemoryQueue
) -> None:
    rings = [a_ring(store) for _ in range(3)]

    assert all(doorbell.ring([ring]) for ring in rings)

    assert queue.rings == rings
    wait_until_nothing_is_owed(store)


def test_what_could_not_be_sent_stays_for_the_scheduler(
    store: Store, doorbell: Doorbell, queue: InMemoryQueue
) -> None:
    queue.is_away = True

    assert doorbell.ring([a_ring(store)]) is False

    doorbell.close()
    assert owed(store) == 1


def test_closing_takes_out_what_was_sent_and_nothing_else(store: Store, doorbell: Doorbell) -> None:
    sent, unsent = a_ring(store), a_ring(store)
    doorbell.ring([sent])

    doorbell.close()

    with store.snapshot() as tx:
        assert [ring.id for ring in tx.outbox.waiting(tx.now(), limit=10)] == [unsent.id]


def test_more_than_can_be_remembered_stays_for_the_scheduler_and_delays_nobody(
    store: Store, doorbell: Doorbell, queue: InMemoryQueue
) -> None:
    doorbell.close()  # nobody takes anything out any more
    unwritten = [Ring(0, JobKind.BULK, None, 1)] * 2000

    assert doorbell.ring(unwritten) is True

    assert len(queue.rings) == 2000
