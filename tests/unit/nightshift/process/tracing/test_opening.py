"""The standard variables decide whether there are traces; wrong values are said, and never stop a process."""

import logging
import subprocess
import sys

import pytest

from nightshift.process.tracing.collector import NotTraced
from nightshift.process.tracing.opening import are_wanted, open_traces
from nightshift.process.tracing.spans import is_on, serve

COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"


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
        (COLLECTOR | {PROTOCOL: "http/protobuf"}, True),
        (COLLECTOR | {PROTOCOL: "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, True),
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
    open_traces("api", COLLECTOR | {name: value})
    assert not is_on()

    [record] = caplog.records
    assert f"{name} is no URL" in record.getMessage()
    assert "secret" not in record.getMessage()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (PROTOCOL, "grpc"),
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
    open_traces("api", environment)
    assert not is_on()
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{name} is '{value}'" in record.getMessage()


def test_a_value_that_the_sdk_refuses_is_said_and_nothing_is_traced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment = COLLECTOR | {"OTEL_BSP_MAX_QUEUE_SIZE": "-1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    open_traces("api", environment)
    assert not is_on()
    assert "max_queue_size" in caplog.text


def test_without_the_extra_a_warning_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "nightshift.process.tracing.sdk", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)

    open_traces("worker", COLLECTOR)
    assert not is_on()
    assert "nightshift[tracing] is not installed" in caplog.text


@pytest.mark.parametrize(("sampler", "joins"), [("", True), ("always_on", True), ("traceidratio", False)])
def test_a_sampler_that_goes_by_the_id_of_a_trace_does_not_have_it_from_a_client(
    sampler: str, joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = COLLECTOR | {"OTEL_TRACES_SAMPLER": sampler}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    close = open_traces("api", environment)
    try:
        served = serve("POST", f"00-{'11' * 16}-{'22' * 8}-01")
    finally:
        close()

    assert (served.get_span_context().trace_id == int("11" * 16, 16)) is joins


def test_without_traces_no_process_imports_the_sdk() -> None:
    code = (
        "import sys, api.app, scheduler.__main__, workers.composition\n"
        "from nightshift.process.tracing.opening import open_traces\n"
        "open_traces('worker', {})\n"
        "names = ('nightshift.process.tracing.sdk', 'opentelemetry.exporter', 'opentelemetry.sdk.trace')\n"
        "print([name for name in names if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ended.stdout.strip() == "[]"
