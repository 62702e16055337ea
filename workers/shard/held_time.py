"""Whose time a worker's is: at every moment the bulk shards that it holds share it equally."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nightshift.fleet.costs import WorkerTime
from nightshift.fleet.workers import Capacity
from nightshift.jobs.leases import Lease, Term

Key = tuple[str, Term]


class HeldTime:
    """Thread-safe."""

    def __init__(
        self, capacity: Capacity = Capacity.ON_DEMAND, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._capacity = capacity
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._shares: dict[Key, float] = {}  # of the leases held, in seconds, as far as they are not charged
        self._shared_until_s = clock_s()
        self._total_s = 0.0

    @property
    def total(self) -> WorkerTime:
        """Of all shards, charged or not."""
        with self._lock:
            self._share()
            return WorkerTime.of(self._capacity, self._total_s)

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
        """What the lease has taken since it was charged last, to be recorded in the block. If that raises, it
        is charged the next time.
        """
        taken_s = self._take(lease)
        try:
            yield WorkerTime.of(self._capacity, taken_s)
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
        """Until now, among those held since the last time."""
        now_s = self._clock_s()
        passed_s, self._shared_until_s = max(0.0, now_s - self._shared_until_s), now_s
        for key in self._shares:
            self._shares[key] += passed_s / len(self._shares)
        self._total_s += passed_s if self._shares else 0.0
