"""Workers and models, as the rest of the service sees them."""

from dataclasses import replace
from datetime import timedelta

from nightshift.fleet.models import Model, ModelKind
from nightshift.fleet.workers import Capacity, ExitCause, MachineNotice, NoticeKind, WorkerState
from nightshift.store import Store
from tests.helpers.fakes import FakeClock, a_worker
from tests.integration.store.racing import at_once, both_databases

MODEL = Model(id="demo", kind=ModelKind.DECODER, context_length=512, revision="abc")


def test_workers_in_some_states_come_in_pages_newest_first(store: Store, clock: FakeClock) -> None:
    states = (WorkerState.STARTING, WorkerState.READY, WorkerState.DRAINING)
    with store.transaction() as tx:
        for number in range(12):
            at = clock.now - timedelta(seconds=number // 2)  # two start at the same time
            tx.workers.register(a_worker(state=list(WorkerState)[number % 4], started_at=at))
        wanted = [worker.id for worker in tx.workers.list() if worker.state in states]

        ids, last = [], None
        while page := tx.workers.page(states, limit=2, after=last):
            last = page[-1]
            ids += [worker.id for worker in page]

    assert sorted(ids) == sorted(wanted)
    assert len(ids) == 9


def test_models_come_in_pages_by_id(store: Store, clock: FakeClock) -> None:
    with store.transaction() as tx:
        for id in ("b", "c", "a"):
            tx.workers.register_model(replace(MODEL, id=id), clock.now)

        first = tx.workers.models_page(limit=2)
        rest = tx.workers.models_page(limit=2, after=first[-1].id)

    assert [model.id for model in (*first, *rest)] == ["a", "b", "c"]


def test_a_worker_whose_registration_was_not_answered_registers_again(store: Store) -> None:
    wishes = {"capacity": Capacity.SPOT, "pools": ("night",)}
    worker = a_worker(models=("demo", "minilm"), state=WorkerState.STARTING, **wishes)
    for _ in range(2):
        with store.transaction() as tx:
            tx.workers.register(worker)

    with store.snapshot() as tx:
        assert tx.workers.list() == [worker]


def test_a_worker_is_ready_while_it_is_heard_of(store: Store, clock: FakeClock) -> None:
    worker = a_worker()
    with store.transaction() as tx:
        tx.workers.register(worker)
        assert tx.workers.mark(worker.id, worker.state, clock.advance(seconds=20))

        assert tx.workers.mark("worker_unknown", WorkerState.READY, clock.now) is False
        assert tx.workers.serves(worker.id, ["demo"], clock.now)
        assert tx.workers.ready_since(clock.now - timedelta(seconds=5)) == 1
        assert tx.workers.ready_since(clock.now + timedelta(seconds=1)) == 0
        assert tx.workers.mark(worker.id, WorkerState.DRAINING, clock.now)
        assert tx.workers.ready_since(clock.now - timedelta(seconds=5)) == 0


def test_a_worker_hears_that_it_is_to_drain_and_is_asked_only_once(store: Store, clock: FakeClock) -> None:
    worker = a_worker()
    with store.transaction() as tx:
        tx.workers.register(worker)
        assert tx.workers.record_heartbeat(worker.id, WorkerState.READY, clock.now) is False
        first = clock.now

        assert tx.workers.request_drain(worker.id, first) is True
        assert tx.workers.request_drain(worker.id, clock.advance(seconds=5)) is True
        assert tx.workers.record_heartbeat(worker.id, WorkerState.READY, clock.now) is True
        [told] = tx.workers.list()

    assert (told.drain_requested_at, told.heartbeat_at) == (first, clock.now)


def test_a_notice_keeps_the_time_at_which_it_came_until_it_is_withdrawn(
    store: Store, clock: FakeClock
) -> None:
    worker, ends_at = a_worker(), clock.now + timedelta(minutes=2)
    with store.transaction() as tx:
        tx.workers.register(worker)

        def told(notice: MachineNotice | None) -> MachineNotice | None:
            tx.workers.record_heartbeat(worker.id, WorkerState.READY, clock.now, notice=notice)
            known = tx.workers.get(worker.id)
            assert known is not None
            return known.notice

        first = clock.now
        assert told(None) is None
        assert told(MachineNotice(NoticeKind.REBALANCE, first)) == MachineNotice(NoticeKind.REBALANCE, first)
        repeated = MachineNotice(NoticeKind.INTERRUPTION, clock.advance(seconds=5), ends_at)
        assert told(repeated) == MachineNotice(NoticeKind.INTERRUPTION, first, ends_at)
        assert tx.workers.mark(worker.id, WorkerState.DRAINING, clock.now)
        assert tx.workers.list()[0].notice == MachineNotice(NoticeKind.INTERRUPTION, first, ends_at)
        assert told(None) is None


def test_a_worker_that_has_stopped_or_never_was_cannot_be_drained(store: Store, clock: FakeClock) -> None:
    worker = a_worker()
    with store.transaction() as tx:
        tx.workers.register(worker)
        assert tx.workers.ended(worker.id, ExitCause.KILLED, clock.advance(seconds=1))

        assert tx.workers.request_drain(worker.id, clock.now) is False
        assert tx.workers.request_drain("worker_unknown", clock.now) is False
        [stopped] = tx.workers.list()

    assert (stopped.ended_at, stopped.ended_cause) == (clock.now, ExitCause.KILLED)
    assert stopped.heartbeat_at == worker.heartbeat_at


def test_silent_workers_are_marked_as_stopped_once(store: Store, clock: FakeClock) -> None:
    silent, alive = a_worker(), a_worker(heartbeat_at=clock.now + timedelta(seconds=50))
    with store.transaction() as tx:
        tx.workers.register(silent)
        tx.workers.register(alive)
        clock.advance(seconds=60)

        assert tx.workers.mark_lost(clock.now - timedelta(seconds=30)) == (silent.id,)
        assert tx.workers.mark_lost(clock.now - timedelta(seconds=30)) == ()
        [stopped] = tx.workers.list(state=WorkerState.STOPPED)
        assert (stopped.id, stopped.heartbeat_at) == (silent.id, silent.heartbeat_at)


def test_models_keep_the_order_of_the_worker_that_lists_them(store: Store) -> None:
    with store.transaction() as tx:
        for position, id in enumerate(["zephyr", "demo", "minilm"]):
            model = Model(id=id, kind=ModelKind.DECODER, context_length=512, revision="r", position=position)
            tx.workers.register_model(model, tx.now())

        assert [model.id for model in tx.workers.models()] == ["zephyr", "demo", "minilm"]
        assert tx.workers.model("unknown") is None


def test_a_model_registered_again_is_brought_up_to_date(store: Store, clock: FakeClock) -> None:
    first_seen = clock.now
    with store.transaction() as tx:
        tx.workers.register_model(MODEL, clock.now)
        newer = Model(id="demo", kind=ModelKind.DECODER, context_length=1024, revision="def")
        tx.workers.register_model(newer, clock.advance(days=1))

        model = tx.workers.model("demo")
        assert model is not None
        assert (model.context_length, model.revision, model.created_at) == (1024, "def", first_seen)


def test_an_adapter_is_registered_with_the_model_that_it_changes(store: Store, clock: FakeClock) -> None:
    with store.transaction() as tx:
        for model in (MODEL, replace(MODEL, id="sum", revision="abc+def", parent=MODEL.id)):
            tx.workers.register_model(model, clock.now)
        parents = {model.id: model.parent for model in tx.workers.models()}
    assert parents == {MODEL.id: None, "sum": MODEL.id}


@both_databases
def test_workers_that_start_together_register_one_model(store: Store) -> None:
    def register() -> None:
        with store.transaction() as tx:
            tx.workers.register_model(MODEL, tx.now())
            tx.workers.register(a_worker())

    at_once(register, register, register, register)

    with store.snapshot() as tx:
        assert [model.id for model in tx.workers.models()] == ["demo"]
        assert len(tx.workers.list()) == 4


def test_what_is_known_of_a_model_stays_known_when_it_is_registered_unloaded(store: Store) -> None:
    unloaded = replace(MODEL, context_length=None)
    with store.transaction() as tx:
        tx.workers.register_model(unloaded, tx.now())
        assert tx.workers.models()[0].context_length is None
        tx.workers.register_model(replace(MODEL, dtype="float32"), tx.now())
        tx.workers.register_model(unloaded, tx.now())
        [known] = tx.workers.models()
        assert (known.context_length, known.dtype) == (512, "float32")

        tx.workers.register_model(replace(unloaded, revision="changed"), tx.now())
        assert tx.workers.models()[0].context_length is None


def test_a_worker_says_which_models_it_has_warm(store: Store) -> None:
    worker = a_worker(models=(), state=WorkerState.STARTING)
    with store.transaction() as tx:
        tx.workers.register(worker)
        tx.workers.serves(worker.id, ["chat", "embed"], tx.now())
        assert tx.workers.list()[0].warm == ("chat", "embed")  # all, where it says nothing

        assert tx.workers.record_models(worker.id, ["chat", "embed"], ["chat"])
        assert tx.workers.list()[0].warm == ("chat",)
