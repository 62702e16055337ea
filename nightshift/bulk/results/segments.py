"""Segments: the results of some of a shard's rows, in columns.

Arrow IPC stream (one batch; what its rows share is in the schema's metadata)
newline, trailer (row count, CRC-32 of the stream), newline
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from nightshift import endpoints
from nightshift.bulk.results.row_digests import DIGEST_BYTES
from nightshift.bulk.results.row_results import RowResult, ShardHead, json_line, output_lines
from nightshift.endpoints.endpoint import ColumnType
from nightshift.errors import StorageError
from nightshift.jobs import JsonObject, Segment, Usage
from nightshift.jobs.priorities import PriorityClass
from nightshift.objectstore import ObjectStore, read_verified

if TYPE_CHECKING:
    import pyarrow as pa

SEGMENT_BYTES_MAX: Final = 1024 * 1024 * 1024  # a segment is read whole
TRAILER_BYTES_MAX: Final = 128
_KEPT: Final = "kept"  # a column of jobs that keep columns of their input
DIGEST: Final = "digest"  # a column of digests of requests with a good result
REUSED: Final = "reused"  # a column of segments with results of other rows
REASONING_TOKENS: Final = "reasoning_tokens"  # a column of segments with thoughts
_HEAD: Final = b"nightshift"
_ENCODING: Final = Lock()  # a segment takes several times its size, and a process has several shards
_USAGE: Final = ("prompt_tokens", "completion_tokens", "cached_tokens")


class CorruptSegment(StorageError):
    """A segment's trailer is missing or does not match."""

    default_code = "corrupt_segment"


@dataclass(frozen=True)
class EncodedSegment:
    """A segment's bytes, and how many its successes' lines have in an output file, if measured."""

    data: bytes
    output_bytes: int | None


def encode_segment(
    head: ShardHead, results: Sequence[RowResult], *, is_measured: bool = False
) -> EncodedSegment:
    """Results of the shard as a segment. A measured one has every body, since its lines will be read."""
    with _ENCODING:
        return _encoded(head, results, is_measured=is_measured)


def _encoded(head: ShardHead, results: Sequence[RowResult], *, is_measured: bool) -> EncodedSegment:
    if is_measured:
        results = [result.with_body() for result in results]
    lines_bytes = sum(map(len, output_lines(results))) if is_measured else None
    stream = _written(head, results)
    trailer = json_line({"rows": len(results), "crc32": zlib.crc32(stream)})
    return EncodedSegment(b"".join((stream, b"\n", trailer)), lines_bytes)


def _written(head: ShardHead, results: Sequence[RowResult]) -> "pa.Buffer":
    """The columns as an Arrow stream. They are gone when this returns."""
    import pyarrow as pa  # half a second, which the API need not spend

    columns: dict[str, Any] = {
        "row": pa.array([result.row for result in results], pa.int32()),
        "custom_id": _texts(result.custom_id for result in results),
        "status_code": pa.array([result.status_code for result in results], pa.int16()),
    }
    for name in _USAGE:
        columns[name] = pa.array([getattr(result.usage, name) for result in results], pa.int64())
    if any(result.usage.reasoning_tokens for result in results):
        columns[REASONING_TOKENS] = pa.array(
            [result.usage.reasoning_tokens for result in results], pa.int64()
        )
    columns["body"] = _texts(result.body_text for result in results)
    if any(result.kept is not None for result in results):
        columns[_KEPT] = _texts(result.kept for result in results)
    for name, type in endpoints.get(head.endpoint).columns.items():
        values: Iterable[Any] = (result.values.get(name) for result in results)
        columns[value_column(name)] = _texts(values) if type is ColumnType.TEXT else _cells_of([*values])
    if any(result.digest is not None for result in results):
        digests = [result.digest if result.succeeded else None for result in results]
        columns[DIGEST] = pa.array(digests, pa.binary(DIGEST_BYTES))
    if any(result.is_reused for result in results):
        columns[REUSED] = pa.array([result.is_reused for result in results], pa.bool_())
    batch = pa.RecordBatch.from_pydict(columns)
    schema = batch.schema.with_metadata({_HEAD: json.dumps(asdict(head))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    return sink.getvalue()


def read_segment(objects: ObjectStore, segment: Segment) -> list[RowResult]:
    """A listed segment's results.

    Raises `ObjectDamaged` if the bytes differ from the listed sha256, `CorruptSegment`, StorageError.
    """
    return decode_segment(_verified(objects, segment))


def read_rows_done(objects: ObjectStore, segment: Segment) -> list[int]:
    """The rows that a listed segment has results of. Raises as `read_segment`."""
    rows: list[int] = table_of(stream_of(_verified(objects, segment))).column("row").to_pylist()
    return rows


def decode_segment(data: bytes) -> list[RowResult]:
    """A segment's results. Raises CorruptSegment."""
    table = table_of(stream_of(data))
    return decode_table(table, [head_of(table.schema)] * table.num_rows)


def _verified(objects: ObjectStore, segment: Segment) -> bytes:
    return read_verified(
        objects, segment.key, segment.sha256, SEGMENT_BYTES_MAX, size_bytes=segment.size_bytes
    )


def stream_of(data: bytes | memoryview) -> memoryview:
    """A segment's Arrow stream, which matches its trailer, without a copy. Raises CorruptSegment."""
    stream, trailer = _parted(data)
    rows = trailer["rows"]
    if trailer["crc32"] != zlib.crc32(stream):  # before Arrow decodes it
        raise CorruptSegment("A segment's checksum does not match: it is damaged.")
    if table_of(stream).num_rows != rows:
        raise CorruptSegment("A segment has other rows than its trailer says: it is damaged.")
    return stream


def _parted(data: bytes | memoryview) -> tuple[memoryview, JsonObject]:
    """Returns the bytes before the trailer's line, and the trailer. Raises CorruptSegment."""
    last = bytes(data[-TRAILER_BYTES_MAX:])
    line = last[last.rfind(b"\n", 0, len(last) - last.endswith(b"\n")) + 1 :]
    try:
        trailer = json.loads(line)
        before = memoryview(data)[: max(0, len(data) - len(line) - 1)]
        return before, {"rows": int(trailer["rows"]), "crc32": int(trailer["crc32"])}
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptSegment("A segment has no trailer: it is truncated or is none.") from error


def table_of(stream: memoryview) -> "pa.Table":
    """The stream's columns, without a copy of its buffers. Raises CorruptSegment."""
    import pyarrow as pa

    try:
        return pa.ipc.open_stream(pa.py_buffer(stream)).read_all()
    except pa.ArrowException as error:
        raise CorruptSegment(f"A segment is not in Arrow's format: {error}") from error


def head_of(schema: "pa.Schema") -> ShardHead:
    about: Mapping[str, Any] = json.loads(schema.metadata[_HEAD])
    return ShardHead(**{**about, "priority": PriorityClass(about["priority"])})


def decode_table(table: "pa.Table", heads: Sequence[ShardHead]) -> list[RowResult]:
    """The results of a segment's columns; `heads` has one for each row, all for one endpoint."""
    if not heads:
        return []
    columns = endpoints.get(heads[0].endpoint).columns
    values = [_cells(table, value_column(name), type) for name, type in columns.items()]
    usage = [table.column(name).to_pylist() for name in _USAGE]
    usage.append([count or 0 for count in _optional(table, REASONING_TOKENS)])
    return [
        RowResult(
            shard=head,
            row=row,
            custom_id=custom_id,
            status_code=status_code,
            usage=Usage(*counts),
            values=dict(zip(columns, cells, strict=True)),
            body_text=body,
            kept=kept,
            digest=digest,
            is_reused=bool(is_reused),
        )
        for head, row, custom_id, status_code, counts, body, kept, digest, is_reused, cells in zip(
            heads,
            table.column("row").to_pylist(),
            _cells(table, "custom_id", ColumnType.TEXT),
            table.column("status_code").to_pylist(),
            zip(*usage, strict=True),
            _cells(table, "body", ColumnType.TEXT),
            kept_texts(table),
            _optional(table, DIGEST),
            _optional(table, REUSED),
            zip(*values, strict=True),
            strict=True,
        )
    ]


def kept_texts(table: "pa.Table") -> list[str | None]:
    """Returns the columns kept of each row's input, as JSON."""
    return _cells(table, _KEPT, ColumnType.TEXT)


def _optional(table: "pa.Table", name: str) -> list[Any]:
    return table.column(name).to_pylist() if name in table.column_names else [None] * table.num_rows


def _cells(table: "pa.Table", name: str, type: ColumnType) -> list[Any]:
    if name not in table.column_names:  # this job's rows do not have it
        return [None] * table.num_rows
    cells = table.column(name).to_pylist()
    if type is not ColumnType.TEXT:
        return list(cells)
    return [None if cell is None else cell.decode("utf-8", "surrogatepass") for cell in cells]


def _texts(texts: Iterable[str | None]) -> "pa.Array":
    """JSON may have lone surrogates, which are no UTF-8."""
    return _cells_of([None if text is None else text.encode("utf-8", "surrogatepass") for text in texts])


def _cells_of(cells: Sequence[bytes | None]) -> "pa.Array":
    """Makes an array of its exact size at once: one that grows is copied again and again."""
    import numpy as np
    import pyarrow as pa

    offsets = np.zeros(len(cells) + 1, np.int64)
    np.cumsum([0 if cell is None else len(cell) for cell in cells], out=offsets[1:])
    data = pa.py_buffer(b"".join(cell or b"" for cell in cells))
    is_valid = None
    if None in cells:
        is_valid = pa.array([cell is not None for cell in cells], pa.bool_()).buffers()[1]
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(cells), [is_valid, pa.py_buffer(offsets), data]
    )


def value_column(name: str) -> str:
    """Returns the name of an endpoint's column in a segment."""
    return f"value.{name}"
