"""What a shard is run with: its limits, and the parts it shares with the worker's other shards."""

from dataclasses import dataclass, field

from nightshift.objectstore import ObjectStore
from nightshift.objectstore.sources import Sources
from nightshift.store import Store
from workers.health.heartbeat import Heartbeat
from workers.serving.models import Models
from workers.shard.isolation import Isolation
from workers.shard.uploads import UPLOADS_MAX


@dataclass(frozen=True)
class ShardConfig:
    """Limits of one running shard."""

    rows_in_flight_max: int  # inside the engine at once
    segment_rows: int  # a checkpoint after so many finished rows …
    segment_interval_s: float  # … or so long after the first of them
    carry_over_interval_s: float  # the tokens of rows older than this are saved so often; 0: on leaving only
    flush_s: float  # a shard that leaves waits so long for its last checkpoints to be written
    stop_grace_s: float  # rows in flight may finish for so long after an order to stop
    line_bytes_max: int  # one input row

    @property
    def rows_at_risk_max(self) -> int:
        """Rows begun and in no listed segment: being written, waiting for that, or in the engine."""
        return (UPLOADS_MAX + 1) * self.segment_rows + 2 * self.rows_in_flight_max


@dataclass(frozen=True)
class ShardDependencies:
    """What all shards of a worker share."""

    store: Store
    objects: ObjectStore
    sources: Sources
    models: Models
    heartbeat: Heartbeat
    isolation: Isolation = field(default_factory=Isolation)
