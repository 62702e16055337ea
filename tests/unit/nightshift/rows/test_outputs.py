"""Result lines as API.md E.8 has them, and segments that are whole or refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.jobs import Counts, StopReason, Usage
from nightshift.rows.manifest import Manifest, Part, part_name
from nightshift.rows.outputs import (
    INTERRUPTED,
    CorruptSegment,
    NotExecuted,
    RowResult,
    decode_segment,
    encode_segment,
    json_line,
    output_lines,
)


def result(row: int = 0, custom_id: str = "r1", status_code: int = 200, body: Any = None) -> RowResult:
    return RowResult(
        row=row,
        custom_id=custom_id,
        id="batch_req_a",
        request_id="req_b",
        status_code=status_code,
        body=body or {},
        usage=Usage(3, 2, 1),
    )


texts = st.text(st.characters(), max_size=20)  # lone surrogates included: JSON can say them
results = st.builds(
    result,
    row=st.integers(0, 10**9),
    custom_id=texts,
    status_code=st.sampled_from([200, 400, 500]),
    body=st.dictionaries(texts, texts | st.integers() | st.lists(texts, max_size=3), max_size=3),
)


def test_a_row_that_succeeded_is_an_output_line() -> None:
    line = result(body={"object": "chat.completion"})

    assert json.loads(json_line(line.openai_line())) == {
        "id": "batch_req_a",
        "custom_id": "r1",
        "response": {"status_code": 200, "request_id": "req_b", "body": {"object": "chat.completion"}},
        "error": None,
    }
    assert line.native_line() == line.openai_line() | {"outcome": "succeeded"}
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

    assert line.openai_line() == {
        "id": "batch_req_a",
        "custom_id": "r1",
        "response": {"status_code": 400, "request_id": "req_b", "body": error},
        "error": None,
    }
    assert line.native_line()["outcome"] == "errored"
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
    line = NotExecuted(custom_id="r3", id="batch_req_c", reason=reason).native_line()

    assert (line["response"], line["error"]["code"], line["outcome"]) == (None, code, outcome)


def test_a_row_that_was_interrupted_says_so() -> None:
    line = NotExecuted(custom_id="r3", id="batch_req_c", reason=StopReason.FAILED, error=INTERRUPTED)

    assert line.native_line()["error"] == {"code": "interrupted", "message": INTERRUPTED.message}
    assert line.native_line()["outcome"] == "errored"


def test_the_text_of_an_expired_row_is_openais_own() -> None:
    line = NotExecuted(custom_id="r3", id="batch_req_c", reason=StopReason.EXPIRED).openai_line()

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


@given(st.lists(results, max_size=5))
def test_a_segment_gives_back_what_was_put_in(rows: list[RowResult]) -> None:
    assert decode_segment(encode_segment(rows).data) == rows


@given(st.lists(results, max_size=5))
def test_a_segment_says_how_long_its_lines_are_in_an_output_file(rows: list[RowResult]) -> None:
    assert encode_segment(rows).output_bytes == sum(map(len, output_lines(rows)))


@given(rows=st.lists(results, max_size=4), data=st.data())
def test_a_truncated_segment_is_refused(rows: list[RowResult], data: st.DataObject) -> None:
    segment = encode_segment(rows).data
    length = data.draw(st.integers(0, len(segment) - 2))  # without its last newline nothing is missing

    with pytest.raises(CorruptSegment):
        decode_segment(segment[:length])


@given(rows=st.lists(results, min_size=1, max_size=4), data=st.data())
def test_a_segment_with_a_changed_byte_never_gives_other_results(
    rows: list[RowResult], data: st.DataObject
) -> None:
    segment = bytearray(encode_segment(rows).data)
    segment[data.draw(st.integers(0, len(segment) - 1))] ^= data.draw(st.integers(1, 255))

    try:
        decoded = decode_segment(bytes(segment))
    except CorruptSegment:
        return
    assert decoded == rows  # the byte was of no account: the last newline


def test_two_segments_in_one_object_are_refused() -> None:
    with pytest.raises(CorruptSegment):
        decode_segment(encode_segment([result(0)]).data + encode_segment([result(1)]).data)


def test_a_manifest_says_what_lies_in_the_bucket() -> None:
    part = Part(
        name=part_name(7, "jsonl"),
        rows=3,
        succeeded=2,
        failed=1,
        size_bytes=99,
        sha256="ab",
        prompt_tokens=5,
        completion_tokens=4,
    )
    manifest = Manifest(
        job_id="job_1",
        status="succeeded",
        format="jsonl",
        model="m",
        created_at="2026-01-02T00:00:00+00:00",
        counts=Counts(3, 2, 1),
        usage=Usage(5, 4),
        parts=[part],
    )

    said = json.loads(manifest.to_json())

    assert said["counts"] == {"total": 3, "succeeded": 2, "failed": 1}
    assert said["parts"] == [
        {
            "name": "part-00007.jsonl",
            "rows": 3,
            "succeeded": 2,
            "failed": 1,
            "size_bytes": 99,
            "sha256": "ab",
            "prompt_tokens": 5,
            "completion_tokens": 4,
        }
    ]
