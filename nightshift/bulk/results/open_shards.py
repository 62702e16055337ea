"""Results of a job's shards that are kept open, for rows whose results are asked for by digest."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from nightshift.bulk.results.row_results import RowResult, ShardHead
from nightshift.bulk.results.segments import CorruptSegment
from nightshift.bulk.results.shard_results import ShardResults
from nightshift.errors import ObjectNotFound
from nightshift.jobs import Job, Segment
from nightshift.objectstore import ObjectDamaged, ObjectStore

log = logging.getLogger(__name__)

HELD_BYTES: Final = 128 * 1024 * 1024  # of results in open shards: those of the next rows are often there
HELD_SHARDS: Final = 256
SHARD_MEMORY_BYTES_MAX: Final = 4 * 1024 * 1024  # of a shard's results; a larger one has a temporary file

LOST: Final = (ObjectNotFound, ObjectDamaged, CorruptSegment, OSError)


class OpenShards:
    """Of one job. Not thread-safe. `close` it."""

    def __init__(self, objects: ObjectStore, job: Job, held_bytes: int = HELD_BYTES) -> None:
        self._objects = objects
        self._job = job
        self._held_bytes_max = held_bytes
        self._shards: OrderedDict[int, _OpenShard | None] = OrderedDict()  # None: its results are lost
        self._held_bytes = 0

    def find(
        self, shard_no: int, wanted: Mapping[int, bytes], segments: Callable[[int], Sequence[Segment]]
    ) -> dict[bytes, RowResult]:
        """The good results of these rows that have these digests. Those that were deleted or are damaged are
        not found. `segments`: of a shard, asked for if it is not open.

        Raises StorageUnavailable.
        """
        shard = self._opened(shard_no, segments)
        if shard is None:
            return {}
        results = shard.results.of_rows(sorted(wanted))
        return {
            wanted[result.row]: result
            for result in results
            if result.succeeded and result.digest == wanted[result.row]
        }

    def close(self) -> None:
        while self._shards:
            self._drop_oldest()

    def _opened(self, shard_no: int, segments: Callable[[int], Sequence[Segment]]) -> "_OpenShard | None":
        if shard_no in self._shards:
            self._shards.move_to_end(shard_no)
            return self._shards[shard_no]
        opened: _OpenShard | None = None
        try:
            opened = _OpenShard(self._objects, segments(shard_no), ShardHead.of(self._job, shard_no))
        except LOST as error:
            log.warning(
                "results are gone: %s",
                error,
                extra={"action": "reuse_lost", "job": self._job.id, "shard_no": shard_no},
            )
        self._shards[shard_no] = opened
        self._held_bytes += 0 if opened is None else opened.size_bytes
        while len(self._shards) > 1 and (
            self._held_bytes > self._held_bytes_max or len(self._shards) > HELD_SHARDS
        ):
            self._drop_oldest()
        return opened

    def _drop_oldest(self) -> None:
        _, shard = self._shards.popitem(last=False)
        if shard is not None:
            self._held_bytes -= shard.size_bytes
            shard.close()


class _OpenShard:
    def __init__(self, objects: ObjectStore, segments: Sequence[Segment], head: ShardHead) -> None:
        self._held = ExitStack()
        results = ShardResults(objects, segments, head, SHARD_MEMORY_BYTES_MAX)
        self.results = self._held.enter_context(results)
        self.size_bytes = sum(segment.size_bytes for segment in segments)

    def close(self) -> None:
        self._held.close()
