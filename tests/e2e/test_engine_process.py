"""The process of a worker's engine: it ends with the worker, and its death is the worker's."""

import os
import signal
from pathlib import Path

import pytest

from nightshift.cli.demo import number_in_words
from tests.e2e.service import (
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


def engine_pid(service: Service) -> int:
    """The process of the worker's engine."""
    return next(pid for pid, command in service.processes().items() if "engine_process" in command)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory):
    with running(tmp_path_factory.mktemp("service"), SEGMENT_INTERVAL_S="0.2") as service:
        yield service


def test_rows_go_on_in_another_engine_when_theirs_is_killed(service, numbers):
    with service.openai() as client:
        batch_id = submit_batch(client, numbers)
        wait_for_rows(service, batch_id)
        killed = engine_pid(service)
        os.kill(killed, signal.SIGKILL)

        batch = ended_batch(service, batch_id)

        assert batch.request_counts.completed == len(numbers)
        answers = {line["custom_id"]: answer_of(line) for line in output_lines(client, batch_id)}
    right = sum(answers[f"number-{number}"] == number_in_words(number) for number in numbers)
    assert right >= 0.99 * len(numbers)
    assert engine_pid(service) != killed
    assert not is_running(killed)


def test_the_engine_ends_with_the_service_that_is_told_to_stop(service: Service, tmp_path: Path):
    engine = engine_pid(service)
    assert service.stop() == 0
    wait_for("the engine's process has ended", lambda: not is_running(engine))
