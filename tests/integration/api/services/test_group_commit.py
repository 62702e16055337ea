"""Online requests that arrive together are accepted in one transaction, and fail one by one."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from api.services.group_commit import BYTES_MAX, GROUP_MAX, Accepted, GroupCommit
from nightshift.errors import DatabaseUnavailable, QuotaExceeded, UnknownModel
from nightshift.jobs import JsonObject, NewJob
from nightshift.jobs.shard import Ring
from nightshift.lifecycle.catalogue import CachedCatalogue
from nightshift.lifecycle.submission import Submitter
from nightshift.process.settings import SubmissionSettings
from nightshift.store import Store, Transaction
from nightshift.store.databases.database import Database
from nightshift.tenants.quotas import Quotas
from nightshift.tenants.tenant import Tenant
from nightshift.tenants.vault import Vault
from tests.helpers.fakes import MODEL, a_new_request
from tests.integration.scheduler.scheduling import Place

pytestmark = pytest.mark.databases("postgresql")
T = TypeVar("T")

WAIT_MAX_S = 20.0
BODY: JsonObject = {"messages": []}


class GatedStore(Store):
    """The first transaction begins when the gate is opened, so that others arrive meanwhile."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.database)
        self.entered, self.opened = threading.Event(), threading.Event()
        self.fails_with: Exception | None = None
        self.transactions = 0

    def run(self, work: Callable[[Transaction], T], **options: Any) -> T:
        self.transactions += 1
        self.entered.set()
        assert self.opened.wait(WAIT_MAX_S)
        if self.fails_with is not None:
            raise self.fails_with
        return super().run(work, **options)


class Arrivals(list[Any]):
    """Says how many have arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = threading.Semaphore(0)

    def append(self, entry: Any) -> None:
        super().append(entry)
        self.arrived.release()


Sent = list[Sequence[Ring]]  # what was sent at a time


class Together:
    """Has one request wait in its transaction, and the others for it."""

    def __init__(self, store: Store, submitter: Submitter, sent: Sent) -> None:
        self.store = GatedStore(store)
        self.commit = GroupCommit(self.store, submitter, sent.append)
        self.commit._waiting = arrivals = Arrivals()
        self._arrived = arrivals.arrived

    def submit(self, *requests: NewJob, body: JsonObject = BODY) -> Sequence[Future[Accepted]]:
        """The outcomes of these requests, which share a transaction, after that of a first one."""
        with ThreadPoolExecutor(len(requests) + 1) as threads:
            first = threads.submit(self.commit.submit, a_new_request(), BODY)
            assert self.store.entered.wait(WAIT_MAX_S)
            self.commit._waiting = arrivals = Arrivals()  # the first has taken its group
            futures = []
            for new in requests:
                futures.append(threads.submit(self.commit.submit, new, body))
                assert arrivals.arrived.acquire(timeout=WAIT_MAX_S)
            self.store.opened.set()
            first.exception(WAIT_MAX_S)
            for future in futures:
                future.exception(WAIT_MAX_S)
        return futures


@pytest.fixture
def store(database: Database) -> Store:
    """Each database in turn."""
    return Store(database)


@pytest.fixture
def submitter(store: Store, tmp_path: Path) -> Submitter:
    place = Place.at(store, tmp_path)
    place.serve_model()
    return Submitter(place.locations, Vault("a key"), CachedCatalogue([]), SubmissionSettings())


@pytest.fixture
def sent() -> Sent:
    return []


@pytest.fixture
def together(store: Store, submitter: Submitter, sent: Sent) -> Together:
    return Together(store, submitter, sent)


def queued(store: Store, tenant_id: str = "default") -> int:
    with store.snapshot() as tx:
        counted = tx.holdings.total(tenant_id).online_requests
        assert tx.holdings.differences() == {}
        return counted


def test_those_that_arrive_during_a_transaction_share_the_next(store, together, sent):
    news = [a_new_request(tenant_id=name) for name in ("one", "two", "one", "three")]

    accepted = [future.result() for future in together.submit(*news)]

    assert together.store.transactions == 2
    assert [entry.submitted.job.id for entry in accepted] == [new.id for new in news]
    assert len({entry.submitted.shard_id for entry in accepted}) == 4
    assert [len(rings) for rings in sent] == [1, 4]
    assert {entry.position for entry in accepted} <= {1, 2}  # the first one's moment may be the same
    assert (queued(store, "one"), queued(store, "two"), queued(store)) == (2, 1, 1)
    with store.snapshot() as tx:
        bodies = [tx.shards.request_body("one", entry.submitted.shard_id or "") for entry in accepted]
        assert [body is None for body in bodies] == [False, True, False, True]
        assert tx.outbox.length() == 5


def test_one_that_is_refused_leaves_the_others_accepted(store, together):
    good, bad, other = together.submit(a_new_request(), a_new_request(model="no-such"), a_new_request())

    assert isinstance(bad.exception(), UnknownModel)
    assert good.result().submitted.job.model == other.result().submitted.job.model == MODEL
    assert together.store.transactions == 2
    assert queued(store) == 3


def test_together_a_tenants_requests_do_not_exceed_its_quota(store, together):
    with store.transaction() as tx:
        tx.tenants.insert(Tenant(id="small", description="", created_at=tx.now()))
        tx.tenants.limit("small", Quotas(queued_rows=2))

    futures = together.submit(*(a_new_request(tenant_id=name) for name in ["small"] * 4 + ["large"] * 2))

    refused = [future.exception() for future in futures if future.exception() is not None]
    assert [type(error) for error in refused] == [QuotaExceeded] * 2
    assert (queued(store, "small"), queued(store, "large")) == (2, 2)


def test_a_limit_counts_those_accepted_in_the_same_transaction(store, submitter, sent):
    limited = replace(submitter, settings=submitter.settings.model_copy(update={"online_queue_max": 3}))

    futures = Together(store, limited, sent).submit(*(a_new_request() for _ in range(5)))

    assert sum(future.exception() is None for future in futures) == 2
    assert queued(store) == 3


def test_one_that_cannot_be_stored_fails_alone(store, submitter, together, sent):
    stored = a_new_request()
    GroupCommit(store, submitter, sent.append).submit(stored, BODY)
    impossible = replace(a_new_request(), id=stored.id)

    good, bad, other = together.submit(a_new_request(), impossible, a_new_request())

    assert bad.exception() is not None
    assert good.exception() is None is other.exception()
    assert queued(store) == 4


def test_a_failed_commit_fails_all_and_is_not_tried_again(store, together):
    together.store.fails_with = DatabaseUnavailable("the answer to COMMIT was lost")

    futures = together.submit(a_new_request(), a_new_request())

    assert [type(future.exception()) for future in futures] == [DatabaseUnavailable] * 2
    assert together.store.transactions == 2
    together.store.fails_with = None
    assert together.commit.submit(a_new_request(), BODY).position == 1


def test_a_large_body_keeps_no_others_waiting(store, submitter, sent):
    gated = GatedStore(store)
    gated.opened.set()
    commit = GroupCommit(gated, submitter, sent.append)
    commit._waiting = arrivals = Arrivals()

    commit.submit(a_new_request(stored_bytes=BYTES_MAX + 1), {"text": "x" * BYTES_MAX})

    assert not arrivals.arrived.acquire(blocking=False)
    assert [len(rings) for rings in sent] == [1]
    assert queued(store) == 1


def test_under_load_each_request_is_accepted_and_rung_for_once(store, submitter, sent):
    commit = GroupCommit(store, submitter, sent.append)
    news = [a_new_request() for _ in range(4 * GROUP_MAX)]

    with ThreadPoolExecutor(2 * GROUP_MAX) as threads:
        accepted = list(threads.map(lambda new: commit.submit(new, BODY), news, timeout=60))

    assert [entry.submitted.job.id for entry in accepted] == [new.id for new in news]
    assert queued(store) == len(news)
    rung = [ring.shard_id for rings in sent for ring in rings]
    assert sorted(rung) == sorted(entry.submitted.shard_id for entry in accepted)
