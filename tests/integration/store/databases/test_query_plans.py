"""Statements that run all the time find their rows by index, however many shards there are.

The plans are SQLite's, which plans by the indexes alone: ANALYZE is never run on it.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api.access import Caller
from api.page import views
from api.page.view import PageRequest, View
from api.services.services import AppSettings
from nightshift.errors import NightshiftError
from nightshift.fleet.workers import WorkerState
from nightshift.jobs import JobKind, JobState
from nightshift.jobs.dead_letters import DeadLetterState
from nightshift.jobs.files import JobPart
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle.tenants import Administration
from nightshift.schedules.plans import Schedule
from nightshift.schedules.runs import RunState
from nightshift.store import Store, Transaction
from nightshift.store.databases.database import Database
from nightshift.store.jobs.listing import JobFilters
from nightshift.store.webhooks.deliveries import DeliveryFilters
from nightshift.tenants.audit import Actor
from nightshift.tenants.keys import Scope
from nightshift.tenants.quotas import NO_QUOTAS
from tests.helpers.fakes import (
    MODEL,
    STARTS_AT,
    TTL_S,
    FakeClock,
    a_dead_letter,
    a_delivery,
    a_job,
    a_schedule,
    a_schedule_run,
    a_worker,
    an_api_key,
    claimed,
    planned,
    submit,
    submit_online,
)
from tests.integration.store.databases.recording import recorded

SHARDS = 10_000


@pytest.fixture(scope="module")
def large_store(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Ten thousand queued shards, and some leased."""
    path = tmp_path_factory.mktemp("large") / "nightshift.db"
    database = Database(f"sqlite:///{shutil.copy(sqlite_template, path)}")
    store = Store(database, clock=FakeClock())
    planned(store, shards=SHARDS)
    submit_online(store)
    claimed(store)
    yield store
    database.close()


def plan_of(store: Store, call: Callable[[Transaction], object]) -> Sequence[str]:
    """How SQLite looks for the rows of every statement in a call."""
    with store.transaction() as tx, recorded(store.database) as statements:
        call(tx)
        made = [statement for statement in statements if re.match("SELECT|UPDATE|DELETE", statement[0])]
        assert made, "the call makes no statement"
        return [
            row.detail
            for statement, parameters in made
            for row in tx._connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]


BUSY_CALLS: dict[str, Callable[[Transaction], object]] = {
    "claim_bulk": lambda tx: tx.claims.bulk("worker_2", [MODEL, "other"], tx.now(), TTL_S),
    "claim_online": lambda tx: tx.claims.online(
        [*tx.claims.next_online([MODEL], tx.now(), limit=1), "shard_gone"], "w", [MODEL], tx.now(), TTL_S
    ),
    "queued_online": lambda tx: tx.claims.next_online([MODEL], tx.now(), limit=64),
    "expired": lambda tx: tx.leases.expired(tx.now(), limit=100),
    "of_worker": lambda tx: tx.leases.of_worker("worker_1", limit=100),
    "to_finalize": lambda tx: tx.jobs.to_finalize(limit=10),
    "unrung": lambda tx: tx.shards.unrung(tx.now(), timedelta(seconds=10), kind=JobKind.ONLINE, limit=64),
    "unrung_bulk": lambda tx: tx.shards.unrung(tx.now(), timedelta(0), kind=JobKind.BULK, limit=64),
    "stop_queued": lambda tx: tx.shards.stop_queued("job_gone"),
    "load.oldest_online": lambda tx: tx.load.oldest_online(),
    "queued": lambda tx: tx.shards.queued(),
    "waiting": lambda tx: tx.figures.waiting(),
}


@pytest.mark.parametrize("call", BUSY_CALLS.values(), ids=BUSY_CALLS.keys())
def test_no_statement_reads_all_shards(large_store: Store, call: Callable[[Transaction], object]) -> None:
    plan = plan_of(large_store, call)

    assert any(step.startswith("SEARCH shard") for step in plan), plan
    assert not [step for step in plan if step.startswith("SCAN shard")], plan


def test_a_claim_finds_the_next_shard_of_a_job_without_sorting_them(large_store: Store) -> None:
    plan = plan_of(large_store, BUSY_CALLS["claim_bulk"])

    by_index = [step for step in plan if "ix_shard_claim (job_id=? AND state=?)" in step]
    assert len(by_index) == 2, plan  # is there one? and: which one?
    # The jobs are sorted by class, then as they are served, then the best of them: a handful. The shards come
    # from the index in their order.
    assert sum("USE TEMP B-TREE FOR ORDER BY" in step for step in plan) == 3, plan


def test_whether_there_is_work_is_answered_by_indexes(large_store: Store) -> None:
    plan = plan_of(large_store, lambda tx: tx.pending.work(tx.now()))

    scans = [step for step in plan if step.startswith("SCAN")]
    assert not [step for step in scans if re.match(r"SCAN (job|shard|delivery|output_part)\b", step)], plan


def test_a_heartbeat_touches_the_shards_it_names(large_store: Store) -> None:
    claim = claimed(large_store)

    plan = plan_of(large_store, lambda tx: tx.leases.renew([claim.lease], tx.now(), TTL_S))

    assert not [step for step in plan if step.startswith("SCAN shard")], plan


def test_events_and_segments_are_read_from_where_the_reader_was(large_store: Store) -> None:
    job_id = claimed(large_store).job.id

    for call in (
        lambda tx: tx.events.after("default", job_id, 5, limit=10),
        lambda tx: tx.shards.segments_of_job("default", job_id, after_id=5, limit=10),
    ):
        plan = plan_of(large_store, call)
        assert not [step for step in plan if step.startswith("SCAN")], plan
        assert not [step for step in plan if "TEMP B-TREE" in step], plan


def test_places_in_the_queue_are_counted_by_its_index(large_store: Store) -> None:
    first = submit(large_store)
    later = replace(first, id="job_later", created_at=first.created_at + timedelta(seconds=1))

    plan = plan_of(large_store, lambda tx: tx.positions.places([first, later]))

    searches = [step for step in plan if step.startswith(("SEARCH job", "SCAN job"))]
    assert len(searches) == 2, plan
    assert all("USING COVERING INDEX ix_job_queue (kind=? AND" in step for step in searches), plan


TODAY = STARTS_AT.date()
A_LETTER = a_dead_letter(a_job(), "shard_1")
LISTS: dict[str, Callable[[Transaction], object]] = {
    "workers": lambda tx: tx.workers.page(list(WorkerState), limit=51, after=a_worker()),
    "models": lambda tx: tx.workers.models_page(limit=51, after="demo"),
    "leased by a worker": lambda tx: tx.shards.leased_by("default", "worker_1", 101),
    "attempts": lambda tx: tx.deliveries.last_attempts("default", "dlv_1", 50),
    "keys": lambda tx: tx.keys.page("default", limit=51, after=an_api_key()),
    "usage": lambda tx: tx.usage.list("default", limit=101, since=TODAY, until=TODAY, after=(TODAY, "demo")),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_page_of_a_list_is_read_from_an_index_in_its_order(large_store: Store, name: str) -> None:
    plan = plan_of(large_store, LISTS[name])

    assert [step for step in plan if step.startswith("SEARCH")], plan
    assert not [step for step in plan if re.match(r"SCAN (?!found|anon|\()", step)], plan
    if name == "workers":  # the first of each state, which are then sorted together
        assert len([step for step in plan if "ix_worker_listing (state=? AND" in step]) == len(WorkerState), (
            plan
        )
    else:
        assert "USE TEMP B-TREE FOR ORDER BY" not in plan, plan


# Of these there may be very many, whatever the page shows of them.
LARGE = {
    *("api_key", "dead_row", "delivery", "delivery_attempt", "event"),
    *("job", "segment", "shard", "usage", "worker"),
}
SCAN = re.compile(r"SCAN (\w+)")
RUNNING = (JobState.RUNNING,)
VIEWS = [
    *((view, {}) for view in views.VIEWS),
    *(
        (view, query)
        for view in views.VIEWS
        for path, query in {
            "/ui/dead_letters": {"job": "JOB"},
            "/ui/deliveries": {"job": "JOB"},
            "/ui/jobs": {"state": "failed", "model": "demo", "priority": "background"},
            "/ui/workers": {"show": "ended"},
        }.items()
        if view.path == path
    ),
]


@pytest.mark.parametrize(("view", "query"), VIEWS, ids=lambda view: getattr(view, "path", None))
def test_no_view_of_the_page_reads_all_there_is_of_anything(
    large_store: Store, view: View, query: dict[str, str]
) -> None:
    shown = shown_by(large_store)
    path = {name: shown[name] for name in re.findall(r"{(\w+)}", view.path)}
    query = {name: shown["job_id"] if value == "JOB" else value for name, value in query.items()}
    caller = Caller("key", "default", frozenset(Scope), PriorityClass.INTERACTIVE, NO_QUOTAS)
    services: Any = SimpleNamespace(settings=AppSettings())
    asked_for = PageRequest(caller=caller, services=services, path=path, query=query)

    plan = plan_of(large_store, lambda tx: view.load(tx, asked_for, tx.now()))

    scanned = {scan[1] for step in plan if (scan := SCAN.match(step))}
    assert not scanned & LARGE, plan


def shown_by(store: Store) -> dict[str, str]:
    """One of each that a view may name."""
    with store.transaction() as tx:
        [job] = tx.jobs.list("default", limit=1, filters=JobFilters(kind=JobKind.BULK, states=RUNNING))
        [shard] = tx.shards.of_job(job.id, limit=1)
        with suppress(NightshiftError):  # it is there already
            Administration(tx, Actor("tests")).create_tenant("default")
        letter, delivery = replace(A_LETTER, job_id=job.id, shard_id=shard.id), a_delivery(job)
        worker, key = a_worker(), an_api_key(tenant_id="default")
        if tx.dead_letters.get("default", letter.id) is None:
            tx.dead_letters.insert(letter)
        tx.deliveries.insert(delivery)
        tx.workers.register(worker)
        tx.keys.insert(key)
        schedule = a_schedule(tenant_id="default", name="shown")
        tx.schedules.insert(schedule)
    return {
        "job_id": job.id,
        "letter_id": letter.id,
        "delivery_id": delivery.id,
        "worker_id": worker.id,
        "key_id": key.id,
        "schedule_name": schedule.name,
    }


def test_what_is_heard_of_is_found_among_workers_that_have_ended(large_store: Store) -> None:
    for call in (
        lambda tx: tx.workers.list(heartbeat_since=STARTS_AT),
        lambda tx: tx.workers.alive(STARTS_AT),
        lambda tx: tx.workers.mark_lost(STARTS_AT),
    ):
        plan = plan_of(large_store, call)
        assert not [step for step in plan if step.startswith("SCAN worker")], plan


MANY = [f"job_{number}" for number in range(200)]
OF_NAMED_JOBS: dict[str, Callable[[Transaction], object]] = {
    "lock_ended": lambda tx: tx.deletions.lock_ended(MANY),
    "mark": lambda tx: tx.deletions.mark(MANY, JobPart.RESULTS, STARTS_AT),
    "unfinished_jobs": lambda tx: tx.references.unfinished_jobs(MANY),
    "still_to_plan": lambda tx: tx.jobs.still_to_plan(MANY[:50]),
}


@pytest.mark.parametrize("call", OF_NAMED_JOBS.values(), ids=OF_NAMED_JOBS.keys())
def test_named_jobs_are_found_by_their_ids(large_store: Store, call: Callable[[Transaction], object]) -> None:
    [step] = plan_of(large_store, call)

    assert re.fullmatch(r"SEARCH job USING .*\(id=\?\)", step)


A_DELIVERY = a_delivery(a_job())
DEAD, A_JOB, AN_ENDPOINT = DeadLetterState.DEAD, {"job_id": "job_1"}, {"endpoint_id": "whe_1"}
A_DAY = {"created_from": STARTS_AT, "created_before": STARTS_AT + timedelta(days=1)}
# Of a noun, what filters a page of it.
PAGES: list[tuple[str, dict[str, Any]]] = [
    *(("dead_row", wanted) for wanted in ({}, {"state": DEAD}, A_JOB, {"state": DEAD, **A_JOB})),
    *(("delivery", wanted) for wanted in ({}, {"state": DEAD}, AN_ENDPOINT, A_DAY)),
    ("delivery", {"state": DEAD, **AN_ENDPOINT, **A_DAY}),
]


@pytest.mark.parametrize(("table", "wanted"), PAGES)
def test_a_page_is_read_in_the_order_of_the_index_of_its_filters(
    large_store: Store, table: str, wanted: dict[str, Any]
) -> None:
    def page(tx: Transaction) -> object:
        if table == "dead_row":
            return tx.dead_letters.list("default", limit=20, after=A_LETTER, **wanted)
        filters = DeliveryFilters(**wanted)
        return tx.deliveries.list("default", limit=20, after=A_DELIVERY, filters=filters)

    [step] = plan_of(large_store, page)

    assert step.startswith(f"SEARCH {table} USING INDEX"), step
    for name in ("endpoint_id", "state"):
        assert (f"{name}=?" in step) is (name in wanted), step


@pytest.fixture(scope="module")
def scheduled(large_store: Store) -> Sequence[Schedule]:
    """Schedules of one tenant, the second after the first, with runs that have ended and one under way."""
    first = a_schedule()
    second = a_schedule(name="second", plan={"cron": None, "after": first.name}, next_at=None)
    with large_store.transaction() as tx:
        for schedule in (first, second):
            tx.schedules.insert(schedule)
            tx.schedules.insert_run(a_schedule_run(schedule))
    return [first, second]


OF_SCHEDULES: dict[str, Callable[[Transaction, Schedule], object]] = {
    "due": lambda tx, one: tx.schedules.due(tx.now(), 100),
    "to_check": lambda tx, one: tx.schedules.to_check(tx.now(), 100),
    "pending": lambda tx, one: tx.pending.work(tx.now()),
    "end_run_of_job": lambda tx, one: tx.schedules.end_run_of_job("job_1", RunState.FAILED, None, tx.now()),
    "wake": lambda tx, one: tx.schedules.wake(a_schedule_run(one), tx.now()),
    "under_way": lambda tx, one: tx.schedules.under_way(one.id),
    "followed": lambda tx, one: tx.schedules.followed(one.tenant_id),
    "followers": lambda tx, one: tx.schedules.followers(one.tenant_id, one.name),
    "last_runs": lambda tx, one: tx.schedules.last_runs([one.id]),
    "last_output": lambda tx, one: tx.schedules.last_output(one.id),
    "delete_old_runs": lambda tx, one: tx.schedules.delete_old_runs(one.id, 1000),
}


@pytest.mark.parametrize("call", OF_SCHEDULES.values(), ids=OF_SCHEDULES.keys())
def test_schedules_and_their_runs_are_found_by_indexes(
    large_store: Store, scheduled: Sequence[Schedule], call: Callable[[Transaction, Schedule], object]
) -> None:
    plan = plan_of(large_store, lambda tx: call(tx, scheduled[0]))

    assert any("schedule" in step for step in plan), plan
    assert not [step for step in plan if re.match(r"SCAN schedule(_run)?$", step)], plan
