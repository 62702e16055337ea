"""Rows that kill whoever runs them: who is suspected, who is run alone, who is run no more. Pure.

    1st worker lost     the shard is watched: its rows are written down before they are given to the engine
    2nd                 those written down are suspects: each runs alone in its worker from now on
    3rd                 exactly one row was under way: it is dead, and the rest of the shard goes on

Whoever is written down at the second loss is taken to have been there at the first. A row that finishes is
above suspicion. A death nobody can explain (a plain kill -9, a lease that ran out) leads to isolation like
any other, but a row dies of such deaths only after five while it ran alone, and five more than were lost
elsewhere meanwhile: machines are taken away, and rows that happened to be there are innocent. Where workers
die all the time and everywhere, a row that runs alone in one of them is there when that is its turn, no more
often.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from nightshift.fleet.workers import ExitCause

CRASHES_TO_BURY: Final = 3  # the last of them with the row alone, and explained
ALONE_TO_BURY: Final = 5  # workers lost unexplained while the row ran alone, beyond those lost elsewhere
ALONE_MAX: Final = 20  # however many were lost elsewhere: several such rows may hide behind each other
AMONG_OTHERS_MAX: Final = 2  # losses a row is blamed for before it runs alone

# Workers lost with a shard none of whose rows was begun under the last lease: reading it kills them.
CRASHES_WITHOUT_SUSPECT_MAX: Final = 5

ERROR_CODE: Final = "row_crashes_workers"


@dataclass(frozen=True)
class Judgement:
    """What is concluded from the loss of a worker for one shard it had."""

    charge: bool  # whether it counts as an attempt and as a crash of the shard
    blamed: tuple[int, ...] = ()  # rows that were under way
    dead: tuple[int, ...] = ()  # of them, those that are run no more
    isolate: bool = False  # some row is suspected: suspects run alone
    give_up: bool = False  # the shard as a whole


def judge(
    cause: ExitCause,
    crashes_before: int,
    journalled: Sequence[int],
    known: Mapping[int, int],
    is_isolating: bool,
    lost_elsewhere: int = 0,
) -> Judgement:
    """`crashes_before`: workers lost with the shard since it made progress; `journalled`: rows under way, as
    far as they were written down; `known`: crashes of those suspected before, by row; `lost_elsewhere`: where
    one ran alone, workers lost without it since it was first suspected, which nothing explains.
    """
    if not cause.is_crash:
        return Judgement(charge=False, isolate=is_isolating)
    if ran_alone(journalled, known, is_isolating):
        (row,) = journalled
        is_dead = known[row] + 1 >= _crashes_to_bury(cause, lost_elsewhere)
        # It was the row's doing, and no attempt of the others.
        return Judgement(
            charge=False,
            blamed=(row,),
            dead=(row,) if is_dead else (),
            isolate=not is_dead or len(known) > 1,
        )
    if not journalled:
        reading_kills = cause.is_explained and crashes_before + 1 >= CRASHES_WITHOUT_SUSPECT_MAX
        return Judgement(charge=True, isolate=is_isolating, give_up=reading_kills)
    return Judgement(charge=True, blamed=tuple(journalled), isolate=True)


def ran_alone(journalled: Sequence[int], known: Mapping[int, int], is_isolating: bool) -> bool:
    """Whether the worker had one suspected row in it, and nothing else."""
    return is_isolating and len(journalled) == 1 and journalled[0] in known


def _crashes_to_bury(cause: ExitCause, lost_elsewhere: int) -> int:
    if cause.is_explained:
        return CRASHES_TO_BURY
    return AMONG_OTHERS_MAX + min(ALONE_TO_BURY + lost_elsewhere, ALONE_MAX)


class DeadLetterState(StrEnum):
    DEAD = "dead"  # nobody has decided
    REPLAYED = "replayed"  # it was submitted again, as a job of its own
    DISCARDED = "discarded"  # the operator wants to hear no more of it


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A row that is run no more. In its job's output it is an error line."""

    id: str
    tenant_id: str
    job_id: str
    shard_id: str
    row: int  # in its shard, from 0
    custom_id: str | None = None  # None: no worker has said yet
    cause: ExitCause
    crashes: int  # workers lost while it was, or may be taken to have been, under way
    worker_id: str | None  # the last one it killed
    died_at: datetime
    state: DeadLetterState = DeadLetterState.DEAD
    decided_at: datetime | None = None
    replay_job_id: str | None = None
