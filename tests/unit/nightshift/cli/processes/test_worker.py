"""Handling of a worker that has died. The worker itself is another program: tests/e2e starts it."""

import itertools
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nightshift.cli.processes.children import AfterExit, ChildExit, Launch
from nightshift.cli.processes.gpus import WHOLE_MACHINE, Gpu, shares
from nightshift.cli.processes.worker_child import (
    EXITS_IN_A_ROW_MAX,
    WORKER_ID,
    WorkerExitHandler,
    cause_of,
    count_oom_kills,
    worker_children,
)
from nightshift.cli.session import data_settings
from nightshift.errors import DatabaseUnavailable
from nightshift.fleet.workers import (
    EXIT_DRAIN_TOO_SLOW,
    EXIT_ENGINE_DIED,
    EXIT_QUEUE_CONNECTION_LOST,
    ExitCause,
    WorkerState,
)
from nightshift.jobs import BulkClaim, JobKind, JobState, StopReason
from nightshift.jobs.priorities import HELD_MAX
from nightshift.lifecycle.transitions import request_stop
from nightshift.process.exit_codes import (
    CONFIGURATION_EXIT,
    NO_RESTART_EXIT,
    NO_RESTART_LATE_EXIT,
    UNAVAILABLE_EXIT,
)
from nightshift.process.settings import WorkerSettings
from nightshift.store import Store, open_database
from tests.helpers import fakes as testing


@pytest.fixture
def queue() -> testing.InMemoryQueue:
    return testing.InMemoryQueue()


@pytest.fixture
def a_handler(store: Store, queue: testing.InMemoryQueue) -> Callable[..., WorkerExitHandler]:
    """Makes handlers, by default on a machine whose memory suffices."""

    def make(store: Store = store, **options: Any) -> WorkerExitHandler:
        return WorkerExitHandler(store, queue, **{"attempts_max": 20, "oom_kills": lambda: 0, **options})

    return make


@pytest.fixture
def handler(a_handler: Callable[..., WorkerExitHandler]) -> WorkerExitHandler:
    return a_handler()


@pytest.fixture
def held(store: Store) -> BulkClaim:
    """The only shard there is, which `wrk_1` holds; what its plan owed has long been rung."""
    testing.planned(store, shards=1)
    claim = testing.claimed(store, "wrk_1")
    with store.transaction() as tx:
        tx.outbox.delete([ring.id for ring in tx.outbox.waiting(tx.now(), 10)])
    return claim


def an_exit(worker_id: str = "wrk_1", *, returncode: int = -9, in_a_row: int = 1) -> ChildExit:
    launch = Launch((), {WORKER_ID: worker_id})
    return ChildExit(
        name="worker", pid=1, launch=launch, returncode=returncode, uptime_s=5.0, in_a_row=in_a_row
    )


def _unavailable(run: Callable[..., object], *, times: int) -> Callable[..., object]:
    """The database is away for so many calls."""
    left = iter(range(times))

    def runs(work: object) -> object:
        if next(left, None) is not None:
            raise DatabaseUnavailable
        return run(work)

    return runs


def test_a_dead_workers_shard_can_be_claimed_at_once_and_the_other_workers_are_told(
    store, handler, queue, held
):
    assert handler(an_exit(returncode=EXIT_ENGINE_DIED)) is AfterExit.RESTART

    assert [ring.kind for ring in queue.rings] == [JobKind.BULK]
    with store.snapshot() as tx:
        assert tx.outbox.length() == 0
    assert testing.claimed(store, "wrk_2").lease.term == held.lease.term + 1


def test_with_redis_away_the_ring_stays_in_the_outbox(store, handler, queue, held):
    queue.is_away = True

    handler(an_exit())

    with store.snapshot() as tx:
        assert tx.outbox.length() > 0


def test_a_database_that_is_away_just_then_is_asked_again(store, a_handler, held, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(store, "run", _unavailable(store.run, times=3))

    a_handler(pause=waits.append)(an_exit())

    assert len(waits) == 3
    assert testing.claimed(store, "wrk_2").lease.term == held.lease.term + 1


def test_a_database_that_stays_away_does_not_keep_a_worker_from_its_successor(a_handler, tmp_path, caplog):
    away = Store(open_database(data_settings(tmp_path / "nothing" / "here")))
    (tmp_path / "nothing" / "here").rmdir()
    seconds = itertools.count()  # each look at the clock is a second later
    handler = a_handler(away, pause=lambda _: None, clock_s=lambda: next(seconds))

    assert handler(an_exit()) is AfterExit.RESTART_SOON
    assert "leases of a worker that has ended not released" in caplog.text

    assert handler(an_exit(returncode=0)) is AfterExit.RESTART_SOON, "the operator may want it back"
    for returncode in (NO_RESTART_EXIT, NO_RESTART_LATE_EXIT):
        assert handler(an_exit(returncode=returncode)) is AfterExit.GIVE_UP, "it says so itself"
    assert handler.gave_up_on is None, "it did as it was told"
    away.close()


def test_what_another_worker_holds_is_left_alone(store, handler, held):
    handler(an_exit("wrk_2"))

    assert testing.commit_rows(store, held.lease) is True


def test_a_dead_worker_is_listed_as_stopped_and_why(store, handler):
    with store.transaction() as tx:
        tx.workers.register(testing.a_worker(id="wrk_1"))
    handler(an_exit(returncode=EXIT_ENGINE_DIED))
    with store.snapshot() as tx:
        [listed] = tx.workers.list()
    assert (listed.state, listed.ended_cause) == (WorkerState.STOPPED, ExitCause.ENGINE_DIED)
    assert listed.ended_at is not None


def test_an_online_request_that_was_told_to_stop_ends_with_its_worker(store, handler):
    online = testing.submit_online(store)
    testing.claimed_online(store, online.shard_id, "wrk_1")
    with store.transaction() as tx:
        request_stop(tx, online.job, StopReason.CANCELLED, tx.now())

    handler(an_exit())

    with store.snapshot() as tx:
        assert tx.jobs.fetch(online.job.id).state is JobState.CANCELLED


def test_a_request_that_has_cost_workers_often_enough_is_answered_with_an_error(store, a_handler):
    online = testing.submit_online(store)
    testing.claimed_online(store, online.shard_id, "wrk_1")

    a_handler(attempts_max=1)(an_exit())

    with store.snapshot() as tx:
        job = tx.jobs.fetch(online.job.id)
    assert job.state is JobState.FAILED
    assert job.counts.failed == 1


@pytest.mark.parametrize(
    ("returncode", "says"), [(0, "a worker has left"), (-signal.SIGKILL, "leases of a dead worker released")]
)
def test_a_worker_that_was_drained_is_not_called_dead(handler, caplog, returncode, says):
    caplog.set_level("INFO")

    handler(an_exit(returncode=returncode))

    assert caplog.messages == [says]


MAX = EXITS_IN_A_ROW_MAX


@pytest.mark.parametrize(
    ("returncode", "in_a_row", "after"),
    [
        pytest.param(EXIT_ENGINE_DIED, MAX - 1, AfterExit.RESTART, id="died"),
        pytest.param(EXIT_ENGINE_DIED, MAX, AfterExit.GIVE_UP, id="keeps dying"),
        pytest.param(CONFIGURATION_EXIT, 1, AfterExit.GIVE_UP, id="cannot run as configured"),
        pytest.param(UNAVAILABLE_EXIT, 100, AfterExit.RESTART, id="something it needs is away"),
        pytest.param(-signal.SIGKILL, 100, AfterExit.RESTART_SOON, id="killed"),
        pytest.param(-signal.SIGTERM, 100, AfterExit.RESTART_SOON, id="asked to end"),
        pytest.param(0, 100, AfterExit.RESTART_SOON, id="drained"),
        pytest.param(EXIT_DRAIN_TOO_SLOW, 100, AfterExit.RESTART_SOON, id="drained late"),
    ],
)
def test_what_follows_an_exit_depends_on_its_cause_and_how_often_it_died(
    handler, returncode, in_a_row, after
):
    ended = an_exit(returncode=returncode, in_a_row=in_a_row)

    assert handler(ended) is after
    assert handler.gave_up_on == (ended if after is AfterExit.GIVE_UP else None)


def test_a_worker_lost_to_a_row_it_ran_alone_is_started_again_at_once(store, handler):
    testing.planned(store, shards=1)
    testing.claimed(store, "wrk_0")
    with store.transaction() as tx:
        (lost,) = tx.leases.of_worker("wrk_0", 1)
        tx.leases.requeue(lost, isolate=True)
    testing.claimed(store, "wrk_1")

    assert handler(an_exit(returncode=EXIT_ENGINE_DIED, in_a_row=100)) is AfterExit.RESTART_SOON


@pytest.mark.parametrize("returncode", [0, EXIT_DRAIN_TOO_SLOW, EXIT_ENGINE_DIED, -signal.SIGKILL])
def test_a_worker_the_operator_drained_is_not_started_again(store, handler, returncode):
    with store.transaction() as tx:
        tx.workers.register(testing.a_worker(id="wrk_1"))
        tx.workers.request_drain("wrk_1", tx.now())

    assert handler(an_exit(returncode=returncode)) is AfterExit.GIVE_UP
    assert handler.gave_up_on is None, "it did as it was told"


LEAVES_WITH = [
    *(0, EXIT_DRAIN_TOO_SLOW, EXIT_QUEUE_CONNECTION_LOST),
    *(NO_RESTART_EXIT, NO_RESTART_LATE_EXIT, -signal.SIGTERM),
]


def crashes(store: Store) -> int:
    """Workers the only shard has cost, as its next holder hears."""
    return testing.claimed(store, "wrk_2").crash_history.crashes


@pytest.mark.parametrize("returncode", LEAVES_WITH)
def test_a_drain_exit_that_was_not_requested_with_leases_held_may_be_a_rows_doing(
    store, handler, held, returncode
):
    with store.transaction() as tx:
        tx.workers.register(testing.a_worker(id="wrk_1"))

    assert handler(an_exit(returncode=returncode)) is AfterExit.RESTART, "after a wait, and counted"

    assert crashes(store) == 1
    with store.snapshot() as tx:
        [listed] = tx.workers.list()
    assert listed.ended_cause is ExitCause.UNREQUESTED_DRAIN


@pytest.mark.parametrize(
    "returncode",
    [*LEAVES_WITH[:2], *(pytest.param(code, marks=pytest.mark.exhaustive) for code in LEAVES_WITH[2:])],
)
@pytest.mark.parametrize(
    ("state", "is_asked", "was_told"),
    [
        pytest.param(WorkerState.DRAINING, False, False, id="by a notice or a signal from elsewhere"),
        pytest.param(WorkerState.READY, True, False, id="by the operator"),
        pytest.param(WorkerState.READY, False, True, id="by its supervisor, while the database was away"),
    ],
)
def test_a_worker_that_was_asked_to_leave_and_did_not_hand_everything_back_costs_no_attempt(
    store, handler, held, returncode, state, is_asked, was_told
):
    with store.transaction() as tx:
        tx.workers.register(testing.a_worker(id="wrk_1", state=state))
        if is_asked:
            tx.workers.request_drain("wrk_1", tx.now())

    handler.record_exit(an_exit(returncode=returncode), was_told=was_told)

    assert crashes(store) == 0


def test_a_kill_for_want_of_memory_is_told_from_another(a_handler):
    kills = iter([3, 3, 4])  # at the start, at the first exit, at the second
    handler = a_handler(oom_kills=lambda: next(kills))

    causes = [handler.record_exit(an_exit(returncode=-signal.SIGKILL)).cause for _ in range(2)]

    assert causes == [ExitCause.KILLED, ExitCause.OUT_OF_MEMORY]


@pytest.mark.parametrize(
    ("returncode", "cause"),
    [
        (0, ExitCause.DRAINED),
        (EXIT_QUEUE_CONNECTION_LOST, ExitCause.QUEUE_CONNECTION_LOST),
        (NO_RESTART_EXIT, ExitCause.DRAINED),
        (NO_RESTART_LATE_EXIT, ExitCause.DRAIN_TOO_SLOW),
        (1, ExitCause.EXITED),
        (137, ExitCause.OUT_OF_MEMORY),
        (-signal.SIGABRT, ExitCause.ABORTED),
        (-signal.SIGSEGV, ExitCause.SIGNAL),
        (-signal.SIGTERM, ExitCause.DRAINED),
    ],
)
def test_the_cause_of_a_death_is_read_from_how_the_process_ended(returncode, cause):
    assert cause_of(returncode, oom_kills=0) is cause


def test_kills_for_want_of_memory_are_counted_in_the_control_group_else_on_the_machine(tmp_path):
    assert count_oom_kills(tmp_path) == 0
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 5\noom_kill 7\n")
    assert count_oom_kills(tmp_path) == 7

    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/nightshift.service\n")
    group = tmp_path / "sys/fs/cgroup/system.slice/nightshift.service"
    group.mkdir(parents=True)
    (group / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 2\noom_kill 2\noom_group_kill 0\n")
    assert count_oom_kills(tmp_path) == 2


def test_every_start_has_a_worker_id_of_its_own_and_our_pool():
    [child] = worker_children(WorkerSettings(models=("a", "b"), online_slots=10), [WHOLE_MACHINE])
    first, second = child.launch(), child.launch()

    assert first.environment[WORKER_ID] != second.environment[WORKER_ID]
    assert first.environment["NIGHTSHIFT_MODELS"] == "a,b"
    assert first.environment["CELERY_CUSTOM_WORKER_POOL"] == "workers.pool:EnginePool"
    assert f"--queues online,bulk --concurrency {10 + HELD_MAX}" in " ".join(first.command)


def test_a_machine_with_several_gpus_has_a_worker_for_each_with_its_own_metrics_port():
    settings = WorkerSettings(models=("a",), worker_metrics_port=9102)
    children = worker_children(settings, shares(3, [Gpu("GPU-a"), Gpu("GPU-b"), Gpu("GPU-c")]))

    assert [child.name for child in children] == ["worker-1", "worker-2", "worker-3"]
    environments = [child.launch().environment for child in children]
    names = ("CUDA_VISIBLE_DEVICES", "NIGHTSHIFT_WORKER_METRICS_PORT")
    assert [tuple(environment[name] for name in names) for environment in environments] == [
        ("GPU-a", "9102"),
        ("GPU-b", "9103"),
        ("GPU-c", "9104"),
    ]


def test_one_worker_of_several_that_stays_away_leaves_the_others(store, queue):
    handler = WorkerExitHandler(store, queue, attempts_max=20, workers=2, oom_kills=lambda: 0)
    broken = an_exit(returncode=EXIT_ENGINE_DIED, in_a_row=EXITS_IN_A_ROW_MAX)

    assert handler(broken) is AfterExit.LEAVE
    assert handler(an_exit("wrk_2", returncode=EXIT_ENGINE_DIED)) is AfterExit.RESTART
    assert handler(an_exit("wrk_2", returncode=EXIT_ENGINE_DIED, in_a_row=EXITS_IN_A_ROW_MAX)) is (
        AfterExit.GIVE_UP
    )
    assert handler.gave_up_on is not None


def test_a_worker_without_a_model_is_refused(nightshift):
    ended = nightshift("worker")
    assert (ended.code, ended.err) == (
        1,
        "nightshift: model: a worker needs a model: use --model, --upstream, NIGHTSHIFT_MODELS or "
        "NIGHTSHIFT_UPSTREAMS\n",
    )


def test_a_worker_with_an_adapter_of_a_model_that_is_not_named_does_not_start(nightshift, tmp_path):
    ended = nightshift("worker", "--model", "/models/chat", "--model", f"sum=other+{tmp_path}")
    assert ended.code == 1
    assert "'sum' is for 'other', which is not among the models that are loaded at start" in ended.err


@pytest.mark.parametrize(
    ("otherwise", "is_well"),
    [
        ({}, True),
        ({"state": WorkerState.STARTING}, False),
        ({"host": "somewhere-else"}, False),
        ({"heartbeat_at": testing.STARTS_AT}, False),
    ],
)
def test_a_health_check_passes_while_a_worker_on_this_host_is_ready(nightshift, store, otherwise, is_well):
    now = store.now()
    worker = testing.a_worker(host=socket.gethostname(), started_at=now, heartbeat_at=now)
    with store.transaction() as tx:
        tx.workers.register(replace(worker, **otherwise))

    ended = nightshift("worker", "--check")

    said = "" if is_well else f"nightshift: no worker on {socket.gethostname()} is ready\n"
    assert (ended.code, ended.err) == (0 if is_well else 1, said)
