"""Every line exactly once, wherever the ranges are cut; and never more in memory than one line."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.bulk.rows.text.lines import (
    JSON_DEPTH_MAX,
    BadLine,
    Line,
    lines_in_range,
    parse_object,
    split_lines,
)
from nightshift.bulk.rows.watched_reader import WatchedReader
from nightshift.objectstore import ObjectStore

LINE_BYTES_MAX = 12

pieces = st.sampled_from(
    [b"a", b"bcd", b"\xc3\xa9", b"\n", b"\r\n", b"\n\n", b" ", b"\xef\xbb\xbf", b"x" * 13, b"\0"]
)
contents = st.lists(pieces, max_size=30).map(b"".join)


def lines(content: bytes, chunk_bytes: int = 5, **options: Any) -> list[Line]:
    chunks = (content[at : at + chunk_bytes] for at in range(0, len(content), chunk_bytes))
    return list(split_lines(chunks, line_bytes_max=LINE_BYTES_MAX, **options))


class Held:
    """An object in memory."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(
        self, key: str, start: int = 0, end: int | None = None, *_: int, **pin: Any
    ) -> Iterator[bytes]:
        yield self._content[start:end]


def is_blank(line: Line) -> bool:
    return line.data is not None and not line.data.strip()


def expected_lines(content: bytes) -> list[tuple[int, bytes | None]]:
    """Offset and data of each line, the slow and obvious way."""
    split, offset = [], 0
    for line in content.split(b"\n"):
        if line:
            data = line.removeprefix(b"\xef\xbb\xbf") if offset == 0 else line
            split.append((offset, data if len(line) <= LINE_BYTES_MAX else None))
        elif offset < len(content):
            split.append((offset, b""))
        offset += len(line) + 1
    return split


@given(content=contents, chunk_bytes=st.integers(1, 40))
def test_lines_are_the_same_however_the_stream_is_chunked(content: bytes, chunk_bytes: int) -> None:
    split = lines(content, chunk_bytes)

    assert [(line.offset, line.data) for line in split] == expected_lines(content)
    assert [line.number for line in split] == list(range(1, len(split) + 1))


@given(content=contents, chunk_bytes=st.integers(1, 40), starts_before=st.none() | st.integers(0, 60))
def test_skipping_blank_lines_changes_no_other(
    content: bytes, chunk_bytes: int, starts_before: int | None
) -> None:
    every = lines(content, chunk_bytes, starts_before=starts_before)
    left = lines(content, chunk_bytes, starts_before=starts_before, skip_blank=True)

    assert [line for line in left if not is_blank(line)] == [line for line in every if not is_blank(line)]


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b"   \n"])
def test_blank_lines_are_skipped_many_at_a_time(blank: bytes) -> None:
    split = list(split_lines([blank * 100_000] * 3 + [b"a"], line_bytes_max=1000, skip_blank=True))

    assert [(line.number, line.data) for line in split] == [(300_001, b"a")]


@given(content=contents, cuts=st.lists(st.integers(0, 120), max_size=6))
def test_ranges_that_cover_an_object_give_every_line_once(content: bytes, cuts: list[int]) -> None:
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(content)}), len(content)]
    split = [
        (line.offset, line.data)
        for start, end in itertools.pairwise(bounds)
        for line in lines_in_range(Held(content), "k", start, end, line_bytes_max=LINE_BYTES_MAX)
        if not is_blank(line)
    ]

    assert split == [line for line in expected_lines(content) if line[1] is None or line[1].strip()]


@given(content=contents, start=st.integers(0, 120), length=st.integers(0, 120))
def test_a_range_gives_the_lines_that_begin_in_it(content: bytes, start: int, length: int) -> None:
    split = lines_in_range(Held(content), "k", start, start + length, line_bytes_max=LINE_BYTES_MAX)

    expected = [
        (offset, data)
        for offset, data in expected_lines(content)
        if start <= offset < start + length and (data is None or data.strip())
    ]
    assert [(line.offset, line.data) for line in split if not is_blank(line)] == expected


@pytest.mark.parametrize(
    ("content", "data"),
    [
        (b"a\nb", [b"a", b"b"]),  # the last line needs no newline
        (b"a\n" + b"x" * 1000 + b"\nb\n", [b"a", None, b"b"]),  # one too long is passed over
        (b"x" * LINE_BYTES_MAX + b"\n", [b"x" * LINE_BYTES_MAX]),  # the limit itself is not too long
    ],
)
def test_a_line_is_read_up_to_its_limit(content: bytes, data: list[bytes | None]) -> None:
    assert [line.data for line in lines(content)] == data


def test_a_line_that_goes_on_for_ever_does_not_fill_the_memory() -> None:
    """Held is at most one line of the allowed length: the rest is counted and let go."""
    seen_bytes = 0

    def endless() -> Iterator[bytes]:
        nonlocal seen_bytes
        while seen_bytes < 200_000_000:
            seen_bytes += 1_000_000
            yield chunk

    chunk = b"x" * 1_000_000
    split = list(split_lines(endless(), line_bytes_max=1000))

    assert [line.data for line in split] == [None]


@pytest.mark.parametrize(
    ("content", "end", "data", "bytes_read_max"),
    [
        (b"x" * 1_000_000, 100, [None], 2000),  # a long line, no further than shows that it is too long
        (b"aaa\nbbb\nccc\n", 8, [b"aaa", b"bbb"], 8),  # a range whose last line ends with it
    ],
)
def test_no_more_bytes_are_read_than_are_needed(
    store: ObjectStore, content: bytes, end: int, data: list[bytes | None], bytes_read_max: int
) -> None:
    store.put("k", content)
    pieces: list[int] = []

    split = lines_in_range(WatchedReader(store, pieces.append), "k", 0, end, line_bytes_max=1000)

    assert [line.data for line in split] == data
    assert sum(pieces) <= bytes_read_max


@pytest.mark.parametrize(
    ("data", "code", "says"),
    [
        (b"{", "invalid_json_line", "character 2"),
        (b"[1]", "invalid_json_line", "not a JSON object"),
        (b"3", "invalid_json_line", "not a JSON object"),
        (b'{"a": NaN}', "invalid_json_line", "NaN"),
        (b'{"a": 1} {"b": 2}', "invalid_json_line", "Extra data"),
        (b"\xff\xfe{", "invalid_encoding", "byte 1"),
        ('{"a": 1}'.encode("utf-16"), "invalid_encoding", "UTF-8"),
        (b'{"a":' * (JSON_DEPTH_MAX + 1) + b"1" + b"}" * (JSON_DEPTH_MAX + 1), "invalid_json_line", "deeper"),
        (b'{"a":' + b"[" * 100_000, "invalid_json_line", "deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", "invalid_json_line", "has 5000 digits$"),
        (rb'{"a": "\ud83d"}', "invalid_encoding", "surrogate"),
        (rb'{"a": {"\uDE00\uD83D": 1}}', "invalid_encoding", "surrogate"),
        (None, "line_too_long", "longer"),
    ],
)
def test_a_line_that_is_no_object_says_why(data: bytes | None, code: str, says: str) -> None:
    with pytest.raises(BadLine, match=says) as caught:
        parse_object(data)
    assert caught.value.code == code


def test_what_looks_wrong_and_is_not_is_read() -> None:
    assert len(parse_object(b'{"a": [' + b",".join([b"[]"] * 1000) + b"]}")["a"]) == 1000, "not deep"
    assert parse_object(rb'{"a": "\ud83d\uDE00 \\ud83d"}') == {"a": "\U0001f600 \\ud83d"}, "a whole pair"
    assert parse_object(b'{"a": 1}\r') == {"a": 1}
