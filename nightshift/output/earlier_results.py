"""Results of a job that has ended, found by the digests of their rows."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from nightshift.errors import ObjectNotFound
from nightshift.jobs import Job, Segment
from nightshift.objectstore import ObjectDamaged, ObjectStore
from nightshift.output.digest_files import digest_files
from nightshift.output.digest_index import DIGEST_BYTES_MAX, DigestIndex
from nightshift.output.row_results import RowResult, ShardHead
from nightshift.output.segments import CorruptSegment
from nightshift.output.shard_results import ShardResults
from nightshift.store import Store

log = logging.getLogger(__name__)

HELD_BYTES: Final = 128 * 1024 * 1024  # of results in open shards: those of the next rows are often there
HELD_SHARDS: Final = 256
SHARD_MEMORY_BYTES_MAX: Final = 4 * 1024 * 1024  # of a shard's results; a larger one has a temporary file

LOST: Final = (ObjectNotFound, ObjectDamaged, CorruptSegment, OSError)


class EarlierResults:
    """Of one job. Thread-safe. `close` it."""

    def __init__(
        self, store: Store, objects: ObjectStore, job: Job, digest_bytes_max: int = DIGEST_BYTES_MAX
    ) -> None:
        """`digest_bytes_max`: held of its digests, on disk."""
        self._digest_bytes_max = digest_bytes_max
        self._store = store
        self._objects = objects
        self._job = job
        self._lock = threading.Lock()
        self._index: DigestIndex | None = None
        self._shards: OrderedDict[int, _OpenShard | None] = OrderedDict()  # None: its results are lost
        self._held_bytes = 0

    @property
    def tenant_id(self) -> str:
        return self._job.tenant_id

    def find(self, digests: Sequence[bytes], near_shard: int) -> Mapping[bytes, RowResult]:
        """The results there are. Rows near `near_shard` are looked for there first.

        Results that were deleted or are damaged are not found. Raises StorageUnavailable and
        DatabaseUnavailable.
        """
        with self._lock:
            if self._index is None:
                files = digest_files(self._objects, self._job.tenant_id, self._job.id)
                self._index = DigestIndex(self._objects, list(files), self._digest_bytes_max)
            places = self._index.find(digests, near_shard)
            by_shard: dict[int, list[tuple[bytes, int]]] = {}
            for digest, (shard_no, row) in places.items():
                by_shard.setdefault(shard_no, []).append((digest, row))
            found: dict[bytes, RowResult] = {}
            for shard_no, wanted in by_shard.items():
                found |= self._of_shard(shard_no, wanted)
            return found

    def close(self) -> None:
        with self._lock:
            while self._shards:
                self._drop_oldest()
            if self._index is not None:
                self._index.close()
                self._index = None

    def _of_shard(self, shard_no: int, wanted: Sequence[tuple[bytes, int]]) -> dict[bytes, RowResult]:
        shard = self._opened(shard_no)
        if shard is None:
            return {}
        digests = {row: digest for digest, row in wanted}
        results = shard.results.of_rows(sorted(digests))
        return {
            digests[result.row]: result
            for result in results
            if result.succeeded and result.digest == digests[result.row]
        }

    def _opened(self, shard_no: int) -> "_OpenShard | None":
        if shard_no in self._shards:
            self._shards.move_to_end(shard_no)
            return self._shards[shard_no]
        opened: _OpenShard | None = None
        try:
            opened = self._open(shard_no)
        except LOST as error:
            log.warning(
                "earlier results are gone: %s",
                error,
                extra={"action": "reuse_lost", "job": self._job.id, "shard_no": shard_no},
            )
        self._shards[shard_no] = opened
        self._held_bytes += 0 if opened is None else opened.size_bytes
        while len(self._shards) > 1 and (self._held_bytes > HELD_BYTES or len(self._shards) > HELD_SHARDS):
            self._drop_oldest()
        return opened

    def _open(self, shard_no: int) -> "_OpenShard | None":
        with self._store.snapshot() as tx:
            page = tx.shards.of_job(self._job.id, after_no=shard_no - 1, limit=1)
            if not page or page[0].shard_no != shard_no:
                return None
            segments = tx.shards.segments(page[0].id)
        return _OpenShard(self._objects, segments, ShardHead.of(self._job, shard_no))

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
