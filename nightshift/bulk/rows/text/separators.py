"""Finds the separator of a CSV's values by its first records. Pure.

A reading says the same each time: it depends on the text alone, not on the pieces in which it comes.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final

from nightshift.bulk.rows.contents import SEPARATORS, json_hint
from nightshift.bulk.rows.records import UnreadableInput

TAB: Final = "tab"  # a tab's name, where one is hard to type
SEPARATOR_LINE: Final = re.compile(r'sep=([^\w\s"]|\t)', re.IGNORECASE)
"""A line before the header that names the separator, as Excel writes and reads it."""
SNIFFED_BYTES: Final = 64 * 1024
RECORDS_MAX: Final = 100  # looked at, beside the header


def with_separator(pieces: Iterable[bytes], named: str, told: str | None) -> tuple[str, Iterator[bytes]]:
    """The separator of a CSV, and its text once more. `named`: by the format. `told`: by the job, or None."""
    if told is not None:
        return ("\t" if told == TAB else told), iter(pieces)
    head, is_all, again = _peeked(pieces)
    return likely_separator(head, named, is_all=is_all), again


def likely_separator(head: bytes, named: str, *, is_all: bool) -> str:
    """The separator that a first line such as `sep=;` says, or the first records show: another one than is
    `named` only where the header is one name by that, and by exactly one other the records have as
    many values as the header has names.
    """
    text = head.decode("utf-8-sig", errors="replace")
    first_line = text.lstrip("\r\n").partition("\n")[0].strip('\r"')
    if (said := SEPARATOR_LINE.fullmatch(first_line)) is not None:
        return said[1]
    if _widths(text, named, is_all=is_all)[:1] != [1] or json_hint(text):
        return named
    others = [mark for mark in SEPARATORS if mark != named and _is_table(_widths(text, mark, is_all=is_all))]
    return others[0] if len(others) == 1 else named


def _is_table(widths: list[int]) -> bool:
    return len(widths) > 1 and min(widths) == max(widths) > 1


def _widths(text: str, separator: str, *, is_all: bool) -> list[int]:
    """The number of values in each of the first records that are complete."""
    records = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    widths: list[int] = []
    try:
        for record in islice(filter(None, records), RECORDS_MAX + 1):
            widths.append(len(record))
    except csv.Error:  # within a record
        return widths
    return widths if is_all or len(widths) > RECORDS_MAX else widths[:-1]


def _peeked(pieces: Iterable[bytes]) -> tuple[bytes, bool, Iterator[bytes]]:
    """The first bytes, whether these are all, and the pieces once more. An error on the way comes behind the
    pieces before it.
    """
    rest, taken, size_bytes, is_all = iter(pieces), list[bytes](), 0, False
    try:
        while size_bytes <= SNIFFED_BYTES and not is_all:
            piece = next(rest, None)
            is_all = piece is None
            taken.append(piece or b"")
            size_bytes += len(taken[-1])
    except UnreadableInput as error:
        rest = _raising(error)
    return b"".join(taken)[:SNIFFED_BYTES], is_all and size_bytes <= SNIFFED_BYTES, chain(taken, rest)


def _raising(error: UnreadableInput) -> Iterator[bytes]:
    yield from ()
    raise error
