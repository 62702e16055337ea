"""The workers that are there, and those that have ended."""

from datetime import datetime
from enum import StrEnum
from typing import Final

from api.page.view import Action, Asked, Context, Outcome, View
from api.page.worker_rows import WorkerRow
from nightshift.errors import NotFound
from nightshift.fleet.workers import Worker, WorkerState
from nightshift.lifecycle.controls import request_drain
from nightshift.store import Transaction
from nightshift.tenants.audit import Actor
from nightshift.tenants.keys import Scope

PER_PAGE: Final = 50


class Shown(StrEnum):
    """Which workers."""

    PRESENT = "present"
    ENDED = "ended"

    @property
    def states(self) -> tuple[WorkerState, ...]:
        is_ended = self is Shown.ENDED
        return tuple(state for state in WorkerState if (state is WorkerState.STOPPED) == is_ended)


def load(tx: Transaction, asked: Asked, now: datetime) -> Context:
    shown, after = asked.choice("show", Shown) or Shown.PRESENT, asked.text("after")
    last = None if after is None else get_worker(tx, after, param="after")
    found = tx.workers.page(shown.states, limit=PER_PAGE + 1, after=last)
    return {
        "rows": [WorkerRow(worker, now) for worker in found[:PER_PAGE]],
        "older": found[PER_PAGE - 1].id if len(found) > PER_PAGE else None,
        "is_first": after is None,
        "shown": shown,
        "choices": list(Shown),
    }


def get_worker(tx: Transaction, worker_id: str, param: str = "id") -> Worker:
    """Raises NotFound."""
    found = tx.workers.get(worker_id)
    if found is None:
        raise NotFound(f"No such Worker object: {worker_id}", param=param)
    return found


def drain(asked: Asked) -> Outcome:
    actor, worker_id = Actor.of_key(asked.caller.key_id), asked.path["worker_id"]
    asked.services.store.run(lambda tx: request_drain(tx, actor, worker_id))
    return Outcome(message="The worker will hand back what it has, and end.")


VIEW: Final = View(
    path="/ui/workers",
    title="Workers",
    template="workers.html",
    load=load,
    actions=(Action(path="/drain/{worker_id}", act=drain, scope=Scope.ADMIN),),
)
