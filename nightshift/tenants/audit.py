"""The audit log: who did what to tenants, keys, webhooks and workers. It holds no secret."""

import getpass
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from nightshift.jobs import JsonObject


class Action(StrEnum):
    TENANT_CREATED = "tenant.created"
    TENANT_UPDATED = "tenant.updated"
    TENANT_DELETED = "tenant.deleted"
    KEY_CREATED = "key.created"
    KEY_ROTATED = "key.rotated"
    KEY_REVOKED = "key.revoked"
    WEBHOOK_SECRET_CREATED = "webhook_secret.created"
    WEBHOOK_ENDPOINT_CREATED = "webhook_endpoint.created"
    WEBHOOK_ENDPOINT_UPDATED = "webhook_endpoint.updated"
    WEBHOOK_ENDPOINT_ROTATED = "webhook_endpoint.rotated"
    WEBHOOK_ENDPOINT_DISABLED = "webhook_endpoint.disabled"  # by the service
    WEBHOOK_ENDPOINT_DELETED = "webhook_endpoint.deleted"
    WEBHOOK_ENDPOINT_TESTED = "webhook_endpoint.tested"
    WEBHOOK_ENDPOINT_REPLAYED = "webhook_endpoint.replayed"
    DELIVERY_REPLAYED = "delivery.replayed"
    WORKER_DRAINED = "worker.drained"


@dataclass(frozen=True)
class Actor:
    """The one who acted: a key over HTTP, a user of the machine by a command, or a process of the service."""

    text: str  # key:k3v9x1qz, user:alice or service:scheduler

    @classmethod
    def of_key(cls, key_id: str) -> "Actor":
        return cls(f"key:{key_id}")

    @classmethod
    def of_service(cls, process: str) -> "Actor":
        return cls(f"service:{process}")

    @classmethod
    def of_user(cls) -> "Actor":
        """The user that runs this process."""
        try:
            return cls(f"user:{getpass.getuser()}")
        except (KeyError, OSError):  # a container's user without a name
            return cls("user:unknown")


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    id: int
    at: datetime
    actor: str
    action: str
    tenant_id: str | None  # None: the whole service's
    object_id: str | None  # id of the key, webhook endpoint, delivery or worker
    details: JsonObject
