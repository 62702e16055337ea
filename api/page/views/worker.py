"""One worker: its models and their figures, and what of the tenant it holds."""

from datetime import datetime
from typing import Final

from api.page.view import Action, Asked, Context, View
from api.page.views.workers import drain, get_worker
from api.page.worker_rows import WorkerRow
from nightshift.store import Transaction
from nightshift.tenants.keys import Scope

LEASES_SHOWN: Final = 100


def load(tx: Transaction, asked: Asked, now: datetime) -> Context:
    worker = get_worker(tx, asked.path["worker_id"])
    leases = tx.shards.leased_by(asked.caller.tenant_id, worker.id, LEASES_SHOWN + 1)
    return {
        "row": WorkerRow(worker, now),
        "leases": leases[:LEASES_SHOWN],
        "has_more_leases": len(leases) > LEASES_SHOWN,
    }


VIEW: Final = View(
    path="/ui/workers/{worker_id}",
    title="Worker",
    template="worker.html",
    load=load,
    is_in_navigation=False,
    section="/ui/workers",
    actions=(Action(path="/drain", act=drain, scope=Scope.ADMIN),),
)
