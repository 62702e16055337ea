"""The tables of allowed transitions in `nightshift/jobs/`, held against what the statements allow."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import update

from nightshift.jobs import (
    JOB_TRANSITIONS,
    SHARD_TRANSITIONS,
    JobState,
    RecordedAnswer,
    ShardState,
    StopReason,
)
from nightshift.jobs.leases import Lease
from nightshift.store import Store, Transaction, tables
from nightshift.store.shards.leases import ExpiredLease
from tests.helpers.fakes import MODEL, STARTS_AT, an_answer, planned, submit, submit_online

JOB_STATEMENTS: dict[str, Callable[[Transaction, str], Any]] = {
    "mark_started": lambda tx, job_id: tx.jobs.mark_started(job_id, tx.now(), None),
    "mark_finalizing": lambda tx, job_id: tx.jobs.mark_finalizing(job_id, tx.now()),
    **{
        f"finish as {state}": lambda tx, job_id, state=state: tx.jobs.finish(job_id, state, tx.now())
        for state in JobState
        if state.is_terminal
    },
    "stop": lambda tx, job_id: tx.jobs.stop(job_id, StopReason.EXPIRED, tx.now()),
    "record_page": lambda tx, job_id: tx.jobs.record_page(
        job_id, 0, model=MODEL, rows_total=1, rows_estimated=1, now=tx.now()
    ),
}


@pytest.mark.parametrize("before", JobState)
def test_statements_move_jobs_along_the_table_and_everywhere_it_allows(
    store: Store, before: JobState
) -> None:
    reached = set()
    for statement in JOB_STATEMENTS.values():
        job_id = submit(store).id
        with store.database.write() as connection:
            connection.execute(update(tables.job).where(tables.job.c.id == job_id).values(state=before))
        with store.transaction() as tx:
            statement(tx, job_id)
            reached.add(tx.jobs.fetch(job_id).state)

    assert reached - {before} == JOB_TRANSITIONS[before]


LEASE = {"term": 3, "worker_id": "worker_1", "lease_until": STARTS_AT}


@dataclass(frozen=True)
class Held:
    """A lease, as its holder has it and as the scheduler finds it."""

    lease: Lease
    expired: ExpiredLease


SHARD_STATEMENTS: dict[str, Callable[[Transaction, Held], Any]] = {
    "claim_bulk": lambda tx, held: tx.claims.bulk("worker_2", [MODEL], tx.now(), 30),
    "complete": lambda tx, held: tx.shards.complete(held.lease, rows_total=0),
    "record_result": lambda tx, held: tx.shards.record_result(
        held.lease, RecordedAnswer.from_answer(an_answer())
    ),
    "stop_held": lambda tx, held: tx.shards.stop_held(held.lease),
    "fail_held": lambda tx, held: tx.shards.fail_held(held.lease),
    "stop_queued": lambda tx, held: tx.shards.stop_queued(held.lease.job_id),
    "hand_back": lambda tx, held: tx.leases.hand_back(held.lease),
    "return_broken": lambda tx, held: tx.leases.return_broken(held.lease, tx.now()),
    "delay": lambda tx, held: tx.leases.delay(held.lease, tx.now()),
    "renew": lambda tx, held: tx.leases.renew([held.lease], tx.now(), 30),
    "requeue": lambda tx, held: tx.leases.requeue(held.expired),
    "end as failed": lambda tx, held: tx.leases.end(held.expired, ShardState.FAILED),
    "end as stopped": lambda tx, held: tx.leases.end(held.expired, ShardState.STOPPED),
}


@pytest.mark.parametrize("before", ShardState)
def test_statements_move_shards_along_the_table_and_everywhere_it_allows(
    store: Store, before: ShardState
) -> None:
    reached = set()
    for statement in SHARD_STATEMENTS.values():
        job_id = planned(store).id
        held = shard_in(store, job_id, before)
        with store.transaction() as tx:
            statement(tx, held)
            [shard] = tx.shards.of_job(job_id, limit=2)
            reached.add(shard.state)
            tx.jobs.stop(job_id, StopReason.FAILED, tx.now())  # out of the next claim's way

    assert reached - {before} == SHARD_TRANSITIONS[before]


@pytest.mark.parametrize("before", ShardState)
def test_an_online_claim_takes_a_queued_shard_only(store: Store, before: ShardState) -> None:
    submitted = submit_online(store)
    shard_in(store, submitted.job.id, before)
    assert submitted.shard_id is not None

    with store.transaction() as tx:
        taken = tx.claims.online([submitted.shard_id], "worker_2", [MODEL], tx.now(), 30)

    assert len(taken) == (before is ShardState.QUEUED)


def shard_in(store: Store, job_id: str, state: ShardState) -> Held:
    """Puts a job's only shard into a state, and returns the lease it was held under before, if any."""
    shard = tables.shard
    with store.database.write() as connection:
        of_job = update(shard).where(shard.c.job_id == job_id)
        connection.execute(of_job.values(state=ShardState.LEASED, **LEASE))
    with store.transaction() as tx:
        [expired] = tx.leases.of_job(job_id, limit=1)
    with store.database.write() as connection:
        connection.execute(of_job.values(state=state))
    lease = Lease(expired.shard_id, job_id, expired.tenant_id, expired.term, expired.worker_id, STARTS_AT)
    return Held(lease, expired)
