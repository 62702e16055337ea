"""Makes one job of a request that a client repeats.

A repeat has the same Idempotency-Key, or the same name and date of a nightly run; the official client's
retries, which have no key, are the same request within a minute. The key is committed together with the job.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from nightshift.errors import DatabaseUnavailable, IdempotencyKeyReused, InvalidRequest, OutputInUse
from nightshift.jobs import Job, JobKind, JsonObject
from nightshift.jobs.shard import Ring
from nightshift.lifecycle.transitions import Submitted
from nightshift.process import failpoints
from nightshift.process.tracing.spans import ACCEPT_SPAN, child, end
from nightshift.store import Store, Transaction
from nightshift.store.jobs.idempotency import KeptAnswer

KEY_CHARS_MAX: Final = 255
REPLAYED: Final = "Idempotent-Replayed"  # as Stripe names it
KEPT_FOR: Final = {JobKind.ONLINE: timedelta(hours=24), JobKind.BULK: timedelta(hours=72)}
CLIENT_RETRY_WITHIN: Final = timedelta(seconds=60)
RACES_MAX: Final = 3  # lost to a request with the same key, whose answer is then returned

_RETRIED: Final = re.compile(r"[1-9][0-9]{0,5}")  # a client's count of its retries, past the first try


@dataclass(frozen=True)
class Repeatable:
    """The parts of a request by which a repeat of it is known."""

    tenant_id: str
    fingerprint: str
    key: str | None  # None: not sent
    is_client_retry: bool  # by the official client's retry header

    @property
    def may_be_repeat(self) -> bool:
        return self.key is not None or self.is_client_retry


@dataclass(frozen=True)
class Created:
    """The answer to a first or repeated create, and the rings to send for a first one."""

    job: Job
    shard_id: str | None
    status_code: int
    body: JsonObject
    rings: tuple[Ring, ...] = ()
    is_repeat: bool = False

    @property
    def headers(self) -> dict[str, str]:
        return {REPLAYED: "true"} if self.is_repeat else {}


Render = Callable[[Transaction, Job, datetime], JsonObject]


class _LostRace(Exception):
    """A request with the same key was first; roll back."""


def repeatable(tenant_id: str, fingerprint: str, key: str | None, retry_count: str | None) -> Repeatable:
    """Reads the headers `Idempotency-Key` and `x-stainless-retry-count`. Raises InvalidRequest."""
    if key is not None and not 1 <= len(key) <= KEY_CHARS_MAX:
        raise InvalidRequest(
            f"An Idempotency-Key has 1 to {KEY_CHARS_MAX} characters.", param="Idempotency-Key"
        )
    is_retry = _RETRIED.fullmatch(retry_count or "") is not None
    return Repeatable(tenant_id, fingerprint, key, is_retry)


def create_once(
    store: Store,
    request: Repeatable,
    create: Callable[[Transaction, datetime], Submitted],
    render: Render,
    status_code: int,
) -> Created:
    """Creates a job, or finds the one that this request created before.

    Raises IdempotencyKeyReused, OutputInUse.
    """

    def find_or_create(tx: Transaction) -> Created:
        now = tx.now()
        if request.may_be_repeat and (earlier := _earlier(tx, request, now, render, status_code)):
            return earlier
        submitted = create(tx, now)
        job, body = submitted.job, render(tx, submitted.job, now)
        if request.key is not None:
            answer, until = (
                KeptAnswer(request.fingerprint, job.id, status_code, body),
                now + KEPT_FOR[job.kind],
            )
            if not tx.idempotency.keep(request.tenant_id, request.key, answer, now, until):
                raise _LostRace
        failpoints.hit("api.before_commit")
        return Created(job, submitted.shard_id, status_code, body, submitted.rings)

    for _ in range(RACES_MAX):
        span = child(ACCEPT_SPAN)
        try:
            created = store.run(find_or_create)
        except _LostRace:
            continue
        except OutputInUse:  # perhaps by this very request, made at the same time
            with store.snapshot() as tx:
                made = _earlier(tx, request, tx.now(), render, status_code)
            if made is None:
                raise
            return made
        if not created.is_repeat:
            end(span)
            failpoints.hit("api.committed")
        return created
    raise DatabaseUnavailable("Requests with the same Idempotency-Key keep overtaking this one.")


def _earlier(
    tx: Transaction, request: Repeatable, now: datetime, render: Render, status_code: int
) -> Created | None:
    if request.key is not None:
        kept = tx.idempotency.find(request.tenant_id, request.key, now)
        if kept is None:
            return None
        if kept.fingerprint != request.fingerprint:
            raise IdempotencyKeyReused(param="Idempotency-Key")
        return Created(tx.jobs.fetch(kept.job_id), None, kept.status_code, kept.body, is_repeat=True)
    if request.is_client_retry:
        job = tx.jobs.find_repeat(request.tenant_id, request.fingerprint, now - CLIENT_RETRY_WITHIN)
        if job is not None:
            return Created(job, None, status_code, render(tx, job, now), is_repeat=True)
    return None
