"""A shard's limits, and what a worker's shards share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from nightshift import endpoints
from nightshift.jobs import BulkClaim
from nightshift.jobs.leases import fault_delay_s
from nightshift.objectstore import ObjectStore
from nightshift.objectstore.sources import Sources
from nightshift.store import Store
from workers.leases.heartbeat import Heartbeat
from workers.leases.isolation import Isolation
from workers.serving.models import Models
from workers.shard.figures import HeldTime, StorageCounts
from workers.shard.run_once import WAITING_MAX, EarlierJobs, RunOnce

UPLOADS_MAX: Final = 4  # unlisted checkpoints; with so many, no row is admitted


@dataclass(frozen=True)
class ShardConfig:
    rows_in_flight_max: int  # inside the engine at once; of a watched shard, of every model
    segment_rows: int  # a checkpoint after so many finished rows …
    segment_interval_s: float  # … or so long after the first of them
    carry_over_interval_s: float  # between saves of the tokens of older rows; 0: only on leaving
    flush_s: float  # for the last checkpoints of a shard that leaves
    stop_grace_s: float  # for rows in flight after an order to stop
    line_bytes_max: int  # one input row
    segment_spacing_s: float = 0.0  # the least time from the first row of a segment to its end …
    segment_rows_max: int = 4096  # … unless it has so many
    encoder_rows_in_flight_max: int | None = None  # None: as of a decoder
    held_chars_max: int = 2 * 1024 * 1024  # text and vectors in results; then a checkpoint is due
    carry_over_bytes_max: int = 256 * 1024 * 1024  # that a reader holds; no more is written
    listing_retry_s: float = 1.0  # while the database is away, or the lease is not trusted
    silent_s: float = 6.0  # without a store's answer; then the owner is told, before a time limit ends it
    silence_look_s: float = 2.0  # between two looks whether a store is silent
    fault_delay_s: Callable[[int, str], float] = fault_delay_s  # after so many faults in a row

    def rows_in_flight(self, claim: BulkClaim) -> int:
        """The most rows of this shard inside the engine."""
        kinds = endpoints.get(claim.job.spec.endpoint).model_kinds
        if claim.crash_history.is_watched or not all(kind.runs_in_one_step for kind in kinds):
            return self.rows_in_flight_max
        return self.encoder_rows_in_flight_max or self.rows_in_flight_max

    @property
    def rows_at_risk_max(self) -> int:
        """Rows begun and in no listed segment, of a shard whose segments are not spaced."""
        in_flight = max(self.rows_in_flight_max, self.encoder_rows_in_flight_max or 0)
        return (UPLOADS_MAX + 1) * self.segment_rows + 2 * in_flight + WAITING_MAX


@dataclass(frozen=True)
class ShardDependencies:
    store: Store
    objects: ObjectStore
    sources: Sources
    models: Models
    heartbeat: Heartbeat
    earlier_jobs: EarlierJobs
    isolation: Isolation = field(default_factory=Isolation)
    once: RunOnce = field(default_factory=RunOnce)
    storage: StorageCounts = field(default_factory=StorageCounts)
    held_time: HeldTime = field(default_factory=HeldTime)
