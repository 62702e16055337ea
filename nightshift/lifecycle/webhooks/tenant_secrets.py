"""A tenant's own webhook signing secret."""

from nightshift.outbound.webhooks import new_secret
from nightshift.store import Transaction
from nightshift.tenants.audit import Action, Actor
from nightshift.tenants.vault import Vault


def kept_webhook_secret(tx: Transaction, vault: Vault, tenant_id: str, actor: Actor) -> bytes:
    """A tenant's own webhook secret, encrypted; created on first use. Concurrent creators all return the
    stored one.
    """
    kept = tx.keys.webhook_secret(tenant_id)
    if kept is None:
        now = tx.now()
        if tx.keys.keep_webhook_secret(tenant_id, vault.encrypt(new_secret()), now):
            tx.audit.record(actor, Action.WEBHOOK_SECRET_CREATED, tenant_id, now)
        kept = tx.keys.webhook_secret(tenant_id)
    assert kept is not None, "a tenant's secret is never deleted"
    return kept
