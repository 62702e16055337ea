"""Which rows may share their answers, and the results of earlier jobs."""

import threading
from collections import OrderedDict
from typing import Final

from nightshift.bulk.results.earlier_results import EarlierResults
from nightshift.jobs import Job
from nightshift.objectstore import ObjectStore
from nightshift.store import Store

JOBS_MAX: Final = 4  # whose results are kept open


class EarlierJobs:
    """The ended jobs whose results this worker's shards reuse. Thread-safe."""

    def __init__(self, store: Store, objects: ObjectStore) -> None:
        self._store = store
        self._objects = objects
        self._lock = threading.Lock()
        self._open: OrderedDict[str, EarlierResults] = OrderedDict()

    def close(self) -> None:
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def reused_by(self, job: Job) -> EarlierResults | None:
        """None: the job reuses nothing, or what it names is gone. Raises DatabaseUnavailable."""
        if (id := job.spec.reused_job) is None:
            return None
        with self._lock:
            if id not in self._open:
                with self._store.snapshot() as tx:
                    earlier = tx.jobs.get(job.tenant_id, id)
                if earlier is None or earlier.results_deleted_at is not None:
                    return None
                self._open[id] = EarlierResults(self._store, self._objects, earlier)
            self._open.move_to_end(id)
            if len(self._open) > JOBS_MAX:
                _, oldest = self._open.popitem(last=False)
                oldest.close()
            found = self._open[id]
        return found if found.tenant_id == job.tenant_id else None
