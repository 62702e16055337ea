"""Results that rows take over: those of an earlier job, and those of other rows of the same job.

Rows of one job with the same digest are run once by this worker.

begin ──► a known result
     ├──► a turn that runs: then `ended`, `failed` (all that wait run) or `leave` (the next one runs)
     └──► a turn that waits: told once, unless it leaves
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Final

from nightshift.bulk.results.earlier_results import EarlierResults
from nightshift.bulk.results.row_results import RowResult
from nightshift.jobs import Job
from nightshift.objectstore import ObjectStore
from nightshift.store import Store

EARLIER_JOBS_MAX: Final = 4  # whose results are kept open
WAITING_MAX: Final = 1024  # rows of a shard that wait for others
KNOWN_BYTES_MAX: Final = 16 * 1024 * 1024  # in results, of all jobs; the oldest are forgotten
ENTRY_BYTES: Final = 1024  # a result without its texts and vectors

Key = tuple[str, bytes]
"""A job, and a digest."""


@dataclass(eq=False, slots=True)
class Turn:
    """A row's place among those with the same request."""

    key: Key
    row: int
    on_end: Callable[[int, RowResult | None], None]
    """Called once for a row that waits: with the result of the row that ran, or None, and then it runs."""
    runs: bool
    waiting: list["Turn"] = field(default_factory=list)  # for this one, while it runs


class RunOnce:
    """Thread-safe. Callbacks are called from any thread and must return at once."""

    def __init__(self, known_bytes_max: int = KNOWN_BYTES_MAX) -> None:
        self._known_bytes_max = known_bytes_max
        self._lock = threading.Lock()
        self._running: dict[Key, Turn] = {}
        self._known: OrderedDict[Key, RowResult] = OrderedDict()
        self._known_bytes = 0

    def begin(self, key: Key, row: int, on_end: Callable[[int, RowResult | None], None]) -> RowResult | Turn:
        """A known result, or the row's turn."""
        with self._lock:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return known
            first = self._running.get(key)
            turn = Turn(key, row, on_end, runs=first is None)
            if first is None:
                self._running[key] = turn
            else:
                first.waiting.append(turn)
            return turn

    def ended(self, turn: Turn, result: RowResult) -> None:
        """Tells a good result, which has nothing of the row's own, to the rows that wait."""
        with self._lock:
            del self._running[turn.key]
            self._remember(turn.key, result)
        for waiting in turn.waiting:
            waiting.on_end(waiting.row, result)

    def failed(self, turn: Turn) -> None:
        """Lets all that wait run, rather than fail one by one."""
        with self._lock:
            del self._running[turn.key]
        for waiting in turn.waiting:
            waiting.on_end(waiting.row, None)

    def leave(self, turn: Turn) -> None:
        """Ends the turn of a row that has no result here; where it ran or was to, the next one runs."""
        with self._lock:
            first = self._running.get(turn.key)
            if not turn.runs:
                if first is not None and turn in first.waiting:
                    first.waiting.remove(turn)
                return
            following = turn.waiting[0] if turn.waiting else None
            if following is None:
                del self._running[turn.key]
            else:
                following.runs, following.waiting = True, turn.waiting[1:]
                self._running[turn.key] = following
        if following is not None:
            following.on_end(following.row, None)

    def _remember(self, key: Key, result: RowResult) -> None:
        self._known[key] = result
        self._known_bytes += _bytes_of(result)
        while self._known_bytes > self._known_bytes_max:
            _, oldest = self._known.popitem(last=False)
            self._known_bytes -= _bytes_of(oldest)


def _bytes_of(result: RowResult) -> int:
    return ENTRY_BYTES + sum(map(getsizeof, result.values.values())) + getsizeof(result.body_text)


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
        """The earlier results that a job reuses. None: it reuses nothing, or what it names is gone. Raises
        DatabaseUnavailable.
        """
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
            if len(self._open) > EARLIER_JOBS_MAX:
                _, oldest = self._open.popitem(last=False)
                oldest.close()
            results = self._open[id]
        return results if results.tenant_id == job.tenant_id else None
