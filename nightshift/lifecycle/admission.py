"""Limits on waiting work; beyond them a submission is refused with a Retry-After.

At the limit for all tenants, a tenant below its equal share is still admitted, so frequent callers do not
keep out the others. Simultaneous requests may exceed a limit by their number.
"""

import math
from datetime import datetime
from typing import Final

from nightshift.errors import TooManyRequests
from nightshift.settings import SubmissionSettings
from nightshift.store import Transaction
from nightshift.store.jobs.load import BulkLoad
from nightshift.tenants.fairness import fair_share

RETRY_AFTER_MAX_S: Final = 60  # longer estimates are too uncertain


def admit_online(tx: Transaction, tenant_id: str, settings: SubmissionSettings, now: datetime) -> None:
    """Raises TooManyRequests at a limit of waiting online requests."""
    load = tx.load.online(tenant_id)
    if load.own >= settings.online_queue_max:
        limit, whose = settings.online_queue_max, "yours"
    elif load.total >= settings.online_queue_total_max and load.own >= fair_share(
        settings.online_queue_total_max, load.tenants + (load.own == 0)
    ):
        limit, whose = settings.online_queue_total_max, "of all tenants"
    else:
        return
    oldest_at = tx.load.oldest_online()
    waited_s = 0.0 if oldest_at is None else (now - oldest_at).total_seconds()
    raise TooManyRequests(
        f"{limit} online requests ({whose}) are waiting already. Try again when some have been answered.",
        retry_after_s=estimated_drain_s(load.total, per_second_of(load.total, waited_s)),
    )


def admit_bulk(tx: Transaction, tenant_id: str, settings: SubmissionSettings, now: datetime) -> None:
    """Raises TooManyRequests at a limit of unfinished jobs or waiting rows.

    A job is admitted whole: its rows are unknown until its input is read.
    """
    load = tx.load.bulk(tenant_id)
    exceeded = _exceeded(load, settings)
    if exceeded is None:
        return
    message, rows_excess = exceeded
    running_s = 0.0 if load.running_since is None else (now - load.running_since).total_seconds()
    raise TooManyRequests(
        f"{message} Try again when some of them are done.",
        retry_after_s=estimated_drain_s(rows_excess, per_second_of(load.rows_done, running_s)),
    )


def _exceeded(load: BulkLoad, settings: SubmissionSettings) -> tuple[str, int] | None:
    """The limit reached, in words, and how many rows must end before it is not."""
    if load.jobs >= settings.bulk_jobs_max:
        return f"{load.jobs} of your bulk jobs are unfinished.", load.rows // max(1, load.jobs)
    if load.rows >= settings.bulk_rows_max:
        return f"{load.rows} rows of yours are waiting.", load.rows - settings.bulk_rows_max + 1
    share = fair_share(settings.bulk_rows_total_max, load.tenants + (load.jobs == 0))
    if load.rows_total >= settings.bulk_rows_total_max and load.rows >= share:
        message = f"{load.rows_total} rows of all tenants are waiting."
        return message, load.rows_total - settings.bulk_rows_total_max + 1
    return None


def per_second_of(count: int, seconds: float) -> float:
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
