"""The problem of a job: the reason why it does not go on at present, as its owner sees it.

Each part of the work records the faults that it meets where it meets them, under its own lease or lead, and
forgets them as it succeeds. From these, and from the workers that there are, follows the job's problem. The
scheduler records a change of it once, with an event; answers show it as it is now.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from nightshift.errors import MESSAGE_BYTES_MAX, shortened
from nightshift.fleet.workers import Worker, WorkerState
from nightshift.jobs import Fault, InputError, Job, JobKind, JobProblem, JobState
from nightshift.lifecycle.webhooks.fan_out import owe
from nightshift.outbound.webhook_events import PROBLEM, problem_json
from nightshift.store import Store, Transaction
from nightshift.store.jobs.problems import FailedDelivery, MetFaults, Wanted

NO_WORKER: Final = "no_worker"
SILENT_FOR: Final = timedelta(seconds=30)  # then a worker is not counted on: six heartbeats
JOBS_PER_PASS: Final = 200  # looked at in one pass, the next ones in the next; and told of each model
TOLD_MAX: Final = (
    100  # changes with an event and webhooks, of a job; a place that comes and goes fills no table
)


@dataclass(frozen=True)
class ShownProblem:
    """A problem, as answers about its job show it."""

    fault: Fault
    since: datetime | None  # None: it was seen this moment


def shown_problem(tx: Transaction, job: Job, now: datetime) -> ShownProblem | None:
    """The problem of one job. None: there is none."""
    return shown_problems(tx, [job], now).get(job.id)


def shown_problems(tx: Transaction, jobs: Sequence[Job], now: datetime) -> dict[str, ShownProblem]:
    """The problems of those of these jobs that have one, by id."""
    unfinished = [job for job in jobs if not job.state.is_terminal]
    bulk = [job.id for job in unfinished if job.kind is JobKind.BULK]
    affected = tx.problems.among(bulk) if bulk else set()
    concerned = [job for job in unfinished if job.id in affected or _waits_online(job)]
    workers = tx.workers.alive(now - SILENT_FOR) if concerned else ()
    shown = {}
    for job in concerned:
        fault = _fault_of(tx, job, workers, now)
        if fault is not None:
            shown[job.id] = ShownProblem(fault, since_of(job, fault))
    failed = tx.problems.undelivered([job.id for job in jobs if job.id not in shown]) if jobs else {}
    return shown | {id: ShownProblem(_undelivered(failure), None) for id, failure in failed.items()}


def since_of(job: Job, fault: Fault) -> datetime | None:
    """The time since which the job has had this problem."""
    is_known = job.problem is not None and is_same(job.problem.error, fault.error)
    return job.problem.since if job.problem is not None and is_known else fault.met_at


def is_same(one: InputError, other: InputError) -> bool:
    """Whether both are the same problem: messages name the object that was tried last."""
    return (one.code, one.param) == (other.code, other.param)


class ProblemRecorder:
    """Records the changes since the pass before. For one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._after = ""  # the last job that was looked at

    def run_once(self, now: datetime) -> int:
        """Returns how many problems have come, gone, or become others."""
        with self._store.snapshot() as tx:
            workers = tx.workers.alive(now - SILENT_FOR)
            ids = tx.problems.jobs(JOBS_PER_PASS, after=self._after)
            unserved = [
                wanted for wanted in tx.problems.wanted() if why_unserved(wanted, workers) is not None
            ]
            waiting = [id for wanted in unserved for id in tx.problems.waiting(wanted, JOBS_PER_PASS)]
            changes = [
                (job, fault)
                for job in map(tx.jobs.fetch, dict.fromkeys([*ids, *waiting]))
                if _is_news(job, fault := _fault_of(tx, job, workers, now))
            ]
        self._after = ids[-1] if len(ids) == JOBS_PER_PASS else ""
        return sum(self._record(job, fault, now) for job, fault in changes)

    def _record(self, job: Job, fault: Fault | None, now: datetime) -> bool:
        problem = None if fault is None else JobProblem(fault.error, now)
        with self._store.transaction() as tx:
            return record_problem(tx, job, problem, now)


def record_problem(tx: Transaction, job: Job, problem: JobProblem | None, now: datetime) -> bool:
    """Records a change, with its event and its owed webhooks. False: the job is over, or known otherwise."""
    tx.jobs.lock(job.id)
    if not tx.problems.record(job, problem):
        return False
    if job.problem_changes < TOLD_MAX:
        tx.events.append(job.id, PROBLEM, {"problem": problem_json(problem)}, now)
        tx.deliveries.drop_owed(job.id, PROBLEM)
        owe(tx, replace(job, problem=problem), PROBLEM, now)
    return True


def why_unserved(wanted: Wanted, workers: Sequence[Worker]) -> InputError | None:
    """The reason why none of these live workers may run such a job. None: one may. Pure."""
    serving = [worker for worker in workers if wanted.model in worker.models]
    if not serving:
        is_starting = any(worker.state is WorkerState.STARTING for worker in workers)
        rest = "; one is starting" if is_starting else ""
        return _no_worker(f"No worker that runs serves the model '{wanted.model}' at present{rest}")
    staying = [worker for worker in serving if worker.state is not WorkerState.DRAINING]
    if not staying:
        return _no_worker(f"The workers that serve the model '{wanted.model}' are shutting down")
    if wanted.capacity != "any" and wanted.capacity not in {worker.capacity for worker in staying}:
        return _no_worker(f"No worker of the capacity '{wanted.capacity}' serves the model '{wanted.model}'")
    if wanted.pool is not None and not any(wanted.pool in worker.pools for worker in staying):
        return _no_worker(f"No worker of the pool '{wanted.pool}' serves the model '{wanted.model}'")
    if any(_may_run(worker, wanted) for worker in staying):
        return None
    return _no_worker(
        f"No worker of the pool '{wanted.pool}' has the capacity '{wanted.capacity}' and serves the model "
        f"'{wanted.model}'"
    )


def _may_run(worker: Worker, wanted: Wanted) -> bool:
    is_capable = wanted.capacity in ("any", worker.capacity)
    return is_capable and (wanted.pool is None or wanted.pool in worker.pools)


def _no_worker(message: str) -> InputError:
    return InputError(NO_WORKER, shortened(message, MESSAGE_BYTES_MAX), param="model")


def _waits_online(job: Job) -> bool:
    return job.kind is JobKind.ONLINE and job.state is JobState.QUEUED and job.model is not None


def _fault_of(tx: Transaction, job: Job, workers: Sequence[Worker], now: datetime) -> Fault | None:
    """The fault that stops an unfinished job first."""
    if job.kind is JobKind.BULK:
        if (met := _first(tx.problems.met(job.id))) is not None:
            is_due = met.next_attempt_at is None or met.next_attempt_at <= now
            return replace(met, next_attempt_at=None) if is_due else met
        if not tx.problems.is_waiting(job.id):
            return None
    assert job.model is not None, "a job with shards has a model"
    unserved = why_unserved(Wanted(job.model, job.spec.capacity, job.spec.options.pool), workers)
    return None if unserved is None else Fault(error=unserved)


def _first(met: MetFaults) -> Fault | None:
    if met.part is not None and met.part.is_permanent:
        return _of_output(met.part)
    if (fault := met.input or met.shard) is not None:
        return fault
    output = met.part or met.manifest
    return None if output is None else _of_output(output)


def _of_output(fault: Fault) -> Fault:
    beginning = "The output cannot be written" + ("" if fault.is_permanent else " at present")
    message = shortened(f"{beginning}: {fault.error.message.rstrip('.')}", MESSAGE_BYTES_MAX)
    return replace(fault, error=replace(fault.error, message=message))


def _undelivered(failure: FailedDelivery) -> Fault:
    said = failure.fault.error.message.rstrip(".")
    message = shortened(f"The webhook {failure.event_type} was not delivered: {said}", MESSAGE_BYTES_MAX)
    return replace(failure.fault, error=replace(failure.fault.error, message=message))


def _is_news(job: Job, fault: Fault | None) -> bool:
    if job.problem is None or fault is None:
        return (job.problem is None) != (fault is None)
    return not is_same(job.problem.error, fault.error)
