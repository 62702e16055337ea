"""Statements about schedules, their versions and their runs."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    Table,
    case,
    delete,
    func,
    insert,
    literal,
    select,
    text,
    tuple_,
    update,
)

from nightshift.schedules.plans import Plan, Schedule, ScheduleProblem, ScheduleVersion
from nightshift.schedules.runs import UNDER_WAY, Run, RunState
from nightshift.store import tables
from nightshift.store.databases.database import Statements, from_row, position

schedule = tables.schedule
version = tables.schedule_version
run = tables.schedule_run

IS_UNDER_WAY: Final = text(tables.IS_UNDER_WAY)  # in the index's words, else SQLite does not use it

_OF_CURRENT: Final = "current_"  # before the names of the current version's columns
_VERSION_FIELDS: Final = tuple(ScheduleVersion.__dataclass_fields__)
_SCHEDULES: Final = select(
    schedule, *(version.c[name].label(f"{_OF_CURRENT}{name}") for name in _VERSION_FIELDS)
).join(version, (version.c.schedule_id == schedule.c.id) & (version.c.version == schedule.c.version))


class Schedules(Statements):
    # -- schedules, on behalf of a tenant ---------------------------------------------------------------

    def insert(self, new: Schedule) -> bool:
        """Records a new schedule with its version. False: there is one of this name."""
        if not self._inserts(insert(schedule).values(_values(new))):
            return False
        self.insert_version(new)
        return True

    def get(self, tenant_id: str, id: str) -> Schedule | None:
        return self._one(
            _SCHEDULES.where(schedule.c.id == id, schedule.c.tenant_id == tenant_id), _to_schedule
        )

    def named(self, tenant_id: str, name: str, *, is_locked: bool = False) -> Schedule | None:
        """`is_locked`: no other transaction changes it before the end of this one."""
        named = (schedule.c.tenant_id == tenant_id, schedule.c.name == name)
        return self._locked(*named) if is_locked else self._one(_SCHEDULES.where(*named), _to_schedule)

    def list(self, tenant_id: str, *, limit: int, after: Schedule | None = None) -> Sequence[Schedule]:
        """Newest first. `after`: the last schedule of the previous page."""
        order = (schedule.c.created_at, schedule.c.id)
        wanted = _SCHEDULES.where(schedule.c.tenant_id == tenant_id)
        if after is not None:
            wanted = wanted.where(tuple_(*order) < position(order, (after.created_at, after.id)))
        ordered = wanted.order_by(*(column.desc() for column in order)).limit(limit)
        return self._all(ordered, _to_schedule)

    def count(self, tenant_id: str) -> int:
        counted = select(func.count()).select_from(schedule).where(schedule.c.tenant_id == tenant_id)
        return int(self._execute(counted).scalar_one())

    def followed(self, tenant_id: str) -> Mapping[str, str]:
        """The names of the schedules that others follow, by those of the others."""
        wanted = select(schedule.c.name, schedule.c.after).where(
            schedule.c.tenant_id == tenant_id, schedule.c.after.is_not(None)
        )
        return {row.name: row.after for row in self._execute(wanted)}

    def followers(self, tenant_id: str, name: str) -> Sequence[Schedule]:
        """The schedules that follow this one and are not paused."""
        wanted = _SCHEDULES.where(
            schedule.c.tenant_id == tenant_id, schedule.c.after == name, schedule.c.paused_at.is_(None)
        )
        return self._all(wanted.order_by(schedule.c.id), _to_schedule)

    def update(self, changed: Schedule) -> None:
        """The schedule was locked in this transaction."""
        own = (schedule.c.id == changed.id, schedule.c.tenant_id == changed.tenant_id)
        self._execute(update(schedule).where(*own).values(_values(changed)))

    def delete(self, tenant_id: str, id: str | None = None) -> int:
        """Deletes a schedule, which was locked, with its versions and runs; None: all of the tenant's.
        Returns how many there were.
        """
        is_wanted = schedule.c.tenant_id == tenant_id if id is None else schedule.c.id == id
        wanted = select(schedule.c.id).where(schedule.c.tenant_id == tenant_id, is_wanted)
        ids = list(self._execute(wanted).scalars())
        self._execute(delete(run).where(run.c.schedule_id.in_(ids)))
        self._execute(delete(version).where(version.c.schedule_id.in_(ids)))
        return self._execute(delete(schedule).where(schedule.c.id.in_(ids))).rowcount

    # -- versions and runs of a schedule that its tenant was found to have -----------------------------

    def insert_version(self, new: Schedule) -> None:
        """Records the schedule's current version."""
        more = {"schedule_id": new.id, "plan": new.plan.to_json()}
        self._execute(insert(version).values(vars(new.current) | more))

    def delete_versions(self, schedule_id: str, until: int) -> None:
        """Deletes the versions up to this one."""
        self._execute(delete(version).where(version.c.schedule_id == schedule_id, version.c.version <= until))

    def versions(
        self, schedule_id: str, *, limit: int, before: int | None = None
    ) -> Sequence[ScheduleVersion]:
        """Newest first. `before`: the last one of the previous page."""
        wanted = select(version).where(version.c.schedule_id == schedule_id)
        if before is not None:
            wanted = wanted.where(version.c.version < before)
        return self._all(wanted.order_by(version.c.version.desc()).limit(limit), _to_version)

    def insert_run(self, new: Run) -> bool:
        """Records a run. False: there is one of this instant, which stays."""
        return self._inserts(insert(run).values(vars(new)))

    def run(self, tenant_id: str, run_id: str) -> Run | None:
        return self._one(select(run).where(run.c.id == run_id, run.c.tenant_id == tenant_id), _to_run)

    def run_of(self, schedule_id: str, due_at: datetime) -> Run | None:
        return self._one(select(run).where(run.c.schedule_id == schedule_id, run.c.due_at == due_at), _to_run)

    def runs(self, schedule_id: str, *, limit: int, after: Run | None = None) -> Sequence[Run]:
        """The newest instants first. `after`: the last run of the previous page."""
        wanted = select(run).where(run.c.schedule_id == schedule_id)
        if after is not None:
            wanted = wanted.where(run.c.due_at < after.due_at)
        return self._all(wanted.order_by(run.c.due_at.desc()).limit(limit), _to_run)

    def last_runs(self, schedule_ids: Collection[str]) -> Mapping[str, Run]:
        """The run of the newest instant of each, by the schedule's id."""
        earlier = run.alias("earlier")
        newest = select(func.max(earlier.c.due_at)).where(earlier.c.schedule_id == schedule.c.id)
        wanted = (
            select(run)
            .join(schedule, schedule.c.id == run.c.schedule_id)
            .where(schedule.c.id.in_(schedule_ids), run.c.due_at == newest.scalar_subquery())
        )
        return {one.schedule_id: one for one in self._all(wanted, _to_run)}

    def under_way(self, schedule_id: str, *, before: datetime | None = None) -> Sequence[Run]:
        """The runs that wait or have their job, oldest first; `before`: of earlier instants."""
        wanted = select(run).where(run.c.schedule_id == schedule_id, IS_UNDER_WAY)
        if before is not None:
            wanted = wanted.where(run.c.due_at < before)
        return self._all(wanted.order_by(run.c.due_at), _to_run)

    def last_output(self, schedule_id: str) -> str | None:
        """The output folder of the newest run that succeeded."""
        wanted = select(run.c.output).where(
            run.c.schedule_id == schedule_id, run.c.state == RunState.SUCCEEDED
        )
        return self._execute(wanted.order_by(run.c.due_at.desc()).limit(1)).scalar_one_or_none()

    def delete_old_runs(self, schedule_id: str, kept: int) -> None:
        """Deletes runs that are not under way and not among the newest `kept`."""
        oldest_kept = (
            select(run.c.due_at)
            .where(run.c.schedule_id == schedule_id)
            .order_by(run.c.due_at.desc())
            .offset(kept - 1)
            .limit(1)
        ).scalar_subquery()
        is_over = run.c.state.not_in(UNDER_WAY)
        self._execute(
            delete(run).where(run.c.schedule_id == schedule_id, is_over, run.c.due_at < oldest_kept)
        )

    # -- the service's own: over all tenants ------------------------------------------------------------

    def due(self, now: datetime, limit: int) -> Sequence[Schedule]:
        """Schedules with an instant to record: tenants take turns, each with the longest due first."""
        return self._all(_in_turns(_SCHEDULES, schedule, schedule.c.next_at, now, limit), _to_schedule)

    def to_check(self, now: datetime, limit: int) -> Sequence[Run]:
        """Runs to look at, likewise."""
        return self._all(_in_turns(select(run), run, run.c.check_at, now, limit), _to_run)

    def lock(self, id: str) -> Schedule | None:
        """The schedule; no other transaction changes it before the end of this one."""
        return self._locked(schedule.c.id == id)

    def _locked(self, *wanted: ColumnElement[bool]) -> Schedule | None:
        # First the lock: by the time it is had, the schedule may have another version.
        self._execute(select(schedule.c.id).where(*wanted).with_for_update()).one_or_none()
        return self._one(_SCHEDULES.where(*wanted), _to_schedule)

    def take_run(self, run_id: str) -> bool:
        """Locks a run that waits, and looks at it no more by itself. False: it waits no longer.

        What wakes it from here on is seen after this transaction, so nothing that it waits for is missed.
        """
        waiting = (run.c.id == run_id, run.c.state == RunState.WAITING, run.c.check_at.is_not(None))
        return self._changes_one(update(run).where(*waiting).values(check_at=None))

    def change_run(self, run_id: str, **values: Any) -> None:
        """The run was taken in this transaction."""
        self._execute(update(run).where(run.c.id == run_id).values(**values))

    def end_run_of_job(self, job_id: str, state: RunState, reason: str | None, now: datetime) -> Run | None:
        """Ends the run that has this job, if one has it and has not ended."""
        row = self._execute(
            update(run)
            .where(run.c.job_id == job_id, IS_UNDER_WAY)
            .values(state=state, reason=reason, ended_at=now, check_at=None)
            .returning(*run.c)
        ).one_or_none()
        return None if row is None else _to_run(row)

    def wake(self, ended: Run, now: datetime) -> None:
        """Has the runs looked at that may wait for this one: of its schedule, and what follows it."""
        own = (run.c.schedule_id == ended.schedule_id,)
        following = (run.c.follows == ended.schedule_id, run.c.due_at == ended.due_at)
        # All that wait are written to, and so locked: one that is being looked at sees this end, or is woken.
        at = case((run.c.check_at > now, run.c.check_at), else_=literal(now, tables.UtcTimestamp))
        for concerned in (own, following):  # each by its index
            waiting = update(run).where(*concerned, IS_UNDER_WAY, run.c.state == RunState.WAITING)
            self._execute(waiting.values(check_at=at))


def _in_turns(
    wanted: Select[Any], table: Table, due_at: ColumnElement[datetime], now: datetime, limit: int
) -> Select[Any]:
    """Rows of a table that are due by now, so that no tenant's many hold up another's few."""
    turn = func.row_number().over(partition_by=table.c.tenant_id, order_by=(due_at, table.c.id))
    return wanted.where(due_at <= now).order_by(turn, due_at, table.c.id).limit(limit)


def _values(new: Schedule) -> dict[str, Any]:
    own = {name: value for name, value in vars(new).items() if name in schedule.c}
    return own | {
        "version": new.current.version,
        "after": new.plan.after,
        "updated_at": new.current.created_at,
        "problem": None if new.problem is None else vars(new.problem),
    }


def _to_schedule(row: Row[Any]) -> Schedule:
    current = {name: row._mapping[f"{_OF_CURRENT}{name}"] for name in _VERSION_FIELDS}
    return from_row(
        Schedule,
        row,
        current=ScheduleVersion(**current | {"plan": Plan.from_json(current["plan"])}),
        problem=None if row.problem is None else ScheduleProblem(**row.problem),
    )


def _to_version(row: Row[Any]) -> ScheduleVersion:
    return from_row(ScheduleVersion, row, plan=Plan.from_json(row.plan))


def _to_run(row: Row[Any]) -> Run:
    return from_row(Run, row, state=RunState(row.state))
