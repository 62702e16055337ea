"""Decodes the rows of Parquet and Arrow by pyarrow, in the process that has limits for it."""

import io
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.bulk.rows.columns.castable import has_part
from nightshift.bulk.rows.columns.messages import DONE, FAILED, MEMORY_BYTES_MAX, OPENED, Channel
from nightshift.bulk.rows.columns.pieces import PIECE_ROWS, Pieces, Unreadable

DECODED_BYTES: Final = 1024 * 1024  # of Parquet, at a time, as the footer says; in truth it may be more
AHEAD_BYTES: Final = 1024 * 1024  # read at once, at least
GROUP_BYTES: Final = 16 * 1024 * 1024  # a smaller row group is read at once …
GAP_BYTES: Final = 256 * 1024  # … with smaller gaps between its columns
FOOTER_BYTES: Final = 64 * 1024  # read at first
BUFFERS_BYTES: Final = 64 * 1024 * 1024  # read ahead of all columns of a larger one together
FOOTER_BYTES_MAX: Final = 16 * 1024 * 1024
FOOTER_LIST_MAX: Final = 100_000  # row groups, columns: Thrift makes room for as many as a list says
INT96_UNIT: Final = "us"  # as nanoseconds, times before 1677 and after 2262 would become others
ARROW_FILE: Final = b"ARROW1\0\0"
TOO_LARGE: Final = f"takes more than {MEMORY_BYTES_MAX} bytes of memory decoded"


def decode(channel: Channel, before_each: Callable[[], None]) -> None:
    """Opens the object that is asked for, says what it is, and sends what is asked of it.

    `before_each` is called before the object is opened and before each piece of it is sent.
    """
    before_each()
    try:
        question = _question(channel)
        file = RangeFile(channel, question["size_bytes"])
        opened: ParquetObject | ArrowObject = (
            ParquetObject(file) if question["format"] == "parquet" else ArrowObject(file)
        )
        channel.send_json(OPENED, opened.description())
        question = _question(channel)
        before_each()
        if question["what"] == "rows":
            pieces = Pieces(channel, question["row_bytes_max"], file.size_bytes, before_each)
            opened.send_rows(question["names"], question["groups"], pieces)
            channel.send_json(DONE, pieces.sent)
        else:
            channel.send_json(DONE, opened.rows_estimated())
    except MemoryError:
        channel.send(FAILED, f"It {TOO_LARGE}.".encode())
    except Exception as error:  # noqa: BLE001 pyarrow raises whatever damage leads to
        channel.send(FAILED, (str(error) or type(error).__name__).encode(errors="replace"))


def _question(channel: Channel) -> dict[str, Any]:
    question: dict[str, Any] = json.loads(channel.receive()[1])
    return question


class RangeFile(io.RawIOBase):
    """The object as a file, of which the other process sends the ranges that are read."""

    def __init__(self, channel: Channel, size_bytes: int) -> None:
        super().__init__()
        self.size_bytes = size_bytes
        self.was_short = False  # whether more bytes were wanted than there are
        self.lowest_read = size_bytes  # the first byte that was read, since this was set
        self._channel = channel
        self._position = 0
        self._held: list[tuple[int, memoryview]] = []

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size_bytes}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> memoryview:
        left = max(0, self.size_bytes - self._position)
        wanted = left if size is None or size < 0 else size
        self.was_short |= wanted > left
        start, end = self._position, self._position + min(wanted, left)
        self.lowest_read = min(self.lowest_read, start)
        self._position = end
        return self._range(start, end)

    def hold(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Reads these ranges now, in place of those held before."""
        self._held = []
        self._held = [(start, self._fetched(start, end)) for start, end in ranges]

    def _range(self, start: int, end: int) -> memoryview:
        held = self._held_from(start)[: end - start]
        if len(held) == end - start:
            return held
        if end - start >= AHEAD_BYTES:
            data = memoryview(bytearray(end - start))
            data[: len(held)] = held
            self._channel.fetch(start + len(held), data[len(held) :])
            return data
        self.hold([(start, min(start + AHEAD_BYTES, self.size_bytes))])
        return self._held_from(start)[: end - start]

    def _held_from(self, start: int) -> memoryview:
        for held_start, data in self._held:
            if held_start <= start < held_start + len(data):
                return data[start - held_start :]
        return memoryview(b"")

    def _fetched(self, start: int, end: int) -> memoryview:
        data = memoryview(bytearray(end - start))
        self._channel.fetch(start, data)
        return data


class ParquetObject:
    """An object's footer, and the rows of its row groups."""

    def __init__(self, file: RangeFile) -> None:
        self._file = file
        file.hold([(max(0, file.size_bytes - FOOTER_BYTES), file.size_bytes)])
        file.seek(max(0, file.size_bytes - 8))
        footer_bytes = int.from_bytes(file.read(4), "little")
        if footer_bytes > FOOTER_BYTES_MAX:
            raise Unreadable(f"Its footer has {footer_bytes} bytes, more than this service accepts.")
        with self._reader(thrift_container_size_limit=FOOTER_LIST_MAX) as reader:
            self._metadata = reader.metadata
            self._schema = reader.schema_arrow
        columns = self._metadata.schema
        self._paths = [columns.column(number).path for number in range(self._metadata.num_columns)]
        self._is_flat = [
            columns.column(number).max_repetition_level == 0 for number in range(self._metadata.num_columns)
        ]
        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        rows = sum(group.num_rows for group in groups)
        if rows != self._metadata.num_rows:
            raise Unreadable(
                f"Its row groups have {rows} rows, and its footer says {self._metadata.num_rows}."
            )

    def description(self) -> dict[str, Any]:
        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        return {
            "names": self._schema.names,
            "unread": {},
            "groups": [(group.num_rows, group.total_byte_size) for group in groups],
        }

    def rows_estimated(self) -> int | None:
        return self._metadata.num_rows or None

    def send_rows(self, names: Sequence[str], groups: Sequence[int | None], pieces: Pieces) -> None:
        first, end = groups
        assert first is not None, "only the last may be left open"
        wanted = set(names)
        leaves = [number for number, path in enumerate(self._paths) if _is_in(path, wanted)]
        for group in range(first, self._metadata.num_row_groups if end is None else end):
            if self._metadata.row_group(group).num_rows:  # else its columns may have no pages, nor an offset
                self._send_group(group, names, leaves, pieces)

    def _send_group(self, group: int, names: Sequence[str], leaves: Sequence[int], pieces: Pieces) -> None:
        chunks = [self._metadata.row_group(group).column(leaf) for leaf in leaves]
        buffer_bytes = self._read_ahead(chunks)
        size_bytes = sum(chunk.total_uncompressed_size for chunk in chunks)
        rows = self._metadata.row_group(group).num_rows
        for leaf, chunk in zip(leaves, chunks, strict=True):
            if self._is_flat[leaf] and chunk.num_values != rows:
                raise Unreadable(
                    f"Row group {group} has {rows} rows, and its column '{self._paths[leaf]}' "
                    f"{chunk.num_values} values."
                )
        batch_rows = max(1, min(PIECE_ROWS, rows * DECODED_BYTES // max(1, size_bytes)))
        first = pieces.sent
        while True:
            try:
                with self._reader(metadata=self._metadata, buffer_size=buffer_bytes) as reader:
                    batches = reader.iter_batches(batch_rows, [group], list(names), use_threads=False)
                    _send_after(pieces.sent - first, batches, pieces)
                break
            except MemoryError:
                if batch_rows == 1:
                    raise Unreadable(f"A row {TOO_LARGE}.") from None
            batch_rows = max(1, batch_rows // 8)
        if pieces.sent - first != rows:
            raise Unreadable(f"Row group {group} has {pieces.sent - first} rows, and its footer says {rows}.")

    def _read_ahead(self, chunks: Sequence[Any]) -> int:
        """Reads the columns of a small row group. Returns how much is read ahead of each column of
        another.
        """
        ranges = sorted(map(self._place, chunks))
        if sum(end - start for start, end in ranges) > GROUP_BYTES:
            self._file.hold([])
            return max(64 * 1024, min(AHEAD_BYTES, BUFFERS_BYTES // len(chunks)))
        joined: list[tuple[int, int]] = []
        for start, end in ranges:
            if joined and start <= joined[-1][1] + GAP_BYTES:
                joined[-1] = joined[-1][0], max(end, joined[-1][1])
            else:
                joined.append((start, end))
        self._file.hold(joined)
        return 0

    def _place(self, chunk: Any) -> tuple[int, int]:
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        place = sorted((start, start + chunk.total_compressed_size))
        return max(0, place[0]), min(max(0, place[1]), self._file.size_bytes)

    def _reader(self, **options: Any) -> pq.ParquetFile:
        return pq.ParquetFile(self._file, coerce_int96_timestamp_unit=INT96_UNIT, pre_buffer=False, **options)


def _is_in(path: str, names: Collection[str]) -> bool:
    """Whether a column of this path is one of these, or a part of it."""
    return any(name in names for name in accumulate(path.split("."), lambda left, right: f"{left}.{right}"))


def _send_after(rows: int, batches: Iterator[pa.RecordBatch], pieces: Pieces) -> None:
    """Sends batches without their first rows."""
    for batch in batches:
        pieces.send(batch.slice(min(rows, batch.num_rows)))
        rows = max(0, rows - batch.num_rows)


class ArrowObject:
    """An object in the streaming or the file format, as Feather is."""

    def __init__(self, file: RangeFile) -> None:
        self._file = file
        self._is_file = bytes(file.read(len(ARROW_FILE))) == ARROW_FILE
        try:
            with self._reader() as reader:
                self._schema = reader.schema
        except (pa.ArrowException, OSError) as error:
            raise Unreadable(f"It is not Arrow IPC, or it is damaged: {error}") from error

    def description(self) -> dict[str, Any]:
        fields = [self._schema.field(number) for number in range(len(self._schema.names))]
        unread = {field.name: str(field.type) for field in fields if not _is_read(field.type)}
        return {"names": self._schema.names, "unread": unread, "groups": []}

    def rows_estimated(self) -> int | None:
        """An estimate by the first batch with rows, of which a file's first column alone is read."""
        with self._reader([0]) as reader:
            first = self._file.tell()
            for batch in self._batches(reader):
                if not batch.num_rows:
                    continue
                if self._is_file:
                    return int(batch.num_rows * reader.num_record_batches)
                return round(
                    int(batch.num_rows) * (self._file.size_bytes - first) / (self._file.tell() - first)
                )
        return None

    def send_rows(self, names: Sequence[str], groups: Sequence[int | None], pieces: Pieces) -> None:
        try:
            with self._reader([self._schema.get_field_index(name) for name in names]) as reader:
                for batch in self._batches(reader):
                    pieces.send(batch)
        except MemoryError:
            raise Unreadable(f"A batch, or a row, {TOO_LARGE}: write batches of fewer rows.") from None
        if not self._is_file and self._file.was_short:
            raise Unreadable("It is cut short.")
        if not self._is_file and self._file.tell() < self._file.size_bytes:
            raise Unreadable("It goes on after the end of its stream: write one stream per object.")

    def _reader(self, columns: list[int] | None = None) -> Any:
        options = pa.ipc.IpcReadOptions(included_fields=columns, use_threads=False)
        self._file.seek(0)
        return (pa.ipc.open_file if self._is_file else pa.ipc.open_stream)(self._file, options=options)

    def _batches(self, reader: Any) -> Iterator[pa.RecordBatch]:
        if not self._is_file:
            yield from reader
            return
        place = 0
        for number in range(reader.num_record_batches):
            self._file.lowest_read = self._file.size_bytes
            batch = reader.get_batch(number)
            if self._file.lowest_read <= place:  # one that is listed often would be very many rows
                raise Unreadable("Its footer lists batches that overlap.")
            place = self._file.lowest_read
            yield batch


def _is_read(type: pa.DataType) -> bool:
    """Whether columns of a type are read. A slice of a union has all that the whole one has."""
    return _has_arrays(type) and not has_part(type, pa.types.is_union)


def _has_arrays(type: pa.DataType) -> bool:
    """Whether pyarrow has a class of such arrays."""
    try:
        pa.nulls(0, type)
    except (KeyError, pa.ArrowNotImplementedError):
        return False
    return True
