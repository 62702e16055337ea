"""A schedule's runs: which instants are due, which were missed, and what a run does beside one under way.

waiting ──► submitted ──► succeeded | failed
   └──────► skipped | refused              missed
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from nightshift.schedules.cron import Cron
from nightshift.schedules.plans import CatchUp, Overlap, Plan

MISSED_AFTER: Final = timedelta(minutes=5)  # a scheduler that restarts has started the run by then


class RunState(StrEnum):
    WAITING = "waiting"  # for its jitter, the run before it, or that of the plan it follows
    SUBMITTED = "submitted"  # it has its job
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # its job failed, expired or was cancelled
    SKIPPED = "skipped"  # another run was under way, or that of the plan it follows did not succeed
    MISSED = "missed"  # no scheduler ran at its time, and it was not made up for
    REFUSED = "refused"  # its job could not be submitted


UNDER_WAY: Final = (RunState.WAITING, RunState.SUBMITTED)
OUTCOMES: Final = (RunState.SUBMITTED, RunState.SKIPPED, RunState.MISSED, RunState.REFUSED)


@dataclass(frozen=True, kw_only=True)
class Run:
    id: str
    schedule_id: str
    tenant_id: str
    version: int  # of the plan that it was submitted with, or was recorded with
    due_at: datetime  # the instant
    follows: str | None = None  # the schedule whose run of the same instant must have succeeded
    local_date: str
    state: RunState
    check_at: datetime | None = None  # from when it is looked at; None: what it waits for wakes it
    job_id: str | None = None
    output: str | None = None  # its job's folder
    started_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str | None = None


@dataclass(frozen=True)
class DueRun:
    """An instant to record."""

    instant: datetime
    local_date: str
    is_missed: bool


def due_runs(plan: Plan, cron: Cron, first: datetime, now: datetime) -> list[DueRun]:
    """The runs to record of the instants from `first` until now, oldest first: `catch_up_limit` at most."""
    instants = cron.newest(first, now, plan.catch_up_limit)
    return [
        DueRun(instant, cron.local_date(instant), _is_missed(plan, instant, instants[-1], now))
        for instant in instants
    ]


def _is_missed(plan: Plan, instant: datetime, newest: datetime, now: datetime) -> bool:
    if plan.catch_up is CatchUp.ALL:
        return False
    if instant != newest:
        return True
    return plan.catch_up is CatchUp.NONE and now - instant > MISSED_AFTER


def jittered(schedule_id: str, instant: datetime, jitter_s: int) -> datetime:
    """The time at which a run starts: up to `jitter_s` seconds past its instant, the same at each call."""
    if jitter_s == 0:
        return instant
    digest = hashlib.sha256(f"{schedule_id}:{instant.timestamp():.3f}".encode()).digest()
    return instant + timedelta(milliseconds=int.from_bytes(digest[:8]) % (jitter_s * 1000))


class Start(StrEnum):
    """The step of a run that is looked at."""

    NOW = "now"
    WAIT = "wait"  # until the one before it has ended
    SKIP = "skip"
    REPLACE = "replace"  # cancel the one before it, and wait for its end


def beside(plan: Plan, earlier: Sequence[Run]) -> tuple[Start, str]:
    """The step of a run beside the earlier ones under way, oldest first, and the reason for it."""
    if not earlier:
        return Start.NOW, ""
    last = earlier[-1]
    what = "waits" if last.job_id is None else f"still runs as {last.job_id}"
    if plan.overlap is Overlap.SKIP:
        return Start.SKIP, f"The run of {last.local_date} {what}, and 'overlap' is \"skip\"."
    if plan.overlap is Overlap.REPLACE:
        return Start.REPLACE, f"It replaces the run of {last.local_date}, once that has ended."
    if len(earlier) > plan.catch_up_limit:
        return Start.SKIP, f"{len(earlier)} runs are under way or wait: more than 'catch_up_limit'."
    return Start.WAIT, f"The run of {last.local_date} {what}."


def behind(followed: Run | None, name: str) -> tuple[Start, str]:
    """The step of a run that follows another plan's run of the same instant, and the reason for it."""
    if followed is None:
        return Start.SKIP, f"There is no run of '{name}' to follow any more."
    if followed.state is RunState.SUCCEEDED:
        return Start.NOW, ""
    if followed.state in UNDER_WAY:
        return Start.WAIT, f"It starts when the run of '{name}' has succeeded."
    return Start.SKIP, f"The run of '{name}' of {followed.local_date} ended as {followed.state}."
