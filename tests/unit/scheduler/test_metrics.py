"""What the scheduler tells Prometheus."""

import httpx
import pytest
from prometheus_client import generate_latest

from nightshift.errors import ConfigurationError
from nightshift.metrics.family import Process
from scheduler.metrics import DutyMetrics
from tests.metrics import assert_as_declared


def test_passes_failures_and_leadership_are_told_over_http() -> None:
    metrics = DutyMetrics(lambda: True)
    metrics.observe("ringing", 0.01, True)
    metrics.observe("ringing", 0.02, False)
    with metrics.served(0) as port:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
    assert 'nightshift_duty_failures_total{duty="ringing"} 1.0' in text
    assert 'nightshift_duty_pass_seconds_count{duty="ringing"} 2.0' in text
    assert "nightshift_scheduler_leading 1.0" in text


def test_exactly_what_is_declared_of_a_scheduler_is_exported() -> None:
    metrics = DutyMetrics(lambda: True)
    metrics.observe("ringing", 0.01, True)
    metrics.observe("ringing", 0.01, False)

    assert_as_declared(generate_latest(metrics.registry).decode(), Process.SCHEDULER)


def test_a_port_that_is_taken_is_named_with_its_setting() -> None:
    with DutyMetrics(lambda: True).served(0) as port:
        with pytest.raises(ConfigurationError, match=rf"port {port}: .*NIGHTSHIFT_SCHEDULER_METRICS_PORT"):
            with DutyMetrics(lambda: True).served(port):
                raise AssertionError("both cannot have it")
