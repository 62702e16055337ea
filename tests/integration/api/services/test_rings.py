"""Rings that were sent leave the outbox together, a moment later, and never before they were sent."""

from collections.abc import Iterator

import pytest

from api.services.rings import RingSender
from nightshift.broker.hints import HintPublisher
from nightshift.jobs import JobKind
from nightshift.jobs.shard import Ring
from nightshift.process.settings import QueueSettings
from nightshift.store import Store
from tests.helpers.fakes import InMemoryQueue, submit_online


@pytest.fixture
def queue() -> InMemoryQueue:
    return InMemoryQueue()


@pytest.fixture
def ring_sender(store: Store, queue: InMemoryQueue) -> Iterator[RingSender]:
    hint_publisher = HintPublisher(QueueSettings())
    ring_sender = RingSender(queue, hint_publisher, store)
    yield ring_sender
    ring_sender.close()
    hint_publisher.close()


def owed(store: Store) -> int:
    with store.snapshot() as tx:
        return tx.outbox.length()


def a_ring(store: Store) -> Ring:
    (ring,) = submit_online(store).rings
    return ring


def test_what_could_not_be_sent_stays_for_the_scheduler(store, ring_sender, queue):
    queue.is_away = True

    assert ring_sender.send([a_ring(store)]) is False

    ring_sender.close()
    assert owed(store) == 1


def test_closing_takes_out_what_was_sent_and_nothing_else(store, ring_sender):
    sent, unsent = a_ring(store), a_ring(store)
    ring_sender.send([sent])

    ring_sender.close()

    with store.snapshot() as tx:
        assert [ring.id for ring in tx.outbox.waiting(tx.now(), limit=10)] == [unsent.id]


def test_more_than_can_be_remembered_stays_for_the_scheduler_and_delays_no_request(store, ring_sender, queue):
    ring_sender.close()  # from now on nothing is deleted
    unwritten = [Ring(0, JobKind.BULK, None, 1)] * 2000

    assert ring_sender.send(unwritten) is True

    assert len(queue.rings) == 2000
