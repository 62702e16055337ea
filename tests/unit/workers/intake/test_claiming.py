"""Claims of a worker: of what, in which order, and when it says so."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import pytest

from nightshift.errors import DatabaseUnavailable
from nightshift.jobs import BulkClaim, JobKind, OnlineClaim
from nightshift.jobs.priorities import ROOM_FOR_ALL, OnlineRoom, PriorityClass, Room
from nightshift.store import Store
from nightshift.store.counters import Counters
from nightshift.store.shards.claims import Claims
from tests.unit.workers.scripted import LEASE_TTL_S, TENANT, plan_bulk, submit_online
from workers.intake.claiming import Intake, IntakeTimes
from workers.leases.heartbeat import Heartbeat


@dataclass
class Places:
    """Places for so many, and a record of the claims."""

    online: int = 100
    bulk: int = 100
    room: Room = ROOM_FOR_ALL
    full_tenants: frozenset[str] = frozenset()
    claims: list[OnlineClaim | BulkClaim] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def online_room(self) -> OnlineRoom:
        held = sum(isinstance(claim, OnlineClaim) for claim in self.claims)
        return OnlineRoom(self.online - held, self.full_tenants)

    def bulk_room(self, models: Sequence[str]) -> Room | None:
        is_full = sum(isinstance(claim, BulkClaim) for claim in self.claims) >= self.bulk
        return None if is_full else self.room

    def run_online(self, claim: OnlineClaim, claimed_at_s: float) -> None:
        self._add(claim)

    def run_bulk(self, claim: BulkClaim, claimed_at_s: float) -> None:
        self._add(claim)

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.claims) >= count, timeout=10)

    def _add(self, claim: OnlineClaim | BulkClaim) -> None:
        with self.changed:
            self.claims.append(claim)
            self.changed.notify_all()


class Subscription:
    def __init__(self) -> None:
        self.paused = threading.Event()
        self.pause, self.resume = self.paused.set, self.paused.clear

    def wait_until_paused(self) -> None:
        assert self.paused.wait(10)


class Ring:
    """One message, which remembers what became of it."""

    def __init__(self) -> None:
        self.acknowledged, self.given_back = threading.Event(), threading.Event()
        self.acknowledge, self.give_back = self.acknowledged.set, self.given_back.set

    def wait(self) -> None:
        assert self.acknowledged.wait(10), "the message was not acknowledged"


QUIET = IntakeTimes(poll_s=3600, look_s=3600, retry_s=0.01)


class Warm:
    """The demo model, which is loaded."""

    warm = ("demo",)

    def claiming(self) -> AbstractContextManager[tuple[str, ...]]:
        return nullcontext(self.warm)


@pytest.fixture
def places() -> Places:
    return Places()


@pytest.fixture
def times() -> IntakeTimes:
    """Work is claimed because it rang, unless a test says otherwise."""
    return QUIET


@pytest.fixture
def intake(store: Store, heartbeat: Heartbeat, places: Places, times: IntakeTimes) -> Iterator[Intake]:
    intake = Intake(store, "worker-1", Warm(), LEASE_TTL_S, places, heartbeat, times=times)
    yield intake
    intake.stop()


def test_what_rings_ten_times_is_claimed_once_and_every_ring_acknowledged(
    store: Store, intake: Intake, places: Places
) -> None:
    shard_id, rings, tokens = submit_online(store, "hello"), [Ring() for _ in range(10)], [Ring(), Ring()]
    job = plan_bulk(store, "file-x")
    intake.start()
    for ring in rings:
        intake.online_rang(shard_id, 0, ring)
    for token in tokens:
        intake.bulk_rang(0, token)

    places.wait_for(2)
    for ring in (*rings, *tokens):
        ring.wait()
    online, bulk = sorted(places.claims, key=lambda claim: claim.job.kind is JobKind.BULK)
    assert (online.lease.shard_id, bulk.job.id) == (shard_id, job.id)


def test_a_ring_for_nothing_is_acknowledged_and_forgotten(intake: Intake, places: Places) -> None:
    unknown, token = Ring(), Ring()
    intake.start()
    intake.online_rang("shard_unknown", 0, unknown)
    intake.bulk_rang(0, token)

    unknown.wait()
    token.wait()
    assert places.claims == []


def test_online_goes_before_bulk_and_the_better_class_before_the_other(
    store: Store, intake: Intake, places: Places
) -> None:
    plan_bulk(store, "file-x")
    background = submit_online(store, "b", priority=PriorityClass.BACKGROUND)
    interactive = submit_online(store, "i", priority=PriorityClass.INTERACTIVE)
    places.online = 1  # so that the order shows
    intake.bulk_rang(0, Ring())
    intake.online_rang(background, 8, Ring())
    intake.online_rang(interactive, 0, Ring())

    intake.start()
    places.wait_for(2)

    assert places.claims[0].lease.shard_id == interactive
    assert isinstance(places.claims[1], BulkClaim)


def test_a_ring_waits_for_a_free_place_and_is_taken_as_soon_as_there_is_one(
    store: Store, intake: Intake, places: Places
) -> None:
    places.online = 0
    ring = Ring()
    intake.start()
    intake.online_rang(submit_online(store, "hello"), 0, ring)
    assert not ring.acknowledged.is_set()

    places.online = 1
    intake.online_place_freed()

    places.wait_for(1)
    ring.wait()


def test_when_more_have_rung_than_there_are_places_the_tenants_share_them(
    store: Store, intake: Intake, places: Places
) -> None:
    """The ring of the second tenant may lie a thousand messages further back."""
    large = [submit_online(store, f"large {number}", tenant_id="large") for number in range(5)]
    small = submit_online(store, "small", tenant_id="small")
    places.online = 2
    rings = [Ring() for _ in large]
    for shard_id, ring in zip(large, rings, strict=True):
        intake.online_rang(shard_id, 0, ring)
    intake.start()

    places.wait_for(2)
    assert [claim.lease.shard_id for claim in places.claims] == [large[0], small]
    rings[0].wait()
    rings[1].wait()
    assert not any(ring.acknowledged.is_set() for ring in rings[2:])


def test_requests_whose_rings_led_to_the_claim_of_others_are_claimed_too(
    store: Store, intake: Intake, places: Places
) -> None:
    rung = [submit_online(store, f"large {number}", tenant_id="large") for number in range(5)]
    unrung = [submit_online(store, f"small {number}", tenant_id="small") for number in range(5)]
    places.online = 2
    for shard_id in rung:
        intake.online_rang(shard_id, 0, Ring())
    intake.start()
    places.wait_for(2)

    places.online = 100
    intake.online_place_freed()

    places.wait_for(10)
    assert {claim.lease.shard_id for claim in places.claims} == {*rung, *unrung}


@pytest.mark.parametrize("times", [replace(QUIET, next_kept_s=3600)])
def test_the_database_is_not_asked_which_are_next_for_every_free_place(
    store: Store, intake: Intake, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    ask = Claims.next_online
    monkeypatch.setattr(Claims, "next_online", lambda *arguments: looks.append(arguments) or ask(*arguments))
    for number in range(10):
        intake.online_rang(submit_online(store, str(number)), 0, Ring())
    places.online = 1
    intake.start()
    places.wait_for(1)

    for count in range(2, 10):
        places.online = count
        intake.online_place_freed()
        places.wait_for(count)

    assert len(looks) == 1


def test_a_ring_whose_request_another_worker_has_claimed_is_a_reason_to_look_for_others(
    store: Store, intake: Intake, places: Places
) -> None:
    taken, left = submit_online(store, "taken"), submit_online(store, "left")
    with store.transaction() as tx:
        tx.claims.online([taken], "worker-2", ["demo"], tx.now(), LEASE_TTL_S)
    intake.start()
    intake.online_rang(taken, 0, Ring())

    places.wait_for(1)
    assert places.claims[0].lease.shard_id == left


def test_requests_of_a_full_tenant_wait_until_it_has_room_and_others_are_claimed(
    store: Store, intake: Intake, places: Places
) -> None:
    large = [submit_online(store, f"large {number}", tenant_id="large") for number in range(3)]
    small, rings = submit_online(store, "small", tenant_id="small"), [Ring() for _ in range(4)]
    places.full_tenants = frozenset({"large"})
    intake.start()
    for shard_id, ring in zip([*large, small], rings, strict=True):
        intake.online_rang(shard_id, 0, ring)
    places.wait_for(1)
    for ring in rings:
        ring.wait()
    assert [claim.lease.shard_id for claim in places.claims] == [small]

    places.full_tenants = frozenset()
    intake.online_place_freed()

    places.wait_for(4)
    assert {claim.lease.shard_id for claim in places.claims} == {*large, small}


def test_bulk_is_claimed_until_the_places_are_full_and_the_subscription_paused(
    store: Store, intake: Intake, places: Places
) -> None:
    plan_bulk(store, "file-x", shards=3)
    places.bulk = 2
    subscription, token = Subscription(), Ring()
    intake.attach(subscription)
    intake.bulk_rang(0, token)
    intake.start()

    places.wait_for(2)
    token.wait()
    subscription.wait_until_paused()

    places.bulk = 3
    intake.bulk_place_freed()
    places.wait_for(3)
    assert {claim.shard.shard_no for claim in places.claims} == {0, 1, 2}


def test_an_online_request_does_not_wait_for_all_bulk_that_there_is_room_for(
    store: Store, intake: Intake, places: Places
) -> None:
    plan_bulk(store, "file-x", shards=5)
    shard_id, run_bulk = submit_online(store, "hello"), places.run_bulk

    def ring_first(claim: BulkClaim, claimed_at_s: float) -> None:
        if not places.claims:
            intake.online_rang(shard_id, 0, Ring())
        run_bulk(claim, claimed_at_s)

    places.run_bulk = ring_first  # type: ignore[method-assign]
    intake.start()

    places.wait_for(6)
    assert [claim.job.kind for claim in places.claims].index(JobKind.ONLINE) == 1


def test_tokens_fetched_ahead_are_given_back_once_the_subscription_is_paused(
    store: Store, intake: Intake, places: Places
) -> None:
    """One worker may fetch the rings that were meant to wake a fleet."""
    plan_bulk(store, "file-x", shards=3)
    places.bulk = 1
    subscription, tokens = Subscription(), [Ring() for _ in range(3)]
    was_paused: list[bool] = []
    give_back = tokens[-1].give_back
    tokens[-1].give_back = lambda: (was_paused.append(subscription.paused.is_set()), give_back())[1]  # type: ignore[method-assign]
    intake.attach(subscription)
    for token in tokens:
        intake.bulk_rang(0, token)
    intake.start()

    assert all(token.given_back.wait(10) for token in tokens[1:])
    tokens[0].wait()
    assert was_paused == [True], "it would fetch them again at once"
    assert not any(token.acknowledged.is_set() for token in tokens[1:])


@pytest.mark.parametrize("times", [replace(QUIET, look_s=0.01)])
def test_a_worker_that_leaves_some_bulk_to_others_gives_their_tokens_back_and_looks_without_rings(
    store: Store, intake: Intake, places: Places
) -> None:
    plan_bulk(store, "large", shards=2)
    places.room = Room(loaded_pairs=frozenset({(TENANT, "demo")}))
    subscription, token = Subscription(), Ring()
    intake.attach(subscription)
    intake.bulk_rang(0, token)
    intake.start()
    assert token.given_back.wait(10)
    subscription.wait_until_paused()

    small = plan_bulk(store, "small", rows=1)

    places.wait_for(1)
    assert [claim.job.id for claim in places.claims] == [small.id]


def test_a_worker_claims_bulk_once_it_has_more_room(
    store: Store, intake: Intake, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, claim = threading.Semaphore(0), Claims.bulk
    monkeypatch.setattr(
        Claims, "bulk", lambda *arguments, **options: (claim(*arguments, **options), tried.release())[0]
    )
    places.room = Room(full_models=frozenset({"demo"}))
    intake.start()
    assert tried.acquire(timeout=10)
    plan_bulk(store, "file-x", shards=2)

    intake.bulk_room_changed()  # to the same
    assert not tried.acquire(timeout=0.1)
    places.room = ROOM_FOR_ALL
    intake.bulk_room_changed()

    places.wait_for(2)


def test_a_reconnected_consumer_is_paused_again(store: Store, intake: Intake, places: Places) -> None:
    plan_bulk(store, "file-x")
    places.bulk = 1
    first = Subscription()
    intake.attach(first)
    intake.start()
    intake.bulk_rang(0, Ring())
    first.wait_until_paused()

    second = Subscription()
    intake.attach(second)

    assert second.paused.is_set()


def test_a_message_is_kept_while_the_database_is_away(
    store: Store, intake: Intake, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard_id, ring = submit_online(store, "hello"), Ring()
    failures = [DatabaseUnavailable(), DatabaseUnavailable()]
    real = store.transaction

    def flaky(**options):
        if failures:
            raise failures.pop()
        return real(**options)

    monkeypatch.setattr(store, "transaction", flaky)
    intake.start()
    intake.online_rang(shard_id, 0, ring)

    places.wait_for(1)
    ring.wait()
    assert not failures


def test_a_token_is_kept_when_its_shard_could_not_be_started(
    store: Store, intake: Intake, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_bulk(store, "file-x", shards=2)
    token, failures, run_bulk = Ring(), [RuntimeError("can't start new thread")], places.run_bulk

    def flaky(claim: BulkClaim, claimed_at_s: float) -> None:
        if failures:
            raise failures.pop()
        run_bulk(claim, claimed_at_s)

    monkeypatch.setattr(places, "run_bulk", flaky)
    intake.bulk_rang(0, token)
    intake.start()

    places.wait_for(1)
    token.wait()
    assert not failures


@pytest.mark.parametrize("times", [replace(QUIET, poll_s=0.01)])
def test_without_messages_the_database_is_asked(store: Store, intake: Intake, places: Places) -> None:
    intake.start()
    submit_online(store, "without a ring")
    plan_bulk(store, "file-x")

    places.wait_for(2)

    assert {type(claim) for claim in places.claims} == {OnlineClaim, BulkClaim}


@pytest.mark.parametrize("times", [replace(QUIET, poll_s=0.2)])
def test_rings_of_one_kind_do_not_keep_the_database_from_being_asked_for_the_other(
    store: Store, intake: Intake, places: Places
) -> None:
    intake.start()
    first = Ring()
    intake.bulk_rang(0, first)
    first.wait()  # there was nothing to claim
    plan_bulk(store, "file-x")
    claimed = threading.Event()

    def ring_on() -> None:
        while not claimed.wait(0.01):
            intake.online_rang("shard_unknown", 0, Ring())

    ringing = threading.Thread(target=ring_on)
    ringing.start()
    try:
        places.wait_for(1)
    finally:
        claimed.set()
        ringing.join()
    assert isinstance(places.claims[0], BulkClaim)


@pytest.mark.parametrize("times", [replace(QUIET, poll_s=0.01)])
def test_unreadable_messages_are_counted(
    store: Store, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = threading.Event()
    add = Counters.add
    monkeypatch.setattr(Counters, "add", lambda *arguments: (add(*arguments), counted.set()))
    intake.message_dropped()
    intake.message_dropped()
    intake.start()

    assert counted.wait(10)
    intake.stop()
    with store.snapshot() as tx:
        assert tx.counters.values() == {"messages_dropped": 2}


def test_after_stopping_nothing_is_claimed_or_acknowledged(
    store: Store, intake: Intake, places: Places
) -> None:
    intake.start()
    intake.stop()
    ring = Ring()
    intake.online_rang(submit_online(store, "hello"), 0, ring)

    assert not ring.acknowledged.is_set()
    assert places.claims == []
