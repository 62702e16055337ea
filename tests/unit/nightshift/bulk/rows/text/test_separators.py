"""Which separator a CSV's first records show, and which the job tells."""

import csv
import gzip
import io
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.bulk.rows.inputs import BadRow, InputFormat, Row, separator_of
from nightshift.bulk.rows.records import UnreadableInput
from nightshift.bulk.rows.text.separators import SNIFFED_BYTES, likely_separator, with_separator
from nightshift.objectstore import ObjectStore
from tests.unit.nightshift.bulk.rows.columns.tables import data, rows_of

NAMES = st.text("abcdé_", min_size=1, max_size=5)
VALUES = st.text('ab1,.\n"; |', max_size=8)


def written(records: Sequence[Sequence[str]], separator: str) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator).writerows(records)
    return text.getvalue().encode()


@given(st.sampled_from(";\t|"), st.integers(2, 4), st.data())
def test_a_table_is_read_by_the_separator_that_its_records_show(
    separator: str, columns: int, draw: st.DataObject
) -> None:
    values = VALUES.map(lambda text: "".join(letter for letter in text if letter in f'ab1\n",{separator}'))
    record = st.lists(values, min_size=columns, max_size=columns)
    header = draw.draw(st.lists(NAMES, min_size=columns, max_size=columns))
    records = draw.draw(st.lists(record, min_size=1, max_size=4))

    assert likely_separator(written([header, *records], separator), ",", is_all=True) == separator


@given(st.lists(st.lists(NAMES | VALUES, min_size=2, max_size=3), min_size=1, max_size=4))
def test_a_header_of_several_names_is_read_by_the_formats_separator(records: list[list[str]]) -> None:
    assert likely_separator(written(records, ","), ",", is_all=True) == ","


@given(NAMES, st.lists(VALUES, max_size=5))
def test_one_column_stays_one_column(header: str, values: list[str]) -> None:
    content = written([[header], *([value] for value in values)], ",")

    assert likely_separator(content, ",", is_all=True) == ","


@pytest.mark.parametrize(
    "content",
    [
        b"id;text\n",  # no records
        b"id;text\n1;a\n2;b;c\n",
        b"id;text|n\n1;a|2\n",  # by two separators
        b"id;text\n1,a\n",
        b'{"a": "x;y"}\n{"a": "x;y"}\n',  # lines of JSON
        b"",
    ],
)
def test_what_shows_no_separator_is_read_by_the_formats(content: bytes) -> None:
    assert likely_separator(content, ",", is_all=True) == ","


@pytest.mark.parametrize(
    "content", [b"sep=;\nid;a;b\n1;2;3\n", b'\xef\xbb\xbf\r\n"sep=;"\r\nid,a\r\n', b"Sep=;\n"]
)
def test_a_first_line_names_the_separator(content: bytes) -> None:
    assert likely_separator(content, ",", is_all=True) == ";"


def test_a_record_that_is_cut_off_shows_nothing() -> None:
    assert likely_separator(b"id;text\n1;a\n2", ",", is_all=False) == ";"
    assert likely_separator(b"id;text\n1;a\n2", ",", is_all=True) == ","
    assert likely_separator(b'id;text\n1;"a\n', ",", is_all=False) == ","


@given(st.lists(st.integers(1, SNIFFED_BYTES)))
def test_it_is_the_same_in_whatever_pieces_the_text_comes(sizes: list[int]) -> None:
    content = b"id;text\n" + b"1;a, b\n" * 20_000 + b"2;a;b\n"

    def pieces() -> Iterator[bytes]:
        begin = 0
        for size in sizes:
            yield content[begin : begin + size]
            begin += size
        yield content[begin:]

    separator, again = with_separator(pieces(), ",", None)

    assert separator == ";"
    assert b"".join(again) == content


def test_what_cannot_be_read_comes_behind_what_can() -> None:
    def pieces() -> Iterator[bytes]:
        yield b"id;text\n1;a\n2"
        raise UnreadableInput("damaged")

    separator, again = with_separator(pieces(), ",", None)

    assert (separator, next(again)) == (";", b"id;text\n1;a\n2")
    with pytest.raises(UnreadableInput, match="damaged"):
        next(again)


ROWS = [{"id": "1", "text": "a, b"}, {"id": "2", "text": "c"}]


@pytest.mark.parametrize(("format", "separator"), [("csv", ";"), ("csv", "\t"), ("csv", "|"), ("tsv", ",")])
def test_rows_and_a_dry_run_have_the_separator_that_the_records_show(
    store: ObjectStore, format: str, separator: str
) -> None:
    content = written([["id", "text"], ["1", "a, b"], ["2", "c"]], separator)

    assert data(rows_of(store, content, format)) == ROWS
    assert separator_of(store, "k", None, InputFormat(format), None) == separator
    assert data(rows_of(store, gzip.compress(content), f"{format}.gz")) == ROWS
    assert separator_of(store, "k", None, InputFormat(f"{format}.gz"), None) == separator


@pytest.mark.parametrize(("told", "separator"), [(":", ":"), ("tab", "\t"), ("\t", "\t"), (",", ",")])
def test_the_separator_that_the_job_tells_is_obeyed(store: ObjectStore, told: str, separator: str) -> None:
    content = written([["id", "text"], ["1", "a, b"], ["2", "c"]], separator)
    assert data(rows_of(store, content, "csv", separator=told)) == ROWS

    read = rows_of(store, b"id;text\n1;a\n", "csv", separator=",")
    assert read == [Row(0, {"id;text": "1;a"})]


def test_a_wrong_number_of_values_tells_how_to_name_the_separator(store: ObjectStore) -> None:
    bad, *_ = rows_of(store, b"id;text\n1;a, b\n2;a;b\n", "csv")

    assert isinstance(bad, BadRow)
    assert "The separator seems to be a semicolon, and a comma is read: say which it is by" in bad.message
    assert "(--separator)" in bad.message
