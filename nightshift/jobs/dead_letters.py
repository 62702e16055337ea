"""Rows that crash workers: which are suspected, which run alone, which become dead letters. Pure.

    1st worker lost     the shard is watched: its rows are journalled before the engine gets them
    2nd                 the journalled rows are suspects: each runs alone in its worker from now on
    3rd                 exactly one row was in flight; if the worker itself failed, that row is a dead letter

A suspect that finishes is cleared. A loss that nothing explains (SIGKILL, an expired lease) isolates like any
other, but machines are taken away with healthy rows on them: such losses make a dead letter only after
`UNEXPLAINED_CRASHES_MAX` in a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from nightshift.fleet.workers import ExitCause

CRASHES_MAX: Final = 3  # for a row, where the last loss is explained and the row was alone
# Two among other rows and twenty alone. A healthy row is hit so often only where workers are killed all the
# time: in 1000 random kills five alone happened to 18 rows of 12,710, twenty to none (docs/dead_letters.md).
UNEXPLAINED_CRASHES_MAX: Final = 22

# Explained losses in a row with a shard none of whose rows had begun: reading it crashes the worker. After as
# many a supervisor gives its worker up (`EXITS_IN_A_ROW_MAX`).
READING_CRASHES_MAX: Final = 5

ERROR_CODE: Final = "row_crashes_workers"


@dataclass(frozen=True)
class LostShard:
    """The state of a shard or online request as its worker was lost."""

    crashes: int = 0  # workers lost with it before, since it was last cleared
    in_flight: tuple[int, ...] = ()  # rows in the engine, as far as they were journalled
    suspects: Mapping[int, int] = field(default_factory=dict)  # crashes of each suspected row
    is_isolating: bool = False  # suspects run alone
    is_waiting: bool = False  # an online request that has not begun to run alone
    crashes_in_a_row: int = 0  # crashes since it last made progress

    @property
    def ran_alone(self) -> bool:
        """Whether one suspected row had the worker to itself."""
        return self.is_isolating and len(self.in_flight) == 1 and self.in_flight[0] in self.suspects

    @property
    def may_have_run(self) -> bool:
        """Whether a row of it may have been in the engine: what an unwatched shard ran is not known."""
        return not self.crashes or bool(self.in_flight)


@dataclass(frozen=True)
class Charge:
    """The consequence of a worker's loss for one shard it held."""

    shard: bool  # whether it counts as an attempt and as a crash of the shard
    rows: tuple[int, ...] = ()  # each is charged a crash
    dead_row: int | None = None  # one of `rows`, which is not run again
    isolate: bool = False  # suspects run alone from now on
    give_up: bool = False  # the shard as a whole


def charges(cause: ExitCause, held: Sequence[LostShard]) -> Sequence[Charge]:
    """Charges each shard of a lost worker: the row that ran alone; without one, the shards that may
    have had rows in the engine; without any, all but waiting requests, since reading one may have crashed it.

    Two rows that both ran alone contradict each other, and nothing is charged.
    """
    alone = [shard.ran_alone for shard in held]
    running = [shard.may_have_run for shard in held]
    if not cause.is_crash or sum(alone) > 1:
        charged = [False] * len(held)
    elif any(alone):
        charged = alone
    else:
        charged = running if any(running) else [not shard.is_waiting for shard in held]
    return [
        _charge(cause, shard) if is_charged else Charge(shard=False, isolate=shard.is_isolating)
        for shard, is_charged in zip(held, charged, strict=True)
    ]


def _charge(cause: ExitCause, lost: LostShard) -> Charge:
    if not lost.ran_alone:
        isolate = lost.is_isolating or bool(lost.in_flight)
        has_crashed_reading = cause.is_explained and lost.crashes and not lost.in_flight
        give_up = bool(has_crashed_reading) and lost.crashes_in_a_row + 1 >= READING_CRASHES_MAX
        return Charge(shard=True, rows=lost.in_flight, isolate=isolate, give_up=give_up)
    (row,) = lost.in_flight
    crashes_max = CRASHES_MAX if cause.is_explained else UNEXPLAINED_CRASHES_MAX
    is_dead = lost.suspects[row] + 1 >= crashes_max
    return Charge(
        shard=False,  # the other rows had no part in it
        rows=lost.in_flight,
        dead_row=row if is_dead else None,
        isolate=not is_dead or len(lost.suspects) > 1,
    )


class DeadLetterState(StrEnum):
    DEAD = "dead"  # nothing was decided
    REPLAYED = "replayed"  # it was submitted again, as a job of its own
    DISCARDED = "discarded"  # the operator has dismissed it


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A row that is not run again. In its job's output it is an error line."""

    id: str
    tenant_id: str
    job_id: str
    shard_id: str
    row: int  # number in its shard, from 0
    custom_id: str | None = None  # None: no worker has read it yet
    cause: ExitCause
    crashes: int  # workers lost while it was, or is taken to have been, in flight
    worker_id: str | None  # the last of them
    died_at: datetime
    state: DeadLetterState = DeadLetterState.DEAD
    decided_at: datetime | None = None
    replay_job_id: str | None = None
