"""The bytes of a part file: lines of JSON, or rows of a Parquet file.

    custom_id  outcome  status_code  error_code  error_message  prompt_tokens  completion_tokens
    + the endpoint's own columns, such as text or embedding
    + body, the whole answer as JSON, if it is asked for
    + columns of the input, if they are to be kept

Good and failed rows have the same schema. The same rows give the same bytes.
"""

import io
import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nightshift.bulk.results.output_rows import Chunk, Missing
from nightshift.bulk.results.part_columns import kept_columns, names_in_part
from nightshift.bulk.results.row_results import RowResult
from nightshift.bulk.results.segments import REUSED, kept_texts, value_column
from nightshift.bulk.results.shard_results import Window
from nightshift.endpoints import Endpoint
from nightshift.endpoints.endpoint import ColumnType
from nightshift.endpoints.results import TRUNCATED, count_bytes, count_of
from nightshift.jobs import JsonObject
from nightshift.jobs.options import KeepColumns

PARQUET: Final = "parquet"
ROW_GROUP_BYTES: Final = 4 * 1024 * 1024  # as Arrow holds them
COMPRESSION: Final = "zstd"  # not for vectors, which it does not make smaller
FLOAT_BYTES: Final = 4


@dataclass
class Tally:
    """Counts of rows. One that was never run counts as failed."""

    rows: int = 0
    succeeded: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reused: int = 0  # rows with the result of another one
    truncated: int = 0  # rows with inputs that were cut
    unlisted: int = 0  # rows that were not run, and have no line

    @property
    def failed(self) -> int:
        return self.rows - self.succeeded

    def count(self, chunk: Chunk) -> None:
        self.rows += len(chunk.missing) + chunk.unlisted
        self.unlisted += chunk.unlisted
        if (window := chunk.window) is None:
            return
        self.rows += window.table.num_rows
        self.succeeded += pc.sum(pc.less(window.table.column("status_code"), 400)).as_py() or 0
        self.prompt_tokens += pc.sum(window.table.column("prompt_tokens")).as_py() or 0
        self.completion_tokens += pc.sum(window.table.column("completion_tokens")).as_py() or 0
        if REUSED in window.table.column_names:
            self.reused += pc.sum(window.table.column(REUSED)).as_py() or 0
        if (name := value_column(TRUNCATED)) in window.table.column_names:
            is_cut = pc.not_equal(window.table.column(name), pa.scalar(count_bytes(0), pa.large_binary()))
            self.truncated += pc.sum(is_cut).as_py() or 0


class PartEncoder(ABC):
    """Rows in, bytes out."""

    def __init__(self) -> None:
        self.tally = Tally()

    def add(self, chunk: Chunk) -> list[bytes]:
        """The bytes that are done, in pieces."""
        self.tally.count(chunk)
        return self._add(chunk)

    @abstractmethod
    def end(self) -> list[bytes]:
        """The last bytes."""

    @abstractmethod
    def _add(self, chunk: Chunk) -> list[bytes]: ...


class JsonlEncoder(PartEncoder):
    def _add(self, chunk: Chunk) -> list[bytes]:
        return [b"".join(line for _, line in lines(chunk, native=True))]

    def end(self) -> list[bytes]:
        return []


class ParquetEncoder(PartEncoder):
    def __init__(self, schema: "PartSchema") -> None:
        super().__init__()
        self._schema = schema
        self._sink = _Sink()
        vectors = {f"{name}.list.element" for name in schema.vectors}
        paths = {path for name in schema.arrow.names for path in _leaves(schema, name)}
        self._writer = pq.ParquetWriter(
            self._sink,
            schema.arrow,
            compression={path: "none" if path in vectors else COMPRESSION for path in paths},
            use_dictionary=sorted(paths - vectors),
            write_statistics=sorted(paths - vectors),
        )
        self._held: list[pa.Table] = []
        self._held_bytes = 0

    def _add(self, chunk: Chunk) -> list[bytes]:
        table = self._schema.table(chunk)
        if table.num_rows:
            self._held.append(table)
            self._held_bytes += table.nbytes
        if self._held_bytes >= ROW_GROUP_BYTES:
            self._write()
        return self._sink.taken()

    def end(self) -> list[bytes]:
        self._write()
        self._writer.close()
        return self._sink.taken()

    def _write(self) -> None:
        if self._held:
            table = pa.concat_tables(self._held)
            self._writer.write_table(table, row_group_size=table.num_rows)
        self._held, self._held_bytes = [], 0


@dataclass(frozen=True)
class PartSchema:
    """The schema of every part of a job."""

    endpoint: Endpoint
    dimensions: int | None = None  # a vector's; None: not known, or not one
    keeps_body: bool = False
    vector_type: str = "float32"  # or float16
    keep_columns: KeepColumns | None = None

    @property
    def vectors(self) -> Sequence[str]:
        """The columns of vectors that have one size."""
        fixed = self.endpoint.columns if self.dimensions is not None else {}
        return [name for name, type in fixed.items() if type is ColumnType.FLOATS]

    @property
    def arrow(self) -> pa.Schema:
        kept = names_in_part(self.keep_columns, self._ours)
        return pa.schema([*self._ours.items(), *((name, pa.string()) for name in kept)])

    @property
    def _ours(self) -> Mapping[str, pa.DataType]:
        return {
            "custom_id": pa.string(),
            "outcome": pa.string(),
            "status_code": pa.int32(),
            "error_code": pa.string(),
            "error_message": pa.string(),
            "prompt_tokens": pa.int64(),
            "completion_tokens": pa.int64(),
            **{name: self._type(type) for name, type in self.endpoint.columns.items()},
            **({"body": pa.string()} if self.keeps_body else {}),
        }

    def table(self, chunk: Chunk) -> pa.Table:
        """The chunk's rows, by row."""
        tables = [] if chunk.window is None else [self._results(chunk.window)]
        if not chunk.missing:
            return pa.concat_tables([*tables, self.arrow.empty_table()])
        tables.append(self._missing(chunk.missing))
        rows = [*(() if chunk.window is None else chunk.window.rows), *(row.row for row in chunk.missing)]
        return pa.concat_tables(tables).take(pc.sort_indices(pa.array(rows, pa.int64())))

    def _type(self, type: ColumnType) -> pa.DataType:
        if type is ColumnType.TEXT:
            return pa.string()
        if type is ColumnType.FLOAT:
            return pa.float32()
        if type is ColumnType.COUNT:
            return pa.int32()
        number = pa.float16() if self.vector_type == "float16" else pa.float32()
        return pa.list_(number, -1 if self.dimensions is None else self.dimensions)

    def _results(self, window: Window) -> pa.Table:
        table = window.table
        succeeded = pc.less(table.column("status_code"), 400)
        columns: dict[str, Any] = {
            "custom_id": _text(table.column("custom_id")),
            "outcome": pc.if_else(succeeded, "succeeded", "errored"),
            "status_code": table.column("status_code").cast(pa.int32()),
        }
        columns |= _errors(window, succeeded)
        for name in ("prompt_tokens", "completion_tokens"):
            columns[name] = table.column(name)
        for name, type in self.endpoint.columns.items():
            columns[name] = self._column(type, _cells(table, value_column(name)))
        if self.keeps_body:
            bodies = [result.with_body().body_text for result in window.results()]
            columns["body"] = pa.array(bodies, pa.string())
        columns |= kept_columns(self.keep_columns, self._ours, kept_texts(table))
        return pa.Table.from_pydict(columns, self.arrow)

    def _column(self, type: ColumnType, cells: pa.ChunkedArray) -> Any:
        match type:
            case ColumnType.TEXT:
                return _text(cells)
            case ColumnType.FLOAT:
                return pa.array(map(_float_of, cells.to_pylist()), pa.float32())
            case ColumnType.FLOATS:
                return self._floats(cells)
            case ColumnType.COUNT:
                return pa.array(map(_count_of, cells.to_pylist()), pa.int32())

    def _missing(self, missing: Sequence[Missing]) -> pa.Table:
        columns: dict[str, Any] = {name: pa.nulls(len(missing), type) for name, type in _fields(self.arrow)}
        results = [row.said for row in missing]
        columns["custom_id"] = pa.array([_valid(result.custom_id) for result in results], pa.string())
        columns["outcome"] = pa.array([result.outcome for result in results], pa.string())
        columns["error_code"] = pa.array([result.problem.code for result in results], pa.string())
        columns["error_message"] = pa.array([result.problem.message for result in results], pa.string())
        for name in ("prompt_tokens", "completion_tokens"):
            columns[name] = pa.array([0] * len(results), pa.int64())
        columns |= kept_columns(self.keep_columns, self._ours, (result.kept for result in results))
        return pa.Table.from_pydict(columns, self.arrow)

    def _floats(self, cells: pa.ChunkedArray) -> pa.ChunkedArray:
        """Vectors, from their bytes. Those of another size than the model's are left out."""
        type = self._type(ColumnType.FLOATS)
        return pa.chunked_array([self._vectors(chunk, type) for chunk in cells.chunks], type)

    def _vectors(self, cells: pa.Array, type: pa.DataType) -> pa.Array:
        """The vectors as fixed-size lists; without a copy where all have the model's size."""
        if self.dimensions is None:
            return _lists(cells).cast(type)
        size = self.dimensions * FLOAT_BYTES
        fits = pc.fill_null(pc.equal(pc.binary_length(cells), size), False)
        others: pa.Array | None = None
        if not pc.all(fits).as_py():
            others = pc.invert(fits)
            cells = pc.if_else(fits, cells, pa.scalar(bytes(size), pa.large_binary()))
        _, offsets, data = cells.buffers()
        start = int.from_bytes(memoryview(offsets)[8 * cells.offset :][:8], "little")
        count = len(cells) * self.dimensions
        values = pa.Array.from_buffers(pa.float32(), count, [None, data.slice(start, count * FLOAT_BYTES)])
        values = values.cast(type.value_type)
        return pa.FixedSizeListArray.from_arrays(values, type=type, mask=others)


def part_encoder(format: str, schema: PartSchema) -> PartEncoder:
    """`format`: jsonl or parquet."""
    return ParquetEncoder(schema) if format == PARQUET else JsonlEncoder()


def lines(chunk: Chunk, *, native: bool) -> Sequence[tuple[int, bytes]]:
    """The line of each row, by row."""
    results = [] if chunk.window is None else chunk.window.results()
    done = ((result.row, result.native_line() if native else result.openai_line()) for result in results)
    if not chunk.missing:
        return [*done]
    missing = (
        (row.row, row.said.native_line() if native else row.said.openai_line()) for row in chunk.missing
    )
    return [*merge(done, missing)]


def _errors(window: Window, succeeded: Any) -> dict[str, Any]:
    """The code and the message of each row that failed."""
    if pc.all(succeeded).as_py():
        nulls = pa.nulls(window.table.num_rows, pa.string())
        return {"error_code": nulls, "error_message": nulls}
    errors = [_error(result) for result in window.results()]
    return {
        "error_code": pa.array([error.get("code") for error in errors], pa.string()),
        "error_message": pa.array([_valid(error.get("message")) for error in errors], pa.string()),
    }


def _error(result: RowResult) -> JsonObject:
    if result.succeeded or result.body_text is None:
        return {}
    body = json.loads(result.body_text)
    error: JsonObject = body.get("error") or {}
    return error


def _text(cells: pa.ChunkedArray) -> Any:
    """JSON may have lone surrogates, which no text of Parquet can have: they are escaped."""
    try:
        return cells.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(map(_escaped, cells.to_pylist()), pa.string())


def _escaped(cell: bytes | None) -> str | None:
    return None if cell is None else _valid(cell.decode("utf-8", "surrogatepass"))


def _valid(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


def _lists(vectors: pa.Array) -> pa.Array:
    """Vectors of any sizes, over the bytes as they lie."""
    _, ends, data = vectors.buffers()
    offsets = pa.Array.from_buffers(pa.int64(), len(vectors) + 1, [None, ends], offset=vectors.offset)
    start, end = offsets[0].as_py(), offsets[-1].as_py()
    values = b"" if data is None else data.slice(start, end - start)
    floats = pa.Array.from_buffers(pa.float32(), (end - start) // FLOAT_BYTES, [None, pa.py_buffer(values)])
    counts = pc.divide(pc.subtract(offsets, start), FLOAT_BYTES).cast(pa.int32())
    return pa.ListArray.from_arrays(counts, floats, mask=vectors.is_null())


def _cells(table: pa.Table, name: str) -> pa.ChunkedArray:
    """All are null of a column that the endpoint got in a later release."""
    if name in table.column_names:
        return table.column(name)
    return pa.chunked_array([pa.nulls(table.num_rows, pa.large_binary())])


def _count_of(cell: bytes | None) -> int | None:
    return None if cell is None else count_of(cell)


def _float_of(number: bytes | None) -> float | None:
    return None if number is None else array("f", number)[0]


def _fields(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in schema]


def _leaves(schema: PartSchema, name: str) -> list[str]:
    is_list = schema.endpoint.columns.get(name) is ColumnType.FLOATS
    return [f"{name}.list.element"] if is_list else [name]


class _Sink(io.RawIOBase):
    """A file whose bytes are taken as they are written."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []
        self._end = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        self._end += len(self._pieces[-1])
        return len(self._pieces[-1])

    def tell(self) -> int:
        return self._end

    def taken(self) -> list[bytes]:
        pieces, self._pieces = self._pieces, []
        return pieces
