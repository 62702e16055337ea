"""Jobs are worked on in threads, retried after growing pauses, and their outcomes counted."""

import threading
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import timedelta

import pytest

from nightshift.errors import StorageUnavailable
from nightshift.jobs import Job
from scheduler.runtime.duty import Interrupted
from scheduler.runtime.thread_pools import POSTPONED, JobPool, JobPoolConfig, Work, map_in_threads
from tests.helpers.fakes import STARTS_AT, a_job
from tests.helpers.threads import spare_threads

IDLE_S = 30.0
CONFIG = JobPoolConfig(threads_max=2, jobs_looked_at_max=3, retry_first_s=2, retry_max_s=8)


def a_pool(work: Work, waiting: Sequence[Job] = ()) -> JobPool:
    """A pool that finds these jobs waiting, in this order."""

    def fetch(limit: int, after: Job | None) -> Sequence[Job]:
        first = 0 if after is None else waiting.index(after) + 1
        return waiting[first : first + limit]

    return JobPool("working", fetch, work, CONFIG)


def settled(pool: JobPool, job: Job, at: timedelta = timedelta()) -> bool:
    """Offers the pool the job and waits for the work. False: it was not started."""
    started = pool.start(job, STARTS_AT + at)
    assert pool.wait_until_idle(IDLE_S)
    return started


def test_a_slow_job_holds_up_no_other() -> None:
    released = threading.Event()
    slow, quick = a_job(), a_job()
    done: list[str] = []

    def work(job: Job) -> str:
        if job == slow:
            released.wait(IDLE_S)
        else:
            released.set()  # only the quick one can end the slow one's wait
        done.append(job.id)
        return "done"

    pool = a_pool(work)
    assert pool.start(slow, STARTS_AT)
    assert not pool.start(slow, STARTS_AT)  # it is under way
    assert pool.start(quick, STARTS_AT)
    assert pool.wait_until_idle(IDLE_S)
    assert set(done) == {slow.id, quick.id}


def test_no_more_jobs_are_started_than_there_are_threads() -> None:
    released = threading.Event()

    def work(job: Job) -> str:
        released.wait(IDLE_S)
        return "done"

    pool = a_pool(work)
    assert not pool.is_busy
    assert [pool.start(a_job(), STARTS_AT) for _ in range(3)] == [True, True, False]
    released.set()
    assert pool.wait_until_idle(IDLE_S)
    assert pool.is_busy, "until the outcomes are taken"
    assert pool.take_outcomes() == {"done": 2}
    assert pool.take_outcomes() == {}
    assert not pool.is_busy


def test_it_is_blocked_from_the_last_change_on_while_no_thread_is_free() -> None:
    released, clock_s = threading.Event(), 0.0

    def work(job: Job) -> str:
        released.wait(IDLE_S)
        return "done"

    pool = JobPool("working", lambda limit, after: [], work, CONFIG, clock=lambda: clock_s)
    pool.start(a_job(), STARTS_AT)
    clock_s = 5.0
    assert pool.blocked_s == 0.0
    pool.start(a_job(), STARTS_AT)
    clock_s = 12.0
    assert pool.blocked_s == 7.0
    released.set()
    assert pool.wait_until_idle(IDLE_S)
    assert pool.blocked_s == 0.0


def test_a_job_that_failed_is_retried_after_growing_pauses() -> None:
    def work(job: Job) -> str:
        raise StorageUnavailable

    pool, job = a_pool(work), a_job()
    begun = [at for at in range(30) if settled(pool, job, timedelta(seconds=at))]
    assert begun == [0, 3, 8, 17, 26]  # 2, 4, 8, 8 s from the pass after each failure
    assert pool.take_outcomes() == {POSTPONED: 5}


def test_a_retry_does_not_wait_for_a_clock_that_was_set_back() -> None:
    def work(job: Job) -> str:
        raise StorageUnavailable

    pool, job = a_pool(work), a_job()
    assert settled(pool, job, timedelta(hours=2))
    assert not settled(pool, job, timedelta(hours=2, seconds=1)), "it is in backoff"
    assert settled(pool, job, timedelta(seconds=1))


def test_success_resets_the_backoff() -> None:
    outcomes = iter([StorageUnavailable(), None, StorageUnavailable()])

    def work(job: Job) -> str:
        if (error := next(outcomes)) is not None:
            raise error
        return "done"

    pool, job = a_pool(work), a_job()
    begun = [at for at in range(5) if settled(pool, job, timedelta(seconds=at))]
    assert begun == [0, 3, 4]


def test_many_jobs_in_backoff_hide_none_behind_them() -> None:
    waiting = [a_job() for _ in range(8)]
    done: list[str] = []

    def work(job: Job) -> str:
        if job.id != waiting[-1].id:
            raise StorageUnavailable
        done.append(job.id)
        return "done"

    pool = a_pool(work, waiting)
    for second in range(10):
        pool.run_once(STARTS_AT + timedelta(seconds=second))
        assert pool.wait_until_idle(IDLE_S)
    assert done


def test_an_unexpected_error_postpones_the_job_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def work(job: Job) -> str:
        raise RuntimeError("of all things")

    pool = a_pool(work)
    assert settled(pool, a_job())
    assert pool.take_outcomes() == {POSTPONED: 1}
    assert "of all things" in caplog.text


def test_interrupted_work_may_be_started_again_at_once() -> None:
    def work(job: Job) -> str:
        raise Interrupted

    pool, job = a_pool(work), a_job()
    assert settled(pool, job)
    assert settled(pool, job)
    assert pool.take_outcomes() == {}


def test_a_job_for_which_no_thread_is_left_waits_and_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, job = a_pool(lambda job: "done"), a_job()
    with monkeypatch.context() as patch:
        spare_threads(patch, 0, lambda name: name.startswith("working"))
        for _ in range(CONFIG.threads_max + 1):
            with pytest.raises(RuntimeError, match="thread"):
                pool.start(job, STARTS_AT)

    assert settled(pool, job)
    assert pool.take_outcomes() == {"done": 1}


def test_a_map_stops_when_not_all_its_threads_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = spare_threads(monkeypatch, 2, lambda name: name.startswith("map-"))

    def make(number: int) -> None:
        assert refused.wait(IDLE_S)

    with pytest.raises(RuntimeError, match="thread"):
        map_in_threads(make, range(1000), 3)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("map-")] == []


@pytest.mark.parametrize("threads_max", [1, 3, 100])
def test_a_map_keeps_the_order_of_its_items_and_runs_in_the_context_of_its_caller(threads_max: int) -> None:
    power = ContextVar("power", default=0)
    power.set(2)
    squares = map_in_threads(lambda number: number ** power.get(), range(20), threads_max)
    assert squares == [number**2 for number in range(20)]
    assert map_in_threads(str, [], threads_max) == []


def test_a_failure_in_a_map_is_raised_in_the_caller() -> None:
    def make(number: int) -> int:
        if number == 3:
            raise StorageUnavailable("away")
        return number

    with pytest.raises(StorageUnavailable, match="away"):
        map_in_threads(make, range(10), 2)
