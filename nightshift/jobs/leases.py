"""The right to run a shard: limited in time, numbered, and refused by the database once it is old.

A lease does not stop a worker that was paused and wakes up late; nothing could. So every claim raises the
shard's **term**, every write names the term it was made under, and a write under an old term changes nothing.

Two clocks meet here and are never compared. `Lease.expires_at` is the database's. A worker keeps its own
**trust deadline** on its monotonic clock, anchored at the moment *before* it asked for the renewal, so a slow
round trip can only shorten its trust, and it stops trusting a good while before the database does:

    renewal asked          trust ends                     lease expires, others may claim
    |---------- trust_s ---------|------- safety ----------|
"""

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NewType

from nightshift.backoff import Backoff

Term = NewType("Term", int)
FIRST_TERM: Final = Term(1)

RETRY: Final = Backoff(first_s=1.0, longest_s=60.0)
RETRY_JITTER: Final = 0.2  # so that what failed together does not come back together


@dataclass(frozen=True)
class Lease:
    """One worker's claim to one shard. Only `(shard_id, term)` matters to the database."""

    shard_id: str
    job_id: str
    tenant_id: str
    term: Term
    worker_id: str
    expires_at: datetime  # by the database's clock


@dataclass(frozen=True)
class LeaseConfig:
    """Seconds, with the reason for each."""

    ttl_s: float = 30.0  # a killed worker's shards wait this long at most
    heartbeat_s: float = 5.0  # six chances to renew before the lease is gone
    trust_s: float = 20.0  # without a renewal for this long, the worker stops writing

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_s < self.trust_s < self.ttl_s:
            raise ValueError(
                "a lease needs heartbeat_s < trust_s < ttl_s, "
                f"got {self.heartbeat_s} / {self.trust_s} / {self.ttl_s}"
            )


@dataclass
class Trust:
    """How long a worker may believe in its leases, on its own monotonic clock (seconds)."""

    config: LeaseConfig
    renewed_at_s: float = field(default=float("-inf"))

    def renewed(self, asked_at_s: float) -> None:
        """A renewal that was *asked for* at this moment has succeeded."""
        self.renewed_at_s = max(self.renewed_at_s, asked_at_s)

    def holds(self, now_s: float) -> bool:
        """Whether results may still be written under the leases held."""
        return now_s < self.renewed_at_s + self.config.trust_s

    def is_lost(self, now_s: float) -> bool:
        """Whether the database may already have leased these shards to another worker."""
        return now_s >= self.renewed_at_s + self.config.ttl_s


def retry_delay_s(faults: int, key: str) -> float:
    """How long to leave alone what has met so many faults in a row, none of its own: 1, 2, 4 … 60 s ± 20 %.

    The same key and number give the same delay.
    """
    spread = int.from_bytes(hashlib.sha256(f"{key}:{faults}".encode()).digest()[:4]) / 2**32
    return RETRY.delay_s(faults) * (1 + RETRY_JITTER * (2 * spread - 1))
