"""Recognises an object by its first bytes, whatever its name says: how it is read, or why not. Pure.

Planning, dry runs, workers and batch files all say it in these words.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nightshift.bulk.rows.records import Compression, UnreadableInput

HEAD_BYTES: Final = 4096  # looked at

_PACKED: Final = {b"\x1f\x8b": Compression.GZIP, b"\x28\xb5\x2f\xfd": Compression.ZSTD}
_ENCODINGS: Final = {  # by their byte order marks, the longer ones first
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
_UTF8_MARK: Final = b"\xef\xbb\xbf"
_OR_SAY: Final = ", or say what it is by 'input_format'"
_UNPACK: Final = "unpack it, or pack it by gzip or zstd"
_FOREIGN: Final = (
    (b"PAR1", f"Parquet: give it a name that ends in .parquet{_OR_SAY}"),
    (b"ARROW1", f"Arrow IPC: give it a name that ends in .arrow{_OR_SAY}"),
    (b"FEA1", "Feather of version 1: write version 2, which is Arrow IPC"),
    (b"\xff\xff\xff\xff", f"Arrow IPC: give it a name that ends in .arrow{_OR_SAY}"),
    (b"BZh", f"packed by bzip2: {_UNPACK}"),
    (b"\xfd7zXZ\0", f"packed by xz: {_UNPACK}"),
    (b"\x04\x22\x4d\x18", f"packed by lz4: {_UNPACK}"),
    (b"7z\xbc\xaf\x27\x1c", f"a 7z archive: {_UNPACK}"),
    (
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "an old Office file, such as an .xls workbook: save it as CSV in UTF-8",
    ),
    (b"%PDF-", "a PDF document: extract its text"),
    (b"SQLite format 3\0", "an SQLite database: export a table"),
    (b"Obj\x01", "Avro: write it as Parquet"),
    (b"ORC", "ORC: write it as Parquet"),
    (b"\x89HDF\r\n", "HDF5: write it as Parquet"),
    (b"\x89PNG\r\n", f"an image: give it a name that ends in .png{_OR_SAY}"),
    (b"\xff\xd8\xff", f"an image: give it a name that ends in .jpg{_OR_SAY}"),
    (b"version https://git-lfs.", "a pointer of Git LFS and not the data: fetch these"),
)
_PAGE: Final = re.compile(rb"\s*<(!doctype html|html|\?xml|error>)", re.IGNORECASE)
_ARRAY_BEGINS: Final = re.compile(rb"\s*\[\s*")
_VALUE: Final = re.compile(rb'(?:null|true|false|[-0-9.eE+]+|"[^"\\]*+(?:\\.[^"\\]*+)*")\s*,\s*', re.DOTALL)
_OBJECT_OR_END: Final = re.compile(rb"\{|\]\s*\Z")
_CONTROL: Final = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")
_NULS_OF_UTF16: Final = 0.3  # of all bytes: Latin text has a NUL in every second one
SEPARATORS: Final = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}


@dataclass(frozen=True)
class Content:
    """The storage of an object's text: its layout and compression."""

    compression: Compression
    encoding: str  # as Python's codecs are called
    is_array: bool  # of JSON

    @property
    def is_plain(self) -> bool:
        """Whether it can be entered in the middle: lines of UTF-8, as they are."""
        return self == PLAIN


PLAIN: Final = Content(Compression.NONE, "utf-8", is_array=False)


def content_of(head: bytes, named: Compression) -> Content:
    """Tells from its first bytes how the text is stored.

    `named`: the compression in the object's name, which counts where they show neither another one nor text.

    Raises `UnreadableInput` for what is no text.
    """
    shown = next((kind for magic, kind in _PACKED.items() if head.startswith(magic)), None)
    if head and shown is None and named is Compression.GZIP and not _is_text(head):
        name = content_name(head)
        raise UnreadableInput(
            f"It is named as gzip, and is {'damaged, or something else' if name is None else name}."
        )
    compression = shown or (Compression.NONE if _is_text(head) else named)
    if compression is not Compression.NONE:
        return Content(compression, "utf-8", is_array=False)  # of the text nothing is known yet
    encoding = encoding_of(head)
    if encoding is not None:
        return Content(compression, encoding, is_array=False)
    foreign = foreign_content(head)
    if foreign is not None:
        raise UnreadableInput(f"It is {foreign}.")
    return Content(compression, "utf-8", _is_array(head.removeprefix(_UTF8_MARK)))


def _is_array(head: bytes) -> bool:
    """Whether data begin an array with an object in it: a line of JSON may be an array of other values."""
    passed = _ARRAY_BEGINS.match(head)
    if passed is None:
        return False
    while (value := _VALUE.match(head, passed.end())) is not None:
        passed = value
    return _OBJECT_OR_END.match(head, passed.end()) is not None


def encoding_of(head: bytes) -> str | None:
    """The encoding that a byte order mark names, other than UTF-8."""
    return next((name for mark, name in _ENCODINGS.items() if head.startswith(mark)), None)


def content_name(head: bytes) -> str | None:
    """The name of data for a reader of another format, with what to do about them. None: they are unknown."""
    packed = next((kind for magic, kind in _PACKED.items() if head.startswith(magic)), None)
    if packed is not None:
        return f"packed by {packed.name.lower()}: unpack it"
    if encoding_of(head) is not None:
        return "UTF-16 or UTF-32 text: save it as UTF-8"
    foreign = foreign_content(head)
    if foreign is not None:
        return foreign
    if _is_text(head):
        return f"text: give it a name that ends in .jsonl, .csv or .tsv{_OR_SAY}"
    return None


def why_unreadable(error: Exception, head: bytes, own: tuple[bytes, ...]) -> str:
    """The reason why an object of columns cannot be read: what it is instead, if that is known, else the
    error. `own`: how its format begins.
    """
    name = None if head.startswith(own) else content_name(head)
    if name is not None:
        return f"It is {name}."
    return error.message if isinstance(error, UnreadableInput) else f"{str(error).rstrip('.')}."


def foreign_content(head: bytes) -> str | None:
    """The name of data that are no rows of text, with what to do about them."""
    if head.startswith(b"PK\x03\x04"):
        is_workbook = b"[Content_Types].xml" in head or b"xl/" in head
        return "an Excel workbook: save it as CSV in UTF-8" if is_workbook else f"a ZIP archive: {_UNPACK}"
    for magic, name in _FOREIGN:
        # Letters may also begin a text, such as a header's `ORCID`.
        if head.startswith(magic) and not (magic.isalnum() and _is_text(head)):
            return name
    if head[257:262] == b"ustar":
        return "a tar archive: unpack it"
    if _PAGE.match(head):
        return "a web page or XML, perhaps the answer to a failed download: fetch the data again"
    return _with_nuls(head)


def line_hint(line: bytes, error: Exception | None = None) -> str | None:
    """The reason why a line is no JSON object, as the end of a sentence about it. `error`: of its parser."""
    head = line[:HEAD_BYTES]
    name = foreign_content(head) if _is_utf8(head) else content_name(head)
    if name is not None:
        return f"it is {name}"
    if b"\0" in line:
        return f"its byte {line.index(0) + 1} is NUL: it is binary, or was not written to its end"
    return _json_hint(line.removeprefix(_UTF8_MARK).strip(), error)


def separator_hint(names: Sequence[str], delimiter: str) -> str:
    """A sentence about a CSV that seems to have one column, with the likely separator, or to be JSON; else
    empty.
    """
    if len(names) != 1 or json_hint(names[0]):
        return json_hint("".join(names[:1]))
    others = [mark for mark in SEPARATORS if mark != delimiter and mark in names[0]]
    if not others:
        return ""
    likely = max(others, key=names[0].count)
    return (
        f" The separator seems to be {SEPARATORS[likely]}, and {SEPARATORS[delimiter]} is read: "
        "say which it is by 'separator' (--separator)."
    )


def json_hint(header: str) -> str:
    """A sentence about a CSV's header that is a line of JSON; else empty."""
    is_json = header.lstrip().startswith(("{", "[{"))
    return f" It seems to be JSON: give it a name that ends in .jsonl{_OR_SAY}." if is_json else ""


def wrapping_hint(record: Mapping[str, Any]) -> str:
    """A sentence about an object of which one field is a list of objects, which seem to be the rows; else
    empty.
    """
    lists = (name for name, value in record.items() if isinstance(value, list) and value)
    name = next((name for name in lists if all(isinstance(item, dict) for item in record[name])), None)
    if name is None:
        return ""
    return f" If the rows are the objects in '{name}', store that list alone, or each object on a line."


def _json_hint(text: bytes, error: Exception | None) -> str | None:
    if text.startswith(b"["):
        return "it is a JSON array, or begins one: write each object on a line of its own"
    if text.startswith(b"{'"):
        return "it is a Python dict, not JSON: texts need double quotes"
    if text.startswith(b"{"):
        return _object_hint(error)
    if not text.startswith((b'"', b"}", b"]")) and any(mark.encode() in text for mark in SEPARATORS):
        return f"it may be CSV: give the object a name that ends in .csv or .tsv{_OR_SAY}"
    return None


def _object_hint(error: Exception | None) -> str | None:
    if not isinstance(error, json.JSONDecodeError):
        return None
    if error.msg == "Extra data":
        return f"a second value begins at character {error.pos + 1}: write each object on a line of its own"
    is_open = not error.doc[error.pos :].strip() or error.msg.startswith("Unterminated string")
    return (
        "the object goes on after the line, or is cut short: write each object on one line"
        if is_open
        else None
    )


def _with_nuls(head: bytes) -> str | None:
    if 0 not in head:
        return None
    fewer, more = sorted((head[::2].count(0), head[1::2].count(0)))
    if more >= _NULS_OF_UTF16 * len(head) and fewer < more / 4:
        return "UTF-16 text without a byte order mark: save it as UTF-8"
    if head.startswith(b"\0"):
        return "full of NUL bytes at its beginning: it is binary, or was not written to its end"
    return None if _is_utf8(head) else f"binary data: its byte {head.index(0) + 1} is NUL"


def _is_text(head: bytes) -> bool:
    return _is_utf8(head) and _CONTROL.search(head) is None


def _is_utf8(head: bytes) -> bool:
    """Whether data that may be cut within a character are UTF-8."""
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return bool(head)
