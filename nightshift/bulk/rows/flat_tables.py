"""Tables of FlatBuffers, read with every offset checked: https://flatbuffers.dev/internals/. Pure."""

import struct
from collections.abc import Iterator
from typing import Final

from nightshift.bulk.rows.records import UnreadableInput

VECTOR_ITEMS_MAX: Final = 2**20  # of fields, columns, buffers

DAMAGED: Final = "Its metadata are damaged."


class FlatTable:
    """A table at a position. Fields have the numbers of their places in the schema, from 0.

    Every method raises `UnreadableInput` for what does not lie within the data.
    """

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position
        self._fields = position - self._number("<i", position)
        self._fields_bytes = self._number("<H", self._fields)

    @classmethod
    def root(cls, data: bytes) -> "FlatTable":
        return cls(data, _number(data, "<I", 0))

    def number(self, field: int, format: str, default: int = 0) -> int:
        """`format`: as in `struct`."""
        place = self._place(field)
        return default if place is None else self._number(format, place)

    def table(self, field: int) -> "FlatTable | None":
        place = self._place(field)
        return None if place is None else FlatTable(self._data, self._followed(place))

    def tables(self, field: int) -> Iterator["FlatTable"]:
        first, count = self._vector(field, 4)
        for place in range(first, first + 4 * count, 4):
            yield FlatTable(self._data, self._followed(place))

    def structs(self, field: int, format: str) -> list[tuple[int, ...]]:
        """A vector of structs, each as its numbers."""
        size = struct.calcsize(format)
        first, count = self._vector(field, size)
        return list(struct.iter_unpack(format, self._data[first : first + size * count]))

    def _place(self, field: int) -> int | None:
        """Of a field's value. None: it has its default."""
        entry = 4 + 2 * field
        if entry + 2 > self._fields_bytes:
            return None
        offset = self._number("<H", self._fields + entry)
        return self._position + offset if offset else None

    def _vector(self, field: int, item_bytes: int) -> tuple[int, int]:
        """The place of its first item, and how many there are."""
        place = self._place(field)
        if place is None:
            return 0, 0
        start = self._followed(place)
        count = self._number("<I", start)
        if count > VECTOR_ITEMS_MAX or start + 4 + count * item_bytes > len(self._data):
            raise UnreadableInput(DAMAGED)
        return start + 4, count

    def _followed(self, place: int) -> int:
        return place + self._number("<I", place)

    def _number(self, format: str, place: int) -> int:
        return _number(self._data, format, place)


def _number(data: bytes, format: str, place: int) -> int:
    if place < 0 or place + struct.calcsize(format) > len(data):
        raise UnreadableInput(DAMAGED)
    value: int = struct.unpack_from(format, data, place)[0]
    return value
