"""The workers that are there, those that have ended, and one worker with what it holds of the tenant."""

from datetime import datetime
from enum import StrEnum
from typing import Final

from api.page.view import Action, Context, Outcome, PageRequest, View, paged
from api.page.views.worker_rows import WorkerRow
from nightshift.errors import NotFound
from nightshift.fleet.workers import Worker, WorkerState
from nightshift.lifecycle.controls import request_drain
from nightshift.store import Transaction
from nightshift.tenants.audit import Actor
from nightshift.tenants.keys import Scope

PER_PAGE: Final = 50


class Shown(StrEnum):
    """The choice of workers."""

    PRESENT = "present"
    ENDED = "ended"

    @property
    def states(self) -> tuple[WorkerState, ...]:
        is_ended = self is Shown.ENDED
        return tuple(state for state in WorkerState if (state is WorkerState.STOPPED) == is_ended)


def load(tx: Transaction, request: PageRequest, now: datetime) -> Context:
    shown, after = request.choice("show", Shown) or Shown.PRESENT, request.text("after")
    last = None if after is None else get_worker(tx, after, param="after")
    rows = tx.workers.page(shown.states, limit=PER_PAGE + 1, after=last)
    return {
        "rows": [WorkerRow(worker, now) for worker in rows[:PER_PAGE]],
        **paged(request, rows, PER_PAGE),
        "shown": shown,
        "choices": list(Shown),
    }


def get_worker(tx: Transaction, worker_id: str, param: str = "id") -> Worker:
    """Raises NotFound."""
    worker = tx.workers.get(worker_id)
    if worker is None:
        raise NotFound(f"No such Worker object: {worker_id}", param=param)
    return worker


def drain(request: PageRequest) -> Outcome:
    actor, worker_id = Actor.of_key(request.caller.key_id), request.path["worker_id"]
    request.services.store.run(lambda tx: request_drain(tx, actor, worker_id))
    return Outcome(message="The worker will hand back what it has, and end.")


VIEW: Final = View(
    path="/ui/workers",
    title="Workers",
    template="service/workers.html",
    load=load,
    actions=(Action(path="/drain/{worker_id}", act=drain, scope=Scope.ADMIN),),
)


LEASES_SHOWN: Final = 100


def load_worker(tx: Transaction, request: PageRequest, now: datetime) -> Context:
    worker = get_worker(tx, request.path["worker_id"])
    leases = tx.shards.leased_by(request.caller.tenant_id, worker.id, LEASES_SHOWN + 1)
    return {
        "row": WorkerRow(worker, now),
        "leases": leases[:LEASES_SHOWN],
        "has_more_leases": len(leases) > LEASES_SHOWN,
    }


WORKER_VIEW: Final = View(
    path="/ui/workers/{worker_id}",
    title="Worker",
    template="service/worker.html",
    load=load_worker,
    is_in_navigation=False,
    section="/ui/workers",
    actions=(Action(path="/drain", act=drain, scope=Scope.ADMIN),),
)
