"""A shard's limits, and what a worker's shards share."""

from dataclasses import dataclass, field

from nightshift import endpoints
from nightshift.jobs import BulkClaim
from nightshift.objectstore import ObjectStore
from nightshift.objectstore.sources import Sources
from nightshift.store import Store
from workers.leases.heartbeat import Heartbeat
from workers.leases.isolation import Isolation
from workers.serving.models import Models
from workers.shard.held_time import HeldTime
from workers.shard.rows.earlier_jobs import EarlierJobs
from workers.shard.run_once import WAITING_MAX, RunOnce
from workers.shard.storage_counts import StorageCounts
from workers.shard.uploads import UPLOADS_MAX


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

    def rows_in_flight(self, claim: BulkClaim) -> int:
        """The most of this shard."""
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
