"""/v1/batches: creation, the way to the end, output and error files, cancelling, listing."""

import json
import uuid
from functools import partial
from typing import Any, Final

import openai

from conformance.checks.files import expect_each_once
from conformance.expectations import expect, expect_count, expect_equal, expect_list, expect_refusal, shown
from conformance.registry import Area
from conformance.session import Session, row_line

AREA = Area("batches", "GET", "/batches")
CHAT: Final = "/v1/chat/completions"
RUNNING: Final = ("validating", "in_progress", "finalizing")
STATUSES: Final = (*RUNNING, "completed", "failed", "expired", "cancelling", "cancelled")
METADATA: Final = {"team": "search", "night": "7"}
TOO_HOT: Final = 99  # a temperature that no model accepts: the row fails, the file is valid
ROWS_TO_CANCEL: Final = 200  # enough that none ends before it is cancelled


@AREA.add("a batch is created with every field, and found by its id")
def created(session: Session) -> None:
    file = session.upload(session.rows(1))
    batch = session.create_batch(file.id, metadata=METADATA)
    for answer in (batch, session.client.batches.retrieve(batch.id)):
        expect_equal(answer.id, batch.id, "a batch with the id")
        expect_equal(answer.object, "batch", "a batch with the object")
        expect_equal(answer.endpoint, CHAT, "a batch with the endpoint")
        expect_equal(answer.input_file_id, file.id, "a batch with input_file_id")
        expect_equal(answer.completion_window, "24h", "a batch with completion_window")
        expect_equal(answer.metadata, METADATA, "a batch with the metadata")
        expect(answer.status in STATUSES, f"answers the status {shown(answer.status)}", "has no such status")
        expect_count(answer.created_at, "a batch with created_at")


@AREA.add("the request counts are integers from the beginning", is_slow=True)
def counts(session: Session) -> None:
    batch = session.create_batch(session.upload(session.rows(1)).id)
    if batch.request_counts is not None:
        for name in ("total", "completed", "failed"):
            expect_count(getattr(batch.request_counts, name, None), f"request_counts.{name}")


@AREA.add("a batch of good rows is completed, with a line for each", is_slow=True)
def completed(session: Session) -> None:
    batch = three_rows(session)
    expect_equal(batch.status, "completed", "a batch of good rows with the status")
    _expect_counts(batch, total=3, completed=3, failed=0)
    expect_equal(batch.error_file_id, None, "a batch without errors with error_file_id")
    lines = lines_of(session, batch.output_file_id)
    ids = sorted(str(line.get("custom_id")) for line in lines)
    expect(
        ids == ["row-0", "row-1", "row-2"],
        f"writes lines for {shown(ids)}",
        "writes one for each of row-0, row-1, row-2",
    )
    for line in lines:
        _expect_answer(line)


@AREA.add("times of a completed batch are integers in order", is_slow=True)
def times(session: Session) -> None:
    batch = three_rows(session)
    names = ("created_at", "in_progress_at", "finalizing_at", "completed_at")
    moments = [expect_count(getattr(batch, name, None), f"a completed batch with {name}") for name in names]
    expect(moments == sorted(moments), f"answers the times {shown(moments)}", "answers them in order")
    expect_equal(batch.metadata, METADATA, "a completed batch with the metadata")


@AREA.add("the output file is a file of its own purpose", is_slow=True)
def output_file(session: Session) -> None:
    file = session.client.files.retrieve(three_rows(session).output_file_id)
    expect_equal(file.purpose, "batch_output", "an output file with the purpose")


@AREA.add("a row that cannot run goes to the error file, the others to the output", is_slow=True)
def mixed(session: Session) -> None:
    bad = row_line("bad", session.chat_body() | {"temperature": TOO_HOT})
    batch = session.create_batch(session.upload(session.rows(2) + bad).id)
    batch = session.wait_for_batch(batch.id)
    expect_equal(batch.status, "completed", "a batch with a row that fails with the status")
    _expect_counts(batch, total=3, completed=2, failed=1)
    good = {line.get("custom_id") for line in lines_of(session, batch.output_file_id)}
    expect(good == {"row-0", "row-1"}, f"has {shown(good)} in the output file", "has the rows that ran there")
    [line] = lines_of(session, batch.error_file_id)
    expect_equal(line.get("custom_id"), "bad", "the error file's line with custom_id")
    code = (line.get("response") or {}).get("status_code")
    expect_equal(code, 400, "the error file's line with response.status_code")
    error = ((line["response"].get("body") or {}).get("error")) or {}
    expect(
        isinstance(error.get("message"), str),
        f"answers the row with {shown(line['response'])}",
        "has body.error.message there",
    )


@AREA.add("a file with a line that is no JSON fails the batch and names the line", is_slow=True)
def invalid_line(session: Session) -> None:
    batch = session.create_batch(session.upload(session.rows(1) + b"no json\n").id)
    batch = session.wait_for_batch(batch.id)
    expect_equal(batch.status, "failed", "a batch whose second line is no JSON with the status")
    expect_count(batch.failed_at, "a failed batch with failed_at")
    errors = expect_list(getattr(batch.errors, "data", None), "a failed batch with errors.data")
    lines = [error.line for error in errors]
    expect(2 in lines, f"names the lines {shown(lines)}", "names line 2")


@AREA.add("a batch can be cancelled, and twice is the same", is_slow=True)
def cancelled(session: Session) -> None:
    batch = session.create_batch(session.upload(session.rows(ROWS_TO_CANCEL)).id)
    for _ in range(2):
        answer = session.client.batches.cancel(batch.id)
        expect(
            answer.status in ("cancelling", "cancelled"),
            f"answers a cancel with the status {shown(answer.status)}",
            "answers cancelling",
        )
        expect_count(answer.cancelling_at, "a cancelled batch with cancelling_at")
    ended = session.wait_for_batch(batch.id)
    expect_equal(ended.status, "cancelled", "a cancelled batch in the end with the status")
    expect_count(ended.cancelled_at, "a cancelled batch with cancelled_at")


@AREA.add("cancelling a completed batch is a 409 that the client does not repeat", is_slow=True)
def cancelled_too_late(session: Session) -> None:
    batch = three_rows(session)
    patient = session.client.with_options(max_retries=2)
    refusal = expect_refusal(
        lambda: patient.batches.cancel(batch.id), "cancelling a completed batch", openai.ConflictError
    )
    retries = refusal.request.headers.get("x-stainless-retry-count", "0")
    expect(
        retries == "0",
        f"lets the client repeat the cancel {retries} times before it gives up",
        "answers 409 with x-should-retry: false",
    )


@AREA.add("list goes on over several pages and shows every batch once, newest first")
def pages(session: Session) -> None:
    file = session.upload(session.rows(1))
    ours = [session.create_batch(file.id).id for _ in range(5)]
    expect_each_once(session.client.batches.list(limit=2), ours, "batches")
    page = session.client.batches.list(limit=5)
    times = [batch.created_at for batch in page.data]
    expect(times == sorted(times, reverse=True), f"lists the times {shown(times)}", "lists newest first")


@AREA.add("a limit of 0 or 101 is refused with its code")
def limits(session: Session) -> None:
    for limit, code in ((0, "integer_below_min_value"), (101, "integer_above_max_value")):
        expect_refusal(
            partial(session.client.batches.list, limit=limit),
            f"limit={limit}",
            param="limit",
            code=code,
        )


@AREA.add("an unknown cursor is refused")
def cursor(session: Session) -> None:
    expect_refusal(
        lambda: session.client.batches.list(after="batch_no_such_batch"),
        "after=batch_no_such_batch",
        openai.APIStatusError,
    )


@AREA.add("an unknown batch is a 404")
def unknown(session: Session) -> None:
    for call in (session.client.batches.retrieve, session.client.batches.cancel):
        expect_refusal(
            partial(call, "batch_no_such_batch"),
            f"batches.{call.__name__}() of an unknown batch",
            openai.NotFoundError,
        )


@AREA.add("an unknown endpoint and an unknown completion window are refused")
def refused(session: Session) -> None:
    id = session.upload(session.rows(1)).id
    for field, value in (("endpoint", "/v1/no-such-endpoint"), ("completion_window", "soon")):
        fields = {"endpoint": CHAT, "completion_window": "24h", field: value}
        expect_refusal(
            partial(session.client.batches.create, input_file_id=id, **fields),
            f"{field}={value!r}",
            param=field,
        )


@AREA.add("an unknown input file is refused, or fails the batch", is_slow=True)
def file_unknown(session: Session) -> None:
    try:
        batch = session.create_batch("file-000000000000000000000000")
    except openai.APIStatusError as error:
        expect(error.status_code in (400, 404), f"answers {error.status_code}", "answers 400")
        return
    status = session.wait_for_batch(batch.id).status
    expect_equal(status, "failed", "a batch of an unknown file with the status")


@AREA.add("a create that the client repeats makes one batch")
def repeated(session: Session) -> None:
    id = session.upload(session.rows(1)).id
    metadata = {"conformance": uuid.uuid4().hex}
    first = session.create_batch(id, metadata=metadata)
    again = session.create_batch(id, metadata=metadata, extra_headers={"x-stainless-retry-count": "1"})
    expect(
        first.id == again.id,
        "makes two batches of a create and the client's repetition of it (x-stainless-retry-count: 1)",
        "is not known to; a client that lost the answer pays for both",
    )


def three_rows(session: Session) -> Any:
    """A batch of three good rows that has ended; one for all checks."""
    return session.shared.get("a batch of three rows", lambda: _run_to_the_end(session))


def _run_to_the_end(session: Session) -> Any:
    file = session.upload(session.rows(3), is_shared=True)
    batch = session.create_batch(file.id, is_shared=True, metadata=METADATA)
    return session.wait_for_batch(batch.id)


def _expect_counts(batch: Any, **expected: int) -> None:
    counts = {name: getattr(batch.request_counts, name, None) for name in expected}
    expect(counts == expected, f"answers the request counts {shown(counts)}", f"answers {shown(expected)}")


def lines_of(session: Session, file_id: object) -> list[dict[str, Any]]:
    """The lines of an output or error file. Raises Wrong if one is no JSON object."""
    expect(isinstance(file_id, str), f"names the file {shown(file_id)}", "names a file")
    lines = []
    for text in session.client.files.content(file_id).text.splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        expect(isinstance(line, dict), f"writes the line {shown(text)}", "writes a JSON object on each line")
        lines.append(line)
    return lines


def _expect_answer(line: dict[str, Any]) -> None:
    response = line.get("response")
    expect(
        isinstance(line.get("id"), str) and line.get("error") is None and isinstance(response, dict),
        f"writes the line {shown(line)}",
        'writes {"id", "custom_id", "response": {…}, "error": null}',
    )
    assert isinstance(response, dict)
    expect_equal(response.get("status_code"), 200, "a line with response.status_code")
    body = response.get("body")
    kind = body.get("object") if isinstance(body, dict) else body
    expect_equal(kind, "chat.completion", "a line with response.body.object")
