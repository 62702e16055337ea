"""The time-limited, numbered right to run a shard.

A paused worker may wake up after its lease expired, so every claim raises the shard's **term** and every
write names its term; the database ignores a write under an old one.

`Lease.expires_at` is the database's clock. A worker's **trust deadline** is on its own monotonic clock,
counted from *before* it asked for the renewal, so a slow round trip only shortens its trust:

    renewal asked          trust ends                     lease expires, others may claim
    |---------- trust_s ---------|------- safety ----------|
"""

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NewType

from nightshift.jobs.backoff import Backoff

Term = NewType("Term", int)
FIRST_TERM: Final = Term(1)

SCHEDULER_DUTY: Final = "scheduler"  # what schedulers are elected for

RETRY: Final = Backoff(first_s=1.0, longest_s=60.0)
RETRY_JITTER: Final = 0.2  # spreads retries of work that failed at the same time


@dataclass(frozen=True)
class Lease:
    """One worker's claim to one shard. The database checks only `(shard_id, term)`."""

    shard_id: str
    job_id: str
    tenant_id: str
    term: Term
    worker_id: str
    expires_at: datetime  # by the database's clock


@dataclass(frozen=True)
class Lead:
    """One scheduler's right to do a duty. The database checks all three."""

    duty: str
    leader_id: str
    term: Term


@dataclass(frozen=True)
class LeaseConfig:
    ttl_s: float = 30.0  # the longest a killed worker's shards wait
    heartbeat_s: float = 5.0  # six chances to renew within `ttl_s`
    trust_s: float = 20.0  # without a renewal for this long, the worker stops writing

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_s < self.trust_s < self.ttl_s:
            raise ValueError(
                "a lease needs heartbeat_s < trust_s < ttl_s, "
                f"got {self.heartbeat_s} / {self.trust_s} / {self.ttl_s}"
            )


@dataclass
class Trust:
    """The time for which a worker may rely on its leases, in seconds of its monotonic clock."""

    config: LeaseConfig
    renewed_at_s: float = field(default=float("-inf"))

    def renewed(self, asked_at_s: float) -> None:
        """A renewal that was *requested* at this time has succeeded."""
        self.renewed_at_s = max(self.renewed_at_s, asked_at_s)

    def holds(self, now_s: float) -> bool:
        """Whether results may be written under the leases held."""
        return now_s < self.renewed_at_s + self.config.trust_s

    def is_lost(self, now_s: float) -> bool:
        """Whether another worker may hold the leases by now."""
        return now_s >= self.renewed_at_s + self.config.ttl_s


def fault_delay_s(faults: int, key: str) -> float:
    """Seconds to wait after this many external faults in a row: 1, 2, 4 … 60 s ± 20 %, fixed by `key`."""
    spread = int.from_bytes(hashlib.sha256(f"{key}:{faults}".encode()).digest()[:4]) / 2**32
    return RETRY.delay_s(faults) * (1 + RETRY_JITTER * (2 * spread - 1))
