"""Spot notices: whether a worker leaves, and whether it starts under one."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from nightshift.fleet.workers import Capacity, MachineNotice, NoticeKind, WorkerState
from nightshift.fleet.workers import Machine as WorkerMachine
from nightshift.outbound.cloud_metadata import Notice
from nightshift.process.settings import WorkerSettings
from nightshift.store import Store
from tests.helpers.fakes import a_worker
from workers.health import notices
from workers.health.notices import Notices
from workers.health.registration import Registration
from workers.leases.heartbeat import Heartbeat

WAIT_MAX_S = 60.0
REBALANCE = Notice("cloud", NoticeKind.REBALANCE, None)
INTERRUPTION = Notice("cloud", NoticeKind.INTERRUPTION, None, event_id="event-1")


@dataclass
class Cloud:
    """Stands for a provider."""

    notice: Notice | None = None
    name: str = "cloud"
    interval_s: float = 0.01
    acknowledged: list[str] = field(default_factory=list)
    looks: int = 0
    looked: threading.Condition = field(default_factory=threading.Condition)

    def poll(self) -> Notice | None:
        with self.looked:
            self.looks += 1
            self.looked.notify_all()
        return self.notice

    def acknowledge(self, event_id: str) -> None:
        self.acknowledged.append(event_id)

    def wait_for_looks(self, count: int) -> None:
        with self.looked:
            goal = self.looks + count
            assert self.looked.wait_for(lambda: self.looks >= goal, WAIT_MAX_S)


@dataclass
class Machine:
    """One worker, `wrk_1`, as far as notices go."""

    store: Store
    heartbeat: Heartbeat
    cloud: Cloud
    has_left: threading.Event = field(default_factory=threading.Event)

    def notices(self, **settings: Any) -> Notices:
        known = WorkerSettings(models=("/models/demo",), drain_s=0.001, bulk_drain_s=0.001, **settings)
        registration = Registration(self.store, "wrk_1", WorkerMachine(Capacity(known.capacity)))
        return Notices(self.cloud, known, registration, self.heartbeat, self.has_left.set)

    def has_beside_it(self, **worker: Any) -> None:
        with self.store.transaction() as tx:
            now = tx.now()
            tx.workers.register(a_worker(started_at=now, heartbeat_at=now, **worker))


@pytest.fixture
def machine(store: Store, heartbeat: Heartbeat) -> Machine:
    return Machine(store, heartbeat, Cloud())


def aside(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def test_an_interruption_is_followed_by_whatever_machine(machine: Machine) -> None:
    machine.notices(capacity="on_demand").wait_until_withdrawn()
    machine.cloud.notice = INTERRUPTION

    assert machine.has_left.wait(WAIT_MAX_S)


def test_a_notice_is_told_with_heartbeats_until_it_is_withdrawn(machine: Machine) -> None:
    ends_at = machine.store.now() + timedelta(minutes=2)

    def recorded() -> MachineNotice | None:
        machine.heartbeat.beat()
        with machine.store.snapshot() as tx:
            worker = tx.workers.get("worker-1")
            assert worker is not None
            return worker.notice

    machine.has_beside_it(id="worker-1")  # whose heartbeat it is
    machine.notices(capacity="spot").wait_until_withdrawn()
    assert recorded() is None

    machine.cloud.notice = Notice("cloud", NoticeKind.INTERRUPTION, ends_at)
    machine.cloud.wait_for_looks(2)
    told = recorded()
    assert told is not None
    assert (told.kind, told.ends_at) == (NoticeKind.INTERRUPTION, ends_at)

    machine.cloud.notice = None
    machine.cloud.wait_for_looks(2)
    assert recorded() is None


def test_a_recommendation_is_followed_once_another_worker_can_replace_this_one(machine: Machine) -> None:
    machine.notices(capacity="spot").wait_until_withdrawn()
    machine.cloud.notice = REBALANCE
    machine.has_beside_it(id="wrk_2", models=("another-model",), capacity=Capacity.SPOT)
    machine.has_beside_it(id="wrk_3", models=("demo",), capacity=Capacity.SPOT, state=WorkerState.STARTING)
    machine.cloud.wait_for_looks(3)
    assert not machine.has_left.is_set()

    machine.has_beside_it(id="wrk_4", models=("demo", "another-model"), capacity=Capacity.SPOT)
    assert machine.has_left.wait(WAIT_MAX_S)


@pytest.mark.parametrize("capacity", ["spot", "on_demand"])
def test_a_recommendation_is_not_for_the_last_machine_of_its_kind_nor_for_one_that_is_there_to_stay(
    machine: Machine, capacity: str
) -> None:
    """A recommendation is never withdrawn on AWS: a worker that left for it would never come back."""
    machine.has_beside_it(id="wrk_2", models=("demo",), capacity=Capacity.ON_DEMAND)
    machine.notices(capacity=capacity).wait_until_withdrawn()
    machine.cloud.notice = REBALANCE
    machine.cloud.wait_for_looks(3)

    assert not machine.has_left.is_set()


def test_a_worker_started_under_a_notice_waits_until_it_is_withdrawn(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "workers.health.notices")
    machine.cloud.notice = INTERRUPTION
    waiting = aside(machine.notices().wait_until_withdrawn)
    machine.cloud.wait_for_looks(3)

    assert waiting.is_alive()
    assert machine.heartbeat.state is WorkerState.DRAINING
    assert not machine.has_left.is_set(), "it has nothing to leave with"

    machine.cloud.notice = None
    waiting.join(WAIT_MAX_S)
    assert not waiting.is_alive()
    assert machine.heartbeat.state is WorkerState.STARTING
    actions = [record.__dict__["action"] for record in caplog.records]
    assert (actions[0], actions[-1], actions.count("waits")) == ("waits", "waited_out", 1)
    assert machine.cloud.acknowledged == ["event-1"], "once"


def test_a_worker_does_not_wait_for_ever_for_a_look_that_does_not_end(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A metadata server whose answers drip can hold a look for as long as it likes."""
    monkeypatch.setattr(notices, "LOOK_MAX_S", 0.05)
    monkeypatch.setattr(notices, "NOTICE_VALID_S", 1.0)
    machine.cloud.notice = INTERRUPTION
    waiting = aside(machine.notices().wait_until_withdrawn)
    machine.cloud.wait_for_looks(2)

    with machine.cloud.looked:  # no look ends from here on
        waiting.join(WAIT_MAX_S)
    assert not waiting.is_alive()


def test_without_a_provider_a_start_does_not_wait(store: Store, heartbeat: Heartbeat) -> None:
    settings = WorkerSettings(models=("demo",))
    registration = Registration(store, "wrk_1", WorkerMachine(Capacity.ON_DEMAND))

    Notices(None, settings, registration, heartbeat, on_leave=lambda: None).wait_until_withdrawn()
