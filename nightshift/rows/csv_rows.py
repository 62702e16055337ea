"""Rows of CSV or TSV with double quotes and a header; every value is a string."""

import csv
import re
from collections.abc import Iterable, Iterator
from typing import Final

from nightshift.rows.containers import ENTRIES_MAX
from nightshift.rows.lines import BadLine, split_lines
from nightshift.rows.records import BadRow, Row, UnreadableInput

_BLANK: Final = re.compile(rb"(?:\r?\n)++")  # one with spaces is a record


def csv_rows(chunks: Iterable[bytes], *, delimiter: str, line_bytes_max: int) -> Iterator[Row | BadRow]:
    """The rows; an unreadable record is a `BadRow`. Raises `UnreadableInput` for a missing or ambiguous
    header.

    An unclosed quote takes everything up to `line_bytes_max` with it, as one bad row.
    """
    csv.field_size_limit(line_bytes_max)  # process-wide: the csv module has no other limit
    lines = _TextLines(chunks, line_bytes_max)
    records = csv.reader(lines, delimiter=delimiter, strict=True)
    columns = _columns(records)
    index = 0
    while True:
        lines.begin_record()
        try:
            fields = next(records)
        except StopIteration:
            return
        except BadLine as error:
            yield BadRow(index, error.code, f"Line {lines.record_line}: {error.message}.")
        except csv.Error as error:
            yield BadRow(index, "invalid_csv_line", f"Line {lines.record_line}: {error}.")
        else:
            if not fields:
                continue  # a blank line
            yield _row(index, lines.record_line, columns, fields)
        index += 1


class _TextLines:
    """Lines for `csv.reader`. A generator could not continue after an exception."""

    def __init__(self, chunks: Iterable[bytes], line_bytes_max: int) -> None:
        self.record_line = 1  # where the record begins
        self._lines = split_lines(chunks, line_bytes_max=line_bytes_max, blank_end=self._blank_end)
        self._record_bytes = 0
        self._record_bytes_max = line_bytes_max

    def begin_record(self) -> None:
        self._record_bytes = 0

    def __iter__(self) -> "_TextLines":
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        if self._record_bytes == 0:
            while line.data in (b"", b"\r"):  # at a chunk's border, where it was not skipped
                line = next(self._lines)
            self.record_line = line.number
        if line.data is None:
            raise BadLine("line_too_long", "the line is longer than this service accepts")
        self._record_bytes += len(line.data) + 1
        if self._record_bytes > self._record_bytes_max:
            raise BadLine("line_too_long", "the record's lines are longer than this service accepts")
        # An undecodable byte makes its complete record a BadRow.
        return line.data.decode("utf-8", errors="surrogateescape") + "\n"

    def _blank_end(self, chunk: bytes, begin: int) -> int:
        """Blank lines are skipped between records; within one they are text."""
        found = _BLANK.match(chunk, begin) if self._record_bytes == 0 else None
        return begin if found is None else found.end()


def _columns(records: Iterator[list[str]]) -> list[str]:
    try:
        columns = next(filter(None, records), [])
        "".join(columns).encode()
    except (BadLine, csv.Error, UnicodeEncodeError) as error:
        raise UnreadableInput(f"The CSV header, which names the columns, cannot be read: {error}.") from error
    if len(columns) > ENTRIES_MAX:
        raise UnreadableInput(f"The CSV header names more than {ENTRIES_MAX} columns.")
    if not all(columns):
        raise UnreadableInput("The CSV header must name every column.")
    if len(set(columns)) < len(columns):
        raise UnreadableInput("The CSV header names a column twice.")
    return columns


def _row(index: int, line: int, columns: list[str], fields: list[str]) -> Row | BadRow:
    if len(fields) != len(columns):
        message = f"Line {line}: {len(fields)} fields where the header has {len(columns)}."
        return BadRow(index, "wrong_number_of_fields", message)
    try:
        "".join(fields).encode("utf-8")
    except UnicodeEncodeError:
        return BadRow(index, "invalid_encoding", f"Line {line}: the record is not UTF-8.")
    return Row(index, dict(zip(columns, fields, strict=True)))
