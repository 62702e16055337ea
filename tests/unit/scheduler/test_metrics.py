"""Metrics of the scheduler's process."""

from prometheus_client import generate_latest

from nightshift.process.metrics.family import Process
from scheduler.metrics import DutyMetrics
from tests.helpers.metrics import assert_as_declared


def test_passes_failures_and_leadership_are_told_and_exactly_what_is_declared() -> None:
    metrics = DutyMetrics(lambda: True)
    metrics.observe("ringing", 0.01, True)
    metrics.observe("ringing", 0.02, False)
    metrics.webhook_attempted("delivered", 0.2)

    text = generate_latest(metrics.registry).decode()
    assert 'nightshift_duty_failures_total{duty="ringing"} 1.0' in text
    assert 'nightshift_duty_pass_seconds_count{duty="ringing"} 2.0' in text
    assert "nightshift_scheduler_leading 1.0" in text
    assert_as_declared(text, Process.SCHEDULER)
