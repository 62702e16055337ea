"""The fakes are held to what the real things promise."""

import inspect

import pytest

from nightshift.broker.queue import BULK_QUEUE, ONLINE_QUEUE, Queue
from nightshift.errors import QueueUnavailable
from nightshift.jobs import JobKind
from nightshift.jobs.shard import Ring
from tests.helpers.fakes import STARTS_AT, FakeClock, InMemoryQueue


def ring(number: int, rank: int = 1, kind: JobKind = JobKind.ONLINE) -> Ring:
    return Ring(number, kind, f"shard_{number}" if kind is JobKind.ONLINE else None, rank)


def test_time_passes_when_a_test_says_so() -> None:
    clock = FakeClock()

    assert clock() == clock() == STARTS_AT
    assert clock.advance(minutes=2, seconds=3) == clock()
    assert (clock() - STARTS_AT).total_seconds() == 123


def test_a_queue_in_memory_can_do_what_a_queue_can() -> None:
    real = {name: method for name, method in inspect.getmembers(Queue, inspect.isfunction) if name[0] != "_"}

    for name, method in real.items():
        fake = vars(InMemoryQueue)[name]
        assert inspect.signature(fake) == inspect.signature(method)


def test_a_queue_in_memory_remembers_who_rang_and_hands_the_best_class_out_first() -> None:
    queue = InMemoryQueue()
    queue.ring([ring(1, rank=2), ring(2, rank=0)])
    queue.ring([ring(3, rank=0, kind=JobKind.BULK)])

    assert (queue.length(ONLINE_QUEUE), queue.length(BULK_QUEUE)) == (2, 1)
    assert [taken.id for taken in queue.take()] == [2, 3, 1]
    assert queue.take() == []


def test_a_queue_that_is_away_fails_and_keeps_what_it_had() -> None:
    queue = InMemoryQueue()
    queue.ring([ring(1)])
    queue.is_away = True

    for fails in (queue.ping, lambda: queue.ring([ring(2)]), lambda: queue.length(ONLINE_QUEUE)):
        with pytest.raises(QueueUnavailable):
            fails()

    queue.is_away = False
    assert [taken.id for taken in queue.take()] == [1]
