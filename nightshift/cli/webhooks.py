"""`nightshift webhooks`: endpoints, what was sent to them, and the tenant's signing secret."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from nightshift.cli.jobs import TIME_FORMATS
from nightshift.cli.session import Json, open_client
from nightshift.cli.terminal import fail, print_json, print_list, say, time_text
from nightshift.jobs import JsonObject
from nightshift.outbound.webhooks import DeliveryState, is_taken

app = typer.Typer(help="Register and test receivers of events; send events again.", no_args_is_help=True)

EndpointId = Annotated[str, typer.Argument(metavar="ID", help="A webhook endpoint: whe_….")]


@app.command()
def secret(json: Json = False) -> None:
    """Print the secret that signs jobs' own webhooks.

    The secret signs webhooks to the URLs that jobs name (Standard Webhooks). It is made at the first call.

    A job that brings its own secret is signed with that one instead, and an endpoint has its own.
    """
    with open_client() as client:
        signing_secret = client.webhook_secret()
    if json:
        print_json({"secret": signing_secret})
    else:
        typer.echo(signing_secret)


@app.command("list")
def list_endpoints(json: Json = False) -> None:
    """List endpoints, newest first."""
    with open_client() as client:
        endpoints = list(client.webhook_endpoints())
    headings = ("ID", "NAME", "STATUS", "EVENTS", "SECRET", "CREATED", "URL")
    print_list(endpoints, headings, _endpoint_line, json=json)


@app.command()
def add(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where events are sent.")],
    events: Annotated[
        list[str] | None,
        typer.Option(
            "--event",
            metavar="TYPE",
            help="batch.completed, job.*, …; job.running, job.progress, job.problem, run.at_risk,"
            " run.on_track and run.missed only by name. May be repeated."
            "  [default: *]",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str, typer.Option(help="Shown in listings.  [default: the URL]", show_default=False)
    ] = "",
    json: Json = False,
) -> None:
    """Register an endpoint and print its signing secret, this once."""
    with open_client() as client:
        made = client.add_webhook_endpoint(name or url[:256], url, events or ["*"])
    _print_with_secret(made, json)


@app.command()
def enable(endpoint_id: EndpointId) -> None:
    """Send events again to an endpoint that is disabled."""
    _disable(endpoint_id, False)
    say(f"enabled {endpoint_id}; `nightshift webhooks replay` sends what it missed")


@app.command()
def disable(endpoint_id: EndpointId) -> None:
    """Disable an endpoint: its events become dead letters until it is enabled."""
    _disable(endpoint_id, True)
    say(f"disabled {endpoint_id}")


@app.command()
def delete(endpoint_id: EndpointId) -> None:
    """Delete an endpoint; what is owed to it becomes dead letters."""
    with open_client() as client:
        client.delete_webhook_endpoint(endpoint_id)
    say(f"deleted {endpoint_id}")


@app.command()
def rotate(
    endpoint_id: EndpointId,
    at_once: Annotated[
        bool, typer.Option("--at-once", help="End the old secret now.  [default: it signs too for 24 hours]")
    ] = False,
    json: Json = False,
) -> None:
    """Replace an endpoint's signing secret and print the new one, this once."""
    with open_client() as client:
        rotated = client.rotate_webhook_secret(endpoint_id, keeps_old=not at_once)
    _print_with_secret(rotated, json)


@app.command("test")
def send_sample(
    endpoint_id: EndpointId,
    event: Annotated[str, typer.Option(metavar="TYPE", help="The type of the sample.")] = "job.succeeded",
    json: Json = False,
) -> None:
    """Send a sample event and print the answer's status.

    It is an error unless the receiver took it: a status from 200 to 299.
    """
    with open_client() as client:
        result = client.test_webhook_endpoint(endpoint_id, event)
    status_code = result["status_code"]
    if json:
        print_json(result)
    else:
        typer.echo(status_code)
    if not is_taken(status_code):
        rest = ", and no redirect is followed" if 300 <= status_code < 400 else ""
        fail(f"{endpoint_id} did not take the event: it answered {status_code}{rest}")


@app.command()
def deliveries(
    status: Annotated[DeliveryState | None, typer.Option(help="Only those in this state.")] = None,
    endpoint: Annotated[str | None, typer.Option(metavar="ID", help="Only this endpoint's.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 20,
    json: Json = False,
) -> None:
    """List deliveries, owed and sent, newest first."""
    with open_client() as client:
        deliveries = list(client.deliveries(status=status, endpoint_id=endpoint, limit=limit))
    headings = ("ID", "STATUS", "EVENT", "JOB", "ATTEMPTS", "CREATED", "ENDPOINT", "URL")
    print_list(deliveries, headings, _delivery_line, json=json)


@app.command()
def replay(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Deliveries: dlv_….", show_default=False)
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="ID", help="The dead letters of this endpoint, instead of ids …")
    ] = None,
    since: Annotated[
        datetime | None, typer.Option(formats=TIME_FORMATS, help="… of events from this time on, UTC …")
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(formats=TIME_FORMATS, help="… and before this one.  [default: now]", show_default=False),
    ] = None,
) -> None:
    """Send events once more, under their own ids.

    A delivered event is sent again only by its id.
    """
    if bool(ids) == bool(endpoint) or bool(endpoint) != (since is not None) or (until and not endpoint):
        raise typer.BadParameter("give the ids of deliveries, or --endpoint and --since")
    with open_client() as client:
        for id in ids or ():
            client.replay_delivery(id)
            say(f"{id} is sent again")
        if endpoint and since:
            count = client.replay_webhook_endpoint(
                endpoint, since.replace(tzinfo=UTC), until.replace(tzinfo=UTC) if until else None
            )
            say(f"{count} dead letters are sent again")


def _disable(endpoint_id: str, disabled: bool) -> None:
    with open_client() as client:
        client.update_webhook_endpoint(endpoint_id, {"nightshift": {"disabled": disabled}})


def _print_with_secret(endpoint: JsonObject, json: bool) -> None:
    if json:
        print_json(endpoint)
        return
    typer.echo(endpoint["signing_secret"])
    say(f"the signing secret of {endpoint['id']}; it is not shown again")


def _endpoint_line(endpoint: JsonObject) -> tuple[object, ...]:
    ours = endpoint["nightshift"]
    reason = f" ({ours['disabled_reason']})" if ours["disabled_reason"] else ""
    return (
        endpoint["id"],
        endpoint["name"],
        f"{ours['status']}{reason}",
        ",".join(endpoint["event_types"]),
        endpoint["signing_secret_hint"],
        time_text(endpoint["created_at"]),
        endpoint["url"],
    )


def _delivery_line(delivery: JsonObject) -> tuple[object, ...]:
    return (
        delivery["id"],
        delivery["status"],
        delivery["event_type"],
        delivery["job_id"],
        delivery["attempt_count"],
        time_text(delivery["created_at"]),
        delivery["webhook_endpoint_id"],
        delivery["url"],
    )
