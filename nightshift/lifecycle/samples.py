"""Sample jobs: a few rows of an input that workers run to tell what a job over all of it would take.

A sample is a bulk job over a file that the service wrote, which calls no webhook and writes no output of its
tenant's. It waits in the last class, and ends by itself: `LASTS_S` after its first row began.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from nightshift.bulk.results.row_results import RowResult
from nightshift.jobs import Job, JobSpec, JobState, JsonObject, NewJob
from nightshift.jobs.capacity.estimates import Done, SampleResults
from nightshift.jobs.files import File, FilePurpose, retry_input_id
from nightshift.jobs.ids import new_id
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle.admission import admit_stored
from nightshift.lifecycle.submission import Submitter
from nightshift.lifecycle.transitions import SHARD_LOST, SHARD_RETURNED
from nightshift.objectstore import ObjectInfo
from nightshift.outbound.webhook_events import PROGRESS
from nightshift.store import Transaction
from nightshift.store.jobs.events import Event
from nightshift.tenants.quotas import Quotas

LASTS_S: Final = 60  # from its first claim; rows that have begun may end
WAITS_S: Final = 600  # for a worker, and to end
FILE_KEPT: Final = timedelta(hours=1)
NOT_OF_SAMPLES: Final = (
    *("reuse", "max_error_rate", "max_failed_rows", "max_tokens_total"),
    *("keep_columns", "input_format", "separator"),
)


def as_sample(new: NewJob, about: JsonObject) -> NewJob:
    """The sample job of a checked job. `about`: the estimate that it is for."""
    id = new_id("job")
    # How rows are run stays as it is; what would end the job early, or write more of it, does not.
    unset: dict[str, Any] = dict.fromkeys(NOT_OF_SAMPLES)
    options = replace(new.spec.options, **unset)
    spec = JobSpec(
        endpoint=new.spec.endpoint,
        input=retry_input_id(id),
        completion_window_s=WAITS_S,
        max_runtime_s=LASTS_S,
        capacity=new.spec.capacity,
        options=options,
        estimate=about,
    )
    return replace(
        new, id=id, spec=spec, priority=PriorityClass.BACKGROUND, webhook_secret=None, stored_bytes=0
    )


def submit(
    tx: Transaction, new: NewJob, stored: ObjectInfo, submitter: Submitter, quotas: Quotas, now: datetime
) -> Job:
    """Accepts a sample whose lines are stored. Raises UnknownModel, TooManyRequests."""
    assert new.spec.input is not None, "a sample has a file"
    assert stored.sha256 is not None, "`put` returns the sha256"
    admit_stored(tx, new.tenant_id, quotas)
    tx.files.insert(
        File(
            id=new.spec.input,
            tenant_id=new.tenant_id,
            purpose=FilePurpose.BATCH,
            filename=f"sample_of_{new.id}.jsonl",
            size_bytes=stored.size_bytes,
            sha256=stored.sha256,
            created_at=now,
            expires_at=now + FILE_KEPT,
        )
    )
    return submitter.submit_unread(tx, new, now).job


def results_of(job: Job, results: Iterable[RowResult], events: Sequence[Event]) -> SampleResults:
    """The results of a sample job that has ended. Without `done` where a worker was lost or gave rows back:
    time in which none ran it is no pace.
    """
    run, failures, reused = [], Counter[str](), 0
    for result in results:
        if result.is_reused:
            reused += 1
        elif result.succeeded:
            run.append(result.usage)
        else:
            failures[str(result.body.get("error", {}).get("code") or result.status_code)] += 1

    def since_start_s(at: datetime | None) -> float | None:
        return None if at is None or job.started_at is None else (at - job.started_at).total_seconds()

    is_interrupted = any(event.type in (SHARD_LOST, SHARD_RETURNED) for event in events)
    counted = () if is_interrupted else (event for event in events if event.type == PROGRESS)
    counts = [(event.created_at, event.data["counts"]) for event in counted]
    return SampleResults(
        prompt_tokens=[usage.prompt_tokens for usage in run],
        completion_tokens=[usage.completion_tokens for usage in run],
        failures=failures,
        reused=reused,
        done=[Done(since_start_s(at) or 0.0, count["succeeded"] + count["failed"]) for at, count in counts],
        worker_s=job.worker_time.total_s,
        ended_s=since_start_s(job.finished_at) if job.state is JobState.SUCCEEDED else None,
        stopped_s=since_start_s(job.stop_requested_at),
    )
