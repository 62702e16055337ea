"""Records pages of shards, or why a job is refused, each in one transaction."""

import logging
from dataclasses import dataclass
from enum import StrEnum

from nightshift.errors import QueueUnavailable, QuotaExceeded
from nightshift.jobs import Face, InputError, Job
from nightshift.jobs.shard import Ring
from nightshift.lifecycle.admission import admit_planned
from nightshift.lifecycle.transitions import plan, refuse_input
from nightshift.objectstore.verdicts import as_input_error
from nightshift.process import failpoints
from nightshift.store import Store
from nightshift.store.shards.shards import PreparedShards
from nightshift.tenants.quotas import Quotas
from scheduler.input.pages import ShardPage
from scheduler.runtime.duty import RingSender
from scheduler.runtime.thread_pools import POSTPONED

log = logging.getLogger(__name__)


class PlanOutcome(StrEnum):
    PLANNED = "planned"  # completely
    PAGE = "page"  # more pages follow
    YIELDED = "yielded"  # … in this job's next turn
    POSTPONED = POSTPONED  # … once rows of the tenant have ended: its quota is used up
    REFUSED = "refused"
    TOO_LATE = "too_late"  # the page was written, or the job stopped or over


@dataclass(frozen=True)
class PlanWriter:
    store: Store
    ring_sender: RingSender
    default_quotas: Quotas

    def write(self, job: Job, page: ShardPage) -> PlanOutcome:
        """Records the page that begins at the job's cursor, and rings."""
        try:
            rings = self._record(job, page)
        except QuotaExceeded as error:
            if self._has_open_shards(job):
                return PlanOutcome.POSTPONED
            return self.refuse(job, (as_input_error(error, param_of(job)),))
        if rings is None:
            return PlanOutcome.TOO_LATE
        if page.next is None:
            failpoints.hit("scheduler.planned")
        else:
            failpoints.hit("scheduler.page_planned")
        self._ring(rings)
        return _logged(job, page)

    def refuse(self, job: Job, errors: tuple[InputError, ...]) -> PlanOutcome:
        with self.store.transaction() as tx:
            ended = refuse_input(tx, job, errors, tx.now())
        log.info(
            "input refused",
            extra={"action": "input_refused", "job": job.id, "code": errors[0].code, "errors": len(errors)},
        )
        return PlanOutcome.REFUSED if ended else PlanOutcome.TOO_LATE

    def _record(self, job: Job, page: ShardPage) -> tuple[Ring, ...] | None:
        """Records a page. None: too late. Raises QuotaExceeded.

        A page before the last one does not wait for the disk. One that a failure undoes is cut again, since
        its cursor is undone with it; a worker's claim of one of its shards keeps it.
        """
        is_last = page.next is None
        prepared = self._prepared(job, page)
        with self.store.transaction(redone=not is_last) as tx:
            now = tx.now()
            admit_planned(tx, job.tenant_id, self.default_quotas)
            return plan(
                tx,
                job,
                page.model,
                page.shards,
                now,
                rows_total=page.rows_total,
                rows_estimated=page.rows_estimated,
                tokens_estimated=page.tokens_estimated,
                next=page.next,
                prepared=prepared,
            )

    def _prepared(self, job: Job, page: ShardPage) -> PreparedShards | None:
        """The page's shards, before the transaction: no writer waits while they are made into rows."""
        if page.model is None:
            return None
        with self.store.snapshot() as tx:
            return tx.shards.prepared(job, page.model, page.shards, tx.now())

    def _has_open_shards(self, job: Job) -> bool:
        with self.store.snapshot() as tx:
            return tx.shards.has_open(job.id)

    def _ring(self, rings: tuple[Ring, ...]) -> None:
        """Ring at once. If that fails, the ringing duty does."""
        if not rings:
            return
        try:
            self.ring_sender.ring(rings)
        except QueueUnavailable:
            log.info("rings left in the outbox", extra={"action": "rings_left", "rings": len(rings)})
            return
        with self.store.transaction() as tx:
            tx.outbox.delete([ring.id for ring in rings])


def _logged(job: Job, page: ShardPage) -> PlanOutcome:
    rows = page.rows_total or page.rows_estimated
    about = {"job": job.id, "page": job.plan_cursor.page, "shards": len(page.shards), "rows": rows}
    if page.next is not None:
        log.info("page of a job planned", extra={"action": "page_planned"} | about)
        return PlanOutcome.PAGE
    log.info("job planned", extra={"action": "job_planned"} | about)
    return PlanOutcome.PLANNED


def param_of(job: Job) -> str:
    """The field that names the job's input."""
    return "input_file_id" if job.face is Face.OPENAI else "input"
