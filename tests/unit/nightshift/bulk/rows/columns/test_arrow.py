"""Rows of Arrow's IPC formats: the same as those of Parquet, however the batches were written."""

import base64
import io
import random
import zlib
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from nightshift.bulk.rows.inputs import BadRow, Row, UnreadableInput, describe, iter_rows
from nightshift.bulk.rows.values import Unusable
from nightshift.bulk.rows.watched_reader import WatchedReader
from nightshift.objectstore import DirectoryStore, ObjectStore
from tests.unit.nightshift.bulk.rows.columns.tables import a_shard, data, file, parquet, rows_of, stream

exhaustive = pytest.mark.exhaustive


def everything(rows: int) -> pa.Table:
    seed = 7
    print(f"seed={seed}")
    numbers = random.Random(seed)

    def text() -> str | None:
        return numbers.choice([None, "", "no", "perhaps é"]) and "x" * numbers.randrange(40)

    records = [
        {
            "id": number,
            "text": text(),
            "raw": text() and b"\x00\xff",
            "flag": numbers.choice([True, False, None]),
            "float": numbers.choice([0.5, float("nan"), None]),
            "at": datetime(2026, 1, 2, number % 24, tzinfo=UTC),
            "day": date(2026, 1, 2),
            "price": Decimal("1.10"),
            "tags": numbers.choice([None, [text() for _ in range(number % 4)]]),
            "messages": [{"role": text(), "content": [text()]} for _ in range(number % 3)],
            "nothing": None,
        }
        for number in range(rows)
    ]
    table = pa.Table.from_pylist(records)
    columns = {
        "kind": pa.array([numbers.choice(["a", "b", None]) for _ in range(rows)]).dictionary_encode(),
        "kinds": pa.ListArray.from_arrays(
            pa.array(range(rows + 1), pa.int32()), pa.array(["long", "short"] * rows).dictionary_encode()
        ),
        "large": pa.array([text() for _ in range(rows)], pa.large_string()),
        "pair": pa.FixedSizeListArray.from_arrays(pa.array(range(2 * rows)), 2),
        "map": pa.array(
            [[("a", 1)] * (number % 2) for number in range(rows)], pa.map_(pa.string(), pa.int8())
        ),
        "uuid": pa.ExtensionArray.from_storage(
            pa.uuid(), pa.array([b"0123456789abcdef"] * rows, pa.binary(16))
        ),
        "half": pa.array([numbers.random() for _ in range(rows)], pa.float16()),
        "nanoseconds": pa.array([1_001] * rows, pa.timestamp("ns")),
    }
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


@pytest.mark.parametrize(
    ("write", "batch_rows", "options"),
    [
        (stream, 7, {}),
        (stream, 5000, {"compression": "lz4"}),
        (file, 7, {"compression": "zstd"}),
        (file, 5000, {}),
        pytest.param(stream, 5000, {"use_legacy_format": True}, marks=exhaustive),
        pytest.param(stream, 5000, {}, marks=exhaustive),
        pytest.param(file, 5000, {"compression": "lz4"}, marks=exhaustive),
    ],
)
def test_rows_are_those_of_parquet(
    store: ObjectStore,
    rows_of_parquet: list[Row | BadRow],
    write: Callable[..., bytes],
    batch_rows: int,
    options: dict[str, Any],
) -> None:
    """Also those of a batch that is sent in pieces."""
    rows = rows_of(store, write(everything(1500), batch_rows, **options))

    assert rows == rows_of_parquet
    assert [row.index for row in rows] == list(range(1500))


@pytest.fixture(scope="module")
def rows_of_parquet(tmp_path_factory: pytest.TempPathFactory) -> list[Row | BadRow]:
    store = DirectoryStore(tmp_path_factory.mktemp("parquet"))
    return rows_of(store, parquet(everything(1500), 100), "parquet")


TEXTS = [None, "", "twelve bytes", "thirteen byte", "é" * 40, "short"] * 20
PLAIN = pa.table(
    {
        "text": TEXTS,
        "raw": pa.array([text and text.encode() for text in TEXTS], pa.binary()),
        "lists": [[text, "x" * 20] if text else None for text in TEXTS],
        "structs": [{"text": text} for text in TEXTS],
        "numbers": [[number, None] for number in range(len(TEXTS))],
        "runs": ["a", "b"] * (len(TEXTS) // 2),
        "keys": ["key", None] * (len(TEXTS) // 2),
    }
)
REFERRED = pa.schema(
    {
        "text": pa.string_view(),
        "raw": pa.binary_view(),
        "lists": pa.list_(pa.string_view()),
        "structs": pa.struct({"text": pa.string_view()}),
        "numbers": pa.list_view(pa.int64()),
        "runs": pa.run_end_encoded(pa.int32(), pa.string()),
        "keys": pa.dictionary(pa.int8(), pa.string_view()),
    }
)


def referred(name: str) -> pa.Array:
    """A column of PLAIN, whose values refer to one another, or to others."""
    values, type = PLAIN[name].combine_chunks(), REFERRED.field(name).type
    if pa.types.is_run_end_encoded(type):
        return pc.run_end_encode(values)
    if pa.types.is_dictionary(type):
        encoded = values.dictionary_encode()
        dictionary = encoded.dictionary.cast(pa.string_view())
        return pa.DictionaryArray.from_arrays(encoded.indices.cast(pa.int8()), dictionary)
    return pa.array(values.to_pylist(), type)


@pytest.mark.parametrize("line_bytes_max", [10_000, 100], ids=["whole pieces", "rows by their sizes"])
@pytest.mark.parametrize(
    ("write", "options"), [(stream, {}), pytest.param(file, {"compression": "zstd"}, marks=exhaustive)]
)
def test_views_dictionaries_and_runs_are_the_values_that_they_stand_for(
    store: ObjectStore, write: Callable[..., bytes], options: dict[str, Any], line_bytes_max: int
) -> None:
    table = pa.table([referred(name) for name in PLAIN.column_names], schema=REFERRED)

    rows = data(rows_of(store, write(table, 50, **options), line_bytes_max=line_bytes_max))

    assert rows == data(rows_of(store, parquet(PLAIN), "parquet", line_bytes_max=line_bytes_max))
    assert ("line_too_long" in rows) == (line_bytes_max == 100)


NULLS = pa.null()
LISTS_OF_NULLS = [
    pa.list_(NULLS),
    pa.large_list(NULLS),
    pa.list_(NULLS, 2),
    pa.list_view(NULLS),
    pa.large_list_view(NULLS),
    pa.list_(pa.list_(NULLS)),
    pa.list_(pa.struct({"q": NULLS, "r": pa.list_(NULLS)})),
    pa.map_(pa.string(), NULLS),
]
REFERRED_TEXTS = [pa.string_view(), pa.dictionary(pa.int16(), pa.string())]


def nulls_of(type: pa.DataType, count: int) -> Any:
    """A value of a type that ends in nulls, with `count` parts."""
    if pa.types.is_null(type):
        return None
    if pa.types.is_map(type):
        return [(str(number), None) for number in range(count)]
    if pa.types.is_struct(type):
        return {field.name: nulls_of(field.type, count) for field in type}
    length = type.list_size if pa.types.is_fixed_size_list(type) else count
    return [nulls_of(type.value_type, count) for _ in range(length)]


@pytest.mark.parametrize("type", LISTS_OF_NULLS, ids=str)
@pytest.mark.parametrize("text", [*REFERRED_TEXTS, pa.float32()], ids=str)
def test_lists_of_nulls_stay_those_of_their_rows(
    store: ObjectStore, type: pa.DataType, text: pa.DataType
) -> None:
    """Also where pyarrow casts their column, and where another column has a value that is not read."""
    texts = [number % 9 + 0.1 if text == pa.float32() else str(number % 9) for number in range(1500)]
    records = [{"x": nulls_of(type, number % 4), "y": texts[number]} for number in range(1500)]
    column = pa.array(records, pa.struct({"x": type, "y": text}))
    times = pa.array([*range(1499), 10**12]).cast(pa.timestamp("s"))

    rows = data(rows_of(store, stream(pa.table({"c": column, "t": times}), 1500)))

    if pa.types.is_map(type):
        records = [{**record, "x": dict(record["x"])} for record in records]
    assert [row["c"] for row in rows] == records
    assert [isinstance(row["t"], Unusable) for row in rows] == [False] * 1499 + [True]


UNION = pa.UnionArray.from_sparse(
    pa.array([0, 1], pa.int8()), [pa.array(["a", "b"]).dictionary_encode(), pa.array([1, 2])]
)


@pytest.mark.parametrize(
    "union",
    [
        UNION,
        pa.StructArray.from_arrays([UNION], ["in"]),
        pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), UNION),
    ],
    ids=["union", "in a struct", "in a list"],
)
def test_a_union_is_not_read(store: ObjectStore, union: pa.Array) -> None:
    content = stream(pa.table({"u": union, "n": [1, 2]}))

    with pytest.raises(UnreadableInput, match=r"column 'u' has the type .*sparse_union.*, which is not read"):
        rows_of(store, content, columns=["u"])
    assert data(rows_of(store, content, columns=["n"])) == [{"n": 1}, {"n": 2}]
    assert isinstance(data(rows_of(store, content))[0]["u"], Unusable)


@pytest.mark.parametrize("name", ["read_record_batch", "read_schema"])
def test_values_that_cannot_be_received_are_told_with_their_object(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail(*arguments: Any) -> None:
        raise pa.ArrowKeyError("no dictionary")

    monkeypatch.setattr(pa.ipc, name, fail)

    with pytest.raises(UnreadableInput, match=r"^k cannot be read as Arrow IPC.*: .*no dictionary"):
        rows_of(store, stream(pa.table({"n": [1]})))


def test_a_view_of_bytes_that_are_not_there_is_damage(store: ObjectStore) -> None:
    content = stream(pa.table({"t": pa.array(["a text that is too long for a view"], pa.string_view())}))
    view = (34).to_bytes(4, "little") + b"a te" + bytes(8)

    for place in (bytes(4) + (100).to_bytes(4, "little"), (1).to_bytes(4, "little") + bytes(4)):
        with pytest.raises(UnreadableInput, match="View at slot 0 references"):
            rows_of(store, content.replace(view, view[:8] + place))


def test_a_file_of_polars_is_read_by_its_footer(store: ObjectStore) -> None:
    """It begins with another schema than a stream does."""
    rows = rows_of(store, zlib.decompress(base64.b85decode(POLARS_FILE)))

    assert rows == [
        Row(0, {"doc_id": 1, "text": "48213"}),
        Row(1, {"doc_id": 2, "text": "a text that is too long for a view"}),
    ]


def test_a_file_that_lists_a_batch_twice_is_refused(store: ObjectStore) -> None:
    """Each entry of a footer would be as many rows as the batch has."""
    content = file(pa.table({"n": range(20)}), 10)
    footer = len(content) - 10 - int.from_bytes(content[-10:-6], "little")
    batches = [place for place in range(footer) if content[place : place + 4] == b"\xff\xff\xff\xff"][-3:-1]
    blocks = [content.index(batch.to_bytes(8, "little"), footer) for batch in batches]
    first = content[blocks[0] : blocks[0] + 24]

    with pytest.raises(UnreadableInput, match="lists batches that overlap"):
        rows_of(store, content[: blocks[1]] + first + content[blocks[1] + 24 :])


POLARS_FILE = (
    "c-qZVu};G<5Pc2?1&B~63=9kw6KkPE#`X)4x-g=M28e{P1Qv8;;G-Dx7ceq0F(C$qO5vU3q9{^PM=r9@e(&A+;!8&3"
    "@yTf)&;UN`y55DX73U3XBIc~|O*|nI^AR@UJU|muk=v(FJrAfoc$*Q|&|c$;sT1sjSVnI+M5ZE%>rs<p+earp_KUiq"
    "@IL1{`50?lPwe?wIcf4!Qon{8ByZKgXzE{KrX8O<;qIM$6!<5O!=MAUScj%2^@s{*&TSQoEe(Fy!RLDu{A2J3Elm^#"
    "I#}D(0(@DM+6UQD|G0I2Zd|c!ylAJ+xU1Zm^3FJG&9%L`G#B>P<mSFC9{!G({-D(#xtHv>Kho(Q?@&6M_;-B{ac{v_"
    "oqYf78+_q%<bRzXP_AXF"
)
"""Two rows, compressed, as polars 2.1 writes them by `write_ipc`."""


def test_dictionaries_may_grow_and_be_replaced(store: ObjectStore) -> None:
    type = pa.dictionary(pa.int8(), pa.string())
    dictionaries = [["a"], ["a", "b"], ["c"]]
    batches = [
        pa.record_batch(
            [pa.DictionaryArray.from_arrays(pa.array([0, len(values) - 1], pa.int8()), values)], ["k"]
        )
        for values in dictionaries
    ]
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_stream(sink, pa.schema([("k", type)]), options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)

    assert [row["k"] for row in data(rows_of(store, sink.getvalue()))] == ["a", "a", "a", "b", "c", "c"]


def test_only_the_named_columns_of_a_file_are_read(store: ObjectStore) -> None:
    wide = ["x" * 1_000_000] * 10
    content = file(pa.table({"text": ["a"] * 10, "wide": wide, "meta": [{"author": "c"}] * 10}))
    store.put("k", content)
    pieces: list[int] = []
    shard = a_shard("arrow")

    reader = WatchedReader(store, pieces.append)
    rows = list(iter_rows(reader, "k", shard, line_bytes_max=1000, columns=["meta.author", "text"]))

    assert data(rows) == [{"text": "a", "meta": {"author": "c"}}] * 10
    assert sum(pieces) < len(content) / 2


def test_batches_are_read_that_are_larger_than_what_is_read_ahead(store: ObjectStore) -> None:
    """A row that is too large is a row with an error."""
    texts = [str(number) * 700_000 for number in range(6)]
    rows = rows_of(store, stream(pa.table({"t": texts}), 2), line_bytes_max=1_000_000)
    assert data(rows) == [{"t": text} for text in texts]

    table = pa.table({"t": ["a", "x" * 30_000, "b", "y" * 17_000_000]})
    assert data(rows_of(store, stream(table))) == [{"t": "a"}, "line_too_long", {"t": "b"}, "line_too_long"]


@pytest.mark.parametrize("is_in_a_list", [False, True])
def test_text_that_is_no_utf8_spoils_only_rows_that_use_it(store: ObjectStore, is_in_a_list: bool) -> None:
    offsets = pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0")
    texts = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"a\xffc")])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), texts)
    content = stream(pa.table({"t": lists if is_in_a_list else texts, "other": [1, 2, 3]}))

    rows = data(rows_of(store, content))

    assert [row["other"] for row in rows] == [1, 2, 3]
    assert isinstance(rows[1]["t"], Unusable)
    assert [rows[0]["t"], rows[2]["t"]] == ([["a"], ["c"]] if is_in_a_list else ["a", "c"])
    assert data(rows_of(store, content, columns=["other"])) == [{"other": n} for n in (1, 2, 3)]


def decimals_too_long() -> pa.Array:
    numbers = (123).to_bytes(16, "little") + (10**9).to_bytes(16, "little")
    return pa.Array.from_buffers(pa.decimal128(5, 2), 2, [None, pa.py_buffer(numbers)])


@pytest.mark.parametrize(
    ("values", "first"),
    [
        (decimals_too_long(), Decimal("1.23")),
        (pa.array([1, 86_400], pa.int32()).view(pa.time32("s")), "00:00:01"),
        (pa.array([1000, 86_400 * 10**9], pa.int64()).view(pa.time64("ns")), "00:00:00.000001"),
        (pa.array([0, 1], pa.int64()).view(pa.date64()), "1970-01-01"),
    ],
    ids=lambda values: str(values.type) if isinstance(values, pa.Array) else "",
)
def test_a_value_beyond_its_type_spoils_only_its_row(
    store: ObjectStore, values: pa.Array, first: Any
) -> None:
    rows = data(rows_of(store, stream(pa.table({"v": values, "n": [1, 2]}))))

    assert rows[0] == {"v": first, "n": 1}
    assert isinstance(rows[1]["v"], Unusable)
    assert rows[1]["n"] == 2


WHOLE = stream(pa.table({"t": ["some text"] * 3000}))


@pytest.mark.parametrize("write", [stream, file])
def test_a_truncated_object_is_never_a_short_input(store: ObjectStore, write: Callable[..., bytes]) -> None:
    """Also where a message ends: there the stream's end is missing."""
    content = write(pa.table({"t": ["some text"] * 30}), 10)
    messages = [place for place in range(len(content)) if content[place : place + 4] == b"\xff\xff\xff\xff"]

    for size in [*messages, *range(0, len(content), 101), len(content) - 1]:
        with pytest.raises(UnreadableInput, match=r"^k cannot be read as Arrow IPC.*[^.]\.\Z"):
            rows_of(store, content[:size])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"not arrow at all", "It is text: give it a name that ends in"),
        (b"PAR1" + b"\0" * 100, "It is Parquet"),
        (b"\x01\x02\x03\x7f" * 20, "not Arrow IPC"),
        (WHOLE + WHOLE, "goes on after the end of its stream"),
        (stream(pa.table([[1], [2]], names=["a", "a"])), "more than one column named 'a'"),
        (stream(pa.table({})), "no column with a name of its own"),
    ],
    ids=["text", "Parquet", "bytes", "two streams", "two columns of a name", "no column"],
)
def test_an_object_that_cannot_be_read_is_named(store: ObjectStore, content: bytes, why: str) -> None:
    with pytest.raises(UnreadableInput, match=rf"^k cannot be read as Arrow IPC.*: .*{why}"):
        rows_of(store, content)


def interval_of_months() -> bytes:
    """A column of a type that Arrow has and pyarrow has no arrays of."""
    content = stream(pa.table({"t": pa.array([None], pa.month_day_nano_interval()), "n": [1]}))
    places = range(len(content))
    return next(
        changed
        for changed in (content[:place] + b"\0" + content[place + 1 :] for place in places)
        if type_of(changed) == "month_interval"
    )


def type_of(content: bytes) -> str | None:
    """The first column's."""
    try:
        return str(pa.ipc.open_stream(content).schema.field(0).type)
    except (pa.ArrowException, OSError, KeyError, IndexError):
        return None


def test_a_column_of_a_type_that_pyarrow_has_no_arrays_of_is_named_where_it_is_used(
    store: ObjectStore,
) -> None:
    content = interval_of_months()

    with pytest.raises(UnreadableInput, match="column 't' has the type month_interval, which is not read"):
        rows_of(store, content, columns=["t", "n"])
    for columns in (["n"], ["missing"], None):
        [row] = data(rows_of(store, content, columns=columns))
        assert row["n"] == 1


@pytest.mark.parametrize("write", [stream, file])
def test_rows_are_estimated_from_the_first_batch(store: ObjectStore, write: Callable[..., bytes]) -> None:
    info = store.put("a.arrow", write(pa.table({"t": ["some text"] * 3000})))

    described = describe(store, info, "file:///a.arrow")

    assert described.rows_estimated is not None
    assert 2500 < described.rows_estimated < 3500
    assert describe(store, info, "file:///a.arrow", sample_bytes=0).rows_estimated is None


@pytest.mark.parametrize("tries", [20, pytest.param(400, marks=exhaustive)])
def test_a_damaged_byte_is_an_error_or_another_value(store: ObjectStore, tries: int) -> None:
    """Never anything but `UnreadableInput`, whichever byte it is."""
    content = stream(everything(20).drop_columns(["uuid"]), compression="lz4")
    seed = 11
    print(f"seed={seed}")
    numbers = random.Random(seed)
    refused = 0
    for _ in range(tries):
        damaged = bytearray(content)
        damaged[numbers.randrange(len(content))] ^= 1 << numbers.randrange(8)
        try:
            rows_of(store, bytes(damaged), line_bytes_max=100_000)
        except UnreadableInput:
            refused += 1

    assert refused > tries // 20
