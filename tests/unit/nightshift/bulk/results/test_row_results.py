"""Result lines as API.md E.8 has them."""

import json
from typing import Any

import pytest

from nightshift.bulk.results.row_results import INTERRUPTED, NotExecuted, RowResult, json_line
from nightshift.endpoints.results import Result
from nightshift.jobs import JsonObject, StopReason, Usage
from tests.helpers.fakes import a_shard_head


def openai_line(line: RowResult | NotExecuted) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(line.openai_line())
    return said


def native_line(line: RowResult | NotExecuted) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(line.native_line())
    return said


@pytest.mark.parametrize(
    ("status_code", "body", "outcome"),
    [
        (200, {"object": "chat.completion"}, "succeeded"),
        (400, {"error": {"message": "too long", "code": "context_length_exceeded"}}, "errored"),
    ],
)
def test_a_row_that_was_run_is_a_line_with_its_response(
    status_code: int, body: JsonObject, outcome: str
) -> None:
    row = RowResult.from_result(a_shard_head(), 0, "r1", Result(status_code, Usage(3, 2, 1), body=body))

    assert openai_line(row) == {
        "id": row.id,
        "custom_id": "r1",
        "response": {"status_code": status_code, "request_id": row.request_id, "body": body},
        "error": None,
    }
    assert native_line(row) == openai_line(row) | {"outcome": outcome}
    assert row.succeeded == (outcome == "succeeded")


TOO_LATE = "This request could not be executed before the completion window expired."  # OpenAI's own text


@pytest.mark.parametrize(
    ("reason", "error", "code", "message", "outcome"),
    [
        (StopReason.EXPIRED, None, "batch_expired", TOO_LATE, "expired"),
        (StopReason.CANCELLED, None, "batch_cancelled", None, "cancelled"),
        (StopReason.FAILED, None, "batch_failed", None, "errored"),
        (StopReason.FAILED, INTERRUPTED, "interrupted", INTERRUPTED.message, "errored"),
    ],
)
def test_a_row_that_was_not_executed_has_no_response_and_says_why(
    reason: StopReason, error: Any, code: str, message: str | None, outcome: str
) -> None:
    line = NotExecuted(custom_id="r3", id="batch_req_c", reason=reason, error=error)

    said = openai_line(line)
    message = message or said["error"]["message"]
    assert message
    error = {"code": code, "message": message}
    assert said == {"id": "batch_req_c", "custom_id": "r3", "response": None, "error": error}
    assert native_line(line) == said | {"outcome": outcome}


def test_lines_are_one_line_of_utf8_each_whatever_is_in_them() -> None:
    line = json_line({"text": "é\n\u2028", "half a pair": "\ud83d"})

    assert line.count(b"\n") == 1
    assert json.loads(line.decode()) == {"text": "é\n\u2028", "half a pair": "\ud83d"}
    assert "é".encode() in json_line({"text": "é"})
