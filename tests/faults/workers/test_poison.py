"""Rows that crash workers: each costs three workers, and no other row."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from sqlalchemy import select

from nightshift.errors import NightshiftError
from nightshift.fleet.workers import ExitCause
from nightshift.jobs import JobState
from nightshift.jobs.dead_letters import CRASHES_MAX, ERROR_CODE
from nightshift.store import tables
from tests.faults.chaos import oracle
from tests.faults.chaos.oracle import Limits
from tests.faults.chaos.workload import BulkJob, Job, Row, submit_bulk, submit_online
from tests.faults.kit.service import Parts, Service, Stamp
from tests.helpers.waiting import wait_for

WAIT_MAX_S = 180.0  # some workers die in turn, and each takes its time to start
POISONS = 3  # at once, in any test
# Every loss may have been another's; one is the test's.
LIMITS = Limits(attempts_max=POISONS * CRASHES_MAX + 2)


@pytest.fixture(scope="module")
def service(request, module_service_of) -> Service:
    """Two workers; a job is one shard, all of which is in the engine at once."""
    parts = Parts(database=request.param, workers=2)
    return module_service_of(
        parts, SHARD_BYTES="1000000", ROWS_IN_FLIGHT_MAX="128", ENGINE_MAX_NUM_SEQS="128"
    )


def rows(count: int, poison: Mapping[int, str] = {}) -> list[Row]:
    """Short rows, some of which have such words in them."""
    return [
        poisonous(f"row-{number}", poison[number])
        if number in poison
        else Row(f"row-{number}", f"harmless {number}", max_tokens=4)
        for number in range(count)
    ]


def poisonous(custom_id: str, words: str) -> Row:
    return Row(custom_id, f"{custom_id} {words}", max_tokens=4, ends_as="errored")


def run(service: Service, jobs: Sequence[Job]) -> None:
    oracle.quiesce(service, jobs, WAIT_MAX_S)
    oracle.check(service, jobs, LIMITS)


def letters(service: Service, job: Job) -> dict[str | None, dict[str, Any]]:
    """A job's dead letters, by the row's name."""
    with service.client() as client:
        return {letter["custom_id"]: letter for letter in client.dead_letters() if letter["job_id"] == job.id}


def runs(service: Service, job: Job, row: int = 0) -> list[Stamp]:
    """Each time a row of a job's one shard was given to an engine."""
    with service.store.snapshot() as tx:
        [shard] = tx.shards.of_job(job.id, limit=1)
    name = f"{job.id}/0/{row}" if isinstance(job, BulkJob) else shard.id
    return [stamp for stamp in service.stamps() if stamp.what == "added" and stamp.row == name]


def beside(service: Service, run: Stamp) -> set[str]:
    """Other rows of the shard that were in the engine with a row that ended the engine's life."""
    inside: set[str] = set()
    ran = False
    for stamp in service.stamps():
        ran = ran or stamp == run
        if stamp.lease == run.lease and stamp != run:
            if stamp.what == "added":
                inside.add(stamp.id)
            elif not ran:
                inside.discard(stamp.id)
    return inside


def lost(service: Service) -> dict[str, ExitCause]:
    """Workers whose exit was seen, and why."""
    worker = tables.worker
    ended = select(worker.c.id, worker.c.ended_cause).where(worker.c.ended_cause.is_not(None))
    with service.database.read() as connection:
        return {row.id: ExitCause(row.ended_cause) for row in connection.execute(ended)}


def explained_losses(service: Service, job: Job) -> list[int]:
    """Workers that failed by themselves with each dead row of a job. One that the test kills, or whose lease
    expires on a busy machine, comes on top.
    """
    crash, dead = tables.row_crash, tables.dead_row
    same_row = (dead.c.shard_id == crash.c.shard_id) & (dead.c.row == crash.c.row)
    of_dead = select(crash.c.explained).join(dead, same_row).where(dead.c.job_id == job.id)
    with service.database.read() as connection:
        return list(connection.execute(of_dead).scalars())


def replayed(service: Service, letter: Mapping[str, Any]) -> dict[str, Any]:
    """The line of the job as which a dead letter ran again."""
    with service.client() as client:
        again = client.replay_dead_letter(letter["id"])["replay_job_id"]
        wait_for("the replay has ended", lambda: client.get_job(again).state.is_terminal)
        (line,) = client.results(again)
        with pytest.raises(NightshiftError, match=f"replayed already, as {again}"):
            client.replay_dead_letter(letter["id"])
    return line


@pytest.mark.parametrize("service", ["sqlite"], indirect=True)
def test_one_row_among_128_that_aborts_costs_three_workers_and_no_other_row(service: Service) -> None:
    before = lost(service)
    job = submit_bulk(service, rows(128, {40: "!abort@3 ms=50"}))

    run(service, [job])

    causes = [cause for id, cause in lost(service).items() if id not in before]
    assert causes == [ExitCause.ABORTED] * CRASHES_MAX
    assert len(runs(service, job, 40)) == CRASHES_MAX
    assert beside(service, runs(service, job, 40)[-1]) == set()
    with service.client() as client:
        (line,) = [line for line in client.results(job.id) if line["custom_id"] == "row-40"]
    assert line["response"]["body"]["error"]["code"] == ERROR_CODE
    (letter,) = letters(service, job).values()
    assert (letter["custom_id"], letter["cause"], letter["crashes"]) == ("row-40", "aborted", 3)
    with service.mended():
        assert replayed(service, letter)["outcome"] == "succeeded"


@pytest.mark.parametrize(
    "service", ["sqlite", pytest.param("postgresql", marks=pytest.mark.exhaustive)], indirect=True
)
def test_several_poisons_at_once_and_a_worker_killed_cost_no_other_row(
    service: Service,
) -> None:
    before = lost(service)
    bad = submit_bulk(service, rows(40, {5: "!exit 137", 30: "!raise"}))
    good = submit_bulk(service, rows(40))
    request = submit_online(service, poisonous("online", "!abort"))
    others = [submit_online(service, row) for row in rows(5)]
    wait_for("a first worker has died", lambda: lost(service).keys() - before.keys())
    service.kill("worker-2")

    run(service, [bad, good, request, *others])

    assert set(letters(service, bad)) == {"row-5", "row-30"}
    assert [letters(service, one) for one in (good, *others)] == [{}] * (1 + len(others))
    assert all(losses <= CRASHES_MAX for losses in explained_losses(service, bad))
    assert all(losses <= CRASHES_MAX for losses in explained_losses(service, request))
    (letter,) = letters(service, request).values()
    with service.client() as client, service.mended():
        ended = client.get_job(request.id)
        assert (ended.state, ended.data["errors"][0]["code"]) == (JobState.FAILED, ERROR_CODE)
        assert replayed(service, letter)["outcome"] == "succeeded"
        discarded = client.discard_dead_letter(letters(service, bad)["row-5"]["id"])
        waiting = {letter["id"] for letter in client.dead_letters(status="dead")}
    assert waiting == {letters(service, bad)["row-30"]["id"]}, discarded["id"]
