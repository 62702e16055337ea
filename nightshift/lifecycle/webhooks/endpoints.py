"""Administration of tenants' webhook endpoints, and what an attempt changes of one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from nightshift.errors import Conflict, NotFound
from nightshift.jobs import JsonObject
from nightshift.jobs.ids import new_id
from nightshift.outbound.webhook_endpoints import (
    ENDPOINTS_MAX,
    SECRET_OVERLAP,
    DisabledReason,
    WebhookEndpoint,
    hint,
)
from nightshift.outbound.webhooks import Delivery, DeliveryAttempt, new_secret
from nightshift.store import Transaction
from nightshift.tenants.audit import Action, Actor
from nightshift.tenants.vault import Vault

GIVEN_UP_MAX: Final = 10_000  # deliveries in one transaction; the others' turns come
SERVICE: Final = Actor.of_service("scheduler")


@dataclass(frozen=True)
class EndpointWithSecret:
    """An endpoint, and its new secret, which is shown once."""

    endpoint: WebhookEndpoint
    secret: str


@dataclass(frozen=True, kw_only=True)
class EndpointChanges:
    """Changes of an endpoint. None: as it is."""

    name: str | None = None
    url: str | None = None
    event_types: tuple[str, ...] | None = None
    disabled: bool | None = None


def get_endpoint(tx: Transaction, tenant_id: str, id: str, param: str = "id") -> WebhookEndpoint:
    """Raises NotFound, also for another tenant's."""
    endpoint = tx.webhook_endpoints.get(tenant_id, id)
    if endpoint is None:
        raise NotFound(f"No such WebhookEndpoint object: {id}", param=param)
    return endpoint


class EndpointRegistry:
    """Changes to webhook endpoints, one in each method, in the caller's open transaction with its entry in
    the audit log.
    """

    def __init__(self, tx: Transaction, vault: Vault, tenant_id: str, actor: Actor) -> None:
        self._tx = tx
        self._vault = vault
        self._tenant_id = tenant_id
        self._actor = actor
        self._now = tx.now()

    def create(self, *, name: str, url: str, event_types: Sequence[str]) -> EndpointWithSecret:
        """Raises Conflict beyond `ENDPOINTS_MAX`."""
        self._tx.holdings.take_turn(self._tenant_id)  # endpoints created at once are counted one by one
        if self._tx.webhook_endpoints.count(self._tenant_id) >= ENDPOINTS_MAX:
            raise Conflict(
                f"There are {ENDPOINTS_MAX} webhook endpoints already, which is the most a tenant may have.",
                code="too_many_webhook_endpoints",
            )
        secret = new_secret()
        new = WebhookEndpoint(
            id=new_id("whe"),
            tenant_id=self._tenant_id,
            name=name,
            url=url,
            event_types=tuple(event_types),
            secret=self._vault.encrypt(secret),
            secret_hint=hint(secret),
            created_at=self._now,
            updated_at=self._now,
        )
        self._tx.webhook_endpoints.insert(new)
        shown = {"name": name, "url": url, "event_types": list(event_types)}
        self._record(Action.WEBHOOK_ENDPOINT_CREATED, new.id, shown)
        return EndpointWithSecret(new, secret)

    def update(self, id: str, changes: EndpointChanges) -> WebhookEndpoint:
        """Changes what is given. What is owed goes to a new URL, which also enables an endpoint that was not
        disabled by its tenant. Raises NotFound.
        """
        before = self._locked(id)
        after = _changed(before, changes, self._now)
        if after == before:
            return before
        after = replace(after, updated_at=self._now)
        self._tx.webhook_endpoints.update(after)
        if after.url != before.url:
            self._tx.deliveries.redirect(self._tenant_id, id, after.url)
        if before.is_enabled and not after.is_enabled:
            self._tx.deliveries.give_up(self._tenant_id, id, GIVEN_UP_MAX)
        self._record(Action.WEBHOOK_ENDPOINT_UPDATED, id, _differences(before, after))
        return after

    def rotate(self, id: str, *, keeps_old: bool) -> EndpointWithSecret:
        """Makes a new secret. `keeps_old`: the old one signs too, for `SECRET_OVERLAP`. Raises NotFound."""
        before = self._locked(id)
        secret = new_secret()
        after = replace(
            before,
            secret=self._vault.encrypt(secret),
            secret_hint=hint(secret),
            previous_secret=before.secret if keeps_old else None,
            previous_secret_until=self._now + SECRET_OVERLAP if keeps_old else None,
            updated_at=self._now,
        )
        self._tx.webhook_endpoints.update(after)
        overlap_s = int(SECRET_OVERLAP.total_seconds()) if keeps_old else 0
        self._record(Action.WEBHOOK_ENDPOINT_ROTATED, id, {"overlap_s": overlap_s})
        return EndpointWithSecret(after, secret)

    def delete(self, id: str) -> None:
        """Deletes the endpoint; what is owed to it becomes dead letters. Raises NotFound."""
        self._locked(id)
        self._tx.webhook_endpoints.delete(self._tenant_id, id)
        self._tx.deliveries.give_up(self._tenant_id, id, GIVEN_UP_MAX)
        self._record(Action.WEBHOOK_ENDPOINT_DELETED, id)

    def note_test(self, id: str, event_type: str) -> None:
        """Records a test in the audit log."""
        self._record(Action.WEBHOOK_ENDPOINT_TESTED, id, {"event_type": event_type})

    def _locked(self, id: str) -> WebhookEndpoint:
        endpoint = self._tx.webhook_endpoints.lock(self._tenant_id, id)
        if endpoint is None:
            raise NotFound(f"No such WebhookEndpoint object: {id}", param="id")
        return endpoint

    def _record(self, action: Action, id: str, details: JsonObject | None = None) -> None:
        self._tx.audit.record(self._actor, action, self._tenant_id, self._now, object_id=id, details=details)


def note_attempt(tx: Transaction, delivery: Delivery, made: DeliveryAttempt, now: datetime) -> None:
    """Applies an attempt to the endpoint of its delivery: a success ends its failures; 410, or only failures
    for too long, disable it. What is owed to it then becomes dead letters.
    """
    assert delivery.endpoint_id is not None, "a job's own URL is no endpoint"
    before = tx.webhook_endpoints.lock(delivery.tenant_id, delivery.endpoint_id)
    if before is None or before.url != delivery.url:  # deleted or redirected meanwhile
        return
    after = before.after_attempt(made, now)
    if after != before:
        tx.webhook_endpoints.update(after)
    if before.is_enabled and not after.is_enabled:
        tx.deliveries.give_up(delivery.tenant_id, before.id, GIVEN_UP_MAX)
        details = {"reason": after.disabled_reason}
        tx.audit.record(
            SERVICE,
            Action.WEBHOOK_ENDPOINT_DISABLED,
            delivery.tenant_id,
            now,
            object_id=before.id,
            details=details,
        )


def _changed(before: WebhookEndpoint, changes: EndpointChanges, now: datetime) -> WebhookEndpoint:
    after = replace(
        before,
        name=before.name if changes.name is None else changes.name,
        url=before.url if changes.url is None else changes.url,
        event_types=before.event_types if changes.event_types is None else changes.event_types,
    )
    if before.is_enabled:
        return after.disabled(DisabledReason.REQUESTED, now) if changes.disabled else after
    is_repaired = after.url != before.url and before.disabled_reason is not DisabledReason.REQUESTED
    is_to_be_enabled = is_repaired if changes.disabled is None else not changes.disabled
    return after.enabled() if is_to_be_enabled else after


def _differences(before: WebhookEndpoint, after: WebhookEndpoint) -> JsonObject:
    """The changed fields with their new values, for the audit log."""
    changed: JsonObject = {
        field: getattr(after, field)
        for field in ("name", "url")
        if getattr(after, field) != getattr(before, field)
    }
    if after.event_types != before.event_types:
        changed["event_types"] = list(after.event_types)
    if after.is_enabled != before.is_enabled:
        changed["disabled"] = not after.is_enabled
    return changed
