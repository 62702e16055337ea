"""Lines of a byte stream, and their JSON objects, one line in memory at a time.

    object    0 ....... a\\n bbb\\n cc\\n dddd\\n .......
    range             |<-------->|                 a line belongs to the range its first byte lies in:
                             bbb, cc               its reader reads on to the end of `cc`

So ranges that cover an object give every line exactly once.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from nightshift.bulk.rows.contents import line_hint
from nightshift.bulk.rows.templates import root_of
from nightshift.bulk.rows.values import integer, number
from nightshift.endpoints.containers import TOO_MANY, has_too_many_entries
from nightshift.jobs import JsonObject
from nightshift.objectstore import ObjectReader

NAME_CHARS_MAX: Final = 80  # of a field's name in a message
JSON_DEPTH_MAX: Final = 100  # serialising deeper values may overflow the stack

BlankEnd = Callable[[bytes, int], int]
"""The end of the blank lines that begin at this place of a chunk; the place itself if none does."""

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_TAIL_CHUNK_BYTES: Final = 64 * 1024  # read at a time past a range's end, where one line is left


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its `\\n`. `data` is None for a line over the limit."""

    number: int  # from 1, counting blank lines
    offset: int  # of its first byte in the object
    data: bytes | None


class BadLine(Exception):
    """A line that is no row; `code` and `message` go into its error line. `hint`: the likely cause."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        self.code = code
        self.message = message if hint is None else f"{message}; {hint}"
        self.hint = hint
        super().__init__(self.message)


class NotJson(BadLine):
    """A line that cannot be parsed."""


def lines_in_range(
    store: ObjectReader,
    key: str,
    start: int,
    end: int | None,
    *,
    line_bytes_max: int,
    etag: str | None = None,
) -> Iterator[Line]:
    """The whole lines whose first byte lies in [start, end), but most blank ones (`split_lines`). With an
    `etag`, raises `ObjectChanged` for another object.
    """
    if start == 0:
        first, chunks = 0, store.stream(key, 0, end, if_match=etag)
    else:
        # From one byte earlier: a newline there means that a line begins at `start`.
        first, chunks = _after_first_newline(store.stream(key, start - 1, end, if_match=etag), start - 1)
    if end is not None:
        chunks = chain(chunks, tail_of(store, key, end, line_bytes_max, etag))
    if end is None or first < end:
        yield from split_lines(
            chunks, line_bytes_max=line_bytes_max, offset=first, starts_before=end, skip_blank=True
        )


def tail_of(
    store: ObjectReader, key: str, end: int, line_bytes_max: int, etag: str | None
) -> Iterator[bytes]:
    """The bytes after a range that its last line may have. Read only if a line continues there."""
    return store.stream(key, end, end + line_bytes_max + 1, _TAIL_CHUNK_BYTES, if_match=etag)


def split_lines(
    chunks: Iterable[bytes],
    *,
    line_bytes_max: int,
    offset: int = 0,
    starts_before: int | None = None,
    skip_blank: bool = False,
    blank_end: BlankEnd | None = None,
) -> Iterator[Line]:
    """Cuts a stream that begins at byte `offset` into lines; only those that start before `starts_before`.

    Holds one chunk and at most `line_bytes_max` bytes. Drops a byte order mark at the object's beginning,
    accepts a missing last newline, and keeps a `\\r` before a newline. With `skip_blank`, counts blank lines
    many at a time without yielding them, except some at a chunk's borders. `blank_end` says which lines are
    blank, where a format has its own.
    """
    number = 1
    held = Held(offset, line_bytes_max)
    if skip_blank:
        blank_end = _end_of(rb"(?:[ \t\r\v\f]{0,%d}+\n){1,500}" % line_bytes_max)  # a limit: bounded memory
    for chunk in chunks:
        begin = 0
        while True:
            if blank_end is not None and held.is_empty and (end := blank_end(chunk, begin)) > begin:
                number += chunk.count(b"\n", begin, end)
                held = Held(held.offset + end - begin, line_bytes_max)
                begin = end
                if starts_before is not None and held.offset >= starts_before:
                    return
                continue  # there may be more
            if (newline := chunk.find(b"\n", begin)) < 0:
                break
            held.add(chunk[begin:newline])
            yield held.line(number)
            held = Held(held.end + 1, line_bytes_max)
            if starts_before is not None and held.offset >= starts_before:
                return
            number, begin = number + 1, newline + 1
        held.add(chunk[begin:])
        if held.is_too_long and starts_before is not None and held.end >= starts_before:
            break  # the next line starts past the range
    if not held.is_empty:
        yield held.line(number)


def _end_of(blank: bytes) -> BlankEnd:
    pattern = re.compile(blank)

    def end(chunk: bytes, begin: int) -> int:
        blank_lines = pattern.match(chunk, begin)
        return begin if blank_lines is None else blank_lines.end()

    return end


def parse_object(data: bytes | None, columns: Collection[str] | None = None) -> JsonObject:
    """The JSON object on a line. Raises `BadLine`, also for a field that an object has twice, if it lies in
    one of these columns, or parts of them. None: all.
    """
    if data is None:
        raise BadLine("line_too_long", "the line is longer than this service accepts (LINE_BYTES_MAX)")
    try:
        text = data.removeprefix(_BYTE_ORDER_MARK).decode("utf-8")  # where files were put together, too
    except UnicodeDecodeError as error:
        message = f"the line is not UTF-8 (byte {error.start + 1})"
        raise BadLine("invalid_encoding", message, line_hint(data)) from error
    if has_too_many_entries(data):
        raise BadLine("invalid_json_line", f"the line has {TOO_MANY}")
    try:
        try:
            value = (_ZEROS_DECODER if "-0" in text else _DECODER).decode(text)
        except _Repeated:
            value = _repeating(text, columns)
    except (ValueError, RecursionError) as error:
        message = f"the line is not valid JSON: {_reason(error)}"
        raise NotJson("invalid_json_line", message, line_hint(data, error)) from error
    if not isinstance(value, dict):
        raise BadLine("invalid_json_line", "the line is not a JSON object", line_hint(data))
    if data.count(b"{") + data.count(b"[") > JSON_DEPTH_MAX and _is_deeper_than(value, JSON_DEPTH_MAX):
        raise BadLine("invalid_json_line", f"the line nests deeper than {JSON_DEPTH_MAX} levels")
    if _SURROGATE.search(data) and not _is_text(value):
        raise BadLine("invalid_encoding", "the line has half of a surrogate pair, which no UTF-8 can hold")
    return value


def _repeating(text: str, columns: Collection[str] | None) -> Any:
    """The value of a text in which an object has a field twice; the last one counts. Raises `BadLine`."""
    pairs = _PAIRS_DECODER.decode(text)
    record = pairs if isinstance(pairs, _Pairs) else _Pairs([("", pairs)])
    twice = {name: fields for name, value in record if (fields := list(_twice(value)))}
    twice |= {name: [name] for name in record.twice()}
    used = twice if columns is None else twice.keys() & {root_of(column, twice) for column in columns}
    if used:
        field = twice[min(used)][0][:NAME_CHARS_MAX]
        raise BadLine("invalid_json_line", f"the line has the field '{field}' twice in one object")
    return _LAST_DECODER.decode(text)


def _twice(value: Any) -> Iterator[str]:
    """The fields that an object in a value has twice."""
    if isinstance(value, _Pairs):
        yield from value.twice()
        value = [child for _, child in value]
    for child in value if isinstance(value, list) else ():
        yield from _twice(child)


class Held:
    """The part of a line read so far."""

    __slots__ = ("_line_bytes_max", "_pieces", "end", "is_too_long", "offset")

    def __init__(self, offset: int, line_bytes_max: int) -> None:
        self.offset = offset
        self.end = offset
        self.is_too_long = False
        self._line_bytes_max = line_bytes_max
        self._pieces: list[bytes] = []

    @property
    def is_empty(self) -> bool:
        return self.end == self.offset

    def add(self, piece: bytes) -> None:
        if not piece:
            return
        self.end += len(piece)
        self.is_too_long = self.end - self.offset > self._line_bytes_max
        if self.is_too_long:
            self._pieces.clear()
        else:
            self._pieces.append(piece)

    def line(self, number: int) -> Line:
        data = None if self.is_too_long else b"".join(self._pieces)
        if data is not None and self.offset == 0:
            data = data.removeprefix(_BYTE_ORDER_MARK)
        return Line(number, self.offset, data)


def _after_first_newline(chunks: Iterator[bytes], offset: int) -> tuple[int, Iterator[bytes]]:
    """The offset of the stream's first line that begins in it, and the stream from there."""
    for chunk in chunks:
        newline = chunk.find(b"\n")
        if newline >= 0:
            return offset + newline + 1, chain((chunk[newline + 1 :],), chunks)
        offset += len(chunk)
    return offset + 1, iter(())  # no line begins in the range


def _is_text(value: JsonObject) -> bool:
    """Whether every string is valid UTF-8; JSON escapes allow lone surrogates."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class _Repeated(Exception):
    """An object has a field twice."""


class _Pairs(list[tuple[str, Any]]):
    """An object as its fields, of which some may have one name."""

    def twice(self) -> list[str]:
        return [name for name, count in Counter(name for name, _ in self).items() if count > 1]


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise _Repeated
    return fields


# Made once: `json.loads` makes one for each line.
_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=number, parse_constant=_refuse_constant
)
# A call for each whole number: for lines that may have `-0`, which is no `int`.
_ZEROS_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=number, parse_int=integer, parse_constant=_refuse_constant
)
_LAST_DECODER: Final = json.JSONDecoder(
    parse_float=number, parse_int=integer, parse_constant=_refuse_constant
)
_PAIRS_DECODER: Final = json.JSONDecoder(object_pairs_hook=_Pairs, parse_constant=_refuse_constant)


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos + 1}"
    # Python's error for a long integer names its own setting behind the cause.
    return "it nests too deeply" if isinstance(error, RecursionError) else str(error).partition(";")[0]


def _is_deeper_than(value: Any, depth_max: int) -> bool:
    """Level by level, because recursion could overflow the stack."""
    level = [value]
    for _ in range(depth_max):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return False
    return True


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
