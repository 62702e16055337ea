"""How many workers what waits needs, beside a simulation of that many."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from hypothesis import assume, given
from hypothesis import strategies as st

from nightshift.jobs import JobKind
from nightshift.jobs.capacity.backlog import WaitingJob
from nightshift.jobs.capacity.demand import COLD_START_S, LEAST_S, Pool, Work, demand, workers_wanted
from nightshift.jobs.capacity.forecasts import slack_s
from nightshift.jobs.priorities import PriorityClass
from tests.helpers.fakes import STARTS_AT

SECOND = timedelta(seconds=1)
MANY = 10**9
LEAST = int(LEAST_S)
ANY = Pool("demo", "any")

works = st.lists(
    st.builds(Work, st.integers(1, 400).map(float), st.integers(LEAST, 4 * LEAST).map(float)), max_size=6
)


def meets_all(work: Sequence[Work], workers: int) -> bool:
    """Second by second, each worker takes a second of what is due first."""
    left = sorted(([int(job.worker_s), int(job.due_in_s)] for job in work), key=lambda left: left[1])
    for second in range(10_000):
        for _ in range(workers):
            first = next((left for left in left if left[0]), None)
            if first is None:
                return True
            if second >= first[1]:
                return False
            first[0] -= 1
    return False


@given(works)
def test_so_many_workers_meet_every_deadline_and_with_one_less_one_is_missed(work: list[Work]) -> None:
    wanted = workers_wanted(work, MANY)

    assert meets_all(work, wanted) or not work
    assert not work or not meets_all(work, wanted - 1)


@given(works, st.builds(Work, st.floats(0, 1e6), st.floats(0, 1e6)))
def test_more_work_never_wants_fewer(work: list[Work], more: Work) -> None:
    assert workers_wanted([*work, more], MANY) >= workers_wanted(work, MANY)


@given(works, st.integers(0, 5), st.floats(0, 1e4))
def test_an_earlier_deadline_never_wants_fewer(work: list[Work], place: int, earlier_s: float) -> None:
    assume(place < len(work))
    hurried = [*work]
    hurried[place] = replace(work[place], due_in_s=work[place].due_in_s - earlier_s)

    assert workers_wanted(hurried, MANY) >= workers_wanted(work, MANY)


@given(works, st.integers(0, 50))
def test_no_more_workers_are_wanted_than_there_are_shards(work: list[Work], shards: int) -> None:
    assert workers_wanted(work, shards) <= shards


def test_where_nothing_waits_no_worker_is_wanted() -> None:
    assert workers_wanted([], MANY) == 0
    assert demand([], {"demo": 1.0}, STARTS_AT, set()) == {}


# -- of jobs


def a_waiting_job(**overrides: object) -> WaitingJob:
    known = {
        "kind": JobKind.BULK,
        "model": "demo",
        "priority": PriorityClass.STANDARD,
        "capacity": "any",
        "created_at": STARTS_AT,
        "deadline_at": STARTS_AT + 1000 * SECOND,
        "queued": 100,
        "leased": 0,
        "rows_left": 4000,
    }
    return WaitingJob(**{**known, **overrides})  # type: ignore[arg-type]


def wanted(*waiting: WaitingJob, pace: float | None = 1.0, warm: bool = True) -> dict[Pool, int]:
    paces = {} if pace is None else {"demo": pace, "other": pace}
    return demand(waiting, paces, STARTS_AT, {"demo", "other"} if warm else set())


def test_workers_are_wanted_by_the_pace_and_the_deadline() -> None:
    """A job that is late is to be done soon, by as many workers as it has shards."""
    late = a_waiting_job(deadline_at=STARTS_AT - SECOND)

    assert wanted(a_waiting_job()) == {ANY: 4}
    assert wanted(a_waiting_job(), pace=2.0) == {ANY: 2}
    assert wanted(a_waiting_job(deadline_at=STARTS_AT + 500 * SECOND)) == {ANY: 8}
    assert wanted(late) == {ANY: 67}
    assert wanted(replace(late, queued=5)) == {ANY: 5}
    assert wanted(a_waiting_job(), pace=None) == {ANY: 1}, "one will measure the model"
    assert wanted(a_waiting_job(is_paused=True)) == {}


def test_models_and_capacities_want_workers_of_their_own() -> None:
    workers = wanted(a_waiting_job(), a_waiting_job(capacity="spot"), a_waiting_job(model="other"))

    assert workers == {ANY: 4, Pool("demo", "spot"): 4, Pool("other", "any"): 4}


def test_what_no_worker_has_loaded_leaves_less_time() -> None:
    cold = a_waiting_job(deadline_at=STARTS_AT + timedelta(seconds=1000 + COLD_START_S))

    assert wanted(cold, warm=False) == wanted(a_waiting_job())


def slack(*waiting: WaitingJob, workers: int = 2) -> dict[str, float]:
    return slack_s(waiting, {"demo": 2.0}, STARTS_AT, {"demo": workers} if workers else {})


def test_slack_is_the_time_from_the_predicted_end_to_the_deadline() -> None:
    """A better class goes first; of each, the job counts that is closest to its deadline."""
    job = a_waiting_job()
    first = a_waiting_job(priority=PriorityClass.INTERACTIVE, rows_left=400)
    later = a_waiting_job(deadline_at=STARTS_AT + 9000 * SECOND)

    assert slack(job) == slack(later, job) == {"standard": 0.0}
    assert slack(job, workers=4) == {"standard": 500.0}
    assert slack(job, first) == {"interactive": 900.0, "standard": -100.0}
    assert slack(job, workers=0) == {"standard": 1000 - 2000 - COLD_START_S}, "one is counted on to start"


def test_what_is_paused_or_online_or_not_measured_has_no_slack() -> None:
    assert slack(a_waiting_job(is_paused=True), a_waiting_job(kind=JobKind.ONLINE)) == {}
    assert slack(a_waiting_job(model="new")) == {}


@given(st.integers(0, 10_000), st.integers(1, 20))
def test_more_rows_or_fewer_workers_never_leave_more_slack(rows: int, workers: int) -> None:
    job = a_waiting_job(rows_left=rows)
    assert slack(job, workers=workers)["standard"] <= slack(job, workers=workers + 1)["standard"]
    more = replace(job, rows_left=rows + 1)
    assert slack(more, workers=workers)["standard"] <= slack(job, workers=workers)["standard"]
