"""Statements about workers and the models they serve."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Connection,
    FromClause,
    Row,
    Select,
    UnaryExpression,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.exc import IntegrityError

from nightshift.fleet.figures import WorkerFigures
from nightshift.fleet.models import Model, ModelKind, OutputSizes
from nightshift.fleet.workers import Capacity, ExitCause, MachineNotice, NoticeKind, Worker, WorkerState
from nightshift.store import tables

worker = tables.worker
model = tables.model

# Named one by one, so that an index finds them among all that have stopped.
_NOT_STOPPED = [state for state in WorkerState if state is not WorkerState.STOPPED]


class Workers:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def register(self, new: Worker) -> None:
        """Insert a worker. Does nothing on a retry whose first answer was lost."""
        known = {
            "id": new.id,
            "host": new.host,
            "pid": new.pid,
            "state": new.state,
            "models": list(new.models),
            "started_at": new.started_at,
            "heartbeat_at": new.heartbeat_at,
            "capacity": new.capacity,
            "pools": list(new.pools),
        }
        with suppress(IntegrityError), self._connection.begin_nested():
            self._connection.execute(insert(worker).values(**known))

    def record_heartbeat(
        self,
        worker_id: str,
        state: WorkerState,
        now: datetime,
        figures: WorkerFigures | None = None,
        notice: MachineNotice | None = None,
    ) -> bool:
        """Record a heartbeat, and what the worker tells of itself. True: it is to drain.

        Of a notice that stands, the time at which it was recorded first stays.
        """
        known_at = worker.c.notice_at
        received_at: Any = None
        if notice is not None:
            received_at = func.coalesce(known_at, literal(notice.received_at, known_at.type))
        wanted = self._connection.execute(
            update(worker)
            .where(worker.c.id == worker_id)
            .values(
                state=state,
                heartbeat_at=now,
                figures=None if figures is None else figures.to_json(),
                notice_kind=None if notice is None else notice.kind,
                notice_at=received_at,
                notice_ends_at=None if notice is None else notice.ends_at,
            )
            .returning(worker.c.drain_requested_at)
        ).scalar_one_or_none()
        return wanted is not None

    def mark(self, worker_id: str, state: WorkerState, now: datetime) -> bool:
        """Record a state and a heartbeat. False: not registered."""
        return self._update(worker_id, state=state, heartbeat_at=now)

    def ended(self, worker_id: str, cause: ExitCause, now: datetime) -> bool:
        """Record the end of its process; its last heartbeat stays."""
        return self._update(worker_id, state=WorkerState.STOPPED, ended_at=now, ended_cause=cause)

    def mark_loss_counted(self, worker_id: str, now: datetime) -> bool:
        """Record a loss. False: already counted, for another of its leases or before it woke up.

        An unregistered worker counts each time.
        """
        counted = (
            update(worker).where(worker.c.id == worker_id, worker.c.lost_at.is_(None)).values(lost_at=now)
        )
        return self._connection.execute(counted).rowcount == 1 or self.state(worker_id) is None

    def request_drain(self, worker_id: str, now: datetime) -> bool:
        """Ask a worker to drain at its next heartbeat; the first request's time stays.

        False: no such worker, or it has stopped.
        """
        asked_at = worker.c.drain_requested_at
        return (
            self._connection.execute(
                update(worker)
                .where(worker.c.id == worker_id, worker.c.state != WorkerState.STOPPED)
                .values(drain_requested_at=func.coalesce(asked_at, literal(now, asked_at.type)))
            ).rowcount
            == 1
        )

    def is_drain_requested(self, worker_id: str) -> bool:
        wanted = select(worker.c.id).where(worker.c.id == worker_id, worker.c.drain_requested_at.is_not(None))
        return self._connection.execute(wanted).one_or_none() is not None

    def state(self, worker_id: str) -> WorkerState | None:
        """Its last reported state. None: no such worker."""
        found = select(worker.c.state).where(worker.c.id == worker_id)
        state = self._connection.execute(found).scalar_one_or_none()
        return None if state is None else WorkerState(state)

    def mark_lost(self, heard_before: datetime) -> tuple[str, ...]:
        """Stop workers without a heartbeat since then. Returns their ids."""
        stopped = self._connection.execute(
            update(worker)
            .where(worker.c.state.in_(_NOT_STOPPED), worker.c.heartbeat_at < heard_before)
            .values(state=WorkerState.STOPPED)
            .returning(worker.c.id)
        )
        return tuple(stopped.scalars())

    def forget_stopped(self, heard_before: datetime, limit: int) -> int:
        """Delete the records of stopped workers without a heartbeat since then. Returns how many."""
        found = select(worker.c.id).where(
            worker.c.state == WorkerState.STOPPED, worker.c.heartbeat_at <= heard_before
        )
        page = found.order_by(worker.c.id).limit(limit).scalar_subquery()
        return self._connection.execute(delete(worker).where(worker.c.id.in_(page))).rowcount

    def serves(
        self, worker_id: str, models: Sequence[str], now: datetime, warm: Sequence[str] | None = None
    ) -> bool:
        """Record that the worker can serve these models and is ready. `warm`: see `Worker`."""
        return self._update(
            worker_id,
            models=list(models),
            warm_models=None if warm is None else list(warm),
            state=WorkerState.READY,
            heartbeat_at=now,
        )

    def record_models(self, worker_id: str, models: Sequence[str], warm: Sequence[str]) -> bool:
        """Record what a worker can serve and what of it is warm, whatever its state."""
        return self._update(worker_id, models=list(models), warm_models=list(warm))

    def warm_elsewhere(self, worker_id: str, heartbeat_since: datetime) -> set[str]:
        """The models that other ready workers have warm."""
        ready = self.list(heartbeat_since=heartbeat_since, state=WorkerState.READY)
        return {model for each in ready if each.id != worker_id for model in each.warm}

    def ready_since(self, heartbeat_since: datetime) -> int:
        """The number of ready workers with a heartbeat since then."""
        return len(self.list(heartbeat_since=heartbeat_since, state=WorkerState.READY))

    def list(
        self, *, heartbeat_since: datetime | None = None, state: WorkerState | None = None
    ) -> Sequence[Worker]:
        """Workers, newest first."""
        wanted = select(worker).order_by(worker.c.started_at.desc(), worker.c.id)
        if heartbeat_since is not None:
            wanted = wanted.where(worker.c.heartbeat_at >= heartbeat_since)
        if state is not None:
            wanted = wanted.where(worker.c.state == state)
        return [_to_worker(row) for row in self._connection.execute(wanted)]

    def alive(self, heartbeat_since: datetime) -> Sequence[Worker]:
        """Workers that have not stopped, with a heartbeat since then, newest first."""
        heard_of = self.list(heartbeat_since=heartbeat_since)
        return [each for each in heard_of if each.state is not WorkerState.STOPPED]

    def page(
        self, states: Collection[WorkerState], *, limit: int, after: Worker | None = None
    ) -> Sequence[Worker]:
        """Workers in these states, newest first. `after`: the last worker of the previous page."""
        rows = self._connection.execute(listing(states, limit, after))
        return [_to_worker(row) for row in rows]

    def get(self, worker_id: str) -> Worker | None:
        row = self._connection.execute(select(worker).where(worker.c.id == worker_id)).one_or_none()
        return _to_worker(row) if row else None

    def served(self, crashed_since: datetime) -> set[str]:
        """The ids of the models that workers serve, or served until a crash since then."""
        crashes = [cause for cause in ExitCause if cause.is_crash]
        has_crashed = and_(worker.c.ended_cause.in_(crashes), worker.c.heartbeat_at >= crashed_since)
        found = select(worker.c.models).where(or_(worker.c.state != WorkerState.STOPPED, has_crashed))
        return {id for models in self._connection.execute(found).scalars() for id in models}

    def register_model(self, new: Model, now: datetime) -> None:
        """Register a served model, or update it. Of one that was never loaded, what is known stays known
        while its files stay the same.
        """
        if new.context_length is None:
            known = self.model(new.id)
            if known is not None and known.revision == new.revision:
                return
        values = {
            "kind": new.kind,
            "context_length": new.context_length,
            "revision": new.revision,
            "dtype": new.dtype,
            "dimensions": new.dimensions,
            "output_sizes": None if new.output_sizes is None else asdict(new.output_sizes),
            "position": new.position,
        }
        if self._update_model(new.id, **values):
            return
        try:
            with self._connection.begin_nested():
                self._connection.execute(insert(model).values(id=new.id, created_at=now, **values))
        except IntegrityError:  # another worker was first
            self._update_model(new.id, **values)

    def models(self) -> Sequence[Model]:
        """Every registered model, in the workers' order."""
        rows = self._connection.execute(select(model).order_by(model.c.position, model.c.id))
        return [_to_model(row) for row in rows]

    def models_page(self, *, limit: int, after: str | None = None) -> Sequence[Model]:
        """Registered models by id. `after`: the last id of the previous page."""
        wanted = select(model).order_by(model.c.id).limit(limit)
        if after is not None:
            wanted = wanted.where(model.c.id > after)
        return [_to_model(row) for row in self._connection.execute(wanted)]

    def model(self, model_id: str) -> Model | None:
        row = self._connection.execute(select(model).where(model.c.id == model_id)).one_or_none()
        return _to_model(row) if row else None

    def _update(self, worker_id: str, **values: Any) -> bool:
        return (
            self._connection.execute(update(worker).where(worker.c.id == worker_id).values(**values)).rowcount
            == 1
        )

    def _update_model(self, model_id: str, **values: Any) -> bool:
        return (
            self._connection.execute(update(model).where(model.c.id == model_id).values(**values)).rowcount
            == 1
        )


def listing(states: Collection[WorkerState], limit: int, after: Worker | None) -> Select[tuple[Any, ...]]:
    """The first of each state, in the order of an index, and of these the first."""

    def newest(of: FromClause) -> tuple[UnaryExpression[Any], ...]:
        return of.c.started_at.desc(), of.c.id.desc()

    pages = []
    for state in states:
        wanted = select(worker).where(worker.c.state == state)
        if after is not None:
            place = tuple_(
                bindparam(None, after.started_at, type_=worker.c.started_at.type),
                bindparam(None, after.id, type_=worker.c.id.type),
            )
            wanted = wanted.where(tuple_(worker.c.started_at, worker.c.id) < place)
        pages.append(wanted.order_by(*newest(worker)).limit(limit).subquery())
    found = union_all(*(select(page) for page in pages)).subquery()
    return select(found).order_by(*newest(found)).limit(limit)


def _to_worker(row: Row[Any]) -> Worker:
    return Worker(
        id=row.id,
        host=row.host,
        pid=row.pid,
        state=WorkerState(row.state),
        models=tuple(row.models),
        warm_models=None if row.warm_models is None else tuple(row.warm_models),
        started_at=row.started_at,
        heartbeat_at=row.heartbeat_at,
        capacity=Capacity(row.capacity),
        pools=tuple(row.pools or ()),
        drain_requested_at=row.drain_requested_at,
        notice=_to_notice(row),
        ended_at=row.ended_at,
        ended_cause=ExitCause(row.ended_cause) if row.ended_cause else None,
        figures=WorkerFigures.from_json(row.figures),
    )


def _to_notice(row: Row[Any]) -> MachineNotice | None:
    if row.notice_kind is None:
        return None
    return MachineNotice(NoticeKind(row.notice_kind), row.notice_at, row.notice_ends_at)


def _to_model(row: Row[Any]) -> Model:
    return Model(
        id=row.id,
        kind=ModelKind(row.kind),
        context_length=row.context_length,
        revision=row.revision,
        dtype=row.dtype,
        dimensions=row.dimensions,
        output_sizes=None if row.output_sizes is None else OutputSizes(**row.output_sizes),
        created_at=row.created_at,
        position=row.position,
    )
