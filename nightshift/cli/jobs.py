"""`nightshift jobs`: list, show, cancel and follow jobs, and print results."""

import json as json_module
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nightshift.cli.session import Json, open_client
from nightshift.cli.terminal import print_json, print_table, say
from nightshift.jobs import JobState
from nightshift.jobs.ids import job_id_of_batch
from nightshift.jobs.priorities import PriorityClass

if TYPE_CHECKING:
    from nightshift.client import RemoteJob

app = typer.Typer(help="List, show, cancel and follow jobs, and read their results.", no_args_is_help=True)


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
    status: Annotated[JobState | None, typer.Option(help="Only jobs in this state.")] = None,
    priority: Annotated[PriorityClass | None, typer.Option(help="Only jobs of this class.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 20,
    json: Json = False,
) -> None:
    """List jobs, newest first."""
    with open_client() as client:
        found = list(client.list_jobs(status=status, priority=priority, limit=limit))
    if json:
        print_json([job.data for job in found])
        return
    print_table(
        ("JOB", "STATUS", "PRIORITY", "ENDPOINT", "MODEL", "DONE", "FAILED", "ROWS", "CREATED"),
        [_line(job) for job in found],
    )


@app.command()
def show(job_id: JobId, json: Json = False) -> None:
    """Show everything about a job."""
    with open_client() as client:
        job = client.get_job(job_id)
    if json:
        print_json(job.data)
        return
    for name, value in job.data.items():
        if value not in (None, [], {}):
            typer.echo(f"{name + ':':<20} {_readable(name, value)}")


@app.command()
def cancel(job_id: JobId, json: Json = False) -> None:
    """Cancel a job. What is done stays."""
    with open_client() as client:
        job = client.cancel_job(job_id)
    if json:
        print_json(job.data)
    else:
        say(f"{job.id} is {job.state if job.state.is_terminal else 'stopping'}")


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
    """Print the rows that have their result so far, one JSON object a line, in the order they got it.

    Rows that were never run are not among them; they are in the job's output.
    """
    with open_client() as client:
        for row in client.results(job_id, after=after):
            typer.echo(json_module.dumps(row, ensure_ascii=False))
        job = client.get_job(job_id)
    if not job.state.is_terminal:
        say(f"{job_id} is {job.state}: there will be more")


def _line(job: "RemoteJob") -> tuple[object, ...]:
    data = job.data
    return (
        job.id,
        job.state,
        data.get("priority"),
        data.get("endpoint"),
        data.get("model"),
        job.counts.succeeded,
        job.counts.failed,
        job.counts.total,
        _readable("created_at", data.get("created_at")),
    )


def _readable(name: str, value: Any) -> str:
    if name.endswith("_at") and isinstance(value, int):
        return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S}Z"
    return json_module.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


def _event_text(data: dict[str, Any]) -> str:
    """An event's type and other fields."""
    said = {name: value for name, value in data.items() if name not in ("id", "type", "created_at")}
    return f"{data.get('type')}  {json_module.dumps(said, ensure_ascii=False)}"
