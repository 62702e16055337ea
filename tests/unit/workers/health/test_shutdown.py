"""When a worker drains, when it ends at once, and with which exit code."""

import subprocess
import sys

import pytest

from nightshift.fleet.workers import EXIT_DRAIN_TOO_SLOW, EXIT_ENGINE_DIED, EXIT_QUEUE_CONNECTION_LOST
from nightshift.process.exit_codes import NO_RESTART_EXIT, NO_RESTART_LATE_EXIT
from workers.health import shutdown as module
from workers.health.shutdown import Shutdown


@pytest.fixture
def exit_codes() -> list[int]:
    return []


@pytest.fixture
def shutdown(exit_codes: list[int]) -> Shutdown:
    """The shutdown of a process with work."""
    shutdown = Shutdown(exit_codes.append)
    shutdown.work_begins()
    return shutdown


def test_a_process_without_work_ends_at_once(exit_codes: list[int]) -> None:
    shutdown = Shutdown(exit_codes.append)
    shutdown.told_to_stop()

    assert exit_codes == [0]
    assert not shutdown.begin_drain()


def test_a_process_with_work_drains_and_a_second_sigterm_ends_that_only_a_while_after_the_first(
    shutdown: Shutdown, exit_codes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutdown.told_to_stop()
    shutdown.told_to_stop()
    assert (shutdown.is_draining, shutdown.is_in_order, exit_codes) == (True, True, [])

    monkeypatch.setattr(module, "HURRY_AFTER_S", 0)
    shutdown.told_to_stop()

    assert exit_codes == [EXIT_DRAIN_TOO_SLOW]


def test_the_first_reason_to_leave_decides_the_exit_code(shutdown: Shutdown) -> None:
    shutdown.leave(EXIT_QUEUE_CONNECTION_LOST)
    shutdown.leave_once()
    shutdown.drain_requested()

    assert shutdown.exit_code == EXIT_QUEUE_CONNECTION_LOST
    assert not shutdown.is_in_order


def test_an_operators_drain_is_remembered_by_a_worker_that_leaves_already(shutdown: Shutdown) -> None:
    shutdown.told_to_stop()
    shutdown.drain_requested()

    assert shutdown.exit_code == NO_RESTART_EXIT
    assert shutdown.is_in_order


def test_a_drain_that_takes_too_long_ends_and_says_whether_an_operator_wanted_it(
    shutdown: Shutdown, exit_codes: list[int]
) -> None:
    shutdown.leave()
    shutdown.drain_too_slow()
    shutdown.drain_requested()
    shutdown.drain_too_slow()

    assert exit_codes == [EXIT_DRAIN_TOO_SLOW, NO_RESTART_LATE_EXIT]


@pytest.mark.parametrize(
    ("exit_code", "expected"), [(-9, -9), (-11, -11), (1, EXIT_ENGINE_DIED), (None, EXIT_ENGINE_DIED)]
)
def test_a_worker_whose_engine_was_killed_ends_by_the_same_signal(
    exit_code: int | None, expected: int
) -> None:
    """Its supervisor tells a crash and a lack of memory from an exception by it."""
    program = f"""
from workers.health.shutdown import engine_died
from workers.serving.engine_process.launching import EngineDied
engine_died(EngineDied("it ended", {exit_code}))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.returncode == expected
    assert "engine died" in ended.stderr
