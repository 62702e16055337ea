"""The tenant's schedules, newest first, and one of them with its runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from api.page.view import Action, Context, Outcome, PageRequest, View, paged
from api.page.views.job_rows import JobRow, Tone
from api.schedules import routes as schedules
from nightshift.errors import NotFound
from nightshift.lifecycle.schedules.changes import get_schedule, problem_of
from nightshift.schedules.plans import Plan, Schedule, ScheduleProblem, ScheduleVersion
from nightshift.schedules.runs import Run, RunState
from nightshift.schedules.zones import zone_named
from nightshift.store import Transaction

PER_PAGE: Final = 50
NEXT_RUNS: Final = 3
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
    def tone(self) -> Tone:
        return TONES[self.run.state]

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
    version: ScheduleVersion
    last: RunRow | None
    problem: ScheduleProblem | None
    now: datetime

    @property
    def plan(self) -> Plan:
        return self.version.plan

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
        """The next instants, the first of which is past where it is late; none while it is paused, or where
        it follows another plan.
        """
        first, cron = self.schedule.next_at, self.plan.cron_at(self.now)
        if first is None or cron is None:
            return []
        return [first, *islice(cron.after(max(first, self.now)), NEXT_RUNS - 1)]

    def local(self, at: datetime) -> str:
        """`Sun 29 Nov 01:00`, by the clock of the plan's zone."""
        return f"{at.astimezone(zone_named(self.plan.time_zone)):%a %-d %b %H:%M}"


def load(tx: Transaction, request: PageRequest, now: datetime) -> Context:
    tenant_id, after = request.caller.tenant_id, request.text("after")
    rows = tx.schedules.list(tenant_id, limit=PER_PAGE + 1, after=_schedule_of(tx, tenant_id, after))
    return {"rows": _rows(tx, rows[:PER_PAGE], now), **paged(request, rows, PER_PAGE)}


def load_schedule(tx: Transaction, request: PageRequest, now: datetime) -> Context:
    tenant_id, after = request.caller.tenant_id, request.text("after")
    schedule = get_schedule(tx, tenant_id, request.path["schedule_name"])
    runs = tx.schedules.runs(schedule.id, limit=PER_PAGE + 1, after=_run_of(tx, schedule, after))
    [row] = _rows(tx, [schedule], now)
    return {
        "row": row,
        "runs": [_run_row(tx, run, now) for run in runs[:PER_PAGE]],
        **paged(request, runs, PER_PAGE),
    }


def _rows(tx: Transaction, schedules: Sequence[Schedule], now: datetime) -> Sequence[ScheduleRow]:
    last_runs = tx.schedules.last_runs([schedule.id for schedule in schedules])
    return [
        ScheduleRow(
            schedule,
            tx.schedules.version(schedule.id, schedule.version),
            _run_row(tx, last_runs[schedule.id], now) if schedule.id in last_runs else None,
            problem_of(tx, schedule),
            now,
        )
        for schedule in schedules
    ]


def _run_row(tx: Transaction, run: Run, now: datetime) -> RunRow:
    is_running = run.state is RunState.SUBMITTED and run.job_id is not None
    job = tx.jobs.get(run.tenant_id, run.job_id or "") if is_running else None
    return RunRow(run, None if job is None else JobRow(job, now), now)


def _schedule_of(tx: Transaction, tenant_id: str, id: str | None) -> Schedule | None:
    schedule = None if id is None else tx.schedules.get(tenant_id, id)
    if id is not None and schedule is None:
        raise NotFound(f"No such Schedule object: {id}", param="after")
    return schedule


def _run_of(tx: Transaction, schedule: Schedule, id: str | None) -> Run | None:
    run = None if id is None else tx.schedules.run(schedule.tenant_id, id)
    if id is not None and (run is None or run.schedule_id != schedule.id):
        raise NotFound(f"No such run of '{schedule.name}': {id}", param="after")
    return run


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
