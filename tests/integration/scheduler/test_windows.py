"""Jobs run within their window, are paused between two nights, and their owners are told what is late."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from nightshift.fleet.figures import ServiceFigures
from nightshift.jobs import Counts, Job, JobState, Outlook
from nightshift.jobs.leases import Lease
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle import controls
from nightshift.store import Store
from scheduler.duties.windows import Forecasts, Windows
from tests.helpers.fakes import (
    MODEL,
    STARTS_AT,
    TTL_S,
    FakeClock,
    a_spec,
    a_worker,
    claimed,
    commit_rows,
    planned,
)
from tests.integration.store.watching import events, fetch, finish, hand_back

pytestmark = pytest.mark.databases("postgresql")

NIGHT = "01:00-06:00"
RUN_EVENTS = ("run.at_risk", "run.on_track", "run.missed")


@pytest.fixture
def windows(store: Store) -> Windows:
    return Windows(store)


def nightly(store: Store, window: str = NIGHT, **overrides: object) -> Job:
    job = planned(store, shards=2, spec=a_spec(window=window, completion_window_s=7 * 86_400), **overrides)  # type: ignore[arg-type]
    return fetch(store, job)


def at(clock: FakeClock, text: str, zone: str = "UTC") -> datetime:
    """Sets the clock."""
    wanted = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))
    return clock.advance(seconds=(wanted - clock.now).total_seconds())


def is_claimed(store: Store) -> bool:
    with store.transaction() as tx:
        return tx.claims.bulk("worker-2", [MODEL], tx.now(), TTL_S) is not None


def is_told_to_pause(store: Store, lease: Lease) -> bool:
    with store.transaction() as tx:
        [held] = tx.leases.renew([lease], tx.now(), TTL_S)
    return held.is_paused


# -- nights --


def test_a_job_that_is_submitted_before_its_window_waits_for_it(
    store: Store, clock: FakeClock, windows: Windows
) -> None:
    job = nightly(store)
    assert job.resumes_at == STARTS_AT + timedelta(hours=1.5)
    assert not is_claimed(store)

    assert windows.run_once(at(clock, "2026-02-01 00:59:59")).jobs == 0
    assert windows.run_once(at(clock, "2026-02-01 01:00")).jobs == 1

    assert (fetch(store, job).paused_at, fetch(store, job).resumes_at) == (None, None)
    assert claimed(store).job.id == job.id
    assert events(store, job)[:2] == ["job.queued", "job.paused"]


def test_at_its_end_nothing_more_is_claimed_and_workers_are_told_before_the_scheduler_acts(
    store: Store, clock: FakeClock
) -> None:
    at(clock, "2026-02-01 05:59:50")
    nightly(store)
    lease = claimed(store).lease
    with store.transaction() as tx:
        [held] = tx.leases.renew([lease], tx.now(), TTL_S)
    assert (held.is_paused, held.pauses_in_s) == (False, 10.0)

    at(clock, "2026-02-01 06:00")

    assert not is_claimed(store)
    assert is_told_to_pause(store, lease)


def test_what_is_left_waits_for_the_next_night_and_goes_on_there(
    store: Store, clock: FakeClock, windows: Windows
) -> None:
    at(clock, "2026-02-01 05:00")
    job = nightly(store)
    lease = claimed(store).lease
    commit_rows(store, lease, rows=3)

    assert windows.run_once(at(clock, "2026-02-01 06:00")).jobs == 1
    hand_back(store, lease)

    paused = fetch(store, job)
    assert (paused.state, paused.paused_at) == (JobState.RUNNING, clock.now)
    assert paused.resumes_at == clock.now + timedelta(hours=19)
    windows.run_once(at(clock, "2026-02-02 01:00"))
    resumed = claimed(store)
    assert (resumed.job.id, resumed.shard.rows_done) == (job.id, 3)
    assert [type for type in events(store, job) if type in ("job.paused", "job.resumed")] == [
        "job.paused",
        "job.resumed",
    ]


def test_the_rest_of_last_night_goes_before_new_work_of_its_class(
    store: Store, clock: FakeClock, windows: Windows
) -> None:
    at(clock, "2026-02-01 05:00")
    rest = nightly(store, priority=PriorityClass.BACKGROUND)
    windows.run_once(at(clock, "2026-02-01 06:00"))
    at(clock, "2026-02-02 00:50")
    planned(store, priority=PriorityClass.BACKGROUND)
    windows.run_once(at(clock, "2026-02-02 01:00"))
    assert claimed(store).job.id == rest.id


@pytest.mark.parametrize(("night", "hours"), [("2026-03-28", 4), ("2026-10-24", 6), ("2026-11-27", 5)])
def test_a_night_is_as_long_as_its_clocks_say(
    store: Store, clock: FakeClock, windows: Windows, night: str, hours: int
) -> None:
    at(clock, f"{night} 12:00", "Europe/Berlin")
    job = nightly(store, f"{NIGHT} Europe/Berlin")
    resumes_at = job.resumes_at
    assert resumes_at is not None
    clock.advance(seconds=(resumes_at - clock.now).total_seconds())
    windows.run_once(clock.now)
    assert fetch(store, job).due_at - clock.now == timedelta(hours=hours)


def test_a_scheduler_that_was_away_for_days_decides_by_the_hour_that_it_is(
    store: Store, clock: FakeClock, windows: Windows
) -> None:
    at(clock, "2026-02-01 05:00")
    job = nightly(store)
    windows.run_once(at(clock, "2026-02-04 03:00"))
    assert fetch(store, job).paused_at is None
    assert fetch(store, job).due_at == clock.now + timedelta(hours=3)
    assert is_claimed(store)


def test_of_two_schedulers_one_turns_a_window(store: Store, clock: FakeClock, windows: Windows) -> None:
    at(clock, "2026-02-01 05:00")
    job = nightly(store)
    now = at(clock, "2026-02-01 06:00")
    with store.snapshot() as tx:
        [seen] = tx.windows.turning(now, 10)
    windows.run_once(now)

    with store.transaction() as tx:
        assert not controls.turn_window(tx, seen, now)

    assert events(store, job).count("job.paused") == 1


def test_the_completion_window_ends_a_job_between_two_nights(store: Store, clock: FakeClock) -> None:
    at(clock, "2026-02-01 12:00")
    job = planned(store, spec=a_spec(window=NIGHT, completion_window_s=3600))
    with store.snapshot() as tx:
        assert [one.id for one in tx.jobs.overdue(clock.advance(hours=1), 10)] == [job.id]
        assert tx.pending.work(clock.now).first_deadline_at == clock.now


def test_an_ended_job_has_no_next_night(store: Store, clock: FakeClock, windows: Windows) -> None:
    job = nightly(store)
    finish(store, job, JobState.CANCELLED, Counts(0, 0, 0))
    assert windows.run_once(at(clock, "2026-02-01 01:00")).jobs == 0
    assert fetch(store, job).resumes_at is None


# -- people --


def test_a_job_that_a_person_has_paused_stays_paused_at_its_opening(
    store: Store, clock: FakeClock, windows: Windows
) -> None:
    job = nightly(store)
    with store.transaction() as tx:
        controls.pause(tx, job, tx.now())
    assert windows.run_once(at(clock, "2026-02-01 01:00")).jobs == 0
    assert not is_claimed(store)

    with store.transaction() as tx:
        controls.resume(tx, fetch(store, job), tx.now())

    assert fetch(store, job).due_at == clock.now + timedelta(hours=5)
    assert is_claimed(store)


def test_a_job_that_is_resumed_outside_its_window_waits_for_that(store: Store, clock: FakeClock) -> None:
    job = nightly(store)
    with store.transaction() as tx:
        controls.pause(tx, job, tx.now())
        assert tx.jobs.fetch(job.id).resumes_at is None
    with store.transaction() as tx:
        assert controls.resume(tx, fetch(store, job), tx.now()) == ()
    assert fetch(store, job).resumes_at == STARTS_AT + timedelta(hours=1.5)
    assert not is_claimed(store)


# -- late --


@pytest.fixture
def worker(store: Store) -> None:
    """A worker that has loaded the model."""
    with store.transaction() as tx:
        tx.workers.register(a_worker(heartbeat_at=STARTS_AT + timedelta(days=1)))


def measured(store: Store, clock: FakeClock, rows_per_s: float) -> None:
    """Records the pace of the model."""
    with store.transaction() as tx:
        tx.figures.record(ServiceFigures(at=clock.now, rows_per_busy_s={MODEL: rows_per_s}))


def told(store: Store, job: Job) -> list[str]:
    return [type for type in events(store, job) if type in RUN_EVENTS]


@pytest.mark.usefixtures("worker")
def test_an_owner_is_told_once_that_a_night_is_at_risk_and_when_it_no_longer_is(
    store: Store, clock: FakeClock
) -> None:
    at(clock, "2026-02-01 05:00")
    job = nightly(store, rows_total=10_000)
    measured(store, clock, rows_per_s=2.0)
    forecasts = Forecasts(store)

    assert forecasts.run_once(clock.now).at_risk == 1
    assert forecasts.run_once(clock.advance(seconds=5)).at_risk == 0
    assert fetch(store, job).outlook is Outlook.AT_RISK
    clock.advance(seconds=5)
    measured(store, clock, rows_per_s=200.0)
    assert forecasts.run_once(clock.now).on_track == 1
    clock.advance(seconds=5)
    measured(store, clock, rows_per_s=2.0)
    forecasts.run_once(clock.now)

    assert told(store, job) == ["run.at_risk", "run.on_track"]


@pytest.mark.usefixtures("worker")
def test_a_night_in_time_tells_nothing(store: Store, clock: FakeClock) -> None:
    at(clock, "2026-02-01 05:00")
    job = nightly(store, rows_total=10_000)
    measured(store, clock, rows_per_s=3.0)
    Forecasts(store).run_once(clock.now)
    assert told(store, job) == []


def test_a_window_that_ends_with_rows_left_was_missed(
    store: Store, clock: FakeClock, windows: Windows
) -> None:
    at(clock, "2026-02-01 05:00")
    job = nightly(store)
    windows.run_once(at(clock, "2026-02-01 06:00"))
    assert told(store, job) == ["run.missed"]


def test_an_expired_job_was_missed(store: Store) -> None:
    job = planned(store)
    finish(store, job, JobState.EXPIRED, Counts(4, 0, 4))
    assert told(store, job) == ["run.missed"]


# -- urgent --


@pytest.mark.usefixtures("worker")
def test_a_background_job_rises_once_its_time_is_short_for_the_work_that_is_left(
    store: Store, clock: FakeClock
) -> None:
    day = a_spec(completion_window_s=86_400)
    large = planned(store, rows_total=36_000, spec=day, priority=PriorityClass.BACKGROUND)
    measured(store, clock, rows_per_s=2.0)  # 5 hours of work: 6.25 before its end
    clock.advance(seconds=5)
    assert Forecasts(store).run_once(clock.now).urgencies == 1
    rises_at = STARTS_AT + timedelta(hours=24 - 6.25)
    with store.snapshot() as tx:
        assert [one.urgent_at for one in tx.windows.running()] == [rises_at]
    assert fetch(store, large).outlook is None


@pytest.mark.usefixtures("worker")
def test_the_time_of_a_job_is_not_written_again_while_it_hardly_moves(store: Store, clock: FakeClock) -> None:
    planned(store, rows_total=36_000, spec=a_spec(completion_window_s=86_400))
    measured(store, clock, rows_per_s=2.0)
    forecasts = Forecasts(store)
    assert forecasts.run_once(clock.now).urgencies == 1
    clock.advance(seconds=5)
    measured(store, clock, rows_per_s=2.05)
    assert forecasts.run_once(clock.now).urgencies == 0


@pytest.mark.usefixtures("worker")
def test_an_urgent_job_is_claimed_before_work_of_a_better_class(store: Store, clock: FakeClock) -> None:
    late = planned(
        store,
        rows_total=36_000,
        spec=a_spec(completion_window_s=5 * 3600),
        priority=PriorityClass.BACKGROUND,
    )
    planned(store, spec=a_spec(completion_window_s=86_400), priority=PriorityClass.STANDARD)
    measured(store, clock, rows_per_s=2.0)
    Forecasts(store).run_once(clock.now)
    assert claimed(store).job.id == late.id
