"""The bulk shards that one worker runs."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from nightshift.errors import DatabaseUnavailable
from nightshift.jobs import BulkClaim
from workers.shard.config import ShardConfig, ShardDependencies
from workers.shard.endings import Endings
from workers.shard.runner import ShardRunner
from workers.shard.starving import Starvation

log = logging.getLogger(__name__)


class Shards:
    """For any thread."""

    def __init__(
        self,
        dependencies: ShardDependencies,
        config: ShardConfig,
        on_place_freed: Callable[[], None],
        *,
        places: int = 1,
    ) -> None:
        """`on_place_freed` is called from a shard's thread."""
        self._dependencies = dependencies
        self._config = config
        self._on_place_freed = on_place_freed
        self._places = places
        self._lock = threading.Lock()
        self._running: set[ShardRunner] = set()  # until their threads report their end
        self._rows_finished: Counter[str] = Counter()  # of shards that have ended, by model
        self.storage_counts = dependencies.storage
        self.held_time = dependencies.held_time
        self.starvation = Starvation(dependencies.models.busy_seconds_of)

    def __len__(self) -> int:
        return len(self._running)

    @property
    def places_free(self) -> int:
        """An ending shard leaves its place to the next one, so that the engine need not wait for its rows;
        as many as there are places may end at once.
        """
        with self._lock:
            taken = sum(not runner.is_ending for runner in self._running)
            return self._places - max(taken, len(self._running) - self._places)

    def count_of(self, model_id: str) -> int:
        """Shards of this model's jobs."""
        with self._lock:
            return sum(runner.claim.job.model == model_id for runner in self._running)

    def rows_finished(self) -> Mapping[str, int]:
        """Since the start, by model, with those in no checkpoint."""
        with self._lock:
            found = Counter(self._rows_finished)
            for runner in self._running:
                found[runner.model_id] += runner.rows_finished
            return found

    def hand_back_of(self, model_id: str) -> None:
        """Tell the shards of this model's jobs to hand themselves back, with what they have."""
        with self._lock:
            runners = [runner for runner in self._running if runner.claim.job.model == model_id]
        for runner in runners:
            runner.drain()

    @property
    def are_alive(self) -> bool:
        """Whether every taken place has a thread that will free it."""
        with self._lock:
            return all(runner.is_alive for runner in self._running)

    def run(self, claim: BulkClaim, claimed_at_s: float) -> ShardRunner:
        """Start a claimed shard. Raises RuntimeError if no thread can be started: it is handed back."""
        runner = ShardRunner(claim, self._dependencies, self._config, self._ended, self._on_place_freed)
        try:
            with self._lock:  # it must not end before it is in the set, nor be joined unstarted
                self._dependencies.heartbeat.hold(claim.lease, runner, claimed_at_s, runner.tokens_at_risk)
                self._dependencies.held_time.begin(claim.lease)
                runner.start()
                self._running.add(runner)
                self.starvation.begin(runner.model_id)
        except RuntimeError:
            self._dependencies.held_time.end(claim.lease)
            self._hand_back(runner)
            raise
        return runner

    def drain(self, until_s: float) -> None:
        """Hand every shard back: its own thread does, with its results, or this one once `until_s`, on the
        monotonic clock, has come.
        """
        with self._lock:
            runners = list(self._running)
        for runner in runners:
            runner.drain()
        for runner in runners:
            if not runner.join(max(0.0, until_s - time.monotonic())):
                log.warning(
                    "shard handed back in a hurry",
                    extra={"action": "hurried", "shard": runner.claim.lease.shard_id},
                )
                self._hand_back(runner)

    def _hand_back(self, runner: ShardRunner) -> None:
        """For a shard without a thread, or whose thread waits: its later writes are refused."""
        self._dependencies.heartbeat.release(runner.claim.lease)
        try:
            dependencies = self._dependencies
            Endings(runner.claim, dependencies.store, dependencies.held_time).hand_back(
                runner.tokens_at_risk()
            )
        except DatabaseUnavailable as error:
            log.warning("hand back failed", extra={"action": "hand_back_failed", "reason": error.message})

    def _ended(self, runner: ShardRunner) -> None:
        with self._lock:
            if runner in self._running:
                self._running.discard(runner)
                self._rows_finished[runner.model_id] += runner.rows_finished
                self.starvation.end(runner.model_id)
        self._dependencies.held_time.end(runner.claim.lease)
        self._on_place_freed()
