"""Parts: contiguous runs of a native bulk job's ended shards, and the output files written of them. No I/O.

part   ready ──► leased ──► written
         ▲          │
         └──────────┘                its lease has expired, or its owner gave it back

A part is leased under a term as a shard is: every claim raises the term, and every write names it.

    part-00000-4k3j2h1g.parquet    good rows of the shards from 0 on; the rest is the run's own name
    errors-00000-4k3j2h1g.parquet  the others, with the same columns
    _manifest.json  _manifest-4k3j2h1g.json  _inputs-4k3j2h1g.ndjson  _SUCCESS

The names of files without rows begin with `_`, because readers of data skip such names. No part ends like
them: a pattern for parts, such as `*.jsonl`, does not match them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from nightshift.jobs.job import InputError, Job, JsonObject
from nightshift.jobs.leases import Term

PARTS_PER_DOUBLING: Final = 4096
LATER_COUNTS: Final = frozenset({"reused", "truncated", "unlisted"})  # of a file; not in the first release


class PartState(StrEnum):
    READY = "ready"
    LEASED = "leased"  # held by a process under `term`
    WRITTEN = "written"  # its files lie at their place

    @property
    def is_terminal(self) -> bool:
        return not PART_TRANSITIONS[self]


PART_TRANSITIONS: Final[Mapping[PartState, frozenset[PartState]]] = {
    PartState.READY: frozenset({PartState.LEASED}),
    PartState.LEASED: frozenset({PartState.READY, PartState.WRITTEN}),
    PartState.WRITTEN: frozenset(),
}


@dataclass(frozen=True, kw_only=True)
class PartUpload:
    """A file that was begun for a part. Recorded before any of its bytes are sent."""

    name: str  # name of the file in the output
    key: str  # key in the store of the output
    upload_id: str
    staged: JsonObject | None = None  # the store's record once all bytes are there; None: not yet
    counted: JsonObject | None = None  # what is in it, likewise: the counts of a `PartFile`

    def to_json(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "PartUpload":
        return cls(**data)


@dataclass(frozen=True, kw_only=True)
class PartFile:
    """A file that was written of a part."""

    name: str
    rows: int
    succeeded: int
    failed: int
    size_bytes: int
    sha256: str
    etag: str
    prompt_tokens: int
    completion_tokens: int
    reused: int = 0  # rows with the result of another
    truncated: int = 0  # rows with inputs that were cut
    unlisted: int = 0  # rows that were not run and have no line, though they count

    def to_json(self) -> JsonObject:
        """The counts as JSON, without those that earlier releases do not know, where they are 0."""
        said = asdict(self)
        return {name: said[name] for name in said if said[name] or name not in LATER_COUNTS}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "PartFile":
        return cls(**{name: data[name] for name in data if name in cls.__dataclass_fields__})


@dataclass(frozen=True, kw_only=True)
class PartProblem:
    """The reason why a part, or the manifest, could not be written the last time."""

    error: InputError
    is_permanent: bool  # trying again would not help

    def to_json(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "PartProblem":
        return cls(error=InputError(**data["error"]), is_permanent=data["is_permanent"])


@dataclass(frozen=True)
class OutputProblem:
    """The reason why an output cannot be written at present."""

    problem: PartProblem
    next_attempt_at: datetime | None = None  # None: there is none, or its time is not known


@dataclass(frozen=True)
class PartLease:
    """One process's claim to one part. The database checks only `(part_id, term)`."""

    part_id: str
    job_id: str
    term: Term
    owner: str
    expires_at: datetime  # by the database's clock


@dataclass(frozen=True, kw_only=True)
class OutputPart:
    id: str
    job_id: str
    first_shard: int
    last_shard: int  # inclusive
    state: PartState
    term: Term
    owner: str | None  # while it is leased
    lease_expires_at: datetime | None
    attempts: int  # claims so far, without those that were given back
    uploads: tuple[PartUpload, ...]  # begun by the last owner that recorded any; the next one discards them
    files: tuple[PartFile, ...]  # once written; none of a part without rows
    rows: int  # rows of its files
    succeeded: int
    failed: int
    problem: PartProblem | None = None


@dataclass(frozen=True)
class PartClaim:
    """A leased part and what its owner needs to write it."""

    lease: PartLease
    part: OutputPart
    job: Job

    @property
    def term(self) -> Term:
        return self.lease.term


# -- cutting ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CutLimits:
    """The limits of a part: a run of shards is long enough as soon as it reaches any of these."""

    part_bytes: int  # size of stored results
    part_rows: int
    part_shards: int = 1000  # what a pass of cutting looks at again while a run waits
    min_shards: int = 1  # … but a part has at least so many

    def __post_init__(self) -> None:
        if min(self.part_bytes, self.part_rows, self.part_shards, self.min_shards) < 1:
            raise ValueError(f"every limit of a part must be at least 1, got {self}")


@dataclass(frozen=True, slots=True)
class CutShard:
    """The facts of a shard by which it is cut."""

    shard_no: int
    is_ended: bool
    is_assigned: bool  # to a part
    rows: int = 0  # at least 1 where they are not counted
    size_bytes: int = 0  # size of its stored results

    @property
    def is_free(self) -> bool:
        return self.is_ended and not self.is_assigned


@dataclass(frozen=True, slots=True)
class NewPart:
    first_shard: int
    last_shard: int  # inclusive
    rows: int
    size_bytes: int

    @property
    def shards(self) -> int:
        return self.last_shard - self.first_shard + 1


def cut_parts(shards: Sequence[CutShard], limits: CutLimits, *, is_complete: bool) -> list[NewPart]:
    """The runs of ended shards that become parts now.

    `shards`: in order; of each ended and unassigned shard, both neighbours too, where they exist.
    `is_complete`: no shards will be added to the job.

    A run is cut from its start whenever it reaches a limit. What is left is cut when it cannot grow any more:
    on both sides is a shard of another part, or the job's end. A shard without rows joins a part like any
    other.

        assigned | ended ended ended ended ended | queued …
                   [---- a part ----] [- waits -]
    """
    end = shards[-1].shard_no + 1 if shards else 0
    settled = {shard.shard_no for shard in shards if shard.is_assigned} | {-1}
    if is_complete:
        settled.add(end)
    parts: list[NewPart] = []
    for run in _free_runs(shards):
        part: NewPart | None = None  # the one that is being filled
        for shard in run:
            part = _with(part, shard)
            if _is_full(part, limits):
                parts.append(part)
                settled.add(part.last_shard)
                part = None
        if part is not None and {part.first_shard - 1, part.last_shard + 1} <= settled:
            parts.append(part)
    return parts


def _free_runs(shards: Sequence[CutShard]) -> Iterator[list[CutShard]]:
    """Unbroken runs of shards that have ended and are in no part."""
    run: list[CutShard] = []
    for shard in shards:
        if run and not (shard.is_free and shard.shard_no == run[-1].shard_no + 1):
            yield run
            run = []
        if shard.is_free:
            run.append(shard)
    if run:
        yield run


def _with(part: NewPart | None, shard: CutShard) -> NewPart:
    if part is None:
        return NewPart(shard.shard_no, shard.shard_no, shard.rows, shard.size_bytes)
    return replace(
        part,
        last_shard=shard.shard_no,
        rows=part.rows + shard.rows,
        size_bytes=part.size_bytes + shard.size_bytes,
    )


def _is_full(part: NewPart, limits: CutLimits) -> bool:
    if part.shards < limits.min_shards:
        return False
    return (
        part.size_bytes >= limits.part_bytes
        or part.rows >= limits.part_rows
        or part.shards >= limits.part_shards
    )


def least_shards(parts: int) -> int:
    """The least shards of each further part of a job with so many parts, so that its manifest can be read.

    With 10 million shards, about 45,000 parts.
    """
    return 1 << parts // PARTS_PER_DOUBLING


MANIFEST_NAME: Final = "_manifest.json"
SUCCESS_NAME: Final = "_SUCCESS"  # written last
RUN_CHARS: Final = 8


FILE_PREFIXES: Final = ("part-", "errors-")
RUN_MANIFEST_PREFIX: Final = "_manifest-"
PREFIXES: Final = (*FILE_PREFIXES, RUN_MANIFEST_PREFIX, "_inputs-")  # prefixes of names that have a run

# Before runs had names of their own, a part was called `part-00000.jsonl`.
_FILE: Final = re.compile(r"(part|errors)-[0-9]{5,}(-(?P<run>[a-z0-9]{8}))?\.(jsonl|parquet)")
_OF_A_RUN: Final = re.compile(r"_(manifest|inputs)-(?P<run>[a-z0-9]{8})\.(json|ndjson)")


def run_of(job_id: str) -> str:
    """A run's name in those of its files."""
    return job_id.rpartition("_")[2][:RUN_CHARS]


def part_name(first_shard: int, job_id: str, format: str) -> str:
    return f"part-{first_shard:05d}-{run_of(job_id)}.{format}"


def errors_name(first_shard: int, job_id: str, format: str) -> str:
    return f"errors-{first_shard:05d}-{run_of(job_id)}.{format}"


def run_manifest_name(job_id: str) -> str:
    """The manifest of a run whose folder still has the complete output of another."""
    return f"_manifest-{run_of(job_id)}.json"


def inputs_name(job_id: str) -> str:
    """The list of a run's inputs, where the manifest has no room for it."""
    return f"_inputs-{run_of(job_id)}.ndjson"


def is_output_name(name: str) -> bool:
    """Whether an output may have an object of this name."""
    is_fixed = name in (MANIFEST_NAME, SUCCESS_NAME)
    return is_fixed or _FILE.fullmatch(name) is not None or _OF_A_RUN.fullmatch(name) is not None


def run_in(name: str) -> str | None:
    """The run that a name of ours has. None: it has none."""
    match = _FILE.fullmatch(name) or _OF_A_RUN.fullmatch(name)
    return None if match is None else match["run"]


def is_of_another_run(name: str, job_id: str) -> bool:
    """Whether its name is one of another run's output."""
    match = _FILE.fullmatch(name) or _OF_A_RUN.fullmatch(name)
    return match is not None and match["run"] != run_of(job_id)
