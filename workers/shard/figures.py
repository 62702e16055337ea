"""Costs and waits of a worker's bulk shards: its time, the object store, rows for its engines."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from nightshift.fleet.costs import WorkerTime
from nightshift.fleet.workers import Capacity
from nightshift.jobs.leases import Lease, Term
from nightshift.objectstore.objects import READ_BYTES_MAX, STREAM_CHUNK_BYTES, ObjectInfo, ObjectReader


class HeldTime:
    """Charges each lease with its share of the worker's time: at every moment the leases held share it
    equally. Thread-safe.
    """

    def __init__(
        self, capacity: Capacity = Capacity.ON_DEMAND, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._capacity = capacity
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._shares: dict[tuple[str, Term], float] = {}  # seconds not charged yet, by shard and term
        self._shared_until_s = clock_s()
        self._total_s = 0.0

    @property
    def total(self) -> WorkerTime:
        """Time of all shards, charged or not."""
        with self._lock:
            self._share()
            return WorkerTime.on(self._capacity, self._total_s)

    def begin(self, lease: Lease) -> None:
        with self._lock:
            self._share()
            self._shares[lease.shard_id, lease.term] = 0.0

    def end(self, lease: Lease) -> None:
        with self._lock:
            self._share()
            self._shares.pop((lease.shard_id, lease.term), None)

    @contextmanager
    def charged(self, lease: Lease) -> Iterator[WorkerTime]:
        """The time that the lease has taken since it was charged last, to be recorded in the block. If that
        raises, it is charged the next time.
        """
        taken_s = self._take(lease)
        try:
            yield WorkerTime.on(self._capacity, taken_s)
        except BaseException:
            with self._lock:
                if (lease.shard_id, lease.term) in self._shares:
                    self._shares[lease.shard_id, lease.term] += taken_s
            raise

    def _take(self, lease: Lease) -> float:
        with self._lock:
            self._share()
            taken_s = self._shares.get((lease.shard_id, lease.term), 0.0)
            if (lease.shard_id, lease.term) in self._shares:
                self._shares[lease.shard_id, lease.term] = 0.0
            return taken_s

    def _share(self) -> None:
        """Shares the time until now among the leases held since the last call."""
        now_s = self._clock_s()
        passed_s, self._shared_until_s = max(0.0, now_s - self._shared_until_s), now_s
        for key in self._shares:
            self._shares[key] += passed_s / len(self._shares)
        self._total_s += passed_s if self._shares else 0.0


@dataclass(slots=True)
class _HeldModel:
    shards: int = 0
    since_s: float = 0.0  # when the first of them began …
    busy_before_s: float = 0.0  # … with so much time in steps by then
    starved_s: float = 0.0  # before that


class Starvation:
    """The seconds for which engines stood still although a shard for them was held: they waited for its rows,
    or its store. Thread-safe.
    """

    def __init__(self, busy_s: Callable[[str], float], clock_s: Callable[[], float] = time.monotonic) -> None:
        """`busy_s`: how long a model's engine has been in steps; 0 for one that is not loaded."""
        self._busy_s = busy_s
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._models: dict[str, _HeldModel] = {}

    def begin(self, model_id: str) -> None:
        """A shard is held."""
        with self._lock:
            model = self._models.setdefault(model_id, _HeldModel())
            model.shards += 1
            if model.shards == 1:
                model.since_s, model.busy_before_s = self._clock_s(), self._busy_s(model_id)

    def end(self, model_id: str) -> None:
        """A shard is held no longer."""
        with self._lock:
            model = self._models[model_id]
            assert model.shards > 0, f"no shard of {model_id} is held"
            model.shards -= 1
            if model.shards == 0:
                model.starved_s += self._since_begin_s(model_id, model)

    def seconds(self) -> dict[str, float]:
        """Seconds since the start, by model."""
        with self._lock:
            return {
                id: model.starved_s + (self._since_begin_s(id, model) if model.shards else 0.0)
                for id, model in self._models.items()
            }

    def _since_begin_s(self, model_id: str, model: _HeldModel) -> float:
        busy_s = self._busy_s(model_id) - model.busy_before_s  # below 0: it was loaded anew
        return max(0.0, self._clock_s() - model.since_s - max(0.0, busy_s))


@dataclass
class Transfer:
    bytes: int = 0
    seconds: float = 0.0


@dataclass
class StorageCounts:
    """Bytes that shards have read and written since the worker's start, and their waits for the object
    store. Thread-safe.
    """

    read: Transfer = field(default_factory=Transfer)  # inputs
    written: Transfer = field(default_factory=Transfer)  # segments, and tokens of unfinished rows
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def waiting(self, transfer: Transfer) -> Iterator[None]:
        """Counts the time that the block takes; also where it fails."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.add(transfer, seconds=time.monotonic() - began_s)

    def add(self, transfer: Transfer, *, bytes: int = 0, seconds: float = 0.0) -> None:
        with self._lock:
            transfer.bytes += bytes
            transfer.seconds += seconds


class CountedReader(ObjectReader):
    """A store whose reads are counted, by one thread."""

    def __init__(self, store: ObjectReader, counts: StorageCounts) -> None:
        self._store = store
        self._counts = counts
        self._asked_s: float | None = None  # when the request under way began

    @property
    def silent_s(self) -> float:
        """Seconds for which the request under way has had no answer; 0: there is none. For any thread."""
        asked_s = self._asked_s
        return 0.0 if asked_s is None else time.monotonic() - asked_s

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._asked_s = time.monotonic()
        try:
            with self._counts.waiting(self._counts.read):
                yield
        finally:
            self._asked_s = None

    def head(self, key: str) -> ObjectInfo | None:
        with self._waiting():
            return self._store.head(key)

    def read(self, key: str, size_bytes_max: int = READ_BYTES_MAX) -> bytes:
        with self._waiting():
            data = self._store.read(key, size_bytes_max)
        self._counts.add(self._counts.read, bytes=len(data))
        return data

    def stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        chunk_bytes: int = STREAM_CHUNK_BYTES,
        *,
        if_match: str | None = None,
    ) -> Iterator[bytes]:
        pieces = self._store.stream(key, start, end, chunk_bytes, if_match=if_match)
        while True:
            with self._waiting():
                piece = next(pieces, None)
            if piece is None:
                return
            self._counts.add(self._counts.read, bytes=len(piece))
            yield piece

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        return self._store.list(prefix, start_after)
