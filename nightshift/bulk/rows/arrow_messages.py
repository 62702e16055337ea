"""Arrow's IPC messages: where their buffers lie in an object, by their own headers, before any is read.

The streaming format, which the library `datasets` writes, and the file format: a stream between two marks.
https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from nightshift.bulk.rows.flat_tables import DAMAGED, FlatTable
from nightshift.bulk.rows.records import UnreadableInput
from nightshift.objectstore import MIB

HEADER_BYTES_MAX: Final = 4 * MIB  # of a message
HEADER_AHEAD_BYTES: Final = 64 * 1024
SMALL_BODY_BYTES: Final = 4 * MIB  # read at once, with what follows
BATCH_ROWS_MAX: Final = 2**31
FILE_MARK: Final = b"ARROW1"
FILE_START: Final = FILE_MARK + b"\0\0"
CONTINUATION: Final = b"\xff\xff\xff\xff"
OLDEST_VERSION: Final = 3  # V4, of 2017

SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3  # MessageHeader
LITTLE_ENDIAN: Final = 0
FOOTER_DICTIONARIES, FOOTER_BATCHES = 2, 3  # fields of a file's footer
CODECS: Final = {0: "lz4", 1: "zstd"}

Fetch = Callable[[int, int], bytes]
Range = tuple[int, int]


class RangeReader:
    """Ranges of an object, with what follows the last one kept: they are asked for in order."""

    def __init__(self, fetch: Fetch, end: int, ahead_bytes: int) -> None:
        """`end`: no byte from there on is read ahead."""
        self._fetch = fetch
        self._end = end
        self._ahead_bytes = ahead_bytes
        self._start = 0
        self._data = b""

    def read(self, start: int, end: int, ahead_bytes: int | None = None) -> bytes:
        """Raises `UnreadableInput` where the object has fewer bytes."""
        if end > self._end:
            raise UnreadableInput("It is cut short.")
        if start < self._start or end > self._start + len(self._data):
            ahead = self._ahead_bytes if ahead_bytes is None else ahead_bytes
            self._start, self._data = start, self._fetch(start, min(max(end, start + ahead), self._end))
        return self._data[start - self._start : end - self._start]


@dataclass(frozen=True)
class BatchHeader:
    """A record batch, or the values of a dictionary. Places of buffers are those in the object."""

    rows: int
    nodes: list[tuple[int, ...]]  # length and nulls of each column, nested ones after their parents
    buffers: list[Range]
    codec: str | None
    views: list[int]  # buffers of texts, of each column of views
    body: Range
    dictionary: int | None = None  # its id
    is_delta: bool = False  # its values come after those there are


@dataclass(frozen=True)
class Messages:
    """An object's schema, and the headers of its batches."""

    schema: pa.Schema
    dictionary_ids: list[int]  # of the fields that have one, nested ones after their parents
    first: int  # the place of the first batch
    _reader: RangeReader
    _size_bytes: int
    _blocks: list[Range] | None  # of a file: its batches, as its footer says

    @classmethod
    def of(cls, fetch: Fetch, size_bytes: int) -> "Messages":
        """Raises `UnreadableInput`, and `pa.ArrowException` for a schema that is none."""
        reader = RangeReader(fetch, size_bytes, HEADER_AHEAD_BYTES)
        if reader.read(0, min(len(FILE_START), size_bytes)) == FILE_START:
            return cls._of_file(fetch, size_bytes, reader)
        found = _message(reader, 0)
        if found is None:
            raise UnreadableInput("It has no schema.")
        message, head, body = found
        described = message.table(2)
        if message.number(1, "<B") != SCHEMA or described is None:
            raise UnreadableInput("It does not begin with a schema.")
        schema = pa.ipc.read_schema(pa.py_buffer(head))
        return cls(schema, _ids_in(described), body, reader, size_bytes, None)

    @classmethod
    def _of_file(cls, fetch: Fetch, size_bytes: int, reader: RangeReader) -> "Messages":
        """By its footer: polars writes another schema than a message's before the batches."""
        end = size_bytes - len(FILE_MARK) - 4
        if end < len(FILE_START) or fetch(end + 4, size_bytes) != FILE_MARK:
            raise UnreadableInput("It is cut short: its last bytes are not those of an Arrow file.")
        footer_bytes = int.from_bytes(fetch(end, end + 4), "little", signed=True)
        if not 0 < footer_bytes <= min(HEADER_BYTES_MAX, end - len(FILE_START)):
            raise UnreadableInput(f"Its footer says that it has {footer_bytes} bytes.")
        start = end - footer_bytes
        data = fetch(start, end)
        # Opened alone, with its offsets into what is not there, of which pyarrow reads nothing.
        alone = FILE_START + data + footer_bytes.to_bytes(4, "little") + FILE_MARK
        with pa.ipc.open_file(pa.py_buffer(alone)) as file:
            schema = file.schema
        footer = FlatTable.root(data)
        described = footer.table(1)
        if described is None:
            raise UnreadableInput("It has no schema.")
        blocks = [*_blocks(footer, FOOTER_DICTIONARIES, start), *_blocks(footer, FOOTER_BATCHES, start)]
        first = min((block_start for block_start, _ in blocks), default=start)
        return cls(schema, _ids_in(described), first, reader, size_bytes, blocks)

    def batches(self) -> Iterator[BatchHeader]:
        """In their order; of a file its dictionaries come first. Raises `UnreadableInput`."""
        if self._blocks is not None:
            for start, end in self._blocks:
                header = self._batch_at(start)
                if header is None or header.body[1] > end:
                    raise UnreadableInput(DAMAGED)
                yield header
            return
        place = self.first
        while (header := self._batch_at(place)) is not None:
            place = header.body[1]
            yield header
        end = place + (8 if _continues(self._reader, place) else 4)
        if end < self._size_bytes:
            raise UnreadableInput("It goes on after the end of its stream: write one stream per object.")

    def _batch_at(self, place: int) -> BatchHeader | None:
        """None: the stream ends there."""
        found = _message(self._reader, place)
        if found is None:
            return None
        message, _, body = found
        end = body + message.number(3, "<q")
        if not body <= end <= self._size_bytes:
            raise UnreadableInput(
                f"It is cut short, or damaged: a batch at byte {body} says that it ends at byte {end} "
                f"of {self._size_bytes}."
            )
        return _batch(message, (body, end))

    def small_body(self, header: BatchHeader) -> RangeReader | None:
        """A reader that has the whole body, if that is small."""
        start, end = header.body
        if end - start > SMALL_BODY_BYTES:
            return None
        self._reader.read(start, end, SMALL_BODY_BYTES)
        return self._reader


def _message(reader: RangeReader, place: int) -> tuple[FlatTable, bytes, int] | None:
    """A message, its bytes with what says their length, and where its body begins. None: the stream ends."""
    size_place = place + 4 if _continues(reader, place) else place
    head_bytes = int.from_bytes(reader.read(size_place, size_place + 4), "little", signed=True)
    if head_bytes == 0:
        return None
    start = size_place + 4
    if not 0 < head_bytes <= HEADER_BYTES_MAX:
        raise UnreadableInput(
            f"It is not Arrow IPC: a message at byte {place} says that its header has {head_bytes} bytes; at "
            f"most {HEADER_BYTES_MAX} are accepted."
        )
    head = reader.read(start, start + head_bytes)
    message = FlatTable.root(head)
    if message.number(0, "<h") < OLDEST_VERSION:
        raise UnreadableInput("It is of a version of Arrow before 2017.")
    return message, reader.read(place, start) + head, start + head_bytes


def _continues(reader: RangeReader, place: int) -> bool:
    """Whether a message begins as since 2019, with four bytes before its length."""
    return reader.read(place, place + 4) == CONTINUATION


def _blocks(footer: FlatTable, field: int, end: int) -> Iterator[Range]:
    """The batches in a list of a footer. None overlap: one that is listed often would be very many rows."""
    free = len(FILE_START)
    for offset, head_bytes, body_bytes in footer.structs(field, "<qi4xq"):
        block_end = offset + head_bytes + body_bytes
        if min(offset - free, head_bytes - 1, body_bytes, end - block_end) < 0:
            raise UnreadableInput("Its footer lists batches that overlap, or lie outside of it.")
        yield offset, block_end
        free = block_end


def _ids_in(schema: FlatTable) -> list[int]:
    """Of its fields' dictionaries. Raises `UnreadableInput` for numbers that are big-endian."""
    if schema.number(0, "<h") != LITTLE_ENDIAN:
        raise UnreadableInput("Its numbers are big-endian; write it on a little-endian machine.")
    return [id for field in schema.tables(1) for id in _dictionary_ids(field)]


def _dictionary_ids(field: FlatTable) -> Iterator[int]:
    """Of a field of a schema that pyarrow has verified. Of a dictionary's values those are not looked at."""
    dictionary = field.table(4)
    if dictionary is not None:
        yield dictionary.number(0, "<q")
        return
    for child in field.tables(5):
        yield from _dictionary_ids(child)


def _batch(message: FlatTable, body: Range) -> BatchHeader:
    kind = message.number(1, "<B")
    header = message.table(2)
    if kind == RECORD_BATCH and header is not None:
        return _described(header, body, None, False)
    values = header.table(1) if kind == DICTIONARY_BATCH and header is not None else None
    if header is None or values is None:
        raise UnreadableInput(f"It has a message of the kind {kind} among its batches.")
    return _described(values, body, header.number(0, "<q"), bool(header.number(2, "<B")))


def _described(batch: FlatTable, body: Range, dictionary: int | None, is_delta: bool) -> BatchHeader:
    compression = batch.table(3)
    codec = None if compression is None else CODECS.get(compression.number(0, "<b"))
    if compression is not None and (codec is None or compression.number(1, "<b") != 0):
        raise UnreadableInput("It is compressed in a way that is not known: use lz4, zstd or none.")
    header = BatchHeader(
        rows=batch.number(0, "<q"),
        nodes=batch.structs(1, "<qq"),
        buffers=[_placed(start, size, body) for start, size in batch.structs(2, "<qq")],
        codec=codec,
        views=[count for (count,) in batch.structs(4, "<q")],
        body=body,
        dictionary=dictionary,
        is_delta=is_delta,
    )
    if not 0 <= header.rows <= BATCH_ROWS_MAX:
        raise UnreadableInput(f"A batch says that it has {header.rows} rows.")
    if any(not 0 <= length <= BATCH_ROWS_MAX for length, _ in header.nodes):
        raise UnreadableInput(DAMAGED)
    return header


def _placed(start: int, size: int, body: Range) -> Range:
    if start < 0 or size < 0 or body[0] + start + size > body[1]:
        raise UnreadableInput("A buffer lies outside of its batch.")
    return body[0] + start, body[0] + start + size
