"""A job's owner reads of a fault of a store: their own places, and nothing of the service's surroundings."""

import pytest

from nightshift.errors import (
    MESSAGE_BYTES_MAX,
    CredentialsRefused,
    InvalidRequest,
    NightshiftError,
    StorageDenied,
    StorageUnavailable,
)
from nightshift.objectstore.verdicts import as_input_error, input_fault, results_fault


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            's3://in/a: Could not connect to the endpoint URL: "http://10.0.0.5:9000/in/a?x=1"',
            's3://in/a: Could not connect to the endpoint URL: "…"',
        ),
        (
            's3://in/a: Failed to connect to proxy URL: "http://user:secret@proxy.internal:3128"',
            's3://in/a: Failed to connect to proxy URL: "…"',
        ),
        (
            "s3://in/a: SSL validation failed for https://minio.internal:9000/in [SSL: WRONG_VERSION_NUMBER]",
            "s3://in/a: SSL validation failed for … [SSL: WRONG_VERSION_NUMBER]",
        ),
        (
            "s3://in/a: HTTPConnectionPool(host='minio.internal', port=9000): Read timed out",
            "s3://in/a: HTTPConnectionPool(…): Read timed out",
        ),
        ("s3://in/a: no route to 192.168.4.17:9000", "s3://in/a: no route to …"),
        ("s3://logs/10.0.0.7/a.csv: SlowDown: wait", "s3://logs/10.0.0.7/a.csv: SlowDown: wait"),
        ("s3://in/2026.11.27/a-1.2.csv: SlowDown: wait", "s3://in/2026.11.27/a-1.2.csv: SlowDown: wait"),
    ],
)
def test_no_address_of_the_services_surroundings_is_shown(said: str, shown: str) -> None:
    error = StorageUnavailable(said)
    assert as_input_error(error, "input").message == shown
    assert input_fault(error, "input", in_our_store=False).message == (
        f"The input cannot be read at present: {shown}"
    )


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (CredentialsRefused("s3://own/x: ExpiredToken"), "does not accept the service's credentials"),
        (StorageDenied("s3://own/x: AccessDenied"), "refuses the service"),
        (StorageUnavailable("s3://own/segments/other/x: 503"), "cannot be reached or is failing"),
    ],
)
def test_of_the_services_own_store_no_object_is_named(error: NightshiftError, words: str) -> None:
    for fault in (results_fault(error), input_fault(error, "input", in_our_store=True)):
        assert fault.message.endswith(f"the service's own store {words}")
        assert "own/" not in fault.message
    assert results_fault(error).code == error.code


def test_the_field_that_names_the_input_is_kept_and_an_errors_own_comes_first() -> None:
    assert input_fault(StorageUnavailable("x"), "input_file_id", in_our_store=True).param == "input_file_id"
    error = InvalidRequest("no", param="template")
    assert input_fault(error, "input", in_our_store=False).param == "template"
    assert results_fault(StorageUnavailable("x")).param is None


def test_a_message_has_a_limit() -> None:
    fault = input_fault(StorageUnavailable("s3://in/" + 2000 * "ä"), "input", in_our_store=False)
    assert len(fault.message.encode()) <= MESSAGE_BYTES_MAX
