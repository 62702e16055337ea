"""A batch file is fit to be run as a whole, or every bad line of it is named. The rules are API.md's, E.7."""

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from nightshift import endpoints
from nightshift.bulk.rows.text.lines import split_lines
from nightshift.bulk.rows.validation import ERRORS_MAX, FileLimits, ValidationReport, validate
from nightshift.endpoints.texts.chat import Chat
from nightshift.jobs import InputError, JsonObject

LIMITS = FileLimits(rows_max=1000, embedding_inputs_max=1000, shard_bytes=10_000, shard_rows=1000)


def line(number: int = 1, body: JsonObject | None = None, **change: Any) -> JsonObject:
    """A good line, changed."""
    good_body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    good = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions"}
    return {**good, "body": {**good_body, **(body or {})}, **change}


def less(values: JsonObject, name: str) -> JsonObject:
    return {key: value for key, value in values.items() if key != name}


def body_less(name: str) -> JsonObject:
    return {**line(), "body": less(line()["body"], name)}


def serves(model: str) -> InputError | None:
    return None if model in ("m", "n") else InputError("model_not_found", f"no model {model}")


def report(
    *lines: JsonObject | bytes, endpoint: str = "/v1/chat/completions", limits: FileLimits = LIMITS
) -> ValidationReport:
    content = b"".join(
        (entry if isinstance(entry, bytes) else json.dumps(entry).encode()) + b"\n" for entry in lines
    )
    return validate(split_lines([content], line_bytes_max=5000), endpoints.get(endpoint), serves, limits)


def codes(validated: ValidationReport) -> list[tuple[int | None, str]]:
    return [(error.line, error.code) for error in validated.errors]


def test_a_good_file_has_rows_a_model_and_no_errors() -> None:
    longest = line(3, {"stream": False}, custom_id="é" * 512)
    validated = report(line(1), b"", line(2, {"stream": None}), b"  ", longest)

    assert (validated.rows, validated.model, validated.errors) == (3, "m", ())


def test_a_line_with_another_fault_still_has_its_id_and_names_its_model() -> None:
    streamed = line(2, {"stream": True, "model": "n"})

    validated = report(line(1, method="GET"), line(1), streamed, line(3, {"model": "m"}), line(1))

    assert codes(validated) == [
        (1, "invalid_method"),
        (2, "duplicate_custom_id"),
        (3, "streaming_unsupported"),
        (4, "mismatched_model"),
        (5, "duplicate_custom_id"),
    ]


@pytest.mark.parametrize(
    ("entry", "code", "param"),
    [
        (b"{oops", "invalid_json_line", None),
        (b"[]", "invalid_json_line", None),
        (b'{"custom_id": "a", "custom_id": "b"}', "invalid_json_line", None),
        (b"\xff", "invalid_json_line", None),
        (b'{"a":"' + b"x" * 6000 + b'"}', "invalid_json_line", None),
        (less(line(), "custom_id"), "missing_required_parameter", "custom_id"),
        (line(custom_id=""), "missing_required_parameter", "custom_id"),
        (line(custom_id=7), "missing_required_parameter", "custom_id"),
        (line(custom_id="x" * 513), "missing_required_parameter", "custom_id"),
        (line(custom_id="a\0b"), "missing_required_parameter", "custom_id"),
        (less(line(), "method"), "missing_required_parameter", "method"),
        (line(method="GET"), "invalid_method", "method"),
        (less(line(), "url"), "missing_required_parameter", "url"),
        (line(url="/v1/embeddings"), "invalid_url", "url"),
        (less(line(), "body"), "missing_required_parameter", "body"),
        ({**line(), "body": "text"}, "missing_required_parameter", "body"),
        (body_less("model"), "invalid_request", "body.model"),
        (line(body={"model": 7}), "invalid_request", "body.model"),
        (body_less("messages"), "invalid_request", "body.messages"),
        (line(body={"messages": "hi"}), "invalid_request", "body.messages"),
        (line(body={"stream": True}), "streaming_unsupported", "body.stream"),
    ],
)
def test_a_bad_line_is_named_with_its_code_and_parameter(entry: Any, code: str, param: str | None) -> None:
    (error,) = report(line(10), entry, line(11)).errors

    assert (error.line, error.code, error.param) == (2, code, param)
    assert error.message


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (b"{oops", "This line is not parseable as valid JSON."),
        (
            line(url="/v1/embeddings"),
            "The URL provided for this request does not match the batch endpoint.",
        ),
    ],
)
def test_what_openai_has_a_sentence_for_is_said_in_it(entry: Any, message: str) -> None:
    (error,) = report(entry, line(2)).errors
    assert error.message == message


def test_a_file_has_one_model() -> None:
    validated = report(line(1), line(2, body={"model": "n"}))

    assert validated.model == "m"
    assert codes(validated) == [(2, "mismatched_model")]


def test_a_model_that_is_not_served_is_named_on_each_line() -> None:
    validated = report(line(1, body={"model": "x"}), line(2, body={"model": "x"}))

    assert codes(validated) == [(1, "model_not_found"), (2, "model_not_found")]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf\n"])
def test_a_file_without_rows_is_refused(content: bytes) -> None:
    validated = validate(split_lines([content], line_bytes_max=100), Chat(), serves, LIMITS)

    assert codes(validated) == [(None, "empty_file")]


def test_a_file_with_too_many_rows_is_refused_at_the_first_of_them() -> None:
    validated = report(*map(line, range(5)), limits=replace(LIMITS, rows_max=2))

    assert codes(validated) == [(3, "too_many_requests_in_file")]


def test_a_hundred_bad_lines_are_named_and_the_last_says_how_many_more_there_are() -> None:
    validated = report(*[b"{"] * 250)

    assert len(validated.errors) == ERRORS_MAX
    assert "150 more lines" in validated.errors[-1].message
    assert "more lines" not in validated.errors[-2].message


def test_a_message_quotes_no_more_than_a_message_can_hold() -> None:
    long = "x" * 4000
    validated = report(line(1), line(2, method=long), line(3, url=long), line(4, body={"model": long}))

    assert len(validated.errors) == 3
    assert all(len(error.message) < 300 for error in validated.errors)


# --- endpoints ---


def embedding(number: int, value: Any) -> JsonObject:
    return {**line(number, url="/v1/embeddings"), "body": {"model": "m", "input": value}}


@pytest.mark.parametrize("value", ["text", ["a", "b"], [1, 2, 3], [[1], [2, 3]]])
def test_an_embedding_input_has_one_of_four_shapes(value: Any) -> None:
    assert report(embedding(1, value), endpoint="/v1/embeddings").errors == ()


@pytest.mark.parametrize("value", [None, "", [], 7, {"text": "a"}, [[]], ["a", 1], [1.5]])
def test_an_embedding_input_of_another_shape_is_refused(value: Any) -> None:
    (error,) = report(embedding(1, value), endpoint="/v1/embeddings").errors

    assert (error.code, error.param) == ("invalid_request", "body.input")


def test_embedding_inputs_are_counted_over_all_lines() -> None:
    limits = replace(LIMITS, embedding_inputs_max=3)
    lines = embedding(1, ["a", "b"]), embedding(2, ["c", "d"])

    validated = report(*lines, endpoint="/v1/embeddings", limits=limits)
    assert codes(validated) == [(2, "too_many_requests_in_file")]


def test_a_completion_needs_a_prompt() -> None:
    entry = line(url="/v1/completions")

    assert codes(report(entry, endpoint="/v1/completions")) == [(1, "invalid_request")]


# --- cuts ---


@pytest.mark.parametrize(("shard_bytes", "shard_rows"), [(1, 100), (500, 100), (10**9, 7), (10**9, 10**9)])
def test_cuts_lie_on_rows_and_know_how_many_come_before(shard_bytes: int, shard_rows: int) -> None:
    content = b"\n".join(json.dumps(line(number)).encode() for number in range(50)) + b"\n"
    limits = FileLimits(50, 50, shard_bytes, shard_rows)

    validated = validate(split_lines([content], line_bytes_max=5000), Chat(), serves, limits)

    assert (validated.cuts[0].offset, validated.cuts[0].first_row) == (0, 0)
    for cut in validated.cuts:
        assert content[cut.offset :].startswith(json.dumps(line(cut.first_row)).encode())
    for before, after in itertools.pairwise(validated.cuts):
        assert after.first_row - before.first_row <= shard_rows
