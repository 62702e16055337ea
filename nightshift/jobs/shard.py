"""Shards, contiguous runs of a job's rows, their objects, and the rings that tell workers of them.

shard   queued ◄──► leased ──► done
          │           ├─────► failed       given up after too many attempts
          └───────────┴─────► stopped      its job was cancelled, expired or failed
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nightshift.jobs.job import Fault, InputError, Job, JobKind, JsonObject, Usage
from nightshift.jobs.leases import Lease, Term

_CARRY_OVER_SHA256: Final = re.compile(r"-c[0-9]{6,}-([0-9a-f]{64})\.jsonl$")


class ShardState(StrEnum):
    QUEUED = "queued"
    LEASED = "leased"  # held by a worker under `term`
    DONE = "done"  # every row is in a listed segment
    STOPPED = "stopped"  # its job ended first; missing results become error lines
    FAILED = "failed"  # given up; likewise

    @property
    def is_terminal(self) -> bool:
        return not SHARD_TRANSITIONS[self]


SHARD_TRANSITIONS: Final[Mapping[ShardState, frozenset[ShardState]]] = {
    ShardState.QUEUED: frozenset({ShardState.LEASED, ShardState.STOPPED}),
    ShardState.LEASED: frozenset({ShardState.QUEUED, ShardState.DONE, ShardState.STOPPED, ShardState.FAILED}),
    ShardState.DONE: frozenset(),
    ShardState.STOPPED: frozenset(),
    ShardState.FAILED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class ShardObject:
    """An object that is one row."""

    uri: str
    etag: str | None  # when planned; None: any


@dataclass(frozen=True, kw_only=True)
class NewShard:
    """A contiguous run of rows. `start` and `end` are bytes (JSONL) or row groups (Parquet)."""

    shard_no: int
    uri: str  # the object's; the first one's of `objects`
    format: str
    start: int
    end: int | None  # None: to the object's end
    rows_estimated: int | None = None
    first_row: int | None = None  # the job's rows before this shard, if known
    source_etag: str | None = None  # the object's etag when planned; None: any
    objects: tuple[ShardObject, ...] = ()  # each a row, all in one store; none: the rows are in `uri`

    @property
    def sources(self) -> tuple[ShardObject, ...]:
        """All objects that have its rows, in order."""
        return self.objects or (ShardObject(self.uri, self.source_etag),)


@dataclass(frozen=True, kw_only=True)
class Shard(NewShard):
    id: str
    job_id: str
    state: ShardState
    term: Term
    attempts: int
    attempts_before: int = 0  # attempts that had ended when the last one to make progress began
    rows_total: int | None = None  # known once a worker has read it all
    rows_done: int = 0
    carry_over_key: str | None = None  # the object with a drained worker's unfinished rows
    faults: int = 0  # external faults in a row, such as storage errors
    fault: Fault | None = None  # the last that was met since a segment was listed

    @property
    def input_error(self) -> InputError | None:
        """The reason why no worker can read its input to the end. None: it was read, or may be."""
        is_over = self.state is ShardState.FAILED
        return self.fault.error if is_over and self.fault is not None else None

    @property
    def attempts_in_a_row(self) -> int:
        """Attempts since a segment was last listed, including the one that listed it."""
        return self.attempts - self.attempts_before


@dataclass(frozen=True, kw_only=True)
class Segment:
    """An immutable object with results of some of a shard's rows. It exists once the database lists it."""

    key: str
    term: Term
    seq: int  # 0, 1, 2 … within the term
    succeeded: int
    failed: int
    usage: Usage
    size_bytes: int
    sha256: str
    output_bytes: int | None = None  # size of its successes' lines in an output file; None: not counted
    reused: int = 0  # rows with the result of another row

    @property
    def rows(self) -> int:
        return self.succeeded + self.failed


@dataclass(frozen=True)
class CrashHistory:
    """The known losses of a shard's workers."""

    crashes: int = 0  # workers lost with it since it was last cleared
    suspects: tuple[int, ...] = ()  # rows in flight at a loss: each runs alone
    dead: frozenset[int] = frozenset()  # dead-lettered rows: each gets an error line

    @property
    def is_watched(self) -> bool:
        """Whether rows are journalled before the engine gets them."""
        return self.crashes > 0


@dataclass(frozen=True)
class Interruption:
    """The end of a lease of a shard that goes on with another."""

    term: int
    worker_id: str
    cause: str
    """An `ExitCause` of a worker that was lost, or why one returned the shard."""


@dataclass(frozen=True)
class BulkClaim:
    """A leased shard and what a worker needs to run it."""

    lease: Lease
    shard: Shard
    job: Job
    crash_history: CrashHistory = CrashHistory()
    begins_job: bool = False  # it is the job's first
    took_over: Interruption | None = None
    """The end of the lease before this one. None: there was none, or it is not known."""


@dataclass(frozen=True)
class OnlineClaim:
    """A leased online request and what a worker needs to run it."""

    lease: Lease
    job: Job
    body: JsonObject
    runs_alone: bool = False  # workers were lost with it: its worker runs nothing else
    waited_s: float = 0.0  # from its submit to this claim, by the database's clock


def segment_key(lease: Lease, shard_no: int, seq: int) -> str:
    """A segment's object store key. The term and number keep two writers from sharing one."""
    return f"segments/{lease.tenant_id}/{lease.job_id}/{shard_no:06d}/t{lease.term}-{seq:06d}.arrow"


def carry_over_key(lease: Lease, shard_no: int, seq: int, sha256: str) -> str:
    """The object store key of unfinished rows' tokens; `seq` counts within the term.

    The key contains the bytes' sha256 (hex), so a reader that has the key from the database can verify them.
    """
    folder = f"segments/{lease.tenant_id}/{lease.job_id}/{shard_no:06d}"
    return f"{folder}/t{lease.term}-c{seq:06d}-{sha256}.jsonl"


def carry_over_sha256(key: str) -> str | None:
    """The sha256 in a carry-over key. None: it is no such key."""
    match = _CARRY_OVER_SHA256.search(key)
    return None if match is None else match[1]


@dataclass(frozen=True)
class Ring:
    """A message to send, for one online shard or for bulk work."""

    id: int
    kind: JobKind
    shard_id: str | None
    priority_rank: int
    traceparent: str | None = None  # what it is a part of; the outbox does not keep it
