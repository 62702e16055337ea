"""The rows of a shard in every format, and the errors of the bad ones."""

import gzip
import io
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

from nightshift.bulk.rows.inputs import (
    BadRow,
    InputFormat,
    InputObject,
    Row,
    UnreadableInput,
    describe,
    format_of,
    iter_rows,
)
from nightshift.bulk.rows.records import Compression, Layout
from nightshift.bulk.rows.text import compression
from nightshift.bulk.rows.text.compression import unpacked
from nightshift.bulk.rows.text.csv_rows import csv_rows
from nightshift.bulk.rows.values import Unusable
from nightshift.errors import ObjectNotFound
from nightshift.jobs import NewShard
from nightshift.objectstore import ObjectChanged, ObjectInfo, ObjectStore
from tests.unit.nightshift.bulk.rows.columns import tables
from tests.unit.nightshift.bulk.rows.columns.tables import a_shard, data, parquet, stream, zstd

IMAGES = (InputFormat.IMAGE, InputFormat.IMAGES)  # test_images.py has them
OF_ROWS = [format for format in InputFormat if format not in IMAGES]


def rows_of(store: ObjectStore, content: bytes, format: str = "jsonl", **options: Any) -> list[Row | BadRow]:
    return tables.rows_of(store, content, format, **{"line_bytes_max": 200, **options})


def read(store: ObjectStore, shard: NewShard, key: str = "k") -> list[Row | BadRow]:
    return list(iter_rows(store, key, shard, line_bytes_max=200))


# --- JSONL ---


def test_rows_are_numbered_and_blank_lines_are_none(store: ObjectStore) -> None:
    rows = rows_of(store, b'\xef\xbb\xbf{"a":1}\r\n\n  \n{"a":2}\n{"a":3}')

    assert rows == [Row(0, {"a": 1}), Row(1, {"a": 2}), Row(2, {"a": 3})]


def test_a_bad_line_is_a_row_with_an_error_and_the_others_go_on(store: ObjectStore) -> None:
    content = b'{"a":1}\n{oops}\n"text"\n\xff\n{"a":"' + b"x" * 300 + b'"}\n{"a":2}\n'

    rows = rows_of(store, content)

    assert data(rows) == [
        {"a": 1},
        "invalid_json_line",
        "invalid_json_line",
        "invalid_encoding",
        "line_too_long",
        {"a": 2},
    ]
    assert [row.index for row in rows] == list(range(6))
    assert isinstance(rows[1], BadRow)
    assert rows[1].message.startswith("Line 2: the line is not valid JSON")
    from_the_middle = rows_of(store, content, start=3)
    assert isinstance(from_the_middle[0], BadRow)
    assert from_the_middle[0].message.startswith("The line at byte 8: the line is not valid JSON")


@pytest.mark.parametrize(
    ("content", "format"), [(b"", "jsonl"), (b"\n\n", "jsonl"), (b"", "csv"), (b"a,b\n", "csv")]
)
def test_an_empty_object_has_no_rows(store: ObjectStore, content: bytes, format: str) -> None:
    assert rows_of(store, content, format) == []


def test_a_shard_has_the_rows_of_its_range(store: ObjectStore) -> None:
    content = b'{"a":1}\n{"a":2}\n{"a":3}\n'

    assert data(rows_of(store, content, start=1, end=9)) == [{"a": 2}]


def test_a_missing_object_is_an_error_when_reading_begins(store: ObjectStore) -> None:
    for format in OF_ROWS:
        with pytest.raises(ObjectNotFound):
            read(store, a_shard(format), "none")


# --- columns that are not used ---


@pytest.mark.parametrize(
    ("content", "record"),
    [
        (b",doc_id,text\n0,1,a\n", {"doc_id": "1", "text": "a"}),  # as `to_csv` writes an index
        (b"doc_id,text,,\n1,a,,\n", {"doc_id": "1", "text": "a"}),  # as Excel writes empty columns
        (b"doc_id,text,,\n1,a\n", {"doc_id": "1", "text": "a"}),
        (b"doc_id,,text\n1,x,a\n", {"doc_id": "1", "text": "a"}),
        (b"n,doc_id,n,text,n\n7,1,8,a,9\n", {"doc_id": "1", "text": "a"}),
    ],
)
def test_a_column_of_csv_without_a_name_of_its_own_is_left_out(
    store: ObjectStore, content: bytes, record: dict[str, str]
) -> None:
    assert data(rows_of(store, content, "csv", columns=["text", "doc_id"])) == [record]


def test_a_record_of_csv_lacks_no_column_that_has_a_name(store: ObjectStore) -> None:
    """Its text may be broken into two lines: what is left of it is not run."""
    rows = rows_of(store, b"doc_id,text,lang,\n1,a\n1,a,en,,\n1,a,en\n", "csv", columns=["text"])

    assert data(rows)[:2] == ["wrong_number_of_fields"] * 2
    assert data(rows)[2:] == [{"doc_id": "1", "text": "a", "lang": "en"}]


TWICE = pa.table([[1], ["a"], ["b"]], names=["id", "text", "text"])
OBJECTS_WITH_A_NAME_TWICE = pytest.mark.parametrize(
    ("format", "content"),
    [
        ("csv", b"id,text,text\n1,a,b\n"),
        ("tsv", b"id\ttext\ttext\n1\ta\tb\n"),
        ("parquet", parquet(TWICE)),
        ("arrow", stream(TWICE)),
    ],
)


@OBJECTS_WITH_A_NAME_TWICE
@pytest.mark.parametrize("columns", [["id", "text"], ["id", "text.part"], None])
def test_a_name_that_two_columns_have_is_refused_where_it_is_used(
    store: ObjectStore, format: str, content: bytes, columns: list[str] | None
) -> None:
    with pytest.raises(UnreadableInput, match=r"^k cannot be read.* more than one column named 'text'"):
        rows_of(store, content, format, columns=columns)


@OBJECTS_WITH_A_NAME_TWICE
def test_a_name_that_two_columns_have_spoils_no_row_that_does_not_use_it(
    store: ObjectStore, format: str, content: bytes
) -> None:
    [record] = data(rows_of(store, content, format, columns=["id"]))

    assert {name: str(value) for name, value in record.items()} == {"id": "1"}


@pytest.mark.parametrize(("format", "write"), [("parquet", parquet), ("arrow", stream)])
def test_where_a_column_is_missing_those_there_are_are_named_and_not_read(
    store: ObjectStore, format: str, write: Callable[[pa.Table], bytes]
) -> None:
    table = pa.table({"id": [1], "title": ["a"], "wide": ["x" * 5000]})

    [record] = data(rows_of(store, write(table), format, columns=["id", "gone"]))

    assert record.keys() == {"id", "title", "wide"}
    assert record["id"] == 1
    assert isinstance(record["wide"], Unusable)


# --- compression ---


def packed(content: bytes, format: InputFormat) -> bytes:
    pack = {Compression.GZIP: gzip.compress, Compression.ZSTD: zstd, Compression.NONE: bytes}
    return pack[format.compression](content)


SKIPPABLE_FRAME = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"abcd"


@pytest.mark.parametrize("chunk_bytes", [1, 7, 100, 10_000])
@pytest.mark.parametrize(
    ("kind", "pack", "between"),
    [(Compression.GZIP, gzip.compress, b"\0\0"), (Compression.ZSTD, zstd, SKIPPABLE_FRAME)],
)
def test_all_members_and_frames_are_unpacked_however_the_bytes_arrive(
    chunk_bytes: int, kind: Compression, pack: Callable[[bytes], bytes], between: bytes
) -> None:
    content = b"".join(b"line %d\n" % number for number in range(2000))
    packed = pack(content[:5000]) + between + pack(b"") + pack(content[5000:])
    packed += b"\0" if kind is Compression.GZIP else b""
    chunks = (packed[at : at + chunk_bytes] for at in range(0, len(packed), chunk_bytes))

    assert b"".join(unpacked(chunks, kind)) == content


# Its header asks for a window of 2 GiB.
LARGE_WINDOW = b'(\xb5/\xfd\x00\xa8\x85\x00\x00@{"a":1}\n\x01\x005\xbf\xbep\x01'


@pytest.mark.parametrize(
    ("compression", "content"),
    [
        pytest.param(kind, content, id=f"{kind}, {why}")
        for kind, pack in ((Compression.GZIP, gzip.compress), (Compression.ZSTD, zstd))
        for why, content in {
            "last byte": pack(b"x" * 1000)[:-1],
            "beginning": pack(b"x" * 1000)[:3],
            "middle": pack(b"x" * 1000)[:-9],
            "second": pack(b"a") + pack(b"b")[:5],
            "never": b"this is neither",
            "more": pack(b"a") + b"garbage",
        }.items()
    ]
    + [pytest.param(Compression.ZSTD, LARGE_WINDOW, id="zstd, window")],
)
def test_what_is_cut_short_or_damaged_is_never_a_short_input(
    compression: Compression, content: bytes
) -> None:
    with pytest.raises(UnreadableInput, match=r"gzip|zstd"):
        list(unpacked([content], compression))


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_a_bomb_is_refused_and_never_held(
    monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(compression, "_RATIO_GRACE_BYTES", 1_000_000)
    kind = Compression.ZSTD if pack is zstd else Compression.GZIP

    sizes: list[int] = []
    with pytest.raises(UnreadableInput, match="300 times"):
        sizes.extend(map(len, unpacked([pack(b"\n" * 20_000_000)], kind)))

    assert sizes
    assert max(sizes) <= 1024 * 1024


@pytest.mark.parametrize("kind", list(Compression))
def test_what_the_object_store_raises_is_not_taken_for_damage(kind: Compression) -> None:
    def chunks() -> Iterator[bytes]:
        yield gzip.compress(b"a") if kind is Compression.GZIP else zstd(b"a")
        raise ObjectChanged("it is another one now")

    with pytest.raises(ObjectChanged):
        list(unpacked(chunks(), kind))


@pytest.mark.parametrize("format", OF_ROWS[:-2])
def test_every_layout_is_read_with_every_compression(store: ObjectStore, format: InputFormat) -> None:
    content = {
        Layout.JSONL: b'{"id": "1", "text": "a, b"}\n{"id": "2", "text": "c\\td"}\n',
        Layout.CSV: b'id,text\n1,"a, b"\n2,c\td\n',
        Layout.TSV: b'id\ttext\n1\ta, b\n2\t"c\td"\n',
    }[format.layout]

    rows = rows_of(store, packed(content, format), format)

    assert data(rows) == [{"id": "1", "text": "a, b"}, {"id": "2", "text": "c\td"}]
    assert described(store, f"a.{format}", packed(content, format)).rows_estimated == 2


# --- CSV ---


def test_csv_records_are_rows_by_the_names_in_the_header(store: ObjectStore) -> None:
    content = '\ufeffid,text\r\n1,"a, ""quoted""\r\nline"\r\n\r\n2,é\r\n3,'.encode()

    assert data(rows_of(store, content, "csv")) == [
        {"id": "1", "text": 'a, "quoted"\r\nline'},
        {"id": "2", "text": "é"},
        {"id": "3", "text": ""},
    ]


def csv_of_pyarrow(texts: list[str | None]) -> bytes:
    sink = io.BytesIO()
    pa_csv.write_csv(pa.table({"text": texts}), sink)
    return sink.getvalue()


@pytest.mark.parametrize("format", ["csv", "tsv", "csv.gz"])
@pytest.mark.parametrize(
    ("content", "values"),
    [
        (b"text\n48213\n\n77\n", ["48213", "", "77"]),
        (b"text\r\n48213\r\n\r\n77", ["48213", "", "77"]),
        (b'\n\nsep=;\n\ntext\n\n"a\n\nb"\n\n\n', ["", "a\n\nb", "", ""]),
        (csv_of_pyarrow([None, "a", "", None]), ["", "a", "", ""]),
        (b"text\n", []),
        (b"text\n\n", [""]),
    ],
)
def test_a_blank_line_of_a_csv_with_one_column_is_a_row_with_an_empty_value(
    store: ObjectStore, format: str, content: bytes, values: list[str]
) -> None:
    """As polars, pyarrow and DuckDB write a null, also the last one."""
    rows = rows_of(store, gzip.compress(content) if format.endswith("gz") else content, format)

    assert [row.data for row in rows if isinstance(row, Row)] == [{"text": value} for value in values]
    assert [row.index for row in rows] == list(range(len(values)))
    assert data(csv_rows((bytes([byte]) for byte in content), delimiter=",", line_bytes_max=99)) == data(rows)


def test_a_bad_csv_record_spoils_only_itself(store: ObjectStore) -> None:
    content = b'id,text\n1,a\n2,b,c\n3\n4,\xff\n5,"x"y\n6,' + b"x" * 300 + b"\n7,g\n"

    assert data(rows_of(store, content, "csv")) == [
        {"id": "1", "text": "a"},
        "wrong_number_of_fields",
        "wrong_number_of_fields",
        "invalid_encoding",
        "invalid_csv_line",
        "line_too_long",
        {"id": "7", "text": "g"},
    ]


def test_a_quote_never_closed_takes_a_bounded_part_of_the_file_with_it(store: ObjectStore) -> None:
    lines = b"".join(b"%d,some text\n" % number for number in range(100))

    rows = rows_of(store, b'id,text\n0,"open\n' + lines, "csv")

    assert data(rows)[0] == "line_too_long"
    assert data(rows)[-1] == {"id": "99", "text": "some text"}
    assert sum(isinstance(row, Row) for row in rows) > 80


def test_the_error_of_an_open_quote_says_how_many_lines_it_covers(store: ObjectStore) -> None:
    [row] = rows_of(store, b'id,text\n0,"open\n1,a\n2,b\n', "csv")

    assert isinstance(row, BadRow)
    assert row.message.startswith("Lines 2 to 4, 3 lines that a quote in the first one opens: ")


@pytest.mark.parametrize("header", [b"a,a\n", b",,\n", b'"a\n', b"\xff,b\n", b"x" * 300 + b"\n"])
def test_a_csv_header_that_names_no_columns_makes_the_object_unreadable(
    store: ObjectStore, header: bytes
) -> None:
    with pytest.raises(UnreadableInput):
        rows_of(store, header + b"1,2\n", "csv")


def test_a_csv_may_have_ten_thousand_columns(store: ObjectStore) -> None:
    names = [f"column {number}" for number in range(10_000)]
    content = "\n".join([",".join(names), ",".join("v" * 10_000), "1,2"]).encode()

    rows = rows_of(store, content, "csv", line_bytes_max=200_000)

    assert data(rows) == [dict.fromkeys(names, "v"), "wrong_number_of_fields"]
    assert isinstance(rows[1], BadRow)
    assert rows[1].message == "Line 3: 2 fields where the header has 10000."


# --- describing ---


def described(store: ObjectStore, key: str, content: bytes, **options: Any) -> InputObject:
    info: ObjectInfo = store.put(key, content)
    return describe(store, info, f"file:///{key}", **options)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.jsonl.gz", "a.csv.zst"])
def test_rows_are_estimated_from_the_beginning(store: ObjectStore, name: str) -> None:
    numbers = random.Random(7)
    content = b"".join(b'{"a": %04d}\n' % numbers.randrange(10_000) for _ in range(50_000))

    sampled = described(store, name, packed(content, format_of(name)))

    assert sampled.rows_estimated is not None
    assert 40_000 < sampled.rows_estimated < 60_000


@pytest.mark.parametrize(
    ("key", "content", "options", "rows"),
    [
        ("a.jsonl", b"{}\n{}", {}, 2),  # the last line counts without its end
        ("a.csv", b"id,text\n1,a\n2,b\n", {}, 2),  # the header is no row
        ("a.csv", b"id,text\n", {}, None),
        ("a.jsonl", b"{}\n" * 10, {"sample_bytes": 0}, None),  # nothing is read where none is wanted
    ],
)
def test_only_rows_are_estimated(
    store: ObjectStore, key: str, content: bytes, options: dict[str, int], rows: int | None
) -> None:
    assert described(store, key, content, **options).rows_estimated == rows


def test_a_format_may_be_said_instead_of_guessed(store: ObjectStore) -> None:
    assert described(store, "data.bin", b"a,b\n1,2\n", format="csv").format is InputFormat.CSV


@pytest.mark.parametrize(
    ("key", "format"),
    [
        ("a/b.JSONL", InputFormat.JSONL),
        ("b.ndjson", InputFormat.JSONL),
        ("b.jsonl.gz", InputFormat.JSONL_GZ),
        ("b.json.zst", InputFormat.JSONL_ZST),
        ("b.CSV.gz", InputFormat.CSV_GZ),
        ("b.tsv", InputFormat.TSV),
        ("dir.csv/b.parquet", InputFormat.PARQUET),
        ("train/data-00000-of-00001.arrow", InputFormat.ARROW),
        ("b.arrows", InputFormat.ARROW),
        ("b.feather", InputFormat.ARROW),
        ("files/t/file-abc", InputFormat.JSONL),
    ],
)
def test_the_name_says_the_format(key: str, format: InputFormat) -> None:
    assert format_of(key) is format


@pytest.mark.parametrize("key", ["a.txt", "a.csv.bz2", "a.gz", "a.parquet.gz", "archive.zip"])
def test_a_name_that_says_something_else_is_refused(key: str) -> None:
    with pytest.raises(UnreadableInput, match="endings"):
        format_of(key)


# --- what cannot be unpacked, by its object and row ---

LINES = b"".join(b'{"n": %d}\n' % number for number in range(5000))


@pytest.mark.parametrize(
    ("format", "content", "why"),
    [
        ("jsonl.gz", gzip.compress(LINES, mtime=0)[:-9], "cut short: store the whole object"),
        ("jsonl.zst", zstd(LINES)[:-9], "cut short"),
        ("jsonl.zst", zstd(LINES) + LARGE_WINDOW, "a window of more than 128 MiB"),
        ("jsonl.gz", gzip.compress(LINES) + gzip.compress(b"\n" * 20_000_000), "store it unpacked"),
        ("jsonl.zst", zstd(LINES) + zstd(b"\n" * 20_000_000), "store it unpacked"),
    ],
    ids=["gzip, short", "zstd, short", "zstd, window", "gzip, bomb", "zstd, bomb"],
)
def test_an_object_that_cannot_be_unpacked_is_named_with_the_row_before(
    store: ObjectStore, format: str, content: bytes, why: str
) -> None:
    store.put("in/k", content)
    rows: list[Row | BadRow] = []

    with pytest.raises(UnreadableInput) as caught:
        rows.extend(iter_rows(store, "in/k", a_shard(format, "k"), line_bytes_max=200))

    after = f" after row {len(rows)}, and no row after that one is read" if rows else ""
    assert caught.value.message.startswith(f"k cannot be read{after}: ")
    assert why in caught.value.message
    assert data(rows) == [{"n": number} for number in range(len(rows))]


# --- an input that is replaced ---


TABLE = pa.table({"a": ["1", "2"]})
TWO_ROWS = {
    Layout.JSONL: b'{"a":"1"}\n{"a":"2"}\n',
    Layout.CSV: b"a\n1\n2\n",
    Layout.TSV: b"a\n1\n2\n",
    Layout.PARQUET: parquet(TABLE),
    Layout.ARROW: stream(TABLE),
}


@pytest.mark.parametrize("format", OF_ROWS)
@pytest.mark.parametrize("change", ["replaced", "appended", "deleted"])
def test_rows_of_another_object_than_the_one_planned_are_never_taken_for_its_own(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, format: InputFormat, change: str
) -> None:
    """The size of an object that grows or goes in mid-run was known."""
    content = packed(TWO_ROWS[format.layout], format)
    planned = store.put("in/k", content)
    assert describe(store, planned, "in/k", format).etag == planned.etag
    pinned = a_shard(format, "s3://b/in/k", source_etag=planned.etag)
    assert len(read(store, pinned, "in/k")) == 2

    if change == "replaced":
        store.put("in/k", content)  # the same bytes, but that cannot be known without reading them all
        assert len(read(store, a_shard(format), "in/k")) == 2
    else:
        monkeypatch.setattr(store, "head", lambda key: planned)
        store.delete("in/k")
    if change == "appended":
        store.put("in/k", content * 2)

    with pytest.raises((ObjectChanged, ObjectNotFound), match="s3://b/in/k") as caught:
        read(store, pinned, "in/k")
    assert isinstance(caught.value, ObjectNotFound if change == "deleted" else ObjectChanged)


def test_a_range_is_pinned_where_it_reaches_past_its_end_too(store: ObjectStore) -> None:
    etag = store.put("k", b'{"a":1}\n{"a":2}\n').etag
    rows = iter_rows(store, "k", a_shard(end=9, source_etag=etag), line_bytes_max=200)
    assert next(rows) == Row(0, {"a": 1})

    store.put("k", b'{"a":1}\n{"a":3}\n')

    with pytest.raises(ObjectChanged):
        next(rows)
    for start in (0, 8):
        with pytest.raises(ObjectChanged):
            next(iter_rows(store, "k", a_shard(start=start, end=16, source_etag=etag), line_bytes_max=200))
