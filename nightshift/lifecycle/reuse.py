"""The earlier job whose results a bulk job reuses: `latest`, the date of a run of its name, or a job's id."""

from dataclasses import replace
from typing import Final

from nightshift.errors import InvalidRequest
from nightshift.jobs import Face, InputError, Job, JobKind, JobState, NewJob
from nightshift.store import Transaction

LATEST: Final = "latest"
RUNS_LOOKED_AT_MAX: Final = 1000  # the newest runs of a name


def with_reused_job(tx: Transaction, new: NewJob) -> NewJob:
    """The job with the id of the one it reuses, if it reuses any. Raises InvalidRequest.

    `latest` is the newest run that succeeded and still has its results, with the same model and endpoint.
    There may be none.
    """
    wish = new.spec.options.reuse
    if wish is None:
        return new
    if wish == LATEST:
        run = _latest(tx, new)
        return new if run is None else _with(new, run)
    is_id = wish.startswith("job_")
    job = tx.jobs.get(new.tenant_id, wish) if is_id else _run(tx, new, wish)
    if job is None:
        what = f"there is no job {wish}" if is_id else f"'{new.spec.name}' has no run of {wish}"
        raise _wrong(what, "reuse_not_found")
    objection = _objection(new, job)
    if objection is not None:
        raise objection
    return _with(new, job)


def other_model(job: Job, earlier: Job, model: str) -> InputError | None:
    """The mistake where a job's rows, and not its template, name another model. None: there is none."""
    if job.spec.options.reuse == LATEST or earlier.model == model:
        return None
    return InputError(
        "reuse_mismatch", _ran(earlier, f"the model '{earlier.model}', not '{model}'"), param="reuse"
    )


def _objection(new: NewJob, job: Job) -> InvalidRequest | None:
    if (job.kind, job.face) != (JobKind.BULK, Face.NATIVE):
        return _wrong(f"{job.id} is no bulk job of /v1/jobs; only those can be reused", "reuse_mismatch")
    if not job.state.is_terminal:
        return _wrong(f"{job.id} has not ended; wait for it, or cancel it", "reuse_not_ended")
    if job.results_deleted_at is not None:
        return _wrong(f"the results of {job.id} have been deleted", "reuse_not_found")
    if job.spec.endpoint != new.spec.endpoint:
        return InvalidRequest(_ran(job, job.spec.endpoint), param="reuse", code="reuse_mismatch")
    if new.model is not None and job.model is not None and job.model != new.model:
        message = _ran(job, f"the model '{job.model}', not '{new.model}'")
        return InvalidRequest(message, param="reuse", code="reuse_mismatch")
    return None


def _latest(tx: Transaction, new: NewJob) -> Job | None:
    name = new.spec.name
    if name is None:
        raise _wrong("'latest' is a run of the same name; give 'name' and 'date', or a job's id")
    runs = tx.jobs.runs(new.tenant_id, name, RUNS_LOOKED_AT_MAX)
    ended = (job for job in runs if job.state is JobState.SUCCEEDED)
    return next((job for job in ended if _objection(new, job) is None), None)


def _run(tx: Transaction, new: NewJob, date: str) -> Job | None:
    name = new.spec.name
    if name is None:
        raise _wrong("a date is that of a run of the same name; give 'name' and 'date', or a job's id")
    runs = tx.jobs.runs(new.tenant_id, name, RUNS_LOOKED_AT_MAX)
    return next((job for job in runs if job.spec.run_date == date), None)


def _with(new: NewJob, job: Job) -> NewJob:
    return replace(new, spec=replace(new.spec, reused_job=job.id))


def _ran(job: Job, what: str) -> str:
    return f"Invalid 'reuse': {job.id} ran {what}. Name another run, or none."


def _wrong(what: str, code: str = "invalid_value") -> InvalidRequest:
    return InvalidRequest(f"Invalid 'reuse': {what}.", param="reuse", code=code)
