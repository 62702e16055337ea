"""The headers of Parquet's pages, as pyarrow writes them and as no writer does."""

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.bulk.rows.page_headers import FIELDS_MAX, HEADER_BYTES_MAX, PageHeader, read_page_header
from nightshift.bulk.rows.records import UnreadableInput

TEXTS = ["a text", "another", "a text"]


def pages(**options: Any) -> list[PageHeader]:
    """Of a file with one column of TEXTS."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"t": TEXTS}), sink, **options)
    content = sink.getvalue()
    chunk = pq.ParquetFile(sink).metadata.row_group(0).column(0)
    at = chunk.dictionary_page_offset or chunk.data_page_offset
    end = at + chunk.total_compressed_size
    found = []
    while at < end:
        header = read_page_header(content, at)
        assert header is not None
        found.append(header)
        at += header.size_bytes + header.compressed_bytes
    assert at == end
    headers_bytes = sum(page.size_bytes for page in found)
    assert headers_bytes + sum(p.uncompressed_bytes for p in found) == chunk.total_uncompressed_size
    return found


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_dictionary_and_its_page(version: str, compression: str) -> None:
    dictionary, data = pages(data_page_version=version, compression=compression)

    assert (dictionary.is_dictionary, dictionary.values) == (True, 2)
    assert (data.is_dictionary, data.uses_dictionary, data.values) == (False, True, 3)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize(("encoding", "shares"), [("PLAIN", False), ("DELTA_BYTE_ARRAY", True)])
def test_a_page_of_its_own_values(version: str, encoding: str, shares: bool) -> None:
    [data] = pages(data_page_version=version, use_dictionary=False, column_encoding={"t": encoding})

    assert (data.is_dictionary, data.uses_dictionary) == (False, False)
    assert (data.shares_beginnings, data.values) == (shares, 3)


# In Thrift's compact protocol: a data page (0) of 300 bytes, 30 compressed, of 5 plain values.
DESCRIPTION = b"\x15\x0a\x15\x00\x15\x06\x15\x06\x00"
DATA_PAGE = b"\x15\x00\x15\xd8\x04\x15\x3c\x2c" + DESCRIPTION + b"\x00"


def test_a_header_goes_on_in_the_next_bytes() -> None:
    assert read_page_header(DATA_PAGE, 0) == PageHeader(len(DATA_PAGE), 30, 300, False, False, False, 5)
    assert all(read_page_header(DATA_PAGE[:end], 0) is None for end in range(len(DATA_PAGE)))


def test_a_number_written_with_more_bytes_than_it_needs_is_the_same_number() -> None:
    longer = DATA_PAGE.replace(b"\x15\xd8\x04", b"\x15\xd8\x84\x80\x80\x00")

    header = read_page_header(longer, 0)

    assert header is not None
    assert header.uncompressed_bytes == 300


@pytest.mark.parametrize(
    "content",
    [
        DATA_PAGE.replace(b"\x15\xd8\x04", b"\x15\xd7\x04"),  # a negative size
        DATA_PAGE.replace(b"\x15\xd8\x04", b"\x16\xd8\x04"),  # of 64 bits
        DATA_PAGE[:-1] + b"\x05\x04\x0a" + b"\x00",  # the second field once more
        DATA_PAGE.replace(b"\x2c", b"\x4c"),  # described as a dictionary
        b"\x15" + b"\x80" * 11,  # a number without an end
        b"\x1c" * 10,  # structs in structs
        b"\x11" * (FIELDS_MAX + 1),
        b"\x19\x05\x00",  # a list
        b"\x18\xff\xff\xff\x7f" + bytes(HEADER_BYTES_MAX),
        b"\x18\x83\x80\x80\x80\x10abc" + DATA_PAGE,  # of 2**32 + 3 bytes: Thrift reads 3
        b"\x05\x82\x80\x08" + DATA_PAGE[1:],  # field 65,537: for Thrift the first
    ],
    ids=[
        *("negative", "64 bits", "twice", "dictionary", "endless", "deep", "fields", "list", "long"),
        *("a length that Thrift cuts", "a number that Thrift cuts"),
    ],
)
def test_what_no_writer_makes_is_refused(content: bytes) -> None:
    with pytest.raises(UnreadableInput, match="header of a page"):
        read_page_header(content, 0)
