"""Parts of outputs: who may write one, and that a late owner writes nothing."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from nightshift.jobs import JobState
from nightshift.jobs.leases import Term
from nightshift.jobs.part import OutputPart, PartLease, PartState
from nightshift.lifecycle import transitions
from nightshift.store import Store, Transaction
from nightshift.store.databases.database import Database
from tests.helpers.fakes import STARTS_AT, TTL_S, FakeClock
from tests.integration.store.databases.recording import recorded
from tests.integration.store.racing import at_once, both_databases
from tests.integration.store.shards.parts_ground import (
    a_part_file,
    an_upload,
    claim_part,
    claimed_part,
    cut,
    with_ended,
)

Write = Callable[[Transaction, PartLease], bool]

WRITES: dict[str, Write] = {
    "record_uploads": lambda tx, lease: tx.parts.record_uploads(lease, [an_upload(9)]),
    "record_written": lambda tx, lease: tx.parts.record_written(lease, [a_part_file()]),
    "hand_back": lambda tx, lease: tx.parts.hand_back(lease),
    "renew": lambda tx, lease: bool(tx.parts.renew([lease], tx.now(), TTL_S)),
}
every_write = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())


def write_as(store: Store, lease: PartLease, write: Write) -> bool:
    with store.transaction() as tx:
        return write(tx, lease)


def expire(store: Store) -> int:
    with store.transaction() as tx:
        return tx.parts.expire(tx.now())


def only_part(store: Store, part: OutputPart) -> OutputPart:
    with store.snapshot() as tx:
        [same] = [known for known in tx.parts.of_job(part.job_id, limit=100) if known.id == part.id]
        return same


def finalize(store: Store, job_id: str, clock: FakeClock) -> None:
    with store.transaction() as tx:
        assert tx.jobs.mark_finalizing(job_id, clock.advance(seconds=1))


# -- claims ----------------------------------------------------------------------------------------------


@both_databases
def test_claimers_at_once_get_different_parts(store: Store) -> None:
    cut(store, with_ended(store, 8, ended=range(8)))

    claims = at_once(*[lambda: claim_part(store)] * 5)

    assert sorted(claim.part.first_shard for claim in claims if claim is not None) == [0, 2, 4, 6]
    assert {claim.term for claim in claims if claim is not None} == {1}


def test_a_job_that_waits_only_for_its_output_goes_first_and_the_longest_waiting_of_them(
    store: Store, clock: FakeClock
) -> None:
    running, second, first = (with_ended(store, 2, ended=[0, 1]) for _ in range(3))
    for job in (running, second, first):
        cut(store, job)
    finalize(store, first.id, clock)
    finalize(store, second.id, clock)

    assert [claimed_part(store).job.id for _ in range(3)] == [first.id, second.id, running.id]


def test_a_tenant_with_many_parts_does_not_hold_another_up(store: Store, clock: FakeClock) -> None:
    large = with_ended(store, 6, ended=range(6), tenant_id="acme")
    clock.advance(seconds=1)
    small = with_ended(store, 2, ended=range(2), tenant_id="zeta")
    cut(store, large)
    cut(store, small)

    assert [claimed_part(store).job.id for _ in range(4)] == [large.id, small.id, large.id, large.id]


def test_a_claimer_for_idle_tenants_leaves_a_tenant_whose_part_is_being_written(store: Store) -> None:
    def of_idle_tenants() -> str | None:
        with store.transaction() as tx:
            claim = tx.parts.claim("sched_2", tx.now(), TTL_S, of_idle_tenants=True)
        return None if claim is None else claim.job.id

    large = with_ended(store, 6, ended=range(6), tenant_id="acme")
    cut(store, large)
    assert claimed_part(store).job.id == large.id

    assert of_idle_tenants() is None
    small = with_ended(store, 4, ended=range(4), tenant_id="zeta")
    cut(store, small)
    assert [of_idle_tenants() for _ in range(2)] == [small.id, None]


def test_parts_of_a_job_that_has_ended_are_not_claimed(store: Store) -> None:
    job = with_ended(store, 2, ended=range(2))
    cut(store, job)

    with store.transaction() as tx:
        assert transitions.finish(tx, job, JobState.FAILED, tx.now())

    assert claim_part(store) is None


def test_a_claim_looks_only_at_parts_that_may_be_claimed(sqlite_database: Database, clock: FakeClock) -> None:
    store = Store(sqlite_database, clock=clock)
    cut(store, with_ended(store, 6, ended=range(6)))
    with store.transaction() as tx, recorded(store.database) as statements:
        tx.parts.claim("s", tx.now(), TTL_S)
        tx.parts.expire(tx.now())
        tx.parts.open_uploads()
        plan = [
            row.detail
            for said, values in list(statements)
            for row in tx._connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {said}", values)
        ]

    assert sum("ix_output_part_of_job (job_id=? AND state=?)" in step for step in plan) == 2, plan
    assert not [step for step in plan if step.startswith(("SCAN job", "SCAN shard"))], plan
    assert sum("ix_output_part_leased" in step for step in plan) == 2, plan
    # The one index has nothing but leased parts, the other nothing but begun uploads.
    scans = [step for step in plan if step.startswith("SCAN output_part")]
    assert all("ix_output_part_" in step for step in scans), plan


# -- what an owner writes --------------------------------------------------------------------------------


def test_what_an_owner_records_comes_back(store: Store) -> None:
    job = with_ended(store, 2, ended=range(2))
    cut(store, job)
    claim = claimed_part(store)
    begun, staged = an_upload(), an_upload(staged={"upload_id": "u0", "size_bytes": 7, "part_etags": ["e"]})

    for upload in (begun, staged):
        with store.transaction() as tx:
            assert tx.parts.record_uploads(claim.lease, [upload])
        assert only_part(store, claim.part).uploads == (upload,)
    files = [a_part_file(0), a_part_file(1, rows=3, failed=3)]
    assert write_as(store, claim.lease, lambda tx, lease: tx.parts.record_written(lease, files))

    part = only_part(store, claim.part)
    assert (part.state, part.owner, part.lease_expires_at) == (PartState.WRITTEN, None, None)
    assert (part.uploads, part.files) == ((), tuple(files))
    assert (part.rows, part.succeeded, part.failed) == (11, 7, 4)
    assert claim_part(store) is None


@every_write
def test_a_written_part_is_not_changed_any_more(store: Store, write: Write) -> None:
    cut(store, with_ended(store, 2, ended=range(2)))
    claim = claimed_part(store)
    assert write_as(store, claim.lease, WRITES["record_written"])
    before = only_part(store, claim.part)

    assert not write_as(store, claim.lease, write)

    assert only_part(store, claim.part) == before


@every_write
@pytest.mark.parametrize("is_taken", [False, True], ids=["expired", "taken"])
def test_a_late_owner_writes_nothing(store: Store, clock: FakeClock, write: Write, is_taken: bool) -> None:
    cut(store, with_ended(store, 2, ended=range(2)))
    late = claimed_part(store, "late")
    assert write_as(store, late.lease, lambda tx, lease: tx.parts.record_uploads(lease, [an_upload(1)]))
    clock.advance(seconds=TTL_S)
    assert expire(store) == 1
    next_one = claimed_part(store, "next") if is_taken else None
    before = only_part(store, late.part)

    assert not write_as(store, late.lease, write)

    assert only_part(store, late.part) == before
    assert before.uploads == (an_upload(1),), "the next owner discards it"
    if next_one is not None:
        assert (next_one.term, next_one.part.attempts, next_one.part.uploads) == (2, 2, (an_upload(1),))
        assert write_as(store, next_one.lease, write)


def test_a_lease_that_was_never_given_writes_nothing(store: Store) -> None:
    cut(store, with_ended(store, 2, ended=range(2)))
    claim = claimed_part(store)
    forged = PartLease(claim.part.id, claim.job.id, Term(2), "forger", STARTS_AT)

    assert not [name for name, write in WRITES.items() if write_as(store, forged, write)]


# -- leases ----------------------------------------------------------------------------------------------


def test_a_renewed_lease_does_not_expire(store: Store, clock: FakeClock) -> None:
    cut(store, with_ended(store, 4, ended=range(4)))
    kept, lost = claimed_part(store), claimed_part(store)
    clock.advance(seconds=TTL_S - 1)

    with store.transaction() as tx:
        [renewed] = tx.parts.renew([kept.lease], tx.now(), TTL_S)
        assert tx.parts.renew([], tx.now(), TTL_S) == []
    clock.advance(seconds=1)

    assert renewed.expires_at == STARTS_AT + timedelta(seconds=2 * TTL_S - 1)
    assert (renewed.part_id, renewed.term, renewed.owner) == (kept.part.id, 1, "sched_1")
    assert expire(store) == 1
    assert only_part(store, kept.part).state is PartState.LEASED
    assert only_part(store, lost.part).state is PartState.READY
    with store.transaction() as tx:
        assert [lease.part_id for lease in tx.parts.renew([kept.lease, lost.lease], tx.now(), TTL_S)] == [
            kept.part.id
        ]


def test_an_owner_that_renews_at_the_moment_of_expiry_keeps_its_part(
    postgresql_database: Database, clock: FakeClock
) -> None:
    store = Store(postgresql_database, clock=clock)
    cut(store, with_ended(store, 4, ended=range(4)))
    kept, _ = claimed_part(store), claimed_part(store)
    clock.advance(seconds=TTL_S)

    with store.transaction() as tx:
        assert tx.parts.renew([kept.lease], tx.now(), TTL_S)
        assert expire(store) == 1, "it does not wait for the other transaction"

    assert only_part(store, kept.part).state is PartState.LEASED


def test_a_part_that_is_handed_back_is_claimed_when_it_is_time(store: Store, clock: FakeClock) -> None:
    cut(store, with_ended(store, 2, ended=range(2)))
    claim = claimed_part(store)
    later = clock.now + timedelta(seconds=60)

    assert write_as(store, claim.lease, lambda tx, lease: tx.parts.hand_back(lease, later))

    assert claim_part(store) is None
    clock.advance(seconds=60)
    again = claimed_part(store, "sched_2")
    assert (again.part.id, again.term, again.part.attempts) == (claim.part.id, 2, 1)


# -- reading ---------------------------------------------------------------------------------------------


def test_parts_are_counted_by_state_and_read_in_pages(store: Store) -> None:
    job = with_ended(store, 6, ended=range(6))
    with_ended(store, 2, ended=range(2))
    cut(store, job)
    write_as(store, claimed_part(store).lease, WRITES["record_written"])
    held = claimed_part(store)

    with store.snapshot() as tx:
        assert tx.parts.states(job.id) == {PartState.WRITTEN: 1, PartState.LEASED: 1, PartState.READY: 1}
        assert [part.first_shard for part in tx.parts.of_job(job.id, limit=2)] == [0, 2]
        assert [part.first_shard for part in tx.parts.of_job(job.id, after=2, limit=2)] == [4]
        assert tx.parts.has_open(job.id)
    write_as(store, held.lease, WRITES["record_written"])
    write_as(store, claimed_part(store).lease, WRITES["record_written"])
    with store.snapshot() as tx:
        assert not tx.parts.has_open(job.id)


def test_only_uploads_that_may_still_be_published_are_kept(store: Store) -> None:
    for number in range(4):
        job = with_ended(store, 2, ended=range(2))
        cut(store, job)
        lease = claimed_part(store).lease
        with store.transaction() as tx:
            assert tx.parts.record_uploads(lease, [an_upload(number), an_upload(number + 10)])
            if number == 1:
                assert tx.parts.record_written(lease, [a_part_file()])
            if number == 2:
                assert tx.parts.hand_back(lease, tx.now() + timedelta(hours=1))
            if number == 3:
                assert transitions.finish(tx, job, JobState.FAILED, tx.now())

    with store.snapshot() as tx:
        assert tx.parts.open_uploads() == {"u0", "u10", "u2", "u12"}
