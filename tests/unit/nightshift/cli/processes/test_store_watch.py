"""An operator is told of a store that takes no requests, once, and of its return."""

import threading
from queue import SimpleQueue

from nightshift.cli.processes.store_watch import StoreWatch, StoreWatchConfig

AT_ONCE = StoreWatchConfig(interval_s=0.001, calm_interval_s=0.001, silent_s=3600)
WAIT_S = 30.0


class Store:
    """A store that takes requests or not; `asked` counts the questions."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason
        self.probed = threading.Semaphore(0)

    def __call__(self) -> str | None:
        self.probed.release()
        return self.reason

    def wait_until_asked(self, times: int) -> None:
        for _ in range(times):
            assert self.probed.acquire(timeout=WAIT_S)


def test_a_store_that_takes_no_requests_is_told_of_once_and_so_is_its_return() -> None:
    said: SimpleQueue[str] = SimpleQueue()
    store = Store("ExpiredToken: it has expired.")
    with StoreWatch({"the store": store}, said.put, AT_ONCE).running():
        assert said.get(timeout=WAIT_S) == (
            "the store takes no requests: ExpiredToken: it has expired; waiting for it"
        )
        store.wait_until_asked(5)
        store.reason = None
        assert said.get(timeout=WAIT_S) == "the store takes requests again"
        store.wait_until_asked(5)
    assert said.empty()


def test_nothing_is_said_of_a_store_that_takes_requests_and_another_reason_is() -> None:
    said: SimpleQueue[str] = SimpleQueue()
    store = Store()
    with StoreWatch({"the store": store}, said.put, AT_ONCE).running():
        store.wait_until_asked(3)
        assert said.empty()
        for reason in ("one", "another"):
            store.reason = reason
            assert reason in said.get(timeout=WAIT_S)


def test_a_store_that_hangs_is_told_of_and_hides_no_other() -> None:
    said: SimpleQueue[str] = SimpleQueue()
    answers = threading.Event()

    def hangs() -> str | None:
        assert answers.wait(WAIT_S)
        return None

    config = StoreWatchConfig(interval_s=0.001, calm_interval_s=3600, silent_s=1.0)
    probes = {"one": hangs, "other": Store("denied")}
    with StoreWatch(probes, said.put, config).running():
        told = {said.get(timeout=WAIT_S) for _ in range(2)}
        assert told == {
            "one takes no requests: it has not answered yet; waiting for it",
            "other takes no requests: denied; waiting for it",
        }
        answers.set()
        assert said.get(timeout=WAIT_S) == "one takes requests again"


def test_a_question_that_breaks_is_a_reason_and_is_asked_again() -> None:
    said: SimpleQueue[str] = SimpleQueue()
    answers = iter([RuntimeError("broken"), None])

    def probe() -> str | None:
        answer = next(answers, None)
        if answer is not None:
            raise answer
        return None

    with StoreWatch({"the store": probe}, said.put, AT_ONCE).running():
        assert said.get(timeout=WAIT_S) == "the store takes no requests: RuntimeError: broken; waiting for it"
        assert said.get(timeout=WAIT_S) == "the store takes requests again"


def test_the_limits_keep_the_promise_of_ten_seconds() -> None:
    assert StoreWatchConfig().silent_s + 1 <= 10
    assert StoreWatchConfig().interval_s <= 10
