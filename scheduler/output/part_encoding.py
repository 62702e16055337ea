"""A part file's bytes: the lines as they are, or as rows of a Parquet file.

    custom_id  outcome  status_code  error_code  error_message  prompt_tokens  completion_tokens
    + the endpoint's own columns, such as text or embedding
    + body, the whole answer as JSON, wherever the columns do not say it all

The same lines give the same bytes.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final

from nightshift.endpoints import Endpoint
from nightshift.endpoints.endpoint import ColumnType
from nightshift.jobs import JsonObject
from scheduler.output.results import ResultLine

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_ROWS: Final = 1000  # held in memory at a time
SPOOL_BYTES: Final = 16 * 1024 * 1024  # of a Parquet file in memory; more go to a temporary file
CHUNK_BYTES: Final = 1024 * 1024
PARQUET: Final = "parquet"

Record = dict[str, Any]


def encoded(lines: Iterator[ResultLine], format: str, endpoint: Endpoint) -> Iterator[bytes]:
    """The bytes of a part file, in pieces. `format` is jsonl or parquet."""
    if format != PARQUET:
        return (line.data for line in lines)
    return _parquet(lines, endpoint)


def _parquet(lines: Iterator[ResultLine], endpoint: Endpoint) -> Iterator[bytes]:
    # pyarrow takes half a second to load, and few processes write Parquet.
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(endpoint)
    with SpooledTemporaryFile(max_size=SPOOL_BYTES) as spool:
        with pq.ParquetWriter(spool, schema) as writer:
            while group := [record(line, endpoint) for line in islice(lines, ROW_GROUP_ROWS)]:
                writer.write_table(pa.Table.from_pylist(group, schema=schema))
        spool.seek(0)
        yield from _chunks(spool)


def record(line: ResultLine, endpoint: Endpoint) -> Record:
    """One line as a row of the table. Pure."""
    row = json.loads(line.data)
    response = row["response"] or {}
    body: JsonObject = response.get("body") or {}
    error = row["error"] or body.get("error") or {}
    values = endpoint.values(body)
    vectors = {name for name, type in endpoint.columns.items() if type is ColumnType.FLOATS}
    says_all = any(values[name] is not None for name in vectors)
    return {
        "custom_id": row["custom_id"],
        "outcome": row["outcome"],
        "status_code": response.get("status_code"),
        "error_code": error.get("code"),
        "error_message": error.get("message"),
        "prompt_tokens": line.prompt_tokens,
        "completion_tokens": line.completion_tokens,
        **{name: _cell(value) for name, value in values.items()},
        "body": None if says_all or not body else _json_text(body),
    }


def _cell(value: str | bytes | None) -> object:
    return memoryview(value).cast("f").tolist() if isinstance(value, bytes) else value


def _json_text(body: JsonObject) -> str:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def _schema(endpoint: Endpoint) -> "pa.Schema":
    import pyarrow as pa

    types = {ColumnType.TEXT: pa.string(), ColumnType.FLOATS: pa.list_(pa.float32())}
    return pa.schema(
        [
            ("custom_id", pa.string()),
            ("outcome", pa.string()),
            ("status_code", pa.int32()),
            ("error_code", pa.string()),
            ("error_message", pa.string()),
            ("prompt_tokens", pa.int64()),
            ("completion_tokens", pa.int64()),
            *((name, types[type]) for name, type in endpoint.columns.items()),
            ("body", pa.string()),
        ]
    )


def _chunks(file: IO[bytes]) -> Iterable[bytes]:
    return iter(lambda: file.read(CHUNK_BYTES), b"")
