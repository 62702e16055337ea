"""Results of a job that has ended, found by the digests of their rows."""

import threading
from collections.abc import Mapping, Sequence

from nightshift.bulk.results.digest_files import digest_files
from nightshift.bulk.results.digest_index import DIGEST_BYTES_MAX, DigestIndex
from nightshift.bulk.results.open_shards import OpenShards
from nightshift.bulk.results.row_results import RowResult
from nightshift.jobs import Job, Segment
from nightshift.objectstore import ObjectStore
from nightshift.store import Store


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
        self._shards = OpenShards(objects, job)

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
            by_shard: dict[int, dict[int, bytes]] = {}
            for digest, (shard_no, row) in places.items():
                by_shard.setdefault(shard_no, {})[row] = digest
            found: dict[bytes, RowResult] = {}
            for shard_no, wanted in by_shard.items():
                found |= self._shards.find(shard_no, wanted, self._segments)
            return found

    def close(self) -> None:
        with self._lock:
            self._shards.close()
            if self._index is not None:
                self._index.close()
                self._index = None

    def _segments(self, shard_no: int) -> Sequence[Segment]:
        with self._store.snapshot() as tx:
            page = tx.shards.of_job(self._job.id, after_no=shard_no - 1, limit=1)
            if not page or page[0].shard_no != shard_no:
                return ()
            return tx.shards.segments(page[0].id)
