"""Two schedulers, one database: one of them leads. The database's clock and theirs are both the test's."""

import threading

from nightshift.jobs.leases import SCHEDULER_DUTY
from nightshift.store import Store
from nightshift.store.databases.database import Database
from nightshift.store.databases.migrate import upgrade
from scheduler.runtime.leadership import Elector, LeadershipConfig
from tests.helpers.fakes import FakeClock
from tests.integration.store.databases.recording import recorded
from tests.integration.store.racing import both_databases

WAIT_MAX_S = 60
CONFIG = LeadershipConfig(ttl_s=15, attempt_s=3, trust_s=10)


def elector(store: Store, clock: FakeClock, name: str) -> Elector:
    return Elector(store, name, CONFIG, clock=lambda: clock.now.timestamp())


def test_a_leader_says_what_stands_still_until_another_leads(store: Store, clock: FakeClock) -> None:
    first = Elector(store, "first", CONFIG, lambda: clock.now.timestamp(), stalled=lambda: "planning")
    first.attempt()
    first.attempt()
    with store.snapshot() as tx:
        said = tx.leadership.leader(SCHEDULER_DUTY)
    clock.advance(seconds=CONFIG.ttl_s)
    elector(store, clock, "second").attempt()
    with store.snapshot() as tx:
        later = tx.leadership.leader(SCHEDULER_DUTY)

    assert said is not None
    assert later is not None
    assert (said.leader_id, said.stalled) == ("first", "planning")
    assert (later.leader_id, later.stalled) == ("second", None)


def test_a_leader_that_renews_goes_on_leading(store: Store, clock: FakeClock) -> None:
    first, second = elector(store, clock, "first"), elector(store, clock, "second")
    for _ in range(20):
        assert first.attempt()
        assert not second.attempt()
        clock.advance(seconds=3)
    assert first.is_leading


@both_databases
def test_a_standby_keeps_no_writer_waiting(store: Store, clock: FakeClock) -> None:
    elector(store, clock, "first").attempt()
    with recorded(store.database) as statements:
        assert not elector(store, clock, "second").attempt()
    assert statements
    assert not [words for words, _ in statements if words.startswith(("UPDATE", "INSERT", "BEGIN IMM"))]


def test_a_leader_stops_trusting_itself_before_another_can_replace_it(store: Store, clock: FakeClock) -> None:
    first, second = elector(store, clock, "first"), elector(store, clock, "second")
    first.attempt()
    clock.advance(seconds=CONFIG.trust_s)
    assert not first.is_leading
    assert not second.attempt()


def test_a_leader_that_overslept_cannot_take_back_what_another_has(store: Store, clock: FakeClock) -> None:
    first, second = elector(store, clock, "first"), elector(store, clock, "second")
    first.attempt()
    clock.advance(seconds=CONFIG.ttl_s - 1)
    assert not second.attempt()
    clock.advance(seconds=1)
    assert second.attempt()
    assert not first.attempt()
    first.resign()  # of a term that is not its own any more
    assert second.attempt()
    assert not first.attempt()


def test_a_leader_that_overslept_goes_on_if_it_was_not_replaced(store: Store, clock: FakeClock) -> None:
    first = elector(store, clock, "first")
    first.attempt()
    clock.advance(hours=1)
    assert not first.is_leading
    assert first.attempt()


def test_a_slow_renewal_shortens_the_trust_it_gives(store: Store, clock: FakeClock) -> None:
    asked_s = clock.now.timestamp()
    answered = asked_s + CONFIG.trust_s - 1  # the round trip took nearly as long as trust lasts
    times = iter([asked_s, answered, answered, answered + 1])
    slow = Elector(store, "slow", CONFIG, clock=lambda: next(times))
    assert slow.attempt()
    assert slow.is_leading
    assert not slow.is_leading  # a second later


def test_an_elector_told_to_stop_resigns(store: Store, clock: FakeClock) -> None:
    first, second = elector(store, clock, "first"), elector(store, clock, "second")
    first.attempt()
    stop = threading.Event()
    stop.set()
    first.run(stop)
    assert not first.is_leading
    assert second.attempt()


class Watched(Elector):
    """Says when it has tried to lead, and when it leads."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, "watched", LeadershipConfig(ttl_s=3600, attempt_s=0.02, trust_s=1800))
        self.tried = threading.Semaphore(0)
        self.leads = threading.Event()

    def attempt(self) -> bool:
        try:
            is_leading = super().attempt()
        finally:
            self.tried.release()
        if is_leading:
            self.leads.set()
        return is_leading


@both_databases
def test_an_elector_that_came_before_the_schema_leads_once_it_is_there(empty_database_url: str) -> None:
    """As while the migrations still run, or a backup is restored."""
    database = Database(empty_database_url)
    elector, stop = Watched(Store(database)), threading.Event()
    electing = threading.Thread(target=elector.run, args=(stop,))
    electing.start()
    try:
        assert elector.tried.acquire(timeout=WAIT_MAX_S)
        assert elector.tried.acquire(timeout=WAIT_MAX_S), "it gave up after its first try"

        upgrade(database)

        assert elector.leads.wait(WAIT_MAX_S)
    finally:
        stop.set()
        electing.join(WAIT_MAX_S)
        database.close()
