"""The results of the rows that were first in their job with a request, whichever worker runs them.

Which row was first is remembered in Redis. Its result is looked for where it is stored: in the segments of
its shard. A row waits only for one that was read before it, so no two wait for each other, unless Redis has
forgotten some of a shard that is run again: then until one of the two shards is full for a minute, at most
for `WAIT_MAX_S`. Where reading an ended shard's results takes much longer than running the rows that want
them, they are run.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from nightshift.broker.first_rows import RowPlace
from nightshift.errors import DatabaseUnavailable, StorageUnavailable
from nightshift.jobs import Job, Segment, Shard, ShardState
from nightshift.jobs.leases import fault_delay_s
from nightshift.objectstore import ObjectStore
from nightshift.output.open_shards import ALL, OpenShards
from nightshift.output.row_results import RowResult
from nightshift.store import Store
from workers.shard.rows.run_once import Key, RunOnce

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5  # between two looks
SHARDS_AT_ONCE: Final = 256  # looked at in one snapshot
WAIT_MAX_S: Final = 900.0  # for a row whose shard is held, and does not get on
FAULTS_MAX: Final = 20  # looks at a job in a row that fail; then its rows are run
HELD_BYTES: Final = 64 * 1024 * 1024  # of each job's results
HELD_S: Final = 30.0  # after the last row that waited
ROW_READ_S: Final = 5e-6  # of a shard's results, as long as it was not measured …
MEASURED_ROWS: Final = 2_000  # … over about so many
DEAR: Final = 10.0  # times as long as running rows: what is read serves others, too


class Places(Protocol):
    """`FirstRows`."""

    def note(
        self, job_id: str, digests: Sequence[bytes], places: Sequence[RowPlace]
    ) -> Sequence[RowPlace]: ...

    def replace(self, job_id: str, digest: bytes, lost: RowPlace, by: RowPlace) -> None: ...


class _Wanted(NamedTuple):
    """A row that another one waits for."""

    key: Key
    row: int  # in its shard
    waiting: RowPlace
    since_s: float

    @property
    def digest(self) -> bytes:
        return self.key[1]


@dataclass(slots=True)
class _OfJob:
    """What rows of a job wait for."""

    job: Job
    open: OpenShards
    wanted: dict[int, dict[Key, _Wanted]] = field(default_factory=dict)  # by shard
    segments: dict[int, tuple[int, Sequence[Segment]]] = field(
        default_factory=dict
    )  # by shard, with its rows
    ended: dict[int, int] = field(default_factory=dict)  # shards, with their rows
    used_s: float = 0.0
    faults: int = 0  # looks in a row that failed
    due_s: float = 0.0  # the next look after these


class FirstResults:
    """Thread-safe, but for `look`, which its own thread calls."""

    def __init__(
        self,
        store: Store,
        objects: ObjectStore,
        once: RunOnce,
        places: Places,
        row_seconds: Callable[[str], float | None] = lambda model: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`row_seconds`: what running a row of a model takes. None: it is not known, and rows wait."""
        self._store = store
        self._objects = objects
        self._once = once
        self._places = places
        self._row_seconds = row_seconds
        self._read_s, self._read_rows = ROW_READ_S * MEASURED_ROWS, MEASURED_ROWS
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[str, _OfJob] = {}
        self._replaced: deque[tuple[Key, RowPlace, RowPlace]] = deque()
        self._is_asked = threading.Event()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="first-results", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._is_stopping.set()
        self._is_asked.set()

    # -- for a shard

    def note(
        self, job: Job, digests: Sequence[bytes], places: Sequence[RowPlace]
    ) -> Sequence[RowPlace | None]:
        """For each of these rows the one that was read first with its digest, and whose result it waits for.
        None: it is to be run.
        """
        found = self._places.note(job.id, digests, places)
        if found is places:
            return [None] * len(places)
        first = [None if first == own else first for first, own in zip(found, places, strict=True)]
        wanted = Counter(place.shard_no for place in first if place is not None)
        dear = self._dear(job, wanted) if wanted else ()
        return [None if place is None or place.shard_no in dear else place for place in first]

    def look_for(self, job: Job, key: Key, first: RowPlace, waiting: RowPlace) -> None:
        """A row waits in `RunOnce` for the first one, unless that is run here."""
        if not self._once.is_elsewhere(key):
            return
        with self._lock:
            rows = self._of(job).wanted.setdefault(first.shard_no, {})
            if key not in rows or rows[key].row != first.row:
                rows[key] = _Wanted(key, first.row, waiting, self._clock())
        self._is_asked.set()

    def runs_instead(self, key: Key, first: RowPlace, own: RowPlace) -> None:
        """A row that waited for the first one is run in its place: others are soon to wait for this one."""
        self._replaced.append((key, first, own))
        self._is_asked.set()

    def _of(self, job: Job) -> _OfJob:
        """The caller has the lock."""
        if job.id not in self._jobs:
            self._jobs[job.id] = _OfJob(job, OpenShards(self._objects, job, HELD_BYTES))
        self._jobs[job.id].used_s = self._clock()
        return self._jobs[job.id]

    def _dear(self, job: Job, wanted: Mapping[int, int]) -> Collection[int]:
        """The ended shards whose results are not worth reading for so many rows."""
        row_s = self._row_seconds(job.model or "")
        if row_s is None:
            return ()
        with self._lock:
            of = self._of(job)
        try:
            self._note_ended(of, [shard_no for shard_no in wanted if shard_no not in of.ended])
        except DatabaseUnavailable:
            return ()
        read_s = self._read_s / self._read_rows
        return {
            shard_no
            for shard_no, rows in wanted.items()
            if shard_no in of.ended
            and not of.open.is_open(shard_no)
            and DEAR * rows * row_s < of.ended[shard_no] * read_s
        }

    def _note_ended(self, of: _OfJob, numbers: Sequence[int]) -> None:
        """Raises DatabaseUnavailable."""
        if not numbers:
            return
        with self._store.snapshot() as tx:
            shards = tx.shards.numbered(of.job.id, numbers)
        of.ended |= {shard.shard_no: shard.rows_done for shard in shards if shard.state.is_terminal}

    # -- the thread

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            self._is_asked.wait(HELD_S)
            self._is_asked.clear()
            self.look()
            self._is_stopping.wait(LOOK_S)
        with self._lock:
            jobs = list(self._jobs.values())
        for each in jobs:
            each.open.close()

    def look(self) -> None:
        """Tell the rows whose first ones have ended, or are lost."""
        while self._replaced:
            (job_id, digest), first, own = self._replaced.popleft()
            self._places.replace(job_id, digest, first, own)
        now_s = self._clock()
        with self._lock:
            jobs = list(self._jobs.values())
        for each in jobs:
            if self._prune(each):
                each.used_s = now_s
                if now_s >= each.due_s:
                    self._try(each, now_s)
            elif now_s - each.used_s > HELD_S:
                self._forget(each)
        if any(each.wanted for each in jobs):
            self._is_asked.set()

    def _try(self, of: _OfJob, now_s: float) -> None:
        """What fails in one job keeps no other waiting."""
        try:
            self._look_in(of, now_s)
            of.faults = 0
        except (DatabaseUnavailable, StorageUnavailable) as error:
            of.faults += 1
            of.due_s = now_s + fault_delay_s(of.faults, of.job.id)
            about = {"action": "first_results_wait", "job": of.job.id, "reason": error.message}
            log.warning("rows wait for the results of others", extra=about)
            if of.faults >= FAULTS_MAX:
                self._give_up(of)
        except Exception:
            log.exception("rows are run again", extra={"action": "first_results_broke", "job": of.job.id})
            self._give_up(of)

    def _prune(self, of: _OfJob) -> bool:
        """Forget rows that none waits for any more. False: none is left."""
        with self._lock:
            for shard_no, rows in list(of.wanted.items()):
                for key in [key for key in rows if not self._once.is_elsewhere(key)]:
                    del rows[key]
                if not rows:
                    del of.wanted[shard_no]
            return bool(of.wanted)

    def _look_in(self, of: _OfJob, now_s: float) -> None:
        with self._lock:
            wanted = {shard_no: list(rows.values()) for shard_no, rows in of.wanted.items()}
        all_numbers = sorted(wanted)
        for start in range(0, len(all_numbers), SHARDS_AT_ONCE):
            numbers = all_numbers[start : start + SHARDS_AT_ONCE]
            shards = self._read(of, numbers)
            for shard_no in numbers:
                self._settle(of, shard_no, shards.get(shard_no), wanted[shard_no], now_s)

    def _read(self, of: _OfJob, numbers: Sequence[int]) -> Mapping[int, Shard]:
        """The shards, and their segments where there are more of them."""
        with self._store.snapshot() as tx:
            shards = {shard.shard_no: shard for shard in tx.shards.numbered(of.job.id, numbers)}
            for shard_no, shard in shards.items():
                if shard_no not in of.segments or of.segments[shard_no][0] != shard.rows_done:
                    of.segments[shard_no] = (shard.rows_done, tx.shards.segments(shard.id))
        return shards

    def _settle(
        self, of: _OfJob, shard_no: int, shard: Shard | None, wanted: Sequence[_Wanted], now_s: float
    ) -> None:
        found: dict[int, RowResult] = {}
        if shard is not None and shard.rows_done > 0:
            found = self._results(of, shard, {each.row for each in wanted})
        is_held = shard is not None and shard.state is ShardState.LEASED
        for each in wanted:
            result = found.get(each.row)
            if result is not None and (result.digest == each.digest or not result.succeeded):
                self._once.found(each.key, result)
            elif result is not None or not is_held or now_s - each.since_s > WAIT_MAX_S:
                self._places.replace(of.job.id, each.digest, RowPlace(shard_no, each.row), each.waiting)
                self._once.lost(each.key)

    def _results(self, of: _OfJob, shard: Shard, rows: Collection[int]) -> dict[int, RowResult]:
        """By row. Of a shard that grows, each segment is read once; of one that has ended, all at once."""
        segments = of.segments[shard.shard_no][1]
        parts = {ALL: segments} if shard.state.is_terminal else {each.key: [each] for each in segments}
        found: dict[int, RowResult] = {}
        for part, listed in parts.items():
            for result in self._results_in(of, shard.shard_no, part, listed, rows):
                found.setdefault(result.row, result)  # the first committed counts
        return found

    def _results_in(
        self, of: _OfJob, shard_no: int, part: str, segments: Sequence[Segment], rows: Collection[int]
    ) -> Sequence[RowResult]:
        is_open, began_s = of.open.is_open(shard_no, part), time.thread_time()
        results = of.open.results(shard_no, rows, lambda _: segments, part=part)
        if not is_open:
            self._read_s += time.thread_time() - began_s
            self._read_rows += sum(segment.rows for segment in segments)
        return results

    def _give_up(self, of: _OfJob) -> None:
        """No result can be read: rows are run."""
        with self._lock:
            wanted = [each for rows in of.wanted.values() for each in rows.values()]
        for each in wanted:
            self._once.lost(each.key)

    def _forget(self, of: _OfJob) -> None:
        with self._lock:
            if of.wanted:
                return
            del self._jobs[of.job.id]
        of.open.close()
