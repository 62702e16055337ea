"""`nightshift run`: submit a bulk job and optionally wait for its end.

Made for cron: silent without a terminal, the same job for the same name and date, and exit codes
(docs/cli.md).
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from nightshift.cli.bulk.job_options import job_fields, with_job_options
from nightshift.cli.session import Json, open_client
from nightshift.cli.terminal import (
    fail,
    print_json,
    print_json_line,
    printable,
    rows_text,
    say,
    time_text,
)
from nightshift.errors import NightshiftError
from nightshift.jobs import JsonObject

if TYPE_CHECKING:
    from nightshift.client import Client, RemoteJob

EXIT_ROWS_FAILED: Final = 3
EXIT_WINDOW_ENDED: Final = 7
EXIT_OF_STATE: Final = {"succeeded": 0, "failed": 4, "cancelled": 5, "expired": 6}
WINDOW_ENDED: Final = "run.missed"
OUTPUT_INCOMPLETE: Final = "output_incomplete"  # the error's message says where the finished rows are
_NO_BODY: Final = "has no 'body' object"  # as a row's error says
ROWS_LOOKED_AT_MAX: Final = 1000  # ten pages, to find why rows failed


class OutputFormat(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"


Input = Annotated[
    str,
    typer.Argument(
        metavar="INPUT",
        help="The rows: local paths, file:///…, s3://…, hf://datasets/…, file-…, or - for standard input. A "
        "glob or a directory: all it holds.",
    ),
]
Output = Annotated[
    str,
    typer.Option("--output", "-o", metavar="URI", help="Where part files go: s3://…/, file:///…/ or a path."),
]
Format = Annotated[OutputFormat, typer.Option(help="Format of the part files.")]
Webhook = Annotated[
    str | None, typer.Option(metavar="URL", help="Receiver of a webhook when the job has ended.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the job, or its window, has ended.")]
FollowErrors = Annotated[
    bool,
    typer.Option("--follow-errors", help="With --wait, print failed rows as they come, on standard error."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check everything, look at the first rows, and submit nothing.")
]


@with_job_options
def run(
    context: typer.Context,
    input: Input,
    output: Output,
    format: Format = OutputFormat.JSONL,
    webhook: Webhook = None,
    wait: Wait = False,
    follow_errors: FollowErrors = False,
    dry_run: DryRun = False,
    json: Json = False,
    **options: Any,
) -> None:
    """Submit a bulk job, or with --dry-run see what it would do.

    With --wait the exit code says how it went: 0 every row succeeded, 3 some rows failed, 4 the job failed,
    5 it was cancelled, 6 it expired, 7 its window ended and the rest goes on at the next. Otherwise 0 means
    accepted. 69 is a server that does not answer, 1 any other trouble, 2 a mistake in the options.
    """
    from nightshift.cli.bulk.requests_of_rows import location

    given = job_fields([input, *context.args], **options) | {
        "output": location(output, is_directory=True),
        "format": format.value,
    }
    if webhook:
        given["webhook"] = {"url": webhook}
    if dry_run:
        _dry_run(given, json=json)
    with open_client() as client:
        job = _submitted(client, given)
        if job.is_repeat:
            job = client.get_job(job.id)
            say(f"nightshift: {_earlier(job)}")
        if wait:
            errors = FailedRows(client, job.id) if follow_errors else None
            job = _follow(client, job, json=json, errors=errors)
            _explain(client, job, has_template="template" in given)
    if json:
        (print_json_line if wait else print_json)(job.data)
    else:
        typer.echo(summary(job) if wait else job.id)
    if wait:
        raise SystemExit(exit_code(job))


def exit_code(job: "RemoteJob") -> int:
    """The exit code of a job that has ended, or whose window has."""
    if not job.state.is_terminal:
        return EXIT_WINDOW_ENDED
    if job.state == "succeeded" and job.counts.failed:
        return EXIT_ROWS_FAILED
    return EXIT_OF_STATE[job.state]


def summary(job: "RemoteJob") -> str:
    """The summary of a job that has ended, or whose window has.

    A job that ended before its rows were counted has no output, so its summary is the reason.
    """
    counts, errors = job.counts, list(job.errors)
    if not job.state.is_terminal:
        resumes_at = time_text(job.data["resumes_at"])
        done = f"{rows_text(counts.succeeded)} succeeded, {counts.failed} failed"
        return f"{job.id} paused: {done}; its window has ended, and the rest goes on at {resumes_at}"
    if not counts.total and job.state != "succeeded":
        why, *errors = errors or ["no row was run"]
        line = f"{job.id} {job.state}: {why.rstrip('.')}; no output was written"
    else:
        line = f"{job.id} {job.state}: {rows_text(counts.succeeded)} succeeded, {counts.failed} failed"
        line += f", {reused} reused" if (reused := job.data.get("rows_reused")) else ""
        has_output = job.data.get("output") and not any(
            error["code"] == OUTPUT_INCOMPLETE for error in job.data.get("errors") or ()
        )
        line += f", output in {job.data['output']}" if has_output else ""
    return "\n".join((line, *(f"  {error}" for error in errors)))


def most_frequent_error(client: "Client", job_id: str) -> str | None:
    """The most frequent error among a job's first rows; None if unknown, also when the server does not
    answer.
    """
    from nightshift.bulk.rows.requests import without_place
    from nightshift.client.answers import row_error

    try:
        rows = list(islice(client.results(job_id), ROWS_LOOKED_AT_MAX))
    except NightshiftError:
        return None
    messages = [message for row in rows if (message := row_error(row).get("message"))]
    if not messages:
        return None
    most_frequent, _ = Counter(map(without_place, messages)).most_common(1)[0]
    first = next(message for message in messages if without_place(message) == most_frequent)
    return " ".join(first.split())


def _earlier(job: "RemoteJob") -> str:
    """The line that answers a repeated start."""
    return (
        f"{job.id} was submitted as --name {job.data['name']} --date {job.data['date']} at "
        f"{time_text(job.data['created_at'])}, and its status is {job.state}: this is the same job, and "
        "the input is not read again"
    )


def _submitted(client: "Client", body: JsonObject) -> "RemoteJob":
    from nightshift.cli.bulk.standard_input import earlier_job

    if (earlier := earlier_job(client, body)) is not None:
        return replace(earlier, is_repeat=True)
    with submitting(client, body, is_kept=True) as sent:
        return client.submit_job(sent)


def _dry_run(body: JsonObject, *, json: bool) -> NoReturn:
    from nightshift.cli.bulk import dry_runs

    with open_client() as client:
        with submitting(client, body, is_kept=False) as sent:
            answer = client.try_job(sent)
        answer = dry_runs.with_prompt(answer, client.prompt_text)
    if json:
        print_json(answer)
    else:
        typer.echo("\n".join(dry_runs.lines_of(answer)))
    raise SystemExit(dry_runs.exit_code(answer))


@contextmanager
def submitting(client: "Client", body: JsonObject, *, is_kept: bool) -> Iterator[JsonObject]:
    """Uploads standard input as `uploaded` does, and says what to do about the usual refusals."""
    from nightshift.cli.bulk.standard_input import uploaded
    from nightshift.client import ApiError

    try:
        with uploaded(client, body, is_kept=is_kept) as sent:
            yield sent
    except ApiError as error:
        if error.code == "idempotency_key_reused":
            fail(
                f"--name {body.get('name')} --date {body.get('date')} is another job already, submitted with "
                "other options; choose another name, or repeat it exactly"
            )
        raise


class FailedRows:
    """Prints the failed rows of a job that were not printed before: id, code and message."""

    def __init__(self, client: "Client", job_id: str) -> None:
        self._client = client
        self._job_id = job_id
        self._last_id: str | None = None
        self._count = 0

    def show(self, job: "RemoteJob") -> None:
        if job.counts.failed <= self._count:  # of rows that never ran nothing is told
            return
        from nightshift.client.answers import row_error

        self._count = job.counts.failed
        for row in self._client.results(
            self._job_id, after=self._last_id, only_failed=True, is_followed=True
        ):
            self._last_id = row["id"]
            error = row_error(row)
            words = (
                row.get("custom_id") or row["id"],
                error.get("code") or "error",
                error.get("message") or "",
            )
            say("  ".join(printable(" ".join(str(word).split())) for word in words))


def _follow(client: "Client", job: "RemoteJob", *, json: bool, errors: FailedRows | None) -> "RemoteJob":
    """Follows the job to its end, or that of its window: of the next one, where it waits for that. After
    Ctrl-C, which does not stop it, says how to return.
    """
    from nightshift.cli.bulk.progress import progress_of

    try:
        with progress_of(job.id) as show:

            def refresh() -> "RemoteJob":
                current = client.get_job(job.id, is_followed=True)
                show(current)
                if errors is not None:
                    errors.show(current)
                return current

            for event in client.events(job.id, on_keep_alive=refresh):
                if json:
                    print_json_line({"event_id": event.id, **event.data})
                current = refresh()
                # Earlier nights are told again: after this one, the job waits for another than at first.
                has_ended = current.data.get("resumes_at") not in (None, job.data.get("resumes_at"))
                if event.is_last or (event.type == WINDOW_ENDED and has_ended):
                    return current
        return client.get_job(job.id, is_followed=True)
    except KeyboardInterrupt:
        say(f"the job goes on; see `nightshift jobs show {job.id}`")
        raise


def _explain(client: "Client", job: "RemoteJob", *, has_template: bool) -> None:
    """Says why rows failed, and the usual cause."""
    why = most_frequent_error(client, job.id) if job.counts.failed else None
    if why is not None:
        say(f"nightshift: rows failed, most often: {why}")
    if job.state == "succeeded" and job.counts.failed:
        say(
            f"nightshift: the job succeeded because every row has its result, which may be an error; "
            f"`nightshift jobs retry {job.id}` runs those that failed again"
        )
    has_no_body = any(_NO_BODY in error for error in (why or "", *job.errors))
    if has_no_body and not has_template and not job.counts.succeeded:
        say(
            "nightshift: rows were taken for requests in OpenAI's batch-line form; records need --model "
            "and --input-column or --template"
        )
