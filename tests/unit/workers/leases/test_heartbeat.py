"""Renewing leases: what holders are told, and when a worker stops trusting a lease."""

import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from nightshift.errors import DatabaseUnavailable
from nightshift.fleet.figures import WorkerFigures
from nightshift.fleet.workers import WorkerState
from nightshift.jobs import OnlineClaim, StopReason
from nightshift.jobs.leases import LeaseConfig
from nightshift.lifecycle import transitions
from nightshift.schedules.windows import Window
from nightshift.store import Store, Transaction
from tests.helpers.fakes import a_spec, a_worker, claimed, planned
from tests.unit.workers.scripted import ManualClock, claim_again, claim_online
from workers.leases.heartbeat import Heartbeat

WAIT_MAX_S = 10.0


@dataclass
class Holder:
    lost: int = 0
    stops: list[StopReason] = field(default_factory=list)
    was_lost: threading.Event = field(default_factory=threading.Event)

    def lease_lost(self) -> None:
        self.lost += 1
        self.was_lost.set()

    def stop_requested(self, reason: StopReason) -> None:
        self.stops.append(reason)

    was_paused: threading.Event = field(default_factory=threading.Event)

    def pause_requested(self) -> None:
        self.was_paused.set()


@pytest.fixture
def claim(store: Store) -> OnlineClaim:
    return claim_online(store, "hello")


@pytest.fixture
def holder(heartbeat: Heartbeat, claim: OnlineClaim, clock: ManualClock) -> Holder:
    """Holds the lease of the claim."""
    holder = Holder()
    heartbeat.hold(claim.lease, holder, clock())
    return holder


def requeued(store: Store) -> None:
    """The lease has run out by the database's clock."""
    with store.transaction() as tx:
        (expired,) = tx.leases.of_worker("worker-1", 10)
        assert tx.leases.requeue(expired)


def test_a_lease_is_trusted_while_it_is_renewed_and_ends_after_that(
    heartbeat: Heartbeat, clock: ManualClock, claim: OnlineClaim, holder: Holder
) -> None:
    clock.advance(15)
    heartbeat.beat()
    clock.advance(15)
    assert heartbeat.trusts(claim.lease)
    assert holder.lost == 0

    clock.advance(6)
    assert not heartbeat.trusts(claim.lease), "before the lease itself ends"


def test_trust_counts_from_before_the_claim_was_asked_for(
    heartbeat: Heartbeat, clock: ManualClock, claim: OnlineClaim
) -> None:
    asked_at_s = clock()
    clock.advance(19)  # the claim took that long to come back
    heartbeat.hold(claim.lease, Holder(), asked_at_s)
    clock.advance(2)

    assert not heartbeat.trusts(claim.lease)


def test_a_lease_that_another_worker_took_is_lost_at_the_next_beat(
    store: Store, heartbeat: Heartbeat, claim: OnlineClaim, holder: Holder
) -> None:
    requeued(store)

    heartbeat.beat()

    assert holder.lost == 1
    assert not heartbeat.trusts(claim.lease)


def test_a_lease_that_this_worker_claims_again_is_lost_to_its_earlier_holder(
    store: Store, heartbeat: Heartbeat, clock: ManualClock, claim: OnlineClaim, holder: Holder
) -> None:
    """The database's clock jumped, or the machine slept: its lease expired unnoticed here."""
    requeued(store)
    second, after = claim_again(store, claim), Holder()

    heartbeat.hold(second.lease, after, clock())
    assert holder.lost == 1

    heartbeat.beat()
    heartbeat.release(claim.lease)  # as who has lost it does at its end
    assert (holder.lost, after.lost) == (1, 0)
    assert heartbeat.trusts(second.lease)


def test_an_order_to_stop_travels_with_the_renewal(
    store: Store, heartbeat: Heartbeat, claim: OnlineClaim, holder: Holder
) -> None:
    with store.transaction() as tx:
        assert transitions.request_stop(tx, claim.job, StopReason.CANCELLED, tx.now())

    heartbeat.beat()

    assert holder.stops == [StopReason.CANCELLED]
    assert holder.lost == 0


def test_a_released_lease_is_neither_renewed_nor_lost(
    heartbeat: Heartbeat, claim: OnlineClaim, holder: Holder
) -> None:
    heartbeat.release(claim.lease)

    heartbeat.beat()

    assert holder.lost == 0
    assert not heartbeat.trusts(claim.lease)


def test_with_the_database_away_leases_are_dropped_once_another_worker_may_have_them(
    store: Store, heartbeat: Heartbeat, clock: ManualClock, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(**options: Any) -> None:
        raise DatabaseUnavailable

    monkeypatch.setattr(store, "transaction", away)
    clock.advance(25)
    heartbeat.beat()
    assert holder.lost == 0, "the lease itself is still good"
    clock.advance(6)
    heartbeat.beat()
    assert holder.lost == 1


def test_a_database_that_is_back_renews_leases_before_the_next_beat_was_due(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage of nearly the whole trust must not cost the lease because the next beat comes too late."""
    monkeypatch.setattr("workers.leases.heartbeat.RETRY_S", 0.01)
    heartbeat = Heartbeat(store, "worker-1", LeaseConfig(3600, 1000, 2000), clock_s=clock)
    renewing, answers, is_back = threading.Event(), store.transaction, threading.Event()

    def ask(**options: Any) -> AbstractContextManager[Transaction]:
        if renewing.is_set():
            is_back.set()
            return answers(**options)
        renewing.set()
        raise DatabaseUnavailable

    monkeypatch.setattr(store, "transaction", ask)
    heartbeat.start()
    heartbeat.beat_now()

    assert is_back.wait(WAIT_MAX_S)
    heartbeat.stop()


def test_a_shard_is_told_of_the_end_of_its_window_when_it_comes_and_not_with_the_next_beat(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next beat of itself would be in an hour."""
    monkeypatch.setattr(Window, "turns_at", lambda window, now: now + timedelta(seconds=0.3))
    monkeypatch.setattr(Window, "is_open", lambda window, now: True)
    heartbeat = Heartbeat(store, "worker-1", LeaseConfig(7200, 3600, 5400))
    planned(store, spec=a_spec(window="01:00-06:00"))
    claim, holder = claimed(store, ttl_s=7200), Holder()
    heartbeat.start()

    heartbeat.hold(claim.lease, holder, time.monotonic(), pauses_at=claim.job.window_turns_at)

    assert holder.was_paused.wait(WAIT_MAX_S)
    heartbeat.stop()


def test_leases_are_dropped_in_time_although_the_database_keeps_the_heartbeat_waiting(
    store: Store, clock: ManualClock, claim: OnlineClaim, monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeat, holder = Heartbeat(store, "worker-1", LeaseConfig(30, 0.05, 20), clock_s=clock), Holder()
    heartbeat.hold(claim.lease, holder, clock())
    renewing, answered = threading.Event(), threading.Event()

    def hang(**options: Any) -> None:
        renewing.set()
        answered.wait(WAIT_MAX_S)
        raise DatabaseUnavailable

    monkeypatch.setattr(store, "transaction", hang)
    heartbeat.start()
    assert renewing.wait(WAIT_MAX_S)
    assert holder.lost == 0
    clock.advance(31)

    assert holder.was_lost.wait(WAIT_MAX_S)
    answered.set()
    heartbeat.stop()
    assert holder.lost == 1


def test_a_worker_that_was_taken_for_lost_says_that_it_is_not(store: Store, heartbeat: Heartbeat) -> None:
    with store.transaction() as tx:
        tx.workers.register(a_worker(id="worker-1"))
        tx.workers.mark_lost(tx.now() + timedelta(hours=1))
    heartbeat.state = WorkerState.READY

    heartbeat.beat()

    with store.snapshot() as tx:
        (worker,) = tx.workers.list()
    assert worker.state is WorkerState.READY


def test_a_request_to_drain_is_passed_on_with_the_next_beat(store: Store) -> None:
    requests: list[str] = []
    heartbeat = Heartbeat(store, "w1", LeaseConfig(), on_drain_request=lambda: requests.append("drain"))
    with store.transaction() as tx:
        tx.workers.register(a_worker(id="w1", state=WorkerState.READY))
    heartbeat.beat()
    assert requests == []

    with store.transaction() as tx:
        assert tx.workers.request_drain("w1", tx.now())
    heartbeat.beat()

    assert requests == ["drain"]


def test_leases_are_renewed_although_figures_cannot_be_read(
    store: Store, clock: ManualClock, claim: OnlineClaim
) -> None:
    def broken() -> WorkerFigures:
        raise RuntimeError("no such device")

    heartbeat = Heartbeat(store, "worker-1", LeaseConfig(), clock_s=clock, figures=broken)
    heartbeat.hold(claim.lease, Holder(), clock())
    clock.advance(15)

    assert heartbeat.beat() is True
    clock.advance(15)
    assert heartbeat.trusts(claim.lease)


def test_figures_are_told_with_a_beat(store: Store, clock: ManualClock) -> None:
    with store.transaction() as tx:
        tx.workers.register(a_worker(id="worker-1"))
    report = WorkerFigures(shards=3)

    Heartbeat(store, "worker-1", LeaseConfig(), clock_s=clock, figures=lambda: report).beat()

    with store.snapshot() as tx:
        assert [worker.figures for worker in tx.workers.list()] == [report]
