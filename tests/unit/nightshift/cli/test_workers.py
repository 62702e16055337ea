"""`nightshift workers`: what the operator sees of them, and sending one away."""

from datetime import timedelta

import pytest

from nightshift.fleet.workers import Capacity, ExitCause, MachineNotice, NoticeKind, WorkerState
from tests.helpers.fakes import a_worker


@pytest.fixture(autouse=True)
def workers(store) -> None:
    """One worker that is ready, on a spot machine, and one that was killed."""
    with store.transaction() as tx:
        tx.workers.register(a_worker(id="wrk_1", capacity=Capacity.SPOT, models=("demo",)))
        tx.workers.register(a_worker(id="wrk_0"))
        tx.workers.ended("wrk_0", ExitCause.KILLED, tx.now())


def test_workers_that_live_are_listed_and_those_that_have_stopped_if_asked_for(nightshift):
    [shown] = nightshift("workers", "list", "--json").json
    assert (shown["id"], shown["status"], shown["capacity"]) == ("wrk_1", "ready", "spot")
    assert (shown["models"], shown["drain_requested_at"], shown["ended_cause"]) == (["demo"], None, None)
    table = nightshift("workers", "list").out
    assert "wrk_1" in table
    assert "wrk_0" not in table

    listed = {shown["id"]: shown for shown in nightshift("workers", "list", "--all", "--json").json}
    assert (listed["wrk_0"]["status"], listed["wrk_0"]["ended_cause"]) == ("stopped", "killed")
    assert listed["wrk_0"]["ended_at"] is not None
    assert "killed" in nightshift("workers", "list", "--all").out


def test_a_worker_that_is_to_drain_is_told_with_its_next_heartbeat(nightshift, store):
    ended = nightshift("workers", "drain", "wrk_1")

    assert (ended.code, ended.err) == (0, "wrk_1 will drain\n")
    with store.transaction() as tx:
        assert tx.workers.record_heartbeat("wrk_1", WorkerState.READY, tx.now()) is True
    assert "drain requested" in nightshift("workers", "list").out


def test_a_worker_whose_machine_goes_says_so(nightshift, store):
    assert nightshift("workers", "list", "--json").json[0]["notice"] is None
    with store.transaction() as tx:
        notice = MachineNotice(NoticeKind.INTERRUPTION, tx.now(), tx.now() + timedelta(minutes=2))
        tx.workers.record_heartbeat("wrk_1", WorkerState.READY, tx.now(), notice=notice)

    [shown] = nightshift("workers", "list", "--json").json
    assert shown["notice"]["kind"] == "interruption"
    assert shown["notice"]["received_at"] < shown["notice"]["ends_at"]
    assert "interruption notice" in nightshift("workers", "list").out


@pytest.mark.parametrize("worker_id", ["wrk_0", "wrk_9"])
def test_a_worker_that_has_stopped_or_never_was_cannot_be_drained(nightshift, worker_id):
    ended = nightshift("workers", "drain", worker_id)

    assert (ended.code, ended.err) == (
        1,
        f"nightshift: id: There is no worker {worker_id} that could be drained; `nightshift workers list` "
        "shows those there are.\n",
    )
