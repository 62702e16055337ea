"""Rows and input objects of all formats."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject, ShardObject


class Layout(StrEnum):
    """The layout of rows in an object once it is unpacked."""

    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"
    ARROW = "arrow"
    IMAGE = "image"  # the object is the one row
    IMAGES = "images"  # … and the shard has many


class Compression(StrEnum):
    NONE = ""
    GZIP = "gz"
    ZSTD = "zst"


class InputFormat(StrEnum):
    """A layout and, behind a dot, a compression."""

    JSONL = "jsonl"
    JSONL_GZ = "jsonl.gz"
    JSONL_ZST = "jsonl.zst"
    CSV = "csv"
    CSV_GZ = "csv.gz"
    CSV_ZST = "csv.zst"
    TSV = "tsv"
    TSV_GZ = "tsv.gz"
    TSV_ZST = "tsv.zst"
    PARQUET = "parquet"
    ARROW = "arrow"
    IMAGE = "image"
    IMAGES = "images"  # of shards alone: no object has it

    @property
    def is_of_images(self) -> bool:
        return self in (InputFormat.IMAGE, InputFormat.IMAGES)

    @property
    def layout(self) -> Layout:
        return Layout(self.partition(".")[0])

    @property
    def compression(self) -> Compression:
        return Compression(self.partition(".")[2])

    @property
    def delimiter(self) -> str | None:
        """The character between the values of a record; None for other layouts."""
        return {Layout.CSV: ",", Layout.TSV: "\t"}.get(self.layout)


_ENDINGS: Final = {"jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl", "csv": "csv", "tsv": "tsv"}
_SUFFIXES: Final = (
    {
        f".{ending}{packed}": InputFormat(f"{layout}{packed}")
        for packed in (".gz", ".zst", "")
        for ending, layout in _ENDINGS.items()
    }
    | {
        ".parquet": InputFormat.PARQUET,
        ".arrow": InputFormat.ARROW,
        ".arrows": InputFormat.ARROW,
        ".feather": InputFormat.ARROW,
    }
    | dict.fromkeys((".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"), InputFormat.IMAGE)
)


class UnreadableInput(InvalidRequest):
    """An input object is not in the format its name says. Permanent."""

    default_code = "unreadable_input"


def format_of(key: str) -> InputFormat:
    """The format by the object's name; JSONL without a suffix, as in a file id.

    Raises UnreadableInput for another suffix.
    """
    name = key.rstrip("/").rpartition("/")[2].lower()  # S3's keys may end with a slash
    for suffix, format in _SUFFIXES.items():
        if name.endswith(suffix):
            return format
    if "." not in name:
        return InputFormat.JSONL
    raise UnreadableInput(
        f"{key!r} has none of the endings that are understood: {', '.join(_SUFFIXES)}. "
        "Say by 'input_format' (--input-format) what it is, or, if it is not to be read, name the others by "
        "a pattern, such as 'docs/*.jsonl'."
    )


@dataclass(slots=True)  # one for each row: frozen ones take longer to make
class Row:
    """A record. `index` counts from 0 in its shard."""

    index: int
    data: JsonObject
    object: ShardObject | None = None  # that is the row; None: it is one of several in its object


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
    is_whole: bool = False  # whether it is one shard whatever its size, as it cannot be entered in the middle
    file_bytes: int = 0  # of an image's file: `size_bytes` is what it counts for
