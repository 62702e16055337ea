"""Limits of a bulk job, at which it is stopped and fails, keeping what it has. Pure."""

from nightshift.jobs.job import Counts, InputError, Job, JobSpec


def limit_passed(job: Job, rows_min: int) -> InputError | None:
    """The limit that a running job has passed. A rate counts after `rows_min` finished rows, or for all."""
    counts, rate = job.counts, job.spec.options.max_error_rate
    tokens_max = job.spec.options.max_tokens_total
    if tokens_max is not None and job.usage.total_tokens > tokens_max:
        return _too_many_tokens(job, tokens_max)
    finished = counts.succeeded + counts.failed
    if rate is not None and finished >= rows_min and counts.failed > rate * finished:
        return _too_many_errors(counts)
    return failed_rows_passed(job.spec, counts)


def failed_rows_passed(spec: JobSpec, counts: Counts) -> InputError | None:
    """The limit that failed rows have passed, whatever follows."""
    rate, failed_max = spec.options.max_error_rate, spec.options.max_failed_rows
    if failed_max is not None and counts.failed > failed_max:
        message = f"{counts.failed} rows have no good result; max_failed_rows allows {failed_max}."
        return InputError("max_failed_rows_exceeded", message, param="max_failed_rows")
    if rate is not None and counts.total is not None and counts.failed > rate * counts.total:
        return _too_many_errors(counts)
    return None


def why_stopped(job: Job, counts: Counts) -> InputError:
    """The limit at which a job was stopped. Rows that never ran count as failed by then."""
    tokens_max = job.spec.options.max_tokens_total
    if tokens_max is not None and job.usage.total_tokens > tokens_max:
        return _too_many_tokens(job, tokens_max)
    return failed_rows_passed(job.spec, counts) or _too_many_errors(counts)


def _too_many_errors(counts: Counts) -> InputError:
    rows = counts.total if counts.total is not None else counts.succeeded + counts.failed
    message = f"{counts.failed} of {rows} rows have no good result; max_error_rate was exceeded."
    return InputError("max_error_rate_exceeded", message, param="max_error_rate")


def _too_many_tokens(job: Job, tokens_max: int) -> InputError:
    message = f"The rows have used {job.usage.total_tokens} tokens; max_tokens_total allows {tokens_max}."
    return InputError("max_tokens_total_exceeded", message, param="max_tokens_total")
