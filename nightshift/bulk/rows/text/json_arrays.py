"""The elements of a JSON array, one in memory at a time, as the lines of an object.

Brackets outside of strings are counted: an element ends with the bracket that closes it, or before the comma
after a value without brackets, and is parsed as a line is.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from nightshift.bulk.rows.records import UnreadableInput
from nightshift.bulk.rows.text.lines import Held, Line
from nightshift.endpoints.containers import ENTRIES_MAX, TOO_MANY
from nightshift.objectstore import MIB

ARRAY_BYTES_MAX: Final = 1024 * MIB
"""Size limit of an array. It is one shard, which is read from its beginning again after each interruption."""

# The first stops at a string that does not end in the data. Groups have a limit, as they remember each of
# their repeats; possessive groups do not, but Python before 3.11.5 matches them wrongly.
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+){0,500}"'
_TO_BRACKET: Final = re.compile(rb'(?:[^"\[\]{}]+|%b){0,500}' % _STRING, re.DOTALL)
_TO_QUOTE: Final = re.compile(rb'(?:[^"\\]+|\\.){0,500}', re.DOTALL)
_TO_COMMA: Final = re.compile(rb'[^",\]]*+')
_BETWEEN: Final = re.compile(rb"[\s,]*+")


def array_lines(chunks: Iterable[bytes], *, line_bytes_max: int) -> Iterator[Line]:
    """The elements of an array, of any kind. Those over the limit are not held.

    Raises `UnreadableInput` for data that end before the array does, or after it.
    """
    elements = _Elements(line_bytes_max)
    for chunk in chunks:
        yield from elements.add(chunk)
    elements.check_end()


def check_array_bytes(size_bytes: int) -> None:
    """Raises `UnreadableInput`."""
    if size_bytes > ARRAY_BYTES_MAX:
        raise UnreadableInput(
            f"A JSON array of more than {ARRAY_BYTES_MAX} bytes is not read: write an object on each line."
        )


class _Elements:
    """The array as far as it is read."""

    def __init__(self, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._held = Held(0, line_bytes_max)
        self._held_back = b""  # a backslash, whose character is in the next chunk
        self._bytes_read = 0
        self._line = 1
        self._depth = 0  # of open brackets; 1: between two elements
        self._is_in_string = False
        self._element_line = 1
        self._elements = 0
        self._brackets = 0  # of the element
        self._is_bare = False  # whether the element is a value without brackets
        self._has_ended = False

    def add(self, chunk: bytes) -> Iterator[Line]:
        self._bytes_read += len(chunk)
        check_array_bytes(self._bytes_read)
        data, self._held_back = self._held_back + chunk, b""
        place = 0
        while place < len(data) - len(self._held_back):
            if self._depth < 2:
                place = self._pass_between(data, place)
                continue
            end = self._pass_within(data, place)
            self._held.add(data[place:end])
            self._line += data.count(b"\n", place, end)
            place = end
            if self._depth == 1:
                yield self._ended()

    def check_end(self) -> None:
        if not self._has_ended:
            raise UnreadableInput(f"The JSON array is cut short: it goes on after line {self._line}.")

    def _pass_between(self, data: bytes, place: int) -> int:
        """Passes the bracket that begins an element, or the array, or ends it."""
        blanks = _BETWEEN.match(data, place)
        assert blanks is not None, "it may be empty"
        self._line += data.count(b"\n", place, blanks.end())
        place = blanks.end()
        if place == len(data):
            return place
        mark = data[place : place + 1]
        if self._has_ended:
            raise UnreadableInput(f"More data follow the end of the JSON array, in line {self._line}.")
        if mark == b"]" and self._depth == 1:
            self._has_ended, self._depth = True, 0
        elif mark == b"[" and self._depth == 0:
            self._depth = 1
        else:
            self._begin(mark)
            return place if self._is_bare else place + 1
        return place + 1

    def _begin(self, mark: bytes) -> None:
        self._depth, self._brackets, self._element_line = 2, 0, self._line
        self._held = Held(0, self._line_bytes_max)
        self._is_bare = mark not in b"{["
        if not self._is_bare:
            self._held.add(mark)

    def _pass_within(self, data: bytes, place: int) -> int:
        """Passes the next bracket or quote that is not passed over, to the end of a value without brackets,
        or as far as a pattern reaches.
        """
        pattern = _TO_COMMA if self._is_bare else _TO_BRACKET
        passed = (_TO_QUOTE if self._is_in_string else pattern).match(data, place)
        assert passed is not None, "it may be empty"
        place = passed.end()
        mark = data[place : place + 1]
        if mark == b'"':
            self._is_in_string = not self._is_in_string
        elif self._is_bare and mark in (b",", b"]"):
            self._depth = 1
            return place
        elif self._is_in_string or mark not in (b"[", b"]", b"{", b"}"):
            self._held_back = data[place:] if mark == b"\\" and place == len(data) - 1 else b""
            return place
        else:
            self._count(mark)
        return place + 1

    def _count(self, bracket: bytes) -> None:
        self._depth += 1 if bracket in b"{[" else -1
        self._brackets += 1
        if self._brackets > 2 * ENTRIES_MAX:
            number = self._elements + 1
            raise UnreadableInput(f"Element {number}, in line {self._element_line}, has {TOO_MANY}.")

    def _ended(self) -> Line:
        self._elements += 1
        return Line(self._element_line, 0, self._held.line(0).data)
