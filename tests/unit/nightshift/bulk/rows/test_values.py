"""Values of every type: the text that a template makes of each, its id, and which have none."""

import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from nightshift import endpoints
from nightshift.bulk.rows.inputs import BadRow, Row, iter_rows
from nightshift.bulk.rows.requests import RowProblem, RowRequest, to_request
from nightshift.jobs import JsonObject
from nightshift.jobs.options import KEEP_ALL, BulkOptions
from nightshift.objectstore import ObjectStore
from tests.unit.nightshift.bulk.rows.columns.tables import a_job, a_shard, parquet, stream

exhaustive = pytest.mark.exhaustive


COLUMNAR = pytest.mark.parametrize(("format", "write"), [("parquet", parquet), ("arrow", stream)])


def made_of(
    store: ObjectStore, content: bytes, format: str, template: JsonObject | None, **spec: Any
) -> list[RowRequest | RowProblem]:
    """The requests that a job makes of an object's rows."""
    store.put("k", content)
    shard, job = a_shard(format), a_job(template=template, **spec)
    return [to_request(row, job, shard) for row in iter_rows(store, "k", shard, line_bytes_max=10_000)]


def problem_of(*case: Any, **spec: Any) -> RowProblem:
    """The reason why an object's only row has no request."""
    [problem] = made_of(*case, **spec)
    assert isinstance(problem, RowProblem)
    return problem


def body_of(*case: Any, **spec: Any) -> JsonObject:
    """The body that is made of an object's only row."""
    [request] = made_of(*case, **spec)
    assert isinstance(request, RowRequest)
    return request.body


def made_of_column(
    store: ObjectStore, values: pa.Array, format: str, write: Callable[[pa.Table], bytes], **spec: Any
) -> list[RowRequest | RowProblem]:
    """A column `c`, alone and beside other words."""
    template = {"content": "{{c}}", "prompt": "<{{c}}>"}
    return made_of(store, write(pa.table({"c": values})), format, template, **spec)


def texts_of(made: list[RowRequest | RowProblem]) -> list[Any]:
    """The texts, which are the same alone and beside other words."""
    bodies = [request.body for request in made if isinstance(request, RowRequest)]
    assert len(bodies) == len(made), made
    assert all(body["prompt"] == f"<{body['content']}>" for body in bodies)
    return [body["content"] for body in bodies]


SECOND = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@COLUMNAR
@pytest.mark.parametrize(
    ("values", "text"),
    [
        (pa.array(["é"]), "é"),
        (pa.array(["a"], pa.large_string()), "a"),
        (pa.array(["a"]).dictionary_encode(), "a"),
        (pa.array([7], pa.int8()), "7"),
        (pa.array([2**53 + 1]), "9007199254740993"),
        (pa.array([2**64 - 1], pa.uint64()), "18446744073709551615"),
        (pa.array([True]), "true"),
        (pa.array([48213.0]), "48213.0"),
        (pa.array([-0.0]), "-0.0"),
        (pa.array([1e22]), "1e+22"),
        (pa.array([0.1], pa.float32()), "0.1"),
        (pa.array([0.1], pa.float16()), "0.1"),
        (pa.array([Decimal("1.10")]), "1.10"),
        (pa.array([Decimal(0)], pa.decimal128(38, 9)), "0.000000000"),
        (pa.array([Decimal("1" * 38)], pa.decimal256(76, 0)), "1" * 38),
        (pa.array([date(2026, 1, 2)]), "2026-01-02"),
        (pa.array([time(3, 4)]), "03:04:00"),
        (pa.array([SECOND.replace(tzinfo=None)], pa.timestamp("s")), "2026-01-02T03:04:05"),
        (pa.array([SECOND], pa.timestamp("us", "UTC")), "2026-01-02T03:04:05+00:00"),
        (pa.array([SECOND], pa.timestamp("ns", "Europe/Berlin")), "2026-01-02T04:04:05+01:00"),
        (pa.array([1_000], pa.timestamp("ns")), "1970-01-01T00:00:00.000001"),
        (pa.array([1_001], pa.timestamp("ns")), "1970-01-01T00:00:00.000001001"),
        (pa.array([1_001], pa.timestamp("ns", "UTC")), "1970-01-01T00:00:00.000001001+00:00"),
        (pa.array([1_001], pa.time64("ns")), "00:00:00.000001001"),
        (pa.array([timedelta(days=1, seconds=1.5)]), "PT86401.5S"),
        (pa.array([-1_001], pa.duration("ns")), "-PT0.000001001S"),
        (pa.array([b"\xc3\xa9"]), "é"),
        (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef"], pa.binary(16))),
         "30313233-3435-3637-3839-616263646566"),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)  # fmt: skip
def test_a_template_gets_a_text_of_each_type(
    store: ObjectStore, format: str, write: Callable[[pa.Table], bytes], values: pa.Array, text: str
) -> None:
    """Beside a row of nanoseconds and without: how one value is written does not depend on another."""
    assert texts_of(made_of_column(store, values, format, write)) == [text]


@COLUMNAR
@pytest.mark.parametrize(
    ("values", "text"),
    [
        (pa.array([["a", None]]), '["a", null]'),
        (pa.array([[0.1]], pa.list_(pa.float32())), "[0.1]"),
        (pa.array([[0.1, 0.5]], pa.list_(pa.float32(), 2)), "[0.1, 0.5]"),
        (pa.array([{"at": date(2026, 1, 2), "raw": b"x"}]), '{"at": "2026-01-02", "raw": "x"}'),
        (pa.array([{"price": Decimal("1.10")}]), '{"price": "1.10"}'),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), '{"a": 1}'),
        (pa.array([[(1, True)]], pa.map_(pa.int8(), pa.bool_())), '{"1": true}'),
        (pa.array([[]], pa.map_(pa.string(), pa.int64())), "{}"),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_beside_other_words_a_list_and_a_struct_are_json(
    store: ObjectStore, format: str, write: Callable[[pa.Table], bytes], values: pa.Array, text: str
) -> None:
    [request] = made_of_column(store, values, format, write)

    assert isinstance(request, RowRequest), request
    assert request.body == {"content": json.loads(text), "prompt": f"<{text}>"}


@COLUMNAR
@pytest.mark.parametrize(
    ("values", "why"),
    [
        (pa.array([b"\x00\xff"]), "holds bytes that are no UTF-8 text"),
        (pa.array([b"\x00\x01\x02"]), r"have a NUL \(binary, as an INTERVAL of Parquet is\)"),
        (pa.array([[{"b": b"a\x00"}]]), "holds bytes that have a NUL"),
        (pa.array([bytes(12)], pa.binary(12)), "holds bytes that have a NUL"),
        (pa.array([[b"\x00\xff"]]), "holds bytes that are no UTF-8 text"),
        (pa.array([{"bytes": b"\xff"}]), "holds bytes that are no UTF-8 text"),
        (pa.array([float("nan")]), r"is NaN \(floating point\)"),
        (pa.array([float("inf")], pa.float32()), "is Infinity"),
        (pa.array([[float("-inf")]]), "is -Infinity"),
        (pa.array([[1_001]], pa.list_(pa.timestamp("ns"))), r"of the type list<.*: timestamp\[ns\]>"),
        (pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())), "duplicate key"),
        (pa.array([[(b"\xff", 1)]], pa.map_(pa.binary(), pa.int64())), "a map whose keys have no text"),
        (pa.array([2**58], pa.timestamp("us")), r"of the type timestamp\[us\] that cannot be read"),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_a_value_without_a_text_is_refused_by_its_column(
    store: ObjectStore, format: str, write: Callable[[pa.Table], bytes], values: pa.Array, why: str
) -> None:
    good = pa.array([None], values.type)
    made = made_of_column(store, pa.concat_arrays([good, values, good]), format, write)

    assert isinstance(made[0], RowRequest)
    assert isinstance(made[2], RowRequest)
    assert isinstance(made[1], RowProblem)
    assert (made[1].code, made[1].param) == ("invalid_value", "c")
    assert re.search(rf"^The column 'c' .*{why}", made[1].message)


def test_a_value_that_no_template_names_spoils_no_row(store: ObjectStore) -> None:
    table = pa.table({"text": ["a"], "image": [{"bytes": b"\xff", "path": "a.png"}], "n": [float("nan")]})

    assert body_of(store, parquet(table), "parquet", {"content": "{{text}} {{image.path}}"}) == {
        "content": "a a.png"
    }


def test_kept_columns_show_what_has_no_text(store: ObjectStore) -> None:
    table = pa.table({"raw": [b"\x00\xff"], "n": [float("nan")], "d": [Decimal("1.10")]})
    kept = BulkOptions(keep_columns=["raw", "n", "d"])

    [request] = made_of(store, parquet(table), "parquet", {"content": "x"}, options=kept)

    assert request.kept == '{"raw":"AP8=","n":"NaN","d":"1.10"}'


def test_requests_in_columns_are_refused_for_a_value_that_no_request_can_hold(store: ObjectStore) -> None:
    body = pa.array([{"temperature": float("nan")}, {"temperature": 0.5}])

    bad, good = made_of(store, parquet(pa.table({"body": body})), "parquet", None)

    assert isinstance(bad, RowProblem)
    assert (bad.code, bad.param) == ("invalid_value", "body")
    assert isinstance(good, RowRequest)


# --- where requests have texts, and where they have not ---


OF_TEXTS = [endpoint for endpoint in endpoints.every() if endpoint.name != "detokenize"]  # it takes numbers


@pytest.mark.parametrize("endpoint", OF_TEXTS, ids=str)
@pytest.mark.parametrize(
    ("value", "text"),
    [(48213, "48213"), *(pytest.param(*case, marks=exhaustive) for case in ((0.5, "0.5"), (True, "true")))],
)
@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet", "arrow"])
def test_an_input_column_of_numbers_is_their_text_for_every_endpoint_from_every_format(
    store: ObjectStore, endpoint: endpoints.Endpoint, value: Any, text: str, format: str
) -> None:
    table = pa.table({"c": [value], "query": ["q"]})
    content = {
        "jsonl": json.dumps({"c": value, "query": "q"}).encode(),
        "csv": f"c,query\n{text},q\n".encode(),
        "parquet": parquet(table),
        "arrow": stream(table),
    }[format]

    body = body_of(store, content, format, endpoint.row_template("m", "{{c}}"))

    as_text = endpoint.row_template("m", text)
    assert body == json.loads(json.dumps(as_text).replace("{{query}}", "q"))


def test_a_number_stays_one_where_requests_have_numbers(store: ObjectStore) -> None:
    table = pa.table({"n": [2], "d": [Decimal("2.00")], "t": [Decimal("0.5")], "ids": [[1, 2]]})
    template = {"max_tokens": "{{n}}", "top_k": "{{d}}", "temperature": "{{t}}", "input": "{{ids}}"}

    body = body_of(store, parquet(table), "parquet", template)

    assert body == {"max_tokens": 2, "top_k": 2, "temperature": 0.5, "input": [1, 2]}
    assert isinstance(body["top_k"], int)


def test_a_number_beyond_doubles_in_json_is_refused_by_its_column(store: ObjectStore) -> None:
    problem = problem_of(store, b'{"c": 1e999}', "jsonl", {"content": "{{c}}"})

    assert (problem.code, problem.param) == ("invalid_value", "c")


# --- JSON as it is written ---

WRITTEN = ["1.10", "0.12345678901234567890", "1e5", "-0", "-0.0", "100.50", "1E-7", "9007199254740993.0"]


@pytest.mark.parametrize("number", WRITTEN)
def test_a_number_of_json_is_the_text_that_it_was_written_as(store: ObjectStore, number: str) -> None:
    """As in CSV, and as a decimal of Parquet: it may be an amount, or a version."""
    template = {"content": "{{c}}", "prompt": "<{{c}}>"}
    record = f'{{"c": {number}, "o": {{"n": [{number}], "t": "é"}}}}'.encode()

    lines = made_of(store, record, "jsonl", template)
    array = made_of(store, b"[" + record + b"]", "jsonl", template)
    csv = made_of(store, f"c\n{number}\n".encode(), "csv", template)
    part = made_of(store, record, "jsonl", {"content": "{{o.n[0]}}", "prompt": "<{{o.n[0]}}>"})
    whole = body_of(store, record, "jsonl", {"content": "{{o}}", "prompt": "<{{o}}>"})

    assert texts_of(lines) == texts_of(array) == texts_of(csv) == texts_of(part) == [number]
    assert whole["prompt"] == f'<{{"n": [{number}], "t": "é"}}>'


@pytest.mark.parametrize("number", WRITTEN)
def test_kept_columns_have_the_digits_of_the_input(store: ObjectStore, number: str) -> None:
    content = f'{{"c":{number},"o":{{"n":[{number},1.5],"t":"é"}}}}'

    for keep in (KEEP_ALL, ("c", "o")):
        options = BulkOptions(keep_columns=keep)
        [request] = made_of(store, content.encode(), "jsonl", {"content": "x"}, options=options)
        assert request.kept == content


def test_a_number_of_json_is_still_a_number_where_requests_have_numbers(store: ObjectStore) -> None:
    content = b'{"t": 0.70, "text": "a"}'
    template = {"model": "m", "messages": [{"role": "user", "content": "{{text}}"}], "temperature": "{{t}}"}

    body = body_of(store, content, "jsonl", template)

    assert body["temperature"] == json.loads(json.dumps(body))["temperature"] == 0.7
    endpoints.get("/v1/chat/completions").parse(body)


@pytest.mark.parametrize(
    "content",
    [
        b'{"c": "a", "c": "b"}',
        b'{"c" : "a:", "n": 1, "c": "a:"}',
        b'{"c": {"x": 1, "x": 2}}',
        b'{"c": [{"x": 1}, {"y": {"x": 1, "x": 2}}]}',
        b'[{"c": "a", "c": "b"}]',
    ],
)
def test_a_row_with_a_field_twice_in_what_its_job_uses_is_refused_by_name(
    store: ObjectStore, content: bytes
) -> None:
    store.put("k", content + b"\n")
    shard = a_shard()

    for columns in (None, {"c"}, {"c.x"}, {"id", "c[0]"}):
        [row] = iter_rows(store, "k", shard, line_bytes_max=10_000, columns=columns)
        assert isinstance(row, BadRow)
        assert re.fullmatch(r"Line 1: the line has the field '[cx]' twice in one object\.", row.message)

    [row] = iter_rows(store, "k", shard, line_bytes_max=10_000, columns={"id"})
    assert isinstance(row, Row)  # a defect of a column that no template names


# --- ids ---


def ids_of(store: ObjectStore, content: bytes, format: str) -> list[str]:
    made = made_of(store, content, format, {"content": "x"}, id_column="id")
    return [request.custom_id if isinstance(request, RowRequest) else request.code for request in made]


@pytest.mark.parametrize(
    ("content", "format"),
    [
        (b'{"id": 1.0}\n{"id": null}\n{"id": -3.0}\n', "jsonl"),
        (b"id,t\n1.0,a\n,b\n-3.0,c\n", "csv"),
        (b"id,t\n1,a\n,b\n-3,c\n", "csv"),
        *(
            (write(pa.table({"id": pa.array([1, None, -3]).cast(type)})), format)
            for type in (pa.int16(), pa.float64(), pa.float32(), pa.decimal128(38, 0), pa.decimal128(38, 9))
            for format, write in (("parquet", parquet), ("arrow", stream))
        ),
    ],
)
def test_a_whole_number_is_one_id_whatever_it_is_stored_as(
    store: ObjectStore, content: bytes, format: str
) -> None:
    """pandas makes doubles of whole numbers as soon as one is missing, and so does DuckDB of a HUGEINT."""
    assert ids_of(store, content, format) == ["1", "missing_id", "-3"]


@pytest.mark.parametrize(
    ("content", "format"),
    [
        (b'{"id": 9007199254740992.0}', "jsonl"),
        (b"id\n9007199254740993.0\n", "csv"),
        (parquet(pa.table({"id": [2.0**53]})), "parquet"),
        (stream(pa.table({"id": [-(2.0**60)]})), "arrow"),
    ],
)
def test_an_id_that_may_have_been_rounded_is_refused_by_name(
    store: ObjectStore, content: bytes, format: str
) -> None:
    problem = problem_of(store, content, format, {"content": "x"}, id_column="id")

    assert (problem.code, problem.param) == ("missing_id", "id")
    assert "id column 'id' has a floating-point number of 2**53 or more" in problem.message


def test_texts_and_exact_numbers_are_ids_as_they_are(store: ObjectStore) -> None:
    assert ids_of(store, b'{"id": "1.0"}\n{"id": 9007199254740993}', "jsonl") == ["1.0", "9007199254740993"]
    assert ids_of(store, b"id\n1.50\n1e5\n9007199254740993\n", "csv") == ["1.50", "1e5", "9007199254740993"]
    assert ids_of(store, parquet(pa.table({"id": ["1.0"]})), "parquet") == ["1.0"]
    assert ids_of(store, parquet(pa.table({"id": [b"a"]})), "parquet") == ["a"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (1.5, "has a number that is not whole: an id is"),
        (float("nan"), "is NaN"),
        (True, "has a boolean: an id is"),
        (b"\xff", "holds bytes that are no UTF-8 text"),
        (["a"], "has a list: an id is"),
        ({"a": 1}, "has an object: an id is"),
        (None, "has null: an id is"),
        ("", "has a text of 0 characters: an id is"),
        ("x" * 513, "has a text of 513 characters: an id is"),
        ("a\0", "has a text with NUL: an id is"),
    ],
)
def test_any_other_value_is_no_id_and_named_by_its_kind(store: ObjectStore, value: Any, why: str) -> None:
    content = parquet(pa.table({"id": [value]}))

    problem = problem_of(store, content, "parquet", {"content": "x"}, id_column="id")

    assert (problem.code, problem.param) == ("missing_id", "id")
    assert problem.message.startswith(f"The row's id column 'id' {why}")
