"""The counters of what tenants hold are what there is, after anything that may happen."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Text, cast, func, or_, select, union_all

from nightshift.errors import QuotaExceeded
from nightshift.jobs import Counts, Job, JobKind, JobState, JsonObject, Webhook
from nightshift.jobs.files import Deletion, JobPart, UploadStatus
from nightshift.jobs.json_text import json_bytes
from nightshift.lifecycle.admission import admit_stored
from nightshift.lifecycle.controls import JobChanges, change, delete_job
from nightshift.lifecycle.transitions import (
    cancel,
    commit_segment,
    finish,
    plan,
    record_answer,
    submit_bulk,
    submit_online,
)
from nightshift.store import Store, Transaction, tables
from nightshift.store.databases.database import Database
from nightshift.store.jobs.jobs import RUNNABLE_STATES
from nightshift.tenants.holdings import Holding
from nightshift.tenants.quotas import Quotas
from tests.helpers.databases import emptied
from tests.helpers.fakes import (
    MODEL,
    WORKER,
    a_file,
    a_new_job,
    a_new_request,
    a_segment,
    a_shard,
    a_spec,
    an_answer,
    an_upload,
    an_upload_part,
)
from tests.integration.store.databases.recording import plan_of
from tests.integration.store.racing import both_databases

TENANTS = ("acme", "globex")


class _RolledBack(Exception):
    """Ends a transaction without a commit."""


class Tenants:
    """Tenants' belongings, and what may be done with them next."""

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
        upload = an_upload(tenant_id=TENANTS[number % 2])
        tx.uploads.insert(upload)
        self.uploads.append((upload.tenant_id, upload.id))

    def add(self, tx: Transaction, number: int) -> None:
        if self.uploads:
            tenant, upload_id = self.uploads[number % len(self.uploads)]
            upload = tx.uploads.get(tenant, upload_id)
            if upload is not None and upload.status is UploadStatus.PENDING:
                tx.uploads.insert_part(an_upload_part(upload, size_bytes=number))

    def ask(self, tx: Transaction, number: int) -> None:
        body: JsonObject = {"messages": ["é" * number]}
        new = a_new_request(
            tenant_id=TENANTS[number % 2], tokens_queued=number, stored_bytes=json_bytes(body)
        )
        self.jobs.append(submit_online(tx, new, body, tx.now()).job.id)

    def submit(self, tx: Transaction, number: int) -> None:
        template: JsonObject | None = {"model": MODEL, "input": "{{text}}"} if number % 3 else None
        metadata = {"note": "é" * number} if number % 4 else None
        webhook = Webhook("https://example.com/" + "x" * number, ()) if number % 5 else None
        spec = a_spec(template=template, metadata=metadata, webhook=webhook)
        new = a_new_job(tenant_id=TENANTS[number % 2], spec=spec, stored_bytes=spec.stored_bytes)
        self.jobs.append(submit_bulk(tx, new, tx.now()).job.id)

    def change(self, tx: Transaction, number: int) -> None:
        job = self.some_job(tx, number)
        metadata = {"more": "x" * number} if number % 3 else None
        if job is not None and job.state in RUNNABLE_STATES and job.stop_reason is None:
            change(tx, job, JobChanges(metadata=metadata, sets_metadata=True), tx.now())

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

    def age(self, tx: Transaction, number: int) -> None:
        """Deletes the request and the answer of online jobs that have ended."""
        ended = self.ended(tx, JobKind.ONLINE)
        tx.deletions.delete_bodies(ended)
        tx.deletions.mark(ended, JobPart.RESULTS, tx.now())

    def trim(self, tx: Transaction, number: int) -> None:
        """Deletes a page of the results of a bulk job that has ended, as the scheduler does."""
        for job_id in self.ended(tx, JobKind.BULK)[number:]:
            owner = tx.jobs.fetch(job_id).tenant_id
            tx.deletions.delete_segments(Deletion(1, owner, job_id, JobPart.RESULTS), 1)

    def forget(self, tx: Transaction, number: int) -> None:
        """Deletes online jobs that have ended."""
        tx.deletions.delete_online(self.ended(tx, JobKind.ONLINE))

    def remove(self, tx: Transaction, number: int) -> None:
        """Deletes a job as its owner does, and all that belongs to it as the scheduler does."""
        job = self.some_job(tx, number)
        if job is not None and delete_job(tx, job, tx.now()):
            [deletion] = tx.deletions.waiting(job.tenant_id, 1)
            for delete in (
                tx.deletions.delete_segments,
                tx.deletions.delete_events,
                tx.deletions.delete_shards,
            ):
                delete(deletion, 1000)
            tx.deletions.finish(deletion)

    def ended(self, tx: Transaction, kind: JobKind) -> list[str]:
        jobs = [job for id in self.jobs for name in TENANTS if (job := tx.jobs.get(name, id))]
        return [job.id for job in jobs if job.kind is kind and job.state.is_terminal]

    def some_job(self, tx: Transaction, number: int) -> Job | None:
        """None: there is none, or it was rolled back."""
        if not self.jobs:
            return None
        id = self.jobs[number % len(self.jobs)]
        return next((job for name in TENANTS if (job := tx.jobs.get(name, id))), None)

    def end(self, tx: Transaction, number: int) -> None:
        if self.uploads:
            tx.uploads.end(*self.uploads[number % len(self.uploads)], UploadStatus.CANCELLED)


FILES = ("insert", "delete", "begin", "add", "end")
JOBS = (
    *("ask", "submit", "change", "plan", "commit", "answer", "cancel", "finish"),
    *("age", "trim", "forget", "remove"),
)
ACTIONS = (*FILES, *JOBS, "submit", "plan", "commit", "commit")
CHOICES = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 9), st.booleans())


def differences(store: Store) -> dict[str, Holding]:
    with store.snapshot() as tx:
        return dict(tx.holdings.differences())


def stored_of_jobs(store: Store) -> int:
    """Bytes that all tenants store by their counters, without files and uploads."""
    with store.snapshot() as tx:
        stored = sum(tx.holdings.total(name).stored_bytes for name in TENANTS)
        for table in (tables.file, tables.upload_part):
            sizes = select(func.coalesce(func.sum(table.c.size_bytes), 0))
            stored -= tx._connection.execute(sizes).scalar_one()
    return stored


def bytes_of_jobs(store: Store) -> int:
    """The bodies and answers that are in the database, what tenants wrote into specs, and the segments."""
    with store.snapshot() as tx:
        columns = (cast(table.c.body, Text) for table in (tables.request, tables.result))
        bodies = tx._connection.execute(union_all(*map(select, columns))).scalars()
        stored = sum(len(body.encode()) for body in bodies)
        stored += tx._connection.execute(select(func.sum(tables.segment.c.size_bytes))).scalar_one() or 0
        job = tables.job.c
        counts = or_(job.kind == JobKind.BULK, job.results_deleted_at.is_(None))  # with its body
        for spec in tx._connection.execute(select(job.spec).where(counts)).scalars():
            written = (spec.get("template"), spec.get("metadata"), spec.get("webhook", {}).get("url"))
            stored += sum(json_bytes(part) for part in written if part is not None)
        return stored


@settings(max_examples=40)
@given(st.lists(CHOICES, max_size=60))
@example([(name, 0, True) for name in ("submit", "change", "plan", "commit", "finish", "trim")])
@example([(name, 1, True) for name in ("submit", "plan", "commit", "commit", "finish", "remove")])
def test_the_counters_are_what_there_is_after_any_sequence(
    one_sqlite_database: Database, choices: list[tuple[str, int, bool]]
) -> None:
    tenants = Tenants(Store(emptied(one_sqlite_database)))
    for choice in choices:
        tenants.do(choice)
    assert differences(tenants.store) == {}
    assert stored_of_jobs(tenants.store) == bytes_of_jobs(tenants.store)


@both_databases
def test_counters_add_up_over_transactions_at_the_same_time(store: Store) -> None:
    def insert(number: int) -> None:
        with store.transaction() as tx:
            tx.files.insert(a_file(tenant_id="acme", size_bytes=number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(insert, range(40)))

    with store.snapshot() as tx:
        assert tx.holdings.total("acme") == Holding(stored_files=40, stored_bytes=sum(range(40)))
    assert differences(store) == {}


@both_databases
@pytest.mark.parametrize(("quotas", "stored"), [({"stored_files": 3}, 3), ({"stored_bytes": 45}, 4)])
def test_racing_transactions_do_not_exceed_a_quota(
    store: Store, quotas: dict[str, int | None], stored: int
) -> None:
    def insert(_: int) -> bool:
        try:
            with store.transaction() as tx:
                admit_stored(tx, "acme", Quotas.from_json(quotas))
                tx.files.insert(a_file(tenant_id="acme", size_bytes=10))
        except QuotaExceeded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(insert, range(24)))

    assert sum(taken) == stored
    with store.snapshot() as tx:
        assert tx.holdings.total("acme").stored_files == stored


def test_what_was_stored_without_being_counted_is_found(store: Store) -> None:
    """As a process of the release before does it."""
    with store.transaction() as tx:
        tx.files.insert(a_file(tenant_id="acme", size_bytes=10))
        tx.holdings._added.clear()

    assert differences(store) == {"acme": Holding(stored_files=1, stored_bytes=10)}


def test_an_answered_request_counts_with_its_body_and_its_answer(store: Store) -> None:
    tenants = Tenants(store)
    for name in ("ask", "submit", "answer"):
        tenants.do((name, 1, True))

    with store.snapshot() as tx:
        assert tx._connection.execute(select(func.count()).select_from(tables.result)).scalar_one() == 1
    assert stored_of_jobs(store) == bytes_of_jobs(store) > 0
    for name in ("age", "finish", "remove"):
        tenants.do((name, 1, True))
    assert stored_of_jobs(store) == bytes_of_jobs(store) == 0
    assert differences(store) == {}


def test_what_jobs_store_is_summed_up_without_reading_the_jobs(sqlite_database: Database) -> None:
    with sqlite_database.read() as connection:
        plan = plan_of(connection, "SELECT tenant_id, sum(stored_bytes) FROM job")

    assert "USING COVERING INDEX ix_job_repeat" in plan


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
        held = tx.holdings.total("acme")
    assert (held.queued_rows, held.queued_tokens) == (6 + 1, 55)
    assert differences(store) == {}
