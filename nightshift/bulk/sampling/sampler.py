"""Surveys a bulk job's input, and takes a sample of its rows, within the time that it is given.

It looks at objects and reads rows as a dry run does (`rows/previews.py`), but all over the input.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from typing import Final

from nightshift.bulk.results.digest_files import DigestTable, digest_files, keys_of
from nightshift.bulk.results.row_digests import RowDigests
from nightshift.bulk.rows.first_rows import FirstRows
from nightshift.bulk.rows.previews import Problem, problem_of_job
from nightshift.bulk.rows.records import InputFormat, InputObject, Layout
from nightshift.bulk.rows.requests import RowRequest, rows_of
from nightshift.bulk.rows.surveys import FoundObject, first_objects, with_guesses
from nightshift.bulk.rows.watched_reader import ReadEnough, WatchedReader
from nightshift.bulk.sampling.places import Piece, pieces_of, spread
from nightshift.errors import InvalidRequest, StorageError
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import JobSpec, JsonObject
from nightshift.jobs.capacity.estimates import Survey, duplicates_among
from nightshift.objectstore import Locations, ObjectStore
from nightshift.objectstore.sources import Sources

OBJECTS_MAX: Final = 10_000
LISTED_MAX: Final = 20_000
HEAD_BYTES: Final = 64 * 1024  # of an object's beginning, which tell its form
ROWS_MIN: Final = 1024  # in a sample: some times what an engine runs at once …
ROWS_SHARE: Final = 4  # … or one row of so many …
ROWS_MAX: Final = 16_384  # … but no more than these
BYTES_MAX: Final = 8 * 1024 * 1024  # of its requests
DIGESTS_MAX: Final = 1_000_000  # held, some 150 bytes each; no row is read after them

# Shares of the time at which the next thing is begun.
DESCRIBED: Final = 0.3
SAMPLED: Final = 0.75
READ: Final = 0.85
UNREGISTERED: Final = Model(id="", kind=ModelKind.DECODER, revision="")


@dataclass(frozen=True)
class Surveyed:
    """`lines`: the sample, lines of a batch file in random order. The second repeats the first: a worker that
    runs it once shares answers of equal rows.
    """

    survey: Survey
    lines: list[str]


@dataclass(frozen=True, kw_only=True)
class InputSampler:
    """`used`: the share of its time that is over; asked between two rows, objects or pieces."""

    sources: Sources
    locations: Locations
    objects: ObjectStore  # our own, which has the digests of earlier jobs
    line_bytes_max: int
    models: Mapping[str, Model]  # registered
    used: Callable[[], float]

    def sample(self, spec: JobSpec, tenant_id: str, filename: str | None) -> Iterator[Surveyed | Problem]:
        """The survey with a sample, which is empty if no row can be run; or what would keep the job from
        running.
        """
        source, uri = spec.input, None
        assert source is not None, "a bulk job has an input"
        limits = {"objects_max": OBJECTS_MAX, "listed_max": LISTED_MAX}
        try:
            spec, entries, is_whole = first_objects(
                spec, self.sources, self.locations, tenant_id, filename, **limits
            )
            described = []
            for entry in entries:
                uri = entry.uri
                described.append(self._described(entry))
            uri = None
            reading = _Reading(self, spec, tenant_id, entries, with_guesses(described))
            lines = reading.read()
            if (objection := reading.first.objection()) is not None:
                yield problem_of_job(objection)
                return
            yield Surveyed(reading.survey(is_whole=is_whole, reused=reading.reused()), lines)
        except (InvalidRequest, StorageError) as error:
            yield Problem.from_error(error, source, uri)

    def _described(self, entry: FoundObject) -> InputObject:
        """The object; later in the time, nothing but its size."""
        if self.used() < DESCRIBED or entry.format is InputFormat.IMAGE:
            return entry.described(HEAD_BYTES)
        return entry.listed()


@dataclass
class _Reading:
    """Reads rows of an input, and counts what it reads."""

    sampler: InputSampler
    spec: JobSpec
    tenant_id: str
    entries: Sequence[FoundObject]
    described: Sequence[InputObject]
    counts: Counter[bytes] = field(default_factory=Counter)  # requests, by their digests
    unusable: int = 0
    text_rows: int = 0  # of objects whose rows are not counted otherwise …
    text_bytes: int = 0  # … and the bytes that these take
    is_spread: bool = True
    is_all: bool = False  # every row was read
    _piece_bytes: int = 0

    def __post_init__(self) -> None:
        named = (self.spec.template or {}).get("model")
        self.first = FirstRows(self.spec, named if isinstance(named, str) else None)

    @cached_property
    def model(self) -> Model | None:
        """The registered model of the first row. None: there is none, and digests differ from a worker's."""
        return self.sampler.models.get(self.first.model or "")

    @cached_property
    def _row_digests(self) -> RowDigests:
        return RowDigests(self.tenant_id, self.spec.endpoint, self.model or UNREGISTERED)

    def read(self) -> list[str]:
        """Reads the chosen pieces, each for its share of the time, and then others; returns the sample."""
        pieces = [piece for number, entry in enumerate(self.described) for piece in pieces_of(number, entry)]
        total = sum(piece.rows for piece in pieces)
        quotas = spread(pieces, min(ROWS_MAX, max(ROWS_MIN, int(total) // ROWS_SHARE)))
        lines: list[str] = []
        ended = 0
        for left, (number, quota) in zip(range(len(quotas), 0, -1), quotas.items(), strict=True):
            now = self.sampler.used()
            drawn = _Drawn(quota, 2 * BYTES_MAX * quota // sum(quotas.values()))
            ended += self._piece(pieces[number], now + (SAMPLED - now) / left, drawn)
            lines += [line for _, line in drawn.lines]
        for number, piece in enumerate(pieces):
            if self.sampler.used() > READ or len(self.counts) >= DIGESTS_MAX:
                break
            if number not in quotas:
                ended += self._piece(piece, READ, None)
        self.is_all = ended == len(pieces)
        return _within(BYTES_MAX, lines)

    def _piece(self, piece: Piece, until: float, drawn: "_Drawn | None") -> bool:
        """Reads a piece, one row of it whatever the time is. Returns whether it was read to its end."""
        entry, rows_before = self.entries[piece.object_no], self.first.rows

        def watch(size_bytes: int) -> None:
            if self.first.rows > rows_before and self.sampler.used() > until:
                raise ReadEnough
            self._piece_bytes += size_bytes

        self._piece_bytes = 0
        reader = WatchedReader(entry.reader, watch)
        line_bytes_max = self.sampler.line_bytes_max
        has_ended = True
        try:
            for row in rows_of(reader, entry.info.key, piece.shard, self.spec, line_bytes_max=line_bytes_max):
                made = self.first.add(row, piece.shard)
                if isinstance(made, RowRequest):
                    self.counts[self._row_digests.digest_of(made.body)] += 1
                    if drawn is not None:
                        drawn.offer(made.body)
                else:
                    self.unusable += 1
                if self.sampler.used() > until or len(self.counts) >= DIGESTS_MAX:
                    raise ReadEnough
        except ReadEnough:
            has_ended = False
            self.is_spread &= not piece.is_whole_object
        if piece.layout not in (Layout.PARQUET, Layout.IMAGE):
            self.text_rows += self.first.rows - rows_before
            self.text_bytes += piece.size_bytes if has_ended else min(self._piece_bytes, piece.size_bytes)
        return has_ended

    def reused(self) -> float | None:
        """The share of the rows that the earlier job has results of. None: no job is reused."""
        if self.spec.reused_job is None or self.model is None or not self.counts:
            return None
        keys = keys_of([*self.counts])
        rows = [*self.counts.values()]
        files = [*digest_files(self.sampler.objects, self.tenant_id, self.spec.reused_job)]
        hits, files_read = 0, 0
        random.Random(0).shuffle(files)
        for file in files:
            if files_read and self.sampler.used() > 1:
                break
            table = DigestTable(self.sampler.objects.read(file.key, file.size_bytes))
            hits += sum(rows[place] for place in table.find(keys))
            files_read += 1
        return min(1.0, hits / sum(rows) * len(files) / files_read) if files_read else 0.0

    def survey(self, *, is_whole: bool, reused: float | None) -> Survey:
        """`reused`: the share of rows with results of an earlier job."""
        rows = sum(entry.row_count or 0 for entry in self.described)
        text_bytes = sum(entry.size_bytes for entry in self.described if entry.row_count is None)
        if self.is_all:
            rows = self.first.rows
        elif text_bytes:
            rows += round(text_bytes * self.text_rows / max(1, self.text_bytes))
        seen = Counter(self.counts.values())
        return Survey(
            objects=len(self.described),
            size_bytes=sum(entry.file_bytes or entry.size_bytes for entry in self.described),
            is_whole=is_whole,
            rows=rows,
            rows_are_exact=is_whole and (self.is_all or not text_bytes),
            rows_read=self.first.rows,
            rows_unusable=self.unusable,
            is_spread=self.is_spread,
            duplicates=duplicates_among(seen, rows - self.unusable, self.counts.total()),
            duplicates_are_exact=is_whole and self.is_all,
            rows_reused=None if reused is None else round(rows * reused),
            model=self.first.model,
        )


@dataclass
class _Drawn:
    """Rows of a piece, drawn evenly of those that were offered: so many, and of no more bytes."""

    rows_max: int
    bytes_max: int
    lines: list[tuple[float, str]] = field(default_factory=list)  # a heap, each with a random number …
    _least: float = 0.0  # … that is above this one
    _bytes: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    def offer(self, body: JsonObject) -> None:
        if (number := self._random.random()) < self._least:
            return
        line = json.dumps({"body": body})
        heappush(self.lines, (number, line))
        self._bytes += len(line)
        while len(self.lines) > self.rows_max or (self._bytes > self.bytes_max and len(self.lines) > 1):
            self._least, dropped = heappop(self.lines)
            self._bytes -= len(dropped)


def _within(bytes_max: int, lines: list[str]) -> list[str]:
    """The lines in random order, as many as have so many bytes, with the first one twice."""
    random.Random(0).shuffle(lines)
    kept, size_bytes = lines[:1], 0
    for line in lines:
        size_bytes += len(line)
        if size_bytes > bytes_max and len(kept) > 1:
            break
        kept.append(line)
    return kept
