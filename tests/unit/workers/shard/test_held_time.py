"""Whose time a worker's is."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.fleet.costs import WorkerTime
from nightshift.fleet.workers import Capacity
from nightshift.jobs.leases import Lease, Term
from tests.helpers.fakes import STARTS_AT
from tests.unit.workers.scripted import ManualClock
from workers.shard.held_time import HeldTime


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


def test_time_is_charged_once(held: HeldTime, clock: ManualClock) -> None:
    held.begin(A)
    clock.advance(10)

    assert [charged(held, A), charged(held, A)] == [10, 0]


def test_what_could_not_be_recorded_is_charged_the_next_time(held: HeldTime, clock: ManualClock) -> None:
    held.begin(A)
    clock.advance(10)
    with pytest.raises(RuntimeError), held.charged(A):
        raise RuntimeError("the database is away")
    clock.advance(2)

    assert charged(held, A) == 12


def test_time_without_a_shard_is_no_ones(held: HeldTime, clock: ManualClock) -> None:
    clock.advance(100)
    held.begin(A)
    clock.advance(1)
    held.end(A)
    clock.advance(100)

    assert held.total == WorkerTime(spot_s=1)


def test_a_later_lease_of_a_shard_has_nothing_of_an_earlier_one(held: HeldTime, clock: ManualClock) -> None:
    held.begin(A)
    clock.advance(10)
    held.begin(a_lease("a", term=2))
    clock.advance(4)

    assert charged(held, a_lease("a", term=2)) == 2


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
