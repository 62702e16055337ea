"""The columns that a result keeps of its row, in the order asked, whatever comes of the row."""

import json
from typing import Any

import pytest

from nightshift.bulk.rows import kept_values as kept_columns
from nightshift.bulk.rows.inputs import BadRow, Row
from nightshift.bulk.rows.requests import RowProblem, RowRequest, columns_of, kept_of, to_request
from nightshift.jobs import JobSpec, JsonObject, NewShard
from nightshift.jobs.options import BulkOptions, KeepColumns
from tests.unit.nightshift.bulk.rows.columns.tables import a_job, a_shard

TEMPLATE: JsonObject = {"model": "m", "prompt": "{{text}}"}
FOLDERS = "s3://b/in/lang=en/part-0.parquet"


def spec(keep: KeepColumns | None, **more: Any) -> JobSpec:
    fields = {"template": TEMPLATE, "options": BulkOptions(keep_columns=keep)} | more
    return a_job(endpoint="/v1/completions", **fields)


def a_file(uri: str = "file-1") -> NewShard:
    return a_shard("parquet", uri)


def made_of(
    data: JsonObject | BadRow, keep: KeepColumns | None, uri: str = "file-1", **more: Any
) -> RowRequest | RowProblem:
    row = data if isinstance(data, BadRow) else Row(0, data)
    return to_request(row, spec(keep, **more), a_file(uri))


def test_columns_are_kept_in_the_order_asked_and_null_where_the_row_has_none() -> None:
    row = {"id": 7, "text": "hé\n", "meta": {"a": [1, 2.5]}, "odd.name": True}

    made = made_of(row, ("odd.name", "gone", "meta", "id", "text", "meta.a[1]", "meta.b"))

    assert isinstance(made, RowRequest)
    assert made.kept == (
        '{"odd.name":true,"gone":null,"meta":{"a":[1,2.5]},"id":7,"text":"hé\\n","meta.a[1]":2.5,"meta.b":null}'
    )


def test_all_columns_are_those_of_the_row_and_of_its_folders() -> None:
    assert made_of({"text": "a", "n": 1}, "all", FOLDERS).kept == '{"text":"a","n":1,"lang":"en"}'
    assert made_of({"text": "a"}, ("lang", "text"), FOLDERS).kept == '{"lang":"en","text":"a"}'


def test_a_job_without_kept_columns_keeps_nothing() -> None:
    assert made_of({"text": "a"}, None).kept is None
    assert kept_of(BadRow(0, "line_too_long", "long"), spec(None), a_file()) is None


def test_a_request_in_batch_line_form_has_its_fields_as_columns() -> None:
    """A row without a request keeps its columns, and an unreadable one nothing."""
    line = {"custom_id": "r", "body": {"model": "m"}, "note": "n"}
    assert made_of(line, ("note", "body.model"), template=None).kept == '{"note":"n","body.model":"m"}'

    for refused, kept in (
        (made_of(line | {"body": 1}, ("note",), template=None), '{"note":"n"}'),
        (made_of({"id": 1}, ("id",)), '{"id":1}'),
        (made_of(BadRow(0, "line_too_long", "long"), ("id",)), "null"),
    ):
        assert (type(refused), refused.kept) == (RowProblem, kept)


def test_kept_columns_that_are_too_large_are_an_error_of_their_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_columns, "KEPT_CHARS_MAX", 60)
    row = {"text": "t", "a": [["x" * 20]]}

    assert made_of(row, ("a", "a[0]")).kept is not None
    refused = made_of(row, ("a", "a[0]", "a[0][0]"))

    assert isinstance(refused, RowProblem)
    assert (refused.code, refused.param, refused.kept) == ("row_too_large", "keep_columns", "null")


def test_a_number_beyond_json_is_an_error_of_its_row_that_names_the_column() -> None:
    refused = made_of({"text": "t", "n": json.loads("1e400")}, ("n",))

    assert isinstance(refused, RowProblem)
    assert (refused.code, refused.param, "'n'" in refused.message) == ("invalid_value", "keep_columns", True)
    assert kept_of(Row(0, {"n": json.loads("1e400")}), spec("all"), a_file()) == "null"


def test_a_retry_keeps_what_was_kept_of_the_earlier_jobs_row() -> None:
    row = {"custom_id": "r", "body": {}, "columns": {"b": 1, "a": 2}}

    assert made_of(row, ("b", "a"), template=None, kept_in="columns").kept == '{"b":1,"a":2}'


@pytest.mark.parametrize(
    ("keep", "read"), [(("id", "lang", "n.m"), {"text", "id", "n.m"}), ("all", None), (None, {"text"})]
)
def test_kept_columns_are_read(keep: KeepColumns | None, read: set[str] | None) -> None:
    assert columns_of(spec(keep), a_file(FOLDERS)) == read
