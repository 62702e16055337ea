"""The standard variables decide whether there are traces; wrong values are said, and never stop a process."""

import logging
import subprocess
import sys

import pytest

from nightshift.tracing.opening import are_wanted, open_tracer, sampling_ratio
from nightshift.tracing.tracer import NO_TRACER
from nightshift.tracing.variables import NotTraced

COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        (COLLECTOR, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (COLLECTOR | {"OTEL_TRACES_EXPORTER": "none"}, False),
        (COLLECTOR | {"OTEL_SDK_DISABLED": "TRUE"}, False),
        (COLLECTOR | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
        (
            COLLECTOR
            | {
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            },
            True,
        ),
    ],
)
def test_traces_are_on_where_a_collector_is_named(environment: dict[str, str], wanted: bool) -> None:
    assert are_wanted(environment) is wanted


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
@pytest.mark.parametrize(
    "value", ["collector:4318", "user:secret@", "http://", "http://[", "ftp://secret@x", "http://x:99999"]
)
def test_an_endpoint_that_is_no_url_is_said_without_what_may_be_secret(
    name: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert open_tracer("api", COLLECTOR | {name: value}) is NO_TRACER

    [record] = caplog.records
    assert f"{name} is no URL" in record.getMessage()
    assert "secret" not in record.getMessage()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
    ],
)
def test_what_there_is_not_is_named_in_a_warning_and_nothing_is_traced(
    name: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    environment = COLLECTOR | {name: value}

    with pytest.raises(NotTraced, match=name):
        are_wanted(environment)
    assert open_tracer("api", environment) is NO_TRACER
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{name} is '{value}'" in record.getMessage()


def test_a_value_that_the_sdk_refuses_is_said_and_nothing_is_traced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment = COLLECTOR | {"OTEL_BSP_MAX_QUEUE_SIZE": "-1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert open_tracer("api", environment) is NO_TRACER
    assert "max_queue_size" in caplog.text


def test_without_the_extra_a_warning_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "nightshift.tracing.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)

    assert open_tracer("worker", COLLECTOR) is NO_TRACER
    assert "nightshift[tracing] is not installed" in caplog.text


@pytest.mark.parametrize(
    ("sampler", "argument", "ratio"),
    [
        ("", "", 1.0),
        ("always_on", "0.5", 1.0),
        ("traceidratio", "0.25", 0.25),
        ("parentbased_traceidratio", "0.01", 0.01),
        ("parentbased_traceidratio", "", 1.0),
        ("parentbased_traceidratio", "many", 1.0),
        ("parentbased_traceidratio", "7", 1.0),
        ("parentbased_traceidratio", "nan", 1.0),
    ],
)
def test_rows_are_sampled_with_the_samplers_ratio(sampler: str, argument: str, ratio: float) -> None:
    environment = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}

    assert sampling_ratio(environment) == ratio


def test_without_traces_no_process_imports_the_sdk() -> None:
    """redis and FastAPI import OpenTelemetry's interface by themselves, where it is installed."""
    code = (
        "import sys, api.app, scheduler.__main__, workers.composition\n"
        "from nightshift.tracing.opening import open_tracer\n"
        "assert not open_tracer('worker', {}).is_on\n"
        "names = ('nightshift.tracing.otlp', 'opentelemetry.exporter', 'opentelemetry.sdk.trace')\n"
        "print([name for name in names if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ended.stdout.strip() == "[]"
