"""`after_cancelled` calls back once cancelled requests are out of the engine, not while a step is stuck."""

import threading
from collections.abc import Iterator

import pytest

from nightshift.fleet.models import Model, ModelKind
from workers.serving.busy import WINDOW_S, RecentShare
from workers.serving.model_server import Inference
from workers.serving.stepping_server import SteppingServer

WAIT_MAX_S = 60


class OneRequestServer(SteppingServer):
    """One request is in its engine; each step lasts until the test lets it end. The step after a cancel takes
    the request out.
    """

    def __init__(self) -> None:
        self.has_one = True
        self.is_cancelled = False
        self.step_began, self.step_may_end = threading.Semaphore(0), threading.Semaphore(0)
        model = Model(id="demo", kind=ModelKind.DECODER, context_length=128, revision="r1")
        super().__init__(model, on_fatal=lambda error: None)

    def submit(self, inference: Inference) -> None:
        raise NotImplementedError

    def cancel(self, inference_id: str) -> None:
        self.is_cancelled = True

    @property
    def _has_work(self) -> bool:
        return self.has_one

    def _step(self) -> None:
        was_cancelled = self.is_cancelled
        self.step_began.release()
        assert self.step_may_end.acquire(timeout=WAIT_MAX_S)
        self.has_one = not was_cancelled


@pytest.fixture
def server() -> Iterator[OneRequestServer]:
    server = OneRequestServer()
    yield server
    server.is_cancelled = True
    for _ in range(3):
        server.step_may_end.release()
    server.stop()


def test_a_cancelled_request_is_gone_once_a_step_has_taken_it_out(server: OneRequestServer) -> None:
    server.start()
    assert server.step_began.acquire(timeout=WAIT_MAX_S)
    was_there: list[bool] = []
    taken_out = threading.Event()

    def callback() -> None:
        was_there.append(server.has_one)
        taken_out.set()

    server.cancel("stuck")
    server.after_cancelled(callback)
    assert not taken_out.is_set()
    server.step_may_end.release()
    assert server.step_began.acquire(timeout=WAIT_MAX_S), "it was in that step, and is taken out by this one"
    assert not taken_out.is_set()
    server.step_may_end.release()

    assert taken_out.wait(WAIT_MAX_S)
    assert was_there == [False]


def test_an_idle_engine_calls_back(server: OneRequestServer) -> None:
    server.has_one = False
    server.start()
    taken_out = threading.Event()

    server.after_cancelled(taken_out.set)

    assert taken_out.wait(WAIT_MAX_S)


def test_an_engine_that_does_not_run_calls_back_at_once(server: OneRequestServer) -> None:
    taken_out = threading.Event()

    server.after_cancelled(taken_out.set)

    assert taken_out.is_set()


def test_an_engine_that_is_stopped_calls_back_for_what_it_still_holds(server: OneRequestServer) -> None:
    """Goal: a model that is unloaded right after a cancel leaves nothing that is waited for for ever."""
    server.start()
    assert server.step_began.acquire(timeout=WAIT_MAX_S)
    server.cancel("one")
    taken_out = threading.Event()
    server.after_cancelled(taken_out.set)
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    wait_until_stopping(server)
    server.step_may_end.release()
    stopping.join(WAIT_MAX_S)

    assert taken_out.is_set()


def wait_until_stopping(server: OneRequestServer) -> None:
    """`stop` has told the engine's thread, which is in a step."""
    with server._changed:
        assert server._changed.wait_for(lambda: server._is_stopping, WAIT_MAX_S)


def test_an_engine_that_has_become_idle_is_idle() -> None:
    busy = RecentShare(0.0)
    for second in range(1, 101):
        busy.note(float(second), float(second))

    assert busy.at(100.0, 100.0) == pytest.approx(1.0)
    assert busy.at(100.0 + WINDOW_S, 100.0) == 0.0
    assert busy.at(100.0 + WINDOW_S / 2, 100.0) == pytest.approx(0.5, abs=0.1)

    busy.note(1000.0, 100.0)
    assert busy.at(1000.0 + WINDOW_S, 100.0 + WINDOW_S) == pytest.approx(1.0), "it is busy again at once"


def test_a_share_is_of_the_last_seconds_of_its_clock() -> None:
    share = RecentShare()
    assert share.at(0.0, 0.0) is None
    assert share.at(0.1, 0.05) == pytest.approx(0.5)

    for second in range(1, 101):
        share.note(float(second), 0.8 * min(second, 50) + 0.2 * max(0, second - 50))

    assert share.at(100.0, 50.0) == pytest.approx(0.2)
    assert share.at(100.0 + WINDOW_S, 50.0 + 12.0) > 0.2 * 2, "more than its clock: it is not cut"
