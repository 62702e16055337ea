"""Online requests, of which some take a while to tokenize or to build: they are open from the claim on,
however long they wait for their turn.
"""

import threading
from collections.abc import Callable
from functools import partial

import pytest

from nightshift.jobs import JobState, OnlineClaim, ShardState
from tests.unit.workers.online.conftest import WAIT_MAX_S, Online, SlowServer
from tests.unit.workers.scripted import prompt_of
from workers.online.runner import PREPARING_MAX, OnlineRunner


@pytest.fixture
def model() -> SlowServer:
    return SlowServer()


@pytest.fixture
def runner_type() -> type[OnlineRunner]:
    return OnlineRunner


@pytest.fixture
def claims(online: Online, model: SlowServer) -> list[OnlineClaim]:
    """As many as are prepared at a time, and two that wait for that."""
    claims = [online.run(text_of(number)) for number in range(PREPARING_MAX + 2)]
    model.wait_until_begun(PREPARING_MAX)
    return claims


def text_of(number: int) -> str:
    return f"text {number}"


def let_all_be_prepared(online: Online, model: SlowServer) -> None:
    """Returns when nothing is being prepared any more, nor waits for it."""
    model.may_end.set()
    assert online.runner._preparing.wait_until_idle(WAIT_MAX_S)


def test_each_has_a_place_and_a_lease_that_is_renewed(
    online: Online, model: SlowServer, claims: list[OnlineClaim]
) -> None:
    """Else one worker claims all there are, although others have places."""
    assert online.runner.count == len(claims)

    online.clock.advance(15)
    assert online.heartbeat.beat()
    online.clock.advance(15)
    assert all(online.heartbeat.trusts(claim.lease) for claim in claims)

    model.may_end.set()
    for inference in model.wait_for(len(claims)):
        model.answer(inference.id)
    assert online.runner.count == 0


@pytest.mark.parametrize("position", [0, -1], ids=["while it is prepared", "while it waits for that"])
@pytest.mark.parametrize("how", [Online.lose, Online.cancel])
def test_one_that_is_closed_meanwhile_does_not_run(
    online: Online,
    model: SlowServer,
    claims: list[OnlineClaim],
    how: Callable[[Online, OnlineClaim], None],
    position: int,
) -> None:
    gone = claims[position]
    how(online, gone)
    assert online.runner.count == len(claims) - 1
    if how is Online.cancel:
        online.ended()  # before its text has become tokens
        assert online.job(gone).state is JobState.CANCELLED

    let_all_be_prepared(online, model)

    others = [text_of(number) for number, claim in enumerate(claims) if claim is not gone]
    assert sorted(prompt_of(inference) for inference in model.running.values()) == others
    if position == -1:
        assert len(model.submitted) == len(others), "its text was not even looked at"


def test_a_drain_hands_back_all_that_wait_and_waits_for_none(
    online: Online, model: SlowServer, claims: list[OnlineClaim]
) -> None:
    online.runner.drain(0)

    assert not model.may_end.is_set(), "nothing has become tokens meanwhile"
    assert [online.shard_state(claim) for claim in claims] == [ShardState.QUEUED] * len(claims)
    let_all_be_prepared(online, model)
    assert model.running == {}


def test_a_drain_lets_what_it_has_begun_to_prepare_finish_in_time(
    online: Online, model: SlowServer, claims: list[OnlineClaim]
) -> None:
    draining = threading.Thread(target=partial(online.runner.drain, WAIT_MAX_S))
    draining.start()
    model.may_end.set()
    for inference in model.wait_for(PREPARING_MAX):
        model.answer(inference.id)
    draining.join(WAIT_MAX_S)

    states = [online.shard_state(claim) for claim in claims]
    assert states == [ShardState.DONE] * PREPARING_MAX + [ShardState.QUEUED] * 2


def test_one_that_is_closed_during_preparation_counts_as_inside_until_that_ends(
    online: Online, model: SlowServer, claims: list[OnlineClaim]
) -> None:
    """It may be in the engine for a step: a suspect that ran then would not be alone."""
    for claim in claims:
        online.lose(claim)
    assert online.runner.count == 0

    suspect = object()
    assert not online.isolation.enter_alone(suspect)
    let_all_be_prepared(online, model)
    assert online.isolation.enter_alone(suspect)


@pytest.mark.parametrize("how", [Online.lose, Online.cancel])
def test_a_suspect_that_is_closed_during_preparation_lets_others_in(
    online: Online, model: SlowServer, how: Callable[[Online, OnlineClaim], None]
) -> None:
    claim = online.run(is_suspect=True)
    model.wait_until_begun(1)
    how(online, claim)
    assert not online.isolation.enter(object()), "its text is still on its way into the engine"

    model.may_end.set()
    assert online.isolation.wait_to_enter_alone(object(), lambda: False)
    assert model.running == {}


def test_one_without_a_thread_to_prepare_it_is_handed_back_at_once(
    online: Online, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    claim = online.claim()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        online.run(claim)

    assert online.runner.count == 0
    assert not online.heartbeat.trusts(claim.lease)
    assert online.shard_state(claim) is ShardState.QUEUED


def test_a_flood_of_one_tenants_holds_up_no_claim_and_no_other_tenants_request(
    online: Online, model: SlowServer, claims: list[OnlineClaim]
) -> None:
    """However short they are: one with many choices takes as long to build as a long text."""
    online.run(online.claim("another's", tenant_id="another"))
    model.wait_until_begun(1)
    assert online.runner.count == len(claims) + 1
