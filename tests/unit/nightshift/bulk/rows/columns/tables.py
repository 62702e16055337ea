"""Objects of Parquet and Arrow, and the rows that are read of them."""

import io
from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.bulk.rows.inputs import BadRow, Row, iter_rows
from nightshift.jobs import NewShard
from nightshift.objectstore import ObjectStore


def parquet(table: pa.Table, row_group_size: int = 1000, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=row_group_size, **options)
    return sink.getvalue()


def stream(table: pa.Table, batch_rows: int = 1000, **options: Any) -> bytes:
    """As `Dataset.save_to_disk` writes `data-00000-of-00001.arrow`."""
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


def rows_of(
    store: ObjectStore,
    content: bytes,
    format: str = "arrow",
    *,
    line_bytes_max: int = 10_000,
    columns: Collection[str] | None = None,
    start: int = 0,
    end: int | None = None,
) -> list[Row | BadRow]:
    store.put("k", content)
    shard = NewShard(shard_no=0, uri="k", format=format, start=start, end=end)
    return list(iter_rows(store, "k", shard, line_bytes_max=line_bytes_max, columns=columns))


def data(rows: list[Row | BadRow]) -> list[Any]:
    return [row.data if isinstance(row, Row) else row.code for row in rows]
