"""Figures of the whole service are recorded at intervals and kept for a while; its counters are corrected."""

from datetime import timedelta

from nightshift.fleet.figures import ModelFigures, WorkerFigures
from nightshift.fleet.workers import WorkerState
from nightshift.store import Store
from nightshift.tenants.holdings import Holding
from scheduler.duties.recording import Recording, RecordingConfig, Recounting
from tests.helpers.fakes import FakeClock, a_file, a_worker, planned
from tests.integration.store.watching import holding


def reporting(store: Store, *, rows_per_s: float, **about: object) -> None:
    worker = a_worker(**about)
    report = WorkerFigures(models={"demo": ModelFigures(rows_per_s=rows_per_s, busy_fraction=1.0)})
    with store.transaction() as tx:
        tx.workers.register(worker)
        tx.workers.record_heartbeat(worker.id, worker.state, tx.now(), report)


def test_what_live_workers_report_is_recorded_beside_what_waits(store: Store, clock: FakeClock) -> None:
    reporting(store, rows_per_s=100.0, id="wrk_silent", heartbeat_at=clock.now)
    clock.advance(seconds=60)
    reporting(store, rows_per_s=100.0, id="wrk_ended", state=WorkerState.STOPPED)
    reporting(store, rows_per_s=3.0, id="wrk_1")
    reporting(store, rows_per_s=4.0, id="wrk_2")
    planned(store, shards=3, rows_total=30)

    Recording(store).run_once(clock.now)

    with store.snapshot() as tx:
        latest = tx.figures.latest()
    assert latest is not None
    assert (latest.at, latest.workers, latest.rows_per_s) == (clock.now, 2, 7.0)
    assert (latest.queued, latest.rows_left) == ({"standard": 3}, {"standard": 30})


def test_figures_stay_for_as_long_as_they_are_kept(store: Store, clock: FakeClock) -> None:
    duty = Recording(store, RecordingConfig(kept=timedelta(minutes=1)))
    begun_at = clock.now
    for _ in range(10):
        duty.run_once(clock.advance(seconds=15))

    with store.snapshot() as tx:
        kept = tx.figures.since(begun_at, limit=100)
    assert [recorded.at for recorded in kept] == [
        clock.now - timedelta(seconds=15 * n) for n in (4, 3, 2, 1, 0)
    ]


def test_a_pace_is_remembered_while_nothing_runs(store: Store, clock: FakeClock) -> None:
    reporting(store, rows_per_s=5.0, id="wrk_1")
    duty = Recording(store)
    duty.run_once(clock.now)
    duty.run_once(clock.advance(hours=3))

    with store.snapshot() as tx:
        latest = tx.figures.latest()
    assert latest is not None
    assert (latest.workers, latest.rows_per_busy_s) == (0, {"demo": 5.0})


def test_counters_that_are_not_what_there_is_are_corrected_once(store: Store, clock: FakeClock) -> None:
    with store.transaction() as tx:
        tx.files.insert(a_file(tenant_id="acme", size_bytes=10))
        tx.holdings._added.clear()  # as a process of the release before does it
    duty = Recounting(store, interval_s=300)

    assert [duty.run_once(clock.now).corrected for _ in range(2)] == [1, 0]
    assert holding(store, "acme") == Holding(stored_files=1, stored_bytes=10)
