"""The problem of a job is known from the fault on until the work succeeds, and told once."""

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from nightshift.errors import CredentialsRefused, DatabaseUnavailable, StorageUnavailable
from nightshift.fleet.workers import Capacity, ExitCause, WorkerState
from nightshift.jobs import Fault, InputError, Job, JobState, JsonObject, StopReason, Webhook
from nightshift.jobs.part import CutLimits, PartProblem
from nightshift.lifecycle import problems, recovery
from nightshift.lifecycle.cutting import cut
from nightshift.lifecycle.problems import ProblemRecorder, ShownProblem, shown_problem
from nightshift.lifecycle.transitions import finish, request_stop
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store import Store
from tests.helpers.fakes import (
    MODEL,
    FakeClock,
    a_delivery,
    a_spec,
    a_worker,
    an_attempt,
    claimed,
    commit_rows,
    completed,
    planned,
    rescue,
    submit,
    submit_online,
)
from tests.integration.store.watching import fetch
from workers.shard.endings import Endings
from workers.shard.waits import ShardWaits

EXPIRED = CredentialsRefused("s3://inbox/plain/: ExpiredToken: The provided token has expired.")
READING = (
    "The input cannot be read at present: s3://inbox/plain/: ExpiredToken: The provided token has expired"
)
AWAY = InputError("storage_unavailable", "The input cannot be read at present: away", param="input")


@pytest.fixture(autouse=True)
def _a_worker(store: Store) -> None:
    """It serves the model all the while, unless a test is about that."""
    serve(store)


def serve(store: Store, **worker: Any) -> str:
    with store.transaction() as tx:
        new = a_worker(**worker)
        tx.workers.register(new)
        tx.workers.serves(new.id, new.models, new.heartbeat_at)
        tx.workers.mark(new.id, new.state, new.heartbeat_at)
    return new.id


def shown(store: Store, job: Job) -> ShownProblem | None:
    with store.snapshot() as tx:
        return shown_problem(tx, tx.jobs.fetch(job.id), tx.now())


def message(store: Store, job: Job) -> str | None:
    problem = shown(store, job)
    return None if problem is None else problem.fault.error.message


def record(store: Store, recorder: ProblemRecorder | None = None) -> int:
    return (recorder or ProblemRecorder(store)).run_once(store.now())


def told(store: Store, job: Job) -> list[JsonObject | None]:
    """The problems of the job's events, in order."""
    with store.snapshot() as tx:
        events = tx.events.after(job.tenant_id, job.id, 0, 1000)
    return [event.data["problem"] for event in events if event.type == "job.problem"]


def recorded(store: Store, job: Job) -> str | None:
    problem = fetch(store, job).problem
    return None if problem is None else problem.error.message


def fail_input(store: Store, job: Job, error: InputError = AWAY, at: datetime | None = None) -> None:
    with store.transaction() as tx:
        tx.jobs.record_input_fault(job.id, Fault(error=error, met_at=at or tx.now()))


def plan_page(store: Store, job: Job) -> None:
    with store.transaction() as tx:
        assert tx.jobs.record_page(
            job.id, 0, model=MODEL, rows_total=4, rows_estimated=4, next=None, now=tx.now()
        )


def test_an_input_that_cannot_be_read_is_a_problem_until_a_page_of_it_is_planned(
    store: Store, clock: FakeClock
) -> None:
    job = submit(store)
    assert shown(store, job) is None
    fail_input(store, job)
    began_at = clock.now

    assert record(store) == 1
    clock.advance(seconds=30)
    fail_input(store, job)  # tried again
    assert record(store) == 0

    problem = shown(store, job)
    assert problem is not None
    assert (problem.fault.error, problem.since, problem.fault.met_at) == (AWAY, began_at, clock.now)
    plan_page(store, job)
    assert shown(store, job) is None
    assert record(store) == 1
    assert recorded(store, job) is None
    said = {"code": AWAY.code, "message": AWAY.message, "param": "input", "since": int(began_at.timestamp())}
    assert told(store, job) == [said, None]


def test_a_fault_that_comes_after_the_input_was_planned_is_not_recorded(store: Store) -> None:
    job = planned(store)
    fail_input(store, job)
    assert shown(store, job) is None


def test_the_problem_of_a_job_names_what_is_wrong_now_and_since_when_any_is(
    store: Store, clock: FakeClock
) -> None:
    job = submit(store)
    fail_input(store, job)
    record(store)
    since = clock.now
    clock.advance(seconds=5)

    fail_input(store, job, replace(AWAY, message="The input cannot be read at present: another object"))
    assert record(store) == 0, "the same is wrong"
    problem = shown(store, job)
    assert problem is not None
    assert (problem.fault.error.message[-14:], problem.since) == ("another object", since)

    fail_input(store, job, replace(AWAY, code="storage_denied"))
    assert record(store) == 1
    problem = shown(store, job)
    assert problem is not None
    assert (problem.fault.error.code, problem.since) == ("storage_denied", clock.now)


def test_a_shard_whose_input_cannot_be_read_says_so_until_its_rows_are_stored(
    store: Store, clock: FakeClock
) -> None:
    job = planned(store)
    claim = claimed(store)
    Endings(claim, store).after_input(EXPIRED, tokens_lost=0)

    problem = shown(store, job)
    assert problem is not None
    assert (problem.fault.error.code, problem.fault.error.message) == ("storage_denied", READING)
    assert problem.fault.next_attempt_at is not None
    assert problem.fault.next_attempt_at > clock.now

    clock.advance(seconds=60)
    again = claimed(store)
    assert message(store, job) == READING, "nothing has succeeded yet"
    assert commit_rows(store, again.lease)
    assert shown(store, job) is None


@pytest.mark.parametrize("end", ["completes", "fails", "stops"])
def test_a_shard_that_has_ended_waits_for_nothing(store: Store, clock: FakeClock, end: str) -> None:
    job = planned(store)
    first = claimed(store)
    Endings(first, store).after_input(EXPIRED, tokens_lost=0)
    clock.advance(seconds=60)
    again = claimed(store)
    with store.transaction() as tx:
        if end == "completes":
            assert tx.shards.complete(again.lease, rows_total=0)
        elif end == "fails":
            assert tx.shards.fail_held(again.lease)
        else:
            assert tx.shards.stop_held(again.lease)

    assert shown(store, job) is None


def test_an_unforeseen_error_on_a_worker_is_a_problem_without_its_words(store: Store) -> None:
    job = planned(store)
    Endings(claimed(store), store).break_off(RuntimeError("/srv/secret: row 17"), tokens_lost=0)
    text = message(store, job)
    assert text is not None
    assert "unforeseen" in text
    assert "secret" not in text


def test_a_worker_that_was_lost_is_a_problem_until_another_goes_on(store: Store) -> None:
    job = planned(store)
    claimed(store, "worker_a")
    with store.transaction() as tx:
        recovery.release_worker(tx, "worker_a", 20, tx.now(), ExitCause.OUT_OF_MEMORY)
    problem = shown(store, job)
    assert problem is not None
    assert problem.fault.error.code == "worker_lost"
    assert commit_rows(store, claimed(store, "worker_b").lease)
    assert shown(store, job) is None


def test_a_worker_that_handed_back_in_order_is_none(store: Store) -> None:
    job = planned(store)
    Endings(claimed(store), store).hand_back(tokens_lost=0)
    assert shown(store, job) is None


def test_what_a_shard_waits_for_under_its_lease_names_nothing_of_the_services_own(store: Store) -> None:
    job = planned(store)
    ShardWaits(claimed(store), store).for_results(StorageUnavailable("s3://own/segments/other-tenant/x: 503"))
    expected = "Results cannot be kept at present: the service's own store cannot be reached or is failing"
    assert message(store, job) == expected


def test_what_a_shard_waits_for_is_written_once_and_forgotten_when_it_comes(store: Store) -> None:
    job = planned(store)
    claim = claimed(store)
    counting = Counting(store)
    waits = ShardWaits(claim, counting)  # type: ignore[arg-type]
    for _ in range(3):
        waits.for_results(StorageUnavailable("away"))
    assert counting.writes == 1
    waits.input_came()
    assert message(store, job) is not None, "results are still waited for"
    for _ in range(3):
        waits.results_came()
    assert (counting.writes, message(store, job)) == (2, None)
    waits.for_results(DatabaseUnavailable())  # the operator sees that
    assert (counting.writes, message(store, job)) == (2, None)


def test_what_is_told_again_after_a_checkpoint_is_shown_again(store: Store) -> None:
    job = planned(store)
    claim = claimed(store)
    waits = ShardWaits(claim, store)
    waits.for_results(StorageUnavailable())
    commit_rows(store, claim.lease)
    waits.checkpoint_listed()
    assert message(store, job) is None
    waits.for_results(StorageUnavailable())
    assert message(store, job) is not None


class Counting:
    """A store that counts its writing transactions."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.writes = 0

    def transaction(self) -> Any:
        self.writes += 1
        return self._store.transaction()


def test_a_late_worker_records_no_fault_over_the_success_of_the_next(store: Store, clock: FakeClock) -> None:
    job = planned(store)
    late = claimed(store, "worker_a")
    clock.advance(seconds=60)
    assert rescue(store) == 1
    assert commit_rows(store, claimed(store, "worker_b").lease)

    ShardWaits(late, store).for_results(StorageUnavailable("away"))
    Endings(late, store).after_input(EXPIRED, tokens_lost=0)

    assert shown(store, job) is None


def a_part_that_waits(store: Store, *, is_permanent: bool) -> Job:
    job = planned(store, shards=2)
    lease = claimed(store).lease
    assert commit_rows(store, lease)
    assert completed(store, lease, rows_total=4)
    limits = CutLimits(part_bytes=1, part_rows=1)
    with store.transaction() as tx:
        cut(tx, tx.jobs.fetch(job.id), limits, tx.now(), is_complete=False)
        claim = tx.parts.claim("scheduler_1", tx.now(), 30)
        assert claim is not None
        denied = InputError("storage_denied", "s3://out/: AccessDenied: no", param="output")
        problem = PartProblem(error=denied, is_permanent=is_permanent)
        assert tx.parts.hand_back(claim.lease, tx.now() + timedelta(seconds=9), problem)
    return job


def test_an_output_that_cannot_be_written_is_the_jobs_problem(store: Store, clock: FakeClock) -> None:
    job = a_part_that_waits(store, is_permanent=False)
    problem = shown(store, job)
    assert problem is not None
    expected = "The output cannot be written at present: s3://out/: AccessDenied: no"
    assert (problem.fault.error.message, problem.fault.is_permanent) == (expected, False)
    assert problem.fault.next_attempt_at == clock.now + timedelta(seconds=9)


def test_an_output_that_never_can_be_written_comes_before_all_else(store: Store) -> None:
    job = a_part_that_waits(store, is_permanent=True)
    ShardWaits(claimed(store), store).for_results(StorageUnavailable())
    problem = shown(store, job)
    assert problem is not None
    expected = "The output cannot be written: s3://out/: AccessDenied: no"
    assert (problem.fault.error.message, problem.fault.is_permanent) == (expected, True)


@pytest.mark.parametrize(
    ("worker", "job", "expected"),
    [
        ({"models": ("other",)}, {}, f"No worker that runs serves the model '{MODEL}' at present"),
        (
            {"models": (), "state": WorkerState.STARTING},
            {},
            f"No worker that runs serves the model '{MODEL}' at present; one is starting",
        ),
        (
            {"state": WorkerState.DRAINING},
            {},
            f"The workers that serve the model '{MODEL}' are shutting down",
        ),
        ({"state": WorkerState.STOPPED}, {}, f"No worker that runs serves the model '{MODEL}' at present"),
        (
            {},
            {"capacity": "spot"},
            f"No worker of the capacity 'spot' serves the model '{MODEL}'",
        ),
        ({"pools": ("b",)}, {"pool": "a"}, f"No worker of the pool 'a' serves the model '{MODEL}'"),
        ({"capacity": Capacity.SPOT, "pools": ("a",)}, {"capacity": "spot", "pool": "a"}, None),
        ({"pools": ("a",)}, {"capacity": "on_demand"}, None),
    ],
)
def test_a_job_that_no_worker_may_run_says_why(
    store: Store, worker: dict[str, Any], job: dict[str, Any], expected: str | None
) -> None:
    with store.transaction() as tx:
        [known] = tx.workers.list()
        tx.workers.mark(known.id, WorkerState.STOPPED, tx.now())
    serve(store, **worker)
    bulk = planned(store, spec=a_spec(**job))

    record(store)

    assert message(store, bulk) == expected
    assert recorded(store, bulk) == expected


def test_that_no_worker_is_there_is_over_as_soon_as_one_is(store: Store, clock: FakeClock) -> None:
    job = planned(store)
    clock.advance(seconds=31)  # the last worker is silent
    record(store)
    assert message(store, job) is not None
    serve(store, heartbeat_at=clock.now)
    assert message(store, job) is None
    record(store)
    assert [None if problem is None else problem["code"] for problem in told(store, job)] == [
        "no_worker",
        None,
    ]


def test_a_job_that_waits_for_nobody_but_its_owner_has_no_problem(store: Store, clock: FakeClock) -> None:
    paused, stopped = planned(store), planned(store)
    with store.transaction() as tx:
        tx.controls.pause(paused.tenant_id, paused.id, tx.now())
        request_stop(tx, tx.jobs.fetch(stopped.id), StopReason.CANCELLED, tx.now())
    clock.advance(seconds=31)
    assert record(store) == 0
    assert [message(store, job) for job in (paused, stopped)] == [None, None]


def test_an_online_request_that_no_worker_takes_says_so_too(store: Store, clock: FakeClock) -> None:
    job = submit_online(store).job
    assert message(store, job) is None
    clock.advance(seconds=31)
    assert message(store, job) == f"No worker that runs serves the model '{MODEL}' at present"
    assert record(store) == 0, "nothing is written of requests, which are many"


def test_a_jobs_end_is_the_end_of_its_problem_and_nothing_more_is_told(store: Store) -> None:
    job = submit(store)
    fail_input(store, job)
    record(store)
    with store.transaction() as tx:
        assert finish(tx, tx.jobs.fetch(job.id), JobState.FAILED, tx.now())
    assert (shown(store, job), recorded(store, job)) == (None, None)
    assert record(store) == 0
    assert len(told(store, job)) == 1


def test_of_two_schedulers_one_tells(store: Store) -> None:
    job = submit(store)
    fail_input(store, job)
    known = fetch(store, job)
    problem = problems.JobProblem(AWAY, store.now())
    for expected in (True, False):
        with store.transaction() as tx:
            assert problems.record_problem(tx, known, problem, tx.now()) is expected
    assert len(told(store, job)) == 1


def test_a_place_that_comes_and_goes_fills_no_table(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problems, "TOLD_MAX", 3)
    job = submit(store)
    for code in "abcdef":
        fail_input(store, job, replace(AWAY, code=code))
        assert record(store) == 1
    assert len(told(store, job)) == 3
    problem = fetch(store, job).problem
    assert problem is not None
    assert problem.error.code == "f", "the job shows the last"


def test_every_job_is_looked_at_however_many_have_problems(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problems, "JOBS_PER_PASS", 2)
    jobs = [submit(store) for _ in range(5)]
    for job in jobs:
        fail_input(store, job)
    recorder = ProblemRecorder(store)
    for _ in range(3):
        record(store, recorder)
    assert all(recorded(store, job) for job in jobs)


def test_receivers_that_name_it_are_told_once_what_is_wrong_and_that_it_is_over(store: Store) -> None:
    webhook = Webhook(url="https://receiver.example/hook", events=("job.problem",))
    job = submit(store, spec=a_spec(webhook=webhook))
    fail_input(store, job)
    record(store)
    assert [delivery["problem"]["code"] for delivery in owed(store, job)] == [AWAY.code]
    plan_page(store, job)
    record(store)
    assert [delivery["problem"] for delivery in owed(store, job)] == [None], "the last replaces it"


def owed(store: Store, job: Job) -> list[JsonObject]:
    with store.snapshot() as tx:
        due = tx.deliveries.due(tx.now(), 10)
    return [json.loads(delivery.body)["data"] for delivery in due if delivery.job_id == job.id]


def test_a_webhook_that_is_not_taken_is_the_problem_of_an_ended_job_until_it_is(
    store: Store, clock: FakeClock
) -> None:
    job = submit(store)
    with store.transaction() as tx:
        assert finish(tx, tx.jobs.fetch(job.id), JobState.FAILED, tx.now())
        delivery = a_delivery(job, event_type="job.failed")
        tx.deliveries.insert(delivery)
    assert shown(store, job) is None, "it was not tried yet"
    next_at = clock.now + timedelta(seconds=5)
    with store.transaction() as tx:
        attempt = an_attempt(delivery, status_code=503)
        tx.deliveries.record(delivery, attempt, DeliveryState.PENDING, next_at)

    problem = shown(store, job)
    assert problem is not None
    expected = "The webhook job.failed was not delivered: it answered 503"
    assert (problem.fault.error.message, problem.fault.next_attempt_at) == (expected, next_at)

    with store.transaction() as tx:
        tried = replace(delivery, attempts=1)
        tx.deliveries.record(tried, an_attempt(tried), DeliveryState.DELIVERED, next_at)
    assert shown(store, job) is None
