"""Lazy models come and go with the work that waits for them."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from nightshift.errors import ConfigurationError, UnknownModel
from nightshift.fleet.models import Model, ModelKind
from nightshift.fleet.workers import Machine, WorkerState
from nightshift.jobs import JobKind, OnlineClaim
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle import transitions
from nightshift.store import Store, Transaction
from tests.helpers.fakes import a_worker
from tests.unit.workers.scripted import (
    LEASE_TTL_S,
    ManualClock,
    ScriptedServer,
    a_job,
    chat_body,
    plan_bulk,
)
from workers.serving.model_server import ModelServer
from workers.serving.models import LazyModel, Models
from workers.serving.residency.policy import Load, ResidencyConfig, Unload
from workers.serving.residency.residency import REFUSED, Residency

CONFIG = ResidencyConfig(residency_s=60.0, idle_s=600.0)
WAIT_MAX_S = 30.0


class Work:
    """Runs something of each model; shards that are handed back are gone."""

    def __init__(self) -> None:
        self.online: Counter[str] = Counter()
        self.shards: Counter[str] = Counter()
        self.handed_back: list[str] = []

    def count_of(self, model_id: str) -> int:
        return self.online[model_id] + self.shards[model_id]

    def hand_back_of(self, model_id: str) -> None:
        self.handed_back.append(model_id)
        self.shards[model_id] = 0


class Registered:
    """Notes what the database says of this worker, over time."""

    def __init__(self) -> None:
        self.history: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        self.loaded: list[Model] = []
        self.elsewhere: set[str] = set()

    def models_changed(self, served: Sequence[str], warm: Sequence[str], loaded: Model | None = None) -> None:
        self.history.append((tuple(served), tuple(warm)))
        self.loaded += [loaded] if loaded is not None else []

    def warm_elsewhere(self, tx: Transaction) -> set[str]:
        return self.elsewhere


class Worker:
    """A worker with a pinned model and two lazy ones, of which one fits at a time."""

    def __init__(self, store: Store, clock: ManualClock, *, room_for: int = 1) -> None:
        self.store, self.clock = store, clock
        self.loads: list[str] = []
        self.broken: set[str] = set()
        self.work, self.registered = Work(), Registered()
        self.changes = 0
        self.prepared: list[ModelServer] = []
        lazy = [self._lazy(id, capacity_bytes=10 * room_for) for id in ("embed", "translate")]
        self.models = Models([ScriptedServer("chat"), *lazy])
        self.residency = Residency(
            store,
            self.models,
            self.work,
            self.registered,
            self.prepared.append,
            machine=Machine(),
            config=CONFIG,
            on_change=self._changed,
            clock_s=clock,
        )

    def _lazy(self, id: str, capacity_bytes: int) -> LazyModel:
        def load() -> ModelServer:
            self.loads.append(id)
            if id in self.broken:
                raise ConfigurationError("its file is broken", param="MODELS")
            return ScriptedServer(id)

        return LazyModel(Model(id=id, kind=ModelKind.DECODER, revision="r1"), 10, load, capacity_bytes)

    def _changed(self) -> None:
        self.changes += 1

    def look(self) -> Load | Unload | None:
        return self.residency.run_once(self.clock())

    def ask(self, model: str) -> str:
        """An online request; its shard's id."""
        new = replace(a_job(JobKind.ONLINE, model=model), priority=PriorityClass.INTERACTIVE)
        with self.store.transaction() as tx:
            submitted = transitions.submit_online(tx, new, chat_body("hi"), tx.now())
        assert submitted.shard_id is not None
        return submitted.shard_id

    def claim(self, *shard_ids: str) -> Sequence[OnlineClaim]:
        with self.store.transaction() as tx:
            return tx.claims.online(shard_ids, "worker-1", self.models.warm, tx.now(), LEASE_TTL_S)

    @property
    def warm(self) -> set[str]:
        return set(self.models.warm)


@pytest.fixture
def worker(store: Store, clock: ManualClock) -> Worker:
    return Worker(store, clock)


def test_a_model_is_loaded_when_a_request_waits_for_it_and_then_its_work_is_claimed(worker: Worker) -> None:
    assert worker.look() is None
    shard_id = worker.ask("embed")
    assert not worker.claim(shard_id)

    assert worker.look() == Load("embed")

    assert worker.warm == {"chat", "embed"}
    assert (worker.loads, worker.changes) == (["embed"], 1)
    assert [server.model.id for server in worker.prepared] == ["embed"]
    served = ("chat", "embed", "translate")
    assert worker.registered.history == [(served, ("chat", "embed"))] * 2, "while it is loaded, and then"
    assert [model.context_length for model in worker.registered.loaded] == [128]
    assert worker.claim(shard_id)
    assert worker.look() is None


def test_a_job_waits_for_the_warm_work_before_its_model_replaces_another(worker: Worker) -> None:
    plan_bulk(worker.store, "s3://bucket/a.jsonl", model="embed")
    worker.look()
    worker.clock.advance(100)
    plan_bulk(worker.store, "s3://bucket/b.jsonl", model="translate")
    assert worker.look() is None  # a shard of embed's job still waits

    with worker.store.transaction() as tx:
        assert tx.claims.bulk("worker-1", ["embed"], tx.now(), LEASE_TTL_S)
    assert worker.look() == Load("translate", ("embed",))
    assert worker.warm == {"chat", "translate"}
    assert worker.residency.counts.swaps == 1


def test_a_request_that_a_client_waits_for_replaces_a_model_that_runs_rows(worker: Worker) -> None:
    """Its shards go back to the queue with what they have; nothing more is claimed for it."""
    plan_bulk(worker.store, "s3://bucket/a.jsonl", model="embed", shards=5)
    worker.look()
    worker.work.shards["embed"] = 3
    worker.clock.advance(61)
    worker.ask("translate")

    assert worker.look() == Load("translate", ("embed",))

    assert worker.work.handed_back == ["embed"]
    assert worker.warm == {"chat", "translate"}
    with pytest.raises(UnknownModel):
        worker.models.get("embed")


def test_online_requests_of_a_model_that_goes_are_answered_first(worker: Worker) -> None:
    worker.ask("embed")
    worker.look()
    worker.work.online["embed"] = 1
    worker.clock.advance(61)
    worker.ask("translate")
    looking = threading.Thread(target=worker.look, daemon=True)
    looking.start()
    while "embed" in worker.warm:
        assert looking.is_alive()

    assert worker.models.get("embed")  # retired, and still there for what it runs
    worker.work.online["embed"] = 0
    looking.join(WAIT_MAX_S)
    assert worker.warm == {"chat", "translate"}


def test_chats_are_answered_in_turns_of_a_residency_beside_a_flood_for_another_model(worker: Worker) -> None:
    """The flood never ends, and has waited for longer than any chat."""
    for _ in range(20):
        worker.ask("embed")
    waits: list[float] = []
    chats: list[tuple[str, float]] = []
    for second in range(0, 480, 10):
        worker.ask("embed")
        if second % 60 == 0:
            chats.append((worker.ask("translate"), worker.clock()))
        worker.look()
        if "translate" in worker.warm:
            waits += [worker.clock() - asked_s for _, asked_s in chats]
            assert len(worker.claim(*(id for id, _ in chats))) == len(chats)
            chats.clear()
        worker.clock.advance(10)

    assert len(waits) >= 6
    assert max(waits) <= 2 * CONFIG.residency_s
    assert len(worker.loads) <= 1 + 480 / CONFIG.residency_s


def test_models_that_fit_together_are_warm_together(store: Store, clock: ManualClock) -> None:
    worker = Worker(store, clock, room_for=2)
    worker.ask("embed")
    worker.ask("translate")

    worker.look()
    worker.look()

    assert worker.warm == {"chat", "embed", "translate"}


def test_a_model_without_work_is_unloaded_and_its_memory_is_free(worker: Worker) -> None:
    shard_id = worker.ask("embed")
    worker.look()
    worker.claim(shard_id)
    worker.work.online["embed"] = 1
    worker.clock.advance(10_000)
    assert worker.look() is None  # it still runs something

    worker.work.online["embed"] = 0
    worker.clock.advance(599)
    assert worker.look() is None
    worker.clock.advance(1)
    assert worker.look() == Unload("embed")
    assert worker.registered.history[-1] == (("chat", "embed", "translate"), ("chat",))


def test_a_model_that_cannot_be_loaded_is_not_served_until_it_can_be(worker: Worker) -> None:
    worker.broken.add("embed")
    worker.ask("embed")

    worker.look()
    assert worker.registered.history[-1] == (("chat", "translate"), ("chat",))
    assert worker.look() is None  # not again at once
    worker.clock.advance(REFUSED.first_s)
    worker.look()
    assert worker.loads == ["embed", "embed"]

    worker.broken.clear()
    worker.clock.advance(REFUSED.first_s)
    assert worker.look() is None  # twice as long after the second failure
    worker.clock.advance(REFUSED.first_s)
    worker.look()
    assert worker.registered.history[-1] == (("chat", "embed", "translate"), ("chat", "embed"))


def test_work_is_left_to_workers_of_its_pool_and_to_one_that_has_its_model_warm(worker: Worker) -> None:
    plan_bulk(worker.store, "s3://bucket/a.jsonl", model="translate", pool="gpu")
    worker.registered.elsewhere = {"embed"}
    worker.ask("embed")

    assert worker.look() is None


def test_after_it_was_told_to_stop_no_model_starts(worker: Worker) -> None:
    worker.ask("embed")
    worker.residency.stop()

    worker.look()

    assert worker.warm == {"chat"}


def test_what_is_warm_on_ready_workers_is_known_to_the_others(store: Store) -> None:
    with store.transaction() as tx:
        now = tx.now()
        for id, state, warm in (
            ("wrk_me", WorkerState.READY, ["a"]),
            ("wrk_2", WorkerState.READY, ["b"]),
            ("wrk_3", WorkerState.DRAINING, ["c"]),
            ("wrk_4", WorkerState.READY, None),
        ):
            tx.workers.register(
                a_worker(id=id, models=("a", "b", "c", "d"), heartbeat_at=now, started_at=now)
            )
            tx.workers.serves(id, ["d"], now, warm)
            tx.workers.mark(id, state, now)

        assert tx.workers.warm_elsewhere("wrk_me", now - timedelta(seconds=30)) == {"b", "d"}
