"""Headers and certificates for the collector: what is wrong is said as a process starts, and not quoted."""

import logging
import subprocess
from pathlib import Path

import pytest

from nightshift.process.tracing.collector import NotTraced, check_collector
from nightshift.process.tracing.opening import open_traces
from nightshift.process.tracing.spans import is_on

COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://127.0.0.1:1"}
GOOD = (
    *("api-key=abc", "Authorization=Bearer%20abc", "Authorization=Bearer abc"),
    *("a=1, b = 2 ,", "x=a=b==", "x="),
)
BAD = (
    *("Authorization Bearer s3cret", "a=1,s3cret", "=s3cret", "a b=s3cret"),
    *("x=s3cret%0Ay", "x=s3cret;y", "ä=s3cret"),
)


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"])
@pytest.mark.parametrize("value", BAD)
def test_a_header_that_is_none_is_said_and_its_value_is_not(
    name: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    open_traces("api", COLLECTOR | {name: value})
    assert not is_on()

    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert f"of {name} is no NAME=VALUE" in record.getMessage()
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("value", GOOD)
def test_headers_that_the_sdk_sends_are_taken(value: str, caplog: pytest.LogCaptureFixture) -> None:
    parse = pytest.importorskip("opentelemetry.util.re").parse_env_headers

    check_collector(COLLECTOR | {"OTEL_EXPORTER_OTLP_HEADERS": value})

    assert len(parse(value, liberal=True)) == value.strip(" ,").count(",") + 1
    assert caplog.records == []


def test_the_headers_for_traces_count_where_both_are_set() -> None:
    both = {"OTEL_EXPORTER_OTLP_HEADERS": "nothing", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "a=1"}

    check_collector(both)
    with pytest.raises(NotTraced, match="entry 1 of OTEL_EXPORTER_OTLP_HEADERS"):
        check_collector(both | {"OTEL_EXPORTER_OTLP_TRACES_HEADERS": " "})


def test_files_that_are_there_are_taken_and_a_certificate_without_its_key_is_said(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"  # its own authority
    options = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1")
    written = ("-subj", "/CN=collector", "-keyout", str(key), "-out", str(certificate))
    subprocess.run(["openssl", "req", *options, *written], check=True, capture_output=True)
    ours = {"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(certificate)}
    theirs = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(certificate)}

    check_collector(theirs | ours | {"OTEL_EXPORTER_OTLP_CLIENT_KEY": str(key)})
    check_collector({"OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path)})
    with pytest.raises(NotTraced, match="CLIENT_CERTIFICATE names no certificate with its key"):
        check_collector(ours)


@pytest.mark.parametrize("name", ["CERTIFICATE", "CLIENT_CERTIFICATE", "TRACES_CERTIFICATE"])
@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_that_is_missing_or_no_certificate_is_said(
    tmp_path: Path, name: str, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file.pem"
    if content is not None:
        path.write_text(content)
    variable = f"OTEL_EXPORTER_OTLP_{name}"

    open_traces("api", COLLECTOR | {variable: str(path)})
    assert not is_on()

    [record] = caplog.records
    assert f"{variable} names no" in record.getMessage()
    assert ("No such file" in record.getMessage()) is (content is None)
