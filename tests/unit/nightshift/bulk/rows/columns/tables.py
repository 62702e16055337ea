"""Objects of Parquet and Arrow, shards of them, and the rows that are read of these."""

import io
from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.bulk.rows.inputs import BadRow, Row, iter_rows
from nightshift.jobs import JobSpec, NewShard
from nightshift.objectstore import ObjectStore


def parquet(table: pa.Table, row_group_size: int = 1000, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=row_group_size, **options)
    return sink.getvalue()


def stream(table: pa.Table, batch_rows: int = 1000, **options: Any) -> bytes:
    """The same as `Dataset.save_to_disk` writes `data-00000-of-00001.arrow`."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, batch_rows)
    return sink.getvalue()


def file(table: pa.Table, batch_rows: int = 1000, **options: Any) -> bytes:
    """As Feather is, too."""
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, batch_rows)
    return sink.getvalue()


def zstd(content: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(content, asbytes=True))


def a_shard(format: str = "jsonl", uri: str = "s3://b/k", **overrides: Any) -> NewShard:
    """A shard with all of an object."""
    return NewShard(**{"shard_no": 0, "uri": uri, "format": format, "start": 0, "end": None, **overrides})


def a_job(**spec: Any) -> JobSpec:
    return JobSpec(**{"endpoint": "/v1/chat/completions", "completion_window_s": 60, **spec})


def rows_of(
    store: ObjectStore,
    content: bytes,
    format: str = "arrow",
    *,
    line_bytes_max: int = 10_000,
    columns: Collection[str] | None = None,
    separator: str | None = None,
    **shard: Any,
) -> list[Row | BadRow]:
    store.put("k", content)
    shard_of_rows = a_shard(format, "k", **shard)
    options = {"line_bytes_max": line_bytes_max, "columns": columns, "separator": separator}
    return list(iter_rows(store, "k", shard_of_rows, **options))


def data(rows: Sequence[Row | BadRow]) -> list[Any]:
    return [row.data if isinstance(row, Row) else row.code for row in rows]
