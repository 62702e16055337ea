"""Statements that run all the time find their rows by index, however many shards there are.

The plans are SQLite's, which plans by the indexes alone: ANALYZE is never run on it.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from nightshift.jobs import JobKind
from nightshift.store import Store, Transaction
from nightshift.store.databases.database import Database
from nightshift.testing import MODEL, TTL_S, FakeClock, asked, claimed, planned

SHARDS = 10_000


@pytest.fixture(scope="module")
def large_store(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Ten thousand queued shards, and some leased."""
    path = tmp_path_factory.mktemp("large") / "nightshift.db"
    database = Database(f"sqlite:///{shutil.copy(sqlite_template, path)}")
    store = Store(database, clock=FakeClock())
    planned(store, shards=SHARDS)
    asked(store)
    claimed(store)
    yield store
    database.close()


@contextmanager
def recorded(database: Database) -> Iterator[list[tuple[str, Any]]]:
    """The statements that are executed in this block, with their parameters."""
    seen: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        seen.append((statement, parameters))

    event.listen(database._engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(database._engine, "before_cursor_execute", note)


def plan_of(store: Store, call: Callable[[Transaction], object]) -> Sequence[str]:
    """How SQLite looks for the rows of every statement in a call."""
    with store.transaction() as tx, recorded(store.database) as statements:
        call(tx)
        made = [found for found in statements if re.match("SELECT|UPDATE|DELETE", found[0])]
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
    "load.online": lambda tx: tx.load.online("default"),
    "load.oldest_online": lambda tx: tx.load.oldest_online(),
    "queued": lambda tx: tx.shards.queued(),
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
    plan = plan_of(large_store, lambda tx: tx.load.due_at(tx.now()))

    assert not [step for step in plan if step.startswith(("SCAN job", "SCAN delivery"))], plan


def test_a_heartbeat_touches_the_shards_it_names(large_store: Store) -> None:
    found = claimed(large_store)

    plan = plan_of(large_store, lambda tx: tx.leases.renew([found.lease], tx.now(), TTL_S))

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
