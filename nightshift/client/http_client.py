"""A client for /v1/jobs: map a prompt over a table; submit, follow, cancel, collect.

    with Client("http://127.0.0.1:8000", api_key) as client:
        job = client.submit_job({"endpoint": "embeddings", "input": "s3://in/docs.parquet", …})
        for event in client.events(job.id):
            ...

Use the official `openai` client for OpenAI's routes. Calls that are safe to repeat are retried a few times.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import IO, TYPE_CHECKING, Final, Literal, Unpack, overload

import httpx

from nightshift.client.answers import (
    LOOKS,
    ApiError,
    JobEvent,
    RemoteJob,
    json_object,
    lines_of,
    parse_events,
    segment,
)
from nightshift.client.connection import CONNECT_TIMEOUT_S, FOLLOWING_TRIES_MAX, TRIES_MAX, Connection
from nightshift.jobs import JsonObject
from nightshift.jobs.dead_letters import DeadLetterState
from nightshift.jobs.ids import new_id

if TYPE_CHECKING:  # what they need takes long to import, and most commands map nothing
    from nightshift.client.mapping.calls import MapOptions
    from nightshift.client.mapping.handles import MapHandle
    from nightshift.client.mapping.results import MapResult

SILENCE_MAX_S: Final = 45.0  # an event stream has a keep-alive every 15 s
PAGE_MAX: Final = 100
PART_BYTES: Final = 16 << 20  # of an upload
COMPLETION_S: Final = 600.0  # the server copies and checks an upload before it answers
FILE_KEPT_S: Final = 30 * 86400  # as long as a batch file
REPLAYED: Final = "idempotent-replayed"  # a header of answers that repeat an earlier one

_ENDPOINTS: Final = "/v1/webhook_endpoints"
_SCHEDULES: Final = "/v1/schedules"


class Client(Connection):
    """A client of one server: a method for each route of ours."""

    @overload
    def map(
        self, data: object, prompt: str, *, wait: Literal[True] = True, **options: "Unpack[MapOptions]"
    ) -> "MapResult": ...

    @overload
    def map(
        self, data: object, prompt: str, *, wait: Literal[False], **options: "Unpack[MapOptions]"
    ) -> "MapHandle": ...

    def map(
        self, data: object, prompt: str, *, wait: bool = True, **options: "Unpack[MapOptions]"
    ) -> "MapResult | MapHandle":
        """Asks a model `prompt`, with `{{column}}` in it, of each row of `data` (docs/client.md).

        `wait=False` returns a handle at once. The same call again takes up the job that it began, and with
        changed rows computes those. Raises InvalidRequest before anything is sent, ApiError,
        ServerUnreachable, and MapFailed for a job that did not succeed.
        """
        from nightshift.client.mapping import runs

        handle = runs.begun(self, data, prompt, options)
        return handle.result(progress=options.get("progress", True)) if wait else handle

    def attach(self, name: str) -> "MapHandle":
        """The handle of the newest call of this name. Raises InvalidRequest where there is none."""
        from nightshift.client.mapping import runs

        return runs.attached(self, name)

    def submit_job(self, body: JsonObject, *, idempotency_key: str | None = None) -> RemoteJob:
        """Submits a job with the body of `POST /v1/jobs`. Two calls with one key make one job.

        Without a key a random one is sent, so that a retry makes no second job. Raises ApiError,
        ServerUnreachable.
        """
        # The server identifies a nightly run by its name and date.
        key = idempotency_key or (None if body.get("name") else new_id("key"))
        headers = {"idempotency-key": key} if key else {}
        answer = self._answer("POST", "/v1/jobs", json=body, headers=headers)
        return RemoteJob.from_json(json_object(answer), is_repeat=REPLAYED in answer.headers)

    def try_job(self, body: JsonObject) -> JsonObject:
        """The outcome that a submission would have, without one (docs/jobs.md). Raises ApiError,
        ServerUnreachable.
        """
        return self._call("POST", "/v1/jobs?dry_run=true", json=body)

    def estimate_job(self, body: JsonObject) -> JsonObject:
        """Begins an estimate (docs/estimates.md); `get_estimate` has its figures once its sample has ended.
        A call without an answer is not repeated: its sample may run.

        Raises ApiError, ServerUnreachable.
        """
        return self._call("POST", "/v1/jobs/estimate", json=body, is_repeatable=False)

    def get_estimate(self, estimate_id: str) -> JsonObject:
        """An estimate as it is known now. Raises ApiError (404: no such estimate), ServerUnreachable."""
        return self._call("GET", f"/v1/jobs/estimate/{segment(estimate_id)}", is_following=True)

    def prompt_text(self, conversation: JsonObject) -> str:
        """The text that a model reads of a conversation, given as `/v1/tokenize` takes it. Raises ApiError,
        ServerUnreachable.
        """
        token_ids = self._call("POST", "/v1/tokenize", json=conversation)["tokens"]
        said = self._call(
            "POST", "/v1/detokenize", json={"model": conversation["model"], "tokens": token_ids}
        )
        return str(said["prompt"])

    def get_job(self, job_id: str, *, is_followed: bool = False) -> RemoteJob:
        """`is_followed`: the caller polls, with as many retries as `events`.

        Raises ApiError (404: no such job), ServerUnreachable.
        """
        return RemoteJob.from_json(self._call("GET", f"/v1/jobs/{segment(job_id)}", is_following=is_followed))

    def wait_for_job(
        self, job_id: str, *, on_look: Callable[[RemoteJob], object] = lambda _: None
    ) -> RemoteJob:
        """The job, once it has ended. `on_look` is called with each look at it. Raises ApiError,
        ServerUnreachable.
        """
        looks = 0
        while not (job := self.get_job(job_id, is_followed=True)).state.is_terminal:
            on_look(job)
            looks += 1
            self._sleep(LOOKS.delay_s(looks))
        on_look(job)
        return job

    def list_jobs(
        self,
        *,
        status: str | Sequence[str] | None = None,
        priority: str | None = None,
        kind: str | None = None,
        model: str | None = None,
        name: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int | None = None,
    ) -> Iterator[RemoteJob]:
        """Yields at most `limit` jobs, newest first, fetched page by page.

        `status`: one, or any of several. `created_after` is inclusive, `created_before` exclusive; both are
        aware, and cut to whole seconds.
        """
        filters = {
            "status": [status] if isinstance(status, str) else list(status or ()),
            "priority": priority,
            "kind": kind,
            "model": model,
            "name": name,
            "created_after": _epoch_s(created_after),
            "created_before": _epoch_s(created_before),
        }
        wanted = {parameter: value for parameter, value in filters.items() if value}
        yield from map(RemoteJob.from_json, self._pages("/v1/jobs", wanted, limit))

    def change_job(
        self, job_id: str, *, priority: str | None = None, metadata: Mapping[str, str] | None = None
    ) -> RemoteJob:
        """Changes what is given; metadata is replaced whole. Raises ApiError (409: too late)."""
        changes = {"priority": priority, "metadata": None if metadata is None else dict(metadata)}
        body = {name: value for name, value in changes.items() if value is not None}
        return RemoteJob.from_json(self._call("PATCH", f"/v1/jobs/{segment(job_id)}", json=body))

    def pause_job(self, job_id: str) -> RemoteJob:
        """Pauses a job: no more of it runs. A repeat changes nothing. Raises ApiError (409: too late)."""
        return RemoteJob.from_json(self._call("POST", f"/v1/jobs/{segment(job_id)}/pause"))

    def resume_job(self, job_id: str) -> RemoteJob:
        """Resumes a paused job. A repeat changes nothing. Raises ApiError (409: too late)."""
        return RemoteJob.from_json(self._call("POST", f"/v1/jobs/{segment(job_id)}/resume"))

    def retry_job(
        self, job_id: str, body: JsonObject | None = None, *, idempotency_key: str | None = None
    ) -> RemoteJob:
        """Runs the rows of an ended job that did not succeed again, as a new job, which is returned.

        `body`: of `POST /v1/jobs/{id}/retry`, what the new job has instead of the earlier one's. Two calls
        with one key make one job; without a key a random one is sent. Raises ApiError (409: nothing to run).
        """
        headers = {"idempotency-key": idempotency_key or new_id("key")}
        path = f"/v1/jobs/{segment(job_id)}/retry"
        return RemoteJob.from_json(self._call("POST", path, json=body or {}, headers=headers))

    def cancel_job(self, job_id: str) -> RemoteJob:
        """Cancels a job; finished rows stay. Raises ApiError (409: too late)."""
        return RemoteJob.from_json(self._call("POST", f"/v1/jobs/{segment(job_id)}/cancel"))

    def delete_job(self, job_id: str) -> None:
        """Deletes a job that has ended. Raises ApiError (404: no such job; 409: it has not ended)."""
        self._delete(f"/v1/jobs/{segment(job_id)}")

    def events(
        self, job_id: str, *, after: str | None = None, on_keep_alive: Callable[[], object] = lambda: None
    ) -> Iterator[JobEvent]:
        """A job's events, from the first or after an event's id, until the job has ended. `on_keep_alive` is
        called about every 15 s that bring none.

        A broken stream is resumed, also while the server or a proxy answers 429, 502, 503 or 504. Raises
        ApiError, and ServerUnreachable after `FOLLOWING_TRIES_MAX` failures in a row.
        """

        def opened(after: str | None) -> Iterator[JobEvent]:
            headers, path = {"last-event-id": after} if after else {}, f"/v1/jobs/{segment(job_id)}/events"
            timeout = httpx.Timeout(SILENCE_MAX_S, connect=CONNECT_TIMEOUT_S)
            with self._stream(path, headers=headers, timeout=timeout) as answer:
                yield from parse_events(answer.iter_lines(), on_keep_alive)

        return self._resumed(opened, lambda event: event.id, after, tries=FOLLOWING_TRIES_MAX)

    def results(
        self,
        job_id: str,
        *,
        after: str | None = None,
        only_failed: bool = False,
        is_followed: bool = False,
    ) -> Iterator[JsonObject]:
        """Rows that have a result, from the first or after a row's `id`; rows that never ran are only in the
        output. `is_followed`: as of `get_job`.

        They are streamed; a broken stream is resumed. Raises ApiError, ServerUnreachable.
        """

        tries = FOLLOWING_TRIES_MAX if is_followed else TRIES_MAX

        def opened(after: str | None) -> Iterator[JsonObject]:
            query = ({"after": after} if after else {}) | ({"outcome": "errored"} if only_failed else {})
            headers, path = {"accept": "application/x-ndjson"}, f"/v1/jobs/{segment(job_id)}/results"
            with self._stream(path, params=query, headers=headers) as answer:
                yield from map(json.loads, lines_of(answer.iter_bytes()))

        return self._resumed(opened, lambda row: str(row["id"]), after, tries=tries)

    def upload_file(self, file: IO[bytes], size_bytes: int, filename: str) -> str:
        """Uploads a file in parts, as an input of jobs that expires after `FILE_KEPT_S`. Returns its id.

        `filename` tells its format. Raises ApiError, ServerUnreachable.
        """
        expiry = {"anchor": "created_at", "seconds": FILE_KEPT_S}
        about = {"filename": filename, "mime_type": "application/octet-stream", "purpose": "user_data"}
        upload = self._call(
            "POST", "/v1/uploads", json=about | {"bytes": size_bytes, "expires_after": expiry}
        )
        path, part_ids = f"/v1/uploads/{segment(upload['id'])}", []
        while piece := file.read(PART_BYTES):
            part = self._call("POST", f"{path}/parts", files={"data": ("part", piece)}, is_following=True)
            part_ids.append(part["id"])
        whole = self._call(
            "POST", f"{path}/complete", json={"part_ids": part_ids}, timeout=COMPLETION_S, is_following=True
        )
        return str(whole["file"]["id"])

    def delete_file(self, file_id: str) -> None:
        """Deletes a file; one that a job reads goes once that has ended. Raises ApiError,
        ServerUnreachable.
        """
        self._call("DELETE", f"/v1/files/{segment(file_id)}", is_repeatable=False)

    def webhook_secret(self) -> str:
        """The secret that signs this tenant's webhooks."""
        return str(self._call("GET", "/v1/webhooks/secret")["secret"])

    def models(self) -> list[str]:
        return [model["id"] for model in self._call("GET", "/v1/models")["data"]]

    def overview(self, *, history_s: int = 900) -> JsonObject:
        """The service's figures now and in the last so many seconds, and what is queued."""
        return self._call("GET", "/v1/overview", params={"history_s": str(history_s)})

    def workers(self) -> Iterator[JsonObject]:
        """Workers that were heard of lately, newest first, with their figures."""
        return self._pages("/v1/workers", {})

    def dead_letters(self, *, status: str | None = None, limit: int | None = None) -> Iterator[JsonObject]:
        """Rows that crashed workers and are not run again, latest first."""
        return self._pages("/v1/dead_letters", {"status": status} if status else {}, limit)

    def replay_dead_letter(self, id: str) -> JsonObject:
        """Submits such a row again as a new job, the answer's `replay_job_id`."""
        return self._decide(id, "replay", DeadLetterState.REPLAYED)

    def discard_dead_letter(self, id: str) -> JsonObject:
        """Marks such a row as decided without running it."""
        return self._decide(id, "discard", DeadLetterState.DISCARDED)

    def webhook_endpoints(self) -> Iterator[JsonObject]:
        """Registered receivers of events, newest first."""
        return self._pages(_ENDPOINTS, {})

    def add_webhook_endpoint(self, name: str, url: str, event_types: Sequence[str]) -> JsonObject:
        """Registers a receiver. Only this answer has its `signing_secret`."""
        body = {"name": name, "url": url, "event_types": list(event_types)}
        return self._call("POST", _ENDPOINTS, json=body, is_repeatable=False)

    def update_webhook_endpoint(self, id: str, changes: JsonObject) -> JsonObject:
        return self._call("POST", f"{_ENDPOINTS}/{segment(id)}", json=changes)

    def delete_webhook_endpoint(self, id: str) -> None:
        self._call("DELETE", f"{_ENDPOINTS}/{segment(id)}", is_repeatable=False)

    def rotate_webhook_secret(self, id: str, *, keeps_old: bool) -> JsonObject:
        """Makes a new secret; only this answer has it. `keeps_old`: the old one signs too for 24 hours."""
        body = {"keep_old_secret_active_for_24_hours": keeps_old}
        path = f"{_ENDPOINTS}/{segment(id)}/rotate_secret"
        return self._call("POST", path, json=body, is_repeatable=False)

    def test_webhook_endpoint(self, id: str, event_type: str) -> JsonObject:
        """Sends a sample event. Raises ApiError (`webhook_no_answer`)."""
        body = {"event_type": event_type}
        return self._call("POST", f"{_ENDPOINTS}/{segment(id)}/test", json=body, is_repeatable=False)

    def replay_webhook_endpoint(self, id: str, since: datetime, until: datetime | None = None) -> int:
        """Sends a receiver's dead letters of events in [since, until) once more. Returns their number."""
        body = {"since": int(since.timestamp())}
        if until is not None:
            body["until"] = int(until.timestamp())
        replayed, has_more = 0, True
        while has_more:
            answer = self._call("POST", f"{_ENDPOINTS}/{segment(id)}/replay", json=body)
            replayed, has_more = replayed + answer["replayed"], answer["has_more"]
        return replayed

    def deliveries(
        self, *, status: str | None = None, endpoint_id: str | None = None, limit: int | None = None
    ) -> Iterator[JsonObject]:
        """Webhook events that are owed or were sent, newest first."""
        wanted = {"status": status, "webhook_endpoint_id": endpoint_id}
        return self._pages("/v1/deliveries", {name: value for name, value in wanted.items() if value}, limit)

    def replay_delivery(self, id: str) -> JsonObject:
        """Sends an event once more; one that is still owed stays as it is."""
        return self._call("POST", f"/v1/deliveries/{segment(id)}/replay")

    def apply_schedule(self, plan: JsonObject, *, dry_run: bool = False) -> JsonObject:
        """Makes the schedule of the plan's name what the plan says (docs/schedules.md).

        The answer is the schedule, with `change`: created, updated or unchanged. `dry_run` changes nothing.
        """
        path = f"{_SCHEDULES}/{segment(plan['name'])}"
        return self._call("PUT", path, json=plan, params={"dry_run": "true"} if dry_run else None)

    def schedules(self) -> Iterator[JsonObject]:
        return self._pages(_SCHEDULES, {})

    def get_schedule(self, name: str) -> JsonObject:
        """Raises ApiError (404: no such schedule), ServerUnreachable."""
        return self._call("GET", f"{_SCHEDULES}/{segment(name)}")

    def schedule_runs(self, name: str, *, limit: int | None = None) -> Iterator[JsonObject]:
        """A schedule's runs, newest first."""
        return self._pages(f"{_SCHEDULES}/{segment(name)}/runs", {}, limit)

    def schedule_versions(self, name: str) -> Iterator[JsonObject]:
        """The plans that a schedule has had, newest first."""
        return self._pages(f"{_SCHEDULES}/{segment(name)}/versions", {})

    def pause_schedule(self, name: str) -> JsonObject:
        """Starts no more runs of a schedule. A repeat changes nothing."""
        return self._call("POST", f"{_SCHEDULES}/{segment(name)}/pause")

    def resume_schedule(self, name: str) -> JsonObject:
        return self._call("POST", f"{_SCHEDULES}/{segment(name)}/resume")

    def run_schedule(self, name: str) -> JsonObject:
        """Starts a run of its own now, which is returned. A call without an answer is not repeated."""
        return self._call("POST", f"{_SCHEDULES}/{segment(name)}/run", is_repeatable=False)

    def delete_schedule(self, name: str) -> None:
        """Deletes a schedule; its jobs stay. Raises ApiError (404: no such schedule)."""
        self._delete(f"{_SCHEDULES}/{segment(name)}")

    def _delete(self, path: str) -> None:
        try:
            self._call("DELETE", path)
        except ApiError as error:  # a retry whose first answer was lost finds it no more
            if not error.is_repeat or error.status != httpx.codes.NOT_FOUND:
                raise

    def _decide(self, id: str, decision: str, wanted: DeadLetterState) -> JsonObject:
        """A dead letter is decided once, so a retry whose first answer was lost gets a conflict."""
        path = f"/v1/dead_letters/{segment(id)}"
        try:
            return self._call("POST", f"{path}/{decision}")
        except ApiError as error:
            if not error.is_repeat or error.status != httpx.codes.CONFLICT:
                raise
            letter = self._call("GET", path)
            if letter["status"] != wanted:
                raise
            return letter

    def _pages(
        self, path: str, wanted: Mapping[str, str | list[str]], limit: int | None = None
    ) -> Iterator[JsonObject]:
        """Yields at most `limit` elements of a list, fetched page by page."""
        query: dict[str, str | list[str]] = dict(wanted)
        left = limit
        while left is None or left > 0:
            size = PAGE_MAX if left is None else min(left, PAGE_MAX)
            page = self._call("GET", path, params=query | {"limit": str(size)})
            yield from page["data"]
            if not page["has_more"] or not page["data"]:
                return
            query["after"] = page["last_id"]
            left = None if left is None else left - len(page["data"])


def _epoch_s(at: datetime | None) -> str | None:
    return None if at is None else str(int(at.timestamp()))
