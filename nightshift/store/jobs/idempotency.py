"""Statements about idempotency keys, which keep the first answer to a request."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import IntegrityError

from nightshift.jobs import JsonObject
from nightshift.store import tables

idempotency = tables.idempotency


@dataclass(frozen=True)
class KeptAnswer:
    """The first answer to a key, and its request's fingerprint."""

    fingerprint: str
    job_id: str
    status_code: int
    body: JsonObject


class Idempotency:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def find(self, tenant_id: str, key: str, now: datetime) -> KeptAnswer | None:
        row = self._connection.execute(
            select(idempotency).where(
                idempotency.c.tenant_id == tenant_id,
                idempotency.c.key == key,
                idempotency.c.expires_at > now,
            )
        ).one_or_none()
        return KeptAnswer(row.fingerprint, row.job_id, row.status_code, row.body) if row else None

    def keep(self, tenant_id: str, key: str, answer: KeptAnswer, now: datetime, expires_at: datetime) -> bool:
        """Keep the first answer, in the transaction that makes it true. False: another was first.

        On False the caller must roll back: its job is a second one.
        """
        self._connection.execute(
            delete(idempotency).where(
                idempotency.c.tenant_id == tenant_id,
                idempotency.c.key == key,
                idempotency.c.expires_at <= now,
            )
        )
        try:
            with self._connection.begin_nested():
                self._connection.execute(
                    insert(idempotency).values(
                        tenant_id=tenant_id,
                        key=key,
                        fingerprint=answer.fingerprint,
                        job_id=answer.job_id,
                        status_code=answer.status_code,
                        body=answer.body,
                        expires_at=expires_at,
                    )
                )
        except IntegrityError:
            return False
        return True

    def purge(self, now: datetime) -> int:
        """Delete expired keys. Returns how many."""
        return self._connection.execute(delete(idempotency).where(idempotency.c.expires_at <= now)).rowcount
