"""Statements about workers and the models they serve."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import (
    FromClause,
    Row,
    Select,
    UnaryExpression,
    and_,
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

from nightshift.fleet.figures import WorkerFigures
from nightshift.fleet.models import Model, ModelKind, OutputSizes
from nightshift.fleet.workers import Capacity, ExitCause, MachineNotice, NoticeKind, Worker, WorkerState
from nightshift.store import tables
from nightshift.store.databases.database import Statements, from_row, position

worker = tables.worker
model = tables.model

# Named one by one, so that an index finds them among all that have stopped.
_NOT_STOPPED = [state for state in WorkerState if state is not WorkerState.STOPPED]


class Workers(Statements):
    def register(self, new: Worker) -> None:
        """Inserts a worker. Does nothing on a retry whose first answer was lost."""
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
        self._inserts(insert(worker).values(**known))

    def record_heartbeat(
        self,
        worker_id: str,
        state: WorkerState,
        now: datetime,
        figures: WorkerFigures | None = None,
        notice: MachineNotice | None = None,
    ) -> bool:
        """Records a heartbeat, and what the worker tells about itself. True: it is to drain.

        Of a notice that stands, the time at which it was recorded first stays.
        """
        known_at = worker.c.notice_at
        received_at: Any = None
        if notice is not None:
            received_at = func.coalesce(known_at, literal(notice.received_at, known_at.type))
        wanted = self._execute(
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
        """Records a state and a heartbeat. False: not registered."""
        return self._update(worker_id, state=state, heartbeat_at=now)

    def ended(self, worker_id: str, cause: ExitCause, now: datetime) -> bool:
        """Records the end of its process; its last heartbeat stays."""
        return self._update(worker_id, state=WorkerState.STOPPED, ended_at=now, ended_cause=cause)

    def mark_loss_counted(self, worker_id: str, now: datetime) -> bool:
        """Records a loss. False: already counted, for another of its leases or before it woke up.

        An unregistered worker counts each time.
        """
        counted = (
            update(worker).where(worker.c.id == worker_id, worker.c.lost_at.is_(None)).values(lost_at=now)
        )
        return self._changes_one(counted) or self.state(worker_id) is None

    def request_drain(self, worker_id: str, now: datetime) -> bool:
        """Asks a worker to drain at its next heartbeat; the first request's time stays.

        False: no such worker, or it has stopped.
        """
        asked_at = worker.c.drain_requested_at
        return self._changes_one(
            update(worker)
            .where(worker.c.id == worker_id, worker.c.state != WorkerState.STOPPED)
            .values(drain_requested_at=func.coalesce(asked_at, literal(now, asked_at.type)))
        )

    def is_drain_requested(self, worker_id: str) -> bool:
        wanted = select(worker.c.id).where(worker.c.id == worker_id, worker.c.drain_requested_at.is_not(None))
        return self._execute(wanted).one_or_none() is not None

    def state(self, worker_id: str) -> WorkerState | None:
        """The worker's last reported state. None: no such worker."""
        wanted = select(worker.c.state).where(worker.c.id == worker_id)
        state = self._execute(wanted).scalar_one_or_none()
        return None if state is None else WorkerState(state)

    def mark_lost(self, heard_before: datetime) -> tuple[str, ...]:
        """Stops workers without a heartbeat since then. Returns their ids."""
        stopped = self._execute(
            update(worker)
            .where(worker.c.state.in_(_NOT_STOPPED), worker.c.heartbeat_at < heard_before)
            .values(state=WorkerState.STOPPED)
            .returning(worker.c.id)
        )
        return tuple(stopped.scalars())

    def forget_stopped(self, heard_before: datetime, limit: int) -> int:
        """Deletes the records of stopped workers without a heartbeat since then. Returns how many."""
        stopped = select(worker.c.id).where(
            worker.c.state == WorkerState.STOPPED, worker.c.heartbeat_at <= heard_before
        )
        page = stopped.order_by(worker.c.id).limit(limit).scalar_subquery()
        return self._execute(delete(worker).where(worker.c.id.in_(page))).rowcount

    def serves(
        self, worker_id: str, models: Sequence[str], now: datetime, warm: Sequence[str] | None = None
    ) -> bool:
        """Records that the worker can serve these models and is ready. `warm`: see `Worker`."""
        return self._update(
            worker_id,
            models=list(models),
            warm_models=None if warm is None else list(warm),
            state=WorkerState.READY,
            heartbeat_at=now,
        )

    def record_models(self, worker_id: str, models: Sequence[str], warm: Sequence[str]) -> bool:
        """Records what a worker can serve and what of it is warm, whatever its state."""
        return self._update(worker_id, models=list(models), warm_models=list(warm))

    def warm_elsewhere(self, worker_id: str, heartbeat_since: datetime) -> set[str]:
        """The models that other ready workers have warm."""
        ready = self.list(heartbeat_since=heartbeat_since, state=WorkerState.READY)
        return {model for other in ready if other.id != worker_id for model in other.warm}

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
        return self._all(wanted, _to_worker)

    def alive(self, heartbeat_since: datetime) -> Sequence[Worker]:
        """Workers that have not stopped, with a heartbeat since then, newest first."""
        heard_of = self.list(heartbeat_since=heartbeat_since)
        return [worker for worker in heard_of if worker.state is not WorkerState.STOPPED]

    def page(
        self, states: Collection[WorkerState], *, limit: int, after: Worker | None = None
    ) -> Sequence[Worker]:
        """Workers in these states, newest first. `after`: the last worker of the previous page."""
        return self._all(listing(states, limit, after), _to_worker)

    def get(self, worker_id: str) -> Worker | None:
        return self._one(select(worker).where(worker.c.id == worker_id), _to_worker)

    def served(self, crashed_since: datetime) -> set[str]:
        """The ids of the models that workers serve, or served until a crash since then."""
        crashes = [cause for cause in ExitCause if cause.is_crash]
        has_crashed = and_(worker.c.ended_cause.in_(crashes), worker.c.heartbeat_at >= crashed_since)
        serving = select(worker.c.models).where(or_(worker.c.state != WorkerState.STOPPED, has_crashed))
        return {id for models in self._execute(serving).scalars() for id in models}

    def register_model(self, new: Model, now: datetime) -> None:
        """Registers a served model, or updates it. One that was never loaded keeps what is known of it while
        its files stay the same.
        """
        if new.context_length is None:
            known = self.model(new.id)
            if known is not None and known.revision == new.revision:
                return
        values = asdict(new)
        del values["id"], values["created_at"]
        if self._update_model(new.id, **values):
            return
        if not self._inserts(insert(model).values(id=new.id, created_at=now, **values)):
            self._update_model(new.id, **values)  # another worker was first

    def models(self) -> Sequence[Model]:
        """Every registered model, in the workers' order."""
        return self._all(select(model).order_by(model.c.position, model.c.id), _to_model)

    def models_page(self, *, limit: int, after: str | None = None) -> Sequence[Model]:
        """Registered models by id. `after`: the last id of the previous page."""
        wanted = select(model).order_by(model.c.id).limit(limit)
        if after is not None:
            wanted = wanted.where(model.c.id > after)
        return self._all(wanted, _to_model)

    def model(self, model_id: str) -> Model | None:
        return self._one(select(model).where(model.c.id == model_id), _to_model)

    def _update(self, worker_id: str, **values: Any) -> bool:
        return self._changes_one(update(worker).where(worker.c.id == worker_id).values(**values))

    def _update_model(self, model_id: str, **values: Any) -> bool:
        return self._changes_one(update(model).where(model.c.id == model_id).values(**values))


def listing(states: Collection[WorkerState], limit: int, after: Worker | None) -> Select[tuple[Any, ...]]:
    """The first of each state, in the order of an index, and of these the first."""

    def newest_first(workers: FromClause) -> tuple[UnaryExpression[Any], ...]:
        return workers.c.started_at.desc(), workers.c.id.desc()

    pages = []
    for state in states:
        wanted = select(worker).where(worker.c.state == state)
        if after is not None:
            order = (worker.c.started_at, worker.c.id)
            wanted = wanted.where(tuple_(*order) < position(order, (after.started_at, after.id)))
        pages.append(wanted.order_by(*newest_first(worker)).limit(limit).subquery())
    first = union_all(*(select(page) for page in pages)).subquery()
    return select(first).order_by(*newest_first(first)).limit(limit)


def _to_worker(row: Row[Any]) -> Worker:
    notice = None
    if row.notice_kind is not None:
        notice = MachineNotice(NoticeKind(row.notice_kind), row.notice_at, row.notice_ends_at)
    return from_row(
        Worker,
        row,
        state=WorkerState(row.state),
        models=tuple(row.models),
        warm_models=None if row.warm_models is None else tuple(row.warm_models),
        capacity=Capacity(row.capacity),
        pools=tuple(row.pools or ()),
        notice=notice,
        ended_cause=ExitCause(row.ended_cause) if row.ended_cause else None,
        figures=WorkerFigures.from_json(row.figures),
    )


def _to_model(row: Row[Any]) -> Model:
    sizes = None if row.output_sizes is None else OutputSizes(**row.output_sizes)
    return from_row(Model, row, kind=ModelKind(row.kind), output_sizes=sizes)
