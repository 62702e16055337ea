"""Cutting ended shards into parts: each once, also by two at once, and without a look at those cut before."""

from dataclasses import replace

import pytest
from sqlalchemy import select

from nightshift.errors import Conflicted
from nightshift.jobs import Face, Job, JobState, StopReason
from nightshift.jobs.leases import Lease
from nightshift.jobs.part import CutLimits, NewPart, PartState
from nightshift.jobs.planning import PlanCursor
from nightshift.lifecycle import cutting, transitions
from nightshift.store import Store, Transaction, tables
from nightshift.store.databases.database import Database
from nightshift.store.shards.cuts import OutputProgress
from tests.helpers.fakes import FakeClock, a_shard, claimed, commit_rows, completed, planned, submit
from tests.integration.store.databases.recording import copy_rows, plan_of, recorded
from tests.integration.store.racing import at_once, both_databases, in_background, wait_until_blocked
from tests.integration.store.shards.parts_ground import SMALL, cut, end, parts, ranges, with_ended
from tests.integration.store.watching import request_stop, stop_held

WHOLE = CutLimits(part_bytes=10**12, part_rows=10**9)
MANY = 20_000


def assigned(store: Store, job: Job) -> list[int | None]:
    """The first shard of the part that each of a job's shards is in."""
    shard = tables.shard
    with store.database.read() as connection:
        wanted = select(shard.c.part_first_shard).where(shard.c.job_id == job.id).order_by(shard.c.shard_no)
        return list(connection.execute(wanted).scalars())


def test_ended_shards_become_parts_and_the_others_wait(store: Store) -> None:
    job = with_ended(store, 7, ended=[0, 1, 2, 4, 5])

    assert cut(store, job) == cutting.CutPass(2, after_no=None)

    assert ranges(store, job) == [(0, 1), (4, 5)]
    assert assigned(store, job) == [0, 0, None, None, 4, 4, None]
    assert cut(store, job).parts == 0
    end(store, [3, 6])
    assert cut(store, job).parts == 2
    assert ranges(store, job) == [(0, 1), (2, 3), (4, 5), (6, 6)]


def test_a_run_waits_for_its_neighbours_in_other_pages(store: Store) -> None:
    job = with_ended(store, 4, ended=[0, 1])

    with store.snapshot() as tx:
        [one, other] = tx.cuts.page(job.id, limit=1).shards
    assert (one.is_free, other.is_ended, other.is_assigned) == (True, False, False)
    assert cut(store, job, WHOLE).parts == 0
    assert cut(store, job, WHOLE, after_no=0).parts == 0


def test_pages_go_on_at_the_run_that_was_not_cut(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "SHARDS_PER_CUT", 3)
    job = with_ended(store, 9, ended=[0, 2, 3, 4, 6, 7])
    limits = CutLimits(part_bytes=800, part_rows=1000, part_shards=2)

    first = cut(store, job, limits)
    assert first == cutting.CutPass(1, after_no=3)
    assert first.after_no is not None
    second = cut(store, job, limits, after_no=first.after_no)

    assert second == cutting.CutPass(1, after_no=7)
    assert cut(store, job, limits, after_no=7) == cutting.CutPass(0, after_no=None)
    assert ranges(store, job) == [(2, 3), (6, 7)]


def test_many_parts_are_cut_in_several_transactions(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "PARTS_PER_CUT", 2)
    job = with_ended(store, 5, ended=range(5))
    limits = CutLimits(part_bytes=1, part_rows=1)

    assert cut(store, job, limits) == cutting.CutPass(2, after_no=1)
    assert cut(store, job, limits, after_no=1) == cutting.CutPass(2, after_no=3)
    assert cut(store, job, limits, after_no=3) == cutting.CutPass(1, after_no=None)

    assert ranges(store, job) == [(number, number) for number in range(5)]


def test_a_part_without_rows_has_nothing_to_be_written(store: Store) -> None:
    job = planned(store, shards=2)
    with store.transaction() as tx:
        for _ in range(2):
            lease = tx.claims.bulk("w", ["demo"], tx.now(), 30.0)
            assert lease is not None
            assert tx.shards.complete(lease.lease, rows_total=0)

    assert cut(store, job).parts == 1

    [part] = parts(store, job)
    assert (part.state, part.files, part.rows) == (PartState.WRITTEN, (), 0)
    with store.snapshot() as tx:
        assert cutting.is_written(tx, job)


def test_an_output_is_written_once_all_ended_shards_are_in_written_parts(store: Store) -> None:
    job = with_ended(store, 2, ended=[0, 1])

    def is_written() -> bool:
        with store.snapshot() as tx:
            return cutting.is_written(tx, job)

    assert not is_written()
    cut(store, job)
    assert not is_written()
    with store.transaction() as tx:
        claim = tx.parts.claim("s", tx.now(), 30.0)
        assert claim is not None
        assert tx.parts.record_written(claim.lease, [])
    assert is_written()


# -- whether there is something to cut -------------------------------------------------------------------


def progress(store: Store, job: Job) -> OutputProgress | None:
    with store.snapshot() as tx:
        return tx.cuts.under_way().get(job.id)


def test_a_job_is_cut_again_when_a_shard_has_ended_and_not_before(store: Store) -> None:
    job = with_ended(store, 6, ended=[0])
    seen = [progress(store, job)]

    claim = claimed(store)
    commit_rows(store, claim.lease, rows=4)
    assert progress(store, job) == seen[-1]

    completed(store, claim.lease, rows_total=4)
    seen.append(progress(store, job))
    with store.transaction() as tx:
        tx.shards.fail_held(claimed_in(tx))
    seen.append(progress(store, job))
    with store.transaction() as tx:
        held = claimed_in(tx)
    request_stop(store, job, StopReason.CANCELLED)
    seen.append(progress(store, job))
    stop_held(store, held)
    seen.append(progress(store, job))

    assert None not in seen
    assert len(set(seen)) == len(seen)
    with store.transaction() as tx:
        tx.jobs.mark_finalizing(job.id, tx.now())
    assert progress(store, job) not in (None, *seen)


def test_a_job_is_cut_again_when_there_will_be_no_more_shards(store: Store) -> None:
    job = submit(store)
    with store.transaction() as tx:
        cursor = PlanCursor(page=1, shards=1)
        transitions.plan(tx, job, "demo", [a_shard()], tx.now(), rows_estimated=1, next=cursor)
    claimed(store)
    before = progress(store, job)
    with store.transaction() as tx:
        transitions.plan(tx, tx.jobs.fetch(job.id), "demo", [], tx.now())

    assert before is not None
    assert progress(store, job) == replace(before, is_complete=True)


def test_each_part_that_is_written_is_counted(store: Store) -> None:
    job = with_ended(store, 4, ended=[0, 1])
    cut(store, job)
    before = progress(store, job)
    with store.transaction() as tx:
        claim = tx.parts.claim("s", tx.now(), 30.0)
        assert claim is not None
        assert tx.parts.record_written(claim.lease, [])
        assert not tx.parts.record_written(claim.lease, [])
    with store.transaction() as tx:
        for _ in range(2):
            assert tx.shards.complete(claimed_in(tx), rows_total=0)
    cut(store, job)  # a part without rows is written as it is cut

    after = progress(store, job)
    assert before is not None
    assert after is not None
    assert (before.parts_written, after.parts_written) == (0, 2)


def test_jobs_of_openais_routes_and_jobs_that_have_not_begun_or_have_ended_are_not_cut(store: Store) -> None:
    with_ended(store, 1, ended=[0], face=Face.OPENAI)
    ended = with_ended(store, 1, ended=[0])
    with store.transaction() as tx:
        transitions.finish(tx, ended, JobState.FAILED, tx.now())
    planned(store, shards=2)

    with store.snapshot() as tx:
        assert tx.cuts.under_way() == {}


def claimed_in(tx: Transaction) -> Lease:
    claim = tx.claims.bulk("w", ["demo"], tx.now(), 30.0)
    assert claim is not None
    return claim.lease


# -- two at once -----------------------------------------------------------------------------------------


@both_databases
def test_two_that_cut_at_once_put_each_shard_in_one_part(store: Store) -> None:
    job = with_ended(store, 9, ended=range(9))

    made = at_once(*[lambda: cut(store, job).parts] * 4)

    assert sum(made) == 5
    assert ranges(store, job) == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 8)]
    assert assigned(store, job) == [0, 0, 2, 2, 4, 4, 6, 6, 8]


def test_a_cut_that_comes_second_takes_nothing(postgresql_database: Database, clock: FakeClock) -> None:
    store = Store(postgresql_database, clock=clock)
    job = with_ended(store, 2, ended=range(2))

    with store.transaction() as tx:
        cutting.cut(tx, job, WHOLE, tx.now(), is_complete=True)
        with in_background(lambda: cut(store, job)) as second:
            wait_until_blocked(postgresql_database)
            tx._connection.commit()

    assert second.result().parts == 0
    assert ranges(store, job) == [(0, 1)]


@pytest.mark.parametrize("part", [NewPart(0, 2, 1, 1), NewPart(1, 1, 1, 1)], ids=["not ended", "taken"])
def test_shards_that_are_not_free_are_not_cut(store: Store, part: NewPart) -> None:
    job = with_ended(store, 3, ended=[0, 1])
    if part.first_shard:
        cut(store, job)
    before = assigned(store, job)

    def assign(tx: Transaction) -> None:
        if not tx.cuts.assign(job.id, part):
            raise Conflicted

    with pytest.raises(Conflicted):
        store.run(assign)

    assert assigned(store, job) == before


# -- a large job -----------------------------------------------------------------------------------------


def make_large(store: Store) -> Job:
    """All its shards have ended and are in parts, but for the last five: three ended, one leased, one not."""
    job = planned(store, shards=1)
    copy_rows(store, tables.shard, MANY - 1, id="'s' || number", shard_no="number")
    with store.database.write() as connection:
        for change in (
            "UPDATE shard SET state = 'done', part_first_shard = 0",
            "UPDATE shard SET part_first_shard = NULL, rows_total = 4, result_bytes = 400 "
            f"WHERE shard_no >= {MANY - 5}",
            f"UPDATE shard SET state = 'queued' WHERE shard_no >= {MANY - 2}",
            "ANALYZE shard" if not store.database.is_sqlite else "SELECT 1",  # autovacuum does, in a minute
        ):
            connection.exec_driver_sql(change)
    claimed(store)
    return job


@pytest.mark.databases("sqlite", "postgresql")  # which plan differently
def test_shards_that_were_cut_before_are_not_read_again(own_database: Database, clock: FakeClock) -> None:
    store = Store(own_database, clock=clock)
    job = make_large(store)

    with store.transaction() as tx, recorded(store.database) as statements:
        tx.cuts.under_way()
        tx.parts.unwritable()
        assert cut_in(tx, job).parts == 1
        assert tx.cuts.has_uncut(job.id)
        plans = [plan_of(tx._connection, *said) for said in list(statements) if "INSERT" not in said[0]]

    of_progress, of_problems, of_page, of_neighbours, of_part, of_rest = plans
    assert "shard" not in of_progress
    assert "output_part" not in of_progress
    if store.database.is_sqlite:  # PostgreSQL reads a table that is empty
        assert "ix_output_part_problem" in of_problems
    assert "ix_output_part_of_job" not in of_problems
    assert ranges(store, job) == [(MANY - 5, MANY - 4)]
    assert "ix_shard_to_cut" in of_page
    assert "ix_shard_to_cut" in of_rest
    assert "shard_no" in of_neighbours
    assert "shard_no" in of_part
    assert not [plan for plan in plans[2:] if "Seq Scan" in plan or "SCAN shard" in plan], plans


def cut_in(tx: Transaction, job: Job) -> cutting.CutPass:
    return cutting.cut(tx, job, SMALL, tx.now(), is_complete=True)
