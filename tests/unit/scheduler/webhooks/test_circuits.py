"""When a webhook destination is left alone, and when it is tried again. Pure."""

from datetime import timedelta

import pytest

from scheduler.webhooks.circuits import CircuitConfig, Circuits, WebhookDestination
from tests.helpers.fakes import STARTS_AT

HERE = WebhookDestination("tenant", "https://here.example/")
CONFIG = CircuitConfig(failures_max=2, cool_down_s=10, cool_down_max_s=60)


def after(*answers: bool, config: CircuitConfig = CONFIG) -> Circuits:
    circuits = Circuits(config)
    for answered in answers:
        circuits.record(HERE, STARTS_AT, answered=answered)
    return circuits


@pytest.mark.parametrize(
    ("answers", "cool_down_s"),
    [
        ((), 0),
        ((False,), 0),
        ((False, True, False), 0),
        ((False, False), 10),
        ((False,) * 3, 20),
        ((False,) * 100, 60),
        ((False, False, True), 0),
    ],
)
def test_failures_in_a_row_open_the_circuit_for_a_time_that_doubles(
    answers: tuple[bool, ...], cool_down_s: int
) -> None:
    until = after(*answers).open_until(HERE, STARTS_AT)
    assert until == (STARTS_AT + timedelta(seconds=cool_down_s) if cool_down_s else None)


def test_after_the_cool_down_it_may_be_tried_and_an_answer_closes_it() -> None:
    circuits = after(False, False)
    later = STARTS_AT + timedelta(seconds=10)
    assert circuits.open_until(HERE, later) is None
    assert not circuits.answers(HERE)
    circuits.record(HERE, later, answered=True)
    assert circuits.answers(HERE)


def test_one_destinations_failures_are_no_others() -> None:
    circuits = after(False, False)
    assert circuits.open_until(HERE._replace(tenant_id="another"), STARTS_AT) is None
    assert circuits.open_until(HERE._replace(url="https://else.example/"), STARTS_AT) is None


def test_only_so_many_destinations_are_remembered() -> None:
    circuits = after(True, config=CircuitConfig(destinations_max=2))
    for number in range(2):
        circuits.record(WebhookDestination("tenant", f"https://{number}.example/"), STARTS_AT, answered=True)
    assert not circuits.answers(HERE)
