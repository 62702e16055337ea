"""A ring: the message that tells workers of work."""

from dataclasses import dataclass

from nightshift.jobs.job import JobKind


@dataclass(frozen=True)
class Ring:
    """A message to send, for one online shard or for bulk work."""

    id: int
    kind: JobKind
    shard_id: str | None
    priority_rank: int
    traceparent: str | None = None  # what it is a part of; the outbox does not keep it
