"""A job as /v1/jobs shows it, without secrets."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from api.bodies.jobs import options_json
from api.responses.times import eta_at, seconds, window_text
from nightshift.endpoints.answers import usage_json
from nightshift.jobs import InputError, Job, JobSpec, JobState, JsonObject
from nightshift.jobs.part import OutputProblem
from nightshift.lifecycle.cutting import problem_of
from nightshift.lifecycle.problems import ShownProblem, shown_problem, shown_problems
from nightshift.lifecycle.transitions import counts_json
from nightshift.process.settings import ApiSettings
from nightshift.store import Transaction

RETRIES_SHOWN: Final = 20  # of a job
TIMES: Final = (
    "planned_at",
    "started_at",
    "paused_at",
    "resumes_at",
    "stop_requested_at",
    "finalizing_at",
    "finished_at",
    "results_deleted_at",
)


def accepted_json(tx: Transaction, job: Job, base_url: str) -> JsonObject:
    """The answer to a create."""
    return head_json(job, queue_positions(tx, [job]).get(job.id), base_url)


def job_json(tx: Transaction, job: Job, now: datetime, base_url: str) -> JsonObject:
    problem = shown_problem(tx, job, now)
    return _job_json(job, queue_positions(tx, [job]).get(job.id), problem, now, base_url)


def listed_json(tx: Transaction, jobs: Sequence[Job], now: datetime, base_url: str) -> list[JsonObject]:
    """The jobs of a list: without their templates, which lists do not read."""
    positions = queue_positions(tx, jobs)
    problems = shown_problems(tx, jobs, now)
    shown = [_job_json(job, positions.get(job.id), problems.get(job.id), now, base_url) for job in jobs]
    for one in shown:
        del one["template"]
    return shown


def queue_positions(tx: Transaction, jobs: Sequence[Job]) -> Mapping[str, int]:
    """Positions in the queue from 1, by id; none for jobs outside the queue."""
    return tx.positions.places(
        [job for job in jobs if job.state is JobState.QUEUED and job.paused_at is None]
    )


def head_json(job: Job, position: int | None, base_url: str) -> JsonObject:
    """The fields with which every answer about a job begins."""
    url = f"{base_url.rstrip('/')}/v1/jobs/{job.id}"
    return {
        "id": job.id,
        "object": "job",
        "status": job.state,
        "queue_position": position,
        "links": {
            "self": url,
            "events": f"{url}/events",
            "results": f"{url}/results",
            "cancel": f"{url}/cancel",
        },
    }


def _job_json(
    job: Job, position: int | None, problem: ShownProblem | None, now: datetime, base_url: str
) -> JsonObject:
    errors = [
        {"code": error.code, "message": error.message, "line": error.line, "param": error.param}
        for error in job.errors
    ]
    return (
        head_json(job, position, base_url)
        | {
            "kind": job.kind,
            "model": job.model,
            "priority": job.priority,
            "stop_reason": job.stop_reason,
            "retry_of": job.retry_of,
            "counts": counts_json(job.counts),
            "rows_estimated": None if job.planned_at is None else job.rows_estimated,
            "usage": usage_json(job.usage),
            "tokens_redone": job.tokens_redone,
            "rows_reused": job.rows_reused,
            "rows_unlisted": job.rows_unlisted,
            "worker_seconds": {
                "spot": round(job.worker_time.spot_s, 3),
                "on_demand": round(job.worker_time.on_demand_s, 3),
            },
            "outlook": job.outlook,
            "eta_at": seconds(eta_at(job, now)),
            "error": errors[0] if errors else None,
            "errors": errors,
            "problem": problem_json(problem),
            "output_file_id": job.output_file_id,
            "error_file_id": job.error_file_id,
        }
        | _request_json(job.spec)
        | _times_json(job)
    )


def described_json(tx: Transaction, job: Job, now: datetime, settings: ApiSettings) -> JsonObject:
    """A job by itself: with its newest retries, its cost, and what keeps its output from being written."""
    cost = settings.prices.cost(job.worker_time)
    retries = tx.jobs.retries(job.tenant_id, job.id, RETRIES_SHOWN)
    return job_json(tx, job, now, settings.base_url) | {
        "cost": None if cost is None else round(cost, 6),
        "output_problem": _output_problem_json(problem_of(tx, job, now)),
        "retries": list(retries),
    }


def _request_json(spec: JobSpec) -> JsonObject:
    """The request as sent."""
    webhook = spec.webhook
    return {
        "endpoint": spec.endpoint,
        "input": spec.input,
        "output": spec.output,
        "template": spec.template,
        "id_column": spec.id_column,
        "format": spec.format,
        "completion_window": window_text(spec.completion_window_s),
        "window": spec.window,
        "max_runtime": None if spec.max_runtime_s is None else window_text(spec.max_runtime_s),
        "retry_on_interrupt": spec.retry_on_interrupt,
        "capacity": spec.capacity,
        "webhook": None if webhook is None else {"url": webhook.url, "events": list(webhook.events)},
        "metadata": spec.metadata,
        "name": spec.name,
        "date": spec.run_date,
        "reused_job": spec.reused_job,
        **options_json(spec.options),
    }


def _times_json(job: Job) -> JsonObject:
    shown = {"created_at": seconds(job.created_at), "expires_at": seconds(job.deadline_at)}
    return shown | {name: seconds(getattr(job, name)) for name in TIMES}


def problem_json(shown: ShownProblem | None) -> JsonObject | None:
    """A job's problem, in answers about the job."""
    if shown is None:
        return None
    return _cause_json(shown.fault.error) | {
        "is_permanent": shown.fault.is_permanent,
        "since": seconds(shown.since),
        "last_tried_at": seconds(shown.fault.met_at),
        "next_attempt_at": seconds(shown.fault.next_attempt_at),
    }


def _output_problem_json(shown: OutputProblem | None) -> JsonObject | None:
    if shown is None:
        return None
    return _cause_json(shown.problem.error) | {
        "is_permanent": shown.problem.is_permanent,
        "next_attempt_at": seconds(shown.next_attempt_at),
    }


def _cause_json(error: InputError) -> JsonObject:
    return {"code": error.code, "message": error.message, "param": error.param}
