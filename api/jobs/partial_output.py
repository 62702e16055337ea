"""A batch's results as they come: the lines of its output file, in the order of commits.

    segments   |   1   |  2  |      4      |          listed, and never changed afterwards
    lines      0 ............. measured end           what was served once is served again, byte for byte

A segment's size in lines and bytes is on record, so a reader that goes on at a byte or after a line reads
only what follows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from api.services.services import Services, TenantStorageThreads
from nightshift.bulk.results.row_results import output_lines
from nightshift.bulk.results.segments import read_segment
from nightshift.errors import NotFound
from nightshift.jobs import Job
from nightshift.store.shards.shards import ListedSegment

SEGMENTS_PAGE: Final = 256  # per listing


@dataclass(frozen=True)
class Extent:
    """What there is so far."""

    size_bytes: int = 0
    lines: int = 0


@dataclass(frozen=True)
class _Placed:
    """A segment, and what comes before its lines."""

    listed: ListedSegment
    before: Extent
    after: Extent


@dataclass(frozen=True)
class PartialOutput:
    """A tenant's batch. Every method blocks on the database, and may on the object store."""

    services: Services
    job: Job

    @property
    def storage(self) -> TenantStorageThreads:
        return self.services.storage_threads.of(self.job.tenant_id)

    def extent(self) -> Extent:
        """Raises NotFound if the batch's results had their time."""
        if self.job.results_deleted_at is not None:
            output = self.job.output_file_id
            hint = f" The whole output is {output}." if output else ""
            raise NotFound(
                f"The partial output of this batch is kept no longer.{hint}",
                param="id",
                code="results_deleted",
            )
        extent = Extent()
        for placed in self._placed():
            extent = placed.after
        return extent

    def offset_after(self, line: int) -> int:
        """The byte at which what follows this line, counted from 1, begins; the end if there are no more."""
        end = 0
        for placed in self._placed():
            end = placed.after.size_bytes
            if placed.after.lines > line:
                skipped = self._lines(placed)[: line - placed.before.lines]
                return placed.before.size_bytes + sum(map(len, skipped))
        return end

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes [start, end). Raises StorageError for results that cannot be read."""
        for placed in self._placed():
            if placed.before.size_bytes >= end:
                return
            if placed.after.size_bytes > start:
                data = b"".join(self._lines(placed))
                at = placed.before.size_bytes
                yield data[max(0, start - at) : end - at]

    def _placed(self) -> Iterator[_Placed]:
        before, last_id = Extent(), 0
        while page := self._page(last_id):
            for listed in page:
                after = self._after(before, listed)
                yield _Placed(listed, before, after)
                before = after
            last_id = page[-1].id

    def _page(self, after_id: int) -> Sequence[ListedSegment]:
        with self.services.store.snapshot() as tx:
            return tx.shards.segments_of_job(
                self.job.tenant_id, self.job.id, after_id=after_id, limit=SEGMENTS_PAGE
            )

    def _after(self, before: Extent, listed: ListedSegment) -> Extent:
        size_bytes = listed.segment.output_bytes
        if size_bytes is None:  # listed by a worker of the release before
            size_bytes = sum(map(len, output_lines(read_segment(self.services.objects, listed.segment))))
        return Extent(before.size_bytes + size_bytes, before.lines + listed.segment.succeeded)

    def _lines(self, placed: _Placed) -> list[bytes]:
        return list(output_lines(read_segment(self.services.objects, placed.listed.segment)))
