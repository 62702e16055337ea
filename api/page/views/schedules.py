"""The tenant's schedules, newest first, and one of them with its runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from api.page.view import Action, Context, Outcome, PageRequest, View, paged
from api.page.views.job_rows import JobRow, Tone
from api.schedules import routes as schedules
from api.schedules.views import run_after, schedule_after
from nightshift.lifecycle.schedules.changes import get_schedule, problem_of
from nightshift.schedules.plans import Plan, Schedule, ScheduleProblem
from nightshift.schedules.runs import Run, RunState
from nightshift.schedules.zones import zone_named
from nightshift.store import Transaction

PER_PAGE: Final = 50
LATE_AFTER: Final = timedelta(minutes=1)  # a run begins within seconds of its time, and its jitter

TONES: Final[Mapping[RunState, Tone]] = {
    RunState.WAITING: Tone.WAITING,
    RunState.SUBMITTED: Tone.ACTIVE,
    RunState.SUCCEEDED: Tone.GOOD,
    RunState.FAILED: Tone.BAD,
    RunState.SKIPPED: Tone.WARNING,
    RunState.MISSED: Tone.BAD,
    RunState.REFUSED: Tone.BAD,
}


@dataclass(frozen=True)
class RunRow:
    """`job`: of a run that is under way, to show how far it is; None also where the job was deleted."""

    run: Run
    job: JobRow | None
    now: datetime

    @property
    def resumes_at(self) -> datetime | None:
        """The opening of the window that its job waits for."""
        return None if self.job is None else self.job.job.resumes_at

    @property
    def state(self) -> str:
        return "paused" if self.job is not None and self.job.state == "paused" else self.run.state

    @property
    def tone(self) -> Tone:
        return Tone.WAITING if self.state == "paused" else TONES[self.run.state]

    @property
    def is_late(self) -> bool:
        """Whether it has not begun in time, or its job will not be ready in time."""
        if self.run.state is RunState.WAITING:
            return self.run.check_at is not None and self.now - self.run.check_at > LATE_AFTER
        return self.job is not None and self.job.is_late

    @property
    def took(self) -> timedelta | None:
        began, ended = self.run.started_at, self.run.ended_at
        return None if began is None or ended is None else ended - began


@dataclass(frozen=True)
class ScheduleRow:
    schedule: Schedule
    last: RunRow | None
    problem: ScheduleProblem | None
    now: datetime

    @property
    def plan(self) -> Plan:
        return self.schedule.plan

    @property
    def is_late(self) -> bool:
        """Whether a run should have begun or will not be ready in time."""
        due_at = self.schedule.next_at
        is_overdue = due_at is not None and self.now - due_at > LATE_AFTER
        return is_overdue or (self.last is not None and self.last.is_late)

    @property
    def state(self) -> str:
        if self.problem is not None:
            return "problem"
        if self.schedule.paused_at is not None:
            return "paused"
        return "late" if self.is_late else "active"

    @property
    def tone(self) -> Tone:
        return {"problem": Tone.BAD, "paused": Tone.OVER, "late": Tone.WARNING}.get(self.state, Tone.GOOD)

    @property
    def next_runs(self) -> Sequence[datetime]:
        return self.schedule.next_runs(self.now)

    def local(self, at: datetime) -> str:
        """`Sun 29 Nov 01:00`, by the clock of the plan's zone."""
        return f"{at.astimezone(zone_named(self.plan.time_zone)):%a %-d %b %H:%M}"


def load(tx: Transaction, request: PageRequest, now: datetime) -> Context:
    tenant_id, id = request.caller.tenant_id, request.text("after")
    after = None if id is None else schedule_after(tx, tenant_id, id)
    rows = tx.schedules.list(tenant_id, limit=PER_PAGE + 1, after=after)
    return {"rows": _rows(tx, rows[:PER_PAGE], now), **paged(request, rows, PER_PAGE)}


def load_schedule(tx: Transaction, request: PageRequest, now: datetime) -> Context:
    schedule = get_schedule(tx, request.caller.tenant_id, request.path["schedule_name"])
    id = request.text("after")
    after = None if id is None else run_after(tx, schedule, id)
    runs = tx.schedules.runs(schedule.id, limit=PER_PAGE + 1, after=after)
    [row] = _rows(tx, [schedule], now)
    shown = [_run_row(tx, run, now) for run in runs[:PER_PAGE]]
    return {"row": row, "runs": shown, **paged(request, runs, PER_PAGE)}


def _rows(tx: Transaction, schedules: Sequence[Schedule], now: datetime) -> Sequence[ScheduleRow]:
    last_runs = tx.schedules.last_runs([schedule.id for schedule in schedules])
    rows = {id: _run_row(tx, run, now) for id, run in last_runs.items()}
    return [ScheduleRow(one, rows.get(one.id), problem_of(tx, one), now) for one in schedules]


def _run_row(tx: Transaction, run: Run, now: datetime) -> RunRow:
    is_running = run.state is RunState.SUBMITTED and run.job_id is not None
    job = tx.jobs.get(run.tenant_id, run.job_id or "") if is_running else None
    return RunRow(run, None if job is None else JobRow(job, now), now)


def pause(request: PageRequest) -> Outcome:
    schedules.pause_schedule(request.path["schedule_name"], request.services, request.caller)
    return Outcome(message="No more runs are started. One that has begun goes on.")


def resume(request: PageRequest) -> Outcome:
    schedules.resume_schedule(request.path["schedule_name"], request.services, request.caller)
    return Outcome(message="The schedule goes on, from its next time on.")


def run_now(request: PageRequest) -> Outcome:
    schedules.run_schedule(request.path["schedule_name"], request.services, request.caller)
    return Outcome(message="A run begins now, beside the plan's times.")


VIEW: Final = View(path="/ui/schedules", title="Schedules", template="schedules/schedules.html", load=load)
SCHEDULE_VIEW: Final = View(
    path="/ui/schedules/{schedule_name}",
    title="Schedule",
    template="schedules/schedule.html",
    load=load_schedule,
    is_in_navigation=False,
    section="/ui/schedules",
    actions=(
        Action(path="/pause", act=pause),
        Action(path="/resume", act=resume),
        Action(path="/run", act=run_now),
    ),
)
