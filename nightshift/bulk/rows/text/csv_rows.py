"""Rows of CSV or TSV with double quotes and a header; every value is a string."""

import csv
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from nightshift.bulk.rows.contents import HEAD_BYTES, json_hint, separator_hint
from nightshift.bulk.rows.records import BadRow, Row, UnreadableInput
from nightshift.bulk.rows.templates import refuse_twice
from nightshift.bulk.rows.text.lines import BadLine, split_lines
from nightshift.bulk.rows.text.separators import SEPARATOR_LINE, with_separator
from nightshift.endpoints.containers import ENTRIES_MAX

_BLANK: Final = re.compile(rb"(?:\n++|\r\n){1,500}")  # one with spaces is a record


def csv_rows(
    chunks: Iterable[bytes],
    *,
    delimiter: str,
    line_bytes_max: int,
    columns: Collection[str] | None = None,
    separator: str | None = None,
) -> Iterator[Row | BadRow]:
    """The rows; an unreadable record is a `BadRow`. `columns`: those that are used, or parts of them; None:
    all. `separator`: as the job tells it; None: the format's `delimiter`, unless the records show another.
    Raises `UnreadableInput` for a header without names, or with one of these twice.

    A first line such as `sep=;` names the separator. Columns without a name are left out. An unclosed quote
    takes everything up to `line_bytes_max` with it, as one bad row. A blank line below a header of one column
    is a row with an empty value, as writers write a null; else it is skipped.
    """
    csv.field_size_limit(line_bytes_max)  # process-wide: the csv module has no other limit
    delimiter, chunks = with_separator(chunks, delimiter, separator)
    lines = _TextLines(chunks, line_bytes_max)
    records = csv.reader(lines, delimiter=delimiter, strict=True)
    names = _names(lines, records)
    if (named := SEPARATOR_LINE.fullmatch(delimiter.join(names))) is not None:
        delimiter = named[1]
        records = csv.reader(lines, delimiter=delimiter, strict=True)
        lines.begin_record()
        names = _names(lines, records)
    header = _header(names, delimiter, columns)
    lines.skips_blank = len(names) != 1
    index = 0
    while True:
        lines.begin_record()
        try:
            fields = next(records)
        except StopIteration:
            return
        except BadLine as error:
            yield BadRow(index, error.code, f"{lines.record_place}: {error.message}.")
        except csv.Error as error:
            yield BadRow(index, "invalid_csv_line", f"{lines.record_place}: {_reason(error)}.")
        else:
            yield _row(index, lines.record_line, header, fields or [""])
        index += 1


class _TextLines:
    """Lines for `csv.reader`. A generator could not continue after an exception."""

    def __init__(self, chunks: Iterable[bytes], line_bytes_max: int) -> None:
        self.record_line = 1  # where the record begins
        self.first_text = ""  # the beginning of the first line
        self.skips_blank = True  # between records
        self._lines = split_lines(chunks, line_bytes_max=line_bytes_max, blank_end=self._blank_end)
        self._record_bytes = 0
        self._record_bytes_max = line_bytes_max
        self._line = 1  # the last one read

    @property
    def record_place(self) -> str:
        """The lines of the record, of which an error leaves none."""
        lines = self._line - self.record_line + 1
        if lines == 1:
            return f"Line {self.record_line}"
        return f"Lines {self.record_line} to {self._line}, {lines} lines that a quote in the first one opens"

    def begin_record(self) -> None:
        self._record_bytes = 0

    def __iter__(self) -> "_TextLines":
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        if self._record_bytes == 0:
            while self.skips_blank and line.data in (
                b"",
                b"\r",
            ):  # at a chunk's border, where it was not skipped
                line = next(self._lines)
            self.record_line = line.number
        self._line = line.number
        if line.data is None:
            raise BadLine("line_too_long", "the line is longer than this service accepts (LINE_BYTES_MAX)")
        self._record_bytes += len(line.data) + 1
        if self._record_bytes > self._record_bytes_max:
            raise BadLine(
                "line_too_long", "the record's lines are longer than this service accepts (LINE_BYTES_MAX)"
            )
        # An undecodable byte makes its complete record a BadRow.
        text = line.data.decode("utf-8", errors="surrogateescape") + "\n"
        self.first_text = self.first_text or text[:HEAD_BYTES]
        return text

    def _blank_end(self, chunk: bytes, begin: int) -> int:
        """Blank lines within a record are text."""
        blank = _BLANK.match(chunk, begin) if self.skips_blank and self._record_bytes == 0 else None
        return begin if blank is None else blank.end()


@dataclass(frozen=True)
class _Header:
    names: list[str]  # empty for a column that is left out
    fields_min: int  # a record may lack columns at the end that were given no name
    hint: str  # about a likely separator

    def record(self, fields: list[str]) -> dict[str, str]:
        if all(self.names):
            return dict(zip(self.names, fields, strict=True))
        return {name: field for name, field in zip(self.names, fields, strict=False) if name}


def _names(lines: _TextLines, records: Iterator[list[str]]) -> list[str]:
    """The first record. Raises `UnreadableInput`."""
    try:
        names = next(filter(None, records), [])
        "".join(names).encode()
    except (BadLine, csv.Error, UnicodeEncodeError) as error:
        message = f"The CSV header, which names the columns, cannot be read: {_reason(error)}."
        raise UnreadableInput(message + json_hint(lines.first_text)) from error
    return names


def _header(names: list[str], delimiter: str, columns: Collection[str] | None) -> _Header:
    if len(names) > ENTRIES_MAX:
        raise UnreadableInput(f"The CSV header names more than {ENTRIES_MAX} columns.")
    counts = Counter(filter(None, names))
    if names and not counts:
        raise UnreadableInput("The CSV header names no column.")
    refuse_twice({name for name, count in counts.items() if count > 1}, columns)
    fields_min = max((number for number, name in enumerate(names, 1) if name), default=0)
    once = [name if counts[name] == 1 else "" for name in names]
    return _Header(once, fields_min, separator_hint(names, delimiter))


def _reason(error: Exception) -> str:
    if isinstance(error, csv.Error) and "new-line character" in str(error):
        return "a carriage return (CR) stands outside of quotes: end lines with LF or CRLF"
    return "it is not UTF-8" if isinstance(error, UnicodeError) else str(error)


def _row(index: int, line: int, header: _Header, fields: list[str]) -> Row | BadRow:
    columns = len(header.names)
    if not header.fields_min <= len(fields) <= columns:
        message = f"Line {line}: {len(fields)} fields where the header has {columns}.{header.hint}"
        return BadRow(index, "wrong_number_of_fields", message)
    try:
        "".join(fields).encode("utf-8")
    except UnicodeEncodeError:
        return BadRow(index, "invalid_encoding", f"Line {line}: the record is not UTF-8.")
    return Row(index, header.record(fields))
