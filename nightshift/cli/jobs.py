"""`nightshift jobs`: find, follow, change, retry and delete jobs, and print results."""

import json as json_module
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nightshift.cli.session import Json, open_client
from nightshift.cli.terminal import (
    output_problem_text,
    print_change,
    print_fields,
    print_json,
    print_list,
    printable,
    problem_text,
    rows_text,
    say,
    time_text,
    value_text,
)
from nightshift.jobs import JobKind, JobState
from nightshift.jobs.ids import job_id_of_batch
from nightshift.jobs.priorities import PriorityClass

if TYPE_CHECKING:
    from nightshift.client import RemoteJob

HEADINGS = (
    *("JOB", "STATUS", "NAME", "DATE", "PRIORITY", "ENDPOINT", "MODEL"),
    *("DONE", "FAILED", "ROWS", "CREATED"),
)
TIME_FORMATS = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]

app = typer.Typer(
    help="Find, follow, change, retry and delete jobs, and read their results.", no_args_is_help=True
)


def _job_id(text: str) -> str:
    """A job's id, also from a batch id."""
    return job_id_of_batch(text) or text


JobId = Annotated[
    str,
    typer.Argument(
        metavar="JOB", callback=_job_id, help="A job's id: job_…, or batch_… as OpenAI's clients say."
    ),
]


@app.command("list")
def list_jobs(
    status: Annotated[
        list[JobState] | None, typer.Option(help="Only jobs in this state. Repeat it for any of several.")
    ] = None,
    priority: Annotated[PriorityClass | None, typer.Option(help="Only jobs of this class.")] = None,
    kind: Annotated[JobKind | None, typer.Option(help="Only jobs of this kind.")] = None,
    model: Annotated[str | None, typer.Option(metavar="ID", help="Only jobs of this model.")] = None,
    name: Annotated[str | None, typer.Option(metavar="KEY", help="Only runs of this name.")] = None,
    created_after: Annotated[
        datetime | None,
        typer.Option(formats=TIME_FORMATS, help="Only jobs made then, UTC, or later."),
    ] = None,
    created_before: Annotated[
        datetime | None, typer.Option(formats=TIME_FORMATS, help="Only jobs made before this time, UTC.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 20,
    json: Json = False,
) -> None:
    """List jobs, newest first."""
    with open_client() as client:
        listed = client.list_jobs(
            status=status,
            priority=priority,
            kind=kind,
            model=model,
            name=name,
            created_after=_utc(created_after),
            created_before=_utc(created_before),
            limit=limit,
        )
        print_list(list(listed), HEADINGS, _line, json=json, as_json=lambda job: job.data)


@app.command()
def show(job_id: JobId, json: Json = False) -> None:
    """Show everything about a job."""
    with open_client() as client:
        job = client.get_job(job_id)
    if json:
        print_json(job.data)
    else:
        print_fields(job.data, _readable, ("object", "links"))


@app.command()
def update(
    job_id: JobId,
    priority: Annotated[
        PriorityClass | None, typer.Option(help="The class of what is claimed from now on.")
    ] = None,
    metadata: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Replaces all metadata. Repeat it for more.")
    ] = None,
    json: Json = False,
) -> None:
    """Change a job's priority or metadata before it ends."""
    if priority is None and metadata is None:
        raise typer.BadParameter("say what to change: --priority, --metadata")
    with open_client() as client:
        job = client.change_job(job_id, priority=priority, metadata=_pairs(metadata))
    print_change(job.data, f"{job.id} has priority {job.data['priority']}", as_json=json)


@app.command()
def pause(job_id: JobId, json: Json = False) -> None:
    """Pause a job until it is resumed. Its deadline stays."""
    with open_client() as client:
        job = client.pause_job(job_id)
    print_change(job.data, f"{job.id} is paused", as_json=json)


@app.command()
def resume(job_id: JobId, json: Json = False) -> None:
    """Resume a paused job."""
    with open_client() as client:
        job = client.resume_job(job_id)
    when = f" at {time_text(opens_at)}" if (opens_at := job.data.get("resumes_at")) else ""
    print_change(job.data, f"{job.id} goes on{when}", as_json=json)


@app.command()
def retry(
    job_id: JobId,
    output: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Where its results go.  [default: retries/ in the job's output]"),
    ] = None,
    priority: Annotated[PriorityClass | None, typer.Option(help="Instead of the job's.")] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Two retries with one key are the same job.")
    ] = None,
    json: Json = False,
) -> None:
    """Run an ended job's unsuccessful rows again.

    They run as a new job, whose id is printed."""
    options = {"output": output, "priority": priority}
    body = {name: value for name, value in options.items() if value is not None}
    with open_client() as client:
        job = client.retry_job(job_id, body, idempotency_key=key)
    if json:
        print_json(job.data)
    else:
        typer.echo(job.id)


@app.command()
def cancel(job_id: JobId, json: Json = False) -> None:
    """Cancel a job. What is done stays."""
    with open_client() as client:
        job = client.cancel_job(job_id)
    state = f"has ended: {job.state}" if job.state.is_terminal else "is stopping"
    print_change(job.data, f"{job.id} {state}", as_json=json)


@app.command()
def delete(job_id: JobId, json: Json = False) -> None:
    """Delete a job that has ended, with its results and events. Its input and output files stay."""
    with open_client() as client:
        client.delete_job(job_id)
    print_change({"id": job_id, "object": "job", "deleted": True}, f"{job_id} is deleted", as_json=json)


@app.command()
def events(
    job_id: JobId,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Only what came after this event.")] = None,
    json: Json = False,
) -> None:
    """Follow what happens to a job until it has ended. With --json, one object a line."""
    with open_client() as client:
        for event in client.events(job_id, after=after):
            if json:
                typer.echo(json_module.dumps({"event_id": event.id, **event.data}, ensure_ascii=False))
            else:
                typer.echo(
                    f"{_readable('created_at', event.data.get('created_at'))}  {_event_text(event.data)}"
                )


@app.command()
def results(
    job_id: JobId,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Only rows after the one with this id.")
    ] = None,
) -> None:
    """Print the results so far, as JSON lines.

    Rows come in the order in which they got their result.

    Rows that were never run are not among them; they are in the job's output.
    """
    with open_client() as client:
        for row in client.results(job_id, after=after):
            typer.echo(json_module.dumps(row, ensure_ascii=False))
        job = client.get_job(job_id)
    if not job.state.is_terminal:
        say(f"{job_id} is {job.state}: there will be more")


def _pairs(texts: list[str] | None) -> dict[str, str] | None:
    if texts is None:
        return None
    if wrong := next((text for text in texts if "=" not in text), None):
        raise typer.BadParameter(f"{wrong!r} is not KEY=VALUE", param_hint="--metadata")
    return dict(text.split("=", 1) for text in texts)


def _utc(at: datetime | None) -> datetime | None:
    return None if at is None else at.replace(tzinfo=UTC)


def _line(job: "RemoteJob") -> tuple[object, ...]:
    data = job.data
    return (
        job.id,
        job.state,
        data.get("name") or (data.get("purpose") and f"({data['purpose']})"),
        data.get("date"),
        data.get("priority"),
        data.get("endpoint"),
        data.get("model"),
        job.counts.succeeded,
        job.counts.failed,
        job.counts.total,
        _readable("created_at", data.get("created_at")),
    )


def _readable(name: str, value: Any) -> str:
    if name == "counts":
        return _counts_text(value)
    if name == "output_problem":
        return output_problem_text(value)
    if name == "problem":
        return problem_text(value) if "is_permanent" in value else printable(value["message"])
    return value_text(name, value)


def _counts_text(counts: dict[str, Any]) -> str:
    total = "not counted yet" if counts["total"] is None else rows_text(counts["total"])
    return f"{total}, {counts['succeeded']} succeeded, {counts['failed']} failed"


def _event_text(data: dict[str, Any]) -> str:
    """An event's type and what its name does not say."""
    left_out = ("id", "type", "created_at", "status")
    said = [
        _readable(name, value) if name == "counts" else f"{name} {_readable(name, value)}"
        for name, value in data.items()
        if name not in left_out and value is not None
    ]
    return f"{data.get('type')}  {', '.join(said)}".rstrip()
