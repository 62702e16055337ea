"""Statements about idempotency keys, which keep the first answer to a request."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, insert, select

from nightshift.jobs import JsonObject
from nightshift.store import tables
from nightshift.store.databases.database import Statements, from_row

idempotency = tables.idempotency


@dataclass(frozen=True)
class KeptAnswer:
    """The first answer to a key, and its request's fingerprint."""

    fingerprint: str
    job_id: str
    status_code: int
    body: JsonObject


class Idempotency(Statements):
    def find(self, tenant_id: str, key: str, now: datetime) -> KeptAnswer | None:
        wanted = select(idempotency).where(idempotency.c.tenant_id == tenant_id, idempotency.c.key == key)
        return self._one(wanted.where(idempotency.c.expires_at > now), _to_answer)

    def keep(self, tenant_id: str, key: str, answer: KeptAnswer, now: datetime, expires_at: datetime) -> bool:
        """Keeps the first answer, in the transaction that makes it true. False: another was first.

        On False the caller must roll back: its job is a second one.
        """
        self._execute(
            delete(idempotency).where(
                idempotency.c.tenant_id == tenant_id,
                idempotency.c.key == key,
                idempotency.c.expires_at <= now,
            )
        )
        kept = {"tenant_id": tenant_id, "key": key, "expires_at": expires_at, **vars(answer)}
        return self._inserts(insert(idempotency).values(kept))

    def purge(self, now: datetime) -> int:
        """Deletes expired keys. Returns how many."""
        return self._execute(delete(idempotency).where(idempotency.c.expires_at <= now)).rowcount


def _to_answer(row: Row[Any]) -> KeptAnswer:
    return from_row(KeptAnswer, row)
