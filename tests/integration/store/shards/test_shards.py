"""Reading what shards have produced: in order, in pages, and added up."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from nightshift.jobs import RecordedAnswer, ShardState
from nightshift.lifecycle import transitions
from nightshift.store import Store
from nightshift.store.databases.database import Database
from nightshift.store.jobs.jobs import Jobs, Progress
from tests.helpers.fakes import (
    FakeClock,
    a_segment,
    a_shard,
    an_answer,
    claimed,
    claimed_online,
    commit_rows,
    planned,
    submit,
    submit_online,
)
from tests.integration.store.databases.recording import recorded
from tests.integration.store.racing import wait_until_blocked


def test_shards_come_back_as_they_were_planned(store: Store) -> None:
    job = submit(store)
    cut = [
        a_shard(0, uri="file-abc", start=0, end=5_000_000_000, rows_estimated=12, first_row=0),
        a_shard(1, uri="s3://bucket/ü.parquet", format="parquet", start=3, end=None),
    ]
    with store.transaction() as tx:
        transitions.plan(tx, job, "demo", cut, tx.now())
        shards = tx.shards.of_job(job.id, limit=10)

    for shard, new in zip(shards, cut, strict=True):
        planned_as = {name: getattr(shard, name) for name in new.__dataclass_fields__}
        assert planned_as == {name: getattr(new, name) for name in new.__dataclass_fields__}
        assert (shard.state, shard.term, shard.attempts, shard.rows_done) == (ShardState.QUEUED, 0, 0, 0)


def test_a_row_count_once_known_is_not_forgotten(store: Store) -> None:
    job = planned(store)
    lease = claimed(store).lease
    with store.transaction() as tx:
        assert tx.shards.list_segment(lease, a_segment(lease, 0), rows_total=9)
        assert tx.shards.list_segment(lease, a_segment(lease, 1), rows_total=None)
        [shard] = tx.shards.of_job(job.id, limit=1)

    assert (shard.rows_done, shard.rows_total) == (8, 9)


def test_an_answer_comes_back_as_it_was_recorded(store: Store) -> None:
    request = submit_online(store, body={"messages": [{"role": "user", "content": "☂"}]})
    claim = claimed_online(store, request.shard_id)
    answer = RecordedAnswer.from_answer(an_answer(body={"choices": [{"text": "ünïcode ☂ \0"}], "n": 1.5}))
    assert claim.body is not None
    assert claim.body["messages"] == [{"role": "user", "content": "☂"}]
    with store.transaction() as tx:
        assert tx.shards.online_result("default", request.job.id) is None
        assert tx.shards.record_result(claim.lease, answer)
        assert tx.shards.online_result("default", request.job.id) == answer


def test_who_goes_on_after_the_last_segment_it_saw_misses_none_that_was_committed_later(
    postgresql_database: Database, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker has listed its segment and not committed it yet when another one comes."""
    store = Store(postgresql_database, clock=clock)
    job = planned(store, shards=2)
    slow, quick = claimed(store).lease, claimed(store).lease
    seen: list[int] = []

    def read() -> None:
        with store.snapshot() as tx:
            after = seen[-1] if seen else 0
            page = tx.shards.segments_of_job("default", job.id, after_id=after, limit=10)
        seen.extend(listed.id for listed in page)

    add_progress = Jobs.add_progress

    def once_another_waits(jobs: Jobs, *counted: Any) -> Progress:
        monkeypatch.setattr(Jobs, "add_progress", add_progress)
        started.append(threads.submit(commit_rows, store, quick))
        wait_until_blocked(postgresql_database)
        read()
        return add_progress(jobs, *counted)

    started: list[Future[bool]] = []
    monkeypatch.setattr(Jobs, "add_progress", once_another_waits)
    with ThreadPoolExecutor(1) as threads:
        assert commit_rows(store, slow)
        read()
        assert started[0].result()
    read()

    with store.snapshot() as tx:
        assert seen == [listed.id for listed in tx.shards.segments_of_job("default", job.id, limit=10)]
    assert len(seen) == 2


def test_listing_a_segment_does_not_read_the_job_s_template(store: Store) -> None:
    planned(store)
    lease = claimed(store).lease

    with recorded(store.database) as statements:
        assert commit_rows(store, lease)

    changes = [text for text, _ in statements if text.startswith(("SELECT job", "UPDATE", "INSERT"))]
    assert len(changes) == 8, changes  # a round trip each
    assert not [text for text in changes if "spec" in text], changes
