"""Rows and input objects of all formats."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject


class InputFormat(StrEnum):
    JSONL = "jsonl"
    JSONL_GZ = "jsonl.gz"
    CSV = "csv"
    PARQUET = "parquet"


_SUFFIXES: Final = {  # longest suffix first
    ".jsonl.gz": InputFormat.JSONL_GZ,
    ".ndjson.gz": InputFormat.JSONL_GZ,
    ".jsonl": InputFormat.JSONL,
    ".ndjson": InputFormat.JSONL,
    ".json": InputFormat.JSONL,
    ".csv": InputFormat.CSV,
    ".parquet": InputFormat.PARQUET,
}


class UnreadableInput(InvalidRequest):
    """An input object is not in the format its name says. Permanent."""

    default_code = "unreadable_input"


def format_of(key: str) -> InputFormat:
    """The format by the object's name; JSONL without a suffix, as in a file id.

    Raises UnreadableInput for another suffix.
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
    """A record. `index` counts from 0 in its shard."""

    index: int
    data: JsonObject


@dataclass(frozen=True, slots=True)
class BadRow:
    """An unreadable row, which counts and gets an error line."""

    index: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A Parquet row group."""

    rows: int
    size_bytes: int  # uncompressed


@dataclass(frozen=True, kw_only=True, slots=True)
class InputObject:
    """An object of a job's input."""

    uri: str
    format: InputFormat
    size_bytes: int
    row_count: int | None = None  # exact: from a footer or a validation
    rows_estimated: int | None = None  # from a sample of the first bytes
    row_groups: tuple[RowGroup, ...] = ()  # of a Parquet object
    etag: str | None = None  # None: not checked
