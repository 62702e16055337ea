"""Sends a worker away: it hands back what it has, and ends."""

from nightshift.errors import NotFound
from nightshift.store import Transaction
from nightshift.tenants.audit import Action, Actor


def request_drain(tx: Transaction, actor: Actor, worker_id: str) -> None:
    """The worker hears of it with its next heartbeat. Raises NotFound for one that has stopped."""
    now = tx.now()
    if not tx.workers.request_drain(worker_id, now):
        raise NotFound(
            f"There is no worker {worker_id} that could be drained; `nightshift workers list` shows those "
            "there are.",
            param="id",
        )
    tx.audit.record(actor, Action.WORKER_DRAINED, None, now, object_id=worker_id)
