"""The runs of a call: its job is begun, or one is taken up that runs or has all answers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from nightshift.client.answers import ApiError, RemoteJob
from nightshift.client.connection import TRIES_MAX
from nightshift.client.mapping.calls import MapCall, MapOptions, form_of_job
from nightshift.client.mapping.forms import invalid
from nightshift.client.mapping.handles import MapHandle
from nightshift.client.mapping.rows import MapData, data_of
from nightshift.jobs import JobState

if TYPE_CHECKING:
    from nightshift.client.http_client import Client

RUNS_LOOKED_AT_MAX: Final = 100  # the newest of a name
FILENAME: Final = "rows.jsonl"
KEY_REUSED: Final = "idempotency_key_reused"


def begun(client: "Client", data: object, prompt: object, options: MapOptions) -> MapHandle:
    """Checks everything, then begins the call or finds its job. Raises InvalidRequest before anything is
    sent, ApiError, ServerUnreachable.
    """
    call = MapCall.checked(prompt, options)
    known = data_of(data, call)
    try:
        job = _job_of(client, call, known)
    finally:
        known.close()
    return MapHandle(client, client.get_job(job.id, is_followed=True), known)


def attached(client: "Client", name: str) -> MapHandle:
    """The newest run of a name. Raises InvalidRequest where there is none, or it is of something else."""
    if not isinstance(name, str) or not name:
        raise invalid("name", "give the name of a call, a text")
    newest = next(client.list_jobs(name=name, limit=1), None)
    if newest is None:
        raise invalid("name", f"no call has the name '{name}'", "not_found")
    job = client.get_job(newest.id)
    form_of_job(job)
    return MapHandle(client, job)


def _job_of(client: "Client", call: MapCall, data: MapData) -> RemoteJob:
    """The job of this call over these data: one that runs or has all answers, else a new one, which reuses
    the answers of an earlier one.
    """
    input = data.location
    for attempt in range(TRIES_MAX):
        runs = list(client.list_jobs(name=call.name, limit=RUNS_LOOKED_AT_MAX))
        if runs and not call.is_of(runs[0]):
            raise call.objection(client.get_job(runs[0].id))
        same = [run for run in runs if _date(run).rpartition("-")[0] == data.digest]
        if same and _is_current(same[0], data):
            return same[0]
        # A run that is too old to be listed has its number, too.
        number = 1 + max([attempt, *(int(_date(run).rpartition("-")[2]) for run in same)])
        if input is None:
            assert data.file is not None, "rows of a table are in a file"
            input = client.upload_file(data.file, data.size_bytes, FILENAME)
        reuse = _to_reuse([run for run in runs if call.is_of(run)])
        try:
            return client.submit_job(call.job(input, data.id_field, f"{data.digest}-{number}", reuse))
        except ApiError as error:  # another process began the call meanwhile
            if error.code != KEY_REUSED or attempt + 1 == TRIES_MAX:
                raise
    raise AssertionError("the last attempt returns or raises")


def _date(run: RemoteJob) -> str:
    return str(run.data.get("date") or "")


def _is_current(run: RemoteJob, data: MapData) -> bool:
    """Whether the run answers the call: it is under way, or has all answers to rows that cannot change."""
    if not run.state.is_terminal:
        return run.data.get("stop_requested_at") is None
    has_all = run.state is JobState.SUCCEEDED and not run.counts.failed
    return has_all and data.location is None and run.data.get("results_deleted_at") is None


def _to_reuse(runs: Sequence[RemoteJob]) -> str | None:
    """The ended run with the most answers, back to the newest that succeeded."""
    usable = [run for run in runs if run.state.is_terminal and run.data.get("results_deleted_at") is None]
    newest = next((at for at, run in enumerate(usable) if run.state is JobState.SUCCEEDED), len(usable))
    best = max(usable[: newest + 1], key=lambda run: run.counts.succeeded, default=None)
    return best.id if best is not None and best.counts.succeeded else None
