"""Runs the rows of an ended job that did not succeed again, as a new job.

Its input is a file of their requests, which the scheduler writes when it plans the job.
"""

from dataclasses import replace
from datetime import datetime

from nightshift.bulk.rows.kept_values import KEPT_FIELD
from nightshift.errors import Conflict
from nightshift.jobs import Job, JobKind, NewJob
from nightshift.jobs.files import retry_input_id
from nightshift.lifecycle.submission import Submitter
from nightshift.lifecycle.transitions import Submitted
from nightshift.store import Transaction


def as_retry(
    tx: Transaction, new: NewJob, old: Job, *, has_own_output: bool, has_own_webhook: bool
) -> NewJob:
    """The checked job, made one over the rows of `old`. Its output does not replace that of `old`."""
    output = new.spec.output
    if output is not None and not has_own_output:
        output = f"{output.rstrip('/')}/retries/{new.id}/"
    spec = replace(
        new.spec,
        input=retry_input_id(new.id),
        further_inputs=(),
        output=output,
        template=None,  # it is filled in already
        id_column=None,
        kept_in=None if new.spec.options.keep_columns is None else KEPT_FIELD,
        # Its rows are lines of JSON now, and none of them has a good result.
        options=replace(new.spec.options, reuse=None, input_format=None, separator=None),
        reused_job=None,
        name=None,  # with the date, the name is the key of the earlier run
        run_date=None,
        estimate=None,
    )
    secret = new.webhook_secret if has_own_webhook else tx.jobs.webhook_secret(old.id)
    return replace(new, spec=spec, model=old.model, retry_of=old.id, webhook_secret=secret)


def check(old: Job) -> None:
    """Raises Conflict for a job without rows to run again."""
    if old.kind is JobKind.ONLINE:
        raise Conflict("Cannot retry a job of one request: submit the request again.")
    if not old.state.is_terminal:
        raise Conflict(f"Cannot retry a job with status '{old.state}': it has not ended.")
    if old.planned_at is None:
        raise Conflict("Cannot retry a job whose input was not read to its end: submit it again.")
    if old.results_deleted_at is not None:
        raise Conflict("Cannot retry a job whose results are deleted: submit it again.")
    if old.counts.failed == 0:
        raise Conflict("Cannot retry a job whose rows all succeeded.")


def submit(tx: Transaction, new: NewJob, submitter: Submitter, now: datetime) -> Submitted:
    """Accepts a retry. Raises Conflict, UnknownModel, TooManyRequests."""
    assert new.retry_of is not None, "a retry names its job"
    old = tx.jobs.get(new.tenant_id, new.retry_of)
    if old is None:
        raise Conflict("The job has been deleted meanwhile.")
    check(old)
    return submitter.submit_unread(tx, new, now)
