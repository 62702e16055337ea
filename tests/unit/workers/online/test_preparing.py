"""Online requests, of which some take a while to tokenize or to build: they are open from the claim on,
however long they wait for their turn.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from nightshift.jobs import JobState, OnlineClaim, ShardState, StopReason
from nightshift.lifecycle import transitions
from nightshift.store import Store
from tests.unit.workers.scripted import ManualClock, RecordingStreams, ScriptedServer, claim_online, prompt_of
from workers.leases.heartbeat import Heartbeat
from workers.leases.isolation import Isolation
from workers.online.runner import PREPARING_MAX, OnlineRunner
from workers.serving.model_server import Inference
from workers.serving.models import Models

WAIT_MAX_S = 60


class SlowServer(ScriptedServer):
    """Tokenizes a text only when the test lets it."""

    def __init__(self) -> None:
        super().__init__("demo")
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Event()

    def submit(self, inference: Inference) -> None:
        self.begun.release()
        assert self.may_end.wait(WAIT_MAX_S)
        super().submit(inference)

    def wait_until_begun(self, count: int) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=WAIT_MAX_S), "nothing was begun"


@pytest.fixture
def model() -> SlowServer:
    return SlowServer()


@pytest.fixture
def isolation() -> Isolation:
    return Isolation()


@pytest.fixture
def runner(
    store: Store,
    model: SlowServer,
    models: Models,
    streams: RecordingStreams,
    heartbeat: Heartbeat,
    isolation: Isolation,
) -> Iterator[OnlineRunner]:
    runner = OnlineRunner(store, models, streams, heartbeat, isolation=isolation)  # type: ignore[arg-type]
    runner.start()
    yield runner
    model.may_end.set()
    runner.drain(0)


@pytest.fixture
def claims(store: Store, model: SlowServer, runner: OnlineRunner, clock: ManualClock) -> list[OnlineClaim]:
    """As many as are prepared at a time, and two that wait for that."""
    claims = [claim_online(store, text_of(number)) for number in range(PREPARING_MAX + 2)]
    for claim in claims:
        runner.run(claim, clock())
    model.wait_until_begun(PREPARING_MAX)
    return claims


def text_of(number: int) -> str:
    return f"text {number}"


def let_all_be_prepared(model: SlowServer, runner: OnlineRunner) -> None:
    """Returns when nothing is being prepared any more, nor waits for it."""
    model.may_end.set()
    assert runner._preparing.wait_until_idle(WAIT_MAX_S)


def shard_state(store: Store, claim: OnlineClaim) -> ShardState:
    with store.snapshot() as tx:
        [shard] = tx.shards.of_job(claim.job.id, limit=1)
    return shard.state


def lose(store: Store, claim: OnlineClaim) -> None:
    with store.transaction() as tx:
        [lost] = [one for one in tx.leases.of_worker("worker-1", 10) if one.shard_id == claim.lease.shard_id]
        assert tx.leases.requeue(lost)


def cancel(store: Store, claim: OnlineClaim) -> None:
    with store.transaction() as tx:
        assert transitions.request_stop(tx, tx.jobs.fetch(claim.job.id), StopReason.CANCELLED, tx.now())


def test_each_has_a_place_and_a_lease_that_is_renewed(
    runner: OnlineRunner,
    model: SlowServer,
    streams: RecordingStreams,
    heartbeat: Heartbeat,
    clock: ManualClock,
    claims: list[OnlineClaim],
) -> None:
    """Else one worker claims all there are, although others have places."""
    assert runner.count == len(claims)

    clock.advance(15)
    assert heartbeat.beat()
    clock.advance(15)
    assert all(heartbeat.trusts(claim.lease) for claim in claims)

    model.may_end.set()
    for inference in model.wait_for(len(claims)):
        model.answer(inference.id)
    assert runner.count == 0


@pytest.mark.parametrize("position", [0, -1], ids=["while it is prepared", "while it waits for that"])
@pytest.mark.parametrize("how", [lose, cancel])
def test_one_that_is_closed_meanwhile_does_not_run(
    store: Store,
    runner: OnlineRunner,
    model: SlowServer,
    streams: RecordingStreams,
    heartbeat: Heartbeat,
    claims: list[OnlineClaim],
    how: Callable[[Store, OnlineClaim], None],
    position: int,
) -> None:
    gone = claims[position]
    how(store, gone)
    heartbeat.beat()
    assert runner.count == len(claims) - 1
    if how is cancel:
        assert streams.ended.acquire(timeout=WAIT_MAX_S), "it is ended before its text has become tokens"
        with store.snapshot() as tx:
            assert tx.jobs.fetch(gone.job.id).state is JobState.CANCELLED

    let_all_be_prepared(model, runner)

    others = [text_of(number) for number, claim in enumerate(claims) if claim is not gone]
    assert sorted(prompt_of(inference) for inference in model.running.values()) == others
    if position == -1:
        assert len(model.submitted) == len(others), "its text was not even looked at"


def test_a_drain_hands_back_all_that_wait_and_waits_for_none(
    store: Store, runner: OnlineRunner, model: SlowServer, claims: list[OnlineClaim]
) -> None:
    runner.drain(0)

    assert not model.may_end.is_set(), "nothing has become tokens meanwhile"
    assert [shard_state(store, claim) for claim in claims] == [ShardState.QUEUED] * len(claims)
    let_all_be_prepared(model, runner)
    assert model.running == {}


def test_a_drain_lets_what_it_has_begun_to_prepare_finish_in_time(
    store: Store, runner: OnlineRunner, model: SlowServer, claims: list[OnlineClaim]
) -> None:
    draining = threading.Thread(target=partial(runner.drain, WAIT_MAX_S))
    draining.start()
    model.may_end.set()
    for inference in model.wait_for(PREPARING_MAX):
        model.answer(inference.id)
    draining.join(WAIT_MAX_S)

    states = [shard_state(store, claim) for claim in claims]
    assert states[:PREPARING_MAX] == [ShardState.DONE] * PREPARING_MAX
    assert states[PREPARING_MAX:] == [ShardState.QUEUED] * 2


def test_one_that_is_closed_during_preparation_counts_as_inside_until_that_ends(
    store: Store,
    runner: OnlineRunner,
    model: SlowServer,
    heartbeat: Heartbeat,
    isolation: Isolation,
    claims: list[OnlineClaim],
) -> None:
    """It may be in the engine for a step: a suspect that ran then would not be alone."""
    for claim in claims:
        lose(store, claim)
    heartbeat.beat()
    assert runner.count == 0

    suspect = object()
    assert not isolation.enter_alone(suspect)
    let_all_be_prepared(model, runner)
    assert isolation.enter_alone(suspect)


@pytest.mark.parametrize("how", [lose, cancel])
def test_a_suspect_that_is_closed_during_preparation_lets_others_in(
    store: Store,
    runner: OnlineRunner,
    model: SlowServer,
    streams: RecordingStreams,
    heartbeat: Heartbeat,
    isolation: Isolation,
    clock: ManualClock,
    how: Callable[[Store, OnlineClaim], None],
) -> None:
    claim = replace(claim_online(store, text_of(0)), runs_alone=True)
    runner.run(claim, clock())
    model.wait_until_begun(1)
    how(store, claim)
    heartbeat.beat()
    assert not isolation.enter(object()), "its text is still on its way into the engine"

    model.may_end.set()
    other = object()
    assert isolation.wait_to_enter_alone(other, lambda: False)
    assert model.running == {}


def test_one_without_a_thread_to_prepare_it_is_handed_back_at_once(
    store: Store,
    runner: OnlineRunner,
    heartbeat: Heartbeat,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    claim = claim_online(store, text_of(0))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        runner.run(claim, clock())

    assert runner.count == 0
    assert not heartbeat.trusts(claim.lease)
    assert shard_state(store, claim) is ShardState.QUEUED


def test_a_flood_of_one_tenants_holds_up_no_claim_and_no_other_tenants_request(
    store: Store, runner: OnlineRunner, model: SlowServer, clock: ManualClock, claims: list[OnlineClaim]
) -> None:
    """However short they are: one with many choices takes as long to build as a long text."""
    runner.run(claim_online(store, "another's", tenant_id="another"), clock())
    model.wait_until_begun(1)
    assert runner.count == len(claims) + 1
