"""The bulk shards that one worker runs."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from nightshift.errors import DatabaseUnavailable
from nightshift.jobs import BulkClaim
from nightshift.jobs.priorities import Room, room_beside
from workers.shard.config import ShardConfig, ShardDependencies
from workers.shard.endings import Endings
from workers.shard.figures import Starvation
from workers.shard.runner import ShardRunner

log = logging.getLogger(__name__)


class Shards:
    """Starts shards, counts them and hands them back. Any thread may call it."""

    def __init__(
        self,
        dependencies: ShardDependencies,
        config: ShardConfig,
        on_place_freed: Callable[[], None],
        *,
        on_room_changed: Callable[[], None] = lambda: None,
        full_shards_max: int = 1,
    ) -> None:
        """A shard's thread calls `on_place_freed` when it has ended, and `on_room_changed` as its rows become
        few. `full_shards_max`: shards of a model that may have all the rows in its engine that one may have.
        """
        self._dependencies = dependencies
        self._config = config
        self._on_place_freed = on_place_freed
        self._on_room_changed = on_room_changed
        self._full_shards_max = full_shards_max
        self._room: tuple[Sequence[str], Room | None] | None = None  # for these models, since the last change
        self._lock = threading.Lock()
        self._running: set[ShardRunner] = set()  # until their threads report their end
        self._rows_finished: Counter[str] = Counter()  # of shards that have ended, by model
        self.storage_counts = dependencies.storage
        self.held_time = dependencies.held_time
        self.starvation = Starvation(dependencies.models.busy_seconds_of)

    def __len__(self) -> int:
        return len(self._running)

    def room(self, models: Sequence[str]) -> Room | None:
        """The shards that may be claimed for these models beside those that run."""
        with self._lock:
            if self._room is None or self._room[0] != models:
                held = [runner.held for runner in self._running]
                self._room = (models, room_beside(held, models, self._full_shards_max))
            return self._room[1]

    def count_of(self, model_id: str) -> int:
        """Shards of this model's jobs."""
        with self._lock:
            return sum(runner.claim.job.model == model_id for runner in self._running)

    def rows_finished(self) -> Mapping[str, int]:
        """Rows since the start, by model, with those in no checkpoint."""
        with self._lock:
            finished = Counter(self._rows_finished)
            for runner in self._running:
                finished[runner.model_id] += runner.rows_finished
            return finished

    def hand_back_of(self, model_id: str) -> None:
        """Tells the shards of this model's jobs to hand themselves back, with what they have."""
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
        """Starts a claimed shard. Raises RuntimeError if no thread can be started: it is handed back."""
        runner = ShardRunner(claim, self._dependencies, self._config, self._ended, self._load_fell)
        try:
            with self._lock:  # it must not end before it is in the set, nor be joined unstarted
                self._dependencies.heartbeat.hold(
                    claim.lease,
                    runner,
                    claimed_at_s,
                    runner.tokens_at_risk,
                    pauses_at=claim.job.window_turns_at,
                )
                self._dependencies.held_time.begin(claim.lease)
                runner.start()
                self._running.add(runner)
                self._room = None
                self.starvation.begin(runner.model_id)
        except RuntimeError:
            self._dependencies.held_time.end(claim.lease)
            self._hand_back(runner)
            raise
        return runner

    def drain(self, until_s: float) -> None:
        """Hands every shard back: its own thread does, with its results, or this one once `until_s`, on the
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
        """Hands back a shard without a thread, or whose thread waits: its later writes are refused."""
        self._dependencies.heartbeat.release(runner.claim.lease)
        try:
            dependencies = self._dependencies
            Endings(runner.claim, dependencies.store, dependencies.held_time).hand_back(
                runner.tokens_at_risk()
            )
        except DatabaseUnavailable as error:
            log.warning("hand back failed", extra={"action": "hand_back_failed", "reason": error.message})

    def _load_fell(self) -> None:
        with self._lock:
            self._room = None
        self._on_room_changed()

    def _ended(self, runner: ShardRunner) -> None:
        with self._lock:
            if runner in self._running:
                self._running.discard(runner)
                self._room = None
                self._rows_finished[runner.model_id] += runner.rows_finished
                self.starvation.end(runner.model_id)
        self._dependencies.held_time.end(runner.claim.lease)
        self._on_place_freed()
