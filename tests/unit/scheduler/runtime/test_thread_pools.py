"""Work on jobs goes on beside itself, rests when it cannot, and says how it ended."""

import threading
from contextvars import ContextVar
from datetime import timedelta

import pytest

from nightshift.errors import StorageUnavailable
from nightshift.jobs import Job
from nightshift.testing import STARTS_AT, a_job
from scheduler.runtime.duty import Interrupted
from scheduler.runtime.thread_pools import POSTPONED, Crew, CrewConfig, side_by_side
from tests.threads import spare_threads

IDLE_S = 30.0
CONFIG = CrewConfig(jobs_at_once=2, rest_first_s=2, rest_max_s=8)


def settled(crew: Crew, job: Job, at: timedelta = timedelta()) -> bool:
    """The crew was offered the job, and whatever it began is over. False: it did not begin."""
    started = crew.start(job, STARTS_AT + at)
    assert crew.wait_until_idle(IDLE_S)
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

    crew = Crew("working", work, CONFIG)
    assert crew.start(slow, STARTS_AT)
    assert not crew.start(slow, STARTS_AT)  # it is under way
    assert crew.start(quick, STARTS_AT)
    assert crew.wait_until_idle(IDLE_S)
    assert set(done) == {slow.id, quick.id}


def test_no_more_jobs_are_begun_than_there_are_hands() -> None:
    released = threading.Event()

    def work(job: Job) -> str:
        released.wait(IDLE_S)
        return "done"

    crew = Crew("working", work, CONFIG)
    assert [crew.start(a_job(), STARTS_AT) for _ in range(3)] == [True, True, False]
    released.set()
    assert crew.wait_until_idle(IDLE_S)
    assert crew.take_outcomes() == {"done": 2}
    assert crew.take_outcomes() == {}


def test_a_job_that_could_not_be_done_rests_for_a_growing_while() -> None:
    def work(job: Job) -> str:
        raise StorageUnavailable

    crew, job = Crew("working", work, CONFIG), a_job()
    begun = [at for at in range(30) if settled(crew, job, timedelta(seconds=at))]
    assert begun == [0, 3, 8, 17, 26]  # 2, 4, 8, 8 s from the pass after each failure
    assert crew.take_outcomes() == {POSTPONED: 5}


def test_a_rest_does_not_wait_for_a_clock_that_was_set_back() -> None:
    def work(job: Job) -> str:
        raise StorageUnavailable

    crew, job = Crew("working", work, CONFIG), a_job()
    assert settled(crew, job, timedelta(hours=2))
    assert not settled(crew, job, timedelta(hours=2, seconds=1)), "it rests"
    assert settled(crew, job, timedelta(seconds=1))


def test_success_ends_the_resting() -> None:
    outcomes = iter([StorageUnavailable(), None, StorageUnavailable()])

    def work(job: Job) -> str:
        if (error := next(outcomes)) is not None:
            raise error
        return "done"

    crew, job = Crew("working", work, CONFIG), a_job()
    begun = [at for at in range(5) if settled(crew, job, timedelta(seconds=at))]
    assert begun == [0, 3, 4]


def test_many_that_rest_hide_none_behind_them() -> None:
    waiting = [a_job() for _ in range(8)]
    done: list[str] = []

    def work(job: Job) -> str:
        if job.id != waiting[-1].id:
            raise StorageUnavailable
        done.append(job.id)
        return "done"

    def look(limit: int, after: Job | None) -> list[Job]:
        first = 0 if after is None else waiting.index(after) + 1
        return waiting[first : first + limit]

    crew = Crew("working", work, CONFIG)
    for second in range(10):
        crew.hand_out(look, 3, STARTS_AT + timedelta(seconds=second))
        assert crew.wait_until_idle(IDLE_S)
    assert done


def test_whatever_breaks_postpones_the_job_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def work(job: Job) -> str:
        raise RuntimeError("of all things")

    crew = Crew("working", work, CONFIG)
    assert settled(crew, a_job())
    assert crew.take_outcomes() == {POSTPONED: 1}
    assert "of all things" in caplog.text


def test_interrupted_work_may_be_begun_again_at_once() -> None:
    def work(job: Job) -> str:
        raise Interrupted

    crew, job = Crew("working", work, CONFIG), a_job()
    assert settled(crew, job)
    assert settled(crew, job)
    assert crew.take_outcomes() == {}


def test_a_job_for_which_no_thread_is_left_waits_and_keeps_no_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    crew, job = Crew("working", lambda job: "done", CONFIG), a_job()
    with monkeypatch.context() as patch:
        spare_threads(patch, 0, lambda name: name.startswith("working"))
        for _ in range(CONFIG.jobs_at_once + 1):
            with pytest.raises(RuntimeError, match="thread"):
                crew.start(job, STARTS_AT)

    assert settled(crew, job)
    assert crew.take_outcomes() == {"done": 1}


def test_hands_that_cannot_all_be_had_do_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = spare_threads(monkeypatch, 2, lambda name: name.startswith("hand-"))

    def make(number: int) -> None:
        assert refused.wait(IDLE_S)

    with pytest.raises(RuntimeError, match="thread"):
        side_by_side(make, range(1000), 3)
    assert [hand.name for hand in threading.enumerate() if hand.name.startswith("hand-")] == []


@pytest.mark.parametrize("hands", [1, 3, 100])
def test_what_is_made_side_by_side_keeps_its_order(hands: int) -> None:
    assert side_by_side(lambda number: number * number, range(20), hands) == [n * n for n in range(20)]


def test_a_failure_beside_others_is_raised_where_it_was_asked_for() -> None:
    def make(number: int) -> int:
        if number == 3:
            raise StorageUnavailable("away")
        return number

    with pytest.raises(StorageUnavailable, match="away"):
        side_by_side(make, range(10), 2)


def test_what_is_in_force_where_hands_are_asked_for_is_in_force_in_them() -> None:
    limit = ContextVar("limit", default="none")
    limit.set("the caller's")
    assert side_by_side(lambda number: limit.get(), range(4), 2) == ["the caller's"] * 4


def test_nothing_is_made_of_nothing() -> None:
    assert side_by_side(str, [], 4) == []
