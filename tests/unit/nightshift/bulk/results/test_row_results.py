"""Result lines as API.md E.8 has them."""

import json
from typing import Any

import pytest

from nightshift.bulk.results.row_results import INTERRUPTED, NotExecuted, RowResult, json_line
from nightshift.endpoints.results import Result
from nightshift.jobs import StopReason, Usage
from tests.helpers.fakes import a_shard_head


def result(status_code: int = 200, body: Any = None) -> RowResult:
    return RowResult.from_result(
        a_shard_head(), 0, "r1", Result(status_code, Usage(3, 2, 1), body=body or {})
    )


def openai_line(line: RowResult | NotExecuted) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(line.openai_line())
    return said


def native_line(line: RowResult | NotExecuted) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(line.native_line())
    return said


def test_a_row_that_succeeded_is_an_output_line() -> None:
    line = result(body={"object": "chat.completion"})

    assert openai_line(line) == {
        "id": line.id,
        "custom_id": "r1",
        "response": {
            "status_code": 200,
            "request_id": line.request_id,
            "body": {"object": "chat.completion"},
        },
        "error": None,
    }
    assert native_line(line) == openai_line(line) | {"outcome": "succeeded"}
    assert line.succeeded


def test_a_row_that_was_refused_is_an_error_line_with_a_response() -> None:
    error = {
        "error": {
            "message": "too long",
            "type": "invalid_request_error",
            "param": None,
            "code": "context_length_exceeded",
        }
    }
    line = result(status_code=400, body=error)

    assert openai_line(line) == {
        "id": line.id,
        "custom_id": "r1",
        "response": {"status_code": 400, "request_id": line.request_id, "body": error},
        "error": None,
    }
    assert native_line(line)["outcome"] == "errored"
    assert not line.succeeded


@pytest.mark.parametrize(
    ("reason", "code", "outcome"),
    [
        (StopReason.EXPIRED, "batch_expired", "expired"),
        (StopReason.CANCELLED, "batch_cancelled", "cancelled"),
        (StopReason.FAILED, "batch_failed", "errored"),
    ],
)
def test_a_row_that_was_not_executed_has_no_response(reason: StopReason, code: str, outcome: str) -> None:
    line = native_line(NotExecuted(custom_id="r3", id="batch_req_c", reason=reason))

    assert (line["response"], line["error"]["code"], line["outcome"]) == (None, code, outcome)


def test_a_row_that_was_interrupted_says_so() -> None:
    line = NotExecuted(custom_id="r3", id="batch_req_c", reason=StopReason.FAILED, error=INTERRUPTED)

    assert native_line(line)["error"] == {"code": "interrupted", "message": INTERRUPTED.message}
    assert native_line(line)["outcome"] == "errored"


def test_the_text_of_an_expired_row_is_openais_own() -> None:
    line = openai_line(NotExecuted(custom_id="r3", id="batch_req_c", reason=StopReason.EXPIRED))

    assert line == {
        "id": "batch_req_c",
        "custom_id": "r3",
        "response": None,
        "error": {
            "code": "batch_expired",
            "message": "This request could not be executed before the completion window expired.",
        },
    }


def test_lines_are_one_line_of_utf8_each_whatever_is_in_them() -> None:
    line = json_line({"text": "é\n\u2028", "half a pair": "\ud83d"})

    assert line.count(b"\n") == 1
    assert json.loads(line.decode()) == {"text": "é\n\u2028", "half a pair": "\ud83d"}
    assert "é".encode() in json_line({"text": "é"})
