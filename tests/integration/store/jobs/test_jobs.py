"""Finding jobs: by tenant in pages, and what the service's duties look for."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Integer

from nightshift.jobs import Counts, Face, Job, JobKind, JobState, StopReason, Usage, Webhook
from nightshift.jobs.priorities import PriorityClass
from nightshift.store import Store, tables
from nightshift.store.databases.database import Database
from nightshift.store.jobs.jobs import Backlog
from nightshift.store.jobs.listing import JobFilters, listing
from tests.helpers.fakes import (
    MODEL,
    STARTS_AT,
    FakeClock,
    a_spec,
    claimed,
    commit_rows,
    planned,
    submit,
    submit_online,
)
from tests.integration.store.databases.recording import plan_of
from tests.integration.store.racing import at_once, both_databases


def ids(jobs: Any) -> list[str]:
    return [job.id for job in jobs]


def test_jobs_are_listed_and_found_to_be_planned_without_their_templates_alone(store: Store) -> None:
    spec = a_spec(template={"messages": "'é' \\ \" {{text}}"}, metadata={"a": "b\\n"}, name="n")
    job = submit(store, spec=spec)
    without = [replace(job, spec=replace(spec, template=None))]

    with store.snapshot() as tx:
        assert tx.jobs.fetch(job.id) == job
        assert tx.jobs.list("default", limit=10) == without
        assert tx.jobs.to_plan(limit=10) == without
        assert tx.jobs.first_to_plan(limit=10, of_each=1) == without


@pytest.mark.parametrize("text", ["\0", "\ud800", "\U0001f600"])
def test_no_text_in_a_job_keeps_others_from_being_listed_or_planned(store: Store, text: str) -> None:
    jobs = [submit(store, spec=a_spec(metadata={"m": said}, template={"t": text})) for said in ("n", text)]

    with store.snapshot() as tx:
        assert sorted(ids(tx.jobs.list("default", limit=10))) == sorted(ids(jobs))
        assert sorted(ids(tx.jobs.to_plan(limit=10))) == sorted(ids(jobs))


def test_pages_show_every_job_once_newest_first_however_many_share_a_moment(
    store: Store, clock: FakeClock
) -> None:
    jobs = []
    for n in range(8):
        jobs.append(submit(store))
        clock.advance(seconds=n % 3 // 2)  # three by three at the same moment

    with store.snapshot() as tx:
        pages = [tx.jobs.list("default", limit=3)]
        while pages[-1]:
            pages.append(tx.jobs.list("default", limit=3, after=pages[-1][-1]))

    in_order = sorted(jobs, key=lambda job: (job.created_at, job.id), reverse=True)
    assert [job for page in pages for job in page] == in_order


INDEXES = {
    "ix_job_newest": {},
    "ix_job_of_priority": {"priority": PriorityClass.BACKGROUND},
    "ix_job_of_model": {"model": MODEL},
    "ix_job_of_name": {"name": "nightly"},
    "ix_job_listing": {"kind": JobKind.BULK},
    "ix_job_batches": {"kind": JobKind.BULK, "face": Face.OPENAI},
    "ix_job_of_state": {"states": (JobState.FAILED,)},
}
PERIOD = {"created_from": STARTS_AT, "created_before": STARTS_AT + timedelta(days=1)}


@pytest.mark.databases("sqlite", "postgresql")  # which plan differently, like the next
@pytest.mark.parametrize("period", [{}, PERIOD], ids=["ever", "period"])
@pytest.mark.parametrize("is_first_page", [True, False])
def test_a_page_of_jobs_is_read_in_the_order_of_an_index_without_sorting(
    store: Store, clock: FakeClock, period: dict[str, Any], is_first_page: bool
) -> None:
    clock.advance(seconds=12 * 3600)
    after = None if is_first_page else submit(store)
    several = (JobState.FAILED, JobState.EXPIRED)
    of_name = {"name": "nightly", "states": several, "model": MODEL, "kind": JobKind.BULK}

    plans = explained(store.database, after, *(wanted | period for wanted in [*INDEXES.values(), of_name]))

    for index, plan in zip([*INDEXES, "ix_job_"], plans, strict=True):
        assert index in plan
        assert "TEMP B-TREE" not in plan  # SQLite's word for a sort
        assert "Sort" not in plan


INDEXES_OF_SEVERAL_STATES = {"ix_job_listing", "ix_job_of_priority", "ix_job_of_model"}


@pytest.mark.databases("sqlite", "postgresql")
def test_the_other_filters_are_compared_in_the_index_that_one_reads(store: Store) -> None:
    others = {"kind": JobKind.ONLINE, "priority": PriorityClass.BACKGROUND, "model": MODEL}
    several = (JobState.FAILED, JobState.EXPIRED)

    without, of_one, of_two, alone = explained(
        store.database,
        None,
        *({**others, "states": states} for states in ((), (JobState.FAILED,), several)),
        {"states": several, **PERIOD},
    )

    for plan in (without, of_one, of_two):
        if store.database.is_sqlite:  # whose plan does not say what is compared where
            indexes = set(re.findall(r"SEARCH job USING INDEX (ix_\w+)", plan))
            assert len(indexes) == 1
            assert indexes <= (INDEXES_OF_SEVERAL_STATES if plan is without else {"ix_job_of_state"})
        compared_in_table = " ".join(re.findall(r"Filter: [^']*", plan))
        assert not re.search("kind|priority|model", compared_in_table), plan
    assert alone.count("ix_job_of_state") == 2


def explained(database: Database, after: Job | None, *filters: dict[str, Any]) -> list[str]:
    """How the database would read pages of jobs from a table too large to read whole."""
    with database.write() as connection:
        if not database.is_sqlite:
            fill(connection)
            for way in ("seqscan", "bitmapscan", "sort", "incremental_sort"):
                connection.exec_driver_sql(f"SET LOCAL enable_{way} = off")
        pages = [listing("default", 21, after, JobFilters(**wanted)) for wanted in filters]
        literal = {"literal_binds": True}
        return [
            plan_of(connection, str(page.compile(dialect=connection.dialect, compile_kwargs=literal)))
            for page in pages
        ]


def fill(connection: Connection) -> None:
    """Jobs of many kinds, and statistics of them: PostgreSQL chooses a plan by what is in the table."""
    kinds: dict[str, list[str]] = {
        "tenant_id": ["default", "another"],
        "model": [MODEL, "b", "c", "d", "e"],
        "name": ["nightly", "second", "third"],
        "kind": list(JobKind),
        "face": list(Face),
        "state": list(JobState),
        "priority": list(PriorityClass),
    }
    starts_at_ms = int(STARTS_AT.timestamp() * 1_000)
    counters = [column.name for column in tables.job.c if isinstance(column.type, Integer)]
    chosen = [
        f"(ARRAY{[str(value) for value in values]})[floor(random() * {len(values)} + 1)]"
        for values in kinds.values()
    ]
    connection.exec_driver_sql("SELECT setseed(0.5)")
    connection.exec_driver_sql(
        f"""
        INSERT INTO job (id, fingerprint, spec, created_at, deadline_at, {", ".join([*kinds, *counters])})
        SELECT 'job-' || n, 'f', '{{}}', {starts_at_ms} + n * 60000, {starts_at_ms},
               {", ".join([*chosen, *("0" for _ in counters)])}
        FROM generate_series(1, 1400) AS n
        """
    )
    connection.exec_driver_sql("ANALYZE job")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"kind": JobKind.ONLINE}, ["online"]),
        ({"face": Face.OPENAI}, ["batch"]),
        ({"states": (JobState.RUNNING,)}, ["running"]),
        ({"states": (JobState.RUNNING, JobState.QUEUED), "kind": JobKind.BULK}, ["slow", "batch", "running"]),
        ({"model": MODEL, "created_from": STARTS_AT + timedelta(seconds=1)}, ["online", "slow", "batch"]),
        ({"created_from": STARTS_AT, "created_before": STARTS_AT + timedelta(seconds=1)}, ["running"]),
        ({"name": "nightly"}, ["slow"]),
        ({"name": "nightly", "states": (JobState.RUNNING, JobState.FAILED)}, []),
        ({"priority": PriorityClass.BACKGROUND}, ["slow"]),
        ({"kind": JobKind.BULK, "states": (JobState.QUEUED,)}, ["slow", "batch"]),
        ({"kind": JobKind.ONLINE, "states": (JobState.RUNNING,)}, []),
    ],
)
def test_jobs_are_listed_by_what_they_are(
    store: Store, clock: FakeClock, wanted: dict[str, Any], expected: list[str]
) -> None:
    makers: dict[str, Callable[[], Job]] = {
        "running": lambda: planned(store),
        "batch": lambda: submit(store, face=Face.OPENAI),
        "slow": lambda: submit(store, spec=a_spec(name="nightly"), priority=PriorityClass.BACKGROUND),
        "online": lambda: submit_online(store).job,
    }
    made = {}
    for name, make in makers.items():
        made[name] = make().id
        clock.advance(seconds=1)
    claimed(store)

    with store.snapshot() as tx:
        assert ids(tx.jobs.list("default", limit=10, filters=JobFilters(**wanted))) == [
            made[name] for name in expected
        ]


def test_an_accepted_job_is_what_is_read_back(store: Store, clock: FakeClock) -> None:
    """It is not read back when it is accepted: the client waits."""
    spec = a_spec(
        template={"model": "demo", "messages": [{"role": "user", "content": "{{text}} – ☂"}]},
        id_column="doc_id",
        format="parquet",
        max_runtime_s=3600,
        retry_on_interrupt=False,
        capacity="spot",
        max_error_rate=0.05,
        webhook=Webhook("https://example.com/hook", ("job.failed",)),
        metadata={"team": "search"},
        name="nightly",
        run_date="2026-01-31",
    )
    clock.advance(seconds=0.123)  # times keep their milliseconds
    bulk = submit(store, spec=spec, webhook_secret=b"\x00encrypted\xff", model=None)
    accepted = [bulk, submit(store, face=Face.OPENAI), submit_online(store).job]

    with store.snapshot() as tx:
        assert [tx.jobs.get("default", job.id) for job in accepted] == accepted
        assert tx.jobs.webhook_secret(bulk.id) == b"\x00encrypted\xff"


def test_a_request_made_again_is_recognised_while_it_is_recent(store: Store, clock: FakeClock) -> None:
    first = submit(store, fingerprint="f" * 64)
    clock.advance(minutes=1)
    second = submit(store, fingerprint="f" * 64)
    submit(store, fingerprint="e" * 64)

    with store.snapshot() as tx:
        newest = tx.jobs.find_repeat("default", "f" * 64, first.created_at)
        assert newest == second
        assert tx.jobs.find_repeat("default", "f" * 64, second.created_at + timedelta(seconds=1)) is None
        assert tx.jobs.find_repeat("default", "d" * 64, first.created_at) is None


def test_a_file_is_read_by_a_job_of_its_own_tenant_until_the_job_ends(store: Store, clock: FakeClock) -> None:
    older = submit(store, spec=a_spec(input="file-one"))
    clock.advance(seconds=1)
    younger = planned(store, spec=a_spec(input="file-one"))
    submit(store, tenant_id="other", spec=a_spec(input="file-two"))
    submit_online(store)

    with store.transaction() as tx:
        assert tx.jobs.reading("default", "file-one") == older
        tx.jobs.finish(older.id, JobState.FAILED, tx.now())
        assert tx.jobs.reading("default", "file-one") == younger
        tx.jobs.finish(younger.id, JobState.CANCELLED, tx.now())
        assert tx.jobs.reading("default", "file-one") is None
        assert tx.jobs.reading("default", "file-two") is None


def test_jobs_are_planned_the_most_urgent_first(store: Store, clock: FakeClock) -> None:
    slow = submit(store, priority=PriorityClass.BACKGROUND)
    clock.advance(seconds=1)
    first = submit(store)
    clock.advance(seconds=1)
    second = submit(store)
    planned(store)
    submit_online(store)
    stopped = submit(store)
    with store.transaction() as tx:
        tx.jobs.stop(stopped.id, StopReason.CANCELLED, tx.now())

        assert ids(tx.jobs.to_plan(limit=10)) == [first.id, second.id, slow.id]
        assert ids(tx.jobs.to_plan(limit=2)) == [first.id, second.id]
        assert ids(tx.jobs.to_plan(limit=2, after=first)) == [second.id, slow.id]
        assert ids(tx.jobs.to_plan(limit=2, after=slow)) == []


@pytest.mark.parametrize(
    ("limits", "is_past"),
    [
        ({}, False),
        ({"max_error_rate": 0.5}, False),
        ({"max_error_rate": 0.25}, True),
        ({"max_error_rate": 0.0}, True),
        ({"max_failed_rows": 2}, False),
        ({"max_failed_rows": 1}, True),
        ({"max_failed_rows": 0}, True),
        ({"max_tokens_total": 2**53 - 1}, False),
        ({"max_tokens_total": 1}, True),
        ({"max_failed_rows": 5, "max_tokens_total": 1, "max_error_rate": 1.0}, True),
    ],
)
def test_failed_rows_and_tokens_have_limits(store: Store, limits: dict[str, float], is_past: bool) -> None:
    job = planned(store, spec=a_spec(**limits))
    commit_rows(store, claimed(store).lease, rows=4, failed=2)

    with store.snapshot() as tx:
        assert ids(tx.jobs.past_limits(limit=10)) == ([job.id] if is_past else [])


def test_jobs_without_a_limit_do_not_hide_one_that_has_passed_its_own(store: Store, clock: FakeClock) -> None:
    for _ in range(3):
        planned(store)
        commit_rows(store, claimed(store).lease, rows=4, failed=4)
        clock.advance(seconds=1)
    job = planned(store, spec=a_spec(max_error_rate=0.1))
    commit_rows(store, claimed(store).lease, rows=4, failed=1)

    with store.snapshot() as tx:
        assert ids(tx.jobs.past_limits(limit=1)) == [job.id]


def test_jobs_are_assembled_the_longest_waiting_first(store: Store, clock: FakeClock) -> None:
    jobs = [planned(store, shards=0) for _ in range(3)]
    with store.transaction() as tx:
        for job in (jobs[2], jobs[0], jobs[1]):
            assert tx.jobs.mark_finalizing(job.id, clock.advance(seconds=1))
            assert tx.jobs.mark_finalizing(job.id, clock.now) is False

        waiting = tx.jobs.to_assemble(limit=10)
        assert ids(waiting) == [jobs[2].id, jobs[0].id, jobs[1].id]
        assert ids(tx.jobs.to_assemble(limit=10, after=waiting[0])) == [jobs[0].id, jobs[1].id]
        assert tx.jobs.to_finalize(limit=10) == []


def test_the_backlog_counts_what_has_not_ended_by_kind_and_state(store: Store) -> None:
    planned(store)
    for _ in range(2):
        submit(store)
    submit_online(store)
    claimed(store)

    with store.snapshot() as tx:
        assert sorted(tx.jobs.backlog(), key=str) == [
            Backlog(JobKind.BULK, JobState.QUEUED, 2),
            Backlog(JobKind.BULK, JobState.RUNNING, 1),
            Backlog(JobKind.ONLINE, JobState.QUEUED, 1),
        ]


@both_databases
def test_progress_of_many_workers_at_once_is_not_lost(store: Store) -> None:
    job = planned(store)

    def add() -> None:
        for _ in range(10):
            with store.transaction() as tx:
                tx.jobs.add_progress(job.id, Counts(None, 2, 1), Usage(3, 2, 1))

    at_once(add, add, add, add)

    with store.snapshot() as tx:
        after = tx.jobs.fetch(job.id)
        assert after.counts == Counts(None, 80, 40)
        assert after.usage == Usage(120, 80, 40)
