"""Checks of what Nightshift has beyond OpenAI's API: skipped where the server is not Nightshift."""

import gzip
import json
import re
from contextlib import suppress
from functools import partial
from typing import Any, Final

import openai

from conformance.checks.batches import TOO_HOT, lines_of, three_rows
from conformance.expectations import Skipped, Wrong, expect, expect_equal, expect_id, expect_refusal, shown
from conformance.registry import Area
from conformance.session import ENDED, OWNER, Session, row_line

AREA = Area(OWNER, "GET", "/jobs", is_own=True)
ROWS_UNDER_WAY: Final = 50  # enough that a batch does not end before the next request
ROWS_TO_PAUSE: Final = (50, 500, 5_000)  # tried in turn: a fast service ends a batch before it is paused
JOB_ENDED: Final = ("succeeded", "failed", "cancelled", "expired")
NDJSON: Final = "application/x-ndjson"
EVENT: Final = re.compile(r"^id: (\S+)\nevent: (\S+)$", re.MULTILINE)


@AREA.add("a job of one request is answered within Prefer: wait, listed, and has its result as NDJSON")
def job(session: Session) -> None:
    made = _submit(session)
    listed = _get(session, "/jobs", limit=100)["data"]
    expect(made["id"] in [entry["id"] for entry in listed], "does not list a new job", "has no jobs")
    text = _get_text(session, f"/jobs/{made['id']}/results", {"Accept": NDJSON})
    [row] = _json_lines(text)
    expect_equal(row["response"]["body"]["object"], "chat.completion", "a result with response.body.object")


@AREA.add("an ended job is deleted, and a 404 afterwards")
def job_deleted(session: Session) -> None:
    path = f"/jobs/{_submit(session)['id']}"
    expect_equal(_delete(session, path)["deleted"], True, "a deletion with deleted")
    expect_refusal(partial(_get, session, path), "a deleted job", openai.NotFoundError)


@AREA.add("a batch that has not ended cannot be deleted: a 409 that the client does not repeat")
def batch_kept(session: Session) -> None:
    batch = session.create_batch(session.upload(session.rows(ROWS_UNDER_WAY)).id)
    patient = session.client.with_options(max_retries=2)
    refusal = expect_refusal(
        lambda: patient.delete(f"/batches/{batch.id}", cast_to=object),
        "deleting a batch that has not ended",
        openai.ConflictError,
    )
    retries = refusal.request.headers.get("x-stainless-retry-count", "0")
    expect_equal(retries, "0", "a deletion that can't be with so many repetitions")


@AREA.add("an ended batch is deleted, and a 404 afterwards", is_slow=True)
def batch_deleted(session: Session) -> None:
    batch = session.create_batch(session.upload(session.rows(1)).id)
    ended = session.wait_for_batch(batch.id)
    expect_equal(_delete(session, f"/batches/{batch.id}")["deleted"], True, "a deletion with deleted")
    for id in (ended.output_file_id, ended.error_file_id):
        if isinstance(id, str):
            session.shared_clean_up.add(id, partial(_delete_file, id))
    expect_refusal(lambda: session.client.batches.retrieve(batch.id), "a deleted batch", openai.NotFoundError)


@AREA.add("metadata of a batch that waits can be changed through its job")
def job_changed(session: Session) -> None:
    batch = session.create_batch(session.upload(session.rows(ROWS_UNDER_WAY)).id)
    session.client.patch(f"/jobs/{_job_id(batch)}", cast_to=object, body={"metadata": {"team": "changed"}})
    answer = session.client.batches.retrieve(batch.id)
    expect_equal(answer.metadata, {"team": "changed"}, "a batch whose job was changed with the metadata")


@AREA.add("a gzip file is a batch's input", is_slow=True)
def gzip_input(session: Session) -> None:
    file = session.upload(gzip.compress(session.rows(2)), "rows.jsonl.gz")
    batch = session.wait_for_batch(session.create_batch(file.id).id)
    expect_equal(batch.status, "completed", "a batch of a gzip file with the status")
    expect_equal(_custom_ids(session, batch), ["row-0", "row-1"], "the output of a gzip file with the rows")


@AREA.add("output_order input keeps the order of the rows", is_slow=True)
def output_order(session: Session) -> None:
    body = session.chat_body()
    ids = [f"row-{number}" for number in range(9, -1, -1)]
    file = session.upload(b"".join(row_line(id, body) for id in ids))
    made = session.create_batch(file.id, extra_body={"nightshift": {"output_order": "input"}})
    expect_equal(_custom_ids(session, session.wait_for_batch(made.id)), ids, "the output with the rows")


@AREA.add("an unknown output_order is refused by name")
def output_order_unknown(session: Session) -> None:
    file = session.upload(session.rows(1))
    expect_refusal(
        lambda: session.create_batch(file.id, extra_body={"nightshift": {"output_order": "random"}}),
        "an unknown output_order",
        param="nightshift.output_order",
    )


@AREA.add("a batch is paused through its job, and ends once it is resumed", is_slow=True)
def paused(session: Session) -> None:
    job, _, batch = _paused_batch(session)
    at = job.get("paused_at")
    expect(isinstance(at, int), f"answers a paused job with paused_at {shown(at)}", "has no such thing")
    expect_equal(batch.status, "completed", "a batch that was resumed with the status")


@AREA.add("a batch's partial output can be read on, from a byte and after a line", is_slow=True)
def partial_output(session: Session) -> None:
    _, id, batch = _paused_batch(session)
    path = f"/files/{expect_id(id, 'a batch under way with the partial_output_file_id')}/content"
    whole = _get_text(session, path)
    ids = [str(line.get("custom_id")) for line in _json_lines(whole)]
    expect_equal(sorted(ids), sorted(_custom_ids(session, batch)), "the partial output with the rows")
    first, rest = whole.split("\n", 1)
    after_byte = _get_text(session, path, {"range": f"bytes={len(first.encode()) + 1}-"})
    expect(after_byte == rest, "answers a range with other bytes", "answers the same bytes again")
    after_line = _get_text(session, path, after_line=1)
    expect(after_line == rest, "answers after_line=1 with other lines", "answers the same lines again")


@AREA.add("a batch's events end with its end, and go on after Last-Event-ID", is_slow=True)
def events(session: Session) -> None:
    path = f"/batches/{three_rows(session).id}/events"
    events = EVENT.findall(_get_text(session, path))
    names = [name for _, name in events]
    expect(
        names[:1] == ["job.queued"] and names[-1:] == ["job.succeeded"],
        f"streams the events {shown(names)}",
        "has no such stream; it goes from job.queued to job.succeeded",
    )
    rest = EVENT.findall(_get_text(session, path, {"last-event-id": events[0][0]}))
    expect_equal(rest, events[1:], "the events after the first with")


@AREA.add("a retry runs the rows again that did not succeed, as a job of its own", is_slow=True)
def retried(session: Session) -> None:
    bad = row_line("bad", session.chat_body() | {"temperature": TOO_HOT})
    batch = session.create_batch(session.upload(session.rows(1) + bad).id)
    session.wait_for_batch(batch.id)
    retry = _post(session, f"/jobs/{_job_id(batch)}/retry")
    session.clean_up.add(retry["id"], partial(_forget, retry["id"]))
    expect_equal(retry["retry_of"], _job_id(batch), "a retry with retry_of")
    ended = _wait_for_job(session, retry["id"])
    expect_equal(ended["counts"]["total"], 1, "a retry of one failed row with counts.total")


def _submit(session: Session) -> dict[str, Any]:
    """A job of one request that has ended, deleted after the check."""
    job: dict[str, Any] = _post(
        session, "/jobs", {"endpoint": "chat", "body": session.chat_body()}, {"prefer": "wait=30"}
    )
    session.clean_up.add(job["id"], lambda client: client.delete(f"/jobs/{job['id']}", cast_to=object))
    expect_equal(job.get("status"), "succeeded", "a job that was waited for with the status")
    return job


def _paused_batch(session: Session) -> tuple[dict[str, Any], object, Any]:
    """The batch's job while it was paused, the id of its partial output then, and the batch once it ended."""
    outcome: tuple[dict[str, Any], object, Any] = session.shared.get(
        "a batch that is paused and resumed", lambda: _pause_and_resume(session)
    )
    return outcome


def _pause_and_resume(session: Session) -> tuple[dict[str, Any], object, Any]:
    for rows in ROWS_TO_PAUSE:
        file = session.upload(session.rows(rows), is_shared=True)
        batch = session.create_batch(file.id, is_shared=True)
        path = f"/jobs/{_job_id(batch)}"
        with suppress(openai.ConflictError):  # it has ended
            _post(session, f"{path}/pause")
            while _partial_output(batch) is None and batch.status not in ENDED:
                session.pause_between_looks()
                batch = session.client.batches.retrieve(batch.id)
            paused = _get(session, path)
            _post(session, f"{path}/resume")
            return paused, _partial_output(batch), session.wait_for_batch(batch.id)
    raise Skipped(f"even a batch of {ROWS_TO_PAUSE[-1]} rows ends before it is paused")


def _job_id(batch: Any) -> str:
    return expect_id(_extension(batch).get("job_id"), "a batch with nightshift.job_id")


def _partial_output(batch: Any) -> object:
    return _extension(batch).get("partial_output_file_id")


def _extension(batch: Any) -> dict[str, Any]:
    extension = (batch.model_extra or {}).get(OWNER)
    if not isinstance(extension, dict):
        raise Wrong(
            f"it answers a batch with nightshift {shown(extension)}; its own batches have an object there"
        )
    return extension


def _wait_for_job(session: Session, id: str) -> dict[str, Any]:
    while True:
        job: dict[str, Any] = _get(session, f"/jobs/{id}")
        if job["status"] in JOB_ENDED:
            return job
        session.pause_between_looks()


def _forget(id: str, client: Any) -> None:
    """Delete an ended retry of a batch, and its files."""
    job = client.get(f"/jobs/{id}", cast_to=object)
    for file_id in (job["input"], job["output_file_id"], job["error_file_id"]):
        if file_id is not None:
            client.files.delete(file_id)
    client.delete(f"/jobs/{id}", cast_to=object)


def _delete_file(id: str, client: Any) -> None:
    client.files.delete(id)


def _custom_ids(session: Session, batch: Any) -> list[str]:
    return [str(line.get("custom_id")) for line in lines_of(session, batch.output_file_id)]


def _json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def _get(session: Session, path: str, **query: object) -> Any:
    return session.client.get(path, cast_to=object, options={"params": query})


def _get_text(session: Session, path: str, headers: dict[str, str] | None = None, **query: object) -> str:
    text = session.client.get(path, cast_to=str, options={"headers": headers or {}, "params": query})
    return str(text)


def _post(
    session: Session, path: str, body: dict[str, Any] | None = None, headers: dict[str, str] | None = None
) -> Any:
    return session.client.post(path, cast_to=object, body=body, options={"headers": headers or {}})


def _delete(session: Session, path: str) -> Any:
    return session.client.delete(path, cast_to=object)
