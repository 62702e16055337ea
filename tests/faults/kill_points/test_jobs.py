"""A process that kills itself between two effects leaves nothing that is not mended.

Method: while the service runs, one failpoint is armed; whichever process comes by dies there by `kill -9` and
is started again. Then every row is compared with the answer it must have. docs/failpoints.md says of
each of these instants how the service goes on.
"""

import os
import signal
import uuid

import httpx
import pytest
from sqlalchemy import select

from nightshift.bulk.results.segments import decode_segment
from nightshift.fleet.workers import WorkerState
from nightshift.jobs import Face
from nightshift.store import tables
from nightshift.tenants.keys import DEFAULT_TENANT
from tests.faults.chaos import oracle
from tests.faults.chaos.oracle import Limits
from tests.faults.chaos.workload import OnlineJob, Row, some_rows, submit_bulk, submit_online
from tests.faults.kit.launch import SCALED
from tests.faults.kit.service import Parts
from tests.helpers.waiting import wait_for

LATER = pytest.mark.exhaustive
KILLED_ONCE = Limits(attempts_max=3)
SHARDS_HELD_MAX = 13  # of a tenant and a model, beside no others (`nightshift/jobs/priorities.py`)
ROWS_UNLISTED_MAX = 2 * int(SCALED["SEGMENT_ROWS"])  # of a shard: a segment on its way, and one being filled
LONG_ROWS = some_rows(60, step_ms=20, tokens=(40, 60))
LONGER_ROWS = some_rows(60, step_ms=20, tokens=(150, 200))  # outlast a carry-over's interval on any machine
SMALL = Parts(workers=2, schedulers=2)  # PostgreSQL dies with processes in test_stored.py, too
LARGE = Parts(database="postgresql", objects="moto", workers=2, schedulers=2)


@pytest.fixture(scope="module", params=[SMALL, pytest.param(LARGE, marks=pytest.mark.exhaustive)], ids=str)
def service(request, module_service_of):
    """One for all deaths there are on it: it has to survive them one after another, too."""
    return module_service_of(request.param)


@pytest.fixture(autouse=True)
def nothing_is_left_armed(service):
    yield
    assert service.disarm() == [], "no process reached it"


def judge(service, *jobs):
    oracle.judge(service, jobs, KILLED_ONCE)


# -- K1 to K3: the API -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("api.before_commit", marks=LATER),
        "api.committed",
        pytest.param("api.rung", marks=LATER),
    ],
)
def test_an_api_that_dies_while_it_accepts_a_job_makes_one_job_of_it_and_of_its_repeat(service, point):
    row = Row("one", f"dies at {point}")
    headers = {"idempotency-key": uuid.uuid4().hex}
    before = jobs_known(service)
    service.arm(point)

    with service.http() as http:
        body = {"endpoint": "chat", "body": row.body(service.model)}
        body["webhook"] = {"url": service.receiver.numeric_url}
        with pytest.raises(httpx.TransportError):
            http.post("/v1/jobs", json=body, headers=headers)
        stored = jobs_known(service) - before
        service.wait_until_ready()
        repeats = [http.post("/v1/jobs", json=body, headers=headers) for _ in range(2)]

    assert len(stored) == (0 if point == "api.before_commit" else 1)
    assert [repeat.status_code for repeat in repeats] == [202, 202]
    ids = {repeat.json()["id"] for repeat in repeats}
    assert ids == jobs_known(service) - before
    assert stored <= ids
    judge(service, OnlineJob(ids.pop(), row))


def jobs_known(service):
    with service.store.snapshot() as tx:
        return {job.id for job in tx.jobs.list(DEFAULT_TENANT, limit=1000)}


# -- K4 to K6: between the message and the claim ------------------------------------------------------------


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("worker.fetched", marks=LATER),
        "worker.received",
        pytest.param("worker.claimed", marks=LATER),
    ],
)
def test_a_message_that_dies_with_its_worker_is_only_a_message(service, point):
    service.arm(point)
    jobs = [submit_online(service, row) for row in some_rows(3, seed=uuid.uuid4().int)]
    service.wait_for_death(point)
    judge(service, *jobs)


@pytest.mark.parametrize("point", ["worker.claimed", "worker.segment_stored"])
def test_a_worker_that_dies_with_a_shard_of_which_nothing_is_listed_loses_no_row(service, point):
    """Its segment is written again under the next lease."""
    service.arm(point)
    job = submit_bulk(service, some_rows(60))
    service.wait_for_death(point)
    judge(service, job)


# -- K7 to K9: in the middle of a shard ---------------------------------------------------------------------


def test_a_worker_that_dies_in_the_middle_of_its_rows_costs_at_most_a_segment_of_them(service):
    job = submit_bulk(service, some_rows(120, step_ms=10))
    wait_for("rows are done", lambda: progress(service, job) > 0)

    service.arm("worker.row_heard")
    service.wait_for_death("worker.row_heard")

    judge(service, job)
    assert rows_finished_twice(service, job) <= SHARDS_HELD_MAX * ROWS_UNLISTED_MAX


def test_rows_of_a_listed_segment_are_never_run_again(service):
    job = submit_bulk(service, some_rows(60))
    service.arm("worker.segment_listed")
    service.wait_for_death("worker.segment_listed")
    listed = rows_listed(service, job)

    judge(service, job)

    assert listed
    assert [row for row in listed if times_finished(service, row) != 1] == []


# -- K10 to K12: at the end of a job ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "face"),
    [
        ("scheduler.planning", Face.OPENAI),
        pytest.param("scheduler.planned", Face.NATIVE, marks=LATER),
        pytest.param("scheduler.before_output", Face.NATIVE, marks=LATER),
        pytest.param("part.claimed", Face.NATIVE, marks=LATER),
        pytest.param("part.begun", Face.NATIVE, marks=LATER),
        pytest.param("part.staged", Face.NATIVE, marks=LATER),
        pytest.param("part.published", Face.NATIVE, marks=LATER),
        pytest.param("scheduler.output_begun", Face.NATIVE, marks=LATER),
        pytest.param("scheduler.part_written", Face.OPENAI, marks=LATER),
        ("scheduler.output_written", Face.OPENAI),
    ],
)
def test_a_scheduler_that_dies_over_a_job_leaves_it_to_the_next_which_writes_the_same_bytes(
    service, point, face
):
    service.arm(point)
    job = submit_bulk(service, some_rows(20), face=face)
    service.wait_for_death(point)
    service.let_another_lead()
    judge(service, job)


def test_a_scheduler_that_dies_between_two_pages_of_a_job_leaves_the_rest_to_the_next(service):
    service.arm("scheduler.page_planned")
    job = submit_bulk(service, some_rows(300))
    service.wait_for_death("scheduler.page_planned")
    begun = service.job(job.id)
    service.let_another_lead()
    judge(service, job)
    assert (begun.planned_at, begun.plan_cursor.page, begun.plan_cursor.shards) == (None, 1, 2)
    ended = service.job(job.id)
    assert (ended.counts.succeeded, ended.plan_cursor.page > 2) == (300, True)


@pytest.mark.parametrize(
    "point", [pytest.param("scheduler.job_ended", marks=LATER), "scheduler.webhook_sent"]
)
def test_a_webhook_whose_sender_dies_is_sent_under_the_same_id(service, point):
    service.arm(point)
    job = submit_bulk(service, some_rows(10))
    service.wait_for_death(point)
    service.let_another_lead()
    oracle.wait_for_ends(service, [job])
    service.let_webhooks_be_due()
    oracle.quiesce(service, [job])

    verdict = oracle.check(service, [job], KILLED_ONCE)

    assert verdict.repeated_webhooks == (point == "scheduler.webhook_sent")


def test_an_answer_that_was_recorded_and_not_announced_is_found_by_its_client(service):
    service.arm("worker.answered")
    job = submit_online(service, Row("one", "recorded"))
    service.wait_for_death("worker.answered")
    judge(service, job)
    (shard,) = service.shards(job.id)
    assert times_finished(service, shard.id) == 1


# -- on the way out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point",
    [pytest.param(point, marks=LATER) for point in ("worker.carry_over_stored", "worker.handed_back")],
)
def test_a_worker_that_dies_while_it_leaves_loses_no_row(service, point):
    job = submit_bulk(service, LONGER_ROWS)
    role = holder(service, job)
    service.arm(point)
    service.kill(role, signal.SIGTERM)
    service.wait_for_death(point)
    judge(service, job)


def test_a_worker_that_is_killed_in_the_middle_of_leaving_loses_no_row(service):
    job = submit_bulk(service, LONG_ROWS)
    role = holder(service, job)
    pid = service.kill(role, signal.SIGTERM)
    wait_for("it leaves", lambda: service.worker_of(pid).state is not WorkerState.READY)
    os.kill(pid, signal.SIGKILL)
    judge(service, job)


# -- back from the dead -------------------------------------------------------------------------------------


def test_a_worker_that_wakes_after_its_lease_changes_nothing_and_works_on(service):
    """Its rows are another's by then. It is woken while that one runs them."""
    job = submit_bulk(service, LONG_ROWS)
    role = holder(service, job)
    before = {lease.shard_id: lease.term for lease in leases(service, job, service.pid(role))}
    service.pause(role)
    wait_for("its leases are others'", lambda: all(terms(service, job)[id] > before[id] for id in before))
    listed = segments_of(service, before)
    service.resume(role)

    judge(service, job)

    assert segments_of(service, before) == listed
    service.stop(other(role))
    judge(service, submit_bulk(service, some_rows(20)))
    service.start(other(role))


def test_a_scheduler_that_wakes_while_another_leads_ends_no_job_twice(service):
    leading = leader(service)
    job = submit_bulk(service, some_rows(40, step_ms=20))
    service.pause(leading)
    wait_for("another one leads", lambda: leader(service) not in (None, leading))
    another = submit_bulk(service, some_rows(20))
    service.resume(leading)
    judge(service, job, another)


# -- what was seen ------------------------------------------------------------------------------------------


def progress(service, job):
    counts = service.job(job.id).counts
    return counts.succeeded + counts.failed


def rows_listed(service, job):
    """The rows whose results exist, as the engines know them: job/shard/row."""
    with service.store.snapshot() as tx:
        shards = tx.shards.of_job(job.id, limit=1000)
        segments = {shard.shard_no: tx.shards.segments(shard.id) for shard in shards}
    return [
        f"{job.id}/{shard_no}/{result.row}"
        for shard_no, listed in segments.items()
        for segment in listed
        for result in decode_segment(service.objects.read(segment.key))
    ]


def times_finished(service, row):
    return sum(stamp.row == row and stamp.what == "done" for stamp in service.stamps())


def rows_finished_twice(service, job):
    done = [stamp.row for stamp in service.stamps() if stamp.what == "done" and stamp.row.startswith(job.id)]
    return len(done) - len(set(done))


def leases(service, job, pid):
    """Leases of a job that the worker with this process id holds."""
    worker = service.worker_of(pid)
    held = service.leases(worker.id) if worker else []
    return [lease for lease in held if lease.job_id == job.id]


def holder(service, job):
    """A worker that runs rows of this job, once there is one."""
    holders = []

    def is_under_way():
        roles = [role for role in service.kept if role.startswith("worker")]
        holders[:] = [role for role in roles for pid in service.pids(role) if leases(service, job, pid)]
        return holders and any(stamp.row.startswith(job.id) for stamp in service.stamps())

    wait_for("its rows are under way", is_under_way)
    return holders[0]


def segments_of(service, terms):
    """Keys of the segments that are listed of these shards under these terms."""
    with service.store.snapshot() as tx:
        listed = {id: tx.shards.segments(id) for id in terms}
    return {segment.key for id, term in terms.items() for segment in listed[id] if segment.term == term}


def other(worker):
    """The other one of two."""
    return {"worker-1": "worker-2", "worker-2": "worker-1"}[worker]


def terms(service, job):
    return {shard.id: shard.term for shard in service.shards(job.id)}


def leader(service):
    """The scheduler that leads, by role."""
    with service.database.read() as connection:
        id = connection.execute(select(tables.leadership.c.leader_id)).scalar()
    roles = [role for role in service.kept if role.startswith("scheduler")]
    return next((role for role in roles for pid in service.pids(role) if f"-{pid}-" in str(id)), None)
