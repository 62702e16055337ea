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
import pyarrow.parquet as pq
import pytest

from nightshift.bulk.rows import arrow_buffers, arrow_messages, arrow_rows
from nightshift.bulk.rows.inputs import BadRow, Row, UnreadableInput, describe, iter_rows
from nightshift.bulk.rows.values import Unusable
from nightshift.jobs import NewShard
from nightshift.objectstore import ObjectChanged, ObjectStore


def stream(table: pa.Table, batch_rows: int = 1000, **options: Any) -> bytes:
    """As `Dataset.save_to_disk` writes `data-00000-of-00001.arrow`."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, batch_rows)
    return sink.getvalue()


def file(table: pa.Table, batch_rows: int = 1000, **options: Any) -> bytes:
    """Also what Feather is."""
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, batch_rows)
    return sink.getvalue()


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def rows_of(
    store: ObjectStore, content: bytes, format: str = "arrow", *, line_bytes_max: int = 10_000, **others: Any
) -> list[Row | BadRow]:
    store.put("k", content)
    shard = NewShard(shard_no=0, uri="k", format=format, start=0, end=None)
    return list(iter_rows(store, "k", shard, line_bytes_max=line_bytes_max, **others))


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


@pytest.mark.parametrize("write", [stream, file])
@pytest.mark.parametrize(
    "options", [{}, {"compression": "lz4"}, {"compression": "zstd"}, {"use_legacy_format": True}], ids=str
)
@pytest.mark.parametrize("batch_rows", [7, 1000])
@pytest.mark.parametrize("is_small", [True, False])
def test_rows_are_those_of_parquet(
    store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[..., bytes],
    options: dict[str, Any],
    batch_rows: int,
    is_small: bool,
) -> None:
    """Also of batches that are read buffer by buffer, because they are large."""
    if not is_small:
        monkeypatch.setattr(arrow_messages, "SMALL_BODY_BYTES", 0)
        monkeypatch.setattr(arrow_buffers, "AHEAD_BYTES", 100)
        monkeypatch.setattr(arrow_rows, "ROWS_AT_ONCE", 5)
        monkeypatch.setattr(arrow_rows, "BATCH_BYTES_MAX", 1500)
    table = everything(201)

    rows = rows_of(store, write(table, batch_rows, **options))

    assert rows == rows_of(store, parquet(table), "parquet")
    assert [row.index for row in rows] == list(range(201))


@pytest.mark.parametrize("write", [stream, file])
@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}], ids=str)
@pytest.mark.parametrize("is_small", [True, False])
def test_views_are_the_texts_that_they_stand_for(
    store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[..., bytes],
    options: dict[str, Any],
    is_small: bool,
) -> None:
    if not is_small:
        monkeypatch.setattr(arrow_messages, "SMALL_BODY_BYTES", 0)
        monkeypatch.setattr(arrow_rows, "ROWS_AT_ONCE", 3)
        monkeypatch.setattr(arrow_rows, "BATCH_BYTES_MAX", 1500)
    texts = [None, "", "twelve bytes", "thirteen byte", "é" * 40, "short"] * 20
    plain = pa.table(
        {
            "text": texts,
            "raw": pa.array([text and text.encode() for text in texts], pa.binary()),
            "lists": [[text, "x" * 20] if text else None for text in texts],
            "structs": [{"text": text} for text in texts],
        }
    )
    views = plain.cast(
        pa.schema(
            {
                "text": pa.string_view(),
                "raw": pa.binary_view(),
                "lists": pa.list_(pa.string_view()),
                "structs": pa.struct({"text": pa.string_view()}),
            }
        )
    )

    assert rows_of(store, write(views, 50, **options)) == rows_of(store, parquet(plain), "parquet")


def test_a_view_of_bytes_that_are_not_there_is_damage(store: ObjectStore) -> None:
    content = stream(pa.table({"t": pa.array(["a text that is too long for a view"], pa.string_view())}))
    view = (34).to_bytes(4, "little") + b"a te" + bytes(8)

    for place in (bytes(4) + (100).to_bytes(4, "little"), (1).to_bytes(4, "little") + bytes(4)):
        with pytest.raises(UnreadableInput, match="shorter than its rows need"):
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
    content = file(pa.table({"t": range(20)}), 10)
    blocks = [content.rindex(offset.to_bytes(8, "little")) for offset in _batch_offsets(content)]
    first = content[blocks[0] : blocks[0] + 24]

    with pytest.raises(UnreadableInput, match="lists batches that overlap"):
        rows_of(store, content[: blocks[1]] + first + content[blocks[1] + 24 :])


def _batch_offsets(content: bytes) -> list[int]:
    messages = arrow_messages.Messages.of(lambda start, end: content[start:end], len(content))
    assert messages._blocks is not None
    return [start for start, _ in messages._blocks]


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

    rows = rows_of(store, sink.getvalue())

    assert [row.data["k"] for row in rows if isinstance(row, Row)] == ["a", "a", "a", "b", "c", "c"]


def test_only_the_named_columns_are_read(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_messages, "SMALL_BODY_BYTES", 0)
    monkeypatch.setattr(arrow_messages, "HEADER_AHEAD_BYTES", 1)
    table = pa.table({"wide": ["x" * 100_000] * 20, "text": ["a"] * 20, "meta": [{"author": "c"}] * 20})
    content = stream(table)
    store.put("k", content)
    read: list[int] = []
    streamed = store.stream

    def counted(key: str, start: int = 0, end: int | None = None, **others: Any) -> Any:
        read.append((len(content) if end is None else end) - start)
        return streamed(key, start, end, **others)

    monkeypatch.setattr(store, "stream", counted)
    shard = NewShard(shard_no=0, uri="k", format="arrow", start=0, end=None)
    rows = list(iter_rows(store, "k", shard, line_bytes_max=1000, columns=["meta.author", "text"]))

    assert [row.data for row in rows if isinstance(row, Row)] == [{"meta": {"author": "c"}, "text": "a"}] * 20
    assert sum(read) < 10_000


def test_a_row_that_is_too_large_is_a_row_with_an_error(store: ObjectStore) -> None:
    table = pa.table({"t": ["a", "x" * 30_000, "b", "y" * 17_000_000]})

    rows = rows_of(store, stream(table))

    assert [row.code if isinstance(row, BadRow) else row.data for row in rows] == [
        {"t": "a"},
        "line_too_long",
        {"t": "b"},
        "line_too_long",
    ]


def test_text_that_is_no_utf8_spoils_only_its_row(store: ObjectStore) -> None:
    offsets = pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0")
    bad_text = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"a\xffc")])

    rows = rows_of(store, stream(pa.table({"t": bad_text})))

    assert [isinstance(row.data["t"], Unusable) or row.data["t"] for row in rows if isinstance(row, Row)] == [
        "a",
        True,
        "c",
    ]


WHOLE = stream(pa.table({"t": ["some text"] * 3000}))


@pytest.mark.parametrize("write", [stream, file])
def test_a_truncated_object_is_never_a_short_input(store: ObjectStore, write: Callable[..., bytes]) -> None:
    content = write(pa.table({"t": ["some text"] * 30}), 10)

    for size in [*range(0, len(content), 7), len(content) - 1]:
        with pytest.raises(UnreadableInput, match=r"^k cannot be read as Arrow IPC"):
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
)
def test_an_object_that_cannot_be_read_is_named(store: ObjectStore, content: bytes, why: str) -> None:
    with pytest.raises(UnreadableInput, match=rf"^k cannot be read as Arrow IPC.*: .*{why}"):
        rows_of(store, content)


def test_a_column_of_a_type_that_pyarrow_has_no_arrays_of_is_named(store: ObjectStore) -> None:
    content = stream(pa.table({"t": pa.array([None], pa.month_day_nano_interval())}))
    interval = next(
        changed
        for place in range(len(content))
        if (changed := content[:place] + b"\0" + content[place + 1 :])
        and type_of(changed) == "month_interval"
    )

    with pytest.raises(UnreadableInput, match="column 't' has the type month_interval, which is not read"):
        rows_of(store, interval, columns=["t"])


SPARSE_UNION = pa.UnionArray.from_sparse(
    pa.array([0, 1], pa.int8()), [pa.array(["a", "b"]), pa.array([1, 2])]
)
UNREAD = [
    SPARSE_UNION,
    pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["x"])),
    pa.array([["a"], ["b"]], pa.list_view(pa.string())),
    pa.array([{"f": ["a"]}, None], pa.struct([("f", pa.list_view(pa.string()))])),
]


@pytest.mark.parametrize("column", UNREAD, ids=lambda column: str(column.type))
def test_a_column_of_a_type_that_is_not_read_is_named_where_it_is_used(
    store: ObjectStore, column: pa.Array
) -> None:
    content = stream(pa.table({"u": column, "t": ["p", "q"]}))

    with pytest.raises(UnreadableInput, match=r"The column 'u' has the type .*, which is not read"):
        rows_of(store, content, columns=["t", "u.f"])
    for columns in (["t"], ["missing"], None):
        rows = rows_of(store, content, columns=columns)
        assert [row.data["t"] for row in rows if isinstance(row, Row)] == ["p", "q"]


def test_dictionaries_that_pyarrow_sees_otherwise_make_the_object_unreadable(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_messages, "_dictionary_ids", lambda field: [1, 2])

    with pytest.raises(UnreadableInput, match="metadata are damaged"):
        rows_of(store, stream(pa.table({"t": ["a"]})))


def type_of(content: bytes) -> str | None:
    """Of the first column."""
    try:
        return str(pa.ipc.open_stream(content).schema.field(0).type)
    except (pa.ArrowException, OSError, KeyError, IndexError):
        return None


def test_a_column_that_is_not_read_may_have_any_type(store: ObjectStore) -> None:
    views = pa.array(["a", "b" * 50], pa.string_view())
    lists = pa.array([[1], [2, 3]], pa.list_view(pa.int64()))
    union = pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 2])])
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["r"]))
    table = pa.table({"views": views, "lists": lists, "union": union, "runs": runs, "t": ["x", "y"]})

    rows = rows_of(store, stream(table), columns=["t"])

    assert [row.data for row in rows if isinstance(row, Row)] == [{"t": "x"}, {"t": "y"}]


def test_rows_are_estimated_from_the_first_batch(store: ObjectStore) -> None:
    info = store.put("a.arrow", WHOLE)

    found = describe(store, info, "file:///a.arrow")

    assert found.rows_estimated is not None
    assert 2500 < found.rows_estimated < 3500
    assert describe(store, info, "file:///a.arrow", sample_bytes=0).rows_estimated is None


def test_a_damaged_byte_is_an_error_or_another_value(store: ObjectStore) -> None:
    """Never anything but `UnreadableInput`, whichever byte of it."""
    content = stream(everything(20).drop_columns(["uuid"]), compression="lz4")
    seed = 11
    print(f"seed={seed}")
    numbers = random.Random(seed)
    refused = 0
    for _ in range(400):
        damaged = bytearray(content)
        damaged[numbers.randrange(len(content))] ^= 1 << numbers.randrange(8)
        try:
            rows_of(store, bytes(damaged), line_bytes_max=100_000)
        except UnreadableInput:
            refused += 1

    assert refused > 30


def test_another_object_than_the_one_planned_is_never_read(store: ObjectStore) -> None:
    etag = store.put("k", WHOLE).etag
    shard = NewShard(shard_no=0, uri="k", format="arrow", start=0, end=None, source_etag=etag)
    assert len(list(iter_rows(store, "k", shard, line_bytes_max=200))) == 3000

    store.put("k", WHOLE)

    with pytest.raises(ObjectChanged):
        list(iter_rows(store, "k", shard, line_bytes_max=200))
