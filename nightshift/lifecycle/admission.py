"""Limits on waiting work; beyond them a submission is refused with a Retry-After.

At the limit for all tenants, a tenant below its equal share is still admitted, so frequent callers do not
keep out the others. Simultaneous requests may exceed a limit by their number, but not a tenant's quotas.
Nothing is counted here: counters change with what they count (`store/tenants/holdings.py`).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from nightshift.errors import QuotaExceeded, TooManyRequests
from nightshift.jobs import JsonObject, NewJob
from nightshift.process.settings import SubmissionSettings
from nightshift.store import Transaction
from nightshift.store.tenants.holdings import Queue
from nightshift.tenants.holdings import QUEUED, STORED, Holding, excess, held_by
from nightshift.tenants.quotas import NO_QUOTAS, Quotas, fair_share
from nightshift.tenants.rates import tokens_asked

RETRY_AFTER_MAX_S: Final = 60  # longer estimates are too uncertain


def admit_online(
    tx: Transaction,
    new: NewJob,
    body: JsonObject,
    settings: SubmissionSettings,
    defaults: Quotas,
    now: datetime,
) -> NewJob:
    """The request, with the tokens that it counts for. Raises TooManyRequests at a limit of waiting online
    requests, and QuotaExceeded at a quota, at the end of the transaction too.
    """
    queue = tx.holdings.queue(new.tenant_id)
    _check_online_queue(tx, queue, settings, now)
    quotas = queue.quotas.over(defaults)
    if quotas.queued_tokens is not None:
        new = replace(new, tokens_queued=tokens_asked(body, new.body_bytes) or 0)
    if quotas != NO_QUOTAS and (_limits_queue(quotas) or quotas.stored_bytes is not None):
        change = held_by(new.accepted(now)) + Holding(stored_bytes=new.stored_bytes)
        _check_new(queue.own + change, quotas, change)
        tx.holdings.check_at_end(new.tenant_id, lambda held: _check_new(held, quotas, change))
    return new


def admit_bulk(
    tx: Transaction, new: NewJob, settings: SubmissionSettings, defaults: Quotas, now: datetime
) -> None:
    """Raises TooManyRequests at a limit of unfinished jobs or waiting rows, and QuotaExceeded at a quota.

    A job's rows and tokens are unknown until its input is read (`admit_planned`).
    """
    queue = tx.holdings.queue(new.tenant_id)
    quotas = queue.quotas.over(defaults)
    if quotas != NO_QUOTAS:
        # A job without a template stores results, too.
        least = Holding(bulk_rows=1, queued_tokens=1, stored_bytes=max(1, new.stored_bytes))
        _check_new(queue.own + least, quotas, least)
    reached = _limit_reached(queue, settings)
    if reached is None:
        return
    message, rows_excess = reached
    pace = tx.load.bulk_pace()
    running_s = 0.0 if pace.running_since is None else (now - pace.running_since).total_seconds()
    raise TooManyRequests(
        f"{message} Try again when some of them are done.",
        retry_after_s=estimated_drain_s(rows_excess, per_second(pace.rows_done, running_s)),
    )


def admit_planned(tx: Transaction, tenant_id: str, defaults: Quotas) -> None:
    """Lets this transaction plan a job within the tenant's quotas. Raises QuotaExceeded at its end."""
    quotas = _quotas_of(tx, tenant_id, defaults)
    if _limits_queue(quotas):
        tx.holdings.check_at_end(tenant_id, lambda held: _check_queued(held, quotas, Holding()))


def check_planned(tx: Transaction, tenant_id: str, defaults: Quotas, rows: int, tokens: int) -> None:
    """Raises QuotaExceeded if a job of so many rows and tokens is beyond the tenant's quotas now."""
    change = Holding(bulk_rows=rows, queued_tokens=tokens)
    held = tx.holdings.total(tenant_id) + change
    _check_queued(held, _quotas_of(tx, tenant_id, defaults), change)


def _quotas_of(tx: Transaction, tenant_id: str, defaults: Quotas) -> Quotas:
    tenant = tx.tenants.find(tenant_id)
    return defaults if tenant is None else tenant.quotas.over(defaults)


def _limits_queue(quotas: Quotas) -> bool:
    return quotas.queued_rows is not None or quotas.queued_tokens is not None


def _check_new(held: Holding, quotas: Quotas, change: Holding) -> None:
    """Raises QuotaExceeded. A change that stores nothing is not refused for what is stored already."""
    _check_queued(held, quotas, change)
    if change.stored_bytes:
        _check_stored(held, quotas, ("stored_bytes",))


def _check_queued(held: Holding, quotas: Quotas, change: Holding) -> None:
    """Raises QuotaExceeded; a retry helps unless the change alone is too much."""
    retry_helps = excess(change, quotas, QUEUED) is None
    advice = "Try again when jobs of yours have ended, or ask an administrator for more."
    _check(held, quotas, QUEUED, advice, retry_after_s=RETRY_AFTER_MAX_S, retry_helps=retry_helps)


def _check_stored(held: Holding, quotas: Quotas, names: Sequence[str] = STORED) -> None:
    advice = "Delete files or jobs that you no longer need, or ask an administrator for more."
    _check(held, quotas, names, advice, retry_helps=False)


def _check(held: Holding, quotas: Quotas, names: Sequence[str], advice: str, **retry: Any) -> None:
    over = excess(held, quotas, names)
    if over is not None:
        what = over.name.replace("_", " ")
        raise QuotaExceeded(
            f"With this, your {what} would be {over.amount}, and your quota is {over.limit}. {advice}",
            **retry,
        )


def _check_online_queue(tx: Transaction, queue: Queue, settings: SubmissionSettings, now: datetime) -> None:
    own = queue.own.online_requests
    if own >= settings.online_queue_max:
        limit, whose = settings.online_queue_max, "yours"
    elif queue.online_total >= settings.online_queue_total_max and own >= fair_share(
        settings.online_queue_total_max, queue.online_tenants + (own == 0)
    ):
        limit, whose = settings.online_queue_total_max, "of all tenants"
    else:
        return
    oldest_at = tx.load.oldest_online()
    waited_s = 0.0 if oldest_at is None else (now - oldest_at).total_seconds()
    raise TooManyRequests(
        f"{limit} online requests ({whose}) are waiting already. Try again when some have been answered.",
        retry_after_s=estimated_drain_s(queue.online_total, per_second(queue.online_total, waited_s)),
    )


def _limit_reached(queue: Queue, settings: SubmissionSettings) -> tuple[str, int] | None:
    """The limit reached, in words, and how many rows must end before it is not."""
    jobs, rows = queue.own.bulk_jobs, queue.own.bulk_rows
    if jobs >= settings.bulk_jobs_max:
        return f"{jobs} of your bulk jobs are unfinished.", rows // max(1, jobs)
    if rows >= settings.bulk_rows_max:
        return f"{rows} rows of yours are waiting.", rows - settings.bulk_rows_max + 1
    if queue.rows_total < settings.bulk_rows_total_max:
        return None
    if rows < fair_share(settings.bulk_rows_total_max, queue.bulk_tenants + (jobs == 0)):
        return None
    message = f"{queue.rows_total} rows of all tenants are waiting."
    return message, queue.rows_total - settings.bulk_rows_total_max + 1


def admit_stored(tx: Transaction, tenant_id: str, quotas: Quotas) -> None:
    """Lets this transaction store what is within the tenant's quotas. Raises QuotaExceeded at its end."""
    if quotas.stored_files is not None or quotas.stored_bytes is not None:
        tx.holdings.check_at_end(tenant_id, lambda held: _check_stored(held, quotas))


def check_room(tx: Transaction, tenant_id: str, quotas: Quotas, size_bytes: int) -> None:
    """Raises QuotaExceeded if a file of so many bytes would be refused now: before it is sent."""
    if quotas.stored_files is not None or quotas.stored_bytes is not None:
        new = Holding(stored_files=1, stored_bytes=size_bytes)
        _check_stored(tx.holdings.total(tenant_id) + new, quotas)


def per_second(count: int, seconds: float) -> float:
    """The rate of a queue, by Little's law.

    `seconds`: how long its oldest entry has waited. As many entries leave a full queue as arrive.
    """
    if count <= 0:
        return 0.0
    return count / seconds if seconds > 0 else math.inf


def estimated_drain_s(waiting: int, per_second: float) -> int:
    """Whole seconds, from 1 to 60, until this many are done at this rate."""
    if per_second <= 0:
        return RETRY_AFTER_MAX_S
    return max(1, min(RETRY_AFTER_MAX_S, math.ceil(waiting / per_second)))
