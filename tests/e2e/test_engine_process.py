"""The process of a worker's engine: it ends with the worker, and its death is the worker's."""

import os
import signal

import pytest

from nightshift.cli.demo import number_in_words
from tests.e2e.service import (
    START_TIMEOUT_S,
    Service,
    answer_of,
    ended_batch,
    is_running,
    output_lines,
    running,
    submit_batch,
    wait_for_rows,
)
from tests.helpers.waiting import wait_for


def engine_pid(service: Service) -> int | None:
    """The process of the worker's engine. None: it is not there now."""
    processes = service.processes().items()
    return next((pid for pid, command in processes if "engine_process" in command), None)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory):
    with running(tmp_path_factory.mktemp("service"), SEGMENT_INTERVAL_S="0.2") as service:
        yield service


def test_rows_go_on_in_another_engine_when_theirs_is_killed(service, numbers):
    with service.openai() as client:
        batch_id = submit_batch(client, numbers[:600])
        wait_for_rows(service, batch_id)
        killed = engine_pid(service)
        assert killed is not None
        os.kill(killed, signal.SIGKILL)

        batch = ended_batch(service, batch_id)

        assert batch.request_counts.completed == 600
        answers = {line["custom_id"]: answer_of(line) for line in output_lines(client, batch_id)}
    right = sum(answers[f"number-{number}"] == number_in_words(number) for number in numbers[:600])
    assert right >= 0.99 * 600
    assert not is_running(killed)
    wait_for("another engine runs", lambda: engine_pid(service), START_TIMEOUT_S)


def test_the_engine_ends_with_the_service_that_is_told_to_stop(service):
    engine = wait_for("an engine runs", lambda: engine_pid(service), START_TIMEOUT_S)
    assert service.stop() == 0
    wait_for("the engine's process has ended", lambda: not is_running(engine))
