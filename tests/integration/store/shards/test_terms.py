"""A late worker is refused, whatever it wants to write: every write names the term it was made under."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from nightshift.jobs import JobState, RecordedAnswer, ShardState
from nightshift.jobs.leases import Lease
from nightshift.lifecycle import transitions
from nightshift.store import Store, Transaction
from tests.helpers.fakes import (
    FakeClock,
    a_segment,
    an_answer,
    claimed,
    claimed_online,
    commit_rows,
    completed,
    planned,
    rescue,
    submit_online,
)

LATE_WRITES: dict[str, Callable[[Transaction, Lease], bool]] = {
    "list a segment": lambda tx, lease: tx.shards.list_segment(lease, a_segment(lease), rows_total=None),
    "complete the shard": lambda tx, lease: tx.shards.complete(lease, rows_total=0),
    "end the shard as stopped": lambda tx, lease: tx.shards.stop_held(lease),
    "give the shard up": lambda tx, lease: tx.shards.fail_held(lease),
    "record an answer": lambda tx, lease: tx.shards.record_result(
        lease, RecordedAnswer.from_answer(an_answer())
    ),
    "hand the shard back": lambda tx, lease: tx.leases.hand_back(lease, "a-carry-over"),
    "return a broken shard": lambda tx, lease: tx.leases.return_broken(
        lease, tx.now() + timedelta(seconds=9)
    ),
    "delay the shard": lambda tx, lease: tx.leases.delay(lease, tx.now() + timedelta(seconds=9)),
    "renew its lease": lambda tx, lease: bool(tx.leases.renew([lease], tx.now(), ttl_s=30)),
}


@pytest.fixture
def old(store: Store, clock: FakeClock) -> Lease:
    """A lease that has run out and was taken back; its holder does not know."""
    planned(store)
    lease = claimed(store, "worker_old", ttl_s=30).lease
    clock.advance(seconds=30)
    assert rescue(store) == 1
    return lease


@pytest.mark.parametrize("write", LATE_WRITES.values(), ids=LATE_WRITES.keys())
def test_a_late_worker_cannot_write_while_its_shard_waits_runs_elsewhere_or_is_done(
    store: Store, old: Lease, write: Callable[[Transaction, Lease], bool]
) -> None:
    def refuses(lease: Lease, shard: tuple[ShardState, int, int, str | None]) -> bool:
        with store.transaction() as tx:
            return not write(tx, lease) and unchanged(store, lease) == shard

    assert refuses(old, (ShardState.QUEUED, 1, 0, None))
    new = claimed(store, "worker_new").lease
    assert refuses(old, (ShardState.LEASED, 2, 0, None))
    assert commit_rows(store, new, rows=4)
    assert completed(store, new, rows_total=4)
    for lease in (old, new):
        assert refuses(lease, (ShardState.DONE, 2, 4, None))
    with store.snapshot() as tx:
        assert tx.jobs.fetch(old.job_id).counts.succeeded == 4


def test_a_late_answer_is_not_recorded_and_the_right_one_is(store: Store, clock: FakeClock) -> None:
    request = submit_online(store)
    old = claimed_online(store, request.shard_id, "worker_old")
    clock.advance(seconds=30)
    rescue(store)
    new = claimed_online(store, request.shard_id, "worker_new")

    with store.transaction() as tx:
        late = an_answer(body={"choices": ["late"]})
        assert transitions.record_answer(tx, old, late, tx.now()) is False
    with store.transaction() as tx:
        assert transitions.record_answer(tx, new, an_answer(body={"choices": ["good"]}), tx.now())

    with store.snapshot() as tx:
        answer = tx.shards.online_result("default", request.job.id)
        assert answer is not None
        assert answer.body == {"choices": ["good"]}
        assert tx.jobs.fetch(request.job.id).state is JobState.SUCCEEDED


def unchanged(store: Store, lease: Lease) -> tuple[ShardState, int, int, str | None]:
    """The state, term, finished rows and carry-over of a shard, which a late write could have changed."""
    with store.snapshot() as tx:
        [shard] = tx.shards.of_job(lease.job_id, limit=10)
        return shard.state, shard.term, shard.rows_done, shard.carry_over_key
