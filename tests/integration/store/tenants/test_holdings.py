"""The counters of what tenants hold are what there is, after anything that may happen."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.errors import QuotaExceeded
from nightshift.jobs import Counts, Job, JobKind, JobState
from nightshift.jobs.files import FilePurpose
from nightshift.jobs.ids import new_id
from nightshift.jobs.uploads import Upload, UploadPart, UploadStatus
from nightshift.lifecycle.admission import admit_stored
from nightshift.lifecycle.transitions import (
    cancel,
    commit_segment,
    finish,
    plan,
    record_answer,
    submit_bulk,
    submit_online,
)
from nightshift.store import Store, Transaction
from nightshift.tenants.holdings import Holding
from nightshift.tenants.quotas import Quotas
from nightshift.testing import (
    MODEL,
    STARTS_AT,
    WORKER,
    a_file,
    a_new_job,
    a_new_request,
    a_segment,
    a_shard,
    an_answer,
)
from tests.databases import migrated_sqlite

TENANTS = ("acme", "globex")


class _RolledBack(Exception):
    """Ends a transaction without a commit."""


class Tenants:
    """What tenants have, and what may be done with it next."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.files: list[tuple[str, str]] = []  # tenant and id
        self.uploads: list[tuple[str, str]] = []
        self.jobs: list[str] = []

    def do(self, choice: tuple[str, int, bool]) -> None:
        name, number, commits = choice
        try:
            with self.store.transaction() as tx:
                getattr(self, name)(tx, number)
                if not commits:
                    raise _RolledBack
        except _RolledBack:
            pass

    def insert(self, tx: Transaction, number: int) -> None:
        file = a_file(tenant_id=TENANTS[number % 2], size_bytes=number)
        tx.files.insert(file)
        self.files.append((file.tenant_id, file.id))

    def delete(self, tx: Transaction, number: int) -> None:
        if self.files:
            tx.files.delete(*self.files[number % len(self.files)])  # perhaps deleted or rolled back before

    def begin(self, tx: Transaction, number: int) -> None:
        upload = an_upload(TENANTS[number % 2])
        tx.uploads.insert(upload)
        self.uploads.append((upload.tenant_id, upload.id))

    def add(self, tx: Transaction, number: int) -> None:
        if self.uploads:
            tenant, upload_id = self.uploads[number % len(self.uploads)]
            upload = tx.uploads.get(tenant, upload_id)
            if upload is not None and upload.status is UploadStatus.PENDING:
                tx.uploads.insert_part(a_part(tenant, upload_id, number))

    def ask(self, tx: Transaction, number: int) -> None:
        new = a_new_request(tenant_id=TENANTS[number % 2], tokens_queued=number)
        self.jobs.append(submit_online(tx, new, {"messages": []}, tx.now()).job.id)

    def submit(self, tx: Transaction, number: int) -> None:
        new = a_new_job(tenant_id=TENANTS[number % 2])
        self.jobs.append(submit_bulk(tx, new, tx.now()).job.id)

    def plan(self, tx: Transaction, number: int) -> None:
        job = self.some_job(tx, number)
        if job is not None and job.kind is JobKind.BULK:
            rows = {"rows_total": number} if number % 2 else {"rows_estimated": number}
            plan(tx, job, MODEL, [a_shard()], tx.now(), tokens_estimated=number, **rows)

    def commit(self, tx: Transaction, number: int) -> None:
        """Sometimes more rows than were estimated."""
        claim = tx.claims.bulk(WORKER, [MODEL], tx.now(), 60.0)
        if claim is not None:
            segment = a_segment(claim.lease, rows=number + 1, failed=number // 2)
            commit_segment(tx, claim.lease, segment, tx.now(), rows_total=None)

    def answer(self, tx: Transaction, number: int) -> None:
        waiting = tx.claims.next_online([MODEL], tx.now(), limit=1)
        for claim in tx.claims.online(waiting, WORKER, [MODEL], tx.now(), 60.0):
            record_answer(tx, claim, an_answer(), tx.now())

    def cancel(self, tx: Transaction, number: int) -> None:
        job = self.some_job(tx, number)
        if job is not None:
            cancel(tx, job, tx.now())

    def finish(self, tx: Transaction, number: int) -> None:
        """Also one that has ended."""
        job = self.some_job(tx, number)
        if job is not None:
            tx.jobs.mark_finalizing(job.id, tx.now())
            finish(tx, job, JobState.FAILED, tx.now(), counts=Counts(number, 0, number))

    def some_job(self, tx: Transaction, number: int) -> Job | None:
        """None: there is none, or it was rolled back."""
        if not self.jobs:
            return None
        id = self.jobs[number % len(self.jobs)]
        return next((job for name in TENANTS if (job := tx.jobs.get(name, id))), None)

    def end(self, tx: Transaction, number: int) -> None:
        if self.uploads:
            tx.uploads.end(*self.uploads[number % len(self.uploads)], UploadStatus.CANCELLED)


def an_upload(tenant_id: str) -> Upload:
    return Upload(
        id=new_id("upload"),
        tenant_id=tenant_id,
        purpose=FilePurpose.BATCH,
        filename="in.jsonl",
        size_bytes=100,
        created_at=STARTS_AT,
        expires_at=STARTS_AT + timedelta(hours=1),
        file_expires_after_s=None,
        status=UploadStatus.PENDING,
    )


def a_part(tenant_id: str, upload_id: str, size_bytes: int) -> UploadPart:
    return UploadPart(
        id=new_id("part"),
        upload_id=upload_id,
        tenant_id=tenant_id,
        size_bytes=size_bytes,
        sha256="0" * 64,
        created_at=STARTS_AT,
    )


FILES = ("insert", "delete", "begin", "add", "end")
JOBS = ("ask", "submit", "plan", "commit", "answer", "cancel", "finish")
ACTIONS = (*FILES, *JOBS, "submit", "plan", "commit", "commit")
CHOICES = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 9), st.booleans())


def differences(store: Store) -> dict[str, Holding]:
    with store.snapshot() as tx:
        return dict(tx.holdings.differences())


@settings(max_examples=40)
@given(st.lists(CHOICES, max_size=60))
def test_the_counters_are_what_there_is_after_any_sequence(choices: list[tuple[str, int, bool]]) -> None:
    with TemporaryDirectory(prefix="ns-") as folder:
        database = migrated_sqlite(Path(folder) / "nightshift.db")
        tenants = Tenants(Store(database))
        for choice in choices:
            tenants.do(choice)
        assert differences(tenants.store) == {}
        database.close()


def test_counters_add_up_over_transactions_at_the_same_time(store: Store) -> None:
    def insert(number: int) -> None:
        with store.transaction() as tx:
            tx.files.insert(a_file(tenant_id="acme", size_bytes=number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(insert, range(40)))

    with store.snapshot() as tx:
        assert tx.holdings.of("acme") == Holding(stored_files=40, stored_bytes=sum(range(40)))
    assert differences(store) == {}


@pytest.mark.parametrize(("quotas", "stored"), [({"stored_files": 3}, 3), ({"stored_bytes": 45}, 4)])
def test_racing_transactions_do_not_exceed_a_quota(
    store: Store, quotas: dict[str, int | None], stored: int
) -> None:
    def insert(_: int) -> bool:
        try:
            with store.transaction() as tx:
                admit_stored(tx, "acme", Quotas.of(quotas))
                tx.files.insert(a_file(tenant_id="acme", size_bytes=10))
        except QuotaExceeded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(insert, range(24)))

    assert sum(taken) == stored
    with store.snapshot() as tx:
        assert tx.holdings.of("acme").stored_files == stored


def test_what_was_stored_without_being_counted_is_found(store: Store) -> None:
    """As a process of the release before does it."""
    with store.transaction() as tx:
        tx.files.insert(a_file(tenant_id="acme", size_bytes=10))
        tx.holdings._added.clear()

    assert differences(store) == {"acme": Holding(stored_files=1, stored_bytes=10)}


def test_what_is_queued_is_counted_until_it_has_ended(store: Store) -> None:
    with store.transaction() as tx:
        job = submit_bulk(tx, a_new_job(tenant_id="acme"), tx.now()).job
        plan(tx, job, MODEL, [a_shard()], tx.now(), rows_total=10, tokens_estimated=50)
        submit_online(tx, a_new_request(tenant_id="acme", tokens_queued=5), {"messages": []}, tx.now())
    with store.transaction() as tx:
        claim = tx.claims.bulk(WORKER, [MODEL], tx.now(), 60.0)
        assert claim is not None
        commit_segment(tx, claim.lease, a_segment(claim.lease, rows=4), tx.now(), rows_total=None)

    with store.snapshot() as tx:
        held = tx.holdings.of("acme")
    assert (held.queued_rows, held.queued_tokens) == (6 + 1, 55)
    assert differences(store) == {}
