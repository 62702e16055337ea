"""Objects that are not what their names say: read where that is safe, else refused with what they are."""

import gzip
import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nightshift
from nightshift import endpoints
from nightshift.bulk.rows.contents import separator_hint
from nightshift.bulk.rows.first_rows import NO_MODEL, FirstRows
from nightshift.bulk.rows.inputs import BadRow, Row, UnreadableInput, describe, iter_rows
from nightshift.bulk.rows.records import format_of
from nightshift.bulk.rows.text import json_arrays
from nightshift.bulk.rows.text.json_arrays import array_lines
from nightshift.bulk.rows.text.lines import split_lines
from nightshift.bulk.rows.validation import NOT_JSON, FileLimits, validate
from nightshift.jobs import NewShard
from nightshift.objectstore import ObjectStore
from tests.unit.nightshift.bulk.rows.columns.tables import a_job, a_shard, parquet, zstd

ROWS = [{"id": str(number), "text": f'a "{number}" é'} for number in range(3)]
JSONL = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
CSV = b'id,text\n0,"a ""0"" \xc3\xa9"\n1,"a ""1"" \xc3\xa9"\n2,"a ""2"" \xc3\xa9"\n'
ARRAY = json.dumps(ROWS, ensure_ascii=False).encode()
PRETTY = json.dumps(ROWS, ensure_ascii=False, indent=2).encode()


def packed(content: bytes) -> bytes:
    """Packs by gzip, with no time in it, so that tests have the same names wherever they are collected."""
    return gzip.compress(content, mtime=0)


def as_utf16(content: bytes) -> bytes:
    return content.decode().encode("utf-16")


def archive(*names: str) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as file:
        for name in names:
            file.writestr(name, "x")
    return sink.getvalue()


def shard_of(key: str, end: int | None = None) -> NewShard:
    return a_shard(format_of(key), f"s3://b/{key}", end=end)


def rows_of(store: ObjectStore, key: str, content: bytes, **limits: Any) -> list[Row | BadRow]:
    store.put(key, content)
    return list(iter_rows(store, key, shard_of(key), **({"line_bytes_max": 1000} | limits)))


# --- what is read ---


@pytest.mark.parametrize(
    ("key", "content"),
    [
        ("a.jsonl", packed(JSONL)),
        ("a.jsonl", zstd(JSONL)),
        ("a.jsonl.gz", zstd(JSONL)),
        ("a.jsonl.zst", packed(JSONL)),
        ("a.jsonl.gz", JSONL),
        ("a.jsonl.zst", JSONL),
        ("a.csv.gz", CSV),
        ("a.json.gz", b"[" + JSONL.strip().replace(b"\n", b",") + b"]"),
        ("a.csv", packed(CSV)),
        ("a.jsonl", as_utf16(JSONL)),
        ("a.jsonl", JSONL.decode().encode("utf-32")),
        ("a.jsonl", b"\xfe\xff" + JSONL.decode().encode("utf-16-be")),
        ("a.csv", as_utf16(CSV)),
        ("a.tsv", as_utf16(CSV.replace(b",", b"\t"))),
        ("a.csv.gz", packed(as_utf16(CSV))),
        ("a.json", ARRAY),
        ("a.json", PRETTY),
        ("a.jsonl", b"\xef\xbb\xbf \n" + PRETTY + b"\n\n"),
        ("a.json", as_utf16(PRETTY)),
        ("a.json.gz", packed(ARRAY)),
        ("a.json", packed(as_utf16(ARRAY))),
    ],
)
def test_text_is_read_however_it_is_stored(store: ObjectStore, key: str, content: bytes) -> None:
    rows = rows_of(store, key, content)

    assert rows == [Row(number, row) for number, row in enumerate(ROWS)]
    described = describe(store, store.put(key, content), key)
    assert described.rows_estimated == 3
    assert described.is_whole == (not content.startswith((b"id,", b"{")))


@pytest.mark.parametrize("column", ["ORCID", "ORC", "PAR1", "ARROW1", "BZh", "BZh9"])
def test_a_header_may_begin_with_the_letters_of_a_binary_format(store: ObjectStore, column: str) -> None:
    rows = rows_of(store, "a.csv", f"{column},text\n1,é\n".encode())

    assert rows == [Row(0, {column: "1", "text": "é"})]
    describe(store, store.put("a.csv", f"{column},text\n1,é\n".encode()), "a.csv")


def test_a_short_object_is_read_whole_whatever_its_name_says(store: ObjectStore) -> None:
    """As one is planned that was not looked at."""
    content = packed(JSONL)
    store.put("a.jsonl", content)

    rows = list(iter_rows(store, "a.jsonl", shard_of("a.jsonl", len(content)), line_bytes_max=1000))

    assert rows == [Row(number, row) for number, row in enumerate(ROWS)]


# --- what is not ---

WRONG = [
    ("a.jsonl", parquet(pa.Table.from_pylist(ROWS)), "It is Parquet"),
    ("a.csv", b"ARROW1\0\0" + bytes(range(1, 200)), "It is Arrow IPC"),
    ("a.csv", archive("[Content_Types].xml", "xl/workbook.xml"), "It is an Excel workbook: save it as CSV"),
    ("a.csv", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 100, "It is an old Office file"),
    ("a.jsonl", archive("a.jsonl"), "It is a ZIP archive"),
    ("a.feather", b"FEA1" + b"\0" * 50, "It is Feather of version 1"),
    ("a.csv", b"FEA1" + b"\0" * 50, "It is Feather of version 1"),
    ("a.csv.gz", parquet(pa.Table.from_pylist(ROWS)), "It is named as gzip, and is Parquet"),
    ("a.csv.gz", b"\x01\xfe\xff" * 50, "It is named as gzip, and is damaged, or something else"),
    ("a.jsonl", b"BZh91AY&SY\0\1", "It is packed by bzip2"),
    ("a.jsonl", b"\xfd7zXZ\0\0\4", "It is packed by xz"),
    ("a.jsonl", packed(packed(JSONL)), "It is packed twice"),
    ("a.jsonl.gz", packed(b"a.jsonl".ljust(257, b"\0") + b"ustar"), "a tar archive|NUL bytes|binary"),
    ("a.csv", b"\n<!DOCTYPE html><html><body>404</body></html>", "It is a web page or XML"),
    ("a.jsonl", b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "It is a web page or XML"),
    ("a.jsonl", JSONL.decode().encode("utf-16-le"), "It is UTF-16 text without a byte order mark"),
    ("a.csv", CSV.decode().encode("utf-16-be"), "It is UTF-16 text without a byte order mark"),
    ("a.jsonl", b"\0" * 5000, "It is full of NUL bytes at its beginning"),
    ("a.jsonl", b"\x01\xff\0\x07" * 50, "It is binary data|UTF-16"),
    ("a.json", as_utf16(JSONL)[:-1], "It is not UTF-16"),
    ("a.parquet", JSONL, "It is text: give it a name that ends in .jsonl"),
    ("a.parquet", packed(parquet(pa.Table.from_pylist(ROWS))), "It is packed by gzip: unpack it"),
    ("a.parquet", b"ARROW1\0\0" + b"\1" * 200, "It is Arrow IPC"),
    ("a.arrow", parquet(pa.Table.from_pylist(ROWS)), "It is Parquet"),
    ("a.arrow", CSV, "It is text"),
]


@pytest.mark.parametrize(("key", "content", "why"), WRONG)
def test_an_object_that_is_something_else_is_named_with_what_it_is(
    store: ObjectStore, key: str, content: bytes, why: str
) -> None:
    with pytest.raises(UnreadableInput, match=rf"^s3://b/{key} cannot be read.*: .*({why})"):
        rows_of(store, key, content)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (JSONL.replace(b"\n", b""), "a second value begins at character 33"),
        (json.dumps(ROWS[0], indent=2).encode(), "the object goes on after the line"),
        (b'{"id": "1", "text": "cut', "the object goes on after the line, or is cut short"),
        (b"{'id': '1'}", "it is a Python dict"),
        (b"id,text\n1,a", "it may be CSV"),
        (b'["a", "b"]', "it is a JSON array"),
        (b'{"a": "\0"}', "its byte 8 is NUL"),
        ("{'é': 1}".encode("latin-1"), "is not UTF-8"),
        (b'{"a": NaN}', "NaN is not JSON"),
    ],
)
def test_a_line_that_is_no_object_says_the_likely_cause_in_rows_and_in_batches(
    store: ObjectStore, content: bytes, why: str
) -> None:
    row = rows_of(store, "a.jsonl", content)[0]
    limits = FileLimits(rows_max=10, embedding_inputs_max=10, shard_bytes=10**6, shard_rows=10)
    lines = split_lines([content], line_bytes_max=1000)
    error = validate(lines, endpoints.get("/v1/embeddings"), lambda model: None, limits).errors[0]

    assert isinstance(row, BadRow)
    assert row.message.startswith("Line 1: ")
    assert why in row.message
    assert error.line == 1
    assert error.message == NOT_JSON or why.lower() in error.message.lower()


@pytest.mark.parametrize(
    ("key", "content"),
    [
        ("a.csv", b"sep=;\r\nid;text\r\n1;a, b\r\n"),
        ("a.csv", b'\xef\xbb\xbf"sep=;"\n\nid;text\n1;a, b\n'),
        ("a.csv", b'sep=,\nid,text\n1,"a, b"\n'),
        ("a.csv", b"sep=\t\nid\ttext\n1\ta, b\n"),
        ("a.tsv", b"SEP=|\nid|text\n1|a, b\n"),
        ("a.csv", "sep=;\r\nid;text\r\n1;a, b\r\n".encode("utf-16")),
    ],
)
def test_a_first_line_may_name_the_separator_as_for_excel(
    store: ObjectStore, key: str, content: bytes
) -> None:
    [row] = rows_of(store, key, content)

    assert isinstance(row, Row)
    assert row.data == {"id": "1", "text": "a, b"}


def test_a_byte_order_mark_before_any_line_of_json_is_none_of_it(store: ObjectStore) -> None:
    """Files that were put together have several."""
    rows = rows_of(store, "a.jsonl", 2 * (b"\xef\xbb\xbf" + b'{"a": 1}\n'))

    assert [row.data for row in rows if isinstance(row, Row)] == [{"a": 1}, {"a": 1}]


# --- arrays ---

strings = st.text(st.sampled_from('ab"\\[]{},é\n '), max_size=8)
objects = st.dictionaries(
    strings,
    st.recursive(
        strings | st.integers() | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=2),
        max_leaves=6,
    ),
    max_size=3,
)


others = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.just([1, ["],"]]))


@given(
    rows=st.lists(objects | others, max_size=4),
    chunk_bytes=st.integers(1, 40),
    indent=st.sampled_from([None, 1]),
)
def test_an_array_is_the_same_rows_however_the_stream_is_chunked(
    rows: list[Any], chunk_bytes: int, indent: int | None
) -> None:
    content = json.dumps(rows, ensure_ascii=False, indent=indent).encode()
    chunks = (content[at : at + chunk_bytes] for at in range(0, len(content), chunk_bytes))

    lines = list(array_lines(chunks, line_bytes_max=1000))

    assert [json.loads(line.data or b"") for line in lines] == rows
    if indent is None:
        assert {line.number for line in lines} <= {1}


@pytest.mark.parametrize("row", [{"a": '["\\' * 1500}, {"a": ["b"] * 1500}, {"a": "[" * 3000}])
def test_an_element_may_have_very_many_texts_and_escapes(row: dict[str, Any]) -> None:
    lines = list(array_lines([json.dumps([row, row]).encode()], line_bytes_max=20_000))

    assert [json.loads(line.data or b"") for line in lines] == [row, row]


def test_no_pattern_has_a_possessive_group() -> None:
    """Python before 3.11.5, which Debian 12 has, matches them wrongly: `["a", "b"]` by one for `["a", {`."""
    group = re.compile(r"\)(?:[*+?]|\{[0-9,]+\})\+(?=[^+])")
    root = Path(nightshift.__file__).parents[1]
    packages = ("nightshift", "nightshift_engine", "api", "scheduler", "workers")
    sources = [path for package in packages for path in (root / package).rglob("*.py")]

    assert [str(path) for path in sources if group.search(path.read_text()) is not None] == []


def test_an_error_of_an_element_names_its_line(store: ObjectStore) -> None:
    content = b'[\n{"a": 1},\n{"a": oops},\n{"a": "' + b"x" * 2000 + b'"},\n{"a": 2}\n]'

    rows = rows_of(store, "a.json", content)

    assert [row.data if isinstance(row, Row) else row.message[:7] for row in rows] == [
        {"a": 1},
        "Line 3:",
        "Line 4:",
        {"a": 2},
    ]


@pytest.mark.parametrize("element", [b"null", b"7", b'"a, ]"', b"[1, 2]", b"oops", b"}"])
def test_an_element_of_an_array_that_is_no_object_is_an_error_of_its_row(
    store: ObjectStore, element: bytes
) -> None:
    """As in JSON Lines."""
    rows = rows_of(store, "a.json", b'[{"a": 1},\n' + element + b',\n{"a": 2}\n]')

    first, bad, last = rows
    assert isinstance(first, Row)
    assert isinstance(last, Row)
    assert (first.data, last.data) == ({"a": 1}, {"a": 2})
    assert isinstance(bad, BadRow)
    assert bad.code == "invalid_json_line"
    assert bad.message.startswith("Line 2: the line is not ")


@pytest.mark.parametrize("first", [b"null", b"7", b'"a, \\" ]"', b"true, -1.5e3"])
def test_an_array_of_objects_may_begin_with_another_value(store: ObjectStore, first: bytes) -> None:
    *bad, last = rows_of(store, "a.json", b"[" + first + b', {"a": 1}]')

    assert bad
    assert all(isinstance(row, BadRow) for row in bad)
    assert isinstance(last, Row)


def test_lines_of_arrays_are_lines(store: ObjectStore) -> None:
    rows = rows_of(store, "a.jsonl", b'["id", "text"]\n[1, "a"]\n')

    assert [row.message[:7] for row in rows if isinstance(row, BadRow)] == ["Line 1:", "Line 2:"]


@pytest.mark.parametrize(
    ("content", "rows", "why"),
    [
        (b'[{"a": 1},\n{"a": 2}', 2, "cut short: it goes on after line 2"),
        (b'[{"a": 1},\n{"a": "2', 1, "cut short: it goes on after line 2"),
        (b'[{"a": 1}]\n{"a": 2}\n', 1, "More data follow the end of the JSON array, in line 2"),
        (b'[{"a": 1},\n7', 1, "cut short: it goes on after line 2"),
        (b'[{"a": ' + b"[" * 400_000, 0, "Element 1, in line 1, has more than 150000 arrays"),
    ],
)
def test_an_array_that_cannot_be_read_to_its_end_names_the_line(
    store: ObjectStore, content: bytes, rows: int, why: str
) -> None:
    store.put("a.json", content)
    read = []

    with pytest.raises(UnreadableInput, match=why):
        read.extend(iter_rows(store, "a.json", shard_of("a.json"), line_bytes_max=10**6))

    assert len(read) == rows


def test_an_array_has_a_limit_that_is_known_before_a_row_runs(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_arrays, "ARRAY_BYTES_MAX", 50)
    info = store.put("a.json", ARRAY)

    with pytest.raises(UnreadableInput, match=r"^s3://b/a\.json cannot be read: A JSON array"):
        describe(store, info, "s3://b/a.json")
    with pytest.raises(UnreadableInput, match="A JSON array of more than 50 bytes"):
        rows_of(store, "a.json.gz", packed(ARRAY))


def test_an_array_is_never_held() -> None:
    held: list[int] = []

    def chunks() -> Iterator[bytes]:
        yield b"["
        for number in range(2000):
            held.append(number)
            yield b'{"a": "' + b"x" * 1000 + b'"},'
        yield b"{}]"

    for number, _ in enumerate(array_lines(chunks(), line_bytes_max=2000)):
        assert len(held) <= number + 2


# --- separators ---


@pytest.mark.parametrize(
    ("header", "delimiter", "says"),
    [
        (["doc_id;text"], ",", " The separator seems to be a semicolon, and a comma is read"),
        (["doc_id\ttext"], ",", "seems to be a tab"),
        (["doc_id|text"], ",", "seems to be a vertical bar"),
        (["doc_id,text"], "\t", "seems to be a comma, and a tab is read"),
        (['{"doc_id": 1}'], ",", "It seems to be JSON"),
        (["a;b", "c"], ",", None),  # there are columns
        (["text"], ",", None),
    ],
)
def test_the_likely_separator_is_named(header: list[str], delimiter: str, says: str | None) -> None:
    hint = separator_hint(header, delimiter)
    assert says in hint if says else hint == ""


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"id":1,"text":"a"}\n', "It seems to be JSON: give it a name that ends in .jsonl"),
        ("id,café\n1,a\n".encode("latin-1"), "it is not UTF-8"),
        (b"id,text\r1,a\r2,b\r", r"a carriage return \(CR\) stands outside of quotes: end lines with LF"),
    ],
)
def test_a_header_that_cannot_be_read_is_told_by_its_cause(
    store: ObjectStore, content: bytes, why: str
) -> None:
    with pytest.raises(
        UnreadableInput, match=rf"^s3://b/a\.csv cannot be read: The CSV header, .*{why}.*\.$"
    ):
        rows_of(store, "a.csv", content)


def test_an_object_is_named_once_where_it_cannot_be_described(store: ObjectStore) -> None:
    info = store.put("a.arrow", b"ARROW1\0\0" + b"\1" * 200)

    with pytest.raises(UnreadableInput) as caught:
        describe(store, info, "a.arrow")

    assert caught.value.message.count("a.arrow") == 1


# --- first rows ---

TEMPLATE = {"model": "m", "input": "{{text}}"}


def first_of(store: ObjectStore, key: str, content: bytes, **spec: Any) -> FirstRows:
    first = FirstRows(a_job(endpoint="/v1/embeddings", **spec), (spec.get("template") or {}).get("model"))
    for row in rows_of(store, key, content):
        first.add(row, shard_of(key))
    return first


@pytest.mark.parametrize(
    ("key", "content", "code", "says"),
    [
        ("a.csv", b"doc_id;text\n1;a;b\n", "missing_column", "it has: doc_id;text. The separator seems"),
        ("a.csv", b"doc_id;text\n1;a, b\n2\n", "wrong_number_of_fields", "The separator seems to be a semi"),
        ("a.csv", b"id,title\n1,a\n", "missing_column", "it has: id, title. It is row 1 of 's3://b/a.csv'."),
        ("a.csv", b'{"id": 1, "text": "a"}\n' * 2, "missing_column", "It seems to be JSON"),
        (
            *("a.json", b'{"n": 2, "data": [{"text": "a"}, {"text": "b"}]}', "missing_column"),
            "it has: data, n. If the rows are the objects in 'data', store that list alone",
        ),
        ("a.jsonl", b'{"n": 1}\n{"n": 2}\n', "missing_column", "it has: n. It is row 1 of 's3://b/a.jsonl'."),
        ("a.jsonl", JSONL.replace(b"\n", b""), "invalid_json_line", "Line 1: the line is not valid JSON"),
        ("a.parquet", parquet(pa.table({"n": [1]})), "missing_column", "it has: n."),
        # Told once for all rows:
        (
            "a.csv",
            b"ID,text\n1,a\n2,b\n",
            "missing_column",
            "no id column 'id'; it has: ID, text. It is row 1",
        ),
        ("a.jsonl", b'{"text": "a", "meta": {"n": 1}}\n', "missing_column", "'id'; it has: meta, text."),
        (
            *("a.parquet", parquet(pa.table({"key": [1], "text": ["a"]})), "missing_column"),
            "no id column 'id'; it has: key, text.",
        ),
        # Other rows need not have it:
        ("a.jsonl", b'{"n": 1}\n{"id": 1, "text": "a"}\n', None, None),
        ("a.jsonl", b'{oops}\n{"id": 1, "text": "a"}\n', None, None),
        ("a.jsonl", b'{"text": "a", "id": null}\n', None, None),
        ("a.jsonl", b"", None, None),
    ],
)
def test_where_no_first_row_can_run_the_reason_is_that_of_the_first(
    store: ObjectStore, key: str, content: bytes, code: str | None, says: str | None
) -> None:
    reason = first_of(store, key, content, template=TEMPLATE, id_column="id").objection()

    if code is None:
        assert reason is None
    else:
        assert reason is not None
        assert (reason.code, str(says) in reason.message) == (code, True), reason


def test_rows_without_a_template_name_their_model_or_the_reason_why_not(store: ObjectStore) -> None:
    def reason(content: bytes) -> Any:
        return first_of(store, "a.jsonl", content).objection()

    assert first_of(store, "a.jsonl", b'{"body": {}}\n{"body": {"model": "m"}}').model == "m"
    assert reason(b'{"body": {"model": "m"}}') is None
    assert reason(b'{"body": {}}') == NO_MODEL
    assert "has no 'body' object" in reason(b'{"doc_id": 1, "text": "a"}').message
    assert "it has the columns: doc_id, text." in reason(b'{"doc_id": 1, "text": "a"}').message
    assert reason(b"{oops}").code == "invalid_json_line"
