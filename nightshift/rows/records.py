"""What the readers of all formats speak of: rows, good and bad, and the objects they lie in. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject


class InputFormat(StrEnum):
    """How rows are written down."""

    JSONL = "jsonl"
    JSONL_GZ = "jsonl.gz"
    CSV = "csv"
    PARQUET = "parquet"


_SUFFIXES: Final = {  # longer before shorter
    ".jsonl.gz": InputFormat.JSONL_GZ,
    ".ndjson.gz": InputFormat.JSONL_GZ,
    ".jsonl": InputFormat.JSONL,
    ".ndjson": InputFormat.JSONL,
    ".json": InputFormat.JSONL,
    ".csv": InputFormat.CSV,
    ".parquet": InputFormat.PARQUET,
}


class UnreadableInput(InvalidRequest):
    """An input object is not what its name says it is. No retry mends it."""

    default_code = "unreadable_input"


def format_of(key: str) -> InputFormat:
    """By the object's name. A name that says nothing, such as an uploaded file's id, is JSONL.

    Raises UnreadableInput for a name that says something else.
    """
    name = key.rpartition("/")[2].lower()
    for suffix, format in _SUFFIXES.items():
        if name.endswith(suffix):
            return format
    if "." not in name:
        return InputFormat.JSONL
    raise UnreadableInput(f"{name!r} has none of the endings that are understood: {', '.join(_SUFFIXES)}.")


@dataclass(frozen=True, slots=True)
class Row:
    """One record. `index` counts from 0 in its shard."""

    index: int
    data: JsonObject


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be read, and why. It is a row all the same, and gets its error line."""

    index: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A part of a Parquet object that can be read by itself."""

    rows: int
    size_bytes: int  # uncompressed


@dataclass(frozen=True, kw_only=True, slots=True)
class InputObject:
    """One object of a job's input, as far as it must be known to cut it into shards."""

    uri: str
    format: InputFormat
    size_bytes: int
    row_count: int | None = None  # exact; only where a footer or a validation says so
    rows_estimated: int | None = None  # from a sample of the first bytes
    row_groups: tuple[RowGroup, ...] = ()  # of a Parquet object
    etag: str | None = None  # of the object that was looked at; None: any under this name will do
