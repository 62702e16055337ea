"""The headers of Parquet's pages: `PageHeader` of parquet.thrift in Thrift's compact protocol.

https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift,
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nightshift.bulk.rows.records import UnreadableInput
from nightshift.objectstore import MIB

HEADER_BYTES_MAX: Final = 1 * MIB  # the least and the largest value of a page may be in it
FIELDS_MAX: Final = 100
DEPTH_MAX: Final = 4

# Types of fields in the compact protocol. Booleans are in the type; the other numbers are variable in length.
BOOLEANS: Final = (1, 2)
BYTE: Final = 3
NUMBERS: Final = (4, 5, 6)  # of 16, 32 and 64 bits
INT32: Final = 5
DOUBLE: Final = 7
BINARY: Final = 8
STRUCT: Final = 12

# PageType, and for each that is decoded the fields of its description and of the encoding in there.
DATA_PAGE: Final = 0
DICTIONARY_PAGE: Final = 2
DATA_PAGE_V2: Final = 3
DESCRIPTIONS: Final = {DATA_PAGE: (5, 2), DICTIONARY_PAGE: (7, 2), DATA_PAGE_V2: (8, 4)}
DICTIONARY_ENCODINGS: Final = (2, 8)  # PLAIN_DICTIONARY and RLE_DICTIONARY
DELTA_BYTE_ARRAY: Final = 7

UNREADABLE: Final = "The header of a page is not readable."

Fields = Mapping[int, "int | Fields"]


@dataclass(frozen=True)
class PageHeader:
    """`size_bytes` is the header's own size; the page's compressed bytes follow it."""

    size_bytes: int
    compressed_bytes: int
    uncompressed_bytes: int
    is_dictionary: bool
    uses_dictionary: bool
    shares_beginnings: bool  # values may be made of those before
    values: int


def read_page_header(data: bytes | bytearray, start: int) -> PageHeader | None:
    """The header at an offset, or None when it goes on after the data. Raises `UnreadableInput`."""
    reader = _Reader(data, start)
    try:
        fields = reader.struct(DEPTH_MAX)
    except IndexError:
        if len(data) - start > HEADER_BYTES_MAX:
            raise UnreadableInput("The header of a page is too long.") from None
        return None
    page_type, uncompressed, compressed = (_number(fields, number) for number in (1, 2, 3))
    described_at, encoding_at = DESCRIPTIONS.get(page_type, (None, None))
    described = {} if described_at is None else fields.get(described_at)
    if not isinstance(described, Mapping):
        raise UnreadableInput(UNREADABLE)
    encoding = None if encoding_at is None else _number(described, encoding_at)
    return PageHeader(
        size_bytes=reader.position - start,
        compressed_bytes=compressed,
        uncompressed_bytes=uncompressed,
        is_dictionary=page_type == DICTIONARY_PAGE,
        uses_dictionary=encoding in DICTIONARY_ENCODINGS,
        shares_beginnings=encoding == DELTA_BYTE_ARRAY,
        values=_number(described, 1) if described else 0,
    )


def _number(fields: Fields, field: int) -> int:
    value = fields.get(field)
    if not isinstance(value, int) or value < 0:
        raise UnreadableInput(UNREADABLE)
    return value


class _Reader:
    """Raises IndexError where the data end."""

    def __init__(self, data: bytes | bytearray, position: int) -> None:
        self.position = position
        self._data = data
        self._fields_left = FIELDS_MAX

    def struct(self, depth: int) -> Fields:
        """Its 32-bit numbers and structs by the numbers of their fields; the others are passed over."""
        fields: dict[int, int | Fields] = {}
        seen: set[int] = set()
        number = 0
        while (head := self._byte()) != 0:
            number = number + (head >> 4) if head >> 4 else _signed(self._varint(), 32)
            self._fields_left -= 1
            # Thrift keeps 16 bits of a field's number: beyond, it would see another one.
            if number in seen or not 0 < number < 2**15 or not self._fields_left or not depth:
                raise UnreadableInput(UNREADABLE)
            seen.add(number)
            kind = head & 0x0F
            if kind == INT32:
                fields[number] = _signed(self._varint(), 32)
            elif kind == STRUCT:
                fields[number] = self.struct(depth - 1)
            else:
                self._skip(kind)
        return fields

    def _skip(self, kind: int) -> None:
        if kind in BOOLEANS:
            return
        if kind in NUMBERS:
            self._varint()
        elif kind == BYTE:
            self._advance(1)
        elif kind == DOUBLE:
            self._advance(8)
        elif kind == BINARY:
            length = self._varint()
            if length >= 2**31:  # Thrift keeps 32 bits
                raise UnreadableInput(UNREADABLE)
            self._advance(length)
        else:  # a page's header has no collections
            raise UnreadableInput(UNREADABLE)

    def _advance(self, count: int) -> None:
        if self.position + count > len(self._data):
            raise IndexError
        self.position += count

    def _byte(self) -> int:
        value = self._data[self.position]
        self.position += 1
        return value

    def _varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise UnreadableInput(UNREADABLE)


def _signed(zigzag: int, bits: int) -> int:
    """What Thrift makes of a zigzag number: the lowest bits."""
    zigzag &= (1 << bits) - 1
    return (zigzag >> 1) ^ -(zigzag & 1)
