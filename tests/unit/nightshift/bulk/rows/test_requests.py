"""The request of a row, its id, and the reason why it has none."""

from typing import Any

import pytest

from nightshift.bulk.rows.inputs import BadRow, Row
from nightshift.bulk.rows.requests import (
    RECORD_ID_CHARS_MAX,
    RowProblem,
    RowRequest,
    columns_of,
    custom_id_of,
    parse_row,
    place_of,
    to_request,
)
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject, NewShard, ShardObject
from nightshift.jobs.options import BulkOptions
from tests.unit.nightshift.bulk.rows.columns.tables import a_job, a_shard

LINE: JsonObject = {
    "custom_id": "r1",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"model": "m", "messages": []},
}
TEMPLATE: JsonObject = {"model": "m", "messages": [{"role": "user", "content": "{{text}}"}]}


def made_of(
    row: Row | BadRow | JsonObject, *, first_row: int | None = None, uri: str = "file-1", **spec: Any
) -> RowRequest | RowProblem:
    shard = a_shard(uri=uri, shard_no=3, first_row=first_row)
    return to_request(Row(4, row) if isinstance(row, dict) else row, a_job(**spec), shard)


def test_a_batch_line_is_its_body_under_its_own_id() -> None:
    assert made_of(LINE) == RowRequest("r1", LINE["body"])


def test_a_record_goes_through_the_template() -> None:
    request = made_of({"id": 7, "text": "hello"}, template=TEMPLATE, id_column="id")

    assert request == RowRequest("7", {"model": "m", "messages": [{"role": "user", "content": "hello"}]})


THOUGHTFUL = BulkOptions(reasoning_effort="low")
RESPONSES = "/v1/responses"


@pytest.mark.parametrize(
    ("endpoint", "body", "expected"),
    [
        (LINE["url"], {"model": "m"}, {"model": "m", "reasoning_effort": "low"}),
        (LINE["url"], {"reasoning_effort": None}, {"reasoning_effort": "low"}),
        (LINE["url"], {"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        (RESPONSES, {"model": "m"}, {"model": "m", "reasoning": {"effort": "low"}}),
        (RESPONSES, {"reasoning": {"summary": "auto"}}, {"reasoning": {"summary": "auto", "effort": "low"}}),
        (RESPONSES, {"reasoning": {"effort": "none"}}, {"reasoning": {"effort": "none"}}),
        (RESPONSES, {"reasoning": "wrong"}, {"reasoning": "wrong"}),
    ],
)
def test_a_row_that_says_no_effort_has_that_of_its_job(
    endpoint: str, body: JsonObject, expected: JsonObject
) -> None:
    line, spec = {"url": endpoint, "body": body}, {"endpoint": endpoint, "options": THOUGHTFUL}
    templated = made_of({"text": "x"}, template=body, **spec)

    assert made_of(line, **spec).body == templated.body == expected


def test_a_row_without_an_id_is_called_by_its_number() -> None:
    assert made_of({"text": "x"}, template=TEMPLATE).custom_id == "shard-3-row-5"
    assert made_of({"text": "x"}, template=TEMPLATE, first_row=100).custom_id == "row-105"
    assert made_of({"body": {}}).custom_id == "shard-3-row-5"


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"custom_id": ""}, "missing_required_parameter", "custom_id"),
        ({"custom_id": "x" * 513}, "missing_required_parameter", "custom_id"),
        ({"custom_id": "a\0b"}, "missing_required_parameter", "custom_id"),
        ({"custom_id": 7}, "missing_required_parameter", "custom_id"),
        ({"method": "GET"}, "invalid_method", "method"),
        ({"url": "/v1/embeddings"}, "invalid_url", "url"),
        ({"body": None}, "missing_required_parameter", "body"),
        ({"body": "text"}, "missing_required_parameter", "body"),
        ({"body": {"stream": True}}, "streaming_unsupported", "body.stream"),
        # With several things wrong: in the order of the fields.
        ({"custom_id": 7, "url": "/v1/embeddings", "body": None}, "missing_required_parameter", "custom_id"),
        ({"url": "/v1/embeddings", "body": None}, "invalid_url", "url"),
        ({"method": "GET", "body": []}, "invalid_method", "method"),
    ],
)
def test_a_line_that_cannot_be_run_says_why(change: JsonObject, code: str, param: str) -> None:
    problem = made_of(LINE | change)

    assert isinstance(problem, RowProblem)
    assert (problem.code, problem.param) == (code, param)


@pytest.mark.parametrize("value", [None, "", "a\0b", True, 1.5, ["a"], "x" * (RECORD_ID_CHARS_MAX + 1)])
def test_an_id_column_must_hold_an_id(value: Any) -> None:
    problem = made_of({"id": value, "text": "x"}, template=TEMPLATE, id_column="id")

    assert isinstance(problem, RowProblem)
    assert (problem.custom_id, problem.code, problem.param) == ("shard-3-row-5", "missing_id", "id")


def test_a_problem_keeps_the_rows_own_name_where_it_has_one() -> None:
    assert made_of(LINE | {"method": "GET"}).custom_id == "r1"
    assert made_of({"id": "doc-1"}, template=TEMPLATE, id_column="id").custom_id == "doc-1"
    unread = made_of(BadRow(4, "line_too_long", "too long"))
    assert unread == RowProblem("shard-3-row-5", "line_too_long", "too long")


@pytest.mark.parametrize("spec", [{}, {"template": TEMPLATE}, {"template": TEMPLATE, "id_column": "id"}])
@pytest.mark.parametrize(
    "data",
    [
        *({}, LINE, {"id": "a", "text": "x"}, {"id": "x" * 999}),
        *({"custom_id": "x" * 65}, {"id": "a\0"}, {"custom_id": "a\0"}),
    ],
)
@pytest.mark.parametrize("uri", ["file-1", "s3://b/id=7/a.jsonl"])
def test_a_row_is_called_the_same_whether_it_was_run_or_not(
    spec: JsonObject, data: JsonObject, uri: str
) -> None:
    """Assembly names rows that were never run; it must come to the names a worker would have given."""
    shard, job = a_shard(uri=uri, shard_no=3), a_job(**spec)

    assert custom_id_of(Row(4, data), job, shard) == to_request(Row(4, data), job, shard).custom_id


def test_folders_are_columns() -> None:
    """They come before the object's own, which need not be read then."""
    uri = "s3://b/in/date=2026-11-20/lang=en/part-0.parquet"
    spec = {"template": {"text": "{{date}} {{lang}} {{n.m}}"}, "id_column": "date"}

    request = made_of({"n": {"m": 1}, "lang": "de"}, uri=uri, **spec)

    assert request == RowRequest("2026-11-20", {"text": "2026-11-20 en 1"})
    shard = a_shard("parquet", uri)
    assert columns_of(a_job(**spec), shard) == {"n.m"}
    assert columns_of(a_job(), shard) == {"custom_id", "method", "url", "body"}


@pytest.mark.parametrize(
    ("shard", "end"),
    [
        (a_shard(uri="s3://in/day=1/a.jsonl"), " It is row 5 of 's3://in/day=1/a.jsonl'."),
        (a_shard(uri="s3://in/\n'\x1b[31m.jsonl"), ' It is row 5 of "s3://in/\\n\'\\x1b[31m.jsonl".'),
        (a_shard(uri=f"s3://in/{'d' * 1000}/a.jsonl"), f" It is row 5 of '…{'d' * 192}/a.jsonl'."),
        (a_shard(uri="file-abc"), " It is row 5 of 'file-abc'."),
        (a_shard(start=100, end=200), " It is row 5 from byte 100 on of 's3://b/k'."),
        (a_shard("parquet", start=2, end=3), " It is row 5 from row group 2 on of 's3://b/k'."),
    ],
)
def test_the_place_of_a_row_is_its_object_and_its_number(shard: NewShard, end: str) -> None:
    """A later shard is said with its beginning, and an object that is a row by itself."""
    assert place_of(4, shard) == end
    image = ShardObject("s3://b/b.png", None)
    assert place_of(4, a_shard("images"), image) == " It is 's3://b/b.png'."


@pytest.mark.parametrize(
    ("param", "end"),
    [
        ("messages[0].content", " It is made of the column 'text'."),
        ("messages[0].content[0].text", " It is made of the column 'text'."),
        ("user", " It is made of the columns 'a' and 'b'."),
        ("temperature", "wrong."),
        ("messages[7]", "wrong."),
        (None, "wrong."),
    ],
)
def test_what_is_wrong_with_a_request_names_the_columns_that_it_is_made_of(
    param: str | None, end: str
) -> None:
    template = {**TEMPLATE, "user": "{{b}}-{{ a }}", "temperature": 2}
    job = a_job(template=template)

    def parse(body: JsonObject) -> Any:
        raise InvalidRequest("It is wrong.", param=param, code="invalid_type")

    with pytest.raises(InvalidRequest) as caught:
        parse_row(RowRequest("r", {}), job, "m", parse)

    assert (caught.value.param, caught.value.code) == (param, "invalid_type")
    assert caught.value.message.endswith(end)
