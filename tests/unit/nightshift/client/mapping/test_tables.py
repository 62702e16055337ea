"""Every kind of table gives its rows, and comes back as it was with typed columns at its end."""

import datetime
import json
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest

from nightshift.client.mapping.cells import NoJson, as_json_line, as_json_value, key_text
from nightshift.client.mapping.forms import OutputForm
from nightshift.client.mapping.tables import table_of
from nightshift.errors import InvalidRequest

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "is_so": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object", "properties": {"city": {"type": "string"}, "more": {}}},
        "either": {},
    },
}
FORM = OutputForm.from_schema(SCHEMA)
TYPES = FORM.columns
FULL = {
    "text": "ä",
    "count": 2**53 + 1,
    "share": 0.5,
    "is_so": True,
    "tags": ["x", "y"],
    "place": {"city": "Bern", "more": {"k": 1}},
    "either": [1],
}
HELD = FULL | {"place": {"city": "Bern", "more": '{"k": 1}'}, "either": "[1]"}
EMPTY = dict.fromkeys(TYPES)
VALUES = {name: [HELD[name], None] for name in TYPES}
ROWS = [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}]


def a_dataset() -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_list(ROWS)


def a_frame() -> pandas.DataFrame:
    return pandas.DataFrame(ROWS)


KINDS = {
    "pandas": (a_frame, lambda frame: frame.astype(object).where(frame.notna(), None).to_dict("records")),
    "polars": (lambda: polars.DataFrame(ROWS), lambda frame: frame.to_dicts()),
    "arrow": (lambda: pa.Table.from_pylist(ROWS), lambda table: table.to_pylist()),
    "datasets": (a_dataset, lambda dataset: dataset.to_list()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_comes_back_with_columns_of_the_schemas_types(kind):
    make, rows_of = KINDS[kind]
    data = make()
    table = table_of(data)
    with_columns = table.with_columns(TYPES, VALUES)

    assert list(table.rows(["note", "id"])) == [("a", 1), ("b", 2)]
    assert type(with_columns) is type(data)
    assert rows_of(with_columns) == [ROWS[0] | HELD, ROWS[1] | EMPTY]
    assert list(table_of(data).columns) == ["id", "note"], "the caller's own is as it was"


@pytest.mark.parametrize("kind", KINDS)
def test_columns_without_any_value_have_their_types_all_the_same(kind):
    table = table_of(KINDS[kind][0]())
    empty = table.with_columns(TYPES, {name: [None, None] for name in TYPES})
    full = table.with_columns(TYPES, VALUES)
    schemas = [getattr(one, "schema", getattr(one, "features", None)) for one in (empty, full)]
    if kind == "pandas":
        schemas = [one.dtypes.to_list() for one in (empty, full)]
    assert schemas[0] == schemas[1]


def test_a_list_of_dicts_keeps_values_that_are_json():
    assert table_of(ROWS).holds_json
    assert FORM.read(json.dumps(FULL), json_as_text=False) == FULL
    assert FORM.read(json.dumps(FULL), json_as_text=True) == HELD
    values = {name: [FULL[name], None] for name in TYPES}
    assert table_of(ROWS).with_columns(TYPES, values) == [ROWS[0] | FULL, ROWS[1] | EMPTY]


def test_the_index_of_a_frame_stays_and_its_named_levels_are_columns():
    frame = a_frame().set_index(["id", pandas.Index(["x", "x"], name="half")])
    table = table_of(frame)

    assert list(table.columns) == ["note", "id", "half"]
    assert list(table.rows(["id", "note"])) == [(1, "a"), (2, "b")]
    assert table.with_columns(TYPES, VALUES).index.equals(frame.index)
    twice = pandas.DataFrame({"note": ["a", "b"]}, index=[7, 7])
    assert table_of(twice).with_columns(TYPES, VALUES)["text"].to_list()[0] == "ä"


def test_a_subclass_of_a_frame_is_one():
    class Mine(pandas.DataFrame): ...

    assert list(table_of(Mine(ROWS)).columns) == ["id", "note"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (pandas.Series([1]), "to_frame"),
        (polars.LazyFrame(ROWS), "collect"),
        (pa.RecordBatch.from_pylist(ROWS), "from_batches"),
        ((row for row in ROWS), "a list of dicts"),
        ({"id": [1]}, "a list of dicts"),
        ([ROWS[0], "text"], "row 1"),
    ],
)
def test_data_that_are_no_table_are_refused_with_what_to_do(data, says):
    with pytest.raises(InvalidRequest, match=says) as refused:
        table_of(data)
    assert refused.value.param == "data"


@pytest.mark.parametrize(
    "data",
    [
        pandas.DataFrame([[1, 2]], columns=["a", "a"]),
        pa.table([[1], [2]], names=["a", "a"]),
        [{"a": 1}, {"b": 1}],
        polars.DataFrame({"a": polars.Series([1], dtype=polars.Datetime("ns"))}),
        polars.DataFrame({"a": polars.Series([[]], dtype=polars.List(polars.Datetime("ns")))}),
        polars.DataFrame({"a": polars.Series([], dtype=polars.Struct({"at": polars.Time}))}),
        pandas.DataFrame({"b": [1]}, index=pandas.MultiIndex.from_tuples([(1, 2)], names=["a", "a"])),
    ],
)
def test_a_column_that_cannot_be_read_is_refused(data):
    with pytest.raises(InvalidRequest, match="'a'"):
        list(table_of(data).rows(["a"]))


def test_a_time_of_polars_keeps_its_nanoseconds():
    times = polars.Series([11_045_000_000_000, 11_045_000_000_007]).cast(polars.Time)
    frame = polars.DataFrame({"ns": times, "Time": [{"ns": 1}, {"ns": 2}]})
    rows = [("03:04:05", {"ns": 1}), ("03:04:05.000000007", {"ns": 2})]
    assert list(table_of(frame).rows(["ns", "Time"])) == rows


def test_a_time_that_python_does_not_reach_is_refused():
    with pytest.raises(InvalidRequest, match="such as to text"):
        list(table_of(pa.table({"a": pa.array([2**60], pa.timestamp("us"))})).rows(["a"]))


@pytest.mark.parametrize("name", ["^a.*$", "*"])
def test_the_name_of_a_column_of_polars_is_no_pattern(name):
    frame = polars.DataFrame({name: ["own"], "ab": ["other"]})
    assert list(table_of(frame).rows([name])) == [("own",)]


@pytest.mark.parametrize("dtype", ["str", "string", "category", "object"])
def test_a_missing_text_of_pandas_is_null(dtype):
    frame = pandas.DataFrame({"a": ["x", None, float("nan")]}).astype({"a": dtype})
    assert [as_json_value(value) for (value,) in table_of(frame).rows(["a"])] == ["x", None, None]


@pytest.mark.parametrize(
    ("value", "json"),
    [
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.time(3, 4), "03:04:00"),
        (datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC), "2026-01-02T03:00:00+00:00"),
        (pandas.Timestamp("2026-01-02T03:04:05.000000007"), "2026-01-02T03:04:05.000000007"),
        (Decimal("1.10"), "1.10"),
        ("ä".encode(), "ä"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (np.int64(2**53 + 1), 2**53 + 1),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.array([[1, 2]]), [[1, 2]]),
        (pandas.NA, None),
        (pandas.NaT, None),
        ({"a": (Decimal(1), None)}, {"a": ["1", None]}),
    ],
)
def test_a_value_is_sent_as_the_text_that_a_file_of_it_would_have(value, json):
    sent = as_json_value(value)
    assert (sent, type(sent)) == (json, type(json))


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        np.float64("inf"),
        [float("nan")],
        Decimal("NaN"),
        b"\xff",
        b"a\0",
        10**640,
        datetime.timedelta(1),
        np.datetime64("2026-01-02"),
        {1: 2},
        object(),
        {1},
    ],
)
def test_a_value_without_a_text_is_refused(value):
    with pytest.raises(NoJson):
        as_json_value(value)


@pytest.mark.parametrize(
    ("key", "text"),
    [("a", "a"), (7, "7"), (7.0, "7"), (UUID(int=1), str(UUID(int=1))), (Decimal("7.50"), "7.50")],
)
def test_a_key_is_a_text_or_a_whole_number(key, text):
    assert key_text(key) == text


@pytest.mark.parametrize("key", [None, True, 1.5, "", "x" * 513, "a\0", ["a"], float("nan")])
def test_other_keys_are_refused(key):
    with pytest.raises(NoJson):
        key_text(key)


def test_half_a_character_is_sent_escaped():
    assert as_json_line({"a": "\ud83d"}) == b'{"a": "\\ud83d"}\n'
    assert as_json_line({"a": "ä"}) == '{"a": "ä"}\n'.encode()
