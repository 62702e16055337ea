"""Figures and counters of the service over time, and what waits for workers, as the database has it."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

from nightshift.fleet.figures import INTERVAL_S, ModelFigures, ServiceFigures, WorkerFigures
from nightshift.fleet.workers import WorkerState
from nightshift.jobs import JobKind
from nightshift.jobs.capacity.backlog import Backlog, Group, by_group
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle import transitions
from nightshift.store import Store
from tests.helpers.fakes import (
    FakeClock,
    a_spec,
    a_worker,
    claimed,
    claimed_online,
    commit_rows,
    completed,
    planned,
    submit_online,
)
from tests.integration.store.racing import at_once, both_databases
from tests.integration.store.watching import counters, hand_back

REPORT = WorkerFigures(models={"demo": ModelFigures(running=3)}, shards=1)
BULK = Group(JobKind.BULK, "demo", PriorityClass.STANDARD, "any")
ONLINE = Group(JobKind.ONLINE, "demo", PriorityClass.INTERACTIVE, "any")


def waiting(store: Store) -> dict[Group, Backlog]:
    with store.snapshot() as tx:
        return by_group(tx.figures.waiting())


def test_a_worker_tells_figures_with_its_heartbeat_and_may_stop_telling(store: Store) -> None:
    worker = a_worker()
    with store.transaction() as tx:
        tx.workers.register(worker)
        tx.workers.record_heartbeat(worker.id, WorkerState.READY, tx.now(), REPORT)
    with store.snapshot() as tx:
        assert [known.figures for known in tx.workers.list()] == [REPORT]

    with store.transaction() as tx:
        tx.workers.record_heartbeat(worker.id, WorkerState.READY, tx.now())
    with store.snapshot() as tx:
        assert [known.figures for known in tx.workers.list()] == [None]


def test_figures_are_found_by_time_and_forgotten_the_oldest_first(store: Store, clock: FakeClock) -> None:
    recorded = [ServiceFigures(at=clock.advance(seconds=15), workers=n) for n in range(4)]
    with store.transaction() as tx:
        assert tx.figures.latest() is None
        for figures in recorded:
            tx.figures.record(figures)
        tx.figures.record(replace(recorded[-1], workers=99))  # a second scheduler comes too late

    with store.transaction() as tx:
        assert tx.figures.latest() == recorded[-1]
        assert tx.figures.since(recorded[0].at, limit=2) == recorded[1:3]
        assert tx.figures.forget(recorded[3].at, limit=2) == 2
        assert tx.figures.since(recorded[0].at - timedelta(days=1), limit=9) == recorded[2:]


def test_shards_and_rows_of_bulk_jobs_wait_by_what_may_run_them(store: Store, clock: FakeClock) -> None:
    first = planned(store, shards=3, rows_total=12)
    clock.advance(seconds=60)
    planned(store, shards=2, rows_total=8)
    lease = claimed(store).lease
    commit_rows(store, lease, rows=4)

    assert waiting(store) == {BULK: Backlog(queued=4, leased=1, rows_left=16, oldest_at=first.created_at)}

    completed(store, lease, rows_total=4)
    assert waiting(store)[BULK].leased == 0


def test_what_is_paused_waits_for_no_worker(store: Store) -> None:
    job = planned(store, shards=2, rows_total=8)
    claimed(store)
    with store.transaction() as tx:
        tx.controls.pause(job.tenant_id, job.id, tx.now())

    assert waiting(store) == {BULK: Backlog(leased=1)}


def test_a_job_is_due_at_the_end_of_its_open_window(store: Store, clock: FakeClock) -> None:
    for completion_window_s in (86_400, 3600):
        planned(store, spec=a_spec(window="23:00-06:00", completion_window_s=completion_window_s))
    with store.snapshot() as tx:
        due_in = [job.deadline_at - clock.now for job in tx.figures.waiting()]
    assert sorted(due_in) == [timedelta(hours=1), timedelta(hours=6.5)]


def test_online_requests_wait_until_they_are_claimed_and_again_when_they_come_back(
    store: Store, clock: FakeClock
) -> None:
    first = submit_online(store)
    clock.advance(seconds=5)
    second = submit_online(store)
    oldest = first.job.created_at
    assert waiting(store) == {ONLINE: Backlog(queued=2, rows_left=2, oldest_at=oldest)}

    claim = claimed_online(store, first.shard_id)
    assert waiting(store) == {
        ONLINE: Backlog(queued=1, leased=1, rows_left=2, oldest_at=second.job.created_at)
    }

    assert hand_back(store, claim.lease)
    assert waiting(store) == {ONLINE: Backlog(queued=2, rows_left=2, oldest_at=oldest)}


def test_what_has_ended_waits_no_more(store: Store) -> None:
    job = planned(store, shards=2, rows_total=8)
    with store.transaction() as tx:
        transitions.cancel(tx, job, tx.now())

    assert sum(backlog.queued + backlog.leased for backlog in waiting(store).values()) == 0


def test_of_many_figures_some_are_read_at_equal_distances(store: Store) -> None:
    with store.transaction() as tx:
        now = tx.now()
        for place in range(48):
            tx.figures.record(ServiceFigures(at=now + timedelta(seconds=INTERVAL_S * place), workers=place))
        whole = tx.figures.since(now - timedelta(seconds=1), 100)
        some = tx.figures.since(now - timedelta(seconds=1), 100, every=6)

    assert len(whole) == 48
    assert len(some) == 8
    assert {later.at - one.at for one, later in pairwise(some)} == {timedelta(seconds=6 * INTERVAL_S)}


@both_databases
def test_counters_add_up_by_name_and_several_who_count_at_once_lose_nothing(store: Store) -> None:
    def count() -> None:
        for name, amount in (("rows_redone", 1), ("tokens_redone", 12), ("rows_dead", 0)):
            with store.transaction() as tx:
                tx.counters.add(name, amount)

    at_once(*[count] * 8)

    assert counters(store) == {"rows_redone": 8, "tokens_redone": 96}
