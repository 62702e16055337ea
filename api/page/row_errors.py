"""Why rows of a job failed, by frequency. Of a job of any size, so much is read and no more."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from nightshift.bulk.results.row_results import RowResult
from nightshift.bulk.results.segments import read_segment
from nightshift.bulk.rows.requests import without_place
from nightshift.errors import NightshiftError
from nightshift.objectstore import ObjectStore
from nightshift.store.shards.shards import ListedSegment

SEGMENTS_MAX: Final = 16  # the newest with failed rows
SEGMENT_BYTES_MAX: Final = 8 * 1024 * 1024  # larger ones are not read
ROWS_MAX: Final = 2000  # failed ones
GROUPS_MAX: Final = 20
MESSAGE_CHARS_MAX: Final = 300  # by which rows are alike
EXAMPLES_MAX: Final = 3  # ids of rows, of each group


@dataclass(frozen=True)
class ErrorGroup:
    status_code: int
    code: str
    message: str
    rows: int
    examples: Sequence[str]  # custom ids


@dataclass(frozen=True)
class Grouped:
    """`rows`: the failed ones that were looked at."""

    groups: Sequence[ErrorGroup]
    rows: int


def grouped(objects: ObjectStore, listed: Iterable[ListedSegment]) -> Grouped:
    """Blocks on the object store. Raises StorageError."""
    counts: Counter[tuple[int, str, str]] = Counter()
    examples: dict[tuple[int, str, str], list[str]] = {}
    for row in islice(_failed(objects, listed), ROWS_MAX):
        kind = _kind(row)
        counts[kind] += 1
        known = examples.setdefault(kind, [])
        if len(known) < EXAMPLES_MAX:
            known.append(row.custom_id)
    groups = [
        ErrorGroup(*kind, rows=rows, examples=examples[kind]) for kind, rows in counts.most_common(GROUPS_MAX)
    ]
    return Grouped(groups, counts.total())


def _failed(objects: ObjectStore, listed: Iterable[ListedSegment]) -> Iterable[RowResult]:
    for one in listed:
        if one.segment.size_bytes <= SEGMENT_BYTES_MAX:
            yield from (row for row in read_segment(objects, one.segment) if not row.succeeded)


def _kind(row: RowResult) -> tuple[int, str, str]:
    try:
        error: Any = row.body.get("error") or {}
    except (NightshiftError, ValueError):
        error = {}
    code, message = str(error.get("code") or error.get("type") or ""), str(error.get("message") or "")
    return row.status_code, code[:MESSAGE_CHARS_MAX], without_place(message)[:MESSAGE_CHARS_MAX]
